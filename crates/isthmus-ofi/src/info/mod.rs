//! `fi_getinfo`: compares what a program wants with what we offer.

mod build;
mod check;
mod hints;
mod kind;
mod limits;

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;

use isthmus_io::{Datagrams, Family, Settings, TlsMode};
use isthmus_wire::Address;

use crate::abi::fi_info;
use crate::convert::text;
use crate::door::enter_free;
use crate::error::Error;
use crate::flags::{FI_NUMERICHOST, FI_PROV_ATTR_ONLY, FI_RESCAN, FI_SOURCE, version};
use crate::resolve::resolve;

pub(crate) use build::Offer;
pub(crate) use hints::{Hints, address};
pub(crate) use kind::{Kind, receives, transmits};
pub(crate) use limits::{INJECT_SIZE_MAX, MR_IOV_LIMIT, MSG_SIZE_MAX, MULTI_RECV_MIN, QUEUE_SIZE};

/// The provider's and its fabric's name.
pub(crate) const NAME: &std::ffi::CStr = c"isthmus";
/// The provider's own version, in libfabric's form.
pub(crate) const PROVIDER_VERSION: u32 = version(0, 1);

const FLAGS: u64 = FI_SOURCE | FI_NUMERICHOST | FI_PROV_ATTR_ONLY | FI_RESCAN;

/// libfabric's internal flag, with which its utility providers look for a core provider.
const CORE_ONLY: u64 = 1 << 59;

/// The provider's `getinfo`.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    let body = || {
        if out.is_null() {
            return Err(Error::Null);
        }
        if flags & CORE_ONLY != 0 {
            return Err(Error::NoData("serving as the core of another provider"));
        }
        if flags & !FLAGS != 0 {
            return Err(Error::BadFlags(flags & !FLAGS));
        }
        // SAFETY: libfabric passes null or a structure of its own making.
        let hints = unsafe { Hints::read(hints) }?;
        // SAFETY: null or a terminated string, for the time of this call.
        let node = unsafe { text(node) }?;
        // SAFETY: likewise.
        let service = unsafe { text(service) }?;
        let mut offer = check::negotiate(version, hints.as_ref())?;
        name(&mut offer, node, service, flags)?;
        if flags & FI_PROV_ATTR_ONLY == 0 {
            locate(&mut offer)?;
            let wanted = hints.as_ref().map_or(0, |hints| hints.ep.max_msg_size);
            check::message(wanted, &offer)?;
        }
        // SAFETY: not null; libfabric passes a place for the result.
        unsafe { out.write(offer.build()?) };
        Ok(0)
    };
    enter_free(body)
}

/// Fills in the address that endpoints will have, as far as it is known before they open, and the format of addresses.
/// Errors in the settings are reported when a domain is opened.
fn locate(offer: &mut Offer) -> Result<(), Error> {
    let settings = Settings::load().ok();
    let family = check::family(offer.addr_format, offer.dest.map(|dest| dest.locator));
    let source = offer.src.map(|src| src.locator);
    // An unspecified address is of the version of IP that is wanted.
    if source.is_none_or(|at| {
        at.ip().is_unspecified() && family.is_some_and(|family| family != Family::of(at.ip()))
    }) {
        let own = |settings: &Settings| match family {
            Some(family) => settings.own_ip_of(family),
            None => settings.own_ip().ok(),
        };
        let port = source.map_or(0, |at| at.port());
        let ip = settings.as_ref().and_then(own);
        offer.src = ip.map(|ip| Address::from(SocketAddr::new(ip, port)));
    }
    let own = offer.src.unwrap_or_default().locator;
    if offer.kind == Kind::Datagram {
        if settings.as_ref().is_some_and(|settings| settings.tls == TlsMode::Required) {
            return Err(Error::NoData("datagrams, which are not encrypted, where tls is required: they"));
        }
        // Bound to any address, an endpoint has this host's own.
        let wild = own.ip().is_unspecified();
        let host = settings.as_ref().filter(|_| wild).and_then(|settings| settings.own_ip().ok());
        offer.message_max = Datagrams::message_max_at(host.unwrap_or(own.ip()));
    }
    offer.addr_format = check::format(offer.addr_format, own)?;
    Ok(())
}

/// Puts the address that the user typed into the offer: his own, or that of the peer.
fn name(offer: &mut Offer, node: Option<&str>, service: Option<&str>, flags: u64) -> Result<(), Error> {
    if node.is_none() && service.is_none() {
        return Ok(());
    }
    let address: Address = resolve(node, service, flags & FI_NUMERICHOST != 0)?;
    // Without a node, a service names the caller's own port.
    let own = flags & FI_SOURCE != 0 || node.is_none();
    *(if own { &mut offer.src } else { &mut offer.dest }) = Some(address);
    Ok(())
}
