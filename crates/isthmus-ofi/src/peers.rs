//! Translates between the two numberings of peers: the address vector's and the engine's.

use std::sync::atomic::{AtomicU64, Ordering};

use isthmus_io::Endpoint;
use isthmus_proto::PeerId;
use parking_lot::RwLock;

use crate::abi::fi_addr_t;
use crate::av_table::AvTable;
use crate::engine::Engine;
use crate::error::Error;
use crate::flags::FI_ADDR_NOTAVAIL;

/// The look-ups of one endpoint: 12 bytes for each peer that it talked to.
#[derive(Debug)]
pub(crate) struct Peers {
    cache: RwLock<Cache>,
    /// A cache of recent look-ups, one word for each, by the address vector's number and by the peer. It is read
    /// without a lock.
    lately: [AtomicU64; LATELY],
    lately_by_peer: [AtomicU64; LATELY],
}

/// Words of [`Peers::lately`] for each direction. Count.
const LATELY: usize = 64;
const NUMBER_BITS: u32 = 20;
const PEER_BITS: u32 = 20;

/// A word of [`Peers::lately`]; never 0.
fn packed(removals: u64, number: fi_addr_t, peer: u32) -> Option<u64> {
    let fits = removals < 1 << (64 - NUMBER_BITS - PEER_BITS)
        && number < 1 << NUMBER_BITS
        && u64::from(peer) < (1 << PEER_BITS) - 1;
    fits.then(|| (removals << NUMBER_BITS | number) << PEER_BITS | (u64::from(peer) + 1))
}

/// The address vector's number in such a word, if the word is of this peer and still valid.
fn number_in(word: u64, removals: u64, peer: u32) -> Option<fi_addr_t> {
    let number = word >> PEER_BITS & ((1 << NUMBER_BITS) - 1);
    packed(removals, number, peer).filter(|packed| *packed == word).map(|_| number)
}

impl Default for Peers {
    fn default() -> Self {
        let none = || [const { AtomicU64::new(0) }; LATELY];
        Self { cache: RwLock::default(), lately: none(), lately_by_peer: none() }
    }
}

#[derive(Debug, Default)]
struct Cache {
    removals: u64,
    by_number: Vec<u32>,
    by_peer: Vec<fi_addr_t>,
}

const UNKNOWN: u32 = u32::MAX;

impl Peers {
    /// The engine's peer for a number of the address vector.
    #[inline]
    pub(crate) fn peer(&self, engine: &Engine, av: &AvTable, number: fi_addr_t) -> Result<PeerId, Error> {
        let removals = av.removals();
        let word = self.lately[number as usize % LATELY].load(Ordering::Relaxed);
        // A number that does not fit into a word never equals one, since an empty word is 0.
        let peer = (word & ((1 << PEER_BITS) - 1)) as u32;
        if number >> NUMBER_BITS == 0 && word >> PEER_BITS == removals << NUMBER_BITS | number && peer > 0 {
            return Ok(PeerId(peer - 1));
        }
        self.look_up(engine, av, number, removals)
    }

    #[inline(never)]
    fn look_up(
        &self,
        engine: &Engine,
        av: &AvTable,
        number: fi_addr_t,
        removals: u64,
    ) -> Result<PeerId, Error> {
        let cache = self.cache.read();
        if let (true, Some(&peer)) = (cache.removals == removals, cache.by_number.get(number as usize))
            && peer != UNKNOWN
        {
            let word = packed(removals, number, peer).unwrap_or(0);
            self.lately[number as usize % LATELY].store(word, Ordering::Relaxed);
            return Ok(PeerId(peer));
        }
        drop(cache);
        let address = av.address(number).ok_or(Error::Invalid("no address has this number"))?;
        let peer = engine.peer(&address)?;
        self.cache.write().learn(av.removals(), number, peer);
        Ok(peer)
    }

    /// The address vector's number of one of the engine's peers.
    pub(crate) fn number(&self, engine: &Endpoint, av: &AvTable, peer: PeerId) -> fi_addr_t {
        let removals = av.removals();
        let lately = &self.lately_by_peer[peer.0 as usize % LATELY];
        match number_in(lately.load(Ordering::Relaxed), removals, peer.0) {
            Some(number) => number,
            None => self.look_up_number(engine, av, peer, removals),
        }
    }

    #[inline(never)]
    fn look_up_number(&self, engine: &Endpoint, av: &AvTable, peer: PeerId, removals: u64) -> fi_addr_t {
        let cache = self.cache.read();
        if let (true, Some(&number)) = (cache.removals == removals, cache.by_peer.get(peer.0 as usize))
            && number != FI_ADDR_NOTAVAIL
        {
            let word = packed(removals, number, peer.0).unwrap_or(0);
            self.lately_by_peer[peer.0 as usize % LATELY].store(word, Ordering::Relaxed);
            return number;
        }
        drop(cache);
        let Some(number) = av.number(&engine.peer_address(peer)) else { return FI_ADDR_NOTAVAIL };
        self.cache.write().learn(av.removals(), number, peer);
        number
    }
}

impl Cache {
    fn learn(&mut self, removals: u64, number: fi_addr_t, peer: PeerId) {
        if self.removals != removals {
            *self = Self { removals, ..Self::default() };
        }
        put(&mut self.by_number, number as usize, peer.0, UNKNOWN);
        put(&mut self.by_peer, peer.0 as usize, number, FI_ADDR_NOTAVAIL);
    }
}

fn put<T: Copy>(list: &mut Vec<T>, index: usize, value: T, unknown: T) {
    if list.len() <= index {
        list.resize(index + 1, unknown);
    }
    list[index] = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_one_peer_as_long_as_nothing_is_removed() {
        let word = packed(3, 70, 5).expect("it fits");
        assert_eq!(number_in(word, 3, 5), Some(70));
        for (removals, peer) in [(4, 5), (3, 6), (3, u32::MAX)] {
            assert_eq!(number_in(word, removals, peer), None);
            assert_eq!(number_in(0, removals, peer), None);
        }
        assert_eq!(packed(0, 0, u32::MAX).or(packed(0, 1 << NUMBER_BITS, 0)), None);
    }

    #[test]
    fn a_removal_makes_it_forget() {
        let mut cache = Cache::default();
        cache.learn(0, 2, PeerId(1));
        assert_eq!((cache.by_number.as_slice(), cache.by_peer[1]), (&[UNKNOWN, UNKNOWN, 1][..], 2));
        cache.learn(1, 0, PeerId(0));
        assert_eq!((cache.by_number.as_slice(), cache.by_peer.as_slice()), (&[0][..], &[0][..]));
    }
}
