//! One run: its result and its circumstances.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BenchError;
use crate::link::EmulatedLink;

/// One run; one line of `samples.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Start of the run. Seconds since 1970.
    pub at: i64,
    /// Isthmus' version, with its commit if known.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Number of the repetition, from 1.
    pub run: u32,
    /// Seed of the link's random decisions, and of which receives are posted ahead.
    #[serde(default)]
    pub seed: u64,
    /// The link.
    pub link: EmulatedLink,
    /// The second link, if there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<EmulatedLink>,
    /// The lab's configuration. The emulator's report has what it omits, such as queue lengths.
    #[serde(default)]
    pub lab: String,
    /// Name of the work.
    pub work: String,
    /// Share of receives posted ahead, if the work sets it. Percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u32>,
    /// Bytes sent one way, in total.
    pub bytes: u64,
    /// Name of the contender.
    pub contender: String,
    /// Congestion control used, if known; with Isthmus that of each kind of lane.
    pub congestion: Option<String>,
    /// Isthmus' log lines about its choices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// The command that ran in the lab.
    pub command: String,
    /// Shortest possible time. Seconds.
    pub floor_s: f64,
    /// Time taken, or time in which two flows were measured. `None` if the run did not end or failed. Seconds.
    pub seconds: Option<f64>,
    /// Time limit that passed before the run ended. Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ended_s: Option<f64>,
    /// Time from the end of an outage until data arrived again. Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_s: Option<f64>,
    /// Time of each round trip or exchange, if measured; sorted for late receives. Microseconds.
    pub round_trips_us: Vec<f64>,
    /// Shares of two flows that used the link at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// Why it failed.
    pub error: Option<String>,
    /// The emulator's report on itself.
    pub emulator: Value,
}

/// Shares of two flows, as fractions of the link's goodput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// MPI over Isthmus.
    pub ours: f64,
    /// iperf3.
    pub theirs: f64,
}

impl Sample {
    /// Floor divided by time taken, or the share that iperf3 keeps. An upper bound if the run did not end; 0 if it
    /// failed.
    pub fn fraction(&self) -> f64 {
        match (self.shares, self.seconds.or(self.not_ended_s)) {
            (Some(shares), _) => shares.theirs,
            (None, Some(seconds)) => self.floor_s / seconds,
            (None, None) => 0.0,
        }
    }

    /// The floor as a rate. Mb/s.
    pub fn floor_mbps(&self) -> f64 {
        if self.floor_s > 0.0 { self.bytes as f64 * 8e-6 / self.floor_s } else { 0.0 }
    }

    /// Rate reached; an upper bound if the run did not end, 0 if it failed. Mb/s.
    pub fn mbps(&self) -> f64 {
        self.fraction() * self.floor_mbps()
    }

    /// Short name of the run, for progress and reports.
    pub fn title(&self) -> String {
        let ahead = self.ahead.map_or(String::new(), |ahead| format!(" {ahead} % ahead"));
        format!("{}, {}{ahead}, {}", self.contender, self.work, self.links())
    }

    /// Short name of its link or links.
    pub fn links(&self) -> String {
        let second = self.second.map_or(String::new(), |second| format!(" and {}", second.title()));
        self.link.title() + &second
    }

    /// Bytes that were sent from a to b, as a multiple of the least that had to be sent; `None` unless the run ended.
    pub(crate) fn sent(&self) -> Option<f64> {
        let sent = self.emulator["links"][0]["directions"][0]["offered_bytes"].as_f64()?;
        self.seconds.map(|_| sent / self.link.wire_bytes(self.bytes as f64))
    }

    /// Whether the emulator reports that it was late itself.
    pub fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }
}

/// The samples of earlier runs; none if the file does not exist. Skips a last line without a line end: its
/// writer was interrupted.
///
/// # Errors
/// If the file cannot be read, or another line is no sample.
pub(crate) fn earlier(path: &Path) -> Result<Vec<Sample>, BenchError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(BenchError::file(path))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            let place = format!("{}, line {}", path.display(), number + 1);
            BenchError::Missing(format!("{place}: {error}; name another folder with --out"))
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

/// The median; of an even number of values the mean of the middle two.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The percentile `share` (0 to 1) of `values`, which are sorted in ascending order.
pub(crate) fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied()
}

/// Base of the tests' samples: a run without any result.
#[cfg(test)]
pub(crate) fn fixture() -> Sample {
    use isthmus_units::{Percent, Rate, Span};
    Sample {
        at: 7,
        version: "1 <2>".into(),
        kernel: "6".into(),
        run: 1,
        seed: 1,
        link: EmulatedLink {
            rate: Rate(1_000_000_000),
            rtt: Span(24_000_000),
            loss: Percent(0.0001),
            mtu: 9_000,
            name: None,
        },
        second: None,
        lab: String::new(),
        work: "stream".into(),
        ahead: None,
        bytes: 1_000_000,
        contender: "isthmus".into(),
        congestion: None,
        choices: vec![],
        command: "x".into(),
        floor_s: 1.0,
        seconds: None,
        not_ended_s: None,
        resumed_s: None,
        round_trips_us: vec![],
        shares: None,
        error: None,
        emulator: Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_back_and_a_torn_last_line_is_left_out() {
        let sample = Sample { run: 2, seconds: Some(0.5), ..fixture() };
        let link = sample.link;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("samples.jsonl");
        assert_eq!(earlier(&path).expect("none yet").len(), 0);
        let line = serde_json::to_string(&sample).expect("a line");
        std::fs::write(&path, format!("{line}\n{line}\n{}", &line[..20])).expect("written");
        let read = earlier(&path).expect("samples");
        assert_eq!(read.len(), 2);
        assert_eq!((read[1].link, read[1].seconds, read[1].run), (link, Some(0.5), 2));
        std::fs::write(&path, format!("{{}}\n{line}\n")).expect("written");
        assert!(earlier(&path).expect_err("no sample").to_string().contains("line 1"));
    }

    #[test]
    fn one_that_did_not_end_is_at_most_as_fast_as_what_ends_then() {
        let late = Sample { not_ended_s: Some(8.0), ..fixture() };
        assert!((late.fraction() - 0.125).abs() < 1e-9 && (late.floor_mbps() - 8.0).abs() < 1e-9);
        assert!(fixture().fraction().abs() < 1e-9, "failed");
    }

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
        let values: Vec<_> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(500.0));
        assert_eq!(percentile(&values, 0.999), Some(999.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
