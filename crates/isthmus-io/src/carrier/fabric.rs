//! Lanes that begin as TCP connections and may move to a site's fabric.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use isthmus_fabric::{Hubs, Meeting, Met, Pipe, Piped};

use super::tcp::{Paths, TcpLane};
use super::{Settled, Transfer};

/// A lane whose neighbour may offer, or be offered, a fabric.
#[derive(Debug)]
pub(crate) struct FabricLane {
    tcp: TcpLane,
    state: State,
}

#[derive(Debug)]
enum State {
    Connecting,
    Meeting(Meeting),
    /// It stays TCP: to become that by [`FabricLane::into_tcp`].
    Straight,
    /// The connection is only its sign of life.
    Moved(Pipe),
}

impl FabricLane {
    /// A lane that is being connected.
    pub(super) fn dialled(tcp: TcpLane) -> Self {
        Self { tcp, state: State::Connecting }
    }

    /// A lane that came in.
    pub(super) fn accepted(tcp: TcpLane) -> Self {
        Self { tcp, state: State::Meeting(Meeting::of_accepted()) }
    }

    /// The connection alone.
    pub(super) fn into_tcp(self) -> TcpLane {
        self.tcp
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.tcp.fd()
    }

    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp.peer_ip()
    }

    pub(super) fn has_moved(&self) -> bool {
        matches!(self.state, State::Moved(_))
    }

    pub(super) fn name<'a>(&self, hubs: &'a Hubs) -> &'a str {
        match self.state {
            State::Moved(pipe) => hubs.provider(pipe),
            _ => "TCP",
        }
    }

    pub(super) fn settle(&mut self, key: u64, paths: &Paths, hubs: &mut Hubs) -> io::Result<Settled> {
        if matches!(self.state, State::Connecting) {
            match self.tcp.settle(paths)? {
                Settled::Yes => self.state = State::Meeting(Meeting::of_dialled()),
                not => return Ok(not),
            }
        }
        let State::Meeting(meeting) = &mut self.state else { return Ok(Settled::Yes) };
        match meeting.go_on(self.tcp.fd(), key, hubs)? {
            Met::NotYet => return Ok(Settled::Not { until_writable: false }),
            Met::Stays => self.state = State::Straight,
            Met::Moves(pipe) => self.state = State::Moved(pipe),
        }
        Ok(Settled::Yes)
    }

    /// The connection is readable.
    pub(super) fn stir(&mut self, hubs: &mut Hubs) {
        if let State::Moved(pipe) = self.state {
            hubs.stir(pipe);
        }
    }

    /// As [`TcpLane::read`].
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec], hubs: &mut Hubs) -> Transfer {
        match self.state {
            // SAFETY: the caller's promise.
            State::Moved(pipe) => transfer(unsafe { hubs.read(pipe, pieces) }),
            // SAFETY: the caller's promise.
            _ => unsafe { self.tcp.read(pieces) },
        }
    }

    /// As [`TcpLane::write`].
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(super) unsafe fn write(&mut self, pieces: &mut [libc::iovec], hubs: &mut Hubs) -> Transfer {
        match self.state {
            // SAFETY: the caller's promise.
            State::Moved(pipe) => transfer(unsafe { hubs.write(pipe, pieces) }),
            // SAFETY: the caller's promise.
            _ => unsafe { self.tcp.write(pieces) },
        }
    }

    pub(super) fn finish(&mut self, hubs: &mut Hubs) {
        match self.state {
            State::Moved(pipe) => hubs.finish(pipe),
            _ => self.tcp.finish(),
        }
    }

    pub(super) fn rtt_us(&self) -> Option<u64> {
        self.tcp.rtt_us()
    }

    /// The lane is over.
    pub(super) fn release(&mut self, hubs: &mut Hubs) {
        match &mut self.state {
            State::Meeting(meeting) => meeting.call_off(hubs),
            State::Moved(pipe) => hubs.remove(*pipe),
            State::Connecting | State::Straight => {}
        }
    }
}

fn transfer(piped: Piped) -> Transfer {
    match piped {
        Piped::Bytes(n) => Transfer::Bytes(n),
        Piped::Blocked => Transfer::Blocked,
        Piped::Failed(why) => Transfer::Failed(io::Error::other(why)),
    }
}
