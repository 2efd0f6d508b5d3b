//! The byte stream below a link: a TCP connection, or a stream over UDP.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use isthmus_udp::Cap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::either::Either;

use crate::datagram::{self, UdpStream};
use crate::{hello, tcp_info};

/// Kinds of [`Wire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A TCP connection or UDP stream; see the module.
pub(crate) struct Wire {
    carrier: Either<TcpStream, UdpStream>,
    held: Option<TcpRateLimit>,
    /// Bytes read so far.
    received: Arc<AtomicU64>,
}

/// The rate limit of a TCP connection. A UDP stream keeps the limit inside its protocol.
struct TcpRateLimit {
    cap: Cap,
    sleep: Pin<Box<Sleep>>,
}

impl TcpRateLimit {
    /// Ready when something may be written.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(pause_us) = self.cap.pause_us(datagram::now()) {
            self.sleep.as_mut().reset(Instant::now() + Duration::from_micros(pause_us));
            ready!(self.sleep.as_mut().poll(cx));
        }
        Poll::Ready(())
    }
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Self {
        Self { carrier: Either::Left(stream), held: None, received: Arc::default() }
    }
}

impl From<UdpStream> for Wire {
    fn from(stream: UdpStream) -> Self {
        Self { carrier: Either::Right(stream), held: None, received: Arc::default() }
    }
}

impl Wire {
    /// Limits the send rate. All wires under the same cap share its rate.
    pub(crate) fn hold(&mut self, cap: &Cap) {
        match &self.carrier {
            Either::Left(_) => {
                self.held = Some(TcpRateLimit { cap: cap.clone(), sleep: Box::pin(sleep(Duration::ZERO)) });
            }
            Either::Right(stream) => stream.hold(cap),
        }
    }

    /// The other end's certificate was accepted.
    pub(crate) fn admit(&self) {
        if let Either::Right(stream) = &self.carrier {
            stream.admit();
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.carrier {
            Either::Left(stream) => stream.peer_addr(),
            Either::Right(stream) => Ok(stream.peer_addr()),
        }
    }

    /// A handle that reads its state while others use it.
    pub(crate) fn gauge(&self) -> io::Result<Gauge> {
        let state = match &self.carrier {
            Either::Left(stream) => WireState::Tcp(stream.as_fd().try_clone_to_owned()?),
            Either::Right(stream) => WireState::Udp(stream.gauge()),
        };
        Ok(Gauge { state, received: self.received.clone() })
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.carrier).poll_read(cx, buf);
        self.received.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(held) = &mut self.held {
            ready!(held.poll_open(cx));
        }
        let written = ready!(Pin::new(&mut self.carrier).poll_write(cx, bytes))?;
        if let Some(held) = &self.held {
            held.cap.note(datagram::now(), written as u64);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

/// Reads the state of a wire.
pub(crate) struct Gauge {
    state: WireState,
    received: Arc<AtomicU64>,
}

enum WireState {
    Tcp(OwnedFd),
    Udp(datagram::Gauge),
}

impl Gauge {
    pub(crate) fn transport(&self) -> Transport {
        match self.state {
            WireState::Tcp(_) => Transport::Tcp,
            WireState::Udp(_) => Transport::Udp,
        }
    }

    /// The state now. None before the first measurement and after the end.
    pub(crate) fn sample(&self) -> Option<Sample> {
        let sample = match &self.state {
            WireState::Tcp(socket) => tcp_info::sample(socket),
            WireState::Udp(stream) => stream.sample(),
        };
        Some(Sample { received: self.received.load(Relaxed), ..sample? })
    }

    /// After our side was closed, waits until the other end has all bytes written. If a TCP socket is dropped with
    /// unread bytes, it resets the connection and the last written bytes can be lost.
    pub(crate) async fn linger(&self) {
        match &self.state {
            WireState::Tcp(socket) => {
                let Ok(socket) = socket.try_clone() else { return };
                if let Ok(mut stream) = TcpStream::from_std(socket.into()) {
                    hello::linger(&mut stream).await;
                }
            }
            WireState::Udp(stream) => stream.settled().await,
        }
    }
}

/// The state of a wire at one time. Counters start when the wire is made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Smoothed round-trip time.
    pub(crate) rtt: Duration,
    /// Segments (packets) with data sent, and how many of them were sent again or lost.
    pub(crate) sent: u64,
    pub(crate) retransmitted: u64,
    /// Bytes that the other end has acknowledged.
    pub(crate) acknowledged: u64,
    /// Bytes that came from the other end.
    pub(crate) received: u64,
    /// Bytes in the socket that were never sent yet.
    pub(crate) unsent: u64,
    /// Time with data to send, and the part of it in which the receiver's window or our buffer was the limit.
    pub(crate) busy: Duration,
    pub(crate) held: Duration,
    /// The path's rate, if the protocol measures it. Bytes per second.
    pub(crate) capacity: Option<u64>,
}
