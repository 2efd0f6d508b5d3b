//! Carriers: what moves a lane's bytes, and what the shell asks of it.
//!
//! A carrier is a stream of bytes in both directions. It is *settled* once it can carry;
//! until then, and while the shell waits to write, its descriptor's events lead to
//! [`Carrier::settle`] and to another attempt. What lanes of one kind share (what is known of
//! paths; descriptors, buffers and timers that no single lane has) is in [`Carriers`].

mod congestion;
mod fabric;
mod tcp;

use std::fmt::Arguments;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use isthmus_fabric::{Hubs, News};
use socket2::Socket;

use crate::log::info_log;
use crate::poller::Ready;
use fabric::FabricLane;
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
    /// A TCP connection from end to end.
    Tcp(TcpLane),
    /// One that may move to a fabric.
    Fabric(FabricLane),
}

impl Carrier {
    /// The descriptor whose events concern this lane. Its end is the lane's end.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(lane) => lane.fd(),
            Self::Fabric(lane) => lane.fd(),
        }
    }

    /// Goes on with whatever has to be done before the first byte. `index` is the lane's, for
    /// [`Carriers::turn`].
    ///
    /// # Errors
    /// The system's, such as `ConnectionRefused`: the lane is over then.
    pub(crate) fn settle(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        match self {
            Self::Tcp(lane) => lane.settle(&shared.paths),
            Self::Fabric(lane) => lane.settle(index as u64, &shared.paths, &mut shared.hubs),
        }
    }

    /// Whether what comes, and room to write, show by [`Carriers::turn`] and not by the
    /// descriptor.
    pub(crate) fn is_turned(&self) -> bool {
        matches!(self, Self::Fabric(lane) if lane.has_moved())
    }

    /// The descriptor is readable.
    pub(crate) fn stir(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(_) => {}
            Self::Fabric(lane) => lane.stir(&mut shared.hubs),
        }
    }

    /// Reads into `pieces`, as much as is there.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(crate) unsafe fn read(&mut self, pieces: &mut [libc::iovec], shared: &mut Carriers) -> Transfer {
        match self {
            // SAFETY: the caller's promise.
            Self::Tcp(lane) => unsafe { lane.read(pieces) },
            // SAFETY: the caller's promise.
            Self::Fabric(lane) => unsafe { lane.read(pieces, &mut shared.hubs) },
        }
    }

    /// Writes from `pieces`, as much as there is room for.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(crate) unsafe fn write(&mut self, pieces: &mut [libc::iovec], shared: &mut Carriers) -> Transfer {
        match self {
            // SAFETY: the caller's promise.
            Self::Tcp(lane) => unsafe { lane.write(pieces) },
            // SAFETY: the caller's promise.
            Self::Fabric(lane) => unsafe { lane.write(pieces, &mut shared.hubs) },
        }
    }

    /// Ends our side of the stream, after what was written.
    pub(crate) fn finish(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.finish(),
            Self::Fabric(lane) => lane.finish(&mut shared.hubs),
        }
    }

    /// Gives back what it has of what lanes share; to be called before it is dropped.
    pub(crate) fn release(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(_) => {}
            Self::Fabric(lane) => lane.release(&mut shared.hubs),
        }
    }

    /// What it goes by, for people.
    pub(crate) fn name<'a>(&self, shared: &'a Carriers) -> &'a str {
        match self {
            Self::Tcp(_) => "TCP",
            Self::Fabric(lane) => lane.name(&shared.hubs),
        }
    }

    /// Round trip to the neighbour; `None` where it is not known. Microseconds.
    pub(crate) fn rtt_us(&self) -> Option<u64> {
        match self {
            Self::Tcp(lane) => lane.rtt_us(),
            Self::Fabric(lane) => lane.rtt_us(),
        }
    }

    /// Looks at the path of a lane that is kept busy, and suits the lane to it.
    pub(crate) fn look(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.look(&mut shared.paths),
            Self::Fabric(lane) => lane.look(&mut shared.paths),
        }
    }
}

/// What the lanes of one endpoint share.
#[derive(Debug)]
pub(crate) struct Carriers {
    /// Address to connect from, where the user named an interface.
    from: Option<IpAddr>,
    paths: Paths,
    hubs: Hubs,
    news: Vec<News>,
}

impl Carriers {
    /// `congestion` and `fabric` are the settings of these names, `own` is the address that we
    /// listen at.
    pub(crate) fn new(congestion: String, fabric: &str, own: IpAddr, from: Option<IpAddr>) -> Self {
        let hubs = Hubs::new(fabric, own, |what: Arguments<'_>| info_log!("{what}"));
        Self { from, paths: Paths::new(congestion), hubs, news: Vec::new() }
    }

    /// Starts to connect to `to`.
    pub(crate) fn dial(&self, to: SocketAddr) -> io::Result<Carrier> {
        let lane = TcpLane::dial(to, self.from)?;
        Ok(if self.hubs.is_off() { Carrier::Tcp(lane) } else { Carrier::Fabric(FabricLane::dialled(lane)) })
    }

    /// Takes a connection that came in.
    pub(crate) fn accept(&self, socket: Socket) -> io::Result<Carrier> {
        let lane = TcpLane::accept(socket, &self.paths)?;
        // An offer has to be answered even by who takes none.
        Ok(Carrier::Fabric(FabricLane::accepted(lane)))
    }

    /// Whether all that carriers do shows at their lanes' descriptors: then the shell need not
    /// ask for more.
    pub(crate) fn is_plain(&self) -> bool {
        self.hubs.is_off() || self.hubs.is_idle()
    }

    /// Turns what lanes share, and adds to `ready` the lanes that this concerns, by index;
    /// called once in a turn of the shell, before any lane is read.
    pub(crate) fn turn(&mut self, ready: &mut Vec<Ready>) {
        self.hubs.poll(&mut self.news);
        ready.extend(self.news.drain(..).map(|news| Ready {
            key: news.key,
            readable: news.readable,
            writable: news.writable,
        }));
    }

    /// Whoever turns the shell is about to sleep: from now on lanes' descriptors are to show
    /// when [`Carriers::turn`] is wanted.
    pub(crate) fn doze(&mut self) {
        self.hubs.doze();
    }

    /// When [`Carriers::turn`] is wanted even without events.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        if self.is_plain() { None } else { self.hubs.deadline() }
    }
}
