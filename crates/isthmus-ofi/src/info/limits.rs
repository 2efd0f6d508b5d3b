//! The capabilities and limits of this provider, as libfabric's constants.

use isthmus_io::Endpoint;

use crate::flags::*;

/// The capabilities that a program may ask for of reliable endpoints.
pub(super) const CAPS: u64 = OPERATIONS | DIRECTIONS | EXTRAS | DOMAIN_CAPS;
/// The kinds of operation.
pub(super) const OPERATIONS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
/// The directions of messages.
pub(super) const MESSAGE_DIRECTIONS: u64 = FI_SEND | FI_RECV;
/// The directions of RMA and atomics.
pub(super) const MEMORY_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const DIRECTIONS: u64 = MESSAGE_DIRECTIONS | MEMORY_DIRECTIONS;
const EXTRAS: u64 = FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_FENCE | FI_RMA_EVENT | FI_TRIGGER;
/// The capabilities that a domain may promise.
pub(super) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Capabilities that a domain has only if a program asks: the program's own names for addresses.
pub(super) const DOMAIN_EXTRAS: u64 = FI_AV_USER_ID;

/// Capabilities that reliable endpoints have only if a program asks for them by name.
pub(super) const ON_REQUEST: u64 = FI_COLLECTIVE;

/// The part of the capabilities that concerns transmitting.
pub(super) const TX_CAPS: u64 =
    OPERATIONS | FI_COLLECTIVE | FI_SEND | FI_READ | FI_WRITE | FI_FENCE | FI_TRIGGER;
/// The part of the capabilities that concerns receiving.
pub(super) const RX_CAPS: u64 =
    OPERATIONS | FI_COLLECTIVE | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | RX_EXTRAS;
const RX_EXTRAS: u64 = FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT | FI_TRIGGER;

/// Flags that transmitting operations take.
pub(super) const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_FENCE
    | FI_MORE
    | FI_REMOTE_CQ_DATA
    | FI_TRIGGER;
/// Flags that receives take, of messages without tags and by default.
pub(super) const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV | FI_TRANSMIT_COMPLETE | FI_MORE | FI_TRIGGER;

/// Order among atomics to one peer.
pub(super) const ATOMIC_ORDERS: u64 =
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
/// Orders that we always keep.
pub(super) const MSG_ORDER: u64 = FI_ORDER_SAS | ATOMIC_ORDERS;
/// Orders that we keep if a program asks (`order.rs`).
pub(super) const ORDERS: u64 =
    MSG_ORDER | FI_ORDER_STRICT | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW;
/// Largest transfer for which the order of atomics holds. Bytes: the longest atomic. The other orders hold for any
/// length.
pub(super) const ORDER_SIZE: usize = Endpoint::ATOMIC_MAX;

/// Longest message. Bytes.
pub(crate) const MSG_SIZE_MAX: usize = 1 << 62;
/// Operations that a program may have under way, as `fi_getinfo` says. Count. It is a hint: only memory limits them.
pub(crate) const QUEUE_SIZE: usize = 1024;
/// The most that a program may ask for instead. Count.
pub(super) const QUEUE_SIZE_MAX: usize = 1 << 20;
/// Length of the data that a message may carry to the completion queue. Bytes.
pub(super) const CQ_DATA_SIZE: usize = 8;
/// Length of a memory key. Bytes.
pub(super) const MR_KEY_SIZE: usize = 8;
/// Pieces of a buffer, as told to a program that does not ask for more. Count; [`Endpoint::IOV_MAX`] are possible. It
/// is the number of libfabric's `tcp`: some programs use the whole number and were never run with a larger one
/// (fabtests' `fi_ubertest`).
pub(super) const IOV_LIMIT: usize = 4;
/// Longest injected message or write that a program may ask for. Bytes; the number of libfabric's `ofi_rxm`. A program
/// that asks for less gets [`Endpoint::INJECT_MAX`]. It costs memory only while such operations are under way.
pub(crate) const INJECT_SIZE_MAX: usize = 16 << 10;
/// Pieces of a peer's memory that one operation may name.
pub(super) const RMA_IOV_LIMIT: usize = 4;
/// Pieces of one memory registration.
pub(crate) const MR_IOV_LIMIT: usize = 1;
/// Objects of each kind in a domain; only memory limits them.
pub(super) const OBJECTS: usize = 1 << 16;
/// Registrations in a domain; only memory limits them.
pub(super) const REGISTRATIONS: usize = 1 << 24;
/// Default of `FI_OPT_MIN_MULTI_RECV`. Bytes.
pub(crate) const MULTI_RECV_MIN: usize = 64;

/// All bits of a tag may be used.
pub(super) const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Marks our protocol as the provider's own.
pub(super) const PROTOCOL: u32 = 1 << 31 | 0x4953;
/// The same for datagrams.
pub(super) const DATAGRAM_PROTOCOL: u32 = 1 << 31 | 0x4955;
/// Version of the protocols.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// The fabric and its one domain.
pub(super) const FABRIC_NAME: &str = "isthmus";
pub(super) const DOMAIN_NAME: &str = "isthmus";
