//! One lane of a link, as a byte stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use isthmus_mux::{LaneId, Read, Written};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::LaneEntry;
use super::work::Shared;

/// A lane on a link. If it is dropped before a shutdown, the other end sees the lane fail.
pub(crate) struct LinkLane {
    shared: Arc<Shared>,
    id: LaneId,
    // Dropped last: the entry becomes free only after the lane is gone.
    _place: LaneEntry,
}

impl LinkLane {
    pub(super) fn new(shared: Arc<Shared>, id: LaneId, place: LaneEntry) -> Self {
        Self { shared, id, _place: place }
    }
}

impl AsyncRead for LinkLane {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.shared.lock();
        match inner.mux.read(self.id, buf.initialize_unfilled()) {
            Read::Bytes(read) => {
                // The bytes read become credit for the sender.
                inner.call();
                buf.advance(read);
                Poll::Ready(Ok(()))
            }
            Read::End => Poll::Ready(Ok(())),
            Read::Blocked if !inner.ended => {
                inner.wait(self.id).reader = Some(cx.waker().clone());
                Poll::Pending
            }
            Read::Blocked | Read::Reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for LinkLane {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.shared.lock();
        if inner.ended {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match inner.mux.write(self.id, bytes) {
            Written::Bytes(written) => {
                inner.call();
                Poll::Ready(Ok(written))
            }
            Written::Blocked => {
                inner.wait(self.id).writer = Some(cx.waker().clone());
                Poll::Pending
            }
            Written::Closed => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Does nothing: the link's worker sends written bytes as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.shared.lock();
        inner.mux.finish(self.id);
        inner.call();
        Poll::Ready(Ok(()))
    }
}

impl Drop for LinkLane {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.mux.release(self.id);
        inner.forget(self.id);
        inner.call();
    }
}
