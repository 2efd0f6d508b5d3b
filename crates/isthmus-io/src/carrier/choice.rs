//! Which carrier a new lane gets: for the lanes that this endpoint dials, and for those that it accepts.

use std::io;
use std::net::{IpAddr, SocketAddr};

use isthmus_datagram::is_frames_only;
use isthmus_proto::Bulk;
use isthmus_wire::Key;
use socket2::Socket;

use super::fabric::FabricLane;
use super::race::RaceLane;
use super::tcp::{TcpLane, Weakness};
use super::udp::Known;
use super::{Carrier, Carriers};
use crate::listen::for_tcp;
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
        let packets = (self.segments.limit(to.ip()), self.paths.dscp());
        let other = self.other_routes.interface(to.ip());
        if let Some(udp) = &mut self.udp {
            udp.leave_by(to.ip(), other);
        }
        if let Some(tls) = self.tls.as_ref().filter(|_| !self.routers.contains(&to)) {
            let lane = tls.dialled(TcpLane::dial(by_tcp, self.from, other, packets)?)?;
            return Ok(match by {
                Some(Known::Tcp | Known::Blocked) => Carrier::Tls(Box::new(lane)),
                by => Carrier::Race(Box::new(RaceLane::dial_sealed(to, lane, by.is_some(), self.udp_from))),
            });
        }
        if by == Some(Known::Udp)
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
        let lane = TcpLane::dial(by_tcp, self.from, other, packets)?;
        if by.is_none_or(|by| by == Known::Wanted)
            && let Some(udp) = &mut self.udp
        {
            let packets = udp.dial(to, key);
            return Ok(Carrier::Race(Box::new(RaceLane::dial(
                to,
                lane,
                packets,
                by.is_some(),
                self.udp_from,
            ))));
        }
        let near = self.is_near(to.ip()) && !self.routers.contains(&to) && !self.memory.is_off();
        Ok(if self.hubs.is_off() && !near {
            Carrier::Tcp(lane)
        } else {
            Carrier::Fabric(Box::new(FabricLane::dialled(lane, near)))
        })
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
        if self.other_routes.on_answer(host, attempt)
            && let Some(udp) = &mut self.udp
        {
            udp.forget(host);
        }
    }

    /// Makes further lanes to this host go by UDP, since TCP is weak there. True if they should be dialled: UDP is
    /// allowed, and not known to be blocked.
    pub(super) fn prefer_udp(&mut self, weakness: Weakness) -> bool {
        let Some(udp) = &mut self.udp else { return false };
        if self.transport != Transport::Auto || !self.hubs.is_off() {
            return false;
        }
        let (host, why) = match weakness {
            Weakness::Lossy(host) => {
                // The UDP lanes that are there carry the bulk data again, so no more are needed.
                if udp.on_lossy_path(host) {
                    return false;
                }
                (host, "packets are lost without a queue")
            }
            Weakness::Overflows { host, rate, rtt_us } => {
                // If the processor limits UDP, TCP still does better.
                if udp.bulk(host) != Bulk::All {
                    return false;
                }
                udp.suppose(host, rate, rtt_us);
                (host, "bursts by TCP overflow the queue of a short path")
            }
        };
        match udp.known(host) {
            Some(Known::Blocked) => return false,
            Some(Known::Udp | Known::Wanted) => {}
            Some(Known::Tcp) | None => {
                udp.learn(host, Known::Wanted, format_args!("{why}"));
            }
        }
        true
    }

    /// The carrier of a lane to `to`; `None` if that must be found out.
    fn way_to(&self, to: SocketAddr) -> Option<Known> {
        let local = self.is_near(to.ip());
        let Some(udp) = &self.udp else { return Some(Known::Tcp) };
        if self.transport == Transport::Ethernet && is_frames_only(to.ip()) && !local {
            return Some(Known::Udp);
        }
        if !self.transport.is_udp(local)
            || self.routers.contains(&to)
            || udp.was_refused(to)
            || !self.hubs.is_off()
            || self.transport != Transport::Ethernet && to.is_ipv4() != self.own.is_ipv4()
        {
            return Some(Known::Tcp);
        }
        let unknown = (self.transport != Transport::Auto).then_some(Known::Udp);
        udp.known(to.ip()).or(unknown)
    }

    /// Takes an incoming connection.
    pub(crate) fn accept(&mut self, socket: Socket) -> io::Result<Carrier> {
        let lane = TcpLane::accept(socket, &mut self.paths)?;
        if let (Some(udp), Some(host)) = (&mut self.udp, lane.peer_ip()) {
            udp.on_tcp_answer(host);
        }
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
