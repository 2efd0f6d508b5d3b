//! Tables of what an endpoint does not do; programs call them unchecked.

use std::ffi::c_void;

use crate::abi::{fi_addr_t, fi_datatype, fi_ioc, fi_msg_collective, fi_op, fi_ops_collective, fid_ep};
use crate::door::refusals;

pub(crate) static COLLECTIVE: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(gathered),
    allreduce: Some(reduced),
    allgather: Some(gathered),
    reduce_scatter: Some(reduced),
    reduce: Some(reduced_to),
    scatter: Some(gathered_to),
    gather: Some(gathered_to),
    msg: Some(msg),
    barrier2: Some(barrier2),
};

refusals! {
    fn barrier(*mut fid_ep, fi_addr_t, *mut c_void) -> isize;
    fn barrier2(*mut fid_ep, fi_addr_t, u64, *mut c_void) -> isize;
    fn broadcast(
        *mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, fi_addr_t, fi_datatype, u64, *mut c_void,
    ) -> isize;
    fn gathered(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_datatype, u64,
        *mut c_void,
    ) -> isize;
    fn gathered_to(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_addr_t,
        fi_datatype, u64, *mut c_void,
    ) -> isize;
    fn reduced(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_datatype, fi_op,
        u64, *mut c_void,
    ) -> isize;
    fn reduced_to(
        *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, fi_addr_t,
        fi_datatype, fi_op, u64, *mut c_void,
    ) -> isize;
    fn msg(
        *mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut *mut c_void, usize, u64,
    ) -> isize;
}
