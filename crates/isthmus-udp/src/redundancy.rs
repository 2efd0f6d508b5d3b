//! Redundancy: how many copies and how much parity to send before a packet's fate is known.

/// Kind of a transmission, as far as it matters for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// Data with more behind it, which will show whether it was lost.
    Bulk,
    /// Data with nothing behind it yet: small messages, and the ends of large ones.
    Tail,
    /// Data in flight when a long transfer ends.
    Flight,
    /// Data that was lost before.
    Lost {
        /// Number of losses, from 1.
        times: u8,
        /// Whether nothing else waits to be sent.
        tail: bool,
    },
}

/// A rule for copies and parity.
pub trait Redundancy: Send + std::fmt::Debug {
    /// Number of transmissions of one packet, 1..=[`COPIES_MAX`], if the path loses the share `loss` (0.0..=1.0) of
    /// packets.
    fn packets(&self, matter: Matter, loss: f64) -> u8;
    /// Number of parity packets for `packets` packets of the last flight of a long transfer; 0 for none. Losses come in
    /// runs of `run` packets on average, at least 1.
    fn parity(&self, packets: u8, loss: f64, run: f64) -> u8;
    /// Its name in compositions.
    fn name(&self) -> &'static str;
}

/// Most transmissions of one packet, the first one included. Count.
pub const COPIES_MAX: u8 = 4;

/// Sends each packet once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Once;

impl Redundancy for Once {
    fn packets(&self, _: Matter, _: f64) -> u8 {
        1
    }
    fn parity(&self, _: u8, _: f64, _: f64) -> u8 {
        0
    }
    fn name(&self) -> &'static str {
        "once"
    }
}

/// Loss below which copies and parity for the last flight of a long transfer are not worth it. Share.
const FLIGHT_MIN: f64 = 0.000_01;

/// Sends as many copies as the measured loss requires. Bulk data gets none, nor does its first retransmission while
/// bulk data follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured;

/// Standard deviations by which losses may exceed the expected number that parity repairs.
const DEVIATIONS: f64 = 3.5;
/// Share of tails that may wait another round trip for a retransmission.
const MISS: f64 = 0.000_5;
/// The same share for bulk data that was lost twice. Such data is rare, so copies cost little, and nothing behind it
/// can be read before it comes.
const MISS_AMID: f64 = 0.005;

impl Redundancy for Measured {
    fn packets(&self, matter: Matter, loss: f64) -> u8 {
        let (least, miss) = match matter {
            Matter::Bulk | Matter::Lost { times: 0..=1, tail: false } => return 1,
            Matter::Flight if loss < FLIGHT_MIN => return 1,
            Matter::Flight => (2.0, MISS),
            Matter::Lost { times: 2, tail: false } => (1.0, MISS_AMID),
            Matter::Tail | Matter::Lost { .. } => (1.0, MISS),
        };
        // The least number of packets that are all lost in no more than the share `miss` of cases.
        let enough = if loss < 1.0 { miss.ln() / loss.max(f64::MIN_POSITIVE).ln() } else { f64::MAX };
        enough.ceil().clamp(least, f64::from(COPIES_MAX)) as u8
    }
    fn parity(&self, packets: u8, loss: f64, run: f64) -> u8 {
        if loss < FLIGHT_MIN {
            return 0;
        }
        // Expected losses among packets and parity together. A margin of standard deviations covers all but a few cases
        // in ten thousand.
        let (kept, packets) = ((1.0 - loss).max(0.1), f64::from(packets));
        let lost = packets * loss / kept;
        // The Gilbert model: runs have geometric lengths, which raises the variance of the number of losses.
        let variance = lost / kept * (2.0 * run - 1.0);
        (lost + DEVIATIONS * variance.sqrt() + 1.0).ceil().min(255.0) as u8
    }
    fn name(&self) -> &'static str {
        "measured"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_follow_loss_and_spare_bulk() {
        let tail = |loss| Measured.packets(Matter::Tail, loss);
        assert_eq!([0.0, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0].map(tail), [1, 1, 2, 2, 3, 4, 4, 4]);
        assert_eq!(Measured.packets(Matter::Bulk, 0.5), 1);
        assert_eq!(Measured.packets(Matter::Lost { times: 1, tail: false }, 0.1), 1);
        let flight = |loss| Measured.packets(Matter::Flight, loss);
        assert_eq!([0.0, 0.0001, 0.01, 0.05, 0.1].map(flight), [1, 2, 2, 3, 4]);
        let amid = |times| Measured.packets(Matter::Lost { times, tail: false }, 0.1);
        assert_eq!([1, 2, 3].map(amid), [1, 3, 4]);
        assert_eq!(Measured.packets(Matter::Lost { times: 1, tail: true }, 0.1), 4);
        assert_eq!(Once.packets(Matter::Tail, 0.5), 1);
        let parity = |loss| Measured.parity(250, loss, 1.0);
        assert_eq!([0.0, 0.0001, 0.001, 0.01, 0.1, 0.9].map(parity), [0, 2, 4, 10, 49, 255]);
        assert_eq!(Measured.parity(250, 0.01, 5.0), 21);
        assert_eq!(Once.parity(250, 0.1, 1.0), 0);
    }
}
