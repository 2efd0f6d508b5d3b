//! MPI collectives across two sites: with the collectives library, without it, and over libfabric's own tcp.
//!
//! One program (`program.c`) calls each collective in turn with the library and past it, so that both see the same load.
//! A second job of each link goes over stock tcp. Labs, samples and pages are those of `papers`.

mod report;

use std::fs;
use std::path::{Path, PathBuf};

use crate::BenchError;
use crate::link::Link;
use crate::papers::runner::Runner;
use crate::papers::sample::Taken;
use crate::papers::step::{Over, Program, Step, job, lab_of, quoted};
use crate::papers::{Came, Form, Log, SAMPLES, Tools, recorded, take_all};

/// The name of all samples' section.
const NAME: &str = "collectives";
const MIB: u64 = 1 << 20;
/// Short calls are timed as a row of so many; the program's `ROW`.
const ROW: f64 = 10.0;
/// Between the end of one call and the time at which all begin the next, beyond two round trips. Seconds.
const PAUSE_S: f64 = 0.05;
/// A job may take so much, and so many times the least possible: over stock tcp a lossy path is slow. Seconds.
const LIMIT_S: f64 = 60.0;
const LIMIT_FACTOR: f64 = 40.0;

/// Who calls, as the program names it, and as a column of a table.
const WHOS: [(&str, &str); 3] = [("library", "library"), ("stock", "without"), ("tcp", "stock tcp")];
/// How ranks are numbered: one site after the other, or in turn.
const ORDERS: [&str; 2] = ["blocks", "alternating"];

/// A collective that is measured. The program has the same list.
struct Call {
    name: &'static str,
    /// A row of short calls, of a fixed length.
    is_row: bool,
    /// Bytes are of each rank, not of one vector.
    is_each: bool,
    /// Bytes that must cross the link one way, by those of the call and the ranks of a site.
    across: fn(u64, u64) -> u64,
}

const CALLS: [Call; 10] = [
    Call { name: "barrier", is_row: true, is_each: false, across: |_, _| 0 },
    Call { name: "allreduce", is_row: true, is_each: false, across: |bytes, _| bytes },
    Call { name: "bcast", is_row: false, is_each: false, across: |bytes, _| bytes },
    Call { name: "reduce", is_row: false, is_each: false, across: |bytes, _| bytes },
    Call { name: "allreduce", is_row: false, is_each: false, across: |bytes, _| bytes },
    // Of the vector each site needs its own half.
    Call { name: "reduce_scatter", is_row: false, is_each: false, across: |bytes, _| bytes / 2 },
    Call { name: "allgather", is_row: false, is_each: true, across: |bytes, half| bytes * half },
    Call { name: "alltoall", is_row: false, is_each: true, across: |bytes, half| bytes * half * half },
    Call { name: "gather", is_row: false, is_each: true, across: |bytes, half| bytes * half },
    Call { name: "scatter", is_row: false, is_each: true, across: |bytes, half| bytes * half },
];

impl Call {
    /// The least time that a call takes: half a round trip, and that of what must cross. Seconds.
    fn allowed_s(&self, bytes: u64, ranks: u64, link: &Link) -> f64 {
        link.rtt_s() / 2.0 + (self.across)(bytes, ranks / 2) as f64 / link.goodput()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Collectives {
    /// Where everything is; of the MPIs only the MPICH is used.
    pub tools: Tools,
    /// The library that is measured.
    pub library: PathBuf,
    /// The links.
    pub links: Vec<Link>,
    /// Ranks of both sites together, an even number.
    pub ranks: u32,
    /// Lengths of vectors. MiB.
    pub sizes: Vec<u32>,
    /// How often each is called.
    pub runs: u32,
    /// In the short one ranks are in blocks only.
    pub form: Form,
    /// Isthmus' version, for samples.
    pub version: String,
    /// Samples that are in the folder already count, and are not measured again.
    pub resume: bool,
}

impl Collectives {
    fn orders(&self) -> &'static [&'static str] {
        if self.form == Form::Full { &ORDERS } else { &ORDERS[..1] }
    }

    /// One job for each link and for each of what messages go by.
    fn steps(&self) -> Vec<Step> {
        let of = |link: &Link| [Over::Isthmus, Over::Stock].map(|over| self.step(link, over));
        self.links.iter().flat_map(of).collect()
    }

    fn step(&self, link: &Link, over: Over) -> Step {
        let is_ours = over == Over::Isthmus;
        let whos: Vec<&str> =
            WHOS.iter().map(|(who, _)| *who).filter(|who| (*who != "tcp") == is_ours).collect();
        let (orders, sizes) = (self.orders().join(","), joined(&self.sizes));
        let start_s = 2.0 * link.rtt_s() + PAUSE_S;
        let mut program =
            format!("@WORK@/collectives-mpich {} {start_s} {} {orders} {sizes}", self.runs, whos.join(","));
        let mut missing = over.missing(&self.tools);
        if is_ours {
            let library = quoted(&self.library);
            program = format!("env LD_PRELOAD={library} ISTHMUS_COLLECTIVES_RATE={} {program}", link.rate);
            missing = missing.or_else(|| self.library_missing());
        }
        let calls = f64::from((self.runs + 1) * whos.len() as u32 * self.orders().len() as u32);
        let floor_s = calls * self.floor_s(link, start_s);
        Step {
            contender: if is_ours { "MPICH over Isthmus" } else { "MPICH over stock tcp" }.to_owned(),
            link: Some(*link),
            lab: lab_of(*link, None),
            script: job(&self.tools, over, self.ranks / 2, &program),
            floor_s,
            limit_s: (LIMIT_S + LIMIT_FACTOR * floor_s).ceil(),
            programs: vec![Program::Collectives],
            missing,
            ..Step::default()
        }
        .with("ranks", self.ranks)
        .with("calls", self.runs)
        .with("MiB", sizes)
        .with("order", orders)
    }

    /// The least time of one call of each. Seconds.
    fn floor_s(&self, link: &Link, start_s: f64) -> f64 {
        let of = |call: &Call| {
            let sizes = if call.is_row || call.is_each { 1 } else { self.sizes.len() };
            let times = if call.is_row { ROW } else { 1.0 };
            let one = |size: &u32| {
                let bytes = if call.is_row { 0 } else { u64::from(*size) * MIB };
                start_s + times * call.allowed_s(bytes, u64::from(self.ranks), link)
            };
            self.sizes.iter().take(sizes).map(one).sum::<f64>()
        };
        CALLS.iter().map(of).sum()
    }

    fn library_missing(&self) -> Option<String> {
        let text = || format!("no {}: make collectives, or name it with --library", self.library.display());
        (!self.library.is_file()).then(text)
    }

    /// What would be run, and about how long it takes.
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

    /// Measures all, with a progress bar; writes `samples.jsonl` as it goes, `table.txt` and `report.html` at the end.
    ///
    /// # Errors
    /// Where something is missing, or the folder cannot be written. Runs that fail, or do not end in time, are samples.
    pub fn run(&self) -> Result<Came, BenchError> {
        let out = &self.tools.out;
        let steps = self.steps();
        if let Some(why) = steps.iter().find_map(|step| step.missing.clone()) {
            return Err(BenchError::Missing(why));
        }
        fs::create_dir_all(out).map_err(BenchError::file(out))?;
        let path = out.join(SAMPLES);
        let mut log = Log::open(&path, self.resume)?;
        let mut runner = Runner::new(&self.tools, self.form, self.version.clone())?;
        take_all(NAME, steps, &mut runner, &mut log, &|| false).map_err(BenchError::file(&path))?;
        write_report(out, &log.taken)?;
        let failed = log.taken.iter().filter(|sample| sample.error.is_some()).count();
        Ok(Came { failed, left: 0 })
    }

    /// Makes the report of what is in a folder again.
    ///
    /// # Errors
    /// Where there are no samples, or the folder cannot be written.
    pub fn render(folder: &Path) -> Result<Came, BenchError> {
        let taken = recorded(folder)?;
        write_report(folder, &taken)?;
        Ok(Came { failed: taken.iter().filter(|sample| sample.error.is_some()).count(), left: 0 })
    }
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
    write("report.html", report::html(taken))
}

#[cfg(test)]
mod tests;
