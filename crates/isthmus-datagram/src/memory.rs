//! What the system had no room for.
#![allow(unsafe_code)]

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd};

/// SK_MEMINFO_VARS and SK_MEMINFO_DROPS of `linux/sock_diag.h`.
const VARS: usize = 9;
const DROPS: usize = 8;

/// How many messages the system has dropped so far because the socket's buffer was full, modulo 2^32; `None` where it does
/// not say.
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

/// Packets that were dropped, told from messages that were: with GRO each may be many packets.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// Messages dropped that were counted already.
    counted: u32,
    /// Messages and packets that were read since.
    messages: u64,
    packets: u64,
}

impl Drops {
    /// A message of so many packets was read.
    pub(crate) fn note(&mut self, packets: usize) {
        self.messages += 1;
        self.packets += packets as u64;
    }

    /// Packets that were dropped since the last call, where those that were not are like them.
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
