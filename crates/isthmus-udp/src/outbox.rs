//! Packets between a port and the system's socket.

use std::collections::VecDeque;

use crate::Micros;
use crate::port::{Port, Transmit};

/// Packets that a port has made and the socket has not taken yet. They leave in order, and a socket without room loses
/// none of them.
#[derive(Debug, Default)]
pub struct Outbox {
    batches: VecDeque<Transmit>,
    /// The packets of all batches.
    bytes: Vec<u8>,
    /// Where those of the first batch begin.
    from: usize,
}

impl Outbox {
    /// Whether the socket has taken everything.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Fetches what is due from the port, if the box is empty: at most `batches` of packets, each of at most `packets`
    /// packets and `bytes` bytes. True if there is something to send.
    pub fn fill(
        &mut self,
        now: Micros,
        port: &mut Port,
        batches: usize,
        (packets, bytes): (usize, usize),
    ) -> bool {
        if self.is_empty() {
            self.bytes.clear();
            self.from = 0;
            while self.batches.len() < batches
                && let Some(batch) = port.poll_transmit(now, packets, bytes, &mut self.bytes)
            {
                self.batches.push_back(batch);
            }
        }
        !self.is_empty()
    }

    /// The batch that is sent next, and its packets.
    pub fn front(&self) -> Option<(Transmit, &[u8])> {
        let batch = *self.batches.front()?;
        Some((batch, &self.bytes[self.from..self.from + batch.len]))
    }

    /// The socket has taken this many bytes of the first batch, or has dropped them.
    pub fn advance(&mut self, bytes: usize) {
        let Some(batch) = self.batches.front_mut() else { return };
        self.from += bytes.min(batch.len);
        batch.len = batch.len.saturating_sub(bytes);
        if batch.len == 0 {
            self.batches.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortConfig;

    #[test]
    fn what_the_socket_does_not_take_stays_in_order() {
        let mut port = Port::new(PortConfig::default(), [1; 16]);
        let peers = ["10.0.0.2:1", "10.0.0.3:1"].map(|peer| peer.parse().expect("an address"));
        for peer in peers {
            let stream = port.open(0, peer);
            port.with(0, stream, |stream| stream.write(&[7; 100_000]));
        }
        let mut outbox = Outbox::default();
        assert!(outbox.fill(0, &mut port, 2, (64, 65_000)));
        let (batch, packets) = outbox.front().expect("an opening packet");
        let (whole, segment) = (packets.to_vec(), batch.segment);
        outbox.advance(0);
        assert_eq!(outbox.front(), Some((batch, &whole[..])), "the socket had no room");
        assert!(whole.len() > segment, "several packets");
        outbox.advance(segment);
        assert_eq!(
            outbox.front().map(|(rest, packets)| (rest.to, packets)),
            Some((batch.to, &whole[segment..]))
        );
        assert!(outbox.fill(0, &mut port, 2, (64, 65_000)), "nothing new before the rest has left");
        assert_eq!(outbox.front().map(|(_, packets)| packets), Some(&whole[segment..]));
        outbox.advance(usize::MAX);
        assert!(outbox.front().is_some_and(|(other, _)| other.to != batch.to && peers.contains(&other.to)));
    }
}
