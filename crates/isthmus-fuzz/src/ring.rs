//! Rings in shared memory that another process may have filled with anything.

use isthmus_io::read_any_ring;

/// Records as the other end writes them: each begins a line of 64 bytes with its length and kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let record = |kind: u32, len: u32, lines: usize| {
        let mut bytes = [len.to_le_bytes(), kind.to_le_bytes()].concat();
        bytes.resize(64 * lines, 7);
        bytes
    };
    let (bytes, long, short, end) = (record(1, 5, 1), record(7, 200, 4), record(4, 9, 1), record(3, 0, 1));
    let lent = [16_u32, 2, 0x1000, 0, 4096, 0].map(u32::to_le_bytes).concat();
    let mut given = [16_u32, 6, 0x1000, 0, 4096, 0].map(u32::to_le_bytes).concat();
    given.resize(64, 0);
    vec![[bytes, long, end.clone()].concat(), [short, end].concat(), lent, given]
}

/// Reading ends, and each round reads no more than the ring holds.
pub(crate) fn property(input: &[u8]) {
    let rounds = input.len().next_power_of_two().clamp(256, 1 << 16) as u64;
    assert!(read_any_ring(input) <= rounds * (16 << 10));
}
