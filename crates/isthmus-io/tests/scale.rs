//! What a peer costs once it has fallen silent: memory of ours, counted to the byte. The
//! system's own for an open connection comes on top.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::Instant;

use isthmus_io::Endpoint;
use isthmus_proto::PeerId;
use support::*;

/// Makes this program the other end: how many endpoints, and whom they greet.
const SPOKES: &str = "ISTHMUS_TEST_SPOKES";
/// Bytes that a silent peer may cost, its open lane and its address included; besides, its key (32 bytes, and as
/// much again of spare room in the table of peers), the numbers of the Hellos (24), and 64 bytes that may be in flight.
const SILENT_MAX: isize = 1024 + 4 * 32 + 24;
/// Endpoints that are talked to once, and how many of them at a time.
const PEERS: usize = 1000;
const AT_ONCE: usize = 20;

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

/// The other end: endpoints that tell their addresses, hear a word and fall silent
/// until the standard input ends.
#[test]
fn spokes() {
    let Ok(count) = std::env::var(SPOKES) else { return };
    let spokes: Vec<_> = (0..count.parse().expect("a number")).map(|_| open()).collect();
    let mut out = std::io::stdout();
    for spoke in &spokes {
        writeln!(out, "spoke {}", spoke.address().uri()).expect("heard");
    }
    out.flush().expect("heard");
    for spoke in &spokes {
        let mut word = [0; 8];
        recv(spoke, None, 1, &mut word);
        complete(&[spoke], 1);
    }
    let _ = std::io::stdin().lock().read_until(b'\n', &mut Vec::new());
}

/// The process of the spokes; ends with this. Its output stays open. After a minute its test runner prints that the test
/// still runs, and would end if nobody could read that.
struct Others {
    child: Child,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Others {
    fn start(count: usize) -> (Self, Vec<isthmus_wire::Address>) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["spokes", "--exact", "--nocapture"])
            .env(SPOKES, count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let addresses = output
            .by_ref()
            .map_while(Result::ok)
            .filter_map(|line| {
                line.split_once("spoke ").map(|(_, address)| address.parse().expect("an address"))
            })
            .take(count)
            .collect();
        (Self { child, _output: output }, addresses)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn greet(hub: &Endpoint, peers: &[PeerId]) {
    let mut words = vec![[7; 8]; peers.len()];
    for (peer, word) in peers.iter().zip(&mut words) {
        send(hub, *peer, 1, word);
    }
    let done = complete(&[hub], peers.len());
    assert!(done.iter().all(|completion| completion.error.is_none()), "{done:?}");
}

#[test]
fn a_silent_peer_costs_little() {
    if std::env::var(SPOKES).is_ok() {
        return;
    }
    let hub = open();
    let (mut others, addresses) = Others::start(PEERS);
    let greet_all = |addresses: &[isthmus_wire::Address]| {
        for some in addresses.chunks(AT_ONCE) {
            let peers: Vec<_> = some.iter().map(|address| hub.peer(address).expect("same subnet")).collect();
            greet(&hub, &peers);
        }
    };
    // What is kept for those that were used last is there after the first few.
    let (first, rest) = addresses.split_at(PEERS / 10);
    greet_all(first);
    let before = IN_USE.load(Relaxed);
    greet_all(rest);
    // They are silent once what they were sent is acknowledged, which nobody is in a hurry to do. Besides, the engine
    // keeps the time by which each had to answer its Hello until that time is over (10 s).
    let each = || (IN_USE.load(Relaxed) - before) / rest.len() as isize;
    let start = Instant::now();
    while each() > SILENT_MAX && start.elapsed() < LIMIT {
        hub.poll(&mut Vec::new());
    }
    let each = each();
    assert!(
        others.child.try_wait().expect("a child").is_none(),
        "the peers have gone; silent ones cost more"
    );
    println!("a silent peer costs {each} bytes after {:?}", start.elapsed());
    assert!(each <= SILENT_MAX, "a silent peer costs {each} bytes, more than {SILENT_MAX}");
    hub.close();
}
