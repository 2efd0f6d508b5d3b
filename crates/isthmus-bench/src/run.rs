//! The runs themselves: each in a lab of its own, all contenders in turn.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use time::OffsetDateTime;

use crate::BenchError;
use crate::contender::Contender;
use crate::link::Link;
use crate::matrix::{Matrix, Work};
use crate::sample::{Sample, Shares};
use crate::{beside, html, lab, sample, table};

const PROGRAM: &str = include_str!("program.c");
/// How long after it was asked for a late message's receive is posted, beyond a round trip.
/// Microseconds.
const LATE_US: u64 = 20_000;

/// Where the parts are that take part.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The isthmus command.
    pub isthmus: PathBuf,
    /// The folder of the provider.
    pub provider: PathBuf,
    /// The folder of an MPICH: `bin/mpiexec`, `bin/mpicc`.
    pub mpi: PathBuf,
    /// Where samples, table and report go.
    pub out: PathBuf,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Where everything is.
    pub paths: Paths,
    /// What is measured.
    pub matrix: Matrix,
    /// Isthmus' version, for samples.
    pub version: String,
    /// Samples that are in the folder already count, and are not measured again.
    pub resume: bool,
    /// No run begins after so long.
    pub no_longer: Option<Duration>,
}

impl Bench {
    /// Measures all, with a progress bar, and writes `samples.jsonl` as it goes, `table.txt` and
    /// `report.html` at the end. Returns the samples, and how many runs are still to be made.
    ///
    /// # Errors
    /// Where something is missing, or the folder cannot be written. Runs that fail are samples.
    pub fn run(&self) -> Result<(Vec<Sample>, usize), BenchError> {
        self.check()?;
        let out = &self.paths.out;
        fs::create_dir_all(out).map_err(BenchError::file(out))?;
        let work = tempfile::tempdir().map_err(BenchError::file("a temporary folder"))?;
        let program = self.compile(work.path())?;
        let lines = out.join("samples.jsonl");
        let mut samples = if self.resume { sample::earlier(&lines)? } else { Vec::new() };
        let mut lines_file = File::create(&lines).map_err(BenchError::file(&lines))?;
        for sample in &samples {
            writeln!(lines_file, "{}", line_of(sample)).map_err(BenchError::file(&lines))?;
        }
        let plan: Vec<_> =
            self.plan().into_iter().filter(|step| !samples.iter().any(|s| is_of(s, step))).collect();
        let bar = progress(plan.len() as u64);
        let began = Instant::now();
        let mut left = plan.len();
        for (run, link, kind, contender) in plan {
            if self.no_longer.is_some_and(|most| began.elapsed() > most) {
                break;
            }
            bar.set_message(format!("{contender}, {} {}", kind.name(), link.title()));
            let sample = self.measure(run, link, kind, contender, &program, work.path());
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

    /// All runs in their order: contenders of one cell after each other, then the next cell,
    /// then all of it again.
    fn plan(&self) -> Vec<(u32, Link, Work, Contender)> {
        let mut plan = Vec::new();
        for run in 1..=self.matrix.runs {
            for (link, work) in &self.matrix.cells {
                let suited = self.matrix.contenders.iter().filter(|one| work.suits(**one));
                plan.extend(suited.map(|one| (run, *link, *work, *one)));
            }
        }
        plan
    }

    fn check(&self) -> Result<(), BenchError> {
        let missing = |text: String| Err(BenchError::Missing(text));
        let of_mpi = self.matrix.contenders.iter().any(|one| one.is_mpi());
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

    fn measure(
        &self,
        run: u32,
        link: Link,
        work: Work,
        contender: Contender,
        program: &Path,
        folder: &Path,
    ) -> Sample {
        let report = folder.join("report.json");
        let _ = fs::remove_file(&report); // of the run before; none of the first
        let floor_s = work.floor_s(&link);
        let inside = match contender {
            Contender::Iperf(control, streams) => iperf(work, control, streams),
            Contender::Beside(control) => {
                let mpi = self.mpi(work, &link, contender, program);
                hub(&beside::script(control, work.amount(), &mpi))
            }
            _ => hub(&format!("exec {}", self.mpi(work, &link, contender, program))),
        };
        let limit = lab::limit_s(floor_s);
        let control = contender.congestion();
        let mut lab = lab::command(&self.paths.isthmus, &link, run, limit, control, &report);
        lab.args(&inside).stdin(Stdio::null());
        let at = OffsetDateTime::now_utc().unix_timestamp();
        let outcome = match lab.output() {
            Err(error) => Err(format!("cannot start the lab: {error}")),
            Ok(ended) => outcome(contender, work, &link, &ended, limit),
        };
        let emulator = fs::read(&report).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(error) => (Outcome::default(), Some(error)),
        };
        Sample {
            at,
            version: self.version.clone(),
            kernel: lab::kernel(),
            run,
            link,
            work: work.name().to_owned(),
            bytes: work.bytes(),
            contender: contender.to_string(),
            congestion: contender.congestion().map(str::to_owned),
            command: inside.join(" "),
            floor_s,
            seconds: outcome.seconds,
            round_trips_us: outcome.round_trips_us,
            shares: outcome.shares,
            error,
            emulator: emulator.unwrap_or(Value::Null),
        }
    }

    /// The command for an MPI job of one rank at each site.
    fn mpi(&self, work: Work, link: &Link, contender: Contender, program: &Path) -> String {
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
        } else {
            set("FI_PROVIDER", "'tcp;ofi_rxm'");
            set("FI_TCP_IFACE", "wan0");
        }
        if let Contender::IsthmusBy(transport) = contender {
            set("FI_ISTHMUS_TRANSPORT", transport);
        }
        let amount = match work {
            Work::Late(bytes) => format!("{bytes} {}", link.rtt.0 / 1_000 + LATE_US),
            Work::Share(seconds) => beside::bytes(link, seconds.into()).to_string(),
            _ => work.amount().to_string(),
        };
        line + &format!(" {} {} {amount}", quoted(program), work.name())
    }
}

/// The lab's arguments for a command at its login node.
fn hub(line: &str) -> Vec<String> {
    ["--", "sh", "-c", line].map(str::to_owned).to_vec()
}

/// The lab's arguments for iperf3 between the sites.
fn iperf(work: Work, control: &str, streams: u32) -> Vec<String> {
    let client = format!("sleep 0.5; exec iperf3 -c b -n {} -C {control} -P {streams} -J", work.amount());
    ["--in", "b", "exec iperf3 -s -1 > /dev/null", "--in", "a", &client].map(str::to_owned).to_vec()
}

/// What a run came to; the fields are [`Sample`]'s.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    seconds: Option<f64>,
    round_trips_us: Vec<f64>,
    shares: Option<Shares>,
}

/// What came of a run, or why nothing did.
fn outcome(
    contender: Contender,
    work: Work,
    link: &Link,
    ended: &std::process::Output,
    limit: f64,
) -> Result<Outcome, String> {
    let said = String::from_utf8_lossy(&ended.stdout);
    if !ended.status.success() {
        return Err(lab::why(ended, limit));
    }
    let none = || format!("no result: {}", lab::last_line(&said));
    if let Contender::Beside(_) = contender {
        let (seconds, shares) = beside::shares(&said, link, work.amount())?;
        return Ok(Outcome { seconds: Some(seconds), shares: Some(shares), ..Outcome::default() });
    }
    if contender.is_mpi() {
        let line = said.lines().find_map(|line| line.strip_prefix("RESULT ")).ok_or_else(none)?;
        let result: Value = serde_json::from_str(line).map_err(|_| none())?;
        let trips = result["round_trips_us"].as_array().map(Vec::as_slice).unwrap_or_default();
        let seconds = result["seconds"].as_f64().ok_or_else(none)?;
        let round_trips_us = trips.iter().filter_map(Value::as_f64).collect();
        return Ok(Outcome { seconds: Some(seconds), round_trips_us, shares: None });
    }
    let result: Value = serde_json::from_str(&said).map_err(|_| none())?;
    let received = &result["end"]["sum_received"];
    let [took, came] = ["seconds", "bytes"].map(|key| received[key].as_f64().filter(|value| *value > 0.0));
    let (Some(took), Some(came)) = (took, came) else { return Err(result["error"].to_string()) };
    // It ends when all was sent, which is before all has come: at the rate of what had.
    Ok(Outcome { seconds: Some(took * work.bytes() as f64 / came), ..Outcome::default() })
}

fn line_of(sample: &Sample) -> String {
    serde_json::to_string(sample).unwrap_or_default()
}

/// Whether a sample is of this step of the plan.
fn is_of(sample: &Sample, (run, link, work, contender): &(u32, Link, Work, Contender)) -> bool {
    (sample.run, sample.bytes) == (*run, work.bytes())
        && sample.link == *link
        && sample.work == work.name()
        && sample.contender == contender.to_string()
}

fn said(sample: &Sample) -> String {
    let what = format!("{:17} {:9} {:16}", sample.contender, sample.work, sample.link.title());
    let spoiled = if sample.spoiled() { "  (the emulator was late)" } else { "" };
    match (&sample.seconds, &sample.error) {
        (Some(seconds), _) => {
            let came = sample.shares.map_or_else(
                || format!("{:.3} of the floor", sample.fraction()),
                |Shares { ours, theirs }| format!("{theirs:.3} of the link, ours {ours:.3}"),
            );
            format!("{what} {seconds:8.3} s  {came}{spoiled}")
        }
        (None, error) => format!("{what} failed: {}", error.as_deref().unwrap_or("?")),
    }
}

pub(crate) fn progress(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    use isthmus_units::{Percent, Rate, Span};

    use super::*;

    fn ended(status: i32, out: &str, err: &str) -> Output {
        Output { status: ExitStatus::from_raw(status << 8), stdout: out.into(), stderr: err.into() }
    }

    #[test]
    fn results_are_found_and_failures_say_why() {
        let link = Link { rate: Rate(1_000_000), rtt: Span(0), loss: Percent(0.0), mtu: 9_000 };
        let outcome = |contender, status: i32, out: &str, err: &str, limit| {
            super::outcome(contender, Work::Stream(8), &link, &ended(status, out, err), limit)
        };
        let took = |seconds, trips: &[f64]| {
            Ok(Outcome { seconds: Some(seconds), round_trips_us: trips.to_vec(), shares: None })
        };
        let good = "warning\nRESULT {\"seconds\": 4.5, \"round_trips_us\": [1.0, 2.5]}\n";
        assert_eq!(outcome(Contender::Isthmus, 0, good, "", 1.0), took(4.5, &[1.0, 2.5]));
        let late = outcome(Contender::Isthmus, 3, "", "isthmus lab: time is up\n", 30.0);
        assert!(late.expect_err("failed").contains("within 30 s: isthmus lab: time is up"));
        assert!(outcome(Contender::Isthmus, 0, "nothing\n", "", 1.0).is_err());
        let json = "{\"end\": {\"sum_received\": {\"seconds\": 2.25, \"bytes\": 4}}}";
        assert_eq!(outcome(Contender::Iperf("bbr", 1), 0, json, "", 1.0), took(4.5, &[]));
        let refused = outcome(Contender::Iperf("bbr", 1), 0, "{\"error\": \"refused\"}", "", 1.0);
        assert_eq!(refused, Err("\"refused\"".to_owned()));
    }
}
