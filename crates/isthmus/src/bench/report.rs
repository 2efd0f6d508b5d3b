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
    /// All of it. Bytes, and seconds.
    Goodput { bytes: u64, seconds: f64 },
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
            "{:<24} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}  round trip, us",
            "", "bytes", "p50", "p90", "p99", "p99.9", "most"
        );
    } else {
        println!("{:<24} {:>8} {:>9} {:>9} {:>9}", "", "bytes", "count", "MB/s", "Gb/s");
    }
}

impl Row {
    pub(super) fn print(&self, json: bool) {
        if json { self.print_json() } else { self.print_line() }
    }

    fn print_line(&self) {
        let lost = if self.lost > 0 { format!("  {} lost", self.lost) } else { String::new() };
        let head = format!("{:<24} {:>8}", self.what, self.size);
        match &self.result {
            Figure::RoundTrips(times) => {
                let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
                println!(
                    "{head} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}{lost}",
                    us(0.5),
                    us(0.9),
                    us(0.99),
                    us(0.999),
                    us(1.0)
                );
            }
            Figure::Goodput { bytes, seconds } => {
                let rate = *bytes as f64 / seconds;
                println!("{head} {:>9} {:>9.1} {:>9.2}{lost}", self.count, rate / 1e6, rate * 8.0 / 1e9);
            }
            Figure::Mean(us) => println!("{head} {us:>9.2}  (mean)"),
        }
    }

    fn print_json(&self) {
        let figures = match &self.result {
            Figure::RoundTrips(times) => {
                let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
                serde_json::json!({
                    "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": us(1.0),
                })
            }
            Figure::Goodput { bytes, seconds } => serde_json::json!({ "bytes": bytes, "seconds": seconds }),
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
