//! Scientific network tags (scitags.org): they tell a network to which experiment and activity a flow belongs. Packets
//! by IPv6 have the tag in their flow label, and fireflies announce it.
//!
//! `flows.rs` decides which fireflies are due and `firefly.rs` makes them, both without I/O. `sender.rs` sends them.

mod firefly;
mod flows;
mod sender;

pub(crate) use firefly::{Flow, FlowProtocol};
pub(crate) use sender::Fireflies;

use crate::settings::Tag;

/// The bits of a flow label that are free. They differ between flows, so that a network spreads these over its links.
pub(crate) const ENTROPY: u32 = 0b11 << 18 | 1 << 8 | 0b11;

impl Tag {
    /// The flow label of a tag, without its [`ENTROPY`]. From the highest bit: 2 free ones, 9 for the experiment with
    /// its lowest bit first, 1 free one, 6 for the activity, 2 free ones (draft-cc-v6ops-wlcg-flow-label-marking).
    pub(crate) fn flow_label(self) -> u32 {
        let experiment = u32::from(self.experiment).reverse_bits() >> (u32::BITS - 9);
        experiment << 9 | u32::from(self.activity) << 2
    }
}

#[cfg(test)]
#[allow(clippy::unusual_byte_groupings, reason = "groups are the fields of a flow label")]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_experiment_reversed_and_the_activity_between_free_bits() {
        let label = |experiment, activity| Tag { experiment, activity }.flow_label();
        assert_eq!(label(1, 1), 0b00_100000000_0_000001_00);
        assert_eq!(label(2, 15), 0b00_010000000_0_001111_00);
        // The examples of the specification's own tools: experiment 16, activity 8.
        assert_eq!(label(16, 8), 0b00_000010000_0_001000_00);
        assert_eq!(label(0b1_0000_0011, 0b10_0001), 0b00_110000001_0_100001_00);
        assert_eq!(label(511, 63) | ENTROPY, 0xf_ffff);
        assert_eq!(label(511, 63) & ENTROPY, 0);
    }
}
