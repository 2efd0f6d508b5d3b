//! Peers that break the protocol: no frame may cause a panic or let memory grow without bound.

mod admission;
mod announced;
mod recorded;

use isthmus_proto::{
    Batch, Channel, Config, Engine, LaneId, LaneLoss, Options, PeerFault, RecvRequest, RemoteRange,
    RmaRequest, SendRequest,
};
use isthmus_wire::frame::{self, ACK_WORDS, Frame, MAGIC, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use isthmus_wire::{Address, AsId};

use crate::arena::{Arena, KEY};
use crate::rng::Rng;
use crate::world::address as keyed;

/// The address of a process that admits everybody.
fn address(node: usize) -> Address {
    keyed(node).place()
}

/// An engine, and the lanes of one peer that can send any frame.
pub(crate) struct Victim {
    pub(crate) engine: Engine,
    pub(crate) mem: Arena,
    lanes: Vec<LaneId>,
    now: u64,
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self::with(Config::new(address(0)))
    }

    fn with(config: Config) -> Self {
        let engine = Engine::new(Config { credit: 128 << 10, refusals_max: 3, ..config });
        let mut mem = Arena::default();
        assert_eq!(mem.register(vec![0; 1 << 20]), KEY);
        Self { engine, mem, lanes: Vec::new(), now: 0 }
    }

    pub(crate) fn say(
        &mut self,
        lane: LaneId,
        frame: impl Into<Frame>,
        payload: &[u8],
    ) -> Result<(), PeerFault> {
        self.engine.handle(self.now, lane, &frame.into(), payload, &mut self.mem)
    }

    /// A lane on which the peer has greeted.
    pub(crate) fn open(&mut self) -> LaneId {
        let lane = self.engine.lane_accepted();
        let hello = self::hello(1 << 20);
        self.say(lane, hello, &[]).unwrap();
        lane
    }

    /// Everything that the engine wants to write on its lanes.
    fn drain(&mut self) -> Vec<Frame> {
        self.drain_lanes().into_iter().map(|(_, frame)| frame).collect()
    }

    /// The same, with the lane of each frame.
    pub(crate) fn drain_lanes(&mut self) -> Vec<(LaneId, Frame)> {
        let mut frames = Vec::new();
        let mut batch = Batch::default();
        while let Some(lane) = self.engine.next_ready() {
            batch.clear();
            if self.engine.transmit(lane, &mut batch, &mut self.mem) {
                let mut bytes = &batch.bytes[..];
                while let Ok(Some(frame)) = Frame::decode(bytes) {
                    let whole = frame.header_len() + frame.payload_len() as usize;
                    frames.push((lane, frame));
                    let Some(rest) = bytes.get(whole..) else { break };
                    bytes = rest;
                }
                self.engine.written(lane, &mut self.mem);
            }
        }
        frames
    }
}

/// The greeting of process 1.
fn hello(credit: u64) -> frame::Hello {
    frame::Hello {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        source: address(1),
        target: address(0),
        credit,
        hops: 0,
        oldest: PROTOCOL_OLDEST,
        payload: 0,
    }
}

pub(crate) fn message(seq: u64, order: u64, total: u64, payload: u32) -> frame::Message {
    frame::Message {
        flags: frame::flags::TAGGED,
        connection: 0,
        seq,
        order,
        tag: 1,
        data: 0,
        total,
        eager: total,
        payload,
    }
}

#[test]
fn a_peer_of_another_version_is_refused() {
    let mut victim = Victim::new();
    let lane = victim.engine.lane_accepted();
    let hello = frame::Hello {
        magic: MAGIC,
        version: PROTOCOL_VERSION + 1,
        source: address(1),
        target: address(0),
        credit: 0,
        hops: 0,
        oldest: PROTOCOL_VERSION + 1,
        payload: 0,
    };
    victim.say(lane, hello, &[]).unwrap();
    let answer = victim.drain();
    assert!(
        matches!(answer[..], [Frame::Refuse(refuse)] if refuse.reason == frame::RefuseReason::Version as u8)
    );
}

#[test]
fn what_is_no_greeting_of_a_peer_is_a_fault() {
    let good = hello(u64::MAX);
    for hello in [
        frame::Hello { magic: 7, ..good },
        frame::Hello { source: Address { incarnation: 0, ..address(1) }, ..good },
    ] {
        let mut victim = Victim::new();
        let lane = victim.engine.lane_accepted();
        assert!(victim.say(lane, hello, &[]).is_err(), "{hello:?}");
    }
    let mut victim = Victim::new();
    let lane = victim.engine.lane_accepted();
    assert!(victim.say(lane, message(0, 0, 0, 0), &[]).is_err());
    victim.say(lane, good, &[]).unwrap();
    assert!(victim.say(lane, good, &[]).is_err());
    let other = Address { as_id: AsId(9), ..address(1) };
    let lane = victim.engine.lane_accepted();
    victim.say(lane, frame::Hello { source: other, ..good }, &[]).unwrap();
    assert!(matches!(victim.drain().last(), Some(Frame::Refuse(_))));
}

#[test]
fn who_takes_proved_lanes_only_refuses_others_and_holds_peers_to_their_certificates() {
    let hello = self::hello(0);
    let greeted = |prove: &dyn Fn(&mut Engine, LaneId)| {
        let mut victim = Victim::with(Config { proved_only: true, ..Config::new(address(0)) });
        let lane = victim.engine.lane_accepted();
        prove(&mut victim.engine, lane);
        victim.say(lane, hello, &[]).map(|()| victim.drain())
    };
    let refused = greeted(&|_, _| {}).expect("no fault");
    let plain = frame::RefuseReason::Plain as u8;
    assert!(matches!(refused[..], [Frame::Refuse(refuse)] if refuse.reason == plain), "{refused:?}");
    let named = greeted(&|engine, lane| engine.set_lane_as(lane, address(1).as_id)).expect("no fault");
    assert!(matches!(named[0], Frame::Welcome(_)), "{named:?}");
    let routed = greeted(&|engine, lane| engine.trust_lane(lane)).expect("no fault");
    assert!(matches!(routed[0], Frame::Welcome(_)), "{routed:?}");
    assert!(greeted(&|engine, lane| engine.set_lane_as(lane, AsId(9))).is_err());
}

#[test]
fn a_peer_that_is_not_trusted_fails_its_operations_with_the_reason() {
    let text = error_after(&LaneLoss::Untrusted("no such authority".to_owned()));
    assert!(text.contains("no such authority") && text.contains(&address(1).to_string()), "{text}");
}

#[test]
fn what_is_not_isthmus_at_a_peers_port_counts_as_a_refusal() {
    let text = error_after(&LaneLoss::Foreign);
    assert!(text.contains("is it the right port?") && text.contains(&address(1).to_string()), "{text}");
}

#[test]
fn what_takes_connections_and_says_nothing_may_be_something_else() {
    for loss in [LaneLoss::Closed, LaneLoss::Broken("Connection reset by peer".to_owned())] {
        let text = error_of(&loss, true);
        assert!(text.contains("before any answer; is it the right port"), "{loss:?}: {text}");
        assert!(!text.contains("nobody listens"), "{loss:?}: {text}");
    }
    assert!(error_after(&LaneLoss::Refused).contains("nobody listens"));
}

/// A server that waits for the end of a line, as those of HTTP do, never answers.
#[test]
fn what_never_answers_is_given_up_when_the_timeout_has_passed_since_the_first_attempt() {
    for peer_timeout_us in [2_000_000, 60_000_000] {
        never_answers(Config { peer_timeout_us, ..Config::new(address(0)) });
    }
}

fn never_answers(config: Config) {
    let timeout = config.peer_timeout_us;
    let mut victim = Victim::with(config);
    let peer = victim.engine.peer(&address(1)).unwrap();
    send(&mut victim, peer, 10);
    let error = loop {
        while let Some(action) = victim.engine.poll_action() {
            match action {
                isthmus_proto::Action::Dial { lane, .. } => victim.engine.lane_connected(victim.now, lane),
                isthmus_proto::Action::Abandon { lane } => {
                    let loss = LaneLoss::Broken("no sign of life".to_owned());
                    victim.engine.lane_lost(victim.now, lane, &loss, &mut victim.mem);
                }
                _ => {}
            }
        }
        if let Some(done) = victim.engine.poll_completion() {
            break done.error.expect("an error").to_string();
        }
        victim.now = victim.engine.poll_timeout().expect("it is given up");
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
    };
    assert_eq!(victim.now, timeout, "{error}");
    assert!(error.contains("no sign of life before any answer; is it the right port"), "{error}");
}

/// The error of an operation whose peer's lanes end so three times, while they are dialled.
fn error_after(loss: &LaneLoss) -> String {
    error_of(loss, false)
}

/// The error of an operation whose peer's lanes end so each time: before the connection is there, or after it.
fn error_of(loss: &LaneLoss, connects: bool) -> String {
    let mut victim = Victim::new();
    let peer = victim.engine.peer(&address(1)).unwrap();
    let request =
        SendRequest { peer, channel: Channel::Tagged, tag: 1, data: None, options: Options::default() };
    let place = victim.mem.lend(vec![0; 8], false, true);
    victim.engine.send(&request, place, 8, &mut victim.mem).unwrap();
    let done = loop {
        while let Some(action) = victim.engine.poll_action() {
            let isthmus_proto::Action::Dial { lane, .. } = action else { continue };
            if connects {
                victim.engine.lane_connected(victim.now, lane);
            }
            victim.engine.lane_lost(victim.now, lane, loss, &mut victim.mem);
        }
        if let Some(done) = victim.engine.poll_completion() {
            break done;
        }
        victim.now = victim.engine.poll_timeout().expect("it is given up");
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
    };
    done.error.expect("an error").to_string()
}

#[test]
fn an_answer_in_another_name_is_a_fault() {
    for source in [Address { incarnation: 0, ..address(1) }, address(2)] {
        for typed in [true, false] {
            let mut victim = Victim::new();
            let target = if typed { Address { incarnation: 0, ..address(1) } } else { address(1) };
            let peer = victim.engine.peer(&target).unwrap();
            send(&mut victim, peer, 10);
            let Some(isthmus_proto::Action::Dial { lane, .. }) = victim.engine.poll_action() else {
                panic!()
            };
            victim.engine.lane_connected(0, lane);
            let welcome =
                frame::Welcome { magic: MAGIC, version: PROTOCOL_VERSION, source, credit: 0, payload: 0 };
            let answer = victim.say(lane, welcome, &[]);
            assert_eq!(answer.is_err(), !typed || source.is_wildcard());
        }
    }
}

fn send(victim: &mut Victim, peer: isthmus_proto::PeerId, len: u64) {
    let place = victim.mem.lend(vec![1; len as usize], false, false);
    let request =
        SendRequest { peer, channel: Channel::Tagged, tag: 0, data: None, options: Options::default() };
    victim.engine.send(&request, place, len, &mut victim.mem).unwrap();
}

/// The error of an operation whose peer answers the greeting with `answer`.
fn end_of_a_send(answer: impl Into<Frame>) -> String {
    let mut victim = Victim::new();
    let peer = victim.engine.peer(&address(1)).unwrap();
    send(&mut victim, peer, 10);
    let Some(isthmus_proto::Action::Dial { lane, .. }) = victim.engine.poll_action() else { panic!() };
    victim.engine.lane_connected(0, lane);
    victim.say(lane, answer, &[]).unwrap();
    let end = victim.engine.poll_completion().expect("failed at once, not after peer_timeout");
    end.error.expect("no success").to_string()
}

#[test]
fn an_answer_of_another_version_ends_the_operation_and_names_both() {
    let version = PROTOCOL_VERSION + 6;
    let welcome = frame::Welcome { magic: MAGIC, version, source: address(1), credit: 0, payload: 0 };
    let refuse = frame::Refuse {
        magic: MAGIC,
        version,
        reason: frame::RefuseReason::Version as u8,
        oldest: PROTOCOL_OLDEST,
    };
    for text in [end_of_a_send(welcome), end_of_a_send(refuse)] {
        let wanted = format!(
            "{} speaks protocol version {version}, this library version {PROTOCOL_VERSION}; install the same \
             isthmus release on both sides",
            address(1)
        );
        assert_eq!(text, wanted);
    }
}

#[test]
fn a_peer_that_is_lost_is_told_after_the_operations_before_it() {
    let mut victim = Victim::new();
    victim.engine.watch_peers();
    let peer = victim.engine.peer(&address(1)).unwrap();
    send(&mut victim, peer, 10);
    let Some(isthmus_proto::Action::Dial { lane, .. }) = victim.engine.poll_action() else { panic!() };
    victim.engine.lane_connected(0, lane);
    let reason = frame::RefuseReason::Subnet as u8;
    victim
        .say(
            lane,
            frame::Refuse { magic: MAGIC, version: PROTOCOL_VERSION, reason, oldest: PROTOCOL_OLDEST },
            &[],
        )
        .unwrap();
    assert_eq!(victim.engine.poll_lost(), None, "the program has not seen the end of its message yet");
    assert!(victim.engine.poll_completion().unwrap().error.is_some());
    assert_eq!(victim.engine.poll_lost().map(|(lost, _)| lost), Some(peer));
}

#[test]
fn a_refusal_for_the_subnet_says_which_one_was_expected() {
    let reason = frame::RefuseReason::Subnet as u8;
    let text = end_of_a_send(frame::Refuse {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        reason,
        oldest: PROTOCOL_OLDEST,
    });
    let own = address(0);
    assert!(text.contains(&format!("not in AS {} subnet {}", own.as_id.0, own.subnet.0)), "{text}");
    assert!(text.contains("give both sides the same as_id and subnet"), "{text}");
}

#[test]
fn more_than_the_credit_is_a_fault() {
    let mut victim = Victim::new();
    let lane = victim.open();
    victim.say(lane, message(0, 0, 100 << 10, 100 << 10), &vec![0; 100 << 10]).unwrap();
    assert!(victim.say(lane, message(1, 1, 100 << 10, 100 << 10), &vec![0; 100 << 10]).is_err());
    assert!(victim.say(lane, message(2, 1, u64::MAX, 0), &[]).is_err());
}

#[test]
fn fragments_without_a_message_are_bounded() {
    let mut victim = Victim::new();
    let lane = victim.open();
    let more =
        |seq, message| frame::More { connection: 0, seq, message, offset: u64::MAX / 2, payload: 60_000 };
    victim.say(lane, more(1, 0), &vec![0; 60_000]).unwrap();
    victim.say(lane, more(2, 0), &vec![0; 60_000]).unwrap();
    assert!(victim.say(lane, more(3, 0), &vec![0; 60_000]).is_err(), "held more than was granted");
    assert!(victim.say(lane, more(4, 9), &vec![0; 60_000]).is_err(), "of a message that comes later");
    let over = frame::More { connection: 0, seq: 5, message: 0, offset: u64::MAX, payload: 2 };
    assert!(victim.say(lane, over, &[0; 2]).is_err());
    assert!(victim.say(lane, message(0, 0, 10, 0), &[]).is_err(), "what came lies beyond the end");
}

#[test]
fn an_order_taken_twice_is_a_fault() {
    let mut victim = Victim::new();
    let lane = victim.open();
    victim.say(lane, message(1, 5, 8, 8), &[0; 8]).unwrap();
    assert!(victim.say(lane, message(2, 5, 8, 8), &[0; 8]).is_err());
    assert!(victim.say(lane, message(3, u64::MAX, 8, 8), &[0; 8]).is_err());
}

#[test]
fn pings_without_reading_the_answers_are_bounded() {
    let mut victim = Victim::new();
    let lane = victim.open();
    let answers = (0..1000).map(|id| victim.say(lane, frame::Ping { id }, &[])).filter(Result::is_ok).count();
    assert!(answers < 100);
}

#[test]
fn reads_without_taking_the_answers_are_bounded() {
    let mut victim = Victim::new();
    let lane = victim.open();
    let mut accepted = 0;
    for seq in 0..1 << 20 {
        let read = frame::Read { connection: 0, seq, token: seq, key: KEY, addr: 0, len: 1 << 20 };
        let write = frame::Write {
            flags: 0,
            connection: 0,
            seq,
            token: seq,
            key: KEY,
            addr: 0,
            data: 0,
            total: 2,
            offset: 0,
            payload: 1,
        };
        let answer = if seq % 2 == 0 { victim.say(lane, read, &[]) } else { victim.say(lane, write, &[0]) };
        if answer.is_err() {
            break;
        }
        accepted += 1;
        while victim.engine.poll_completion().is_some() {}
    }
    assert!(accepted < 1 << 20, "{accepted} requests kept");
}

#[test]
fn an_atomic_of_any_length_is_answered() {
    let mut victim = Victim::new();
    let lane = victim.open();
    for (seq, len) in [u64::MAX, u64::MAX / 2 + 1, 1 << 40, 0, 7].into_iter().enumerate() {
        for (k, kind) in [0, 1, 2, 200].into_iter().enumerate() {
            let seq = (4 * seq + k) as u64;
            let atomic = frame::Atomic {
                connection: 0,
                seq,
                order: seq,
                token: seq,
                key: KEY,
                addr: 0,
                len,
                kind,
                op: 2,
                datatype: 7,
                payload: 0,
            };
            victim.say(lane, atomic, &[]).unwrap();
        }
    }
}

#[test]
fn a_fragment_that_comes_again_while_its_place_is_filled_waits() {
    // The first lane is dead for the sender. It sends the write again by another lane, and then a second write to the
    // same place. The data that the first lane still brings must not overwrite the second write.
    let mut victim = Victim::new();
    let (dying, healthy) = (victim.open(), victim.open());
    let write = |seq, token| frame::Write {
        flags: 0,
        connection: 0,
        seq,
        token,
        key: KEY,
        addr: 0,
        data: 0,
        total: 1000,
        offset: 0,
        payload: 1000,
    };
    victim.engine.begin(0, dying, &write(0, 1).into(), &mut victim.mem).unwrap();
    let sink = victim.engine.sink(dying).unwrap();
    assert_eq!(sink.len, 1000);
    victim.say(healthy, write(0, 1), &[1; 1000]).unwrap();
    let done = |frames: &[Frame]| frames.iter().filter(|frame| matches!(frame, Frame::Done(_))).count();
    assert_eq!(done(&victim.drain()), 0, "the place is still being filled");
    victim.engine.filled(dying, 10, &mut victim.mem).unwrap();
    assert_eq!(done(&victim.drain()), 1);
    victim.say(healthy, write(1, 2), &[2; 1000]).unwrap();
    assert_eq!(victim.engine.feed(dying, &[1; 990], &mut victim.mem), Ok(990));
    assert_eq!(victim.mem.region(KEY)[..1000], [2; 1000]);
}

#[test]
fn a_closing_lane_drops_what_it_reads() {
    let mut victim = Victim::new();
    let lane = victim.open();
    let peer = victim.engine.peer(&address(1)).unwrap();
    let place = victim.mem.lend(vec![0; 1000], true, false);
    let request = RmaRequest {
        peer,
        remote: RemoteRange { key: KEY, addr: 0, len: 1000 },
        data: None,
        options: Options::default(),
    };
    victim.engine.read(&request, place, &mut victim.mem).unwrap();
    let frames = victim.drain();
    let Some(Frame::Read(read)) = frames.iter().find(|frame| matches!(frame, Frame::Read(_))) else {
        panic!()
    };
    let reply =
        frame::Reply { connection: 0, seq: 0, token: read.token, offset: 0, status: 0, payload: 1000 };
    let other = victim.open();
    victim.engine.begin(0, lane, &reply.into(), &mut victim.mem).unwrap();
    victim.engine.sink(lane).unwrap();
    victim.say(other, frame::Bye { connection: 0 }, &[]).unwrap();
    assert_eq!(
        victim.engine.poll_completion().map(|completion| completion.context),
        None,
        "still being filled"
    );
    victim.engine.filled(lane, 500, &mut victim.mem).unwrap();
    assert!(victim.engine.poll_completion().unwrap().error.is_some());
    // The engine still distinguishes its payload from frames, and drops it.
    assert_eq!(victim.engine.feed(lane, &[1; 800], &mut victim.mem), Ok(500));
    victim.engine.begin(0, lane, &message(1, 0, 100, 100).into(), &mut victim.mem).unwrap();
    assert_eq!(victim.engine.streaming(lane), Some(100));
    assert_eq!(victim.engine.feed(lane, &[1; 800], &mut victim.mem), Ok(100));
}

/// A peer comes, sends a message that no receive takes, leaves, and comes again under another address, 2000 times.
#[test]
fn what_peers_leave_behind_is_bounded() {
    let total: u64 = 4 << 20;
    let mut victim = Victim::with(Config { credit_total: total, ..Config::new(address(0)) });
    let mut held = Vec::new();
    for round in 0..2000 {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation: 1000 + round, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let bytes = if round % 2 == 0 { 60_000 } else { 0 };
        victim.say(lane, message(1, 0, bytes.into(), bytes), &vec![round as u8; bytes as usize]).unwrap();
        victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        victim.drain();
        held.push(victim.engine.gone_hold());
    }
    assert!(held.iter().all(|held| *held <= total / 4), "{:?}", held.iter().max());
    assert!(held[1999] > total / 8, "what there is room for stays");
    let dropped = victim.engine.take_gone_dropped();
    assert!((1950..2000).contains(&dropped), "{dropped}");
    // The messages of the last peers can still be received.
    let (channel, options) = (Channel::Tagged, Options::default());
    let request = RecvRequest { source: None, channel, tag: 1, ignore: 0, multi: None, options };
    for _ in dropped..2000 {
        let place = victim.mem.lend(vec![0; 60_000], true, false);
        victim.engine.recv(&request, place, 60_000, &mut victim.mem);
        assert_eq!(victim.engine.poll_completion().expect("received").error, None);
    }
    assert_eq!(victim.engine.gone_hold(), 0);
}

/// Peers come and leave again and again. The engine keeps nothing of those that the program never named, and refuses
/// one that comes back under the same address.
#[test]
fn peers_that_nobody_named_are_forgotten_when_they_have_left() {
    let mut victim = Victim::new();
    victim.engine.watch_peers();
    let come = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        (lane, victim.drain())
    };
    let leave = |victim: &mut Victim, lane, bye: bool| {
        if bye {
            victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        while victim.engine.poll_completion().is_some() {}
        while victim.engine.poll_lost().is_some() {}
    };
    let named = Address { incarnation: 999, ..address(1) };
    victim.engine.peer(&named).unwrap();
    let (lane, _) = come(&mut victim, named.incarnation);
    leave(&mut victim, lane, true);
    let most = (0..1000).map(|round| {
        let (lane, _) = come(&mut victim, 1000 + round);
        victim.say(lane, message(1, 0, 8, 8), &[7; 8]).unwrap();
        let request = RecvRequest {
            source: None,
            channel: Channel::Tagged,
            tag: 1,
            ignore: 0,
            multi: None,
            options: Options::default(),
        };
        let place = victim.mem.lend(vec![0; 8], true, false);
        victim.engine.recv(&request, place, 8, &mut victim.mem);
        leave(&mut victim, lane, true);
        victim.now += 1_000;
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        victim.engine.peers_kept()
    });
    let most = most.max().unwrap();
    assert!(most <= 8, "{most} are kept");
    assert!(
        victim.engine.peer_counters().count() > 1000,
        "the program is told at the end what was exchanged with them"
    );
    // The peer has said Bye. A caller under the same address is refused, and the engine keeps nothing of it.
    for incarnation in [1000, 1500] {
        let (lane, said) = come(&mut victim, incarnation);
        assert!(matches!(said[..], [Frame::Refuse(_)]), "{said:?}");
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
    }
    assert!(victim.engine.peers_kept() <= 8);
    // A program that names the peer now gets the error that it has left.
    let late = victim.engine.peer(&Address { incarnation: 1000, ..address(1) }).unwrap();
    send(&mut victim, late, 8);
    let error = victim.engine.poll_completion().and_then(|done| done.error).map(|error| error.to_string());
    assert!(error.is_some_and(|text| text.contains("has left")), "it is told");
}

/// Everybody can come to an open endpoint under ever new addresses. If its program keeps no numbers of lost peers, the
/// table of peers stays small, and those that the program has vouched for or named keep their numbers.
#[test]
fn the_table_of_an_open_endpoint_does_not_grow_with_those_who_have_left() {
    let named = Address { incarnation: 1, ..address(1) };
    let come_and_leave = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let peer = victim.engine.lane_peer(lane);
        if peer.is_some() {
            victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        }
        if let Some(peer) = peer.filter(|_| incarnation == 2) {
            victim.engine.vouch_for(peer);
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        while victim.engine.poll_lost().is_some() {}
        peer
    };
    let kept = |reuses: bool| {
        let mut victim = Victim::new();
        victim.engine.watch_peers();
        if reuses {
            victim.engine.reuse_entries();
        }
        let first = victim.engine.peer(&named).unwrap();
        let second = come_and_leave(&mut victim, 2).expect("it has greeted");
        let mut most = 0;
        for incarnation in 3..20_003 {
            let peer = come_and_leave(&mut victim, incarnation).expect("it has greeted");
            assert!(peer != first && peer != second, "{incarnation}");
            assert_eq!(victim.engine.peer_address(peer).map(|at| at.incarnation), Some(incarnation));
            most = most.max(peer.0);
        }
        assert_eq!(victim.engine.peer(&named), Ok(first));
        assert_eq!(victim.engine.peer_address(second).map(|at| at.incarnation), Some(2));
        // Somebody of whom nothing is left may come again, as somebody new.
        assert_eq!(come_and_leave(&mut victim, 3).is_some(), reuses);
        most
    };
    assert!(kept(false) > 20_000, "the test would show nothing");
    assert!(kept(true) < 4_200, "entries are not used again");
}

/// Guests that break off without a farewell are waited for. At an open endpoint only the last of them are, however many
/// come, and those that the program has vouched for.
#[test]
fn guests_that_break_off_are_bounded_and_make_room_for_each_other_only() {
    let mut victim = Victim::new();
    victim.engine.watch_peers();
    victim.engine.reuse_entries();
    let come_and_break = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let peer = victim.engine.lane_peer(lane).expect("it has greeted");
        if incarnation == 2 {
            victim.engine.vouch_for(peer);
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        peer
    };
    let known = come_and_break(&mut victim, 2);
    let (mut most, mut lost) = (0, Vec::new());
    for incarnation in 3..20_003 {
        most = most.max(come_and_break(&mut victim, incarnation).0);
        lost.extend(std::iter::from_fn(|| victim.engine.poll_lost()).map(|(peer, _)| peer));
    }
    assert!(most < 5_400, "{most} entries");
    assert!(lost.len() > 18_000 && !lost.contains(&known), "{}: the program is told", lost.len());
    // A guest that the engine waits for comes back under its old entry.
    assert_eq!(come_and_break(&mut victim, 2), known);
    let last = come_and_break(&mut victim, 20_003);
    assert_eq!(come_and_break(&mut victim, 20_003), last);
    // A guest that was given up has departed, and its Hello is refused.
    let lane = victim.engine.lane_accepted();
    let source = Address { incarnation: 18_000, ..address(1) };
    let _ = victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]);
    assert_eq!(victim.engine.lane_peer(lane), None);
}

/// A guest claims to listen at a third host, asks for an answer, and breaks its lane. The engine dials the third host
/// only if the program itself has named the guest.
#[test]
fn nobody_has_an_endpoint_connect_to_a_third_host() {
    let claimed = Address { incarnation: 99, ..address(5) };
    let called = |named: bool| {
        let mut victim = Victim::new();
        let lane = victim.engine.lane_accepted();
        let seen: std::net::IpAddr = [10, 7, 7, 7].into();
        victim.engine.set_lane_origin(lane, seen);
        victim.say(lane, frame::Hello { source: claimed, ..hello(1 << 20) }, &[]).unwrap();
        let read = frame::Read { connection: 0, seq: 1, key: KEY, addr: 0, len: 1000, token: 5 };
        victim.say(lane, read, &[]).unwrap();
        if named {
            victim.engine.peer(&claimed).unwrap();
        }
        victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
        for _ in 0..20 {
            victim.drain();
            while let Some(action) = victim.engine.poll_action() {
                if let isthmus_proto::Action::Dial { locator, .. } = action {
                    return (locator.ip() == seen, locator == claimed.locator);
                }
            }
            victim.now += 1_000_000;
            victim.engine.handle_timeout(victim.now, &mut victim.mem);
        }
        panic!("nobody is called")
    };
    assert_eq!((called(false), called(true)), ((true, false), (false, true)));
}

/// A number that is likely to break arithmetic.
/// An open endpoint, of which everybody can be a guest, does not call a guest back to which it owes nothing.
#[test]
fn guests_that_are_owed_nothing_are_not_called_back() {
    let mut victim = Victim::new();
    let lane = victim.open();
    victim.say(lane, message(1, 0, 8, 8), &[7; 8]).unwrap();
    victim.drain();
    victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
    for _ in 0..100 {
        victim.now += 1_000_000;
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        assert!(victim.engine.poll_action().is_none(), "after {} us", victim.now);
    }
}

fn number(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => u64::MAX - rng.below(3),
        1 => 1 << rng.below(64),
        2 => rng.word(),
        _ => rng.below(40),
    }
}

fn any_frame(rng: &mut Rng, seq: u64, tokens: &[u64]) -> Frame {
    let seq = if rng.chance(850) { seq } else { number(rng) };
    let token = if tokens.is_empty() || rng.chance(300) { number(rng) } else { rng.pick(tokens) };
    let payload = if rng.chance(900) { rng.below(300) } else { rng.below(70_000) } as u32;
    let (connection, addr, offset) = (0, number(rng), number(rng));
    let key = if rng.chance(700) { KEY } else { number(rng) };
    let order = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
    let total = if rng.chance(600) { u64::from(payload) + rng.below(100) } else { number(rng) };
    let eager = if rng.chance(600) { total } else { number(rng) };
    let (tag, data, flags) = (rng.below(2), number(rng), rng.below(64) as u8);
    let status = rng.below(6) as u8;
    match rng.below(22) {
        17..=18 => {
            let message = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
            frame::Granted { connection, seq, message, offset, payload }.into()
        }
        19 => {
            let (number, room, ignore) = (rng.below(4) as u32, number(rng), rng.below(2));
            frame::Announce { flags, connection, seq, number, order, tag, ignore, room }.into()
        }
        20 => {
            let (message, from, wanted) = (number(rng), number(rng), number(rng));
            frame::Resume { connection, seq, message, from, wanted }.into()
        }
        21 => frame::Withdraw { connection, seq, number: rng.below(4) as u32 }.into(),
        0..=3 => frame::Message { flags, connection, seq, order, tag, data, total, eager, payload }.into(),
        4..=5 => {
            let message = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
            frame::More { connection, seq, message, offset, payload }.into()
        }
        6 => frame::Accept { connection, seq, message: number(rng), wanted: number(rng) }.into(),
        7 => frame::Done { connection, seq, token, status }.into(),
        8 => frame::Write { flags, connection, seq, token, key, addr, data, total, offset, payload }.into(),
        9 => frame::Read { connection, seq, token, key, addr, len: total }.into(),
        10 => frame::Reply { connection, seq, token, offset, status, payload }.into(),
        11 => {
            let (kind, op, datatype) = (rng.below(4) as u8, rng.below(22) as u8, rng.below(15) as u8);
            let len = if rng.chance(500) { u64::from(payload) } else { total };
            frame::Atomic { connection, seq, order, token, key, addr, len, kind, op, datatype, payload }
                .into()
        }
        12 => frame::Ack { connection, upto: number(rng), credit: number(rng) }.into(),
        13 => {
            let map = [(); ACK_WORDS].map(|()| rng.word());
            frame::AckMap { connection, upto: rng.below(20), credit: number(rng), map }.into()
        }
        14 => frame::Ping { id: 1 }.into(),
        15 => frame::Pong { id: 1 }.into(),
        _ if rng.chance(50) => frame::Bye { connection }.into(),
        _ => frame::Ack { connection, upto: rng.below(10), credit: number(rng) }.into(),
    }
}

fn assault(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut victim = Victim::new();
    let peer = victim.engine.peer(&address(1)).unwrap();
    let mut tokens = Vec::new();
    let mut seq = 0;
    for _ in 0..rng.below(300) {
        victim.now += rng.below(2_000_000);
        if victim.lanes.len() < 3 && rng.chance(300) {
            greet(&mut victim, &mut rng);
        }
        if rng.chance(150) {
            post(&mut victim, &mut rng, peer);
        }
        if let Some(&lane) = victim.lanes.get(rng.below(4) as usize) {
            let frame = any_frame(&mut rng, seq, &tokens);
            seq += u64::from(rng.chance(950));
            if speak(&mut victim, &mut rng, lane, &frame).is_err() || rng.chance(20) {
                victim.lanes.retain(|other| *other != lane);
                victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
            }
        }
        if rng.chance(700) {
            for frame in victim.drain() {
                match frame {
                    Frame::Write(write) => tokens.push(write.token),
                    Frame::Read(read) => tokens.push(read.token),
                    Frame::Atomic(atomic) => tokens.push(atomic.token),
                    _ => {}
                }
            }
        }
        victim.engine.flush_acks();
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        while victim.engine.poll_completion().is_some() {}
        while let Some(action) = victim.engine.poll_action() {
            obey(&mut victim, &mut rng, action);
        }
        assert!(victim.engine.held().iter().all(|(held, granted)| held <= granted));
    }
}

fn greet(victim: &mut Victim, rng: &mut Rng) {
    let lane = victim.engine.lane_accepted();
    let hello = hello(number(rng));
    if victim.say(lane, hello, &[]).is_ok() {
        victim.lanes.push(lane);
    }
}

fn obey(victim: &mut Victim, rng: &mut Rng, action: isthmus_proto::Action) {
    match action {
        isthmus_proto::Action::Dial { lane, .. } if rng.chance(500) => {
            victim.engine.lane_connected(victim.now, lane);
            let welcome = frame::Welcome {
                magic: MAGIC,
                version: PROTOCOL_VERSION,
                source: if rng.chance(900) { address(1) } else { address(2) },
                credit: number(rng),
                payload: 0,
            };
            let refuse = frame::Refuse {
                magic: MAGIC,
                version: 9,
                reason: rng.below(6) as u8,
                oldest: PROTOCOL_OLDEST,
            };
            let first: Frame = if rng.chance(950) { welcome.into() } else { refuse.into() };
            match victim.say(lane, first, &[]) {
                Ok(()) => victim.lanes.push(lane),
                Err(_) => victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem),
            }
        }
        isthmus_proto::Action::Dial { lane, .. } => {
            let loss = if rng.chance(100) { LaneLoss::Refused } else { LaneLoss::Broken("no".into()) };
            victim.engine.lane_lost(victim.now, lane, &loss, &mut victim.mem);
        }
        isthmus_proto::Action::Recall { .. } => panic!("nothing was borrowed"),
        isthmus_proto::Action::Abandon { lane } | isthmus_proto::Action::Close { lane } => {
            if rng.chance(500) {
                victim.lanes.retain(|other| *other != lane);
                victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
            }
        }
    }
}

fn speak(victim: &mut Victim, rng: &mut Rng, lane: LaneId, frame: &Frame) -> Result<(), PeerFault> {
    if let Some(left) = victim.engine.streaming(lane) {
        if rng.chance(300) && victim.engine.sink(lane).is_some() {
            return victim.engine.filled(lane, rng.below(left + 1), &mut victim.mem);
        }
        let bytes = vec![9; rng.below(left + 1) as usize];
        return victim.engine.feed(lane, &bytes, &mut victim.mem).map(|_| ());
    }
    let payload = vec![7; frame.payload_len() as usize];
    if !payload.is_empty() && rng.chance(400) {
        return victim.engine.begin(victim.now, lane, frame, &mut victim.mem);
    }
    victim.engine.handle(victim.now, lane, frame, &payload, &mut victim.mem)
}

fn post(victim: &mut Victim, rng: &mut Rng, peer: isthmus_proto::PeerId) {
    let len = rng.below(200_000);
    match rng.below(4) {
        0 => send(victim, peer, len),
        1 => {
            let writes = rng.chance(500);
            let place = victim.mem.lend(vec![0; len as usize], !writes, false);
            let options = Options::default();
            let request =
                RmaRequest { peer, remote: RemoteRange { key: KEY, addr: 0, len }, data: None, options };
            let Victim { engine, mem, .. } = victim;
            if writes { engine.write(&request, place, mem) } else { engine.read(&request, place, mem) }
                .unwrap();
        }
        _ => {
            let place = victim.mem.lend(vec![0; len as usize], true, false);
            let channel = rng.pick(&[Channel::Tagged, Channel::Untagged]);
            let multi = (channel == Channel::Untagged && rng.chance(500)).then_some(100);
            let request = RecvRequest {
                source: rng.chance(500).then_some(peer),
                channel,
                tag: rng.below(2),
                ignore: 0,
                multi,
                options: Options::default(),
            };
            victim.engine.recv(&request, place, len, &mut victim.mem);
        }
    }
}

#[test]
fn any_frames_in_any_state_never_panic() {
    crate::storms::for_seeds("any_frames", 9_000_000, 3000, assault);
}
