//! Lanes: how they come up, greet, break and come back; how a peer is given up; how an
//! endpoint closes.

use isthmus_wire::frame::{self, MAGIC, PROTOCOL_VERSION, RefuseReason};
use isthmus_wire::{Address, AsId, FrameError};

use super::state::{Early, Kind, Lane, LaneState, Micros, Proof, Stage, Trouble};
use super::{Action, Config, Engine, LaneId};
use crate::memory::Memory;
use crate::{OpError, PeerId};

/// What a peer did that no correct peer does; its lane is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// Bytes that are no frame.
    #[error("{0}")]
    Bytes(#[from] FrameError),
    /// A frame that makes no sense where it came.
    #[error("{0}")]
    Frame(&'static str),
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
    /// It could not be made because one side does not trust the other; the text says why, and
    /// what to do.
    Untrusted(String),
}

/// How long a connected peer may take to answer Hello.
const GREETING_US: Micros = 10_000_000;
/// The same through a router: another one may do better.
const ROUTED_GREETING_US: Micros = 4_000_000;
/// Most lanes of one peer.
const LANES_MAX: usize = 1024;

/// A peer may only be of the AS that its certificate names.
fn check_name(proof: Proof, source: &Address) -> Result<(), PeerFault> {
    match proof {
        Proof::Of(as_id) if as_id != source.as_id => {
            Err(PeerFault::Frame("an address of another AS than that of its certificate"))
        }
        _ => Ok(()),
    }
}

impl Engine {
    /// A peer connected; its Hello is to come.
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
        let source = self.config.address;
        // The other end knows by its locator which way the lane takes.
        let target = self.by_way(peer, self.lanes[lane.0 as usize].way);
        let hello = frame::Hello { magic: MAGIC, version: PROTOCOL_VERSION, source, target, credit, hops: 0 };
        let record = &mut self.lanes[lane.0 as usize];
        record.state = LaneState::Greeting;
        record.control.push_back(hello.into());
        record.pinged_at = Some(now);
        let patience = patience(record);
        self.timers.insert((now + patience, peer));
        // A wildcard may turn out to be a peer that we already talk to: then what we
        // send must follow what was sent to that one, so it waits for the answer.
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

    /// Adds a lane to its connection. Where both sides have dialled at once, both put the
    /// lane of the lower address first: near peers use only that one.
    fn list(&mut self, peer: PeerId, lane: LaneId) {
        let own = self.config.address;
        let theirs = self.peers[peer.0 as usize].address;
        let record = &mut self.lanes[lane.0 as usize];
        record.moved_at = self.clock;
        let (first, rtt_us) = (record.dialled == (own < theirs), record.rtt_us);
        let (fills_path, now) = (record.fills_path, self.clock);
        let probes = self.greets(peer, lane, now);
        let connection = self.connection(peer);
        if fills_path {
            connection.streams = None; // from now on all carry
        }
        let at = match connection.lanes.len() {
            _ if first && !probes => 0,
            // Ahead of those that have stopped.
            len if probes => len.min(1),
            len => len,
        };
        connection.lanes.insert(at, lane);
        self.counters.lanes_opened += 1;
        if let Some(rtt_us) = rtt_us {
            self.note_rtt(peer, rtt_us);
        }
    }

    /// The shell knows the round trip of a lane (`tcpi_rtt` of `tcp(7)`). Microseconds.
    pub fn path_rtt(&mut self, lane: LaneId, rtt_us: u64) {
        let Some(record) = self.lanes.get_mut(lane.0 as usize) else { return };
        if record.router.is_some() {
            return; // it is the router's
        }
        record.rtt_us = Some(rtt_us);
        if let Some(peer) = record.peer {
            self.note_rtt(peer, rtt_us);
        }
    }

    /// The shell knows by a certificate of which AS the lane's other end is: a peer that gives
    /// another in its address is at fault.
    pub fn lane_is_of(&mut self, lane: LaneId, as_id: AsId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.proof = Proof::Of(as_id);
        }
    }

    /// The shell knows that the lane comes from a router, which speaks for others.
    pub fn lane_is_trusted(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.proof = Proof::Trusted;
        }
    }

    /// The shell knows that this lane alone uses all that its path has.
    pub fn lane_fills_path(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.fills_path = true;
        }
    }

    /// The shell knows that a further lane to where this one leads would use all that the path has,
    /// which this one does not: it is dialled if there is none and none on its way. May be said
    /// again while it holds.
    pub fn lane_is_outdone(&mut self, lane: LaneId) {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return };
        let (Some(peer), LaneState::Open) = (record.peer, record.state) else { return };
        if record.router.is_some() || record.through_routers || self.closing {
            return;
        }
        let way = record.way;
        let connection = self.connection(peer);
        let (relief, trouble) = (connection.relief, &connection.trouble);
        if trouble.spread_at.is_some() || trouble.failed.is_some() || self.filling(peer, way).is_some() {
            return;
        }
        let comes_up = |lane: &Lane| {
            lane.peer == Some(peer) && matches!(lane.state, LaneState::Dialing | LaneState::Greeting)
        };
        if relief.and_then(|lane| self.lanes.get(lane.0 as usize)).is_some_and(comes_up) {
            return;
        }
        let locator = self.by_way(peer, way).locator;
        let relief = self.dial_to(peer, locator, None, way);
        self.connection(peer).relief = Some(relief);
    }

    fn note_rtt(&mut self, peer: PeerId, rtt_us: u64) {
        let connection = self.connection(peer);
        connection.rtt_us = Some(connection.rtt_us.map_or(rtt_us, |least| least.min(rtt_us)));
    }

    pub(super) fn on_hello(
        &mut self,
        now: Micros,
        lane: LaneId,
        hello: &frame::Hello,
    ) -> Result<(), PeerFault> {
        if hello.magic != MAGIC || hello.source.is_wildcard() {
            return Err(PeerFault::Frame("not an isthmus peer"));
        }
        let proof = self.lanes[lane.0 as usize].proof;
        check_name(proof, &hello.source)?;
        if let Some(reason) = self.objection(hello, proof) {
            self.refuse(lane, reason);
            return Ok(());
        }
        if self.awaits_the_one() {
            // It may be that one, whose lane brings the same soon; this one it dials again.
            self.close_lane(lane);
            return Ok(());
        }
        let peer = self.enter_peer(hello.source);
        let peer = self.resolve(peer);
        // A peer that is owed something while we close may come back for it.
        let closing = self.closing;
        let parted = self.parted;
        let connection = self.connection(peer);
        let owed = connection.has_work() || connection.ack_owed;
        if parted || (closing && !owed) || connection.trouble.failed.is_some() {
            self.refuse(lane, RefuseReason::Closed);
            return Ok(());
        }
        if self.connection(peer).lanes.len() >= LANES_MAX {
            return Err(PeerFault::Frame("more lanes than are ever opened"));
        }
        let lane_rtt_us = self.lanes[lane.0 as usize].rtt_us;
        if let Some(rtt_us) = lane_rtt_us.filter(|_| hello.hops == 0) {
            self.note_rtt(peer, rtt_us);
        }
        let credit = self.grant(peer);
        let source = self.config.address;
        let welcome = frame::Welcome { magic: MAGIC, version: PROTOCOL_VERSION, source, credit };
        let way = self.way_of(&hello.target);
        let record = &mut self.lanes[lane.0 as usize];
        record.peer = Some(peer);
        record.state = LaneState::Open;
        if hello.hops > 0 {
            record.rtt_us = None; // it is the router's
            record.through_routers = true;
        }
        record.control.push_back(welcome.into());
        record.control.push_back(frame::Ping { id: 0 }.into());
        record.pinged_at = Some(now);
        record.way = way;
        self.tell_ways(lane);
        self.list(peer, lane);
        self.lane_is_up(peer, lane, hello.credit);
        Ok(())
    }

    fn objection(&self, hello: &frame::Hello, proof: Proof) -> Option<RefuseReason> {
        let own = self.config.address;
        if hello.version != PROTOCOL_VERSION {
            Some(RefuseReason::Version)
        } else if self.config.proved_only && proof == Proof::None {
            Some(RefuseReason::Plain)
        } else if !hello.target.is_wildcard() && hello.target.incarnation != own.incarnation {
            Some(RefuseReason::Stranger)
        } else if self.is_routed(&hello.source) && (hello.hops == 0 || !self.has_routers()) {
            Some(RefuseReason::Subnet)
        } else {
            None
        }
    }

    fn refuse(&mut self, lane: LaneId, reason: RefuseReason) {
        let record = &mut self.lanes[lane.0 as usize];
        let refuse = frame::Refuse { magic: MAGIC, version: PROTOCOL_VERSION, reason: reason as u8 };
        record.control.push_back(refuse.into());
        self.close_lane(lane);
    }

    /// The lane sends what is queued and ends.
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
        mem: &mut dyn Memory,
    ) -> Result<(), PeerFault> {
        if welcome.magic != MAGIC {
            return Err(PeerFault::Frame("not an isthmus peer"));
        }
        let Some(mut peer) = self.lanes[lane.0 as usize].peer else { return Ok(()) };
        let target = self.peers[peer.0 as usize].address;
        if welcome.version != PROTOCOL_VERSION {
            // Another attempt would find the same version.
            self.close_lane(lane);
            self.fail_peer(peer, other_version(&target, welcome.version), mem);
            return Ok(());
        }
        if welcome.source.is_wildcard() || !(target.is_wildcard() || target == welcome.source) {
            return Err(PeerFault::Frame("an answer in another's name"));
        }
        check_name(self.lanes[lane.0 as usize].proof, &welcome.source)?;
        if target.is_wildcard() {
            peer = self.identify(peer, welcome.source, mem);
            self.lanes[lane.0 as usize].peer = Some(peer);
            if self.connection(peer).trouble.failed.is_some() {
                self.unlist(peer, lane, LaneState::Greeting);
                self.close_lane(lane);
                return Ok(());
            }
            // Unless it has carried since its Hello.
            if !self.connection(peer).lanes.contains(&lane) {
                self.adopt(peer, lane);
            }
        } else if !self.connection(peer).lanes.contains(&lane) {
            // Dialled as a wildcard that another lane has identified meanwhile.
            self.lanes[lane.0 as usize].peer = Some(peer);
            self.adopt(peer, lane);
        }
        self.lanes[lane.0 as usize].state = LaneState::Open;
        self.tell_ways(lane);
        self.on_pong(now, lane);
        self.lane_is_up(peer, lane, welcome.credit);
        Ok(())
    }

    /// A wildcard has told its full address: it becomes that peer, or joins it.
    fn identify(&mut self, wildcard: PeerId, address: Address, mem: &mut dyn Memory) -> PeerId {
        let Some(&known) = self.by_address.get(&address) else {
            self.by_address.insert(address, wildcard);
            self.peers[wildcard.0 as usize].address = address;
            return wildcard;
        };
        let known = self.resolve(known);
        self.peers[wildcard.0 as usize].alias = Some(known);
        self.matcher.rename_peer(wildcard, known);
        if let Some(mut old) = self.peers[wildcard.0 as usize].connection.take() {
            for index in old.traffic.fresh.drain(..) {
                self.operations[index].peer = known;
                self.connection(known).traffic.fresh.push_back(index);
            }
            self.connection(known).dialing += old.dialing;
            self.release_credit(old.reserved());
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

    fn lane_is_up(&mut self, peer: PeerId, lane: LaneId, credit: u64) {
        let connection = self.connection(peer);
        connection.credit_limit = connection.credit_limit.max(credit);
        if let Some(trouble) = connection.trouble.get_mut() {
            *trouble = Trouble { failed: trouble.failed.take(), ..Trouble::default() };
        }
        // What was acknowledged on a lane that broke may not have got through.
        if connection.received.upto() > 0 {
            connection.ack_owed = true;
            connection.ack_due = true;
        }
        self.make_ready(lane);
        self.kick(peer);
        self.watch(peer);
    }

    pub(super) fn on_refuse(&mut self, lane: LaneId, refuse: &frame::Refuse, mem: &mut dyn Memory) {
        let record = &self.lanes[lane.0 as usize];
        let Some(peer) = record.peer else { return };
        if record.way > 0 {
            self.forget_way(peer, record.way);
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
        self.note_rtt(peer, now.saturating_sub(at));
        self.credit_for_path(peer);
        self.kick(peer);
    }

    /// A lane ended. What it held goes out again by the others; without others it is
    /// dialled again, whoever dialled it first, since only that tells whether the peer
    /// still lives.
    pub fn lane_lost(&mut self, now: Micros, lane: LaneId, loss: &LaneLoss, mem: &mut dyn Memory) {
        self.clock = now;
        let Some(record) = self.lanes.try_remove(lane.0 as usize) else { return };
        let Some(peer) = record.peer else { return };
        let peer = self.resolve(peer);
        let was_dialing = self.unlist(peer, lane, record.state);
        for operation in record.leases {
            self.operations[operation].leases -= 1;
            self.try_finish(operation, mem);
        }
        // A fault that shows only now is the peer's, but of a lane that is gone.
        let _ = self.end_lingering(mem);
        if self.parted || self.connection(peer).trouble.failed.is_some() {
            return;
        }
        self.requeue(peer, lane);
        // Of a lane that was refused it is known already why.
        if record.state != LaneState::Closing {
            self.note_loss(peer, loss, was_dialing, record.router, record.way);
            self.avoid_router(now, record.router);
            self.avoid_way(now, peer, record.way);
        }
        if self.closing && !self.connection(peer).has_work() {
            return;
        }
        let connection = self.connection(peer);
        if connection.lanes.is_empty() && connection.dialing == 0 {
            let refusals = connection.trouble.refusals;
            if refusals >= self.config.refusals_max {
                let address = self.peers[peer.0 as usize].address;
                let error = match loss {
                    LaneLoss::Untrusted(text) => OpError::Unreachable(format!("{address}: {text}")),
                    _ => OpError::PeerGone(format!(
                        "nobody listens at {address}: the peer's process has ended, or its address is wrong"
                    )),
                };
                return self.fail_peer(peer, error, mem);
            }
            self.schedule_retry(now, peer);
        } else {
            if was_dialing {
                self.schedule_spread(now, peer);
            }
            self.kick(peer);
        }
    }

    fn unlist(&mut self, peer: PeerId, lane: LaneId, state: LaneState) -> bool {
        let connection = self.connection(peer);
        let listed = connection.lanes.len();
        connection.lanes.retain(|other| *other != lane);
        if connection.lanes.len() < listed {
            if state == LaneState::Open {
                self.counters.lanes_lost += 1;
            }
            return state != LaneState::Open;
        }
        let dialing = matches!(state, LaneState::Dialing | LaneState::Greeting);
        if dialing {
            connection.dialing = connection.dialing.saturating_sub(1);
        }
        dialing
    }

    fn requeue(&mut self, peer: PeerId, lane: LaneId) {
        let connection = self.connection(peer);
        let lost: Vec<u64> = connection
            .window
            .iter_mut()
            .filter(|(_, flight)| flight.lane == lane)
            .map(|(seq, _)| seq)
            .collect();
        for seq in lost {
            connection.traffic.again.push_back(seq);
        }
        connection.traffic.again.make_contiguous().sort_unstable();
        let mut last = None;
        connection.traffic.again.retain(|seq| last.replace(*seq) != Some(*seq));
        if connection.received.upto() > 0 {
            connection.ack_owed = true;
            connection.ack_due = true;
        }
    }

    fn note_loss(
        &mut self,
        peer: PeerId,
        loss: &LaneLoss,
        was_dialing: bool,
        router: Option<usize>,
        way: usize,
    ) {
        let through = self.router_text(router);
        let connection = self.connection(peer);
        match loss {
            // Says nothing of the peer.
            _ if router.is_some() || way > 0 => {}
            LaneLoss::Refused | LaneLoss::Untrusted(_) => connection.trouble.refusals += 1,
            LaneLoss::Closed if was_dialing => connection.trouble.refusals += 1,
            _ => connection.trouble.refusals = 0,
        }
        let text = match loss {
            LaneLoss::Refused => "connection refused",
            LaneLoss::Closed => "closed by the peer",
            LaneLoss::Broken(text) | LaneLoss::Untrusted(text) => text,
        };
        connection.trouble.last_failure = format!("{through}{text}");
    }

    fn schedule_retry(&mut self, now: Micros, peer: PeerId) {
        let connection = self.connection(peer);
        connection.trouble.lost_since.get_or_insert(now);
        let at = now + connection.trouble.back_off();
        connection.trouble.retry_at = Some(at);
        self.timers.insert((at, peer));
    }

    /// A further lane could not be made: the next is not tried at once.
    fn schedule_spread(&mut self, now: Micros, peer: PeerId) {
        let connection = self.connection(peer);
        let at = now + connection.trouble.back_off();
        connection.trouble.spread_at = Some(at);
        self.timers.insert((at, peer));
    }

    /// Does what has come due.
    pub fn handle_timeout(&mut self, now: Micros, mem: &mut dyn Memory) {
        self.clock = now;
        self.send_late_acks(now);
        while let Some(&(at, peer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let peer = self.resolve(peer);
            self.abandon_silent(now, peer);
            self.look(now, peer);
            self.end_wait(now, peer);
            self.check_late(now, peer);
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            let Some(trouble) = connection.trouble.get_mut() else { continue };
            if trouble.spread_at.take_if(|at| *at <= now).is_some() && self.has_bulk(peer) {
                self.kick(peer);
            }
            self.retry(now, peer, mem);
        }
    }

    /// Dials again, or gives the peer up.
    fn retry(&mut self, now: Micros, peer: PeerId, mem: &mut dyn Memory) {
        let timeout = self.config.peer_timeout_us;
        let connection = self.connection(peer);
        let retry_at = connection.trouble.get_mut().map(|trouble| &mut trouble.retry_at);
        let due = retry_at.is_some_and(|at| at.take_if(|at| *at <= now).is_some());
        if !due || !connection.lanes.is_empty() || connection.trouble.failed.is_some() {
            return;
        }
        let out_for = connection.trouble.lost_since.map_or(0, |since| now.saturating_sub(since));
        if out_for >= timeout {
            let text = connection.trouble.last_failure.clone();
            let error = self.unreachable(peer, out_for, &text);
            self.fail_peer(peer, error, mem);
        } else if connection.dialing == 0 && !self.parted {
            self.dial(peer);
        }
    }

    /// Gives up lanes whose other end accepted the connection but does not greet.
    fn abandon_silent(&mut self, now: Micros, peer: PeerId) {
        for (index, lane) in &mut self.lanes {
            let silent = lane.pinged_at.is_some_and(|at| now >= at + patience(lane));
            if lane.peer == Some(peer) && lane.state == LaneState::Greeting && silent {
                self.actions.push_back(Action::Abandon { lane: LaneId(index as u32) });
            }
        }
    }

    fn unreachable(&self, peer: PeerId, out_for: Micros, text: &str) -> OpError {
        let address = self.peers[peer.0 as usize].address;
        OpError::Unreachable(format!(
            "{address} was out of reach for {} s (last attempt: {text}{}); check the network, or raise peer_timeout",
            out_for / 1_000_000,
            self.tried_text(&address)
        ))
    }

    /// The peer closes: everything it owed us has arrived.
    pub(super) fn on_bye(&mut self, peer: PeerId, lane: LaneId, mem: &mut dyn Memory) {
        let address = self.peers[peer.0 as usize].address;
        self.close_lane(lane);
        if peer_is_self(&self.config, &address) {
            return;
        }
        self.part(
            peer,
            OpError::PeerGone(format!("the endpoint at {address} was closed by its program")),
            false,
            mem,
        );
    }

    /// Ends a connection for good: its operations and directed receives fail.
    pub(super) fn fail_peer(&mut self, peer: PeerId, error: OpError, mem: &mut dyn Memory) {
        self.part(peer, error, true, mem);
    }

    fn part(&mut self, peer: PeerId, error: OpError, receives_too: bool, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        if connection.trouble.failed.is_some() {
            return;
        }
        connection.trouble.failed = Some(error.clone());
        connection.trouble.retry_at = None;
        connection.trouble.spread_at = None;
        let reserved = connection.reserved();
        let lanes = connection.lanes.clone();
        let carried_out = self.carried_out(peer);
        let connection = self.connection(peer);
        connection.traffic.again.clear();
        connection.traffic.urgent.clear();
        connection.traffic.bulk.clear();
        connection.traffic.unaccepted.clear();
        connection.traffic.writes.clear();
        for flight in connection.window.drain().collect::<Vec<_>>() {
            if let Some(index) = flight.load.operation() {
                self.operations[index].pieces -= 1;
            }
        }
        self.release_credit(reserved);
        for lane in lanes {
            if self.lanes[lane.0 as usize].state != LaneState::Closing {
                self.close_lane(lane);
            }
        }
        if let Some(lost) = &mut self.lost {
            lost.push_back(peer);
        }
        self.fail_operations(peer, &carried_out, &error, mem);
        self.break_inbounds(peer, &error, mem);
        if receives_too {
            self.fail_receives(peer, &error, mem);
        }
    }

    /// Fails the receives that only this peer could satisfy.
    fn fail_receives(&mut self, peer: PeerId, error: &OpError, mem: &mut dyn Memory) {
        for (channel, posted) in self.matcher.take_directed(peer) {
            self.fail_posted(channel, posted, Some(error.clone()), mem);
        }
    }

    /// Operations of which the peer has all, and which only wait for lanes that still write from their
    /// memory what was sent twice.
    fn carried_out(&self, peer: PeerId) -> Vec<usize> {
        let mine = self.operations.iter().filter(|(_, operation)| operation.peer == peer);
        mine.filter(|(_, operation)| operation.is_carried_out()).map(|(index, _)| index).collect()
    }

    fn fail_operations(
        &mut self,
        peer: PeerId,
        carried_out: &[usize],
        error: &OpError,
        mem: &mut dyn Memory,
    ) {
        let connection = self.connection(peer);
        connection.answers -= connection.traffic.replies.len() as u32;
        let traffic = &mut *connection.traffic;
        let waiting: Vec<usize> = traffic.fresh.drain(..).chain(traffic.replies.drain(..)).collect();
        for index in waiting {
            self.operations[index].error = Some(error.clone());
            self.finish(index, mem);
        }
        let started: Vec<usize> = self
            .operations
            .iter()
            .filter(|(index, operation)| operation.peer == peer && !carried_out.contains(index))
            .map(|(index, _)| index)
            .collect();
        for index in started {
            self.operations[index].error = Some(error.clone());
            self.try_finish(index, mem);
        }
    }

    /// Messages of this peer that can no longer become whole.
    fn break_inbounds(&mut self, peer: PeerId, error: &OpError, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        let early = connection.traffic.early.values().filter_map(|early| match early {
            Early::Message(index) => Some(*index),
            Early::Atomic(..) => None,
        });
        let mut broken: Vec<usize> = connection.traffic.incoming.values().copied().chain(early).collect();
        broken.sort_unstable_by_key(|index| (self.inbounds[*index].message, *index));
        broken.dedup();
        for index in broken {
            match self.inbounds[index].stage {
                Stage::Orphan | Stage::Early => {
                    self.inbounds[index].stage = Stage::Dropped;
                    self.complete_inbound(index, mem);
                }
                Stage::Matched { .. } | Stage::Dropped => {
                    let inbound = &self.inbounds[index];
                    if inbound.got < inbound.needed {
                        self.break_inbound(index, error, mem);
                    }
                }
                Stage::Unexpected => {}
            }
        }
        let connection = self.connection(peer);
        connection.traffic.early.clear();
        connection.traffic.early_operands = 0;
    }

    pub(super) fn break_inbound(&mut self, index: usize, error: &OpError, mem: &mut dyn Memory) {
        self.inbounds[index].error = Some(error.clone());
        self.complete_inbound(index, mem);
    }

    /// The program closes the endpoint: from now on lanes are accepted only of peers for
    /// which there still is something to send.
    pub fn begin_close(&mut self) {
        self.closing = true;
    }

    /// Whether everything accepted from the program has reached its peer.
    pub fn is_drained(&self) -> bool {
        self.peers
            .iter()
            .filter_map(|peer| peer.connection.as_deref())
            .all(|connection| connection.trouble.failed.is_some() || !connection.has_work())
    }

    /// Tells every peer that this endpoint ends; the lanes then close.
    pub fn say_bye(&mut self) {
        self.closing = true;
        self.parted = true;
        for peer in (0..self.peers.len() as u32).map(PeerId) {
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            // Said on every lane, owed or not: the one on another lane may be overtaken by the Bye.
            let ack = connection.acknowledgement();
            for lane in connection.lanes.clone() {
                let record = &mut self.lanes[lane.0 as usize];
                if record.state == LaneState::Closing {
                    continue;
                }
                record.control.push_back(ack);
                record.control.push_back(frame::Bye { connection: 0 }.into());
                self.close_lane(lane);
            }
        }
    }

    /// How many lanes there are, in any state.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Whether all lanes lead to the same peer.
    pub fn talks_to_one(&self) -> bool {
        let mut peers = self.lanes.iter().map(|(_, lane)| lane.peer);
        peers.next().is_some_and(|first| peers.all(|peer| peer == first))
    }

    /// Operations whose end was not reported yet, for tests of what leaks.
    pub fn pending(&self) -> usize {
        self.operations.iter().filter(|(_, operation)| !matches!(operation.kind, Kind::Reply { .. })).count()
    }
}

/// How long a lane that is connected may go without an answer to Hello.
fn patience(lane: &Lane) -> Micros {
    if lane.router.is_some() { ROUTED_GREETING_US } else { GREETING_US }
}

pub(super) fn other_version(address: &Address, theirs: u16) -> OpError {
    OpError::Protocol(format!(
        "{address} speaks protocol version {theirs}, this library version {PROTOCOL_VERSION}; install the same \
         isthmus release on both sides"
    ))
}

fn peer_is_self(config: &Config, address: &Address) -> bool {
    config.address == *address
}
