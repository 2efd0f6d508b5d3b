//! Formats measurements as lines.

use hdrhistogram::Histogram;

/// One measurement.
pub(super) struct Row {
    pub(super) what: String,
    pub(super) size: usize,
    pub(super) count: u64,
    /// Messages without an answer, or not delivered.
    pub(super) lost: u64,
    pub(super) result: Figure,
}

/// The result of a measurement.
pub(super) enum Figure {
    /// Round trips. Nanoseconds.
    RoundTrips(Box<Histogram<u64>>),
    /// Bytes and seconds of all messages, and the time of each from its call to its end. Nanoseconds.
    Goodput { bytes: u64, seconds: f64, each: Option<Box<Histogram<u64>>> },
    /// A mean that another program reported. Microseconds.
    Mean(f64),
}

/// A histogram of round trips up to 100 s, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).unwrap_or_else(|_| unreachable_bounds())
}

fn unreachable_bounds() -> Histogram<u64> {
    unreachable!("the bounds are constants that histograms take")
}

pub(super) fn head(json: bool, latency: bool) {
    if json {
        return;
    }
    if latency {
        outln!(
            "{:<28} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}  round trip, us",
            "",
            "bytes",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "most"
        );
    } else {
        outln!(
            "{:<28} {:>8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}  each, us",
            "",
            "bytes",
            "count",
            "MB/s",
            "Gb/s",
            "p50",
            "p90",
            "p99"
        );
    }
}

impl Row {
    pub(super) fn print(&self, json: bool) {
        if json { self.print_json() } else { self.print_line() }
    }

    fn print_line(&self) {
        let lost = if self.lost > 0 { format!("  {} lost", self.lost) } else { String::new() };
        let head = format!("{:<28} {:>8}", self.what, self.size);
        match &self.result {
            Figure::RoundTrips(times) => {
                outln!("{head} {}{lost}", columns(times, &[0.5, 0.9, 0.99, 0.999, 1.0]));
            }
            Figure::Goodput { bytes, seconds, each } => {
                let rate = *bytes as f64 / seconds;
                let each = each.as_ref().map_or(String::new(), |times| columns(times, &[0.5, 0.9, 0.99]));
                let (mb, gbit) = (rate / 1e6, rate * 8.0 / 1e9);
                outln!("{head} {:>9} {mb:>9.1} {gbit:>7.2} {each}{lost}", self.count);
            }
            Figure::Mean(us) => outln!("{head} {us:>9.2}  (mean)"),
        }
    }

    fn print_json(&self) {
        let figures = match &self.result {
            Figure::RoundTrips(times) => percentiles(times),
            Figure::Goodput { bytes, seconds, each } => serde_json::json!({
                "bytes": bytes, "seconds": seconds, "each": each.as_ref().map(|times| percentiles(times)),
            }),
            Figure::Mean(us) => serde_json::json!({ "mean_us": us }),
        };
        outln!(
            "{}",
            serde_json::json!({
                "version": 1, "what": self.what, "size": self.size, "count": self.count, "lost": self.lost,
                "figures": figures,
            })
        );
    }
}

/// Results of several rounds.
#[derive(Default)]
pub(super) struct Summary {
    rows: Vec<Series>,
}

struct Series {
    what: String,
    ours: bool,
    /// One figure per round: median round trip (or the mean, if that is all there is), us; or goodput, Gb/s.
    figures: Vec<f64>,
    unit: &'static str,
}

impl Summary {
    pub(super) fn add(&mut self, row: &Row, ours: bool) {
        let (figure, unit) = match &row.result {
            Figure::RoundTrips(times) => (us(times, 0.5), "us"),
            Figure::Goodput { bytes, seconds, .. } => (*bytes as f64 * 8.0 / seconds / 1e9, "Gb/s"),
            Figure::Mean(us) => (*us, "us"),
        };
        match self.rows.iter_mut().find(|series| series.what == row.what) {
            Some(series) => series.figures.push(figure),
            None => self.rows.push(Series { what: row.what.clone(), ours, figures: vec![figure], unit }),
        }
    }

    /// Prints medians. For our rows also the ratio to each other row: the median of the rounds' ratios.
    pub(super) fn print(&self, json: bool) {
        if !json {
            outln!("\nmedians of all rounds, the least and the most; and as a ratio to");
        }
        for row in &self.rows {
            let beside = self.rows.iter().filter(|other| row.ours && !other.ours);
            let ratios: Vec<(&str, f64)> = beside.map(|other| (&*other.what, row.ratio_to(other))).collect();
            let mut sorted = row.figures.clone();
            let middle = median(&mut sorted);
            let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
            if json {
                let ratios: serde_json::Map<_, _> =
                    ratios.iter().map(|(what, ratio)| ((*what).to_owned(), (*ratio).into())).collect();
                let figures = serde_json::json!({
                    "median": middle, "least": least, "most": most, "unit": row.unit, "ratios": ratios,
                });
                outln!(
                    "{}",
                    serde_json::json!({
                        "version": 1, "what": row.what, "rounds": row.figures.len(), "figures": figures,
                    })
                );
                continue;
            }
            outln!("{:<28} {middle:>9.2} {least:>9.2} {most:>9.2}  {}", row.what, row.unit);
            for (what, ratio) in ratios {
                outln!("{:<28} {ratio:>9.3}  of {what}", "");
            }
        }
    }
}

impl Series {
    /// Rounds are compared one by one, since a busy machine slows both sides of a round.
    fn ratio_to(&self, other: &Self) -> f64 {
        median(&mut self.figures.iter().zip(&other.figures).map(|(own, its)| own / its).collect::<Vec<_>>())
    }
}

/// The median; sorts the figures. There must be at least one.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn us(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1000.0
}

fn columns(times: &Histogram<u64>, quantiles: &[f64]) -> String {
    let columns: Vec<String> = quantiles.iter().map(|q| format!("{:>9.2}", us(times, *q))).collect();
    columns.join(" ")
}

fn percentiles(times: &Histogram<u64>) -> serde_json::Value {
    let us = |quantile| us(times, quantile);
    serde_json::json!({
        "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": us(1.0),
    })
}
