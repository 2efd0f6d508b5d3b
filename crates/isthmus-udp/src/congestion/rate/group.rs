//! A rate control among those of a host's flows on one path: how it follows the common plan, and what it plans if it
//! leads.

use isthmus_ledger::{Group, Plan};

use super::round::Round;
use super::{ADOPTED_PACKETS, ALL_MAX, HINT_MAX, PACKETS_MORE, Phase, Rate};
use crate::Micros;
use crate::congestion::{AckSample, CongestionControl, per_second};

/// Least time over which others' deliveries are counted, as they report late. Microseconds.
const OTHERS_US: Micros = 8_000;

/// The plan that counts for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Role {
    /// Its own, for itself.
    #[default]
    Alone,
    /// Its own, for all.
    Leads,
    /// Another's.
    Follows,
}

impl Rate {
    /// This flow's share of the plan.
    pub(super) fn own_share(&self) -> f64 {
        self.group.map_or(1.0, |group| group.share)
    }

    /// The group, while this flow follows and the leader does not know the path's capacity yet.
    pub(super) fn begins_among(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| self.role == Role::Follows && group.plan.capacity == 0)
    }

    /// Bytes (wire) that the others have in flight.
    pub(super) fn others_in_flight(&self) -> u64 {
        self.group.map_or(0, |group| group.others_in_flight)
    }

    /// Bytes (wire) that all flows have delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.group.map_or(0, |group| group.delivered)
    }

    /// Whether a round tells what all flows delivered: it was long enough, or the others delivered next to nothing
    /// because they wait for this flow's plan.
    pub(super) fn tells_of_all(&self, sample: &AckSample, round: &Round) -> bool {
        let few = self.by_others(round) < round.acked_bytes / 4;
        few || round.is_train || self.is_long(sample.now, round)
    }

    /// Whether a round was long enough to tell what others delivered: they report a little late.
    pub(super) fn is_long(&self, now: Micros, round: &Round) -> bool {
        let alone = self.group.is_none_or(|group| group.count == 1) && self.by_others(round) == 0;
        alone || round.since.is_some_and(|since| now - since >= self.others_least_us())
    }

    /// Bytes (wire) that others delivered in a round.
    pub(super) fn by_others(&self, round: &Round) -> u64 {
        let (Some(group), Some(_)) = (&self.group, round.since) else { return 0 };
        group.delivered.wrapping_sub(round.counted.1).saturating_sub(round.acked_bytes)
    }

    /// Least rate that all flows delivered in a round: others may report theirs later. Bytes/s (wire).
    pub(super) fn of_all_at_least(&self, now: Micros, round: &Round) -> f64 {
        let us = now.saturating_sub(round.counted.0).max(self.others_least_us());
        per_second(round.acked_bytes + self.by_others(round), us)
    }

    fn others_least_us(&self) -> Micros {
        (self.rtt_least_us / 16).max(OTHERS_US)
    }

    /// Rate that all flows delivered in a round in which this one delivered at `own`. Bytes/s (wire). Flows that came
    /// or went meanwhile do not matter.
    pub(super) fn of_all(&self, now: Micros, round: &Round, own: f64) -> f64 {
        if round.since.is_none() || self.group.is_none() {
            return own;
        }
        // Others report a little late, and our own thread may run late.
        let us = (now - round.counted.0).max(round.clock_us).max(self.others_least_us()) as f64;
        let others = self.by_others(round) as f64 * 1e6 / us;
        // Others send by the known plan. A count beyond that is wrong: other processes write this memory.
        let most = (ALL_MAX * self.capacity).max(HINT_MAX * self.hint);
        let most = if most > 0.0 { most } else { f64::MAX };
        own + others.min((most - own).max(0.0))
    }

    /// Takes over what the plan knows of the path.
    fn adopt(&mut self, now: Micros, plan: &Plan) {
        self.recall(plan.capacity, plan.rtt_us);
        (self.chance, self.verified) = ((plan.loss * ADOPTED_PACKETS, ADOPTED_PACKETS), plan.loss);
        self.rates = [0.0; 3];
        self.trial = None;
        self.round = Round::default();
        self.skip = 1;
        self.adopted = true;
        self.phase_since = now;
    }

    /// Begins to plan for all flows, whatever this flow did before.
    fn begin_to_lead(&mut self, now: Micros, plan: &Plan) {
        let own = self.role == Role::Alone
            && matches!(self.phase, Phase::Shared(_) | Phase::Compete(_) | Phase::Probe(_));
        if plan.capacity == 0 || own {
            self.hint = self.hint.max(plan.pace as f64);
            self.proven = self.proven.max(plan.window as f64);
            return;
        }
        if self.role == Role::Follows || matches!(self.phase, Phase::Start) {
            self.adopt(now, plan);
        } else {
            // Other flows may have found out more meanwhile.
            self.capacity = plan.capacity as f64;
            (self.known, self.line) = (self.known.max(self.capacity), self.line.max(self.capacity));
        }
    }

    /// This flow's part of a window for all flows. Bytes (wire).
    pub(super) fn part_of_window(&self, all: f64) -> u64 {
        let left = all - self.others_in_flight() as f64;
        let paused = self.group.map_or(0, |group| group.paused_in_flight);
        let among = (all - paused as f64).max(0.0);
        (left.max(among * self.own_share()) as u64).max(PACKETS_MORE * self.packet_bytes)
            + PACKETS_MORE * self.packet_bytes
    }

    /// Notes which flows use the path, and so whose plan counts from now on.
    pub(super) fn join(&mut self, now: Micros, group: Option<&Group>) {
        let role = match group {
            None => Role::Alone,
            Some(group) if group.leads => Role::Leads,
            // No flow can lead at the moment, and no recent plan has a window.
            Some(group) if !group.is_led && group.plan.window == 0 => Role::Alone,
            Some(_) => Role::Follows,
        };
        let plan = group.or(self.group.as_ref()).map(|group| group.plan).unwrap_or_default();
        if role == Role::Leads && self.role != Role::Leads {
            self.begin_to_lead(now, &plan);
        } else if self.role == Role::Follows && role == Role::Alone && plan.capacity > 0 {
            self.adopt(now, &plan);
        }
        if let Some(group) = group.filter(|_| self.group.is_none()) {
            for round in [&mut self.round, &mut self.train] {
                round.count_from(group.delivered);
            }
        }
        if plan.capacity == 0 && plan.loss > 0.0 && matches!(self.phase, Phase::Start) {
            self.overflow = self.overflow.max(plan.loss);
        }
        (self.role, self.group) = (role, group.copied());
    }

    /// The plan for all flows; `None` if this flow does not lead.
    pub(super) fn plan_for_all(&self) -> Option<Plan> {
        if self.role != Role::Leads {
            return None;
        }
        let (loss, rtt_us) = (self.chance(), self.rtt_least_us);
        if matches!(self.phase, Phase::Start) {
            let (pace, window) = (self.hint as u64, self.window_of_all() as u64);
            return Some(Plan { capacity: 0, pace, window, loss: self.overflow, rtt_us });
        }
        let (pace, window) = (self.pace_of_all() as u64, self.window_of_all() as u64);
        let capacity = match self.phase {
            Phase::Shared(_) | Phase::Compete(_) => pace,
            _ => self.capacity as u64,
        };
        Some(Plan { capacity, pace, window, loss, rtt_us })
    }
}
