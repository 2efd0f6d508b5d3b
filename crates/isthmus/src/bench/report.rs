//! What was measured, as lines.

use hdrhistogram::Histogram;

/// One measurement.
pub(super) struct Row {
    pub(super) what: String,
    pub(super) size: usize,
    pub(super) count: u64,
    /// Messages that did not come back.
    pub(super) lost: u64,
    pub(super) result: Figure,
}

/// What came out.
pub(super) enum Figure {
    /// Round trips. Nanoseconds.
    RoundTrips(Box<Histogram<u64>>),
    /// All of it. Bytes, and seconds; and how long each took from its call to its end,
    /// nanoseconds.
    Goodput { bytes: u64, seconds: f64, each: Option<Box<Histogram<u64>>> },
    /// A mean that another program told. Microseconds.
    Mean(f64),
}

/// Round trips of up to 100 s to three digits.
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
        println!(
            "{:<28} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}  round trip, us",
            "", "bytes", "p50", "p90", "p99", "p99.9", "most"
        );
    } else {
        println!(
            "{:<28} {:>8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}  each, us",
            "", "bytes", "count", "MB/s", "Gb/s", "p50", "p90", "p99"
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
                println!("{head} {}{lost}", columns(times, &[0.5, 0.9, 0.99, 0.999, 1.0]));
            }
            Figure::Goodput { bytes, seconds, each } => {
                let rate = *bytes as f64 / seconds;
                let each = each.as_ref().map_or(String::new(), |times| columns(times, &[0.5, 0.9, 0.99]));
                let (mb, gbit) = (rate / 1e6, rate * 8.0 / 1e9);
                println!("{head} {:>9} {mb:>9.1} {gbit:>7.2} {each}{lost}", self.count);
            }
            Figure::Mean(us) => println!("{head} {us:>9.2}  (mean)"),
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
        println!(
            "{}",
            serde_json::json!({
                "version": 1, "what": self.what, "size": self.size, "count": self.count, "lost": self.lost,
                "figures": figures,
            })
        );
    }
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
