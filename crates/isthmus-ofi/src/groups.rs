//! The groups of an endpoint, and the collective operations under way in them: posts the messages of each round, and
//! reports one completion to the program. `collective/` has the calls.

mod group;
mod plan;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isthmus_proto::{
    AtomicOp, AtomicType, Channel, Completion, OpError, Options, RecvRequest, SendRequest, apply_atomic,
};
use libc::iovec;
use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, completion_errno};
use crate::events::EventQueue;
use crate::live::Live;
use crate::queue::Entry;
pub(crate) use group::{Group, Joins};
pub(crate) use plan::Collective;
use plan::{Piece, Round, Step, Store};

/// The program's buffers, and how the members' values are combined.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) input: *const u8,
    pub(crate) result: *mut u8,
    pub(crate) combine: Option<(AtomicOp, AtomicType)>,
}

// SAFETY: the buffers are the library's until the operation completes, whichever thread drives it.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(crate) fn none() -> Self {
        Self { input: std::ptr::null(), result: std::ptr::null_mut(), combine: None }
    }
}

/// The queue to which the end is reported.
#[derive(Debug)]
pub(crate) enum End {
    /// In the endpoint's completion queue, under this context. Success is reported only with `notify`.
    Told { context: u64, notify: bool },
    /// In the event queue of an endpoint that joins a group. Object and context are the program's pointers.
    Joined { events: Arc<EventQueue>, group: usize, context: usize },
}

/// An endpoint's groups, and the operations under way in them.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    groups: Mutex<HashMap<u64, Arc<Group>>>,
    joins: Mutex<Joins>,
    len: AtomicUsize,
    open: Mutex<HashMap<u64, Arc<Running>>>,
}

/// An operation under way. Its address is the context of its messages, so that no context of the program can be the
/// same.
#[derive(Debug)]
struct Running {
    group: Arc<Group>,
    tag: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rounds: VecDeque<Round>,
    /// Steps of the first round that were posted, and those of them that have not ended. Counts.
    posted: usize,
    under_way: usize,
    buffers: Buffers,
    scratch: Vec<u8>,
    end: Option<End>,
    error: Option<OpError>,
}

impl Collectives {
    pub(crate) fn are_open(&self) -> bool {
        self.len.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn joins(&self) -> MutexGuard<'_, Joins> {
        self.joins.lock()
    }

    /// Adds a group; returns the address by which programs name it.
    pub(crate) fn enter(&self, group: Arc<Group>) -> u64 {
        let handle = Arc::as_ptr(&group).addr() as u64;
        self.groups.lock().insert(handle, group);
        handle
    }

    pub(crate) fn leave(&self, handle: u64) {
        self.groups.lock().remove(&handle);
    }

    pub(crate) fn group(&self, handle: u64) -> Result<Arc<Group>, Error> {
        let group = self.groups.lock().get(&handle).cloned();
        group.ok_or(Error::Invalid("no group has this address"))
    }

    /// Begins an operation.
    ///
    /// # Safety
    /// The buffers are as long as the operation needs, and valid and untouched until its end.
    pub(crate) unsafe fn begin(
        &self,
        live: &Arc<Live>,
        group: &Arc<Group>,
        what: Collective,
        buffers: Buffers,
        end: End,
    ) {
        let (me, count) = (group.rank, group.members.len());
        if let Some((from, to, len)) = what.own_part(me) {
            // SAFETY: by this function's contract; a program may give one buffer for both.
            unsafe { std::ptr::copy(buffers.input.add(from), buffers.result.add(to), len) };
        }
        let state = State {
            rounds: what.rounds(me, count).into(),
            posted: 0,
            under_way: 0,
            buffers,
            scratch: vec![0; what.scratch(me, count)],
            end: Some(end),
            error: None,
        };
        let running =
            Arc::new(Running { group: group.clone(), tag: group.next_tag(), state: Mutex::new(state) });
        {
            let mut open = self.open.lock();
            open.insert(running.id(), running.clone());
            self.len.store(open.len(), Ordering::SeqCst);
        }
        live.board().attend_to();
        self.advance(live, &running);
    }

    /// Takes in a completion. False if it was of an operation here, so that nobody else is told.
    pub(crate) fn settle(&self, live: &Live, completion: &mut Completion) -> bool {
        let Some(running) = self.open.lock().get(&completion.context).cloned() else { return true };
        {
            let mut state = running.state.lock();
            state.under_way -= 1;
            if let Some(error) = completion.error.take() {
                state.fail(error);
            }
        }
        self.advance(live, &running);
        false
    }

    /// Posts messages that there was no room for.
    pub(crate) fn resume(&self, live: &Live) {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        open.iter().for_each(|running| self.advance(live, running));
    }

    /// Continues an operation as far as possible, and reports its end.
    fn advance(&self, live: &Live, running: &Arc<Running>) {
        let Some((end, error)) = running.advance(live) else { return };
        {
            let mut open = self.open.lock();
            open.remove(&running.id());
            self.len.store(open.len(), Ordering::SeqCst);
        }
        live.board().turn_from();
        match end {
            End::Told { context, notify } if notify || error.is_some() => {
                live.tell(Entry::collective(context, error));
            }
            End::Told { .. } => {}
            End::Joined { events, group, context } => {
                events.joined(group, context, error.map(|error| completion_errno(&error)))
            }
        }
    }

    /// Ends all operations: the endpoint has ended, and nothing touches their buffers any more.
    pub(crate) fn close(&self, live: &Live) {
        self.groups.lock().clear();
        let open = std::mem::take(&mut *self.open.lock());
        self.len.store(0, Ordering::SeqCst);
        open.values().for_each(|_| live.board().turn_from());
    }
}

impl Running {
    fn id(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Posts messages, and moves from round to round. Returns the end once everything is done.
    fn advance(&self, live: &Live) -> Option<(End, Option<OpError>)> {
        let mut state = self.state.lock();
        while let Some(round) = state.rounds.front() {
            if state.error.is_none()
                && let Some(&step) = round.steps.get(state.posted)
            {
                match self.post(live, &mut state, step) {
                    Ok(()) => (state.posted, state.under_way) = (state.posted + 1, state.under_way + 1),
                    // There will be room when something else has ended.
                    Err(Error::Again) => return None,
                    Err(error) => state.fail(OpError::Protocol(error.to_string())),
                }
                continue;
            }
            if state.under_way > 0 {
                if state.error.is_some() {
                    // The receives of this round may never complete: cancel them.
                    while live.engine().cancel(self.id()) {}
                }
                return None;
            }
            state.pass();
        }
        let error = state.error.take();
        state.end.take().map(|end| (end, error))
    }

    fn post(&self, live: &Live, state: &mut State, step: Step) -> Result<(), Error> {
        let (Step::Send(rank, piece) | Step::Receive(rank, piece)) = step;
        let peer = live.peer(self.group.members[rank])?;
        let iov = [state.place(piece)];
        let (channel, tag) = (Channel::Group, self.tag);
        let options = Options { context: self.id(), notify: true, ..Options::default() };
        match step {
            Step::Send(..) => {
                let request = SendRequest { peer, channel, tag, data: None, options };
                // SAFETY: the program's buffers are ours until the operation's end, and the scratch lives as long.
                unsafe { live.engine().send(&request, &iov) }
            }
            Step::Receive(..) => {
                let request =
                    RecvRequest { source: Some(peer), channel, tag, ignore: 0, multi: None, options };
                // SAFETY: likewise; messages of a round do not overlap.
                unsafe { live.engine().recv(&request, &iov) }
            }
        }
    }
}

impl State {
    /// Marks the operation as failed, so that nothing more of it begins.
    fn fail(&mut self, error: OpError) {
        self.error.get_or_insert(error);
    }

    /// Moves to the next round.
    fn pass(&mut self) {
        let over = self.rounds.pop_front().unwrap_or_default();
        self.posted = 0;
        if self.error.is_some() {
            self.rounds.clear();
            return;
        }
        let Some((op, datatype)) = self.buffers.combine else { return };
        for piece in over.combine {
            let more = &self.scratch[piece.start..piece.start + piece.len];
            // SAFETY: the result has a piece's length, and is touched by nobody between rounds.
            let result = unsafe { std::slice::from_raw_parts_mut(self.buffers.result, piece.len) };
            apply_atomic(op, datatype, result, more, &[]);
        }
    }

    fn place(&mut self, piece: Piece) -> iovec {
        let base = match piece.store {
            _ if piece.len == 0 => std::ptr::null_mut(),
            // SAFETY: pieces lie within the stores (`Collectives::begin`).
            Store::Input => unsafe { self.buffers.input.add(piece.start) }.cast_mut(),
            // SAFETY: likewise.
            Store::Result => unsafe { self.buffers.result.add(piece.start) },
            Store::Scratch => self.scratch[piece.start..].as_mut_ptr(),
        };
        iovec { iov_base: base.cast(), iov_len: piece.len }
    }
}
