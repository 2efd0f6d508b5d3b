//! Memory that programs lend: buffers of operations and registered regions.

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it (`FI_REMOTE_READ`).
    pub remote_read: bool,
    /// Peers may write it (`FI_REMOTE_WRITE`).
    pub remote_write: bool,
}

/// Why a region cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The key is taken.
    #[error("memory key {0:#x} is already registered in this domain")]
    KeyInUse(u64),
}

/// The registered regions of one domain.
#[derive(Debug, Default)]
pub struct RegionTable {}

impl RegionTable {
    /// Registers `iov` under `key`, or under a key chosen here where `key` is `None`;
    /// returns the key. With `virtual_addressing` peers name bytes by virtual address,
    /// else by offset from the start.
    ///
    /// # Safety
    /// The memory stays valid until [`RegionTable::deregister`] returns.
    pub unsafe fn register(
        &self,
        iov: &[libc::iovec],
        key: Option<u64>,
        access: Access,
        virtual_addressing: bool,
    ) -> Result<u64, RegisterError> {
        let _ = (iov, key, access, virtual_addressing);
        todo!()
    }

    /// Takes a region back; transfers under way no longer touch it after this returns.
    pub fn deregister(&self, key: u64) {
        let _ = key;
        todo!()
    }
}
