//! Counts packets that the system dropped because a socket's buffer was full.
#![allow(unsafe_code)]

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

/// SK_MEMINFO_VARS and SK_MEMINFO_DROPS of `linux/sock_diag.h`.
const VARS: usize = 9;
const DROPS: usize = 8;

/// Messages that the system has dropped so far because the socket's buffer was full, modulo 2^32. `None` if it does
/// not tell.
pub(crate) fn drops(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut values = [0_u32; VARS];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the system gets a live array and its length, and writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut values).cast(),
            &raw mut len,
        )
    };
    (result == 0 && len as usize == size_of_val(&values)).then_some(values[DROPS])
}

/// Estimates dropped packets from dropped messages: with GRO a message may be many packets.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// Dropped messages that were already counted.
    counted: u32,
    /// Messages and packets read since then.
    messages: u64,
    packets: u64,
}

impl Drops {
    /// A message of this many packets was read.
    pub(crate) fn note(&mut self, packets: usize) {
        self.messages += 1;
        self.packets += packets as u64;
    }

    /// About how many packets were dropped since the last call, if dropped messages are like those read.
    pub(crate) fn take(&mut self, socket: BorrowedFd<'_>) -> u64 {
        let Some(drops) = drops(socket) else { return 0 };
        let messages = u64::from(drops.wrapping_sub(self.counted));
        if messages == 0 {
            return 0;
        }
        let packets = messages * self.packets.max(1) / self.messages.max(1);
        *self = Self { counted: drops, ..Self::default() };
        packets.max(messages)
    }
}
