//! Ends lanes: closed by us, by the other end, or because they took too long.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use isthmus_proto::{LaneId, LaneLoss};

use super::{CARRIERS, READS_PER_TURN, Shell};
use crate::carrier::{Cause, LEFT_RESENT, OTHER_ROUTE_AFTER, STUCK_RESENT, Stuck, Transfer, limit_segments};
use crate::engine::Core;
use crate::lane::{Lane, Phase, fill};
use crate::lock::Mutex;
use crate::log::{debug_log, warn_refused, warn_sparingly};
use crate::own_addresses::is_lost;

/// Longest time for a lane to be connected, or to write the rest of its data.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// Longest time for an incoming lane to authenticate. An honest peer sends its Hello at once; TCP retransmits it after
/// 1 s and 3 s if packets are lost.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// A closed lane waits this long for its peer to close it, too.
const HALF_CLOSED_TIME: Duration = Duration::from_secs(1);

impl Shell {
    /// Closes our side of a lane once everything is written.
    pub(super) fn flush(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if lane.phase() == Phase::HalfClosed {
            return;
        }
        self.lanes.enter(index, Phase::Flushing);
        if let Some(lane) = self.lanes.get_mut(index)
            && !lane.has_unwritten()
        {
            self.spares.lend_outgoing(lane);
            fill(lane, LaneId(index as u32), &mut core.lock());
            if lane.has_unwritten() {
                self.write(index, core);
                return;
            }
            lane.carrier.finish(&mut self.carriers);
            self.lanes.enter(index, Phase::HalfClosed);
        }
    }

    /// Reads and drops what still comes on a closing lane.
    pub(super) fn discard(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        self.spares.lend_staging(lane);
        let room = &mut lane.staging;
        let mut piece = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
        for _ in 0..READS_PER_TURN {
            // SAFETY: the piece is the lane's own staging buffer.
            match unsafe { lane.carrier.read(&mut piece, &mut self.carriers) } {
                Transfer::Bytes(n) if n > 0 => {}
                Transfer::Blocked => return,
                Transfer::Bytes(_) | Transfer::Failed(_) => return self.lose(index, &LaneLoss::Closed, core),
            }
        }
    }

    /// Ends a lane, and tells the engine.
    pub(super) fn lose(&mut self, index: usize, loss: &LaneLoss, core: &Mutex<Core>) {
        let Some(mut lane) = self.lanes.take(index) else { return };
        self.carriers.end_flow(index, &lane.carrier);
        lane.carrier.release(&mut self.carriers);
        self.passes.forget(index);
        self.borrowing.retain(|other| *other != index);
        self.memory.forget(index, &lane);
        debug_log!("lane {index} ended: {loss:?}");
        if let Some(fd) = lane.carrier.fd() {
            let _ = self.poller.remove(fd);
        }
        let mut guard = core.lock();
        let now = guard.now();
        let Core { engine, memory, .. } = &mut *guard;
        engine.lane_lost(now, LaneId(index as u32), loss, memory);
    }

    /// Ends all lanes now, even those with data to send. From here on, nothing reads or writes the program's memory:
    /// lanes by UDP copy what they have borrowed, and lanes by shared memory withdraw it.
    pub(crate) fn end(&mut self, core: &Mutex<Core>) {
        for index in 0..self.lanes.end() {
            self.lose(index, &LaneLoss::Closed, core);
        }
        self.carriers.fireflies.iter_mut().for_each(|fireflies| fireflies.finish());
        self.ended = true;
    }

    /// Announces the flows of lanes that are due, and sends what waits to be announced.
    pub(crate) fn announce_flows(&mut self) {
        let due = self.carriers.fireflies.as_ref().map_or_else(Vec::new, |fireflies| fireflies.due());
        for index in due {
            let Some(lane) = self.lanes.get(index) else { continue };
            if lane.carrier.is_answered(&self.carriers) {
                let counts = lane.carrier.counts(&self.carriers);
                self.carriers.fireflies.iter_mut().for_each(|fireflies| fireflies.tell(index, counts));
            }
        }
        self.carriers.fireflies.iter_mut().for_each(|fireflies| fireflies.send());
    }

    /// Ends TCP lanes that stand still although their peer's host answers (`carrier/segments.rs`).
    pub(crate) fn end_stuck(&mut self, core: &Mutex<Core>) {
        self.carriers.begin_segment_look();
        for index in 0..self.lanes.end() {
            let Some(lane) = self.lanes.get(index).filter(|lane| lane.phase() == Phase::Open) else {
                continue;
            };
            let (Some(stuck), Some(peer)) = (lane.carrier.stuck(LEFT_RESENT), lane.carrier.tcp_peer()) else {
                continue;
            };
            let is_left = core.lock().engine.is_left_by_peer(LaneId(index as u32));
            if !is_left && lane.carrier.stuck(STUCK_RESENT).is_none() {
                continue;
            }
            let judged = if is_left {
                Some(Cause::Ended)
            } else {
                // A peer that dialled us listens elsewhere, on the same host.
                let listens_at = if lane.dialled {
                    Some(peer)
                } else {
                    let told = core.lock().engine.lane_locator(LaneId(index as u32));
                    told.filter(|told| told.ip() == peer.ip())
                };
                listens_at.and_then(|at| self.carriers.judge_stuck(at, stuck))
            };
            let Some(cause) = judged else { continue };
            let text = self.tell_stuck(peer.ip(), stuck, cause);
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.carrier.discard();
            }
            self.lose(index, &LaneLoss::Broken(text), core);
        }
    }

    /// Ends lanes from addresses that this host has lost, and sends packets from others.
    pub(crate) fn leave_lost_addresses(&mut self, core: &Mutex<Core>) {
        // Most lanes share an address.
        let mut known = HashMap::new();
        let mut is_lost = |ip: IpAddr| *known.entry(ip).or_insert_with(|| is_lost(ip));
        let own = |lane: &Lane| lane.carrier.own_ip(&self.carriers);
        let ended: Vec<(usize, IpAddr)> = (0..self.lanes.end())
            .filter_map(|index| Some((index, own(self.lanes.get(index)?)?)))
            .filter(|(_, own)| is_lost(*own))
            .collect();
        let rebinds = self.carriers.bound_ip().is_some_and(&mut is_lost);
        for (index, own) in ended {
            warn_sparingly!("this host has lost the address {own}: its lanes are dialled again");
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.carrier.abort(&mut self.carriers);
            }
            self.lose(index, &LaneLoss::Left(format!("this host has lost the address {own}")), core);
        }
        if rebinds {
            self.rebind();
        }
    }

    /// Sends and receives packets at another address than the lost one from now on.
    fn rebind(&mut self) {
        if let Some(fd) = self.carriers.fd() {
            let _ = self.poller.remove(fd);
        }
        if let Err(error) = self.carriers.rebind() {
            warn_sparingly!("lanes by UDP cannot leave an address that this host has lost: {error}");
        }
        if let Some(fd) = self.carriers.fd()
            && let Err(error) = self.poller.add(fd, CARRIERS, false)
        {
            warn_refused!(&error, "lanes by UDP hear nothing more");
        }
    }

    /// Logs why a lane stands still. Incoming lanes have smaller segments, too, if large packets do not get through.
    fn tell_stuck(&self, peer: IpAddr, Stuck { segment, .. }: Stuck, cause: Cause) -> String {
        match cause {
            Cause::Size(limit) => {
                self.listeners.sockets().iter().for_each(|listener| limit_segments(listener, limit));
                let text = format!(
                    "packets with {segment} bytes of data seem not to reach {peer}, where small ones do: the path's MTU \
                     is probably smaller than the interface's, and nothing on it says so; lanes by TCP have segments of \
                     at most {limit} bytes for 10 minutes; lower the interface's MTU, or let ICMP \"fragmentation \
                     needed\" through"
                );
                warn_sparingly!("{text}");
                text
            }
            Cause::Ended => {
                let text = format!(
                    "a TCP connection with {peer} stands still, although {peer} answers new ones: something on the path, \
                     such as a firewall or a NAT, has ended it; Isthmus connects again"
                );
                warn_sparingly!("{text}");
                text
            }
        }
    }

    /// Ends lanes that take too long to come up or go down.
    pub(super) fn sweep(&mut self, core: &Mutex<Core>) {
        if self.lanes.unsettled() == 0 || self.swept.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.swept = Instant::now();
        for index in 0..self.lanes.end() {
            if self.lanes.get(index).is_some_and(|lane| lane.phase() == Phase::Settling) {
                self.settle(index, core);
            }
            self.give_up_route(index, core);
            let Some(lane) = self.lanes.get(index) else { continue };
            let limit = match lane.phase() {
                Phase::Open => continue,
                Phase::HalfClosed => HALF_CLOSED_TIME,
                _ if lane.is_ungreeted() => GREETING_TIME,
                // An attempt does not outlast the time in which a peer is given up.
                Phase::Settling => SETTLE_TIME.min(self.carriers.dial_patience()),
                Phase::Ungreeted | Phase::Flushing => SETTLE_TIME,
            };
            if lane.since.elapsed() > limit {
                let loss = match lane.target.as_deref().copied().filter(|_| lane.phase() == Phase::Settling) {
                    Some(_) if lane.carrier.awaits_first_answer() => {
                        let text = format!("silence for {} s {}", limit.as_secs(), LaneLoss::UNANSWERED);
                        LaneLoss::Silent { text, us: limit.as_micros() as u64 }
                    }
                    Some(target) => self.no_answer(limit, target),
                    None => LaneLoss::Closed,
                };
                self.lose(index, &loss, core);
            }
        }
    }

    /// Ends a lane whose host does not answer, if another route leads there.
    fn give_up_route(&mut self, index: usize, core: &Mutex<Core>) {
        let Some(lane) = self.lanes.get(index).filter(|lane| lane.phase() == Phase::Settling) else {
            return;
        };
        if let Some(target) = lane.target.as_deref().copied()
            && lane.since.elapsed() > OTHER_ROUTE_AFTER
            && self.carriers.has_other_route(target.0.ip())
        {
            let loss = self.no_answer(OTHER_ROUTE_AFTER, target);
            self.lose(index, &loss, core);
        }
    }

    fn no_answer(&mut self, after: Duration, (to, attempt): (SocketAddr, u32)) -> LaneLoss {
        let by = self.carriers.on_no_answer(to.ip(), attempt);
        // The peer was out of reach from the beginning of the attempt.
        LaneLoss::Silent {
            text: format!("no answer within {} s{by}", after.as_secs()),
            us: after.as_micros() as u64,
        }
    }
}
