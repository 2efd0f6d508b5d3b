//! Who is measured.

use std::fmt;

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// MPI over Isthmus as it comes.
    Isthmus,
    /// MPI over Isthmus, its lanes by this transport alone.
    IsthmusBy(&'static str),
    /// MPI over Isthmus, all longer messages transferred in this way, whatever is measured.
    Transfer(&'static str),
    /// The same MPI over libfabric's tcp, under this congestion control.
    Stock(&'static str),
    /// iperf3 with so many streams under this congestion control.
    Iperf(&'static str, u32),
    /// iperf3 with one stream under this congestion control, while MPI over Isthmus sends by the same link.
    Beside(&'static str),
}

impl Contender {
    /// All that there are.
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

    /// The one of this name, as it is displayed.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.to_string() == name)
    }

    /// What the sites' TCP is set to: stock MPI leaves its congestion control to the system. The others have
    /// their own, and get what most systems have.
    pub(crate) fn sites_congestion(self) -> &'static str {
        match self {
            Self::Stock(control) => control,
            _ => "cubic",
        }
    }

    /// Whether it is iperf3 by itself; in all others MPI runs.
    pub(crate) fn is_iperf(self) -> bool {
        matches!(self, Self::Iperf(..))
    }

    /// Whether iperf3 takes part.
    pub(crate) fn has_iperf(self) -> bool {
        self.is_iperf() || matches!(self, Self::Beside(_))
    }

    /// Whether it is ours.
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
