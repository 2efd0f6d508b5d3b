//! Reading another process's memory, where the system permits it: one copy instead of two, without its help.

use std::io;
use std::sync::LazyLock;

/// A number that only this process has at this address. It is read along with whatever is
/// read here, so that nobody takes another process for this one.
static TOKEN: LazyLock<Box<u64>> = LazyLock::new(|| Box::new(getrandom::u64().unwrap_or_default() | 1));

/// Most pieces of one read.
const PIECES: usize = 64;

/// Whose memory may be read, and how to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u64,
    /// Address of its token, and the token.
    pub(super) address: u64,
    pub(super) token: u64,
}

impl Process {
    /// This process.
    pub(super) fn own() -> Self {
        let token: &u64 = &TOKEN;
        Self { pid: u64::from(std::process::id()), address: std::ptr::from_ref(token) as u64, token: *token }
    }

    /// Whether its memory can be read.
    pub(super) fn is_within_reach(&self) -> bool {
        let mut own = 0u64;
        let mut piece = [libc::iovec { iov_base: (&raw mut own).cast(), iov_len: 8 }];
        // SAFETY: the piece is `own`.
        self.token != 0
            && matches!(unsafe { self.read(self.address, 8, &mut piece) }, Ok(8))
            && own == self.token
    }

    /// Reads up to `len` bytes from `address` on into `pieces`, as far as they reach.
    ///
    /// # Errors
    /// The system's; that it is not that process any more.
    ///
    /// # Safety
    /// The pieces are valid for writing.
    pub(super) unsafe fn read(
        &self,
        address: u64,
        len: u64,
        pieces: &mut [libc::iovec],
    ) -> io::Result<usize> {
        let mut found = 0u64;
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut local = [none; PIECES + 1];
        let (mut count, mut left) = (0, usize::try_from(len).unwrap_or(usize::MAX));
        for piece in pieces.iter().take(PIECES).filter(|piece| piece.iov_len > 0) {
            if left == 0 {
                break;
            }
            let n = piece.iov_len.min(left);
            local[count] = libc::iovec { iov_base: piece.iov_base, iov_len: n };
            (count, left) = (count + 1, left - n);
        }
        let wanted = usize::try_from(len).unwrap_or(usize::MAX) - left;
        local[count] = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 8 };
        let remote = [
            libc::iovec { iov_base: address as *mut libc::c_void, iov_len: wanted },
            libc::iovec { iov_base: self.address as *mut libc::c_void, iov_len: 8 },
        ];
        // SAFETY: the local pieces are the caller's and `found`; the kernel checks the rest.
        let n = unsafe {
            libc::process_vm_readv(
                self.pid as libc::pid_t,
                local.as_ptr(),
                count as libc::c_ulong + 1,
                remote.as_ptr(),
                2,
                0,
            )
        };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        if n as usize != wanted + 8 || found != self.token {
            return Err(io::Error::other("its memory is not what it said"));
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_only_if_it_is_the_one() {
        let own = Process::own();
        let from = [1u8, 2, 3, 4, 5];
        let (mut a, mut b) = ([0u8; 2], [0u8; 9]);
        let iovec =
            |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut pieces = [iovec(&mut a), iovec(&mut b)];
        let other = Process { token: own.token ^ 2, ..own };
        // SAFETY: the pieces are `a` and `b`.
        let read =
            |who: Process, pieces: &mut [libc::iovec]| unsafe { who.read(from.as_ptr() as u64, 5, pieces) };
        if !own.is_within_reach() {
            eprintln!("skipped: the system does not permit to read processes' memory");
            return;
        }
        assert!(!other.is_within_reach());
        assert!(read(other, &mut pieces).is_err());
        assert_eq!(read(own, &mut pieces).ok(), Some(5));
        // SAFETY: as above; nothing can be read at 0.
        assert!(unsafe { own.read(0, 5, &mut pieces) }.is_err());
        assert_eq!((a, b), ([1, 2], [3, 4, 5, 0, 0, 0, 0, 0, 0]));
    }
}
