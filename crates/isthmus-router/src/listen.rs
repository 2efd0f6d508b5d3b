//! Listeners: one for each subnet on which the router takes lanes or links.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isthmus_wire::SubnetId;
use tokio::net::TcpListener;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::datagram::DatagramPort;
use crate::dial::{tune_lane, tune_link};
use crate::router::{Arrival, Router};
use crate::settings::Carrier;
use crate::wire::Transport;

/// What is listened for: plain lanes, or links by this transport.
type Links = Option<Transport>;

/// The listeners that stand.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<(SubnetId, SocketAddr, Links), JoinHandle<()>>);

impl Listeners {
    /// Closes those that the settings do not have, and opens those that they have.
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
                io::Error::new(error.kind(), format!("cannot listen on {address} by {kind}: {error}"))
            };
            let task = if links == Some(Transport::Udp) {
                let port = router.datagrams.at(address).map_err(cannot)?;
                tokio::spawn(accept_streams(router.clone(), port, subnet))
            } else {
                let listener = TcpListener::bind(address).await.map_err(cannot)?;
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
            // The port is free only when the task is gone; that it was aborted is no news.
            let _ = task.await;
        }
    }
}

async fn accept(router: Arc<Router>, listener: TcpListener, subnet: SubnetId, links: bool) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(subnet = subnet.0, %error, "cannot accept; is LimitNOFILE too low?");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let arrival = Arrival { subnet, peer, neighbour: None };
        let Some(arriving) = place(&router, &arrival) else { continue };
        let router = router.clone();
        if links {
            tune_link(&stream);
            tokio::spawn(router.accept_link(stream, arrival, arriving));
        } else {
            tune_lane(&stream);
            tokio::spawn(router.serve_plain(stream, arrival, arriving));
        }
    }
}

async fn accept_streams(router: Arc<Router>, port: Arc<DatagramPort>, subnet: SubnetId) {
    let mut streams = port.accept();
    while let Some(stream) = streams.recv().await {
        let arrival = Arrival { subnet, peer: stream.peer_addr(), neighbour: None };
        if let Some(arriving) = place(&router, &arrival) {
            tokio::spawn(router.clone().accept_link(stream, arrival, arriving));
        }
    }
}

/// A place among those who have not yet said what they want; who comes when there is none is
/// closed at once.
fn place(router: &Arc<Router>, arrival: &Arrival) -> Option<OwnedSemaphorePermit> {
    let place = router.arriving.clone().try_acquire_owned().ok();
    if place.is_none() {
        router.complain(arrival, format_args!("too many connections at once: closed"));
    }
    place
}
