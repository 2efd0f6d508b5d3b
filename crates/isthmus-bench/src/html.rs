//! Samples as one page: plots, tables, circumstances.

use std::fmt::Write;

use crate::plot::{colour, escaped, frame, head, legend, line};
use crate::sample::{Sample, percentile};
use crate::table::{cell, distinct, text};

/// The page.
pub(crate) fn page(samples: &[Sample]) -> String {
    let mut out = head("WAN measurements");
    circumstances(&mut out, samples);
    for (work, bytes) in distinct(samples, |sample| (sample.work.clone(), sample.bytes)) {
        let of_work = |sample: &&Sample| (&sample.work, sample.bytes) == (&work, bytes);
        let chosen: Vec<_> = samples.iter().filter(of_work).cloned().collect();
        let _ = write!(out, "<h2>{}</h2>", heading(&work, bytes));
        let contenders = distinct(&chosen, |sample| sample.contender.clone());
        legend(&mut out, &contenders);
        out.push_str("<div class=plots>");
        if work == "pingpong" {
            for link in distinct(&chosen, |sample| sample.link) {
                let on_link: Vec<_> = chosen.iter().filter(|sample| sample.link == link).cloned().collect();
                latency(&mut out, &on_link, &contenders);
            }
        } else {
            for rtt in distinct(&chosen, |sample| sample.link.rtt) {
                let on_rtt: Vec<_> = chosen.iter().filter(|sample| sample.link.rtt == rtt).cloned().collect();
                let of =
                    if work == "share" { "iperf3's fraction of the link" } else { "fraction of the floor" };
                goodput(&mut out, &on_rtt, &contenders, of);
            }
        }
        let _ = write!(out, "</div><pre>{}</pre>", escaped(text(&chosen).trim_end()));
    }
    failures(&mut out, samples);
    out.push_str("</html>\n");
    out
}

fn heading(work: &str, bytes: u64) -> String {
    let amount = format!("{} MB", bytes as f64 / 1e6);
    match work {
        "stream" => format!("One way, {amount} in messages of 16 MB, from a cold start"),
        "exchange" => format!("MPI_Sendrecv of 1 MB, {amount} each way"),
        "pingpong" => "8 bytes there and back".to_owned(),
        "late" => format!("{amount} to a receive that is not yet posted"),
        "share" => "What a stream of iperf3's reaches of a link that ours uses too".to_owned(),
        other => escaped(other),
    }
}

fn circumstances(out: &mut String, samples: &[Sample]) {
    let Some(first) = samples.first() else {
        out.push_str("<p>There are no samples.");
        return;
    };
    let spoiled = samples.iter().filter(|sample| sample.spoiled()).count();
    let _ = write!(
        out,
        "<p>{} runs on emulated links of {}, MTU {}, loss in both directions, isthmus {}, Linux {}. \
         Contenders took turns, each run in a lab of its own. In {spoiled} runs the emulator was late \
         itself, which says little of the contender. The floor is one round trip and what full packets \
         take at the link's rate, losses taken off. Raw samples: <code>samples.jsonl</code>.",
        samples.len(),
        first.link.rate,
        first.link.mtu,
        escaped(&first.version),
        escaped(&first.kernel)
    );
}

/// Fraction `of` the floor or the link against loss, at one round trip.
fn goodput(out: &mut String, chosen: &[Sample], contenders: &[String], of: &str) {
    let mut links = distinct(chosen, |sample| sample.link);
    links.sort_by(|a, b| a.loss.0.total_cmp(&b.loss.0));
    let Some(first) = links.first() else { return };
    let at = |i: usize| if links.len() > 1 { i as f64 / (links.len() - 1) as f64 } else { 0.5 };
    let ticks: Vec<_> = links.iter().enumerate().map(|(i, link)| (at(i), link.loss.to_string())).collect();
    frame(out, &format!("round trip {}", first.rtt), &ticks, 1.0, &format!("loss; {of}"));
    for one in contenders {
        let value = |link| cell(chosen.iter().filter(|s| s.link == link && s.contender == *one)).fraction;
        let points = links.iter().enumerate().filter_map(|(i, link)| Some((at(i), value(*link)?)));
        line(out, &points.collect::<Vec<_>>(), colour(contenders, one), true);
    }
    out.push_str("</svg></figure>");
}

/// Percentiles of round trips, at one link.
fn latency(out: &mut String, chosen: &[Sample], contenders: &[String]) {
    const SHARES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];
    let Some(link) = chosen.first().map(|sample| sample.link) else { return };
    let at = |i: usize| i as f64 / (SHARES.len() - 1) as f64;
    let name = |share: &f64| if *share < 1.0 { format!("p{}", share * 100.0) } else { "most".to_owned() };
    let ticks: Vec<_> = SHARES.iter().enumerate().map(|(i, share)| (at(i), name(share))).collect();
    let rtt_us = link.rtt_s() * 1e6;
    let trips = |one: &String| {
        let own = chosen.iter().filter(|sample| sample.contender == *one);
        let mut all: Vec<_> =
            own.flat_map(|sample| sample.round_trips_us.iter().map(|us| us / rtt_us)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let all: Vec<_> = contenders.iter().map(trips).collect();
    let most = all.iter().filter_map(|trips| trips.last()).fold(1.0_f64, |most, one| most.max(*one));
    frame(out, &link.title(), &ticks, most, "percentile; round trips of the link");
    for (one, trips) in contenders.iter().zip(&all) {
        let value = |share: &f64| Some(percentile(trips, *share)? / most);
        let points = SHARES.iter().enumerate().filter_map(|(i, share)| Some((at(i), value(share)?)));
        line(out, &points.collect::<Vec<_>>(), colour(contenders, one), true);
    }
    out.push_str("</svg></figure>");
}

fn failures(out: &mut String, samples: &[Sample]) {
    let failed: Vec<_> = samples.iter().filter(|sample| sample.seconds.is_none()).collect();
    if failed.is_empty() {
        return;
    }
    out.push_str("<h2>Runs that failed</h2><ul>");
    for sample in failed {
        let why = sample.error.as_deref().unwrap_or("?");
        let what = format!("{}, {}, {}: {why}", sample.contender, sample.work, sample.link.title());
        let _ = write!(out, "<li>{}", escaped(&what));
    }
    out.push_str("</ul>");
}

#[cfg(test)]
mod tests {
    use isthmus_units::{Percent, Rate, Span};
    use serde_json::json;

    use super::*;
    use crate::Link;
    use crate::sample::Shares;

    fn sample(contender: &str, loss: f64, seconds: Option<f64>) -> Sample {
        Sample {
            at: 0,
            version: "1 <2>".to_owned(),
            kernel: "6".to_owned(),
            run: 1,
            link: Link { rate: Rate(1_000_000_000), rtt: Span(24_000_000), loss: Percent(loss), mtu: 9_000 },
            work: "stream".into(),
            bytes: 1_000_000,
            contender: contender.to_owned(),
            congestion: None,
            command: String::new(),
            floor_s: 1.0,
            seconds,
            round_trips_us: vec![],
            shares: None,
            error: seconds.is_none().then(|| "no <way>".to_owned()),
            emulator: json!({ "spoiled": loss > 0.0 }),
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
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(page.contains("In 1 runs the emulator"));
        let table = text(&samples);
        assert!(table.contains("0.500") && table.contains("0.250*") && table.contains("0.000!"), "{table}");
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
        assert!(page.contains("fraction of the link") && !page.contains("fraction of the floor"), "{page}");
    }
}
