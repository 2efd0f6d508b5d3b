//! The task that turns a port as long as somebody has it.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isthmus_udp::{Event, Micros, StreamId, Transmit as Packets};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef};
use tokio::io::Interest;
use tokio::time::sleep;
use tracing::debug;

use super::{DatagramPort, Inner, UdpStream, Waiting};

/// One message of the socket: packets to or from one address. Bytes.
const MESSAGE: usize = 65_000;
/// Room for a message that came; the longest there is.
const MESSAGE_MAX: usize = 65_535;
/// Messages that are made before the lock is let go of.
const MESSAGES: usize = 4;
/// The socket is read so many times before it is written.
const READS: usize = 4;
/// How often an unused port looks whether it still is.
const REST: Duration = Duration::from_secs(1);

/// Turns the port until nobody has it any longer and all its streams have come to their end.
pub(super) async fn turn(port: Arc<DatagramPort>) {
    let mut turning = Turning::new();
    while Arc::strong_count(&port) > 1 || !port.inner.lock().port.is_empty() {
        let read = turning.take_in(&port);
        let blocked = turning.put_out(&port);
        tell(&port);
        let now = port.now();
        let due = {
            let mut inner = port.inner.lock();
            inner.sleeps_until = inner.port.poll_timeout().unwrap_or(Micros::MAX);
            inner.sleeps_until
        };
        if read || (due <= now && !blocked) {
            port.inner.lock().sleeps_until = 0;
            tokio::task::yield_now().await;
            continue;
        }
        let rest = if blocked { REST } else { Duration::from_micros(due.saturating_sub(now)).min(REST) };
        let interest = if blocked { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        tokio::select! {
            _ = port.socket.ready(interest) => {}
            () = port.call.notified(), if !blocked => {}
            () = sleep(rest) => {}
        }
        port.inner.lock().sleeps_until = 0;
    }
}

/// The task's own buffers.
struct Turning {
    incoming: Vec<u8>,
    came: [RecvMeta; BATCH_SIZE],
    outgoing: Vec<u8>,
    messages: Vec<Packets>,
    /// How much of `outgoing` and `messages` the socket has taken.
    sent: (usize, usize),
}

impl Turning {
    fn new() -> Self {
        Self {
            incoming: vec![0; BATCH_SIZE * MESSAGE_MAX],
            came: [RecvMeta::default(); BATCH_SIZE],
            outgoing: Vec::with_capacity(MESSAGES * MESSAGE),
            messages: Vec::with_capacity(MESSAGES),
            sent: (0, 0),
        }
    }

    /// Takes in what has come; true where more may be there.
    fn take_in(&mut self, port: &DatagramPort) -> bool {
        for _ in 0..READS {
            let mut rooms = self.incoming.chunks_exact_mut(MESSAGE_MAX).map(IoSliceMut::new);
            let mut rooms: [IoSliceMut<'_>; BATCH_SIZE] =
                std::array::from_fn(|_| rooms.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            let receive = || port.system.recv(UdpSockRef::from(&port.socket), &mut rooms, &mut self.came);
            let count = match port.socket.try_io(Interest::READABLE, receive) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // What the network says of packets that did not pass; the protocol finds out.
                Err(error) => {
                    debug!(%error, "a datagram socket's complaint");
                    continue;
                }
            };
            let mut inner = port.inner.lock();
            let now = port.now();
            for (room, meta) in self.incoming.chunks_exact_mut(MESSAGE_MAX).zip(&self.came[..count]) {
                for packet in room[..meta.len].chunks_mut(meta.stride.max(1)) {
                    inner.port.on_packet(now, now, meta.addr, packet);
                }
            }
        }
        true
    }

    /// Sends what is due; true where the socket takes no more.
    fn put_out(&mut self, port: &DatagramPort) -> bool {
        loop {
            if self.sent.1 == self.messages.len() && !self.make(port) {
                return false;
            }
            while let Some(packets) = self.messages.get(self.sent.1) {
                let contents = &self.outgoing[self.sent.0..self.sent.0 + packets.len];
                let segment_size = (packets.len > packets.segment).then_some(packets.segment);
                let (destination, ecn, src_ip) = (packets.to, None, None);
                let message = Transmit { destination, ecn, contents, segment_size, src_ip };
                let send = || port.system.try_send(UdpSockRef::from(&port.socket), &message);
                match port.socket.try_io(Interest::WRITABLE, send) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    // It counts as lost: a probe that is too long for the interface is, too.
                    Err(error) => debug!(to = %packets.to, %error, "packets were not sent"),
                    Ok(()) => {}
                }
                self.sent = (self.sent.0 + packets.len, self.sent.1 + 1);
            }
        }
    }

    /// Makes the next messages; false where there are none.
    fn make(&mut self, port: &DatagramPort) -> bool {
        self.outgoing.clear();
        self.messages.clear();
        self.sent = (0, 0);
        let most = port.system.max_gso_segments();
        let mut inner = port.inner.lock();
        let now = port.now();
        while self.messages.len() < MESSAGES
            && let Some(packets) = inner.port.poll_transmit(now, most, MESSAGE, &mut self.outgoing)
        {
            self.messages.push(packets);
        }
        !self.messages.is_empty()
    }
}

/// Tells those whom it concerns what has become of streams.
fn tell(port: &Arc<DatagramPort>) {
    let mut inner = port.inner.lock();
    while let Some(event) = inner.port.poll_event() {
        let woken = match event {
            Event::Accepted(id, peer) => {
                accept(port, &mut inner, id, peer);
                continue;
            }
            Event::Opened(_) => continue,
            Event::Readable(id) => inner.waiting.get_mut(&id).map(|waiting| [waiting.reader.take(), None]),
            Event::Writable(id) => inner.waiting.get_mut(&id).map(|waiting| [None, waiting.writer.take()]),
            Event::Failed(id, _) => {
                inner.waiting.get_mut(&id).map(|waiting| [waiting.reader.take(), waiting.writer.take()])
            }
        };
        woken.into_iter().flatten().flatten().for_each(std::task::Waker::wake);
    }
}

/// Passes on a stream that somebody opened, or turns it away.
fn accept(port: &Arc<DatagramPort>, inner: &mut Inner, id: StreamId, peer: SocketAddr) {
    let place = inner.accepted.as_ref().and_then(|accepted| accepted.clone().try_reserve_owned().ok());
    match place {
        Some(place) => {
            inner.waiting.insert(id, Waiting::default());
            place.send(UdpStream::new(port.clone(), id, peer));
        }
        None => {
            let now = port.now();
            inner.port.with(now, id, |stream| stream.abort());
            inner.port.release(now, id);
        }
    }
}
