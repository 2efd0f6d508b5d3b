//! Repair of losses before they are known: copies, parity of the last flight, and repeats of it.

use crate::Micros;
use crate::congestion::CongestionControl;
use crate::parity::{Parity, Shard};
use crate::path::Path;
use crate::redundancy::{Matter, Redundancy};
use crate::repeats::Repeats;
use crate::sending::{Piece, Sending};
use crate::sent::Sent;

/// A piece that was lost twice or more gets copies once `send_max` divided by this was sent behind it: that data cannot
/// be read before the piece.
const HOLDS_UP: u64 = 8;
/// Least round trip for parity of the last flight: on shorter paths a retransmission is soon there. Microseconds.
const CODED_RTT_US: Micros = 4_000;
/// Bounds of the time without new data after which what is in flight counts as the last flight. The time is RTT/16
/// between them: a writer may itself be delayed, and coding takes processor time from it. Microseconds.
const DRAINED_MIN_US: Micros = 1_000;
const DRAINED_MAX_US: Micros = 25_000;
/// The same time if the flight may be one whole message that has no parity yet: if more data follows, little was coded
/// in vain. Microseconds.
const DRAINED_SOON_US: Micros = 200;

/// What is in flight, as far as repair depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight<'a> {
    pub(super) sending: &'a Sending,
    pub(super) sent: &'a Sent,
    pub(super) path: &'a Path,
    pub(super) congestion: &'a dyn CongestionControl,
    /// The limit of unacknowledged data keeps the application from writing.
    pub(super) is_full: bool,
    /// UDP payload of a full packet. Bytes.
    pub(super) payload: usize,
}

impl Flight<'_> {
    fn rtt_us(&self) -> Micros {
        self.path.rtt_us().unwrap_or(0)
    }

    /// Whether it fills at least half of the congestion window.
    fn fills_window(&self) -> bool {
        2 * self.sent.in_flight() >= self.congestion.window_bytes()
    }

    /// Whether the data has ended, and not only because the application could not write.
    fn has_ended(&self) -> bool {
        self.sending.is_drained() && !self.is_full
    }
}

/// Repairs losses before they are known. Each end of data is coded and repeated once, and new data stops both.
#[derive(Debug)]
pub(super) struct Repair {
    redundancy: Box<dyn Redundancy>,
    parity: Parity,
    repeats: Repeats,
    /// Since when no new data waits to be sent, although there is room to write some.
    drained_at: Option<Micros>,
}

impl Repair {
    pub(super) fn new(redundancy: Box<dyn Redundancy>) -> Self {
        Self { redundancy, parity: Parity::default(), repeats: Repeats::default(), drained_at: None }
    }

    /// Uses another rule from now on.
    pub(super) fn change(&mut self, redundancy: Box<dyn Redundancy>) {
        self.redundancy = redundancy;
    }

    /// Number of transmissions of a packet from the end of data, on a path that loses the share `loss`.
    pub(super) fn tail_packets(&self, loss: f64) -> u8 {
        self.redundancy.packets(Matter::Tail, loss)
    }

    /// Number of copies of a piece that is sent for the first time, or again. `send_max` bounds unacknowledged data.
    pub(super) fn copies(&self, piece: &Piece, sending: &Sending, path: &Path, send_max: u64) -> u8 {
        let matter = match piece.attempt {
            0 if sending.is_tail(piece) => Matter::Tail,
            0 => Matter::Bulk,
            times => {
                // The receiver holds everything behind the piece until it comes, which may soon fill its window.
                let holds_up = sending.sent_behind(piece) >= send_max / HOLDS_UP;
                // Parity already repairs the first loss of a piece of the coded flight.
                let tail = sending.is_drained() && !(times == 1 && self.parity.covers(piece.offset));
                Matter::Lost { times: if holds_up { times } else { 1 }, tail }
            }
        };
        // Assumed loss counts for one-packet messages: a longer one's end is useless alone, and its losses show.
        let supposes = matter == Matter::Tail && sending.is_message(piece);
        let loss = if supposes { path.loss_supposed() } else { path.loss() };
        self.redundancy.packets(matter, loss) - 1
    }

    /// Whether bulk data is cut into shards, because its last flight may get parity.
    pub(super) fn wants_shards(&self, path: &Path) -> bool {
        path.rtt_us().is_some_and(|rtt| rtt >= CODED_RTT_US)
            && self.redundancy.parity(1, path.loss_seldom(), 1.0) > 0
    }

    /// New data from `offset` on is sent; `in_shards`: it is cut into shards, `last`: no more waits to be sent.
    pub(super) fn note_data(&mut self, now: Micros, path: &Path, offset: u64, in_shards: bool, last: bool) {
        self.drained_at = last.then_some(now);
        self.parity.cancel();
        if in_shards {
            self.parity.mark(now, path.rtt_us().unwrap_or(0), offset);
        }
    }

    /// Until now the application could not write, so the time without new data starts here.
    pub(super) fn note_room(&mut self, now: Micros) {
        self.drained_at = self.drained_at.map(|_| now);
    }

    /// Whether there may be parity to send.
    pub(super) fn has_parity(&self) -> bool {
        self.parity.is_pending()
    }

    /// Whether there may be repeats to send.
    pub(super) fn has_repeats(&self) -> bool {
        self.repeats.is_pending()
    }

    /// Time at which what is in flight counts as the last flight, unless that was decided already.
    pub(super) fn coding_due(&self, flight: &Flight<'_>) -> Option<Micros> {
        let due = flight.has_ended() && self.parity.is_new(flight.sending.sent_to());
        let at = self.drained_at.filter(|_| due)?;
        let soon = !self.parity.is_missed(flight.sending.acked_upto()) && self.is_message(at, flight);
        let usual = (flight.rtt_us() / 16).clamp(DRAINED_MIN_US, DRAINED_MAX_US);
        Some(at + if soon { DRAINED_SOON_US } else { usual })
    }

    /// Starts to code the last flight of a long transfer, or a message, if it is time.
    pub(super) fn see_to_parity(&mut self, now: Micros, flight: &Flight<'_>) {
        if self.coding_due(flight).is_none_or(|due| now < due) {
            return;
        }
        // Losses of data sent before `repaired` are known and retransmitted by the time the parity arrives.
        let rtt = flight.rtt_us();
        let once = (rtt as f64 * (1.0 - 1.5 * flight.path.loss()).max(0.0)) as Micros;
        let first = |age: Micros| self.parity.sent_since(now.saturating_sub(age));
        let repaired = first(once).unwrap_or(u64::MAX);
        let is_message = self.drained_at.is_some_and(|at| self.is_message(at, flight));
        let coded = first(rtt + once).filter(|_| flight.fills_window() || is_message);
        let ranges = coded.map(|from| flight.sending.shards(from));
        self.parity.begin(flight.sending.sent_to(), ranges.unwrap_or_default(), repaired);
    }

    /// Whether what is unacknowledged when data ends, at `at`, is one message of several packets: all data before it is
    /// acknowledged, or a pause came before it. (After a pause that data may have arrived, and its acknowledgement be
    /// lost.) A message of one packet gets copies instead.
    fn is_message(&self, at: Micros, flight: &Flight<'_>) -> bool {
        let (missed, rtt) = (flight.sending.acked_upto(), flight.rtt_us());
        let since = at.saturating_sub(rtt + rtt / 8);
        let alone = self.parity.sent_since(since).filter(|from| missed >= *from);
        let from = alone.or_else(|| self.parity.burst_since(since));
        from.is_some_and(|from| flight.sending.sent_to() > missed.max(from) + flight.payload as u64)
    }

    /// The next parity packet, if its shard fits: `fits` tells. If it does not, the rest of the parity is dropped.
    pub(super) fn next_parity(
        &mut self,
        sending: &Sending,
        path: &Path,
        fits: impl Fn(&Shard) -> bool,
    ) -> Option<Shard> {
        let (redundancy, loss, run) = (&self.redundancy, path.loss_seldom(), path.run());
        let parity =
            |packets, repaired| redundancy.parity(packets, if repaired { loss * loss } else { loss }, run);
        let shard = self.parity.next(sending, parity)?;
        let fits = fits(&shard);
        if !fits {
            self.parity.cancel();
        }
        fits.then_some(shard)
    }

    /// Appends the bytes of a parity packet to `out`.
    pub(super) fn copy_parity(&self, shard: &Shard, out: &mut Vec<u8>) {
        self.parity.copy(shard, out);
    }

    /// The next piece of a long transfer's last flight to send once more while the path is idle, of at most `room`
    /// bytes.
    pub(super) fn next_repeat(&mut self, now: Micros, room: u32, flight: &Flight<'_>) -> Option<Piece> {
        let sent_to = flight.sending.sent_to();
        if flight.has_ended() && self.coding_due(flight).is_none() && self.repeats.is_new(sent_to) {
            let packets = self.redundancy.packets(Matter::Flight, flight.path.loss());
            // A sender that uses less than half of the window has sent copies already.
            let repeats = flight.fills_window() && !self.parity.has_coded(sent_to);
            let times = if repeats { packets - 1 } else { 0 };
            let age = flight.rtt_us() / u64::from(packets);
            self.repeats.begin(flight.sent, sent_to, now.saturating_sub(age), times);
        }
        while let Some(range) = self.repeats.next(flight.sent) {
            if let Some((piece, rest)) = flight.sending.repeat_piece(range, room) {
                self.repeats.leave(rest);
                return Some(piece);
            }
        }
        None
    }
}
