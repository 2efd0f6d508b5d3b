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

use super::state::Micros;
use super::{Decision, Engine, LaneId};
use crate::PeerId;

/// Number of lanes where it is not measured: through routers, and over several rails.
pub(super) const SEVERAL: u32 = 4;
/// If an endpoint has more lanes than this, new peers get only [`SEVERAL`] each. Count.
const MANY_LANES: usize = 512;
/// Fewest lanes with bulk data. Count; one of them is kept free for small messages.
const MIN_LANES: u32 = 3;
/// Waiting data that justifies one more lane at first. Bytes.
const WORTH: u64 = 256 << 10;
/// Lanes at first, from a round trip on (microseconds). On shorter paths so many lanes would overfill the queue.
const INITIAL_LANES: [(u64, u32); 1] = [(150_000, 32)];
/// On a shorter path than this, endpoints do not divide the lanes. Microseconds. A cold start takes few round trips
/// there, and longer with fewer lanes.
const DIVIDED_US: Micros = 50_000;
/// A period of measurement. Round trips.
const PERIOD_RTTS: Micros = 4;
/// Shortest period of measurement. Microseconds; shorter ones are too noisy.
const MIN_PERIOD_US: Micros = 400_000;
/// After a change that failed, the next one waits this many periods, then twice as many, and so on.
const HOLD: u32 = 4;
/// In the first periods, fewer lanes are not tried. Count.
const INITIAL_HOLD: u32 = 12;
/// Longest wait after a change that failed. Periods.
const MAX_HOLD: u32 = 64;
/// Time that lanes need to get up to speed after the path was cut. Round trips.
const RECOVERY_RTTS: Micros = 10;
/// Shortest time that lanes get for that. Microseconds.
const MIN_RECOVERY_US: Micros = 1_000_000;
/// More lanes are kept if the rate is at least this many times the one before.
const MORE_RATIO: f64 = 1.05;
/// Fewer lanes are kept if the rate is at least this many times the one before.
const NO_LESS_RATIO: f64 = 0.97;
/// Below this many times the rate before, the path counts as another one.
const OTHER_PATH_RATIO: f64 = 0.6;
/// Share of time in which lanes must have something to send. Below it, the program limits the rate.
const BUSY_SHARE: f64 = 0.5;
/// Share of busy time held up by windows or buffers from which more lanes are tried.
const LIMITED_SHARE: f64 = 0.2;
/// Share of lost packets from which more lanes are tried. Below it, the kernel's congestion control copes.
const LOSSY_SHARE: f64 = 0.04;
/// A round trip shows a queue if it exceeds the shortest one by this fraction of it (one fourth).
const QUEUE_PART: Micros = 4;
/// The excess must also be at least this. Microseconds.
const QUEUE_US: Micros = 1_000;
/// Share of packets that met a queue from which the queue counts as full.
const FULL_SHARE: f64 = 0.5;

/// The kernel's counts for a TCP lane since it came up (`tcpi_bytes_acked`, `tcpi_data_segs_out`,
/// `tcpi_total_retrans`, `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited` of `tcp(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Bytes that have arrived.
    pub acked: u64,
    /// Packets with data, including those sent again.
    pub packets: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Time with something to send. Microseconds.
    pub busy_us: u64,
    /// Part of `busy_us` in which the receiver's window or the send buffer held the lane up. Microseconds.
    pub crowded_us: u64,
    /// The round trip now (`tcpi_rtt`). Microseconds; 0 if it is not known.
    pub rtt_us: u64,
    /// Endpoints of this host, including this one, that send bulk data on the same path, as far as known. Count.
    pub sharers: u32,
}

impl LaneSample {
    fn since(self, before: Self) -> Self {
        Self {
            acked: self.acked.saturating_sub(before.acked),
            packets: self.packets.saturating_sub(before.packets),
            resent: self.resent.saturating_sub(before.resent),
            busy_us: self.busy_us.saturating_sub(before.busy_us),
            crowded_us: self.crowded_us.saturating_sub(before.crowded_us),
            ..self
        }
    }

    fn add(&mut self, more: Self) {
        self.acked += more.acked;
        self.packets += more.packets;
        self.resent += more.resent;
        self.busy_us += more.busy_us;
        self.crowded_us += more.crowded_us;
    }
}

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
pub(crate) struct Streams {
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
    pub(crate) fn new(most: u32) -> Self {
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
    pub(super) fn reinforce(&mut self, now: Micros) {
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
    pub(crate) fn count(&self) -> u32 {
        1 + self.count.saturating_sub(1).div_ceil(self.sharers) + self.extra
    }

    /// Sets the first number of lanes, for `waiting` bytes that wait. Returns whether more lanes are needed now.
    pub(crate) fn start(&mut self, rtt_us: Micros, waiting: u64) -> bool {
        let first =
            INITIAL_LANES.iter().find(|(from, _)| rtt_us >= *from).map_or(SEVERAL, |(_, count)| *count);
        let worth = (waiting / WORTH).clamp(2, u64::from(first)) as u32;
        let count = worth.min(self.most);
        let before = self.count();
        if self.starting {
            self.count = self.count.max(count);
        }
        self.count() > before
    }

    /// Takes in what a lane has done since its last sample. Returns the reason if that changes the number of lanes.
    pub(crate) fn on_sample(
        &mut self,
        now: Micros,
        rtt_us: Micros,
        more: LaneSample,
    ) -> Option<&'static str> {
        let before = self.count();
        let sharers = if rtt_us < DIVIDED_US { 1 } else { more.sharers.max(1) };
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
        if more.rtt_us > rtt_us + (rtt_us / QUEUE_PART).max(QUEUE_US) {
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

impl Engine {
    /// Takes in the kernel's counts for a TCP lane.
    pub fn lane_sample(&mut self, now: Micros, lane: LaneId, sample: LaneSample) {
        self.clock = self.clock.max(now);
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        let Some(connection) = record.peer.and_then(|peer| self.peers[peer.0 as usize].connection.as_mut())
        else {
            return;
        };
        let (Some(peer), Some(streams)) = (record.peer, &mut connection.streams) else { return };
        let before = std::mem::replace(&mut **record.sample.get_or_insert_default(), sample);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let more = sample.since(before);
        let before = streams.count();
        let Some(why) = streams.on_sample(now, rtt_us, more) else { return };
        let count = streams.count();
        if count > before {
            self.counters.streams_added += u64::from(count - before);
        } else {
            self.counters.streams_rested += u64::from(before - count);
        }
        self.decide(peer, Decision::Streams { count, why });
        self.spread(peer);
    }

    /// The number of lanes that there should be to a far peer with waiting bulk data.
    pub(super) fn lanes_wanted(&mut self, peer: PeerId) -> u32 {
        let routed = self.is_routed(&self.peers[peer.0 as usize].address) || self.has_rails(peer);
        let streams = self.config.streams;
        if routed || self.lanes.len() > MANY_LANES {
            return streams.min(SEVERAL);
        }
        let waiting = self.waiting_bytes(peer);
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        connection.stragglers.get_or_insert_default();
        let known = connection.streams.get_or_insert_with(|| Box::new(Streams::new(streams)));
        let more = known.start(rtt_us, waiting);
        let count = known.count();
        if more {
            self.decide(peer, Decision::Streams { count, why: "by the round trip and what waits" });
        }
        count
    }

    /// Data that waits to be sent to a peer, estimated from the first 64 operations of each queue. Bytes.
    fn waiting_bytes(&self, peer: PeerId) -> u64 {
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return 0 };
        let traffic = &connection.traffic;
        let next = traffic.bulk.iter().take(64).chain(traffic.fresh.iter().take(64));
        let next = next.chain(traffic.unaccepted.values().take(64));
        next.filter_map(|index| self.operations.get(*index)).map(|next| next.total - next.sent).sum()
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
