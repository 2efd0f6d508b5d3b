//! The ABI of `fi_trigger.h`: operations that wait for a counter.
#![allow(missing_docs, non_camel_case_types, reason = "the names are libfabric's; fi_trigger(3) tells them")]

use core::ffi::c_void;

use crate::abi::{fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma, fi_msg_tagged, fid_cntr, fid_ep};

/// `enum fi_trigger_event`.
pub const FI_TRIGGER_THRESHOLD: u32 = 0;

/// `enum fi_op_type`.
pub const FI_OP_RECV: u32 = 0;
pub const FI_OP_SEND: u32 = 1;
pub const FI_OP_TRECV: u32 = 2;
pub const FI_OP_TSEND: u32 = 3;
pub const FI_OP_READ: u32 = 4;
pub const FI_OP_WRITE: u32 = 5;
pub const FI_OP_ATOMIC: u32 = 6;
pub const FI_OP_FETCH_ATOMIC: u32 = 7;
pub const FI_OP_COMPARE_ATOMIC: u32 = 8;
pub const FI_OP_CNTR_SET: u32 = 9;
pub const FI_OP_CNTR_ADD: u32 = 10;

/// The part of `struct fi_triggered_context` that a threshold uses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_triggered_context {
    pub event_type: u32,
    pub cntr: *mut fid_cntr,
    pub threshold: usize,
    pub internal: *mut c_void,
}

/// One of `fi_op_msg`, `fi_op_tagged` and `fi_op_rma`, which differ in the message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_op_of<M> {
    pub ep: *mut fid_ep,
    pub msg: M,
    pub flags: u64,
}

pub type fi_op_msg = fi_op_of<fi_msg>;
pub type fi_op_tagged = fi_op_of<fi_msg_tagged>;
pub type fi_op_rma = fi_op_of<fi_msg_rma>;
pub type fi_op_atomic = fi_op_of<fi_msg_atomic>;

/// `struct fi_msg_fetch` and `struct fi_msg_compare`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_fetch {
    pub msg_iov: *mut fi_ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_op_fetch_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_op_compare_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub compare: fi_msg_fetch,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_op_cntr {
    pub cntr: *mut fid_cntr,
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_deferred_op {
    pub msg: *const fi_op_msg,
    pub tagged: *const fi_op_tagged,
    pub rma: *const fi_op_rma,
    pub atomic: *const fi_op_atomic,
    pub fetch_atomic: *const fi_op_fetch_atomic,
    pub compare_atomic: *const fi_op_compare_atomic,
    pub cntr: *const fi_op_cntr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_deferred_work {
    pub context: [*mut c_void; 8],
    pub threshold: u64,
    pub triggering_cntr: *mut fid_cntr,
    pub completion_cntr: *mut fid_cntr,
    pub op_type: u32,
    pub op: fi_deferred_op,
}

// As a C compiler lays them out on 64-bit machines.
const _: () = {
    assert!(size_of::<fi_triggered_context>() == 32);
    assert!(size_of::<fi_op_msg>() == 64);
    assert!(size_of::<fi_op_tagged>() == 80);
    assert!(size_of::<fi_op_rma>() == 80);
    assert!(size_of::<fi_op_atomic>() == 88);
    assert!(size_of::<fi_op_fetch_atomic>() == 112);
    assert!(size_of::<fi_op_compare_atomic>() == 136);
    assert!(size_of::<fi_deferred_work>() == 104);
};
