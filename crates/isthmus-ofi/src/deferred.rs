//! Work that a domain defers until a counter reaches a threshold (`FI_QUEUE_WORK`).
//!
//! The description of the work is copied when it is queued, including the lists of buffer pieces. The buffers
//! themselves are not touched before the work starts. Its end is counted by a counter of its own, and reported to the
//! endpoint's queue and counters only with `FI_COMPLETION`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use isthmus_abi::trigger::*;
use isthmus_proto::{AtomicKind, CompletionKind};

use crate::abi::fid_ep;
use crate::atomic::{NONE, post_call};
use crate::call::Call;
use crate::cntr::of_trigger;
use crate::convert::pieces;
use crate::counter::Counter;
use crate::door::of_class;
use crate::endpoint::Ep;
use crate::error::Error;
use crate::flags::*;
use crate::send::{Outgoing, post_recv};
use crate::trigger::{Board, Job, When};
use crate::{msg, rma, tagged};

/// `fi_control` of a domain.
///
/// # Safety
/// `arg` is what the command takes (`fi_trigger(3)`).
pub(crate) unsafe fn control(board: &Arc<Board>, command: c_int, arg: *mut c_void) -> Result<c_int, Error> {
    match command {
        FI_QUEUE_WORK => {
            // SAFETY: by this function's contract.
            let work = unsafe { arg.cast::<fi_deferred_work>().as_ref() }.ok_or(Error::Null)?;
            // SAFETY: by this function's contract.
            unsafe { queue(board, work) }?;
        }
        FI_CANCEL_WORK if arg.is_null() => return Err(Error::Null),
        FI_CANCEL_WORK => {
            if !board.drop_work(Some(arg.addr())) {
                return Ok(-libc::ENOENT);
            }
        }
        FI_FLUSH_WORK if arg.is_null() => {
            board.drop_work(None);
        }
        _ => return Err(Error::Unsupported("this control of a domain")),
    }
    Ok(0)
}

/// # Safety
/// `work` is as `fi_trigger(3)` says: its pointers lead to what its `op_type` names.
unsafe fn queue(board: &Arc<Board>, work: &fi_deferred_work) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    let trigger = unsafe { of_trigger(work.triggering_cntr) }?;
    let when = When::new(trigger, work.threshold, std::ptr::from_ref(work).addr());
    let completion = if work.completion_cntr.is_null() {
        None
    } else {
        // SAFETY: by this function's contract.
        Some(unsafe { of_trigger(work.completion_cntr) }?)
    };
    match work.op_type {
        FI_OP_CNTR_SET | FI_OP_CNTR_ADD if completion.is_some() => {
            Err(Error::Invalid("work on a counter has no completion counter"))
        }
        FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
            // SAFETY: the type says what it is, by this function's contract.
            let op = unsafe { work.op.cntr.as_ref() }.ok_or(Error::Null)?;
            // SAFETY: by this function's contract.
            let (counter, value) = (unsafe { of_trigger(op.cntr) }?, op.value);
            let set = work.op_type == FI_OP_CNTR_SET;
            board.defer(when, if set { Job::Set { counter, value } } else { Job::Add { counter, value } });
            Ok(())
        }
        // SAFETY: by this function's contract.
        _ => unsafe { transfer(work, when, completion) },
    }
}

/// # Safety
/// As for [`queue`].
unsafe fn transfer(
    work: &fi_deferred_work,
    when: When,
    completion: Option<Arc<Counter>>,
) -> Result<(), Error> {
    // SAFETY: by this function's contract.
    let (ep, context, flags) = unsafe { subject(work) }?;
    let live = ep.live()?;
    let refused = flags & (FI_TRIGGER | FI_INJECT | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD);
    if refused != 0 {
        return Err(Error::BadFlags(refused));
    }
    let context = (flags & FI_COMPLETION != 0).then_some(context.expose_provenance() as u64);
    let ticket = live.tickets().issue(live, completion, context)?;
    let mut options = ep.tx_options(live, flags, std::ptr::null_mut());
    (options.context, options.notify) = (ticket, true);
    let call = Call { live, options, when: Some(when) };
    // SAFETY: by this function's contract.
    let posted = unsafe { post(work, call) };
    if posted.is_err() {
        live.tickets().withdraw(ticket);
    }
    posted.map(drop)
}

/// The endpoint of a transfer, its context and its flags.
///
/// # Safety
/// As for [`queue`].
unsafe fn subject(work: &fi_deferred_work) -> Result<(&Ep, *mut c_void, u64), Error> {
    macro_rules! parts {
        ($member:ident) => {{
            // SAFETY: the type says which member it is, by this function's contract.
            let op = unsafe { work.op.$member.as_ref() }.ok_or(Error::Null)?;
            (op.ep, op.msg.context, op.flags)
        }};
    }
    let (raw, context, flags): (*mut fid_ep, _, _) = match work.op_type {
        FI_OP_RECV | FI_OP_SEND => parts!(msg),
        FI_OP_TRECV | FI_OP_TSEND => parts!(tagged),
        FI_OP_READ | FI_OP_WRITE => parts!(rma),
        FI_OP_ATOMIC => parts!(atomic),
        FI_OP_FETCH_ATOMIC => parts!(fetch_atomic),
        FI_OP_COMPARE_ATOMIC => parts!(compare_atomic),
        _ => return Err(Error::Unsupported("this kind of deferred work")),
    };
    // SAFETY: by this function's contract; every object starts with its class.
    let ep = unsafe { of_class(raw.cast(), FI_CLASS_EP, "deferred work is an endpoint's") }?;
    Ok((ep, context, flags))
}

/// # Safety
/// As for [`queue`]; the buffers are lent until the operation's end.
unsafe fn post(work: &fi_deferred_work, call: Call<'_>) -> Result<isize, Error> {
    let op = work.op;
    // SAFETY: the type says which member it is, by this function's contract; so for all below.
    unsafe {
        match work.op_type {
            FI_OP_RECV => {
                let msg = (*op.msg).msg;
                let request = msg::incoming(&call, msg.addr, None)?;
                post_recv(call, request, pieces(msg.msg_iov, msg.iov_count)?)
            }
            FI_OP_SEND => {
                let (msg, flags) = ((*op.msg).msg, (*op.msg).flags);
                let message = Outgoing::untagged(msg.addr).with_flagged_data(flags, msg.data);
                message.post(call, pieces(msg.msg_iov, msg.iov_count)?)
            }
            FI_OP_TRECV => {
                let msg = (*op.tagged).msg;
                let request = tagged::incoming(&call, msg.addr, msg.tag, msg.ignore)?;
                post_recv(call, request, pieces(msg.msg_iov, msg.iov_count)?)
            }
            FI_OP_TSEND => {
                let (msg, flags) = ((*op.tagged).msg, (*op.tagged).flags);
                let message = Outgoing::tagged(msg.addr, msg.tag).with_flagged_data(flags, msg.data);
                message.post(call, pieces(msg.msg_iov, msg.iov_count)?)
            }
            FI_OP_READ | FI_OP_WRITE => {
                let write = work.op_type == FI_OP_WRITE;
                let kind = if write { CompletionKind::Write } else { CompletionKind::Read };
                rma::post_call(call, kind, &raw const (*op.rma).msg, (*op.rma).flags)
            }
            FI_OP_ATOMIC => post_call(call, AtomicKind::Update, &raw const (*op.atomic).msg, NONE, NONE),
            FI_OP_FETCH_ATOMIC => {
                let all = &*op.fetch_atomic;
                let result = (all.fetch.msg_iov.cast_const(), all.fetch.iov_count);
                post_call(call, AtomicKind::Fetch, &raw const all.msg, NONE, result)
            }
            _ => {
                let all = &*op.compare_atomic;
                let compare = (all.compare.msg_iov.cast_const(), all.compare.iov_count);
                let result = (all.fetch.msg_iov.cast_const(), all.fetch.iov_count);
                post_call(call, AtomicKind::Compare, &raw const all.msg, compare, result)
            }
        }
    }
}
