//! How much one peer may send ahead of its receives.
//!
//! A message goes without waiting for its receive as far as the receiver's credit lasts. For that to
//! cost no round trip, the credit has to be what the path holds: the product of its rate and its
//! round trip. So credit begins with what a fast path of this round trip holds, grows with what arrives, and
//! is limited by an equal share of what the endpoint grants in all. What a peer was told is never taken
//! back; but what it has used is not granted again where others need it, or once the peer has been
//! silent.

use super::state::{CREDIT_FIRST, Micros};
use super::{Decision, Engine};
use crate::PeerId;

/// Least credit that a new peer is granted. Bytes.
const CREDIT_LEAST: u64 = 64 << 10;
/// Paths are taken to carry as much before something is known. Bytes/s: 1 Gb/s.
const RATE_FIRST: u64 = 125_000_000;
/// What arrives is counted over a round trip, and so long at least. Microseconds.
const PERIOD_US: Micros = 50_000;
/// A peer that sent nothing for so long is silent. Microseconds.
const SILENT_US: Micros = 10_000_000;

/// What arrives from one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inflow {
    since: Micros,
    bytes: u64,
    /// Most that arrived in a period. Bytes/s.
    rate: u64,
    /// When something last did.
    last: Micros,
}

impl Inflow {
    /// So much has arrived; true where a period ends with more than any before.
    fn note(&mut self, now: Micros, rtt_us: Micros, bytes: u64) -> bool {
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
    /// What this peer should be granted now. Bytes.
    fn fair_credit(&self, peer: PeerId) -> u64 {
        let least = self.config.credit;
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return least };
        if !self.config.credit_grows {
            return least;
        }
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let inflow = connection.inflow.as_deref().copied().unwrap_or_default();
        let silent = inflow.last > 0 && self.clock.saturating_sub(inflow.last) > SILENT_US;
        let rate = if silent { RATE_FIRST } else { inflow.rate.max(RATE_FIRST) };
        let held = u128::from(rate) * u128::from(rtt_us) / 1_000_000;
        let wanted = (held + held / 4).min(u128::from(u64::MAX)) as u64;
        wanted.max(least).min(self.config.credit_total / self.credit_peers.max(1))
    }

    /// Credit for a peer, reserved when it is first granted; what it has in all. Bytes.
    pub(super) fn grant(&mut self, peer: PeerId) -> u64 {
        self.raise_credit(peer, "by the round trip");
        let connection = self.connection(peer);
        connection.advertised = connection.credit_to_advertise();
        connection.advertised
    }

    /// Raises what the peer is granted to what it should be; true where that is more.
    fn raise_credit(&mut self, peer: PeerId, why: &'static str) -> bool {
        if self.connection(peer).reserved() == 0 {
            self.credit_peers += 1;
        }
        let left = self.config.credit_total.saturating_sub(self.credit_given);
        let share = self.fair_credit(peer).min(left / 4).max(CREDIT_LEAST);
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

    /// Data of a message came from this peer.
    pub(super) fn note_inflow(&mut self, peer: PeerId, bytes: u64) {
        if !self.config.credit_grows || !self.connection(peer).is_far() {
            return;
        }
        let now = self.clock;
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let more = connection.inflow.get_or_insert_default().note(now, rtt_us, bytes);
        if more && self.raise_credit(peer, "by what arrives") {
            self.say_credit(peer);
        }
    }

    /// The round trip has become known, or shorter.
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

    /// Data that the peer was granted credit for has found its receive: grants as much anew, or less
    /// where others need it.
    #[inline]
    pub(super) fn return_credit(&mut self, peer: PeerId, bytes: u64) {
        let (all, usual, peers) = (self.config.credit_total, self.config.credit, self.credit_peers.max(1));
        let connection = self.connection(peer);
        let granted = connection.granted;
        connection.returned += bytes;
        let unsaid = connection.credit_to_advertise() - connection.advertised;
        // Nobody is granted less than this: the usual case, which need not be reckoned out.
        let plain = granted <= usual && granted.checked_mul(peers).is_some_and(|granted| granted <= all);
        if !plain || unsaid > granted / 4 {
            self.return_credit_by_share(peer, bytes, plain);
        }
    }

    /// As [`Engine::return_credit`], of what was returned; `plain` where the peer has what all have.
    #[inline(never)]
    fn return_credit_by_share(&mut self, peer: PeerId, bytes: u64, plain: bool) {
        let granted = self.connection(peer).granted;
        let fair = if plain { granted } else { self.fair_credit(peer).max(CREDIT_FIRST) };
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

    /// A peer is gone, or is another one: what it was granted is free.
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
            raised += u32::from(inflow.note(1_000 * step, 20_000, 200_000));
        }
        assert!(raised >= 1 && (190_000_000..=210_000_000).contains(&inflow.rate), "{inflow:?}");
        inflow.note(100_000 + SILENT_US + 1, 20_000, 1);
        assert_eq!((inflow.rate, inflow.bytes), (0, 1));
    }
}
