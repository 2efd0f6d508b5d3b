//! Tests of the plan, and of the report made from recorded samples.

use isthmus_units::{Percent, Rate, Span};
use serde_json::Value;

use super::*;

/// A small recorded run: one call of most collectives, one link.
const RECORDED: &str = include_str!("recorded.jsonl");
/// Collectives in it.
const RECORDED_CALLS: usize = 10;

fn recorded() -> Vec<Taken> {
    RECORDED.lines().map(|line| serde_json::from_str(line).expect("a sample")).collect()
}

fn link(ms: u64, loss: f64) -> EmulatedLink {
    EmulatedLink {
        rate: Rate(1_000_000_000),
        rtt: Span(ms * 1_000_000),
        loss: Percent(loss),
        mtu: 9_000,
        name: None,
    }
}

const TWO: Layout = Layout { sites: 2, each: 4 };

fn bench(form: Form) -> Collectives {
    Collectives {
        tools: Tools::nowhere(),
        library: PathBuf::from("/nonesuch"),
        links: vec![link(24, 0.0), link(100, 0.01)],
        layouts: vec![TWO],
        is_nonblocking: false,
        sizes: vec![1, 16],
        runs: 5,
        form,
        version: String::new(),
        resume: false,
    }
}

#[test]
fn each_link_has_a_job_with_the_library_and_one_over_stock_tcp() {
    let steps = bench(Form::Full).steps();
    assert_eq!(steps.len(), 4);
    let script = &steps[0].script;
    assert!(script.contains("env LD_PRELOAD='/nonesuch' ISTHMUS_COLLECTIVES_RATE=1Gbit"), "{script}");
    assert!(
        script.ends_with("collectives-mpich 5 0.098 library,stock blocks,alternating 1,16 2 blocking"),
        "{script}"
    );
    let script = &steps[1].script;
    assert!(script.ends_with("collectives-mpich 5 0.098 tcp blocks,alternating 1,16 2 blocking"), "{script}");
    assert!(!script.contains("LD_PRELOAD") && script.contains("FI_PROVIDER 'tcp;ofi_rxm'"), "{script}");
    for step in &steps {
        assert!(step.limit_s > 10.0 * step.floor_s && step.missing.is_some(), "{}", step.title());
    }
    // 6 calls (the first uncounted) in 2 orders become 2 calls in 1 order: a sixth.
    let quick = Collectives { runs: 1, ..bench(Form::Short) };
    let ratio = steps[0].floor_s / quick.steps()[0].floor_s;
    assert!((ratio - 6.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn what_the_path_allows_is_half_a_round_trip_and_the_bytes_of_a_site() {
    let allowed = |at: usize| CALLS[at].allowed_s(MIB, TWO, &link(24, 0.0)) / 0.024;
    let bytes = MIB as f64 / link(24, 0.0).goodput() / 0.024;
    let names: Vec<_> = CALLS.iter().map(|call| call.name).collect();
    for (name, vectors) in
        [("barrier", 0.0), ("bcast", 1.0), ("reduce_scatter", 0.5), ("gather", 4.0), ("alltoall", 16.0)]
    {
        let at = names.iter().position(|one| *one == name).expect(name);
        assert!((allowed(at) - 0.5 - vectors * bytes).abs() < 1e-9, "{name}: {}", allowed(at));
    }
}

#[test]
fn three_sites_reach_each_other_by_one_in_the_middle() {
    let three = Layout { sites: 3, each: 3 };
    let bench = Collectives { layouts: vec![three], is_nonblocking: true, ..bench(Form::Full) };
    let step = &bench.steps()[0];
    let (lab, script) = (step.lab.as_deref().expect("a lab"), &step.script);
    assert!(lab.contains("name = \"middle\"\nforward = true"), "{lab}");
    assert_eq!(
        lab.matches("rtt = \"12ms\"").count(),
        3,
        "half of the round trip on each of three links: {lab}"
    );
    assert!(lab.contains("between = [\"c\", \"middle\"]"), "{lab}");
    assert!(
        script.contains("$ISTHMUS_LAB_SITE_MIDDLE_ADDRESSES") && script.contains("for site in a b c; do"),
        "{script}"
    );
    assert!(script.contains("-hosts a,b,c -iface mgmt0 -ppn 3 -n 9"), "{script}");
    assert!(script.ends_with("1,16 3 nonblocking"), "{script}");
    let link = link(24, 0.0);
    // The root's link carries the vector once for each other site; of a Reduce_scatter a third of it.
    let allowed = |name: &str| {
        let call = CALLS.iter().find(|call| call.name == name && !call.is_row).expect("a call");
        (call.allowed_s(3 * MIB, three, &link) - 0.012) * link.goodput() / MIB as f64
    };
    for (name, vectors) in [("bcast", 6.0), ("reduce_scatter", 2.0), ("gatherv", 18.0)] {
        assert!((allowed(name) - vectors).abs() < 1e-3, "{name}: {}", allowed(name));
    }
}

#[test]
fn each_layout_has_jobs_and_a_table_of_its_own() {
    let bench = Collectives { layouts: vec![TWO, Layout { sites: 3, each: 8 }], ..bench(Form::Full) };
    let steps = bench.steps();
    let facts: Vec<_> =
        steps.iter().map(|step| (&step.facts["sites"][..], &step.facts["ranks"][..])).collect();
    assert_eq!(facts, [[("2", "8"); 4], [("3", "24"); 4]].concat());
    let mut taken = recorded();
    let mut more = taken.clone();
    for sample in &mut more {
        sample.facts.insert("sites".into(), "3".into());
        sample.facts.insert("ranks".into(), "24".into());
    }
    taken.extend(more);
    let text = report::text(&taken);
    for title in ["1Gbit, 24ms, 0%, 4 + 4 ranks\n", "1Gbit, 24ms, 0%, 8 + 8 + 8 ranks\n"] {
        assert_eq!(text.matches(title).count(), 1, "{text}");
    }
    // Both links of a site's vector: what is allowed differs, and so no table has the other's calls.
    let allowed: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("Bcast 1 MiB"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(allowed, ["0.85", "1.21"], "{text}");
}

#[test]
fn non_blocking_calls_have_rows_of_their_own() {
    let mut taken = recorded();
    for result in taken.iter_mut().flat_map(|sample| &mut sample.results) {
        let name = format!("i{}", result["call"].as_str().expect("a name"));
        result.insert("call".into(), Value::from(name));
    }
    let text = report::text(&taken);
    assert!(
        text.contains("\nIbcast 1 MiB") && text.contains("\nIbarrier, in a row") && !text.contains("\nBcast"),
        "{text}"
    );
}

#[test]
fn the_program_has_the_same_calls() {
    let program = include_str!("program.c");
    let names: Vec<_> = CALLS.iter().map(|call| format!("\"{}\"", call.name)).collect();
    assert!(program.contains(&format!("NAMES[KINDS] = {{{}}}", names.join(", "))));
    assert!(program.contains(&format!("ROW = {ROW},")));
}

#[test]
fn recorded_samples_make_a_table_and_a_page() {
    let taken = recorded();
    let text = report::text(&taken);
    assert!(text.contains("1Gbit, 24ms, 0%, 4 + 4 ranks\n"), "{text}");
    let head = text.lines().nth(1).expect("a head");
    assert!(
        head.starts_with("round trips") && head.ends_with("blocks: library  without  stock tcp  allowed"),
        "{text}"
    );
    assert_eq!(
        text.lines().filter(|line| line.starts_with(char::is_uppercase)).count(),
        RECORDED_CALLS + 1,
        "{text}"
    );
    let page = report::html(&taken);
    assert!(
        page.contains("Bcast 1 MiB, library") && page.contains("Alltoall 1 MiB each, stock tcp"),
        "{page}"
    );
    // One bar and one dot for each.
    assert_eq!(page.matches("<circle class=\"run\"").count(), 3 * RECORDED_CALLS);
    assert!(!page.contains("NaN") && !page.contains("Runs without a result"), "{page}");
}

#[test]
fn medians_are_of_all_calls_and_what_is_missing_or_late_is_marked() {
    let mut taken = recorded();
    let mut more = taken[0].clone();
    let own = |name: &str, value: &str| (name.to_owned(), Value::from(value));
    let times = |seconds: f64| {
        let texts = [own("order", "alternating"), own("call", "bcast"), own("who", "library")];
        let mut result: serde_json::Map<_, _> = texts.into_iter().collect();
        result.insert("bytes".into(), Value::from(MIB));
        result.insert("seconds".into(), Value::from(seconds));
        result
    };
    more.results = vec![times(0.048), times(0.072), times(24.0)];
    more.emulator = serde_json::json!({ "spoiled": true });
    more.error = Some("it <broke>".into());
    taken.push(more);
    let text = report::text(&taken);
    let line = text.lines().find(|line| line.starts_with("Bcast")).expect("a row");
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells[6..], ["3.00*", "-", "-", "0.85"], "{text}");
    let page = report::html(&taken);
    assert!(page.contains("Runs without a result") && page.contains("it &lt;broke&gt;"), "{page}");
}

#[test]
fn all_calls_become_rows_of_a_file_for_the_measured_tables() {
    let mut taken = recorded();
    let calls = taken[0].results.clone();
    taken[0].results.extend(calls);
    taken[0].emulator = serde_json::json!({ "spoiled": true });
    let text = report::csv(&taken, "isthmus bench collectives");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "# isthmus bench collectives; round trips");
    assert_eq!(lines[2], "Ranks,Path,Call,By,unit,mark,kept,runs,values");
    // The library, without, stock tcp, and what is allowed.
    assert_eq!(lines.len(), 3 + 4 * RECORDED_CALLS);
    let row = "4 + 4 ranks,\"24ms, 0%\",\"Bcast 1 MiB\",";
    let of = |by: &str| {
        let begin = format!("{row}{by},");
        lines.iter().find_map(|line| line.strip_prefix(&begin)).unwrap_or_else(|| panic!("{begin}: {text}"))
    };
    let library = of("\"blocks, library\"");
    let values = library.strip_prefix(",*,samples,2,").unwrap_or_else(|| panic!("{library}"));
    let (first, second) = values.split_once(' ').expect("two calls");
    assert!(first == second && first.parse::<f64>().is_ok(), "{values}");
    assert_eq!(of("allowed"), ",,printed,,0.85");
}

#[test]
fn a_page_is_made_again_from_its_samples() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(Collectives::render(folder.path()).expect_err("empty").to_string().contains("has no samples"));
    fs::write(folder.path().join(SAMPLES), RECORDED).expect("written");
    assert_eq!(Collectives::render(folder.path()).expect("a report").failed, 0);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect(name);
    assert_eq!(read("table.txt"), report::text(&recorded()));
    assert!(read("report.html").contains("<svg"));
}
