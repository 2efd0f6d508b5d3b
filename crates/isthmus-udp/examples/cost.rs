//! What a packet costs the processor, plain and sealed: two ports in one thread hand their
//! packets to each other.
//!
//! `cargo run --release -p isthmus-udp --example cost`

use std::net::SocketAddr;

use isthmus_udp::{Event, Micros, Port, PortConfig, Session, StreamId};
use rustix::time::{ClockId, clock_gettime};

/// Bytes of each transfer.
const BYTES: u64 = 1 << 30;
/// Round trip of the path. Microseconds.
const RTT_US: Micros = 100;
const ROUNDS: usize = 5;

/// Time that this thread had a processor. Seconds.
fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn port(seed: u8, payload: u32) -> Port {
    let mut config = PortConfig::default();
    config.stream.payload_max = payload;
    config.stream.limits.cap = 10_000_000_000;
    Port::new(config, [seed; 16])
}

/// Moves what `from` sends to `to`.
fn pass(now: Micros, from: &mut Port, to: &mut Port, source: SocketAddr, room: &mut Vec<u8>) -> u64 {
    let mut packets = 0;
    for _ in 0..64 {
        room.clear();
        let Some(transmit) = from.poll_transmit(now, 64, 64_000, room) else { break };
        for packet in room.chunks_mut(transmit.segment) {
            to.on_packet(now + RTT_US / 2, now + RTT_US / 2, source, packet);
            packets += 1;
        }
    }
    packets
}

/// Processor time of a transfer, and its packets.
fn transfer(payload: u32, sealed: bool) -> (f64, u64) {
    let (a, b) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
    let (mut one, mut two) = (port(1, payload), port(2, payload));
    let mut now = 1_000_000;
    let stream = if sealed {
        let session = Session::new(&[7; Session::LEN], 0);
        two.expect(now, a.ip(), session.clone());
        one.open_within(now, b, &session)
    } else {
        one.open(now, b)
    };
    let block = vec![7; 256 << 10];
    let (mut written, mut read, mut packets) = (0_u64, 0_u64, 0_u64);
    let mut accepted: Option<StreamId> = None;
    let mut room = Vec::new();
    let start = processor_s();
    while read < BYTES {
        let most = (BYTES - written).min(block.len() as u64) as usize;
        written += one.with(now, stream, |stream| stream.write(&block[..most])).unwrap_or(0) as u64;
        packets += pass(now, &mut one, &mut two, a, &mut room);
        while let Some(event) = two.poll_event() {
            if let Event::Accepted(id, _) = event {
                accepted = Some(id);
            }
        }
        if let Some(id) = accepted {
            read += two
                .with(now, id, |stream| {
                    let mut taken = 0;
                    while stream.readable() > 0 {
                        let len = stream.peek(usize::MAX).len() as u64;
                        stream.consume(now, len);
                        taken += len;
                    }
                    taken
                })
                .unwrap_or(0);
        }
        pass(now, &mut two, &mut one, b, &mut room);
        while one.poll_event().is_some() {}
        now += RTT_US / 4;
    }
    (processor_s() - start, packets)
}

fn main() {
    for payload in [8_972, 1_472] {
        let mut best = [f64::MAX; 2];
        for _ in 0..ROUNDS {
            for (least, sealed) in best.iter_mut().zip([false, true]) {
                let (seconds, packets) = transfer(payload, sealed);
                *least = least.min(seconds / packets as f64);
            }
        }
        let [plain, sealed] = best.map(|seconds| seconds * 1e9);
        let rate = |ns: f64| f64::from(payload) * 8.0 / ns;
        println!(
            "{payload} bytes: plain {plain:.0} ns a packet, both ends ({:.1} Gb/s on one core), sealed {sealed:.0} ns \
             ({:.1} Gb/s), {:.2} of plain",
            rate(plain),
            rate(sealed),
            plain / sealed
        );
    }
}
