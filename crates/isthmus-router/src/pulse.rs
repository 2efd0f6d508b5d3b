//! A link's signs of life. Each end says a byte now and then on a stream that carries nothing
//! else, so that silence means something: the other end hangs, or the way is cut. TCP tells
//! the second after many seconds, and the first never.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::sleep;

/// What is said, and with what the stream begins: no frame does.
pub(crate) const BEAT: u8 = 0;
/// Between two of them.
pub(crate) const PAUSE: Duration = Duration::from_millis(300);
/// A link that has said nothing for so long is not used for new lanes. A beat that was lost
/// has time to be sent again.
const SILENCE: Duration = Duration::from_secs(2);

/// Says beats, and hears those of the other end, until the stream ends.
pub(crate) async fn keep(stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(stream);
    let say = async {
        loop {
            write.write_all(&[BEAT]).await?;
            write.flush().await?;
            sleep(PAUSE).await;
        }
    };
    let hear = async {
        let mut beats = [0; 64];
        while read.read(&mut beats).await? > 0 {}
        Ok(())
    };
    tokio::select! {
        ended = say => ended,
        ended = hear => ended,
    }
}

/// When something was last heard of the other end.
pub(crate) struct Heard {
    since: Instant,
    /// Milliseconds from `since`.
    last: AtomicU64,
}

impl Heard {
    pub(crate) fn now() -> Arc<Self> {
        Arc::new(Self { since: Instant::now(), last: AtomicU64::new(0) })
    }

    fn note(&self) {
        self.last.store(self.elapsed(), Relaxed);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// How long nothing was heard.
    fn silence(&self) -> Duration {
        Duration::from_millis(self.elapsed().saturating_sub(self.last.load(Relaxed)))
    }

    /// Whether the other end gives signs of life.
    pub(crate) fn lives(&self) -> bool {
        self.silence() < SILENCE
    }
}

/// A stream that notes when bytes come: any of them are a sign of life.
pub(crate) struct Listening<S> {
    pub(crate) stream: S,
    pub(crate) heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard.note();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
