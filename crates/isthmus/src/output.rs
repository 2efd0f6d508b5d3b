//! What the command prints. No failed write panics: `println!` and `eprintln!` would.
//!
//! Standard output holds results. A result that cannot be written (a full disk) changes the exit
//! status to 3, whatever else was done. A reader that has gone away (`| head`) is a quiet end.
//! Standard error holds remarks and the log, which nobody may depend on: they are dropped where
//! they cannot be written, and the log says later how many lines are missing.

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

/// What became of the first result that could not be written.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// As `print!`, without its panic.
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::result(format_args!($($arg)*)) };
}

/// As `println!`, without its panic.
macro_rules! outln {
    () => { $crate::output::result(format_args!("\n")) };
    ($($arg:tt)*) => { $crate::output::result(format_args!("{}\n", format_args!($($arg)*))) };
}

/// As `eprintln!`, without its panic.
macro_rules! errln {
    ($($arg:tt)*) => { $crate::output::remark(format_args!("{}\n", format_args!($($arg)*))) };
}

/// As `eprint!`, without its panic.
macro_rules! err {
    ($($arg:tt)*) => { $crate::output::remark(format_args!($($arg)*)) };
}

/// Writes to standard output. See the module about failures.
pub(crate) fn result(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = write_patiently(&mut out, text.to_string().as_bytes()) {
        lose(error);
    }
}

/// As `write_all` and `flush`, also where another program that shares the file made it non-blocking.
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

/// Writes to standard error, if it takes it.
pub(crate) fn remark(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_all(text.to_string().as_bytes());
}

/// Whether a result could not be written, or its reader has gone away.
pub(crate) fn has_failed() -> bool {
    LOST.lock().is_ok_and(|lost| lost.is_some())
}

fn lose(error: io::Error) {
    if let Ok(mut lost) = LOST.lock() {
        lost.get_or_insert(error);
    }
}

/// The exit status of a command that would have ended with `code`.
///
/// Status 3 replaces 0 and 1 where results were lost; other failures keep their own.
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

/// Where the log goes: to standard error, or nowhere if that takes nothing.
///
/// It reports success whatever happens, as the log's machinery would panic otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogWriter;

/// Lines of the log that were dropped since the last one that was written.
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Lines of a daemon that waited to be written: beyond them the log is dropped.
const WAITING_MAX: usize = 4096;
/// Lines that were dropped as too many waited, and how many of them are in [`DROPPED`].
static OVERFLOWN: OnceLock<(ErrorCounter, AtomicU64)> = OnceLock::new();

/// Standard error by way of a thread, so that a daemon never waits for who reads its log.
///
/// Lines that still wait when the guard goes are written, for a second at most.
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

/// Writes a line, and before it how many were dropped; counts it where it cannot be written.
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

    /// Takes nothing while it is full.
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
