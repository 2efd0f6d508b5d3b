//! For the fuzz target: reads a ring whose other end is hostile.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use super::ring::{Reader, Record, RingMemory};

/// Reads a ring with the content `bytes` as the end of a lane does, until nothing more comes or the other end is found
/// to be broken. Returns how many bytes came from records in the ring. Loans are not read: they are in another process.
pub fn read_any_ring(bytes: &[u8]) -> u64 {
    let capacity = bytes.len().next_power_of_two().clamp(256, 1 << 16);
    let mut words: Vec<AtomicU64> = (0..=capacity / 8).map(|_| AtomicU64::new(0)).collect();
    for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks(8)) {
        let mut raw = [0; 8];
        raw[..bytes.len()].copy_from_slice(bytes);
        *word.get_mut() = u64::from_le_bytes(raw);
    }
    let place = RingMemory {
        data: NonNull::from(&words[1..]).cast(),
        capacity: capacity as u64,
        head: NonNull::from(&words[0]),
    };
    // SAFETY: the words outlive the reader, and are as many as the place says.
    let mut reader = unsafe { Reader::new(place) };
    let (mut total, mut to) = (0, vec![0; 16 << 10]);
    // A writer is ahead by at most what the ring holds. This content is written once, and the reader may wrap around.
    for _ in 0..capacity {
        let Ok(Some(record)) = reader.record() else { break };
        match record {
            Record::Bytes(len) => {
                let n = (len as usize).min(to.len());
                // SAFETY: there is as much room.
                unsafe { reader.copy(to.as_mut_ptr(), n) };
                total += n as u64;
            }
            Record::Short(_) => match reader.take_short(&mut to) {
                Some((_, len)) => total += len,
                None => break,
            },
            Record::Offered { for_good } => {
                let Ok(true) = reader.take_lent(for_good) else { break };
                if !matches!(reader.is_in_place(), Ok(true)) {
                    break;
                }
            }
            Record::Lent { len, .. } => reader.took(len),
            Record::End => break,
        }
        reader.tell();
    }
    total
}
