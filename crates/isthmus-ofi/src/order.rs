//! Orders among operations to one peer (`FI_ORDER_*`), beyond those that are always kept, for programs that ask.
//!
//! Lanes carry operations at the same time. So an operation that may not overtake earlier ones waits until they are
//! complete, as behind a fence. That costs a round trip, for those programs only.

use isthmus_proto::{CompletionKind, Fence};

use crate::flags::*;

/// The earlier operations that each kind of operation waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orders {
    send: Fence,
    read: Fence,
    write: Fence,
    atomic: Fence,
}

impl Orders {
    /// Derives them from a `msg_order`.
    pub(crate) fn of(order: u64) -> Self {
        // The order among messages, and among atomics, is always kept.
        let fence = |all: u64, remote: u64| match order {
            _ if order & all != 0 => Fence::All,
            _ if order & remote != 0 => Fence::Remote,
            _ => Fence::None,
        };
        let (reads, writes) = (FI_ORDER_RAR | FI_ORDER_RAW, FI_ORDER_WAR | FI_ORDER_WAW);
        Self {
            send: fence(0, FI_ORDER_SAR | FI_ORDER_SAW),
            read: fence(FI_ORDER_RAS, reads | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW),
            write: fence(FI_ORDER_WAS, writes | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW),
            // A fetching atomic reads and writes.
            atomic: fence(FI_ORDER_RAS | FI_ORDER_WAS, reads | writes),
        }
    }

    /// The earlier operations that one of this kind waits for.
    #[inline]
    pub(crate) fn fence(&self, kind: CompletionKind) -> Fence {
        match kind {
            CompletionKind::Send(_) => self.send,
            CompletionKind::Read => self.read,
            CompletionKind::Write => self.write,
            CompletionKind::Atomic(_) => self.atomic,
            _ => Fence::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use isthmus_proto::{AtomicKind, Channel};

    use super::*;

    fn fences(order: u64) -> [Fence; 4] {
        use CompletionKind::*;
        [Send(Channel::Tagged), Read, Write, Atomic(AtomicKind::Fetch)]
            .map(|kind| Orders::of(order).fence(kind))
    }

    #[test]
    fn only_what_may_not_overtake_waits() {
        use Fence::{All, None, Remote};
        let atomics = FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
        assert_eq!(fences(FI_ORDER_SAS | atomics), [None; 4]);
        assert_eq!(fences(FI_ORDER_SAW), [Remote, None, None, None]);
        assert_eq!(fences(FI_ORDER_RMA_WAW), [None, None, Remote, None]);
        assert_eq!(fences(FI_ORDER_RAW), [None, Remote, None, Remote]);
        assert_eq!(fences(FI_ORDER_WAS | FI_ORDER_WAW), [None, None, All, All]);
        assert_eq!(fences(FI_ORDER_STRICT), [Remote, All, All, All]);
    }
}
