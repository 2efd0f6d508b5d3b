//! The shell's fast path for small messages by shared memory. Each is written, or read, under one lock of the engine,
//! without asking for events or the time. Everything else is left to a full pass ([`Shell::run_pass`]).

use isthmus_proto::{Completion, Engine, FAST_PATH_FRAME_MAX, LaneId, LaneLoss, SendRequest};

use super::Shell;
use crate::carrier::{MemoryLane, Sleeper};
use crate::engine::Core;
use crate::lane::{Lane, Phase, Spares, read_short};
use crate::lock::{Mutex, MutexGuard};
use crate::watch::Watch;

/// Most short messages that are taken from one lane before the next lane is read. Count.
const SHORT_READS_MAX: usize = 1 << 10;
/// This many are taken if they are there, even if the program has room for fewer. Count; a pass costs as much as two or
/// three of them.
const SHORT_READS_MIN: usize = 8;

/// The result of a fast pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brief {
    /// Not tried: a full pass is needed.
    No,
    /// It left work for a full pass.
    Partly,
    /// It did everything: whether something came, and how many operations have finished.
    Yes { read: bool, done: usize },
}

/// Why a fast pass ends before everything is done.
enum Left {
    /// A full pass has to do the rest.
    Whole,
    /// A long payload comes on this lane, the only one.
    Long(usize),
    /// This lane has ended.
    Lost(usize, LaneLoss),
}

/// The lane by shared memory, if this is one, and it is open and not in the middle of a write.
pub(super) fn plain(lane: &mut Lane) -> Option<&mut MemoryLane> {
    let plain = lane.phase() == Phase::Open && !lane.has_unwritten();
    plain.then(|| lane.carrier.memory()).flatten()
}

/// The bytes of these pieces, which are no longer than a short message. Several pieces are gathered in a spare buffer.
///
/// # Safety
/// The pieces are valid for reading, and stay so for `'a`.
unsafe fn whole<'a>(pieces: &[libc::iovec], spares: &'a mut Spares) -> &'a [u8] {
    let bytes = |piece: &libc::iovec| match piece.iov_len {
        // The address of an empty piece may be null.
        0 => &[][..],
        // SAFETY: this function's promise.
        len => unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), len) },
    };
    match pieces {
        [one] => bytes(one),
        several => {
            let (room, mut len) = (spares.short(), 0);
            for bytes in several.iter().map(bytes) {
                room[len..][..bytes.len()].copy_from_slice(bytes);
                len += bytes.len();
            }
            &room[..len]
        }
    }
}

impl Shell {
    /// Writes a small message into shared memory, if it may go now; `None` if it has to be posted. The caller releases
    /// the shell, which is a fence, and then checks whether the other end has to be woken ([`Shell::wake`]).
    ///
    /// # Safety
    /// The pieces are valid for reading.
    #[inline]
    pub(crate) unsafe fn send_short(
        &mut self,
        core: &Mutex<Core>,
        watch: &Watch,
        request: &SendRequest,
        iov: &[libc::iovec],
        len: u64,
    ) -> Option<(LaneId, Sleeper)> {
        if self.memory.is_empty() {
            return None;
        }
        let mut guard = core.lock();
        let engine = &mut guard.engine;
        let (id, message) = engine.fast_path_lane(request, len)?;
        let lane = self.lanes.get_mut(id.0 as usize).and_then(plain)?;
        if !lane.has_room(FAST_PATH_FRAME_MAX) {
            return None;
        }
        // SAFETY: the caller's promise.
        let payload = unsafe { whole(iov, &mut self.spares) };
        // Write before the bookkeeping, so that the other end need not wait for that.
        let sleeper = lane.write_short(&message, payload);
        engine.complete_fast_send(id, request, &message, payload);
        if engine.has_completions() {
            watch.stir();
        }
        Some((id, sleeper))
    }

    /// Wakes a lane's other end if it sleeps.
    #[cold]
    pub(crate) fn wake(&mut self, id: LaneId) {
        let lane = self.lanes.get_mut(id.0 as usize);
        if let Some(memory) = lane.and_then(|lane| lane.carrier.memory()) {
            memory.ring_if_asleep();
        }
    }

    /// The fast form of [`Shell::run_pass`] if all lanes go by shared memory: takes in what has come, and appends
    /// finished operations to `out`. If there is only one lane, it takes at most `room` short messages, but at least
    /// [`SHORT_READS_MIN`]. With several lanes it takes all, so that messages of several peers are read together.
    pub(crate) fn run_fast_pass(
        &mut self,
        core: &Mutex<Core>,
        watch: &Watch,
        room: usize,
        out: &mut Vec<Completion>,
    ) -> Brief {
        let vain = watch.is_idle() && !watch.has_news();
        if !self.passes.need_only_memory()
            || self.lanes.has_changed()
            || !self.borrowing.is_empty()
            || self.passes.is_full_due(vain)
        {
            return Brief::No;
        }
        self.passes.begin(false);
        if vain {
            return Brief::Yes { read: false, done: 0 };
        }
        let mut guard = core.lock();
        guard.engine.set_polls(watch.polls());
        let read = match self.read_all_briefly(&mut guard, watch, room) {
            Ok(read) => read,
            Err(Left::Whole) => return Brief::Partly,
            Err(Left::Long(index)) => {
                drop(guard);
                let read = self.receive(index, core);
                guard = core.lock();
                read
            }
            Err(Left::Lost(index, loss)) => {
                drop(guard);
                self.lose(index, &loss, core);
                return Brief::Partly;
            }
        };
        if read {
            watch.note_read();
        }
        let before = out.len();
        let busy = self.conclude(&mut guard.engine, watch, read, out);
        drop(guard);
        if busy {
            self.write_out(core);
        }
        Brief::Yes { read, done: out.len() - before }
    }

    /// Reads what has come on all lanes. True if anything had.
    fn read_all_briefly(
        &mut self,
        core: &mut MutexGuard<'_, Core>,
        watch: &Watch,
        room: usize,
    ) -> Result<bool, Left> {
        // With several lanes, read twice: a peer may have sent to us before it told a second peer, whose message we
        // have just read.
        let (rounds, most) = if self.memory.len() > 1 { (2, SHORT_READS_MAX) } else { (1, room) };
        let most = most.clamp(SHORT_READS_MIN, SHORT_READS_MAX);
        let mut read = false;
        for _ in 0..rounds {
            let mut any = false;
            for at in 0..self.memory.len() {
                any |= self.read_briefly(at, core, watch, most)?;
            }
            read |= any;
            if !any {
                break;
            }
        }
        Ok(read)
    }

    /// Reads what has come on the lane at this index of `memory`. True if anything had.
    fn read_briefly(
        &mut self,
        at: usize,
        core: &mut MutexGuard<'_, Core>,
        watch: &Watch,
        most: usize,
    ) -> Result<bool, Left> {
        let spot = self.memory.spot(at, watch);
        if spot.is_some_and(|spot| !spot.has_news()) {
            return Ok(false);
        }
        let index = self.memory.at(at).ok_or(Left::Whole)?;
        let lane = self.lanes.get_mut(index).ok_or(Left::Whole)?;
        let memory = lane.carrier.memory().ok_or(Left::Whole)?;
        if memory.is_writable() {
            return Err(Left::Whole);
        }
        if !memory.is_readable() {
            return Ok(false);
        }
        lane.heard_in = self.passes.number();
        let id = LaneId(index as u32);
        let came = read_short(lane, id, core, most, &mut self.spares);
        if let (Some(memory), Some(spot)) = (lane.carrier.memory(), spot) {
            self.memory.show_next(memory, spot);
        }
        match came {
            Ok(true) => Ok(true),
            Ok(false) if lane.streaming && self.memory.len() == 1 => Err(Left::Long(index)),
            Ok(false) => Err(Left::Whole),
            Err(loss) => Err(Left::Lost(index, loss)),
        }
    }

    /// Appends finished operations to `out`, and tells the watch if no work is left for the next poll. True if there is
    /// something to write.
    fn conclude(
        &mut self,
        engine: &mut Engine,
        watch: &Watch,
        read: bool,
        out: &mut Vec<Completion>,
    ) -> bool {
        if !read && engine.owes_acks() {
            engine.flush_acks();
        }
        engine.take_completions(out);
        let busy = engine.has_output();
        if !busy && !engine.owes_acks() && self.memory.show(&mut self.lanes, watch) {
            watch.settle(self.memory.len());
        } else {
            watch.stir();
        }
        busy
    }
}
