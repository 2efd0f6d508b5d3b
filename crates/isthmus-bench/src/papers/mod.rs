//! Benchmark that repeats the experiments of the project's source papers: one report, one section per experiment.
//!
//! A section plans steps (`step`). They run one after the other, each in its own lab (`runner`). Each result is a
//! line of `samples.jsonl` (`sample`). From these lines alone each section writes its part of the report (`page`,
//! `chart`), beside the paper's figures (`published`). So a report can be made again later.

pub(crate) mod chart;
pub(crate) mod page;
mod published;
pub(crate) mod runner;
pub(crate) mod sample;
pub(crate) mod section;
pub(crate) mod step;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use isthmus_units::Rate;

use crate::BenchError;
use crate::run::progress;
use page::Part;
use runner::Runner;
use sample::Taken;
use section::{SECTIONS, Section, Told};
use step::{Context, Step};

pub use step::{Form, Tools};

/// Rates tried, in this order, to find the highest that the emulator carries truthfully. Gb/s.
const LADDER: [u64; 7] = [10, 8, 6, 5, 4, 3, 2];
const GIGABIT: u64 = 1_000_000_000;
/// Fact that marks the runs of this search.
const PROBE: &str = "probe";
const TITLE: &str = "The papers, measured";
/// The samples' file in the folder of results, one sample per line.
pub(crate) const SAMPLES: &str = "samples.jsonl";

/// The benchmark. `run` makes it.
#[derive(Clone, Debug)]
pub struct Papers {
    /// Paths of everything that takes part.
    pub tools: Tools,
    /// How much is measured.
    pub form: Form,
    /// Names of the sections to measure. Empty: all.
    pub only: Vec<String>,
    /// Isthmus' version, for samples.
    pub version: String,
    /// Keep the samples with a result that are in the folder, and do not measure them again.
    pub resume: bool,
    /// No run begins after this time.
    pub no_longer: Option<Duration>,
}

/// Counts of runs that gave no result or were not made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// Runs that gave no result.
    pub failed: usize,
    /// Runs still to be made.
    pub left: usize,
}

impl Papers {
    /// Names of all sections, in order.
    pub fn names() -> Vec<&'static str> {
        SECTIONS.iter().map(|section| section.name()).collect()
    }

    fn sections(&self) -> impl Iterator<Item = &'static dyn Section> {
        SECTIONS
            .iter()
            .copied()
            .filter(|one| self.only.is_empty() || self.only.iter().any(|name| name == one.name()))
    }

    fn context(&self) -> Context<'_> {
        Context { tools: &self.tools, form: self.form }
    }

    /// Lists the runs, with about how long each takes.
    pub fn dry_run(&self) -> String {
        let (context, mut out, mut all_s) = (self.context(), String::new(), 0.0);
        for section in self.sections() {
            let highest = Rate(LADDER[0] * GIGABIT);
            let mut steps: Vec<Step> = section.probe(&context, highest).into_iter().collect();
            steps.extend(section.plan(&context, highest));
            let seconds: f64 = steps.iter().map(Step::expected_s).sum();
            let _ = writeln!(
                out,
                "{}: {} runs, about {seconds:.0} s: {}",
                section.name(),
                steps.len(),
                section.title()
            );
            for step in &steps {
                let missing =
                    step.missing.as_ref().map_or(String::new(), |why| format!(" (left out: {why})"));
                let _ = writeln!(out, "  {:4.0} s  {}{missing}", step.expected_s(), step.title());
            }
            all_s += seconds;
        }
        let _ = writeln!(
            out,
            "about {:.0} min in all, at the highest rate of each section",
            (all_s / 60.0).ceil()
        );
        out
    }

    /// Measures all sections, with a progress bar. Writes `samples.jsonl` after each run, and the report at the end.
    ///
    /// # Errors
    /// If the folder cannot be used. Runs that fail or do not end in time are samples.
    pub fn run(&self) -> Result<Came, BenchError> {
        let out = &self.tools.out;
        fs::create_dir_all(out).map_err(BenchError::file(out))?;
        let path = out.join(SAMPLES);
        let is_wanted = |name: &str| self.sections().any(|section| section.name() == name);
        let mut log = Log::open(&path, self.resume, is_wanted)?;
        let mut runner = Runner::new(&self.tools, self.form, self.version.clone())?;
        let began = Instant::now();
        let mut came = Came::default();
        for section in self.sections() {
            let is_over = || self.no_longer.is_some_and(|most| began.elapsed() > most);
            came.left +=
                self.measure(section, &mut runner, &mut log, &is_over).map_err(BenchError::file(&path))?;
        }
        came.failed = log.taken.iter().filter(|sample| sample.error.is_some() && !is_probe(sample)).count();
        write_report(out, &log.taken)?;
        Ok(came)
    }

    /// Measures one section. Returns the number of runs left.
    fn measure(
        &self,
        section: &'static dyn Section,
        runner: &mut Runner<'_>,
        log: &mut Log,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<usize> {
        let (context, name) = (self.context(), section.name());
        let mut highest = Rate(GIGABIT);
        for rate in LADDER.map(|rate| Rate(rate * GIGABIT)) {
            let Some(step) = section.probe(&context, rate).map(|step| step.with(PROBE, "yes")) else { break };
            if log.find(name, &step).is_none() && !is_over() {
                let sample = runner.take(name, &step);
                errln(&said(&sample));
                log.add(sample)?;
            }
            if log.find(name, &step).is_some_and(|sample| sample.error.is_none() && !sample.spoiled()) {
                highest = rate;
                break;
            }
        }
        let left = take_all(name, section.plan(&context, highest), runner, log, is_over)?;
        let own: Vec<&Taken> = log.taken.iter().filter(|sample| sample.section == name).collect();
        let again = section.again(&context, &own);
        Ok(left + take_all(name, again, runner, log, is_over)?)
    }
}

/// Runs all steps that have no sample yet. Returns the number of steps left.
pub(crate) fn take_all(
    name: &str,
    mut steps: Vec<Step>,
    runner: &mut Runner<'_>,
    log: &mut Log,
    is_over: &dyn Fn() -> bool,
) -> io::Result<usize> {
    steps.retain(|step| log.find(name, step).is_none());
    let bar = progress(steps.len() as u64);
    let mut left = steps.len();
    for step in &steps {
        if is_over() {
            break;
        }
        bar.set_message(format!("{name}: {}", step.title()));
        let sample = runner.take(name, step);
        bar.suspend(|| errln(&said(&sample)));
        log.add(sample)?;
        left -= 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(left)
}

/// Makes the report of a folder's samples again. Returns the number of samples.
///
/// # Errors
/// If there are no samples, or the folder cannot be written.
pub fn render(folder: &Path) -> Result<usize, BenchError> {
    let taken = recorded(folder)?;
    write_report(folder, &taken)?;
    Ok(taken.len())
}

/// The samples in a folder.
pub(crate) fn recorded(folder: &Path) -> Result<Vec<Taken>, BenchError> {
    let path = folder.join(SAMPLES);
    let taken = read(&path)?;
    if taken.is_empty() {
        let text = format!("{} has no samples; name the folder that --out named", path.display());
        return Err(BenchError::Missing(text));
    }
    Ok(taken)
}

fn is_probe(sample: &Taken) -> bool {
    sample.facts.contains_key(PROBE)
}

/// Whether a run need not be made again. A failed search for the highest rate is a result: the next rate was tried.
fn stands(sample: &Taken) -> bool {
    sample.missing.is_none() && (sample.error.is_none() || is_probe(sample))
}

fn errln(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// All samples, in memory and in the file.
pub(crate) struct Log {
    file: File,
    pub(crate) taken: Vec<Taken>,
}

impl Log {
    /// With `resume`, keeps the samples of the file that have a result; runs that failed, or for which something was
    /// missing, are made again if they are of a section that is measured (`is_wanted`). Else removes all. The file is
    /// replaced at once, so that no interruption costs samples.
    pub(crate) fn open(
        path: &Path,
        resume: bool,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, BenchError> {
        let earlier = if resume { read(path)? } else { Vec::new() };
        let new = path.with_extension("jsonl.new");
        let mut log = Self { file: File::create(&new).map_err(BenchError::file(&new))?, taken: Vec::new() };
        for sample in earlier.into_iter().filter(|sample| stands(sample) || !is_wanted(&sample.section)) {
            log.add(sample).map_err(BenchError::file(&new))?;
        }
        fs::rename(&new, path).map_err(BenchError::file(path))?;
        Ok(log)
    }

    fn add(&mut self, sample: Taken) -> io::Result<()> {
        writeln!(self.file, "{}", serde_json::to_string(&sample).unwrap_or_default())?;
        self.taken.push(sample);
        Ok(())
    }

    /// The sample of a step, if there is one.
    fn find(&self, section: &str, step: &Step) -> Option<&Taken> {
        let is_of = |sample: &&Taken| {
            (sample.section.as_str(), &sample.contender, &sample.facts, sample.link)
                == (section, &step.contender, &step.facts, step.link)
        };
        self.taken.iter().find(is_of)
    }
}

/// Reads a file's samples; none if there is no file. Skips an incomplete last line: its writer was interrupted.
fn read(path: &Path) -> Result<Vec<Taken>, BenchError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(BenchError::file(path))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(number, line): (usize, &str)| {
        let complain =
            |error| BenchError::Missing(format!("{}, line {}: {error}", path.display(), number + 1));
        serde_json::from_str(line).map_err(complain)
    };
    whole.lines().enumerate().map(parse).collect()
}

/// One run as a line of text.
fn said(sample: &Taken) -> String {
    let spoiled = if sample.spoiled() { " (the emulator was late)" } else { "" };
    let came = match (&sample.missing, &sample.error, sample.not_ended_s, sample.number("seconds")) {
        (Some(why), ..) => format!("left out: {why}"),
        (_, Some(error), ..) => format!("failed: {error}"),
        (_, _, Some(limit), _) => format!("not ended after {limit:.0} s"),
        (.., Some(seconds)) if sample.floor_s > 0.0 && sample.results.len() == 1 => {
            format!("{seconds:.3} s, {:.3} of the limit", sample.floor_s / seconds)
        }
        _ => format!("done in {:.1} s", sample.took_s),
    };
    format!("{}: {} ... {came}{spoiled}", sample.section, sample.title())
}

fn write_report(out: &Path, taken: &[Taken]) -> Result<(), BenchError> {
    let parts = parts(taken);
    let write = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).map_err(BenchError::file(path))
    };
    write("papers.html", &page::html(TITLE, &parts))?;
    let (text, pictures) = page::markdown(TITLE, &parts);
    write("papers.md", &text)?;
    let folder = out.join("pictures");
    fs::create_dir_all(&folder).map_err(BenchError::file(folder))?;
    pictures.iter().try_for_each(|(name, svg)| write(&format!("pictures/{name}"), svg))
}

/// The report's parts.
fn parts(taken: &[Taken]) -> Vec<Part> {
    let mut parts = vec![section::circumstances(taken)];
    for section in SECTIONS {
        let own: Vec<&Taken> = taken.iter().filter(|sample| sample.section == section.name()).collect();
        let told = Told::new(own);
        let mut blocks = section::sources(section.papers());
        if told.is_empty() {
            blocks.push(page::Block::text(format!(
                "Not measured in this run: `isthmus bench papers --only {}` does.",
                section.name()
            )));
        } else {
            blocks.extend(section.tell(&told));
            blocks.extend(section::trouble(&told));
        }
        parts.push(Part { title: section.title().to_owned(), blocks });
    }
    parts.push(section::absent());
    parts
}

#[cfg(test)]
mod tests;
