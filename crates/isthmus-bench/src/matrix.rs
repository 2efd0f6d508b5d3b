//! The plan of a measurement: links, contenders, work and repetitions.

use isthmus_lab::catalogue::{Catalogue, NamedLink};
use isthmus_units::{Percent, Rate, Span};

use crate::contender::Contender;
use crate::link::{self, EmulatedLink};

/// One of this many messages goes before time counts, while the peers get to know each other.
const UNCOUNTED: u32 = 6;
/// Length of an outage, and time that the data of [`Work::Outage`] takes without it. Seconds.
pub(crate) const OUTAGE_S: f64 = 2.0;
const OUTAGE_SENDS_S: f64 = 6.0;
/// Start of the outage after the lab's beginning: data flows by then, however slowly MPI starts. Seconds.
const OUTAGE_AT_S: f64 = 4.0;
/// About how long it takes until data flows. Seconds.
pub(crate) const START_S: f64 = 1.0;

/// What a contender does on a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Sends this many bytes one way, in messages of 16 MB, from a cold start.
    Stream(u64),
    /// Sends this many messages of 64 KiB one way, each by MPI_Send when the one before has ended, from a cold start.
    Sends(u32),
    /// MPI_Sendrecv of 1 MB, this many times. A call can end when its data has arrived, half a round trip after it has
    /// left.
    Exchange(u32),
    /// Sends 8 bytes there and back, this many times.
    PingPong(u32),
    /// Sends a message of this many bytes. Its receive is posted only after it began to arrive.
    Late(u64),
    /// Two flows share a link for this many seconds.
    Share(u32),
    /// Messages of 256 KiB. A share of their receives is posted ahead; each other receive is posted when the
    /// message before is done.
    Preposted {
        /// Number of messages.
        messages: u32,
        /// Share of receives posted ahead. Percent.
        ahead: u32,
    },
    /// As [`Work::Stream`], over two links at once.
    Paths {
        /// Bytes.
        bytes: u64,
        /// The second link.
        second: EmulatedLink,
        /// The second link is cut while data flows.
        is_cut: bool,
    },
    /// Sends this many bytes one way, in messages of 256 KiB, over a link that is down for 2 s meanwhile.
    Outage(u64),
}

impl Work {
    /// Length of a message of [`Work::Preposted`]: about twelve of them fill 1 Gb/s at 24 ms. Bytes.
    pub const PREPOSTED: u64 = 256 << 10;

    /// Length of a message of [`Work::Sends`]. Bytes.
    pub const SENDS: u64 = 64 << 10;

    /// An outage on this link, with enough data that some is still unsent when the link is back.
    pub fn outage(link: &EmulatedLink) -> Self {
        Self::Outage((link.goodput() * OUTAGE_SENDS_S) as u64)
    }

    /// Name in samples and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream(_) => "stream",
            Self::Sends(_) => "sends",
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

    /// The program's argument: bytes one way, repetitions, or seconds.
    pub(crate) fn amount(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) | Self::Outage(bytes) | Self::Paths { bytes, .. } => {
                bytes
            }
            Self::Sends(times) | Self::Exchange(times) | Self::PingPong(times) => u64::from(times),
            Self::Preposted { messages, .. } => u64::from(messages),
            Self::Share(seconds) => u64::from(seconds),
        }
    }

    /// Payload that goes one way while time counts; 0 if the work does not fix it. Bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) | Self::Outage(bytes) | Self::Paths { bytes, .. } => {
                bytes
            }
            Self::Sends(times) => u64::from(times) * Self::SENDS,
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

    /// Share of receives posted ahead, for [`Work::Preposted`]. Percent.
    pub(crate) fn ahead(self) -> Option<u32> {
        match self {
            Self::Preposted { ahead, .. } => Some(ahead),
            _ => None,
        }
    }

    /// The second link, if the work uses two.
    pub(crate) fn second(self) -> Option<EmulatedLink> {
        match self {
            Self::Paths { second, .. } => Some(second),
            _ => None,
        }
    }

    /// When the link that fails goes down, if one does. Seconds from the lab's beginning.
    pub(crate) fn down_at_s(self, link: &EmulatedLink) -> Option<f64> {
        match self {
            Self::Outage(_) => Some(OUTAGE_AT_S),
            Self::Paths { is_cut: true, .. } => Some(START_S + self.floor_s(link) / 2.0),
            _ => None,
        }
    }

    /// Shortest time that the work can take on a link. Seconds.
    pub(crate) fn floor_s(self, link: &EmulatedLink) -> f64 {
        match self {
            Self::Stream(bytes) | Self::Late(bytes) => link.floor_s(bytes),
            Self::Sends(_) => link.floor_s(self.bytes()),
            Self::Exchange(times) => f64::from(times) * link.arrival_floor_s(1_000_000),
            Self::PingPong(times) => f64::from(times) * link.rtt_s(),
            Self::Share(seconds) => f64::from(seconds),
            // Other messages are under way when time begins to count, and no answer is awaited.
            Self::Preposted { .. } => self.bytes() as f64 / link.goodput(),
            Self::Paths { bytes, second, .. } => link::floor_of_both_s(bytes, link, &second, None),
            Self::Outage(bytes) => link.floor_s(bytes) + OUTAGE_S,
        }
    }

    /// Extra time that the slowest correct protocol takes. Seconds.
    pub(crate) fn patience_s(self, link: &EmulatedLink) -> f64 {
        match self {
            // A receive that is not posted ahead is posted when the message before is done.
            Self::Preposted { messages, ahead } => {
                f64::from(messages) * (1.0 - f64::from(ahead) / 100.0) * link.floor_s(Self::PREPOSTED)
            }
            // Others end a call when what was sent is acknowledged.
            Self::Sends(times) => f64::from(times) * link.rtt_s(),
            Self::Exchange(times) => f64::from(times) * link.rtt_s() / 2.0,
            // One link may carry nearly all of it.
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

/// The plan. `steps` lists its runs in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// What the links that have a name do.
    pub catalogue: Catalogue,
    /// Links, each with the work done on it.
    pub cells: Vec<(EmulatedLink, Work)>,
    /// The contenders.
    pub contenders: Vec<Contender>,
    /// Number of repetitions.
    pub runs: u32,
    /// Seed of the first repetition's random decisions. Each further one adds 1.
    pub seed: u64,
}

/// One run of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// Number of the repetition, from 1.
    pub(crate) run: u32,
    pub(crate) seed: u64,
    pub(crate) link: EmulatedLink,
    pub(crate) work: Work,
    pub(crate) contender: Contender,
}

impl Matrix {
    /// One link for each pair of round trip and loss.
    pub fn links(rate: Rate, mtu: u32, rtts: &[Span], losses: &[Percent]) -> Vec<EmulatedLink> {
        let of = |rtt: &Span| {
            losses
                .iter()
                .map(|loss| EmulatedLink { rate, rtt: *rtt, loss: *loss, mtu, name: None })
                .collect::<Vec<_>>()
        };
        rtts.iter().flat_map(of).collect()
    }

    /// The catalogue's entry for a link; `None` if the link has no name.
    pub(crate) fn entry(&self, link: &EmulatedLink) -> Option<&NamedLink> {
        self.catalogue.links.iter().find(|one| EmulatedLink::named(one) == *link)
    }

    /// Number of runs.
    pub fn count(&self) -> usize {
        self.steps().len()
    }

    /// Shortest time of all runs together, without the labs' starts and ends. Seconds.
    pub fn floor_s(&self) -> f64 {
        self.steps().iter().map(|step| step.work.floor_s(&step.link)).sum()
    }

    /// All runs in order: the contenders of one cell, then the next cell, then all of it again.
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
