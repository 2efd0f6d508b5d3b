//! The reasons to refuse a call, each with its libfabric errno.

use isthmus_io::{InterfaceError, LostPeer, OpenError, PostError};
use isthmus_proto::OpError;

pub(crate) const FI_EOTHER: i32 = 256;
pub(crate) const FI_ETOOSMALL: i32 = 257;
pub(crate) const FI_EOPBADSTATE: i32 = 258;
pub(crate) const FI_EAVAIL: i32 = 259;
pub(crate) const FI_EBADFLAGS: i32 = 260;
pub(crate) const FI_ENOEQ: i32 = 261;
pub(crate) const FI_ENOCQ: i32 = 263;
pub(crate) const FI_ETRUNC: i32 = 265;
pub(crate) const FI_ENOKEY: i32 = 266;
pub(crate) const FI_ENOAV: i32 = 267;

/// Why a call was refused. The text goes to libfabric's log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("a null pointer where an object or result is needed")]
    Null,
    #[error("this object belongs to the parent process; open your own after fork")]
    Forked,
    #[error("this object is out of order since an internal error; close it")]
    Poisoned,
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error("{0} is not supported")]
    NotOffered(&'static str),
    #[error("{0} is not supported by this provider; nothing to offer")]
    NoData(&'static str),
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0}")]
    InvalidText(String),
    #[error("unknown flags {0:#x}")]
    BadFlags(u64),
    #[error("{0}")]
    BadState(&'static str),
    #[error("still in use: {0}")]
    Busy(&'static str),
    #[error("nothing now; try again")]
    Again,
    #[error("an error entry waits; read it with fi_cq_readerr or fi_eq_readerr")]
    EntryFailed,
    #[error("the buffer is too small")]
    TooSmall,
    #[error("the message is longer than {0} bytes")]
    TooLong(usize),
    #[error("no such option")]
    NoOption,
    #[error("an event queue must be bound first")]
    NoEq,
    #[error("a completion queue must be bound with {0} before enabling")]
    NoCq(&'static str),
    #[error("an address vector must be bound before enabling")]
    NoAv,
    #[error("{0}")]
    NoKey(String),
    #[error("timed out")]
    TimedOut,
    #[error("out of memory")]
    NoMemory,
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl Error {
    /// Whether only the user can correct it, so that it must be shown.
    pub(crate) fn is_the_users(&self) -> bool {
        matches!(self, Self::InvalidText(_) | Self::Unreachable(_) | Self::Open(_) | Self::System(_))
    }

    /// The positive errno.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Null | Self::Invalid(_) | Self::InvalidText(_) => libc::EINVAL,
            Self::Forked | Self::BadState(_) => FI_EOPBADSTATE,
            Self::Poisoned => FI_EOTHER,
            Self::Unsupported(_) => libc::ENOSYS,
            Self::NotOffered(_) => libc::EOPNOTSUPP,
            Self::NoData(_) | Self::NotFound(_) => libc::ENODATA,
            Self::BadFlags(_) => FI_EBADFLAGS,
            Self::Busy(_) => libc::EBUSY,
            Self::Again => libc::EAGAIN,
            Self::EntryFailed => FI_EAVAIL,
            Self::TooSmall => FI_ETOOSMALL,
            Self::TooLong(_) => libc::EMSGSIZE,
            Self::NoOption => libc::ENOPROTOOPT,
            Self::NoEq => FI_ENOEQ,
            Self::NoCq(_) => FI_ENOCQ,
            Self::NoAv => FI_ENOAV,
            Self::NoKey(_) => FI_ENOKEY,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::NoMemory => libc::ENOMEM,
            Self::Unreachable(_) => libc::EHOSTUNREACH,
            Self::Open(
                OpenError::Listen { cause, .. }
                | OpenError::System(cause)
                | OpenError::Interface(InterfaceError::List(cause)),
            )
            | Self::System(cause) => cause.raw_os_error().unwrap_or(libc::EIO),
            Self::Open(OpenError::Range { .. }) => libc::EADDRINUSE,
            Self::Open(_) => libc::ENODEV,
        }
    }

    /// Whether it is an ordinary answer that need not be logged.
    pub(crate) fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Self::Again
                | Self::EntryFailed
                | Self::TooSmall
                | Self::TimedOut
                | Self::NoOption
                | Self::NotOffered(_)
        )
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Again => Self::Again,
            PostError::Unreachable(text) => Self::Unreachable(text),
            PostError::Invalid(text) => Self::Invalid(text),
        }
    }
}

/// The same as [`completion_errno`] for a receive, by the setting `lost_peer`: MPICH ends the job for any errno of a
/// receive but `FI_ETRUNC`.
pub(crate) fn errno_of_receive(error: &OpError, lost_peer: LostPeer) -> i32 {
    match error {
        OpError::PeerGone(_) | OpError::Unreachable(_) if lost_peer == LostPeer::Truncate => FI_ETRUNC,
        _ => completion_errno(error),
    }
}

/// The errno with which a failed operation is reported in a completion queue.
pub(crate) fn completion_errno(error: &OpError) -> i32 {
    match error {
        OpError::Truncated { .. } => FI_ETRUNC,
        OpError::Cancelled => libc::ECANCELED,
        OpError::NoMessage => libc::ENOMSG,
        OpError::RemoteAccess(_) => libc::EACCES,
        OpError::PeerGone(_) => libc::ECONNRESET,
        OpError::Unreachable(_) => libc::EHOSTUNREACH,
        OpError::Protocol(_) => libc::EPROTO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_peer_truncates_a_receive_only_where_that_is_set() {
        let gone = OpError::PeerGone("gone".to_owned());
        assert_eq!(errno_of_receive(&gone, LostPeer::Error), libc::ECONNRESET);
        assert_eq!(errno_of_receive(&gone, LostPeer::Truncate), FI_ETRUNC);
        assert_eq!(errno_of_receive(&OpError::Cancelled, LostPeer::Truncate), libc::ECANCELED);
    }
}
