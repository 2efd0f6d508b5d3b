//! Finds libfabric at run time.
//!
//! Nothing is linked, so a program without libfabric still runs. Inside a libfabric program the
//! same library must be used that the program uses, whatever its name and path. Structures differ
//! in length between versions of libfabric, so only fields of version 1.14 are touched.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use isthmus_abi::abi::{fi_info, fid_fabric};
use isthmus_abi::flags;

use crate::FabricError;

/// The requested API version.
pub(crate) const API: u32 = flags::version(1, 14);

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type Fabric =
    unsafe extern "C" fn(*mut isthmus_abi::abi::fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

/// Functions that libfabric exports by name. All others are in tables.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) get_info: GetInfo,
    pub(crate) free_info: FreeInfo,
    pub(crate) dup_info: DupInfo,
    pub(crate) fabric: Fabric,
    str_error: StrError,
}

impl Library {
    /// The process's libfabric. It is loaded if necessary, and never unloaded.
    pub(crate) fn get() -> Result<&'static Self, FabricError> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Self::find).as_ref().ok_or(FabricError::NoLibrary)
    }

    fn find() -> Option<Self> {
        let open = |flags| {
            // SAFETY: a constant name; the initialisers of libfabric have no preconditions.
            unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), flags) }
        };
        // In order: loaded under that name; part of the program; newly loaded.
        let found = Self::of(open(libc::RTLD_NOW | libc::RTLD_NOLOAD));
        found.or_else(|| Self::of(libc::RTLD_DEFAULT)).or_else(|| Self::of(open(libc::RTLD_NOW)))
    }

    fn of(handle: *mut c_void) -> Option<Self> {
        if handle.is_null() && handle != libc::RTLD_DEFAULT {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: a handle of dlopen, or the default one, and a terminated name.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (get_info, free_info) = (symbol(c"fi_getinfo")?, symbol(c"fi_freeinfo")?);
        let (dup_info, fabric) = (symbol(c"fi_dupinfo")?, symbol(c"fi_fabric")?);
        let str_error = symbol(c"fi_strerror")?;
        Some(Self {
            // SAFETY: libfabric's function of this name has this type (fi_getinfo(3)).
            get_info: unsafe { std::mem::transmute::<*mut c_void, GetInfo>(get_info) },
            // SAFETY: as above.
            free_info: unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(free_info) },
            // SAFETY: as above.
            dup_info: unsafe { std::mem::transmute::<*mut c_void, DupInfo>(dup_info) },
            // SAFETY: as above, by fi_fabric(3).
            fabric: unsafe { std::mem::transmute::<*mut c_void, Fabric>(fabric) },
            // SAFETY: as above, by fi_errno(3).
            str_error: unsafe { std::mem::transmute::<*mut c_void, StrError>(str_error) },
        })
    }

    /// libfabric's text for an error. `code` may have either sign.
    pub(crate) fn text(&self, code: i64) -> String {
        // SAFETY: any number is valid, and the text is libfabric's own, for good.
        let text = unsafe { (self.str_error)(code.unsigned_abs() as c_int) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: not null, and terminated.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
