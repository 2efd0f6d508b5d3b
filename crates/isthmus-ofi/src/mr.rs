//! `fid_mr`: registered memory.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use isthmus_io::Access;
use libc::iovec;

use crate::abi::{fi_mr_attr, fi_ops, fi_ops_mr, fid, fid_mr};
use crate::cntr::Cntr;
use crate::convert::{Plain, copy_prefix, piece, pieces};
use crate::domain::Domain;
use crate::door::{Guard, Object, close, entries, give};
use crate::error::Error;
use crate::fid::{head, ops};
use crate::flags::{
    FI_CLASS_CNTR, FI_CLASS_EP, FI_CLASS_MR, FI_ENABLE, FI_KEY_NOTAVAIL, FI_READ, FI_RECV, FI_REMOTE_READ,
    FI_REMOTE_WRITE, FI_RMA_EVENT, FI_SEND, FI_WRITE,
};
use crate::info::MR_IOV_LIMIT;
use crate::state::DomainState;

const ACCESS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

#[repr(C)]
struct Mr {
    raw: fid_mr,
    guard: Guard,
    domain: Arc<DomainState>,
    /// Whether peers may access it, so that it is in the domain's table.
    shared: bool,
}

// SAFETY: `repr(C)`, starting with `fid_mr`.
unsafe impl Object for Mr {
    fn guard(&self) -> &Guard {
        &self.guard
    }
}

// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_mr_attr {}

/// A registration that a program asks for.
struct Wanted<'a> {
    iov: &'a [iovec],
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    context: *mut c_void,
}

impl Wanted<'_> {
    fn check(&self) -> Result<(), Error> {
        // `FI_RMA_EVENT` needs no preparation; other flags are not supported.
        if self.flags & !FI_RMA_EVENT != 0 {
            return Err(Error::BadFlags(self.flags & !FI_RMA_EVENT));
        }
        if self.iov.len() > MR_IOV_LIMIT {
            return Err(Error::Invalid("a registration of more pieces than mr_iov_limit"));
        }
        if self.offset != 0 {
            return Err(Error::Invalid("the offset of a registration must be 0"));
        }
        if self.access & !ACCESS != 0 {
            return Err(Error::Invalid("an unknown kind of access"));
        }
        Ok(())
    }

    /// # Safety
    /// The memory stays valid until the registration is closed; `out` is null or writable.
    unsafe fn register(&self, domain: &Arc<DomainState>, out: *mut *mut fid_mr) -> Result<c_int, Error> {
        self.check()?;
        let access = Access {
            remote_read: self.access & FI_REMOTE_READ != 0,
            remote_write: self.access & FI_REMOTE_WRITE != 0,
        };
        let shared = access != Access::default();
        let wanted = (!domain.provider_keys).then_some(self.key);
        // Peers cannot access it by any key, so it must not have a key that we chose for another region.
        let mut key = wanted.unwrap_or(FI_KEY_NOTAVAIL);
        if shared {
            // SAFETY: by this function's contract.
            let made =
                unsafe { domain.regions.register(self.iov, wanted, access, domain.virtual_addressing) };
            key = made.map_err(|error| Error::NoKey(error.to_string()))?;
        }
        let raw =
            fid_mr { fid: head(FI_CLASS_MR, self.context, &FID_OPS), mem_desc: std::ptr::null_mut(), key };
        let mr = Mr { raw, guard: Guard::new(), domain: domain.clone(), shared };
        // SAFETY: by this function's contract.
        let given = unsafe { give(mr, out) };
        if given.is_err() && shared {
            domain.regions.deregister(key);
        }
        given.map(|()| 0)
    }
}

pub(crate) static OPS: fi_ops_mr =
    fi_ops_mr { size: size_of::<fi_ops_mr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

static FID_OPS: fi_ops = ops(close_mr, Some(bind), Some(control));

/// Length of the fields of `fi_mr_attr` that every libfabric has, up to authorization keys and device memory. Bytes.
const ATTR_LEN: usize = offset_of!(fi_mr_attr, auth_key_size);

entries! {
    fn reg(
        domain: Domain as fid, buf: *const c_void, len: usize, access: u64, offset: u64, key: u64, flags: u64,
        out: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int {
        let iov = piece(buf, len);
        let wanted = Wanted { iov: &iov, access, offset, key, flags, context };
        // SAFETY: the caller keeps the memory while it is registered.
        unsafe { wanted.register(&domain.state, out) }
    }

    fn regv(
        domain: Domain as fid, iov: *const iovec, count: usize, access: u64, offset: u64, key: u64, flags: u64,
        out: *mut *mut fid_mr, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        let wanted = Wanted { iov, access, offset, key, flags, context };
        // SAFETY: the caller keeps the memory while it is registered.
        unsafe { wanted.register(&domain.state, out) }
    }

    fn regattr(domain: Domain as fid, attr: *const fi_mr_attr, flags: u64, out: *mut *mut fid_mr) -> c_int {
        // SAFETY: the caller passes its attributes, of which all versions have this part.
        let attr = unsafe { copy_prefix(attr, ATTR_LEN) }.ok_or(Error::Null)?;
        // SAFETY: both members of the union are pointers; without flags it is the iovec.
        let iov = unsafe { attr.__bindgen_anon_1.mr_iov };
        // SAFETY: the caller passes as many pieces as it says.
        let iov = unsafe { pieces(iov, attr.iov_count) }?;
        let fi_mr_attr { access, offset, requested_key: key, context, .. } = attr;
        let wanted = Wanted { iov, access, offset, key, flags, context };
        // SAFETY: the caller keeps the memory while it is registered.
        unsafe { wanted.register(&domain.state, out) }
    }

    fn bind(mr: Mr as fid, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: the caller passes null or an object.
        match unsafe { other.as_ref() }.ok_or(Error::Null)?.fclass {
            // Every endpoint of the domain can access its regions already.
            FI_CLASS_EP => {}
            FI_CLASS_CNTR if !mr.shared => return Err(Error::Invalid("peers have no access to this memory")),
            FI_CLASS_CNTR if flags & !(FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 || flags == 0 => {
                return Err(Error::BadFlags(flags));
            }
            FI_CLASS_CNTR => {
                // SAFETY: the class says what it is.
                let counter = unsafe { &*other.cast::<Cntr>() }.counter.clone();
                mr.domain.regions.watch();
                mr.domain.observers.bind(mr.raw.key, counter, flags)?;
            }
            _ => return Err(Error::Unsupported("binding this kind of object to a memory region")),
        }
        Ok(0)
    }

    fn control(mr: Mr as fid, command: c_int, arg: *mut c_void) -> c_int {
        let _ = (mr, arg);
        if command == FI_ENABLE { Ok(0) } else { Err(Error::Unsupported("this control of a memory region")) }
    }
}

unsafe extern "C" fn close_mr(raw: *mut fid) -> c_int {
    let end = |mr: &Mr| {
        if mr.shared {
            mr.domain.regions.deregister(mr.raw.key);
            mr.domain.observers.forget_region(mr.raw.key);
        }
        Ok(())
    };
    // SAFETY: libfabric passes what `register` gave.
    unsafe { close(raw, end) }
}
