//! Compositions: the parts that make up a stream, by name.

use std::fmt;
use std::str::FromStr;

use crate::congestion::{CongestionControl, Cubic, Limits, Rate, Reno};
use crate::detection::{Adaptive, Fixed, LossDetection};
use crate::mtu::{Given, PathMtu, Search};
use crate::protection::{Checked, Plain, Protection};
use crate::redundancy::{Measured, Once, Redundancy};

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $name:literal,)+ })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in compositions.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    )+};
}

kinds! {
    /// Congestion controls.
    CongestionKind {
        /// Models the path (`rate`); loss alone does not count as congestion.
        Rate = "rate",
        /// Uses only what other flows leave of the path (RFC 6297).
        Background = "background",
        /// CUBIC (RFC 9438).
        Cubic = "cubic",
        /// Reno (RFC 5681).
        Reno = "reno",
    }
    /// Rules for loss detection.
    DetectionKind {
        /// Learns how much the path reorders packets.
        Adaptive = "adaptive",
        /// A packet is lost when three later ones have arrived.
        Fixed = "fixed",
    }
    /// Rules for copies.
    RedundancyKind {
        /// As many as the measured loss requires, at tails.
        Measured = "measured",
        /// No copies.
        Once = "once",
    }
    /// Rules for packet sizes.
    MtuKind {
        /// Found by probing the path.
        Search = "search",
        /// The interface's own.
        Given = "given",
    }
    /// Checksums of packets.
    ChecksumKind {
        /// UDP's own checksum of 16 bits.
        None = "none",
        /// CRC-32C in each packet that is not sealed. An altered packet is dropped, so its data is retransmitted.
        Crc32c = "crc32c",
    }
}

/// The parts of a stream. As text, their names joined by `+`: `rate+adaptive+measured+search`. A missing name stands
/// for the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composition {
    /// Congestion control: how much is in flight, and how fast it is sent.
    pub congestion: CongestionKind,
    /// Loss detection: when a packet counts as lost.
    pub detection: DetectionKind,
    /// Redundancy: what is sent more than once.
    pub redundancy: RedundancyKind,
    /// Path MTU: how large packets are.
    pub mtu: MtuKind,
    /// Checksum, which shows that a packet was altered on the way.
    pub checksum: ChecksumKind,
}

impl Default for Composition {
    fn default() -> Self {
        Self {
            congestion: CongestionKind::Rate,
            detection: DetectionKind::Adaptive,
            redundancy: RedundancyKind::Measured,
            mtu: MtuKind::Search,
            checksum: ChecksumKind::None,
        }
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [self.congestion.name(), self.detection.name(), self.redundancy.name(), self.mtu.name()];
        f.write_str(&names.join("+"))?;
        match self.checksum {
            ChecksumKind::None => Ok(()),
            checksum => write!(f, "+{}", checksum.name()),
        }
    }
}

/// Why a text is not a composition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A name that no part has.
    #[error("`{0}` is no protocol of a udp lane; expected names such as `rate+adaptive+measured+search`")]
    Unknown(String),
    /// Two names of the same kind of part.
    #[error("`{0}` and `{1}` do the same in a udp lane; choose one of them")]
    Both(&'static str, String),
}

impl FromStr for Composition {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut before = [None; 5];
        for name in text.split('+').map(str::trim).filter(|name| !name.is_empty()) {
            let found = [
                set(&mut spec.congestion, CongestionKind::ALL, name, CongestionKind::name),
                set(&mut spec.detection, DetectionKind::ALL, name, DetectionKind::name),
                set(&mut spec.redundancy, RedundancyKind::ALL, name, RedundancyKind::name),
                set(&mut spec.mtu, MtuKind::ALL, name, MtuKind::name),
                set(&mut spec.checksum, ChecksumKind::ALL, name, ChecksumKind::name),
            ];
            let place = found.iter().position(Option::is_some);
            let place = place.ok_or_else(|| SpecError::Unknown(name.to_owned()))?;
            if let Some(before) = std::mem::replace(&mut before[place], found[place]) {
                return Err(SpecError::Both(before, name.to_owned()));
            }
        }
        Ok(spec)
    }
}

/// Sets `field` to the kind called `name`, if there is one, and returns that name.
fn set<T: Copy>(field: &mut T, all: &[T], name: &str, of: fn(T) -> &'static str) -> Option<&'static str> {
    let found = all.iter().copied().find(|kind| of(*kind) == name)?;
    *field = found;
    Some(of(found))
}

impl Composition {
    /// Makes the congestion control.
    pub fn congestion(&self, limits: Limits) -> Box<dyn CongestionControl> {
        match self.congestion {
            CongestionKind::Rate => Box::new(Rate::new(limits)),
            CongestionKind::Background => Box::new(Rate::background(limits)),
            CongestionKind::Cubic => Box::new(Cubic::new(limits)),
            CongestionKind::Reno => Box::new(Reno::new(limits)),
        }
    }

    /// Makes the rule for loss detection.
    pub fn detection(&self) -> Box<dyn LossDetection> {
        match self.detection {
            DetectionKind::Adaptive => Box::new(Adaptive::default()),
            DetectionKind::Fixed => Box::new(Fixed::default()),
        }
    }

    /// Makes the rule for copies.
    pub fn redundancy(&self) -> Box<dyn Redundancy> {
        match self.redundancy {
            RedundancyKind::Measured => Box::new(Measured),
            RedundancyKind::Once => Box::new(Once),
        }
    }

    /// Makes the rule for UDP payloads up to `most`, behind `overhead` bytes of IP and UDP headers.
    pub fn mtu(&self, most: u32, overhead: u32) -> Box<dyn PathMtu> {
        match self.mtu {
            MtuKind::Search => Box::new(Search::new(most, overhead)),
            MtuKind::Given => Box::new(Given::new(most)),
        }
    }

    /// Makes the protection of packets that are not sealed.
    pub(crate) fn checksum(&self) -> Box<dyn Protection> {
        match self.checksum {
            ChecksumKind::Crc32c => Box::new(Checked),
            ChecksumKind::None => Box::new(Plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_composition_is_its_text() {
        assert_eq!(Composition::default().to_string(), "rate+adaptive+measured+search");
        let spec: Composition = "once + cubic".parse().expect("valid");
        assert_eq!(spec.to_string(), "cubic+adaptive+once+search");
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let checked: Composition = "reno+crc32c".parse().expect("valid");
        assert_eq!(checked.to_string(), "reno+adaptive+measured+search+crc32c");
        assert_eq!("reno+none".parse(), Ok(Composition { checksum: ChecksumKind::None, ..checked }));
        let wrong = |text: &str| text.parse::<Composition>().expect_err("invalid");
        assert_eq!(wrong("rate+vegas"), SpecError::Unknown("vegas".to_owned()));
        assert_eq!(wrong("rate+once+cubic"), SpecError::Both("rate", "cubic".to_owned()));
        assert_eq!(wrong("crc32c+none"), SpecError::Both("crc32c", "none".to_owned()));
        assert_eq!(spec.congestion(Limits::default()).name(), "cubic");
        assert_eq!((spec.detection().name(), spec.redundancy().name()), ("adaptive", "once"));
        assert_eq!(spec.mtu(8_972, 28).name(), "search");
    }
}
