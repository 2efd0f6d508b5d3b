//! Fences: what ranks have put goes up the tree once, and the data of all ranks come down once.

use super::*;
use crate::pmix;

/// Start of the keys under which processes with a PMIx server put what their ranks give to a fence. The number of the
/// first rank follows.
const PMIX: &str = "isthmus-pmix-";

impl Agent {
    /// Keeps what ranks below have put, until the fence.
    pub(super) fn take_in(&mut self, now: Duration, entries: Vec<(String, String)>) {
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.store_bytes += bytes;
        if self.store_bytes > STORE_MAX {
            return self
                .fail_own(now, format!("has more than {STORE_MAX} bytes in the ranks' key-value space"));
        }
        self.fresh.extend(entries);
    }

    /// A rank of this process has connected to the PMIx server, or needs it no more.
    pub(crate) fn pmix_uses(&mut self, now: Duration, rank: u32, uses: bool) {
        let Some(own) = self.ranks.get_mut(rank as usize) else { return };
        (own.initialised, own.finalised) = (true, !uses);
        self.check_absent(now);
    }

    /// All ranks of this process wait in a fence of PMIx, and gave these bytes.
    pub(crate) fn pmix_fence(&mut self, now: Duration, bytes: &[u8]) {
        let Some(start) = &self.start else { return };
        let key = format!("{PMIX}{}", start.first);
        self.is_pmix_waiting = true;
        self.take_in(now, vec![(key, pmix::to_text(bytes))]);
        for rank in self.ranks.iter_mut().filter(|rank| !rank.ended) {
            rank.fence = Some(None);
        }
        self.check_fence(now);
    }

    /// Goes on if all ranks below wait in a fence. Fails if one of them has ended, since the others would wait forever.
    pub(super) fn check_fence(&mut self, now: Duration) {
        if self.phase != Phase::Running || self.is_fence_sent {
            return;
        }
        // Ranks that have ended hold up nobody then.
        let goes_on = self.goes_on();
        let waiting = self.ranks.iter().filter(|rank| rank.fence.is_some()).count();
        let first = self.first_rank();
        let mut stuck = None;
        if waiting > 0
            && !goes_on
            && let Some(ended) = self.ranks.iter().position(|rank| rank.ended)
        {
            stuck = Some(format!("rank {} has ended", first as usize + ended));
        }
        let ended = self.ranks.iter().filter(|rank| goes_on && rank.ended).count();
        let all_here = waiting > 0 && waiting + ended == self.ranks.len();
        let Some(head) = &mut self.head else {
            if let Some(why) = stuck {
                self.fail_stuck(now, &why);
            } else if all_here {
                self.send_fence();
            }
            return;
        };
        for member in head.members.iter_mut().flatten().filter(|member| member.link.is_none()) {
            member.fenced = all_here;
        }
        let members = || head.members.iter().flatten();
        if members().any(|member| member.fenced)
            && !goes_on
            && let Some(done) = members().find(|member| member.done)
        {
            stuck = Some(format!("all ranks on host {} have ended", done.host));
        }
        let all_members = members().any(|member| member.fenced)
            && members().all(|member| member.fenced || (goes_on && member.done));
        if let Some(hub) = &mut self.hub {
            if let Some(own) = hub.parts.iter_mut().flatten().find(|part| part.link.is_none()) {
                own.fenced = all_members;
            }
            let parts = || {
                (1..).zip(&hub.parts).filter_map(|(number, part)| part.as_ref().map(|part| (number, part)))
            };
            if parts().any(|(_, part)| part.fenced)
                && !goes_on
                && let Some((number, _)) = parts().find(|(_, part)| part.done)
            {
                let number: u32 = number;
                stuck = Some(format!("all ranks of part {number} have ended"));
            }
            let all_parts = parts().any(|(_, part)| part.fenced)
                && parts().all(|(_, part)| part.fenced || (goes_on && part.done));
            if stuck.is_none() && all_parts {
                for part in hub.parts.iter_mut().flatten() {
                    part.fenced = false;
                }
                let entries = std::mem::take(&mut self.fresh);
                for link in self.heads() {
                    self.send_fence_to(link, &entries);
                }
                return self.pass_fence(entries);
            }
        } else if all_members && stuck.is_none() {
            return self.send_fence();
        }
        if let Some(why) = stuck {
            self.fail_stuck(now, &why);
        }
    }

    pub(super) fn fail_stuck(&mut self, now: Duration, why: &str) {
        self.fail_own(
            now,
            format!("cannot go on: ranks wait for all others in MPI_Init or MPI_Finalize, and {why}"),
        );
    }

    /// Tells the process above that all ranks below wait.
    pub(super) fn send_fence(&mut self) {
        for member in self.head.iter_mut().flat_map(|head| &mut head.members).flatten() {
            member.fenced = false;
        }
        let Some(up) = self.up.as_ref().map(|up| up.link) else { return };
        let entries = std::mem::take(&mut self.fresh);
        self.send_fence_to(up, &entries);
        self.is_fence_sent = true;
        if self.me.on_loss == OnLoss::Continue {
            self.sent = entries;
        }
    }

    pub(super) fn send_fence_to(&mut self, link: Link, entries: &[(String, String)]) {
        for letter in puts(entries.to_vec()).into_iter().chain([Letter::Fence]) {
            self.act(Action::Send(link, letter));
        }
    }

    /// All ranks of the world wait in the fence: stores what they have put, and lets them go on.
    pub(super) fn pass_fence(&mut self, entries: Vec<(String, String)>) {
        self.is_fence_sent = false;
        self.sent.clear();
        for member in self.head.iter_mut().flat_map(|head| &mut head.members).flatten() {
            member.fenced = false;
        }
        for link in self.members() {
            self.send_fence_to(link, &entries);
        }
        if std::mem::take(&mut self.is_pmix_waiting) {
            let given = entries.iter().filter(|(key, _)| key.starts_with(PMIX));
            let bytes = given.flat_map(|(_, text)| pmix::from_text(text)).collect();
            self.act(Action::Pmix(bytes));
            self.ranks.iter_mut().for_each(|rank| rank.fence = None);
        }
        self.store.extend(entries);
        for rank in 0..self.ranks.len() {
            if let Some(thread) = self.ranks[rank].fence.take() {
                self.act(Action::Reply { rank: rank as u32, reply: Reply::Fence, thread });
            }
        }
    }
}
