//! Operations of several parts with one completion: RMA and atomics on several remote pieces.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use isthmus_proto::{Completion, OpError, Options};
use parking_lot::Mutex;

/// An endpoint's operations of several parts that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Joints {
    len: AtomicUsize,
    open: Mutex<HashMap<u64, Joint>>,
}

#[derive(Debug)]
struct Joint {
    /// Parts that have not ended.
    left: usize,
    /// The options of the whole: its context, and whether the program wants an entry.
    options: Options,
    /// Bytes of the parts that have ended.
    len: u64,
    /// Why the first failed part failed.
    error: Option<OpError>,
    /// Its address is the context of the parts, so that no context of the program can be the same.
    _place: Box<u64>,
}

impl Joints {
    pub(crate) fn are_open(&self) -> bool {
        self.len.load(Ordering::SeqCst) > 0
    }

    /// Counts the end of a part. False if others are to come; else turns the completion into that of the whole.
    pub(crate) fn settle(&self, completion: &mut Completion) -> bool {
        let mut open = self.open.lock();
        let Some(joint) = open.get_mut(&completion.context) else { return true };
        joint.left -= 1;
        joint.len += completion.len;
        joint.error = joint.error.take().or(completion.error.take());
        if joint.left > 0 {
            return false;
        }
        if let Some(joint) = open.remove(&completion.context) {
            (completion.context, completion.notify) = (joint.options.context, joint.options.notify);
            (completion.len, completion.error) = (joint.len, joint.error);
        }
        self.len.store(open.len(), Ordering::SeqCst);
        true
    }

    pub(crate) fn enter(&self, options: Options, parts: usize) -> u64 {
        let place = Box::new(0);
        let id = std::ptr::from_ref(&*place).expose_provenance() as u64;
        let mut open = self.open.lock();
        open.insert(id, Joint { left: parts, options, len: 0, error: None, _place: place });
        self.len.store(open.len(), Ordering::SeqCst);
        id
    }

    pub(crate) fn withdraw(&self, id: u64) {
        let mut open = self.open.lock();
        open.remove(&id);
        self.len.store(open.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use isthmus_proto::CompletionKind;

    use super::*;

    fn ended(context: u64, len: u64, error: Option<OpError>) -> Completion {
        Completion { len, error, ..Completion::of(CompletionKind::Write, context, true) }
    }

    #[test]
    fn the_last_part_ends_the_whole_with_the_first_failure() {
        let joints = Joints::default();
        let id = joints.enter(Options { context: 7, notify: false, ..Options::default() }, 3);
        assert!(joints.settle(&mut ended(7, 1, None)), "another operation's");
        assert!(!joints.settle(&mut ended(id, 8, None)));
        assert!(!joints.settle(&mut ended(id, 0, Some(OpError::Cancelled))));
        let mut last = ended(id, 16, Some(OpError::NoMessage));
        assert!(joints.settle(&mut last) && !joints.are_open());
        assert_eq!((last.context, last.notify, last.len), (7, false, 24));
        assert_eq!(last.error, Some(OpError::Cancelled));
    }
}
