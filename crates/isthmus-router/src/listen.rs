//! Listeners: one for each subnet on which the router takes lanes or links.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use isthmus_wire::SubnetId;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::dial::tune_lane;
use crate::router::{Arrival, Router};
use crate::settings::Carrier;

/// The listeners that stand.
#[derive(Default)]
pub(crate) struct Listeners(HashMap<(SubnetId, SocketAddr, Carrier), JoinHandle<()>>);

impl Listeners {
    /// Closes those that the settings do not have, and opens those that they have.
    pub(crate) async fn follow(&mut self, router: &Arc<Router>) -> io::Result<()> {
        let settings = router.settings();
        let open = settings.places.iter().filter(|place| place.carrier != Carrier::Closed);
        let wanted: Vec<_> =
            open.filter_map(|place| Some((place.subnet, place.listen?, place.carrier))).collect();
        let gone: Vec<_> = self.0.keys().filter(|key| !wanted.contains(key)).copied().collect();
        for key in gone {
            self.close(key).await;
        }
        for key in wanted {
            if self.0.contains_key(&key) {
                continue;
            }
            let (subnet, address, carrier) = key;
            let listener = TcpListener::bind(address).await.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
            })?;
            info!(%address, subnet = subnet.0, ?carrier, "listening");
            self.0.insert(key, tokio::spawn(accept(router.clone(), listener, subnet, carrier)));
        }
        Ok(())
    }

    /// Closes all.
    pub(crate) async fn close_all(&mut self) {
        for key in self.0.keys().copied().collect::<Vec<_>>() {
            self.close(key).await;
        }
    }

    async fn close(&mut self, key: (SubnetId, SocketAddr, Carrier)) {
        if let Some(task) = self.0.remove(&key) {
            task.abort();
            // The port is free only when the task is gone; that it was aborted is no news.
            let _ = task.await;
        }
    }
}

async fn accept(router: Arc<Router>, listener: TcpListener, subnet: SubnetId, carrier: Carrier) {
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
        take(&router, stream, arrival, carrier);
    }
}

fn take(router: &Arc<Router>, stream: TcpStream, arrival: Arrival, carrier: Carrier) {
    // Who comes when too many have not yet said what they want is closed at once.
    let Ok(arriving) = router.arriving.clone().try_acquire_owned() else {
        return router.complain(&arrival, format_args!("too many connections at once: closed"));
    };
    let router = router.clone();
    if carrier == Carrier::Links {
        tokio::spawn(router.accept_link(stream, arrival, arriving));
    } else {
        tune_lane(&stream);
        tokio::spawn(router.serve_plain(stream, arrival, arriving));
    }
}
