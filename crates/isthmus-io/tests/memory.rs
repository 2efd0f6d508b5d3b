//! Endpoints of one host, whose lanes go through shared memory.

mod support;

use std::sync::Arc;
use std::time::Instant;

use isthmus_io::{Endpoint, Settings};
use support::*;

fn over(fabric: &str) -> Arc<Endpoint> {
    let settings = Settings { fabric: fabric.to_owned(), ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// Messages of many sizes both ways, some before and some after their receives.
fn exchange(a: &Endpoint, b: &Endpoint) {
    let (to_b, to_a) = (a.peer(&b.address()).expect("near"), b.peer(&a.address()).expect("near"));
    let sizes = [0, 1, 8, 4096, 8192, 8193, 12_288, 16_384, 16_385, 65_536, 100_000, 1 << 20, 20 << 20];
    for (tag, len) in sizes.into_iter().enumerate() {
        let (mut there, mut back) = (pattern(len, tag as u8), pattern(len, 100 + tag as u8));
        let (mut at_b, mut at_a) = (vec![0; len], vec![0; len]);
        let tag = tag as u64;
        recv(b, None, tag, &mut at_b);
        send(a, to_b, tag, &mut there);
        send(b, to_a, tag, &mut back);
        recv(a, None, tag, &mut at_a);
        let done = complete(&[a, b], 4);
        assert!(done.iter().all(|c| c.error.is_none() && c.len == len as u64), "{done:?}");
        assert!(there == at_b && back == at_a, "{len} bytes differ");
    }
}

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

/// Neither end polls: each message is noticed by who sleeps on its descriptor.
#[test]
fn sleepers_at_both_ends_are_woken() {
    const ROUNDS: u64 = 200;
    let (a, b) = (over("memory"), over("memory"));
    exchange(&a, &b);
    let bounce = |own: Arc<Endpoint>, other: isthmus_wire::Address, begins: bool| {
        std::thread::spawn(move || {
            let to = own.peer(&other).expect("near");
            let mut done = Vec::new();
            for round in 0..ROUNDS {
                let len = if round % 10 == 0 { 100_000 } else { 8 };
                let (mut out, mut got) = (vec![round as u8; len], vec![0; len]);
                recv(&own, None, round, &mut got);
                if begins {
                    send(&own, to, round, &mut out);
                }
                let mut count = usize::from(!begins);
                let start = Instant::now();
                while count < 2 {
                    own.wait(Some(LIMIT));
                    count += own.poll(&mut done);
                    assert!(start.elapsed() < LIMIT, "round {round}: nobody was woken");
                }
                assert!(done.iter().all(|c| c.error.is_none()), "{done:?}");
                assert_eq!(got, vec![round as u8; len]);
                if !begins {
                    send(&own, to, round, &mut out);
                    while done.len() < 2 * (round as usize + 1) {
                        own.wait(Some(LIMIT));
                        own.poll(&mut done);
                    }
                }
            }
        })
    };
    let threads = [bounce(a.clone(), b.address(), true), bounce(b.clone(), a.address(), false)];
    for thread in threads {
        thread.join().expect("woken every time");
    }
    a.close();
    b.close();
}

#[test]
fn an_endpoint_that_closes_is_noticed_by_those_that_wait_for_it() {
    let (a, b) = (over("memory"), over("memory"));
    exchange(&a, &b);
    let to_a = b.peer(&a.address()).expect("near");
    a.close();
    send(&b, to_a, 9, &mut [1; 8]);
    let done = complete(&[&b], 1);
    assert!(done[0].error.is_some(), "{done:?}");
    b.close();
}
