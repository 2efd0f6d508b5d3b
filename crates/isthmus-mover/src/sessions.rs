//! The open sessions of a service, and counts of the ended ones, for its status.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use isthmus_trust::Trust;
use parking_lot::Mutex;

use crate::watch::{Bottleneck, Progress, Summary};

/// The direction of a session's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Files come to the service.
    In,
    /// Files leave it.
    Out,
}

impl Flow {
    /// Both.
    pub const ALL: [Self; 2] = [Self::In, Self::Out];

    /// "in" or "out".
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// A session that goes on.
#[derive(Clone, Debug)]
pub struct Session {
    /// The lowest number that no other session had when it began. So few numbers are used.
    pub number: u64,
    /// The client's AS.
    pub as_id: u32,
    /// The client's host.
    pub client: IpAddr,
    /// The export, by name.
    pub export: String,
    /// The direction of its files.
    pub direction: Flow,
    /// When it began.
    pub since: Instant,
    /// Its progress.
    pub progress: Progress,
    /// Bits of files per second, of the last half second.
    pub bits_per_s: f64,
    /// The round trip to the client, if known.
    pub round_trip: Option<Duration>,
    /// When `progress` was reported.
    told: Instant,
}

impl Session {
    /// The part that limits it now, in words.
    pub fn why(&self) -> &'static str {
        match self.progress.bottleneck {
            Bottleneck::None => "little to do, or not known yet",
            Bottleneck::Read => "the sender's disk",
            Bottleneck::Network => "the network",
            Bottleneck::Write => "the receiver's disk",
            Bottleneck::Cpu => "the processors",
            Bottleneck::Limit => "the limit on the rate that is set",
        }
    }
}

/// Counts of the ended sessions of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Sessions that ended well.
    pub done: u64,
    /// Sessions that broke off.
    pub failed: u64,
    /// Files copied.
    pub files: u64,
    /// Files that were not copied and should have been.
    pub files_failed: u64,
    /// Bytes of files that crossed the network.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The open sessions, by number.
    open: BTreeMap<u64, Session>,
    ended: [Ended; Flow::ALL.len()],
    refused: u64,
    certificate_expires: Option<SystemTime>,
}

impl Sessions {
    /// The sessions that go on, by number.
    pub fn open(&self) -> Vec<Session> {
        self.0.lock().open.values().cloned().collect()
    }

    /// Counts of the ended sessions of one direction.
    pub fn ended(&self, direction: Flow) -> Ended {
        self.0.lock().ended[direction as usize]
    }

    /// Clients that got no session.
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// When the service's certificate expires.
    pub fn certificate_expires(&self) -> Option<SystemTime> {
        self.0.lock().certificate_expires
    }

    /// The service uses these certificates from now on.
    pub(crate) fn trust(&self, trust: Option<&Trust>) {
        self.0.lock().certificate_expires = trust.and_then(|trust| trust.expires);
    }

    /// A client got no session.
    pub(crate) fn refuse(&self) {
        self.0.lock().refused += 1;
    }

    /// Adds a session. It is open until the returned value is dropped.
    pub(crate) fn begin(
        self: &Arc<Self>,
        (as_id, client): (u32, IpAddr),
        export: &str,
        direction: Flow,
    ) -> OpenSession {
        let mut table = self.0.lock();
        let number = (0..).find(|number| !table.open.contains_key(number)).unwrap_or_default();
        let now = Instant::now();
        let session = Session {
            number,
            as_id,
            client,
            export: export.to_owned(),
            direction,
            since: now,
            progress: Progress::default(),
            bits_per_s: 0.0,
            round_trip: None,
            told: now,
        };
        table.open.insert(number, session);
        OpenSession { sessions: self.clone(), number, direction, summary: None }
    }
}

/// The entry of a session that goes on.
pub(crate) struct OpenSession {
    sessions: Arc<Sessions>,
    number: u64,
    direction: Flow,
    summary: Option<Summary>,
}

impl OpenSession {
    /// Notes how far the session is.
    pub(crate) fn note(&self, progress: Progress, round_trip: Option<Duration>) {
        let mut table = self.sessions.0.lock();
        let Some(session) = table.open.get_mut(&self.number) else { return };
        let now = Instant::now();
        let seconds = now.saturating_duration_since(session.told).as_secs_f64();
        if seconds > 0.0 {
            session.bits_per_s = 8.0 * progress.bytes.saturating_sub(session.progress.bytes) as f64 / seconds;
        }
        (session.progress, session.round_trip, session.told) = (progress, round_trip, now);
    }

    /// Ends it well. A session whose entry is only dropped has broken off.
    pub(crate) fn end(mut self, summary: Summary) {
        self.summary = Some(summary);
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        let mut table = self.sessions.0.lock();
        let moved = table.open.remove(&self.number).map_or(0, |session| session.progress.bytes);
        let ended = &mut table.ended[self.direction as usize];
        match self.summary {
            Some(Summary { files, failed, sent, .. }) => {
                ended.done += 1;
                ended.files += files;
                ended.files_failed += failed;
                ended.bytes += sent;
            }
            None => {
                ended.failed += 1;
                ended.bytes += moved;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_the_lowest_free_number_and_count_when_they_end() {
        let sessions = Arc::new(Sessions::default());
        let begin = |flow| sessions.begin((2, [10, 0, 0, 1].into()), "data", flow);
        let (first, second) = (begin(Flow::Out), begin(Flow::In));
        let numbers = || sessions.open().iter().map(|session| session.number).collect::<Vec<_>>();
        assert_eq!(numbers(), [0, 1]);
        first.end(Summary { files: 3, bytes: 9, kept: 1, failed: 2, sent: 7 });
        assert_eq!(numbers(), [1]);
        let third = begin(Flow::Out);
        assert_eq!(numbers(), [0, 1]);
        second.note(Progress { bytes: 5, ..Progress::default() }, Some(Duration::from_millis(24)));
        assert_eq!(sessions.open()[1].progress.bytes, 5);
        drop(second);
        drop(third);
        let out = Ended { done: 1, failed: 1, files: 3, files_failed: 2, bytes: 7 };
        assert_eq!(sessions.ended(Flow::Out), out);
        assert_eq!(sessions.ended(Flow::In), Ended { failed: 1, bytes: 5, ..Ended::default() });
        assert!(numbers().is_empty());
    }
}
