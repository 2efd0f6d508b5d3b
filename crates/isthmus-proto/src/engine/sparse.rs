//! Makes silent connections cheap in memory. A connection allocates its queues and its record of troubles when it
//! first needs them. It frees the empty ones when it is no longer among the `WARM_MAX` (64) connections that came into
//! use last.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::Engine;
use super::gone::departed;
use super::state::Connection;
use crate::PeerId;

/// Most connections that keep their empty queues. Count. When a further one comes into use, the oldest frees its own.
const WARM_MAX: usize = 64;

/// A value that is empty most of the time, and then takes the room of a pointer.
#[derive(Debug)]
pub(crate) struct Sparse<T>(Option<Box<T>>);

/// A type that can be kept as [`Sparse`].
pub(crate) trait Empty: Default + 'static {
    /// An empty value, for callers that only read.
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

/// Allocates the value if it is absent. To change only what is there, use [`Sparse::get_mut`].
impl<T: Empty> DerefMut for Sparse<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty> Sparse<T> {
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Whether nothing is allocated, not even an empty value.
    #[inline]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Frees its memory if it is empty.
    pub(crate) fn shed(&mut self) {
        self.0.take_if(|value| value.is_empty());
    }
}

/// The connections that keep their memory, the oldest entry first.
#[derive(Debug, Default)]
pub(crate) struct Warm(VecDeque<PeerId>);

impl Engine {
    /// Adds a connection that comes into use to those that keep their memory; the oldest may have to leave.
    #[cold]
    pub(super) fn warm_up(&mut self, peer: PeerId) {
        let record = &mut self.peers[peer.0 as usize];
        let connection = record.connection.get_or_insert_with(Connection::fresh);
        connection.warm = true;
        if record.departed && connection.trouble.failed.is_none() {
            connection.trouble.failed = Some(departed(&record.address));
        }
        connection.goes_long = connection.announces.is_some();
        self.warm.0.push_back(peer);
        if self.warm.0.len() <= WARM_MAX {
            return;
        }
        let cold = self.warm.0.pop_front().map(|peer| &mut self.peers[peer.0 as usize].connection);
        // A wildcard that turned out to be another peer has no connection any more.
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
