//! One copy: what came out, and under which circumstances.

use serde::Serialize;
use serde_json::Value;

use crate::link::Link;

/// See the module. One line of `samples.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct FileSample {
    /// When it began. Seconds since 1970.
    pub at: i64,
    /// Isthmus' version, and its commit where that is known.
    pub version: String,
    /// The kernel.
    pub kernel: String,
    /// Which run.
    pub run: u32,
    /// Of the link's random decisions.
    pub seed: u64,
    /// The link.
    pub link: Link,
    /// The lab's configuration, where there is a lab; what it says nothing of, such as queues, is in the
    /// emulator's report.
    pub lab: Option<String>,
    /// Length of all files together. Bytes.
    pub bytes: u64,
    /// How many there are; 1: one file, no folder.
    pub files: u32,
    /// Who copied it.
    pub contender: String,
    /// MPI ranks at each site; 0: no MPI.
    pub ranks: u32,
    /// Congestion control that was used, as far as it is known: that of the sites' TCP, of Isthmus its own
    /// for each kind of lane.
    pub congestion: String,
    /// What Isthmus said of its choices where files are sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// What ran in the lab.
    pub script: String,
    /// Least time possible; on loopback what plain `cp` takes. Seconds.
    pub floor_s: f64,
    /// What plain `cp -r` takes for a folder, within this host. Seconds.
    pub local_s: Option<f64>,
    /// From the beginning, of a command its start, until its sender knew that all is written and
    /// of a command its end; none where it failed. Seconds.
    pub seconds: Option<f64>,
    /// What an fsync of the copy took after that. Seconds.
    pub sync_s: Option<f64>,
    /// Most memory of a process of the side that sends. Bytes.
    pub peak_here: Option<u64>,
    /// Of the side that receives, its service for commands. Bytes.
    pub peak_there: Option<u64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The emulator's report on itself.
    pub emulator: Value,
}

impl FileSample {
    /// Floor over time taken; 0 where it failed.
    pub fn fraction(&self) -> f64 {
        self.seconds.map_or(0.0, |seconds| self.floor_s / seconds)
    }

    /// The same, the fsync included.
    pub fn synced_fraction(&self) -> f64 {
        let seconds = self.seconds.zip(self.sync_s).map(|(seconds, sync)| seconds + sync);
        seconds.map_or(0.0, |seconds| self.floor_s / seconds)
    }

    /// Goodput in MB/s; 0 where it failed.
    pub fn rate(&self) -> f64 {
        self.seconds.map_or(0.0, |seconds| self.bytes as f64 / 1e6 / seconds)
    }

    /// Whether the emulator says that it was late itself.
    pub fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }
}
