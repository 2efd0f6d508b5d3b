//! Tests the path to a peer: its address, the interface that leads there, and what passes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use isthmus_io::{Endpoint, Settings, Transport};
use isthmus_proto::ADMITS_KNOWN;
use isthmus_units::{HostPort, ResolveError};
use isthmus_wire::Address;

use super::{Finding, Verdict, exchange, finding, good};

/// How long UDP may take, in addition to the time for the peer.
const UDP_PATIENCE: Duration = Duration::from_secs(10);

/// Tests the path to the peer that the user wrote as `text`.
pub(super) fn peer(endpoint: &Endpoint, settings: &Settings, text: &str, limit: Duration) -> Vec<Finding> {
    let (address, tried) = match parse(endpoint, text) {
        Ok(found) => found,
        Err((why, remedy)) => return vec![finding(Verdict::Bad, "peer", why, remedy)],
    };
    let mut findings: Vec<Finding> = leaves_by(endpoint, &address).into_iter().collect();
    match exchange(endpoint, &address, limit) {
        Ok(rtt) => {
            let text = format!("{address} answered in {:.3} ms", rtt.as_secs_f64() * 1e3);
            findings.push(good("peer", text));
            findings.extend(udp(settings, &address));
        }
        // The peer is there, but tells nothing more to those who know only its host and port.
        Err(text) if text.contains(ADMITS_KNOWN) => {
            findings.push(good("peer", format!("an endpoint of Isthmus listens at {address}")));
            let text = format!("the peer {ADMITS_KNOWN}: messages and UDP were not tried");
            let remedy = "run isthmus doctor --listen there, and name the port that it prints";
            findings.push(finding(Verdict::Advice, "admission", text, remedy));
        }
        Err(text) => findings.push(finding(
            Verdict::Bad,
            "peer",
            format!("{text}{tried}"),
            "is it running, does its address belong to this subnet, does a firewall let its TCP port through?",
        )),
    }
    findings
}

/// Parses the peer's address, and says what errors tell of the host's other addresses. The error has the reason and the accepted forms.
fn parse(endpoint: &Endpoint, text: &str) -> Result<(Address, String), (String, &'static str)> {
    const FORMS: &str = "write HOST:PORT or isthmus://AS.SUBNET/IP:PORT";
    const NO_PORT: &str = "name the port that `isthmus doctor --listen` or the service there prints";
    if text.contains("://") {
        let address: Address =
            text.parse().map_err(|error| (format!("`{text}` is no address: {error}"), FORMS))?;
        if address.locator.port() == 0 {
            return Err((format!("`{text}` has port 0, at which nothing listens"), NO_PORT));
        }
        return Ok((address, String::new()));
    }
    let at: HostPort = text.parse().map_err(|error| (format!("no address: {error}"), FORMS))?;
    let choice = at.choose().map_err(|error| {
        let is_about_port = matches!(error, ResolveError::NoPort(_));
        let remedy =
            if is_about_port { NO_PORT } else { "correct the name, or ask who runs this host's DNS" };
        (error.to_string(), remedy)
    })?;
    let own = endpoint.address();
    Ok((Address { as_id: own.as_id, subnet: own.subnet, ..Address::from(choice.address) }, choice.tried()))
}

/// Checks whether packets to the peer leave by the interface at which this endpoint listens: peers connect back to it.
fn leaves_by(endpoint: &Endpoint, to: &Address) -> Option<Finding> {
    const SUBJECT: &str = "way";
    let (own, there) = (endpoint.address().locator.ip(), to.locator.ip());
    if own.is_ipv4() != there.is_ipv4() {
        let text = format!("the peer's address {there} is of another version of IP than this host's {own}");
        let remedy =
            "set FI_ISTHMUS_INTERFACE to an address of the same version, or name the peer by another";
        return Some(finding(Verdict::Advice, SUBJECT, text, remedy));
    }
    let named = |ip: IpAddr| isthmus_io::interface_of(ip).unwrap_or_else(|| "no interface".to_owned());
    if there == own {
        return None;
    }
    if isthmus_io::interface_of(there).is_some() {
        let text = format!(
            "{there} is an address of this host, on {}: if another host is meant, both have the same",
            named(there)
        );
        let remedy = "name the peer by an address that only it has";
        return Some(finding(Verdict::Advice, SUBJECT, text, remedy));
    }
    match isthmus_io::source_to(there) {
        None => {
            let text = format!("the kernel has no route to {there}");
            Some(finding(Verdict::Bad, SUBJECT, text, "add a route (ip route add), or a default route"))
        }
        Some(source) if source == own => {
            Some(good(SUBJECT, format!("packets to {there} leave from {own}, by {}", named(own))))
        }
        Some(source) => Some(finding(
            Verdict::Advice,
            SUBJECT,
            format!(
                "packets to {there} leave from {source}, by {}, but this endpoint listens at {own}, on {}",
                named(source),
                named(own)
            ),
            format!("export FI_ISTHMUS_INTERFACE={}, or set `interface` in isthmus.toml", named(source)),
        )),
    }
}

/// Checks whether UDP passes to the peer. It decides how fast long and lossy paths are.
fn udp(settings: &Settings, to: &Address) -> Option<Finding> {
    const SUBJECT: &str = "udp";
    let is_here = (settings.as_id, settings.subnet) == (to.as_id.0, to.subnet.0);
    if !is_here || matches!(settings.transport, Transport::Tcp | Transport::Ethernet) {
        return None;
    }
    let settings = Settings { port: 0, transport: Transport::UdpEverywhere, ..settings.clone() };
    let endpoint = match Endpoint::open(&settings, None, Arc::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return Some(finding(Verdict::Advice, SUBJECT, error.to_string(), "UDP was not tried"));
        }
    };
    let heard = exchange(&endpoint, to, UDP_PATIENCE);
    let carriers = endpoint.carriers();
    endpoint.close();
    let port = to.locator.port();
    Some(match heard {
        Ok(rtt) if carriers.iter().any(|name| name.starts_with("UDP")) => {
            good(SUBJECT, format!("UDP passes at port {port}, in {:.3} ms", rtt.as_secs_f64() * 1e3))
        }
        _ => finding(
            Verdict::Advice,
            SUBJECT,
            format!(
                "UDP does not pass at port {port}: lanes go by TCP, which is slower where packets are lost"
            ),
            "have firewalls let UDP through at the ports of TCP, both ways; the setting port_range keeps them few",
        ),
    })
}
