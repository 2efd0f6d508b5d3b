//! What is measured: links, contenders, work and repetitions.

use isthmus_units::{Percent, Rate, Span};

use crate::contender::Contender;
use crate::link::{self, Link};

/// Of so many of them one is behind which time counts: until then the peers get to know each other.
const UNCOUNTED: u32 = 6;
/// How long a link is down, and how long data is sent, [`Work::Outage`]'s break left out. Seconds.
pub(crate) const OUTAGE_S: f64 = 2.0;
const OUTAGE_SENDS_S: f64 = 6.0;
/// When it goes down, counted from the lab's beginning: data flows by then, however slowly MPI starts. Seconds.
const OUTAGE_AT_S: f64 = 4.0;
/// About what it takes until data flows. Seconds.
const START_S: f64 = 1.0;

/// What the data's way is used for.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// Messages of 256 KiB, of whose receives a share is posted ahead, and each other when the one
    /// before is done.
    Preposted {
        /// How many messages.
        messages: u32,
        /// The share. Percent.
        ahead: u32,
    },
    /// As [`Work::Stream`], over two links at once.
    Paths {
        /// Bytes.
        bytes: u64,
        /// The other link.
        second: Link,
        /// It is cut while they are under way.
        is_cut: bool,
    },
    /// So many bytes one way, in messages of 256 KiB, over a link that is down for 2 s meanwhile.
    Outage(u64),
}

impl Work {
    /// Length of the messages of [`Work::Preposted`]: some twelve of them fill 1 Gb/s at 24 ms. Bytes.
    pub const PREPOSTED: u64 = 256 << 10;

    /// An outage on a link: data enough that some of it is still to be sent when the link is back.
    pub fn outage(link: &Link) -> Self {
        Self::Outage((link.goodput() * OUTAGE_SENDS_S) as u64)
    }

    /// Its name in samples and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream(_) => "stream",
            Self::Exchange(_) => "exchange",
            Self::PingPong(_) => "pingpong",
            Self::Late(_) => "late",
            Self::Share(_) => "share",
            Self::Preposted { .. } => "preposted",
            Self::Paths { is_cut: false, .. } => "paths",
            Self::Paths { is_cut: true, .. } => "paths-cut",
            Self::Outage(_) => "outage",
        }
    }

    /// Bytes one way, how often, or how many seconds: the program's own measure.
    pub(crate) fn amount(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) | Self::Outage(bytes) | Self::Paths { bytes, .. } => {
                bytes
            }
            Self::Exchange(times) | Self::PingPong(times) => u64::from(times),
            Self::Preposted { messages, .. } => u64::from(messages),
            Self::Share(seconds) => u64::from(seconds),
        }
    }

    /// Payload that goes one way in all while time counts; 0 where that is not given. Bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) | Self::Outage(bytes) | Self::Paths { bytes, .. } => {
                bytes
            }
            Self::Exchange(times) => u64::from(times) * 1_000_000,
            Self::PingPong(times) => u64::from(times) * 8,
            Self::Preposted { messages, .. } => u64::from(messages - self.uncounted()) * Self::PREPOSTED,
            Self::Share(_) => 0,
        }
    }

    /// Messages that go before time counts.
    pub(crate) fn uncounted(self) -> u32 {
        match self {
            Self::Preposted { messages, .. } => messages / UNCOUNTED,
            _ => 0,
        }
    }

    /// Share of receives that are posted ahead, where that is what differs. Percent.
    pub(crate) fn ahead(self) -> Option<u32> {
        match self {
            Self::Preposted { ahead, .. } => Some(ahead),
            _ => None,
        }
    }

    /// The other link, where there are two.
    pub(crate) fn second(self) -> Option<Link> {
        match self {
            Self::Paths { second, .. } => Some(second),
            _ => None,
        }
    }

    /// When the link, or the other one, goes down, where it does: from the lab's beginning. Seconds.
    pub(crate) fn down_at_s(self, link: &Link) -> Option<f64> {
        match self {
            Self::Outage(_) => Some(OUTAGE_AT_S),
            Self::Paths { is_cut: true, .. } => Some(START_S + self.floor_s(link) / 2.0),
            _ => None,
        }
    }

    /// The least time that it takes on a link. Seconds.
    pub(crate) fn floor_s(self, link: &Link) -> f64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) => link.floor_s(bytes),
            Self::Exchange(times) => f64::from(times) * link.floor_s(1_000_000),
            Self::PingPong(times) => f64::from(times) * link.rtt_s(),
            Self::Share(seconds) => f64::from(seconds),
            // Others are under way when time begins to count, and no answer is waited for.
            Self::Preposted { .. } => self.bytes() as f64 / link.goodput(),
            Self::Paths { bytes, second, .. } => link::floor_of_both_s(bytes, link, &second, None),
            Self::Outage(bytes) => link.floor_s(bytes) + OUTAGE_S,
        }
    }

    /// What the slowest way of doing it takes beyond that, though nothing is wrong. Seconds.
    pub(crate) fn patience_s(self, link: &Link) -> f64 {
        match self {
            // Each that is not posted ahead is asked for when the one before is done.
            Self::Preposted { messages, ahead } => {
                f64::from(messages) * (1.0 - f64::from(ahead) / 100.0) * link.floor_s(Self::PREPOSTED)
            }
            // One link carries nearly all of it.
            Self::Paths { bytes, second, .. } => link.floor_s(bytes).max(second.floor_s(bytes)),
            _ => 0.0,
        }
    }

    /// Whether a contender can do it.
    pub(crate) fn suits(self, contender: Contender) -> bool {
        match self {
            Self::Share(_) => matches!(contender, Contender::Beside(_)),
            Self::Preposted { .. } => {
                matches!(contender, Contender::Isthmus | Contender::IsthmusBy(_) | Contender::Transfer(_))
            }
            Self::Paths { .. } => matches!(contender, Contender::Isthmus | Contender::IsthmusBy(_)),
            Self::Stream(_) => !matches!(contender, Contender::Beside(_) | Contender::Transfer(_)),
            _ => matches!(contender, Contender::Isthmus | Contender::IsthmusBy(_) | Contender::Stock(_)),
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
    /// Of the first run's random decisions; that of each further one is one more.
    pub seed: u64,
}

/// One run of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// Its number among repetitions, from 1 on.
    pub(crate) run: u32,
    pub(crate) seed: u64,
    pub(crate) link: Link,
    pub(crate) work: Work,
    pub(crate) contender: Contender,
}

impl Matrix {
    /// Links of every round trip and loss.
    pub fn links(rate: Rate, mtu: u32, rtts: &[Span], losses: &[Percent]) -> Vec<Link> {
        let of = |rtt: &Span| {
            losses.iter().map(|loss| Link { rate, rtt: *rtt, loss: *loss, mtu }).collect::<Vec<_>>()
        };
        rtts.iter().flat_map(of).collect()
    }

    /// How many runs there are in all.
    pub fn count(&self) -> usize {
        self.steps().len()
    }

    /// Least time of all runs together, labs' own times left out. Seconds.
    pub fn floor_s(&self) -> f64 {
        self.steps().iter().map(|step| step.work.floor_s(&step.link)).sum()
    }

    /// All runs in their order: contenders of one cell after each other, then the next cell,
    /// then all of it again.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for run in 1..=self.runs {
            let seed = self.seed + u64::from(run - 1);
            for (link, work) in &self.cells {
                let suited = self.contenders.iter().filter(|one| work.suits(**one));
                steps.extend(suited.map(|one| Step { run, seed, link: *link, work: *work, contender: *one }));
            }
        }
        steps
    }
}
