//! Samples as text: medians, a table for each kind of work.

use std::fmt::Write;

use crate::beside::GOAL;
use crate::link::Link;
use crate::sample::{Sample, median, percentile};

/// The different values of `of`, in the order in which they first come.
pub(crate) fn distinct<T: PartialEq>(samples: &[Sample], of: impl Fn(&Sample) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for value in samples.iter().map(of) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// What a cell's samples come to: the median's fraction of the floor, of a link's shares iperf3's and ours,
/// and how many there are, how many among them spoiled, how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) fraction: Option<f64>,
    pub(crate) ours: Option<f64>,
    pub(crate) count: usize,
    pub(crate) spoiled: usize,
    pub(crate) failed: usize,
}

pub(crate) fn cell<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Cell {
    Cell {
        // One that failed counts: as slower than all others.
        fraction: median(samples.clone().map(Sample::fraction)),
        ours: median(samples.clone().filter_map(|sample| Some(sample.shares?.ours))),
        count: samples.clone().count(),
        spoiled: samples.clone().filter(|sample| sample.spoiled()).count(),
        failed: samples.filter(|sample| sample.seconds.is_none()).count(),
    }
}

/// All as text for a terminal.
pub(crate) fn text(samples: &[Sample]) -> String {
    let mut out = String::new();
    let links = distinct(samples, |sample| sample.link);
    for (work, bytes) in distinct(samples, |sample| (sample.work.clone(), sample.bytes)) {
        let of_work = |sample: &&Sample| (&sample.work, sample.bytes) == (&work, bytes);
        let chosen: Vec<_> = samples.iter().filter(of_work).cloned().collect();
        let what = if work == "share" {
            format!(
                "share: fraction of the link that iperf3 reaches, which is to be {GOAL} or more, and ours beside it"
            )
        } else {
            format!("{work}, {} MB: fraction of the floor", bytes as f64 / 1e6)
        };
        let _ = writeln!(out, "{what}, median (* some runs spoiled, ! some failed)");
        let contenders = distinct(&chosen, |sample| sample.contender.clone());
        let _ = write!(out, "{:>18}", "round trip, loss");
        contenders.iter().for_each(|one| {
            let _ = write!(out, " {one:>20}");
        });
        for link in links.iter().filter(|link| chosen.iter().any(|sample| sample.link == **link)) {
            let _ = write!(out, "\n{:>18}", link.title());
            for one in &contenders {
                let here = cell(chosen.iter().filter(|s| s.link == *link && s.contender == *one));
                let marks = [(here.spoiled > 0, '*'), (here.failed > 0, '!')];
                let marks: String = marks.iter().filter(|(set, _)| *set).map(|(_, mark)| *mark).collect();
                let ours = here.ours.map_or(String::new(), |ours| format!(", {ours:.3}"));
                let value =
                    here.fraction.map_or("-".to_owned(), |fraction| format!("{fraction:.3}{ours}{marks}"));
                let _ = write!(out, " {value:>20}");
            }
            if let Some(ratio) = beside_iperf(&chosen, link) {
                let _ = write!(out, "   {ratio:.2} x the best iperf3");
            }
        }
        out.push_str("\n\n");
        trips(&mut out, &chosen);
    }
    out
}

/// The median of MPI over Isthmus, as it comes or else by one transport, as a multiple of the best
/// median of iperf3; `None` where one of them was not measured, or no run of iperf3 ended.
fn beside_iperf(chosen: &[Sample], link: &Link) -> Option<f64> {
    let best = |prefix: &str| {
        let mine = chosen.iter().filter(|s| s.link == *link && s.contender.starts_with(prefix));
        let mine: Vec<_> = mine.cloned().collect();
        let names = distinct(&mine, |sample| sample.contender.clone());
        let medians =
            names.iter().filter_map(|one| cell(mine.iter().filter(|s| s.contender == *one)).fraction);
        medians.reduce(f64::max)
    };
    let as_it_comes = chosen.iter().any(|s| s.link == *link && s.contender == "isthmus");
    let ours = if as_it_comes {
        cell(chosen.iter().filter(|s| s.link == *link && s.contender == "isthmus")).fraction
    } else {
        best("isthmus-")
    };
    best("iperf3-").filter(|best| *best > 0.0).and_then(|best| Some(ours? / best))
}

/// Percentiles of round trips, where they were measured, as multiples of the link's own.
fn trips(out: &mut String, chosen: &[Sample]) {
    for (link, contender) in distinct(chosen, |sample| (sample.link, sample.contender.clone())) {
        let of_both = chosen.iter().filter(|sample| (sample.link, &sample.contender) == (link, &contender));
        let mut all: Vec<f64> = of_both.flat_map(|sample| sample.round_trips_us.iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        if let (Some(p50), Some(p99), Some(p999)) =
            (percentile(&all, 0.5), percentile(&all, 0.99), percentile(&all, 0.999))
        {
            let rtt_us = link.rtt_s() * 1e6;
            let _ = writeln!(
                out,
                "{:>18} {contender:>16}: p50 {:.3}, p99 {:.3}, p99.9 {:.3} round trips of {}",
                link.title(),
                p50 / rtt_us,
                p99 / rtt_us,
                p999 / rtt_us,
                all.len()
            );
        }
    }
    if chosen.iter().any(|sample| !sample.round_trips_us.is_empty()) {
        out.push('\n');
    }
}
