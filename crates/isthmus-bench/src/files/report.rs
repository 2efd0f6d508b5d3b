//! Report of the copies: text for a terminal, and an HTML page with plots.

use std::fmt::Write;

use super::sample::FileSample;
use crate::link::EmulatedLink;
use crate::plot::{bars, escaped, head, table};
use crate::sample::median;
use crate::table::{Grid, distinct, megabytes};

/// One run as a line of text.
pub(super) fn said(sample: &FileSample) -> String {
    let of = Subject::of(sample);
    let what = format!("{:28} {:>16}  {}", sample.contender, of.what(), sample.link.title());
    let spoiled = if sample.spoiled() { "  (the emulator was late)" } else { "" };
    match (sample.seconds, &sample.error) {
        (Some(seconds), _) => {
            format!("{what} {seconds:8.3} s  {:.3} of the limit{spoiled}", sample.fraction())
        }
        (None, error) => format!("{what} failed: {}", error.as_deref().unwrap_or("?")),
    }
}

/// Medians of one contender's copies of one subject.
struct Row {
    contender: String,
    seconds: f64,
    rate: f64,
    fraction: f64,
    synced: f64,
    peak_here: f64,
    peak_there: f64,
    fractions: Vec<f64>,
    marks: String,
}

/// The files and the link of a table.
#[derive(Clone, Copy, PartialEq)]
struct Subject {
    bytes: u64,
    files: u32,
    link: EmulatedLink,
    floor_s: f64,
    local_s: Option<f64>,
}

impl Subject {
    fn of(sample: &FileSample) -> Self {
        let FileSample { bytes, files, link, floor_s, local_s, .. } = *sample;
        Self { bytes, files, link, floor_s, local_s }
    }

    fn what(&self) -> String {
        match self.files {
            1 => format!("{} MB", megabytes(self.bytes)),
            files => format!("{} MB in {files}", megabytes(self.bytes)),
        }
    }

    fn title(&self) -> String {
        let Self { bytes, link, floor_s, local_s, .. } = self;
        let what = self.what() + if self.files > 1 { " files" } else { "" };
        let rate = *bytes as f64 / 1e6 / floor_s;
        if link.is_loopback() {
            return format!(
                "{what}, loopback; plain cp takes {floor_s:.3} s, {rate:.1} MB/s, which is the floor"
            );
        }
        let local = local_s.map_or(String::new(), |local| format!("; plain cp -r takes {local:.3} s"));
        format!("{what}, {}, {}; the floor is {floor_s:.3} s, {rate:.1} MB/s{local}", link.rate, link.title())
    }
}

fn tables(samples: &[FileSample]) -> Vec<(Subject, Vec<Row>)> {
    let mut out: Vec<(Subject, Vec<Row>)> = Vec::new();
    for sample in samples {
        let subject = Subject::of(sample);
        let at = out.iter().position(|(known, _)| *known == subject).unwrap_or_else(|| {
            out.push((subject, Vec::new()));
            out.len() - 1
        });
        if !out[at].1.iter().any(|row| row.contender == sample.contender) {
            let row = row(samples, &subject, &sample.contender);
            out[at].1.push(row);
        }
    }
    out
}

fn row(samples: &[FileSample], subject: &Subject, contender: &str) -> Row {
    let of_row = |sample: &&FileSample| Subject::of(sample) == *subject && sample.contender == contender;
    let own: Vec<&FileSample> = samples.iter().filter(of_row).collect();
    // A failed copy counts as slower than all others.
    let of = |value: fn(&FileSample) -> f64| median(own.iter().map(|sample| value(sample))).unwrap_or(0.0);
    let most = |value: fn(&FileSample) -> Option<u64>| {
        own.iter().filter_map(|sample| value(sample)).max().unwrap_or(0) as f64 / 1e6
    };
    let marks = [
        (own.iter().any(|sample| sample.spoiled()), '*'),
        (own.iter().any(|sample| sample.seconds.is_none()), '!'),
    ];
    Row {
        contender: contender.to_owned(),
        // A failed copy took forever.
        seconds: of(|sample| sample.seconds.unwrap_or(f64::INFINITY)),
        rate: of(FileSample::rate),
        fraction: of(FileSample::fraction),
        synced: of(FileSample::synced_fraction),
        peak_here: most(|sample| sample.peak_here),
        peak_there: most(|sample| sample.peak_there),
        fractions: own.iter().map(|sample| sample.fraction()).collect(),
        marks: marks.iter().filter(|(set, _)| *set).map(|(_, mark)| *mark).collect(),
    }
}

/// The report as text.
pub(super) fn text(samples: &[FileSample], missing: &[String]) -> String {
    let mut out = String::new();
    for (subject, rows) in tables(samples) {
        out += &grid(subject.title(), &rows).text();
        out.push('\n');
    }
    for line in missing {
        let _ = writeln!(out, "{line}");
    }
    out
}

fn grid(title: String, rows: &[Row]) -> Grid {
    let head = ["median", "s", "MB/s", "of the limit", "with fsync after it", "most MB here, there"];
    let texts = |row: &Row| {
        let Row { contender, seconds, rate, fraction, synced, peak_here, peak_there, marks, .. } = row;
        let peaks = format!("{peak_here:.0}, {peak_there:.0}");
        let [fraction, synced] = [fraction, synced].map(|value| format!("{value:.3}"));
        vec![
            contender.clone(),
            if seconds.is_finite() { format!("{seconds:.3}") } else { "-".to_owned() },
            format!("{rate:.1}"),
            fraction + marks,
            synced,
            peaks,
        ]
    };
    Grid { title, head: head.map(str::to_owned).to_vec(), rows: rows.iter().map(texts).collect() }
}

/// The report as a page that needs no other file.
pub(super) fn page(samples: &[FileSample], missing: &[String]) -> String {
    let mut out = head("File measurements");
    circumstances(&mut out, samples);
    for line in missing {
        let _ = write!(out, "<p>{}.", escaped(line));
    }
    let all = distinct(samples, |sample| sample.contender.clone());
    for (subject, rows) in tables(samples) {
        let _ = write!(out, "<h2>{}</h2>", escaped(&subject.title()));
        let values: Vec<_> =
            rows.iter().map(|row| (row.contender.as_str(), row.fractions.as_slice())).collect();
        bars(&mut out, "fraction of the limit: bar the median, dots the runs", &all, &values);
        table(&mut out, &grid(String::new(), &rows));
    }
    failures(&mut out, samples);
    out.push_str("</html>\n");
    out
}

fn circumstances(out: &mut String, samples: &[FileSample]) {
    let Some(first) = samples.first() else {
        out.push_str("<p>There are no samples.");
        return;
    };
    let spoiled = samples.iter().filter(|sample| sample.spoiled()).count();
    let ranks = samples.iter().map(|sample| sample.ranks).max().unwrap_or(0);
    let _ = write!(
        out,
        "<p>{} copies over emulated links of MTU {}, loss in both directions, by isthmus {}, Linux {}, TCP's \
         congestion control {} where a contender has none of its own. MPI programs have {ranks} ranks at each \
         site; their time is that of the transfer, a command's is its own from start to end. Every copy was \
         compared with its source. Files are read from the page cache and written to it; what an fsync adds \
         is told beside, and the most memory that a process of either side took: of MPI programs one rank, of \
         commands the service there. Contenders took turns, each copy in a lab of its own. In {spoiled} of them (*) the \
         emulator was late itself, which says little of the contender; a copy that failed (!) counts as 0. \
         The floor is one round trip and what full packets take at the link's rate, losses taken off; on \
         loopback it is what plain cp takes. MPI programs have 2 TCP streams to a peer where there are 4 ranks \
         or more. Raw samples: <code>samples.jsonl</code>.",
        samples.len(),
        first.link.mtu,
        escaped(&first.version),
        escaped(&first.kernel),
        escaped(&first.congestion),
    );
}

fn failures(out: &mut String, samples: &[FileSample]) {
    let failed: Vec<_> = samples.iter().filter(|sample| sample.seconds.is_none()).collect();
    if failed.is_empty() {
        return;
    }
    out.push_str("<h2>Copies that failed</h2><ul>");
    for sample in failed {
        let _ = write!(out, "<li>{}", escaped(&said(sample)));
    }
    out.push_str("</ul>");
}

#[cfg(test)]
mod tests {
    use isthmus_units::{Percent, Rate, Span};
    use serde_json::json;

    use super::*;

    fn sample(contender: &str, seconds: Option<f64>, spoiled: bool) -> FileSample {
        FileSample {
            at: 0,
            version: "1 <2>".to_owned(),
            kernel: "6".to_owned(),
            run: 1,
            link: EmulatedLink {
                rate: Rate(1_000_000_000),
                rtt: Span(24_000_000),
                loss: Percent(0.0),
                mtu: 9_000,
                name: None,
            },
            bytes: 100_000_000,
            files: 1,
            contender: contender.to_owned(),
            ranks: 4,
            congestion: "bbr".to_owned(),
            seed: 1,
            lab: None,
            choices: vec![],
            script: String::new(),
            floor_s: 1.0,
            local_s: None,
            seconds,
            sync_s: seconds.map(|_| 1.0),
            peak_here: seconds.map(|_| 10_000_000),
            peak_there: seconds.map(|seconds| seconds as u64 * 10_000_000),
            error: seconds.is_none().then(|| "no <way>".to_owned()),
            emulator: json!({ "spoiled": spoiled }),
        }
    }

    #[test]
    fn tables_have_medians_and_pages_every_contender_and_failure() {
        let samples = [
            sample("cp", Some(1.0), false),
            sample("cp", Some(4.0), true),
            sample("scp", Some(2.0), false),
            sample("rsync", None, false),
        ];
        let missing = ["rclone is left out, for there is no rclone: apt-get install rclone".to_owned()];
        let table = text(&samples, &missing);
        // The median of two is their mean. An fsync of 1 s makes 1 and 1/4 into 1/2 and 1/5.
        let cp = table.lines().find(|line| line.starts_with("cp ")).expect("a row");
        assert!(cp.contains("0.625*") && cp.contains("0.350") && cp.ends_with("10, 40"), "{cp}");
        assert!(table.contains("0.500") && table.contains("0.000!") && table.contains("apt-get"), "{table}");
        let page = page(&samples, &missing);
        assert!(
            page.contains("no &lt;way&gt;") && !page.contains("no <way>") && page.contains("1 &lt;2&gt;")
        );
        assert_eq!((page.matches("<rect").count(), page.matches("<circle").count()), (3, 4));
        assert!(page.contains("rclone is left out"));
    }
}
