//! Plans a collective operation: what each member sends and receives, round by round. At most one message goes each way
//! between two members, so messages of an operation need no numbers. Nothing is sent here.

/// A collective operation on blocks of `len` bytes; roots are ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Barrier,
    Broadcast { root: usize, len: usize },
    AllReduce { len: usize },
    AllGather { len: usize },
    Scatter { root: usize, len: usize },
}

/// The buffers of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// The program's input buffer.
    Input,
    /// The program's result buffer.
    Result,
    /// Values that came from others, to be combined with the result.
    Scratch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) store: Store,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// A message from or to a member, by its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Send(usize, Piece),
    Receive(usize, Piece),
}

/// Messages that go at the same time. The next round begins when all of them are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) steps: Vec<Step>,
    /// Pieces of the scratch buffer that are combined with the result after the round, in this order.
    pub(super) combine: Vec<Piece>,
}

impl Collective {
    /// The rounds of the member of rank `me` of `count`. Its own part of the result is there already (`own_part`).
    pub(super) fn rounds(self, me: usize, count: usize) -> Vec<Round> {
        match self {
            _ if count < 2 => Vec::new(),
            Self::Barrier => barrier(me, count),
            Self::Broadcast { root, len } => broadcast(me, root, count, len),
            Self::AllReduce { len } => {
                let mut rounds = reduce(me, count, len);
                rounds.extend(broadcast(me, 0, count, len));
                rounds
            }
            Self::AllGather { len } => all_gather(me, count, len),
            Self::Scatter { root, len } => scatter(me, root, count, len),
        }
    }

    /// The part of its own input that a member copies into its result: offset in the input, in the result, and length.
    /// Bytes.
    pub(super) fn own_part(self, me: usize) -> Option<(usize, usize, usize)> {
        match self {
            Self::AllReduce { len } => Some((0, 0, len)),
            Self::AllGather { len } => Some((0, me * len, len)),
            Self::Scatter { root, len } if me == root => Some((me * len, 0, len)),
            _ => None,
        }
    }

    /// Bytes of scratch that a member needs.
    pub(super) fn scratch(self, me: usize, count: usize) -> usize {
        match self {
            Self::AllReduce { len } => len * children(me, count).count(),
            _ => 0,
        }
    }
}

fn piece(store: Store, start: usize, len: usize) -> Piece {
    Piece { store, start, len }
}

/// Dissemination barrier: in rounds of distance 1, 2, 4 and so on, every member hears of every other.
fn barrier(me: usize, count: usize) -> Vec<Round> {
    let nothing = piece(Store::Result, 0, 0);
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    let round = |distance: usize| Round {
        steps: vec![
            Step::Send((me + distance) % count, nothing),
            Step::Receive((me + count - distance) % count, nothing),
        ],
        ..Round::default()
    };
    distances.take_while(|&distance| distance < count).map(round).collect()
}

/// The children of a member in the binomial tree with root 0.
fn children(me: usize, count: usize) -> impl Iterator<Item = usize> {
    let most = if me == 0 { usize::BITS } else { me.trailing_zeros() };
    (0..most).map(move |bit| me | 1 << bit).take_while(move |&child| child < count)
}

/// The parent of a member in that tree.
fn parent(me: usize) -> usize {
    me & (me - 1)
}

/// Down a binomial tree.
fn broadcast(me: usize, root: usize, count: usize, len: usize) -> Vec<Round> {
    let (place, all) = ((me + count - root) % count, piece(Store::Result, 0, len));
    let member = |place: usize| (place + root) % count;
    let mut rounds = Vec::with_capacity(2);
    if place > 0 {
        rounds.push(Round { steps: vec![Step::Receive(member(parent(place)), all)], ..Round::default() });
    }
    // The farthest children have the largest subtrees, so they go first.
    let mut steps: Vec<Step> = children(place, count).map(|child| Step::Send(member(child), all)).collect();
    steps.reverse();
    rounds.push(Round { steps, ..Round::default() });
    rounds
}

/// Up the same tree, to 0.
fn reduce(me: usize, count: usize, len: usize) -> Vec<Round> {
    let pieces: Vec<Piece> =
        children(me, count).enumerate().map(|(nth, _)| piece(Store::Scratch, nth * len, len)).collect();
    let steps = children(me, count).zip(&pieces).map(|(child, &from)| Step::Receive(child, from)).collect();
    let mut rounds = vec![Round { steps, combine: pieces }];
    if me > 0 {
        let steps = vec![Step::Send(parent(me), piece(Store::Result, 0, len))];
        rounds.push(Round { steps, ..Round::default() });
    }
    rounds
}

/// Everybody sends to everybody, in one round. Over long distances, rounds cost more than messages.
fn all_gather(me: usize, count: usize, len: usize) -> Vec<Round> {
    let others = (1..count).map(|distance| (me + distance) % count);
    let own = piece(Store::Result, me * len, len);
    let steps = others
        .flat_map(|other| {
            [Step::Receive(other, piece(Store::Result, other * len, len)), Step::Send(other, own)]
        })
        .collect();
    vec![Round { steps, ..Round::default() }]
}

fn scatter(me: usize, root: usize, count: usize, len: usize) -> Vec<Round> {
    let steps = if me == root {
        let others = (1..count).map(|distance| (me + distance) % count);
        others.map(|other| Step::Send(other, piece(Store::Input, other * len, len))).collect()
    } else {
        vec![Step::Receive(root, piece(Store::Result, 0, len))]
    };
    vec![Round { steps, ..Round::default() }]
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
