//! Rails: several networks to one peer, used at once.
//!
//! An endpoint may listen at more addresses than the one that names it, each on a network of its own (the setting
//! `rails`). Both ends tell each other of them on their lanes ([`frame::Also`]). A far peer with bulk data then gets
//! lanes on each rail. Every lane takes the next fragment when it has room, so each rail carries what it can. A rail
//! that
//! dies shows by silence, as routed lanes do (`routed.rs`). What it held goes out again on the others, and it is
//! avoided
//! for a while. Rail 0 is where the peer answered first, or else the locator of its address. The others are those that
//! it told of, in its order.

use std::net::SocketAddr;

use isthmus_wire::{Address, Frame, frame};

use super::state::{LaneState, Micros};
use super::streams::SEVERAL;
use super::{Engine, LaneId, PeerFault};
use crate::PeerId;

/// Most rails to a peer. Count.
pub(super) const WAYS_MAX: usize = 4;
/// How long a rail on which a lane failed is avoided while there are others. Microseconds.
const AVOID_US: Micros = 2_000_000;

/// The rails to a peer that told of more than one.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Locators of all rails but rail 0.
    further: Vec<SocketAddr>,
    /// Until when each rail is avoided.
    avoided: [Micros; WAYS_MAX],
    /// Rails on which another endpoint answered: two private networks may have the same numbers.
    strange: [bool; WAYS_MAX],
}

impl Ways {
    fn count(&self) -> usize {
        1 + self.further.len()
    }

    fn is_fit(&self, way: usize, now: Micros) -> bool {
        !self.strange[way] && self.avoided[way] <= now
    }
}

impl Engine {
    /// Tells the other end of a direct lane where else we listen.
    pub(super) fn tell_ways(&mut self, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        if record.router.is_none() && !record.through_routers {
            let own = self.config.address;
            let also = self.config.also.iter().take(WAYS_MAX - 1).map(|at| Address { locator: *at, ..own });
            record.control.extend(also.map(|address| Frame::from(frame::Also { address })));
        }
    }

    /// The peer tells of a further address.
    pub(super) fn on_also(
        &mut self,
        lane: LaneId,
        peer: PeerId,
        also: &frame::Also,
    ) -> Result<(), PeerFault> {
        let known = self.peers[peer.0 as usize].address;
        if (Address { locator: known.locator, ..also.address }) != known.place() {
            return Err(PeerFault::Frame("a way to somebody else"));
        }
        if self.lanes[lane.0 as usize].through_routers || also.address.locator == known.locator {
            return Ok(());
        }
        let ways = self.connection(peer).ways.get_or_insert_default();
        if ways.count() < WAYS_MAX && !ways.further.contains(&also.address.locator) {
            ways.further.push(also.address.locator);
        }
        Ok(())
    }

    /// The address of a peer, with the locator of one of its rails.
    pub(super) fn by_way(&self, peer: PeerId, way: usize) -> Address {
        let record = &self.peers[peer.0 as usize];
        let ways = record.connection.as_ref().and_then(|connection| connection.ways.as_ref());
        let further = ways.and_then(|ways| ways.further.get(way.checked_sub(1)?));
        let first = record.answers_at.as_deref().copied().unwrap_or(record.address.locator);
        Address { locator: further.copied().unwrap_or(first), ..record.address }
    }

    /// The rail of an incoming lane: the index of the own locator at which it was dialled.
    pub(super) fn way_of(&self, target: &Address) -> usize {
        self.config.also.iter().position(|at| *at == target.locator).map_or(0, |index| index + 1)
    }

    /// Whether there is more than one rail to this peer.
    pub(super) fn has_ways(&self, peer: PeerId) -> bool {
        self.peers[peer.0 as usize].connection.as_ref().is_some_and(|connection| connection.ways.is_some())
    }

    /// The locator and rail for the next direct lane: the rail with the fewest lanes that is not avoided, else the
    /// one whose
    /// time ends first.
    pub(super) fn next_way(&self, peer: PeerId) -> (SocketAddr, usize) {
        let connection = self.peers[peer.0 as usize].connection.as_ref();
        let Some(ways) = connection.and_then(|connection| connection.ways.as_ref()) else {
            return (self.by_way(peer, 0).locator, 0);
        };
        let lanes = self.lanes_by_way(peer);
        let rank = |way: &usize| {
            let late = if ways.is_fit(*way, self.clock) { 0 } else { ways.avoided[*way].max(1) };
            (ways.strange[*way], late, lanes[*way].0)
        };
        let way = (0..ways.count()).min_by_key(rank).unwrap_or(0);
        (self.by_way(peer, way).locator, way)
    }

    /// For each rail, the number of lanes without those that rest, and whether one of them fills its path.
    fn lanes_by_way(&self, peer: PeerId) -> [(u32, bool); WAYS_MAX] {
        let mut count = [(0, false); WAYS_MAX];
        let Some(connection) = self.peers[peer.0 as usize].connection.as_ref() else { return count };
        let mut note = |lane: &super::Lane| {
            if let Some((lanes, filled)) = count.get_mut(lane.way).filter(|_| !lane.rests) {
                *lanes += 1;
                *filled |= lane.fills_path;
            }
        };
        connection.lanes.iter().filter_map(|lane| self.lanes.get(lane.0 as usize)).for_each(&mut note);
        if connection.dialing > 0 {
            let dialled = |lane: &&super::Lane| lane.peer == Some(peer) && lane.state == LaneState::Dialing;
            self.lanes.iter().map(|(_, lane)| lane).filter(dialled).for_each(note);
        }
        count
    }

    /// Whether a peer with several rails should get a further lane. Each usable rail gets one. A rail that no lane
    /// fills
    /// gets more, up to the setting `streams` plus one for each further rail.
    pub(super) fn wants_lane(&self, peer: PeerId) -> bool {
        let connection = self.peers[peer.0 as usize].connection.as_ref();
        let Some(ways) = connection.and_then(|connection| connection.ways.as_ref()) else { return false };
        let lanes = self.lanes_by_way(peer);
        let all: u32 = lanes.iter().map(|(lanes, _)| lanes).sum();
        let mut fit = (0..ways.count()).filter(|way| ways.is_fit(*way, self.clock));
        // One lane is kept free for small messages (`transmit.rs`).
        let most = self.config.streams.clamp(2, SEVERAL) + ways.count() as u32 - 1;
        fit.any(|way| match lanes[way] {
            (0, _) => true,
            (_, filled) => !filled && all < most,
        })
    }

    /// Prefers other rails for a while, since a lane on this one failed.
    pub(super) fn avoid_way(&mut self, now: Micros, peer: PeerId, way: usize) {
        if let Some(ways) = &mut self.connection(peer).ways {
            ways.avoided[way] = now + AVOID_US;
        }
    }

    /// Never uses this rail again, since somebody else answers there.
    pub(super) fn forget_way(&mut self, peer: PeerId, way: usize) {
        if let Some(ways) = &mut self.connection(peer).ways {
            ways.strange[way] = true;
        }
    }
}
