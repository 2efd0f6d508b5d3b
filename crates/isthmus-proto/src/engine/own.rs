//! What an endpoint says to itself.
//!
//! Programs count on it that this is done before anything that follows from what they do next: mpi4py's locks reset
//! a word of the rank's own by `MPI_Accumulate`, then put themselves in another rank's line, and flush that rank only.
//! By a lane to itself the former could be the later. So what is short, and behind nothing, takes none.

use isthmus_wire::frame;

use super::Engine;
use super::remote::{access_of, apply_atomic};
use super::short::SHORT_MAX;
use super::state::{Early, Kind, Target};
use crate::memory::{Memory, Place};
use crate::{AtomicKind, AtomicRequest, Fence, Level, OpError, PeerId, RemoteRange, SendRequest};

/// The number of messages that no frame carried.
const UNNUMBERED: u64 = u64::MAX;

impl Engine {
    /// This endpoint's own record if `peer` is itself, and nothing that was posted to itself before is still under way.
    fn settled_self(&mut self, peer: PeerId, fence: Fence) -> Option<PeerId> {
        let peer = self.resolve(peer);
        let own = self.config.address;
        if self.peers.get(peer.0 as usize).is_none_or(|record| record.address != own) {
            return None;
        }
        let connection = self.connection(peer);
        let settled = connection.trouble.failed.is_none()
            && !connection.has_output()
            && connection.expected_order == connection.next_order
            && connection.requests == 0
            && (connection.active == 0 || fence != Fence::All);
        settled.then_some(peer)
    }

    /// Receives a short message to this endpoint itself at once; false where it has to take a lane like others.
    pub(super) fn message_here(
        &mut self,
        request: &SendRequest,
        place: Place,
        total: u64,
        mem: &mut dyn Memory,
    ) -> bool {
        let options = request.options;
        if total > SHORT_MAX || options.level == Level::Match {
            return false;
        }
        let Some(peer) = self.settled_self(request.peer, options.fence) else { return false };
        let connection = self.connection(peer);
        // What one side of it grants the other knows.
        connection.advertised = connection.credit_to_advertise();
        connection.credit_limit = connection.credit_limit.max(connection.advertised);
        if connection.credit_left() < total || !connection.may_wait() {
            return false;
        }
        let order = connection.next_order;
        connection.next_order += 1;
        connection.credit_used += total;
        connection.taken += total;
        self.count_message(peer, total, total);

        let kind = Kind::Message { channel: request.channel, tag: request.tag, data: request.data };
        let operation = self.enter_operation(peer, kind, options, total);
        let mut bytes = self.pool.take(total as usize);
        mem.load(place, 0, total as usize, &mut bytes);
        match options.inject {
            true => mem.release(place),
            false => self.operations[operation].place = place,
        }

        let index = self.new_inbound(peer, UNNUMBERED);
        let inbound = &mut self.inbounds[index];
        (inbound.channel, inbound.tag, inbound.data) = (request.channel, request.tag, request.data);
        (inbound.total, inbound.eager, inbound.needed) = (total, total, total);
        self.in_order(peer, order, Early::Message(index), mem);
        if total > 0 {
            self.take_here(peer, index, &bytes, mem);
        }
        self.pool.give(bytes);
        self.finish(operation, mem);
        true
    }

    /// Brings the data of a message to where it belongs.
    fn take_here(&mut self, peer: PeerId, index: usize, bytes: &[u8], mem: &mut dyn Memory) {
        let mut target = self.target_in(index, 0, bytes.len() as u32);
        match &mut target {
            Target::Direct { place, offset, keep, .. } => {
                let kept = (*keep).min(bytes.len() as u64) as usize;
                if kept > 0 {
                    mem.store(*place, *offset, &bytes[..kept]);
                }
            }
            Target::Bounce { bytes: kept, .. } => kept.extend_from_slice(bytes),
            _ => {}
        }
        let done = self.on_part(peer, UNNUMBERED, 0, bytes.len() as u64, target, mem);
        debug_assert!(done.is_ok(), "there was credit for it");
    }

    /// Carries out an atomic operation on this endpoint's own memory at once, if nothing that was posted to
    /// itself before is still under way; false where it has to take a lane like others.
    pub(super) fn atomic_here(
        &mut self,
        request: &AtomicRequest,
        operands: &[u8],
        result: Place,
        mem: &mut dyn Memory,
    ) -> bool {
        let Some(peer) = self.settled_self(request.peer, request.options.fence) else { return false };
        let atomic = frame::Atomic {
            connection: 0,
            seq: 0,
            order: 0,
            token: 0,
            key: request.remote.key,
            addr: request.remote.addr,
            len: request.remote.len,
            kind: request.kind.code(),
            op: request.op as u8,
            datatype: request.datatype as u8,
            payload: operands.len() as u32,
        };
        let kind = Kind::Atomic {
            key: atomic.key,
            addr: atomic.addr,
            kind: request.kind,
            op: request.op,
            datatype: request.datatype,
        };
        let index = self.enter_operation(peer, kind, request.options, atomic.len);
        self.operations[index].place = result;
        match apply_atomic(&atomic, operands, mem) {
            Err(status) => self.operations[index].error = Some(OpError::RemoteAccess(status.text())),
            Ok(earlier) => {
                if request.kind != AtomicKind::Update {
                    mem.store(result, 0, &earlier);
                }
                let range = RemoteRange { key: atomic.key, addr: atomic.addr, len: atomic.len };
                self.report_access(peer, range, access_of(&atomic), None);
            }
        }
        self.finish(index, mem);
        true
    }
}
