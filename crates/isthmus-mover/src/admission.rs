//! The clients of the service: unauthenticated ones ("strangers"), and those with a session. Both numbers are limited
//! separately, so strangers take no session from others. If there are too many strangers, an old one is dropped.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crossbeam_channel::Sender;
use isthmus_datagram::crowd::displaced;
use isthmus_trust::Shown;

use crate::MoverError;
use crate::session::Event;

/// Limit on strangers. Each costs a thread, and 1 MiB for its messages.
const STRANGERS_MAX: usize = 32;
/// Why a session ends whose certificate a reload has made worthless.
pub(crate) const DENIED: &str = "its certificate is no longer accepted: it or its authority is on the deny list there, \
                                 or its authority or its AS is not admitted any more";
const LET_GO: &str = "too many others begin a transfer as well; try again later";

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Stranger,
    /// It was told to leave.
    LetGo,
    Session,
}

struct Guest {
    /// The host that it called from. One host may appear as any number of peers.
    host: IpAddr,
    inbox: Sender<Event>,
    state: State,
    /// The certificates by which it proved who it is.
    shown: Option<Shown>,
}

/// The table of clients; see the module. Each is numbered in the order of arrival.
pub(crate) struct Admission {
    /// Limit on sessions.
    sessions: usize,
    guests: BTreeMap<u64, Guest>,
}

impl Admission {
    pub(crate) fn new(sessions: usize) -> Self {
        Self { sessions, guests: BTreeMap::new() }
    }

    /// Changes the limit on sessions. Existing sessions stay.
    pub(crate) fn bound(&mut self, sessions: usize) {
        self.sessions = sessions;
    }

    /// Adds a stranger that called from `host`. If there are too many, the host with the most strangers loses its
    /// oldest.
    pub(crate) fn arrive(&mut self, order: u64, host: IpAddr, inbox: Sender<Event>) {
        self.guests.insert(order, Guest { host, inbox, state: State::Stranger, shown: None });
        let strangers = || self.guests.iter().filter(|(_, guest)| guest.state == State::Stranger);
        if strangers().count() <= STRANGERS_MAX {
            return;
        }
        let goes = displaced(strangers().map(|(order, guest)| (*order, Some(guest.host))));
        if let Some(guest) = goes.and_then(|order| self.guests.get_mut(&order)) {
            guest.state = State::LetGo;
            let _ = guest.inbox.send(Event::Stop(LET_GO.to_owned()));
        }
    }

    /// Turns an authenticated stranger into a session. If it `succeeds` a session that will end, the limit may be
    /// exceeded.
    ///
    /// # Errors
    /// The limit on sessions is reached.
    pub(crate) fn admit(&mut self, order: u64, succeeds: bool) -> Result<(), MoverError> {
        let sessions = self.guests.values().filter(|guest| guest.state == State::Session).count();
        if sessions >= self.sessions * if succeeds { 2 } else { 1 } {
            // The same command continues later, as after a lost connection.
            return Err(MoverError::Lost(format!(
                "it has as many sessions as it may at once ({})",
                self.sessions
            )));
        }
        if let Some(guest) = self.guests.get_mut(&order) {
            guest.state = State::Session;
        }
        Ok(())
    }

    /// Notes the certificates by which a client has proved who it is.
    pub(crate) fn prove(&mut self, order: u64, shown: Option<Shown>) {
        if let Some(guest) = self.guests.get_mut(&order) {
            guest.shown = shown;
        }
    }

    /// Tells all clients to leave whose certificates are not believed any more.
    pub(crate) fn deny_unless(&self, believes: impl Fn(&Shown) -> bool) {
        for guest in self.guests.values() {
            if guest.shown.as_ref().is_some_and(|shown| !believes(shown)) {
                let _ = guest.inbox.send(Event::Stop(DENIED.to_owned()));
            }
        }
    }

    /// Removes a client that has left.
    pub(crate) fn leave(&mut self, order: u64) {
        self.guests.remove(&order);
    }

    /// Tells all clients that the service ends.
    pub(crate) fn stop(&self, why: &str) {
        for guest in self.guests.values() {
            let _ = guest.inbox.send(Event::End(why.to_owned()));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};

    use super::*;

    /// A stranger from the host with this number.
    fn arrive(admission: &mut Admission, order: u64, host: u8) -> Receiver<Event> {
        let (inbox, heard) = unbounded();
        admission.arrive(order, [10, 0, 0, host].into(), inbox);
        heard
    }

    fn admit(admission: &mut Admission, order: u64, succeeds: bool) -> bool {
        admission.admit(order, succeeds).is_ok()
    }

    #[test]
    fn strangers_take_no_session_s_place_and_those_of_whom_there_are_most_go_first() {
        let mut admission = Admission::new(2);
        let mut heard = vec![arrive(&mut admission, 0, 7)];
        heard.extend((1..40).map(|order| arrive(&mut admission, order, 1)));
        let gone: Vec<_> =
            (0..).zip(&heard).filter(|(_, heard)| !heard.is_empty()).map(|(order, _)| order).collect();
        assert_eq!(gone, (1..=8).collect::<Vec<u64>>());
        assert!(admit(&mut admission, 0, false) && admit(&mut admission, 30, false));
        assert!(!admit(&mut admission, 31, false), "as many as there may be");
    }

    #[test]
    fn of_strangers_from_everywhere_the_oldest_goes() {
        let mut admission = Admission::new(1);
        let heard: Vec<_> = (0..34).map(|order| arrive(&mut admission, order, order as u8)).collect();
        assert!(!heard[0].is_empty() && !heard[1].is_empty() && heard[2..].iter().all(Receiver::is_empty));
    }

    /// A client that was killed and restarted is not refused because of its own first session.
    #[test]
    fn who_succeeds_a_session_finds_room_beside_it() {
        let mut admission = Admission::new(1);
        let _heard: Vec<_> = (0..3).map(|order| arrive(&mut admission, order, 1)).collect();
        assert!(admit(&mut admission, 0, false) && !admit(&mut admission, 1, false));
        assert!(admit(&mut admission, 1, true) && !admit(&mut admission, 2, true), "and no more than one");
        admission.leave(0);
        admission.leave(1);
        assert!(admit(&mut admission, 2, false));
        admission.leave(2);
        assert!(admission.is_empty());
    }
}
