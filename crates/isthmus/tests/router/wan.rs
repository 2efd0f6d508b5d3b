//! Two sites, two routers or three, and TLS between them.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};
use std::time::{Duration, Instant};

use isthmus_wire::frame::{Hello, RefuseReason};

use crate::harness::{
    Endpoint, HANG, NOWHERE, address, bytes_of, dial, exchange, hello, is_cut, refusal, socket_from, through,
};
use crate::hostile::tell_everything;
use crate::site::Sites;
use crate::support::in_time;

/// A link ends if nothing comes from its other end for this time (`PATIENCE_US` by UDP; `CUT_MS` by TCP, of data that
/// nobody acknowledges).
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// Each of these by TCP links and by UDP links.
macro_rules! by_each_transport {
    ($($test:ident)*) => {
        mod tcp {
            $(#[test]
            fn $test() {
                super::$test("tcp");
            })*
        }
        mod udp {
            $(#[test]
            fn $test() {
                super::$test("udp");
            })*
        }
    };
}

by_each_transport! {
    a_lane_passes_from_site_to_site_byte_for_byte
    a_lane_passes_three_routers_in_either_direction
    halves_of_a_lane_close_apart_across_a_link
    refusals_come_from_the_far_router_too
    a_neighbour_speaks_for_no_other_as
    a_stranger_with_the_right_name_is_refused
    an_as_that_is_not_admitted_gets_no_link
    only_gateways_that_the_map_names_get_a_link
    a_stalled_lane_leaves_the_others_of_its_link_alone
    links_without_room_refuse_and_stay_up
    links_come_back_when_the_other_router_does
    links_to_a_router_that_hangs_are_not_used_until_it_is_back
    links_keep_to_the_rate_that_their_subnet_is_limited_to
}

fn links_keep_to_the_rate_that_their_subnet_is_limited_to(links: &'static str) {
    const BYTES: usize = 4 << 20;
    let sites = Sites::linked_by(links);
    let limited = |path: std::path::PathBuf, name: &str| {
        let text = std::fs::read_to_string(path).expect("written before");
        sites.world.write(name, &text.replace("[subnet.wan]", "[subnet.wan]\nrate_limit = \"20Mbit\""))
    };
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let _s1 = sites.world.start(&limited(sites.s1(""), "s1.toml"));
    let _r2 = sites.world.start(&limited(sites.r2("one", ""), "r2.toml"));
    let target = Endpoint::new();
    // Two lanes, on links of their own by TCP.
    let start = Instant::now();
    let lanes = [(); 2].map(|()| through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1)));
    let exchanges = lanes.map(|(near, far)| std::thread::spawn(move || exchange(near, far, BYTES)));
    exchanges.into_iter().for_each(|exchange| exchange.join().expect("the bytes that were sent"));
    let least = Duration::from_secs_f64(2.0 * BYTES as f64 * 8.0 / 20e6 * 0.95);
    assert!(start.elapsed() >= least, "{:?} for what takes {least:?} and more", start.elapsed());
}

fn a_lane_passes_from_site_to_site_byte_for_byte(links: &'static str) {
    let sites = Sites::linked_by(links);
    let _routers = sites.joined();
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let near = dial(sites.r2[0], hello(from, to));
    let (far, said) = target.accept();
    assert_eq!((said.source, said.target, said.hops), (from, to, 2));
    exchange(near, far, 64 << 20);
}

fn a_lane_passes_three_routers_in_either_direction(links: &'static str) {
    let sites = Sites::linked_by(links);
    let _routers = sites.joined();
    let _r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    // From subnet b, by r1 and r2, to the other site.
    let near = dial(sites.r1[1], hello(address(1, 2, NOWHERE), target.address(2, 1)));
    let (far, said) = target.accept();
    assert_eq!(said.hops, 3);
    exchange(near, far, 1 << 20);
    // And from there to subnet b.
    let near = dial(sites.s1[0], hello(address(2, 1, NOWHERE), target.address(1, 2)));
    let (far, said) = target.accept();
    assert_eq!(said.hops, 3);
    exchange(near, far, 1 << 20);
}

fn halves_of_a_lane_close_apart_across_a_link(links: &'static str) {
    let sites = Sites::linked_by(links);
    let _routers = sites.joined();
    let target = Endpoint::new();
    let (mut near, mut far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    near.shutdown(Shutdown::Write).expect("closed");
    let mut word = [0; 5];
    assert_eq!(far.read(&mut word).expect("the end"), 0);
    far.write_all(b"later").expect("taken");
    near.read_exact(&mut word).expect("bytes");
    drop(far);
    assert_eq!(near.read(&mut word).expect("the end"), 0);
}

fn refusals_come_from_the_far_router_too(links: &'static str) {
    let sites = Sites::linked_by(links);
    let _routers = sites.joined();
    let asked = |to| refusal(dial(sites.r2[0], hello(address(1, 1, NOWHERE), to)));
    assert_eq!(asked(address(2, 1, NOWHERE)), RefuseReason::Absent);
    assert_eq!(asked(address(2, 77, NOWHERE)), RefuseReason::NoRoute);
    // The map knows AS 3, but nobody who is admitted speaks for it.
    assert_eq!(asked(address(3, 1, NOWHERE)), RefuseReason::Denied);
}

fn a_neighbour_speaks_for_no_other_as(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    // No neighbour speaks for a router's own AS, whatever the configuration says.
    let _s1 = sites.world.start(&sites.s1("carries = { 1 = [2] }\n"));
    let _r2 = sites.world.start(&sites.r2("one", ""));
    // Who stands where r1 would is believed to pass on lanes of other AS's.
    let target = Endpoint::new();
    let speak = |as_id| {
        let mut lane = socket_from(sites.r1[0], sites.r2[0]);
        lane.write_all(&bytes_of(hello(address(as_id, 1, NOWHERE), target.address(2, 1)))).expect("taken");
        lane
    };
    assert_eq!(refusal(speak(3)), RefuseReason::Denied);
    assert_eq!(refusal(speak(2)), RefuseReason::Denied);
    let (_near, (_far, said)) = (speak(1), target.accept());
    assert_eq!(said.source.as_id.0, 1);
}

fn a_stranger_with_the_right_name_is_refused(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    // The name is AS 1's, but another authority signed it.
    sites.world.keygen(1, "false");
    let _s1 = sites.world.start(&sites.s1(""));
    let _r2 = sites.world.start(&sites.r2("false", ""));
    let target = Endpoint::new();
    let lane = dial(sites.r2[0], hello(address(1, 1, NOWHERE), target.address(2, 1)));
    assert_eq!(refusal(lane), RefuseReason::Unreached);
    assert!(sites.world.log().contains("no link"), "{}", sites.world.log());
}

#[test]
fn a_certificate_of_another_as_does_not_start_a_router() {
    let sites = Sites::new();
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let checked =
        crate::harness::isthmus().args(["router", "check", "--config"]).arg(sites.r2("two", "")).output();
    let checked = checked.expect("isthmus starts");
    assert_eq!(checked.status.code(), Some(2));
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("the certificate names AS 2, but this is AS 1"), "{said}");
}

/// One neighbour does not take all lanes of a router from the others.
#[test]
fn a_neighbour_has_its_share_of_the_lanes() {
    let sites = Sites::linked_by("tcp");
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let _s1 = sites.world.start(&sites.s1("limits = { lanes = 100, lanes_per_source = 2 }\n"));
    let _r2 = sites.world.start(&sites.r2("one", ""));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let _lanes = [(); 2].map(|()| through(sites.r2[0], from, &target, to));
    assert_eq!(refusal(dial(sites.r2[0], hello(from, to))), RefuseReason::Full);
}

/// A neighbour that dials without end gets 64 links. Its certificate tells whose they are.
#[test]
fn a_neighbour_has_its_share_of_the_links() {
    let sites = Sites::linked_by("auto");
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let _s1 = sites.world.start(&sites.s1("limits = { links = 1 }\n"));
    // By TCP as many as a neighbour may have, and one by UDP.
    let _r2 = sites.world.start(&sites.r2("one", "limits = { links = 64 }\n"));
    let until = Instant::now() + HANG;
    while !sites.world.log().contains("this AS has 64 already") {
        assert!(Instant::now() < until, "{}", sites.world.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A router with a certificate of the other AS, at an address that the map does not name, brings no lanes and gets none.
fn only_gateways_that_the_map_names_get_a_link(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let r2 = sites.world.start(&sites.r2("one", ""));
    let map = std::fs::read_to_string(sites.world.folder.path().join("two.toml")).expect("text");
    let (own, campus) = (sites.world.address(41), sites.world.address(42));
    let elsewhere = |text: &str| {
        text.replace(&sites.s1[1].to_string(), &own.to_string())
            .replace(&sites.s1[0].to_string(), &campus.to_string())
    };
    sites.world.write("two.toml", &elsewhere(&map));
    let _other = sites.world.start(&sites.s1(""));
    let until = Instant::now() + HANG;
    while !sites.world.log().contains("the map names other gateways of this AS") {
        assert!(Instant::now() < until, "{}", sites.world.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let target = Endpoint::new();
    let asked = || dial(sites.r2[0], hello(address(1, 1, NOWHERE), target.address(2, 1)));
    assert_eq!(refusal(asked()), RefuseReason::Unreached);
    let back = dial(campus, hello(address(2, 1, NOWHERE), target.address(1, 1)));
    assert_eq!(refusal(back), RefuseReason::Unreached);
    // As soon as the map names it, it is one.
    let map = std::fs::read_to_string(sites.world.folder.path().join("one.toml")).expect("text");
    sites.world.write("one.toml", &elsewhere(&map));
    r2.signal("-HUP");
    assert_eq!(r2.notice(), "STATUS=configuration read again");
    passes_again(&sites, &target, hello(address(1, 1, NOWHERE), target.address(2, 1)));
    // And when the map names it no more, the links end.
    let target = Endpoint::new();
    let (near, _far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    sites.world.write("one.toml", &map);
    r2.signal("-HUP");
    assert_eq!(r2.notice(), "STATUS=configuration read again");
    is_cut(near);
}

fn an_as_that_is_not_admitted_gets_no_link(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let config = sites.s1("");
    let text = std::fs::read_to_string(&config).expect("text").replace("admits = [1]", "admits = []");
    let _s1 = sites.world.start(&sites.world.write("s1.toml", &text));
    let _r2 = sites.world.start(&sites.r2("one", ""));
    let target = Endpoint::new();
    let lane = dial(sites.r2[0], hello(address(1, 1, NOWHERE), target.address(2, 1)));
    assert_eq!(refusal(lane), RefuseReason::Unreached);
}

#[test]
fn a_link_port_takes_any_bytes_and_works_on() {
    let sites = Sites::linked_by("tcp");
    let _routers = sites.joined();
    tell_everything(sites.s1[1], &bytes_of(hello(address(1, 1, NOWHERE), address(2, 1, NOWHERE))));
    let target = Endpoint::new();
    let (near, far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    exchange(near, far, 1000);
}

#[test]
fn a_link_port_takes_any_datagrams_and_works_on() {
    let sites = Sites::linked_by("udp");
    let _routers = sites.joined();
    let socket = UdpSocket::bind((sites.r1[0].ip(), 0)).expect("a port");
    // Packets that open streams, that belong to none, that are cut short, and that are nothing.
    let mut state = 1_u64;
    for len in (0..2_000).map(|i| [0, 1, 8, 20, 60, 1_200, 1_472, 9_000, 65_000][i % 9]) {
        let mut bytes = vec![0; len];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        if let Some(first) = bytes.first_mut() {
            *first &= 7;
        }
        // Where the socket's buffer is full it is dropped, as on any network.
        let _ = socket.send_to(&bytes, sites.s1[1]);
    }
    let target = Endpoint::new();
    let (near, far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    exchange(near, far, 1 << 20);
}

fn a_stalled_lane_leaves_the_others_of_its_link_alone(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let limits = "limits = { memory = \"256MiB\" }\n";
    let _s1 = sites.world.start(&sites.s1(limits));
    let _r2 = sites.world.start(&sites.r2("one", limits));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    // As many as are on every link at least twice.
    let stalled: Vec<_> = (0..16).map(|_| through(sites.r2[0], from, &target, to)).collect();
    let mut accepted = 0;
    for (near, _) in &stalled {
        near.set_nonblocking(true).expect("non-blocking");
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(100) {
            match (&mut &*near).write(&[1; 65536]) {
                Ok(taken) => (accepted, last) = (accepted + taken, Instant::now()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(accepted < 1 << 30, "no end of what the routers take");
        }
    }
    let (near, far) = through(sites.r2[0], from, &target, to);
    exchange(near, far, 16 << 20);
}

fn links_without_room_refuse_and_stay_up(links: &'static str) {
    let sites = Sites::linked_by(links);
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    // So little memory that a link has room for four lanes from each side only.
    let little = "limits = { memory = \"1MiB\", links = 1 }\n";
    let _s1 = sites.world.start(&sites.s1(little));
    let _r2 = sites.world.start(&sites.r2("one", little));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let mut lanes = Vec::new();
    // One link dialled by each side.
    while lanes.len() < 4 {
        lanes.push(through(sites.r2[0], from, &target, to));
    }
    let refused = (0..8).find_map(|_| {
        target.0.set_nonblocking(true).expect("non-blocking");
        let lane = dial(sites.r2[0], hello(from, to));
        let mut first = [0; 1];
        lane.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
        match lane.peek(&mut first) {
            Ok(_) => Some(refusal(lane)),
            Err(_) => {
                lanes.push((lane, target.0.accept().expect("a lane").0));
                None
            }
        }
    });
    assert_eq!(refused, Some(RefuseReason::Full));
    let (near, far) = lanes.swap_remove(0);
    exchange(near, far, 1 << 20);
}

fn links_come_back_when_the_other_router_does(links: &'static str) {
    let sites = Sites::linked_by(links);
    let (r2, s1) = sites.joined();
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let (near, _far) = through(sites.r2[0], from, &target, to);
    drop(s1);
    // The lane was cut, and its endpoint hears of it.
    is_cut(near);
    let _s1 = sites.world.start(&sites.s1(""));
    passes_again(&sites, &target, hello(from, to));
    drop(r2);
}

/// Asks r2 for lanes until one reaches its target.
fn passes_again(sites: &Sites, target: &Endpoint, hello: Hello) {
    let began = Instant::now();
    target.0.set_nonblocking(true).expect("non-blocking");
    loop {
        let lane = dial(sites.r2[0], hello);
        // A refusal comes in time; without one it is the target that hears of the lane.
        lane.set_nonblocking(true).expect("non-blocking");
        for _ in 0..500 {
            if target.0.accept().is_ok() {
                return;
            }
            if (&lane).read(&mut [0; 8]).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(began.elapsed() < HANG, "{}", sites.world.log());
    }
}

fn links_to_a_router_that_hangs_are_not_used_until_it_is_back(links: &'static str) {
    let sites = Sites::linked_by(links);
    let (_r2, s1) = sites.joined();
    let began = Instant::now();
    loop {
        // A fresh one: lanes that were dialled while the router hung may still come to the one before.
        let target = Endpoint::new();
        let hello = hello(address(1, 1, NOWHERE), target.address(2, 1));
        let (near, far) = through(sites.r2[0], hello.source, &target, hello.target);
        let stopped = Instant::now();
        s1.signal("-STOP");
        let refused = first_refused(&sites, hello);
        s1.signal("-CONT");
        // On a busy machine the router may have hung for longer, and then the lane has rightly ended.
        if stopped.elapsed() < LINK_PATIENCE {
            assert_eq!(refused, Some(RefuseReason::Unreached));
            exchange(near, far, 1 << 20);
            return passes_again(&sites, &target, hello);
        }
        in_time(began.elapsed() < 2 * HANG, || "no answer while the router hangs");
        passes_again(&sites, &target, hello);
    }
}

/// Asks r2 for lanes until one is answered, while s1 hangs. `None` if the link is given up first, and this lane with it.
fn first_refused(sites: &Sites, hello: Hello) -> Option<RefuseReason> {
    // Until its silence is noticed lanes are opened that nobody answers; then links are waited for in vain for some
    // seconds.
    std::thread::sleep(Duration::from_millis(2500));
    let began = Instant::now();
    loop {
        let lane = dial(sites.r2[0], hello);
        lane.set_read_timeout(Some(Duration::from_secs(15))).expect("a time-out");
        match lane.peek(&mut [0]) {
            Ok(0) => return None,
            Ok(_) => return Some(refusal(lane)),
            Err(_) => in_time(began.elapsed() < HANG, || sites.world.log()),
        }
    }
}
