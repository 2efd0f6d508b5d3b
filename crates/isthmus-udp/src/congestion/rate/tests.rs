//! Tests of the rate control, sample by sample.

use isthmus_ledger::{Group, Plan};

use super::*;

/// The flow leads one other, which has nothing in flight.
fn leads_one(plan: Plan) -> Group {
    Group {
        leads: true,
        is_led: true,
        count: 2,
        share: 0.5,
        others_in_flight: 0,
        paused_in_flight: 0,
        delivered: 0,
        plan,
    }
}

/// The sender's processor is the bottleneck: no queue forms, and its data never ends.
#[test]
fn a_guess_does_not_run_away_from_what_arrives() {
    let mut rate = Rate::new(Limits::default());
    rate.recall(10_000_000, 24_000);
    let arrives_per_ms = 100_000;
    for ms in 0..10_000 {
        rate.on_ack(&AckSample {
            now: ms * 1_000,
            acked_bytes: arrives_per_ms,
            acked_packets: 11,
            lost_packets: 0,
            refused_packets: 0,
            marked_packets: 0,
            wait_us: None,
            read_span_us: 0,
            loss_run: 1.0,
            in_flight: 24 * arrives_per_ms,
            rtt_us: 24_000,
            rtt_least_us: 24_000,
            queue_us: Some(0),
            back_us: Some(0),
            span_us: 1_000,
            sent_span_us: 1_000,
            resumed: false,
            round_ended: ms % 24 == 0,
            app_limited: false,
            app_limited_lost: false,
            packet_bytes: 9_038,
            is_train: false,
        });
        assert!(rate.pace() <= 5 * 1_000 * arrives_per_ms, "{} bytes/s after {ms} ms", rate.pace());
    }
    assert!(rate.pace() >= 1_000 * arrives_per_ms, "{} bytes/s", rate.pace());
}

/// Delivers 18 packets in `span_us`, behind a queue. They took as long to leave.
fn arrive(rate: &mut Rate, now: &mut Micros, span_us: Micros, is_train: bool) {
    *now += span_us;
    rate.on_ack(&AckSample {
        now: *now,
        acked_bytes: 18 * 9_038,
        acked_packets: 18,
        loss_run: 1.0,
        rtt_us: 366_000,
        rtt_least_us: 366_000,
        queue_us: Some(2_000),
        span_us,
        sent_span_us: span_us,
        packet_bytes: 9_038,
        is_train,
        ..AckSample::default()
    });
}

/// Several endpoints of a host measure the path at once, and one has a message to send meanwhile.
#[test]
fn a_message_among_a_train_is_no_flight() {
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    for is_train in [true, true, false] {
        arrive(&mut rate, &mut now, 9_000, is_train);
    }
    assert_eq!((rate.phase(), rate.capacity()), ("start", None));
    (0..3).for_each(|_| arrive(&mut rate, &mut now, 1_300, false));
    assert!(rate.capacity().is_some_and(|it| it > 100_000_000), "{:?}", rate.capacity());
}

/// A flow waited for another to measure the path, and then leads with that. It has had next to nothing in flight for a
/// round trip.
#[test]
fn what_came_before_the_lead_was_taken_is_not_the_path() {
    let rtt_us = 24_000;
    let plan = Plan { capacity: 125_000_000, pace: 125_000_000, window: 3 << 20, loss: 0.0, rtt_us };
    let before = Plan { capacity: 0, window: 0, ..plan };
    let group = |leads| Group { leads, ..leads_one(if leads { plan } else { before }) };
    let mut rate = Rate::new(Limits::default());
    let mut now = 0;
    let mut arrive = |rate: &mut Rate, packets: u64, span_us, queue_us, round_ended| {
        now += span_us;
        rate.on_ack(&AckSample {
            now,
            acked_bytes: packets * 9_038,
            acked_packets: packets,
            loss_run: 1.0,
            rtt_us,
            rtt_least_us: rtt_us,
            queue_us: Some(queue_us),
            span_us,
            round_ended,
            packet_bytes: 9_038,
            ..AckSample::default()
        });
    };
    rate.on_group(0, Some(&group(false)));
    arrive(&mut rate, 4, rtt_us, 0, true);
    rate.on_group(rtt_us, Some(&group(true)));
    // First packets that left while another led, then packets that left since, beside that one's queue.
    arrive(&mut rate, 4, 3_000, 3_000, true);
    arrive(&mut rate, 4, rtt_us, 1_000, false);
    arrive(&mut rate, 12, 1_000, 1_000, true);
    assert!(rate.capacity().is_some_and(|it| it >= 100_000_000), "{:?}", rate.capacity());
}

/// A sender pauses within its first flight because its processor is busy elsewhere.
#[test]
fn a_pause_in_the_first_flight_is_not_the_path() {
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    (0..3).for_each(|_| arrive(&mut rate, &mut now, 1_300, true));
    for span_us in [1_300, 1_300, 16_000, 1_300, 1_300, 1_300] {
        arrive(&mut rate, &mut now, span_us, false);
    }
    assert!(rate.capacity().is_some_and(|it| it > 100_000_000), "{:?}", rate.capacity());
}

/// Delivers packets in `span_us` over a path of 100 ms, behind a queue, with losses. Returns the capacity known then.
fn learn(
    rate: &mut Rate,
    now: &mut Micros,
    (packets, lost_packets): (u64, u64),
    span_us: Micros,
    queue_us: Micros,
) -> Option<u64> {
    *now += span_us;
    rate.on_ack(&AckSample {
        now: *now,
        acked_bytes: packets * 9_038,
        acked_packets: packets,
        lost_packets,
        loss_run: 1.0,
        in_flight: 1 << 20,
        rtt_us: 100_000,
        rtt_least_us: 100_000,
        queue_us: Some(queue_us),
        span_us,
        packet_bytes: 9_038,
        ..AckSample::default()
    });
    rate.capacity()
}

/// Two messages each fill the window of start-up. Nothing is sent between them.
#[test]
fn a_pause_for_want_of_window_is_not_the_path() {
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    let mut arrive = |span_us, queue_us| learn(&mut rate, &mut now, (12, 0), span_us, queue_us);
    arrive(500, 1_500);
    arrive(400, 2_000);
    assert_eq!(arrive(43_000, 2_300), None);
    (0..3).for_each(|i| _ = arrive(868, 2_400 + 500 * i));
    assert!(arrive(868, 4_500).is_some_and(|it| it > 100_000_000), "{:?}", rate.capacity());
}

/// A message's first part waits behind a flow that measures the path. The rest leaves when the path is known, and some
/// of it is lost.
#[test]
fn a_pause_before_a_queue_is_not_the_path() {
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    let mut arrive = |packets, span_us, queue_us| learn(&mut rate, &mut now, packets, span_us, queue_us);
    arrive((3, 0), 4_500, 3_900);
    arrive((13, 1), 42_500, 1_100);
    (0..3).for_each(|i| _ = arrive((13, 0), 940, 2_200 + 1_000 * i));
    assert!(arrive((13, 0), 940, 5_200).is_some_and(|it| it > 100_000_000), "{:?}", rate.capacity());
}

/// A flow sends little at a time, behind another flow's queue.
#[test]
fn who_sends_little_behind_others_knows_nothing_of_the_path() {
    let mut rate = Rate::new(Limits::default());
    for round in 1..=100 {
        rate.on_ack(&AckSample {
            now: round * 900,
            acked_bytes: 9_038,
            acked_packets: 1,
            loss_run: 1.0,
            rtt_us: 1_200,
            rtt_least_us: 200,
            queue_us: Some(900),
            span_us: 900,
            round_ended: true,
            app_limited: true,
            packet_bytes: 9_038,
            ..AckSample::default()
        });
    }
    assert_eq!((rate.phase(), rate.capacity()), ("start", None));
}

/// Messages of a few packets. Sometimes the last packet is lost.
#[test]
fn a_pause_whose_marks_are_lost_is_not_the_path() {
    let mut rate = Rate::new(Limits::default());
    let pace = rate.pace();
    for round in 1..=100 {
        rate.on_ack(&AckSample {
            now: round * 100_000,
            acked_bytes: 9 * 9_038,
            acked_packets: 9,
            lost_packets: 1,
            loss_run: 1.0,
            rtt_us: 100_000,
            rtt_least_us: 100_000,
            queue_us: Some(0),
            span_us: 100_000,
            round_ended: true,
            app_limited: round % 2 == 0,
            app_limited_lost: round % 2 == 1,
            packet_bytes: 9_038,
            ..AckSample::default()
        });
    }
    assert_eq!((rate.phase(), rate.pace()), ("start", pace));
}

/// A round trip over a long path without a queue: `acked` packets arrive, and `lost` packets do not.
fn long_round(rate: &mut Rate, now: &mut Micros, acked: u64, lost: u64) {
    let rtt_us = 366_000;
    *now += rtt_us;
    rate.on_ack(&AckSample {
        now: *now,
        acked_bytes: acked * 9_038,
        acked_packets: acked,
        lost_packets: lost,
        loss_run: 1.0,
        rtt_us,
        rtt_least_us: rtt_us,
        queue_us: Some(0),
        span_us: rtt_us,
        round_ended: true,
        packet_bytes: 9_038,
        ..AckSample::default()
    });
}

/// Random losses before anything is known of them, in a round in which not all had begun to send.
#[test]
fn what_was_not_sent_yet_is_no_less_than_the_path_carries() {
    const CAPACITY: u64 = 125_000_000;
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    rate.recall(CAPACITY, 366_000);
    long_round(&mut rate, &mut now, 3_000, 31);
    let capacity = |rate: &Rate| rate.capacity().expect("known");
    assert!((CAPACITY * 88 / 100..CAPACITY).contains(&capacity(&rate)), "{}", capacity(&rate));
    // No single round tells that as much is lost as before; together they do.
    (0..5).for_each(|_| long_round(&mut rate, &mut now, 3_000, 17));
    assert!(capacity(&rate) >= CAPACITY, "{}", capacity(&rate));
}

/// A path gets more than it carries, and has hardly a queue.
#[test]
fn losses_of_a_full_path_are_not_taken_for_chance() {
    const CAPACITY: u64 = 125_000_000;
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    rate.recall(CAPACITY * 11 / 10, 366_000);
    rate.overflow = 0.5;
    // Packets sent and lost. No more arrive in a round trip than the path carries.
    let (mut sent, mut lost) = (0, 0);
    for _ in 0..40 {
        let packets = rate.pace() * 366 / 1_000 / 9_038;
        let acked = packets.min(CAPACITY * 366 / 1_000 / 9_038);
        long_round(&mut rate, &mut now, acked, packets - acked);
        (sent, lost) = (sent + packets, lost + packets - acked);
    }
    let capacity = rate.capacity().expect("known");
    assert!((CAPACITY * 95 / 100..CAPACITY * 106 / 100).contains(&capacity), "{capacity}");
    assert!(lost * 50 < sent, "{lost} of {sent}");
}

/// A path loses at random, however little is sent.
#[test]
fn chance_is_made_good() {
    const CAPACITY: u64 = 125_000_000;
    let (mut rate, mut now) = (Rate::new(Limits::default()), 0);
    rate.recall(CAPACITY, 366_000);
    rate.overflow = 0.5;
    for _ in 0..10 {
        let packets = rate.pace().min(CAPACITY) * 366 / 1_000 / 9_038;
        long_round(&mut rate, &mut now, packets * 95 / 100, packets * 5 / 100);
    }
    let capacity = rate.capacity().expect("known");
    assert!((CAPACITY * 97 / 100..CAPACITY * 2).contains(&capacity), "{capacity}");
}

/// Several flows start at once, and none sees what all have.
#[test]
fn a_part_of_the_path_is_soon_known_for_one() {
    const LINE: u64 = 125_000_000;
    let mut now = 0;
    let plan = Plan { capacity: 0, pace: 0, window: 0, loss: 0.0, rtt_us: 366_000 };
    let mut rate = Rate::new(Limits::default());
    rate.on_group(0, Some(&leads_one(plan)));
    (0..4).for_each(|_| arrive(&mut rate, &mut now, 3_900, false));
    let capacity = |rate: &Rate| rate.capacity().expect("known");
    assert!((35_000_000..50_000_000).contains(&capacity(&rate)), "{}", capacity(&rate));
    let mut rounds = 0;
    while capacity(&rate) < LINE * 9 / 10 {
        let packets = capacity(&rate).min(LINE) * 366 / 1_000 / 9_038;
        long_round(&mut rate, &mut now, packets, 0);
        rounds += 1;
        assert!(rounds <= 10 && capacity(&rate) < 2 * LINE, "{} after {rounds}", capacity(&rate));
    }
}

/// Two flows deliver in turn. All that the other delivers comes between two rounds of this one.
#[test]
fn what_others_deliver_between_two_rounds_counts() {
    const LINE: u64 = 10_000_000;
    let rtt_us = 24_000;
    let plan = Plan { capacity: LINE, pace: LINE, window: 300_000, loss: 0.0, rtt_us };
    let (mut rate, mut now, mut delivered) = (Rate::new(Limits::default()), 0, 0);
    rate.recall(LINE, rtt_us);
    for _ in 0..10 {
        (now, delivered) = (now + 12_000, delivered + 120_000);
        for ms in 0..12 {
            now += 1_000;
            let group = Group { others_in_flight: 120_000, delivered, ..leads_one(plan) };
            rate.on_group(now, Some(&group));
            rate.on_ack(&AckSample {
                now,
                acked_bytes: 10_000,
                acked_packets: 7,
                loss_run: 1.0,
                in_flight: 120_000,
                rtt_us: rtt_us + 3_000,
                rtt_least_us: rtt_us,
                queue_us: Some(3_000),
                span_us: if ms == 0 { 13_000 } else { 1_000 },
                sent_span_us: if ms == 0 { 13_000 } else { 1_000 },
                round_ended: ms == 11,
                packet_bytes: 1_538,
                ..AckSample::default()
            });
            delivered += 10_000;
        }
    }
    let capacity = rate.capacity().expect("known");
    assert!((LINE * 9 / 10..LINE * 11 / 10).contains(&capacity), "{capacity}");
}
