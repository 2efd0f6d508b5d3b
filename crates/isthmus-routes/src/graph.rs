//! Subnets and routers as a graph, and the cheapest ways through it.
//!
//! The papers combine one-hop routes until every loop-free route is found, drop routes that
//! contain a shorter valid one, and then take the least cost. The number of loop-free
//! routes grows exponentially, so the table takes the least cost directly. The outcome is
//! the same:
//!
//! - A route *contains* another if leaving out subnets between its ends gives a valid route.
//!   If two subnets of a route are not neighbours in it but share a router, the part between
//!   them can be left out. The rest breaks no rule, because rules only forbid certain subnets
//!   in the middle and certain pairs of ends. Without such a pair, nothing can be left out.
//!   So the routes kept are those *without a shortcut*.
//! - Every subnet costs at least 1. So a route with a detour costs more than without it, and
//!   the route of least cost is among those kept.
//! - A cheapest route never visits a subnet twice, because the loop would cost something.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::map::RouteMap;
use crate::measured::Measured;
use crate::metric::Metric;

/// No subnet.
const NONE: u32 = u32::MAX;

/// A map under a metric. Subnets and routers are known by their positions in the map, so
/// the order of positions is the order of subnet ids.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    /// The cost of each subnet; `None` if nothing gets through.
    costs: Vec<Option<u64>>,
    /// Whether a subnet may stand between the ends of a route.
    carries: Vec<bool>,
    leads_out: Vec<bool>,
    /// Routers on each subnet, and subnets of each router; routers that are down have none.
    routers_on: Vec<Vec<u32>>,
    joins: Vec<Vec<u32>>,
}

/// The way from one subnet to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Total cost of the subnets on the way, the first and the destination included.
    pub(crate) cost: u64,
    pub(crate) hops: u32,
    next: u32,
}

impl Cell {
    const NO_WAY: Self = Self { cost: u64::MAX, hops: u32::MAX, next: NONE };

    pub(crate) fn is_way(&self) -> bool {
        self.cost != u64::MAX
    }

    /// The subnet that comes next, unless this is the destination.
    pub(crate) fn next(&self) -> Option<usize> {
        (self.next != NONE).then_some(self.next as usize)
    }
}

/// The rules that a search obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// All: routes that may be used.
    Kept,
    /// None, except that links must carry data: finds the routes that the rules exclude.
    Broken,
}

impl Graph {
    pub(crate) fn new(map: &RouteMap, metric: Metric, measured: Option<&Measured>) -> Self {
        let subnets = map.subnets();
        let mut routers_on = vec![Vec::new(); subnets.len()];
        let mut joins = Vec::with_capacity(map.routers().len());
        for (number, router) in map.routers().iter().enumerate() {
            let down = measured.is_some_and(|measured| measured.down.contains(&router.name));
            let joined = router.joins.iter().filter_map(|joint| map.index(joint.subnet)).filter(|_| !down);
            let joined: Vec<u32> = joined.map(|subnet| subnet as u32).collect();
            joined.iter().for_each(|subnet| routers_on[*subnet as usize].push(number as u32));
            joins.push(joined);
        }
        Self {
            costs: subnets.iter().map(|subnet| metric.cost(subnet, measured)).collect(),
            carries: subnets.iter().map(|subnet| subnet.role == crate::map::Role::Transit).collect(),
            leads_out: subnets.iter().map(|subnet| subnet.role.leads_out()).collect(),
            routers_on,
            joins,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.costs.len()
    }

    pub(crate) fn cost(&self, subnet: usize) -> Option<u64> {
        self.costs[subnet]
    }

    /// Whether `subnet` may stand between the ends of a route.
    pub(crate) fn carries(&self, subnet: usize) -> bool {
        self.carries[subnet]
    }

    /// Whether the ends are two ways out: an AS forwards nothing between other AS's.
    pub(crate) fn passes_through(&self, from: usize, to: usize) -> bool {
        from != to && self.leads_out[from] && self.leads_out[to]
    }

    /// Routers on `subnet`, in the order of the map.
    pub(crate) fn routers_on(&self, subnet: usize) -> impl Iterator<Item = usize> {
        self.routers_on[subnet].iter().map(|router| *router as usize)
    }

    /// Subnets that `router` joins, in the order of the map.
    pub(crate) fn joined_by(&self, router: usize) -> impl Iterator<Item = usize> {
        self.joins[router].iter().map(|subnet| *subnet as usize)
    }

    /// Subnets one hop away, by ascending id.
    pub(crate) fn neighbours(&self, subnet: usize) -> Vec<usize> {
        let through = self.routers_on(subnet).flat_map(|router| self.joined_by(router));
        let mut neighbours: Vec<_> = through.filter(|other| *other != subnet).collect();
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours
    }

    /// The cheapest ways to `target` from everywhere, by Dijkstra's algorithm, from its end.
    ///
    /// Among equally cheap ways it takes the one with fewer hops, then the one whose first
    /// subnets have the lower ids. A router passes a way on only when it is first reached:
    /// a way that reaches it later is no cheaper, or has a higher id.
    pub(crate) fn ways_to(&self, target: usize, rules: Rules) -> Vec<Cell> {
        let mut cells = vec![Cell::NO_WAY; self.len()];
        let Some(cost) = self.costs[target] else { return cells };
        cells[target] = Cell { cost, hops: 0, next: NONE };
        let mut router_reached = vec![false; self.joins.len()];
        let mut queue = BinaryHeap::from([Reverse((cost, 0, target as u32))]);
        while let Some(Reverse((cost, hops, at))) = queue.pop() {
            let here = at as usize;
            let settled = (cells[here].cost, cells[here].hops) == (cost, hops);
            let passes = here == target || self.carries[here] || rules == Rules::Broken;
            if !settled || !passes {
                continue;
            }
            for router in &self.routers_on[here] {
                if std::mem::replace(&mut router_reached[*router as usize], true) {
                    continue;
                }
                for other in &self.joins[*router as usize] {
                    let Some(own) = self.costs[*other as usize] else { continue };
                    let cell = &mut cells[*other as usize];
                    if (cost + own, hops + 1) < (cell.cost, cell.hops) {
                        *cell = Cell { cost: cost + own, hops: hops + 1, next: at };
                        queue.push(Reverse((cell.cost, cell.hops, *other)));
                    }
                }
            }
        }
        if rules == Rules::Kept {
            let forbidden = |from: &usize| self.passes_through(*from, target);
            (0..self.len()).filter(forbidden).for_each(|from| cells[from] = Cell::NO_WAY);
        }
        cells
    }
}
