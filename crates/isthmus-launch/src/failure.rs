//! Why a job ended before its time.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What ends all parts of a job, and the exit status of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The part where it happened, from 1.
    pub part: u32,
    /// The rank in the world, if it happened to one.
    pub rank: Option<u32>,
    /// On which host; empty where nobody knows.
    pub host: String,
    /// What happened, as the rest of a sentence.
    pub why: String,
    /// Exit status.
    pub status: u8,
    /// What kind of failure it is.
    pub kind: Kind,
}

/// Kinds of failures. A later one explains an earlier one: when a process is gone, ranks that waited for it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// A rank ended with an error, or its MPI library ended the job.
    Error,
    /// A rank was ended by a signal, or ended the job itself.
    End,
    /// A process of `isthmus run` is gone, or was told to end.
    Gone,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(out, "rank {rank} (part {}, host {}) {}", self.part, self.host, self.why),
            None if self.host.is_empty() => write!(out, "part {} {}", self.part, self.why),
            None => write!(out, "part {} (host {}) {}", self.part, self.host, self.why),
        }
    }
}

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this status.
    Status(u8),
    /// By this signal.
    Signal(i32),
}

/// Signals with which processes are commonly ended.
const SIGNALS: &[(i32, &str)] = &[
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
];

/// A signal, as people know it.
pub(crate) fn signal_name(number: i32) -> String {
    match SIGNALS.iter().find(|known| known.0 == number) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("signal {number}"),
    }
}

impl Ended {
    /// As shells have it: 128 and the number of the signal.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(number) => u8::try_from(128 + number).unwrap_or(255),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(out, "ended with status {status}"),
            Self::Signal(number) => write!(out, "was ended by {}", signal_name(*number)),
        }
    }
}
