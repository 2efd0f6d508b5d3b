//! Sends fireflies, without ever waiting for a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::SystemTime;

use super::firefly::Flow;
use super::flows::{Flows, Packet};
use crate::Settings;
use crate::figures::LaneCounts;
use crate::log::{info_log, info_sparingly, warn_log};
use crate::settings::FireflyTo;

/// The port of collectors, and of destinations that listen.
const PORT: u16 = 10_514;
/// Most fireflies sent in one look. Count. The I/O thread looks once a second.
const SENDS_PER_LOOK: usize = 200;
/// Most fireflies sent when an endpoint ends. Count.
const SENDS_AT_END: usize = 1_000;

/// The fireflies of an endpoint.
#[derive(Debug)]
pub(crate) struct Fireflies {
    flows: Flows,
    to: FireflyTo,
    /// Sockets of both families, from the first firefly on.
    sockets: [Option<UdpSocket>; 2],
    /// Fireflies that the system refused.
    failed: u64,
}

impl Fireflies {
    /// `None` if the settings want none.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        match (settings.scitag.0, settings.firefly.0) {
            (Some(tag), Some(to)) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Some(Self { flows: Flows::new(host, tag), to, sockets: [None, None], failed: 0 })
            }
            (None, Some(_)) => {
                warn_log!("no fireflies are sent: firefly is set, and scitag is not");
                None
            }
            _ => None,
        }
    }

    /// A lane has come up.
    pub(crate) fn begin(&mut self, index: usize, flow: Flow) {
        self.flows.begin(index, flow, SystemTime::now());
    }

    /// The lanes of which something is due to be told.
    pub(crate) fn due(&self) -> Vec<usize> {
        self.flows.due(SystemTime::now())
    }

    /// Announces the flow of a lane.
    pub(crate) fn tell(&mut self, index: usize, counts: LaneCounts) {
        self.flows.tell(index, counts, SystemTime::now());
    }

    /// A lane has ended. `answered`: its other end had answered.
    pub(crate) fn end(&mut self, index: usize, answered: bool, counts: LaneCounts) {
        self.flows.end(index, answered, counts, SystemTime::now());
    }

    /// Sends what waits, up to [`SENDS_PER_LOOK`].
    pub(crate) fn send(&mut self) {
        self.send_most(SENDS_PER_LOOK);
    }

    /// Sends what waits when the endpoint ends, up to [`SENDS_AT_END`].
    pub(crate) fn finish(&mut self) {
        self.send_most(SENDS_AT_END);
        let left = std::iter::from_fn(|| self.flows.next()).count();
        if left > 0 {
            info_log!("{left} fireflies were dropped: too many lanes ended at once");
        }
    }

    fn send_most(&mut self, most: usize) {
        for _ in 0..most {
            let Some(packet) = self.flows.next() else { break };
            let to = self.destination(&packet);
            if let Err(error) = self.send_to(&packet, to) {
                self.failed += 1;
                // A destination that has no collector says so by ICMP. That is usual.
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    let failed = self.failed;
                    info_sparingly!(
                        "{failed} fireflies did not leave this host, the last one to {to}: {error}"
                    );
                }
            }
        }
        let dropped = self.flows.take_dropped();
        if dropped > 0 {
            info_log!("{dropped} fireflies were dropped: too many lanes came and went");
        }
    }

    fn destination(&self, packet: &Packet) -> SocketAddr {
        match self.to {
            FireflyTo::Collector(at) => at,
            FireflyTo::Destination => {
                let mut at = packet.destination;
                at.set_port(PORT);
                at
            }
        }
    }

    fn send_to(&mut self, packet: &Packet, to: SocketAddr) -> io::Result<()> {
        let any: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let slot = &mut self.sockets[usize::from(to.is_ipv6())];
        let socket = match slot {
            Some(socket) => socket,
            None => {
                let socket = UdpSocket::bind((any, 0))?;
                socket.set_nonblocking(true)?;
                slot.insert(socket)
            }
        };
        socket.send_to(packet.payload.as_bytes(), to).map(|_| ())
    }
}
