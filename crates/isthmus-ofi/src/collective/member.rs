//! `fid_mc`: a group that endpoints have joined, for collective operations among its members.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use isthmus_abi::collective::fi_collective_addr;
use isthmus_wire::Address;

use super::set::AvSet;
use crate::abi::{fi_ops, fid, fid_mc};
use crate::door::{Guard, Object, close, give};
use crate::endpoint::Ep;
use crate::error::Error;
use crate::fid::{head, ops};
use crate::flags::{FI_CLASS_MC, FI_COLLECTIVE};
use crate::groups::{Buffers, Collective, End, Group};
use crate::live::Live;

#[repr(C)]
pub(super) struct Mc {
    raw: fid_mc,
    guard: Guard,
    live: Arc<Live>,
}

// SAFETY: `repr(C)`, starting with `fid_mc`.
unsafe impl Object for Mc {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// Joins a group: `FI_JOIN_COMPLETE` in the endpoint's event queue says when all members have.
///
/// # Safety
/// `addr` is null or a `fi_collective_addr` if the flags say so; `out` is null or writable.
pub(crate) unsafe fn join(
    ep: &Ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> Result<c_int, Error> {
    if flags & FI_COLLECTIVE == 0 {
        return Err(Error::Unsupported("a multicast group"));
    }
    if flags != FI_COLLECTIVE {
        return Err(Error::BadFlags(flags & !FI_COLLECTIVE));
    }
    let live = ep.live()?;
    if live.caps() & FI_COLLECTIVE == 0 {
        return Err(Error::Unsupported("a collective without FI_COLLECTIVE"));
    }
    let events = ep.state.events().ok_or(Error::NoEq)?;
    // SAFETY: by this function's contract.
    let addr = unsafe { addr.cast::<fi_collective_addr>().as_ref() }.ok_or(Error::Null)?;
    // SAFETY: likewise.
    let members = unsafe { AvSet::behind(addr.set) }?.members();
    let known = members.iter().map(|&member| live.av().address(member));
    let addresses: Vec<Address> =
        known.collect::<Option<_>>().ok_or(Error::Invalid("a member that was removed"))?;
    let own = live.av().number(&live.engine().address());
    let rank = members.iter().position(|&member| Some(member) == own);
    let rank = rank.ok_or(Error::Invalid("the endpoint is no member of the set that it joins"))?;
    let tag = live.collectives().joins().next(&addresses);
    let group = Arc::new(Group::new(members, rank, tag));
    let mut mc: *mut fid_mc = std::ptr::null_mut();
    let handle = live.collectives().enter(group.clone());
    let raw = fid_mc { fid: head(FI_CLASS_MC, context, &FID_OPS), fi_addr: handle };
    let object = Mc { raw, guard: Guard::new(), live: live.clone() };
    // SAFETY: a place of our own.
    unsafe { give(object, &mut mc) }?;
    // SAFETY: by this function's contract.
    let Some(out) = (unsafe { out.as_mut() }) else {
        // SAFETY: just given, and known to nobody.
        unsafe { close_mc(mc.cast()) };
        return Err(Error::Null);
    };
    *out = mc;
    let end = End::Joined { events, group: mc.addr(), context: context.addr() };
    // SAFETY: a barrier has no buffers.
    unsafe { live.collectives().begin(live, &group, Collective::Barrier, Buffers::none(), end) };
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_mc, None, None);

unsafe extern "C" fn close_mc(raw: *mut fid) -> c_int {
    let end = |mc: &Mc| {
        mc.live.collectives().leave(mc.raw.fi_addr);
        Ok(())
    };
    // SAFETY: libfabric passes what `join` gave.
    unsafe { close(raw, end) }
}
