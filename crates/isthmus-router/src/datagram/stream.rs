//! One stream of a port, as its user sees it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use isthmus_udp::{Cap, Failure, StreamId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{DatagramPort, now};
use crate::wire::Sample;

/// A stream. When it is dropped it ends, after the bytes already written were sent.
pub(crate) struct UdpStream {
    port: Arc<DatagramPort>,
    id: StreamId,
    peer: SocketAddr,
}

impl UdpStream {
    pub(super) fn new(port: Arc<DatagramPort>, id: StreamId, peer: SocketAddr) -> Self {
        Self { port, id, peer }
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The other end has proved its identity, so the protocol lifts the limits for unknown peers.
    pub(crate) fn admit(&self) {
        self.port.inner.lock().port.admit_stream(self.id);
    }

    /// Limits the send rate. All streams under the same cap share its rate.
    pub(crate) fn hold(&self, cap: &Cap) {
        self.port.inner.lock().port.with(now(), self.id, |stream| stream.hold(cap));
    }

    /// A handle that reads the state of the path, also after the stream has ended.
    pub(crate) fn gauge(&self) -> Gauge {
        Gauge { port: Arc::downgrade(&self.port), id: self.id }
    }
}

fn error_of(failure: Failure) -> io::Error {
    let kind = match failure {
        Failure::Silent => io::ErrorKind::TimedOut,
        Failure::Reset | Failure::Closed => io::ErrorKind::ConnectionReset,
        Failure::Fault(_) => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, failure)
}

fn keep(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

impl AsyncRead for UdpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.port.inner.lock();
        let now = now();
        let read = inner.port.with(now, self.id, |stream| {
            let before = buf.filled().len();
            while buf.remaining() > 0 && stream.readable() > 0 {
                let piece = stream.peek(buf.remaining());
                let len = piece.len() as u64;
                buf.put_slice(piece);
                stream.consume(now, len);
            }
            if buf.filled().len() > before || stream.is_finished() || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            stream.failure().map_or(Poll::Pending, |failure| Poll::Ready(Err(error_of(failure))))
        });
        let read = read.unwrap_or_else(|| Poll::Ready(Err(io::ErrorKind::NotConnected.into())));
        if read.is_pending() {
            keep(&mut inner.waiting.entry(self.id).or_default().reader, cx);
        }
        self.port.call_if_due(&inner);
        read
    }
}

impl AsyncWrite for UdpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.port.inner.lock();
        let written = inner.port.with(now(), self.id, |stream| match stream.failure() {
            Some(failure) => Err(error_of(failure)),
            None => Ok(stream.write(bytes)),
        });
        let written = match written.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into())) {
            Ok(0) if !bytes.is_empty() => {
                keep(&mut inner.waiting.entry(self.id).or_default().writer, cx);
                Poll::Pending
            }
            written => Poll::Ready(written),
        };
        self.port.call_if_due(&inner);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.port.inner.lock();
        inner.port.with(now(), self.id, isthmus_udp::Stream::finish);
        self.port.call_if_due(&inner);
        Poll::Ready(Ok(()))
    }
}

impl Drop for UdpStream {
    fn drop(&mut self) {
        let mut inner = self.port.inner.lock();
        inner.port.release(now(), self.id);
        inner.waiting.remove(&self.id);
        self.port.call_if_due(&inner);
    }
}

/// Interval at which an ending stream is checked.
const LOOK: Duration = Duration::from_millis(5);

/// Reads the state of a stream and its path.
pub(crate) struct Gauge {
    port: Weak<DatagramPort>,
    id: StreamId,
}

impl Gauge {
    /// The state of the path. None before the first round trip and after the end.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let port = self.port.upgrade()?;
        let inner = port.inner.lock();
        let stream = inner.port.stream(self.id)?;
        let status = stream.status();
        let counters = status.counters;
        Some(Sample {
            rtt: Duration::from_micros(status.rtt_us?),
            sent: counters.packets_sent,
            retransmitted: counters.packets_lost.saturating_sub(counters.packets_late),
            acknowledged: counters.bytes_fresh.saturating_sub(status.held.saturating_sub(status.unsent)),
            unsent: status.unsent,
            capacity: stream.learned(now()).map(|learned| learned.capacity).filter(|known| *known > 0),
            ..Sample::default()
        })
    }

    /// Waits until the other end has acknowledged all that was written, or cannot.
    pub(crate) async fn settled(&self) {
        let unsettled = |port: Arc<DatagramPort>| {
            let inner = port.inner.lock();
            inner
                .port
                .stream(self.id)
                .is_some_and(|stream| !stream.is_settled() && stream.failure().is_none())
        };
        while self.port.upgrade().is_some_and(unsettled) {
            tokio::time::sleep(LOOK).await;
        }
    }
}
