//! Explains what each operation waits for, to a user whose program does not move on.
//!
//! An operation that sends is *stalled* when it has been pending for longer than a given time while its peer is within
//! reach. If the peer is out of reach, `peer_timeout` decides. A posted receive is never stalled: a service may wait
//! for its next request as long as it likes.

use std::fmt::Write;

use super::state::{Connection, Kind, Lane, LaneState, Micros, Operation, Stage};
use super::{Engine, LaneKind};
use crate::{Channel, PeerId};

/// Most operations, lanes and incoming messages of one peer that [`Engine::state`] lists. Count, of each.
const LISTED_MAX: usize = 20;

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Message { channel: Channel::Tagged, .. } => "tagged message",
            Self::Message { channel: Channel::Untagged, .. } => "message",
            Self::Message { channel: Channel::Group, .. } => "message of a collective",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::Atomic { .. } => "atomic",
            Self::Reply { .. } => "answer to the peer's read or atomic",
        }
    }
}

impl Engine {
    /// The oldest operation that has been pending for at least `after` microseconds with a peer within reach.
    /// Returns its age, and one line that says what it waits for.
    pub fn stall(&mut self, now: Micros, after: Micros) -> Option<(Micros, String)> {
        let pending = self.operations.iter().filter(|(_, operation)| {
            let connection = self.peers[operation.peer.0 as usize].connection.as_deref();
            let within_reach = connection.is_some_and(|connection| {
                connection.trouble.lost_since.is_none() && connection.trouble.failed.is_none()
            });
            let answers = matches!(operation.kind, Kind::Reply { .. });
            !answers && within_reach && operation.posted_at.saturating_add(after) <= now
        });
        let (index, _) = pending.min_by_key(|(_, operation)| operation.posted_at)?;
        let why = self.why(now, index);
        let operation = &self.operations[index];
        let (peer, age) = (operation.peer, now.saturating_sub(operation.posted_at));
        let address = self.peers[peer.0 as usize].address;
        let text =
            format!("{} to {address} has been pending for {}: {why}", described(operation), seconds(age));
        Some((age, text))
    }

    /// Says what this operation waits for.
    fn why(&mut self, now: Micros, index: usize) -> String {
        let operation = &self.operations[index];
        let (peer, own) = (operation.peer, self.is_self(operation.peer));
        let connection = self.peers[peer.0 as usize].connection.get_or_insert_with(Connection::fresh);
        let credit = connection.credit_out.left();
        if own {
            return "the receive that it is for is not posted; it is to this endpoint itself".to_owned();
        }
        if operation.first.is_none() {
            return match () {
                () if connection.lanes.is_empty() => {
                    format!("no lane is up, {} are being dialled", connection.dialing)
                }
                () if connection.fence.is_some() => "it waits at a fence for earlier operations".to_owned(),
                () if !connection.window.has_room() => {
                    "the window is full: the peer acknowledges nothing".to_owned()
                }
                () => {
                    format!("it has not begun; {} operations are before it", connection.traffic.fresh.len())
                }
            };
        }
        if operation.sent < operation.allowed {
            return format!(
                "{} of {} bytes were given to lanes, which take no more",
                operation.sent, operation.total
            );
        }
        if operation.allowed < operation.limit || (operation.awaiting && !operation.is_request()) {
            return format!(
                "the peer has not posted its receive: {} of {} bytes went ahead of it, credit left {credit} bytes",
                operation.sent, operation.total
            );
        }
        let oldest = connection.window.iter_mut().find(|(_, flight)| flight.load.operation() == Some(index));
        if let Some((seq, flight)) = oldest {
            let (lane, tries) = (flight.lane, flight.tries);
            let since = seconds(now.saturating_sub(flight.sent_at));
            return format!(
                "fragment {seq} went by lane {} {since} ago ({tries} times again) and is not acknowledged; {} fragments are not",
                lane.0, operation.pieces
            );
        }
        match operation {
            Operation { leases: 1.., .. } => "a lane still sends from its buffer".to_owned(),
            Operation { awaiting: true, received, total, .. } => {
                format!("the peer has the request and has answered {received} of {total} bytes")
            }
            _ => "nothing: it is about to complete".to_owned(),
        }
    }

    /// Lists everything that is under way, peer by peer, on several lines.
    pub fn state(&mut self, now: Micros) -> String {
        let mut out = format!("endpoint {}\n", self.config.address);
        let _ = writeln!(
            out,
            "  {} operations, {} messages coming in, {} completions not polled",
            self.operations.len(),
            self.inbounds.len(),
            self.completions.len()
        );
        for (channel, count) in self.matcher.posted() {
            let _ = writeln!(out, "  receives posted, {channel:?}: {count}");
        }
        for peer in (0..self.peers.len() as u32).map(PeerId) {
            if self.peers[peer.0 as usize].connection.is_some() {
                self.describe_peer(now, peer, &mut out);
            }
        }
        out
    }

    fn describe_peer(&mut self, now: Micros, peer: PeerId, out: &mut String) {
        let _ = writeln!(out, "  peer {}", self.peers[peer.0 as usize].address);
        let connection = self.connection(peer);
        let (credit, upto, gaps) =
            (connection.credit_out.left(), connection.received.upto(), connection.received.has_gaps());
        let unacknowledged = connection.window.iter_mut().count();
        let _ = writeln!(
            out,
            "    credit left {credit} bytes; {unacknowledged} fragments not acknowledged; received up to {upto}{}; \
             {} messages unmatched with {} bytes held; trouble: {}",
            if gaps { " with gaps" } else { "" },
            connection.unmatched,
            connection.credit_in.held(),
            match (&connection.trouble.failed, connection.trouble.lost_since) {
                (Some(error), _) => error.to_string(),
                (None, Some(since)) => format!("out of reach for {}", seconds(now.saturating_sub(since))),
                (None, None) => "none".to_owned(),
            }
        );
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.peer == Some(peer));
        for (index, lane) in lanes.take(LISTED_MAX) {
            let _ = writeln!(out, "    lane {index}: {}", lane_state(lane, now));
        }
        let mine = |operation: &Operation| operation.peer == peer;
        let indices: Vec<usize> =
            self.operations.iter().filter(|(_, operation)| mine(operation)).map(|(index, _)| index).collect();
        for index in indices.iter().take(LISTED_MAX) {
            let operation = &self.operations[*index];
            let (what, age) = (described(operation), seconds(now.saturating_sub(operation.posted_at)));
            let why = self.why(now, *index);
            let _ = writeln!(out, "    {what}, for {age}: {why}");
        }
        let coming = self.inbounds.iter().filter(|(_, inbound)| inbound.peer == peer);
        for (_, inbound) in coming.take(LISTED_MAX) {
            let stage = match inbound.stage {
                Stage::Orphan => "its header is missing",
                Stage::Early => "messages before it are missing",
                Stage::Unexpected => "no receive matches",
                Stage::Matched { .. } => "matched",
                Stage::Dropped => "dropped",
            };
            let _ = writeln!(
                out,
                "    coming in, tag {:#x}: {} of {} bytes, {stage}",
                inbound.tag, inbound.got, inbound.total
            );
        }
    }
}

fn described(operation: &Operation) -> String {
    let tag = match operation.kind {
        Kind::Message { tag, .. } => format!(" with tag {tag:#x}"),
        _ => String::new(),
    };
    format!("a {}{tag} of {} bytes", operation.kind.name(), operation.total)
}

fn lane_state(lane: &Lane, now: Micros) -> String {
    let kind = match lane.kind {
        LaneKind::Tcp => "TCP",
        LaneKind::Packets => "UDP or frames",
        LaneKind::Memory => "shared memory",
        LaneKind::Fabric => "a local fabric",
    };
    let state = match lane.state {
        LaneState::Dialing => "dialling",
        LaneState::Greeting => "waits for the peer's answer to Hello",
        LaneState::Listening => "waits for the peer's Hello",
        LaneState::Open => "open",
        LaneState::Closing => "closing",
    };
    format!(
        "{kind}, {state}, {}, last acknowledged {} ago",
        if lane.writable { "writable" } else { "full" },
        seconds(now.saturating_sub(lane.moved_at))
    )
}

fn seconds(us: Micros) -> String {
    format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000)
}
