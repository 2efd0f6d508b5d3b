//! A stream's part in the host's ledger: when it has bulk, and what it delivers.

use isthmus_ledger::{Flow, Group, Report};

use crate::Micros;
use crate::congestion::{AckSample, CongestionControl};

/// Bytes written or under way from which on a stream has bulk, and below which it has none any more.
const BULK_BYTES: u64 = 128 << 10;
const LITTLE_BYTES: u64 = 16 << 10;
/// Round trip from which on flows are planned for together. Microseconds.
const FAR_US: Micros = 1_000;
/// Between looks at what others do. Microseconds.
const LOOK_US: Micros = 250;
/// How soon one is looked at that may not send. Microseconds.
const WAIT_US: Micros = 1_000;
/// Time without anything to send after which a flow counts as ended, at least; else an eighth of the round
/// trip. Microseconds.
const DRY_LEAST_US: Micros = 10_000;
/// The same after which its share is the others' as long as that lasts. Microseconds.
const PAUSE_US: Micros = 2_000;
/// Share of what it might send below which a flow sends little.
const LITTLE: f64 = 0.7;

/// What a stream has at the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes that wait to be sent, first or again.
    pub(crate) waiting: u64,
    /// Bytes (wire) under way.
    pub(crate) in_flight: u64,
    /// Round trip, where it is known. Microseconds.
    pub(crate) rtt_us: Option<Micros>,
    /// Share of packets lost, likewise.
    pub(crate) loss: Option<f64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sharing {
    flow: Flow,
    /// It has bulk under way, and since when there was nothing more to send.
    busy: bool,
    dry_since: Option<Micros>,
    looked_at: Micros,
    group: Option<Group>,
    /// What arrived and is not told of yet. Bytes (wire).
    untold: u64,
    /// What arrived in this round, and since when.
    since: Option<Micros>,
    bytes: u64,
    steady_bytes: u64,
    span_us: Micros,
    limited: bool,
    /// What arrived per second in the last one, and whether that was for want of more to send.
    rate: Option<u64>,
    sends_little: bool,
    /// From when on what arrives left under the present circumstances.
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

    /// What this flow might deliver. Bytes/s.
    fn might(&self) -> f64 {
        self.group.map_or(0.0, |group| group.plan.capacity as f64 * (1.0 - group.plan.loss) * group.share)
    }

    /// Takes in what an acknowledgement brought.
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
        // Of one that pauses the mean counts; else the receiver's clock, which no late turn of ours disturbs.
        let (bytes, us) = if self.limited { (self.bytes, took) } else { (self.steady_bytes, self.span_us) };
        if us > 0 {
            let rate = (u128::from(bytes) * 1_000_000 / u128::from(us)) as u64;
            self.sends_little = self.limited && (rate as f64) < LITTLE * self.might();
            self.rate = Some(rate);
        }
        self.forget_round(Some(sample.now));
    }

    /// Looks at what others do, and tells them what this one does; `at_once` where something has happened.
    pub(crate) fn look(
        &mut self,
        now: Micros,
        load: Load,
        at_once: bool,
        congestion: &mut dyn CongestionControl,
    ) {
        let Some(rtt_us) = load.rtt_us else { return };
        // One that was long at first may turn out to be short: whose plan counted then says nothing more.
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
        // What is lost of the last flight comes by a packet at a time, long after the end.
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

    /// Whether there was nothing more to send for so long.
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

    /// When a stream that has something to send and may not is to be looked at.
    pub(crate) fn wake_at(&self) -> Option<Micros> {
        self.group.filter(|group| group.count > 1).map(|_| self.looked_at + WAIT_US)
    }
}

/// How long a flow has nothing more to send until it counts as ended.
fn dry_us(rtt_us: Micros) -> Micros {
    (rtt_us / 8).max(DRY_LEAST_US)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use isthmus_ledger::{Heap, Kind, Ledger, Owner, PathKey};

    use super::*;
    use crate::congestion::{Limits, Rate};

    /// The first answer waited, and so a short path was taken for a long one: who followed another's plan for that goes
    /// by itself once it is known to be short, and stays no longer at what that plan allowed.
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
