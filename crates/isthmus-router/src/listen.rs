//! Listeners: one for each subnet on which the router takes lanes or links.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use isthmus_datagram::scarcity::{ACCEPT_PAUSE, Sparing, remedy};
use isthmus_wire::SubnetId;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::datagram::DatagramPort;
use crate::dial::{tune_lane, tune_link};
use crate::router::{Arrival, Router};
use crate::settings::Carrier;
use crate::wire::Transport;

/// Most connections that may wait to be accepted, as at an endpoint. If there are more, a caller's kernel tries again after
/// a second. Count.
const BACKLOG: u32 = 4_096;

/// The connections that a listener accepts: plain lanes (`None`), or links by this transport.
type Links = Option<Transport>;

/// The open listeners.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<(SubnetId, SocketAddr, Links), JoinHandle<()>>);

impl Listeners {
    /// Opens and closes listeners so that they match the settings.
    pub(crate) async fn follow(&mut self, router: &Arc<Router>) -> io::Result<()> {
        let settings = router.settings();
        let mut wanted = Vec::new();
        for place in &settings.places {
            let Some(listen) = place.listen else { continue };
            match place.carrier {
                Carrier::Plain => wanted.push((place.subnet, listen, None)),
                Carrier::Links => {
                    wanted.extend(place.transports.iter().map(|kind| (place.subnet, listen, Some(*kind))));
                }
                Carrier::Closed => {}
            }
        }
        let gone: Vec<_> = self.0.keys().filter(|key| !wanted.contains(key)).copied().collect();
        for key in gone {
            self.close(key).await;
        }
        for key in wanted {
            if self.0.contains_key(&key) {
                continue;
            }
            let (subnet, address, links) = key;
            let cannot = |error: io::Error| {
                let kind = links.unwrap_or(Transport::Tcp);
                let why = if error.kind() == io::ErrorKind::AddrNotAvailable {
                    format!("this host has no address {}; it has {}", address.ip(), present())
                } else {
                    error.to_string()
                };
                io::Error::new(error.kind(), format!("cannot listen on {address} by {kind}: {why}"))
            };
            let task = if links == Some(Transport::Udp) {
                let port = router.datagrams.at(address).map_err(cannot)?;
                tokio::spawn(accept_streams(router.clone(), port, subnet))
            } else {
                let listener = listen(address).map_err(cannot)?;
                tokio::spawn(accept(router.clone(), listener, subnet, links.is_some()))
            };
            let transport = links.unwrap_or(Transport::Tcp);
            info!(%address, subnet = subnet.0, links = links.is_some(), %transport, "listening");
            self.0.insert(key, task);
        }
        Ok(())
    }

    /// Closes all.
    pub(crate) async fn close_all(&mut self) {
        for key in self.0.keys().copied().collect::<Vec<_>>() {
            self.close(key).await;
        }
    }

    async fn close(&mut self, key: (SubnetId, SocketAddr, Links)) {
        if let Some(task) = self.0.remove(&key) {
            task.abort();
            // The port is free only when the task has ended. It always ends with "aborted".
            let _ = task.await;
        }
    }
}

/// The interfaces of this host and their addresses, for errors.
fn present() -> String {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    all.iter().map(|i| format!("{} ({})", i.name, i.ip())).collect::<Vec<_>>().join(", ")
}

/// Listens as [`TcpListener::bind`] does, with a longer queue.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(router: Arc<Router>, listener: TcpListener, subnet: SubnetId, links: bool) {
    let sparing = Sparing::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(left_out) = sparing.due(Instant::now()) {
                    let remedy = remedy(&error).unwrap_or("the connection was gone again");
                    warn!(subnet = subnet.0, %error, "cannot accept a connection: {remedy}{left_out}");
                }
                // No descriptor is free. Close a connection that has sent nothing.
                router.arrivals.displace();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let arrival = Arrival { subnet, peer, neighbour: None };
        let place = router.arrivals.arrive(peer.ip().to_canonical());
        let router = router.clone();
        if links {
            tune_link(&stream);
            tokio::spawn(place.hold(move |place| router.accept_link(stream, arrival, place)));
        } else {
            tune_lane(&stream);
            tokio::spawn(place.hold(move |place| router.serve_plain(stream, arrival, place)));
        }
    }
}

async fn accept_streams(router: Arc<Router>, port: Arc<DatagramPort>, subnet: SubnetId) {
    let mut streams = port.accept();
    while let Some(stream) = streams.recv().await {
        let arrival = Arrival { subnet, peer: stream.peer_addr(), neighbour: None };
        let place = router.arrivals.arrive(arrival.peer.ip().to_canonical());
        let router = router.clone();
        tokio::spawn(place.hold(move |place| router.accept_link(stream, arrival, place)));
    }
}
