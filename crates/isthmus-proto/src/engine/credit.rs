//! Credit: how many bytes a peer may send before receives are posted.
//!
//! A message goes without waiting for its receive as long as the receiver's credit lasts. To cost no round trip, the
//! credit has to be what the path holds: rate times round trip. So credit begins with what a path of `INITIAL_RATE`
//! (1 Gb/s) holds in this round trip, and grows with the rate at which data arrives. It is limited by an equal share of
//! `credit_total`. Credit that a peer was told of is never taken back. But credit that it has used is not granted
//! again if other peers need it, or if the peer has been silent for `SILENT_US` (10 s).

use super::state::Micros;
use super::{Decision, Engine};
use crate::PeerId;

/// Credit that every endpoint grants a peer before it announces more. Bytes. It lets a first message go at once.
const INITIAL_CREDIT: u64 = 64 << 10;
/// Least credit that a new peer is granted, even if `credit_total` is used up. Bytes.
const MIN_CREDIT: u64 = 64 << 10;
/// The rate that a path is assumed to carry before anything is measured. Bytes/s: 1 Gb/s.
const INITIAL_RATE: u64 = 125_000_000;
/// Arriving data is counted over a round trip, but at least over this time. Microseconds; shorter periods are too
/// noisy.
const PERIOD_US: Micros = 50_000;
/// A peer that sent nothing for this long counts as silent, and its measured rate is forgotten. Microseconds.
const SILENT_US: Micros = 10_000_000;

/// The credit that we give a peer. Bytes.
#[derive(Debug)]
pub(crate) struct CreditIn {
    /// Data that waits for receives.
    held: u64,
    /// Most data that may wait.
    granted: u64,
    /// What the peer has used; never more than was advertised.
    taken: u64,
    /// What was granted again because its data found receives.
    returned: u64,
    /// What the peer was last told.
    advertised: u64,
}

impl Default for CreditIn {
    fn default() -> Self {
        Self { held: 0, granted: INITIAL_CREDIT, taken: 0, returned: 0, advertised: 0 }
    }
}

impl CreditIn {
    /// All that the peer may have used by now.
    fn total(&self) -> u64 {
        self.granted + self.returned
    }

    /// Reserved for this peer beyond what every peer has.
    pub(super) fn reserved(&self) -> u64 {
        self.granted.saturating_sub(INITIAL_CREDIT)
    }

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// What the peer has not used yet.
    pub(super) fn left(&self) -> u64 {
        self.total() - self.taken
    }

    /// The total, which the peer is told now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised = self.total();
        self.advertised
    }

    /// Credit of which the peer was not told yet.
    fn unsaid(&self) -> u64 {
        self.total() - self.advertised
    }

    /// The peer uses credit. False if it has less.
    #[must_use]
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        match self.taken.checked_add(bytes) {
            Some(taken) if taken <= self.total() => self.taken = taken,
            _ => return false,
        }
        true
    }

    /// The peer used credit for data that went straight to its receives. The caller returns it at once
    /// ([`Engine::return_credit`]), so a run may be longer than what is left.
    pub(super) fn take_run(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Whether this much more data may wait for receives.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.held + bytes <= self.granted
    }

    pub(super) fn hold(&mut self, bytes: u64) {
        self.held += bytes;
    }

    pub(super) fn free(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// Returns by how much the credit grew.
    fn raise_to(&mut self, share: u64) -> u64 {
        let more = share.saturating_sub(self.granted);
        self.granted += more;
        more
    }

    fn give_back(&mut self, bytes: u64) {
        self.returned += bytes;
    }

    /// Takes credit back that the peer has used: at most `bytes`, and down to `fair`. Returns by how much.
    fn lower_to(&mut self, fair: u64, bytes: u64) -> u64 {
        let less = self.granted.saturating_sub(fair).min(bytes).min(self.reserved());
        self.granted -= less;
        less
    }
}

/// The credit that a peer gives us. Bytes.
#[derive(Debug)]
pub(crate) struct CreditOut {
    limit: u64,
    used: u64,
}

impl Default for CreditOut {
    fn default() -> Self {
        Self { limit: INITIAL_CREDIT, used: 0 }
    }
}

impl CreditOut {
    pub(super) fn left(&self) -> u64 {
        self.limit - self.used
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn use_up(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// True if the limit is higher than before. It never falls: acknowledgements may overtake each other.
    pub(super) fn raise_to(&mut self, limit: u64) -> bool {
        let is_more = limit > self.limit;
        self.limit = self.limit.max(limit);
        is_more
    }
}

/// The rate at which bytes arrive from one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inflow {
    since: Micros,
    bytes: u64,
    /// The highest rate of any period. Bytes/s.
    rate: u64,
    /// Time of the last arrival.
    last: Micros,
}

impl Inflow {
    /// Counts bytes that arrived. True if a period ends with a higher rate than any before.
    fn on_arrival(&mut self, now: Micros, rtt_us: Micros, bytes: u64) -> bool {
        if now.saturating_sub(self.last) > SILENT_US {
            *self = Self { since: now, ..Self::default() };
        }
        self.last = now;
        self.bytes += bytes;
        let took = now.saturating_sub(self.since);
        if took < rtt_us.max(PERIOD_US) {
            return false;
        }
        let rate = (u128::from(self.bytes) * 1_000_000 / u128::from(took)) as u64;
        (self.since, self.bytes) = (now, 0);
        let more = rate > self.rate;
        self.rate = self.rate.max(rate);
        more
    }
}

impl Engine {
    /// The credit that this peer should have now. Bytes.
    fn fair_credit(&self, peer: PeerId) -> u64 {
        let least = self.config.credit;
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return least };
        if !self.config.credit_grows {
            return least;
        }
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let inflow = connection.inflow.as_deref().copied().unwrap_or_default();
        let silent = inflow.last > 0 && self.clock.saturating_sub(inflow.last) > SILENT_US;
        let rate = if silent { INITIAL_RATE } else { inflow.rate.max(INITIAL_RATE) };
        let held = u128::from(rate) * u128::from(rtt_us) / 1_000_000;
        let wanted = (held + held / 4).min(u128::from(u64::MAX)) as u64;
        wanted.max(least).min(self.config.credit_total / self.credit_peers.max(1))
    }

    /// Grants a peer its credit, and reserves it; returns all that was granted so far. Bytes.
    pub(super) fn grant(&mut self, peer: PeerId) -> u64 {
        self.raise_credit(peer, "by the round trip");
        self.connection(peer).credit_in.advertise()
    }

    /// Raises the peer's credit to what it should be. True if that is more than before.
    fn raise_credit(&mut self, peer: PeerId, why: &'static str) -> bool {
        if self.connection(peer).credit_in.reserved() == 0 {
            self.credit_peers += 1;
        }
        let left = self.config.credit_total.saturating_sub(self.credit_given);
        let share = self.fair_credit(peer).min(left / 4).max(MIN_CREDIT);
        let credit = &mut self.connection(peer).credit_in;
        let more = credit.raise_to(share);
        if credit.reserved() == 0 {
            self.credit_peers -= 1;
        }
        self.credit_given += more;
        if more > 0 {
            self.counters.credit_raised += 1;
            self.connection(peer).counters.credit_raised += 1;
            self.decide(peer, Decision::Credit { bytes: share, why });
        }
        more > 0
    }

    /// Counts message data that came from this peer, and raises its credit if the rate is higher than before.
    pub(super) fn count_inflow(&mut self, peer: PeerId, bytes: u64) {
        if !self.config.credit_grows || !self.connection(peer).is_far() {
            return;
        }
        let now = self.clock;
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let more = connection.inflow.get_or_insert_default().on_arrival(now, rtt_us, bytes);
        if more && self.raise_credit(peer, "by what arrives") {
            self.say_credit(peer);
        }
    }

    /// Raises the credit if it follows the path: the round trip is newly known, or shorter.
    pub(super) fn credit_for_path(&mut self, peer: PeerId) {
        if self.config.credit_grows && self.raise_credit(peer, "by the round trip") {
            self.say_credit(peer);
        }
    }

    fn say_credit(&mut self, peer: PeerId) {
        self.connection(peer).ack.demand();
        self.kick(peer);
    }

    /// Returns credit whose data has found its receive, or less of it if other peers need it.
    #[inline]
    pub(super) fn return_credit(&mut self, peer: PeerId, bytes: u64) {
        let (all, usual, peers) = (self.config.credit_total, self.config.credit, self.credit_peers.max(1));
        let credit = &mut self.connection(peer).credit_in;
        credit.give_back(bytes);
        let (granted, unsaid) = (credit.granted, credit.unsaid());
        // The usual case, made fast: this peer has no more than its fair share.
        let plain = granted <= usual && granted.checked_mul(peers).is_some_and(|granted| granted <= all);
        if !plain || unsaid > granted / 4 {
            self.return_credit_by_share(peer, bytes, plain);
        }
    }

    /// The rest of [`Engine::return_credit`]. `plain` says that the peer has no more than its fair share.
    #[inline(never)]
    fn return_credit_by_share(&mut self, peer: PeerId, bytes: u64, plain: bool) {
        let granted = self.connection(peer).credit_in.granted;
        let fair = if plain { granted } else { self.fair_credit(peer).max(INITIAL_CREDIT) };
        let connection = self.connection(peer);
        let less = connection.credit_in.lower_to(fair, bytes);
        if less > 0 {
            connection.counters.credit_lowered += 1;
            self.credit_given = self.credit_given.saturating_sub(less);
            self.counters.credit_lowered += 1;
            let none = u64::from(self.connection(peer).credit_in.reserved() == 0);
            self.credit_peers = self.credit_peers.saturating_sub(none);
        }
        let credit = &self.connection(peer).credit_in;
        if credit.unsaid() > credit.granted / 4 {
            self.say_credit(peer);
        }
    }

    /// Frees the credit of a peer that is gone, or that turned out to be another entry of the table.
    pub(super) fn release_credit(&mut self, reserved: u64) {
        self.credit_given = self.credit_given.saturating_sub(reserved);
        self.credit_peers -= u64::from(reserved > 0).min(self.credit_peers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_measured_over_round_trips_and_forgotten_after_silence() {
        let mut inflow = Inflow::default();
        let mut raised = 0;
        for step in 1..=100 {
            raised += u32::from(inflow.on_arrival(1_000 * step, 20_000, 200_000));
        }
        assert!(raised >= 1 && (190_000_000..=210_000_000).contains(&inflow.rate), "{inflow:?}");
        inflow.on_arrival(100_000 + SILENT_US + 1, 20_000, 1);
        assert_eq!((inflow.rate, inflow.bytes), (0, 1));
    }
}
