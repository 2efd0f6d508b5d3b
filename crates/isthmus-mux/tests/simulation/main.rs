//! Two ends of a link in virtual time: what lanes promise, over many seeds.

mod link;

use isthmus_lab::rng::SplitMix64;
use isthmus_mux::{Limits, PIECE, Read, SHARE};

use crate::link::{MuxPair, Reader};

const MB: u64 = 1_000_000;
const LIMITS: Limits = Limits { lanes: 64, base: 256 << 10, pool: 96 << 20 };
/// 1 Gb/s, in bytes per microsecond.
const GIGABIT: f64 = 125.0;

#[test]
fn storms_arrive_as_they_were_sent_and_all_credit_comes_back() {
    for seed in 0..400 {
        let mut rng = SplitMix64::new(seed);
        let limits = Limits {
            lanes: 1 + rng.below(12) as u32,
            base: 2 * PIECE as u32 + rng.below(100_000) as u32,
            pool: rng.below(3) * rng.below(400_000),
        };
        let mut link = MuxPair::new(seed, [limits; 2], rng.below(50_000), 1.0 + rng.below(200) as f64);
        for _ in 0..rng.below(40) {
            let from = rng.below(2) as usize;
            let lane = link.open_with(from, |rng| match rng.below(8) {
                0 => Reader::never(),
                1 => Reader::until(rng.below(50_000)),
                _ => Reader::paced(1 + rng.below(70_000) as usize, rng.below(3_000)),
            });
            if let Some(lane) = lane {
                for end in 0..2 {
                    let len = rng.below(3) * rng.below(300_000);
                    if rng.below(10) == 0 { link.abandon(end, lane, len) } else { link.send(end, lane, len) }
                }
            }
            link.run_for(rng.below(100_000));
        }
        link.run_for(200_000);
        link.finish();
        link.expect_rest();
    }
}

#[test]
fn one_lane_has_the_whole_of_a_long_path_from_its_first_byte_on() {
    let rtt = 366_000;
    let mut link = MuxPair::new(1, [LIMITS; 2], rtt / 2, GIGABIT);
    link.run_for(rtt);
    let lane = link.open_with(0, |_| Reader::eager()).expect("greeted");
    let start = link.now();
    link.send(0, lane, 500 * MB);
    link.finish();
    let floor = 500.0 * MB as f64 / GIGABIT + rtt as f64 / 2.0;
    let took = (link.finished_at(1, lane) - start) as f64;
    assert!(took < 1.02 * floor, "{took} of {floor} us");
}

#[test]
fn lanes_whose_receivers_stand_still_leave_room_for_others() {
    let rtt = 100_000;
    for still in [1, 4, 32] {
        let mut link = MuxPair::new(2, [LIMITS; 2], rtt / 2, GIGABIT);
        link.run_for(rtt);
        for _ in 0..still {
            let lane = link.open_with(0, |_| Reader::never()).expect("room");
            link.send(0, lane, 200 * MB);
        }
        link.run_for(5_000_000);
        let held = link.held(1);
        assert!(held <= LIMITS.pool + still * u64::from(LIMITS.base), "{held}");
        let lane = link.open_with(0, |_| Reader::eager()).expect("room");
        let start = link.now();
        link.send(0, lane, 20 * MB);
        link.run_until(|link| link.has_finished(1, lane));
        // The others left so much of the pool; what it takes of that is under way at a time.
        let (share, base) = (SHARE as f64, f64::from(LIMITS.base));
        let left = LIMITS.pool as f64 / (1.0 + share * still as f64);
        let part = base + left * share / (1.0 + share);
        let rate = GIGABIT.min(part / rtt as f64);
        let floor = 20.0 * MB as f64 / rate + rtt as f64;
        let took = (link.finished_at(1, lane) - start) as f64;
        assert!(took < 1.2 * floor, "{still} still: {took} of {floor} us");
    }
}

#[test]
fn a_small_message_waits_for_one_piece_of_each_busy_lane_at_most() {
    let mut link = MuxPair::new(3, [LIMITS; 2], 50, GIGABIT);
    link.run_for(1000);
    for _ in 0..4 {
        let lane = link.open_with(0, |_| Reader::eager()).expect("room");
        link.send(0, lane, 100 * MB);
    }
    link.run_for(50_000);
    let lane = link.open_with(0, |_| Reader::eager()).expect("room");
    let start = link.now();
    link.send(0, lane, 8);
    link.run_until(|link| link.has_finished(1, lane));
    let took = link.finished_at(1, lane) - start;
    // Four pieces before each of Open, data and end, and what the carrier holds already.
    let queued = (4 * 3 * PIECE) as u64 + link::CARRIER as u64;
    assert!(took < queued / 125 + 1000, "{took} us");
}

#[test]
fn busy_lanes_get_equal_parts() {
    let mut link = MuxPair::new(4, [LIMITS; 2], 12_000, GIGABIT);
    link.run_for(24_000);
    let lanes: Vec<_> = (0..5).map(|_| link.open_with(0, |_| Reader::eager()).expect("room")).collect();
    for lane in &lanes {
        link.send(0, *lane, 1000 * MB);
    }
    link.run_for(1_000_000);
    let got: Vec<_> = lanes.iter().map(|lane| link.received(1, *lane)).collect();
    let (least, most) = got.iter().fold((u64::MAX, 0), |(least, most), n| (least.min(*n), most.max(*n)));
    assert!(least > 20 * MB && most < least + MB, "{got:?}");
}

#[test]
fn what_is_given_up_is_told_and_its_credit_is_free() {
    let mut link = MuxPair::new(5, [LIMITS; 2], 1000, GIGABIT);
    link.run_for(2000);
    let lane = link.open_with(0, |_| Reader::never()).expect("room");
    link.send(0, lane, 200 * MB);
    link.run_for(1_000_000);
    assert!(link.mux(0).counters().credit < LIMITS.pool);
    link.mux(0).release(lane);
    link.run_for(10_000);
    assert_eq!(link.mux(0).counters().credit, LIMITS.pool);
    assert_eq!(link.mux(1).read(lane, &mut [0; 16]), Read::Reset);
    assert_eq!(link.held(1), 0);
    link.mux(1).release(lane);
    assert_eq!((link.mux(0).lanes(), link.mux(1).lanes()), (0, 0));
}

#[test]
fn no_more_lanes_are_opened_than_the_other_end_takes() {
    let few = Limits { lanes: 2, ..LIMITS };
    let mut link = MuxPair::new(6, [LIMITS, few], 1000, GIGABIT);
    assert!(link.open_with(0, |_| Reader::eager()).is_none(), "the other end has not told its limits");
    link.run_for(2000);
    let lanes: Vec<_> = (0..2).map(|_| link.open_with(0, |_| Reader::eager()).expect("room")).collect();
    assert!(link.open_with(0, |_| Reader::eager()).is_none());
    assert!(link.open_with(1, |_| Reader::eager()).is_some());
    for lane in lanes {
        link.send(0, lane, 10);
        link.send(1, lane, 10);
    }
    link.run_for(10_000);
    assert!(link.open_with(0, |_| Reader::eager()).is_some());
}
