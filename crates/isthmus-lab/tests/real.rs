//! Real packets between real namespaces. Root is needed; without it each test says so and
//! passes (the command's tests cover running without root).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use isthmus_lab::config::LabConfig;
use isthmus_lab::privilege::is_privileged;
use isthmus_lab::topology::Lab;

const A: &str = "10.200.0.1:7000";
const B: &str = "10.200.0.2:7000";
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab of sites a and b whose link has the given keys; `None` where this cannot be.
fn lab(link: &str) -> Option<Lab> {
    if !is_privileged() {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)");
        return None;
    }
    let text = format!(
        "[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n[[link]]\nbetween = [\"a\", \"b\"]\n{link}\n"
    );
    let config = LabConfig::parse("test.toml", &text).expect("a good configuration");
    Some(Lab::start(&config).expect("a lab"))
}

fn udp(lab: &Lab, site: &str, address: &str) -> UdpSocket {
    let socket = lab.inside(site, || UdpSocket::bind(address)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    socket
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_round_trip_takes_the_configured_time() {
    let Some(lab) = lab("rtt = \"200ms\"") else { return };
    let (a, b) = (udp(&lab, "a", A), udp(&lab, "b", B));
    let least = (0..10_u8).map(|i| round_trip(&a, &b, i)).min().expect("ten times");
    assert!(least >= Duration::from_millis(200), "{least:?} is faster than the link");
    // Twice would be a delay that counts each way.
    assert!(least < Duration::from_millis(400), "{least:?}");
}

fn round_trip(a: &UdpSocket, b: &UdpSocket, mark: u8) -> Duration {
    let (start, mut byte) = (Instant::now(), [0]);
    a.send_to(&[mark], B).expect("sent");
    let (_, from) = b.recv_from(&mut byte).expect("there");
    b.send_to(&byte, from).expect("sent back");
    a.recv_from(&mut byte).expect("back");
    assert_eq!(byte, [mark]);
    start.elapsed()
}

#[test]
fn tcp_arrives_intact_through_loss_reordering_and_copies() {
    let keys = "rate = \"200Mbit\"\nrtt = \"10ms\"\nmtu = 1500\nloss = \"1%\"\nreorder = \"1%\"\nduplicate = \"1%\"\njitter = \"1ms\"";
    let Some(lab) = lab(keys) else { return };
    let listener = lab.inside("b", || TcpListener::bind(B)).expect("a listener");
    let sent = pattern(4 << 20);
    let to_send = sent.clone();
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("all of it");
        got
    });
    let address: SocketAddr = B.parse().expect("an address");
    let connect = || TcpStream::connect_timeout(&address, PATIENCE);
    let mut stream = lab.inside("a", connect).expect("a connection");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(&to_send).expect("sent");
    drop(stream);
    assert!(receiver.join().expect("a receiver") == sent, "the data changed on its way");
    let there = &lab.stop().links[0].directions[0];
    assert!(there.drops.loss > 0 && there.duplicated_packets > 0, "{there:?}");
    assert_eq!(there.drops.emulator, 0, "{there:?}");
}

#[test]
fn a_tenth_of_the_datagrams_is_lost_and_the_rest_is_whole() {
    let Some(lab) = lab("loss = \"10%\"\nrtt = \"2ms\"\nmtu = 1500\nqueue = \"64MiB\"") else { return };
    let (a, b) = (udp(&lab, "a", A), udp(&lab, "b", B));
    segment_by(&a, 1000);
    let receiver = std::thread::spawn(move || count_whole(&b));
    for super_packet in 0..200_u8 {
        a.send_to(&[super_packet; 25_000], B).expect("sent");
        std::thread::sleep(Duration::from_millis(2));
    }
    let (whole, broken) = receiver.join().expect("a receiver");
    let report = lab.stop();
    let there = &report.links[0].directions[0];
    let share = there.drops.loss as f64 / there.offered_packets as f64;
    assert!(there.offered_packets >= 5000, "25 wire packets for each super-packet: {there:?}");
    assert!((share - 0.1).abs() < 0.022, "five sigma around a tenth: {share}");
    assert_eq!(broken, 0);
    let delivered = there.delivered_packets;
    assert!(whole <= delivered && whole >= 3000, "{whole} of {delivered} arrived");
}

/// Lets the kernel cut what is sent into datagrams of `bytes`.
fn segment_by(socket: &UdpSocket, bytes: i32) {
    let (level, option, len) = (17, 103, size_of::<i32>() as libc::socklen_t); // SOL_UDP, UDP_SEGMENT
    // SAFETY: the value outlives the call and `len` is its size.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const bytes).cast(), len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Datagrams of 1,000 equal bytes, and others, until two seconds pass without any.
fn count_whole(socket: &UdpSocket) -> (u64, u64) {
    let (mut whole, mut broken, mut buffer) = (0, 0, [0; 65536]);
    while let Ok((len, _)) = socket.recv_from(&mut buffer) {
        let good = len == 1000 && buffer[..len].iter().all(|byte| *byte == buffer[0]);
        *(if good { &mut whole } else { &mut broken }) += 1;
    }
    (whole, broken)
}

#[test]
fn a_link_that_is_down_comes_up_on_schedule() {
    let start = Instant::now();
    let Some(lab) = lab("rtt = \"2ms\"\ndown = [{ at = \"0\", for = \"1500ms\" }]") else { return };
    let (a, b) = (udp(&lab, "a", A), udp(&lab, "b", B));
    let sender = std::thread::spawn(move || {
        for i in 0..250_u8 {
            a.send_to(&[i], B).expect("sent");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut first = [0];
    b.recv_from(&mut first).expect("the link came up");
    assert!(start.elapsed() >= Duration::from_millis(1500));
    sender.join().expect("a sender");
    assert!(lab.stop().links[0].directions[0].drops.down > 0);
}

#[test]
fn nothing_is_left_behind() {
    let Some(lab) = lab("rtt = \"2ms\"") else { return };
    let mut sleeper = lab.command("a", "sh").expect("a command");
    let mut sleeper = sleeper.args(["-c", "trap '' TERM; sleep 1000 & wait"]).spawn().expect("a child");
    let (id, paths) = (lab.state().id.clone(), lab.state().sites.iter().map(|s| s.net.clone()));
    let paths: Vec<_> = paths.collect();
    assert!(paths.iter().all(|path| path.exists()));
    drop(lab);
    assert!(!sleeper.wait().expect("ended").success());
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    assert!(!std::path::Path::new("/run/isthmus-lab").join(id).exists());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(paths.iter().all(|path| !mounts.contains(&path.display().to_string())));
}

#[test]
fn three_sites_have_a_link_each_of_its_own_kind() {
    if !is_privileged() {
        return eprintln!("skipped: needs root");
    }
    let text = "mgmt = true\n[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n[[site]]\nname = \"c\"\n\
        [[link]]\nbetween = [\"a\", \"b\"]\nrtt = \"10ms\"\n\
        [[link]]\nbetween = [\"a\", \"c\"]\nrtt = \"200ms\"\n";
    let lab = Lab::start(&LabConfig::parse("test.toml", text).expect("good")).expect("a lab");
    let a = udp(&lab, "a", "0.0.0.0:7000");
    let echo = |site: &str, address: &str| {
        let socket = udp(&lab, site, address);
        let start = Instant::now();
        a.send_to(b"x", address).expect("sent");
        let from = socket.recv_from(&mut [0]).expect("there").1;
        socket.send_to(b"x", from).expect("sent back");
        a.recv_from(&mut [0]).expect("back");
        start.elapsed()
    };
    assert!(echo("b", "10.200.0.2:7000") >= Duration::from_millis(10));
    assert!(echo("c", "10.200.1.2:7000") >= Duration::from_millis(200));
    let direct = (0..5).map(|i| echo("c", &format!("10.255.255.3:{}", 7001 + i))).min();
    assert!(direct < Some(Duration::from_millis(200)), "mgmt is not emulated: {direct:?}");
}
