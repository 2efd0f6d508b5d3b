//! The structures and numbers of `include/isthmus.h`.

use std::ffi::{c_char, c_void};

use isthmus_substrate::{Error, Failure};

/// Version of the binary interface.
pub const ABI_VERSION: u32 = 0;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(C)]
        pub struct $name {
            /// The number of an object; 0 stands for none.
            pub id: u64,
        }
    )*};
}

handles! {
    /// Names an endpoint.
    EndpointName;
    /// Names a connection.
    ConnectionName;
    /// Names registered memory.
    RegionName;
    /// A name that was published at a router.
    NameHandle;
    /// Names a schedule of a file's pieces.
    ScheduleName;
}

/// Most storage targets of a layout. Count.
pub const TARGETS_MAX: usize = isthmus_layout::TARGETS_MAX;
/// Stands for all workers of a schedule.
pub const ANY_WORKER: u32 = u32::MAX;

/// `isthmus_layout`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "as in the header")]
pub struct LayoutRecord {
    pub stripe: u64,
    pub count: u32,
    pub targets: [u32; TARGETS_MAX],
}

/// `isthmus_memory`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemoryBytes {
    /// A memory handle's encoded form.
    pub bytes: [u8; 32],
}

/// `isthmus_device`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "as in the header")]
pub struct DeviceRecord {
    pub name: [c_char; 64],
    pub transport: [c_char; 32],
    pub interface: [c_char; 32],
    pub address: [c_char; 64],
    pub why: [c_char; 256],
    pub rate_bps: u64,
    pub as_id: u32,
    pub subnet: u32,
    pub priority: u32,
    pub up: u32,
    pub routers: u32,
    pub reserved: u32,
}

/// `isthmus_endpoint_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "as in the header")]
pub struct OptionsRecord {
    pub size: usize,
    pub recv_buffers: u32,
    pub send_buffers: u32,
    pub message_max: u32,
    pub backlog: u32,
    pub send_timeout_us: u64,
    pub keepalive_us: u64,
    pub port: u32,
    pub reserved: u32,
}

/// `isthmus_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs, reason = "as in the header")]
pub struct EventRecord {
    pub kind: u32,
    pub status: i32,
    pub connection: ConnectionName,
    pub context: *mut c_void,
    pub operation: *mut c_void,
    pub data: *const c_void,
    pub len: usize,
    pub level: u32,
    pub reason: u32,
    pub text: *const c_char,
    pub token: u64,
}

/// `isthmus_counters`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "as in the header")]
pub struct CountersRecord {
    pub size: usize,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub messages_sent: u64,
    pub datagrams_sent: u64,
    pub datagrams_received: u64,
    pub fragments_resent: u64,
    pub lanes: u64,
    pub rtt_us: u64,
}

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// `enum isthmus_status`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(missing_docs, reason = "as in the header")]
        pub enum Status {
            $($name = $code,)*
        }

        /// The text of a status.
        pub(crate) fn status_text(code: i32) -> &'static std::ffi::CStr {
            match code {
                $($code => $text,)*
                _ => c"no such status",
            }
        }
    };
}

statuses! {
    Success = 0, c"success";
    Again = 1, c"no event now, or events are waiting";
    Invalid = 2, c"an argument is null, out of its range, or makes no sense with the others";
    Stale = 3, c"it has ended, was returned, or is of another endpoint";
    Full = 4, c"too many operations are under way; take events, then try again";
    TooLong = 5, c"longer than the connection or the call takes";
    State = 6, c"the connection is not established, or over";
    Level = 7, c"UU connections have no access to remote memory";
    Memory = 8, c"the memory is of another endpoint, too short, or in use";
    Configuration = 9, c"the configuration is wrong";
    Device = 10, c"no such device, or it is down";
    System = 11, c"the operating system refused something";
    Unreachable = 12, c"no way leads there";
    Closed = 13, c"the endpoint is closed, or was opened before this process forked";
    Internal = 14, c"internal error; please report it";
    Uninitialised = 15, c"isthmus_init was not called, or for another version";
    TimedOut = 16, c"no answer within the time given";
    Rejected = 17, c"the other program turned the request down";
    Busy = 18, c"the other endpoint has too many requests waiting";
    Version = 19, c"the other endpoint speaks another version";
    Disconnected = 20, c"the other end has disconnected";
    PeerGone = 21, c"the other process has ended or is not there";
    RemoteAccess = 22, c"the peer refused access to its memory";
    Protocol = 23, c"the peer broke the protocol";
}

impl From<&Failure> for Status {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::TimedOut => Self::TimedOut,
            Failure::Rejected(_) => Self::Rejected,
            Failure::Busy => Self::Busy,
            Failure::Version => Self::Version,
            Failure::Disconnected => Self::Disconnected,
            Failure::PeerGone(_) => Self::PeerGone,
            Failure::Unreachable(_) => Self::Unreachable,
            Failure::RemoteAccess(_) => Self::RemoteAccess,
            _ => Self::Protocol,
        }
    }
}

impl From<&Error> for Status {
    fn from(error: &Error) -> Self {
        match error {
            Error::Configuration(_) => Self::Configuration,
            Error::Device(_) => Self::Device,
            Error::Uri(_) | Error::Value(_) => Self::Invalid,
            Error::Unreachable(_) => Self::Unreachable,
            Error::Full(_) => Self::Full,
            Error::TooLong { .. } => Self::TooLong,
            Error::Stale(_) => Self::Stale,
            Error::State(_) => Self::State,
            Error::Level => Self::Level,
            Error::Memory(_) => Self::Memory,
            Error::Failed(failure) => failure.into(),
            Error::Closed => Self::Closed,
            _ => Self::System,
        }
    }
}
