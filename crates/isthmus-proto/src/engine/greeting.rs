//! Greetings: Hello and Welcome begin a lane, with the proofs of `admission.rs`.

use std::net::{IpAddr, SocketAddr};

use isthmus_seal::Secret;
use isthmus_wire::frame::{self, Frame, MAGIC, RefuseReason};
use isthmus_wire::{Address, Key, Versions};

use super::lanes::PeerFault;
use super::{Engine, LaneId, Refusal};
use crate::PeerId;
use crate::admission::{Identity, PendingHello, ProvenHello};

/// The handshake of a lane, kept until both ends have greeted.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// The proof, which follows Hello or Welcome as its payload.
    pub(crate) proof: Vec<u8>,
    /// If we dial the lane: checks the answer.
    call: Option<PendingHello>,
    /// If the lane is sealed: the secret from which its keys come.
    pub(crate) secret: Option<Secret>,
}

/// The bytes of a Hello that its proof covers. The count of routers is 0 there, since each router changes it.
fn vouched(hello: &frame::Hello) -> [u8; frame::Hello::LEN] {
    frame::Hello { hops: 0, ..*hello }.to_bytes()
}

impl Engine {
    /// Whether peers have to prove that they know this endpoint's whole address.
    pub(super) fn is_closed(&self) -> bool {
        self.identity.is_some()
    }

    /// Why this endpoint may not talk to an address: `None` if it may.
    pub(super) fn unknown_key(&self, address: &Address) -> Option<Refusal> {
        let text = match (self.is_closed(), address.key.is_none() || address.is_wildcard()) {
            _ if self.names_self(address) || *address == self.config.address => return None,
            (true, false) | (false, true) => return None,
            (true, true) => format!(
                "{address} says where an endpoint is and not its key, and this endpoint talks only to those whose whole \
                 address it knows; give it the whole address (fi_getname), or set admission to open at both ends \
                 (FI_ISTHMUS_ADMISSION=open)"
            ),
            (false, false) => format!(
                "the endpoint at {address} admits only those who prove who they are, and this one proves nothing since \
                 its admission is open; set admission to the same at both ends (FI_ISTHMUS_ADMISSION)"
            ),
        };
        Some(Refusal::Unreachable(text))
    }

    /// Queues the Hello for a lane to `target`, with its proof.
    pub(super) fn greet(&mut self, peer: PeerId, lane: LaneId, target: Address, credit: u64) {
        let source = self.config.address;
        let Versions { oldest, newest } = self.config.versions;
        let number = self.connection(peer).hellos.next();
        let seals = self.lanes[lane.0 as usize].seals;
        let proof = self.identity.as_mut().filter(|_| !target.key.is_none());
        let payload = proof.as_ref().map_or(0, |_| Identity::proof_len(seals) as u32);
        let hello =
            frame::Hello { magic: MAGIC, version: newest, source, target, credit, hops: 0, oldest, payload };
        let greeting = proof.map(|identity| {
            let secret = seals.then(|| identity.draw_lane_secret());
            let (call, proof) = identity.begin_hello(&target.key, &vouched(&hello), number, secret.as_ref());
            Box::new(Greeting { proof, call: Some(call), secret })
        });
        let record = &mut self.lanes[lane.0 as usize];
        record.greeting = greeting;
        record.control.push_back(hello.into());
    }

    /// Checks the proof of a Hello; `None` if this endpoint asks for none.
    pub(super) fn check_hello(
        &mut self,
        hello: &frame::Hello,
        proof: &[u8],
    ) -> Result<Option<ProvenHello>, PeerFault> {
        let Some(identity) = &mut self.identity else { return Ok(None) };
        let heard = identity.check_hello_proof(&vouched(hello), proof);
        heard.map(Some).ok_or(PeerFault::Unproved(
            "it does not know this endpoint's address, or an address was altered on its way",
        ))
    }

    /// The peer that a Hello comes from, with its key if that was proved. A Hello whose number came before is a fault.
    pub(super) fn enter_caller(
        &mut self,
        source: Address,
        heard: Option<&ProvenHello>,
    ) -> Result<PeerId, PeerFault> {
        let key = heard.map_or(Key::NONE, |heard| heard.key);
        let peer = self.enter_peer(Address { key, ..source });
        let peer = self.resolve(peer);
        match heard {
            // `on_hello` refuses it.
            _ if self.peers[peer.0 as usize].departed => Ok(peer),
            Some(heard) if !self.connection(peer).hellos.take(heard.number) => {
                Err(PeerFault::Unproved("its Hello is one that came before"))
            }
            _ => Ok(peer),
        }
    }

    /// Answers a Hello, in the newest version that both ends speak.
    pub(super) fn welcome(&mut self, lane: LaneId, credit: u64, version: u16, heard: Option<ProvenHello>) {
        let payload = heard.as_ref().map_or(0, |_| ProvenHello::proof_len(frame::Welcome::LEN) as u32);
        let source = self.config.address;
        let welcome = frame::Welcome { magic: MAGIC, version, source, credit, payload };
        let record = &mut self.lanes[lane.0 as usize];
        record.greeting = heard.map(|heard| {
            let secret = heard.lane;
            Box::new(Greeting { proof: heard.answer(&welcome.to_bytes()), call: None, secret })
        });
        record.control.push_back(welcome.into());
    }

    /// Asks to seal what this lane carries behind its greetings. Call it before [`Engine::lane_connected`]. True if it
    /// will be sealed, which takes a closed endpoint ([`Config::closed`](super::Config::closed)).
    pub fn seal_lane(&mut self, lane: LaneId) -> bool {
        let closed = self.is_closed();
        self.lanes.get_mut(lane.0 as usize).is_some_and(|record| {
            record.seals = closed;
            closed
        })
    }

    /// Tells the host that an incoming lane came from. Call it before its Hello.
    pub fn set_lane_origin(&mut self, lane: LaneId, host: IpAddr) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.from = Some(host.to_canonical());
        }
    }

    /// Notes the host that a new caller calls from, if it claims to listen on another one. Until the program names the
    /// peer, the engine dials the former. So no caller can make this endpoint connect to a third host. A caller through
    /// a router is dialled through routers, which find it by the address that it claims.
    pub(super) fn note_origin(&mut self, peer: PeerId, from: Option<IpAddr>, routed: bool) {
        let known = &mut self.peers[peer.0 as usize];
        let at = known.address.locator;
        let Some(host) = from.filter(|host| *host != at.ip().to_canonical()) else { return };
        if routed {
            known.router_host = Some(Box::new(host));
        } else {
            known.guest = true;
            known.answers_at = Some(Box::new(SocketAddr::new(host, at.port())));
        }
    }

    /// Tells that nobody but the two ends can read or alter what this lane carries.
    pub fn set_lane_private(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.private = true;
        }
    }

    /// Whether a dialled lane leaves the subnet.
    pub fn lane_leaves_subnet(&self, lane: LaneId) -> bool {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return false };
        let peer = record.peer.map(|peer| &self.peers[peer.0 as usize].address);
        record.router.is_some() || peer.is_some_and(|address| self.is_routed(address))
    }

    /// The secret from which the keys of an incoming lane come; `None` if it is not sealed.
    pub fn lane_secret(&self, lane: LaneId) -> Option<Secret> {
        self.lanes.get(lane.0 as usize)?.greeting.as_ref()?.secret
    }

    /// Checks that a Welcome comes from the endpoint that we called.
    pub(super) fn check_welcome(
        &mut self,
        lane: LaneId,
        welcome: &frame::Welcome,
        proof: &[u8],
    ) -> Result<(), PeerFault> {
        let greeting = self.lanes[lane.0 as usize].greeting.take();
        let Some(mut call) = greeting.and_then(|greeting| greeting.call) else { return Ok(()) };
        if call.check_answer(&welcome.to_bytes(), proof) {
            Ok(())
        } else {
            Err(PeerFault::Unproved("who answers has not the key of whom we have called"))
        }
    }

    /// Refuses a lane whose Hello is of an older version than we can read.
    pub fn refuse_version(&mut self, lane: LaneId) {
        if self.lanes.contains(lane.0 as usize) {
            self.refuse(lane, RefuseReason::Version);
        }
    }
}

/// The handshake that belongs to this frame, if the frame is a Hello or Welcome.
pub(super) fn greeting_of<'a>(frame: &Frame, greeting: Option<&'a Greeting>) -> Option<&'a Greeting> {
    greeting.filter(|_| matches!(frame, Frame::Hello(_) | Frame::Welcome(_)))
}
