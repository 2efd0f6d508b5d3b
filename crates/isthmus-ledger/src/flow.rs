//! A flow's part in the ledger.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::table::{ENDS, PACED, PAUSES, RESTS, SENDS, SENDS_LITTLE, Slot};
use crate::{Kind, LEARNED_LIFE_US, Ledger, Micros, PathKey};

/// What a flow that sends little may have beyond what it sends, before it takes from others.
const LITTLE_MORE: f64 = 1.25;

/// How long a plan holds that nobody has renewed. Microseconds.
const PLAN_LIFE_US: Micros = 10_000_000;
/// Longer round trips are no path's: others write the table too. Microseconds (60 s).
const RTT_MOST_US: Micros = 60_000_000;
const MILLION: u64 = 1_000_000;

/// What a flow tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What it delivers. Bytes/s.
    pub rate: u64,
    /// What it has under way. Bytes.
    pub in_flight: u64,
    /// Streams or connections that it consists of.
    pub flows: u32,
    /// Its program gives it less to send than it might.
    pub sends_little: bool,
}

/// What the leader of a path plans for all flows of it together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    /// What the path carries. Bytes/s (wire); 0 if it is not known.
    pub capacity: u64,
    /// How fast all send. Bytes/s (wire); 0 if nothing is planned.
    pub pace: u64,
    /// Most that is under way. Bytes (wire).
    pub window: u64,
    /// Share of packets that are lost by chance.
    pub loss: f64,
    /// The least round trip. Microseconds.
    pub rtt_us: Micros,
}

/// What a flow is to do among those that use its path now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// It is this one that plans for all.
    pub leads: bool,
    /// Somebody does.
    pub is_led: bool,
    /// Flows that have something to send, this one among them.
    pub count: u32,
    /// What part of the pace is this flow's; above 0, at most 1.
    pub share: f64,
    /// What the others have under way. Bytes.
    pub others_in_flight: u64,
    /// What all have delivered, those too that have ended, from any start, modulo its size. Bytes.
    pub delivered: u64,
    /// What is planned, if it is known.
    pub plan: Plan,
}

/// A flow's part in the ledger. Where there is no room for it, it goes by itself.
#[derive(Debug)]
pub struct Flow {
    ledger: Ledger,
    key: PathKey,
    kind: Kind,
    /// Path and slot.
    place: Option<(usize, usize)>,
    /// There was no room, until when not to look again.
    none_until: Micros,
}

/// How long a flow for which there is no room goes by itself. Microseconds.
const ALONE_US: Micros = 1_000_000;

impl Flow {
    pub(crate) fn new(ledger: Ledger, key: PathKey, kind: Kind) -> Self {
        Self { ledger, key, kind, place: None, none_until: 0 }
    }

    /// Bulk is under way. False where there is no room for the flow.
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

    /// There is nothing to send, until [`Flow::tell`] says otherwise: what this flow might send is the others',
    /// but what it has under way still counts. If it leads it goes on, unless it `ends`: then
    /// another one may.
    pub fn pause(&self, ends: bool) {
        if let Some((path, slot)) = self.place {
            let state = if ends { ENDS } else { PAUSES };
            self.ledger.shared.slot(path, slot).state.store(state, Release);
        }
    }

    /// So much more of this flow has arrived. Bytes (wire).
    pub fn deliver(&self, bytes: u64) {
        if let Some((path, _)) = self.place {
            self.ledger.shared.path(path).delivered.fetch_add(bytes, Relaxed);
        }
    }

    fn take_place(&mut self, now: Micros) -> Option<(usize, usize)> {
        let shared = &self.ledger.shared;
        // The path may have given its place to another while this flow rested, or have two since two took it at once.
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

    /// Nothing is under way: what it had is the others'.
    pub fn rest(&mut self) {
        if let Some((path, slot)) = self.place.take() {
            self.ledger.shared.release(path, slot);
        }
        self.none_until = 0;
    }

    /// Whether it has a place.
    pub fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// What is planned for the path. What was planned longer ago is a hint only: a pace, and no window.
    fn plan(&self, now: Micros) -> Plan {
        let (plan, age) = self.ledger.last_plan(now, self.key).unwrap_or_default();
        if age < PLAN_LIFE_US { plan } else { Plan { capacity: 0, window: 0, ..plan } }
    }

    /// What this flow is to do among those that send; `None` where it has no place. Who sends all
    /// it may takes the lead where nobody has it.
    pub fn group(&mut self, now: Micros) -> Option<Group> {
        let (path, own) = self.place?;
        let now = now + self.ledger.ahead_us;
        let plan = self.plan(now);
        let (leads, is_led) = self.lead(now, path, own);
        let shared = &self.ledger.shared;
        let delivered = shared.path(path).delivered.load(Relaxed);
        let mut sum = Group { leads, is_led, count: 1, share: 1.0, others_in_flight: 0, delivered, plan };
        let others = shared.slots(path).enumerate().filter(|(slot, _)| *slot != own);
        let busy = |slot: &Slot<'_>| slot.is_busy(now) && slot.is_paced();
        for (_, slot) in others.clone().filter(|(_, slot)| busy(slot)) {
            sum.count += u32::from(need(&slot) != Some(0.0));
            sum.others_in_flight = sum.others_in_flight.saturating_add(slot.in_flight.load(Relaxed));
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

    /// Says what is planned for all; for the leader.
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

    /// Says what share of packets is lost, by chance or not; for the leader.
    pub fn teach_loss(&self, loss: f64) {
        if let Some((path, _)) = self.place {
            self.ledger.shared.path(path).lost.store(1 + (loss * MILLION as f64) as u64, Relaxed);
        }
    }
}

impl Ledger {
    /// What was planned last for a path, if it is of use, and its age; by the ledger's time.
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

    /// What was found out of a path by whoever used it last, in this process or another, where that is known.
    pub fn known(&self, now: Micros, key: PathKey) -> Option<Plan> {
        let (plan, _) = self.last_plan(now + self.ahead_us, key)?;
        (plan.capacity > 0 && (1..RTT_MOST_US).contains(&plan.rtt_us)).then_some(plan)
    }

    /// What share of packets is lost on a path, by chance or not, as far as whoever used it last found that out.
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

/// What a flow needs that does not send all it might. Bytes/s.
fn need(slot: &Slot<'_>) -> Option<f64> {
    match slot.state.load(Relaxed) {
        SENDS_LITTLE => Some(LITTLE_MORE * slot.rate.load(Relaxed).max(1) as f64),
        PAUSES | ENDS => Some(0.0),
        _ => None,
    }
}

/// The part of `pace` that each of `count` flows has, of which some need less than that.
fn share<I: Iterator<Item = f64>>(pace: f64, count: u32, needs: impl Fn() -> I) -> f64 {
    let mut each = 1.0 / f64::from(count.max(1));
    if pace <= 0.0 {
        return each;
    }
    // Of what those leave the others have more, and then some more of them need less than that.
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
