//! What tests of endpoints over real sockets share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, Settings, Transport};
use isthmus_proto::{Channel, Completion, Options, PeerId, RecvRequest, SendRequest};
pub use waits::*;

pub const LIMIT: Duration = Duration::from_secs(60);

pub fn settings() -> Settings {
    Settings { interface: "127.0.0.1".to_owned(), fabric: "off".to_owned(), ..Settings::default() }
}

pub fn open() -> Arc<Endpoint> {
    open_by(Transport::Tcp)
}

pub fn open_by(transport: Transport) -> Arc<Endpoint> {
    // What `auto` comes to on one host.
    let fabric = if transport == Transport::Auto { "memory" } else { "off" }.to_owned();
    let settings = Settings { transport, fabric, ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// Makes two tests of each function: by TCP and by UDP.
#[allow(unused_macros, reason = "no test uses all of it")]
macro_rules! by_each_transport {
    ($($name:ident,)+) => {
        mod tcp {
            $(#[test] fn $name() { super::$name(isthmus_io::Transport::Tcp); })+
        }
        mod udp {
            $(#[test] fn $name() { super::$name(isthmus_io::Transport::UdpEverywhere); })+
        }
    };
}
#[allow(unused_imports, reason = "no test uses all of it")]
pub(crate) use by_each_transport;

/// And one by shared memory.
#[allow(unused_macros, reason = "no test uses all of it")]
macro_rules! by_each_way {
    ($($name:ident,)+) => {
        by_each_transport! { $($name,)+ }
        mod memory {
            $(#[test] fn $name() { super::$name(isthmus_io::Transport::Auto); })+
        }
    };
}
#[allow(unused_imports, reason = "no test uses all of it")]
pub(crate) use by_each_way;

/// This address, with some key.
pub fn with_a_key(text: &str) -> isthmus_wire::Address {
    let address = text.parse().expect("an address");
    isthmus_wire::Address { key: isthmus_wire::Key([1; 32]), ..address }
}

pub fn iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

pub fn options(context: u64) -> Options {
    Options { context, notify: true, ..Options::default() }
}

pub fn send(from: &Endpoint, to: PeerId, tag: u64, bytes: &mut [u8]) {
    send_as(from, to, tag, tag, bytes);
}

pub fn send_as(from: &Endpoint, to: PeerId, tag: u64, context: u64, bytes: &mut [u8]) {
    let options = options(context);
    let request = SendRequest { peer: to, channel: Channel::Tagged, tag, data: None, options };
    // SAFETY: every test polls the completion before its buffers go.
    unsafe { from.send(&request, &[iovec(bytes)]) }.expect("posted");
}

pub fn recv(at: &Endpoint, source: Option<PeerId>, tag: u64, bytes: &mut [u8]) {
    recv_as(at, source, tag, tag, bytes);
}

pub fn recv_as(at: &Endpoint, source: Option<PeerId>, tag: u64, context: u64, bytes: &mut [u8]) {
    let options = options(context);
    let request = RecvRequest { source, channel: Channel::Tagged, tag, ignore: 0, multi: None, options };
    // SAFETY: as above.
    unsafe { at.recv(&request, &[iovec(bytes)]) }.expect("posted");
}

/// Polls both until `count` completions came.
pub fn complete(endpoints: &[&Endpoint], count: usize) -> Vec<Completion> {
    let start = Instant::now();
    let mut done = Vec::new();
    while done.len() < count {
        for endpoint in endpoints {
            endpoint.poll(&mut done);
        }
        in_time(start.elapsed() < LIMIT, || {
            format!("only {} of {count} completions came: {done:?}", done.len())
        });
    }
    done
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

/// A transfer that the I/O thread carries on while neither end is polled.
pub fn carries_on_unpolled(a: &Endpoint, b: &Endpoint) {
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut sent = pattern(64 << 20, 3);
    let mut got = vec![0; 64 << 20];
    recv(b, None, 1, &mut got);
    send(a, to_b, 1, &mut sent);
    let start = Instant::now();
    while b.counters().fragments_received < 60 {
        in_time(start.elapsed() < LIMIT, || format!("the I/O thread does not carry on: {:?}", b.counters()));
        std::thread::sleep(Duration::from_millis(5));
    }
    complete(&[a, b], 2);
    assert!(sent == got);
}

/// An endpoint whose lanes may go over these (setting `fabric`).
pub fn over(fabric: &str) -> Arc<Endpoint> {
    let settings = Settings { fabric: fabric.to_owned(), ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// Messages of many sizes both ways, some before and some after their receives.
pub fn exchange(a: &Endpoint, b: &Endpoint) {
    let (to_b, to_a) = (a.peer(&b.address()).expect("near"), b.peer(&a.address()).expect("near"));
    let sizes = [0, 1, 8, 4096, 8192, 8193, 12_288, 16_384, 16_385, 65_536, 100_000, 1 << 20, 20 << 20];
    for (tag, len) in sizes.into_iter().enumerate() {
        let (mut there, mut back) = (pattern(len, tag as u8), pattern(len, 100 + tag as u8));
        let (mut at_b, mut at_a) = (vec![0; len], vec![0; len]);
        let tag = tag as u64;
        recv(b, None, tag, &mut at_b);
        send(a, to_b, tag, &mut there);
        send(b, to_a, tag, &mut back);
        recv(a, None, tag, &mut at_a);
        let done = complete(&[a, b], 4);
        assert!(done.iter().all(|c| c.error.is_none() && c.len == len as u64), "{done:?}");
        assert!(there == at_b && back == at_a, "{len} bytes differ");
    }
}

/// Neither end polls: each message is noticed by who sleeps on its descriptor. `len` tells the length of a
/// round's, in bytes.
pub fn bounce_asleep(a: &Arc<Endpoint>, b: &Arc<Endpoint>, len: fn(u64) -> usize) {
    const ROUNDS: u64 = 200;
    exchange(a, b);
    let bounce = |own: Arc<Endpoint>, other: isthmus_wire::Address, begins: bool| {
        std::thread::spawn(move || {
            let to = own.peer(&other).expect("near");
            let mut done = Vec::new();
            for round in 0..ROUNDS {
                let len = len(round);
                let (mut out, mut got) = (vec![round as u8; len], vec![0; len]);
                recv(&own, None, round, &mut got);
                if begins {
                    send(&own, to, round, &mut out);
                }
                let mut count = usize::from(!begins);
                let start = Instant::now();
                while count < 2 {
                    own.wait(Some(LIMIT));
                    count += own.poll(&mut done);
                    in_time(start.elapsed() < LIMIT, || format!("round {round}: nobody was woken"));
                }
                assert!(done.iter().all(|c| c.error.is_none()), "{done:?}");
                assert_eq!(got, vec![round as u8; len]);
                if !begins {
                    send(&own, to, round, &mut out);
                    while done.len() < 2 * (round as usize + 1) {
                        own.wait(Some(LIMIT));
                        own.poll(&mut done);
                    }
                }
            }
        })
    };
    let threads = [bounce(a.clone(), b.address(), true), bounce(b.clone(), a.address(), false)];
    for thread in threads {
        thread.join().expect("woken every time");
    }
}

/// Who sends to an endpoint that has closed is told.
pub fn closing_is_noticed(a: &Endpoint, b: &Endpoint) {
    exchange(a, b);
    let to_a = b.peer(&a.address()).expect("near");
    a.close();
    send(b, to_a, 9, &mut [1; 8]);
    let done = complete(&[b], 1);
    assert!(done[0].error.is_some(), "{done:?}");
    b.close();
}
