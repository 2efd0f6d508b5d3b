//! Incoming messages and datagrams.

use isthmus_proto::{Micros, PeerId};
use isthmus_wire::conversation::{ConnectionId, DatagramHeader, Subject, UNORDERED};

use super::link::{ConnectionRecord, State};
use super::{HALVES_MAX, HELD_MAX, Half, News, Parcel, Post, Talk};
use crate::Failure;

impl Talk {
    /// A message came through the engine. The shell passes letters to [`Talk::on_letter`] instead.
    pub(crate) fn on_message(
        &mut self,
        now: Micros,
        peer: PeerId,
        subject: Subject,
        data: u64,
        parcel: Parcel,
    ) {
        let (Subject::Message(id) | Subject::Datagram(id) | Subject::Remote(id)) = subject else {
            return self.posts.push_back(Post::Drop(parcel));
        };
        if !self.admit_message(now, peer, id) {
            self.posts.push_back(Post::Drop(parcel));
            if matches!(subject, Subject::Remote(_)) {
                self.pass_half(peer, data, Half::Dropped);
            }
            return;
        }
        match subject {
            Subject::Message(_)
                if data != UNORDERED && self.links.get(id).is_some_and(|link| link.level.is_ordered()) =>
            {
                self.in_order(id, data, parcel);
            }
            Subject::Remote(_) => self.on_remote_message(peer, id, data, parcel),
            Subject::Datagram(_) => self.deliver(id, parcel),
            _ => {
                self.count(id);
                self.deliver(id, parcel);
            }
        }
        self.end_when_all_came(id);
    }

    /// Settles a connection whose peer sends a message. Returns whether it takes messages of this peer.
    fn admit_message(&mut self, now: Micros, peer: PeerId, id: ConnectionId) -> bool {
        if self.links.get(id).is_none_or(|link| link.peer != peer) {
            return false;
        }
        // It sends, so it knows that we accepted.
        self.settle(id);
        self.on_heard(now, id);
        self.links.get(id).is_some_and(|link| matches!(link.state, State::Open | State::Ending(_)))
    }

    fn count(&mut self, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(id) {
            link.received += 1;
        }
    }

    fn deliver(&mut self, id: ConnectionId, parcel: Parcel) {
        let context = self.links.get(id).map_or(0, |link| link.context);
        self.news.push_back(News::Received { link: id, context, parcel });
    }

    /// RO: passes messages on in order, as their data may complete in any order.
    fn in_order(&mut self, id: ConnectionId, place: u64, parcel: Parcel) {
        let Some(link) = self.links.get_mut(id) else { return };
        if place != link.expected {
            // A position that was used before is a fault of the peer.
            let fault =
                place < link.expected || link.busy.as_ref().is_some_and(|b| b.early.contains_key(&place));
            match fault {
                true => self.posts.push_back(Post::Drop(parcel)),
                false => {
                    link.busy().early.insert(place, parcel);
                }
            }
            return;
        }
        let mut next = Some(parcel);
        while let Some(parcel) = next {
            self.count(id);
            self.deliver(id, parcel);
            let Some(link) = self.links.get_mut(id) else { return };
            link.expected += 1;
            let expected = link.expected;
            next = link.busy.as_mut().and_then(|busy| busy.early.remove(&expected));
            link.shrink();
        }
    }

    /// RO: connections that wait for a missing message, and its position. Only those of peers for which `idle` says
    /// that nothing is under way.
    pub(crate) fn gaps(&self, mut idle: impl FnMut(PeerId) -> bool) -> Vec<(ConnectionId, u64)> {
        let waits = |link: &&ConnectionRecord| link.busy.as_ref().is_some_and(|busy| !busy.early.is_empty());
        let gaps = self.links.iter().filter(waits).filter(|link| idle(link.peer));
        gaps.map(|link| (link.id, link.expected)).collect()
    }

    /// RO: the message at this position was never sent. If the connection still waits for it, it is ended; else the
    /// messages behind it would keep their buffers for ever.
    pub(crate) fn cut_gap(&mut self, id: ConnectionId, place: u64) {
        let Some(link) = self.links.get(id) else { return };
        if link.expected != place || link.busy.as_ref().is_none_or(|busy| busy.early.is_empty()) {
            return;
        }
        self.say_disconnect(id);
        let why = format!("it left out message {place} of the order, and sent those after it");
        self.end(id, Failure::Protocol(why));
    }

    /// A message that follows a write came.
    fn on_remote_message(&mut self, peer: PeerId, id: ConnectionId, ticket: u64, parcel: Parcel) {
        match self.halves.remove(&(peer, ticket)) {
            Some(Half::Written) => {
                self.count(id);
                self.deliver(id, parcel);
            }
            Some(Half::Void) => {
                self.count(id);
                self.posts.push_back(Post::Drop(parcel));
            }
            None if self.halves.len() < HALVES_MAX => {
                self.halves.insert((peer, ticket), Half::Message(id, parcel));
                self.hold(id);
            }
            earlier => {
                // A ticket that comes twice.
                if let Some(Half::Message(of, earlier)) = earlier {
                    self.let_go(of);
                    self.posts.push_back(Post::Drop(earlier));
                }
                self.posts.push_back(Post::Drop(parcel));
            }
        }
    }

    /// Records one half of a write and its message, or, if the other half waited, forgets that.
    fn pass_half(&mut self, peer: PeerId, ticket: u64, half: Half) {
        match self.halves.remove(&(peer, ticket)) {
            None if self.halves.len() < HALVES_MAX => {
                self.halves.insert((peer, ticket), half);
            }
            // A ticket that comes twice.
            Some(Half::Message(of, parcel)) => {
                self.let_go(of);
                self.posts.push_back(Post::Drop(parcel));
            }
            _ => {}
        }
    }

    /// Counts a message that keeps a buffer. A peer with more than a correct one can have is disconnected.
    fn hold(&mut self, id: ConnectionId) {
        self.held += 1;
        let Some(link) = self.links.get_mut(id) else { return };
        link.held += 1;
        if link.held > HELD_MAX {
            self.say_disconnect(id);
            let why = format!("it keeps more than {HELD_MAX} messages waiting for writes that do not come");
            self.end(id, Failure::Protocol(why));
        }
    }

    /// Drops the waiting messages of this connection, since nobody takes them any more.
    pub(super) fn drop_held(&mut self, id: ConnectionId) {
        if self.links.get_mut(id).is_none_or(|link| std::mem::take(&mut link.held) == 0) {
            return;
        }
        for half in self.halves.values_mut() {
            if let Half::Message(of, parcel) = half
                && *of == id
            {
                self.posts.push_back(Post::Drop(*parcel));
                self.held -= 1;
                *half = Half::Dropped;
            }
        }
    }

    fn let_go(&mut self, id: ConnectionId) {
        self.held -= 1;
        if let Some(link) = self.links.get_mut(id) {
            link.held -= 1;
        }
    }

    /// A peer's write with a ticket has arrived in our memory.
    pub(crate) fn on_written(&mut self, peer: PeerId, ticket: u64) {
        match self.halves.get(&(peer, ticket)) {
            Some(&Half::Message(id, parcel)) => {
                self.halves.remove(&(peer, ticket));
                self.let_go(id);
                self.join(id, Some(parcel));
            }
            _ => self.pass_half(peer, ticket, Half::Written),
        }
    }

    /// The message with this ticket must not be delivered.
    pub(super) fn on_void(&mut self, peer: PeerId, ticket: u64) {
        match self.halves.get(&(peer, ticket)) {
            Some(&Half::Message(id, parcel)) => {
                self.halves.remove(&(peer, ticket));
                self.let_go(id);
                self.posts.push_back(Post::Drop(parcel));
                self.join(id, None);
            }
            _ => self.pass_half(peer, ticket, Half::Void),
        }
    }

    /// A message and its write are both here, or the message is void.
    fn join(&mut self, id: ConnectionId, parcel: Option<Parcel>) {
        let alive =
            self.links.get(id).is_some_and(|link| matches!(link.state, State::Open | State::Ending(_)));
        match parcel {
            Some(parcel) if alive => {
                self.count(id);
                self.deliver(id, parcel);
            }
            Some(parcel) => self.posts.push_back(Post::Drop(parcel)),
            None => self.count(id),
        }
        self.end_when_all_came(id);
    }

    /// A datagram came. Returns the peer that it is from, or `None` if nobody takes it.
    pub(crate) fn on_datagram(
        &mut self,
        now: Micros,
        header: DatagramHeader,
        parcel: Parcel,
    ) -> Option<PeerId> {
        let link = self.links.get(header.to)?;
        let (known, peer) = (!link.level.is_reliable() && link.token == header.token, link.peer);
        let taken = known && self.admit_message(now, peer, header.to);
        taken.then(|| {
            self.deliver(header.to, parcel);
            peer
        })
    }
}
