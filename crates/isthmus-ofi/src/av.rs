//! `fid_av`: address vectors, which number the addresses that a program knows.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use isthmus_wire::Address;

use crate::abi::{
    FI_AV_MAP, FI_AV_TABLE, FI_AV_UNSPEC, fi_addr_t, fi_av_attr, fi_av_set_attr, fi_ops, fi_ops_av, fid,
    fid_av, fid_av_set, fid_xpu_ctx,
};
use crate::av_table::AvTable;
use crate::collective;
use crate::convert::{array, text};
use crate::door::{Guard, Object, close, entries, give, refusals};
use crate::eq::Eq;
use crate::error::Error;
use crate::events::{EventQueue, Failure};
use crate::fid::{head, ops, table};
use crate::flags::{
    FI_ADDR_NOTAVAIL, FI_AV_COMPLETE, FI_AV_USER_ID, FI_CLASS_AV, FI_CLASS_EQ, FI_EVENT, FI_FORMAT_UNSPEC,
    FI_MORE, FI_NUMERICHOST, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SYMMETRIC, FI_SYNC_ERR,
};
use crate::log::{self, Level};
use crate::resolve::{from_bytes, neighbour, resolve, to_bytes};
use crate::state::DomainState;

#[repr(C)]
pub(crate) struct Av {
    raw: fid_av,
    guard: Guard,
    domain: Arc<DomainState>,
    pub(crate) table: Arc<AvTable>,
    /// Insertions end with an event in the bound queue (`FI_EVENT`).
    asynchronous: bool,
    events: OnceLock<Arc<EventQueue>>,
}

// SAFETY: `repr(C)`, starting with `fid_av`.
unsafe impl Object for Av {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// Opens an address vector. It refuses names, and flags other than `FI_EVENT` and the hint `FI_SYMMETRIC`. Tables
/// shared between processes are not supported; old versions of MPICH crash if they are supported in part.
///
/// # Safety
/// `attr` is null or valid and writable; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; the structure never grew.
    let attr = unsafe { attr.as_mut() }.ok_or(Error::Null)?;
    if !attr.name.is_null() {
        return Err(Error::Unsupported("a named address vector"));
    }
    if attr.flags & !(FI_EVENT | FI_SYMMETRIC) != 0 {
        return Err(Error::BadFlags(attr.flags));
    }
    if attr.rx_ctx_bits != 0 {
        return Err(Error::Unsupported("an address vector for scalable endpoints"));
    }
    match attr.type_ {
        FI_AV_UNSPEC => attr.type_ = FI_AV_TABLE,
        FI_AV_MAP | FI_AV_TABLE => {}
        _ => return Err(Error::Invalid("an unknown type of address vector")),
    }
    let raw = fid_av { fid: head(FI_CLASS_AV, context, &FID_OPS), ops: table(&OPS) };
    let av = Av {
        raw,
        guard: Guard::new(),
        domain,
        table: Arc::default(),
        asynchronous: attr.flags & FI_EVENT != 0,
        events: OnceLock::new(),
    };
    // SAFETY: by this function's contract.
    unsafe { give(av, out) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_av, Some(bind), None);

static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(open_set),
    insert_auth_key: Some(no_insert_auth_key),
    lookup_auth_key: Some(no_lookup_auth_key),
    set_user_id: Some(set_user_id),
    lookup2: Some(no_lookup2),
};

/// The destination of the numbers and errors of an insertion.
struct Results<'a> {
    numbers: *mut fi_addr_t,
    /// The array of numbers has the program's names for the addresses in completions (`FI_AV_USER_ID`).
    named: bool,
    errors: *mut c_int,
    /// The queue that gets events, if the vector is asynchronous.
    events: Option<&'a EventQueue>,
    /// The vector and the insertion's context, as events name them.
    object: usize,
    context: usize,
}

impl<'a> Results<'a> {
    fn new(av: &'a Av, numbers: *mut fi_addr_t, flags: u64, context: *mut c_void) -> Result<Self, Error> {
        if flags & !(FI_MORE | FI_SYNC_ERR | FI_NUMERICHOST | FI_AV_USER_ID) != 0 {
            return Err(Error::BadFlags(flags));
        }
        let named = flags & FI_AV_USER_ID != 0;
        if named && numbers.is_null() {
            return Err(Error::Null);
        }
        let events = match (av.asynchronous, av.events.get()) {
            (false, _) => None,
            (true, _) if flags & FI_SYNC_ERR != 0 => return Err(Error::BadFlags(FI_SYNC_ERR)),
            (true, None) => return Err(Error::NoEq),
            (true, Some(events)) => Some(&**events),
        };
        let errors = if flags & FI_SYNC_ERR == 0 { std::ptr::null_mut() } else { context.cast() };
        let object = (&raw const av.raw.fid) as usize;
        Ok(Self { numbers, named, errors, events, object, context: context as usize })
    }

    /// The result of the insertion: the number of inserted addresses, or 0 if an event will report it.
    fn end(&self, inserted: c_int) -> c_int {
        let Some(events) = self.events else { return inserted };
        let words = [self.object as u64, self.context as u64, inserted as u64];
        events.write_entry(FI_AV_COMPLETE, words);
        0
    }

    /// Inserts one address, or notes why it cannot be.
    ///
    /// # Safety
    /// The arrays are null or have more than `index` elements.
    unsafe fn put(&self, table: &AvTable, index: usize, address: Result<Address, Error>) -> bool {
        let (number, errno) = match address {
            Ok(address) => (table.insert(address), 0),
            Err(error) => {
                log::write(Level::Warn, format_args!("address {index} of an insertion: {error}"));
                (FI_ADDR_NOTAVAIL, error.errno())
            }
        };
        if let (Some(events), true) = (self.events, errno != 0) {
            let Self { object, context, .. } = *self;
            events.fail(Failure { object, context, index: index as u64, errno });
        }
        if self.named {
            // SAFETY: by this function's contract; not null, or this would not have been made.
            table.set_name(number, unsafe { self.numbers.add(index).read() });
        }
        if !self.numbers.is_null() {
            // SAFETY: by this function's contract.
            unsafe { self.numbers.add(index).write(number) };
        }
        if !self.errors.is_null() {
            // SAFETY: by this function's contract.
            unsafe { self.errors.add(index).write(errno) };
        }
        errno == 0
    }
}

/// Length of an address in a domain of this format. Bytes. The addresses of an insertion lie one behind the other,
/// whatever is in them. If the format leaves the length open, the family of the first address tells it.
///
/// # Safety
/// `first` has as many readable bytes as tell its family.
unsafe fn stride(format: u32, first: *const u8) -> Result<usize, Error> {
    const V4: usize = size_of::<libc::sockaddr_in>();
    const V6: usize = size_of::<libc::sockaddr_in6>();
    if let FI_SOCKADDR_IN | FI_SOCKADDR_IN6 = format {
        return Ok(if format == FI_SOCKADDR_IN { V4 } else { V6 });
    }
    // SAFETY: by this function's contract.
    let family = unsafe { array(first, size_of::<libc::sa_family_t>()) }?;
    Ok(match family.first_chunk().map(|family| i32::from(u16::from_ne_bytes(*family))) {
        Some(libc::AF_INET) => V4,
        Some(libc::AF_INET6) => V6,
        _ if format == FI_FORMAT_UNSPEC => Address::LEN,
        // Assumes the shortest socket address.
        _ => V4,
    })
}

entries! {
    fn insert(
        av: Av as fid_av, addresses: *const c_void, count: usize, numbers: *mut fi_addr_t, flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let results = Results::new(av, numbers, flags, context)?;
        if count == 0 {
            return Ok(results.end(0));
        }
        let start = addresses.cast::<u8>();
        // SAFETY: the caller passes at least one address.
        let stride = unsafe { stride(av.domain.addr_format, start) }?;
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: the caller passes `count` addresses of this length.
            let bytes = unsafe { array(start.add(index * stride), stride) }?;
            // SAFETY: the caller's arrays have `count` elements.
            inserted += c_int::from(unsafe { results.put(&av.table, index, from_bytes(bytes)) });
        }
        Ok(results.end(inserted))
    }

    fn insertsvc(
        av: Av as fid_av, node: *const c_char, service: *const c_char, numbers: *mut fi_addr_t, flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let results = Results::new(av, numbers, flags, context)?;
        // SAFETY: null or a terminated string.
        let node = unsafe { text(node) }?;
        // SAFETY: null or a terminated string.
        let service = unsafe { text(service) }?;
        let address = resolve(node, service, flags & FI_NUMERICHOST != 0);
        // SAFETY: the caller's arrays have one element.
        Ok(results.end(c_int::from(unsafe { results.put(&av.table, 0, address) })))
    }

    fn insertsym(
        av: Av as fid_av, node: *const c_char, nodes: usize, service: *const c_char, services: usize,
        numbers: *mut fi_addr_t, flags: u64, context: *mut c_void,
    ) -> c_int {
        let results = Results::new(av, numbers, flags, context)?;
        // SAFETY: null or a terminated string.
        let node = unsafe { text(node) }?.ok_or(Error::Null)?;
        // SAFETY: null or a terminated string.
        let service = unsafe { text(service) }?.ok_or(Error::Null)?;
        let mut inserted = 0;
        for index in 0..nodes.saturating_mul(services) {
            let node = neighbour(node, index / services)?;
            let service = neighbour(service, index % services)?;
            let address = resolve(Some(&node), Some(&service), flags & FI_NUMERICHOST != 0);
            // SAFETY: the caller's arrays have `nodes * services` elements.
            inserted += c_int::from(unsafe { results.put(&av.table, index, address) });
        }
        Ok(results.end(inserted))
    }

    fn remove(av: Av as fid_av, numbers: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        // SAFETY: the caller passes `count` numbers.
        let numbers = unsafe { array(numbers, count) }?;
        let mut all_known = true;
        for &number in numbers {
            all_known &= av.table.remove(number);
        }
        if all_known { Ok(0) } else { Err(Error::Invalid("removal of an address that is not there")) }
    }

    fn lookup(av: Av as fid_av, number: fi_addr_t, out: *mut c_void, len: *mut usize) -> c_int {
        let address = av.table.address(number).ok_or(Error::Invalid("no address has this number"))?;
        // SAFETY: the caller passes a length and as many writable bytes.
        unsafe { write_address(&to_bytes(address, av.domain.socket_addresses()), out, len) }?;
        Ok(0)
    }

    fn set_user_id(av: Av as fid_av, number: fi_addr_t, name: fi_addr_t, flags: u64) -> c_int {
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        if av.table.set_name(number, name) { Ok(0) } else { Err(Error::Invalid("no address has this number")) }
    }

    fn open_set(
        av: Av as fid_av, attr: *mut fi_av_set_attr, out: *mut *mut fid_av_set, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes its attributes and a place for the result.
        unsafe { collective::open_set(av.table.clone(), attr, out, context) }
    }

    fn straddr(av: Av as fid_av, address: *const c_void, out: *mut c_char, len: *mut usize) -> *const c_char {
        // SAFETY: the caller passes an address.
        let stride = unsafe { stride(av.domain.addr_format, address.cast()) }?;
        // SAFETY: as many bytes as its kind has.
        let bytes = unsafe { array(address.cast::<u8>(), stride) }?;
        // SAFETY: the caller passes a length and as many writable bytes.
        unsafe { write_text(&from_bytes(bytes)?.to_string(), out, len) }?;
        Ok(out)
    }

    fn bind(av: Av as fid, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: the caller passes null or an object.
        let class = unsafe { other.as_ref() }.ok_or(Error::Null)?.fclass;
        if flags != 0 {
            return Err(Error::BadFlags(flags));
        }
        if class != FI_CLASS_EQ {
            return Err(Error::Invalid("only an event queue can be bound to an address vector"));
        }
        // SAFETY: its class says what it is.
        let eq = unsafe { &*other.cast::<Eq>() };
        let bound = av.events.set(eq.queue.clone());
        bound.map(|()| 0).map_err(|_| Error::BadState("the address vector has an event queue already"))
    }
}

/// Writes as much of an address as fits, and its length. True if all of it fitted.
///
/// # Safety
/// `len` is null or writable, and `out` has as many writable bytes as it says.
pub(crate) unsafe fn write_address(bytes: &[u8], out: *mut c_void, len: *mut usize) -> Result<bool, Error> {
    // SAFETY: by this function's contract.
    let len = unsafe { len.as_mut() }.ok_or(Error::Null)?;
    let room = if out.is_null() { 0 } else { *len };
    // SAFETY: by this function's contract.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast::<u8>(), room.min(bytes.len())) };
    *len = bytes.len();
    Ok(room >= bytes.len())
}

/// # Safety
/// As for [`write_address`].
unsafe fn write_text(text: &str, out: *mut c_char, len: *mut usize) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    let len = unsafe { len.as_mut() }.ok_or(Error::Null)?;
    if out.is_null() || *len == 0 {
        *len = text.len() + 1;
        return Ok(());
    }
    let fits = text.len().min(*len - 1);
    // SAFETY: at most as many bytes as the caller has room for, less one.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), fits) };
    // SAFETY: the last byte of the room, or before it.
    unsafe { out.add(fits).write(0) };
    *len = text.len() + 1;
    Ok(())
}

unsafe extern "C" fn close_av(raw: *mut fid) -> c_int {
    let unused = |av: &Av| match Arc::strong_count(&av.table) {
        1 => Ok(()),
        _ => Err(Error::Busy("the address vector is bound to an endpoint, or has sets")),
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, unused) }
}

refusals! {
    fn no_insert_auth_key(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int;
    fn no_lookup_auth_key(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int;
    fn no_lookup2(*mut fid_av, fi_addr_t, *mut c_void, *mut usize, u64, *mut fid_xpu_ctx) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::FI_SOCKADDR;

    #[test]
    fn the_domains_format_tells_how_long_addresses_are() {
        let len = |format, family: i32| {
            let first = (family as u16).to_ne_bytes();
            // SAFETY: the bytes of a family.
            unsafe { stride(format, first.as_ptr()) }.expect("not null")
        };
        for family in [libc::AF_INET, libc::AF_INET6, 0] {
            assert_eq!((len(FI_SOCKADDR_IN, family), len(FI_SOCKADDR_IN6, family)), (16, 28));
        }
        assert_eq!(
            [libc::AF_INET, libc::AF_INET6, 0].map(|family| len(FI_FORMAT_UNSPEC, family)),
            [16, 28, 64]
        );
        assert_eq!([libc::AF_INET, libc::AF_INET6, 0].map(|family| len(FI_SOCKADDR, family)), [16, 28, 16]);
    }
}
