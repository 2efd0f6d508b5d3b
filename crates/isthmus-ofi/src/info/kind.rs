//! The two kinds of endpoint, and what each can do.

use super::limits::*;
use crate::abi::{FI_EP_DGRAM, FI_EP_RDM, FI_EP_UNSPEC, fi_ep_type};
use crate::flags::*;

/// A kind of endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `FI_EP_RDM`.
    Reliable,
    /// `FI_EP_DGRAM`, for programs that ask for it.
    Datagram,
}

/// Capabilities of datagrams: messages of one packet each, which may be lost.
const DATAGRAM_CAPS: u64 = FI_MSG | MESSAGE_DIRECTIONS | FI_SOURCE | DOMAIN_CAPS;
/// Flags of datagrams that transmit. There is no delivery completion, since nothing is known of a datagram that has
/// left.
const DATAGRAM_TX_FLAGS: u64 =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MORE | FI_REMOTE_CQ_DATA;
const DATAGRAM_RX_FLAGS: u64 = FI_COMPLETION | FI_TRANSMIT_COMPLETE | FI_MORE;

/// Whether an endpoint with these capabilities begins operations of its own.
pub(crate) fn transmits(caps: u64) -> bool {
    has(caps, FI_MSG | FI_TAGGED, FI_SEND, MESSAGE_DIRECTIONS)
        || has(caps, FI_RMA | FI_ATOMIC, FI_READ | FI_WRITE, MEMORY_DIRECTIONS)
        || caps & FI_COLLECTIVE != 0
}

/// Whether it receives messages.
pub(crate) fn receives(caps: u64) -> bool {
    has(caps, FI_MSG | FI_TAGGED, FI_RECV, MESSAGE_DIRECTIONS)
}

/// Whether the capabilities have one of the operations in one of the directions. If they name no direction, they have
/// all.
fn has(caps: u64, operations: u64, these: u64, directions: u64) -> bool {
    caps & operations != 0 && (caps & these != 0 || caps & directions == 0)
}

impl Kind {
    /// The kind for an endpoint type; `None` if we do not have it.
    pub(crate) fn of(type_: fi_ep_type) -> Option<Self> {
        match type_ {
            FI_EP_UNSPEC | FI_EP_RDM => Some(Self::Reliable),
            FI_EP_DGRAM => Some(Self::Datagram),
            _ => None,
        }
    }

    pub(super) fn type_(self) -> fi_ep_type {
        match self {
            Self::Reliable => FI_EP_RDM,
            Self::Datagram => FI_EP_DGRAM,
        }
    }

    /// The capabilities that a program may ask for.
    pub(super) fn all_caps(self) -> u64 {
        match self {
            Self::Reliable => CAPS | ON_REQUEST,
            Self::Datagram => DATAGRAM_CAPS,
        }
    }

    /// The capabilities of a program that asks for nothing.
    pub(crate) fn caps(self) -> u64 {
        match self {
            Self::Reliable => CAPS,
            Self::Datagram => DATAGRAM_CAPS,
        }
    }

    /// Flags that transmitting operations take.
    pub(crate) fn tx_flags(self) -> u64 {
        match self {
            Self::Reliable => TX_FLAGS,
            Self::Datagram => DATAGRAM_TX_FLAGS,
        }
    }

    /// Most pieces of a peer's memory in one operation. Each piece is sent by itself, so a target that counts accesses
    /// (`FI_RMA_EVENT`) would count each.
    pub(crate) fn remote_pieces(self, caps: u64) -> usize {
        match self {
            Self::Reliable if caps & FI_RMA_EVENT != 0 => 1,
            Self::Reliable => RMA_IOV_LIMIT,
            Self::Datagram => 0,
        }
    }

    /// Flags that receives take.
    pub(crate) fn rx_flags(self) -> u64 {
        match self {
            Self::Reliable => RX_FLAGS,
            Self::Datagram => DATAGRAM_RX_FLAGS,
        }
    }

    /// Orders that are always kept.
    pub(super) fn order(self) -> u64 {
        match self {
            Self::Reliable => MSG_ORDER,
            Self::Datagram => 0,
        }
    }

    /// Orders that are kept if a program asks.
    pub(super) fn orders(self) -> u64 {
        match self {
            Self::Reliable => ORDERS,
            Self::Datagram => 0,
        }
    }

    /// Largest transfer for which an order holds, if a program asked for `orders` and one of them is in `these`. Bytes.
    pub(super) fn order_size(self, orders: u64, these: u64) -> usize {
        match self {
            Self::Reliable if orders & these != 0 => usize::MAX,
            Self::Reliable => ORDER_SIZE,
            Self::Datagram => 0,
        }
    }

    pub(super) fn tag_format(self) -> u64 {
        match self {
            Self::Reliable => TAG_FORMAT,
            Self::Datagram => 0,
        }
    }

    /// Its protocol, by libfabric's number for it.
    pub(super) fn protocol(self) -> u32 {
        match self {
            Self::Reliable => PROTOCOL,
            Self::Datagram => DATAGRAM_PROTOCOL,
        }
    }
}
