//! Endpoints by Ethernet frames, between two network namespaces of the test's own that a
//! veth pair joins; with addresses and without.

mod support;

use std::process::Child;
use std::time::{Duration, Instant};

use isthmus_substrate::{
    Access, ConnectOptions, Connection, Endpoint, EndpointOptions, Event, Failure, Level, MemoryHandle,
    RemoteOptions, SendOptions, Substrate,
};
use isthmus_trust::Keygen;
use support::hosts::{Far, ROLE, ip, play, run_near};
use support::{LIMIT, in_time, pattern};

const LEVELS: [Level; 3] = [Level::Uu, Level::Ru, Level::Ro];
/// Longest message that goes in one frame of UU.
const SHORT: usize = 1_400;

/// Runs the near part, which starts the far one.
fn run(role: &str) {
    let keys = tempfile::tempdir().expect("a folder");
    Keygen { as_id: 7, folder: keys.path(), name: "host", days: 1 }.make().expect("made");
    run_near(role, |command| _ = command.env(KEYS, keys.path()));
}

#[test]
fn messages_and_memory_by_frames_between_hosts_with_addresses() {
    run("addresses");
}

#[test]
fn messages_and_memory_by_frames_between_hosts_without_ip() {
    run("bare");
}

#[test]
fn messages_and_memory_by_encrypted_frames() {
    run("sealed");
}

/// Where the keys of both hosts are.
const KEYS: &str = "ISTHMUS_TEST_KEYS";

/// What is configured: encrypted lanes for hosts that have keys.
fn configured(role: &str, interface: &str) -> String {
    let mut text = format!(
        "[device.wire]\ntransport = \"ethernet\"\ninterface = \"{interface}\"\npeer_timeout = \"5s\"\n\
         linger = \"1s\"\n"
    );
    if role == "sealed" {
        let keys = std::env::var(KEYS).expect("made before");
        text += &format!(
            "as_id = 7\ntls = \"required\"\ntls_certificate = \"{keys}/host.pem\"\n\
             tls_key = \"{keys}/host.key\"\ntls_authorities = \"{keys}/as7.pem\"\n"
        );
    }
    text
}

fn open(role: &str, interface: &str) -> Endpoint {
    let text = configured(role, interface);
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    assert_eq!((device.transport(), device.interface()), ("ethernet", interface));
    Endpoint::create(device, &EndpointOptions::default()).expect("opened")
}

fn set_up(role: &str, name: &str, number: u8) {
    ip("link set lo up");
    if role != "bare" {
        ip(&format!("addr add 10.99.8.{number}/24 dev {name}"));
    } else {
        // Not even one that the system gives by itself.
        ip(&format!("link set {name} addrgenmode none"));
    }
    ip(&format!("link set {name} up"));
}

/// The far host: accepts whoever comes, shows its memory, and sends back all that comes.
#[test]
fn far() {
    let Ok(role) = std::env::var(ROLE) else { return };
    println!("far is here");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).expect("the near part lives");
    set_up(&role, "isthfar", 2);
    let endpoint = open(&role, "isthfar");
    let region =
        endpoint.register(4 << 20, Access { remote_read: true, remote_write: true }).expect("memory");
    println!("uri {}", endpoint.uri());
    let start = Instant::now();
    while start.elapsed() < 4 * LIMIT {
        match endpoint.next_event(Some(Duration::from_secs(1))).expect("open") {
            Some(Event::Requested(request)) => drop(endpoint.accept(request, 0).expect("granted")),
            Some(Event::Accepted { connection, .. }) => {
                endpoint
                    .send(connection, &region.handle().to_bytes(), &SendOptions::default())
                    .expect("sent");
            }
            Some(Event::Received(message)) => {
                let how = SendOptions { silent: true, ..Default::default() };
                // One that finds no room is lost, which only UU may.
                while endpoint.send(message.connection(), &message, &how).is_err() {
                    in_time(start.elapsed() < 4 * LIMIT, || "a message finds no room");
                    let _ = endpoint.arm();
                    std::thread::yield_now();
                }
            }
            _ => {}
        }
    }
}

#[test]
fn near() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut far = Far::start(&role, true);
    ip(&format!("link add isthnear type veth peer name isthfar netns {}", far.child.id()));
    set_up(&role, "isthnear", 1);
    far.tell("go");
    let uri = far.hear("uri ");
    let endpoint = open(&role, "isthnear");
    if role == "bare" {
        let text = configured("sealed", "isthnear");
        let substrate = Substrate::from_toml(&text, "test").expect("valid");
        let why = substrate.devices()[0].address().expect_err("no handshake without IP").to_owned();
        assert!(why.contains("no IP address") && why.contains("set tls to off"), "{why}");
    }
    let tcp_before = tcp_segments();
    let connections = LEVELS.map(|level| connect(&endpoint, &uri, level));
    for (level, (connection, handle)) in LEVELS.into_iter().zip(&connections) {
        exchange(&endpoint, *connection, level);
        if level != Level::Uu {
            remote(&endpoint, *connection, handle.as_ref().expect("shown"));
        }
    }
    assert!(tcp_segments() - tcp_before < 200, "some of it went by TCP");
    assert!(endpoint.carriers().iter().all(|by| by == "Ethernet, encrypted"), "{:?}", endpoint.carriers());
    cut_and_mend(&endpoint, connections[2].0);
    kill(&mut far.child);
    lost(&endpoint);
    println!("seen inside");
}

fn connect(endpoint: &Endpoint, uri: &str, level: Level) -> (Connection, Option<MemoryHandle>) {
    endpoint.connect(uri, b"hello", level, 0, &ConnectOptions::default()).expect("asked");
    let mut connected = None;
    let start = Instant::now();
    loop {
        match endpoint.next_event(Some(Duration::from_secs(1))).expect("open") {
            Some(Event::Connected { connection, .. }) => connected = Some(connection),
            Some(Event::Received(message)) if Some(message.connection()) == connected => {
                let handle = (*message).try_into().ok().and_then(MemoryHandle::from_bytes);
                return (message.connection(), handle);
            }
            // Of UU, and late.
            Some(Event::Received(_)) => {}
            // What shows memory may be lost as well; none is needed there.
            None if level == Level::Uu && connected.is_some() => {
                return (connected.expect("connected"), None);
            }
            None => in_time(start.elapsed() < LIMIT, || "no connection"),
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Sends messages of many lengths, and sees them come back.
fn exchange(endpoint: &Endpoint, connection: Connection, level: Level) {
    let most = if level == Level::Uu { SHORT } else { 60_000 };
    let mut expected = 0_u32;
    let start = Instant::now();
    for number in 0..200_u32 {
        let mut message = pattern(4 + number as usize * most / 200, number as u8);
        message[..4].copy_from_slice(&number.to_le_bytes());
        let how = SendOptions { silent: true, ..Default::default() };
        loop {
            endpoint.send(connection, &message, &how).expect("sent");
            // What UU has lost is sent again.
            let limit = if level == Level::Uu { Duration::from_millis(500) } else { LIMIT };
            if await_echo(endpoint, &message, limit) {
                break;
            }
            in_time(level == Level::Uu && start.elapsed() < LIMIT, || format!("message {number} is lost"));
        }
        expected += 1;
    }
    assert_eq!(expected, 200);
}

/// Waits for a message; others are of earlier attempts.
fn await_echo(endpoint: &Endpoint, message: &[u8], limit: Duration) -> bool {
    let start = Instant::now();
    while let Some(left) = limit.checked_sub(start.elapsed()) {
        match endpoint.next_event(Some(left)).expect("open") {
            Some(Event::Received(came)) if *came == *message => return true,
            // An interface that is down is a device that failed.
            Some(Event::Received(_) | Event::DeviceFailed { .. }) | None => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    false
}

fn remote(endpoint: &Endpoint, connection: Connection, theirs: &MemoryHandle) {
    let ours =
        endpoint.register(4 << 20, Access { remote_read: false, remote_write: false }).expect("memory");
    let data = pattern(4 << 20, 9);
    ours.write_at(0, &data).expect("not in use");
    let how = RemoteOptions { blocking: true, ..Default::default() };
    endpoint.write(connection, &ours, 0, theirs, 0, 4 << 20, &how).expect("written");
    ours.write_at(0, &vec![0; 4 << 20]).expect("not in use");
    endpoint.read(connection, &ours, 0, theirs, 0, 4 << 20, &how).expect("read");
    let mut back = vec![0; 4 << 20];
    ours.read_at(0, &mut back).expect("not in use");
    assert!(back == data);
}

/// The cable is pulled out under messages, and put in again.
fn cut_and_mend(endpoint: &Endpoint, connection: Connection) {
    ip("link set isthnear down");
    let message = pattern(50_000, 5);
    let how = SendOptions { silent: true, ..Default::default() };
    endpoint.send(connection, &message, &how).expect("sent");
    assert!(!await_echo(endpoint, &message, Duration::from_millis(300)), "through a cut cable");
    ip("link set isthnear up");
    in_time(await_echo(endpoint, &message, LIMIT), || "it does not come though the cable is mended");
}

fn kill(far: &mut Child) {
    far.kill().expect("it lives");
    far.wait().expect("it ends");
}

/// A peer whose process has ended is told of once for each connection.
fn lost(endpoint: &Endpoint) {
    let start = Instant::now();
    let mut gone = 0;
    while gone < LEVELS.len() {
        in_time(start.elapsed() < LIMIT, || "nobody tells that the peer is gone");
        match endpoint.next_event(Some(Duration::from_secs(1))).expect("open") {
            Some(Event::Disconnected { why, .. }) => {
                assert!(!matches!(why, Failure::TimedOut), "{why:?}");
                gone += 1;
            }
            None | Some(Event::Received(_) | Event::DeviceFailed { .. }) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
}

/// Segments that this namespace's TCP has sent.
fn tcp_segments() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").expect("the system tells");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { panic!("{text}") };
    let mut both = names.zip(values);
    both.find(|(name, _)| *name == "OutSegs").and_then(|(_, value)| value.parse().ok()).expect("a count")
}

#[test]
fn whoever_may_not_is_told_what_to_do() {
    match std::env::var(ROLE).as_deref() {
        Ok("forbidden") => {
            let text = "[device.wire]\ntransport = \"ethernet\"\ninterface = \"lo\"\n";
            let substrate = Substrate::from_toml(text, "test").expect("valid");
            let why = substrate.devices()[0].address().expect_err("down").to_owned();
            assert!(why.contains("CAP_NET_RAW") && why.contains("setcap"), "{why}");
            let opened = Endpoint::create(&substrate.devices()[0], &EndpointOptions::default());
            assert!(opened.is_err_and(|error| error.to_string().contains("CAP_NET_RAW")));
            println!("seen inside");
        }
        Ok(_) => {}
        Err(_) => {
            // A user of its own has no rights in the network that was there before.
            let this = "whoever_may_not_is_told_what_to_do";
            let output = play(&["--user"], "forbidden", this).output().expect("unshare(1) is there");
            let said = String::from_utf8_lossy(&output.stdout);
            let complained = String::from_utf8_lossy(&output.stderr);
            if complained.contains("unshare failed") {
                eprintln!("skipped: {complained}");
                return;
            }
            assert!(output.status.success() && said.contains("seen inside"), "{said}{complained}");
        }
    }
}
