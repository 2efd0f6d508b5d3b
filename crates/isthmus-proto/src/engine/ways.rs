//! Several ways to one peer, used at once.
//!
//! An endpoint may listen at more addresses than the one that names it, each on a network of its
//! own. Both ends tell each other of them on their lanes ([`frame::Also`]). A peer that is far and
//! has bulk to take then gets lanes on each way: every lane takes the next fragment when it has
//! room for it, so that each way carries what it can. What a way that dies held goes out again by
//! the others: it shows by silence, as routed lanes do (`routed.rs`), and is avoided for a while.
//! Way 0 is where the peer answered first, or else the locator of its address; the others are what it told, in its order.

use std::net::SocketAddr;

use isthmus_wire::{Address, Frame, frame};

use super::state::{LaneState, Micros};
use super::streams::SEVERAL;
use super::{Engine, LaneId, PeerFault};
use crate::PeerId;

/// Most ways to a peer.
pub(super) const WAYS_MAX: usize = 4;
/// How long a way on which a lane failed is avoided while there are others.
const AVOID_US: Micros = 2_000_000;

/// What is known of the ways to a peer that told of more than one.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// All but the locator of its address.
    further: Vec<SocketAddr>,
    /// Until when each way is avoided.
    avoided: [Micros; WAYS_MAX],
    /// Ways at which another endpoint answered: private networks of the same numbers.
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
    /// Tells the other end of a lane between two endpoints where else we are.
    pub(super) fn tell_ways(&mut self, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        if record.router.is_none() && !record.through_routers {
            let own = self.config.address;
            let also = self.config.also.iter().take(WAYS_MAX - 1).map(|at| Address { locator: *at, ..own });
            record.control.extend(also.map(|address| Frame::from(frame::Also { address })));
        }
    }

    /// The peer is at another address, too.
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

    /// The address of a peer with the locator of one of the ways to it.
    pub(super) fn by_way(&self, peer: PeerId, way: usize) -> Address {
        let record = &self.peers[peer.0 as usize];
        let ways = record.connection.as_ref().and_then(|connection| connection.ways.as_ref());
        let further = ways.and_then(|ways| ways.further.get(way.checked_sub(1)?));
        let first = record.answers_at.as_deref().copied().unwrap_or(record.address.locator);
        Address { locator: further.copied().unwrap_or(first), ..record.address }
    }

    /// Which of our own locators a lane that came in was dialled at: the way that it takes.
    pub(super) fn way_of(&self, target: &Address) -> usize {
        self.config.also.iter().position(|at| *at == target.locator).map_or(0, |index| index + 1)
    }

    /// Whether there is more than one way to this peer.
    pub(super) fn has_ways(&self, peer: PeerId) -> bool {
        self.peers[peer.0 as usize].connection.as_ref().is_some_and(|connection| connection.ways.is_some())
    }

    /// Where the next lane to a near endpoint is to be connected, and by which way: that with
    /// fewest lanes of those that are not avoided, else the one that has been for longest.
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

    /// Lanes to a peer by way, without those that rest, and whether one of them uses all that its path has.
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

    /// Whether a further lane to this peer, which has several ways, is worth it: each way that is
    /// fit gets one, and more, up to as many as the settings say and one for each further way, where
    /// one does not use all of it.
    pub(super) fn wants_lane(&self, peer: PeerId) -> bool {
        let connection = self.peers[peer.0 as usize].connection.as_ref();
        let Some(ways) = connection.and_then(|connection| connection.ways.as_ref()) else { return false };
        let lanes = self.lanes_by_way(peer);
        let all: u32 = lanes.iter().map(|(lanes, _)| lanes).sum();
        let mut fit = (0..ways.count()).filter(|way| ways.is_fit(*way, self.clock));
        // One of them is kept free for small messages (`transmit.rs`).
        let most = self.config.streams.clamp(2, SEVERAL) + ways.count() as u32 - 1;
        fit.any(|way| match lanes[way] {
            (0, _) => true,
            (_, filled) => !filled && all < most,
        })
    }

    /// A lane on this way failed: others are preferred for a while.
    pub(super) fn avoid_way(&mut self, now: Micros, peer: PeerId, way: usize) {
        if let Some(ways) = &mut self.connection(peer).ways {
            ways.avoided[way] = now + AVOID_US;
        }
    }

    /// Somebody else answers there.
    pub(super) fn forget_way(&mut self, peer: PeerId, way: usize) {
        if let Some(ways) = &mut self.connection(peer).ways {
            ways.strange[way] = true;
        }
    }
}
