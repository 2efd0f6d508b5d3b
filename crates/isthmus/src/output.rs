//! Output of the command. A failed write never panics here; `println!` and `eprintln!` would panic.
//!
//! Standard output holds results. If a result cannot be written (a full disk), the exit status becomes 3. If the reader
//! has gone away (`| head`), the command ends quietly. Standard error holds remarks and the log. What cannot be written
//! there is dropped, and the log later tells how many of its lines are missing.

mod closed;

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::LogFormat;

/// Exit status of a command whose results could not be written.
const FAILED: u8 = 3;

/// The first error of writing a result.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Like `print!`, but never panics.
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::result(format_args!($($arg)*)) };
}

/// Like `println!`, but never panics.
macro_rules! outln {
    () => { $crate::output::result(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::result(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Like `eprintln!`, but never panics.
macro_rules! errln {
    ($($arg:tt)*) => { $crate::output::remark(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Like `eprint!`, but never panics.
macro_rules! err {
    ($($arg:tt)*) => { $crate::output::remark(format_args!($($arg)*)) };
}

/// Writes to standard output. The module's text describes failures.
pub(crate) fn result(text: Arguments<'_>) {
    result_bytes(text.to_string().as_bytes());
}

/// Writes lines of a rank of `isthmus run` in one call, so that those of several ranks do not mix.
pub(crate) fn of_rank(is_error: bool, lines: &[u8]) {
    if is_error {
        remark_bytes(lines);
    } else {
        result_bytes(lines);
    }
}

fn result_bytes(bytes: &[u8]) {
    if closed::at_start() {
        return lose(Errno::BADF.into());
    }
    // The lock keeps results of several threads apart.
    let out = io::stdout().lock();
    if let Err(error) = write_patiently(&out, bytes) {
        lose(error);
    }
}

/// Like `write_all`. Also works if another program that shares the file made it non-blocking. It does not write by
/// `Stdout`, which reports success if the descriptor is not open for writing (EBADF).
fn write_patiently(out: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut ready = [PollFd::new(out, PollFlags::OUT)];
                poll(&mut ready, None).or_else(|error| match error {
                    Errno::INTR => Ok(0),
                    error => Err(error),
                })?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes to standard error; ignores failures.
pub(crate) fn remark(text: Arguments<'_>) {
    remark_bytes(text.to_string().as_bytes());
}

fn remark_bytes(bytes: &[u8]) {
    let _ = write_patiently(&io::stderr().lock(), bytes);
}

/// Whether a stream is a terminal that understands escape sequences: one with `TERM=dumb` prints them.
pub(crate) fn takes_escapes(to: &impl IsTerminal) -> bool {
    to.is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether what goes to a stream may have colours: not if the user wants none (<https://no-color.org>).
pub(crate) fn colours(to: &impl IsTerminal) -> bool {
    takes_escapes(to) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether writing a result failed, or its reader has gone away.
pub(crate) fn has_failed() -> bool {
    LOST.lock().is_ok_and(|lost| lost.is_some())
}

fn lose(error: io::Error) {
    if let Ok(mut lost) = LOST.lock() {
        lost.get_or_insert(error);
    }
}

/// The exit status of a command that would have ended with `code`. If results were lost, 3 replaces 0 and 1; other
/// statuses stay.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let lost = LOST.lock().ok().and_then(|mut lost| lost.take());
    match lost {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            errln!("isthmus: cannot write to standard output: {error}; not all results are there");
            if code == ExitCode::SUCCESS || code == ExitCode::from(1) { ExitCode::from(FAILED) } else { code }
        }
        _ => code,
    }
}

/// Writes the log to standard error, or drops it. Reports success in any case: the log's machinery would panic on an
/// error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogWriter;

/// The state of this process's log.
static LOG: LogState = LogState::new();
/// Most log lines of a daemon that wait to be written; further ones are dropped.
const WAITING_MAX: usize = 4096;
/// Counter of lines dropped because too many waited, and how many of those [`LOG`] includes.
static OVERFLOWN: OnceLock<(ErrorCounter, AtomicU64)> = OnceLock::new();

/// How the log is written, and what went wrong with it.
struct LogState {
    /// Each line is a JSON object.
    json: AtomicBool,
    /// Lines dropped since the last line that was written. Count.
    dropped: AtomicU64,
    /// The last write put only a part of a line there.
    torn: AtomicBool,
}

impl LogState {
    const fn new() -> Self {
        Self { json: AtomicBool::new(false), dropped: AtomicU64::new(0), torn: AtomicBool::new(false) }
    }
}

/// Tells the writer of the log how its lines are written.
pub(crate) fn set_log_format(format: LogFormat) {
    LOG.json.store(format == LogFormat::Json, Relaxed);
}

/// Writes to standard error from a thread of its own, so that a daemon never waits for the reader of its log. When the
/// guard is dropped, waiting lines are written for at most a second. `None` if no thread can be started.
pub(crate) fn patient_log() -> Option<(NonBlocking, WorkerGuard)> {
    // The builder panics if its thread cannot be started.
    isthmus_io::log::probe_threads(1).ok()?;
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_MAX);
    let (writer, guard) = builder.finish(LogWriter);
    OVERFLOWN.get_or_init(|| (writer.error_counter(), AtomicU64::new(0)));
    Some((writer, guard))
}

/// Tells why a daemon cannot start or go on: by its log if lines of that are objects, otherwise as commands do.
pub(crate) fn daemon_error(format: LogFormat, name: &str, error: &dyn std::fmt::Display) {
    match format {
        LogFormat::Text => errln!("{name}: {error}"),
        // Through the log, it comes behind the lines that wait there.
        LogFormat::Json if tracing::enabled!(tracing::Level::ERROR) => tracing::error!("{error}"),
        LogFormat::Json => err!("{}", json_line("ERROR", &error.to_string(), &[])),
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some((now, counted)) = OVERFLOWN.get() {
            let now = now.dropped_lines() as u64;
            LOG.dropped.fetch_add(now - counted.swap(now, Relaxed), Relaxed);
        }
        write_line(&mut io::stderr().lock(), line, &LOG);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the count of dropped lines, if any, and the line. A line that cannot be written is counted as dropped.
fn write_line(to: &mut impl Write, line: &[u8], log: &LogState) {
    let missing = log.dropped.load(Relaxed);
    let told = match missing {
        0 => Ok(()),
        _ => write_whole(to, missing_lines(missing, log.json.load(Relaxed)).as_bytes(), log),
    };
    if told.is_ok() {
        log.dropped.fetch_sub(missing, Relaxed);
    }
    if told.and_then(|()| write_whole(to, line, log)).is_err() {
        log.dropped.fetch_add(1, Relaxed);
    }
}

/// Writes a line, which begins on a line of its own even if only a part of the last one was written.
fn write_whole(to: &mut impl Write, line: &[u8], log: &LogState) -> io::Result<()> {
    if log.torn.load(Relaxed) {
        to.write_all(b"\n")?;
        log.torn.store(false, Relaxed);
    }
    let mut rest = line;
    while !rest.is_empty() {
        match to.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => rest = &rest[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        log.torn.store(!rest.is_empty(), Relaxed);
    }
    Ok(())
}

/// The line that tells how many lines are missing.
fn missing_lines(missing: u64, json: bool) -> String {
    let text = match missing {
        1 => "1 line of the log could not be written and is missing here".to_owned(),
        _ => format!("{missing} lines of the log could not be written and are missing here"),
    };
    if !json {
        return format!(" WARN {text}\n");
    }
    json_line("WARN", &text, &[("missing", missing)])
}

/// A line as the log's, which does not go through its filter.
fn json_line(level: &str, text: &str, counts: &[(&str, u64)]) -> String {
    let mut timestamp = String::new();
    let _ = SystemTime.format_time(&mut format::Writer::new(&mut timestamp));
    let mut line = serde_json::json!({
        "timestamp": timestamp,
        "level": level,
        "message": text,
        "target": module_path!(),
    });
    for (name, count) in counts {
        line[*name] = (*count).into();
    }
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer with room for so many bytes.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room);
            self.room -= len;
            match len {
                0 => Err(ErrorKind::StorageFull.into()),
                _ => self.text.write(&bytes[..len]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_and_told_of_later() {
        let log = LogState::new();
        let mut disk = Disk { room: 0, text: Vec::new() };
        for _ in 0..3 {
            write_line(&mut disk, b"lost\n", &log);
        }
        disk.room = 1000;
        write_line(&mut disk, b"first\n", &log);
        write_line(&mut disk, b"second\n", &log);
        let text = String::from_utf8(disk.text).expect("text");
        assert_eq!(
            text,
            " WARN 3 lines of the log could not be written and are missing here\nfirst\nsecond\n"
        );
    }

    #[test]
    fn the_line_after_a_torn_one_is_an_object_of_its_own() {
        let log = LogState::new();
        log.json.store(true, Relaxed);
        let mut disk = Disk { room: 5, text: Vec::new() };
        write_line(&mut disk, b"{\"lost\":1}\n", &log);
        write_line(&mut disk, b"{\"lost\":2}\n", &log);
        disk.room = 1000;
        write_line(&mut disk, b"{\"first\":1}\n", &log);
        write_line(&mut disk, b"{\"second\":2}\n", &log);
        let text = String::from_utf8(disk.text).expect("text");
        let (torn, rest) = text.split_once('\n').expect("a line");
        assert_eq!(torn, "{\"los");
        let lines: Vec<serde_json::Value> =
            rest.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!((&lines[0]["level"], &lines[0]["missing"]), (&"WARN".into(), &2.into()));
        assert!(lines[0]["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{text}");
        assert_eq!((&lines[1]["first"], &lines[2]["second"]), (&1.into(), &2.into()));
    }
}
