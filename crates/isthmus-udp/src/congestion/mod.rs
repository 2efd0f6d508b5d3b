//! How much may be under way, and how fast it leaves.

mod classic;
mod rate;

pub use classic::{Cubic, Reno};
pub use rate::Rate;

use isthmus_ledger::{Group, Plan};

use crate::Micros;

/// What an acknowledgement brought. All bytes are as on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// When it came.
    pub now: Micros,
    /// Bytes that it says have arrived.
    pub acked_bytes: u64,
    /// Packets that it says have arrived.
    pub acked_packets: u64,
    /// Packets that now count as lost.
    pub lost_packets: u64,
    /// Those of them that the receiver's host has dropped, as it does not read packets as fast as they come.
    pub refused_packets: u64,
    /// While it does not: how long the newest packet waited to be read, beyond what its acknowledgement may have.
    pub wait_us: Option<Micros>,
    /// Time that the receiver took to read what came since the acknowledgement before.
    pub read_span_us: Micros,
    /// How many successive packets are lost together, on average. At least 1.
    pub loss_run: f64,
    /// Bytes still under way.
    pub in_flight: u64,
    /// The round trip, smoothed, and its least of the last seconds.
    pub rtt_us: Micros,
    /// See `rtt_us`.
    pub rtt_least_us: Micros,
    /// What the newest packet waited in queues on its way; `None` where nothing newer came.
    pub queue_us: Option<Micros>,
    /// What the answer waited in queues on its way; `None` as there.
    pub back_us: Option<Micros>,
    /// Receiver's time since what the acknowledgement before told of.
    pub span_us: Micros,
    /// Time between the newest packet's leaving and that of the newest before.
    pub sent_span_us: Micros,
    /// The sender had paused meanwhile: `span_us` says nothing of the path.
    pub resumed: bool,
    /// What was sent after the last such moment has been answered.
    pub round_ended: bool,
    /// The newest packet left when there was nothing more to send.
    pub app_limited: bool,
    /// One that left then, or after a pause, was lost: neither shows in what arrives.
    pub app_limited_lost: bool,
    /// Bytes of a full packet.
    pub packet_bytes: u64,
    /// What arrived, or some of it, went only to see how it would arrive.
    pub is_train: bool,
}

/// A congestion control.
pub trait CongestionControl: Send + std::fmt::Debug {
    /// Takes in an acknowledgement.
    fn on_ack(&mut self, sample: &AckSample);
    /// The path answers again after it has been silent: what was lost meanwhile says nothing
    /// of its capacity.
    fn on_silence_ended(&mut self);
    /// Most bytes (wire) under way.
    fn window_bytes(&self) -> u64;
    /// How fast to send. Bytes/s (wire), at least 1.
    fn pace(&self) -> u64;
    /// The same with so many bytes (wire) under way.
    fn pace_after(&self, _in_flight: u64) -> u64 {
        self.pace()
    }
    /// From now on this is the fastest that is ever sent ([`Limits::cap`]). Bytes/s (wire).
    fn hold(&mut self, cap: u64);
    /// Capacity of the path, if known. Bytes/s (wire).
    fn capacity(&self) -> Option<u64>;
    /// What it is to do among the flows of this host that use its path, which are planned for together;
    /// `None`: it goes by itself.
    fn on_group(&mut self, _now: Micros, _group: Option<&Group>) {}
    /// What it plans for all of them; `None` where it knows of no others.
    fn plan(&self) -> Option<Plan> {
        None
    }
    /// What it takes of the window of all of them, with so many bytes (wire) of its own under way and so many that wait
    /// to be sent.
    fn claim(&self, in_flight: u64, _waiting: u64) -> u64 {
        in_flight
    }
    /// Begins with a capacity that was known lately. Bytes/s (wire).
    fn recall(&mut self, capacity: u64, rtt_us: Micros);
    /// Whether it knows nothing yet, and would know its path from a train of packets.
    fn wants_train(&self) -> bool {
        false
    }
    /// Whether the bottleneck's queue is so short that what leaves at once has to be little.
    fn is_shallow(&self) -> bool {
        false
    }
    /// Its name in compositions.
    fn name(&self) -> &'static str;
    /// What it is doing, for people.
    fn phase(&self) -> &'static str {
        ""
    }
}

/// What is common to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fastest that is ever sent, by all flows together where they are planned for together. Bytes/s (wire).
    /// Default: no limit.
    pub cap: u64,
    /// What may go before anything is known of the path. Bytes (wire). Default 1 MiB.
    pub first_window: u64,
    /// How fast that goes. Bytes/s (wire). Default 1.25e9, 10 Gb/s.
    pub first_pace: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cap: u64::MAX, first_window: 1 << 20, first_pace: 1_250_000_000 }
    }
}

fn per_second(bytes: u64, us: Micros) -> f64 {
    bytes as f64 * 1e6 / us.max(1) as f64
}
