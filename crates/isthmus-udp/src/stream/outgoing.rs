//! Sent packets: the choice of what to send next, and packets made of it.

use super::{Handshake, Stream, WIRE_OVERHEAD};
use crate::Micros;
use crate::mtu::PAYLOAD_BASE;
use crate::parity::Shard;
use crate::protection::Sealing;
use crate::redundancy::Matter;
use crate::sending::{Piece, end_of};
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
/// A piece that was lost twice or more gets copies once `send_max` divided by this was sent behind it: that data cannot
/// be read before the piece.
const HOLDS_UP: u64 = 8;
/// An application that offers no data for this long after the pacer would allow some has paused. Microseconds.
const PAUSE_US: Micros = 1_000;

/// Time between reports of our host's overload if no packets were dropped. Microseconds (20 ms).
const STRAIN_EVERY_US: Micros = 20_000;

/// A greater share of losses indicates a short queue that overflows rather than random loss.
const OVERFLOW_LOSS: f64 = 0.2;
/// Least round trip for parity of the last flight: on shorter paths a retransmission is soon there. Microseconds.
const CODED_RTT_US: Micros = 4_000;
/// Bounds of the time without new data after which what is in flight counts as the last flight. The time is RTT/16
/// between them: a writer may itself be delayed, and coding takes processor time from it. Microseconds.
const DRAINED_MIN_US: Micros = 1_000;
const DRAINED_MAX_US: Micros = 25_000;
/// The same time if the flight may be one whole message that has no parity yet: if more data follows, little was coded
/// in vain. Microseconds.
const DRAINED_SOON_US: Micros = 200;
/// Least round trip for measuring a path with a packet train before there is data for it, and the train's length: 4 ms
/// of 1 Gb/s. Microseconds, bytes.
const TRAIN_RTT_US: Micros = 50_000;
const TRAIN_BYTES: u32 = 512 << 10;

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
        if !self.may_answer() {
            return None;
        }
        let size = self.payload().min(most.unwrap_or(usize::MAX));
        // After a pause the other flows' shares have changed.
        let resumes = self.dry && self.sending.has_work();
        self.look_around(now, resumes);
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
        // A retransmission must fit where the original did, so nothing that can wait takes room from it.
        let shard = self.shard();
        self.sending.cut(shard);
        let floor = !self.sending.has_lost() && !self.sending.is_drained() && shard.is_none();
        let room = self.data_room(now, size, floor);
        if self.probes_due > 0 {
            return Some(self.next_probe(now, size, room));
        }
        // Report and full acknowledgement need up to `PAYLOAD_BASE` bytes, so a shorter packet may not do.
        if size >= PAYLOAD_BASE as usize
            && (self.strain_due(now) || self.marks_due(now) || self.spacing.due().is_some())
        {
            return Some(Load::Nothing);
        }
        if first
            && self.handshake == Handshake::Done
            && let Some(size) = self.mtu.poll_probe(now)
        {
            return Some(Load::Probe(size));
        }
        let load = if self.window_is_open(now) && self.pacer.is_open(now, self.pace_quantum_us()) {
            let load = self.next_of_stream(now, size, room, shard);
            // Limits the burst after a rest, except while a queue that does not overflow is what measures the path.
            if load.is_none() && (self.congestion.capacity().is_some() || self.path.loss() > OVERFLOW_LOSS) {
                let rtt_us = self.path.rtt_least_us().unwrap_or(0);
                self.pacer.rest(now, rtt_us, self.path.queue_most_us());
            }
            load
        } else if self.window_is_open_for_parity() && self.pacer.is_open(now, self.pace_quantum_us()) {
            self.see_to_parity(now);
            self.next_parity(size).map(Load::Parity)
        } else {
            None
        };
        load.or_else(|| self.next_ping(now)).or_else(|| {
            let ack_due = self.receiving.ack_due().is_some_and(|due| now >= due);
            ack_due.then_some(Load::Nothing)
        })
    }

    /// A packet of a probe, which finds out whether the path still carries packets.
    fn next_probe(&mut self, now: Micros, size: usize, room: u32) -> Load {
        self.probes_due -= 1;
        // The first packet is small, in case large ones no longer get through.
        let is_small = self.probe_from == 0 && self.probes > 2;
        let small = size.min(PAYLOAD_BASE as usize);
        let room = if is_small { self.data_room(now, small, false) } else { room };
        let Some(piece) = self.sending.probe_piece(room, self.probe_from) else { return Load::Ping };
        self.probe_from = end_of(&piece);
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
            (self.ping, self.greetings) = (false, 0);
            if piece.attempt == 0 {
                self.drained_at = self.sending.is_drained().then_some(now);
                self.parity.cancel();
                if shard.is_some() {
                    self.parity.mark(now, self.path.rtt_us().unwrap_or(0), piece.offset);
                }
            }
            self.resumed = self.dry && now > self.pacer.opens_at() + PAUSE_US;
            self.dry = !self.sending.has_work();
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
        if let Some(piece) = self.next_repeat(now, room) {
            return Some(Load::Piece(piece));
        }
        self.wants_train().then_some(Load::Train)
    }

    /// A Ping if one is wanted, or another copy of the opening packet if that is due.
    fn next_ping(&mut self, now: Micros) -> Option<Load> {
        if std::mem::take(&mut self.ping) {
            self.greetings = self.redundancy.packets(Matter::Tail, self.path.loss_supposed()) - 1;
        } else if self.greeting_due().is_some_and(|due| now >= due) {
            self.greetings -= 1;
        } else {
            return None;
        }
        self.greeting_at = now + self.copy_space_us();
        Some(Load::Ping)
    }

    /// Whether to report our host's overload. Drops are reported with the acknowledgement that reveals the losses.
    fn strain_due(&self, now: Micros) -> bool {
        let Some(news) = self.ours.news.filter(|_| self.handshake == Handshake::Done) else { return false };
        let drops = news.dropped != self.ours.told.dropped && self.wants_ack(now);
        drops || now >= self.ours.told_at + STRAIN_EVERY_US
    }

    /// Whether the peer should hear now of packets of it that a router has marked.
    fn marks_due(&self, now: Micros) -> bool {
        self.ours.marked != self.ours.marked_told && self.wants_ack(now)
    }

    /// Time at which another copy of the opening packet is due. The peer answers each copy with an Accept.
    pub(super) fn greeting_due(&self) -> Option<Micros> {
        let asks = matches!(self.handshake, Handshake::Opening { .. });
        (asks && self.greetings > 0).then_some(self.greeting_at)
    }

    /// The next piece of a long transfer's last flight to send once more while the path is idle.
    fn next_repeat(&mut self, now: Micros, room: u32) -> Option<Piece> {
        let sent_to = self.sending.sent_to();
        if self.sending.is_drained()
            && !self.is_full()
            && self.coding_due().is_none()
            && self.repeats.is_new(sent_to)
        {
            let packets = self.redundancy.packets(Matter::Flight, self.path.loss());
            // A sender that uses less than half of the window has sent copies already.
            let is_long = 2 * self.sent.in_flight() >= self.congestion.window_bytes();
            let times = if is_long && !self.parity.has_coded(sent_to) { packets - 1 } else { 0 };
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

    /// Whether the round trip is long enough for parity of the last flight.
    fn is_long(&self) -> bool {
        self.path.rtt_us().is_some_and(|rtt| rtt >= CODED_RTT_US)
    }

    /// Length of the shards into which bulk data is cut if its last flight may get parity. Bytes.
    fn shard(&self) -> Option<u64> {
        let coded = self.is_long() && self.redundancy.parity(1, self.path.loss_seldom(), 1.0) > 0;
        let room = self.payload().saturating_sub(self.beside_data());
        (coded && self.handshake == Handshake::Done).then(|| room.max(1) as u64)
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
        self.wants_ack(now) || self.sent.floor() >= self.floor_told + FLOOR_EVERY_ALONE
    }

    /// Time at which what is in flight counts as the last flight, unless that was decided already.
    pub(super) fn coding_due(&self) -> Option<Micros> {
        let due = self.sending.is_drained() && !self.is_full() && self.parity.is_new(self.sending.sent_to());
        let at = self.drained_at.filter(|_| due)?;
        let soon = !self.parity.is_missed(self.sending.acked_upto()) && self.is_message(at);
        let usual = (self.path.rtt_us().unwrap_or(0) / 16).clamp(DRAINED_MIN_US, DRAINED_MAX_US);
        Some(at + if soon { DRAINED_SOON_US } else { usual })
    }

    /// Starts to code the last flight of a long transfer, or a message.
    fn see_to_parity(&mut self, now: Micros) {
        if self.coding_due().is_none_or(|due| now < due) {
            return;
        }
        // Losses of data sent before `repaired` are known and retransmitted by the time the parity arrives.
        let rtt = self.path.rtt_us().unwrap_or(0);
        let once = (rtt as f64 * (1.0 - 1.5 * self.path.loss()).max(0.0)) as Micros;
        let first = |age: Micros| self.parity.sent_since(now.saturating_sub(age));
        let repaired = first(once).unwrap_or(u64::MAX);
        let fills = 2 * self.sent.in_flight() >= self.congestion.window_bytes();
        let is_message = self.drained_at.is_some_and(|at| self.is_message(at));
        let coded = first(rtt + once).filter(|_| fills || is_message);
        let ranges = coded.map(|from| self.sending.shards(from));
        self.parity.begin(self.sending.sent_to(), ranges.unwrap_or_default(), repaired);
    }

    /// Whether what is unacknowledged when data ends, at `at`, is one message of several packets: all data before it is
    /// acknowledged, or a pause came before it. (After a pause that data may have arrived, and its acknowledgement be
    /// lost.) A message of one packet gets copies instead.
    fn is_message(&self, at: Micros) -> bool {
        let (missed, rtt) = (self.sending.acked_upto(), self.path.rtt_us().unwrap_or(0));
        let since = at.saturating_sub(rtt + rtt / 8);
        let alone = self.parity.sent_since(since).filter(|from| missed >= *from);
        let from = alone.or_else(|| self.parity.burst_since(since));
        from.is_some_and(|from| self.sending.sent_to() > missed.max(from) + self.payload() as u64)
    }

    fn next_parity(&mut self, size: usize) -> Option<Shard> {
        let (redundancy, loss, run) = (&self.redundancy, self.path.loss_seldom(), self.path.run());
        let parity =
            |packets, repaired| redundancy.parity(packets, if repaired { loss * loss } else { loss }, run);
        let shard = self.parity.next(&self.sending, parity)?;
        let taken = self.header().byte_len() + PARITY_OVERHEAD + self.protection.overhead();
        let fits = shard.len as usize + taken <= size && shard.start < U56_END;
        if !fits {
            self.parity.cancel();
        }
        fits.then_some(shard)
    }

    /// Whether to measure the path with a packet train while there is nothing to send.
    fn wants_train(&mut self) -> bool {
        // An application that has sent nothing may never send.
        if self.sending.sent_to() == 0 {
            return false;
        }
        if self.train.is_none() && self.handshake == Handshake::Done && self.path.rtt_us().is_some() {
            let long = self.path.rtt_least_us().is_some_and(|rtt| rtt >= TRAIN_RTT_US);
            self.train = Some(if long { TRAIN_BYTES } else { 0 });
        }
        if !self.congestion.wants_train() {
            self.train = self.train.map(|_| 0);
        }
        self.train.is_some_and(|left| left > 0)
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
            Handshake::Done => Header::Data { target, keyed: self.protection.is_keyed() },
        }
    }

    fn wants_ack(&self, now: Micros) -> bool {
        // Beside a small message an acknowledgement costs nothing. Beside bulk data it waits until it is due.
        self.receiving.ack_due().is_some_and(|due| now >= due || self.sending.unsent() < 1_000)
    }

    fn wants_floor(&self) -> bool {
        self.sent.floor() >= self.floor_told + FLOOR_EVERY
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
            Load::Piece(piece) => piece.copy.is_none() && self.sending.is_tail(&piece) || self.probes > 0,
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
        if let Header::Open { .. } = header {
            self.pad(start, out);
        }
        self.protection.seal(Sealing::new(&header, number), out, start, body);
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
            self.receiving.put_ack(now, room.min(most), out);
        }
        if self.wants_floor() && out.len() - start + FLOOR_BYTES <= left {
            self.floor_told = self.sent.floor();
            put_small(out, &Frame::Floor(self.floor_told));
        }
    }

    fn put_marks(&mut self, end: usize, out: &mut Vec<u8>) {
        if out.len() + MARKS_BYTES + self.protection.overhead() <= end {
            put_small(out, &Frame::Marks(self.ours.marked));
            self.ours.marked_told = self.ours.marked;
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
        if let Some(news) = self.ours.news.filter(|_| fits) {
            put_small(out, &Frame::Strain(news));
            (self.ours.told, self.ours.told_at) = (news, now);
        }
    }

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
                self.parity.copy(&shard, out);
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
            resumed: std::mem::take(&mut self.resumed),
            ..Default::default()
        };
        self.sent.note(transmission, carried.is_some());
        self.counters.packets_sent += 1;
        if carried.is_some() {
            let pace = self.congestion.pace_after(self.sent.in_flight());
            self.pacer.note(now, u64::from(wire), pace, self.pace_quantum_us());
            if self.probe_at.is_none() {
                self.arm_probe(now);
            }
        }
        match load {
            Load::Train => self.train = self.train.map(|left| left.saturating_sub(wire)),
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
            self.answers.answer(now, self.path.rtt_us().unwrap_or(0));
        }
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
                // The receiver holds everything behind the piece until it comes, which may soon fill its window.
                let holds_up = self.sending.sent_behind(piece) >= self.config.send_max / HOLDS_UP;
                // Parity already repairs the first loss of a piece of the coded flight.
                let tail = self.sending.is_drained() && !(times == 1 && self.parity.covers(piece.offset));
                Matter::Lost { times: if holds_up { times } else { 1 }, tail }
            }
        };
        let counter =
            if piece.attempt == 0 { &mut self.counters.bytes_fresh } else { &mut self.counters.bytes_again };
        *counter += bytes;
        // Assumed loss counts for one-packet messages: a longer one's end is useless alone, and its losses show.
        let supposes = matter == Matter::Tail && self.sending.is_message(piece);
        let loss = if supposes { self.path.loss_supposed() } else { self.path.loss() };
        let copies = self.redundancy.packets(matter, loss) - 1;
        self.sending.schedule_copies(now + self.copy_space_us(), number, piece, copies);
    }
}
