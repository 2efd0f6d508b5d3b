//! Why calls are refused ([`Error`]), and why operations fail ([`Failure`]).

use isthmus_proto::OpError;

/// Why a call was refused. Nothing has happened then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong; the text names the place and the remedy.
    #[error("{0}")]
    Configuration(String),
    /// No device has this name, or none is up.
    #[error("{0}")]
    Device(String),
    /// The system refused something.
    #[error("{0}")]
    System(String),
    /// A text is not the address of an endpoint.
    #[error("{0}")]
    Uri(String),
    /// No route leads there from this endpoint.
    #[error("{0}")]
    Unreachable(String),
    /// The limit of operations under way is reached; the number is that limit.
    #[error("{0} operations are under way; take events, then try again, or raise the option send_buffers")]
    Full(u32),
    /// The message or payload is too long for the connection or the call.
    #[error("{len} bytes, of which at most {most} fit; {remedy}")]
    TooLong {
        /// The length given. Bytes.
        len: u64,
        /// The longest allowed. Bytes.
        most: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// The connection, request or event has ended, or never was.
    #[error("this {0} has ended, or is not one of this endpoint")]
    Stale(&'static str),
    /// The connection is not in the state that the call needs.
    #[error("the connection is {0}")]
    State(&'static str),
    /// The service level does not offer this.
    #[error("UU connections have no access to remote memory; connect with RU or RO")]
    Level,
    /// The memory is of another endpoint, or too short, or in use.
    #[error("{0}")]
    Memory(&'static str),
    /// An option's value is out of its range.
    #[error("{0}")]
    Value(String),
    /// A blocking operation failed.
    #[error(transparent)]
    Failed(Failure),
    /// The endpoint is closed.
    #[error("the endpoint is closed, or was opened before this process forked")]
    Closed,
}

/// Why an operation or connection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It took too long. A message may still arrive, once.
    #[error("no answer within the time given")]
    TimedOut,
    /// The other program rejected the request, with this reason.
    #[error("the other program turned the request down (reason {0})")]
    Rejected(u32),
    /// Too many requests wait at the other endpoint.
    #[error("the other endpoint has too many requests waiting; try again later")]
    Busy,
    /// The other end speaks another version.
    #[error("the other endpoint speaks another version; install the same release on both sides")]
    Version,
    /// The other end disconnected.
    #[error("the other end has disconnected")]
    Disconnected,
    /// The other process has ended or is not there.
    #[error("{0}")]
    PeerGone(String),
    /// The peer could not be reached within the configured time.
    #[error("{0}")]
    Unreachable(String),
    /// The peer refused access to its memory; nothing of it was touched.
    #[error("{0}")]
    RemoteAccess(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Protocol(String),
}

impl From<&OpError> for Failure {
    fn from(error: &OpError) -> Self {
        match error {
            OpError::PeerGone(text) => Self::PeerGone(text.clone()),
            OpError::Unreachable(text) => Self::Unreachable(text.clone()),
            OpError::RemoteAccess(_) => Self::RemoteAccess(error.to_string()),
            other => Self::Protocol(other.to_string()),
        }
    }
}
