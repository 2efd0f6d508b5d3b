//! `fid_mc`: a group that endpoints have joined, for collective operations among its members.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use isthmus_abi::collective::fi_collective_addr;
use isthmus_wire::{Address, fnv1a};

use super::plan::Collective;
use super::running::{Buffers, End};
use super::set::AvSet;
use crate::abi::{fi_addr_t, fi_ops, fid, fid_mc};
use crate::door::{Guard, Object, close, give};
use crate::ep::Ep;
use crate::error::Error;
use crate::fid::{head, ops};
use crate::flags::{FI_CLASS_MC, FI_COLLECTIVE};
use crate::live::Live;

/// Low bits of a tag that name the operation; the group's bits are above them. At most one message goes each way
/// between two members for an operation.
const GROUP_SHIFT: u32 = u16::BITS;

/// A member's view of its group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<fi_addr_t>,
    /// This endpoint's index among the members.
    pub(super) rank: usize,
    tag: u64,
    /// Operations that have begun. All members begin them in the same order, so the count names an operation.
    begun: AtomicU16,
}

impl Group {
    /// A tag for the messages of a new operation.
    pub(super) fn next_tag(&self) -> u64 {
        self.tag | u64::from(self.begun.fetch_add(1, Ordering::Relaxed))
    }

    /// The rank of an address.
    pub(super) fn rank_of(&self, number: fi_addr_t) -> Result<usize, Error> {
        let rank = self.members.iter().position(|&member| member == number);
        rank.ok_or(Error::Invalid("the root is no member of the group"))
    }
}

/// Joins of each group of members. The count distinguishes a group's messages from those of an earlier one.
#[derive(Debug, Default)]
pub(super) struct Joins(HashMap<u64, u64>);

impl Joins {
    /// The high bits of the tags of the next group of these members. All members compute the same without a message, as
    /// they know each other by the same addresses and join in the same order.
    fn next(&mut self, members: &[Address]) -> u64 {
        let named =
            members.iter().flat_map(|member| member.locator.to_string().into_bytes().into_iter().chain([0]));
        let nth = self.0.entry(fnv1a(named.clone())).or_default();
        *nth += 1;
        let name = fnv1a(named.chain(nth.to_le_bytes()));
        name & !0 << GROUP_SHIFT
    }
}

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
    let group = Arc::new(Group { members, rank, tag, begun: AtomicU16::new(0) });
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn groups_have_tags_of_their_own() {
        let address = |port: u16| Address::from(SocketAddr::from(([10, 0, 0, 1], port)));
        let (two, three) = ([address(1), address(2)], [address(1), address(2), address(3)]);
        let (mut here, mut there) = (Joins::default(), Joins::default());
        let tags = [here.next(&two), here.next(&three), here.next(&two)];
        // The other member is not in the group of three.
        assert_eq!([there.next(&two), there.next(&two)], [tags[0], tags[2]]);
        for tag in tags {
            assert_eq!(tag & !(!0 << GROUP_SHIFT), 0);
        }
        assert!(tags[0] != tags[1] && tags[0] != tags[2] && tags[1] != tags[2]);
    }
}
