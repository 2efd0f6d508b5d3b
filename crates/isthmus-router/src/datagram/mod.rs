//! Streams over UDP, for links: the shell of the protocol in `isthmus-udp`.
//!
//! A [`DatagramPort`] is one socket. A task turns it (`turning.rs`): takes in what has come,
//! sends what is due, and wakes who waits for a stream. Readers and writers of a
//! [`UdpStream`] touch the protocol's state only, and call the task where that makes
//! something due earlier.

mod stream;
mod turning;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Weak};
use std::task::Waker;
use std::time::Instant;

use isthmus_datagram::UdpSocket;
use isthmus_udp::{Micros, Port, PortConfig, StreamId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tracing::info;

pub(crate) use stream::{Gauge, UdpStream};

/// Streams that others opened and nobody has yet taken.
const BACKLOG: usize = 64;
/// After so long without a sign of the other end a stream ends. Microseconds.
const PATIENCE_US: Micros = 10_000_000;

/// The clock of all ports, and of what they share, begins here.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time of all ports.
pub(crate) fn now() -> Micros {
    at(Instant::now())
}

fn at(time: Instant) -> Micros {
    time.saturating_duration_since(*EPOCH).as_micros() as Micros
}

/// See the module.
pub(crate) struct DatagramPort {
    inner: Mutex<Inner>,
    /// The task is wanted earlier than it thinks.
    call: Notify,
}

struct Inner {
    port: Port,
    waiting: HashMap<StreamId, Waiting>,
    /// Takes the streams that others open; they are turned away where there is none.
    accepted: Option<mpsc::Sender<UdpStream>>,
    /// The task sleeps until then; 0 while it does not.
    sleeps_until: Micros,
}

/// Who waits for a stream.
#[derive(Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The ports in use, by the address at which they were wanted.
#[derive(Default)]
pub(crate) struct DatagramPorts(Mutex<HashMap<SocketAddr, Weak<DatagramPort>>>);

impl DatagramPorts {
    /// The port at `at`, which lives while somebody has it; its number 0 lets the system choose.
    pub(crate) fn at(&self, at: SocketAddr) -> io::Result<Arc<DatagramPort>> {
        let mut ports = self.0.lock();
        if let Some(port) = ports.get(&at).and_then(Weak::upgrade) {
            return Ok(port);
        }
        let port = DatagramPort::open(at)?;
        ports.retain(|_, port| port.strong_count() > 0);
        ports.insert(at, Arc::downgrade(&port));
        Ok(port)
    }
}

impl DatagramPort {
    fn open(at: SocketAddr) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::bind(at, |what| info!("{what}"))?;
        // The runtime waits on a descriptor of its own of the same socket.
        let waits = tokio::net::UdpSocket::from_std(socket.fd().try_clone_to_owned()?.into())?;
        let mut config = PortConfig::at(at, None);
        config.stream.patience_us = PATIENCE_US;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
        let port = Arc::new(Self {
            inner: Mutex::new(Inner {
                port: Port::new(config, key),
                waiting: HashMap::new(),
                accepted: None,
                sleeps_until: 0,
            }),
            call: Notify::new(),
        });
        tokio::spawn(turning::turn(port.clone(), socket, waits));
        Ok(port)
    }

    /// Opens a stream. What is written to it goes with the first packet.
    pub(crate) fn dial(self: &Arc<Self>, to: SocketAddr) -> UdpStream {
        let mut inner = self.inner.lock();
        let id = inner.port.open(now(), to);
        inner.waiting.insert(id, Waiting::default());
        self.call_if_due(&inner);
        UdpStream::new(self.clone(), id, to)
    }

    /// Streams that others open from now on, until the receiver is dropped.
    pub(crate) fn accept(&self) -> mpsc::Receiver<UdpStream> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.inner.lock().accepted = Some(sender);
        receiver
    }

    /// Calls the task if something is due before it wakes by itself.
    fn call_if_due(&self, inner: &Inner) {
        if inner.port.poll_timeout().is_some_and(|due| due < inner.sleeps_until) {
            self.call.notify_one();
        }
    }
}
