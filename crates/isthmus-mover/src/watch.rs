//! The progress that a transfer reports to its watcher.

use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::session::BEAT;
use crate::wire::{Kind, Status};

/// The part that limits the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Not known yet, or there is little to do.
    #[default]
    None,
    /// The sender's disk.
    Read,
    /// The network.
    Network,
    /// The receiver's disk.
    Write,
    /// The processors: digests and encryption.
    Cpu,
    /// The limit that the user or the administrator set: `--limit-rate`, or the sender's `rate_limit`.
    Limit,
}

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Bytes of files at the destination, those of earlier transfers included.
    pub bytes: u64,
    /// Total bytes. None while the tree is still being walked.
    pub bytes_total: Option<u64>,
    /// Files that are settled, whatever their outcome.
    pub files: u64,
    /// Files in all, likewise.
    pub files_total: Option<u64>,
    /// The part that limits it now.
    pub bottleneck: Bottleneck,
    /// Whether the other side has answered yet.
    pub connected: bool,
}

/// A path at the destination in the system's bytes, or, if nothing is there, as the user wrote it. In JSON it is the
/// field `path`. If it is not UTF-8, the field `path_bytes` has it too, with bytes escaped as in a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named(pub Vec<u8>);

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = String::from_utf8_lossy(&self.0);
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("path", &text)?;
        if let std::borrow::Cow::Owned(_) = text {
            map.serialize_entry("path_bytes", &escaped(&self.0))?;
        }
        map.end()
    }
}

fn escaped(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let text = |byte: &u8| if plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(text).collect()
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Symlink,
}

impl What {
    /// The kind of an announced entry. None for the end of a folder.
    pub fn of(kind: &Kind) -> Option<Self> {
        match kind {
            Kind::File { .. } => Some(Self::File),
            Kind::Folder => Some(Self::Folder),
            Kind::Symlink(_) => Some(Self::Symlink),
            Kind::FolderEnd => None,
        }
    }

    /// The news that such a folder or link has been made, or would be.
    pub(crate) fn made(self, path: Named, dry_run: bool) -> Notice {
        match self {
            kind if dry_run => Notice::Would { path, bytes: 0, kind },
            Self::Folder => Notice::Folder { path },
            _ => Notice::Symlink { path },
        }
    }
}

/// One report. In JSON its field `event` says which.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Notice {
    /// A file is complete at its destination.
    File {
        /// Which.
        #[serde(flatten)]
        path: Named,
        /// Length. Bytes.
        bytes: u64,
        /// BLAKE3 of all of it, as `b3sum` prints it.
        blake3: String,
    },
    /// A folder has been made.
    Folder {
        /// Which.
        #[serde(flatten)]
        path: Named,
    },
    /// A symbolic link has been made, or has a new text.
    Symlink {
        /// Which.
        #[serde(flatten)]
        path: Named,
    },
    /// A file is left as it is there.
    Kept {
        /// Which.
        #[serde(flatten)]
        path: Named,
        /// Length. Bytes.
        bytes: u64,
        /// "same" or "newer".
        why: &'static str,
    },
    /// A file goes on where an earlier transfer ended.
    Resumed {
        /// Which.
        #[serde(flatten)]
        path: Named,
        /// Bytes of it that are there.
        have: u64,
    },
    /// Something would be copied, were this not a dry run.
    Would {
        /// Which.
        #[serde(flatten)]
        path: Named,
        /// Length of a file. Bytes.
        bytes: u64,
        /// Its kind.
        kind: What,
    },
    /// Something is not copied.
    Failed {
        /// The entry.
        #[serde(flatten)]
        path: Named,
        /// Why; it begins with the path at the source.
        text: String,
    },
    /// Something that the user should know.
    Warning {
        /// The entry that it concerns.
        #[serde(flatten)]
        path: Named,
        /// The text.
        text: String,
    },
    /// About once a second.
    Progress(Progress),
}

/// The watcher. It is called from one thread.
pub type Watch<'a> = dyn FnMut(Notice) + 'a;

/// The result of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Files that were copied.
    pub files: u64,
    /// Their lengths. Bytes.
    pub bytes: u64,
    /// Files that were left as they are there.
    pub kept: u64,
    /// Things that were not copied and should have been.
    pub failed: u64,
    /// Bytes of files that crossed the network.
    pub sent: u64,
}

/// The work of the stages of the pipeline in an interval. Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// Length of the interval.
    pub interval: u64,
    /// The sender's threads.
    pub reading: Status,
    /// The receiver's threads.
    pub writing: Status,
    /// Time for which the window was full.
    pub network_full: u64,
    /// Time for which the blocks so far had used up what the limit allows (`Allowance`).
    pub limited: u64,
}

/// A limit counts as the bottleneck if a transfer uses more than this part of it: all but one part of so many. A link
/// that is nearly as fast as the limit is thus told as the network.
const LIMITED_PARTS: u64 = 5;

impl Stages {
    /// The part that the others waited for: the last stage that was overloaded.
    pub fn bottleneck(&self) -> Bottleneck {
        let often = |part: u64| part > self.interval / 2;
        let of = |status: &Status, disk| if status.cpu_ns > status.disk_ns { Bottleneck::Cpu } else { disk };
        if often(self.writing.busy_ns) {
            of(&self.writing, Bottleneck::Write)
        } else if self.limited > self.interval / LIMITED_PARTS * (LIMITED_PARTS - 1) {
            Bottleneck::Limit
        } else if often(self.network_full) {
            Bottleneck::Network
        } else if often(self.reading.busy_ns) {
            of(&self.reading, Bottleneck::Read)
        } else {
            Bottleneck::None
        }
    }
}

/// What a limit on the rate allows, and whether a transfer uses it up.
///
/// Each block uses the limit for the time that its bytes take at that rate. The part of the time in which the limit is
/// used up is the transfer's rate divided by the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Bytes a second. 0: no limit.
    rate: u64,
    used_until: Instant,
}

impl Allowance {
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        Self { rate, used_until: now }
    }

    /// Adds a further limit. Bytes/s; 0: none.
    pub(crate) fn restrict(&mut self, rate: u64) {
        self.rate = [self.rate, rate].into_iter().filter(|rate| *rate > 0).min().unwrap_or(0);
    }

    /// Takes a block that is sent, or has come.
    pub(crate) fn take(&mut self, now: Instant, bytes: u64) {
        if self.rate > 0 {
            let lasts = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
            self.used_until = self.used_until.max(now) + lasts;
        }
    }

    pub(crate) fn is_used_up(&self, now: Instant) -> bool {
        self.used_until > now
    }
}

/// The durations of several states. Several states may hold at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans<const N: usize> {
    last: Instant,
    holds: [bool; N],
    /// Nanoseconds.
    pub(crate) ns: [u64; N],
}

impl<const N: usize> Spans<N> {
    pub(crate) fn new(now: Instant) -> Self {
        Self { last: now, holds: [false; N], ns: [0; N] }
    }

    /// Sets the states that hold from `now` on. The time until `now` is charged to the earlier states, so that a burst
    /// after a pause does not count as if it filled the pause.
    pub(crate) fn change(&mut self, now: Instant, holds: [bool; N]) {
        let spent = now.saturating_duration_since(self.last).as_nanos() as u64;
        for (ns, _) in self.ns.iter_mut().zip(self.holds).filter(|(_, held)| *held) {
            *ns += spent;
        }
        (self.last, self.holds) = (now, holds);
    }
}

/// The other side's work according to its statuses.
///
/// A status comes once in a [`BEAT`]. But two may come together, or one may be delayed. So the shares refer to the time
/// between the statuses, and not to this side's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// The last one.
    pub(crate) now: Status,
    then: (Instant, Status),
    work: Status,
    interval: Duration,
}

impl Heard {
    pub(crate) fn new(now: Instant) -> Self {
        let nothing = Status::default();
        Self { now: nothing, then: (now, nothing), work: nothing, interval: BEAT }
    }

    pub(crate) fn take(&mut self, at: Instant, status: Status) {
        self.now = status;
        let interval = at.saturating_duration_since(self.then.0);
        if interval >= BEAT / 2 {
            (self.work, self.interval) = (since(&status, &self.then.1), interval);
            self.then = (at, status);
        }
    }

    /// Its work, scaled to an interval of `interval` nanoseconds.
    pub(crate) fn work(&self, interval: u64) -> Status {
        let part = interval as f64 / self.interval.as_nanos().max(1) as f64;
        let scaled = |ns: u64| (ns as f64 * part) as u64;
        let Status { disk_ns, cpu_ns, busy_ns, .. } = self.work;
        Status { disk_ns: scaled(disk_ns), cpu_ns: scaled(cpu_ns), busy_ns: scaled(busy_ns), ..self.work }
    }
}

/// The difference between two statuses of one side.
pub fn since(now: &Status, then: &Status) -> Status {
    Status {
        bytes: now.bytes.saturating_sub(then.bytes),
        disk_ns: now.disk_ns.saturating_sub(then.disk_ns),
        cpu_ns: now.cpu_ns.saturating_sub(then.cpu_ns),
        busy_ns: now.busy_ns.saturating_sub(then.busy_ns),
        window: now.window,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_whole_and_without_doubt_in_json() {
        let said = |path: &[u8]| {
            let notice = Notice::Failed { path: Named(path.to_vec()), text: "t".to_owned() };
            serde_json::to_value(&notice).expect("JSON")
        };
        let long = "a\n\"".repeat(1000);
        let plain = serde_json::json!({ "event": "failed", "path": long, "text": "t" });
        assert_eq!(said(long.as_bytes()), plain);
        let odd = said(b"a/\xff%\n");
        assert_eq!((&odd["path"], &odd["path_bytes"]), (&"a/\u{fffd}%\n".into(), &"a/%FF%25%0A".into()));
    }

    #[test]
    fn the_pause_before_a_burst_is_not_time_with_the_burst() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut spans = Spans::<2>::new(start);
        // A full link brings blocks in bursts: the disk has done with one long before the next.
        for burst in 0..10 {
            spans.change(at(burst * 100), [false, true]);
            spans.change(at(burst * 100 + 90), [true, false]);
        }
        spans.change(at(1000), [false, false]);
        assert_eq!(spans.ns, [100_000_000, 900_000_000]);
    }

    #[test]
    fn statuses_that_come_together_do_not_count_twice() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let status = |busy_ms: u64| Status { busy_ns: busy_ms * 1_000_000, ..Status::default() };
        let mut heard = Heard::new(start);
        // It is busy for 200 of each 500 ms; one status is late, and the next comes right behind it.
        heard.take(at(500), status(200));
        heard.take(at(1490), status(400));
        heard.take(at(1500), status(600));
        let busy = heard.work(500_000_000).busy_ns;
        assert!(busy < 250_000_000, "{busy}");
        // No status came since, so the last one is still the best guess.
        assert_eq!(heard.work(500_000_000).busy_ns, busy);
    }

    #[test]
    fn the_stage_that_others_wait_for_is_named() {
        let busy = |disk_ns, cpu_ns| Status { busy_ns: 90, disk_ns, cpu_ns, ..Status::default() };
        let all = Stages { interval: 100, network_full: 95, ..Stages::default() };
        assert_eq!(Stages { interval: 100, ..Stages::default() }.bottleneck(), Bottleneck::None);
        assert_eq!(all.bottleneck(), Bottleneck::Network);
        assert_eq!(Stages { writing: busy(80, 20), ..all }.bottleneck(), Bottleneck::Write);
        assert_eq!(Stages { writing: busy(20, 80), ..all }.bottleneck(), Bottleneck::Cpu);
        assert_eq!(Stages { network_full: 9, reading: busy(80, 1), ..all }.bottleneck(), Bottleneck::Read);
        assert_eq!(Stages { limited: 90, ..all }.bottleneck(), Bottleneck::Limit);
        assert_eq!(Stages { limited: 60, ..all }.bottleneck(), Bottleneck::Network, "slower than the limit");
    }

    #[test]
    fn the_lowest_of_several_limits_holds() {
        let mut allowance = Allowance::new(0, Instant::now());
        for (further, holds) in [(0, 0), (500, 500), (0, 500), (900, 500), (100, 100)] {
            allowance.restrict(further);
            assert_eq!(allowance.rate, holds, "{further}");
        }
    }

    #[test]
    fn a_limit_is_used_up_for_the_part_of_it_that_a_transfer_has() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // Blocks of 100,000 bytes, two every 100 ms: 2 MB/s.
        for (rate, used) in [(2_000_000, 1000), (4_000_000, 500), (0, 0)] {
            let (mut allowance, mut spans) = (Allowance::new(rate, start), Spans::<1>::new(start));
            for ms in 0..1000 {
                if ms % 100 == 0 {
                    allowance.take(at(ms), 200_000);
                }
                spans.change(at(ms), [allowance.is_used_up(at(ms))]);
            }
            spans.change(at(1000), [false]);
            assert_eq!(spans.ns, [used * 1_000_000], "{rate}");
        }
    }
}
