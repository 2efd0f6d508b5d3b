//! Whoever speaks something else: bytes from anywhere at a port that anybody can reach.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{
    Endpoint, HANG, NOWHERE, Running, address, bytes_of, exchange, hello, pattern, socket_from, through,
};
use crate::site::Sites;
use crate::strangers::many_files;

fn tell(router: SocketAddr, bytes: &[u8], close: bool) {
    let mut lane = TcpStream::connect(router).expect("the router answers");
    lane.set_read_timeout(Some(HANG)).expect("a time-out");
    // It may close at any byte.
    let _ = lane.write_all(bytes);
    if close {
        let _ = lane.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = lane.read_to_end(&mut answer);
    // A TLS alert is an answer; a frame is not.
    assert!(answer.len() < 64, "{answer:?}");
}

pub(crate) fn tell_everything(router: SocketAddr, good: &[u8]) {
    tell(router, &[], true);
    for seed in 0..20 {
        tell(router, &pattern(seed, 300), true);
        // Without a close: it is the router that ends it.
        tell(router, &pattern(seed, 300), false);
    }
    tell(router, &[0; 100_000], false);
    tell(router, b"GET / HTTP/1.1\r\nHost: router\r\n\r\n", false);
    for len in 1..good.len() {
        tell(router, &good[..len], true);
    }
    for place in 0..good.len() {
        let mut bytes = good.to_vec();
        bytes[place] ^= 0xff;
        tell(router, &bytes, true);
    }
}

#[test]
fn a_plain_port_takes_any_bytes_and_works_on() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let from = address(1, 1, SocketAddr::from(([127, 0, 0, 1], 9)));
    // An AS that no route leads to, so that nobody is called by what happens to be whole.
    let good = bytes_of(hello(from, address(9, 9, from.locator)));
    tell_everything(sites.r1[0], &good);
    let (near, far) = through(sites.r1[0], from, &target, target.address(1, 2));
    exchange(near, far, 1000);
    // Every one of them was worth a line at most once.
    assert!(sites.world.log().matches("connection closed").count() <= 1, "{}", sites.world.log());
}

/// A router that inherits the connections of other tests has fewer descriptors than its limit allows, or none.
#[test]
fn a_router_inherits_no_connection_of_the_tests() {
    let target = Endpoint::new();
    let ours = socket_from(SocketAddr::from(([127, 0, 9, 1], 0)), target.0.local_addr().expect("an address"));
    let name = fs::read_link(format!("/proc/self/fd/{}", ours.as_raw_fd())).expect("a socket's name");
    let sites = Sites::new();
    let r1 = sites.world.start(&sites.r1(""));
    let open = fs::read_dir(format!("/proc/{}/fd", r1.child.id())).expect("it runs");
    // It may close one meanwhile.
    let open: Vec<_> = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).collect();
    assert!(!open.is_empty() && !open.contains(&name), "{name:?} is among {open:?}");
}

/// More silent strangers than the router has descriptors: lanes pass all the same, and the log has a line or two.
#[test]
fn strangers_that_take_all_descriptors_lock_nobody_out_and_fill_no_log() {
    let sites = Sites::new();
    let r1 = sites.world.start(&sites.r1(""));
    let limit = ["--pid", &r1.child.id().to_string(), "--nofile=80:80"].map(str::to_owned);
    assert!(Command::new("prlimit").args(limit).status().expect("util-linux").success());
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(1, 2));
    let mut silent = Vec::new();
    for host in 1..=4 {
        let from = SocketAddr::from(([127, 0, 9, host], 0));
        silent.extend((0..60).map(|_| socket_from(from, sites.r1[0])));
    }
    let start = Instant::now();
    for _ in 0..5 {
        let (near, far) = through(sites.r1[0], from, &target, to);
        exchange(near, far, 1000);
    }
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert!(sites.world.log().matches("cannot accept").count() <= 1, "{}", sites.world.log());
}

/// A router closes a connection after 10 s if no whole Hello came, the handshake of a link has not ended, or a request
/// about a name is not whole. Bytes now and then do not prolong that.
#[test]
fn who_says_little_is_closed_in_time() {
    let sites = Sites::linked_by("tcp");
    let _routers = sites.joined();
    let from = address(1, 1, NOWHERE);
    // Its last byte never comes.
    let mut hello = bytes_of(hello(from, address(1, 1, sites.r2[0])));
    let last = hello.pop().expect("bytes");
    let start = Instant::now();
    // A TLS record of a client's first message, of 512 bytes.
    let handshake = [&[22, 3, 1, 2, 0, 1, 0, 1, 252][..], &[0; 40]].concat();
    // The Hello of a lane to the router itself, and a request's first byte.
    let request = [&hello[..], &[last, 0]].concat();
    let lanes = [
        (sites.r2[0], vec![], vec![]),
        (sites.r2[0], vec![], hello),
        (sites.r2[1], vec![], handshake),
        (sites.r2[0], request, vec![]),
    ];
    let slow = lanes.map(|(router, first, words)| {
        let mut lane = TcpStream::connect(router).expect("it listens");
        lane.write_all(&first).expect("taken");
        (lane, words.into_iter())
    });
    let mut slow = Vec::from_iter(slow);
    while !slow.is_empty() {
        slow.retain_mut(|(lane, words)| {
            lane.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
            let _ = words.next().map(|byte| lane.write_all(&[byte]));
            match lane.read(&mut [0; 64]) {
                Ok(0) => false,
                Ok(_) => true,
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        });
        assert!(start.elapsed() < HANG, "{} are still there: {:?}", slow.len(), slow);
    }
    assert!(start.elapsed() > Duration::from_secs(5), "{:?}: what was said was wrong", start.elapsed());
}

/// Most memory that the process ever had. Bytes.
fn most_memory(router: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", router.child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

/// Sends packets, some 10,000 a second, until it is told to stop: random ones, openings of streams, and packets of streams
/// that do not exist.
fn flood(from: &UdpSocket, to: SocketAddr, stop: &AtomicBool) {
    let (mut number, begun) = (0_u64, Instant::now());
    while !stop.load(Ordering::Relaxed) && begun.elapsed() < HANG {
        number += 1;
        let mut bytes = pattern(number, 200);
        // Kinds 1 (Open), 3 (Data) and 5 (Reset) of version 1 (isthmus-udp/src/wire.rs).
        bytes[0] = [bytes[0], 0x91, 0x93, 0x15][number as usize % 4];
        // Where the socket's buffer is full it is dropped, as on any network.
        let _ = from.send_to(&bytes, to);
        if number % 20 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Crowds at each port of a router, at most 2,000 connections at a time: silent ones, beginnings of handshakes, random
/// bytes. All the while packets come at the port of its links. Lanes pass, memory is bounded, and the log is short.
#[test]
fn crowds_of_all_kinds_keep_nobody_out() {
    const CROWD: usize = 2_000;
    many_files();
    let sites = Sites::new();
    let (r2, _s1) = sites.joined();
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let passes = || {
        let begun = Instant::now();
        let (near, far) = through(sites.r2[0], from, &target, to);
        exchange(near, far, 100_000);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    };
    passes();
    let before = most_memory(&r2);
    let socket = UdpSocket::bind((sites.r1[0].ip(), 0)).expect("a port");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&socket, sites.r2[1], &stop));
        let handshake = [&[22, 3, 1, 2, 0, 1, 0, 1, 252][..], &[0; 40]].concat();
        for router in sites.r2 {
            for words in [vec![], handshake.clone(), pattern(7, 4_000)] {
                let begun = Instant::now();
                let crowd: Vec<_> = (0..CROWD)
                    .map(|number| {
                        let host = [127, 9, (number / 250) as u8, 1 + (number % 250) as u8];
                        let mut lane = socket_from(SocketAddr::from((host, 0)), router);
                        // It may have been closed by then.
                        let _ = lane.write_all(&words);
                        lane
                    })
                    .collect();
                // If the queue of those who wait is too short, some try again after seconds.
                assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
                passes();
                drop(crowd);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    passes();
    let grown = most_memory(&r2) - before;
    assert!(grown < 128 << 20, "{grown} bytes more");
    let log = sites.world.log();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    assert!(warnings.len() < 60, "{} lines: {:#?}", warnings.len(), &warnings[..10]);
}
