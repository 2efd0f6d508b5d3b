//! `isthmus top`, and the status of a service, while files go from here to there.

#[path = "support/openmetrics.rs"]
mod openmetrics;

#[path = "support/command.rs"]
mod command;
#[path = "support/running.rs"]
mod running;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use command::isthmus;
use running::Running;

const LIMIT: Duration = Duration::from_secs(60);
/// Length of the file. Bytes.
const LENGTH: usize = 24 << 20;

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port")
}

fn serve(folder: &Path, listen: SocketAddr, status: &str) -> Running {
    let text = format!("listen = \"{listen}\"\nplain = true\n{status}[export.data]\npath = \"data\"\n");
    fs::write(folder.join("serve.toml"), text).expect("written");
    let log = fs::File::create(folder.join("log")).expect("a log");
    let child = isthmus(folder).args(["serve", "--config", "serve.toml"]).stderr(log).spawn();
    Running(child.expect("it starts"))
}

/// A service with a status page: its address and that of the page. Ports that were free may be taken by somebody else
/// meanwhile, such as another test. The service then ends, and gets others.
fn serve_with_status(
    folder: &Path,
    status_text: impl Fn(SocketAddr) -> String,
) -> (Running, SocketAddr, SocketAddr) {
    let until = Instant::now() + LIMIT;
    loop {
        let (listen, status) = (free(), free());
        let mut service = serve(folder, listen, &status_text(status));
        while matches!(service.0.try_wait(), Ok(None)) {
            if TcpStream::connect(status).is_ok() {
                return (service, listen, status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = fs::read_to_string(folder.join("log")).expect("a log");
        assert!(Instant::now() < until, "{log}");
    }
}

fn get(status: SocketAddr, path: &str, accept: &str) -> String {
    let mut http = TcpStream::connect(status).expect("it answers");
    http.set_read_timeout(Some(LIMIT)).expect("a time-out");
    write!(http, "GET {path} HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n").expect("asked");
    let mut answer = String::new();
    http.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

fn metrics(status: SocketAddr) -> std::collections::BTreeMap<String, f64> {
    openmetrics::parse(&get(status, "/metrics", "application/openmetrics-text; version=1.0.0"))
}

fn top(folder: &Path, words: &[&str]) -> std::process::Output {
    isthmus(folder).arg("top").args(words).output().expect("it runs")
}

/// The report of `isthmus top`, once `wanted` holds of it.
fn top_until(folder: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + LIMIT;
    loop {
        let out = top(folder, &["--once", "--json", "--interval", "300ms"]);
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        if wanted(&report) {
            return report;
        }
        assert!(Instant::now() < until, "{report:#}");
    }
}

fn array<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

/// The peers of one process in a report.
fn peers(report: &Value, pid: u32) -> Vec<&Value> {
    let of = array(report, "processes").filter(move |process| process["pid"] == pid);
    of.flat_map(|process| array(process, "endpoints")).flat_map(|endpoint| array(endpoint, "peers")).collect()
}

/// The daemon whose status is at this address.
fn daemon(report: &Value, status: SocketAddr) -> Option<&Value> {
    array(report, "daemons").find(|daemon| daemon["status"] == status.to_string())
}

#[test]
fn a_copy_is_seen_at_both_ends_while_it_runs_and_counted_when_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("data")).expect("made");
    let bytes: Vec<u8> = (0..LENGTH).map(|at| ((at * 31) >> 7) as u8).collect();
    fs::write(folder.path().join("data/file"), bytes).expect("written");
    let (service, listen, status) =
        serve_with_status(folder.path(), |status| format!("status = \"{status}\"\n"));
    assert_eq!(get(status, "/health", "*/*"), "ok\n");
    let idle = metrics(status);
    assert_eq!(openmetrics::sum(&idle, "isthmus_serve_sessions", ""), 0.0);

    let place = format!("{listen}:data/file");
    let words = ["cp", "--plain", "--limit-rate", "32Mbit", &place, "copy"];
    let mut copy = Running(isthmus(folder.path()).args(words).spawn().expect("it starts"));
    let moves = |peer: &&Value, rate: &str| peer[rate].as_f64().is_some_and(|rate| rate > 1e6);
    let report = top_until(folder.path(), |report| {
        let sessions = daemon(report, status).map(|daemon| array(daemon, "sessions").count());
        sessions == Some(1)
            && peers(report, copy.0.id()).iter().any(|peer| moves(peer, "received_bits_per_s"))
            && peers(report, service.0.id()).iter().any(|peer| moves(peer, "sent_bits_per_s"))
    });
    let client = peers(&report, copy.0.id())[0];
    assert!(client["transport"].as_str().is_some_and(|name| !name.is_empty()), "{client:#}");
    assert!(array(client, "why").count() > 0 && array(client, "lanes").count() > 0, "{client:#}");
    assert!(client["rtt_s"].as_f64().is_some_and(|rtt| rtt > 0.0), "{client:#}");
    let daemon = daemon(&report, status).expect("seen above");
    assert_eq!((&daemon["kind"], &daemon["name"]), (&"serve".into(), &listen.to_string().into()));
    let session = &daemon["sessions"][0];
    assert_eq!((&session["export"], &session["direction"]), (&"data".into(), &"out".into()), "{session:#}");
    let running = metrics(status);
    assert_eq!(openmetrics::sum(&running, "isthmus_serve_sessions", "direction=\"out\""), 1.0);
    let labels = "session=\"0\",as=\"0\",client=\"127.0.0.1\",export=\"data\"";
    assert!(openmetrics::sum(&running, "isthmus_serve_session_age_seconds", labels) > 0.0, "{running:?}");

    let text = String::from_utf8(top(folder.path(), &["--once"]).stdout).expect("text");
    assert!(text.contains("PEER") && text.contains(&format!("service {listen}, status {status}")), "{text}");

    assert!(copy.0.wait().expect("it ends").success());
    let until = Instant::now() + LIMIT;
    let ended = loop {
        let now = metrics(status);
        if openmetrics::sum(&now, "isthmus_serve_sessions_done_total", "direction=\"out\"") == 1.0 {
            break now;
        }
        assert!(Instant::now() < until, "{now:?}");
    };
    assert_eq!(
        openmetrics::sum(&ended, "isthmus_serve_copied_bytes_total", "direction=\"out\""),
        LENGTH as f64
    );
    assert_eq!(openmetrics::sum(&ended, "isthmus_serve_session_bytes", ""), 0.0, "its row is gone");
}

#[test]
fn a_client_that_may_not_have_what_it_asks_for_is_counted_as_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("data")).expect("made");
    let (_service, listen, status) =
        serve_with_status(folder.path(), |status| format!("status = \"{status}\"\n"));
    let place = format!("{listen}:other/file");
    let done = isthmus(folder.path()).args(["cp", "--plain", &place, "copy"]).output().expect("it starts");
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    let until = Instant::now() + LIMIT;
    while openmetrics::sum(&metrics(status), "isthmus_serve_refusals_total", "") < 1.0 {
        assert!(Instant::now() < until, "it is not counted");
    }
    assert_eq!(openmetrics::sum(&metrics(status), "isthmus_serve_sessions_failed_total", ""), 0.0);
}

#[test]
fn a_status_that_others_reach_has_to_be_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("data")).expect("made");
    let mut refused = serve(folder.path(), free(), "status = \"0.0.0.0:0\"\n");
    assert_eq!(refused.0.wait().expect("it ends").code(), Some(2));
    let log = fs::read_to_string(folder.path().join("log")).expect("a log");
    assert!(log.contains("status_remote = true"), "{log}");
    let (_service, _, status) = serve_with_status(folder.path(), |status| {
        format!("status = \"0.0.0.0:{}\"\nstatus_remote = true\n", status.port())
    });
    let older = get(status, "/metrics", "text/plain");
    assert!(older.contains("# TYPE isthmus_serve_refusals_total counter\n"), "{older}");
    // Its mark has no host, and the report names one on loopback.
    top_until(folder.path(), |report| daemon(report, status).is_some());
}

#[test]
fn an_address_where_nobody_answers_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let nobody = free().to_string();
    let out = top(folder.path(), &["--once", "--interval", "100ms", "--status", &nobody]);
    let text = String::from_utf8(out.stdout).expect("text");
    assert!(text.contains(&format!("status at {nobody}: ")), "{text}");
}
