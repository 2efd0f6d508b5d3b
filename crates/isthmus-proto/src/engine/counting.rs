//! Counters of each peer, and its state for people who look at it.

use isthmus_wire::Address;

use super::state::LaneId;
use super::{Decision, Engine};
use crate::PeerId;

/// The kinds of carriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneKind {
    /// A TCP connection.
    #[default]
    Tcp,
    /// A stream of packets, by UDP or as Ethernet frames.
    Packets,
    /// Shared memory.
    Memory,
    /// A site's own fabric.
    Fabric,
}

impl LaneKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Packets, Self::Memory, Self::Fabric];
}

/// Counts of what was done for one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounters {
    /// Lanes that came up, by each kind, in the order of [`LaneKind::ALL`].
    pub lanes: [u32; LaneKind::ALL.len()],
    /// Messages that were sent whole without waiting for an Accept.
    pub messages_eager: u64,
    /// Messages of which a part went before the Accept.
    pub messages_mixed: u64,
    /// Messages of which nothing went before the Accept.
    pub messages_rendezvous: u64,
    /// Messages that went whole without credit because their receives were announced.
    pub messages_announced: u64,
    /// Bytes of messages, writes and answers that were sent, first transmissions only. Without those that the shell
    /// reads or writes directly in a near peer's memory.
    pub bytes_sent: u64,
    /// Bytes of messages, writes and answers that were received.
    pub bytes_received: u64,
    /// Fragments sent again.
    pub fragments_resent: u64,
    /// Times that the peer's credit was raised.
    pub credit_raised: u32,
    /// Times that the peer's credit was lowered.
    pub credit_lowered: u32,
}

impl PeerCounters {
    /// Whether there ever was a lane.
    fn had_lane(&self) -> bool {
        self.lanes.iter().any(|lanes| *lanes > 0)
    }

    /// Messages sent.
    pub fn messages(&self) -> u64 {
        let Self { messages_eager, messages_mixed, messages_rendezvous, messages_announced, .. } = self;
        messages_eager + messages_mixed + messages_rendezvous + messages_announced
    }
}

/// The state of one peer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// Its index in the engine's table.
    pub peer: PeerId,
    /// Its address.
    pub address: Address,
    /// Its counters.
    pub counters: PeerCounters,
    /// The shortest round trip to it, if known. Microseconds.
    pub rtt_us: Option<u64>,
    /// The last decision about its streams, and the last about its transfers.
    pub decided: [Option<Decision>; 2],
    /// Its lanes.
    pub lanes: Vec<LaneId>,
}

impl Engine {
    /// The counters of all peers to which there ever was a lane.
    pub fn peer_counters(&self) -> impl Iterator<Item = (Address, PeerCounters)> + '_ {
        let counters = |peer: &super::Peer| Some((peer.address, peer.connection.as_ref()?.counters));
        let used = |(_, counters): &(Address, PeerCounters)| counters.had_lane();
        let departed =
            |(peer, counters): &(PeerId, PeerCounters)| (self.peers[peer.0 as usize].address, *counters);
        let present = self.peers.iter().filter_map(counters);
        present.chain(self.gone.departed().map(departed)).filter(used)
    }

    /// The states of the first `most` peers to which there ever was a lane.
    pub fn peer_states(&self, most: usize) -> Vec<PeerState> {
        let peers = (0..self.peers.len()).filter_map(|index| self.state_of(PeerId(index as u32)));
        peers.filter(|state| state.counters.had_lane()).take(most).collect()
    }

    /// The state of a peer; `None` before the first operation on it.
    pub fn peer_state(&self, peer: PeerId) -> Option<PeerState> {
        self.state_of(self.resolve(peer))
    }

    fn state_of(&self, peer: PeerId) -> Option<PeerState> {
        let known = self.peers.get(peer.0 as usize)?;
        let connection = known.connection.as_ref()?;
        Some(PeerState {
            peer,
            address: known.address,
            counters: connection.counters,
            rtt_us: connection.rtt_us,
            decided: connection.decided.as_deref().copied().unwrap_or_default(),
            lanes: connection.lanes.clone(),
        })
    }

    /// The other lanes of a lane's peer.
    pub fn other_lanes(&self, lane: LaneId) -> Vec<LaneId> {
        let peer = self.lanes.get(lane.0 as usize).and_then(|record| record.peer);
        let lanes =
            peer.and_then(|peer| self.peers.get(self.resolve(peer).0 as usize)).map(super::Peer::lanes);
        lanes.unwrap_or_default().iter().filter(|other| **other != lane).copied().collect()
    }

    /// Tells what carries a lane. Call it before the lane's greeting.
    pub fn set_lane_kind(&mut self, lane: LaneId, kind: LaneKind) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.kind = kind;
        }
    }

    /// Counts a lane that has come up.
    pub(super) fn count_lane(&mut self, peer: PeerId, lane: LaneId) {
        let kind = self.lanes[lane.0 as usize].kind as usize;
        self.counters.lanes_opened += 1;
        self.counters.lanes[kind] += 1;
        self.connection(peer).counters.lanes[kind] += 1;
    }

    /// Counts a message that begins, of which `ahead` bytes go before its Accept.
    pub(super) fn count_message(&mut self, peer: PeerId, total: u64, ahead: u64) {
        let of_peer = &mut self.connection(peer).counters;
        let count = match ahead {
            _ if ahead == total => &mut of_peer.messages_eager,
            0 => &mut of_peer.messages_rendezvous,
            _ => &mut of_peer.messages_mixed,
        };
        *count += 1;
        let whole = u64::from(ahead == total);
        self.counters.messages_eager += whole;
        self.counters.messages_asked += 1 - whole;
        self.counters.messages_mixed += u64::from(ahead > 0 && ahead < total);
    }
}
