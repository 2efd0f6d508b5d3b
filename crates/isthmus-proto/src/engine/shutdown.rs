//! Shutdown: peers that close or are given up, and how this endpoint closes.

use isthmus_wire::frame;

use super::state::{Early, LaneState, Stage};
use super::{Engine, LaneId};
use crate::memory::Memory;
use crate::{OpError, PeerId};

impl Engine {
    /// The peer closes. Everything that it sent us has arrived.
    pub(super) fn on_bye(&mut self, peer: PeerId, lane: LaneId, mem: &mut dyn Memory) {
        let address = self.peers[peer.0 as usize].address;
        self.close_lane(lane);
        self.part(
            peer,
            OpError::PeerGone(format!("the endpoint at {address} was closed by its program")),
            false,
            mem,
        );
    }

    /// Ends a connection for good: its operations and directed receives fail.
    pub(super) fn fail_peer(&mut self, peer: PeerId, error: OpError, mem: &mut dyn Memory) {
        self.part(peer, error, true, mem);
    }

    fn part(&mut self, peer: PeerId, error: OpError, receives_too: bool, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        if connection.trouble.failed.is_some() {
            return;
        }
        connection.trouble.failed = Some(error.clone());
        connection.trouble.retry_at = None;
        connection.trouble.spread_at = None;
        let reserved = connection.credit_in.reserved();
        let lanes = connection.lanes.clone();
        let carried_out = self.carried_out(peer);
        self.forget_announcements(peer);
        let connection = self.connection(peer);
        connection.traffic.again.clear();
        connection.traffic.urgent.clear();
        connection.traffic.bulk.clear();
        connection.traffic.unaccepted.clear();
        connection.traffic.writes.clear();
        for flight in connection.window.drain().collect::<Vec<_>>() {
            if let Some(index) = flight.load.operation() {
                self.operations[index].pieces -= 1;
            }
        }
        self.release_credit(reserved);
        for lane in lanes {
            if self.lanes[lane.0 as usize].state != LaneState::Closing {
                self.close_lane(lane);
            }
        }
        if let Some(lost) = &mut self.lost {
            lost.push_back(peer);
        }
        self.fail_operations(peer, &carried_out, &error, mem);
        self.break_inbounds(peer, &error, mem);
        self.count_gone(peer, mem);
        if receives_too {
            self.fail_receives(peer, &error, mem);
        }
        self.forget_guests(peer);
    }

    /// Fails the posted receives that only this peer could satisfy.
    pub(super) fn fail_receives(&mut self, peer: PeerId, error: &OpError, mem: &mut dyn Memory) {
        for (channel, posted) in self.matcher.take_directed(peer) {
            self.fail_posted(channel, posted, Some(error.clone()), mem);
        }
    }

    /// Operations that the peer has carried out, and that wait only for lanes that still write copies from their
    /// buffers.
    fn carried_out(&self, peer: PeerId) -> Vec<usize> {
        let mine = self.operations.iter().filter(|(_, operation)| operation.peer == peer);
        mine.filter(|(_, operation)| operation.is_carried_out()).map(|(index, _)| index).collect()
    }

    pub(super) fn fail_operations(
        &mut self,
        peer: PeerId,
        carried_out: &[usize],
        error: &OpError,
        mem: &mut dyn Memory,
    ) {
        let connection = self.connection(peer);
        connection.answers -= connection.traffic.replies.len() as u32;
        let traffic = &mut *connection.traffic;
        let waiting: Vec<usize> = traffic.fresh.drain(..).chain(traffic.replies.drain(..)).collect();
        for index in waiting {
            self.operations[index].error = Some(error.clone());
            self.finish(index, mem);
        }
        let started: Vec<usize> = self
            .operations
            .iter()
            .filter(|(index, operation)| operation.peer == peer && !carried_out.contains(index))
            .map(|(index, _)| index)
            .collect();
        for index in started {
            self.operations[index].error = Some(error.clone());
            self.try_finish(index, mem);
        }
    }

    /// Ends the incoming messages of this peer that can no longer become whole.
    fn break_inbounds(&mut self, peer: PeerId, error: &OpError, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        let early = connection.traffic.early.values().filter_map(|early| match early {
            Early::Message(index) => Some(*index),
            Early::Atomic(..) => None,
        });
        let mut broken: Vec<usize> = connection.traffic.incoming.values().copied().chain(early).collect();
        broken.sort_unstable_by_key(|index| (self.inbounds[*index].message, *index));
        broken.dedup();
        // First: a receive that waits again must not find a message of which only a part ever came.
        if self.config.receives_wait {
            for &index in &broken {
                let inbound = &self.inbounds[index];
                let is_partial = matches!(inbound.stage, Stage::Unexpected) && !inbound.is_whole();
                if is_partial && self.matcher.forget(index) {
                    self.drop_inbound(index, mem);
                }
            }
        }
        for index in broken {
            // It is gone if it was dropped above, or if a receive that waits again has taken it as a whole.
            let Some(inbound) = self.inbounds.get(index) else { continue };
            match inbound.stage {
                Stage::Orphan | Stage::Early => {
                    self.inbounds[index].stage = Stage::Dropped;
                    self.complete_inbound(index, mem);
                }
                Stage::Matched { .. } | Stage::Dropped if inbound.got < inbound.needed => {
                    self.break_inbound(index, error, mem);
                }
                Stage::Matched { .. } | Stage::Dropped | Stage::Unexpected => {}
            }
        }
        let connection = self.connection(peer);
        connection.traffic.early.clear();
        connection.traffic.early_operands = 0;
    }

    pub(super) fn break_inbound(&mut self, index: usize, error: &OpError, mem: &mut dyn Memory) {
        self.inbounds[index].error = Some(error.clone());
        self.complete_inbound(index, mem);
    }

    /// The program closes the endpoint. From now on, lanes are accepted only from peers that still get something
    /// from us.
    pub fn begin_close(&mut self) {
        self.closing = true;
    }

    /// Whether everything that the program posted has reached its peer.
    pub fn is_drained(&self) -> bool {
        self.peers
            .iter()
            .filter_map(|peer| peer.connection.as_deref())
            .all(|connection| connection.trouble.failed.is_some() || !connection.has_work())
    }

    /// Tells every peer that this endpoint ends, and closes all lanes.
    pub fn say_bye(&mut self) {
        self.closing = true;
        self.parted = true;
        for peer in (0..self.peers.len() as u32).map(PeerId) {
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            // Acknowledge on every lane: a Bye may overtake an acknowledgement on another lane.
            let ack = connection.acknowledgement();
            for lane in connection.lanes.clone() {
                let record = &mut self.lanes[lane.0 as usize];
                if record.state == LaneState::Closing {
                    continue;
                }
                record.control.push_back(ack);
                record.control.push_back(frame::Bye { connection: 0 }.into());
                self.close_lane(lane);
            }
        }
    }
}
