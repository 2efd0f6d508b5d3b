//! One run: what came out, and under which circumstances.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::BenchError;
use crate::link::Link;

/// See the module. One line of `samples.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// When it began. Seconds since 1970.
    pub at: i64,
    /// Isthmus' version, and its commit where that is known.
    pub version: String,
    /// The kernel.
    pub kernel: String,
    /// Which run, and so the link's seed.
    pub run: u32,
    /// The link.
    pub link: Link,
    /// What was done.
    pub work: String,
    /// Bytes one way, in all.
    pub bytes: u64,
    /// Who did it.
    pub contender: String,
    /// Congestion control of the sites' TCP, where that was set.
    pub congestion: Option<String>,
    /// The command, in the lab.
    pub command: String,
    /// Least time possible. Seconds.
    pub floor_s: f64,
    /// Time taken, or, of a link's shares, measured; none where it failed. Seconds.
    pub seconds: Option<f64>,
    /// Round trips, ascending, where they were measured. Microseconds.
    pub round_trips_us: Vec<f64>,
    /// What two that used the link at once reached of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// Why it failed.
    pub error: Option<String>,
    /// The emulator's report on itself.
    pub emulator: Value,
}

/// Fractions of the link's goodput.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// MPI's over Isthmus.
    pub ours: f64,
    /// iperf3's.
    pub theirs: f64,
}

impl Sample {
    /// Floor over time taken, or what is left of a link to others; 0 where it failed.
    pub fn fraction(&self) -> f64 {
        match (self.shares, self.seconds) {
            (Some(shares), _) => shares.theirs,
            (None, Some(seconds)) => self.floor_s / seconds,
            (None, None) => 0.0,
        }
    }

    /// Whether the emulator says that it was late itself.
    pub fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }
}

/// The samples of a file of earlier runs. A last line that is not whole is one whose run was ended; none is
/// there where the file is not.
///
/// # Errors
/// Where the file cannot be read, or another line is no sample.
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

/// The middle one; of two the mean.
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

/// The value that a share of the ascending `values` does not exceed.
pub(crate) fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use isthmus_units::{Percent, Rate, Span};

    use super::*;

    #[test]
    fn samples_are_read_back_and_a_torn_last_line_is_left_out() {
        let link = Link { rate: Rate(10_000_000), rtt: Span(24_500_000), loss: Percent(0.0001), mtu: 1_500 };
        let sample = Sample {
            at: 7,
            version: "1".into(),
            kernel: "6".into(),
            run: 2,
            link,
            work: "stream".into(),
            bytes: 5,
            contender: "isthmus".into(),
            congestion: None,
            command: "x".into(),
            floor_s: 0.25,
            seconds: Some(0.5),
            round_trips_us: vec![1.5],
            shares: None,
            error: None,
            emulator: Value::Null,
        };
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
