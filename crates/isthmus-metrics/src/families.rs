//! The metrics of one answer, in the formats that Prometheus reads.

use std::collections::BTreeSet;
use std::fmt;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Most rows of one kind, such as links, that have labels of their own. Count. Each row costs Prometheus a time series
/// for each metric. [`limited`] adds the rest up.
pub const LABELLED_MAX: usize = 128;
/// Greatest number that a double holds exactly with all smaller ones.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The labels of a row, each with its value.
pub type Labels = Vec<(&'static str, String)>;

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the daemon starts again. Its name ends with `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    help: &'static str,
    rows: Vec<(Labels, f64)>,
}

/// The metrics of one answer.
#[derive(Debug)]
pub struct Metrics {
    prefix: &'static str,
    families: Vec<Family>,
}

impl Metrics {
    /// No metrics yet. All names will begin with `prefix` and an underscore.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, families: Vec::new() }
    }

    /// Adds a metric. `name` has neither prefix nor `_total`. If its last word is "bytes" or "seconds", that is its
    /// unit.
    pub fn add(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &'static str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let (stem, unit) = split_unit(name);
        let rows = rows.into_iter().map(|(labels, value)| (escaped(labels), value)).collect();
        self.families.push(Family { name: stem, unit, kind, help, rows });
    }

    /// Adds when the daemon's certificate expires. `None`: it has none, and the metric has no row.
    pub fn add_certificate(&mut self, expires: Option<SystemTime>) {
        let since_1970 = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let row = expires.map(|at| (Labels::new(), since_1970(at).as_secs_f64()));
        let help = "When this daemon's certificate expires, in seconds since 1970.";
        self.add("certificate_expiry_timestamp_seconds", Kind::Gauge, help, row);
    }

    /// The metrics in the OpenMetrics format.
    pub fn to_openmetrics(self) -> String {
        let mut registry = Registry::with_prefix(self.prefix);
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut out, &registry);
        out
    }

    /// The metrics in Prometheus's older text format. A counter's header has the name of its samples there, and units
    /// are comments.
    pub fn to_text(self) -> String {
        let text = self.to_openmetrics();
        let is_counter = |(what, _, rest): &(&str, &str, &str)| (*what, *rest) == ("TYPE", "counter");
        let counters: BTreeSet<&str> =
            text.lines().filter_map(header).filter(is_counter).map(|(_, name, _)| name).collect();
        let mut out = String::with_capacity(text.len());
        for line in text.lines() {
            match header(line) {
                Some(("UNIT", ..)) => continue,
                Some((what, name, rest)) if counters.contains(name) => {
                    out += &format!("# {what} {name}_total {rest}");
                }
                None if line == "# EOF" => continue,
                _ => out += line,
            }
            out.push('\n');
        }
        out
    }
}

/// The keyword, name and rest of a line that describes a metric.
fn header(line: &str) -> Option<(&str, &str, &str)> {
    let (what, rest) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = rest.split_once(' ')?;
    Some((what, name, rest))
}

fn split_unit(name: &'static str) -> (&'static str, Option<Unit>) {
    match name.rsplit_once('_') {
        Some((stem, "bytes")) => (stem, Some(Unit::Bytes)),
        Some((stem, "seconds")) => (stem, Some(Unit::Seconds)),
        _ => (name, None),
    }
}

/// Escapes the values of labels, as both formats want it; the encoder does not.
fn escaped(labels: Labels) -> Labels {
    let escape = |text: String| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    labels.into_iter().map(|(name, value)| (name, escape(value))).collect()
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, unit, kind, help, rows } in &self.families {
            let of_kind = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), of_kind)?;
            for (labels, value) in rows {
                if labels.is_empty() {
                    put(*kind, *value, &mut family)?;
                } else {
                    put(*kind, *value, &mut family.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes one value, without a decimal point if it is a whole number.
fn put(kind: Kind, value: f64, to: &mut MetricEncoder<'_>) -> fmt::Result {
    let whole = value.fract() == 0.0 && value.abs() <= EXACT_MAX;
    match (kind, whole) {
        (Kind::Counter, true) => to.encode_counter::<NoLabelSet, u64, f64>(&(value as u64), None),
        (Kind::Counter, false) => to.encode_counter::<NoLabelSet, f64, f64>(&value, None),
        (Kind::Gauge, true) => to.encode_gauge(&(value as i64)),
        (Kind::Gauge, false) => to.encode_gauge(&value),
    }
}

/// Gives the first [`LABELLED_MAX`] rows their own labels, and adds the rest up in one row that `sum` makes. That row
/// has the labels of the others, each with the value "other".
pub fn limited<T>(mut rows: Vec<(Labels, T)>, sum: impl FnOnce(Vec<T>) -> T) -> Vec<(Labels, T)> {
    if rows.len() <= LABELLED_MAX {
        return rows;
    }
    let rest = rows.split_off(LABELLED_MAX);
    let other = rest[0].0.iter().map(|(name, _)| (*name, "other".to_owned())).collect();
    rows.push((other, sum(rest.into_iter().map(|(_, row)| row).collect())));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Metrics {
        let mut metrics = Metrics::new("isthmus_test");
        let lane = |value: &str| vec![("lane", value.to_owned())];
        metrics.add("moved_bytes", Kind::Counter, "Bytes moved.", [(lane("a"), 3e9), (lane("b"), 0.5)]);
        metrics.add("rtt_seconds", Kind::Gauge, "Round trip.", [(lane("a\"\\\n"), 0.024)]);
        metrics.add("lanes", Kind::Gauge, "Lanes.", [(Labels::new(), 2.0)]);
        metrics
    }

    #[test]
    fn metrics_have_help_type_and_unit_and_labels_are_escaped() {
        let expected = "# HELP isthmus_test_moved_bytes Bytes moved.\n\
                        # TYPE isthmus_test_moved_bytes counter\n\
                        # UNIT isthmus_test_moved_bytes bytes\n\
                        isthmus_test_moved_bytes_total{lane=\"a\"} 3000000000\n\
                        isthmus_test_moved_bytes_total{lane=\"b\"} 0.5\n\
                        # HELP isthmus_test_rtt_seconds Round trip.\n\
                        # TYPE isthmus_test_rtt_seconds gauge\n\
                        # UNIT isthmus_test_rtt_seconds seconds\n\
                        isthmus_test_rtt_seconds{lane=\"a\\\"\\\\\\n\"} 0.024\n\
                        # HELP isthmus_test_lanes Lanes.\n\
                        # TYPE isthmus_test_lanes gauge\n\
                        isthmus_test_lanes 2\n\
                        # EOF\n";
        assert_eq!(some().to_openmetrics(), expected);
    }

    #[test]
    fn the_older_format_names_counters_as_their_samples_are_named() {
        let text = some().to_text();
        assert!(text.contains("# TYPE isthmus_test_moved_bytes_total counter\n"), "{text}");
        assert!(text.contains("# HELP isthmus_test_moved_bytes_total Bytes moved.\n"), "{text}");
        assert!(text.contains("# TYPE isthmus_test_rtt_seconds gauge\n"), "{text}");
        assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
    }

    #[test]
    fn rows_beyond_the_limit_are_one_row() {
        let row = |number: usize| (vec![("link", number.to_string())], 1_u64);
        let sum = |rest: Vec<u64>| rest.into_iter().sum();
        assert_eq!(limited((0..LABELLED_MAX).map(row).collect(), sum).len(), LABELLED_MAX);
        let rows = limited((0..LABELLED_MAX + 7).map(row).collect(), sum);
        assert_eq!(rows.len(), LABELLED_MAX + 1);
        assert_eq!(rows.last(), Some(&(vec![("link", "other".to_owned())], 7)));
    }
}
