//! `isthmus devices` and `isthmus bench` as their users see them.

use std::path::{Path, PathBuf};
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
fn a_transport_that_is_none_is_wrong_usage() {
    for test in ["pingpong", "stream", "rma", "serve"] {
        let output = isthmus(&["bench", test, "--transport", "nix"], LOOPBACK);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{test}: {said}");
        assert!(said.contains("possible values: tcp, udp, shm, ethernet]"), "{test}: {said}");
    }
}

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

/// What `isthmus devices` says of the device without a configuration, where an interface has only this address.
fn device_with(address: &str, interface: &str) -> Option<String> {
    let script = "ip link set lo up && ip link add near type veth peer name far \
                  && ip link set near up && ip link set far up \
                  && { [ -z \"$2\" ] || ip addr add \"$2\" dev near; } \
                  && until ip -6 addr show dev near | grep -q 'inet6 fe80'; do sleep 0.05; done \
                  && echo ready && exec \"$1\" devices";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "timeout", "60", "sh", "-c", script, "sh"]);
    command.args([env!("CARGO_BIN_EXE_isthmus"), address]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.env_remove("ISTHMUS_CONFIG").env("FI_ISTHMUS_INTERFACE", interface).output();
    let said = text(&output.expect("unshare(1) is there").stdout);
    let Some((_, said)) = said.split_once("ready\n") else {
        eprintln!("skipped: this host allows no network of one's own");
        return None;
    };
    Some(said.to_owned())
}

#[test]
fn link_local_addresses_of_this_host_are_seen() {
    // Two hosts that a cable joins may have nothing else.
    for interface in ["", "near", "169.254.3.1"] {
        let Some(said) = device_with("169.254.3.1/16", interface) else { return };
        assert!(said.contains("up: near at 169.254.3.1"), "{interface}: {said}");
    }
    let Some(said) = device_with("", "") else { return };
    assert!(said.contains("up: lo at 127.0.0.1") && said.contains("only link-local IPv6"), "{said}");
    let Some(said) = device_with("", "near") else { return };
    assert!(said.contains("down: interface `near` has only link-local IPv6 addresses"), "{said}");
}

#[test]
fn where_to_measure_is_checked_before_anything_is_printed() {
    for place in ["", "a,b,c", "isthmus://0.0/127.0.0.1:1,127.0.0.1:2,nix"] {
        let output = isthmus(&["bench", "pingpong", "--to", place], LOOPBACK);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{said}");
        assert!(place.is_empty() || said.contains(&format!("`{place}` is not what")), "{said}");
    }
    let output = isthmus(&["bench", "pingpong", "--device", "nonesuch"], LOOPBACK);
    let said = text(&output.stderr);
    assert!(said.contains("no device is called `nonesuch`") && !said.contains("``"), "{said}");
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

/// Measures on emulated WANs and hosts; the samples, and the page.
fn measured(words: &[&str], out: &Path) -> (Vec<serde_json::Value>, String) {
    let output = Command::new("timeout")
        .args(["--signal=KILL", "300", env!("CARGO_BIN_EXE_isthmus"), "bench"])
        .args(words)
        .arg("--out")
        .arg(out)
        .env_remove("ISTHMUS_CONFIG")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    let samples = read("samples.jsonl");
    let samples: Vec<serde_json::Value> =
        samples.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for sample in &samples {
        let version = sample["version"].as_str().unwrap_or_default();
        assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{sample}");
        assert!(sample["error"].is_null(), "{sample}");
    }
    (samples, read("report.html"))
}

fn can_have_a_lab() -> bool {
    let check =
        Command::new(env!("CARGO_BIN_EXE_isthmus")).args(["lab", "check"]).output().expect("it starts");
    if !check.status.success() {
        eprintln!("skipped: {}", text(&check.stdout));
    }
    check.status.success()
}

#[test]
fn a_wan_is_measured_from_its_lab_to_its_page() {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build");
    let (mpi, provider) = (build.join("mpi/mpich"), build.join("lib"));
    let has_mpi = mpi.join("bin/mpicc").is_file() && provider.join("libisthmus-fi.so").is_file();
    let has_iperf = Command::new("iperf3").arg("--version").output().is_ok_and(|ran| ran.status.success());
    let with = [(has_mpi, "isthmus"), (has_mpi, "stock-cubic"), (has_iperf, "iperf3-cubic-x1")];
    let with: Vec<_> = with.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if with.is_empty() {
        return eprintln!(
            "skipped: neither iperf3 nor build/mpi/mpich with build/lib (make test makes them)"
        );
    }
    if !can_have_a_lab() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (mpi, provider) = (mpi.display().to_string(), provider.display().to_string());
    let measure = |with: &[&str], work: &str, more: &[&str]| {
        let with = with.join(",");
        let words = ["wan", "--with", &with, "--work", work, "--mpi", &mpi, "--provider-path", &provider];
        let link = ["--rtt", "2ms", "--loss", "0%", "--seed", "5"];
        measured(&[&words[..], &link, more].concat(), &folder.path().join(work))
    };
    let quick = ["--size", "1", "--limit", "100s"];
    let (samples, page) = measure(&with, "stream", &quick);
    assert_eq!(samples.len(), with.len());
    for (sample, name) in samples.iter().zip(&with) {
        assert_eq!((sample["contender"].as_str(), sample["seed"].as_u64()), (Some(*name), Some(5)));
        assert!(sample["seconds"].as_f64() > Some(0.0), "{sample}");
        assert!(sample["congestion"].is_string() && sample["lab"].is_string(), "{sample}");
        assert!(page.contains(name) && page.contains("goodput, Mb/s"), "{name}");
    }
    if has_mpi {
        let (samples, page) = measure(&["isthmus"], "preposted", &quick);
        let shares: Vec<_> = samples.iter().filter_map(|sample| sample["ahead"].as_u64()).collect();
        assert_eq!(shares, [0, 10, 25, 50, 75, 90, 100]);
        assert!(samples.iter().all(|sample| sample["choices"][0].is_string()), "{samples:?}");
        assert!(page.contains("share of receives that are posted ahead"));
        let (samples, _) = measure(&["isthmus"], "paths", &quick);
        assert!(samples[0]["second"]["rtt"] == "60ms", "{samples:?}");
        let links = samples[0]["emulator"]["links"].as_array().expect("the lab's report");
        assert_eq!(links.len(), 2);
    }
    // 16 s at the least: nobody can have ended.
    let (samples, page) = measure(&with, "stream", &["--size", "20", "--rate", "10Mbit", "--limit", "500ms"]);
    assert!(samples.iter().all(|sample| sample["not_ended_s"].as_f64() == Some(0.5)), "{samples:?}");
    assert!(page.contains("did not end in the time that they had") && page.contains("&lt;"));
}

/// Services of others on this host, here at the port that isthmus serve has where none is named, are not in the way.
#[test]
fn a_copy_is_measured_on_this_host_and_over_a_lab() {
    // Where something listens there already, that is as good.
    let _in_the_way = std::net::TcpListener::bind("127.0.0.1:4200");
    let folder = tempfile::tempdir().expect("a folder");
    let provider = folder.path().display().to_string(); // none is needed
    let words = ["file", "--with", "cp", "--provider-path", &provider];
    let many = [&words[..], &["--loopback", "--files", "20"]].concat();
    let (samples, _) = measured(&many, &folder.path().join("many"));
    assert!(samples.len() == 1 && samples[0]["seconds"].as_f64() > Some(0.0), "{samples:?}");
    let words = [&words[..], &["--size", "1MB"]].concat();
    let (samples, page) = measured(&[&words[..], &["--loopback"]].concat(), &folder.path().join("here"));
    assert!(samples.len() == 1 && samples[0]["seconds"].as_f64() > Some(0.0), "{samples:?}");
    assert!(page.contains("loopback") && page.contains("<rect"), "a bar for it");
    if can_have_a_lab() {
        let (samples, _) = measured(&[&words[..], &["--rtt", "2ms"]].concat(), &folder.path().join("there"));
        assert_eq!(samples.len(), 1);
        assert!(samples[0]["emulator"]["links"].is_array(), "{samples:?}");
    }
}

/// The section that needs no MPI: maps, four organisations, and five networks, with their routers.
#[test]
fn a_section_of_the_papers_is_measured_from_its_labs_to_its_pages() {
    if !can_have_a_lab() {
        return;
    }
    let out = tempfile::tempdir().expect("a folder");
    let words = ["papers", "--only", "routes", "--provider-path", "/nonesuch", "--out"];
    let run = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "300", env!("CARGO_BIN_EXE_isthmus"), "bench"])
            .args(words)
            .arg(out.path());
        command.env_remove("ISTHMUS_CONFIG").output().expect("it starts")
    };
    let output = run(&words);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(out.path().join(name)).expect(name);
    let samples = read("samples.jsonl");
    assert_eq!(samples.lines().count(), 4, "{samples}");
    let page = read("papers.md");
    for told in [
        "| SN2 | 2,1 | - | 2,3 | 2,1,W* | 2,1,W4 |",
        "| 3,1,W4 of AS3, to AS4 | 125 | 125 |",
        "| 1,5,6,8 | 262 | 262 |",
        "| all five, through four routers | ",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(read("papers.html").contains("all five, through four routers"));
    std::fs::remove_file(out.path().join("papers.md")).expect("removed");
    assert!(run(&["papers", "--render"]).status.success());
    assert_eq!(read("papers.md"), page, "the same samples make the same page");
}

#[test]
fn the_papers_can_be_asked_for_their_plan_and_an_empty_folder_has_no_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().to_str().expect("a name");
    let output = isthmus(&["bench", "papers", "--render", empty], LOOPBACK);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("has no samples"), "{}", text(&output.stderr));
    let words = ["bench", "papers", "--dry-run", "--full", "--provider-path", empty, "--mpi", empty];
    let said = text(&isthmus(&words, LOOPBACK).stdout);
    for section in ["movement: ", "cci: ", "parallel: ", "distance: ", "protocols: ", "routes: "] {
        assert!(said.lines().any(|line| line.starts_with(section)), "{section}: {said}");
    }
    assert!(said.contains("left out: no ") && said.contains("--mpi"), "what is missing is named: {said}");
}

#[test]
fn collectives_can_be_asked_for_their_plan_and_say_what_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().to_str().expect("a name");
    let words = ["bench", "collectives", "--provider-path", empty, "--mpi", empty];
    let run = |more: &[&str]| isthmus(&[&words[..], more].concat(), LOOPBACK);
    let said = text(&run(&["--dry-run"]).stdout);
    assert!(said.starts_with("8 jobs, "), "two round trips, two losses, two transports: {said}");
    for told in ["MPICH over Isthmus: MiB 1", "order blocks,alternating", "100ms, 1%", "left out: no "] {
        assert!(said.contains(told), "{told}: {said}");
    }
    let said = text(&run(&["--dry-run", "--quick", "--rtt", "366ms"]).stdout);
    assert!(
        said.starts_with("2 jobs, ") && said.contains("order blocks, ranks 8, sites 2, 1Gbit 366ms, 0%"),
        "{said}"
    );
    let said = text(&run(&["--dry-run", "--whole"]).stdout);
    let jobs: Vec<_> = said.lines().filter(|line| line.contains("MPICH over Isthmus")).collect();
    assert!(said.starts_with("32 jobs, ") && jobs.len() == 16, "four layouts, four links: {said}");
    for (at, told) in [
        (0, "ranks 8, sites 2, 1Gbit 24ms, 0%"),
        (1, "ranks 8, sites 2, 1Gbit 100ms, 0%"),
        (2, "ranks 8, sites 2, 1Gbit 24ms, 1%"),
        (4, "ranks 12, sites 3, 1Gbit 24ms, 0%"),
        (15, "ranks 24, sites 3, 1Gbit 100ms, 1%"),
    ] {
        assert!(jobs[at].contains("MiB 1,16,64") && jobs[at].contains(told), "{told}: {}", jobs[at]);
    }
    for (words, status, told) in [
        (&["--out", empty][..], 3, "--mpi"),
        (&["--whole", "--ranks", "8"], 2, "cannot be used with"),
        (&["--render", empty], 3, "has no samples"),
        (&["--ranks", "5"], 2, "expected a multiple of 2"),
        (&["--ranks", "8", "--sites", "3"], 2, "expected a multiple of 3"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(status), "{words:?}");
        assert!(text(&output.stderr).contains(told), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn collectives_are_measured_from_their_lab_to_their_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mpi, provider) = (root.join("build/mpi/mpich"), root.join("build/lib"));
    let mpicc = mpi.join("bin/mpicc");
    if !mpicc.is_file() || !provider.join("libisthmus-fi.so").is_file() {
        return eprintln!("skipped: no build/mpi/mpich or build/lib (make test makes them)");
    }
    if !can_have_a_lab() {
        return;
    }
    let built = Command::new(root.join("tools/build-collectives.sh")).arg("mpich").arg(&mpicc).status();
    assert!(built.is_ok_and(|status| status.success()), "the library does not compile");
    let folder = tempfile::tempdir().expect("a folder");
    let [mpi, provider] = [mpi, provider].map(|path| path.display().to_string());
    let words = ["collectives", "--quick", "--rtt", "2ms", "--ranks", "4", "--mpi", &mpi, "--provider-path"];
    let (samples, page) = measured(&[&words[..], &[&provider]].concat(), folder.path());
    let count = |sample: &serde_json::Value| sample["results"].as_array().map_or(0, Vec::len);
    // Fourteen calls: by the library and past it, and over stock tcp.
    assert_eq!(samples.iter().map(count).collect::<Vec<_>>(), [28, 14], "{samples:?}");
    assert!(samples[0]["results"][0]["seconds"].as_f64() > Some(0.0), "{samples:?}");
    assert!(page.contains("Bcast 1 MiB, library") && page.contains("Bcast 1 MiB, stock tcp"), "{page}");
}
