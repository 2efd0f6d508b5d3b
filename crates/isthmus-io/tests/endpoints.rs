//! Two endpoints of one process, over real sockets, by each transport.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Access, Endpoint, PostError, RegionTable, Settings, Transport};
use isthmus_proto::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, Completion, CompletionKind, OpError, PeekAction,
    PeekRequest, PeerId, RemoteRange, RmaRequest,
};
use support::*;

by_each_way! {
    messages_of_many_sizes_arrive_whole,
    a_buffer_is_the_programs_again_once_its_message_is_complete,
    a_program_that_only_peeks_still_receives,
    an_endpoint_talks_to_itself,
    transfers_go_on_while_nobody_polls,
    a_burst_after_which_nobody_polls_arrives_whole,
    remote_memory_is_written_and_read,
    a_peer_that_is_not_there_is_an_error_that_names_it,
    who_leaves_at_once_is_known_to_be_gone,
    a_sleeper_is_woken,
}

/// One end of a conversation in which both send as much as they can: some messages are under way each way at any time.
struct Talker {
    endpoint: Arc<Endpoint>,
    peer: PeerId,
    /// By tag; what is sent is by odd contexts, what is received by even ones.
    sent: Vec<Vec<u8>>,
    got: Vec<Vec<u8>>,
    over: usize,
}

impl Talker {
    const MESSAGES: usize = 200;
    const AT_ONCE: usize = 16;

    fn len(tag: usize) -> usize {
        9_000 + tag * 7_919 % 400_000
    }

    fn post(&mut self) {
        let tag = self.sent.len();
        if tag == Self::MESSAGES {
            return;
        }
        self.sent.push(pattern(Self::len(tag), tag as u8));
        self.got.push(vec![0; Self::len(tag)]);
        recv_as(&self.endpoint, None, tag as u64, 2 * tag as u64, &mut self.got[tag]);
        send_as(&self.endpoint, self.peer, tag as u64, 2 * tag as u64 + 1, &mut self.sent[tag]);
    }

    fn turn(&mut self) {
        let mut done = Vec::new();
        self.endpoint.poll(&mut done);
        for completion in done {
            assert_eq!(completion.error, None);
            let (tag, is_sent) = (completion.context as usize / 2, completion.context % 2 == 1);
            if is_sent {
                // Whatever is sent of it from now on is wrong.
                self.sent[tag].fill(0xee);
                self.post();
            } else {
                assert!(
                    self.got[tag] == pattern(Self::len(tag), tag as u8),
                    "message {tag} is not what was sent"
                );
            }
            self.over += 1;
        }
    }
}

fn a_buffer_is_the_programs_again_once_its_message_is_complete(by: Transport) {
    let endpoints = [open_by(by), open_by(by)];
    let mut talkers = [0, 1].map(|own| {
        let endpoint = endpoints[own].clone();
        let peer = endpoint.peer(&endpoints[1 - own].address()).expect("same subnet");
        Talker { endpoint, peer, sent: Vec::new(), got: Vec::new(), over: 0 }
    });
    (0..Talker::AT_ONCE).for_each(|_| talkers.iter_mut().for_each(Talker::post));
    let start = Instant::now();
    while talkers.iter().any(|talker| talker.over < 2 * Talker::MESSAGES) {
        talkers.iter_mut().for_each(Talker::turn);
        in_time(start.elapsed() < LIMIT, || {
            format!("only {:?} came", talkers.each_ref().map(|talker| talker.over))
        });
    }
}

fn messages_of_many_sizes_arrive_whole(by: Transport) {
    let (a, b) = (open_by(by), open_by(by));
    let to_b = a.peer(&b.address()).expect("same subnet");
    for (tag, len) in [0, 1, 8, 4096, 8192, 8193, 100_000, 1 << 20, 20 << 20].into_iter().enumerate() {
        let mut sent = pattern(len, tag as u8);
        let mut got = vec![0; len];
        if tag % 2 == 0 {
            recv(&b, None, tag as u64, &mut got);
        }
        send(&a, to_b, tag as u64, &mut sent);
        if tag % 2 == 1 {
            std::thread::sleep(Duration::from_millis(5));
            recv(&b, None, tag as u64, &mut got);
        }
        let done = complete(&[&a, &b], 2);
        assert!(done.iter().all(|c| c.error.is_none() && c.len == len as u64), "{done:?}");
        assert!(sent == got, "{len} bytes differ");
    }
    a.close();
    b.close();
}

/// Open MPI's probes: each poll takes the result of the peek before and is satisfied, so the
/// engine must turn for all that.
fn a_program_that_only_peeks_still_receives(by: Transport) {
    let (a, b) = (open_by(by), open_by(by));
    let to = a.peer(&b.address()).expect("same subnet");
    let mut sent = pattern(300_000, 7);
    send(&a, to, 5, &mut sent);
    let start = Instant::now();
    let mut results = Vec::new();
    while !matches!(results.pop(), Some(Completion { error: None, .. })) {
        in_time(start.elapsed() < LIMIT, || "a message was never seen by peeks");
        let request =
            PeekRequest { source: None, tag: 5, ignore: 0, action: PeekAction::Look, options: options(9) };
        b.peek(&request).expect("posted");
        b.poll(&mut results);
        assert!(results.iter().all(|result| result.context == 9), "{results:?}");
    }
    let mut got = vec![0; 300_000];
    recv(&b, None, 5, &mut got);
    complete(&[&a, &b], 2);
    assert!(sent == got);
    a.close();
    b.close();
}

/// The end of a burst may be held for a poll, but not for one that does not come.
fn a_burst_after_which_nobody_polls_arrives_whole(by: Transport) {
    const COUNT: u64 = 37;
    let (a, b) = (open_by(by), open_by(by));
    let to = a.peer(&b.address()).expect("same subnet");
    let mut buffers: Vec<Vec<u8>> = (0..5 * COUNT).map(|tag| pattern(8, tag as u8)).collect();
    let mut sent = Vec::new();
    for burst in 0..5 {
        // Long enough for the I/O thread to see that the program polls.
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            a.poll(&mut sent);
        }
        for tag in burst * COUNT..(burst + 1) * COUNT {
            send(&a, to, tag, &mut buffers[tag as usize]);
        }
        for tag in burst * COUNT..(burst + 1) * COUNT {
            let mut got = vec![0; 8];
            recv(&b, None, tag, &mut got);
            complete(&[&b], 1);
            assert_eq!(got, pattern(8, tag as u8));
        }
    }
    complete(&[&a], buffers.len() - sent.len());
    a.close();
    b.close();
}

fn an_endpoint_talks_to_itself(by: Transport) {
    let a = open_by(by);
    let me = a.peer(&a.address()).expect("same subnet");
    let mut sent = pattern(3 << 20, 1);
    let mut got = vec![0; 3 << 20];
    send(&a, me, 1, &mut sent);
    recv(&a, Some(me), 1, &mut got);
    complete(&[&a], 2);
    assert!(sent == got);
    a.close();
}

fn transfers_go_on_while_nobody_polls(by: Transport) {
    let (a, b) = (open_by(by), open_by(by));
    carries_on_unpolled(&a, &b);
    a.close();
    b.close();
}

fn remote_memory_is_written_and_read(by: Transport) {
    let regions = Arc::new(RegionTable::default());
    let a = open_by(by);
    let b = Endpoint::open(&Settings { transport: by, ..settings() }, None, regions.clone()).expect("open");
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut window = vec![0u8; 5 << 20];
    let all = Access { remote_read: true, remote_write: true };
    // SAFETY: `window` outlives both endpoints' use of it.
    let key = unsafe { regions.register(&[iovec(&mut window)], None, all, false) }.expect("free key");
    let mut data = pattern(4 << 20, 7);
    let request = |addr, len| RmaRequest {
        peer: to_b,
        remote: RemoteRange { key, addr, len },
        data: Some(42),
        options: options(5),
    };
    // SAFETY: completions are polled below.
    unsafe { a.write(&request(1 << 20, 4 << 20), &[iovec(&mut data)]) }.expect("posted");
    let done = complete(&[&a, &b], 2);
    assert!(done.iter().any(|c| c.kind == CompletionKind::RemoteWrite && c.data == Some(42)), "{done:?}");
    let mut back = vec![0; 4 << 20];
    // SAFETY: as above.
    unsafe { a.read(&request(1 << 20, 4 << 20), &[iovec(&mut back)]) }.expect("posted");
    complete(&[&a, &b], 2);
    assert!(back == data);
    // SAFETY: as above.
    unsafe { a.write(&request(2 << 20, 4 << 20), &[iovec(&mut data)]) }.expect("posted");
    let done = complete(&[&a, &b], 1);
    assert!(matches!(done[0].error, Some(OpError::RemoteAccess(_))), "{done:?}");
    a.close();
    b.close();
}

/// What the target takes is what comes back: a shorter result buffer would be written beyond its end.
#[test]
fn buffers_of_an_atomic_that_differ_in_length_are_refused() {
    let regions = Arc::new(RegionTable::default());
    let a = Endpoint::open(&settings(), None, regions.clone()).expect("open");
    let to_a = a.peer(&a.address()).expect("itself");
    let (mut window, mut operand, mut result) = ([0u8; 32], [1u8; 32], [9u8; 32]);
    let all = Access { remote_read: true, remote_write: true };
    // SAFETY: `window` outlives the endpoint's use of it.
    let key = unsafe { regions.register(&[iovec(&mut window)], None, all, false) }.expect("free key");
    let mut fetch = |operand_len: usize, result_len: usize, len| {
        let request = AtomicRequest {
            peer: to_a,
            remote: RemoteRange { key, addr: 0, len },
            kind: AtomicKind::Fetch,
            op: AtomicOp::Sum,
            datatype: AtomicType::Uint8,
            options: options(3),
        };
        let (operand, result) = (iovec(&mut operand[..operand_len]), iovec(&mut result[..result_len]));
        // SAFETY: completions are polled below.
        unsafe { a.atomic(&request, &[operand], &[], &[result]) }
    };
    for (operand, result, len) in [(32, 16, 32), (16, 32, 32), (32, 32, 16), (32, 0, 32)] {
        assert!(
            matches!(fetch(operand, result, len), Err(PostError::Invalid(_))),
            "{operand} {result} {len}"
        );
    }
    fetch(16, 16, 16).expect("posted");
    // Its own end, and that of its target.
    complete(&[&a], 2);
    assert_eq!((&result[..16], &result[16..]), (&[0; 16][..], &[9; 16][..]));
    a.close();
}

fn a_peer_that_is_not_there_is_an_error_that_names_it(by: Transport) {
    let a = open_by(by);
    let nobody = with_a_key("isthmus://0.0/127.0.0.1:1#00000001");
    let peer = a.peer(&nobody).expect("same subnet");
    send(&a, peer, 1, &mut [1; 8]);
    let mut big = vec![1; 1 << 20];
    send(&a, peer, 2, &mut big);
    let done = complete(&[&a], 2);
    for completion in done {
        // By UDP the first bytes go before anybody has answered.
        if by != Transport::Tcp && completion.len == 8 && completion.error.is_none() {
            continue;
        }
        let text = completion.error.expect("nobody listens there").to_string();
        assert!(text.contains("127.0.0.1:1") && text.contains("process has ended"), "{text}");
    }
    a.close();
}

/// A host that does not answer, as behind a firewall that drops.
#[test]
fn an_attempt_to_connect_ends_when_the_peer_is_given_up() {
    let socket =
        || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let deaf = socket();
    deaf.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    deaf.listen(0).expect("bound");
    let at = deaf.local_addr().expect("bound").as_socket().expect("an address");
    // They fill its queue, so that it takes no further connection.
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket();
            socket.set_nonblocking(true).expect("a socket");
            let _ = socket.connect(&at.into());
            socket
        })
        .collect();
    let peer_timeout = isthmus_units::Span::from_ms(1_000);
    let settings = Settings { peer_timeout, transport: Transport::Tcp, ..settings() };
    let a = Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there");
    let peer = a.peer(&with_a_key(&format!("isthmus://0.0/{at}#00000001"))).expect("same subnet");
    send(&a, peer, 1, &mut [1; 8]);
    let done = complete(&[&a], 1);
    let text = done[0].error.as_ref().expect("it does not answer").to_string();
    assert!(text.contains("out of reach for 1 s (last attempt: no answer within 1 s"), "{text}");
    a.close();
    drop((deaf, waiting));
}

fn who_leaves_at_once_is_known_to_be_gone(by: Transport) {
    let (a, b) = (open_by(by), open_by(by));
    exchange(&a, &b);
    let to_a = b.peer(&a.address()).expect("same subnet");
    a.leave();
    // Not that its process has ended, which is found out in other ways.
    let mut done = Vec::new();
    let start = Instant::now();
    while !done.iter().any(|completion: &Completion| completion.error.is_some()) {
        in_time(start.elapsed() < LIMIT, || "it was not heard");
        send(&b, to_a, 2, &mut [1; 8]);
        done.extend(complete(&[&b], 1));
    }
    let text = done.iter().find_map(|completion| completion.error.as_ref()).expect("one failed").to_string();
    assert!(text.contains("closed by its program"), "{text}");
    b.close();
}

#[test]
fn an_address_of_another_subnet_is_refused_at_once() {
    let a = open();
    let elsewhere = "isthmus://3.7/127.0.0.1:1#00000001".parse().expect("an address");
    let text = a.peer(&elsewhere).expect_err("another subnet").to_string();
    assert!(text.contains("AS 3 subnet 7") && text.contains("AS 0 subnet 0"), "{text}");
    assert!(text.contains("give both sides the same as_id and subnet"), "{text}");
    a.close();
}

fn a_sleeper_is_woken(by: Transport) {
    let (a, b) = (open_by(by), open_by(by));
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut got = [0; 8];
    recv(&b, None, 1, &mut got);
    let waiter = std::thread::spawn({
        let b = b.clone();
        move || {
            let mut done = Vec::new();
            while done.is_empty() {
                b.wait(Some(LIMIT));
                b.poll(&mut done);
            }
            done.len()
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    send(&a, to_b, 1, &mut [5; 8]);
    complete(&[&a], 1);
    assert_eq!(waiter.join().expect("no panic"), 1);
    assert_eq!(got, [5; 8]);
    a.close();
    b.close();
}

/// A program whose message nobody receives is told so, and shows what is under way to who asks.
#[test]
fn a_process_tells_what_it_waits_for() {
    let (a, b) = (open_by(Transport::Tcp), open_by(Transport::Tcp));
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut data = vec![1; 32 << 20];
    send(&a, to_b, 1, &mut data);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let state = isthmus_io::state_of(std::process::id()).expect("the I/O thread answers");
        assert!(state.contains(&a.address().to_string()), "{state}");
        if state.contains("the peer has not posted its receive") {
            break;
        }
        in_time(Instant::now() < until, || format!("nothing waits for its receive: {state}"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut got = vec![0; 32 << 20];
    recv(&b, None, 1, &mut got);
    complete(&[&a, &b], 2);
    assert!(got == data);
    let told = isthmus_io::figures_of(std::process::id()).expect("the I/O thread answers");
    let of = |endpoint: &Endpoint| {
        let address = endpoint.address().to_string();
        told.iter().find(|figures| figures.address == address).expect("it is told of").peers[0].clone()
    };
    let (sender, receiver) = (of(&a), of(&b));
    assert_eq!((sender.address.as_str(), sender.messages), (b.address().to_string().as_str(), 1));
    assert_eq!((sender.sent_bytes, receiver.received_bytes), (32 << 20, 32 << 20));
    assert!(sender.lanes[0].sent_bytes >= Some(32 << 20) && sender.lanes[0].rtt_us > Some(0), "{sender:?}");
    assert!(sender.why.iter().any(|why| why == "transport tcp"), "{sender:?}");
    assert!(isthmus_io::processes().expect("the list is read").contains(&std::process::id()));
    a.close();
    b.close();
}
