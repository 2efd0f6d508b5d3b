//! Reports on an endpoint's peers: a line for each when it closes, and figures while it runs.

use std::collections::HashMap;
use std::fmt::Write;

use isthmus_proto::{LaneKind, PeerCounters, PeerId, PeerState};
use isthmus_wire::Address;

use super::Shell;
use crate::engine::Core;
use crate::figures::{DatagramCounts, Known, PEERS_MAX};
use crate::lock::Mutex;
use crate::settings::{MEMORY, TcpCongestion};

impl Shell {
    /// A line for each peer to which there was a lane.
    pub(crate) fn summary(&self, core: &Mutex<Core>) -> Vec<String> {
        let counted: Vec<_> = core.lock().engine.peer_counters().collect();
        counted.iter().map(|(peer, counters)| self.line(peer, counters)).collect()
    }

    /// Adds the figures of the peers to which there was a lane, as `figures.rs` has them.
    /// `datagrams` are those that go beside the lanes, by peer.
    pub(crate) fn tell_figures(
        &self,
        core: &Mutex<Core>,
        datagrams: &HashMap<PeerId, DatagramCounts>,
        out: &mut String,
    ) {
        let states = core.lock().engine.peer_states(PEERS_MAX);
        for PeerState { peer, address, counters, rtt_us, decided, lanes } in &states {
            let beside = datagrams.get(peer).copied().unwrap_or_default();
            let PeerCounters { bytes_sent, bytes_received, fragments_resent, .. } = counters;
            let (bytes_sent, bytes_received) =
                (bytes_sent + beside.sent_bytes, bytes_received + beside.received_bytes);
            let (messages, rtt_us) = (counters.messages() + beside.sent, Known(*rtt_us));
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "peer\t{address}\t{bytes_sent}\t{bytes_received}\t{messages}\t{fragments_resent}\t{rtt_us}"
            );
            for lane in lanes.iter().filter_map(|lane| self.lanes.get(lane.0 as usize)) {
                lane.carrier.counts(&self.carriers).tell(lane.carrier.name(&self.carriers), out);
                let _ = match lane.carrier.reason(&self.carriers) {
                    Some(reason) => writeln!(out, "why\t{reason}"),
                    None => writeln!(out, "why\ttransport {}", self.carriers.transport()),
                };
            }
            beside.tell(out);
            for decision in decided.iter().flatten() {
                let _ = writeln!(out, "why\t{decision}");
            }
        }
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
