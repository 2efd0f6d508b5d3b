//! What is sent more than once before anything is known of its fate.

/// What a transmission is, as far as copies of it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// More follows, which will show whether it was lost.
    Bulk,
    /// Nothing follows yet: small messages, and the ends of large ones.
    Tail,
    /// What is under way when a long transfer ends.
    Flight,
    /// It was lost so many times.
    Lost {
        /// 1 the first time.
        times: u8,
        /// Nothing else waits to be sent.
        tail: bool,
    },
}

/// A rule for copies.
pub trait Redundancy: Send + std::fmt::Debug {
    /// How many packets to send altogether, 1..=[`COPIES_MAX`], if `loss` (0.0..=1.0) of
    /// them is lost on the path.
    fn packets(&self, matter: Matter, loss: f64) -> u8;
    /// How many packets of parity to send for so many of the last flight of a long transfer;
    /// 0 where that is not to be coded. Losses come in runs of `run` packets on average, 1 or more.
    fn parity(&self, packets: u8, loss: f64, run: f64) -> u8;
    /// Its name in compositions.
    fn name(&self) -> &'static str;
}

/// Most packets for one.
pub const COPIES_MAX: u8 = 4;

/// One packet for each.
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

/// Loss below which nobody waits for the last flight of a long transfer.
const FLIGHT_LEAST: f64 = 0.000_01;

/// As many as the measured loss asks for, and where they matter: none in the middle of bulk
/// data, nor where what was lost once is sent again while bulk data follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured;

/// Standard deviations of loss that parity makes good.
const DEVIATIONS: f64 = 3.5;
/// Share of tails that may wait for another round trip.
const MISS: f64 = 0.000_5;
/// Share of what was lost twice in the middle of bulk data that may: so little of it is, that
/// its copies cost next to nothing, and nothing behind it can be read before it comes.
const MISS_AMID: f64 = 0.005;

impl Redundancy for Measured {
    fn packets(&self, matter: Matter, loss: f64) -> u8 {
        let (least, miss) = match matter {
            Matter::Bulk | Matter::Lost { times: 0..=1, tail: false } => return 1,
            Matter::Flight if loss < FLIGHT_LEAST => return 1,
            Matter::Flight => (2.0, MISS),
            Matter::Lost { times: 2, tail: false } => (1.0, MISS_AMID),
            Matter::Tail | Matter::Lost { .. } => (1.0, MISS),
        };
        // Of a share `loss` of them each is lost: so many that all are in a share `miss` of cases.
        let enough = if loss < 1.0 { miss.ln() / loss.max(f64::MIN_POSITIVE).ln() } else { f64::MAX };
        enough.ceil().clamp(least, f64::from(COPIES_MAX)) as u8
    }
    fn parity(&self, packets: u8, loss: f64, run: f64) -> u8 {
        if loss < FLIGHT_LEAST {
            return 0;
        }
        // What is lost of packets and parity together, and of that a little more than it comes to
        // in all but a few cases in ten thousand.
        let (kept, packets) = ((1.0 - loss).max(0.1), f64::from(packets));
        let lost = packets * loss / kept;
        // Runs of geometric length, as of the model of Gilbert: so much does the number of packets vary.
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
