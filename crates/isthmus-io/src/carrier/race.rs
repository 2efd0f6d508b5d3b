//! Lanes that are dialled by TCP and by UDP at once, to learn what the path is like.
//!
//! If the round trip is short, TCP carries: it costs less processor time, and repairs a loss soon enough. If it is
//! long, UDP carries, provided that it gets through. UDP also carries if TCP lanes have found that the path loses
//! packets by itself (`congestion.rs`), or that it is slow and has a short queue that TCP overflows (`pace.rs`). The
//! result is remembered for further lanes to that host.
//!
//! Plain lanes are dialled by both at the same time. An encrypted UDP lane takes its keys from the TLS session on the
//! TCP connection, so it comes up later. That pays on long paths only.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::tcp::{Paths, TcpLane};
use super::tls::{Tls, TlsLane};
use super::udp::{Known, Udp, UdpLane};
use super::{Carrier, Settled};

/// Shortest round trip for encrypted lanes by UDP, which come up a round trip later.
const LONG_SEALED: Duration = Duration::from_millis(150);
/// UDP may take this many times longer than TCP to answer. Either may have lost its first packet.
const GRACE_TIMES: u32 = 2;
/// It may always take this much longer than TCP.
const MIN_GRACE: Duration = Duration::from_millis(500);

/// A lane whose carrier is not yet chosen.
#[derive(Debug)]
pub(crate) struct RaceLane {
    to: SocketAddr,
    /// Taken when the race is over.
    base: Option<Base>,
    /// `None` while it waits for keys.
    udp: Option<UdpLane>,
    /// UDP carries whatever the round trip is.
    prefers_udp: bool,
    /// UDP carries from this round trip on. It is up to speed within a few round trips, and endpoints of one host plan
    /// for a path together and do not overfill its queue. On shorter paths TCP does about as well for less
    /// processor time.
    long: Duration,
    since: Instant,
    /// Time that TCP took to connect, and its round trip, once it can carry data.
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

/// The result of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Winner {
    Tcp,
    Udp,
    /// Not known yet: ask again when the descriptor is readable or, with `until_writable`, writable.
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

    /// Like [`RaceLane::dial`], but encrypted.
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

    /// The carrier that has won; `None` if it was taken before.
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

    /// Continues the race.
    ///
    /// # Errors
    /// See [`TcpLane::settle`] and [`TlsLane::settle`].
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
            // Other lanes may have found out more since this race began.
            if udp.known(host).is_none() {
                udp.learn(
                    host,
                    Known::Tcp,
                    format_args!("the round trip is below {} ms", self.long.as_millis()),
                );
            }
            return Ok(Winner::Tcp);
        }
        if self.since.elapsed() > took + (took * GRACE_TIMES).max(MIN_GRACE) {
            udp.learn(host, Known::Blocked, format_args!("{}", udp.advice()));
            return Ok(Winner::Tcp);
        }
        Ok(Winner::NotYet { until_writable: false })
    }

    /// Continues the TCP connection. True if that waits to be writable. If it gives keys and the path is long, UDP
    /// begins.
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
