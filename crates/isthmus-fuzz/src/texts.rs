//! Texts that administrators write: the route map, measurements, a router's configuration.
//!
//! For any text, a fault is one line with the file, the line of the text and what is wrong. It
//! has no control characters, which a terminal would obey.

use std::sync::LazyLock;

use isthmus_router::config::Config;
use isthmus_routes::{Measured, Metric, RouteMap, Table, draw};

const FILE: &str = "file.toml";
const AS3: &str = include_str!("../../isthmus-routes/maps/as3.toml");
const SMALL: &str = r#"[as]
id = 3
name = "three"

[[subnet]]
id = 1
name = "campus"
rate = "10Gbit"
latency = "20us"
capabilities = ["zero-copy", "os-bypass", "rma"]

[[subnet]]
id = 2
name = "storage"
rate = "40Gbit"
latency = "2us"
transit = false

[[wan]]
id = 100
name = "esnet"
rate = "100Gbit"
latency = "12ms"
private = true

[[router]]
name = "r1"
joins = ["campus", "storage", "esnet"]
endpoints = { campus = "10.3.1.1:4100", esnet = "[2001:db8::1]:4100" }

[[remote]]
id = 4
name = "argonne"
via = ["esnet"]
gateways = { esnet = ["198.51.100.1:4100"] }
"#;
/// Most subnets and routers of a map whose routes are computed. Count; larger maps take too long.
const COMPUTED_MAX: usize = 24;
/// Most routes of an explanation, used and dropped ones each. Count.
const STEPS: usize = 1000;

pub(crate) fn map_seeds() -> Vec<Vec<u8>> {
    vec![SMALL.into(), AS3.into()]
}

pub(crate) fn map(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match RouteMap::parse(text, FILE) {
        Ok(map) if map.subnets().len() + map.routers().len() <= COMPUTED_MAX => compute(&map),
        Ok(_) => {}
        Err(faults) => {
            assert!(!faults.0.is_empty() && faults.0.is_sorted_by_key(|fault| fault.line));
            for fault in &faults.0 {
                check_fault(text, &fault.to_string(), Some(fault.line));
            }
        }
    }
}

/// Every pair of subnets has a route that begins and ends there, or none. The map can also be
/// drawn and its routes explained.
fn compute(map: &RouteMap) {
    assert!(draw(map).ends_with("</svg>\n"));
    for metric in [Metric::Bandwidth, Metric::Latency, Metric::Capability, Metric::Hops, Metric::Measured] {
        let table = Table::compute(map, metric, None);
        for from in map.subnets() {
            for to in map.subnets() {
                let Ok(route) = table.route(from.id, to.id) else { continue };
                let ends = (route.path.first().copied(), route.path.last().copied());
                let same = from.id == to.id;
                assert_eq!(ends, if same { (None, None) } else { (Some(from.id), Some(to.id)) });
                let explained = table.explain(from.id, (map.as_id(), to.id), STEPS);
                assert!(same || explained.is_ok_and(|why| !why.candidates.is_empty()));
            }
        }
    }
}

pub(crate) fn measured_seeds() -> Vec<Vec<u8>> {
    let whole = "down = [\"r1\"]\n[[link]]\nsubnet = \"esnet\"\nrate = \"7.5Gbit\"\nrtt = \"24ms\"\nloss = \"0.1%\"\n";
    vec![whole.into(), b"[[link]]\nsubnet = \"campus\"\n[[link]]\nsubnet = \"campus\"\nloss = 0\n".to_vec()]
}

pub(crate) fn measured(input: &[u8]) {
    static MAP: LazyLock<RouteMap> = LazyLock::new(|| RouteMap::parse(SMALL, FILE).expect("a good map"));
    let Ok(text) = str::from_utf8(input) else { return };
    match Measured::parse(text, FILE, &MAP) {
        Ok(measured) => {
            let table = Table::compute(&MAP, Metric::Measured, Some(&measured));
            for subnet in MAP.subnets() {
                let _ = table.route(MAP.subnets()[0].id, subnet.id);
            }
        }
        Err(faults) => {
            for fault in &faults.0 {
                check_fault(text, &fault.to_string(), Some(fault.line));
            }
        }
    }
}

pub(crate) fn router_config_seeds() -> Vec<Vec<u8>> {
    let whole = r#"name = "r1"
map = "map.toml"
metric = "latency"
admits = [2, 3]
carries = { 2 = [5] }
status = "127.0.0.1:9410"

[subnet.campus]
plain = true
listen = "10.1.0.1:4100"
targets = ["10.1.0.0/16", "2001:db8::/32", "10.2.0.1:5000-5100", "[fd00::/8]:7"]

[tls]
certificate = "keys/router.pem"
key = "keys/router.key"
authorities = ["keys/as2.pem"]

[limits]
lanes = 100
memory = "1GiB"
links = 4
"#;
    vec![whole.into()]
}

pub(crate) fn router_config(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match Config::parse(FILE, text) {
        Ok(config) => {
            assert!(config.limits.lanes > 0 && (1..=64).contains(&config.limits.links));
            assert!(config.status.is_none_or(|status| status.ip().is_loopback()));
            for prefix in config.subnets.values().flat_map(|subnet| &subnet.targets) {
                let _ = prefix.contains(([10, 1, 2, 3], 5000).into());
            }
            let _ = config.lets_speak(2, 5);
        }
        Err(error) => check_fault(text, &error.to_string(), None),
    }
}

/// A fault is one line: `file:line: what`. Without a line the whole file is meant.
fn check_fault(text: &str, said: &str, line: Option<usize>) {
    assert!(!said.contains(char::is_control), "{said:?}");
    let place = said.strip_prefix(FILE).expect("the file's name");
    let (number, what) = place.split_once(": ").expect("a place and what is wrong there");
    let named = number.strip_prefix(':').map(|number| number.parse::<usize>().expect("a line's number"));
    assert!(line.is_none() || named == line, "{said:?}");
    assert!(named.is_none_or(|line| (1..=text.split('\n').count()).contains(&line)), "{said:?}");
    assert!(!what.trim().is_empty());
}
