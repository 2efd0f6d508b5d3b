//! Ranks that live and cannot reach each other, in a job that goes on (`--on-loss continue`).
//!
//! With `lost_peer = silent` the provider tells nobody when it gives up a peer: Open MPI learns of losses from PMIx alone.
//! So the provider tells `isthmus run` which endpoint it cannot reach ([`Reach`](crate::reach::Reach)). The report travels
//! to the process that started the rank of this endpoint. That process decides which of the two ranks is lost, and
//! everybody hears of it as of any loss. The lost rank is killed, because all others take it for failed.
//!
//! Each of the two ranks may report the other. Both reports must have the same result, and a part that is cut off as a
//! whole must not take ranks of all parts with it. So the rank of the later part is lost.

use super::*;

impl Agent {
    /// A rank of the world, which is one of this process, has opened an endpoint.
    pub(crate) fn endpoint_opened(&mut self, rank: u32, endpoint: String) {
        let own = self.start.as_ref().and_then(|start| rank.checked_sub(start.first));
        if let Some(own) = own.filter(|own| *own < self.me.ranks)
            && self.endpoints.len() < ENDPOINTS_MAX
        {
            self.endpoints.insert(endpoint, own);
        }
    }

    /// A rank of the world, which is one of this process, has given up the endpoint of another one.
    pub(crate) fn out_of_reach(&mut self, now: Duration, rank: u32, endpoint: String) {
        self.settle_reach(now, (rank, self.me.host.clone()), endpoint, true);
    }

    /// A report: rank `by` cannot reach this endpoint. It has come from below, or from above.
    pub(super) fn settle_reach(
        &mut self,
        now: Duration,
        by: (u32, String),
        endpoint: String,
        is_from_below: bool,
    ) {
        if !self.goes_on() {
            return;
        }
        if let Some(rank) = self.endpoints.get(&endpoint) {
            return self.decide_reach(now, *rank, by);
        }
        let report = Letter::OutOfReach { by: by.0, host: by.1, endpoint };
        let towards = match (&self.hub, &self.up) {
            (None, Some(up)) if is_from_below => vec![up.link],
            _ => self.heads().into_iter().chain(self.members()).collect(),
        };
        for link in towards {
            self.act(Action::Send(link, report.clone()));
        }
    }

    /// Rank `by` of the world cannot reach `rank` of this process.
    fn decide_reach(&mut self, now: Duration, rank: u32, (by, host): (u32, String)) {
        let Some(start) = &self.start else { return };
        let (own, part) = (start.first + rank, self.part_of(by));
        let ended = self.ranks[rank as usize].finalised || self.ranks[rank as usize].ended;
        if ended || self.dead.contains(&own) || self.dead.contains(&by) {
            return;
        }
        let why = |other| format!("is out of reach of rank {other}, for longer than peer_timeout");
        let failure = if part > self.me.part {
            Failure { part, rank: Some(by), host, why: why(own), status: 1, kind: Kind::Error }
        } else {
            self.failure_of_rank(rank, why(by), 1, Kind::Error)
        };
        let lost = failure.rank.unwrap_or(own);
        self.lose(now, vec![(lost, lost)], failure);
        self.kill_lost();
    }

    /// Kills ranks of this process that the others take for lost.
    pub(super) fn kill_lost(&mut self) {
        let Some(start) = &self.start else { return };
        let own = start.first..start.first + self.me.ranks;
        let lost: Vec<u32> = self.dead.range(own).map(|rank| rank - start.first).collect();
        for rank in lost {
            if !self.ranks[rank as usize].ended {
                self.act(Action::KillRank(rank));
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
