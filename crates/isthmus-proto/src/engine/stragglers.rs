//! Stragglers: fragments that a lane holds for too long, lanes that have stopped, and paths that were cut.
//!
//! TCP repairs its losses by itself. But a packet that is lost again and again, or at the end of the data, waits for
//! timers that double each time; on a path that was cut for a while, every packet does. So a fragment that takes much
//! longer than others goes out once more on a lane that moves, and the receiver drops the duplicate. A lane that stays
//! stuck while others move is given up. If nothing moves at all, new lanes are dialled (`probe.rs`).
//!
//! A fragment on a lane with a rate limit is not late while the limit may be what it waits for.
//!
//! This is for TCP lanes with bulk data to far peers. A UDP lane repairs its losses itself.

use isthmus_path::pacing;

use super::probe::Probes;
use super::state::{LaneState, Load, Micros};
use super::transmit::FRAGMENT_EXPRESS;
use super::{Action, Decision, Engine, LaneId};
use crate::PeerId;

/// A fragment is late once another has arrived that was sent this much later. Round trips; one leaves the lane time to
/// repair a loss.
const BEHIND: Micros = 1;
/// The same as [`BEHIND`], if other data could be sent instead of the copy. Round trips.
const BEHIND_BESIDE: Micros = 2;
/// With nothing else to send, a fragment is late after this many times the usual time of a fragment.
const TIMES: Micros = 2;
/// Margin over a round trip before a fragment counts as late. Microseconds; it covers delayed acknowledgements.
const SLACK_US: Micros = 20_000;
/// A copy was in vain if the fragment is acknowledged within a round trip after it, or within the usual time divided by
/// this: then the original had arrived.
const VAIN_PART: Micros = 2;
/// Increase of the caution after a copy in vain. Time limits are multiplied by 1 + caution.
const CAUTION_STEP: f64 = 0.25;
/// Factor of the caution after a copy in vain, before the increase by [`CAUTION_STEP`].
const CAUTION_GROWTH: f64 = 1.25;
/// Factor of the caution after a copy that helped.
const CAUTION_DECAY: f64 = 0.8;
/// Highest caution: a fragment then counts as late after 16 times as long.
const MAX_CAUTION: f64 = 15.0;
/// Longest usual time of a fragment, and longest patience. Microseconds.
const MAX_PATIENCE_US: Micros = 4_000_000;
/// Oldest fragments that are searched for late ones. Count; it bounds the time of a search.
const LOOK_THROUGH: usize = 1024;
/// Copies of a fragment before it is left to its lane. Count.
const TRIES: u8 = 4;
/// A lane is given up if it has not moved for at least this time while others move. Microseconds.
const STUCK_US: Micros = 1_000_000;
/// Such a lane has also not moved for at least this many times the patience.
const STUCK_TIMES: Micros = 3;
/// Shortest pause between two checks of a peer. Microseconds.
const CHECK_US: Micros = 10_000;

/// The times that fragments to one peer take, and the probes of the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stragglers {
    /// Usual time between sending a fragment and its acknowledgement. Microseconds.
    usual_us: Micros,
    /// Time at which a fragment was last acknowledged, or sent while none was unacknowledged.
    pub(super) heard_at: Micros,
    /// The latest sending time of all fragments that have arrived.
    newest: Micros,
    check_at: Option<Micros>,
    /// Grows with copies in vain. Every time limit is multiplied by 1 + caution.
    caution: f64,
    /// No fragment can be late before this time.
    pub(super) scan_at: Micros,
    pub(super) probes: Probes,
}

impl Stragglers {
    /// A fragment that was sent once took this long.
    fn on_first_ack(&mut self, took: Micros) {
        let usual = if self.usual_us == 0 { took } else { (7 * self.usual_us + took) / 8 };
        self.usual_us = usual.min(MAX_PATIENCE_US);
    }

    /// A fragment that was sent again was acknowledged this long after its last copy.
    fn on_copy_ack(&mut self, took: Micros, rtt_us: Micros) {
        let in_vain = took < rtt_us.max(self.usual_us / VAIN_PART);
        let caution =
            if in_vain { CAUTION_GROWTH * self.caution + CAUTION_STEP } else { CAUTION_DECAY * self.caution };
        self.caution = caution.min(MAX_CAUTION);
    }

    /// A time limit, multiplied by 1 + caution. Microseconds.
    fn cautious(&self, us: Micros) -> Micros {
        ((1.0 + self.caution) * us as f64) as Micros
    }

    /// Time after which a fragment counts as late, without caution. `backlog_us` is the time that it may wait for the
    /// rate limit of its lane. Microseconds.
    fn patience(&self, rtt_us: Micros, backlog_us: Micros) -> Micros {
        (TIMES * self.usual_us).min(MAX_PATIENCE_US).max(rtt_us + rtt_us / 4 + SLACK_US + backlog_us)
    }
}

impl Engine {
    /// Tells the time. The shell calls this before it asks what to send.
    pub fn set_clock(&mut self, now: Micros) {
        self.clock = self.clock.max(now);
    }

    /// The latest time that the shell told.
    pub fn clock(&self) -> Micros {
        self.clock
    }

    /// A fragment was acknowledged. This lane sent it last, at `sent_at`, as copy number `tries`; 0 is the original.
    pub(super) fn on_fragment_acked(&mut self, peer: PeerId, lane: LaneId, sent_at: Micros, tries: u8) {
        let now = self.clock;
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.moved_at = now;
        }
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        if let Some(stragglers) = &mut connection.stragglers {
            stragglers.heard_at = now;
            let took = now.saturating_sub(sent_at);
            if tries == 0 {
                stragglers.newest = stragglers.newest.max(sent_at);
                stragglers.on_first_ack(took);
            } else {
                stragglers.on_copy_ack(took, rtt_us);
            }
        }
    }

    /// The longest time that a fragment may wait for the rate limit of a lane to this peer. Microseconds.
    fn backlog_us(&self, peer: PeerId) -> Micros {
        let limit = |lane: &LaneId| self.lanes.get(lane.0 as usize)?.limit;
        self.peers[peer.0 as usize].lanes().iter().filter_map(limit).min().map_or(0, pacing::backlog_us)
    }

    /// Fragments were sent: schedules the first check for late ones.
    pub(super) fn schedule_straggler_check(&mut self, peer: PeerId) {
        let (now, backlog_us) = (self.clock, self.backlog_us(peer));
        let connection = self.connection(peer);
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let Some(stragglers) = &mut connection.stragglers else { return };
        if stragglers.check_at.is_none() {
            let at = now + stragglers.patience(rtt_us, backlog_us);
            stragglers.heard_at = now;
            stragglers.check_at = Some(at);
            self.timers.insert((at, peer));
        }
    }

    /// The oldest fragment that another lane has held for too long, if this lane is to send it again. `beside` says
    /// that other data could go instead.
    pub(super) fn find_straggler(&mut self, peer: PeerId, lane: LaneId, beside: bool) -> Option<u64> {
        let now = self.clock;
        let scan_at = self.peers[peer.0 as usize].connection.as_ref()?.stragglers.as_ref()?.scan_at;
        if now < scan_at {
            return None;
        }
        let backlog_us = self.backlog_us(peer);
        let connection = self.peers[peer.0 as usize].connection.as_mut()?;
        let stragglers = connection.stragglers.as_mut()?;
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let (patience, newest) = (stragglers.patience(rtt_us, backlog_us), stragglers.newest);
        let moved_at = self.lanes.get(lane.0 as usize)?.moved_at;
        if now > moved_at + TIMES * patience {
            return None;
        }
        let behind = stragglers.cautious(SLACK_US + rtt_us * if beside { BEHIND_BESIDE } else { BEHIND });
        let due = stragglers.cautious(patience);
        let lanes = &connection.lanes;
        let express = lanes.len() > 1 && lanes.first() == Some(&lane);
        // A probe that got through sends again everything that was sent before it.
        let before = stragglers.probes.sends_before(lane);
        let is_straggler = |flight: &super::state::Flight| {
            let short = match flight.load {
                Load::Kept { .. } | Load::Inline(_) => true,
                Load::Piece { len, .. } => u64::from(len) <= FRAGMENT_EXPRESS,
            };
            let overtaken = newest > flight.sent_at + (behind << flight.tries) + backlog_us;
            let awaited = !beside && now > flight.sent_at + (due << flight.tries);
            flight.lane != lane
                && (flight.sent_at < before || flight.tries < TRIES && (overtaken || awaited))
                && (short || !express)
        };
        let found = connection.window.iter_mut().take(LOOK_THROUGH).find(|(_, flight)| is_straggler(flight));
        let Some((seq, flight)) = found else {
            if !express {
                stragglers.scan_at = now + rtt_us / 16;
            }
            return None;
        };
        (flight.sent_at, flight.tries) = (now, flight.tries + 1);
        self.counters.fragments_late += 1;
        Some(seq)
    }

    /// Checks whether fragments, lanes or the whole path have stopped, if a check is due.
    pub(super) fn check_stragglers(&mut self, now: Micros, peer: PeerId) {
        let backlog_us = self.backlog_us(peer);
        let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { return };
        let rtt_us = connection.rtt_us.unwrap_or(0);
        let Some(stragglers) = &mut connection.stragglers else { return };
        let writes = |lane: &LaneId| self.lanes.get(lane.0 as usize).is_some_and(|lane| !lane.writable);
        let waits = !connection.window.is_empty();
        if stragglers.check_at.take_if(|at| *at <= now).is_none()
            || !(waits || connection.lanes.iter().any(writes))
            || connection.trouble.failed.is_some()
        {
            return;
        }
        stragglers.scan_at = 0;
        let (patience, silent) =
            (stragglers.patience(rtt_us, backlog_us), now.saturating_sub(stragglers.heard_at));
        let until = if waits { self.probe_if_silent(peer, now, silent, patience) } else { None };
        let at = until.unwrap_or_else(|| {
            self.give_up_stuck(now, peer, patience);
            now + (patience / 8).max(CHECK_US)
        });
        if let Some(stragglers) = &mut self.connection(peer).stragglers {
            stragglers.check_at = Some(at);
            self.timers.insert((at, peer));
        }
        self.kick(peer);
    }

    /// Gives up a lane that has been full for long while others move: it will not recover soon.
    fn give_up_stuck(&mut self, now: Micros, peer: PeerId, patience: Micros) {
        let most = (STUCK_TIMES * patience).max(STUCK_US);
        let moved = |lane: &LaneId| self.lanes.get(lane.0 as usize).map(|lane| lane.moved_at);
        let others = self.peers[peer.0 as usize].lanes().iter().filter_map(moved).max().unwrap_or(0);
        for lane in self.connection(peer).lanes.clone() {
            let record = &mut self.lanes[lane.0 as usize];
            let since = record.moved_at.max(record.filled_at);
            let silent = now.saturating_sub(since);
            let behind = others > since && silent > most;
            if record.state == LaneState::Open && !record.writable && behind {
                record.filled_at = now;
                self.actions.push_back(Action::Abandon { lane });
                self.counters.lanes_stuck += 1;
                return self.decide(peer, Decision::Stuck { silent_ms: silent / 1_000 });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_vain_make_the_next_wait_and_those_that_help_do_not() {
        const RTT_US: Micros = 100_000;
        let mut stragglers = Stragglers::default();
        stragglers.on_first_ack(3 * RTT_US);
        stragglers.on_copy_ack(4 * RTT_US, RTT_US);
        assert_eq!(stragglers.cautious(RTT_US), RTT_US, "it helped");
        (0..10).for_each(|_| stragglers.on_copy_ack(RTT_US / 2, RTT_US));
        let after = stragglers.cautious(RTT_US);
        assert!((8 * RTT_US..12 * RTT_US).contains(&after), "{after}");
        (0..100).for_each(|_| stragglers.on_copy_ack(RTT_US / 2, RTT_US));
        assert_eq!(stragglers.cautious(RTT_US), 16 * RTT_US, "there is a most");
        (0..40).for_each(|_| stragglers.on_copy_ack(4 * RTT_US, RTT_US));
        assert!(stragglers.cautious(RTT_US) < RTT_US + 1_000, "{}", stragglers.cautious(RTT_US));
    }
}
