//! Carriers move the bytes of lanes. This is their interface to the shell.
//!
//! A carrier is a stream of bytes in both directions. It is *settled* once it can carry data. Until then, the events of
//! its descriptor lead to [`Carrier::settle`]. [`Carriers`] has the state that lanes share: knowledge about paths, and
//! descriptors, buffers and timers that belong to no single lane.

mod buffers;
mod choice;
mod fabric;
mod flows;
mod header_fields;
mod limit;
mod local_fabrics;
mod memory;
mod other_routes;
mod path_sharing;
mod race;
mod sealed;
mod segments;
mod settle;
mod tcp;
mod tcp_probe;
mod tls;
mod udp;
mod unencrypted;

use std::fmt::Arguments;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use isthmus_fabric::{Hubs, News};
pub(crate) use isthmus_path::segments::{Cause, Stuck};
use isthmus_path::thresholds::distance::FAR_US;
use isthmus_path::{Bulk, Hosts, LaneSample, Policy};
use isthmus_proto::{LaneKind, Secret};
use isthmus_udp::{Composition, Dropped};
use isthmus_wire::AsId;

use crate::figures::LaneCounts;
use crate::log::info_log;
use crate::poller::Ready;
use crate::scitag::Fireflies;
use crate::settings::{Admission, Encrypt, MEMORY, Protocols, Transport};
use crate::{Settings, interface, ledger};
use buffers::SharedBuffers;
use fabric::FabricLane;
pub(crate) use header_fields::HeaderFields;
use limit::Limit;
use local_fabrics::LocalFabrics;
use memory::Memory;
pub use memory::foreign::read_any_ring;
pub use memory::try_shared_memory;
pub(crate) use memory::{MemoryLane, RECORD_MAX, ShownRegion, Sleeper, Spot};
pub(crate) use other_routes::OTHER_ROUTE_AFTER;
use other_routes::OtherRoutes;
use path_sharing::PathSharing;
use race::RaceLane;
use sealed::SealedLane;
use segments::Segments;
pub(crate) use tcp::{LEFT_RESENT, STUCK_RESENT, TcpLane, limit_segments, listen};
use tcp::{Looked, Paths};
use tls::TlsLane;
pub(crate) use tls::{PROTOCOLS, Tls, Untrusted};
pub(crate) use udp::{Outdone, Udp, UdpLane};

/// The result of a read or write.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// The number of bytes; for a read, 0 is the end of the stream.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    Failed(io::Error),
}

/// The error of a lane whose other end was silent for this long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nothing was heard for {} s", .0.as_secs())]
pub(crate) struct Silence(pub(crate) Duration);

/// New measurements of a lane's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathNews {
    /// The kernel's counts for a TCP lane, every 100 ms.
    pub(crate) sample: Option<LaneSample>,
    /// Another lane to the same host would go by UDP and do better.
    pub(crate) outdone: bool,
    /// The shortest round trip, if it is shorter than before. Microseconds.
    pub(crate) rtt_us: Option<u64>,
}

/// Whether a carrier can carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Yes,
    /// Not yet: ask again when its descriptor is readable or, with `until_writable`, writable.
    Not {
        until_writable: bool,
    },
}

/// The carrier of one lane.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// A TCP connection from end to end.
    Tcp(TcpLane),
    /// A TCP connection that may move to shared memory or a fabric.
    Fabric(Box<FabricLane>),
    /// Shared memory.
    Memory(Box<MemoryLane>),
    /// A stream of packets, by UDP or Ethernet.
    Udp(UdpLane),
    /// TCP or UDP; it is not known yet which.
    Race(Box<RaceLane>),
    /// An encrypted TCP connection from end to end.
    Tls(Box<TlsLane>),
    /// One of the other kinds, sealed with keys that only the two ends have.
    Sealed(Box<SealedLane>),
    /// An incoming TCP connection that may be encrypted; `None` once that is known.
    Arrived(Option<TcpLane>),
}

/// Whether to seal what a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    No,
    /// If it leaves the subnet.
    Outside,
    Yes,
    /// Not needed: nobody else can read or alter it.
    Private,
}

/// Whether to seal a lane that others could read.
fn sealing_of(encrypt: Encrypt, rtt_us: Option<u64>) -> Sealing {
    match encrypt {
        Encrypt::Never => Sealing::No,
        Encrypt::Always => Sealing::Yes,
        Encrypt::Far if rtt_us.is_some_and(|rtt| rtt >= FAR_US) => Sealing::Yes,
        Encrypt::Far => Sealing::Outside,
    }
}

/// The identity of a lane's other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// It has not shown who it is.
    Unknown,
    /// A router that the settings name.
    Router,
    /// An endpoint of this AS, by its certificate.
    Of(AsId),
}

impl Carrier {
    /// The lane's own descriptor, if it has one. If the connection ends, so does the lane.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(lane) => Some(lane.fd()),
            Self::Fabric(lane) => Some(lane.fd()),
            Self::Memory(lane) => Some(lane.fd()),
            Self::Udp(_) => None,
            Self::Race(lane) => lane.fd(),
            Self::Tls(lane) => Some(lane.fd()),
            Self::Sealed(lane) => lane.inner.fd(),
            Self::Arrived(lane) => lane.as_ref().map(TcpLane::fd),
        }
    }

    /// Whether the other end of a settled lane has answered. UDP lanes carry data before that.
    pub(crate) fn is_answered(&self, shared: &Carriers) -> bool {
        match self {
            Self::Udp(lane) => shared.udp.as_ref().is_some_and(|udp| lane.is_answered(udp)),
            _ => true,
        }
    }

    /// Whether the connection stands, and the other end has said nothing yet.
    pub(crate) fn awaits_first_answer(&self) -> bool {
        matches!(self, Self::Fabric(lane) if lane.awaits_first_answer())
    }

    /// Whether [`Carriers::run_pass`], and not the descriptor, tells that the lane is readable or writable.
    pub(crate) fn is_polled(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Fabric(lane) => lane.has_moved(),
            Self::Sealed(lane) => lane.inner.is_polled(),
            Self::Udp(_) | Self::Memory(_) => true,
            Self::Race(_) | Self::Tls(_) | Self::Arrived(_) => false,
        }
    }

    /// Whether this lane alone fills its path.
    pub(crate) fn fills_path(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// How much of the bulk data it carries, if it fills its path.
    pub(crate) fn bulk(&self, shared: &Carriers) -> Bulk {
        match self {
            Self::Udp(lane) => shared.paths.hosts.plan(shared.paths.now(), lane.peer_ip()).bulk,
            _ => Bulk::All,
        }
    }

    /// Notes that the lane's descriptor is readable.
    pub(crate) fn stir(&mut self, shared: &mut Carriers) {
        match self {
            Self::Fabric(lane) => lane.stir(&mut shared.hubs),
            Self::Memory(lane) => lane.stir(),
            Self::Sealed(lane) => lane.inner.stir(shared),
            _ => {}
        }
    }

    /// The lane by shared memory, if it is one. The driving thread looks after those itself.
    pub(crate) fn memory(&mut self) -> Option<&mut MemoryLane> {
        match self {
            Self::Memory(lane) => Some(lane),
            _ => None,
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
            // SAFETY: the caller's promise.
            Self::Memory(lane) => unsafe { lane.read(pieces, &mut shared.memory) },
            Self::Udp(lane) => match shared.udp() {
                // SAFETY: the caller's promise.
                Ok(udp) => unsafe { lane.read(pieces, udp) },
                Err(error) => Transfer::Failed(error),
            },
            Self::Tls(lane) => match &mut shared.tls {
                // SAFETY: the caller's promise.
                Some(tls) => unsafe { lane.read(pieces, tls) },
                None => Transfer::Failed(io::ErrorKind::Unsupported.into()),
            },
            // SAFETY: the caller's promise.
            Self::Sealed(lane) => unsafe { lane.read(pieces, shared) },
            Self::Race(_) | Self::Arrived(_) => Transfer::Blocked,
        }
    }

    /// Writes from `pieces`, of which some are `lent` by the program, as much as there is room for.
    ///
    /// # Safety
    /// Every piece is valid for reading until it counts as written or the lane is released. If [`Carrier::close_batch`]
    /// says that a batch is in use, its lent pieces stay valid and unchanged until [`Carrier::take_returned`] has
    /// counted it.
    pub(crate) unsafe fn write(
        &mut self,
        pieces: &mut [libc::iovec],
        lent: &[bool],
        shared: &mut Carriers,
    ) -> Transfer {
        match self {
            // SAFETY: the caller's promise.
            Self::Tcp(lane) => unsafe { lane.write(pieces) },
            // SAFETY: the caller's promise.
            Self::Fabric(lane) => unsafe { lane.write(pieces, &mut shared.hubs) },
            // SAFETY: the caller's promise.
            Self::Memory(lane) => unsafe { lane.write(pieces, lent) },
            Self::Udp(lane) => match shared.udp() {
                // SAFETY: the caller's promise.
                Ok(udp) => unsafe { lane.write(pieces, lent, udp) },
                Err(error) => Transfer::Failed(error),
            },
            // SAFETY: the caller's promise.
            Self::Tls(lane) => unsafe { lane.write(pieces) },
            // SAFETY: the caller's promise.
            Self::Sealed(lane) => unsafe { lane.write(pieces, lent, shared) },
            Self::Race(_) | Self::Arrived(_) => Transfer::Blocked,
        }
    }

    /// Closes a batch that was written whole. True if lent memory of it is still in use.
    pub(crate) fn close_batch(&mut self, shared: &Carriers) -> bool {
        match self {
            Self::Udp(lane) => shared.udp.as_ref().is_some_and(|udp| lane.close_batch(udp)),
            Self::Memory(lane) => lane.close_batch(),
            _ => false,
        }
    }

    /// Number of [borrowed](Carrier::close_batch) batches, oldest first, that went out of use since the last call, and
    /// whether others are in use.
    pub(crate) fn take_returned(&mut self) -> (usize, bool) {
        match self {
            Self::Udp(lane) => lane.take_returned(),
            Self::Memory(lane) => lane.take_returned(),
            _ => (0, false),
        }
    }

    /// Copies the parts still needed of the first `batches` batches that it ever borrowed, and returns these.
    pub(crate) fn recall(&mut self, batches: u64, shared: &mut Carriers) {
        match self {
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.recall(batches, udp)),
            Self::Memory(lane) => lane.recall(batches),
            _ => {}
        }
    }

    /// Ends our side of the stream, after what was written.
    pub(crate) fn finish(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(lane) => lane.finish(),
            Self::Fabric(lane) => lane.finish(&mut shared.hubs),
            Self::Memory(lane) => lane.finish(),
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.finish(udp)),
            Self::Tls(lane) => lane.finish(),
            Self::Sealed(lane) => lane.inner.finish(shared),
            Self::Race(_) | Self::Arrived(_) => {}
        }
    }

    /// Makes the kernel drop unsent data when the lane is closed: that data goes by other lanes.
    pub(crate) fn discard(&mut self) {
        match self {
            Self::Tcp(lane) => lane.discard(),
            Self::Tls(lane) => lane.discard(),
            Self::Sealed(lane) => lane.inner.discard(),
            // These hold little; a UDP lane drops its data itself.
            Self::Fabric(_) | Self::Memory(_) | Self::Udp(_) | Self::Race(_) | Self::Arrived(_) => {}
        }
    }

    /// Makes [`Carrier::release`] drop what was written, as it cannot arrive.
    pub(crate) fn abort(&mut self, shared: &mut Carriers) {
        match (self.udp(), &mut shared.udp) {
            (Some(lane), Some(udp)) => udp.abort(lane),
            _ => self.discard(),
        }
    }

    /// The address of this host that its packets come from. `None` if no packets do, or that is not known.
    pub(crate) fn own_ip(&self, shared: &Carriers) -> Option<IpAddr> {
        match self {
            Self::Udp(lane) => shared.udp.as_ref().and_then(|udp| udp.own_ip(lane)),
            Self::Race(lane) => lane.own_ip(),
            Self::Arrived(lane) => lane.as_ref().and_then(TcpLane::own_ip),
            Self::Sealed(lane) => lane.inner.own_ip(shared),
            _ => self.tcp().and_then(TcpLane::own_ip),
        }
    }

    /// Releases its part of the shared state. Call it before the carrier is dropped.
    pub(crate) fn release(&mut self, shared: &mut Carriers) {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Arrived(_) => {}
            Self::Sealed(lane) => lane.inner.release(shared),
            Self::Memory(lane) => lane.withdraw(),
            Self::Fabric(lane) => lane.release(shared.local_fabrics()),
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.release(udp)),
            Self::Race(lane) => shared.udp.iter_mut().for_each(|udp| lane.release(udp)),
        }
    }

    /// Name of the carrier, for people.
    pub(crate) fn name<'a>(&'a self, shared: &'a Carriers) -> &'a str {
        match self {
            Self::Tcp(_) => "TCP",
            Self::Fabric(lane) => lane.name(&shared.hubs),
            Self::Memory(_) => MEMORY,
            Self::Udp(lane) => shared
                .udp
                .as_ref()
                .map_or("UDP", |udp| if lane.is_sealed(udp) { udp.sealed_name() } else { udp.name() }),
            Self::Race(_) => "TCP or UDP",
            Self::Tls(_) => "TCP, encrypted",
            Self::Sealed(lane) => &lane.name,
            Self::Arrived(_) => "TCP",
        }
    }

    /// The carrier, as the engine counts it.
    pub(crate) fn kind(&self) -> LaneKind {
        match self {
            Self::Tcp(_) | Self::Race(_) | Self::Tls(_) | Self::Arrived(_) => LaneKind::Tcp,
            Self::Fabric(_) => LaneKind::Fabric,
            Self::Memory(_) => LaneKind::Memory,
            Self::Udp(_) => LaneKind::Packets,
            Self::Sealed(lane) => lane.inner.kind(),
        }
    }

    /// Round trip to the neighbour; `None` if it is not known. Microseconds.
    pub(crate) fn rtt_us(&self, shared: &Carriers) -> Option<u64> {
        match self {
            Self::Tcp(lane) => lane.rtt_us(),
            Self::Fabric(lane) => lane.rtt_us(),
            Self::Memory(lane) => lane.rtt_us(),
            Self::Udp(lane) => shared.udp.as_ref().and_then(|udp| lane.rtt_us(udp)),
            Self::Tls(lane) => lane.rtt_us(),
            Self::Sealed(lane) => lane.inner.rtt_us(shared),
            Self::Race(_) | Self::Arrived(_) => None,
        }
    }

    /// Its counts.
    pub(crate) fn counts(&self, shared: &Carriers) -> LaneCounts {
        match self {
            Self::Tcp(lane) => lane.counts(),
            Self::Tls(lane) => lane.tcp().counts(),
            Self::Udp(lane) => shared.udp.as_ref().map(|udp| lane.counts(udp)).unwrap_or_default(),
            Self::Sealed(lane) => lane.inner.counts(shared),
            Self::Fabric(_) | Self::Memory(_) => {
                LaneCounts { rtt_us: self.rtt_us(shared), ..LaneCounts::default() }
            }
            Self::Race(_) | Self::Arrived(_) => LaneCounts::default(),
        }
    }

    /// The reason for this carrier; `None` if only the setting `transport` says so.
    pub(crate) fn reason(&self, shared: &Carriers) -> Option<String> {
        match self.kind() {
            LaneKind::Memory => Some("shared memory: the peer is on this host".to_owned()),
            LaneKind::Fabric => Some("a local fabric: both ends have it".to_owned()),
            LaneKind::Tcp | LaneKind::Packets => {
                let plan = shared.paths.hosts.plan(shared.paths.now(), self.host()?);
                plan.why.map(|why| shared.words(&why))
            }
        }
    }

    /// The other end has authenticated.
    pub(crate) fn admitted(&self, shared: &mut Carriers) {
        if let (Some(lane), Some(udp)) = (self.udp(), &mut shared.udp) {
            udp.admit_lane(lane);
        }
    }

    /// The peer has made a lane by TCP beside this one.
    pub(crate) fn on_tcp_lane(&self, shared: &mut Carriers) {
        if let (Some(lane), Some(udp)) = (self.udp(), &mut shared.udp) {
            udp.on_tcp_lane(lane);
        }
    }

    /// The peer has made a lane from another address than that to which this one leads.
    pub(crate) fn on_move(&self, shared: &mut Carriers) {
        if let (Some(lane), Some(udp)) = (self.udp(), &mut shared.udp) {
            udp.on_move(lane);
        }
    }

    /// The host at the other end; `None` for shared memory and during a race.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(lane) => lane.peer_ip(),
            Self::Fabric(lane) => lane.peer_ip(),
            Self::Tls(lane) => lane.peer_ip(),
            Self::Udp(lane) => Some(lane.peer_ip()),
            Self::Arrived(lane) => lane.as_ref().and_then(TcpLane::peer_ip),
            Self::Sealed(lane) => lane.inner.host(),
            Self::Memory(_) | Self::Race(_) => None,
        }
    }

    /// The identity of the other end of a settled lane.
    pub(crate) fn neighbour(&self, shared: &Carriers) -> Neighbour {
        let of = match self {
            Self::Sealed(lane) => return lane.inner.neighbour(shared),
            Self::Tls(lane) => lane.peer_as(),
            Self::Udp(lane) => shared.udp.as_ref().and_then(|udp| lane.peer_as(udp)),
            Self::Fabric(lane) if lane.peer_ip().is_some_and(|host| shared.is_router(host)) => {
                return Neighbour::Router;
            }
            _ => None,
        };
        of.map_or(Neighbour::Unknown, Neighbour::Of)
    }

    /// Applies changed protocols to the lane, if that is the lane's business. `former` are the earlier ones.
    pub(crate) fn follow(&mut self, shared: &Carriers, former: &Protocols) {
        match self {
            Self::Tcp(lane) => lane.follow(&shared.paths, &former.tcp),
            Self::Tls(lane) => lane.follow(&shared.paths, &former.tcp),
            Self::Sealed(lane) => lane.inner.follow(shared, former),
            Self::Fabric(_) | Self::Memory(_) | Self::Udp(_) | Self::Race(_) | Self::Arrived(_) => {}
        }
    }

    /// Measures the path of a busy lane, and adapts the lane to it.
    pub(crate) fn look(&mut self, shared: &mut Carriers) -> PathNews {
        let looked = match self {
            Self::Tcp(lane) => lane.look(&mut shared.paths),
            Self::Tls(lane) => lane.look(&mut shared.paths),
            Self::Sealed(lane) => return lane.inner.look(shared),
            Self::Udp(lane) => {
                let rtt_us = shared.udp.as_ref().and_then(|udp| lane.take_nearer_us(udp));
                return PathNews { rtt_us, ..PathNews::default() };
            }
            Self::Fabric(_) | Self::Memory(_) | Self::Race(_) | Self::Arrived(_) => None,
        };
        let Some(Looked { lane: sample, weakness, host, arrived, idled, nearer_us: rtt_us }) = looked else {
            return PathNews::default();
        };
        let Some(host) = host else { return PathNews { sample, rtt_us, ..PathNews::default() } };
        let now = shared.paths.now();
        if sample.is_some() {
            shared.paths.hosts.on_tcp_bulk(now, host, arrived, idled);
        }
        let outdone = weakness.is_some_and(|weakness| shared.on_weakness(host, weakness));
        PathNews { sample, outdone, rtt_us }
    }

    /// The part of `rate_limit` that a TCP lane has. Bytes/s; `None`: no limit.
    pub(crate) fn tcp_limit(&self) -> Option<NonZeroU64> {
        self.tcp()?.limit()
    }

    /// What is known of a TCP lane that stands still ([`TcpLane::stuck`]).
    pub(crate) fn stuck(&self, resent: u8) -> Option<Stuck> {
        self.tcp()?.stuck(resent)
    }

    /// The address at the other end of a TCP lane.
    pub(crate) fn tcp_peer(&self) -> Option<SocketAddr> {
        self.tcp()?.peer()
    }

    /// Its TCP connection, if that carries its data.
    fn tcp(&self) -> Option<&TcpLane> {
        match self {
            Self::Tcp(lane) => Some(lane),
            Self::Tls(lane) => Some(lane.tcp()),
            Self::Sealed(lane) => lane.inner.tcp(),
            Self::Fabric(_) | Self::Memory(_) | Self::Udp(_) | Self::Race(_) | Self::Arrived(_) => None,
        }
    }

    /// The UDP lane that it is, encrypted or not.
    fn udp(&self) -> Option<&UdpLane> {
        match self {
            Self::Udp(lane) => Some(lane),
            Self::Sealed(lane) => lane.inner.udp(),
            _ => None,
        }
    }

    /// Whether to seal what this lane carries. `rtt_us` is its round trip, if known.
    pub(crate) fn sealing(&self, rtt_us: Option<u64>, shared: &Carriers) -> Sealing {
        match self {
            Self::Tcp(_) | Self::Fabric(_) => sealing_of(shared.encrypt, rtt_us),
            // Nothing else would keep strangers from injecting packets.
            Self::Udp(lane) if shared.udp.as_ref().is_some_and(|udp| lane.peer_as(udp).is_none()) => {
                Sealing::Yes
            }
            Self::Udp(_) | Self::Memory(_) | Self::Tls(_) | Self::Sealed(_) => Sealing::Private,
            Self::Race(_) | Self::Arrived(_) => Sealing::No,
        }
    }

    /// Makes the lane a sealed one, with keys from a secret that both ends have, or will have once the bytes written
    /// now have arrived. False if this carrier cannot be sealed.
    pub(crate) fn share(
        &mut self,
        secret: &Secret,
        dialled: bool,
        index: usize,
        shared: &mut Carriers,
    ) -> bool {
        match self {
            Self::Tcp(_) | Self::Fabric(_) => {
                let inner = std::mem::replace(self, Self::Arrived(None));
                *self = Self::Sealed(Box::new(SealedLane::new(inner, index, secret, dialled, shared)));
            }
            Self::Udp(lane) => shared.udp.iter_mut().for_each(|udp| lane.rekey(secret, udp)),
            Self::Sealed(_) => {}
            Self::Memory(_) | Self::Tls(_) | Self::Race(_) | Self::Arrived(_) => return false,
        }
        true
    }

    /// Seals everything that is written from now on, since our greeting is written. Does nothing on an unsealed lane.
    pub(crate) fn seal_outward(&mut self) {
        if let Self::Sealed(lane) = self {
            lane.seal_outward();
        }
    }

    /// Opens everything that comes from now on, beginning with these bytes, since the peer's greeting is decoded.
    /// False on an unsealed lane.
    pub(crate) fn open_inward(&mut self, came: &[u8], shared: &mut Carriers) -> bool {
        match self {
            Self::Sealed(lane) => {
                lane.open_inward(came, shared);
                true
            }
            _ => false,
        }
    }
}

/// The state that the lanes of one endpoint share.
#[derive(Debug)]
pub(crate) struct Carriers {
    /// The address that we listen at.
    own: IpAddr,
    /// The address to connect from, if the user named an interface.
    from: Option<IpAddr>,
    /// The setting `interface`.
    interface: String,
    transport: Transport,
    /// UDP carries from this round trip on, unless something else is known of the host.
    udp_from: Duration,
    /// The setting `peer_timeout`, but a second at least.
    dial_patience: Duration,
    /// Set if lanes carry data before it is known whether UDP suits the path: the length of the packet train. Bytes.
    hurried: Option<u32>,
    /// The routers, which are reached by TCP only.
    routers: Vec<SocketAddr>,
    paths: Paths,
    segments: Segments,
    other_routes: OtherRoutes,
    hubs: Hubs,
    memory: Memory,
    news: Vec<News>,
    udp: Option<Udp>,
    /// Set if lanes without a router or fabric use TLS.
    tls: Option<Tls>,
    /// Buffers of sealed lanes.
    sealed: SharedBuffers,
    encrypt: Encrypt,
    /// Plain lanes need no warning.
    plain_allowed: bool,
    /// UDP lanes, by index, and how much of the bulk data is for them from now on.
    changed_bulk: Vec<(usize, Bulk)>,
    /// The protocols that are set; `udp`, `paths` and the engine have copies of their parts.
    protocols: Protocols,
    /// Set if flows are announced.
    pub(crate) fireflies: Option<Box<Fireflies>>,
}

impl Carriers {
    /// `own` is the address that we listen at, `from` the one to connect from if the user named an interface. `udp`
    /// is set if lanes may go as packets, `tls` if they use TLS.
    pub(crate) fn new(
        settings: &Settings,
        own: IpAddr,
        from: Option<IpAddr>,
        mut udp: Option<Udp>,
        tls: Option<Tls>,
    ) -> Self {
        let ledger = ledger::open(settings);
        if let (Some(udp), Some(ledger)) = (&mut udp, &ledger) {
            udp.share(ledger, own);
        }
        let protocols = settings.all_protocols();
        let policy = Policy { may_choose: settings.transport == Transport::Auto };
        let epoch = udp.as_ref().map_or_else(Instant::now, Udp::epoch);
        let memory = Memory::new(settings.by_memory());
        let hubs = Hubs::new(&settings.fabrics(), own, |what: Arguments<'_>| info_log!("{what}"));
        Self {
            own,
            from,
            interface: settings.interface.clone(),
            transport: settings.transport,
            udp_from: settings.udp_from.to_duration(),
            dial_patience: settings.peer_timeout.to_duration().max(Duration::from_secs(1)),
            hurried: None,
            routers: settings.routers.0.clone(),
            paths: Paths::new(
                (Hosts::new(policy), epoch),
                protocols.tcp.clone(),
                PathSharing::new(own, ledger),
                Limit::new(settings.rate_limit.clone()),
                settings.patience(),
                HeaderFields::of(settings),
            ),
            segments: Segments::default(),
            other_routes: OtherRoutes::new(from),
            hubs,
            memory,
            news: Vec::new(),
            udp,
            tls,
            sealed: SharedBuffers::default(),
            encrypt: settings.encrypt,
            changed_bulk: Vec::new(),
            plain_allowed: settings.admission == Admission::Closed && settings.encrypt != Encrypt::Never,
            protocols,
            fireflies: Fireflies::of(settings).map(Box::new),
        }
    }

    /// Longest useful attempt to connect: after it the peer is given up anyway.
    pub(crate) fn dial_patience(&self) -> Duration {
        self.dial_patience
    }

    /// Allows plain lanes without a warning.
    pub(crate) fn allow_plain(&mut self) {
        self.plain_allowed = true;
        self.udp.iter_mut().for_each(Udp::allow_plain);
    }

    /// Warns if a TCP lane that has come up is a plain one to a far host. A UDP lane does so itself, once it knows its
    /// round trip. Routers encrypt between sites.
    pub(crate) fn tell_if_plain(&self, carrier: &Carrier) {
        if let Carrier::Tcp(lane) = carrier
            && let (Some(host), Some(rtt_us)) = (lane.peer_ip(), lane.rtt_us())
            && !(self.plain_allowed || self.is_router(host) || self.is_near(host))
        {
            unencrypted::warn(host, rtt_us);
        }
    }

    /// The value of the setting `transport`, for people.
    pub(crate) fn transport(&self) -> &'static str {
        self.transport.name()
    }

    fn local_fabrics(&mut self) -> LocalFabrics<'_> {
        LocalFabrics { hubs: &mut self.hubs, memory: &mut self.memory }
    }

    fn is_router(&self, host: IpAddr) -> bool {
        self.routers.iter().any(|router| router.ip() == host)
    }

    /// The compositions of UDP lanes, and how many lanes had each.
    pub(crate) fn udp_protocols(&self) -> Vec<(Composition, u64)> {
        self.udp.as_ref().map_or_else(Vec::new, |udp| udp.chosen().to_vec())
    }

    /// The address that the socket of UDP lanes is bound to, if there is one.
    pub(crate) fn bound_ip(&self) -> Option<IpAddr> {
        self.udp.as_ref().and_then(Udp::bound_ip)
    }

    /// Binds the socket of UDP lanes to the new address of the interface that the user named, else to all addresses of
    /// the host.
    pub(crate) fn rebind(&mut self) -> io::Result<()> {
        let named = match self.from {
            Some(_) => Some(interface::choose(&self.interface).map_err(io::Error::other)?.ip),
            None => None,
        };
        self.udp.as_mut().map_or(Ok(()), |udp| udp.rebind(named))
    }

    /// The name of lanes of packets, if there are any.
    pub(crate) fn packets_name(&self) -> &'static str {
        self.udp.as_ref().map_or("UDP", Udp::name)
    }

    /// The protocols that messages and lanes are made of.
    pub(crate) fn protocols(&self) -> &Protocols {
        &self.protocols
    }

    /// Makes lanes of these protocols from now on; returns the earlier ones.
    pub(crate) fn set_protocols(&mut self, protocols: Protocols) -> Protocols {
        self.udp.iter_mut().for_each(|udp| udp.set_protocols(protocols.udp.clone()));
        self.paths.set_congestion(protocols.tcp.clone());
        std::mem::replace(&mut self.protocols, protocols)
    }

    /// Whether there are lanes of packets.
    pub(crate) fn has_packets(&self) -> bool {
        self.udp.is_some()
    }

    /// The reason why a fabric that carried lanes has failed, if one has.
    pub(crate) fn fabric_failure(&self) -> Option<&str> {
        self.hubs.failure()
    }

    /// Packets that were dropped.
    pub(crate) fn dropped(&self) -> Dropped {
        self.udp.as_ref().map_or_else(Dropped::default, Udp::dropped)
    }

    fn udp(&mut self) -> io::Result<&mut Udp> {
        self.udp.as_mut().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Begins a look at all lanes for such that stand still.
    pub(crate) fn begin_segment_look(&mut self) {
        self.segments.begin_look();
    }

    /// Why a TCP lane to the process that listens at `at` stands still. `None` while that is not known.
    pub(crate) fn judge_stuck(&mut self, at: SocketAddr, stuck: Stuck) -> Option<Cause> {
        let now = self.paths.now();
        self.segments.judge(now, &mut self.paths.hosts, at, stuck)
    }

    /// Whether this is an address of this host, as far as we know those.
    fn is_near(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || ip == self.own
    }

    /// A descriptor that a sleeping thread has to watch beside those of lanes. Once it is readable, call
    /// [`Carriers::stir`].
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.udp.as_ref().map(Udp::fd)
    }

    /// Notes that [`Carriers::fd`] is readable.
    pub(crate) fn stir(&mut self) {
        self.udp.iter_mut().for_each(Udp::stir);
    }

    /// Whether everything that carriers have to do shows at descriptors, so that the shell need not call
    /// [`Carriers::run_pass`].
    pub(crate) fn is_plain(&self) -> bool {
        (self.hubs.is_off() || self.hubs.is_idle())
            && self.udp.as_ref().is_none_or(Udp::is_idle)
            && self.tls.as_ref().is_none_or(|tls| tls.buffers.is_empty())
            && self.sealed.is_empty()
    }

    /// Drives the state that lanes share, and adds the lanes that this concerns to `ready`, by index. The shell calls
    /// it once in a pass, before it reads any lane.
    pub(crate) fn run_pass(&mut self, ready: &mut Vec<Ready>) {
        self.hubs.poll(&mut self.news);
        ready.extend(self.news.drain(..).map(|news| Ready {
            key: news.key,
            readable: news.readable,
            writable: news.writable,
        }));
        let hosts = &mut self.paths.hosts;
        self.udp.iter_mut().for_each(|udp| udp.run_pass(ready, hosts));
        let held = self.tls.iter_mut().map(|tls| &mut tls.buffers).chain([&mut self.sealed]);
        let read = |index: usize| Ready { key: index as u64, readable: true, writable: false };
        ready.extend(held.flat_map(SharedBuffers::take_readable).map(read));
    }

    /// Lanes, by index, and how much of the bulk data is for them from now on ([`Carrier::bulk`]).
    pub(crate) fn take_changed_bulk(&mut self) -> Vec<(usize, Bulk)> {
        self.tell_news();
        std::mem::take(&mut self.changed_bulk)
    }

    /// Sends the data of UDP lanes that may go now.
    pub(crate) fn flush(&mut self) {
        self.udp.iter_mut().for_each(Udp::flush);
    }

    /// Prepares for a sleep of the driving thread: from now on, lanes' descriptors show when [`Carriers::run_pass`] is
    /// needed.
    pub(crate) fn doze(&mut self) {
        self.hubs.doze();
    }

    /// When [`Carriers::run_pass`] is needed even without events.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        if self.is_plain() {
            return None;
        }
        let udp = self.udp.as_mut().and_then(|udp| udp.deadline(&mut self.paths.hosts));
        let held = self.tls.as_ref().is_some_and(|tls| !tls.buffers.is_empty()) || !self.sealed.is_empty();
        let held = held.then_some(Duration::ZERO);
        self.hubs.deadline().into_iter().chain(udp).chain(held).min()
    }

    /// Whether all data of ended lanes has arrived.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.udp.as_mut().is_none_or(Udp::is_settled)
    }

    /// Whether carriers hold data that was written and never sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.udp.as_ref().is_some_and(Udp::has_unsent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_lanes_are_sealed_and_near_ones_that_leave_the_subnet() {
        let of = |rtt_us| sealing_of(Encrypt::default(), rtt_us);
        assert_eq!([None, Some(999)].map(of), [Sealing::Outside; 2]);
        assert_eq!([Some(1_000), Some(90_000)].map(of), [Sealing::Yes; 2]);
        for rtt_us in [None, Some(10), Some(90_000)] {
            assert_eq!(sealing_of(Encrypt::Always, rtt_us), Sealing::Yes);
            assert_eq!(sealing_of(Encrypt::Never, rtt_us), Sealing::No);
        }
    }
}
