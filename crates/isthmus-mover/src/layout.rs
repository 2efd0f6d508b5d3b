//! Chooses the block length by the layout of files on this host's storage.
//!
//! Lustre gives a file's stripes in an attribute (`lustre.lov`: `lov_user_md` of its `lustre_user.h`). Other file
//! systems give a good length for reads and writes in `st_blksize` (`stat(2)`). With a block of one stripe, or a part
//! of one, each request goes to one server.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::getxattr;

/// The usual block length, and the longest one chosen. Bytes. With longer blocks, reading and sending overlap less.
const USUAL: u64 = 1 << 20;
const LONGEST: u64 = 4 << 20;
/// Longest attribute that is read. Bytes; enough for some thousands of stripes.
const ATTRIBUTE_MAX: usize = 64 << 10;

/// The block length for files at these places. Bytes. The same places give the same length, because a partial file
/// continues only with the block length that it began with.
pub fn block_for<'a>(places: impl IntoIterator<Item = &'a Path>) -> u64 {
    fitting(places.into_iter().filter_map(good_length).max().unwrap_or(0))
}

fn fitting(length: u64) -> u64 {
    length.clamp(USUAL, LONGEST).next_power_of_two()
}

fn good_length(place: &Path) -> Option<u64> {
    let mut layout = vec![0; ATTRIBUTE_MAX];
    let told = getxattr(place, "lustre.lov", &mut layout[..]).ok();
    let striped = told.and_then(|len| stripe_of(&layout[..len]));
    striped.or_else(|| std::fs::metadata(place).ok().map(|found| found.blksize()))
}

/// The length of a stripe, if the file has several. Versions 1 and 3 begin alike: magic, pattern, owner, length and
/// number of stripes. Other layouts, such as composite ones, give `None`.
fn stripe_of(layout: &[u8]) -> Option<u64> {
    let magic = u32::from_le_bytes(*layout.first_chunk()?);
    let size = u32::from_le_bytes(*layout.get(24..)?.first_chunk()?);
    let count = u16::from_le_bytes(*layout.get(28..)?.first_chunk()?);
    let known = matches!(magic, 0x0bd1_0bd0 | 0x0bd3_0bd0);
    (known && count != 1 && size != 0 && size.is_multiple_of(64 << 10)).then_some(u64::from(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout as getxattr returns it.
    fn recorded(version: u8, size: u32, count: u16) -> Vec<u8> {
        let mut layout = vec![0xd0, 0x0b, 0xd0 + version, 0x0b, 1, 0, 0, 0];
        layout.resize(24, 0);
        layout.extend(size.to_le_bytes());
        layout.extend(count.to_le_bytes());
        layout.resize(72, 0);
        layout
    }

    #[test]
    fn stripes_are_read_as_lustre_tells_them() {
        assert_eq!(stripe_of(&recorded(1, 1 << 20, 2)), Some(1 << 20));
        assert_eq!(stripe_of(&recorded(3, 4 << 20, 8)), Some(4 << 20));
        assert_eq!(stripe_of(&recorded(3, 4 << 20, 1)), None, "on one target any length will do");
        assert_eq!(stripe_of(&recorded(6, 4 << 20, 8)), None, "a layout that changes along the file");
        assert_eq!(stripe_of(&recorded(1, 1 << 20, 2)[..29]), None, "cut off");
        assert_eq!(stripe_of(&[]), None);
    }

    #[test]
    fn blocks_are_as_long_as_stripes_within_bounds_and_the_same_each_time() {
        assert_eq!(
            [0, 4096, 1 << 20, 3 << 20, 4 << 20, 64 << 20].map(fitting),
            [1, 1, 1, 4, 4, 4].map(|mib| mib << 20)
        );
        let here = Path::new("/");
        assert_eq!(block_for([here, Path::new("/nowhere/at/all")]), block_for([here]));
        assert_eq!(block_for([Path::new("/nowhere/at/all")]), USUAL);
    }
}
