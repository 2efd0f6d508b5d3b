//! One end of a lane by shared memory: two rings, and memory that is lent to the other end.
//!
//! Both ends copy the bytes of a ring, at the same time and without a system call. Only the reader copies *lent*
//! memory, by a system call on the writer's memory. That takes longer per page than both copies, but the writer need
//! not be there. So bytes go through the ring. A piece that finds no room is lent, so that the reader can get it while
//! the writer is away. When the writer comes back and finds room, it takes the loan back, unless the reader has begun
//! with it.
//!
//! If the two processors are far from each other, as on different sockets, data written by one gets to the other so
//! slowly that the system call is much quicker. So the reader tries both on long pieces and tells the writer which it
//! wants (`copy_mode.rs`). It then gets long pieces lent *for good*: the writer does not take them back.

use std::io;
use std::time::{Duration, Instant};

use isthmus_proto::{Access as Wanted, RemoteRange};
use isthmus_wakeup::sleeper;
use isthmus_wire::frame::Message;

use super::copy_mode::{CopyMode, CopyTrial};
use super::loans::Loans;
use super::process_vm::Process;
use super::regions::ShownRegion;
use super::ring::{Broken, RECORD_MAX, Reader, Record, Spot, WORDS, Writer};
use super::segment::{Segment, Sleeper};
use crate::carrier::Transfer;
use crate::log::debug_log;
use crate::region::Region;

/// Pieces from this length on are lent if the ring has no room. Bytes.
const LEND_MIN: usize = 12 << 10;
/// Pieces from this length on are lent for good if the reader wants that. Bytes.
const LONG_MIN: usize = 32 << 10;
/// Most pieces of one record of bytes. Count.
const GATHER: usize = 16;
/// If the ring has less room than this, no part of a longer piece is written. Bytes.
const FAIR: usize = 4 << 10;
/// The reader waits this long before it takes a loan: the writer may write it to the ring instead, which is quicker.
const PATIENCE: Duration = Duration::from_micros(20);
/// Most bytes of the neighbour's memory in one access. A neighbour that hides a region waits for one access.
const PORTION: u64 = 1 << 20;
/// A process counts as alive for this long after it was seen: its process id is not reused so soon.
const LIFETIME: Duration = Duration::from_millis(1);

/// A loan that the writer may take back.
#[derive(Clone, Copy, Debug)]
struct Lent {
    /// Position of its record.
    at: u64,
    /// Position behind its record.
    behind: u64,
    /// Bytes to be written that are before it. Count.
    before: usize,
    /// The reader has it.
    taken: bool,
}

/// One end of a lane.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    // Declared before the segment, which they refer to, so that they are dropped first.
    writer: Writer,
    reader: Reader,
    segment: Segment,
    neighbour: Process,
    /// Whether we read the neighbour's memory.
    reaches: bool,
    /// Whether we access the regions that it shows.
    accesses: bool,
    /// When the neighbour was last seen alive.
    seen: Instant,
    /// Bytes to be written that are in the ring or lent, but not reported as written yet.
    pushed: usize,
    /// The loan that was not read yet.
    lent: Option<Lent>,
    /// Loans for good, once there were any. Most lanes have none.
    loans: Option<Box<Loans>>,
    /// Finds the quicker mode for long pieces, once any came. Most lanes carry none.
    copy_trial: Option<Box<CopyTrial>>,
    /// When we first saw the loan that the neighbour offers.
    offered: Option<Instant>,
    /// Time that we give the neighbour to take it back.
    patience: Duration,
    /// The last write could not take everything.
    waits: bool,
    /// Some of it is neither in the ring nor lent.
    unpushed: bool,
    /// The neighbour writes no more.
    ended: bool,
    /// We write no more.
    finished: bool,
    /// The connection has ended.
    parted: bool,
    /// The neighbour is to be woken.
    rings: bool,
    /// The ring holds memory that can be given back.
    used: bool,
    /// The process whose memory could not be read although it could before.
    unreachable: Option<u64>,
}

impl MemoryLink {
    /// `reaches` says that the neighbour's memory can be read.
    pub(super) fn new(segment: Segment, neighbour: Process, reaches: bool) -> Self {
        // SAFETY: both are dropped before the segment, which comes here once.
        let (writer, reader) = unsafe { segment.rings() };
        if reaches {
            segment.say_reaches();
        }
        Self {
            writer,
            reader,
            segment,
            neighbour,
            reaches,
            accesses: reaches,
            seen: Instant::now(),
            pushed: 0,
            lent: None,
            loans: None,
            copy_trial: None,
            offered: None,
            patience: PATIENCE,
            waits: false,
            unpushed: false,
            ended: false,
            finished: false,
            parted: false,
            rings: false,
            used: false,
            unreachable: None,
        }
    }

    /// If the lane broke because the neighbour's memory could no longer be read: the neighbour's process id.
    pub(super) fn unreachable(&self) -> Option<u64> {
        self.unreachable
    }

    /// Whether a read would find something.
    pub(super) fn is_readable(&self) -> bool {
        self.reader.has_news() || self.parted
    }

    /// Makes `spot` show the next record. False if looking there is not enough.
    pub(super) fn show(&self, spot: &Spot) -> bool {
        spot.set(&self.reader);
        !self.waits && !self.parted && !self.reader.is_within()
    }

    /// Whether a write that could not take everything would now take more.
    pub(super) fn is_writable(&mut self) -> bool {
        if !self.waits {
            return false;
        }
        match (self.lent, self.writer.read_to()) {
            (_, Err(Broken)) => true,
            (Some(lent), Ok(read)) if read >= lent.behind => true,
            (Some(lent), Ok(_)) => (self.unpushed || !lent.taken) && self.has_fair_room(),
            (None, Ok(_)) => self.has_fair_room(),
        }
    }

    fn has_fair_room(&mut self) -> bool {
        self.writer.room(FAIR as u64).is_ok_and(|room| room >= FAIR as u64)
    }

    /// Reads into `pieces` as much as is there; of a loan, as much as one system call brings.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        // SAFETY: the caller's promise.
        let came = unsafe { self.take(pieces) };
        self.tell();
        came
    }

    /// Reads bytes from the ring, up to a loan or a short message, as many as `to` holds; 0 if none are next. The
    /// caller then tells the neighbour by [`MemoryLink::tell`].
    pub(super) fn read_short(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if !matches!(self.reader.record(), Ok(Some(Record::Bytes(_)))) {
            return Ok(0);
        }
        let mut piece = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() }];
        // SAFETY: the piece is `to`.
        match unsafe { self.take(&mut piece) } {
            Transfer::Bytes(n) => Ok(n),
            Transfer::Blocked => Ok(0),
            Transfer::Failed(error) => Err(error),
        }
    }

    /// Takes the next record if it is a short message. Its bytes are then at the start of `to`, which must hold the
    /// longest.
    #[inline]
    pub(super) fn take_short(&mut self, to: &mut [u8]) -> Option<Message> {
        self.reader.take_short(to).map(|(said, len)| message_of(said, len))
    }

    /// Tells the neighbour how far we have read.
    pub(super) fn tell(&mut self) {
        if self.reader.tell() && sleeper::take_sleep(self.segment.other_wait()) {
            self.ring_if_asleep();
        }
    }

    /// Whether a record of `len` bytes can be written now.
    #[inline]
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        !self.finished
            && self.pushed == 0
            && self.writer.room(len as u64).is_ok_and(|room| room >= len as u64)
    }

    /// Writes a whole message, for which there must be room. After a fence, the caller checks whether the neighbour
    /// sleeps, and wakes it ([`MemoryLink::ring_if_asleep`]).
    #[inline]
    pub(super) fn write_short(&mut self, message: &Message, payload: &[u8]) -> Sleeper {
        let words = [message.seq, message.order, message.tag, message.data];
        self.writer.push_short(message.flags, words, payload);
        self.used = true;
        self.segment.other_sleeper()
    }

    /// # Safety
    /// See [`MemoryLink::read`].
    unsafe fn take(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        let (mut total, mut at, mut filled) = (0, 0, 0);
        while let Some(piece) = pieces.get(at) {
            if filled == piece.iov_len {
                (at, filled) = (at + 1, 0);
                continue;
            }
            let record = match self.reader.record() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(Broken) => return broken(),
            };
            match record {
                Record::Bytes(left) => {
                    let n = (piece.iov_len - filled).min(left as usize);
                    let to = piece.iov_base.cast::<u8>().wrapping_add(filled);
                    // SAFETY: the caller vouches for the piece, of which `filled + n` bytes exist.
                    unsafe { self.reader.copy(to, n) };
                    (filled, total) = (filled + n, total + n);
                    self.offered = None;
                    if self.reader.is_long() {
                        self.note(CopyMode::Both, n);
                    }
                    if n >= FAIR {
                        // Tell the other end now, so that it can write more meanwhile.
                        self.tell();
                    }
                }
                // Turn it back into the bytes of a frame.
                Record::Short(len) => {
                    let to = piece.iov_base.cast::<u8>().wrapping_add(filled);
                    let n = Message::LEN + len as usize;
                    if piece.iov_len - filled < n {
                        return if total > 0 { Transfer::Bytes(total) } else { broken() };
                    }
                    let header = message_of(self.reader.words(), len).to_bytes();
                    // SAFETY: the caller vouches for the piece, of which `filled + n` bytes exist.
                    unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), to, header.len()) };
                    // SAFETY: as above.
                    unsafe { self.reader.copy(to.wrapping_add(header.len()), len as usize) };
                    (filled, total) = (filled + n, total + n);
                }
                Record::End => {
                    self.reader.took(0);
                    self.ended = true;
                    break;
                }
                // Return first what we have: a loan is read by a call of its own.
                Record::Offered { .. } | Record::Lent { .. } if total > 0 => break,
                Record::Offered { for_good } => match self.take_lent(for_good) {
                    Ok(true) => continue,
                    Ok(false) => break,
                    Err(Broken) => return broken(),
                },
                Record::Lent { len, .. } => {
                    // SAFETY: the caller's promise.
                    let came = unsafe { self.reach(&mut pieces[at..]) };
                    if let (Transfer::Bytes(n), LONG_MIN..) = (&came, len as usize) {
                        self.note(CopyMode::Reader, *n);
                    }
                    return came;
                }
            }
        }
        match total {
            0 if self.ended => Transfer::Bytes(0),
            0 if self.parted && self.finished => Transfer::Bytes(0),
            0 if self.parted => Transfer::Failed(io::ErrorKind::UnexpectedEof.into()),
            0 => Transfer::Blocked,
            n => Transfer::Bytes(n),
        }
    }

    /// Takes an offered loan: at once if it is for good, else after [`PATIENCE`]. False if we do not have it.
    fn take_lent(&mut self, for_good: bool) -> Result<bool, Broken> {
        if for_good {
            return self.reader.take_lent(true);
        }
        if self.offered.get_or_insert_with(Instant::now).elapsed() < self.patience {
            return Ok(false);
        }
        self.offered = None;
        self.reader.take_lent(false)
    }

    /// Measures that `bytes` of long pieces came in this mode.
    fn note(&mut self, mode: CopyMode, bytes: usize) {
        if self.reaches {
            let copy_trial = self.copy_trial.get_or_insert_default();
            if copy_trial.note(mode, bytes) {
                debug_log!("long pieces of process {}: {copy_trial:?}", self.neighbour.pid);
                self.segment.ask_to_copy_alone(copy_trial.mode() == CopyMode::Reader);
            }
        }
    }

    /// Reads the present loan, as much as the pieces hold.
    ///
    /// # Safety
    /// See [`MemoryLink::read`].
    unsafe fn reach(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        let room = pieces.iter().map(|piece| piece.iov_len as u64).sum::<u64>();
        while let (true, Ok(Some(Record::Lent { address, len }))) = (self.reaches, self.reader.record()) {
            let n = room.min(len) as usize;
            // If the process was there a moment ago, do not check its token again.
            let read = if self.seen.elapsed() < LIFETIME {
                // SAFETY: the caller's promise.
                unsafe { self.neighbour.access(Wanted::Read, (address, n), pieces, 0) }.map(|()| n)
            } else {
                self.seen = Instant::now();
                // SAFETY: the caller's promise.
                unsafe { self.neighbour.read(address, len, pieces) }
            };
            match (self.reader.is_in_place(), read) {
                (Ok(false), _) => {}
                (Ok(true), Ok(n)) => {
                    self.reader.took(n as u64);
                    return Transfer::Bytes(n);
                }
                (Ok(true), Err(error)) => {
                    self.unreachable = Some(self.neighbour.pid);
                    return Transfer::Failed(error);
                }
                (Err(Broken), _) => break,
            }
        }
        broken()
    }

    /// Writes from `pieces` as much as there is room for, and lends the next piece. A loan counts as written once the
    /// neighbour has read it. If the call returns less than everything, the caller comes again with the rest.
    ///
    /// # Safety
    /// See `Carrier::write`.
    pub(super) unsafe fn write(&mut self, pieces: &[libc::iovec], lent: &[bool]) -> Transfer {
        let total = pieces.iter().map(|piece| piece.iov_len).sum();
        // SAFETY: the caller's promise.
        let mut done = unsafe { self.put(pieces, lent, total) };
        self.waits = done.is_ok_and(|done| done < total);
        if self.waits {
            sleeper::will_sleep(self.segment.own_wait());
            if self.is_writable() {
                // SAFETY: the caller's promise.
                done = unsafe { self.put(pieces, lent, total) };
                self.waits = done.is_ok_and(|done| done < total);
            }
        }
        let Ok(done) = done else { return broken() };
        self.pushed -= done;
        if let Some(lent) = &mut self.lent {
            lent.before -= done;
        }
        if done == 0 && total > 0 { Transfer::Blocked } else { Transfer::Bytes(done) }
    }

    /// Makes one attempt; returns how many of the pieces' bytes count as written.
    ///
    /// # Safety
    /// See [`MemoryLink::write`].
    unsafe fn put(&mut self, pieces: &[libc::iovec], lent: &[bool], total: usize) -> Result<usize, Broken> {
        self.look_after_lent()?;
        let before = self.writer.tail();
        if self.lent.is_none_or(|lent| lent.taken) {
            // SAFETY: the caller's promise.
            while self.pushed < total && (self.give(pieces, lent)? || unsafe { self.push(pieces, lent) }?) {}
            if self.pushed < total && self.lent.is_none() && self.segment.is_reached() {
                self.lend(pieces)?;
            }
        }
        self.unpushed = self.pushed < total;
        if self.writer.tail() != before {
            self.used = true;
            self.ring_if_asleep();
        }
        Ok(self.lent.map_or(self.pushed, |lent| lent.before))
    }

    /// Checks whether the loan was read; takes it back if there is room for it in the ring.
    fn look_after_lent(&mut self) -> Result<(), Broken> {
        let Some(mut lent) = self.lent else { return Ok(()) };
        if self.writer.read_to()? >= lent.behind {
            self.lent = None;
        } else if !lent.taken && self.has_fair_room() {
            lent.taken = !self.writer.take_back(lent.at);
            if lent.taken {
                self.lent = Some(lent);
            } else {
                (self.lent, self.pushed) = (None, lent.before);
            }
        }
        Ok(())
    }

    /// Index of the next piece, and how much of it is in the ring already.
    fn next_piece(&self, pieces: &[libc::iovec]) -> Option<(usize, usize)> {
        let mut skip = self.pushed;
        let next = pieces.iter().position(|piece| {
            let comes = skip < piece.iov_len;
            skip -= if comes { 0 } else { piece.iov_len };
            comes
        });
        next.map(|next| (next, skip))
    }

    /// Whether a piece may be lent for good.
    fn is_long(&self, piece: &libc::iovec, lent: Option<&bool>) -> bool {
        lent == Some(&true) && piece.iov_len >= LONG_MIN && self.segment.is_reached()
    }

    /// Lends the next piece for good, if the neighbour wants that and there is room for the record.
    fn give(&mut self, pieces: &[libc::iovec], lent: &[bool]) -> Result<bool, Broken> {
        if !self.segment.other_copies_alone() {
            return Ok(false);
        }
        let Some((next, 0)) = self.next_piece(pieces) else { return Ok(false) };
        let piece = &pieces[next];
        if !self.is_long(piece, lent.get(next)) {
            return Ok(false);
        }
        let at = self.writer.tail();
        let has_room = self.writer.push_lent(piece.iov_base as u64, piece.iov_len as u64, true)?;
        if has_room {
            self.loans.get_or_insert_default().add(at, self.writer.tail(), piece);
            self.pushed += piece.iov_len;
        }
        Ok(has_room)
    }

    /// Closes a batch that was written whole. True if loans for good of it are in use; they are until
    /// [`MemoryLink::take_returned`] has counted the batch.
    pub(super) fn close_batch(&mut self) -> bool {
        let Some(loans) = &mut self.loans else { return false };
        self.writer.read_to().is_ok_and(|read| loans.close_batch(read))
    }

    /// Number of batches, oldest first, that went out of use since the last call, and whether others are in use.
    pub(super) fn take_returned(&mut self) -> (usize, bool) {
        let Some(loans) = &mut self.loans else { return (0, false) };
        // A broken neighbour returns nothing; the lane will end.
        loans.take_returned(self.writer.read_to().unwrap_or(0))
    }

    /// Copies the unread parts of the first `batches` batches that were ever in use, and returns these batches.
    pub(super) fn recall(&mut self, batches: u64) {
        let (Some(mut loans), Ok(read)) = (self.loans.take(), self.writer.read_to()) else { return };
        for loan in loans.recall(batches, read) {
            // SAFETY: the promise of `write`: it was not counted as returned.
            let address = unsafe { loan.copy() };
            self.writer.move_lent(loan.at, address);
        }
        self.loans = Some(loans);
    }

    /// Withdraws all loans, since the lane has ended: other lanes carry their data, or the program changes its buffers.
    /// The neighbour discards what it reads of them after this returns.
    pub(super) fn withdraw(&mut self) {
        let Ok(read) = self.writer.read_to() else { return };
        if let Some(lent) = self.lent.take()
            && lent.behind > read
            && !self.writer.take_back(lent.at)
        {
            self.writer.revoke(lent.at);
        }
        if let Some(mut loans) = self.loans.take() {
            loans.unread(read).for_each(|loan| self.writer.revoke(loan.at));
        }
    }

    /// Lends what is left of the next piece, if that is long enough and there is room for the record.
    fn lend(&mut self, pieces: &[libc::iovec]) -> Result<(), Broken> {
        let Some((next, skip)) = self.next_piece(pieces) else { return Ok(()) };
        let (from, len) = (pieces[next].iov_base.wrapping_byte_add(skip), pieces[next].iov_len - skip);
        let (at, before) = (self.writer.tail(), self.pushed);
        if len >= LEND_MIN && self.writer.push_lent(from as u64, len as u64, false)? {
            self.lent = Some(Lent { at, behind: self.writer.tail(), before, taken: false });
            self.pushed += len;
        }
        Ok(())
    }

    /// Writes one record of bytes that are not pushed yet. False if there is no room for a fair part of it.
    ///
    /// # Safety
    /// See [`MemoryLink::write`].
    unsafe fn push(&mut self, pieces: &[libc::iovec], lent: &[bool]) -> Result<bool, Broken> {
        let Some((next, mut skip)) = self.next_piece(pieces) else { return Ok(false) };
        let (mut wanted, mut count, mut long) = (0, 0, false);
        let mut gathered = [(std::ptr::null(), 0); GATHER];
        for (index, piece) in pieces.iter().enumerate().skip(next).filter(|(_, piece)| piece.iov_len > 0) {
            let from = piece.iov_base.cast::<u8>().cast_const().wrapping_add(skip);
            let len = piece.iov_len - std::mem::take(&mut skip);
            // A record has either only pieces that might have been lent for good, or none.
            if self.is_long(piece, lent.get(index)) != long {
                if count > 0 {
                    break;
                }
                long = true;
            }
            gathered[count] = (from, len);
            (count, wanted) = (count + 1, wanted + len);
            if count == GATHER || wanted >= RECORD_MAX as usize {
                break;
            }
        }
        let room = self.writer.room((wanted as u64).min(RECORD_MAX))? as usize;
        if room < wanted.min(FAIR) {
            return Ok(false);
        }
        let mut left = wanted.min(room);
        self.pushed += left;
        let mut used = 0;
        while left > 0 {
            let (_, len) = &mut gathered[used];
            *len = left.min(*len);
            left -= *len;
            used += 1;
        }
        // SAFETY: the caller's promise; there is room for as much.
        unsafe { self.writer.push_bytes(&gathered[..used], long) };
        Ok(true)
    }

    /// Whether each end can access the other's memory, and the neighbour is not shown a region with this key yet.
    pub(super) fn can_show_region(&self, key: u64) -> bool {
        self.reaches && self.segment.is_reached() && !self.segment.shows(key)
    }

    /// Shows the neighbour a region for direct access, if there is a slot for it.
    pub(super) fn show_region(&mut self, key: u64, region: &Region) -> Option<ShownRegion> {
        self.segment.show(key, region, self.neighbour)
    }

    /// Reads or writes memory that the neighbour shows, to or from these pieces. False if it could not be done, or only
    /// in part; it may then be done again.
    ///
    /// # Safety
    /// The pieces are as long as the range, and valid for writing where this reads.
    pub(super) unsafe fn access(
        &mut self,
        range: RemoteRange,
        wanted: Wanted,
        pieces: &[libc::iovec],
    ) -> bool {
        if !self.accesses || self.parted {
            return false;
        }
        let Some(there) = self.segment.find(range, wanted) else { return false };
        if self.seen.elapsed() > LIFETIME {
            self.accesses = self.neighbour.is_accessible();
            self.seen = Instant::now();
        }
        let mut done = 0;
        while done < range.len && self.accesses {
            let portion = (range.len - done).min(PORTION);
            if !self.segment.begin(&there) {
                return false;
            }
            let place = (there.address + done, portion as usize);
            // SAFETY: the caller's promise.
            let moved = unsafe { self.neighbour.access(wanted, place, pieces, done as usize) };
            self.segment.end();
            if let Err(error) = moved {
                debug_log!("memory that process {} shows cannot be accessed: {error}", self.neighbour.pid);
                self.accesses = false;
            }
            done += portion;
        }
        self.accesses
    }

    /// Ends our side of the stream, after what was written.
    pub(super) fn finish(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.writer.push_end();
            self.ring_if_asleep();
        }
    }

    /// Notes that the connection has ended: nothing more will come.
    pub(super) fn part(&mut self) {
        self.parted = true;
    }

    /// Prepares for a sleep until the neighbour wakes this end. False if there is something to do first.
    pub(super) fn doze(&mut self) -> bool {
        if self.waits || self.loans.as_ref().is_some_and(|loans| loans.any()) {
            sleeper::will_sleep(self.segment.own_wait());
        }
        sleeper::will_sleep(self.segment.own_sleep());
        !self.is_readable() && !self.is_writable() && !self.has_returned()
    }

    /// Whether a loan for good was read and is not reported as returned yet.
    fn has_returned(&mut self) -> bool {
        let Some(loans) = &self.loans else { return false };
        self.writer.read_to().is_ok_and(|read| loans.any_read(read))
    }

    /// Tells the neighbour that this end looks by itself and need not be woken.
    pub(super) fn rouse(&mut self) {
        sleeper::will_look(self.segment.own_sleep());
    }

    /// Gives back memory that holds nothing, since the lane has been idle for a while.
    pub(super) fn rest(&mut self) {
        if self.used && !self.waits && self.writer.is_empty() == Ok(true) {
            self.used = false;
            self.segment.give_back();
        }
    }

    /// Whether the neighbour has to be woken. The caller then does so.
    pub(super) fn take_ring(&mut self) -> bool {
        std::mem::take(&mut self.rings)
    }

    /// Notes that the neighbour is to be woken, if it sleeps.
    pub(super) fn ring_if_asleep(&mut self) {
        self.rings |= sleeper::take_sleep(self.segment.other_sleep());
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The message of a short record: whole, and sent without waiting for its receive.
#[inline]
fn message_of((flags, [seq, order, tag, data]): (u8, [u64; WORDS]), len: u64) -> Message {
    Message { flags, connection: 0, seq, order, tag, data, total: len, eager: len, payload: len as u32 }
}

fn broken() -> Transfer {
    Transfer::Failed(io::Error::new(
        io::ErrorKind::InvalidData,
        "the other end's shared memory makes no sense",
    ))
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
