//! A finished operation on its way to the program, in the five formats of libfabric.

use std::ffi::c_void;

use isthmus_proto::{AtomicKind, Channel, Completion, CompletionKind, OpError};

use crate::abi::{
    FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, fi_addr_t, fi_cq_data_entry, fi_cq_entry,
    fi_cq_format, fi_cq_msg_entry, fi_cq_tagged_entry,
};
use crate::flags::*;

/// A finished operation.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) tagged: fi_cq_tagged_entry,
    /// The sender; `FI_ADDR_NOTAVAIL` if it is unknown or not asked for.
    pub(crate) source: fi_addr_t,
    /// Why it failed.
    pub(crate) error: Option<Box<OpError>>,
}

// SAFETY: the pointers in it are the program's, which we only carry.
unsafe impl Send for Entry {}

impl Entry {
    /// Takes the completion's error.
    pub(crate) fn new(completion: &mut Completion, source: fi_addr_t) -> Self {
        let tagged = tagged(completion);
        Self { tagged, source, error: completion.error.take().map(Box::new) }
    }

    /// A message that was received without an error.
    #[inline]
    pub(crate) fn received(completion: &Completion, source: fi_addr_t) -> Self {
        Self { tagged: tagged(completion), source, error: None }
    }

    /// The end of a collective operation.
    pub(crate) fn collective(context: u64, error: Option<OpError>) -> Self {
        let mut entry = Self::released(context);
        entry.tagged.flags = FI_COLLECTIVE;
        Self { error: error.map(Box::new), ..entry }
    }

    /// The end of a multi-receive buffer without a message.
    pub(crate) fn released(context: u64) -> Self {
        let tagged = fi_cq_tagged_entry {
            op_context: pointer(context),
            flags: FI_MULTI_RECV,
            len: 0,
            buf: std::ptr::null_mut(),
            data: 0,
            tag: 0,
        };
        Self { tagged, source: FI_ADDR_NOTAVAIL, error: None }
    }
}

/// The entry of an operation that succeeded.
#[inline]
pub(crate) fn tagged(completion: &Completion) -> fi_cq_tagged_entry {
    let received = matches!(completion.kind, CompletionKind::Recv(_) | CompletionKind::RemoteWrite);
    fi_cq_tagged_entry {
        op_context: pointer(completion.context),
        flags: flags_of(completion),
        len: completion.len as usize,
        buf: if received { pointer(completion.buffer) } else { std::ptr::null_mut() },
        data: completion.data.unwrap_or(0),
        tag: completion.tag,
    }
}

fn pointer(value: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(value as usize)
}

/// Size of one entry in a format. Bytes.
pub(super) fn size_of_format(format: fi_cq_format) -> usize {
    match format {
        FI_CQ_FORMAT_CONTEXT => size_of::<fi_cq_entry>(),
        FI_CQ_FORMAT_MSG => size_of::<fi_cq_msg_entry>(),
        FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
        _ => size_of::<fi_cq_tagged_entry>(),
    }
}

/// Writes an entry in a format. Each shorter format is a prefix of the longest.
///
/// # Safety
/// `out` has room for an entry of `size` bytes, which is a format's.
#[inline]
pub(super) unsafe fn write(entry: &fi_cq_tagged_entry, out: *mut u8, size: usize) {
    if size == size_of::<fi_cq_tagged_entry>() {
        // SAFETY: by this function's contract.
        return unsafe { out.cast::<fi_cq_tagged_entry>().write_unaligned(*entry) };
    }
    let from = std::ptr::from_ref(entry).cast::<u8>();
    // SAFETY: by this function's contract; no format is longer than a tagged entry.
    unsafe { std::ptr::copy_nonoverlapping(from, out, size) };
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(fi_cq_data_entry, data) == offset_of!(fi_cq_tagged_entry, data));
    assert!(offset_of!(fi_cq_data_entry, buf) == offset_of!(fi_cq_tagged_entry, buf));
    assert!(offset_of!(fi_cq_msg_entry, len) == offset_of!(fi_cq_tagged_entry, len));
    assert!(offset_of!(fi_cq_msg_entry, flags) == offset_of!(fi_cq_tagged_entry, flags));
};

/// The completion's flags (`fi_cq(3)`).
#[inline]
fn flags_of(completion: &Completion) -> u64 {
    use CompletionKind::*;
    let kind = match completion.kind {
        Send(channel) | SendLost(channel) => FI_SEND | flag_of(channel),
        Recv(channel) => FI_RECV | flag_of(channel),
        Peek => FI_RECV | FI_TAGGED,
        Write => FI_RMA | FI_WRITE,
        Read => FI_RMA | FI_READ,
        Atomic(AtomicKind::Update) => FI_ATOMIC | FI_WRITE,
        Atomic(_) => FI_ATOMIC | FI_READ,
        RemoteWrite => FI_RMA | FI_REMOTE_WRITE,
        RemoteAccess { wrote: true, .. } => FI_REMOTE_WRITE,
        RemoteAccess { wrote: false, .. } => FI_REMOTE_READ,
        BufferReleased => FI_MULTI_RECV,
    };
    let data = if completion.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    let released = if completion.released { FI_MULTI_RECV } else { 0 };
    kind | data | released
}

fn flag_of(channel: Channel) -> u64 {
    match channel {
        Channel::Untagged => FI_MSG,
        Channel::Tagged => FI_TAGGED,
        Channel::Group => FI_COLLECTIVE,
    }
}
