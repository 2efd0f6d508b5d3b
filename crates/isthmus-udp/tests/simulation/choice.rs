//! The choice between TCP and UDP: `isthmus-path` decides, over simulated links, what carries bulk data to a host.
//!
//! A UDP stream and TCP lanes cross the same link. What they measure is the evidence, as the shell of the engine feeds it,
//! and they obey the plan. TCP lanes are streams with the congestion control that the plan names, and a policer of UDP
//! does not see them. `choice.txt` holds one row per link of the catalogue. Where TCP lanes alone carry more, the choice
//! must have found out within seconds. `ISTHMUS_GOLDEN=write cargo test -p isthmus-udp --test simulation choice` writes
//! the table anew; `ISTHMUS_WILD=jitter` runs the rows whose names contain that.

use std::fmt::Write;
use std::net::IpAddr;

use isthmus_path::losses::Trace;
use isthmus_path::streams::Streams;
use isthmus_path::{Bulk, Congestion, Finding, Hosts, LaneSample, Policy, UdpLook, UdpWork, Weakness};
use isthmus_udp::{Composition, Counters, Micros};

use crate::bbr::Bbr;
use crate::floors::Better;
use crate::golden::compare;
use crate::net::{Flow, Net, address, config};
use crate::wild::{Row, rows};

const TABLE: &str = "tests/simulation/choice.txt";
/// Length of a run, and its end, which is measured. Microseconds. A trial of TCP takes up to ten seconds.
const LASTS_US: Micros = 14_000_000;
const COUNTS_US: Micros = 4_000_000;
/// Time between two looks, at UDP lanes and at TCP lanes. Microseconds.
const UDP_LOOK_US: Micros = 250_000;
const TCP_LOOK_US: Micros = 100_000;
/// The choice must carry at least this fraction of what the better protocol carries alone.
const ENOUGH: f64 = 0.94;
/// The setting `udp_from`. Microseconds.
const UDP_FROM_US: Micros = 2_000;

/// A TCP lane.
struct Lane {
    port: usize,
    flow: Flow,
    trace: Trace,
    read: u64,
}

/// A host with bulk data for another one.
struct Site {
    net: Net,
    hosts: Hosts,
    host: IpAddr,
    udp: Option<(Flow, Counters)>,
    lanes: Vec<Lane>,
    is_lossy: bool,
    /// What was found, and when. Seconds.
    found: Vec<(f64, Finding)>,
}

impl Site {
    /// Lanes over this link; without `may_choose` by TCP alone.
    fn new(row: &Row, may_choose: bool) -> Self {
        let path = row.path(1);
        let count = Streams::new(32).first(row.rtt_ms() * 1_000);
        let mut net = Net::new(&path, (0..2 + 2 * count).map(|_| config(&path)).collect());
        net.tcp_from = Some(2);
        let host = address(1).ip();
        let mut hosts = Hosts::new(Policy { may_choose });
        let mut udp = None;
        if may_choose {
            hosts.learn(net.now, host, Finding::Far { rtt_us: row.rtt_ms() * 1_000 });
            udp = Some((crate::neighbours::begin(&mut net, 0, "rate"), Counters::default()));
        }
        Self { net, hosts, host, udp, lanes: Vec::new(), is_lossy: false, found: Vec::new() }
    }

    /// Opens the TCP lanes.
    fn dial(&mut self) {
        for port in (2..self.net.ports.len()).step_by(2) {
            let flow = Flow::new(&mut self.net, port, port + 1, 1 << 40, false);
            self.lanes.push(Lane { port, flow, trace: Trace::default(), read: 0 });
        }
        let rtt_us =
            self.net.ports[0].stream(self.lanes[0].flow.stream()).and_then(|stream| stream.rtt_least_us());
        self.control(rtt_us);
    }

    /// Gives the TCP lanes the congestion control of the plan.
    fn control(&mut self, rtt_us: Option<Micros>) {
        let plan = self.hosts.plan(self.net.now, self.host);
        let congestion = plan.congestion(rtt_us).0;
        for lane in &self.lanes {
            let (now, id) = (self.net.now, lane.flow.stream());
            match congestion {
                Congestion::Bbr => {
                    self.net.ports[lane.port].with(now, id, |stream| stream.control_by(Box::new(Bbr::new())));
                }
                Congestion::Cubic => {
                    let cubic: Composition = "cubic".parse().expect("valid");
                    self.net.ports[lane.port].compose(now, id, cubic);
                }
            }
        }
    }

    fn look_at_udp(&mut self) {
        let Some((flow, before)) = &mut self.udp else { return };
        let status = self.net.ports[0].stream(flow.stream()).expect("it lives").status();
        let counters = status.counters;
        let lost = |counters: &Counters| counters.packets_lost.saturating_sub(counters.packets_late);
        let work = UdpWork {
            bytes: counters.bytes_fresh - before.bytes_fresh,
            packets: counters.packets_sent - before.packets_sent,
            lost: lost(&counters).saturating_sub(lost(before)),
            is_held: status.is_policed && status.unsent > 0,
            ..UdpWork::default()
        };
        *before = counters;
        let rtt_us = status.rtt_least_us.unwrap_or(0);
        self.hosts.on_udp(self.net.now, self.host, UdpLook { rtt_us, packet: status.payload, work });
    }

    fn look_at_tcp(&mut self) {
        let (now, host) = (self.net.now, self.host);
        let mut least_us = None;
        for lane in &mut self.lanes {
            let status = self.net.ports[lane.port].stream(lane.flow.stream()).expect("it lives").status();
            let Counters { packets_sent: packets, packets_lost: resent, .. } = status.counters;
            let Some(rtt_us) = status.rtt_us else { continue };
            let arrived = lane.flow.read - std::mem::replace(&mut lane.read, lane.flow.read);
            self.hosts.on_tcp_bulk(now, host, arrived, status.unsent == 0);
            let sample = LaneSample { rtt_us, packets, resent, ..LaneSample::default() };
            self.hosts.on_tcp_sample(now, host, &mut lane.trace, sample);
            least_us = status.rtt_least_us.into_iter().chain(least_us).min();
        }
        if self.hosts.plan(now, host).is_lossy && !std::mem::replace(&mut self.is_lossy, true) {
            self.control(least_us);
            self.hosts.on_weakness(now, host, Weakness::Lossy);
        }
    }

    /// Obeys the plan, and lets the time pass to the next event.
    fn step(&mut self, until: Micros) {
        let began = self.net.now;
        let bulk = if self.udp.is_some() { self.hosts.plan(began, self.host).bulk } else { Bulk::None };
        if bulk != Bulk::All && self.lanes.is_empty() {
            self.dial();
        }
        if bulk != Bulk::None {
            self.udp.iter_mut().for_each(|(flow, _)| flow.feed(&mut self.net));
        }
        if bulk != Bulk::All {
            self.lanes.iter_mut().for_each(|lane| lane.flow.feed(&mut self.net));
        }
        self.net.step(until);
        let flows =
            self.udp.iter_mut().map(|(flow, _)| flow).chain(self.lanes.iter_mut().map(|lane| &mut lane.flow));
        for flow in flows {
            flow.on_event(&mut self.net);
            flow.drain(&mut self.net);
        }
        let is_due = |every: Micros| self.net.now / every > began / every;
        let (udp_is_due, tcp_is_due) = (is_due(UDP_LOOK_US), is_due(TCP_LOOK_US));
        if udp_is_due {
            self.look_at_udp();
        }
        if tcp_is_due {
            self.look_at_tcp();
        }
        while let Some(news) = self.hosts.poll_news() {
            self.found.push((self.net.now as f64 / 1e6 - 1.0, news.why));
        }
    }

    fn arrived(&self) -> u64 {
        let udp = self.udp.as_ref().map_or(0, |(flow, _)| flow.read);
        udp + self.lanes.iter().map(|lane| lane.flow.read).sum::<u64>()
    }

    /// Runs for [`LASTS_US`]; returns the rate in the last [`COUNTS_US`]. Mb/s.
    fn run(&mut self) -> f64 {
        let until = self.net.now + LASTS_US;
        let mut before = 0;
        while self.net.now < until {
            self.step(until);
            if self.net.now < until - COUNTS_US {
                before = self.arrived();
            }
        }
        (self.arrived() - before) as f64 * 8.0 / COUNTS_US as f64
    }
}

#[test]
fn what_carries_more_is_found_within_seconds() {
    let mut text = format!(
        "Mb/s in the last {} s of {} s over links of 1 Gb/s: with the choice between TCP and UDP, and with TCP lanes\n\
         alone; and what was found.\n\n{:<34} {:>5} {:>6} {:>8} {:>8}  found (s)",
        COUNTS_US / 1_000_000,
        LASTS_US / 1_000_000,
        "link",
        "MTU",
        "RTT ms",
        "choice",
        "TCP",
    );
    let only = std::env::var("ISTHMUS_WILD").ok();
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| only.as_ref().is_none_or(|only| row.link.name.contains(only))) {
        let (name, mtu, rtt_ms) = (&row.link.name, row.link.spec.mtu, row.rtt_ms());
        assert!(rtt_ms * 1_000 >= UDP_FROM_US, "UDP is the choice at first");
        let mut site = Site::new(row, true);
        let (choice, tcp) = (site.run(), Site::new(row, false).run());
        // Bytes that waited behind a gap count when it is filled, so for a while more seem to arrive than the link carries.
        let most = (row.carries(false, LASTS_US) - row.carries(false, LASTS_US - COUNTS_US)) * 8.0
            / COUNTS_US as f64;
        let found: Vec<_> = site.found.iter().skip(1).map(|(at, why)| format!("{at:.1}: {why}")).collect();
        let _ =
            write!(text, "\n{name:<34} {mtu:>5} {rtt_ms:>6} {choice:>8.0} {tcp:>8.0}  {}", found.join("; "));
        if choice < ENOUGH * tcp.min(most) {
            wrong.push(format!("{name}, MTU {mtu}: {choice:.0} Mb/s, by TCP {tcp:.0}"));
        }
    }
    text.push('\n');
    println!("{text}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    if only.is_none() {
        compare(TABLE, &text, &[Better::Same]);
    }
}
