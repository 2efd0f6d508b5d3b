//! Routers that mark packets instead of dropping them, as their queue grows (ECN, RFC 3168).
//!
//! A mark is a plain sign of congestion, unlike a loss. From the first one on, CUBIC's window for marked packets (RFC 8511)
//! bounds what this flow has in flight, whatever its phase and the plan of the host allow: so the flow shares the router's queue with TCP flows that answer
//! marks, as TCP does. CUBIC hears of marks only, not of losses. When its window has grown to twice what the phase
//! allows, routers have not marked for long, and it is dropped.

use super::*;

/// CUBIC's window is dropped at this multiple of what the phase allows.
const FORGOTTEN: f64 = 2.0;

impl Rate {
    /// Takes in the marks that an acknowledgement reports.
    pub(super) fn on_marks(&mut self, sample: &AckSample) {
        let allowed = self.window_unmarked() as f64;
        // Start-up makes a queue to measure the path, and ends with it.
        if sample.marked_packets > 0 && self.marked.is_none() && !matches!(self.phase, Phase::Start) {
            let fills = self.path_bytes(sample.rtt_least_us) * self.own_share();
            let bytes = sample.in_flight.max(fills as u64).max(PACKETS_WAITING * sample.packet_bytes);
            self.marked = Some(Cubic::with_window(self.limits, bytes, sample.rtt_us, sample.packet_bytes));
        }
        let Some(cubic) = &mut self.marked else { return };
        cubic.on_ack(&AckSample { lost_packets: 0, ..*sample });
        if cubic.window_bytes() as f64 > FORGOTTEN * allowed {
            self.marked = None;
        }
    }

    /// CUBIC's window and pace, while routers mark. Bytes, and bytes/s (wire).
    pub(super) fn bound_by_marks(&self) -> Option<(u64, u64)> {
        self.marked.map(|cubic| (cubic.window_bytes(), cubic.pace()))
    }
}
