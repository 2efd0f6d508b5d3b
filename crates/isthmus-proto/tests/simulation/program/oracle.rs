//! The oracle: checks all completions of a program, and what is left in the end.

use isthmus_proto::{Channel, Completion, CompletionKind, Fence, OpError};

use super::{CELLS, Getter, Kind, LATE, Op, Program, SLOT, SLOTS, content};
use crate::arena::KEY;

impl Program {
    /// Judges all completions that have come.
    pub(crate) fn check(&mut self) {
        for node in 0..self.nodes() {
            while let Some(completion) = self.world.nodes[node].done.pop_front() {
                self.judge(node, &completion);
            }
        }
    }

    fn judge(&mut self, node: usize, completion: &Completion) {
        match completion.kind {
            CompletionKind::RemoteWrite => return self.judge_remote(node, completion),
            CompletionKind::RemoteAccess { .. } => return,
            _ => {}
        }
        let context = completion.context;
        if context & LATE != 0 {
            assert!(matches!(completion.kind, CompletionKind::SendLost(_)), "{completion:?}");
            assert!(!self.ops.contains_key(&(context & !LATE)), "its failure came before its completion");
            assert!(self.forgives(node, completion), "completed twice: {completion:?}");
            return;
        }
        self.completed += 1;
        let op = self
            .ops
            .get(&context)
            .unwrap_or_else(|| panic!("completed twice or never posted: {completion:?}"))
            .clone();
        assert_eq!(op.node, node);
        if let Kind::Recv { getter } = op.kind
            && self.getters[getter].multi
        {
            return self.judge_multi(getter, context, completion);
        }
        self.ops.remove(&context);
        self.retire(&op, completion.error.is_none());
        let bytes = op.place.map(|place| self.world.nodes[node].mem.reclaim(place));
        match op.kind {
            Kind::Send => self.expect_success(node, completion),
            Kind::Recv { getter } => self.judge_recv(getter, completion, &bytes.unwrap_or_default()),
            Kind::Claim { getter, msg, discard } => {
                if self.forgives(node, completion) {
                    return;
                }
                if discard {
                    assert_eq!(completion.error, None);
                } else {
                    let room = self.getters[getter].room;
                    self.judge_content(msg, room, completion, &bytes.unwrap_or_default());
                }
            }
            Kind::Write { target, slot, content } => {
                self.judge_write(node, target, slot, content, completion)
            }
            Kind::Read { expected, slot } => {
                if let Some((to, slot)) = slot {
                    self.slots.get_mut(&(node, to, slot)).expect("a slot").1 = false;
                }
                self.expect_success(node, completion);
                assert!(bytes == Some(expected) || completion.error.is_some(), "read something else");
            }
            Kind::Atomic { expected } => self.judge_atomic(node, op.peer, expected, bytes, completion),
            Kind::Refused { status } => {
                if !self.forgives(node, completion) {
                    assert_eq!(completion.error, Some(OpError::RemoteAccess(status.text())));
                }
            }
        }
    }

    fn judge_remote(&mut self, node: usize, completion: &Completion) {
        let context = completion.data.expect("data of a remote write");
        let awaited = self.remote_data.remove(&context);
        assert_eq!(awaited, Some(node), "data of a write came twice or astray");
    }

    fn judge_write(
        &mut self,
        node: usize,
        target: usize,
        slot: usize,
        content: Vec<u8>,
        completion: &Completion,
    ) {
        let entry = self.slots.get_mut(&(node, target, slot)).expect("a slot");
        entry.1 = false;
        let addr = (node * SLOTS + slot) * SLOT as usize;
        let region = &self.world.nodes[target].mem.region(KEY)[addr..];
        let arrived = region[..content.len()] == content[..];
        if content.len() >= entry.0.len() {
            entry.0 = content;
        } else {
            entry.0[..content.len()].copy_from_slice(&content);
        }
        self.expect_success(node, completion);
        assert!(arrived || completion.error.is_some(), "complete but not written");
    }

    fn judge_atomic(
        &mut self,
        node: usize,
        peer: usize,
        expected: Option<Vec<u8>>,
        bytes: Option<Vec<u8>>,
        completion: &Completion,
    ) {
        self.expect_success(node, completion);
        if completion.error.is_some() {
            return;
        }
        match (expected, bytes) {
            (Some(expected), bytes) => assert_eq!(bytes, Some(expected), "fetched something else"),
            (None, Some(bytes)) => {
                let seen = u64::from_le_bytes(bytes.try_into().expect("one element"));
                assert!(self.shared.entry(peer).or_default().insert(seen), "counted twice");
            }
            (None, None) => {}
        }
    }

    fn retire(&mut self, op: &Op, succeeded: bool) {
        if op.peer == usize::MAX {
            return;
        }
        let pending = self.pending.get_mut(&(op.node, op.peer)).expect("posted");
        // A message to oneself that waits for its receive has passed matching, and a fence does not wait for more.
        if succeeded && op.fence != Fence::None && op.node != op.peer {
            let counts =
                |number: &&u64| op.fence == Fence::All || self.ops.get(*number).is_some_and(Op::is_remote);
            let earlier = pending.range(..op.number).find(counts);
            assert_eq!(earlier, None, "an operation behind a fence ended before one in front of it");
        }
        pending.remove(&op.number);
    }

    /// Whether this is an error of a peer, and peers may fail.
    fn forgives(&mut self, node: usize, completion: &Completion) -> bool {
        match &completion.error {
            Some(error @ (OpError::PeerGone(_) | OpError::Unreachable(_) | OpError::Protocol(_))) => {
                assert!(self.mortal, "{error}");
                self.failures.push((node, error.clone()));
                true
            }
            _ => false,
        }
    }

    fn expect_success(&mut self, node: usize, completion: &Completion) {
        if !self.forgives(node, completion) {
            assert_eq!(completion.error, None);
        }
    }

    fn message_of(&self, completion: &Completion, bytes: &[u8]) -> u64 {
        if let Some(data) = completion.data {
            return data;
        }
        if completion.kind == CompletionKind::Recv(Channel::Tagged) {
            return completion.tag >> 8;
        }
        u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
    }

    fn judge_recv(&mut self, getter: usize, completion: &Completion, bytes: &[u8]) {
        self.getters[getter].over = true;
        let node = self.getters[getter].node;
        if completion.error == Some(OpError::Cancelled) || self.forgives(node, completion) {
            self.getters[getter].node = usize::MAX; // fits nothing from now on
            return;
        }
        let msg = self.message_of(completion, bytes);
        self.note_match(msg, getter);
        self.judge_content(msg, self.getters[getter].room, completion, bytes);
    }

    fn judge_content(&mut self, id: u64, room: u64, completion: &Completion, bytes: &[u8]) {
        let msg = &self.msgs[id as usize];
        let kept = msg.len.min(room);
        assert_eq!((completion.len, completion.data), (kept, msg.data));
        assert!(bytes[..kept as usize] == content(id, msg.len)[..kept as usize], "message {id} is garbled");
        assert!(bytes[kept as usize..].iter().all(|byte| *byte == 0xEE), "written beyond message {id}");
        if msg.len > room {
            assert_eq!(completion.error, Some(OpError::Truncated { sent: msg.len, room }));
        } else {
            assert_eq!(completion.error, None);
        }
        if msg.channel == Channel::Tagged {
            assert_eq!(completion.tag, msg.tag(id));
        }
        let from = msg.from;
        let node = msg.to;
        assert_eq!(completion.peer, Some(self.world.peer(node, from)), "from somebody else");
    }

    fn judge_multi(&mut self, getter: usize, context: u64, completion: &Completion) {
        let node = self.getters[getter].node;
        let released = completion.released || completion.kind == CompletionKind::BufferReleased;
        let gone = completion.kind == CompletionKind::BufferReleased
            || completion.error == Some(OpError::Cancelled)
            || self.forgives(node, completion);
        let Getter { place, room, .. } = self.getters[getter];
        if !gone {
            let start = completion.buffer - place.token;
            let mem = &mut self.world.nodes[node].mem;
            let bytes = mem.peek(place)[start as usize..(start + completion.len) as usize].to_vec();
            let id = self.message_of(completion, &bytes);
            self.note_match(id, getter);
            let truncated = self.msgs[id as usize].len > completion.len;
            assert!(!truncated || (start == 0 && completion.len == room), "cut short without need");
            self.judge_content(id, if truncated { room } else { completion.len }, completion, &bytes);
            self.getters[getter].slices.push((start, completion.len, id));
        }
        if released {
            self.getters[getter].over = true;
            let op = self.ops.remove(&context).expect("posted");
            self.retire(&op, false);
            let bytes = self.world.nodes[node].mem.reclaim(place);
            for (start, len, id) in &self.getters[getter].slices {
                let slice = &bytes[*start as usize..(start + len) as usize];
                let whole = content(*id, self.msgs[*id as usize].len);
                assert!(slice == &whole[..*len as usize], "a slice changed later");
            }
        } else {
            assert!(!gone || self.mortal, "ended without being released");
        }
    }

    pub(super) fn note_match(&mut self, msg: u64, getter: usize) {
        let record = &mut self.msgs[msg as usize];
        assert!(self.getters[getter].fits(record), "matched what does not fit");
        assert_eq!(record.matched, None, "message {msg} arrived twice");
        record.matched = Some(self.matches.len());
        self.matches.push((msg, getter));
    }

    pub(super) fn check_memory(&self) {
        assert!(self.remote_data.is_empty(), "data of writes never came");
        for ((node, to, slot), (expected, _)) in &self.slots {
            let addr = (node * SLOTS + slot) * SLOT as usize;
            let region = &self.world.nodes[*to].mem.region(KEY)[addr..addr + expected.len()];
            assert!(region == expected, "a slot changed after its write was complete");
        }
        let cells = self.nodes() * SLOTS * SLOT as usize;
        for ((node, to), expected) in &self.cells {
            let bytes: Vec<u8> = expected.iter().flat_map(|cell| cell.to_le_bytes()).collect();
            let region = &self.world.nodes[*to].mem.region(KEY)[cells + node * CELLS * 8..];
            assert_eq!(&region[..CELLS * 8], bytes, "atomics gave something else");
        }
        for (to, posted) in &self.shared_posted {
            let expected: Vec<u64> = (0..*posted).collect();
            assert!(self.shared[to].iter().eq(&expected), "the shared counter was not counted one by one");
        }
    }

    /// Checks MPI's order. There must be an order of all matches in which no message overtakes an earlier one of its
    /// sender, and no receive an earlier one, if both fit.
    pub(super) fn check_order(&self) {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.matches.len()];
        for (at, (id, getter)) in self.matches.iter().enumerate() {
            let (msg, taker) = (&self.msgs[*id as usize], &self.getters[*getter]);
            for earlier in &self.msgs[..*id as usize] {
                if earlier.from == msg.from && taker.fits(earlier) {
                    let other = earlier.matched.expect("an earlier message was overtaken for good");
                    before[at].push(other);
                }
            }
            for (other, earlier) in self.getters[..*getter].iter().enumerate() {
                if !earlier.multi && earlier.peek.is_none() && earlier.fits(msg) {
                    let taken = self.matches.iter().position(|(_, getter)| *getter == other);
                    before[at].push(taken.expect("an earlier receive was passed over for good"));
                }
            }
        }
        assert_acyclic(&before);
    }
}

fn assert_acyclic(before: &[Vec<usize>]) {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
    for (at, earlier) in before.iter().enumerate() {
        for other in earlier {
            after[*other].push(at);
        }
    }
    let mut ready: Vec<usize> = (0..before.len()).filter(|at| missing[*at] == 0).collect();
    let mut done = 0;
    while let Some(at) = ready.pop() {
        done += 1;
        for next in &after[at] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    assert_eq!(done, before.len(), "messages and receives overtook each other");
}
