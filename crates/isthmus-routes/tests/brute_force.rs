//! The table against the papers' own procedure, taken literally: combine one-hop routes
//! until all loop-free ones are found, drop those that contain a shorter valid one, take
//! the least cost. It is exponential; the maps are small.

use std::collections::BTreeSet;

use isthmus_routes::{Metric, Role, RouteMap, Step, Table};
use isthmus_wire::SubnetId;
use proptest::prelude::*;

type Path = Vec<u32>;

/// Text of a map: each subnet's rate (Gb/s), capabilities and role; each router's subnets.
fn text(subnets: &[(u32, bool, u8)], routers: &[BTreeSet<usize>]) -> String {
    let mut text = String::from("[as]\nid = 1\n");
    let mut private = Vec::new();
    for (index, (rate, direct, role)) in subnets.iter().enumerate() {
        // The first is always the AS's own, as every map has one.
        let role = if index == 0 { 0 } else { *role };
        let (kind, extra) = match role {
            0..=4 => ("subnet", ""),
            5 => ("subnet", "transit = false\n"),
            6 => ("wan", ""),
            _ => ("wan", "private = true\n"),
        };
        if role > 6 {
            private.push(index);
        }
        let capabilities = if *direct { "[\"zero-copy\", \"os-bypass\"]" } else { "[]" };
        text += &format!(
            "[[{kind}]]\nid = {}\nname = \"s{index}\"\nrate = \"{rate}Gbit\"\nlatency = \"{}us\"\ncapabilities = {capabilities}\n{extra}",
            index + 1,
            1 + rate % 7,
        );
    }
    for (index, joins) in routers.iter().enumerate() {
        let joins: Vec<_> = joins.iter().map(|subnet| format!("\"s{subnet}\"")).collect();
        text += &format!("[[router]]\nname = \"r{index}\"\njoins = [{}]\n", joins.join(", "));
    }
    let shared = subnets.iter().enumerate().skip(1).filter(|(_, subnet)| subnet.2 == 6);
    let shared: Vec<_> = shared.map(|(index, _)| format!("\"s{index}\"")).collect();
    for (number, link) in private.iter().enumerate() {
        let via = [&shared[..], &[format!("\"s{link}\"")]].concat();
        text += &format!("[[remote]]\nid = {}\nvia = [{}]\n", number + 2, via.join(", "));
    }
    text
}

prop_compose! {
    /// A small map; parts that would be faults (such as a subnet without router) are mended.
    fn maps()(
        subnets in prop::collection::vec((prop::sample::select(vec![1, 10, 32, 40, 64, 100, 400, 2000]), any::<bool>(), 0u8..8), 2..8),
        picks in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 2..4), 1..8),
    ) -> RouteMap {
        let mut routers: Vec<BTreeSet<usize>> =
            picks.iter().map(|joins| joins.iter().map(|pick| pick.index(subnets.len())).collect()).collect();
        for subnet in 1..subnets.len() {
            if !routers.iter().any(|joins| joins.contains(&subnet)) {
                routers.push(BTreeSet::from([subnet - 1, subnet]));
            }
        }
        routers.push(BTreeSet::from([0, 1]));
        for joins in &mut routers {
            // A router joins two or more subnets, and one of them is the AS's own.
            joins.insert(0);
            if joins.len() < 2 {
                joins.insert(1);
            }
        }
        // Subnet 0 would join all: take it away again wherever the rest suffices.
        for joins in routers.iter_mut().skip(1) {
            let own = |subnet: &&usize| **subnet != 0 && subnets[**subnet].2 < 6;
            if joins.len() > 2 && joins.iter().any(|subnet| own(&subnet)) {
                joins.remove(&0);
            }
        }
        RouteMap::parse(&text(&subnets, &routers), "random.toml").expect("a good map")
    }
}

/// All loop-free routes that break no rule, by combining one-hop routes.
fn all_routes(map: &RouteMap) -> BTreeSet<Path> {
    let mut hops: BTreeSet<(u32, u32)> = BTreeSet::new();
    for router in map.routers() {
        for one in &router.joins {
            for other in router.joins.iter().filter(|other| other.subnet != one.subnet) {
                hops.insert((one.subnet.0, other.subnet.0));
            }
        }
    }
    let role = |id: u32| map.subnet(SubnetId(id)).expect("in the map").role;
    let mut routes: BTreeSet<Path> = hops.iter().map(|(one, other)| vec![*one, *other]).collect();
    loop {
        let mut more = BTreeSet::new();
        for route in &routes {
            let last = route[route.len() - 1];
            for (_, next) in hops.range((last, 0)..=(last, u32::MAX)) {
                let longer: Path = route.iter().copied().chain([*next]).collect();
                if role(last) == Role::Transit && !route.contains(next) && !routes.contains(&longer) {
                    more.insert(longer);
                }
            }
        }
        if more.is_empty() {
            break;
        }
        routes.extend(more);
    }
    routes.retain(|route| !(role(route[0]).leads_out() && role(route[route.len() - 1]).leads_out()));
    routes
}

fn contains(longer: &[u32], shorter: &[u32]) -> bool {
    let mut rest = longer.iter();
    longer.len() > shorter.len() && shorter.iter().all(|subnet| rest.any(|other| other == subnet))
}

fn without_containing(routes: &BTreeSet<Path>) -> BTreeSet<Path> {
    let same_ends = |a: &[u32], b: &[u32]| a.first() == b.first() && a.last() == b.last();
    let dropped = |route: &Path| routes.iter().any(|other| same_ends(route, other) && contains(route, other));
    routes.iter().filter(|route| !dropped(route)).cloned().collect()
}

fn numbers(path: &[SubnetId]) -> Path {
    path.iter().map(|subnet| subnet.0).collect()
}

proptest! {
    #[test]
    fn the_table_is_what_the_papers_procedure_gives(map in maps()) {
        let kept = without_containing(&all_routes(&map));
        for metric in Metric::ALL {
            let table = Table::compute(&map, metric, None);
            for from in map.subnets() {
                for to in map.subnets().iter().filter(|to| to.id != from.id) {
                    let between: BTreeSet<Path> =
                        kept.iter().filter(|r| r[0] == from.id.0 && r[r.len() - 1] == to.id.0).cloned().collect();
                    let explanation = table.explain(from.id, (map.as_id(), to.id), 10_000).expect("known ends");
                    prop_assert!(explanation.complete);
                    let candidates: BTreeSet<Path> =
                        explanation.candidates.iter().map(|c| numbers(&c.route.path)).collect();
                    prop_assert_eq!(&candidates, &between);
                    let best = explanation.candidates.first().map(|candidate| candidate.route.clone());
                    prop_assert_eq!(table.route(from.id, to.id).ok(), best);
                    for candidate in &explanation.candidates {
                        prop_assert_eq!(candidate.costs.iter().sum::<u64>(), candidate.route.cost);
                    }
                }
            }
        }
    }

    #[test]
    fn a_remote_as_is_reached_by_the_cheapest_of_its_ways_out(map in maps()) {
        for metric in Metric::ALL {
            let table = Table::compute(&map, metric, None);
            for remote in map.remotes() {
                for from in map.subnets().iter().filter(|subnet| !subnet.role.leads_out()) {
                    let exits = remote.ways_out.iter().map(|way| way.subnet);
                    let routes = exits.filter_map(|exit| table.route(from.id, exit).ok());
                    let best = routes.min_by_key(|route| (route.cost, route.path.len(), route.path.clone()));
                    let to = (remote.id, SubnetId(1));
                    prop_assert_eq!(table.next_hop(from.id, to).ok().map(|next| next.route), best.clone());
                    let explanation = table.explain(from.id, to, 10_000).expect("known ends");
                    prop_assert_eq!(explanation.candidates.first().map(|c| c.route.clone()), best);
                }
            }
        }
    }

    #[test]
    fn kept_and_dropped_together_are_all_loop_free_routes(map in maps()) {
        let all = all_routes(&map);
        let table = Table::compute(&map, Metric::Bandwidth, None);
        for route in &all {
            let ends = (SubnetId(route[0]), SubnetId(route[route.len() - 1]));
            let explanation = table.explain(ends.0, (map.as_id(), ends.1), 10_000).expect("known ends");
            let kept = explanation.candidates.iter().any(|c| numbers(&c.route.path) == *route);
            let dropped = explanation.dropped.iter().any(|d| numbers(&d.route.path) == *route);
            prop_assert!(kept != dropped, "{:?} kept {} dropped {}", route, kept, dropped);
        }
    }

    #[test]
    fn handing_data_to_any_router_named_gets_it_there_at_the_promised_cost(map in maps()) {
        let table = Table::compute(&map, Metric::Bandwidth, None);
        for from in map.subnets() {
            for to in map.subnets() {
                let Ok(next) = table.next_hop(from.id, (map.as_id(), to.id)) else { continue };
                let Step::Routers(routers) = &next.step else { continue };
                prop_assert_eq!(routers[0].subnet, next.route.path[1]);
                for router in routers {
                    let onward = table.next_hop(router.subnet, (map.as_id(), to.id)).expect("a way on");
                    let own = table.explain(from.id, (map.as_id(), to.id), 1).expect("known").candidates[0].costs[0];
                    // Arrived, only the last subnet's own cost is left.
                    let rest = if router.subnet == to.id {
                        let back = table.route(to.id, from.id).expect("the way back").cost;
                        back - own
                    } else {
                        onward.route.cost
                    };
                    prop_assert_eq!(own + rest, next.route.cost);
                }
                // The rest of the route is the route of the rest.
                let rest = &next.route.path[1..];
                if rest.len() > 1 {
                    let onward = table.route(rest[0], to.id).expect("a way on");
                    prop_assert_eq!(&onward.path[..], rest);
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_maps_text_does_not_change_the_routes(map in maps(), seed: u64) {
        let mut routers: Vec<BTreeSet<usize>> = map
            .routers()
            .iter()
            .map(|router| router.joins.iter().map(|joint| joint.subnet.0 as usize - 1).collect())
            .collect();
        let turn = seed as usize % routers.len();
        routers.rotate_left(turn);
        let subnets: Vec<_> = map
            .subnets()
            .iter()
            .map(|s| {
                let role = match s.role { Role::Transit => 0, Role::Edge => 5, Role::Wan => 6, Role::Private => 7 };
                ((s.rate.0 / 1_000_000_000) as u32, s.capabilities.zero_copy, role)
            })
            .collect();
        let turned = RouteMap::parse(&text(&subnets, &routers), "turned.toml").expect("a good map");
        let tables = [&map, &turned].map(|map| Table::compute(map, Metric::Bandwidth, None));
        for from in map.subnets() {
            for to in map.subnets() {
                prop_assert_eq!(tables[0].route(from.id, to.id), tables[1].route(from.id, to.id));
            }
        }
    }
}
