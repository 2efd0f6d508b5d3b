//! A stream's part in the host's ledger: reports its bulk data and its delivery rate, and takes its share of the plan.

use isthmus_ledger::{Flow, Group, Report};
use isthmus_path::thresholds::distance::FAR_US;

use crate::Micros;
use crate::congestion::{AckSample, CongestionControl};

/// A stream with at least this many bytes written or in flight has bulk data.
const BULK_BYTES: u64 = 128 << 10;
/// Below this many bytes it no longer has. The gap keeps it from switching back and forth.
const LITTLE_BYTES: u64 = 16 << 10;
/// Interval between looks at the other flows. Microseconds.
const LOOK_US: Micros = 250;
/// A stream that must wait for its share looks again after this time. Microseconds.
const WAIT_US: Micros = 1_000;
/// A flow without data to send counts as ended after this time, or an eighth of the round trip if that is longer.
/// Microseconds.
const DRY_MIN_US: Micros = 10_000;
/// A flow without data to send lends its share to the others after this time. Microseconds.
const PAUSE_US: Micros = 2_000;
/// A flow sends little if it delivers less than this share of what it might.
const LITTLE: f64 = 0.7;

/// What a stream has to send and in flight now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes that wait to be sent or retransmitted.
    pub(crate) waiting: u64,
    /// Bytes (wire) in flight.
    pub(crate) in_flight: u64,
    /// Least round trip; `None` if unknown. Microseconds.
    pub(crate) rtt_us: Option<Micros>,
    /// Share of packets lost; `None` if unknown.
    pub(crate) loss: Option<f64>,
}

/// A stream's part in the ledger.
#[derive(Debug)]
pub(crate) struct Sharing {
    flow: Flow,
    /// It has bulk data.
    busy: bool,
    /// Since when it has little or nothing more to send.
    dry_since: Option<Micros>,
    looked_at: Micros,
    group: Option<Group>,
    /// Bytes (wire) delivered but not yet reported.
    untold: u64,
    /// This round: its start, and the bytes (wire) delivered in it.
    since: Option<Micros>,
    bytes: u64,
    /// Those of them that followed no pause, and the receiver's time for them.
    steady_bytes: u64,
    span_us: Micros,
    limited: bool,
    /// Rate delivered in the last round. Bytes/s (wire).
    rate: Option<u64>,
    /// That rate was low for want of data.
    sends_little: bool,
    /// Acknowledgements before this time do not count: their packets left under other conditions.
    counts_from: Micros,
}

impl Sharing {
    pub(crate) fn new(flow: Flow) -> Self {
        Self {
            flow,
            busy: false,
            dry_since: None,
            looked_at: 0,
            group: None,
            untold: 0,
            since: None,
            bytes: 0,
            steady_bytes: 0,
            span_us: 0,
            limited: false,
            rate: None,
            sends_little: false,
            counts_from: 0,
        }
    }

    fn forget_round(&mut self, since: Option<Micros>) {
        (self.since, self.bytes, self.steady_bytes) = (since, 0, 0);
        (self.span_us, self.limited) = (0, false);
    }

    /// Rate that this flow could deliver by the plan. Bytes/s (wire).
    fn might(&self) -> f64 {
        self.group.map_or(0.0, |group| group.plan.capacity as f64 * (1.0 - group.plan.loss) * group.share)
    }

    /// Notes an acknowledgement.
    pub(crate) fn note(&mut self, sample: &AckSample) {
        self.untold += if self.busy { sample.acked_bytes } else { 0 };
        if !self.busy || sample.now < self.counts_from {
            return self.forget_round(None);
        }
        let since = *self.since.get_or_insert(sample.now);
        self.bytes += sample.acked_bytes;
        if !sample.resumed {
            self.steady_bytes += sample.acked_bytes;
            self.span_us += sample.span_us;
        }
        self.limited |= sample.app_limited;
        let took = sample.now.saturating_sub(since);
        if !sample.round_ended || took < sample.rtt_us.max(4_000) / 2 {
            return;
        }
        // A flow that ran out of data counts by our clock, pauses included; others by the receiver's, which no delay of
        // ours disturbs.
        let (bytes, us) = if self.limited { (self.bytes, took) } else { (self.steady_bytes, self.span_us) };
        if us > 0 {
            let rate = (u128::from(bytes) * 1_000_000 / u128::from(us)) as u64;
            self.sends_little = self.limited && (rate as f64) < LITTLE * self.might();
            self.rate = Some(rate);
        }
        self.forget_round(Some(sample.now));
    }

    /// Reads what other flows do, and reports this one; `at_once` if something has happened.
    pub(crate) fn look(
        &mut self,
        now: Micros,
        load: Load,
        at_once: bool,
        congestion: &mut dyn CongestionControl,
    ) {
        let Some(rtt_us) = load.rtt_us else { return };
        // A path that seemed long may turn out short. The group's plan then no longer counts.
        if rtt_us < FAR_US || !self.is_busy(now, load) {
            return self.rest(now, congestion);
        }
        if self.busy && !at_once && now < self.looked_at + LOOK_US {
            return;
        }
        let waits = self.group.is_some_and(|group| group.plan.capacity == 0);
        let ends = self.has_dried(now, dry_us(rtt_us));
        if !self.busy || waits || ends {
            self.counts_from = now + rtt_us + rtt_us / 4;
            (self.rate, self.sends_little) = (None, false);
        }
        (self.busy, self.looked_at) = (true, now);
        let mut report = Report {
            rate: self.rate.unwrap_or(self.might() as u64),
            in_flight: congestion.claim(load.in_flight, load.waiting),
            flows: 1,
            sends_little: self.sends_little,
        };
        let has_place = self.flow.tell(now, report);
        if self.has_dried(now, PAUSE_US) {
            self.flow.pause(ends);
        }
        self.flow.deliver(std::mem::take(&mut self.untold));
        self.group = if has_place { self.flow.group(now) } else { None };
        congestion.on_group(now, self.group.as_ref());
        let claim = congestion.claim(load.in_flight, load.waiting);
        if has_place && claim != report.in_flight {
            report.in_flight = claim;
            self.flow.tell(now, report);
        }
        if let Some(plan) = congestion.plan() {
            self.flow.teach(now, &plan);
            load.loss.iter().for_each(|loss| self.flow.teach_loss(*loss));
        }
    }

    fn is_busy(&mut self, now: Micros, load: Load) -> bool {
        // Retransmissions of the last flight come a packet at a time, long after its end.
        if load.waiting >= LITTLE_BYTES {
            self.dry_since = None;
        } else {
            self.dry_since.get_or_insert(now);
        }
        let bytes = load.waiting + load.in_flight;
        if !self.busy {
            return load.waiting > 0 && bytes >= BULK_BYTES;
        }
        bytes >= LITTLE_BYTES
    }

    /// Whether there was little or nothing more to send for this time.
    fn has_dried(&self, now: Micros, us: Micros) -> bool {
        self.dry_since.is_some_and(|since| now >= since + us)
    }

    fn rest(&mut self, now: Micros, congestion: &mut dyn CongestionControl) {
        if std::mem::take(&mut self.busy) {
            self.flow.deliver(std::mem::take(&mut self.untold));
            self.flow.rest();
            self.group = None;
            congestion.on_group(now, None);
            (self.rate, self.sends_little) = (None, false);
            self.forget_round(None);
        }
    }

    /// When to look again if the stream has data and must wait for its share.
    pub(crate) fn wake_at(&self) -> Option<Micros> {
        self.group.filter(|group| group.count > 1).map(|_| self.looked_at + WAIT_US)
    }
}

/// How long a flow has little or nothing to send until it counts as ended.
fn dry_us(rtt_us: Micros) -> Micros {
    (rtt_us / 8).max(DRY_MIN_US)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use isthmus_ledger::{Heap, Kind, Ledger, Owner, PathKey};

    use super::*;
    use crate::congestion::{Limits, Rate};

    /// The first answer waited, so a short path passed for a long one. A flow that followed another's plan controls its
    /// rate alone once the path proves short, and does not keep that plan's window.
    #[test]
    fn a_path_that_turns_out_short_is_not_shared() {
        let key = PathKey::new(None, [10, 0, 0, 1].into());
        let heap = Arc::new(Heap::default());
        let flow = |pid| {
            let owner = Owner { pid, started: 1 };
            Ledger::new(heap.clone(), owner, pid.into(), |_| true).expect("a ledger").flow(key, Kind::Paced)
        };
        let load = |rtt_us| Load { waiting: 1 << 20, in_flight: 0, rtt_us: Some(rtt_us), loss: None };
        let mut pair = [1, 2].map(|pid| (Sharing::new(flow(pid)), Rate::new(Limits::default())));
        let [window, other] = pair.each_ref().map(|(_, rate)| rate.window_bytes());
        assert_eq!(window, other);
        for (now, rtt_us) in [(0, 1_780), (1_000, 1_780), (2_000, 260)] {
            pair.iter_mut().for_each(|(sharing, rate)| sharing.look(now, load(rtt_us), true, rate));
            let grouped = pair.each_ref().map(|(sharing, _)| sharing.group.is_some());
            assert_eq!(grouped, [rtt_us >= FAR_US; 2]);
        }
        assert_eq!(pair.each_ref().map(|(_, rate)| rate.window_bytes()), [window; 2]);
    }
}
