//! Strangers at an endpoint over real TCP: whatever they say, they are not admitted, hear nothing of use, and leave the
//! conversation between two endpoints alone.

mod support;

use std::fmt::Arguments;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_io::{Access, Admission, Endpoint, RegionTable, Settings};
use isthmus_proto::{RemoteRange, RmaRequest};
use isthmus_wire::frame::{Bye, Frame, Hello, MAGIC, Read, Refuse, RefuseReason, Write};
use isthmus_wire::{Address, Key, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use socket2::{Domain, Socket, Type};
use support::*;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(severity: Severity, line: Arguments<'_>) {
    if severity == Severity::Warn {
        LINES.lock().expect("whole").push(line.to_string());
    }
}

/// Length of a Hello's proof. Bytes.
const PROOF: usize = 104;

/// What somebody hears who connects there and says `words`, until it is closed.
fn answer(at: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut lane = TcpStream::connect(at).expect("it listens");
    lane.set_read_timeout(Some(LIMIT)).expect("a socket");
    // It may have been closed by then.
    let _ = lane.write_all(words);
    let mut heard = Vec::new();
    // A reset is an end, too: what was sent was not read.
    let _ = lane.read_to_end(&mut heard);
    heard
}

fn hello(source: Address, target: Address, payload: u32) -> Hello {
    let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
    Hello { magic: MAGIC, version, source, target, credit: 1 << 20, hops: 0, oldest, payload }
}

fn refuse(reason: RefuseReason) -> Vec<u8> {
    let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
    Refuse { magic: MAGIC, version, reason: reason as u8, oldest }.to_bytes().to_vec()
}

/// The Hello with its proof by which `caller` really calls `callee`, as somebody on the way records it.
fn recorded(caller: &Arc<Endpoint>, callee: &Arc<Endpoint>) -> Vec<u8> {
    let way = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let locator = way.local_addr().expect("bound");
    let peer = caller.peer(&Address { locator, ..callee.address() }).expect("near");
    send(caller, peer, 77, Box::leak(Box::new([7; 8])));
    let (mut lane, _) = way.accept().expect("it calls");
    let mut words = vec![0; Hello::LEN + PROOF];
    lane.read_exact(&mut words).expect("its Hello");
    words
}

#[test]
fn strangers_are_not_admitted_and_leave_a_conversation_alone() {
    set_hook(keep);
    let (a, b) = (open(), open());
    exchange(&a, &b);
    let at = a.address().locator;
    let in_the_name_of_b = |payload| hello(b.address(), a.address(), payload).to_bytes().to_vec();
    let bye = Frame::from(Bye { connection: 0 });

    // No proof, a wrong one, and none for an address that somebody typed: what follows is not heard.
    for target in [a.address(), Address::from(at)] {
        let mut forged = hello(b.address(), target, 0).to_bytes().to_vec();
        bye.encode(&mut forged);
        assert_eq!(answer(at, &forged), refuse(RefuseReason::Unproved));
    }
    let mut forged = [in_the_name_of_b(PROOF as u32), vec![0x5a; PROOF]].concat();
    bye.encode(&mut forged);
    assert_eq!(answer(at, &forged), [0_u8; 0]);

    // Another version, older or newer.
    let newer = Hello { version: 99, oldest: 90, ..hello(b.address(), a.address(), 0) };
    assert_eq!(answer(at, &newer.to_bytes()), refuse(RefuseReason::Version));
    let older = Hello { version: 1, ..hello(b.address(), a.address(), 0) };
    assert_eq!(answer(at, &older.to_bytes()[..80]), refuse(RefuseReason::Version));

    // Frames before any Hello.
    let mut farewell = Vec::new();
    bye.encode(&mut farewell);
    assert_eq!(answer(at, &farewell), [0_u8; 0]);

    // A recorded Hello: it opens one lane, and never another.
    let c = open();
    let words = recorded(&c, &a);
    let mut first = TcpStream::connect(at).expect("it listens");
    first.write_all(&words).expect("room");
    let mut welcome = [0];
    first.read_exact(&mut welcome).expect("an answer");
    assert_eq!(welcome, [2], "a Welcome");
    for _ in 0..3 {
        assert_eq!(answer(at, &words), [0_u8; 0]);
    }
    drop(first);
    c.leave();

    // Who knows the address may connect, but not by another key.
    let wrong = open();
    let known = wrong.peer(&Address { key: Key([9; 32]), ..a.address() }).expect("near");
    send(&wrong, known, 78, Box::leak(Box::new([7; 8])));
    // Time for some attempts.
    std::thread::sleep(Duration::from_millis(100));
    wrong.leave();

    let said: Vec<String> =
        LINES.lock().expect("whole").iter().filter(|line| line.contains("proved")).cloned().collect();
    assert!(!said.is_empty() && said.len() <= 2, "{said:?}");
    assert!(said[0].contains("127.0.0.1:"), "of whom: {said:?}");

    exchange(&a, &b);
    assert_eq!(b.counters().lanes_lost, 0);
    assert_eq!(b.counters().duplicates + b.counters().fragments_resent, 0, "{:?}", b.counters());
    assert!(b.address().key != Key::NONE && !a.address().to_string().contains(&a.address().uri()));
    a.close();
    b.close();
    // Here, since each warning is in the log once in a while only.
    registered_memory_is_reached_by_who_was_told_its_key_only();
}

/// A stranger reaches no memory, though it knows the key. A peer that was admitted reaches none whose key it guesses.
fn registered_memory_is_reached_by_who_was_told_its_key_only() {
    let (regions, mut window) = (Arc::new(RegionTable::default()), vec![7; 4096]);
    let a = Endpoint::open(&settings(), None, regions.clone()).expect("loopback");
    let access = Access { remote_read: true, remote_write: true };
    // SAFETY: the endpoint is closed before the window goes.
    let mut register = |key| unsafe { regions.register(&[iovec(&mut window)], key, access, false) };
    let key = register(None).expect("a key");
    let (at, b) = (a.address().locator, open());
    let write = Write {
        flags: 0,
        connection: 0,
        seq: 1,
        token: 1,
        key,
        addr: 0,
        data: 0,
        total: 8,
        offset: 0,
        payload: 8,
    };
    let read = Read { connection: 0, seq: 1, token: 1, key, addr: 0, len: 8 };
    for hello in [Some(0), Some(PROOF as u32), None] {
        for (frame, payload) in [(Frame::from(write), &[9; 8][..]), (Frame::from(read), &[])] {
            let proof = vec![0x5a; hello.unwrap_or(0) as usize];
            let hello = hello.map(|len| self::hello(b.address(), a.address(), len).to_bytes().to_vec());
            let mut forged = [hello.unwrap_or_default(), proof].concat();
            frame.encode(&mut forged);
            forged.extend_from_slice(payload);
            let heard = answer(at, &forged);
            assert!(heard.len() <= refuse(RefuseReason::Unproved).len(), "{heard:?}");
        }
    }
    // A peer that was admitted, and counts keys from 0, or from the one that it was told.
    let peer = b.peer(&a.address()).expect("near");
    for guess in (0..100).chain([key ^ 1, key + 1]) {
        let remote = RemoteRange { key: guess, addr: 0, len: 8 };
        let request = RmaRequest { peer, remote, data: None, options: options(1) };
        // SAFETY: it is complete below.
        unsafe { b.write(&request, &[iovec(&mut [9; 8])]) }.expect("posted");
        assert!(complete(&[&a, &b], 1)[0].error.is_some(), "key {guess}");
    }
    let remote = RemoteRange { key, addr: 8, len: 8 };
    let request = RmaRequest { peer, remote, data: None, options: options(1) };
    // SAFETY: it is complete below.
    unsafe { b.write(&request, &[iovec(&mut [9; 8])]) }.expect("posted");
    assert_eq!(complete(&[&a, &b], 1)[0].error, None);
    a.close();
    assert_eq!((&window[..8], &window[8..16]), (&[7; 8][..], &[9; 8][..]));
}

#[test]
fn an_endpoint_that_is_open_talks_by_host_and_port() {
    let settings =
        Settings { admission: Admission::Open, transport: isthmus_io::Transport::Tcp, ..settings() };
    let open = || Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    let (near, far) = (open(), open());
    assert_eq!(far.address().key, Key::NONE);
    let peer = near.peer(&Address::from(far.address().locator)).expect("near");
    let (mut out, mut back) = (pattern(100, 1), vec![0; 100]);
    recv(&far, None, 1, &mut back);
    send(&near, peer, 1, &mut out);
    complete(&[&near, &far], 2);
    assert!(out == back);
    let closed = support::open();
    let text = closed.peer(&Address::from(far.address().locator)).expect_err("no key").to_string();
    assert!(text.contains("FI_ISTHMUS_ADMISSION=open"), "{text}");
}

/// A guest asks for an answer, breaks its lane, and says that it listens at a third host. It is called back at the one
/// that it came from.
#[test]
fn a_guest_that_names_a_third_host_is_called_back_itself() {
    let settings =
        Settings { admission: Admission::Open, transport: isthmus_io::Transport::Tcp, ..settings() };
    let a = Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    let listen = |host: [u8; 4], port| {
        let listener = TcpListener::bind((IpAddr::from(host), port)).expect("loopback");
        listener.set_nonblocking(true).expect("a socket");
        listener
    };
    let own = listen([127, 0, 0, 2], 0);
    let port = own.local_addr().expect("bound").port();
    let third = listen([127, 0, 0, 3], port);
    let claimed = Address { incarnation: 99, ..Address::from(third.local_addr().expect("bound")) };
    let guest = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    guest.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("loopback");
    guest.connect(&a.address().locator.into()).expect("it listens");
    let mut words = hello(claimed, a.address(), 0).to_bytes().to_vec();
    Frame::from(Read { connection: 0, seq: 1, token: 5, key: 1, addr: 0, len: 8 }).encode(&mut words);
    (&guest).write_all(&words).expect("room");
    drop(guest);
    let until = Instant::now() + LIMIT;
    while own.accept().is_err() {
        assert!(third.accept().is_err(), "the third host is called");
        in_time(Instant::now() < until, || "nobody is called");
        a.wait(Some(Duration::from_millis(10)));
        a.poll(&mut Vec::new());
    }
    a.leave();
}

/// `isthmus state` and `isthmus top`: who is told, and who is believed. The second part leaves an impostor of this process
/// behind, so that the first comes before it.
#[test]
fn another_user_is_told_nothing_of_a_process_and_answers_for_none() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: it takes root to become another user");
    }
    another_user_is_told_nothing();
    nobody_answers_in_another_users_name();
}

/// They tell root and the process's own user what goes on, and nobody else.
fn another_user_is_told_nothing() {
    let endpoint = open();
    let asked = || isthmus_io::state_of(std::process::id()).unwrap_or_default();
    assert!(asked().contains("endpoint"), "{}", asked());
    assert_eq!(as_user(NOBODY, asked), "");
    endpoint.leave();
}

/// User ids that no process of this test has otherwise.
const NOBODY: libc::uid_t = 65_534;
const SOMEBODY: libc::uid_t = 65_533;

/// What `work` returns to a thread of another user.
fn as_user<R: Send + 'static>(user: libc::uid_t, work: impl FnOnce() -> R + Send + 'static) -> R {
    let other = std::thread::spawn(move || {
        let same = libc::uid_t::MAX;
        // SAFETY: changes the user of this thread only, which ends after its work.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, same, user, same) }, 0);
        work()
    });
    other.join().expect("an answer, or none")
}

/// A state socket of the user nobody, in the name of `process`. It answers everybody.
fn impostor(process: u32, index: u32) {
    let name = format!("isthmus-state-{process}-{index}");
    let name = UnixAddr::from_abstract_name(name).expect("short");
    let listener = as_user(NOBODY, move || UnixListener::bind_addr(&name).expect("free"));
    std::thread::spawn(move || {
        for mut asker in listener.incoming().flatten() {
            // A command that does not believe it has ended by now.
            let _ = asker.write_all(b"endpoint \x1b[2Jof nobody\n");
        }
    });
}

/// They believe a process of their own user and of root, and root believes each process about itself only.
fn nobody_answers_in_another_users_name() {
    let (own, process) = (std::process::id(), 1 << 22); // Linux gives no process this number (proc(5), pid_max)
    impostor(process, 0);
    let refused = |user, text: &str| {
        let asked = move || [isthmus_io::state_of(process).err(), isthmus_io::figures_of(process).err()];
        for error in as_user(user, asked) {
            let error = error.expect("refused");
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::PermissionDenied, text));
        }
    };
    refused(0, &format!("its state socket belongs to process {own} of user 65534, not to process {process}"));
    refused(SOMEBODY, "its state socket belongs to user 65534, neither to root nor to you (user 65533)");
    let heard = as_user(NOBODY, move || isthmus_io::state_of(process)).expect("its own");
    assert_eq!(heard, "endpoint  [2Jof nobody\n", "and nothing reaches the terminal but text");
    // This process is of root, but its thread is not.
    impostor(own, 3);
    assert!(isthmus_io::state_of(own).expect("believed").contains("of nobody"));
}
