//! Runs C programs through the system's libfabric, where there is one to build against.

#[path = "../../isthmus-io/tests/support/hung.rs"]
mod hung;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The provider under the name that libfabric looks for, in a folder of its own.
fn provider(folder: &Path) {
    let test = std::env::current_exe().expect("the test's own path");
    let built = test.with_file_name("libisthmus_fi.so");
    std::fs::copy(built, folder.join("libisthmus-fi.so")).expect("the library was built");
}

/// Builds a C program of this folder; `None` where there is no libfabric to build against.
fn build(name: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return None;
    }
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wno-deprecated-declarations", "-pthread", "-o"])
        .args([&program, &source])
        // What loads libfabric itself must not have it already.
        .args(["-Wl,--as-needed", "-lfabric", "-ldl"])
        .status()
        .expect("a C compiler");
    assert!(built.success(), "{name}.c does not build");
    Some(program)
}

/// Runs a program over the provider; it must find nothing wrong within `limit`.
fn run(name: &str, words: &[&str], limit: Duration) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = build(name, folder.path()) else {
        eprintln!("skipped: no libfabric headers (Debian: libfabric-dev)");
        return;
    };
    provider(folder.path());
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", &limit.as_secs().to_string()])
        .arg(program)
        .args(words)
        .env("FI_PROVIDER_PATH", folder.path())
        .env("FI_PROVIDER", "isthmus");
    let output = hung::output(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// A bound for a program that hangs; on a machine of its own each takes seconds.
const LONG_ENOUGH: Duration = Duration::from_secs(120);

#[test]
fn a_c_program_finds_every_object_and_operation_as_the_manual_says() {
    run("provider", &[], LONG_ENOUGH);
}

#[test]
fn objects_need_what_they_use_and_last_as_long_as_they_are_used() {
    run("objects", &[], LONG_ENOUGH);
}

#[test]
fn habits_of_known_clients_are_met() {
    run("habits", &[], LONG_ENOUGH);
}

#[test]
fn what_is_claimed_is_there_and_the_rest_is_refused() {
    run("claims", &[], LONG_ENOUGH);
}

#[test]
fn operations_keep_the_order_that_was_asked_for() {
    run("orders", &[], LONG_ENOUGH);
}

#[test]
fn groups_do_together_what_their_operations_say() {
    run("collectives", &[], LONG_ENOUGH);
}

#[test]
fn what_programs_of_others_rely_on_is_there() {
    run("corners", &[], LONG_ENOUGH);
}

#[test]
fn operations_wait_for_counters_and_regions_count_accesses() {
    run("triggers", &[], LONG_ENOUGH);
}

#[test]
fn datagrams_are_what_they_claim_and_no_more() {
    run("datagrams", &[], LONG_ENOUGH);
}

#[test]
fn threads_that_sleep_are_woken_whoever_polls() {
    run("sleepers", &[], LONG_ENOUGH);
}

#[test]
fn endpoints_close_while_other_threads_turn_them() {
    run("closers", &[], LONG_ENOUGH);
}

#[test]
fn many_threads_share_endpoints_while_signals_come_and_children_are_forked() {
    run("threads", &[], LONG_ENOUGH);
}

#[test]
fn ten_thousand_openings_leave_neither_memory_nor_descriptors() {
    run("lifecycle", &["cycles"], 5 * LONG_ENOUGH);
}

#[test]
fn without_descriptors_opening_is_an_error_that_leaves_nothing() {
    run("lifecycle", &["descriptors"], LONG_ENOUGH);
}

#[test]
fn a_process_may_end_in_the_middle_of_a_transfer() {
    run("lifecycle", &["exit"], LONG_ENOUGH);
    run("lifecycle", &["_exit"], LONG_ENOUGH);
}

#[test]
fn libfabric_may_be_unloaded_under_an_open_endpoint() {
    run("unload", &["libfabric.so.1"], LONG_ENOUGH);
}

#[test]
fn what_was_lent_is_the_programs_again_once_its_endpoint_is_closed() {
    for by in ["tcp", "udp", "memory"] {
        run("lenders", &[by], LONG_ENOUGH);
    }
}
