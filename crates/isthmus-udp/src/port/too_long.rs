//! Packets that the own interface does not carry, because its MTU has shrunk or they are probes.

use super::{Port, Transmit};
use crate::Micros;
use crate::mtu::PAYLOAD_BASE;

impl Port {
    /// The interface did not carry these packets: they were too long. Streams to that peer go on with shorter ones.
    /// False if these were as short as streams' packets get.
    pub fn on_too_long(&mut self, now: Micros, packets: &Transmit) -> bool {
        let there = self.streams.iter().filter(|(_, entry)| entry.peer == packets.to);
        for key in there.map(|(key, _)| key).collect::<Vec<_>>() {
            self.streams[key].stream.on_too_long(packets.segment);
            self.refresh(now, key);
        }
        packets.segment > PAYLOAD_BASE as usize
    }
}
