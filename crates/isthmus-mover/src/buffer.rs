//! Memory of a block.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Memory that begins with a page, as files want it that are read and written past the page cache.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// Pages of its own, from the system and given back to it: of many that a transfer may need, those that it
    /// does not touch cost nothing.
    Pages(MmapMut),
    /// As it is, wherever that begins.
    Bytes(Vec<u8>),
}

/// Where a buffer begins, and what is read or written past the page cache, is a multiple of this. Bytes.
pub(crate) const PAGE: usize = 4096;

impl Buffer {
    /// Of zeros.
    ///
    /// # Errors
    /// Where the system has no memory left, or gives the process no more.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let refused = |error| {
            let text = format!(
                "no memory for a block of {len} bytes: {error}; give less to --memory, or make blocks shorter"
            );
            io::Error::other(text)
        };
        MmapMut::map_anon(len).map(Self::Pages).map_err(refused)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pages(pages) => pages,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Pages(pages) => pages,
            Self::Bytes(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_with_a_page_and_is_as_long_as_asked_for() {
        for len in [1, PAGE, (1 << 20) + 17] {
            let buffer = Buffer::new(len).expect("there is memory");
            assert_eq!((buffer.as_ptr().align_offset(PAGE), buffer.len()), (0, len));
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(*Buffer::from(vec![1, 2]), [1, 2]);
    }

    #[test]
    fn memory_that_there_is_not_is_refused_with_what_helps() {
        let said = Buffer::new(isize::MAX as usize).expect_err("more than addresses reach").to_string();
        assert!(said.contains("--memory"), "{said}");
    }
}
