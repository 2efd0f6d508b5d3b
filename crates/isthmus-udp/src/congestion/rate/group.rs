//! One rate control among those of a host's flows on one path: what this one does of what is planned for
//! all, and what it plans if it leads.

use isthmus_ledger::{Group, Plan};

use super::round::Round;
use super::{ADOPTED_PACKETS, FLIGHT_ROUNDS, OTHERS_MOST, PACKETS_MORE, Phase, Rate};
use crate::Micros;
use crate::congestion::CongestionControl;

/// Whose plan counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Role {
    /// One's own, for oneself.
    #[default]
    Alone,
    /// One's own, for all.
    Leads,
    /// Another's.
    Follows,
}

impl Rate {
    /// This flow's part of what is planned for all.
    pub(super) fn own_share(&self) -> f64 {
        self.group.map_or(1.0, |group| group.share)
    }

    /// What the others have under way. Bytes (wire).
    pub(super) fn others_in_flight(&self) -> u64 {
        self.group.map_or(0, |group| group.others_in_flight)
    }

    /// What all deliver where this flow delivers so much. Bytes/s (wire).
    pub(super) fn of_all(&self, rate: f64) -> f64 {
        let Some(group) = self.group else { return rate };
        // They told so a little ago: it is hardly more than their part.
        let most = OTHERS_MOST * self.capacity * (1.0 - group.share);
        rate + if self.capacity > 0.0 {
            (group.others_rate as f64).min(most)
        } else {
            group.others_rate as f64
        }
    }

    /// Takes over what is known of the path.
    fn adopt(&mut self, now: Micros, plan: &Plan) {
        self.recall(plan.capacity, plan.rtt_us);
        self.chance = (plan.loss * ADOPTED_PACKETS, ADOPTED_PACKETS);
        self.rates = [0.0; 3];
        self.trial = None;
        self.round = Round::default();
        self.skip = FLIGHT_ROUNDS;
        self.phase_since = now;
    }

    /// This flow plans for all from now on, whatever it did before.
    fn begin_to_lead(&mut self, now: Micros, plan: &Plan) {
        let own = self.role == Role::Alone && matches!(self.phase, Phase::Shared(_) | Phase::AmIAlone(_));
        if plan.capacity == 0 || own {
            self.hint = self.hint.max(plan.pace as f64);
            return;
        }
        if self.role == Role::Follows || matches!(self.phase, Phase::Start) {
            self.adopt(now, plan);
        } else {
            // Others may have found out more meanwhile.
            self.capacity = plan.capacity as f64;
            (self.known, self.line) = (self.known.max(self.capacity), self.line.max(self.capacity));
        }
    }

    /// The part that this flow has of a window for all. Bytes (wire).
    pub(super) fn part_of_window(&self, all: f64) -> u64 {
        let left = all - self.others_in_flight() as f64;
        (left.max(all * self.own_share()) as u64).max(PACKETS_MORE * self.packet_bytes)
            + PACKETS_MORE * self.packet_bytes
    }

    /// What is known of the flows that use the path, and so whose plan counts from now on.
    pub(super) fn join(&mut self, now: Micros, group: Option<&Group>) {
        let role = match group {
            None => Role::Alone,
            Some(group) if group.leads => Role::Leads,
            // Nobody can, at the moment: what was planned holds.
            Some(group) if !group.is_led && group.plan.window == 0 => Role::Alone,
            Some(_) => Role::Follows,
        };
        let plan = group.or(self.group.as_ref()).map(|group| group.plan).unwrap_or_default();
        let before = self.group.map(|group| group.count);
        if role == Role::Leads && self.role != Role::Leads {
            self.begin_to_lead(now, &plan);
        } else if role == Role::Leads
            && before != group.map(|group| group.count)
            && !matches!(self.phase, Phase::Start)
        {
            self.skip = self.skip.max(FLIGHT_ROUNDS);
            self.rates = [0.0; 3];
        } else if self.role == Role::Follows && role == Role::Alone && plan.capacity > 0 {
            self.adopt(now, &plan);
        }
        (self.role, self.group) = (role, group.copied());
    }

    /// What this flow plans for all, if it leads.
    pub(super) fn plan_for_all(&self, in_flight: u64) -> Option<Plan> {
        if self.role != Role::Leads {
            return None;
        }
        let (loss, rtt_us) = (self.chance(), self.rtt_least_us);
        if matches!(self.phase, Phase::Start) {
            let (pace, window) = match self.is_past_burst(in_flight) {
                true => (self.hint as u64, self.window_of_all() as u64),
                false => (self.hint as u64, 0),
            };
            return Some(Plan { capacity: 0, pace, window, loss, rtt_us });
        }
        let (pace, window) = (self.pace_of_all() as u64, self.window_of_all() as u64);
        let capacity = match self.phase {
            Phase::Shared(_) | Phase::AmIAlone(_) => pace,
            _ => self.capacity as u64,
        };
        Some(Plan { capacity, pace, window, loss, rtt_us })
    }
}
