//! What is measured: links, contenders, work and repetitions.

use isthmus_units::{Percent, Rate, Span};

use crate::contender::Contender;
use crate::link::Link;

/// What the data's way is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// So many bytes one way, in messages of 16 MB, from a cold start.
    Stream(u64),
    /// MPI_Sendrecv of 1 MB so often. One ends when what it sends is known to have arrived: MPICH asks
    /// its provider for `FI_DELIVERY_COMPLETE`.
    Exchange(u32),
    /// 8 bytes there and back so often.
    PingPong(u32),
    /// A message of so many bytes to a receive that is posted only after it began to arrive.
    Late(u64),
    /// A link is used by two for so many seconds.
    Share(u32),
}

impl Work {
    /// Its name in samples and on the program's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream(_) => "stream",
            Self::Exchange(_) => "exchange",
            Self::PingPong(_) => "pingpong",
            Self::Late(_) => "late",
            Self::Share(_) => "share",
        }
    }

    /// Bytes one way, how often, or how many seconds.
    pub(crate) fn amount(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) => bytes,
            Self::Exchange(times) | Self::PingPong(times) => u64::from(times),
            Self::Share(seconds) => u64::from(seconds),
        }
    }

    /// Payload that goes one way in all; 0 where that is not given. Bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) => bytes,
            Self::Exchange(times) => u64::from(times) * 1_000_000,
            Self::PingPong(times) => u64::from(times) * 8,
            Self::Share(_) => 0,
        }
    }

    /// The least time that it takes on a link. Seconds.
    pub(crate) fn floor_s(self, link: &Link) -> f64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) => link.floor_s(bytes),
            Self::Exchange(times) => f64::from(times) * link.floor_s(1_000_000),
            Self::PingPong(times) => f64::from(times) * link.rtt_s(),
            Self::Share(seconds) => f64::from(seconds),
        }
    }

    /// Whether a contender can do it.
    pub(crate) fn suits(self, contender: Contender) -> bool {
        match contender {
            Contender::Beside(_) => matches!(self, Self::Share(_)),
            Contender::Iperf(..) => matches!(self, Self::Stream(_)),
            _ => !matches!(self, Self::Share(_)),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Links, each with the work that is done on it.
    pub cells: Vec<(Link, Work)>,
    /// Who does it.
    pub contenders: Vec<Contender>,
    /// How often, in turn.
    pub runs: u32,
}

impl Matrix {
    /// Links of every round trip and loss.
    pub fn links(rate: Rate, mtu: u32, rtts: &[Span], losses: &[Percent]) -> Vec<Link> {
        let of = |rtt: &Span| {
            losses.iter().map(|loss| Link { rate, rtt: *rtt, loss: *loss, mtu }).collect::<Vec<_>>()
        };
        rtts.iter().flat_map(of).collect()
    }

    /// Least time of all runs together, labs' own times left out. Seconds.
    pub fn floor_s(&self) -> f64 {
        let suited = |work: Work| self.contenders.iter().filter(|one| work.suits(**one)).count() as f64;
        let once: f64 = self.cells.iter().map(|(link, work)| work.floor_s(link) * suited(*work)).sum();
        once * f64::from(self.runs)
    }
}
