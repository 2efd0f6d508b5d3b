//! Opens the sockets at which an endpoint listens: TCP, and at the same port UDP or Ethernet frames if lanes may use
//! them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use isthmus_datagram::{
    EthernetSocket, FRAME_HEADER_BYTES, Interface, PacketSocket, UdpSocket, is_frames_only,
};
use isthmus_udp::PortConfig;
use socket2::Socket;

use crate::carrier::{self, HeaderFields, Udp};
use crate::error::OpenError;
use crate::interface::{Family, InterfaceError, any, for_tcp, interface_of, mtu_at};
use crate::log::info_log;
use crate::{Settings, Transport};

/// Attempts to find a port that is free for TCP and UDP. Count.
const PORT_TRIES: usize = 32;

/// The sockets at which an endpoint listens.
pub(crate) struct Listening {
    pub(crate) listeners: Vec<Socket>,
    /// The address that peers get.
    pub(crate) at: SocketAddr,
    /// Addresses on further rails.
    pub(crate) also: Vec<SocketAddr>,
    pub(crate) packets: Option<Udp>,
}

/// Listens at `bind`, or as the settings say.
pub(crate) fn listen(settings: &Settings, bind: Option<SocketAddr>) -> Result<Listening, OpenError> {
    let at = address(settings, bind)?;
    let rails: Vec<IpAddr> = settings.rail_ips()?.into_iter().filter(|rail| *rail != at.ip()).collect();
    in_range(settings, at, |at| listen_at(settings, at, &rails))
}

/// Calls `open` with the port of `at`, or else with ports of the configured range or chosen by the system, until one is
/// free.
pub(crate) fn in_range<T>(
    settings: &Settings,
    at: SocketAddr,
    mut open: impl FnMut(SocketAddr) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    if at.port() != 0 {
        return open(at);
    }
    let is_taken = |done: &Result<T, OpenError>| matches!(done, Err(OpenError::Listen { cause, .. }) if cause.kind() == io::ErrorKind::AddrInUse);
    let Some(range) = &settings.port_range.0 else {
        // The port that the system chose may be taken on a rail, or for UDP.
        let mut done = open(at);
        for _ in 0..PORT_TRIES {
            if !is_taken(&done) {
                break;
            }
            done = open(at);
        }
        return done;
    };
    for port in settings.port_range.from(getrandom::u32().unwrap_or(0)) {
        let done = open(SocketAddr::new(at.ip(), port));
        if !is_taken(&done) {
            return done;
        }
    }
    Err(OpenError::Range { first: *range.start(), last: *range.end(), ip: at.ip() })
}

fn listen_at(settings: &Settings, at: SocketAddr, rails: &[IpAddr]) -> Result<Listening, OpenError> {
    let fail = |cause| OpenError::Listen { at, cause };
    let listener = carrier::listen(for_tcp(at)).map_err(fail)?;
    let port = listener.local_addr().map_err(fail)?.as_socket().map_or(at.port(), |at| at.port());
    let bound = SocketAddr::new(at.ip(), port);
    let also: Vec<SocketAddr> = rails.iter().map(|rail| SocketAddr::new(*rail, port)).collect();
    let mut listeners = vec![listener];
    for at in &also {
        listeners.push(carrier::listen(*at).map_err(|cause| OpenError::Listen { at: *at, cause })?);
    }
    let fields = HeaderFields::of(settings);
    listeners.iter().for_each(|listener| fields.reflect(listener, bound));
    let (socket, config) = match settings.transport {
        Transport::Tcp => return Ok(Listening { listeners, at: bound, also, packets: None }),
        Transport::Ethernet => frames(settings, bound)?,
        _ => {
            // With rails, the kernel's route decides which one a packet uses.
            let own = if also.is_empty() { bound } else { SocketAddr::new(any(bound.ip()), port) };
            let mut socket = UdpSocket::bind(own, |what| info_log!("{what}")).map_err(fail)?;
            fields.apply_to_packets(&mut socket, settings.ecn, bound);
            let mtu = rails.iter().chain([&bound.ip()]).filter_map(|ip| mtu_at(*ip)).max();
            (PacketSocket::Udp(socket), PortConfig::at(bound, mtu))
        }
    };
    let packets = Udp::open(socket, config, settings).map_err(fail)?;
    Ok(Listening { listeners, at: bound, also, packets: Some(packets) })
}

fn frames(settings: &Settings, at: SocketAddr) -> Result<(PacketSocket, PortConfig), OpenError> {
    let interface = Interface::find(&frames_interface(settings, at.ip()))?;
    let socket = EthernetSocket::open(&interface, at, |what| info_log!("{what}"))?;
    Ok((PacketSocket::Ethernet(socket), PortConfig::framed(interface.mtu(), FRAME_HEADER_BYTES)))
}

/// The name of the interface for the frames of an endpoint at this address.
fn frames_interface(settings: &Settings, ip: IpAddr) -> String {
    match interface_of(ip) {
        Some(name) if !is_frames_only(ip) => name,
        _ => settings.interface.clone(),
    }
}

fn address(settings: &Settings, bind: Option<SocketAddr>) -> Result<SocketAddr, InterfaceError> {
    let port = bind.map(|at| at.port()).filter(|&port| port != 0).unwrap_or(settings.port);
    let ip = match bind.map(|at| at.ip()) {
        Some(ip) if !ip.is_unspecified() => Some(ip),
        Some(IpAddr::V6(_)) => settings.own_ip_of(Family::V6),
        // Programs that leave the choice open also pass the unspecified IPv4 address.
        _ => None,
    };
    let ip = ip.map_or_else(|| settings.own_ip(), Ok)?;
    Ok(SocketAddr::new(ip, port))
}
