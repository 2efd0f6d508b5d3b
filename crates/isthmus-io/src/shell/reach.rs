//! Accesses to the memory of processes of this host that the shell carries out by itself, where they show it.

use isthmus_proto::{Access, CompletionKind, RmaRequest};

use super::short::plain;
use super::{Core, Shell};
use crate::lock::Mutex;
use crate::watch::Watch;

/// Shorter accesses are quicker by messages: the system takes as long to permit one as two messages need. Bytes.
const REACH_MIN: u64 = 12 << 10;
/// Longest access that is made at once: nothing else is seen to meanwhile. Bytes.
const REACH_MAX: u64 = 16 << 20;

impl Shell {
    /// Reads or writes a peer's memory at once, if that may be done from here now, and has the engine say that it is
    /// done; false where it has to be posted.
    ///
    /// # Safety
    /// The pieces are as long as the range, and valid for writing where this reads.
    pub(crate) unsafe fn reach(
        &mut self,
        core: &Mutex<Core>,
        watch: &Watch,
        request: &RmaRequest,
        wanted: Access,
        iov: &[libc::iovec],
    ) -> bool {
        if self.memory.is_empty() || !(REACH_MIN..=REACH_MAX).contains(&request.remote.len) {
            return false;
        }
        let Some(id) = core.lock().engine.near_lane(request) else { return false };
        let Some(lane) = self.lanes.get_mut(id.0 as usize).and_then(plain) else { return false };
        // SAFETY: the caller's promise.
        let done = unsafe { lane.access(request.remote, wanted, iov) };
        if done {
            let kind = if wanted == Access::Read { CompletionKind::Read } else { CompletionKind::Write };
            let mut guard = core.lock();
            guard.engine.note_reached(request, kind);
            if guard.engine.has_completions() {
                watch.stir();
            }
        }
        done
    }
}
