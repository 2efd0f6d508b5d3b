//! Simulates whole jobs in memory: agents, and the letters between them.

mod reach;

use std::collections::VecDeque;

use super::*;
use crate::letter::{decode, encode};

/// The processes of a job, and the letters in flight between them.
struct Net {
    agents: Vec<Agent>,
    now: Duration,
    announced: bool,
    /// Processes that look for the hub.
    finders: VecDeque<usize>,
    /// The two ends of each link.
    links: Vec<(usize, usize)>,
    under_way: VecDeque<(usize, Link, Letter)>,
    /// Count of letters between different parts.
    between_parts: usize,
    dead: Vec<bool>,
    replies: Vec<Vec<(u32, Reply)>>,
    told: Vec<Vec<String>>,
    finished: Vec<Option<u8>>,
    killed: Vec<bool>,
    /// Process, and the rank in it that it killed alone.
    killed_ranks: Vec<(usize, u32)>,
    /// Process, and output of ranks that it printed.
    printed: Vec<(usize, String)>,
    /// Pieces of its ranks' output that were printed.
    acknowledged: Vec<usize>,
    /// Process, and what its PMIx server got of a fence.
    pmix: Vec<(usize, Vec<u8>)>,
    /// Process, and ranks of whose loss it told its PMIx server.
    lost: Vec<(usize, Vec<(u32, u32)>)>,
}

/// (part, process of the part, processes of the part, ranks)
type Process = (u32, u32, u32, u32);

impl Net {
    fn new(parts: u32, processes: &[Process]) -> Self {
        Self::with(parts, processes, OnLoss::End)
    }

    fn with(parts: u32, processes: &[Process], on_loss: OnLoss) -> Self {
        let mut net = Self {
            agents: Vec::new(),
            now: Duration::ZERO,
            announced: false,
            finders: VecDeque::new(),
            links: Vec::new(),
            under_way: VecDeque::new(),
            between_parts: 0,
            dead: Vec::new(),
            replies: Vec::new(),
            told: Vec::new(),
            finished: Vec::new(),
            killed: Vec::new(),
            killed_ranks: Vec::new(),
            printed: Vec::new(),
            acknowledged: Vec::new(),
            pmix: Vec::new(),
            lost: Vec::new(),
        };
        for process in processes {
            net.join(Me { on_loss, ..me(parts, *process) });
        }
        net.settle();
        net
    }

    fn join(&mut self, me: Me) -> usize {
        assert_eq!(Agent::check(&me), Ok(()));
        self.agents.push(Agent::new(me));
        self.dead.push(false);
        self.replies.push(Vec::new());
        self.told.push(Vec::new());
        self.finished.push(None);
        self.killed.push(false);
        self.acknowledged.push(0);
        self.agents.len() - 1
    }

    /// Handles everything that is due, without time passing.
    fn settle(&mut self) {
        loop {
            let mut has_acted = false;
            for at in 0..self.agents.len() {
                while let Some(action) = self.agents[at].next_action() {
                    has_acted = true;
                    if !self.dead[at] {
                        self.act(at, action);
                    }
                }
            }
            if has_acted {
                continue;
            }
            if let Some((to, link, letter)) = self.under_way.pop_front() {
                if !self.dead[to] && self.finished[to].is_none() {
                    self.agents[to].letter(self.now, link, letter);
                }
            } else if self.announced && !self.finders.is_empty() {
                for at in std::mem::take(&mut self.finders) {
                    let hub = self
                        .agents
                        .iter()
                        .find(|agent| agent.hub.is_some())
                        .map(|agent| agent.me.uri.clone());
                    self.agents[at].found(hub.expect("announced"));
                }
            } else {
                return;
            }
        }
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Announce => self.announced = true,
            Action::Find { .. } => self.finders.push_back(at),
            Action::Connect { uri, part, hello } => {
                let hello: Hello = decode(&encode(&hello)).expect("a hello");
                let to = self.agents.iter().position(|agent| agent.me.uri == uri).expect("somebody");
                match self.agents[to].admits(&hello) {
                    Ok(()) => {
                        let link = self.links.len() as Link;
                        self.links.push((at, to));
                        self.agents[at].connected(link, part);
                        self.agents[to].accepted(link, hello);
                    }
                    Err(why) => self.agents[at].refused(self.now, why),
                }
            }
            Action::Send(link, letter) => {
                let ends = self.links[link as usize];
                let to = if ends.0 == at { ends.1 } else { ends.0 };
                self.between_parts += usize::from(self.agents[at].me.part != self.agents[to].me.part);
                self.under_way.push_back((to, link, decode(&encode(&letter)).expect("a letter")));
            }
            Action::Drop(link) => {
                let ends = self.links[link as usize];
                let to = if ends.0 == at { ends.1 } else { ends.0 };
                self.agents[to].lost(self.now, link, "dropped");
            }
            Action::Launch(_) => {}
            Action::Reply { rank, reply, .. } => self.replies[at].push((rank, reply)),
            Action::Kill => self.killed[at] = true,
            Action::KillRank(rank) => self.killed_ranks.push((at, rank)),
            Action::Pmix(bytes) => self.pmix.push((at, bytes)),
            Action::PmixLost(ranks) => self.lost.push((at, ranks)),
            Action::Printed => self.acknowledged[at] += 1,
            Action::Print(lines) => self.printed.push((at, String::from_utf8(lines.text).expect("text"))),
            Action::Tell(text) => self.told[at].push(text),
            Action::Finish(status) => self.finished[at] = Some(status),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for at in 0..self.agents.len() {
            if !self.dead[at] && self.finished[at].is_none() {
                self.agents[at].tick(self.now);
            }
        }
        self.settle();
    }

    /// A process vanishes, and those connected to it notice.
    fn die(&mut self, at: usize) {
        self.dead[at] = true;
        for link in 0..self.links.len() {
            let ends = self.links[link];
            let other = if ends.0 == at { ends.1 } else { ends.0 };
            if (ends.0 == at || ends.1 == at) && !self.dead[other] {
                self.agents[other].lost(self.now, link as Link, "nobody listens there");
            }
        }
        self.settle();
    }

    fn start(&self, at: usize) -> &Start {
        self.agents[at].start.as_ref().expect("it runs")
    }

    fn pmi(&mut self, at: usize, rank: u32, request: Request) {
        self.agents[at].pmi(self.now, rank, Asked { request, thread: None });
        self.settle();
    }

    fn ask(&mut self, at: usize, rank: u32, request: Request) -> Reply {
        self.replies[at].clear();
        self.pmi(at, rank, request);
        self.replies[at].pop().expect("an answer").1
    }

    fn ended(&mut self, at: usize, rank: u32, how: Ended) {
        self.agents[at].rank_ended(self.now, rank, how);
        self.settle();
    }

    /// All ranks: process, and rank of the process.
    fn ranks(&self) -> Vec<(usize, u32)> {
        (0..self.agents.len())
            .flat_map(|at| (0..self.agents[at].me.ranks).map(move |rank| (at, rank)))
            .collect()
    }

    fn everything_told(&self) -> String {
        self.told.concat().join("\n")
    }
}

fn me(parts: u32, (part, index, count, ranks): Process) -> Me {
    Me {
        job: "climate".to_owned(),
        part,
        parts,
        index,
        count,
        ranks,
        host: format!("host{part}{index}"),
        node: format!("node{index}"),
        uri: format!("isthmus://{part}.{index}"),
        at: "file:/x".to_owned(),
        wait: Duration::from_secs(600),
        on_loss: OnLoss::End,
        nonce: 7,
    }
}

/// Three parts: three processes with one rank each, one process with four, and two with two each.
const THREE: &[Process] =
    &[(1, 0, 3, 1), (1, 1, 3, 1), (1, 2, 3, 1), (2, 0, 1, 4), (3, 0, 2, 2), (3, 1, 2, 2)];

fn put(key: &str, value: &str) -> Request {
    Request::Put { key: key.to_owned(), value: value.to_owned() }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned() }
}

#[test]
fn parts_form_one_world_in_whatever_order_their_processes_come() {
    for turn in 0..THREE.len() {
        let mut processes = THREE.to_vec();
        processes.rotate_left(turn);
        let net = Net::new(3, &processes);
        let mut firsts: Vec<(u32, u32)> = Vec::new();
        for (at, process) in processes.iter().enumerate() {
            let start = net.start(at);
            assert_eq!(
                (start.size, start.sizes.as_slice(), start.appnum),
                (11, &[3, 4, 4][..], process.0 - 1)
            );
            // The three parts use the same node names, for different nodes.
            assert_eq!(start.mapping, "(vector,(0,3,1),(3,1,4),(4,2,2))");
            firsts.push((process.0 * 10 + process.1, start.first));
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [(10, 0), (11, 1), (12, 2), (20, 3), (30, 7), (31, 9)]);
    }
}

#[test]
fn what_is_put_before_a_fence_is_known_everywhere_after_it() {
    let mut net = Net::new(3, THREE);
    for round in 0..3 {
        for (at, rank) in net.ranks() {
            let world = net.start(at).first + rank;
            assert_eq!(
                net.ask(at, rank, put(&format!("card-{round}-{world}"), &format!("value{world}"))),
                Reply::Put(true)
            );
        }
        let ranks = net.ranks();
        net.replies.iter_mut().for_each(Vec::clear);
        for (count, (at, rank)) in ranks.iter().enumerate() {
            assert!(net.replies.iter().all(Vec::is_empty), "{count} of all wait");
            net.pmi(*at, *rank, Request::Fence);
        }
        assert_eq!(net.replies.iter().flatten().filter(|reply| reply.1 == Reply::Fence).count(), ranks.len());
        for (at, rank) in ranks {
            for world in 0..11 {
                let got = net.ask(at, rank, get(&format!("card-{round}-{world}")));
                assert_eq!(got, Reply::Get(Some(format!("value{world}"))));
            }
        }
    }
}

#[test]
fn a_fence_costs_the_same_letters_between_parts_however_many_ranks_there_are() {
    let mut counts = Vec::new();
    for ranks in [1, 32] {
        let mut net = Net::new(2, &[(1, 0, 1, ranks), (2, 0, 1, ranks)]);
        for (at, rank) in net.ranks() {
            net.pmi(at, rank, put(&format!("card-{at}-{rank}"), "x"));
        }
        let before = net.between_parts;
        for (at, rank) in net.ranks() {
            net.pmi(at, rank, Request::Fence);
        }
        counts.push(net.between_parts - before);
    }
    // Up and down, each: one letter with the data, and the fence.
    assert_eq!(counts, [4, 4]);
}

#[test]
fn a_killed_rank_ends_all_parts_with_its_status_and_its_name() {
    let mut net = Net::new(3, THREE);
    net.ended(5, 1, Ended::Signal(9));
    assert!(net.killed[5], "ranks beside it are ended at once");
    net.pass(GRACE);
    assert_eq!(net.finished, vec![Some(137); 6]);
    let told = net.everything_told();
    assert_eq!(
        told.matches("the job ends: rank 10 (part 3, host host31) was ended by SIGKILL").count(),
        3,
        "{told}"
    );
}

#[test]
fn an_abort_ends_all_parts_with_its_code() {
    let mut net = Net::new(3, THREE);
    net.pmi(3, 2, Request::Abort { code: 7, message: "abort".to_owned() });
    net.pass(GRACE);
    assert_eq!(net.finished, vec![Some(7); 6]);
    assert!(net.everything_told().contains("rank 5 (part 2, host host20) called MPI_Abort with 7"));
}

#[test]
fn a_lost_part_is_told_rather_than_what_ranks_say_of_it() {
    let mut net = Net::new(3, THREE);
    net.pmi(0, 0, Request::Abort { code: 741_028_239, message: String::new() });
    net.pass(GRACE);
    assert!(net.finished.iter().all(Option::is_none), "an error of a rank may have a cause");
    net.die(3);
    net.pass(Duration::from_millis(1));
    for at in [0, 1, 2, 4, 5] {
        assert_eq!(net.finished[at], Some(1));
    }
    let told = net.everything_told();
    assert!(told.contains("part 2 (host host20) is gone"), "{told}");
    assert!(!told.contains("MPI_Abort"), "{told}");
}

/// Open MPI aborts with the class of an error when it loses a peer, and a program may abort with the same number. A
/// rank that crashes afterwards, or ends with an error, does not explain it.
#[test]
fn an_abort_by_pmix_is_told_unless_a_loss_explains_it() {
    let aborts = (17, "rank 0 (part 1, host host10) called MPI_Abort with 17");
    let gone = (1, "part 2 (host host20) is gone");
    let killed = (137, "rank 3 (part 2, host host20) was ended by SIGKILL");
    let ends = [Ended::Signal(6), Ended::Signal(11), Ended::Status(1), Ended::Signal(9)];
    let ends = ends.map(|how| (Some(how), if how == Ended::Signal(9) { killed } else { aborts }));
    for (how, (status, words)) in ends.into_iter().chain([(None, aborts), (None, gone)]) {
        let mut net = Net::new(3, THREE);
        net.agents[0].pmix_aborts(net.now, 0, 17, "");
        // The other part does not know of it yet.
        if let Some(how) = how {
            net.ended(3, 0, how);
        }
        net.settle();
        if words != killed.1 {
            net.pass(GRACE);
            assert!(net.finished.iter().all(Option::is_none), "it may have a cause");
        }
        if words == gone.1 {
            net.die(3);
        }
        net.pass(GRACE_ERROR);
        assert!(net.everything_told().contains(words), "{how:?}: {}", net.everything_told());
        assert_eq!(net.finished[0], Some(status), "{how:?}");
    }
}

#[test]
fn a_lost_process_of_a_part_and_a_lost_hub_end_the_job() {
    for (gone, words) in [(5, "part 3 (host host30) lost a process"), (0, "part 1 (host host10) is gone")] {
        let mut net = Net::new(3, THREE);
        net.die(gone);
        net.pass(GRACE);
        net.pass(VERDICT);
        for at in (0..6).filter(|at| *at != gone) {
            assert_eq!(net.finished[at], Some(1), "process {at} after {gone}");
        }
        let told = net.everything_told();
        assert!(told.contains(words) || told.contains("part 3 (host host31) lost a process"), "{told}");
    }
}

#[test]
fn a_signal_is_told_of_the_part_that_had_it() {
    let mut net = Net::new(3, THREE);
    net.agents[4].signalled(net.now, 15);
    net.settle();
    net.ended(4, 0, Ended::Signal(15));
    net.pass(GRACE);
    assert_eq!(net.finished, vec![Some(143); 6]);
    assert!(
        net.everything_told()
            .contains("part 3 (host host30) was told to end: its isthmus run received SIGTERM")
    );
}

#[test]
fn a_part_that_does_not_come_is_named() {
    let mut net = Net::new(3, &THREE[..4]);
    net.pass(NOTICE);
    assert!(net.told[0].concat().contains("waits for part 3, for 600 s at most"), "{:?}", net.told);
    net.pass(Duration::from_secs(600));
    assert_eq!(net.finished, vec![Some(1); 4]);
    assert!(net.told[0].concat().contains("gave up after 600 s: part 3 did not come"), "{:?}", net.told);
}

#[test]
fn processes_that_find_nobody_give_up() {
    let mut net = Net::new(2, &[(2, 0, 2, 1)]);
    net.agents[0].not_found("no such file".to_owned());
    net.settle();
    net.pass(NOTICE);
    net.pass(Duration::from_secs(600));
    assert_eq!(net.finished, [Some(1)]);
    assert!(net.everything_told().contains("process 1 of 2 of part 2 did not come"), "{:?}", net.told);
    let mut net = Net::new(2, &[(2, 0, 1, 1)]);
    net.pass(NOTICE);
    net.pass(Duration::from_secs(600));
    assert!(net.everything_told().contains("part 1 at file:/x did not come"), "{:?}", net.told);
}

#[test]
fn who_does_not_fit_is_refused_with_the_reason() {
    let mut other = me(2, (2, 0, 1, 1));
    other.job = "weather".to_owned();
    let trials = [
        (other, "this is job climate, not weather"),
        (me(3, (2, 0, 1, 1)), "part 1 was started with --part 1/2, this one with 3/2"),
        (me(2, (1, 0, 1, 1)), "there already"),
    ];
    for (other, words) in trials {
        let mut net = Net::new(2, &[(1, 0, 2, 1)]);
        if other.part == 1 {
            // A second process 0 would be a hub of its own. So two members with the same index meet the hub.
            let me = Me { index: 1, count: 2, uri: "isthmus://x".to_owned(), ..other };
            net.join(me.clone());
            net.settle();
            net.join(Me { uri: "isthmus://y".to_owned(), ..me });
        } else {
            net.join(other);
        }
        net.settle();
        let told = net.everything_told();
        assert!(told.contains(words) || told.contains("with 2/3"), "{words}: {told}");
        assert_eq!(net.finished.last(), Some(&Some(1)));
        assert_eq!(net.finished[0], None, "the job goes on waiting");
    }
}

#[test]
fn the_job_is_over_when_all_ranks_are() {
    let mut net = Net::new(3, THREE);
    for (at, rank) in net.ranks() {
        net.pmi(at, rank, Request::Init);
        net.pmi(at, rank, Request::Finalize);
    }
    for (at, rank) in net.ranks() {
        assert!(net.finished.iter().all(Option::is_none));
        net.ended(at, rank, Ended::Status(0));
    }
    assert_eq!(net.finished, vec![Some(0); 6]);
    assert_eq!(net.everything_told(), "");
}

#[test]
fn a_world_that_cannot_go_on_ends() {
    // The ranks of one process end without the fence in which all others wait.
    let mut net = Net::new(3, THREE);
    for (at, rank) in net.ranks().into_iter().filter(|(at, _)| *at != 3) {
        net.pmi(at, rank, Request::Fence);
    }
    for rank in 0..4 {
        net.ended(3, rank, Ended::Status(0));
    }
    net.pass(GRACE);
    assert_eq!(net.finished, vec![Some(1); 6]);
    assert!(net.everything_told().contains("all ranks of part 2 have ended"));
    // The same among the ranks of one process: one ends without MPI_Init.
    let mut net = Net::new(1, &[(1, 0, 1, 2)]);
    net.ended(0, 1, Ended::Status(0));
    net.pmi(0, 0, Request::Init);
    net.pass(GRACE);
    assert!(net.everything_told().contains("rank 1 (part 1, host host10) ended without MPI_Init"));
    // A rank ends without MPI_Finalize.
    let mut net = Net::new(1, &[(1, 0, 1, 2)]);
    net.pmi(0, 0, Request::Init);
    net.ended(0, 0, Ended::Status(0));
    assert!(net.everything_told().contains("ended without MPI_Finalize"));
}

/// Two parts: two processes with two ranks each, and one with two.
const TWO: &[Process] = &[(1, 0, 2, 2), (1, 1, 2, 2), (2, 0, 1, 2)];

/// The ranks that have not ended call MPI_Finalize and end; the job must be over with this status at the processes that
/// live.
fn must_finish(net: &mut Net, gone: &[(usize, u32)], status: u8) {
    let left: Vec<_> =
        net.ranks().into_iter().filter(|rank| !gone.contains(rank) && !net.dead[rank.0]).collect();
    for (at, rank) in &left {
        net.pmi(*at, *rank, Request::Finalize);
        net.ended(*at, *rank, Ended::Status(0));
    }
    for at in (0..net.agents.len()).filter(|at| !net.dead[*at]) {
        assert_eq!(net.finished[at], Some(status), "process {at}: {:?}", net.told);
    }
}

fn dead_as_seen(net: &mut Net, at: usize) -> Option<String> {
    match net.ask(at, 0, get(losing::DEAD)) {
        Reply::Get(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_that_goes_on_outlives_killed_ranks_and_tells_the_others_of_them() {
    let mut net = Net::with(3, THREE, OnLoss::Continue);
    assert_eq!(dead_as_seen(&mut net, 0), None);
    for (at, rank) in net.ranks() {
        net.pmi(at, rank, Request::Init);
    }
    // The last rank that a fence waits for is killed; all others wait.
    for (at, rank) in net.ranks().into_iter().filter(|rank| *rank != (5, 1)) {
        net.pmi(at, rank, put(&format!("card-{at}-{rank}"), "x"));
        net.pmi(at, rank, Request::Fence);
    }
    net.replies.iter_mut().for_each(Vec::clear);
    net.ended(5, 1, Ended::Signal(9));
    let passed = net.replies.iter().flatten().filter(|reply| reply.1 == Reply::Fence).count();
    assert_eq!(passed, 10, "the others pass the fence");
    assert_eq!(net.ask(1, 0, get("card-4-1")), Reply::Get(Some("x".to_owned())));
    for rank in 1..4 {
        net.ended(3, rank, Ended::Signal(9));
    }
    for at in 0..6 {
        assert_eq!(dead_as_seen(&mut net, at).as_deref(), Some("4-6,10"), "process {at}");
    }
    let told = net.everything_told();
    let line = "rank 10 (part 3, host host31) was ended by SIGKILL; the job goes on without it";
    assert_eq!(told.matches(line).count(), 3, "{told}");
    assert!(net.killed.iter().all(|killed| !killed));
    must_finish(&mut net, &[(5, 1), (3, 1), (3, 2), (3, 3)], 0);
}

#[test]
fn a_job_that_goes_on_outlives_processes_and_parts_also_that_of_the_hub() {
    for (gone, dead) in [(1, "2-3"), (2, "4-5"), (0, "0-3")] {
        for in_fence in [false, true] {
            let mut net = Net::with(2, TWO, OnLoss::Continue);
            if in_fence {
                // All ranks of part 2 wait already when the loss comes.
                for rank in 0..2 {
                    net.pmi(2, rank, put(&format!("card-{rank}"), "y"));
                    net.pmi(2, rank, Request::Fence);
                }
            }
            net.die(gone);
            net.pass(GRACE);
            // A process that has lost its head ends, and its ranks count as lost.
            if gone == 0 {
                assert_eq!((net.finished[1], net.killed[1]), (Some(1), true));
                net.dead[1] = true;
            }
            let at = if gone == 2 { 1 } else { 2 };
            assert_eq!(dead_as_seen(&mut net, at).as_deref(), Some(dead), "{gone}");
            assert!(net.told[at].concat().contains(&format!("goes on without ranks {dead}")) || gone == 2);
            let left: Vec<_> = net.ranks().into_iter().filter(|rank| !net.dead[rank.0]).collect();
            net.replies.iter_mut().for_each(Vec::clear);
            for (at, rank) in &left {
                if !(in_fence && *at == 2) {
                    net.pmi(*at, *rank, Request::Fence);
                }
            }
            let waits = net.agents.iter().zip(&net.dead).filter(|(_, dead)| !**dead);
            let waits = waits.flat_map(|(agent, _)| &agent.ranks).filter(|rank| rank.fence.is_some()).count();
            assert_eq!(waits, 0, "the fence passed without {dead}");
            if in_fence && gone != 2 {
                assert_eq!(net.ask(2, 1, get("card-0")), Reply::Get(Some("y".to_owned())));
            }
            must_finish(&mut net, &[], 0);
        }
    }
}

#[test]
fn a_part_that_is_told_to_end_leaves_the_others() {
    for (part, at, dead) in [(2, 2, "4-5"), (1, 0, "0-3")] {
        let mut net = Net::with(2, TWO, OnLoss::Continue);
        net.agents[at].signalled(net.now, 15);
        net.settle();
        assert_eq!((net.finished[at], net.killed[at]), (Some(143), true));
        let members: &[usize] = if part == 1 { &[0, 1] } else { &[2] };
        for gone in members {
            net.dead[*gone] = true;
        }
        members.iter().for_each(|gone| net.die(*gone));
        let other = if part == 1 { 2 } else { 0 };
        assert_eq!(dead_as_seen(&mut net, other).as_deref(), Some(dead));
        let told = net.told[other].concat();
        let why = "was told to end: its isthmus run received SIGTERM; the job goes on without ranks";
        assert_eq!(told.matches(why).count(), 1, "{told}");
        assert!(!told.contains("is gone"), "{told}");
        must_finish(&mut net, &[], 0);
    }
}

#[test]
fn the_status_of_a_job_that_goes_on_is_that_of_ranks_that_end_by_themselves() {
    // One rank fails by itself, after another was killed.
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    net.ended(2, 0, Ended::Signal(9));
    net.ended(0, 1, Ended::Status(7));
    must_finish(&mut net, &[(2, 0), (0, 1)], 7);
    // All are killed.
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    for (at, rank) in net.ranks() {
        net.ended(at, rank, Ended::Signal(9));
    }
    assert_eq!(net.finished, vec![Some(137); 3]);
    // A rank that ends the job itself ends it.
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    net.pmi(2, 1, Request::Abort { code: 9, message: String::new() });
    net.pass(GRACE);
    assert_eq!(net.finished, vec![Some(9); 3]);
}

#[test]
fn losses_of_ranks_that_cannot_be_change_nothing() {
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    let failure =
        Failure { part: 2, rank: None, host: String::new(), why: String::new(), status: 1, kind: Kind::Gone };
    let link = net.links.iter().position(|ends| ends.0 == 2).expect("part 2's") as Link;
    let ranks = vec![(0, u32::MAX), (5, 2)];
    net.agents[0].letter(net.now, link, Letter::Lost { ranks: ranks.clone(), failure: failure.clone() });
    net.settle();
    assert_eq!(dead_as_seen(&mut net, 0), None);
    // Nor do they reach libpmix with one that can.
    let ranks = ranks.into_iter().chain([(5, 5)]).collect();
    net.agents[0].letter(net.now, link, Letter::Lost { ranks, failure });
    net.settle();
    assert!(!net.lost.is_empty() && net.lost.iter().all(|(_, ranks)| *ranks == [(5, 5)]), "{:?}", net.lost);
}

#[test]
fn output_is_printed_at_the_first_process_also_last_words() {
    let mut net = Net::new(3, THREE);
    let lines = |text: &str| Lines { is_error: false, text: text.as_bytes().to_vec() };
    net.agents[5].output(None, lines("a"));
    net.agents[0].output(None, lines("b"));
    net.settle();
    net.ended(4, 0, Ended::Signal(11));
    net.agents[4].output(None, lines("last"));
    net.settle();
    let printed: Vec<_> = net.printed.iter().map(|(at, text)| (*at, text.as_str())).collect();
    assert_eq!(printed, [(0, "b"), (0, "a"), (0, "last")]);
    assert_eq!(net.acknowledged, [1, 0, 0, 0, 1, 1]);
    // Nobody prints it if the connection is gone: so it is printed here.
    net.die(0);
    net.agents[3].output(None, lines("alone"));
    net.settle();
    assert_eq!(net.printed.last(), Some(&(3, "alone".to_owned())));
    assert_eq!(net.acknowledged[3], 1);
}

#[test]
fn a_fence_of_pmix_passes_what_ranks_gave_between_processes() {
    let mut net = Net::new(2, TWO);
    for at in 0..3 {
        assert!(net.pmix.is_empty(), "the others wait");
        let bytes = [at as u8, 255];
        net.agents[at].pmix_fence(net.now, &bytes);
        net.settle();
    }
    net.pmix.iter_mut().for_each(|(_, bytes)| bytes.sort_unstable());
    net.pmix.sort();
    let all = vec![0, 1, 2, 255, 255, 255];
    assert_eq!(net.pmix, [(0, all.clone()), (1, all.clone()), (2, all)]);
    // The next fence gets nothing of the last.
    net.pmix.clear();
    (0..3).for_each(|at| net.agents[at].pmix_fence(net.now, &[]));
    net.settle();
    assert_eq!(net.pmix.iter().filter(|(_, bytes)| bytes.is_empty()).count(), 3);
    // A rank that ends while it uses the server fails.
    net.agents[2].pmix_uses(net.now, 0, true);
    net.ended(2, 0, Ended::Status(0));
    net.pass(GRACE_ERROR);
    assert!(net.everything_told().contains("rank 4 (part 2, host host20) ended without MPI_Finalize"));
}

#[test]
fn pmix_servers_hear_once_of_a_loss_and_their_fences_pass_without_the_lost_rank() {
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    for (at, rank) in net.ranks() {
        net.agents[at].pmix_uses(net.now, rank, true);
    }
    // The server misses the killed rank, and so completes the fence, before its process has ended.
    net.agents[0].pmix_fence(net.now, &[0]);
    net.settle();
    net.ended(0, 1, Ended::Signal(9));
    net.lost.sort();
    assert_eq!(net.lost, [0, 1, 2].map(|at| (at, vec![(1, 1)])));
    (1..3).for_each(|at| net.agents[at].pmix_fence(net.now, &[at as u8]));
    net.settle();
    assert_eq!(net.pmix.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn a_process_that_loses_its_pmix_server_ends_or_is_lost_to_the_others() {
    let mut net = Net::new(2, TWO);
    net.agents[2].pmix_ended(net.now, "it was killed");
    net.settle();
    assert!(
        net.everything_told().contains("has lost its PMIx server: it was killed"),
        "{}",
        net.everything_told()
    );
    assert!(net.killed.iter().all(|killed| *killed), "ranks of all processes end");

    let mut net = Net::with(2, TWO, OnLoss::Continue);
    net.agents[2].pmix_ended(net.now, "it was killed");
    net.settle();
    assert!(net.killed[2] && !net.killed[0], "the others go on");
    assert!(net.everything_told().contains("has lost its PMIx server"), "{}", net.everything_told());
}

#[test]
fn names_of_ports_are_known_in_all_parts() {
    let mut net = Net::new(3, THREE);
    let name = || "ocean".to_owned();
    assert_eq!(net.ask(5, 1, Request::LookUp { name: name() }), Reply::LookUp(None));
    assert_eq!(net.ask(4, 0, Request::Publish { name: name(), port: "p".to_owned() }), Reply::Publish(true));
    assert_eq!(net.ask(2, 0, Request::Publish { name: name(), port: "q".to_owned() }), Reply::Publish(false));
    assert_eq!(net.ask(5, 1, Request::LookUp { name: name() }), Reply::LookUp(Some("p".to_owned())));
    assert_eq!(net.ask(0, 0, Request::Unpublish { name: name() }), Reply::Unpublish(true));
    assert_eq!(net.ask(3, 0, Request::LookUp { name: name() }), Reply::LookUp(None));
}

#[test]
fn values_of_a_node_are_waited_for() {
    let mut net = Net::new(1, &[(1, 0, 1, 2)]);
    let key = || "segment".to_owned();
    assert_eq!(net.ask(0, 0, Request::GetNode { key: key(), wait: false }), Reply::GetNode(None));
    net.replies[0].clear();
    net.pmi(0, 1, Request::GetNode { key: key(), wait: true });
    assert!(net.replies[0].is_empty());
    net.pmi(0, 0, Request::PutNode { key: key(), value: "v".to_owned() });
    assert!(net.replies[0].contains(&(1, Reply::GetNode(Some("v".to_owned())))));
}

#[test]
fn hostile_letters_change_nothing() {
    let mut net = Net::new(3, THREE);
    let hub_link = net.links.iter().position(|ends| ends.0 == 3).expect("part 2's") as Link;
    let start = net.start(0).clone();
    for letter in [
        Letter::World(World { space: String::new(), sizes: vec![], mapping: String::new() }),
        Letter::Start(start),
        Letter::Ready { nodes: vec![] },
        Letter::Ready { nodes: vec![u32::MAX] },
        Letter::Answer(None),
        Letter::Welcome { host: String::new() },
    ] {
        net.agents[0].letter(net.now, hub_link, letter);
        net.agents[0].letter(net.now, 9999, Letter::Done(Some(0)));
        net.settle();
    }
    assert!(net.finished.iter().all(Option::is_none));
    assert_eq!(net.start(0).size, 11);
}

#[test]
fn a_world_that_this_part_is_not_in_starts_nothing() {
    let world = |sizes: &[u32]| World { space: String::new(), sizes: sizes.to_vec(), mapping: String::new() };
    let net = Net::new(2, &[(1, 0, 1, 1), (2, 0, 1, 3)]);
    let part = &net.agents[1];
    assert!(part.fits(&world(&[1, 3])));
    for wrong in [&[][..], &[1], &[1, 2], &[0, 3], &[u32::MAX, 3], &[1, 3, 1]] {
        assert!(!part.fits(&world(wrong)), "{wrong:?}");
    }
}

#[test]
fn a_part_has_no_more_ranks_than_its_bound() {
    let mut net = Net::new(1, &[(1, 0, 2, 2)]);
    net.join(me(1, (1, 1, 2, 32_768)));
    net.agents[1].me.ranks = RANKS_MAX;
    let role = Role::Member { index: 1, count: 2, ranks: RANKS_MAX - 1, node: String::new() };
    let hello = net.agents[1].hello(role);
    assert!(net.agents[0].admits(&hello).expect_err("too many").contains("more than 65536 ranks"));
}
