//! Lanes by UDP whose path or peer fails, and the choice between UDP and TCP.

mod support;

use std::fmt::Arguments;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_io::log::{Severity, set_hook};
use isthmus_io::{Admission, Endpoint, Settings, Transport};
use isthmus_proto::PeerId;
use support::*;

/// A relay is all that an end knows of the other.
fn settings() -> Settings {
    Settings { admission: Admission::Open, ..support::settings() }
}

fn open_by(transport: Transport) -> Arc<Endpoint> {
    Endpoint::open(&Settings { transport, ..settings() }, None, Arc::default()).expect("loopback")
}

/// Passes packets on between whoever comes and `target`, until it is cut, which it does itself
/// once, in the midst of what passes.
struct Relay {
    at: SocketAddr,
    cut: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Somebody listens there by TCP, as at every endpoint's address, and at that which `target` sees.
    listener: TcpListener,
    _far: TcpListener,
    target: SocketAddr,
}

/// What a cut concerns.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    /// Packets to the relay's target.
    Forth,
    Back,
    Both,
}

impl Relay {
    fn new(target: SocketAddr) -> Self {
        Self::cutting(target, Direction::Both)
    }

    fn cutting(target: SocketAddr, direction: Direction) -> Self {
        let bind = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let at = listener.local_addr().expect("bound");
            (listener, at, UdpSocket::bind(at).expect("the same port by UDP is free"))
        };
        let ((listener, at, near), (listener_far, _, far)) = (bind(), bind());
        far.connect(target).expect("loopback");
        let relay =
            Self { at, cut: Arc::default(), stop: Arc::default(), listener, _far: listener_far, target };
        for socket in [&near, &far] {
            socket.set_nonblocking(true).expect("possible");
        }
        let (cut, stop) = (relay.cut.clone(), relay.stop.clone());
        std::thread::spawn(move || {
            let (mut room, mut client, mut until_cut) = (vec![0; 1 << 16], None, Some(8_usize << 20));
            let mut passes = |len: usize, by: Direction| {
                let passes = !cut.load(Ordering::Relaxed) || direction != Direction::Both && direction != by;
                until_cut = until_cut.and_then(|left| {
                    left.checked_sub(len).or_else(|| {
                        cut.store(true, Ordering::Relaxed);
                        None
                    })
                });
                passes
            };
            while !stop.load(Ordering::Relaxed) {
                let mut any = false;
                while let Ok((len, from)) = near.recv_from(&mut room) {
                    any = true;
                    client = Some(from);
                    if passes(len, Direction::Forth) {
                        let _ = far.send(&room[..len]);
                    }
                }
                while let Ok(len) = far.recv(&mut room) {
                    any = true;
                    if let (Some(client), true) = (client, passes(len, Direction::Back)) {
                        let _ = near.send_to(&room[..len], client);
                    }
                }
                if !any {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        relay
    }

    /// Passes on connections by TCP as well, whatever becomes of packets.
    fn pass_tcp(&self) {
        let (listener, target) = (self.listener.try_clone().expect("another handle"), self.target);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(target).expect("the endpoint listens");
                let pass = |mut from: &TcpStream, mut to: &TcpStream| {
                    // Whoever ends it, it is over.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                };
                let (near, far) = (Arc::new(near), Arc::new(far));
                let (back, forth) = ((far.clone(), near.clone()), (near, far));
                for (from, to) in [back, forth] {
                    std::thread::spawn(move || pass(&from, &to));
                }
            }
        });
    }

    /// Whoever is at the relay's address, under any name.
    fn peer(&self, from: &Endpoint) -> PeerId {
        let address = format!("isthmus://0.0/{}#00000000", self.at).parse().expect("an address");
        from.peer(&address).expect("same subnet")
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_path_that_is_cut_for_two_seconds_resumes_on_the_same_lane() {
    let (a, b) = (open_by(Transport::UdpEverywhere), open_by(Transport::UdpEverywhere));
    let relay = Relay::new(b.address().locator);
    let to = relay.peer(&a);
    let mut sent = pattern(48 << 20, 3);
    let mut got = vec![0; 48 << 20];
    recv(&b, None, 1, &mut got);
    send(&a, to, 1, &mut sent);
    let mut done = Vec::new();
    let start = Instant::now();
    let mut cut = None;
    while done.len() < 2 {
        a.poll(&mut done);
        b.poll(&mut done);
        if cut.is_none() && relay.cut.load(Ordering::Relaxed) {
            cut = Some(Instant::now());
        }
        if cut.is_some_and(|since| since.elapsed() > Duration::from_secs(2)) {
            relay.cut.store(false, Ordering::Relaxed);
        }
        in_time(start.elapsed() < 2 * LIMIT, || format!("the transfer does not go on: {:?}", a.counters()));
    }
    assert!(cut.is_some_and(|since| since.elapsed() > Duration::from_secs(2)), "the cut was not felt");
    assert!(done.iter().all(|completion| completion.error.is_none()), "{done:?}");
    assert!(sent == got);
    assert_eq!((a.counters().lanes_lost, b.counters().lanes_lost), (0, 0));
    a.close();
    b.close();
}

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: Severity, line: Arguments<'_>) {
    LINES.lock().expect("nobody panics with it").push(line.to_string());
}

#[test]
fn a_lane_by_udp_that_is_blocked_in_mid_life_gives_way_to_tcp_and_nothing_is_lost() {
    set_hook(keep);
    let (a, b) = (open_by(Transport::UdpEverywhere), open_by(Transport::UdpEverywhere));
    let relay = Relay::new(b.address().locator);
    relay.pass_tcp();
    let to = relay.peer(&a);
    let mut sent = pattern(48 << 20, 3);
    let mut got = vec![0; 48 << 20];
    recv(&b, None, 1, &mut got);
    send(&a, to, 1, &mut sent);
    let done = complete(&[&a, &b], 2);
    assert!(done.iter().all(|completion| completion.error.is_none()), "{done:?}");
    assert!(sent == got);
    assert!(relay.cut.load(Ordering::Relaxed), "packets passed to the end");
    assert_eq!(a.carriers(), ["TCP"]);
    let lines = LINES.lock().expect("nobody panics with it");
    let said = |line: &String| line.contains("go by TCP: no answer came for") && line.contains("but by TCP");
    assert!(lines.iter().any(said), "{lines:#?}");
    drop(lines);
    a.close();
    b.close();
}

#[test]
fn where_udp_is_blocked_in_one_direction_only_tcp_takes_over_as_soon_whichever_end_sends() {
    set_hook(keep);
    for (cut, dialler_sends) in
        [Direction::Forth, Direction::Back].into_iter().flat_map(|cut| [(cut, true), (cut, false)])
    {
        let (a, b) = (open_by(Transport::UdpEverywhere), open_by(Transport::UdpEverywhere));
        let relay = Relay::cutting(b.address().locator, cut);
        relay.pass_tcp();
        let to_b = relay.peer(&a);
        let (mut word, mut heard) = ([7; 8], [0; 8]);
        recv(&b, None, 1, &mut heard);
        send(&a, to_b, 1, &mut word);
        complete(&[&a, &b], 2);
        let (mut sent, mut got) = (pattern(48 << 20, 3), vec![0; 48 << 20]);
        if dialler_sends {
            recv(&b, None, 2, &mut got);
            send(&a, to_b, 2, &mut sent);
        } else {
            recv(&a, None, 2, &mut got);
            send(&b, b.peer(&a.address()).expect("same subnet"), 2, &mut sent);
        }
        let before = LINES.lock().expect("nobody panics with it").len();
        let done = complete(&[&a, &b], 2);
        assert!(done.iter().all(|completion| completion.error.is_none()), "{done:?}");
        assert!(sent == got && relay.cut.load(Ordering::Relaxed), "{cut:?}");
        let lines = LINES.lock().expect("nobody panics with it");
        let said = |line: &String| line.contains("go by TCP: no answer came for");
        assert!(lines[before..].iter().any(said), "{cut:?}, {dialler_sends}: {lines:#?}");
        drop(lines);
        a.close();
        b.close();
    }
}

#[test]
fn lanes_by_udp_keep_to_the_rate_that_is_set_for_the_peers_host() {
    const BYTES: usize = 8 << 20;
    let rate_limit = "127.0.0.0/8=80Mbit, 1Gbit".parse().expect("valid");
    let settings = Settings { transport: Transport::UdpEverywhere, rate_limit, ..settings() };
    let [a, b] = [(); 2].map(|()| Endpoint::open(&settings, None, Arc::default()).expect("loopback"));
    let to_b = a.peer(&b.address()).expect("same subnet");
    let (mut sent, mut got) = (pattern(BYTES, 5), vec![0; BYTES]);
    recv(&b, None, 1, &mut got);
    let start = Instant::now();
    send(&a, to_b, 1, &mut sent);
    complete(&[&a, &b], 2);
    assert!(sent == got);
    let least = Duration::from_secs_f64(BYTES as f64 / 10e6 * 0.98);
    assert!(start.elapsed() >= least, "{:?} for what takes {least:?} and more", start.elapsed());
    a.close();
    b.close();
}

/// In the variable of this name, a process of this test is told to be a peer.
const ROLE: &str = "ISTHMUS_TEST_PEER";

/// Not a test: the peer that is killed.
#[test]
fn peer() {
    let Ok(transport) = std::env::var(ROLE) else { return };
    let by = if transport == "udp" { Transport::UdpEverywhere } else { Transport::Tcp };
    let endpoint = open_by(by);
    println!("\nADDRESS {}", endpoint.address());
    std::io::stdout().flush().expect("a pipe");
    let mut got = [0; 8];
    recv(&endpoint, None, 1, &mut got);
    complete(&[&endpoint], 1);
    let mut done = Vec::new();
    loop {
        endpoint.poll(&mut done);
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn_peer(transport: &str) -> (Process, String) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "peer", "--nocapture"])
        .env(ROLE, transport)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let process = Process(child);
    let address = out
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("ADDRESS ").map(|(_, address)| address.to_owned()))
        .expect("the peer tells its address");
    (process, address)
}

fn a_killed_peer_fails_the_operations_on_it(by: Transport) {
    let (process, address) = spawn_peer(if by == Transport::Tcp { "tcp" } else { "udp" });
    let settings =
        Settings { peer_timeout: isthmus_units::Span::from_ms(3_000), transport: by, ..settings() };
    let a = Endpoint::open(&settings, None, Arc::default()).expect("loopback");
    let to = a.peer(&address.parse().expect("an address")).expect("same subnet");
    send(&a, to, 1, &mut [7; 8]);
    let done = complete(&[&a], 1);
    assert!(done[0].error.is_none(), "{done:?}");
    // Nobody posts a receive for these.
    let mut big = pattern(64 << 20, 1);
    send(&a, to, 2, &mut big);
    drop(process);
    let done = complete(&[&a], 1);
    let text = done[0].error.clone().expect("its process was killed").to_string();
    assert!(text.contains("process has ended"), "{text}");
    a.close();
}

#[test]
fn udp_gives_way_to_tcp_where_it_does_not_get_through() {
    let a = open_by(Transport::UdpEverywhere);
    // It listens by TCP only.
    let b = open_by(Transport::Tcp);
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut sent = pattern(1 << 20, 5);
    let mut got = vec![0; 1 << 20];
    recv(&b, None, 1, &mut got);
    send(&a, to_b, 1, &mut sent);
    complete(&[&a, &b], 2);
    assert!(sent == got);
    assert_eq!(a.carriers(), ["TCP"]);
    a.close();
    b.close();
}

#[test]
fn lanes_by_udp_are_made_up_as_is_set_for_the_peers_host() {
    let made = |protocols: &str| {
        let udp_protocols = protocols.parse().expect("valid");
        let settings = Settings { transport: Transport::UdpEverywhere, udp_protocols, ..settings() };
        Endpoint::open(&settings, None, Arc::default()).expect("loopback")
    };
    let (a, b) = (made("127.0.0.1=cubic+once, reno"), made("127.0.0.2=cubic, reno"));
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut sent = pattern(4 << 20, 5);
    let mut got = vec![0; 4 << 20];
    recv(&b, None, 1, &mut got);
    send(&a, to_b, 1, &mut sent);
    complete(&[&a, &b], 2);
    assert!(sent == got);
    let names = |endpoint: &Endpoint| -> Vec<String> {
        endpoint.udp_protocols().iter().map(|(composition, _)| composition.to_string()).collect()
    };
    assert_eq!(names(&a), ["cubic+adaptive+once+search"]);
    assert_eq!(names(&b), ["reno+adaptive+measured+search"]);
    a.close();
    b.close();
}

#[test]
fn protocols_of_lanes_by_udp_are_exchanged_while_data_flows() {
    let a = open_by(Transport::UdpEverywhere);
    let b = open_by(Transport::UdpEverywhere);
    let to_b = a.peer(&b.address()).expect("same subnet");
    let mut sent: Vec<_> = (0..12).map(|tag| pattern(1 << 20, tag)).collect();
    let mut got = vec![vec![0; 1 << 20]; 12];
    let others =
        ["udp: cubic+once", "udp: reno+fixed+given", "udp@127.0.0.0/8: once, udp: cubic", "messages: mixed"];
    let mut came = 0;
    for (tag, (out, into)) in sent.iter_mut().zip(&mut got).enumerate() {
        recv(&b, None, tag as u64, into);
        send(&a, to_b, tag as u64, out);
        if tag % 3 == 0 {
            came += complete(&[&a, &b], 2).len(); // a lane is there; at other times data is under way
        } else {
            a.set_protocols(others[tag % others.len()].parse().expect("valid"));
        }
    }
    complete(&[&a, &b], 24 - came);
    assert!(sent == got);
    let names: Vec<_> = a.udp_protocols().iter().map(|(composition, _)| composition.to_string()).collect();
    for expected in ["cubic+adaptive+once+search", "reno+fixed+measured+given", "rate+adaptive+once+search"] {
        assert!(names.iter().any(|name| name == expected), "{expected}: {names:?}");
    }
    a.close();
    b.close();
}

#[test]
fn protocols_that_change_in_the_configuration_are_taken_up() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |protocols: &str| {
        let text = format!("[device]\nudp_protocols = \"{protocols}\"\n");
        std::fs::write(file.path(), text).expect("it can be written");
    };
    write("rate");
    let a = open_by(Transport::UdpEverywhere);
    let b = open_by(Transport::UdpEverywhere);
    a.follow(file.path());
    let to_b = a.peer(&b.address()).expect("same subnet");
    let exchange = |tag: u64| {
        let (mut sent, mut got) = (pattern(1 << 16, tag as u8), vec![0; 1 << 16]);
        recv(&b, None, tag, &mut got);
        send(&a, to_b, tag, &mut sent);
        complete(&[&a, &b], 2);
        assert!(sent == got);
    };
    exchange(0);
    for (round, (protocols, expected)) in
        [("vegas", None), ("reno+once", Some("reno+adaptive+once+search"))].into_iter().enumerate()
    {
        write(protocols);
        let start = std::time::Instant::now();
        let is_there =
            || a.udp_protocols().iter().any(|(made, _)| Some(made.to_string().as_str()) == expected);
        while !is_there() {
            exchange(1 + round as u64);
            if expected.is_none() && start.elapsed().as_millis() > 1_500 {
                break; // what is wrong changes nothing
            }
            in_time(start.elapsed() < LIMIT, || format!("{protocols} is not taken up"));
        }
    }
    a.close();
    b.close();
}

#[test]
fn another_way_to_transfer_messages_is_taken_up_from_the_configuration_whatever_lanes_go_by() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |protocols: &str| {
        let text = format!("[device]\nprotocols = \"{protocols}\"\n");
        std::fs::write(file.path(), text).expect("it can be written");
    };
    write("messages: eager");
    let (a, b) = (open_by(Transport::Tcp), open_by(Transport::Tcp));
    a.follow(file.path());
    let to_b = a.peer(&b.address()).expect("same subnet");
    let exchange = |tag: u64| {
        let (mut sent, mut got) = (pattern(20_000, tag as u8), vec![0; 20_000]);
        recv(&b, None, tag, &mut got);
        send(&a, to_b, tag, &mut sent);
        complete(&[&a, &b], 2);
        assert!(sent == got);
        a.counters().messages_asked
    };
    assert_eq!(exchange(0), 0);
    write(&format!("messages@{}: rendezvous, messages: eager", b.address().locator.ip()));
    let start = std::time::Instant::now();
    while exchange(1) == 0 {
        in_time(start.elapsed() < LIMIT, || "it is not taken up");
    }
    a.close();
    b.close();
}

by_each_way! {
    a_killed_peer_fails_the_operations_on_it,
}
