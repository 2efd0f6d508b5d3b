//! Options of endpoints, connections and operations.

use std::time::Duration;

use crate::{Error, Transfer};

/// Options of an endpoint. All but `message_max` and `port` can be changed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Most messages that wait for the program or are held by it; more wait at their senders. Count, 1..=65536.
    /// Default 128.
    pub recv_buffers: u32,
    /// Most sends, writes and reads under way. Count, 1..=1048576. Default 1024.
    pub send_buffers: u32,
    /// Longest message that may come. Bytes, 64..=16777216. Default 65536. Each receive buffer has this length; it
    /// takes memory only when it is first used.
    pub message_max: u32,
    /// Most requests that wait for a decision; more are rejected. Count. Default 4096.
    pub backlog: u32,
    /// Longest duration of messages, writes and reads of new connections; zero: as long as the
    /// peer lives. Default zero.
    pub send_timeout: Duration,
    /// Silence of new connections after which the program is told; zero: never. Default zero.
    pub keepalive: Duration,
    /// TCP port to listen at; 0: as the device's settings say. Default 0.
    pub port: u16,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            recv_buffers: 128,
            send_buffers: 1024,
            message_max: 64 << 10,
            backlog: 4096,
            send_timeout: Duration::ZERO,
            keepalive: Duration::ZERO,
            port: 0,
        }
    }
}

impl EndpointOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check("recv_buffers", self.recv_buffers, 1, 65_536)?;
        check("send_buffers", self.send_buffers, 1, 1 << 20)?;
        check("message_max", self.message_max, 64, 16 << 20)?;
        check("backlog", self.backlog, 1, 1 << 20)
    }
}

pub(crate) fn check(name: &str, value: u32, least: u32, most: u32) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Value(format!("{name} = {value} is out of its range, {least} to {most}")))
}

/// Options of [`Endpoint::connect`](crate::Endpoint::connect).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Longest wait for the answer. Default `None`: as long as the peer can be reached.
    pub timeout: Option<Duration>,
}

/// Options of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// The context that the program gave; the event returns it.
    pub context: u64,
    /// No event unless it fails.
    pub silent: bool,
    /// The call returns when the message is complete, with its end; there is no event.
    pub blocking: bool,
    /// The transfer of the message. Default: the endpoint's setting, or else by measurements of the peer.
    pub transfer: Transfer,
    /// On RO: the message is outside the order. It is delivered when it comes, and its end is reported at once.
    pub unordered: bool,
}

impl SendOptions {
    /// The default, for constants.
    pub const DEFAULT: Self =
        Self { context: 0, silent: false, blocking: false, transfer: Transfer::Adaptive, unordered: false };
}

/// Options of a write or read of remote memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteOptions<'a> {
    /// The context that the program gave; the event returns it.
    pub context: u64,
    /// No event unless it fails.
    pub silent: bool,
    /// The call returns when the operation is complete, with its end; there is no event.
    pub blocking: bool,
    /// Starts only when all earlier operations to the same peer are complete.
    pub fence: bool,
    /// A message that the other program receives after the data is in its memory (or was read from there). If the
    /// operation fails, the message does not come. It is outside RO's order.
    pub message: Option<&'a [u8]>,
}
