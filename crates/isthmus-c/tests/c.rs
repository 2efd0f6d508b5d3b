//! C programs over the library: what they see of it, and what the examples do.

#[path = "../../isthmus-io/tests/support/hung.rs"]
mod hung;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use isthmus_c::types::{
    ABI_VERSION, ANY_WORKER, ConnectionName, CountersRecord, DeviceRecord, EndpointName, EventRecord,
    LayoutRecord, MemoryBytes, NameHandle, OptionsRecord, RegionName, ScheduleName, Status, TARGETS_MAX,
};

/// A bound for a program that hangs; on a machine of its own each takes seconds. Seconds.
const LONG_ENOUGH: &str = "120";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library under the name by which programs find it, in a folder of its own.
fn library(folder: &Path) {
    let test = std::env::current_exe().expect("the test's own path");
    let built = test.with_file_name("libisthmus_c.so");
    std::fs::copy(built, folder.join("libisthmus.so.0")).expect("the library was built");
    std::os::unix::fs::symlink("libisthmus.so.0", folder.join("libisthmus.so")).expect("a fresh folder");
}

fn build(source: &Path, folder: &Path) -> PathBuf {
    let program = folder.join(source.file_stem().expect("a name"));
    let built = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&program, source])
        .arg("-I")
        .arg(root().join("include"))
        .arg("-L")
        .arg(folder)
        .args(["-listhmus", "-Wl,-rpath,$ORIGIN"])
        .status()
        .expect("a C compiler");
    assert!(built.success(), "{} does not build", source.display());
    program
}

fn command(program: &Path, folder: &Path, words: &[&str]) -> Command {
    let config = folder.join("isthmus.toml");
    std::fs::write(&config, "[device]\ninterface = \"127.0.0.1\"\n").expect("written");
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", LONG_ENOUGH]).arg(program).args(words).env("ISTHMUS_CONFIG", config);
    command
}

/// Runs an example's two sides: the one that waits, and with its address the other.
fn example(name: &str, waiting: &[&str], other: &[&str]) -> String {
    example_on("[device]\ninterface = \"127.0.0.1\"\n", ["default"; 2], name, waiting, other)
}

/// As [`example`], as configured, and on these devices.
fn example_on(config: &str, on: [&str; 2], name: &str, waiting: &[&str], other: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let source = root().join("examples/c").join(name).with_extension("c");
    let program = build(&source, folder.path());
    let command = |on: &str, words: &[&str]| {
        let mut command = command(&program, folder.path(), words);
        std::fs::write(folder.path().join("isthmus.toml"), config).expect("written");
        command.env("EXAMPLE_DEVICE", on);
        command
    };
    let mut server =
        command(on[0], waiting).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it starts");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let uri = lines.next().expect("an address").expect("text");
    assert!(uri.starts_with("isthmus://"), "{uri}");
    let words: Vec<&str> =
        other.iter().map(|word| if *word == "URI" { uri.as_str() } else { word }).collect();
    let client = hung::output(&mut command(on[1], &words));
    let said = String::from_utf8_lossy(&client.stdout).into_owned();
    assert!(
        client.status.success(),
        "{name}: {}: {said}{}",
        client.status,
        String::from_utf8_lossy(&client.stderr)
    );
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let waiting = hung::wait(&mut server, format_args!("{name}: the waiting side"));
    assert!(waiting.success(), "{name}: the waiting side: {rest:?}");
    said
}

#[test]
fn ping_pong_at_every_level() {
    for level in ["uu", "ru", "ro"] {
        let said = example("pingpong", &[], &[level, "URI", "500"]);
        assert!(said.contains("round trip"), "{said}");
    }
}

#[test]
fn a_pipeline_of_writes_is_right_to_the_byte() {
    example("rma_pipeline", &[], &["URI"]);
}

#[test]
fn requests_are_accepted_and_rejected_by_their_payload() {
    let said = example("accept_reject", &[], &["URI"]);
    assert!(said.contains("it is a fish"), "{said}");
}

#[test]
fn a_stream_without_copies_is_whole_and_in_order() {
    example("stream", &[], &["URI"]);
}

#[test]
fn remote_calls_are_answered_each_once() {
    example("rpc", &[], &["URI"]);
}

#[test]
fn a_store_is_read_without_its_servers_part() {
    example("keyvalue", &[], &["URI"]);
}

#[test]
fn a_beacon_is_heard() {
    example("beacon", &[], &["URI"]);
}

#[test]
fn a_coupled_pair_computes_what_one_program_does() {
    let said = example("coupled", &[], &["URI"]);
    assert!(said.contains("bit by bit"), "{said}");
}

/// Two devices of this host, in two subnets.
const TWO: &str =
    "[device]\ninterface = \"127.0.0.1\"\n[device.site]\nsubnet = 1\n[device.wan]\nsubnet = 2\n";

#[test]
fn one_endpoint_serves_peers_of_two_subnets() {
    for side in ["site", "wan"] {
        let said = example_on(TWO, ["*", side], "coupled", &[], &["URI"]);
        assert!(said.contains("bit by bit"), "{said}");
    }
}

#[test]
fn mistakes_are_refused_with_a_text() {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let program = build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse.c"), folder.path());
    let output = hung::output(&mut command(&program, folder.path(), &[]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_gets_the_log_and_the_counters() {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let program = build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/told.c"), folder.path());
    let run = |level: Option<&str>| {
        let mut command = command(&program, folder.path(), &[]);
        match level {
            Some(level) => command.env("ISTHMUS_LOG", level),
            None => command.env_remove("ISTHMUS_LOG"),
        };
        let output = hung::output(&mut command);
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{level:?}: {}: {complained}", output.status);
        complained
    };
    // The program takes the log over after its first connection.
    assert_eq!(run(None), "", "there is nothing to warn of");
    assert_eq!(run(Some("off")), "");
    assert!(run(Some("info")).contains("isthmus: lane 0, dialled, goes by"));
}

/// Programs in C die of SIGPIPE by default. The library's log is no reason for that.
#[test]
fn a_program_outlives_the_reader_of_its_log() {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let program = build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/told.c"), folder.path());
    let mut command = command(&program, folder.path(), &[]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut child = command.env("ISTHMUS_LOG", "debug").stderr(writer).spawn().expect("it starts");
    let ended = hung::wait(&mut child, format_args!("a program without a reader of its log"));
    assert!(ended.success(), "{ended}");
}

#[test]
fn hostile_programs_do_no_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let program = build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile.c"), folder.path());
    let mut command = command(&program, folder.path(), &[]);
    // What is left when an endpoint is destroyed does not have to arrive.
    let config = "[device]\ninterface = \"127.0.0.1\"\nlinger = \"200ms\"\n";
    std::fs::write(folder.path().join("isthmus.toml"), config).expect("written");
    let output = hung::output(command.env("HOSTILE_LIMITS_MEMORY", "yes"));
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn c_sees_every_structure_and_number_as_the_library_does() {
    let folder = tempfile::tempdir().expect("a folder");
    library(folder.path());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.c");
    let program = build(&source, folder.path());
    let output = hung::output(&mut command(&program, folder.path(), &[]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), layout());
}

fn layout() -> String {
    let mut out = String::new();
    handles(&mut out);
    records(&mut out);
    let _ = writeln!(out, "ISTHMUS_ABI_VERSION {ABI_VERSION}");
    for (name, status) in STATUSES {
        let _ = writeln!(out, "ISTHMUS_{name} {}", *status as i32);
    }
    out
}

/// Prints the length of a structure, and the offsets of these fields.
macro_rules! record {
    ($out:ident, $name:literal, $type:ty $(, $field:ident)*) => {
        let _ = writeln!($out, "{} {}", $name, size_of::<$type>());
        $(let _ = writeln!($out, "{}.{} {}", $name, stringify!($field), offset_of!($type, $field));)*
    };
}

fn handles(out: &mut String) {
    record!(out, "isthmus_endpoint", EndpointName);
    record!(out, "isthmus_connection", ConnectionName);
    record!(out, "isthmus_region", RegionName);
    record!(out, "isthmus_name", NameHandle);
    record!(out, "isthmus_schedule", ScheduleName);
    record!(out, "isthmus_layout", LayoutRecord, stripe, count, targets);
    let _ = writeln!(out, "ISTHMUS_TARGETS_MAX {TARGETS_MAX}\nISTHMUS_ANY_WORKER {ANY_WORKER}");
    record!(out, "isthmus_memory", MemoryBytes);
}

fn records(out: &mut String) {
    record!(
        out,
        "isthmus_device",
        DeviceRecord,
        name,
        transport,
        interface,
        address,
        why,
        rate_bps,
        as_id,
        subnet,
        priority,
        up,
        routers,
        reserved
    );
    record!(
        out,
        "isthmus_endpoint_options",
        OptionsRecord,
        size,
        recv_buffers,
        send_buffers,
        message_max,
        backlog,
        send_timeout_us,
        keepalive_us,
        port,
        reserved
    );
    record!(
        out,
        "isthmus_event",
        EventRecord,
        kind,
        status,
        connection,
        context,
        operation,
        data,
        len,
        level,
        reason,
        text,
        token
    );
    record!(
        out,
        "isthmus_counters",
        CountersRecord,
        size,
        sent_bytes,
        received_bytes,
        messages_sent,
        datagrams_sent,
        datagrams_received,
        fragments_resent,
        lanes,
        rtt_us
    );
}

const STATUSES: &[(&str, Status)] = &[
    ("SUCCESS", Status::Success),
    ("AGAIN", Status::Again),
    ("INVALID", Status::Invalid),
    ("STALE", Status::Stale),
    ("FULL", Status::Full),
    ("TOO_LONG", Status::TooLong),
    ("STATE", Status::State),
    ("LEVEL", Status::Level),
    ("MEMORY", Status::Memory),
    ("CONFIGURATION", Status::Configuration),
    ("DEVICE", Status::Device),
    ("SYSTEM", Status::System),
    ("UNREACHABLE", Status::Unreachable),
    ("CLOSED", Status::Closed),
    ("INTERNAL", Status::Internal),
    ("UNINITIALISED", Status::Uninitialised),
    ("TIMED_OUT", Status::TimedOut),
    ("REJECTED", Status::Rejected),
    ("BUSY", Status::Busy),
    ("VERSION", Status::Version),
    ("DISCONNECTED", Status::Disconnected),
    ("PEER_GONE", Status::PeerGone),
    ("REMOTE_ACCESS", Status::RemoteAccess),
    ("PROTOCOL", Status::Protocol),
];
