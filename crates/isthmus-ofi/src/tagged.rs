//! `fi_tagged(3)`: tagged messages, and searches of unexpected ones.

use std::ffi::c_void;

use isthmus_proto::{Channel, Options, PeekAction, PeekRequest, RecvRequest};
use libc::iovec;

use crate::abi::{fi_addr_t, fi_msg_tagged, fi_ops_tagged, fid_ep};
use crate::call::Call;
use crate::convert::{piece, pieces};
use crate::door::entries;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::{FI_CLAIM, FI_COMPLETION, FI_DISCARD, FI_MORE, FI_PEEK, FI_TRIGGER};
use crate::send::{Outgoing, post_recv};

const FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_PEEK | FI_CLAIM | FI_DISCARD | FI_TRIGGER;

pub(crate) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

#[inline(always)]
pub(crate) fn incoming(
    call: &Call<'_>,
    source: fi_addr_t,
    tag: u64,
    ignore: u64,
) -> Result<RecvRequest, Error> {
    let (source, options) = (call.live.source(source)?, call.receive_options());
    Ok(RecvRequest { source, channel: Channel::Tagged, tag, ignore, multi: None, options })
}

/// A receive with flags: plain, a search, or the end of a search.
///
/// # Safety
/// As for [`post_recv`].
unsafe fn recv_flagged(
    call: Call<'_>,
    request: RecvRequest,
    iov: &[iovec],
    flags: u64,
) -> Result<isize, Error> {
    let RecvRequest { source, tag, ignore, options, .. } = request;
    if call.when.is_some() && flags & (FI_PEEK | FI_CLAIM) != 0 {
        return Err(Error::Unsupported("a search that waits for a counter"));
    }
    let live = call.live;
    // A search's only result is its completion, so it is always reported.
    let options = Options { notify: true, ..options };
    let look = |action| PeekRequest { source, tag, ignore, action, options };
    match (flags & FI_PEEK != 0, flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
        // SAFETY: by this function's contract.
        (false, false, false) => return unsafe { post_recv(call, request, iov) },
        (true, false, false) => live.engine().reliable()?.peek(&look(PeekAction::Look))?,
        (true, true, false) => live.engine().reliable()?.peek(&look(PeekAction::Claim))?,
        (true, false, true) => live.engine().reliable()?.peek(&look(PeekAction::Discard))?,
        // SAFETY: by this function's contract.
        (false, true, discard) => unsafe { live.engine().reliable()?.claim(&request, iov, discard) }?,
        _ => return Err(Error::Invalid("FI_DISCARD goes with either FI_PEEK or FI_CLAIM")),
    }
    Ok(0)
}

entries! {
    fn recv(
        ep: Ep as fid_ep, buf: *mut c_void, len: usize, _desc: *mut c_void, source: fi_addr_t, tag: u64,
        ignore: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx(context) }?;
        let request = incoming(&call, source, tag, ignore)?;
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { post_recv(call, request, &piece(buf, len)) }
    }

    fn recvv(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, source: fi_addr_t,
        tag: u64, ignore: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx(context) }?;
        let request = incoming(&call, source, tag, ignore)?;
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { post_recv(call, request, iov) }
    }

    fn recvmsg(ep: Ep as fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
        if flags & !FLAGS != 0 {
            return Err(Error::BadFlags(flags & !FLAGS));
        }
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx_msg(flags, msg.context) }?;
        let request = incoming(&call, msg.addr, msg.tag, msg.ignore)?;
        // SAFETY: the message has as many pieces as it says.
        let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { recv_flagged(call, request, iov, flags) }
    }

    fn send(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, dest: fi_addr_t, tag: u64,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Outgoing::tagged(dest, tag).send(ep, &piece(buf, len), context) }
    }

    fn sendv(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, dest: fi_addr_t,
        tag: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { Outgoing::tagged(dest, tag).send(ep, iov, context) }
    }

    fn sendmsg(ep: Ep as fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
        // SAFETY: the message has as many pieces as it says.
        let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
        let message = Outgoing::tagged(msg.addr, msg.tag).with_flagged_data(flags, msg.data);
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { message.send_msg(ep, iov, flags, msg.context) }
    }

    fn inject(ep: Ep as fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t, tag: u64) -> isize {
        // SAFETY: the buffer is readable during the call.
        unsafe { Outgoing::tagged(dest, tag).inject(ep, &piece(buf, len)) }
    }

    fn senddata(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, data: u64, dest: fi_addr_t,
        tag: u64, context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Outgoing::tagged(dest, tag).with_data(data).send(ep, &piece(buf, len), context) }
    }

    fn injectdata(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, data: u64, dest: fi_addr_t, tag: u64,
    ) -> isize {
        // SAFETY: the buffer is readable during the call.
        unsafe { Outgoing::tagged(dest, tag).with_data(data).inject(ep, &piece(buf, len)) }
    }
}
