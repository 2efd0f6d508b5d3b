//! The sockets on which lanes come in.

use std::time::{Duration, Instant};

use isthmus_datagram::scarcity::ACCEPT_PAUSE;
use socket2::Socket;

use super::LISTENER;
use crate::poller::Poller;

/// The listeners. They are in the poller, except in a pause: they stay readable then, and watching them would keep the
/// processor busy.
#[derive(Debug)]
pub(super) struct Listeners {
    sockets: Vec<Socket>,
    paused_until: Option<Instant>,
}

impl Listeners {
    pub(super) fn new(sockets: Vec<Socket>, poller: &Poller) -> std::io::Result<Self> {
        sockets.iter().try_for_each(|socket| poller.add(socket, LISTENER, false))?;
        Ok(Self { sockets, paused_until: None })
    }

    pub(super) fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    /// Ignores the listeners for [`ACCEPT_PAUSE`].
    pub(super) fn pause(&mut self, poller: &Poller) {
        for socket in &self.sockets {
            let _ = poller.remove(socket);
        }
        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// When the listeners are watched again, if they are ignored now.
    pub(super) fn resume_in(&self) -> Option<Duration> {
        self.paused_until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Watches the listeners again once their pause is over.
    pub(super) fn resume(&mut self, poller: &Poller) {
        if self.resume_in() != Some(Duration::ZERO) {
            return;
        }
        self.paused_until = None;
        for socket in &self.sockets {
            if poller.add(socket, LISTENER, false).is_err() {
                // Try again after another pause.
                self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    /// Stops listening.
    pub(super) fn close(&mut self, poller: &Poller) {
        for socket in self.sockets.drain(..) {
            let _ = poller.remove(&socket);
        }
    }
}
