//! Ranks that live and cannot reach each other.

use super::*;

/// A job of which each rank has opened an endpoint.
fn with_endpoints(parts: u32, processes: &[Process]) -> Net {
    let mut net = Net::with(parts, processes, OnLoss::Continue);
    for (at, rank) in net.ranks() {
        net.pmi(at, rank, Request::Init);
        let world = net.start(at).first + rank;
        net.agents[at].endpoint_opened(world, endpoint_of(world));
    }
    net
}

fn endpoint_of(rank: u32) -> String {
    format!("endpoint of {rank}")
}

/// Rank `by` of the world reports another one.
fn unreachable(net: &mut Net, by: u32, other: u32) {
    let at = (0..net.agents.len()).rfind(|at| net.start(*at).first <= by).expect("a process");
    net.agents[at].peer_unreachable(net.now, by, endpoint_of(other), "no route".to_owned());
}

/// Ranks of the world report others, in the same moment. The hub decides.
fn report(net: &mut Net, pairs: &[(u32, u32)]) {
    for (by, other) in pairs {
        unreachable(net, *by, *other);
    }
    net.settle();
    assert!(net.killed_ranks.is_empty(), "{pairs:?}: the hub waits for further reports");
    net.pass(Duration::from_secs(2));
}

/// The lost ranks, as all processes see them. Their processes have killed each of them once.
fn must_be_killed(net: &mut Net, dead: &str) {
    for at in 0..net.agents.len() {
        assert_eq!(dead_as_seen(net, at).as_deref(), Some(dead), "process {at}");
    }
    let killed = net.killed_ranks.iter().map(|(at, rank)| net.start(*at).first + rank);
    let known: Vec<u32> = net.agents[0].dead.iter().copied().collect();
    let mut killed: Vec<u32> = killed.collect();
    killed.sort_unstable();
    assert_eq!(killed, known);
}

/// The higher rank is lost, whoever tells first, also if both tell at once, in one part, or in one process.
#[test]
fn of_two_ranks_that_cannot_reach_each_other_one_is_lost() {
    // Process and rank of the world of the lost rank, and the other rank.
    for ((at, lost), other) in [((5, 10), 1), ((3, 4), 0), ((5, 9), 6), ((5, 9), 7), ((4, 8), 7), ((2, 2), 1)]
    {
        let (high, low) = ((lost, other), (other, lost));
        for reports in [&[high][..], &[low], &[high, low], &[low, high]] {
            let mut net = with_endpoints(3, THREE);
            report(&mut net, reports);
            must_be_killed(&mut net, &lost.to_string());
            let told = net.everything_told();
            let line =
                format!("is lost, because it and rank {other} cannot reach each other (no route); the job");
            assert_eq!(told.matches(&line).count(), 3, "{told}");
            let own = lost - net.start(at).first;
            net.ended(at, own, Ended::Signal(9));
            must_finish(&mut net, &[(at, own)], 0);
        }
    }
}

#[test]
fn a_rank_that_others_cannot_reach_is_lost_alone() {
    for stopped in [0, 3] {
        let mut net = with_endpoints(2, &[(1, 0, 2, 2), (1, 1, 2, 2), (2, 0, 1, 4)]);
        let pairs: Vec<_> = (4..8).map(|by| (by, stopped)).collect();
        report(&mut net, &pairs);
        must_be_killed(&mut net, &stopped.to_string());
        let line = "because it and rank 4 and 3 more cannot reach each other (no route)";
        assert!(net.everything_told().contains(line), "{}", net.everything_told());
    }
}

#[test]
fn of_two_parts_that_cannot_reach_each_other_the_smaller_one_is_lost() {
    for (first, second, lost) in [(3, 3, "3-5"), (2, 3, "0-1"), (3, 2, "3-4")] {
        let mut net = with_endpoints(2, &[(1, 0, 1, first), (2, 0, 1, second)]);
        let pairs: Vec<_> = (0..first)
            .flat_map(|one| (first..first + second).flat_map(move |other| [(one, other), (other, one)]))
            .collect();
        report(&mut net, &pairs);
        must_be_killed(&mut net, lost);
    }
}

#[test]
fn a_pair_of_which_one_rank_is_lost_meanwhile_costs_no_other() {
    let mut net = with_endpoints(2, TWO);
    net.agents[0].peer_unreachable(net.now, 0, endpoint_of(5), "no route".to_owned());
    net.settle();
    net.ended(0, 0, Ended::Signal(9));
    net.pass(Duration::from_secs(2));
    assert!(net.killed_ranks.is_empty());
    assert_eq!(dead_as_seen(&mut net, 2).as_deref(), Some("0"));
}

#[test]
fn reports_of_ranks_of_other_processes_and_second_owners_change_nothing() {
    let mut net = with_endpoints(2, TWO);
    net.agents[2].endpoint_opened(5, endpoint_of(4));
    net.agents[0].peer_unreachable(net.now, 5, endpoint_of(1), String::new());
    report(&mut net, &[(0, 4)]);
    must_be_killed(&mut net, "4");
}

/// It has called MPI_Finalize, so that it ends by itself, but the others take it for lost.
#[test]
fn a_lost_rank_that_has_finished_is_not_killed() {
    let mut net = with_endpoints(2, TWO);
    net.agents[0].peer_unreachable(net.now, 0, endpoint_of(5), "no route".to_owned());
    net.settle();
    net.pmi(2, 1, Request::Finalize);
    net.pass(Duration::from_secs(2));
    assert_eq!(dead_as_seen(&mut net, 0).as_deref(), Some("5"));
    assert!(net.killed_ranks.is_empty());
}

#[test]
fn a_rank_that_has_finished_or_that_nobody_knows_is_not_lost() {
    let mut net = Net::with(2, TWO, OnLoss::Continue);
    net.pmi(2, 0, Request::Init);
    let first = net.start(2).first;
    net.agents[2].endpoint_opened(first, "finished".to_owned());
    net.pmi(2, 0, Request::Finalize);
    for endpoint in ["finished", "of somebody else"] {
        net.agents[0].peer_unreachable(net.now, 0, endpoint.to_owned(), String::new());
        net.settle();
    }
    net.pass(Duration::from_secs(2));
    assert_eq!(dead_as_seen(&mut net, 1), None);
    assert!(net.killed_ranks.is_empty());
}

/// A report about a rank of another process, and one about a rank of the same process.
#[test]
fn reports_that_the_hub_had_not_decided_on_outlive_it() {
    for (by, other, lost) in
        [(2, 5, "0-1,5"), (5, 2, "0-1,5"), (4, 5, "0-1,5"), (2, 3, "0-1,3"), (1, 5, "0-1")]
    {
        let mut net = with_endpoints(2, &[(1, 0, 1, 2), (2, 0, 2, 2), (2, 1, 2, 2)]);
        unreachable(&mut net, by, other);
        net.settle();
        net.die(0);
        net.pass(Duration::from_secs(2));
        let dead: Vec<_> = (1..3).map(|at| dead_as_seen(&mut net, at)).collect();
        assert_eq!(dead, [Some(lost.to_owned()), Some(lost.to_owned())], "{by} {other}");
        assert_eq!(net.killed_ranks.len(), lost.matches(',').count(), "{by} {other}");
    }
}
