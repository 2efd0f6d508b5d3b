//! An endpoint: the conversation, the engine below it, and their buffers.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_io::{Access, Endpoint as Engine, RegionTable};
use isthmus_wire::Address;
use isthmus_wire::conversation::MemoryHandle;
use parking_lot::Mutex;

use crate::bell::Bell;
use crate::buffers::Buffers;
use crate::datagrams::{DATAGRAM_MAX, Datagrams};
use crate::event::{Connection, Event, Request};
use crate::inner::{Held, Inner, LOOK, State, micros};
use crate::memory::Region;
use crate::options::check;
use crate::talk::{Caller, Limits, OpId, Talk};
use crate::{ConnectOptions, Device, EndpointOptions, Error, Level, RemoteOptions, SendOptions};

/// A program's instance of a device: its connections, its buffers, and its one queue of
/// events. All calls may be made from any thread. Dropping it closes it.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) inner: Arc<Inner>,
}

/// An operation that was begun; to be waited for where it is blocking.
#[derive(Debug)]
#[must_use]
pub struct Posted(Option<OpId>);

/// Counts of what an endpoint did, for diagnosis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointCounters {
    /// Messages given to the program.
    pub received: u64,
    /// Datagrams of unreliable connections that this host dropped.
    pub datagrams_dropped: u64,
    /// Connections, in any state.
    pub connections: u64,
    /// Fragments that the engine sent again.
    pub fragments_resent: u64,
    /// Lanes that broke.
    pub lanes_lost: u64,
}

/// How long a call that waits polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

static SERIALS: AtomicU32 = AtomicU32::new(0);

impl Endpoint {
    /// Opens an endpoint on a device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is down; [`Error::Value`]; [`Error::System`].
    pub fn create(device: &Device, options: &EndpointOptions) -> Result<Self, Error> {
        options.check()?;
        device.check_up()?;
        let regions = Arc::new(RegionTable::default());
        let mut settings = device.settings().clone();
        if options.port != 0 {
            settings.port = options.port;
        }
        let system = |error: &dyn std::fmt::Display| Error::System(error.to_string());
        let engine = Engine::open(&settings, None, regions.clone()).map_err(|e| system(&e))?;
        engine.watch_peers();
        let address = engine.address();
        let seed = getrandom::u64().map_err(|e| system(&e))?;
        let limits = Limits {
            send_buffers: options.send_buffers,
            requests: options.backlog,
            message_max: options.message_max,
            datagram_max: options.message_max.min(DATAGRAM_MAX),
            packet_max: DATAGRAM_MAX,
            udp_port: 0,
        };
        let bell = Bell::new(engine.wait_fd()).map_err(|e| system(&e))?;
        let now = Instant::now();
        let state = State {
            talk: Talk::new(limits, seed),
            buffers: Buffers::new(options.message_max.max(isthmus_wire::conversation::LETTER_MAX as u32)),
            recv_buffers: options.recv_buffers,
            datagrams: None,
            datagrams_first: 0,
            done: Vec::new(),
            held: HashMap::new(),
            awaited: HashMap::new(),
            options: options.clone(),
            armed: false,
            device_up: true,
            looked_at: now,
            counters: EndpointCounters::default(),
        };
        // 0 would make connections that are 0 as a number.
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed) % 0xffff + 1;
        let inner = Arc::new(Inner {
            serial,
            address,
            device: device.clone(),
            engine,
            regions,
            bell,
            epoch: now,
            closed: AtomicBool::new(false),
            process: std::process::id(),
            state: Mutex::new(state),
        });
        let mut state = inner.state.lock();
        inner.fill_buffers(&mut state)?;
        drop(state);
        Ok(Self { inner })
    }

    /// The address that peers need: `isthmus://AS.SUBNET/IP:PORT#INCARNATION`.
    pub fn uri(&self) -> String {
        self.inner.address.to_string()
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Asks the endpoint at `uri` for a connection. [`Event::Connected`] or
    /// [`Event::ConnectFailed`] follows; all events of the connection carry `context`.
    ///
    /// # Errors
    /// [`Error::Uri`], [`Error::Unreachable`] where no route leads there,
    /// [`Error::TooLong`] for a payload of more than 1,024 bytes.
    pub fn connect(
        &self,
        uri: &str,
        payload: &[u8],
        level: Level,
        context: u64,
        options: &ConnectOptions,
    ) -> Result<Connection, Error> {
        let inner = &self.inner;
        let address: Address = uri.parse().map_err(|e| Error::Uri(format!("{e}")))?;
        let mut state = inner.open_state()?;
        let peer = inner.engine.peer(&address).map_err(|e| Error::Unreachable(e.to_string()))?;
        if level == Level::Uu {
            inner.open_datagrams(&mut state);
        }
        let host = inner.host(&state, context, &address)?;
        let caller = Caller { peer, level, timeout_us: options.timeout.map(micros), host };
        let id = state.talk.connect(inner.now(), &caller, payload)?;
        inner.flush(&mut state);
        Ok(inner.name(id))
    }

    /// Grants a request. [`Event::Accepted`] follows, and all events of the connection
    /// carry `context`.
    ///
    /// # Errors
    /// [`Error::Stale`] where the peer is gone meanwhile, or the request is another
    /// endpoint's.
    pub fn accept(&self, mut request: Request, context: u64) -> Result<Connection, Error> {
        self.check_request(&request)?;
        request.decided = true;
        self.inner.accept(request.id, request.level, context)
    }

    /// Turns a request down. The other program learns the reason, a number of yours, and
    /// the payload of at most 1,024 bytes.
    ///
    /// # Errors
    /// As for [`Endpoint::accept`]; [`Error::TooLong`].
    pub fn reject(&self, mut request: Request, reason: u32, payload: &[u8]) -> Result<(), Error> {
        self.check_request(&request)?;
        let mut state = self.inner.open_state()?;
        state.talk.reject(request.id, reason, payload)?;
        request.decided = true;
        self.inner.flush(&mut state);
        Ok(())
    }

    fn check_request(&self, request: &Request) -> Result<(), Error> {
        if Arc::ptr_eq(&request.inner, &self.inner) { Ok(()) } else { Err(Error::Stale("request")) }
    }

    /// Ends a connection. Its name is void from now on; what was sent before is still
    /// delivered, and its events come. The other program learns it after it has received
    /// what was sent.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn disconnect(&self, connection: Connection) -> Result<(), Error> {
        let mut state = self.inner.open_state()?;
        let id = self.inner.id(connection)?;
        state.talk.disconnect(id)?;
        self.inner.flush(&mut state);
        Ok(())
    }

    /// The next event, if there is one; never sleeps.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn get_event(&self) -> Result<Option<Event>, Error> {
        let mut state = self.inner.open_state()?;
        if !state.talk.has_news() {
            self.inner.progress(&mut state);
        }
        Ok(self.inner.next_event(&mut state))
    }

    /// The next event; sleeps until there is one, or `limit` has passed. `None`: no limit.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn next_event(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.get_event()? {
                return Ok(Some(event));
            }
            let waited = start.elapsed();
            let left = limit.map(|limit| limit.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if waited > SPIN && self.arm()? {
                self.inner.bell.sleep(left);
            }
        }
    }

    /// A descriptor that becomes readable when [`Endpoint::get_event`] may have something,
    /// provided [`Endpoint::arm`] said yes since. It is the endpoint's: do not close it.
    pub fn os_handle(&self) -> RawFd {
        self.inner.bell.raw_fd()
    }

    /// Prepares to sleep on [`Endpoint::os_handle`]. False where events are waiting: take
    /// them first. After it was readable, take events until there are none, and arm again.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn arm(&self) -> Result<bool, Error> {
        let inner = &self.inner;
        let mut state = inner.open_state()?;
        inner.bell.silence();
        if !inner.engine.arm() {
            inner.progress(&mut state);
        }
        state.armed = true;
        if state.talk.has_news() || state.datagrams.as_ref().is_some_and(Datagrams::has_fresh) {
            return Ok(false);
        }
        let now = inner.now();
        let due = state.talk.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        inner.bell.set_timer(Some(due.unwrap_or(LOOK).min(LOOK)));
        // What `progress` did may have disarmed the engine, or given it news.
        Ok(inner.engine.arm())
    }

    /// Sends a copy of a message; [`Event::Sent`] tells its end.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::Stale`], [`Error::State`]; of a blocking
    /// call also [`Error::Failed`].
    pub fn send(&self, to: Connection, message: &[u8], options: &SendOptions) -> Result<(), Error> {
        // SAFETY: the message is copied within the call.
        let op = unsafe { self.inner.send(to, &[iovec(message)], options, Held::Bytes(Vec::new()), true) }?;
        self.await_end(op)
    }

    /// As [`Endpoint::send`], of several pieces that become one message.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    pub fn send_pieces(&self, to: Connection, pieces: &[&[u8]], options: &SendOptions) -> Result<(), Error> {
        let pieces: Vec<_> = pieces.iter().map(|piece| iovec(piece)).collect();
        // SAFETY: the pieces are copied within the call.
        let op = unsafe { self.inner.send(to, &pieces, options, Held::Bytes(Vec::new()), true) }?;
        self.await_end(op)
    }

    /// Sends a message without copying it: the pieces are kept until its end.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    pub fn send_bytes(&self, to: Connection, pieces: &[Bytes], options: &SendOptions) -> Result<(), Error> {
        let held = pieces.to_vec();
        let pieces: Vec<_> = held.iter().map(|piece| iovec(piece)).collect();
        // SAFETY: what the pieces refer to is held until the message's end.
        let op = unsafe { self.inner.send(to, &pieces, options, Held::Bytes(held), false) }?;
        self.await_end(op)
    }

    /// Sends a message without copying it, from memory that the caller looks after.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    ///
    /// # Safety
    /// The pieces stay valid and unchanged until the message's event, or until the endpoint
    /// is closed. So the message is not to be silent.
    pub unsafe fn send_lent(
        &self,
        to: Connection,
        pieces: &[libc::iovec],
        options: &SendOptions,
    ) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        let op = unsafe { self.inner.send(to, pieces, options, Held::Bytes(Vec::new()), false) }?;
        self.await_end(op)
    }

    /// Registers zeroed memory of `len` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is not as much.
    pub fn register(&self, len: usize, access: Access) -> Result<Region, Error> {
        drop(self.inner.open_state()?);
        Region::allocate(u64::from(self.inner.serial), &self.inner.regions, len, access)
    }

    /// Registers memory of the program.
    ///
    /// # Errors
    /// [`Error::Memory`].
    ///
    /// # Safety
    /// The memory stays valid until the region is dropped while [`Region::is_in_use`] says
    /// no; what operations and peers may touch, nobody else touches at the same time.
    pub unsafe fn register_lent(&self, at: *mut u8, len: usize, access: Access) -> Result<Region, Error> {
        drop(self.inner.open_state()?);
        // SAFETY: by this function's contract.
        unsafe { Region::lend(u64::from(self.inner.serial), &self.inner.regions, at, len, access) }
    }

    /// Writes `len` bytes at `local_offset` of `local` to `remote_offset` of a peer's
    /// memory. [`Event::Sent`] tells its end: then the data is there.
    ///
    /// # Errors
    /// [`Error::Level`] on UU; [`Error::Memory`]; as for [`Endpoint::send`]. What the peer
    /// refuses is told by the event, and nothing of its memory is touched then.
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn write(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<(), Error> {
        self.wait_for(self.post_write(to, local, local_offset, remote, remote_offset, len, options)?)
    }

    /// As [`Endpoint::write`], but a blocking one is waited for by [`Endpoint::wait_for`]:
    /// the region may be dropped, or a lock released, between the two.
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn post_write(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<Posted, Error> {
        self.inner.remote(to, local, local_offset, remote, remote_offset, len, options, true).map(Posted)
    }

    /// As [`Endpoint::read`]; see [`Endpoint::post_write`].
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn post_read(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<Posted, Error> {
        self.inner.remote(to, local, local_offset, remote, remote_offset, len, options, false).map(Posted)
    }

    /// Waits for the end of what was posted as blocking; of others returns at once.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Closed`].
    pub fn wait_for(&self, posted: Posted) -> Result<(), Error> {
        self.await_end(posted.0)
    }

    /// Reads a peer's memory into ours; as [`Endpoint::write`], the other way.
    ///
    /// # Errors
    /// As for [`Endpoint::write`].
    #[allow(clippy::too_many_arguments, reason = "two places, and a length")]
    pub fn read(
        &self,
        to: Connection,
        local: &Region,
        local_offset: u64,
        remote: &MemoryHandle,
        remote_offset: u64,
        len: u64,
        options: &RemoteOptions<'_>,
    ) -> Result<(), Error> {
        self.wait_for(self.post_read(to, local, local_offset, remote, remote_offset, len, options)?)
    }

    /// Waits for the end of a blocking operation.
    fn await_end(&self, op: Option<OpId>) -> Result<(), Error> {
        let Some(op) = op else { return Ok(()) };
        let start = Instant::now();
        loop {
            let mut state = self.inner.state.lock();
            if self.inner.is_closed() {
                return Err(Error::Closed);
            }
            self.inner.progress(&mut state);
            self.inner.pass_news(&mut state);
            if let Some(Some(_)) = state.awaited.get(&op) {
                let end = state.awaited.remove(&op).flatten();
                return end.unwrap_or(Ok(())).map_err(Error::Failed);
            }
            drop(state);
            if start.elapsed() > SPIN {
                // The I/O thread turns the engine meanwhile; other threads may take the end.
                let _ = self.inner.engine.wait(Some(Duration::from_millis(1)));
            }
        }
    }

    /// The service level of a connection.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn level(&self, connection: Connection) -> Result<Level, Error> {
        self.describe(connection).map(|described| described.level)
    }

    /// Longest message that may be sent by a connection. Bytes; 0 until it is established.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn message_max(&self, connection: Connection) -> Result<u32, Error> {
        self.describe(connection).map(|described| described.message_max)
    }

    /// The address of the endpoint at the other end.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn peer_uri(&self, connection: Connection) -> Result<String, Error> {
        let peer = self.describe(connection)?.peer;
        Ok(self.inner.engine.peer_address(peer).to_string())
    }

    fn describe(&self, connection: Connection) -> Result<crate::talk::Described, Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.describe(id)
    }

    /// How long messages, writes and reads of a connection may take from now on; zero: as
    /// long as the peer lives. What takes longer has its event, and may still arrive, once; a
    /// region is in use until the operation has ended indeed ([`Region::is_in_use`]).
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_send_timeout(&self, connection: Connection, timeout: Duration) -> Result<(), Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.set_send_timeout(id, micros(timeout))
    }

    /// After how much silence of a connection the program is told; zero: never.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_keepalive(&self, connection: Connection, silence: Duration) -> Result<(), Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.set_keepalive(self.inner.now(), id, micros(silence))
    }

    /// A connection's send time-out and keepalive.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn times(&self, connection: Connection) -> Result<(Duration, Duration), Error> {
        let id = self.inner.id(connection)?;
        let (timeout_us, keepalive_us) = self.inner.open_state()?.talk.times(id)?;
        Ok((Duration::from_micros(timeout_us), Duration::from_micros(keepalive_us)))
    }

    /// The options in force.
    pub fn options(&self) -> EndpointOptions {
        self.inner.state.lock().options.clone()
    }

    /// Changes options; those of times hold for new connections.
    ///
    /// # Errors
    /// [`Error::Value`]; `message_max` and `port` cannot change.
    pub fn set_options(&self, options: &EndpointOptions) -> Result<(), Error> {
        options.check()?;
        let mut state = self.inner.open_state()?;
        if (options.message_max, options.port) != (state.options.message_max, state.options.port) {
            return Err(Error::Value(
                "message_max and port are chosen when an endpoint is created".to_owned(),
            ));
        }
        check("recv_buffers", options.recv_buffers, 1, 65_536)?;
        state.recv_buffers = options.recv_buffers;
        if let Some(datagrams) = &mut state.datagrams {
            datagrams.set_waiting_max(options.recv_buffers as usize);
        }
        let limits = state.talk.limits_mut();
        limits.send_buffers = options.send_buffers;
        limits.requests = options.backlog;
        state.options = options.clone();
        self.inner.fill_buffers(&mut state)
    }

    /// What was done so far.
    pub fn counters(&self) -> EndpointCounters {
        let state = self.inner.state.lock();
        let engine = self.inner.engine.counters();
        EndpointCounters {
            datagrams_dropped: state.datagrams.as_ref().map_or(0, Datagrams::dropped),
            connections: state.talk.links() as u64,
            fragments_resent: engine.fragments_resent,
            lanes_lost: engine.lanes_lost,
            ..state.counters
        }
    }

    /// Closes the endpoint: what was sent is delivered, within the device's `linger`, and
    /// peers are told. Events that the program still holds stay valid.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.inner.close();
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
