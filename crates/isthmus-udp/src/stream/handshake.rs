//! How a stream comes up: the ids and tokens of both ends, and the limits before the peer's address is validated.

use crate::Micros;
use crate::mtu::PAYLOAD_BASE;
use crate::wire::{ConnectionId, Header, TOKEN_LEN, Token};

/// Before an address is validated, we send it at most this many times the bytes that came from it (RFC 9000, 8.1).
const AMPLIFICATION: u64 = 3;

/// Our side of the handshake, and how far it has come. It alone decides the header of each packet.
#[derive(Debug)]
pub(super) struct Handshake {
    phase: Phase,
    local: ConnectionId,
    remote: Option<ConnectionId>,
    /// Bytes that may still be sent to an address that is not validated; `None` once it is.
    allowance: Option<u64>,
    /// Token that the peer gave for a later stream to it, all zero if it gave none, and the window that it grants to that
    /// at first.
    token: Token,
    peer_window: u64,
    /// Copies of the opening packet still to be sent, and when the next one is due.
    copies: u8,
    copy_at: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// We opened the stream. Each packet is an Open with this token until the peer answers.
    Opening(Token),
    /// The peer opened the stream. Each packet is an Accept with this token for a later stream of the peer, until the peer
    /// uses our id.
    Accepting(Token),
    Done,
}

impl Handshake {
    /// Ours, for a stream that we open. `token` is the one that the peer gave for it.
    pub(super) fn open(local: ConnectionId, token: Token) -> Self {
        Self {
            phase: Phase::Opening(token),
            local,
            remote: None,
            allowance: None,
            token: [0; TOKEN_LEN],
            peer_window: 0,
            copies: 0,
            copy_at: 0,
        }
    }

    /// Ours, for a stream that `remote` opened. `token` is for a later stream of the peer; `proved`: its address is
    /// validated.
    pub(super) fn accept(local: ConnectionId, remote: ConnectionId, token: Token, proved: bool) -> Self {
        Self {
            phase: Phase::Accepting(token),
            remote: Some(remote),
            allowance: (!proved).then_some(0),
            ..Self::open(local, token)
        }
    }

    pub(super) fn local(&self) -> ConnectionId {
        self.local
    }

    /// The id by which the peer wants to be addressed, once it is known.
    pub(super) fn remote(&self) -> Option<ConnectionId> {
        self.remote
    }

    /// Whether we opened the stream and the peer has not answered.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening(_))
    }

    /// Whether each end knows that the other uses its id.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the peer's address is validated.
    pub(super) fn is_proved(&self) -> bool {
        self.allowance.is_none()
    }

    /// The header of the next packet. `window` is what we grant; `keyed`: the packet is sealed with the stream's own
    /// keys, if it is a Data packet.
    pub(super) fn header(&self, window: u64, keyed: bool) -> Header {
        let (source, target) = (self.local, self.remote.unwrap_or(0));
        match self.phase {
            Phase::Opening(token) => Header::Open { source, token, window },
            Phase::Accepting(token) => Header::Accept { target, source, token, window },
            Phase::Done => Header::Data { target, keyed },
        }
    }

    /// The peer accepts, by this id. False if it had done so before.
    pub(super) fn on_accept(&mut self, source: ConnectionId, token: Token, window: u64) -> bool {
        if self.remote.is_some() {
            return false;
        }
        (self.token, self.peer_window) = (token, window);
        (self.remote, self.phase) = (Some(source), Phase::Done);
        true
    }

    /// The peer has used our id, which validates its address. False if the handshake waited for something else.
    pub(super) fn on_data(&mut self) -> bool {
        let ends = matches!(self.phase, Phase::Accepting(_));
        if ends {
            (self.phase, self.allowance) = (Phase::Done, None);
        }
        ends
    }

    /// The peer asks for another Open with this token. False if that is no news.
    pub(super) fn on_challenge(&mut self, fresh: Token) -> bool {
        let is_new = matches!(self.phase, Phase::Opening(token) if token != fresh);
        if is_new {
            (self.phase, self.token) = (Phase::Opening(fresh), fresh);
        }
        is_new
    }

    /// Notes a window that the peer grants. Bytes.
    pub(super) fn note_window(&mut self, window: u64) {
        self.peer_window = self.peer_window.max(window);
    }

    /// The token for a later stream to the peer, all zero if it gave none, and the window that it grants to that at first.
    pub(super) fn later(&self) -> (Token, u64) {
        (self.token, self.peer_window)
    }

    /// Bytes that came from the peer's address, which allow for an answer.
    pub(super) fn note_received(&mut self, bytes: u64) {
        if let Some(allowance) = &mut self.allowance {
            *allowance += AMPLIFICATION * bytes;
        }
    }

    /// Bytes that were sent to the peer's address.
    pub(super) fn note_sent(&mut self, bytes: u64) {
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.saturating_sub(bytes);
        }
    }

    /// False if the amplification limit of an address that is not validated forbids another packet.
    pub(super) fn may_send(&self) -> bool {
        self.allowance.is_none_or(|allowance| allowance >= u64::from(PAYLOAD_BASE))
    }

    /// Time at which another copy of the opening packet is due. The peer answers each copy with an Accept.
    pub(super) fn copy_due(&self) -> Option<Micros> {
        (self.is_opening() && self.copies > 0).then_some(self.copy_at)
    }

    /// Plans copies of the opening packet; the first one is due at `at`. Those planned before are dropped.
    pub(super) fn plan_copies(&mut self, copies: u8, at: Micros) {
        (self.copies, self.copy_at) = (copies, at);
    }

    /// Whether a copy of the opening packet is to be sent now. The next one is due at `next_at`.
    pub(super) fn take_copy(&mut self, now: Micros, next_at: Micros) -> bool {
        let is_due = self.copy_due().is_some_and(|due| now >= due);
        if is_due {
            self.plan_copies(self.copies - 1, next_at);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_we_gave_the_peer_is_not_kept_as_the_peers() {
        let mut accepted = Handshake::accept(1, 2, [7; TOKEN_LEN], true);
        assert!(matches!(accepted.header(0, false), Header::Accept { token: [7, ..], .. }));
        accepted.note_window(1_000);
        assert!(accepted.on_data());
        assert_eq!(accepted.later(), ([0; TOKEN_LEN], 1_000));
        let mut opened = Handshake::open(1, [0; TOKEN_LEN]);
        assert!(opened.on_accept(2, [9; TOKEN_LEN], 1_000));
        assert_eq!(opened.later(), ([9; TOKEN_LEN], 1_000));
    }
}
