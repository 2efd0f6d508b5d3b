//! Serves a lane from its Hello to its end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use isthmus_datagram::scarcity::Sparing;
use isthmus_routes::{Measured, Table};
use isthmus_wire::frame::{HOPS_MAX, Hello, RefuseReason};
use isthmus_wire::{AsId, SubnetId};
use parking_lot::{Mutex, RwLock};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::arrivals::Arrivals;
use crate::datagram::DatagramPorts;
use crate::dial::Failed;
use crate::hello::{self, HELLO_TIME, NoHello};
use crate::lane::Lane;
use crate::links::Links;
use crate::local_fabric::{LocalFabric, LocalFabrics};
use crate::measure::Paths;
use crate::metrics::{Counted, Metrics};
use crate::names::{Names, is_own};
use crate::quota::{Quotas, Share, Source};
use crate::relay::relay;
use crate::settings::{Interface, Settings};
use crate::step::{is_router, may_claim};

/// Most lines about faults of peers in 10 s ([`isthmus_datagram::scarcity::LINE_PAUSE`]), however many addresses they
/// come from. Count.
const COMPLAINTS_MAX: u32 = 10;

/// The subnet, address and neighbour that a lane came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) subnet: SubnetId,
    pub(crate) peer: SocketAddr,
    /// The neighbour's AS according to its certificate. None inside this AS.
    pub(crate) neighbour: Option<AsId>,
}

impl Arrival {
    /// The source that the lane is charged to.
    pub(crate) fn source(&self) -> Source {
        self.neighbour.map_or(Source::Host(self.peer.ip().to_canonical()), Source::Neighbour)
    }
}

/// The state that all tasks of the router share.
pub(crate) struct Router {
    settings: RwLock<Arc<Settings>>,
    pub(crate) metrics: Metrics,
    pub(crate) links: Links,
    pub(crate) paths: Mutex<Paths>,
    pub(crate) failed: Failed,
    pub(crate) names: Names,
    fabrics: LocalFabrics,
    pub(crate) datagrams: DatagramPorts,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) draining: AtomicBool,
    lanes: AtomicUsize,
    lanes_of: Arc<Quotas>,
    pub(crate) look_ups: Arc<Quotas>,
    /// Notified when the last lane ends.
    pub(crate) idle: Notify,
    complaints: Complaints,
    /// Bounds them also when each comes from another address.
    complaints_of_all: Sparing,
}

impl Router {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings: RwLock::new(Arc::new(settings)),
            metrics: Metrics::default(),
            links: Links::default(),
            paths: Mutex::default(),
            failed: Failed::default(),
            names: Names::default(),
            fabrics: LocalFabrics::default(),
            datagrams: DatagramPorts::default(),
            arrivals: Arc::default(),
            draining: AtomicBool::new(false),
            lanes: AtomicUsize::new(0),
            lanes_of: Arc::default(),
            look_ups: Arc::default(),
            idle: Notify::new(),
            complaints: Complaints::default(),
            complaints_of_all: Sparing::letting(COMPLAINTS_MAX),
        })
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    pub(crate) fn replace_settings(&self, settings: Settings) {
        *self.settings.write() = Arc::new(settings);
    }

    /// Uses a new table, which was computed for `settings`, unless the settings were replaced meanwhile.
    pub(crate) fn replace_table(&self, settings: &Arc<Settings>, table: Table, measured: Measured) {
        let mut current = self.settings.write();
        if Arc::ptr_eq(&current, settings) {
            *current = Arc::new(Settings { table, measured, ..Settings::clone(settings) });
        }
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes.load(Relaxed)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// The local fabric of a subnet.
    pub(crate) fn local_fabric(&self, place: &Interface) -> Arc<LocalFabric> {
        let node = place.listen.map_or(Ipv4Addr::UNSPECIFIED.into(), |listen| listen.ip());
        self.fabrics.of(place.subnet.0, &place.fabric, node)
    }

    /// Like [`Router::serve`], for an incoming connection that may move to a fabric.
    pub(crate) async fn serve_plain<P>(self: Arc<Self>, stream: TcpStream, arrival: Arrival, arriving: P) {
        let settings = self.settings();
        let Some(place) = settings.place(arrival.subnet) else { return };
        let local_fabric = self.local_fabric(place);
        drop(settings);
        match timeout(HELLO_TIME, local_fabric.receive(stream)).await {
            Ok(Ok(lane)) => self.serve(lane, arrival, arriving).await,
            Ok(Err(error)) => {
                self.metrics.strangers.fetch_add(1, Relaxed);
                self.complain(&arrival, format_args!("connection closed: {error}"));
            }
            Err(_) => self.complain(&arrival, format_args!("connection closed: it says nothing")),
        }
    }

    /// Serves a lane from its first byte to its last. `arriving` is dropped once the Hello is read.
    pub(crate) async fn serve<P>(self: Arc<Self>, mut lane: Lane, arrival: Arrival, arriving: P) {
        let settings = self.settings();
        let hello = match hello::read(&mut lane).await {
            Ok(hello) => hello,
            Err(NoHello::Silent) => return,
            Err(NoHello::Version(version)) => {
                self.complain(&arrival, format_args!("lane in version {version} of the protocol refused"));
                return self.refuse(lane, RefuseReason::Version).await;
            }
            Err(fault) => {
                self.metrics.strangers.fetch_add(1, Relaxed);
                return self.complain(&arrival, format_args!("connection closed: {fault}"));
            }
        };
        let place = match self.admit(&settings, &arrival, &hello) {
            Ok(place) => place,
            Err(reason) => return self.refuse_hello(lane, &arrival, &hello, reason).await,
        };
        if is_own(&settings, &hello.target) {
            drop((settings, arriving));
            return self.serve_names(lane, &hello, &arrival).await;
        }
        let onward = self.onward(&settings, &arrival, &hello).await;
        drop(settings);
        match onward {
            Ok((mut next, subnet)) => {
                drop(arriving);
                let counted = Counted::new(self.metrics.of(arrival.subnet), self.metrics.of(subnet));
                let passed = Hello { hops: hello.hops + 1, ..hello };
                debug!(source = %hello.source, target = %hello.target, from = arrival.subnet.0, to = subnet.0, "lane");
                let ended = match next.write_all(&hello::encoded(passed)).await {
                    Ok(()) => relay(&mut lane, &mut next, &counted.from, &counted.to).await,
                    Err(error) => Err(error),
                };
                debug!(source = %hello.source, target = %hello.target, ?ended, "lane ended");
            }
            Err(reason) => {
                drop(place);
                self.refuse_hello(lane, &arrival, &hello, reason).await;
            }
        }
    }

    /// Makes the checks that do not depend on the route.
    fn admit(
        self: &Arc<Self>,
        settings: &Settings,
        arrival: &Arrival,
        hello: &Hello,
    ) -> Result<LanePlace, RefuseReason> {
        if hello.hops >= HOPS_MAX {
            return Err(RefuseReason::Loop);
        }
        let source = (hello.source.as_id, hello.source.subnet);
        let mut by_router = false;
        let believed = match arrival.neighbour {
            Some(neighbour) => {
                source.0 != settings.as_id() && settings.config.lets_speak(neighbour.0, source.0.0)
            }
            None => {
                let ip = arrival.peer.ip().to_canonical();
                by_router = is_router(&settings.table, &settings.router.name, arrival.subnet, ip);
                // A host speaks for its own endpoints only.
                let is_own = by_router || hello.source.locator.ip().to_canonical() == ip;
                if !is_own {
                    let source = hello.source;
                    self.complain(
                        arrival,
                        format_args!(
                            "lane in the name of {source} refused: it comes from {ip}; name that interface to the \
                             endpoint (FI_ISTHMUS_INTERFACE)"
                        ),
                    );
                }
                is_own && may_claim(&settings.table, arrival.subnet, by_router, source)
            }
        };
        if !believed {
            return Err(RefuseReason::Denied);
        }
        if self.draining.load(Relaxed) {
            return Err(RefuseReason::Full);
        }
        let more = |lanes| (lanes < settings.config.limits.lanes).then_some(lanes + 1);
        self.lanes.fetch_update(Relaxed, Relaxed, more).map_err(|_| RefuseReason::Full)?;
        let mut place = LanePlace { router: self.clone(), _share: None };
        // A router of this AS brings lanes of many hosts, so it has no limit of its own.
        if !by_router {
            let most = settings.config.limits.lanes_of_one();
            place._share = Some(self.lanes_of.take(arrival.source(), most).ok_or(RefuseReason::Full)?);
        }
        Ok(place)
    }

    async fn refuse_hello(&self, lane: Lane, arrival: &Arrival, hello: &Hello, reason: RefuseReason) {
        debug!(source = %hello.source, target = %hello.target, ?reason, "lane refused");
        if reason == RefuseReason::Denied {
            let (source, target) = (hello.source, hello.target);
            self.complain(arrival, format_args!("lane from {source} to {target} refused: not admitted"));
        }
        self.refuse(lane, reason).await;
    }

    async fn refuse(&self, mut lane: Lane, reason: RefuseReason) {
        self.metrics.refused(reason);
        hello::refuse(&mut lane, reason).await;
    }

    /// Logs a fault of a peer, with a rate limit.
    pub(crate) fn complain(&self, arrival: &Arrival, what: std::fmt::Arguments<'_>) {
        let now = Instant::now();
        if let Some(left_out) = self.complaints.due(arrival.peer.ip().to_canonical(), now)
            && let Some(others) = self.complaints_of_all.due(now)
        {
            let neighbour = arrival.neighbour.map(|id| id.0);
            warn!(peer = %arrival.peer, subnet = arrival.subnet.0, neighbour, left_out, "{what}{others}");
        }
    }
}

/// One lane's entry in the router's lane count. Dropping it frees the entry.
struct LanePlace {
    router: Arc<Router>,
    /// Its unit of the source's limit.
    _share: Option<Share>,
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        if self.router.lanes.fetch_sub(1, Relaxed) == 1 {
            self.router.idle.notify_waiters();
        }
    }
}

/// Limits the log to one line a minute for each address, with the number of lines left out. Addresses beyond the
/// table's size share one line.
#[derive(Default)]
struct Complaints(Mutex<Told>);

#[derive(Default)]
struct Told {
    /// The time of the last line, and the number left out since.
    last: HashMap<IpAddr, Option<(Instant, u64)>>,
    others: Option<(Instant, u64)>,
}

impl Complaints {
    const PAUSE: Duration = Duration::from_secs(60);
    const MAX: usize = 1024;

    /// The number of lines left out since the last one about `ip`; `None` if no line is due.
    fn due(&self, ip: IpAddr, now: Instant) -> Option<u64> {
        let Told { last, others } = &mut *self.0.lock();
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < Self::PAUSE;
        if last.len() >= Self::MAX {
            last.retain(|_, told| told.is_some_and(|(at, _)| is_fresh(at)));
        }
        let is_known = last.contains_key(&ip) || last.len() < Self::MAX;
        let told = if is_known { last.entry(ip).or_default() } else { others };
        if let Some((at, left_out)) = told
            && is_fresh(*at)
        {
            *left_out += 1;
            return None;
        }
        Some(told.replace((now, 0)).map_or(0, |(_, left_out)| left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_complained_about_once_in_a_while_and_what_is_left_out_is_counted() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let due = |last, s| complaints.due([10, 0, 0, last].into(), start + Duration::from_secs(s));
        assert_eq!(due(1, 0), Some(0));
        assert!((0..500).all(|_| due(1, 1).is_none()));
        assert_eq!((due(2, 1), due(1, 60), due(1, 61)), (Some(0), Some(500), None));
    }

    #[test]
    fn a_crowd_of_addresses_is_worth_so_many_lines_and_its_others_one() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        let due = |n: u16| complaints.due([10, 1, (n >> 8) as u8, n as u8].into(), now);
        assert_eq!((0..5000).filter_map(due).count(), Complaints::MAX + 1);
        assert_eq!(complaints.0.lock().others.map(|(_, left_out)| left_out), Some(5000 - 1025));
    }
}
