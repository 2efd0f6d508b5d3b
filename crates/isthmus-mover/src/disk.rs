//! Reads and writes of disk threads at an offset of a file: by a system call, or in several pieces at once by an
//! io_uring of the thread.
//!
//! Only this file and `port.rs` of the crate have `unsafe` code. The kernel borrows a buffer, and no function returns
//! before the kernel has released it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::str::FromStr;
use std::time::Instant;

use io_uring::{IoUring, opcode, squeue, types};
use isthmus_io::log::Sparing;
use rustix::io::{Errno, pread, pwrite};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde::de::IntoDeserializer;

use crate::cache::Cache;

/// Length of one piece of an io_uring operation. Bytes.
const PIECE: usize = 256 << 10;
/// Limit on pieces in flight. Count.
const DEPTH: u32 = 8;

/// The interface by which disk threads read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// System calls, one at a time in each thread.
    #[default]
    Threads,
    /// An io_uring in each thread, several pieces of a block at once. Without io_uring in the kernel: as
    /// [`Io::Threads`].
    Uring,
}

impl FromStr for Io {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        by_name(text)
    }
}

/// Parses a name from a configuration.
pub(crate) fn by_name<'a, T: Deserialize<'a>>(name: &'a str) -> Result<T, String> {
    T::deserialize(name.into_deserializer()).map_err(|error: serde::de::value::Error| error.to_string())
}

/// The interface and the cache that disk threads use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The interface.
    pub io: Io,
    /// The use of the page cache.
    pub cache: Cache,
}

thread_local! {
    static CACHE: Cell<Cache> = const { Cell::new(Cache::Measured) };
    static RING: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

/// Says that this host has no io_uring. Each thread of each session meets that.
fn tell_no_ring(error: &io::Error) {
    static SPARING: Sparing = Sparing::new();
    if let Some(left_out) = SPARING.due(Instant::now()) {
        tracing::warn!("no io_uring here ({error}); system calls do instead{left_out}");
    }
}

/// Sets the choice for this thread.
pub(crate) fn begin(Disk { io, cache }: Disk) {
    CACHE.set(cache);
    let ring = match io {
        Io::Threads => None,
        Io::Uring => IoUring::new(DEPTH).inspect_err(tell_no_ring).ok(),
    };
    RING.set(ring);
}

/// The choice for this thread.
pub(crate) fn cache() -> Cache {
    CACHE.get()
}

/// Processor time of this thread. Nanoseconds. None with an io_uring, because kernel threads then do part of the work.
pub(crate) fn processor_time() -> Option<i64> {
    if RING.with_borrow(Option::is_some) {
        return None;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// As `pread(2)`.
pub(crate) fn read_at(file: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let fd = types::Fd(file.as_fd().as_raw_fd());
    let pieces = bytes.chunks_mut(PIECE).zip((offset..).step_by(PIECE));
    let pieces = pieces.map(|(piece, at)| {
        let entry = opcode::Read::new(fd, piece.as_mut_ptr(), piece.len() as u32).offset(at).build();
        (entry, piece.len())
    });
    if let Some(done) = by_ring(pieces) { done } else { pread(file, bytes, offset) }
}

/// As `pwrite(2)`.
pub(crate) fn write_at(file: impl AsFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    let fd = types::Fd(file.as_fd().as_raw_fd());
    let pieces = bytes.chunks(PIECE).zip((offset..).step_by(PIECE));
    let pieces = pieces.map(|(piece, at)| {
        let entry = opcode::Write::new(fd, piece.as_ptr(), piece.len() as u32).offset(at).build();
        (entry, piece.len())
    });
    if let Some(done) = by_ring(pieces) { done } else { pwrite(file, bytes, offset) }
}

/// Does the first pieces at once, and returns how many bytes from the start are done. None: there is no ring, or only
/// one piece.
fn by_ring(pieces: impl Iterator<Item = (squeue::Entry, usize)>) -> Option<Result<usize, Errno>> {
    RING.with_borrow_mut(|place| {
        let ring = place.as_mut()?;
        let mut wanted = [0; DEPTH as usize];
        let mut count = 0;
        for (entry, len) in pieces.take(DEPTH as usize) {
            let entry = entry.user_data(count as u64);
            // SAFETY: the buffer and the file outlive this function, which returns when all that was submitted
            // has ended (`complete`), or nothing was.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            wanted[count] = len;
            count += 1;
        }
        let mut got = [0; DEPTH as usize];
        if !complete(ring, &mut got[..count]) {
            *place = None;
            return None;
        }
        Some(together(&wanted[..count], &got[..count]))
    })
}

/// Submits all pieces and waits until they have ended. False if the kernel accepted none.
fn complete(ring: &mut IoUring, got: &mut [i32]) -> bool {
    let (mut submitted, mut ended) = (0, 0);
    while ended < got.len() {
        match ring.submit_and_wait(1) {
            Ok(more) => submitted += more,
            // The kernel has no piece, and gets none: the ring is dropped.
            Err(error) if submitted == 0 && !passes(&error) => return false,
            // Submitted pieces end by themselves. Nobody may touch their buffers before.
            Err(_) => {}
        }
        for completion in ring.completion() {
            if let Some(result) = got.get_mut(completion.user_data() as usize) {
                *result = completion.result();
            }
            ended += 1;
        }
    }
    true
}

/// Whether the error passes, so that the call is tried again.
fn passes(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Combines the results of the pieces into the result of one call: the bytes up to the first short piece.
fn together(wanted: &[usize], got: &[i32]) -> Result<usize, Errno> {
    let mut done = 0;
    for (wanted, got) in wanted.iter().zip(got) {
        match usize::try_from(*got) {
            Ok(got) => {
                done += got;
                if got < *wanted {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(_) => return Err(Errno::from_raw_os_error(-got)),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// The same bytes, whatever they go by; more than the pieces that are under way at once.
    #[test]
    fn a_ring_reads_and_writes_as_calls_do() {
        let place = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at * 7 / 3) as u8).collect();
        for io in [Io::Threads, Io::Uring] {
            begin(Disk { io, ..Disk::default() });
            let path = place.path().join(format!("{io:?}"));
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(path).expect("made");
            let mut at = 0;
            while at < bytes.len() {
                at += write_at(&file, &bytes[at..], 17 + at as u64).expect("written");
            }
            let mut read = vec![0; bytes.len() + 100];
            let mut at = 0;
            loop {
                match read_at(&file, &mut read[at..], 17 + at as u64).expect("read") {
                    0 => break,
                    more => at += more,
                }
            }
            assert!(at == bytes.len() && read[..at] == bytes[..], "{io:?}");
        }
        begin(Disk::default());
    }

    #[test]
    fn errors_are_those_of_the_call() {
        let place = tempfile::tempdir().expect("a folder");
        for io in [Io::Threads, Io::Uring] {
            begin(Disk { io, ..Disk::default() });
            let folder = File::open(place.path()).expect("opened");
            assert_eq!(read_at(&folder, &mut [0; 600_000], 0), Err(Errno::ISDIR), "{io:?}");
            let file = File::create(place.path().join("file")).expect("made");
            assert_eq!(read_at(&file, &mut [0; 600_000], 0), Err(Errno::BADF), "{io:?}");
        }
        begin(Disk::default());
    }

    #[test]
    fn what_follows_a_short_piece_does_not_count() {
        assert_eq!(together(&[10, 10, 10], &[10, 4, 10]), Ok(14));
        assert_eq!(together(&[10, 10], &[10, -5]), Ok(10));
        assert_eq!(together(&[10, 10], &[-5, 10]), Err(Errno::IO));
        assert_eq!(together(&[10, 10], &[0, 10]), Ok(0));
        assert_eq!(together(&[], &[]), Ok(0));
    }
}
