//! Finds libpmix at run time. Nothing is linked, so that programs without libpmix still run.

use std::ffi::{CStr, c_int, c_void};

use crate::Error;
use crate::abi::{
    DeregisterSpace, ErrorString, Init, Notify, RegisterClient, RegisterSpace, SUCCEEDED, SUCCESS, SetupFork,
};

/// The functions of libpmix that the server calls.
pub(crate) struct Library {
    error_string: ErrorString,
    pub(crate) init: Init,
    pub(crate) register_space: RegisterSpace,
    pub(crate) deregister_space: DeregisterSpace,
    pub(crate) register_client: RegisterClient,
    pub(crate) setup_fork: SetupFork,
    pub(crate) notify: Notify,
}

impl Library {
    /// Loads it. It stays for good.
    pub(crate) fn load() -> Result<Self, Error> {
        // libpmix has plugins, which look for its symbols among those of the process.
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        // SAFETY: a constant name; the initialisers of libpmix have no preconditions.
        let handle = unsafe { libc::dlopen(c"libpmix.so.2".as_ptr(), flags) };
        if handle.is_null() {
            return Err(Error::NoLibrary(load_error()));
        }
        let symbol = |name: &'static CStr| {
            // SAFETY: a handle of dlopen, and a terminated name.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let name = name.to_str().unwrap_or_default();
            if found.is_null() { Err(Error::NoFunction(name)) } else { Ok(found) }
        };
        let (error_string, init) = (symbol(c"PMIx_Error_string")?, symbol(c"PMIx_server_init")?);
        let register_space = symbol(c"PMIx_server_register_nspace")?;
        let deregister_space = symbol(c"PMIx_server_deregister_nspace")?;
        let register_client = symbol(c"PMIx_server_register_client")?;
        let (setup_fork, notify) = (symbol(c"PMIx_server_setup_fork")?, symbol(c"PMIx_Notify_event")?);
        Ok(Self {
            // SAFETY: libpmix's function of this name has this type, by the PMIx standard.
            error_string: unsafe { std::mem::transmute::<*mut c_void, ErrorString>(error_string) },
            // SAFETY: as above.
            init: unsafe { std::mem::transmute::<*mut c_void, Init>(init) },
            // SAFETY: as above.
            register_space: unsafe { std::mem::transmute::<*mut c_void, RegisterSpace>(register_space) },
            // SAFETY: as above.
            deregister_space: unsafe {
                std::mem::transmute::<*mut c_void, DeregisterSpace>(deregister_space)
            },
            // SAFETY: as above.
            register_client: unsafe { std::mem::transmute::<*mut c_void, RegisterClient>(register_client) },
            // SAFETY: as above.
            setup_fork: unsafe { std::mem::transmute::<*mut c_void, SetupFork>(setup_fork) },
            // SAFETY: as above.
            notify: unsafe { std::mem::transmute::<*mut c_void, Notify>(notify) },
        })
    }

    /// Whether a call has succeeded.
    pub(crate) fn check(&self, status: c_int, what: &'static str) -> Result<(), Error> {
        match status {
            SUCCESS | SUCCEEDED => Ok(()),
            _ => Err(Error::Call { what, why: self.text(status) }),
        }
    }

    fn text(&self, status: c_int) -> String {
        // SAFETY: any number is valid, and the text is libpmix's own, for good.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return format!("error {status}");
        }
        // SAFETY: not null, and terminated.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Why dlopen failed.
fn load_error() -> String {
    // SAFETY: no preconditions; no other thread loads libraries here.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, and terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
