//! One lane of a hub: its packet numbers, unread packets and TCP connection.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use isthmus_wire::frame::{Frame, PacketKind};
use rustix::net::{RecvFlags, SendFlags};

use crate::net::BufferId;

/// Most packets of a lane that are under way or unread. Count.
pub(crate) const CREDITS: u64 = 16;
/// Most reads from a lane's connection in one turn. Count.
const LISTENS: usize = 16;

/// A received packet with unread bytes.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) buffer: BufferId,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) token: u64,
    pub(crate) key: u64,
    /// The neighbour's address, its endpoint's name, and its token for the lane, once known.
    pub(crate) to: Option<u64>,
    pub(crate) name: Vec<u8>,
    pub(crate) theirs: u64,
    /// The lane's TCP connection, once the lane has moved to the fabric.
    pub(crate) bell: Option<OwnedFd>,
    pub(crate) heard: Vec<u8>,
    /// Unread packets, from number `read` on. They may arrive out of order, because some providers
    /// send long and short messages by different protocols.
    pub(crate) inbox: VecDeque<Option<Parcel>>,
    /// Numbered packets that were read, and the limit last sent to the neighbour.
    pub(crate) read: u64,
    pub(crate) told: u64,
    /// Numbered packets that were sent, and the neighbour's limit.
    pub(crate) next: u64,
    pub(crate) limit: u64,
    /// All packets sent, all received, and the number that the last Ring announced.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) rung: u64,
    /// Packets that the provider has not completed yet. Count.
    pub(crate) sending: usize,
    /// Control packets to be sent.
    pub(crate) owed: Vec<PacketKind>,
    pub(crate) proved: bool,
    /// The neighbour sleeps; then: we have announced our sleep.
    pub(crate) asleep: bool,
    pub(crate) dozing: bool,
    pub(crate) wants_to_write: bool,
    /// Number of the neighbour's End packet; we have ended our bytes; the connection has ended.
    pub(crate) end: Option<u64>,
    pub(crate) finished: bool,
    pub(crate) parted: bool,
    pub(crate) failed: Option<String>,
}

impl Pipe {
    pub(crate) fn new(token: u64) -> Self {
        Self {
            token,
            key: u64::MAX,
            to: None,
            name: Vec::new(),
            theirs: 0,
            bell: None,
            heard: Vec::new(),
            inbox: VecDeque::new(),
            read: 0,
            told: CREDITS,
            next: 0,
            limit: CREDITS,
            sent: 0,
            received: 0,
            rung: 0,
            sending: 0,
            owed: Vec::new(),
            proved: false,
            asleep: false,
            dozing: false,
            wants_to_write: false,
            end: None,
            finished: false,
            parted: false,
            failed: None,
        }
    }

    /// Whether the next bytes, or the end, can be read.
    pub(crate) fn is_readable(&self) -> bool {
        matches!(self.inbox.front(), Some(Some(_))) || self.end == Some(self.read)
    }

    pub(crate) fn front(&mut self) -> Option<&mut Parcel> {
        self.inbox.front_mut().and_then(Option::as_mut)
    }

    /// Stores a received packet. False if it breaks the limit or repeats a number.
    pub(crate) fn put(&mut self, seq: u64, parcel: Parcel) -> bool {
        if seq < self.read || seq >= self.told || self.end.is_some_and(|end| seq >= end) {
            return false;
        }
        let at = (seq - self.read) as usize;
        if self.inbox.len() <= at {
            self.inbox.resize_with(at + 1, || None);
        }
        self.inbox[at].replace(parcel).is_none()
    }

    pub(crate) fn limit_to_tell(&self) -> u64 {
        self.read + CREDITS
    }

    /// Sends a frame on the connection. False if that fails; then the connection's end will show it.
    pub(crate) fn say(&self, frame: impl Into<Frame>) -> bool {
        let Some(bell) = &self.bell else { return false };
        let mut bytes = Vec::new();
        frame.into().encode(&mut bytes);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(bell.as_fd(), &bytes, flags).is_ok_and(|sent| sent == bytes.len())
    }

    /// Reads the connection. An error if nothing can arrive any more.
    pub(crate) fn listen(&mut self) -> Result<(), ()> {
        let Some(bell) = &self.bell else { return Ok(()) };
        let mut room = [0; 256];
        for _ in 0..LISTENS {
            match rustix::net::recv(bell.as_fd(), &mut room[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(()),
                Ok((n, _)) => self.heard.extend_from_slice(&room[..n]),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }
}
