//! The part of `fi_collective.h` that calls do not name.
#![allow(
    missing_docs,
    non_camel_case_types,
    reason = "the names are libfabric's; fi_collective(3) tells them"
)]

use crate::abi::{fi_addr_t, fid_av_set};

/// What `fi_join` takes for an address with `FI_COLLECTIVE`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_collective_addr {
    pub set: *const fid_av_set,
    pub coll_addr: fi_addr_t,
}
