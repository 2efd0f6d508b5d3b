//! Failures that end a job.

use std::fmt;

use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGKILL;

/// The failure that ends all parts of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The part in which it happened, from 1.
    pub part: u32,
    /// The rank in the world; `None` if no single rank failed.
    pub rank: Option<u32>,
    /// The host on which it happened; empty if unknown.
    pub host: String,
    /// What happened, as the predicate of a sentence: "called MPI_Abort with 7".
    pub why: String,
    /// The exit status of all processes of the job.
    pub status: u8,
    /// What kind of failure it is.
    pub kind: Kind,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A rank ended with an error, or its MPI library ended the job.
    Error,
    /// A signal ended a rank, or the rank ended the job itself.
    End,
    /// A process of `isthmus run` is gone, or was told to end.
    Gone,
    /// A rank ended the job, or its MPI library did: nothing tells which.
    Abort,
    /// SIGKILL ended a rank.
    Killed,
}

impl Kind {
    /// Whether a failure of this kind may be the cause of one that was told before it. When a process is gone, ranks
    /// that waited for it fail. When a rank ends the job, others may crash, but nothing of theirs sends SIGKILL.
    pub(crate) fn explains(self, earlier: Self) -> bool {
        match earlier {
            Self::Error => matches!(self, Self::End | Self::Killed | Self::Gone),
            Self::Abort => matches!(self, Self::Killed | Self::Gone),
            Self::End | Self::Killed => self == Self::Gone,
            Self::Gone => false,
        }
    }
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
    /// It exited with this status.
    Status(u8),
    /// This signal ended it.
    Signal(i32),
}

/// Names of the signals that commonly end processes.
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

/// The name of a signal, or its number if it has no common name.
pub(crate) fn signal_name(number: i32) -> String {
    match SIGNALS.iter().find(|known| known.0 == number) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("signal {number}"),
    }
}

impl Ended {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Status(_) => Kind::Error,
            Self::Signal(SIGKILL) => Kind::Killed,
            Self::Signal(_) => Kind::End,
        }
    }

    /// The exit status in the convention of shells: 128 plus the number of the signal.
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
