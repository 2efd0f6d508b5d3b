use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

/// A member at work, with bytes for its stores; combining adds.
struct Member {
    rounds: VecDeque<Round>,
    sent: bool,
    input: Vec<u8>,
    result: Vec<u8>,
    scratch: Vec<u8>,
}

impl Member {
    fn store(&mut self, store: Store) -> &mut Vec<u8> {
        match store {
            Store::Input => &mut self.input,
            Store::Result => &mut self.result,
            Store::Scratch => &mut self.scratch,
        }
    }

    fn bytes(&mut self, piece: Piece) -> &mut [u8] {
        &mut self.store(piece.store)[piece.start..piece.start + piece.len]
    }
}

/// Runs an operation at `count` members, who act in the given order. Returns each member's result.
fn run(what: Collective, inputs: Vec<Vec<u8>>, results: Vec<Vec<u8>>, backwards: bool) -> Vec<Vec<u8>> {
    let count = inputs.len();
    let mut network: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
    let mut sent = HashSet::new();
    let mut members: Vec<Member> = inputs
        .into_iter()
        .zip(results)
        .enumerate()
        .map(|(me, (input, mut result))| {
            if let Some((from, to, len)) = what.own_part(me) {
                result[to..to + len].copy_from_slice(&input[from..from + len]);
            }
            let rounds = what.rounds(me, count).into();
            Member { rounds, sent: false, input, result, scratch: vec![0; what.scratch(me, count)] }
        })
        .collect();
    for _turn in 0..200 {
        for turn in 0..count {
            let me = if backwards { count - 1 - turn } else { turn };
            let member = &mut members[me];
            let Some(round) = member.rounds.front().cloned() else { continue };
            if !std::mem::replace(&mut member.sent, true) {
                for step in &round.steps {
                    if let Step::Send(to, piece) = *step {
                        let bytes = member.bytes(piece).to_vec();
                        assert!(sent.insert((me, to)), "{what:?} of {count}: two messages from {me} to {to}");
                        network.insert((me, to), bytes);
                    }
                }
            }
            let there = |step: &Step| match step {
                Step::Receive(from, _) => network.contains_key(&(*from, me)),
                Step::Send(..) => true,
            };
            if !round.steps.iter().all(there) {
                continue;
            }
            for step in &round.steps {
                if let Step::Receive(from, piece) = *step {
                    let bytes = network.remove(&(from, me)).expect("it is there");
                    member.bytes(piece).copy_from_slice(&bytes);
                }
            }
            for &piece in &round.combine {
                let other = member.bytes(piece).to_vec();
                member.result.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
            }
            member.rounds.pop_front();
            member.sent = false;
        }
    }
    assert!(members.iter().all(|member| member.rounds.is_empty()), "{what:?} of {count} never ends");
    assert!(network.is_empty(), "{what:?} of {count} sends what nobody takes");
    members.into_iter().map(|member| member.result).collect()
}

fn for_all(check: impl Fn(usize, bool)) {
    for count in 1..=17 {
        check(count, false);
        check(count, true);
    }
}

#[test]
fn everybody_gets_what_the_root_has() {
    for_all(|count, backwards| {
        for root in 0..count {
            let results = (0..count).map(|me| vec![if me == root { 7 } else { 0 }; 3]).collect();
            let ended =
                run(Collective::Broadcast { root, len: 3 }, vec![Vec::new(); count], results, backwards);
            assert_eq!(ended, vec![vec![7; 3]; count]);
        }
    });
}

#[test]
fn everybody_gets_the_sum() {
    for_all(|count, backwards| {
        let inputs = (0..count).map(|me| vec![me as u8, 1]).collect();
        let ended = run(Collective::AllReduce { len: 2 }, inputs, vec![vec![0; 2]; count], backwards);
        assert_eq!(ended, vec![vec![(count * (count - 1) / 2) as u8, count as u8]; count]);
    });
}

#[test]
fn everybody_gets_everybodys_block_in_order() {
    for_all(|count, backwards| {
        let inputs = (0..count).map(|me| vec![me as u8; 2]).collect();
        let ended =
            run(Collective::AllGather { len: 2 }, inputs, vec![vec![99; 2 * count]; count], backwards);
        let all: Vec<u8> = (0..count).flat_map(|me| [me as u8; 2]).collect();
        assert_eq!(ended, vec![all; count]);
    });
}

#[test]
fn everybody_gets_its_block_of_the_roots() {
    for_all(|count, backwards| {
        for root in 0..count {
            let all: Vec<u8> = (0..count).flat_map(|me| [me as u8; 2]).collect();
            let inputs = (0..count).map(|me| if me == root { all.clone() } else { Vec::new() }).collect();
            let ended =
                run(Collective::Scatter { root, len: 2 }, inputs, vec![vec![99; 2]; count], backwards);
            assert_eq!(ended, (0..count).map(|me| vec![me as u8; 2]).collect::<Vec<_>>());
        }
    });
}

/// A member leaves a barrier only after it has heard, directly or through others, of all members.
#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for_all(|count, backwards| {
        run(Collective::Barrier, vec![Vec::new(); count], vec![Vec::new(); count], backwards);
        let mut known: Vec<Vec<bool>> =
            (0..count).map(|me| (0..count).map(|other| me == other).collect()).collect();
        let rounds = Collective::Barrier.rounds(0, count).len();
        for nth in 0..rounds {
            let before = known.clone();
            for (me, mine) in known.iter_mut().enumerate() {
                for step in &Collective::Barrier.rounds(me, count)[nth].steps {
                    if let Step::Receive(from, _) = step {
                        mine.iter_mut().zip(&before[*from]).for_each(|(mine, theirs)| *mine |= theirs);
                    }
                }
            }
        }
        assert!(known.iter().flatten().all(|&known| known));
    });
}
