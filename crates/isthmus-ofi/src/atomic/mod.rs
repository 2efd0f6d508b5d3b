//! `fi_atomic(3)`: atomic operations on a peer's memory.

mod calls;
mod valid;

use std::ffi::c_int;

use isthmus_proto::{AtomicKind, AtomicRequest, AtomicType, CompletionKind, Options, RemoteRange};

use crate::abi::{
    FI_ATOMIC_READ, fi_addr_t, fi_atomic_attr, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_rma_ioc,
};
use crate::call::{Call, post_parts};
use crate::convert::{Elements, array, length};
use crate::error::Error;
use crate::flags::{FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC};
use crate::live::Live;
use crate::rma::check_remote_pieces;
use valid::count_max;

pub(crate) use calls::OPS;
pub(crate) use valid::{op_of, type_of};

/// An atomic operation, and where to do it.
#[derive(Clone, Copy)]
struct Atomic {
    kind: AtomicKind,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
}

/// The local buffers, in bytes. Buffers that a call does not have are empty.
#[derive(Clone)]
struct Buffers {
    operand: Elements,
    compare: Elements,
    result: Elements,
}

impl Atomic {
    /// # Safety
    /// The result buffers stay valid and untouched until the completion is read; the
    /// others are readable during the call.
    unsafe fn post(self, call: Call<'_>, buffers: &Buffers) -> Result<isize, Error> {
        buffers.check(self)?;
        call.post(CompletionKind::Atomic(self.kind), buffers, move |live, options, buffers| {
            // SAFETY: by this function's contract.
            unsafe { self.post_now(live, options, buffers) }
        })
    }

    /// # Safety
    /// As for [`Atomic::post`].
    unsafe fn post_now(self, live: &Live, options: Options, buffers: &Buffers) -> Result<(), Error> {
        let (op, datatype) = (op_of(self.op)?, type_of(self.datatype)?);
        let count = count_max(self.kind, op, datatype)?;
        let len = buffers.len();
        if len > count * datatype.size() {
            return Err(Error::TooLong(count * datatype.size()));
        }
        let remote = RemoteRange { key: self.key, addr: self.addr, len: len as u64 };
        let peer = live.target(self.peer)?;
        let request = AtomicRequest { peer, remote, kind: self.kind, op, datatype, options };
        let Buffers { operand, compare, result } = buffers;
        // SAFETY: by this function's contract.
        unsafe {
            live.engine().reliable()?.atomic(
                &request,
                operand.as_slice(),
                compare.as_slice(),
                result.as_slice(),
            )
        }?;
        Ok(())
    }

    /// Size of an element. Bytes.
    fn element(self) -> Result<usize, Error> {
        type_of(self.datatype).map(AtomicType::size)
    }
}

impl Buffers {
    /// Length of the operation. An atomic read has no operand, so its result tells. Bytes.
    fn len(&self) -> usize {
        let operand = length(self.operand.as_slice());
        if operand == 0 { length(self.result.as_slice()) } else { operand }
    }

    /// Checks that each buffer is as long as the operation needs.
    fn check(&self, atomic: Atomic) -> Result<(), Error> {
        let Self { operand, compare, result } = self;
        let lens = [operand, compare, result].map(|buffer| length(buffer.as_slice()) as u64);
        if lens == atomic.kind.buffers(op_of(atomic.op)?, self.len() as u64) {
            return Ok(());
        }
        Err(Error::Invalid("operand, compare and result buffers differ in length, or one is missing"))
    }

    /// The `len` bytes from `start` of each.
    fn cut(&self, start: usize, len: usize) -> Self {
        let Self { operand, compare, result } = self;
        Self {
            operand: operand.cut(start, len),
            compare: compare.cut(start, len),
            result: result.cut(start, len),
        }
    }

    /// # Safety
    /// The arrays have as many elements as their counts say.
    unsafe fn of(size: usize, operand: Iocs, compare: Iocs, result: Iocs) -> Result<Self, Error> {
        Ok(Self {
            // SAFETY: by this function's contract.
            operand: Elements::of(unsafe { array(operand.0, operand.1) }?, size)?,
            // SAFETY: by this function's contract.
            compare: Elements::of(unsafe { array(compare.0, compare.1) }?, size)?,
            // SAFETY: by this function's contract.
            result: Elements::of(unsafe { array(result.0, result.1) }?, size)?,
        })
    }
}

/// A C array of pieces and its length.
pub(crate) type Iocs = (*const fi_ioc, usize);
/// No pieces.
pub(crate) const NONE: Iocs = (std::ptr::null(), 0);

/// Posts an atomic on several pieces of a peer's memory. The local buffers hold them one behind the other.
///
/// # Safety
/// As for [`Atomic::post`].
unsafe fn post_scattered(
    call: Call<'_>,
    atomic: Atomic,
    places: &[fi_rma_ioc],
    buffers: &Buffers,
) -> Result<isize, Error> {
    buffers.check(atomic)?;
    let size = atomic.element()?;
    let mut end = 0;
    let part = |place: &fi_rma_ioc| {
        let (start, len) = (end, place.count * size);
        end += len;
        (Atomic { addr: place.addr, key: place.key, ..atomic }, buffers.cut(start, len))
    };
    let parts: Vec<_> = places.iter().map(part).collect();
    let kind = CompletionKind::Atomic(atomic.kind);
    call.post(kind, &parts[..], move |live, options, parts| {
        post_parts(live, kind, options, parts, false, |(part, buffers), options, _last| {
            // SAFETY: by this function's contract.
            unsafe { part.post_now(live, options, buffers) }
        })
    })
}

/// Posts what a message describes.
///
/// # Safety
/// `msg` is null or valid, with as many pieces as it says; the arrays are as long as their
/// counts; the buffers behind as [`Atomic::post`] says.
pub(crate) unsafe fn post_call(
    call: Call<'_>,
    kind: AtomicKind,
    msg: *const fi_msg_atomic,
    compare: Iocs,
    result: Iocs,
) -> Result<isize, Error> {
    // SAFETY: by this function's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
    // SAFETY: by this function's contract.
    let places = unsafe { array(msg.rma_iov, msg.rma_iov_count) }?;
    check_remote_pieces(&call, places.len())?;
    let fi_msg_atomic { addr: peer, datatype, op, .. } = *msg;
    // The operand of an atomic read is ignored, whatever it is.
    let operand = if op == FI_ATOMIC_READ { NONE } else { (msg.msg_iov, msg.iov_count) };
    let atomic = Atomic { kind, peer, addr: places[0].addr, key: places[0].key, datatype, op };
    let size = atomic.element()?;
    // SAFETY: by this function's contract.
    let buffers = unsafe { Buffers::of(size, operand, compare, result) }?;
    let counts = places.iter().try_fold(0, |all: usize, place| all.checked_add(place.count));
    if counts.and_then(|count| count.checked_mul(size)) != Some(buffers.len()) {
        return Err(Error::Invalid("local and remote pieces differ in length"));
    }
    match places {
        // SAFETY: by this function's contract.
        [_] => unsafe { atomic.post(call, &buffers) },
        // SAFETY: by this function's contract.
        _ => unsafe { post_scattered(call, atomic, places, &buffers) },
    }
}

/// `fi_query_atomic`.
///
/// # Safety
/// `attr` is null or writable.
pub(crate) unsafe fn query(
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> Result<c_int, Error> {
    let kind = match flags {
        0 => AtomicKind::Update,
        FI_FETCH_ATOMIC => AtomicKind::Fetch,
        FI_COMPARE_ATOMIC => AtomicKind::Compare,
        _ => return Err(Error::BadFlags(flags)),
    };
    let datatype = type_of(datatype)?;
    let count = count_max(kind, op_of(op)?, datatype)?;
    // SAFETY: by this function's contract.
    let attr = unsafe { attr.as_mut() }.ok_or(Error::Null)?;
    *attr = fi_atomic_attr { count, size: datatype.size() };
    Ok(0)
}
