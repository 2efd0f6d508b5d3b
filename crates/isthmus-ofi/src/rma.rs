//! `fi_rma(3)`: reading and writing a peer's memory.

use std::ffi::c_void;

use isthmus_proto::{CompletionKind, Options, RemoteRange, RmaRequest};
use libc::iovec;

use crate::abi::{fi_addr_t, fi_msg_rma, fi_ops_rma, fi_rma_iov, fid_ep};
use crate::call::{Call, post_parts};
use crate::convert::{array, cut, length, piece, pieces};
use crate::door::entries;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::FI_REMOTE_CQ_DATA;
use crate::info::Kind;
use crate::live::Live;
use crate::send::check_inject;

pub(crate) static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// A range of the peer's memory.
#[derive(Clone, Copy)]
struct Remote {
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    data: Option<u64>,
}

impl Remote {
    fn new(peer: fi_addr_t, addr: u64, key: u64) -> Self {
        Self { peer, addr, key, data: None }
    }

    fn with_data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    fn request(self, live: &Live, options: Options, iov: &[iovec]) -> Result<RmaRequest, Error> {
        let remote = RemoteRange { key: self.key, addr: self.addr, len: length(iov) as u64 };
        Ok(RmaRequest { peer: live.target(self.peer)?, remote, data: self.data, options })
    }

    /// # Safety
    /// The buffers stay valid and unchanged until the completion is read.
    unsafe fn write(self, call: Call<'_>, iov: &[iovec]) -> Result<isize, Error> {
        check_inject(&call, iov)?;
        call.post(CompletionKind::Write, iov, move |live, options, iov| {
            let request = self.request(live, options, iov)?;
            // SAFETY: by this function's contract.
            Ok(unsafe { live.engine().reliable()?.write(&request, iov) }?)
        })
    }

    /// # Safety
    /// The buffers stay valid and untouched until the completion is read.
    unsafe fn read(self, call: Call<'_>, iov: &[iovec]) -> Result<isize, Error> {
        call.post(CompletionKind::Read, iov, move |live, options, iov| {
            let request = self.request(live, options, iov)?;
            // SAFETY: by this function's contract.
            Ok(unsafe { live.engine().reliable()?.read(&request, iov) }?)
        })
    }
}

/// Several ranges of the peer's memory. The local buffer holds them one behind the other.
struct Scattered {
    peer: fi_addr_t,
    places: Vec<RemoteRange>,
    data: Option<u64>,
}

impl Scattered {
    /// # Safety
    /// The buffers stay valid, and unchanged or untouched, until the completion is read.
    unsafe fn post(self, call: Call<'_>, kind: CompletionKind, iov: &[iovec]) -> Result<isize, Error> {
        call.post(kind, iov, move |live, options, iov| {
            let peer = live.target(self.peer)?;
            let engine = live.engine().reliable()?;
            let starts =
                self.places.iter().scan(0, |end, place| Some(std::mem::replace(end, *end + place.len)));
            let parts: Vec<_> = starts.zip(&self.places).collect();
            post_parts(live, kind, options, &parts, self.data.is_some(), |&(start, place), options, last| {
                let iov = cut(iov, start as usize, place.len as usize);
                let data = self.data.filter(|_| last);
                let request = RmaRequest { peer, remote: *place, data, options };
                match kind {
                    // SAFETY: by this function's contract.
                    CompletionKind::Read => unsafe { engine.read(&request, &iov) },
                    // SAFETY: by this function's contract.
                    _ => unsafe { engine.write(&request, &iov) },
                }?;
                Ok(())
            })
        })
    }
}

/// Posts the write or read that a message describes.
///
/// # Safety
/// `msg` is null or valid, with as many pieces as it says; the buffers behind stay valid, and unchanged or
/// untouched, until the completion is read.
pub(crate) unsafe fn post_call(
    call: Call<'_>,
    kind: CompletionKind,
    msg: *const fi_msg_rma,
    flags: u64,
) -> Result<isize, Error> {
    // SAFETY: by this function's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
    // SAFETY: by this function's contract.
    let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
    // SAFETY: by this function's contract.
    let places = unsafe { array(msg.rma_iov, msg.rma_iov_count) }?;
    check_remote_pieces(&call, places.len())?;
    let total = places.iter().try_fold(0, |all: usize, place| all.checked_add(place.len));
    if total != Some(length(iov)) {
        return Err(Error::Invalid("local and remote pieces differ in length"));
    }
    let write = kind == CompletionKind::Write;
    let data = (write && flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    if let [place] = places {
        let remote = Remote { peer: msg.addr, addr: place.addr, key: place.key, data };
        // SAFETY: by this function's contract.
        return if write { unsafe { remote.write(call, iov) } } else { unsafe { remote.read(call, iov) } };
    }
    if write {
        check_inject(&call, iov)?;
    }
    let range = |place: &fi_rma_iov| RemoteRange { key: place.key, addr: place.addr, len: place.len as u64 };
    let scattered = Scattered { peer: msg.addr, places: places.iter().map(range).collect(), data };
    // SAFETY: by this function's contract.
    unsafe { scattered.post(call, kind, iov) }
}

/// Checks that one call may name `count` pieces of the peer's memory.
pub(crate) fn check_remote_pieces(call: &Call<'_>, count: usize) -> Result<(), Error> {
    let most = Kind::Reliable.remote_pieces(call.live.caps());
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Error::Invalid("no remote piece, or more than rma_iov_limit"))
}

entries! {
    fn read(
        ep: Ep as fid_ep, buf: *mut c_void, len: usize, _desc: *mut c_void, source: fi_addr_t, addr: u64,
        key: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Remote::new(source, addr, key).read(ep.tx(context)?, &piece(buf, len)) }
    }

    fn readv(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, source: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { Remote::new(source, addr, key).read(ep.tx(context)?, iov) }
    }

    fn readmsg(ep: Ep as fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let context = unsafe { msg.as_ref() }.ok_or(Error::Null)?.context;
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { post_call(ep.tx_msg(flags, context)?, CompletionKind::Read, msg, flags) }
    }

    fn write(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, dest: fi_addr_t, addr: u64,
        key: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Remote::new(dest, addr, key).write(ep.tx(context)?, &piece(buf, len)) }
    }

    fn writev(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, dest: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { Remote::new(dest, addr, key).write(ep.tx(context)?, iov) }
    }

    fn writemsg(ep: Ep as fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let context = unsafe { msg.as_ref() }.ok_or(Error::Null)?.context;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { post_call(ep.tx_msg(flags, context)?, CompletionKind::Write, msg, flags) }
    }

    fn inject(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t, addr: u64, key: u64,
    ) -> isize {
        // SAFETY: the buffer is readable during the call.
        unsafe { Remote::new(dest, addr, key).write(ep.tx_inject()?, &piece(buf, len)) }
    }

    fn writedata(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, data: u64, dest: fi_addr_t,
        addr: u64, key: u64, context: *mut c_void,
    ) -> isize {
        let remote = Remote::new(dest, addr, key).with_data(data);
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { remote.write(ep.tx(context)?, &piece(buf, len)) }
    }

    fn injectdata(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, data: u64, dest: fi_addr_t, addr: u64, key: u64,
    ) -> isize {
        let remote = Remote::new(dest, addr, key).with_data(data);
        // SAFETY: the buffer is readable during the call.
        unsafe { remote.write(ep.tx_inject()?, &piece(buf, len)) }
    }
}
