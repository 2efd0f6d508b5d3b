//! Endpoints whose lanes move to a fabric of libfabric's: the system's library, and those of
//! its providers that need no hardware.

mod support;

use support::*;

/// Whether the system's libfabric is there; where it is not, there is nothing to test.
fn has_libfabric() -> bool {
    let found = std::process::Command::new("fi_info").arg("-l").output();
    found.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("shm"))
}

fn moves_over(wanted: &str, provider: &str) {
    if !has_libfabric() {
        return;
    }
    let (a, b) = (over(wanted), over(wanted));
    exchange(&a, &b);
    let carried = a.carriers();
    assert!(carried.iter().any(|by| by.starts_with(provider)), "the lane did not move: {carried:?}");
    a.close();
    b.close();
}

#[test]
fn lanes_move_to_shared_memory() {
    moves_over("shm", "shm");
}

#[test]
fn lanes_move_to_reliable_datagrams_over_tcp() {
    moves_over("tcp", "tcp");
}

#[test]
fn lanes_move_to_reliable_datagrams_over_udp() {
    moves_over("udp", "udp;ofi_rxd");
}

#[test]
fn the_first_fabric_that_both_have_is_taken() {
    moves_over("nonesuch,shm,tcp", "shm");
}

#[test]
fn a_lane_whose_ends_have_no_fabric_in_common_stays_tcp() {
    for (one, other) in [("shm", ""), ("", "shm"), ("shm", "tcp"), ("nonesuch", "shm")] {
        let (a, b) = (over(one), over(other));
        exchange(&a, &b);
        let carriers = [a.carriers(), b.carriers()].concat();
        assert!(!carriers.is_empty() && carriers.iter().all(|by| by == "TCP"), "{carriers:?}");
        a.close();
        b.close();
    }
}

#[test]
fn transfers_over_a_fabric_go_on_while_nobody_polls() {
    let (a, b) = (over("shm"), over("shm"));
    carries_on_unpolled(&a, &b);
    a.close();
    b.close();
}

#[test]
fn sleepers_at_both_ends_of_a_fabric_are_woken() {
    let (a, b) = (over("shm"), over("shm"));
    bounce_asleep(&a, &b, |_| 8);
    a.close();
    b.close();
}

#[test]
fn an_endpoint_that_closes_is_noticed_by_those_that_wait_for_it() {
    let (a, b) = (over("shm"), over("shm"));
    closing_is_noticed(&a, &b);
}
