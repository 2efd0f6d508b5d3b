//! The router's state for programs: metrics and JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use isthmus_metrics::{Kind, Labels, Metrics, limited};
use isthmus_mux::Counters as LaneCounters;
use isthmus_routes::{Destination, NextHop, Step};
use isthmus_wire::SubnetId;
use serde_json::{Value, json};

use crate::link::Link;
use crate::links::Links;
use crate::metrics::Counters;
use crate::router::Router;
use crate::settings::Settings;
use crate::wire::Sample;

/// A subnet's name, if the router is on it or the map knows it.
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

/// All counts and measurements, for Prometheus.
pub(crate) fn metrics(router: &Router) -> Metrics {
    let settings = router.settings();
    let mut metrics = Metrics::new("isthmus_router");
    let subnets = router.metrics.subnets();
    let mut family = |name, kind, help, of: fn(&Counters) -> [&AtomicU64; 2]| {
        let rows = subnets.iter().flat_map(|(id, counters)| {
            let subnet = name_of(&settings, *id);
            ["in", "out"].into_iter().zip(of(counters)).map(move |(direction, count)| {
                let labels = vec![("subnet", subnet.clone()), ("direction", direction.to_owned())];
                (labels, count.load(Relaxed) as f64)
            })
        });
        metrics.add(name, kind, help, rows);
    };
    family("bytes", Kind::Counter, "Bytes relayed from (in) and to (out) a subnet.", |c| {
        [&c.bytes_in, &c.bytes_out]
    });
    family("lanes_opened", Kind::Counter, "Lanes relayed since the start.", |c| [&c.lanes_in, &c.lanes_out]);
    family("lanes", Kind::Gauge, "Lanes being relayed.", |c| [&c.lanes_in_now, &c.lanes_out_now]);
    let refusals = router
        .metrics
        .refusals()
        .into_iter()
        .map(|(reason, count)| (vec![("reason", format!("{reason:?}").to_lowercase())], count as f64));
    metrics.add("refusals", Kind::Counter, "Lanes refused.", refusals);
    metrics.add(
        "strangers",
        Kind::Counter,
        "Connections closed because they did not speak the protocol.",
        [(Labels::new(), router.metrics.strangers.load(Relaxed) as f64)],
    );
    metrics.add_certificate(settings.tls.as_ref().and_then(|tls| tls.trust.expires));
    links(&mut metrics, &settings, &router.links.standing());
    metrics
}

fn links(metrics: &mut Metrics, settings: &Settings, links: &[Arc<Link>]) {
    let mut groups: BTreeMap<_, usize> = BTreeMap::new();
    for link in links {
        *groups.entry((link.neighbour, link.subnet)).or_default() += 1;
    }
    let groups = groups.into_iter().map(|((neighbour, subnet), count)| {
        (vec![("as", neighbour.0.to_string()), ("subnet", name_of(settings, subnet))], count as f64)
    });
    metrics.add("links", Kind::Gauge, "Links that stand.", groups);
    let told = links.iter().filter_map(|link| {
        let labels = vec![
            ("as", link.neighbour.0.to_string()),
            ("subnet", name_of(settings, link.subnet)),
            ("peer", link.peer.ip().to_canonical().to_string()),
            ("transport", link.gauge.transport().to_string()),
            ("link", link.number.load(Relaxed).to_string()),
        ];
        Some((labels, LinkFigures::of(link)?))
    });
    // The links that stand longest come first, so that a new link does not take an older one's labels.
    let told = limited(told.collect(), LinkFigures::sum);
    for Figure { name, kind, help, of } in &LINK_FIGURES {
        let rows = told.iter().filter_map(|(labels, seen)| Some((labels.clone(), of(seen)?)));
        metrics.add(name, *kind, help, rows);
    }
}

/// The figures of one link at one time, or the sum of several links.
struct LinkFigures {
    alive: bool,
    /// Seconds; `None` of several links.
    rtt: Option<f64>,
    /// Seconds; `None` of several links.
    age: Option<f64>,
    path: Sample,
    lanes: LaneCounters,
    lanes_now: usize,
}

impl LinkFigures {
    /// `None` before the first measurement.
    fn of(link: &Link) -> Option<Self> {
        let path = link.gauge.sample()?;
        Some(Self {
            alive: link.lives(),
            rtt: Some(path.rtt.as_secs_f64()),
            age: Some(link.since.elapsed().as_secs_f64()),
            path,
            lanes: link.counters(),
            lanes_now: link.lanes.load(Relaxed),
        })
    }

    fn sum(of: Vec<Self>) -> Self {
        let mut sum = Self {
            alive: true,
            rtt: None,
            age: None,
            path: Sample::default(),
            lanes: LaneCounters::default(),
            lanes_now: 0,
        };
        for one in of {
            sum.alive &= one.alive;
            sum.lanes_now += one.lanes_now;
            sum.path.acknowledged += one.path.acknowledged;
            sum.path.received += one.path.received;
            sum.path.unsent += one.path.unsent;
            sum.path.sent += one.path.sent;
            sum.path.retransmitted += one.path.retransmitted;
            sum.lanes.frames_out += one.lanes.frames_out;
            sum.lanes.frames_in += one.lanes.frames_in;
            sum.lanes.queued += one.lanes.queued;
            sum.lanes.credit += one.lanes.credit;
            sum.lanes.starved += one.lanes.starved;
        }
        sum
    }
}

/// A metric that every link has.
struct Figure {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&LinkFigures) -> Option<f64>,
}

const LINK_FIGURES: [Figure; 14] = [
    Figure {
        name: "link_alive",
        kind: Kind::Gauge,
        help: "Whether the other end gives signs of life.",
        of: |seen| Some(f64::from(u8::from(seen.alive))),
    },
    Figure {
        name: "link_age_seconds",
        kind: Kind::Gauge,
        help: "Time since a link came up.",
        of: |seen| seen.age,
    },
    Figure {
        name: "link_rtt_seconds",
        kind: Kind::Gauge,
        help: "Round-trip time of a link, smoothed.",
        of: |seen| seen.rtt,
    },
    Figure {
        name: "link_lanes",
        kind: Kind::Gauge,
        help: "Lanes on a link.",
        of: |seen| Some(seen.lanes_now as f64),
    },
    Figure {
        name: "link_sent_bytes",
        kind: Kind::Counter,
        help: "Bytes of a link that the other end has acknowledged.",
        of: |seen| Some(seen.path.acknowledged as f64),
    },
    Figure {
        name: "link_received_bytes",
        kind: Kind::Counter,
        help: "Bytes that came on a link.",
        of: |seen| Some(seen.path.received as f64),
    },
    Figure {
        name: "link_queued_bytes",
        kind: Kind::Gauge,
        help: "Bytes that a link has yet to send for the first time.",
        of: |seen| Some(seen.path.unsent as f64),
    },
    Figure {
        name: "link_segments",
        kind: Kind::Counter,
        help: "Segments with data that a link sent.",
        of: |seen| Some(seen.path.sent as f64),
    },
    Figure {
        name: "link_retransmissions",
        kind: Kind::Counter,
        help: "Segments that a link sent again.",
        of: |seen| Some(seen.path.retransmitted as f64),
    },
    Figure {
        name: "link_frames_sent",
        kind: Kind::Counter,
        help: "Frames of lanes that a link sent.",
        of: |seen| Some(seen.lanes.frames_out as f64),
    },
    Figure {
        name: "link_frames_received",
        kind: Kind::Counter,
        help: "Frames of lanes that came on a link.",
        of: |seen| Some(seen.lanes.frames_in as f64),
    },
    Figure {
        name: "link_lanes_queued_bytes",
        kind: Kind::Gauge,
        help: "Bytes that lanes have written and a link has not taken.",
        of: |seen| Some(seen.lanes.queued as f64),
    },
    Figure {
        name: "link_credit_bytes",
        kind: Kind::Gauge,
        help: "Bytes that lanes may send beyond what each has for itself.",
        of: |seen| Some(seen.lanes.credit as f64),
    },
    Figure {
        name: "link_starved",
        kind: Kind::Counter,
        help: "Times that a lane had something to send and no credit for it.",
        of: |seen| Some(seen.lanes.starved as f64),
    },
];

/// The state for `isthmus top`: the links with their rates, and what the router relays.
pub(crate) fn state(router: &Router) -> Value {
    let settings = router.settings();
    let standing = router.links.standing();
    let link = |link: &Arc<Link>| {
        let (sample, history) = (link.gauge.sample(), link.history.lock());
        let (out, back) = history.rates();
        json!({
            "as": link.neighbour.0,
            "subnet": name_of(&settings, link.subnet),
            "peer": link.peer.to_string(),
            "transport": link.gauge.transport().to_string(),
            "number": link.number.load(Relaxed),
            "dialled": link.gateway.is_some(),
            "alive": link.lives(),
            "age_s": link.since.elapsed().as_secs_f64(),
            "lanes": link.lanes.load(Relaxed),
            "sent_bytes": sample.map(|sample| sample.acknowledged),
            "received_bytes": sample.map(|sample| sample.received),
            "sent_bits_per_s": out,
            "received_bits_per_s": back,
            "rtt_s": sample.map(|sample| sample.rtt.as_secs_f64()),
            "loss": history.loss(),
            "why": Links::why(&standing, link),
        })
    };
    json!({
        "version": 1,
        "kind": "router",
        "name": settings.router.name,
        "as": settings.as_id().0,
        "pid": std::process::id(),
        "draining": router.is_draining(),
        "lanes": router.lanes(),
        "links": standing.iter().map(link).collect::<Vec<_>>(),
    })
}

/// The next hop from a subnet to each subnet of this AS, and to each other AS (as subnet 0).
pub(crate) fn targets(settings: &Settings, from: SubnetId) -> Vec<(Destination, NextHop)> {
    let map = settings.table.map();
    let inside = map.subnets().iter().filter(|s| !s.role.leads_out()).map(|s| (map.as_id(), s.id));
    let remotes = map.remotes().iter().map(|remote| (remote.id, SubnetId(0)));
    let hop = |target| Some((target, settings.table.next_hop(from, target).ok()?));
    inside.chain(remotes).filter_map(hop).collect()
}

/// The routes of lanes from each of the router's subnets, as JSON.
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
