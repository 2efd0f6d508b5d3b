//! Bounds the number of connections before authentication ("strangers").
//!
//! Strangers cannot lock anybody out. When [`MAX_UNAUTHENTICATED`] connections wait for a greeting, or as many as half
//! of the files that the process may open, a new one replaces the oldest of the address or network that has the most.
//! So a crowd from one host displaces itself, and the program can open its files meanwhile. When the process still has
//! no descriptors left, the endpoint closes strangers, ignores its listeners for [`ACCEPT_PAUSE`], and tries again. The
//! listeners stay readable all that time, and watching them would keep the processor busy.
//!
//! At an open endpoint a greeting proves nothing. If its program can tell who has proved who it is ([`Shell::vouch`]),
//! lanes of all others count as those of strangers, whatever they have said. So do their UDP streams at the port.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use isthmus_datagram::crowd::displaced;
use isthmus_datagram::scarcity::{ACCEPT_PAUSE, share_of_files};
use isthmus_proto::{LaneId, LaneLoss, PeerId};

use super::Shell;
use crate::engine::Core;
use crate::lane::table::LaneTable;
use crate::lane::{Lane, Phase};
use crate::lock::Mutex;
use crate::log::{remedy, warn_sparingly};

/// Most unauthenticated connections of an endpoint. Count. An honest peer authenticates a round trip after it
/// connected.
pub(super) const MAX_UNAUTHENTICATED: usize = 1024;
/// Most strangers that are closed at once then, the oldest first. Count.
const CLOSED_AT_ONCE: usize = 64;
/// Only strangers that connected at least this long ago are closed then.
const SILENT: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unauthenticated {
    /// Incoming lanes, the oldest first: index, time and host. Lanes that are authenticated or have ended since are
    /// removed when they get to the front.
    arrivals: VecDeque<(usize, Instant, Option<IpAddr>)>,
    /// The peers that the program has vouched for; `None` if the greeting authenticates a peer.
    vouched: Option<HashSet<PeerId>>,
}

impl Unauthenticated {
    /// Whether a lane of this peer, which has greeted, is authenticated.
    pub(super) fn vouches_for(&self, peer: Option<PeerId>) -> bool {
        self.vouched.as_ref().is_none_or(|known| peer.is_some_and(|peer| known.contains(&peer)))
    }
}

/// Most unauthenticated connections where the process may have so many files open.
fn most(files: Option<u64>) -> usize {
    share_of_files(files, 2, MAX_UNAUTHENTICATED)
}

/// Whether an error of accept(2) concerns only the one connection, which is gone, and not this host.
fn is_of_one(error: &io::Error) -> bool {
    const OF_ONE: [i32; 9] = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::EPROTO,
        libc::ENETDOWN,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ];
    error.raw_os_error().is_some_and(|code| OF_ONE.contains(&code))
}

/// Whether the lane that came in at `since` is unauthenticated. A later lane may have its index by now.
fn is_unauthenticated(lanes: &LaneTable, index: usize, since: Instant) -> bool {
    let lane = lanes.get(index);
    let is_stranger = |lane: &Lane| lane.is_ungreeted() || lane.phase() == Phase::Open && !lane.vouched;
    lane.is_some_and(|lane| is_stranger(lane) && lane.since <= since)
}

impl Shell {
    /// Enters a lane that came in.
    pub(super) fn enter_unauthenticated(&mut self, index: usize) {
        self.forget_known();
        let host = self.lanes.get(index).and_then(|lane| lane.carrier.host());
        self.unauthenticated.arrivals.push_back((index, Instant::now(), host));
    }

    /// Makes room for one more stranger.
    pub(super) fn make_room_for_unauthenticated(&mut self, core: &Mutex<Core>) {
        let most = most(rustix::process::getrlimit(rustix::process::Resource::Nofile).current);
        if self.strangers() >= most {
            warn_sparingly!(
                "{most} connections have not said who they are; the oldest is closed for a new one"
            );
            self.close_an_unauthenticated(Duration::ZERO, core);
        }
    }

    /// From now on, the program vouches for the peers that have proved who they are. It keeps no number of another peer
    /// that is lost, so the engine may use these again.
    pub(crate) fn await_proof(&mut self, core: &Mutex<Core>) {
        self.unauthenticated.vouched.get_or_insert_default();
        core.lock().engine.reuse_entries();
    }

    /// This peer has proved to the program who it is.
    pub(crate) fn vouch(&mut self, peer: PeerId, core: &Mutex<Core>) {
        let Some(known) = &mut self.unauthenticated.vouched else { return };
        known.insert(peer);
        let mut guard = core.lock();
        guard.engine.vouch_for(peer);
        for index in 0..self.lanes.end() {
            let of_peer = guard.engine.lane_peer(LaneId(index as u32)) == Some(peer);
            let lane = self.lanes.get_mut(index).filter(|lane| of_peer && !lane.vouched);
            let Some(lane) = lane else { continue };
            lane.vouched = true;
            lane.carrier.admitted(&mut self.carriers);
        }
    }

    /// The number of unauthenticated lanes.
    fn strangers(&mut self) -> usize {
        if self.unauthenticated.vouched.is_none() {
            return self.lanes.ungreeted();
        }
        let Self { unauthenticated, lanes, .. } = self;
        unauthenticated.arrivals.retain(|(index, since, _)| is_unauthenticated(lanes, *index, *since));
        unauthenticated.arrivals.len()
    }

    /// Closes the stranger that [`displaced`] names, if it connected at least `silent` ago. False if there is none.
    fn close_an_unauthenticated(&mut self, silent: Duration, core: &Mutex<Core>) -> bool {
        let Self { unauthenticated, lanes, .. } = self;
        unauthenticated.arrivals.retain(|(index, since, _)| is_unauthenticated(lanes, *index, *since));
        let arrivals = unauthenticated.arrivals.iter().map(|&(index, since, host)| ((index, since), host));
        let Some((index, since)) = displaced(arrivals) else { return false };
        if since.elapsed() < silent {
            return false;
        }
        self.lose(index, &LaneLoss::Closed, core);
        true
    }

    /// Removes lanes that are no longer strangers from the front.
    fn forget_known(&mut self) {
        while let Some((index, since, _)) = self.unauthenticated.arrivals.front() {
            if is_unauthenticated(&self.lanes, *index, *since) {
                return;
            }
            self.unauthenticated.arrivals.pop_front();
        }
    }

    /// A connection could not be accepted. True if it is worth trying the next one.
    pub(super) fn cannot_accept(&mut self, error: &io::Error, core: &Mutex<Core>) -> bool {
        if is_of_one(error) {
            return true;
        }
        let closed = (0..CLOSED_AT_ONCE).take_while(|_| self.close_an_unauthenticated(SILENT, core)).count();
        warn_sparingly!(
            "cannot accept a lane: {error}{}. Tried again every {} ms; {closed} connections that had not said who they are \
             were closed",
            remedy(error).map(|remedy| format!("; {remedy}")).unwrap_or_default(),
            ACCEPT_PAUSE.as_millis()
        );
        self.listeners.pause(&self.poller);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_at_most_half_of_the_descriptors() {
        assert_eq!([None, Some(1 << 20), Some(2048)].map(most), [MAX_UNAUTHENTICATED; 3]);
        assert_eq!([Some(1024), Some(256), Some(0)].map(most), [512, 128, 1]);
    }
}
