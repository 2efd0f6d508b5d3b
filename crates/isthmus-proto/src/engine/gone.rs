//! Messages that peers left behind and that no receive has taken yet.
//!
//! A program may receive what a peer sent before it left, so the messages stay. But the peer's credit is free again, so
//! a peer that comes, sends, leaves and comes again could fill the memory. Therefore all gone peers together hold at
//! most a quarter of [`credit_total`](super::Config::credit_total). Beyond that, the messages of those that left first
//! are dropped.

use super::Engine;
use super::state::Stage;
use crate::PeerId;
use crate::memory::Memory;

/// What a message costs beside its data. Bytes: about the size of its records.
pub(super) const MESSAGE_COST: u64 = 512;

impl Engine {
    /// Counts what this peer left behind, and drops the oldest of it beyond the bound.
    pub(super) fn count_gone(&mut self, peer: PeerId, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        let holds = connection.held + u64::from(connection.unmatched) * MESSAGE_COST;
        if holds == 0 {
            return;
        }
        connection.trouble.holds = holds;
        self.gone_hold += holds;
        self.gone.push_back(peer);
        while self.gone_hold > self.config.credit_total / 4 {
            let Some(first) = self.gone.pop_front() else { return };
            self.drop_unexpected(first, mem);
        }
        // Forget peers whose messages were all received meanwhile.
        while let Some(&first) = self.gone.front()
            && self.connection(first).trouble.holds == 0
        {
            self.gone.pop_front();
        }
    }

    fn drop_unexpected(&mut self, peer: PeerId, mem: &mut dyn Memory) {
        for index in self.matcher.take_unexpected(peer) {
            self.leave_unexpected(index);
            self.inbounds[index].stage = Stage::Dropped;
            self.complete_inbound(index, mem);
            self.gone_dropped += 1;
        }
    }

    /// Notes that `bytes` of this peer are free. Does nothing unless the peer has left.
    pub(super) fn free_of_gone(&mut self, peer: PeerId, bytes: u64) {
        let connection = self.peers[peer.0 as usize].connection.as_mut();
        let Some(trouble) = connection.and_then(|connection| connection.trouble.get_mut()) else { return };
        let less = bytes.min(trouble.holds);
        trouble.holds -= less;
        self.gone_hold -= less;
    }

    /// Memory that the messages of all gone peers hold. Bytes.
    pub fn gone_hold(&self) -> u64 {
        self.gone_hold
    }

    /// How many messages of gone peers were dropped since the last call.
    pub fn take_gone_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.gone_dropped)
    }
}
