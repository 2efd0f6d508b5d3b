//! The contenders of a measurement.

use std::fmt;

/// Carries the data of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// MPI over Isthmus with its defaults.
    Isthmus,
    /// MPI over Isthmus, with all lanes over this transport.
    IsthmusBy(&'static str),
    /// MPI over Isthmus, with this protocol for all longer messages (setting `transfer`).
    Transfer(&'static str),
    /// The same MPI over libfabric's tcp provider, with this congestion control.
    Stock(&'static str),
    /// iperf3 with this congestion control and number of streams.
    Iperf(&'static str, u32),
    /// One iperf3 stream with this congestion control, while MPI over Isthmus uses the same link.
    Beside(&'static str),
}

impl Contender {
    /// All contenders.
    pub const ALL: [Self; 14] = [
        Self::Isthmus,
        Self::IsthmusBy("tcp"),
        Self::IsthmusBy("udp"),
        Self::Transfer("eager"),
        Self::Transfer("rendezvous"),
        Self::Transfer("mixed"),
        Self::Stock("cubic"),
        Self::Stock("bbr"),
        Self::Iperf("cubic", 1),
        Self::Iperf("cubic", 8),
        Self::Iperf("bbr", 1),
        Self::Iperf("bbr", 8),
        Self::Beside("cubic"),
        Self::Beside("bbr"),
    ];

    /// The contender with this displayed name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.to_string() == name)
    }

    /// Congestion control of the sites' TCP. Stock MPI uses the system's. The others set their own, so their sites
    /// keep the usual default.
    pub(crate) fn sites_congestion(self) -> &'static str {
        match self {
            Self::Stock(control) => control,
            _ => "cubic",
        }
    }

    /// Whether iperf3 runs alone, without MPI.
    pub(crate) fn is_iperf(self) -> bool {
        matches!(self, Self::Iperf(..))
    }

    /// Whether iperf3 takes part.
    pub(crate) fn has_iperf(self) -> bool {
        self.is_iperf() || matches!(self, Self::Beside(_))
    }

    /// Whether Isthmus carries data.
    pub(crate) fn is_ours(self) -> bool {
        !matches!(self, Self::Stock(_) | Self::Iperf(..))
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isthmus => f.write_str("isthmus"),
            Self::IsthmusBy(how) | Self::Transfer(how) => write!(f, "isthmus-{how}"),
            Self::Stock(control) => write!(f, "stock-{control}"),
            Self::Iperf(control, streams) => write!(f, "iperf3-{control}-x{streams}"),
            Self::Beside(control) => write!(f, "{control}-beside-isthmus"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert!(Contender::ALL.iter().all(|one| Contender::named(&one.to_string()) == Some(*one)));
        assert_eq!(Contender::named("iperf3-reno-x1"), None);
    }
}
