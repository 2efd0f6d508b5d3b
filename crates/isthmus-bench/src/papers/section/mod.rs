//! The sections of the report, one file each.

mod cci;
mod distance;
mod movement;
mod networks;
mod parallel;
mod protocols;
mod routes;
mod storage;

use isthmus_units::Rate;

use super::page::{Block, Part};
use super::published;
use super::sample::Taken;
use super::step::{Context, Step};
use super::{GIGABIT, is_probe};
use crate::table::distinct;

/// An experiment from a paper; a section of the report.
pub(crate) trait Section: Sync {
    /// Name on the command line and in samples.
    fn name(&self) -> &'static str;

    fn title(&self) -> &'static str;

    /// Ids of its papers in `published.json`.
    fn papers(&self) -> &'static [&'static str];

    /// A run that shows whether the emulator carries this rate truthfully. `None` if the section searches for no
    /// rate.
    fn probe(&self, _context: &Context<'_>, _rate: Rate) -> Option<Step> {
        None
    }

    /// All runs, given the highest rate found.
    fn plan(&self, context: &Context<'_>, highest: Rate) -> Vec<Step>;

    /// Further runs, given the results of the planned ones.
    fn again(&self, _context: &Context<'_>, _taken: &[&Taken]) -> Vec<Step> {
        Vec::new()
    }

    /// Its part of the report, made from samples alone.
    fn tell(&self, told: &Told<'_>) -> Vec<Block>;
}

/// All sections, in the report's order.
pub(crate) const SECTIONS: &[&dyn Section] = &[
    &movement::Movement,
    &storage::Storage,
    &cci::Cci,
    &parallel::Parallel,
    &distance::Distance,
    &protocols::Protocols,
    &routes::Routes,
];

/// A section's samples.
pub(crate) struct Told<'a> {
    /// All samples but the probes, which searched for a rate.
    pub(crate) taken: Vec<&'a Taken>,
    pub(crate) probes: Vec<&'a Taken>,
}

impl<'a> Told<'a> {
    pub(crate) fn new(all: Vec<&'a Taken>) -> Self {
        let (probes, taken) = all.into_iter().partition(|sample| is_probe(sample));
        Self { taken, probes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.probes.is_empty()
    }

    /// The contender's sample with these facts.
    pub(crate) fn one(&self, contender: &str, facts: &[(&str, &str)]) -> Option<&'a Taken> {
        self.taken.iter().copied().find(|sample| sample.contender == contender && sample.has(facts))
    }

    pub(crate) fn contenders(&self) -> Vec<String> {
        distinct(&self.taken, |sample| sample.contender.clone())
    }

    /// The values of a fact, in order of first occurrence.
    pub(crate) fn values(&self, fact: &str) -> Vec<String> {
        let mut found = distinct(&self.taken, |sample| sample.fact(fact).to_owned());
        found.retain(|value| !value.is_empty());
        found
    }

    /// Result of the search for a rate, as a sentence; `None` without a search.
    pub(crate) fn rates(&self) -> Option<Block> {
        let good = self.probes.iter().find(|probe| probe.error.is_none() && !probe.spoiled());
        let late: Vec<_> = self
            .probes
            .iter()
            .filter(|probe| probe.spoiled())
            .filter_map(|probe| Some(gigabits(probe.link?.rate)))
            .collect();
        let tried = self.probes.first()?;
        let mut text = match good.and_then(|probe| probe.link) {
            Some(link) => format!(
                "The highest truthful rate of this machine, in one run of this work: {}.",
                gigabits(link.rate)
            ),
            None => {
                let first = tried.link.map_or(String::new(), |link| gigabits(link.rate));
                format!("No rate from {first} downwards to 2 Gb/s was truthful; 1 Gb/s stands for it.")
            }
        };
        if !late.is_empty() {
            text += &format!(" The emulator was late itself at {}.", late.join(", "));
        }
        Some(Block::Text(text))
    }
}

pub(crate) fn gigabits(rate: Rate) -> String {
    format!("{} Gb/s", rate.0 as f64 / GIGABIT as f64)
}

/// A table's entry: a figure with its mark, or why there is none.
pub(crate) fn cell(sample: Option<&Taken>, of: impl Fn(&Taken) -> Option<f64>, digits: usize) -> String {
    let Some(sample) = sample else { return "-".to_owned() };
    match of(sample) {
        Some(value) if sample.error.is_none() => format!("{value:.digits$}{}", sample.mark()),
        _ => sample.instead(),
    }
}

/// List of a section's papers.
pub(crate) fn sources(ids: &[&str]) -> Vec<Block> {
    let of = |id: &&str| published::paper(id).map(|paper| format!("{}. {}", paper.citation, paper.unknown));
    vec![Block::List(ids.iter().filter_map(of).collect())]
}

/// The papers' figures as a table, with their places.
pub(crate) fn printed(ids: &[&str]) -> Block {
    let mut rows = Vec::new();
    for figure in ids.iter().filter_map(|id| published::published(id)) {
        let values: Vec<_> = figure.points.iter().map(|(_, value)| value.to_string()).collect();
        rows.push(vec![figure.what, values.join("; "), figure.source]);
    }
    Block::table("What the paper has", &["", "value", "place"], rows)
}

/// Lists the runs that failed, did not end, or were left out.
pub(crate) fn trouble(told: &Told<'_>) -> Vec<Block> {
    let why = |sample: &&Taken| {
        let reason = match (&sample.missing, &sample.error, sample.not_ended_s) {
            (Some(why), ..) => format!("not run: {why}"),
            (_, Some(error), _) => error.replace('`', "'"),
            (.., Some(limit)) => format!("not ended after {limit:.0} s"),
            _ => return None,
        };
        Some(format!("{}: {reason}", sample.title()))
    };
    let mut lines: Vec<String> = told.taken.iter().filter_map(why).collect();
    lines.dedup();
    if lines.is_empty() {
        return Vec::new();
    }
    vec![Block::Heading("Runs without a result".into()), Block::List(lines)]
}

/// First part of the report: how all was measured.
pub(crate) fn circumstances(taken: &[Taken]) -> Part {
    let Some(first) = taken.first() else {
        return Part { title: String::new(), blocks: vec![Block::text("There are no samples.")] };
    };
    let list = |of: &dyn Fn(&Taken) -> String| distinct(taken, of).join("; ");
    let spoiled = taken.iter().filter(|sample| sample.spoiled() && !is_probe(sample)).count();
    let loads: Vec<f64> = taken.iter().map(|sample| sample.load).collect();
    let [least, most] =
        [loads.iter().copied().fold(f64::MAX, f64::min), loads.iter().copied().fold(0.0, f64::max)];
    let minutes = taken.iter().map(|sample| sample.took_s).sum::<f64>() / 60.0;
    let at =
        time::OffsetDateTime::from_unix_timestamp(first.at).map_or(String::new(), |at| at.date().to_string());
    let command = if first.form == "full" { "isthmus bench papers --full" } else { "isthmus bench papers" };
    let items = vec![
        format!("Made by `{command}` on {at}: {} runs in {minutes:.0} minutes.", taken.len()),
        format!("isthmus {}; Linux {}; {}.", list(&|s| s.version.clone()), list(&|s| s.kernel.clone()), list(&|s| s.host.clone())),
        format!("Both sites, all ranks and the emulator share these processors. When runs began, {least:.1} to {most:.1} tasks wanted one: \
             what was left of the run before, and other work (load average of a minute)."),
        format!("Links have MTU 9000, and a queue of one bandwidth-delay product. In {spoiled} runs, marked `*`, the emulator was late itself: \
                 their figures say little of who was measured."),
        "The limit of a link is one round trip (of an exchange half of one), and full packets at its rate after losses. A fraction is the limit's time \
         divided by the time taken: 1 is the best possible.".to_owned(),
        "Every measured figure is one run, unless its table says otherwise. Raw samples, with each run's lab and command: `samples.jsonl`. \
         `isthmus bench papers --render DIR` makes these pages again from them.".to_owned(),
        "Isthmus is the project's libfabric provider under MPICH, or its substrate. It encrypts what goes over these links; all others here do not. Stock tcp is the same MPICH over libfabric's `tcp;ofi_rxm`.".to_owned(),
    ];
    Part {
        title: String::new(),
        blocks: vec![
            Block::text(
                "Each section repeats an experiment of one of the documents that this \
        project answers, in a lab on one machine, with the paper's figures beside ours.",
            ),
            Block::List(items),
        ],
    }
}

/// Last part of the report: what could not be measured.
pub(crate) fn absent() -> Part {
    let items = [
        "bbcp and bbFTP, which the first paper compares itself with, are not in Debian, and were not measured. `isthmus bench file` \
         measures `scp`, `rsync`, `rclone` and GridFTP beside `isthmus cp`.",
        "The CCI BTL of Open MPI, and CCI itself, are not maintained any more. The papers' printed figures stand for them.",
        "InfiniBand, Myrinet and Gemini hardware is not here. What the papers measured on them is not repeated.",
    ];
    Part { title: "What is missing".into(), blocks: vec![Block::List(items.map(str::to_owned).to_vec())] }
}
