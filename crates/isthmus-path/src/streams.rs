//! Chooses how many TCP lanes carry data to one peer.
//!
//! The kernel starts each connection with a few packets. After a loss, or at the limit of a window or buffer, a single
//! connection carries less than the path could. More connections fill a long path sooner and a lossy path better. But
//! each costs processor time and takes bandwidth from others on the path. So the first number follows from the round
//! trip and from how much waits. Later it follows from what the kernel reports ([`LaneSample`]):
//!
//! - If losses, windows or buffers hold the lanes up, more are tried, and kept if the total rate grows.
//! - If nothing holds them up, fewer are tried, and kept if the total rate does not fall.
//! - Losses while the round trip shows a full queue are the lanes' own fault, and no reason for more.
//!
//! The number is what a path needs in all. Endpoints of one host that use the path at the same time divide it.

use crate::evidence::LaneSample;
use crate::thresholds::distance::{LONG_US, VERY_LONG_US};
use crate::thresholds::streams::{
    BUSY_SHARE, FULL_SHARE, HOLD, INITIAL_HOLD, LIMITED_SHARE, LOSSY_SHARE, MANY, MAX_HOLD, MIN_LANES,
    MIN_PERIOD_US, MIN_RECOVERY_US, MORE_RATIO, NO_LESS_RATIO, OTHER_PATH_RATIO, PERIOD_RTTS, RECOVERY_RTTS,
    SEVERAL, WORTH,
};
use crate::{Micros, queue};

/// A trial of another number of lanes.
#[derive(Clone, Copy, Debug)]
struct StreamsTrial {
    /// Number of lanes before the trial.
    count: u32,
    /// Rate before the trial. Bytes/s.
    rate: f64,
    /// Its first period, in which the lanes get up to speed, is over.
    settled: bool,
}

/// The number of lanes to one peer, and the measurements behind it.
#[derive(Debug)]
pub struct Streams {
    most: u32,
    count: u32,
    since: Option<Micros>,
    /// Sum of the samples of this period.
    heard: LaneSample,
    /// Packets of this period that met a queue.
    queued: u64,
    /// Endpoints of this host, including this one, that use the path. Count.
    sharers: u32,
    /// Rate of the period before. Bytes/s.
    last: f64,
    trial: Option<StreamsTrial>,
    /// Periods until the next change may be tried.
    hold: u32,
    /// The value of `hold` after the next trial that fails.
    next_hold: u32,
    /// Periods until fewer lanes may be tried.
    early: u32,
    /// The first lanes are still coming up.
    starting: bool,
    /// Lanes that carry beside the others after the path was cut, and since when.
    extra: u32,
    extra_since: Micros,
}

// Reasons for a change, as the decision log says them.
const LOSSES: &str = "packets are lost";
const WINDOWS: &str = "windows or buffers hold lanes up";
const FEWER: &str = "as much may arrive by fewer";
const IN_VAIN: &str = "more brought no more";
const MISSED: &str = "fewer brought less";
const QUEUE: &str = "packets are lost from a full queue";
const SHARED: &str = "more or fewer endpoints of this host use the path than before";

impl Streams {
    /// At most `most` lanes.
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self {
            most,
            count: most.min(2),
            since: None,
            heard: LaneSample::default(),
            queued: 0,
            sharers: 1,
            last: 0.0,
            trial: None,
            hold: 0,
            early: INITIAL_HOLD,
            next_hold: HOLD,
            starting: true,
            extra: 0,
            extra_since: 0,
        }
    }

    /// A further lane came up after the path was cut. It carries beside the others for a while.
    pub fn reinforce(&mut self, now: Micros) {
        self.extra += 1;
        self.extra_since = now;
    }

    /// Whether lanes are still getting up to speed after the path was cut, so that samples tell nothing.
    fn check_recovery(&mut self, now: Micros, rtt_us: Micros) -> bool {
        if self.extra > 0 && now < self.extra_since + (RECOVERY_RTTS * rtt_us).max(MIN_RECOVERY_US) {
            return true;
        }
        if std::mem::take(&mut self.extra) > 0 {
            (self.since, self.heard, self.queued) = (None, LaneSample::default(), 0);
        }
        false
    }

    /// The number of lanes that carry data: one for small messages, and this endpoint's part of the others.
    pub fn count(&self) -> u32 {
        1 + self.count.saturating_sub(1).div_ceil(self.sharers) + self.extra
    }

    /// The number of lanes at first, if much waits. On shorter paths many lanes would overfill the queue.
    #[must_use]
    pub fn first(&self, rtt_us: Micros) -> u32 {
        if rtt_us >= VERY_LONG_US { MANY } else { SEVERAL }
    }

    /// Sets the first number of lanes, for `waiting` bytes that wait. Returns whether more lanes are needed now.
    pub fn start(&mut self, rtt_us: Micros, waiting: u64) -> bool {
        let first = self.first(rtt_us);
        let worth = (waiting / WORTH).clamp(2, u64::from(first)) as u32;
        let count = worth.min(self.most);
        let before = self.count();
        if self.starting {
            self.count = self.count.max(count);
        }
        self.count() > before
    }

    /// Takes in what a lane has done since its last sample. Returns the reason if that changes the number of lanes.
    pub fn on_sample(&mut self, now: Micros, rtt_us: Micros, more: LaneSample) -> Option<&'static str> {
        let before = self.count();
        let sharers = if rtt_us < LONG_US { 1 } else { more.sharers.max(1) };
        if sharers != std::mem::replace(&mut self.sharers, sharers) {
            // The endpoint's part of the path has changed, so the trial's rates cannot be compared.
            if let Some(trial) = self.trial.take() {
                self.count = trial.count;
            }
            self.hold = self.hold.max(2);
            return (self.count() != before).then_some(SHARED);
        }
        if self.check_recovery(now, rtt_us) {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        self.heard.add(more);
        if queue::is_large(more.rtt_us, rtt_us) {
            self.queued += more.packets;
        }
        let took = now.saturating_sub(since);
        if took < (PERIOD_RTTS * rtt_us).max(MIN_PERIOD_US) {
            return None;
        }
        let heard = std::mem::take(&mut self.heard);
        let full = std::mem::take(&mut self.queued) as f64 > FULL_SHARE * heard.packets as f64;
        self.since = Some(now);
        let carrying = self.count().saturating_sub(1).max(1);
        if (heard.busy_us as f64) < BUSY_SHARE * took as f64 * f64::from(carrying) {
            // The program sends too little to tell. End the trial without a result.
            if let Some(trial) = self.trial.take() {
                self.count = trial.count;
            }
            return None;
        }
        let rate = heard.acked as f64 * 1e6 / took as f64;
        let change = self.judge(rate, heard, full);
        self.last = rate;
        change
    }

    fn judge(&mut self, rate: f64, heard: LaneSample, full: bool) -> Option<&'static str> {
        if let Some(trial) = &mut self.trial {
            if !std::mem::replace(&mut trial.settled, true) {
                return None;
            }
            return self.conclude(rate);
        }
        if rate > self.last * MORE_RATIO && self.starting {
            return None; // The lanes are still getting up to speed.
        }
        self.starting = false;
        if rate < self.last * OTHER_PATH_RATIO {
            (self.hold, self.next_hold) = (0, HOLD);
        }
        self.hold = self.hold.saturating_sub(1);
        self.early = self.early.saturating_sub(1);
        if self.hold > 0 {
            return None;
        }
        let lossy = heard.resent as f64 > LOSSY_SHARE * heard.packets as f64;
        let crowded = heard.crowded_us as f64 > LIMITED_SHARE * heard.busy_us as f64;
        let (count, why) = if full && lossy {
            (self.count - self.count / 3, QUEUE)
        } else if full && self.early > 0 {
            return None;
        } else if !full && (lossy || crowded) {
            (self.count + (self.count / 2).max(2), if lossy { LOSSES } else { WINDOWS })
        } else if self.early == 0 {
            (self.count - self.count / 4, FEWER)
        } else {
            return None;
        };
        let count = count.clamp(MIN_LANES.min(self.most), self.most);
        if count == self.count {
            return None;
        }
        self.trial = Some(StreamsTrial { count: self.count, rate, settled: false });
        self.count = count;
        Some(why)
    }

    /// Ends a trial: keeps the new number of lanes, or goes back to the one before.
    fn conclude(&mut self, rate: f64) -> Option<&'static str> {
        let trial = self.trial.take()?;
        let (grown, ratio) = (self.count > trial.count, rate / trial.rate.max(1.0));
        if ratio >= if grown { MORE_RATIO } else { NO_LESS_RATIO } {
            self.next_hold = HOLD;
            return None;
        }
        self.count = trial.count;
        self.hold = self.next_hold;
        self.next_hold = (2 * self.next_hold).min(MAX_HOLD);
        Some(if grown { IN_VAIN } else { MISSED })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds periods of samples. `rate` gives the path's rate for a number of lanes (Mb/s), `lost` the packets lost of
    /// a thousand, `crowded` the share of time in which lanes are held up.
    fn run(
        streams: &mut Streams,
        from: Micros,
        periods: u64,
        rate: impl Fn(u32) -> f64,
        lost: u64,
        crowded: f64,
    ) -> Micros {
        const RTT_US: Micros = 100_000;
        let mut now = from;
        for _ in 0..10 * periods {
            now += 40_000;
            for _ in 0..streams.count() {
                let part = rate(streams.count()) / 8.0 * 40_000.0 / f64::from(streams.count());
                let sample = LaneSample {
                    acked: part as u64,
                    packets: 1_000,
                    resent: lost,
                    busy_us: 40_000,
                    crowded_us: (crowded * 40_000.0) as u64,
                    rtt_us: RTT_US,
                    sharers: 1,
                };
                streams.on_sample(now, RTT_US, sample);
            }
        }
        now
    }

    fn started(most: u32, rtt_us: Micros, waiting: u64) -> Streams {
        let mut streams = Streams::new(most);
        streams.start(rtt_us, waiting);
        streams
    }

    #[test]
    fn the_first_number_follows_from_round_trip_and_from_what_waits() {
        let count = |rtt_us, waiting| started(32, rtt_us, waiting).count();
        assert_eq!((count(366_000, 1 << 30), count(100_000, 1 << 30)), (32, 4));
        assert_eq!((count(24_000, 1 << 30), count(2_000, 1 << 30)), (4, 4));
        assert_eq!((count(366_000, 1 << 20), count(366_000, 100_000)), (4, 2));
        assert_eq!(started(3, 366_000, 1 << 30).count(), 3);
        assert_eq!(started(1, 366_000, 1 << 30).count(), 1);
    }

    #[test]
    fn where_each_lane_is_held_up_more_are_used_until_they_bring_no_more() {
        for (lost, crowded) in [(100, 0.0), (0, 0.5)] {
            let mut streams = started(32, 24_000, 1 << 30);
            run(&mut streams, 0, 200, |lanes| (30.0 * f64::from(lanes)).min(500.0), lost, crowded);
            assert!((16..=30).contains(&streams.count()), "{} lanes", streams.count());
        }
    }

    #[test]
    fn on_a_clean_path_fewer_are_used_as_far_as_they_fill_it() {
        let mut streams = started(32, 366_000, 1 << 30);
        run(&mut streams, 0, 400, |lanes| (100.0 * f64::from(lanes)).min(950.0), 0, 0.0);
        assert!((9..=14).contains(&streams.count()), "{} lanes", streams.count());
    }

    #[test]
    fn what_the_program_does_not_send_tells_nothing() {
        let mut streams = started(32, 100_000, 1 << 30);
        for at in 0..1_000 {
            let sample = LaneSample {
                acked: 1_000,
                packets: 100,
                resent: 50,
                busy_us: 1_000,
                ..LaneSample::default()
            };
            assert_eq!(streams.on_sample(40_000 * at, 100_000, sample), None);
        }
        assert_eq!(streams.count(), 4);
    }

    #[test]
    fn a_path_that_has_become_another_is_judged_anew() {
        let mut streams = started(32, 24_000, 1 << 30);
        let now = run(&mut streams, 0, 60, |_| 950.0, 100, 0.0);
        let before = streams.count();
        run(&mut streams, now, 60, |lanes| 10.0 * f64::from(lanes), 100, 0.0);
        assert!(before < 16 && streams.count() == 32, "{before}, then {}", streams.count());
    }

    #[test]
    fn endpoints_that_share_a_long_path_divide_what_it_needs() {
        let on_sample = |streams: &mut Streams, rtt_us, sharers| {
            let told = streams.on_sample(0, rtt_us, LaneSample { sharers, ..LaneSample::default() });
            (streams.count(), told)
        };
        let mut streams = started(32, 100_000, 1 << 30);
        let mut at_100 = |sharers| on_sample(&mut streams, 100_000, sharers);
        assert_eq!((at_100(1), at_100(4)), ((4, None), (2, Some(SHARED))));
        assert_eq!((at_100(16), at_100(2)), ((2, None), (3, Some(SHARED))));
        assert_eq!((at_100(0), at_100(1)), ((4, Some(SHARED)), (4, None)));
        let mut streams = started(32, 366_000, 1 << 30);
        assert_eq!(on_sample(&mut streams, 366_000, 4).0, 9);
        let mut streams = started(32, 24_000, 1 << 30);
        assert_eq!(on_sample(&mut streams, 24_000, 4), (4, None));
    }

    #[test]
    fn losses_from_a_full_queue_are_no_reason_for_more() {
        let mut streams = started(32, 24_000, 1 << 30);
        for i in 1..2_000 {
            let sample = LaneSample {
                acked: 3_000_000 / u64::from(streams.count()),
                packets: 1_000,
                resent: 200,
                busy_us: 40_000,
                rtt_us: 47_000,
                ..LaneSample::default()
            };
            for _ in 0..streams.count() {
                streams.on_sample(40_000 * i, 24_000, sample);
            }
            assert!(streams.count() <= 4, "{} lanes", streams.count());
        }
        assert_eq!(streams.count(), MIN_LANES, "as much arrives by fewer");
    }
}
