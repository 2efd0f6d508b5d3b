//! Links: TLS connections over TCP or UDP between routers of two AS's. Many lanes share each link.

mod lane;
mod work;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use isthmus_mux::{Counters, LaneId, Limits};
use isthmus_trust::Shown;
use isthmus_wire::{AsId, Locator, SubnetId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

pub(crate) use self::lane::LinkLane;
pub(crate) use self::work::LinkWork;
use self::work::Shared;
use crate::dial::ANSWER_TIME;
use crate::history::History;
use crate::wire::{Gauge, Sample, Wire};

/// Window of every lane, however many lanes there are. Bytes; enough that a lane is never starved.
const BASE: u32 = 256 << 10;

/// The handle of a link.
pub(crate) struct Link {
    /// The AS that the other end's certificate names.
    pub(crate) neighbour: AsId,
    /// That certificate, and the others that it showed.
    pub(crate) shown: Option<Shown>,
    /// Its number among the links to the same gateway by the same transport.
    pub(crate) number: AtomicUsize,
    /// The WAN subnet that it crosses.
    pub(crate) subnet: SubnetId,
    /// The endpoint that was dialled. None if the other end dialled.
    pub(crate) gateway: Option<Locator>,
    pub(crate) peer: SocketAddr,
    /// Lanes on it, and how many of them this end opened.
    pub(crate) lanes: AtomicUsize,
    opened: AtomicUsize,
    opened_max: usize,
    shared: Arc<Shared>,
    /// Notified when the link must end at once.
    pub(crate) cut: Notify,
    /// When it came up.
    pub(crate) since: Instant,
    /// The state of its wire at the latest sample.
    pub(crate) looked: Mutex<Option<Sample>>,
    /// Its rates and losses of the last minutes.
    pub(crate) history: Mutex<History>,
    /// Reads the state of its wire.
    pub(crate) gauge: Gauge,
}

/// The limits of one of `links` links that share `memory` bytes.
pub(crate) fn limits(memory: u64, links: usize) -> Limits {
    Limits::within(memory / links.max(1) as u64, BASE)
}

impl Link {
    /// Makes a link of a connection whose handshake is done.
    pub(crate) fn new(
        stream: TlsStream<Wire>,
        neighbour: AsId,
        subnet: SubnetId,
        gateway: Option<Locator>,
        limits: Limits,
    ) -> io::Result<(Arc<Self>, LinkWork)> {
        let wire = stream.get_ref().0;
        let (peer, gauge) = (wire.peer_addr()?, wire.gauge()?);
        let shared = Shared::new(gateway.is_some(), limits);
        let shown = Shown::now(stream.get_ref().1.peer_certificates());
        let link = Self {
            neighbour,
            shown,
            number: AtomicUsize::new(0),
            subnet,
            gateway,
            peer,
            lanes: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            // Half is safe: the ends do not see a lane's end at the same time.
            opened_max: limits.lanes as usize / 2,
            shared: shared.clone(),
            cut: Notify::new(),
            since: Instant::now(),
            looked: Mutex::new(None),
            history: Mutex::default(),
            gauge,
        };
        Ok((Arc::new(link), LinkWork::new(stream, shared)))
    }

    /// Whether this end may open one more lane.
    pub(crate) fn has_room(&self) -> bool {
        self.opened.load(Relaxed) < self.opened_max && !self.shared.has_ended()
    }

    /// Whether the other end gives signs of life.
    pub(crate) fn lives(&self) -> bool {
        self.shared.heard.lives()
    }

    /// Bytes that its lanes have sent and may send.
    pub(crate) fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Opens a lane. None if the link has ended or is full.
    pub(crate) async fn lane(self: &Arc<Self>) -> Option<LinkLane> {
        let more = |opened| (opened < self.opened_max).then_some(opened + 1);
        self.opened.fetch_update(Relaxed, Relaxed, more).ok()?;
        let place = LaneEntry::new(self.clone(), true);
        let opened = timeout(ANSWER_TIME, self.shared.open()).await.ok()??;
        Some(LinkLane::new(self.shared.clone(), opened, place))
    }

    /// A handle for a lane that the other end opened.
    pub(crate) fn accepted(self: &Arc<Self>, lane: LaneId) -> LinkLane {
        LinkLane::new(self.shared.clone(), lane, LaneEntry::new(self.clone(), false))
    }
}

/// One lane's entry in its link's lane count. Dropping it frees the entry.
struct LaneEntry {
    link: Arc<Link>,
    opened: bool,
}

impl LaneEntry {
    fn new(link: Arc<Link>, opened: bool) -> Self {
        link.lanes.fetch_add(1, Relaxed);
        Self { link, opened }
    }
}

impl Drop for LaneEntry {
    fn drop(&mut self) {
        self.link.lanes.fetch_sub(1, Relaxed);
        if self.opened {
            self.link.opened.fetch_sub(1, Relaxed);
        }
    }
}
