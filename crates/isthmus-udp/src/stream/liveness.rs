//! Whether the peer is there: silence, keepalives, and the Pings that ask.

use crate::Micros;

/// Data that pauses for this long may not find the way any more, if a NAT before the receiver has forgotten it. A Ping
/// then shows the sender where the receiver is. Microseconds (1 s).
const QUIET_US: Micros = 1_000_000;

/// The peer's signs of life, and our Pings.
#[derive(Debug)]
pub(super) struct Liveness {
    heard_at: Micros,
    /// When data last came, until a Ping has followed.
    data_at: Option<Micros>,
    /// A Ping has to be sent.
    ping: bool,
    keepalive_us: Micros,
    patience_us: Micros,
}

impl Liveness {
    /// Begins with a Ping. A silent peer is asked after `keepalive_us`, and counts as gone after `patience_us`.
    pub(super) fn new(now: Micros, keepalive_us: Micros, patience_us: Micros) -> Self {
        Self { heard_at: now, data_at: None, ping: true, keepalive_us, patience_us }
    }

    /// A packet came from the peer.
    pub(super) fn note_packet(&mut self, now: Micros) {
        self.heard_at = self.heard_at.max(now);
    }

    /// Data came from the peer.
    pub(super) fn note_data(&mut self, now: Micros) {
        self.data_at = Some(now);
    }

    /// How long nothing has come from the peer. Microseconds.
    pub(super) fn silent_us(&self, now: Micros) -> Micros {
        now.saturating_sub(self.heard_at)
    }

    /// When to ask whether the peer is still there, if nothing comes.
    pub(super) fn quiet_ends(&self) -> Micros {
        let keepalive = self.heard_at + self.keepalive_us;
        self.data_at.map_or(keepalive, |at| keepalive.min(at + QUIET_US))
    }

    /// When the peer counts as gone, if nothing comes.
    pub(super) fn patience_ends(&self) -> Micros {
        self.heard_at + self.patience_us
    }

    /// Asks whether the peer is still there if it has been quiet for long. True if it was silent for the time of a
    /// keepalive.
    pub(super) fn see_to_quiet(&mut self, now: Micros) -> bool {
        if now >= self.quiet_ends() {
            self.ping = true;
            self.data_at = None;
        }
        now >= self.heard_at + self.keepalive_us
    }

    /// A Ping has to be sent.
    pub(super) fn want_ping(&mut self) {
        self.ping = true;
    }

    pub(super) fn wants_ping(&self) -> bool {
        self.ping
    }

    /// Whether a Ping is to be sent now. Anything that the peer acknowledges does as well.
    pub(super) fn take_ping(&mut self) -> bool {
        std::mem::take(&mut self.ping)
    }
}
