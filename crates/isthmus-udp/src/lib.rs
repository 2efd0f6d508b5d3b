//! A reliable, ordered stream of bytes over UDP, made for long paths that lose packets.
//!
//! The crate does no I/O and has no clock: the caller passes in packets and the time, and fetches packets and
//! deadlines. A [`Port`] is one UDP socket with all its [`Stream`]s. A shell moves bytes between the port and the
//! system:
//!
//! ```
//! use isthmus_udp::{Event, Port, PortConfig};
//!
//! let (a, b) = ("10.0.0.1:4000".parse().unwrap(), "10.0.0.2:4000".parse().unwrap());
//! let mut client = Port::new(PortConfig::default(), [1; 16]);
//! let mut server = Port::new(PortConfig::default(), [2; 16]);
//! let stream = client.open(0, b);
//! client.with(0, stream, |stream| stream.write(b"hello"));
//!
//! let mut packets = Vec::new();
//! let sent = client.poll_transmit(0, 64, 65_000, &mut packets).unwrap();
//! assert_eq!(sent.to, b);
//! server.on_packet(10, 10, a, &mut packets[..sent.segment]);
//! let Some(Event::Accepted(accepted, _)) = server.poll_event() else { panic!() };
//! assert_eq!(server.stream(accepted).unwrap().peek(100), b"hello");
//! ```
//!
//! ```text
//!   datagrams in: on_packet                          datagrams out: poll_transmit
//!        │                                                   ▲
//!        ▼                                                   │
//!   ┌─ Port: who may open a stream, whose turn it is to send, bounds on memory ───┐
//!   │    ├── config, ended, hosts        settings; ended streams; paths of hosts  │
//!   │    └── Stream, one for each lane                                            │
//!   │          ├── stream/handshake      ids and tokens; limits at first          │
//!   │          ├── receiving, acks       bytes in order; acknowledgements owed    │
//!   │          ├── sending, sent         bytes to send; packets in flight         │
//!   │          ├── stream/detector       which packets are lost (`detection`)     │
//!   │          ├── stream/probing        probes while no acknowledgement comes    │
//!   │          ├── stream/repair         copies, parity and repeats against losses│
//!   │          └── stream/rate           congestion control, pacer, share         │
//!   └─────────────────────────────────────────────────────────────────────────────┘
//!        │ poll_event                                        ▲ with: write, read, finish
//!        ▼                                                   │
//!   application
//! ```
//!
//! A stream is made of small parts that can be replaced while it runs ([`Composition`]): congestion control
//! ([`congestion`]), loss detection ([`detection`]), copies and parity ([`redundancy`]), packet sizes ([`mtu`]), and
//! checksums. Encryption ([`protection`]) is chosen before the first packet. [`wire`] has the table of packets and
//! frames.

#![forbid(unsafe_code)]

mod acks;
mod answers;
mod cauchy;
pub mod congestion;
pub mod detection;
mod intake;
pub mod mtu;
mod outbox;
mod pacer;
mod parity;
mod path;
mod port;
pub mod protection;
mod ranges;
mod rebuild;
mod received_numbers;
mod receiving;
pub mod redundancy;
mod repeats;
mod sending;
mod sent;
mod sharing;
mod spacing;
mod spec;
mod store;
mod stream;
mod token;
pub mod wire;

pub use congestion::Limits;
pub use outbox::Outbox;
pub use pacer::Cap;
pub use path::Learned;
pub use port::{
    Dropped, Event, GUEST_GAP, GUESTS_MAX, GUESTS_MEMORY, PORT_MEMORY, Port, PortConfig, StreamId, Transmit,
};
pub use protection::{Initial, Session};
pub use receiving::StreamFault;
pub use spec::{
    ChecksumKind, Composition, CongestionKind, DetectionKind, MtuKind, RedundancyKind, SpecError,
};
pub use stream::{Counters, Failure, Status, Stream, StreamConfig};

/// Microseconds since any fixed start that the caller chooses.
pub type Micros = u64;
