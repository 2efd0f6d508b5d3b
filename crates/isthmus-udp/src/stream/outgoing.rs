//! Packets that go out.

use super::{Handshake, Stream, WIRE_OVERHEAD};
use crate::Micros;
use crate::mtu::PAYLOAD_BASE;
use crate::redundancy::Matter;
use crate::sending::Piece;
use crate::sent::{Carried, Transmission};
use crate::wire::{ACK_FIXED, Frame, Header, Packet, STREAM_OVERHEAD, put_small, put_stream_head};

/// Numbers between two tellings of the floor.
const FLOOR_EVERY: u64 = 32;
/// Room that a floor frame takes. Bytes.
const FLOOR_BYTES: usize = 7;
/// Words of an acknowledgement that travels with data.
const WORDS_BESIDE_DATA: usize = 24;
/// Least time between copies of one piece. Microseconds.
const COPY_SPACE_US: Micros = 100;
const COPY_SPACE_MAX_US: Micros = 4_000;
/// The share of what may be held that has to wait for a piece that was lost twice before copies
/// of it are worth their room.
const HOLDS_UP: u64 = 4;
/// An application that has nothing to send for so long beyond the pace pauses. Microseconds.
const PAUSE_US: Micros = 1_000;

/// What a packet is to carry besides acknowledgements.
#[derive(Clone, Copy, Debug)]
enum Load {
    Piece(Piece),
    Probe(u32),
    Ping,
    Close(u8),
    Nothing,
}

impl Stream {
    /// Appends the next packet that may go now to `out`, at most `most` bytes where that is
    /// given. Returns its length.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Micros,
        most: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        if !self.may_answer() {
            return None;
        }
        let size = self.payload().min(most.unwrap_or(usize::MAX));
        let load = self.next_load(now, size, most.is_none())?;
        let start = out.len();
        self.build(now, size, load, out);
        let len = out.len() - start;
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.saturating_sub(len as u64);
        }
        Some(len)
    }

    fn next_load(&mut self, now: Micros, size: usize, first: bool) -> Option<Load> {
        if let Some(reason) = self.closing.take() {
            return self.remote.map(|_| Load::Close(reason));
        }
        if self.failure.is_some() {
            return None;
        }
        // What goes again fits where it was; nothing that may wait is to take room from it.
        let floor = !self.sending.has_lost() && !self.sending.is_drained();
        let room = self.data_room(now, size, floor);
        if self.probes_due > 0 {
            self.probes_due -= 1;
            // One of them is small, lest large ones have ceased to get through.
            let second = self.probes_due == 0;
            let small = size.min(PAYLOAD_BASE as usize);
            let room = if second && self.probes > 2 { self.data_room(now, small, false) } else { room };
            return Some(self.sending.probe_piece(room, usize::from(second)).map_or(Load::Ping, Load::Piece));
        }
        if first
            && self.handshake == Handshake::Done
            && let Some(size) = self.mtu.poll_probe(now)
        {
            return Some(Load::Probe(size));
        }
        if self.window_is_open() && self.pacer.is_open(now) {
            let whole = self.data_room(now, size, false);
            if let Some(piece) = self.sending.next_copy(now, whole, self.copy_space_us(), true) {
                return Some(Load::Piece(piece));
            }
            if let Some(piece) = self.sending.next_piece(room) {
                self.ping = false;
                self.resumed = self.dry && now > self.pacer.opens_at() + PAUSE_US;
                self.dry = !self.sending.has_work();
                return Some(Load::Piece(piece));
            }
            self.sent.note_idle();
            if let Some(piece) = self.sending.next_copy(now, room, self.copy_space_us(), false) {
                return Some(Load::Piece(piece));
            }
            if let Some(piece) = self.next_repeat(now, room) {
                return Some(Load::Piece(piece));
            }
        }
        if std::mem::take(&mut self.ping) {
            return Some(Load::Ping);
        }
        self.receiving.ack_due().is_some_and(|due| now >= due).then_some(Load::Nothing)
    }

    /// What of the last flight of a long transfer goes once more, while the path is idle.
    fn next_repeat(&mut self, now: Micros, room: u32) -> Option<Piece> {
        let sent_to = self.sending.sent_to();
        if self.sending.is_drained() && self.repeats.is_new(sent_to) {
            let packets = self.redundancy.packets(Matter::Flight, self.path.loss());
            // Who uses little of the path has its copies already.
            let is_long = 2 * self.sent.in_flight() >= self.congestion.window_bytes();
            let times = if is_long { packets - 1 } else { 0 };
            let age = self.path.rtt_us().unwrap_or(0) / u64::from(packets);
            self.repeats.begin(&self.sent, sent_to, now.saturating_sub(age), times);
        }
        while let Some(range) = self.repeats.next(&self.sent) {
            if let Some((piece, rest)) = self.sending.repeat_piece(range, room) {
                self.repeats.leave(rest);
                return Some(piece);
            }
        }
        None
    }

    fn copy_space_us(&self) -> Micros {
        (self.path.rtt_us().unwrap_or(0) / 64).clamp(COPY_SPACE_US, COPY_SPACE_MAX_US)
    }

    fn header(&self) -> Header {
        let (source, window) = (self.local, self.receiving.limit());
        let target = self.remote.unwrap_or(0);
        match self.handshake {
            Handshake::Opening { token } => Header::Open { source, token, window },
            Handshake::Accepting => Header::Accept { target, source, token: self.token, window },
            Handshake::Done => Header::Data { target },
        }
    }

    fn wants_ack(&self, now: Micros) -> bool {
        // Beside small messages it costs nothing; in bulk it keeps its pace.
        self.receiving.ack_due().is_some_and(|due| now >= due || self.sending.unsent() < 1_000)
    }

    fn wants_floor(&self) -> bool {
        self.sent.floor() >= self.floor_told + FLOOR_EVERY
    }

    /// Bytes of stream data that fit in a packet of `size` bytes, with what else goes along, the
    /// floor too if so.
    fn data_room(&self, now: Micros, size: usize, floor: bool) -> u32 {
        let ack = if self.wants_ack(now) { ACK_FIXED + 8 * WORDS_BESIDE_DATA } else { 0 };
        let floor = if floor && self.wants_floor() { FLOOR_BYTES } else { 0 };
        let taken = self.header().byte_len() + ack + floor + STREAM_OVERHEAD + self.protection.overhead();
        size.saturating_sub(taken).max(1) as u32
    }

    fn build(&mut self, now: Micros, size: usize, load: Load, out: &mut Vec<u8>) {
        let number = self.sent.next_number();
        let start = out.len();
        let header = self.header();
        let ack_now = match load {
            Load::Piece(piece) => piece.copy.is_some() || self.sending.is_tail(&piece) || self.probes > 0,
            Load::Probe(_) | Load::Ping | Load::Close(_) => true,
            Load::Nothing => false,
        };
        Packet::Numbered { header, number, ack_now, body: 0 }.encode(out);
        let body = out.len();
        self.put_acks(now, size, &load, start, out);
        let carried = self.put_load(load, start, out);
        if let Header::Open { .. } = header {
            self.pad(start, out);
        }
        self.protection.seal(number, out, start, body);
        self.note(now, number, out.len() - start, load, carried);
    }

    fn put_acks(&mut self, now: Micros, size: usize, load: &Load, start: usize, out: &mut Vec<u8>) {
        if self.wants_ack(now) && !matches!(load, Load::Probe(_)) {
            let room = match load {
                Load::Nothing => size - (out.len() - start) - FLOOR_BYTES - self.protection.overhead(),
                _ => ACK_FIXED + 8 * WORDS_BESIDE_DATA,
            };
            self.receiving.put_ack(now, room, out);
        }
        let needs = match load {
            Load::Piece(piece) => STREAM_OVERHEAD + piece.len as usize,
            Load::Probe(_) => size,
            Load::Ping | Load::Close(_) | Load::Nothing => 2,
        };
        let taken = out.len() - start + self.protection.overhead();
        if self.wants_floor() && taken + FLOOR_BYTES + needs <= size {
            self.floor_told = self.sent.floor();
            put_small(out, &Frame::Floor(self.floor_told));
        }
    }

    fn put_load(&mut self, load: Load, start: usize, out: &mut Vec<u8>) -> Option<Carried> {
        match load {
            Load::Nothing => return None,
            Load::Close(reason) => {
                put_small(out, &Frame::Close { reason });
                return None;
            }
            Load::Ping => put_small(out, &Frame::Ping),
            Load::Probe(size) => {
                put_small(out, &Frame::Ping);
                put_small(out, &Frame::Padding);
                out.resize(start + size as usize - self.protection.overhead(), 0);
                return Some(Carried::Probe { size });
            }
            Load::Piece(Piece { offset, len, fin, .. }) => {
                put_stream_head(out, offset, len as u16, fin);
                if let Load::Piece(piece) = &load {
                    self.sending.copy(piece, out);
                }
                return Some(Carried::Stream { offset, len, fin });
            }
        }
        Some(Carried::Ping)
    }

    /// Makes an opening as long as what may be answered to it (RFC 9000, 8.1).
    fn pad(&self, start: usize, out: &mut Vec<u8>) {
        let end = start + PAYLOAD_BASE as usize - self.protection.overhead();
        if out.len() < end {
            put_small(out, &Frame::Padding);
            out.resize(end, 0);
        }
    }

    fn note(&mut self, now: Micros, number: u64, len: usize, load: Load, carried: Option<Carried>) {
        let wire = len as u32 + WIRE_OVERHEAD;
        let attempt = if let Load::Piece(piece) = load { piece.attempt } else { 0 };
        let transmission = Transmission {
            sent_at: now,
            carried: carried.unwrap_or_default(),
            wire,
            attempt,
            copy: matches!(load, Load::Piece(Piece { copy: Some(_), .. })),
            resumed: std::mem::take(&mut self.resumed),
            ..Default::default()
        };
        self.sent.note(transmission, carried.is_some());
        self.counters.packets_sent += 1;
        if carried.is_some() {
            self.pacer.note(now, u64::from(wire), self.congestion.pace());
            if self.probe_at.is_none() {
                self.arm_probe(now);
            }
        }
        if let Load::Piece(piece) = load {
            self.after_piece(now, number, &piece);
        }
    }

    /// Counts a piece, and sees to copies of it.
    fn after_piece(&mut self, now: Micros, number: u64, piece: &Piece) {
        let bytes = u64::from(piece.len);
        if let Some(whole_of) = piece.copy {
            self.counters.bytes_copied += bytes;
            if let Some(of) = whole_of {
                self.sent.link_copy(of, number);
            }
            return;
        }
        let tail = self.sending.is_tail(piece);
        let matter = match piece.attempt {
            0 if tail => Matter::Tail,
            0 => Matter::Bulk,
            times => {
                // Until it comes, what was sent behind it is held: soon that is all there is room for.
                let holds_up = self.sending.sent_behind(piece) >= self.config.send_max / HOLDS_UP;
                Matter::Lost { times: if holds_up { times } else { 1 }, tail: self.sending.is_drained() }
            }
        };
        let counter =
            if piece.attempt == 0 { &mut self.counters.bytes_fresh } else { &mut self.counters.bytes_again };
        *counter += bytes;
        let copies = self.redundancy.packets(matter, self.path.loss()) - 1;
        self.sending.schedule_copies(now + self.copy_space_us(), number, piece, copies);
    }
}
