//! One process of `isthmus run`: all its decisions, without I/O and without a clock.
//!
//! The processes of a job form a tree. The first process of each part is its *head*. The others, its *members*, connect
//! to the head. The head of part 1 is also the *hub*, to which the other heads connect.
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
//! Every process finds the hub by `--at`. The hub tells a member of another part where its head is. When all members of
//! all parts are there, each process starts its ranks. At a fence, what ranks have put goes up the tree once. The data
//! of all ranks come down once. So a fence costs one round trip between the parts, for any number of ranks.
//!
//! The first failure that reaches the hub ends the job. The hub waits up to [`GRACE_ERROR`] for one that explains it:
//! when a process dies, ranks elsewhere may report the loss of their peer before the tree reports its cause.

mod ending;
mod fence;
mod gathering;
mod losing;
mod names;
mod pmi;
mod reach;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::failure::{Ended, Failure, Kind, signal_name};
use crate::letter::{
    Hello, JOB_MAX, Letter, OnLoss, PARTS_MAX, Question, RANKS_MAX, Role, Start, VERSION, World, puts,
};
use crate::nodes;
use crate::pmi::{Asked, KEY_MAX, Reply, Request, VALUE_MAX};
use crate::ranks::Lines;

/// How long the hub waits for the reason why a rank was killed, such as a SIGTERM to its `isthmus run`.
const GRACE: Duration = Duration::from_millis(500);
/// How long the hub waits for the reason of a rank's error. The tree tries for 2.3 s to reach a process that is gone. A
/// rank that talks to that process may notice its end up to a second earlier.
const GRACE_ERROR: Duration = Duration::from_millis(2000);
/// How long other processes wait for the hub's decision after a failure: [`GRACE_ERROR`] and a round trip.
const VERDICT: Duration = Duration::from_millis(2800);
/// Time between two searches for the hub. On average half of it is lost once the hub is there.
const AGAIN: Duration = Duration::from_millis(200);
/// Time after its start at which a head tells for whom it waits.
const NOTICE: Duration = Duration::from_secs(2);
/// Most bytes in the key-value space. A world of 100,000 ranks needs about 50 MB.
const STORE_MAX: usize = 1 << 30;
/// Most port names that a job may publish at once, and most values of a node.
const NAMES_MAX: usize = 4096;

/// Most endpoints of the ranks of this process that are known by their address. Count: an MPI opens one or two for each
/// rank, and more for threads. Later ones are not known, so that reports about them have no effect.
const ENDPOINTS_MAX: usize = 16 * RANKS_MAX as usize;

/// Number of a connection to another process. The shell assigns it.
pub(crate) type Link = u64;

/// What a process knows at its start.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) job: String,
    /// From 1.
    pub(crate) part: u32,
    pub(crate) parts: u32,
    /// Its number among the processes of its part, from 0.
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// How many ranks it starts.
    pub(crate) ranks: u32,
    pub(crate) host: String,
    /// Identifies its node within its part.
    pub(crate) node: String,
    /// Its own address.
    pub(crate) uri: String,
    /// The value of `--at`, for messages.
    pub(crate) at: String,
    /// How long to wait for the other processes.
    pub(crate) wait: Duration,
    pub(crate) on_loss: OnLoss,
    /// Makes the name of the key-value space unique.
    pub(crate) nonce: u64,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Let others find this process by `--at`.
    Announce,
    /// Look for the hub by `--at`, after this time.
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
    /// Answer the rank with this number in this process.
    Reply {
        rank: u32,
        reply: Reply,
        thread: Option<String>,
    },
    /// End all ranks.
    Kill,
    /// Kill the rank with this number in this process.
    KillRank(u32),
    /// To the PMIx server: a fence is passed, and ranks of the world gave these bytes.
    Pmix(Vec<u8>),
    /// To the PMIx server, if there is one: these ranks (first and last of each run) are lost.
    PmixLost(Vec<(u32, u32)>),
    /// Say something to the user.
    Tell(String),
    /// Write output of ranks.
    Print(Lines),
    /// A piece of output of this process's ranks was printed.
    Printed,
    /// End with this exit status.
    Finish(u8),
}

/// A rank of this process.
#[derive(Clone, Debug, Default)]
struct Rank {
    initialised: bool,
    finalised: bool,
    ended: bool,
    /// `Some` in a fence: the thread that waits.
    fence: Option<Option<String>>,
    /// Values of its node that it waits for: key and thread.
    wants: Vec<(String, Option<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not all processes are there.
    Gathering,
    Running,
    /// Something failed. The hub has not decided yet which failure is reported.
    Failing {
        best: Failure,
        until: Duration,
    },
    Over,
}

/// A process of this part, as its head sees it.
#[derive(Debug)]
struct Member {
    /// `None` for the head itself.
    link: Option<Link>,
    ranks: u32,
    node: String,
    host: String,
    fenced: bool,
    done: bool,
    /// As of [`Letter::Done`].
    status: Option<u8>,
}

#[derive(Debug)]
struct Head {
    members: Vec<Option<Member>>,
    /// Ranks of each member, from the start of the world on.
    counts: Vec<u32>,
    is_ready: bool,
}

/// A part, as the hub sees it.
#[derive(Debug)]
struct Part {
    /// `None` for the hub's own part.
    link: Option<Link>,
    uri: String,
    host: String,
    nodes: Option<Vec<u32>>,
    fenced: bool,
    done: bool,
    /// As of [`Letter::Done`].
    status: Option<u8>,
}

#[derive(Debug)]
struct Hub {
    parts: Vec<Option<Part>>,
    /// Members of other parts that wait for the address of their head, with their part.
    asking: Vec<(Link, u32)>,
    names: HashMap<String, String>,
    /// Ranks that cannot reach each other.
    pairs: reach::Pairs,
}

/// Who asked about a name.
#[derive(Debug)]
enum Asker {
    Rank { rank: u32, thread: Option<String>, about: About },
    Link(Link),
}

/// The kind of the question.
#[derive(Clone, Copy, Debug)]
enum About {
    Publish,
    Unpublish,
    LookUp,
}

/// The process to which this one is connected: its head or the hub.
#[derive(Debug)]
struct Up {
    link: Link,
    part: u32,
    /// `None` until the welcome.
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
    /// What other ranks have put, received from above since the last fence.
    fallen: Vec<(String, String)>,
    /// Whether the process above knows that all ranks below wait in a fence.
    is_fence_sent: bool,
    /// What went up with that fence, in case the hub is lost before it passes. Only by [`OnLoss::Continue`].
    sent: Vec<(String, String)>,
    /// Reports of ranks that cannot reach each other, which this head has sent up.
    reports: Vec<Letter>,
    /// Ranks of the world that are lost.
    dead: BTreeSet<u32>,
    first_loss: Option<Failure>,
    /// The endpoints of the ranks of this process.
    endpoints: HashMap<String, u32>,
    /// Exit status of this process's ranks, and of processes below that were done and have gone since.
    status: Option<u8>,
    node_store: BTreeMap<String, String>,
    /// Whether the PMIx server waits for a fence.
    is_pmix_waiting: bool,
    askers: VecDeque<Asker>,
    /// Whose output is on its way up: processes below, and `None` for this one.
    speakers: VecDeque<Option<Link>>,
    has_told_wait: bool,
    has_told_spawn: bool,
    /// Why the latest search for the hub failed.
    trouble: String,
}

impl Agent {
    /// Checks the user's options.
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
            status: None,
        };
        let head = (me.index == 0).then(|| {
            let mut members: Vec<Option<Member>> = (0..me.count).map(|_| None).collect();
            members[0] = Some(own);
            Head { members, counts: Vec::new(), is_ready: false }
        });
        let hub = (me.index == 0 && me.part == 1).then(|| {
            let mut parts: Vec<Option<Part>> = (0..me.parts).map(|_| None).collect();
            let (uri, host) = (me.uri.clone(), me.host.clone());
            parts[0] =
                Some(Part { link: None, uri, host, nodes: None, fenced: false, done: false, status: None });
            Hub { parts, asking: Vec::new(), names: HashMap::new(), pairs: reach::Pairs::default() }
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
            is_fence_sent: false,
            sent: Vec::new(),
            reports: Vec::new(),
            dead: BTreeSet::new(),
            first_loss: None,
            endpoints: HashMap::new(),
            status: None,
            node_store: BTreeMap::new(),
            is_pmix_waiting: false,
            askers: VecDeque::new(),
            speakers: VecDeque::new(),
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

    /// When to call `tick` if nothing happens before.
    pub(crate) fn due(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Gathering if !self.is_waiting_for_us() => None,
            Phase::Gathering if !self.has_told_wait => Some(NOTICE),
            Phase::Gathering => Some(self.me.wait.max(NOTICE)),
            Phase::Failing { until, .. } => Some(*until),
            Phase::Running => self.hub.as_ref().and_then(|hub| hub.pairs.until),
            Phase::Over => None,
        }
    }

    /// Whether this process watches the time until the others come.
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
            Phase::Running => self.lose_unreachable(now),
            Phase::Over => {}
        }
    }

    /// Names the processes or parts that have not come.
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

    pub(crate) fn letter(&mut self, now: Duration, link: Link, letter: Letter) {
        // Last words of ranks come after the failure that ends the job.
        if let Letter::Output(lines) = letter {
            return self.output(Some(link), lines);
        }
        if self.phase == Phase::Over {
            return;
        }
        match &self.up {
            Some(up) if up.link == link => self.take_from_above(now, letter),
            _ => self.take_from_below(now, link, letter),
        }
    }

    /// Output of ranks here, or from a process below: the hub prints it, and so does a process that has lost its
    /// connection.
    pub(crate) fn output(&mut self, from: Option<Link>, lines: Lines) {
        match &self.up {
            Some(up) if self.hub.is_none() => {
                let link = up.link;
                self.speakers.push_back(from);
                self.act(Action::Send(link, Letter::Output(lines)));
            }
            _ => {
                self.act(Action::Print(lines));
                self.tell_printed(from);
            }
        }
    }

    fn tell_printed(&mut self, from: Option<Link>) {
        self.act(match from {
            Some(link) => Action::Send(link, Letter::Printed),
            None => Action::Printed,
        });
    }

    /// The oldest output that went up is printed, or lost with the connection.
    fn pass_printed(&mut self) {
        if let Some(from) = self.speakers.pop_front() {
            self.tell_printed(from);
        }
    }

    /// Whether this connection leads to a process below.
    pub(crate) fn is_below(&self, link: Link) -> bool {
        self.up.as_ref().is_none_or(|up| up.link != link)
    }

    fn take_from_above(&mut self, now: Duration, letter: Letter) {
        match letter {
            Letter::End(failure) => self.end(failure),
            Letter::Printed => self.pass_printed(),
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
            Letter::Done(status) => self.finish(status.unwrap_or(1)),
            Letter::Lost { ranks, failure } => self.take_loss(now, ranks, failure),
            Letter::Unreachable(report) => self.pass_unreachable(now, report, false),
            // Never sent downwards, or not acceptable now.
            Letter::World(_)
            | Letter::Start(_)
            | Letter::Ready { .. }
            | Letter::Pair(_)
            | Letter::Ask(_)
            | Letter::Output(_) => {}
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
        let (fenced, done, status) = match (part, member) {
            (Some(part), _) => {
                if let Letter::Ready { nodes } = &letter
                    && part.nodes.is_none()
                    && (1..=RANKS_MAX as usize).contains(&nodes.len())
                    && nodes.iter().all(|node| (*node as usize) < nodes.len())
                {
                    part.nodes = Some(nodes.clone());
                }
                (&mut part.fenced, &mut part.done, &mut part.status)
            }
            (None, Some(member)) => (&mut member.fenced, &mut member.done, &mut member.status),
            // From a process that only asks for its head.
            (None, None) => return,
        };
        match &letter {
            Letter::Fence if !is_over => *fenced = true,
            Letter::Done(how) if !is_over => (*done, *status) = (true, *how),
            _ => {}
        }
        match letter {
            Letter::End(failure) => self.fail(now, failure),
            _ if is_over => {}
            Letter::Ready { .. } => self.check_world(),
            Letter::Put(entries) => self.take_in(now, entries),
            Letter::Fence => self.check_fence(now),
            Letter::Done(_) => {
                self.check_done();
                self.check_fence(now);
            }
            Letter::Lost { ranks, failure } if self.goes_on() => self.lose(now, ranks, failure),
            Letter::Unreachable(report) => self.pass_unreachable(now, report, true),
            Letter::Pair(pair) => self.take_pair(now, pair),
            Letter::Ask(question) => self.ask(question, Asker::Link(link)),
            // Never sent upwards.
            Letter::Welcome { .. }
            | Letter::Head { .. }
            | Letter::World(_)
            | Letter::Start(_)
            | Letter::Lost { .. }
            | Letter::Output(_)
            | Letter::Printed
            | Letter::Answer(_) => {}
        }
    }
}

/// Indices of the empty entries.
fn absent<T>(places: &[Option<T>]) -> impl Iterator<Item = usize> {
    places.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(index, _)| index)
}

#[cfg(test)]
mod tests;
