//! The errors of opening an endpoint and of starting an operation.

use std::io;
use std::net::{IpAddr, SocketAddr};

use isthmus_datagram::EthernetError;
use isthmus_proto::Refusal;
use isthmus_trust::TrustError;

use crate::interface::InterfaceError;
use crate::log::remedy;

/// Why an endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No address to listen at.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Other programs, or other endpoints, have all of the range.
    #[error(
        "no port from {first} to {last} is free at {ip}, by TCP and by UDP; widen the setting `port_range`"
    )]
    Range {
        /// Its first port.
        first: u16,
        /// Its last port.
        last: u16,
        /// The local address.
        ip: IpAddr,
    },
    /// The listening socket could not be made.
    #[error("cannot listen at {at}: {cause}; {}", listen_remedy(.at, .cause))]
    Listen {
        /// The local address.
        at: SocketAddr,
        /// Why.
        cause: io::Error,
    },
    /// The settings of encrypted lanes.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The interface carries no frames, or none of ours.
    #[error(transparent)]
    Ethernet(#[from] EthernetError),
    /// The system gave no descriptor, thread or random number.
    #[error("cannot open an endpoint: {}", with_remedy(.0))]
    System(#[from] io::Error),
}

/// An error, and what to do about it if this host is the cause.
fn with_remedy(error: &io::Error) -> String {
    remedy(error).map_or_else(|| error.to_string(), |remedy| format!("{error}; {remedy}"))
}

/// Advice for a socket that cannot listen.
fn listen_remedy(at: &SocketAddr, cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied if (1..1024).contains(&at.port()) => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE; choose another port"
        }
        io::ErrorKind::AddrInUse if at.port() == 0 => {
            "all local ports are in use: widen net.ipv4.ip_local_port_range (sysctl), or set port_range"
        }
        io::ErrorKind::AddrInUse => "choose another interface or port",
        io::ErrorKind::AddrNotAvailable => "this host has no such address; choose another interface",
        _ => remedy(cause).unwrap_or("choose another interface or port"),
    }
}

/// Why an operation was not started. It has had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No room now; poll the endpoint and try again (`-FI_EAGAIN`).
    #[error("no room for another operation; progress and try again")]
    Again,
    /// The peer cannot be reached from here at all.
    #[error("{0}")]
    Unreachable(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(&'static str),
}

impl From<Refusal> for PostError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unreachable(text) => Self::Unreachable(text),
            Refusal::Invalid(text) => Self::Invalid(text),
        }
    }
}
