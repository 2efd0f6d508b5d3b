//! CCI over the WAN: the first paper's figures 2 and 3.

use isthmus_units::Rate;
use serde_json::{Map, Value};

use super::{Section, Told, printed};
use crate::files::find;
use crate::link::EmulatedLink;
use crate::papers::chart::{Chart, line};
use crate::papers::page::Block;
use crate::papers::published::published;
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Step, lab_of, link, served};

pub(crate) struct Cci;

const RTT_US: u64 = 24_000;
const LATENCY: &str = "latency";
const WRITES: &str = "writes";
/// Message sizes of the ping-pong, in bytes; then repetitions.
const SMALL: [u64; 6] = [8, 64, 1 << 10, 16 << 10, 128 << 10, 1 << 20];
const TIMES: u32 = 12;
/// Sizes of writes; the last two in the full form only. Bytes.
const LARGE: [u64; 7] = [16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20, 1 << 30];
const SHORT: usize = 5;
const PROBE_SIZE: u64 = 64 << 20;

/// The contenders.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    /// The substrate at this service level.
    Ours(&'static str),
    Tcp,
    Netperf,
}

const WHO: [Who; 4] = [Who::Ours("ro"), Who::Ours("ru"), Who::Tcp, Who::Netperf];

impl Who {
    fn name(self) -> String {
        match self {
            Self::Ours(level) => format!("Isthmus {}", level.to_uppercase()),
            Self::Tcp => "plain TCP".into(),
            Self::Netperf => "netperf".into(),
        }
    }

    fn missing(self) -> Option<String> {
        let absent = self == Self::Netperf && (find("netperf").is_none() || find("netserver").is_none());
        absent.then(|| "no netperf: it is in Debian's section non-free; add that to /etc/apt/sources.list, then apt-get install netperf".into())
    }

    /// Shell command that measures once at site a and prints an object.
    fn measure(self, what: &str, size: u64, times: u32) -> String {
        let count = format!("--size {size}B --count {times}");
        match (self, what) {
            (Self::Ours(level), LATENCY) => {
                format!("$bench pingpong --alone --level {level} {count} --json --to \"$to\"")
            }
            (Self::Ours(level), _) => {
                format!("$bench rma --alone --depth 1 --level {level} {count} --json --to \"$to\"")
            }
            (Self::Tcp, LATENCY) => format!("$bench request --answer {size}B {count} --to \"$to\""),
            (Self::Tcp, _) => format!("$bench request {count} --to \"$to\""),
            (Self::Netperf, what) => {
                let answer = if what == LATENCY { size } else { 1 };
                format!(
                    "us=$(lab-rsh a netperf -P 0 -H b -t TCP_RR -l 2 -- -r {size},{answer} -o MEAN_LATENCY) && \
                     echo \"{{\\\"size\\\": {size}, \\\"mean_us\\\": $us}}\""
                )
            }
        }
    }
}

impl Section for Cci {
    fn name(&self) -> &'static str {
        "cci"
    }

    fn title(&self) -> &'static str {
        "CCI over the WAN: latency and RMA bandwidth (figures 2, 3)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["movement", "routed"]
    }

    fn probe(&self, _context: &Context<'_>, rate: Rate) -> Option<Step> {
        Some(step(Who::Ours("ro"), WRITES, rate, &[PROBE_SIZE]))
    }

    fn plan(&self, context: &Context<'_>, highest: Rate) -> Vec<Step> {
        let sizes = &LARGE[..context.of(SHORT, LARGE.len())];
        let mut out = Vec::new();
        for what in [LATENCY, WRITES] {
            out.extend(WHO.map(|who| step(who, what, highest, if what == LATENCY { &SMALL } else { sizes })));
        }
        out
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![
            Block::text(format!(
                "Two endpoints, {} ms apart. The ping-pong sends a message of each size there and back: the median of {TIMES} is shown. A write \
                 is not a stream: each one begins when the one before is acknowledged, as in the paper. Plain TCP sends a request of the \
                 size and waits for an answer of one byte.",
                RTT_US / 1000
            )),
            printed(&["figure-2-cci", "figure-2-netperf", "figure-3"]),
        ];
        out.extend(told.rates());
        for what in [LATENCY, WRITES] {
            out.extend(tell(told, what));
        }
        out
    }
}

fn step(who: Who, what: &'static str, rate: Rate, sizes: &[u64]) -> Step {
    let link = link(rate, RTT_US, 0.0);
    let mut script = served();
    let mut floor_s = 0.0;
    if who == Who::Netperf {
        script += "lab-rsh b netserver -D > netserver.log 2>&1 &\nsleep 1\n";
    }
    for size in sizes {
        let times = match (what, size) {
            (LATENCY, _) => TIMES,
            (_, ..=1_048_576) => 8,
            (_, ..=67_108_864) => 4,
            _ => 2,
        };
        // The same number again is not counted.
        let each = if what == LATENCY {
            link.rtt_s() + 2.0 * *size as f64 / link.goodput()
        } else {
            link.floor_s(*size)
        };
        floor_s += f64::from(2 * times) * each;
        script +=
            &format!("line=$({}) && echo \"RESULT $line\" || exit 3\n", who.measure(what, *size, times));
    }
    Step {
        contender: who.name(),
        link: Some(link),
        lab: lab_of(link, None),
        script,
        floor_s,
        limit_s: (4.0 * floor_s + 40.0).ceil(),
        missing: who.missing(),
        ..Step::default()
    }
    .with("what", what)
    .with("up to", size_name(*sizes.last().unwrap_or(&0)))
}

fn size_name(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Size and value of each result of a run: round trip in milliseconds, or MB/s.
fn points(sample: &Taken, what: &str) -> Vec<(f64, f64)> {
    let of = |result: &Map<String, Value>| {
        let number = |value: &Value| value.as_f64();
        let figures = result.get("figures").and_then(Value::as_object).unwrap_or(result);
        let size = result.get("size").and_then(number)?;
        let us = figures.get("p50_us").or_else(|| figures.get("mean_us")).and_then(number);
        let value = if what == LATENCY {
            us? / 1e3
        } else {
            let seconds = figures.get("seconds").and_then(number);
            match seconds {
                Some(seconds) => size * result.get("count").and_then(number)? / seconds / 1e6,
                None => size / us?,
            }
        };
        Some((size, value))
    };
    sample.results.iter().filter_map(of).collect()
}

/// Best value on a link: round trip in milliseconds, or MB/s.
fn limit(link: &EmulatedLink, what: &str, size: f64) -> f64 {
    let way = size / link.goodput();
    if what == LATENCY { (link.rtt_s() + 2.0 * way) * 1e3 } else { size / 1e6 / (link.rtt_s() + way) }
}

fn ascending(mut sizes: Vec<f64>) -> Vec<f64> {
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

/// Table and plot of one of the two figures.
fn tell(told: &Told<'_>, what: &str) -> Vec<Block> {
    let of: Vec<&Taken> = told.taken.iter().copied().filter(|sample| sample.fact("what") == what).collect();
    let Some(link) = of.iter().find_map(|sample| sample.link) else { return Vec::new() };
    let title = if what == LATENCY {
        format!("Ping-pong latency by size, ms, {}", super::gigabits(link.rate))
    } else {
        format!("RMA write bandwidth by size, MB/s, {}", super::gigabits(link.rate))
    };
    let sizes = ascending(of.iter().flat_map(|sample| points(sample, what)).map(|(size, _)| size).collect());
    let reading = Block::text(reading(&of, &link, what));
    vec![table(&of, &link, what, &title, &sizes), reading, chart(&of, &link, what, &title, sizes)]
}

/// A sentence: what each reaches of the possible, at its largest write or smallest message.
fn reading(of: &[&Taken], link: &EmulatedLink, what: &str) -> String {
    let part = |sample: &&&Taken| {
        let points = points(sample, what);
        let (size, value) = if what == LATENCY { points.first() } else { points.last() }?;
        Some(format!(
            "{} {:.2} at {}",
            sample.contender,
            value / limit(link, what, *size),
            size_name(*size as u64)
        ))
    };
    let all = of.iter().filter_map(|sample| part(&sample)).collect::<Vec<_>>().join("; ");
    let best = if what == LATENCY { "1 is the least possible" } else { "1 is the best possible" };
    format!("Divided by the limit ({best}): {all}.")
}

fn table(of: &[&Taken], link: &EmulatedLink, what: &str, title: &str, sizes: &[f64]) -> Block {
    let digits = if what == LATENCY { 2 } else { 1 };
    let value = |sample: &Taken, size: f64| {
        let found = points(sample, what).into_iter().find(|(own, _)| *own == size);
        let none = || if sample.results.is_empty() { sample.instead() } else { "-".into() };
        found.map_or_else(none, |(_, value)| format!("{value:.digits$}"))
    };
    let row = |size: &f64| {
        let name = vec![size_name(*size as u64)];
        let values = of.iter().map(|sample| value(sample, *size)).collect();
        [name, values, vec![format!("{:.digits$}", limit(link, what, *size))]].concat()
    };
    let names: Vec<String> = of.iter().map(|sample| sample.contender.clone() + sample.mark()).collect();
    let head: Vec<&str> =
        ["size"].into_iter().chain(names.iter().map(String::as_str)).chain(["limit of the link"]).collect();
    Block::table(title, &head, sizes.iter().map(row).collect())
}

fn chart(of: &[&Taken], link: &EmulatedLink, what: &str, title: &str, mut sizes: Vec<f64>) -> Block {
    let (id, name) = if what == LATENCY {
        ("figure-2-cci", "paper: CCI TCP transport")
    } else {
        ("figure-3", "paper: CCI RO and RU, 10 Gb/s")
    };
    let figure = published(id).map_or(vec![], |figure| figure.points);
    sizes.extend(figure.iter().map(|(size, _)| *size));
    let sizes = ascending(sizes);
    let measured = of.iter().filter(|sample| !sample.results.is_empty());
    let ours = measured.map(|sample| line(&sample.contender, points(sample, what)));
    Chart {
        name: if what == LATENCY { "cci-latency" } else { "cci-writes" },
        title: title.to_owned(),
        along: "message size",
        up: if what == LATENCY { "there and back, ms" } else { "MB/s" },
        ticks: sizes.iter().map(|size| (*size, size_name(*size as u64).replace(' ', ""))).collect(),
        is_logarithmic: true,
        limit: sizes.iter().map(|size| (*size, limit(link, what, *size))).collect(),
        limit_name: "limit of the link",
        lines: std::iter::once(line(name, figure)).chain(ours).collect(),
    }
    .block()
}
