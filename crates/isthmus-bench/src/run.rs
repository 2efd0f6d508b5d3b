//! Makes the runs: each in its own lab, with the contenders in turn.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use isthmus_lab::catalogue::NamedLink;
use serde_json::Value;
use time::OffsetDateTime;

use crate::BenchError;
use crate::choices::Choices;
use crate::contender::Contender;
use crate::link::EmulatedLink;
use crate::matrix::{Matrix, OUTAGE_S, Step, Work};
use crate::outcome::{Ended, Outcome, outcome};
use crate::sample::{Sample, Shares};
use crate::{beside, html, lab, matrix, sample, table};

const PROGRAM: &str = include_str!("program.c");
/// Extra time of the lab beyond the run's limit, for its start and end. Seconds.
const GRACE_S: f64 = 10.0;
/// Extra time of iperf3, for its control connection. Seconds.
const IPERF_GRACE_S: f64 = 1.0;
/// Outage length of a link that is cut for good: longer than any run. Seconds.
const EVER_S: f64 = 10_000.0;
/// Delay of a late receive after the message was requested, beyond a round trip. Microseconds.
const LATE_US: u64 = 20_000;

/// Paths of everything that takes part.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The isthmus command.
    pub isthmus: PathBuf,
    /// The folder of the libfabric provider.
    pub provider: PathBuf,
    /// The folder of an MPICH: `bin/mpiexec`, `bin/mpicc`.
    pub mpi: PathBuf,
    /// The folder for samples, table and report.
    pub out: PathBuf,
}

/// A benchmark. `run` makes its runs and writes the report.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Paths of everything that takes part.
    pub paths: Paths,
    /// The plan.
    pub matrix: Matrix,
    /// Isthmus' version, for samples.
    pub version: String,
    /// Keep the samples that are in the folder, and do not measure them again.
    pub resume: bool,
    /// No run begins after this time.
    pub no_longer: Option<Duration>,
    /// Time limit of each run, from its `BEGAN` line on. Default: depends on the run's floor.
    pub limit: Option<Duration>,
}

impl Bench {
    /// Makes all runs, with a progress bar. Appends to `samples.jsonl` after each run, and writes `table.txt` and
    /// `report.html` at the end. Returns the samples, and the number of runs still to make.
    ///
    /// # Errors
    /// If something is missing, or the folder cannot be written. Runs that fail or do not end in time are
    /// samples, not errors.
    pub fn run(&self) -> Result<(Vec<Sample>, usize), BenchError> {
        self.check()?;
        let out = &self.paths.out;
        fs::create_dir_all(out).map_err(BenchError::file(out))?;
        let work = tempfile::tempdir().map_err(BenchError::file("a temporary folder"))?;
        let of_mpi = self.matrix.contenders.iter().any(|one| !one.is_iperf());
        let program = if of_mpi { self.compile(work.path())? } else { PathBuf::new() };
        let lines = out.join("samples.jsonl");
        let mut samples = if self.resume { sample::earlier(&lines)? } else { Vec::new() };
        let mut lines_file = File::create(&lines).map_err(BenchError::file(&lines))?;
        for sample in &samples {
            writeln!(lines_file, "{}", line_of(sample)).map_err(BenchError::file(&lines))?;
        }
        let mut steps = self.matrix.steps();
        steps.retain(|step| !samples.iter().any(|sample| is_of(sample, step)));
        let bar = progress(steps.len() as u64);
        let began = Instant::now();
        let mut left = steps.len();
        for step in steps {
            if self.no_longer.is_some_and(|most| began.elapsed() > most) {
                break;
            }
            bar.set_message(format!("{}, {} {}", step.contender, step.work.name(), step.link.title()));
            let sample = self.measure(&step, &program, work.path())?;
            writeln!(lines_file, "{}", line_of(&sample)).map_err(BenchError::file(&lines))?;
            left -= 1;
            bar.println(said(&sample));
            samples.push(sample);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let write = |name: &str, text: String| {
            let path = out.join(name);
            fs::write(&path, text).map_err(BenchError::file(path))
        };
        write("table.txt", table::text(&samples))?;
        write("report.html", html::page(&samples))?;
        Ok((samples, left))
    }

    fn check(&self) -> Result<(), BenchError> {
        let missing = |text: String| Err(BenchError::Missing(text));
        if self.matrix.count() == 0 {
            return missing(
                "nobody who is measured does such work on such links (isthmus bench wan --help)".into(),
            );
        }
        let of_mpi = self.matrix.contenders.iter().any(|one| !one.is_iperf());
        for tool in ["mpiexec", "mpicc"].map(|tool| self.paths.mpi.join("bin").join(tool)) {
            if of_mpi && !tool.is_file() {
                return missing(format!("{} is missing; name an MPICH with --mpi DIR", tool.display()));
            }
        }
        let of_iperf = self.matrix.contenders.iter().any(|one| one.has_iperf());
        let iperf = Command::new("iperf3").arg("--version").stdout(Stdio::null()).status();
        if of_iperf && !iperf.is_ok_and(|status| status.success()) {
            return missing("iperf3 is missing; install it, or leave it out with --with".to_owned());
        }
        Ok(())
    }

    fn compile(&self, folder: &Path) -> Result<PathBuf, BenchError> {
        let (source, program) = (folder.join("program.c"), folder.join("program"));
        fs::write(&source, PROGRAM).map_err(BenchError::file(&source))?;
        let mpicc = self.paths.mpi.join("bin/mpicc");
        let made = Command::new(&mpicc).args(["-O2", "-o"]).arg(&program).arg(&source).output();
        let made = made.map_err(BenchError::file(mpicc))?;
        if made.status.success() {
            Ok(program)
        } else {
            Err(BenchError::Compile(String::from_utf8_lossy(&made.stderr).into_owned()))
        }
    }

    /// Shortest time of a run, and its limit. Seconds.
    fn times_s(&self, link: EmulatedLink, work: Work, entry: Option<&NamedLink>) -> (f64, f64) {
        let (floor_s, usual_s) = match entry {
            Some(entry) => {
                let floor_s = link.floor_from_s(entry, work.bytes(), matrix::START_S);
                (floor_s, lab::catalogue_limit_s(floor_s))
            }
            None => {
                let floor_s = work.floor_s(&link);
                (floor_s, lab::limit_s(floor_s + work.patience_s(&link)))
            }
        };
        (floor_s, self.limit.map_or(usual_s, |limit| limit.as_secs_f64()))
    }

    fn measure(&self, step: &Step, program: &Path, folder: &Path) -> Result<Sample, BenchError> {
        let Step { run, seed, link, work, contender } = *step;
        let [report, config] = ["report.json", "lab.toml"].map(|name| folder.join(name));
        let _ = fs::remove_file(&report); // left by the run before
        let entry = self.matrix.entry(&link);
        let (floor_s, limit_s) = self.times_s(link, work, entry);
        let line = match contender {
            Contender::Iperf(control, streams) => iperf(work, control, streams, limit_s),
            Contender::Beside(control) => {
                beside::script(control, work.amount(), &self.mpi(step, 0.0, program))
            }
            _ => format!("exec {}", self.mpi(step, limit_s, program)),
        };
        let congestion = Some(contender.sites_congestion());
        let text = match entry {
            Some(entry) => lab::sites(congestion) + &entry.text(seed),
            None => lab::config(&links(step), seed, congestion),
        };
        fs::write(&config, &text).map_err(BenchError::file(&config))?;
        let mut lab = lab::command(&self.paths.isthmus, &config, limit_s + GRACE_S, &report);
        lab.args(["--", "sh", "-c", &line]).stdin(Stdio::null());
        let at = OffsetDateTime::now_utc().unix_timestamp();
        let ended = lab.output();
        let emulator = fs::read(&report).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let emulator = emulator.unwrap_or(Value::Null);
        let mut choices = Choices::default();
        let came = match &ended {
            Err(error) => Err(format!("cannot start the lab: {error}")),
            Ok(ended) => {
                let [said, complained] =
                    [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                choices = Choices::of(&complained);
                let complained = &choices.complaints;
                let ended = Ended {
                    status: ended.status,
                    said: &said,
                    complained,
                    limit_s,
                    emulator: &emulator,
                    entry,
                };
                outcome(step, &ended)
            }
        };
        let (came, error) = match came {
            Ok(came) => (came, None),
            Err(error) => (Outcome::default(), Some(error)),
        };
        let sites = (!contender.is_ours()).then(|| contender.sites_congestion().to_owned());
        Ok(Sample {
            at,
            version: self.version.clone(),
            kernel: lab::kernel(),
            run,
            seed,
            link,
            second: work.second(),
            lab: text,
            work: work.name().to_owned(),
            ahead: work.ahead(),
            bytes: work.bytes(),
            contender: contender.to_string(),
            congestion: came.congestion.or_else(|| choices.congestion()).or(sites),
            choices: choices.lines,
            command: line,
            floor_s: came.floor_s.unwrap_or(floor_s),
            seconds: came.seconds,
            not_ended_s: came.not_ended_s,
            resumed_s: came.resumed_s,
            round_trips_us: came.round_trips_us,
            shares: came.shares,
            error,
            emulator,
        })
    }

    /// The command line of an MPI job with one rank at each site.
    fn mpi(&self, step: &Step, limit_s: f64, program: &Path) -> String {
        let Step { seed, link, work, contender, .. } = step;
        let quoted = |path: &Path| lab::quoted(&path.display().to_string());
        let mut line = format!(
            "{} -launcher rsh -launcher-exec \"$ISTHMUS_LAB_RSH\" -hosts a,b -iface mgmt0 -ppn 1 -n 2",
            quoted(&self.paths.mpi.join("bin/mpiexec"))
        );
        let mut set = |name: &str, value: &str| line += &format!(" -genv {name} {value}");
        set("MPIR_CVAR_CH4_NETMOD", "ofi");
        set("MPIR_CVAR_NOLOCAL", "1");
        if contender.is_ours() {
            set("FI_PROVIDER", "isthmus");
            set("FI_PROVIDER_PATH", &quoted(&self.paths.provider));
            set("FI_ISTHMUS_INTERFACE", "wan0");
            // At this level the provider logs its choices.
            set("FI_LOG_LEVEL", "info");
            set("FI_LOG_PROV", "isthmus");
        } else {
            set("FI_PROVIDER", "'tcp;ofi_rxm'");
            set("FI_TCP_IFACE", "wan0");
        }
        match contender {
            Contender::IsthmusBy(transport) => set("FI_ISTHMUS_TRANSPORT", transport),
            Contender::Transfer(how) => set("FI_ISTHMUS_TRANSFER", how),
            _ => {}
        }
        if work.second().is_some() {
            set("FI_ISTHMUS_RAILS", "wan1");
        }
        let amount = work.amount();
        let what = match work {
            Work::Late(_) => format!("late {amount} {}", link.rtt.0 / 1_000 + LATE_US),
            Work::Share(seconds) => format!("share {}", beside::bytes(link, (*seconds).into())),
            Work::Preposted { ahead, .. } => {
                let (uncounted, bytes) = (work.uncounted(), Work::PREPOSTED);
                format!("preposted {amount} {uncounted} {bytes} {ahead} {seed}")
            }
            Work::Paths { .. } => format!("stream {amount}"),
            _ => format!("{} {amount}", work.name()),
        };
        line + &format!(" {} {limit_s} {what}", quoted(program))
    }
}

/// The lab's links, each with the start and length of its outage, if any.
fn links(step: &Step) -> Vec<(EmulatedLink, Option<(f64, f64)>)> {
    let Step { link, work, .. } = step;
    let down = |length_s| work.down_at_s(link).map(|at_s| (at_s, length_s));
    match work.second() {
        None => vec![(*link, down(OUTAGE_S))],
        Some(second) => vec![(*link, None), (second, down(EVER_S))],
    }
}

/// Script for the lab's login node: runs iperf3 between the sites.
fn iperf(work: Work, control: &str, streams: u32, limit_s: f64) -> String {
    let client = format!("iperf3 -c b -n {} -C {control} -P {streams} -J", work.amount());
    let limit_s = limit_s + IPERF_GRACE_S;
    let listens = lab::quoted(&lab::until_listens(lab::IPERF_PORT));
    format!(
        "lab-rsh b iperf3 -s -1 > /dev/null & lab-rsh b {listens} || exit 3; \
         exec lab-rsh a timeout {limit_s} {client}"
    )
}

fn line_of(sample: &Sample) -> String {
    serde_json::to_string(sample).unwrap_or_default()
}

/// Whether a sample is the result of this step.
fn is_of(sample: &Sample, step: &Step) -> bool {
    let Step { run, seed, link, work, contender } = step;
    (sample.run, sample.seed, sample.link) == (*run, *seed, *link)
        && (sample.work.as_str(), sample.bytes) == (work.name(), work.bytes())
        && (sample.ahead, sample.second) == (work.ahead(), work.second())
        && sample.contender == contender.to_string()
}

fn said(sample: &Sample) -> String {
    let what = format!("{:50}", sample.title());
    let spoiled = if sample.spoiled() { "  (the emulator was late)" } else { "" };
    match (sample.seconds, sample.not_ended_s) {
        (Some(seconds), _) => {
            let came = match (sample.shares, sample.resumed_s) {
                (Some(Shares { ours, theirs }), _) => format!("{theirs:.3} of the link, ours {ours:.3}"),
                (_, Some(resumed)) => {
                    format!("data again {:.2} round trips after the outage", resumed / sample.link.rtt_s())
                }
                _ => format!("{:.3} of the limit", sample.fraction()),
            };
            format!("{what} {seconds:8.3} s  {came}{spoiled}")
        }
        (None, Some(limit)) => {
            format!("{what} not ended after {limit:.0} s: at most {:.1} Mb/s{spoiled}", sample.mbps())
        }
        (None, None) => format!("{what} failed: {}", sample.error.as_deref().unwrap_or("?")),
    }
}

pub(crate) fn progress(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
