//! Lanes that begin as TCP connections and may move to shared memory or a site's fabric.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use isthmus_fabric::{Hubs, Meeting, Met, Pipe, Piped};

use super::local_fabrics::{Agreed, LocalFabrics};
use super::memory::{Memory, MemoryLane};
use super::tcp::{Paths, TcpLane};
use super::{Settled, Transfer};

/// A TCP lane whose ends negotiate shared memory or a fabric.
#[derive(Debug)]
pub(crate) struct FabricLane {
    tcp: TcpLane,
    state: State,
}

#[derive(Debug)]
enum State {
    /// `near`: to an address of this host.
    Connecting {
        near: bool,
    },
    Meeting(Meeting<Agreed>),
    /// It stays TCP ([`FabricLane::into_tcp`]).
    Straight,
    /// It moves to this link of [`Memory`] ([`FabricLane::into_memory`]).
    Shared(usize),
    /// It has moved to a fabric; the connection only shows that the other end lives.
    Moved(Pipe),
}

impl FabricLane {
    /// A lane that is being connected. `near` says that the address is of this host.
    pub(super) fn dialled(tcp: TcpLane, near: bool) -> Self {
        Self { tcp, state: State::Connecting { near } }
    }

    /// An incoming lane.
    pub(super) fn accepted(tcp: TcpLane) -> Self {
        Self { tcp, state: State::Meeting(Meeting::of_accepted()) }
    }

    /// The connection alone.
    pub(super) fn into_tcp(self) -> TcpLane {
        self.tcp
    }

    /// Whether the ends agreed on shared memory.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.state, State::Shared(_))
    }

    /// The lane by shared memory that the ends agreed on.
    pub(super) fn into_memory(self, memory: &mut Memory) -> Option<MemoryLane> {
        match self.state {
            State::Shared(link) => MemoryLane::new(self.tcp, link, memory),
            _ => None,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.tcp.fd()
    }

    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp.peer_ip()
    }

    /// Whether the ends still agree on what carries the lane.
    pub(super) fn awaits_first_answer(&self) -> bool {
        matches!(self.state, State::Meeting(_))
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

    pub(super) fn settle(
        &mut self,
        key: u64,
        paths: &mut Paths,
        mut at: LocalFabrics<'_>,
    ) -> io::Result<Settled> {
        if let State::Connecting { near } = self.state {
            match self.tcp.settle(paths)? {
                Settled::Yes => self.state = State::Meeting(Meeting::of_dialled(near)),
                not => return Ok(not),
            }
        }
        let State::Meeting(meeting) = &mut self.state else { return Ok(Settled::Yes) };
        match meeting.go_on(self.tcp.fd(), key, &mut at)? {
            Met::NotYet => return Ok(Settled::Not { until_writable: false }),
            Met::Stays => self.state = State::Straight,
            Met::Moves(Agreed::Fabric(pipe)) => self.state = State::Moved(pipe),
            Met::Moves(Agreed::Memory(link)) => self.state = State::Shared(link),
        }
        Ok(Settled::Yes)
    }

    /// Notes that the connection is readable.
    pub(super) fn stir(&mut self, hubs: &mut Hubs) {
        if let State::Moved(pipe) = self.state {
            hubs.stir(pipe);
        }
    }

    /// Like [`TcpLane::read`].
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

    /// Like [`TcpLane::write`].
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

    /// Releases what the ended lane holds.
    pub(super) fn release(&mut self, mut at: LocalFabrics<'_>) {
        match &mut self.state {
            State::Meeting(meeting) => meeting.call_off(&mut at),
            State::Moved(pipe) => at.hubs.remove(*pipe),
            State::Shared(link) => at.memory.remove(*link),
            State::Connecting { .. } | State::Straight => {}
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
