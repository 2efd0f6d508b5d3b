//! What is known about one host, and the plan that follows.

use std::fmt;

use crate::Micros;
use crate::evidence::{LaneSample, UdpLook};
use crate::losses::{PathLosses, Trace};
use crate::segments::{Cause, SegmentLimit, Stuck};
use crate::sharing::{PathPart, Sharing};
use crate::thresholds::distance::{LONG_US, REPAIR_US, VERY_LONG_US};
use crate::thresholds::transport::VALID_US;
use crate::trial::{Change, TcpTrial};

/// How much of the bulk data a lane carries that could fill its path alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bulk {
    /// All, so that no other lane is needed.
    #[default]
    All,
    /// What it can, beside several TCP lanes: a trial whether these carry more.
    Part,
    /// None while there are other lanes, since several TCP lanes do better. It carries small messages.
    None,
}

/// The protocol that carries new lanes to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, which does well.
    Tcp,
    /// UDP, which gets through.
    Udp,
    /// UDP if it gets through: a race decides.
    UdpIfItPasses,
    /// TCP, since UDP does not get through.
    TcpOnly,
}

/// The congestion control of a new TCP lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Loss is a sign of a full queue: CUBIC (RFC 9438).
    Cubic,
    /// Loss is not: BBR.
    Bbr,
}

/// Why UDP does better than the TCP lanes that there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weakness {
    /// The path loses packets by itself, and is long enough for that to matter.
    Lossy,
    /// The path is short and slow, and the kernel's bursts overflow its queue. `rate` is what it delivers (bytes/s),
    /// `rtt_us` its round trip without a queue.
    Overflows {
        /// Bytes/s.
        rate: u64,
        /// Microseconds.
        rtt_us: Micros,
    },
}

/// A finding about a host that decides which protocol carries its lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// UDP gets through, and the round trip is long.
    Far {
        /// Microseconds.
        rtt_us: Micros,
    },
    /// UDP gets through, and was wanted.
    GetsThrough,
    /// The round trip is short.
    Near {
        /// The limit. Microseconds.
        below_us: Micros,
    },
    /// UDP gets through, and TCP does not connect.
    OnlyUdp,
    /// TCP connects, and no packet comes back by UDP.
    NoAnswer,
    /// This host's interface carries no packets of the length that UDP lanes need.
    TooLong,
    /// Nothing comes by UDP any more, while TCP gets through.
    Silent {
        /// Milliseconds of silence.
        ms: u64,
    },
    /// TCP lanes lose packets that met no queue.
    LostWithoutQueue,
    /// TCP's bursts overflow the queue of a short path.
    Overflows,
    /// A trial of TCP began or ended.
    Trial(Change),
    /// The host's state was dropped for that of another, which was used later.
    Forgotten,
}

impl Finding {
    /// The protocol that follows.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        match self {
            Self::Far { .. } | Self::GetsThrough | Self::OnlyUdp | Self::Forgotten => Carrier::Udp,
            Self::Near { .. } => Carrier::Tcp,
            Self::NoAnswer | Self::Silent { .. } | Self::TooLong => Carrier::TcpOnly,
            Self::LostWithoutQueue | Self::Overflows => Carrier::UdpIfItPasses,
            Self::Trial(change) if change.bulk() == Bulk::All => Carrier::Udp,
            Self::Trial(_) => Carrier::Tcp,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Far { rtt_us } => write!(f, "the round trip is {} ms", rtt_us / 1_000),
            Self::GetsThrough => f.write_str("it gets through"),
            Self::Near { below_us } => write!(f, "the round trip is below {} ms", below_us / 1_000),
            Self::OnlyUdp => f.write_str("it gets through, and TCP does not connect"),
            Self::NoAnswer => f.write_str("no answer comes"),
            Self::TooLong => f.write_str("the interface refuses packets of the length that UDP lanes need"),
            Self::Silent { ms } => write!(f, "no answer came for {ms} ms, but by TCP"),
            Self::LostWithoutQueue => f.write_str("packets are lost without a queue"),
            Self::Overflows => f.write_str("bursts by TCP overflow the queue of a short path"),
            Self::Trial(change) => change.fmt(f),
            Self::Forgotten => f.write_str("what was known of the host made room for others"),
        }
    }
}

/// The choice that the settings leave.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Lanes may go by TCP and by UDP. Otherwise UDP carries wherever it gets through.
    pub may_choose: bool,
}

/// What is known about the path to one host.
#[derive(Debug, Default)]
pub struct PathState {
    /// When it was last used. Microseconds.
    pub(crate) used: Micros,
    found: Option<(Finding, Micros)>,
    trial: TcpTrial,
    losses: PathLosses,
    segment: SegmentLimit,
    pub(crate) sharing: Sharing,
}

/// What carries data to a host, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The protocol of new lanes; `None`: dial by both, a race decides.
    pub carrier: Option<Carrier>,
    /// How much of the bulk data is for UDP lanes.
    pub bulk: Bulk,
    /// The path loses packets by itself, so that TCP lanes take BBR.
    pub is_lossy: bool,
    /// The part of each TCP lane.
    pub part: PathPart,
    /// The largest segment of TCP lanes; `None`: the interface decides. Bytes.
    pub segment: Option<u32>,
    /// The reason for `carrier`, if something was found.
    pub why: Option<Finding>,
}

/// Makes the plan for a host.
#[must_use]
pub fn decide(state: &PathState, policy: Policy, now: Micros) -> Plan {
    let valid = state.found.filter(|(_, at)| now < at + VALID_US);
    let carrier = match valid {
        _ if state.trial.bulk() != Bulk::All => Some(Carrier::Tcp),
        Some((finding, _)) => Some(finding.carrier()),
        None if policy.may_choose => None,
        None => Some(Carrier::Udp),
    };
    Plan {
        carrier,
        bulk: state.trial.bulk(),
        is_lossy: state.losses.is_lossy(),
        part: state.sharing.part(),
        segment: state.segment.get(now),
        why: state.found.map(|(finding, _)| finding),
    }
}

impl Plan {
    /// The congestion control of a new TCP lane with this round trip (microseconds), and the reason if it is not the
    /// usual one.
    #[must_use]
    pub fn congestion(&self, rtt_us: Option<Micros>) -> (Congestion, &'static str) {
        if self.is_lossy {
            (Congestion::Bbr, "others have lost packets without a queue")
        } else if rtt_us.is_some_and(|rtt_us| rtt_us >= LONG_US) {
            (Congestion::Bbr, "a long round trip")
        } else {
            (Congestion::Cubic, "")
        }
    }
}

/// The round trip from which on UDP carries new lanes. Microseconds. `udp_from_us` is the setting; lanes within TLS come
/// up by UDP a round trip later, which pays on very long paths only.
#[must_use]
pub fn long_us(udp_from_us: Micros, within_tls: bool) -> Micros {
    if within_tls { udp_from_us.max(VERY_LONG_US) } else { udp_from_us }
}

impl PathState {
    /// Takes in a finding. True if it is news: another protocol follows than before.
    pub(crate) fn learn(&mut self, now: Micros, finding: Finding) -> bool {
        let is_udp = matches!(finding.carrier(), Carrier::Udp | Carrier::UdpIfItPasses);
        if self.trial.bulk() != Bulk::All && is_udp {
            return false; // We know already that UDP gets through.
        }
        if let Some((before, at)) = &mut self.found
            && before.carrier() == finding.carrier()
        {
            *at = now;
            return false;
        }
        self.found = Some((finding, now));
        true
    }

    /// Its lanes take another route: what was found about the protocols no longer holds.
    pub(crate) fn forget_findings(&mut self) {
        self.found = None;
    }

    /// How much of the bulk data is for UDP lanes.
    pub(crate) fn bulk(&self) -> Bulk {
        self.trial.bulk()
    }

    /// Takes in a look at the UDP lanes to the host.
    pub(crate) fn on_udp(&mut self, now: Micros, look: UdpLook) -> Option<Change> {
        let change = self.trial.look(now, look.rtt_us, look.packet, look.work);
        self.note(now, change)
    }

    /// Takes in the bytes that have arrived by a TCP lane.
    pub(crate) fn on_tcp_bulk(&mut self, now: Micros, arrived: u64, idled: bool) -> Option<Change> {
        let change = self.trial.on_tcp(now, arrived, idled);
        self.note(now, change)
    }

    /// The path loses packets by itself: UDP lanes carry again if they rested.
    pub(crate) fn on_lossy(&mut self, now: Micros) -> Option<Change> {
        let change = self.trial.on_lossy_path(now);
        self.note(now, change)
    }

    /// The reason for a protocol is new, even if the protocol is not.
    fn note(&mut self, now: Micros, change: Option<Change>) -> Option<Change> {
        self.found = change.map(|change| (Finding::Trial(change), now)).or(self.found);
        change
    }

    /// A TCP lane stands still, while `answers` new connections to its peer succeeded.
    pub(crate) fn on_stuck(&mut self, now: Micros, answers: u32, stuck: Stuck) -> Option<Cause> {
        self.segment.judge(now, answers, stuck)
    }

    /// Takes in a sample of a TCP lane; `trace` is the lane's last one.
    pub(crate) fn on_tcp_sample(&mut self, trace: &mut Trace, sample: LaneSample) -> LossVerdict {
        let was_lossy = self.losses.is_lossy();
        self.losses.on_sample(trace, sample);
        match (was_lossy, self.losses.is_lossy()) {
            (true, false) => LossVerdict::CleanAgain,
            (_, true) if sample.rtt_us >= REPAIR_US => LossVerdict::Lossy { is_slow_to_repair: true },
            (_, true) => LossVerdict::Lossy { is_slow_to_repair: false },
            _ => LossVerdict::Clean,
        }
    }
}

/// What a TCP lane's sample tells of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossVerdict {
    /// The path loses nothing by itself.
    Clean,
    /// It no longer does.
    CleanAgain,
    /// It does.
    Lossy {
        /// Losses cost TCP more than UDP costs the processor.
        is_slow_to_repair: bool,
    },
}
