//! Answers the PMI requests of this process's ranks, and handles their ends.

use super::*;

impl Agent {
    /// A rank of this process asks something.
    pub(crate) fn pmi(&mut self, now: Duration, rank: u32, asked: Asked) {
        let Some(start) = &self.start else { return };
        let Asked { request, thread } = asked;
        let own = &mut self.ranks[rank as usize];
        let reply = match request {
            Request::Init => {
                own.initialised = true;
                own.finalised = false;
                self.act(Action::Reply { rank, reply: Reply::Init, thread });
                return self.check_absent(now);
            }
            Request::FullInit => {
                Reply::FullInit { rank: start.first + rank, size: start.size, appnum: start.appnum }
            }
            Request::Maxes => Reply::Maxes,
            Request::UniverseSize => Reply::UniverseSize(start.size),
            Request::Appnum => Reply::Appnum(start.appnum),
            Request::SpaceName => Reply::SpaceName(start.space.clone()),
            Request::Put { key, value } => Reply::Put(self.put(key, value)),
            Request::Get { key } if key == losing::DEAD => Reply::Get(self.dead()),
            Request::Get { key } => Reply::Get(self.store.get(&key).cloned()),
            Request::GetJob { key } if key == "universeSize" => Reply::GetJob(Some(start.size.to_string())),
            Request::GetJob { key } if key == losing::DEAD => Reply::GetJob(self.dead()),
            Request::GetJob { key } => Reply::GetJob(self.store.get(&key).cloned()),
            Request::PutNode { key, value } => return self.put_node(rank, key, value, thread),
            Request::GetNode { key, wait } => match self.node_store.get(&key) {
                None if wait => {
                    own.wants.push((key, thread));
                    return;
                }
                value => Reply::GetNode(value.cloned()),
            },
            Request::Fence => {
                own.fence = Some(thread);
                return self.check_fence(now);
            }
            Request::Finalize => {
                own.finalised = true;
                Reply::Finalize
            }
            Request::Abort { code, message } => return self.abort(now, rank, code, &message),
            Request::Publish { name, port } => {
                let asker = Asker::Rank { rank, thread, about: About::Publish };
                return self.ask(Question::Publish { name, port }, asker);
            }
            Request::Unpublish { name } => {
                return self.ask(
                    Question::Unpublish { name },
                    Asker::Rank { rank, thread, about: About::Unpublish },
                );
            }
            Request::LookUp { name } => {
                return self
                    .ask(Question::LookUp { name }, Asker::Rank { rank, thread, about: About::LookUp });
            }
            Request::Spawn => {
                if !std::mem::replace(&mut self.has_told_spawn, true) {
                    let text = "isthmus run starts no further ranks, so MPI_Comm_spawn fails; start them as another part";
                    self.act(Action::Tell(text.to_owned()));
                }
                Reply::NoSpawn
            }
            Request::Other(command) => Reply::Unknown(command),
        };
        self.act(Action::Reply { rank, reply, thread });
    }

    /// Stores a value for all ranks of the job, if there is room for it. The next fence distributes it.
    fn put(&mut self, key: String, value: String) -> bool {
        let fits = (1..=KEY_MAX).contains(&key.len()) && value.len() <= VALUE_MAX;
        let fits = fits && self.store_bytes + key.len() + value.len() <= STORE_MAX;
        if fits {
            self.store_bytes += key.len() + value.len();
            self.store.insert(key.clone(), value.clone());
            self.fresh.push((key, value));
        }
        fits
    }

    /// A rank called `MPI_Abort`, or its MPI ended the job. MPICH's own codes lie outside the range of exit statuses.
    fn abort(&mut self, now: Duration, rank: u32, code: i32, message: &str) {
        let kind = if (0..=255).contains(&code) { Kind::End } else { Kind::Error };
        self.abort_as(kind, now, rank, code, message);
    }

    /// The same by PMIx. Open MPI's own codes are the classes of its errors, which a program may choose too. So a later
    /// loss may explain any code.
    pub(crate) fn pmix_aborts(&mut self, now: Duration, rank: u32, code: i32, message: &str) {
        self.abort_as(Kind::Abort, now, rank, code, message);
    }

    fn abort_as(&mut self, kind: Kind, now: Duration, rank: u32, code: i32, message: &str) {
        let said =
            if message.is_empty() || message == "abort" { String::new() } else { format!(": {message}") };
        // A process's exit status is the low byte. A status of 0 would mean success.
        let status = match code as u8 {
            0 => 1,
            status => status,
        };
        self.fail_rank(now, rank, format!("called MPI_Abort with {code}{said}"), status, kind);
    }

    /// Stores a value for the ranks of this process, which are on one node.
    pub(super) fn put_node(&mut self, rank: u32, key: String, value: String, thread: Option<String>) {
        let fits = key.len() <= KEY_MAX && value.len() <= VALUE_MAX && self.node_store.len() < NAMES_MAX;
        self.act(Action::Reply { rank, reply: Reply::PutNode(fits), thread });
        if !fits {
            return;
        }
        for other in 0..self.ranks.len() {
            let wants = std::mem::take(&mut self.ranks[other].wants);
            let (now, later): (Vec<_>, Vec<_>) = wants.into_iter().partition(|want| want.0 == key);
            self.ranks[other].wants = later;
            for (_, thread) in now {
                let reply = Reply::GetNode(Some(value.clone()));
                self.act(Action::Reply { rank: other as u32, reply, thread });
            }
        }
        self.node_store.insert(key, value);
    }

    pub(crate) fn not_started(&mut self, now: Duration, rank: u32, why: &str) {
        self.fail_rank(now, rank, format!("could not be started: {why}"), 126, Kind::End);
    }

    /// A rank sent bytes that cannot be parsed.
    pub(crate) fn nonsense(&mut self, now: Duration, rank: u32, why: &str) {
        self.fail_rank(now, rank, format!("does not speak PMI: {why}"), 1, Kind::End);
    }

    pub(crate) fn rank_ended(&mut self, now: Duration, rank: u32, how: Ended) {
        let own = &mut self.ranks[rank as usize];
        own.ended = true;
        // It waits for nothing any more, and does not count twice.
        own.fence = None;
        let silent = own.initialised && !own.finalised;
        if self.is_over() {
            return;
        }
        let status = how.status();
        let kind = how.kind();
        let failure = match status {
            0 => silent.then(|| ("ended without MPI_Finalize".to_owned(), 1)),
            _ => Some((how.to_string(), status)),
        };
        if self.goes_on() {
            // A rank that ends by itself has a say in the job's exit status. One that is killed has none.
            if kind == Kind::Error {
                self.status = losing::with_status(self.status, Some(status));
            }
            if let Some((why, status)) = failure {
                self.lose_rank(now, rank, why, status, kind);
            }
        } else {
            if let Some((why, status)) = failure {
                return self.fail_rank(now, rank, why, status, kind);
            }
            self.status = Some(0);
            self.check_absent(now);
        }
        if self.is_over() {
            return;
        }
        if self.ranks.iter().all(|rank| rank.ended) {
            if let Some(own) =
                self.head.iter_mut().flat_map(|head| &mut head.members).flatten().find(|m| m.link.is_none())
            {
                own.done = true;
            }
            match (&self.head, &self.up) {
                (None, Some(up)) => {
                    let up = up.link;
                    self.act(Action::Send(up, Letter::Done(self.status)));
                }
                _ => self.check_done(),
            }
        }
        self.check_fence(now);
    }

    /// Fails if a rank has ended without MPI_Init while others call it: they would wait for it forever.
    pub(super) fn check_absent(&mut self, now: Duration) {
        let absent = self.ranks.iter().position(|rank| rank.ended && !rank.initialised);
        if let Some(rank) = absent.filter(|_| self.ranks.iter().any(|rank| rank.initialised)) {
            self.fail_rank(
                now,
                rank as u32,
                "ended without MPI_Init, which others call".to_owned(),
                1,
                Kind::End,
            );
        }
    }

    /// Goes on if all ranks below have ended well.
    pub(super) fn check_done(&mut self) {
        let Some(head) = &self.head else { return };
        if !head.members.iter().flatten().all(|member| member.done) {
            return;
        }
        let members = head.members.iter().flatten().map(|member| member.status);
        let status = members.fold(self.status, losing::with_status);
        match (&mut self.hub, &self.up) {
            (Some(hub), _) => {
                if let Some(own) = hub.parts.iter_mut().flatten().find(|part| part.link.is_none()) {
                    own.done = true;
                }
                if hub.parts.iter().flatten().all(|part| part.done) {
                    let parts = hub.parts.iter().flatten().map(|part| part.status);
                    let status = parts.fold(status, losing::with_status);
                    // Where no rank ended by itself, the first loss gives the status.
                    let lost = self.first_loss.as_ref().map_or(1, |failure| failure.status);
                    let status = status.unwrap_or(lost);
                    for link in self.heads() {
                        self.act(Action::Send(link, Letter::Done(Some(status))));
                    }
                    self.finish(status);
                }
            }
            (None, Some(up)) => {
                let up = up.link;
                self.act(Action::Send(up, Letter::Done(status)));
            }
            (None, None) => {}
        }
    }

    /// All ranks of the world have ended: with this exit status.
    pub(super) fn finish(&mut self, status: u8) {
        for link in self.members() {
            self.act(Action::Send(link, Letter::Done(Some(status))));
        }
        self.phase = Phase::Over;
        self.act(Action::Finish(status));
    }
}
