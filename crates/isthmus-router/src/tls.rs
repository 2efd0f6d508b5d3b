//! TLS of the links between routers.

use std::io;

use isthmus_trust::{Files, Fingerprint, Role, Trust};
use isthmus_wire::AsId;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::ConfigError;

const ALPN: &[u8] = b"isthmus/1";

/// Both roles of a router in a handshake.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) acceptor: TlsAcceptor,
    trust: Trust,
}

impl Tls {
    /// Reads the certificates; this router's must be its AS's.
    pub(crate) fn load(files: &Files, own: AsId, admits: &[u32]) -> Result<Self, ConfigError> {
        let trust = Trust::load_as(Role::Router, files, own, admits, ALPN)?;
        let (connector, acceptor) = (trust.client.clone().into(), trust.server.clone().into());
        Ok(Self { connector, acceptor, trust })
    }

    /// Whether a link to who showed this certificate is to end.
    pub(crate) fn denies(&self, certificate: &Fingerprint) -> bool {
        self.trust.denies(certificate)
    }
}

/// Why there is no link, in words that say what to change where it is TLS that fails.
pub(crate) fn why(error: &io::Error) -> String {
    let by_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<tokio_rustls::rustls::Error>());
    by_tls.map_or_else(|| error.to_string(), isthmus_trust::explain)
}
