//! The memory that the two ends of a lane share: an anonymous file (`memfd_create(2)`), which the other end finds by
//! way of `/proc`.
//!
//! The first page has the words that the ends tell each other. Each end writes only its own half, so that no line goes
//! to and fro without need. Then there is a page for each end with the regions that it shows (`regions.rs`), and a ring
//! for each direction. Pages take memory only once they are written to.
//!
//! When a segment is given up, its addresses stay mapped, to nothing, and the next segment uses them. So a thread that
//! looks at a ring without a lock (`watch.rs`) finds mapped memory even if the lane has ended. If both ends are in one
//! process, the file is mapped once, so that race detectors see the order between the ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Weak};

use isthmus_wakeup::sleeper;
use parking_lot::Mutex;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags};

use super::process_vm::Process;
use super::ring::{Reader, RingMemory, Writer};

/// Length of each ring, a power of two. Bytes. It is long enough that both ends copy at the same time, and short enough
/// to stay in the processors' caches.
pub(super) const RING: usize = 128 << 10;
/// Length of a page. Bytes.
pub(super) const PAGE: usize = 4096;
/// Offset of the pages with shown regions, one for each end.
pub(super) const AT_SHOWN: usize = PAGE;
/// Offset of the rings.
const AT_RINGS: usize = 3 * PAGE;
/// Length of the file. Bytes.
const LEN: usize = AT_RINGS + 2 * RING;
/// Name of the file in lists of a process's files.
const NAME: &str = "isthmus-lane";
/// Version of this layout; it changes with the layout.
const VERSION: u64 = 0x6973_7468_6d75_0006;

// Offsets in the first page, for both ends.
const AT_VERSION: usize = 0;
const AT_NONCE: usize = 8;
// Offsets from `half` on, for each end. Words that change often have cache lines of their own.
const AT_TAKEN: usize = 0;
const AT_PID: usize = 8;
const AT_TOKEN: usize = 16;
const AT_TOKEN_ADDRESS: usize = 24;
const AT_REACHES: usize = 32;
const AT_HEAD: usize = 128;
const AT_ASLEEP: usize = 256;
const AT_WAITS: usize = 384;
/// Whether this end wants to copy long pieces alone.
const AT_COPIES: usize = 640;
/// Slot of the other end's shown regions that this end is accessing, counted from 1; 0: none.
pub(super) const AT_USES: usize = 512;

/// Offset of an end's half of the first page. End 0 made the segment.
pub(super) fn half(end: usize) -> usize {
    1024 + end * 1024
}

/// The other process finds the memory by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) pid: u32,
    pub(super) fd: u32,
    pub(super) nonce: u64,
}

impl Name {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&self.pid.to_le_bytes()[..], &self.fd.to_le_bytes(), &self.nonce.to_le_bytes()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let (fd, rest) = rest.split_first_chunk()?;
        let nonce = u64::from_le_bytes(rest.try_into().ok()?);
        Some(Self { pid: u32::from_le_bytes(*pid), fd: u32::from_le_bytes(*fd), nonce })
    }
}

/// An end's flag that it sleeps. Threads look at it without the lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleeper(NonNull<AtomicU64>);

impl Sleeper {
    /// Whether the end sleeps. The answer is arbitrary if the lane has ended.
    #[inline]
    pub(crate) fn is_asleep(self) -> bool {
        // SAFETY: addresses of mappings stay mapped ([`Mapping`]).
        sleeper::sleeps(unsafe { self.0.as_ref() })
    }
}

/// One end's view of the memory.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) memory: Arc<Mapping>,
    /// This end: 0 or 1.
    pub(super) end: usize,
    /// Regions that it has shown so far.
    pub(super) shown: u64,
}

/// Segments that this process has made and nobody has opened yet, by nonce.
static OWN: Mutex<Vec<(u64, Weak<Mapping>)>> = Mutex::new(Vec::new());

impl Segment {
    /// Makes a segment, and the file by which others find it while the file is open.
    pub(super) fn create() -> io::Result<(Self, OwnedFd, Name)> {
        let nonce = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, LEN as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let segment = Self { memory: Arc::new(Mapping::new(&file)?), end: 0, shown: 0 };
        segment.word(AT_NONCE).store(nonce, Release);
        segment.word(AT_VERSION).store(VERSION, Release);
        segment.introduce();
        let mut own = OWN.lock();
        own.retain(|(_, memory)| memory.strong_count() > 0);
        own.push((nonce, Arc::downgrade(&segment.memory)));
        let name = Name { pid: std::process::id(), fd: file.as_raw_fd() as u32, nonce };
        Ok((segment, file, name))
    }

    /// Opens a segment that another process has made.
    ///
    /// # Errors
    /// The system's, such as `PermissionDenied` for another user's; `InvalidData` if it is not a segment, or
    /// another one.
    pub(super) fn open(name: Name) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", name.pid, name.fd);
        // Do not open a stranger's file before it is known to be a segment.
        let link = std::fs::read_link(&path)?;
        if link.as_os_str() != format!("/memfd:{NAME} (deleted)").as_str() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        let sealed = rustix::fs::fcntl_get_seals(&file)?;
        // The file must be sealed against shrinking, so that nobody can take the memory away under us.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || stat.st_size != LEN as i64
            || !sealed.contains(SealFlags::SHRINK)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = match own(name) {
            Some(memory) => memory,
            None => Arc::new(Mapping::new(&file)?),
        };
        let segment = Self { memory, end: 1, shown: 0 };
        if segment.word(AT_VERSION).load(Acquire) != VERSION
            || segment.word(AT_NONCE).load(Acquire) != name.nonce
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        segment.introduce();
        segment.own(AT_TAKEN).store(name.nonce, Release);
        Ok(segment)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.word(offset)
    }

    fn own(&self, offset: usize) -> &AtomicU64 {
        self.word(half(self.end) + offset)
    }

    fn other(&self, offset: usize) -> &AtomicU64 {
        self.word(half(1 - self.end) + offset)
    }

    fn introduce(&self) {
        let process = Process::own();
        self.own(AT_PID).store(process.pid, Release);
        self.own(AT_TOKEN_ADDRESS).store(process.address, Release);
        self.own(AT_TOKEN).store(process.token, Release);
    }

    /// Whether the other end has found it.
    pub(super) fn is_taken(&self) -> bool {
        let nonce = self.word(AT_NONCE).load(Acquire);
        self.other(AT_TAKEN).load(Acquire) == nonce
    }

    /// The other end's process, as it says itself.
    pub(super) fn neighbour(&self) -> Process {
        Process {
            pid: self.other(AT_PID).load(Acquire),
            address: self.other(AT_TOKEN_ADDRESS).load(Acquire),
            token: self.other(AT_TOKEN).load(Acquire),
        }
    }

    /// Tells the other end that we can read its memory, so that it may lend.
    pub(super) fn say_reaches(&self) {
        self.own(AT_REACHES).store(1, Release);
    }

    /// Whether the other end can read our memory.
    pub(super) fn is_reached(&self) -> bool {
        self.other(AT_REACHES).load(Acquire) == 1
    }

    /// Whether this end sleeps, so that the other has to wake it when it writes.
    pub(super) fn own_sleep(&self) -> &AtomicU64 {
        self.own(AT_ASLEEP)
    }

    /// Whether the other end sleeps, so that we have to wake it when we write.
    pub(super) fn other_sleep(&self) -> &AtomicU64 {
        self.other(AT_ASLEEP)
    }

    /// The same flag, for threads without the lane.
    pub(super) fn other_sleeper(&self) -> Sleeper {
        Sleeper(NonNull::from(self.other_sleep()))
    }

    /// Whether this end waits for the other to read.
    pub(super) fn own_wait(&self) -> &AtomicU64 {
        self.own(AT_WAITS)
    }

    /// Whether the other end waits for us to read.
    pub(super) fn other_wait(&self) -> &AtomicU64 {
        self.other(AT_WAITS)
    }

    /// Says whether this end wants to copy long pieces alone.
    pub(super) fn ask_to_copy_alone(&self, alone: bool) {
        self.own(AT_COPIES).store(u64::from(alone), Release);
    }

    /// Whether the other end wants to copy long pieces alone.
    pub(super) fn other_copies_alone(&self) -> bool {
        self.other(AT_COPIES).load(Acquire) == 1
    }

    /// Our ends of the two rings.
    ///
    /// # Safety
    /// They are dropped before the segment, and this is called once.
    pub(super) unsafe fn rings(&self) -> (Writer, Reader) {
        // SAFETY: the promise of this function; the memory was zero when it was made.
        unsafe { (Writer::new(self.ring(self.end)), Reader::new(self.ring(1 - self.end))) }
    }

    /// The ring that `end` writes.
    fn ring(&self, end: usize) -> RingMemory {
        // SAFETY: within the mapping.
        let (data, head) = unsafe {
            (
                self.memory.base.byte_add(AT_RINGS + end * RING),
                self.memory.base.byte_add(half(1 - end) + AT_HEAD),
            )
        };
        RingMemory { data, capacity: RING as u64, head: head.cast() }
    }

    /// Gives back the memory of the ring that we write. Everything in it must have been read.
    pub(super) fn give_back(&self) {
        // SAFETY: only this end writes there, and the pages are zero when they are next read.
        unsafe {
            libc::madvise(
                self.memory.base.as_ptr().wrapping_add(AT_RINGS + self.end * RING).cast(),
                RING,
                libc::MADV_REMOVE,
            )
        };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.hide_all();
    }
}

/// The mapping of a segment that this process has made itself.
fn own(name: Name) -> Option<Arc<Mapping>> {
    if name.pid != std::process::id() {
        return None;
    }
    let mut own = OWN.lock();
    let index = own.iter().position(|(nonce, _)| *nonce == name.nonce)?;
    own.swap_remove(index).1.upgrade()
}

/// The mapping of a segment.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
}

/// Addresses of segments that were given up. [`LEN`] bytes at each are mapped to nothing.
static SPARE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

// SAFETY: any thread may use the memory: by atomic operations, or by having the ring's end.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd) -> io::Result<Self> {
        let spare = SPARE.lock().pop();
        let made = map(spare, Some(file.as_fd().as_raw_fd()));
        if let (Err(_), Some(at)) = (&made, spare) {
            SPARE.lock().push(at);
        }
        Ok(Self { base: made? })
    }

    /// A word before the rings.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset < AT_RINGS && offset.is_multiple_of(8));
        // SAFETY: aligned, and within the mapping, which lives as long as this.
        unsafe { self.base.byte_add(offset).cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let at = self.base.as_ptr() as usize;
        // If the system refuses, the memory stays as it is and is not used again.
        if map(Some(at), None).is_ok() {
            SPARE.lock().push(at);
        }
    }
}

/// Maps a file, or no file, in place of the mapping at `at`, or wherever there is room.
fn map(at: Option<usize>, file: Option<RawFd>) -> io::Result<NonNull<u8>> {
    let (protection, kind) = match file {
        Some(_) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        None => (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE),
    };
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let address = std::ptr::with_exposed_provenance_mut(at.unwrap_or(0));
    // SAFETY: a new mapping, wherever there is room or in place of one of ours that nothing writes to any more.
    let base = unsafe { libc::mmap(address, LEN, protection, kind | fixed, file.unwrap_or(-1), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_what_was_given_up_stay_mapped_and_are_used_again() {
        let (segment, _file, _) = Segment::create().expect("shared memory");
        segment.own(AT_TAKEN).store(7, Release);
        let base = segment.memory.base;
        drop(segment);
        // SAFETY: mapped, by what this test is about.
        let word: &AtomicU64 = unsafe { base.byte_add(half(0) + AT_TAKEN).cast().as_ref() };
        // Another test may use the addresses by now; its file is zero there.
        assert_eq!(word.load(Acquire), 0);
        let many: Vec<_> = (0..20).map(|_| Segment::create().expect("shared memory")).collect();
        let bases: std::collections::BTreeSet<_> = many.iter().map(|(made, ..)| made.memory.base).collect();
        assert_eq!(bases.len(), many.len());
    }
}
