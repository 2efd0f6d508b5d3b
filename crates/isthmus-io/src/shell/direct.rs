//! Direct accesses to the memory of processes of this host, without their help.

use std::ops::RangeInclusive;

use isthmus_proto::{Access, CompletionKind, RmaRequest};

use super::Shell;
use super::fast_path::plain;
use crate::engine::Core;
use crate::lock::Mutex;
use crate::watch::Watch;

/// Lengths of direct accesses. Bytes. Shorter accesses are quicker by messages, since the system call costs as much as
/// several messages. Longer ones would hold up other work for too long.
pub(crate) const REACHED: RangeInclusive<u64> = 12 << 10..=16 << 20;

impl Shell {
    /// Reads or writes a peer's memory directly, if that is possible now, and makes the engine report it. False if the
    /// access has to be posted. The length must be in [`REACHED`].
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
