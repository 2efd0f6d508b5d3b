//! One copy: its result and its circumstances.

use serde::Serialize;
use serde_json::Value;

use crate::link::EmulatedLink;

/// One copy; one line of `samples.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct FileSample {
    /// Start of the copy. Seconds since 1970.
    pub at: i64,
    /// Isthmus' version, with its commit if known.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Number of the repetition, from 1.
    pub run: u32,
    /// Seed of the link's random decisions.
    pub seed: u64,
    /// The link.
    pub link: EmulatedLink,
    /// The lab's configuration, if there is a lab. The emulator's report has what it omits, such as queue
    /// lengths.
    pub lab: Option<String>,
    /// Length of all files together. Bytes.
    pub bytes: u64,
    /// Number of files. 1 is a file without a folder.
    pub files: u32,
    /// Name of the contender.
    pub contender: String,
    /// MPI ranks at each site; 0 without MPI.
    pub ranks: u32,
    /// Congestion control used, if known: that of the sites' TCP, or with Isthmus that of each kind of
    /// lane.
    pub congestion: String,
    /// The sender's log lines about Isthmus' choices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// The script of the copy.
    pub script: String,
    /// Shortest possible time; on loopback the time of plain `cp`. Seconds.
    pub floor_s: f64,
    /// Time of plain `cp -r` for a folder, within this host. Seconds.
    pub local_s: Option<f64>,
    /// Time until the sender knew that all is written; for a command, from its start to its end. `None` if it
    /// failed. Seconds.
    pub seconds: Option<f64>,
    /// Time of an fsync of the copy after that. Seconds.
    pub sync_s: Option<f64>,
    /// Most memory of a process on the sending side. Bytes.
    pub peak_here: Option<u64>,
    /// Most memory on the receiving side; for commands, of the service. Bytes.
    pub peak_there: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The emulator's report on itself.
    pub emulator: Value,
}

impl FileSample {
    /// Floor divided by time taken; 0 if it failed.
    pub fn fraction(&self) -> f64 {
        self.seconds.map_or(0.0, |seconds| self.floor_s / seconds)
    }

    /// The same with the fsync included.
    pub fn synced_fraction(&self) -> f64 {
        let seconds = self.seconds.zip(self.sync_s).map(|(seconds, sync)| seconds + sync);
        seconds.map_or(0.0, |seconds| self.floor_s / seconds)
    }

    /// Goodput in MB/s; 0 if it failed.
    pub fn rate(&self) -> f64 {
        self.seconds.map_or(0.0, |seconds| self.bytes as f64 / 1e6 / seconds)
    }

    /// Whether the emulator reports that it was late itself.
    pub fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }
}
