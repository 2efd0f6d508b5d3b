//! Messages to far peers that complete from a copy.
//!
//! A program that sends one message after the other (`MPI_Send`) would otherwise wait a round trip for each. Copying
//! costs little beside that. Near peers answer soon, so their messages stay in the program's buffer. The copies of an
//! endpoint are bounded in total; beyond that, messages complete when the peer has them.

use super::state::{Kind, Operation};
use super::transmit::COPY_MAX;
use super::{Config, Engine};
use crate::{Completion, Fence, Level, Options, PeerId};

/// Memory of a message's records, counted beside its bytes. Without it, empty messages would have no bound. Bytes.
const RECORDS: u64 = 512;

/// Room that a message of this length takes. Bytes.
fn room_of(total: u64) -> u64 {
    total + RECORDS
}

impl Engine {
    /// Completes a message to a far peer now, if its options and the room for copies allow that. Returns whether
    /// it has. The caller then keeps a copy of the message, and only its loss is still reported.
    pub(super) fn complete_early(
        &mut self,
        peer: PeerId,
        kind: &Kind,
        options: &mut Options,
        total: u64,
    ) -> bool {
        let Some(context) = options.buffered.take() else { return false };
        let Kind::Message { channel, .. } = *kind else { return false };
        let has_room = total <= self.config.buffered_max
            && self.buffered_bytes + room_of(total) <= Config::BUFFERED_TOTAL;
        let waits = options.level == Level::Match || options.fence != Fence::None;
        // Such a message completes when it is sent, from a copy that its frame keeps.
        let is_kept = options.level == Level::Transmit && total <= COPY_MAX;
        if !has_room || waits || is_kept || options.silent || options.inject {
            return false;
        }
        let Some(connection) = self.peers[peer.0 as usize].connection.as_deref() else { return false };
        // The round trip to a peer behind routers is not measured.
        let is_far = connection.is_far() || self.is_routed(&self.peers[peer.0 as usize].address);
        if !is_far || connection.trouble.failed.is_some() {
            return false;
        }
        self.report(Completion::of_send(options, channel, total, peer));
        self.buffered_bytes += room_of(total);
        *options = Options {
            context,
            buffered: Some(context),
            notify: false,
            silent: true,
            level: Level::Delivery,
            ..*options
        };
        true
    }

    /// Takes in the end of an operation: a copied message returns its room. Returns whether the end is to be reported,
    /// which holds for the first of the copied messages that are lost with a peer.
    pub(super) fn end_buffered(&mut self, operation: &Operation) -> bool {
        if operation.options.buffered.is_none() {
            return true;
        }
        self.buffered_bytes -= room_of(operation.total);
        operation.error.is_some()
            && !std::mem::replace(&mut self.connection(operation.peer).trouble.told_lost, true)
    }

    /// Memory of the messages that were reported and are not acknowledged. Bytes.
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }
}
