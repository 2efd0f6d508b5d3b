//! MPI over long distances: Rao, Imam and Boehm.

use isthmus_units::{Percent, Rate};

use super::{Section, Told, cell, gigabits, printed};
use crate::papers::GIGABIT;
use crate::papers::chart::Chart;
use crate::papers::page::Block;
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Over, Program, Step, job, lab_of, link};

pub(crate) struct Distance;

/// Length of a message, fixed by the program. Bytes.
const MESSAGE: u64 = 1_000_000;
/// Round trips: almost none, across a continent, around the globe; then more between them. Microseconds.
const SHORT_RTTS: [u64; 3] = [100, 24_000, 366_000];
const FULL_RTTS: [u64; 7] = [100, 11_800, 24_000, 45_600, 91_600, 183_000, 366_000];
const SHORT_LOSSES: [f64; 3] = [0.0, 0.01, 0.1];
const FULL_LOSSES: [f64; 6] = [0.0, 0.0001, 0.001, 0.01, 0.05, 0.1];
/// Congestion controls of the sites' TCP, for MPIs that use the system's.
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
const RATE: Rate = Rate(10 * GIGABIT);
/// Rate for cells at which the emulator was late at 10 Gb/s.
const NEAREST: Rate = Rate(GIGABIT);

impl Section for Distance {
    fn name(&self) -> &'static str {
        "distance"
    }

    fn title(&self) -> &'static str {
        "MPI over long distances (Rao)"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["distance"]
    }

    fn plan(&self, context: &Context<'_>, _highest: Rate) -> Vec<Step> {
        let (rtts, losses) = if context.is_full() {
            (&FULL_RTTS[..], &FULL_LOSSES[..])
        } else {
            (&SHORT_RTTS[..], &SHORT_LOSSES[..])
        };
        let mut out = Vec::new();
        for rtt in rtts {
            for loss in losses {
                let times = context.of(5, 20);
                out.push(step(context, Over::Isthmus, "cubic", times, RATE, *rtt, *loss));
                out.extend(
                    CONTROLS.map(|control| step(context, Over::Stock, control, times, RATE, *rtt, *loss)),
                );
            }
        }
        out
    }

    /// Repeats cells that were late at 10 Gb/s, at the nearest rate.
    fn again(&self, context: &Context<'_>, taken: &[&Taken]) -> Vec<Step> {
        let of = |sample: &&&Taken| sample.spoiled() && sample.link.is_some_and(|link| link.rate == RATE);
        taken.iter().filter(of).filter_map(|sample| again(context, sample)).collect()
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![
            Block::text(
                "Two ranks exchange messages of 1 MB by `MPI_Sendrecv`, each time when the one before has ended, over emulated links of 10 Gb/s \
                 with loss in both directions. The time is that of all exchanges, from a cold start. The paper's connections of 0 ms are of 0.1 ms here.",
            ),
            printed(&["rao-rate", "rao-rtt", "rao-loss"]),
        ];
        out.extend(tell(told));
        out
    }
}

fn name(over: Over, control: &str) -> String {
    if over == Over::Isthmus { over.name().to_owned() } else { format!("{}, {control}", over.name()) }
}

fn step(
    context: &Context<'_>,
    over: Over,
    control: &str,
    times: u32,
    rate: Rate,
    rtt_us: u64,
    loss: f64,
) -> Step {
    let link = link(rate, rtt_us, loss);
    // As in `bench wan`: both send at once, and wait for half a round trip.
    let floor_s = f64::from(times) * link.arrival_floor_s(MESSAGE);
    let slowest_s = f64::from(times) * link.floor_s(MESSAGE);
    let within_s = (context.of(6.0, 20.0) + 8.0 * slowest_s).ceil().min(context.of(12.0, 300.0));
    // Extra time for the program until its time begins to count.
    let limit_s = within_s + 15.0;
    Step {
        contender: name(over, control),
        link: Some(link),
        lab: lab_of(link, Some(control)),
        script: job(context.tools, over, 1, &format!("@WORK@/program-mpich {within_s} exchange {times}")),
        floor_s,
        limit_s,
        within_s: Some(within_s),
        programs: vec![Program::Wan],
        missing: over.missing(context.tools),
        ..Step::default()
    }
    .with("exchanges", times)
}

fn again(context: &Context<'_>, sample: &Taken) -> Option<Step> {
    let link = sample.link?;
    let (rtt_us, Percent(loss)) = (link.rtt.0 / 1000, link.loss);
    let times = sample.fact("exchanges").parse().ok()?;
    let over = if sample.contender == Over::Isthmus.name() { Over::Isthmus } else { Over::Stock };
    let control = CONTROLS.into_iter().find(|control| sample.contender.ends_with(control)).unwrap_or("cubic");
    Some(step(context, over, control, times, NEAREST, rtt_us, loss))
}

/// A table's entry: seconds, or the time limit; beside a late run the result at the nearest rate.
fn text(told: &Told<'_>, contender: &str, rtt: u64, loss: f64) -> String {
    let find = |rate: Rate| {
        told.taken.iter().copied().find(|sample| {
            sample.contender == contender
                && sample.link.is_some_and(|link| (link.rate, link.rtt.0, link.loss.0) == (rate, rtt, loss))
        })
    };
    let of = |sample: Option<&Taken>| match sample {
        Some(sample) if sample.not_ended_s.is_some() => {
            format!("over {:.0}{}", sample.not_ended_s.unwrap_or(0.0), sample.mark())
        }

        sample => cell(sample, |one| one.number("seconds"), 3),
    };
    match find(NEAREST) {
        Some(near) => format!("{}; {} at {}", of(find(RATE)), of(Some(near)), gigabits(NEAREST)),
        None => of(find(RATE)),
    }
}

fn tell(told: &Told<'_>) -> Vec<Block> {
    let key = |sample: &Taken| {
        sample.link.map(|link| (link.rtt.0, link.loss.0, link.rtt.to_string(), link.loss.to_string()))
    };
    let mut cells = crate::table::distinct(&told.taken, |sample| key(sample));
    cells.retain(Option::is_some);
    let contenders = told.contenders();
    let mut head = vec!["round trip, loss", "least possible"];
    head.extend(contenders.iter().map(String::as_str));
    let mut rows = Vec::new();
    for (rtt, loss, rtt_name, loss_name) in cells.iter().flatten() {
        let floor = told
            .taken
            .iter()
            .find(|one| key(one).is_some_and(|(a, b, ..)| (a, b) == (*rtt, *loss)))
            .map_or(0.0, |one| one.floor_s);
        let mut row = vec![format!("{rtt_name}, {loss_name}"), format!("{floor:.3}")];
        row.extend(contenders.iter().map(|one| text(told, one, *rtt, *loss)));
        rows.push(row);
    }
    let times = told.values("exchanges").join(", ");
    let title = format!("Execution time of {times} exchanges, s");
    let mut out = vec![Block::table(&title, &head, rows), Block::text(reading(told, &contenders))];
    for (at, loss) in [0.0, 0.01, 0.1].into_iter().enumerate() {
        out.extend(chart(told, &contenders, ["distance-0", "distance-1", "distance-10"][at], loss, &times));
    }
    out
}

/// A sentence: how many runs of each contender ended.
fn reading(told: &Told<'_>, contenders: &[String]) -> String {
    let ended = |one: &str| {
        let own = told.taken.iter().filter(|sample| sample.contender == one);
        own.filter(|sample| sample.error.is_none() && sample.not_ended_s.is_none()).count()
    };
    let all = |one: &str| told.taken.iter().filter(|sample| sample.contender == one).count();
    let text = |one: &String| format!("{one}: {} of {}", ended(one), all(one));
    format!("Runs that ended in their time: {}.", contenders.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Plot of execution time against the round trip, at one loss.
fn chart(
    told: &Told<'_>,
    contenders: &[String],
    name: &'static str,
    loss: f64,
    times: &str,
) -> Option<Block> {
    let at = |sample: &&&Taken| sample.link.is_some_and(|link| link.loss.0 == loss && link.rate == RATE);
    let ms = |sample: &Taken| sample.link.map_or(0.0, |link| link.rtt.0 as f64 / 1e6);
    let mut limit: Vec<(f64, f64)> =
        told.taken.iter().filter(at).map(|sample| (ms(sample), sample.floor_s)).collect();
    limit.sort_by(|a, b| a.0.total_cmp(&b.0));
    limit.dedup_by(|a, b| a.0 == b.0);
    let lines = contenders.iter().map(|one| {
        let of = told.taken.iter().filter(at).filter(|sample| sample.contender == *one);
        let point = |sample: &&Taken| {
            Some((ms(sample), sample.number("seconds").or(sample.not_ended_s)?, sample.not_ended_s.is_some()))
        };
        (one.clone(), of.filter(|sample| sample.error.is_none()).filter_map(point).collect::<Vec<_>>())
    });
    let chart = Chart {
        name,
        title: format!("{times} exchanges at {} loss (hollow: had not ended)", Percent(loss)),
        along: "round trip, ms",
        up: "execution time, s",
        ticks: limit.iter().map(|(x, _)| (*x, x.to_string())).collect(),
        is_logarithmic: false,
        lines: lines.filter(|(_, points)| !points.is_empty()).collect(),
        limit_name: "least possible",
        limit,
    };
    (!chart.limit.is_empty()).then(|| chart.block())
}
