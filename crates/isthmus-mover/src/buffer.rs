//! The memory of one block.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Page-aligned memory, as reads and writes past the page cache need it.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// Pages mapped from the system. Pages that a transfer does not touch cost nothing.
    Pages(MmapMut),
    /// Bytes without alignment.
    Bytes(Vec<u8>),
}

/// Alignment of buffers, and of reads and writes past the page cache. Bytes.
pub(crate) const PAGE: usize = 4096;

impl Buffer {
    /// Makes a buffer of zeros.
    ///
    /// # Errors
    /// The system has no memory left, or gives the process no more.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let refused = |error| {
            let text = format!(
                "no memory for a block of {len} bytes: {error}; give less to --memory (`memory` of isthmus serve), or make \
                 blocks shorter"
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
