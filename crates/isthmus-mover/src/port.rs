//! A safe interface to an endpoint. An operation takes its buffer by value, and returns it when it ends.
//!
//! Only this file and `disk.rs` of the crate have `unsafe` code. A thread waits for completions, and passes each one to
//! the inbox that its operation named.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use isthmus_io::log::no_thread;
use isthmus_io::{Admission, Endpoint, OpenError, PostError, RateLimits, Settings};
use isthmus_proto::{
    Channel, Completion, Level, Options, PeekAction, PeekRequest, PeerId, RecvRequest, SendRequest, Transfer,
};
use isthmus_wire::Address;
use parking_lot::Mutex;

use crate::buffer::Buffer;

/// Interval at which the thread checks whether the port is being closed.
const LOOK: Duration = Duration::from_millis(100);

/// The result of an operation.
#[derive(Debug)]
pub(crate) struct News {
    /// The operation's number.
    pub(crate) operation: u64,
    /// The key that was given with the operation.
    pub(crate) key: u64,
    /// The buffer, returned to the caller.
    pub(crate) buffer: Buffer,
    /// Number of bytes sent or received.
    pub(crate) len: usize,
    /// Tag of the message.
    pub(crate) tag: u64,
    /// The peer at the other end.
    pub(crate) peer: Option<PeerId>,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

/// The receiver of results.
pub(crate) trait Inbox: Send {
    fn put(&self, news: News);
}

impl<T: From<News> + Send> Inbox for Sender<T> {
    fn put(&self, news: News) {
        // If the receiver is gone, the buffer is dropped.
        let _ = self.send(news.into());
    }
}

/// The pending operations. Numbers are never used again, so a late [`Port::cancel`] cannot hit another operation.
#[derive(Default)]
struct Table {
    next: u64,
    posted: HashMap<u64, Posted>,
}

struct Posted {
    key: u64,
    buffer: Buffer,
    inbox: Box<dyn Inbox>,
}

/// An endpoint with its thread; see the module.
pub(crate) struct Port {
    endpoint: Arc<Endpoint>,
    posted: Arc<Mutex<Table>>,
    stop: Arc<AtomicBool>,
}

impl Port {
    pub(crate) fn open(settings: &Settings) -> Result<Self, OpenError> {
        // Clients know only the host and port of a service. Both ends authenticate in their session.
        let settings = &Settings { admission: Admission::Open, ..settings.clone() };
        let endpoint = Endpoint::open(settings, None, Arc::default())?;
        // Sessions are encrypted from end to end, unless both ends were configured otherwise. So lanes need no
        // encryption.
        endpoint.allow_plain_lanes();
        let posted: Arc<Mutex<Table>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("mover-port".to_owned()).spawn({
            let (endpoint, posted, stop) = (endpoint.clone(), posted.clone(), stop.clone());
            move || pump(&endpoint, &posted, &stop)
        });
        thread.map_err(no_thread)?;
        Ok(Self { endpoint, posted, stop })
    }

    /// From now on, lanes of peers that did not prove who they are ([`Port::vouch`]) take no descriptors from others.
    pub(crate) fn await_proof(&self) {
        self.endpoint.await_proof();
    }

    /// This peer has proved who it is.
    pub(crate) fn vouch(&self, peer: PeerId) {
        self.endpoint.vouch(peer);
    }

    /// The administrator's limit on what goes to this host. Bytes/s; 0: none, as for lanes within a host.
    pub(crate) fn rate_limit(&self, limits: &RateLimits, there: IpAddr) -> u64 {
        let is_elsewhere = !there.is_loopback() && there != self.address().locator.ip();
        limits.bytes_per_s(there).filter(|_| is_elsewhere).unwrap_or(0)
    }

    pub(crate) fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Tells the endpoint that there will be one peer, which this side connects to. The first message then goes with
    /// the lane's first bytes. About `bytes` bytes will be sent.
    pub(crate) fn call_one(&self, bytes: u64) {
        self.endpoint.call_one(bytes);
    }

    pub(crate) fn peer(&self, address: &Address) -> Result<PeerId, PostError> {
        self.endpoint.peer(address)
    }

    pub(crate) fn peer_address(&self, peer: PeerId) -> Address {
        self.endpoint.peer_address(peer)
    }

    /// Where a client is: on the host that it called from, whatever address it claims.
    pub(crate) fn peer_locator(&self, peer: PeerId) -> SocketAddr {
        self.endpoint.peer_locator(peer)
    }

    pub(crate) fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.endpoint.round_trip(peer)
    }

    /// Sends `range` of `buffer`.
    pub(crate) fn send(
        &self,
        peer: PeerId,
        tag: u64,
        buffer: impl Into<Buffer>,
        range: Range<usize>,
        key: u64,
        inbox: impl Inbox + 'static,
    ) -> Result<(), PostError> {
        self.send_by(Options::default(), peer, tag, (buffer.into(), range), key, inbox)
    }

    /// Like [`Port::send`], but nothing is sent before the other side has posted a receive. So the other side needs no
    /// memory for unexpected messages. It costs a round trip.
    pub(crate) fn send_when_wanted(
        &self,
        peer: PeerId,
        tag: u64,
        buffer: Buffer,
        range: Range<usize>,
        key: u64,
        inbox: impl Inbox + 'static,
    ) -> Result<(), PostError> {
        let options = Options { transfer: Some(Transfer::Rendezvous), ..Options::default() };
        self.send_by(options, peer, tag, (buffer, range), key, inbox)
    }

    /// Like [`Port::send`], but it ends only when the message is delivered or cannot be delivered.
    pub(crate) fn deliver(
        &self,
        peer: PeerId,
        tag: u64,
        buffer: Vec<u8>,
        key: u64,
        inbox: impl Inbox + 'static,
    ) -> Result<(), PostError> {
        let range = 0..buffer.len();
        let options = Options { level: Level::Delivery, ..Options::default() };
        self.send_by(options, peer, tag, (buffer.into(), range), key, inbox)
    }

    fn send_by(
        &self,
        options: Options,
        peer: PeerId,
        tag: u64,
        (buffer, range): (Buffer, Range<usize>),
        key: u64,
        inbox: impl Inbox + 'static,
    ) -> Result<(), PostError> {
        self.post(buffer, range, key, inbox, |iov, context| {
            let options = Options { context, notify: true, ..options };
            let request = SendRequest { peer, channel: Channel::Tagged, tag, data: None, options };
            // SAFETY: `post` keeps the buffer until the completion.
            unsafe { self.endpoint.send(&request, iov) }
        })
    }

    /// Receives a message with this tag into `buffer`, at most its length.
    pub(crate) fn recv(
        &self,
        source: Option<PeerId>,
        tag: u64,
        buffer: Buffer,
        key: u64,
        inbox: impl Inbox + 'static,
    ) -> Result<u64, PostError> {
        let range = 0..buffer.len();
        self.post(buffer, range, key, inbox, |iov, context| {
            let options = Options { context, notify: true, ..Options::default() };
            let request =
                RecvRequest { source, channel: Channel::Tagged, tag, ignore: 0, multi: None, options };
            // SAFETY: `post` keeps the buffer until the completion, and nobody looks at it.
            unsafe { self.endpoint.recv(&request, iov) }.map(|()| context)
        })
    }

    /// Cancels the receive to which [`Port::recv`] gave this number. Its buffer comes back through the inbox.
    pub(crate) fn cancel(&self, receive: u64) {
        self.endpoint.cancel(receive);
    }

    /// Drops one message that no receive has taken. If there is none, the result has an error.
    pub(crate) fn discard(&self, peer: PeerId, tag: u64, key: u64, inbox: impl Inbox + 'static) {
        let _ = self.post(Vec::new().into(), 0..0, key, inbox, |_, context| {
            let options = Options { context, notify: true, ..Options::default() };
            let (source, action) = (Some(peer), PeekAction::Discard);
            self.endpoint.peek(&PeekRequest { source, tag, ignore: 0, action, options })
        });
    }

    /// Closes the port of a process that ends. It tells the other side, and does not wait for an answer.
    pub(crate) fn leave(&self) {
        self.endpoint.leave();
    }

    fn post<T>(
        &self,
        mut buffer: Buffer,
        range: Range<usize>,
        key: u64,
        inbox: impl Inbox + 'static,
        start: impl FnOnce(&[libc::iovec], u64) -> Result<T, PostError>,
    ) -> Result<T, PostError> {
        let bytes = &mut buffer[range];
        // The buffer's memory stays where it is while the buffer moves.
        let iov = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // Enter it in the table before it starts, because it may end at once.
        let posted = Posted { key, buffer, inbox: Box::new(inbox) };
        let mut table = self.posted.lock();
        let number = table.next;
        table.next += 1;
        table.posted.insert(number, posted);
        drop(table);
        let started = start(&iov, number);
        if started.is_err() {
            self.posted.lock().posted.remove(&number);
        }
        started
    }
}

fn pump(endpoint: &Endpoint, posted: &Mutex<Table>, stop: &AtomicBool) {
    let mut completions: Vec<Completion> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        endpoint.wait(Some(LOOK));
        endpoint.poll(&mut completions);
        for completion in completions.drain(..) {
            let operation = completion.context;
            let Some(Posted { key, buffer, inbox }) = posted.lock().posted.remove(&operation) else {
                continue;
            };
            let (len, peer) = (completion.len as usize, completion.peer);
            let error = completion.error.map(|error| error.to_string());
            inbox.put(News { operation, key, buffer, len, tag: completion.tag, peer, error });
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // The thread ends soon by itself and is not joined.
        self.stop.store(true, Ordering::Relaxed);
        self.endpoint.close();
        // A lane that did not end in time may still write into posted buffers, so they are never freed. The process
        // ends soon anyway: it has only one port.
        std::mem::forget(std::mem::take(&mut *self.posted.lock()));
    }
}
