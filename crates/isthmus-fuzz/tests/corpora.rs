//! Every target with its corpus, and with inputs made from it: the same ones every time.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_fuzz::mutate::Mutator;
use isthmus_fuzz::{TARGETS, Target};

/// The corpus and the seeds, in an order that does not depend on the machine.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let corpus = target.corpus().unwrap_or_else(|error| panic!("{error}"));
    corpus.into_iter().chain((target.seeds)()).collect()
}

/// Says which input it was when the property does not hold.
fn check(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target.check(input))) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.fault", target.name));
        fs::write(&path, input).expect("a file");
        eprintln!("repeat by: cargo run -p isthmus-fuzz -- {} {}", target.name, path.display());
        resume_unwind(panic);
    }
}

/// Memory is counted for the whole process: one test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hold(name: &str) {
    let _turn = turn();
    let target = Target::named(name).expect("a target");
    let inputs = inputs(target);
    inputs.iter().for_each(|input| check(target, input));
    let mut mutator = Mutator::new(1);
    for _ in 0..target.mutations {
        check(target, &mutator.make(&inputs));
    }
}

macro_rules! targets_hold {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            hold($name);
        })*

        #[test]
        fn every_target_is_tested_here() {
            let tested = [$($name),*];
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), tested);
        }
    };
}

targets_hold! {
    commands_of_ranks_hold: "pmi",
    any_bytes_are_a_frame_or_no_frame: "frame",
    an_address_is_the_same_in_all_its_forms: "address",
    what_endpoints_say_is_understood_or_not: "conversation",
    any_text_is_a_map_or_has_faults_with_their_lines: "map",
    any_text_is_measurements_or_has_faults_with_their_lines: "measured",
    any_text_is_a_configuration_or_has_a_fault_with_its_place: "router-config",
    a_router_takes_a_hello_and_nothing_else_in_any_pieces: "hello",
    any_frames_on_a_link_are_taken_or_refused: "link",
    any_bytes_on_any_lanes_leave_the_engine_whole: "engine",
    any_bytes_of_a_transfer_are_read_or_refused: "mover",
    any_packets_at_a_port_are_taken_or_dropped: "udp",
    any_words_before_a_lanes_first_frame_are_answered_or_end_it: "meeting",
    any_frame_is_a_packet_or_none: "ethernet",
    any_bytes_in_a_ring_are_read_or_refused: "ring",
    any_calls_in_any_order_are_refused_at_most: "calls",
}

#[test]
fn corpora_are_small() {
    let _turn = turn();
    let bytes: usize = TARGETS.iter().flat_map(inputs).map(|input| input.len()).sum();
    assert!(bytes < 256 << 10, "{bytes} bytes");
}
