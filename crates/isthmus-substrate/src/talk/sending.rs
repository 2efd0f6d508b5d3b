//! Outgoing operations of the program, and their ends.

use isthmus_proto::{Micros, OpError, PeerId};
use isthmus_wire::conversation::{ConnectionId, DatagramHeader, Letter, Subject, UNORDERED};

use super::link::{State, Unsaid};
use super::{ESCORTED_MAX, News, Op, OpId, Post, Talk, Timer, What};
use crate::{Error, Failure, Level};

/// A message for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) op: OpId,
    pub(crate) peer: PeerId,
    /// The level of its connection.
    pub(crate) level: Level,
    pub(crate) tag: u64,
    pub(crate) data: u64,
}

/// A message of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// Length. Bytes.
    pub(crate) len: u64,
    /// The program's context, which is returned with its end.
    pub(crate) word: u64,
    pub(crate) silent: bool,
    /// The program waits for its end.
    pub(crate) blocking: bool,
    /// It uses the program's buffer until its end is reported.
    pub(crate) lent: bool,
    /// It is outside RO's order.
    pub(crate) unordered: bool,
}

/// The path of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendPath {
    /// Through the engine, complete when delivered.
    Reliable(Lane),
    /// Through the engine; it is complete already.
    Lossy(Lane),
    /// As a datagram to this port of the peer.
    Udp { peer: PeerId, port: u16, header: DatagramHeader },
    /// It is dropped, because too much is under way.
    Lost,
}

/// A write or read for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) op: OpId,
    pub(crate) peer: PeerId,
    /// Data that the peer gets with the last part of a write.
    pub(crate) data: Option<u64>,
}

impl Talk {
    /// Sends a message.
    pub(crate) fn send(
        &mut self,
        now: Micros,
        id: ConnectionId,
        message: &Outgoing,
    ) -> Result<SendPath, Error> {
        let Outgoing { len, word, silent, blocking, lent, unordered } = *message;
        let limits = self.limits.clone();
        let link = self.links.named(id)?;
        if link.state != State::Open {
            return Err(Error::State(link.state.text()));
        }
        let most = link.message_max(limits.datagram_max);
        if len > u64::from(most) {
            let remedy = "split it, or write it to registered memory of the peer";
            return Err(Error::TooLong { len, most: most.into(), remedy });
        }
        if !link.level.is_reliable() {
            return Ok(self.send_unreliably(id, len, word, silent || blocking));
        }
        if self.under_way >= limits.send_buffers {
            return Err(Error::Full(limits.send_buffers));
        }
        let (peer, level) = (link.peer, link.level);
        let ordered = level.is_ordered() && !unordered;
        let data = if unordered { UNORDERED } else { link.next_place };
        link.next_place += u64::from(!unordered);
        link.sent += 1;
        link.outstanding += 1;
        let tag = Subject::Message(link.remote.id).to_tag();
        self.under_way += 1;
        let silent = silent && !blocking;
        let op = self.enter_op(id, What::Message, word, silent);
        if let Some(op) = self.op(op) {
            (op.lent, op.unordered) = (lent, unordered);
        }
        if ordered && let Some(link) = self.links.get_mut(id) {
            link.busy().unsaid.push_back(Unsaid { op, word, silent, end: None });
        }
        self.limit(now, id, op);
        Ok(SendPath::Reliable(Lane { op, peer, level, tag, data }))
    }

    /// Messages of this connection go by lanes from now on, and not as datagrams.
    pub(crate) fn leave_datagrams(&mut self, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(id) {
            link.packet_max = 0;
        }
    }

    /// The peer of an unreliable connection that has not been allowed to use datagrams yet, and could.
    pub(crate) fn asks_for_datagrams(&self, id: ConnectionId) -> Option<PeerId> {
        let link = self.links.get(id)?;
        (link.packet_max > 0 && !link.clear && !link.level.is_reliable()).then_some(link.peer)
    }

    /// Messages of this connection may go as datagrams, which are not encrypted.
    pub(crate) fn allow_datagrams(&mut self, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(id) {
            link.clear = true;
        }
    }

    fn send_unreliably(&mut self, id: ConnectionId, len: u64, word: u64, silent: bool) -> SendPath {
        let full = self.under_way >= self.limits.send_buffers;
        let Some(link) = self.links.get_mut(id) else { return SendPath::Lost };
        let (peer, level, remote, context) = (link.peer, link.level, link.remote, link.context);
        let fits = link.clear && link.packet_max > 0 && len <= u64::from(link.packet_max);
        let way = if remote.udp_port != 0 && fits {
            let header = DatagramHeader { to: remote.id, token: remote.token };
            SendPath::Udp { peer, port: remote.udp_port, header }
        } else if full {
            SendPath::Lost
        } else {
            link.outstanding += 1;
            self.under_way += 1;
            let op = self.enter_op(id, What::Datagram, 0, true);
            SendPath::Lossy(Lane { op, peer, level, tag: Subject::Datagram(remote.id).to_tag(), data: 0 })
        };
        if !silent {
            self.news.push_back(News::Sent {
                op: OpId::from_bits(u64::MAX),
                link: id,
                context,
                word,
                end: Ok(()),
            });
        }
        way
    }

    /// Plans a write to the peer's memory, which `message` follows.
    pub(crate) fn write(
        &mut self,
        now: Micros,
        id: ConnectionId,
        word: u64,
        silent: bool,
        message: Option<&[u8]>,
    ) -> Result<Plan, Error> {
        let peer = self.check_remote(id, message)?;
        let Some(message) = message else {
            let op = self.enter_op(id, What::Write { ticket: None }, word, silent);
            self.limit(now, id, op);
            return Ok(Plan { op, peer, data: None });
        };
        self.escort(id)?;
        let ticket = self.next_ticket;
        self.next_ticket = ticket.wrapping_add(1);
        let op = self.enter_op(id, What::Write { ticket: Some(ticket) }, word, silent);
        self.limit(now, id, op);
        self.post_remote(op, id, ticket, message.to_vec());
        Ok(Plan { op, peer, data: Some(ticket) })
    }

    /// Plans a read of the peer's memory, which `message` follows.
    pub(crate) fn read(
        &mut self,
        now: Micros,
        id: ConnectionId,
        word: u64,
        silent: bool,
        message: Option<&[u8]>,
    ) -> Result<Plan, Error> {
        let peer = self.check_remote(id, message)?;
        if message.is_some()
            && let Some(link) = self.links.get_mut(id)
        {
            link.followers += 1;
        }
        let op = self.enter_op(id, What::Read { follow: message.map(<[u8]>::to_vec) }, word, silent);
        self.limit(now, id, op);
        Ok(Plan { op, peer, data: None })
    }

    /// Counts a write with a message. An error if there are too many.
    fn escort(&mut self, id: ConnectionId) -> Result<(), Error> {
        match self.links.get_mut(id) {
            Some(link) if link.escorted < ESCORTED_MAX => link.escorted += 1,
            _ => {
                self.release(id);
                return Err(Error::Full(ESCORTED_MAX));
            }
        }
        Ok(())
    }

    /// Checks that remote memory may be accessed now, and counts the operation.
    fn check_remote(&mut self, id: ConnectionId, message: Option<&[u8]>) -> Result<PeerId, Error> {
        let (under_way, most) = (self.under_way, self.limits.send_buffers);
        let link = self.links.named(id)?;
        if !link.level.is_reliable() {
            return Err(Error::Level);
        }
        if link.state != State::Open {
            return Err(Error::State(link.state.text()));
        }
        let len = message.map_or(0, <[u8]>::len) as u64;
        if len > u64::from(link.remote.message_max) {
            let remedy = "shorten the message that follows";
            return Err(Error::TooLong { len, most: link.remote.message_max.into(), remedy });
        }
        if under_way >= most {
            return Err(Error::Full(most));
        }
        link.outstanding += 1;
        self.under_way += 1;
        Ok(link.peer)
    }

    /// Sends the message of a write or read, whose end it shares.
    fn post_remote(&mut self, of: OpId, id: ConnectionId, ticket: u64, bytes: Vec<u8>) {
        let Some(link) = self.links.get_mut(id) else { return };
        link.sent += 1;
        let (peer, tag) = (link.peer, Subject::Remote(link.remote.id).to_tag());
        if let Some(op) = self.op(of) {
            op.parts += 1;
        }
        let op = self.enter_op(id, What::Remote { of }, 0, true);
        self.posts.push_back(Post::Message { op, peer, tag, data: ticket, bytes });
    }

    /// The engine did not take an operation that was planned here.
    pub(crate) fn withdraw(&mut self, now: Micros, id: OpId, error: &OpError) {
        self.on_end(now, id, Err(error));
    }

    /// The engine has ended an operation.
    pub(crate) fn on_end(&mut self, now: Micros, id: OpId, end: Result<(), &OpError>) {
        let end = end.map_err(Failure::from);
        let Some(op) = self.op(id) else { return };
        let (link, of) = match op.what {
            What::Write { .. } | What::Read { .. } => (op.link, Some(id)),
            What::Remote { of } => (op.link, Some(of)),
            _ => (op.link, None),
        };
        if end.is_ok() {
            self.on_heard(now, link);
        }
        match of {
            Some(of) => self.on_part_end(id, of, end),
            None => self.on_single_end(now, id, end),
        }
        self.leave(link);
    }

    fn on_single_end(&mut self, now: Micros, id: OpId, end: Result<(), Failure>) {
        let Some(op) = self.take_op(id) else { return };
        match op.what {
            What::Letter { peer, opens: true } => self.on_letter_end(now, op.link, peer, end),
            What::Letter { opens: false, .. } => {}
            What::Ping => self.on_pong(now, op.link, end),
            What::Datagram => self.release(op.link),
            _ => {
                self.release(op.link);
                self.tell(op, end);
            }
        }
    }

    /// A part of a write or read, or of the message with it, has ended.
    fn on_part_end(&mut self, id: OpId, of: OpId, end: Result<(), Failure>) {
        if id != of {
            self.take_op(id);
        }
        let Some(op) = self.op(of) else { return };
        op.parts -= 1;
        let link = op.link;
        let good = end.is_ok();
        if let Err(failure) = end {
            op.failure.get_or_insert(failure);
        }
        match &mut op.what {
            What::Write { ticket: Some(ticket) } if id == of && !good => {
                let ticket = *ticket;
                self.void(link, ticket);
            }
            What::Read { follow } if id == of => {
                if let Some(bytes) = follow.take() {
                    self.end_read(of, link, good.then_some(bytes));
                }
            }
            _ => {}
        }
        if self.op(of).is_some_and(|op| op.parts == 0)
            && let Some(mut op) = self.take_op(of)
        {
            self.release(link);
            if matches!(op.what, What::Write { ticket: Some(_) })
                && let Some(link) = self.links.get_mut(link)
            {
                link.escorted -= 1;
            }
            let end = op.failure.take().map_or(Ok(()), Err);
            self.tell(op, end);
        }
    }

    /// A read with a message has ended: sends the message if it succeeded.
    fn end_read(&mut self, of: OpId, id: ConnectionId, message: Option<Vec<u8>>) {
        if let Some(bytes) = message {
            self.post_follower(of, id, bytes);
        }
        let Some(link) = self.links.get_mut(id) else { return };
        link.followers -= 1;
        if link.followers == 0 && link.state == State::Leaving {
            self.say_disconnect(id);
        }
    }

    fn post_follower(&mut self, of: OpId, id: ConnectionId, bytes: Vec<u8>) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (peer, to) = (link.peer, link.remote.id);
        link.sent += 1;
        let ordered = link.level.is_ordered();
        let data = link.next_place;
        link.next_place += u64::from(ordered);
        if let Some(op) = self.op(of) {
            op.parts += 1;
        }
        let op = self.enter_op(id, What::Remote { of }, 0, true);
        let tag = Subject::Message(to).to_tag();
        self.posts.push_back(Post::Message { op, peer, tag, data, bytes });
    }

    /// Tells the peer not to deliver the message of a failed write.
    fn void(&mut self, id: ConnectionId, ticket: u64) {
        let Some(link) = self.links.get(id) else { return };
        let (peer, to) = (link.peer, link.remote.id);
        self.write_letter(id, peer, &Letter::Void { to, ticket }, false);
    }

    /// An operation of the program no longer counts.
    fn release(&mut self, id: ConnectionId) {
        self.under_way -= 1;
        if let Some(link) = self.links.get_mut(id) {
            link.outstanding -= 1;
        }
    }

    /// Reports an end to the program; for messages on RO, once all earlier ones were reported.
    fn tell(&mut self, op: Op, end: Result<(), Failure>) {
        if op.told {
            return;
        }
        match op.what {
            What::Message if !op.unordered && self.is_ordered(op.link) => self.note_end(op.id, op.link, end),
            _ => self.say(op.id, op.link, op.word, op.silent, end),
        }
    }

    fn is_ordered(&self, id: ConnectionId) -> bool {
        self.links.get(id).is_some_and(|link| link.level.is_ordered())
    }

    /// Records the end of an ordered message, and reports all ends that are next in order.
    fn note_end(&mut self, op: OpId, at: ConnectionId, end: Result<(), Failure>) {
        let Some(link) = self.links.get_mut(at) else { return };
        if let Some(entry) = link.busy().unsaid.iter_mut().find(|entry| entry.op == op) {
            entry.end = Some(end);
        }
        while let Some(Unsaid { op, word, silent, end: Some(end) }) = self.next_said(at) {
            self.say(op, at, word, silent, end);
        }
    }

    fn next_said(&mut self, at: ConnectionId) -> Option<Unsaid> {
        let link = self.links.get_mut(at)?;
        let next = link.busy().unsaid.pop_front_if(|entry| entry.end.is_some());
        if next.is_none() {
            link.shrink();
        }
        next
    }

    fn say(&mut self, op: OpId, link: ConnectionId, word: u64, silent: bool, end: Result<(), Failure>) {
        if silent && end.is_ok() {
            return;
        }
        let context = self.links.get(link).map_or(0, |link| link.context);
        self.news.push_back(News::Sent { op, link, context, word, end });
    }

    /// Starts the connection's send time-out for an operation.
    fn limit(&mut self, now: Micros, id: ConnectionId, op: OpId) {
        let timeout_us = self.links.get(id).map_or(0, |link| link.send_timeout_us);
        if timeout_us > 0 {
            self.timers.insert((now.saturating_add(timeout_us), Timer::Op(op)));
        }
    }

    /// An operation's time-out has expired. What a write or read uses stays in use until its end.
    pub(super) fn time_out(&mut self, id: OpId) {
        let Some(op) = self.op(id) else { return };
        let (link, lent) = (op.link, op.lent);
        match self.links.get(link) {
            Some(link) if lent => self.posts.push_back(Post::Disown { op: id, peer: link.peer }),
            // A connection stays as long as its messages.
            None if lent => {}
            _ => self.disowned(id),
        }
    }

    /// The engine has copied what the program lent, so the operation's time-out can be reported.
    pub(crate) fn disowned(&mut self, id: OpId) {
        let Some(op) = self.op(id) else { return };
        op.lent = false;
        if std::mem::replace(&mut op.told, true) {
            return;
        }
        let (link, word, silent) = (op.link, op.word, op.silent);
        let message = matches!(op.what, What::Message) && !op.unordered;
        if message && self.is_ordered(link) {
            self.note_end(id, link, Err(Failure::TimedOut));
        } else {
            self.say(id, link, word, silent, Err(Failure::TimedOut));
        }
    }

    /// A lane is still writing from what the program lent: asks again a little later.
    pub(crate) fn not_disowned(&mut self, now: Micros, id: OpId) {
        self.timers.insert((now + 1_000, Timer::Op(id)));
    }
}
