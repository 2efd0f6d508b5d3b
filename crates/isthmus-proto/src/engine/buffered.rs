//! Messages to far peers that complete from a copy.
//!
//! A program that sends one message after the other (`MPI_Send`) would otherwise wait a round trip for each. Copying costs
//! little beside that. Near peers answer soon, so their messages stay in the program's buffer. The copies of an endpoint
//! are bounded in total; beyond that, messages complete when the peer has them.

use super::state::Kind;
use super::{Config, Engine};
use crate::{Completion, CompletionKind, Fence, Level, Options, PeerId};

impl Engine {
    /// Completes a message to a far peer now, if its options and the room for copies allow that. The caller then keeps
    /// a copy of the message. True if it is complete.
    pub(super) fn complete_early(
        &mut self,
        peer: PeerId,
        kind: &Kind,
        options: &mut Options,
        total: u64,
    ) -> bool {
        let Kind::Message { channel, .. } = *kind else { return false };
        let Some(context) = options.buffered.take() else { return false };
        let has_room =
            total <= self.config.buffered_max && self.buffered_bytes + total <= Config::BUFFERED_TOTAL;
        let waits = options.level == Level::Match || options.fence != Fence::None;
        if !has_room || waits || options.silent || options.inject {
            return false;
        }
        let connection = self.peers[peer.0 as usize].connection.as_deref();
        if !connection.is_some_and(|connection| connection.is_far() && connection.trouble.failed.is_none()) {
            return false;
        }
        self.report(Completion {
            context: options.context,
            notify: options.notify,
            kind: CompletionKind::Send(channel),
            len: total,
            buffer: 0,
            data: None,
            tag: 0,
            peer: Some(peer),
            released: false,
            error: None,
        });
        self.buffered_bytes += total;
        *options = Options {
            context,
            buffered: Some(context),
            notify: false,
            silent: true,
            level: Level::Transmit,
            ..*options
        };
        true
    }

    /// Returns the room of a copied message that has ended.
    pub(super) fn end_buffered(&mut self, options: &Options, total: u64) {
        if options.buffered.is_some() {
            self.buffered_bytes -= total;
        }
    }
}
