//! Samples as an HTML page: circumstances, plots and tables.

use std::fmt::Write;

use isthmus_lab::report::SLOT_NS;
use isthmus_units::{Percent, Span};

use crate::beside::GOAL;
use crate::contender::Contender;
use crate::link::EmulatedLink;
use crate::outcome::{by_slot, flowed_from_s};
use crate::plot::{Look, Plot, Point, escaped, head, legend, table};
use crate::sample::{Sample, percentile};
use crate::table::{Cell, Grid, Group, all_trips, cell, distinct, grids, groups, megabytes};

/// Percentiles drawn of round trips.
const SHARES: [f64; 6] = [0.5, 0.75, 0.9, 0.99, 0.999, 1.0];

/// The whole page.
pub(crate) fn page(samples: &[Sample]) -> String {
    let mut out = head("WAN measurements");
    circumstances(&mut out, samples);
    // Each contender looks the same on every page.
    let all = Contender::ALL.map(|one| one.to_string());
    for group in groups(samples) {
        let _ = write!(out, "<h2>{}</h2>", heading(&group));
        let shown = distinct(&group.samples, |sample| sample.contender.clone());
        legend(&mut out, &all, &shown, dashed(&group.work));
        Section { group: &group, all: &all, shown: &shown }.plots(&mut out);
        for grid in grids(&group) {
            table(&mut out, &grid);
        }
    }
    congestion(&mut out, samples);
    failures(&mut out, samples);
    out.push_str("</html>\n");
    out
}

fn heading(group: &Group) -> String {
    let amount = format!("{} MB", megabytes(group.bytes));
    let first = group.samples.first();
    match group.work.as_str() {
        "stream" => format!("One way, {amount} in messages of 16 MB, from a cold start"),
        "sends" => format!("One way, {amount} in messages of 64 KiB, each by MPI_Send, one after the other"),
        "exchange" => format!("MPI_Sendrecv of 1 MB, {amount} each way"),
        "pingpong" => "8 bytes there and back".to_owned(),
        "late" => format!("{amount} to a receive that is not yet posted"),
        "share" => "What a stream of iperf3's reaches of a link that ours uses too".to_owned(),
        "preposted" => {
            let link = first.map_or(String::new(), |sample| sample.link.title());
            format!("{amount} in messages of 256 KiB, a share of whose receives is posted ahead; {link}")
        }
        "paths" => format!("One way, {amount} over two links at once"),
        "paths-cut" => {
            format!("One way, {amount} over two links at once, the second of which is cut for good")
        }
        "outage" => "A link that is down for 2 s".to_owned(),
        other => escaped(other),
    }
}

/// Meaning of the dashed line in a group's plots; empty if there is none.
fn dashed(work: &str) -> &'static str {
    match work {
        "outage" | "paths" | "paths-cut" => "",
        "share" => "the goal",
        _ => "the floor",
    }
}

fn circumstances(out: &mut String, samples: &[Sample]) {
    let Some(first) = samples.first() else {
        out.push_str("<p>There are no samples.");
        return;
    };
    let spoiled = samples.iter().filter(|sample| sample.spoiled()).count();
    let not_ended = samples.iter().filter(|sample| sample.not_ended_s.is_some()).count();
    let seeds = distinct(samples, |sample| sample.seed.to_string()).join(", ");
    let _ = write!(
        out,
        "<p>{} runs on emulated links of {}, MTU {}, loss in both directions, isthmus {}, Linux {}, seeds {seeds}. \
         Contenders took turns, each run in a lab of its own. In {spoiled} runs the emulator was late \
         itself (*), which says little of the contender. {not_ended} did not end in the time that they had (hollow, \
         &lt;): they are drawn as the most that they can have reached. The floor is one round trip (of an exchange half \
         of one) and what full packets take at the link's rate, losses taken off. Points are medians. Raw samples, each \
         with its lab, command, seed, congestion control and what Isthmus chose: <code>samples.jsonl</code>.",
        samples.len(),
        first.link.rate,
        first.link.mtu,
        escaped(&first.version),
        escaped(&first.kernel)
    );
}

/// Most points of a curve over time. Count.
const CURVE_POINTS: usize = 40;

/// Rate of what arrived over time, from the first data on. Seconds and Mb/s.
fn curve(sample: &Sample) -> Vec<(f64, f64)> {
    let slots = by_slot(&sample.emulator);
    let slot_s = SLOT_NS as f64 / 1e9;
    let from = flowed_from_s(&slots).map_or(0, |from_s| (from_s / slot_s).round() as usize);
    let slots = slots.get(from..).unwrap_or_default();
    let each = slots.len().div_ceil(CURVE_POINTS).max(1);
    let point = |(at, some): (usize, &[u64])| {
        let middle_s = (at * each) as f64 * slot_s + some.len() as f64 * slot_s / 2.0;
        (middle_s, some.iter().sum::<u64>() as f64 * 8e-6 / (some.len() as f64 * slot_s))
    };
    slots.chunks(each).enumerate().map(point).collect()
}

/// A row of plots.
fn row(out: &mut String, title: &str, plots: impl Fn(&mut String)) {
    let _ = write!(out, "<h3>{title}</h3><div class=plots>");
    plots(out);
    out.push_str("</div>");
}

/// One group, drawn as a section of the page.
struct Section<'a> {
    group: &'a Group,
    /// All contenders, then those of the group.
    all: &'a [String],
    shown: &'a [String],
}

/// Meaning of a plot's y axis.
#[derive(Clone, Copy)]
enum Up {
    Mbps,
    Fraction,
    Share,
    Resumed,
}

impl Up {
    fn name(self) -> &'static str {
        match self {
            Self::Mbps => "goodput, Mb/s",
            Self::Fraction => "fraction of the limit",
            Self::Share => "iperf3's fraction of the link",
            Self::Resumed => "until data came, round trips",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Mbps => "Goodput",
            Self::Fraction => "Fraction of the limit",
            Self::Share => "What iperf3 keeps",
            Self::Resumed => "Round trips until data came again",
        }
    }

    fn of(self, cell: &Cell) -> Option<f64> {
        match self {
            Self::Mbps => cell.mbps,
            Self::Fraction | Self::Share => cell.fraction,
            Self::Resumed => cell.resumed,
        }
    }

    /// Value of the dashed line: the limit or the goal.
    fn floor(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Mbps => Some(sample.floor_mbps()),
            Self::Fraction => Some(1.0),
            Self::Share => Some(GOAL),
            Self::Resumed => None,
        }
    }
}

impl Section<'_> {
    fn plots(&self, out: &mut String) {
        let ups: &[Up] = match self.group.work.as_str() {
            // A short table is enough.
            "pingpong" | "paths" | "paths-cut" => &[],
            "share" => &[Up::Share],
            _ if self.group.is_of_catalogue() => return self.over_time(out),
            "outage" => &[Up::Resumed],
            _ => &[Up::Mbps, Up::Fraction],
        };
        if self.group.work == "preposted" {
            row(out, "Throughput", |out| self.by_ahead(out, ups));
        } else {
            ups.iter().for_each(|up| self.by_loss_and_rtt(out, *up));
        }
        if self.group.samples.iter().any(|sample| !sample.round_trips_us.is_empty()) {
            row(out, "Percentiles of the time that each took", |out| {
                for link in distinct(&self.group.samples, |sample| sample.link) {
                    self.latency(out, link);
                }
            });
        }
    }

    /// Plots against loss for each round trip, and against the round trip for each loss, if there are several.
    fn by_loss_and_rtt(&self, out: &mut String, up: Up) {
        let samples = &self.group.samples;
        let mut rtts = distinct(samples, |sample| sample.link.rtt);
        let mut losses = distinct(samples, |sample| sample.link.loss);
        rtts.sort();
        losses.sort_by(|a, b| a.0.total_cmp(&b.0));
        let link = |rtt: &Span, loss: &Percent| EmulatedLink { rtt: *rtt, loss: *loss, ..samples[0].link };
        if losses.len() > 1 || rtts.len() == 1 {
            row(out, &format!("{}, against loss", up.title()), |out| {
                for rtt in &rtts {
                    let places: Vec<_> =
                        losses.iter().map(|loss| (loss.to_string(), link(rtt, loss))).collect();
                    self.by_link(out, &format!("round trip {rtt}"), "loss each way", up, &places);
                }
            });
        }
        if rtts.len() > 1 {
            row(out, &format!("{}, against the round trip", up.title()), |out| {
                for loss in &losses {
                    let places: Vec<_> = rtts.iter().map(|rtt| (rtt.to_string(), link(rtt, loss))).collect();
                    self.by_link(out, &format!("loss {loss}"), "round trip", up, &places);
                }
            });
        }
    }

    /// Plots what arrived over time, for each link of a catalogue: the first run of each contender.
    fn over_time(&self, out: &mut String) {
        row(out, "What arrived over time", |out| {
            for link in distinct(&self.group.samples, |sample| sample.link) {
                let runs: Vec<_> = self.group.samples.iter().filter(|sample| sample.link == link).collect();
                let curves: Vec<_> = self
                    .shown
                    .iter()
                    .filter_map(|one| Some((one, curve(runs.iter().find(|run| run.contender == *one)?))))
                    .collect();
                let ends_s = curves.iter().filter_map(|(_, curve)| Some(curve.last()?.0)).fold(1.0, f64::max);
                let seconds = (0..=4).map(|part| f64::from(part) / 4.0);
                let plot = Plot {
                    title: link.title(),
                    along: "time, s".to_owned(),
                    up: "rate on the link, Mb/s".to_owned(),
                    ticks: seconds.map(|part| (part, format!("{:.1}", part * ends_s))).collect(),
                    is_bare: true,
                    floor: [0.0, 1.0].map(|x| (x, link.rate.0 as f64 / 1e6)).to_vec(),
                    ..Plot::default()
                };
                let line = |(one, curve): &(&String, Vec<(f64, f64)>)| {
                    let point = |(at, y): &(f64, f64)| Point { x: at / ends_s, y: *y, is_bound: false };
                    (Look::of(self.all, one), curve.iter().map(point).collect())
                };
                plot.draw(out, &curves.iter().map(line).collect::<Vec<_>>());
            }
        });
    }

    /// Plots one value for each of these links that has samples.
    fn by_link(&self, out: &mut String, title: &str, along: &str, up: Up, places: &[(String, EmulatedLink)]) {
        let there = |link: &EmulatedLink| self.group.samples.iter().find(|sample| sample.link == *link);
        let places: Vec<_> = places.iter().filter(|(_, link)| there(link).is_some()).collect();
        let at = |i: usize| if places.len() > 1 { i as f64 / (places.len() - 1) as f64 } else { 0.5 };
        let floor =
            |(i, (_, link)): (usize, &&(String, EmulatedLink))| Some((at(i), up.floor(there(link)?)?));
        let plot = Plot {
            title: title.to_owned(),
            along: along.to_owned(),
            up: up.name().to_owned(),
            ticks: places.iter().enumerate().map(|(i, (label, _))| (at(i), label.clone())).collect(),
            least_top: if matches!(up, Up::Share) { 1.0 } else { 0.0 },
            floor: places.iter().enumerate().filter_map(floor).collect(),
            is_bare: false,
        };
        self.draw(out, &plot, up, |i, sample| places.get(i).map(|(_, link)| (at(i), sample.link == *link)));
    }

    /// Plots goodput against the share of receives posted ahead.
    fn by_ahead(&self, out: &mut String, ups: &[Up]) {
        let mut shares = distinct(&self.group.samples, |sample| sample.ahead.unwrap_or(0));
        shares.sort_unstable();
        let at = |share: u32| f64::from(share) / 100.0;
        for up in ups {
            let floor = self.group.samples.first().and_then(|sample| up.floor(sample));
            let plot = Plot {
                title: up.title().to_owned(),
                along: "share of receives that are posted ahead, %".to_owned(),
                up: up.name().to_owned(),
                ticks: shares.iter().map(|share| (at(*share), share.to_string())).collect(),
                floor: floor.map(|floor| vec![(0.0, floor), (1.0, floor)]).unwrap_or_default(),
                ..Plot::default()
            };
            self.draw(out, &plot, *up, |i, sample| {
                shares.get(i).map(|share| (at(*share), sample.ahead == Some(*share)))
            });
        }
    }

    /// Draws a line for each contender. `place` gives the i-th position, and whether a sample belongs there.
    fn draw(
        &self,
        out: &mut String,
        plot: &Plot,
        up: Up,
        place: impl Fn(usize, &Sample) -> Option<(f64, bool)>,
    ) {
        let samples = &self.group.samples;
        let line = |one: &String| {
            let point = |i: usize| {
                let (x, _) = place(i, samples.first()?)?;
                let own =
                    samples.iter().filter(|s| s.contender == *one && place(i, s).is_some_and(|(_, is)| is));
                let cell = cell(own);
                Some(Point { x, y: up.of(&cell)?, is_bound: cell.is_bound })
            };
            let points = (0..plot.ticks.len()).filter_map(point).collect();
            (Look::of(self.all, one), points)
        };
        plot.draw(out, &self.shown.iter().map(line).collect::<Vec<_>>());
    }

    /// Plots percentiles of round trips on one link.
    fn latency(&self, out: &mut String, link: EmulatedLink) {
        let at = |i: usize| i as f64 / (SHARES.len() - 1) as f64;
        let name = |share: &f64| if *share < 1.0 { format!("p{}", share * 100.0) } else { "most".to_owned() };
        let on_link = || self.group.samples.iter().filter(|sample| sample.link == link);
        let of_one = |sample: &Sample| match sample.work.as_str() {
            "late" => sample.floor_s / link.rtt_s(),
            "exchange" => sample.floor_s / sample.round_trips_us.len().max(1) as f64 / link.rtt_s(),
            _ => 1.0,
        };
        let floor = on_link().next().map(|sample| vec![(0.0, of_one(sample)), (1.0, of_one(sample))]);
        let plot = Plot {
            title: link.title(),
            along: "percentile".to_owned(),
            up: "round trips of the link".to_owned(),
            ticks: SHARES.iter().enumerate().map(|(i, share)| (at(i), name(share))).collect(),
            floor: floor.unwrap_or_default(),
            ..Plot::default()
        };
        let line = |one: &String| {
            let trips = all_trips(on_link().filter(|sample| sample.contender == *one));
            let point = |(i, share): (usize, &f64)| {
                Some(Point { x: at(i), y: percentile(&trips, *share)?, is_bound: false })
            };
            (Look::of(self.all, one), SHARES.iter().enumerate().filter_map(point).collect())
        };
        plot.draw(out, &self.shown.iter().map(line).collect::<Vec<_>>());
    }
}

/// Lists the congestion control of each work, link and contender for which it is known.
fn congestion(out: &mut String, samples: &[Sample]) {
    let of = |sample: &Sample| {
        let seen = sample.congestion.clone()?;
        Some(vec![sample.title(), seen])
    };
    let rows: Vec<_> = distinct(samples, of).into_iter().flatten().collect();
    if rows.is_empty() {
        return;
    }
    out.push_str("<h2>Congestion control that was used</h2><details><summary>run by run</summary>");
    let head = ["run", "congestion control"].map(str::to_owned).to_vec();
    table(out, &Grid { title: String::new(), head, rows });
    out.push_str("</details>");
}

fn failures(out: &mut String, samples: &[Sample]) {
    let failed: Vec<_> =
        samples.iter().filter_map(|sample| Some((sample, sample.error.as_deref()?))).collect();
    if failed.is_empty() {
        return;
    }
    out.push_str("<h2>Runs that failed</h2><ul>");
    for (sample, why) in failed {
        let _ = write!(out, "<li>{}", escaped(&format!("{}: {why}", sample.title())));
    }
    out.push_str("</ul>");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sample::{Shares, fixture};
    use crate::table::text;

    fn sample(contender: &str, loss: f64, seconds: Option<f64>) -> Sample {
        let fixture = fixture();
        Sample {
            link: EmulatedLink { loss: Percent(loss), ..fixture.link },
            contender: contender.to_owned(),
            seconds,
            error: seconds.is_none().then(|| "no <way>".to_owned()),
            emulator: json!({ "spoiled": loss > 0.0 }),
            ..fixture
        }
    }

    #[test]
    fn the_page_has_every_contender_and_failure_and_nothing_unescaped() {
        let samples = [
            sample("isthmus", 0.0, Some(2.0)),
            sample("isthmus", 0.01, Some(4.0)),
            sample("iperf3-bbr-x1", 0.0, None),
        ];
        let page = page(&samples);
        assert!(
            page.contains("no &lt;way&gt;") && !page.contains("no <way>") && page.contains("1 &lt;2&gt;")
        );
        // Mb/s and fraction: two contenders and the floor in each.
        assert_eq!(page.matches("<polyline points").count(), 2 * 2);
        assert_eq!(page.matches("<polyline class=\"floor\"").count(), 2);
        assert!(page.contains("In 1 runs the emulator"));
        let table = text(&samples);
        assert!(table.contains("0.500") && table.contains("0.250*") && table.contains("0.000!"), "{table}");
    }

    #[test]
    fn goodput_is_drawn_against_loss_and_against_the_round_trip() {
        let at = |ms: u64, loss: f64| {
            let one = sample("isthmus", loss, Some(2.0));
            Sample { link: EmulatedLink { rtt: Span(ms * 1_000_000), ..one.link }, ..one }
        };
        let page = page(&[at(24, 0.0), at(366, 0.0), at(24, 0.01), at(366, 0.01)]);
        for title in ["round trip 24ms", "round trip 366ms", "loss 0%", "loss 1%"] {
            assert_eq!(page.matches(&format!("<figcaption>{title}<")).count(), 2, "{title}");
        }
        assert!(page.contains("goodput, Mb/s") && page.contains("loss each way"), "axes have names");
    }

    #[test]
    fn late_receives_and_exchanges_have_percentiles_as_well() {
        for work in ["late", "exchange"] {
            let sample = Sample {
                work: work.into(),
                round_trips_us: vec![24_000.0; 5],
                ..sample("isthmus", 0.0, Some(0.03))
            };
            assert!(page(&[sample]).contains("round trips of the link"), "{work}");
        }
    }

    #[test]
    fn receives_posted_ahead_are_drawn_with_a_line_for_each_protocol() {
        let at = |ahead, contender| Sample {
            work: "preposted".into(),
            ahead: Some(ahead),
            ..sample(contender, 0.0, Some(2.0))
        };
        let page =
            page(&[at(0, "isthmus"), at(100, "isthmus"), at(0, "isthmus-eager"), at(100, "isthmus-eager")]);
        assert_eq!(page.matches("<polyline points").count(), 2 * 2);
        assert!(page.contains("share of receives that are posted ahead, %"));
    }

    #[test]
    fn of_a_shared_link_both_shares_and_the_goal_are_told() {
        let shared = Sample {
            work: "share".into(),
            bytes: 0,
            shares: Some(Shares { ours: 0.375, theirs: 0.625 }),
            ..sample("bbr-beside-isthmus", 0.0, Some(13.0))
        };
        let page = page(&[shared]);
        assert!(page.contains("which is to be 0.4 or more") && page.contains("0.625, 0.375"), "{page}");
        assert!(page.contains("fraction of the link") && !page.contains("fraction of the limit"), "{page}");
    }
}
