//! Probes: new lanes that find out whether a silent peer can be reached again.
//!
//! On a path that was cut for a while, the kernel retransmits after pauses that double. So while nothing at all is
//! acknowledged, the engine dials new lanes, several in a round trip. The first that gets through shows that the path
//! works again. It and the lanes that follow it send again what was unacknowledged. The old lanes recover more slowly,
//! but know how much the path holds; after a while, as many lanes carry data as before.

use std::collections::VecDeque;

use super::state::{LaneState, Micros};
use super::{Action, Decision, Engine, Lane, LaneId};
use crate::PeerId;

/// Silence before the first probe, beyond the time that a fragment may take. Microseconds.
const SILENCE_US: Micros = 200_000;
/// The pause between two probes is the round trip divided by this.
const PAUSE_PART: Micros = 4;
/// Shortest pause between two probes of a peer. Microseconds.
const MIN_PAUSE_US: Micros = 4_000;
/// The pause is also at least the silence so far divided by this, so that a dead path gets fewer probes.
const SILENCE_PART: Micros = 512;
/// Shortest pause between any two probes of an endpoint. Microseconds.
const PAUSE_ANY_US: Micros = 1_000;
/// Most probes of one peer at once. Count; before a further one, the oldest is given up.
const UNDER_WAY: usize = 12;

/// The probes of one peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    /// The lanes that were dialled as probes in this silence, or in the last one, oldest first.
    lanes: VecDeque<LaneId>,
    /// No probe has come up yet.
    trying: bool,
    /// Time at which the first probe came up.
    up_at: Micros,
}

impl Probes {
    /// If this lane is a probe, it sends fragments again that were sent before this time. 0 for other lanes.
    pub(super) fn sends_before(&self, lane: LaneId) -> Micros {
        if self.lanes.contains(&lane) { self.up_at } else { 0 }
    }
}

impl Engine {
    /// Nothing was acknowledged for `silent` microseconds. If that is [`SILENCE_US`] longer than `patience`, dials a
    /// probe and returns the time of the next one.
    pub(super) fn probe_if_silent(
        &mut self,
        peer: PeerId,
        now: Micros,
        silent: Micros,
        patience: Micros,
    ) -> Option<Micros> {
        if silent <= patience + SILENCE_US {
            return None;
        }
        if now < self.probed_at + PAUSE_ANY_US {
            return Some(self.probed_at + PAUSE_ANY_US);
        }
        self.probed_at = now;
        self.probe(peer, silent);
        let rtt_us = self.connection(peer).rtt_us.unwrap_or(0);
        Some(now + (rtt_us / PAUSE_PART).max(MIN_PAUSE_US).max(silent / SILENCE_PART))
    }

    /// Dials one more probe.
    fn probe(&mut self, peer: PeerId, silent: Micros) {
        let Some(stragglers) = &mut self.connection(peer).stragglers else { return };
        if !stragglers.probes.trying {
            stragglers.probes = Probes { trying: true, ..Probes::default() };
            self.decide(peer, Decision::Probe { silent_ms: silent / 1_000 });
        } else if stragglers.probes.lanes.len() >= UNDER_WAY
            && let Some(lane) = stragglers.probes.lanes.pop_front()
            && self.lanes.get(lane.0 as usize).is_some_and(|lane| lane.comes_up_to(peer))
        {
            self.actions.push_back(Action::Abandon { lane });
        }
        self.dial_probe(peer);
        self.counters.probes += 1;
    }

    fn dial_probe(&mut self, peer: PeerId) {
        let locator = self.rail_address(peer, 0).locator;
        let lane = self.dial_to(peer, locator, None, 0);
        if let Some(stragglers) = &mut self.connection(peer).stragglers {
            stragglers.probes.lanes.push_back(lane);
        }
    }

    /// Whether this lane, which has come up, is a probe. After the first one that does, dials as many lanes as
    /// carry data.
    pub(super) fn on_probe_up(&mut self, peer: PeerId, lane: LaneId, now: Micros) -> bool {
        let connection = self.connection(peer);
        let Some(stragglers) = &mut connection.stragglers else { return false };
        if !stragglers.probes.lanes.contains(&lane) {
            return false;
        }
        // The peer was heard: this ends the silence.
        (stragglers.heard_at, stragglers.scan_at) = (now, 0);
        if std::mem::replace(&mut stragglers.probes.trying, false) {
            stragglers.probes.up_at = now;
            let under_way = stragglers.probes.lanes.len();
            let carry = connection.streams.as_ref().map_or(0, |streams| streams.count() as usize);
            (under_way..carry).for_each(|_| self.dial_probe(peer));
        }
        if let Some(streams) = &mut self.connection(peer).streams {
            streams.reinforce(now);
        }
        true
    }
}

impl Lane {
    /// Whether it leads to this peer and is not open yet.
    fn comes_up_to(&self, peer: PeerId) -> bool {
        self.peer == Some(peer) && matches!(self.state, LaneState::Dialing | LaneState::Greeting)
    }
}
