//! Finds the peer that has an address.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use isthmus_wire::Address;

use super::PeerId;
use super::state::Peer;

/// An index of peers by address. The addresses themselves are only in the table of peers, so an entry here takes 4
/// bytes.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    whole: HashTable<PeerId>,
    /// Addresses as users typed them, without an incarnation. The peer's whole address is known once it has answered.
    wildcards: HashMap<Address, PeerId>,
    hasher: RandomState,
}

impl Directory {
    pub(crate) fn find(&self, peers: &[Peer], address: &Address) -> Option<PeerId> {
        if address.is_wildcard() {
            return self.wildcards.get(address).copied();
        }
        let is_it = |peer: &PeerId| peers[peer.0 as usize].address == *address;
        self.whole.find(self.hasher.hash_one(address), is_it).copied()
    }

    /// Enters a peer under its address in the table of peers. No other peer may have that address.
    pub(crate) fn enter(&mut self, peers: &[Peer], peer: PeerId) {
        let address = &peers[peer.0 as usize].address;
        if address.is_wildcard() {
            self.wildcards.insert(*address, peer);
            return;
        }
        let hash = |peer: &PeerId| self.hasher.hash_one(peers[peer.0 as usize].address);
        self.whole.insert_unique(self.hasher.hash_one(address), peer, hash);
    }

    /// Removes a peer whose whole address is known.
    pub(crate) fn remove(&mut self, peers: &[Peer], peer: PeerId) {
        let hash = self.hasher.hash_one(peers[peer.0 as usize].address);
        if let Ok(entry) = self.whole.find_entry(hash, |other| *other == peer) {
            entry.remove();
        }
    }
}
