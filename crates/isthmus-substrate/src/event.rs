//! What an endpoint tells its program.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use isthmus_wire::conversation::ConnectionId;

use crate::inner::Inner;
use crate::{Failure, Level};

/// A connection, as programs name it. It stays a mere name: of a connection that has ended,
/// or of another endpoint, every call says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    pub(crate) endpoint: u16,
    pub(crate) id: ConnectionId,
}

impl Connection {
    /// As a number, for languages without types. Never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.endpoint) << 48 | self.id.to_bits()
    }

    /// What [`Connection::to_bits`] gave.
    pub fn from_bits(bits: u64) -> Self {
        Self { endpoint: (bits >> 48) as u16, id: ConnectionId::from_bits(bits) }
    }
}

/// What has happened. Events hold buffers of the endpoint: dropping one returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection. Dropped undecided, it is rejected with reason 0.
    Requested(Request),
    /// A connection that was asked for is established.
    Connected {
        /// The connection.
        connection: Connection,
        /// The program's word for it.
        context: u64,
    },
    /// A connection that was asked for will not be.
    ConnectFailed {
        /// The program's word for it.
        context: u64,
        /// Why.
        why: Failure,
        /// What the other program said, where it was [`Failure::Rejected`].
        payload: Vec<u8>,
    },
    /// A connection that was accepted is established.
    Accepted {
        /// The connection.
        connection: Connection,
        /// The program's word for it.
        context: u64,
    },
    /// A connection that was accepted will not be: the peer is gone.
    AcceptFailed {
        /// The program's word for it.
        context: u64,
        /// Why.
        why: Failure,
    },
    /// A message came.
    Received(Message),
    /// A send, write or read has ended.
    Sent {
        /// The connection.
        connection: Connection,
        /// The program's word for the connection; 0 where it has been disconnected.
        context: u64,
        /// The program's word for the operation.
        operation: u64,
        /// How it ended.
        end: Result<(), Failure>,
    },
    /// A connection is over. Calls on it are refused; give it back with `disconnect`.
    Disconnected {
        /// The connection.
        connection: Connection,
        /// The program's word for it.
        context: u64,
        /// Why.
        why: Failure,
    },
    /// Nothing was heard of a connection for its keepalive time. It goes on, and the event
    /// comes again after as much further silence.
    KeepaliveExpired {
        /// The connection.
        connection: Connection,
        /// The program's word for it.
        context: u64,
    },
    /// A device of the endpoint carries nothing any more: its address or its interface has left
    /// the host, the interface was taken down, or has no carrier, or the local fabric behind it
    /// has failed, in whose place lanes then go by TCP. Noticed within a second or two by who
    /// polls or sleeps. Operations go on when it comes back, and fail when that takes longer than
    /// `peer_timeout`; should it fail again, or in another way, the event comes again. A device
    /// that lacked its carrier when the endpoint was created is not told of until that changes.
    DeviceFailed {
        /// What is known of it.
        why: String,
    },
}

/// A peer's request for a connection; to be given to `accept` or `reject`.
#[derive(Debug)]
pub struct Request {
    pub(crate) inner: Arc<Inner>,
    pub(crate) id: ConnectionId,
    pub(crate) level: Level,
    pub(crate) payload: Vec<u8>,
    pub(crate) peer: String,
    pub(crate) decided: bool,
}

impl Request {
    /// The service level that is asked for.
    pub fn level(&self) -> Level {
        self.level
    }

    /// What the other program said; at most 1,024 bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The address of the endpoint that asks.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.decided {
            self.inner.reject(self.id, 0, &[]);
        }
    }
}

/// A message that came, in a buffer of the endpoint. It keeps the buffer until it is
/// dropped, from any thread; an endpoint all of whose buffers are kept receives no more.
#[derive(Debug)]
pub struct Message {
    pub(crate) inner: Arc<Inner>,
    pub(crate) connection: Connection,
    pub(crate) context: u64,
    pub(crate) data: Data,
}

/// Where a message is.
#[derive(Debug)]
pub(crate) enum Data {
    /// In a buffer that is lent to engine and program by turns.
    Slot { at: NonNull<u8>, len: usize, port: usize, slot: u32 },
    /// In memory of its own.
    Own { bytes: Vec<u8>, port: usize },
}

// SAFETY: a slot's bytes are this message's alone until it is dropped.
unsafe impl Send for Message {}
// SAFETY: as above, and they are only read.
unsafe impl Sync for Message {}

impl Message {
    /// The connection that it came by.
    pub fn connection(&self) -> Connection {
        self.connection
    }

    /// The program's word for the connection.
    pub fn context(&self) -> u64 {
        self.context
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.data {
            // SAFETY: the buffer has at least as many bytes, all initialised; it stays until
            // `inner` goes, and the engine gets it back only when this message is dropped.
            Data::Slot { at, len, .. } => unsafe { std::slice::from_raw_parts(at.as_ptr(), *len) },
            Data::Own { bytes, .. } => bytes,
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        match &mut self.data {
            Data::Slot { port, slot, .. } => self.inner.give_back(*port, *slot),
            Data::Own { bytes, port } => self.inner.give_back_datagram(*port, std::mem::take(bytes)),
        }
    }
}
