//! The flow labels of lanes' packets, and the fireflies that announce lanes, in a network namespace of the test's own.

#![allow(clippy::unusual_byte_groupings, reason = "groups are the fields of a flow label")]

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, Settings, Transport};
use socket2::{Domain, Protocol, Socket, Type};
use support::*;

/// Set in the process within the namespace.
const ROLE: &str = "ISTHMUS_TEST_ROLE";
/// Two addresses of the namespace's loopback. An endpoint takes another address for another host.
const HOSTS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];
/// The label of experiment 2 and activity 15: the experiment's lowest bit comes first.
const LABEL: u32 = 0b00_010000000_0_001111_00;
/// Its free bits.
const FREE: u32 = 0b11_000000000_1_000000_11;
/// Protocol numbers of IPv6.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A socket that receives every IPv6 packet of the namespace, from its IPv6 header on.
struct Capture(Socket);

impl Capture {
    fn open() -> Self {
        let all = i32::from((libc::ETH_P_IPV6 as u16).to_be());
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all))).expect("root here");
        socket.set_nonblocking(true).expect("a socket");
        // What does not fit is not looked at.
        let _ = socket.set_recv_buffer_size(8 << 20);
        Self(socket)
    }

    /// The labels of the packets from each host, between ports above those of fireflies, and how many had each.
    fn labels(&mut self, protocol: u8, but: u16) -> BTreeMap<(Ipv6Addr, u32), usize> {
        let mut found = BTreeMap::new();
        let mut packet = [0; 1 << 16];
        while let Ok(len) = (&self.0).read(&mut packet) {
            let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("4 bytes"));
            let source = Ipv6Addr::from(<[u8; 16]>::try_from(&packet[8..24]).expect("16 bytes"));
            let to_port = u16::from_be_bytes([packet[42], packet[43]]);
            if len > 44 && packet[6] == protocol && to_port != but {
                *found.entry((source, word(0) & 0xf_ffff)).or_default() += 1;
            }
        }
        found
    }
}

fn open(at: usize, transport: Transport, toml: &str) -> Arc<Endpoint> {
    let given = Settings::from_toml(&format!("[device]\n{toml}"), "test").expect("valid");
    let linger = "10s".parse().expect("a time");
    let settings = Settings {
        transport,
        interface: HOSTS[at].to_string(),
        linger,
        scitag: given.scitag,
        firefly: given.firefly,
        ..settings()
    };
    Endpoint::open(&settings, None, Arc::default()).expect("the address is there")
}

/// Messages in both directions on lanes that the first endpoint dials.
fn talk(a: &Endpoint, b: &Endpoint) {
    let to_b = a.peer(&b.address()).expect("same subnet");
    let (mut sent, mut got) = (pattern(1 << 20, 3), vec![0; 1 << 20]);
    recv(b, None, 1, &mut got);
    send(a, to_b, 1, &mut sent);
    complete(&[a, b], 2);
    let to_a = b.peer(&a.address()).expect("same subnet");
    recv(a, None, 2, &mut got);
    send(b, to_a, 2, &mut sent);
    complete(&[a, b], 2);
}

/// The packets of a host, and those of them that have the tag.
fn tagged(labels: &BTreeMap<(Ipv6Addr, u32), usize>, host: Ipv6Addr) -> (usize, usize) {
    let of = labels.iter().filter(|((source, _), _)| *source == host);
    let all = of.clone().map(|(_, count)| count).sum();
    (all, of.filter(|((_, label), _)| label & !FREE == LABEL).map(|(_, count)| count).sum())
}

/// Waits for fireflies until there is one with this state; returns all.
fn fireflies(collector: &UdpSocket, last: &str) -> Vec<serde_json::Value> {
    let start = Instant::now();
    let mut came = Vec::new();
    collector.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
    loop {
        in_time(start.elapsed() < LIMIT, || format!("no firefly with {last}: {came:?}"));
        let mut packet = [0; 2_000];
        let Ok(len) = collector.recv(&mut packet) else { continue };
        let text = String::from_utf8_lossy(&packet[..len]).into_owned();
        assert!(text.starts_with("<134>1 ") && text.contains(" isthmus - firefly-json - {"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&text[text.find('{').expect("an object")..]).expect("JSON");
        let is_last = json["flow-lifecycle"]["state"] == last;
        came.push(json);
        if is_last {
            return came;
        }
    }
}

fn a_tag_is_in_the_labels_and_announced(transport: Transport, protocol: u8) {
    let collector = UdpSocket::bind((HOSTS[0], 0)).expect("an address");
    let at = collector.local_addr().expect("bound");
    let mut capture = Capture::open();
    let plain = [open(0, transport, ""), open(1, transport, "")];
    talk(&plain[0], &plain[1]);
    plain.iter().for_each(|endpoint| endpoint.close());
    let (all, marked) = tagged(&capture.labels(protocol, at.port()), HOSTS[0]);
    assert!(all > 5 && marked < all, "without a tag: {marked} of {all}");

    let a = open(0, transport, &format!("scitag = \"2.15\"\nfirefly = \"{at}\"\n"));
    let b = open(1, transport, "scitag = \"2.15\"\n");
    talk(&a, &b);
    let started = fireflies(&collector, "start");
    a.close();
    b.close();
    let labels = capture.labels(protocol, at.port());
    for host in HOSTS {
        let (all, marked) = tagged(&labels, host);
        assert!(all > 5 && marked == all, "from {host} {marked} of {all} packets are tagged: {labels:?}");
    }
    let ended = fireflies(&collector, "end");
    check(&started[0], &a, &b, protocol);
    assert!(ended.last().expect("one").pointer("/flow-lifecycle/end-time").is_some());
    let sent = ended.last().and_then(|end| end.pointer("/usage/sent")).and_then(serde_json::Value::as_u64);
    assert!(sent.is_some_and(|sent| sent > 0), "{ended:?}");
}

/// The start of a flow from `a` to `b`.
fn check(start: &serde_json::Value, a: &Endpoint, b: &Endpoint, protocol: u8) {
    let id = &start["flow-id"];
    assert_eq!(id["protocol"], if protocol == TCP { "tcp" } else { "udp" });
    assert_eq!((&id["afi"], &id["src-ip"]), (&"ipv6".into(), &HOSTS[0].to_string().into()));
    let address = |endpoint: &Endpoint| -> SocketAddr { endpoint.address().locator };
    assert_eq!(id["dst-ip"], address(b).ip().to_string());
    if protocol == UDP {
        let ports = (address(a).port(), address(b).port());
        assert_eq!((&id["src-port"], &id["dst-port"]), (&ports.0.into(), &ports.1.into()));
    }
    let context = &start["context"];
    assert_eq!((&context["experiment-id"], &context["activity-id"]), (&2.into(), &15.into()));
}

fn within(command: &str) {
    let done = Command::new("sh").args(["-ec", command]).status().expect("sh is there");
    assert!(done.success(), "{command}");
}

/// Makes the kernel demand leases of labels in this namespace, while the socket is open: somebody has one for himself.
fn demand_leases() -> UdpSocket {
    /// `IPV6_FLOWLABEL_MGR` of `linux/in6.h`.
    const FLOW_LABEL_MANAGER: libc::c_int = 32;
    // `struct in6_flowlabel_req`: destination, label, action "get", share "exclusive", flag "create", expiry, linger.
    let mut request = [0_u8; 32];
    request[..16].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
    request[16..20].copy_from_slice(&0x777_u32.to_be_bytes());
    request[21] = 1;
    request[22..24].copy_from_slice(&1_u16.to_ne_bytes());
    request[26..28].copy_from_slice(&6_u16.to_ne_bytes());
    let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).expect("loopback");
    // SAFETY: the buffer has the length that is given, and the kernel only reads it.
    let status = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        libc::setsockopt(fd, libc::IPPROTO_IPV6, FLOW_LABEL_MANAGER, request.as_ptr().cast(), 32)
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Runs in the namespace.
#[test]
fn inside() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    within("ip link set lo up");
    for host in HOSTS {
        within(&format!("ip -6 address add {host}/128 dev lo nodad"));
    }
    // Linux lets the end that accepts a TCP connection answer with the label only then.
    within("echo 0 > /proc/sys/net/ipv6/flowlabel_consistency");
    a_tag_is_in_the_labels_and_announced(Transport::Tcp, TCP);
    a_tag_is_in_the_labels_and_announced(Transport::UdpEverywhere, UDP);
    let holder = demand_leases();
    a_tag_is_in_the_labels_and_announced(Transport::Tcp, TCP);
    a_tag_is_in_the_labels_and_announced(Transport::UdpEverywhere, UDP);
    drop(holder);
    println!("seen inside");
}

#[test]
fn packets_have_the_tag_and_fireflies_announce_it() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let ways: [&[&str]; 2] = [&["--user", "--map-root-user", "--net"], &["--net"]];
    let works = |way: &&&[&str]| {
        let tried = Command::new("unshare").args(**way).args(["ip", "link", "set", "lo", "up"]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        eprintln!("skipped: no network namespaces, or no ip(8), for this user");
        return;
    };
    let this = std::env::current_exe().expect("this program");
    let output = Command::new("unshare")
        .args(*way)
        .arg(this)
        .args(["inside", "--exact", "--nocapture"])
        .env(ROLE, "inside")
        .env_remove("ISTHMUS_CONFIG")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("seen inside"), "{said}{complained}");
}
