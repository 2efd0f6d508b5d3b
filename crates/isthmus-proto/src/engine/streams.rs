//! Asks for as many TCP lanes to a peer as [`Streams`] says, and feeds it the kernel's counts.

use isthmus_path::LaneSample;
use isthmus_path::streams::Streams;
use isthmus_path::thresholds::streams::SEVERAL;

use super::state::Micros;
use super::{Decision, Engine, LaneId};
use crate::PeerId;

/// If an endpoint has more lanes than this, new peers get only [`SEVERAL`] each. Count.
const MANY_LANES: usize = 512;

impl Engine {
    /// Takes in the kernel's counts for a TCP lane.
    pub fn lane_sample(&mut self, now: Micros, lane: LaneId, sample: LaneSample) {
        self.clock = self.clock.max(now);
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        let Some(connection) = record.peer.and_then(|peer| self.peers[peer.0 as usize].connection.as_mut())
        else {
            return;
        };
        let (Some(peer), Some(streams)) = (record.peer, &mut connection.streams) else { return };
        let before = std::mem::replace(&mut **record.sample.get_or_insert_default(), sample);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let more = sample.since(before);
        let before = streams.count();
        let Some(why) = streams.on_sample(now, rtt_us, more) else { return };
        let count = streams.count();
        if count > before {
            self.counters.streams_added += u64::from(count - before);
        } else {
            self.counters.streams_rested += u64::from(before - count);
        }
        self.decide(peer, Decision::Streams { count, why });
        self.spread(peer);
    }

    /// The number of lanes that there should be to a far peer with waiting bulk data.
    pub(super) fn lanes_wanted(&mut self, peer: PeerId) -> u32 {
        let routed = self.is_routed(&self.peers[peer.0 as usize].address) || self.has_rails(peer);
        let streams = self.config.streams;
        if routed || self.lanes.len() > MANY_LANES {
            return streams.min(SEVERAL);
        }
        let waiting = self.waiting_bytes(peer);
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        connection.stragglers.get_or_insert_default();
        let known = connection.streams.get_or_insert_with(|| Box::new(Streams::new(streams)));
        let more = known.start(rtt_us, waiting);
        let count = known.count();
        if more {
            self.decide(peer, Decision::Streams { count, why: "by the round trip and what waits" });
        }
        count
    }

    /// Data that waits to be sent to a peer, estimated from the first 64 operations of each queue. Bytes.
    fn waiting_bytes(&self, peer: PeerId) -> u64 {
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return 0 };
        let traffic = &connection.traffic;
        let next = traffic.bulk.iter().take(64).chain(traffic.fresh.iter().take(64));
        let next = next.chain(traffic.unaccepted.values().take(64));
        next.filter_map(|index| self.operations.get(*index)).map(|next| next.total - next.sent).sum()
    }
}
