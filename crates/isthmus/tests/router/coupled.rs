//! A pair of coupled programs, and one endpoint on several devices, where sites are joined by
//! routers only.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use isthmus_substrate::{
    Access, Connection, Endpoint, EndpointOptions, Event, Level, RemoteOptions, SendOptions, Substrate,
};

use crate::harness::HANG;
use crate::site::Sites;

/// A device of an endpoint, as the configuration has it.
fn device(name: &str, as_id: u32, subnet: u32, router: SocketAddr, priority: u32) -> String {
    format!(
        "[device.{name}]\ninterface = \"127.0.0.1\"\nas_id = {as_id}\nsubnet = {subnet}\n\
         routers = [\"{router}\"]\npriority = {priority}\nlinger = \"2s\"\n"
    )
}

/// Where cargo put what it built.
fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_isthmus")).with_file_name(name);
    assert!(path.exists(), "{} is not built: run `cargo build --workspace --all-targets`", path.display());
    path
}

/// Runs both halves of the coupled pair, one at each site.
fn run(program: &Path, sites: &Sites) {
    let half = |name: &str, as_id: u32, router: SocketAddr, words: &[&str]| {
        let config = sites.world.write(name, &device("site", as_id, 1, router, 50));
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "120"]).arg(program).args(words);
        command.env("ISTHMUS_CONFIG", config).env_remove("EXAMPLE_DEVICE");
        command
    };
    let mut left = half("left.toml", 1, sites.r2[0], &[]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(left.stdout.take().expect("a pipe")).lines();
    let uri = lines.next().expect("an address").expect("text");
    assert!(uri.starts_with("isthmus://1.1/"), "{uri}");
    let right = half("right.toml", 2, sites.s1[0], &[&uri]).output().expect("it runs");
    let said = String::from_utf8_lossy(&right.stdout);
    assert!(
        right.status.success() && said.contains("bit by bit"),
        "{}: {said}{}",
        program.display(),
        String::from_utf8_lossy(&right.stderr)
    );
    assert!(left.wait().expect("it ends").success(), "{}: the left half", program.display());
}

#[test]
fn a_coupled_pair_at_two_sites_computes_what_one_program_does() {
    let sites = Sites::new();
    let _routers = sites.joined();
    run(&built("examples/coupled"), &sites);
    // The same in C.
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libisthmus.so.0");
    std::fs::copy(built("deps/libisthmus_c.so"), &library).expect("a copy");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = folder.path().join("coupled");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-rpath,$ORIGIN", "-o"])
        .args([&program, &root.join("examples/c/coupled.c"), &library])
        .arg("-I")
        .arg(root.join("include"))
        .status();
    assert!(compiled.expect("a C compiler").success());
    run(&program, &sites);
}

/// Takes events of all, and gives what `each` makes of the first that it takes.
fn events<T>(ends: &[&Endpoint], mut each: impl FnMut(usize, Event) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        for (index, end) in ends.iter().enumerate() {
            while let Some(event) = end.get_event().expect("open") {
                if let Some(found) = each(index, event) {
                    return found;
                }
            }
        }
        assert!(start.elapsed() < HANG, "what is waited for does not come");
    }
}

fn open(devices: &[String]) -> Endpoint {
    let substrate = Substrate::from_toml(&devices.concat(), "test").expect("valid");
    let devices = substrate.devices_named("*").expect("up");
    Endpoint::create_on(&devices, &EndpointOptions::default()).expect("loopback")
}

/// Connects the first to the second; its name at each.
fn connect(ends: [&Endpoint; 2], level: Level) -> [Connection; 2] {
    ends[0].connect(&ends[1].uri(), b"", level, 1, &Default::default()).expect("a route");
    let mut names = [None, None];
    events(&ends, |at, event| {
        match event {
            Event::Requested(request) => drop(ends[1].accept(request, 2).expect("granted")),
            Event::Connected { connection, .. } | Event::Accepted { connection, .. } => {
                names[at] = Some(connection);
            }
            other => panic!("{other:?}"),
        }
        Some([names[0]?, names[1]?])
    })
}

/// A message each way, and a write where the level has that.
fn exchange(ends: [&Endpoint; 2], names: [Connection; 2], level: Level) {
    for (from, to) in [(0, 1), (1, 0)] {
        let message: Vec<u8> = (0..20_000).map(|i| (i * 7 + from) as u8).collect();
        ends[from]
            .send(names[from], &message, &SendOptions { silent: true, ..Default::default() })
            .expect("sent");
        events(&ends, |at, event| match event {
            Event::Received(came) => {
                assert!(at == to && *came == *message);
                Some(())
            }
            other => panic!("{other:?}"),
        });
    }
    if level == Level::Uu {
        return;
    }
    let theirs =
        ends[1].register(1 << 20, Access { remote_read: false, remote_write: true }).expect("memory");
    let ours = ends[0].register(1 << 20, Access::default()).expect("memory");
    ours.write_at(0, &[9; 1 << 20]).expect("unused");
    let how = RemoteOptions { silent: true, message: Some(b"there"), ..Default::default() };
    ends[0].write(names[0], &ours, 0, &theirs.handle(), 0, 1 << 20, &how).expect("posted");
    events(&ends, |_, event| matches!(event, Event::Received(came) if *came == *b"there").then_some(()));
    let mut there = vec![0; 1 << 20];
    theirs.read_at(0, &mut there).expect("inside");
    assert!(there.iter().all(|byte| *byte == 9));
}

#[test]
fn one_endpoint_serves_two_subnets_and_another_site() {
    let sites = Sites::new();
    let _routers = sites.joined();
    let _r1 = sites.world.start(&sites.r1(""));
    let (a, b) = (device("a", 1, 1, sites.r2[0], 50), device("b", 1, 2, sites.r1[1], 50));
    let hub = open(&[a.clone(), b.clone()]);
    let peers = [open(&[a]), open(&[b]), open(&[device("c", 2, 1, sites.s1[0], 50)])];
    // Direct ways go before those by routers; to the other site either device's routers lead.
    let by = ["a", "b", "a"];
    for level in [Level::Uu, Level::Ru, Level::Ro] {
        for (peer, by) in peers.iter().zip(by) {
            let names = connect([&hub, peer], level);
            assert_eq!(hub.device_of(names[0]).expect("open").name(), by, "to {}", peer.uri());
            exchange([&hub, peer], names, level);
            let names = connect([peer, &hub], level);
            assert_eq!(hub.device_of(names[1]).expect("open").name(), by, "from {}", peer.uri());
            exchange([peer, &hub], names, level);
        }
    }
}

#[test]
fn where_the_router_of_a_preferred_device_is_gone_the_other_device_leads_to_the_site() {
    let sites = Sites::new();
    let _routers = sites.joined();
    // r1, by which b would reach the other site, does not run.
    let hub = open(&[device("a", 1, 1, sites.r2[0], 50), device("b", 1, 2, sites.r1[1], 80)]);
    let peer = open(&[device("c", 2, 1, sites.s1[0], 50)]);
    for level in [Level::Uu, Level::Ru, Level::Ro] {
        let names = connect([&hub, &peer], level);
        assert_eq!(hub.device_of(names[0]).expect("open").name(), "a");
        exchange([&hub, &peer], names, level);
    }
}
