//! One process of `isthmus run`: everything that it decides, without I/O and without a clock.
//!
//! The processes of a job form a tree. The first process of each part is the *head* of the part. The others
//! of the part, its *members*, connect to it. The head of part 1 is the *hub*: the other heads connect to it.
//!
//! ```text
//!        part 1                      part 2
//!   hub = head ─────────────────────── head
//!    │      │                         │    │
//!  member  member                  member  member
//!    │      │                         │    │
//!  ranks  ranks                     ranks ranks
//! ```
//!
//! Everybody finds the hub by what `--at` says. The hub tells a member of another part where its head is.
//! When all members of all parts are there, each process starts its ranks. What ranks put before a fence goes
//! up the tree once, and comes down once with that of all others. So a fence costs one round trip between the
//! parts, however many ranks there are.
//!
//! The first failure that reaches the hub ends the job. The hub waits up to [`GRACE_ERROR`] for a better one: when a
//! process dies, ranks elsewhere may report the loss of their peer sooner than the tree reports its cause.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::failure::{Ended, Failure, Kind, signal_name};
use crate::letter::{
    Hello, JOB_MAX, Letter, PARTS_MAX, Question, RANKS_MAX, Role, Start, VERSION, World, puts,
};
use crate::nodes;
use crate::pmi::{Asked, KEY_MAX, Reply, Request, VALUE_MAX};

/// How long the hub waits for what explains that a rank was killed, such as SIGTERM for its `isthmus run`.
const GRACE: Duration = Duration::from_millis(500);
/// How long the hub waits for what explains an error of a rank. A rank that talks to a process that is gone
/// may notice it a second before the tree does, which tries for 2.3 s to reach it.
const GRACE_ERROR: Duration = Duration::from_millis(2000);
/// How long others wait for the hub's word after a failure of their own: [`GRACE_ERROR`], and a round trip.
const VERDICT: Duration = Duration::from_millis(2800);
/// How soon to look again for a hub that is not there: half of it is lost on average when it comes.
const AGAIN: Duration = Duration::from_millis(200);
/// When to say for what is waited.
const NOTICE: Duration = Duration::from_secs(2);
/// Most bytes that the key-value space may have. A world of 100,000 ranks has some 50 MB.
const STORE_MAX: usize = 1 << 30;
/// Most names of ports that a job may publish at once.
const NAMES_MAX: usize = 4096;

/// A connection to another process, as the shell numbers them.
pub(crate) type Link = u64;

/// What a process is told at its start.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) job: String,
    /// From 1.
    pub(crate) part: u32,
    pub(crate) parts: u32,
    /// Its number among the processes of its part, from 0.
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// Ranks that it starts.
    pub(crate) ranks: u32,
    pub(crate) host: String,
    /// Names its node among those of its part.
    pub(crate) node: String,
    /// Its own address.
    pub(crate) uri: String,
    /// What `--at` says, for messages.
    pub(crate) at: String,
    /// How long to wait for other processes.
    pub(crate) wait: Duration,
    /// Makes the name of the key-value space unique.
    pub(crate) nonce: u64,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let others find this process by `--at`.
    Announce,
    /// Look by `--at` for the hub, after so long.
    Find {
        after: Duration,
    },
    /// Connect to this address.
    Connect {
        uri: String,
        part: u32,
        hello: Hello,
    },
    Send(Link, Letter),
    /// End a connection.
    Drop(Link),
    Launch(Start),
    /// Answer a rank, by its number among those of this process.
    Reply {
        rank: u32,
        reply: Reply,
        thread: Option<String>,
    },
    /// End all ranks.
    Kill,
    /// Say something to the user.
    Tell(String),
    /// End with this status.
    Finish(u8),
}

/// A rank of this process.
#[derive(Clone, Debug, Default)]
struct Rank {
    initialised: bool,
    finalised: bool,
    ended: bool,
    /// In a fence, with its thread.
    fence: Option<Option<String>>,
    /// Waits for values of its node: key and thread.
    wants: Vec<(String, Option<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not all processes are there.
    Gathering,
    Running,
    /// Something failed; the hub has not decided yet what is told.
    Failing {
        best: Failure,
        until: Duration,
    },
    Over,
}

/// A process of the own part, as its head sees it.
#[derive(Debug)]
struct Member {
    /// None: the head itself.
    link: Option<Link>,
    ranks: u32,
    node: String,
    host: String,
    fenced: bool,
    done: bool,
}

#[derive(Debug)]
struct Head {
    members: Vec<Option<Member>>,
    is_ready: bool,
}

/// A part, as the hub sees it.
#[derive(Debug)]
struct Part {
    /// None: the hub's own.
    link: Option<Link>,
    uri: String,
    host: String,
    nodes: Option<Vec<u32>>,
    fenced: bool,
    done: bool,
}

#[derive(Debug)]
struct Hub {
    parts: Vec<Option<Part>>,
    /// Members of other parts that ask for their head, and which part.
    asking: Vec<(Link, u32)>,
    names: HashMap<String, String>,
}

/// Who asked about a name.
#[derive(Debug)]
enum Asker {
    Rank { rank: u32, thread: Option<String>, about: About },
    Link(Link),
}

/// What the answer to a question is about.
#[derive(Clone, Copy, Debug)]
enum About {
    Publish,
    Unpublish,
    LookUp,
}

/// The process to which this one is connected: head or hub.
#[derive(Debug)]
struct Up {
    link: Link,
    part: u32,
    /// Known from its welcome on.
    host: Option<String>,
}

/// The state of a process.
#[derive(Debug)]
pub(crate) struct Agent {
    me: Me,
    phase: Phase,
    actions: VecDeque<Action>,
    up: Option<Up>,
    head: Option<Head>,
    hub: Option<Hub>,
    ranks: Vec<Rank>,
    start: Option<Start>,
    store: HashMap<String, String>,
    store_bytes: usize,
    /// What ranks below have put since the last fence.
    fresh: Vec<(String, String)>,
    /// What came from above since the last fence.
    fallen: Vec<(String, String)>,
    node_store: BTreeMap<String, String>,
    askers: VecDeque<Asker>,
    has_told_wait: bool,
    has_told_spawn: bool,
    /// Why the hub was not found, the last time.
    trouble: String,
}

impl Agent {
    /// Checks what a user may have got wrong.
    pub(crate) fn check(me: &Me) -> Result<(), String> {
        let is_name =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if me.job.is_empty() || me.job.len() > JOB_MAX || !is_name(&me.job) {
            return Err(format!(
                "--job {:?}: expected 1 to {JOB_MAX} letters, digits, \"-\", \"_\" and \".\"",
                me.job
            ));
        }
        if me.part == 0 || me.part > me.parts || me.parts > PARTS_MAX {
            return Err(format!(
                "--part {}/{}: expected a part from 1/N to N/N, N at most {PARTS_MAX}",
                me.part, me.parts
            ));
        }
        if me.ranks == 0 || me.count == 0 || u64::from(me.ranks) * u64::from(me.count) > u64::from(RANKS_MAX)
        {
            return Err(format!("a part has 1 to {RANKS_MAX} ranks"));
        }
        Ok(())
    }

    pub(crate) fn new(me: Me) -> Self {
        let ranks = vec![Rank::default(); me.ranks as usize];
        let own = Member {
            link: None,
            ranks: me.ranks,
            node: me.node.clone(),
            host: me.host.clone(),
            fenced: false,
            done: false,
        };
        let head = (me.index == 0).then(|| {
            let mut members: Vec<Option<Member>> = (0..me.count).map(|_| None).collect();
            members[0] = Some(own);
            Head { members, is_ready: false }
        });
        let hub = (me.index == 0 && me.part == 1).then(|| {
            let mut parts: Vec<Option<Part>> = (0..me.parts).map(|_| None).collect();
            let (uri, host) = (me.uri.clone(), me.host.clone());
            parts[0] = Some(Part { link: None, uri, host, nodes: None, fenced: false, done: false });
            Hub { parts, asking: Vec::new(), names: HashMap::new() }
        });
        let mut agent = Self {
            me,
            phase: Phase::Gathering,
            actions: VecDeque::new(),
            up: None,
            head,
            hub,
            ranks,
            start: None,
            store: HashMap::new(),
            store_bytes: 0,
            fresh: Vec::new(),
            fallen: Vec::new(),
            node_store: BTreeMap::new(),
            askers: VecDeque::new(),
            has_told_wait: false,
            has_told_spawn: false,
            trouble: String::new(),
        };
        if agent.hub.is_none() {
            agent.act(Action::Find { after: Duration::ZERO });
        } else if agent.me.parts > 1 || agent.me.count > 1 {
            agent.act(Action::Announce);
        }
        agent.check_gathered();
        agent
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Failing { .. } | Phase::Over)
    }

    // --- finding each other ----------------------------------------------------

    fn hello(&self, role: Role) -> Hello {
        Hello {
            version: VERSION,
            job: self.me.job.clone(),
            part: self.me.part,
            parts: self.me.parts,
            host: self.me.host.clone(),
            role,
        }
    }

    /// The hub is at this address.
    pub(crate) fn found(&mut self, uri: String) {
        if !self.is_over() && self.up.is_none() {
            self.connect(uri, 1);
        }
    }

    fn connect(&mut self, uri: String, part: u32) {
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

    /// It is not there yet: look again.
    pub(crate) fn not_found(&mut self, why: String) {
        if self.is_over() {
            return;
        }
        self.trouble = why;
        self.act(Action::Find { after: AGAIN });
    }

    /// The other side refuses for a reason that time does not change.
    pub(crate) fn refused(&mut self, now: Duration, why: String) {
        self.fail_own(now, format!("cannot join job {}: {why}", self.me.job));
    }

    pub(crate) fn connected(&mut self, link: Link, part: u32) {
        match self.is_over() {
            true => self.act(Action::Drop(link)),
            false => self.up = Some(Up { link, part, host: None }),
        }
    }

    /// Whether the process that says this may connect; if not, what it is told.
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
        // Another may have come meanwhile.
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
                let member =
                    Member { link: Some(link), ranks, node, host: hello.host, fenced: false, done: false };
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

    fn welcome(&mut self, link: Link) {
        let host = self.me.host.clone();
        self.act(Action::Send(link, Letter::Welcome { host }));
    }

    /// Goes on where all processes of this part are there.
    fn check_gathered(&mut self) {
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

    /// Starts the world where all parts are complete.
    fn check_world(&mut self) {
        let Some(hub) = &self.hub else { return };
        let parts: Option<Vec<&Vec<u32>>> =
            hub.parts.iter().map(|part| part.as_ref().and_then(|part| part.nodes.as_ref())).collect();
        let Some(parts) = parts else { return };
        let sizes: Vec<u32> = parts.iter().map(|nodes| nodes.len() as u32).collect();
        // Nodes of different parts are different ones, whatever their hosts are called.
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
    fn heads(&self) -> Vec<Link> {
        let parts = self.hub.iter().flat_map(|hub| &hub.parts).flatten();
        parts.filter_map(|part| part.link).collect()
    }

    /// Connections to the members of this part.
    fn members(&self) -> Vec<Link> {
        let members = self.head.iter().flat_map(|head| &head.members).flatten();
        members.filter_map(|member| member.link).collect()
    }

    /// All connections below this process.
    fn below(&self) -> Vec<Link> {
        let asking = self.hub.iter().flat_map(|hub| hub.asking.iter().map(|ask| ask.0));
        self.heads().into_iter().chain(self.members()).chain(asking).collect()
    }

    /// Whether a world is one that this part is in.
    fn fits(&self, world: &World) -> bool {
        let own = self.head.iter().flat_map(|head| &head.members).flatten().map(|member| member.ranks).sum();
        world.sizes.len() == self.me.parts as usize
            && world.sizes.iter().all(|size| (1..=RANKS_MAX).contains(size))
            && world.sizes.get(self.me.part as usize - 1) == Some(&own)
    }

    /// As a head: has the ranks of this part started.
    fn begin(&mut self, world: &World) {
        let Some(head) = &self.head else { return };
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

    fn launch(&mut self, start: Start) {
        self.phase = Phase::Running;
        self.store.insert("PMI_process_mapping".to_owned(), start.mapping.clone());
        self.start = Some(start.clone());
        self.act(Action::Launch(start));
    }

    // --- time ------------------------------------------------------------------

    /// When to be called again although nothing happens.
    pub(crate) fn due(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Gathering if !self.is_waiting_for_us() => None,
            Phase::Gathering if !self.has_told_wait => Some(NOTICE),
            Phase::Gathering => Some(self.me.wait.max(NOTICE)),
            Phase::Failing { until, .. } => Some(*until),
            Phase::Running | Phase::Over => None,
        }
    }

    /// Whether this process watches the time until others come.
    fn is_waiting_for_us(&self) -> bool {
        let welcomed = self.up.as_ref().is_some_and(|up| up.host.is_some());
        let gathered = self.head.as_ref().is_none_or(|head| head.is_ready);
        self.hub.is_some() || !welcomed || !gathered
    }

    pub(crate) fn tick(&mut self, now: Duration) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        match self.phase.clone() {
            Phase::Failing { best, .. } => self.end(best),
            Phase::Gathering if now >= self.me.wait => {
                let why = self.missing();
                let wait = self.me.wait.as_secs();
                let trouble = match self.trouble.as_str() {
                    "" => String::new(),
                    trouble => format!(" ({trouble})"),
                };
                self.fail_own(
                    now,
                    format!(
                        "gave up after {wait} s: {why} did not come{trouble}; start it with the same --job and --at, \
                         or wait longer with --wait"
                    ),
                );
            }
            Phase::Gathering => {
                self.has_told_wait = true;
                // One process of a part is enough to say it.
                if self.head.is_some() {
                    let (why, wait) = (self.missing(), self.me.wait.as_secs());
                    self.act(Action::Tell(format!("waits for {why}, for {wait} s at most")));
                }
            }
            Phase::Running | Phase::Over => {}
        }
    }

    /// Who is not there yet.
    fn missing(&self) -> String {
        let numbers = |missing: Vec<usize>, one: &str, more: &str| {
            let shown: Vec<String> = missing.iter().take(8).map(ToString::to_string).collect();
            let rest = if missing.len() > 8 { " ..." } else { "" };
            format!("{} {}{rest}", if missing.len() == 1 { one } else { more }, shown.join(", "))
        };
        if let Some(head) = &self.head
            && !head.is_ready
        {
            let missing: Vec<usize> = absent(&head.members).collect();
            if !missing.is_empty() {
                return format!(
                    "{} of {} of part {}",
                    numbers(missing, "process", "processes"),
                    self.me.count,
                    self.me.part
                );
            }
        }
        match &self.hub {
            Some(hub) => {
                let incomplete = |part: &Option<Part>| part.as_ref().is_none_or(|part| part.nodes.is_none());
                let missing = (1..)
                    .zip(&hub.parts)
                    .filter(|(_, part)| incomplete(part))
                    .map(|(number, _)| number)
                    .collect();
                numbers(missing, "part", "parts")
            }
            None if self.head.is_none() && self.up.is_some() => {
                format!("the first process of part {}", self.me.part)
            }
            None => format!("part 1 at {}", self.me.at),
        }
    }

    // --- failures --------------------------------------------------------------

    /// Something failed at this process, and not a rank of it.
    fn fail_own(&mut self, now: Duration, why: String) {
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

    fn fail_rank(&mut self, now: Duration, rank: u32, why: String, status: u8, kind: Kind) {
        let first = self.start.as_ref().map_or(0, |start| start.first);
        let host = self.me.host.clone();
        self.fail(now, Failure { part: self.me.part, rank: Some(first + rank), host, why, status, kind });
    }

    /// A failure, here or below: ends the ranks at once, and lets the hub decide what is told.
    fn fail(&mut self, now: Duration, failure: Failure) {
        match &mut self.phase {
            Phase::Over => {}
            Phase::Failing { best, until } => {
                if failure.kind > best.kind {
                    // Nothing explains it better.
                    *until = now;
                    *best = failure.clone();
                    self.report(failure);
                }
            }
            Phase::Gathering | Phase::Running => {
                let patience = match (&self.hub, failure.kind) {
                    (None, _) => VERDICT,
                    (Some(_), Kind::Error) => GRACE_ERROR,
                    (Some(_), Kind::End) => GRACE,
                    (Some(_), Kind::Gone) => Duration::ZERO,
                };
                self.phase = Phase::Failing { best: failure.clone(), until: now + patience };
                self.act(Action::Kill);
                match (&self.hub, &self.up) {
                    (None, Some(_)) => self.report(failure),
                    // Nothing that explains it can come where nothing runs, or nobody else is there.
                    (None, None) => self.end(failure),
                    (Some(_), _) if self.start.is_none() || patience.is_zero() || self.below().is_empty() => {
                        self.end(failure)
                    }
                    (Some(_), _) => {}
                }
            }
        }
    }

    fn report(&mut self, failure: Failure) {
        if let Some(up) = &self.up {
            let link = up.link;
            self.act(Action::Send(link, Letter::End(failure)));
        }
    }

    /// The job ends, for this reason.
    fn end(&mut self, failure: Failure) {
        if self.phase == Phase::Over {
            return;
        }
        if !self.is_over() {
            self.act(Action::Kill);
        }
        self.phase = Phase::Over;
        for link in self.below() {
            self.act(Action::Send(link, Letter::End(failure.clone())));
        }
        // One process of a part is enough to say it, where it can.
        let is_alone = self.up.as_ref().is_none_or(|up| up.host.is_none());
        if self.head.is_some() || is_alone {
            self.act(Action::Tell(format!("the job ends: {failure}")));
        }
        self.act(Action::Finish(failure.status));
    }

    /// A connection is gone.
    pub(crate) fn lost(&mut self, now: Duration, link: Link, why: &str) {
        if self.phase == Phase::Over {
            return;
        }
        if let Some(up) = self.up.take_if(|up| up.link == link) {
            let Some(host) = up.host else { return self.not_found(why.to_owned()) };
            let role = if up.part == 1 && self.me.part != 1 {
                "part 1".to_owned()
            } else {
                "the first process of this part".to_owned()
            };
            let failure = Failure {
                part: up.part,
                rank: None,
                host,
                why: format!("is gone: its isthmus run, {role}, ended or is out of reach ({why})"),
                status: 1,
                kind: Kind::Gone,
            };
            return match &self.phase {
                Phase::Failing { best, .. } if best.kind >= failure.kind => self.end(best.clone()),
                _ => self.end(failure),
            };
        }
        let mut gone = None;
        if let Some(hub) = &mut self.hub {
            hub.asking.retain(|ask| ask.0 != link);
            for (number, place) in (1..).zip(&mut hub.parts) {
                if let Some(part) = place.take_if(|part| part.link == Some(link)) {
                    gone = Some(Failure {
                        part: number,
                        rank: None,
                        host: part.host,
                        why: format!("is gone: its isthmus run ended or is out of reach ({why})"),
                        status: 1,
                        kind: Kind::Gone,
                    });
                }
            }
        }
        if let Some(head) = &mut self.head {
            for (index, place) in (0..).zip(&mut head.members) {
                if let Some(member) = place.take_if(|member| member.link == Some(link)) {
                    let index: u32 = index;
                    gone = Some(Failure {
                        part: self.me.part,
                        rank: None,
                        host: member.host,
                        why: format!(
                            "lost a process: isthmus run number {index} ended or is out of reach ({why})"
                        ),
                        status: 1,
                        kind: Kind::Gone,
                    });
                }
            }
        }
        if let Some(failure) = gone {
            self.fail(now, failure);
        }
    }

    /// A signal for this process.
    pub(crate) fn signalled(&mut self, now: Duration, number: i32) {
        let status = Ended::Signal(number).status();
        let why = format!("was told to end: its isthmus run received {}", signal_name(number));
        let failure = Failure {
            part: self.me.part,
            rank: None,
            host: self.me.host.clone(),
            why,
            status,
            kind: Kind::Gone,
        };
        self.fail(now, failure);
    }

    // --- letters ---------------------------------------------------------------

    pub(crate) fn letter(&mut self, now: Duration, link: Link, letter: Letter) {
        if self.phase == Phase::Over {
            return;
        }
        match &self.up {
            Some(up) if up.link == link => self.take_from_above(letter),
            _ => self.take_from_below(now, link, letter),
        }
    }

    fn take_from_above(&mut self, letter: Letter) {
        match letter {
            Letter::End(failure) => self.end(failure),
            _ if self.is_over() => {}
            Letter::Welcome { host } => {
                if let Some(up) = &mut self.up {
                    up.host = Some(host);
                }
                self.check_gathered();
            }
            Letter::Head { uri } => {
                if let Some(up) = self.up.take() {
                    self.act(Action::Drop(up.link));
                }
                self.connect(uri, self.me.part);
            }
            Letter::World(world) if self.fits(&world) => self.begin(&world),
            Letter::Start(start) if start.local.len() == self.ranks.len() && self.start.is_none() => {
                self.launch(start)
            }
            Letter::Put(entries) => self.fallen.extend(entries),
            Letter::Fence => {
                let entries = std::mem::take(&mut self.fallen);
                self.pass_fence(entries);
            }
            Letter::Answer(answer) => self.pass_answer(answer),
            Letter::Done => self.finish(),
            // Nobody sends these downwards, or not so.
            Letter::World(_) | Letter::Start(_) | Letter::Ready { .. } | Letter::Ask(_) => {}
        }
    }

    fn take_from_below(&mut self, now: Duration, link: Link, letter: Letter) {
        let part = self
            .hub
            .as_mut()
            .and_then(|hub| hub.parts.iter_mut().flatten().find(|part| part.link == Some(link)));
        let member = self
            .head
            .as_mut()
            .and_then(|head| head.members.iter_mut().flatten().find(|m| m.link == Some(link)));
        let is_over = matches!(self.phase, Phase::Failing { .. } | Phase::Over);
        let (fenced, done) = match (part, member) {
            (Some(part), _) => {
                if let Letter::Ready { nodes } = &letter
                    && part.nodes.is_none()
                    && (1..=RANKS_MAX as usize).contains(&nodes.len())
                    && nodes.iter().all(|node| (*node as usize) < nodes.len())
                {
                    part.nodes = Some(nodes.clone());
                }
                (&mut part.fenced, &mut part.done)
            }
            (None, Some(member)) => (&mut member.fenced, &mut member.done),
            // Of one who only asks for its head.
            (None, None) => return,
        };
        match letter {
            Letter::Fence if !is_over => *fenced = true,
            Letter::Done if !is_over => *done = true,
            _ => {}
        }
        match letter {
            Letter::End(failure) => self.fail(now, failure),
            _ if is_over => {}
            Letter::Ready { .. } => self.check_world(),
            Letter::Put(entries) => self.take_in(now, entries),
            Letter::Fence => self.check_fence(now),
            Letter::Done => {
                self.check_done();
                self.check_fence(now);
            }
            Letter::Ask(question) => self.ask(question, Asker::Link(link)),
            // Nobody sends these upwards.
            Letter::Welcome { .. }
            | Letter::Head { .. }
            | Letter::World(_)
            | Letter::Start(_)
            | Letter::Answer(_) => {}
        }
    }

    // --- fences ----------------------------------------------------------------

    /// Keeps what ranks below have put until the fence.
    fn take_in(&mut self, now: Duration, entries: Vec<(String, String)>) {
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.store_bytes += bytes;
        if self.store_bytes > STORE_MAX {
            return self
                .fail_own(now, format!("has more than {STORE_MAX} bytes in the ranks' key-value space"));
        }
        self.fresh.extend(entries);
    }

    /// Goes on where all ranks below wait in a fence.
    fn check_fence(&mut self, now: Duration) {
        if self.phase != Phase::Running {
            return;
        }
        let waiting = self.ranks.iter().filter(|rank| rank.fence.is_some()).count();
        let first = self.start.as_ref().map_or(0, |start| start.first);
        let mut stuck = None;
        if waiting > 0
            && let Some(ended) = self.ranks.iter().position(|rank| rank.ended)
        {
            stuck = Some(format!("rank {} has ended", first as usize + ended));
        }
        let all_here = waiting == self.ranks.len();
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
            && let Some(done) = members().find(|member| member.done)
        {
            stuck = Some(format!("all ranks on host {} have ended", done.host));
        }
        let all_members = members().all(|member| member.fenced);
        if let Some(hub) = &mut self.hub {
            if let Some(own) = &mut hub.parts[0] {
                own.fenced = all_members;
            }
            let parts = || {
                (1..).zip(&hub.parts).filter_map(|(number, part)| part.as_ref().map(|part| (number, part)))
            };
            if parts().any(|(_, part)| part.fenced)
                && let Some((number, _)) = parts().find(|(_, part)| part.done)
            {
                let number: u32 = number;
                stuck = Some(format!("all ranks of part {number} have ended"));
            }
            if stuck.is_none() && parts().all(|(_, part)| part.fenced) {
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

    fn fail_stuck(&mut self, now: Duration, why: &str) {
        self.fail_own(
            now,
            format!("cannot go on: ranks wait for all others in MPI_Init or MPI_Finalize, and {why}"),
        );
    }

    /// Tells above that all ranks below wait.
    fn send_fence(&mut self) {
        for member in self.head.iter_mut().flat_map(|head| &mut head.members).flatten() {
            member.fenced = false;
        }
        let Some(up) = self.up.as_ref().map(|up| up.link) else { return };
        let entries = std::mem::take(&mut self.fresh);
        self.send_fence_to(up, &entries);
    }

    fn send_fence_to(&mut self, link: Link, entries: &[(String, String)]) {
        for letter in puts(entries.to_vec()).into_iter().chain([Letter::Fence]) {
            self.act(Action::Send(link, letter));
        }
    }

    /// All ranks of the world wait: they go on, and know what all have put.
    fn pass_fence(&mut self, entries: Vec<(String, String)>) {
        for member in self.head.iter_mut().flat_map(|head| &mut head.members).flatten() {
            member.fenced = false;
        }
        for link in self.members() {
            self.send_fence_to(link, &entries);
        }
        self.store.extend(entries);
        for rank in 0..self.ranks.len() {
            if let Some(thread) = self.ranks[rank].fence.take() {
                self.act(Action::Reply { rank: rank as u32, reply: Reply::Fence, thread });
            }
        }
    }

    // --- names of ports --------------------------------------------------------

    fn ask(&mut self, question: Question, asker: Asker) {
        self.askers.push_back(asker);
        match (&mut self.hub, &self.up) {
            (Some(hub), _) => {
                let answer = hub.answer(question);
                self.pass_answer(answer);
            }
            (None, Some(up)) => {
                let up = up.link;
                self.act(Action::Send(up, Letter::Ask(question)));
            }
            (None, None) => self.pass_answer(None),
        }
    }

    /// Answers come in the order of the questions.
    fn pass_answer(&mut self, answer: Option<String>) {
        match self.askers.pop_front() {
            Some(Asker::Link(link)) => self.act(Action::Send(link, Letter::Answer(answer))),
            Some(Asker::Rank { rank, thread, about }) => {
                let reply = match about {
                    About::Publish => Reply::Publish(answer.is_some()),
                    About::Unpublish => Reply::Unpublish(answer.is_some()),
                    About::LookUp => Reply::LookUp(answer),
                };
                self.act(Action::Reply { rank, reply, thread });
            }
            None => {}
        }
    }

    // --- ranks -----------------------------------------------------------------

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
            Request::Put { key, value } => {
                let fits = (1..=KEY_MAX).contains(&key.len()) && value.len() <= VALUE_MAX;
                let fits = fits && self.store_bytes + key.len() + value.len() <= STORE_MAX;
                if fits {
                    self.store_bytes += key.len() + value.len();
                    self.store.insert(key.clone(), value.clone());
                    self.fresh.push((key, value));
                }
                Reply::Put(fits)
            }
            Request::Get { key } => Reply::Get(self.store.get(&key).cloned()),
            Request::GetJob { key } if key == "universeSize" => Reply::GetJob(Some(start.size.to_string())),
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
            Request::Abort { code, message } => {
                let said = if message.is_empty() || message == "abort" {
                    String::new()
                } else {
                    format!(": {message}")
                };
                // MPI libraries end a job by the same call, with codes that no process can end with.
                let kind = if (0..=255).contains(&code) { Kind::End } else { Kind::Error };
                // The low byte is what a process can end with; 0 would mean that all went well.
                let status = match code as u8 {
                    0 => 1,
                    status => status,
                };
                return self.fail_rank(
                    now,
                    rank,
                    format!("called MPI_Abort with {code}{said}"),
                    status,
                    kind,
                );
            }
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

    /// Keeps a value for the ranks of this process, which are on one node.
    fn put_node(&mut self, rank: u32, key: String, value: String, thread: Option<String>) {
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

    /// A rank's process could not be started.
    pub(crate) fn not_started(&mut self, now: Duration, rank: u32, why: &str) {
        self.fail_rank(now, rank, format!("could not be started: {why}"), 126, Kind::End);
    }

    /// A rank says what cannot be understood.
    pub(crate) fn nonsense(&mut self, now: Duration, rank: u32, why: &str) {
        self.fail_rank(now, rank, format!("does not speak PMI: {why}"), 1, Kind::End);
    }

    pub(crate) fn rank_ended(&mut self, now: Duration, rank: u32, how: Ended) {
        let own = &mut self.ranks[rank as usize];
        own.ended = true;
        let silent = own.initialised && !own.finalised;
        if self.is_over() {
            return;
        }
        if how.status() != 0 {
            let kind = if matches!(how, Ended::Signal(_)) { Kind::End } else { Kind::Error };
            return self.fail_rank(now, rank, how.to_string(), how.status(), kind);
        }
        if silent {
            return self.fail_rank(now, rank, "ended without MPI_Finalize".to_owned(), 1, Kind::Error);
        }
        self.check_absent(now);
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
                    self.act(Action::Send(up, Letter::Done));
                }
                _ => self.check_done(),
            }
        }
        self.check_fence(now);
    }

    /// MPI_Init needs all ranks: one that has ended without it would be waited for in vain.
    fn check_absent(&mut self, now: Duration) {
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

    /// Goes on where all ranks below have ended well.
    fn check_done(&mut self) {
        let Some(head) = &self.head else { return };
        if !head.members.iter().flatten().all(|member| member.done) {
            return;
        }
        match (&mut self.hub, &self.up) {
            (Some(hub), _) => {
                if let Some(own) = &mut hub.parts[0] {
                    own.done = true;
                }
                if hub.parts.iter().flatten().all(|part| part.done) {
                    for link in self.heads() {
                        self.act(Action::Send(link, Letter::Done));
                    }
                    self.finish();
                }
            }
            (None, Some(up)) => {
                let up = up.link;
                self.act(Action::Send(up, Letter::Done));
            }
            (None, None) => {}
        }
    }

    /// All ranks of the world have ended well.
    fn finish(&mut self) {
        for link in self.members() {
            self.act(Action::Send(link, Letter::Done));
        }
        self.phase = Phase::Over;
        self.act(Action::Finish(0));
    }
}

impl Hub {
    fn answer(&mut self, question: Question) -> Option<String> {
        match question {
            Question::Publish { name, port } => {
                let is_free = !self.names.contains_key(&name) && self.names.len() < NAMES_MAX;
                is_free.then(|| {
                    self.names.insert(name, port);
                    String::new()
                })
            }
            Question::Unpublish { name } => self.names.remove(&name),
            Question::LookUp { name } => self.names.get(&name).cloned(),
        }
    }
}

/// Indices of what is not there.
fn absent<T>(places: &[Option<T>]) -> impl Iterator<Item = usize> {
    places.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(index, _)| index)
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
