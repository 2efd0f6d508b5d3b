//! The lanes of one process over one fabric: their packets, credit, and wake-ups.
//!
//! All lanes share one endpoint and its posted buffers. Each lane adds a fixed number of them,
//! and its neighbour may not have more packets under way (`limit`), so no lane takes another's
//! buffers. A received packet stays in its buffer until the lane reads it.
//!
//! A process that is about to sleep sends Doze on the lane's connection, with the number of
//! packets received. The neighbour answers Ring once it has sent more. A process that was rung
//! polls often until the announced packets arrive.

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

/// Longest packet, with its header. Bytes.
pub(crate) const PACKET_MAX: usize = 64 << 10;
/// Most payload of a packet. Bytes.
const PAYLOAD_MAX: usize = PACKET_MAX - Packet::LEN;
/// Extra receive buffers per lane for packets that need no credit: a probe or its answer, and
/// Limit, which is sent only when half the credits are used. Count.
const SPARE: usize = 4;
const RECEIVES: usize = CREDITS as usize + SPARE;
/// Most packets of a lane that the provider has not completed. Count.
const SENDS: usize = 16;
/// Most lanes of a fabric, even if its provider has room for more. Count.
const LANES_MAX: usize = 256;
/// Shortest pause between polls while packets are under way.
const PAUSE: Duration = Duration::from_micros(50);

/// A change of a lane's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The lane's number from `Hub::set_key`.
    pub key: u64,
    /// It can be read, or has ended.
    pub readable: bool,
    /// It can be written to again.
    pub writable: bool,
}

/// Result of a read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piped {
    /// Number of bytes. A read of 0 is the end.
    Bytes(usize),
    /// Nothing can be read or written now.
    Blocked,
    /// The lane is broken.
    Failed(String),
}

/// The hub of one provider.
#[derive(Debug)]
pub(crate) struct Hub {
    net: Net,
    provider: String,
    pipes: Slab<Pipe>,
    /// Addresses by endpoint name, each with the number of lanes that use it.
    addresses: HashMap<Vec<u8>, (u64, usize)>,
    /// Receive buffers: number posted, and those not posted.
    posted: usize,
    spare: Vec<BufferId>,
    /// Send buffers: free ones, their total number, and the lanes of those in use.
    free: Vec<BufferId>,
    sends: usize,
    senders: HashMap<BufferId, u64>,
    done: Vec<(BufferId, Done)>,
    scratch: Vec<u8>,
    /// Lanes with unread packets, lanes with control packets to send, and lanes that want to
    /// write.
    readers: Vec<usize>,
    todo: Vec<usize>,
    writers: Vec<usize>,
    /// News of lanes that arose outside [`Hub::poll`].
    late: Vec<News>,
    pause: Duration,
    /// Why the endpoint is unusable.
    broken: Option<String>,
}

impl Hub {
    /// Opens an endpoint of `provider`, at the address `node` if the provider uses addresses.
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

    /// Why the endpoint failed, if it did. Then all its lanes are broken, and it takes no new
    /// ones.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The endpoint's name.
    pub(crate) fn name(&self) -> &[u8] {
        self.net.name()
    }

    /// Number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.pipes.len()
    }

    fn lanes_max(&self) -> usize {
        LANES_MAX.min(self.net.receives_max() / RECEIVES)
    }

    /// Adds a lane. Returns the token by which the neighbour names it.
    ///
    /// # Errors
    /// [`FabricError::Full`], or the provider's error if it takes no buffers.
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

    /// Sets the neighbour's endpoint of a lane.
    ///
    /// # Errors
    /// If the provider does not accept the name.
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

    /// Tests a lane to a neighbour that calls it `theirs`. [`Hub::is_proved`] has the result.
    pub(crate) fn probe(&mut self, token: u64, theirs: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.theirs = theirs;
            pipe.owed.push(PacketKind::Probe);
            self.todo.push(token as u32 as usize);
        }
    }

    /// Whether packets have crossed in both directions.
    pub(crate) fn is_proved(&self, token: u64) -> bool {
        self.pipes.get(token as u32 as usize).is_some_and(|pipe| pipe.token == token && pipe.proved)
    }

    /// Sets the number that the lane's news carry.
    pub(crate) fn set_key(&mut self, token: u64, key: u64) {
        if let Some(pipe) = self.pipe(token) {
            pipe.key = key;
        }
    }

    /// From now on the lane's bytes go over the fabric. `connection` is its TCP connection.
    pub(crate) fn begin(&mut self, token: u64, connection: OwnedFd) {
        if let Some(pipe) = self.pipe(token) {
            pipe.bell = Some(connection);
        }
    }

    /// Removes a lane and drops its packets.
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
        // The provider needs the address while packets to it are under way.
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
