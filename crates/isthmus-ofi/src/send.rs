//! The common part of untagged and tagged messages.

use std::ffi::c_void;
use std::sync::Arc;

use isthmus_proto::{Channel, CompletionKind, Options, RecvRequest, SendRequest};
use libc::iovec;

use crate::abi::fi_addr_t;
use crate::call::Call;
use crate::convert::length;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::{FI_REMOTE_CQ_DATA, FI_SEND};
use crate::live::Live;
use crate::trigger::When;

/// A message to send.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) channel: Channel,
    pub(crate) tag: u64,
    pub(crate) dest: fi_addr_t,
    pub(crate) data: Option<u64>,
}

impl Outgoing {
    pub(crate) fn untagged(dest: fi_addr_t) -> Self {
        Self { channel: Channel::Untagged, tag: 0, dest, data: None }
    }

    pub(crate) fn tagged(dest: fi_addr_t, tag: u64) -> Self {
        Self { channel: Channel::Tagged, tag, dest, data: None }
    }

    pub(crate) fn with_data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Adds data if the flags of a `*msg` call say so.
    pub(crate) fn with_flagged_data(self, flags: u64, data: u64) -> Self {
        if flags & FI_REMOTE_CQ_DATA == 0 { self } else { self.with_data(data) }
    }

    /// Sends with the endpoint's default options.
    ///
    /// # Safety
    /// The buffers stay valid and unchanged until the completion is read.
    #[inline]
    pub(crate) unsafe fn send(self, ep: &Ep, iov: &[iovec], context: *mut c_void) -> Result<isize, Error> {
        // SAFETY: by this function's contract.
        unsafe { self.post(ep.tx(context)?, iov) }
    }

    /// Sends with the flags of a `*msg` call.
    ///
    /// # Safety
    /// As for [`Outgoing::send`].
    pub(crate) unsafe fn send_msg(
        self,
        ep: &Ep,
        iov: &[iovec],
        flags: u64,
        context: *mut c_void,
    ) -> Result<isize, Error> {
        // SAFETY: by this function's contract.
        unsafe { self.post(ep.tx_msg(flags, context)?, iov) }
    }

    /// Sends a copy, without a completion.
    ///
    /// # Safety
    /// The buffers are readable during the call.
    #[inline]
    pub(crate) unsafe fn inject(self, ep: &Ep, iov: &[iovec]) -> Result<isize, Error> {
        // SAFETY: by this function's contract; injected buffers are copied.
        unsafe { self.post(ep.tx_inject()?, iov) }
    }

    /// # Safety
    /// As for [`Outgoing::send`].
    #[inline(always)]
    pub(crate) unsafe fn post(self, call: Call<'_>, iov: &[iovec]) -> Result<isize, Error> {
        check_inject(&call, iov)?;
        let Self { channel, tag, dest, data } = self;
        call.post(CompletionKind::Send(channel), iov, move |live, options, iov| {
            if channel == Channel::Untagged {
                live.note_post();
            }
            let options = Options { silent: !options.notify && !live.counts(FI_SEND), ..options };
            let request = SendRequest { peer: live.target(dest)?, channel, tag, data, options };
            // SAFETY: by this function's contract.
            unsafe { live.engine().send(&request, iov) }
        })
    }
}

/// Checks that an injected buffer is short enough.
#[inline]
pub(crate) fn check_inject(call: &Call<'_>, iov: &[iovec]) -> Result<(), Error> {
    let most = call.live.inject_max();
    if call.options.inject && length(iov) > most { Err(Error::TooLong(most)) } else { Ok(()) }
}

/// Posts a receive.
///
/// # Safety
/// The buffers stay valid and untouched until the completion is read.
#[inline(always)]
pub(crate) unsafe fn post_recv(call: Call<'_>, request: RecvRequest, iov: &[iovec]) -> Result<isize, Error> {
    let Call { live, when, .. } = call;
    // A completion gives the position of its message by one address, so the buffer must be contiguous.
    if request.multi.is_some() && iov.len() > 1 {
        return Err(Error::Invalid("a multi-receive buffer of several pieces"));
    }
    if let Some(when) = when {
        // SAFETY: by this function's contract.
        return unsafe { post_recv_later(live, when, request, iov) };
    }
    // SAFETY: by this function's contract.
    unsafe { live.engine().recv(&request, iov) }.map(|()| 0)
}

/// As [`post_recv`], once a counter has reached its threshold.
///
/// # Safety
/// As for [`post_recv`].
#[cold]
#[inline(never)]
unsafe fn post_recv_later(
    live: &Arc<Live>,
    when: When,
    request: RecvRequest,
    iov: &[iovec],
) -> Result<isize, Error> {
    if request.multi.is_some() {
        return Err(Error::Unsupported("a multi-receive that waits for a counter"));
    }
    let call = Call { live, options: request.options, when: Some(when) };
    call.post(CompletionKind::Recv(request.channel), iov, move |live, _, iov| {
        // SAFETY: by this function's contract.
        unsafe { live.engine().recv(&request, iov) }
    })
}
