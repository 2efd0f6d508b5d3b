//! A lane as the router sees it: a byte stream on a TCP connection, a fabric, or a link.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::link::LinkLane;
use crate::local_fabric::FabricLane;

/// One of the two ends between which bytes are relayed.
pub(crate) enum Lane {
    /// A TCP connection of its own.
    Plain(TcpStream),
    /// Over a local fabric.
    Fabric(FabricLane),
    /// A lane of a link, which carries many.
    Link(LinkLane),
}

impl AsyncRead for Lane {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Fabric(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Link(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Lane {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Fabric(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Link(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Fabric(stream) => Pin::new(stream).poll_flush(cx),
            Self::Link(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Fabric(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Link(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
