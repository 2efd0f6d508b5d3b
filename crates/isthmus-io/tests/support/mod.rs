//! What tests of endpoints over real sockets share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, Settings, Transport};
use isthmus_proto::{Channel, Completion, Options, PeerId, RecvRequest, SendRequest};

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

pub fn iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

pub fn options(context: u64) -> Options {
    Options { context, notify: true, ..Options::default() }
}

pub fn send(from: &Endpoint, to: PeerId, tag: u64, bytes: &mut [u8]) {
    let request = SendRequest { peer: to, channel: Channel::Tagged, tag, data: None, options: options(tag) };
    // SAFETY: every test polls the completion before its buffers go.
    unsafe { from.send(&request, &[iovec(bytes)]) }.expect("posted");
}

pub fn recv(at: &Endpoint, source: Option<PeerId>, tag: u64, bytes: &mut [u8]) {
    let request =
        RecvRequest { source, channel: Channel::Tagged, tag, ignore: 0, multi: None, options: options(tag) };
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
        assert!(start.elapsed() < LIMIT, "only {} of {count} completions came: {done:?}", done.len());
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
        assert!(start.elapsed() < LIMIT, "the I/O thread does not carry on: {:?}", b.counters());
        std::thread::sleep(Duration::from_millis(5));
    }
    complete(&[a, b], 2);
    assert!(sent == got);
}
