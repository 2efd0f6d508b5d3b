//! `isthmus doctor` as users run it: what it finds, what it advises, and its exit status.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

fn doctor(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.arg("doctor").args(words).env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
    for name in ["FI_PROVIDER", "FI_PROVIDER_PATH", "FI_ISTHMUS_FABRIC", "FI_ISTHMUS_PORT", "ISTHMUS_CONFIG"]
    {
        command.env_remove(name);
    }
    command
}

/// The exit status, and what was found: subject, verdict, text and remedy.
fn findings(command: &mut Command) -> (Option<i32>, Vec<[String; 4]>) {
    let output = command.arg("--json").output().expect("the command runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let list = report["findings"].as_array().expect("a list");
    let text = |finding: &Value, name: &str| finding[name].as_str().expect("text").to_owned();
    let parts = |finding| ["subject", "verdict", "text", "remedy"].map(|name| text(finding, name));
    (output.status.code(), list.iter().map(parts).collect())
}

fn of(found: &[[String; 4]], subject: &str) -> [String; 4] {
    let finding = found.iter().find(|finding| finding[0] == subject);
    finding.unwrap_or_else(|| panic!("nothing about {subject}: {found:?}")).clone()
}

/// Where the library is not beside the command, and nowhere else, is wrong: the tests' command stands
/// alone, so they name a folder.
fn provided(words: &[&str]) -> (tempfile::TempDir, Command) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("libisthmus-fi.so"), "").expect("writable");
    let mut command = doctor(words);
    command.env("FI_PROVIDER_PATH", folder.path());
    (folder, command)
}

#[test]
fn a_provider_that_mpis_cannot_find_is_named() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let (_, found) = findings(doctor(&[]).env("FI_PROVIDER_PATH", empty.path()));
    let [_, verdict, text, _] = of(&found, "provider");
    assert!(verdict == "bad" && text.contains("does not lead to libisthmus-fi.so"), "{text}");
    let (_, found) = findings(&mut doctor(&[]));
    let [_, verdict, text, _] = of(&found, "provider");
    assert!(verdict == "bad" && text.contains("FI_PROVIDER_PATH is not set"), "{text}");
}

#[test]
fn a_host_that_is_fit_is_called_so() {
    let (_folder, mut command) = provided(&[]);
    let (status, found) = findings(&mut command);
    assert_eq!(status, Some(0), "{found:?}");
    for subject in ["provider", "selection", "endpoint", "loopback"] {
        assert_eq!(of(&found, subject)[1], "good", "{found:?}");
    }
    // What the system forbids is advice, and says what to change.
    let [_, verdict, text, remedy] = of(&found, "memory");
    assert_eq!(verdict == "good", remedy.is_empty(), "{text}");
    assert_ne!(verdict, "bad", "{text}");
    // Without any configuration lanes to other sites are encrypted.
    let [_, verdict, text, _] = of(&found, "encryption");
    assert_eq!((&*verdict, text.contains("leave the subnet")), ("good", true), "{text}");
    assert!(found.iter().any(|[subject, verdict, text, _]| {
        subject == "endpoint" && verdict == "advice" && text.contains("loopback")
    }));
}

#[test]
fn settings_that_turn_encryption_off_are_named() {
    for (name, value) in [("FI_ISTHMUS_ENCRYPT", "never"), ("FI_ISTHMUS_ADMISSION", "open")] {
        let (_folder, mut command) = provided(&[]);
        let (_, found) = findings(command.env(name, value));
        let [_, verdict, text, remedy] = of(&found, "encryption");
        assert_eq!((&*verdict, text.contains(value)), ("advice", true), "{text}");
        assert!(remedy.contains("remove this setting"), "{remedy}");
    }
}

#[test]
fn what_is_wrong_comes_with_its_remedy_and_exit_status_1() {
    let (_folder, mut command) = provided(&[]);
    let (status, found) = findings(command.env("FI_PROVIDER", "^isthmus").env("FI_ISTHMUS_PORT", "many"));
    assert_eq!(status, Some(1));
    let selection = of(&found, "selection");
    assert_eq!((&*selection[1], selection[3].contains("FI_PROVIDER=isthmus")), ("bad", true));
    let settings = of(&found, "settings");
    assert_eq!(settings[1], "bad");
    assert!(settings[2].contains("FI_ISTHMUS_PORT"), "{settings:?}");
}

#[test]
fn a_peer_that_listens_is_reached_and_one_that_is_not_there_is_named() {
    let (_folder, mut command) = provided(&["--listen", "--timeout", "60s"]);
    let mut listener = command.stdout(Stdio::piped()).spawn().expect("the command runs");
    let mut lines = BufReader::new(listener.stdout.take().expect("piped")).lines();
    let address = lines.find_map(|line| line.expect("text").strip_prefix("listening at ").map(str::to_owned));
    let address = address.expect("it says where");
    let (_folder, mut command) = provided(&["--peer", &address]);
    let (status, found) = findings(&mut command);
    listener.kill().expect("it runs");
    listener.wait().expect("it ends");
    assert_eq!((status, &*of(&found, "peer")[1]), (Some(0), "good"), "{found:?}");

    let (_folder, mut command) = provided(&["--peer", "127.0.0.1:1", "--timeout", "1s"]);
    let (status, found) = findings(&mut command);
    let [_, verdict, text, remedy] = of(&found, "peer");
    assert_eq!((status, &*verdict), (Some(1), "bad"));
    assert!(text.contains("127.0.0.1:1") && !remedy.is_empty(), "{text}");
}

#[test]
fn a_closed_peer_is_there_and_says_no_more_to_who_knows_its_port() {
    let settings = isthmus_io::Settings { interface: "127.0.0.1".into(), ..Default::default() };
    let closed = isthmus_io::Endpoint::open(&settings, None, Default::default()).expect("an endpoint");
    let peer = closed.address().locator.to_string();
    let (_folder, mut command) = provided(&["--timeout", "20s", "--peer", &peer]);
    let (_, found) = findings(&mut command);
    assert_eq!((&*of(&found, "peer")[1], &*of(&found, "admission")[1]), ("good", "advice"), "{found:?}");
    closed.close();
}

#[test]
fn a_peer_may_be_named_by_its_host_and_whether_udp_passes_is_told() {
    for (transport, passes) in [("auto", true), ("tcp", false)] {
        let (_folder, mut command) = provided(&["--listen", "--timeout", "60s"]);
        command.env("FI_ISTHMUS_TRANSPORT", transport).stdout(Stdio::piped());
        let mut listener = command.spawn().expect("the command runs");
        let mut lines = BufReader::new(listener.stdout.take().expect("piped")).lines();
        let address =
            lines.find_map(|line| line.expect("text").strip_prefix("listening at ").map(str::to_owned));
        let port = address.expect("it says where").rsplit_once(':').expect("a port").1.to_owned();
        let port = port.split(['/', '#', '?', '~']).next().expect("digits").to_owned();
        let (_folder, mut command) = provided(&["--timeout", "20s", "--peer", &format!("localhost:{port}")]);
        let (status, found) = findings(&mut command);
        let _ = listener.kill();
        let _ = listener.wait();
        assert_eq!((status, &*of(&found, "peer")[1]), (Some(0), "good"), "{found:?}");
        let [_, verdict, text, remedy] = of(&found, "udp");
        assert_eq!(&*verdict, if passes { "good" } else { "advice" }, "{transport}: {text}");
        assert_eq!(passes, remedy.is_empty(), "{text}");
    }
}

#[test]
fn a_peer_whose_name_is_not_resolved_is_told_apart_from_one_that_is_none() {
    for (peer, part) in [
        ("nowhere.invalid:4100", "cannot be resolved"),
        ("10.1.0.1", "has no port"),
        ("fd00::1:4100", "IPv6 address without brackets"),
        ("127.0.0.1:0", "port 0, at which nothing listens"),
        ("isthmus://0.0/127.0.0.1:0", "port 0, at which nothing listens"),
    ] {
        let (_folder, mut command) = provided(&["--peer", peer]);
        let (status, found) = findings(&mut command);
        let [_, verdict, text, remedy] = of(&found, "peer");
        assert_eq!((status, &*verdict), (Some(1), "bad"));
        assert!(text.contains(part) && !remedy.is_empty(), "{peer}: {text}");
    }
}
