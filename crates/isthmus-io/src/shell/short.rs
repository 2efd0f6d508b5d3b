//! The shell's short ways: small messages by shared memory, written and read under one lock of the engine each,
//! without asking for events or the time. Whatever is not plain is left to a whole turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use isthmus_proto::{Completion, LaneId, SHORT_FRAME_MAX, SendRequest};
use parking_lot::Mutex;

use super::{Core, DIRECT_TURNS, Shell};
use crate::carrier::MemoryLane;
use crate::lane::{Lane, Phase, read_short};

/// Whole turns need not be closer than this.
const WHOLE_TURNS: Duration = Duration::from_micros(20);

/// What a short turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brief {
    /// Not tried: a whole turn is wanted.
    No,
    /// What it left is a whole turn's.
    Partly,
    /// All there was to do: whether something came, and how many operations have finished.
    Yes { read: bool, done: usize },
}

/// The lane by shared memory, if this one is that, open, and in the middle of nothing.
fn plain(lane: &mut Option<Lane>) -> Option<&mut MemoryLane> {
    let lane = lane.as_mut()?;
    let plain = lane.phase == Phase::Open && !lane.has_unwritten();
    plain.then(|| lane.carrier.memory()).flatten()
}

impl Shell {
    /// Writes a small message into shared memory, if it may go now. False where it has to be posted. Whoever calls
    /// it vouches for the pieces, as for all that is lent to the engine.
    pub(crate) fn send_short(
        &mut self,
        core: &Mutex<Core>,
        request: &SendRequest,
        iov: &[libc::iovec],
        len: u64,
    ) -> bool {
        if self.memory.is_empty() {
            return false;
        }
        let mut guard = core.lock();
        let Core { engine, memory, .. } = &mut *guard;
        let Some(id) = engine.short_lane(request, len) else { return false };
        let Some(lane) = self.lanes.get_mut(id.0 as usize).and_then(plain) else { return false };
        if !lane.has_room(SHORT_FRAME_MAX) {
            return false;
        }
        let place = memory.lend(iov);
        let frame = engine.send_short(id, request, place, len, memory);
        lane.write_short(frame);
        drop(guard);
        lane.ring();
        true
    }

    /// Takes in what has come where all lanes go by shared memory, and moves what has finished to the end of `out`.
    /// `idle`: whether the engine has nothing to give; `polls`: how often the program has polled.
    pub(crate) fn turn_briefly(
        &mut self,
        core: &Mutex<Core>,
        idle: &AtomicBool,
        polls: u64,
        out: &mut Vec<Completion>,
    ) -> Brief {
        if !self.all_memory || self.changed || self.is_whole_turn_due() {
            return Brief::No;
        }
        self.turns = self.turns.wrapping_add(1);
        if idle.load(Ordering::Relaxed) && !self.is_stirred() {
            return Brief::Yes { read: false, done: 0 };
        }
        let mut guard = core.lock();
        guard.engine.note_polls(polls);
        // What one peer had sent before it told another, and that one us, is there when these have been read.
        let rounds = if self.memory.len() > 1 { 2 } else { 1 };
        let mut read = false;
        for _ in 0..rounds {
            let mut any = false;
            for &index in &self.memory {
                let Some(Some(lane)) = self.lanes.get_mut(index) else { return Brief::Partly };
                let Some(memory) = lane.carrier.memory() else { return Brief::Partly };
                if memory.is_writable() {
                    return Brief::Partly;
                }
                if !memory.is_readable() {
                    continue;
                }
                lane.heard_in = self.turns;
                self.spares.lend_staging(lane);
                let came = read_short(lane, LaneId(index as u32), &mut guard);
                self.spares.take_staging(lane);
                any = true;
                match came {
                    Ok(true) => {}
                    Ok(false) => return Brief::Partly,
                    Err(loss) => {
                        drop(guard);
                        self.lose(index, &loss, core);
                        return Brief::Partly;
                    }
                }
            }
            read |= any;
            if !any {
                break;
            }
        }
        if !read && guard.engine.owes_acks() {
            guard.engine.flush_acks();
        }
        let before = out.len();
        out.extend(std::iter::from_fn(|| guard.engine.poll_completion()));
        let busy = guard.engine.has_output();
        idle.store(!busy && !guard.engine.owes_acks(), Ordering::Relaxed);
        drop(guard);
        if busy {
            self.write_out(core);
        }
        Brief::Yes { read, done: out.len() - before }
    }

    /// Whether descriptors and the clock are to be looked at: every few turns, unless those follow one another fast.
    fn is_whole_turn_due(&mut self) -> bool {
        self.turns.wrapping_add(1).is_multiple_of(DIRECT_TURNS) && self.looked.elapsed() >= WHOLE_TURNS
    }

    /// Descriptors are looked at now.
    pub(super) fn note_look(&mut self) {
        self.looked = Instant::now();
    }
}
