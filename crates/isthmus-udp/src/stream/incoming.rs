//! Received packets: authentication, frames, acknowledgements.

use super::{Failure, Stream, WIRE_OVERHEAD};
use crate::Micros;
use crate::answers::ACK_DELAY_US;
use crate::congestion::AckSample;
use crate::pacer::is_short;
use crate::protection::Sealing;
use crate::receiving::{Hold, StreamFault};
use crate::sent::{Carried, Fate, Fates};
use crate::wire::{Ack, Frame, Frames, Header, Token};

/// Added to two probe timeouts. A packet of unknown fate that was sent this much before the newest acknowledged one
/// counts as lost. Microseconds (50 ms).
const STALE_US: Micros = 50_000;

/// A received packet.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) header: Header,
    pub(crate) number: u64,
    pub(crate) ack_now: bool,
    /// A router has marked it (CE of RFC 3168).
    pub(crate) marked: bool,
    pub(crate) body: usize,
    pub(crate) bytes: &'a mut [u8],
    /// End of its frames, if it is already decrypted.
    pub(crate) opened: Option<usize>,
    /// Limit on its data.
    pub(crate) hold: Hold,
}

impl Stream {
    /// Takes in a packet that is addressed to this stream. `arrived` is when the system received it, by the clock of
    /// `now`. Returns false if the packet is not authentic; it then has no effect.
    pub(crate) fn on_packet(&mut self, now: Micros, arrived: Micros, packet: Incoming<'_>) -> bool {
        if self.ending.has_failed() {
            return true;
        }
        if self.is_sealed() && self.acks.is_stale(packet.number) {
            self.counters.packets_stale += 1;
            return true;
        }
        let len = packet.bytes.len() as u64;
        let frames = match packet.opened {
            Some(end) => packet.bytes.get(packet.body..end),
            None => {
                self.protection.open(Sealing::new(&packet.header, packet.number), packet.bytes, packet.body)
            }
        };
        let Some(frames) = frames else { return false };
        self.handshake.note_received(len);
        let validated = self.is_proved();
        let unasked = |frame| matches!(frame, Ok(Frame::Stream { offset, data, .. }) if !self.receiving.has_room(offset, data));
        // A packet with data that may not be held is dropped as if it were lost. The peer retransmits the data.
        let beyond = |frame: &Frame<'_>| match *frame {
            Frame::Stream { offset, .. } => !self.receiving.may_hold(packet.hold, offset),
            Frame::Parity(shard) => !self.receiving.may_hold(packet.hold, shard.start),
            _ => false,
        };
        // A peer that remembers an earlier stream's window may exceed ours before validation: a drop, not a fault.
        let (mut strain, mut marks) = (None, None);
        let wrong = Frames::new(frames).any(|frame| {
            match frame {
                Ok(Frame::Strain(told)) => strain = Some(told),
                Ok(Frame::Marks(told)) => marks = Some(told),
                _ => {}
            }
            frame.is_err() || frame.as_ref().is_ok_and(&beyond) || !validated && unasked(frame)
        });
        let Some(gap) = (!wrong).then(|| self.acks.note(arrived, packet.number)).flatten() else {
            self.counters.packets_stale += 1;
            return true;
        };
        self.counters.packets_received += 1;
        if packet.marked {
            self.own_reports.note_marked();
        }
        self.liveness.note_packet(now);
        self.spacing.note_read(now, arrived);
        self.on_header(now, &packet.header);
        // Otherwise somebody who forges an address could invent losses, which count for all streams to that host.
        let validated = self.is_proved();
        if let Some(strain) = strain.filter(|_| validated) {
            // This comes first: it explains losses that an acknowledgement in the same packet reports.
            let (sent, rtt_us) = (self.counters.packets_sent, self.path.rtt_us().unwrap_or(0));
            self.counters.peer_busy_us += self.peer_reports.on_strain(now, strain, sent, rtt_us);
        }
        if let Some(marks) = marks.filter(|_| validated) {
            self.counters.packets_marked += self.peer_reports.on_marks(marks, self.counters.packets_sent);
        }
        let mut eliciting = false;
        for frame in Frames::new(frames).flatten() {
            eliciting |= !matches!(
                frame,
                Frame::Ack(_)
                    | Frame::Padding
                    | Frame::Strain(_)
                    | Frame::Marks(_)
                    | Frame::AckSpacing(_)
                    | Frame::Floor(_)
            );
            if let Err(fault) = self.on_frame(now, &frame) {
                self.ending.fail_and_tell(Failure::Fault(fault));
                return true;
            }
        }
        if eliciting {
            // The sender is to know of a loss soon.
            let granted_us = if gap { 0 } else { self.spacing.granted_us() };
            let most_us = self.quantum_us().max(granted_us);
            self.acks.owe(now, packet.ack_now, most_us, self.path.rtt_us().unwrap_or(0));
        }
        true
    }

    fn on_header(&mut self, now: Micros, header: &Header) {
        match *header {
            Header::Accept { source, token, window, .. } => {
                if !self.handshake.on_accept(source, token, window) {
                    return;
                }
                self.sending.raise_limit(window);
                self.receiving.widen(self.config.receive_max);
                // An Accept acknowledges no particular packet, but it cannot arrive in less than one RTT.
                let first = self.sent.transmission(0).map(|first| now.saturating_sub(first.sent_at).max(1));
                if let (None, Some(rtt)) = (self.path.rtt_least_us(), first.filter(|rtt| is_short(*rtt))) {
                    self.path.note_rtt(now, rtt);
                }
            }
            Header::Data { .. } => {
                if self.handshake.on_data() {
                    self.receiving.widen(self.config.receive_max);
                }
            }
            Header::Open { .. } => {}
        }
    }

    /// The peer asks for another Open with this token. Everything that was sent before counts as lost.
    pub(crate) fn on_challenge(&mut self, now: Micros, fresh: Token) {
        if self.is_in_session() || !self.handshake.on_challenge(fresh) {
            return;
        }
        self.liveness.note_packet(now);
        self.liveness.want_ping();
        let fates = self.detector.give_up(&mut self.sent);
        fates.lost.iter().for_each(|fate| self.on_lost(fate));
        self.detector.reuse(fates);
    }

    /// The peer says that it does not know this stream.
    pub(crate) fn on_reset(&mut self) {
        // A reset is not authenticated, so an encrypted stream ignores it.
        if !self.is_done() && !self.is_sealed() {
            self.ending.fail(Failure::Reset);
        }
    }

    fn on_frame(&mut self, now: Micros, frame: &Frame<'_>) -> Result<(), StreamFault> {
        match *frame {
            Frame::Stream { offset, data, fin } => {
                self.liveness.note_data(now);
                self.spacing.note_data(data.len());
                self.receiving.take(offset, data, fin)?;
            }
            // An honest peer uses our id in each acknowledgement, and that validates its address.
            Frame::Ack(_) if !self.is_proved() => {}
            Frame::Ack(ack) => self.on_ack(now, &ack)?,
            Frame::Parity(shard) => {
                if self.receiving.take_parity(&shard) {
                    self.acks.owe_for_parity();
                }
            }
            Frame::Floor(number) => self.acks.raise_floor(number),
            Frame::Close { .. } => self.ending.fail(Failure::Closed),
            Frame::AckSpacing(us) if self.is_proved() => self.spacing.grant(us),
            Frame::Ping | Frame::Padding | Frame::Strain(_) | Frame::Marks(_) | Frame::AckSpacing(_) => {}
        }
        Ok(())
    }

    fn on_ack(&mut self, now: Micros, ack: &Ack<'_>) -> Result<(), StreamFault> {
        if ack.largest >= self.sent.next_number() {
            return Err(StreamFault::Ack);
        }
        let was_full = self.is_full();
        if !self.sending.on_acked_upto(ack.upto) {
            return Err(StreamFault::Ack);
        }
        if was_full && !self.is_full() {
            self.repair.note_room(now);
        }
        self.sending.raise_limit(ack.window);
        self.handshake.note_window(ack.window.saturating_sub(ack.upto));
        let stale_us = 2 * self.path.probe_after_us(0) + STALE_US;
        let fates = self.detector.on_ack(&mut self.sent, ack, stale_us);
        if !(fates.acked.is_empty() && fates.late.is_empty() && fates.lost.is_empty()) {
            self.settle(now, ack, &fates);
        }
        self.detector.reuse(fates);
        Ok(())
    }

    /// Passes acknowledged, late and lost packets on to all parts of the stream.
    fn settle(&mut self, now: Micros, ack: &Ack<'_>, fates: &Fates) {
        let silence_ended = !fates.acked.is_empty() && self.end_silence(now);
        if !fates.acked.is_empty() {
            self.counters.answers += 1;
            self.progress.note_answer(now);
        }
        fates.acked.iter().for_each(|fate| self.on_acked(fate));
        fates.late.iter().for_each(|fate| self.on_late(fate));
        fates.lost.iter().for_each(|fate| self.on_lost(fate));
        let refused = self.peer_reports.take_dropped(now, fates.lost.len());
        self.counters.packets_refused += refused as u64;
        if refused == 0 {
            fates.lost.iter().for_each(|(number, _)| self.path.note_lost(*number));
        }
        self.path.note_fates(fates.acked.len(), fates.lost.len() - refused, fates.late.len());
        self.counters.packets_lost += fates.lost.len() as u64;
        self.counters.packets_late += fates.late.len() as u64;
        let sample = self.sample(now, ack, fates, refused);
        if silence_ended {
            self.rate.on_silence_ended();
        }
        if sample.round_ended {
            self.detector.on_round();
        }
        if sample.rtt_us > 0 {
            self.look_around(now, true);
            self.rate.on_ack(&sample);
            self.look_around(now, true);
        }
    }

    /// Ends the wait for an acknowledgement. True if there had been at least two probes.
    fn end_silence(&mut self, now: Micros) -> bool {
        let was_silent = self.probing.end();
        if self.awaits_answer() {
            self.arm_probe(now);
        }
        if was_silent {
            self.progress.begin_round(self.sent.next_number());
        }
        was_silent
    }

    fn sample(&mut self, now: Micros, ack: &Ack<'_>, fates: &Fates, refused: usize) -> AckSample {
        let newest = fates.acked.iter().find(|(number, _)| *number == ack.largest);
        let arrived = self.path.unwrap_clock(ack.arrived);
        let waited = newest.map(|(_, newest)| {
            let rtt = now.saturating_sub(newest.sent_at).saturating_sub(u64::from(ack.delay_us));
            self.path.note_rtt(now, rtt.max(1));
            let queue_us = self.path.note_delay(now, newest.sent_at, arrived);
            let back_us = rtt.saturating_sub(self.path.rtt_least_us().unwrap_or(rtt) + queue_us);
            self.spacing.note(back_us);
            (queue_us, back_us)
        });
        let read_at = arrived + u64::from(ack.delay_us);
        let spans = self.progress.spans(arrived, read_at, newest.map(|(_, newest)| newest.sent_at));
        let strained = newest.is_some() && self.peer_reports.is_strained(now);
        let resumed = fates.acked.iter().any(|(_, t)| t.resumed);
        let round_ended = self.progress.ends_round(fates.acked.iter().map(|(number, _)| *number));
        if round_ended {
            self.progress.begin_round(self.sent.next_number());
            self.spacing.end_round(now, self.quantum_us(), self.path.rtt_least_us().unwrap_or(0));
        }
        let counts = |fates: &[Fate]| fates.iter().filter(|(_, t)| !is_probe(&t.carried)).count() as u64;
        AckSample {
            now,
            acked_bytes: fates.acked.iter().map(|(_, t)| u64::from(t.wire)).sum(),
            acked_packets: counts(&fates.acked),
            lost_packets: counts(&fates.lost).saturating_sub(fates.late.len() as u64),
            refused_packets: refused as u64,
            marked_packets: self.peer_reports.take_marked(),
            wait_us: strained
                .then(|| u64::from(ack.delay_us).saturating_sub(self.spacing.asked_us().max(ACK_DELAY_US))),
            read_span_us: spans.read_us,
            loss_run: self.path.run(),
            in_flight: self.sent.in_flight(),
            rtt_us: self.path.rtt_us().unwrap_or(0),
            rtt_least_us: self.path.rtt_least_us().unwrap_or(0),
            queue_us: waited.map(|(queue, _)| queue),
            back_us: waited.map(|(_, back)| back),
            span_us: spans.arrived_us,
            sent_span_us: spans.sent_us,
            resumed,
            round_ended,
            app_limited: resumed || fates.acked.iter().any(|(_, t)| t.app_limited),
            app_limited_lost: fates.lost.iter().any(|(_, t)| t.resumed || t.app_limited),
            packet_bytes: self.packet_bytes(),
            is_train: fates.acked.iter().any(|(_, t)| t.carried == Carried::Train),
        }
    }

    fn on_acked(&mut self, (number, transmission): &Fate) {
        match transmission.carried {
            Carried::Stream { offset, len, fin } => self.sending.on_acked(offset, len, fin),
            Carried::Probe { size } => return self.mtu.on_probe(size, true),
            Carried::Ping | Carried::Train => {}
        }
        self.mtu.on_packet(*number, transmission.wire - WIRE_OVERHEAD, true);
    }

    fn on_late(&mut self, fate: &Fate) {
        self.detector.on_late(&self.sent, fate, self.path.rtt_us().unwrap_or(0));
        self.on_acked(fate);
    }

    fn on_lost(&mut self, fate: &Fate) {
        let (number, transmission) = fate;
        match transmission.carried {
            Carried::Stream { offset, len, fin } => {
                if !self.sent.copy_is_open(*fate) {
                    self.sending.on_lost(offset, len, fin, transmission.attempt);
                }
            }
            Carried::Probe { size } => return self.mtu.on_probe(size, false),
            Carried::Ping | Carried::Train => {}
        }
        self.mtu.on_packet(*number, transmission.wire - WIRE_OVERHEAD, false);
    }
}

fn is_probe(carried: &Carried) -> bool {
    matches!(carried, Carried::Probe { .. })
}
