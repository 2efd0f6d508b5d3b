//! The set of links: those that are up, and those that should be.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isthmus_datagram::scarcity::Sparing;
use isthmus_mux::Limits;
use isthmus_path::links::LinksSeen;
use isthmus_path::{Carrier, Micros};
use isthmus_udp::Cap;
use isthmus_units::Rate;
use isthmus_wire::frame::RefuseReason;
use isthmus_wire::{AsId, Locator, SubnetId};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsStream;
use tracing::{info, warn};

use crate::dial::{connect, tell_refused, tune_link};
use crate::lane::Lane;
use crate::link::{self, Link, LinkLane};
use crate::router::{Arrival, Router};
use crate::settings::Settings;
use crate::tls::why;
use crate::wire::{Sample, Transport, Wire};
use crate::{heartbeat, step};

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// First byte from the dialled end. The dialling end cannot tell from the handshake alone that its certificate was
/// accepted.
const ADMITTED: u8 = 1;
/// First and longest pause between attempts to dial; each failure doubles the pause.
const BACK_OFF: Duration = Duration::from_millis(200);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// When the router ends, its links get this time to send their last bytes.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Limit on links that one AS may have dialled to this router.
const ACCEPTED_MAX: usize = 64;

/// A link to keep up: its number among those to a gateway on a WAN subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kept {
    subnet: SubnetId,
    gateway: Locator,
    transport: Transport,
    number: usize,
}

/// The set of links; see the module.
#[derive(Default)]
pub(crate) struct Links {
    standing: Mutex<Vec<Arc<Link>>>,
    /// The links that have a task that redials them.
    kept: Mutex<HashSet<Kept>>,
    /// The rate limit that all links of a subnet share.
    caps: Mutex<HashMap<SubnetId, Cap>>,
    changed: Notify,
    /// Notified when all links must close.
    closing: Notify,
}

impl Links {
    pub(crate) fn standing(&self) -> Vec<Arc<Link>> {
        self.standing.lock().clone()
    }

    /// Opens a lane on the link that has the fewest lanes. The link is on `subnet`, leads to one of `gateways` or was
    /// dialled by the other end, and its neighbour satisfies `fits`. If no such link is alive, this waits for one up to
    /// `patience`. If some are alive but full, it does not wait.
    pub(crate) async fn lane(
        &self,
        subnet: SubnetId,
        gateways: &[Locator],
        fits: impl Fn(AsId) -> bool,
        patience: Duration,
    ) -> Result<LinkLane, RefuseReason> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            let usable = |link: &&Arc<Link>| {
                let meant = link.gateway.is_none_or(|gateway| gateways.contains(&gateway));
                link.subnet == subnet && meant && fits(link.neighbour) && link.lives()
            };
            let mut found: Vec<_> = self.standing.lock().iter().filter(usable).cloned().collect();
            let (better, _) = better(&found);
            found.sort_by_key(|link| (link.gauge.transport() != better, link.lanes.load(Relaxed)));
            for link in found.iter().filter(|link| link.has_room()) {
                if let Some(lane) = link.lane().await {
                    return Ok(lane);
                }
            }
            if !found.is_empty() && found.iter().all(|link| !link.has_room()) {
                return Err(RefuseReason::Full);
            }
            if Instant::now() >= deadline {
                return Err(RefuseReason::Unreached);
            }
            // No event tells that a silent link is heard again, so look once per pause.
            let _ = timeout_at(deadline.min(Instant::now() + heartbeat::PAUSE), changed).await;
        }
    }

    /// The reason, in words, for the transport that new lanes take on the path of `link`.
    pub(crate) fn why(standing: &[Arc<Link>], link: &Link) -> &'static str {
        let same = |other: &&Arc<Link>| (other.subnet, other.neighbour) == (link.subnet, link.neighbour);
        let path: Vec<_> = standing.iter().filter(same).cloned().collect();
        let first = path.first().map(|link| link.gauge.transport());
        match path.iter().all(|link| Some(link.gauge.transport()) == first) {
            true => "the only transport that is up",
            false => better(&path).1,
        }
    }

    /// Applies the rate limit of its subnet to a new link.
    fn hold(&self, settings: &Settings, subnet: SubnetId, wire: &mut Wire) {
        let limit = settings.place(subnet).and_then(|place| place.rate_limit);
        let mut caps = self.caps.lock();
        let Some(Rate(bits_per_s)) = limit else {
            caps.remove(&subnet);
            return;
        };
        let wanted = Cap::new(bits_per_s / 8);
        let cap = caps.entry(subnet).or_insert_with(|| wanted.clone());
        if cap.bytes_per_s() != wanted.bytes_per_s() {
            *cap = wanted;
        }
        wire.hold(cap);
    }

    /// Adds a link. Its number is the lowest that no other link to the same peer has. So metrics need few names, and
    /// each link has its own.
    fn add(&self, link: &Arc<Link>) {
        let key = |link: &Link| (link.neighbour, link.subnet, link.peer.ip(), link.gauge.transport());
        let mut standing = self.standing.lock();
        let mut taken: Vec<usize> = standing
            .iter()
            .filter(|other| key(other) == key(link))
            .map(|other| other.number.load(Relaxed))
            .collect();
        taken.sort_unstable();
        let free = taken.iter().zip(0..).take_while(|(number, expected)| **number == *expected).count();
        link.number.store(free, Relaxed);
        standing.push(link.clone());
    }

    /// Waits for about `pause` before a link is dialled again. If the last link to this gateway ends or falls silent
    /// meanwhile, it waits for no more than about [`BACK_OFF`]: another transport may work by then.
    async fn rest(&self, (subnet, gateway): (SubnetId, Locator), pause: Duration) {
        // A random part: links that broke together must not redial at the same moment.
        let share = 0.5 + f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX) / 2.0;
        let mut deadline = Instant::now() + pause.mul_f64(share);
        let leads = |link: &Arc<Link>| (link.subnet, link.gateway) == (subnet, Some(gateway)) && link.lives();
        let lives = || self.standing.lock().iter().any(leads);
        let mut lived = lives();
        while Instant::now() < deadline {
            let changed = self.changed.notified();
            // No event tells that a link is silent, so look once per pause.
            let _ = timeout_at(deadline.min(Instant::now() + heartbeat::PAUSE), changed).await;
            if std::mem::replace(&mut lived, lives()) && !lived {
                deadline = deadline.min(Instant::now() + BACK_OFF.mul_f64(share));
            }
        }
    }

    /// Cuts the links that are no longer admitted, and all lanes on them.
    pub(crate) fn cut_unless(&self, admitted: impl Fn(&Link) -> bool) {
        for link in self.standing.lock().iter().filter(|link| !admitted(link)) {
            link.cut.notify_one();
        }
    }

    /// Closes all links after their last bytes were sent. All lanes should have ended before.
    pub(crate) async fn close(&self) {
        self.closing.notify_waiters();
        let deadline = Instant::now() + CLOSE_TIME;
        loop {
            let changed = self.changed.notified();
            if self.standing.lock().is_empty() || timeout_at(deadline, changed).await.is_err() {
                return;
            }
        }
    }

    fn accepted_from(&self, neighbour: AsId) -> usize {
        let standing = self.standing.lock();
        standing.iter().filter(|link| link.gateway.is_none() && link.neighbour == neighbour).count()
    }
}

/// The gateways to keep links to, with the WAN subnet of each.
fn wanted(settings: &Settings) -> Vec<(SubnetId, Locator)> {
    let admits = &settings.config.admits;
    let spoken_for = |id: AsId| admits.iter().any(|neighbour| settings.config.lets_speak(*neighbour, id.0));
    step::gateways(&settings.table, &settings.router, spoken_for)
}

/// The better transport for a path, and why.
fn better(links: &[Arc<Link>]) -> (Transport, &'static str) {
    let samples: Vec<_> = links.iter().filter_map(|link| link.gauge.sample()).collect();
    let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
    let (carrier, why) = isthmus_path::links::better(LinksSeen {
        rtt_us: samples.iter().map(|sample| sample.rtt.as_micros() as Micros).min(),
        sent: sum(|sample| sample.sent),
        resent: sum(|sample| sample.retransmitted),
    });
    (if carrier == Carrier::Udp { Transport::Udp } else { Transport::Tcp }, why)
}

/// The unspecified address of the same family as `to`.
fn any(to: Locator) -> SocketAddr {
    let ip = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// The links to keep up.
fn to_keep(settings: &Settings) -> Vec<Kept> {
    let mut kept = Vec::new();
    for (subnet, gateway) in wanted(settings) {
        for transport in settings.place(subnet).map_or(&[] as &[_], |place| place.transports) {
            // One UDP stream fills a path alone, also with losses.
            let links = if *transport == Transport::Udp { 1 } else { settings.config.limits.links };
            let number = 0..links;
            kept.extend(number.map(|number| Kept { subnet, gateway, transport: *transport, number }));
        }
    }
    kept
}

/// Whether a link may stand: its AS is admitted, its certificate is believed, and the map names its other end.
fn may_stand(settings: &Settings, link: &Link) -> bool {
    let shown = link.shown.as_ref();
    let is_believed = shown.is_none_or(|shown| settings.tls.as_ref().is_some_and(|tls| tls.believes(shown)));
    let is_named = match link.gateway {
        Some(gateway) => wanted(settings).contains(&(link.subnet, gateway)),
        None => is_named(settings, link.subnet, link.neighbour, link.peer),
    };
    settings.config.admits.contains(&link.neighbour.0) && is_believed && is_named
}

/// Whether the map lets AS `neighbour` dial a link from `peer`.
fn is_named(settings: &Settings, subnet: SubnetId, neighbour: AsId, peer: SocketAddr) -> bool {
    step::is_gateway(&settings.table, subnet, neighbour, peer.ip().to_canonical())
}

fn limits(settings: &Settings) -> Limits {
    // The other ends dial the same number of links to us.
    link::limits(settings.config.limits.memory.0, 2 * to_keep(settings).len())
}

impl Router {
    /// Applies new settings: cuts links that are no longer allowed, and starts a task for each wanted link that dials
    /// and redials it.
    pub(crate) fn follow_links(self: &Arc<Self>) {
        let settings = self.settings();
        self.links.cut_unless(|link| may_stand(&settings, link));
        for kept in to_keep(&settings) {
            if self.links.kept.lock().insert(kept) {
                tokio::spawn(self.clone().keep_link(kept));
            }
        }
    }

    async fn keep_link(self: Arc<Self>, kept: Kept) {
        let Kept { subnet, gateway, transport, number } = kept;
        // A gateway may take links and break them again and again.
        let sparing = Sparing::new();
        let mut back_off = BACK_OFF;
        loop {
            let settings = self.settings();
            if !to_keep(&settings).contains(&kept) || self.draining.load(Relaxed) {
                break;
            }
            match self.dial(&settings, kept).await {
                Ok((stream, neighbour)) => {
                    drop(settings);
                    back_off = BACK_OFF;
                    self.run_link(stream, neighbour, subnet, Some(gateway)).await;
                }
                Err(error) => {
                    // Only the first link to a gateway logs.
                    if number == 0
                        && back_off == BACK_OFF
                        && let Some(left_out) = sparing.due(std::time::Instant::now())
                    {
                        let error = why(&error);
                        warn!(%gateway, subnet = subnet.0, %transport, error, "no link; trying again{left_out}");
                    }
                    tell_refused(gateway, &error);
                    back_off = (back_off * 2).min(BACK_OFF_MAX);
                }
            }
            self.links.rest((subnet, gateway), back_off).await;
        }
        self.links.kept.lock().remove(&kept);
    }

    async fn dial(&self, settings: &Settings, kept: Kept) -> io::Result<(TlsStream<Wire>, AsId)> {
        let tls = settings.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let listen = settings.place(kept.subnet).and_then(|place| place.listen);
        let gateway = kept.gateway;
        let mut wire = match kept.transport {
            Transport::Tcp => {
                let stream = connect(gateway, listen.map(|listen| listen.ip())).await?;
                tune_link(&stream);
                Wire::from(stream)
            }
            Transport::Udp => self.datagrams.at(listen.unwrap_or_else(|| any(gateway)))?.dial(gateway).into(),
        };
        self.links.hold(settings, kept.subnet, &mut wire);
        let name = ServerName::IpAddress(gateway.ip().into());
        let mut stream = timeout(HANDSHAKE_TIME, tls.connector.connect(name, wire)).await??;
        // This byte shows that the other end accepted our certificate.
        timeout(HANDSHAKE_TIME, stream.read_u8()).await??;
        let neighbour = isthmus_trust::peer_as(stream.get_ref().1.peer_certificates());
        let neighbour = neighbour.ok_or(io::ErrorKind::PermissionDenied)?;
        Ok((stream.into(), neighbour))
    }

    /// Accepts a connection that another router dialled, and makes a link of it.
    pub(crate) async fn accept_link<P>(
        self: Arc<Self>,
        stream: impl Into<Wire>,
        mut arrival: Arrival,
        arriving: P,
    ) {
        let mut stream: Wire = stream.into();
        let settings = self.settings();
        self.links.hold(&settings, arrival.subnet, &mut stream);
        let Some(tls) = &settings.tls else { return };
        let handshake = timeout(HANDSHAKE_TIME, async {
            let mut stream = tls.acceptor.accept(stream).await?;
            let neighbour = isthmus_trust::peer_as(stream.get_ref().1.peer_certificates());
            let named = neighbour.filter(|id| is_named(&settings, arrival.subnet, *id, arrival.peer));
            if named.is_some() {
                stream.write_u8(ADMITTED).await?;
                stream.flush().await?;
            }
            io::Result::Ok((stream, neighbour, named))
        })
        .await;
        let (stream, neighbour, named) = match handshake.map_err(io::Error::from).and_then(|done| done) {
            Ok(done) => done,
            Err(error) => {
                self.metrics.strangers.fetch_add(1, Relaxed);
                return self.complain(&arrival, format_args!("no link: {}", why(&error)));
            }
        };
        stream.get_ref().0.admit();
        arrival.neighbour = neighbour;
        let Some(neighbour) = named else {
            let why = "the map names other gateways of this AS, and not this host; add it to its gateways";
            return self.complain(&arrival, format_args!("no link: {why}"));
        };
        drop((settings, arriving));
        if self.links.accepted_from(neighbour) >= ACCEPTED_MAX {
            return self.complain(&arrival, format_args!("no link: this AS has {ACCEPTED_MAX} already"));
        }
        self.run_link(stream.into(), neighbour, arrival.subnet, None).await;
    }

    async fn run_link(
        self: &Arc<Self>,
        stream: TlsStream<Wire>,
        neighbour: AsId,
        subnet: SubnetId,
        gateway: Option<Locator>,
    ) {
        let made = Link::new(stream, neighbour, subnet, gateway, limits(&self.settings()));
        let Ok((link, mut work)) = made else { return };
        let peer = link.peer;
        let (dialled, transport) = (gateway.is_some(), link.gauge.transport());
        info!(%peer, neighbour = neighbour.0, subnet = subnet.0, %transport, dialled, "link up");
        self.links.add(&link);
        // A reload may have come after the handshake began, which was by the settings before.
        if !may_stand(&self.settings(), &link) {
            link.cut.notify_one();
        }
        self.links.changed.notify_waiters();
        let arrival = Arrival { subnet, peer, neighbour: Some(neighbour) };
        let take = |lane| {
            let lane = Lane::Link(link.accepted(lane));
            tokio::spawn(self.clone().serve(lane, arrival, ()));
        };
        let ended = tokio::select! {
            ended = work.run(take) => ended,
            () = self.links.closing.notified() => {
                let closed = work.close().await;
                link.gauge.linger().await;
                closed
            }
            () = link.cut.notified() => Ok(()),
        };
        self.links.standing.lock().retain(|other| !Arc::ptr_eq(other, &link));
        self.links.changed.notify_waiters();
        let error = ended.err().map(|error| ended_text(&error));
        info!(%peer, neighbour = neighbour.0, subnet = subnet.0, %transport, error, "link down");
    }
}

/// Why a link ended. Where the other end has just gone, the text of rustls names a page of its manual.
fn ended_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed without notice: the other router has ended, or no longer admits this link"
                .to_owned(),
        _ => why(error),
    }
}
