//! What somebody on the wire reads of messages between two sites that are 4 ms apart, with nothing set up: nothing. In a
//! lab, whose first site records all packets. Skips, saying so, where this machine allows no lab.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isthmus_substrate::{Endpoint, EndpointOptions, Event, Level, SendOptions, Substrate};

/// The folder that the two parts share, where this program plays one of them.
const FOLDER: &str = "ISTHMUS_TEST_FOLDER";
/// The settings of both endpoints.
const SETTINGS: &str = "ISTHMUS_TEST_SETTINGS";
const LIMIT: Duration = Duration::from_secs(40);
/// The test looks for this in the packets.
const SECRET: &[u8] = b"Nobody but the two ends is to read this.";

/// The whole message.
fn message() -> Vec<u8> {
    SECRET.repeat(1_000)
}

fn folder() -> Option<PathBuf> {
    std::env::var(FOLDER).ok().map(PathBuf::from)
}

fn open() -> Endpoint {
    let text = format!("[device.any]\n{}\n", std::env::var(SETTINGS).expect("set with the folder"));
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    Endpoint::create(substrate.default_device().expect("up"), &EndpointOptions::default()).expect("opened")
}

/// The next event of the endpoint.
fn event(endpoint: &Endpoint) -> Event {
    endpoint.next_event(Some(LIMIT)).expect("open").expect("an event in time")
}

/// Text that the other part writes.
fn text(path: &Path) -> String {
    let start = Instant::now();
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim_end().to_owned(),
            _ => assert!(start.elapsed() < LIMIT, "{} does not come", path.display()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Counts packets, and those that contain the secret, until it is told to stop.
fn listen(stop: &AtomicBool, packets: &AtomicUsize, read: &AtomicUsize) {
    use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
    /// `ETH_P_ALL` of `if_ether.h`, in network order.
    const ALL: u32 = 0x0300;
    let all = NonZeroU32::new(ALL).map(Protocol::from_raw);
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, all);
    let socket = socket.expect("a site is its own network");
    let mut bytes = vec![0; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, _)) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        packets.fetch_add(1, Ordering::Relaxed);
        let has_secret = bytes[..len].windows(SECRET.len()).any(|part| part == SECRET);
        read.fetch_add(usize::from(has_secret), Ordering::Relaxed);
    }
}

/// The site that sends, and listens on the wire.
#[test]
fn near() {
    let Some(folder) = folder() else { return };
    let (stop, packets, read) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| listen(&stop, &packets, &read));
        let endpoint = open();
        let uri = text(&folder.join("uri"));
        endpoint.connect(&uri, b"", Level::Ro, 0, &Default::default()).expect("a route");
        let Event::Connected { connection, .. } = event(&endpoint) else { panic!("not connected") };
        let blocking = SendOptions { blocking: true, ..Default::default() };
        endpoint.send(connection, &message(), &blocking).expect("it arrives");
        stop.store(true, Ordering::Relaxed);
    });
    let seen = format!("{} {}\n", packets.into_inner(), read.into_inner());
    fs::write(folder.join("seen"), seen).expect("written");
}

/// The site that receives.
#[test]
fn far() {
    let Some(folder) = folder() else { return };
    let endpoint = open();
    fs::write(folder.join("uri"), format!("{}\n", endpoint.uri())).expect("written");
    let Event::Requested(request) = event(&endpoint) else { panic!("nobody connects") };
    endpoint.accept(request, 0).expect("asked for");
    loop {
        if let Event::Received(came) = event(&endpoint) {
            assert!(*came == message()[..]);
            break;
        }
    }
    // The end of this process is not to be part of what is tested.
    text(&folder.join("seen"));
}

/// Packets with the secret, with these settings. `None` where there can be no lab.
fn read_with(settings: &str) -> Option<usize> {
    let isthmus = env!("CARGO_BIN_EXE_isthmus");
    let check = Command::new(isthmus).args(["lab", "check"]).output().expect("it runs");
    if !check.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&check.stdout));
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let this = std::env::current_exe().expect("this program");
    let part = |name: &str| format!("{} {name} --exact --nocapture", this.display());
    let mut lab = Command::new(isthmus);
    lab.args(["lab", "run", "-q", "--rtt", "4ms", "--timeout", "60"]);
    lab.args(["--in", "a", &part("near"), "--in", "b", &part("far")]);
    lab.env(FOLDER, folder.path()).env(SETTINGS, settings).env_remove("ISTHMUS_CONFIG").stdin(Stdio::null());
    let done = lab.output().expect("it runs");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let seen = fs::read_to_string(folder.path().join("seen"));
    let seen = seen.unwrap_or_else(|error| panic!("{settings}: {error}: {said}"));
    let numbers: Vec<usize> = seen.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(done.status.success() && numbers[0] > 0, "{settings}: {seen} {said}");
    Some(numbers[1])
}

#[test]
fn nobody_reads_a_far_lane_with_nothing_set_up() {
    for settings in ["", "transport = \"tcp\"", "transport = \"udp\""] {
        let Some(read) = read_with(settings) else { return };
        assert_eq!(read, 0, "{settings}");
    }
    // What would be read can be read.
    let read = read_with("transport = \"tcp\"\nencrypt = \"never\"");
    assert!(read.is_none_or(|read| read > 0));
}
