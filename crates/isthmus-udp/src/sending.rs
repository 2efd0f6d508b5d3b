//! The sending half of a stream: holds bytes until they are acknowledged, and chooses which ones are sent next.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use crate::Micros;
use crate::ranges::RangeSet;
use crate::store::Store;

/// The tail is this many bytes before the end of what is written (64 KiB).
const TAIL_BYTES: u64 = 64 << 10;

/// A part of the stream that fits in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// The stream ends behind it.
    pub(crate) fin: bool,
    /// Number of times that it was lost before.
    pub(crate) attempt: u8,
    /// `Some` for a copy. Inside, the packet number of the original if the copy stands for all of it.
    pub(crate) copy: Option<Option<u64>>,
}

#[derive(Clone, Debug)]
struct Again {
    range: Range<u64>,
    attempt: u8,
}

#[derive(Clone, Debug)]
struct Copy {
    due: Micros,
    range: Range<u64>,
    attempt: u8,
    of: u64,
    left: u8,
}

/// The sending half; the module's text says what it does. The end of the stream counts as one byte behind the last.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    store: Store,
    /// Bytes written.
    written: u64,
    /// First byte that was never sent.
    next: u64,
    acked: RangeSet,
    /// First byte that the peer has not granted.
    limit: u64,
    again: VecDeque<Again>,
    /// Copies that wait until nothing else is to be sent.
    copies: VecDeque<Copy>,
    /// Copies that are sent before new data.
    urgent: VecDeque<Copy>,
    ended: bool,
    /// (base, shard): new data is cut at `base` plus multiples of `shard`.
    grid: Option<(u64, u64)>,
    /// The grid before packets changed size. It holds up to the base of `grid`.
    before: Option<(u64, u64)>,
    /// Start of the last data that was written while nothing waited to be sent.
    begun: u64,
}

impl Sending {
    /// Bytes written and not acknowledged up to the first gap.
    pub(crate) fn held(&self) -> u64 {
        self.written - self.acked.upto().min(self.written)
    }

    /// Bytes written and never sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.next)
    }

    /// Bytes that wait to be sent; of those to be retransmitted, only the first range counts.
    pub(crate) fn waiting(&self) -> u64 {
        self.unsent() + self.again.front().map_or(0, |again| again.range.end - again.range.start)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.store.write(self.written, bytes);
        self.note_written(bytes.len());
    }

    /// Appends as [`Sending::write`] does, but copies `bytes` only if it must ([`Sending::own`]).
    pub(crate) fn keep(&mut self, bytes: Bytes) {
        let len = bytes.len();
        self.store.keep(self.written, bytes);
        self.note_written(len);
    }

    fn note_written(&mut self, len: usize) {
        debug_assert!(!self.ended, "the stream has ended");
        if self.is_drained() {
            self.begun = self.written;
        }
        self.written += len as u64;
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Copies lent buffers that begin below `upto`.
    pub(crate) fn own(&mut self, upto: u64) {
        self.store.own(upto);
    }

    /// Releases lent buffers: nothing is sent any more.
    pub(crate) fn let_go(&mut self) {
        self.store.let_go();
    }

    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    fn total(&self) -> u64 {
        self.written + u64::from(self.ended)
    }

    /// Whether everything has been acknowledged, with the end if it is set.
    pub(crate) fn is_settled(&self) -> bool {
        self.acked.upto() >= self.total()
    }

    pub(crate) fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Whether there is anything to send besides copies.
    pub(crate) fn has_work(&mut self) -> bool {
        self.drop_settled();
        !self.again.is_empty() || self.has_fresh()
    }

    fn has_fresh(&self) -> bool {
        self.next < self.written.min(self.limit) || (self.ended && self.next == self.written)
    }

    /// Whether the peer must grant more before anything can be sent.
    pub(crate) fn awaits_room(&self) -> bool {
        self.again.is_empty() && self.unsent() > 0 && !self.has_fresh()
    }

    /// Whether no new data waits to be sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.next >= self.written
    }

    /// Whether a piece is in the tail.
    pub(crate) fn is_tail(&self, piece: &Piece) -> bool {
        self.is_drained() && piece.offset + TAIL_BYTES >= self.written
    }

    /// Whether a piece of the tail begins where data was last written after an idle time: a small message.
    pub(crate) fn is_message(&self, piece: &Piece) -> bool {
        piece.offset == self.begun && piece.len > 0
    }

    fn drop_settled(&mut self) {
        while let Some(first) = self.again.front_mut() {
            match self.acked.first_missing(first.range.clone()) {
                Some(missing) => {
                    first.range.start = missing.start;
                    return;
                }
                None => {
                    self.again.pop_front();
                }
            }
        }
    }

    /// Sets the shard length for new data; no piece crosses the end of a shard. Shards count from where a length was
    /// first set, or from the start of a message of which little before is unacknowledged. `None`: no shards.
    pub(crate) fn cut(&mut self, shard: Option<u64>) {
        let begins = self.next == self.begun && self.acked.upto() + TAIL_BYTES >= self.next;
        let as_before = self.grid.map(|(_, before)| before) == shard;
        if begins || !as_before {
            self.before = self.grid.filter(|_| !begins);
            self.grid = shard.map(|shard| (self.next, shard));
        }
    }

    /// The ranges of whole shards that were sent from `from` on, and their shard lengths. The first range was cut
    /// before packets changed size.
    pub(crate) fn shards(&self, from: u64) -> [(Range<u64>, u64); 2] {
        let whole = |(base, shard): (u64, u64), end: u64| {
            let start = base + from.saturating_sub(base).div_ceil(shard) * shard;
            let end = base + end.saturating_sub(base) / shard * shard;
            (start..end.max(start), shard)
        };
        let until = self.next.min(self.written);
        let none = (0..0, 0);
        let Some(grid) = self.grid else { return [none.clone(), none] };
        [self.before.map_or(none, |before| whole(before, grid.0)), whole(grid, until)]
    }

    /// All bytes below this have been acknowledged.
    pub(crate) fn acked_upto(&self) -> u64 {
        self.acked.upto()
    }

    /// Whether some of these bytes are not acknowledged.
    pub(crate) fn is_missing(&self, range: Range<u64>) -> bool {
        self.acked.first_missing(range).is_some()
    }

    /// The next piece, of at most `most` bytes: lost data first, then new data.
    pub(crate) fn next_piece(&mut self, most: u32) -> Option<Piece> {
        self.drop_settled();
        if let Some(first) = self.again.front_mut() {
            let missing = self.acked.first_missing(first.range.clone())?;
            let attempt = first.attempt;
            let piece = piece_of(missing, most, self.written, attempt);
            first.range.start = end_of(&piece);
            if first.range.is_empty() {
                self.again.pop_front();
            }
            return Some(piece);
        }
        if !self.has_fresh() {
            return None;
        }
        let until = self.written.min(self.limit).max(self.next);
        let with_end = if until == self.written { self.total() } else { until };
        let most = match self.grid {
            Some((base, shard)) => most.min((shard - (self.next - base) % shard) as u32),
            None => most,
        };
        let piece = piece_of(self.next..with_end, most, self.written, 0);
        self.next = end_of(&piece);
        Some(piece)
    }

    /// The next copy that is due, from the urgent ones or the others.
    pub(crate) fn next_copy(
        &mut self,
        now: Micros,
        most: u32,
        space_us: Micros,
        urgent: bool,
    ) -> Option<Piece> {
        let copies = if urgent { &mut self.urgent } else { &mut self.copies };
        while copies.front().is_some_and(|copy| copy.due <= now) {
            let Some(mut copy) = copies.pop_front() else { break };
            let Some(missing) = self.acked.first_missing(copy.range.clone()) else { continue };
            let mut piece = piece_of(missing, most, self.written, copy.attempt);
            let rest = end_of(&piece)..copy.range.end;
            let is_whole = self.acked.first_missing(rest.clone()).is_none();
            piece.copy = Some(is_whole.then_some(copy.of));
            if !is_whole {
                copies.push_front(Copy { range: rest, left: 1, ..copy.clone() });
            }
            copy.left -= 1;
            if copy.left > 0 {
                copy.due = now + space_us;
                copies.push_back(copy);
            }
            return Some(piece);
        }
        None
    }

    /// The next piece of these bytes that is not acknowledged, of at most `most` bytes, and the range behind it.
    pub(crate) fn repeat_piece(&self, range: Range<u64>, most: u32) -> Option<(Piece, Range<u64>)> {
        let missing = self.acked.first_missing(range.clone())?;
        let mut piece = piece_of(missing, most, self.written, 0);
        piece.copy = Some(None);
        Some((piece, end_of(&piece)..range.end))
    }

    /// Whether lost data waits to be retransmitted.
    pub(crate) fn has_lost(&self) -> bool {
        !self.again.is_empty()
    }

    /// Bytes sent from a piece's start on.
    pub(crate) fn sent_behind(&self, piece: &Piece) -> u64 {
        self.next.saturating_sub(piece.offset)
    }

    /// Stream bytes that were sent at least once; the end counts as one.
    pub(crate) fn sent_to(&self) -> u64 {
        self.next
    }

    /// When the next copy is due.
    pub(crate) fn copy_due(&self) -> Option<Micros> {
        let first = [self.urgent.front(), self.copies.front()];
        first.into_iter().flatten().map(|copy| copy.due).min()
    }

    /// Schedules `count` copies of packet `number`. A piece that was lost more than once holds up all data behind it,
    /// so its copies are urgent.
    pub(crate) fn schedule_copies(&mut self, due: Micros, number: u64, piece: &Piece, count: u8) {
        if count > 0 {
            let range = piece.offset..end_of(piece);
            let copies = if piece.attempt > 1 { &mut self.urgent } else { &mut self.copies };
            copies.push_back(Copy { due, range, attempt: piece.attempt, of: number, left: count });
        }
    }

    /// A piece to send when no acknowledgement comes: the oldest unacknowledged one at or behind `from`.
    pub(crate) fn probe_piece(&self, most: u32, from: u64) -> Option<Piece> {
        let missing = self.acked.first_missing(self.acked.upto().max(from)..self.next)?;
        Some(piece_of(missing, most, self.written, 1))
    }

    /// Appends a piece's bytes to `out`, except the last that are contiguous in memory, which it returns.
    pub(crate) fn copy_but_last(&self, piece: &Piece, out: &mut Vec<u8>) -> &[u8] {
        self.store.copy_but_last(piece.offset, piece.len as usize, out)
    }

    /// Appends `len` bytes at `offset` to `out`. They must be written and not acknowledged.
    pub(crate) fn copy_bytes(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        self.store.copy(offset, len, out);
    }

    /// A piece was acknowledged.
    pub(crate) fn on_acked(&mut self, offset: u64, len: u32, fin: bool) {
        self.acked.insert(offset..offset + u64::from(len) + u64::from(fin));
    }

    /// The peer acknowledges everything below `upto`. False if some of that was never sent.
    pub(crate) fn on_acked_upto(&mut self, upto: u64) -> bool {
        let sane = upto <= self.next;
        if sane && upto > self.acked.upto() {
            self.acked.insert(0..upto);
        }
        self.store.release(self.acked.upto().min(self.written));
        sane
    }

    /// A piece was declared lost, and no copy of it is in flight.
    pub(crate) fn on_lost(&mut self, offset: u64, len: u32, fin: bool, attempt: u8) {
        let range = offset..offset + u64::from(len) + u64::from(fin);
        if let Some(missing) = self.acked.first_missing(range.clone()) {
            let range = missing.start..range.end;
            self.again.push_back(Again { range, attempt: attempt.saturating_add(1) });
        }
    }

    /// Nothing is sent for a while.
    pub(crate) fn rest(&mut self) {
        self.store.rest();
    }

    /// Memory in use. Bytes.
    pub(crate) fn memory(&self) -> usize {
        self.store.memory()
    }
}

fn piece_of(range: Range<u64>, most: u32, written: u64, attempt: u8) -> Piece {
    let data = range.end.min(written).saturating_sub(range.start).min(u64::from(most));
    let fin = range.end > written && range.start + data == written;
    Piece { offset: range.start, len: data as u32, fin, attempt, copy: None }
}

pub(crate) fn end_of(piece: &Piece) -> u64 {
    piece.offset + u64::from(piece.len) + u64::from(piece.fin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(len: usize) -> Sending {
        let mut sending = Sending::default();
        sending.write(&vec![1; len]);
        sending.raise_limit(1 << 40);
        sending
    }

    #[test]
    fn what_was_lost_goes_before_what_is_new_and_not_if_it_has_arrived() {
        let mut sending = filled(1_000);
        sending.end();
        let pieces: Vec<Piece> = std::iter::from_fn(|| sending.next_piece(300)).collect();
        assert_eq!(
            pieces.iter().map(|p| (p.offset, p.len, p.fin)).collect::<Vec<_>>(),
            [(0, 300, false), (300, 300, false), (600, 300, false), (900, 100, true)]
        );
        sending.on_acked(0, 300, false);
        sending.on_lost(300, 300, false, 0);
        sending.on_lost(900, 100, true, 0);
        sending.on_acked(400, 100, false);
        let mut next = || sending.next_piece(300).map(|p| (p.offset, p.len, p.fin, p.attempt));
        assert_eq!(next(), Some((300, 100, false, 1)));
        assert_eq!(next(), Some((500, 100, false, 1)));
        assert_eq!(next(), Some((900, 100, true, 1)));
        assert_eq!(next(), None);
        assert!(sending.on_acked_upto(900) && !sending.is_settled());
        sending.on_acked(900, 100, true);
        assert!(sending.is_settled() && sending.held() == 0);
        assert!(!sending.on_acked_upto(5_000), "never sent");
    }

    #[test]
    fn the_peers_limit_holds_and_the_end_needs_no_room() {
        let mut sending = Sending::default();
        sending.write(&[1; 100]);
        sending.raise_limit(60);
        sending.end();
        assert_eq!(sending.next_piece(1_000).map(|p| (p.len, p.fin)), Some((60, false)));
        assert_eq!(sending.next_piece(1_000), None);
        sending.raise_limit(100);
        assert_eq!(sending.next_piece(1_000).map(|p| (p.len, p.fin)), Some((40, true)));
    }

    #[test]
    fn a_message_is_cut_from_its_beginning_and_what_was_cut_otherwise_is_known() {
        let mut sending = filled(1_000);
        let send = |sending: &mut Sending, shard| {
            sending.cut(Some(shard));
            sending.next_piece(300).map(|piece| (piece.offset, piece.len))
        };
        while send(&mut sending, 100).is_some() {}
        assert!(sending.on_acked_upto(1_000));
        sending.write(&[1; 48]);
        assert_eq!(send(&mut sending, 100), Some((1_000, 48)));
        sending.write(&[1; 1_000]);
        assert_eq!(send(&mut sending, 100), Some((1_048, 100)), "not a part of a shard");
        // Packets may be longer now.
        while send(&mut sending, 250).is_some() {}
        assert_eq!(sending.shards(1_000), [(1_048..1_148, 100), (1_148..1_898, 250)]);
        assert_eq!(sending.shards(1_100), [(1_148..1_148, 100), (1_148..1_898, 250)]);
    }

    #[test]
    fn copies_come_when_due_until_one_has_arrived() {
        let mut sending = filled(100);
        let piece = sending.next_piece(200).expect("there is data");
        assert!(sending.is_tail(&piece));
        sending.schedule_copies(10, 7, &piece, 3);
        assert_eq!(sending.next_copy(9, 200, 5, false), None);
        let copy = sending.next_copy(10, 200, 5, false).expect("due");
        assert_eq!((copy.offset, copy.len, copy.copy), (0, 100, Some(Some(7))));
        assert_eq!(sending.copy_due(), Some(15));
        let part = sending.next_copy(15, 60, 5, false).expect("due");
        assert_eq!((part.len, part.copy), (60, Some(None)), "it does not stand for the whole");
        let rest = sending.next_copy(15, 60, 5, false).expect("due at once");
        assert_eq!((rest.offset, rest.len), (60, 40));
        sending.on_acked(0, 100, false);
        assert_eq!(sending.next_copy(20, 200, 5, false), None);
    }
}
