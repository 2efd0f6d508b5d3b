//! TLS of the links between routers.

use isthmus_trust::{Files, Trust};
use isthmus_wire::AsId;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::ConfigError;

const ALPN: &[u8] = b"isthmus/1";

/// Both roles of a router in a handshake.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) acceptor: TlsAcceptor,
}

impl Tls {
    /// Reads the certificates; this router's must be its AS's.
    pub(crate) fn load(files: &Files, own: AsId, admits: &[u32]) -> Result<Self, ConfigError> {
        let trust = Trust::load(files, own, admits, ALPN)?;
        Ok(Self { connector: TlsConnector::from(trust.client), acceptor: TlsAcceptor::from(trust.server) })
    }
}
