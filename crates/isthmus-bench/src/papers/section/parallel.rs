//! Messages between sites over several TCP connections: Dichev, Lastovetsky and Rychkov.

use isthmus_units::Rate;
use serde_json::Value;

use super::{Section, Told, printed};
use crate::link::EmulatedLink;
use crate::papers::GIGABIT;
use crate::papers::chart::{Chart, Line, line};
use crate::papers::page::Block;
use crate::papers::published::published;
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Over, Program, Step, job, lab_of, link, served};

pub(crate) struct Parallel;

/// Not given in the paper: about the round trip between Grid'5000's sites at the two ends of France.
const RTT_US: u64 = 20_000;
/// Lengths of messages, as in figure 2. Bytes.
const SIZES: [u64; 6] = [100_000, 200_000, 500_000, 1_000_000, 3_000_000, 10_000_000];

const LONGEST: f64 = 10_000_000.0;

/// Software that carries a message.
#[derive(Clone, Copy)]
enum How {
    /// This number of TCP connections, without MPI.
    Tcp(u32),
    Mpi(Over, Parts),
}

/// How a message is split.
#[derive(Clone, Copy)]
enum Parts {
    Whole,
    Threads(u32),
    /// Among this number of helper processes at each site.
    Helpers(u32),
}

const HOW: [How; 11] = [
    How::Tcp(1),
    How::Tcp(4),
    How::Tcp(8),
    How::Mpi(Over::Stock, Parts::Whole),
    How::Mpi(Over::Stock, Parts::Threads(4)),
    How::Mpi(Over::Stock, Parts::Helpers(4)),
    How::Mpi(Over::Stock, Parts::Helpers(8)),
    How::Mpi(Over::OpenMpi, Parts::Whole),
    How::Mpi(Over::OpenMpi, Parts::Helpers(4)),
    How::Mpi(Over::OpenMpi, Parts::Helpers(8)),
    How::Mpi(Over::Isthmus, Parts::Whole),
];

impl How {
    fn name(self) -> String {
        match self {
            Self::Tcp(1) => "plain TCP, 1 connection".into(),
            Self::Tcp(count) => format!("plain TCP, {count} connections"),
            Self::Mpi(over, Parts::Whole) => format!("{}, as it is", over.name()),
            Self::Mpi(over, Parts::Threads(count)) => format!("{}, {count} threads", over.name()),
            Self::Mpi(over, Parts::Helpers(count)) => format!("{}, {count} helpers", over.name()),
        }
    }
}

impl Section for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn title(&self) -> &'static str {
        "Messages between sites over parallel TCP (Dichev, figure 2)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["parallel"]
    }

    fn plan(&self, context: &Context<'_>, _highest: Rate) -> Vec<Step> {
        let mut out = Vec::new();
        for run in 1..=context.of(1, 5) {
            out.extend(HOW.map(|how| step(context, how, context.of(3, 20)).with("run", run)));
        }
        out
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![
            Block::text(format!(
                "One message there and one of the same size back, over 1 Gb/s and {} ms (the paper does not give its round trip), under `cubic`. \
                 Helpers: the message is scattered to further processes of both sites, and gathered from them, by linear non-blocking \
                 calls, as in the paper. Isthmus needs neither threads nor helpers.",
                RTT_US / 1000
            )),
            printed(&["dichev-mpi", "dichev-netpipe", "dichev-helpers-8", "dichev-tcp"]),
        ];
        out.extend(tell(told));
        out
    }
}

fn step(context: &Context<'_>, how: How, count: u32) -> Step {
    let link = link(Rate(GIGABIT), RTT_US, 0.0);
    let sizes = SIZES.map(|size| size.to_string()).join(" ");
    // The first message of each size is not counted. Plain TCP's answer has the same length.
    let each: f64 = SIZES.iter().map(|size| link.rtt_s() + 2.0 * *size as f64 / link.goodput()).sum();
    let floor_s = f64::from(count + 1) * each;
    let (script, programs, missing) = match how {
        How::Tcp(streams) => {
            let measure = format!(
                "$bench request --size ${{size}}B --answer ${{size}}B --count {count} --streams {streams} --to \"$to\""
            );
            let script = served()
                + &format!(
                    "for size in {sizes}; do line=$({measure}) && echo \"RESULT $line\" || exit 3; done\n"
                );
            (script, vec![], None)
        }
        How::Mpi(over, parts) => {
            let (mode, ranks) = match parts {
                Parts::Whole => ("plain".to_owned(), 1),
                Parts::Threads(count) => (format!("threads:{count}"), 1),
                Parts::Helpers(count) => ("helpers".to_owned(), 1 + count),
            };
            let program = format!("@WORK@/messages-{} {mode} {count} {sizes}", over.mpi().name());
            (
                job(context.tools, over, ranks, &program),
                vec![Program::Messages(over.mpi())],
                over.missing(context.tools),
            )
        }
    };
    Step {
        contender: how.name(),
        link: Some(link),
        lab: lab_of(link, Some("cubic")),
        script,
        floor_s,
        limit_s: (8.0 * floor_s + 25.0).ceil(),
        programs,
        missing,
        ..Step::default()
    }
}

/// Size and rate one way in Mb/s, from each of a run's results.
fn points(sample: &Taken) -> Vec<(f64, f64)> {
    let of = |result: &serde_json::Map<String, Value>| {
        let number = |name: &str| result.get(name).and_then(Value::as_f64);
        let (size, count, seconds) = (number("size")?, number("count")?, number("seconds")?);
        Some((size, 2.0 * size * 8.0 * count / seconds / 1e6))
    };
    sample.results.iter().filter_map(of).collect()
}

/// A sentence: the rates of the longest messages.
fn reading(told: &Told<'_>, limit: f64) -> String {
    let of = |contender: &str| {
        let own = told
            .taken
            .iter()
            .filter(|sample| sample.contender == contender)
            .flat_map(|sample| points(sample));
        crate::sample::median(own.filter(|(size, _)| *size == LONGEST).map(|(_, value)| value))
    };
    let part = |contender: String| Some(format!("{contender} {:.2}", of(&contender)? / limit));
    let all = HOW.map(How::name).into_iter().filter_map(part).collect::<Vec<_>>().join("; ");
    format!("Fractions of the limit at 10 MB: {all}.")
}

/// Highest rate one way on a link. Mb/s.
fn limit(link: &EmulatedLink, size: f64) -> f64 {
    2.0 * size * 8.0 / 1e6 / (link.rtt_s() + 2.0 * size / link.goodput())
}

fn size_name(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{} KB", bytes / 1000) } else { format!("{} MB", bytes / 1_000_000) }
}

/// A contender's median at each size.
fn medians(own: &[&Taken]) -> Vec<Option<(f64, f64)>> {
    let of = |size: f64| {
        let values = own.iter().flat_map(|sample| points(sample)).filter(|(at, _)| *at == size);
        crate::sample::median(values.map(|(_, value)| value)).map(|value| (size, value))
    };
    SIZES.map(|size| of(size as f64)).to_vec()
}

const TITLE: &str = "Throughput of messages there and back, Mb/s, by size";

fn tell(told: &Told<'_>) -> Vec<Block> {
    let Some(link) = told.taken.iter().find_map(|sample| sample.link) else { return Vec::new() };
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for contender in told.contenders() {
        let own: Vec<&Taken> = told.taken.iter().copied().filter(|one| one.contender == contender).collect();
        let medians = medians(&own);
        let mark = if own.iter().any(|sample| sample.spoiled()) { "*" } else { "" };
        let none = || own.first().map_or("-".into(), |sample| sample.instead());
        let cells = medians.iter().map(|one| one.map_or_else(none, |(_, value)| format!("{value:.0}{mark}")));
        rows.push(std::iter::once(contender.clone()).chain(cells).collect());
        lines.push(line(&contender, medians.into_iter().flatten()));
    }
    let limits = SIZES.iter().map(|size| format!("{:.0}", limit(&link, *size as f64)));
    rows.push(std::iter::once("limit of the link".to_owned()).chain(limits).collect());
    let head: Vec<String> = std::iter::once("Mb/s".to_owned()).chain(SIZES.map(size_name)).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    vec![
        Block::table(TITLE, &head, rows),
        Block::text(reading(told, limit(&link, LONGEST))),
        chart(&link, lines).block(),
    ]
}

/// Plot of the paper's contenders and ours only: all lines could not be told apart.
fn chart(link: &EmulatedLink, measured: Vec<Line>) -> Chart {
    let is_shown = |(name, points): &Line| {
        let starts = [
            "Isthmus",
            "stock tcp, as",
            "stock tcp, 8",
            "plain TCP, 1",
            "plain TCP, 8",
            "Open MPI tcp BTL, as",
        ];
        !points.is_empty() && starts.iter().any(|start| name.starts_with(start))
    };
    let papers = [("dichev-mpi", "paper: MPI as it is"), ("dichev-helpers-8", "paper: 8 helpers")];
    let papers = papers.map(|(id, name)| line(name, published(id).map_or(vec![], |figure| figure.points)));
    Chart {
        name: "parallel",
        title: TITLE.to_owned(),
        along: "message size",
        up: "Mb/s",
        ticks: SIZES.iter().map(|size| (*size as f64, size_name(*size).replace(' ', ""))).collect(),
        is_logarithmic: true,
        lines: papers.into_iter().chain(measured.into_iter().filter(is_shown)).collect(),
        limit: SIZES.iter().map(|size| (*size as f64, limit(link, *size as f64))).collect(),
        limit_name: "limit of the link",
    }
}
