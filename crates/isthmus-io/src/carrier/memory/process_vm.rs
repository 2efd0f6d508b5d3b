//! Reads and writes another process's memory, if the system permits it (`process_vm_readv(2)`): one copy instead of
//! two, without the other process's help.

use std::io;
use std::sync::LazyLock;

use isthmus_proto::Access as Wanted;

/// A random number that only this process has at this address. Readers check it, so that they do not take another
/// process for this one.
static TOKEN: LazyLock<Box<u64>> = LazyLock::new(|| Box::new(getrandom::u64().unwrap_or_default() | 1));

/// Most pieces of one transfer. Count.
const PIECES: usize = 64;

/// A process whose memory may be accessed, and how to recognise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u64,
    /// Address of its token.
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
    pub(super) fn is_accessible(&self) -> bool {
        let mut own = 0u64;
        let piece = [libc::iovec { iov_base: (&raw mut own).cast(), iov_len: 8 }];
        // SAFETY: the piece is `own`.
        self.token != 0 && matches!(unsafe { self.read(self.address, 8, &piece) }, Ok(8)) && own == self.token
    }

    /// Reads up to `len` bytes from `address` on into `pieces`, as far as they reach.
    ///
    /// # Errors
    /// The system's, or that it is another process by now.
    ///
    /// # Safety
    /// The pieces are valid for writing.
    pub(super) unsafe fn read(&self, address: u64, len: u64, pieces: &[libc::iovec]) -> io::Result<usize> {
        let mut found = 0u64;
        let mut local = Local::of(pieces, 0, usize::try_from(len).unwrap_or(usize::MAX));
        let wanted = local.len;
        local.push(libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 8 });
        let remote = [remote(address, wanted), remote(self.address, 8)];
        // SAFETY: the caller's promise, and `found`.
        let n = unsafe { self.transfer(Wanted::Read, &local, &remote) }?;
        if n != wanted + 8 || found != self.token {
            return Err(io::Error::other("its memory is not what it said"));
        }
        Ok(wanted)
    }

    /// Reads or writes `len` bytes from `address` on, to or from `pieces` from their byte `skip` on. The caller has
    /// recently checked that it is still that process ([`Process::is_accessible`]).
    ///
    /// # Errors
    /// The system's, or that not everything was read or written.
    ///
    /// # Safety
    /// The pieces are as long, and valid for writing where this reads.
    pub(super) unsafe fn access(
        &self,
        wanted: Wanted,
        (address, len): (u64, usize),
        pieces: &[libc::iovec],
        skip: usize,
    ) -> io::Result<()> {
        let local = Local::of(pieces, skip, len);
        // SAFETY: the caller's promise.
        match unsafe { self.transfer(wanted, &local, &[remote(address, len)]) }? {
            n if n == len => Ok(()),
            n => Err(io::Error::other(format!("{n} of {len} bytes are there"))),
        }
    }

    /// # Safety
    /// The local pieces are valid for writing where this reads.
    unsafe fn transfer(&self, wanted: Wanted, local: &Local, remote: &[libc::iovec]) -> io::Result<usize> {
        let call = match wanted {
            Wanted::Read => libc::process_vm_readv,
            Wanted::Write | Wanted::Update => libc::process_vm_writev,
        };
        let (from, count) = (local.pieces.as_ptr(), local.count as libc::c_ulong);
        // SAFETY: the caller's promise; the kernel checks the rest.
        let n = unsafe {
            call(self.pid as libc::pid_t, from, count, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

fn remote(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }
}

/// Our own pieces of a transfer, and their total length.
struct Local {
    pieces: [libc::iovec; PIECES + 1],
    count: usize,
    len: usize,
}

impl Local {
    /// Up to `most` bytes of these pieces, from byte `skip` on.
    fn of(pieces: &[libc::iovec], mut skip: usize, most: usize) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut local = Self { pieces: [none; PIECES + 1], count: 0, len: 0 };
        for piece in pieces {
            let skipped = skip.min(piece.iov_len);
            skip -= skipped;
            let n = (piece.iov_len - skipped).min(most - local.len);
            if n > 0 && local.count < PIECES {
                local.push(libc::iovec { iov_base: piece.iov_base.wrapping_byte_add(skipped), iov_len: n });
            }
        }
        local
    }

    fn push(&mut self, piece: libc::iovec) {
        self.pieces[self.count] = piece;
        self.count += 1;
        self.len += piece.iov_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iovec(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn a_process_is_read_only_if_it_is_the_one() {
        let own = Process::own();
        let from = [1u8, 2, 3, 4, 5];
        let (mut a, mut b) = ([0u8; 2], [0u8; 9]);
        let pieces = [iovec(&mut a), iovec(&mut b)];
        let other = Process { token: own.token ^ 2, ..own };
        // SAFETY: the pieces are `a` and `b`.
        let read =
            |who: Process, pieces: &[libc::iovec]| unsafe { who.read(from.as_ptr() as u64, 5, pieces) };
        if !own.is_accessible() {
            eprintln!("skipped: the system does not permit to read processes' memory");
            return;
        }
        assert!(!other.is_accessible());
        assert!(read(other, &pieces).is_err());
        assert_eq!(read(own, &pieces).ok(), Some(5));
        // SAFETY: as above; nothing can be read at 0.
        assert!(unsafe { own.read(0, 5, &pieces) }.is_err());
        assert_eq!((a, b), ([1, 2], [3, 4, 5, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_part_of_pieces_goes_to_another_process_and_comes_back() {
        let own = Process::own();
        if !own.is_accessible() {
            eprintln!("skipped: the system does not permit to read processes' memory");
            return;
        }
        let (mut a, mut b, mut there, mut back) = ([1u8, 2, 3], [4u8, 5], [0u8; 6], [0u8; 6]);
        let (pieces, whole) = ([iovec(&mut a), iovec(&mut []), iovec(&mut b)], [iovec(&mut back)]);
        let at = there.as_mut_ptr() as u64;
        // SAFETY: all of them are arrays of this test.
        let access = |wanted, range, pieces: &[_], skip| unsafe { own.access(wanted, range, pieces, skip) };
        access(Wanted::Write, (at + 1, 3), &pieces, 1).expect("within reach");
        access(Wanted::Read, (at, 4), &whole, 2).expect("within reach");
        assert!(access(Wanted::Write, (0, 3), &pieces, 0).is_err(), "nothing is there");
        assert_eq!((there, back), ([0, 2, 3, 4, 0, 0], [0, 0, 0, 2, 3, 4]));
    }
}
