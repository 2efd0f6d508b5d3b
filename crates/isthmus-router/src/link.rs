//! Links: TLS connections, by TCP or UDP, between routers of two AS's, each shared by many lanes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use isthmus_wire::{AsId, Locator, SubnetId};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsStream;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Connection, ConnectionError, Mode, Stream};

use crate::dial::ANSWER_TIME;
use crate::pulse::{self, Heard, Listening};
use crate::wire::{Gauge, Sample, Wire};

/// What a lane's window is at first, by the multiplexer's specification. Bytes.
const WINDOW: usize = 256 << 10;
/// Longest piece of a lane on a link: others wait for it at most. Bytes.
const PIECE: usize = 32 << 10;
/// What the multiplexer queues of a lane when the link is slower. Bytes.
const QUEUE: usize = 12 * PIECE;

/// A link, as those see it who want to use it.
pub(crate) struct Link {
    /// The AS that the other end's certificate names.
    pub(crate) neighbour: AsId,
    /// The way out on which it stands.
    pub(crate) subnet: SubnetId,
    /// The endpoint that was dialled; none where the other end dialled.
    pub(crate) gateway: Option<Locator>,
    pub(crate) peer: SocketAddr,
    /// Lanes on it, and those among them that this end opened.
    pub(crate) lanes: AtomicUsize,
    opened: AtomicUsize,
    opened_max: usize,
    open: mpsc::Sender<oneshot::Sender<Stream>>,
    heard: Arc<Heard>,
    /// Told when the link is to end at once.
    pub(crate) cut: Notify,
    /// What was seen of what carries it when it was last looked at.
    pub(crate) looked: Mutex<Option<Sample>>,
    /// Tells of what carries it.
    pub(crate) gauge: Gauge,
}

/// Bounds of a link, from those of the router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkLimits {
    /// Lanes on a link, whoever opened them.
    lanes: usize,
    /// Windows of all of them together. Bytes.
    window: usize,
}

impl LinkLimits {
    /// The share of one among `links` links.
    pub(crate) fn share(memory: u64, links: usize) -> Self {
        let share = usize::try_from(memory).unwrap_or(usize::MAX) / links.max(1);
        // Half of it for lanes as they are at first, half for windows that grow.
        let lanes = (share / (WINDOW + QUEUE) / 2).clamp(16, 1024);
        Self { lanes, window: share.saturating_sub(lanes * QUEUE).max(lanes * WINDOW) }
    }

    fn config(self) -> yamux::Config {
        let mut config = yamux::Config::default();
        // In this order: each setter checks against the other's value.
        config.set_max_connection_receive_window(None);
        config.set_max_num_streams(self.lanes);
        config.set_max_connection_receive_window(Some(self.window));
        config.set_split_send_size(PIECE);
        config
    }
}

/// The work of a link; done when the link has ended.
pub(crate) struct LinkWork {
    connection: Connection<Compat<BufWriter<Listening<TlsStream<Wire>>>>>,
    requests: mpsc::Receiver<oneshot::Sender<Stream>>,
}

impl Link {
    /// A link over a connection on which the handshake is done.
    pub(crate) fn new(
        stream: TlsStream<Wire>,
        neighbour: AsId,
        subnet: SubnetId,
        gateway: Option<Locator>,
        limits: LinkLimits,
    ) -> io::Result<(Arc<Self>, LinkWork)> {
        let wire = stream.get_ref().0;
        let (peer, gauge) = (wire.peer_addr()?, wire.gauge()?);
        let mode = if gateway.is_some() { Mode::Client } else { Mode::Server };
        // The multiplexer writes header and body apart: together they make one record.
        let heard = Heard::now();
        let stream = Listening { stream, heard: heard.clone() };
        let stream = BufWriter::with_capacity(PIECE + 4096, stream).compat();
        let connection = Connection::new(stream, limits.config(), mode);
        let (open, requests) = mpsc::channel(16);
        let link = Self {
            neighbour,
            subnet,
            gateway,
            peer,
            lanes: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            // One lane too many would end the link with all of its lanes, and the ends do not
            // see the same ones closed at the same time: neither comes near the bound.
            opened_max: limits.lanes / 4,
            open,
            heard,
            cut: Notify::new(),
            looked: Mutex::new(None),
            gauge,
        };
        Ok((Arc::new(link), LinkWork { connection, requests }))
    }

    /// Whether one more lane may be opened from here.
    pub(crate) fn has_room(&self) -> bool {
        self.opened.load(Relaxed) < self.opened_max && !self.open.is_closed()
    }

    /// Whether the other end gives signs of life.
    pub(crate) fn lives(&self) -> bool {
        self.heard.lives()
    }

    /// Opens a lane; none where the link ended or is full.
    pub(crate) async fn lane(self: &Arc<Self>) -> Option<LinkLane> {
        let more = |opened| (opened < self.opened_max).then_some(opened + 1);
        self.opened.fetch_update(Relaxed, Relaxed, more).ok()?;
        let place = Place::new(self.clone(), true);
        let opened = timeout(ANSWER_TIME, self.stream());
        Some(LinkLane::new(opened.await.ok()??, place))
    }

    async fn stream(&self) -> Option<Stream> {
        let (reply, stream) = oneshot::channel();
        self.open.send(reply).await.ok()?;
        stream.await.ok()
    }

    /// Opens the link's pulse, and keeps it until the link ends. The end that dialled does.
    pub(crate) async fn pulse(&self) {
        if let Some(stream) = self.stream().await {
            // It ends with the link, which says why.
            let _ = pulse::keep(stream.compat()).await;
        }
    }

    /// The lane that the other end opened as `stream`.
    pub(crate) fn accepted(self: &Arc<Self>, stream: Stream) -> LinkLane {
        LinkLane::new(stream, Place::new(self.clone(), false))
    }
}

impl LinkWork {
    /// Does the link's work until it ends; lanes from the other end go to `accept`.
    pub(crate) async fn run(&mut self, mut accept: impl FnMut(Stream)) -> Result<(), ConnectionError> {
        let mut waiting = None;
        std::future::poll_fn(move |cx| {
            loop {
                if waiting.is_none()
                    && let Poll::Ready(Some(request)) = self.requests.poll_recv(cx)
                {
                    waiting = Some(request);
                }
                if waiting.is_some()
                    && let Poll::Ready(opened) = self.connection.poll_new_outbound(cx)
                {
                    let stream = opened?;
                    if let Some(request) = waiting.take() {
                        // Who does not wait any longer drops it, which closes it.
                        let _: Result<(), Stream> = oneshot::Sender::send(request, stream);
                    }
                    continue;
                }
                match self.connection.poll_next_inbound(cx) {
                    Poll::Ready(Some(stream)) => accept(stream?),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Sends what lanes have left behind, and closes.
    pub(crate) async fn close(&mut self) -> Result<(), ConnectionError> {
        std::future::poll_fn(|cx| self.connection.poll_close(cx)).await
    }
}

/// A lane's place among those of its link.
struct Place {
    link: Arc<Link>,
    opened: bool,
}

impl Place {
    fn new(link: Arc<Link>, opened: bool) -> Self {
        link.lanes.fetch_add(1, Relaxed);
        Self { link, opened }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.link.lanes.fetch_sub(1, Relaxed);
        if self.opened {
            self.link.opened.fetch_sub(1, Relaxed);
        }
    }
}

/// A lane on a link.
pub(crate) struct LinkLane {
    stream: Compat<Stream>,
    shut: bool,
    // After the stream, so that its place is free no sooner than it is gone.
    _place: Place,
}

impl LinkLane {
    fn new(stream: Stream, place: Place) -> Self {
        Self { stream: stream.compat(), shut: false, _place: place }
    }

    /// It turned out to be the link's pulse, which takes no place of a lane.
    pub(crate) async fn pulse(self) {
        let Self { stream, .. } = self;
        // As above.
        let _ = pulse::keep(stream).await;
    }
}

impl AsyncRead for LinkLane {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let ended = matches!(read, Poll::Ready(Ok(()))) && buf.filled().len() == before;
        // The multiplexer reports a lane that was cut as one that ended.
        if ended && !self.shut && self.stream.get_ref().is_closed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        read
    }
}

impl AsyncWrite for LinkLane {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut = true;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
