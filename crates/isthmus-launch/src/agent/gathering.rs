//! How the processes find each other, and how the world starts.

use super::*;

impl Agent {
    pub(super) fn hello(&self, role: Role) -> Hello {
        Hello {
            version: VERSION,
            job: self.me.job.clone(),
            part: self.me.part,
            parts: self.me.parts,
            host: self.me.host.clone(),
            on_loss: self.me.on_loss,
            role,
        }
    }

    /// The search for the hub gave this address.
    pub(crate) fn found(&mut self, uri: String) {
        if !self.is_over() && self.up.is_none() {
            self.connect(uri, 1);
        }
    }

    pub(super) fn connect(&mut self, uri: String, part: u32) {
        let role = match self.head {
            Some(_) => Role::Head { uri: self.me.uri.clone() },
            None => Role::Member {
                index: self.me.index,
                count: self.me.count,
                ranks: self.me.ranks,
                node: self.me.node.clone(),
            },
        };
        let hello = self.hello(role);
        self.act(Action::Connect { uri, part, hello });
    }

    /// The hub was not found or not reached: look again.
    pub(crate) fn not_found(&mut self, why: String) {
        if self.is_over() {
            return;
        }
        self.trouble = why;
        self.act(Action::Find { after: AGAIN });
    }

    /// The other side refuses for a reason that does not pass.
    pub(crate) fn refused(&mut self, now: Duration, why: String) {
        self.fail_own(now, format!("cannot join job {}: {why}", self.me.job));
    }

    pub(crate) fn connected(&mut self, link: Link, part: u32) {
        match self.is_over() {
            true => self.act(Action::Drop(link)),
            false => self.up = Some(Up { link, part, host: None }),
        }
    }

    /// Whether a process with this hello may connect. The error is the text that it gets.
    pub(crate) fn admits(&self, hello: &Hello) -> Result<(), String> {
        let me = &self.me;
        if hello.version != VERSION {
            return Err("the two sides have different releases of Isthmus; install the same".to_owned());
        }
        if hello.job != me.job {
            return Err(format!("this is job {}, not {}", me.job, hello.job));
        }
        if hello.parts != me.parts || hello.part == 0 || hello.part > me.parts {
            return Err(format!(
                "part 1 was started with --part 1/{}, this one with {}/{}",
                me.parts, hello.part, hello.parts
            ));
        }
        if hello.on_loss != me.on_loss {
            return Err("one of the two was started with --on-loss continue, the other without".to_owned());
        }
        if matches!(self.phase, Phase::Running) {
            return Err("the job runs already".to_owned());
        }
        match (&hello.role, &self.hub, &self.head) {
            (Role::Head { .. }, Some(hub), _) => match &hub.parts[hello.part as usize - 1] {
                Some(other) => Err(format!("part {} is there already, on host {}", hello.part, other.host)),
                None => Ok(()),
            },
            (Role::Member { index, count, ranks, .. }, _, Some(head)) if hello.part == me.part => {
                let others: u32 = head.members.iter().flatten().map(|member| member.ranks).sum();
                if *ranks == 0 || *ranks > RANKS_MAX - others {
                    return Err(format!("part {} would have more than {RANKS_MAX} ranks", me.part));
                }
                if *count != me.count {
                    return Err(format!(
                        "the first process of part {} is one of {}, this one of {count}",
                        me.part, me.count
                    ));
                }
                match head.members.get(*index as usize) {
                    Some(None) => Ok(()),
                    _ => Err(format!("process {index} of part {} is there already", me.part)),
                }
            }
            (Role::Member { .. }, Some(_), _) => Ok(()),
            _ => Err("this process is neither the first of the job nor that of its part".to_owned()),
        }
    }

    /// A process that was admitted is connected.
    pub(crate) fn accepted(&mut self, link: Link, hello: Hello) {
        // Another process may have taken its place since it was admitted.
        if self.is_over() || self.admits(&hello).is_err() {
            return self.act(Action::Drop(link));
        }
        match hello.role {
            Role::Head { uri } => {
                let Some(hub) = &mut self.hub else { return };
                let part = Part {
                    link: Some(link),
                    uri: uri.clone(),
                    host: hello.host,
                    nodes: None,
                    fenced: false,
                    done: false,
                    status: None,
                };
                hub.parts[hello.part as usize - 1] = Some(part);
                let (known, asking) =
                    std::mem::take(&mut hub.asking).into_iter().partition(|ask| ask.1 == hello.part);
                hub.asking = asking;
                let known: Vec<(Link, u32)> = known;
                self.welcome(link);
                for (asker, _) in known {
                    self.act(Action::Send(asker, Letter::Head { uri: uri.clone() }));
                }
            }
            Role::Member { index, ranks, node, .. } if hello.part == self.me.part => {
                let Some(head) = &mut self.head else { return };
                let member = Member {
                    link: Some(link),
                    ranks,
                    node,
                    host: hello.host,
                    fenced: false,
                    done: false,
                    status: None,
                };
                head.members[index as usize] = Some(member);
                self.welcome(link);
                self.check_gathered();
            }
            Role::Member { .. } => {
                let Some(hub) = &mut self.hub else { return };
                match &hub.parts[hello.part as usize - 1] {
                    Some(part) => {
                        let uri = part.uri.clone();
                        self.act(Action::Send(link, Letter::Head { uri }));
                    }
                    None => hub.asking.push((link, hello.part)),
                }
            }
        }
    }

    pub(super) fn welcome(&mut self, link: Link) {
        let host = self.me.host.clone();
        self.act(Action::Send(link, Letter::Welcome { host }));
    }

    /// Goes on if all processes of this part are there.
    pub(super) fn check_gathered(&mut self) {
        let Some(head) = &mut self.head else { return };
        if head.is_ready || head.members.iter().any(Option::is_none) {
            return;
        }
        let ranks = |member: &Member| std::iter::repeat_n(member.node.clone(), member.ranks as usize);
        let names: Vec<String> = head.members.iter().flatten().flat_map(ranks).collect();
        let nodes = nodes::numbered(names.iter().map(String::as_str));
        match (&mut self.hub, &self.up) {
            (Some(hub), _) => {
                if let Some(own) = &mut hub.parts[0] {
                    own.nodes = Some(nodes);
                }
                head.is_ready = true;
                self.check_world();
            }
            (None, Some(up)) if up.host.is_some() => {
                head.is_ready = true;
                let up = up.link;
                self.act(Action::Send(up, Letter::Ready { nodes }));
            }
            _ => {}
        }
    }

    /// Starts the world if all parts are complete.
    pub(super) fn check_world(&mut self) {
        let Some(hub) = &self.hub else { return };
        let parts: Option<Vec<&Vec<u32>>> =
            hub.parts.iter().map(|part| part.as_ref().and_then(|part| part.nodes.as_ref())).collect();
        let Some(parts) = parts else { return };
        let sizes: Vec<u32> = parts.iter().map(|nodes| nodes.len() as u32).collect();
        // Nodes of different parts are different, even if their hosts have the same names.
        let mut all = Vec::new();
        for nodes in parts {
            let first = all.iter().max().map_or(0, |last| last + 1);
            all.extend(nodes.iter().map(|node| first + node));
        }
        let space = format!("isthmus-{}-{:016x}", self.me.job, self.me.nonce);
        let world = World { space, sizes, mapping: nodes::mapping(&all) };
        if self.has_told_wait {
            let (ranks, parts) = (all.len(), self.me.parts);
            self.act(Action::Tell(format!("all {parts} parts are there: {ranks} ranks")));
        }
        for link in self.heads() {
            self.act(Action::Send(link, Letter::World(world.clone())));
        }
        self.begin(&world);
    }

    /// Connections to the heads of other parts.
    pub(super) fn heads(&self) -> Vec<Link> {
        let parts = self.hub.iter().flat_map(|hub| &hub.parts).flatten();
        parts.filter_map(|part| part.link).collect()
    }

    /// Connections to the members of this part.
    pub(super) fn members(&self) -> Vec<Link> {
        let members = self.head.iter().flat_map(|head| &head.members).flatten();
        members.filter_map(|member| member.link).collect()
    }

    /// All connections below this process.
    pub(super) fn below(&self) -> Vec<Link> {
        let asking = self.hub.iter().flat_map(|hub| hub.asking.iter().map(|ask| ask.0));
        self.heads().into_iter().chain(self.members()).chain(asking).collect()
    }

    /// Whether the world is valid, and has this part with its count of ranks.
    pub(super) fn fits(&self, world: &World) -> bool {
        let own = self.head.iter().flat_map(|head| &head.members).flatten().map(|member| member.ranks).sum();
        world.sizes.len() == self.me.parts as usize
            && world.sizes.iter().all(|size| (1..=RANKS_MAX).contains(size))
            && world.sizes.get(self.me.part as usize - 1) == Some(&own)
    }

    /// As a head: tells all processes of this part to start their ranks.
    pub(super) fn begin(&mut self, world: &World) {
        let Some(head) = &mut self.head else { return };
        head.counts = head.members.iter().flatten().map(|member| member.ranks).collect();
        let before = world.sizes.iter().take(self.me.part as usize - 1);
        let mut first: u32 = before.sum();
        let members: Vec<&Member> = head.members.iter().flatten().collect();
        let ranks = |member: &&Member| std::iter::repeat_n(member.node.clone(), member.ranks as usize);
        let names: Vec<String> = members.iter().flat_map(ranks).collect();
        let local = nodes::local(&nodes::numbered(names.iter().map(String::as_str)));
        let (mut at, mut starts) = (0, Vec::new());
        for member in members {
            let end = at + member.ranks as usize;
            let start = Start {
                space: world.space.clone(),
                first,
                size: world.sizes.iter().sum(),
                sizes: world.sizes.clone(),
                appnum: self.me.part - 1,
                mapping: world.mapping.clone(),
                local: local[at..end].to_vec(),
            };
            starts.push((member.link, start));
            first += member.ranks;
            at = end;
        }
        for (link, start) in starts {
            match link {
                Some(link) => self.act(Action::Send(link, Letter::Start(start))),
                None => self.launch(start),
            }
        }
    }

    pub(super) fn launch(&mut self, start: Start) {
        self.phase = Phase::Running;
        self.store.insert("PMI_process_mapping".to_owned(), start.mapping.clone());
        self.start = Some(start.clone());
        self.act(Action::Launch(start));
    }
}
