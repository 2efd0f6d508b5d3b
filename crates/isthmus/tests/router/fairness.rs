//! What one flow costs the others: a receiver that stalls, a sender that takes all it can get.
//!
//! What counts is how far the others got meanwhile, so that a slow machine is as good as a fast
//! one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_wire::Address;

use crate::harness::{Endpoint, NOWHERE, Running, address, exchange, through};
use crate::site::Sites;

/// Lanes of the greedy sender, as many as an endpoint has to a far peer.
const GREEDY: usize = 4;
/// Lanes whose receivers never read.
const STALLED: usize = 2;

/// Two subnets, what joins them, and who runs it.
struct TwoSubnets {
    router: SocketAddr,
    from: Address,
    target: Endpoint,
    to: Address,
    routers: Vec<Running>,
    sites: Sites,
}

impl TwoSubnets {
    /// By one router, within a site.
    fn plain() -> Self {
        let sites = Sites::new();
        let routers = vec![sites.world.start(&sites.r1(""))];
        let target = Endpoint::new();
        let to = target.address(1, 2);
        Self { router: sites.r1[0], from: address(1, 1, NOWHERE), target, to, routers, sites }
    }

    /// By two routers and as few links as can be: one dialled by each.
    fn linked(memory: &str) -> Self {
        let sites = Sites::new();
        sites.world.keygen(1, "one");
        sites.world.keygen(2, "two");
        let limits = format!("limits = {{ links = 1, memory = \"{memory}\" }}\n");
        let configs = [sites.r2("one", &limits), sites.s1(&limits)];
        let routers = configs.iter().map(|config| sites.world.start(config)).collect();
        let target = Endpoint::new();
        let to = target.address(2, 1);
        Self { router: sites.r2[0], from: address(1, 1, NOWHERE), target, to, routers, sites }
    }

    fn lane(&self) -> (TcpStream, TcpStream) {
        through(self.router, self.from, &self.target, self.to)
    }

    /// Lanes on which the routers take what they can, and nobody takes it from them.
    fn stalled(&self, lanes: usize) -> Vec<(TcpStream, TcpStream)> {
        let ends: Vec<_> = (0..lanes).map(|_| self.lane()).collect();
        fill(&ends);
        ends
    }
}

/// Writes to all near ends until nothing has been taken for a while. What is taken later only
/// adds to the load.
fn fill(lanes: &[(TcpStream, TcpStream)]) {
    let (mut taken, mut last) = (0, Instant::now());
    lanes.iter().for_each(|(near, _)| near.set_nonblocking(true).expect("non-blocking"));
    while last.elapsed() < Duration::from_millis(300) {
        for mut near in lanes.iter().map(|(near, _)| near) {
            while let Ok(more) = near.write(&[1; 65536]) {
                (taken, last) = (taken + more, Instant::now());
            }
        }
        assert!(taken < lanes.len() << 27, "no end of what is taken of lanes that nobody reads");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A sender that always has more, and a receiver that always reads.
struct Greedy {
    moved: Arc<AtomicU64>,
    ends: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Greedy {
    fn start(subnets: &TwoSubnets) -> Self {
        let (moved, mut ends, mut threads) = (Arc::new(AtomicU64::new(0)), Vec::new(), Vec::new());
        for _ in 0..GREEDY {
            let (near, far) = subnets.lane();
            ends.extend([&near, &far].map(|end| end.try_clone().expect("a second handle")));
            let (mut writer, mut reader, count) = (near, far, moved.clone());
            threads.push(std::thread::spawn(move || while writer.write_all(&[2; 65536]).is_ok() {}));
            threads.push(std::thread::spawn(move || {
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = reader.read(&mut buffer) {
                    count.fetch_add(read as u64, Relaxed);
                }
            }));
        }
        let greedy = Self { moved, ends, threads };
        // It has the way to itself until it is at its full speed.
        greedy.await_moved(16 << 20);
        greedy
    }

    fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    fn await_moved(&self, more: u64) {
        let (start, began) = (self.moved(), Instant::now());
        while self.moved() < start + more {
            assert!(began.elapsed() < crate::harness::HANG, "the greedy flow itself stands still");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Words to and fro, one at a time.
fn talk(near: &mut TcpStream, far: &mut TcpStream, rounds: usize) {
    let mut word = [0; 8];
    for round in 0..rounds {
        near.write_all(&round.to_le_bytes()).expect("taken");
        far.read_exact(&mut word).expect("a word");
        far.write_all(&word).expect("taken");
        near.read_exact(&mut word).expect("the word again");
        assert_eq!(word, round.to_le_bytes());
    }
}

/// Others talk and move data while one sender is greedy and some receivers stall.
fn others_keep_their_share(subnets: &TwoSubnets) {
    const ROUNDS: usize = 20;
    const DATA: usize = 4 << 20;
    let (mut near, mut far) = subnets.lane();
    let _stalled = subnets.stalled(STALLED);
    let greedy = Greedy::start(subnets);

    let before = greedy.moved();
    talk(&mut near, &mut far, ROUNDS);
    // A word waits behind what is queued on its way, but not behind what comes later. Tens of
    // megabytes pass a busy machine's loopback while it lets us wait for a processor.
    let behind = (greedy.moved() - before) / ROUNDS as u64;
    assert!(behind < 1 << 30, "a word waits while others move {behind} bytes");

    let before = greedy.moved();
    exchange(near, far, DATA);
    // Lanes share alike, which isthmus-mux shows in virtual time; here two processors are shared
    // by many threads as well, and a gigabyte passes while this one waits for its turns. One
    // that is starved sees no end of that.
    let times = (greedy.moved() - before) as f64 / DATA as f64;
    assert!(times < 2000.0, "the greedy sender moves {times} times as much");
    greedy.await_moved(1 << 20);
}

#[test]
fn others_keep_their_share_of_a_router() {
    others_keep_their_share(&TwoSubnets::plain());
}

#[test]
fn others_keep_their_share_of_a_link() {
    others_keep_their_share(&TwoSubnets::linked("1GiB"));
}

/// Resident memory of a process. Bytes.
fn resident(router: &Running) -> u64 {
    let path = format!("/proc/{}/status", router.child.id());
    let text = std::fs::read_to_string(path).expect("the process is there");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// What the routers come to hold for lanes that nobody reads, each of which was in full use
/// before. Bytes, by router.
fn held_for_stalled(subnets: &TwoSubnets, lanes: usize) -> Vec<u64> {
    let ends: Vec<_> = (0..lanes).map(|_| subnets.lane()).collect();
    let before: Vec<_> = subnets.routers.iter().map(resident).collect();
    for (near, far) in &ends {
        // Windows grow to what the lane can use.
        let (mut writer, mut reader) = (near, far);
        std::thread::scope(|scope| {
            scope.spawn(move || (0..USED).for_each(|_| writer.write_all(&[3; 65536]).expect("taken")));
            let mut buffer = vec![0; 65536];
            (0..USED).for_each(|_| reader.read_exact(&mut buffer).expect("bytes"));
        });
    }
    fill(&ends);
    let held =
        subnets.routers.iter().zip(before).map(|(router, before)| resident(router).saturating_sub(before));
    held.collect()
}

/// Turns of 64 KiB by which each lane is used before it stalls.
const USED: usize = 128;
/// What a process's memory varies by for reasons of its own.
const SLACK: u64 = 8 << 20;

#[test]
fn stalled_lanes_of_a_router_hold_a_turn_each() {
    const LANES: usize = 16;
    let subnets = TwoSubnets::plain();
    let held = held_for_stalled(&subnets, LANES);
    assert!(held.iter().all(|held| *held < LANES as u64 * (2 << 16) + SLACK), "{held:?} bytes");
}

#[test]
fn stalled_lanes_of_links_keep_to_the_limit_of_memory() {
    // So many lanes fit on one link of two, whichever stands first.
    let subnets = TwoSubnets::linked("96MiB");
    let held = held_for_stalled(&subnets, 8);
    assert!(
        held.iter().all(|held| *held < (96 << 20) + SLACK),
        "{held:?} bytes; {}",
        subnets.sites.world.log()
    );
}
