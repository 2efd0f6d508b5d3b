//! Carriers: what moves a lane's bytes, and what the shell asks of it.
//!
//! A carrier is a stream of bytes in both directions. It is *settled* once it can carry;
//! until then, and while the shell waits to write, its descriptor's events lead to
//! [`Carrier::settle`] and to another attempt. What lanes of one kind share (what is known of
//! paths; descriptors, buffers and timers that no single lane has) is in [`Carriers`].

mod congestion;
mod fabric;
mod race;
mod tcp;
mod udp;

use std::fmt::Arguments;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use isthmus_fabric::{Hubs, News};
use socket2::Socket;

use crate::Settings;
use crate::log::info_log;
use crate::poller::Ready;
use crate::settings::Transport;
use fabric::FabricLane;
use race::{RaceLane, Winner};
use tcp::Paths;
pub(crate) use tcp::{TcpLane, listen};
use udp::Known;
pub(crate) use udp::{Udp, UdpLane};

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
    /// A stream by UDP.
    Udp(UdpLane),
    /// One of both, and it is not yet known which.
    Race(RaceLane),
}

impl Carrier {
    /// The descriptor whose events concern this lane, if it has one of its own. Its end is the
    /// lane's end.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(lane) => Some(lane.fd()),
            Self::Fabric(lane) => Some(lane.fd()),
            Self::Udp(_) => None,
            Self::Race(lane) => lane.fd(),
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
            Self::Udp(lane) => lane.settle(index, shared.udp()?),
            Self::Race(_) => self.settle_race(index, shared),
        }
    }

    /// Whether what comes, and room to write, show by [`Carriers::turn`] and not by the
    /// descriptor.
    pub(crate) fn is_turned(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Fabric(lane) => lane.has_moved(),
            Self::Udp(_) => true,
            Self::Race(_) => false,
        }
    }

    /// Whether this lane alone uses all that the path has.
    pub(crate) fn fills_path(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// The descriptor is readable.
    pub(crate) fn stir(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(_) | Self::Udp(_) | Self::Race(_) => {}
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
            Self::Udp(lane) => match shared.udp() {
                // SAFETY: the caller's promise.
                Ok(udp) => unsafe { lane.read(pieces, udp) },
                Err(error) => Transfer::Failed(error),
            },
            Self::Race(_) => Transfer::Blocked,
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
            Self::Udp(lane) => match shared.udp() {
                // SAFETY: the caller's promise.
                Ok(udp) => unsafe { lane.write(pieces, udp) },
                Err(error) => Transfer::Failed(error),
            },
            Self::Race(_) => Transfer::Blocked,
        }
    }

    /// Ends our side of the stream, after what was written.
    pub(crate) fn finish(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.finish(),
            Self::Fabric(lane) => lane.finish(&mut shared.hubs),
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.finish(udp)),
            Self::Race(_) => {}
        }
    }

    /// Gives back what it has of what lanes share; to be called before it is dropped.
    pub(crate) fn release(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(_) => {}
            Self::Fabric(lane) => lane.release(&mut shared.hubs),
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.release(udp)),
            Self::Race(lane) => shared.udp.iter_mut().for_each(|udp| lane.release(udp)),
        }
    }

    /// What it goes by, for people.
    pub(crate) fn name<'a>(&self, shared: &'a Carriers) -> &'a str {
        match self {
            Self::Tcp(_) => "TCP",
            Self::Fabric(lane) => lane.name(&shared.hubs),
            Self::Udp(_) => "UDP",
            Self::Race(_) => "TCP or UDP",
        }
    }

    /// Round trip to the neighbour; `None` where it is not known. Microseconds.
    pub(crate) fn rtt_us(&self, shared: &Carriers) -> Option<u64> {
        match self {
            Self::Tcp(lane) => lane.rtt_us(),
            Self::Fabric(lane) => lane.rtt_us(),
            Self::Udp(lane) => shared.udp.as_ref().and_then(|udp| lane.rtt_us(udp)),
            Self::Race(_) => None,
        }
    }

    /// Looks at the path of a lane that is kept busy, and suits the lane to it.
    pub(crate) fn look(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.look(&mut shared.paths),
            Self::Fabric(lane) => lane.look(&mut shared.paths),
            Self::Udp(_) | Self::Race(_) => {}
        }
    }

    /// Becomes what has won, once that is known.
    fn settle_race(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        let Carriers { paths, udp: Some(udp), .. } = shared else { return Ok(Settled::Yes) };
        let Self::Race(lane) = self else { return Ok(Settled::Yes) };
        let winner = lane.settle(index, paths, udp)?;
        if let Winner::NotYet { until_writable } = winner {
            return Ok(Settled::Not { until_writable });
        }
        if let Some(chosen) = lane.take_winner(winner, udp) {
            *self = chosen;
        }
        Ok(Settled::Yes)
    }
}

/// What the lanes of one endpoint share.
#[derive(Debug)]
pub(crate) struct Carriers {
    /// Address that we listen at.
    own: IpAddr,
    /// Address to connect from, where the user named an interface.
    from: Option<IpAddr>,
    transport: Transport,
    /// Who has to be reached by TCP.
    routers: Vec<SocketAddr>,
    paths: Paths,
    hubs: Hubs,
    news: Vec<News>,
    udp: Option<Udp>,
}

impl Carriers {
    /// `own` is the address that we listen at, `from` the one to connect from where the user
    /// named an interface; `udp` is there if lanes may go by it.
    pub(crate) fn new(settings: &Settings, own: IpAddr, from: Option<IpAddr>, udp: Option<Udp>) -> Self {
        let hubs = Hubs::new(&settings.fabric, own, |what: Arguments<'_>| info_log!("{what}"));
        Self {
            own,
            from,
            transport: settings.transport,
            routers: settings.routers.0.clone(),
            paths: Paths::new(settings.congestion.clone()),
            hubs,
            news: Vec::new(),
            udp,
        }
    }

    fn udp(&mut self) -> io::Result<&mut Udp> {
        self.udp.as_mut().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Starts to connect to `to`.
    pub(crate) fn dial(&mut self, to: SocketAddr) -> io::Result<Carrier> {
        let by = self.way_to(to);
        if by == Some(Known::Udp)
            && let Some(udp) = &mut self.udp
        {
            return Ok(Carrier::Udp(udp.dial(to)));
        }
        let lane = TcpLane::dial(to, self.from)?;
        if by.is_none()
            && let Some(udp) = &mut self.udp
        {
            return Ok(Carrier::Race(RaceLane::dial(to, lane, udp)));
        }
        Ok(if self.hubs.is_off() { Carrier::Tcp(lane) } else { Carrier::Fabric(FabricLane::dialled(lane)) })
    }

    /// By what a lane to `to` goes; `None` where that is to be found out.
    fn way_to(&self, to: SocketAddr) -> Option<Known> {
        let local = to.ip().is_loopback() || to.ip() == self.own;
        let Some(udp) = &self.udp else { return Some(Known::Tcp) };
        if !self.transport.is_udp(local)
            || self.routers.contains(&to)
            || udp.was_refused(to)
            || !self.hubs.is_off()
            || to.is_ipv4() != self.own.is_ipv4()
        {
            return Some(Known::Tcp);
        }
        let unknown = (self.transport != Transport::Auto).then_some(Known::Udp);
        udp.known(to.ip()).or(unknown)
    }

    /// Takes a connection that came in.
    pub(crate) fn accept(&self, socket: Socket) -> io::Result<Carrier> {
        let lane = TcpLane::accept(socket, &self.paths)?;
        // An offer has to be answered even by who takes none.
        Ok(Carrier::Fabric(FabricLane::accepted(lane)))
    }

    /// A lane that came in, but not as a connection.
    pub(crate) fn accept_turned(&mut self) -> Option<Carrier> {
        self.udp.as_mut()?.accept().map(Carrier::Udp)
    }

    /// What whoever sleeps has to watch besides lanes' own descriptors; once it is readable,
    /// [`Carriers::stir`] is to be called.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.udp.as_ref().map(Udp::fd)
    }

    /// See [`Carriers::fd`].
    pub(crate) fn stir(&mut self) {
        self.udp.iter_mut().for_each(Udp::stir);
    }

    /// Whether all that carriers do shows at descriptors: then the shell need not ask for more.
    pub(crate) fn is_plain(&self) -> bool {
        (self.hubs.is_off() || self.hubs.is_idle()) && self.udp.as_ref().is_none_or(Udp::is_idle)
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
        self.udp.iter_mut().for_each(|udp| udp.turn(ready));
    }

    /// Sends what lanes were given and what may go now.
    pub(crate) fn flush(&mut self) {
        self.udp.iter_mut().for_each(Udp::flush);
    }

    /// Whoever turns the shell is about to sleep: from now on lanes' descriptors are to show
    /// when [`Carriers::turn`] is wanted.
    pub(crate) fn doze(&mut self) {
        self.hubs.doze();
    }

    /// When [`Carriers::turn`] is wanted even without events.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        if self.is_plain() {
            return None;
        }
        let udp = self.udp.as_mut().and_then(Udp::deadline);
        self.hubs.deadline().into_iter().chain(udp).min()
    }

    /// Whether what lanes were given before they ended has arrived.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.udp.as_mut().is_none_or(Udp::is_settled)
    }
}
