//! Memory of a block.

use std::ops::{Deref, DerefMut};

/// Memory that begins with a page, as files want it that are read and written past the page cache.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

/// Where a buffer begins, and what is read or written past the page cache, is a multiple of this. Bytes.
pub(crate) const PAGE: usize = 4096;

impl Buffer {
    /// Of zeros.
    pub(crate) fn new(len: usize) -> Self {
        let mut bytes = vec![0; len + PAGE - 1];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE - 1);
        bytes.truncate(start + len);
        Self { bytes, start }
    }
}

/// As it is, wherever that begins.
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_with_a_page_and_is_as_long_as_asked_for() {
        for len in [0, 1, PAGE, (1 << 20) + 17] {
            let buffer = Buffer::new(len);
            assert_eq!((buffer.as_ptr().align_offset(PAGE), buffer.len()), (0, len));
        }
        assert_eq!(*Buffer::from(vec![1, 2]), [1, 2]);
    }
}
