//! How many lanes by TCP carry what goes to one peer.
//!
//! The kernel lets every new connection begin with a few packets, and one that loses packets or runs
//! out of window or buffer with less than the path has: more of them at once fill a long path sooner,
//! and a lossy one better. Each costs the processor and takes from others on the same path. So how many
//! there are at first follows from the round trip and from how much waits; and from then on from what the
//! kernel says of them ([`LaneSample`]): where losses, windows or buffers hold them up, more are
//! tried, and kept if more arrives in all; where nothing does, fewer are, and kept if no less arrives. Losses that
//! come while the round trip tells of a full queue are the lanes' own, and no reason for more.
//!
//! What is counted is what a path needs in all. Endpoints of one host that use it at once divide that.

use super::state::Micros;
use super::{Decision, Engine, LaneId};
use crate::PeerId;

/// Lanes where their number is no matter of measurement: through routers, and by several ways.
pub(super) const SEVERAL: u32 = 4;
/// Lanes of an endpoint beyond which new peers get but [`SEVERAL`] each.
const LANES_MANY: usize = 512;
/// Least lanes: one of them is kept free for small messages.
const LEAST: u32 = 3;
/// What a lane should have to carry at first. Bytes.
const WORTH: u64 = 256 << 10;
/// Round trips from which on so many lanes begin, where that takes time off the start: on a shorter path they
/// overfill the queue. Microseconds.
const FIRST: [(u64, u32); 1] = [(150_000, 32)];
/// On a path shorter than this the lanes are not divided among endpoints: few round trips wear a cold
/// start off, and fewer lanes take longer over it. Microseconds.
const DIVIDED_US: Micros = 50_000;
/// What arrives is measured over so many round trips, and so long at least. Microseconds.
const PERIOD_RTTS: Micros = 4;
const PERIOD_LEAST_US: Micros = 400_000;
/// Periods that an unsuccessful change keeps the next one off: at first, and at most.
const HOLD: u32 = 4;
/// Periods at first in which fewer are not tried.
const HOLD_FIRST: u32 = 12;
const HOLD_MOST: u32 = 64;
/// So many round trips, and so long at least, lanes take to get up to speed after the path was cut. Microseconds.
const RECOVERY_RTTS: Micros = 10;
const RECOVERY_LEAST_US: Micros = 1_000_000;
/// Rates that count as more, as no less, and as another path altogether.
const MORE: f64 = 1.05;
const NO_LESS: f64 = 0.97;
const OTHER: f64 = 0.6;
/// Shares: of time that lanes are busy, for the program not to be what holds them up; of that time
/// in which windows or buffers do; of packets that are lost. Where
/// fewer are, congestion control for lossy paths does without help.
const BUSY: f64 = 0.5;
const CROWDED: f64 = 0.2;
const LOSSY: f64 = 0.04;
/// A round trip above the least one by more than such a part, and by more than so many microseconds, tells of a
/// queue, which is full if that holds for such a share of packets.
const QUEUE_PART: Micros = 4;
const QUEUE_US: Micros = 1_000;
const FULL: f64 = 0.5;

/// What the kernel says of a lane by TCP since it came up (`tcpi_bytes_acked`, `tcpi_data_segs_out`,
/// `tcpi_total_retrans`, `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited` of `tcp(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Bytes that have arrived.
    pub acked: u64,
    /// Packets with data, those sent again included.
    pub packets: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Time with something to send. Microseconds.
    pub busy_us: u64,
    /// Of that, time held up by the receiver's window or by the send buffer. Microseconds.
    pub crowded_us: u64,
    /// The round trip now (`tcpi_rtt`); 0 where it is not known. Microseconds.
    pub rtt_us: u64,
    /// Endpoints of this host that have bulk on the same path, this one among them, as far as that is known.
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
struct Trial {
    /// What was there before, and arrived then. Bytes/s.
    count: u32,
    rate: f64,
    /// Its first period, in which the lanes get up to speed, is over.
    settled: bool,
}

/// The number of lanes to one peer, and what it follows from.
#[derive(Debug)]
pub(crate) struct Streams {
    most: u32,
    count: u32,
    since: Option<Micros>,
    /// All that was heard in this period.
    heard: LaneSample,
    /// Packets of these that were sent into a queue.
    queued: u64,
    /// Endpoints of this host on the path, this one among them.
    sharers: u32,
    /// Bytes/s in the one before.
    last: f64,
    trial: Option<Trial>,
    /// Periods until the next change is tried, and after the next one that fails.
    hold: u32,
    next_hold: u32,
    /// Periods until fewer may be tried.
    early: u32,
    /// Lanes still come up for what waited at first.
    starting: bool,
    /// New lanes that carry beside the others after the path was cut, and since when.
    extra: u32,
    extra_since: Micros,
}

/// Why the number of lanes is another.
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
            early: HOLD_FIRST,
            next_hold: HOLD,
            starting: true,
            extra: 0,
            extra_since: 0,
        }
    }

    /// A further lane came up after the path was cut: for a while it carries beside the others.
    pub(super) fn reinforce(&mut self, now: Micros) {
        self.extra += 1;
        self.extra_since = now;
    }

    /// Whether what is heard says nothing, as lanes get up to speed again.
    fn recovers(&mut self, now: Micros, rtt_us: Micros) -> bool {
        if self.extra > 0 && now < self.extra_since + (RECOVERY_RTTS * rtt_us).max(RECOVERY_LEAST_US) {
            return true;
        }
        if std::mem::take(&mut self.extra) > 0 {
            (self.since, self.heard, self.queued) = (None, LaneSample::default(), 0);
        }
        false
    }

    /// How many lanes carry: of all but the one for small messages, this endpoint's part.
    pub(crate) fn count(&self) -> u32 {
        1 + self.count.saturating_sub(1).div_ceil(self.sharers) + self.extra
    }

    /// So many bytes wait: whether there are to be more lanes at once.
    pub(crate) fn start(&mut self, rtt_us: Micros, waiting: u64) -> bool {
        let first = FIRST.iter().find(|(from, _)| rtt_us >= *from).map_or(SEVERAL, |(_, count)| *count);
        let worth = (waiting / WORTH).clamp(2, u64::from(first)) as u32;
        let count = worth.min(self.most);
        let before = self.count();
        if self.starting {
            self.count = self.count.max(count);
        }
        self.count() > before
    }

    /// Takes note of what a lane has done since the last sample of it; at the end of a period, what
    /// follows from that.
    pub(crate) fn hear(&mut self, now: Micros, rtt_us: Micros, more: LaneSample) -> Option<&'static str> {
        let before = self.count();
        let sharers = if rtt_us < DIVIDED_US { 1 } else { more.sharers.max(1) };
        if sharers != std::mem::replace(&mut self.sharers, sharers) {
            // Another part of the path is no measure of what was tried.
            if let Some(trial) = self.trial.take() {
                self.count = trial.count;
            }
            self.hold = self.hold.max(2);
            return (self.count() != before).then_some(SHARED);
        }
        if self.recovers(now, rtt_us) {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        self.heard.add(more);
        if more.rtt_us > rtt_us + (rtt_us / QUEUE_PART).max(QUEUE_US) {
            self.queued += more.packets;
        }
        let took = now.saturating_sub(since);
        if took < (PERIOD_RTTS * rtt_us).max(PERIOD_LEAST_US) {
            return None;
        }
        let heard = std::mem::take(&mut self.heard);
        let full = std::mem::take(&mut self.queued) as f64 > FULL * heard.packets as f64;
        self.since = Some(now);
        let carrying = self.count().saturating_sub(1).max(1);
        if (heard.busy_us as f64) < BUSY * took as f64 * f64::from(carrying) {
            // The program sends too little to tell; what was tried is tried again some time.
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
        if rate > self.last * MORE && self.starting {
            return None; // lanes still get up to speed
        }
        self.starting = false;
        if rate < self.last * OTHER {
            (self.hold, self.next_hold) = (0, HOLD);
        }
        self.hold = self.hold.saturating_sub(1);
        self.early = self.early.saturating_sub(1);
        if self.hold > 0 {
            return None;
        }
        let lossy = heard.resent as f64 > LOSSY * heard.packets as f64;
        let crowded = heard.crowded_us as f64 > CROWDED * heard.busy_us as f64;
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
        let count = count.clamp(LEAST.min(self.most), self.most);
        if count == self.count {
            return None;
        }
        self.trial = Some(Trial { count: self.count, rate, settled: false });
        self.count = count;
        Some(why)
    }

    /// The end of a trial.
    fn conclude(&mut self, rate: f64) -> Option<&'static str> {
        let trial = self.trial.take()?;
        let (grown, ratio) = (self.count > trial.count, rate / trial.rate.max(1.0));
        if ratio >= if grown { MORE } else { NO_LESS } {
            self.next_hold = HOLD;
            return None;
        }
        self.count = trial.count;
        self.hold = self.next_hold;
        self.next_hold = (2 * self.next_hold).min(HOLD_MOST);
        Some(if grown { IN_VAIN } else { MISSED })
    }
}

impl Engine {
    /// The shell has asked the kernel about a lane by TCP.
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
        let Some(why) = streams.hear(now, rtt_us, more) else { return };
        let count = streams.count();
        if count > before {
            self.counters.streams_added += u64::from(count - before);
        } else {
            self.counters.streams_rested += u64::from(before - count);
        }
        self.decide(peer, Decision::Streams { count, why });
        self.spread(peer);
    }

    /// How many lanes there are to be to a peer that is far and has bulk to take.
    pub(super) fn lanes_wanted(&mut self, peer: PeerId) -> u32 {
        let routed = self.is_routed(&self.peers[peer.0 as usize].address) || self.has_ways(peer);
        let streams = self.config.streams;
        if routed || self.lanes.len() > LANES_MANY {
            return streams.min(SEVERAL);
        }
        let waiting = self.waiting_bytes(peer);
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        connection.late.get_or_insert_default();
        let known = connection.streams.get_or_insert_with(|| Box::new(Streams::new(streams)));
        let more = known.start(rtt_us, waiting);
        let count = known.count();
        if more {
            self.decide(peer, Decision::Streams { count, why: "by the round trip and what waits" });
        }
        count
    }

    /// How much waits to be sent to a peer, as far as the first of it tells. Bytes.
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

    /// Feeds periods of samples of a path, of which `rate` tells what arrives by how many lanes, in Mb/s,
    /// and the rest how many packets of a thousand are lost, and in what share lanes are held up.
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
                streams.hear(now, RTT_US, sample);
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
            assert_eq!(streams.hear(40_000 * at, 100_000, sample), None);
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
        let hear = |streams: &mut Streams, rtt_us, sharers| {
            let told = streams.hear(0, rtt_us, LaneSample { sharers, ..LaneSample::default() });
            (streams.count(), told)
        };
        let mut streams = started(32, 100_000, 1 << 30);
        let mut at_100 = |sharers| hear(&mut streams, 100_000, sharers);
        assert_eq!((at_100(1), at_100(4)), ((4, None), (2, Some(SHARED))));
        assert_eq!((at_100(16), at_100(2)), ((2, None), (3, Some(SHARED))));
        assert_eq!((at_100(0), at_100(1)), ((4, Some(SHARED)), (4, None)));
        let mut streams = started(32, 366_000, 1 << 30);
        assert_eq!(hear(&mut streams, 366_000, 4).0, 9);
        let mut streams = started(32, 24_000, 1 << 30);
        assert_eq!(hear(&mut streams, 24_000, 4), (4, None));
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
                streams.hear(40_000 * i, 24_000, sample);
            }
            assert!(streams.count() <= 4, "{} lanes", streams.count());
        }
        assert_eq!(streams.count(), LEAST, "as much arrives by fewer");
    }
}
