//! The provider's entry: what libfabric finds when it loads the library.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_int};

use isthmus_io::PARAMETERS;

use crate::abi::{fi_context, fi_provider};
use crate::flags::version;
use crate::info::{NAME, PROVIDER_VERSION};
use crate::{fabric, fork, info, log};

/// The API version that we claim. libfabric skips providers with a lower one than a program requests.
const API_VERSION: u32 = version(2, 99);
const FI_PARAM_STRING: c_int = 0;

/// The one structure that libfabric keeps a pointer to, and writes its own context into.
struct Shared(UnsafeCell<fi_provider>);

// SAFETY: we never read or write it after the start; what libfabric does in it happens
// under libfabric's own lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(UnsafeCell::new(fi_provider {
    version: PROVIDER_VERSION,
    fi_version: API_VERSION,
    context: fi_context { internal: [std::ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// The provider as libfabric knows it.
fn pointer() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// Called by libfabric, once, under its initialisation lock.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let start = || {
        fork::register();
        log::install(pointer());
        declare_parameters();
    };
    match std::panic::catch_unwind(start) {
        Ok(()) => pointer(),
        Err(_) => std::ptr::null_mut(),
    }
}

extern "C" fn cleanup() {}

type Define = unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;

/// Tells libfabric our settings, so that `fi_info -g` lists them.
fn declare_parameters() {
    let Some(define) = log::symbol(c"fi_param_define") else { return };
    // SAFETY: libfabric declares this function so since 1.0.
    let define = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Define>(define) };
    for parameter in PARAMETERS {
        let (Ok(name), Ok(help)) = (CString::new(parameter.name), CString::new(parameter.describe())) else {
            continue;
        };
        // SAFETY: libfabric copies both texts; the format takes one string.
        unsafe { define(pointer(), name.as_ptr(), FI_PARAM_STRING, c"%s".as_ptr(), help.as_ptr()) };
    }
}
