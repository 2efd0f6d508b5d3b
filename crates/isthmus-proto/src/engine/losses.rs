//! Lanes that break, and how they are dialled again.

use super::lanes::{LaneLoss, patience};
use super::state::{LaneState, Micros};
use super::{Action, Engine, LaneId};
use crate::memory::Memory;
use crate::{OpError, PeerId};

/// The error where something other than Isthmus listens at a peer's address.
const FOREIGN: &str = "what answers there does not speak Isthmus; is it the right port?";

impl Engine {
    /// A lane ended. Its unacknowledged fragments go out again on the others. If there are no others, the peer is
    /// dialled again, whichever side had dialled: only that shows whether the peer still lives.
    pub fn lane_lost(&mut self, now: Micros, lane: LaneId, loss: &LaneLoss, mem: &mut dyn Memory) {
        self.clock = now;
        let Some(record) = self.lanes.try_remove(lane.0 as usize) else { return };
        let Some(peer) = record.peer else { return };
        let peer = self.resolve(peer);
        let was_dialing = self.unlist(peer, lane, record.state);
        if record.borrowed.is_some() {
            self.forget_recalls(lane);
        }
        let borrowed = record.borrowed.into_iter().flat_map(|borrowed| borrowed.into_operations());
        record.leases.into_iter().chain(borrowed).for_each(|operation| self.end_lease(operation, mem));
        // A fault of the peer that shows only now belongs to a lane that is gone.
        let _ = self.end_lingering(mem);
        if self.parted || self.is_self(peer) {
            return;
        }
        if self.connection(peer).trouble.failed.is_some() {
            return self.forget_guests(peer);
        }
        self.requeue(peer, lane);
        // If the lane was refused, the reason is known already.
        if record.state != LaneState::Closing {
            let is_mute = record.state == LaneState::Greeting;
            self.record_loss(peer, loss, (was_dialing, is_mute), record.router, record.rail);
            self.avoid_router(now, record.router);
            self.avoid_rail(now, peer, record.rail);
        }
        if self.closing && !self.connection(peer).has_work() {
            return;
        }
        // Behind a forwarded port, whoever forwards refuses too, such as while the peer's host restarts its network.
        let may_pass = self.peers[peer.0 as usize].answers_at.is_some()
            && !matches!(loss, LaneLoss::Untrusted(_) | LaneLoss::Foreign);
        let refusals_max = self.config.refusals_max;
        let connection = self.connection(peer);
        let is_gone = connection.trouble.refusals >= refusals_max && !may_pass;
        // Probes may always be under way (`probe.rs`). They are refused as well.
        if connection.lanes.is_empty() && (connection.dialing == 0 || is_gone) {
            if is_gone {
                let address = self.dialled_text(peer);
                let error = match loss {
                    LaneLoss::Untrusted(text) => OpError::Unreachable(format!("{address}: {text}")),
                    LaneLoss::Foreign => OpError::Unreachable(format!("{address}: {FOREIGN}")),
                    _ if record.state == LaneState::Greeting => {
                        let text = &self.connection(peer).trouble.last_failure;
                        OpError::PeerGone(format!("{address}: {text}"))
                    }
                    _ => OpError::PeerGone(format!(
                        "nobody listens at {address}: the peer's process has ended, or its address is wrong"
                    )),
                };
                return self.fail_peer(peer, error, mem);
            }
            // A lane that was not answered was out of reach from its beginning.
            let unanswered = record.pinged_at.filter(|_| record.state == LaneState::Greeting);
            self.schedule_retry(now, peer, loss, unanswered.map_or(0, |since| now.saturating_sub(since)));
            self.await_return(peer, mem);
        } else {
            if was_dialing {
                self.schedule_spread(now, peer);
            }
            self.kick(peer);
        }
    }

    pub(super) fn unlist(&mut self, peer: PeerId, lane: LaneId, state: LaneState) -> bool {
        let connection = self.connection(peer);
        connection.recent.take_if(|recent| *recent == lane);
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
            connection.ack.demand();
        }
    }

    fn record_loss(
        &mut self,
        peer: PeerId,
        loss: &LaneLoss,
        (was_dialing, is_mute): (bool, bool),
        router: Option<usize>,
        rail: usize,
    ) {
        let through = self.router_text(router);
        let connection = self.connection(peer);
        match loss {
            // The failure of a router or a further rail says nothing of the peer.
            _ if router.is_some() || rail > 0 => {}
            LaneLoss::Refused | LaneLoss::Untrusted(_) => connection.trouble.refusals += 1,
            LaneLoss::Closed | LaneLoss::Foreign if was_dialing => connection.trouble.refusals += 1,
            _ => connection.trouble.refusals = 0,
        }
        let text = match loss {
            LaneLoss::Refused => "connection refused",
            LaneLoss::Closed if is_mute => "the connection was closed",
            LaneLoss::Closed => "closed by the peer",
            LaneLoss::Foreign if was_dialing => FOREIGN,
            LaneLoss::Foreign => "the peer sent bytes that are no frame",
            LaneLoss::Silent { text, .. }
            | LaneLoss::Broken(text)
            | LaneLoss::Left(text)
            | LaneLoss::Untrusted(text) => text,
        };
        // Of a router's lane, the router's text says more.
        let asked =
            is_mute && router.is_none() && !matches!(loss, LaneLoss::Untrusted(_) | LaneLoss::Foreign);
        connection.trouble.last_failure =
            if asked { format!("{text} {}", LaneLoss::UNANSWERED) } else { format!("{through}{text}") };
    }

    /// Plans the next attempt to reach a peer, and the time at which it is given up.
    fn schedule_retry(&mut self, now: Micros, peer: PeerId, loss: &LaneLoss, unanswered: Micros) {
        let timeout = self.config.peer_timeout_us;
        let connection = self.connection(peer);
        let silent = if let LaneLoss::Silent { us, .. } = loss { *us } else { unanswered };
        let since = *connection.trouble.lost_since.get_or_insert(now.saturating_sub(silent));
        let at = now + if matches!(loss, LaneLoss::Left(_)) { 0 } else { connection.trouble.back_off() };
        connection.trouble.retry_at = Some(at);
        self.timers.insert((at, peer));
        if let Some(given_up_at) = since.checked_add(timeout).filter(|at| *at < Micros::MAX) {
            self.timers.insert((given_up_at, peer));
        }
    }

    /// Delays the next further lane, since one could not be made.
    fn schedule_spread(&mut self, now: Micros, peer: PeerId) {
        let connection = self.connection(peer);
        let at = now + connection.trouble.back_off();
        connection.trouble.spread_at = Some(at);
        self.timers.insert((at, peer));
    }

    /// Does what is due at `now` ([`Engine::poll_timeout`]).
    pub fn handle_timeout(&mut self, now: Micros, mem: &mut dyn Memory) {
        self.clock = now;
        self.send_overdue_acks(now);
        while let Some(&(at, peer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let peer = self.resolve(peer);
            if self.peers[peer.0 as usize].departed {
                continue;
            }
            self.abandon_silent(now, peer);
            self.check_silence(now, peer);
            self.end_wait(now, peer);
            self.check_stragglers(now, peer);
            let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { continue };
            let Some(trouble) = connection.trouble.get_mut() else { continue };
            if trouble.spread_at.take_if(|at| *at <= now).is_some() && self.has_bulk(peer) {
                self.kick(peer);
            }
            self.retry(now, peer, mem);
        }
    }

    /// Dials the peer again if that is due, or gives it up after `peer_timeout`.
    fn retry(&mut self, now: Micros, peer: PeerId, mem: &mut dyn Memory) {
        let timeout = self.config.peer_timeout_us;
        let connection = self.connection(peer);
        let retry_at = connection.trouble.get_mut().map(|trouble| &mut trouble.retry_at);
        let due = retry_at.is_some_and(|at| at.take_if(|at| *at <= now).is_some());
        if !connection.lanes.is_empty() || connection.trouble.failed.is_some() {
            return;
        }
        let out_for = connection.trouble.lost_since.map_or(0, |since| now.saturating_sub(since));
        if out_for >= timeout && connection.trouble.lost_since.is_some() {
            let text = connection.trouble.last_failure.clone();
            let error = self.unreachable(peer, out_for, &text);
            self.fail_peer(peer, error, mem);
        } else if due && connection.dialing == 0 && !self.parted {
            if self.is_idle_guest(peer) {
                let at = now + self.connection(peer).trouble.back_off();
                self.connection(peer).trouble.retry_at = Some(at);
                self.timers.insert((at, peer));
            } else {
                self.dial(peer);
            }
        }
    }

    /// Whether a lost peer is not called back. At an open endpoint everybody can be a peer, so that it calls back only
    /// those that the program named, and those that it has something to tell.
    fn is_idle_guest(&self, peer: PeerId) -> bool {
        let known = &self.peers[peer.0 as usize];
        let owed = known.connection.as_ref().is_some_and(|connection| connection.has_work());
        !self.is_closed() && !known.named && !owed
    }

    /// Gives up lanes whose other end accepted the connection and does not answer Hello in time.
    fn abandon_silent(&mut self, now: Micros, peer: PeerId) {
        let timeout = self.config.peer_timeout_us;
        for (index, lane) in &mut self.lanes {
            let silent = lane.pinged_at.is_some_and(|at| now >= at + patience(lane, timeout));
            if lane.peer == Some(peer) && lane.state == LaneState::Greeting && silent {
                self.actions.push_back(Action::Abandon { lane: LaneId(index as u32) });
            }
        }
    }

    /// A peer's address for errors, with the locator that is dialled where it differs.
    fn dialled_text(&self, peer: PeerId) -> String {
        let peer = &self.peers[peer.0 as usize];
        match &peer.answers_at {
            Some(at) => format!("{at} (of itself it knows {})", peer.address),
            None => peer.address.to_string(),
        }
    }

    fn unreachable(&self, peer: PeerId, out_for: Micros, text: &str) -> OpError {
        let (address, dialled) = (self.peers[peer.0 as usize].address, self.dialled_text(peer));
        OpError::Unreachable(format!(
            "{dialled} was out of reach for {} s (last attempt: {text}{}); check the network, or raise peer_timeout",
            out_for / 1_000_000,
            self.tried_text(&address)
        ))
    }
}
