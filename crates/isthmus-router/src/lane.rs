//! A lane as a router holds it: a byte stream, by itself or as one of a link's.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::ground::FabricLane;
use crate::link::LinkLane;

/// One end of what is relayed.
pub(crate) enum Lane {
    /// A TCP connection of its own.
    Plain(TcpStream),
    /// Over a local fabric.
    Fabric(FabricLane),
    /// One of a link's.
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
