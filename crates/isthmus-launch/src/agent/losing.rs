//! Losses that the job outlives, by `--on-loss continue`.
//!
//! A loss travels up the tree to the hub, which tells all processes. Each process answers the ranks' question
//! `PMI_dead_processes` itself, or tells its PMIx server, which sends the ranks an event. Ranks that have ended do not
//! hold up a fence, nor the end of the job.
//!
//! A process that loses its head ends. If part 1 is lost and there is one other part, the head of that part becomes the
//! hub. With more parts the job ends: nothing connects them.

use super::*;

/// Ranks of the world: first and last of each run.
type Ranks = Vec<(u32, u32)>;

/// Key by which Hydra, and so MPICH, knows the ranks that have failed.
pub(super) const DEAD: &str = "PMI_dead_processes";

impl Agent {
    /// The first rank of this process in the world; 0 before the job has started.
    pub(super) fn first_rank(&self) -> u32 {
        self.start.as_ref().map_or(0, |start| start.first)
    }

    /// Whether the job outlives a loss that happens now.
    pub(super) fn goes_on(&self) -> bool {
        self.me.on_loss == OnLoss::Continue && self.phase == Phase::Running
    }

    /// A rank of this process failed.
    pub(super) fn lose_rank(&mut self, now: Duration, rank: u32, why: String, status: u8, kind: Kind) {
        let failure = self.failure_of_rank(rank, why, status, kind);
        let world = failure.rank.unwrap_or_default();
        self.lose(now, vec![(world, world)], failure);
    }

    /// Ranks of this process, or of a process below, are lost.
    pub(super) fn lose(&mut self, now: Duration, ranks: Ranks, failure: Failure) {
        if self.bury(&ranks, &failure) {
            match (&self.hub, &self.up) {
                (None, Some(up)) => {
                    let link = up.link;
                    self.act(Action::Send(link, Letter::Lost { ranks, failure }));
                }
                _ => self.spread_loss(ranks, failure),
            }
        }
        self.check_fence(now);
        self.check_done();
    }

    /// The hub tells of a loss.
    pub(super) fn take_loss(&mut self, now: Duration, ranks: Ranks, failure: Failure) {
        if self.bury(&ranks, &failure) {
            self.kill_lost(&ranks);
        }
        self.spread_loss(ranks, failure);
        self.check_fence(now);
        self.check_done();
    }

    /// Tells the user, and all processes below.
    fn spread_loss(&mut self, ranks: Ranks, failure: Failure) {
        if self.head.is_some() {
            let rest = match failure.rank {
                Some(_) => "it".to_owned(),
                None => format!("ranks {}", text_of(ranks.iter().copied())),
            };
            self.act(Action::Tell(format!("{failure}; the job goes on without {rest}")));
        }
        for link in self.heads().into_iter().chain(self.members()) {
            self.act(Action::Send(link, Letter::Lost { ranks: ranks.clone(), failure: failure.clone() }));
        }
    }

    /// Notes that ranks are lost. Whether that was unknown.
    fn bury(&mut self, ranks: &[(u32, u32)], failure: &Failure) -> bool {
        let Some(start) = &self.start else { return false };
        let known = self.dead.len();
        // A broken part may name ranks that are none.
        let ranks: Ranks =
            ranks.iter().copied().filter(|(first, last)| first <= last && *last < start.size).collect();
        for (first, last) in &ranks {
            self.dead.extend(*first..=*last);
        }
        let is_news = self.dead.len() > known;
        if is_news {
            self.first_loss.get_or_insert_with(|| failure.clone());
            self.act(Action::PmixLost(ranks));
        }
        is_news
    }

    /// The value of [`DEAD`]; `None` while no rank is lost.
    pub(super) fn dead(&self) -> Option<String> {
        let mut runs: Ranks = Vec::new();
        for rank in &self.dead {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *rank => *last = *rank,
                _ => runs.push((*rank, *rank)),
            }
        }
        // A longer text is cut: MPICH takes no longer value.
        while text_of(runs.iter().copied()).len() > VALUE_MAX {
            runs.pop();
        }
        (!runs.is_empty()).then(|| text_of(runs.into_iter()))
    }

    /// The ranks of a part, or none before the start.
    pub(super) fn ranks_of_part(&self, part: u32) -> Ranks {
        let Some(start) = &self.start else { return Vec::new() };
        let first: u32 = start.sizes.iter().take(part as usize - 1).sum();
        let count = start.sizes.get(part as usize - 1).copied().unwrap_or_default();
        run(first, count)
    }

    /// The ranks of a process of this part, as its head knows them.
    pub(super) fn ranks_of_member(&self, index: usize) -> Ranks {
        let Some(head) = &self.head else { return Vec::new() };
        let first: u32 = self.ranks_of_part(self.me.part).first().map_or(0, |run| run.0);
        let before: u32 = head.counts.iter().take(index).sum();
        run(first + before, head.counts.get(index).copied().unwrap_or_default())
    }

    /// This process was told to end, and the rest of the job goes on. Whether it does.
    pub(super) fn leave(&mut self, failure: &Failure) -> bool {
        if !self.goes_on() || (self.hub.is_some() && !self.has_heir()) {
            return false;
        }
        let ranks = match (&self.head, &self.start) {
            (None, Some(start)) => run(start.first, self.me.ranks),
            _ => self.ranks_of_part(self.me.part),
        };
        let towards =
            if self.hub.is_some() { self.heads() } else { self.up.iter().map(|up| up.link).collect() };
        for link in towards {
            self.act(Action::Send(link, Letter::Lost { ranks: ranks.clone(), failure: failure.clone() }));
        }
        for link in self.members() {
            self.act(Action::Send(link, Letter::End(failure.clone())));
        }
        if self.head.is_some() {
            self.act(Action::Tell(format!("this part ends: {failure}")));
        }
        self.act(Action::Kill);
        self.phase = Phase::Over;
        self.act(Action::Finish(failure.status));
        true
    }

    /// Whether exactly one head remains when the hub is lost.
    fn has_heir(&self) -> bool {
        self.me.parts == 2 && self.heads().len() == 1
    }

    /// The hub is lost. Whether this process takes its place, as the head of the only other part.
    pub(super) fn inherit(&mut self, now: Duration, failure: &Failure) -> bool {
        if !self.goes_on() || self.me.parts != 2 || self.me.part == 1 || self.head.is_none() {
            return false;
        }
        let own = Part {
            link: None,
            uri: self.me.uri.clone(),
            host: self.me.host.clone(),
            nodes: None,
            fenced: false,
            done: false,
            status: None,
        };
        self.hub = Some(Hub {
            parts: vec![None, Some(own)],
            asking: Vec::new(),
            names: HashMap::new(),
            pairs: reach::Pairs::default(),
        });
        while !self.askers.is_empty() {
            self.pass_answer(None);
        }
        let sent = std::mem::take(&mut self.sent);
        self.fresh.splice(0..0, sent);
        if self.is_fence_sent {
            let entries = std::mem::take(&mut self.fresh);
            self.pass_fence(entries);
        }
        self.lose(now, self.ranks_of_part(1), failure.clone());
        self.inherit_reports(now);
        true
    }
}

fn run(first: u32, count: u32) -> Ranks {
    if count == 0 { Vec::new() } else { vec![(first, first + count - 1)] }
}

/// Such as `0,2-5`.
fn text_of(ranks: impl Iterator<Item = (u32, u32)>) -> String {
    let runs =
        ranks.map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    runs.collect::<Vec<_>>().join(",")
}

/// Adds the exit status of further ranks: the first that is not 0 counts. `None`: no rank ended by itself.
pub(super) fn with_status(status: Option<u8>, other: Option<u8>) -> Option<u8> {
    match (status, other) {
        (None | Some(0), Some(_)) => other,
        _ => status,
    }
}
