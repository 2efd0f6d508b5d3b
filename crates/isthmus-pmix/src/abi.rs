//! The declarations of libpmix that the server uses: those of the PMIx standard 4, which later releases extend.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

/// Bytes of a name of a world, with the NUL.
const NAME: usize = 256;
/// Bytes of a key, with the NUL.
const KEY: usize = 512;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const NOT_SUPPORTED: c_int = -47;
pub(crate) const SUCCEEDED: c_int = -157;
/// The event that a rank ended without `PMIx_Finalize`.
pub(crate) const TERMINATED: c_int = -200;
/// All ranks.
pub(crate) const WILDCARD: u32 = u32::MAX - 1;
/// An event for ranks of this server.
pub(crate) const RANGE_LOCAL: u8 = 2;

const STRING: u16 = 3;
const UINT32: u16 = 14;
const PROC: u16 = 22;
const ARRAY: u16 = 39;

/// `pmix_proc_t`: a rank.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Proc {
    space: [c_char; NAME],
    pub(crate) rank: u32,
}

impl Proc {
    /// `None`: the name is too long.
    pub(crate) fn new(space: &CStr, rank: u32) -> Option<Self> {
        Some(Self { space: padded(space)?, rank })
    }
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    string: *const c_char,
    number: u32,
    proc: *const Proc,
    array: *const Array,
    /// As long as the longest member in C, `pmix_envar_t`.
    room: [*const c_void; 3],
}

/// `pmix_data_array_t`: values of one type.
#[repr(C)]
struct Array {
    kind: u16,
    len: usize,
    first: *const c_void,
}

/// `pmix_info_t`: a key and its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

// As a C compiler has them with the headers of 4.2.2. Those of 5.0.11 declare the same members.
const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);
const _: () = assert!(size_of::<Array>() == 24);

/// Keys with values. The values live at least as long as this does.
#[derive(Default)]
pub(crate) struct Infos<'a> {
    infos: Vec<Info>,
    texts: Vec<CString>,
    #[allow(clippy::vec_box, reason = "infos point to them, so they must not move")]
    arrays: Vec<Box<Array>>,
    procs: PhantomData<&'a Proc>,
}

impl<'a> Infos<'a> {
    pub(crate) fn text(&mut self, key: &CStr, text: CString) {
        self.texts.push(text);
        if let Some(text) = self.texts.last() {
            let string = text.as_ptr();
            self.push(key, STRING, Data { string });
        }
    }

    pub(crate) fn number(&mut self, key: &CStr, number: u32) {
        let mut data = Data { room: [null(); 3] };
        data.number = number;
        self.push(key, UINT32, data);
    }

    pub(crate) fn proc(&mut self, key: &CStr, proc: &'a Proc) {
        self.push(key, PROC, Data { proc });
    }

    pub(crate) fn procs(&mut self, key: &CStr, procs: &'a [Proc]) {
        self.arrays.push(Box::new(Array { kind: PROC, len: procs.len(), first: procs.as_ptr().cast() }));
        if let Some(all) = self.arrays.last() {
            // Taken after the box has moved into the list.
            let array: *const Array = &raw const **all;
            self.push(key, ARRAY, Data { array });
        }
    }

    /// The keys, in their order.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<String> {
        let text =
            |key: &[c_char; KEY]| key.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
        self.infos.iter().map(|info| text(&info.key)).collect()
    }

    fn push(&mut self, key: &CStr, kind: u16, data: Data) {
        if let Some(key) = padded(key) {
            self.infos.push(Info { key, flags: 0, value: Value { kind, data } });
        }
    }

    /// For C: the first of them, and how many.
    pub(crate) fn as_c(&mut self) -> (*mut Info, usize) {
        (self.infos.as_mut_ptr(), self.infos.len())
    }
}

fn padded<const LEN: usize>(text: &CStr) -> Option<[c_char; LEN]> {
    let bytes = text.to_bytes();
    let mut out = [0; LEN];
    if bytes.len() >= LEN {
        return None;
    }
    out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte as c_char);
    Some(out)
}

/// Frees what a call has given to libpmix.
pub(crate) type Release = unsafe extern "C" fn(*mut c_void);
/// Ends a fence: status, bytes, their count, libpmix's own data, and how to free the bytes.
pub(crate) type FenceDone =
    unsafe extern "C" fn(c_int, *const c_char, usize, *mut c_void, Option<Release>, *mut c_void);
type OperationDone = Option<unsafe extern "C" fn(c_int, *mut c_void)>;

pub(crate) type Finalized =
    unsafe extern "C" fn(*const Proc, *mut c_void, OperationDone, *mut c_void) -> c_int;
pub(crate) type Aborts = unsafe extern "C" fn(
    *const Proc,
    *mut c_void,
    c_int,
    *const c_char,
    *mut Proc,
    usize,
    OperationDone,
    *mut c_void,
) -> c_int;
pub(crate) type Fence = unsafe extern "C" fn(
    *const Proc,
    usize,
    *const Info,
    usize,
    *mut c_char,
    usize,
    Option<FenceDone>,
    *mut c_void,
) -> c_int;
pub(crate) type Connected =
    unsafe extern "C" fn(*const Proc, *mut c_void, *mut Info, usize, OperationDone, *mut c_void) -> c_int;

pub(crate) type Control = unsafe extern "C" fn(
    *const Proc,
    *const Proc,
    usize,
    *const Info,
    usize,
    Option<Release>,
    *mut c_void,
) -> c_int;

/// `pmix_server_module_t`: the functions that libpmix calls.
#[repr(C)]
pub(crate) struct Module {
    connected_before_4: Option<Connected>,
    finalized: Finalized,
    aborts: Aborts,
    fence: Fence,
    unused: [Option<Release>; 15],
    control: Control,
    unused_after_control: [Option<Release>; 7],
    connected: Connected,
    /// What later releases of libpmix append.
    later: [Option<Release>; 64],
}

impl Module {
    pub(crate) const fn new(
        finalized: Finalized,
        aborts: Aborts,
        fence: Fence,
        control: Control,
        connected: Connected,
    ) -> Self {
        Self {
            connected_before_4: None,
            finalized,
            aborts,
            fence,
            unused: [None; 15],
            control,
            unused_after_control: [None; 7],
            connected,
            later: [None; 64],
        }
    }

    pub(crate) const fn as_c(&'static self) -> *const Self {
        self
    }
}

/// No function to call back: the call waits until it is done.
pub(crate) const WAITS: OperationDone = None;
/// No data for a function that is not called back.
pub(crate) const NOTHING: *mut c_void = null_mut();

pub(crate) type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
pub(crate) type Init = unsafe extern "C" fn(*const Module, *mut Info, usize) -> c_int;
pub(crate) type RegisterSpace =
    unsafe extern "C" fn(*const c_char, c_int, *mut Info, usize, OperationDone, *mut c_void) -> c_int;
pub(crate) type RegisterClient =
    unsafe extern "C" fn(*const Proc, u32, u32, *mut c_void, OperationDone, *mut c_void) -> c_int;
pub(crate) type DeregisterSpace = unsafe extern "C" fn(*const c_char, OperationDone, *mut c_void);
pub(crate) type SetupFork = unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> c_int;
pub(crate) type Notify =
    unsafe extern "C" fn(c_int, *const Proc, u8, *const Info, usize, OperationDone, *mut c_void) -> c_int;
