//! Decisions of the engine about its peers, each with its reason. The shell logs them (`docs/decisions.md`).

use std::fmt;

use isthmus_wire::Address;

use super::Engine;
use crate::PeerId;

/// Most decisions that are kept until the shell fetches them. Count; later ones are only counted.
const KEPT: usize = 64;

/// A decision, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The number of lanes that carry data to the peer has changed.
    Streams {
        /// Number of lanes.
        count: u32,
        /// The reason.
        why: &'static str,
    },
    /// Messages longer than 8 KiB are transferred in another way from now on.
    Transfer {
        /// "eager", "mixed", "rendezvous" or "announced".
        how: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The peer's credit has changed: bytes that it may send before receives are posted.
    Credit {
        /// The credit. Bytes.
        bytes: u64,
        /// The reason.
        why: &'static str,
    },
    /// The peer acknowledges nothing; a new lane is dialled to see whether it can be reached.
    Probe {
        /// Time without an acknowledgement. Milliseconds.
        silent_ms: u64,
    },
    /// A lane is given up that has stopped while others move.
    Stuck {
        /// Time without an acknowledgement. Milliseconds.
        silent_ms: u64,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streams { count, why } => write!(f, "streams: {count} carry: {why}"),
            Self::Transfer { how, why } => write!(f, "transfer: {how}: {why}"),
            Self::Credit { bytes, why } => write!(f, "credit: {} KiB: {why}", bytes >> 10),
            Self::Probe { silent_ms } => {
                write!(f, "probe: nothing acknowledged for {silent_ms} ms; a new lane is tried")
            }
            Self::Stuck { silent_ms } => {
                write!(f, "stuck: a lane has not moved for {silent_ms} ms while others do; it is given up")
            }
        }
    }
}

impl Engine {
    pub(super) fn decide(&mut self, peer: PeerId, decision: Decision) {
        let lasting = match decision {
            Decision::Streams { .. } => Some(0),
            Decision::Transfer { .. } => Some(1),
            _ => None,
        };
        if let (Some(kind), Some(connection)) = (lasting, &mut self.peers[peer.0 as usize].connection) {
            connection.decided.get_or_insert_default()[kind] = Some(decision);
        }
        if self.decisions.len() < KEPT {
            let address = self.peers[peer.0 as usize].address;
            self.decisions.push((address, decision));
        } else {
            self.counters.decisions_untold += 1;
        }
    }

    /// The decisions since the last call, each with its peer. If there were more than 64, only the first 64
    /// ([`super::Counters::decisions_untold`]).
    pub fn take_decisions(&mut self) -> Vec<(Address, Decision)> {
        std::mem::take(&mut self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn decisions_that_nobody_asks_for_are_counted_and_the_first_are_kept() {
        let address = |number: u32| Address { incarnation: number, ..Address::default() };
        let mut engine = Engine::new(Config::new(address(1)));
        let peer = engine.peer(&address(2)).expect("of the same network");
        (0..KEPT as u64 + 7).for_each(|silent_ms| engine.decide(peer, Decision::Probe { silent_ms }));
        let told = engine.take_decisions();
        assert_eq!(told.last(), Some(&(address(2), Decision::Probe { silent_ms: KEPT as u64 - 1 })));
        assert_eq!(engine.counters().decisions_untold, 7);
        engine.decide(peer, Decision::Probe { silent_ms: 0 });
        assert_eq!((engine.take_decisions().len(), engine.counters().decisions_untold), (1, 7));
    }
}
