//! Lanes that come up: what a [`Carrier`] does until it has settled on what carries its data.

use std::io;

use super::fabric::FabricLane;
use super::local_fabrics::LocalFabrics;
use super::race::Winner;
use super::{Carrier, Carriers, Settled, tls};

impl Carrier {
    /// Continues the set-up before the first byte. `index` is the lane's, for [`Carriers::run_pass`].
    ///
    /// # Errors
    /// The system's, such as `ConnectionRefused`. The lane has ended then.
    pub(crate) fn settle(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        match self {
            Self::Tcp(lane) => lane.settle(&mut shared.paths),
            Self::Fabric(_) => self.settle_fabric(index, shared),
            Self::Memory(_) | Self::Sealed(_) => Ok(Settled::Yes),
            Self::Udp(lane) => lane.settle(index, shared.udp()?),
            Self::Race(_) => {
                let settled = self.settle_race(index, shared);
                shared.tell_news();
                settled
            }
            Self::Tls(_) => self.settle_tls(index, shared),
            Self::Arrived(_) => self.settle_arrived(index, shared),
        }
    }

    /// Becomes a lane by shared memory if the ends agree on that, or a plain TCP lane if they agree on nothing.
    fn settle_fabric(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        let Self::Fabric(lane) = self else { return Ok(Settled::Yes) };
        let fabrics = LocalFabrics { hubs: &mut shared.hubs, memory: &mut shared.memory };
        let settled = lane.settle(index as u64, &mut shared.paths, fabrics)?;
        if settled == Settled::Yes && !lane.has_moved() {
            let Self::Fabric(lane) = std::mem::replace(self, Self::Arrived(None)) else { return Ok(settled) };
            *self = if lane.is_shared() {
                let gone = || io::Error::other("what was agreed upon is gone");
                Self::Memory(Box::new(lane.into_memory(&mut shared.memory).ok_or_else(gone)?))
            } else {
                Self::Tcp(lane.into_tcp())
            };
        }
        Ok(settled)
    }

    /// Becomes the winner of the race, once that is known.
    fn settle_race(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        let Carriers { paths, udp: Some(udp), tls, .. } = shared else { return Ok(Settled::Yes) };
        let Self::Race(lane) = self else { return Ok(Settled::Yes) };
        let winner = lane.settle(index, paths, udp, tls.as_mut())?;
        if let Winner::NotYet { until_writable } = winner {
            return Ok(Settled::Not { until_writable });
        }
        if let Some(chosen) = lane.take_winner(winner, udp) {
            *self = chosen;
        }
        Ok(Settled::Yes)
    }

    /// Continues the TLS handshake. After it, the side that connected may switch to UDP.
    fn settle_tls(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        let (Self::Tls(lane), Carriers { paths, udp, tls: Some(tls), .. }) = (self, shared) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let settled = lane.settle(index, paths, tls)?;
        if settled == Settled::Yes
            && let (Some(udp), false, Some(host)) = (udp, lane.is_dialled(), lane.peer_ip())
        {
            udp.expect(host, lane.udp_session()?);
        }
        Ok(settled)
    }

    /// Becomes an encrypted lane if it begins as one. Else the engine will refuse it, with a reason.
    fn settle_arrived(&mut self, index: usize, shared: &mut Carriers) -> io::Result<Settled> {
        let (Self::Arrived(arrived), Some(tls)) = (&mut *self, &shared.tls) else { return Ok(Settled::Yes) };
        let Some(begins) = arrived.as_ref().map_or(Ok(None), tls::begins)? else {
            return Ok(Settled::Not { until_writable: false });
        };
        let Some(lane) = arrived.take() else { return Ok(Settled::Yes) };
        *self = if begins {
            Self::Tls(Box::new(tls.accepted(lane)?))
        } else {
            Self::Fabric(Box::new(FabricLane::accepted(lane)))
        };
        self.settle(index, shared)
    }
}
