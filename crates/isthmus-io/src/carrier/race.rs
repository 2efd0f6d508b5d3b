//! Lanes that are dialled by TCP and by UDP, to see what the path is like.
//!
//! Where the round trip is short, TCP carries: it costs less of the processor, and repairs a
//! loss soon enough. Where it is long, UDP, if it gets through; and also where lanes by TCP have
//! found since that the path loses packets by itself (`congestion.rs`), or that it is a slow one whose short queue
//! they overflow (`pace.rs`). What was found out holds
//! for further lanes to that host. Plain lanes are dialled by both at once; of encrypted ones UDP
//! takes its keys from the session on the TCP connection, and so comes after it, which pays on
//! long paths only.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::tcp::{Paths, TcpLane};
use super::tls::{Tls, TlsLane};
use super::udp::{Known, Udp, UdpLane};
use super::{Carrier, Settled};

/// Encrypted lanes, whose UDP comes up a round trip later, go by UDP from this round trip on at least.
const LONG_SEALED: Duration = Duration::from_millis(150);
/// How long UDP may take beyond TCP: so many times what that took, and at least so long.
/// Either may have lost its first packet.
const GRACE_TIMES: u32 = 2;
const GRACE_LEAST: Duration = Duration::from_millis(500);

/// A lane whose carrier is not yet chosen.
#[derive(Debug)]
pub(crate) struct RaceLane {
    to: SocketAddr,
    /// Taken when the race is over.
    base: Option<Base>,
    /// `None` while it waits for keys.
    udp: Option<UdpLane>,
    /// UDP carries however long the round trip is.
    prefers_udp: bool,
    /// From this round trip on UDP carries: it is up to speed within a few round trips, and endpoints of one
    /// host plan for a path together, and lose nothing to a queue that they overfill. On shorter paths TCP does about
    /// as well, and costs less of the processor.
    long: Duration,
    since: Instant,
    /// How long TCP took, once it can carry, and its round trip.
    connected: Option<(Duration, Duration)>,
}

/// The connection by TCP.
#[derive(Debug)]
enum Base {
    Plain(TcpLane),
    Tls(Box<TlsLane>),
}

impl Base {
    fn settle(&mut self, index: usize, paths: &mut Paths, tls: Option<&mut Tls>) -> io::Result<Settled> {
        match (self, tls) {
            (Self::Plain(lane), _) => lane.settle(paths),
            (Self::Tls(lane), Some(tls)) => lane.settle(index, paths, tls),
            (Self::Tls(_), None) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn rtt_us(&self) -> Option<u64> {
        match self {
            Self::Plain(lane) => lane.rtt_us(),
            Self::Tls(lane) => lane.rtt_us(),
        }
    }
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
    pub(super) fn dial(
        to: SocketAddr,
        tcp: TcpLane,
        udp: UdpLane,
        prefers_udp: bool,
        long: Duration,
    ) -> Self {
        Self::new(to, Base::Plain(tcp), Some(udp), prefers_udp, long)
    }

    /// The same, encrypted.
    pub(super) fn dial_sealed(to: SocketAddr, tls: TlsLane, prefers_udp: bool, long: Duration) -> Self {
        Self::new(to, Base::Tls(Box::new(tls)), None, prefers_udp, long.max(LONG_SEALED))
    }

    fn new(to: SocketAddr, base: Base, udp: Option<UdpLane>, prefers_udp: bool, long: Duration) -> Self {
        Self { to, base: Some(base), udp, prefers_udp, long, since: Instant::now(), connected: None }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.as_ref().map(|base| match base {
            Base::Plain(lane) => lane.fd(),
            Base::Tls(lane) => lane.fd(),
        })
    }

    pub(super) fn release(&mut self, udp: &mut Udp) {
        self.udp.iter_mut().for_each(|lane| lane.release(udp));
    }

    /// The carrier that was chosen; `None` if it was taken before.
    pub(super) fn take_winner(&mut self, winner: Winner, udp: &mut Udp) -> Option<Carrier> {
        let base = self.base.take()?;
        if winner == Winner::Udp {
            if let Base::Tls(mut lane) = base {
                lane.finish();
            }
            return self.udp.take().map(Carrier::Udp);
        }
        self.release(udp);
        Some(match base {
            Base::Plain(lane) => Carrier::Tcp(lane),
            Base::Tls(lane) => Carrier::Tls(lane),
        })
    }

    /// Goes on.
    ///
    /// # Errors
    /// As for [`TcpLane::settle`] and [`TlsLane::settle`].
    pub(super) fn settle(
        &mut self,
        index: usize,
        paths: &mut Paths,
        udp: &mut Udp,
        tls: Option<&mut Tls>,
    ) -> io::Result<Winner> {
        if let Some(lane) = &mut self.udp {
            lane.settle(index, udp)?;
        }
        let until_writable = self.settle_base(index, paths, udp, tls)?;
        let answered = self.udp.as_ref().is_some_and(|lane| lane.is_answered(udp));
        let by_udp = self.udp.as_ref().and_then(|lane| lane.measured_rtt_us(udp)).map(Duration::from_micros);
        let Some(rtt) = self.connected.map(|(_, rtt)| rtt).or(by_udp) else {
            return Ok(Winner::NotYet { until_writable });
        };
        let host = self.to.ip();
        let by_udp = self.prefers_udp || rtt >= self.long;
        if by_udp && answered {
            if !self.prefers_udp {
                udp.learn(host, Known::Udp, format_args!("the round trip is {} ms", rtt.as_millis()));
            } else if udp.known(host) == Some(Known::Wanted) {
                udp.learn(host, Known::Udp, format_args!("it gets through"));
            }
            return Ok(Winner::Udp);
        }
        let Some((took, _)) = self.connected else { return Ok(Winner::NotYet { until_writable }) };
        if !by_udp {
            // Others may have found more out since this one began.
            if udp.known(host).is_none() {
                udp.learn(
                    host,
                    Known::Tcp,
                    format_args!("the round trip is below {} ms", self.long.as_millis()),
                );
            }
            return Ok(Winner::Tcp);
        }
        if self.since.elapsed() > took + (took * GRACE_TIMES).max(GRACE_LEAST) {
            udp.learn(host, Known::Blocked, format_args!("{}", udp.advice()));
            return Ok(Winner::Tcp);
        }
        Ok(Winner::NotYet { until_writable: false })
    }

    /// Goes on with the connection by TCP; true where that waits to be writable. Where it gives
    /// keys and the path is long, UDP begins.
    fn settle_base(
        &mut self,
        index: usize,
        paths: &mut Paths,
        udp: &mut Udp,
        tls: Option<&mut Tls>,
    ) -> io::Result<bool> {
        let Some(base) = &mut self.base else { return Ok(false) };
        if self.connected.is_some() {
            if let (Base::Tls(lane), Some(tls)) = (base, tls) {
                lane.check(tls)?;
            }
            return Ok(false);
        }
        if let Settled::Not { until_writable } = base.settle(index, paths, tls)? {
            return Ok(until_writable);
        }
        let took = self.since.elapsed();
        let rtt = base.rtt_us().map_or(took, Duration::from_micros);
        self.connected = Some((took, rtt));
        if let Base::Tls(lane) = base
            && (self.prefers_udp || rtt >= self.long)
        {
            let mut lane = udp.dial_within(self.to, &lane.udp_session()?);
            lane.settle(index, udp)?;
            self.udp = Some(lane);
        }
        Ok(false)
    }
}
