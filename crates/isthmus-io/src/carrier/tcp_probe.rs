//! TCP probes ask whether a process still listens. A silent UDP or TCP lane does not tell an ended process, a cut cable
//! and a path that drops large packets from each other.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::header_fields::HeaderFields;
use super::tcp::TcpLane;
use crate::log::warn_refused;

/// Most probes at a time. Count.
const OPEN_MAX: usize = 16;
/// A probe waits this long for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection is kept until so long after it was asked for, for a lane that may follow ([`TcpProbes::take`]). Its other
/// end waits 5 s for the first byte.
const KEPT: Duration = Duration::from_secs(3);

/// Attempts to connect by TCP, to the port at which endpoints also listen for UDP.
#[derive(Debug, Default)]
pub(super) struct TcpProbes {
    open: Vec<TcpProbe>,
    /// The newest that were answered, if they are kept: one for an address, and at most [`OPEN_MAX`].
    answered: Vec<TcpProbe>,
    keeps: bool,
}

#[derive(Debug)]
struct TcpProbe {
    to: SocketAddr,
    lane: io::Result<TcpLane>,
    since: Instant,
}

impl TcpProbes {
    /// Probes whose connections may become lanes. A forwarder that takes a single connection takes no second one.
    pub(super) fn kept() -> Self {
        Self { keeps: true, ..Self::default() }
    }

    /// The connection of a probe to `to` that was answered, for a lane.
    pub(super) fn take(&mut self, to: SocketAddr) -> Option<TcpLane> {
        self.forget_old();
        let found = self.answered.iter().position(|tcp_probe| tcp_probe.to == to)?;
        let lane = self.answered.swap_remove(found).lane.ok()?;
        lane.keep().ok().map(|()| lane)
    }

    fn hold(&mut self, tcp_probe: TcpProbe) {
        self.answered.retain(|held| held.to != tcp_probe.to);
        if self.answered.len() >= OPEN_MAX {
            self.answered.remove(0);
        }
        self.answered.push(tcp_probe);
    }

    fn forget_old(&mut self) {
        self.answered.retain(|tcp_probe| tcp_probe.since.elapsed() < KEPT);
    }

    /// Sends a probe to `to`, unless one is open. False if there are too many others: ask again later.
    pub(super) fn ask(&mut self, to: SocketAddr) -> bool {
        if self.open.iter().any(|tcp_probe| tcp_probe.to == to) {
            return true;
        }
        if self.open.len() >= OPEN_MAX {
            return false;
        }
        let lane = TcpLane::dial(to, None, None, (None, HeaderFields::default()));
        // An orderly end would hold the local port for a minute (TIME_WAIT), and a host with few ports needs it for a
        // lane to the same peer.
        lane.iter().for_each(TcpLane::discard);
        if let Err(error) = &lane {
            warn_refused!(error, "cannot ask by TCP whether anybody listens at {to}");
        }
        self.open.push(TcpProbe { to, lane, since: Instant::now() });
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.answered.is_empty()
    }

    /// Looks for answers. Calls `tell` with the address and whether somebody listens there.
    pub(super) fn look(&mut self, mut tell: impl FnMut(SocketAddr, bool)) {
        self.forget_old();
        let probes = std::mem::take(&mut self.open);
        for tcp_probe in probes {
            let answer = match &tcp_probe.lane {
                Ok(lane) => lane.is_connected().map_err(|error| error.kind()),
                Err(error) => Err(error.kind()),
            };
            match answer {
                Ok(true) => {
                    tell(tcp_probe.to, true);
                    if self.keeps {
                        self.hold(tcp_probe);
                    }
                }
                Ok(false) if tcp_probe.since.elapsed() < PATIENCE => self.open.push(tcp_probe),
                Err(io::ErrorKind::ConnectionRefused) => tell(tcp_probe.to, false),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answered(probes: &mut TcpProbes, to: SocketAddr) {
        let since = Instant::now();
        let mut is_answered = false;
        while !is_answered {
            assert!(since.elapsed() < Duration::from_secs(20), "it listens");
            probes.look(|at, listens| is_answered |= at == to && listens);
        }
    }

    #[test]
    fn a_connection_that_answered_a_probe_becomes_a_lane_once() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        for (mut probes, is_kept) in [(TcpProbes::kept(), true), (TcpProbes::default(), false)] {
            assert!(probes.ask(to));
            answered(&mut probes, to);
            assert_eq!(probes.is_empty(), !is_kept);
            assert_eq!(probes.take(to).is_some(), is_kept);
            assert!(probes.take(to).is_none() && probes.is_empty());
        }
    }

    #[test]
    fn a_probe_that_has_to_wait_for_others_is_not_under_way() {
        let mut probes = TcpProbes::default();
        let listeners: Vec<_> =
            (0..=OPEN_MAX).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let at: Vec<_> = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        assert!(at[..OPEN_MAX].iter().all(|to| probes.ask(*to)));
        assert!(probes.ask(at[0]), "it is open");
        assert!(!probes.ask(at[OPEN_MAX]));
        answered(&mut probes, at[0]);
        assert!(probes.ask(at[OPEN_MAX]));
    }
}
