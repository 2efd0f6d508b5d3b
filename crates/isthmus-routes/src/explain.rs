//! Explains why a route won: lists every candidate with its cost, and every dropped route with the reason.
//!
//! There may be exponentially many routes, so their number is bounded. They are found
//! cheapest first, so those cut off by the bound cost at least as much as those found.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use isthmus_wire::{AsId, SubnetId};

use crate::graph::{Graph, Rules};
use crate::map::{Remote, Role};
use crate::table::{Destination, NoRoute, Route, Table};

/// Most partial routes that a search looks at. Count; bounds its time.
const STEPS_MAX: usize = 100_000;

/// The routes between two subnets, those not taken included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Routes that may be used, best first: the first is the table's. A route is a list of
    /// subnets, so each appears once even if several routers join the same subnets.
    pub candidates: Vec<Candidate>,
    /// Loop-free routes that may not be used, cheapest first.
    pub dropped: Vec<Dropped>,
    /// True if these are all routes; false if the bound was reached.
    pub complete: bool,
}

/// A route that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The route.
    pub route: Route,
    /// The cost of each of its subnets.
    pub costs: Vec<u64>,
}

/// A route that may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The route, with what it would cost.
    pub route: Route,
    /// Why it was dropped.
    pub reason: Reason,
}

/// Why a route may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It contains this shorter valid route, so it never costs less.
    Contains(Vec<SubnetId>),
    /// It crosses this subnet, which allows no transit.
    NoTransit(SubnetId),
    /// It crosses this WAN subnet; routes within an AS stay inside.
    LeavesAs(SubnetId),
    /// It leads from one way out to another; an AS forwards nothing between other AS's.
    Through,
    /// It ends on this WAN subnet, which does not lead to the destination's AS.
    LeadsElsewhere(SubnetId),
    /// It ends on this private link, which serves another AS only.
    Private(SubnetId, AsId),
}

impl Table {
    /// Every route from the subnet `from` to `to`, at most `limit` candidates and `limit`
    /// dropped ones.
    pub fn explain(&self, from: SubnetId, to: Destination, limit: usize) -> Result<Explanation, NoRoute> {
        let from = self.index(from)?;
        let mut search = Search::new(self, limit);
        if to.0 == self.map.as_id {
            let to = self.index(to.1)?;
            if from != to {
                search.add_target(from, to);
            }
        } else {
            let remote = self.map.remote(to.0).ok_or(NoRoute::UnknownAs(to.0))?;
            search.add_remote(from, remote);
        }
        Ok(search.finish())
    }
}

/// A route as positions of subnets.
type Path = Vec<u32>;

struct Search<'t> {
    table: &'t Table,
    graph: &'t Graph,
    /// Subnets one hop away from each, by position.
    neighbours: Vec<Vec<usize>>,
    limit: usize,
    found: Explanation,
}

impl<'t> Search<'t> {
    fn new(table: &'t Table, limit: usize) -> Self {
        let graph = &table.graph;
        let neighbours = (0..graph.len()).map(|subnet| graph.neighbours(subnet)).collect();
        let found = Explanation { candidates: Vec::new(), dropped: Vec::new(), complete: true };
        Self { table, graph, neighbours, limit, found }
    }

    fn add_target(&mut self, from: usize, to: usize) {
        for (cost, path) in self.routes(from, to, Rules::Kept) {
            let costs = path.iter().filter_map(|subnet| self.graph.cost(*subnet as usize)).collect();
            let route = Route { path: self.ids(&path), cost };
            self.found.candidates.push(Candidate { route, costs });
        }
        for (cost, path) in self.routes(from, to, Rules::Broken) {
            if let Some(reason) = self.reason(&path) {
                self.found.dropped.push(Dropped { route: Route { path: self.ids(&path), cost }, reason });
            }
        }
    }

    fn add_remote(&mut self, from: usize, remote: &Remote) {
        let leads_there = |id: SubnetId| remote.ways_out.iter().any(|way| way.subnet == id);
        let subnets = &self.table.map.subnets;
        if leads_there(subnets[from].id) {
            let cost = self.graph.cost(from);
            let candidate =
                |cost| Candidate { route: Route { path: vec![subnets[from].id], cost }, costs: vec![cost] };
            return self.found.candidates.extend(cost.map(candidate));
        }
        for (exit, subnet) in subnets.iter().enumerate().filter(|(exit, _)| *exit != from) {
            if leads_there(subnet.id) {
                self.add_target(from, exit);
            } else if subnet.role.leads_out()
                && let Ok(route) = self.table.route(subnets[from].id, subnet.id)
            {
                self.found.dropped.push(Dropped { route, reason: self.elsewhere(subnet.id, subnet.role) });
            }
        }
    }

    fn elsewhere(&self, exit: SubnetId, role: Role) -> Reason {
        let served = self.table.map.remotes.iter().find(|r| r.ways_out.iter().any(|way| way.subnet == exit));
        match (role, served) {
            (Role::Private, Some(remote)) => Reason::Private(exit, remote.id),
            _ => Reason::LeadsElsewhere(exit),
        }
    }

    /// Everything found, in the order of the table's choice.
    fn finish(mut self) -> Explanation {
        let found = &mut self.found;
        let order = |route: &Route| (route.cost, route.path.len(), route.path.clone());
        found.candidates.sort_by_cached_key(|candidate| order(&candidate.route));
        found.dropped.sort_by_cached_key(|dropped| order(&dropped.route));
        found.complete &= found.candidates.len() <= self.limit && found.dropped.len() <= self.limit;
        found.candidates.truncate(self.limit);
        found.dropped.truncate(self.limit);
        self.found
    }

    /// Loop-free routes, cheapest first: with [`Rules::Kept`] those that may be used, with
    /// [`Rules::Broken`] the others. A lower bound on a partial route's cost is its cost so
    /// far plus the cheapest way on.
    fn routes(&mut self, from: usize, to: usize, rules: Rules) -> Vec<(u64, Path)> {
        let ways = self.graph.ways_to(to, rules);
        let mut routes = Vec::new();
        let mut queue = BinaryHeap::new();
        if ways[from].is_way() {
            queue.push(Reverse((ways[from].cost, 1, vec![from as u32], 0)));
        }
        let mut steps = 0;
        while let Some(Reverse((cost, _, path, before))) = queue.pop() {
            let last = path[path.len() - 1] as usize;
            if last == to {
                if rules == Rules::Kept || self.reason(&path).is_some() {
                    routes.push((cost, path));
                }
                // One route above the limit shows that there are more.
                if routes.len() > self.limit {
                    break;
                }
                continue;
            }
            let spent = before + self.graph.cost(last).unwrap_or_default();
            for next in self.neighbours[last].iter().copied().filter(|next| ways[*next].is_way()) {
                steps += 1;
                if path.contains(&(next as u32)) || rules == Rules::Kept && !self.may_go_on(&path, next, to) {
                    continue;
                }
                let longer: Path = path.iter().copied().chain([next as u32]).collect();
                queue.push(Reverse((spent + ways[next].cost, longer.len(), longer, spent)));
            }
            if steps > STEPS_MAX {
                self.found.complete = false;
                break;
            }
        }
        routes
    }

    /// Whether a usable route may go on to `next`: the rules allow it, and no earlier subnet is next to it.
    fn may_go_on(&self, path: &[u32], next: usize, to: usize) -> bool {
        let earlier = &path[..path.len() - 1];
        (next == to || self.graph.carries(next)) && !earlier.iter().any(|s| self.adjacent(*s as usize, next))
    }

    fn adjacent(&self, one: usize, other: usize) -> bool {
        self.neighbours[one].binary_search(&other).is_ok()
    }

    /// Why a loop-free route may not be used; `None` if it may.
    fn reason(&self, path: &[u32]) -> Option<Reason> {
        let subnet = |position: u32| &self.table.map.subnets[position as usize];
        let middle = || path[1..path.len() - 1].iter().map(|position| subnet(*position));
        let (first, last) = (path[0] as usize, path[path.len() - 1] as usize);
        if let Some(outside) = middle().find(|subnet| subnet.role.leads_out()) {
            Some(Reason::LeavesAs(outside.id))
        } else if let Some(edge) = middle().find(|subnet| subnet.role == Role::Edge) {
            Some(Reason::NoTransit(edge.id))
        } else if self.graph.passes_through(first, last) {
            Some(Reason::Through)
        } else {
            let shorter = self.without_detours(path);
            (shorter.len() < path.len()).then(|| Reason::Contains(self.ids(&shorter)))
        }
    }

    /// The route without detours: each subnet leads to the furthest one of `path` that it shares a router with.
    fn without_detours(&self, path: &[u32]) -> Path {
        let mut shorter = vec![path[0]];
        let mut at = 0;
        while at + 1 < path.len() {
            let furthest = |to: &usize| self.adjacent(path[at] as usize, path[*to] as usize);
            at = (at + 1..path.len()).rev().find(furthest).unwrap_or(at + 1);
            shorter.push(path[at]);
        }
        shorter
    }

    fn ids(&self, path: &[u32]) -> Vec<SubnetId> {
        path.iter().map(|position| self.table.map.subnets[*position as usize].id).collect()
    }
}
