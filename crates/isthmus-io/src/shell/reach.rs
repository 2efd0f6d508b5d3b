//! Accesses to the memory of processes of this host that the shell carries out by itself, where they show it.

use std::ops::RangeInclusive;

use isthmus_proto::{Access, CompletionKind, RmaRequest};

use super::short::plain;
use super::{Core, Shell};
use crate::lock::Mutex;
use crate::watch::Watch;

/// How long accesses are that are made so. Shorter ones are quicker by messages: the system takes as long to permit one as
/// several messages need. During longer ones too little else would be seen to. Bytes.
pub(crate) const REACHED: RangeInclusive<u64> = 12 << 10..=16 << 20;

impl Shell {
    /// Reads or writes so much of a peer's memory ([`REACHED`]) at once, if that may be done from here now, and has the engine
    /// say that it is done; false where it has to be posted.
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
        let Some(id) = core.lock().engine.direct_access_lane(request) else { return false };
        let Some(lane) = self.lanes.get_mut(id.0 as usize).and_then(plain) else { return false };
        // SAFETY: the caller's promise.
        let done = unsafe { lane.access(request.remote, wanted, iov) };
        if done {
            let kind = if wanted == Access::Read { CompletionKind::Read } else { CompletionKind::Write };
            let mut guard = core.lock();
            guard.engine.complete_direct_access(request, kind);
            if guard.engine.has_completions() {
                watch.stir();
            }
        }
        done
    }
}
