//! `isthmus routes` as users run it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const AS3: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../isthmus-routes/maps/as3.toml");

fn routes(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.arg("routes").args(words).env_remove("COLUMNS").output().expect("the command runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// AS3's map with a change, in a folder that goes away with the first of the two.
fn changed(from: &str, to: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("map.toml");
    let text = std::fs::read_to_string(AS3).expect("the map");
    assert!(text.contains(from), "{from}");
    std::fs::write(&path, text.replace(from, to)).expect("a writable file");
    (folder, path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_good_map_is_called_good() {
    let output = routes(&["check", AS3]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(out(&output), format!("{AS3}: good; AS 3: 5 subnets, 4 routers, 3 remote AS's\n"));
}

#[test]
fn all_faults_of_a_map_come_with_file_line_and_remedy_and_exit_status_1() {
    let (_folder, path) =
        changed("joins = [\"campus\", \"storage\"]", "joins = [\"campsu\", \"storage\"]\nspeed = 1");
    let output = routes(&["check", text(&path)]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "{0}:59: there is no subnet \"campsu\"; add it, or use one of campus, storage, compute, esnet, link-to-as4\n\
         {0}:60: [[router]] has no field \"speed\"; use one of name, joins, endpoints\n\
         {0}:61: endpoints has \"campus\", which joins does not name; add \"campus\" to joins, or remove it here\n",
        path.display()
    );
    assert_eq!(out(&output), expected);
}

#[test]
fn parts_that_do_not_reach_each_other_are_noted() {
    let (_folder, path) =
        changed("joins = [\"campus\", \"storage\", \"compute\"]", "joins = [\"storage\", \"compute\"]");
    let text_of_map = std::fs::read_to_string(&path).expect("the map");
    let cut = text_of_map
        .replace("campus = \"10.3.1.4:4100\", ", "")
        .replace("joins = [\"campus\", \"storage\"]", "joins = [\"campus\", \"esnet\"]")
        .replace(", storage = \"10.3.2.3:4100\"", "");
    std::fs::write(&path, cut).expect("a writable file");
    let output = routes(&["check", text(&path)]);
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    assert!(out(&output).contains("\n  note: no route joins campus and storage\n"), "{}", out(&output));
}

#[test]
fn a_map_that_cannot_be_used_is_bad_usage_elsewhere() {
    let (_folder, path) = changed("id = 100", "id = 104");
    let output = routes(&["show", text(&path)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("map.toml:40: subnet id 104 is taken already (line 33); give each"),
        "{}",
        err(&output)
    );
    let absent = routes(&["check", "/nowhere/map.toml"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(err(&absent).starts_with("isthmus routes: cannot read /nowhere/map.toml: "), "{}", err(&absent));
}

#[test]
fn the_table_is_shown_as_in_the_papers() {
    let shown = out(&routes(&["show", AS3]));
    for line in [
        "from  to 1        to 2          to 3          to 100        to 104",
        "1     -           1,2 =125      1,3 =115      1,100 =200    1,104 =110",
        "3     3,1 =115    3,2 =40       -             3,1,100 =215  3,1,104 =125",
        "104   104,1 =110  104,1,2 =135  104,1,3 =125  none          -",
        "AS4 (AS 4)  compute  3,1,104  125   r4",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\nin\n{shown}");
    }
}

#[test]
fn a_narrow_terminal_gets_the_table_in_blocks() {
    let shown = out(&routes(&["show", AS3, "--width", "45", "--metric", "hops"]));
    let table =
        shown.split("(subnets):").nth(1).and_then(|rest| rest.split("To remote").next()).expect("a table");
    assert!(table.lines().all(|line| line.len() <= 45), "{table}");
    assert_eq!(table.matches("from").count(), 2, "{table}");
}

#[test]
fn the_table_as_json_names_routers_and_gateways() {
    let output = routes(&["show", AS3, "--json", "--timing"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["version"], &json["as"], &json["metric"]), (&1.into(), &3.into(), &"bandwidth".into()));
    let list = json["routes"].as_array().expect("a list");
    let find = |from: u32, to_as: u32, to: u32| {
        list.iter()
            .find(|r| r["from"] == from && r["to_as"] == to_as && r["to_subnet"] == to)
            .expect("a route")
    };
    let out_of_compute = find(3, 4, 0);
    assert_eq!(out_of_compute["path"], serde_json::json!([3, 1, 104]));
    assert_eq!(out_of_compute["cost"], 125);
    let router = serde_json::json!({ "name": "r4", "subnet": 1, "endpoint": "10.3.3.4:4100" });
    assert_eq!(out_of_compute["routers"], serde_json::json!([router]));
    assert_eq!(find(104, 4, 0)["gateways"], serde_json::json!(["203.0.113.2:4100"]));
    assert!(err(&output).starts_with("read in "), "{}", err(&output));
}

#[test]
fn a_choice_is_explained_with_every_score_and_what_was_dropped() {
    let output = routes(&["explain", AS3, "compute", "AS4"]);
    assert_eq!(output.status.code(), Some(0));
    let expected = "\
From compute to AS4, least bandwidth (1000 / (Gb/s), twice that without zero-copy and OS bypass):

  chosen  3,1,104  =125  90 less than the next
          compute 15 + campus 100 + link-to-as4 10
          3,1,100  =215  90 more
          compute 15 + campus 100 + esnet 100

Dropped:

  3,2,1,104  =150
          contains the shorter route 3,1,104
  3,2,1,100  =240
          contains the shorter route 3,1,100
";
    assert_eq!(out(&output), expected);
}

#[test]
fn ends_may_be_names_ids_or_addresses() {
    let expected = out(&routes(&["explain", AS3, "compute", "storage", "--json"]));
    for [from, to] in [["3", "2"], ["3.3", "3.2"], ["isthmus://3.3/10.3.3.9:1", "isthmus://3.2/10.3.2.9:1"]] {
        assert_eq!(out(&routes(&["explain", AS3, from, to, "--json"])), expected, "{from} {to}");
    }
    let json: serde_json::Value = serde_json::from_str(&expected).expect("JSON");
    assert_eq!(json["candidates"][0]["path"], serde_json::json!([3, 2]));
    assert_eq!(json["candidates"][0]["costs"], serde_json::json!([15, 25]));
}

#[test]
fn unknown_ends_are_bad_usage_and_the_remedy_is_told() {
    for (from, to, said) in [
        ("campsu", "AS4", "there is no \"campsu\" in the map; use a subnet's name or id"),
        ("campus", "9.1", "the map tells no way to AS 9; add [[remote]] with id = 9"),
        ("campus", "9", "AS 3 has no subnet 9; `isthmus routes show` lists them"),
        ("AS4", "campus", "AS4 is not in AS 3; ask the map of its AS"),
    ] {
        let output = routes(&["explain", AS3, from, to]);
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(said), "{}", err(&output));
    }
}

#[test]
fn where_no_route_leads_the_exit_status_is_1_and_the_rule_is_named() {
    let output = routes(&["explain", AS3, "esnet", "link-to-as4"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(out(&output).contains("an AS forwards nothing between other AS's"), "{}", out(&output));
}

#[test]
fn measurements_take_routers_and_links_away() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("now.toml");
    std::fs::write(&path, "down = [\"r2\"]\n").expect("a writable file");
    let output =
        routes(&["explain", AS3, "compute", "AS4", "--measured", text(&path), "--metric", "measured"]);
    assert!(out(&output).contains("  chosen  3,1,100  "), "{}", out(&output));
    std::fs::write(&path, "down = [\"r9\"]\n").expect("a writable file");
    let output = routes(&["show", AS3, "--measured", text(&path)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("now.toml:1: the map has no router \"r9\""), "{}", err(&output));
}

#[test]
fn a_drawing_goes_to_standard_output_or_to_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("map.svg");
    let drawn = out(&routes(&["draw", AS3]));
    assert!(drawn.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && drawn.ends_with("</svg>\n"));
    assert_eq!(routes(&["draw", AS3, "--output", text(&path)]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&path).expect("the drawing"), drawn);
    let nowhere = routes(&["draw", AS3, "--output", "/nowhere/map.svg"]);
    assert_eq!(nowhere.status.code(), Some(3));
    assert!(err(&nowhere).contains("cannot write /nowhere/map.svg"), "{}", err(&nowhere));
}
