//! Runs steps: each in its own lab and with a time limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::{Map, Value};
use tempfile::TempDir;
use time::OffsetDateTime;

use super::sample::Taken;
use super::step::{Form, Mpi, Program, Step, Tools};
use crate::BenchError;
use crate::choices::Choices;
use crate::files::source;
use crate::lab;

const TRANSFER: &str = include_str!("transfer.c");
const MESSAGES: &str = include_str!("messages.c");
const WAN: &str = include_str!("../program.c");
const COLLECTIVES: &str = include_str!("../collectives/program.c");
/// Files up to this length are in memory. Bytes.
const IN_MEMORY: u64 = 2_000_000_000;
/// Extra time for a lab to end after its limit, before it is killed. Seconds.
const GRACE_S: f64 = 15.0;
/// Prefix of the folders of files. The id of the process that made one follows.
const PREFIX: &str = "isthmus-papers-";
/// Most lines kept of a run's output. Count.
const KEPT: usize = 60;

pub(crate) struct Runner<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) form: Form,
    pub(crate) version: String,
    work: TempDir,
    compiled: Vec<Program>,
    /// The folder of files, and the length of its file in bytes.
    files: Option<(TempDir, u64)>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(tools: &'a Tools, form: Form, version: String) -> Result<Self, BenchError> {
        let work = tempfile::tempdir().map_err(BenchError::file("a temporary folder"))?;
        Ok(Self { tools, form, version, work, compiled: Vec::new(), files: None })
    }

    /// Runs a step. The sample has the error, if any.
    pub(crate) fn take(&mut self, section: &str, step: &Step) -> Taken {
        let mut taken = Taken {
            at: OffsetDateTime::now_utc().unix_timestamp(),
            version: self.version.clone(),
            kernel: lab::kernel(),
            host: host(),
            load: load(),
            form: self.form.name().to_owned(),
            section: section.to_owned(),
            facts: step.facts.clone(),
            contender: step.contender.clone(),
            link: step.link,
            lab: step.lab.clone(),
            command: step.script.clone(),
            floor_s: step.floor_s,
            limit_s: step.limit_s,
            missing: step.missing.clone(),
            ..Taken::default()
        };
        if taken.missing.is_none()
            && let Err(error) = self.prepare(step).and_then(|()| self.run(step, &mut taken))
        {
            taken.error = Some(error.to_string());
        }
        taken
    }

    fn prepare(&mut self, step: &Step) -> Result<(), BenchError> {
        for program in &step.programs {
            if !self.compiled.contains(program) {
                self.compile(*program)?;
                self.compiled.push(*program);
            }
        }
        if let Some(bytes) = step.file {
            self.make_file(bytes)?;
        }
        for (name, text) in &step.files {
            let path = self.work.path().join(name);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(BenchError::file(folder))?;
            }
            fs::write(&path, self.named(text)).map_err(BenchError::file(path))?;
        }
        Ok(())
    }

    fn make_file(&mut self, bytes: u64) -> Result<(), BenchError> {
        if self.files.as_ref().is_some_and(|(_, length)| *length == bytes) {
            return Ok(());
        }
        self.files = None; // frees the last file's memory
        let folder = if bytes <= IN_MEMORY { &self.tools.folder } else { &self.tools.out };
        remove_stale(folder);
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let files =
            tempfile::Builder::new().prefix(&prefix).tempdir_in(folder).map_err(BenchError::file(folder))?;
        let path = files.path().join("source");
        source::make(&path, bytes, 1).map_err(BenchError::file(path))?;
        self.files = Some((files, bytes));
        Ok(())
    }

    fn paths(&self) -> [PathBuf; 2] {
        let folder = self.files.as_ref().map_or_else(|| self.work.path(), |(folder, _)| folder.path());
        [folder.join("source"), folder.join("there/copy")]
    }

    fn named(&self, text: &str) -> String {
        let [source, copy] = self.paths();
        let word = |path: &Path| path.display().to_string();
        text.replace("@WORK@", &word(self.work.path()))
            .replace("@SOURCE@", &word(&source))
            .replace("@COPY@", &word(&copy))
            .replace("@ISTHMUS@", &word(&self.tools.isthmus))
    }

    fn compile(&self, program: Program) -> Result<(), BenchError> {
        let (name, text, mpi) = match program {
            Program::Transfer(mpi) => ("transfer", TRANSFER, mpi),
            Program::Messages(mpi) => ("messages", MESSAGES, mpi),
            Program::Wan => ("program", WAN, Mpi::Mpich),
            Program::Collectives => ("collectives", COLLECTIVES, Mpi::Mpich),
        };
        let work = self.work.path();
        let source = work.join(format!("{name}.c"));
        fs::write(&source, text).map_err(BenchError::file(&source))?;
        let mpicc = mpi.folder(self.tools).join("bin/mpicc");
        let mut build = Command::new(&mpicc);
        build.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", "-o"]);
        build.arg(work.join(format!("{name}-{}", mpi.name()))).arg(&source);
        if matches!(program, Program::Transfer(_)) {
            // The libraries are in build/lib/mpi/NAME and build/lib, the header in build/include.
            let mover = self.tools.movers.join(mpi.name());
            build.arg("-I").arg(mover.join("../../../include")).arg("-L").arg(&mover).arg("-listhmus-mpi");
            for (option, folder) in [("-rpath", mover.clone()), ("-rpath-link", mover.join("../.."))] {
                build.arg(format!("-Wl,{option},{}", folder.display()));
            }
        }
        let made = build.output().map_err(BenchError::file(mpicc))?;
        let complaint = || BenchError::Compile(String::from_utf8_lossy(&made.stderr).into_owned());
        if made.status.success() { Ok(()) } else { Err(complaint()) }
    }

    fn run(&self, step: &Step, taken: &mut Taken) -> Result<(), BenchError> {
        let [source, copy] = self.paths();
        if step.file.is_some() {
            let there = copy.parent().unwrap_or(&copy);
            source::remove(there)
                .and_then(|()| fs::create_dir_all(there))
                .map_err(BenchError::file(there))?;
            source::touch_pages(&copy, step.file.unwrap_or(0)).map_err(BenchError::file(&copy))?;
        }
        let report = self.work.path().join("report.json");
        let _ = fs::remove_file(&report); // left by the run before
        taken.command = self.named(&step.script);
        let mut command = self.command(step, &taken.command, &report)?;
        let (began, before) = (Instant::now(), processor_time());
        let ended = command.stdin(Stdio::null()).output().map_err(BenchError::file("timeout"))?;
        taken.took_s = began.elapsed().as_secs_f64();
        let after = processor_time();
        taken.busy = 1.0 - (after.1 - before.1) / (after.0 - before.0).max(1.0);
        let text = fs::read(&report).ok().and_then(|text| serde_json::from_slice(&text).ok());
        taken.emulator = text.unwrap_or(Value::Null);
        let choices = Choices::of(&String::from_utf8_lossy(&ended.stderr));
        taken.choices = choices.lines;
        read(
            taken,
            step.within_s,
            ended.status,
            &String::from_utf8_lossy(&ended.stdout),
            &choices.complaints,
        );
        if step.file.is_some() && taken.error.is_none() {
            match source::equal(&source, &copy) {
                Ok(true) => {}
                Ok(false) => taken.error = Some("the copy differs from its source".to_owned()),
                Err(error) => taken.error = Some(format!("the copy cannot be read: {error}")),
            }
        }
        Ok(())
    }

    /// The command of a step, in its lab or on this host, with a time limit that kills it.
    fn command(&self, step: &Step, script: &str, report: &Path) -> Result<Command, BenchError> {
        let mut command = Command::new("timeout");
        // In the foreground, so that an interrupt from the terminal ends the lab too.
        command.args(["--foreground", "--signal=KILL", &(step.limit_s + GRACE_S).to_string()]);
        if let Some(text) = &step.lab {
            let config = self.work.path().join("lab.toml");
            fs::write(&config, self.named(text)).map_err(BenchError::file(&config))?;
            let lab = lab::command(&self.tools.isthmus, &config, step.limit_s, report);
            command.arg(lab.get_program()).args(lab.get_args()).arg("--");
        }
        command.args(["sh", "-c", script]).current_dir(self.work.path());
        Ok(command)
    }
}

/// Removes folders of processes that were killed: their files may occupy memory.
fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')).map(|(maker, _)| maker);
        if maker.is_some_and(|maker| maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists())
        {
            // Another user's folder stays: this fails.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Reads a run's result from its output.
fn read(taken: &mut Taken, within_s: Option<f64>, status: ExitStatus, said: &str, complained: &str) {
    let object = |line: &str| serde_json::from_str::<Map<String, Value>>(line).ok();
    for line in said.lines() {
        if let Some(result) = line.strip_prefix("RESULT ").and_then(object) {
            taken.results.push(result);
        } else if taken.said.len() < KEPT {
            taken.said.push(line.to_owned());
        }
    }
    if said.lines().any(|line| line == "NOT ENDED") {
        taken.not_ended_s = within_s.or(Some(taken.limit_s));
    } else if !status.success() && taken.took_s >= taken.limit_s {
        taken.not_ended_s = Some(taken.limit_s);
        taken.error = Some(format!("not ended after {} s", taken.limit_s));
    } else if !status.success() {
        taken.error = Some(lab::why(status, said, complained, taken.limit_s));
    } else if taken.results.is_empty() {
        taken.error = Some(format!("no result: {}", lab::last_line(said)));
    }
}

/// The processors of this host.
fn host() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{count} processors {model}").trim_end().to_owned()
}

/// Time of all processors since the system started, then their idle time. Ticks.
fn processor_time() -> (f64, f64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or("");
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal. Guest times follow and are part of user.
    (ticks.iter().take(8).sum(), ticks.iter().skip(3).take(2).sum())
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn of(status: i32, said: &str, took_s: f64) -> Taken {
        let mut taken = Taken { limit_s: 10.0, took_s, ..Taken::default() };
        read(&mut taken, Some(4.0), ExitStatus::from_raw(status << 8), said, "it broke\n");
        taken
    }

    #[test]
    fn folders_of_ended_processes_are_removed_and_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        // No process has this number (PID_MAX_LIMIT is 4,194,304).
        let stale = folder.path().join(format!("{PREFIX}4194999-a"));
        let others = [format!("{PREFIX}{}-a", std::process::id()), "else".to_owned()]
            .map(|name| folder.path().join(name));
        for path in others.iter().chain([&stale]) {
            fs::create_dir(path).expect("made");
        }
        remove_stale(folder.path());
        assert!(!stale.exists() && others.iter().all(|path| path.exists()));
    }

    #[test]
    fn results_failures_and_what_did_not_end_are_told_apart() {
        let good = of(0, "hello\nRESULT {\"seconds\": 1.5}\nRESULT {\"seconds\": 2}\n", 3.0);
        assert_eq!((good.number("seconds"), good.results.len(), &good.error), (Some(1.5), 2, &None));
        assert_eq!(good.said, ["hello"]);
        assert!(of(0, "hello\n", 3.0).error.is_some_and(|error| error.contains("no result: hello")));
        assert!(of(3, "", 3.0).error.is_some_and(|error| error.contains("it broke")));
        let late = of(3, "NOT ENDED\n", 3.0);
        assert_eq!((late.not_ended_s, &late.error), (Some(4.0), &None));
        assert!(of(3, "", 10.5).not_ended_s.is_some() && of(3, "", 10.5).error.is_some());
    }
}
