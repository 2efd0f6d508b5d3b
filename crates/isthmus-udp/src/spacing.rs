//! Lets a sender ask for fewer acknowledgements where they fill the way back.
//!
//! Where the way back carries a hundredth of what the way there does, an acknowledgement each millisecond waits in a
//! queue there, or is lost in it. The sender sees that queue: it is what a round trip takes beyond the least one and the
//! queue on the way there. While it stays long and does not drain, the sender doubles the time between acknowledgements
//! each round. After RFC 5690 (acknowledgement congestion control) and draft-ietf-quic-ack-frequency.
//!
//! If the peer's own data fills the way back, acknowledgements wait behind that. Fewer of them would not help, and the
//! sender would stand still between them.

use crate::Micros;

/// Part of the least round trip that acknowledgements are apart at most: a sender needs two in each.
const PART_MAX: Micros = 2;
/// Longest time between acknowledgements. Microseconds (50 ms).
const MAX_US: Micros = 50_000;
/// Part of the least round trip that the queue on the way back must take at least.
const QUEUE_PART: Micros = 4;
/// Time that this queue must take at least. Microseconds (2 ms).
const QUEUE_US: Micros = 2_000;
/// Length of an acknowledgement in a packet of its own. Bytes (wire).
const ACK_BYTES: u64 = 100;
/// After this time without such a queue, half the time is tried. Microseconds (10 s).
const RELAX_US: Micros = 10_000_000;
/// Rounds in which the peer is told of a change, because messages may be lost. Count.
const TELLS: u8 = 3;

/// Time between the acknowledgements of a stream, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Spacing {
    /// What we ask the peer for; 0 while its own choice is fine.
    asked_us: Micros,
    /// When there was a queue, or the time was halved.
    settled_at: Micros,
    /// The peer is to be told now, and in how many rounds after this one.
    due: bool,
    tells: u8,
    /// Shortest queue on the way back in this round, and in the round before it.
    back_us: Option<Micros>,
    before_us: Micros,
    /// What came in this round: acknowledgements, and data of the peer. Count, bytes.
    acks: u64,
    data: u64,
    /// How long the last packet that came had waited for us to read it.
    read_late_us: Micros,
    /// What the peer asks us for.
    granted_us: Micros,
}

impl Spacing {
    /// Notes that a packet which arrived at `arrived` is read now.
    pub(crate) fn note_read(&mut self, now: Micros, arrived: Micros) {
        self.read_late_us = now.saturating_sub(arrived);
    }

    /// Notes how long the acknowledgement in the last packet that came took beyond the shortest time. What waited for us
    /// to read it did not wait on its way.
    pub(crate) fn note(&mut self, back_us: Micros) {
        let back_us = back_us.saturating_sub(self.read_late_us);
        self.back_us = Some(self.back_us.map_or(back_us, |least| least.min(back_us)));
        self.acks += 1;
    }

    /// Notes that data of the peer came.
    pub(crate) fn note_data(&mut self, bytes: usize) {
        self.data += bytes as u64;
    }

    /// A round has ended. Acknowledgements come each `own_us` if nothing else is asked for.
    pub(crate) fn end_round(&mut self, now: Micros, own_us: Micros, rtt_least_us: Micros) {
        let Some(back_us) = self.back_us.take() else { return };
        let drains = back_us < std::mem::replace(&mut self.before_us, back_us);
        let (acks, data) = (std::mem::take(&mut self.acks), std::mem::take(&mut self.data));
        if data > acks * ACK_BYTES {
            self.ask(now, 0);
        } else if back_us >= (rtt_least_us / QUEUE_PART).max(QUEUE_US) {
            if drains {
                // The request takes effect.
                self.settled_at = now;
                return self.tell_again();
            }
            let most_us = (rtt_least_us / PART_MAX).min(MAX_US);
            self.ask(now, (2 * self.asked_us.max(own_us)).min(most_us));
        } else if self.asked_us > 0 && now >= self.settled_at + RELAX_US {
            let half = self.asked_us / 2;
            self.ask(now, if half > own_us { half } else { 0 });
        }
        self.tell_again();
    }

    fn tell_again(&mut self) {
        self.due |= self.tells > 0;
        self.tells = self.tells.saturating_sub(1);
    }

    fn ask(&mut self, now: Micros, asked_us: Micros) {
        self.settled_at = now;
        if self.asked_us != asked_us {
            (self.asked_us, self.tells) = (asked_us, TELLS);
        }
    }

    /// What the peer is to be told now, if anything.
    pub(crate) fn due(&self) -> Option<u32> {
        self.due.then_some(self.asked_us as u32)
    }

    pub(crate) fn told(&mut self) {
        self.due = false;
    }

    /// How far acknowledgements of the peer may be apart, beyond its own choice.
    pub(crate) fn asked_us(&self) -> Micros {
        self.asked_us
    }

    /// The peer asks for acknowledgements that are this far apart.
    pub(crate) fn grant(&mut self, us: u32) {
        self.granted_us = Micros::from(us).min(MAX_US);
    }

    /// How far our acknowledgements may be apart, beyond our own choice.
    pub(crate) fn granted_us(&self) -> Micros {
        self.granted_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_come_less_often_while_they_wait_and_more_often_again_later() {
        let (mut spacing, rtt_us) = (Spacing::default(), 100_000);
        let mut round = |now: Micros, waits: &[Micros]| {
            waits.iter().for_each(|wait| spacing.note(*wait));
            spacing.end_round(now, 1_000, rtt_us);
            let due = spacing.due();
            spacing.told();
            due
        };
        assert_eq!(round(0, &[80_000, 1_000]), None, "one that did not wait");
        assert_eq!(round(1, &[80_000, 30_000]), Some(2_000));
        let doubled: Vec<_> = (2..8).map(|at| round(at, &[80_000])).collect();
        assert_eq!(doubled, [4_000, 8_000, 16_000, 32_000, 50_000, 50_000].map(Some));
        assert_eq!([8, 9, 10].map(|at| round(at, &[80_000])), [Some(50_000), None, None], "told three times");
        assert_eq!([round(11, &[0]), round(1_000_000, &[0]), round(1_000_001, &[])], [None; 3]);
        let later: Vec<_> = (1..7).map(|at| round(10 + at * RELAX_US, &[0])).collect();
        assert_eq!(later, [25_000, 12_500, 6_250, 3_125, 1_562, 0].map(Some));
        let after = [1, 2, 3].map(|at| round(10 + 6 * RELAX_US + at, &[0]));
        assert_eq!(after, [Some(0), Some(0), None], "this may be lost, too");
    }

    #[test]
    fn acknowledgements_that_wait_behind_data_come_as_often_as_before() {
        let mut spacing = Spacing::default();
        let asked = [0, 0, 9_000, 0].map(|data| {
            spacing.note(80_000);
            spacing.note_data(data);
            spacing.end_round(0, 1_000, 100_000);
            spacing.asked_us()
        });
        assert_eq!(asked, [2_000, 4_000, 0, 2_000]);
    }

    #[test]
    fn while_the_queue_on_the_way_back_drains_nothing_more_is_asked_for() {
        let mut spacing = Spacing::default();
        let asked: Vec<_> = [80_000, 90_000, 70_000, 50_000, 50_000, 30_000]
            .map(|wait| {
                spacing.note(wait);
                spacing.end_round(0, 1_000, 100_000);
                spacing.asked_us()
            })
            .to_vec();
        assert_eq!(asked, [2_000, 4_000, 4_000, 4_000, 8_000, 8_000]);
    }

    #[test]
    fn where_acknowledgements_are_far_apart_for_the_round_trip_nothing_is_asked_for() {
        let mut spacing = Spacing::default();
        spacing.note(5_000);
        spacing.end_round(0, 250, 100);
        assert!(spacing.asked_us() <= 50);
    }

    #[test]
    fn a_peer_cannot_ask_for_a_long_time() {
        let mut spacing = Spacing::default();
        spacing.grant(u32::MAX);
        assert_eq!(spacing.granted_us(), MAX_US);
    }
}
