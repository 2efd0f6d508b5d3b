//! `fid_ep`: opens, binds, controls and closes endpoints. `endpoint.rs` has what their operations see of them.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use isthmus_io::Endpoint;

use crate::abi::{fi_alias, fi_ep_attr, fi_info, fi_ops, fi_rx_attr, fi_tx_attr, fid, fid_ep};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::convert::{copy_prefix, zeroed};
use crate::cq::Cq;
use crate::door::{close, entries, give};
use crate::endpoint::{Ep, EpState};
use crate::eq::Eq;
use crate::error::Error;
use crate::fid::{head, ops, table};
use crate::flags::*;
use crate::info::{INJECT_SIZE_MAX, Kind};
use crate::live::Terms;
use crate::order::Orders;
use crate::state::DomainState;
use crate::{atomic, cm, collective, info, msg, options, rma, tagged};

/// Opens an endpoint.
///
/// # Safety
/// `info` is null or a `fi_info` in the caller's version; `out` is null or writable.
pub(crate) unsafe fn open(
    domain: Arc<DomainState>,
    info: *const fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<c_int, Error> {
    // SAFETY: by this function's contract; read as far as all versions reach.
    let info = unsafe { copy_prefix(info, offset_of!(fi_info, fabric_attr)) }.ok_or(Error::Null)?;
    // SAFETY: as above.
    let ep = unsafe { copy_prefix(info.ep_attr, offset_of!(fi_ep_attr, protocol)) }.unwrap_or(zeroed());
    // SAFETY: as above.
    let tx: fi_tx_attr =
        unsafe { copy_prefix(info.tx_attr, offset_of!(fi_tx_attr, tclass)) }.unwrap_or(zeroed());
    // SAFETY: as above.
    let rx: fi_rx_attr = unsafe { copy_prefix(info.rx_attr, size_of::<fi_rx_attr>()) }.unwrap_or(zeroed());
    let kind = Kind::of(ep.type_);
    let kind = kind.ok_or(Error::Unsupported("an endpoint type other than FI_EP_RDM and FI_EP_DGRAM"))?;
    // SAFETY: libfabric's structure holds as many bytes as it says.
    let src = unsafe { info::address(info.src_addr, info.src_addrlen) }?;
    let terms = Terms {
        caps: if info.caps == 0 { kind.caps() } else { info.caps },
        orders: Orders::of(tx.msg_order),
        inject_max: tx.inject_size.clamp(Endpoint::INJECT_MAX, INJECT_SIZE_MAX),
    };
    let state = EpState::new(domain, kind, terms, src.map(|address| address.locator));
    let ep = Ep::new(
        head_of(context),
        Arc::new(state),
        tx.op_flags & kind.tx_flags(),
        rx.op_flags & kind.rx_flags(),
    );
    // SAFETY: by this function's contract.
    unsafe { give(ep, out) }?;
    Ok(0)
}

/// The head of an endpoint, with the tables of its operations.
fn head_of(context: *mut c_void) -> fid_ep {
    fid_ep {
        fid: head(FI_CLASS_EP, context, &FID_OPS),
        ops: table(&options::OPS),
        cm: table(&cm::OPS),
        msg: table(&msg::OPS),
        rma: table(&rma::OPS),
        tagged: table(&tagged::OPS),
        atomic: table(&atomic::OPS),
        collective: table(&collective::OPS),
    }
}

/// A second handle with other default flags (`FI_ALIAS`).
///
/// # Safety
/// `alias` is null or valid, with a place for the result.
unsafe fn alias(ep: &Ep, alias: *mut fi_alias) -> Result<c_int, Error> {
    // SAFETY: by this function's contract.
    let alias = unsafe { alias.as_ref() }.ok_or(Error::Null)?;
    let copy = ep.twin(head_of);
    copy.set_flags(alias.flags)?;
    // SAFETY: by this function's contract.
    unsafe { give(copy, alias.fid) }?;
    Ok(0)
}

static FID_OPS: fi_ops = ops(close_ep, Some(bind), Some(control));

entries! {
    fn bind(ep: Ep as fid, other: *mut fid, flags: u64) -> c_int {
        // SAFETY: the caller passes null or an object of this provider.
        let class = unsafe { other.as_ref() }.ok_or(Error::Null)?.fclass;
        if ep.state.live().is_some() && matches!(class, FI_CLASS_AV | FI_CLASS_CQ) {
            return Err(Error::BadState("the endpoint is enabled already"));
        }
        match class {
            FI_CLASS_AV => {
                // SAFETY: the class says what it is.
                ep.state.bind_av(&unsafe { &*other.cast::<Av>() }.table)?;
            }
            // SAFETY: the class says what it is.
            FI_CLASS_CQ => ep.state.bind_queue(&unsafe { &*other.cast::<Cq>() }.queue, flags)?,
            // SAFETY: the class says what it is.
            FI_CLASS_CNTR => ep.state.bind_counter(&unsafe { &*other.cast::<Cntr>() }.counter, flags)?,
            // The only events of connectionless endpoints are joined groups.
            FI_CLASS_EQ => {
                // SAFETY: the class says what it is.
                ep.state.bind_events(&unsafe { &*other.cast::<Eq>() }.queue);
            }
            _ => return Err(Error::Unsupported("binding this kind of object to an endpoint")),
        }
        Ok(0)
    }

    fn control(ep: Ep as fid, command: c_int, arg: *mut c_void) -> c_int {
        match command {
            FI_ENABLE => ep.state.enable()?,
            // SAFETY: the caller passes null or its structure.
            FI_ALIAS => return unsafe { alias(ep, arg.cast()) },
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the caller passes null or its flags.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(Error::Null)?;
                if command == FI_SETOPSFLAG {
                    ep.set_flags(*flags)?;
                } else {
                    *flags = ep.get_flags(*flags)?;
                }
            }
            _ => return Err(Error::Unsupported("this control of an endpoint")),
        }
        Ok(0)
    }
}

unsafe extern "C" fn close_ep(raw: *mut fid) -> c_int {
    let end = |ep: &Ep| {
        if Arc::strong_count(&ep.state) == 1 {
            ep.state.stop();
        }
        Ok(())
    };
    // SAFETY: libfabric passes what `open` gave.
    unsafe { close(raw, end) }
}
