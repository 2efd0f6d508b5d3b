//! Remote memory, and what happens to who misuses anything.

mod support;

use isthmus_substrate::{
    Access, EndpointOptions, Error, Event, Failure, Level, MemoryHandle, RemoteOptions, SendOptions,
};
use support::*;

const ALL: Access = Access { remote_read: true, remote_write: true };
const NONE: Access = Access { remote_read: false, remote_write: false };
const BLOCKING: RemoteOptions<'_> =
    RemoteOptions { context: 0, silent: false, blocking: true, fence: false, message: None };

fn bytes_of(region: &isthmus_substrate::Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("not in use");
    bytes
}

#[test]
fn memory_is_written_and_read_at_offsets() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ru);
    let theirs = b.register(5 << 20, ALL).expect("memory");
    let ours = a.register(4 << 20, NONE).expect("memory");
    let data = pattern(4 << 20, 7);
    ours.write_at(0, &data).expect("not in use");
    a.write(to_b, &ours, 0, &theirs.handle(), 1 << 20, 4 << 20, &BLOCKING).expect("written");
    let there = bytes_of(&theirs);
    assert!(there[..1 << 20].iter().all(|byte| *byte == 0) && there[1 << 20..] == data);
    ours.write_at(0, &vec![0; 4 << 20]).expect("not in use");
    a.read(to_b, &ours, 3, &theirs.handle(), (1 << 20) + 3, 1000, &BLOCKING).expect("read");
    let back = bytes_of(&ours);
    assert_eq!((&back[3..1003], back[2], back[1003]), (&data[3..1003], 0, 0));
    // With an event instead.
    let how = RemoteOptions { context: 9, fence: true, ..Default::default() };
    a.write(to_b, &ours, 0, &theirs.handle(), 0, 8, &how).expect("posted");
    assert!(matches!(next(&a, &b), Event::Sent { operation: 9, end: Ok(()), .. }));
}

#[test]
fn a_message_follows_its_write_and_stays_away_where_that_fails() {
    for level in [Level::Ru, Level::Ro] {
        let (a, b) = (open(), open());
        let (to_b, to_a) = connect(&a, &b, level);
        let theirs = b.register(8 << 20, ALL).expect("memory");
        let ours = a.register(8 << 20, NONE).expect("memory");
        for round in 0..20u8 {
            ours.write_at(0, &pattern(8 << 20, round)).expect("not in use");
            let long = pattern(if round % 2 == 0 { 10 } else { 50_000 }, round);
            let how = RemoteOptions { message: Some(&long), ..Default::default() };
            // Refused: beyond the end.
            a.write(to_b, &ours, 0, &theirs.handle(), 1, 8 << 20, &how).expect("posted");
            a.write(to_b, &ours, 0, &theirs.handle(), 0, 8 << 20, &how).expect("posted");
            let message = receive(&b, &a);
            assert!(*message == *long);
            let mut last = [0; 4];
            theirs.read_at((8 << 20) - 4, &mut last).expect("inside");
            assert_eq!(last, pattern(8 << 20, round)[(8 << 20) - 4..], "the message came before the data");
            let (mut good, mut refused) = (0, 0);
            while good + refused < 2 {
                match next(&a, &b) {
                    Event::Sent { end: Ok(()), .. } => good += 1,
                    Event::Sent { end: Err(Failure::RemoteAccess(_)), .. } => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((good, refused), (1, 1));
        }
        // A read's message follows it, and void ones do not hold the end up.
        let how = RemoteOptions { message: Some(b"read it"), ..Default::default() };
        a.read(to_b, &ours, 0, &theirs.handle(), 0, 8 << 20, &how).expect("posted");
        assert_eq!(&*receive(&b, &a), b"read it");
        assert!(matches!(next(&a, &b), Event::Sent { end: Ok(()), .. }));
        a.disconnect(to_b).expect("open");
        match next(&b, &a) {
            Event::Disconnected { connection, .. } => assert_eq!(connection, to_a),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_has_no_right_key_touches_nothing() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ru);
    let ours = a.register(4096, ALL).expect("memory");
    ours.write_at(0, &[9; 4096]).expect("not in use");
    let theirs = b.register(4096, Access { remote_read: true, remote_write: false }).expect("memory");
    let gone = b.register(4096, ALL).expect("memory");
    let stale = gone.handle();
    drop(gone);
    let right = theirs.handle();
    let wrong = [
        right, // for reading only
        stale,
        MemoryHandle { key: right.key ^ 1, ..right },
        MemoryHandle { key: u64::MAX, ..right },
        ours.handle(), // of this end
    ];
    for handle in wrong {
        let end = a.write(to_b, &ours, 0, &handle, 0, 64, &BLOCKING);
        assert!(matches!(end, Err(Error::Failed(Failure::RemoteAccess(_)))), "{end:?}");
    }
    for (offset, len) in [(4095, 2), (u64::MAX, 1), (u64::MAX - 1, 4), (4097, 0)] {
        let end = a.read(to_b, &ours, 0, &right, offset, len, &BLOCKING);
        assert!(matches!(end, Err(Error::Failed(Failure::RemoteAccess(_)))), "{offset} {len}: {end:?}");
    }
    assert_eq!(bytes_of(&theirs), vec![0; 4096]);
    assert_eq!(bytes_of(&ours), vec![9; 4096]);
    // The connection is none the worse for it.
    a.read(to_b, &ours, 0, &right, 0, 4096, &BLOCKING).expect("allowed");
    assert_eq!(bytes_of(&ours), vec![0; 4096]);
}

#[test]
fn memory_at_this_end_is_checked_before_anything_happens() {
    let (a, b) = (open(), open());
    let (to_b, to_a) = connect(&a, &b, Level::Ru);
    let (uu, _) = connect(&a, &b, Level::Uu);
    let ours = a.register(100, NONE).expect("memory");
    let theirs = b.register(100, ALL).expect("memory");
    let post = |to, local: &isthmus_substrate::Region, offset, len| {
        a.write(to, local, offset, &theirs.handle(), 0, len, &BLOCKING)
    };
    assert!(matches!(post(to_b, &ours, 99, 2), Err(Error::Memory(_))));
    assert!(matches!(post(to_b, &ours, u64::MAX, 1), Err(Error::Memory(_))));
    assert!(matches!(post(to_b, &theirs, 0, 1), Err(Error::Memory(_))), "registered elsewhere");
    assert_eq!(post(to_a, &ours, 0, 1), Err(Error::Stale("connection")), "a name of the other endpoint");
    assert_eq!(post(uu, &ours, 0, 1), Err(Error::Level));
    assert!(matches!(ours.write_at(99, &[1, 2]), Err(Error::Memory(_))));
    assert!(matches!(ours.read_at(usize::MAX, &mut [0]), Err(Error::Memory(_))));
    assert!(!ours.is_in_use());
}

#[test]
fn names_of_what_has_ended_or_is_of_another_are_refused() {
    let (a, b, c) = (open(), open(), open());
    let (to_b, to_a) = connect(&a, &b, Level::Ro);
    let options = SendOptions::default();
    assert_eq!(c.send(to_b, b"", &options), Err(Error::Stale("connection")));
    assert_eq!(a.send(to_a, b"", &options), Err(Error::Stale("connection")));
    assert_eq!(c.disconnect(to_b), Err(Error::Stale("connection")));
    a.connect(&b.uri(), b"", Level::Ro, 3, &Default::default()).expect("asked");
    let Event::Requested(request) = next(&b, &a) else { panic!("no request") };
    // Given to the wrong endpoint it is void, and so turned down.
    assert!(matches!(c.accept(request, 4), Err(Error::Stale("request"))));
    assert!(matches!(next(&a, &b), Event::ConnectFailed { why: Failure::Rejected(0), .. }));
    a.disconnect(to_b).expect("once");
    // Its successor has another name, though it may have its place.
    let (again, _) = {
        events(&[&b], |_, event| matches!(event, Event::Disconnected { .. }));
        connect(&a, &b, Level::Ro)
    };
    assert_ne!(again, to_b);
    assert_eq!(a.level(to_b), Err(Error::Stale("connection")));
    let message_max = a.message_max(again).expect("open");
    let too_long = a.send(again, &vec![0; message_max as usize + 1], &options);
    assert!(matches!(too_long, Err(Error::TooLong { most: 65_536, .. })), "{too_long:?}");
    a.close();
    assert_eq!(a.send(again, b"", &options), Err(Error::Closed));
    assert!(matches!(a.get_event(), Err(Error::Closed)));
    assert!(matches!(a.register(1, ALL), Err(Error::Closed)));
}

#[test]
fn messages_outlive_their_endpoint() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    a.send(to_b, b"still here", &SendOptions { silent: true, ..Default::default() }).expect("sent");
    let message = receive(&b, &a);
    drop(b);
    assert_eq!(&*message, b"still here");
}

#[test]
fn as_much_is_under_way_as_the_option_says() {
    let (a, b) = (open_with(&EndpointOptions { send_buffers: 3, ..Default::default() }), open());
    let (to_b, _) = connect(&a, &b, Level::Ru);
    // While nobody turns the engine nothing completes for the program.
    let sent = (0..100).take_while(|_| a.send(to_b, b"x", &SendOptions::default()).is_ok()).count();
    assert_eq!(sent, 3);
    assert_eq!(a.send(to_b, b"x", &SendOptions::default()), Err(Error::Full(3)));
    for _ in 0..3 {
        assert!(matches!(next(&a, &b), Event::Sent { end: Ok(()), .. }));
    }
    a.send(to_b, b"x", &SendOptions::default()).expect("room again");
    let options = EndpointOptions { recv_buffers: 0, ..a.options() };
    assert!(matches!(a.set_options(&options), Err(Error::Value(text)) if text.contains("1 to 65536")));
}

#[test]
fn a_forked_process_has_no_part_in_its_parents_endpoint() {
    let (a, b) = (open(), open());
    let (to_b, _) = connect(&a, &b, Level::Ro);
    // SAFETY: the child calls what takes no lock, and leaves without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(a.get_event(), Err(Error::Closed))
            && a.send(to_b, b"x", &SendOptions::default()) == Err(Error::Closed);
        a.close();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    a.send(to_b, b"still mine", &SendOptions::default()).expect("sent");
    assert_eq!(&*receive(&b, &a), b"still mine");
}
