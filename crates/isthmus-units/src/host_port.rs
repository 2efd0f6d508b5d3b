//! Where something listens, as people write it: a host's name or IP address, and a port.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer};

/// `HOST:PORT`: a host's name, an IPv4 address, or an IPv6 address in brackets.
///
/// Reading one looks nothing up; [`HostPort::resolve`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no [`HostPort`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {fault}; expected HOST:PORT, as 10.1.0.1:4100, [fd00::1]:4100 or host.site.org:4100")]
pub struct HostPortError {
    text: String,
    fault: &'static str,
}

/// Why a host's name stands for no address.
#[derive(Debug, thiserror::Error)]
#[error("the host name {host:?} cannot be resolved: {cause}; correct it, or write an IP address")]
pub struct ResolveError {
    host: String,
    cause: String,
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let fail = |fault| HostPortError { text: text.to_owned(), fault };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("has no port"))?;
        let port = port.parse().map_err(|_| fail("has no port from 0 to 65535"))?;
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(ip) if ip.parse::<Ipv6Addr>().is_ok() => ip,
            Some(_) => return Err(fail("has no IPv6 address in its brackets")),
            None if host.contains(':') => return Err(fail("has an IPv6 address without brackets")),
            None if is_host(host) => host,
            None => return Err(fail("has no host's name or address")),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

/// Whether a text is an IPv4 address, or may be a host's name.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let like_ip = !name.is_empty() && name.chars().all(|c| c.is_ascii_digit() || c == '.');
    name.len() <= 253 && name.split('.').all(is_label) && (!like_ip || name.parse::<IpAddr>().is_ok())
}

impl HostPort {
    /// The addresses that the host's name stands for, all of one version of IP: that of the one which the system
    /// names first. An IP address is looked up nowhere.
    ///
    /// # Errors
    /// [`ResolveError`], which says what the system said.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let fail = |cause: String| ResolveError { host: self.host.clone(), cause };
        let mut found: Vec<SocketAddr> =
            (&self.host[..], self.port).to_socket_addrs().map_err(|error| fail(said(&error)))?.collect();
        let Some(first) = found.first().copied() else { return Err(fail("it has no address".to_owned())) };
        found.retain(|at| at.is_ipv4() == first.is_ipv4());
        found.dedup();
        Ok(found)
    }

    /// The first of the addresses that [`HostPort::resolve`] finds.
    ///
    /// # Errors
    /// As there.
    pub fn first(&self) -> Result<SocketAddr, ResolveError> {
        // There is one, or it was an error.
        self.resolve().map(|found| found[0])
    }
}

/// What the system said, without what Rust puts before it.
fn said(error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
}

impl From<SocketAddr> for HostPort {
    fn from(at: SocketAddr) -> Self {
        Self { host: at.ip().to_string(), port: at.port() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read_and_shown_as_written() {
        for text in ["10.1.0.1:4100", "[fd00::1]:4100", "router-1:0", "a.b_c.example.org:65535", "x.:1"] {
            assert_eq!(text.parse::<HostPort>().expect("one").to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_said_to_be_none_for_its_reason() {
        for (text, part) in [
            ("router-1", "has no port;"),
            ("router-1:x", "has no port from 0 to 65535"),
            ("router-1:65536", "has no port from 0 to 65535"),
            ("fd00::1:4100", "without brackets"),
            ("[fd00::x]:4100", "in its brackets"),
            (":4100", "no host's name"),
            ("a..b:1", "no host's name"),
            ("10.1.0.256:1", "no host's name"),
            ("-x:1", "no host's name"),
            ("a b:1", "no host's name"),
        ] {
            let error = text.parse::<HostPort>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains("HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_need_no_look_up_and_names_are_looked_up() {
        let at = |text: &str| text.parse::<HostPort>().expect("one").first();
        assert_eq!(at("10.1.0.1:7").expect("an address"), "10.1.0.1:7".parse().expect("one"));
        assert_eq!(at("[fd00::1]:7").expect("an address"), "[fd00::1]:7".parse().expect("one"));
        assert!(at("localhost:7").expect("every host knows it").ip().is_loopback());
        // RFC 6761: never a name of anybody's.
        let error = at("nowhere.invalid:7").expect_err("no such name").to_string();
        assert!(error.starts_with("the host name \"nowhere.invalid\" cannot be resolved: "), "{error}");
    }
}
