//! What an administrator does to a router: reload, drain, look at it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

use isthmus_wire::frame::RefuseReason;

use crate::harness::{
    Endpoint, HANG, NOWHERE, Running, address, dial, exchange, hello, isthmus, refusal, through,
};
use crate::site::Sites;

#[test]
fn a_reload_changes_what_is_admitted_and_cuts_no_lane() {
    let sites = Sites::new();
    let r1 = sites.world.start(&sites.r1(""));
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(1, 2));
    let (near, far) = through(sites.r1[0], from, &target, to);

    // A faulty file changes nothing.
    sites.world.write("r1.toml", "name = \"r1\"\nmap = \"nowhere.toml\"\n");
    r1.signal("-HUP");
    let (second, second_far) = through(sites.r1[0], from, &target, to);

    // Now nothing of subnet b may be reached any more, and lanes come in at another port.
    let moved = sites.world.address(13);
    let text = format!(
        "name = \"r1\"\nmap = \"one.toml\"\n[subnet.a]\nplain = true\ntargets = [\"127.0.0.0/8\"]\nlisten = \"{moved}\"\n\
         [subnet.b]\nplain = true\ntargets = [\"10.0.0.0/8\"]\n"
    );
    sites.world.write("r1.toml", &text);
    r1.signal("-HUP");
    assert_eq!(r1.notice(), "STATUS=configuration read again");
    assert_eq!(refusal(dial(moved, hello(from, to))), RefuseReason::Denied);
    assert!(TcpStream::connect(sites.r1[0]).is_err(), "the old port is closed");
    exchange(near, far, 1 << 20);
    exchange(second, second_far, 1000);
    assert!(sites.world.log().contains("nowhere.toml"));
}

#[test]
fn an_as_that_is_admitted_no_longer_loses_its_links() {
    let sites = Sites::new();
    let (_r2, s1) = sites.joined();
    let target = Endpoint::new();
    let (mut near, _far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    let config = sites.s1("");
    let text = std::fs::read_to_string(&config).expect("text").replace("admits = [1]", "admits = []");
    sites.world.write("s1.toml", &text);
    s1.signal("-HUP");
    assert_eq!(s1.notice(), "STATUS=configuration read again");
    let mut waste = Vec::new();
    let _ = near.read_to_end(&mut waste);
    assert!(waste.is_empty());
}

#[test]
fn a_drained_router_lets_lanes_end_and_takes_no_new_ones() {
    let sites = Sites::new();
    let (r2, s1) = sites.joined();
    let target = Endpoint::new();
    let (from, to) = (address(1, 1, NOWHERE), target.address(2, 1));
    let (near, far) = through(sites.r2[0], from, &target, to);
    s1.signal("-TERM");
    assert_eq!(s1.notice(), "STOPPING=1");
    // By the links, which stand as long as lanes do.
    let asked = || refusal(dial(sites.r2[0], hello(from, to)));
    let mut said = asked();
    while said != RefuseReason::Full {
        said = asked();
    }
    exchange(near, far, 1 << 20);
    ends(s1);
    r2.signal("-TERM");
    ends(r2);
}

/// Waits for the process; it must end well.
fn ends(mut router: Running) {
    let status = router.child.wait().expect("an end");
    assert!(status.success(), "{status}");
}

#[test]
fn lanes_that_do_not_end_are_cut_when_the_time_is_up() {
    let sites = Sites::new();
    let r1 = Running::start(&sites.world, &sites.r1(""), &["--drain", "200ms"]);
    let target = Endpoint::new();
    let (mut near, _far) = through(sites.r1[0], address(1, 1, NOWHERE), &target, target.address(1, 2));
    r1.signal("-TERM");
    ends(r1);
    let mut waste = Vec::new();
    let _ = near.read_to_end(&mut waste);
    assert!(waste.is_empty());
}

fn get(status: SocketAddr, path: &str) -> String {
    let mut http = TcpStream::connect(status).expect("the status answers");
    http.set_read_timeout(Some(HANG)).expect("a time-out");
    write!(http, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").expect("asked");
    let mut answer = String::new();
    http.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_status_tells_what_goes_on() {
    let sites = Sites::new();
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let status = sites.world.address(1);
    let _s1 = sites.world.start(&sites.s1(""));
    let _r2 = sites.world.start(&sites.r2("one", &format!("status = \"{status}\"\n")));
    let target = Endpoint::new();
    let from = address(1, 1, NOWHERE);
    let (near, far) = through(sites.r2[0], from, &target, target.address(2, 1));
    assert_eq!(refusal(dial(sites.r2[0], hello(from, address(1, 77, NOWHERE)))), RefuseReason::NoRoute);
    let metrics = get(status, "/metrics");
    for expected in [
        "application/openmetrics-text",
        "isthmus_router_lanes{subnet=\"a\",direction=\"in\"} 1\n",
        "isthmus_router_lanes{subnet=\"wan\",direction=\"out\"} 1\n",
        "isthmus_router_refusals_total{reason=\"noroute\"} 1\n",
        "isthmus_router_links{as=\"2\",subnet=\"wan\"} ",
        "isthmus_router_link_alive{as=\"2\",subnet=\"wan\"",
        "isthmus_router_link_rtt_seconds{as=\"2\"",
        "isthmus_router_link_retransmissions_total{as=\"2\"",
        "isthmus_router_link_frames_sent_total{as=\"2\"",
        "isthmus_router_link_credit_bytes{as=\"2\"",
        "# EOF\n",
    ] {
        assert!(metrics.contains(expected), "{expected} is not in {metrics}");
    }
    exchange(near, far, 1000);
    assert!(get(status, "/health").ends_with("ok\n"));
    let routes = get(status, "/routes");
    assert!(routes.contains("\"gateways\""), "{routes}");
    let page = get(status, "/");
    for expected in
        ["Router r2 of AS 1</h1><span class=\"state\">running", "encrypted links", "NoRoute", "a → wan"]
    {
        assert!(page.contains(expected), "{expected} is not in {page}");
    }
    assert!(!page.contains("://") && !page.contains("<script"), "it loads nothing from elsewhere");
    // Twice looked at, which is a second apart, a link tells of its path.
    let began = std::time::Instant::now();
    while !get(status, "/measured").contains("subnet = \"wan\"") {
        assert!(began.elapsed() < HANG, "nothing was measured");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(get(status, "/other").starts_with("HTTP/1.1 404"));
}

#[test]
fn what_others_measured_decides_under_that_metric() {
    let sites = Sites::new();
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    sites.world.write("measured.toml", "[[link]]\nsubnet = \"wan\"\nloss = \"100%\"\n");
    let _s1 = sites.world.start(&sites.s1(""));
    let _r2 = sites.world.start(&sites.r2("one", "metric = \"measured\"\nmeasured = \"measured.toml\"\n"));
    let lane = dial(sites.r2[0], hello(address(1, 1, NOWHERE), address(2, 1, NOWHERE)));
    assert_eq!(refusal(lane), RefuseReason::NoRoute);
}

#[test]
fn keys_are_for_their_owner_only_and_an_authority_is_used_again() {
    let sites = Sites::new();
    let folder = sites.world.keygen(1, "one");
    let mode =
        |name: &str| std::fs::metadata(folder.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("as1.key"), mode("router.key")), (0o600, 0o600));
    let authority = std::fs::read(folder.join("as1.pem")).expect("the authority");
    let again = |name: &str| {
        let out =
            isthmus().args(["router", "keygen", "--as", "1", "--name", name, "--out"]).arg(&folder).output();
        out.expect("isthmus starts")
    };
    let refused = again("router");
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is there already"));
    assert!(again("second").status.success());
    assert_eq!(std::fs::read(folder.join("as1.pem")).expect("the authority"), authority);
    // The second router's certificate is believed as the first one's is.
    sites.world.keygen(2, "two");
    let config = sites.r2("one", "");
    let text = std::fs::read_to_string(&config).expect("text").replace("one/router", "one/second");
    let _s1 = sites.world.start(&sites.s1(""));
    let _r2 = sites.world.start(&sites.world.write("r2.toml", &text));
    let target = Endpoint::new();
    let (near, far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    exchange(near, far, 1000);
}
