//! Turns the conversation's news into the program's events.

use std::sync::Arc;

use crate::event::{Data, Event, Message, Request};
use crate::inner::{Inner, State};
use crate::ports::Slot;
use crate::talk::{News, Parcel};

impl Inner {
    /// Passes on the news of the conversation. Ends that threads wait for are kept for them.
    pub(crate) fn pass_news(&self, state: &mut State) {
        if state.awaited.is_empty() {
            return;
        }
        let State { talk, awaited, .. } = state;
        talk.take_ends(|op, end| match awaited.get_mut(&op) {
            Some(slot) => {
                *slot = Some(end.clone());
                true
            }
            None => false,
        });
    }

    pub(crate) fn next_event(self: &Arc<Self>, state: &mut State) -> Option<Event> {
        self.pass_news(state);
        let news = state.talk.poll_news()?;
        Some(self.shape(state, news))
    }

    pub(crate) fn shape(self: &Arc<Self>, state: &mut State, news: News) -> Event {
        match news {
            News::Requested { link, level, payload } => {
                let peer = state.talk.describe(link).map(|d| self.peer_address(d.peer).uri());
                let (inner, peer) = (self.clone(), peer.unwrap_or_default());
                Event::Requested(Request { inner, id: link, level, payload, peer, decided: false })
            }
            News::Connected { link, context, end: Ok(()), .. } => {
                Event::Connected { connection: self.name(link), context }
            }
            News::Connected { context, end: Err(why), payload, .. } => {
                Event::ConnectFailed { context, why, payload }
            }
            News::Accepted { link, context, end: Ok(()) } => {
                Event::Accepted { connection: self.name(link), context }
            }
            News::Accepted { context, end: Err(why), .. } => Event::AcceptFailed { context, why },
            News::Received { link, context, parcel } => {
                state.counters.received += 1;
                let data = self.data(state, parcel);
                Event::Received(Message { inner: self.clone(), connection: self.name(link), context, data })
            }
            News::Sent { link, context, word, end, .. } => {
                Event::Sent { connection: self.name(link), context, operation: word, end }
            }
            News::Disconnected { link, context, why } => {
                Event::Disconnected { connection: self.name(link), context, why }
            }
            News::DeviceFailed { why } => Event::DeviceFailed { why },
            News::KeepaliveExpired { link, context } => {
                Event::KeepaliveExpired { connection: self.name(link), context }
            }
        }
    }

    fn data(&self, state: &mut State, parcel: Parcel) -> Data {
        match Slot::from_bits(parcel.slot) {
            Slot::Lent { port, slot } => {
                let at = state.ports[port].buffers.address(slot);
                Data::Slot { at, len: parcel.len as usize, port, slot }
            }
            Slot::Datagram { port, slot } => {
                let taken = state.ports[port].datagrams.as_mut().map(|datagrams| datagrams.take(slot));
                Data::Own { bytes: taken.unwrap_or_default(), port }
            }
        }
    }
}
