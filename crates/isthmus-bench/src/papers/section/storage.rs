//! Reads and writes by storage target: what the first paper names as further work, after Kim and others.

use std::fmt::Write;

use isthmus_units::Rate;

use super::{Section, Told, cell};
use crate::papers::GIGABIT;
use crate::papers::page::Block;
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Over, Program, Step, job, lab_of, link};

pub(crate) struct Storage;

const RTT_US: u64 = 24_000;
const BYTES: u64 = 100_000_000;
/// Length of a stripe, and of a block. Bytes.
const STRIPE: u64 = 1 << 20;
/// Most memory for a rank's blocks. Bytes.
const MEMORY: u64 = 16 << 20;
/// The targets' speeds, and speeds that do not matter. MB/s.
const UNLIKE: [u64; 4] = [5, 10, 10, 20];
const FAST: [u64; 4] = [1000; 4];
/// Ranks at each site, with one disk thread each.
const RANKS: u32 = 4;
/// Targets of the stripes in turn, with a name.
const STRIPES: [(&str, &[usize]); 2] =
    [("equal shares", &[0, 1, 2, 3]), ("shares by speed", &[3, 1, 2, 3, 0, 3, 1, 2, 3])];
/// The side whose file lies on the targets.
const SIDES: [&str; 2] = ["reads", "writes"];
const UNAWARE: &str = "layout unknown";
const AWARE: &str = "by storage target";
/// Time limit of a run: a multiple of its floor, and seconds.
const LIMIT: (f64, f64) = (6.0, 20.0);

impl Section for Storage {
    fn name(&self) -> &'static str {
        "storage"
    }

    fn title(&self) -> &'static str {
        "Storage targets of unlike speed (Kim)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["storage"]
    }

    fn plan(&self, context: &Context<'_>, _highest: Rate) -> Vec<Step> {
        let mut out = Vec::new();
        for run in 1..=context.of(1, 5) {
            for side in SIDES {
                for stripes in STRIPES {
                    let of = |order| step(context, side, stripes, order).with("run", run);
                    out.extend([UNAWARE, AWARE].map(of));
                }
            }
        }
        out
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![Block::text(format!(
            "Ranks of one site send a file of {} MB to those of the other, {RANKS} at each site with one disk thread each, over 1 Gb/s and {} ms. \
             The stripes of the source (reads) or of the copy (writes) have {} MiB, and lie on {} storage targets in turn. The benchmark's \
             program makes up the targets: each serves one request after the other, at {} MB/s. With equal shares of the \
             file the slowest target decides. With shares by speed all targets can be busy to the end. A description file tells the mover the layout, \
             or it does not know it. It is the same program otherwise.",
            BYTES / 1_000_000,
            RTT_US / 1000,
            STRIPE >> 20,
            UNLIKE.len(),
            UNLIKE.map(|speed| speed.to_string()).join(", "),
        ))];
        out.extend(tell(told));
        out
    }
}

/// Time that the busiest target needs for its share. Seconds.
fn busiest_s(turns: &[usize]) -> f64 {
    let mut bytes = [0; UNLIKE.len()];
    for (at, turn) in (0..BYTES).step_by(STRIPE as usize).zip(turns.iter().cycle()) {
        bytes[*turn] += STRIPE.min(BYTES - at);
    }
    bytes.iter().zip(UNLIKE).map(|(bytes, speed)| *bytes as f64 / (speed as f64 * 1e6)).fold(0.0, f64::max)
}

fn step(context: &Context<'_>, side: &str, (stripes, turns): (&str, &[usize]), order: &str) -> Step {
    let link = link(Rate(GIGABIT), RTT_US, 0.0);
    let floor_s = link.floor_s(BYTES).max(busiest_s(turns));
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let turns = list(&turns.iter().map(|turn| *turn as u64).collect::<Vec<_>>());
    let (file, reads, writes) =
        if side == SIDES[0] { ("@SOURCE@", UNLIKE, FAST) } else { ("@COPY@", FAST, UNLIKE) };
    let mut program = String::new();
    if order == AWARE {
        program.push_str("env ISTHMUS_LAYOUT=@WORK@/layouts.toml ");
    }
    let _ = write!(
        program,
        "@WORK@/transfer-mpich @SOURCE@ @COPY@ {STRIPE} posix 0 {MEMORY} 1 {STRIPE} {turns} {} {}",
        list(&reads),
        list(&writes)
    );
    let described = format!("[[file]]\npath = \"{file}\"\nstripe = \"{STRIPE}B\"\ntargets = [{turns}]\n");
    let over = Over::Isthmus;
    Step {
        contender: order.to_owned(),
        link: Some(link),
        lab: lab_of(link, None),
        script: job(context.tools, over, RANKS, &program),
        floor_s,
        limit_s: (LIMIT.0 * floor_s + LIMIT.1).ceil(),
        file: Some(BYTES),
        programs: vec![Program::Transfer(over.mpi())],
        missing: over.missing(context.tools).or_else(|| over.no_mover(context.tools)),
        files: vec![("layouts.toml".to_owned(), described)],
        ..Step::default()
    }
    .with("side", side)
    .with("stripes", stripes)
}

/// Medians over the runs of a row, for one order.
struct Row<'a> {
    seconds: Option<f64>,
    /// Requests that met another at their target while all targets had work.
    met: Option<f64>,
    first: Option<&'a Taken>,
}

fn row<'a>(told: &Told<'a>, order: &str, side: &str, stripes: &str) -> Row<'a> {
    let is_of = |one: &&Taken| one.contender == order && one.has(&[("side", side), ("stripes", stripes)]);
    let own: Vec<&Taken> = told.taken.iter().copied().filter(is_of).collect();
    let of = |name: &str| {
        let good = own.iter().filter(|one| one.error.is_none());
        crate::sample::median(good.filter_map(|one| one.number(name)))
    };
    Row { seconds: of("seconds"), met: of(&format!("{side}_met")), first: own.first().copied() }
}

fn tell(told: &Told<'_>) -> Vec<Block> {
    let (mut rows, mut gains, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for side in SIDES {
        for (stripes, _) in STRIPES {
            let [unaware, aware] = [UNAWARE, AWARE].map(|order| row(told, order, side, stripes));
            let floor_s = aware.first.or(unaware.first).map(|one| one.floor_s);
            let shown = |row: &Row<'_>| cell(row.first, |_| row.seconds, 2);
            let met = |row: &Row<'_>| row.met.map_or_else(|| "-".to_owned(), |met| format!("{met:.0}"));
            gains.extend(unaware.seconds.zip(aware.seconds).map(|(unaware, aware)| unaware / aware));
            shares.extend(floor_s.zip(aware.seconds).map(|(floor, aware)| floor / aware));
            rows.push(vec![
                format!("{side}, {stripes}"),
                floor_s.map_or_else(|| "-".to_owned(), |floor| format!("{floor:.2}")),
                shown(&unaware),
                shown(&aware),
                format!("{}; {}", met(&unaware), met(&aware)),
            ]);
        }
    }
    let met = format!("requests that met another: {UNAWARE}; {AWARE}");
    let head = ["seconds", "shortest possible", UNAWARE, AWARE, &met];
    let mut out = vec![Block::table("Time of a copy", &head, rows)];
    let ends = |values: &[f64]| {
        let least = values.iter().copied().reduce(f64::min)?;
        Some((least, values.iter().copied().fold(least, f64::max)))
    };
    if let Some(((least, most), (low, high))) = ends(&gains).zip(ends(&shares)) {
        out.push(Block::text(format!(
            "By storage target the copy is {least:.2} to {most:.2} times as fast as without the layout, and has {low:.2} to {high:.2} of the speed that \
             the targets allow. A request meets another if it comes to a target that serves one while each target has work: then another target \
             idles, because there are as many disk threads as targets. Rank 0 of the sender gives out the whole file, so no read has to. \
             A receiver's rank can write only what it has received."
        )));
    }
    out
}
