//! Every fault of a map is named with its file, its line and what to do, and all at once.

use isthmus_routes::{Measured, RouteMap};

/// A good map; tests spoil one line of it.
const GOOD: &str = r#"[as]
id = 3
[[subnet]]
id = 1
name = "campus"
rate = "10Gbit"
latency = "30us"
capabilities = ["rma"]
[[subnet]]
id = 2
name = "storage"
rate = "40Gbit"
latency = "5us"
transit = false
[[wan]]
id = 100
name = "esnet"
rate = "10Gbit"
latency = "12ms"
[[router]]
name = "r1"
joins = ["campus", "esnet"]
endpoints = { campus = "10.3.1.1:4100" }
[[router]]
name = "r2"
joins = ["campus", "storage"]
endpoints = { campus = "10.3.1.2:4100" }
[[remote]]
id = 4
name = "argonne"
via = ["esnet"]
gateways = { esnet = ["198.51.100.4:4100"] }
"#;

fn said(text: &str) -> String {
    RouteMap::parse(text, "map.toml").expect_err("refused").to_string()
}

/// What is said when line `number` is replaced.
fn spoiled(number: usize, line: &str) -> String {
    let lines: Vec<_> =
        GOOD.lines().enumerate().map(|(i, l)| if i + 1 == number { line } else { l }).collect();
    said(&lines.join("\n"))
}

#[test]
fn the_good_map_is_good() {
    let map = RouteMap::parse(GOOD, "map.toml").expect("a good map");
    assert_eq!((map.as_id().0, map.name()), (3, "AS3"));
    assert_eq!((map.subnets().len(), map.routers().len(), map.remotes().len()), (3, 2, 1));
}

#[test]
fn quantities_are_named_with_their_line_and_the_remedy() {
    assert_eq!(
        spoiled(6, "rate = \"64MiB\""),
        "map.toml:6: rate = \"64MiB\" is a size; expected a rate, such as \"1Gbit\"; write rate = \"10Gbit\""
    );
    assert_eq!(
        spoiled(6, "rate = \"0Gbit\""),
        "map.toml:6: rate = \"0Gbit\" would let nothing pass; expected a rate, such as \"1Gbit\"; write rate = \"10Gbit\""
    );
    assert_eq!(
        spoiled(7, "latency = 30"),
        "map.toml:7: latency = \"30\" has no unit; expected a time, such as \"24ms\"; write latency = \"20us\""
    );
    assert_eq!(
        spoiled(7, "latency = \"90min\""),
        "map.toml:7: latency = 5400s is over an hour; write it one way, as \"20us\""
    );
    assert_eq!(spoiled(6, ""), "map.toml:3: [[subnet]] has no rate; add rate = \"10Gbit\"");
    assert_eq!(spoiled(6, "rate = true"), "map.toml:6: rate is a truth value; write rate = \"10Gbit\"");
}

#[test]
fn ids_are_whole_numbers_above_0_and_there_once() {
    let range = "use a whole number, 1 to 4294967295 (0 stands for \"not configured\")";
    assert_eq!(spoiled(2, "id = 0"), format!("map.toml:2: id = 0 is no id; {range}"));
    assert_eq!(spoiled(4, "id = 4294967296"), format!("map.toml:4: id = 4294967296 is no id; {range}"));
    assert_eq!(spoiled(4, "id = \"one\""), format!("map.toml:4: id = a text is no id; {range}"));
    assert_eq!(
        spoiled(10, "id = 1"),
        "map.toml:10: subnet id 1 is taken already (line 4); give each subnet its own id"
    );
    assert_eq!(
        spoiled(16, "id = 2"),
        "map.toml:16: subnet id 2 is taken already (line 10); give each subnet its own id"
    );
    assert_eq!(spoiled(29, "id = 3"), "map.toml:29: AS 3 is this map's own; use the remote AS's id");
    assert_eq!(
        said(&format!("{GOOD}[[remote]]\nid = 4\nname = \"again\"\nvia = [\"esnet\"]\n")),
        "map.toml:34: AS 4 is taken already (line 29); keep one, with all its ways out in via"
    );
}

#[test]
fn names_are_unique_and_never_look_like_ids() {
    assert_eq!(
        spoiled(25, "name = \"r1\""),
        "map.toml:25: the name \"r1\" is taken already (line 21); rename one"
    );
    assert_eq!(
        spoiled(30, "name = \"storage\""),
        "map.toml:30: the name \"storage\" is taken already (line 11); rename one"
    );
    let rule = "start with a letter; go on with letters, digits, - and _, 64 in all";
    assert_eq!(spoiled(21, "name = \"7\""), format!("map.toml:21: \"7\" cannot be a name; {rule}"));
    assert_eq!(spoiled(30, "name = \"4.1\""), format!("map.toml:30: \"4.1\" cannot be a name; {rule}"));
}

#[test]
fn unknown_fields_and_sections_are_named_with_those_that_exist() {
    assert_eq!(
        spoiled(14, "transits = false"),
        "map.toml:14: [[subnet]] has no field \"transits\"; use one of id, name, rate, latency, capabilities, transit"
    );
    assert_eq!(
        said(&format!("{GOOD}[[links]]\n")),
        "map.toml:33: a route map has no field \"links\"; use one of as, subnet, wan, router, remote"
    );
    assert_eq!(
        spoiled(8, "capabilities = [\"rdma\"]"),
        "map.toml:8: there is no capability \"rdma\"; use zero-copy, os-bypass, rma"
    );
}

#[test]
fn routers_join_two_known_subnets_one_of_them_inside() {
    assert_eq!(
        spoiled(22, "joins = [\"campus\", \"esnett\"]"),
        "map.toml:22: there is no subnet \"esnett\"; add it, or use one of campus, storage, esnet"
    );
    let remedy = "name at least two subnets in joins, or remove the router";
    let only = |line: &str| spoiled(26, line).lines().find(|l| l.contains("r2")).map(str::to_owned);
    assert_eq!(only("joins = [\"campus\"]"), Some(format!("map.toml:24: r2 joins only campus; {remedy}")));
    assert_eq!(only("joins = []"), Some(format!("map.toml:24: r2 joins no subnet; {remedy}")));
    assert_eq!(only(""), Some(format!("map.toml:24: r2 joins no subnet; {remedy}")));
    assert_eq!(
        spoiled(26, "joins = [\"campus\", \"storage\", \"campus\"]"),
        "map.toml:26: joins names \"campus\" twice; remove one"
    );
    let other = "[[wan]]\nid = 101\nname = \"other\"\nrate = \"1Gbit\"\nlatency = \"1ms\"\n";
    assert_eq!(
        said(&format!("{GOOD}{other}[[router]]\nname = \"r3\"\njoins = [\"esnet\", \"other\"]\n")),
        "map.toml:38: r3 joins only ways out, between which nothing is forwarded; join one of the AS's own subnets as well, or remove the router"
    );
}

#[test]
fn a_subnet_without_router_is_out_of_reach() {
    assert_eq!(
        said(&format!("{GOOD}[[subnet]]\nid = 7\nname = \"island\"\nrate = \"1Gbit\"\nlatency = \"1us\"\n")),
        "map.toml:33: no router joins \"island\": nothing reaches it; name it in a router's joins, or remove it"
    );
}

#[test]
fn endpoints_are_reachable_unique_and_on_a_subnet_of_their_router() {
    let remedy = "write its IP address and port, such as \"10.1.0.1:4100\"";
    for wrong in ["10.3.1.1", "0.0.0.0:4100", "10.3.1.1:0"] {
        let expected = format!("map.toml:23: {wrong:?} is no endpoint that others can reach; {remedy}");
        assert_eq!(spoiled(23, &format!("endpoints = {{ campus = \"{wrong}\" }}")), expected);
    }
    assert_eq!(
        spoiled(23, "endpoints = { campus = \"r1.campus:4100\" }"),
        "map.toml:23: \"r1.campus:4100\" is no endpoint that others can reach; hosts may look a host name up with different answers, so write its IP address and port, such as \"10.1.0.1:4100\" (`getent ahosts r1.campus` prints the address)"
    );
    assert_eq!(
        spoiled(27, "endpoints = { campus = \"10.3.1.1:4100\" }"),
        "map.toml:27: 10.3.1.1:4100 on campus is r1's already (line 23); give each endpoint its own IP address or port"
    );
    assert_eq!(
        spoiled(27, "endpoints = { esnet = \"10.3.1.2:4100\" }"),
        "map.toml:27: endpoints has \"esnet\", which joins does not name; add \"esnet\" to joins, or remove it here"
    );
}

#[test]
fn a_remote_as_that_cannot_be_reached_is_a_fault() {
    assert_eq!(
        spoiled(31, "via = [\"campus\"]").lines().next(),
        Some(
            "map.toml:28: argonne cannot be reached by campus, a subnet of this AS; make campus a [[wan]], or use one of esnet"
        )
    );
    assert_eq!(
        spoiled(31, "").lines().next(),
        Some("map.toml:28: argonne cannot be reached: via names no way out; in via use one of esnet")
    );
    let unjoined = spoiled(22, "joins = [\"campus\", \"storage\"]");
    let expected = "map.toml:28: argonne cannot be reached: no router joins any of its ways out; name one of them in a router's joins";
    assert!(unjoined.lines().any(|line| line == expected), "{unjoined}");
}

#[test]
fn a_private_link_leads_to_one_remote_as() {
    let private = GOOD.replace("latency = \"12ms\"", "latency = \"12ms\"\nprivate = true");
    let remedy = "name it in the via of one remote AS: it serves its two ends only";
    assert!(RouteMap::parse(&private, "map.toml").is_ok());
    assert_eq!(
        said(&format!("{private}[[remote]]\nid = 5\nvia = [\"esnet\"]\n")),
        format!("map.toml:15: the private link \"esnet\" leads to argonne and AS5; {remedy}")
    );
}

#[test]
fn all_faults_are_reported_in_the_order_of_their_lines() {
    let text = GOOD
        .replace("id = 3", "id = 0")
        .replace("\"40Gbit\"", "\"40\"")
        .replace("transit = false", "transit = \"no\"")
        .replace("\"r2\"", "\"r1\"")
        .replace("id = 4", "id = 4\ncolour = 1");
    let said = said(&text);
    let lines: Vec<_> = said.lines().map(|line| line.split(": ").next().unwrap_or_default()).collect();
    assert_eq!(lines, ["map.toml:2", "map.toml:12", "map.toml:14", "map.toml:25", "map.toml:30"], "{said}");
}

#[test]
fn what_is_not_toml_is_said_with_the_line_and_what_could_be_read_is_checked() {
    let said = said(&GOOD.replace("id = 100", "id = = 100").replace("\"r2\"", "\"r1\""));
    assert!(said.lines().any(|line| line.starts_with("map.toml:16: this is not TOML: ")), "{said}");
    assert!(said.lines().any(|line| line.starts_with("map.toml:25: the name \"r1\" is taken")), "{said}");
}

#[test]
fn an_empty_map_says_what_it_needs() {
    assert_eq!(
        said(""),
        "map.toml:1: there is no [as]; add [as] with id = 1, or whichever id the AS has\n\
         map.toml:1: the AS has no subnet of its own; add [[subnet]] with id, name, rate and latency"
    );
}

#[test]
fn sections_of_the_wrong_shape_are_named() {
    assert_eq!(
        said(&GOOD.replace("[[remote]]", "[remote]")).lines().next(),
        Some("map.toml:28: remote is a table; write [[remote]] above each, with double brackets")
    );
    assert_eq!(
        said(&format!("as = 3\n{}", &GOOD["[as]\nid = 3\n".len()..])),
        "map.toml:1: [as] is a number; make it a table, [as]"
    );
}

#[test]
fn measurements_are_checked_against_the_map() {
    let map = RouteMap::parse(GOOD, "map.toml").expect("a good map");
    let text = "down = [\"r9\"]\n[[link]]\nsubnet = \"esnett\"\nloss = \"2\"\n[[link]]\nrtt = \"5ms\"\n";
    let said = Measured::parse(text, "now.toml", &map).expect_err("refused").to_string();
    let expected = "now.toml:1: the map has no router \"r9\"; use a router's name, as in the map\n\
        now.toml:3: the map has no subnet \"esnett\"; use a name as in the map\n\
        now.toml:4: loss = \"2\" has no unit; expected a percentage, such as \"0.1%\"; write loss = \"0.1%\"\n\
        now.toml:5: [[link]] has no subnet; add subnet = \"esnet\"";
    assert_eq!(said, expected);
}

#[test]
fn a_fault_is_one_line_whatever_it_quotes() {
    let named = GOOD.replace("\"storage\"\n", "\"a\\u001b[2Jb\\nc\"\n");
    let said = said(&named);
    assert_eq!(said.lines().count(), said.matches("map.toml:").count(), "{said}");
    assert!(!said.replace('\n', "").contains(char::is_control), "{said:?}");
    assert!(said.contains(r"use one of campus, a\u{1b}[2Jb\nc, esnet"), "{said}");
}
