//! What this provider is able to do, in libfabric's words.

use isthmus_io::Endpoint;

use crate::flags::*;

/// What a program may ask for of reliable endpoints.
pub(super) const CAPS: u64 = OPERATIONS | DIRECTIONS | EXTRAS | DOMAIN_CAPS;
/// The kinds of operation.
pub(super) const OPERATIONS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
/// The directions of messages.
pub(super) const MESSAGE_DIRECTIONS: u64 = FI_SEND | FI_RECV;
/// The directions of RMA and atomics.
pub(super) const MEMORY_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const DIRECTIONS: u64 = MESSAGE_DIRECTIONS | MEMORY_DIRECTIONS;
const EXTRAS: u64 = FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_FENCE | FI_RMA_EVENT | FI_TRIGGER;
/// What a domain may promise.
pub(super) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// What it promises only to programs that ask: names of theirs for addresses.
pub(super) const DOMAIN_EXTRAS: u64 = FI_AV_USER_ID;

/// What reliable endpoints have only for programs that ask for it by name.
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
/// Order that we keep whether asked to or not.
pub(super) const MSG_ORDER: u64 = FI_ORDER_SAS | ATOMIC_ORDERS;
/// Order that we keep for who asks (`order.rs`).
pub(super) const ORDERS: u64 =
    MSG_ORDER | FI_ORDER_STRICT | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW;
/// Largest transfer for which the atomics' order holds: all that an atomic can carry. The others hold for any. Bytes.
pub(super) const ORDER_SIZE: usize = Endpoint::ATOMIC_MAX;

/// Most bytes of one message.
pub(crate) const MSG_SIZE_MAX: usize = 1 << 62;
/// Operations that a program may have under way; more get -FI_EAGAIN when memory is short.
pub(crate) const QUEUE_SIZE: usize = 1024;
/// What a program may ask for instead.
pub(super) const QUEUE_SIZE_MAX: usize = 1 << 20;
/// Bytes of data that may go with a message into the completion queue.
pub(super) const CQ_DATA_SIZE: usize = 8;
/// Bytes of a memory key.
pub(super) const MR_KEY_SIZE: usize = 8;
/// Pieces of a buffer that a program is told of which does not ask for more
/// ([`Endpoint::IOV_MAX`]): as many as libfabric's `tcp` has, since programs exist that make
/// the most of the number and were never run with a larger one (fabtests' `fi_ubertest`).
pub(super) const IOV_LIMIT: usize = 4;
/// Most bytes of an injected message or write that a program may ask for, as many as libfabric's `ofi_rxm` has; who asks for
/// less gets [`Endpoint::INJECT_MAX`]. It costs memory only while such are under way.
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
/// Likewise, of datagrams.
pub(super) const DATAGRAM_PROTOCOL: u32 = 1 << 31 | 0x4955;
/// Version of the protocols.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// The fabric and its one domain.
pub(super) const FABRIC_NAME: &str = "isthmus";
pub(super) const DOMAIN_NAME: &str = "isthmus";
