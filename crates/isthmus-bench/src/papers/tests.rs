//! Tests of every section's report, from recorded and from made-up samples.

use isthmus_units::{Percent, Span};
use serde_json::json;

use super::*;
use crate::link::EmulatedLink;
use page::Block;

/// Recorded samples of a small run of all sections but the first.
const RECORDED: &str = include_str!("recorded.jsonl");

fn recorded() -> Vec<Taken> {
    RECORDED.lines().map(|line| serde_json::from_str(line).expect("a sample")).collect()
}

/// A section's part of the report as Markdown.
fn told(taken: &[Taken], name: &str) -> String {
    let at = SECTIONS.iter().position(|section| section.name() == name).expect("a section");
    // The circumstances come first.
    page::markdown("", &parts(taken)[at + 1..at + 2]).0
}

fn movement(rate: u64, contender: &str, io: &str, seconds: f64, spoiled: bool) -> Taken {
    let rate = Rate(rate * GIGABIT);
    let link = EmulatedLink { rate, rtt: Span(24_000_000), loss: Percent(0.0), mtu: 9_000, name: None };
    let facts = [("file", "1 GB"), ("ranks", "16"), ("block", "1 MB"), ("io", io), ("order", "overlapped")];
    let result = json!({"seconds": seconds, "bytes": 1_000_000_000});
    Taken {
        section: "movement".into(),
        contender: contender.into(),
        facts: facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        link: Some(link),
        floor_s: link.floor_s(1_000_000_000),
        busy: 0.75,
        results: vec![result.as_object().expect("an object").clone()],
        emulator: json!({ "spoiled": spoiled }),
        ..Taken::default()
    }
}

#[test]
fn every_section_has_a_name_of_its_own_and_papers_that_are_known() {
    let names = Papers::names();
    for section in SECTIONS {
        assert_eq!(names.iter().filter(|name| **name == section.name()).count(), 1);
        assert!(section.papers().iter().all(|id| published::paper(id).is_some()), "{}", section.name());
    }
}

#[test]
fn the_transfer_of_files_stands_beside_the_papers_and_its_goals_are_judged() {
    let failed = Taken {
        error: Some("it broke".into()),
        results: vec![],
        ..movement(1, "stock tcp", "posix", 1.0, false)
    };
    let taken = [
        movement(1, "Isthmus", "posix", 8.4, false),
        movement(1, "Isthmus", "mpiio", 10.0, false),
        movement(10, "Isthmus", "posix", 2.0, true),
        failed,
    ];
    let text = told(&taken, "movement");
    assert!(text.contains("| 16 ranks, 1 MB, posix, overlapped | 119 (0.96) | failed |"), "{text}");
    assert!(text.contains("| 16 ranks, 1 MB, posix, overlapped | 500* (0.42) |"), "{text}");
    assert!(text.contains("reached in 1 of 2 truthful runs") && text.contains("75 % of the"), "{text}");
    assert!(text.contains("reached in 0 of 1 pairs; median ratio 0.84"), "{text}");
    assert!(text.contains("1012.42; 963.52") && text.contains("section 6.2, table 2"), "{text}");
    assert!(text.contains("stock tcp: block 1 MB") && text.contains("it broke"), "{text}");
}

#[test]
fn copies_by_storage_target_stand_beside_those_without_the_layout() {
    let run = |side: &str, contender: &str, seconds: f64, met: u32| Taken {
        section: "storage".into(),
        contender: contender.into(),
        facts: [("side", side), ("stripes", "equal shares")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        floor_s: 5.0,
        results: vec![
            json!({"seconds": seconds, "reads_met": met, "writes_met": met + 1})
                .as_object()
                .expect("an object")
                .clone(),
        ],
        ..Taken::default()
    };
    let taken = [
        run("reads", "layout unknown", 8.0, 30),
        run("reads", "layout unknown", 10.0, 40),
        run("reads", "by storage target", 6.0, 0),
        run("writes", "layout unknown", 9.0, 50),
        run("writes", "by storage target", 10.0, 3),
    ];
    let text = told(&taken, "storage");
    assert!(text.contains("| reads, equal shares | 5.00 | 9.00 | 6.00 | 35; 0 |"), "{text}");
    assert!(text.contains("| writes, equal shares | 5.00 | 9.00 | 10.00 | 51; 4 |"), "{text}");
    assert!(text.contains("| writes, shares by speed | - | - | - | -; - |"), "{text}");
    let text = text.replace('\n', " ");
    assert!(
        text.contains("0.90 to 1.50 times as fast") && text.contains("0.50 to 0.83 of the speed"),
        "{text}"
    );
}

#[test]
fn a_rate_at_which_the_emulator_was_late_is_named_and_the_next_one_stands() {
    let probe = |rate, spoiled| movement(rate, "Isthmus", "posix", 2.0, spoiled).with_probe();
    let text = told(&[probe(10, true), probe(8, false)], "movement");
    let text = text.replace('\n', " ");
    assert!(
        text.contains("in one run of this work: 8 Gb/s. The emulator was late itself at 10 Gb/s."),
        "{text}"
    );
    let text = told(&[probe(2, true)], "movement");
    assert!(text.replace('\n', " ").contains("1 Gb/s stands for it"), "{text}");
}

#[test]
fn a_measurement_that_goes_on_keeps_results_and_makes_failed_runs_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(SAMPLES);
    let run = |contender| movement(1, contender, "posix", 2.0, false);
    let failed = Taken { error: Some("it broke".into()), ..run("failed") };
    let missing = Taken { missing: Some("no netperf".into()), ..run("missing") };
    let search = Taken { error: Some("too fast".into()), ..run("search") }.with_probe();
    let mut log = Log::open(&path, false, |_| true).expect("a new log");
    for sample in [run("good"), failed, missing, search] {
        log.add(sample).expect("a line");
    }
    // As an interruption in the middle of a line leaves it.
    fs::write(&path, fs::read_to_string(&path).expect("samples") + "{\"at\":").expect("half a line");
    let others = Log::open(&path, true, |section| section != "movement").expect("the log again");
    assert_eq!(others.taken.len(), 4, "what is not measured again stays as it is");
    let mut log = Log::open(&path, true, |_| true).expect("the log again");
    log.add(run("next")).expect("a line");
    for samples in [&log.taken, &read(&path).expect("the file")] {
        let contenders: Vec<&str> = samples.iter().map(|sample| sample.contender.as_str()).collect();
        assert_eq!(contenders, ["good", "search", "next"]);
    }
}

impl Taken {
    fn with_probe(mut self) -> Self {
        self.facts.insert(PROBE.into(), "yes".into());
        self
    }
}

#[test]
fn latency_and_writes_have_a_column_for_each_and_what_is_absent_is_said() {
    let text = told(&recorded(), "cci");
    assert!(text.contains("| 8 B | 24.66 | 24.67 | 28.00 | absent | 24.00 |"), "{text}");
    assert!(text.contains("| 64 MiB | 529.6 | 496.8 | 815.5 | absent | 857.9 |"), "{text}");
    assert!(text.contains("no netperf"), "{text}");
}

#[test]
fn messages_over_parallel_connections_have_a_row_for_each() {
    let text = told(&recorded(), "parallel");
    assert!(text.contains("| Isthmus, as it is | 70 | 133 | 280 | 436 | 679 | 873 |"), "{text}");
    assert!(text.contains("| limit of the link | 74 | 138 | 285 | 442 | 701 | 881 |"), "{text}");
}

#[test]
fn a_cell_that_the_emulator_could_not_carry_has_the_nearest_one_beside_it() {
    let text = told(&recorded(), "distance");
    assert!(text.contains("| 24ms, 0% | 0.124 | 0.153*; 0.197 at 1 Gb/s | 0.406 | 0.442 |"), "{text}");
    assert!(text.contains("| over 22 | 1.712*; 2.585 at 1 Gb/s |"), "what did not end: {text}");
}

#[test]
fn protocols_are_compared_at_each_share_and_their_exchange_is_counted() {
    let text = told(&recorded(), "protocols");
    assert!(text.contains("| 0 % | 92.6 | 116.3 | 9.8 | 9.8 | 0.80 |"), "{text}");
    assert!(text.contains("| messages lost | 0 |"), "{text}");
    assert!(text.contains("papers-protocols-composition.svg"), "{text}");
}

#[test]
fn the_maps_of_the_papers_and_all_pairs_are_told() {
    let text = told(&recorded(), "routes");
    assert!(text.contains("| SN3 | 3,1 | 3,2 | - | 3,1,W* | 3,1,W4 |"), "{text}");
    assert!(text.contains("25 of 25 cells equal"), "{text}");
    assert!(text.contains("| 3,1,W* where no network has zero-copy and OS bypass | 430 | 430 |"), "{text}");
    assert!(text.contains("| AS3 | 86; 25.1 | 75; 25.1 | - | 65; 9.2 |"), "{text}");
    assert!(text.contains("| all other pairs | 0.3 | 1068.0 |"), "{text}");
}

#[test]
fn a_report_is_made_again_from_its_samples_and_says_what_was_not_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(render(folder.path()).expect_err("empty").to_string().contains("has no samples"));
    // The incomplete line is of an interrupted run.
    fs::write(folder.path().join("samples.jsonl"), RECORDED.to_owned() + "{\"at\"").expect("written");
    assert_eq!(render(folder.path()).expect("a report"), RECORDED.lines().count());
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
    let (page, text) = (read("papers.html"), read("papers.md"));
    assert!(
        text.contains("Not measured in this run: `isthmus bench papers --only movement` does."),
        "{text}"
    );
    for line in text.lines().filter_map(|line| line.split_once("](pictures/")?.1.strip_suffix(')')) {
        assert!(read(&format!("pictures/{line}")).starts_with("<svg xmlns="), "{line}");
        assert!(page.contains("<svg xmlns="), "the page has its pictures inside");
    }
    assert!(!page.contains("NaN") && !text.contains("NaN"), "no figure is made of nothing");
    assert!(
        matches!(section::absent().blocks[..], [Block::List(ref items)] if items.iter().any(|item| item.contains("bbFTP")))
    );
}

#[test]
fn plans_of_both_forms_name_each_step_once_and_have_limits() {
    let tools = Tools::nowhere();
    for form in [Form::Short, Form::Full] {
        let context = Context { tools: &tools, form };
        let mut all_s = 0.0;
        for section in SECTIONS {
            let steps = section.plan(&context, Rate(5 * GIGABIT));
            for (at, step) in steps.iter().enumerate() {
                let same = |other: &Step| {
                    (&other.contender, &other.facts, other.link) == (&step.contender, &step.facts, step.link)
                };
                assert!(!steps[..at].iter().any(same), "{}: {}", section.name(), step.title());
                assert!(step.limit_s > step.floor_s && step.limit_s < 3_600.0, "{}", step.title());
                all_s += Step { missing: None, ..step.clone() }.expected_s();
            }
        }
        let most_s = if form == Form::Short { 600.0 } else { 12.0 * 3_600.0 };
        assert!(all_s < most_s, "{form:?}: {all_s} s");
    }
}
