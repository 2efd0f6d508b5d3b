//! Checks whether we can give a program what its hints ask for.

use std::net::SocketAddr;

use isthmus_io::{Endpoint, Family};

use super::limits::*;
use super::{Hints, Kind, Offer};
use crate::abi::{
    FI_AV_TABLE, FI_PROGRESS_AUTO, FI_PROGRESS_CONTROL_UNIFIED, FI_PROGRESS_UNSPEC, FI_RM_ENABLED,
    FI_RM_UNSPEC, FI_THREAD_ENDPOINT, FI_THREAD_SAFE, FI_THREAD_UNSPEC, fi_domain_attr, fi_ep_attr,
    fi_rx_attr, fi_tx_attr,
};
use crate::error::Error;
use crate::flags::*;

type Answer = Result<(), Error>;

/// Answers the hints with an offer, or with the reason why we cannot.
pub(super) fn negotiate(version: u32, hints: Option<&Hints>) -> Result<Offer, Error> {
    let Some(hints) = hints else { return Ok(Offer::default()) };
    let kind = Kind::of(hints.ep.type_)
        .ok_or(Error::NoData("an endpoint type other than FI_EP_RDM and FI_EP_DGRAM"))?;
    check_general(kind, hints)?;
    check_tx(kind, hints.caps, &hints.tx)?;
    check_rx(kind, &hints.rx)?;
    check_ep(kind, hints.tx.msg_order, &hints.ep)?;
    check_domain(&hints.domain)?;
    check_names(hints)?;
    Ok(accept(version, kind, hints))
}

fn need(met: bool, what: &'static str) -> Answer {
    if met { Ok(()) } else { Err(Error::NoData(what)) }
}

fn check_general(kind: Kind, hints: &Hints) -> Answer {
    need(!hints.handle, "a connection request")?;
    need(hints.caps & !(kind.all_caps() | DOMAIN_EXTRAS) == 0, "one of the capabilities asked for")?;
    let sockets =
        matches!(hints.addr_format, FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6 | FI_SOCKADDR_IP);
    need(hints.addr_format == FI_FORMAT_UNSPEC || sockets, "this address format")
}

fn check_tx(kind: Kind, caps: u64, tx: &fi_tx_attr) -> Answer {
    need(tx.caps & !kind.all_caps() == 0, "one of the transmit capabilities asked for")?;
    need(tx.op_flags & !kind.tx_flags() == 0, "one of the default transmit flags asked for")?;
    need(tx.msg_order & !kind.orders() == 0, "this message order")?;
    need(tx.comp_order == 0, "an order of completions")?;
    need(tx.inject_size <= INJECT_SIZE_MAX, "such a large inject_size")?;
    need(tx.size <= QUEUE_SIZE_MAX, "such a long transmit queue")?;
    need(tx.iov_limit <= Endpoint::IOV_MAX, "such a large iov_limit")?;
    need(tx.rma_iov_limit <= kind.remote_pieces(complete(kind, caps, tx)), "RMA of so many remote pieces")
}

fn check_rx(kind: Kind, rx: &fi_rx_attr) -> Answer {
    need(rx.caps & !kind.all_caps() == 0, "one of the receive capabilities asked for")?;
    need(rx.op_flags & !kind.rx_flags() == 0, "one of the default receive flags asked for")?;
    need(rx.msg_order & !kind.orders() == 0, "this message order")?;
    need(rx.comp_order == 0, "an order of completions")?;
    need(rx.size <= QUEUE_SIZE_MAX, "such a long receive queue")?;
    need(rx.iov_limit <= Endpoint::IOV_MAX, "such a large iov_limit")
}

fn check_ep(kind: Kind, orders: u64, ep: &fi_ep_attr) -> Answer {
    need(ep.protocol == 0 || ep.protocol == kind.protocol(), "this protocol")?;
    need(ep.protocol_version <= PROTOCOL_VERSION, "this protocol version")?;
    need(ep.max_msg_size <= MSG_SIZE_MAX, "such long messages")?;
    let ordered = [
        (ep.max_order_raw_size, FI_ORDER_RAW | FI_ORDER_RMA_RAW),
        (ep.max_order_war_size, FI_ORDER_WAR | FI_ORDER_RMA_WAR),
        (ep.max_order_waw_size, FI_ORDER_WAW | FI_ORDER_RMA_WAW),
    ];
    let kept = ordered.iter().all(|&(size, these)| size <= kind.order_size(orders, these));
    need(kept, "order among such long transfers")?;
    need(ep.tx_ctx_cnt <= 1 && ep.rx_ctx_cnt <= 1, "scalable endpoints or shared contexts")?;
    need(ep.auth_key_size == 0, "authorization keys")
}

fn check_domain(domain: &fi_domain_attr) -> Answer {
    need(domain.threading <= FI_THREAD_ENDPOINT, "this threading model")?;
    need(domain.control_progress <= FI_PROGRESS_CONTROL_UNIFIED, "this progress model")?;
    need(data_progress(domain) <= FI_PROGRESS_CONTROL_UNIFIED, "this progress model")?;
    need(domain.resource_mgmt <= FI_RM_ENABLED, "this resource management")?;
    need(domain.av_type <= FI_AV_TABLE, "this type of address vector")?;
    need(domain.caps & !(DOMAIN_CAPS | DOMAIN_EXTRAS) == 0, "one of the domain capabilities asked for")?;
    need(domain.mr_key_size <= MR_KEY_SIZE, "memory keys of more than 8 bytes")?;
    need(domain.cq_data_size <= CQ_DATA_SIZE, "more than 8 bytes of completion data")?;
    let objects = [domain.cq_cnt, domain.ep_cnt, domain.tx_ctx_cnt, domain.rx_ctx_cnt, domain.cntr_cnt];
    need(objects.iter().all(|&count| count <= OBJECTS), "so many objects in a domain")?;
    need(domain.max_ep_tx_ctx <= 1 && domain.max_ep_rx_ctx <= 1, "scalable endpoints")?;
    need(domain.max_ep_stx_ctx == 0 && domain.max_ep_srx_ctx == 0, "shared contexts")?;
    need(domain.mr_iov_limit <= MR_IOV_LIMIT, "such a large mr_iov_limit")?;
    need(domain.mr_cnt <= REGISTRATIONS, "so many memory registrations")?;
    need(domain.auth_key_size == 0, "authorization keys")
}

fn check_names(hints: &Hints) -> Answer {
    let fabric = hints.fabric_name.as_deref().is_none_or(|name| name == FABRIC_NAME);
    need(fabric, "this fabric")?;
    let domain = hints.domain_name.as_deref().is_none_or(|name| name == DOMAIN_NAME);
    need(domain, "this domain")?;
    need(hints.prov_version <= super::PROVIDER_VERSION, "this provider version")
}

/// Whether messages may be as long as a program wants.
pub(super) fn message(wanted: usize, offer: &Offer) -> Answer {
    need(wanted <= offer.message_max, "such long messages")
}

fn accept(version: u32, kind: Kind, hints: &Hints) -> Offer {
    let or = |wanted: u32, unspecified: u32, ours: u32| if wanted == unspecified { ours } else { wanted };
    let domain = &hints.domain;
    Offer {
        kind,
        message_max: MSG_SIZE_MAX,
        caps: complete(kind, hints.caps | hints.domain.caps & DOMAIN_EXTRAS, &hints.tx),
        tx_flags: hints.tx.op_flags,
        rx_flags: hints.rx.op_flags,
        tx_order: kind.order() | hints.tx.msg_order,
        rx_order: kind.order() | hints.rx.msg_order,
        inject_size: hints.tx.inject_size.max(Endpoint::INJECT_MAX),
        tx_size: if hints.tx.size == 0 { QUEUE_SIZE } else { hints.tx.size },
        rx_size: if hints.rx.size == 0 { QUEUE_SIZE } else { hints.rx.size },
        tx_pieces: hints.tx.iov_limit.max(IOV_LIMIT),
        rx_pieces: hints.rx.iov_limit.max(IOV_LIMIT),
        threading: or(domain.threading, FI_THREAD_UNSPEC, FI_THREAD_SAFE),
        control_progress: or(domain.control_progress, FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO),
        data_progress: or(data_progress(domain), FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO),
        resource_mgmt: or(domain.resource_mgmt, FI_RM_UNSPEC, FI_RM_ENABLED),
        av_type: domain.av_type,
        mr_mode: mr_mode(version, domain.mr_mode),
        addr_format: hints.addr_format,
        src: hints.src,
        dest: hints.dest,
    }
}

/// The version of IP that a program wants, by its format of addresses or by its peer's address.
pub(super) fn family(wanted: u32, dest: Option<SocketAddr>) -> Option<Family> {
    match wanted {
        FI_SOCKADDR_IN => Some(Family::V4),
        FI_SOCKADDR_IN6 => Some(Family::V6),
        FI_SOCKADDR | FI_SOCKADDR_IP => dest.map(|dest| Family::of(dest.ip())),
        _ => None,
    }
}

/// The format of addresses for a program that asks for `wanted`. `own` is the address that endpoints have.
pub(super) fn format(wanted: u32, own: SocketAddr) -> Result<u32, Error> {
    let ours = if own.is_ipv4() { FI_SOCKADDR_IN } else { FI_SOCKADDR_IN6 };
    let any = matches!(wanted, FI_SOCKADDR | FI_SOCKADDR_IP);
    need(any || wanted == ours || wanted == FI_FORMAT_UNSPEC, "addresses of this family")?;
    Ok(if any { ours } else { wanted })
}

/// Adds the directions that a program left open, and capabilities that cost nothing. A program that names no operation
/// gets all of them, but not one that rules out what `tx` asks for.
fn complete(kind: Kind, wanted: u64, tx: &fi_tx_attr) -> u64 {
    if wanted & OPERATIONS == 0 {
        let all = kind.caps() | wanted & (DOMAIN_EXTRAS | ON_REQUEST);
        let fits = tx.rma_iov_limit <= kind.remote_pieces(all);
        return if fits { all } else { all & !FI_RMA_EVENT | wanted };
    }
    let mut caps = wanted | DOMAIN_CAPS;
    if caps & (FI_MSG | FI_TAGGED) != 0 && caps & MESSAGE_DIRECTIONS == 0 {
        caps |= MESSAGE_DIRECTIONS;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & MEMORY_DIRECTIONS == 0 {
        caps |= MEMORY_DIRECTIONS;
    }
    caps
}

/// The mode of registered memory; we need none. Programs that know only the two modes from before 1.5 get the one that
/// they ask for, or, if they leave it open, the one that all providers had.
fn mr_mode(version: u32, wanted: i32) -> i32 {
    let old = version < crate::flags::version(1, 5);
    if wanted & FI_MR_BASIC != 0 || (old && wanted == 0) {
        return FI_MR_BASIC;
    }
    if wanted & FI_MR_SCALABLE != 0 { FI_MR_SCALABLE } else { 0 }
}

fn data_progress(domain: &fi_domain_attr) -> u32 {
    // SAFETY: both members of the union are the same integer.
    unsafe { domain.__bindgen_anon_1.data_progress }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
