//! Makes the copies: each in its own lab, with the contenders in turn.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;
use time::OffsetDateTime;

use super::contender::FileContender;
use super::report;
use super::sample::FileSample;
use super::script::{RunPaths, hub};
use super::source;
use crate::BenchError;
use crate::choices::Choices;
use crate::lab;
use crate::link::EmulatedLink;
use crate::run::progress;

/// MPI program of both sides: the example of the mover's library.
const PROGRAM: &str = include_str!("../../../../examples/mpi/copy.c");
const SERVE: &str = include_str!("serve.toml");
const SITES: &str = include_str!("sites.toml");
const SSHD: &str = include_str!("sshd.conf");
/// Host names come from the lab's hosts file alone.
const NAMES: &str = "hosts: files\n";
/// Least time limit of a run with many files, which some contenders copy slowly. Seconds.
const TREE_LIMIT_S: f64 = 100.0;

/// Paths of everything that takes part.
#[derive(Clone, Debug)]
pub struct FilePaths {
    /// The isthmus command.
    pub isthmus: PathBuf,
    /// The folder of the libfabric provider.
    pub provider: PathBuf,
    /// The folder of an MPICH: `bin/mpiexec`, `bin/mpicc`.
    pub mpi: PathBuf,
    /// The folder of the mover's library for this MPI: `libisthmus-mpi.so`.
    pub mover: PathBuf,
    /// The folder for samples, table and report.
    pub out: PathBuf,
    /// The folder for the files of both sites.
    pub folder: PathBuf,
}

/// One copy to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileRun {
    /// Number of the repetition, from 1.
    pub run: u32,
    /// The link.
    pub link: EmulatedLink,
    /// Length of all files together. Bytes.
    pub bytes: u64,
    /// Number of files. 1 is a file without a folder.
    pub files: u32,
    /// The contender.
    pub contender: FileContender,
    /// MPI ranks at each site.
    pub ranks: u32,
}

/// The benchmark. `run` makes its copies and writes the report.
#[derive(Clone, Debug)]
pub struct FileBench {
    /// Paths of everything that takes part.
    pub paths: FilePaths,
    /// The copies, in order.
    pub plan: Vec<FileRun>,
    /// Congestion control of the sites' TCP. Default: the system's.
    pub congestion: Option<String>,
    /// Isthmus' version, for samples.
    pub version: String,
}

impl FileBench {
    /// Shortest time of all runs together, without the labs' starts and ends. Seconds.
    pub fn floor_s(&self) -> f64 {
        self.plan.iter().map(|run| run.link.floor_s(run.bytes)).sum()
    }

    /// Lists what is missing and which contender needs it, without repetitions.
    pub fn missing(&self) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for run in &self.plan {
            if let Some(text) = run.contender.missing(&self.paths) {
                let text = format!("{} is left out, for there is {text}", run.contender.kind());
                if !out.contains(&text) {
                    out.push(text);
                }
            }
        }
        out
    }

    /// Makes all copies that are possible here, with a progress bar. Writes a line of `samples.jsonl` after
    /// each, `table.txt` and `report.html` at the end. Returns the samples.
    ///
    /// # Errors
    /// If no contender can run, or a folder cannot be written. Runs that fail are samples.
    pub fn run(&self) -> Result<Vec<FileSample>, BenchError> {
        let missing = self.missing();
        let able = |run: &&FileRun| run.contender.missing(&self.paths).is_none();
        let plan: Vec<FileRun> = self.plan.iter().filter(able).copied().collect();
        if plan.is_empty() {
            return Err(BenchError::Missing(missing.join("\n")));
        }
        let FilePaths { out, folder, .. } = &self.paths;
        for path in [out, folder] {
            fs::create_dir_all(path).map_err(BenchError::file(path))?;
        }
        let work = tempfile::tempdir().map_err(BenchError::file("a temporary folder"))?;
        let files = tempfile::tempdir_in(folder).map_err(BenchError::file(folder))?;
        self.prepare(&plan, work.path(), files.path())?;
        let lines = out.join("samples.jsonl");
        let mut lines_file = File::create(&lines).map_err(BenchError::file(&lines))?;
        let mut samples: Vec<FileSample> = Vec::new();
        let mut local = HashMap::new();
        let bar = progress(plan.len() as u64);
        for run in &plan {
            bar.set_message(format!(
                "{}, {} MB, {}",
                run.contender,
                run.bytes as f64 / 1e6,
                run.link.title()
            ));
            let sample = self.measure(run, work.path(), files.path(), &mut local)?;
            let line = serde_json::to_string(&sample).unwrap_or_default();
            writeln!(lines_file, "{line}").map_err(BenchError::file(&lines))?;
            bar.println(report::said(&sample));
            samples.push(sample);
            bar.inc(1);
        }
        bar.finish_and_clear();
        for (name, text) in [
            ("table.txt", report::text(&samples, &missing)),
            ("report.html", report::page(&samples, &missing)),
        ] {
            let path = out.join(name);
            fs::write(&path, text).map_err(BenchError::file(path))?;
        }
        Ok(samples)
    }

    /// Makes the keys, configurations and programs that the plan needs.
    fn prepare(&self, plan: &[FileRun], work: &Path, files: &Path) -> Result<(), BenchError> {
        let takes_part = |kinds: &[&str]| plan.iter().any(|run| kinds.contains(&run.contender.kind()));
        let there = files.join("there");
        fs::create_dir(&there).map_err(BenchError::file(&there))?;
        let put = |name: &str, text: &str| {
            let path = work.join(name);
            let text = text.replace("WORK", &work.display().to_string());
            fs::write(&path, text.replace("EXPORT", &there.display().to_string()))
                .map_err(BenchError::file(path))
        };
        put("names.conf", NAMES)?;
        if takes_part(&["mpi", "stock"]) {
            self.compile(work)?;
        }
        if takes_part(&["cp"]) {
            put("serve.toml", SERVE)?;
            put("sites.toml", SITES)?;
            for (number, name) in [("1", "here"), ("2", "there")] {
                let mut keygen = Command::new(&self.paths.isthmus);
                keygen.args(["router", "keygen", "--as", number, "--name", name, "--out"]).arg(work);
                must(&mut keygen)?;
            }
        }
        if plan.iter().any(|run| run.contender.is_by_ssh()) {
            put("sshd.conf", SSHD)?;
            let key = work.join("key");
            must(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
            fs::copy(work.join("key.pub"), work.join("authorized")).map_err(BenchError::file(key))?;
        }
        Ok(())
    }

    fn compile(&self, work: &Path) -> Result<(), BenchError> {
        let (source, program) = (work.join("copy.c"), work.join("copy"));
        fs::write(&source, PROGRAM).map_err(BenchError::file(&source))?;
        let (mpicc, mover) = (self.paths.mpi.join("bin/mpicc"), &self.paths.mover);
        // The libraries are in build/lib/mpi/NAME and build/lib, the header in build/include.
        let mut build = Command::new(&mpicc);
        build.args(["-std=c11", "-O2", "-pthread", "-o"]).arg(&program).arg(&source);
        build.arg("-I").arg(mover.join("../../../include")).arg("-L").arg(mover).arg("-listhmus-mpi");
        for (option, folder) in [("-rpath", mover.clone()), ("-rpath-link", mover.join("../.."))] {
            build.arg(format!("-Wl,{option},{}", folder.display()));
        }
        let made = build.output().map_err(BenchError::file(mpicc))?;
        let complaint = || BenchError::Compile(String::from_utf8_lossy(&made.stderr).into_owned());
        if made.status.success() { Ok(()) } else { Err(complaint()) }
    }

    /// The command that runs `script`: in a lab with this configuration, or on this host if there is none. It ends
    /// after `limit_s` seconds. The emulator writes its report to `emulator`.
    fn command(
        &self,
        lab: Option<&str>,
        work: &Path,
        emulator: &Path,
        script: &str,
        limit_s: f64,
    ) -> Result<Command, BenchError> {
        let Some(text) = lab else {
            let mut shell = Command::new("timeout");
            shell.args([&limit_s.to_string(), "sh", "-c", script]);
            return Ok(shell);
        };
        let config = work.join("lab.toml");
        fs::write(&config, text).map_err(BenchError::file(&config))?;
        let mut lab = lab::command(&self.paths.isthmus, &config, limit_s, emulator);
        lab.args(["--", "sh", "-c", script]);
        Ok(lab)
    }

    fn measure(
        &self,
        run: &FileRun,
        work: &Path,
        files: &Path,
        local: &mut HashMap<(u64, u32), f64>,
    ) -> Result<FileSample, BenchError> {
        let source = files.join(format!("source-{}-{}", run.bytes, run.files));
        let there = files.join("there");
        let copy = there.join("copy");
        // Also removes parts and journals of a copy that did not end: the next one would resume it.
        source::remove(&there).and_then(|()| fs::create_dir_all(&there)).map_err(BenchError::file(&there))?;
        source::make(&source, run.bytes, run.files).map_err(BenchError::file(&source))?;
        source::touch_pages(&copy, run.bytes).map_err(BenchError::file(&copy))?;
        let is_local = run.link.is_loopback() || run.files > 1;
        let local_s = if is_local { Some(plain_copy(run, &source, &copy, local)?) } else { None };
        let emulator = work.join("report.json");
        let _ = fs::remove_file(&emulator); // left by the run before
        let floor_s =
            local_s.filter(|_| run.link.is_loopback()).unwrap_or_else(|| run.link.floor_s(run.bytes));
        let limit_s = lab::limit_s(floor_s).max(if run.files > 1 { TREE_LIMIT_S } else { 0.0 });
        let script = hub(&RunPaths { paths: &self.paths, work, source: &source, copy: &copy }, run)?;
        let text = (!run.link.is_loopback())
            .then(|| lab::config(&[(run.link, None)], run.run.into(), self.congestion.as_deref()));
        let mut command = self.command(text.as_deref(), work, &emulator, &script, limit_s)?;
        let at = OffsetDateTime::now_utc().unix_timestamp();
        let mut choices = Choices::default();
        let outcome = match command.stdin(Stdio::null()).output() {
            Err(error) => Err(format!("cannot start the lab: {error}")),
            Ok(ended) => {
                choices = Choices::of(&String::from_utf8_lossy(&ended.stderr));
                outcome(ended.status, &String::from_utf8_lossy(&ended.stdout), &choices.complaints, limit_s)
            }
        };
        let outcome = outcome.and_then(|times| match source::equal(&source, &copy) {
            Ok(true) => Ok(times),
            Ok(false) => Err("the copy differs from its source".to_owned()),
            Err(error) => Err(format!("the copy cannot be read: {error}")),
        });
        source::remove(&copy).map_err(BenchError::file(&copy))?;
        let report = fs::read(&emulator).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let of_mpi = matches!(run.contender, FileContender::Coupled { .. });
        let came = outcome.as_ref().ok();
        Ok(FileSample {
            at,
            version: self.version.clone(),
            kernel: lab::kernel(),
            run: run.run,
            seed: run.run.into(),
            lab: text,
            link: run.link,
            bytes: run.bytes,
            files: run.files,
            contender: run.contender.to_string(),
            ranks: if of_mpi { run.ranks } else { 0 },
            congestion: choices
                .congestion()
                .or_else(|| self.congestion.clone())
                .unwrap_or_else(systems_congestion),
            choices: choices.lines,
            script,
            floor_s,
            local_s,
            seconds: came.map(|came| came.seconds),
            sync_s: came.map(|came| came.sync_s),
            peak_here: came.and_then(|came| came.peak_here),
            peak_there: came.and_then(|came| came.peak_there),
            error: outcome.err(),
            emulator: report.unwrap_or(Value::Null),
        })
    }
}

/// Time of a plain `cp -r` within this host, measured once for each subject. Seconds.
fn plain_copy(
    run: &FileRun,
    source: &Path,
    copy: &Path,
    known: &mut HashMap<(u64, u32), f64>,
) -> Result<f64, BenchError> {
    if let Some(seconds) = known.get(&(run.bytes, run.files)) {
        return Ok(*seconds);
    }
    let began = Instant::now();
    must(Command::new("cp").args(["-r", "--reflink=never"]).arg(source).arg(copy))?;
    let seconds = began.elapsed().as_secs_f64();
    source::remove(copy).map_err(BenchError::file(copy))?;
    known.insert((run.bytes, run.files), seconds);
    Ok(seconds)
}

fn must(command: &mut Command) -> Result<(), BenchError> {
    let program = PathBuf::from(command.get_program());
    let ended = command.stdin(Stdio::null()).output().map_err(BenchError::file(&program))?;
    let said = || {
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        BenchError::file(&program)(io::Error::other(lab::last_line(&text)))
    };
    if ended.status.success() { Ok(()) } else { Err(said()) }
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Came {
    seconds: f64,
    /// Time of the fsync after the copy. Seconds.
    sync_s: f64,
    /// Most memory of a process on the sending side, then on the receiving side. Bytes.
    peak_here: Option<u64>,
    peak_there: Option<u64>,
}

/// The result of a copy, or why there is none.
fn outcome(status: ExitStatus, said: &str, complained: &str, limit_s: f64) -> Result<Came, String> {
    if !status.success() {
        return Err(lab::why(status, said, complained, limit_s));
    }
    let line = |key: &str| said.lines().find_map(|line| line.strip_prefix(key));
    let came = || {
        let result: Value = serde_json::from_str(line("RESULT ")?).ok()?;
        Some(Came {
            seconds: result["seconds"].as_f64()?,
            sync_s: line("SYNC ")?.parse().ok()?,
            peak_here: line("PEAK here ").and_then(|bytes| bytes.parse().ok()),
            peak_there: line("PEAK there ").and_then(|bytes| bytes.parse().ok()),
        })
    };
    came().ok_or_else(|| format!("no result: {}", lab::last_line(said)))
}

fn systems_congestion() -> String {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn results_are_found_and_failures_say_why() {
        let of = |status: i32, said: &str, complained: &str, limit_s| {
            outcome(ExitStatus::from_raw(status << 8), said, complained, limit_s)
        };
        let good = "RESULT {\"seconds\": 1500000000e-9}\nSYNC 250000000e-9\nPEAK there 4096\n";
        let came = Came { seconds: 1.5, sync_s: 0.25, peak_here: None, peak_there: Some(4096) };
        assert_eq!(of(0, good, "", 1.0), Ok(came));
        let failed = of(3, "", "scp: no route\n", 30.0).expect_err("failed");
        assert!(failed.contains("within 30 s: scp: no route"), "{failed}");
        assert!(of(0, "SYNC 1e-9\n", "", 1.0).is_err());
    }
}
