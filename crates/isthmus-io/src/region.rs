//! One region of registered memory, and what peers may do with it.

use isthmus_proto::{Access as Wanted, RemoteRange};
use isthmus_wire::frame::Status;

/// Low bits of a registered place's token that are the offset; the generation is above them. Any user address fits.
pub(crate) const OFFSET_BITS: u32 = 48;

/// The access to a region that a peer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it (`FI_REMOTE_READ`).
    pub remote_read: bool,
    /// Peers may write it (`FI_REMOTE_WRITE`).
    pub remote_write: bool,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Its address.
    pub(crate) base: u64,
    /// Its length. Bytes.
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Peers name bytes by virtual address; else by offset.
    pub(crate) virtual_addressing: bool,
}

impl Region {
    /// The offset in the region of a range that a peer names, if the peer may access it so.
    pub(crate) fn find(&self, range: RemoteRange, wanted: Wanted) -> Result<u64, Status> {
        let permitted = match wanted {
            Wanted::Read => self.access.remote_read,
            Wanted::Write | Wanted::Update => self.access.remote_write,
        };
        if !permitted {
            return Err(Status::Access);
        }
        self.offset(range).ok_or(Status::Bounds)
    }

    fn offset(&self, range: RemoteRange) -> Option<u64> {
        let offset = if self.virtual_addressing { range.addr.checked_sub(self.base)? } else { range.addr };
        let end = offset.checked_add(range.len)?;
        (end <= self.len && end < 1 << OFFSET_BITS).then_some(offset)
    }
}
