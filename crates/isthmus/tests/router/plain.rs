//! One router between two subnets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use isthmus_wire::Address;
use isthmus_wire::frame::{HOPS_MAX, RefuseReason};

use crate::harness::{
    Endpoint, HANG, NOWHERE, Running, address, bytes_of, dial, exchange, hello, isthmus, refusal,
    socket_from, through,
};
use crate::site::Sites;

#[test]
fn a_lane_passes_one_router_and_counts_it() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(1, 2));
    let mut near = dial(sites.r1[0], hello(from, to));
    let (mut far, said) = target.accept();
    let mut expected = hello(from, to);
    expected.hops = 1;
    assert_eq!(said, expected);
    near.write_all(b"there").expect("taken");
    let mut word = [0; 5];
    far.read_exact(&mut word).expect("bytes");
    assert_eq!(&word, b"there");
    far.write_all(b"back!").expect("taken");
    near.read_exact(&mut word).expect("bytes");
    assert_eq!(&word, b"back!");
    // Half of the lane closes; the other half goes on.
    near.shutdown(Shutdown::Write).expect("closed");
    assert_eq!(far.read(&mut word).expect("the end"), 0);
    far.write_all(b"later").expect("taken");
    near.read_exact(&mut word).expect("bytes");
    assert_eq!(&word, b"later");
    drop(far);
    assert_eq!(near.read(&mut word).expect("the end"), 0);
}

#[test]
fn every_byte_arrives_both_ways_at_once() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let (near, far) = through(sites.r1[0], address(1, 1, NOWHERE), &target, target.address(1, 2));
    exchange(near, far, 64 << 20);
}

#[test]
fn what_a_side_sent_before_it_was_cut_arrives() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let (mut near, mut far) = through(sites.r1[0], address(1, 1, NOWHERE), &target, target.address(1, 2));
    near.write_all(&[7; 100_000]).expect("taken");
    drop(near);
    let mut got = Vec::new();
    far.read_to_end(&mut got).expect("bytes until the end");
    assert_eq!(got, [7; 100_000]);
}

#[test]
fn refusals_say_why() {
    let sites = Sites::new();
    let r1 = sites.world.start(&sites.r1("limits = { lanes = 1 }\n"));
    let target = Endpoint::new();
    let from = address(1, 1, NOWHERE);
    let asked = |hello| refusal(dial(sites.r1[0], hello));

    // 127.0.0.1:9, the discard port, is nobody's here.
    assert_eq!(asked(hello(from, address(1, 2, NOWHERE))), RefuseReason::Absent);
    assert_eq!(asked(hello(from, address(1, 77, NOWHERE))), RefuseReason::NoRoute);
    assert_eq!(asked(hello(from, address(77, 1, NOWHERE))), RefuseReason::NoRoute);
    // The way to AS 2 leads by r2, which does not run.
    assert_eq!(asked(hello(from, address(2, 1, NOWHERE))), RefuseReason::Unreached);
    // Endpoints claim neither another subnet nor another AS.
    let to = target.address(1, 2);
    assert_eq!(asked(hello(address(1, 2, NOWHERE), to)), RefuseReason::Denied);
    assert_eq!(asked(hello(address(2, 1, NOWHERE), to)), RefuseReason::Denied);
    assert_eq!(asked(hello(address(0, 0, NOWHERE), to)), RefuseReason::Denied);
    let mut looping = hello(from, to);
    looping.hops = HOPS_MAX;
    assert_eq!(asked(looping), RefuseReason::Loop);
    let mut newer = hello(from, to);
    newer.version += 1;
    newer.oldest = newer.version;
    assert_eq!(asked(newer), RefuseReason::Version);

    let (near, far) = through(sites.r1[0], from, &target, to);
    assert_eq!(asked(hello(from, to)), RefuseReason::Full);
    exchange(near, far, 1000);
    drop(r1);
}

/// A host that says to be another gets no lane in the other's name.
#[test]
fn a_host_speaks_for_its_own_endpoints_only() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let to = target.address(1, 2);
    let other = address(1, 1, "127.0.0.77:9".parse().expect("an address"));
    assert_eq!(refusal(dial(sites.r1[0], hello(other, to))), RefuseReason::Denied);
    // The log is written by a thread of its own.
    let until = Instant::now() + HANG;
    while !sites.world.log().contains("FI_ISTHMUS_INTERFACE") {
        assert!(Instant::now() < until, "{}", sites.world.log());
    }
    // The other itself is believed.
    let mut near = socket_from(other.locator, sites.r1[0]);
    near.write_all(&bytes_of(hello(other, to))).expect("taken");
    let (far, said) = target.accept();
    assert_eq!(said.source, other);
    exchange(near, far, 1000);
}

#[test]
fn targets_outside_the_allowed_range_are_not_connected_to() {
    let sites = Sites::new();
    let config = sites.r1("");
    let whole = std::fs::read_to_string(&config).expect("the configuration");
    let target = Endpoint::new();
    let to = target.address(1, 2);
    let (port, other) = (to.locator.port(), to.locator.port().wrapping_add(1).max(1));
    let mapped: SocketAddr = format!("[::ffff:127.0.0.1]:{port}").parse().expect("an address");
    let mapped = Address { locator: mapped, ..to };
    for (targets, to, is_inside) in [
        ("10.0.0.0/8".to_owned(), to, false),
        // Of the same host another port, as of a service that is none of ours.
        (format!("127.0.0.0/8:{other}"), to, false),
        (format!("127.0.0.0/8:{port}"), to, true),
        // An IPv4 address is none of IPv6, however it is written.
        (format!("[::/0]:{port}"), mapped, false),
        (format!("127.0.0.0/8:{port}"), mapped, true),
    ] {
        let (first, _) = whole.rsplit_once("targets").expect("of subnet b");
        let text = format!("{first}targets = [\"{targets}\"]\n");
        let _r1 = sites.world.start(&sites.world.write("r1.toml", &text));
        let lane = dial(sites.r1[0], hello(address(1, 1, NOWHERE), to));
        if is_inside {
            target.accept();
        } else {
            assert_eq!(refusal(lane), RefuseReason::Denied, "{targets}");
        }
    }
}

/// Lanes go where the configuration says `plain`, also if it names targets elsewhere.
#[test]
fn a_subnet_without_plain_lanes_gets_none() {
    let sites = Sites::new();
    let whole = std::fs::read_to_string(sites.r1("")).expect("the configuration");
    let (first, b) = whole.rsplit_once("plain = true\n").expect("of subnet b");
    let _r1 = sites.world.start(&sites.world.write("r1.toml", &format!("{first}{b}")));
    let target = Endpoint::new();
    let lane = dial(sites.r1[0], hello(address(1, 1, NOWHERE), target.address(1, 2)));
    assert_eq!(refusal(lane), RefuseReason::Denied);
}

#[test]
fn a_router_that_would_connect_anybody_to_anything_does_not_start() {
    let sites = Sites::new();
    let whole = std::fs::read_to_string(sites.r1("")).expect("the configuration");
    let without = whole.replace("targets = [\"127.0.0.0/8\"]\n", "");
    let config = sites.world.write("r1.toml", &without);
    let done = isthmus().args(["router", "check", "--config"]).arg(&config).output().expect("it runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("targets is missing") && said.contains("10.1.0.0/16:5000-5100"), "{said}");
}

#[test]
fn a_stalled_receiver_holds_bounded_memory_and_nobody_else() {
    let sites = Sites::new();
    let r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(1, 2));
    let (near, far) = through(sites.r1[0], from, &target, to);
    let before = resident(&r1);
    // Nobody reads `far`: what is taken on is what buffers hold, most of them the system's.
    near.set_nonblocking(true).expect("non-blocking");
    let mut accepted = 0;
    let mut patience = 0;
    while patience < 50 {
        match (&near).write(&[1; 65536]) {
            Ok(taken) => (accepted, patience) = (accepted + taken, 0),
            Err(_) => {
                patience += 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        assert!(accepted < 256 << 20, "no end of what the router takes");
    }
    let (other, other_far) = through(sites.r1[0], from, &target, to);
    exchange(other, other_far, 16 << 20);
    assert!(resident(&r1) < before + (16 << 20), "from {before} to {} bytes", resident(&r1));
    // All of it arrives when it is read at last.
    near.shutdown(Shutdown::Write).expect("closed");
    let mut late = Vec::new();
    (&far).read_to_end(&mut late).expect("bytes until the end");
    assert_eq!(late.len(), accepted);
}

fn resident(router: &Running) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", router.child.id())).expect("statm");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("resident pages") * 4096
}

/// However many hosts there are, a router has no more lanes than it is told.
#[test]
fn all_hosts_together_have_so_many_lanes() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1("limits = { lanes = 3, lanes_per_source = 2 }\n"));
    let target = Endpoint::new();
    let to = target.address(1, 2);
    let from = |host: u8| {
        let from = address(1, 1, SocketAddr::from(([127, 0, 0, host], 9)));
        let mut lane = socket_from(from.locator, sites.r1[0]);
        lane.write_all(&bytes_of(hello(from, to))).expect("taken");
        lane
    };
    let _lanes = [77, 77, 78].map(|host| (from(host), target.accept()));
    assert_eq!(refusal(from(79)), RefuseReason::Full);
}

/// One host does not take all lanes of a router from the others.
#[test]
fn a_host_has_its_share_of_the_lanes() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1("limits = { lanes = 100, lanes_per_source = 3 }\n"));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(1, 2));
    let mut lanes: Vec<_> = (0..3).map(|_| through(sites.r1[0], from, &target, to)).collect();
    assert_eq!(refusal(dial(sites.r1[0], hello(from, to))), RefuseReason::Full);
    // What has ended does not count any more.
    lanes.clear();
    let until = Instant::now() + HANG;
    while refusal(dial(sites.r1[0], hello(from, address(1, 77, NOWHERE)))) == RefuseReason::Full {
        assert!(Instant::now() < until, "lanes that have ended still count");
    }
    let (near, far) = through(sites.r1[0], from, &target, to);
    exchange(near, far, 1000);
}
