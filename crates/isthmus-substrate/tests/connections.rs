//! Endpoints of one process, over real sockets: connections and messages.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_substrate::{
    ConnectOptions, EndpointOptions, Error, Event, Failure, Level, PAYLOAD_MAX, SendOptions,
};
use support::*;

const SILENT: SendOptions = SendOptions { silent: true, ..SendOptions::DEFAULT };

#[test]
fn messages_of_every_level_arrive_and_complete() {
    for level in [Level::Uu, Level::Ru, Level::Ro] {
        let (a, b) = (open(), open());
        let (to_b, to_a) = connect(&a, &b, level);
        assert_eq!(a.level(to_b), Ok(level));
        for (context, len) in [0, 1, 8, 4096, 4097, 30_000].into_iter().enumerate() {
            let sent = pattern(len, context as u8);
            let options = SendOptions { context: context as u64, ..SendOptions::default() };
            a.send(to_b, &sent, &options).expect("sent");
            let message = receive(&b, &a);
            assert_eq!((message.connection(), message.context()), (to_a, 2));
            assert!(*message == *sent, "{len} bytes differ at {level}");
            match next(&a, &b) {
                Event::Sent { connection, context: 1, operation, end: Ok(()) } => {
                    assert_eq!((connection, operation), (to_b, context as u64));
                }
                other => panic!("{other:?}"),
            }
        }
        b.send(to_a, b"back", &SILENT).expect("sent");
        assert_eq!(&*receive(&a, &b), b"back");
    }
}

#[test]
fn pieces_become_one_message_whether_copied_or_not() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    let whole = pattern(20_000, 3);
    let pieces: Vec<&[u8]> = whole.chunks(1_500).collect();
    assert!(pieces.len() > 8);
    a.send_pieces(to_b, &pieces, &SILENT).expect("sent");
    assert!(*receive(&b, &a) == *whole);
    let owned: Vec<Bytes> = whole.chunks(5_000).map(Bytes::copy_from_slice).collect();
    a.send_bytes(to_b, &owned, &SILENT).expect("sent");
    drop(owned);
    assert!(*receive(&b, &a) == *whole);
}

#[test]
fn a_blocking_send_returns_when_the_peer_has_the_message() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    // Nobody turns b here but its I/O thread.
    a.send(to_b, b"first", &SendOptions { blocking: true, ..SILENT }).expect("delivered");
    assert_eq!(&*receive(&b, &a), b"first");
    assert!(a.get_event().expect("open").is_none(), "a blocking send has no event");
}

#[test]
fn ordered_messages_of_any_length_arrive_in_order_and_complete_in_order() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    let count = 300;
    let length = |i: usize| if i.is_multiple_of(3) { 60_000 } else { i };
    let (mut posted, mut arrived, mut completed) = (0, 0, 0);
    let start = Instant::now();
    // A message is delivered when its endpoint has it; the program may take it later.
    while completed < count || arrived < count {
        in_time(start.elapsed() < LIMIT, || format!("{arrived} arrived, {completed} completed"));
        while posted < count {
            let options =
                SendOptions { context: posted as u64, silent: posted % 7 == 3, ..SendOptions::DEFAULT };
            match a.send(to_b, &pattern(length(posted), posted as u8), &options) {
                Ok(()) => posted += 1,
                Err(Error::Full(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        while let Some(event) = b.get_event().expect("open") {
            let Event::Received(message) = event else { panic!("{event:?}") };
            assert!(*message == *pattern(length(arrived), arrived as u8), "message {arrived}");
            arrived += 1;
        }
        while let Some(event) = a.get_event().expect("open") {
            let Event::Sent { operation, end: Ok(()), .. } = event else { panic!("{event:?}") };
            completed += usize::from(completed % 7 == 3);
            assert_eq!(operation, completed as u64);
            completed += 1;
        }
    }
}

#[test]
fn a_request_may_be_turned_down_with_a_reason_and_words() {
    let (a, b) = (open(), open());
    let long = pattern(PAYLOAD_MAX, 9);
    a.connect(&b.uri(), &long, Level::Ru, 5, &ConnectOptions::default()).expect("asked");
    let Event::Requested(request) = next(&b, &a) else { panic!("no request") };
    assert_eq!(request.payload(), long);
    assert_eq!(request.peer(), a.uri());
    b.reject(request, 77, b"not today").expect("told");
    match next(&a, &b) {
        Event::ConnectFailed { context: 5, why, payload } => {
            assert_eq!((why, &payload[..]), (Failure::Rejected(77), &b"not today"[..]));
        }
        other => panic!("{other:?}"),
    }
    // One that is dropped undecided is turned down too.
    a.connect(&b.uri(), b"", Level::Ru, 6, &ConnectOptions::default()).expect("asked");
    drop(next(&b, &a));
    assert!(matches!(next(&a, &b), Event::ConnectFailed { context: 6, why: Failure::Rejected(0), .. }));
    let too_long = a.connect(&b.uri(), &pattern(PAYLOAD_MAX + 1, 0), Level::Ru, 7, &Default::default());
    assert!(matches!(too_long, Err(Error::TooLong { most: 1024, .. })), "{too_long:?}");
}

#[test]
fn a_request_that_nobody_answers_ends_in_time() {
    let (a, b) = (open(), open());
    let options = ConnectOptions { timeout: Some(Duration::from_millis(50)) };
    a.connect(&b.uri(), b"", Level::Ro, 1, &options).expect("asked");
    let Event::Requested(request) = next(&b, &a) else { panic!("no request") };
    assert!(matches!(next(&a, &b), Event::ConnectFailed { why: Failure::TimedOut, .. }));
    // Too late: who accepts now hears that the other has gone.
    b.accept(request, 4).expect("not known yet");
    assert!(matches!(next(&b, &a), Event::Accepted { context: 4, .. }));
    assert!(matches!(next(&b, &a), Event::Disconnected { context: 4, why: Failure::Disconnected, .. }));
}

#[test]
fn who_is_not_there_is_told_with_what_to_do() {
    let a = open();
    let nobody = format!("isthmus://0.0/127.0.0.1:1#00000001.{}", "01".repeat(32));
    a.connect(&nobody, b"", Level::Ro, 1, &Default::default()).expect("asked");
    match next(&a, &a) {
        Event::ConnectFailed { why: Failure::PeerGone(text), .. } => {
            assert!(text.contains("127.0.0.1:1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let far = a.connect("isthmus://3.7/127.0.0.1:1", b"", Level::Ro, 1, &Default::default());
    assert!(matches!(far, Err(Error::Unreachable(text)) if text.contains("routers")));
    let no_key = a.connect("isthmus://0.0/127.0.0.1:1", b"", Level::Ro, 1, &Default::default());
    assert!(matches!(no_key, Err(Error::Unreachable(text)) if text.contains("FI_ISTHMUS_ADMISSION=open")));
    let text = a.connect("tcp://here", b"", Level::Ro, 1, &Default::default());
    assert!(matches!(text, Err(Error::Uri(text)) if text.contains("isthmus://")));
}

#[test]
fn all_that_was_sent_arrives_before_the_disconnection() {
    for level in [Level::Ru, Level::Ro] {
        let (a, b) = (open(), open());
        let (to_b, to_a) = connect(&a, &b, level);
        for i in 0..50 {
            a.send(to_b, &pattern(50_000, i), &SILENT).expect("sent");
        }
        a.disconnect(to_b).expect("once");
        assert_eq!(a.disconnect(to_b), Err(Error::Stale("connection")));
        assert_eq!(a.send(to_b, b"", &SILENT), Err(Error::Stale("connection")));
        let mut arrived = 0;
        events(&[&a, &b], |at, event| match event {
            Event::Received(_) => {
                arrived += 1;
                false
            }
            Event::Disconnected { connection, context: 2, why: Failure::Disconnected } => {
                assert_eq!((at, connection), (1, to_a));
                true
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(arrived, 50);
        assert!(matches!(b.send(to_a, b"", &SILENT), Err(Error::State(_))));
        b.disconnect(to_a).expect("the name was still there");
    }
}

#[test]
fn an_endpoint_that_closes_disconnects_its_peers() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    a.send(to_b, b"last words", &SILENT).expect("sent");
    let closing = std::thread::spawn(move || drop(a));
    let mut heard = false;
    events(&[&b], |_, event| match event {
        Event::Received(message) => {
            heard = *message == *b"last words";
            false
        }
        Event::Disconnected { why: Failure::Disconnected, .. } => true,
        other => panic!("{other:?}"),
    });
    assert!(heard);
    closing.join().expect("closed");
}

#[test]
fn a_full_receiver_lets_its_sender_time_out_and_nothing_is_lost() {
    let (a, b) = (open(), open_with(&EndpointOptions { recv_buffers: 2, ..Default::default() }));
    let (to_b, to_a) = connect(&a, &b, Level::Ru);
    a.set_send_timeout(to_b, Duration::from_millis(100)).expect("open");
    assert_eq!(a.times(to_b), Ok((Duration::from_millis(100), Duration::ZERO)));
    // The messages that the program keeps fill the receiver; what follows uses up its credit.
    let sent: Vec<_> = (0..400).map(|i| Bytes::from(pattern(60_000, i as u8))).collect();
    for (context, message) in sent.iter().enumerate() {
        let options = SendOptions { context: context as u64, ..Default::default() };
        a.send_bytes(to_b, std::slice::from_ref(message), &options).expect("sent");
    }
    let mut late = Vec::new();
    events(&[&a], |_, event| match event {
        Event::Sent { operation, end, .. } => {
            if end == Err(Failure::TimedOut) {
                late.push(operation);
            }
            operation == 399
        }
        other => panic!("{other:?}"),
    });
    assert!(!late.is_empty(), "400 messages of 60 kB fit nowhere");
    let mut arrived = vec![false; 400];
    events(&[&a, &b], |_, event| {
        if let Event::Received(message) = event {
            let which = sent.iter().position(|sent| **sent == *message).expect("as sent");
            // The pattern repeats every 256 messages.
            let which = if arrived[which] { which + 256 } else { which };
            assert!(!std::mem::replace(&mut arrived[which], true), "message {which} came twice");
            assert_eq!(message.connection(), to_a);
        }
        arrived.iter().all(|came| *came)
    });
}

#[test]
fn a_peer_whose_program_takes_no_events_is_not_silent() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    a.set_keepalive(to_b, Duration::from_secs(1)).expect("open");
    // Nobody takes b's events, but its endpoint answers, if not always in time on a busy machine.
    let start = Instant::now();
    while let Some(event) = a.next_event(Some(Duration::from_secs(3))).expect("open") {
        assert!(matches!(event, Event::KeepaliveExpired { .. }), "{event:?}");
        in_time(start.elapsed() < LIMIT, || "it is silent whenever it is looked at");
    }
}

#[test]
fn a_sleeper_on_the_handle_is_woken_by_each_kind_of_news() {
    let (a, b) = (open(), open());
    let sleep = |at: &isthmus_substrate::Endpoint| {
        let mut entry = libc::pollfd { fd: at.os_handle(), events: libc::POLLIN, revents: 0 };
        if at.arm().expect("open") {
            // SAFETY: one valid entry.
            let ready = unsafe { libc::poll(&mut entry, 1, LIMIT.as_millis() as i32) };
            in_time(ready != 0, || "nobody woke the sleeper");
            assert_eq!(ready, 1);
        }
    };
    let wait = |at: &isthmus_substrate::Endpoint| loop {
        if let Some(event) = at.get_event().expect("open") {
            return event;
        }
        sleep(at);
    };
    for level in [Level::Uu, Level::Ro] {
        a.connect(&b.uri(), b"", level, 1, &ConnectOptions::default()).expect("asked");
        let Event::Requested(request) = wait(&b) else { panic!("no request") };
        b.accept(request, 2).expect("granted");
        let Event::Connected { connection, .. } = wait(&a) else { panic!("not connected") };
        assert!(matches!(wait(&b), Event::Accepted { .. }));
        a.send(connection, b"wake up", &SendOptions::default()).expect("sent");
        assert!(matches!(wait(&b), Event::Received(message) if *message == *b"wake up"));
        assert!(matches!(wait(&a), Event::Sent { end: Ok(()), .. }));
    }
    // By time alone.
    let options = ConnectOptions { timeout: Some(Duration::from_millis(30)) };
    a.connect(&b.uri(), b"", Level::Ro, 9, &options).expect("asked");
    assert!(matches!(wait(&a), Event::ConnectFailed { context: 9, why: Failure::TimedOut, .. }));
}

#[test]
fn a_thread_that_sleeps_is_woken_whatever_others_do() {
    let (a, b) = (std::sync::Arc::new(open()), open());
    let (to_b, to_a) = connect(&a, &b, Level::Ro);
    for round in 0..20u8 {
        let sleeper = std::thread::spawn({
            let a = a.clone();
            move || match await_event(&a) {
                Event::Received(message) => message[0],
                other => panic!("{other:?}"),
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        // These turn the engine, and take the sleeper's news in if it comes meanwhile.
        let blocking = SendOptions { blocking: true, ..SILENT };
        let noise = std::thread::spawn({
            let a = a.clone();
            move || (0..20).for_each(|_| a.send(to_b, b"noise", &blocking).expect("delivered"))
        });
        if round % 2 == 0 {
            noise.join().expect("no panic");
            b.send(to_a, &[round], &SILENT).expect("sent");
        } else {
            b.send(to_a, &[round], &SILENT).expect("sent");
            noise.join().expect("no panic");
        }
        assert_eq!(sleeper.join().expect("no panic"), round);
        while let Some(event) = b.get_event().expect("open") {
            assert!(matches!(event, Event::Received(_)), "{event:?}");
        }
    }
}
