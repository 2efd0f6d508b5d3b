//! One lane of a hub: its numbers, what came, and its connection.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use isthmus_wire::frame::{Frame, PacketKind};
use rustix::net::{RecvFlags, SendFlags};

use crate::net::BufferId;

/// Packets of one lane that may be under way and unread.
pub(crate) const CREDITS: u64 = 16;
/// Reads from a lane's connection in one turn.
const LISTENS: usize = 16;

/// A packet that came and is not read whole.
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
    /// The neighbour's endpoint, and its name for the lane, once they are known.
    pub(crate) to: Option<u64>,
    pub(crate) name: Vec<u8>,
    pub(crate) theirs: u64,
    /// The lane's connection, once it has moved.
    pub(crate) bell: Option<OwnedFd>,
    pub(crate) heard: Vec<u8>,
    /// What came and is not read, from packet number `read` on: where a provider takes long
    /// messages another way than short ones, they do not come in order.
    pub(crate) inbox: VecDeque<Option<Parcel>>,
    /// Numbered packets that were read, and the limit that the neighbour was told.
    pub(crate) read: u64,
    pub(crate) told: u64,
    /// Numbered packets sent, and the limit.
    pub(crate) next: u64,
    pub(crate) limit: u64,
    /// All packets that were sent and that came; how many must have come after a Ring.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) rung: u64,
    /// Packets that the provider has not taken yet.
    pub(crate) sending: usize,
    /// Packets to be sent without bytes of the lane.
    pub(crate) owed: Vec<PacketKind>,
    pub(crate) proved: bool,
    /// The neighbour dozes; we do, and have said so.
    pub(crate) asleep: bool,
    pub(crate) dozing: bool,
    pub(crate) wants_to_write: bool,
    /// The number of the packet that ends their bytes; our bytes and the connection have ended.
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

    /// Whether the next bytes, or their end, are there.
    pub(crate) fn is_readable(&self) -> bool {
        matches!(self.inbox.front(), Some(Some(_))) || self.end == Some(self.read)
    }

    pub(crate) fn front(&mut self) -> Option<&mut Parcel> {
        self.inbox.front_mut().and_then(Option::as_mut)
    }

    /// Takes a packet in; false where it is one that may not come.
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

    /// Says something on the connection; false where that fails, which shows by its end.
    pub(crate) fn say(&self, frame: impl Into<Frame>) -> bool {
        let Some(bell) = &self.bell else { return false };
        let mut bytes = Vec::new();
        frame.into().encode(&mut bytes);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(bell.as_fd(), &bytes, flags).is_ok_and(|sent| sent == bytes.len())
    }

    /// Takes what was said; an error where nothing can come any more.
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
