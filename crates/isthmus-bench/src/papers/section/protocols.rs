//! MPI/CTP: transfer protocols against the share of preposted receives, and their exchange while messages flow.

use std::fmt::Write;

use isthmus_units::Rate;
use serde_json::Value;

use super::{Section, Told, printed};
use crate::papers::GIGABIT;
use crate::papers::chart::{Chart, line};
use crate::papers::page::Block;
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Over, Program, Step, job, lab_of, link, served};
use crate::plot::escaped;

pub(crate) struct Protocols;

const RTT_US: u64 = 24_000;
/// Length of a message. Bytes.
const MESSAGE: u64 = 256 << 10;
const SHORT_SHARES: [u32; 3] = [0, 50, 100];
const FULL_SHARES: [u32; 7] = [0, 10, 25, 50, 75, 90, 100];
const SHARE: &str = "preposted";
const EXCHANGE: &str = "exchange";
const ADAPTIVE: &str = "adaptive (Isthmus)";
const OVER: [Over; 4] =
    [Over::Isthmus, Over::Transfer("eager"), Over::Transfer("mixed"), Over::Transfer("rendezvous")];
/// One of this many messages goes before time counts.
const UNCOUNTED: u32 = 6;

impl Section for Protocols {
    fn name(&self) -> &'static str {
        "protocols"
    }

    fn title(&self) -> &'static str {
        "Protocols that change at run time (MPI/CTP)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["ctp"]
    }

    fn plan(&self, context: &Context<'_>, _highest: Rate) -> Vec<Step> {
        let shares = if context.is_full() { &FULL_SHARES[..] } else { &SHORT_SHARES[..] };
        let mut out = Vec::new();
        for share in shares {
            out.extend(OVER.map(|over| preposted(context, over, *share, context.of(240, 480))));
        }
        out.push(exchange(context.of(12, 120)));
        out
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![
            Block::text(format!(
                "Messages of 256 KiB one way, over 1 Gb/s and {} ms. A share of the receives is posted ahead, each other one when the one before is \
                 done. The protocols are the setting `transfer`; adaptive is the default.",
                RTT_US / 1000
            )),
            printed(&["ctp-shares"]),
        ];
        out.extend(shares(told));
        out.extend(told.one("Isthmus RO", &[("what", EXCHANGE)]).into_iter().flat_map(exchanged));
        out
    }
}

fn name(over: Over) -> String {
    if over == Over::Isthmus { ADAPTIVE.to_owned() } else { over.name().to_owned() }
}

fn preposted(context: &Context<'_>, over: Over, share: u32, messages: u32) -> Step {
    let link = link(Rate(GIGABIT), RTT_US, 0.0);
    let uncounted = messages / UNCOUNTED;
    let floor_s = f64::from(messages - uncounted) * MESSAGE as f64 / link.goodput();
    // Each receive that is not posted ahead costs up to a round trip.
    let slowest_s = f64::from(messages) * (1.0 - f64::from(share) / 100.0) * link.floor_s(MESSAGE);
    let within_s = (20.0 + 4.0 * (floor_s + slowest_s)).ceil();
    Step {
        contender: name(over),
        link: Some(link),
        lab: lab_of(link, Some("cubic")),
        script: job(
            context.tools,
            over,
            1,
            &format!("@WORK@/program-mpich {within_s} preposted {messages} {uncounted} {MESSAGE} {share} 1"),
        ),
        floor_s,
        limit_s: within_s + 15.0,
        within_s: Some(within_s),
        programs: vec![Program::Wan],
        missing: over.missing(context.tools),
        ..Step::default()
    }
    .with("what", SHARE)
    .with("share", share)
    .with("bytes", u64::from(messages - uncounted) * MESSAGE)
}

fn exchange(times: u32) -> Step {
    let link = link(Rate(GIGABIT), RTT_US, 0.0);
    let floor_s = f64::from(times + 1) * 0.2;
    let line =
        format!("line=$($bench swap --times {times} --to \"$to\") && echo \"RESULT $line\" || exit 3\n");
    Step {
        contender: "Isthmus RO".into(),
        link: Some(link),
        lab: lab_of(link, Some("cubic")),
        script: served() + &line,
        floor_s,
        limit_s: 4.0 * floor_s + 40.0,
        ..Step::default()
    }
    .with("what", EXCHANGE)
    .with("times", times)
}

fn megabytes(sample: &Taken) -> Option<f64> {
    Some(sample.fact("bytes").parse::<f64>().ok()? / 1e6 / sample.number("seconds")?)
}

/// Throughput of a protocol at a share. MB/s.
fn reached(told: &Told<'_>, one: &str, share: &str) -> Option<f64> {
    told.one(one, &[("what", SHARE), ("share", share)]).and_then(megabytes)
}

/// Throughput of the adaptive choice divided by that of the best fixed protocol.
fn to_the_best(told: &Told<'_>, share: &str) -> Option<f64> {
    let others = OVER[1..].iter().filter_map(|over| reached(told, &name(*over), share));
    Some(reached(told, ADAPTIVE, share)? / others.reduce(f64::max)?)
}

/// Throughput against the share of preposted receives, with the slides' axes.
fn shares(told: &Told<'_>) -> Vec<Block> {
    let Some(link) = told.taken.iter().find_map(|sample| sample.link) else { return Vec::new() };
    let names = OVER.map(name);
    let places = told.values("share");
    let row = |share: &String| {
        let of =
            |one: &String| super::cell(told.one(one, &[("what", SHARE), ("share", share)]), megabytes, 1);
        let ratio = to_the_best(told, share).map_or("-".into(), |ratio| format!("{ratio:.2}"));
        [vec![format!("{share} %")], names.iter().map(of).collect(), vec![ratio]].concat()
    };
    let lines = names.iter().map(|one| {
        let points =
            places.iter().filter_map(|share| Some((share.parse().ok()?, reached(told, one, share)?)));
        line(one, points)
    });
    let ticks: Vec<(f64, String)> =
        places.iter().filter_map(|share| Some((share.parse().ok()?, share.clone()))).collect();
    let title = "Throughput against the share of preposted receives, MB/s";
    let chart = Chart {
        name: "protocols",
        title: title.into(),
        along: "receives posted ahead, %",
        up: "MB/s",
        limit: ticks.iter().map(|(x, _)| (*x, link.goodput() / 1e6)).collect(),
        ticks,
        is_logarithmic: false,
        lines: lines.collect(),
        limit_name: "limit of the link",
    };
    let mut head = vec!["posted ahead"];
    head.extend(names.iter().map(String::as_str));
    head.push("adaptive / best of the others");
    let mut out = vec![Block::table(title, &head, places.iter().map(row).collect())];
    if let Some(least) = places.iter().filter_map(|share| to_the_best(told, share)).reduce(f64::min) {
        out.push(Block::text(format!(
            "Adaptive reaches at least {least:.2} of the best fixed protocol at every share."
        )));
    }
    out.push(chart.block());
    out
}

/// The change of protocols while messages flow, and the endpoint's composition.
fn exchanged(sample: &Taken) -> Vec<Block> {
    let Some(result) = sample.results.first() else { return Vec::new() };
    let list = |name: &str| -> Vec<f64> {
        let values = result.get(name).and_then(Value::as_array);
        values.map_or(vec![], |values| values.iter().filter_map(Value::as_f64).collect())
    };
    let number = |name: &str| sample.number(name).unwrap_or(f64::NAN);
    let texts: Vec<String> = result
        .get("exchanged")
        .and_then(Value::as_array)
        .map_or(vec![], |all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let (calls, arrivals) = (list("call_us"), list("arrived_ms"));
    let of = |values: &[f64], digits: usize| {
        let most = values.iter().copied().fold(0.0, f64::max);
        let middle = crate::sample::median(values.iter().copied()).unwrap_or(f64::NAN);
        [format!("{middle:.digits$}"), format!("{most:.digits$}")]
    };
    let [call, calls_most] = of(&calls, 1);
    let [arrived, arrived_most] = of(&arrivals, 1);
    let rows = [
        ("messages sent (64 KiB, 64 under way)", format!("{:.0}", number("sent"))),
        ("messages lost", format!("{:.0}", number("lost"))),
        ("exchanges", calls.len().to_string()),
        ("the call that exchanges, median; most, µs", format!("{call}; {calls_most}")),
        (
            "until the first message of the new protocol had arrived, median; most, ms",
            format!("{arrived}; {arrived_most}"),
        ),
    ];
    let rows = rows.map(|(what, value)| vec![what.to_owned(), value]).to_vec();
    let mut out = vec![
        Block::Heading("Protocols exchanged while messages flow".into()),
        Block::text(format!(
            "In turn, on a connection in use: {}. The round trip is {} ms.",
            texts.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", "),
            RTT_US / 1000
        )),
        Block::table("", &["", "measured"], rows),
    ];
    if let Some(text) = result.get("composition").and_then(Value::as_str) {
        let title = "The composition of that endpoint, as it said itself";
        out.push(Block::Picture {
            name: "protocols-composition".into(),
            title: title.into(),
            svg: composition(title, text),
        });
    }
    out
}

/// Draws the protocols that a text such as `RO: acknowledged+ordered, udp: rate+search` names as boxes.
fn composition(title: &str, text: &str) -> String {
    const BOX: [f64; 2] = [128.0, 26.0];
    const LEFT: f64 = 96.0;
    const ROW: f64 = 36.0;
    let rows: Vec<(&str, Vec<&str>)> = text
        .split(", ")
        .filter_map(|entry| entry.split_once(": "))
        .map(|(what, names)| (what, names.split('+').collect()))
        .collect();
    let most = rows.iter().map(|(_, names)| names.len()).max().unwrap_or(1);
    let (width, height) = (LEFT + most as f64 * (BOX[0] + 10.0) + 8.0, rows.len() as f64 * ROW + 8.0);
    let mut inside = String::new();
    for (number, (what, names)) in rows.iter().enumerate() {
        let y = number as f64 * ROW + 4.0;
        let _ =
            write!(inside, "<text class=\"value\" x=\"8\" y=\"{:.1}\">{}</text>", y + 17.0, escaped(what));
        for (at, name) in names.iter().enumerate() {
            let x = LEFT + at as f64 * (BOX[0] + 10.0);
            let _ = write!(
                inside,
                "<rect class=\"run\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" rx=\"4\" />\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                BOX[0],
                BOX[1],
                x + BOX[0] / 2.0,
                y + 17.0,
                escaped(name)
            );
        }
    }
    crate::papers::chart::picture(title, width, height, &inside)
}
