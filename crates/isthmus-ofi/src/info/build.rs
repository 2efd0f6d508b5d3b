//! An offer, and the C structures that carry it to libfabric.

use std::ffi::{CString, c_char, c_void};

use isthmus_io::Endpoint;
use isthmus_wire::Address;

use super::Kind;
use super::PROVIDER_VERSION;
use super::limits::*;
use crate::abi::{
    FI_AV_UNSPEC, FI_PROGRESS_AUTO, FI_RM_ENABLED, FI_THREAD_SAFE, fi_domain_attr, fi_ep_attr,
    fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr,
};
use crate::error::Error;
use crate::flags::*;
use crate::resolve::to_bytes;

/// The part of our offer that depends on the program's hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) kind: Kind,
    /// Longest message. Bytes.
    pub(crate) message_max: usize,
    pub(crate) caps: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) tx_order: u64,
    pub(crate) rx_order: u64,
    pub(crate) inject_size: usize,
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    /// Most pieces of a buffer.
    pub(crate) tx_pieces: usize,
    pub(crate) rx_pieces: usize,
    pub(crate) threading: u32,
    pub(crate) control_progress: u32,
    pub(crate) data_progress: u32,
    pub(crate) resource_mgmt: u32,
    pub(crate) av_type: u32,
    pub(crate) mr_mode: i32,
    /// Format of addresses: ours (`FI_FORMAT_UNSPEC`), or socket addresses.
    pub(crate) addr_format: u32,
    pub(crate) src: Option<Address>,
    pub(crate) dest: Option<Address>,
}

impl Default for Offer {
    /// The offer to a program without hints.
    fn default() -> Self {
        Self {
            kind: Kind::Reliable,
            message_max: MSG_SIZE_MAX,
            caps: CAPS,
            tx_flags: 0,
            rx_flags: 0,
            tx_order: MSG_ORDER,
            rx_order: MSG_ORDER,
            inject_size: Endpoint::INJECT_MAX,
            tx_size: QUEUE_SIZE,
            rx_size: QUEUE_SIZE,
            tx_pieces: IOV_LIMIT,
            rx_pieces: IOV_LIMIT,
            threading: FI_THREAD_SAFE,
            control_progress: FI_PROGRESS_AUTO,
            data_progress: FI_PROGRESS_AUTO,
            resource_mgmt: FI_RM_ENABLED,
            av_type: FI_AV_UNSPEC,
            mr_mode: 0,
            addr_format: FI_FORMAT_UNSPEC,
            src: None,
            dest: None,
        }
    }
}

/// Zeroed room behind each structure, for a newer libfabric that reads further. Bytes.
const GROWTH: usize = 256;

impl Offer {
    /// Makes the C structures, as `fi_allocinfo` would; libfabric frees them.
    pub(crate) fn build(&self) -> Result<*mut fi_info, Error> {
        let info = allocate::<fi_info>()?;
        let (src, src_len) = self.address(self.src)?;
        let (dest, dest_len) = self.address(self.dest)?;
        info.caps = self.caps;
        info.addr_format = self.addr_format;
        info.src_addr = src;
        info.src_addrlen = src_len;
        info.dest_addr = dest;
        info.dest_addrlen = dest_len;
        info.tx_attr = self.tx()?;
        info.rx_attr = self.rx()?;
        info.ep_attr = self.ep()?;
        info.domain_attr = self.domain()?;
        info.fabric_attr = fabric()?;
        Ok(info)
    }

    /// A copy that C frees, and its length; null for none.
    fn address(&self, address: Option<Address>) -> Result<(*mut c_void, usize), Error> {
        let Some(address) = address else { return Ok((std::ptr::null_mut(), 0)) };
        let bytes = to_bytes(address, self.addr_format != FI_FORMAT_UNSPEC);
        // SAFETY: any size may be asked for.
        let memory = unsafe { libc::malloc(bytes.len()) };
        if memory.is_null() {
            return Err(Error::NoMemory);
        }
        // SAFETY: as many bytes as were just allocated.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast::<u8>(), bytes.len()) };
        Ok((memory, bytes.len()))
    }

    fn tx(&self) -> Result<*mut fi_tx_attr, Error> {
        let tx = allocate::<fi_tx_attr>()?;
        tx.caps = self.caps & TX_CAPS;
        tx.op_flags = self.tx_flags;
        tx.msg_order = self.tx_order;
        tx.inject_size = self.inject_size.min(self.message_max);
        tx.size = self.tx_size;
        tx.iov_limit = self.tx_pieces;
        tx.rma_iov_limit = self.kind.remote_pieces(self.caps);
        Ok(tx)
    }

    fn rx(&self) -> Result<*mut fi_rx_attr, Error> {
        let rx = allocate::<fi_rx_attr>()?;
        rx.caps = self.caps & RX_CAPS;
        rx.op_flags = self.rx_flags;
        rx.msg_order = self.rx_order;
        rx.size = self.rx_size;
        rx.iov_limit = self.rx_pieces;
        Ok(rx)
    }

    fn domain(&self) -> Result<*mut fi_domain_attr, Error> {
        let domain = allocate::<fi_domain_attr>()?;
        domain.name = string(DOMAIN_NAME)?;
        domain.threading = self.threading;
        domain.control_progress = self.control_progress;
        domain.__bindgen_anon_1.data_progress = self.data_progress;
        domain.resource_mgmt = self.resource_mgmt;
        domain.av_type = self.av_type;
        domain.mr_mode = self.mr_mode;
        domain.mr_key_size = MR_KEY_SIZE;
        domain.cq_data_size = CQ_DATA_SIZE;
        domain.cq_cnt = OBJECTS;
        domain.ep_cnt = OBJECTS;
        domain.tx_ctx_cnt = OBJECTS;
        domain.rx_ctx_cnt = OBJECTS;
        domain.max_ep_tx_ctx = 1;
        domain.max_ep_rx_ctx = 1;
        domain.cntr_cnt = OBJECTS;
        domain.mr_iov_limit = MR_IOV_LIMIT;
        domain.caps = DOMAIN_CAPS | self.caps & DOMAIN_EXTRAS;
        domain.mr_cnt = REGISTRATIONS;
        domain.max_cntr_value = u64::MAX;
        domain.max_err_cntr_value = u64::MAX;
        Ok(domain)
    }

    fn ep(&self) -> Result<*mut fi_ep_attr, Error> {
        let ep = allocate::<fi_ep_attr>()?;
        ep.type_ = self.kind.type_();
        ep.protocol = self.kind.protocol();
        ep.protocol_version = PROTOCOL_VERSION;
        ep.max_msg_size = self.message_max;
        let order_size = |these| self.kind.order_size(self.tx_order, these);
        ep.max_order_raw_size = order_size(FI_ORDER_RAW | FI_ORDER_RMA_RAW);
        ep.max_order_war_size = order_size(FI_ORDER_WAR | FI_ORDER_RMA_WAR);
        ep.max_order_waw_size = order_size(FI_ORDER_WAW | FI_ORDER_RMA_WAW);
        ep.mem_tag_format = self.kind.tag_format();
        ep.tx_ctx_cnt = 1;
        ep.rx_ctx_cnt = 1;
        Ok(ep)
    }
}

/// `prov_name` stays null: libfabric appends to what it finds there.
fn fabric() -> Result<*mut fi_fabric_attr, Error> {
    let fabric = allocate::<fi_fabric_attr>()?;
    fabric.name = string(FABRIC_NAME)?;
    fabric.prov_version = PROVIDER_VERSION;
    Ok(fabric)
}

/// Zeroed memory that C frees.
fn allocate<T: crate::convert::Plain>() -> Result<&'static mut T, Error> {
    // SAFETY: any size may be asked for.
    let memory = unsafe { libc::calloc(1, size_of::<T>() + GROWTH) }.cast::<T>();
    // SAFETY: null, or zeroed memory of sufficient size and alignment, of which a `Plain`
    // type may be all zero; nobody else knows it.
    unsafe { memory.as_mut() }.ok_or(Error::NoMemory)
}

fn string(text: &str) -> Result<*mut c_char, Error> {
    let text = CString::new(text).map_err(|_| Error::Invalid("a zero byte in a name"))?;
    // SAFETY: a terminated string.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Error::NoMemory) } else { Ok(copy) }
}
