//! The lanes of one process over one fabric: their packets, credit, and bells.
//!
//! All lanes share one endpoint and its posted buffers. Each lane brings a fixed number of
//! them along, and its neighbour may have no more packets under way than that (`limit`), so
//! that no lane takes another's. What came waits in its buffer until the lane reads it.
//!
//! Who is about to sleep says Doze on the lane's connection, with the number of packets that
//! came. The neighbour answers Ring when it has sent more, at once or with its next packet.
//! Whoever was rung for packets that are still on their way looks after them often.

mod data;
mod turn;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use isthmus_wire::frame::{Packet, PacketKind};
use slab::Slab;

use crate::FabricError;
use crate::net::{BufferId, Done, Net, Posted};
use crate::pipe::{CREDITS, Pipe};

/// Longest packet. Bytes.
pub(crate) const PACKET_MAX: usize = 64 << 10;
/// Most payload of a packet. Bytes.
const PAYLOAD_MAX: usize = PACKET_MAX - Packet::LEN;
/// Receive buffers per lane beyond those, for packets that do not count: a probe or its
/// answer, and limits, which are told again only after half the credits were used.
const SPARE: usize = 4;
const RECEIVES: usize = CREDITS as usize + SPARE;
/// Packets of one lane that the provider has not taken yet.
const SENDS: usize = 16;
/// Most lanes of a fabric, whatever its provider has room for.
const LANES_MAX: usize = 256;
/// Shortest pause between looks after what is under way.
const PAUSE: Duration = Duration::from_micros(50);

/// A lane that something has become of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// What the lane was named by [`Hub::set_key`].
    pub key: u64,
    /// It can be read, or has ended.
    pub readable: bool,
    /// It can be written to after it could not.
    pub writable: bool,
}

/// What reading or writing came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piped {
    /// So many bytes; of reading, 0 is the end.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// The lane is broken.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    net: Net,
    provider: String,
    pipes: Slab<Pipe>,
    /// Addresses by name, and the lanes that use them.
    addresses: HashMap<Vec<u8>, (u64, usize)>,
    /// Receive buffers: those posted, and those that are not.
    posted: usize,
    spare: Vec<BufferId>,
    /// Send buffers: those that are free, and how many there are; whose the others are.
    free: Vec<BufferId>,
    sends: usize,
    senders: HashMap<BufferId, u64>,
    done: Vec<(BufferId, Done)>,
    scratch: Vec<u8>,
    /// Lanes of which something waits to be read, to which something is owed, and that want to
    /// write.
    readers: Vec<usize>,
    todo: Vec<usize>,
    writers: Vec<usize>,
    /// News of lanes outside of a turn.
    late: Vec<News>,
    pause: Duration,
    /// Why no lane can use it any more.
    broken: Option<String>,
}

impl Hub {
    /// Opens an endpoint of `provider`, at the address `node` where that means something to it.
    ///
    /// # Errors
    /// [`FabricError`], whose text says what to do.
    pub(crate) fn open(provider: &str, node: IpAddr) -> Result<Self, FabricError> {
        let net = Net::open(provider, node)?;
        Ok(Self {
            provider: net.provider(),
            net,
            pipes: Slab::new(),
            addresses: HashMap::new(),
            posted: 0,
            spare: Vec::new(),
            free: Vec::new(),
            sends: 0,
            senders: HashMap::new(),
            done: Vec::new(),
            scratch: Vec::with_capacity(PACKET_MAX),
            readers: Vec::new(),
            todo: Vec::new(),
            writers: Vec::new(),
            late: Vec::new(),
            pause: PAUSE,
            broken: None,
        })
    }

    /// The provider's full name, such as "tcp;ofi_rxm".
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// Why it failed as a whole, if it did: lanes that it carried are broken, and there are no
    /// new ones.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The name of the endpoint.
    pub(crate) fn name(&self) -> &[u8] {
        self.net.name()
    }

    /// Lanes that there are.
    pub(crate) fn lanes(&self) -> usize {
        self.pipes.len()
    }

    fn lanes_max(&self) -> usize {
        LANES_MAX.min(self.net.receives_max() / RECEIVES)
    }

    /// A new lane, and what the neighbour is to name it by.
    ///
    /// # Errors
    /// [`FabricError::Full`], or that the provider takes no buffers.
    pub(crate) fn add(&mut self) -> Result<u64, FabricError> {
        if self.broken.is_some() || self.pipes.len() >= self.lanes_max() {
            return Err(FabricError::Full);
        }
        let random = getrandom::u32().map_err(|_| FabricError::Full)?;
        let entry = self.pipes.vacant_entry();
        let token = u64::from(random) << 32 | entry.key() as u64;
        entry.insert(Pipe::new(token));
        match self.stock() {
            Ok(()) => Ok(token),
            Err(error) => {
                self.remove(token);
                Err(error)
            }
        }
    }

    /// Posts as many receive buffers as the lanes need.
    fn stock(&mut self) -> Result<(), FabricError> {
        while self.posted < self.pipes.len() * RECEIVES {
            let id = match self.spare.pop() {
                Some(id) => id,
                None => self.net.add_buffer(PACKET_MAX, false)?,
            };
            match self.net.receive(id) {
                Posted::Yes => self.posted += 1,
                Posted::Again => {
                    self.spare.push(id);
                    return Err(FabricError::Full);
                }
                Posted::Failed(code) => {
                    self.spare.push(id);
                    let why = format!("error {code}");
                    return Err(FabricError::Call { what: "fi_recv", why });
                }
            }
        }
        Ok(())
    }

    /// Says whose endpoint a lane leads to.
    ///
    /// # Errors
    /// The provider does not take the name.
    pub(crate) fn connect(&mut self, token: u64, name: &[u8]) -> Result<(), FabricError> {
        let to = match self.addresses.get_mut(name) {
            Some((to, users)) => {
                *users += 1;
                *to
            }
            None => {
                let to = self.net.insert(name)?;
                self.addresses.insert(name.to_vec(), (to, 1));
                to
            }
        };
        if let Some(pipe) = self.pipe(token) {
            pipe.to = Some(to);
            pipe.name = name.to_vec();
        }
        Ok(())
    }

    /// Tries a lane to a neighbour that names it `theirs`: [`Hub::is_proved`] tells the outcome.
    pub(crate) fn probe(&mut self, token: u64, theirs: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.theirs = theirs;
            pipe.owed.push(PacketKind::Probe);
            self.todo.push(token as u32 as usize);
        }
    }

    /// Whether packets have crossed both ways.
    pub(crate) fn is_proved(&self, token: u64) -> bool {
        self.pipes.get(token as u32 as usize).is_some_and(|pipe| pipe.token == token && pipe.proved)
    }

    /// The number that news of this lane carry.
    pub(crate) fn set_key(&mut self, token: u64, key: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.key = key;
        }
    }

    /// From now on the lane's bytes go here; `connection` is what is left of the other way.
    pub(crate) fn begin(&mut self, token: u64, connection: OwnedFd) {
        if let Some(pipe) = self.pipe(token) {
            pipe.bell = Some(connection);
        }
    }

    /// Forgets a lane; what is still under way for it is dropped.
    pub(crate) fn remove(&mut self, token: u64) {
        let index = token as u32 as usize;
        if self.pipe(token).is_none() {
            return;
        }
        let pipe = self.pipes.remove(index);
        self.readers.retain(|other| *other != index);
        self.todo.retain(|other| *other != index);
        self.writers.retain(|other| *other != index);
        for parcel in pipe.inbox.into_iter().flatten() {
            self.give_back(parcel.buffer);
        }
        let last = self.addresses.get_mut(&pipe.name).is_some_and(|(_, users)| {
            *users -= 1;
            *users == 0
        });
        // While something is under way to it, the provider needs the address.
        if last
            && pipe.sending == 0
            && let Some((to, _)) = self.addresses.remove(&pipe.name)
        {
            self.net.remove(to);
        }
    }

    fn pipe(&mut self, token: u64) -> Option<&mut Pipe> {
        self.pipes.get_mut(token as u32 as usize).filter(|pipe| pipe.token == token)
    }
}
