//! Posting: the operations that a program starts.

use isthmus_proto::{
    Access, AtomicRequest, FAST_PATH_FRAME_MAX, OpError, PeekRequest, PeerId, RecvRequest, RmaRequest,
    SendRequest,
};

use super::{Endpoint, total};
use crate::engine::Core;
use crate::error::PostError;
use crate::shell::REACHED;

impl Endpoint {
    /// Posts an operation that sends `len` bytes.
    #[inline]
    pub(super) fn post<T>(
        &self,
        len: u64,
        with: impl FnOnce(&mut Core) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        if self.is_closed() {
            return Err(PostError::Invalid(
                "the endpoint is closed, or belongs to the parent of this process",
            ));
        }
        let mut guard = self.core.lock();
        let posted = with(&mut guard);
        let busy = guard.engine.has_output();
        // A posted receive that waits for its message leaves no work.
        if guard.engine.has_leavings() {
            self.watch.stir();
        }
        drop(guard);
        if busy && !self.burst.try_hold(len) {
            self.pump();
        }
        self.wakeup.tell_sleepers(self);
        posted
    }

    /// Posts a message.
    ///
    /// # Errors
    /// [`PostError`]; a peer that cannot be reached is reported by the completion.
    ///
    /// # Safety
    /// Unless injected, the buffers stay valid and unchanged until the completion was polled.
    #[inline]
    pub unsafe fn send(&self, request: &SendRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let len = total(iov);
        // SAFETY: the caller's promise.
        if len <= FAST_PATH_FRAME_MAX as u64 && unsafe { self.send_short(request, iov, len) } {
            return Ok(());
        }
        self.post(len, |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.send(request, place, len, &mut core.memory)?)
        })
    }

    /// Sends a small message at once, if it may go now ([`Shell::send_short`]).
    ///
    /// # Safety
    /// The pieces are valid for reading.
    #[inline]
    unsafe fn send_short(&self, request: &SendRequest, iov: &[libc::iovec], len: u64) -> bool {
        if self.is_closed() {
            return false;
        }
        let sent = self.try_with_shell(|shell| {
            // SAFETY: the caller's promise.
            unsafe { shell.send_short(&self.core, &self.watch, request, iov, len) }
        });
        let Some(Some((lane, sleeper))) = sent else { return false };
        // Releasing the shell was a fence, so this read comes after the message was written.
        if sleeper.is_asleep() {
            self.with_shell(|shell| shell.wake(lane));
        }
        true
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// [`PostError::Invalid`] on a closed endpoint.
    ///
    /// # Safety
    /// The buffers stay valid and untouched until the completion was polled.
    #[inline]
    pub unsafe fn recv(&self, request: &RecvRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            core.engine.recv(request, place, total(iov), &mut core.memory);
            Ok(())
        })
    }

    /// Searches the unexpected tagged messages, as they were at the last poll. Programs also search queues of their
    /// own, and rely on this one not to change meanwhile.
    ///
    /// # Errors
    /// [`PostError::Invalid`] on a closed endpoint.
    pub fn peek(&self, request: &PeekRequest) -> Result<(), PostError> {
        self.post(0, |core| {
            core.engine.set_polls(self.polls());
            core.engine.peek(request, &mut core.memory);
            Ok(())
        })
    }

    /// Receives the message that a peek reserved under the same context; with
    /// `discard` drops it instead.
    ///
    /// # Errors
    /// [`PostError::Invalid`] if nothing is claimed under this context.
    ///
    /// # Safety
    /// See [`Endpoint::recv`].
    pub unsafe fn claim(
        &self,
        request: &RecvRequest,
        iov: &[libc::iovec],
        discard: bool,
    ) -> Result<(), PostError> {
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            if core.engine.claim(request, place, total(iov), discard, &mut core.memory) {
                Ok(())
            } else {
                Err(PostError::Invalid("no message was claimed under this context"))
            }
        })
    }

    /// Writes to a peer's memory.
    ///
    /// # Errors
    /// See [`Endpoint::send`].
    ///
    /// # Safety
    /// See [`Endpoint::send`].
    pub unsafe fn write(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        if unsafe { self.reach(request, Access::Write, iov) } {
            return Ok(());
        }
        self.post(total(iov), |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.write(request, place, &mut core.memory)?)
        })
    }

    /// Reads a peer's memory.
    ///
    /// # Errors
    /// See [`Endpoint::send`].
    ///
    /// # Safety
    /// See [`Endpoint::recv`].
    pub unsafe fn read(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        if unsafe { self.reach(request, Access::Read, iov) } {
            return Ok(());
        }
        self.post(0, |core| {
            let place = core.memory.lend(iov);
            Ok(core.engine.read(request, place, &mut core.memory)?)
        })
    }

    /// Accesses a peer's memory directly, if that is possible now ([`Shell::reach`]).
    ///
    /// # Safety
    /// The pieces are valid for reading, and for writing where this reads the peer's memory.
    unsafe fn reach(&self, request: &RmaRequest, wanted: Access, iov: &[libc::iovec]) -> bool {
        let len = request.remote.len;
        if !REACHED.contains(&len) || total(iov) != len || self.is_closed() {
            return false;
        }
        let done = self.try_with_shell(|shell| {
            // SAFETY: the caller's promise.
            unsafe { shell.reach(&self.core, &self.watch, request, wanted, iov) }
        });
        done == Some(true)
    }

    /// Makes this process take part in every access of peers to its memory ([`crate::RegionTable::watch`]).
    pub fn watch_accesses(&self) {
        let regions = self.core.lock().memory.regions().clone();
        regions.watch();
    }

    /// An atomic operation on a peer's memory; `operand` and `compare` are copied before
    /// the call returns, `result` receives the earlier value.
    ///
    /// # Errors
    /// See [`Endpoint::send`]; also [`PostError::Invalid`] for an operation that does not exist for the type or is
    /// longer than [`Endpoint::ATOMIC_MAX`], and for buffers that are not as long as the remote range.
    ///
    /// # Safety
    /// See [`Endpoint::recv`], for `result`.
    pub unsafe fn atomic(
        &self,
        request: &AtomicRequest,
        operand: &[libc::iovec],
        compare: &[libc::iovec],
        result: &[libc::iovec],
    ) -> Result<(), PostError> {
        if total(operand).max(total(compare)).max(request.remote.len) > Self::ATOMIC_MAX as u64 {
            return Err(PostError::Invalid("an atomic operation takes at most 4096 bytes"));
        }
        let AtomicRequest { kind, op, remote, .. } = request;
        // The engine writes as many bytes to the result buffer as it reads at the peer.
        if [operand, compare, result].map(total) != kind.buffers(*op, remote.len) {
            return Err(PostError::Invalid("the buffers of an atomic operation differ in length"));
        }
        self.post(total(operand), |core| {
            let mut operands = Vec::new();
            for iov in [operand, compare] {
                let place = core.memory.lend(iov);
                isthmus_proto::Memory::load(&core.memory, place, 0, total(iov) as usize, &mut operands);
                isthmus_proto::Memory::release(&mut core.memory, place);
            }
            let place = core.memory.lend(result);
            Ok(core.engine.atomic(request, &operands, place, &mut core.memory)?)
        })
    }

    /// Cancels the oldest posted receive with this context; it then completes with
    /// [`isthmus_proto::OpError::Cancelled`]. False if there is none.
    pub fn cancel(&self, context: u64) -> bool {
        let mut guard = self.work();
        let Core { engine, memory, .. } = &mut *guard;
        let cancelled = engine.cancel(context, memory);
        drop(guard);
        self.wakeup.tell_sleepers(self);
        cancelled
    }

    /// Makes [`Endpoint::poll_lost`] report peers that are gone for good.
    pub fn watch_peers(&self) {
        self.work().engine.watch_peers();
    }

    /// The next peer that is gone for good, and why ([`isthmus_proto::Engine::poll_lost`]).
    pub fn poll_lost(&self) -> Option<(PeerId, OpError)> {
        self.core.lock().engine.poll_lost()
    }

    /// Whether a message of this peer has matched a receive and is not complete
    /// ([`isthmus_proto::Engine::is_receiving`]).
    pub fn is_receiving(&self, peer: PeerId) -> bool {
        self.core.lock().engine.is_receiving(peer)
    }

    /// Gives a message's buffer back before the message is complete ([`isthmus_proto::Engine::disown`]).
    /// False while it is being written: try again later.
    pub fn disown(&self, context: u64) -> bool {
        let mut guard = self.work();
        let Core { engine, memory, .. } = &mut *guard;
        engine.disown(context, memory)
    }
}
