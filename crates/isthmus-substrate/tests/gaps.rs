//! A peer that breaks the order of its messages, over real sockets: an engine that says what
//! no endpoint would.

mod support;

use std::sync::Arc;
use std::time::Instant;

use isthmus_io::{Endpoint as Engine, RegionTable, Settings};
use isthmus_proto::{Channel, Completion, CompletionKind, Options, PeerId, RecvRequest, SendRequest};
use isthmus_substrate::{Endpoint, EndpointOptions, Event, Failure, Level, SendOptions};
use isthmus_wire::conversation::{CONVERSATION_VERSION, ConnectionId, End, LETTER_MAX, Letter, Subject};
use support::*;

/// Receive buffers of the endpoint that is lied to.
const BUFFERS: u32 = 8;

struct Liar {
    engine: Arc<Engine>,
    to: PeerId,
    letter: Vec<u8>,
}

impl Liar {
    fn new(uri: &str) -> Self {
        let settings = Settings { interface: "127.0.0.1".to_owned(), ..Settings::default() };
        let engine = Engine::open(&settings, None, Arc::new(RegionTable::default())).expect("opened");
        let to = engine.peer(&uri.parse().expect("an address")).expect("near");
        Self { engine, to, letter: vec![0; LETTER_MAX] }
    }

    fn say(&self, subject: Subject, data: u64, bytes: &[u8]) {
        let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let options = Options { inject: true, ..Options::default() };
        let (peer, tag) = (self.to, subject.to_tag());
        let request = SendRequest { peer, channel: Channel::Tagged, tag, data: Some(data), options };
        // SAFETY: the engine copies it within the call.
        unsafe { self.engine.send(&request, &[piece]) }.expect("posted");
    }

    /// Asks for an ordered connection; its id at the other end.
    fn connect(&mut self, accept: impl FnOnce()) -> ConnectionId {
        let piece = libc::iovec { iov_base: self.letter.as_mut_ptr().cast(), iov_len: self.letter.len() };
        let request = RecvRequest {
            source: None,
            channel: Channel::Tagged,
            tag: 0,
            ignore: u64::MAX,
            multi: None,
            options: Options { notify: true, ..Options::default() },
        };
        // SAFETY: the buffer is this object's, as the engine is, and nobody touches it before
        // the completion.
        unsafe { self.engine.recv(&request, &[piece]) }.expect("posted");
        let from = End { id: ConnectionId::new(1, 1), token: 7, udp_port: 0, message_max: 1000 };
        let mut bytes = Vec::new();
        Letter::Connect { version: CONVERSATION_VERSION, level: 2, from, payload: Vec::new() }
            .encode(&mut bytes);
        self.say(Subject::Letter, 0, &bytes);
        accept();
        let came = |done: &Completion| matches!(done.kind, CompletionKind::Recv(_));
        let (start, mut done) = (Instant::now(), Vec::new());
        while !done.iter().any(came) {
            in_time(start.elapsed() < LIMIT, || "no answer");
            self.engine.poll(&mut done);
        }
        let len = done.iter().find(|done| came(done)).map_or(0, |done| done.len as usize);
        match Letter::decode(&self.letter[..len]) {
            Some(Letter::Accept { from, .. }) => from.id,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.engine.close();
    }
}

fn accept(at: &Endpoint) {
    let Event::Requested(request) = await_event(at) else { panic!("no request") };
    at.accept(request, 9).expect("granted");
}

#[test]
fn whoever_leaves_a_gap_in_the_order_is_cut_off_and_his_buffers_are_free_again() {
    let victim = open_with(&EndpointOptions { recv_buffers: BUFFERS, ..Default::default() });
    let mut liar = Liar::new(&victim.uri());
    let id = liar.connect(|| accept(&victim));
    assert!(matches!(await_event(&victim), Event::Accepted { .. }));
    // All but the first message, until every buffer waits for that.
    for place in 1..=u64::from(BUFFERS) {
        liar.say(Subject::Message(id), place, b"too early");
    }
    match await_event(&victim) {
        Event::Disconnected { why: Failure::Protocol(text), context: 9, .. } => {
            assert!(text.contains("left out message 0"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    // Others find buffers.
    let other = open();
    let (to_victim, _) = connect(&other, &victim, Level::Ro);
    for _ in 0..3 * BUFFERS {
        other
            .send(to_victim, b"in order", &SendOptions { silent: true, ..Default::default() })
            .expect("sent");
        assert_eq!(&*receive(&victim, &other), b"in order");
    }
}
