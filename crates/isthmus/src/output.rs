//! Output of the command. A failed write never panics here; `println!` and `eprintln!` would panic.
//!
//! Standard output holds results. If a result cannot be written (a full disk), the exit status becomes 3. If the reader
//! has gone away (`| head`), the command ends quietly. Standard error holds remarks and the log. What cannot be written
//! there is dropped, and the log later tells how many of its lines are missing.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

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
    let mut out = io::stdout().lock();
    if let Err(error) = write_patiently(&mut out, text.to_string().as_bytes()) {
        lose(error);
    }
}

/// Like `write_all` and `flush`. Also works if another program that shares the file made it non-blocking.
fn write_patiently(out: &mut io::StdoutLock<'_>, mut bytes: &[u8]) -> io::Result<()> {
    loop {
        let done = match bytes {
            [] => out.flush().map(|()| 0),
            _ => out.write(bytes),
        };
        match done {
            Ok(0) if bytes.is_empty() => return Ok(()),
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(out, PollFlags::OUT)];
                poll(&mut ready, None).or_else(|error| match error {
                    Errno::INTR => Ok(0),
                    error => Err(io::Error::from(error)),
                })?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes to standard error; ignores failures.
pub(crate) fn remark(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_all(text.to_string().as_bytes());
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

/// Log lines dropped since the last line that was written. Count.
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Most log lines of a daemon that wait to be written; further ones are dropped.
const WAITING_MAX: usize = 4096;
/// Counter of lines dropped because too many waited, and how many of those [`DROPPED`] includes.
static OVERFLOWN: OnceLock<(ErrorCounter, AtomicU64)> = OnceLock::new();

/// Writes to standard error from a thread of its own, so that a daemon never waits for the reader of its log. When the
/// guard is dropped, waiting lines are written for at most a second.
pub(crate) fn patient_log() -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_MAX);
    let (writer, guard) = builder.finish(LogWriter);
    OVERFLOWN.get_or_init(|| (writer.error_counter(), AtomicU64::new(0)));
    (writer, guard)
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some((now, counted)) = OVERFLOWN.get() {
            let now = now.dropped_lines() as u64;
            DROPPED.fetch_add(now - counted.swap(now, Relaxed), Relaxed);
        }
        write_line(&mut io::stderr().lock(), line, &DROPPED);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the count of dropped lines, if any, and the line. A line that cannot be written is counted as dropped.
fn write_line(to: &mut impl Write, line: &[u8], dropped: &AtomicU64) {
    let missing = dropped.load(Relaxed);
    let told = match missing {
        0 => Ok(()),
        1 => to.write_all(b" WARN 1 line of the log could not be written and is missing here\n"),
        _ => {
            let text =
                format!(" WARN {missing} lines of the log could not be written and are missing here\n");
            to.write_all(text.as_bytes())
        }
    };
    if told.is_ok() {
        dropped.fetch_sub(missing, Relaxed);
    }
    if told.and_then(|()| to.write_all(line)).is_err() {
        dropped.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that refuses everything while it is full.
    struct Disk {
        full: bool,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.full {
                true => Err(ErrorKind::StorageFull.into()),
                false => self.text.write(bytes),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_and_told_of_later() {
        let dropped = AtomicU64::new(0);
        let mut disk = Disk { full: true, text: Vec::new() };
        for _ in 0..3 {
            write_line(&mut disk, b"lost\n", &dropped);
        }
        disk.full = false;
        write_line(&mut disk, b"first\n", &dropped);
        write_line(&mut disk, b"second\n", &dropped);
        let text = String::from_utf8(disk.text).expect("text");
        assert_eq!(
            text,
            " WARN 3 lines of the log could not be written and are missing here\nfirst\nsecond\n"
        );
    }
}
