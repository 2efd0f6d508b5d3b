//! Converts C pointers to Rust values.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use isthmus_io::Endpoint;
use libc::iovec;

use crate::abi::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_ioc, fi_rx_attr, fi_tx_attr};
use crate::error::{
    Error, FI_EAVAIL, FI_EBADFLAGS, FI_ENOAV, FI_ENOCQ, FI_ENOEQ, FI_ENOKEY, FI_EOPBADSTATE, FI_ETOOSMALL,
    FI_ETRUNC,
};

/// A C structure of which every field may be zero.
///
/// # Safety
/// All-zero bytes are a valid value.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_info {}
// SAFETY: integers.
unsafe impl Plain for fi_tx_attr {}
// SAFETY: integers.
unsafe impl Plain for fi_rx_attr {}
// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_ep_attr {}
// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_domain_attr {}
// SAFETY: integers and raw pointers.
unsafe impl Plain for fi_fabric_attr {}

/// A zeroed structure.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: by the trait's contract.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Copies the first `len` bytes of a structure that may be shorter in the caller's
/// version; the rest is zero. `None` for null.
///
/// # Safety
/// `from` is null or has `len` readable bytes.
pub(crate) unsafe fn copy_prefix<T: Plain>(from: *const T, len: usize) -> Option<T> {
    if from.is_null() {
        return None;
    }
    let mut copy: T = zeroed();
    let len = len.min(size_of::<T>());
    // SAFETY: readable by this function's contract; `copy` has at least `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut copy).cast::<u8>(), len) };
    Some(copy)
}

/// A C string; `None` for null.
///
/// # Safety
/// `from` is null or a terminated string that outlives `'a`.
pub(crate) unsafe fn text<'a>(from: *const c_char) -> Result<Option<&'a str>, Error> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(Some).map_err(|_| Error::Invalid("a name that is not UTF-8"))
}

/// An array of C; empty for a count of 0.
///
/// # Safety
/// `from` has `count` readable elements that outlive `'a`.
pub(crate) unsafe fn array<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Error> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Pieces of an operation's buffer, at most [`Endpoint::IOV_MAX`].
///
/// # Safety
/// As for [`array`].
pub(crate) unsafe fn pieces<'a>(from: *const iovec, count: usize) -> Result<&'a [iovec], Error> {
    if count > Endpoint::IOV_MAX {
        return Err(Error::Invalid("more pieces than iov_limit"));
    }
    // SAFETY: by this function's contract.
    unsafe { array(from, count) }
}

/// One piece.
pub(crate) fn piece(base: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: len }]
}

/// Total length. Bytes. Lengths that no memory has do not wrap: their sum is the largest number.
pub(crate) fn length(pieces: &[iovec]) -> usize {
    pieces.iter().fold(0, |all: usize, piece| all.saturating_add(piece.iov_len))
}

/// The `len` bytes from `start` of a buffer in pieces.
pub(crate) fn cut(pieces: &[iovec], start: usize, len: usize) -> Vec<iovec> {
    let (mut skip, mut want) = (start, len);
    let mut out = Vec::new();
    for piece in pieces {
        let used = want.min(piece.iov_len.saturating_sub(skip));
        if used > 0 {
            out.push(iovec { iov_base: piece.iov_base.wrapping_byte_add(skip), iov_len: used });
        }
        skip = skip.saturating_sub(piece.iov_len);
        want -= used;
    }
    out
}

/// Pieces that C counted in elements, counted in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Elements {
    pieces: [iovec; Endpoint::IOV_MAX],
    used: usize,
}

impl Elements {
    pub(crate) const EMPTY: Self =
        Self { pieces: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; Endpoint::IOV_MAX], used: 0 };

    /// The pieces of C's array.
    pub(crate) fn of(from: &[fi_ioc], size: usize) -> Result<Self, Error> {
        let mut out = Self::EMPTY;
        if from.len() > out.pieces.len() {
            return Err(Error::Invalid("more pieces than iov_limit"));
        }
        for (piece, ioc) in out.pieces.iter_mut().zip(from) {
            let len = ioc.count.checked_mul(size).ok_or(Error::Invalid("a count beyond memory"))?;
            *piece = iovec { iov_base: ioc.addr, iov_len: len };
        }
        out.used = from.len();
        Ok(out)
    }

    /// The `len` bytes from `start`.
    pub(crate) fn cut(&self, start: usize, len: usize) -> Self {
        let mut out = Self::EMPTY;
        for (to, from) in out.pieces.iter_mut().zip(cut(self.as_slice(), start, len)) {
            *to = from;
            out.used += 1;
        }
        out
    }

    pub(crate) fn as_slice(&self) -> &[iovec] {
        &self.pieces[..self.used]
    }
}

/// Copies a text as far as there is room, if there is any.
///
/// # Safety
/// `text` is terminated; `out` is null or has `len` writable bytes.
pub(crate) unsafe fn copy_text(text: *const c_char, out: *mut c_char, len: usize) {
    if out.is_null() || len == 0 {
        return;
    }
    // SAFETY: by this function's contract; strncpy writes exactly `len - 1` bytes.
    unsafe { libc::strncpy(out, text, len - 1) };
    // SAFETY: the last byte of the room.
    unsafe { out.add(len - 1).write(0) };
}

/// What an errno means, whatever its sign: one of the system, or of libfabric.
pub(crate) fn errno_text(errno: i32) -> &'static CStr {
    match errno.saturating_abs() {
        0 => c"no error",
        // No error has these numbers on Linux, and the C library makes such texts anew each time.
        41 | 58 => c"an unknown error",
        // SAFETY: the C library's own texts of these numbers are constants.
        known @ 1..=libc::EHWPOISON => unsafe { CStr::from_ptr(libc::strerror(known)) },
        FI_ETOOSMALL => c"the buffer is too small",
        FI_EOPBADSTATE => c"the object is in no state for this",
        FI_EAVAIL => c"an error entry waits",
        FI_EBADFLAGS => c"flags that are not supported",
        FI_ENOEQ => c"no event queue is bound",
        FI_ENOCQ => c"no completion queue is bound",
        FI_ETRUNC => c"the message is longer than the buffer",
        FI_ENOKEY => c"the key is not free",
        FI_ENOAV => c"no address vector is bound",
        _ => c"unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_callers_version_are_not_read() {
        let mut attr: fi_domain_attr = zeroed();
        attr.mr_mode = 3;
        attr.max_group_id = 9;
        let len = std::mem::offset_of!(fi_domain_attr, max_ep_auth_key);
        // SAFETY: the whole structure is readable.
        let copy = unsafe { copy_prefix(&raw const attr, len) }.expect("not null");
        assert_eq!((copy.mr_mode, copy.max_group_id), (3, 0));
    }

    #[test]
    fn a_cut_goes_through_the_pieces() {
        let bytes = [0_u8; 20];
        let base = bytes.as_ptr().cast::<c_void>();
        let at =
            |start: usize, len| iovec { iov_base: base.wrapping_byte_add(start).cast_mut(), iov_len: len };
        let whole = [at(0, 5), at(8, 0), at(10, 6)];
        let cut = |start, len| -> Vec<_> {
            let offset = |piece: &iovec| piece.iov_base.addr() - base.addr();
            super::cut(&whole, start, len).iter().map(|piece| (offset(piece), piece.iov_len)).collect()
        };
        assert_eq!(cut(0, 5), [(0, 5)]);
        assert_eq!(cut(3, 4), [(3, 2), (10, 2)]);
        assert_eq!(cut(5, 6), [(10, 6)]);
        assert_eq!(cut(7, 2), [(12, 2)]);
        assert_eq!(cut(4, 0), []);
    }

    #[test]
    fn elements_become_bytes() {
        let of = |count| Elements::of(&[fi_ioc { addr: std::ptr::null_mut(), count }], 8);
        assert_eq!(length(of(3).expect("one piece").as_slice()), 24);
        assert!(of(usize::MAX).is_err());
    }
}
