//! Moves a link's bytes between the state that its lanes share and the connection.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use isthmus_mux::{Counters, Event, Expect, Fault, HEADER, LaneId, Limits, Mux, Piece};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_rustls::TlsStream;

use crate::heartbeat::{Heard, PAUSE};
use crate::wire::Wire;

/// Writes and reads of the connection before the task yields to other tasks.
const TURNS: usize = 16;
/// Frames that are read before frames are written.
const READS: usize = 32;

/// The state that the worker and the lanes of a link share.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    pub(super) heard: Heard,
    /// Notified when the other end's limits are known or the link has ended.
    greeted: Notify,
}

pub(super) struct Inner {
    pub(super) mux: Mux,
    /// The link has ended.
    pub(super) ended: bool,
    /// Wakes the worker.
    worker: Option<Waker>,
    waiting: HashMap<LaneId, Waiting>,
}

/// The tasks that wait for one lane.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl Shared {
    pub(super) fn new(dialled: bool, limits: Limits) -> Arc<Self> {
        let inner =
            Inner { mux: Mux::new(dialled, limits), ended: false, worker: None, waiting: HashMap::new() };
        Arc::new(Self { inner: Mutex::new(inner), heard: Heard::now(), greeted: Notify::new() })
    }

    /// Takes the lock. It is never held across a system call.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    pub(super) fn counters(&self) -> Counters {
        self.lock().mux.counters()
    }

    /// Opens a lane once the other end's limits are known. None if it takes no more lanes.
    pub(super) async fn open(&self) -> Option<LaneId> {
        loop {
            let greeted = self.greeted.notified();
            {
                let mut inner = self.lock();
                if inner.ended {
                    return None;
                }
                if inner.mux.is_greeted() {
                    let opened = inner.mux.open();
                    inner.call();
                    return opened;
                }
            }
            greeted.await;
        }
    }
}

impl Inner {
    /// Wakes the worker if there is something to send.
    pub(super) fn call(&mut self) {
        if !self.mux.is_quiet()
            && let Some(worker) = self.worker.take()
        {
            worker.wake();
        }
    }

    pub(super) fn wait(&mut self, lane: LaneId) -> &mut Waiting {
        self.waiting.entry(lane).or_default()
    }

    pub(super) fn forget(&mut self, lane: LaneId) {
        self.waiting.remove(&lane);
    }
}

/// The worker of a link. It ends with the link.
pub(crate) struct LinkWork {
    stream: TlsStream<Wire>,
    shared: Arc<Shared>,
    /// The piece being written, and whether the connection has unflushed bytes.
    outgoing: Option<Piece>,
    unflushed: bool,
    /// The frame being read.
    header: [u8; HEADER],
    header_len: usize,
    expect: Expect,
    incoming: Option<Piece>,
    beat: Interval,
}

impl LinkWork {
    pub(super) fn new(stream: TlsStream<Wire>, shared: Arc<Shared>) -> Self {
        let mut beat = interval(PAUSE);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            stream,
            shared,
            outgoing: None,
            unflushed: false,
            header: [0; HEADER],
            header_len: 0,
            expect: Expect::Header,
            incoming: None,
            beat,
        }
    }

    /// Runs until the link ends. Lanes from the other end go to `accept`.
    pub(crate) async fn run(&mut self, mut accept: impl FnMut(LaneId)) -> io::Result<()> {
        std::future::poll_fn(move |cx| self.poll_turns(cx, &mut accept)).await
    }

    /// Sends the bytes that lanes left in the buffer, and closes.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(ended) = self.poll_turns(cx, &mut drop) {
                return Poll::Ready(ended);
            }
            let quiet = self.outgoing.is_none() && !self.unflushed && self.shared.lock().mux.is_quiet();
            if quiet { Pin::new(&mut self.stream).poll_shutdown(cx) } else { Poll::Pending }
        })
        .await
    }

    fn poll_turns(&mut self, cx: &mut Context<'_>, accept: &mut impl FnMut(LaneId)) -> Poll<io::Result<()>> {
        for _ in 0..TURNS {
            // Set the waker before any check, so that no later event is missed.
            self.shared.lock().worker = Some(cx.waker().clone());
            if self.beat.poll_tick(cx).is_ready() {
                self.shared.lock().mux.beat();
            }
            let wrote = self.write(cx)?;
            let read = self.read(cx)?;
            self.tell(accept);
            match (read, wrote) {
                (Moved::Ended, _) => return Poll::Ready(Ok(())),
                (Moved::Nothing, Moved::Nothing) => return Poll::Pending,
                _ => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<Moved> {
        let mut moved = Moved::Nothing;
        loop {
            if self.outgoing.as_ref().is_none_or(Piece::is_empty) {
                let mut inner = self.shared.lock();
                if let Some(written) = self.outgoing.take() {
                    inner.mux.give_piece(written);
                }
                self.outgoing = inner.mux.poll_output();
            }
            let Some(piece) = &mut self.outgoing else { break };
            match Pin::new(&mut self.stream).poll_write(cx, piece.filled())? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => piece.consume(written),
                Poll::Pending => return Ok(moved),
            }
            (self.unflushed, moved) = (true, Moved::Something);
        }
        if self.unflushed && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Ok(moved)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> io::Result<Moved> {
        let mut moved = Moved::Nothing;
        for _ in 0..READS {
            let polled = match self.expect {
                Expect::Header => self.poll_header(cx),
                Expect::Payload(left) => self.poll_payload(cx, left),
            };
            match polled? {
                Poll::Ready(0) if self.header_len == 0 && self.expect == Expect::Header => {
                    return Ok(Moved::Ended);
                }
                Poll::Ready(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Poll::Ready(_) => moved = Moved::Something,
                Poll::Pending => break,
            }
        }
        // The part of a payload that has arrived is delivered at once.
        if let Some(piece) = self.incoming.take() {
            self.deliver(piece)?;
        }
        if moved == Moved::Something {
            self.shared.heard.note();
        }
        Ok(moved)
    }

    fn poll_header(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<usize>> {
        let mut room = ReadBuf::new(&mut self.header[self.header_len..]);
        let Poll::Ready(()) = Pin::new(&mut self.stream).poll_read(cx, &mut room)? else {
            return Ok(Poll::Pending);
        };
        let read = room.filled().len();
        self.header_len += read;
        if self.header_len == HEADER {
            self.header_len = 0;
            self.expect = self.shared.lock().mux.on_header(&self.header).map_err(fault)?;
        }
        Ok(Poll::Ready(read))
    }

    fn poll_payload(&mut self, cx: &mut Context<'_>, left: usize) -> io::Result<Poll<usize>> {
        let shared = &self.shared;
        let piece = self.incoming.get_or_insert_with(|| shared.lock().mux.take_piece());
        let len = piece.len();
        let mut room = ReadBuf::new(piece.room(left - len));
        let Poll::Ready(()) = Pin::new(&mut self.stream).poll_read(cx, &mut room)? else {
            return Ok(Poll::Pending);
        };
        let read = room.filled().len();
        piece.fill(read);
        if piece.len() == left
            && let Some(piece) = self.incoming.take()
        {
            self.deliver(piece)?;
        }
        Ok(Poll::Ready(read))
    }

    fn deliver(&mut self, piece: Piece) -> io::Result<()> {
        self.expect = self.shared.lock().mux.on_payload(piece).map_err(fault)?;
        Ok(())
    }

    /// Wakes the tasks whose lanes have changed.
    fn tell(&self, accept: &mut impl FnMut(LaneId)) {
        loop {
            let mut inner = self.shared.lock();
            let woken = match inner.mux.poll_event() {
                Some(Event::Readable(lane)) => inner.waiting.get_mut(&lane).and_then(|w| w.reader.take()),
                Some(Event::Writable(lane)) => inner.waiting.get_mut(&lane).and_then(|w| w.writer.take()),
                Some(Event::Accepted(lane)) => {
                    drop(inner);
                    accept(lane);
                    continue;
                }
                Some(Event::Greeted) => {
                    self.shared.greeted.notify_waiters();
                    None
                }
                None => return,
            };
            drop(inner);
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// When the worker ends, all lanes of the link end.
impl Drop for LinkWork {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.ended = true;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        self.shared.greeted.notify_waiters();
        let wakers = waiting.into_values().flat_map(|waiting| [waiting.reader, waiting.writer]);
        wakers.flatten().for_each(Waker::wake);
    }
}

/// The result of one pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Nothing,
    Something,
    /// The other end has closed.
    Ended,
}

fn fault(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}
