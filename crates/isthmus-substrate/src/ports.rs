//! The ports of an endpoint: one for each of its devices, each with an engine of its own. They share the conversation,
//! the registered memory and the queue of events.

use std::sync::Arc;

use isthmus_io::Endpoint as Engine;
use isthmus_proto::PeerId;
use isthmus_wire::Address;

use crate::buffers::Buffers;
use crate::datagrams::Datagrams;
use crate::{Device, Error};

/// Most devices of one endpoint. Count: as many as the bits in [`SLOT_BITS`] leave room for.
pub(crate) const PORTS_MAX: usize = 8;
/// Low bits of a peer's number that are its number in its engine; the port is above them.
const PEER_BITS: u32 = 28;
/// Bit in the slots of datagrams.
const DATAGRAM: u32 = 1 << 31;
/// Low bits of a slot that are the buffer's number in its port; the port is above them.
const SLOT_BITS: u32 = 28;

/// An endpoint's engine and sockets on one device.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) device: Device,
    pub(crate) engine: Arc<Engine>,
    pub(crate) address: Address,
}

/// The changing part of a port.
#[derive(Debug)]
pub(crate) struct PortState {
    pub(crate) buffers: Buffers,
    pub(crate) datagrams: Option<Datagrams>,
    /// The device's trouble at the last look.
    pub(crate) trouble: Option<String>,
    /// The device's local fabric has failed.
    pub(crate) fabric_failed: bool,
}

/// A buffer of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A receive buffer that circulates between the engine of a port and the program.
    Lent { port: usize, slot: u32 },
    /// The buffer of a datagram.
    Datagram { port: usize, slot: u32 },
}

impl Slot {
    /// The conversation's name of it.
    pub(crate) fn to_bits(self) -> u32 {
        match self {
            Self::Lent { port, slot } => (port as u32) << SLOT_BITS | slot,
            Self::Datagram { port, slot } => DATAGRAM | (port as u32) << SLOT_BITS | slot,
        }
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        let slot = bits & ((1 << SLOT_BITS) - 1);
        let port = ((bits & !DATAGRAM) >> SLOT_BITS) as usize;
        if bits & DATAGRAM == 0 { Self::Lent { port, slot } } else { Self::Datagram { port, slot } }
    }
}

/// The conversation's name of a port's peer.
///
/// # Errors
/// [`Error::Full`] if the port has had more peers than there are numbers.
pub(crate) fn peer_at(port: usize, peer: PeerId) -> Result<PeerId, Error> {
    if peer.0 >> PEER_BITS != 0 {
        return Err(Error::Full(1 << PEER_BITS));
    }
    Ok(PeerId((port as u32) << PEER_BITS | peer.0))
}

/// The port of a peer.
pub(crate) fn port_of(peer: PeerId) -> usize {
    (peer.0 >> PEER_BITS) as usize
}

/// The name of the peer in its port's engine.
pub(crate) fn within(peer: PeerId) -> PeerId {
    PeerId(peer.0 & ((1 << PEER_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_peers_and_buffers_say_where_they_are() {
        for port in 0..PORTS_MAX {
            let peer = peer_at(port, PeerId(12_345)).expect("a small number");
            assert_eq!((port_of(peer), within(peer)), (port, PeerId(12_345)));
            for slot in [Slot::Lent { port, slot: 77 }, Slot::Datagram { port, slot: 77 }] {
                assert_eq!(Slot::from_bits(slot.to_bits()), slot);
            }
        }
        assert_eq!(peer_at(0, PeerId(1 << PEER_BITS)), Err(Error::Full(1 << PEER_BITS)));
    }
}
