//! The call that tells where ranks are.

use std::ffi::c_int;

/// `isthmus_site`.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_site(rank: c_int) -> c_int {
    let site = u32::try_from(rank).ok().and_then(isthmus_substrate::site);
    site.and_then(|site| c_int::try_from(site).ok()).unwrap_or(-1)
}
