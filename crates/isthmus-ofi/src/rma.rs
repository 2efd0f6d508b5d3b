//! `fi_rma(3)`: reading and writing a peer's memory.

use std::ffi::c_void;

use isthmus_proto::{CompletionKind, Options, RemoteRange, RmaRequest};
use libc::iovec;

use crate::abi::{fi_addr_t, fi_msg_rma, fi_ops_rma, fid_ep};
use crate::call::Call;
use crate::convert::{array, length, piece, pieces};
use crate::door::entries;
use crate::ep::{Ep, target};
use crate::error::Error;
use crate::flags::FI_REMOTE_CQ_DATA;
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

/// Where at the peer.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
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

    /// With data if the flags of a `*msg` call say so.
    pub(crate) fn with_flagged_data(self, flags: u64, data: u64) -> Self {
        if flags & FI_REMOTE_CQ_DATA == 0 { self } else { self.with_data(data) }
    }

    fn request(self, live: &Live, options: Options, iov: &[iovec]) -> Result<RmaRequest, Error> {
        let remote = RemoteRange { key: self.key, addr: self.addr, len: length(iov) as u64 };
        Ok(RmaRequest { peer: target(live, self.peer)?, remote, data: self.data, options })
    }

    /// # Safety
    /// The buffers stay valid and unchanged until the completion is read.
    pub(crate) unsafe fn write(self, call: Call<'_>, iov: &[iovec]) -> Result<isize, Error> {
        check_inject(call.options, iov)?;
        call.post(CompletionKind::Write, iov, move |live, options, iov| {
            let request = self.request(live, options, iov)?;
            // SAFETY: by this function's contract.
            Ok(unsafe { live.engine().reliable()?.write(&request, iov) }?)
        })
    }

    /// # Safety
    /// The buffers stay valid and untouched until the completion is read.
    pub(crate) unsafe fn read(self, call: Call<'_>, iov: &[iovec]) -> Result<isize, Error> {
        call.post(CompletionKind::Read, iov, move |live, options, iov| {
            let request = self.request(live, options, iov)?;
            // SAFETY: by this function's contract.
            Ok(unsafe { live.engine().reliable()?.read(&request, iov) }?)
        })
    }
}

/// The parts of a `*msg` call: its one remote piece, as long as the local ones, and these.
///
/// # Safety
/// `msg` is valid for `'a`, with as many pieces as it says.
pub(crate) unsafe fn parts<'a>(
    msg: *const fi_msg_rma,
) -> Result<(Remote, &'a [iovec], &'a fi_msg_rma), Error> {
    // SAFETY: by this function's contract.
    let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
    // SAFETY: by this function's contract.
    let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
    // SAFETY: by this function's contract.
    let remote = unsafe { array(msg.rma_iov, msg.rma_iov_count) }?;
    let [remote] = remote else {
        return Err(Error::Invalid("exactly one remote piece is needed (rma_iov_limit)"));
    };
    if remote.len != length(iov) {
        return Err(Error::Invalid("local and remote pieces differ in length"));
    }
    Ok((Remote::new(msg.addr, remote.addr, remote.key), iov, msg))
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
        let (remote, iov, msg) = unsafe { parts(msg) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { remote.read(ep.tx_msg(flags, msg.context)?, iov) }
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
        let (remote, iov, msg) = unsafe { parts(msg) }?;
        let remote = remote.with_flagged_data(flags, msg.data);
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { remote.write(ep.tx_msg(flags, msg.context)?, iov) }
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
