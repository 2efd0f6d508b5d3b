//! Where something listens, as people write it: a host's name or IP address, and a port.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

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

/// How long a connection attempt may take before the next address is tried beside it (RFC 8305, section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// How long [`HostPort::choose`] waits in all. An attempt needs one round trip, or one more per lost packet.
const CHOICE_PATIENCE: Duration = Duration::from_secs(5);

/// Why a host's name stands for no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name service knows no address.
    #[error("the host name {host:?} cannot be resolved: {cause}; correct it, or write an IP address")]
    Unknown {
        /// The name.
        host: String,
        /// What the system said.
        cause: String,
    },
    /// The name service did not answer.
    #[error(
        "the host name {host:?} cannot be resolved now: {cause}; the name service (DNS) did not answer: try again \
         later, or write an IP address"
    )]
    Outage {
        /// The name.
        host: String,
        /// What the system said.
        cause: String,
    },
    /// The port of this host is 0.
    #[error("{0} has port 0, at which nothing listens; write the port at which the service does")]
    NoPort(HostPort),
}

impl ResolveError {
    /// Whether the same look-up may succeed later.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Outage { .. })
    }
}

/// One of the addresses of a host's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The first that answered; where none did, the one that the system names first.
    pub address: SocketAddr,
    /// The others of that name, if none answered. Empty otherwise.
    pub silent: Vec<SocketAddr>,
}

impl Choice {
    /// For the end of an error: the other addresses that were tried, if there are any.
    pub fn tried(&self) -> String {
        if self.silent.is_empty() {
            return String::new();
        }
        let others: Vec<String> = self.silent.iter().map(ToString::to_string).collect();
        format!("; the name also stands for {}, which did not answer either", others.join(" and "))
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        // What follows `#` in an address of an endpoint is a secret.
        let shown = text.split('#').next().unwrap_or_default();
        let fail = |fault| HostPortError { text: shown.to_owned(), fault };
        if text.contains("://") {
            return Err(fail("is a URI, and not a host and a port"));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("has no port"))?;
        let port = port.parse().map_err(|_| fail("has no port from 0 to 65535"))?;
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(ip) if ip.parse::<Ipv6Addr>().is_ok() => ip,
            Some(ip) if ip.contains('%') => {
                return Err(fail("has an IPv6 address with a zone, which is not supported"));
            }
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
        let mut found = self.all()?;
        // There is one, or it was an error.
        let is_ipv4 = found[0].is_ipv4();
        found.retain(|at| at.is_ipv4() == is_ipv4);
        Ok(found)
    }

    /// All addresses that the host's name stands for, in the order of the system.
    fn all(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let fail = |cause: String| {
            let host = self.host.clone();
            if is_outage(&cause) {
                ResolveError::Outage { host, cause }
            } else {
                ResolveError::Unknown { host, cause }
            }
        };
        let mut found: Vec<SocketAddr> =
            (&self.host[..], self.port).to_socket_addrs().map_err(|error| fail(said(&error)))?.collect();
        if found.is_empty() {
            return Err(fail("it has no address".to_owned()));
        }
        found.dedup();
        Ok(found)
    }

    /// The address at which a TCP connection succeeds first, of both versions of IP, as RFC 8305 ("Happy Eyeballs")
    /// has it: each attempt starts 250 ms after the one before, or when that has failed. Nothing is tried where the
    /// name stands for one address only. Takes at most 5 s, and the time of the look-up.
    ///
    /// # Errors
    /// As [`HostPort::resolve`], and if the port is 0.
    pub fn choose(&self) -> Result<Choice, ResolveError> {
        if self.port == 0 {
            return Err(ResolveError::NoPort(self.clone()));
        }
        let mut found = self.all()?;
        if found.len() > 1
            && let Some(address) = first_to_answer(&alternated(&found))
        {
            return Ok(Choice { address, silent: Vec::new() });
        }
        let address = found.remove(0);
        Ok(Choice { address, silent: found })
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

/// The addresses in their order, but of both versions of IP in turn: if one version does not work at all, its many
/// addresses do not delay the other (RFC 8305, section 4).
fn alternated(all: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first = |at: &&SocketAddr| at.is_ipv4() == all[0].is_ipv4();
    let mut second = all.iter().filter(|at| !is_first(at)).copied();
    let mut out = Vec::with_capacity(all.len());
    for at in all.iter().filter(is_first).copied() {
        out.push(at);
        out.extend(second.next());
    }
    out.extend(second);
    out
}

/// The address to which a connection is established first; `None` if there is none in time.
fn first_to_answer(all: &[SocketAddr]) -> Option<SocketAddr> {
    let (tell, told) = mpsc::channel();
    let end = Instant::now() + CHOICE_PATIENCE;
    let mut waiting = 0;
    let mut left = all.iter().copied();
    loop {
        let mut patience = end.saturating_duration_since(Instant::now());
        if let Some(at) = left.next() {
            let tell = tell.clone();
            // Its thread ends at the latest when the patience does. Nobody needs what it says later.
            let attempt = move || {
                let _ = tell.send((at, TcpStream::connect_timeout(&at, CHOICE_PATIENCE).is_ok()));
            };
            waiting += usize::from(thread::Builder::new().spawn(attempt).is_ok());
            if left.len() > 0 {
                patience = patience.min(HEAD_START);
            }
        }
        if waiting == 0 {
            if left.len() == 0 {
                return None;
            }
            continue;
        }
        match told.recv_timeout(patience) {
            Ok((at, true)) => return Some(at),
            Ok((_, false)) => waiting -= 1,
            Err(_) if left.len() == 0 => return None,
            Err(_) => {}
        }
    }
}

/// Whether an error of the look-up is EAI_AGAIN. Rust passes on only its text: that of glibc, or of musl.
fn is_outage(said: &str) -> bool {
    said.contains("Temporary failure in name resolution") || said.contains("Try again")
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
            ("http://b.site:80", "is a URI"),
            ("isthmus://0.0/10.1.0.1:4100#5f0c8a11.00ab", "10.1.0.1:4100\" is a URI"),
            ("[fe80::1%lo]:4100", "with a zone"),
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
    fn the_first_address_that_answers_is_chosen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("its address");
        let deaf =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let nowhere = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), there.port());
        assert_eq!(first_to_answer(&[nowhere, deaf, there]), Some(there));
        assert_eq!(first_to_answer(&[deaf, nowhere]), None);
        let choice = Choice { address: deaf, silent: vec![nowhere] };
        assert!(choice.tried().contains(&nowhere.to_string()), "{}", choice.tried());
        let at = HostPort::from(deaf).choose().expect("an address");
        assert_eq!((at.address, at.tried()), (deaf, String::new()));
    }

    #[test]
    fn versions_of_ip_take_turns() {
        let read = |text: &str| text.parse::<SocketAddr>().expect("one");
        let all = ["[fd00::1]:1", "[fd00::2]:1", "[fd00::3]:1", "10.0.0.1:1"].map(read);
        assert_eq!(alternated(&all), [all[0], all[3], all[1], all[2]]);
        let all = ["10.0.0.1:1", "[fd00::1]:1", "[fd00::2]:1"].map(read);
        assert_eq!(alternated(&all), all);
    }

    #[test]
    fn nothing_listens_at_port_0() {
        for text in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
            let error = text.parse::<HostPort>().expect("an address to listen at").choose().expect_err(text);
            assert!(
                error.to_string().starts_with(&format!("{text} has port 0")) && !error.is_outage(),
                "{error}"
            );
        }
    }

    #[test]
    fn a_name_service_that_does_not_answer_is_an_outage() {
        assert!(is_outage("Temporary failure in name resolution"));
        assert!(!is_outage("Name or service not known"));
        let (host, cause) = ("x".to_owned(), "Temporary failure in name resolution".to_owned());
        let error = ResolveError::Outage { host, cause };
        assert!(error.is_outage() && error.to_string().contains("try again later"), "{error}");
    }

    #[test]
    fn addresses_need_no_look_up_and_names_are_looked_up() {
        let at = |text: &str| text.parse::<HostPort>().expect("one").first();
        assert_eq!(at("10.1.0.1:7").expect("an address"), "10.1.0.1:7".parse().expect("one"));
        assert_eq!(at("[fd00::1]:7").expect("an address"), "[fd00::1]:7".parse().expect("one"));
        assert!(at("localhost:7").expect("every host knows it").ip().is_loopback());
        // RFC 6761: never a name of anybody's.
        let error = at("nowhere.invalid:7").expect_err("no such name").to_string();
        // Without a name service it is an outage.
        assert!(error.starts_with("the host name \"nowhere.invalid\" cannot be resolved"), "{error}");
    }
}
