//! Sealed lanes encrypt their bytes with keys that only the two ends have. Any carrier will do, and routers cannot read
//! them.
//!
//! A lane begins plain, with the greetings of both ends, which give them a common secret (`isthmus_proto`,
//! `admission.rs`). After its greeting, each end sends records ([`isthmus_seal`]).
//!
//! The last piece of each record is not copied before: it is encrypted from the user's memory into the record. What
//! comes is decrypted within its record and then copied, because the user's memory must hold nothing that is not proved:
//! another lane may have put the same fragment there already.

use std::io;
use std::ops::Range;

use isthmus_seal::{LEN_BYTES, Opener, RECORD_MAX, RECORD_OVERHEAD, Sealer, Secret};

use super::{Carrier, Carriers, Transfer};
use crate::log::{info_few, warn_sparingly};

/// Buffer for bytes that were read and not opened yet. Bytes.
const READ_BYTES: usize = 128 << 10;
/// Bytes that are sealed before they are sent.
const SEAL_BYTES: usize = 128 << 10;
/// Buffer for the records of that many bytes. Bytes.
const OUTWARD_BYTES: usize = SEAL_BYTES + SEAL_BYTES / RECORD_MAX * RECORD_OVERHEAD;

/// A lane that is sealed behind its greetings.
#[derive(Debug)]
pub(crate) struct SealedLane {
    /// The stream that carries the records.
    pub(super) inner: Carrier,
    /// Name of the carrier, for people.
    pub(super) name: String,
    index: usize,
    sealer: Sealer,
    /// Everything that we write from now on is sealed.
    seals: bool,
    opener: Opener,
    /// Everything that comes from now on is sealed.
    opens: bool,
    /// Bytes that were read; those from `taken` to `filled` are not opened yet.
    inward: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Opened bytes in `inward` that were not delivered yet.
    text: Range<usize>,
    /// Records up to `sealed`, of which the first `sent` bytes are written.
    outward: Vec<u8>,
    sealed: usize,
    sent: usize,
    /// Bytes of the pieces to be written that are in those records and not counted as written yet.
    owed: usize,
}

impl SealedLane {
    /// A lane of this index that both ends will seal with keys from `secret`. `dialled` says that we dialled it.
    pub(super) fn new(
        inner: Carrier,
        index: usize,
        secret: &Secret,
        dialled: bool,
        shared: &Carriers,
    ) -> Self {
        let [caller, listener] =
            [&b"caller"[..], b"listener"].map(|end| secret.expand(&[b"isthmus records ", end]));
        let (ours, theirs) = if dialled { (caller, listener) } else { (listener, caller) };
        let name = format!("{}, encrypted", inner.name(shared));
        info_few!("lane {index} is encrypted from here on");
        Self {
            inner,
            name,
            index,
            sealer: Sealer::new(&ours),
            seals: false,
            opener: Opener::new(&theirs),
            opens: false,
            inward: Vec::new(),
            taken: 0,
            filled: 0,
            text: 0..0,
            outward: Vec::new(),
            sealed: 0,
            sent: 0,
            owed: 0,
        }
    }

    /// Seals everything that is written from now on.
    pub(super) fn seal_outward(&mut self) {
        self.seals = true;
    }

    /// Opens everything that comes from now on, beginning with these bytes.
    pub(super) fn open_inward(&mut self, came: &[u8], shared: &mut Carriers) {
        if self.opens {
            return;
        }
        self.opens = true;
        if !came.is_empty() {
            self.inward = shared.sealed.lend(READ_BYTES.max(came.len()));
            self.inward[..came.len()].copy_from_slice(came);
            (self.taken, self.filled) = (0, came.len());
            shared.sealed.must_read(self.index);
        }
    }

    /// Like [`Carrier::read`].
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec], shared: &mut Carriers) -> Transfer {
        if !self.opens {
            // SAFETY: the caller's promise.
            return unsafe { self.inner.read(pieces, shared) };
        }
        let (mut total, mut room) = (0, 0);
        let mut end = None;
        for piece in pieces {
            // SAFETY: the caller's promise.
            let place = unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) };
            room += place.len();
            let (n, over) = self.fill(place, shared);
            total += n;
            end = over;
            if total < room {
                break;
            }
        }
        if self.text.is_empty() && self.taken == self.filled {
            shared.sealed.give_back(&mut self.inward);
            (self.taken, self.filled) = (0, 0);
        } else if total == room || matches!(end, Some(Transfer::Failed(_))) {
            shared.sealed.must_read(self.index);
        }
        match end {
            _ if total > 0 => Transfer::Bytes(total),
            Some(end) => end,
            None => Transfer::Blocked,
        }
    }

    /// Reads the bytes that are there into `place`. If nothing more will come, also returns the reason.
    fn fill(&mut self, place: &mut [u8], shared: &mut Carriers) -> (usize, Option<Transfer>) {
        let mut filled = 0;
        while filled < place.len() {
            if self.text.is_empty() {
                match self.next_record(shared) {
                    Ok(()) => continue,
                    Err(Transfer::Blocked) => return (filled, None),
                    Err(end) => return (filled, Some(end)),
                }
            }
            let len = self.text.len().min(place.len() - filled);
            let from = self.text.start;
            place[filled..filled + len].copy_from_slice(&self.inward[from..from + len]);
            self.text.start += len;
            filled += len;
        }
        (filled, None)
    }

    /// Opens the next record, or reads. If it cannot do either, returns why.
    fn next_record(&mut self, shared: &mut Carriers) -> Result<(), Transfer> {
        if self.inward.is_empty() {
            self.inward = shared.sealed.lend(READ_BYTES);
        }
        match self.open_record() {
            Err(isthmus_seal::Forged) => {
                let text = "what came was altered on its way, or somebody has added to it";
                warn_sparingly!("a sealed lane is closed and dialled again: {text}");
                return Err(Transfer::Failed(io::Error::other(text)));
            }
            Ok(true) => return Ok(()),
            Ok(false) => {}
        }
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.inward.len() - self.taken < RECORD_MAX + RECORD_OVERHEAD {
            self.inward.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        let room = &mut self.inward[self.filled..];
        let mut piece = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
        // SAFETY: the piece is the lane's own.
        match unsafe { self.inner.read(&mut piece, shared) } {
            Transfer::Bytes(n) if n > 0 => {
                self.filled += n;
                Ok(())
            }
            end => Err(end),
        }
    }

    /// Opens the next record in place. False if it is not whole yet.
    fn open_record(&mut self) -> Result<bool, isthmus_seal::Forged> {
        let Some(len) = Opener::record_len(&self.inward[self.taken..self.filled])? else { return Ok(false) };
        let text = self.opener.open(&mut self.inward[self.taken..self.taken + len])?.len();
        self.text = self.taken + LEN_BYTES..self.taken + LEN_BYTES + text;
        self.taken += len;
        Ok(true)
    }

    /// Like [`Carrier::write`]. The caller passes pieces again until they are counted as written.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(super) unsafe fn write(
        &mut self,
        pieces: &mut [libc::iovec],
        lent: &[bool],
        shared: &mut Carriers,
    ) -> Transfer {
        if !self.seals {
            // SAFETY: the caller's promise.
            return unsafe { self.inner.write(pieces, lent, shared) };
        }
        let mut total = 0;
        loop {
            match self.flush(shared) {
                Ok(true) => total += std::mem::take(&mut self.owed),
                Ok(false) if total == 0 => return Transfer::Blocked,
                Ok(false) => return Transfer::Bytes(total),
                Err(error) => return Transfer::Failed(error),
            }
            if self.outward.is_empty() {
                self.outward = shared.sealed.lend_outward(OUTWARD_BYTES);
            }
            let mut text = Text { pieces, skip: total };
            let mut left = SEAL_BYTES;
            while left > 0 {
                // SAFETY: the caller's promise.
                let len = unsafe { text.len(left.min(RECORD_MAX)) };
                if len == 0 {
                    break;
                }
                let out = &mut self.outward[self.sealed..];
                // SAFETY: the caller's promise.
                let (first, rest) = unsafe { text.take(len, &mut out[LEN_BYTES..]) };
                self.sealed += self.sealer.seal(out, first, rest);
                self.owed += len;
                left -= len;
            }
            if self.owed == 0 {
                // A lane that has nothing to send keeps no buffer for it.
                shared.sealed.give_back_outward(&mut self.outward);
                return Transfer::Bytes(total);
            }
        }
    }

    /// Sends the sealed records. False if the carrier takes no more now.
    fn flush(&mut self, shared: &mut Carriers) -> io::Result<bool> {
        while self.sent < self.sealed {
            let rest = &mut self.outward[self.sent..self.sealed];
            let mut piece = [libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() }];
            // SAFETY: the piece is the lane's own, and nobody borrows what is not lent.
            match unsafe { self.inner.write(&mut piece, &[false], shared) } {
                Transfer::Bytes(n) if n > 0 => self.sent += n,
                Transfer::Failed(error) => return Err(error),
                Transfer::Bytes(_) | Transfer::Blocked => return Ok(false),
            }
        }
        (self.sealed, self.sent) = (0, 0);
        Ok(true)
    }
}

/// The bytes of `pieces` to be written, without the first `skip`.
struct Text<'a> {
    pieces: &'a [libc::iovec],
    skip: usize,
}

impl<'a> Text<'a> {
    /// The number of bytes, but at most `most`.
    ///
    /// # Safety
    /// Every piece is valid for reading.
    unsafe fn len(&self, most: usize) -> usize {
        let mut len = 0;
        for piece in self.pieces {
            len += piece.iov_len;
            if len >= self.skip + most {
                return most;
            }
        }
        len - self.skip.min(len)
    }

    /// Takes the next `len` bytes, which must exist. Those of the last piece are returned. Those before it are copied
    /// to the start of `out`, and their number is returned.
    ///
    /// # Safety
    /// Every piece is valid for reading, also as long as the returned bytes are used.
    unsafe fn take(&mut self, mut len: usize, out: &mut [u8]) -> (usize, &'a [u8]) {
        let mut copied = 0;
        while let Some(piece) = self.pieces.first() {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
            let bytes = bytes.get(self.skip..).unwrap_or_default();
            if len < bytes.len() {
                self.skip += len;
                return (copied, &bytes[..len]);
            }
            self.skip = self.skip.saturating_sub(piece.iov_len);
            self.pieces = &self.pieces[1..];
            if len == bytes.len() {
                return (copied, bytes);
            }
            out[copied..copied + bytes.len()].copy_from_slice(bytes);
            copied += bytes.len();
            len -= bytes.len();
        }
        (copied, &[])
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use socket2::Socket;

    use super::*;
    use crate::Settings;

    /// Long enough for all data to arrive.
    const LIMIT: Duration = Duration::from_secs(20);

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        [near, listener.accept().expect("it calls").0]
    }

    /// One end, and the state that it shares with other lanes.
    struct End {
        carrier: Carrier,
        shared: Carriers,
    }

    impl End {
        fn new(socket: TcpStream, dialled: bool) -> Self {
            socket.set_nonblocking(true).expect("a socket");
            let own = "127.0.0.1".parse().expect("an address");
            let mut shared = Carriers::new(&Settings::default(), own, None, None, None);
            let tcp = super::super::TcpLane::accept(Socket::from(socket), &mut shared.paths).expect("a lane");
            let mut carrier = Carrier::Tcp(tcp);
            assert!(carrier.share(&Secret([7; Secret::LEN]), dialled, 0, &mut shared));
            Self { carrier, shared }
        }

        /// Writes as much as there is room for.
        fn write(&mut self, bytes: &[u8]) -> usize {
            // In pieces that fit no record.
            let mut pieces: Vec<_> = bytes
                .chunks(5_000)
                .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() })
                .collect();
            let lent = vec![false; pieces.len()];
            // SAFETY: the pieces are only read, and live until this returns.
            match unsafe { self.carrier.write(&mut pieces, &lent, &mut self.shared) } {
                Transfer::Bytes(n) => n,
                Transfer::Blocked => 0,
                Transfer::Failed(error) => panic!("{error}"),
            }
        }

        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let mut piece = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
            // SAFETY: the piece is `room`.
            match unsafe { self.carrier.read(&mut piece, &mut self.shared) } {
                Transfer::Bytes(n) => Ok(n),
                Transfer::Blocked => Ok(0),
                Transfer::Failed(error) => Err(error),
            }
        }
    }

    /// Two ends that have greeted, and all that went from the first to the second. `alter` changes it on the way.
    fn ends(mut alter: impl FnMut(usize, &mut [u8]) + Send + 'static) -> (End, End, mpsc::Receiver<Vec<u8>>) {
        let ([near, mut tap_in], [mut tap_out, far]) = (pair(), pair());
        let (kept, keeps) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut bytes, mut passed) = (vec![0; 10_000], 0);
            while let Ok(len @ 1..) = tap_in.read(&mut bytes) {
                let _ = kept.send(bytes[..len].to_vec());
                alter(passed, &mut bytes[..len]);
                passed += len;
                if tap_out.write_all(&bytes[..len]).is_err() {
                    break;
                }
            }
        });
        let (mut a, mut b) = (End::new(near, true), End::new(far, false));
        a.carrier.seal_outward();
        assert!(b.carrier.open_inward(&[], &mut b.shared));
        (a, b, keeps)
    }

    /// Sends a text of `len` bytes. Returns the bytes that arrived, and the error that ended the transfer. The reader's
    /// memory holds nothing but the bytes that count: other lanes may have put theirs behind them.
    fn send(a: &mut End, b: &mut End, len: usize) -> (Vec<u8>, Option<io::Error>) {
        let text: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let (mut sent, mut got, start) = (0, Vec::new(), Instant::now());
        const OTHERS: u8 = 255;
        let mut room = vec![OTHERS; 70_000];
        while got.len() < len {
            assert!(start.elapsed() < LIMIT, "{} of {len} bytes came", got.len());
            sent += a.write(&text[sent..]);
            let read = b.read(&mut room);
            let n = *read.as_ref().unwrap_or(&0);
            got.extend_from_slice(&room[..n]);
            assert!(room[n..].iter().all(|byte| *byte == OTHERS), "memory behind what counts was written");
            room[..n].fill(OTHERS);
            if let Err(error) = read {
                return (got, Some(error));
            }
        }
        assert!(got == text);
        (got, None)
    }

    #[test]
    fn what_is_sealed_comes_out_as_it_went_in_and_nobody_on_the_way_can_read_it() {
        let (mut a, mut b, kept) = ends(|_, _| {});
        for len in [1, RECORD_MAX, RECORD_MAX + 1, 3_000_000] {
            assert!(send(&mut a, &mut b, len).1.is_none());
        }
        let kept: Vec<u8> = kept.try_iter().flatten().collect();
        assert!(kept.len() > 3_000_000);
        let run: Vec<u8> = (0..16).collect();
        assert!(!kept.windows(16).any(|part| part == run));
    }

    #[test]
    fn what_is_altered_on_the_way_ends_the_lane_and_nothing_of_it_is_delivered() {
        for at in [0_usize, 3, 4, 10_000, 16_390, 20_000, 1_000_000] {
            let (mut a, mut b, _) = ends(move |passed, bytes| {
                if let Some(byte) = at.checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
                    *byte ^= 0x40;
                }
            });
            let (got, error) = send(&mut a, &mut b, 3_000_000);
            // Only whole records before the altered byte have come.
            let whole = at / (RECORD_MAX + RECORD_OVERHEAD) * RECORD_MAX;
            assert!(error.is_some_and(|error| error.to_string().contains("altered on its way")), "byte {at}");
            assert!(got.len() <= whole && got.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8));
        }
    }

    #[test]
    fn what_came_together_with_the_greeting_is_opened_first() {
        let secret = Secret([7; Secret::LEN]);
        let [near, far] = pair();
        let mut b = End::new(far, false);
        let caller = secret.expand(&[b"isthmus records ", b"caller"]);
        let mut sealer = Sealer::new(&caller);
        let mut records = [0; 7 + 10 + 2 * RECORD_OVERHEAD];
        let len = sealer.seal(&mut records, 0, b"with it");
        sealer.seal(&mut records[len..], 0, b" and after");
        let (with, after) = records.split_at(40);
        assert!(b.carrier.open_inward(with, &mut b.shared));
        assert!(!b.shared.is_plain(), "it is to be read though its connection shows nothing");
        let mut room = [0; 100];
        assert_eq!(b.read(&mut room).expect("genuine"), 7);
        assert_eq!(&room[..7], b"with it");
        (&near).write_all(after).expect("room");
        let start = Instant::now();
        let mut n = 0;
        while n == 0 && start.elapsed() < LIMIT {
            n = b.read(&mut room).expect("genuine");
        }
        assert_eq!(&room[..n], b" and after");
    }
}
