//! The local fabric of a subnet on which the router stands, and lanes over it.
//!
//! A task drives the fabric. While something moves it polls all the time. Otherwise it sleeps until a lane, or the
//! connection of a lane, wakes it.

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

/// Polls without result before the task sleeps.
const PATIENCE: u32 = 64;
/// Longest wait in one step of a handshake before the fabric is polled again. The fabric's answer does not wake the
/// task.
const STEP: Duration = Duration::from_millis(1);
/// Longest time for a whole handshake.
const MEETING: Duration = Duration::from_secs(5);

/// The local fabric of one subnet; see the module.
pub(crate) struct LocalFabric {
    /// The setting that it was made from.
    wanted: String,
    inner: Mutex<Inner>,
    /// Wakes the task that drives the fabric.
    call: Arc<Notify>,
}

struct Inner {
    hubs: Hubs,
    next_key: u64,
    waiting: HashMap<u64, Waiting>,
    news: Vec<News>,
}

/// The tasks that wait for one lane.
#[derive(Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The local fabrics in use, one for each subnet.
#[derive(Default)]
pub(crate) struct LocalFabrics(Mutex<HashMap<u32, Arc<LocalFabric>>>);

impl LocalFabrics {
    /// The fabric of this subnet. It is made anew if the setting has changed.
    pub(crate) fn of(&self, subnet: u32, wanted: &str, node: IpAddr) -> Arc<LocalFabric> {
        let mut fabrics = self.0.lock();
        match fabrics.get(&subnet).filter(|fabric| fabric.wanted == wanted) {
            Some(fabric) => fabric.clone(),
            None => {
                // Lanes over the old fabric keep it until they end.
                let fabric = LocalFabric::new(wanted, node);
                fabrics.insert(subnet, fabric.clone());
                fabric
            }
        }
    }
}

impl LocalFabric {
    fn new(wanted: &str, node: IpAddr) -> Arc<Self> {
        let hubs = Hubs::new(wanted, node, |what: Arguments<'_>| info!("{what}"));
        let is_off = hubs.is_off();
        let inner = Inner { hubs, next_key: 0, waiting: HashMap::new(), news: Vec::new() };
        let fabric =
            Arc::new(Self { wanted: wanted.to_owned(), inner: Mutex::new(inner), call: Arc::default() });
        if !is_off {
            tokio::spawn(drive(Arc::downgrade(&fabric), fabric.call.clone()));
        }
        fabric
    }

    /// Makes a lane of a connection that we dialled. It goes over the fabric if the other end agrees.
    pub(crate) async fn lead(self: Arc<Self>, stream: TcpStream) -> io::Result<Lane> {
        if self.inner.lock().hubs.is_off() {
            return Ok(Lane::Plain(stream));
        }
        self.meet(stream, Meeting::of_dialled(false)).await
    }

    /// Makes a lane of an incoming connection. The other end may offer a fabric.
    pub(crate) async fn receive(self: Arc<Self>, stream: TcpStream) -> io::Result<Lane> {
        // A peer that starts with a Hello does not offer a fabric.
        stream.readable().await?;
        self.meet(stream, Meeting::of_accepted()).await
    }

    async fn meet(self: Arc<Self>, stream: TcpStream, meeting: Meeting<Pipe>) -> io::Result<Lane> {
        let key = {
            let mut inner = self.inner.lock();
            inner.next_key += 1;
            inner.next_key
        };
        let mut guest = Guest { meeting, fabric: &self };
        let met = timeout(MEETING, guest.talk(&stream, key)).await;
        match met.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            Met::Moves(pipe) => Ok(Lane::Fabric(FabricLane::new(self.clone(), stream, pipe, key))),
            _ => Ok(Lane::Plain(stream)),
        }
    }
}

/// A handshake in progress. Dropping it cancels the handshake.
struct Guest<'a> {
    meeting: Meeting<Pipe>,
    fabric: &'a LocalFabric,
}

impl Guest<'_> {
    async fn talk(&mut self, stream: &TcpStream, key: u64) -> io::Result<Met<Pipe>> {
        loop {
            let met = self.meeting.go_on(stream.as_fd(), key, &mut self.fabric.inner.lock().hubs)?;
            if met != Met::NotYet {
                return Ok(met);
            }
            self.fabric.call.notify_one();
            clear(stream);
            // Waking early does no harm. The fabric's answer does not make the connection readable.
            let _ = timeout(STEP, stream.readable()).await;
        }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.meeting.call_off(&mut self.fabric.inner.lock().hubs);
    }
}

/// Clears the runtime's readiness: all bytes that came were read.
fn clear(stream: &TcpStream) {
    let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    let _ = stream.try_io(Interest::READABLE, nothing);
}

/// Drives a fabric until it is dropped.
async fn drive(fabric: Weak<LocalFabric>, call: Arc<Notify>) {
    let mut vain = 0;
    loop {
        let pause = {
            let Some(fabric) = fabric.upgrade() else { return };
            let mut inner = fabric.inner.lock();
            vain = if inner.drive() { 0 } else { vain + 1 };
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
                // The fabric is polled next, whether the wait ended by the call or the timer.
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
    /// One pass over the fabric. True if something has moved.
    fn drive(&mut self) -> bool {
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

impl Drop for LocalFabric {
    fn drop(&mut self) {
        self.call.notify_one();
    }
}

/// A lane over a fabric.
pub(crate) struct FabricLane {
    fabric: Arc<LocalFabric>,
    pipe: Pipe,
    key: u64,
    /// The task that reads the TCP connection that the lane began on.
    listener: JoinHandle<()>,
}

impl FabricLane {
    fn new(fabric: Arc<LocalFabric>, stream: TcpStream, pipe: Pipe, key: u64) -> Self {
        fabric.inner.lock().waiting.insert(key, Waiting::default());
        let listener = tokio::spawn(listen(Arc::downgrade(&fabric), stream, pipe));
        Self { fabric, pipe, key, listener }
    }

    /// Translates `piped` for the runtime. `place` stores the waker of the task that waits.
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

/// Passes bytes of a lane's TCP connection to the fabric.
async fn listen(fabric: Weak<LocalFabric>, stream: TcpStream, pipe: Pipe) {
    while stream.readable().await.is_ok() {
        let Some(fabric) = fabric.upgrade() else { return };
        clear(&stream);
        let goes_on = fabric.inner.lock().hubs.stir(pipe);
        fabric.call.notify_one();
        if !goes_on {
            return;
        }
    }
}

impl AsyncRead for FabricLane {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.fabric.inner.lock();
        let piped = inner.hubs.read_into(self.pipe, buf.initialize_unfilled());
        let polled = self.outcome(&mut inner, piped, |waiting| &mut waiting.reader, cx);
        drop(inner);
        // The free room may have to be announced to the sender.
        self.fabric.call.notify_one();
        polled.map_ok(|n| buf.advance(n))
    }
}

impl AsyncWrite for FabricLane {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.fabric.inner.lock();
        let piped = inner.hubs.write_from(self.pipe, buf);
        let polled = self.outcome(&mut inner, piped, |waiting| &mut waiting.writer, cx);
        drop(inner);
        self.fabric.call.notify_one();
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fabric.inner.lock().hubs.finish(self.pipe);
        self.fabric.call.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for FabricLane {
    fn drop(&mut self) {
        self.listener.abort();
        let mut inner = self.fabric.inner.lock();
        inner.hubs.remove(self.pipe);
        inner.waiting.remove(&self.key);
    }
}
