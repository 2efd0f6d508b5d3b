//! Who is measured.

use std::fmt;

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// MPI over Isthmus as it comes.
    Isthmus,
    /// MPI over Isthmus, its lanes by this transport alone.
    IsthmusBy(&'static str),
    /// The same MPI over libfabric's tcp, under this congestion control.
    Stock(&'static str),
    /// iperf3 with so many streams under this congestion control.
    Iperf(&'static str, u32),
    /// iperf3 with one stream under this congestion control, while MPI over Isthmus sends by the same link.
    Beside(&'static str),
}

impl Contender {
    /// All that there are.
    pub const ALL: [Self; 11] = [
        Self::Isthmus,
        Self::IsthmusBy("tcp"),
        Self::IsthmusBy("udp"),
        Self::Stock("cubic"),
        Self::Stock("bbr"),
        Self::Iperf("cubic", 1),
        Self::Iperf("cubic", 8),
        Self::Iperf("bbr", 1),
        Self::Iperf("bbr", 8),
        Self::Beside("cubic"),
        Self::Beside("bbr"),
    ];

    /// The one of this name, as it is displayed.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.to_string() == name)
    }

    /// Congestion control of the sites' TCP, where the contender leaves that to the system.
    pub(crate) fn congestion(self) -> Option<&'static str> {
        match self {
            Self::Stock(control) => Some(control),
            // Isthmus has its own, whatever the sites'.
            Self::Isthmus | Self::IsthmusBy(_) | Self::Beside(_) => Some("cubic"),
            Self::Iperf(..) => None,
        }
    }

    /// Whether MPI is what runs.
    pub(crate) fn is_mpi(self) -> bool {
        !matches!(self, Self::Iperf(..))
    }

    /// Whether iperf3 takes part.
    pub(crate) fn has_iperf(self) -> bool {
        matches!(self, Self::Iperf(..) | Self::Beside(_))
    }

    /// Whether it is ours.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Isthmus | Self::IsthmusBy(_) | Self::Beside(_))
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isthmus => f.write_str("isthmus"),
            Self::IsthmusBy(transport) => write!(f, "isthmus-{transport}"),
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
