//! Routed CCI: the papers' route maps, four organisations, and five networks end to end.

use isthmus_units::Rate;
use serde_json::{Map, Value};

use super::networks::{HOPS, five, four};
use super::{Section, Told, printed};
use crate::papers::page::Block;
use crate::papers::published::{table, value};
use crate::papers::sample::Taken;
use crate::papers::step::{Context, Step};

pub(crate) struct Routes;

const AS3: &str = include_str!("../../../../isthmus-routes/maps/as3.toml");
/// Names of subnets; W* and W4 are the papers'.
const NAMES: [(u64, &str); 5] = [(1, "SN1"), (2, "SN2"), (3, "SN3"), (100, "W*"), (104, "W4")];
const WHAT: &str = "what";

impl Section for Routes {
    fn name(&self) -> &'static str {
        "routes"
    }

    fn title(&self) -> &'static str {
        "Routed CCI: route maps, four organisations, five networks"
    }

    fn papers(&self) -> &'static [&'static str] {
        &["movement", "routed"]
    }

    fn plan(&self, context: &Context<'_>, _highest: Rate) -> Vec<Step> {
        let bytes = context.of(50_000_000, 500_000_000);
        let named = |step: Step, what: &str| Step { contender: "Isthmus".into(), ..step }.with(WHAT, what);
        vec![
            named(maps(), "maps"),
            named(four(true, bytes), "the ends of the private link"),
            named(four(false, bytes), "all other pairs"),
            named(five(context.of(100_000_000, 1_000_000_000)), "five networks"),
        ]
    }

    fn tell(&self, told: &Told<'_>) -> Vec<Block> {
        let mut out = vec![printed(&[
            "route-public",
            "route-private",
            "route-1-2-8",
            "route-1-5-6-8",
            "doubling",
            "slide-metric-10g",
            "slide-metric-100g",
        ])];
        let one = |what: &str| told.taken.iter().copied().find(|sample| sample.fact(WHAT) == what);
        out.extend(one("maps").into_iter().flat_map(tell_maps));
        out.extend(tell_four(one("the ends of the private link"), one("all other pairs")));
        out.extend(one("five networks").into_iter().flat_map(tell_five));
        out
    }
}

/// A map whose subnets offer neither zero-copy nor OS bypass.
fn incapable(map: &str) -> String {
    map.lines().filter(|line| !line.starts_with("capabilities")).collect::<Vec<_>>().join("\n") + "\n"
}

/// The example's map with subnets 1, 2, 5, 6 and 8.
fn hops() -> String {
    let mut out = String::from("[as]\nid = 1\n");
    for (id, rate) in [(1, 10), (2, 10), (5, 32), (6, 32), (8, 10)] {
        out += &format!(
            "[[subnet]]\nid = {id}\nname = \"sn{id}\"\nrate = \"{rate}Gbit\"\nlatency = \"1us\"\n\
             capabilities = [\"zero-copy\", \"os-bypass\"]\n"
        );
    }
    for (name, one, other) in [("a", 1, 2), ("b", 2, 8), ("c", 1, 5), ("d", 5, 6), ("e", 6, 8)] {
        out += &format!("[[router]]\nname = \"{name}\"\njoins = [\"sn{one}\", \"sn{other}\"]\n");
    }
    out
}

/// The step that runs `isthmus routes` on the papers' maps.
fn maps() -> Step {
    let ask = |name: &str, words: &str| {
        format!("printf 'RESULT {{\"{name}\": %s}}\\n' \"$(@ISTHMUS@ routes {words})\" || exit 3\n")
    };
    Step {
        script: [
            ask("table", "show --json @WORK@/as3.toml"),
            ask("as4", "explain --json @WORK@/as3.toml compute AS4"),
            ask("incapable", "explain --json @WORK@/as3-incapable.toml compute AS4"),
            ask("hops", "explain --json @WORK@/hops.toml sn1 sn8"),
        ]
        .concat(),
        files: vec![
            ("as3.toml".into(), AS3.into()),
            ("as3-incapable.toml".into(), incapable(AS3)),
            ("hops.toml".into(), hops()),
        ],
        floor_s: 0.1,
        limit_s: 20.0,
        ..Step::default()
    }
}

/// A run's result of this name.
fn result<'a>(sample: &'a Taken, name: &str) -> Option<&'a Value> {
    sample.results.iter().find_map(|result| result.get(name))
}

fn path(value: &Value) -> Vec<u64> {
    value["path"].as_array().map_or(vec![], |path| path.iter().filter_map(Value::as_u64).collect())
}

fn spelt(path: &[u64]) -> String {
    let name = |id: &u64| {
        NAMES
            .iter()
            .find(|(known, _)| known == id)
            .map_or(id.to_string(), |(_, name)| name.trim_start_matches("SN").to_owned())
    };
    path.iter().map(name).collect::<Vec<_>>().join(",")
}

/// The score of a path among candidates.
fn score(explained: Option<&Value>, wanted: &[u64]) -> Option<u64> {
    let candidates = explained?["candidates"].as_array()?;
    candidates.iter().find(|one| path(one) == wanted)?["cost"].as_u64()
}

/// The N x N table that was derived for AS3.
fn derived(sample: &Taken) -> Vec<Vec<String>> {
    let empty = Vec::new();
    let routes = result(sample, "table").and_then(|table| table["routes"].as_array()).unwrap_or(&empty);
    let cell = |from: u64, to: u64| {
        let is = |route: &&Value| {
            let ends = (route["from"].as_u64(), path(route).last().copied(), route["to_as"].as_u64());
            ends == (Some(from), Some(to), Some(3))
        };
        routes.iter().find(is).map_or("-".to_owned(), |route| spelt(&path(route)))
    };
    NAMES.map(|(from, _)| NAMES.map(|(to, _)| cell(from, to)).to_vec()).to_vec()
}

/// Scores: name, ours, the paper's.
fn scores(sample: &Taken) -> Vec<Vec<String>> {
    let doubled =
        value("doubling", 1.0).zip(value("route-public", 1.0)).map(|(factor, score)| factor * score);
    let of = |name: &str, path: &[u64]| score(result(sample, name), path);
    let scores = [
        ("3,1,W* of AS3, to AS4", of("as4", &[3, 1, 100]), value("route-public", 1.0)),
        ("3,1,W4 of AS3, to AS4", of("as4", &[3, 1, 104]), value("route-private", 1.0)),
        ("1,2,8", of("hops", &[1, 2, 8]), value("route-1-2-8", 1.0)),
        ("1,5,6,8", of("hops", &[1, 5, 6, 8]), value("route-1-5-6-8", 1.0)),
        ("3,1,W* where no network has zero-copy and OS bypass", of("incapable", &[3, 1, 100]), doubled),
    ];
    let text = |score: Option<f64>| score.map_or("-".to_owned(), |score| score.to_string());
    scores
        .map(|(route, ours, paper)| vec![route.to_owned(), text(ours.map(|score| score as f64)), text(paper)])
        .to_vec()
}

fn tell_maps(sample: &Taken) -> Vec<Block> {
    let rows = derived(sample);
    let printed = table("slide-as3");
    let equal = printed.as_ref().map_or(0, |table| {
        let cells = rows.iter().zip(&table.rows).flat_map(|(row, own)| row.iter().zip(own));
        cells.filter(|(ours, paper)| ours == paper).count()
    });
    let place = printed.map_or(String::new(), |table| table.source);
    let named = NAMES.iter().zip(rows).map(|((_, name), row)| [vec![(*name).to_owned()], row].concat());
    let head = [&[""][..], &NAMES.map(|(_, name)| name)].concat();
    vec![
        Block::Heading("Route maps".into()),
        Block::table("The table of AS3, as `isthmus routes show` derives it", &head, named.collect()),
        Block::text(format!("{equal} of {} cells equal those of the {place}.", NAMES.len() * NAMES.len())),
        Block::table(
            "Scores, as `isthmus routes explain` tells them",
            &["route", "Isthmus", "paper"],
            scores(sample),
        ),
    ]
}

fn number(result: &Map<String, Value>, name: &str) -> Option<f64> {
    result.get(name).and_then(Value::as_f64)
}

/// A measurement's result in MB/s or milliseconds.
fn figure(result: &Map<String, Value>) -> Option<String> {
    let figures = &result.get("measured")?["figures"];
    if let Some(us) = figures["p50_us"].as_f64() {
        return Some(format!("{:.1}", us / 1e3));
    }
    Some(format!("{:.0}", figures["bytes"].as_f64()? / figures["seconds"].as_f64()? / 1e6))
}

/// Bytes that the emulated links between these ends carried, both ways.
fn carried(sample: &Taken, is_private: bool) -> f64 {
    let empty = Vec::new();
    let links = sample.emulator["links"].as_array().unwrap_or(&empty);
    let of =
        |link: &&Value| link["link"].as_str().is_some_and(|name| name.starts_with("g3 - g4") == is_private);
    let directions = links.iter().filter(of).filter_map(|link| link["directions"].as_array()).flatten();
    directions.filter_map(|direction| direction["delivered_bytes"].as_f64()).sum()
}

fn tell_four(ends: Option<&Taken>, others: Option<&Taken>) -> Vec<Block> {
    let both: Vec<&Taken> = [ends, others].into_iter().flatten().collect();
    let mut rows = Vec::new();
    for from in 1..=4 {
        let mut row = vec![format!("AS{from}")];
        for to in 1..=4 {
            let is = |result: &&Map<String, Value>| {
                (number(result, "from"), number(result, "to")) == (Some(f64::from(from)), Some(f64::from(to)))
            };
            let found: Vec<String> =
                both.iter().flat_map(|sample| &sample.results).filter(is).filter_map(figure).collect();
            row.push(if from == to { "-".into() } else { found.join("; ") });
        }
        rows.push(row);
    }
    let mut used = Vec::new();
    for sample in &both {
        used.push(vec![
            sample.fact(WHAT).to_owned(),
            format!("{:.1}", carried(sample, true) / 1e6),
            format!("{:.1}", carried(sample, false) / 1e6),
        ]);
    }
    vec![
        Block::Heading("Four organisations".into()),
        Block::text(
            "Figure 1 of the paper as a lab: four AS's, each behind its own routers, with an IP backbone (1 Gb/s, 24 ms between two gates) as the \
             WAN, and a private link between AS3 and AS4 (1 Gb/s, 8 ms). AS2 has two broadcast domains; AS3's node is in its compute system, \
             behind its campus. No node reaches another without routers. AS4's node \
             knows only the router on the private link: one on the backbone would use the backbone, which is its cheapest way on.",
        ),
        Block::table(
            "From the row's node to the column's: MB/s of a stream of 50 MB (500 MB in the full form), and the round trip of 8 bytes in ms",
            &["", "AS1", "AS2", "AS3", "AS4"],
            rows,
        ),
        Block::table(
            "What the links carried, MB",
            &["who talks", "private link", "links of the backbone, together"],
            used,
        ),
        Block::text(
            "The backbone's figure counts each byte at both gates. The private link carries what its two ends send each other, and for all \
            others only what its routers say to each other.",
        ),
    ]
}

fn tell_five(sample: &Taken) -> Vec<Block> {
    let mut rows = Vec::new();
    let names = HOPS.iter().map(|(name, ..)| *name).chain(["all five, through four routers"]);
    for (hop, name) in names.enumerate() {
        let is = |result: &&Map<String, Value>| number(result, "hop") == Some(hop as f64);
        let mut figures = sample.results.iter().filter(is).filter_map(figure);
        let rate = figures.next().map_or("-".into(), |rate| rate + sample.mark());
        rows.push(vec![name.to_owned(), rate, figures.next().unwrap_or("-".into())]);
    }
    vec![
        Block::Heading("Five networks, end to end".into()),
        Block::table(
            "A stream over each network by itself, and over all of them",
            &["network", "MB/s", "8 bytes there and back, ms"],
            rows,
        ),
    ]
}
