//! Accesses to a near peer's memory that the shell carries out by itself: when it may, and that it has.
//!
//! Such an access is over at once, so nothing that is posted later comes before it. What was posted before may have to be
//! done first, so it goes by messages while any of that is under way.

use super::{Engine, LaneId};
use crate::{Completion, CompletionKind, Fence, RmaRequest};

impl Engine {
    /// The lane to a peer whose memory may be accessed now if its process shows it there; `None` where the access has to
    /// be posted.
    #[inline]
    pub fn near_lane(&self, request: &RmaRequest) -> Option<LaneId> {
        if request.data.is_some() || self.parted {
            return None;
        }
        let (connection, lane, _) = self.plain_lane(self.resolve(request.peer))?;
        let settled = !connection.has_output() && connection.requests == 0;
        // Messages are over for their sender before they were received.
        let alone =
            request.options.fence != Fence::All || connection.active == 0 && connection.window.is_empty();
        (settled && alone).then_some(lane)
    }

    /// This access has been made: it is complete, at whatever level.
    #[inline]
    pub fn note_reached(&mut self, request: &RmaRequest, kind: CompletionKind) {
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
