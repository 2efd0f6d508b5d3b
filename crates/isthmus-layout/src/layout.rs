//! The volumes of files: devices or, in a parallel file system, its storage targets.
//!
//! Lustre gives a file's stripes in an attribute (`lustre.lov`: `lov_user_md` of its `lustre_user.h`). Other file
//! systems give a good length for reads and writes in `st_blksize` (`stat(2)`); their device counts as one target.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{fgetxattr, getxattr};

/// The usual block length, and the longest one chosen. Bytes. With longer blocks, reading and sending overlap less.
const USUAL: u64 = 1 << 20;
const LONGEST: u64 = 4 << 20;
/// Longest stripe. Bytes; so that an offset plus a stripe of each target is no overflow.
pub const STRIPE_MAX: u64 = 1 << 40;
/// Most storage targets of a file. Count; Lustre has up to 2000.
pub const TARGETS_MAX: usize = 2048;
/// Lustre's attribute.
const ATTRIBUTE: &str = "lustre.lov";
/// Longest attribute that is read. Bytes; enough for some thousands of stripes.
const ATTRIBUTE_MAX: usize = 64 << 10;
/// Length of a stripe's entry in that attribute, and the place of the target's number in it. Bytes.
const STRIPE_LEN: usize = 24;
const TARGET_AT: usize = 20;

/// What holds bytes: a device, or one storage target of a parallel file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume {
    device: u64,
    target: u32,
}

impl Volume {
    /// The device with this number (`st_dev` of `stat(2)`).
    pub fn of_device(device: u64) -> Self {
        Self { device, target: 0 }
    }
}

/// The volumes of a file. Its stripes lie on them in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    device: u64,
    /// Length of a stripe. Bytes.
    stripe: u64,
    /// The storage targets of the stripes; empty if the file has one volume.
    targets: Box<[u32]>,
}

impl Layout {
    /// A file with one volume.
    pub fn on_device(device: u64) -> Self {
        Self { device, ..Self::default() }
    }

    /// A file whose stripes of `stripe` bytes lie on these storage targets in turn.
    pub fn striped(device: u64, stripe: u64, targets: &[u32]) -> Self {
        let targets = if stripe == 0 || targets.len() < 2 { &[] } else { targets };
        Self { device, stripe, targets: targets.into() }
    }

    /// The layout of an open file on this device.
    pub fn of(file: impl AsFd, device: u64) -> Self {
        let recorded = recorded(|attribute| fgetxattr(file, ATTRIBUTE, attribute));
        recorded.map_or_else(
            || Self::on_device(device),
            |(stripe, targets)| Self::striped(device, stripe, &targets),
        )
    }

    /// The layout of the file or folder at this path. A folder's has a stripe and no targets.
    pub fn at(path: &Path) -> Self {
        let recorded = recorded(|attribute| getxattr(path, ATTRIBUTE, attribute));
        recorded.map_or_else(Self::default, |(stripe, targets)| Self::striped(0, stripe, &targets))
    }

    /// The volume of the byte at this offset.
    pub fn volume(&self, offset: u64) -> Volume {
        let stripe = offset.checked_div(self.stripe).unwrap_or(0);
        self.turn(stripe.checked_rem(self.targets.len() as u64).unwrap_or(0) as usize)
    }

    /// The volumes' turns, for offsets in units of `unit` bytes. One turn if a unit lies on several volumes.
    pub fn turns(&self, unit: u64) -> Turns {
        if self.stripe > 0 && self.stripe.is_multiple_of(unit) {
            Turns { stripe: self.stripe / unit, count: self.targets.len().max(1) as u64 }
        } else {
            Turns { stripe: 1, count: 1 }
        }
    }

    /// Length of a stripe. Bytes; 0 if there is none.
    pub fn stripe(&self) -> u64 {
        self.stripe
    }

    /// The storage targets of the stripes; empty if the file has one volume.
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// The volume whose turn it is.
    pub fn turn(&self, turn: usize) -> Volume {
        Volume { device: self.device, target: self.targets.get(turn).copied().unwrap_or(0) }
    }
}

/// How the volumes of a file take turns at its stripes. Offsets are in the unit that [`Layout::turns`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    stripe: u64,
    count: u64,
}

impl Turns {
    /// The number of turns.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first offset from `offset` on that lies on the volume of this turn.
    pub fn next(&self, offset: u64, turn: u64) -> u64 {
        let stripe = offset / self.stripe;
        match (turn + self.count - stripe % self.count) % self.count {
            0 => offset,
            later => (stripe + later) * self.stripe,
        }
    }

    /// The end of the stripe with this offset. A file of one volume has no end here.
    pub fn stripe_end(&self, offset: u64) -> u64 {
        if self.count > 1 { (offset / self.stripe + 1) * self.stripe } else { u64::MAX }
    }

    /// How much of the file before `end` lies on the volume of this turn.
    pub fn before(&self, end: u64, turn: u64) -> u64 {
        let cycle = self.stripe * self.count;
        let rest = (end % cycle).saturating_sub(turn * self.stripe).min(self.stripe);
        end / cycle * self.stripe + rest
    }
}

/// The block length for files at these places. Bytes. The same places give the same length, because a partial file
/// continues only with the block length that it began with.
pub fn block_for<'a>(places: impl IntoIterator<Item = &'a Path>) -> u64 {
    fitting(places.into_iter().filter_map(good_length).max().unwrap_or(0))
}

fn fitting(length: u64) -> u64 {
    length.clamp(USUAL, LONGEST).next_power_of_two()
}

fn good_length(place: &Path) -> Option<u64> {
    let recorded = recorded(|attribute| getxattr(place, ATTRIBUTE, attribute));
    let stripe = recorded.map(|(stripe, _)| stripe);
    stripe.or_else(|| std::fs::metadata(place).ok().map(|found| found.blksize()))
}

/// The stripes by the attribute that `read` reads.
fn recorded(read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> Option<(u64, Vec<u32>)> {
    let mut attribute = vec![0; ATTRIBUTE_MAX];
    let len = read(&mut attribute).ok()?;
    striped(&attribute[..len])
}

/// The length of a stripe and the target of each, if there are several. Versions 1 and 3 begin alike: magic, pattern,
/// owner, length and number of stripes. Version 3 adds the name of a pool. A folder has no targets yet. Other layouts,
/// such as composite ones or ones with more than [`TARGETS_MAX`] targets, give `None`.
fn striped(layout: &[u8]) -> Option<(u64, Vec<u32>)> {
    let magic = u32::from_le_bytes(*layout.first_chunk()?);
    let size = u32::from_le_bytes(*layout.get(24..)?.first_chunk()?);
    let count = u16::from_le_bytes(*layout.get(28..)?.first_chunk()?);
    let head = match magic {
        0x0bd1_0bd0 => 32,
        0x0bd3_0bd0 => 48,
        _ => return None,
    };
    if count == 1 || size == 0 || !size.is_multiple_of(64 << 10) {
        return None;
    }
    let entries = layout.get(head..).unwrap_or_default().chunks_exact(STRIPE_LEN).take(count.into());
    let target = |entry: &[u8]| Some(u32::from_le_bytes(*entry.get(TARGET_AT..)?.first_chunk()?));
    let targets: Vec<u32> = entries.filter_map(target).collect();
    (targets.len() <= TARGETS_MAX).then_some((size.into(), targets))
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
        layout.resize(if version == 1 { 32 } else { 48 }, 0);
        for stripe in 0..u32::from(count) {
            layout.resize(layout.len() + TARGET_AT, 0xee);
            layout.extend((100 + stripe).to_le_bytes());
        }
        layout
    }

    fn stripe_of(layout: &[u8]) -> Option<u64> {
        striped(layout).map(|(stripe, _)| stripe)
    }

    #[test]
    fn targets_are_read_as_lustre_tells_them_and_take_turns() {
        for version in [1, 3] {
            let (stripe, targets) = striped(&recorded(version, 1 << 20, 3)).expect("three stripes");
            assert_eq!(targets, [100, 101, 102], "version {version}");
            let layout = Layout::striped(7, stripe, &targets);
            let of = |offset: u64| layout.volume(offset << 19);
            assert!(of(0) == of(1) && of(0) != of(2) && of(0) == of(6) && of(2) == of(8), "{layout:?}");
            assert_eq!([1 << 20, 1 << 19, 2 << 20].map(|block| layout.turns(block).count()), [3, 3, 1]);
        }
        let folder = &recorded(3, 1 << 20, 4)[..48];
        assert_eq!(striped(folder), Some((1 << 20, Vec::new())), "a folder's default");
        let one = Layout::on_device(7);
        assert_eq!((one.volume(5 << 30), one.turns(1 << 20).count()), (Volume::of_device(7), 1));
        assert_eq!(
            Layout::striped(7, 1 << 20, &[3]).volume(0),
            Volume::of_device(7),
            "one target is the device"
        );
    }

    #[test]
    fn turns_tell_where_a_volume_is_next_and_how_much_it_has() {
        let layout = Layout::striped(7, 30, &[4, 5, 4]);
        let turns = layout.turns(1);
        for end in 0..400 {
            for turn in 0..3 {
                let is_on = |offset: &u64| offset / 30 % 3 == turn;
                assert_eq!(turns.before(end, turn), (0..end).filter(is_on).count() as u64, "{turn} to {end}");
                assert_eq!(Some(turns.next(end, turn)), (end..).find(is_on), "{turn} from {end}");
            }
            assert!(turns.stripe_end(end) > end && turns.stripe_end(end).is_multiple_of(30));
        }
        assert_eq!(layout.volume(10), layout.volume(60), "a target may have several turns");
        let one = Layout::on_device(7).turns(1);
        assert_eq!((one.next(17, 0), one.before(17, 0), one.stripe_end(17)), (17, 17, u64::MAX));
    }

    #[test]
    fn stripes_are_read_as_lustre_tells_them() {
        assert_eq!(stripe_of(&recorded(1, 1 << 20, 2)), Some(1 << 20));
        assert_eq!(stripe_of(&recorded(3, 4 << 20, 8)), Some(4 << 20));
        assert_eq!(stripe_of(&recorded(3, 4 << 20, 1)), None, "on one target any length will do");
        assert_eq!(stripe_of(&recorded(6, 4 << 20, 8)), None, "a layout that changes along the file");
        assert_eq!(stripe_of(&recorded(3, 1 << 20, TARGETS_MAX as u16)), Some(1 << 20));
        assert_eq!(stripe_of(&recorded(3, 1 << 20, TARGETS_MAX as u16 + 1)), None, "too many targets");
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
