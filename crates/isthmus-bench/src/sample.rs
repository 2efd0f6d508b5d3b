//! One run: what came out, and under which circumstances.

use serde::Serialize;
use serde_json::Value;

use crate::link::Link;

/// See the module. One line of `samples.jsonl`.
#[derive(Clone, Debug, Serialize)]
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
    pub work: &'static str,
    /// Bytes one way, in all.
    pub bytes: u64,
    /// Who did it.
    pub contender: String,
    /// Congestion control of the sites' TCP, where that was set.
    pub congestion: Option<&'static str>,
    /// The command, in the lab.
    pub command: String,
    /// Least time possible. Seconds.
    pub floor_s: f64,
    /// Time taken; none where it failed. Seconds.
    pub seconds: Option<f64>,
    /// Round trips, ascending, where they were measured. Microseconds.
    pub round_trips_us: Vec<f64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The emulator's report on itself.
    pub emulator: Value,
}

impl Sample {
    /// Floor over time taken; 0 where it failed.
    pub fn fraction(&self) -> f64 {
        self.seconds.map_or(0.0, |seconds| self.floor_s / seconds)
    }

    /// Whether the emulator says that it was late itself.
    pub fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }
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
    use super::*;

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
