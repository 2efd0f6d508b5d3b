//! Samples as text tables: medians for each kind of work.

use std::fmt::Write;

use crate::beside::GOAL;
use crate::sample::{Sample, median, percentile};

/// Explains the marks in a table.
const MARKS: &str =
    "* the emulator was late in some runs, ! some failed, < did not end in time: at most so much";
/// Contenders with a fixed transfer protocol; then the one that chooses by measurement.
const STATIC: [&str; 3] = ["isthmus-eager", "isthmus-rendezvous", "isthmus-mixed"];
pub(crate) const ADAPTIVE: &str = "isthmus";

/// The distinct values of `of`, in order of first occurrence.
pub(crate) fn distinct<S, T: PartialEq>(samples: &[S], of: impl Fn(&S) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for value in samples.iter().map(of) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// Megabytes for people, such as "0.064", to the kilobyte.
pub(crate) fn megabytes(bytes: u64) -> String {
    ((bytes as f64 / 1e3).round() / 1e3).to_string()
}

/// Samples of the same work. Each group has its own table and row of plots.
pub(crate) struct Group {
    pub(crate) work: String,
    pub(crate) bytes: u64,
    pub(crate) samples: Vec<Sample>,
}

impl Group {
    /// Whether its links have names.
    pub(crate) fn is_of_catalogue(&self) -> bool {
        self.samples.iter().any(|sample| sample.link.name.is_some())
    }
}

/// Sorts samples into groups.
pub(crate) fn groups(samples: &[Sample]) -> Vec<Group> {
    let link = |sample: &Sample| (sample.work == "preposted").then_some(sample.link);
    // The amount sent through an outage depends on the link.
    let bytes = |sample: &Sample| if sample.work == "outage" { 0 } else { sample.bytes };
    let key = |sample: &Sample| (sample.work.clone(), bytes(sample), link(sample));
    let of = |one: (String, u64, _)| {
        let samples: Vec<_> = samples.iter().filter(|sample| key(sample) == one).cloned().collect();
        Group { work: one.0, bytes: one.1, samples }
    };
    distinct(samples, key).into_iter().map(of).collect()
}

/// Medians of a cell's samples. A failed run counts as slower than all others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    /// Fraction of the limit, or iperf3's share of the link; `None` without samples.
    pub(crate) fraction: Option<f64>,
    /// Rate reached. Mb/s.
    pub(crate) mbps: Option<f64>,
    /// Our share of a shared link.
    ours: Option<f64>,
    /// Time from the end of an outage until data arrived again. Round trips.
    pub(crate) resumed: Option<f64>,
    /// Bytes sent, as a multiple of the least that had to be sent.
    pub(crate) sent: Option<f64>,
    /// The median run did not end, so the medians are upper bounds.
    pub(crate) is_bound: bool,
    is_spoiled: bool,
    has_failed: bool,
}

pub(crate) fn cell<'a>(samples: impl Iterator<Item = &'a Sample>) -> Cell {
    let samples: Vec<_> = samples.collect();
    let of = |value: fn(&Sample) -> f64| median(samples.iter().map(|sample| value(sample)));
    let of_some =
        |value: fn(&Sample) -> Option<f64>| median(samples.iter().filter_map(|sample| value(sample)));
    let failed = samples.iter().filter(|sample| sample.error.is_some()).count();
    let not_ended = samples.iter().filter(|sample| sample.not_ended_s.is_some()).count();
    // These rank as the slowest, so with enough of them the median is one.
    let is_bound = not_ended > 0 && failed + not_ended > samples.len().saturating_sub(1) / 2;
    Cell {
        fraction: of(Sample::fraction),
        mbps: of(Sample::mbps),
        ours: of_some(|sample| Some(sample.shares?.ours)),
        resumed: of_some(|sample| Some(sample.resumed_s? / sample.link.rtt_s())),
        sent: of_some(Sample::sent),
        is_bound,
        is_spoiled: samples.iter().any(|sample| sample.spoiled()),
        has_failed: failed > 0,
    }
}

impl Cell {
    /// A value with this many decimals, and its marks.
    fn text(&self, value: Option<f64>, digits: usize) -> String {
        let Some(value) = value else {
            let why = [(self.has_failed, "!"), (self.is_bound, "not ended"), (true, "-")];
            return why.into_iter().find(|(set, _)| *set).map_or("", |(_, text)| text).to_owned();
        };
        let bound = if self.is_bound { "<" } else { "" };
        let ours = self.ours.map_or(String::new(), |ours| format!(", {ours:.digits$}"));
        let marks = [(self.is_spoiled, "*"), (self.has_failed, "!")];
        let marks: String = marks.iter().filter(|(set, _)| *set).map(|(_, mark)| *mark).collect();
        format!("{bound}{value:.digits$}{ours}{marks}")
    }
}

/// A table of texts. The first column names the rows.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// Text for a terminal.
    pub(crate) fn text(&self) -> String {
        let widths: Vec<_> = (0..self.head.len())
            .map(|at| {
                let cells = std::iter::once(&self.head).chain(&self.rows).filter_map(|row| row.get(at));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut out = self.title.clone() + "\n";
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let cell = |(at, (cell, width)): (usize, (&String, &usize))| match at {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            };
            let cells: Vec<_> = row.iter().zip(&widths).enumerate().map(cell).collect();
            let _ = writeln!(out, "{}", cells.join("  "));
        }
        out
    }
}

/// All tables as text for a terminal.
pub(crate) fn text(samples: &[Sample]) -> String {
    let grids = groups(samples).into_iter().flat_map(|group| grids(&group));
    let mut out: Vec<_> = grids.map(|grid| grid.text()).collect();
    if !out.is_empty() {
        out.push(format!("Medians. {MARKS}.\n"));
    }
    out.join("\n")
}

/// The tables of a group.
pub(crate) fn grids(group: &Group) -> Vec<Grid> {
    let fraction = |cell: &Cell| cell.text(cell.fraction, 3);
    let mut out = match group.work.as_str() {
        "share" => {
            let what = format!("which is to be {GOAL} or more, and ours beside it");
            vec![grid(group, &format!("share: fraction of the link that iperf3 reaches, {what}"), fraction)]
        }
        "outage" => {
            let what = "round trips from when the link was back after 2 s until data came";
            vec![grid(group, &format!("outage: {what}"), |cell| cell.text(cell.resumed, 2))]
        }
        "pingpong" => vec![grid(group, "pingpong: fraction of the limit", fraction)],
        work => {
            let on = group.samples.first().filter(|_| work == "preposted");
            let on = on.map_or(String::new(), |sample| format!(", {}", sample.link.title()));
            let what = format!("{work}, {} MB{on}", megabytes(group.bytes));
            let mut grids = vec![
                grid(group, &format!("{what}: fraction of the limit"), fraction),
                grid(group, &format!("{what}: Mb/s"), |cell| cell.text(cell.mbps, 1)),
            ];
            if group.is_of_catalogue() {
                let sent = format!("{what}: bytes sent, as a multiple of what full packets and losses need");
                grids.push(grid(group, &sent, |cell| cell.text(cell.sent, 3)));
            }
            grids
        }
    };
    if let Some(compared) = out.first_mut() {
        add_ratios(compared, group);
    }
    out.extend(trips(group));
    out
}

/// Name of the sample's row.
fn row_of(sample: &Sample) -> String {
    sample.ahead.map_or_else(|| sample.links(), |ahead| format!("{ahead} %"))
}

/// One row for each link, or each share of receives posted ahead; one column for each contender.
fn grid(group: &Group, title: &str, cell_text: impl Fn(&Cell) -> String) -> Grid {
    let contenders = distinct(&group.samples, |sample| sample.contender.clone());
    let corner = match group.work.as_str() {
        "preposted" => "posted ahead",
        _ if group.is_of_catalogue() => "link",
        _ => "round trip, loss",
    };
    let rows = distinct(&group.samples, row_of).into_iter().map(|name| {
        let texts = contenders.iter().map(|one| cell_text(&cell_of(group, &name, one)));
        let texts: Vec<_> = texts.collect();
        [vec![name], texts].concat()
    });
    let rows = rows.collect();
    Grid { title: title.to_owned(), head: [vec![corner.to_owned()], contenders].concat(), rows }
}

fn cell_of(group: &Group, row: &str, contender: &str) -> Cell {
    cell(group.samples.iter().filter(|s| row_of(s) == row && s.contender == contender))
}

/// Adds a column with a ratio: the choice by measurement to the best fixed protocol, or ours to the best
/// iperf3. Nothing is added unless both were measured.
fn add_ratios(grid: &mut Grid, group: &Group) {
    let names = distinct(&group.samples, |sample| sample.contender.clone());
    let (what, others): (_, Vec<_>) = if group.work == "preposted" {
        ("adaptive / best static", names.iter().filter(|one| STATIC.contains(&one.as_str())).collect())
    } else {
        ("ours / best iperf3", names.iter().filter(|one| one.starts_with("iperf3-")).collect())
    };
    // The default Isthmus, or else the better single transport.
    let as_it_comes: Vec<_> = names.iter().filter(|one| *one == ADAPTIVE).collect();
    let by_transport = || names.iter().filter(|one| one.starts_with("isthmus-")).collect();
    let ours = if as_it_comes.is_empty() { by_transport() } else { as_it_comes };
    if ours.is_empty() || others.is_empty() || (group.work == "preposted" && ours[0] != ADAPTIVE) {
        return;
    }
    grid.head.push(what.to_owned());
    for row in &mut grid.rows {
        let best = |of: &[&String]| {
            let cells = of.iter().map(|one| cell_of(group, &row[0], one));
            let values = cells.filter_map(|cell| Some((cell.fraction?, cell.is_bound)));
            values.filter(|(value, _)| *value > 0.0).max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let ratio = best(&ours).zip(best(&others)).map(|((ours, is_most), (others, is_least))| {
            // A run that did not end gives an upper bound only.
            match (is_most, is_least) {
                (true, true) => "?".to_owned(),
                (true, false) => format!("<{:.3}", ours / others),
                (false, true) => format!(">{:.3}", ours / others),
                (false, false) => format!("{:.3}", ours / others),
            }
        });
        row.push(ratio.unwrap_or("-".to_owned()));
    }
}

/// Percentiles of measured round trips, as multiples of the link's round trip.
fn trips(group: &Group) -> Option<Grid> {
    let shares = [0.5, 0.9, 0.99, 0.999, 1.0];
    let head = ["round trip, loss", "", "p50", "p90", "p99", "p99.9", "most", "of"].map(str::to_owned);
    let mut rows = Vec::new();
    for (link, contender) in distinct(&group.samples, |sample| (sample.link, sample.contender.clone())) {
        let all = all_trips(group.samples.iter().filter(|s| (s.link, &s.contender) == (link, &contender)));
        let value = |share| percentile(&all, share).map(|trips| format!("{trips:.3}"));
        if let Some(values) = shares.map(value).into_iter().collect::<Option<Vec<_>>>() {
            rows.push([vec![link.title(), contender], values, vec![all.len().to_string()]].concat());
        }
    }
    let title = format!("{}: percentiles, in round trips of the link", group.work);
    (!rows.is_empty()).then(|| Grid { title, head: head.to_vec(), rows })
}

/// All round trips of the samples in ascending order, as multiples of the link's round trip.
pub(crate) fn all_trips<'a>(samples: impl Iterator<Item = &'a Sample>) -> Vec<f64> {
    let of = |sample: &'a Sample| {
        let rtt_us = sample.link.rtt_s() * 1e6;
        sample.round_trips_us.iter().map(move |us| us / rtt_us)
    };
    let mut all: Vec<f64> = samples.flat_map(of).collect();
    all.sort_by(f64::total_cmp);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::fixture;

    fn took(contender: &str, seconds: f64) -> Sample {
        Sample { contender: contender.to_owned(), seconds: Some(seconds), ..fixture() }
    }

    #[test]
    fn what_did_not_end_is_told_as_the_most_that_it_can_be() {
        let late = Sample { not_ended_s: Some(8.0), ..took("stock-cubic", 0.0) };
        let late = Sample { seconds: None, ..late };
        let of = |samples: &[Sample]| cell(samples.iter()).text(cell(samples.iter()).fraction, 3);
        assert_eq!(of(std::slice::from_ref(&late)), "<0.125");
        assert_eq!(of(&[late.clone(), took("stock-cubic", 4.0), took("stock-cubic", 2.0)]), "0.250");
        assert_eq!(of(&[late.clone(), late, took("stock-cubic", 2.0)]), "<0.125");
        let failed = Sample { error: Some("no".into()), ..fixture() };
        assert_eq!(of(&[failed]), "0.000!");
        let iperf = Sample { not_ended_s: Some(8.0), contender: "iperf3-cubic-x1".into(), ..fixture() };
        assert!(text(&[took("isthmus", 2.0), iperf]).contains(">4.000"), "four times as fast at the least");
    }

    #[test]
    fn the_choice_by_measurement_is_compared_with_the_best_of_those_beforehand_at_every_share() {
        let at = |ahead, contender, seconds| Sample {
            work: "preposted".into(),
            ahead: Some(ahead),
            ..took(contender, seconds)
        };
        let samples = [
            at(0, "isthmus", 2.0),
            at(0, "isthmus-eager", 2.5),
            at(0, "isthmus-rendezvous", 10.0),
            at(100, "isthmus", 4.0),
            at(100, "isthmus-eager", 5.0),
            at(100, "isthmus-rendezvous", 2.0),
        ];
        let text = text(&samples);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).expect("a row");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("0 %")[2..], ["0.500", "0.400", "0.100", "1.250"], "{text}");
        assert_eq!(row("100 %")[2..], ["0.250", "0.200", "0.500", "0.500"], "{text}");
        assert!(text.contains("adaptive / best static"), "{text}");
    }

    #[test]
    fn after_an_outage_round_trips_are_told() {
        let sample = Sample { work: "outage".into(), resumed_s: Some(0.036), ..took("isthmus", 9.0) };
        let late = Sample { work: "outage".into(), not_ended_s: Some(80.0), ..fixture() };
        let late = Sample { contender: "stock-cubic".into(), ..late };
        let text = text(&[sample, late]);
        assert!(text.contains("1.50") && text.contains("not ended"), "{text}");
    }
}
