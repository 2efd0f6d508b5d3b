//! What strangers can do to an endpoint that listens: connect, and say nothing or too much. They lock nobody out, hold
//! little memory, and fill no log. One test: it counts the process's descriptors, memory and lines.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Arguments;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_io::log::{FEW, Severity, set_hook};
use isthmus_io::{Admission, Endpoint, Settings, Transport};
use isthmus_udp::wire::{self, Header, Packet, put_small};
use isthmus_wire::frame::{Hello, MAGIC};
use isthmus_wire::{Address, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use socket2::{Domain, Socket, Type};
use support::*;

/// The system's allocator, which counts what is in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(severity: Severity, line: Arguments<'_>) {
    if severity != Severity::Debug {
        LINES.lock().expect("whole").push(line.to_string());
    }
}

/// Lines that contain `text`.
fn lines(text: &str) -> Vec<String> {
    LINES.lock().expect("whole").iter().filter(|line| line.contains(text)).cloned().collect()
}

/// So many connections that say nothing, once the endpoint has accepted them.
fn strangers(at: &Endpoint, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(at.address().locator).expect("it listens")).collect()
}

/// Whether the other end has closed it.
fn is_closed(stranger: &mut TcpStream) -> bool {
    stranger.set_nonblocking(true).expect("a socket");
    match stranger.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        in_time(start.elapsed() < LIMIT, || what);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lowers the limit of open files to those that are open, and `more`.
fn limit_descriptors(more: u64) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let open = std::fs::read_dir("/proc/self/fd").expect("proc").count() as u64;
    let low = libc::rlimit { rlim_cur: open + more, ..limit };
    // SAFETY: `low` is ours.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low) }, 0);
    limit
}

/// Processor time of this process.
fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn strangers_lock_nobody_out_hold_little_memory_and_fill_no_log() {
    set_hook(keep);
    let (a, b) = (open(), open());
    let mut silent = strangers(&b, 1);
    half_open_connections_lock_nobody_out(&a, &b);
    who_greets_an_open_endpoint_is_a_stranger_until_it_is_vouched_for();
    what_is_held_of_a_stranger_is_bounded();
    a_greeting_by_packets_is_no_proof_at_an_open_endpoint();
    exhausted_descriptors_cost_neither_lines_nor_time(&a);
    exchange(&a, &b);
    wait_until("who says nothing stays for longer than 5 s", || is_closed(&mut silent[0]));
}

fn half_open_connections_lock_nobody_out(a: &Endpoint, b: &Endpoint) {
    // Who comes alone, and is slow, is not displaced by a crowd from elsewhere.
    let slow = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    slow.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("loopback");
    slow.connect(&a.address().locator.into()).expect("it listens");
    let mut slow = TcpStream::from(slow);
    let mut silent = strangers(a, 1100);
    wait_until("the oldest strangers are not closed for new ones", || silent[..76].iter_mut().all(is_closed));
    assert!(!is_closed(&mut slow), "the crowd displaces another");
    exchange(b, a);
    assert_eq!(b.counters().lanes_lost, 0, "the first attempt was turned away");
    assert_eq!(lines("have not said who they are").len(), 1);
}

fn who_greets_an_open_endpoint_is_a_stranger_until_it_is_vouched_for() {
    let settings = Settings { admission: Admission::Open, transport: Transport::Tcp, ..settings() };
    let open = || Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    let (a, b) = (open(), open());
    a.await_proof();
    exchange(&b, &a);
    a.vouch(a.peer(&b.address()).expect("near"));
    let before = lines("credit:").len();
    let mut greeted = strangers(&a, 1100);
    for (number, stranger) in greeted.iter_mut().enumerate() {
        let source =
            Address { incarnation: 1 + number as u32, ..SocketAddr::from(([127, 0, 0, 1], 9)).into() };
        let (version, oldest, target) = (PROTOCOL_VERSION, PROTOCOL_OLDEST, a.address());
        let hello = Hello { magic: MAGIC, version, source, target, credit: 0, hops: 0, oldest, payload: 0 };
        // It may have been closed since.
        let _ = stranger.write_all(&hello.to_bytes());
    }
    wait_until("the oldest guests are not closed for new ones", || {
        strangers(&a, 1);
        greeted.iter_mut().map(has_ended).filter(|ended| *ended).count() >= 76
    });
    exchange(&b, &a);
    assert_eq!(b.counters().lanes_lost, 0, "who was vouched for has lost its lane");
    let said = lines("credit:").len() - before;
    assert!(said <= 2 * FEW as usize, "{said} lines about guests");
}

/// Whether the other end has closed it, after what it may have said.
fn has_ended(stranger: &mut TcpStream) -> bool {
    stranger.set_nonblocking(true).expect("a socket");
    let mut heard = [0; 256];
    loop {
        match stranger.read(&mut heard) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

fn what_is_held_of_a_stranger_is_bounded() {
    const COUNT: usize = 200;
    let a = open();
    let mut wordy = strangers(&a, COUNT);
    std::thread::sleep(Duration::from_millis(100));
    let before = IN_USE.load(Relaxed);
    // A frame that is awaited whole, of which the last byte does not come: the head of a message, and 16 KiB.
    let mut head = [0_u8; 58];
    head[0] = 16;
    head[54..].copy_from_slice(&(16_u32 << 10).to_le_bytes());
    for stranger in &mut wordy {
        stranger.write_all(&head).expect("room");
        // It may have been closed since.
        let _ = stranger.write_all(&[0; 2048]);
    }
    std::thread::sleep(Duration::from_millis(300));
    let held = IN_USE.load(Relaxed) - before;
    assert!(held <= (COUNT * (4 << 10)) as isize + (256 << 10), "{held} bytes of {COUNT} strangers");
    // Nor do faults of many fill the log.
    assert!(lines("a lane is closed").len() <= 2, "{:?}", lines("a lane is closed"));
}

/// A guest of an open endpoint has greeted, and sends all but the first byte of what follows. Until the program vouches
/// for it, little of that is held, and all of it after.
fn a_greeting_by_packets_is_no_proof_at_an_open_endpoint() {
    const PACKETS: u64 = 8_000;
    let settings = Settings { admission: Admission::Open, transport: Transport::UdpEverywhere, ..settings() };
    let a = Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    a.await_proof();
    let (at, socket) = (a.address().locator, UdpSocket::bind("127.0.0.1:0").expect("loopback"));
    socket.set_read_timeout(Some(LIMIT)).expect("a socket");
    socket.connect(at).expect("loopback");
    let source = Address { incarnation: 5, ..socket.local_addr().expect("bound").into() };
    let (version, oldest, target) = (PROTOCOL_VERSION, PROTOCOL_OLDEST, a.address());
    let hello = Hello { magic: MAGIC, version, source, target, credit: 1 << 20, hops: 0, oldest, payload: 0 };
    let say = |header, number, offset, data: &[u8]| {
        let mut bytes = Vec::new();
        Packet::Numbered { header, number, ack_now: true, checked: false, body: 0 }.encode(&mut bytes);
        put_small(&mut bytes, &wire::Frame::Stream { offset, data, fin: false });
        // The answer may have three times as many bytes.
        put_small(&mut bytes, &wire::Frame::Padding);
        bytes.resize(1_200, 0);
        socket.send(&bytes).expect("room");
    };
    say(Header::Open { source: 7, token: [0; 24], window: 1 << 20 }, 0, 0, &hello.to_bytes());
    let mut answer = [0; 2048];
    let len = socket.recv(&mut answer).expect("an answer");
    let Ok(Packet::Numbered { header: Header::Accept { source: target, .. }, .. }) =
        Packet::decode(&answer[..len])
    else {
        panic!("no Accept")
    };
    let mut number = 0;
    let mut flood = || {
        let before = IN_USE.load(Relaxed);
        for packet in 0..PACKETS {
            number += 1;
            let offset = Hello::LEN as u64 + 1 + 1000 * packet;
            say(Header::Data { target, keyed: false }, number, offset, &[7; 1000]);
            if packet % 20 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        IN_USE.load(Relaxed) - before
    };
    let held = flood();
    assert!(held < 1 << 20, "{held} bytes of a guest");
    a.vouch(a.peer(&source).expect("it has greeted"));
    let held = flood();
    assert!(held > 2 << 20, "{held} bytes of one that has proved who it is");
    a.leave();
}

fn exhausted_descriptors_cost_neither_lines_nor_time(a: &Endpoint) {
    let to = a.address().locator;
    // These wait in the backlog, since none of theirs can be accepted.
    let limit = limit_descriptors(20);
    let mut waiting = Vec::new();
    while let Ok(stranger) = TcpStream::connect(to) {
        waiting.push(stranger);
    }
    wait_until("nothing is said of it", || !lines("cannot accept a lane").is_empty());
    let before = busy();
    std::thread::sleep(Duration::from_secs(2));
    let spent = busy() - before;
    let said = lines("cannot accept a lane");
    // SAFETY: `limit` is ours.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    assert!(said.len() <= 1 && said[0].contains("ulimit -n"), "{said:?}");
    assert!(spent < Duration::from_millis(500), "{spent:?} of the processor in 2 s");
}
