//! The hints of `fi_getinfo`, copied out of C.

use std::mem::offset_of;

use isthmus_wire::Address;

use crate::abi::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr};
use crate::convert::{array, copy_prefix, text, zeroed};
use crate::error::Error;
use crate::resolve::from_bytes;

/// The hints of a program. A part that it left out is all zero, which means "any".
pub(crate) struct Hints {
    /// Capabilities; 0: any.
    pub(crate) caps: u64,
    /// Format of the addresses.
    pub(crate) addr_format: u32,
    /// Its own address.
    pub(crate) src: Option<Address>,
    /// The peer's address.
    pub(crate) dest: Option<Address>,
    /// Whether this asks about a connection request.
    pub(crate) handle: bool,
    pub(crate) tx: fi_tx_attr,
    pub(crate) rx: fi_rx_attr,
    pub(crate) ep: fi_ep_attr,
    pub(crate) domain: fi_domain_attr,
    pub(crate) domain_name: Option<String>,
    pub(crate) fabric_name: Option<String>,
    pub(crate) prov_version: u32,
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            caps: 0,
            addr_format: 0,
            src: None,
            dest: None,
            handle: false,
            tx: zeroed(),
            rx: zeroed(),
            ep: zeroed(),
            domain: zeroed(),
            domain_name: None,
            fabric_name: None,
            prov_version: 0,
        }
    }
}

/// Length of `fi_domain_attr` in every libfabric since 1.5; it grew in 2.0 and later. Bytes.
const DOMAIN_ATTR_LEN: usize = offset_of!(fi_domain_attr, max_ep_auth_key);
/// Length of `fi_ep_attr` in every libfabric since 1.5; it grew in 2.6. Bytes.
const EP_ATTR_LEN: usize = offset_of!(fi_ep_attr, xpu_ctx);

impl Hints {
    /// Copies the hints; `None` for null.
    ///
    /// # Safety
    /// `raw` is null or a `fi_info` of libfabric, which converts those of programs built
    /// before 1.5.
    pub(crate) unsafe fn read(raw: *const fi_info) -> Result<Option<Self>, Error> {
        // SAFETY: `fi_info` has not grown since 1.7, and the core's own one is passed here.
        let Some(info) = (unsafe { copy_prefix(raw, size_of::<fi_info>()) }) else { return Ok(None) };
        let mut hints = Self {
            caps: info.caps,
            addr_format: info.addr_format,
            // SAFETY: libfabric's structure holds as many bytes as it says.
            src: unsafe { address(info.src_addr, info.src_addrlen) }?,
            // SAFETY: likewise.
            dest: unsafe { address(info.dest_addr, info.dest_addrlen) }?,
            handle: !info.handle.is_null(),
            ..Self::default()
        };
        // SAFETY: the parts are null or libfabric's.
        unsafe { hints.read_parts(&info) }?;
        Ok(Some(hints))
    }

    /// # Safety
    /// The pointers in `info` are null or libfabric's structures.
    unsafe fn read_parts(&mut self, info: &fi_info) -> Result<(), Error> {
        // SAFETY: this structure has the same length in all versions.
        self.tx = unsafe { copy_prefix(info.tx_attr, size_of::<fi_tx_attr>()) }.unwrap_or(self.tx);
        // SAFETY: this structure has the same length in all versions.
        self.rx = unsafe { copy_prefix(info.rx_attr, size_of::<fi_rx_attr>()) }.unwrap_or(self.rx);
        // SAFETY: read as far as all versions reach.
        self.ep = unsafe { copy_prefix(info.ep_attr, EP_ATTR_LEN) }.unwrap_or(self.ep);
        // SAFETY: read as far as all versions reach.
        self.domain = unsafe { copy_prefix(info.domain_attr, DOMAIN_ATTR_LEN) }.unwrap_or(self.domain);
        // SAFETY: this structure has the same length in all versions.
        let fabric = unsafe { copy_prefix(info.fabric_attr, size_of::<fi_fabric_attr>()) };
        // SAFETY: null or a terminated string, copied at once.
        self.domain_name = unsafe { text(self.domain.name) }?.map(str::to_owned);
        if let Some(fabric) = fabric {
            // SAFETY: null or a terminated string, copied at once.
            self.fabric_name = unsafe { text(fabric.name) }?.map(str::to_owned);
            self.prov_version = fabric.prov_version;
        }
        Ok(())
    }
}

/// # Safety
/// `bytes` has `len` readable bytes, or is null.
pub(crate) unsafe fn address(bytes: *const std::ffi::c_void, len: usize) -> Result<Option<Address>, Error> {
    if bytes.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let bytes = unsafe { array(bytes.cast::<u8>(), len) }?;
    match from_bytes(bytes) {
        Ok(address) => Ok(Some(address)),
        Err(_) => Err(Error::NoData("an address of another provider")),
    }
}
