//! The summary of an endpoint: one line for each peer.

use isthmus_proto::{LaneKind, PeerCounters};
use isthmus_wire::Address;

use super::{Core, Shell};
use crate::carrier::MEMORY;
use crate::lock::Mutex;
use crate::settings::TcpCongestion;

impl Shell {
    /// A line for each peer to which there was a lane.
    pub(crate) fn summary(&self, core: &Mutex<Core>) -> Vec<String> {
        let counted: Vec<_> = core.lock().engine.peer_counters().collect();
        counted.iter().map(|(peer, counters)| self.line(peer, counters)).collect()
    }

    fn line(&self, peer: &Address, counters: &PeerCounters) -> String {
        let (host, protocols) = (peer.locator.ip(), self.carriers.protocols());
        let name = |kind| match kind {
            LaneKind::Tcp => match protocols.tcp.of(host).0 {
                TcpCongestion::Auto => "TCP".to_owned(),
                set => format!("TCP ({set})"),
            },
            LaneKind::Packets => format!("{} ({})", self.carriers.packets_name(), protocols.udp.of(host).0),
            LaneKind::Memory => MEMORY.to_owned(),
            LaneKind::Fabric => "fabric".to_owned(),
        };
        let lanes = LaneKind::ALL.iter().zip(counters.lanes).filter(|(_, count)| *count > 0);
        let lanes: Vec<_> = lanes.map(|(kind, count)| format!("{count} {}", name(*kind))).collect();
        let PeerCounters { messages_eager, messages_mixed, messages_rendezvous, fragments_resent, .. } =
            counters;
        let PeerCounters { messages_announced, credit_raised, credit_lowered, .. } = counters;
        format!(
            "{peer}: summary: lanes {}; messages {messages_eager} eager, {messages_mixed} mixed, \
             {messages_rendezvous} rendezvous, {messages_announced} announced; credit {credit_raised} times raised, {credit_lowered} lowered; \
             {fragments_resent} fragments sent again",
            lanes.join(", ")
        )
    }
}
