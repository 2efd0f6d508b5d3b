//! Which links of a router carry new lanes. UDP does not mistake losses or long round trips for congestion; TCP costs
//! less processor time.

use crate::thresholds::distance::VERY_LONG_US;
use crate::thresholds::links::{LOSSY, MIN_SENT};
use crate::{Carrier, Micros};

/// Measurements of the links on a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinksSeen {
    /// The shortest round trip, if any is known. Microseconds.
    pub rtt_us: Option<Micros>,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets of them that were sent again.
    pub resent: u64,
}

/// The better carrier for new lanes on a path with links of both kinds, and why.
#[must_use]
pub fn better(seen: LinksSeen) -> (Carrier, &'static str) {
    if seen.rtt_us.is_some_and(|rtt_us| rtt_us >= VERY_LONG_US) {
        (Carrier::Udp, "UDP: the round trip is 150 ms or more")
    } else if seen.resent as f64 > LOSSY * (seen.sent as f64).max(MIN_SENT) {
        (Carrier::Udp, "UDP: more than 2 % of the packets are sent again")
    } else {
        (Carrier::Tcp, "TCP: the path is short and loses little")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_carries_on_long_and_on_lossy_paths() {
        let carrier = |rtt_us, sent, resent| better(LinksSeen { rtt_us: Some(rtt_us), sent, resent }).0;
        assert_eq!(carrier(24_000, 1_000_000, 19_000), Carrier::Tcp);
        assert_eq!(carrier(24_000, 1_000_000, 21_000), Carrier::Udp);
        assert_eq!(carrier(24_000, 100, 50), Carrier::Tcp, "too few to tell");
        assert_eq!(carrier(150_000, 0, 0), Carrier::Udp);
        assert_eq!(better(LinksSeen::default()).0, Carrier::Tcp);
    }
}
