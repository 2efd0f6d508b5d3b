//! What a transfer tells those who watch it.

use serde::Serialize;

use crate::wire::Status;

/// Which part holds the transfer up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Not known yet, or there is little to do.
    #[default]
    None,
    /// The sender's disk.
    Read,
    /// What lies between.
    Network,
    /// The receiver's disk.
    Write,
    /// The processors: digests and cipher.
    Cpu,
    /// The limit that the user set.
    Limit,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Bytes of files that are there, those of earlier transfers included.
    pub bytes: u64,
    /// Bytes in all; none while the tree is still being walked.
    pub bytes_total: Option<u64>,
    /// Files that are done with, one way or the other.
    pub files: u64,
    /// Files in all, likewise.
    pub files_total: Option<u64>,
    /// Which part holds it up now.
    pub bottleneck: Bottleneck,
}

/// One piece of news; as JSON its `event` says which.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Notice {
    /// A file is whole at its destination.
    File {
        /// Path at the destination.
        path: String,
        /// Length. Bytes.
        bytes: u64,
        /// BLAKE3 of all of it, as `b3sum` prints it.
        blake3: String,
    },
    /// A file is left as it is there.
    Kept {
        /// Path at the destination.
        path: String,
        /// Length. Bytes.
        bytes: u64,
        /// "same" or "newer".
        why: &'static str,
    },
    /// A file goes on where an earlier transfer ended.
    Resumed {
        /// Path at the destination.
        path: String,
        /// How much of it is there. Bytes.
        have: u64,
    },
    /// A file would be copied, were this not a dry run.
    Would {
        /// Path at the destination.
        path: String,
        /// Length. Bytes.
        bytes: u64,
    },
    /// Something is not copied; the text begins with its path.
    Failed {
        /// Why.
        text: String,
    },
    /// Something that the user should know.
    Warning {
        /// What.
        text: String,
    },
    /// About once a second.
    Progress(Progress),
}

/// Who is told. From one thread.
pub type Watch<'a> = dyn FnMut(Notice) + 'a;

/// What a transfer came to.
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

/// What the stages of a pipeline did in an interval. Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    /// How long the interval was.
    pub interval: u64,
    /// The sender's threads.
    pub reading: Status,
    /// The receiver's threads.
    pub writing: Status,
    /// How long as much was under way as the network is given.
    pub network_full: u64,
    /// How long nothing was read because of the user's limit.
    pub limited: u64,
}

impl Stages {
    /// The part that the others waited for: the last one that had more to do than it could.
    pub fn bottleneck(&self) -> Bottleneck {
        let often = |part: u64| part > self.interval / 2;
        let of = |status: &Status, disk| if status.cpu_ns > status.disk_ns { Bottleneck::Cpu } else { disk };
        if often(self.writing.busy_ns) {
            of(&self.writing, Bottleneck::Write)
        } else if often(self.limited) {
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

/// What changed between two statuses of one side.
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
    fn the_stage_that_others_wait_for_is_named() {
        let busy = |disk_ns, cpu_ns| Status { busy_ns: 90, disk_ns, cpu_ns, ..Status::default() };
        let all = Stages { interval: 100, network_full: 95, ..Stages::default() };
        assert_eq!(Stages { interval: 100, ..Stages::default() }.bottleneck(), Bottleneck::None);
        assert_eq!(all.bottleneck(), Bottleneck::Network);
        assert_eq!(Stages { writing: busy(80, 20), ..all }.bottleneck(), Bottleneck::Write);
        assert_eq!(Stages { writing: busy(20, 80), ..all }.bottleneck(), Bottleneck::Cpu);
        assert_eq!(Stages { network_full: 9, reading: busy(80, 1), ..all }.bottleneck(), Bottleneck::Read);
        assert_eq!(Stages { limited: 80, ..all }.bottleneck(), Bottleneck::Limit);
    }
}
