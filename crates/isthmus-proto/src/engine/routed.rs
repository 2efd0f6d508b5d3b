//! Peers in other subnets and autonomous systems, whose lanes lead through routers.
//!
//! An endpoint knows no map, only a list of routers. It gives each lane that leaves its subnet to one of them, at
//! random among those that carry the fewest of the peer's lanes. The router reads the lane's Hello and relays the rest.
//! All promises of an endpoint hold across routers too: the fragments that a dead router held are sent again on another
//! lane. A router may also hang, or one far behind it may. No closed connection tells of that. So the engine pings a
//! routed lane that is in use and silent, and gives it up if it does not answer.

use std::net::SocketAddr;

use isthmus_wire::Address;
use isthmus_wire::frame::{self, RefuseReason};

use super::state::{LaneState, Micros};
use super::{Action, Engine, LaneId};
use crate::admission::ADMITS_KNOWN;
use crate::memory::Memory;
use crate::{OpError, PeerId};

/// Pause between two checks of routed lanes in use. Microseconds; a small part of [`SILENCE_US`].
const SILENCE_CHECK_US: Micros = 250_000;
/// Silence after a ping at which a lane is given up. Microseconds; several round trips of any path.
const SILENCE_US: Micros = 2_000_000;
/// Time for which a failed router is avoided while there are others. Microseconds.
const AVOID_US: Micros = 2_000_000;

/// The routers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Routers {
    /// Each router's locator, and the time until which it is avoided.
    known: Vec<(SocketAddr, Micros)>,
    random: u64,
}

impl Routers {
    pub(super) fn new(known: &[SocketAddr], seed: u64) -> Self {
        Self { known: known.iter().map(|at| (*at, 0)).collect(), random: seed | 1 }
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Chooses a router at random among those that are not avoided and carry the fewest of the peer's lanes. So a
    /// peer's lanes use several routers. `lanes` has the router of each of these lanes. If all routers are avoided, it
    /// is the one whose time ends first.
    fn choose(&mut self, now: Micros, lanes: &[usize]) -> Option<usize> {
        // xorshift64 (Marsaglia 2003): good enough, as the choice only has to vary.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let load = |router: usize| lanes.iter().filter(|lane| **lane == router).count();
        let mut fit: Vec<usize> = (0..self.known.len()).filter(|i| self.known[*i].1 <= now).collect();
        let least = fit.iter().map(|router| load(*router)).min();
        fit.retain(|router| Some(load(*router)) == least);
        if fit.is_empty() {
            return (0..self.known.len()).min_by_key(|i| self.known[*i].1);
        }
        Some(fit[(self.random % fit.len() as u64) as usize])
    }

    fn avoid(&mut self, router: usize, now: Micros) {
        if let Some((_, until)) = self.known.get_mut(router) {
            *until = now + AVOID_US;
        }
    }

    /// All routers, as text for errors.
    fn listed(&self) -> String {
        let names: Vec<_> = self.known.iter().map(|(at, _)| at.to_string()).collect();
        names.join(", ")
    }
}

impl Engine {
    /// Whether lanes to this address lead through routers. An address that a user typed without ids counts as near.
    pub(super) fn is_routed(&self, address: &Address) -> bool {
        let own = self.config.address;
        let typed = address.is_wildcard() && address.as_id.0 == 0 && address.subnet.0 == 0;
        !typed && (address.as_id, address.subnet) != (own.as_id, own.subnet)
    }

    pub(super) fn has_routers(&self) -> bool {
        !self.routers.is_empty()
    }

    /// The router for a new lane to `address`: its locator and its index. `None` if no router is needed.
    pub(super) fn router_for(&mut self, peer: PeerId, address: &Address) -> Option<(SocketAddr, usize)> {
        if !self.is_routed(address) {
            return None;
        }
        let of_peer = |(_, lane): (usize, &super::Lane)| lane.router.filter(|_| lane.peer == Some(peer));
        let lanes: Vec<usize> = self.lanes.iter().filter_map(of_peer).collect();
        let router = self.routers.choose(self.clock, &lanes)?;
        Some((self.routers.known[router].0, router))
    }

    /// Names a lane's router, as a prefix for why the lane failed.
    pub(super) fn router_text(&self, router: Option<usize>) -> String {
        router.map_or_else(String::new, |router| format!("router {}: ", self.routers.known[router].0))
    }

    /// Prefers other routers for a while, since a lane through this one ended.
    pub(super) fn avoid_router(&mut self, now: Micros, router: Option<usize>) {
        if let Some(router) = router {
            self.routers.avoid(router, now);
        }
    }

    /// A router, or the peer behind it, refuses a lane. If another router or a later attempt may do better, it is
    /// dialled again. If all routers say that there is no route, the peer has failed.
    pub(super) fn on_routed_refuse(
        &mut self,
        lane: LaneId,
        peer: PeerId,
        refuse: &frame::Refuse,
        mem: &mut dyn Memory,
    ) {
        let address = self.peers[peer.0 as usize].address;
        let router = self.lanes[lane.0 as usize].router;
        let own = self.config.address;
        let (text, forever) = match RefuseReason::from_code(refuse.reason) {
            Some(RefuseReason::NoRoute) => (
                format!(
                    "knows no way to AS {} subnet {}; complete its route map",
                    address.as_id.0, address.subnet.0
                ),
                true,
            ),
            Some(RefuseReason::Denied) => (
                format!(
                    "lets AS {} subnet {} not talk to AS {}; see `admits` in the configuration of the routers",
                    own.as_id.0, own.subnet.0, address.as_id.0
                ),
                true,
            ),
            Some(RefuseReason::Loop) => ("the route maps lead in a circle".to_owned(), true),
            Some(RefuseReason::Absent) => ("nobody listens at the peer's locator".to_owned(), false),
            Some(RefuseReason::Full) => ("takes no more lanes, or is being drained".to_owned(), false),
            Some(RefuseReason::Unreached) => ("cannot reach the next hop".to_owned(), false),
            _ => return self.on_peer_refuse(lane, peer, refuse, mem),
        };
        let text = format!("{}{text}", self.router_text(router));
        self.close_lane(lane);
        self.avoid_router(self.clock, router);
        let routers = self.routers.known.len() as u32;
        let connection = self.connection(peer);
        if refuse.reason == RefuseReason::Absent as u8 {
            connection.trouble.refusals += 1;
        }
        connection.trouble.hopeless = if forever { connection.trouble.hopeless + 1 } else { 0 };
        connection.trouble.last_failure.clone_from(&text);
        // Every router has answered.
        if connection.trouble.hopeless >= routers && connection.lanes.iter().all(|other| *other == lane) {
            let error = OpError::Unreachable(format!("no router leads to {address} (last answer: {text})"));
            self.fail_peer(peer, error, mem);
        }
    }

    /// The peer itself refuses a lane, directly or through routers.
    pub(super) fn on_peer_refuse(
        &mut self,
        lane: LaneId,
        peer: PeerId,
        refuse: &frame::Refuse,
        mem: &mut dyn Memory,
    ) {
        self.close_lane(lane);
        let address = self.peers[peer.0 as usize].address;
        let error = match RefuseReason::from_code(refuse.reason) {
            Some(RefuseReason::Version) => self.other_version(&address, refuse.version),
            Some(RefuseReason::Stranger) => OpError::PeerGone(format!(
                "the process at {address} has ended and another one listens at its port; connect to that one anew"
            )),
            Some(RefuseReason::Plain) => OpError::Unreachable(format!(
                "the endpoint at {address} takes encrypted lanes only: set encrypt to always \
                 (FI_ISTHMUS_ENCRYPT=always), or, if it has tls set, set tls to required here too, with \
                 tls_certificate, tls_key and tls_authorities"
            )),
            Some(RefuseReason::Unproved) => OpError::Unreachable(format!(
                "the endpoint at {address} {ADMITS_KNOWN}; give this one that address \
                 (fi_getname), or set admission to open at both ends (FI_ISTHMUS_ADMISSION=open)"
            )),
            Some(RefuseReason::Subnet) if self.is_routed(&address) => OpError::Unreachable(format!(
                "the endpoint at {address} knows no router back to AS {} subnet {}; set routers there too",
                self.config.address.as_id.0, self.config.address.subnet.0
            )),
            Some(RefuseReason::Subnet) => OpError::Unreachable(format!(
                "the endpoint at {} is not in AS {} subnet {} as this one is; give both sides the same as_id and \
                 subnet",
                address.locator, self.config.address.as_id.0, self.config.address.subnet.0
            )),
            _ => OpError::PeerGone(format!(
                "{address} refuses the connection: it is closing or gave up on this process"
            )),
        };
        self.fail_peer(peer, error, mem);
    }

    /// The routers that were tried, as text for the error of a peer that stays out of reach.
    pub(super) fn tried_text(&self, address: &Address) -> String {
        if self.is_routed(address) {
            format!("; routers tried: {}", self.routers.listed())
        } else {
            String::new()
        }
    }

    /// A routed or multi-rail peer is in use: schedules checks of its lanes.
    pub(super) fn schedule_silence_check(&mut self, peer: PeerId) {
        let address = self.peers[peer.0 as usize].address;
        if !self.is_routed(&address) && !self.has_rails(peer) {
            return;
        }
        let at = self.clock + SILENCE_CHECK_US;
        let connection = self.connection(peer);
        connection.used = true;
        if connection.silence_check_at.is_none() {
            connection.silence_check_at = Some(at);
            self.timers.insert((at, peer));
        }
    }

    /// Pings the silent lanes of a peer, and gives up those that stay silent.
    pub(super) fn check_silence(&mut self, now: Micros, peer: PeerId) {
        let Some(connection) = self.peers[peer.0 as usize].connection.as_mut() else { return };
        if connection.silence_check_at.take_if(|at| *at <= now).is_none()
            || connection.trouble.failed.is_some()
        {
            return;
        }
        // The last use of a lane may be later than the last frame that it brought. So go on while fragments are
        // unacknowledged.
        let mut watched = std::mem::take(&mut connection.used) || !connection.window.is_empty();
        for lane in connection.lanes.clone() {
            let record = &mut self.lanes[lane.0 as usize];
            if std::mem::take(&mut record.heard) {
                record.heard_at = now;
            }
            let heard_at = record.heard_at;
            if record.state != LaneState::Open || heard_at == now {
                watched |= record.pinged_at.is_some();
                continue;
            }
            match record.pinged_at {
                Some(at) if now >= at.max(heard_at) + SILENCE_US => {
                    self.actions.push_back(Action::Abandon { lane });
                    watched = true;
                }
                Some(_) => watched = true,
                None if watched => {
                    record.pinged_at = Some(now);
                    record.control.push_back(frame::Ping { id: 0 }.into());
                    self.make_ready(lane);
                }
                None => {}
            }
        }
        if watched {
            let connection = self.connection(peer);
            connection.silence_check_at = Some(now + SILENCE_CHECK_US);
            self.timers.insert((now + SILENCE_CHECK_US, peer));
        }
    }
}
