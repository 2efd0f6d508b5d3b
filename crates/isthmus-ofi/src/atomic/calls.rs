//! The C calls of atomics.

use std::ffi::{c_int, c_void};

use isthmus_proto::AtomicKind::{self, Compare, Fetch, Update};

use super::valid::{count_max, op_of, type_of};
use super::{Atomic, Buffers, Iocs, NONE, post_call};
use crate::abi::{
    FI_ATOMIC_READ, fi_addr_t, fi_datatype, fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic, fid_ep,
};
use crate::door::entries;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::FI_ATOMIC;

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// Posts with the endpoint's default options.
///
/// # Safety
/// The arrays are as long as their counts; the buffers behind as `Atomic::post` says.
unsafe fn post(
    ep: &Ep,
    atomic: Atomic,
    operand: Iocs,
    compare: Iocs,
    result: Iocs,
    context: *mut c_void,
) -> Result<isize, Error> {
    let operand = if atomic.op == FI_ATOMIC_READ { NONE } else { operand };
    // SAFETY: by this function's contract.
    let buffers = unsafe { Buffers::of(atomic.element()?, operand, compare, result) }?;
    // SAFETY: by this function's contract.
    unsafe { atomic.post(ep.tx(context)?, &buffers) }
}

/// Posts with the flags of a `*msg` call.
///
/// # Safety
/// As for [`post`], and `msg` is null or valid.
unsafe fn post_msg(
    ep: &Ep,
    kind: AtomicKind,
    msg: *const fi_msg_atomic,
    compare: Iocs,
    result: Iocs,
    flags: u64,
) -> Result<isize, Error> {
    // SAFETY: by this function's contract.
    let context = unsafe { msg.as_ref() }.ok_or(Error::Null)?.context;
    // SAFETY: by this function's contract.
    unsafe { post_call(ep.tx_msg(flags, context)?, kind, msg, compare, result) }
}

fn ioc(addr: *const c_void, count: usize) -> fi_ioc {
    fi_ioc { addr: addr.cast_mut(), count }
}

/// Writes how many elements a call on the endpoint takes.
///
/// # Safety
/// `count` is null or writable.
unsafe fn say_valid(
    ep: &Ep,
    kind: AtomicKind,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> Result<c_int, Error> {
    if ep.state.caps() & FI_ATOMIC == 0 {
        return Err(Error::NotOffered("an atomic operation without FI_ATOMIC"));
    }
    let most = count_max(kind, op_of(op)?, type_of(datatype)?)?;
    // SAFETY: by this function's contract.
    *unsafe { count.as_mut() }.ok_or(Error::Null)? = most;
    Ok(0)
}

entries! {
    fn write(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, peer: fi_addr_t, addr: u64,
        key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Update, peer, addr, key, datatype, op };
        // SAFETY: the caller lends the buffer during the call.
        unsafe { post(ep, atomic, (&ioc(buf, count), 1), NONE, NONE, context) }
    }

    fn writev(
        ep: Ep as fid_ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, peer: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Update, peer, addr, key, datatype, op };
        // SAFETY: the caller passes `count` pieces and lends them during the call.
        unsafe { post(ep, atomic, (iov, count), NONE, NONE, context) }
    }

    fn writemsg(ep: Ep as fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message and lends its buffers.
        unsafe { post_msg(ep, Update, msg, NONE, NONE, flags) }
    }

    fn inject(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, peer: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op,
    ) -> isize {
        let atomic = Atomic { kind: Update, peer, addr, key, datatype, op };
        // SAFETY: one piece.
        let buffers = unsafe { Buffers::of(atomic.element()?, (&ioc(buf, count), 1), NONE, NONE) }?;
        // SAFETY: the buffer is readable during the call; nothing comes back.
        unsafe { atomic.post(ep.tx_inject()?, &buffers) }
    }

    fn readwrite(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, result: *mut c_void,
        _result_desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op,
        context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Fetch, peer, addr, key, datatype, op };
        let (operand, result) = (ioc(buf, count), ioc(result, count));
        // SAFETY: the caller lends the result buffer until the completion is read.
        unsafe { post(ep, atomic, (&operand, 1), NONE, (&result, 1), context) }
    }

    fn readwritev(
        ep: Ep as fid_ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, results: *mut fi_ioc,
        _result_desc: *mut *mut c_void, result_count: usize, peer: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Fetch, peer, addr, key, datatype, op };
        // SAFETY: the arrays have these lengths; the caller lends the result buffers.
        unsafe { post(ep, atomic, (iov, count), NONE, (results, result_count), context) }
    }

    fn readwritemsg(
        ep: Ep as fid_ep, msg: *const fi_msg_atomic, results: *mut fi_ioc, _result_desc: *mut *mut c_void,
        result_count: usize, flags: u64,
    ) -> isize {
        // SAFETY: the arrays have these lengths; the caller lends the result buffers.
        unsafe { post_msg(ep, Fetch, msg, NONE, (results, result_count), flags) }
    }

    fn compwrite(
        ep: Ep as fid_ep, buf: *const c_void, count: usize, _desc: *mut c_void, compare: *const c_void,
        _compare_desc: *mut c_void, result: *mut c_void, _result_desc: *mut c_void, peer: fi_addr_t,
        addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Compare, peer, addr, key, datatype, op };
        let (operand, compare, result) = (ioc(buf, count), ioc(compare, count), ioc(result, count));
        // SAFETY: the caller lends the result buffer until the completion is read.
        unsafe { post(ep, atomic, (&operand, 1), (&compare, 1), (&result, 1), context) }
    }

    fn compwritev(
        ep: Ep as fid_ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, compares: *const fi_ioc,
        _compare_desc: *mut *mut c_void, compare_count: usize, results: *mut fi_ioc,
        _result_desc: *mut *mut c_void, result_count: usize, peer: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void,
    ) -> isize {
        let atomic = Atomic { kind: Compare, peer, addr, key, datatype, op };
        let (compares, results) = ((compares, compare_count), (results.cast_const(), result_count));
        // SAFETY: the arrays have these lengths; the caller lends the result buffers.
        unsafe { post(ep, atomic, (iov, count), compares, results, context) }
    }

    fn compwritemsg(
        ep: Ep as fid_ep, msg: *const fi_msg_atomic, compares: *const fi_ioc, _compare_desc: *mut *mut c_void,
        compare_count: usize, results: *mut fi_ioc, _result_desc: *mut *mut c_void, result_count: usize,
        flags: u64,
    ) -> isize {
        let (compares, results) = ((compares, compare_count), (results.cast_const(), result_count));
        // SAFETY: the arrays have these lengths; the caller lends the result buffers.
        unsafe { post_msg(ep, Compare, msg, compares, results, flags) }
    }

    fn writevalid(ep: Ep as fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
        // SAFETY: the caller passes a place for the result.
        unsafe { say_valid(ep, Update, datatype, op, count) }
    }

    fn readwritevalid(ep: Ep as fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
        // SAFETY: the caller passes a place for the result.
        unsafe { say_valid(ep, Fetch, datatype, op, count) }
    }

    fn compwritevalid(ep: Ep as fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
        // SAFETY: the caller passes a place for the result.
        unsafe { say_valid(ep, Compare, datatype, op, count) }
    }
}
