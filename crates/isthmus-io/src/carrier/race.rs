//! Lanes that are dialled by TCP and by UDP at once, to learn what the path is like.
//!
//! The rule is [`isthmus_path::race`]. The result is remembered for further lanes to that host.
//!
//! Plain lanes are dialled by both at the same time. An encrypted UDP lane takes its keys from the TLS session on the
//! TCP connection, so it comes up later. That pays on long paths only.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use isthmus_path::race::{Race, RaceResult, RaceSeen};
use isthmus_path::{Carrier as Protocol, Micros};

use super::tcp::{Paths, TcpLane};
use super::tls::{Tls, TlsLane};
use super::udp::{Udp, UdpLane};
use super::{Carrier, Settled};

/// A lane whose carrier is not yet chosen.
#[derive(Debug)]
pub(crate) struct RaceLane {
    to: SocketAddr,
    /// Taken when the race is over.
    base: Option<Base>,
    /// `None` while it waits for keys.
    udp: Option<UdpLane>,
    rule: Race,
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
    pub(super) fn dial(to: SocketAddr, tcp: TcpLane, udp: UdpLane, rule: Race) -> Self {
        Self::new(to, Base::Plain(tcp), Some(udp), rule)
    }

    /// Like [`RaceLane::dial`], but encrypted.
    pub(super) fn dial_sealed(to: SocketAddr, tls: TlsLane, rule: Race) -> Self {
        Self::new(to, Base::Tls(Box::new(tls)), None, rule)
    }

    fn new(to: SocketAddr, base: Base, udp: Option<UdpLane>, rule: Race) -> Self {
        Self { to, base: Some(base), udp, rule, since: Instant::now(), connected: None }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.as_ref().map(|base| match base {
            Base::Plain(lane) => lane.fd(),
            Base::Tls(lane) => lane.fd(),
        })
    }

    /// The address of this host that its packets come from.
    pub(super) fn own_ip(&self) -> Option<IpAddr> {
        match self.base.as_ref()? {
            Base::Plain(lane) => lane.own_ip(),
            Base::Tls(lane) => lane.tcp().own_ip(),
        }
    }

    pub(super) fn release(&mut self, udp: &mut Udp) {
        self.udp.iter_mut().for_each(|lane| lane.release(udp));
    }

    /// The carrier that has won; `None` if it was taken before.
    pub(super) fn take_winner(&mut self, winner: Winner, udp: &mut Udp) -> Option<Carrier> {
        let base = self.base.take()?;
        if winner == Winner::Udp {
            match base {
                // It has carried nothing. A reset frees its local port at once, for lanes to come.
                Base::Plain(lane) => lane.discard(),
                Base::Tls(mut lane) => lane.finish(),
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
        let us = |time: Duration| time.as_micros() as Micros;
        let seen = RaceSeen {
            elapsed_us: us(self.since.elapsed()),
            tcp: self.connected.map(|(took, rtt)| (us(took), us(rtt))),
            udp_rtt_us: self.udp.as_ref().and_then(|lane| lane.measured_rtt_us(udp)),
            udp_answered: self.udp.as_ref().is_some_and(|lane| lane.is_answered(udp)),
        };
        let (now, host) = (paths.now(), self.to.ip());
        Ok(match self.rule.judge(seen) {
            RaceResult::NotYet => {
                return Ok(Winner::NotYet { until_writable });
            }
            RaceResult::Udp(finding) => {
                paths.hosts.learn(now, host, finding);
                Winner::Udp
            }
            RaceResult::Tcp(finding) => {
                // Other lanes may have found out more since this race began.
                if finding.carrier() != Protocol::Tcp || paths.hosts.plan(now, host).carrier.is_none() {
                    paths.hosts.learn(now, host, finding);
                }
                Winner::Tcp
            }
        })
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
            && self.rule.is_for_udp(rtt.as_micros() as Micros)
        {
            let mut lane = udp.dial_within(self.to, &lane.udp_session()?);
            lane.settle(index, udp)?;
            self.udp = Some(lane);
        }
        Ok(false)
    }
}
