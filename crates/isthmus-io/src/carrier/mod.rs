//! Carriers: what moves a lane's bytes, and what the shell asks of it.
//!
//! A carrier is a stream of bytes in both directions. It is *settled* once it can carry;
//! until then, and while the shell waits to write, its descriptor's events lead to
//! [`Carrier::settle`] and to another attempt. What lanes of one kind share (what is known of
//! paths; descriptors, buffers and timers that no single lane has) is in [`Carriers`].

mod congestion;
mod tcp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::Socket;

use crate::poller::Ready;
use tcp::Paths;
pub(crate) use tcp::{TcpLane, listen};

/// What a read or write came to.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// So many bytes; of a read, 0 is the end of the stream.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    Failed(io::Error),
}

/// Whether a carrier can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Yes,
    /// Not yet: to be asked again when its descriptor is readable, or, if so, writable.
    Not {
        until_writable: bool,
    },
}

/// What carries one lane.
#[derive(Debug)]
pub(crate) enum Carrier {
    Tcp(TcpLane),
}

impl Carrier {
    /// The descriptor whose events concern this lane. Its end is the lane's end.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(lane) => lane.fd(),
        }
    }

    /// Goes on with whatever has to be done before the first byte.
    ///
    /// # Errors
    /// The system's, such as `ConnectionRefused`: the lane is over then.
    pub(crate) fn settle(&mut self, shared: &Carriers) -> io::Result<Settled> {
        match self {
            Self::Tcp(lane) => lane.settle(&shared.paths),
        }
    }

    /// Reads into `pieces`, as much as is there.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(crate) unsafe fn read(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        match self {
            // SAFETY: the caller's promise.
            Self::Tcp(lane) => unsafe { lane.read(pieces) },
        }
    }

    /// Writes from `pieces`, as much as there is room for.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call; after it, where the carrier said
    /// [`Transfer::Blocked`], until it has taken the bytes or is dropped.
    pub(crate) unsafe fn write(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        match self {
            // SAFETY: the caller's promise.
            Self::Tcp(lane) => unsafe { lane.write(pieces) },
        }
    }

    /// Ends our side of the stream, after what was written.
    pub(crate) fn finish(&mut self) {
        match self {
            Self::Tcp(lane) => lane.finish(),
        }
    }

    /// Round trip to the neighbour; `None` where it is not known. Microseconds.
    pub(crate) fn rtt_us(&self) -> Option<u64> {
        match self {
            Self::Tcp(lane) => lane.rtt_us(),
        }
    }

    /// Looks at the path of a lane that is kept busy, and suits the lane to it.
    pub(crate) fn look(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.look(&mut shared.paths),
        }
    }
}

/// What the lanes of one endpoint share.
#[derive(Debug)]
pub(crate) struct Carriers {
    /// Address to connect from, where the user named an interface.
    from: Option<IpAddr>,
    paths: Paths,
}

impl Carriers {
    pub(crate) fn new(congestion: String, from: Option<IpAddr>) -> Self {
        Self { from, paths: Paths::new(congestion) }
    }

    /// Starts to connect to `to`.
    pub(crate) fn dial(&self, to: SocketAddr) -> io::Result<Carrier> {
        TcpLane::dial(to, self.from).map(Carrier::Tcp)
    }

    /// Takes a connection that came in.
    pub(crate) fn accept(&self, socket: Socket) -> io::Result<Carrier> {
        TcpLane::accept(socket, &self.paths).map(Carrier::Tcp)
    }

    /// Whether all that carriers do shows at their lanes' descriptors: then the shell need not
    /// ask for more.
    pub(crate) fn is_plain(&self) -> bool {
        true
    }

    /// Turns what lanes share, and adds to `ready` the lanes that this concerns, by index;
    /// called once in a turn of the shell, before any lane is read.
    pub(crate) fn turn(&mut self, _ready: &mut Vec<Ready>) {}

    /// When [`Carriers::turn`] is wanted even without events.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        None
    }
}
