//! Reports a copy: progress for people, events for programs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use isthmus_mover::names::shown;
use isthmus_mover::watch::{Bottleneck, Progress, What};
use isthmus_mover::wire::Share;
use isthmus_mover::{MoverError, Notice, Summary};

use crate::output::takes_escapes;

/// Time constant of the displayed rate. Seconds. Older samples weigh less.
const MEMORY: f64 = 5.0;
/// How long a service may take to answer before a line says so. Used if there is no progress bar.
const CALL_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Report {
    json: bool,
    verbose: bool,
    dry_run: bool,
    bar: Option<ProgressBar>,
    share: Share,
    /// The service, and when the connection attempt began.
    calls: (String, Instant),
    /// Without a bar: a line has said that the service does not answer.
    waits: bool,
    last: (Instant, u64),
    /// Bytes a second.
    rate: f64,
}

impl Report {
    pub(crate) fn new(json: bool, verbose: bool, dry_run: bool, share: Share) -> Self {
        // If several processes share the work, only the first shows a bar, for its own part.
        let bar = (!json && !dry_run && share.rank == 0 && takes_escapes(&std::io::stderr())).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        let now = Instant::now();
        let calls = (String::new(), now);
        Self { json, verbose, dry_run, bar, share, calls, waits: false, last: (now, 0), rate: 0.0 }
    }

    /// Notes that a connection attempt to `address` begins now.
    pub(crate) fn calls(&mut self, address: String) {
        self.calls = (address, Instant::now());
        self.show_call();
    }

    /// Shows that there is no answer yet: at once on the bar; without a bar, after `CALL_PATIENCE` in a line.
    fn show_call(&mut self) {
        let (address, since) = &self.calls;
        let spent = since.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_message(format!("connecting to {address}, {} s", spent.as_secs()));
        } else if spent >= CALL_PATIENCE && !self.json && !std::mem::replace(&mut self.waits, true) {
            errln!("isthmus cp: connecting to {address}: no answer for {} s", spent.as_secs());
        }
    }

    pub(crate) fn note(&mut self, notice: Notice) {
        if let Notice::Progress(progress) = &notice {
            self.measure(progress);
        }
        if self.json {
            return self.json(&notice);
        }
        match notice {
            Notice::Progress(progress) if !progress.connected => self.show_call(),
            Notice::Progress(progress) => self.show(&progress),
            Notice::File { path, blake3, .. } if self.verbose => self.out(&checksum(&blake3, &path.0)),
            Notice::Resumed { path, have } => {
                let path = shown(&path.0);
                self.err(&format!("{path}: {} are there already; going on from there", HumanBytes(have)));
            }
            Notice::Would { path, bytes, kind } => {
                let path = shown(&path.0);
                self.out(&match kind {
                    What::File => format!("{path} ({})", HumanBytes(bytes)),
                    What::Folder => format!("{path}/"),
                    What::Symlink => format!("{path} (symbolic link)"),
                });
            }
            // On standard error: a program may read the digests on standard output.
            Notice::Kept { path, why, .. } if self.verbose => {
                self.err(&format!("{}: left alone ({why})", shown(&path.0)));
            }
            Notice::Failed { text, .. } | Notice::Warning { text, .. } => {
                self.err(&format!("isthmus cp: {text}"));
            }
            Notice::File { .. } | Notice::Folder { .. } | Notice::Symlink { .. } | Notice::Kept { .. } => {}
        }
    }

    fn measure(&mut self, progress: &Progress) {
        let (at, bytes) = self.last;
        let spent = at.elapsed().as_secs_f64();
        if spent < 0.05 {
            return;
        }
        let now = progress.bytes.saturating_sub(bytes) as f64 / spent;
        let weight = if self.rate == 0.0 { 1.0 } else { 1.0 - (-spent / MEMORY).exp() };
        self.rate += (now - self.rate) * weight;
        self.last = (Instant::now(), progress.bytes);
    }

    /// The remaining time, if it can be estimated. Seconds.
    fn eta(&self, progress: &Progress) -> Option<f64> {
        let left = progress.bytes_total?.saturating_sub(progress.bytes);
        (self.rate > 0.0).then(|| left as f64 / self.rate)
    }

    fn json(&self, notice: &Notice) {
        let mut value = serde_json::to_value(notice).unwrap_or_default();
        if let Notice::Progress(progress) = notice {
            value["rate"] = (self.rate as u64).into();
            value["eta"] = self.eta(progress).map(|eta| (eta * 10.0).round() / 10.0).into();
        }
        print_line(&value.to_string());
    }

    fn show(&self, progress: &Progress) {
        let Some(bar) = &self.bar else { return };
        match progress.bytes_total {
            Some(total) => bar.set_length(total),
            None => bar.unset_length(),
        }
        bar.set_position(progress.bytes);
        let eta = self.eta(progress).map_or("?".to_owned(), |eta| clock(eta as u64));
        let waits = match progress.bottleneck {
            Bottleneck::None => "",
            Bottleneck::Read => ", reading is slowest",
            Bottleneck::Network => ", the network is slowest",
            Bottleneck::Write => ", writing is slowest",
            Bottleneck::Cpu => ", the processor is slowest",
            Bottleneck::Limit => ", as limited",
        };
        let files =
            progress.files_total.map_or(String::new(), |total| format!(", {}/{total} files", progress.files));
        bar.set_message(format!("{}/s, {eta} left{files}{waits}", HumanBytes(self.rate as u64)));
    }

    fn out(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_line(line)),
            None => print_line(line),
        }
    }

    /// Prints a line to standard error, beside the progress bar.
    pub(crate) fn err(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| errln!("{line}")),
            None => errln!("{line}"),
        }
    }

    pub(crate) fn end(&mut self, done: &Result<Summary, MoverError>, took: Duration) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        match done {
            Ok(summary) if self.json => {
                let mut value = serde_json::to_value(summary).unwrap_or_default();
                value["event"] = "end".into();
                value["seconds"] = took.as_secs_f64().into();
                if self.share.ranks > 1 {
                    value["process"] = self.share.rank.into();
                    value["processes"] = self.share.ranks.into();
                }
                print_line(&value.to_string());
            }
            Err(error) if self.json => {
                print_line(&serde_json::json!({ "event": "error", "text": error.to_string() }).to_string());
            }
            Ok(summary) => self.summary(summary, took),
            Err(error) => errln!("isthmus cp: {error}"),
        }
    }

    fn summary(&self, summary: &Summary, took: Duration) {
        let Summary { files, bytes, kept, failed, .. } = *summary;
        let mut line = format!("{files} file{}, {}", if files == 1 { "" } else { "s" }, HumanBytes(bytes));
        if self.dry_run {
            line += " would be copied";
        } else {
            let rate = bytes as f64 / took.as_secs_f64() / 1e6;
            line += &format!(" in {:.2} s ({rate:.0} MB/s), verified", took.as_secs_f64());
        }
        if kept > 0 {
            line += &format!("; {kept} left alone");
        }
        if failed > 0 {
            line += &format!("; {failed} not copied");
        }
        if self.share.ranks > 1 {
            line = format!("process {} of {}: {line}", self.share.rank, self.share.ranks);
        }
        // With --verbose, standard output is for `b3sum --check`, which accepts digest lines only.
        if self.verbose && !self.dry_run { errln!("{line}") } else { print_line(&line) }
    }
}

/// A line in the format of `b3sum`, for `b3sum --check`.
fn checksum(blake3: &str, path: &[u8]) -> String {
    // On a terminal, show the name without control characters.
    let at_terminal = std::io::stdout().is_terminal();
    let path = if at_terminal { shown(path) } else { String::from_utf8_lossy(path).into_owned() };
    if path.contains(['\\', '\n']) {
        let path = path.replace('\\', "\\\\").replace('\n', "\\n");
        return format!("\\{blake3}  {path}");
    }
    format!("{blake3}  {path}")
}

/// Prints a line. A failed write does not end the copy; the exit status reports it (`output`).
fn print_line(line: &str) {
    outln!("{line}");
}

fn clock(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_b3sum_writes_them() {
        let line = |path: &str| checksum("ab", path.as_bytes());
        assert_eq!(line("a/b c"), "ab  a/b c");
        assert_eq!(line("a\nb\\c"), "\\ab  a\\nb\\\\c");
        let long = "x/".repeat(500);
        assert_eq!(line(&long), format!("ab  {long}"));
    }
}
