//! The processes of the ranks: starts them, passes their PMI commands and output on, and ends them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use isthmus_substrate::log::no_thread;
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};

use crate::failure::Ended;
use crate::launcher::is_of_a_launcher;
use crate::letter::Start;
use crate::run::Input;

/// How long a rank may leave an answer unread. Its socket has room for hundreds of them.
const ANSWER: Duration = Duration::from_secs(10);
/// After a rank's process ends, how long its last PMI commands may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// After a rank's process ends, how long its last output may take to be passed on. A process that the rank has left
/// behind may hold its pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Longest line that `--label` and `--gather` keep in one piece. Bytes.
const LINE_MAX: u64 = 64 << 10;

/// What the ranks of one process have in common.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Command line that calls `become_rank`; `words` follow it.
    pub(crate) starter: &'a [OsString],
    pub(crate) words: &'a [OsString],
    /// Environment variables, beside those of this process.
    pub(crate) variables: &'a [(String, String)],
    pub(crate) job: &'a str,
    pub(crate) parts: u32,
    pub(crate) label: bool,
    /// Pass the output on as [`Input::Output`], through this gate.
    pub(crate) gather: Option<&'a Arc<Gate>>,
    /// Prints output that is not gathered.
    pub(crate) print: Print,
    /// Folder for the output of each rank.
    pub(crate) output: Option<&'a Path>,
    /// Environment variables of each rank, of the PMIx server.
    pub(crate) pmix: &'a [Vec<(String, String)>],
}

/// How many pieces of output of this process's ranks may be on their way to the printer. Count. Each has at most twice
/// [`LINE_MAX`], which bounds the memory of all processes in between.
const PIECES_MAX: usize = 16;

/// Bounds the output on its way: threads that pass output on wait here.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    under_way: Mutex<usize>,
    printed: Condvar,
}

impl Gate {
    fn enter(&self) {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.printed.wait_while(under_way, |count| *count >= PIECES_MAX);
        *wait.unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// A piece was printed.
    pub(crate) fn leave(&self) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        *under_way = under_way.saturating_sub(1);
        self.printed.notify_one();
    }
}

/// Lines that ranks have written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lines {
    /// Whether they were written to the standard error.
    pub(crate) is_error: bool,
    pub(crate) text: Vec<u8>,
}

/// Prints lines of ranks: of their standard error if `is_error`, else of their standard output. It notes errors and
/// returns, because ranks may go on computing if nobody reads the output.
pub type Print = fn(is_error: bool, text: &[u8]);

/// A rank's process.
#[derive(Debug)]
pub(crate) struct RankProcess {
    child: Child,
    pid: Pid,
    pmi: UnixStream,
    has_ended: bool,
    /// Threads that pass its output on.
    writers: Arc<[JoinHandle<()>]>,
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
    let mut command = command(program, start, rank, theirs.as_raw_fd())?;
    let mut child = command.spawn()?;
    drop(theirs);
    let pid = Pid::from_child(&child);
    let label = if program.label {
        format!("[rank {}, part {}] ", start.first + rank, start.appnum + 1)
    } else {
        String::new()
    };
    let to = match program.gather {
        Some(gate) => Destination::Gathered(gate.clone(), inputs.clone()),
        None => Destination::Printed(program.print),
    };
    let mut writers = Vec::new();
    if let Some(from) = child.stdout.take() {
        writers.push(pass_on(from, false, label.clone(), to.clone())?);
    }
    if let Some(from) = child.stderr.take() {
        writers.push(pass_on(from, true, label, to)?);
    }
    let writers: Arc<[_]> = writers.into();
    let (mut from, told) = (ours.try_clone()?, inputs.clone());
    let reader = named("isthmus-pmi", move || {
        let mut bytes = vec![0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if told.send(Input::Pmi(rank, bytes[..len].to_vec())).is_err() {
                return;
            }
        }
    })?;
    let last = if program.gather.is_some() { writers.clone() } else { Arc::new([]) };
    report_end(rank, pid, reader, last, inputs.clone())?;
    Ok(RankProcess { child, pid, pmi: ours, has_ended: false, writers })
}

/// The command of one rank: its program, its environment, and where its input and output go. The rank inherits `pmi`.
fn command(program: &Program<'_>, start: &Start, rank: u32, pmi: RawFd) -> io::Result<Command> {
    let world = start.first + rank;
    let (local_rank, local_size) = start.local[rank as usize];
    let mut command = Command::new(&program.starter[0]);
    command.args(&program.starter[1..]).args(program.words).process_group(0);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_a_launcher) {
            command.env_remove(name);
        }
    }
    command.envs(program.variables.iter().map(|(name, value)| (name, value)));
    let sizes: Vec<String> = start.sizes.iter().map(ToString::to_string).collect();
    for (name, value) in [
        ("PMI_FD", pmi.to_string()),
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
    for (name, value) in program.pmix.get(rank as usize).into_iter().flatten() {
        command.env(name, value);
    }
    // Each rank has its own process group, and a terminal stops a background group that reads from it.
    if rank > 0 || io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    if let Some(folder) = program.output {
        let file = |end: &str| File::create(folder.join(format!("rank-{world}.{end}")));
        command.stdout(file("out")?).stderr(file("err")?);
    } else if program.label || program.gather.is_some() {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    Ok(command)
}

/// Sends [`Input::Ended`] when a rank's process has ended, the thread `reader` has passed on its last PMI commands, and
/// the threads `last` its last output.
fn report_end(
    rank: u32,
    pid: Pid,
    reader: JoinHandle<()>,
    last: Arc<[JoinHandle<()>]>,
    inputs: SyncSender<Input>,
) -> io::Result<()> {
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
        // Gathered output precedes the end of the job on its way.
        let until = Instant::now() + LAST_OUTPUT;
        while !last.iter().all(JoinHandle::is_finished) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = inputs.send(Input::Ended(rank));
    })?;
    Ok(())
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(no_thread)
}

/// Where the output of a rank goes.
#[derive(Clone)]
enum Destination {
    Printed(Print),
    /// To the main thread, through the gate.
    Gathered(Arc<Gate>, SyncSender<Input>),
}

/// Passes whole lines on, each after a label.
fn pass_on(
    from: impl Read + Send + 'static,
    is_error: bool,
    label: String,
    to: Destination,
) -> io::Result<JoinHandle<()>> {
    named("isthmus-output", move || {
        let mut from = BufReader::with_capacity(LINE_MAX as usize, from);
        let mut text = Vec::new();
        loop {
            text.extend_from_slice(label.as_bytes());
            match (&mut from).take(LINE_MAX).read_until(b'\n', &mut text) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if text.last() != Some(&b'\n') {
                text.push(b'\n');
            }
            // Further lines that are here already go along.
            if from.buffer().contains(&b'\n') && text.len() < LINE_MAX as usize {
                continue;
            }
            let text = std::mem::take(&mut text);
            match &to {
                Destination::Printed(print) => print(is_error, &text),
                Destination::Gathered(gate, to) => {
                    gate.enter();
                    if to.send(Input::Output(Lines { is_error, text })).is_err() {
                        return;
                    }
                }
            }
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
    pub(crate) fn drain(&self, until: Instant) {
        for writer in self.writers.iter() {
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
