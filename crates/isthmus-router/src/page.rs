//! The status as an HTML page. It is one file without scripts and loads nothing else. It reloads itself every
//! [`AGAIN`] seconds.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use isthmus_routes::Step;
use isthmus_wire::SubnetId;
use isthmus_wire::frame::RefuseReason;

use crate::history::KEPT;
use crate::link::Link;
use crate::metrics::Counters;
use crate::report::{name_of, rtt_seconds, targets};
use crate::router::Router;
use crate::settings::{Carrier, Settings};

/// Time after which the browser reloads the page. Seconds.
const AGAIN: u32 = 5;
const STYLE: &str = include_str!("page.css");

/// A table with a heading. A column whose name starts with `#` holds numbers.
struct Table {
    html: String,
    columns: &'static [&'static str],
    rows: usize,
}

impl Table {
    fn new(title: &str, columns: &'static [&'static str]) -> Self {
        let mut html = format!("<h2>{title}</h2>\n<div class=scroll tabindex=0><table><thead><tr>");
        for column in columns {
            let number = column.starts_with('#');
            write(&mut html, format_args!("<th{}>{}", class(number), column.trim_start_matches('#')));
        }
        html.push_str("</thead><tbody>\n");
        Self { html, columns, rows: 0 }
    }

    fn row(&mut self, cells: &[&dyn Display]) {
        self.html.push_str("<tr>");
        for (column, cell) in self.columns.iter().zip(cells) {
            write(&mut self.html, format_args!("<td{}>{}", class(column.starts_with('#')), escaped(cell)));
        }
        self.html.push('\n');
        self.rows += 1;
    }

    /// A row whose last cell is `html`, which must be free of text from others.
    fn row_with(&mut self, cells: &[&dyn Display], html: &str) {
        self.row(cells);
        self.html.truncate(self.html.trim_end().len());
        write(&mut self.html, format_args!("<td>{html}\n"));
    }

    /// The finished table, or the text `empty` if it has no rows.
    fn finish(mut self, empty: &str) -> String {
        if self.rows == 0 {
            write(
                &mut self.html,
                format_args!("<tr><td class=none colspan={}>{empty}\n", self.columns.len()),
            );
        }
        self.html + "</tbody></table></div>\n"
    }
}

fn class(number: bool) -> &'static str {
    if number { " class=number" } else { "" }
}

/// Appends to `out`. Writing to a `String` cannot fail.
fn write(out: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(what);
}

/// Escapes HTML: names from a map or another router must not become markup.
fn escaped(what: impl Display) -> String {
    what.to_string().replace('&', "&amp;").replace('<', "&lt;")
}

/// A number of bytes with a decimal prefix.
fn amount(bytes: u64) -> String {
    let steps = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let bytes = bytes as f64;
    match steps.iter().find(|(step, _)| bytes >= *step) {
        Some((step, unit)) => format!("{:.1} {unit}", bytes / step),
        None => format!("{bytes} B"),
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// The page.
pub(crate) fn page(router: &Router) -> String {
    let settings = router.settings();
    let links = router.links.standing();
    let name = &settings.router.name;
    let mut out = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta http-equiv=refresh content={AGAIN}>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>{name}: Isthmus router</title>\n<style>\n{STYLE}</style>\n"
    );
    out.push_str(&header(router, &settings));
    out.push_str(&tiles(router, &settings, &links));
    out.push_str(&subnets(router, &settings));
    out.push_str(&link_table(&settings, &links));
    out.push_str(&routes(&settings));
    out.push_str(&refusals(router));
    write(
        &mut out,
        format_args!(
            "<footer><span>For programs: <a href=/metrics>metrics</a>, <a href=/routes>routes</a>, \
             <a href=/measured>measured</a>, <a href=/state>state</a>, <a href=/health>health</a></span> <span>Isthmus {}; this page looks again every {AGAIN} s\
             </span></footer>\n",
            env!("CARGO_PKG_VERSION")
        ),
    );
    out
}

fn header(router: &Router, settings: &Settings) -> String {
    let draining = router.draining.load(Relaxed);
    let (class, state) = if draining { ("state draining", "draining") } else { ("state", "running") };
    let map = settings.table.map();
    let (name, id, own) = (&settings.router.name, map.as_id().0, escaped(map.name()));
    let known = if own == format!("AS{id}") { String::new() } else { format!(" <small>{own}</small>") };
    format!(
        "<header><h1>Router {name} of AS {id}</h1><span class=\"{class}\">{state}</span>{known}</header>\n"
    )
}

fn tiles(router: &Router, settings: &Settings, links: &[Arc<Link>]) -> String {
    let counters = router.metrics.subnets();
    let relayed = counters.iter().map(|(_, count)| load(&count.bytes_in)).sum();
    let lanes: u64 = counters.iter().map(|(_, count)| load(&count.lanes_in)).sum();
    let refused: u64 = router.metrics.refusals().iter().map(|(_, count)| count).sum();
    let mut out = "<dl class=tiles>".to_owned();
    let mut tile = |what: &str, value: &dyn Display, more: &dyn Display| {
        write(&mut out, format_args!("<div><dt>{what}<dd>{value} <small>{more}</small></div>\n"));
    };
    tile("Lanes", &router.lanes(), &format_args!("of at most {}", settings.config.limits.lanes));
    tile("Links", &links.len(), &"that stand");
    tile("Relayed", &amount(relayed), &format_args!("lanes so far: {lanes}"));
    tile("Refused", &refused, &"lanes");
    tile("Strangers", &load(&router.metrics.strangers), &"connections");
    out + "</dl>\n"
}

fn subnets(router: &Router, settings: &Settings) -> String {
    let columns =
        &["Subnet", "Id", "Carries", "#Lanes in", "#Lanes out", "#Data in", "#Data out", "#Lanes so far"];
    let mut table = Table::new("Subnets", columns);
    for place in &settings.places {
        let count: &Counters = &router.metrics.of(place.subnet);
        let carries = match place.carrier {
            Carrier::Plain => "plain lanes",
            Carrier::Links => "encrypted links",
            Carrier::Closed => "nothing",
        };
        table.row(&[
            &place.name,
            &place.subnet.0,
            &carries,
            &load(&count.lanes_in_now),
            &load(&count.lanes_out_now),
            &amount(load(&count.bytes_in)),
            &amount(load(&count.bytes_out)),
            &(load(&count.lanes_in) + load(&count.lanes_out)),
        ]);
    }
    table.finish("none")
}

fn link_table(settings: &Settings, links: &[Arc<Link>]) -> String {
    let columns = &[
        "Neighbour",
        "Subnet",
        "Other end",
        "Transport",
        "Made",
        "Signs of life",
        "#Age",
        "#Lanes",
        "#Out",
        "#In",
        "#Loss",
        "#Round trip",
        "Last two minutes",
    ];
    let mut table = Table::new("Links", columns);
    let mut links: Vec<_> = links.iter().collect();
    links.sort_by_key(|link| (link.neighbour, link.subnet, link.gateway.is_none(), link.peer));
    for link in links {
        let rtt = rtt_seconds(link).map_or_else(String::new, |rtt| format!("{:.2} ms", rtt * 1e3));
        let history = link.history.lock();
        let (out, back) = history.rates();
        let loss = history.loss().map_or_else(String::new, |loss| format!("{:.2} %", loss * 100.0));
        let graph = graph(history.both());
        table.row_with(
            &[
                &format_args!("AS {}", link.neighbour.0),
                &name_of(settings, link.subnet),
                &link.peer,
                &link.gauge.transport().to_string().to_uppercase(),
                &if link.gateway.is_some() { "from here" } else { "from there" },
                &if link.lives() { "yes" } else { "none" },
                &age(link.since.elapsed()),
                &link.lanes.load(Relaxed),
                &rate(out),
                &rate(back),
                &loss,
                &rtt,
            ],
            &graph,
        );
    }
    let leads_out = settings.places.iter().any(|place| place.carrier == Carrier::Links);
    table.finish(if leads_out { "no link stands" } else { "this router stands on no way out" })
}

/// A small graph of rates (bits per second), oldest first. Its height is the greatest of them, which it names.
fn graph(rates: impl Iterator<Item = f64>) -> String {
    const HEIGHT: f64 = 24.0;
    let rates: Vec<f64> = rates.collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    if rates.len() < 2 {
        return String::new();
    }
    let first = KEPT - rates.len();
    let points = rates.iter().enumerate().map(|(at, rate)| {
        let height = if most > 0.0 { rate / most } else { 0.0 };
        format!("{},{:.1}", first + at, HEIGHT - 1.0 - (HEIGHT - 2.0) * height)
    });
    let points: Vec<_> = points.collect();
    format!(
        "<svg class=graph viewBox=\"0 0 {KEPT} {HEIGHT}\" preserveAspectRatio=none role=img \
         aria-label=\"rate, at most {most}\"><polyline points=\"{points}\"/></svg> <small>to {most}</small>",
        most = rate(most),
        points = points.join(" "),
    )
}

/// A number of bits per second with a decimal prefix.
fn rate(bits: f64) -> String {
    let steps = [(1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")];
    match steps.iter().find(|(step, _)| bits >= *step) {
        Some((step, unit)) => format!("{:.1} {unit}", bits / step),
        None => format!("{bits:.0} b/s"),
    }
}

/// A time in its two largest units.
fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

fn routes(settings: &Settings) -> String {
    let metric = settings.config.metric;
    let columns = &["From", "To", "Next", "Way", "#Cost"];
    let mut table = Table::new(&format!("Routes by {metric}"), columns);
    for place in &settings.places {
        for (target, hop) in targets(settings, place.subnet) {
            // Targets on the same subnet need no router, and an AS is no transit between others.
            let away = place.carrier == Carrier::Links && target.1 == SubnetId(0);
            if target.1 == place.subnet || away {
                continue;
            }
            let to = match target.1 {
                SubnetId(0) => format!("AS {}", target.0.0),
                subnet => name_of(settings, subnet),
            };
            let next = match &hop.step {
                Step::Direct => "the endpoint itself".to_owned(),
                Step::Routers(routers) => joined(routers.iter().map(|router| &router.name)),
                Step::Gateways(gateways) => joined(gateways),
            };
            let way = hop.route.path.iter().map(|subnet| name_of(settings, *subnet)).collect::<Vec<_>>();
            table.row(&[&place.name, &to, &next, &way.join(" → "), &hop.route.cost]);
        }
    }
    table.finish("none")
}

fn joined(what: impl IntoIterator<Item = impl Display>) -> String {
    what.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

fn refusals(router: &Router) -> String {
    let mut table = Table::new("Refused lanes", &["Reason", "Look at", "#Lanes"]);
    for (reason, count) in router.metrics.refusals() {
        table.row(&[&format_args!("{reason:?}"), &remedy(reason), &count]);
    }
    table.finish("none so far")
}

/// Advice on what to check for this reason; the guide says the same.
fn remedy(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::Version => "the releases of Isthmus at both ends",
        RefuseReason::NoRoute => "the target's AS and subnet, and this router's map",
        RefuseReason::Denied => "admits, carries, plain and targets; the endpoint's AS and subnet",
        RefuseReason::Absent => "whether the target's process still runs",
        RefuseReason::Unreached => "the next router or the link: firewall, certificates",
        RefuseReason::Loop => "maps of two routers that send a lane to each other",
        RefuseReason::Full => "limits.lanes and limits.memory",
        RefuseReason::Plain => "the endpoint's tls, and whether this router is among its routers",
        RefuseReason::Stranger | RefuseReason::Closed | RefuseReason::Subnet | RefuseReason::Unproved => {
            "the endpoint"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_become_markup() {
        let mut table = Table::new("T", &["A", "#B"]);
        table.row(&[&"<script>", &"a&b"]);
        let html = table.finish("none");
        assert!(html.contains("<td>&lt;script><td class=number>a&amp;b"), "{html}");
        assert!(Table::new("T", &["A", "B"]).finish("nothing").contains("colspan=2>nothing"));
    }

    #[test]
    fn a_graph_is_as_high_as_its_greatest_rate_and_ends_at_the_right() {
        let html = graph([0.0, 5e6, 1e7].into_iter());
        assert!(html.contains("points=\"117,23.0 118,12.0 119,1.0\""), "{html}");
        assert!(html.contains("at most 10.0 Mb/s"), "{html}");
        assert_eq!(graph([1.0].into_iter()), "", "one look is no graph");
        assert!(graph([0.0; 2].into_iter()).contains("118,23.0 119,23.0"));
        let mut table = Table::new("T", &["A", "B"]);
        table.row_with(&[&"a<b"], "<svg/>");
        assert!(table.finish("none").contains("<td>a&lt;b<td><svg/>\n"));
    }

    #[test]
    fn ages_and_rates_are_read_easily() {
        let said = [59, 61, 3_700, 90_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(said, ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
        assert_eq!([0.0, 1500.0, 9.41e9].map(rate), ["0 b/s", "1.5 kb/s", "9.4 Gb/s"]);
    }

    #[test]
    fn amounts_are_read_easily() {
        let said: Vec<_> = [0, 999, 1000, 1_234_567, 5_000_000_000_000].map(amount).to_vec();
        assert_eq!(said, ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]);
    }
}
