//! `fid_av_set`: a list of some addresses of an address vector.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{fi_addr_t, fi_av_set_attr, fi_ops, fi_ops_av_set, fid, fid_av_set};
use crate::av_table::AvTable;
use crate::convert::{Plain, copy_prefix};
use crate::door::{Guard, Object, close, entries, give, of_class};
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::{FI_ADDR_NOTAVAIL, FI_CLASS_AV_SET, FI_UNIVERSE};

#[repr(C)]
pub(super) struct AvSet {
    raw: fid_av_set,
    guard: Guard,
    /// The vector to which the members' numbers belong; this keeps it open.
    av: Arc<AvTable>,
    members: Mutex<Vec<fi_addr_t>>,
}

// SAFETY: `repr(C)`, starting with `fid_av_set`.
unsafe impl Object for AvSet {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

// SAFETY: integers and a raw pointer.
unsafe impl Plain for fi_av_set_attr {}

/// Opens a set of a vector's addresses.
///
/// # Safety
/// `attr` is null or valid; `out` is null or writable.
pub(crate) unsafe fn open(
    av: Arc<AvTable>,
    attr: *const fi_av_set_attr,
    out: *mut *mut fid_av_set,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; the structure never grew.
    let attr = unsafe { copy_prefix(attr, size_of::<fi_av_set_attr>()) }.ok_or(Error::Null)?;
    if attr.comm_key_size != 0 {
        return Err(Error::Unsupported("an address set with a key"));
    }
    let raw = fid_av_set { fid: head(FI_CLASS_AV_SET, context, &FID_OPS), ops: table(&OPS) };
    let members = Mutex::new(chosen(&av, &attr)?);
    // SAFETY: by this function's contract.
    unsafe { give(AvSet { raw, guard: Guard::new(), av, members }, out) }?;
    Ok(0)
}

/// The addresses that the attributes choose: a range of numbers, all of them, or none.
fn chosen(av: &AvTable, attr: &fi_av_set_attr) -> Result<Vec<fi_addr_t>, Error> {
    let all = attr.flags & FI_UNIVERSE != 0;
    if !all && attr.start_addr == FI_ADDR_NOTAVAIL && attr.end_addr == FI_ADDR_NOTAVAIL {
        return Ok(Vec::new());
    }
    let (first, last) = if all { (0, av.numbers_end()) } else { (attr.start_addr, attr.end_addr) };
    // Limit the range to what exists, whatever the program says is the last.
    let last = last.min(av.numbers_end());
    let numbers = (first..=last).step_by(attr.stride.max(1) as usize);
    let numbers = numbers.filter(|&number| av.address(number).is_some());
    let most = if attr.count == 0 { usize::MAX } else { attr.count };
    Ok(numbers.take(most).collect())
}

impl AvSet {
    /// The set behind a C object.
    ///
    /// # Safety
    /// `raw` is null or an object of libfabric.
    pub(super) unsafe fn behind<'a>(raw: *const fid_av_set) -> Result<&'a Self, Error> {
        // SAFETY: by this function's contract; every object starts with its class.
        unsafe { of_class(raw.cast(), FI_CLASS_AV_SET, "no set of addresses") }
    }

    pub(super) fn members(&self) -> Vec<fi_addr_t> {
        self.members.lock().clone()
    }

    /// Changes the set by the members of another one.
    ///
    /// # Safety
    /// `other` is null or an object of libfabric.
    unsafe fn change(
        &self,
        other: *const fid_av_set,
        change: impl FnOnce(&mut Vec<fi_addr_t>, Vec<fi_addr_t>),
    ) -> Result<c_int, Error> {
        // SAFETY: by this function's contract.
        let other = unsafe { Self::behind(other) }?;
        if !Arc::ptr_eq(&self.av, &other.av) {
            return Err(Error::Invalid("sets of different address vectors"));
        }
        let theirs = other.members();
        change(&mut self.members.lock(), theirs);
        Ok(0)
    }
}

static FID_OPS: fi_ops = ops(close_set, None, None);

static OPS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(unite),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
};

entries! {
    fn unite(set: AvSet as fid_av_set, other: *const fid_av_set) -> c_int {
        // SAFETY: the caller passes another set.
        unsafe {
            set.change(other, |ours, theirs| {
                theirs.into_iter().for_each(|member| if !ours.contains(&member) { ours.push(member) });
            })
        }
    }

    fn intersect(set: AvSet as fid_av_set, other: *const fid_av_set) -> c_int {
        // SAFETY: the caller passes another set.
        unsafe { set.change(other, |ours, theirs| ours.retain(|member| theirs.contains(member))) }
    }

    fn diff(set: AvSet as fid_av_set, other: *const fid_av_set) -> c_int {
        // SAFETY: the caller passes another set.
        unsafe { set.change(other, |ours, theirs| ours.retain(|member| !theirs.contains(member))) }
    }

    fn insert(set: AvSet as fid_av_set, member: fi_addr_t) -> c_int {
        if set.av.address(member).is_none() {
            return Err(Error::Invalid("no address has this number"));
        }
        let mut members = set.members.lock();
        if members.contains(&member) {
            return Err(Error::Invalid("the set has this address already"));
        }
        members.push(member);
        Ok(0)
    }

    fn remove(set: AvSet as fid_av_set, member: fi_addr_t) -> c_int {
        let mut members = set.members.lock();
        let place = members.iter().position(|&known| known == member);
        members.remove(place.ok_or(Error::Invalid("the set has not this address"))?);
        Ok(0)
    }

    fn addr(set: AvSet as fid_av_set, out: *mut fi_addr_t) -> c_int {
        // The address by which `fi_join_collective` names the set's parent; the set itself says who the members are.
        let name = std::ptr::from_ref(set).addr() as fi_addr_t;
        let out = std::ptr::NonNull::new(out).ok_or(Error::Null)?;
        // SAFETY: the caller passes a place for the result.
        unsafe { out.write(name) };
        Ok(0)
    }
}

unsafe extern "C" fn close_set(raw: *mut fid) -> c_int {
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, |_: &AvSet| Ok(())) }
}
