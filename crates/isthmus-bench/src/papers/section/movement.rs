//! Data transfer by MPI: the first paper's figure 5 and table 2.

use isthmus_units::Rate;

use super::{Section, Told, cell, gigabits, printed};
use crate::papers::GIGABIT;
use crate::papers::chart::bars;
use crate::papers::page::Block;
use crate::papers::published::{published, value};
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Over, Program, Step, job, lab_of, link};

pub(crate) struct Movement;

/// Ranks at each site, as in table 2.
const RANKS: u32 = 16;
/// Fewer ranks, to see what 16 ranks cost on few processors.
const FEW: u32 = 4;
const RTT_US: u64 = 24_000;
const GB: u64 = 1_000_000_000;
/// Lengths of blocks, with names. Bytes.
const BLOCKS: [(&str, u64); 2] = [("1 MB", 1 << 20), ("10 MB", 10 << 20)];
const IO: [&str; 2] = ["posix", "mpiio"];
const ORDER: [&str; 2] = ["overlapped", "in turn"];
const OVER: [Over; 3] = [Over::Isthmus, Over::Stock, Over::OpenMpi];
/// Most memory for a rank's blocks, though two blocks at least. Bytes.
const MEMORY: u64 = 16 << 20;
/// Goals: fraction of the limit, and how far MPI-IO may be behind POSIX.
const GOAL: f64 = 0.95;
const BEHIND: f64 = 0.05;
/// Time limit of a run: a multiple of its floor, and seconds.
const LIMIT: (f64, f64) = (4.0, 15.0);

impl Section for Movement {
    fn name(&self) -> &'static str {
        "movement"
    }

    fn title(&self) -> &'static str {
        "Data transfer by MPI (figure 5, table 2)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["movement"]
    }

    fn probe(&self, context: &Context<'_>, rate: Rate) -> Option<Step> {
        Some(step(context, Over::Isthmus, RANKS, rate, GB, Geometry::FIRST))
    }

    fn plan(&self, context: &Context<'_>, highest: Rate) -> Vec<Step> {
        let mut out = Vec::new();
        let mut rates = vec![Rate(GIGABIT), highest];
        rates.dedup();
        for bytes in context.of(vec![GB], vec![GB, 10 * GB]) {
            for rate in &rates {
                for over in OVER {
                    for geometry in geometries() {
                        if is_wanted(context, over, *rate, geometry) {
                            out.push(step(context, over, RANKS, *rate, bytes, geometry));
                        }
                    }
                }
                let of_few = |geometry| step(context, Over::Isthmus, FEW, *rate, bytes, geometry);
                let is_few = |one: &Geometry| context.is_full() || (one.block == 0 && one.order == ORDER[0]);
                let few = geometries().into_iter().filter(is_few);
                out.extend(few.map(of_few));
            }
        }
        out
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![
            Block::text(format!(
                "Ranks of one site send a file to those of the other, rank by rank, {RANKS} at each site, over {} ms. One program does it \
                 over all transports: the mover's library, in one MPI job. It checks a digest of every block, and the benchmark compares the \
                 whole copy afterwards. Time counts as in the paper: from when all ranks at site A begin, until its rank 0 knows that the \
                 file is written. \"In turn\" reads, sends and writes each block before the next one. Files are in memory.",
                RTT_US / 1000
            )),
            printed(&[
                "figure-5-cci-posix",
                "figure-5-cci-mpiio",
                "table-2-1gb",
                "table-2-10gb",
                "table-1-rate",
            ]),
        ];
        out.extend(told.rates());
        for bytes in told.values("file") {
            for rate in rates(told) {
                out.extend(at_rate(told, &bytes, rate));
            }
        }
        out.push(goals(told));
        out
    }
}

/// How a file is cut, read and written.
#[derive(Clone, Copy, PartialEq)]
struct Geometry {
    /// Index in [`BLOCKS`].
    block: usize,
    io: &'static str,
    order: &'static str,
}

impl Geometry {
    /// Blocks of 1 MB, POSIX, overlapped.
    const FIRST: Self = Self { block: 0, io: IO[0], order: ORDER[0] };
}

fn geometries() -> Vec<Geometry> {
    let of = |block| IO.into_iter().flat_map(move |io| ORDER.map(|order| Geometry { block, io, order }));
    (0..BLOCKS.len()).flat_map(of).collect()
}

/// The short form measures what the paper's figures show: in turn as figure 5, overlapped as table 2.
fn is_wanted(context: &Context<'_>, over: Over, rate: Rate, geometry: Geometry) -> bool {
    let is_first = geometry == Geometry::FIRST;
    let is_paper = is_first || (geometry.block == 0 && geometry.order == ORDER[1]);
    context.is_full() || over == Over::Isthmus || is_first || (is_paper && rate.0 > GIGABIT)
}

fn step(
    context: &Context<'_>,
    over: Over,
    ranks: u32,
    rate: Rate,
    bytes: u64,
    Geometry { block, io, order }: Geometry,
) -> Step {
    let (block_name, block) = BLOCKS[block];
    let link = link(rate, RTT_US, 0.0);
    let floor_s = link.floor_s(bytes);
    let in_turn = u8::from(order != ORDER[0]);
    let program = format!(
        "@WORK@/transfer-{} @SOURCE@ @COPY@ {block} {io} {in_turn} {}",
        over.mpi().name(),
        MEMORY.max(2 * block)
    );
    Step {
        contender: over.name().to_owned(),
        link: Some(link),
        lab: lab_of(link, None),
        script: job(context.tools, over, ranks, &program),
        floor_s,
        limit_s: (LIMIT.0 * floor_s + LIMIT.1).ceil(),
        file: Some(bytes),
        programs: vec![Program::Transfer(over.mpi())],
        missing: over.missing(context.tools).or_else(|| over.no_mover(context.tools)),
        ..Step::default()
    }
    .with("file", format!("{} GB", bytes / GB))
    .with("ranks", ranks)
    .with("block", block_name)
    .with("io", io)
    .with("order", order)
}

fn rates(told: &Told<'_>) -> Vec<Rate> {
    crate::table::distinct(&told.taken, |sample| sample.link.map_or(Rate(0), |link| link.rate))
}

fn is_at(sample: &Taken, rate: Rate) -> bool {
    sample.link.is_some_and(|link| link.rate == rate)
}

fn fraction(sample: &Taken) -> Option<f64> {
    Some(sample.floor_s / sample.number("seconds")?)
}

fn megabytes(sample: &Taken) -> Option<f64> {
    Some(sample.number("bytes")? / 1e6 / sample.number("seconds")?)
}

/// Table and bars of one file length and rate.
fn at_rate(told: &Told<'_>, bytes: &str, rate: Rate) -> Vec<Block> {
    let of = |ranks: &str, over: &str, block: &str, io: &str, order: &str| {
        let facts = [("ranks", ranks), ("file", bytes), ("block", block), ("io", io), ("order", order)];
        told.taken.iter().copied().find(|one| one.contender == over && is_at(one, rate) && one.has(&facts))
    };
    let contenders = told.contenders();
    let mut head = vec!["".to_owned()];
    head.extend(contenders.iter().map(|name| format!("{name}, MB/s (fraction)")));
    let (mut rows, mut shown) = (Vec::new(), Vec::new());
    for ranks in [RANKS, FEW].map(|ranks| ranks.to_string()) {
        for Geometry { block, io, order } in geometries() {
            let block = BLOCKS[block].0;
            let mut row = vec![format!("{ranks} ranks, {block}, {io}, {order}")];
            for over in &contenders {
                let sample = of(&ranks, over, block, io, order);
                let share = sample.and_then(fraction).map_or(String::new(), |share| format!(" ({share:.2})"));
                row.push(cell(sample, megabytes, 0) + &share);
                if let Some(share) = sample.filter(|sample| sample.error.is_none()).and_then(fraction) {
                    let few =
                        if ranks == RANKS.to_string() { String::new() } else { format!(", {ranks} ranks") };
                    shown.push((format!("{over}, {block}, {io}, {order}{few}"), vec![share]));
                }
            }
            if row[1..].iter().any(|cell| cell != "-") {
                rows.push(row);
            }
        }
    }
    let title = format!("{bytes}, {}", gigabits(rate));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut bars_of = paper_bars(bytes);
    bars_of.extend(shown);
    let name = format!("movement-{}-{}", bytes.replace(' ', ""), gigabits(rate).replace([' ', '/'], ""));
    vec![
        Block::table(&title, &head, rows),
        bars(
            &name.to_lowercase(),
            &format!("{title}: fraction of the link's limit; the paper's at 10 Gb/s"),
            &bars_of,
        ),
    ]
}

/// The paper's figures as fractions of the limit of its own link.
fn paper_bars(bytes: &str) -> Vec<(String, Vec<f64>)> {
    let paper_link = link(Rate((value("table-1-rate", 1.0).unwrap_or(10.0) * 1e9) as u64), RTT_US, 0.0);
    let share = |mb: f64| mb * 1e6 / paper_link.goodput();
    let mut out = Vec::new();
    let table = if bytes == "1 GB" { "table-2-1gb" } else { "table-2-10gb" };
    for (block, mb) in published(table).map_or(vec![], |figure| figure.points) {
        out.push((format!("paper: CCI, {block} MB, posix, overlapped"), vec![share(mb)]));
    }
    if bytes == "1 GB" {
        for (id, io) in [("figure-5-cci-posix", "posix"), ("figure-5-cci-mpiio", "mpiio")] {
            out.extend(value(id, 1.0).map(|mb| (format!("paper: CCI, {io}, in turn"), vec![share(mb)])));
        }
    }
    out
}

/// The project's goals, and whether they were reached at each rate.
fn goals(told: &Told<'_>) -> Block {
    let mut items = Vec::new();
    for rate in rates(told) {
        let is_good = |sample: &&Taken| {
            let is_ours =
                sample.contender == Over::Isthmus.name() && sample.has(&[("ranks", &RANKS.to_string())]);
            is_ours && is_at(sample, rate) && sample.error.is_none() && !sample.spoiled()
        };
        let ours: Vec<&Taken> = told.taken.iter().copied().filter(is_good).collect();
        items.extend(share_goal(&ours, rate));
        items.extend(mpiio_goal(&ours, rate));
    }
    if items.is_empty() {
        items.push("No truthful run of ours has a result.".into());
    }
    Block::List(items)
}

fn share_goal(ours: &[&Taken], rate: Rate) -> Option<String> {
    let shares: Vec<f64> = ours.iter().filter_map(|sample| fraction(sample)).collect();
    let least = shares.iter().copied().reduce(f64::min)?;
    let middle = crate::sample::median(shares.iter().copied())?;
    let reached = shares.iter().filter(|share| **share >= GOAL).count();
    let busy = crate::sample::median(ours.iter().map(|sample| sample.busy))?;
    Some(format!(
        "Goal: at least {GOAL} of the limit at each geometry. At {}: reached in {reached} of {} truthful runs of {RANKS} and {RANKS} ranks; \
         median {middle:.2}, least {least:.2}. {:.0} % of the processors' time was used meanwhile: near 100 % the processors are the \
         limit, not the link.",
        gigabits(rate),
        shares.len(),
        busy * 100.0
    ))
}

fn mpiio_goal(ours: &[&Taken], rate: Rate) -> Option<String> {
    let mut ratios = Vec::new();
    for sample in ours.iter().filter(|sample| sample.fact("io") == "mpiio") {
        let mut facts = sample.facts.clone();
        facts.insert("io".into(), "posix".into());
        let posix = ours.iter().find(|other| other.facts == facts && other.link == sample.link);
        ratios.extend(
            megabytes(sample)
                .zip(posix.and_then(|posix| megabytes(posix)))
                .map(|(mpiio, posix)| mpiio / posix),
        );
    }
    let least = ratios.iter().copied().reduce(f64::min)?;
    let middle = crate::sample::median(ratios.iter().copied())?;
    let reached = ratios.iter().filter(|ratio| **ratio >= 1.0 - BEHIND).count();
    Some(format!(
        "Goal: MPI-IO within 5 % of POSIX. At {}: reached in {reached} of {} pairs; median ratio {middle:.2}, least {least:.2}. The paper \
         has {:.2}.",
        gigabits(rate),
        ratios.len(),
        value("figure-5-cci-mpiio", 1.0)? / value("figure-5-cci-posix", 1.0)?
    ))
}
