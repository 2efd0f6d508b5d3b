//! Lanes that come up and greet. `losses.rs` handles lanes that break, `shutdown.rs` peers that are given up.

use std::num::NonZeroU64;

use isthmus_path::Bulk;
use isthmus_wire::frame::{self, MAGIC, RefuseReason};
use isthmus_wire::{Address, AsId, FrameError, Versions};

use super::state::{Kind, Lane, LaneState, Micros, Proof, Trouble};
use super::{Action, Engine, LaneId};
use crate::admission::ProvenHello;
use crate::memory::Memory;
use crate::{OpError, PeerId};

/// A violation of the protocol by a peer; its lane is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// The bytes are no frame.
    #[error("{0}")]
    Bytes(#[from] FrameError),
    /// A frame that is not allowed where it came.
    #[error("{0}")]
    Frame(&'static str),
    /// The peer has not proved who it is, for this reason.
    #[error("who it is was not proved: {0}")]
    Unproved(&'static str),
}

/// Why a lane ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneLoss {
    /// Nobody listens at the address.
    Refused,
    /// The peer closed it.
    Closed,
    /// It broke, or could not be made.
    Broken(String),
    /// The other end was silent.
    Silent {
        /// The error text.
        text: String,
        /// Time of silence. Microseconds.
        us: Micros,
    },
    /// The shell closed it because another carrier or interface is better; it is dialled again at once.
    Left(String),
    /// It could not be made because one side does not trust the other. The text says why, and what to do.
    Untrusted(String),
    /// Its bytes are no frame. If they are the first of a dialled lane, what answers is not Isthmus.
    Foreign,
}

impl LaneLoss {
    /// For the end of an error: what to ask if a connection was taken and ended without an answer. A program that
    /// forwards a port also takes connections for a service that does not run.
    pub const UNANSWERED: &str =
        "before any answer; is it the right port, and does the service behind a forwarded port run?";
}

/// Time in which a connected peer must answer Hello. Microseconds; a busy process may need seconds.
const GREETING_US: Micros = 10_000_000;
/// The same through a router. Microseconds; shorter, since another router may answer.
const ROUTED_GREETING_US: Micros = 4_000_000;
/// Most lanes of one peer. Count; a peer that opens more is at fault.
const LANES_MAX: usize = 1024;

/// Checks that a peer is of the AS that its certificate names.
fn check_name(proof: Proof, source: &Address) -> Result<(), PeerFault> {
    match proof {
        Proof::Of(as_id) if as_id != source.as_id => {
            Err(PeerFault::Frame("an address of another AS than that of its certificate"))
        }
        _ => Ok(()),
    }
}

impl Engine {
    /// A peer has connected; its Hello is to come.
    pub fn lane_accepted(&mut self) -> LaneId {
        LaneId(self.lanes.insert(Lane::new(LaneState::Listening, None)) as u32)
    }

    /// A lane that [`Action::Dial`] asked for is connected.
    pub fn lane_connected(&mut self, now: Micros, lane: LaneId) {
        self.clock = self.clock.max(now);
        let Some(record) = self.lanes.get(lane.0 as usize) else { return };
        let Some(peer) = record.peer else { return };
        if self.parted || self.connection(peer).trouble.failed.is_some() {
            return self.close_lane(lane);
        }
        let credit = self.grant(peer);
        // The locator in the Hello tells the other end which rail the lane uses.
        let target = self.rail_address(peer, self.lanes[lane.0 as usize].rail);
        self.greet(peer, lane, target, credit);
        let record = &mut self.lanes[lane.0 as usize];
        record.state = LaneState::Greeting;
        record.pinged_at = Some(now);
        let patience = patience(record, self.config.peer_timeout_us);
        self.timers.insert((now + patience, peer));
        // A wildcard may turn out to be a peer that we talk to already. New messages must then follow those that were
        // sent to that peer, so they wait for the answer.
        if !target.is_wildcard() || self.awaits_the_one() {
            self.adopt(peer, lane);
        }
        self.make_ready(lane);
    }

    fn adopt(&mut self, peer: PeerId, lane: LaneId) {
        let connection = self.connection(peer);
        connection.dialing = connection.dialing.saturating_sub(1);
        self.list(peer, lane);
    }

    /// Puts lanes that fill their path first, since a near peer uses only the first lane.
    fn rank_lanes(&mut self, peer: PeerId) {
        let connection = self.peers[peer.0 as usize].connection.as_mut();
        if let Some(connection) = connection.filter(|connection| !connection.is_far()) {
            let fills = |lane: &LaneId| self.lanes.get(lane.0 as usize).is_some_and(|lane| lane.fills_path);
            connection.lanes.sort_by_key(|lane| !fills(lane));
        }
    }

    /// Adds a lane to its connection. If both sides dialled at once, both put the lane that the lower address
    /// dialled first.
    fn list(&mut self, peer: PeerId, lane: LaneId) {
        let own = self.config.address;
        let theirs = self.peers[peer.0 as usize].address;
        let record = &mut self.lanes[lane.0 as usize];
        record.moved_at = self.clock;
        let (first, rtt_us) = (record.dialled == (own < theirs), record.rtt_us);
        let (fills_path, now) = (record.fills_path, self.clock);
        let probes = self.on_probe_up(peer, lane, now);
        let connection = self.connection(peer);
        if fills_path {
            connection.streams = None; // From now on, all lanes carry data.
        }
        let at = match connection.lanes.len() {
            _ if first && !probes => 0,
            // A probe that came up goes before the lanes that have stopped.
            len if probes => len.min(1),
            len => len,
        };
        connection.lanes.insert(at, lane);
        self.rank_lanes(peer);
        self.count_lane(peer, lane);
        if let Some(rtt_us) = rtt_us {
            self.update_rtt(peer, rtt_us);
        }
    }

    /// Tells the round trip of a lane, as the kernel measured it (`tcpi_rtt` of `tcp(7)`). Microseconds.
    pub fn set_lane_rtt(&mut self, lane: LaneId, rtt_us: u64) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        if record.router.is_some() || record.through_routers {
            return; // This is the round trip to the router only.
        }
        record.rtt_us = Some(rtt_us);
        if let Some(peer) = record.peer {
            self.update_rtt(peer, rtt_us);
        }
    }

    /// Tells the part of the user's rate limit that a lane has. Bytes/s; `None`: no limit.
    pub fn set_lane_limit(&mut self, lane: LaneId, limit: Option<NonZeroU64>) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.limit = limit;
        }
    }

    /// Tells the AS of the lane's other end, by its certificate. A peer that claims another AS is at fault.
    pub fn set_lane_as(&mut self, lane: LaneId, as_id: AsId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.proof = Proof::Of(as_id);
        }
    }

    /// Tells that the lane comes from a router, which speaks for others.
    pub fn trust_lane(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.proof = Proof::Trusted;
        }
    }

    /// Tells that this lane alone uses all of its path.
    pub fn set_lane_fills_path(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.fills_path = record.bulk == Bulk::All;
        }
    }

    /// Tells how much of the bulk data is for this lane, which fills its path.
    pub fn set_lane_bulk(&mut self, lane: LaneId, bulk: Bulk) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        if std::mem::replace(&mut record.bulk, bulk) == bulk {
            return;
        }
        record.fills_path = bulk == Bulk::All;
        self.counters.lanes_rested += u64::from(bulk == Bulk::None);
        let Some(peer) = record.peer else { return };
        self.rank_lanes(peer);
        if bulk == Bulk::All {
            let connection = self.connection(peer);
            (connection.streams, connection.stragglers) = (None, None);
        }
        self.spread(peer);
        self.kick(peer);
    }

    /// Tells that this lane does not use all of its path, and that another lane there would. Dials that lane, unless
    /// there is one or one is being dialled. The shell may repeat this.
    pub fn on_lane_outdone(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return };
        let (Some(peer), LaneState::Open) = (record.peer, record.state) else { return };
        if record.router.is_some() || record.through_routers || self.closing {
            return;
        }
        let rail = record.rail;
        let connection = self.connection(peer);
        let (relief, trouble) = (connection.relief, &connection.trouble);
        if trouble.spread_at.is_some() || trouble.failed.is_some() || self.filling(peer, rail).is_some() {
            return;
        }
        let comes_up = |lane: &Lane| {
            lane.peer == Some(peer) && matches!(lane.state, LaneState::Dialing | LaneState::Greeting)
        };
        if relief.and_then(|lane| self.lanes.get(lane.0 as usize)).is_some_and(comes_up) {
            return;
        }
        let locator = self.rail_address(peer, rail).locator;
        let relief = self.dial_to(peer, locator, None, rail);
        self.connection(peer).relief = Some(relief);
    }

    fn update_rtt(&mut self, peer: PeerId, rtt_us: u64) {
        let connection = self.connection(peer);
        let was_far = connection.is_far();
        connection.rtt_us = Some(connection.rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
        if connection.is_far() {
            return;
        }
        if connection.announces.is_some() {
            self.forget_announcements(peer);
        }
        if was_far {
            self.rank_lanes(peer);
        }
    }

    pub(super) fn on_hello(
        &mut self,
        now: Micros,
        lane: LaneId,
        hello: &frame::Hello,
        payload: &[u8],
    ) -> Result<(), PeerFault> {
        if hello.magic != MAGIC || hello.source.is_wildcard() {
            return Err(PeerFault::Frame("not an isthmus peer"));
        }
        let proof = self.lanes[lane.0 as usize].proof;
        check_name(proof, &hello.source)?;
        let version = match self.agree(hello, proof) {
            Ok(version) => version,
            Err(reason) => {
                self.refuse(lane, reason);
                return Ok(());
            }
        };
        let heard = self.check_hello(hello, payload)?;
        let sealed = heard.as_ref().is_some_and(|heard| heard.lane.is_some());
        if self.config.sealed_only && !sealed && !self.lanes[lane.0 as usize].private {
            self.refuse(lane, RefuseReason::Plain);
            return Ok(());
        }
        // Routers carry no lanes within a subnet. So a caller there is no further away than its connection, whatever it
        // says.
        let routed = self.is_routed(&hello.source);
        let hello = &frame::Hello { hops: if routed { hello.hops } else { 0 }, ..*hello };
        if routed && (hello.hops == 0 || !self.has_routers()) {
            self.refuse(lane, RefuseReason::Subnet);
            return Ok(());
        }
        if self.awaits_the_one() {
            // It may be the peer that we call. Its answer comes by our own lane, and it will dial this one again.
            self.close_lane(lane);
            return Ok(());
        }
        if hello.source == self.config.address.place() {
            // This endpoint has dialled itself by another of its locators. It learns that from the answer
            // (`on_welcome`).
            self.welcome(lane, 0, version, heard);
            self.close_lane(lane);
            return Ok(());
        }
        let known = self.entered;
        let peer = self.enter_caller(hello.source, heard.as_ref())?;
        if self.peers[peer.0 as usize].departed {
            self.refuse(lane, RefuseReason::Closed);
            return Ok(());
        }
        if self.entered > known {
            self.note_origin(peer, self.lanes[lane.0 as usize].from, routed);
        }
        if self.refuses_lanes_of(peer) {
            self.refuse(lane, RefuseReason::Closed);
            return Ok(());
        }
        if self.connection(peer).lanes.len() >= LANES_MAX {
            return Err(PeerFault::Frame("more lanes than are ever opened"));
        }
        self.open_lane(now, lane, hello, peer, version, heard);
        Ok(())
    }

    /// Whether no new lane of this peer is accepted. While this endpoint closes, only a peer that still gets something
    /// from it may come back.
    fn refuses_lanes_of(&mut self, peer: PeerId) -> bool {
        let (closing, parted) = (self.closing, self.parted);
        let connection = self.connection(peer);
        let owed = connection.has_work() || connection.ack.is_owed();
        parted || (closing && !owed) || connection.trouble.failed.is_some()
    }

    /// Opens a lane whose Hello was accepted: answers with the Welcome, measures its round trip, and lets it carry.
    fn open_lane(
        &mut self,
        now: Micros,
        lane: LaneId,
        hello: &frame::Hello,
        peer: PeerId,
        version: u16,
        heard: Option<ProvenHello>,
    ) {
        let lane_rtt_us = self.lanes[lane.0 as usize].rtt_us;
        if let Some(rtt_us) = lane_rtt_us.filter(|_| hello.hops == 0) {
            self.update_rtt(peer, rtt_us);
        }
        let credit = self.grant(peer);
        let rail = self.rail_of(&hello.target);
        let record = &mut self.lanes[lane.0 as usize];
        record.peer = Some(peer);
        record.state = LaneState::Open;
        if hello.hops > 0 {
            record.rtt_us = None; // This is the round trip to the router only.
            record.through_routers = true;
        }
        record.rail = rail;
        self.welcome(lane, credit, version, heard);
        let record = &mut self.lanes[lane.0 as usize];
        record.control.push_back(frame::Ping { id: 0 }.into());
        record.pinged_at = Some(now);
        self.announce_rails(lane);
        self.list(peer, lane);
        self.on_lane_up(peer, lane, hello.credit);
    }

    /// The newest version that both ends speak, or the reason to refuse the lane. The caller has proved nothing yet, so
    /// the reason tells it only what this endpoint asks of everybody.
    fn agree(&self, hello: &frame::Hello, proof: Proof) -> Result<u16, RefuseReason> {
        let own = self.config.address;
        let theirs = Versions { oldest: hello.oldest, newest: hello.version };
        let version = self.config.versions.common(theirs).ok_or(RefuseReason::Version)?;
        if self.config.proved_only && proof == Proof::None {
            Err(RefuseReason::Plain)
        } else if self.is_closed() && hello.payload == 0 {
            Err(RefuseReason::Unproved)
        } else if !hello.target.is_wildcard() && hello.target.incarnation != own.incarnation {
            Err(RefuseReason::Stranger)
        } else {
            Ok(version)
        }
    }

    pub(super) fn other_version(&self, address: &Address, theirs: u16) -> OpError {
        OpError::Protocol(format!(
            "{address} speaks protocol version {theirs}, this library version {}; install the same isthmus release on \
             both sides",
            self.config.versions.newest
        ))
    }

    pub(super) fn refuse(&mut self, lane: LaneId, reason: RefuseReason) {
        let record = &mut self.lanes[lane.0 as usize];
        let Versions { oldest, newest } = self.config.versions;
        let refuse = frame::Refuse { magic: MAGIC, version: newest, reason: reason as u8, oldest };
        record.control.push_back(refuse.into());
        self.close_lane(lane);
    }

    /// Ends a lane once it has sent what is queued.
    pub(super) fn close_lane(&mut self, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        record.state = LaneState::Closing;
        if let Some(stream) = &mut record.stream {
            stream.drop_rest();
        }
        self.actions.push_back(Action::Close { lane });
        self.make_ready(lane);
    }

    pub(super) fn on_welcome(
        &mut self,
        now: Micros,
        lane: LaneId,
        welcome: &frame::Welcome,
        payload: &[u8],
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        if welcome.magic != MAGIC {
            return Err(PeerFault::Frame("not an isthmus peer"));
        }
        let Some(mut peer) = self.lanes[lane.0 as usize].peer else { return Ok(()) };
        let target = self.peers[peer.0 as usize].address;
        let Versions { oldest, newest } = self.config.versions;
        if !(oldest..=newest).contains(&welcome.version) {
            // Another attempt would meet the same version.
            self.close_lane(lane);
            self.fail_peer(peer, self.other_version(&target, welcome.version), mem);
            return Ok(());
        }
        if welcome.source.is_wildcard() || !(target.is_wildcard() || target.place() == welcome.source) {
            return Err(PeerFault::Frame("an answer in another's name"));
        }
        self.check_welcome(lane, welcome, payload)?;
        check_name(self.lanes[lane.0 as usize].proof, &welcome.source)?;
        if welcome.source == self.config.address.place() {
            self.meet_self(peer, lane, mem);
            return Ok(());
        }
        if target.is_wildcard() {
            let is_direct = self.lanes[lane.0 as usize].router.is_none();
            peer = self.identify(peer, welcome.source, mem);
            if is_direct && target.locator != welcome.source.locator {
                self.peers[peer.0 as usize].answers_at = Some(Box::new(target.locator));
            }
            self.lanes[lane.0 as usize].peer = Some(peer);
            if self.connection(peer).trouble.failed.is_some() {
                self.unlist(peer, lane, LaneState::Greeting);
                self.close_lane(lane);
                return Ok(());
            }
            // If it carried data right behind its Hello, it is listed already.
            if !self.connection(peer).lanes.contains(&lane) {
                self.adopt(peer, lane);
            }
        } else if !self.connection(peer).lanes.contains(&lane) {
            // It was dialled to a wildcard that another lane has identified meanwhile.
            self.lanes[lane.0 as usize].peer = Some(peer);
            self.adopt(peer, lane);
        }
        self.lanes[lane.0 as usize].state = LaneState::Open;
        self.announce_rails(lane);
        self.on_pong(now, lane);
        self.on_lane_up(peer, lane, welcome.credit);
        Ok(())
    }

    /// Gives a wildcard its full address, or makes it an alias of the peer that has this address already.
    fn identify(&mut self, wildcard: PeerId, address: Address, mem: &mut dyn Memory) -> PeerId {
        let Some(known) = self.directory.find(&self.peers, &address) else {
            self.peers[wildcard.0 as usize].address = address;
            self.directory.enter(&self.peers, wildcard);
            return wildcard;
        };
        let known = self.resolve(known);
        self.peers[known.0 as usize].named = true;
        self.peers[wildcard.0 as usize].alias = Some(known);
        self.matcher.rename_peer(wildcard, known);
        if let Some(mut old) = self.peers[wildcard.0 as usize].connection.take() {
            for index in old.traffic.fresh.drain(..) {
                self.operations[index].peer = known;
                self.connection(known).traffic.fresh.push_back(index);
            }
            self.connection(known).dialing += old.dialing;
            self.release_credit(old.credit_in.reserved());
        }
        for (_, lane) in &mut self.lanes {
            if lane.peer == Some(wildcard) {
                lane.peer = Some(known);
            }
        }
        if let Some(error) = self.connection(known).trouble.failed.clone() {
            self.fail_operations(known, &[], &error, mem);
            self.fail_receives(known, &error, mem);
        }
        known
    }

    /// The peer behind this lane is this endpoint itself, under another locator. Carries out the waiting
    /// operations without a lane.
    fn meet_self(&mut self, peer: PeerId, lane: LaneId, mem: &mut dyn Memory) {
        let own = self.identify(peer, self.config.address, mem);
        self.unlist(own, lane, LaneState::Greeting);
        self.close_lane(lane);
        let connection = self.connection(own);
        *connection.trouble = Trouble::default();
        for index in std::mem::take(&mut connection.traffic.fresh) {
            self.loop_back(index, mem);
        }
    }

    fn on_lane_up(&mut self, peer: PeerId, lane: LaneId, credit: u64) {
        let connection = self.connection(peer);
        connection.credit_out.raise_to(credit);
        if let Some(trouble) = connection.trouble.get_mut() {
            *trouble = Trouble { failed: trouble.failed.take(), ..Trouble::default() };
        }
        // An acknowledgement on a lane that broke may have been lost.
        if connection.received.upto() > 0 {
            connection.ack.demand();
        }
        self.make_ready(lane);
        self.kick(peer);
        self.schedule_silence_check(peer);
    }

    pub(super) fn on_refuse(&mut self, lane: LaneId, refuse: &frame::Refuse, mem: &mut dyn Memory) {
        let record = &self.lanes[lane.0 as usize];
        let Some(peer) = record.peer else { return };
        if record.rail > 0 {
            self.forget_rail(peer, record.rail);
            self.close_lane(lane);
        } else if record.router.is_some() {
            self.on_routed_refuse(lane, peer, refuse, mem);
        } else {
            self.on_peer_refuse(lane, peer, refuse, mem);
        }
    }

    pub(super) fn on_pong(&mut self, now: Micros, lane: LaneId) {
        let record = &mut self.lanes[lane.0 as usize];
        let (Some(at), Some(peer)) = (record.pinged_at.take(), record.peer) else { return };
        self.update_rtt(peer, now.saturating_sub(at));
        self.credit_for_path(peer);
        self.kick(peer);
    }

    /// Whether the last frame of this lane's near peer came by another lane. A near peer sends by one lane only, so it
    /// has probably given this one up. False for lanes through routers.
    pub fn is_left_by_peer(&self, lane: LaneId) -> bool {
        let record = self.lanes.get(lane.0 as usize);
        let direct = record.filter(|record| record.router.is_none() && !record.through_routers);
        let peer = direct.and_then(|record| record.peer).map(|peer| self.resolve(peer));
        let connection = peer.and_then(|peer| self.peers[peer.0 as usize].connection.as_deref());
        connection.is_some_and(|known| !known.is_far() && known.recent.is_some_and(|recent| recent != lane))
    }

    /// Whether an incoming lane has sent its Hello, or has ended.
    pub fn is_greeted(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.0 as usize).is_none_or(|record| record.state != LaneState::Listening)
    }

    /// The number of lanes, in any state.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Whether all lanes lead to the same peer.
    pub fn talks_to_one(&self) -> bool {
        let mut peers = self.lanes.iter().map(|(_, lane)| lane.peer);
        peers.next().is_some_and(|first| peers.all(|peer| peer == first))
    }

    /// The number of operations that have not completed.
    pub fn pending(&self) -> usize {
        self.operations.iter().filter(|(_, operation)| !matches!(operation.kind, Kind::Reply { .. })).count()
    }
}

/// The time that a connected lane waits for the answer to its Hello: no longer than until the peer is given up, but a
/// second at least. Microseconds.
pub(super) fn patience(lane: &Lane, peer_timeout_us: Micros) -> Micros {
    let usual = if lane.router.is_some() { ROUTED_GREETING_US } else { GREETING_US };
    usual.min(peer_timeout_us.max(1_000_000))
}
