//! Settings of a port.

use std::net::SocketAddr;

use crate::mtu::{IP_UDP_BYTES, PAYLOAD_BASE};
use crate::protection::Initial;
use crate::stream::StreamConfig;

/// Largest IP packet of an Ethernet with jumbo frames. Bytes.
const JUMBO_BYTES: u32 = 9_000;

/// Settings of a port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Settings of its streams.
    pub stream: StreamConfig,
    /// Whether peers may open streams. Default true.
    pub accepts: bool,
    /// Whether peers may open streams only within a session, see [`Port::expect`](super::Port::expect). If so, others
    /// get no answer at all. Default false.
    pub sessions_only: bool,
    /// Secret that a peer outside of a session must know to open a stream. If it is set, packets of others get no
    /// answer at all. Default: everybody may open streams.
    pub initial: Option<Initial>,
    /// With this many streams, peers cannot open another one. Default 65,536.
    pub streams_max: usize,
    /// Most streams of addresses that are not validated; each may hold 1 MiB. Further peers are asked for a token
    /// first. Default 64.
    pub strangers_max: usize,
    /// A peer with such an address gets the whole receive window at once while there are fewer of them than this. That
    /// saves it a round trip. Default 4.
    pub strangers_trusted: usize,
    /// Most guests: streams that a peer opened without a session and the application has not admitted
    /// ([`Port::admit_stream`](super::Port::admit_stream)). For a further one, the one that the application released
    /// first goes. If it has released none, the further one gets no answer yet. Default: no bound; with
    /// [`PortConfig::at`] and [`PortConfig::framed`] [`GUESTS_MAX`].
    pub guests_max: usize,
    /// Most memory for unread data of guests. Beyond it the largest one fails. Bytes. Default: no bound; with
    /// [`PortConfig::at`] and [`PortConfig::framed`] [`GUESTS_MEMORY`].
    pub guests_memory: usize,
    /// Most data that a guest may hold behind the first missing byte. Packets beyond it are dropped as if lost. Bytes.
    /// Default: no bound; with [`PortConfig::at`] and [`PortConfig::framed`] [`GUEST_GAP`].
    pub guest_gap: u64,
    /// Approximate limit of unread data of all streams. From half of it on, a stream above its share of the half may
    /// hold 64 KiB beyond what was read; packets beyond that are dropped. Bytes. Default: no bound; with
    /// [`PortConfig::at`] and [`PortConfig::framed`] [`PORT_MEMORY`].
    pub memory_max: usize,
}

/// Data held of a guest behind a gap (64 KiB). Its first packet says who it is, and is read when it comes. Bytes.
pub const GUEST_GAP: u64 = 64 << 10;
/// Unread data of all streams of a port (1 GiB). Data behind a lost packet waits for it, so this is three times the
/// bandwidth-delay product of 10 Gb/s and 250 ms. Bytes.
pub const PORT_MEMORY: usize = 1 << 30;
/// Guests of a port (2,048). The endpoint keeps 1,024 connections that have not proved who they are, so as many may be
/// about to end. Count.
pub const GUESTS_MAX: usize = 2_048;
/// Unread data of all guests (64 MiB). Each sends a few KiB, so hundreds may have packets out of order. Bytes.
pub const GUESTS_MEMORY: usize = 64 << 20;

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            stream: StreamConfig::default(),
            accepts: true,
            sessions_only: false,
            initial: None,
            streams_max: 65_536,
            strangers_max: 64,
            strangers_trusted: 4,
            guests_max: usize::MAX,
            guests_memory: usize::MAX,
            guest_gap: u64::MAX,
            memory_max: usize::MAX,
        }
    }
}

impl PortConfig {
    /// Settings with bounds on the memory that peers can make a port use.
    fn bounded() -> Self {
        Self {
            guests_max: GUESTS_MAX,
            guests_memory: GUESTS_MEMORY,
            guest_gap: GUEST_GAP,
            memory_max: PORT_MEMORY,
            ..Self::default()
        }
    }

    /// Settings for a socket bound to `at`, of an interface with this MTU if it is known. Packets are no larger than
    /// the MTU and a jumbo frame. The stream finds by probing what the path carries.
    pub fn at(at: SocketAddr, mtu: Option<u32>) -> Self {
        let mut config = Self::bounded();
        config.stream.overhead = if at.is_ipv4() { IP_UDP_BYTES - 20 } else { IP_UDP_BYTES };
        let ip_bytes = mtu.map_or(JUMBO_BYTES, |mtu| mtu.clamp(PAYLOAD_BASE + IP_UDP_BYTES, JUMBO_BYTES));
        config.stream.payload_max = ip_bytes - config.stream.overhead;
        config
    }

    /// Settings for packets that are frames of an interface with this MTU, `overhead` bytes of them before each packet.
    ///
    /// # Panics
    /// If the MTU leaves less than every path carries.
    pub fn framed(mtu: u32, overhead: u32) -> Self {
        assert!(mtu >= PAYLOAD_BASE + overhead, "an MTU below what every path carries");
        let mut config = Self::bounded();
        config.stream.overhead = overhead;
        config.stream.payload_max = mtu.min(JUMBO_BYTES) - overhead;
        config
    }
}
