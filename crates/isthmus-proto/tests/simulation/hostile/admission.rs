//! Strangers at an endpoint that admits only those who know its address. Nothing that they send affects a conversation
//! that is under way.

use isthmus_proto::{
    Action, Batch, Channel, Config, Engine, LaneId, LaneLoss, Options, PeerFault, PeerId, RecvRequest,
    Secret, SendRequest, public_key,
};
use isthmus_wire::frame::{self, Frame, MAGIC, PROTOCOL_OLDEST, PROTOCOL_VERSION, RefuseReason};
use isthmus_wire::{Address, FrameError, Versions};

use crate::arena::Arena;
use crate::world::{address, secret};

/// An engine, and the bytes of its lanes.
pub(super) struct End {
    pub(super) engine: Engine,
    pub(super) mem: Arena,
}

impl End {
    /// Process `node`, with the keys of process `keys`, that admits only those who know its address.
    pub(super) fn new(node: usize, keys: usize) -> Self {
        Self::speaking(Versions::OWN, node, keys)
    }

    /// The same process, of a build that speaks these versions.
    fn speaking(versions: Versions, node: usize, keys: usize) -> Self {
        let config = Config { versions, ..Config::new(address(node)).closed(secret(keys)) };
        Self { engine: Engine::new(config), mem: Arena::default() }
    }

    fn send(&mut self, to: PeerId, bytes: &[u8]) {
        let place = self.mem.lend(bytes.to_vec(), false, false);
        let request = SendRequest {
            peer: to,
            channel: Channel::Tagged,
            tag: 1,
            data: None,
            options: Options::default(),
        };
        self.engine.send(&request, place, bytes.len() as u64, &mut self.mem).expect("posted");
    }

    /// Posts a receive from this peer, or from any.
    pub(super) fn receive(&mut self, source: Option<PeerId>) {
        let place = self.mem.lend(vec![0; 100], true, false);
        let (channel, options) = (Channel::Tagged, Options::default());
        let request = RecvRequest { source, channel, tag: 1, ignore: 0, multi: None, options };
        self.engine.recv(&request, place, 100, &mut self.mem);
    }

    /// Connects a lane to this address and sends `bytes`. Returns the lane, and the bytes that it writes at once.
    pub(super) fn call(&mut self, to: Address, bytes: &[u8]) -> (LaneId, Vec<u8>) {
        let peer = self.engine.peer(&to).expect("within reach");
        self.send(peer, bytes);
        let Some(Action::Dial { lane, .. }) = self.engine.poll_action() else { panic!("no lane is wanted") };
        self.engine.lane_connected(0, lane);
        (lane, self.written(lane))
    }

    /// The bytes that the engine wants to write on this lane.
    pub(super) fn written(&mut self, lane: LaneId) -> Vec<u8> {
        let mut all = Vec::new();
        let mut batch = Batch::default();
        while let Some(ready) = self.engine.next_ready() {
            batch.clear();
            if self.engine.transmit(ready, &mut batch, &mut self.mem) {
                if ready == lane {
                    all.extend_from_slice(&batch.bytes);
                }
                self.engine.written(ready, &mut self.mem);
            }
        }
        all
    }

    pub(super) fn accept(&mut self) -> LaneId {
        self.engine.lane_accepted()
    }

    /// Passes in the bytes that came on a lane.
    pub(super) fn hear(&mut self, lane: LaneId, mut bytes: &[u8]) -> Result<(), PeerFault> {
        while let Some(frame) = match Frame::decode(bytes) {
            Err(FrameError::Version(_)) => {
                self.engine.refuse_version(lane);
                return Ok(());
            }
            decoded => decoded?,
        } {
            let whole = frame.header_len() + frame.payload_len() as usize;
            // An incomplete frame waits for its rest.
            let Some(payload) = bytes.get(frame.header_len()..whole) else { return Ok(()) };
            self.engine.handle(0, lane, &frame, payload, &mut self.mem)?;
            bytes = &bytes[whole..];
        }
        Ok(())
    }

    /// The number of messages that have come; none may have failed.
    pub(super) fn received(&mut self) -> usize {
        let mut count = 0;
        while let Some(done) = self.engine.poll_completion() {
            assert_eq!(done.error, None);
            count += usize::from(matches!(done.kind, isthmus_proto::CompletionKind::Recv(_)));
        }
        count
    }
}

/// A victim that has received one message of a friend. Returns both, the lane at each end (the victim's first), the
/// bytes that the friend wrote, and the answer.
fn conversation() -> (End, End, [LaneId; 2], Vec<u8>, Vec<u8>) {
    conversation_between([End::new(0, 0), End::new(1, 1)])
}

fn conversation_between([mut victim, mut friend]: [End; 2]) -> (End, End, [LaneId; 2], Vec<u8>, Vec<u8>) {
    let (theirs, said) = friend.call(address(0), b"first");
    let ours = victim.accept();
    victim.receive(None);
    victim.hear(ours, &said).expect("a friend");
    assert_eq!(victim.received(), 1);
    let answer = victim.written(ours);
    friend.hear(theirs, &answer).expect("whom it has called");
    (victim, friend, [ours, theirs], said, answer)
}

/// Checks that the conversation goes on as if nothing had happened.
fn goes_on(victim: &mut End, friend: &mut End, [ours, theirs]: [LaneId; 2]) {
    let peer = friend.engine.peer(&address(0)).expect("known");
    friend.send(peer, b"second");
    let said = friend.written(theirs);
    let peer = victim.engine.peer(&address(1)).expect("known");
    victim.receive(Some(peer));
    victim.hear(ours, &said).expect("the friend's");
    assert_eq!(victim.received(), 1, "its message has come");
    assert!(victim.engine.poll_lost().is_none());
    victim.engine.flush_acks();
    friend.hear(theirs, &victim.written(ours)).expect("the answer");
    assert!(friend.engine.poll_lost().is_none());
}

fn is_unproved(answer: &Result<(), PeerFault>) -> bool {
    matches!(answer, Err(PeerFault::Unproved(_)))
}

#[test]
fn both_ends_of_a_conversation_know_each_other() {
    let (mut victim, mut friend, lanes, said, answer) = conversation();
    for key in [address(0).key, address(1).key] {
        assert!(
            ![&said, &answer].iter().any(|bytes| bytes.windows(32).any(|part| part == key.0)),
            "in clear"
        );
    }
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn a_hello_in_a_friends_name_without_a_proof_is_refused() {
    let (mut victim, mut friend, lanes, said, _) = conversation();
    let lane = victim.accept();
    let Ok(Some(Frame::Hello(hello))) = Frame::decode(&said) else { panic!("no Hello") };
    let mut forged = frame::Hello { payload: 0, ..hello }.to_bytes().to_vec();
    forged.extend_from_slice(&frame::Bye { connection: 0 }.to_bytes());
    victim.hear(lane, &forged).expect("what follows a refusal is not looked at");
    let refuse = frame::Refuse {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        reason: RefuseReason::Unproved as u8,
        oldest: PROTOCOL_OLDEST,
    };
    assert_eq!(victim.written(lane), refuse.to_bytes(), "nothing else is told");
    victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn who_has_guessed_the_key_wrongly_hears_nothing_at_all() {
    let (mut victim, mut friend, lanes, _, _) = conversation();
    let mut stranger = End::new(1, 7);
    let (_, said) = stranger.call(Address { key: public_key(&secret(9)), ..address(0) }, b"let me in");
    let lane = victim.accept();
    assert!(is_unproved(&victim.hear(lane, &said)));
    assert_eq!(victim.written(lane), []);
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn a_hello_that_was_recorded_is_taken_once() {
    let (mut victim, mut friend, lanes, said, _) = conversation();
    for _ in 0..2 {
        let lane = victim.accept();
        assert!(is_unproved(&victim.hear(lane, &said)));
        assert_eq!(victim.written(lane), []);
        victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
    }
    // Another endpoint, to which it was not addressed, refuses it too.
    let mut other = End::new(0, 5);
    let lane = other.accept();
    assert!(is_unproved(&other.hear(lane, &said)));
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn a_hello_that_was_altered_on_its_way_proves_nothing() {
    let (mut victim, mut friend, lanes, _, _) = conversation();
    let peer = friend.engine.peer(&address(0)).expect("known");
    friend.engine.lane_lost(0, lanes[1], &LaneLoss::Closed, &mut friend.mem);
    friend.send(peer, b"again");
    friend.engine.handle_timeout(1_000_000, &mut friend.mem);
    let Some(Action::Dial { lane, .. }) = friend.engine.poll_action() else { panic!("no lane is wanted") };
    friend.engine.lane_connected(1_000_000, lane);
    let said = friend.written(lane);
    // Alters each byte except magic and version, which have answers of their own, and the count of routers.
    let whole = frame::Hello::LEN + 104;
    for at in (7..whole).filter(|at| *at != frame::Hello::LEN - 7) {
        let mut altered = said.clone();
        altered[at] ^= 1;
        let lane = victim.accept();
        let answer = victim.hear(lane, &altered[..whole]);
        let told = Frame::decode(&victim.written(lane));
        assert!(!matches!(told, Ok(Some(Frame::Welcome(_)))), "byte {at}: {answer:?}");
        victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
    }
    assert!(victim.engine.poll_lost().is_none());
    let ours = victim.accept();
    victim.receive(None);
    victim.hear(ours, &said).expect("as the friend has sent it");
    assert_eq!(victim.received(), 1);
}

/// A guest that was given the victim's address may connect, but speaks only for itself, whatever address it claims.
#[test]
fn a_guest_that_claims_a_friends_address_is_somebody_else() {
    let (mut victim, mut friend, lanes, _, _) = conversation();
    victim.engine.watch_peers();
    let known = victim.engine.peer(&address(1)).expect("known");
    victim.receive(Some(known));
    let mut guest = End::new(1, 7);
    let (theirs, said) = guest.call(address(0), b"from your friend");
    let lane = victim.accept();
    victim.hear(lane, &said).expect("it knows the address");
    assert_eq!(victim.received(), 0, "a message in another's name");
    guest.hear(theirs, &victim.written(lane)).expect("whom it has called");
    guest.engine.say_bye();
    victim.hear(lane, &guest.written(theirs)).expect("its farewell");
    let lost = victim.engine.poll_lost().expect("it has parted").0;
    assert_ne!(lost, known, "the friend was parted by another's farewell");
    // The receive still takes only the friend's message.
    let peer = friend.engine.peer(&address(0)).expect("known");
    friend.send(peer, b"mine");
    victim.hear(lanes[0], &friend.written(lanes[1])).expect("the friend's");
    assert_eq!(victim.received(), 1);
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn a_strangers_farewell_is_heard_by_nobody() {
    let (mut victim, mut friend, lanes, _, _) = conversation();
    let lane = victim.accept();
    assert!(victim.hear(lane, &frame::Bye { connection: 0 }.to_bytes()).is_err());
    assert_eq!(victim.written(lane), []);
    goes_on(&mut victim, &mut friend, lanes);
}

#[test]
fn a_version_out_of_range_is_told_the_range_and_nothing_else() {
    let (mut victim, mut friend, lanes, said, _) = conversation();
    let refuse = frame::Refuse {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        reason: RefuseReason::Version as u8,
        oldest: PROTOCOL_OLDEST,
    };
    let Ok(Some(Frame::Hello(hello))) = Frame::decode(&said) else { panic!("no Hello") };
    let newer = frame::Hello { version: 99, oldest: PROTOCOL_VERSION + 1, payload: 0, ..hello }.to_bytes();
    let older = frame::Hello { version: PROTOCOL_OLDEST - 1, ..hello }.to_bytes();
    // The older Hello is shorter.
    for bytes in [&newer[..], &older[..80]] {
        let lane = victim.accept();
        victim.hear(lane, bytes).expect("no fault of the peer");
        assert_eq!(victim.written(lane), refuse.to_bytes());
        victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
    }
    goes_on(&mut victim, &mut friend, lanes);
}

/// A build whose newest version is one more talks to this one, whoever calls, in the version that both speak.
#[test]
fn a_build_of_a_later_version_and_this_one_speak_what_both_do() {
    let later = Versions { newest: PROTOCOL_VERSION + 1, ..Versions::OWN };
    for [ours, theirs] in [[later, Versions::OWN], [Versions::OWN, later]] {
        let ends = [End::speaking(ours, 0, 0), End::speaking(theirs, 1, 1)];
        let (mut victim, mut friend, lanes, _, answer) = conversation_between(ends);
        let Ok(Some(Frame::Welcome(welcome))) = Frame::decode(&answer) else { panic!("no Welcome") };
        assert_eq!(welcome.version, PROTOCOL_VERSION);
        goes_on(&mut victim, &mut friend, lanes);
    }
}

#[test]
fn who_answers_without_the_key_is_not_believed() {
    let (mut victim, _, _, _, answer) = conversation();
    let welcome = |payload| frame::Welcome {
        magic: MAGIC,
        version: PROTOCOL_VERSION,
        source: address(2),
        credit: 1 << 20,
        payload,
    };
    for told in [welcome(0).to_bytes().to_vec(), answer] {
        let mut caller = End::new(1, 1);
        let (lane, _) = caller.call(address(2), b"secret");
        assert!(caller.hear(lane, &told).is_err());
        assert_eq!(caller.received(), 0);
    }
    assert_eq!(victim.received(), 0);
}

#[test]
fn who_knows_no_key_is_told_what_to_do() {
    let mut closed = End::new(0, 0);
    let text = closed.engine.peer(&address(1).place()).expect_err("no key").to_string();
    assert!(text.contains("admission") && text.contains("FI_ISTHMUS_ADMISSION=open"), "{text}");
    let mut open = Engine::new(Config::new(address(0).place()));
    let text = open.peer(&address(1)).expect_err("it proves nothing").to_string();
    assert!(text.contains("FI_ISTHMUS_ADMISSION"), "{text}");
}

#[test]
fn both_ends_of_a_lane_that_is_sealed_share_a_secret_that_goes_over_no_lane() {
    let (mut victim, mut friend) = (End::new(0, 0), End::new(1, 1));
    let peer = friend.engine.peer(&address(0)).expect("within reach");
    friend.send(peer, b"first");
    let Some(Action::Dial { lane, key, .. }) = friend.engine.poll_action() else {
        panic!("no lane is wanted")
    };
    assert_eq!(key, public_key(&secret(0)), "packets are sealed by it");
    assert!(friend.engine.seal_lane(lane));
    friend.engine.lane_connected(0, lane);
    assert_eq!(friend.engine.next_ready(), Some(lane));
    let mut batch = Batch::default();
    assert!(friend.engine.transmit(lane, &mut batch, &mut friend.mem));
    let shared = batch.secret.expect("what follows is sealed");
    assert!(!batch.bytes.windows(Secret::LEN).any(|part| part == shared.0));
    let Ok(Some(hello)) = Frame::decode(&batch.bytes) else { panic!("no greeting") };
    let whole = hello.header_len() + hello.payload_len() as usize;
    assert_eq!(whole, batch.bytes.len(), "nothing that is to be sealed goes with the greeting");
    let ours = victim.accept();
    victim.hear(ours, &batch.bytes).expect("a friend");
    assert_eq!(victim.engine.lane_secret(ours), Some(shared));
    friend.engine.written(lane, &mut friend.mem);
    let rest = friend.written(lane);
    victim.receive(None);
    victim.hear(ours, &rest).expect("the message");
    assert_eq!(victim.received(), 1);
}

#[test]
fn who_wants_lanes_sealed_takes_no_other_unless_nobody_can_read_it() {
    for private in [false, true] {
        let config = Config { sealed_only: true, ..Config::new(address(0)).closed(secret(0)) };
        let mut victim = End { engine: Engine::new(config), mem: Arena::default() };
        let mut friend = End::new(1, 1);
        let (_, said) = friend.call(address(0), b"first");
        let ours = victim.accept();
        if private {
            victim.engine.set_lane_private(ours);
        }
        victim.receive(None);
        let _ = victim.hear(ours, &said);
        assert_eq!(victim.received(), usize::from(private));
        let Ok(Some(answer)) = Frame::decode(&victim.written(ours)) else { panic!("no answer") };
        match answer {
            Frame::Refuse(refuse) => assert_eq!(refuse.reason, RefuseReason::Plain as u8),
            answer => assert!(private, "{answer:?}"),
        }
    }
}
