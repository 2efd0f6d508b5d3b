//! Events: what an endpoint tells its program.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use isthmus_wire::conversation::ConnectionId;

use crate::inner::Inner;
use crate::{Failure, Level};

/// The name of a connection. Calls with the name of an ended connection, or of another endpoint's, return an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    pub(crate) endpoint: u16,
    pub(crate) id: ConnectionId,
}

impl Connection {
    /// The connection as a number, for languages without types. Never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.endpoint) << 48 | self.id.to_bits()
    }

    /// The connection for a number that [`Connection::to_bits`] returned.
    pub fn from_bits(bits: u64) -> Self {
        Self { endpoint: (bits >> 48) as u16, id: ConnectionId::from_bits(bits) }
    }
}

/// An event. Some events hold a buffer of the endpoint; dropping the event returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection. Dropped undecided, it is rejected with reason 0.
    Requested(Request),
    /// A connection that the program asked for is established.
    Connected {
        /// The connection.
        connection: Connection,
        /// The program's context.
        context: u64,
    },
    /// A connection that the program asked for failed.
    ConnectFailed {
        /// The program's context.
        context: u64,
        /// Why.
        why: Failure,
        /// The other program's payload, if it was [`Failure::Rejected`].
        payload: Vec<u8>,
    },
    /// A connection that the program accepted is established.
    Accepted {
        /// The connection.
        connection: Connection,
        /// The program's context.
        context: u64,
    },
    /// A connection that the program accepted failed: the peer is gone.
    AcceptFailed {
        /// The program's context.
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
        /// The program's context of the connection; 0 if it has been disconnected.
        context: u64,
        /// The program's context of the operation.
        operation: u64,
        /// Its result.
        end: Result<(), Failure>,
    },
    /// A connection has ended. Calls on it are refused; release it with `disconnect`.
    Disconnected {
        /// The connection.
        connection: Connection,
        /// The program's context.
        context: u64,
        /// Why.
        why: Failure,
    },
    /// A connection was silent for its keepalive time. It goes on, and the event comes again after as much further
    /// silence.
    KeepaliveExpired {
        /// The connection.
        connection: Connection,
        /// The program's context.
        context: u64,
    },
    /// A device of the endpoint carries nothing any more. Its address or interface has left the host, the interface was
    /// taken down or has no carrier, or its local fabric has failed (lanes then go by TCP). A program that polls or
    /// sleeps notices it within one or two seconds. Operations go on when the device comes back, and fail if that takes
    /// longer than `peer_timeout`. If it fails again, or in another way, the event comes again. A device without a
    /// carrier when the endpoint was created is not reported until that changes.
    DeviceFailed {
        /// The details known.
        why: String,
    },
}

/// A peer's request for a connection, for `accept` or `reject`.
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

    /// The other program's payload; at most 1,024 bytes.
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

/// A received message, in a buffer of the endpoint. It keeps the buffer until it is dropped, by any thread. An endpoint
/// receives no more while all of its buffers are kept.
#[derive(Debug)]
pub struct Message {
    pub(crate) inner: Arc<Inner>,
    pub(crate) connection: Connection,
    pub(crate) context: u64,
    pub(crate) data: Data,
}

/// The bytes of a message.
#[derive(Debug)]
pub(crate) enum Data {
    /// In a buffer that circulates between engine and program.
    Slot { at: NonNull<u8>, len: usize, port: usize, slot: u32 },
    /// In memory of its own.
    Own { bytes: Vec<u8>, port: usize },
}

// SAFETY: a slot's bytes are this message's alone until it is dropped.
unsafe impl Send for Message {}
// SAFETY: as above, and they are only read.
unsafe impl Sync for Message {}

impl Message {
    /// The connection on which it came.
    pub fn connection(&self) -> Connection {
        self.connection
    }

    /// The program's context of the connection.
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
