//! The tables and the page of the collectives, made from samples alone.

use std::fmt::Write as _;

use serde_json::Value;

use super::{CALLS, Call, Layout, MIB, ORDERS, WHOS};
use crate::link::EmulatedLink;
use crate::papers::chart::bars_by;
use crate::papers::page::{self, Block, Part};
use crate::papers::sample::Taken;
use crate::papers::section::{Told, trouble};
use crate::plot::Look;
use crate::sample::median;
use crate::table::{Grid, distinct};

const TITLE: &str = "Collectives across sites";

/// The measurement that a row shows.
#[derive(Clone, Copy)]
struct Row {
    call: &'static Call,
    bytes: u64,
    is_nonblocking: bool,
}

/// What a call is named in results: non-blocking forms have an i before the name.
fn name_of(call: &Call, is_nonblocking: bool) -> String {
    format!("{}{}", if is_nonblocking { "i" } else { "" }, call.name)
}

impl Row {
    fn name(&self) -> String {
        name_of(self.call, self.is_nonblocking)
    }

    fn title(&self) -> String {
        let Call { is_row, is_each, .. } = *self.call;
        let name = self.name();
        let length = match self.bytes {
            0 => String::new(),
            bytes if bytes < MIB => format!(" {bytes} B"),
            bytes => format!(" {} MiB", bytes / MIB),
        };
        let more = if is_row {
            ", in a row"
        } else if is_each {
            " each"
        } else {
            ""
        };
        format!("{}{}{length}{more}", name[..1].to_uppercase(), &name[1..])
    }
}

/// The samples of one link and layout.
struct Measured<'a> {
    link: EmulatedLink,
    layout: Layout,
    taken: Vec<&'a Taken>,
}

impl Measured<'_> {
    fn results(&self) -> impl Iterator<Item = (&Taken, &serde_json::Map<String, Value>)> {
        self.taken.iter().flat_map(|sample| sample.results.iter().map(move |result| (*sample, result)))
    }

    /// The measurements, in the order of [`CALLS`].
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let forms = [false, true].into_iter().flat_map(|form| CALLS.iter().map(move |call| (call, form)));
        for (call, is_nonblocking) in forms {
            let name = name_of(call, is_nonblocking);
            let of = |(_, result): (&Taken, &serde_json::Map<String, Value>)| {
                let bytes = result.get("bytes")?.as_u64()?;
                let is = result.get("call")?.as_str()? == name && (bytes < MIB) == call.is_row;
                is.then_some(bytes)
            };
            let found = distinct(&self.results().filter_map(of).collect::<Vec<_>>(), |found| *found);
            rows.extend(found.into_iter().map(|bytes| Row { call, bytes, is_nonblocking }));
        }
        rows
    }

    /// Times of all calls, and whether the emulator was late in any. Seconds.
    fn times(&self, row: Row, order: &str, who: &str) -> (Vec<f64>, bool) {
        let name = row.name();
        let texts = [("call", name.as_str()), ("order", order), ("who", who)];
        let of = |(sample, result): (&Taken, &serde_json::Map<String, Value>)| {
            let is =
                texts.iter().all(|(name, value)| result.get(*name).and_then(Value::as_str) == Some(value));
            let is = is && result.get("bytes").and_then(Value::as_u64) == Some(row.bytes);
            let seconds = result.get("seconds")?.as_f64()?;
            is.then(|| (seconds, sample.spoiled()))
        };
        let found: Vec<_> = self.results().filter_map(of).collect();
        (found.iter().map(|(seconds, _)| *seconds).collect(), found.iter().any(|(_, spoiled)| *spoiled))
    }

    fn orders(&self) -> Vec<&'static str> {
        let has = |order: &&str| {
            self.results().any(|(_, result)| result.get("order").and_then(Value::as_str) == Some(order))
        };
        ORDERS.into_iter().filter(has).collect()
    }

    fn title(&self) -> String {
        format!("{}, {}, {}", self.link.rate, self.link.title(), self.layout)
    }

    fn allowed_s(&self, row: Row) -> f64 {
        row.call.allowed_s(row.bytes, self.layout, &self.link)
    }

    /// Table of medians, in round trips.
    fn grid(&self) -> Grid {
        let orders = self.orders();
        let columns = || orders.iter().flat_map(|order| WHOS.iter().map(move |who| (*order, *who)));
        let name = |(order, (who, title)): (&str, (&str, &str))| {
            if who == WHOS[0].0 { format!("{order}: {title}") } else { title.to_owned() }
        };
        let rtt_s = self.link.rtt_s();
        let line = |row: Row| {
            let cell = |(order, (who, _)): (&str, (&str, &str))| {
                let (times, is_spoiled) = self.times(row, order, who);
                let mark = if is_spoiled { "*" } else { "" };
                median(times.into_iter())
                    .map_or_else(|| "-".to_owned(), |middle| format!("{:.2}{mark}", middle / rtt_s))
            };
            let allowed = self.allowed_s(row) / rtt_s;
            let cells: Vec<_> = columns().map(cell).collect();
            [vec![row.title()], cells, vec![format!("{allowed:.2}")]].concat()
        };
        let head: Vec<_> = columns().map(name).collect();
        Grid {
            title: self.title(),
            head: [vec!["round trips".to_owned()], head, vec!["allowed".to_owned()]].concat(),
            rows: self.rows().into_iter().map(line).collect(),
        }
    }

    /// Bars: the time that the path allows divided by the time taken, with ranks in this order.
    fn picture(&self, order: &str) -> Block {
        let names = WHOS.map(|(_, title)| title.to_owned());
        let mut bars = Vec::new();
        for row in self.rows() {
            let allowed_s = self.allowed_s(row);
            for (who, title) in WHOS {
                let (times, _) = self.times(row, order, who);
                if !times.is_empty() {
                    let shares = times.iter().map(|seconds| allowed_s / seconds).collect();
                    bars.push((format!("{}, {title}", row.title()), shares));
                }
            }
        }
        let title = format!("{}, {order}: time allowed / time taken", self.title());
        let look = |name: &str| Look::of(&names, name.rsplit(", ").next().unwrap_or(name));
        bars_by("", &title, look, &bars)
    }
}

fn measured(taken: &[Taken]) -> Vec<Measured<'_>> {
    let of = |(link, layout): (EmulatedLink, Layout)| Measured {
        link,
        layout,
        taken: taken
            .iter()
            .filter(|sample| sample.link == Some(link) && layout_of(sample) == layout)
            .collect(),
    };
    let places = distinct(taken, |sample| sample.link.map(|link| (link, layout_of(sample))));
    places.into_iter().flatten().map(of).collect()
}

fn layout_of(sample: &Taken) -> Layout {
    let fact = |name: &str, otherwise| sample.fact(name).parse::<u32>().unwrap_or(otherwise);
    // Older samples are all of two sites.
    let sites = fact("sites", 2).max(1);
    Layout { sites, each: fact("ranks", 0) / sites }
}

/// Tables as text for a terminal.
pub(super) fn text(taken: &[Taken]) -> String {
    let grids: Vec<_> = measured(taken).iter().map(|one| one.grid().text()).collect();
    grids.join("\n") + "\nMedians, in round trips. * the emulator was late itself; - no result.\n"
}

/// All calls' times as a file for `docs/measured/`, whose columns tools/measured.py knows. `from` is the command.
pub(super) fn csv(taken: &[Taken], from: &str) -> String {
    let list = |of: &dyn Fn(&Taken) -> String| distinct(taken, of).join(", ");
    let mut out = format!(
        "# {from}; round trips\n# Isthmus {}, kernel {}\nRanks,Path,Call,By,unit,mark,kept,runs,values\n",
        list(&|sample| sample.version.clone()),
        list(&|sample| sample.kernel.clone())
    );
    for one in measured(taken) {
        let rtt_s = one.link.rtt_s();
        for row in one.rows() {
            // Titles of calls and links have commas in them.
            let begin = format!("{},\"{}\",\"{}\"", one.layout, one.link.title(), row.title());
            for order in one.orders() {
                for (who, title) in WHOS {
                    let (times, is_spoiled) = one.times(row, order, who);
                    let mark = if is_spoiled { "*" } else { "" };
                    let values: Vec<_> = times.iter().map(|time| format!("{:.3}", time / rtt_s)).collect();
                    let (kept, runs) =
                        if values.is_empty() { ("none", 0) } else { ("samples", values.len()) };
                    let values = values.join(" ");
                    let _ = writeln!(out, "{begin},\"{order}, {title}\",,{mark},{kept},{runs},{values}");
                }
            }
            let _ = writeln!(out, "{begin},allowed,,,printed,,{:.2}", one.allowed_s(row) / rtt_s);
        }
    }
    out
}

pub(super) fn html(taken: &[Taken]) -> String {
    let mut parts = vec![circumstances(taken)];
    for one in measured(taken) {
        let mut blocks = vec![Block::Table(Grid { title: String::new(), ..one.grid() })];
        blocks.extend(one.orders().into_iter().map(|order| one.picture(order)));
        parts.push(Part { title: one.title(), blocks });
    }
    let blocks = trouble(&Told::new(taken.iter().collect()));
    parts.push(Part { title: String::new(), blocks });
    page::html(TITLE, &parts)
}

/// How the figures were measured, and how to read them.
fn circumstances(taken: &[Taken]) -> Part {
    let list = |of: &dyn Fn(&Taken) -> String| distinct(taken, of).join("; ");
    let loads = taken.iter().map(|sample| sample.load);
    let (least, most) = loads.fold((f64::MAX, 0.0), |(a, b), load| (f64::min(a, load), f64::max(b, load)));
    let items = vec![
        format!("isthmus {}; Linux {}; {}.", list(&|s| s.version.clone()), list(&|s| s.kernel.clone()), list(&|s| s.host.clone())),
        format!(
            "{}, each number being a site. In blocks each site has one run of ranks; alternating, neighbours are of different sites.",
            list(&|s| layout_of(s).to_string())
        ),
        format!(
            "Figures are medians of {} calls, in round trips. A call ends when its last rank returns. A call is not repeated further once it has taken a minute.",
            list(&|s| s.fact("calls").to_owned())
        ),
        "`library` and `without` are MPICH over Isthmus, by the library and by MPICH's own collectives, called in turn by one job. \
         `stock tcp` is the same MPICH over libfabric's `tcp;ofi_rxm`."
            .to_owned(),
        "`allowed` is half a round trip, and the time that full packets at the link's rate take for the bytes that a site's link must carry one way, losses taken off. \
         Bars show the allowed time divided by the time taken: 1 is the best possible; dots are the calls."
            .to_owned(),
        format!(
            "Both sites, all ranks and the emulator share the processors; {least:.1} to {most:.1} tasks wanted one when jobs began. \
             Where the emulator was late itself figures are marked `*`. Links have MTU 9000, and a queue of one bandwidth-delay product."
        ),
        format!("Raw samples, with each job's lab and command: `{}`. `isthmus bench collectives --render DIR` makes this page again from them.", crate::papers::SAMPLES),
    ];
    Part { title: String::new(), blocks: vec![Block::List(items)] }
}
