//! A peer behind a forwarded port: what it says of itself leads elsewhere, and where it answered is dialled again.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isthmus_io::{Admission, Endpoint, Settings, Transport};
use isthmus_wire::Address;
use support::*;

/// Passes connections and UDP packets on to another port, as `docker -p` does for both.
struct Forwarder {
    at: SocketAddr,
    target: SocketAddr,
    /// The socket from which packets go on, and the bytes of those that went.
    packets: Arc<Mutex<UdpSocket>>,
    packet_bytes: Arc<AtomicUsize>,
    /// Both ends of each that there was.
    passed: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

impl Forwarder {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let passed: Arc<Mutex<Vec<[TcpStream; 2]>>> = Arc::default();
        let list = passed.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                let ends = || [near.try_clone().expect("a socket"), far.try_clone().expect("a socket")];
                list.lock().expect("no panic").push(ends());
                for [mut from, mut to] in [ends(), {
                    let [near, far] = ends();
                    [far, near]
                }] {
                    std::thread::spawn(move || {
                        let mut bytes = vec![0; 64 << 10];
                        while let Ok(len @ 1..) = from.read(&mut bytes) {
                            if to.write_all(&bytes[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        let packets = Arc::new(Mutex::new(onward(target)));
        let packet_bytes = Arc::new(AtomicUsize::new(0));
        let near = UdpSocket::bind(at).expect("the same port by UDP is free");
        pass_packets(near, packets.clone(), packet_bytes.clone());
        Self { at, target, packets, packet_bytes, passed }
    }

    /// The ports from which it has connected.
    fn ports(&self) -> Vec<u16> {
        let passed = self.passed.lock().expect("no panic");
        passed.iter().filter_map(|[_, far]| Some(far.local_addr().ok()?.port())).collect()
    }

    /// As a forwarder that is restarted.
    fn cut(&self) {
        for ends in self.passed.lock().expect("no panic").iter() {
            for end in ends {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
        *self.packets.lock().expect("no panic") = onward(self.target);
    }
}

/// A socket from which packets go to `target`, at a port of its own.
fn onward(target: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(target).expect("loopback");
    // Short, so that the socket that comes after a cut is used soon.
    socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket");
    socket
}

fn pass_packets(near: UdpSocket, far: Arc<Mutex<UdpSocket>>, count: Arc<AtomicUsize>) {
    let clone = |socket: &UdpSocket| socket.try_clone().expect("a socket");
    let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    let (back, to) = (clone(&near), client.clone());
    let current = far.clone();
    std::thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        while let Ok((len, from)) = near.recv_from(&mut room) {
            *client.lock().expect("no panic") = Some(from);
            count.fetch_add(len, Ordering::Relaxed);
            let _ = far.lock().expect("no panic").send(&room[..len]);
        }
    });
    std::thread::spawn(move || {
        let mut room = vec![0; 1 << 16];
        loop {
            let from = clone(&current.lock().expect("no panic"));
            while let Ok(len) = from.recv(&mut room) {
                if let Some(client) = *to.lock().expect("no panic") {
                    let _ = back.send_to(&room[..len], client);
                }
            }
        }
    });
}

/// The ports of this host from which a connection to `port` stands, by /proc/net/tcp.
fn connected_to(port: u16) -> Vec<u16> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux has it");
    let port_of = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|fields| fields[3] == ESTABLISHED && port_of(fields[2]) == Some(port))
        .filter_map(|fields| port_of(fields[1]))
        .collect()
}

#[test]
fn what_answered_is_dialled_again_after_a_reset() {
    // The forwarder is all that the near one knows of the far one.
    let admission = Admission::Open;
    let settings = Settings { transport: Transport::Tcp, admission, ..support::settings() };
    let open = || Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there");
    let (near, far) = (open(), open());
    let forwarder = Forwarder::to(far.address().locator);
    let peer = near.peer(&Address::from(forwarder.at)).expect("named");
    for round in 0..5u64 {
        let (mut out, mut back) = (pattern(3 << 20, round as u8), vec![0; 3 << 20]);
        recv(&far, None, round, &mut back);
        send(&near, peer, round, &mut out);
        complete(&[&near, &far], 2);
        assert!(out == back, "round {round}");
        // It is known by its own name, which would lead elsewhere behind a real forwarder. (It may dial this end.)
        assert_eq!(near.peer_address(peer), far.address());
        let (from, passed) = (connected_to(far.address().locator.port()), forwarder.ports());
        let past = from.iter().filter(|port| !passed.contains(port)).count();
        assert_eq!(past, 0, "round {round}: lanes went past the forwarder");
        forwarder.cut();
    }
    near.close();
    far.close();
}

#[test]
fn what_answered_by_udp_is_dialled_again_after_the_forwarder_was_restarted() {
    const BYTES: usize = 3 << 20;
    let admission = Admission::Open;
    let settings = Settings { transport: Transport::UdpEverywhere, admission, ..support::settings() };
    let open = || Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there");
    let (near, far) = (open(), open());
    let forwarder = Forwarder::to(far.address().locator);
    let peer = near.peer(&Address::from(forwarder.at)).expect("named");
    for round in 0..3u64 {
        let before = forwarder.packet_bytes.load(Ordering::Relaxed);
        let (mut out, mut back) = (pattern(BYTES, round as u8), vec![0; BYTES]);
        recv(&far, None, round, &mut back);
        send(&near, peer, round, &mut out);
        complete(&[&near, &far], 2);
        assert!(out == back, "round {round}");
        let by_packets = forwarder.packet_bytes.load(Ordering::Relaxed) - before;
        assert!(round > 0 || by_packets >= BYTES, "{by_packets} bytes went by UDP through the forwarder");
        // Where a restart has cut UDP off, TCP may carry the rest, through the forwarder as well.
        let (from, passed) = (connected_to(far.address().locator.port()), forwarder.ports());
        let past = from.iter().filter(|port| !passed.contains(port)).count();
        assert_eq!(past, 0, "round {round}: lanes went past the forwarder");
        let has_tcp = near.carriers().iter().any(|name| name.starts_with("TCP"));
        assert!(has_tcp || by_packets >= BYTES, "round {round}: {by_packets} bytes by UDP");
        forwarder.cut();
    }
    near.close();
    far.close();
}
