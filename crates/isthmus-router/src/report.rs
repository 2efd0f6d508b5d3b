//! The router's state as text for programs: OpenMetrics and JSON.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use isthmus_mux::Counters as LaneCounters;
use isthmus_routes::{Destination, NextHop, Step};
use isthmus_wire::SubnetId;
use serde_json::{Value, json};

use crate::link::Link;
use crate::metrics::Counters;
use crate::router::Router;
use crate::settings::Settings;
use crate::wire::Sample;

/// Text that grows; writing to it cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{
        let _ = writeln!($out, $($arg)*);
    }};
}

/// A subnet's name, where the router stands on it or the map knows it.
pub(crate) fn name_of(settings: &Settings, subnet: SubnetId) -> String {
    let known = settings.table.map().subnet(subnet);
    known.map_or_else(|| subnet.0.to_string(), |subnet| subnet.name.clone())
}

/// A link's round-trip time, smoothed.
pub(crate) fn rtt_seconds(link: &Link) -> Option<f64> {
    Some(link.gauge.sample()?.rtt.as_secs_f64())
}

/// The figures that this router and others measured, in the format that `isthmus routes --measured` reads.
pub(crate) fn measured(router: &Router) -> String {
    let settings = router.settings();
    let map = settings.table.map();
    router.paths.lock().measured(map, &settings.known).to_text(map)
}

/// All counts in the OpenMetrics format.
pub(crate) fn metrics(router: &Router) -> String {
    let settings = router.settings();
    let mut out = String::new();
    let subnets = router.metrics.subnets();
    let mut family = |name: &str, kind: &str, help: &str, of: fn(&Counters) -> [&AtomicU64; 2]| {
        line!(out, "# TYPE isthmus_router_{name} {kind}\n# HELP isthmus_router_{name} {help}");
        let suffix = if kind == "counter" { "_total" } else { "" };
        for (id, counters) in &subnets {
            let subnet = name_of(&settings, *id);
            for (direction, count) in ["in", "out"].iter().zip(of(counters)) {
                let labels = format!("subnet=\"{subnet}\",direction=\"{direction}\"");
                line!(out, "isthmus_router_{name}{suffix}{{{labels}}} {}", count.load(Relaxed));
            }
        }
    };
    family("bytes", "counter", "Bytes relayed from (in) and to (out) a subnet.", |c| {
        [&c.bytes_in, &c.bytes_out]
    });
    family("lanes_opened", "counter", "Lanes relayed since the start.", |c| [&c.lanes_in, &c.lanes_out]);
    family("lanes", "gauge", "Lanes being relayed.", |c| [&c.lanes_in_now, &c.lanes_out_now]);
    line!(out, "# TYPE isthmus_router_refusals counter\n# HELP isthmus_router_refusals Lanes refused.");
    for (reason, count) in router.metrics.refusals() {
        let reason = format!("{reason:?}").to_lowercase();
        line!(out, "isthmus_router_refusals_total{{reason=\"{reason}\"}} {count}");
    }
    line!(out, "# TYPE isthmus_router_strangers counter");
    line!(out, "# HELP isthmus_router_strangers Connections closed because they did not speak the protocol.");
    line!(out, "isthmus_router_strangers_total {}", router.metrics.strangers.load(Relaxed));
    links(&mut out, &settings, &router.links.standing());
    out.push_str("# EOF\n");
    out
}

fn links(out: &mut String, settings: &Settings, links: &[Arc<Link>]) {
    line!(out, "# TYPE isthmus_router_links gauge\n# HELP isthmus_router_links Links that stand.");
    let mut groups: Vec<_> = links.iter().map(|link| (link.neighbour, link.subnet)).collect();
    groups.sort_unstable();
    let count = |group: &_| groups.iter().filter(|other| *other == group).count();
    let mut distinct = groups.clone();
    distinct.dedup();
    for group in &distinct {
        let (neighbour, subnet) = (group.0.0, name_of(settings, group.1));
        line!(out, "isthmus_router_links{{as=\"{neighbour}\",subnet=\"{subnet}\"}} {}", count(group));
    }
    let told: Vec<_> = links
        .iter()
        .filter_map(|link| {
            let (neighbour, subnet) = (link.neighbour.0, name_of(settings, link.subnet));
            let labels = format!(
                "as=\"{neighbour}\",subnet=\"{subnet}\",peer=\"{}\",transport=\"{}\",link=\"{}\"",
                link.peer.ip(),
                link.gauge.transport(),
                link.number.load(Relaxed)
            );
            let seen =
                LinkFigures { alive: link.lives(), path: link.gauge.sample()?, lanes: link.counters() };
            Some((labels, seen))
        })
        .collect();
    for Figure { name, kind, help, of } in &LINK_FIGURES {
        line!(out, "# TYPE isthmus_router_link_{name} {kind}");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            line!(out, "# UNIT isthmus_router_link_{name} {unit}");
        }
        line!(out, "# HELP isthmus_router_link_{name} {help}");
        let suffix = if *kind == "counter" { "_total" } else { "" };
        for (labels, seen) in &told {
            line!(out, "isthmus_router_link_{name}{suffix}{{{labels}}} {}", of(seen));
        }
    }
}

/// The figures of one link at one time.
struct LinkFigures {
    alive: bool,
    path: Sample,
    lanes: LaneCounters,
}

/// A metric that every link has.
struct Figure {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    of: fn(&LinkFigures) -> f64,
}

const LINK_FIGURES: [Figure; 10] = [
    Figure {
        name: "alive",
        kind: "gauge",
        help: "Whether the other end gives signs of life.",
        of: |seen| f64::from(u8::from(seen.alive)),
    },
    Figure {
        name: "rtt_seconds",
        kind: "gauge",
        help: "Round-trip time of a link, smoothed.",
        of: |seen| seen.path.rtt.as_secs_f64(),
    },
    Figure {
        name: "queued_bytes",
        kind: "gauge",
        help: "Bytes that a link has yet to send for the first time.",
        of: |seen| seen.path.unsent as f64,
    },
    Figure {
        name: "segments",
        kind: "counter",
        help: "Segments with data that a link sent.",
        of: |seen| seen.path.sent as f64,
    },
    Figure {
        name: "retransmissions",
        kind: "counter",
        help: "Segments that a link sent again.",
        of: |seen| seen.path.retransmitted as f64,
    },
    Figure {
        name: "frames_sent",
        kind: "counter",
        help: "Frames of lanes that a link sent.",
        of: |seen| seen.lanes.frames_out as f64,
    },
    Figure {
        name: "frames_received",
        kind: "counter",
        help: "Frames of lanes that came on a link.",
        of: |seen| seen.lanes.frames_in as f64,
    },
    Figure {
        name: "lanes_queued_bytes",
        kind: "gauge",
        help: "Bytes that lanes have written and a link has not taken.",
        of: |seen| seen.lanes.queued as f64,
    },
    Figure {
        name: "credit_bytes",
        kind: "gauge",
        help: "Bytes that lanes may send beyond what each has for itself.",
        of: |seen| seen.lanes.credit as f64,
    },
    Figure {
        name: "starved",
        kind: "counter",
        help: "Times that a lane had something to send and no credit for it.",
        of: |seen| seen.lanes.starved as f64,
    },
];

/// Where lanes from a subnet can go, and how: each subnet of this AS, and each other AS (as subnet 0).
pub(crate) fn targets(settings: &Settings, from: SubnetId) -> Vec<(Destination, NextHop)> {
    let map = settings.table.map();
    let inside = map.subnets().iter().filter(|s| !s.role.leads_out()).map(|s| (map.as_id(), s.id));
    let remotes = map.remotes().iter().map(|remote| (remote.id, SubnetId(0)));
    let hop = |target| Some((target, settings.table.next_hop(from, target).ok()?));
    inside.chain(remotes).filter_map(hop).collect()
}

/// Where lanes go from each of the router's subnets, as JSON.
pub(crate) fn routes(settings: &Settings) -> String {
    let mut routes = Vec::new();
    for place in &settings.places {
        for (target, hop) in targets(settings, place.subnet) {
            let next: Value = match hop.step {
                Step::Direct => json!("direct"),
                Step::Routers(routers) => {
                    json!({ "routers": routers.iter().map(|r| r.name.as_str()).collect::<Vec<_>>() })
                }
                Step::Gateways(at) => {
                    json!({ "gateways": at.iter().map(ToString::to_string).collect::<Vec<_>>() })
                }
            };
            let path: Vec<_> = hop.route.path.iter().map(|subnet| subnet.0).collect();
            let to = json!({ "as": target.0.0, "subnet": (target.1.0 != 0).then_some(target.1.0) });
            routes.push(json!({
                "from": place.subnet.0, "to": to, "next": next, "path": path, "cost": hop.route.cost,
            }));
        }
    }
    let report = json!({
        "version": 1, "as": settings.as_id().0, "router": settings.router.name,
        "metric": settings.config.metric.to_string(), "routes": routes,
    });
    format!("{report:#}\n")
}
