//! Chooses the next hops of a lane. No I/O is done here.

use isthmus_routes::{Destination, NextHop, Remote, Role, Router, Step, Table};
use isthmus_wire::{AsId, Locator, SubnetId};

/// A next step towards a lane's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The target's endpoint itself, on this subnet.
    Direct(SubnetId),
    /// One of these routers of this AS, on this subnet.
    Routers(SubnetId, Vec<Locator>),
    /// One of these routers of other AS's, on this WAN subnet.
    Gateways(SubnetId, Vec<Locator>),
}

/// The next steps for a lane from `source` that came in on `arrived`, the best first. Empty if there is none.
///
/// The router is on several subnets. The sender that chose it may not know the best subnet, or that another router
/// would be better. So the best step from any subnet counts. The remaining cost falls from router to router. Other
/// steps are used if the best ones do not answer. Through other routers they can lead in a circle, so only the first
/// router of a lane (`detour`) may take them.
pub(crate) fn hops(
    table: &Table,
    router: &Router,
    arrived: SubnetId,
    source: Destination,
    target: Destination,
    detour: bool,
) -> Vec<Hop> {
    let map = table.map();
    let role = |id| map.subnet(id).map_or(Role::Edge, |subnet| subnet.role);
    let inside = target.0 == map.as_id();
    // An AS is no transit for other AS's: it forwards nothing from one WAN subnet to another.
    if !inside && role(arrived).leads_out() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for joint in &router.joins {
        let on = joint.subnet;
        if inside && role(on).leads_out() {
            continue;
        }
        let Ok(NextHop { step, route }) = table.next_hop(on, target) else { continue };
        match step {
            Step::Direct => found.push((0, Hop::Direct(on))),
            Step::Gateways(gateways) => found.push((route.cost, Hop::Gateways(on, gateways))),
            Step::Routers(routers) => {
                // Only lanes from a non-transit subnet itself may cross it.
                let crosses = role(on) == Role::Transit || source == (map.as_id(), on);
                let others = routers.iter().filter(|next| next.name != router.name);
                let others: Vec<_> = others.filter_map(|next| next.endpoint).collect();
                if crosses && !others.is_empty() {
                    found.push((route.cost, Hop::Routers(on, others)));
                }
            }
        }
    }
    found.sort_by_key(|(cost, way)| (*cost, matches!(way, Hop::Routers(..))));
    let ranked = found.into_iter().map(|(_, way)| way).enumerate();
    ranked
        .filter(|(rank, way)| detour || *rank == 0 || !matches!(way, Hop::Routers(..)))
        .map(|(_, way)| way)
        .collect()
}

/// Whether a lane from inside the AS that came in on `arrived` may claim this source. An endpoint may claim only its
/// own subnet; a router of the AS may claim any subnet of the map.
pub(crate) fn may_claim(table: &Table, arrived: SubnetId, by_router: bool, source: Destination) -> bool {
    let map = table.map();
    if source.0 != map.as_id() {
        return by_router && map.remote(source.0).is_some();
    }
    source.1 == arrived || by_router && map.subnet(source.1).is_some_and(|subnet| !subnet.role.leads_out())
}

/// Whether another router of the AS has the address `ip` on `subnet`.
pub(crate) fn is_router(table: &Table, own: &str, subnet: SubnetId, ip: std::net::IpAddr) -> bool {
    let others = table.map().routers().iter().filter(|router| router.name != own);
    others.filter_map(|router| router.endpoint(subnet)).any(|at| at.ip() == ip)
}

/// The gateways with which this router keeps links. They are on its WAN subnets and lead to AS's for which `wanted`
/// holds.
pub(crate) fn gateways(
    table: &Table,
    router: &Router,
    wanted: impl Fn(AsId) -> bool,
) -> Vec<(SubnetId, Locator)> {
    let mut found = Vec::new();
    for remote in table.map().remotes().iter().filter(|remote| wanted(remote.id)) {
        for way in &remote.ways_out {
            if router.joins.iter().any(|joint| joint.subnet == way.subnet) {
                found.extend(way.gateways.iter().map(|gateway| (way.subnet, *gateway)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a link with AS `neighbour` may come from `ip` on a WAN subnet. If the map names gateways of the neighbour
/// there, it must be one that the map names on this subnet. It may be the gateway of an AS behind the neighbour.
pub(crate) fn is_gateway(table: &Table, subnet: SubnetId, neighbour: AsId, ip: std::net::IpAddr) -> bool {
    let remotes = table.map().remotes();
    let named = |remote: &Remote| {
        let ways = remote.ways_out.iter().filter(|way| way.subnet == subnet);
        ways.flat_map(|way| way.gateways.clone()).collect::<Vec<_>>()
    };
    let has_gateways = remotes.iter().any(|remote| remote.id == neighbour && !named(remote).is_empty());
    !has_gateways || remotes.iter().flat_map(named).any(|gateway| gateway.ip() == ip)
}

#[cfg(test)]
mod tests {
    use isthmus_routes::{Metric, RouteMap};

    use super::*;

    const CAMPUS: SubnetId = SubnetId(1);
    const STORAGE: SubnetId = SubnetId(2);
    const COMPUTE: SubnetId = SubnetId(3);
    const ESNET: SubnetId = SubnetId(100);
    const AS3: AsId = AsId(3);

    fn table() -> Table {
        let text = include_str!("../../isthmus-routes/maps/as3.toml");
        Table::compute(&RouteMap::parse(text, "as3.toml").expect("a map"), Metric::Bandwidth, None)
    }

    fn chosen(name: &str, arrived: SubnetId, source: Destination, target: Destination) -> Vec<Hop> {
        let table = table();
        let router = table.map().routers().iter().find(|r| r.name == name).expect("the router");
        hops(&table, router, arrived, source, target, true)
    }

    fn at(text: &str) -> Locator {
        text.parse().expect("a locator")
    }

    #[test]
    fn a_router_on_the_targets_subnet_goes_straight_to_it() {
        assert_eq!(chosen("r4", CAMPUS, (AS3, CAMPUS), (AS3, COMPUTE))[0], Hop::Direct(COMPUTE));
        assert_eq!(chosen("r1", ESNET, (AsId(1), CAMPUS), (AS3, CAMPUS))[0], Hop::Direct(CAMPUS));
    }

    #[test]
    fn what_comes_from_outside_is_handed_to_the_routers_that_lead_on() {
        let hops = chosen("r1", ESNET, (AsId(1), CAMPUS), (AS3, COMPUTE));
        assert_eq!(hops, [Hop::Routers(CAMPUS, vec![at("10.3.1.4:4100")])]);
    }

    #[test]
    fn a_remote_as_is_reached_by_its_gateways() {
        let hops = chosen("r2", CAMPUS, (AS3, COMPUTE), (AsId(4), SubnetId(9)));
        assert_eq!(hops[0], Hop::Gateways(SubnetId(104), vec![at("203.0.113.2:4100")]));
    }

    #[test]
    fn a_router_that_is_not_on_the_best_way_hands_over_to_one_that_is() {
        let hops = chosen("r3", STORAGE, (AS3, STORAGE), (AsId(4), SubnetId(9)));
        assert_eq!(hops[0], Hop::Routers(CAMPUS, vec![at("10.3.1.2:4100")]));
    }

    #[test]
    fn when_the_best_way_does_not_answer_the_first_router_takes_another() {
        let (table, as4) = (table(), (AsId(4), SubnetId(9)));
        let router = &table.map().routers()[0];
        let best = Hop::Gateways(ESNET, vec![at("198.51.100.4:4100")]);
        let other = Hop::Routers(CAMPUS, vec![at("10.3.1.2:4100")]);
        let chosen = |detour| hops(&table, router, CAMPUS, (AS3, CAMPUS), as4, detour);
        assert_eq!(chosen(true), [best.clone(), other]);
        assert_eq!(chosen(false), [best]);
    }

    #[test]
    fn nothing_goes_from_one_way_out_to_another() {
        assert_eq!(chosen("r1", ESNET, (AsId(1), CAMPUS), (AsId(4), CAMPUS)), []);
        assert_eq!(chosen("r1", ESNET, (AsId(1), CAMPUS), (AsId(2), CAMPUS)), []);
    }

    /// Nobody who is inside reaches hosts of a way out, as if they were endpoints of this AS.
    #[test]
    fn no_endpoint_is_on_a_way_out() {
        assert_eq!(chosen("r1", CAMPUS, (AS3, CAMPUS), (AS3, ESNET)), []);
    }

    /// A subnet that carries nothing for others is crossed by its own endpoints' lanes only.
    #[test]
    fn nobody_else_s_lanes_cross_a_subnet_that_is_no_transit() {
        let text = include_str!("../../isthmus-routes/maps/as3.toml");
        let closed = text.replace("name = \"storage\"\n", "name = \"storage\"\ntransit = false\n");
        let map = RouteMap::parse(&closed, "as3.toml").expect("a map");
        let table = Table::compute(&map, Metric::Bandwidth, None);
        let router = table.map().routers().iter().find(|r| r.name == "r3").expect("the router");
        let crossed = |source| {
            let hops = hops(&table, router, source, (AS3, source), (AS3, COMPUTE), true);
            hops.iter().any(|hop| matches!(hop, Hop::Routers(STORAGE, _)))
        };
        assert!(!crossed(CAMPUS) && crossed(STORAGE));
    }

    #[test]
    fn unknown_targets_have_no_way() {
        assert_eq!(chosen("r4", CAMPUS, (AS3, CAMPUS), (AsId(77), CAMPUS)), []);
        assert_eq!(chosen("r4", CAMPUS, (AS3, CAMPUS), (AS3, SubnetId(77))), []);
    }

    #[test]
    fn endpoints_claim_their_own_subnet_and_routers_what_they_pass_on() {
        let table = table();
        assert!(may_claim(&table, CAMPUS, false, (AS3, CAMPUS)));
        assert!(!may_claim(&table, CAMPUS, false, (AS3, STORAGE)));
        assert!(!may_claim(&table, CAMPUS, false, (AsId(4), CAMPUS)));
        assert!(!may_claim(&table, CAMPUS, false, (AsId(0), SubnetId(0))));
        assert!(may_claim(&table, CAMPUS, true, (AS3, STORAGE)));
        assert!(may_claim(&table, CAMPUS, true, (AsId(4), SubnetId(5))));
        assert!(!may_claim(&table, CAMPUS, true, (AsId(77), CAMPUS)));
        assert!(!may_claim(&table, CAMPUS, true, (AS3, ESNET)));
        assert!(is_router(&table, "r1", CAMPUS, at("10.3.1.2:1").ip()));
        assert!(!is_router(&table, "r2", CAMPUS, at("10.3.1.2:1").ip()));
    }

    #[test]
    fn links_are_kept_on_the_routers_own_ways_out() {
        let table = table();
        let router = &table.map().routers()[0];
        assert_eq!(gateways(&table, router, |id| id == AsId(4)), [(ESNET, at("198.51.100.4:4100"))]);
        assert_eq!(gateways(&table, router, |_| false), []);
    }

    #[test]
    fn links_come_from_gateways_that_the_map_names_if_it_names_any() {
        let table = table();
        let is_from = |subnet, id, ip: &str| is_gateway(&table, subnet, AsId(id), at(ip).ip());
        assert!(is_from(ESNET, 4, "198.51.100.4:9"));
        assert!(!is_from(ESNET, 4, "198.51.100.5:4100"));
        // AS 1 may be behind AS 4, whose router then has the address of a gateway of AS 1.
        assert!(is_from(ESNET, 4, "198.51.100.1:4100"));
        // The map names no gateways of this AS there.
        assert!(is_from(CAMPUS, 4, "198.51.100.5:4100"));
    }
}
