//! `fi_collective(3)`: the calls.

use std::ffi::{c_int, c_void};

use isthmus_proto::{AtomicOp, AtomicType};

use crate::abi::{
    FI_ALLGATHER, FI_ALLREDUCE, FI_BARRIER, FI_BROADCAST, FI_SCATTER, fi_addr_t, fi_atomic_attr,
    fi_collective_attr, fi_collective_op, fi_datatype, fi_ioc, fi_msg_collective, fi_op, fi_ops_collective,
    fid_ep,
};
use crate::atomic::{op_of, type_of};
use crate::door::{entries, refusals};
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::{FI_COLLECTIVE, FI_COMPLETION};
use crate::groups::{Buffers, Collective, End};
use crate::info::MSG_SIZE_MAX;

pub(crate) static OPS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(no_alltoall),
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(no_reduce_scatter),
    reduce: Some(no_reduce),
    scatter: Some(scatter),
    gather: Some(no_gather),
    msg: Some(no_msg),
    barrier2: Some(barrier2),
};

/// `fi_query_collective`.
///
/// # Safety
/// `attr` is null or valid and writable.
pub(crate) unsafe fn query(
    what: fi_collective_op,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> Result<c_int, Error> {
    if flags != 0 {
        return Err(Error::BadFlags(flags));
    }
    // SAFETY: by this function's contract.
    let attr = unsafe { attr.as_mut() }.ok_or(Error::Null)?;
    let size = match what {
        FI_BARRIER => 0,
        FI_BROADCAST | FI_ALLGATHER | FI_SCATTER => type_of(attr.datatype)?.size(),
        FI_ALLREDUCE => combination(attr.op, attr.datatype)?.1.size(),
        _ => return Err(Error::NotOffered("this collective operation")),
    };
    let count = MSG_SIZE_MAX.checked_div(size).unwrap_or(0);
    attr.datatype_attr = fi_atomic_attr { count, size };
    (attr.max_members, attr.mode) = (usize::MAX >> 1, 0);
    Ok(0)
}

/// An operation by which members' values become one, in any order.
fn combination(op: fi_op, datatype: fi_datatype) -> Result<(AtomicOp, AtomicType), Error> {
    use AtomicOp as Op;
    let (op, datatype) = (op_of(op)?, type_of(datatype)?);
    let commutes = matches!(
        op,
        Op::Min
            | Op::Max
            | Op::Sum
            | Op::Prod
            | Op::Lor
            | Op::Land
            | Op::Lxor
            | Op::Bor
            | Op::Band
            | Op::Bxor
    );
    if commutes && op.supports(datatype) {
        Ok((op, datatype))
    } else {
        Err(Error::NotOffered("this reduction"))
    }
}

/// Bytes of `count` elements.
fn bytes(count: usize, datatype: fi_datatype) -> Result<usize, Error> {
    let len = count.checked_mul(type_of(datatype)?.size());
    len.filter(|&len| len <= MSG_SIZE_MAX).ok_or(Error::Invalid("a count beyond memory"))
}

/// A call on a group.
struct Call<'a> {
    ep: &'a Ep,
    group: fi_addr_t,
    flags: u64,
    context: *mut c_void,
}

impl Call<'_> {
    /// Begins the operation; `root` is an address where it has one.
    ///
    /// # Safety
    /// The buffers are as long as the operation needs, and valid and untouched until its end.
    unsafe fn begin(
        self,
        root: Option<fi_addr_t>,
        buffers: Buffers,
        what: impl FnOnce(usize) -> Collective,
    ) -> Result<isize, Error> {
        let Self { ep, group, flags, context } = self;
        if flags & !FI_COMPLETION != 0 {
            return Err(Error::BadFlags(flags));
        }
        let live = ep.live()?;
        if live.caps() & FI_COLLECTIVE == 0 {
            return Err(Error::Unsupported("a collective without FI_COLLECTIVE"));
        }
        let group = live.collectives().group(group)?;
        let what = what(root.map_or(Ok(0), |root| group.rank_of(root))?);
        let options = ep.tx_options(live, flags, context);
        let end = End::Told { context: options.context, notify: options.notify };
        // SAFETY: by this function's contract.
        unsafe { live.collectives().begin(live, &group, what, buffers, end) };
        Ok(0)
    }
}

entries! {
    fn barrier(ep: Ep as fid_ep, group: fi_addr_t, context: *mut c_void) -> isize {
        // SAFETY: a barrier has no buffers.
        unsafe { Call { ep, group, flags: 0, context }.begin(None, Buffers::none(), |_| Collective::Barrier) }
    }

    fn barrier2(ep: Ep as fid_ep, group: fi_addr_t, flags: u64, context: *mut c_void) -> isize {
        // SAFETY: a barrier has no buffers.
        unsafe { Call { ep, group, flags, context }.begin(None, Buffers::none(), |_| Collective::Barrier) }
    }

    fn broadcast(
        ep: Ep as fid_ep, buf: *mut c_void, count: usize, _desc: *mut c_void, group: fi_addr_t, root: fi_addr_t,
        datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) -> isize {
        let len = bytes(count, datatype)?;
        let buffers = Buffers { result: buf.cast(), ..Buffers::none() };
        let what = |root| Collective::Broadcast { root, len };
        // SAFETY: the caller lends a buffer of `count` elements until the completion is read.
        unsafe { Call { ep, group, flags, context }.begin(Some(root), buffers, what) }
    }

    fn allreduce(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, result: *mut c_void,
        _result_desc: *mut c_void, group: fi_addr_t, datatype: fi_datatype, op: fi_op, flags: u64,
        context: *mut c_void,
    ) -> isize {
        let (len, combine) = (bytes(count, datatype)?, Some(combination(op, datatype)?));
        let buffers = Buffers { input: buf.cast(), result: result.cast(), combine };
        // SAFETY: the caller lends buffers of `count` elements until the completion is read.
        unsafe { Call { ep, group, flags, context }.begin(None, buffers, |_| Collective::AllReduce { len }) }
    }

    fn allgather(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, result: *mut c_void,
        _result_desc: *mut c_void, group: fi_addr_t, datatype: fi_datatype, flags: u64, context: *mut c_void,
    ) -> isize {
        let len = bytes(count, datatype)?;
        let buffers = Buffers { input: buf.cast(), result: result.cast(), combine: None };
        // SAFETY: the caller lends buffers of `count` elements, and that from each member, until the completion is read.
        unsafe { Call { ep, group, flags, context }.begin(None, buffers, |_| Collective::AllGather { len }) }
    }

    fn scatter(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, result: *mut c_void,
        _result_desc: *mut c_void, group: fi_addr_t, root: fi_addr_t, datatype: fi_datatype, flags: u64,
        context: *mut c_void,
    ) -> isize {
        let len = bytes(count, datatype)?;
        let buffers = Buffers { input: buf.cast(), result: result.cast(), combine: None };
        let what = |root| Collective::Scatter { root, len };
        // SAFETY: the caller lends buffers of `count` elements, the root that for each member, until the completion is
        // read.
        unsafe { Call { ep, group, flags, context }.begin(Some(root), buffers, what) }
    }
}

refusals! {
    fn no_alltoall(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_datatype, u64,
        *mut c_void,
    ) -> isize;
    fn no_gather(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_addr_t,
        fi_datatype, u64, *mut c_void,
    ) -> isize;
    fn no_reduce_scatter(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_datatype, fi_op,
        u64, *mut c_void,
    ) -> isize;
    fn no_reduce(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_addr_t,
        fi_datatype, fi_op, u64, *mut c_void,
    ) -> isize;
    fn no_msg(*mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize;
}
