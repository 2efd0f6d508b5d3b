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

/// Attempts to connect by TCP, to the port at which endpoints also listen for UDP.
#[derive(Debug, Default)]
pub(super) struct TcpProbes(Vec<TcpProbe>);

#[derive(Debug)]
struct TcpProbe {
    to: SocketAddr,
    lane: io::Result<TcpLane>,
    since: Instant,
}

impl TcpProbes {
    /// Sends a probe to `to`.
    pub(super) fn ask(&mut self, to: SocketAddr) {
        if self.0.len() >= OPEN_MAX || self.0.iter().any(|tcp_probe| tcp_probe.to == to) {
            return;
        }
        let lane = TcpLane::dial(to, None, None, (None, HeaderFields::default()));
        // An orderly end would hold the local port for a minute (TIME_WAIT), and a host with few ports needs it for a
        // lane to the same peer.
        lane.iter().for_each(TcpLane::discard);
        if let Err(error) = &lane {
            warn_refused!(error, "cannot ask by TCP whether anybody listens at {to}");
        }
        self.0.push(TcpProbe { to, lane, since: Instant::now() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Looks for answers. Calls `tell` with the address and whether somebody listens there.
    pub(super) fn look(&mut self, mut tell: impl FnMut(SocketAddr, bool)) {
        self.0.retain_mut(|tcp_probe| {
            let answer = match &tcp_probe.lane {
                Ok(lane) => lane.is_connected().map_err(|error| error.kind()),
                Err(error) => Err(error.kind()),
            };
            match answer {
                Ok(true) => tell(tcp_probe.to, true),
                Err(io::ErrorKind::ConnectionRefused) => tell(tcp_probe.to, false),
                _ => {}
            }
            answer == Ok(false) && tcp_probe.since.elapsed() < PATIENCE
        });
    }
}
