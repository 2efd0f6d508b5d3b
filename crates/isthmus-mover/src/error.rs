//! The errors with which a transfer or the service ends.

/// The cause, sorted by what the user can do about it. The text says what.
#[derive(Debug, thiserror::Error)]
pub enum MoverError {
    /// The command or a configuration is wrong.
    #[error("{0}")]
    Usage(String),
    /// This host refuses something: a file, a port, memory.
    #[error("{0}")]
    Local(String),
    /// The other side cannot be reached, or was lost. The same command continues.
    #[error("{0}")]
    Lost(String),
    /// The service did not answer at its address in the time that a trial takes ([`crate::Transfer::is_trial`]).
    #[error("{0}")]
    Unreached(String),
    /// The other side refuses, or must not be trusted.
    #[error("{0}")]
    Refused(String),
}

impl From<isthmus_units::ResolveError> for MoverError {
    fn from(error: isthmus_units::ResolveError) -> Self {
        // A name service that does not answer now may answer the same command later.
        if error.is_outage() { Self::Lost(error.to_string()) } else { Self::Usage(error.to_string()) }
    }
}

impl MoverError {
    /// The same error with this text before and after its own.
    #[must_use]
    pub fn within(self, before: &str, after: &str) -> Self {
        let with = |text: String| format!("{before}{text}{after}");
        match self {
            Self::Usage(text) => Self::Usage(with(text)),
            Self::Local(text) => Self::Local(with(text)),
            Self::Lost(text) => Self::Lost(with(text)),
            Self::Unreached(text) => Self::Unreached(with(text)),
            Self::Refused(text) => Self::Refused(with(text)),
        }
    }
}

impl From<isthmus_trust::TrustError> for MoverError {
    fn from(error: isthmus_trust::TrustError) -> Self {
        if error.is_refused { Self::Local(error.to_string()) } else { Self::Usage(error.to_string()) }
    }
}

impl From<crate::channel::ChannelError> for MoverError {
    fn from(error: crate::channel::ChannelError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<crate::wire::WireError> for MoverError {
    fn from(error: crate::wire::WireError) -> Self {
        Self::Refused(format!("the other side sent {error}"))
    }
}

impl From<isthmus_io::PostError> for MoverError {
    fn from(error: isthmus_io::PostError) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<std::io::Error> for MoverError {
    fn from(error: std::io::Error) -> Self {
        Self::Local(error.to_string())
    }
}
