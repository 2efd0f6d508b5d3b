//! The links that stand, and those that should.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use isthmus_wire::frame::RefuseReason;
use isthmus_wire::{AsId, Locator, SubnetId};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsStream;
use tracing::{info, warn};

use crate::dial::{connect, tune_link};
use crate::lane::Lane;
use crate::link::{Link, LinkLane, LinkLimits};
use crate::router::{Arrival, Router};
use crate::settings::Settings;
use crate::{pulse, step};

const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// What the end that was dialled says first: the other cannot tell from the handshake alone
/// that its certificate was accepted.
const ADMITTED: u8 = 1;
/// Between attempts to dial, from the first to the last.
const BACK_OFF: Duration = Duration::from_millis(200);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// How long the last bytes of all links may take when the router ends.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Most links that one AS may have dialled to this router.
const ACCEPTED_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Links {
    standing: Mutex<Vec<Arc<Link>>>,
    /// Which links a task is keeping: way out, gateway, and number.
    kept: Mutex<HashSet<(SubnetId, Locator, usize)>>,
    changed: Notify,
    /// Told when all links are to close.
    closing: Notify,
}

impl Links {
    pub(crate) fn standing(&self) -> Vec<Arc<Link>> {
        self.standing.lock().clone()
    }

    /// A lane on the link with the fewest of them, on `subnet` to one of `gateways` or to one
    /// that dialled us, with a neighbour that `fits`. Where no such link gives signs of life,
    /// waits as long as `patience` for one; where some do but have no room, waiting would not
    /// help.
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
            found.sort_by_key(|link| link.lanes.load(Relaxed));
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
            // Nobody tells when a silent link is heard again.
            let _ = timeout_at(deadline.min(Instant::now() + pulse::PAUSE), changed).await;
        }
    }

    /// Cuts the links with neighbours that are no longer admitted, and all lanes on them.
    pub(crate) fn cut_unless(&self, admitted: impl Fn(AsId) -> bool) {
        for link in self.standing.lock().iter().filter(|link| !admitted(link.neighbour)) {
            link.cut.notify_one();
        }
    }

    /// Closes all links once what their lanes left behind has gone out. Lanes are expected to
    /// have ended.
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

fn wanted(settings: &Settings) -> Vec<(SubnetId, Locator)> {
    let admits = &settings.config.admits;
    let spoken_for = |id: AsId| admits.iter().any(|neighbour| settings.config.lets_speak(*neighbour, id.0));
    step::gateways(&settings.table, &settings.router, spoken_for)
}

fn limits(settings: &Settings) -> LinkLimits {
    // As many again are dialled by the other ends.
    let links = 2 * settings.config.limits.links * wanted(settings).len().max(1);
    LinkLimits::share(settings.config.limits.memory.0, links)
}

impl Router {
    /// Goes by new settings: cuts links that are no longer allowed, and sees to it that every
    /// wanted one is dialled, and dialled again.
    pub(crate) fn follow_links(self: &Arc<Self>) {
        let settings = self.settings();
        self.links.cut_unless(|neighbour| settings.config.admits.contains(&neighbour.0));
        for (subnet, gateway) in wanted(&settings) {
            for number in 0..settings.config.limits.links {
                if self.links.kept.lock().insert((subnet, gateway, number)) {
                    tokio::spawn(self.clone().keep_link(subnet, gateway, number));
                }
            }
        }
    }

    async fn keep_link(self: Arc<Self>, subnet: SubnetId, gateway: Locator, number: usize) {
        let mut back_off = BACK_OFF;
        loop {
            let settings = self.settings();
            let still = wanted(&settings).contains(&(subnet, gateway));
            if !still || number >= settings.config.limits.links || self.draining.load(Relaxed) {
                break;
            }
            match self.dial(&settings, subnet, gateway).await {
                Ok((stream, neighbour)) => {
                    drop(settings);
                    back_off = BACK_OFF;
                    self.run_link(stream, neighbour, subnet, Some(gateway)).await;
                }
                Err(error) => {
                    // The first of a gateway's links speaks for all.
                    if number == 0 && back_off == BACK_OFF {
                        warn!(%gateway, subnet = subnet.0, %error, "no link; trying again");
                    }
                    back_off = (back_off * 2).min(BACK_OFF_MAX);
                }
            }
            // Not all at once, wherever they broke together.
            let share = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
            sleep(back_off.mul_f64(0.5 + share / 2.0)).await;
        }
        self.links.kept.lock().remove(&(subnet, gateway, number));
    }

    async fn dial(
        &self,
        settings: &Settings,
        subnet: SubnetId,
        gateway: Locator,
    ) -> io::Result<(TlsStream<TcpStream>, AsId)> {
        let tls = settings.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let from = settings.place(subnet).and_then(|place| place.listen).map(|listen| listen.ip());
        let stream = connect(gateway, from).await?;
        tune_link(&stream);
        let name = ServerName::IpAddress(gateway.ip().into());
        let mut stream = timeout(HANDSHAKE_TIME, tls.connector.connect(name, stream)).await??;
        // Only now is it sure that the other end believes our certificate.
        timeout(HANDSHAKE_TIME, stream.read_u8()).await??;
        let neighbour = isthmus_trust::peer_as(stream.get_ref().1.peer_certificates());
        let neighbour = neighbour.ok_or(io::ErrorKind::PermissionDenied)?;
        Ok((stream.into(), neighbour))
    }

    /// Makes a link of a connection that another router dialled.
    pub(crate) async fn accept_link<P>(
        self: Arc<Self>,
        stream: TcpStream,
        mut arrival: Arrival,
        arriving: P,
    ) {
        tune_link(&stream);
        let settings = self.settings();
        let Some(tls) = &settings.tls else { return };
        let handshake = timeout(HANDSHAKE_TIME, async {
            let mut stream = tls.acceptor.accept(stream).await?;
            stream.write_u8(ADMITTED).await?;
            stream.flush().await?;
            io::Result::Ok(stream)
        })
        .await;
        let stream = match handshake.map_err(io::Error::from).and_then(|done| done) {
            Ok(stream) => stream,
            Err(error) => {
                self.metrics.strangers.fetch_add(1, Relaxed);
                return self.complain(&arrival, format_args!("no link: {error}"));
            }
        };
        drop((settings, arriving));
        arrival.neighbour = isthmus_trust::peer_as(stream.get_ref().1.peer_certificates());
        let Some(neighbour) = arrival.neighbour else { return };
        if self.links.accepted_from(neighbour) >= ACCEPTED_MAX {
            return self.complain(&arrival, format_args!("no link: this AS has {ACCEPTED_MAX} already"));
        }
        self.run_link(stream.into(), neighbour, arrival.subnet, None).await;
    }

    async fn run_link(
        self: &Arc<Self>,
        stream: TlsStream<TcpStream>,
        neighbour: AsId,
        subnet: SubnetId,
        gateway: Option<Locator>,
    ) {
        let made = Link::new(stream, neighbour, subnet, gateway, limits(&self.settings()));
        let Ok((link, mut work)) = made else { return };
        let peer = link.peer;
        info!(%peer, neighbour = neighbour.0, subnet = subnet.0, dialled = gateway.is_some(), "link up");
        self.links.standing.lock().push(link.clone());
        self.links.changed.notify_waiters();
        let arrival = Arrival { subnet, peer, neighbour: Some(neighbour) };
        if gateway.is_some() {
            let pulsing = link.clone();
            tokio::spawn(async move { pulsing.pulse().await });
        }
        let take = |stream| {
            let lane = Lane::Link(Box::new(link.accepted(stream)));
            tokio::spawn(self.clone().serve(lane, arrival, ()));
        };
        let ended = tokio::select! {
            ended = work.run(take) => ended,
            () = self.links.closing.notified() => {
                let closed = work.close().await;
                link.linger().await;
                closed
            }
            () = link.cut.notified() => Ok(()),
        };
        self.links.standing.lock().retain(|other| !Arc::ptr_eq(other, &link));
        self.links.changed.notify_waiters();
        let error = ended.err().map(|error| error.to_string());
        info!(%peer, neighbour = neighbour.0, subnet = subnet.0, error, "link down");
    }
}
