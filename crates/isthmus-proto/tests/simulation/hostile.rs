//! Peers that break the protocol: no frame may cause a panic or let memory grow without bound.

mod admission;
mod announced;
mod gone;
mod random;
mod recorded;

use isthmus_proto::{
    Batch, Channel, Config, Engine, LaneId, LaneLoss, Options, PeerFault, RemoteRange, RmaRequest,
    SendRequest,
};
use isthmus_wire::frame::{self, Frame, MAGIC, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use isthmus_wire::{Address, AsId};

use crate::arena::{Arena, KEY};
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
