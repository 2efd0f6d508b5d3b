//! Benchmark of MPI collectives across sites: with the collectives library, without it, and over stock tcp.
//!
//! One program (`program.c`) calls each collective in turn with the library and without it, so that both see the same
//! load. For each link a second job goes over libfabric's tcp. Labs, samples and pages are those of `papers`.

mod report;

use std::fs;
use std::path::{Path, PathBuf};

use crate::BenchError;
use crate::lab;
use crate::link::EmulatedLink;
use crate::papers::runner::Runner;
use crate::papers::sample::Taken;
use crate::papers::step::{Over, Program, Step, lab_of, mpich, quoted};
use crate::papers::{Came, Form, Log, SAMPLES, Tools, recorded, take_all};

/// Section name of all samples.
const NAME: &str = "collectives";
const MIB: u64 = 1 << 20;
/// Short calls are timed in a row of this many, as in the program. Count.
const ROW: f64 = 10.0;
/// Pause between calls, beyond two round trips, until all ranks begin together. Seconds.
const PAUSE_S: f64 = 0.05;
/// Time limit of a job: a constant in seconds, and a multiple of its floor. Stock tcp is slow on lossy paths.
const LIMIT_S: f64 = 60.0;
const LIMIT_FACTOR: f64 = 40.0;
/// Longest time limit. The program repeats no call that has taken a minute, so most jobs end before. Seconds.
const LIMIT_MAX_S: f64 = 7_200.0;

/// Callers: name in the program, and heading of a table's column.
const WHOS: [(&str, &str); 3] = [("library", "library"), ("stock", "without"), ("tcp", "stock tcp")];
/// Numbering of ranks: one site after the other, or alternating.
const ORDERS: [&str; 2] = ["blocks", "alternating"];
/// Names of the sites in a lab.
const SITES: [&str; 3] = ["a", "b", "c"];

/// A measured collective. The program has the same list.
struct Call {
    name: &'static str,
    /// Timed as a row of short calls of fixed length.
    is_row: bool,
    /// Bytes are per rank, not of one vector.
    is_each: bool,
    /// Bytes that one site must send to another, from the call's bytes, the ranks of one site, and the sites.
    across: fn(u64, u64, u64) -> u64,
}

const CALLS: [Call; 14] = [
    Call { name: "barrier", is_row: true, is_each: false, across: |_, _, _| 0 },
    Call { name: "allreduce", is_row: true, is_each: false, across: |bytes, _, _| bytes },
    Call { name: "bcast", is_row: false, is_each: false, across: |bytes, _, _| bytes },
    Call { name: "reduce", is_row: false, is_each: false, across: |bytes, _, _| bytes },
    Call { name: "allreduce", is_row: false, is_each: false, across: |bytes, _, _| bytes },
    // Each site needs only its own part of the vector.
    Call { name: "reduce_scatter", is_row: false, is_each: false, across: |bytes, _, sites| bytes / sites },
    Call { name: "allgather", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
    Call { name: "alltoall", is_row: false, is_each: true, across: |bytes, here, _| bytes * here * here },
    Call { name: "gather", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
    Call { name: "scatter", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
    Call { name: "allgatherv", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
    Call { name: "alltoallv", is_row: false, is_each: true, across: |bytes, here, _| bytes * here * here },
    Call { name: "gatherv", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
    Call { name: "scatterv", is_row: false, is_each: true, across: |bytes, here, _| bytes * here },
];

impl Call {
    /// Shortest time of a call in which sites send to each other directly: half a round trip, and the time of the bytes
    /// that must cross the link of a site. Seconds.
    fn allowed_s(&self, bytes: u64, layout: Layout, link: &EmulatedLink) -> f64 {
        let (each, sites) = (u64::from(layout.each), u64::from(layout.sites));
        let across = (self.across)(bytes, each, sites) * (sites - 1);
        link.rtt_s() / 2.0 + across as f64 / link.goodput()
    }
}

/// Where ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Two or three sites.
    pub sites: u32,
    /// Ranks at each site.
    pub each: u32,
}

impl Layout {
    fn ranks(self) -> u32 {
        self.sites * self.each
    }

    fn names(self) -> &'static [&'static str] {
        &SITES[..SITES.len().min(self.sites as usize)]
    }
}

impl std::fmt::Display for Layout {
    /// For example `4 + 4 ranks`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = vec![self.each.to_string(); self.sites as usize];
        write!(f, "{} ranks", each.join(" + "))
    }
}

/// The benchmark. `run` makes it.
#[derive(Clone, Debug)]
pub struct Collectives {
    /// Paths of everything that takes part. Of the MPIs it uses MPICH only.
    pub tools: Tools,
    /// The collectives library.
    pub library: PathBuf,
    /// The links.
    pub links: Vec<EmulatedLink>,
    /// Sites and ranks, each with all links.
    pub layouts: Vec<Layout>,
    /// Measure the non-blocking forms of the calls, each waited for at once.
    pub is_nonblocking: bool,
    /// Lengths of the vectors. MiB.
    pub sizes: Vec<u32>,
    /// Calls of each collective. Count.
    pub runs: u32,
    /// The short form has ranks in blocks only.
    pub form: Form,
    /// Isthmus' version, for samples.
    pub version: String,
    /// Keep the samples with a result that are in the folder, and do not measure them again.
    pub resume: bool,
}

impl Collectives {
    fn orders(&self) -> &'static [&'static str] {
        if self.form == Form::Full { &ORDERS } else { &ORDERS[..1] }
    }

    /// For each layout and link, one job over Isthmus and one over stock tcp.
    fn steps(&self) -> Vec<Step> {
        let of = |layout, link| [Over::Isthmus, Over::Stock].map(|over| self.step(layout, link, over));
        let of_layout = |layout: &Layout| {
            let layout = *layout;
            self.links.iter().flat_map(move |link| of(layout, link))
        };
        self.layouts.iter().flat_map(of_layout).collect()
    }

    fn step(&self, layout: Layout, link: &EmulatedLink, over: Over) -> Step {
        let is_ours = over == Over::Isthmus;
        let whos: Vec<&str> =
            WHOS.iter().map(|(who, _)| *who).filter(|who| (*who != "tcp") == is_ours).collect();
        let (orders, sizes) = (self.orders().join(","), joined(&self.sizes));
        let start_s = 2.0 * link.rtt_s() + PAUSE_S;
        let form = if self.is_nonblocking { "nonblocking" } else { "blocking" };
        let mut program = format!(
            "@WORK@/collectives-mpich {} {start_s} {} {orders} {sizes} {} {form}",
            self.runs,
            whos.join(","),
            layout.sites
        );
        let mut missing = over.missing(&self.tools);
        if is_ours {
            let library = quoted(&self.library);
            program = format!("env LD_PRELOAD={library} ISTHMUS_COLLECTIVES_RATE={} {program}", link.rate);
            missing = missing.or_else(|| self.library_missing());
        }
        let calls = f64::from((self.runs + 1) * whos.len() as u32 * self.orders().len() as u32);
        let floor_s = calls * self.floor_s(layout, link, start_s);
        Step {
            contender: if is_ours { "MPICH over Isthmus" } else { "MPICH over stock tcp" }.to_owned(),
            link: Some(*link),
            lab: if layout.sites == 2 { lab_of(*link, None) } else { Some(lab::star(layout.names(), link)) },
            script: routes(layout) + &mpich(&self.tools, over, layout.names(), layout.each, &program),
            floor_s,
            limit_s: (LIMIT_S + LIMIT_FACTOR * floor_s).ceil().min(LIMIT_MAX_S),
            programs: vec![Program::Collectives],
            missing,
            ..Step::default()
        }
        .with("ranks", layout.ranks())
        .with("sites", layout.sites)
        .with("form", form)
        .with("calls", self.runs)
        .with("MiB", sizes)
        .with("order", orders)
    }

    /// Shortest time of one call of each collective. Seconds.
    fn floor_s(&self, layout: Layout, link: &EmulatedLink, start_s: f64) -> f64 {
        let of = |call: &Call| {
            let sizes = if call.is_row || call.is_each { 1 } else { self.sizes.len() };
            let times = if call.is_row { ROW } else { 1.0 };
            let one = |size: &u32| {
                let bytes = if call.is_row { 0 } else { u64::from(*size) * MIB };
                start_s + times * call.allowed_s(bytes, layout, link)
            };
            self.sizes.iter().take(sizes).map(one).sum::<f64>()
        };
        CALLS.iter().map(of).sum()
    }

    fn library_missing(&self) -> Option<String> {
        let text = || format!("no {}: make collectives, or name it with --library", self.library.display());
        (!self.library.is_file()).then(text)
    }

    /// Lists the jobs, with about how long each takes.
    pub fn dry_run(&self) -> String {
        let steps = self.steps();
        let line = |step: &Step| {
            let missing = step.missing.as_ref().map_or(String::new(), |why| format!(" (left out: {why})"));
            format!("  {:4.0} s  {}{missing}\n", step.expected_s(), step.title())
        };
        let minutes = (steps.iter().map(Step::expected_s).sum::<f64>() / 60.0).ceil();
        let lines: String = steps.iter().map(line).collect();
        format!("{} jobs, {minutes} min at the very least:\n{lines}", steps.len())
    }

    /// Runs all jobs, with a progress bar. Writes `samples.jsonl` after each, and the report's files at
    /// the end.
    ///
    /// # Errors
    /// If something is missing, or the folder cannot be written. Runs that fail or do not end in time are samples.
    pub fn run(&self) -> Result<Came, BenchError> {
        let out = &self.tools.out;
        let steps = self.steps();
        if let Some(why) = steps.iter().find_map(|step| step.missing.clone()) {
            return Err(BenchError::Missing(why));
        }
        fs::create_dir_all(out).map_err(BenchError::file(out))?;
        let path = out.join(SAMPLES);
        let mut log = Log::open(&path, self.resume, |_| true)?;
        let mut runner = Runner::new(&self.tools, self.form, self.version.clone())?;
        take_all(NAME, steps, &mut runner, &mut log, &|| false).map_err(BenchError::file(&path))?;
        write_report(out, &log.taken)?;
        let failed = log.taken.iter().filter(|sample| sample.error.is_some()).count();
        Ok(Came { failed, left: 0 })
    }

    /// Makes the report of a folder's samples again.
    ///
    /// # Errors
    /// If there are no samples, or the folder cannot be written.
    pub fn render(folder: &Path) -> Result<Came, BenchError> {
        let taken = recorded(folder)?;
        write_report(folder, &taken)?;
        Ok(Came { failed: taken.iter().filter(|sample| sample.error.is_some()).count(), left: 0 })
    }
}

/// Start of the script: with more than two sites, each reaches the others by the site in the middle.
fn routes(layout: Layout) -> String {
    if layout.sites == 2 {
        return String::new();
    }
    format!(
        "set -- $(echo \"$ISTHMUS_LAB_SITE_{}_ADDRESSES\" | tr , ' ')\n\
         for site in {}; do lab-rsh $site ip route add {} via $1; shift; done\n",
        lab::MIDDLE.to_uppercase(),
        layout.names().join(" "),
        lab::WIDE_NETWORKS
    )
}

fn joined(sizes: &[u32]) -> String {
    sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn write_report(out: &Path, taken: &[Taken]) -> Result<(), BenchError> {
    let write = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).map_err(BenchError::file(path))
    };
    write("table.txt", report::text(taken))?;
    write("collectives.csv", report::csv(taken, "isthmus bench collectives"))?;
    write("report.html", report::html(taken))
}

#[cfg(test)]
mod tests;
