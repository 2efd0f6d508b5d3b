//! Endpoints of one host, whose lanes go through shared memory.

mod support;

use std::time::Instant;

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

#[test]
fn short_messages_for_which_a_poll_had_no_room_come_with_the_next_ones() {
    const MESSAGES: u64 = 100;
    let (a, b) = (over("memory"), over("memory"));
    exchange(&a, &b);
    let peer = a.peer(&b.address()).expect("known");
    for room in [1, 8, 30, usize::MAX] {
        let mut buffers = [[0; 8]; MESSAGES as usize];
        for (tag, buffer) in (0..).zip(&mut buffers) {
            recv(&b, None, tag, buffer);
        }
        // Where the ring is full, a message is read from its buffer until it is completed.
        let mut messages: Vec<[u8; 8]> = (0..MESSAGES).map(u64::to_le_bytes).collect();
        for (tag, message) in (0..).zip(&mut messages) {
            send(&a, peer, tag, message);
        }
        let (mut done, mut sent, start) = (Vec::new(), Vec::new(), Instant::now());
        while done.len() < MESSAGES as usize || sent.len() < MESSAGES as usize {
            in_time(start.elapsed() < LIMIT, || format!("only {} came, {} went", done.len(), sent.len()));
            a.poll(&mut sent);
            if done.len() < MESSAGES as usize {
                // Asleep before messages that are there it would stay so.
                b.wait(Some(LIMIT));
            }
            b.poll_some(room, &mut done);
        }
        assert!(done.iter().map(|completion| completion.tag).eq(0..MESSAGES));
        assert!((0..).zip(&buffers).all(|(tag, buffer)| u64::from_le_bytes(*buffer) == tag));
    }
    a.close();
    b.close();
}
