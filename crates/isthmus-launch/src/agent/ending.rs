//! Failures, and how they end the job.

use super::*;

impl Agent {
    /// Something other than a rank failed at this process.
    pub(super) fn fail_own(&mut self, now: Duration, why: String) {
        let failure = Failure {
            part: self.me.part,
            rank: None,
            host: self.me.host.clone(),
            why,
            status: 1,
            kind: Kind::Gone,
        };
        self.fail(now, failure);
    }

    pub(super) fn fail_rank(&mut self, now: Duration, rank: u32, why: String, status: u8, kind: Kind) {
        let failure = self.failure_of_rank(rank, why, status, kind);
        self.fail(now, failure);
    }

    pub(super) fn failure_of_rank(&self, rank: u32, why: String, status: u8, kind: Kind) -> Failure {
        let first = self.first_rank();
        let host = self.me.host.clone();
        Failure { part: self.me.part, rank: Some(first + rank), host, why, status, kind }
    }

    /// Handles a failure here or below. Kills the ranks at once; the hub decides which failure is reported.
    pub(super) fn fail(&mut self, now: Duration, failure: Failure) {
        match &mut self.phase {
            Phase::Over => {}
            Phase::Failing { best, until } => {
                if failure.kind.explains(best.kind) {
                    // The worst kind: no later failure can explain it.
                    *until = now;
                    *best = failure.clone();
                    self.report(failure);
                }
            }
            Phase::Gathering | Phase::Running => {
                let patience = match (&self.hub, failure.kind) {
                    (None, _) => VERDICT,
                    (Some(_), Kind::Error | Kind::Abort) => GRACE_ERROR,
                    (Some(_), Kind::End | Kind::Killed) => GRACE,
                    (Some(_), Kind::Gone) => Duration::ZERO,
                };
                self.phase = Phase::Failing { best: failure.clone(), until: now + patience };
                self.act(Action::Kill);
                match (&self.hub, &self.up) {
                    (None, Some(_)) => self.report(failure),
                    // No explanation can follow if no ranks run, or if there is no other process.
                    (None, None) => self.end(failure),
                    (Some(_), _) if self.start.is_none() || patience.is_zero() || self.below().is_empty() => {
                        self.end(failure)
                    }
                    (Some(_), _) => {}
                }
            }
        }
    }

    pub(super) fn report(&mut self, failure: Failure) {
        if let Some(up) = &self.up {
            let link = up.link;
            self.act(Action::Send(link, Letter::End(failure)));
        }
    }

    /// Ends the job for this reason.
    pub(super) fn end(&mut self, failure: Failure) {
        if self.phase == Phase::Over {
            return;
        }
        let others_go_on = self.goes_on() && self.head.is_none();
        if !self.is_over() {
            self.act(Action::Kill);
        }
        self.phase = Phase::Over;
        for link in self.below() {
            self.act(Action::Send(link, Letter::End(failure.clone())));
        }
        // One process of a part is enough to say it: the head, or a process that has no connection.
        let is_alone = self.up.as_ref().is_none_or(|up| up.host.is_none());
        if self.head.is_some() || is_alone {
            let what = if others_go_on { "this part ends" } else { "the job ends" };
            self.act(Action::Tell(format!("{what}: {failure}")));
        }
        self.act(Action::Finish(failure.status));
    }

    /// A connection is gone.
    pub(crate) fn lost(&mut self, now: Duration, link: Link, why: &str) {
        if self.phase == Phase::Over {
            return;
        }
        if let Some(up) = self.up.take_if(|up| up.link == link) {
            return self.lost_up(now, up, why);
        }
        let Some((place, done, failure)) = self.take_below(link, why) else { return };
        if !self.goes_on() {
            return self.fail(now, failure);
        }
        let ranks = match place {
            // Its ranks had ended.
            _ if done.is_some() => Vec::new(),
            Subtree::Part(number) => self.ranks_of_part(number),
            Subtree::Member(index) => self.ranks_of_member(index),
        };
        self.status = losing::with_status(self.status, done.flatten());
        self.lose(now, ranks, failure);
    }

    /// The connection to the first process of this part, or to part 1, is gone.
    fn lost_up(&mut self, now: Duration, up: Up, why: &str) {
        let Some(host) = up.host else { return self.not_found(why.to_owned()) };
        while !self.speakers.is_empty() {
            self.pass_printed();
        }
        let role = if up.part == 1 && self.me.part != 1 {
            "part 1".to_owned()
        } else {
            "the first process of this part".to_owned()
        };
        let why = format!("is gone: its isthmus run, {role}, ended or is out of reach ({why})");
        let failure = Failure { part: up.part, rank: None, host, why, status: 1, kind: Kind::Gone };
        if self.inherit(now, &failure) {
            return;
        }
        match &self.phase {
            Phase::Failing { best, .. } if !failure.kind.explains(best.kind) => self.end(best.clone()),
            _ => self.end(failure),
        }
    }

    /// Removes the part or process at the other end of `link`. Returns which one it was, its ranks' status if it had
    /// said that all of them had ended, and the failure that its loss is.
    fn take_below(&mut self, link: Link, why: &str) -> Option<(Subtree, Option<Option<u8>>, Failure)> {
        let failure = |part, host, why| Failure { part, rank: None, host, why, status: 1, kind: Kind::Gone };
        let mut gone = None;
        if let Some(hub) = &mut self.hub {
            hub.asking.retain(|ask| ask.0 != link);
            for (number, place) in (1..).zip(&mut hub.parts) {
                if let Some(part) = place.take_if(|part| part.link == Some(link)) {
                    let done = part.done.then_some(part.status);
                    let why = format!("is gone: its isthmus run ended or is out of reach ({why})");
                    gone = Some((Subtree::Part(number), done, failure(number, part.host, why)));
                }
            }
        }
        if let Some(head) = &mut self.head {
            for (index, place) in head.members.iter_mut().enumerate() {
                if let Some(member) = place.take_if(|member| member.link == Some(link)) {
                    let done = member.done.then_some(member.status);
                    let why = format!(
                        "lost a process: isthmus run number {index} ended or is out of reach ({why})"
                    );
                    gone = Some((Subtree::Member(index), done, failure(self.me.part, member.host, why)));
                }
            }
        }
        gone
    }

    /// This process received a signal.
    pub(crate) fn signalled(&mut self, now: Duration, number: i32) {
        let status = Ended::Signal(number).status();
        let why = format!("was told to end: its isthmus run received {}", signal_name(number));
        self.end_process(now, why, status);
    }

    /// The PMIx server of the ranks here has ended. They would wait in their next fence for ever, and hear of no loss.
    pub(crate) fn pmix_ended(&mut self, now: Duration, why: &str) {
        if !self.is_over() && self.ranks.iter().any(|rank| !rank.ended) {
            self.end_process(now, format!("has lost its PMIx server: {why}"), 1);
        }
    }

    fn end_process(&mut self, now: Duration, why: String, status: u8) {
        let failure = Failure {
            part: self.me.part,
            rank: None,
            host: self.me.host.clone(),
            why,
            status,
            kind: Kind::Gone,
        };
        if !self.leave(&failure) {
            self.fail(now, failure);
        }
    }
}

/// The process or part to which a connection led.
enum Subtree {
    Part(u32),
    /// Index in the part.
    Member(usize),
}
