//! What no end does is told, and costs nothing.

mod bytes;

use isthmus_mux::{Event, Fault, LaneId, Limits, Mux, PIECE};

use crate::bytes::take_in;

const LIMITS: Limits = Limits { lanes: 4, base: 2 * PIECE as u32, pool: 100_000 };

/// Everything that `from` has to say, taken in by `to`.
fn pass(from: &mut Mux, to: &mut Mux) -> Result<(), Fault> {
    while let Some(piece) = from.poll_output() {
        take_in(to, piece.filled())?;
        from.give_piece(piece);
    }
    Ok(())
}

fn frame(kind: u8, lane: u32, number: u32) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(lane.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    if kind == 3 {
        bytes.resize(bytes.len() + number as usize, 7);
    }
    bytes
}

const OPEN: u8 = 2;
const DATA: u8 = 3;
const CREDIT: u8 = 4;
const FINISH: u8 = 5;
const RESET: u8 = 6;
const BEAT: u8 = 7;

/// An end that was greeted, and on which lane 0 was opened from there and 1 from here.
fn greeted() -> Mux {
    let (mut there, mut here) = (Mux::new(true, LIMITS), Mux::new(false, LIMITS));
    pass(&mut there, &mut here).expect("greeted");
    assert_eq!(here.open(), Some(LaneId(1)));
    take_in(&mut here, &frame(OPEN, 0, 0)).expect("opened");
    assert_eq!(here.poll_event(), Some(Event::Greeted));
    assert_eq!(here.poll_event(), Some(Event::Accepted(LaneId(0))));
    here
}

fn fault(frames: &[Vec<u8>]) -> Fault {
    take_in(&mut greeted(), &frames.concat()).expect_err("no end does that")
}

#[test]
fn frames_out_of_turn_are_faults() {
    assert_eq!(fault(&[frame(OPEN, 0, 0)]), Fault::Order, "a lane twice");
    assert_eq!(fault(&[frame(OPEN, 4, 0)]), Fault::Order, "a lane too far");
    assert_eq!(fault(&[frame(OPEN, 3, 0)]), Fault::Order, "a lane of ours");
    for kind in [DATA, CREDIT, FINISH, RESET] {
        assert_eq!(fault(&[frame(kind, 2, u32::from(kind < FINISH))]), Fault::Order, "no such lane");
        assert_eq!(fault(&[frame(kind, 3, u32::from(kind < FINISH))]), Fault::Order, "not opened yet");
    }
    assert_eq!(fault(&[frame(FINISH, 0, 0), frame(FINISH, 0, 0)]), Fault::Order);
    assert_eq!(fault(&[frame(FINISH, 0, 0), frame(DATA, 0, 10)]), Fault::Order);
    assert_eq!(fault(&[frame(1, 0, 20)]), Fault::Order, "a second greeting");
    let mut new = Mux::new(false, LIMITS);
    assert_eq!(take_in(&mut new, &frame(BEAT, 0, 0)), Err(Fault::Order), "no greeting");
}

#[test]
fn more_than_the_credit_is_a_fault() {
    let piece = PIECE as u32;
    let allowed = [frame(DATA, 0, piece), frame(DATA, 0, piece), frame(DATA, 1, piece)];
    let pool = frame(DATA, 0, piece);
    let mut mux = greeted();
    take_in(&mut mux, &allowed.concat()).expect("the base of each lane");
    for _ in 0..LIMITS.pool / u64::from(piece) {
        take_in(&mut mux, &pool).expect("the pool");
    }
    assert_eq!(take_in(&mut mux, &pool), Err(Fault::Overrun));
}

#[test]
fn giving_back_more_than_was_sent_is_a_fault() {
    assert_eq!(fault(&[frame(CREDIT, 1, 1)]), Fault::Credit);
}

#[test]
fn who_asks_and_does_not_read_the_answers_is_turned_away() {
    let mut mux = greeted();
    let mut opened = 1;
    let end = loop {
        if let Err(fault) = take_in(&mut mux, &frame(OPEN, 2 * opened, 0)) {
            break fault;
        }
        opened += 1;
        assert!(opened < 200_000, "answers pile up");
    };
    assert_eq!(end, Fault::Answers);
    assert_eq!(mux.lanes(), 1 + LIMITS.lanes as usize);
}

#[test]
fn what_comes_for_a_lane_that_was_given_up_is_dropped() {
    let mut mux = greeted();
    mux.release(LaneId(0));
    let late = [frame(DATA, 0, 100), frame(CREDIT, 0, 5), frame(FINISH, 0, 0), frame(RESET, 0, 0)];
    take_in(&mut mux, &late.concat()).expect("it was on its way");
    assert_eq!(mux.lanes(), 1);
}

#[test]
fn any_frames_in_any_order_never_panic() {
    let mut seed = 1_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    for _ in 0..3000 {
        let mut mux = greeted();
        let mut next = 2;
        for _ in 0..below(60) {
            let lane = below(8) as u32;
            let bytes = match below(10) {
                0 => {
                    next += 2;
                    frame(OPEN, next - 2, 0)
                }
                1..=4 => frame(DATA, lane, 1 + below(PIECE as u64) as u32),
                5 => frame(CREDIT, lane, below(5000) as u32),
                6 => frame(FINISH, lane, 0),
                7 => frame(RESET, lane, 0),
                8 => frame(below(9) as u8, lane, below(40) as u32),
                _ => frame(BEAT, 0, 0),
            };
            if take_in(&mut mux, &bytes).is_err() {
                break;
            }
            let lane = LaneId(below(8) as u32);
            match below(6) {
                0 => drop(mux.write(lane, &[1; 5000])),
                1 => drop(mux.read(lane, &mut [0; 9000])),
                2 => mux.finish(lane),
                3 => mux.release(lane),
                4 => {
                    while let Some(piece) = mux.poll_output() {
                        mux.give_piece(piece);
                    }
                }
                _ => {}
            }
            while mux.poll_event().is_some() {}
        }
    }
}
