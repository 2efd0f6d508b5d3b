//! Sent packets: the choice of what to send next, and packets made of it.

use super::{Stream, WIRE_OVERHEAD};
use crate::Micros;
use crate::mtu::PAYLOAD_BASE;
use crate::parity::Shard;
use crate::protection::Sealing;
use crate::sending::Piece;
use crate::sent::{Carried, Transmission};
use crate::wire::{
    ACK_FIXED, Frame, Header, MARKS_BYTES, PARITY_OVERHEAD, Packet, SPACING_BYTES, STRAIN_BYTES,
    STREAM_OVERHEAD, U56_END, put_parity_head, put_small, put_stream_head,
};

/// Tells the receiver the floor each time it has risen by this many packet numbers.
const FLOOR_EVERY: u64 = 32;
/// Length of a Floor frame. Bytes.
const FLOOR_BYTES: usize = 7;
/// The same if the Floor frame needs a packet of its own. Packet numbers.
const FLOOR_EVERY_ALONE: u64 = 128;
/// Most words of an acknowledgement in a packet with data. Count.
const WORDS_BESIDE_DATA: usize = 24;
/// Bounds of the time between copies of one piece, which is RTT/64 between them. Microseconds.
const COPY_SPACE_US: Micros = 100;
const COPY_SPACE_MAX_US: Micros = 4_000;

/// Content of a packet besides acknowledgements.
#[derive(Clone, Copy, Debug)]
enum Load {
    Piece(Piece),
    Probe(u32),
    Parity(Shard),
    /// Only padding, in a full packet of the packet train.
    Train,
    Ping,
    Close(u8),
    Nothing,
}

impl Stream {
    /// Appends the next packet that may be sent now to `out`, at most `most` bytes if that is given. Returns the
    /// packet's length.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Micros,
        most: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        if !self.handshake.may_send() {
            return None;
        }
        let size = self.payload().min(most.unwrap_or(usize::MAX));
        // After a pause the other flows' shares have changed.
        let resumes = self.rate.is_dry() && self.sending.has_work();
        self.look_around(now, resumes);
        let load = self.next_load(now, size, most.is_none())?;
        let start = out.len();
        self.build(now, size, load, out);
        let len = out.len() - start;
        self.handshake.note_sent(len as u64);
        Some(len)
    }

    fn next_load(&mut self, now: Micros, size: usize, first: bool) -> Option<Load> {
        if let Some(reason) = self.ending.take_close() {
            return self.handshake.remote().map(|_| Load::Close(reason));
        }
        if self.ending.has_failed() {
            return None;
        }
        // A retransmission must fit where the original did, so nothing that can wait takes room from it.
        let shard = self.shard();
        self.sending.cut(shard);
        let floor = !self.sending.has_lost() && !self.sending.is_drained() && shard.is_none();
        let room = self.data_room(now, size, floor);
        if self.probing.is_due() {
            return Some(self.next_probe(now, size, room));
        }
        // Report and full acknowledgement need up to `PAYLOAD_BASE` bytes, so a shorter packet may not do.
        if size >= PAYLOAD_BASE as usize
            && (self.strain_due(now) || self.marks_due(now) || self.spacing.due().is_some())
        {
            return Some(Load::Nothing);
        }
        if first
            && self.handshake.is_done()
            && let Some(size) = self.mtu.poll_probe(now)
        {
            return Some(Load::Probe(size));
        }
        let load = if self.window_is_open(now) && self.rate.is_open(now, &self.path) {
            let load = self.next_of_stream(now, size, room, shard);
            if load.is_none() {
                self.rate.rest(now, &self.path);
            }
            load
        } else if self.window_is_open_for_parity() && self.rate.is_open(now, &self.path) {
            self.see_to_parity(now);
            self.next_parity(size).map(Load::Parity)
        } else {
            None
        };
        load.or_else(|| self.next_ping(now)).or_else(|| {
            let ack_due = self.acks.due().is_some_and(|due| now >= due);
            ack_due.then_some(Load::Nothing)
        })
    }

    /// A packet of a probe, which finds out whether the path still carries packets.
    fn next_probe(&mut self, now: Micros, size: usize, room: u32) -> Load {
        let (from, is_small) = self.probing.next();
        let small = size.min(PAYLOAD_BASE as usize);
        let room = if is_small { self.data_room(now, small, false) } else { room };
        let Some(piece) = self.sending.probe_piece(room, from) else { return Load::Ping };
        self.probing.note_piece(&piece);
        Load::Piece(piece)
    }

    /// The next content while window and pacer are open: urgent copies, lost and new data, then copies, parity and
    /// repeats, then the packet train.
    fn next_of_stream(&mut self, now: Micros, size: usize, room: u32, shard: Option<u64>) -> Option<Load> {
        let whole = self.data_room(now, size, false);
        if let Some(piece) = self.sending.next_copy(now, whole, self.copy_space_us(), true) {
            return Some(Load::Piece(piece));
        }
        // Shards are as long as packets, so an acknowledgement or Floor that is due gets a packet of its own.
        let bulk = !self.sending.has_lost() && self.sending.unsent() > size as u64;
        if shard.is_some() && bulk && self.has_news(now) {
            return Some(Load::Nothing);
        }
        if let Some(piece) = self.sending.next_piece(room) {
            self.liveness.take_ping();
            self.handshake.plan_copies(0, now);
            if piece.attempt == 0 {
                let last = self.sending.is_drained();
                self.repair.note_data(now, &self.path, piece.offset, shard.is_some(), last);
            }
            self.rate.note_piece(now, self.sending.has_work());
            return Some(Load::Piece(piece));
        }
        self.sent.note_idle();
        self.see_to_parity(now);
        if let Some(piece) = self.sending.next_copy(now, room, self.copy_space_us(), false) {
            return Some(Load::Piece(piece));
        }
        if let Some(shard) = self.next_parity(size) {
            return Some(Load::Parity(shard));
        }
        let (repair, flight) = self.repair();
        if let Some(piece) = repair.next_repeat(now, room, &flight) {
            return Some(Load::Piece(piece));
        }
        self.wants_train().then_some(Load::Train)
    }

    /// A Ping if one is wanted, or another copy of the opening packet if that is due.
    fn next_ping(&mut self, now: Micros) -> Option<Load> {
        let next_at = now + self.copy_space_us();
        if self.liveness.take_ping() {
            let copies = self.repair.tail_packets(self.path.loss_supposed()) - 1;
            self.handshake.plan_copies(copies, next_at);
            return Some(Load::Ping);
        }
        self.handshake.take_copy(now, next_at).then_some(Load::Ping)
    }

    /// Whether to report our host's overload.
    fn strain_due(&self, now: Micros) -> bool {
        self.handshake.is_done() && self.own_reports.is_strain_due(now, || self.wants_ack(now))
    }

    /// Whether the peer should hear now of packets of it that a router has marked.
    fn marks_due(&self, now: Micros) -> bool {
        self.own_reports.has_marks() && self.wants_ack(now)
    }

    /// Length of the shards into which bulk data is cut if its last flight may get parity. Bytes.
    fn shard(&self) -> Option<u64> {
        let coded = self.repair.wants_shards(&self.path);
        let room = self.payload().saturating_sub(self.beside_data());
        (coded && self.handshake.is_done()).then(|| room.max(1) as u64)
    }

    /// Length of a packet besides the data of one piece. Bytes.
    fn beside_data(&self) -> usize {
        self.header().byte_len() + STREAM_OVERHEAD + self.protection.overhead()
    }

    /// Whether a packet is as long as those of bulk data, so that others of its length may join it in one batch.
    pub(crate) fn is_whole(&self, len: usize) -> bool {
        len >= self.shard().map_or(self.payload(), |shard| shard as usize + self.beside_data())
    }

    /// Whether an acknowledgement or a Floor is due that would make shards shorter.
    fn has_news(&self, now: Micros) -> bool {
        self.wants_ack(now) || self.sent.floor_untold() >= FLOOR_EVERY_ALONE
    }

    /// Starts to code the last flight of a long transfer, or a message, if it is time.
    fn see_to_parity(&mut self, now: Micros) {
        let (repair, flight) = self.repair();
        repair.see_to_parity(now, &flight);
    }

    fn next_parity(&mut self, size: usize) -> Option<Shard> {
        let taken = self.header().byte_len() + PARITY_OVERHEAD + self.protection.overhead();
        let fits = |shard: &Shard| shard.len as usize + taken <= size && shard.start < U56_END;
        self.repair.next_parity(&self.sending, &self.path, fits)
    }

    /// Whether to measure the path with a packet train while there is nothing to send.
    fn wants_train(&mut self) -> bool {
        // An application that has sent nothing may never send.
        self.sending.sent_to() > 0 && self.rate.wants_train(self.handshake.is_done(), &self.path)
    }

    fn copy_space_us(&self) -> Micros {
        (self.path.rtt_us().unwrap_or(0) / 64).clamp(COPY_SPACE_US, COPY_SPACE_MAX_US)
    }

    fn header(&self) -> Header {
        self.handshake.header(self.receiving.limit(), self.protection.is_keyed())
    }

    fn wants_ack(&self, now: Micros) -> bool {
        // Beside a small message an acknowledgement costs nothing. Beside bulk data it waits until it is due.
        self.acks.due().is_some_and(|due| now >= due || self.sending.unsent() < 1_000)
    }

    fn wants_floor(&self) -> bool {
        self.sent.floor_untold() >= FLOOR_EVERY
    }

    /// Bytes of stream data that fit in a packet of `size` bytes beside an acknowledgement that is due; with `floor`,
    /// beside a Floor that is due too.
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
            // A copy is no news to a peer that has the original, so its acknowledgement may wait.
            Load::Piece(piece) => {
                piece.copy.is_none() && self.sending.is_tail(&piece) || self.probing.has_begun()
            }
            Load::Probe(_) | Load::Ping | Load::Close(_) => true,
            Load::Nothing | Load::Parity(_) | Load::Train => false,
        };
        let checked = self.protection.is_checked();
        Packet::Numbered { header, number, ack_now, checked, body: 0 }.encode(out);
        let body = out.len();
        let alone = matches!(load, Load::Nothing);
        let marks = alone && self.marks_due(now);
        let strain = alone && !marks && self.strain_due(now);
        let spacing = self.spacing.due().filter(|_| alone && !marks && !strain);
        self.put_acks(now, size, &load, start, out);
        if marks {
            self.put_marks(start + size, out);
        }
        if strain {
            self.put_strain(now, start + size, out);
        }
        if let Some(us) = spacing {
            self.put_spacing(us, start + size, out);
        }
        let carried = self.put_load(load, start, size, out);
        // The stream data of a packet are its last frame, which is not copied before it is sealed.
        let mut more = match &load {
            Load::Piece(piece) => self.sending.copy_but_last(piece, out),
            _ => &[],
        };
        if let Header::Open { .. } = header {
            out.extend_from_slice(std::mem::take(&mut more));
            self.pad(start, out);
        }
        self.protection.seal(Sealing::new(&header, number), out, start, body, more);
        let fits = out.len() - start <= size || matches!(load, Load::Probe(_));
        debug_assert!(fits, "{load:?} makes a packet longer than the path takes");
        self.note(now, number, out.len() - start, load, carried);
    }

    fn put_acks(&mut self, now: Micros, size: usize, load: &Load, start: usize, out: &mut Vec<u8>) {
        let needs = match load {
            Load::Piece(piece) => STREAM_OVERHEAD + piece.len as usize,
            Load::Probe(_) | Load::Parity(_) | Load::Train => size,
            Load::Ping | Load::Close(_) => 2,
            Load::Nothing => 0,
        };
        let left = size.saturating_sub(needs + self.protection.overhead());
        let room = left.saturating_sub(out.len() - start);
        if self.wants_ack(now) {
            // If the acknowledgement fell due after the piece was cut, it gets only the room that is left.
            let most = match load {
                Load::Nothing => room.saturating_sub(FLOOR_BYTES),
                _ => ACK_FIXED + 8 * WORDS_BESIDE_DATA,
            };
            self.acks.put(now, room.min(most), || self.receiving.tell(), out);
        }
        if self.wants_floor() && out.len() - start + FLOOR_BYTES <= left {
            put_small(out, &Frame::Floor(self.sent.tell_floor()));
        }
    }

    fn put_marks(&mut self, end: usize, out: &mut Vec<u8>) {
        if out.len() + MARKS_BYTES + self.protection.overhead() <= end {
            put_small(out, &Frame::Marks(self.own_reports.tell_marks()));
        }
    }

    fn put_spacing(&mut self, us: u32, end: usize, out: &mut Vec<u8>) {
        if out.len() + SPACING_BYTES + self.protection.overhead() <= end {
            put_small(out, &Frame::AckSpacing(us));
            self.spacing.told();
        }
    }

    fn put_strain(&mut self, now: Micros, end: usize, out: &mut Vec<u8>) {
        let fits = out.len() + STRAIN_BYTES + self.protection.overhead() <= end;
        if fits && let Some(news) = self.own_reports.tell_strain(now) {
            put_small(out, &Frame::Strain(news));
        }
    }

    /// Appends the frames of the load, of a piece only the head of its frame. Returns what is to be noted as sent.
    fn put_load(&mut self, load: Load, start: usize, size: usize, out: &mut Vec<u8>) -> Option<Carried> {
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
            Load::Train => {
                put_small(out, &Frame::Ping);
                self.pad_to(start + size, out);
                return Some(Carried::Train);
            }
            Load::Parity(shard) => {
                put_parity_head(out, shard.start, shard.count, shard.index);
                self.repair.copy_parity(&shard, out);
            }
            Load::Piece(Piece { offset, len, fin, .. }) => {
                put_stream_head(out, offset, len as u16, fin);
                return Some(Carried::Stream { offset, len, fin });
            }
        }
        Some(Carried::Ping)
    }

    /// Pads an Open to a full packet, as the answer may be no more than three times as long (RFC 9000, 8.1).
    fn pad(&self, start: usize, out: &mut Vec<u8>) {
        self.pad_to(start + PAYLOAD_BASE as usize, out);
    }

    fn pad_to(&self, end: usize, out: &mut Vec<u8>) {
        let end = end - self.protection.overhead();
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
            resumed: self.rate.take_resumed(),
            ..Default::default()
        };
        self.sent.note(transmission, carried.is_some());
        self.counters.packets_sent += 1;
        if carried.is_some() {
            self.rate.note_sent(now, wire, self.sent.in_flight(), &self.path);
            if self.probing.at().is_none() {
                self.arm_probe(now);
            }
        }
        match load {
            Load::Train => self.rate.note_train(wire),
            Load::Parity(shard) => self.counters.bytes_copied += u64::from(shard.len),
            _ => {}
        }
        if let Load::Piece(piece) = load {
            self.after_piece(now, number, &piece);
        }
    }

    /// Counts a sent piece, and schedules copies of it.
    fn after_piece(&mut self, now: Micros, number: u64, piece: &Piece) {
        let bytes = u64::from(piece.len);
        if piece.attempt == 0 && piece.copy.is_none() {
            self.acks.note_answer(now, self.path.rtt_us().unwrap_or(0));
        }
        if let Some(whole_of) = piece.copy {
            self.counters.bytes_copied += bytes;
            if let Some(of) = whole_of {
                self.sent.link_copy(of, number);
            }
            return;
        }
        let counter =
            if piece.attempt == 0 { &mut self.counters.bytes_fresh } else { &mut self.counters.bytes_again };
        *counter += bytes;
        let copies = self.repair.copies(piece, &self.sending, &self.path, self.config.send_max);
        self.sending.schedule_copies(now + self.copy_space_us(), number, piece, copies);
    }
}
