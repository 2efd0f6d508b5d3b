//! Loss-based congestion controls, Reno and CUBIC: they take loss for congestion, as TCP does.

use super::{AckSample, CongestionControl, Limits, per_second};
use crate::Micros;

/// Smallest window. Packets. If the first of 4 is lost, 3 can follow and show it.
const PACKETS_MIN: u64 = 4;
/// Windows that Linux paces out in a round trip, and the same in slow start.
pub(super) const PACING: f64 = 1.2;
const PACING_START: f64 = 2.0;
/// Initial window. Packets (RFC 6928).
const PACKETS_FIRST: u64 = 10;

/// A sign of a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Loss,
    /// A router has marked packets instead of dropping them. Its queue is shorter than a full one, so the window becomes
    /// smaller by less (RFC 8511).
    Mark,
}

/// The part common to both: slow start, one reduction per round trip, pacing.
#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: f64,
    threshold: f64,
    rtt_us: Micros,
    packet_bytes: u64,
    /// The window was already reduced in this round.
    reduced: bool,
    cap: u64,
}

impl Window {
    fn new(limits: Limits) -> Self {
        Self {
            bytes: 0.0,
            threshold: f64::INFINITY,
            rtt_us: 0,
            packet_bytes: 1_500,
            reduced: false,
            cap: limits.cap,
        }
    }

    fn bytes(&self) -> u64 {
        (self.bytes as u64).max(PACKETS_MIN * self.packet_bytes).max(self.first())
    }

    /// Initial window before the first acknowledgement, then 0. Bytes.
    fn first(&self) -> u64 {
        if self.rtt_us == 0 { PACKETS_FIRST * self.packet_bytes } else { 0 }
    }

    fn pace(&self) -> u64 {
        if self.rtt_us == 0 {
            return self.cap;
        }
        let gain = if self.bytes < self.threshold { PACING_START } else { PACING };
        ((gain * per_second(self.bytes(), self.rtt_us)) as u64).clamp(1, self.cap)
    }

    /// Updates the common state. Returns how the window must be reduced, if it must.
    fn note(&mut self, sample: &AckSample) -> Option<Sign> {
        if self.rtt_us == 0 {
            self.bytes = self.bytes.max((PACKETS_FIRST * sample.packet_bytes) as f64);
        }
        (self.rtt_us, self.packet_bytes) = (sample.rtt_us.max(1), sample.packet_bytes);
        if sample.round_ended {
            self.reduced = false;
        }
        let sign = match (sample.lost_packets, sample.marked_packets) {
            (0, 0) => return None,
            (0, _) => Sign::Mark,
            _ => Sign::Loss,
        };
        (!std::mem::replace(&mut self.reduced, true)).then_some(sign)
    }

    fn begin_anew(&mut self) {
        self.bytes = (PACKETS_MIN * self.packet_bytes) as f64;
    }

    fn is_used(&self, sample: &AckSample) -> bool {
        !sample.app_limited && (sample.in_flight + sample.acked_bytes) as f64 >= self.bytes / 2.0
    }

    fn recall(&mut self, capacity: u64, rtt_us: Micros) {
        self.bytes = capacity as f64 * rtt_us as f64 / 2e6;
        self.rtt_us = rtt_us.max(1);
    }
}

/// Reno: additive increase, multiplicative decrease (RFC 5681).
#[derive(Clone, Copy, Debug)]
pub struct Reno(Window);

impl Reno {
    /// Begins in slow start.
    pub fn new(limits: Limits) -> Self {
        Self(Window::new(limits))
    }
}

impl CongestionControl for Reno {
    fn on_ack(&mut self, sample: &AckSample) {
        let window = &mut self.0;
        if let Some(sign) = window.note(sample) {
            window.bytes *= if sign == Sign::Mark { RENO_BETA_MARK } else { 0.5 };
            window.threshold = window.bytes;
        } else if window.is_used(sample) {
            let acked = sample.acked_bytes as f64;
            let slow_start = window.bytes < window.threshold;
            window.bytes +=
                if slow_start { acked } else { acked * window.packet_bytes as f64 / window.bytes };
        }
    }

    fn on_silence_ended(&mut self) {
        self.0.threshold = self.0.bytes / 2.0;
        self.0.begin_anew();
    }

    fn window_bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn pace(&self) -> u64 {
        self.0.pace()
    }

    fn capacity(&self) -> Option<u64> {
        None
    }

    fn hold(&mut self, cap: u64) {
        self.0.cap = cap;
    }

    fn recall(&mut self, capacity: u64, rtt_us: Micros) {
        self.0.recall(capacity, rtt_us);
    }

    fn name(&self) -> &'static str {
        "reno"
    }
}

/// CUBIC (RFC 9438).
#[derive(Clone, Copy, Debug)]
pub struct Cubic {
    window: Window,
    /// Window before the last reduction (`W_max`). Packets.
    most: f64,
    /// The growth since the last reduction.
    epoch: Option<Epoch>,
    /// Window that Reno would have (`W_est`). Packets.
    reno: f64,
    /// Shortest queue of this round in slow start. Microseconds.
    queue_least_us: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    since: Micros,
    /// Growth is flat `flat_s` seconds after `since` (`K`), at a window of `flat` packets.
    flat_s: f64,
    flat: f64,
}

/// Constants of RFC 9438, 4.1 and 4.6.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// The same factor after a mark (RFC 8511, 3.1), of CUBIC and of Reno.
const BETA_MARK: f64 = 0.85;
const RENO_BETA_MARK: f64 = 0.8;
/// A queue of this part of a round trip ends slow start before anything is lost (RFC 9406, 4.3).
const START_PART: Micros = 8;
/// Bounds of that queue. Microseconds.
const START_QUEUE_US: std::ops::RangeInclusive<Micros> = 4_000..=16_000;

impl Cubic {
    /// Begins in slow start.
    pub fn new(limits: Limits) -> Self {
        Self { window: Window::new(limits), most: 0.0, epoch: None, reno: 0.0, queue_least_us: None }
    }

    /// Begins past slow start, with a window of `bytes`.
    pub(super) fn with_window(limits: Limits, bytes: u64, rtt_us: Micros, packet_bytes: u64) -> Self {
        let mut cubic = Self::new(limits);
        let window = &mut cubic.window;
        (window.bytes, window.threshold) = (bytes as f64, 0.0);
        (window.rtt_us, window.packet_bytes) = (rtt_us, packet_bytes);
        cubic.most = bytes as f64 / packet_bytes as f64;
        cubic
    }

    fn reduce(&mut self, beta: f64) {
        let packets = self.window.bytes / self.window.packet_bytes as f64;
        self.most = if packets < self.most { packets * (1.0 + beta) / 2.0 } else { packets };
        self.window.bytes *= beta;
        self.window.threshold = self.window.bytes;
        self.epoch = None;
    }

    fn grow(&mut self, sample: &AckSample) {
        let packet = self.window.packet_bytes as f64;
        let packets = self.window.bytes / packet;
        let acked = sample.acked_bytes as f64 / packet;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.reno = packets;
            let flat = self.most.max(packets);
            Epoch { since: sample.now, flat_s: ((flat - packets) / C).cbrt(), flat }
        });
        let t = (sample.now - epoch.since + sample.rtt_us) as f64 / 1e6;
        let target = (C * (t - epoch.flat_s).powi(3) + epoch.flat).clamp(packets, 1.5 * packets);
        self.reno += acked / packets * 3.0 * (1.0 - BETA) / (1.0 + BETA);
        let next = packets + (target - packets) / packets * acked;
        self.window.bytes = next.max(self.reno) * packet;
    }

    /// Slow start. It ends when a queue stands for a whole round (HyStart++, RFC 9406).
    fn start(&mut self, sample: &AckSample) {
        self.window.bytes += sample.acked_bytes as f64;
        if let Some(queue) = sample.queue_us {
            self.queue_least_us = Some(self.queue_least_us.map_or(queue, |least| least.min(queue)));
        }
        if sample.round_ended
            && let Some(queue) = self.queue_least_us.take()
        {
            let long =
                (sample.rtt_least_us / START_PART).clamp(*START_QUEUE_US.start(), *START_QUEUE_US.end());
            if queue >= long {
                self.window.threshold = self.window.bytes;
            }
        }
    }
}

impl CongestionControl for Cubic {
    fn on_ack(&mut self, sample: &AckSample) {
        if let Some(sign) = self.window.note(sample) {
            self.reduce(if sign == Sign::Mark { BETA_MARK } else { BETA });
        } else if self.window.is_used(sample) {
            if self.window.bytes < self.window.threshold {
                self.start(sample);
            } else {
                self.grow(sample);
            }
        }
    }

    fn on_silence_ended(&mut self) {
        self.reduce(BETA);
        self.window.begin_anew();
    }

    fn window_bytes(&self) -> u64 {
        self.window.bytes()
    }

    fn pace(&self) -> u64 {
        self.window.pace()
    }

    fn capacity(&self) -> Option<u64> {
        None
    }

    fn hold(&mut self, cap: u64) {
        self.window.cap = cap;
    }

    fn recall(&mut self, capacity: u64, rtt_us: Micros) {
        self.window.recall(capacity, rtt_us);
    }

    fn name(&self) -> &'static str {
        "cubic"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(now: Micros, in_flight: u64) -> AckSample {
        AckSample {
            now,
            acked_bytes: 15_000,
            acked_packets: 10,
            in_flight,
            rtt_us: 10_000,
            rtt_least_us: 10_000,
            packet_bytes: 1_500,
            ..Default::default()
        }
    }

    fn feed(control: &mut dyn CongestionControl, from: Micros, rounds: u64, rtt_us: Micros) {
        for round in 0..rounds {
            let acks = control.window_bytes() / 15_000;
            for ack in 0..acks.max(1) {
                let mut sample = sample(from + round * rtt_us + ack, control.window_bytes());
                (sample.rtt_us, sample.round_ended) = (rtt_us, ack == 0);
                control.on_ack(&sample);
            }
        }
    }

    #[test]
    fn slow_start_doubles_and_a_round_of_losses_counts_once() {
        for control in [
            &mut Reno::new(Limits::default()) as &mut dyn CongestionControl,
            &mut Cubic::new(Limits::default()),
        ] {
            feed(control, 0, 6, 10_000);
            let before = control.window_bytes();
            assert!((15_000 * 40..=15_000 * 80).contains(&before), "{}: {before}", control.name());
            let mut lossy = sample(70_000, before);
            lossy.lost_packets = 3;
            control.on_ack(&lossy);
            let after = control.window_bytes();
            control.on_ack(&lossy);
            assert!(control.window_bytes() < before * 3 / 4 && control.window_bytes() <= after + 15_000);
        }
    }

    #[test]
    fn a_mark_reduces_the_window_by_less_than_a_loss_and_once_a_round() {
        let limits = Limits::default();
        let mut cubic = Cubic::with_window(limits, 1_500_000, 10_000, 1_500);
        let marked = AckSample { marked_packets: 3, ..sample(0, 1_500_000) };
        (0..3).for_each(|_| cubic.on_ack(&marked));
        assert!((1_270_000..1_300_000).contains(&cubic.window_bytes()), "{}", cubic.window_bytes());
        cubic.on_ack(&AckSample { round_ended: true, lost_packets: 1, ..marked });
        assert!(
            (880_000..920_000).contains(&cubic.window_bytes()),
            "a loss counts: {}",
            cubic.window_bytes()
        );
        let mut reno = Reno::new(limits);
        feed(&mut reno, 0, 5, 10_000);
        let before = reno.window_bytes() as f64;
        reno.on_ack(&marked);
        assert!((0.79..0.81).contains(&(reno.window_bytes() as f64 / before)));
    }

    #[test]
    fn reno_grows_by_a_packet_and_cubic_returns_to_where_it_was() {
        let limits = Limits::default();
        let mut reno = Reno::new(limits);
        feed(&mut reno, 0, 5, 10_000);
        reno.on_ack(&AckSample { lost_packets: 1, ..sample(60_000, 1 << 20) });
        let before = reno.window_bytes();
        feed(&mut reno, 70_000, 10, 10_000);
        let grown = (reno.window_bytes() - before) / 1_500;
        assert!((8..=11).contains(&grown), "{grown}");

        let mut cubic = Cubic::with_window(limits, 1_500_000, 10_000, 1_500);
        cubic.on_ack(&AckSample { lost_packets: 1, ..sample(0, 1_500_000) });
        assert!((1_000_000..1_100_000).contains(&cubic.window_bytes()));
        // K = cbrt(300 / 0.4) = 9.1 s.
        feed(&mut cubic, 0, 91, 100_000);
        assert!((1_400_000..1_600_000).contains(&cubic.window_bytes()), "{}", cubic.window_bytes());
    }
}
