//! Lanes that are dialled by TCP and by UDP at once, to see what the path is like.
//!
//! Where the round trip is short, TCP carries: it costs less of the processor, and repairs a
//! loss soon enough. Where it is long, UDP, if it gets through. What was found out holds for
//! further lanes to that host.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::tcp::{Paths, TcpLane};
use super::udp::{Known, Udp, UdpLane};
use super::{Carrier, Settled};

/// From this round trip on UDP carries. On shorter paths the kernel's TCP recovers soon enough,
/// and where many ranks share few processors it is less disturbed by them.
const LONG: Duration = Duration::from_millis(150);
/// How long UDP may take beyond TCP: so many times what that took, and at least so long.
/// Either may have lost its first packet.
const GRACE_TIMES: u32 = 2;
const GRACE_LEAST: Duration = Duration::from_millis(500);

/// A lane whose carrier is not yet chosen.
#[derive(Debug)]
pub(crate) struct RaceLane {
    to: SocketAddr,
    /// Taken when it has won.
    tcp: Option<TcpLane>,
    udp: UdpLane,
    since: Instant,
    /// How long TCP took, once it is connected, and its round trip.
    connected: Option<(Duration, Duration)>,
}

/// What a race came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Winner {
    Tcp,
    Udp,
    /// To be asked again when the descriptor is readable, or, if so, writable.
    NotYet {
        until_writable: bool,
    },
}

impl RaceLane {
    pub(super) fn dial(to: SocketAddr, tcp: TcpLane, udp: &mut Udp) -> Self {
        Self { to, tcp: Some(tcp), udp: udp.dial(to), since: Instant::now(), connected: None }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.tcp.as_ref().map(TcpLane::fd)
    }

    pub(super) fn release(&mut self, udp: &mut Udp) {
        self.udp.release(udp);
    }

    /// The carrier that was chosen; `None` if it was taken before.
    pub(super) fn take_winner(&mut self, winner: Winner, udp: &mut Udp) -> Option<Carrier> {
        let tcp = self.tcp.take()?;
        if winner == Winner::Udp {
            return Some(Carrier::Udp(self.udp));
        }
        self.udp.release(udp);
        Some(Carrier::Tcp(tcp))
    }

    /// Goes on.
    ///
    /// # Errors
    /// As for [`TcpLane::settle`].
    pub(super) fn settle(&mut self, index: usize, paths: &Paths, udp: &mut Udp) -> io::Result<Winner> {
        self.udp.settle(index, udp)?;
        if self.connected.is_none()
            && let Some(tcp) = &mut self.tcp
            && tcp.settle(paths)? == Settled::Yes
        {
            let took = self.since.elapsed();
            self.connected = Some((took, tcp.rtt_us().map_or(took, Duration::from_micros)));
        }
        let answered = self.udp.is_answered(udp);
        let by_udp = self.udp.rtt_us(udp).map(Duration::from_micros);
        let Some(rtt) = self.connected.map(|(_, rtt)| rtt).or(by_udp) else {
            return Ok(Winner::NotYet { until_writable: true });
        };
        let host = self.to.ip();
        if rtt >= LONG && answered {
            udp.learn(host, Known::Udp, format_args!("the round trip is {} ms", rtt.as_millis()));
            return Ok(Winner::Udp);
        }
        let Some((took, _)) = self.connected else { return Ok(Winner::NotYet { until_writable: true }) };
        if rtt < LONG {
            udp.learn(host, Known::Tcp, format_args!("the round trip is below {} ms", LONG.as_millis()));
            return Ok(Winner::Tcp);
        }
        if self.since.elapsed() > took + (took * GRACE_TIMES).max(GRACE_LEAST) {
            udp.learn(host, Known::Tcp, format_args!("no answer by UDP; do firewalls let it through?"));
            return Ok(Winner::Tcp);
        }
        Ok(Winner::NotYet { until_writable: false })
    }
}
