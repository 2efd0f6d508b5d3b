//! A device that fails under its endpoint, in a network namespace of the test's own.

mod support;

use std::process::Command;
use std::time::Duration;

use isthmus_substrate::{Endpoint, EndpointOptions, Error, Event, Substrate};
use support::{LIMIT, await_event, in_time};

/// Makes this program the one inside: it may change its network.
const INSIDE: &str = "ISTHMUS_TEST_INSIDE";
const ADDRESS: &str = "10.99.7.1";

fn ip(words: &[&str]) {
    let done = Command::new("ip").args(words).status().expect("ip(8) is there");
    assert!(done.success(), "ip {words:?}");
}

#[test]
fn inside() {
    if std::env::var(INSIDE).is_err() {
        return;
    }
    ip(&["link", "set", "lo", "up"]);
    ip(&["addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]);
    let config = format!("[device.one]\ninterface = \"{ADDRESS}\"\nlinger = \"1s\"\n");
    let substrate = Substrate::from_toml(&config, "test").expect("valid");
    let device = substrate.default_device().expect("up");
    let endpoint = Endpoint::create(device, &EndpointOptions::default()).expect("opened");
    let quiet = endpoint.next_event(Some(Duration::from_millis(2_500))).expect("open");
    assert!(quiet.is_none(), "{quiet:?}");
    ip(&["addr", "del", &format!("{ADDRESS}/32"), "dev", "lo"]);
    match await_event(&endpoint) {
        Event::DeviceFailed { why } => assert!(why.contains(ADDRESS), "{why}"),
        other => panic!("{other:?}"),
    }
    // Found anew it is down, and says why.
    let again = Substrate::from_toml(&config, "test").expect("valid");
    let refused = Endpoint::create(&again.devices()[0], &EndpointOptions::default());
    assert!(matches!(refused, Err(Error::Device(text)) if text.contains(ADDRESS)));
    pass_a_bridge();
    go_by_labels_and_new_names();
    choose();
    println!("seen inside");
}

/// A bridge of containers that never ran comes first, and has a carrier as far as the kernel says.
fn pass_a_bridge() {
    ip(&["link", "add", "name", "adocker0", "type", "bridge"]);
    ip(&["addr", "add", "172.30.0.1/16", "dev", "adocker0"]);
    ip(&["link", "add", "name", "isth0", "type", "veth", "peer", "name", "isth0p"]);
    ip(&["addr", "add", "10.99.8.1/24", "dev", "isth0"]);
    for name in ["adocker0", "isth0p", "isth0"] {
        ip(&["link", "set", name, "up"]);
    }
    let start = std::time::Instant::now();
    let chosen = || {
        let substrate = Substrate::from_toml("[device.any]\ntransport = \"tcp\"\n", "test").expect("valid");
        substrate.default_device().ok()?.address().ok().map(|ip| ip.to_string())
    };
    // The kernel notices a carrier a moment after it is there.
    while chosen().is_none_or(|ip| ip != "10.99.8.1") {
        in_time(start.elapsed() < LIMIT, || format!("the cable is not noticed: {:?}", chosen()));
        std::thread::sleep(Duration::from_millis(20));
    }
    for name in ["adocker0", "isth0"] {
        ip(&["link", "del", name]);
    }
}

/// Services that move between hosts label their addresses, and some hosts rename interfaces while they are used.
fn go_by_labels_and_new_names() {
    ip(&["link", "add", "name", "isth3", "type", "veth", "peer", "name", "isth3p"]);
    ip(&["addr", "add", "10.99.6.1/24", "dev", "isth3", "label", "isth3:vip"]);
    for name in ["isth3p", "isth3"] {
        ip(&["link", "set", name, "up"]);
    }
    let found = |interface: &str| {
        let config = format!("[device.one]\ninterface = \"{interface}\"\nlinger = \"1s\"\n");
        Substrate::from_toml(&config, "test").expect("valid")
    };
    for interface in ["isth3", "isth3:vip"] {
        let substrate = found(interface);
        let device = substrate.default_device().expect("up");
        assert_eq!(device.address().map(|ip| ip.to_string()), Ok("10.99.6.1".to_owned()));
        assert_eq!(device.interface(), "isth3");
    }
    let substrate = found("isth3");
    let device = substrate.default_device().expect("up");
    let endpoint = Endpoint::create(device, &EndpointOptions::default()).expect("opened");
    let renamed = Command::new("ip").args(["link", "set", "isth3", "name", "isth4"]).output();
    if !renamed.expect("ip(8) is there").status.success() {
        eprintln!("skipped: this kernel renames no interface that is up");
        return ip(&["link", "del", "isth3"]);
    }
    // A device is looked at every second.
    let quiet = endpoint.next_event(Some(Duration::from_millis(1_500))).expect("open");
    assert!(quiet.is_none(), "{quiet:?}");
    ip(&["link", "del", "isth4"]);
    match await_event(&endpoint) {
        Event::DeviceFailed { why } => assert!(why.contains("left the host"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Two interfaces whose AS and subnet nobody configured: their networks tell which leads where.
fn choose() {
    for (name, address) in [("isth1", "10.99.1.1/24"), ("isth2", "10.99.2.1/24")] {
        ip(&["link", "add", name, "type", "veth"]);
        ip(&["addr", "add", address, "dev", name]);
        ip(&["link", "set", name, "up"]);
    }
    let config = "[device]\nlinger = \"1s\"\n[device.first]\ninterface = \"isth1\"\npriority = 80\n\
                  [device.second]\ninterface = \"isth2\"\n";
    let substrate = Substrate::from_toml(config, "test").expect("valid");
    let chosen =
        |ip: &str| substrate.device_for(&format!("isthmus://0.0/{ip}:1")).map(|d| d.name().to_owned());
    assert_eq!(chosen("10.99.1.9"), Ok("first".to_owned()));
    assert_eq!(chosen("10.99.2.9"), Ok("second".to_owned()), "its own network, though of less priority");
    let Err(Error::Unreachable(text)) = chosen("10.99.3.9") else { panic!("no route leads there") };
    assert!(text.contains("the system has no route there"), "{text}");
    ip(&["route", "add", "default", "via", "10.99.2.254"]);
    assert_eq!(chosen("10.99.3.9"), Ok("first".to_owned()), "the system has a route from either");
    assert_eq!(chosen("10.99.2.9"), Ok("second".to_owned()));
    // One device fails; the other goes on.
    let endpoint =
        Endpoint::create_on(&substrate.devices_named("*").expect("up"), &EndpointOptions::default());
    let (endpoint, there) = (endpoint.expect("opened"), support::open());
    ip(&["addr", "del", "10.99.1.1/24", "dev", "isth1"]);
    match await_event(&endpoint) {
        Event::DeviceFailed { why } => assert!(why.contains("device first"), "{why}"),
        other => panic!("{other:?}"),
    }
    support::connect(&there, &endpoint, isthmus_substrate::Level::Ro);
}

#[test]
fn a_device_whose_address_leaves_is_told() {
    if std::env::var(INSIDE).is_ok() {
        return;
    }
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net"]).args(words);
        command
    };
    if !unshare(&["ip", "link"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no network namespaces, or no ip(8), for this user");
        return;
    }
    let this = std::env::current_exe().expect("this program");
    let output = unshare(&[&this.display().to_string(), "inside", "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("it starts");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("seen inside"), "{said}{complained}");
}
