//! Whether blocks of a file go through the page cache or past it (`O_DIRECT` of `open(2)`): by what blocks of this
//! file took so far.
//!
//! Which is quicker is not known beforehand. What was read lately lies in the cache, and writes that it takes in cost a
//! copy; but where memory is short, dirty pages have to be written first, or each page is made anew by a virtual
//! machine's host, the disk alone is several times as fast. So now and then a block goes the other way.

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

/// Less than this always goes through the cache. Bytes.
const SHORT: usize = 64 << 10;

/// Whether blocks of files that are longer than one go through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// As is found to be quicker.
    #[default]
    Measured,
    /// Always.
    Always,
    /// Never, where the file system can do without.
    Never,
}

impl FromStr for Cache {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "measured" => Ok(Self::Measured),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err("expected measured, always or never".to_owned()),
        }
    }
}

/// A way for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Cached,
    Direct,
}

/// What the ways cost, and which is next.
#[derive(Clone, Debug, Default)]
struct Ways {
    /// Of each way, nanoseconds a byte; none before the first block.
    cost: [Option<f64>; 2],
    /// Blocks since one went the other way.
    since: f64,
    /// One has.
    tried: bool,
}

impl Ways {
    /// A block in so many goes the other way; in as many more as that costs more. What looking costs is so bounded.
    const TRIAL: f64 = 32.0;
    /// The first that does.
    const FIRST: f64 = 4.0;
    /// The cache is left where it costs so much more: it takes later reads as well.
    const MARGIN: f64 = 1.25;
    /// What a block weighs against all before it, on the way that most go and on the other.
    const WEIGHT: [f64; 2] = [0.25, 0.75];

    fn better(&self) -> Way {
        match self.cost {
            [Some(cached), Some(direct)] if cached > Self::MARGIN * direct => Way::Direct,
            _ => Way::Cached,
        }
    }

    fn next(&mut self) -> Way {
        let better = self.better();
        let wait = match self.cost {
            [Some(cached), Some(direct)] => Self::TRIAL * (cached / direct).max(direct / cached),
            _ if self.tried => Self::TRIAL,
            _ => Self::FIRST,
        };
        self.since += 1.0;
        if self.since <= wait {
            return better;
        }
        (self.since, self.tried) = (0.0, true);
        if better == Way::Cached { Way::Direct } else { Way::Cached }
    }

    fn note(&mut self, way: Way, bytes: usize, ns: u64) {
        let now = ns.max(1) as f64 / bytes.max(1) as f64;
        let weight = Self::WEIGHT[usize::from(way != self.better())];
        let cost = &mut self.cost[way as usize];
        *cost = Some(cost.map_or(now, |before| before + weight * (now - before)));
    }
}

/// An open file, both ways.
#[derive(Debug)]
pub(crate) struct Opened {
    file: OwnedFd,
    /// Opened when first needed; none where that cannot be done.
    direct: OnceLock<Option<OwnedFd>>,
    /// The file system takes no such reads or writes as ours.
    refused: AtomicBool,
    /// None: always through the cache.
    ways: Option<Mutex<Ways>>,
}

impl Opened {
    /// A file of several blocks.
    pub(crate) fn long(file: OwnedFd) -> Self {
        Self { ways: Some(Mutex::default()), ..Self::short(file) }
    }

    /// A file of one.
    pub(crate) fn short(file: OwnedFd) -> Self {
        Self { file, direct: OnceLock::new(), refused: AtomicBool::new(false), ways: None }
    }

    /// As `pread(2)`; short where the rest has to go another way.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let (way, whole) = (self.way(bytes, offset), bytes.len());
        self.by(way, whole, |file, len| disk::read_at(file, &mut bytes[..len], offset))
    }

    /// As `pwrite(2)`; short where the rest has to go another way.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
        let way = self.way(bytes, offset);
        self.by(way, bytes.len(), |file, len| disk::write_at(file, &bytes[..len], offset))
    }

    /// How this is to be read or written.
    fn way(&self, bytes: &[u8], offset: u64) -> Way {
        let Some(ways) = self.ways.as_ref().filter(|_| bytes.len() >= SHORT) else { return Way::Cached };
        let aligned = bytes.as_ptr().align_offset(PAGE) == 0 && offset.is_multiple_of(PAGE as u64);
        let cache = disk::cache();
        if !aligned || cache == Cache::Always || self.refused.load(Ordering::Relaxed) {
            return Way::Cached;
        }
        if cache == Cache::Never { Way::Direct } else { ways.lock().next() }
    }

    /// Does it, past the cache in whole pages, and notes what it took.
    fn by(
        &self,
        way: Way,
        whole: usize,
        mut act: impl FnMut(BorrowedFd<'_>, usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let direct = if way == Way::Direct { self.direct() } else { None };
        let begin = Instant::now();
        let (way, done) = match direct {
            None => (Way::Cached, act(self.file.as_fd(), whole)),
            Some(direct) => match act(direct.as_fd(), whole / PAGE * PAGE) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.refused.store(true, Ordering::Relaxed);
                    (Way::Cached, act(self.file.as_fd(), whole))
                }
                done => (Way::Direct, done),
            },
        };
        if let (Some(ways), Ok(bytes)) = (&self.ways, &done)
            && *bytes >= SHORT
        {
            ways.lock().note(way, *bytes, begin.elapsed().as_nanos() as u64);
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

    /// What blocks cost in all, in nanoseconds, and how many went past the cache, where block `n` would cost
    /// `cost(n)`: through the cache, and past it.
    fn run(blocks: u32, cost: impl Fn(u32) -> [u64; 2]) -> (u64, u32) {
        let (mut ways, mut sum, mut direct) = (Ways::default(), 0, 0);
        for block in 0..blocks {
            let way = ways.next();
            let ns = cost(block)[way as usize];
            ways.note(way, 1 << 20, ns);
            sum += ns;
            direct += u32::from(way == Way::Direct);
        }
        (sum, direct)
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
        // What comes then lies in the cache.
        let (_, direct) = run(600, |block| [if block < 300 { 900_000 } else { 100_000 }, 400_000]);
        assert!((280..400).contains(&direct), "{direct}");
    }

    #[test]
    fn equal_ways_go_through_the_cache() {
        let (_, direct) = run(640, |_| [100_000, 90_000]);
        assert!(direct <= 21, "{direct}");
    }

    /// The same bytes whatever they go by, whether the file system can do without its cache or not.
    #[test]
    fn bytes_are_the_same_both_ways() {
        let place = tempfile::tempdir().expect("a folder");
        let mut bytes = Buffer::new(5_000_001);
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
            let mut read = Buffer::new(bytes.len() + 100);
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
