//! Endpoints of one host, whose lanes go through shared memory.

mod support;

use isthmus_io::Endpoint;
use support::*;

fn go_by(a: &Endpoint, b: &Endpoint, what: &str) {
    let carriers = [a.carriers(), b.carriers()].concat();
    assert!(!carriers.is_empty() && carriers.iter().all(|by| by == what), "{carriers:?}");
}

#[test]
fn lanes_on_one_host_go_by_memory() {
    let (a, b) = (over("memory"), over("memory"));
    exchange(&a, &b);
    go_by(&a, &b, "memory");
    a.close();
    b.close();
}

#[test]
fn a_lane_of_which_one_end_wants_none_stays_tcp() {
    for (one, other) in [("memory", "off"), ("", "memory")] {
        let (a, b) = (over(one), over(other));
        exchange(&a, &b);
        go_by(&a, &b, "TCP");
        a.close();
        b.close();
    }
}

#[test]
fn transfers_go_on_while_nobody_polls() {
    let (a, b) = (over("memory"), over("memory"));
    carries_on_unpolled(&a, &b);
    a.close();
    b.close();
}

#[test]
fn sleepers_at_both_ends_are_woken() {
    let (a, b) = (over("memory"), over("memory"));
    bounce_asleep(&a, &b, |round| if round % 10 == 0 { 100_000 } else { 8 });
    a.close();
    b.close();
}

#[test]
fn an_endpoint_that_closes_is_noticed_by_those_that_wait_for_it() {
    let (a, b) = (over("memory"), over("memory"));
    closing_is_noticed(&a, &b);
}
