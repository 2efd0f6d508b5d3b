//! Ranges of protocol versions. Each end says its range, and both speak the newest version that is in both.

use crate::{PROTOCOL_OLDEST, PROTOCOL_VERSION};

/// The versions of a protocol that a build speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Versions {
    /// The versions that this build speaks on lanes.
    pub const OWN: Self = Self { oldest: PROTOCOL_OLDEST, newest: PROTOCOL_VERSION };

    /// The newest version in both ranges.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_both_is_spoken() {
        let of = |oldest, newest| Versions { oldest, newest };
        assert_eq!(of(3, 3).common(of(3, 4)), Some(3));
        assert_eq!(of(3, 5).common(of(2, 4)), Some(4));
        assert_eq!(of(3, 3).common(of(4, 5)), None);
        assert_eq!(of(4, 5).common(of(3, 3)), None);
    }
}
