//! Messages and remote memory, and waiting for their ends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::Access;
use isthmus_wire::conversation::MemoryHandle;

use super::{Endpoint, SPIN};
use crate::event::Connection;
use crate::inner::HeldMemory;
use crate::memory::Region;
use crate::ports::port_of;
use crate::post::Awaited;
use crate::{Error, RemoteOptions, SendOptions};

/// A posted operation. If it is blocking, pass it to [`Endpoint::wait_for`].
#[derive(Debug)]
#[must_use]
pub struct Posted(Option<Awaited>);

impl Endpoint {
    /// Sends a copy of a message. [`Event::Sent`](crate::Event::Sent) reports its end.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::Stale`], [`Error::State`]; for a blocking call also
    /// [`Error::Failed`].
    pub fn send(&self, to: Connection, message: &[u8], options: &SendOptions) -> Result<(), Error> {
        // SAFETY: the message is copied within the call.
        let op =
            unsafe { self.inner.send(to, &[iovec(message)], options, HeldMemory::Bytes(Vec::new()), true) }?;
        self.await_end(op)
    }

    /// As [`Endpoint::send`], for several pieces that become one message.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    pub fn send_pieces(&self, to: Connection, pieces: &[&[u8]], options: &SendOptions) -> Result<(), Error> {
        let pieces: Vec<_> = pieces.iter().map(|piece| iovec(piece)).collect();
        // SAFETY: the pieces are copied within the call.
        let op = unsafe { self.inner.send(to, &pieces, options, HeldMemory::Bytes(Vec::new()), true) }?;
        self.await_end(op)
    }

    /// Sends a message without copying it. The pieces are kept until its end.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    pub fn send_bytes(&self, to: Connection, pieces: &[Bytes], options: &SendOptions) -> Result<(), Error> {
        let held = pieces.to_vec();
        let pieces: Vec<_> = held.iter().map(|piece| iovec(piece)).collect();
        // SAFETY: what the pieces refer to is held until the message's end.
        let op = unsafe { self.inner.send(to, &pieces, options, HeldMemory::Bytes(held), false) }?;
        self.await_end(op)
    }

    /// Sends a message without copying it, from the caller's memory.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    ///
    /// # Safety
    /// The pieces stay valid and unchanged until the message's event, or until the endpoint is closed. So the message
    /// must not be silent.
    pub unsafe fn send_lent(
        &self,
        to: Connection,
        pieces: &[libc::iovec],
        options: &SendOptions,
    ) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        let op = unsafe { self.inner.send(to, pieces, options, HeldMemory::Bytes(Vec::new()), false) }?;
        self.await_end(op)
    }

    /// Registers zeroed memory of `len` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough.
    pub fn register(&self, len: usize, access: Access) -> Result<Region, Error> {
        drop(self.inner.open_state()?);
        Region::allocate(u64::from(self.inner.serial), &self.inner.regions, len, access)
    }

    /// Registers memory of the program.
    ///
    /// # Errors
    /// [`Error::Memory`].
    ///
    /// # Safety
    /// The memory stays valid until the region is dropped while [`Region::is_in_use`] is false. Nobody else touches it
    /// while operations or peers may.
    pub unsafe fn register_lent(&self, at: *mut u8, len: usize, access: Access) -> Result<Region, Error> {
        drop(self.inner.open_state()?);
        // SAFETY: by this function's contract.
        unsafe { Region::lend(u64::from(self.inner.serial), &self.inner.regions, at, len, access) }
    }

    /// Writes `len` bytes at `local_offset` of `local` to `remote_offset` of a peer's memory. [`Event::Sent`](crate::Event::Sent) reports
    /// its end: then the data is there.
    ///
    /// # Errors
    /// [`Error::Level`] on UU; [`Error::Memory`]; as for [`Endpoint::send`]. If the peer refuses, the event says so,
    /// and nothing of its memory was touched.
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn write(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<(), Error> {
        self.wait_for(self.post_write(to, local, local_offset, remote, remote_offset, len, options)?)
    }

    /// As [`Endpoint::write`], but does not wait: a blocking write is waited for by [`Endpoint::wait_for`]. Between the
    /// two calls the program may drop the region, or release a lock.
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn post_write(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<Posted, Error> {
        self.inner.remote(to, local, local_offset, remote, remote_offset, len, options, true).map(Posted)
    }

    /// As [`Endpoint::read`]; see [`Endpoint::post_write`].
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn post_read(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<Posted, Error> {
        self.inner.remote(to, local, local_offset, remote, remote_offset, len, options, false).map(Posted)
    }

    /// Waits for the end of a blocking operation. For others it returns at once.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`].
    pub fn wait_for(&self, posted: Posted) -> Result<(), Error> {
        self.await_end(posted.0)
    }

    /// Reads a peer's memory into ours: as [`Endpoint::write`], in the other direction.
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn read(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<(), Error> {
        self.wait_for(self.post_read(to, local, local_offset, remote, remote_offset, len, options)?)
    }

    /// Waits for the end of a blocking operation.
    fn await_end(&self, awaited: Option<Awaited>) -> Result<(), Error> {
        let Some(Awaited { op, peer }) = awaited else { return Ok(()) };
        let engine = &self.inner.ports[port_of(peer)].engine;
        let start = Instant::now();
        loop {
            let mut state = self.inner.state.lock();
            if self.inner.is_closed() {
                return Err(Error::Closed);
            }
            self.inner.progress(&mut state);
            self.inner.pass_news(&mut state);
            if let Some(Some(_)) = state.awaited.get(&op) {
                let end = state.awaited.remove(&op).flatten();
                return end.unwrap_or(Ok(())).map_err(Error::Failed);
            }
            drop(state);
            if start.elapsed() > SPIN {
                // The I/O thread drives the engine meanwhile. Another thread may take in the end.
                let _ = engine.wait(Some(Duration::from_millis(1)));
            }
        }
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
