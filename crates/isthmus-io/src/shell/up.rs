//! Brings lanes up: accepts or dials them, until each can carry data.

use std::io;
use std::net::{IpAddr, SocketAddr};

use isthmus_proto::{LaneId, LaneLoss};
use isthmus_wire::Key;

use super::Shell;
use crate::carrier::{Carrier, Neighbour, Sealing, Settled};
use crate::engine::Core;
use crate::lane::{Lane, Phase};
use crate::lane::{kind_of_loss, loss_of};
use crate::lock::Mutex;
use crate::log::{info_few, remedy, warn_refused};

/// Most lanes accepted in one pass. Count.
const ACCEPTS_PER_TURN: usize = 64;

impl Shell {
    pub(super) fn accept(&mut self, core: &Mutex<Core>) {
        (0..self.listeners.sockets().len()).for_each(|index| self.accept_at(index, core));
    }

    fn accept_at(&mut self, index: usize, core: &Mutex<Core>) {
        for _ in 0..ACCEPTS_PER_TURN {
            let (socket, from) = match self.listeners.sockets()[index].accept() {
                Ok((socket, from)) => (socket, from.as_socket().map(|from| from.ip())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if self.cannot_accept(&error, core) => continue,
                Err(_) => return,
            };
            if let Ok(carrier) = self.carriers.accept(socket, from) {
                self.take_up(carrier, core);
            }
        }
    }

    /// Accepts lanes that have no descriptor of their own. True if there were any.
    pub(super) fn accept_turned(&mut self, core: &Mutex<Core>) -> bool {
        let mut any = false;
        while let Some(carrier) = self.carriers.accept_turned() {
            any = true;
            let index = self.take_up(carrier, core);
            self.receive(index, core);
        }
        any
    }

    /// Adds an incoming lane. Returns its index.
    fn take_up(&mut self, carrier: Carrier, core: &Mutex<Core>) -> usize {
        self.make_room_for_unauthenticated(core);
        let id = core.lock().engine.lane_accepted();
        if self.install(id, Lane::new(carrier, false), core) {
            self.enter_unauthenticated(id.0 as usize);
            self.settle(id.0 as usize, core);
        }
        id.0 as usize
    }

    /// Adds a lane. False if that fails.
    fn install(&mut self, id: LaneId, lane: Lane, core: &Mutex<Core>) -> bool {
        let index = id.0 as usize;
        let added = match lane.carrier.fd() {
            Some(fd) => self.poller.add(fd, u64::from(id.0), lane.waits_to_write),
            None => Ok(()),
        };
        self.lanes.insert(index, lane);
        if let Err(error) = &added {
            self.lose(index, &loss_of(error), core);
        }
        added.is_ok()
    }

    pub(super) fn dial(&mut self, id: LaneId, locator: SocketAddr, key: &Key, core: &Mutex<Core>) {
        let attempt = self.carriers.attempt(locator.ip());
        let dialled = match self.carriers.dial(locator, key) {
            Err(error) => self.dial_without_port(error, id, locator, key, core),
            dialled => dialled,
        };
        match dialled {
            Ok(carrier) => {
                let mut lane = Lane::new(carrier, true);
                lane.target = Some(Box::new((locator, attempt)));
                if self.install(id, lane, core) {
                    self.settle(id.0 as usize, core);
                }
            }
            Err(error) => {
                warn_refused!(&error, "cannot connect to {locator}, and try again with pauses");
                let loss = self.loss_of_dial(&error, locator.ip(), attempt);
                let mut guard = core.lock();
                let now = guard.now();
                let Core { engine, memory, .. } = &mut *guard;
                engine.lane_lost(now, id, &loss, memory);
            }
        }
    }

    /// Goes on by UDP where TCP finds no local port for the first lane to a peer. A further lane can do without.
    fn dial_without_port(
        &mut self,
        error: io::Error,
        id: LaneId,
        locator: SocketAddr,
        key: &Key,
        core: &Mutex<Core>,
    ) -> io::Result<Carrier> {
        if error.kind() != io::ErrorKind::AddrNotAvailable || self.has_further_lanes(id, core) {
            return Err(error);
        }
        let Some(carrier) = self.carriers.dial_without_tcp(locator, key) else { return Err(error) };
        warn_refused!(
            &error,
            "cannot connect to {locator} by TCP, and use {} only",
            self.carriers.packets_name()
        );
        Ok(carrier)
    }

    /// Whether a lane's peer has another one that can carry data.
    fn has_further_lanes(&self, id: LaneId, core: &Mutex<Core>) -> bool {
        let guard = core.lock();
        let peer = guard.engine.lane_peer(id);
        let carries = |index: usize| {
            self.lanes.get(index).is_some_and(|lane| lane.phase() == Phase::Open)
                && guard.engine.lane_peer(LaneId(index as u32)) == peer
        };
        (0..self.lanes.end()).any(carries)
    }

    /// Why a lane to `host` could not be made. If the route may be the cause, the next attempt takes another one.
    fn loss_of_dial(&mut self, error: &io::Error, host: IpAddr, attempt: u32) -> LaneLoss {
        const ROUTES: [i32; 4] = [libc::ENETDOWN, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ETIMEDOUT];
        // What refuses a connection does not reset it: somebody took it.
        const ENDED: [io::ErrorKind; 4] = [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::UnexpectedEof,
        ];
        if ENDED.contains(&error.kind()) {
            return LaneLoss::Broken(format!("{error} {}", LaneLoss::UNANSWERED));
        }
        if let Some(remedy) = remedy(error) {
            return LaneLoss::Broken(format!("{error}; {remedy}"));
        }
        if error.raw_os_error().is_none_or(|errno| !ROUTES.contains(&errno)) {
            return kind_of_loss(error);
        }
        let by = self.carriers.on_no_answer(host, attempt);
        LaneLoss::Broken(format!("{error}{by}"))
    }

    /// Continues to bring a lane up. True once it can carry data.
    pub(super) fn settle(&mut self, index: usize, core: &Mutex<Core>) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        match lane.carrier.settle(index, &mut self.carriers) {
            Ok(Settled::Yes) => {}
            Ok(Settled::Not { until_writable }) => {
                self.wait_to_write(index, until_writable);
                return false;
            }
            Err(error) => {
                let loss = match lane.target.as_deref().copied() {
                    Some((to, attempt)) => self.loss_of_dial(&error, to.ip(), attempt),
                    None => loss_of(&error),
                };
                self.lose(index, &loss, core);
                return false;
            }
        }
        if let Some((to, attempt)) = lane.target.take().map(|target| *target)
            && lane.carrier.is_answered(&self.carriers)
        {
            self.carriers.on_answer(to.ip(), attempt);
        }
        let id = LaneId(index as u32);
        let rtt_us = lane.carrier.rtt_us(&self.carriers);
        let (fills_path, bulk) = (lane.carrier.fills_path(), lane.carrier.bulk(&self.carriers));
        let (kind, sealing) = (lane.carrier.kind(), lane.carrier.sealing(rtt_us, &self.carriers));
        let neighbour = lane.carrier.neighbour(&self.carriers);
        let name = lane.carrier.name(&self.carriers);
        let (how, rtt) = (if lane.dialled { "dialled" } else { "accepted" }, rtt_us.unwrap_or(0));
        // Strangers connect as often as they like.
        info_few!(
            "lane {index}, {how}, goes by {name}: round trip {rtt} us; transport {}",
            self.carriers.transport()
        );
        self.carriers.tell_if_plain(&lane.carrier);
        let mut guard = core.lock();
        match neighbour {
            Neighbour::Of(as_id) => guard.engine.set_lane_as(id, as_id),
            Neighbour::Router => guard.engine.trust_lane(id),
            Neighbour::Unknown => {}
        }
        if let Some(host) = lane.carrier.host().filter(|_| !lane.dialled) {
            guard.engine.set_lane_origin(id, host);
        }
        guard.engine.set_lane_kind(id, kind);
        let seals = match sealing {
            Sealing::No => false,
            Sealing::Outside => guard.engine.lane_leaves_subnet(id),
            Sealing::Yes => true,
            Sealing::Private => {
                guard.engine.set_lane_private(id);
                false
            }
        };
        if lane.dialled && seals {
            guard.engine.seal_lane(id);
        }
        if fills_path {
            guard.engine.set_lane_fills_path(id);
            guard.engine.set_lane_bulk(id, bulk);
        }
        if let Some(rtt_us) = rtt_us {
            guard.engine.set_lane_rtt(id, rtt_us);
        }
        guard.engine.set_lane_limit(id, lane.carrier.tcp_limit());
        let phase = if lane.dialled { Phase::Open } else { Phase::Ungreeted };
        if lane.dialled {
            let now = guard.now();
            guard.engine.lane_connected(now, id);
            self.carriers.begin_flow(index, &lane.carrier);
        }
        drop(guard);
        self.lanes.enter(index, phase);
        self.look_at(index);
        true
    }
}
