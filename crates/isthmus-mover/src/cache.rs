//! Decides whether blocks of a file go through the page cache or past it (`O_DIRECT` of `open(2)`). It measures what
//! blocks of this file cost each way.
//!
//! The better way is not known beforehand. Data read lately is in the cache, and a write to the cache costs only a
//! copy. But past the cache can be several times as fast: if memory is short, if dirty pages must be written first, or
//! if a virtual machine's host must provide each page. So now and then a block goes the other way.
//!
//! If the network is the limit, a disk thread is idle for much of the time. Then the better way is the one that costs
//! less processor time, because the network code needs it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fcntl_getfl, open};
use rustix::io::Errno;
use serde::Deserialize;

use crate::buffer::PAGE;
use crate::disk;

/// Shorter reads and writes always go through the cache. Bytes; direct ones would not pay.
const SHORT: usize = 64 << 10;

/// Whether blocks of files that are longer than one go through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// The better way is measured.
    #[default]
    Measured,
    /// Always.
    Always,
    /// Never, if the file system supports that.
    Never,
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        disk::by_name(text)
    }
}

/// Through the page cache, or past it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoPath {
    Cached,
    Direct,
}

/// The cost of a block, or of a byte. Nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    elapsed: f64,
    /// Processor time of the thread that read or wrote.
    processor: f64,
}

impl Cost {
    fn add(&mut self, other: Self, weight: f64) {
        self.elapsed += weight * (other.elapsed - self.elapsed);
        self.processor += weight * (other.processor - self.processor);
    }
}

/// The rate at which blocks follow one another.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When the last block ended. Nanoseconds.
    last: Option<u64>,
    /// Moving averages: bytes of a block, and nanoseconds from one block to the next.
    block: f64,
    interval: f64,
}

impl Pace {
    const WEIGHT: f64 = 0.05;

    fn record(&mut self, bytes: usize, now: u64) {
        if let Some(last) = self.last.replace(now) {
            let (block, interval) = (bytes as f64, now.saturating_sub(last) as f64);
            let weight = if self.block > 0.0 { Self::WEIGHT } else { 1.0 };
            self.block += weight * (block - self.block);
            self.interval += weight * (interval - self.interval);
        }
    }

    /// Bytes per nanosecond; infinite before two blocks have ended.
    fn rate(&self) -> f64 {
        if self.interval > 0.0 { self.block / self.interval } else { f64::INFINITY }
    }
}

/// The measured cost of both ways, and the choice of the next.
#[derive(Clone, Debug, Default)]
struct PathChoice {
    /// Cost of a byte for each way. None before its first block.
    cost: [Option<Cost>; 2],
    pace: Pace,
    /// Blocks since one went the other way.
    since: f64,
    /// A block has gone the other way.
    tried: bool,
}

impl PathChoice {
    /// One block in this many goes the other way. The number grows in proportion if the other way costs more, or takes
    /// longer than the time between blocks. So the cost of trials is bounded.
    const TRIAL: f64 = 32.0;
    /// The first trial comes after this many blocks.
    const FIRST: f64 = 4.0;
    /// The cache must cost this many times more before it is left, because it also serves later reads.
    const MARGIN: f64 = 1.25;
    /// A way keeps up with the blocks if one thread would be busy with it for less than this share of the time.
    const BUSY: f64 = 0.7;
    /// Weight of a new block in the moving average: for the usual way, and for the other one, which has fewer samples.
    const WEIGHT: [f64; 2] = [0.25, 0.75];

    fn better(&self) -> IoPath {
        match self.cost {
            [Some(cached), Some(direct)] if self.price(cached) > Self::MARGIN * self.price(direct) => {
                IoPath::Direct
            }
            _ => IoPath::Cached,
        }
    }

    /// The price by which ways are compared: processor time if the way keeps up, else elapsed time.
    fn price(&self, cost: Cost) -> f64 {
        if cost.elapsed * self.pace.rate() < Self::BUSY { cost.processor } else { cost.elapsed }
    }

    fn next(&mut self) -> IoPath {
        let better = self.better();
        let wait = match self.cost {
            [Some(cached), Some(direct)] => {
                let (usual, other) =
                    if better == IoPath::Cached { (cached, direct) } else { (direct, cached) };
                let dearer = self.price(other) / self.price(usual);
                let longer = other.elapsed / usual.elapsed.max(1.0 / self.pace.rate());
                Self::TRIAL * dearer.max(longer).max(1.0)
            }
            _ if self.tried => Self::TRIAL,
            _ => Self::FIRST,
        };
        self.since += 1.0;
        if self.since <= wait {
            return better;
        }
        (self.since, self.tried) = (0.0, true);
        if better == IoPath::Cached { IoPath::Direct } else { IoPath::Cached }
    }

    /// Counts a block that ended at `now` (nanoseconds of any clock) and its cost.
    fn record(&mut self, now: u64, way: IoPath, bytes: usize, took: Cost) {
        let a_byte = |ns: f64| ns.max(1.0) / bytes.max(1) as f64;
        let took = Cost { elapsed: a_byte(took.elapsed), processor: a_byte(took.processor) };
        let weight = Self::WEIGHT[usize::from(way != self.better())];
        match &mut self.cost[way as usize] {
            Some(cost) => cost.add(took, weight),
            none => *none = Some(took),
        }
        self.pace.record(bytes, now);
    }
}

/// A file that is open through the cache and, if needed, past it.
#[derive(Debug)]
pub(crate) struct Opened {
    file: OwnedFd,
    /// The direct descriptor, opened when first needed. None if that fails.
    direct: OnceLock<Option<OwnedFd>>,
    /// The file system refused direct reads or writes.
    refused: AtomicBool,
    /// None: always through the cache.
    choice: Option<Mutex<PathChoice>>,
    opened: Instant,
}

impl Opened {
    /// A file of several blocks.
    pub(crate) fn long(file: OwnedFd) -> Self {
        Self { choice: Some(Mutex::default()), ..Self::short(file) }
    }

    /// A file of one.
    pub(crate) fn short(file: OwnedFd) -> Self {
        Self {
            file,
            direct: OnceLock::new(),
            refused: AtomicBool::new(false),
            choice: None,
            opened: Instant::now(),
        }
    }

    /// Like `pread(2)`. The result is short if the rest must go the other way.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let (way, whole) = (self.way(bytes, offset), bytes.len());
        self.by(way, whole, |file, len| disk::read_at(file, &mut bytes[..len], offset))
    }

    /// Like `pwrite(2)`. The result is short if the rest must go the other way.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        let way = self.way(bytes, offset);
        self.by(way, bytes.len(), |file, len| disk::write_at(file, &bytes[..len], offset))
    }

    /// Chooses the way of this read or write.
    fn way(&self, bytes: &[u8], offset: u64) -> IoPath {
        let Some(choice) = self.choice.as_ref().filter(|_| bytes.len() >= SHORT) else {
            return IoPath::Cached;
        };
        let aligned = bytes.as_ptr().align_offset(PAGE) == 0 && offset.is_multiple_of(PAGE as u64);
        let cache = disk::cache();
        if !aligned || cache == Cache::Always || self.refused.load(Ordering::Relaxed) {
            return IoPath::Cached;
        }
        if cache == Cache::Never { IoPath::Direct } else { choice.lock().next() }
    }

    /// Reads or writes and records the cost. Past the cache only whole pages are transferred.
    fn by(
        &self,
        way: IoPath,
        whole: usize,
        mut act: impl FnMut(BorrowedFd<'_>, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let direct = if way == IoPath::Direct { self.direct() } else { None };
        let choice = self.choice.as_ref().filter(|_| whole >= SHORT);
        let begin = choice.map(|_| (Instant::now(), disk::processor_time()));
        let (way, done) = match direct {
            None => (IoPath::Cached, act(self.file.as_fd(), whole)),
            Some(direct) => match act(direct.as_fd(), whole / PAGE * PAGE) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.refused.store(true, Ordering::Relaxed);
                    (IoPath::Cached, act(self.file.as_fd(), whole))
                }
                done => (IoPath::Direct, done),
            },
        };
        if let (Some(choice), Some((begin, processor)), Ok(bytes)) = (choice, begin, &done)
            && *bytes >= SHORT
        {
            let elapsed = begin.elapsed().as_nanos() as f64;
            // With an io_uring, kernel threads do part of the work, so there is no processor time of this thread.
            let processor = processor.zip(disk::processor_time()).map(|(begin, end)| (end - begin) as f64);
            let took = Cost { elapsed, processor: processor.unwrap_or(elapsed) };
            let mut choice = choice.lock();
            choice.record(self.opened.elapsed().as_nanos() as u64, way, *bytes, took);
        }
        done
    }

    fn direct(&self) -> Option<&OwnedFd> {
        self.direct
            .get_or_init(|| {
                let mode = fcntl_getfl(&self.file).ok()? & OFlags::RWMODE;
                let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                open(again, mode | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
            })
            .as_ref()
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::buffer::Buffer;
    use crate::disk::{Disk, Io};

    /// Total time of the blocks in nanoseconds, and how many went past the cache. `cost(n)` is the cost of block `n`
    /// through the cache, and past it. The network wants a block every `interval` nanoseconds; 0: at once.
    fn paced(blocks: u32, interval: u64, cost: impl Fn(u32) -> [Cost; 2]) -> (u64, u32) {
        let (mut choice, mut now, mut sum, mut direct) = (PathChoice::default(), 0, 0, 0);
        for block in 0..blocks {
            let way = choice.next();
            let took = cost(block)[way as usize];
            now += interval.max(took.elapsed as u64);
            choice.record(now, way, 1 << 20, took);
            sum += took.elapsed as u64;
            direct += u32::from(way == IoPath::Direct);
        }
        (sum, direct)
    }

    /// As [`paced`], with blocks at once, and all time spent by the processor.
    fn run(blocks: u32, cost: impl Fn(u32) -> [u64; 2]) -> (u64, u32) {
        paced(blocks, 0, |block| cost(block).map(|ns| Cost { elapsed: ns as f64, processor: ns as f64 }))
    }

    #[test]
    fn the_quicker_way_is_found_and_looking_costs_little() {
        for [cached, direct] in
            [[100, 100], [100, 110], [100, 1_000], [100, 50_000], [3_000, 600], [90_000, 100]]
        {
            let (sum, _) = run(1000, |_| [cached, direct]);
            // Both have to be tried once.
            let least = 1000 * cached.min(direct) + 5 * cached + direct;
            assert!(sum <= least * 104 / 100, "{cached} {direct}: {sum}, {least}");
        }
    }

    #[test]
    fn what_changes_on_the_way_is_followed() {
        // Dirty pages have to be written from block 300 on.
        let (_, direct) = run(600, |block| [if block < 300 { 150_000 } else { 2_500_000 }, 600_000]);
        assert!((280..310).contains(&direct), "{direct}");
        // From block 300 on the data are in the cache.
        let (_, direct) = run(600, |block| [if block < 300 { 900_000 } else { 100_000 }, 400_000]);
        assert!((280..400).contains(&direct), "{direct}");
    }

    #[test]
    fn equal_ways_go_through_the_cache() {
        let (_, direct) = run(640, |_| [100_000, 90_000]);
        assert!(direct <= 21, "{direct}");
    }

    #[test]
    fn where_the_network_is_the_limit_processor_time_decides() {
        let cost = |elapsed, processor| Cost { elapsed, processor };
        let past = |interval, choice: [Cost; 2]| paced(640, interval, |_| choice).1;
        // Written: the cache takes it as soon, but with all of the processor.
        let written = [cost(370_000.0, 370_000.0), cost(340_000.0, 60_000.0)];
        assert!(past(4_000_000, written) > 600);
        assert!(past(0, written) < 21);
        // The disk is slower, and quick enough.
        let read = [cost(700_000.0, 700_000.0), cost(1_000_000.0, 80_000.0)];
        assert!(past(2_000_000, read) > 600);
        assert!(past(1_200_000, read) < 21);
        // Data in the cache are read from there.
        assert!(past(4_000_000, [cost(58_000.0, 58_000.0), cost(530_000.0, 62_000.0)]) < 21);
        // Direct reads from a disk that does not keep up do not help.
        assert!(past(4_000_000, [cost(370_000.0, 370_000.0), cost(9_000_000.0, 60_000.0)]) < 21);
    }

    /// The same bytes whatever they go by, whether the file system can do without its cache or not.
    #[test]
    fn bytes_are_the_same_both_ways() {
        let place = tempfile::tempdir().expect("a folder");
        let mut bytes = Buffer::new(5_000_001).expect("there is memory");
        bytes.iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at * 7 / 3) as u8);
        for (io, cache) in [Io::Threads, Io::Uring]
            .into_iter()
            .flat_map(|io| [Cache::Measured, Cache::Always, Cache::Never].map(|cache| (io, cache)))
        {
            disk::begin(Disk { io, cache });
            let path = place.path().join(format!("{io:?}-{cache:?}"));
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(path).expect("made");
            let file = Opened::long(file.into());
            for at in (0..bytes.len()).step_by(1 << 18) {
                let end = bytes.len().min(at + (1 << 18));
                let mut done = at;
                while done < end {
                    done += file.write_at(&bytes[done..end], done as u64).expect("written");
                }
            }
            let mut read = Buffer::new(bytes.len() + 100).expect("there is memory");
            let mut done = 0;
            loop {
                match file.read_at(&mut read[done..], done as u64).expect("read") {
                    0 => break,
                    more => done += more,
                }
            }
            assert!(done == bytes.len() && read[..done] == bytes[..], "{io:?} {cache:?}");
        }
        disk::begin(Disk::default());
    }
}
