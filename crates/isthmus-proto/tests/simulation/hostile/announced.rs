//! Peers that announce receives without end or unasked, and send data for which no receive was announced.

use isthmus_proto::{Channel, LaneId, Options, RecvRequest};
use isthmus_wire::frame::{self, Frame};

use super::{Victim, address, hello, message, send};

/// A victim, far away, that has sent a message longer than its credit; the lane; and the message's number.
fn asking() -> (Victim, LaneId, u64) {
    let mut victim = Victim::new();
    let lane = victim.engine.lane_accepted();
    victim.say(lane, hello(0), &[]).unwrap();
    victim.drain();
    victim.now = 50_000;
    victim.say(lane, frame::Pong { id: 0 }, &[]).unwrap();
    let peer = victim.engine.peer(&address(1)).unwrap();
    // The first message uses all of the credit, the next ones use the credit that is granted then, and the last has
    // none.
    send(&mut victim, peer, 64 << 10);
    victim.drain();
    for credit in [128 << 10, 192 << 10] {
        victim.say(lane, frame::Ack { connection: 0, upto: 0, credit }, &[]).unwrap();
        send(&mut victim, peer, 60 << 10);
        victim.drain();
    }
    send(&mut victim, peer, 200_000);
    let asked = |frame: &Frame| match frame {
        Frame::Message(message) if message.flags & frame::flags::ANNOUNCE != 0 => Some(message.seq),
        _ => None,
    };
    let message = victim.drain().iter().find_map(asked).expect("it asks");
    (victim, lane, message)
}

fn announce(seq: u64, order: u64) -> frame::Announce {
    let (number, flags) = (seq as u32 + 1, frame::flags::TAGGED);
    frame::Announce { flags, connection: 0, seq, number, order, tag: 0, ignore: u64::MAX, room: u64::MAX }
}

#[test]
fn receives_that_are_announced_without_end_or_unasked_cost_no_memory() {
    let mut victim = Victim::new();
    let lane = victim.open();
    (0..10_000).for_each(|seq| victim.say(lane, announce(seq, 0), &[]).unwrap());
    let peer = victim.engine.peer(&address(1)).unwrap();
    send(&mut victim, peer, 200_000);
    let ways = |victim: &Victim| {
        let counted = victim.engine.counters();
        (counted.messages_announced, counted.messages_asked + counted.messages_eager)
    };
    victim.drain();
    assert_eq!(ways(&victim), (0, 1), "nobody has asked for announcements");

    let (mut victim, lane, _) = asking();
    (0..10_000).for_each(|seq| victim.say(lane, announce(seq, 4), &[]).unwrap());
    (0..2_000).for_each(|_| send(&mut victim, peer, 20_000));
    victim.drain();
    let (announced, others) = ways(&victim);
    assert!(announced <= 1024 && others > 0, "{announced} announcements were kept");
}

#[test]
fn data_that_nobody_announced_is_dropped_and_asked_for_again() {
    let mut victim = Victim::new();
    let lane = victim.open();
    let total = 10 << 20;
    for round in 0..40 {
        let (first, order) = (3 * round, round);
        let granted = |seq, offset| {
            let payload = 5 << 20;
            frame::Granted { connection: 0, seq, message: first, offset, payload }
        };
        let data = vec![1; 5 << 20];
        // One part comes before its message, for which no receive is posted.
        victim.say(lane, granted(first + 1, 0), &data).unwrap();
        victim.say(lane, frame::Message { eager: 0, ..message(first, order, total, 0) }, &[]).unwrap();
        victim.say(lane, granted(first + 2, 5 << 20), &data).unwrap();
        assert!(victim.engine.held().iter().all(|(held, _)| *held == 0));
    }
    let beyond = frame::Granted { connection: 0, seq: 120, message: 0, offset: total, payload: 1 };
    assert!(victim.say(lane, beyond, &[1]).is_err(), "beyond the end of its message");
    let unknown = frame::Granted { connection: 0, seq: 120, message: 120, offset: 0, payload: 1 };
    assert!(victim.say(lane, unknown, &[1]).is_err(), "of no message");
    let place = victim.mem.lend(vec![0; total as usize], true, false);
    let (source, options) = (None, Options::default());
    let request = RecvRequest { source, channel: Channel::Tagged, tag: 1, ignore: 0, multi: None, options };
    victim.engine.recv(&request, place, total, &mut victim.mem);
    let again = |frame: &Frame| matches!(frame, Frame::Resume(resume) if (resume.message, resume.from, resume.wanted) == (0, 0, total));
    assert!(victim.drain().iter().any(again));
}

#[test]
fn a_message_is_not_asked_for_again_that_did_not_go_by_an_announcement() {
    let (mut victim, lane, message) = asking();
    let resume = frame::Resume { connection: 0, seq: 0, message, from: 0, wanted: 200_000 };
    assert!(victim.say(lane, resume, &[]).is_err());
    // If the message did go by an announcement, the peer may ask for any part of it.
    let (mut victim, lane, _) = asking();
    victim.say(lane, announce(0, 4), &[]).unwrap();
    let peer = victim.engine.peer(&address(1)).unwrap();
    send(&mut victim, peer, 100_000);
    let gone = victim.drain();
    let granted = gone.iter().find_map(|frame| match frame {
        Frame::Granted(granted) => Some(granted.message),
        _ => None,
    });
    let message = granted.expect("it goes by the announcement");
    let resume = frame::Resume { connection: 0, seq: 1, message, from: u64::MAX, wanted: u64::MAX };
    victim.say(lane, resume, &[]).unwrap();
    victim.say(lane, frame::Resume { seq: 2, from: 0, ..resume }, &[]).unwrap();
    assert_eq!(victim.engine.counters().messages_resumed, 1, "once");
}
