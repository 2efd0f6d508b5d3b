//! Lanes as flows of packets, which fireflies announce (`scitag`).

use std::net::SocketAddr;

use socket2::SockRef;

use super::{Carrier, Carriers};
use crate::scitag::{Flow, FlowProtocol};
use crate::settings::Transport;

impl Carrier {
    /// The flow of a settled lane to another host; `None` for one that has no packets of TCP or UDP.
    pub(crate) fn flow(&self, shared: &Carriers) -> Option<Flow> {
        match self {
            Self::Udp(lane) if shared.transport != Transport::Ethernet && !shared.is_near(lane.peer_ip()) => {
                let bound = SockRef::from(&shared.fd()?).local_addr().ok()?.as_socket()?;
                let ip = if bound.ip().is_unspecified() { shared.own } else { bound.ip() };
                let source = SocketAddr::new(ip, bound.port());
                Some(Flow { protocol: FlowProtocol::Udp, source, destination: lane.peer() })
            }
            Self::Sealed(lane) => lane.inner.flow(shared),
            _ => {
                let (source, destination) = self.tcp()?.ends()?;
                Some(Flow { protocol: FlowProtocol::Tcp, source, destination })
            }
        }
    }
}

impl Carriers {
    /// A lane has come up.
    pub(crate) fn begin_flow(&mut self, index: usize, carrier: &Carrier) {
        if self.fireflies.is_some()
            && let Some(flow) = carrier.flow(self)
            && let Some(fireflies) = &mut self.fireflies
        {
            fireflies.begin(index, flow);
        }
    }

    /// A lane ends. Its carrier is not released yet.
    pub(crate) fn end_flow(&mut self, index: usize, carrier: &Carrier) {
        if self.fireflies.is_some() {
            let (answered, counts) = (carrier.is_answered(self), carrier.counts(self));
            self.fireflies.iter_mut().for_each(|fireflies| fireflies.end(index, answered, counts));
        }
    }
}
