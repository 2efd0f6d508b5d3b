//! Which carrier a new lane gets: for the lanes that this endpoint dials, and for those that it accepts.

use std::io;
use std::net::{IpAddr, SocketAddr};

use isthmus_datagram::is_frames_only;
use isthmus_path::race::Race;
use isthmus_path::{Carrier as Protocol, Finding, Micros, Weakness, long_us};
use isthmus_wire::Key;
use socket2::Socket;

use super::fabric::FabricLane;
use super::header_fields::HeaderFields;
use super::race::RaceLane;
use super::tcp::TcpLane;
use super::{Carrier, Carriers};
use crate::interface;
use crate::interface::for_tcp;
use crate::log::info_log;
use crate::own_addresses::is_lost;
use crate::settings::Transport;

impl Carriers {
    /// Makes lanes to unknown hosts carry data at once by UDP, with a packet train of `train` bytes that measures
    /// the path.
    pub(crate) fn hurry(&mut self, train: u32) {
        self.hurried = Some(train);
    }

    /// Starts to connect to `to`. `key` is that of the endpoint there; none for an endpoint that admits everybody, and
    /// for a router.
    pub(crate) fn dial(&mut self, to: SocketAddr, key: &Key) -> io::Result<Carrier> {
        let by = self.way_to(to);
        let by_tcp = if to.ip() == self.own { for_tcp(to) } else { to };
        let plan = self.paths.hosts.plan(self.paths.now(), to.ip());
        let packets = (plan.segment, self.paths.fields());
        let other = self.other_routes.other(to.ip());
        if self.from.is_some_and(is_lost) {
            // The interface may have another address by now.
            self.from = interface::choose(&self.interface).map_or(self.from, |chosen| Some(chosen.ip));
        }
        let from = other.and_then(|other| other.source).or(self.from);
        let other = other.map(|other| other.interface.as_str());
        if let Some(udp) = &mut self.udp {
            udp.leave_by(to.ip(), other);
        }
        if let Some(tls) = self.tls.as_ref().filter(|_| !self.routers.contains(&to)) {
            let lane = tls.dialled(TcpLane::dial(by_tcp, from, other, packets)?)?;
            return Ok(match by {
                Some(Protocol::Tcp | Protocol::TcpOnly) => Carrier::Tls(Box::new(lane)),
                by => Carrier::Race(Box::new(RaceLane::dial_sealed(to, lane, self.race(by, true)))),
            });
        }
        if by == Some(Protocol::Udp)
            && let Some(udp) = &mut self.udp
        {
            return Ok(Carrier::Udp(udp.dial(to, key)));
        }
        if by.is_none()
            && let Some(train) = self.hurried
            && let Some(udp) = &mut self.udp
        {
            return Ok(Carrier::Udp(udp.dial_provisionally(to, key, self.udp_from, train)));
        }
        // A probe went by the kernel's choice of source and route, and without a flow label.
        let is_usual = from.is_none() && other.is_none() && packets == (None, HeaderFields::default());
        let probe = self.udp.as_mut().filter(|_| is_usual).and_then(|udp| udp.take_probe(by_tcp));
        let lane = probe.map_or_else(|| TcpLane::dial(by_tcp, from, other, packets), Ok)?;
        let rule = self.race(by, false);
        if by.is_none_or(|by| by == Protocol::UdpIfItPasses)
            && let Some(udp) = &mut self.udp
        {
            let packets = udp.dial(to, key);
            return Ok(Carrier::Race(Box::new(RaceLane::dial(to, lane, packets, rule))));
        }
        let near = self.is_near(to.ip()) && !self.routers.contains(&to) && !self.memory.is_off();
        Ok(if self.hubs.is_off() && !near {
            Carrier::Tcp(lane)
        } else {
            Carrier::Fabric(Box::new(FabricLane::dialled(lane, near)))
        })
    }

    /// Starts a lane of packets to `to`, to which TCP cannot connect for want of a local port. `None` if lanes go there
    /// by TCP only.
    pub(crate) fn dial_without_tcp(&mut self, to: SocketAddr, key: &Key) -> Option<Carrier> {
        let plan = self.paths.hosts.plan(self.paths.now(), to.ip());
        if self.tls.is_some() || !self.takes_packets(to) || plan.carrier == Some(Protocol::TcpOnly) {
            return None;
        }
        self.udp.as_mut().map(|udp| Carrier::Udp(udp.dial(to, key)))
    }

    /// The number of the present attempt to connect to a host, for [`Carriers::on_no_answer`].
    pub(crate) fn attempt(&self, host: IpAddr) -> u32 {
        self.other_routes.attempt(host)
    }

    /// Whether another route leads to a host that has not answered yet.
    pub(crate) fn has_other_route(&mut self, host: IpAddr) -> bool {
        !self.is_near(host) && self.other_routes.has_other(host)
    }

    /// A host did not answer this attempt to connect. The next one goes by another route, if there is one. Returns the
    /// route of this one, for people.
    pub(crate) fn on_no_answer(&mut self, host: IpAddr, attempt: u32) -> String {
        if self.is_near(host) { String::new() } else { self.other_routes.on_failure(host, attempt) }
    }

    /// A host has answered this attempt to connect.
    pub(crate) fn on_answer(&mut self, host: IpAddr, attempt: u32) {
        if self.other_routes.on_answer(host, attempt) {
            self.paths.hosts.forget_findings(host);
        }
    }

    /// TCP lanes are weak on the path to this host. True if further lanes should be dialled, by UDP.
    pub(super) fn on_weakness(&mut self, host: IpAddr, weakness: Weakness) -> bool {
        let (now, Some(udp)) = (self.paths.now(), &mut self.udp) else { return false };
        if !self.hubs.is_off() {
            return false;
        }
        let dials = self.paths.hosts.on_weakness(now, host, weakness);
        if let (true, Weakness::Overflows { rate, rtt_us }) = (dials, weakness) {
            udp.suppose(host, rate, rtt_us);
        }
        dials
    }

    /// Logs what has changed in the plans for hosts, and notes the lanes that it concerns.
    pub(super) fn tell_news(&mut self) {
        while let Some(news) = self.paths.hosts.poll_news() {
            info_log!("lanes to {} go by {}", news.host, self.words(&news.why));
            if let (Some(bulk), Some(udp)) = (news.bulk, &self.udp) {
                self.changed_bulk.extend(udp.lanes_to(news.host).map(|index| (index, bulk)));
            }
        }
    }

    /// A finding about a host, and the protocol that follows, for people.
    pub(super) fn words(&self, why: &Finding) -> String {
        let (packets, advice) = self.udp.as_ref().map_or(("UDP", ""), |udp| (udp.name(), udp.advice()));
        match (why, why.carrier()) {
            (Finding::NoAnswer, _) => format!("TCP: {advice}"),
            (Finding::Silent { .. }, _) => format!("TCP: {why}: {advice}"),
            (_, Protocol::Tcp | Protocol::TcpOnly) => format!("TCP: {why}"),
            (_, Protocol::Udp | Protocol::UdpIfItPasses) => format!("{packets}: {why}"),
        }
    }

    /// The carrier of a lane to `to`; `None` if that must be found out.
    fn way_to(&self, to: SocketAddr) -> Option<Protocol> {
        if self.udp.is_some()
            && self.transport == Transport::Ethernet
            && is_frames_only(to.ip())
            && !self.is_near(to.ip())
        {
            return Some(Protocol::Udp);
        }
        if !self.takes_packets(to) {
            return Some(Protocol::Tcp);
        }
        self.paths.hosts.plan(self.paths.now(), to.ip()).carrier
    }

    /// Whether a lane to `to` may be one of packets.
    fn takes_packets(&self, to: SocketAddr) -> bool {
        self.udp.as_ref().is_some_and(|udp| !udp.was_refused(to))
            && self.transport.is_udp(self.is_near(to.ip()))
            && !self.routers.contains(&to)
            && self.hubs.is_off()
            && (self.transport == Transport::Ethernet || to.is_ipv4() == self.own.is_ipv4())
    }

    /// The rule of a race that is dialled `by` a protocol, if that is known.
    fn race(&self, by: Option<Protocol>, within_tls: bool) -> Race {
        let udp_from_us = self.udp_from.as_micros() as Micros;
        Race { prefers_udp: by.is_some(), long_us: long_us(udp_from_us, within_tls) }
    }

    /// Takes an incoming connection of the host `from`. It may have been reset already: a probe is.
    pub(crate) fn accept(&mut self, socket: Socket, from: Option<IpAddr>) -> io::Result<Carrier> {
        if let (Some(udp), Some(host)) = (&mut self.udp, from) {
            udp.on_tcp_answer(host);
        }
        let lane = TcpLane::accept(socket, &mut self.paths)?;
        if self.tls.is_some() && !lane.peer_ip().is_some_and(|host| self.is_router(host)) {
            return Ok(Carrier::Arrived(Some(lane)));
        }
        // The peer may offer a fabric, and that offer has to be answered even if we take none.
        Ok(Carrier::Fabric(Box::new(FabricLane::accepted(lane))))
    }

    /// The next incoming lane by UDP or Ethernet.
    pub(crate) fn accept_turned(&mut self) -> Option<Carrier> {
        self.udp.as_mut()?.accept().map(Carrier::Udp)
    }
}
