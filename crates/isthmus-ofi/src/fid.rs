//! The part that all libfabric objects have in common.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{fi_ops, fid};
use crate::door::refusals;

type Close = unsafe extern "C" fn(*mut fid) -> c_int;
type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Control = unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int;

/// The table of an object that can be closed, bound and controlled.
pub(crate) const fn ops(close: Close, bind: Option<Bind>, control: Option<Control>) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: match bind {
            Some(bind) => Some(bind),
            None => Some(no_bind),
        },
        control: match control {
            Some(control) => Some(control),
            None => Some(no_control),
        },
        ops_open: Some(no_ops_open),
        tostr: Some(no_tostr),
        ops_set: Some(no_ops_set),
    }
}

/// The head of an object.
pub(crate) fn head(class: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class, context, ops: table(ops) }
}

/// A table as C wants it. C only reads it.
pub(crate) fn table<T>(table: &'static T) -> *mut T {
    std::ptr::from_ref(table).cast_mut()
}

refusals! {
    fn no_bind(*mut fid, *mut fid, u64) -> c_int;
    fn no_control(*mut fid, c_int, *mut c_void) -> c_int;
    fn no_ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    fn no_tostr(*const fid, *mut c_char, usize) -> c_int;
    fn no_ops_set(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int;
}
