//! Logs through libfabric's own log.
//!
//! The library imports no symbol of libfabric, so it looks the functions up at run time: in the global scope, or else
//! in whichever libfabric is loaded. A program that hides its libfabric gets no log.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

use isthmus_io::log::Severity;

use crate::abi::fi_provider;

/// `enum fi_log_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Something that the user should change.
    Warn = 0,
    /// The event and its reason.
    Info = 2,
    /// For people who look for a fault.
    Debug = 3,
}

/// The provider as libfabric knows it, once it is loaded.
static PROVIDER: AtomicPtr<fi_provider> = AtomicPtr::new(std::ptr::null_mut());

/// Logs in the name of this provider, also the lines of `isthmus-io`.
pub(crate) fn install(provider: *mut fi_provider) {
    PROVIDER.store(provider, Ordering::Release);
    isthmus_io::log::set_hook(|severity, text| {
        let level = match severity {
            Severity::Warn => Level::Warn,
            Severity::Info => Level::Info,
            Severity::Debug => Level::Debug,
        };
        write(level, text);
    });
}

const FI_LOG_CORE: c_int = 0;

type Enabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(*const fi_provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

#[derive(Clone, Copy)]
struct Functions {
    enabled: Enabled,
    log: Log,
}

/// Writes one line, if the user asked for this level (`FI_LOG_LEVEL`). Without that variable, warnings go to standard
/// error: libfabric is silent by default, and most programs print nothing but an errno.
pub(crate) fn write(level: Level, text: fmt::Arguments<'_>) {
    let Some(functions) = functions() else { return tell(level, text) };
    let provider = PROVIDER.load(Ordering::Acquire);
    // SAFETY: the function is libfabric's, and the provider is the one that it knows.
    if unsafe { (functions.enabled)(provider, level as c_int, FI_LOG_CORE) } == 0 {
        return tell(level, text);
    }
    let Ok(text) = CString::new(text.to_string()) else { return };
    // SAFETY: as above; the format takes one string.
    unsafe {
        (functions.log)(
            provider,
            level as c_int,
            FI_LOG_CORE,
            c"isthmus".as_ptr(),
            0,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
}

fn tell(level: Level, text: fmt::Arguments<'_>) {
    if level == Level::Warn && std::env::var_os("FI_LOG_LEVEL").is_none() {
        // The launcher may end us within the call.
        let _ = isthmus_io::log::print(&format!("isthmus: {text}\n"));
    }
}

/// Warns once, however many operations fail for the same cause.
pub(crate) fn once(text: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock();
    if *last != text {
        text.clone_into(&mut last);
        write(Level::Warn, format_args!("{text}"));
    }
}

fn functions() -> Option<Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    *FUNCTIONS.get_or_init(|| {
        let enabled = symbol(c"fi_log_enabled")?;
        let log = symbol(c"fi_log")?;
        // SAFETY: libfabric declares this function so since 1.0.
        let enabled = unsafe { std::mem::transmute::<*mut c_void, Enabled>(enabled) };
        // SAFETY: likewise.
        let log = unsafe { std::mem::transmute::<*mut c_void, Log>(log) };
        Some(Functions { enabled, log })
    })
}

/// The address of one of libfabric's functions, if libfabric can be found.
pub(crate) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: dlsym with a terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let found = if found.is_null() { symbol_in_loaded(name) } else { found };
    (!found.is_null()).then_some(found)
}

/// Searches a libfabric that was loaded without global symbols, as Python does.
fn symbol_in_loaded(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let path = std::fs::read_to_string("/proc/self/maps")
            .ok()?
            .lines()
            .filter_map(|line| Some(&line[line.find('/')?..]))
            .find(|path| is_libfabric(path))
            .and_then(|path| CString::new(path).ok())?;
        // SAFETY: RTLD_NOLOAD only takes a handle on what is there.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        (!handle.is_null()).then_some(handle as usize)
    });
    let Some(library) = library else { return std::ptr::null_mut() };
    // SAFETY: a handle of dlopen that is never closed, and a terminated name.
    unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) }
}

fn is_libfabric(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|file| file.starts_with("libfabric"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfabric_is_known_by_its_file_name() {
        assert!(is_libfabric("/opt/x/libfabric.so.1"));
        assert!(is_libfabric("/opt/x/libfabric-29de.so.1.21.0"));
        assert!(!is_libfabric("/opt/libfabric/libmpi.so.12"));
    }
}
