//! `fi_msg(3)`: untagged messages.

use std::ffi::c_void;

use isthmus_proto::{Channel, RecvRequest};
use libc::iovec;

use crate::abi::{fi_addr_t, fi_msg, fi_ops_msg, fid_ep};
use crate::call::Call;
use crate::convert::{piece, pieces};
use crate::door::entries;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::send::{Outgoing, post_recv};

pub(crate) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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
pub(crate) fn incoming(call: &Call<'_>, source: fi_addr_t, multi: Option<u64>) -> Result<RecvRequest, Error> {
    let (source, options) = (call.live.source(source)?, call.receive_options());
    Ok(RecvRequest { source, channel: Channel::Untagged, tag: 0, ignore: 0, multi, options })
}

entries! {
    fn recv(
        ep: Ep as fid_ep, buf: *mut c_void, len: usize, _desc: *mut c_void, source: fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx(context) }?;
        let request = incoming(&call, source, ep.default_multi())?;
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { post_recv(call, request, &piece(buf, len)) }
    }

    fn recvv(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, source: fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx(context) }?;
        let request = incoming(&call, source, ep.default_multi())?;
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { post_recv(call, request, iov) }
    }

    fn recvmsg(ep: Ep as fid_ep, msg: *const fi_msg, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
        let unknown = flags & !ep.state.kind().rx_flags();
        if unknown != 0 {
            return Err(Error::BadFlags(unknown));
        }
        // SAFETY: the caller passes the context that its flags ask for.
        let call = unsafe { ep.rx_msg(flags, msg.context) }?;
        let request = incoming(&call, msg.addr, ep.multi(flags))?;
        // SAFETY: the message has as many pieces as it says.
        let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { post_recv(call, request, iov) }
    }

    fn send(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, dest: fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Outgoing::untagged(dest).send(ep, &piece(buf, len), context) }
    }

    fn sendv(
        ep: Ep as fid_ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, dest: fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller passes `count` pieces.
        let iov = unsafe { pieces(iov, count) }?;
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { Outgoing::untagged(dest).send(ep, iov, context) }
    }

    fn sendmsg(ep: Ep as fid_ep, msg: *const fi_msg, flags: u64) -> isize {
        // SAFETY: the caller passes null or its message.
        let msg = unsafe { msg.as_ref() }.ok_or(Error::Null)?;
        // SAFETY: the message has as many pieces as it says.
        let iov = unsafe { pieces(msg.msg_iov, msg.iov_count) }?;
        let message = Outgoing::untagged(msg.addr).with_flagged_data(flags, msg.data);
        // SAFETY: the caller lends the buffers until the completion is read.
        unsafe { message.send_msg(ep, iov, flags, msg.context) }
    }

    fn inject(ep: Ep as fid_ep, buf: *const c_void, len: usize, dest: fi_addr_t) -> isize {
        // SAFETY: the buffer is readable during the call.
        unsafe { Outgoing::untagged(dest).inject(ep, &piece(buf, len)) }
    }

    fn senddata(
        ep: Ep as fid_ep, buf: *const c_void, len: usize, _desc: *mut c_void, data: u64, dest: fi_addr_t,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: the caller lends the buffer until the completion is read.
        unsafe { Outgoing::untagged(dest).with_data(data).send(ep, &piece(buf, len), context) }
    }

    fn injectdata(ep: Ep as fid_ep, buf: *const c_void, len: usize, data: u64, dest: fi_addr_t) -> isize {
        // SAFETY: the buffer is readable during the call.
        unsafe { Outgoing::untagged(dest).with_data(data).inject(ep, &piece(buf, len)) }
    }
}
