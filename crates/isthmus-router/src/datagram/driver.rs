//! The task that drives a port as long as somebody holds the port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isthmus_datagram::scarcity::{self, Sparing};
use isthmus_datagram::{Received, SEND_BYTES, Sent, UdpSocket};
use isthmus_udp::{Event, Micros, Outbox, StreamId};
use tokio::io::Interest;
use tokio::net;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{DatagramPort, Inner, UdpStream, Waiting, at, now};

/// Batches of packets that are built under one hold of the lock: more would make readers and writers wait.
const BATCHES: usize = 4;
/// Reads of the socket before it is written, so that a flood of input does not stop output.
const READS: usize = 8;
/// Interval at which an unused port checks whether somebody still holds it.
const REST: Duration = Duration::from_secs(1);
/// Pause after the socket's send buffer was full.
const BLOCKED: Duration = Duration::from_millis(1);

/// Drives the port until nobody holds it and all its streams have ended. `waits` tells when a packet can be read.
pub(super) async fn drive(port: Arc<DatagramPort>, mut socket: UdpSocket, waits: net::UdpSocket) {
    let (mut outbox, sparing) = (Outbox::default(), Sparing::default());
    while Arc::strong_count(&port) > 1 || !port.inner.lock().port.is_empty() {
        let read = take_in(&port, &mut socket, &waits);
        let blocked = put_out(&mut outbox, &port, &socket, &sparing);
        tell(&port);
        let now = now();
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
        let rest = Duration::from_micros(due.saturating_sub(now)).min(REST);
        let rest = if blocked { rest.max(BLOCKED) } else { rest };
        tokio::select! {
            _ = waits.readable() => {}
            () = port.call.notified(), if !blocked => {}
            () = sleep(rest) => {}
        }
        port.inner.lock().sleeps_until = 0;
    }
}

/// Receives packets. True if more may be there.
fn take_in(port: &DatagramPort, socket: &mut UdpSocket, waits: &net::UdpSocket) -> bool {
    let more = read(port, socket, waits);
    port.inner.lock().port.note_drops(now(), || socket.take_dropped());
    more
}

fn read(port: &DatagramPort, socket: &mut UdpSocket, waits: &net::UdpSocket) -> bool {
    for _ in 0..READS {
        let receive = || {
            let came = socket.receive(|Received { from, arrived, .. }, packet| {
                port.inner.lock().port.on_packet(now(), at(arrived), from, packet);
            });
            if came? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        };
        match waits.try_io(Interest::READABLE, receive) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // An ICMP error about an earlier packet. The protocol detects the loss by itself.
            Err(error) => {
                debug!(%error, "a datagram socket's complaint");
                socket.refusals(|report| debug!(?report, "packets do not get through"));
            }
        }
    }
    true
}

/// Sends what is due. True if the socket takes no more.
fn put_out(outbox: &mut Outbox, port: &DatagramPort, socket: &UdpSocket, sparing: &Sparing) -> bool {
    let fetch = |outbox: &mut Outbox| {
        let inner = &mut *port.inner.lock();
        // The kernel may have refused to cut the last message.
        let most = (socket.packets_max(), SEND_BYTES);
        outbox.fill(now(), &mut inner.port, BATCHES, most)
    };
    while !outbox.is_empty() || fetch(outbox) {
        let Some((batch, packets)) = outbox.front() else { break };
        // A packet that the kernel drops counts as lost.
        match socket.send(batch.to, batch.segment, packets) {
            Sent::Partly(bytes) => {
                outbox.advance(bytes);
                return true;
            }
            Sent::Dropped => tell_refused(sparing, batch.to, socket.take_own_refusal()),
            Sent::TooLong => {
                if !port.inner.lock().port.on_too_long(now(), &batch) {
                    tell_refused(sparing, batch.to, Some(scarcity::too_long()));
                }
            }
            Sent::Yes => {}
        }
        outbox.advance(batch.len);
    }
    false
}

/// Warns of packets to `to` that did not leave, if this host is the cause.
fn tell_refused(sparing: &Sparing, to: SocketAddr, error: Option<io::Error>) {
    if let Some(error) = error {
        let what = format_args!("packets to {to} do not leave this host");
        sparing.tell(what, &error, |line| warn!("{line}"));
    }
}

/// Wakes the tasks whose streams have changed.
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

/// Hands an incoming stream to the acceptor, or refuses it.
fn accept(port: &Arc<DatagramPort>, inner: &mut Inner, id: StreamId, peer: SocketAddr) {
    let place = inner.accepted.as_ref().and_then(|accepted| accepted.clone().try_reserve_owned().ok());
    match place {
        Some(place) => {
            inner.waiting.insert(id, Waiting::default());
            place.send(UdpStream::new(port.clone(), id, peer));
        }
        None => {
            let now = now();
            inner.port.with(now, id, |stream| stream.abort());
            inner.port.release(now, id);
        }
    }
}
