//! Records that the engine keeps of peers that have left, and their bound.
//!
//! # Messages that no receive has taken yet
//!
//! A program may receive what a peer sent before it left, so the messages stay. But the peer's credit is free again, so
//! a peer that comes, sends, leaves and comes again could fill the memory. Therefore all gone peers together hold at
//! most a quarter of [`credit_total`](super::Config::credit_total). Beyond that, the messages of those that left first
//! are dropped.
//!
//! # Peers that the program never named
//!
//! The engine forgets such a peer once its lanes are gone, the program was told of the loss, and none of its messages
//! is left. Only the address and the counters stay, about 250 bytes. A Hello from that address is refused from then on,
//! so that nobody can replay a recorded one. A new endpoint has another address.
//!
//! At an open endpoint everybody can come and leave, under any number of addresses. Nor does a Hello prove anything
//! there, so a recorded one is worth no more than a new one. If the program says so ([`Engine::reuse_entries`]), the
//! engine therefore keeps the last [`DEPARTED_MAX`] such peers only, and gives the entries of earlier ones to new peers.
//! Others break off without a farewell and might come back until `peer_timeout`. [`ABSENT_MAX`] of these are waited for.

use std::collections::VecDeque;

use isthmus_wire::Address;

use super::state::Stage;
use super::{Engine, PeerCounters};
use crate::memory::Memory;
use crate::{OpError, PeerId};

/// Memory that a message costs beside its data. Bytes: about the size of its records.
pub(super) const MESSAGE_COST: u64 = 512;
/// Departed peers that are checked each time one leaves or loses a lane. Count: more than one, so that the list
/// shrinks.
const LOOKS: usize = 4;
/// Departed peers of an open endpoint whose entries are kept. Count: about 1 MiB, and late enough that the program has
/// long been told of their loss when an entry is used again.
const DEPARTED_MAX: usize = 4_096;

/// Guests of an open endpoint that are waited for after they lost their lanes. Count: about 1 MiB. Those that the program
/// has vouched for or named do not count.
const ABSENT_MAX: usize = 1_024;

/// The peers that have left or broken off, in the order in which they did.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Those of which messages remain that no receive has taken.
    with_messages: VecDeque<PeerId>,
    /// What these messages hold, and how many were dropped. Bytes and count.
    held: u64,
    dropped: u64,
    /// Those that the program never named and that may soon be forgotten.
    leaving: VecDeque<PeerId>,
    /// Guests of an open endpoint that broke off and may come back.
    absent: VecDeque<PeerId>,
    /// Those that are forgotten but for their address, and their counters.
    departed: VecDeque<(PeerId, PeerCounters)>,
    /// Entries of departed peers are used again ([`Engine::reuse_entries`]).
    reuses: bool,
}

impl Gone {
    pub(super) fn departed(&self) -> impl Iterator<Item = &(PeerId, PeerCounters)> {
        self.departed.iter()
    }
}

/// The error of operations with a peer that was forgotten.
pub(super) fn departed(address: &Address) -> OpError {
    OpError::PeerGone(format!("the endpoint at {address} has left"))
}

impl Engine {
    /// Counts the messages that this peer left behind. Beyond the bound, drops those of the peers that left first.
    pub(super) fn count_gone(&mut self, peer: PeerId, mem: &mut dyn Memory) {
        let connection = self.connection(peer);
        let holds = connection.credit_in.held() + u64::from(connection.unmatched) * MESSAGE_COST;
        if holds == 0 {
            return;
        }
        connection.trouble.holds = holds;
        self.gone.held += holds;
        self.gone.with_messages.push_back(peer);
        while self.gone.held > self.config.credit_total / 4 {
            let Some(first) = self.gone.with_messages.pop_front() else { return };
            self.drop_unexpected(first, mem);
        }
        // Forget peers whose messages were all received meanwhile.
        while let Some(&first) = self.gone.with_messages.front()
            && self.connection(first).trouble.holds == 0
        {
            self.gone.with_messages.pop_front();
        }
    }

    fn drop_unexpected(&mut self, peer: PeerId, mem: &mut dyn Memory) {
        for index in self.matcher.take_unexpected(peer) {
            self.leave_unexpected(index);
            self.inbounds[index].stage = Stage::Dropped;
            self.complete_inbound(index, mem);
            self.gone.dropped += 1;
        }
    }

    /// Subtracts `bytes` of this peer from the count. Does nothing unless the peer has left.
    pub(super) fn free_of_gone(&mut self, peer: PeerId, bytes: u64) {
        let connection = self.peers[peer.0 as usize].connection.as_mut();
        let Some(trouble) = connection.and_then(|connection| connection.trouble.get_mut()) else { return };
        let less = bytes.min(trouble.holds);
        trouble.holds -= less;
        self.gone.held -= less;
    }

    /// A peer that is gone for good has lost a lane. Forgets the departed peers of which nothing is left.
    pub(super) fn forget_guests(&mut self, peer: PeerId) {
        let known = &self.peers[peer.0 as usize];
        if !known.named && !known.departed && !self.gone.leaving.contains(&peer) {
            self.gone.leaving.push_back(peer);
        }
        for _ in 0..LOOKS.min(self.gone.leaving.len()) {
            let Some(next) = self.gone.leaving.pop_front() else { return };
            if self.peers[next.0 as usize].named {
                continue;
            }
            if self.is_over(next) {
                let known = &mut self.peers[next.0 as usize];
                let counters = known.connection.take().map(|connection| connection.counters);
                known.departed = true;
                if !known.guest {
                    known.answers_at = None;
                }
                self.gone.departed.extend(counters.map(|counters| (next, counters)));
                if self.gone.reuses {
                    self.gone.with_messages.retain(|gone| *gone != next);
                }
            } else {
                self.gone.leaving.push_back(next);
            }
        }
    }

    /// From now on, entries of forgotten peers may be given to others. The program keeps no [`PeerId`] of a lost peer
    /// that it has not vouched for ([`Engine::vouch_for`]). No effect at a closed endpoint.
    pub fn reuse_entries(&mut self) {
        self.gone.reuses = !self.is_closed();
    }

    /// A peer has lost its lanes without a farewell. If too many guests have, gives up those that did so first.
    pub(super) fn await_return(&mut self, peer: PeerId, mem: &mut dyn Memory) {
        if !self.gone.reuses || !self.is_absent_guest(peer) {
            return;
        }
        self.gone.absent.push_back(peer);
        while self.gone.absent.len() > ABSENT_MAX {
            let Some(first) = self.gone.absent.pop_front() else { return };
            if self.is_absent_guest(first) {
                let error = departed(&self.peers[first.0 as usize].address);
                self.fail_peer(first, error, mem);
            }
        }
    }

    /// Whether this is a peer without lanes for which nobody speaks: the program has neither named it nor vouched for it.
    fn is_absent_guest(&self, peer: PeerId) -> bool {
        let known = &self.peers[peer.0 as usize];
        let is_absent = known.connection.as_ref().is_some_and(|connection| {
            connection.lanes.is_empty() && connection.dialing == 0 && connection.trouble.failed.is_none()
        });
        is_absent && !known.named && !known.vouched
    }

    /// This peer has proved to the program who it is. Nobody else ever gets its [`PeerId`].
    pub fn vouch_for(&mut self, peer: PeerId) {
        let peer = self.resolve(peer);
        self.peers[peer.0 as usize].vouched = true;
    }

    /// The entry of the peer that departed first, if more than [`DEPARTED_MAX`] have and it may be used again.
    pub(super) fn reusable(&mut self) -> Option<PeerId> {
        if !self.gone.reuses {
            return None;
        }
        while self.gone.departed.len() > DEPARTED_MAX {
            let (first, _) = self.gone.departed.pop_front()?;
            let known = &self.peers[first.0 as usize];
            if known.departed && !known.named && !known.vouched {
                self.directory.remove(&self.peers, first);
                return Some(first);
            }
        }
        None
    }

    /// Whether nothing of a lost peer is left: no lane, operation or message, and the program knows of the loss.
    fn is_over(&self, peer: PeerId) -> bool {
        let Some(connection) = &self.peers[peer.0 as usize].connection else { return false };
        let is_lost = connection.trouble.failed.is_some() && connection.lanes.is_empty();
        is_lost
            && connection.dialing == 0
            && connection.trouble.holds == 0
            && self.lost.as_ref().is_none_or(|lost| !lost.contains(&peer))
            && self.lanes.iter().all(|(_, lane)| lane.peer != Some(peer))
            && self.inbounds.iter().all(|(_, inbound)| inbound.peer != peer)
            && self.operations.iter().all(|(_, operation)| operation.peer != peer)
    }

    /// Memory that the messages of all gone peers hold. Bytes.
    pub fn gone_hold(&self) -> u64 {
        self.gone.held
    }

    /// The number of messages of gone peers that were dropped since the last call.
    pub fn take_gone_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.gone.dropped)
    }
}
