//! An endpoint's name, the groups that it joins, and the connection calls, which reliable datagrams do not have.

use std::ffi::{c_int, c_void};

use crate::abi::{fi_ops_cm, fid, fid_ep, fid_mc, fid_pep};
use crate::av::write_address;
use crate::collective;
use crate::convert::array;
use crate::door::{entries, refusals};
use crate::endpoint::Ep;
use crate::error::Error;
use crate::resolve::{from_bytes, sockaddr, to_bytes};

pub(crate) static OPS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(no_getpeer),
    connect: Some(no_connect),
    listen: Some(no_listen),
    accept: Some(no_accept),
    reject: Some(no_reject),
    shutdown: Some(no_shutdown),
    join: Some(join),
};

entries! {
    fn getname(ep: Ep as fid, out: *mut c_void, len: *mut usize) -> c_int {
        let address = to_bytes(ep.state.engine()?.address(), ep.state.socket_addresses());
        // SAFETY: the caller passes a length and as many writable bytes.
        if unsafe { write_address(&address, out, len) }? { Ok(0) } else { Err(Error::TooSmall) }
    }

    fn setname(ep: Ep as fid, name: *mut c_void, len: usize) -> c_int {
        if ep.state.is_open() {
            return Err(Error::BadState("the endpoint listens already"));
        }
        // SAFETY: the caller passes `len` bytes.
        let bytes = unsafe { array(name.cast::<u8>(), len) }?;
        let locator = sockaddr(bytes).map_or_else(|| from_bytes(bytes).map(|address| address.locator), Ok)?;
        *ep.state.bind.lock() = Some(locator);
        Ok(0)
    }

    fn join(
        ep: Ep as fid_ep, addr: *const c_void, flags: u64, out: *mut *mut fid_mc, context: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller passes what the flags say, and a place for the result.
        unsafe { collective::join(ep, addr, flags, out, context) }
    }
}

refusals! {
    fn no_getpeer(*mut fid_ep, *mut c_void, *mut usize) -> c_int;
    fn no_connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int;
    fn no_listen(*mut fid_pep) -> c_int;
    fn no_accept(*mut fid_ep, *const c_void, usize) -> c_int;
    fn no_reject(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int;
    fn no_shutdown(*mut fid_ep, u64) -> c_int;
}
