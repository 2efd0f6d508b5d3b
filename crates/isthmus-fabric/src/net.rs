//! One reliable-datagram endpoint of a libfabric provider. It sends and receives messages in
//! buffers of its own. All its `unsafe` is in this file.
//!
//! From posting to completion a buffer belongs to the provider, otherwise to us. Its bytes are
//! accessible only while it is ours. Buffers are freed after the endpoint is closed.

use std::ffi::{CStr, CString, c_int, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;

use isthmus_abi::abi::{
    FI_AV_MAP, FI_AV_TABLE, FI_CQ_FORMAT_MSG, FI_EP_RDM, FI_PROGRESS_MANUAL, FI_THREAD_DOMAIN, FI_WAIT_NONE,
    fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_cq_msg_entry, fi_info, fid, fid_av, fid_cq, fid_domain,
    fid_ep, fid_fabric, fid_mr,
};
use isthmus_abi::flags::{
    FI_ADDR_UNSPEC, FI_CONTEXT, FI_CONTEXT2, FI_EAGAIN, FI_EAVAIL, FI_ENABLE, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG, FI_NUMERICHOST, FI_ORDER_SAS,
    FI_RECV, FI_SEND, FI_SOURCE, OFI_GETINFO_HIDDEN,
};

use crate::FabricError;
use crate::library::{API, Library};

/// Longest name of an endpoint that is sent to neighbours. Bytes.
pub(crate) const NAME_MAX: usize = 256;
/// Most completions read at once. Count.
const DONE_MAX: usize = 32;
/// Flags of `fi_getinfo`: the node is our own address, as a number.
const OWN_NODE: u64 = FI_SOURCE | FI_NUMERICHOST;

/// Identifies a buffer.
pub(crate) type BufferId = usize;

/// Completion of a posted buffer, which is ours again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It has a message of this many bytes.
    Received(usize),
    /// Its message was sent.
    Sent,
    /// The operation failed with this error number of libfabric.
    Failed(i32),
}

/// Result of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Yes,
    /// No room now: poll, then try again.
    Again,
    /// An error number of libfabric.
    Failed(i32),
}

/// The provider writes to `context` and `bytes` while the buffer is posted.
#[repr(C)]
struct Buffer {
    /// The first 64 bytes are the provider's (`FI_CONTEXT2`).
    context: [u64; 8],
    id: BufferId,
    sends: bool,
    posted: bool,
    registration: *mut fid_mr,
    bytes: Box<[u8]>,
}

/// Objects of libfabric, in the order in which they are closed.
struct Objects {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    av: *mut fid_av,
    domain: *mut fid_domain,
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    library: &'static Library,
}

/// The endpoint and its buffers.
pub(crate) struct Net {
    objects: Objects,
    name: Vec<u8>,
    inject_max: usize,
    receives_max: usize,
    register: c_int,
    #[allow(clippy::vec_box, reason = "the provider holds pointers to posted buffers")]
    buffers: Vec<Box<Buffer>>,
}

// SAFETY: libfabric's objects may be used from any thread, one at a time
// (`FI_THREAD_DOMAIN`), which `&mut self` sees to.
unsafe impl Send for Net {}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Net({} buffers)", self.buffers.len())
    }
}

/// The error of a call that returned `status`.
fn check(library: &Library, what: &'static str, status: c_int) -> Result<(), FabricError> {
    if status == 0 { Ok(()) } else { Err(FabricError::Call { what, why: library.text(status.into()) }) }
}

/// A function of a table. A provider that lacks it cannot be used.
fn slot<F: Copy>(function: Option<F>, what: &'static str) -> Result<F, FabricError> {
    function.ok_or(FabricError::Call { what, why: "the provider lacks it".to_owned() })
}

impl Net {
    /// Opens an endpoint of `provider` (such as "shm", or "verbs;ofi_rxm"). If the provider accepts our
    /// address `node`, it listens there.
    pub(crate) fn open(provider: &str, node: IpAddr) -> Result<Self, FabricError> {
        let library = Library::get()?;
        let at_node = (provider != "shm").then(|| CString::new(node.to_string()).unwrap_or_default());
        let objects = open_any(library, provider, at_node.as_ref())?;
        let info = objects.info;
        let name = objects.name()?;
        // SAFETY: fi_getinfo fills all attributes of what it returns.
        let (tx, rx, domain) =
            unsafe { ((*info).tx_attr.read(), (*info).rx_attr.read(), (*info).domain_attr) };
        // SAFETY: as above; this field is in all versions.
        let register = unsafe { (&raw const (*domain).mr_mode).read() };
        let receives_max = rx.size.min(8192);
        Ok(Self { objects, name, inject_max: tx.inject_size, receives_max, register, buffers: Vec::new() })
    }

    /// The provider's full name, such as "tcp;ofi_rxm".
    pub(crate) fn provider(&self) -> String {
        // SAFETY: fi_getinfo fills it, with a terminated name that lives as long as the info.
        let name = unsafe { CStr::from_ptr((*(*self.objects.info).fabric_attr).prov_name) };
        name.to_string_lossy().into_owned()
    }

    /// The endpoint's name, for neighbours to insert.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Longest message that [`Net::inject`] takes. Bytes.
    pub(crate) fn inject_max(&self) -> usize {
        self.inject_max
    }

    /// Most receives that may be posted at once. Count.
    pub(crate) fn receives_max(&self) -> usize {
        self.receives_max
    }

    /// Inserts an endpoint's name into the address table. Returns its address.
    pub(crate) fn insert(&mut self, name: &[u8]) -> Result<u64, FabricError> {
        let mut address = FI_ADDR_UNSPEC;
        // Providers read as many bytes as their own names have.
        let mut padded = [0; NAME_MAX];
        let len = name.len().min(NAME_MAX);
        padded[..len].copy_from_slice(&name[..len]);
        let av = self.objects.av;
        // SAFETY: an open table, whose operations are there for good.
        let insert = slot(unsafe { (*(*av).ops).insert }, "fi_av_insert")?;
        // SAFETY: one name, longer than any provider's, and room for one address.
        let count = unsafe { insert(av, padded.as_ptr().cast(), 1, &mut address, 0, null_mut()) };
        if count == 1 && address != FI_ADDR_UNSPEC {
            return Ok(address);
        }
        let why = format!("it returned {count}");
        Err(FabricError::Call { what: "fi_av_insert", why })
    }

    /// Removes an address.
    pub(crate) fn remove(&mut self, mut address: u64) {
        let av = self.objects.av;
        // SAFETY: an open table.
        if let Some(remove) = unsafe { (*(*av).ops).remove } {
            // If it cannot be removed, the table keeps one entry.
            // SAFETY: one address that came from the same table.
            unsafe { remove(av, &mut address, 1, 0) };
        }
    }

    /// Adds a buffer of `len` bytes, which is ours.
    pub(crate) fn add_buffer(&mut self, len: usize, sends: bool) -> Result<BufferId, FabricError> {
        let id = self.buffers.len();
        let bytes = vec![0; len].into_boxed_slice();
        let mut buffer =
            Box::new(Buffer { context: [0; 8], id, sends, posted: false, registration: null_mut(), bytes });
        if self.register & FI_MR_LOCAL != 0 {
            self.register(&mut buffer)?;
        }
        self.buffers.push(buffer);
        Ok(id)
    }

    fn register(&mut self, buffer: &mut Buffer) -> Result<(), FabricError> {
        let Objects { domain, ep, library, .. } = self.objects;
        // SAFETY: an open domain.
        let reg = slot(unsafe { (*(*domain).mr).reg }, "fi_mr_reg")?;
        let access = if buffer.sends { FI_SEND } else { FI_RECV };
        let (at, len, key) = (buffer.bytes.as_ptr().cast(), buffer.bytes.len(), buffer.id as u64);
        // SAFETY: the bytes outlive the registration, which ends when the endpoint is closed.
        let status = unsafe {
            reg(domain.cast::<fid>(), at, len, access, 0, key, 0, &mut buffer.registration, null_mut())
        };
        check(library, "fi_mr_reg", status)?;
        if self.register & FI_MR_ENDPOINT != 0 {
            let registration = buffer.registration.cast::<fid>();
            check(library, "fi_mr_bind", bind(registration, ep.cast(), 0))?;
            check(library, "fi_mr_enable", enable(registration))?;
        }
        Ok(())
    }

    /// The bytes of a buffer that is ours.
    pub(crate) fn bytes(&self, id: BufferId) -> &[u8] {
        let buffer = &self.buffers[id];
        assert!(!buffer.posted, "a posted buffer is the provider's");
        &buffer.bytes
    }

    /// The bytes of a buffer that is ours.
    pub(crate) fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        let buffer = &mut self.buffers[id];
        assert!(!buffer.posted, "a posted buffer is the provider's");
        &mut buffer.bytes
    }

    /// Posts a buffer for any incoming message.
    pub(crate) fn receive(&mut self, id: BufferId) -> Posted {
        let ep = self.objects.ep;
        let (context, at, len, desc) = self.lend(id);
        // SAFETY: an enabled endpoint.
        let Some(recv) = (unsafe { (*(*ep).msg).recv }) else { return self.posted(id, -1) };
        // SAFETY: the buffer is the provider's until its completion; it lives until the
        // endpoint is closed.
        let status = unsafe { recv(ep, at, len, desc, FI_ADDR_UNSPEC, context) };
        self.posted(id, status)
    }

    /// Sends the first `len` bytes of a buffer.
    pub(crate) fn send(&mut self, id: BufferId, len: usize, to: u64) -> Posted {
        let ep = self.objects.ep;
        let (context, at, room, desc) = self.lend(id);
        // SAFETY: an enabled endpoint.
        let Some(send) = (unsafe { (*(*ep).msg).send }) else { return self.posted(id, -1) };
        // SAFETY: as for a receive.
        let status = unsafe { send(ep, at, len.min(room), desc, to, context) };
        self.posted(id, status)
    }

    /// Sends bytes, which are copied before this returns; at most [`Net::inject_max`].
    pub(crate) fn inject(&mut self, bytes: &[u8], to: u64) -> Posted {
        let ep = self.objects.ep;
        // SAFETY: an enabled endpoint.
        let Some(inject) = (unsafe { (*(*ep).msg).inject }) else { return Posted::Failed(1) };
        // SAFETY: the provider reads the bytes during the call only.
        outcome(unsafe { inject(ep, bytes.as_ptr().cast(), bytes.len(), to) })
    }

    fn lend(&mut self, id: BufferId) -> (*mut c_void, *mut c_void, usize, *mut c_void) {
        let buffer = &mut *self.buffers[id];
        assert!(!buffer.posted, "a posted buffer is the provider's");
        buffer.posted = true;
        let desc = match buffer.registration.is_null() {
            true => null_mut(),
            // SAFETY: a registration that is open.
            false => unsafe { (*buffer.registration).mem_desc },
        };
        let (at, len) = (buffer.bytes.as_mut_ptr().cast(), buffer.bytes.len());
        ((&raw mut *buffer).cast(), at, len, desc)
    }

    fn posted(&mut self, id: BufferId, status: isize) -> Posted {
        let outcome = outcome(status);
        self.buffers[id].posted = outcome == Posted::Yes;
        outcome
    }

    /// Lets the provider progress, and adds completions to `out`: at most 32.
    ///
    /// # Errors
    /// If the endpoint is no longer usable.
    pub(crate) fn poll(&mut self, out: &mut Vec<(BufferId, Done)>) -> Result<(), FabricError> {
        let cq = self.objects.cq;
        let mut entries = [fi_cq_msg_entry { op_context: null_mut(), flags: 0, len: 0 }; DONE_MAX];
        // SAFETY: an open queue.
        let read = slot(unsafe { (*(*cq).ops).read }, "fi_cq_read")?;
        // SAFETY: room for so many entries of the queue's format.
        let count = unsafe { read(cq, entries.as_mut_ptr().cast(), DONE_MAX) };
        if count == -isize::try_from(FI_EAVAIL).unwrap_or_default() {
            return self.poll_error(out);
        }
        if count < 0 && count != -isize::try_from(FI_EAGAIN).unwrap_or_default() {
            let why = self.objects.library.text(count as i64);
            return Err(FabricError::Call { what: "fi_cq_read", why });
        }
        for entry in &entries[..count.max(0) as usize] {
            let received = entry.flags & FI_RECV != 0;
            let done = if received { Done::Received(entry.len) } else { Done::Sent };
            out.extend(self.take_back(entry.op_context, done));
        }
        Ok(())
    }

    fn poll_error(&mut self, out: &mut Vec<(BufferId, Done)>) -> Result<(), FabricError> {
        let cq = self.objects.cq;
        // SAFETY: integers and raw pointers.
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue.
        let read = slot(unsafe { (*(*cq).ops).readerr }, "fi_cq_readerr")?;
        // SAFETY: the longest form of the entry there is; no room for error data.
        if unsafe { read(cq, &mut entry, 0) } == 1 {
            out.extend(self.take_back(entry.op_context, Done::Failed(entry.err)));
        }
        Ok(())
    }

    /// The buffer of a completion. `None` for errors of injected messages, which have no
    /// buffer.
    fn take_back(&mut self, context: *mut c_void, done: Done) -> Option<(BufferId, Done)> {
        if context.is_null() {
            return None;
        }
        // SAFETY: contexts are buffers of ours, which live as long as the endpoint.
        let id = unsafe { (&raw const (*context.cast::<Buffer>()).id).read() };
        self.buffers[id].posted = false;
        Some((id, done))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        close(&mut self.objects.ep);
        for buffer in &mut self.buffers {
            close(&mut buffer.registration);
        }
    }
}

fn outcome(status: isize) -> Posted {
    match i32::try_from(-status).unwrap_or(i32::MAX) {
        0 => Posted::Yes,
        FI_EAGAIN => Posted::Again,
        other => Posted::Failed(other),
    }
}

/// Opens an endpoint of the provider, by itself or with libfabric's own protocols on top.
fn open_any(
    library: &'static Library,
    provider: &str,
    node: Option<&CString>,
) -> Result<Objects, FabricError> {
    let names = ["", ";ofi_rxm", ";ofi_rxd"].map(|layer| format!("{provider}{layer}"));
    let names = if provider.contains(';') { &names[..1] } else { &names[..] };
    let mut why = None;
    for name in names {
        for node in [node, None] {
            match find(library, name, node) {
                Ok(found) => match found.open_first() {
                    Ok(objects) => return Ok(objects),
                    // An error of a provider that exists says more than that one does not.
                    Err(error) => why = Some(error),
                },
                Err(error) => drop(why.get_or_insert(error)),
            }
        }
    }
    Err(why.unwrap_or(FabricError::NoLibrary))
}

/// A list from fi_getinfo; we free it.
struct Found {
    library: &'static Library,
    list: *mut fi_info,
}

impl Found {
    /// Opens the first entry that can be opened, those without a layered protocol first. Layered
    /// ones may fail if the environment's `FI_PROVIDER` hides the provider below.
    fn open_first(&self) -> Result<Objects, FabricError> {
        let mut why = FabricError::NoProvider("an empty list".to_owned());
        for layered in [false, true] {
            let mut at = self.list;
            while !at.is_null() {
                // SAFETY: an entry of the list, with all attributes.
                let name = unsafe { CStr::from_ptr((*(*at).fabric_attr).prov_name) };
                if name.to_bytes().contains(&b';') == layered {
                    match Objects::of(self.library, at) {
                        Ok(objects) => return Ok(objects),
                        Err(error) => why = error,
                    }
                }
                // SAFETY: as above.
                at = unsafe { (*at).next };
            }
        }
        Err(why)
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: it came from fi_getinfo and is no longer used.
        unsafe { (self.library.free_info)(self.list) };
    }
}

/// Finds a provider by its name.
fn find(library: &'static Library, provider: &str, node: Option<&CString>) -> Result<Found, FabricError> {
    // SAFETY: null is how one is made.
    let hints = unsafe { (library.dup_info)(std::ptr::null()) };
    if hints.is_null() {
        return Err(FabricError::Call { what: "fi_dupinfo", why: "no memory".to_owned() });
    }
    let name = CString::new(provider).unwrap_or_default();
    // SAFETY: just made, with all attributes; fields that every version has. The name must be
    // of malloc, since libfabric frees it.
    unsafe {
        (*hints).caps = FI_MSG;
        (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
        (*(*hints).ep_attr).type_ = FI_EP_RDM;
        (*(*hints).tx_attr).msg_order = FI_ORDER_SAS;
        (*(*hints).rx_attr).msg_order = FI_ORDER_SAS;
        (*(*hints).domain_attr).threading = FI_THREAD_DOMAIN;
        (*(*hints).domain_attr).control_progress = FI_PROGRESS_MANUAL;
        (*(*hints).domain_attr).__bindgen_anon_1.data_progress = FI_PROGRESS_MANUAL;
        (*(*hints).domain_attr).mr_mode =
            FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
    }
    let mut info = null_mut();
    let mut flags = OFI_GETINFO_HIDDEN;
    let node = node.map_or(std::ptr::null(), |node| {
        flags |= OWN_NODE;
        node.as_ptr()
    });
    // SAFETY: valid hints; `node` is terminated or null.
    let status = unsafe { (library.get_info)(API, node, std::ptr::null(), flags, hints, &mut info) };
    // SAFETY: ours, and no longer used.
    unsafe { (library.free_info)(hints) };
    if status != 0 || info.is_null() {
        return Err(FabricError::NoProvider(library.text(status.into())));
    }
    Ok(Found { library, list: info })
}

/// Closes any object by `fi_close`. Null is ignored.
fn close<T>(object: &mut *mut T) {
    let object = std::mem::replace(object, null_mut()).cast::<fid>();
    if object.is_null() {
        return;
    }
    // SAFETY: every object of libfabric starts with a `fid`, and this one is open.
    if let Some(close) = unsafe { (*(*object).ops).close } {
        // SAFETY: closed once: the pointer was taken.
        unsafe { close(object) };
    }
}

fn bind(object: *mut fid, to: *mut fid, flags: u64) -> c_int {
    // SAFETY: both are open objects of libfabric.
    match unsafe { (*(*object).ops).bind } {
        // SAFETY: as above.
        Some(bind) => unsafe { bind(object, to, flags) },
        None => -libc::ENOSYS,
    }
}

fn enable(object: *mut fid) -> c_int {
    // SAFETY: an open object of libfabric.
    match unsafe { (*(*object).ops).control } {
        // SAFETY: as above; the command has no argument.
        Some(control) => unsafe { control(object, FI_ENABLE, null_mut()) },
        None => -libc::ENOSYS,
    }
}

impl Objects {
    /// Opens the endpoint that an entry of fi_getinfo's list describes.
    fn of(library: &'static Library, entry: *const fi_info) -> Result<Self, FabricError> {
        // SAFETY: an entry with all attributes; the copy has no successor.
        let info = unsafe { (library.dup_info)(entry) };
        if info.is_null() {
            return Err(FabricError::Call { what: "fi_dupinfo", why: "no memory".to_owned() });
        }
        let mut objects = Self {
            ep: null_mut(),
            cq: null_mut(),
            av: null_mut(),
            domain: null_mut(),
            fabric: null_mut(),
            info,
            library,
        };
        objects.open()?;
        Ok(objects)
    }

    /// Opens all objects that `info` describes.
    fn open(&mut self) -> Result<(), FabricError> {
        let (library, info) = (self.library, self.info);
        // SAFETY: fi_getinfo fills it.
        let fabric = unsafe { (*info).fabric_attr };
        // SAFETY: `info` describes a fabric.
        check(library, "fi_fabric", unsafe { (library.fabric)(fabric, &mut self.fabric, null_mut()) })?;
        // SAFETY: an open fabric.
        let domain = slot(unsafe { (*(*self.fabric).ops).domain }, "fi_domain")?;
        // SAFETY: as above, with its own info.
        check(library, "fi_domain", unsafe { domain(self.fabric, info, &mut self.domain, null_mut()) })?;
        self.open_tables()?;
        // SAFETY: an open domain.
        let endpoint = slot(unsafe { (*(*self.domain).ops).endpoint }, "fi_endpoint")?;
        // SAFETY: as above, with its own info.
        check(library, "fi_endpoint", unsafe { endpoint(self.domain, info, &mut self.ep, null_mut()) })?;
        let ep = self.ep.cast::<fid>();
        check(library, "fi_ep_bind", bind(ep, self.av.cast(), 0))?;
        check(library, "fi_ep_bind", bind(ep, self.cq.cast(), FI_SEND | FI_RECV))?;
        check(library, "fi_enable", enable(ep))
    }

    fn open_tables(&mut self) -> Result<(), FabricError> {
        let Self { library, info, domain, .. } = *self;
        // SAFETY: integers and raw pointers.
        let mut table: fi_av_attr = unsafe { std::mem::zeroed() };
        // SAFETY: fi_getinfo fills it.
        let kind = unsafe { (*(*info).domain_attr).av_type };
        table.type_ = if kind == FI_AV_MAP { FI_AV_MAP } else { FI_AV_TABLE };
        // SAFETY: an open domain.
        let av_open = slot(unsafe { (*(*domain).ops).av_open }, "fi_av_open")?;
        // SAFETY: as above.
        check(library, "fi_av_open", unsafe { av_open(domain, &mut table, &mut self.av, null_mut()) })?;
        // SAFETY: integers and raw pointers.
        let mut queue: fi_cq_attr = unsafe { std::mem::zeroed() };
        queue.format = FI_CQ_FORMAT_MSG;
        queue.wait_obj = FI_WAIT_NONE;
        // SAFETY: fi_getinfo fills them.
        queue.size = unsafe { (*(*info).tx_attr).size + (*(*info).rx_attr).size };
        // SAFETY: an open domain.
        let cq_open = slot(unsafe { (*(*domain).ops).cq_open }, "fi_cq_open")?;
        // SAFETY: as above.
        check(library, "fi_cq_open", unsafe { cq_open(domain, &mut queue, &mut self.cq, null_mut()) })
    }

    fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_MAX];
        let mut len = name.len();
        // SAFETY: an enabled endpoint.
        let getname = slot(unsafe { (*(*self.ep).cm).getname }, "fi_getname")?;
        // SAFETY: the buffer has the length that is passed along.
        let status = unsafe { getname(self.ep.cast(), name.as_mut_ptr().cast(), &mut len) };
        check(self.library, "fi_getname", status)?;
        name.truncate(len);
        Ok(name)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        close(&mut self.ep);
        close(&mut self.cq);
        close(&mut self.av);
        close(&mut self.domain);
        close(&mut self.fabric);
        // SAFETY: it came from fi_getinfo and is no longer used.
        unsafe { (self.library.free_info)(self.info) };
    }
}
