//! An endpoint: the engine, its lanes, and whoever turns them.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use isthmus_proto::{AtomicRequest, Completion, PeekRequest, PeerId, RecvRequest, RmaRequest, SendRequest};
use isthmus_wire::Address;

use crate::{RegionTable, Settings};

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The listening socket could not be made.
    #[error("cannot listen at {at}: {cause}; choose another interface or port")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
}

/// Why an operation was not started. Nothing has happened then.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No room now; turn the endpoint and try again (`-FI_EAGAIN`).
    #[error("no room for another operation; progress and try again")]
    Again,
    /// The peer cannot be reached from here at all.
    #[error("{0}")]
    Unreachable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(&'static str),
}

/// One endpoint. All calls may be made from any thread.
#[derive(Debug)]
pub struct Endpoint {}

impl Endpoint {
    /// Most bytes that [`isthmus_proto::Options::inject`] accepts.
    pub const INJECT_MAX: usize = 4096;
    /// Most pieces of one buffer.
    pub const IOV_MAX: usize = 8;
    /// Most bytes of one atomic operation's operand.
    pub const ATOMIC_MAX: usize = 4096;

    /// Opens an endpoint that listens at `bind` (or as the settings say).
    pub fn open(
        settings: &Settings,
        bind: Option<SocketAddr>,
        regions: Arc<RegionTable>,
    ) -> Result<Arc<Self>, OpenError> {
        let _ = (settings, bind, regions);
        todo!()
    }

    /// The address that peers need.
    pub fn address(&self) -> Address {
        todo!()
    }

    /// The index of a peer in this endpoint's table; makes no connection.
    pub fn peer(&self, address: &Address) -> Result<PeerId, PostError> {
        let _ = address;
        todo!()
    }

    /// The address of a peer.
    pub fn peer_address(&self, peer: PeerId) -> Address {
        let _ = peer;
        todo!()
    }

    /// Posts a message.
    ///
    /// # Safety
    /// Unless injected, the buffers stay valid and unchanged until the completion was polled.
    pub unsafe fn send(&self, request: &SendRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let _ = (request, iov);
        todo!()
    }

    /// Posts a receive buffer.
    ///
    /// # Safety
    /// The buffers stay valid and untouched until the completion was polled.
    pub unsafe fn recv(&self, request: &RecvRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let _ = (request, iov);
        todo!()
    }

    /// Searches the unexpected tagged messages.
    pub fn peek(&self, request: &PeekRequest) -> Result<(), PostError> {
        let _ = request;
        todo!()
    }

    /// Receives the message that a peek reserved under the same context; with
    /// `discard` drops it instead.
    ///
    /// # Safety
    /// As for [`Endpoint::recv`].
    pub unsafe fn claim(
        &self,
        request: &RecvRequest,
        iov: &[libc::iovec],
        discard: bool,
    ) -> Result<(), PostError> {
        let _ = (request, iov, discard);
        todo!()
    }

    /// Writes to a peer's memory.
    ///
    /// # Safety
    /// As for [`Endpoint::send`].
    pub unsafe fn write(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let _ = (request, iov);
        todo!()
    }

    /// Reads a peer's memory.
    ///
    /// # Safety
    /// As for [`Endpoint::recv`].
    pub unsafe fn read(&self, request: &RmaRequest, iov: &[libc::iovec]) -> Result<(), PostError> {
        let _ = (request, iov);
        todo!()
    }

    /// An atomic operation on a peer's memory; `operand` and `compare` are copied before
    /// the call returns, `result` receives the earlier value.
    ///
    /// # Safety
    /// As for [`Endpoint::recv`], of `result`.
    pub unsafe fn atomic(
        &self,
        request: &AtomicRequest,
        operand: &[libc::iovec],
        compare: &[libc::iovec],
        result: &[libc::iovec],
    ) -> Result<(), PostError> {
        let _ = (request, operand, compare, result);
        todo!()
    }

    /// Cancels the oldest posted receive with this context; it then completes with
    /// [`isthmus_proto::OpError::Cancelled`]. False where there is none to cancel.
    pub fn cancel(&self, context: u64) -> bool {
        let _ = context;
        todo!()
    }

    /// Turns the engine and moves finished operations into `out` (appending; `out` is
    /// the caller's to reuse). Returns how many.
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        let _ = out;
        todo!()
    }

    /// A descriptor that is readable when [`Endpoint::poll`] has something to return,
    /// provided [`Endpoint::arm`] said yes since the last poll.
    pub fn wait_fd(&self) -> RawFd {
        todo!()
    }

    /// Prepares to sleep on [`Endpoint::wait_fd`]: from now on the I/O thread turns the
    /// engine. False where completions are already waiting.
    pub fn arm(&self) -> bool {
        todo!()
    }

    /// Sleeps until completions wait or `timeout` has passed (`None`: no limit).
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let _ = timeout;
        todo!()
    }

    /// Ends the endpoint: sends what was accepted (bounded by the `linger` setting),
    /// tells the peers, closes the lanes. Unfinished receives are dropped silently.
    pub fn close(&self) {
        todo!()
    }
}
