//! Ranks that live and cannot reach each other, in a job that goes on (`--on-loss continue`).
//!
//! With `lost_peer = silent` the provider tells nobody when it gives up a peer: Open MPI learns of losses from PMIx alone.
//! So the provider tells `isthmus run` which endpoint it cannot reach ([`Reach`](crate::reach::Reach)). The report travels
//! to the process that started the rank of this endpoint, and from there to the hub, as a pair of ranks.
//!
//! The hub alone decides which ranks are lost, because both ranks of a pair may report the other one. It collects pairs
//! for [`COLLECT`] and then loses a greedy vertex cover of them: again and again the rank that is in most of the pairs.
//! So one rank that is stopped does not take all its peers with it, and if two groups of ranks cannot reach each other,
//! only the smaller one is lost. Between equals, the higher rank is lost. A lost rank is killed, because all others take
//! it for failed.

use super::*;
use crate::letter::{Pair, Unreachable};

/// How long the hub collects pairs, from the first on. Ranks that lose a peer at the same time give it up at the same
/// time, but for the delays of their timers and letters.
const COLLECT: Duration = Duration::from_secs(2);
/// Pairs that the hub collects before it decides early. Count: all pairs of two groups of 256 ranks, about 30 MB.
const PAIRS_MAX: usize = 1 << 16;

/// The pairs that the hub has collected.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// The lower rank, the higher one, and why one of them could not reach the other.
    why: BTreeMap<(u32, u32), String>,
    /// The hosts of their ranks.
    hosts: BTreeMap<u32, String>,
    /// When the hub decides.
    pub(super) until: Option<Duration>,
}

impl Agent {
    /// A rank of the world, which must be one of this process, has opened an endpoint.
    pub(crate) fn endpoint_opened(&mut self, rank: u32, endpoint: String) {
        if let Some(own) = self.own_rank(rank)
            && self.endpoints.len() < ENDPOINTS_MAX
        {
            self.endpoints.entry(endpoint).or_insert(own);
        }
    }

    /// A rank of the world, which must be one of this process, has given up the endpoint of another one.
    pub(crate) fn peer_unreachable(&mut self, now: Duration, rank: u32, endpoint: String, why: String) {
        if self.own_rank(rank).is_some() {
            let by = (rank, self.me.host.clone());
            self.pass_unreachable(now, Unreachable { by, endpoint, why }, true);
        }
    }

    /// The number in this process of a rank of the world.
    fn own_rank(&self, rank: u32) -> Option<u32> {
        let own = rank.checked_sub(self.start.as_ref()?.first)?;
        (own < self.me.ranks).then_some(own)
    }

    /// A report from below or from above. Passes it on until it reaches the process that knows the endpoint.
    pub(super) fn pass_unreachable(&mut self, now: Duration, report: Unreachable, is_from_below: bool) {
        if !self.goes_on() || self.dead.contains(&report.by.0) {
            return;
        }
        let first = self.first_rank();
        if let Some(rank) = self.endpoints.get(&report.endpoint) {
            let known = &self.ranks[*rank as usize];
            if !known.finalised && !known.ended {
                let ranks = [report.by, (first + rank, self.me.host.clone())];
                self.take_pair(now, Pair { ranks, why: report.why });
            }
            return;
        }
        if is_from_below && self.hub.is_none() {
            return self.send_report(Letter::Unreachable(report));
        }
        for link in self.heads().into_iter().chain(self.members()) {
            self.act(Action::Send(link, Letter::Unreachable(report.clone())));
        }
    }

    /// Two ranks cannot reach each other: tells the hub, or collects the pair there.
    pub(super) fn take_pair(&mut self, now: Duration, pair: Pair) {
        let size = self.start.as_ref().map_or(0, |start| start.size);
        let [(one, _), (other, _)] = pair.ranks;
        let is_open = |rank| rank < size && !self.dead.contains(&rank);
        if !self.goes_on() || one == other || !is_open(one) || !is_open(other) {
            return;
        }
        let Some(hub) = &mut self.hub else { return self.send_report(Letter::Pair(pair)) };
        let pairs = &mut hub.pairs;
        pairs.hosts.extend(pair.ranks);
        pairs.why.entry((one.min(other), one.max(other))).or_insert(pair.why);
        pairs.until.get_or_insert(now + COLLECT);
        if pairs.why.len() >= PAIRS_MAX {
            self.lose_unreachable(now);
        }
    }

    /// Sends a report up. A head keeps it in case the hub is lost before it decides.
    fn send_report(&mut self, report: Letter) {
        if self.head.is_some() && self.reports.len() < PAIRS_MAX {
            self.reports.push(report.clone());
        }
        if let Some(link) = self.up.as_ref().map(|up| up.link) {
            self.act(Action::Send(link, report));
        }
    }

    /// This process is the hub now. Decides on the reports that the lost hub may not have decided on.
    pub(super) fn inherit_reports(&mut self, now: Duration) {
        for report in std::mem::take(&mut self.reports) {
            match report {
                Letter::Unreachable(report) => self.pass_unreachable(now, report, true),
                Letter::Pair(pair) => self.take_pair(now, pair),
                _ => {}
            }
        }
    }

    /// Decides which ranks of the collected pairs are lost.
    pub(super) fn lose_unreachable(&mut self, now: Duration) {
        let Some(mut pairs) = self.hub.as_mut().map(|hub| std::mem::take(&mut hub.pairs)) else { return };
        pairs.why.retain(|(one, other), _| !self.dead.contains(one) && !self.dead.contains(other));
        for (rank, others) in vertex_cover(pairs.why.keys().copied()) {
            // The job may have ended with the rank before.
            let Some(first) = others.first().filter(|_| self.goes_on()) else { return };
            let why = &pairs.why[&(rank.min(*first), rank.max(*first))];
            let rest = match others.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let why = format!("is lost, because it and rank {first}{rest} cannot reach each other ({why})");
            let host = pairs.hosts.remove(&rank).unwrap_or_default();
            let part = self.part_of(rank);
            let failure = Failure { part, rank: Some(rank), host, why, status: 1, kind: Kind::Error };
            self.lose(now, vec![(rank, rank)], failure);
            self.kill_lost(&[(rank, rank)]);
        }
    }

    /// Kills those of the lost ranks that are of this process and still run.
    pub(super) fn kill_lost(&mut self, lost: &[(u32, u32)]) {
        let first = self.first_rank();
        for own in 0..self.me.ranks {
            let rank = &self.ranks[own as usize];
            let is_lost = lost.iter().any(|(from, to)| (*from..=*to).contains(&(first + own)));
            // Others may take a rank for lost that has called MPI_Finalize meanwhile. It ends by itself.
            if is_lost && !rank.finalised && !rank.ended {
                self.act(Action::KillRank(own));
            }
        }
    }

    /// The part of a rank of the world, from 1.
    fn part_of(&self, rank: u32) -> u32 {
        (1..=self.me.parts)
            .find(|part| {
                self.ranks_of_part(*part).iter().any(|(first, last)| (*first..=*last).contains(&rank))
            })
            .unwrap_or_default()
    }
}

/// Ranks of which one is in each pair, and for each of them the other ranks of its pairs. Takes the rank that is in most
/// of the pairs that are left, and among equals the highest one.
fn vertex_cover(pairs: impl Iterator<Item = (u32, u32)>) -> Vec<(u32, BTreeSet<u32>)> {
    let mut others: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (one, other) in pairs {
        others.entry(one).or_default().insert(other);
        others.entry(other).or_default().insert(one);
    }
    let mut order: BTreeSet<(usize, u32)> = others.iter().map(|(rank, all)| (all.len(), *rank)).collect();
    let mut cover = Vec::new();
    while let Some((_, rank)) = order.pop_last() {
        let its = others.remove(&rank).unwrap_or_default();
        for other in &its {
            let Some(left) = others.get_mut(other) else { continue };
            order.remove(&(left.len(), *other));
            left.remove(&rank);
            if !left.is_empty() {
                order.insert((left.len(), *other));
            }
        }
        cover.push((rank, its));
    }
    cover
}
