//! The processes of the ranks: starts them, passes their PMI commands and output on, and ends them.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::failure::Ended;
use crate::letter::Start;
use crate::place::is_of_a_launcher;
use crate::run::Input;

/// How long a rank may leave an answer unread. Its socket has room for hundreds of them.
const ANSWER: Duration = Duration::from_secs(10);
/// After a rank's process ends, how long its last PMI commands may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Longest line that `--label` keeps in one piece. Bytes.
const LINE_MAX: u64 = 64 << 10;

/// What the ranks of one process have in common.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Command line that calls `become_rank`; `words` follow it.
    pub(crate) starter: &'a [OsString],
    pub(crate) words: &'a [OsString],
    /// Environment variables, where the user has not set them.
    pub(crate) defaults: &'a [(String, String)],
    pub(crate) job: &'a str,
    pub(crate) parts: u32,
    pub(crate) label: bool,
}

/// A rank's process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    child: Child,
    pid: Pid,
    pmi: UnixStream,
    has_ended: bool,
    /// Threads that label its output.
    writers: Vec<JoinHandle<()>>,
}

/// Starts one rank. The calling thread must outlive the ranks: the kernel ends a rank when the thread that started it
/// ends.
pub(crate) fn start(
    program: &Program<'_>,
    start: &Start,
    rank: u32,
    inputs: &SyncSender<Input>,
) -> io::Result<RankProcess> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_write_timeout(Some(ANSWER))?;
    // Only this rank inherits it: this process closes it before it starts the next rank.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let world = start.first + rank;
    let (local_rank, local_size) = start.local[rank as usize];
    let mut command = Command::new(&program.starter[0]);
    command.args(&program.starter[1..]).args(program.words).process_group(0);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_a_launcher) {
            command.env_remove(name);
        }
    }
    for (name, value) in program.defaults {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let sizes: Vec<String> = start.sizes.iter().map(ToString::to_string).collect();
    for (name, value) in [
        ("PMI_FD", theirs.as_raw_fd().to_string()),
        ("PMI_RANK", world.to_string()),
        ("PMI_SIZE", start.size.to_string()),
        ("MPI_LOCALRANKID", local_rank.to_string()),
        ("MPI_LOCALNRANKS", local_size.to_string()),
        ("ISTHMUS_RUN_JOB", program.job.to_owned()),
        ("ISTHMUS_RUN_PART", (start.appnum + 1).to_string()),
        ("ISTHMUS_RUN_PARTS", program.parts.to_string()),
        ("ISTHMUS_RUN_PART_SIZES", sizes.join(",")),
        ("ISTHMUS_RUN_RANK", world.to_string()),
        ("ISTHMUS_RUN_SIZE", start.size.to_string()),
    ] {
        command.env(name, value);
    }
    // Each rank has its own process group, and a terminal stops a background group that reads from it.
    if rank > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    if program.label {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut child = command.spawn()?;
    drop(theirs);
    let pid = Pid::from_child(&child);
    let mut writers = Vec::new();
    if program.label {
        let label = format!("[rank {world}, part {}] ", start.appnum + 1);
        if let Some(from) = child.stdout.take() {
            writers.push(copy_labelled(from, io::stdout(), label.clone())?);
        }
        if let Some(from) = child.stderr.take() {
            writers.push(copy_labelled(from, io::stderr(), label)?);
        }
    }
    let (mut from, told) = (ours.try_clone()?, inputs.clone());
    let reader = named("isthmus-pmi", move || {
        let mut bytes = vec![0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if told.send(Input::Pmi(rank, bytes[..len].to_vec())).is_err() {
                return;
            }
        }
    })?;
    let told = inputs.clone();
    named("isthmus-rank", move || {
        // The process stays a zombie, so that its id is not reused while we may still signal it.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while rustix::process::waitid(WaitId::Pid(pid), options)
            .is_err_and(|error| error == rustix::io::Errno::INTR)
        {}
        // Its last command may explain its end. A process that it left behind may hold its socket open.
        let until = Instant::now() + LAST_WORDS;
        while !reader.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = told.send(Input::Ended(rank));
    })?;
    Ok(RankProcess { child, pid, pmi: ours, has_ended: false, writers })
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Copies lines, each after a label.
fn copy_labelled(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    label: String,
) -> io::Result<JoinHandle<()>> {
    named("isthmus-label", move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend_from_slice(label.as_bytes());
            match (&mut from).take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One call per line, so that lines of several ranks do not mix. Errors are ignored: if nobody reads the
            // output, the rank may still be computing.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
    })
}

impl RankProcess {
    /// Collects the exit status of the ended process.
    pub(crate) fn reap(&mut self) -> Ended {
        self.has_ended = true;
        match self.child.wait() {
            Ok(status) => how(status),
            Err(_) => Ended::Status(1),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends a signal to the rank's process group, which includes what the rank has started.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.has_ended {
            // The group does not exist yet if the process has just begun, and no longer if all of it has ended.
            let _ = rustix::process::kill_process_group(self.pid, signal)
                .or_else(|_| rustix::process::kill_process(self.pid, signal));
        }
    }

    pub(crate) fn answer(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pmi.write_all(bytes)
    }

    /// Waits until the labelled output is written. A process that the rank has left behind may hold it open.
    pub(crate) fn drain(&mut self, until: Instant) {
        for writer in self.writers.drain(..) {
            while !writer.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn how(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Status(code as u8),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Status(1),
    }
}

/// Becomes a rank of `isthmus run`, the process `parent`. The kernel kills the rank when `parent` ends for any reason.
/// Returns only on failure, with the exit status and the reason.
pub fn become_rank(parent: u32, words: &[OsString]) -> (u8, String) {
    let Some((program, arguments)) = words.split_first() else { return (2, "no program".to_owned()) };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return (3, format!("cannot have this rank end with isthmus run: {error}"));
    }
    // The parent may have ended before the call above.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get().unsigned_abs()) != Some(parent)
    {
        return (3, "isthmus run has ended".to_owned());
    }
    let error = Command::new(program).args(arguments).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    (status, format!("{}: {error}", program.to_string_lossy()))
}
