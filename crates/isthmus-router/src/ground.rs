//! The local fabric of a subnet on which the router stands, and lanes over it.
//!
//! A task turns the fabric: while something moves at every opportunity, else not before a
//! connection of one of its lanes, or its own lanes, call for it.

use std::collections::HashMap;
use std::fmt::Arguments;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use isthmus_fabric::{Hubs, Meeting, Met, News, Pipe, Piped};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::info;

use crate::lane::Lane;

/// Turns in vain before the task sleeps.
const PATIENCE: u32 = 64;
/// How long a step of a meeting may wait without looking again.
const STEP: Duration = Duration::from_millis(1);
/// How long a meeting may take in all once it has begun.
const MEETING: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Ground {
    /// The setting that it was made by.
    wanted: String,
    inner: Mutex<Inner>,
    /// Something is to be turned.
    call: Arc<Notify>,
}

struct Inner {
    hubs: Hubs,
    next_key: u64,
    waiting: HashMap<u64, Waiting>,
    news: Vec<News>,
}

/// Who waits for a lane.
#[derive(Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The grounds in use, one for each subnet.
#[derive(Default)]
pub(crate) struct Grounds(Mutex<HashMap<u32, Arc<Ground>>>);

impl Grounds {
    /// The ground of the subnet with this id, as the settings want it.
    pub(crate) fn of(&self, subnet: u32, wanted: &str, node: IpAddr) -> Arc<Ground> {
        let mut grounds = self.0.lock();
        match grounds.get(&subnet).filter(|ground| ground.wanted == wanted) {
            Some(ground) => ground.clone(),
            None => {
                // Lanes over the one before keep it until they end.
                let ground = Ground::new(wanted, node);
                grounds.insert(subnet, ground.clone());
                ground
            }
        }
    }
}

impl Ground {
    fn new(wanted: &str, node: IpAddr) -> Arc<Self> {
        let hubs = Hubs::new(wanted, node, |what: Arguments<'_>| info!("{what}"));
        let is_off = hubs.is_off();
        let inner = Inner { hubs, next_key: 0, waiting: HashMap::new(), news: Vec::new() };
        let ground =
            Arc::new(Self { wanted: wanted.to_owned(), inner: Mutex::new(inner), call: Arc::default() });
        if !is_off {
            tokio::spawn(turn(Arc::downgrade(&ground), ground.call.clone()));
        }
        ground
    }

    /// The lane of a connection that we made: over the fabric where the other end agrees.
    pub(crate) async fn lead(self: Arc<Self>, stream: TcpStream) -> io::Result<Lane> {
        if self.inner.lock().hubs.is_off() {
            return Ok(Lane::Plain(stream));
        }
        self.meet(stream, Meeting::of_dialled(false)).await
    }

    /// The lane of a connection that came in, whose other end may offer a fabric.
    pub(crate) async fn receive(self: Arc<Self>, stream: TcpStream) -> io::Result<Lane> {
        // Who says nothing, or begins at once, has no part in this.
        stream.readable().await?;
        self.meet(stream, Meeting::of_accepted()).await
    }

    async fn meet(self: Arc<Self>, stream: TcpStream, meeting: Meeting<Pipe>) -> io::Result<Lane> {
        let key = {
            let mut inner = self.inner.lock();
            inner.next_key += 1;
            inner.next_key
        };
        let mut guest = Guest { meeting, ground: &self };
        let met = timeout(MEETING, guest.talk(&stream, key)).await;
        match met.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            Met::Moves(pipe) => Ok(Lane::Fabric(FabricLane::new(self.clone(), stream, pipe, key))),
            _ => Ok(Lane::Plain(stream)),
        }
    }
}

/// A meeting that is called off when it is dropped.
struct Guest<'a> {
    meeting: Meeting<Pipe>,
    ground: &'a Ground,
}

impl Guest<'_> {
    async fn talk(&mut self, stream: &TcpStream, key: u64) -> io::Result<Met<Pipe>> {
        loop {
            let met = self.meeting.go_on(stream.as_fd(), key, &mut self.ground.inner.lock().hubs)?;
            if met != Met::NotYet {
                return Ok(met);
            }
            self.ground.call.notify_one();
            clear(stream);
            // Too early is no harm, and the fabric's answer does not show at the connection.
            let _ = timeout(STEP, stream.readable()).await;
        }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.meeting.call_off(&mut self.ground.inner.lock().hubs);
    }
}

/// Lets the runtime know that all was read that had come.
fn clear(stream: &TcpStream) {
    let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    let _ = stream.try_io(Interest::READABLE, nothing);
}

/// Turns a ground until it is dropped.
async fn turn(ground: Weak<Ground>, call: Arc<Notify>) {
    let mut vain = 0;
    loop {
        let pause = {
            let Some(ground) = ground.upgrade() else { return };
            let mut inner = ground.inner.lock();
            vain = if inner.turn() { 0 } else { vain + 1 };
            match vain {
                0..PATIENCE => Some(Duration::ZERO),
                _ => {
                    inner.hubs.doze();
                    inner.hubs.deadline()
                }
            }
        };
        match pause {
            Some(Duration::ZERO) => tokio::task::yield_now().await,
            Some(pause) => {
                // Either way there is something to look at.
                let _ = timeout(pause, call.notified()).await;
            }
            None => {
                call.notified().await;
                vain = 0;
            }
        }
    }
}

impl Inner {
    /// True where something has moved.
    fn turn(&mut self) -> bool {
        self.hubs.poll(&mut self.news);
        let any = !self.news.is_empty();
        for news in self.news.drain(..) {
            let Some(waiting) = self.waiting.get_mut(&news.key) else { continue };
            let reader = waiting.reader.take_if(|_| news.readable);
            let writer = waiting.writer.take_if(|_| news.writable || news.readable);
            reader.into_iter().chain(writer).for_each(Waker::wake);
        }
        any
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.call.notify_one();
    }
}

/// A lane over a fabric.
pub(crate) struct FabricLane {
    ground: Arc<Ground>,
    pipe: Pipe,
    key: u64,
    /// Listens to the connection that the lane began as.
    listener: JoinHandle<()>,
}

impl FabricLane {
    fn new(ground: Arc<Ground>, stream: TcpStream, pipe: Pipe, key: u64) -> Self {
        ground.inner.lock().waiting.insert(key, Waiting::default());
        let listener = tokio::spawn(listen(Arc::downgrade(&ground), stream, pipe));
        Self { ground, pipe, key, listener }
    }

    /// What `piped` means to the runtime; `place` is where to leave who waits.
    fn outcome(
        &self,
        inner: &mut Inner,
        piped: Piped,
        place: impl FnOnce(&mut Waiting) -> &mut Option<Waker>,
        cx: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match piped {
            Piped::Bytes(n) => Poll::Ready(Ok(n)),
            Piped::Failed(why) => Poll::Ready(Err(io::Error::other(why))),
            Piped::Blocked => {
                *place(inner.waiting.entry(self.key).or_default()) = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Tells the fabric what is said on a lane's connection.
async fn listen(ground: Weak<Ground>, stream: TcpStream, pipe: Pipe) {
    while stream.readable().await.is_ok() {
        let Some(ground) = ground.upgrade() else { return };
        clear(&stream);
        let goes_on = ground.inner.lock().hubs.stir(pipe);
        ground.call.notify_one();
        if !goes_on {
            return;
        }
    }
}

impl AsyncRead for FabricLane {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.ground.inner.lock();
        let piped = inner.hubs.read_into(self.pipe, buf.initialize_unfilled());
        let polled = self.outcome(&mut inner, piped, |waiting| &mut waiting.reader, cx);
        drop(inner);
        // Room that was made may have to be told.
        self.ground.call.notify_one();
        polled.map_ok(|n| buf.advance(n))
    }
}

impl AsyncWrite for FabricLane {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.ground.inner.lock();
        let piped = inner.hubs.write_from(self.pipe, buf);
        let polled = self.outcome(&mut inner, piped, |waiting| &mut waiting.writer, cx);
        drop(inner);
        self.ground.call.notify_one();
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ground.inner.lock().hubs.finish(self.pipe);
        self.ground.call.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for FabricLane {
    fn drop(&mut self) {
        self.listener.abort();
        let mut inner = self.ground.inner.lock();
        inner.hubs.remove(self.pipe);
        inner.waiting.remove(&self.key);
    }
}
