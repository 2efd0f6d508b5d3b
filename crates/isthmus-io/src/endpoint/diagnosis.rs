//! Diagnosis: a log line when an operation stalls, the whole state for `isthmus state PID`, and figures for
//! `isthmus top`. `asking.rs` has the side that asks.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isthmus_proto::{PeerCounters, PeerId, PeerState};

use super::Endpoint;
use super::asking::{DOORS, FIGURES, ROOT, door, user_at};
use crate::engine::Core;
use crate::figures::DatagramCounts;
use crate::lock::MutexGuard;
use crate::log::{Sparing, warn_log};

/// The I/O thread waits this long for an endpoint's lock or lanes, and for the asking process to read.
const PATIENCE: Duration = Duration::from_secs(1);
/// The I/O thread waits this long for the question. An asker of an older release asks nothing and gets the state.
const QUESTION_TIME: Duration = Duration::from_millis(100);

/// When an endpoint next warns of a stall.
#[derive(Debug)]
pub(super) struct Stalls {
    /// The setting `stall_warning`; 0: never. Microseconds.
    after_us: u64,
    /// It next warns of an operation that has been pending for at least this long. Microseconds.
    next_us: AtomicU64,
    /// The I/O thread has waited this long in vain for the lock or the lanes, one look after the other. Microseconds.
    vain_us: AtomicU64,
}

impl Stalls {
    pub(super) fn new(after_us: u64) -> Self {
        Self { after_us, next_us: AtomicU64::new(after_us), vain_us: AtomicU64::new(0) }
    }
}

/// Tells how many datagrams went beside the lanes, by peer.
pub(super) struct TellDatagrams(Box<dyn Fn() -> Vec<(PeerId, DatagramCounts)> + Send + Sync>);

impl fmt::Debug for TellDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TellDatagrams")
    }
}

impl Endpoint {
    /// Makes `isthmus top` show datagrams beside the lanes, too. The I/O thread calls `counts`, which must return soon.
    /// Only the first call counts.
    pub fn tell_datagrams(&self, counts: impl Fn() -> Vec<(PeerId, DatagramCounts)> + Send + Sync + 'static) {
        let _ = self.datagrams.set(TellDatagrams(Box::new(counts)));
    }

    /// The counters and the state of a peer; `None` before the first operation on it.
    pub fn peer_state(&self, peer: PeerId) -> Option<PeerState> {
        self.core.lock().engine.peer_state(peer)
    }

    /// The counters of all peers to which there ever was a lane.
    pub fn peer_counters(&self) -> Vec<PeerCounters> {
        self.core.lock().engine.peer_counters().map(|(_, counters)| counters).collect()
    }

    /// Locks the engine. `None` if another thread has held the lock for [`PATIENCE`].
    fn core_soon(&self) -> Option<MutexGuard<'_, Core>> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.core.try_lock() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                core => return core,
            }
        }
    }

    /// The operations under way, as several lines for people.
    pub fn state(&self) -> String {
        if self.is_closed() {
            return String::new();
        }
        let Some(mut core) = self.core_soon() else {
            return format!("endpoint {}\n  a thread has held its lock for {PATIENCE:?}\n", self.address);
        };
        let now = core.now();
        let mut text = core.engine.state(now);
        drop(core);
        if !self.are_lanes_free_soon() {
            text += &format!("  a thread has held its lanes for {PATIENCE:?}\n");
        }
        text
    }

    /// False if other threads drive the lanes for all of [`PATIENCE`].
    fn are_lanes_free_soon(&self) -> bool {
        self.with_shell_within(PATIENCE, |_| ()).is_some()
    }

    /// Adds the figures of its peers. Nothing if it is closed, or if a thread has held its shell or lock for
    /// [`PATIENCE`].
    pub(crate) fn tell_figures(&self, out: &mut String) {
        if self.is_closed() || self.core_soon().is_none() {
            return;
        }
        *out += &format!("endpoint\t{}\n", self.address);
        // Count before the shell is held: the counter of datagrams has a lock of its own.
        let datagrams = self.count_datagrams();
        self.with_shell_within(PATIENCE, |shell| shell.tell_figures(&self.core, &datagrams, out));
    }

    /// The datagrams that went beside the lanes, by peer.
    fn count_datagrams(&self) -> HashMap<PeerId, DatagramCounts> {
        let told = self.datagrams.get().map(|counts| (counts.0)()).unwrap_or_default();
        let mut by_peer = HashMap::<PeerId, DatagramCounts>::new();
        let Some(core) = self.core_soon() else { return by_peer };
        // A peer that the program named by host and port may have another index by now.
        let known = |(peer, counts)| Some((core.engine.peer_state(peer)?.peer, counts));
        for (peer, counts) in told.into_iter().filter_map(known) {
            by_peer.entry(peer).or_default().add(counts);
        }
        by_peer
    }

    /// Warns if messages of peers that have left were dropped. The I/O thread calls this once a second.
    pub(crate) fn warn_of_drops(&self) {
        let dropped = self.core_soon().map_or(0, |mut core| core.engine.take_gone_dropped());
        // Peers can cause this every second.
        static SPARING: Sparing = Sparing::new();
        if dropped > 0
            && let Some(dropped) = SPARING.due_for(Instant::now(), dropped)
        {
            warn_log!(
                "{dropped} messages were dropped that no receive had taken: peers that have left hold at most a quarter of \
                 credit_total"
            );
        }
    }

    /// Warns of a stalled operation, or of a thread that does not let go of the endpoint. The I/O thread calls this once
    /// a second.
    pub(crate) fn warn_of_stalls(&self) {
        let Stalls { after_us, next_us, .. } = &self.stalls;
        if *after_us == 0 || self.is_closed() {
            return;
        }
        let Some((age_us, text)) = self.stall(*after_us) else {
            return next_us.store(*after_us, Ordering::Relaxed);
        };
        if age_us >= next_us.load(Ordering::Relaxed) {
            next_us.store(age_us.saturating_mul(2), Ordering::Relaxed);
            warn_log!(
                "{text}; `isthmus state {}` shows all that is under way (stall_warning)",
                std::process::id()
            );
        }
    }

    /// The age (microseconds) of the oldest stall of at least `after_us`, and one line about it.
    fn stall(&self, after_us: u64) -> Option<(u64, String)> {
        let vain_us = &self.stalls.vain_us;
        let held = match self.core_soon() {
            None => "lock",
            Some(mut core) => {
                let now = core.now();
                let stalled = core.engine.stall(now, after_us);
                drop(core);
                if stalled.is_some() || self.are_lanes_free_soon() {
                    vain_us.store(0, Ordering::Relaxed);
                    return stalled;
                }
                "lanes"
            }
        };
        let waited_us = PATIENCE.as_micros() as u64;
        let age_us = vain_us.fetch_add(waited_us, Ordering::Relaxed) + waited_us;
        let text = format!(
            "a thread has held the {held} of endpoint {} for at least {} s",
            self.address,
            age_us / 1_000_000
        );
        (age_us >= after_us).then_some((age_us, text))
    }
}

/// The socket on which a process is asked for the state of its endpoints: a Unix socket in the abstract namespace
/// (unix(7)), which leaves no file behind. Only root and the process's own user get an answer.
#[derive(Debug)]
pub(crate) struct StateDoor(UnixListener);

impl StateDoor {
    pub(crate) fn open(process: u32) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for index in 0..DOORS {
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(door(process, index))?) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Self(listener));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Answers the next process that asks with `text`.
    ///
    /// # Errors
    /// The system's, if this process cannot accept the asker. The socket then stays readable.
    pub(crate) fn answer(&self, text: impl FnOnce(Asked) -> String) -> io::Result<()> {
        let (mut asker, _) = match self.0.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let own = rustix::process::geteuid().as_raw();
        if !user_at(&asker).is_ok_and(|who| who.uid == own || who.uid == ROOT) {
            return Ok(());
        }
        let _ = asker.set_read_timeout(Some(QUESTION_TIME));
        let mut question = Vec::new();
        let heard = (&asker).take(FIGURES.len() as u64).read_to_end(&mut question);
        let asked = if heard.is_ok() && question == FIGURES { Asked::Figures } else { Asked::State };
        // If the asker does not read in time, it gets less: the thread has other work.
        let _ = asker.set_write_timeout(Some(PATIENCE));
        let _ = asker.write_all(text(asked).as_bytes());
        Ok(())
    }
}

/// The question to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// All that is under way, for people.
    State,
    /// The figures of all peers.
    Figures,
}

impl AsFd for StateDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
