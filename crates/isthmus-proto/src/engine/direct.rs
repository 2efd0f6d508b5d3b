//! Direct accesses: reads and writes of a near peer's memory that the shell carries out by itself.
//!
//! Such an access is over at once, so it precedes everything that is posted later. But it may have to follow earlier
//! operations. While any of those is under way, accesses go by messages.

use super::{Engine, LaneId};
use crate::{Completion, CompletionKind, Fence, RmaRequest};

impl Engine {
    /// The lane by which the shell may make this access directly now, if it can reach the peer's memory there. `None`
    /// if the access has to be posted.
    #[inline]
    pub fn direct_access_lane(&self, request: &RmaRequest) -> Option<LaneId> {
        if request.data.is_some() || self.parted {
            return None;
        }
        let (connection, lane, _) = self.plain_lane(self.resolve(request.peer))?;
        let settled = !connection.has_output() && connection.requests == 0;
        // A message may be complete for its sender before the peer has received it.
        let alone =
            request.options.fence != Fence::All || connection.active == 0 && connection.window.is_empty();
        (settled && alone).then_some(lane)
    }

    /// Completes an access that the shell has made, whatever its level.
    #[inline]
    pub fn complete_direct_access(&mut self, request: &RmaRequest, kind: CompletionKind) {
        self.counters.accesses_reached += 1;
        if request.options.silent {
            return;
        }
        let peer = self.resolve(request.peer);
        let (context, notify) = (request.options.context, request.options.notify);
        self.report(Completion {
            len: request.remote.len,
            peer: Some(peer),
            ..Completion::of(kind, context, notify)
        });
    }
}
