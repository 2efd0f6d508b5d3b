//! Queries and changes of the properties of connections and endpoints.

use std::net::IpAddr;
use std::time::Duration;

use isthmus_io::{Composition, DatagramCounts, MessageTransfer, PerHost, Protocols, SpecError};
use isthmus_proto::{PeerCounters, Transfer};

use super::Endpoint;
use crate::datagrams::Datagrams;
use crate::event::Connection;
use crate::inner::micros;
use crate::options::check;
use crate::ports::{port_of, within};
use crate::{EndpointOptions, Error, Level};

/// Counts of what an endpoint did, for diagnosis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointCounters {
    /// Messages that the program got.
    pub received: u64,
    /// Datagrams of unreliable connections that this host dropped.
    pub datagrams_dropped: u64,
    /// Connections, in any state.
    pub connections: u64,
    /// Fragments that the engine sent again.
    pub fragments_resent: u64,
    /// Lanes that broke.
    pub lanes_lost: u64,
    /// Messages that went whole without waiting for their receivers.
    pub messages_eager: u64,
    /// Messages that waited, in part or as a whole, until their receivers asked for them.
    pub messages_asked: u64,
    /// Messages that went whole without credit because their receives were announced.
    pub messages_announced: u64,
}

/// Counts of what went between an endpoint and one peer, or all of them. The peer's endpoint may have several connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes of messages, writes and answers to reads that were sent, each counted once. What one process reads or writes
    /// by itself in the memory of another process of the host is not counted.
    pub sent_bytes: u64,
    /// The same, received. Bytes.
    pub received_bytes: u64,
    /// Messages sent, control messages among them.
    pub messages_sent: u64,
    /// Messages of unreliable connections that were sent as datagrams, which the numbers above include.
    pub datagrams_sent: u64,
    /// The same, received.
    pub datagrams_received: u64,
    /// Fragments that were sent again.
    pub fragments_resent: u64,
    /// Lanes that carry messages now. Count; 0 for all peers together.
    pub lanes: u64,
    /// The shortest round trip. `None` if it is not known, and for all peers together.
    pub rtt: Option<Duration>,
}

impl Traffic {
    fn add_engine(&mut self, counters: &PeerCounters) {
        self.sent_bytes += counters.bytes_sent;
        self.received_bytes += counters.bytes_received;
        self.messages_sent += counters.messages();
        self.fragments_resent += counters.fragments_resent;
    }

    fn add_datagrams(&mut self, counts: DatagramCounts) {
        self.sent_bytes += counts.sent_bytes;
        self.received_bytes += counts.received_bytes;
        self.messages_sent += counts.sent;
        self.datagrams_sent += counts.sent;
        self.datagrams_received += counts.received;
    }
}

fn no_packets() -> Error {
    let why = "no lanes of this endpoint go by UDP or as frames: set transport to udp, auto or ethernet";
    Error::Value(why.to_owned())
}

impl Endpoint {
    /// The service level of a connection.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn level(&self, connection: Connection) -> Result<Level, Error> {
        self.describe(connection).map(|described| described.level)
    }

    /// Longest message that may be sent on a connection. Bytes; 0 until it is established.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn message_max(&self, connection: Connection) -> Result<u32, Error> {
        self.describe(connection).map(|described| described.message_max)
    }

    /// The address of the endpoint at the other end.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn peer_uri(&self, connection: Connection) -> Result<String, Error> {
        let peer = self.describe(connection)?.peer;
        Ok(self.inner.peer_address(peer).uri())
    }

    fn describe(&self, connection: Connection) -> Result<crate::talk::Described, Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.describe(id)
    }

    /// Sets how long messages, writes and reads of a connection may take from now on; zero: as long as the peer lives.
    /// An operation that takes longer gets its event, and may still arrive, once. A region stays in use until the
    /// operation has really ended ([`Region::is_in_use`](crate::Region::is_in_use)).
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_send_timeout(&self, connection: Connection, timeout: Duration) -> Result<(), Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.set_send_timeout(id, micros(timeout))
    }

    /// Sets the silence of a connection after which the program is told; zero: never.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_keepalive(&self, connection: Connection, silence: Duration) -> Result<(), Error> {
        let id = self.inner.id(connection)?;
        self.inner.open_state()?.talk.set_keepalive(self.inner.now(), id, micros(silence))
    }

    /// A connection's send time-out and keepalive.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn times(&self, connection: Connection) -> Result<(Duration, Duration), Error> {
        let id = self.inner.id(connection)?;
        let (timeout_us, keepalive_us) = self.inner.open_state()?.talk.times(id)?;
        Ok((Duration::from_micros(timeout_us), Duration::from_micros(keepalive_us)))
    }

    /// The protocols of service levels, messages and lanes, as a text of the setting `protocols` with defaults filled
    /// in. With several devices, those of the first one.
    pub fn protocols(&self) -> String {
        self.inner.ports[0].engine.protocols().to_string()
    }

    /// Changes the protocols on all devices, also for messages that wait and for existing lanes, while data flows.
    /// The text is one of the setting, such as "RO: eager, udp@10.2.0.0/16: cubic+once". What it does not mention gets
    /// its default.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn set_protocols(&self, text: &str) -> Result<(), Error> {
        let protocols: Protocols = text.parse().map_err(Error::Value)?;
        self.change_protocols(|all| all.clone_from(&protocols));
        Ok(())
    }

    /// The protocols for the host of a connection's peer.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn protocols_of(&self, connection: Connection) -> Result<String, Error> {
        let (port, host) = self.lanes_of(connection)?;
        Ok(self.inner.ports[port].engine.protocols().of_host(host).to_string())
    }

    /// Changes the protocols for the host of a connection's peer. All connections with that host by that device share
    /// them. The text names no hosts, such as "RO: eager, udp: cubic". What it does not mention stays.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Value`].
    pub fn set_protocols_of(&self, connection: Connection, text: &str) -> Result<(), Error> {
        let choice: Protocols = text.parse().map_err(Error::Value)?;
        self.change_protocols_of(connection, &choice)
    }

    fn change_protocols(&self, change: impl Fn(&mut Protocols)) {
        self.inner.ports.iter().for_each(|port| port.engine.change_protocols(&change));
    }

    fn change_protocols_of(&self, connection: Connection, choice: &Protocols) -> Result<(), Error> {
        let (port, host) = self.lanes_of(connection)?;
        let change = |all: &mut Protocols| all.set_for(host, choice).map_err(Error::Value);
        self.inner.ports[port].engine.change_protocols(change)
    }

    /// The protocols of lanes by UDP or Ethernet frames, as a text of the setting `udp_protocols`. With several
    /// devices, those of the first one that has such lanes.
    ///
    /// # Errors
    /// [`Error::Value`] if no device has such lanes.
    pub fn udp_protocols(&self) -> Result<String, Error> {
        let found = self.inner.ports.iter().find(|port| port.engine.has_packets());
        found.map(|port| port.engine.protocols().udp.to_string()).ok_or_else(no_packets)
    }

    /// Changes them. The text is one of the setting, such as "cubic+once" or "10.2.0.1=cubic, rate".
    ///
    /// # Errors
    /// [`Error::Value`], also if no device has such lanes.
    pub fn set_udp_protocols(&self, text: &str) -> Result<(), Error> {
        let udp: PerHost<Composition> = text.parse().map_err(Error::Value)?;
        if !self.inner.ports.iter().any(|port| port.engine.has_packets()) {
            return Err(no_packets());
        }
        self.change_protocols(|all| all.udp = udp.clone());
        Ok(())
    }

    /// The protocols of the UDP lanes of a connection.
    ///
    /// # Errors
    /// [`Error::Stale`]; as for [`Endpoint::udp_protocols`].
    pub fn udp_protocols_of(&self, connection: Connection) -> Result<String, Error> {
        let (port, host) = self.lanes_of(connection)?;
        let engine = &self.inner.ports[port].engine;
        if engine.has_packets() {
            Ok(engine.protocols().udp.of(host).0.to_string())
        } else {
            Err(no_packets())
        }
    }

    /// Changes them. All connections with that host by that device share its lanes.
    ///
    /// # Errors
    /// [`Error::Stale`]; as for [`Endpoint::set_udp_protocols`].
    pub fn set_udp_protocols_of(&self, connection: Connection, text: &str) -> Result<(), Error> {
        let (port, _) = self.lanes_of(connection)?;
        let composition: Composition =
            text.parse().map_err(|error: SpecError| Error::Value(error.to_string()))?;
        if !self.inner.ports[port].engine.has_packets() {
            return Err(no_packets());
        }
        let mut choice = Protocols::default();
        choice.udp.set(None, composition);
        self.change_protocols_of(connection, &choice)
    }

    /// The default transfer of messages beyond 8 KiB, as a text of the setting `transfer`. With several devices, that
    /// of the first one.
    pub fn transfer(&self) -> String {
        MessageTransfer(self.inner.ports[0].engine.protocols().transfers).to_string()
    }

    /// Changes that. The text is one of the setting, such as "rendezvous" or "RU=eager, 10.2.0.1=mixed, adaptive".
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn set_transfer(&self, text: &str) -> Result<(), Error> {
        let MessageTransfer(transfers) = text.parse().map_err(Error::Value)?;
        self.change_protocols(|all| all.transfers = transfers.clone());
        Ok(())
    }

    /// The transfer of messages to the host of a connection's peer.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn transfer_of(&self, connection: Connection) -> Result<String, Error> {
        let (port, host) = self.lanes_of(connection)?;
        Ok(self.inner.ports[port].engine.protocols().transfers.all.of(host).0.to_string())
    }

    /// Changes that. All connections with that host by that device share it. Settings for service levels take
    /// precedence.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Value`].
    pub fn set_transfer_of(&self, connection: Connection, text: &str) -> Result<(), Error> {
        let kind: Transfer = text.trim().parse().map_err(Error::Value)?;
        self.change_protocols_of(connection, &Protocols { transfers: kind.into(), ..Protocols::default() })
    }

    /// The index of a connection's device, and the peer's host.
    fn lanes_of(&self, connection: Connection) -> Result<(usize, IpAddr), Error> {
        let peer = self.describe(connection)?.peer;
        Ok((port_of(peer), self.inner.peer_address(peer).locator.ip()))
    }

    /// The options in force.
    pub fn options(&self) -> EndpointOptions {
        self.inner.state.lock().options.clone()
    }

    /// Changes options. Times apply to new connections.
    ///
    /// # Errors
    /// [`Error::Value`]; `message_max` and `port` cannot change. [`Error::Memory`] if there are fewer `recv_buffers`
    /// than asked for.
    pub fn set_options(&self, options: &EndpointOptions) -> Result<(), Error> {
        options.check()?;
        let mut state = self.inner.open_state()?;
        if (options.message_max, options.port) != (state.options.message_max, state.options.port) {
            return Err(Error::Value(
                "message_max and port are chosen when an endpoint is created".to_owned(),
            ));
        }
        check("recv_buffers", options.recv_buffers, 1, 65_536)?;
        state.recv_buffers = options.recv_buffers;
        for datagrams in state.ports.iter_mut().filter_map(|port| port.datagrams.as_mut()) {
            datagrams.set_waiting_max(options.recv_buffers as usize);
        }
        let limits = state.talk.limits_mut();
        limits.send_buffers = options.send_buffers;
        limits.requests = options.backlog;
        state.options = options.clone();
        self.inner.fill_buffers(&mut state)
    }

    /// The carrier of each of its lanes, for diagnosis: "TCP", "UDP", "Ethernet", or a provider of libfabric.
    pub fn carriers(&self) -> Vec<String> {
        self.inner.ports.iter().flat_map(|port| port.engine.carriers()).collect()
    }

    /// Counts of the traffic so far between this endpoint and the peer of a connection. All connections with that
    /// peer's endpoint share the counts.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn traffic_with(&self, connection: Connection) -> Result<Traffic, Error> {
        let peer = self.describe(connection)?.peer;
        let (port, there) = (port_of(peer), within(peer));
        let mut traffic = Traffic::default();
        if let Some(known) = self.inner.ports[port].engine.peer_state(there) {
            traffic.add_engine(&known.counters);
            traffic.lanes = known.lanes.len() as u64;
            traffic.rtt = known.rtt_us.map(Duration::from_micros);
        }
        let state = self.inner.open_state()?;
        if let Some(datagrams) = &state.ports[port].datagrams {
            traffic.add_datagrams(datagrams.counts_with(there));
        }
        Ok(traffic)
    }

    /// The same of all peers together.
    pub fn traffic(&self) -> Traffic {
        let mut traffic = Traffic::default();
        for port in &self.inner.ports {
            port.engine.peer_counters().iter().for_each(|counters| traffic.add_engine(counters));
        }
        let state = self.inner.state.lock();
        for datagrams in state.ports.iter().filter_map(|port| port.datagrams.as_ref()) {
            datagrams.counts().for_each(|(_, counts)| traffic.add_datagrams(counts));
        }
        traffic
    }

    /// Counts of what was done so far.
    pub fn counters(&self) -> EndpointCounters {
        let state = self.inner.state.lock();
        let mut sum = EndpointCounters { connections: state.talk.links() as u64, ..state.counters };
        for (port, changing) in self.inner.ports.iter().zip(&state.ports) {
            let engine = port.engine.counters();
            sum.datagrams_dropped += changing.datagrams.as_ref().map_or(0, Datagrams::dropped);
            sum.fragments_resent += engine.fragments_resent;
            sum.lanes_lost += engine.lanes_lost;
            sum.messages_eager += engine.messages_eager;
            sum.messages_asked += engine.messages_asked;
            sum.messages_announced += engine.messages_announced;
        }
        sum
    }
}
