//! Connects a lane to its next hop: tries the routes of the table until a hop answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use isthmus_datagram::scarcity::remedy;
use isthmus_wire::frame::{Hello, RefuseReason};
use isthmus_wire::{AsId, Locator, SubnetId};
use tracing::debug;

use crate::dial::{ANSWER_TIME, connect, tell_refused, tune_lane};
use crate::lane::Lane;
use crate::router::{Arrival, Router};
use crate::settings::{Carrier, Settings};
use crate::step::{Hop, hops};

impl Router {
    /// Connects to the next hop. Returns the lane and the hop's subnet.
    pub(crate) async fn onward(
        &self,
        settings: &Settings,
        arrival: &Arrival,
        hello: &Hello,
    ) -> Result<(Lane, SubnetId), RefuseReason> {
        let source = (hello.source.as_id, hello.source.subnet);
        let target = (hello.target.as_id, hello.target.subnet);
        let (table, own, first) = (&settings.table, &settings.router, hello.hops == 0);
        let hops = hops(table, own, arrival.subnet, source, target, first);
        let mut reason = None;
        // The first pass tries all routes without waiting; the second waits for a link.
        for patience in [Duration::ZERO, ANSWER_TIME] {
            for way in &hops {
                let (subnet, answer) = match way {
                    Hop::Direct(subnet) => {
                        let reached = self.endpoint(settings, *subnet, hello.target.locator).await;
                        // The target itself did not answer, so no other route helps.
                        return reached.map(|lane| (lane, *subnet));
                    }
                    Hop::Routers(..) if patience > Duration::ZERO => continue,
                    Hop::Routers(subnet, routers) => (*subnet, self.router(settings, *subnet, routers).await),
                    Hop::Gateways(subnet, gateways) => {
                        (*subnet, self.gateway(settings, *subnet, gateways, target.0, patience).await)
                    }
                };
                match answer {
                    Ok(next) => return Ok((next, subnet)),
                    Err(refused) => {
                        reason.get_or_insert(refused);
                    }
                }
            }
        }
        Err(reason.unwrap_or(RefuseReason::NoRoute))
    }

    async fn endpoint(
        &self,
        settings: &Settings,
        subnet: SubnetId,
        locator: Locator,
    ) -> Result<Lane, RefuseReason> {
        let place = settings.place(subnet).ok_or(RefuseReason::NoRoute)?;
        // An IPv4 address that is written as IPv6 leads where the IPv4 address leads, such as to this host's loopback.
        let locator = Locator::new(locator.ip().to_canonical(), locator.port());
        if !place.may_hold(locator) || place.listen == Some(locator) || locator.port() == 0 {
            return Err(RefuseReason::Denied);
        }
        self.plain(settings, subnet, locator).await?.map_err(|error| {
            debug!(%locator, %error, "endpoint did not answer");
            match error.kind() {
                io::ErrorKind::ConnectionRefused => RefuseReason::Absent,
                _ => RefuseReason::Unreached,
            }
        })
    }

    async fn router(
        &self,
        settings: &Settings,
        subnet: SubnetId,
        routers: &[Locator],
    ) -> Result<Lane, RefuseReason> {
        for router in self.failed.order(routers) {
            match self.plain(settings, subnet, router).await? {
                Ok(lane) => return Ok(lane),
                Err(error) => {
                    debug!(%router, %error, "router did not answer");
                    // An error that this host causes says nothing about that router.
                    if remedy(&error).is_none() {
                        self.failed.note(router);
                    }
                }
            }
        }
        Err(RefuseReason::Unreached)
    }

    async fn gateway(
        &self,
        settings: &Settings,
        subnet: SubnetId,
        gateways: &[Locator],
        target: AsId,
        patience: Duration,
    ) -> Result<Lane, RefuseReason> {
        let fits = |neighbour: AsId| settings.config.lets_speak(neighbour.0, target.0);
        // No admitted neighbour may speak for the target's AS.
        if !settings.config.admits.iter().any(|neighbour| fits(AsId(*neighbour))) {
            return Err(RefuseReason::Denied);
        }
        Ok(Lane::Link(self.links.lane(subnet, gateways, fits, patience).await?))
    }

    /// Connects without encryption, if that is allowed.
    async fn plain(
        &self,
        settings: &Settings,
        subnet: SubnetId,
        to: SocketAddr,
    ) -> Result<io::Result<Lane>, RefuseReason> {
        let place = settings.place(subnet).ok_or(RefuseReason::NoRoute)?;
        if place.carrier != Carrier::Plain {
            return Err(RefuseReason::Denied);
        }
        let stream = match connect(to, place.listen.map(|listen| listen.ip())).await {
            Ok(stream) => stream,
            Err(error) => {
                tell_refused(to, &error);
                return Ok(Err(error));
            }
        };
        tune_lane(&stream);
        Ok(self.local_fabric(place).lead(stream).await)
    }
}
