//! Queries all endpoints and daemons of this host, and computes rates from two queries.

use std::collections::{BTreeMap, HashMap};
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use isthmus_io::{LaneFigures, PeerFigures};
use isthmus_units::HostPort;
use serde::Serialize;
use serde_json::Value;

use super::http;

/// What one query found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Version of this object.
    version: u32,
    /// Time since the previous query. Seconds.
    pub(super) interval_s: f64,
    pub(super) processes: Vec<Process>,
    /// Routers and services: what each reports, and its `status` address.
    pub(super) daemons: Vec<Value>,
    /// Processes and addresses that did not answer, with the reason.
    pub(super) silent: Vec<String>,
}

impl Report {
    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.daemons.is_empty()
    }
}

/// A process with endpoints.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) endpoints: Vec<Endpoint>,
}

#[derive(Debug, Serialize)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) peers: Vec<Peer>,
}

/// A peer of an endpoint. Unknown values are null.
#[derive(Debug, Serialize)]
pub(super) struct Peer {
    pub(super) address: String,
    /// The carriers of its lanes, such as "2 UDP, encrypted".
    pub(super) transport: String,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bits_per_s: f64,
    pub(super) received_bits_per_s: f64,
    pub(super) messages: u64,
    pub(super) fragments_resent: u64,
    /// Share of packets lost since the previous query; if none was sent since then, since the start.
    pub(super) loss: Option<f64>,
    pub(super) rtt_s: Option<f64>,
    /// Reasons behind the present state of its lanes and messages.
    pub(super) why: Vec<String>,
    pub(super) lanes: Vec<Lane>,
}

#[derive(Debug, Serialize)]
pub(super) struct Lane {
    carrier: String,
    sent_bytes: Option<u64>,
    received_bytes: Option<u64>,
    packets: Option<u64>,
    lost: Option<u64>,
    rtt_s: Option<f64>,
}

/// A peer's counters at the previous query.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    sent_bytes: u64,
    received_bytes: u64,
    packets: u64,
    lost: u64,
}

type Key = (u32, String, String);

/// Queries the host repeatedly. Keeps the counters of the previous query for rates.
pub(super) struct Gatherer {
    /// Status addresses that the user named.
    named: Vec<HostPort>,
    looked: Option<Instant>,
    before: HashMap<Key, Before>,
}

impl Gatherer {
    pub(super) fn new(named: Vec<HostPort>) -> Self {
        Self { named, looked: None, before: HashMap::new() }
    }

    /// Queries everything. Rates cover the time since the previous query.
    pub(super) fn look(&mut self) -> Report {
        let now = Instant::now();
        let since = self.looked.replace(now).map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let mut report = Report { version: 1, interval_s: since, ..Report::default() };
        let before = std::mem::take(&mut self.before);
        for pid in isthmus_io::processes().unwrap_or_default().into_iter().filter(|pid| is_ours(*pid)) {
            match isthmus_io::figures_of(pid) {
                Ok(endpoints) => {
                    let endpoints = endpoints
                        .into_iter()
                        .map(|endpoint| {
                            let peers = endpoint.peers.into_iter().map(|peer| {
                                let key = (pid, endpoint.address.clone(), peer.address.clone());
                                let last = before.get(&key).copied();
                                self.before.insert(key, Before::of(&peer));
                                of_peer(peer, last, since)
                            });
                            let peers = peers.collect();
                            Endpoint { peers, address: endpoint.address }
                        })
                        .collect();
                    report.processes.push(Process { pid, program: program(pid), endpoints });
                }
                // The process has ended meanwhile, which is no error.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => report.silent.push(format!("process {pid}: {error}")),
            }
        }
        let mut addresses = isthmus_metrics::marked().unwrap_or_default();
        // Anybody on this host can add a mark, so query only addresses of this host.
        addresses.retain(|address| UdpSocket::bind((address.ip(), 0)).is_ok());
        for named in &self.named {
            match named.first() {
                Ok(address) => addresses.push(address),
                Err(error) => report.silent.push(format!("status at {}:{}: {error}", named.host, named.port)),
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            match http::state(address) {
                Ok(mut state) => {
                    state["status"] = Value::from(address.to_string());
                    report.daemons.push(state);
                }
                Err(error) => report.silent.push(format!("status at {address}: {error}")),
            }
        }
        report
    }
}

impl Before {
    fn of(peer: &PeerFigures) -> Self {
        // Losses of datagrams are unknown, so leave out lanes without a count.
        let counted = || peer.lanes.iter().filter(|lane| lane.lost.is_some());
        let sum = |of: fn(&LaneFigures) -> Option<u64>| counted().filter_map(of).sum();
        Self {
            sent_bytes: peer.sent_bytes,
            received_bytes: peer.received_bytes,
            packets: sum(|lane| lane.packets),
            lost: sum(|lane| lane.lost),
        }
    }
}

fn of_peer(figures: PeerFigures, before: Option<Before>, seconds: f64) -> Peer {
    let now = Before::of(&figures);
    let before = before.unwrap_or(now);
    let rate = |now: u64, before: u64| match seconds > 0.0 {
        true => 8.0 * now.saturating_sub(before) as f64 / seconds,
        false => 0.0,
    };
    let transport = transport(&figures.lanes);
    Peer {
        address: figures.address,
        transport,
        sent_bytes: figures.sent_bytes,
        received_bytes: figures.received_bytes,
        sent_bits_per_s: rate(now.sent_bytes, before.sent_bytes),
        received_bits_per_s: rate(now.received_bytes, before.received_bytes),
        messages: figures.messages,
        fragments_resent: figures.fragments_resent,
        loss: loss(now, before),
        rtt_s: figures
            .rtt_us
            .or_else(|| figures.lanes.iter().filter_map(|lane| lane.rtt_us).min())
            .map(seconds_of),
        why: figures.why,
        lanes: figures.lanes.into_iter().map(of_lane).collect(),
    }
}

/// The share of packets lost between two queries; if none was sent between them, since the start.
fn loss(now: Before, before: Before) -> Option<f64> {
    let (packets, lost) = match now.packets.saturating_sub(before.packets) {
        0 => (now.packets, now.lost),
        packets => (packets, now.lost.saturating_sub(before.lost)),
    };
    (packets > 0).then(|| (lost as f64 / packets as f64).min(1.0))
}

fn of_lane(lane: LaneFigures) -> Lane {
    let LaneFigures { carrier, sent_bytes, received_bytes, packets, lost, rtt_us } = lane;
    Lane { carrier, sent_bytes, received_bytes, packets, lost, rtt_s: rtt_us.map(seconds_of) }
}

fn seconds_of(us: u64) -> f64 {
    us as f64 / 1e6
}

/// The kinds of lanes, each with its count if that is above one.
fn transport(lanes: &[LaneFigures]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for lane in lanes {
        *counts.entry(&lane.carrier).or_default() += 1;
    }
    let named = |(name, count): (&str, usize)| match count {
        1 => name.to_owned(),
        count => format!("{count} {name}"),
    };
    counts.into_iter().map(named).collect::<Vec<_>>().join("; ")
}

/// Whether this user may query the process.
fn is_ours(pid: u32) -> bool {
    let own = rustix::process::geteuid();
    own.is_root() || std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|of| of.uid() == own.as_raw())
}

fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(carrier: &str, packets: u64, lost: u64) -> LaneFigures {
        LaneFigures {
            carrier: carrier.to_owned(),
            packets: Some(packets),
            lost: Some(lost),
            rtt_us: Some(24_000),
            ..LaneFigures::default()
        }
    }

    #[test]
    fn rates_and_losses_are_of_the_time_between_two_looks() {
        let figures =
            |sent_bytes, lanes: Vec<LaneFigures>| PeerFigures { sent_bytes, lanes, ..Default::default() };
        let first = figures(1_000_000, vec![lane("UDP", 1000, 100)]);
        let before = Before::of(&first);
        let second = figures(3_000_000, vec![lane("UDP", 2000, 110), lane("TCP", 0, 0), lane("UDP", 0, 0)]);
        let peer = of_peer(second, Some(before), 2.0);
        assert_eq!((peer.sent_bits_per_s, peer.received_bits_per_s), (8e6, 0.0));
        assert_eq!((peer.loss, peer.rtt_s), (Some(0.01), Some(0.024)));
        assert_eq!(peer.transport, "TCP; 2 UDP");
        let idle = of_peer(first.clone(), Some(before), 2.0);
        assert_eq!((idle.sent_bits_per_s, idle.loss), (0.0, Some(0.1)), "since the start");
        let new = of_peer(first, None, 0.0);
        assert_eq!(new.sent_bits_per_s, 0.0, "one look tells no rate");
        assert_eq!(of_peer(figures(0, Vec::new()), None, 1.0).loss, None);
    }
}
