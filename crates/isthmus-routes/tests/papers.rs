//! The papers' own examples, and what follows from the rules they state.

use isthmus_routes::{Measured, Metric, NextRouter, NoRoute, Reason, RouteMap, Step, Table};
use isthmus_wire::{AsId, SubnetId};

const AS3: &str = include_str!("../maps/as3.toml");
const OWN: AsId = AsId(3);
const CAMPUS: SubnetId = SubnetId(1);
const STORAGE: SubnetId = SubnetId(2);
const COMPUTE: SubnetId = SubnetId(3);
const ESNET: SubnetId = SubnetId(100);
const LINK: SubnetId = SubnetId(104);

fn as3() -> RouteMap {
    RouteMap::parse(AS3, "as3.toml").expect("a good map")
}

fn table(metric: Metric) -> Table {
    Table::compute(&as3(), metric, None)
}

fn numbers(path: &[SubnetId]) -> Vec<u32> {
    path.iter().map(|subnet| subnet.0).collect()
}

/// "Routed CCI" slides: the N x N table of AS3; W* is 100 here and W4 is 104.
#[test]
fn the_table_of_as3_is_the_papers() {
    let expected: [[&[u32]; 5]; 5] = [
        [&[], &[1, 2], &[1, 3], &[1, 100], &[1, 104]],
        [&[2, 1], &[], &[2, 3], &[2, 1, 100], &[2, 1, 104]],
        [&[3, 1], &[3, 2], &[], &[3, 1, 100], &[3, 1, 104]],
        [&[100, 1], &[100, 1, 2], &[100, 1, 3], &[], &[]],
        [&[104, 1], &[104, 1, 2], &[104, 1, 3], &[], &[]],
    ];
    let ids = [CAMPUS, STORAGE, COMPUTE, ESNET, LINK];
    for metric in Metric::ALL {
        let table = table(metric);
        for (from, row) in ids.iter().zip(expected) {
            for (to, path) in ids.iter().zip(row) {
                let found = table.route(*from, *to).map(|route| numbers(&route.path)).unwrap_or_default();
                assert_eq!(found, path, "{} to {} under {metric}", from.0, to.0);
            }
        }
    }
}

#[test]
fn traffic_to_as4_scores_125_over_the_private_link_and_215_over_the_public_wan() {
    let explanation = table(Metric::Bandwidth).explain(COMPUTE, (AsId(4), SubnetId(1)), 9).expect("routes");
    let candidates = &explanation.candidates;
    assert_eq!(candidates.len(), 2);
    assert_eq!((numbers(&candidates[0].route.path), candidates[0].route.cost), (vec![3, 1, 104], 125));
    assert_eq!(candidates[0].costs, [15, 100, 10]);
    assert_eq!((numbers(&candidates[1].route.path), candidates[1].route.cost), (vec![3, 1, 100], 215));
    assert_eq!(candidates[1].costs, [15, 100, 100]);
}

#[test]
fn the_route_over_storage_is_dropped_since_it_contains_a_shorter_one() {
    let explanation = table(Metric::Bandwidth).explain(COMPUTE, (OWN, ESNET), 9).expect("routes");
    assert_eq!(explanation.candidates.len(), 1);
    assert!(explanation.complete);
    let [dropped] = &explanation.dropped[..] else { panic!("{:?}", explanation.dropped) };
    assert_eq!(numbers(&dropped.route.path), [3, 2, 1, 100]);
    assert_eq!(dropped.reason, Reason::Contains(vec![COMPUTE, CAMPUS, ESNET]));
}

/// "The route that uses subnets 1, 2, and 8 has a total cost of 300. The route that passes
/// over subnets 1, 5, 6, and 8 has a total cost of 262 making this the preferred route."
#[test]
fn more_hops_win_where_their_links_are_faster() {
    let mut text = String::from("[as]\nid = 1\n");
    for (id, rate) in [(1, 10), (2, 10), (5, 32), (6, 32), (8, 10)] {
        text +=
            &format!("[[subnet]]\nid = {id}\nname = \"sn{id}\"\nrate = \"{rate}Gbit\"\nlatency = \"1us\"\n");
        text += "capabilities = [\"zero-copy\", \"os-bypass\"]\n";
    }
    for (name, one, other) in [("a", 1, 2), ("b", 2, 8), ("c", 1, 5), ("d", 5, 6), ("e", 6, 8)] {
        text += &format!("[[router]]\nname = \"{name}\"\njoins = [\"sn{one}\", \"sn{other}\"]\n");
    }
    let map = RouteMap::parse(&text, "map.toml").expect("a good map");
    let table = Table::compute(&map, Metric::Bandwidth, None);
    let explanation = table.explain(SubnetId(1), (AsId(1), SubnetId(8)), 9).expect("routes");
    let scores: Vec<_> =
        explanation.candidates.iter().map(|c| (numbers(&c.route.path), c.route.cost)).collect();
    assert_eq!(scores, [(vec![1, 5, 6, 8], 262), (vec![1, 2, 8], 300)]);
    let by_hops = Table::compute(&map, Metric::Hops, None);
    assert_eq!(by_hops.route(SubnetId(1), SubnetId(8)).map(|route| route.cost), Ok(3));
}

#[test]
fn a_step_names_the_routers_their_endpoints_and_where_they_lead() {
    let table = table(Metric::Bandwidth);
    let next = table.next_hop(COMPUTE, (AsId(4), SubnetId(7))).expect("a route");
    let endpoint = Some("10.3.3.4:4100".parse().expect("a locator"));
    assert_eq!(next.step, Step::Routers(vec![NextRouter { name: "r4".into(), endpoint, subnet: CAMPUS }]));
    assert_eq!((numbers(&next.route.path), next.route.cost), (vec![3, 1, 104], 125));
    assert_eq!(table.next_hop(COMPUTE, (OWN, COMPUTE)).map(|next| next.step), Ok(Step::Direct));
}

#[test]
fn on_a_way_out_the_next_step_is_the_remote_as_s_gateway() {
    let next = table(Metric::Bandwidth).next_hop(LINK, (AsId(4), SubnetId(7))).expect("a route");
    assert_eq!(next.step, Step::Gateways(vec!["203.0.113.2:4100".parse().expect("a locator")]));
    assert_eq!(numbers(&next.route.path), [104]);
}

#[test]
fn routers_equally_good_are_all_named() {
    let next = table(Metric::Bandwidth).next_hop(CAMPUS, (OWN, STORAGE)).expect("a route");
    let Step::Routers(routers) = next.step else { panic!("{next:?}") };
    let names: Vec<_> = routers.iter().map(|router| router.name.as_str()).collect();
    assert_eq!(names, ["r3", "r4"]);
}

#[test]
fn a_private_link_serves_its_two_ends_only() {
    let table = table(Metric::Bandwidth);
    let to_as1 = table.next_hop(CAMPUS, (AsId(1), SubnetId(1))).expect("a route");
    assert_eq!(numbers(&to_as1.route.path), [1, 100]);
    let explanation = table.explain(CAMPUS, (AsId(1), SubnetId(1)), 9).expect("routes");
    assert!(explanation.dropped.iter().any(|d| d.reason == Reason::Private(LINK, AsId(4))));
    assert_eq!(table.next_hop(LINK, (AsId(1), SubnetId(1))), Err(NoRoute::Through(LINK, ESNET)));
}

#[test]
fn a_router_that_is_down_carries_nothing_and_the_others_take_over() {
    let map = as3();
    let down = Measured::parse("down = [\"r2\", \"r4\"]", "now.toml", &map).expect("good measurements");
    let table = Table::compute(&map, Metric::Bandwidth, Some(&down));
    let to_as4 = table.next_hop(CAMPUS, (AsId(4), SubnetId(1))).expect("a route");
    assert_eq!(numbers(&to_as4.route.path), [1, 100]);
    let unreachable = NoRoute::Unreachable { from: CAMPUS, to: "subnet 3".into() };
    assert_eq!(table.next_hop(CAMPUS, (OWN, COMPUTE)), Err(unreachable));
}

#[test]
fn what_was_measured_can_turn_the_choice() {
    let map = as3();
    let choice = |text: &str| {
        let measured = Measured::parse(text, "now.toml", &map).expect("good measurements");
        let table = Table::compute(&map, Metric::Measured, Some(&measured));
        numbers(&table.next_hop(CAMPUS, (AsId(4), SubnetId(1))).expect("a route").route.path)
    };
    assert_eq!(choice(""), [1, 104]);
    assert_eq!(choice("[[link]]\nsubnet = \"link-to-as4\"\nloss = \"40%\"\n"), [1, 100]);
    assert_eq!(choice("[[link]]\nsubnet = \"link-to-as4\"\nrate = \"1Gbit\"\n"), [1, 100]);
    assert_eq!(choice("[[link]]\nsubnet = \"link-to-as4\"\nloss = \"100%\"\n"), [1, 100]);
}

#[test]
fn unknown_ends_are_refused_with_the_remedy() {
    let table = table(Metric::Hops);
    assert_eq!(table.next_hop(CAMPUS, (AsId(9), CAMPUS)), Err(NoRoute::UnknownAs(AsId(9))));
    let unknown = NoRoute::UnknownSubnet(OWN, SubnetId(9));
    assert_eq!(table.next_hop(CAMPUS, (OWN, SubnetId(9))), Err(unknown.clone()));
    assert_eq!(table.explain(SubnetId(9), (OWN, CAMPUS), 1), Err(unknown));
}
