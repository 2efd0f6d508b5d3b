//! What makes a silent connection cheap: it holds the collections of its traffic, and what is
//! known of trouble with its peer, only while there is anything in them; and it gives their
//! memory back when it is no longer among those used lately.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::Engine;
use super::state::Connection;
use crate::PeerId;

/// So many connections keep the memory of what they sent and received last; a further one that
/// comes into use takes the place of the one that came in first.
const WARM_MAX: usize = 64;

/// A value that is empty most of the time, and then takes no more room than a pointer.
#[derive(Debug)]
pub(crate) struct Sparse<T>(Option<Box<T>>);

/// What may be kept as [`Sparse`].
pub(crate) trait Empty: Default + 'static {
    /// An empty one, for those who only look.
    fn empty() -> &'static Self;
    fn is_empty(&self) -> bool;
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Deref for Sparse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::empty())
    }
}

/// Makes it where it is not there: those who only may find something to change ask
/// [`Sparse::get_mut`].
impl<T: Empty> DerefMut for Sparse<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty> Sparse<T> {
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Whether there is none, not even an empty one.
    #[inline]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Gives its memory back if it is empty.
    pub(crate) fn shed(&mut self) {
        self.0.take_if(|value| value.is_empty());
    }
}

/// The connections that keep their memory, longest there first.
#[derive(Debug, Default)]
pub(crate) struct Warm(VecDeque<PeerId>);

impl Engine {
    /// The connection comes into use, or into being: it may keep its memory until others need the place.
    #[cold]
    pub(super) fn warm_up(&mut self, peer: PeerId) {
        let record = &mut self.peers[peer.0 as usize];
        let connection = record.connection.get_or_insert_with(Connection::fresh);
        connection.warm = true;
        connection.goes_long = connection.announces.is_some();
        self.warm.0.push_back(peer);
        if self.warm.0.len() <= WARM_MAX {
            return;
        }
        let cold = self.warm.0.pop_front().map(|peer| &mut self.peers[peer.0 as usize].connection);
        // A wildcard that turned out to be another peer has none any more.
        if let Some(Some(connection)) = cold {
            connection.warm = false;
            connection.shed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct List {
        bytes: Vec<u8>,
    }

    impl Empty for List {
        fn empty() -> &'static Self {
            static EMPTY: List = List { bytes: Vec::new() };
            &EMPTY
        }

        fn is_empty(&self) -> bool {
            self.bytes.is_empty()
        }
    }

    #[test]
    fn what_is_looked_at_takes_no_room_and_what_is_empty_is_shed() {
        let mut list = Sparse::<List>::default();
        assert!(list.bytes.is_empty() && list.get_mut().is_none());
        list.bytes.push(1);
        list.shed();
        assert_eq!(list.bytes, [1]);
        list.bytes.clear();
        assert!(list.get_mut().is_some());
        list.shed();
        assert!(list.get_mut().is_none());
    }
}
