//! The beginning and end of connections.

use isthmus_proto::{Micros, OpError, PeerId};
use isthmus_wire::conversation::{CONVERSATION_VERSION, ConnectionId, End, Letter, Objection, PAYLOAD_MAX};

use super::link::{Asking, ConnectionRecord, State};
use super::{Half, News, Post, Talk, Timer};
use crate::ports::port_of;
use crate::{Error, Failure, Level};

/// The parameters of a request for a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) peer: PeerId,
    pub(crate) level: Level,
    /// Longest wait for the peer's answer; `None`: as long as it lives. Microseconds.
    pub(crate) timeout_us: Option<Micros>,
    pub(crate) host: Host,
    /// Other routes to the same peer, the best one first. Each is tried when those before it have failed or take long.
    pub(crate) others: Vec<Other>,
}

/// Time for which a request may be under way before the next route is tried as well. Microseconds. Otherwise we would
/// wait much longer for a router that is down.
const WAY_US: Micros = 3_000_000;

/// Another route to a peer, and what differs on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other {
    pub(crate) peer: PeerId,
    pub(crate) udp_port: u16,
    pub(crate) packet_max: u32,
}

/// This end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    /// The program's word for the connection.
    pub(crate) context: u64,
    /// The token that the peer must show; hard to guess.
    pub(crate) token: u64,
    /// UDP port at which this end takes datagrams; 0: none.
    pub(crate) udp_port: u16,
    /// Longest message that goes as a datagram to this peer; 0: none does. Bytes.
    pub(crate) packet_max: u32,
    pub(crate) send_timeout_us: Micros,
    pub(crate) keepalive_us: Micros,
}

impl Talk {
    /// Asks a peer for a connection. [`News::Connected`] reports the answer.
    pub(crate) fn connect(
        &mut self,
        now: Micros,
        caller: &Caller,
        payload: &[u8],
    ) -> Result<ConnectionId, Error> {
        check_payload(payload)?;
        let id = self.enter_link(now, caller, State::Connecting, End::default())?;
        if let Some(link) = self.links.get_mut(id)
            && !caller.others.is_empty()
        {
            let others = caller.others.iter().rev().copied().collect();
            let until = caller.timeout_us.map(|timeout_us| now.saturating_add(timeout_us));
            let payload = payload.to_vec();
            link.asking = Some(Box::new(Asking { others, payload, until, arrived: false }));
        }
        self.ask(id, caller.host.udp_port, payload);
        if let Some(timeout_us) = caller.timeout_us {
            self.set_link_timer(id, now.saturating_add(timeout_us));
        }
        self.watch_way(now, id);
        Ok(id)
    }

    /// Sets the timer for the next route, if there is one, or for the program's time-out.
    fn watch_way(&mut self, now: Micros, id: ConnectionId) {
        let Some(asking) = self.links.get(id).and_then(|link| link.asking.as_ref()) else { return };
        let next = (!asking.arrived && !asking.others.is_empty()).then(|| now.saturating_add(WAY_US));
        match (next, asking.until) {
            (None, None) => self.clear_link_timer(id),
            (Some(at), None) | (None, Some(at)) => self.set_link_timer(id, at),
            (Some(next), Some(until)) => self.set_link_timer(id, next.min(until)),
        }
    }

    /// Tries the next route, or ends the request, after the timer of [`Talk::watch_way`] has expired.
    pub(super) fn hurry(&mut self, now: Micros, id: ConnectionId) {
        let asking = self.links.get(id).and_then(|link| link.asking.as_ref());
        let patient = asking.is_some_and(|asking| asking.until.is_none_or(|until| now < until));
        if !patient {
            return self.fail_connect(id, Failure::TimedOut, Vec::new());
        }
        // The earlier request may still arrive; the first answer counts.
        self.ask_next_route(id);
        self.watch_way(now, id);
    }

    /// Sends the request for a connection.
    fn ask(&mut self, id: ConnectionId, udp_port: u16, payload: &[u8]) {
        let Some(link) = self.links.get(id) else { return };
        let (peer, token, level) = (link.peer, link.token, link.level as u8);
        let from = self.own_end(id, token, udp_port);
        let letter =
            Letter::Connect { version: CONVERSATION_VERSION, level, from, payload: payload.to_vec() };
        self.write_letter(id, peer, &letter, true);
    }

    /// Asks by the next route, since the present one has failed. False if there is none.
    fn ask_next_route(&mut self, id: ConnectionId) -> bool {
        let Some(link) = self.links.get_mut(id).filter(|link| link.state == State::Connecting) else {
            return false;
        };
        let Some(asking) = &mut link.asking else { return false };
        let Some(other) = asking.others.pop() else { return false };
        let payload = asking.payload.clone();
        asking.arrived = false;
        (link.peer, link.packet_max) = (other.peer, other.packet_max);
        self.ask(id, other.udp_port, &payload);
        true
    }

    fn enter_link(
        &mut self,
        now: Micros,
        caller: &Caller,
        state: State,
        remote: End,
    ) -> Result<ConnectionId, Error> {
        let make = |id| ConnectionRecord {
            id,
            peer: caller.peer,
            level: caller.level,
            state,
            packet_max: caller.host.packet_max,
            clear: false,
            context: caller.host.context,
            token: caller.host.token,
            remote,
            sent: 0,
            next_place: 0,
            received: 0,
            expected: 0,
            outstanding: 0,
            followers: 0,
            escorted: 0,
            held: 0,
            asking: None,
            busy: None,
            send_timeout_us: caller.host.send_timeout_us,
            keepalive_us: caller.host.keepalive_us,
            heard_at: now,
            pinging: false,
            timer_at: 0,
        };
        self.links.insert(make).ok_or(Error::Full(ConnectionId::LIMIT))
    }

    /// The description of our end for the peer.
    fn own_end(&self, id: ConnectionId, token: u64, udp_port: u16) -> End {
        End { id, token, udp_port, message_max: self.limits.message_max }
    }

    /// Accepts a request. [`News::Accepted`] follows when the peer knows it.
    pub(crate) fn accept(&mut self, now: Micros, id: ConnectionId, host: &Host) -> Result<(), Error> {
        let from = self.own_end(id, host.token, host.udp_port);
        let link = self.requested(id)?;
        link.state = State::Accepting;
        link.context = host.context;
        link.token = host.token;
        link.packet_max = host.packet_max;
        link.heard_at = now;
        link.send_timeout_us = host.send_timeout_us;
        link.keepalive_us = host.keepalive_us;
        let (peer, remote) = (link.peer, link.remote);
        self.requests -= 1;
        self.write_letter(id, peer, &Letter::Accept { to: remote.id, token: remote.token, from }, true);
        Ok(())
    }

    /// Rejects a request.
    pub(crate) fn reject(&mut self, id: ConnectionId, reason: u32, payload: &[u8]) -> Result<(), Error> {
        check_payload(payload)?;
        let link = self.requested(id)?;
        let (peer, remote) = (link.peer, link.remote);
        self.forget(id);
        self.object(peer, remote, Objection::Program, reason, payload);
        Ok(())
    }

    fn requested(&mut self, id: ConnectionId) -> Result<&mut ConnectionRecord, Error> {
        let link = self.links.named(id).map_err(|_| Error::Stale("request"))?;
        if link.state != State::Requested {
            return Err(Error::Stale("request"));
        }
        Ok(link)
    }

    fn object(&mut self, peer: PeerId, to: End, objection: Objection, reason: u32, payload: &[u8]) {
        let letter =
            Letter::Reject { to: to.id, token: to.token, objection, reason, payload: payload.to_vec() };
        self.write_letter(ConnectionId::default(), peer, &letter, false);
    }

    /// Ends a connection. The program's handle is invalid from now on. What was sent before is still delivered, and its
    /// ends are reported.
    pub(crate) fn disconnect(&mut self, id: ConnectionId) -> Result<(), Error> {
        let link = self.links.named(id)?;
        if link.state == State::Requested {
            return self.reject(id, 0, &[]);
        }
        let tell = matches!(link.state, State::Open | State::Accepting | State::Ending(_));
        link.state = State::Leaving;
        self.drop_held(id);
        if tell && self.links.get(id).is_some_and(|link| link.followers == 0) {
            self.say_disconnect(id);
        }
        self.leave(id);
        Ok(())
    }

    /// Tells the peer that we disconnect, and how many messages we sent.
    pub(super) fn say_disconnect(&mut self, id: ConnectionId) {
        let Some(link) = self.links.get(id) else { return };
        let (peer, to, sent) = (link.peer, link.remote.id, link.sent);
        self.write_letter(id, peer, &Letter::Disconnect { to, sent }, false);
    }

    /// Forgets a connection that the program has left, once its operations are complete.
    pub(super) fn leave(&mut self, id: ConnectionId) {
        if self.links.get(id).is_some_and(|link| link.state == State::Leaving && link.outstanding == 0) {
            self.forget(id);
        }
    }

    /// A letter came.
    pub(crate) fn on_letter(&mut self, now: Micros, peer: PeerId, bytes: &[u8]) {
        // A letter that cannot be decoded says nothing about any connection.
        let Some(letter) = Letter::decode(bytes) else { return };
        match letter {
            Letter::Connect { version, level, from, payload } => {
                self.on_connect(now, peer, version, level, from, payload);
            }
            Letter::Accept { to, token, from } => self.on_accept(now, peer, to, token, from),
            Letter::Reject { to, token, objection, reason, payload } => {
                let failure = match objection {
                    Objection::Program => Failure::Rejected(reason),
                    Objection::Version => Failure::Version,
                    Objection::Busy => Failure::Busy,
                };
                if self.links.get(to).is_some_and(|link| link.token == token) {
                    self.fail_connect(to, failure, payload);
                }
            }
            Letter::Disconnect { to, sent } => self.on_disconnect(now, peer, to, sent),
            Letter::Void { ticket, .. } => self.on_void(peer, ticket),
        }
    }

    fn on_connect(&mut self, now: Micros, peer: PeerId, version: u8, level: u8, from: End, payload: Vec<u8>) {
        let level = match Level::from_code(level) {
            Some(level) if version == CONVERSATION_VERSION => level,
            _ => return self.object(peer, from, Objection::Version, 0, &[]),
        };
        if self.requests >= self.limits.requests {
            return self.object(peer, from, Objection::Busy, 0, &[]);
        }
        let host = Host::default();
        let caller = Caller { peer, level, timeout_us: None, host, others: Vec::new() };
        let Ok(link) = self.enter_link(now, &caller, State::Requested, from) else {
            return self.object(peer, from, Objection::Busy, 0, &[]);
        };
        self.requests += 1;
        self.news.push_back(News::Requested { link, level, payload });
    }

    fn on_accept(&mut self, now: Micros, peer: PeerId, to: ConnectionId, token: u64, from: End) {
        let found = self.links.get_mut(to).filter(|link| link.token == token);
        let Some(link) = found.filter(|link| link.state == State::Connecting) else {
            // We gave up meanwhile.
            let letter = Letter::Disconnect { to: from.id, sent: 0 };
            return self.write_letter(ConnectionId::default(), peer, &letter, false);
        };
        // The dialled address may have been a wildcard, or this is the answer to an earlier attempt by another route.
        if port_of(link.peer) != port_of(peer) {
            link.packet_max = 0;
        }
        link.clear = false;
        link.peer = peer;
        link.asking = None;
        link.state = State::Open;
        link.remote = from;
        let context = link.context;
        self.clear_link_timer(to);
        self.on_heard(now, to);
        self.watch(to);
        self.news.push_back(News::Connected { link: to, context, end: Ok(()), payload: Vec::new() });
    }

    pub(super) fn fail_connect(&mut self, id: ConnectionId, failure: Failure, payload: Vec<u8>) {
        let Some(link) = self.links.get(id).filter(|link| link.state == State::Connecting) else { return };
        let context = link.context;
        self.forget(id);
        self.news.push_back(News::Connected { link: id, context, end: Err(failure), payload });
    }

    /// The peer knows that we accepted.
    pub(super) fn settle(&mut self, id: ConnectionId) {
        let Some(link) = self.links.get_mut(id).filter(|link| link.state == State::Accepting) else { return };
        link.state = State::Open;
        let context = link.context;
        self.watch(id);
        self.news.push_back(News::Accepted { link: id, context, end: Ok(()) });
    }

    fn fail_accept(&mut self, id: ConnectionId, failure: Failure) {
        let Some(link) = self.links.get(id).filter(|link| link.state == State::Accepting) else { return };
        let context = link.context;
        self.forget(id);
        self.news.push_back(News::Accepted { link: id, context, end: Err(failure) });
    }

    /// A letter on which a connection depends has reached the peer, or never will.
    pub(super) fn on_letter_end(
        &mut self,
        now: Micros,
        id: ConnectionId,
        peer: PeerId,
        end: Result<(), Failure>,
    ) {
        if self.links.get(id).is_none_or(|link| link.peer != peer) {
            return; // It belongs to a route that was given up.
        }
        match end {
            Ok(()) => {
                self.on_heard(now, id);
                self.settle(id);
                if let Some(asking) = self.links.get_mut(id).and_then(|link| link.asking.as_mut()) {
                    asking.arrived = true;
                    self.watch_way(now, id);
                }
            }
            Err(failure) => {
                if !self.ask_next_route(id) {
                    self.fail_connect(id, failure.clone(), Vec::new());
                }
                self.fail_accept(id, failure);
            }
        }
    }

    fn on_disconnect(&mut self, now: Micros, peer: PeerId, to: ConnectionId, sent: u64) {
        if self.links.get(to).is_none_or(|link| link.peer != peer) {
            return;
        }
        self.settle(to);
        self.on_heard(now, to);
        if let Some(link) = self.links.get_mut(to).filter(|link| link.state == State::Open) {
            link.state = State::Ending(sent);
            self.end_when_all_came(to);
        }
    }

    /// Ends the connection once everything that the peer sent is here.
    pub(super) fn end_when_all_came(&mut self, id: ConnectionId) {
        if self
            .links
            .get(id)
            .is_some_and(|link| matches!(link.state, State::Ending(total) if link.received >= total))
        {
            self.end(id, Failure::Disconnected);
        }
    }

    /// A peer is gone for good.
    pub(crate) fn on_lost(&mut self, peer: PeerId, error: &OpError) {
        let failure = Failure::from(error);
        for id in self.links.of_peer(peer) {
            if self.ask_next_route(id) {
                continue;
            }
            self.fail_connect(id, failure.clone(), Vec::new());
            self.fail_accept(id, failure.clone());
            if self.links.get(id).is_some_and(|link| link.state == State::Requested) {
                self.forget(id); // The program learns it when it accepts.
            }
            self.end(id, failure.clone());
        }
        let Self { posts, held, links, .. } = self;
        self.halves.retain(|(of, _), half| {
            if *of == peer
                && let Half::Message(id, parcel) = half
            {
                posts.push_back(Post::Drop(*parcel));
                *held -= 1;
                if let Some(link) = links.get_mut(*id) {
                    link.held -= 1;
                }
            }
            *of != peer
        });
    }

    pub(super) fn clear_link_timer(&mut self, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(id) {
            let at = std::mem::take(&mut link.timer_at);
            self.timers.remove(&(at, Timer::Link(id)));
        }
    }

    pub(super) fn set_link_timer(&mut self, id: ConnectionId, at: Micros) {
        self.clear_link_timer(id);
        if let Some(link) = self.links.get_mut(id) {
            link.timer_at = at;
            self.timers.insert((at, Timer::Link(id)));
        }
    }
}

fn check_payload(payload: &[u8]) -> Result<(), Error> {
    if payload.len() > PAYLOAD_MAX {
        return Err(Error::TooLong {
            len: payload.len() as u64,
            most: PAYLOAD_MAX as u64,
            remedy: "send the rest once the connection is established",
        });
    }
    Ok(())
}
