//! The proofs in Hello and Welcome (`admission.rs`), as the lanes of an engine use them.

use std::net::{IpAddr, SocketAddr};

use isthmus_seal::Secret;
use isthmus_wire::frame::{self, Frame, MAGIC, RefuseReason};
use isthmus_wire::{Address, Key, Versions};

use super::lanes::PeerFault;
use super::{Engine, LaneId, Refusal};
use crate::PeerId;
use crate::admission::{Call, Heard, Identity};

/// What a lane keeps until both ends have greeted.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// What follows the frame that greets.
    pub(crate) proof: Vec<u8>,
    /// To check the answer by, of a lane that we dial.
    call: Option<Call>,
    /// What follows is sealed with keys that come from this.
    pub(crate) secret: Option<Secret>,
}

/// Hello as its proof vouches for it: routers count themselves in it.
fn vouched(hello: &frame::Hello) -> [u8; frame::Hello::LEN] {
    frame::Hello { hops: 0, ..*hello }.to_bytes()
}

impl Engine {
    /// Whether peers have to prove that they know this endpoint's whole address.
    pub(super) fn is_closed(&self) -> bool {
        self.identity.is_some()
    }

    /// Why this endpoint may not talk to an address, if it may not.
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

    /// The Hello for a lane to `target`, with its proof.
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
            let secret = seals.then(|| identity.draw());
            let (call, proof) = identity.call(&target.key, &vouched(&hello), number, secret.as_ref());
            Box::new(Greeting { proof, call: Some(call), secret })
        });
        let record = &mut self.lanes[lane.0 as usize];
        record.greeting = greeting;
        record.control.push_back(hello.into());
    }

    /// Whom a Hello proves to come from, where peers have to prove it.
    pub(super) fn check_hello(
        &mut self,
        hello: &frame::Hello,
        proof: &[u8],
    ) -> Result<Option<Heard>, PeerFault> {
        let Some(identity) = &mut self.identity else { return Ok(None) };
        let heard = identity.hear(&vouched(hello), proof);
        heard.map(Some).ok_or(PeerFault::Unproved(
            "it does not know this endpoint's address, or an address was altered on its way",
        ))
    }

    /// Whom a Hello comes from: where that was proved, with the key. A Hello that came before is a fault.
    pub(super) fn enter_caller(
        &mut self,
        source: Address,
        heard: Option<&Heard>,
    ) -> Result<PeerId, PeerFault> {
        let key = heard.map_or(Key::NONE, |heard| heard.key);
        let peer = self.enter_peer(Address { key, ..source });
        let peer = self.resolve(peer);
        match heard {
            Some(heard) if !self.connection(peer).hellos.is_new(heard.number) => {
                Err(PeerFault::Unproved("its Hello is one that came before"))
            }
            _ => Ok(peer),
        }
    }

    /// Answers a Hello, in the newest version that both ends speak.
    pub(super) fn welcome(&mut self, lane: LaneId, credit: u64, version: u16, heard: Option<Heard>) {
        let payload = heard.as_ref().map_or(0, |_| Heard::proof_len(frame::Welcome::LEN) as u32);
        let source = self.config.address;
        let welcome = frame::Welcome { magic: MAGIC, version, source, credit, payload };
        let record = &mut self.lanes[lane.0 as usize];
        record.greeting = heard.map(|heard| {
            let secret = heard.lane;
            Box::new(Greeting { proof: heard.answer(&welcome.to_bytes()), call: None, secret })
        });
        record.control.push_back(welcome.into());
    }

    /// What this lane carries behind the greetings is to be sealed: said before [`Engine::lane_connected`]. True where it
    /// will be, which takes an endpoint that is closed.
    pub fn lane_seals(&mut self, lane: LaneId) -> bool {
        let closed = self.is_closed();
        self.lanes.get_mut(lane.0 as usize).is_some_and(|record| {
            record.seals = closed;
            closed
        })
    }

    /// The host that a lane has come in from, where that is seen: said before its Hello.
    pub fn lane_is_from(&mut self, lane: LaneId, host: IpAddr) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.from = Some(host.to_canonical());
        }
    }

    /// A caller of whom nobody has heard before: who says to listen on another host than the one that he calls from is
    /// looked for on that one, until the program names him. So nobody has this endpoint connect to a third.
    pub(super) fn note_guest(&mut self, peer: PeerId, from: Option<IpAddr>) {
        let known = &mut self.peers[peer.0 as usize];
        let at = known.address.locator;
        if let Some(host) = from.filter(|host| *host != at.ip().to_canonical()) {
            known.guest = true;
            known.answers_at = Some(Box::new(SocketAddr::new(host, at.port())));
        }
    }

    /// Nobody but the two ends can read or alter what this lane carries.
    pub fn lane_is_private(&mut self, lane: LaneId) {
        if let Some(record) = self.lanes.get_mut(lane.0 as usize) {
            record.private = true;
        }
    }

    /// Whether a lane that is dialled leaves the subnet.
    pub fn lane_leaves(&self, lane: LaneId) -> bool {
        let Some(record) = self.lanes.get(lane.0 as usize) else { return false };
        let peer = record.peer.map(|peer| &self.peers[peer.0 as usize].address);
        record.router.is_some() || peer.is_some_and(|address| self.is_routed(address))
    }

    /// The secret from which the keys come of what follows the Hello that this lane has brought, where that is sealed.
    pub fn lane_secret(&self, lane: LaneId) -> Option<Secret> {
        self.lanes.get(lane.0 as usize)?.greeting.as_ref()?.secret
    }

    /// Whether a Welcome comes from whom we have called.
    pub(super) fn check_welcome(
        &mut self,
        lane: LaneId,
        welcome: &frame::Welcome,
        proof: &[u8],
    ) -> Result<(), PeerFault> {
        let greeting = self.lanes[lane.0 as usize].greeting.take();
        let Some(mut call) = greeting.and_then(|greeting| greeting.call) else { return Ok(()) };
        if call.is_answered_by(&welcome.to_bytes(), proof) {
            Ok(())
        } else {
            Err(PeerFault::Unproved("who answers has not the key of whom we have called"))
        }
    }

    /// A lane began with a Hello of a version that is older than any that we speak: says so.
    pub fn refuse_version(&mut self, lane: LaneId) {
        if self.lanes.contains(lane.0 as usize) {
            self.refuse(lane, RefuseReason::Version);
        }
    }
}

/// What is to be said of a frame that greets: its proof, and the secret with which all behind that is sealed.
pub(super) fn greeting_of<'a>(frame: &Frame, greeting: Option<&'a Greeting>) -> Option<&'a Greeting> {
    greeting.filter(|_| matches!(frame, Frame::Hello(_) | Frame::Welcome(_)))
}
