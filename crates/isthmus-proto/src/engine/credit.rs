//! Credit: how many bytes a peer may send before receives are posted.
//!
//! A message goes without waiting for its receive as long as the receiver's credit lasts. To cost no round trip, the
//! credit has to be what the path holds: rate times round trip. So credit begins with what a path of `INITIAL_RATE`
//! (1 Gb/s) holds in this round trip, and grows with the rate at which data arrives. It is limited by an equal share of
//! `credit_total`. Credit that a peer was told of is never taken back. But credit that it has used is not granted
//! again if other peers need it, or if the peer has been silent for `SILENT_US` (10 s).

use super::state::{INITIAL_CREDIT, Micros};
use super::{Decision, Engine};
use crate::PeerId;

/// Least credit that a new peer is granted, even if `credit_total` is used up. Bytes.
const MIN_CREDIT: u64 = 64 << 10;
/// The rate that a path is assumed to carry before anything is measured. Bytes/s: 1 Gb/s.
const INITIAL_RATE: u64 = 125_000_000;
/// Arriving data is counted over a round trip, but at least over this time. Microseconds; shorter periods are too
/// noisy.
const PERIOD_US: Micros = 50_000;
/// A peer that sent nothing for this long counts as silent, and its measured rate is forgotten. Microseconds.
const SILENT_US: Micros = 10_000_000;

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
        let connection = self.connection(peer);
        connection.advertised = connection.credit_to_advertise();
        connection.advertised
    }

    /// Raises the peer's credit to what it should be. True if that is more than before.
    fn raise_credit(&mut self, peer: PeerId, why: &'static str) -> bool {
        if self.connection(peer).reserved() == 0 {
            self.credit_peers += 1;
        }
        let left = self.config.credit_total.saturating_sub(self.credit_given);
        let share = self.fair_credit(peer).min(left / 4).max(MIN_CREDIT);
        let connection = self.connection(peer);
        let more = share.saturating_sub(connection.granted);
        connection.granted += more;
        if connection.reserved() == 0 {
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
        let connection = self.connection(peer);
        (connection.ack_owed, connection.ack_due) = (true, true);
        self.kick(peer);
    }

    /// Returns credit whose data has found its receive, or less of it if other peers need it.
    #[inline]
    pub(super) fn return_credit(&mut self, peer: PeerId, bytes: u64) {
        let (all, usual, peers) = (self.config.credit_total, self.config.credit, self.credit_peers.max(1));
        let connection = self.connection(peer);
        let granted = connection.granted;
        connection.returned += bytes;
        let unsaid = connection.credit_to_advertise() - connection.advertised;
        // The usual case, made fast: this peer has no more than its fair share.
        let plain = granted <= usual && granted.checked_mul(peers).is_some_and(|granted| granted <= all);
        if !plain || unsaid > granted / 4 {
            self.return_credit_by_share(peer, bytes, plain);
        }
    }

    /// The rest of [`Engine::return_credit`]. `plain` says that the peer has no more than its fair share.
    #[inline(never)]
    fn return_credit_by_share(&mut self, peer: PeerId, bytes: u64, plain: bool) {
        let granted = self.connection(peer).granted;
        let fair = if plain { granted } else { self.fair_credit(peer).max(INITIAL_CREDIT) };
        let connection = self.connection(peer);
        let less = connection.granted.saturating_sub(fair).min(bytes).min(connection.reserved());
        if less > 0 {
            connection.granted -= less;
            connection.counters.credit_lowered += 1;
            self.credit_given = self.credit_given.saturating_sub(less);
            self.counters.credit_lowered += 1;
            let none = u64::from(self.connection(peer).reserved() == 0);
            self.credit_peers = self.credit_peers.saturating_sub(none);
        }
        let connection = self.connection(peer);
        let unsaid = connection.credit_to_advertise() - connection.advertised;
        if unsaid > connection.granted / 4 {
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
