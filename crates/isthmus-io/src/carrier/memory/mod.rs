//! Lanes by shared memory, between endpoints of one host.
//!
//! A lane begins as a TCP connection, on which the ends negotiate (`isthmus_fabric::Meeting`). The end that connected
//! makes the memory and says where it is. The other end maps it, and says so in it. If either fails, the lane stays
//! TCP.
//!
//! Afterwards the connection shows that the other end lives, and serves as its bell. An end sets a flag in the memory
//! before it sleeps; the other end, when it writes and finds the flag set, sends one byte on the connection.
//!
//! Each end can directly access registered memory that the other end shows (`regions.rs`).
//!
//! - `segment.rs`: the mapping, and the flags in it.
//! - `ring.rs`, `streaming.rs`: a ring of records for each direction, and copies into it past the caches.
//! - `link.rs`: one end of a lane: it reads and writes the rings.
//! - `loans.rs`, `copy_mode.rs`: pieces that the reader copies straight from the writer's memory, and when that is
//!   quicker.
//! - `process_vm.rs`: access to another process's memory. `foreign.rs`: for the fuzz target.

mod copy_mode;
pub(super) mod foreign;
mod link;
mod loans;
mod process_vm;
mod regions;
mod ring;
mod segment;
mod streaming;

use std::fmt::Arguments;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};

use isthmus_fabric::OfferedEndpoint;
use isthmus_proto::{Access as Wanted, RemoteRange};
use isthmus_wire::frame::Message;
use slab::Slab;

use super::Transfer;
use super::tcp::TcpLane;
use crate::log::{debug_log, info_few, info_log, warn_refused};
use crate::region::Region;
use crate::settings::MEMORY;
use link::MemoryLink;
pub(crate) use regions::ShownRegion;
pub(crate) use ring::Spot;
pub(crate) use segment::Sleeper;
use segment::{Name, Segment};

/// Longest payload of a record. Bytes; no short message is longer.
pub(crate) const RECORD_MAX: usize = ring::RECORD_MAX as usize;

/// Tries whether lanes within this host can share memory: another process must find it by way of `/proc`. Returns
/// whether a process may read another's memory, as far as this process can tell by itself. If so, long messages need
/// not wait for a sender that computes.
///
/// # Errors
/// The system's, if lanes within this host stay TCP.
pub fn try_shared_memory() -> io::Result<bool> {
    let (_made, _file, name) = Segment::create()?;
    let found = Segment::open(name)?;
    Ok(found.neighbour().is_accessible())
}

/// Lanes that are being negotiated, and the state that all lanes by shared memory share.
#[derive(Debug)]
pub(crate) struct Memory {
    wanted: bool,
    offered: Vec<(Name, Segment, OwnedFd)>,
    /// Links that both ends have agreed on and that no lane has taken yet.
    links: Slab<MemoryLink>,
    /// Processes whose memory turned out to be unreadable.
    unreachable: Vec<u64>,
    said: bool,
}

impl Memory {
    /// `wanted` says whether lanes may go by shared memory at all.
    pub(super) fn new(wanted: bool) -> Self {
        Self { wanted, offered: Vec::new(), links: Slab::new(), unreachable: Vec::new(), said: false }
    }

    pub(super) fn is_off(&self) -> bool {
        !self.wanted
    }

    /// Makes an offer to a neighbour on this host.
    pub(super) fn offer(&mut self) -> Option<OfferedEndpoint> {
        if !self.wanted {
            return None;
        }
        match Segment::create() {
            Ok((segment, file, name)) => {
                self.offered.push((name, segment, file));
                Some(OfferedEndpoint { provider: MEMORY.to_owned(), name: name.to_bytes() })
            }
            Err(error) => {
                self.remark(&error, format_args!("no shared memory can be made"));
                None
            }
        }
    }

    /// Takes a neighbour's offer; returns the link's index.
    pub(super) fn take(&mut self, endpoint: &OfferedEndpoint) -> Option<usize> {
        if !self.wanted {
            return None;
        }
        let found = Name::from_bytes(&endpoint.name).ok_or_else(|| io::ErrorKind::InvalidData.into());
        match found.and_then(Segment::open) {
            Ok(segment) => Some(self.link(segment)),
            Err(error) => {
                self.remark(&error, format_args!("the other end's shared memory cannot be found"));
                None
            }
        }
    }

    /// Joins a link that we offered and the neighbour has taken; returns its index.
    pub(super) fn join(&mut self, endpoint: &OfferedEndpoint) -> Option<usize> {
        let name = Name::from_bytes(&endpoint.name)?;
        let index = self.offered.iter().position(|(offered, ..)| *offered == name)?;
        let (_, segment, _) = self.offered.swap_remove(index);
        segment.is_taken().then(|| self.link(segment))
    }

    /// Withdraws an offer, if it was not taken.
    pub(super) fn withdraw(&mut self, endpoint: &OfferedEndpoint) {
        let name = Name::from_bytes(&endpoint.name);
        self.offered.retain(|(offered, ..)| Some(*offered) != name);
    }

    fn link(&mut self, segment: Segment) -> usize {
        let neighbour = segment.neighbour();
        let reaches = !self.unreachable.contains(&neighbour.pid) && neighbour.is_accessible();
        if !reaches {
            debug_log!(
                "memory of process {} cannot be read: what the ring has no room for waits for it",
                neighbour.pid
            );
        }
        self.links.insert(MemoryLink::new(segment, neighbour, reaches))
    }

    /// Drops a link that no lane has taken.
    pub(super) fn remove(&mut self, link: usize) {
        self.links.try_remove(link);
    }

    fn remark(&mut self, error: &io::Error, what: Arguments<'_>) {
        // Containers often forbid it, which is no trouble.
        if error.kind() != io::ErrorKind::PermissionDenied {
            warn_refused!(error, "a lane on this host stays TCP: {what}");
        }
        if !std::mem::replace(&mut self.said, true) {
            info_log!("a lane on this host stays TCP: {what}: {error}");
        }
    }
}

/// A lane through shared memory.
#[derive(Debug)]
pub(crate) struct MemoryLane {
    link: MemoryLink,
    tcp: TcpLane,
}

impl MemoryLane {
    /// The lane of a link that was negotiated on this connection.
    pub(super) fn new(tcp: TcpLane, link: usize, memory: &mut Memory) -> Option<Self> {
        memory.links.try_remove(link).map(|link| Self { link, tcp })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.tcp.fd()
    }

    pub(super) fn rtt_us(&self) -> Option<u64> {
        self.tcp.rtt_us()
    }

    /// Whether a read would find something.
    pub(crate) fn is_readable(&self) -> bool {
        self.link.is_readable()
    }

    /// See [`MemoryLink::show`].
    pub(crate) fn show(&self, spot: &Spot) -> bool {
        self.link.show(spot)
    }

    /// Whether a write that could not take everything would now take more.
    pub(crate) fn is_writable(&mut self) -> bool {
        self.link.is_writable()
    }

    /// Like [`TcpLane::read`].
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec], memory: &mut Memory) -> Transfer {
        // SAFETY: the caller's promise.
        let came = unsafe { self.link.read(pieces) };
        self.ring();
        if let (Transfer::Failed(error), Some(pid)) = (&came, self.link.unreachable()) {
            info_few!("memory of process {pid} cannot be read any more: {error}");
            memory.unreachable.push(pid);
        }
        came
    }

    /// Like [`TcpLane::write`].
    ///
    /// # Safety
    /// See `Carrier::write`.
    pub(super) unsafe fn write(&mut self, pieces: &[libc::iovec], lent: &[bool]) -> Transfer {
        // SAFETY: the caller's promise.
        let done = unsafe { self.link.write(pieces, lent) };
        self.ring();
        done
    }

    /// See [`MemoryLink::close_batch`].
    pub(super) fn close_batch(&mut self) -> bool {
        self.link.close_batch()
    }

    /// See [`MemoryLink::take_returned`].
    pub(super) fn take_returned(&mut self) -> (usize, bool) {
        self.link.take_returned()
    }

    /// See [`MemoryLink::recall`].
    pub(super) fn recall(&mut self, batches: u64) {
        self.link.recall(batches);
        self.ring();
    }

    /// See [`MemoryLink::withdraw`].
    pub(super) fn withdraw(&mut self) {
        self.link.withdraw();
    }

    /// See [`MemoryLink::has_room`].
    #[inline]
    pub(crate) fn has_room(&mut self, len: usize) -> bool {
        self.link.has_room(len)
    }

    /// See [`MemoryLink::write_short`]. If the returned sleeper is asleep, call [`MemoryLane::ring_if_asleep`].
    #[inline]
    pub(crate) fn write_short(&mut self, message: &Message, payload: &[u8]) -> Sleeper {
        self.link.write_short(message, payload)
    }

    /// See [`MemoryLink::can_show_region`].
    pub(crate) fn can_show_region(&self, key: u64) -> bool {
        self.link.can_show_region(key)
    }

    /// See [`MemoryLink::show_region`].
    pub(crate) fn show_region(&mut self, key: u64, region: &Region) -> Option<ShownRegion> {
        self.link.show_region(key, region)
    }

    /// See [`MemoryLink::access`].
    ///
    /// # Safety
    /// See there.
    pub(crate) unsafe fn access(
        &mut self,
        range: RemoteRange,
        wanted: Wanted,
        pieces: &[libc::iovec],
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.link.access(range, wanted, pieces) }
    }

    /// Wakes the other end if it sleeps.
    pub(crate) fn ring_if_asleep(&mut self) {
        self.link.ring_if_asleep();
        self.ring();
    }

    /// See [`MemoryLink::read_short`].
    pub(crate) fn read_short(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.link.read_short(to)
    }

    /// See [`MemoryLink::take_short`].
    #[inline]
    pub(crate) fn take_short(&mut self, to: &mut [u8]) -> Option<Message> {
        self.link.take_short(to)
    }

    /// See [`MemoryLink::tell`]. Wakes the other end if it waits for that.
    pub(crate) fn tell(&mut self) {
        self.link.tell();
        self.ring();
    }

    pub(super) fn finish(&mut self) {
        self.link.finish();
        self.ring();
    }

    /// Notes that the connection is readable: bytes are bells, and its end means that the other end is gone.
    pub(super) fn stir(&mut self) {
        let mut bells = [0; 64];
        loop {
            match self.tcp.receive(&mut bells) {
                Ok(Some(n)) if n == bells.len() => {}
                Ok(Some(1..) | None) => return,
                Ok(Some(_)) | Err(_) => return self.link.part(),
            }
        }
    }

    /// See [`MemoryLink::doze`].
    pub(crate) fn doze(&mut self) -> bool {
        self.link.doze()
    }

    /// See [`MemoryLink::rouse`].
    pub(crate) fn rouse(&mut self) {
        self.link.rouse();
    }

    /// See [`MemoryLink::rest`].
    pub(crate) fn rest(&mut self) {
        self.link.rest();
    }

    /// Wakes the other end if it sleeps and has to know of a read or a write.
    pub(crate) fn ring(&mut self) {
        if self.link.take_ring() {
            // If the connection is full, the other end is woken already. If it has ended, that shows by itself.
            let _ = self.tcp.send(&[IoSlice::new(&[0])]);
        }
    }
}
