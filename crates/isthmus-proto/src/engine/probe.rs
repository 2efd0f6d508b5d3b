//! Whether a peer that went silent can be reached again.
//!
//! On a path that was cut for a while, the kernel sends again after pauses that double. So while nothing at all is
//! acknowledged, new lanes are tried, several in a round trip and each with a packet of its own: the first
//! that gets through shows that the path is there again. It and those that follow it carry what was on its way,
//! beside the old ones, which recover more slowly but know how much the path holds; a while later as many carry as
//! before.

use std::collections::VecDeque;

use super::state::{LaneState, Micros};
use super::{Action, Decision, Engine, Lane, LaneId};
use crate::PeerId;

/// Silence after which new lanes are tried, beyond the time that a fragment may take. Microseconds.
const SILENCE_US: Micros = 200_000;
/// The pause between two of them: such a part of the round trip, but no less than so much and than
/// such a part of the silence. Microseconds.
const PAUSE_PART: Micros = 4;
const PAUSE_LEAST_US: Micros = 4_000;
const SILENCE_PART: Micros = 512;
/// The pause between any two of an endpoint. Microseconds.
const PAUSE_ANY_US: Micros = 1_000;
/// Those of one peer that are under way at once; before a further one, the oldest is given up.
const UNDER_WAY: usize = 12;

/// Lanes by which it is tried whether a peer can be reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    /// Those made in this silence or, while there is none, in the last, oldest first.
    lanes: VecDeque<LaneId>,
    /// None of them has come up.
    trying: bool,
    /// When the first of them came up.
    up_at: Micros,
}

impl Probes {
    /// What was sent before is to go again by this lane, which was made to see whether the peer can
    /// be reached; 0 for others.
    pub(super) fn sends_before(&self, lane: LaneId) -> Micros {
        if self.lanes.contains(&lane) { self.up_at } else { 0 }
    }
}

impl Engine {
    /// Nothing was acknowledged for so long, which is `patience` for a fragment: tries new lanes if that is long
    /// enough. Until when to wait then.
    pub(super) fn look_for(
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
        Some(now + (rtt_us / PAUSE_PART).max(PAUSE_LEAST_US).max(silent / SILENCE_PART))
    }

    /// Tries whether the peer can be reached by one more lane.
    fn probe(&mut self, peer: PeerId, silent: Micros) {
        let Some(late) = &mut self.connection(peer).late else { return };
        if !late.probes.trying {
            late.probes = Probes { trying: true, ..Probes::default() };
            self.decide(peer, Decision::Probe { silent_ms: silent / 1_000 });
        } else if late.probes.lanes.len() >= UNDER_WAY
            && let Some(lane) = late.probes.lanes.pop_front()
            && self.lanes.get(lane.0 as usize).is_some_and(|lane| lane.comes_up_to(peer))
        {
            self.actions.push_back(Action::Abandon { lane });
        }
        self.dial_probe(peer);
        self.counters.probes += 1;
    }

    fn dial_probe(&mut self, peer: PeerId) {
        let locator = self.by_way(peer, 0).locator;
        let lane = self.dial_to(peer, locator, None, 0);
        if let Some(late) = &mut self.connection(peer).late {
            late.probes.lanes.push_back(lane);
        }
    }

    /// Whether this lane, which comes up, was made to see whether the peer can be reached. If it is the first,
    /// as many more follow as carry.
    pub(super) fn greets(&mut self, peer: PeerId, lane: LaneId, now: Micros) -> bool {
        let connection = self.connection(peer);
        let Some(late) = &mut connection.late else { return false };
        if !late.probes.lanes.contains(&lane) {
            return false;
        }
        // It was heard: no further one is tried for as long as that holds.
        (late.heard_at, late.scan_at) = (now, 0);
        if std::mem::replace(&mut late.probes.trying, false) {
            late.probes.up_at = now;
            let under_way = late.probes.lanes.len();
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
    /// Whether it leads to this peer, and is not up yet.
    fn comes_up_to(&self, peer: PeerId) -> bool {
        self.peer == Some(peer) && matches!(self.state, LaneState::Dialing | LaneState::Greeting)
    }
}
