//! Time-outs and keepalive.

use isthmus_proto::Micros;
use isthmus_wire::conversation::ConnectionId;

use super::link::State;
use super::{News, Post, Talk, Timer, What};
use crate::{Error, Failure};

impl Talk {
    /// When [`Talk::handle_timeout`] is next due.
    pub(crate) fn poll_timeout(&self) -> Option<Micros> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Micros) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            match timer {
                Timer::Op(op) => self.time_out(op),
                Timer::Link(link) => self.look_after(now, link),
            }
        }
    }

    fn look_after(&mut self, now: Micros, id: ConnectionId) {
        let Some(link) = self.links.get_mut(id) else { return };
        link.timer_at = 0;
        match link.state {
            State::Connecting => self.hurry(now, id),
            State::Open => self.keep_alive(now, id),
            _ => {}
        }
    }

    /// After half the keepalive time of silence, pings the peer; after all of it, tells the program.
    fn keep_alive(&mut self, now: Micros, id: ConnectionId) {
        let Some(link) = self.links.get_mut(id) else { return };
        if link.keepalive_us == 0 {
            return;
        }
        let silent_for = now.saturating_sub(link.heard_at);
        let (peer, context, keepalive_us) = (link.peer, link.context, link.keepalive_us);
        if silent_for >= keepalive_us {
            self.news.push_back(News::KeepaliveExpired { link: id, context });
            // Tell the program again after as much further silence.
            link.heard_at = now;
        } else if silent_for >= keepalive_us / 2 && !link.pinging {
            link.pinging = true;
            let op = self.enter_op(id, What::Ping, 0, true);
            self.posts.push_back(Post::Ping { op, peer });
        }
        self.watch(id);
    }

    /// Sets the keepalive timer of a connection.
    pub(super) fn watch(&mut self, id: ConnectionId) {
        let Some(link) = self.links.get(id) else { return };
        if link.keepalive_us == 0 || link.state != State::Open {
            return;
        }
        let patience = if link.pinging { link.keepalive_us } else { link.keepalive_us.div_ceil(2) };
        self.set_link_timer(id, link.heard_at.saturating_add(patience));
    }

    /// The other end has shown that it lives.
    pub(super) fn on_heard(&mut self, now: Micros, id: ConnectionId) {
        if let Some(link) = self.links.get_mut(id) {
            link.heard_at = now;
        }
    }

    pub(super) fn on_pong(&mut self, now: Micros, id: ConnectionId, end: Result<(), Failure>) {
        let Some(link) = self.links.get_mut(id) else { return };
        link.pinging = false;
        // A peer that refuses lives.
        if matches!(end, Ok(()) | Err(Failure::RemoteAccess(_))) {
            link.heard_at = now;
            self.watch(id);
        }
    }

    /// Sets how long operations may take; 0: as long as the peer lives. Microseconds.
    pub(crate) fn set_send_timeout(&mut self, id: ConnectionId, timeout_us: Micros) -> Result<(), Error> {
        self.links.named(id)?.send_timeout_us = timeout_us;
        Ok(())
    }

    /// Sets the silence after which the program is told; 0: never. Microseconds.
    pub(crate) fn set_keepalive(
        &mut self,
        now: Micros,
        id: ConnectionId,
        keepalive_us: Micros,
    ) -> Result<(), Error> {
        let link = self.links.named(id)?;
        link.keepalive_us = keepalive_us;
        link.heard_at = now;
        if link.state == State::Open {
            self.clear_link_timer(id);
            self.watch(id);
        }
        Ok(())
    }

    /// Send time-out and keepalive of a connection. Microseconds.
    pub(crate) fn times(&mut self, id: ConnectionId) -> Result<(Micros, Micros), Error> {
        let link = self.links.named(id)?;
        Ok((link.send_timeout_us, link.keepalive_us))
    }

    /// The properties of a connection.
    pub(crate) fn describe(&mut self, id: ConnectionId) -> Result<super::Described, Error> {
        let datagram_max = self.limits.datagram_max;
        let link = self.links.named(id)?;
        let message_max = link.message_max(datagram_max);
        Ok(super::Described { level: link.level, message_max, peer: link.peer })
    }

    /// Tells every connected peer that this endpoint ends.
    pub(crate) fn say_goodbye(&mut self) {
        for id in self.links.ids() {
            let Some(link) = self.links.get(id) else { continue };
            if matches!(link.state, State::Open | State::Accepting) {
                self.say_disconnect(id);
            }
        }
    }
}
