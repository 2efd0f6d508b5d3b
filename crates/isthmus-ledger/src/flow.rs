//! A flow in the ledger: its own report, and its share of the path.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::table::{ENDS, PACED, PAUSES, RESTS, SENDS, SENDS_LITTLE, Slot};
use crate::{Kind, LEARNED_LIFE_US, Ledger, Micros, PathKey};

/// A flow that sends little gets this multiple of its own rate before its share counts against others.
const LITTLE_MORE: f64 = 1.25;

/// A plan that nobody renewed holds for this time. Microseconds.
const PLAN_LIFE_US: Micros = 10_000_000;
/// Longest round trip that the ledger believes. Microseconds (60 s); other processes write the table, so a larger value
/// is an error.
const MAX_RTT_US: Micros = 60_000_000;
const MILLION: u64 = 1_000_000;

/// A flow's report about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rate that it delivers. Bytes/s.
    pub rate: u64,
    /// Bytes that it has in flight.
    pub in_flight: u64,
    /// Streams or connections that it consists of.
    pub flows: u32,
    /// Its program gives it less data than it could send.
    pub sends_little: bool,
}

/// The plan that the leader of a path makes for all its flows together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    /// Capacity of the path. Bytes/s (wire); 0 if unknown.
    pub capacity: u64,
    /// Rate at which all flows together send. Bytes/s (wire); 0 if nothing is planned.
    pub pace: u64,
    /// Limit on the bytes in flight. Bytes (wire).
    pub window: u64,
    /// Share of packets lost at random, that is, not by congestion. While the capacity is not known, it is the
    /// share of a flight that a short queue dropped.
    pub loss: f64,
    /// Shortest round trip. Microseconds.
    pub rtt_us: Micros,
}

/// A flow's part among the flows that use its path now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// This flow leads: it plans for all.
    pub leads: bool,
    /// Some flow leads.
    pub is_led: bool,
    /// Number of flows with data to send, this one included.
    pub count: u32,
    /// This flow's share of the pace; above 0, at most 1.
    pub share: f64,
    /// Bytes that the others have in flight.
    pub others_in_flight: u64,
    /// Those of them that belong to flows which have no more to send now.
    pub paused_in_flight: u64,
    /// Bytes that all flows have delivered, ended ones included. The counter has no fixed start and wraps.
    pub delivered: u64,
    /// The present plan.
    pub plan: Plan,
}

/// A flow in the ledger. If the table has no room for it, it controls its rate alone.
#[derive(Debug)]
pub struct Flow {
    ledger: Ledger,
    key: PathKey,
    kind: Kind,
    /// Its path and slot in the table.
    place: Option<(usize, usize)>,
    /// The table had no room. Until this time the flow does not try again.
    none_until: Micros,
}

/// A flow that found no room tries again after this time. Microseconds.
const ALONE_US: Micros = 1_000_000;

impl Flow {
    pub(crate) fn new(ledger: Ledger, key: PathKey, kind: Kind) -> Self {
        Self { ledger, key, kind, place: None, none_until: 0 }
    }

    /// Reports that the flow sends bulk data. False if the table has no room for the flow.
    pub fn tell(&mut self, now: Micros, report: Report) -> bool {
        let now = now + self.ledger.ahead_us;
        let Some((path, place)) = self.take_place(now) else { return false };
        let shared = &self.ledger.shared;
        let slot = shared.slot(path, place);
        let kind = if self.kind == Kind::Paced { PACED } else { 0 };
        slot.endpoint.store(self.ledger.endpoint, Relaxed);
        slot.flows.store(u64::from(report.flows) | kind, Relaxed);
        slot.rate.store(report.rate, Relaxed);
        slot.in_flight.store(report.in_flight, Relaxed);
        slot.heard.store(now, Relaxed);
        slot.state.store(if report.sends_little { SENDS_LITTLE } else { SENDS }, Release);
        shared.path(path).touched.fetch_max(now, Relaxed);
        true
    }

    /// The flow has nothing to send until the next [`Flow::tell`]. The others may use its share, but its bytes in
    /// flight still count. If it leads, it goes on leading, unless `ends` is true; then another flow may lead.
    pub fn pause(&self, ends: bool) {
        if let Some((path, slot)) = self.place {
            let state = if ends { ENDS } else { PAUSES };
            self.ledger.shared.slot(path, slot).state.store(state, Release);
        }
    }

    /// Counts `bytes` more bytes of this flow as delivered. Bytes (wire).
    pub fn deliver(&self, bytes: u64) {
        if let Some((path, _)) = self.place {
            self.ledger.shared.path(path).delivered.fetch_add(bytes, Relaxed);
        }
    }

    fn take_place(&mut self, now: Micros) -> Option<(usize, usize)> {
        let shared = &self.ledger.shared;
        // While this flow rested, another path may have taken the record. Or two processes entered the path at once,
        // and it has two records.
        if let Some((path, slot)) = self.place.take_if(|(path, _)| shared.find(self.key.0) != Some(*path)) {
            shared.release(path, slot);
        }
        if self.place.is_none() && now >= self.none_until {
            let path = shared.enter(now, self.key.0);
            self.place = path.and_then(|path| shared.claim(now, path).map(|slot| (path, slot)));
            self.none_until = now + ALONE_US;
        }
        self.place
    }

    /// Nothing is in flight: the flow gives its share to the others.
    pub fn rest(&mut self) {
        if let Some((path, slot)) = self.place.take() {
            self.ledger.shared.release(path, slot);
        }
        self.none_until = 0;
    }

    /// Whether it has a slot in the table.
    pub fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// The plan for the path. An older plan is a hint only: it has a pace and no window.
    fn plan(&self, now: Micros) -> Plan {
        let (plan, age) = self.ledger.last_plan(now, self.key).unwrap_or_default();
        if age < PLAN_LIFE_US { plan } else { Plan { capacity: 0, window: 0, ..plan } }
    }

    /// This flow's part among those that send. `None` if it has no slot. If no flow leads, a flow that sends as much as
    /// it may takes the lead.
    pub fn group(&mut self, now: Micros) -> Option<Group> {
        let (path, own) = self.place?;
        let now = now + self.ledger.ahead_us;
        let plan = self.plan(now);
        let (leads, is_led) = self.lead(now, path, own);
        let shared = &self.ledger.shared;
        let delivered = shared.path(path).delivered.load(Relaxed);
        let mut sum = Group {
            leads,
            is_led,
            count: 1,
            share: 1.0,
            others_in_flight: 0,
            paused_in_flight: 0,
            delivered,
            plan,
        };
        let others = shared.slots(path).enumerate().filter(|(slot, _)| *slot != own);
        let busy = |slot: &Slot<'_>| slot.is_busy(now) && slot.is_paced();
        for (_, slot) in others.clone().filter(|(_, slot)| busy(slot)) {
            let (pauses, in_flight) = (need(&slot) == Some(0.0), slot.in_flight.load(Relaxed));
            sum.count += u32::from(!pauses);
            sum.others_in_flight = sum.others_in_flight.saturating_add(in_flight);
            if pauses {
                sum.paused_in_flight = sum.paused_in_flight.saturating_add(in_flight);
            }
        }
        let sends = others.filter(|(_, slot)| busy(slot)).filter_map(|(_, slot)| need(&slot));
        let needs = sends.filter(|need| *need > 0.0);
        sum.share = share(plan.pace as f64, sum.count, || needs.clone());
        Some(sum)
    }

    /// Whether this flow leads, and whether any does.
    fn lead(&self, now: Micros, path: usize, own: usize) -> (bool, bool) {
        let shared = &self.ledger.shared;
        let leader = shared.path(path).leader;
        let is = leader.load(Acquire);
        let me = own as u64 + 1;
        let may_lead = |slot: &Slot<'_>| matches!(slot.state.load(Relaxed), SENDS | PAUSES);
        let may = may_lead(&shared.slot(path, own));
        let is_good = |slot: &Slot<'_>| slot.is_busy(now) && slot.is_paced() && may_lead(slot);
        let good = is > 0 && shared.slots(path).nth(is as usize - 1).is_some_and(|slot| is_good(&slot));
        if is == me || good || !may {
            return (is == me, good);
        }
        let took = leader.compare_exchange(is, me, AcqRel, Acquire).is_ok();
        (took, true)
    }

    /// Stores the plan for all flows. Only the leader calls this.
    pub fn teach(&self, now: Micros, plan: &Plan) {
        let now = now + self.ledger.ahead_us;
        let Some((path, _)) = self.place else { return };
        let path = self.ledger.shared.path(path);
        path.capacity.store(plan.capacity, Relaxed);
        path.pace.store(plan.pace, Relaxed);
        path.window.store(plan.window, Relaxed);
        path.loss_ppm.store((plan.loss * MILLION as f64) as u64, Relaxed);
        path.rtt_us.store(plan.rtt_us, Relaxed);
        path.learned_at.store(now, Release);
    }

    /// Stores the share of packets lost for any reason. Only the leader calls this.
    pub fn teach_loss(&self, loss: f64) {
        if let Some((path, _)) = self.place {
            self.ledger.shared.path(path).lost.store(1 + (loss * MILLION as f64) as u64, Relaxed);
        }
    }
}

impl Ledger {
    /// The last plan for a path, if it is recent enough, and its age by the ledger's time.
    fn last_plan(&self, now: Micros, key: PathKey) -> Option<(Plan, Micros)> {
        let path = self.shared.find(key.0).map(|path| self.shared.path(path))?;
        let age = now.saturating_sub(path.learned_at.load(Relaxed));
        let plan = Plan {
            capacity: path.capacity.load(Relaxed),
            pace: path.pace.load(Relaxed),
            window: path.window.load(Relaxed),
            loss: path.loss_ppm.load(Relaxed).min(MILLION) as f64 / MILLION as f64,
            rtt_us: path.rtt_us.load(Relaxed),
        };
        (age < LEARNED_LIFE_US).then_some((plan, age))
    }

    /// The plan that the last user of a path measured, in this process or another.
    pub fn known(&self, now: Micros, key: PathKey) -> Option<Plan> {
        let (plan, _) = self.last_plan(now + self.ahead_us, key)?;
        (plan.capacity > 0 && (1..MAX_RTT_US).contains(&plan.rtt_us)).then_some(plan)
    }

    /// The share of packets lost on a path for any reason, as the last user measured it.
    pub fn known_loss(&self, now: Micros, key: PathKey) -> Option<f64> {
        self.last_plan(now + self.ahead_us, key)?;
        let lost = self.shared.path(self.shared.find(key.0)?).lost.load(Relaxed);
        (1..=1 + MILLION).contains(&lost).then(|| (lost - 1) as f64 / MILLION as f64)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.rest();
    }
}

/// The rate that a flow needs if it sends less than its share. Bytes/s.
fn need(slot: &Slot<'_>) -> Option<f64> {
    match slot.state.load(Relaxed) {
        SENDS_LITTLE => Some(LITTLE_MORE * slot.rate.load(Relaxed).max(1) as f64),
        PAUSES | ENDS => Some(0.0),
        _ => None,
    }
}

/// The part of `pace` for each of `count` flows that share it, if some of them need less than an equal part. 0 to 1.
fn share<I: Iterator<Item = f64>>(pace: f64, count: u32, needs: impl Fn() -> I) -> f64 {
    let mut each = 1.0 / f64::from(count.max(1));
    if pace <= 0.0 {
        return each;
    }
    // The rate that these flows leave raises the part of the others. Then more flows may need less than their part.
    for _ in 0..4 {
        let less = needs().filter(|need| *need < each * pace);
        let (little, sum) = less.fold((0, 0.0), |(count, sum), need| (count + 1, sum + need));
        each = (1.0 - sum / pace).max(0.0) / f64::from(count.saturating_sub(little).max(1));
    }
    each.clamp(1.0 / (4.0 * f64::from(count.max(1))), 1.0)
}

const _: () = assert!(RESTS == 0, "zeroed words are flows at rest");

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn what_some_do_not_need_is_the_others() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(share(100.0, 4, || [].into_iter()), 0.25);
        near(share(100.0, 4, || [10.0].into_iter()), 0.3);
        near(share(100.0, 4, || [10.0, 28.0].into_iter()), 0.31);
        near(share(100.0, 2, || [90.0].into_iter()), 0.5);
        near(share(0.0, 4, || [10.0].into_iter()), 0.25);
    }
}
