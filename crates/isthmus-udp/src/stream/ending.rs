//! How a stream fails, and what the peer is told of it.

use super::Failure;

/// The failure of a stream, and the Close frame about it that has yet to be sent. A stream fails once: the first failure
/// counts.
#[derive(Debug, Default)]
pub(super) struct Ending {
    failure: Option<Failure>,
    /// Reason of the Close frame.
    close: Option<u8>,
}

impl Ending {
    /// Why the stream failed; `None` if it has not.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The stream fails. The peer knows it.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// The stream fails. The peer is told by a Close frame.
    pub(super) fn fail_and_tell(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.fail(failure);
            self.close = Some(match failure {
                Failure::Closed | Failure::Reset => 0,
                Failure::Silent => 1,
                Failure::Fault(_) => 2,
            });
        }
    }

    /// Whether a Close frame has yet to be sent.
    pub(super) fn tells(&self) -> bool {
        self.close.is_some()
    }

    /// The reason of the Close frame that is to be sent now.
    pub(super) fn take_close(&mut self) -> Option<u8> {
        self.close.take()
    }
}
