//! One endpoint on several devices: peers of either side reach it, and it reaches them by the
//! device that leads there.

mod support;

use isthmus_substrate::{
    Access, Connection, Device, Endpoint, EndpointOptions, Error, Event, Failure, Level, MemoryHandle,
    RemoteOptions, SendOptions, Substrate,
};
use support::*;

const LEVELS: [Level; 3] = [Level::Uu, Level::Ru, Level::Ro];
/// Two subnets that end at this host; a third, which only `wan` has a router to.
const BOTH: &str = "[device]\ninterface = \"127.0.0.1\"\nas_id = 3\nlinger = \"30s\"\n\
    [device.site]\nsubnet = 1\npriority = 40\n\
    [device.wan]\nsubnet = 2\npriority = 60\n";

fn configured(text: &str) -> Substrate {
    Substrate::from_toml(text, "test").expect("valid")
}

fn open_on(substrate: &Substrate, names: &str) -> Endpoint {
    let devices = substrate.devices_named(names).expect("configured");
    Endpoint::create_on(&devices, &EndpointOptions::default()).expect("loopback is always there")
}

fn names(endpoint: &Endpoint) -> Vec<&str> {
    endpoint.devices().map(Device::name).collect()
}

/// Sends a message each way.
fn exchange(a: &Endpoint, to_b: Connection, b: &Endpoint, to_a: Connection) {
    let silent = SendOptions { silent: true, ..Default::default() };
    a.send(to_b, b"there", &silent).expect("sent");
    assert_eq!(&*receive(b, a), b"there");
    b.send(to_a, b"and back", &silent).expect("sent");
    assert_eq!(&*receive(a, b), b"and back");
}

#[test]
fn one_endpoint_serves_both_sides_by_one_address() {
    let substrate = configured(BOTH);
    let hub = open_on(&substrate, "site,wan");
    assert_eq!(names(&hub), ["wan", "site"], "those of more priority come first");
    let uri = hub.uri();
    assert_eq!(uri.split(',').count(), 2, "{uri}");
    for (side, spoke) in ["site", "wan"].map(|side| (side, open_on(&substrate, side))) {
        for level in LEVELS {
            // Whoever asks, and by whichever name: there is one way, and it is taken.
            let (to_hub, to_spoke) = connect(&spoke, &hub, level);
            assert_eq!(hub.device_of(to_spoke).expect("open").name(), side);
            assert!(uri.split(',').any(|one| Ok(one.to_owned()) == spoke.peer_uri(to_hub)));
            exchange(&spoke, to_hub, &hub, to_spoke);
            let (to_spoke, to_hub) = connect(&hub, &spoke, level);
            assert_eq!(hub.device_of(to_spoke).expect("open").name(), side);
            exchange(&hub, to_spoke, &spoke, to_hub);
        }
        drop(spoke);
        let mut left = 0;
        events(&[&hub], |_, event| {
            left += usize::from(matches!(event, Event::Disconnected { .. }));
            left == 2 * LEVELS.len()
        });
    }
}

#[test]
fn memory_is_registered_once_for_all_sides() {
    let substrate = configured(BOTH);
    let hub = open_on(&substrate, "*");
    let shown = hub.register(1000, Access { remote_read: true, remote_write: true }).expect("memory");
    let spokes = ["site", "wan"].map(|side| open_on(&substrate, side));
    for (number, spoke) in spokes.iter().enumerate() {
        let (to_hub, to_spoke) = connect(spoke, &hub, Level::Ro);
        let silent = SendOptions { silent: true, ..Default::default() };
        hub.send(to_spoke, &shown.handle().to_bytes(), &silent).expect("sent");
        let handle = (*receive(spoke, &hub)).try_into().ok().and_then(MemoryHandle::from_bytes);
        let ours = spoke.register(100, Access::default()).expect("memory");
        ours.write_at(0, &pattern(100, number as u8)).expect("inside");
        let how = RemoteOptions { blocking: true, ..Default::default() };
        let at = 100 * number as u64;
        spoke.write(to_hub, &ours, 0, &handle.expect("a handle"), at, 100, &how).expect("written");
        let mut found = [0; 100];
        shown.read_at(at as usize, &mut found).expect("inside");
        assert_eq!(found[..], pattern(100, number as u8)[..]);
    }
}

#[test]
fn of_several_ways_that_of_the_highest_priority_is_taken() {
    for (text, better) in [(BOTH.to_owned(), "wan"), (BOTH.replace("priority = 40", "priority = 90"), "site")]
    {
        let substrate = configured(&text);
        let (a, b) = (open_on(&substrate, "*"), open_on(&substrate, "*"));
        let (to_b, to_a) = connect(&a, &b, Level::Ru);
        assert_eq!(a.device_of(to_b).expect("open").name(), better);
        assert_eq!(b.device_of(to_a).expect("open").name(), better);
        assert_eq!(substrate.device_for(&b.uri()).expect("both reach it").name(), better);
    }
}

#[test]
fn where_nobody_answers_by_the_best_way_the_next_one_is_taken() {
    let substrate = configured(BOTH);
    let (a, b) = (open_on(&substrate, "*"), open_on(&substrate, "site"));
    let at = |port| format!("isthmus://3.2/127.0.0.1:{port}#1.{}", "01".repeat(32));
    let (nobody, nor_there) = (at(1), at(2));
    for level in LEVELS {
        let uri = format!("{nobody}, {nor_there},{}", b.uri());
        a.connect(&uri, b"hello", level, 1, &Default::default()).expect("asked");
        let Event::Requested(request) = next(&b, &a) else { panic!("no request") };
        assert_eq!((request.payload(), request.level()), (&b"hello"[..], level));
        let to_a = b.accept(request, 2).expect("granted");
        let Event::Connected { connection, context: 1 } = next(&a, &b) else { panic!("not connected") };
        assert!(matches!(next(&b, &a), Event::Accepted { context: 2, .. }));
        assert_eq!(a.device_of(connection).expect("open").name(), "site");
        exchange(&a, connection, &b, to_a);
    }
    // And where nobody answers at all, that is told, once.
    a.connect(&format!("{nobody},{nor_there}"), b"", Level::Ro, 3, &Default::default()).expect("asked");
    match next(&a, &b) {
        Event::ConnectFailed { context: 3, why: Failure::PeerGone(text), .. } => {
            assert!(text.contains("127.0.0.1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_endpoint_that_answers_no_is_not_asked_again_by_another_way() {
    let substrate = configured(BOTH);
    let (a, b) = (open_on(&substrate, "*"), open_on(&substrate, "*"));
    a.connect(&b.uri(), b"", Level::Ro, 1, &Default::default()).expect("asked");
    let Event::Requested(request) = next(&b, &a) else { panic!("no request") };
    b.reject(request, 5, b"no").expect("undecided");
    assert!(matches!(next(&a, &b), Event::ConnectFailed { why: Failure::Rejected(5), .. }));
    let quiet = b.next_event(Some(std::time::Duration::from_millis(50))).expect("open");
    assert!(quiet.is_none(), "{quiet:?}");
}

#[test]
fn where_no_device_leads_it_says_what_each_lacks() {
    let substrate = configured(&format!("{BOTH}[device.lost]\ninterface = \"nonesuch0\"\n"));
    let hub = open_on(&substrate, "*");
    assert_eq!(names(&hub), ["wan", "site"], "what is down is left out");
    let far = "isthmus://4.1/10.0.0.1:4100#00000001";
    let refused = hub.connect(far, b"", Level::Ro, 1, &Default::default());
    let Err(Error::Unreachable(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains(far) && text.contains("wan is in AS 3 subnet 2 and has no routers"), "{text}");
    assert!(text.contains("site is in AS 3 subnet 1"), "{text}");
    let Err(Error::Unreachable(text)) = substrate.device_for(far) else { panic!("nothing leads there") };
    assert!(text.contains("lost is down"), "{text}");
    // With a router the other subnets are reached by whoever has it.
    let routed = configured(&BOTH.replace("subnet = 1", "subnet = 1\nrouters = [\"127.0.0.1:4100\"]"));
    assert_eq!(routed.device_for(far).expect("by the router").name(), "site");
    assert!(matches!(
        hub.connect("isthmus://3.1/1,2", b"", Level::Ro, 1, &Default::default()),
        Err(Error::Uri(_))
    ));
    let none = Endpoint::create_on(&[], &EndpointOptions::default());
    assert!(none.is_err_and(|error| error.to_string().contains("1 to 8")));
    let lost = substrate.devices_named("site,lost").expect("configured");
    let down = Endpoint::create_on(&lost, &EndpointOptions::default());
    assert!(down.is_err_and(|error| error.to_string().contains("lost is down")));
    assert!(substrate.devices_named("site,other").is_err_and(|error| error.to_string().contains("`other`")));
}

#[test]
fn a_sleeper_is_woken_by_either_side() {
    let substrate = configured(BOTH);
    let hub = open_on(&substrate, "*");
    let spokes = ["site", "wan"].map(|side| open_on(&substrate, side));
    for level in LEVELS {
        for spoke in &spokes {
            spoke.connect(&hub.uri(), b"", level, 1, &Default::default()).expect("asked");
            let Event::Requested(request) = await_event(&hub) else { panic!("no request") };
            hub.accept(request, 2).expect("granted");
            let Event::Connected { connection, .. } = await_event(spoke) else { panic!("not connected") };
            assert!(matches!(await_event(&hub), Event::Accepted { .. }));
            let silent = SendOptions { silent: true, ..Default::default() };
            spoke.send(connection, b"wake up", &silent).expect("sent");
            assert!(matches!(await_event(&hub), Event::Received(message) if *message == *b"wake up"));
        }
    }
}
