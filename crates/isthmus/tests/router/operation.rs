//! What an administrator does to a router: reload, drain, look at it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use isthmus_trust::{Keygen, Role};
use isthmus_wire::frame::RefuseReason;

use crate::openmetrics;

use crate::harness::{
    Endpoint, HANG, NOWHERE, Running, address, dial, exchange, hello, is_cut, isthmus, refusal, through,
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
    let (near, _far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    let config = sites.s1("");
    let text = std::fs::read_to_string(&config).expect("text").replace("admits = [1]", "admits = []");
    sites.world.write("s1.toml", &text);
    s1.signal("-HUP");
    assert_eq!(s1.notice(), "STATUS=configuration read again");
    is_cut(near);
}

/// A router whose certificate comes on the deny list loses its links by a reload.
#[test]
fn a_certificate_that_is_denied_from_now_on_loses_its_links() {
    let sites = Sites::new();
    sites.world.keygen(2, "two");
    let folder = sites.world.folder.path().join("one");
    let about = Keygen { as_id: 1, folder: &folder, name: "router", days: 1 };
    let stolen = about.make_as(Some(Role::Router)).expect("made");
    let config = sites.s1("");
    let (s1, _r2) = (sites.world.start(&config), sites.world.start(&sites.r2("one", "")));
    let target = Endpoint::new();
    let (near, _far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    sites.world.write("denied.txt", &format!("{}\n", stolen.fingerprint));
    let text = std::fs::read_to_string(&config).expect("text") + "denied = \"denied.txt\"\n";
    sites.world.write("s1.toml", &text);
    s1.signal("-HUP");
    assert_eq!(s1.notice(), "STATUS=configuration read again");
    is_cut(near);
}

/// A handshake that began before the reload, and ends after it, makes no link either.
#[test]
fn a_certificate_that_is_denied_during_its_handshake_gets_no_link() {
    let sites = Sites::linked_by("tcp");
    sites.world.keygen(2, "two");
    let folder = sites.world.folder.path().join("one");
    let about = Keygen { as_id: 1, folder: &folder, name: "router", days: 1 };
    let stolen = about.make_as(Some(Role::Router)).expect("made");
    let config = sites.s1("");
    let s1 = sites.world.start(&config);
    // r2 reaches s1 through this port, which keeps what r2 says last until it is told to go on.
    let between = TcpListener::bind((sites.s1[1].ip(), 0)).expect("a port");
    let at = between.local_addr().expect("bound").to_string();
    let map = std::fs::read_to_string(sites.world.folder.path().join("one.toml")).expect("text");
    sites.world.write("one.toml", &map.replace(&sites.s1[1].to_string(), &at));
    let _r2 = sites.world.start(&sites.r2("one", "limits = { links = 1 }\n"));
    let (mut near, _) = between.accept().expect("r2 dials");
    let mut far = TcpStream::connect(sites.s1[1]).expect("it listens");
    let pass = |from: &mut TcpStream, to: &mut TcpStream| {
        let mut bytes = [0; 1 << 14];
        let len = from.read(&mut bytes).expect("bytes");
        to.write_all(&bytes[..len]).expect("taken");
    };
    pass(&mut near, &mut far);
    pass(&mut far, &mut near);
    let mut last = [0; 1 << 14];
    let len = near.read(&mut last).expect("its certificate");
    sites.world.write("denied.txt", &format!("{}\n", stolen.fingerprint));
    let text = std::fs::read_to_string(&config).expect("text") + "denied = \"denied.txt\"\n";
    sites.world.write("s1.toml", &text);
    s1.signal("-HUP");
    assert_eq!(s1.notice(), "STATUS=configuration read again");
    far.write_all(&last[..len]).expect("taken");
    // A link that stands says from time to time that it lives.
    far.set_read_timeout(Some(HANG)).expect("a time-out");
    let start = Instant::now();
    while matches!(far.read(&mut last), Ok(1..)) {
        assert!(start.elapsed() < HANG, "the link stands: {}", sites.world.log());
    }
    assert!(start.elapsed() < HANG, "the link stands: {}", sites.world.log());
}

#[test]
fn a_movers_certificate_starts_no_router() {
    let sites = Sites::new();
    sites.world.keygen(2, "two");
    let folder = sites.world.folder.path().join("one");
    let about = Keygen { as_id: 1, folder: &folder, name: "router", days: 1 };
    about.make_as(Some(Role::Mover)).expect("made");
    let checked = isthmus().args(["router", "check", "--config"]).arg(sites.r2("one", "")).output();
    let checked = checked.expect("isthmus starts");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(2), "{said}");
    assert!(said.contains("that of no router") && said.contains("--role router"), "{said}");
}

#[test]
fn what_keeps_certificates_from_being_made_is_told_with_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("file"), "").expect("written");
    let keygen = |words: &[&str]| {
        let mut command = isthmus();
        command.current_dir(folder.path()).args(["router", "keygen", "--as", "1"]).args(words);
        let done = command.output().expect("isthmus starts");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let long = "n".repeat(250);
    for (words, status, expected) in [
        (&["--out", "file"][..], 3, "file: "),
        (&["--out", "file/keys"], 3, "file/keys: "),
        (&["--out", "keys", "--name", "../evil"], 2, "cannot be the name of files"),
        (&["--out", "keys", "--name", ""], 2, "cannot be the name of files"),
        (&["--out", "keys", "--name", "."], 2, "cannot be the name of files"),
        (&["--out", "keys", "--name", &long], 2, "cannot be the name of files"),
        (&["--out", "keys", "--name", "as1"], 3, "as1.pem is the authority's own file; use another --name"),
        (&["--out", "keys", "--days", "4294967295"], 2, "is not in 1..=36500"),
    ] {
        let (code, said) = keygen(words);
        assert_eq!(code, Some(status), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        let made = std::fs::read_dir(folder.path().join("keys")).into_iter().flatten().count();
        assert_eq!(made, 0, "{words:?}");
    }
    assert!(!folder.path().join("evil.key").exists());
    assert_eq!(keygen(&["--out", "keys", "--name", "alice@site"]).0, Some(0));
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
    let (near, _far) = through(sites.r1[0], address(1, 1, NOWHERE), &target, target.address(1, 2));
    r1.signal("-TERM");
    ends(r1);
    is_cut(near);
}

fn get(status: SocketAddr, path: &str) -> String {
    let mut http = TcpStream::connect(status).expect("the status answers");
    http.set_read_timeout(Some(HANG)).expect("a time-out");
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    write!(http, "GET {path} HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n").expect("asked");
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
        "isthmus_router_certificate_expiry_timestamp_seconds ",
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
    exchange(near, far, 1 << 20);
    let (_, body) = metrics.split_once("\r\n\r\n").expect("a body");
    openmetrics::parse(body);
    // One link took the lane, and counts its bytes apart from the others.
    let began = std::time::Instant::now();
    loop {
        let metrics = get(status, "/metrics");
        let samples = openmetrics::parse(metrics.split_once("\r\n\r\n").expect("a body").1);
        let links = samples.keys().filter(|key| key.starts_with("isthmus_router_link_alive{")).count();
        let moved = |name: &str| openmetrics::sum(&samples, name, "as=\"2\"");
        let enough = f64::from(1 << 20);
        if links == 10
            && moved("isthmus_router_link_sent_bytes_total") > enough
            && moved("isthmus_router_link_received_bytes_total") > enough
        {
            break;
        }
        assert!(began.elapsed() < HANG, "{samples:?}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
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
    // A link has a graph once it was looked at three times.
    let began = std::time::Instant::now();
    let mut page = get(status, "/");
    while page.matches("<polyline points=").count() < 10 {
        assert!(began.elapsed() < HANG, "not every link has a graph: {page}");
        std::thread::sleep(std::time::Duration::from_millis(200));
        page = get(status, "/");
    }
    assert!(page.contains("<td>TCP") && page.contains("<td>UDP"), "{page}");
    let out = isthmus().args(["top", "--once", "--json", "--interval", "100ms"]).output().expect("it runs");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let daemons = report["daemons"].as_array().expect("daemons");
    let router = daemons.iter().find(|daemon| daemon["status"] == status.to_string());
    let router = router.expect("its mark is found");
    assert_eq!((&router["kind"], &router["name"]), (&"router".into(), &"r2".into()));
    let links = router["links"].as_array().expect("links");
    assert_eq!(links.len(), 10, "{router:#}");
    let told = |link: &serde_json::Value| link["alive"] == true && link["rtt_s"].as_f64() > Some(0.0);
    assert!(links.iter().all(told), "{router:#}");
    assert!(links[0]["why"].as_str().is_some_and(|why| why.starts_with("TCP: ")), "{router:#}");
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

/// Routes are computed anew in a thread. Here no thread can be started, as there is no memory for its stack.
#[test]
fn a_router_without_threads_keeps_its_routes_and_says_so() {
    let sites = Sites::new();
    sites.world.keygen(1, "one");
    sites.world.keygen(2, "two");
    let _s1 = sites.world.start(&sites.s1(""));
    let config = sites.r2("one", "metric = \"measured\"\n");
    let mut r2 = Running::start_with(&sites.world, &config, &[], &[("RUST_MIN_STACK", "1125899906842624")]);
    let until = Instant::now() + HANG;
    // Some figure differs from what is known at the start: nothing.
    while !sites.world.log().contains("routes are not computed anew") {
        assert!(Instant::now() < until && !sites.world.log().contains("panicked"), "{}", sites.world.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(r2.child.try_wait().expect("ours").is_none(), "{}", sites.world.log());
    let target = Endpoint::new();
    let (near, far) = through(sites.r2[0], address(1, 1, NOWHERE), &target, target.address(2, 1));
    exchange(near, far, 1000);
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
