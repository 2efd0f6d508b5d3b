//! Start-up of the rate control, sample by sample.

use super::*;

/// A sender whose processor is the bottleneck: no queue, and never at the end of its data.
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
            loss_run: 1.0,
            in_flight: 24 * arrives_per_ms,
            rtt_us: 24_000,
            rtt_least_us: 24_000,
            queue_us: Some(0),
            span_us: 1_000,
            resumed: false,
            round_ended: ms % 24 == 0,
            app_limited: false,
            packet_bytes: 9_038,
            is_train: false,
        });
        assert!(rate.pace() <= 5 * 1_000 * arrives_per_ms, "{} bytes/s after {ms} ms", rate.pace());
    }
    assert!(rate.pace() >= 1_000 * arrives_per_ms, "{} bytes/s", rate.pace());
}

/// A sender that pauses within its first flight, its processor being busy elsewhere.
#[test]
fn a_pause_in_the_first_flight_is_not_the_path() {
    let mut rate = Rate::new(Limits::default());
    let mut now = 0;
    let mut arrive = |rate: &mut Rate, span_us, is_train| {
        now += span_us;
        rate.on_ack(&AckSample {
            now,
            acked_bytes: 18 * 9_038,
            acked_packets: 18,
            loss_run: 1.0,
            rtt_us: 366_000,
            rtt_least_us: 366_000,
            queue_us: Some(2_000),
            span_us,
            packet_bytes: 9_038,
            is_train,
            ..AckSample::default()
        });
    };
    (0..3).for_each(|_| arrive(&mut rate, 1_300, true));
    for span_us in [1_300, 1_300, 16_000, 1_300, 1_300, 1_300] {
        arrive(&mut rate, span_us, false);
    }
    assert!(rate.capacity().is_some_and(|it| it > 100_000_000), "{:?}", rate.capacity());
}
