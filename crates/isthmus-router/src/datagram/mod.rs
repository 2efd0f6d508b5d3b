//! Streams over UDP, for links: the shell of the protocol in `isthmus-udp`.
//!
//! A [`DatagramPort`] is one socket. A task drives it (`driver.rs`): it receives packets, sends the packets that are
//! due, and wakes the tasks that wait for a stream. Readers and writers of a [`UdpStream`] change only the protocol's
//! state. They notify the driver if something is due earlier than it expects.

mod driver;
mod stream;

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

/// Limit on incoming streams that wait to be accepted.
const BACKLOG: usize = 64;
/// A stream ends after this time without a packet from the other end. Microseconds; as long as TCP's `CUT_MS`.
const PATIENCE_US: Micros = 10_000_000;

/// Time 0 of the clock that all ports share.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds since [`EPOCH`].
pub(crate) fn now() -> Micros {
    at(Instant::now())
}

fn at(time: Instant) -> Micros {
    time.saturating_duration_since(*EPOCH).as_micros() as Micros
}

/// A UDP socket and its streams; see the module.
pub(crate) struct DatagramPort {
    inner: Mutex<Inner>,
    /// Wakes the driver: something is due before its timer.
    call: Notify,
}

struct Inner {
    port: Port,
    waiting: HashMap<StreamId, Waiting>,
    /// Takes the streams that others open. If it is None, they are refused.
    accepted: Option<mpsc::Sender<UdpStream>>,
    /// When the driver wakes by itself; 0 while it is awake.
    sleeps_until: Micros,
}

/// The tasks that wait for one stream.
#[derive(Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The open ports, by the address that was asked for.
#[derive(Default)]
pub(crate) struct DatagramPorts(Mutex<HashMap<SocketAddr, Weak<DatagramPort>>>);

impl DatagramPorts {
    /// The port at `at`, opened if necessary. It lives while somebody holds it. With port number 0 the kernel
    /// chooses one.
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
        // The runtime polls a duplicate of the socket's descriptor.
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
        tokio::spawn(driver::drive(port.clone(), socket, waits));
        Ok(port)
    }

    /// Opens a stream. The first packet carries the first bytes written.
    pub(crate) fn dial(self: &Arc<Self>, to: SocketAddr) -> UdpStream {
        let mut inner = self.inner.lock();
        let id = inner.port.open(now(), to);
        inner.waiting.insert(id, Waiting::default());
        self.call_if_due(&inner);
        UdpStream::new(self.clone(), id, to)
    }

    /// Yields the streams that others open from now on, until the receiver is dropped.
    pub(crate) fn accept(&self) -> mpsc::Receiver<UdpStream> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.inner.lock().accepted = Some(sender);
        receiver
    }

    /// Wakes the driver if something is due before its timer.
    fn call_if_due(&self, inner: &Inner) {
        if inner.port.poll_timeout().is_some_and(|due| due < inner.sleeps_until) {
            self.call.notify_one();
        }
    }
}
