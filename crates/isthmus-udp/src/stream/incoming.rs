//! Received packets: authentication, frames, acknowledgements.

use super::{By, Failure, Handshake, Stream, WIRE_OVERHEAD};
use crate::Micros;
use crate::congestion::AckSample;
use crate::pacer::is_short;
use crate::protection::Sealing;
use crate::receiving::{ACK_DELAY_US, Hold, StreamFault};
use crate::sent::{Carried, Fate, Fates};
use crate::wire::{Ack, Frame, Frames, Header, Strain, Token};

/// Added to two probe timeouts. A packet of unknown fate that was sent this much before the newest acknowledged one
/// counts as lost. Microseconds (50 ms).
const STALE_US: Micros = 50_000;
/// A peer's overload report holds this long, or two round trips if that is longer; the peer repeats it after a fifth of
/// this time. Microseconds (100 ms).
const STRAIN_LASTS_US: Micros = 100_000;
/// The reported busy time may exceed the time since the last report by this much, as reports can be late. Microseconds.
const STRAIN_LATE_US: Micros = 1_000_000;

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
        if self.failure.is_some() {
            return true;
        }
        if self.is_sealed() && self.receiving.is_stale(packet.number) {
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
        if let Some(allowance) = &mut self.allowance {
            *allowance += super::AMPLIFICATION * len;
        }
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
            frame.is_err() || frame.as_ref().is_ok_and(&beyond) || self.allowance.is_some() && unasked(frame)
        });
        let Some(gap) = (!wrong).then(|| self.receiving.note(arrived, packet.number)).flatten() else {
            self.counters.packets_stale += 1;
            return true;
        };
        self.counters.packets_received += 1;
        self.ours.marked = self.ours.marked.wrapping_add(u32::from(packet.marked));
        self.heard_at = self.heard_at.max(now);
        self.read_late_us = now.saturating_sub(arrived);
        self.on_header(now, &packet.header);
        // Otherwise somebody who forges an address could invent losses, which count for all streams to that host.
        let validated = self.is_proved();
        if let Some(strain) = strain.filter(|_| validated) {
            // This comes first: it explains losses that an acknowledgement in the same packet reports.
            self.on_strain(now, strain);
        }
        if let Some(marks) = marks.filter(|_| validated) {
            self.on_marks(marks);
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
                self.failure = Some(Failure::Fault(fault));
                self.closing = Some(2);
                return true;
            }
        }
        if eliciting {
            let wait_us = packet.ack_now.then(|| self.answers.ask(now, self.path.rtt_us().unwrap_or(0)));
            // The sender is to know of a loss soon.
            let granted_us = if gap { 0 } else { self.spacing.granted_us() };
            self.receiving.owe_ack(now, wait_us, self.quantum_us().max(granted_us));
        }
        true
    }

    fn on_header(&mut self, now: Micros, header: &Header) {
        match *header {
            Header::Accept { source, token, window, .. } if self.remote.is_none() => {
                self.token = token;
                self.peer_window = window;
                self.remote = Some(source);
                self.handshake = Handshake::Done;
                self.sending.raise_limit(window);
                self.receiving.widen(self.config.receive_max);
                // An Accept acknowledges no particular packet, but it cannot arrive in less than one RTT.
                let first = self.sent.transmission(0).map(|first| now.saturating_sub(first.sent_at).max(1));
                if let (None, Some(rtt)) = (self.path.rtt_least_us(), first.filter(|rtt| is_short(*rtt))) {
                    self.path.note_rtt(now, rtt);
                }
            }
            Header::Data { .. } if self.handshake == Handshake::Accepting => {
                self.handshake = Handshake::Done;
                self.prove();
            }
            _ => {}
        }
    }

    /// Marks the peer's address as validated.
    pub(crate) fn prove(&mut self) {
        self.allowance = None;
        self.receiving.widen(self.config.receive_max);
    }

    /// The peer asks for another Open with this token. Everything that was sent before counts as lost.
    pub(crate) fn on_challenge(&mut self, now: Micros, fresh: Token) {
        let Handshake::Opening { token } = &mut self.handshake else { return };
        if self.sealed == Some(By::Session) || *token == fresh {
            return;
        }
        *token = fresh;
        self.token = fresh;
        self.heard_at = now;
        self.ping = true;
        let mut fates = std::mem::take(&mut self.fates);
        fates.clear();
        self.sent.give_up(&mut fates);
        fates.lost.iter().for_each(|fate| self.on_lost(fate));
        self.fates = fates;
    }

    /// The peer says that it does not know this stream.
    pub(crate) fn on_reset(&mut self) {
        // A reset is not authenticated, so an encrypted stream ignores it.
        if self.failure.is_none() && !self.is_done() && !self.is_sealed() {
            self.failure = Some(Failure::Reset);
        }
    }

    fn on_frame(&mut self, now: Micros, frame: &Frame<'_>) -> Result<(), StreamFault> {
        match *frame {
            Frame::Stream { offset, data, fin } => {
                self.data_at = Some(now);
                self.receiving.take(offset, data, fin)?;
            }
            // An honest peer uses our id in each acknowledgement, and that validates its address.
            Frame::Ack(_) if !self.is_proved() => {}
            Frame::Ack(ack) => self.on_ack(now, &ack)?,
            Frame::Parity(shard) => {
                if self.receiving.take_parity(&shard) {
                    self.receiving.owe_ack(now, Some(0), 0);
                }
            }
            Frame::Floor(number) => self.receiving.raise_floor(number),
            Frame::Close { .. } => self.failure = Some(Failure::Closed),
            Frame::AckSpacing(us) if self.is_proved() => self.spacing.grant(us),
            Frame::Ping | Frame::Padding | Frame::Strain(_) | Frame::Marks(_) | Frame::AckSpacing(_) => {}
        }
        Ok(())
    }

    /// Takes in the peer's report that its host does not read packets as fast as they come.
    fn on_strain(&mut self, now: Micros, strain: Strain) {
        let last = self.peers.last;
        let busy_us = strain.busy_us.wrapping_sub(last.busy_us);
        let dropped = strain.dropped.wrapping_sub(last.dropped);
        if busy_us.max(dropped) > u32::MAX / 2 {
            return; // a report older than the last one
        }
        let most_us = now.saturating_sub(self.peers.heard_at) + STRAIN_LATE_US;
        self.counters.peer_busy_us += u64::from(busy_us).min(most_us);
        self.peers.dropped = (self.peers.dropped + u64::from(dropped)).min(self.counters.packets_sent);
        self.peers.until = now + STRAIN_LASTS_US.max(2 * self.path.rtt_us().unwrap_or(0));
        (self.peers.last, self.peers.heard_at) = (strain, now);
    }

    /// Takes in the peer's count of marked packets.
    fn on_marks(&mut self, told: u32) {
        let more = told.wrapping_sub(self.peers.marks);
        if more > u32::MAX / 2 {
            return; // a report older than the last one
        }
        self.peers.marks = told;
        self.peers.marked = (self.peers.marked + u64::from(more)).min(self.counters.packets_sent);
        self.counters.packets_marked += u64::from(more);
    }

    /// Number of the `lost` newly lost packets that the peer's host dropped by its own report.
    fn take_refused(&mut self, now: Micros, lost: usize) -> usize {
        if now >= self.peers.until {
            self.peers.dropped = 0;
        }
        let refused = self.peers.dropped.min(lost as u64);
        self.peers.dropped -= refused;
        self.counters.packets_refused += refused;
        refused as usize
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
            // Until now the application could not write, so the time without new data starts here.
            self.drained_at = self.drained_at.map(|_| now);
        }
        self.sending.raise_limit(ack.window);
        self.peer_window = self.peer_window.max(ack.window.saturating_sub(ack.upto));
        let mut fates = std::mem::take(&mut self.fates);
        fates.clear();
        self.sent.acknowledge(ack, &mut fates);
        let stale_us = 2 * self.path.probe_after_us(0) + STALE_US;
        self.sent.detect(&*self.detection, stale_us, &mut fates);
        if !(fates.acked.is_empty() && fates.late.is_empty() && fates.lost.is_empty()) {
            self.settle(now, ack, &fates);
        }
        self.fates = fates;
        Ok(())
    }

    /// Passes acknowledged, late and lost packets on to all parts of the stream.
    fn settle(&mut self, now: Micros, ack: &Ack<'_>, fates: &Fates) {
        let silence_ended = !fates.acked.is_empty() && self.end_silence(now);
        if !fates.acked.is_empty() {
            self.counters.answers += 1;
            self.answered_at = now;
        }
        fates.acked.iter().for_each(|fate| self.on_acked(fate));
        fates.late.iter().for_each(|fate| self.on_late(fate));
        fates.lost.iter().for_each(|fate| self.on_lost(fate));
        let refused = self.take_refused(now, fates.lost.len());
        if refused == 0 {
            fates.lost.iter().for_each(|(number, _)| self.path.note_lost(*number));
        }
        self.path.note_fates(fates.acked.len(), fates.lost.len() - refused, fates.late.len());
        self.counters.packets_lost += fates.lost.len() as u64;
        self.counters.packets_late += fates.late.len() as u64;
        let sample = self.sample(now, ack, fates, refused);
        if silence_ended {
            self.congestion.on_silence_ended();
        }
        if sample.round_ended {
            self.detection.on_round();
        }
        if sample.rtt_us > 0 {
            self.look_around(now, true);
            self.congestion.on_ack(&sample);
            self.sharing.iter_mut().for_each(|sharing| sharing.note(&sample));
            self.look_around(now, true);
        }
    }

    /// Ends the wait for an acknowledgement. True if there had been at least two probes.
    fn end_silence(&mut self, now: Micros) -> bool {
        let long = self.probes >= 2;
        self.probes = 0;
        self.probes_due = 0;
        self.probe_at = None;
        if self.awaits_answer() {
            self.arm_probe(now);
        }
        if long {
            self.round_from = self.sent.next_number();
        }
        long
    }

    fn sample(&mut self, now: Micros, ack: &Ack<'_>, fates: &Fates, refused: usize) -> AckSample {
        let newest = fates.acked.iter().find(|(number, _)| *number == ack.largest);
        let arrived = self.path.unwrap_clock(ack.arrived);
        let waited = newest.map(|(_, newest)| {
            let rtt = now.saturating_sub(newest.sent_at).saturating_sub(u64::from(ack.delay_us));
            self.path.note_rtt(now, rtt.max(1));
            let queue_us = self.path.note_delay(now, newest.sent_at, arrived);
            let back_us = rtt.saturating_sub(self.path.rtt_least_us().unwrap_or(rtt) + queue_us);
            // What waited for us to read it did not wait on its way.
            self.spacing.note(back_us.saturating_sub(self.read_late_us));
            (queue_us, back_us)
        });
        let span_us = self.arrived.map_or(0, |before| arrived.saturating_sub(before));
        self.arrived = Some(self.arrived.map_or(arrived, |before| before.max(arrived)));
        let read_at = arrived + u64::from(ack.delay_us);
        let read_span_us = read_at.saturating_sub(self.peers.read_at);
        self.peers.read_at = self.peers.read_at.max(read_at);
        let strained = newest.is_some() && now < self.peers.until;
        let sent_at = newest.map_or(self.newest_sent_at, |(_, newest)| newest.sent_at);
        let sent_span_us = sent_at.saturating_sub(self.newest_sent_at);
        self.newest_sent_at = self.newest_sent_at.max(sent_at);
        let resumed = fates.acked.iter().any(|(_, t)| t.resumed);
        let round_ended = fates.acked.iter().any(|(number, _)| *number >= self.round_from);
        if round_ended {
            self.round_from = self.sent.next_number();
            self.spacing.end_round(now, self.quantum_us(), self.path.rtt_least_us().unwrap_or(0));
        }
        let counts = |fates: &[Fate]| fates.iter().filter(|(_, t)| !is_probe(&t.carried)).count() as u64;
        AckSample {
            now,
            acked_bytes: fates.acked.iter().map(|(_, t)| u64::from(t.wire)).sum(),
            acked_packets: counts(&fates.acked),
            lost_packets: counts(&fates.lost).saturating_sub(fates.late.len() as u64),
            refused_packets: refused as u64,
            marked_packets: std::mem::take(&mut self.peers.marked),
            wait_us: strained
                .then(|| u64::from(ack.delay_us).saturating_sub(self.spacing.asked_us().max(ACK_DELAY_US))),
            read_span_us,
            loss_run: self.path.run(),
            in_flight: self.sent.in_flight(),
            rtt_us: self.path.rtt_us().unwrap_or(0),
            rtt_least_us: self.path.rtt_least_us().unwrap_or(0),
            queue_us: waited.map(|(queue, _)| queue),
            back_us: waited.map(|(_, back)| back),
            span_us,
            sent_span_us,
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
        let (packets, behind_us) = self.sent.behind(fate);
        self.detection.on_late(packets, behind_us, self.path.rtt_us().unwrap_or(0));
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
