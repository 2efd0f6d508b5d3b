//! `isthmus devices` and `isthmus bench` as their users see them.

use std::path::PathBuf;
use std::process::{Command, Output};

fn isthmus(words: &[&str], config: &str) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("site.toml");
    std::fs::write(&path, config).expect("written");
    Command::new("timeout")
        .args(["--signal=KILL", "120", env!("CARGO_BIN_EXE_isthmus")])
        .args(words)
        .env("ISTHMUS_CONFIG", &path)
        .output()
        .expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const LOOPBACK: &str = "[device]\ninterface = \"127.0.0.1\"\n";

#[test]
fn devices_are_listed_with_why_they_are_up_or_down() {
    let config = "[device.good]\ninterface = \"lo\"\nas_id = 3\nrouters = \"10.1.0.1:4100\"\n\
                  [device.bad]\ninterface = \"nonesuch0\"\npriority = 90\n\
                  [device.raw]\ntransport = \"ethernet\"\ninterface = \"lo\"\n";
    let output = isthmus(&["devices"], config);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "one is down: {said}");
    assert!(said.starts_with("good\n    up: lo at 127.0.0.1"), "{said}");
    assert!(said.contains("down: no interface or address `nonesuch0`"), "{said}");
    assert!(said.contains("AS 3") && said.contains("10.1.0.1:4100"), "{said}");
    // Up for who may send frames; else it is told what that takes.
    assert!(said.contains("transport ethernet") || said.contains("CAP_NET_RAW"), "{said}");
    let json: serde_json::Value =
        serde_json::from_slice(&isthmus(&["devices", "--json"], config).stdout).expect("JSON");
    let devices = json["devices"].as_array().expect("a list");
    let mut names: Vec<_> = devices.iter().filter_map(|device| device["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["bad", "good", "raw"]);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let output = isthmus(&["devices"], "[device.wan]\nsubnet = 1\nwindow = 3\n");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("site.toml:3: window = 3: unknown field `window`"), "{said}");
}

#[test]
fn every_measurement_ends_and_tells_its_figures() {
    for (words, rows) in [
        (&["bench", "pingpong", "--count", "50", "--alone", "--json"][..], 3),
        (&["bench", "pingpong", "--count", "50", "--level", "ro"][..], 3),
        (&["bench", "stream", "--count", "100", "--size", "1000B", "--json"][..], 3),
        // Two rows a round, with plain TCP's, and then their medians.
        (&["bench", "rma", "--count", "10", "--rounds", "2", "--json"], 9),
        (&["bench", "rma", "--count", "20", "--size", "100KiB", "--depth", "3", "--json"][..], 2),
    ] {
        let output = isthmus(words, LOOPBACK);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{words:?}: {said}{}", text(&output.stderr));
        assert!(said.lines().count() >= rows, "{words:?}: {said}");
        if words.contains(&"--json") {
            for line in said.lines() {
                let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
                assert!(row["version"] == 1 && row["figures"].is_object(), "{line}");
            }
        }
    }
}
