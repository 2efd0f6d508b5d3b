//! Rails: several networks to one peer, used at once.
//!
//! An endpoint may listen at more addresses than the one that names it, each on a network of its own (the setting
//! `rails`). Both ends announce these addresses on their lanes ([`frame::Also`]). A far peer with bulk data then gets
//! lanes on each rail. Every lane takes the next fragment when it has room, so each rail carries what it can. The
//! engine detects a dead rail by its silence, as it does routed lanes (`routed.rs`). It sends the rail's fragments
//! again on the others, and avoids the rail for a while. Rail 0 is the locator where the peer answered first, or else
//! that of its address. The others are those that the peer announced, in its order.

use std::net::SocketAddr;

use isthmus_path::Bulk;
use isthmus_path::thresholds::streams::SEVERAL;
use isthmus_wire::{Address, Frame, frame};

use super::state::{LaneState, Micros};
use super::{Engine, LaneId, PeerFault};
use crate::PeerId;

/// Most rails to a peer. Count.
pub(super) const RAILS_MAX: usize = 4;
/// Time for which a rail on which a lane failed is avoided while there are others. Microseconds.
const AVOID_US: Micros = 2_000_000;

/// The rails to a peer that announced more than one.
#[derive(Debug, Default)]
pub(crate) struct Rails {
    /// Locators of all rails but rail 0.
    further: Vec<SocketAddr>,
    /// The time until which each rail is avoided.
    avoided: [Micros; RAILS_MAX],
    /// Rails on which another endpoint answered: two private networks may have the same numbers.
    strange: [bool; RAILS_MAX],
}

impl Rails {
    fn count(&self) -> usize {
        1 + self.further.len()
    }

    fn is_fit(&self, rail: usize, now: Micros) -> bool {
        !self.strange[rail] && self.avoided[rail] <= now
    }
}

impl Engine {
    /// Announces our further addresses to the other end of a direct lane.
    pub(super) fn announce_rails(&mut self, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        if record.router.is_none() && !record.through_routers {
            let own = self.config.address;
            let also = self.config.also.iter().take(RAILS_MAX - 1).map(|at| Address { locator: *at, ..own });
            record.control.extend(also.map(|address| Frame::from(frame::Also { address })));
        }
    }

    /// The peer announces a further address.
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
        let rails = self.connection(peer).rails.get_or_insert_default();
        if rails.count() < RAILS_MAX && !rails.further.contains(&also.address.locator) {
            rails.further.push(also.address.locator);
        }
        Ok(())
    }

    /// The address of a peer, with the locator of one of its rails.
    pub(super) fn rail_address(&self, peer: PeerId, rail: usize) -> Address {
        let record = &self.peers[peer.0 as usize];
        let rails = record.connection.as_ref().and_then(|connection| connection.rails.as_ref());
        let further = rails.and_then(|rails| rails.further.get(rail.checked_sub(1)?));
        let first = record.answers_at.as_deref().copied().unwrap_or(record.address.locator);
        Address { locator: further.copied().unwrap_or(first), ..record.address }
    }

    /// The rail of an incoming lane: the index of the own locator at which it was dialled.
    pub(super) fn rail_of(&self, target: &Address) -> usize {
        self.config.also.iter().position(|at| *at == target.locator).map_or(0, |index| index + 1)
    }

    /// Whether there is more than one rail to this peer.
    pub(super) fn has_rails(&self, peer: PeerId) -> bool {
        self.peers[peer.0 as usize].connection.as_ref().is_some_and(|connection| connection.rails.is_some())
    }

    /// The locator and rail for the next direct lane: the rail with the fewest lanes that is not avoided, else the one
    /// whose time ends first.
    pub(super) fn next_rail(&self, peer: PeerId) -> (SocketAddr, usize) {
        let connection = self.peers[peer.0 as usize].connection.as_ref();
        let Some(rails) = connection.and_then(|connection| connection.rails.as_ref()) else {
            return (self.rail_address(peer, 0).locator, 0);
        };
        let lanes = self.lanes_by_rail(peer);
        let rank = |rail: &usize| {
            let late = if rails.is_fit(*rail, self.clock) { 0 } else { rails.avoided[*rail].max(1) };
            (rails.strange[*rail], late, lanes[*rail].0)
        };
        let rail = (0..rails.count()).min_by_key(rank).unwrap_or(0);
        (self.rail_address(peer, rail).locator, rail)
    }

    /// For each rail, the number of lanes without those that rest, and whether one of them fills its path.
    fn lanes_by_rail(&self, peer: PeerId) -> [(u32, bool); RAILS_MAX] {
        let mut count = [(0, false); RAILS_MAX];
        let Some(connection) = self.peers[peer.0 as usize].connection.as_ref() else { return count };
        let mut note = |lane: &super::Lane| {
            if let Some((lanes, filled)) = count.get_mut(lane.rail).filter(|_| lane.bulk != Bulk::None) {
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
    /// fills gets more, up to the setting `streams` plus one for each further rail.
    pub(super) fn wants_lane(&self, peer: PeerId) -> bool {
        let connection = self.peers[peer.0 as usize].connection.as_ref();
        let Some(rails) = connection.and_then(|connection| connection.rails.as_ref()) else { return false };
        let lanes = self.lanes_by_rail(peer);
        let all: u32 = lanes.iter().map(|(lanes, _)| lanes).sum();
        let mut fit = (0..rails.count()).filter(|rail| rails.is_fit(*rail, self.clock));
        // One lane is kept free for small messages (`transmit.rs`).
        let most = self.config.streams.clamp(2, SEVERAL) + rails.count() as u32 - 1;
        fit.any(|rail| match lanes[rail] {
            (0, _) => true,
            (_, filled) => !filled && all < most,
        })
    }

    /// Prefers other rails for a while, since a lane on this one failed.
    pub(super) fn avoid_rail(&mut self, now: Micros, peer: PeerId, rail: usize) {
        if let Some(rails) = &mut self.connection(peer).rails {
            rails.avoided[rail] = now + AVOID_US;
        }
    }

    /// Never uses this rail again, since somebody else answers there.
    pub(super) fn forget_rail(&mut self, peer: PeerId, rail: usize) {
        if let Some(rails) = &mut self.connection(peer).rails {
            rails.strange[rail] = true;
        }
    }
}
