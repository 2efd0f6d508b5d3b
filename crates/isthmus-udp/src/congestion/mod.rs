//! Congestion control: limits the bytes in flight and the send rate.

mod classic;
mod rate;

pub use classic::{Cubic, Reno};
pub use rate::Rate;

use isthmus_ledger::{Group, Plan};

use crate::Micros;

/// What one acknowledgement tells a congestion control. All bytes are as on the wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// When it was received. Microseconds.
    pub now: Micros,
    /// Bytes newly acknowledged.
    pub acked_bytes: u64,
    /// Packets newly acknowledged, without path MTU probes.
    pub acked_packets: u64,
    /// Packets newly counted as lost, less those of earlier losses that arrived late.
    pub lost_packets: u64,
    /// Lost packets that the receiver's host dropped because it does not read as fast as packets arrive.
    pub refused_packets: u64,
    /// Packets that a router has marked since the last acknowledgement, as its queue grows (CE of RFC 3168).
    pub marked_packets: u64,
    /// Time that the newest packet waited at the receiver, beyond the longest intended acknowledgement delay. `None`
    /// unless the receiver has reported lately that it reads too slowly.
    pub wait_us: Option<Micros>,
    /// Time that the receiver took to read what came since the previous acknowledgement.
    pub read_span_us: Micros,
    /// Average number of successive packets that are lost together. At least 1.
    pub loss_run: f64,
    /// Bytes still in flight.
    pub in_flight: u64,
    /// Smoothed round trip.
    pub rtt_us: Micros,
    /// Least round trip of the last 15 to 30 s.
    pub rtt_least_us: Micros,
    /// One-way queueing delay of the newest packet; `None` if that packet was acknowledged before.
    pub queue_us: Option<Micros>,
    /// Queueing delay of the acknowledgement on its way back; `None` as for `queue_us`.
    pub back_us: Option<Micros>,
    /// Receiver's time between the newest packet and that of the previous acknowledgement.
    pub span_us: Micros,
    /// Sender's time between the departures of the same two packets.
    pub sent_span_us: Micros,
    /// An acknowledged packet left after a pause for want of data: `span_us` says nothing of the path.
    pub resumed: bool,
    /// A round trip has passed: a packet is acknowledged that left after the last round ended.
    pub round_ended: bool,
    /// The sender had no more data after an acknowledged packet, or paused before it.
    pub app_limited: bool,
    /// The same of a lost packet: `app_limited` alone would miss it.
    pub app_limited_lost: bool,
    /// Size of a full packet.
    pub packet_bytes: u64,
    /// Packets without data are among those acknowledged: they only measure the path.
    pub is_train: bool,
}

/// A congestion control.
pub trait CongestionControl: Send + std::fmt::Debug {
    /// Processes an acknowledgement.
    fn on_ack(&mut self, sample: &AckSample);
    /// The path answers again after a silence. Losses during it say nothing of the capacity.
    fn on_silence_ended(&mut self);
    /// Congestion window. Bytes (wire).
    fn window_bytes(&self) -> u64;
    /// Send rate. Bytes/s (wire), at least 1.
    fn pace(&self) -> u64;
    /// Send rate with this many bytes (wire) in flight.
    fn pace_after(&self, _in_flight: u64) -> u64 {
        self.pace()
    }
    /// Sets the highest send rate ([`Limits::cap`]). Bytes/s (wire).
    fn hold(&mut self, cap: u64);
    /// Capacity of the path; `None` if unknown. Bytes/s (wire).
    fn capacity(&self) -> Option<u64>;
    /// Tells the flow its part among this host's flows on its path, which share one plan. `None`: it controls its rate
    /// alone.
    fn on_group(&mut self, _now: Micros, _group: Option<&Group>) {}
    /// The plan for all these flows; `None` if this flow does not lead them.
    fn plan(&self) -> Option<Plan> {
        None
    }
    /// Bytes (wire) that the flow reports to the others as in flight; `waiting` more wait to be sent.
    fn claim(&self, in_flight: u64, _waiting: u64) -> u64 {
        in_flight
    }
    /// Starts with a capacity that was known lately. Bytes/s (wire).
    fn recall(&mut self, capacity: u64, rtt_us: Micros);
    /// Whether the path is unknown and a train of packets without data should measure it.
    fn wants_train(&self) -> bool {
        false
    }
    /// Whether the bottleneck's queue is, or must stay, so short that bursts have to be small.
    fn is_shallow(&self) -> bool {
        false
    }
    /// What may leave beyond the window while acknowledgements are overdue. `None`: nothing.
    fn in_silence(&self) -> Option<Silence> {
        None
    }
    /// Whether the path seems to police this flow, so that another transport may carry more. It loses what exceeds a rate,
    /// and carried more in a burst or never showed a queue. False if others share the path.
    fn is_policed(&self) -> bool {
        false
    }
    /// Its name in a composition.
    fn name(&self) -> &'static str;
    /// What it is doing now, for people.
    fn phase(&self) -> &'static str {
        ""
    }
}

/// What may leave beyond the window while acknowledgements are overdue: the path may hold all of them back for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Bytes/s (wire).
    pub rate: u64,
    /// How long the next acknowledgement must be overdue. Microseconds.
    pub from_us: Micros,
    /// How long from then on. Microseconds.
    pub most_us: Micros,
}

impl Silence {
    /// What may leave beyond the window if the next acknowledgement is overdue for this time (microseconds). Bytes (wire).
    pub(crate) fn bytes(&self, silent_us: Micros) -> u64 {
        let us = silent_us.saturating_sub(self.from_us).min(self.most_us);
        (u128::from(self.rate) * u128::from(us) / 1_000_000) as u64
    }

    /// How long it must be overdue so that this many bytes may leave. Microseconds.
    pub(crate) fn after_us(&self, bytes: u64) -> Option<Micros> {
        let us = (u128::from(bytes) * 1_000_000).div_ceil(u128::from(self.rate.max(1)));
        (us <= u128::from(self.most_us)).then(|| self.from_us + us as Micros)
    }
}

/// Limits and initial values. The loss-based controls use only `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Highest send rate, for all flows together if they share a plan. Bytes/s (wire). Default: no limit.
    pub cap: u64,
    /// Initial window, before anything is known of the path. Bytes (wire). Default 1 MiB.
    pub first_window: u64,
    /// Send rate of the initial window. Bytes/s (wire). Default 1.25e9, 10 Gb/s.
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
