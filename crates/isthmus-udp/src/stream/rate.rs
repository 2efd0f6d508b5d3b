//! How fast a stream sends: congestion control, the pacer, its share among the flows of this host, and the packet train
//! that measures the path before there is data for it.

use isthmus_ledger::Flow;

use crate::Micros;
use crate::congestion::{AckSample, CongestionControl};
use crate::pacer::{Cap, Pacer, QUANTUM_MIN_US, quantum_us};
use crate::path::Path;
use crate::sharing::{Load, Sharing};

/// Least round trip for measuring a path with a packet train before there is data for it, and the train's length: 4 ms
/// of 1 Gb/s. Microseconds, bytes.
const TRAIN_RTT_US: Micros = 50_000;
const TRAIN_BYTES: u32 = 512 << 10;
/// A greater share of losses indicates a short queue that overflows rather than random loss.
const OVERFLOW_LOSS: f64 = 0.2;
/// An application that offers no data for this long after the pacer would allow some has paused. Microseconds.
const PAUSE_US: Micros = 1_000;

/// The send rate. The pacer follows the congestion control, which follows the plan that flows of this host share. The
/// packet train is decided once, and ends for good when the congestion control has learned enough from it.
#[derive(Debug)]
pub(super) struct SendRate {
    congestion: Box<dyn CongestionControl>,
    pacer: Pacer,
    /// This stream's share among the flows of this host.
    sharing: Option<Sharing>,
    /// Bytes left of the packet train; `None` before it is decided.
    train: Option<u32>,
    /// Nothing waited to be sent behind the last piece.
    dry: bool,
    /// The application had paused before the piece that is sent now.
    resumed: bool,
}

impl SendRate {
    pub(super) fn new(congestion: Box<dyn CongestionControl>) -> Self {
        Self { congestion, pacer: Pacer::default(), sharing: None, train: None, dry: true, resumed: false }
    }

    pub(super) fn congestion(&self) -> &dyn CongestionControl {
        &*self.congestion
    }

    /// The path was measured before: its capacity in bytes/s (wire), 0 if unknown, and its round trip.
    pub(super) fn recall(&mut self, capacity: u64, rtt_us: Micros) {
        if capacity > 0 {
            self.congestion.recall(capacity, rtt_us);
        }
    }

    /// Another process has measured the path's capacity, and a round trip that counts as no sample here.
    pub(super) fn suppose(&mut self, capacity: u64, rtt_us: Micros) {
        if self.congestion.capacity().is_none() {
            self.congestion.recall(capacity, rtt_us);
        }
    }

    /// Uses another congestion control from now on. It begins with the capacity that is known.
    pub(super) fn change(&mut self, congestion: Box<dyn CongestionControl>, rtt_us: Option<Micros>) {
        let known = self.congestion.capacity().zip(rtt_us);
        self.congestion = congestion;
        if let Some((capacity, rtt_us)) = known {
            self.congestion.recall(capacity, rtt_us);
        }
    }

    /// Uses another congestion control from now on, which learns by itself.
    pub(super) fn replace(&mut self, congestion: Box<dyn CongestionControl>) {
        self.congestion = congestion;
    }

    /// Limits the rate from now on to `cap`, which all streams under the same cap share.
    pub(super) fn hold(&mut self, cap: &Cap) {
        self.congestion.hold(cap.bytes_per_s());
        self.pacer.hold(cap.clone());
    }

    /// Shares the path with other flows of this host from now on, as the ledger plans.
    pub(super) fn share(&mut self, flow: Flow) {
        self.sharing = Some(Sharing::new(flow));
    }

    /// Reads what other flows of this host do; `at_once` after an event that changes the plan. `waiting` is what waits
    /// to be sent, and `in_flight` what is in flight (wire). Bytes.
    pub(super) fn look_around(
        &mut self,
        now: Micros,
        (waiting, in_flight): (u64, u64),
        path: &Path,
        at_once: bool,
    ) {
        let Some(sharing) = &mut self.sharing else { return };
        // The packet train counts as waiting data until the congestion control has learned from it.
        let train = self.train.filter(|_| self.congestion.wants_train());
        let train = train.map_or(0, |left| u64::from(left).max(u64::from(in_flight > 0)));
        let load = Load {
            waiting: waiting + train,
            in_flight,
            rtt_us: path.rtt_least_us(),
            loss: path.loss_known(),
        };
        sharing.look(now, load, at_once, &mut *self.congestion);
    }

    /// When to look around again because of the share, if that keeps the stream from sending.
    pub(super) fn share_wakes_at(&self) -> Option<Micros> {
        self.sharing.as_ref().and_then(Sharing::wake_at)
    }

    /// Packets were acknowledged.
    pub(super) fn on_ack(&mut self, sample: &AckSample) {
        self.congestion.on_ack(sample);
        self.sharing.iter_mut().for_each(|sharing| sharing.note(sample));
    }

    /// The first acknowledgement after a silence has come.
    pub(super) fn on_silence_ended(&mut self) {
        self.congestion.on_silence_ended();
    }

    /// Pacing quantum: how much leaves in one burst, as time at the pace. Microseconds.
    fn quantum_us(&self, path: &Path) -> Micros {
        if self.congestion.is_shallow() {
            QUANTUM_MIN_US
        } else {
            quantum_us(path.rtt_least_us().unwrap_or(0))
        }
    }

    /// Whether the pacer lets a packet go now.
    pub(super) fn is_open(&mut self, now: Micros, path: &Path) -> bool {
        let quantum_us = self.quantum_us(path);
        self.pacer.is_open(now, quantum_us)
    }

    /// When the pacer lets the next packet go.
    pub(super) fn opens_at(&self) -> Micros {
        self.pacer.opens_at()
    }

    /// There is nothing to send. Limits the burst after this rest, except while a queue that does not overflow is what
    /// measures the path.
    pub(super) fn rest(&mut self, now: Micros, path: &Path) {
        if self.congestion.capacity().is_some() || path.loss() > OVERFLOW_LOSS {
            self.pacer.rest(now, path.rtt_least_us().unwrap_or(0), path.queue_most_us());
        }
    }

    /// Whether nothing waited to be sent behind the last piece.
    pub(super) fn is_dry(&self) -> bool {
        self.dry
    }

    /// A piece is sent now. `more` waits to be sent behind it.
    pub(super) fn note_piece(&mut self, now: Micros, more: bool) {
        self.resumed = self.dry && now > self.pacer.opens_at() + PAUSE_US;
        self.dry = !more;
    }

    /// Whether the application had paused before the piece that is sent now.
    pub(super) fn take_resumed(&mut self) -> bool {
        std::mem::take(&mut self.resumed)
    }

    /// A packet of this length (wire) that counts as in flight is sent; with it, `in_flight` bytes are.
    pub(super) fn note_sent(&mut self, now: Micros, wire: u32, in_flight: u64, path: &Path) {
        let quantum_us = self.quantum_us(path);
        self.pacer.note(now, u64::from(wire), self.congestion.pace_after(in_flight), quantum_us);
    }

    /// Measures the path with a packet train of `bytes` (wire).
    pub(super) fn measure(&mut self, bytes: u32) {
        self.train = Some(bytes);
    }

    /// Whether packets of the train wait to be sent.
    pub(super) fn has_train(&self) -> bool {
        self.train.is_some_and(|left| left > 0)
    }

    /// Whether to send a packet of the train while there is nothing else to send. `is_up`: the handshake is done.
    pub(super) fn wants_train(&mut self, is_up: bool, path: &Path) -> bool {
        if self.train.is_none() && is_up && path.rtt_us().is_some() {
            let long = path.rtt_least_us().is_some_and(|rtt| rtt >= TRAIN_RTT_US);
            self.train = Some(if long { TRAIN_BYTES } else { 0 });
        }
        if !self.congestion.wants_train() {
            self.train = self.train.map(|_| 0);
        }
        self.has_train()
    }

    /// A packet of the train of this length (wire) is sent.
    pub(super) fn note_train(&mut self, wire: u32) {
        self.train = self.train.map(|left| left.saturating_sub(wire));
    }
}
