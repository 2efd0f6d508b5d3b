//! Copies bytes between two lanes in both directions.
//!
//! An idle lane holds no buffer. Bytes pass through a buffer of the thread. Bytes that the receiver does not take at
//! once are stored before more is read. Bulk data between two TCP connections goes through a kernel pipe (`splice`)
//! without a copy. While the two ends exchange small messages in alternation, the thread polls for the answer before it
//! sleeps.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::lane::Lane;
use crate::metrics::Counters;
use crate::spin::{Direction, SpinTimer};

/// Most bytes that one pass moves, so that other lanes of the thread get their share.
const CHUNK: usize = 64 << 10;
/// Size asked for a pipe. Bytes; the kernel may give less. Larger pipes mean fewer system calls.
const PIPE: usize = 512 << 10;
/// After one direction failed, the other may go on for this time, because data already sent can still arrive.
const AFTERMATH: Duration = Duration::from_secs(5);
/// After one direction ended, the other may go on for this time. Endpoints close both directions. Without this limit an
/// abandoned lane would count against the limits as long as a router behind it hangs.
const HALF_OPEN: Duration = Duration::from_secs(60);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Relays until both directions have ended or one side is lost.
pub(crate) async fn relay(
    a: &mut Lane,
    b: &mut Lane,
    a_count: &Counters,
    b_count: &Counters,
) -> io::Result<()> {
    let spin = SpinTimer::default();
    match (a, b) {
        (Lane::Plain(a), Lane::Plain(b)) => {
            let ((a_read, a_write), (b_read, b_write)) = (a.split(), b.split());
            let there = one_way_tcp(a_read, b_write, a_count, b_count, (&spin, Direction::There));
            both(there, one_way_tcp(b_read, a_write, b_count, a_count, (&spin, Direction::Back))).await
        }
        (a, b) => {
            let (mut a_read, mut a_write) = tokio::io::split(a);
            let (mut b_read, mut b_write) = tokio::io::split(b);
            let there = one_way(&mut a_read, &mut b_write, a_count, b_count, (&spin, Direction::There));
            both(there, one_way(&mut b_read, &mut a_write, b_count, a_count, (&spin, Direction::Back))).await
        }
    }
}

/// Runs both directions. Each one closes its output when its input ends, so that the receiver sees the end.
async fn both(
    there: impl Future<Output = io::Result<()>>,
    back: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (mut there, mut back) = (pin!(there), pin!(back));
    tokio::select! {
        ended = &mut there => rest(ended, back).await,
        ended = &mut back => rest(ended, there).await,
    }
}

async fn rest(
    ended: io::Result<()>,
    other: Pin<&mut impl Future<Output = io::Result<()>>>,
) -> io::Result<()> {
    match ended {
        Ok(()) => timeout(HALF_OPEN, other).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        Err(error) => {
            // Data sent before the failure can still arrive.
            let _ = timeout(AFTERMATH, other).await;
            Err(error)
        }
    }
}

async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    received: &Counters,
    sent: &Counters,
    pace: (&SpinTimer, Direction),
) -> io::Result<()> {
    let ended = pump(from, to, received, sent, pace, usize::MAX).await;
    finish(ended.map(drop), to).await
}

async fn one_way_tcp(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    received: &Counters,
    sent: &Counters,
    pace: (&SpinTimer, Direction),
) -> io::Result<()> {
    let ended = pump_tcp(&mut from, &mut to, received, sent, pace).await;
    finish(ended, &mut to).await
}

/// Closes `to`. If the stream is already gone, that is no error.
async fn finish(ended: io::Result<()>, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let _ = to.shutdown().await;
    ended
}

/// Why copying stopped.
#[derive(PartialEq)]
enum Stop {
    End,
    Bulk,
}

/// Copies until the end, or until one pass moves `bulk` bytes.
async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    received: &Counters,
    sent: &Counters,
    (spin, way): (&SpinTimer, Direction),
    bulk: usize,
) -> io::Result<Stop> {
    loop {
        let mut kept = Vec::new();
        let moved = spin
            .look(|cx| {
                SCRATCH.with_borrow_mut(|scratch| {
                    let mut buffer = ReadBuf::new(scratch);
                    ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer))?;
                    let mut left = buffer.filled();
                    while !left.is_empty() {
                        match Pin::new(&mut *to).poll_write(cx, left)? {
                            Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                            Poll::Ready(written) => left = &left[written..],
                            Poll::Pending => {
                                kept.extend_from_slice(left);
                                break;
                            }
                        }
                    }
                    Poll::Ready(io::Result::Ok(buffer.filled().len()))
                })
            })
            .await?;
        if moved == 0 {
            return Ok(Stop::End);
        }
        spin.note(way, moved);
        received.received(moved);
        to.write_all(&kept).await?;
        sent.sent(moved);
        if moved >= bulk {
            return Ok(Stop::Bulk);
        }
    }
}

async fn pump_tcp(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    received: &Counters,
    sent: &Counters,
    pace: (&SpinTimer, Direction),
) -> io::Result<()> {
    if pump(from, to, received, sent, pace, CHUNK).await? == Stop::End {
        return Ok(());
    }
    // Without a pipe, or if the kernel cannot splice here, copying goes on.
    let spliced = match Pipe::new() {
        Ok(pipe) => pipe.pump(from.as_ref(), to.as_ref(), received, sent).await?,
        Err(_) => false,
    };
    if !spliced {
        pump(from, to, received, sent, pace, usize::MAX).await?;
    }
    Ok(())
}

/// A kernel pipe: bytes pass through it without coming to user space.
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    size: usize,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size =
            fcntl_setpipe_size(&writer, PIPE).or_else(|_| rustix::pipe::fcntl_getpipe_size(&writer))?;
        Ok(Self { reader, writer, size })
    }

    /// Moves bytes until the end. False if the kernel cannot splice here; then nothing was moved.
    async fn pump(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        received: &Counters,
        sent: &Counters,
    ) -> io::Result<bool> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        loop {
            // The pipe is empty here, so "would block" can only come from the socket.
            let take = || Ok(splice(from, None, &self.writer, None, self.size, flags)?);
            let mut held = match from.async_io(Interest::READABLE, take).await {
                Ok(0) => return Ok(true),
                Ok(taken) => taken,
                Err(error) if cannot(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            received.received(held);
            while held > 0 {
                let give = || Ok(splice(&self.reader, None, to, None, held, flags)?);
                let given = to.async_io(Interest::WRITABLE, give).await?;
                sent.sent(given);
                held -= given;
            }
        }
    }
}

fn cannot(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}
