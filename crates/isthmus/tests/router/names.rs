//! Names that a router keeps, for its own site's processes and for those of another.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use isthmus_wire::Address;
use isthmus_wire::frame::{Hello, RefuseReason};
use isthmus_wire::rendezvous::{ANSWER_HEAD, Answer, Request};

use crate::harness::{HANG, NOWHERE, address, bytes_of, dial, hello, refusal, socket_from};
use crate::site::Sites;

fn ask(router: SocketAddr, from: Address, target: Address, request: &Request) -> TcpStream {
    let mut lane = dial(router, hello(from, target));
    lane.write_all(&request.encode().expect("short")).expect("taken");
    lane
}

fn answer(lane: &mut TcpStream) -> (Answer, String) {
    lane.set_read_timeout(Some(HANG)).expect("a time-out");
    let mut head = [0; ANSWER_HEAD];
    lane.read_exact(&mut head).expect("an answer");
    let (answer, len) = Answer::decode(head).expect("an answer of a router");
    let mut text = vec![0; len];
    lane.read_exact(&mut text).expect("its text");
    (answer, String::from_utf8(text).expect("a text"))
}

fn publish(name: &str, text: &str) -> Request {
    Request::Publish { name: name.to_owned(), text: text.to_owned() }
}

fn look_up(name: &str, wait_s: u16) -> Request {
    Request::LookUp { name: name.to_owned(), wait_s }
}

fn ends_in_absence(router: SocketAddr, from: Address, target: Address, name: &str) {
    let until = Instant::now() + HANG;
    while answer(&mut ask(router, from, target, &look_up(name, 0))).0 != Answer::Absent {
        assert!(Instant::now() < until, "the name remains");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_name_lasts_as_long_as_the_lane_that_published_it() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let router = sites.r1[0];
    let (at, one) = (address(1, 1, router), address(1, 1, NOWHERE));
    let two = Address { incarnation: 8, ..one };
    // Who looks first waits.
    let mut waits = ask(router, two, at, &look_up("run", 60));
    let mut lane = ask(router, one, at, &publish("run", "port 1"));
    assert_eq!(answer(&mut lane), (Answer::Published, String::new()));
    assert_eq!(answer(&mut waits), (Answer::Found, "port 1".to_owned()));
    assert_eq!(answer(&mut ask(router, two, at, &publish("run", "port 2"))).0, Answer::Taken);
    assert_eq!(answer(&mut ask(router, two, at, &look_up("other", 0))).0, Answer::Absent);
    // From the router's other subnet.
    let b = address(1, 2, NOWHERE);
    assert_eq!(answer(&mut ask(sites.r1[1], b, at, &look_up("run", 0))).1, "port 1");
    drop(lane);
    ends_in_absence(router, two, at, "run");
    let mut lane = ask(router, two, at, &publish("run", "port 2"));
    assert_eq!(answer(&mut lane).0, Answer::Published);
}

#[test]
fn names_are_found_from_another_site_and_published_by_their_own_only() {
    let sites = Sites::new();
    let _routers = sites.joined();
    let at = address(1, 1, sites.r2[0]);
    let (here, there) = (address(1, 1, NOWHERE), address(2, 1, NOWHERE));
    let mut lane = ask(sites.r2[0], here, at, &publish("run", "a port"));
    assert_eq!(answer(&mut lane).0, Answer::Published);
    let by = sites.s1[0];
    assert_eq!(answer(&mut ask(by, there, at, &look_up("run", 30))), (Answer::Found, "a port".to_owned()));
    assert_eq!(answer(&mut ask(by, there, at, &publish("mine", "a port"))).0, Answer::Denied);
    // Who says to be of the other site is not believed.
    let liar = ask(by, here, at, &publish("mine", "a port"));
    assert_eq!(refusal(liar), RefuseReason::Denied);
    drop(lane);
    ends_in_absence(by, there, at, "run");
}

#[test]
fn the_substrates_programs_publish_and_look_up() {
    use isthmus_substrate::Error;
    use isthmus_substrate::rendezvous;
    let sites = Sites::new();
    // A process without settings is of AS 0, subnet 0, and reaches what is on no other.
    let place = format!("isthmus://0.0/{}", sites.world.address(41));
    let error = rendezvous::publish(&place, "run", "a port").expect_err("nobody is there");
    assert!(matches!(&error, Error::Unreachable(text) if text.contains("cannot be asked")), "{error}");
    let error = rendezvous::look_up("somewhere", "run", Duration::ZERO).expect_err("no address");
    assert!(matches!(error, Error::Uri(_)), "{error}");
    let error = rendezvous::look_up(&place, "a/b", Duration::ZERO).expect_err("no name");
    assert!(matches!(error, Error::Value(_)), "{error}");
    let error = rendezvous::look_up("isthmus://7.1/10.0.0.1:1", "run", Duration::ZERO).expect_err("far away");
    assert!(error.to_string().contains("FI_ISTHMUS_ROUTERS"), "{error}");
}

#[test]
fn what_is_no_request_is_told_so_and_costs_nothing() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let (router, at) = (sites.r1[0], address(1, 1, sites.r1[0]));
    let good = publish("run", "a port").encode().expect("short");
    for place in 0..good.len() {
        let mut bytes = bytes_of(hello(address(1, 1, NOWHERE), at));
        bytes.extend_from_slice(&good[..place]);
        bytes.extend_from_slice(&[0xff; 8]);
        let mut lane = TcpStream::connect(router).expect("the router answers");
        let _ = lane.write_all(&bytes);
        let _ = lane.shutdown(Shutdown::Write);
        lane.set_read_timeout(Some(HANG)).expect("a time-out");
        let mut answer = Vec::new();
        let _ = lane.read_to_end(&mut answer);
        assert!(answer.len() <= ANSWER_HEAD, "{answer:?}");
    }
    ends_in_absence(router, address(1, 1, NOWHERE), at, "run");
}

/// Who looks up names that nobody publishes holds lanes for seconds only, and not all that there may be.
#[test]
fn look_ups_wait_for_seconds_and_so_many_of_one_host() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let (router, at, from) = (sites.r1[0], address(1, 1, sites.r1[0]), address(1, 1, NOWHERE));
    let start = Instant::now();
    let mut waiting: Vec<_> = (0..64).map(|_| ask(router, from, at, &look_up("nothing", 3600))).collect();
    // Until the last of them waits, there is room for one more.
    let until = Instant::now() + HANG;
    while answer(&mut ask(router, from, at, &look_up("nothing", 0))).0 != Answer::Full {
        assert!(Instant::now() < until, "as many as one likes");
    }
    for lane in &mut waiting {
        assert_eq!(answer(lane).0, Answer::Absent);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let mut lane = ask(router, from, at, &publish("run", "there"));
    assert_eq!(answer(&mut lane).0, Answer::Published);
    assert_eq!(answer(&mut ask(router, from, at, &look_up("run", 1))).0, Answer::Found);
}

/// A lane to another AS that says this router's address is passed on, and not served here.
#[test]
fn names_are_kept_for_lanes_to_the_routers_own_as() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let lane = ask(sites.r1[0], address(1, 1, NOWHERE), address(2, 1, sites.r1[0]), &look_up("run", 0));
    // The way to AS 2 leads by r2, which does not run.
    assert_eq!(refusal(lane), RefuseReason::Unreached);
}

/// A host that publishes without end leaves room for the names of others.
#[test]
fn a_host_has_its_share_of_the_names() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let (router, at, from) = (sites.r1[0], address(1, 1, sites.r1[0]), address(1, 1, NOWHERE));
    let lanes: Vec<_> = (0..128)
        .map(|number| {
            let mut lane = ask(router, from, at, &publish(&format!("run{number}"), "a port"));
            assert_eq!(answer(&mut lane).0, Answer::Published);
            lane
        })
        .collect();
    assert_eq!(answer(&mut ask(router, from, at, &publish("more", "a port"))).0, Answer::Full);
    let other = address(1, 1, "127.0.0.77:9".parse().expect("an address"));
    let mut lane = socket_from(other.locator, router);
    lane.write_all(&bytes_of(hello(other, at))).expect("taken");
    lane.write_all(&publish("more", "a port").encode().expect("short")).expect("taken");
    assert_eq!(answer(&mut lane).0, Answer::Published);
    drop(lanes);
}

/// Somebody on the publisher's host who knows the endpoint that published has not the name.
#[test]
fn a_name_is_not_taken_over_by_who_knows_whose_it_is() {
    let sites = Sites::new();
    let _r1 = sites.world.start(&sites.r1(""));
    let (router, at, from) = (sites.r1[0], address(1, 1, sites.r1[0]), address(1, 1, NOWHERE));
    let publish_as = |secret, text: &str| {
        let mut lane = dial(router, Hello { credit: secret, ..hello(from, at) });
        lane.write_all(&publish("run", text).encode().expect("short")).expect("taken");
        let answer = answer(&mut lane).0;
        (lane, answer)
    };
    let (_lane, published) = publish_as(7, "the owner's");
    assert_eq!(published, Answer::Published);
    assert_eq!(publish_as(8, "a thief's").1, Answer::Taken);
    assert_eq!(answer(&mut ask(router, from, at, &look_up("run", 1))).1, "the owner's");
    let (_lane, again) = publish_as(7, "the owner's second");
    assert_eq!(again, Answer::Published);
}
