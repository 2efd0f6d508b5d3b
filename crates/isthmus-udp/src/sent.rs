//! Sent packets by number, and their fates: in flight, acknowledged or lost.

use crate::Micros;
use crate::detection::LossDetection;
use crate::wire::Ack;

/// Most packet numbers that can be open at once. As many as the receiver remembers (`received_numbers.rs`).
pub(crate) const OPEN_MAX: u64 = 1 << 17;
/// Slots at first, a power of two. They double when they are full.
const ROOM_MIN: usize = 256;

/// Content of a packet, as far as it matters for the packet's fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Nothing that is retransmitted.
    #[default]
    Ping,
    /// Padding to a full packet, to measure the path.
    Train,
    /// Stream bytes from `offset` on; `fin` if the stream ends behind them.
    Stream { offset: u64, len: u32, fin: bool },
    /// Padding to `size` bytes: a probe for a larger path MTU.
    Probe { size: u32 },
}

/// One transmission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transmission {
    pub(crate) sent_at: Micros,
    pub(crate) carried: Carried,
    /// Bytes that it took on the link.
    pub(crate) wire: u32,
    /// Number of times that its bytes were lost before.
    pub(crate) attempt: u8,
    /// Distance to the next packet number with the same bytes; 0 if there is none.
    pub(crate) next_copy: u32,
    /// It repeats bytes that are in flight.
    pub(crate) copy: bool,
    /// There was nothing more to send after it.
    pub(crate) app_limited: bool,
    /// The application had paused before it.
    pub(crate) resumed: bool,
}

/// A packet number and its transmission.
pub(crate) type Fate = (u64, Transmission);

/// The packets whose fates an acknowledgement showed.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    pub(crate) acked: Vec<Fate>,
    pub(crate) lost: Vec<Fate>,
    /// Declared lost, but arrived after all.
    pub(crate) late: Vec<Fate>,
}

impl Fates {
    pub(crate) fn clear(&mut self) {
        self.acked.clear();
        self.lost.clear();
        self.late.clear();
    }
}

/// One bit for each of 64 packet numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    /// In flight: neither acknowledged nor declared lost.
    open: u64,
    /// The peer said that it has not arrived.
    denied: u64,
    /// Declared lost.
    lost: u64,
}

/// Rings of transmissions and of their fates, indexed by packet number.
#[derive(Debug)]
pub(crate) struct Sent {
    slots: Vec<Transmission>,
    flags: Vec<Flags>,
    /// No number below is open.
    floor: u64,
    /// The floor that the peer was told.
    floor_told: u64,
    next: u64,
    in_flight: u64,
    open: u64,
    /// Largest number acknowledged, and when it was sent.
    largest: Option<(u64, Micros)>,
}

impl Default for Sent {
    fn default() -> Self {
        Self {
            slots: vec![Transmission::default(); ROOM_MIN],
            flags: vec![Flags::default(); ROOM_MIN / 64],
            floor: 0,
            floor_told: 0,
            next: 0,
            in_flight: 0,
            open: 0,
            largest: None,
        }
    }
}

impl Sent {
    /// The number of the next transmission.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// The fates of all numbers below this are known.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// How far the floor has risen since the peer was told of it. Packet numbers.
    pub(crate) fn floor_untold(&self) -> u64 {
        self.floor - self.floor_told
    }

    /// The floor. The peer is told now.
    pub(crate) fn tell_floor(&mut self) -> u64 {
        self.floor_told = self.floor;
        self.floor
    }

    /// Bytes in flight (wire).
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Packets in flight.
    pub(crate) fn open(&self) -> u64 {
        self.open
    }

    /// Whether there is no room for another number.
    pub(crate) fn is_full(&self) -> bool {
        self.next - self.floor >= OPEN_MAX - 64
    }

    /// Notes a transmission under the next number. Only an ack-eliciting one (RFC 9000, 13.2.1) is in flight.
    pub(crate) fn note(&mut self, transmission: Transmission, eliciting: bool) {
        // One word of slack, so that the oldest and the newest word never share a slot.
        if (self.next - self.floor) as usize + 64 >= self.slots.len() {
            self.grow();
        }
        let number = self.next;
        self.next += 1;
        if number.is_multiple_of(64) {
            let word = self.word(number / 64);
            self.flags[word] = Flags::default();
        }
        if eliciting {
            self.in_flight += u64::from(transmission.wire);
            self.open += 1;
            let word = self.word(number / 64);
            self.flags[word].open |= bit(number);
        }
        let slot = self.slot(number);
        self.slots[slot] = transmission;
        self.raise_floor();
    }

    /// The transmission with this number, if it is still remembered.
    pub(crate) fn transmission(&self, number: u64) -> Option<&Transmission> {
        self.remembers(number).then(|| &self.slots[self.slot(number)])
    }

    /// The transmission this many numbers behind the newest that was acknowledged.
    pub(crate) fn beyond_acknowledged(&self, count: u64) -> Option<&Transmission> {
        self.transmission(self.largest?.0 + count)
    }

    /// Whether a number that is still remembered is in flight.
    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.flags[self.word(number / 64)].open & bit(number) != 0
    }

    /// Marks the last transmission: there is nothing more to send for now.
    pub(crate) fn note_idle(&mut self) {
        if let Some(last) = self.next.checked_sub(1) {
            let slot = self.slot(last);
            self.slots[slot].app_limited = true;
        }
    }

    /// Declares everything in flight lost.
    pub(crate) fn give_up(&mut self, fates: &mut Fates) {
        for word in self.floor / 64..self.next.div_ceil(64) {
            let index = self.word(word);
            let open = std::mem::take(&mut self.flags[index].open);
            fates.lost.extend(numbers(word, open).map(|number| (number, self.slots[self.slot(number)])));
        }
        (self.in_flight, self.open) = (0, 0);
        self.raise_floor();
    }

    /// Links a transmission with a later one of the same bytes.
    pub(crate) fn link_copy(&mut self, mut number: u64, copy: u64) {
        while self.remembers(number) {
            let slot = self.slot(number);
            if self.slots[slot].next_copy == 0 {
                self.slots[slot].next_copy = (copy - number) as u32;
                return;
            }
            number += u64::from(self.slots[slot].next_copy);
        }
    }

    /// Whether a later transmission of the same bytes is in flight.
    pub(crate) fn copy_is_open(&self, (mut number, mut transmission): Fate) -> bool {
        while transmission.next_copy > 0 {
            number += u64::from(transmission.next_copy);
            if !self.remembers(number) {
                return false;
            }
            if self.flags[self.word(number / 64)].open & bit(number) != 0 {
                return true;
            }
            transmission = self.slots[self.slot(number)];
        }
        false
    }

    /// Takes in an acknowledgement. Numbers that were never sent are ignored.
    pub(crate) fn acknowledge(&mut self, ack: &Ack<'_>, fates: &mut Fates) {
        if ack.largest >= self.next {
            return;
        }
        for (word, bits) in ack.sweep.iter().chain(ack.recent.iter()) {
            self.take_word(word, bits, ack.largest, fates);
        }
        if let Some((number, newest)) = fates.acked.iter().max_by_key(|(number, _)| *number) {
            let beyond = self.largest.is_none_or(|(largest, _)| *number > largest);
            if beyond {
                self.largest = Some((*number, newest.sent_at));
            }
        }
        self.raise_floor();
    }

    fn take_word(&mut self, word: u64, bits: u64, largest: u64, fates: &mut Fates) {
        let remembered = (self.next - 1) / 64 - word.min((self.next - 1) / 64) < self.flags.len() as u64;
        if !remembered || word > largest / 64 {
            return;
        }
        let told = if word == largest / 64 { u64::MAX >> (63 - largest % 64) } else { u64::MAX };
        let index = self.word(word);
        let flags = &mut self.flags[index];
        let (acked, late) = (flags.open & bits, flags.lost & bits);
        flags.open &= !acked;
        flags.lost &= !late;
        flags.denied |= flags.open & told & !bits;
        for number in numbers(word, acked) {
            let transmission = self.slots[self.slot(number)];
            self.in_flight -= u64::from(transmission.wire);
            self.open -= 1;
            fates.acked.push((number, transmission));
        }
        fates.late.extend(numbers(word, late).map(|number| (number, self.slots[self.slot(number)])));
    }

    /// Declares packets lost if the rule says so and the peer said that they have not arrived. A packet that was sent
    /// `stale_us` before the newest acknowledged one is lost without the peer's word: all acknowledgements that told of
    /// it may have been lost.
    pub(crate) fn detect(&mut self, rule: &dyn LossDetection, stale_us: Micros, fates: &mut Fates) {
        let Some((largest, largest_sent_at)) = self.largest else { return };
        'words: for word in self.floor / 64..=largest / 64 {
            let index = self.word(word);
            for number in numbers(word, self.flags[index].open) {
                let transmission = self.slots[self.slot(number)];
                let behind_us = largest_sent_at.saturating_sub(transmission.sent_at);
                if number >= largest || !rule.is_lost(largest - number, behind_us) {
                    break 'words; // later ones are less far behind
                }
                if self.flags[index].denied & bit(number) == 0 && behind_us < stale_us {
                    continue;
                }
                self.flags[index].open &= !bit(number);
                self.flags[index].lost |= bit(number);
                self.in_flight -= u64::from(transmission.wire);
                self.open -= 1;
                fates.lost.push((number, transmission));
            }
        }
        self.raise_floor();
    }

    /// Distance of a transmission behind the largest acknowledged number, in packets and time.
    pub(crate) fn behind(&self, (number, transmission): &Fate) -> (u64, Micros) {
        self.largest.map_or((0, 0), |(largest, sent_at)| {
            (largest.saturating_sub(*number), sent_at.saturating_sub(transmission.sent_at))
        })
    }

    fn raise_floor(&mut self) {
        while self.floor < self.next {
            let open = self.flags[self.word(self.floor / 64)].open >> (self.floor % 64);
            if open != 0 {
                self.floor += u64::from(open.trailing_zeros());
                return;
            }
            self.floor = (self.floor / 64 + 1) * 64;
        }
        self.floor = self.next;
    }

    /// Whether no later number uses the slot of this one.
    fn remembers(&self, number: u64) -> bool {
        number < self.next && (self.next - 1) / 64 - number / 64 < self.flags.len() as u64
    }

    fn grow(&mut self) {
        let (slots, flags) = (self.slots.len() * 2, self.flags.len() * 2);
        let mut larger = Self {
            slots: vec![Transmission::default(); slots],
            flags: vec![Flags::default(); flags],
            ..*self
        };
        for word in self.floor / 64..self.next.div_ceil(64) {
            let (to, from) = (larger.word(word), self.word(word));
            larger.flags[to] = self.flags[from];
        }
        // From the word's start on: packets there that were declared lost may still arrive.
        for number in self.floor / 64 * 64..self.next {
            let (to, from) = (larger.slot(number), self.slot(number));
            larger.slots[to] = self.slots[from];
        }
        *self = larger;
    }

    fn slot(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    fn word(&self, word: u64) -> usize {
        word as usize & (self.flags.len() - 1)
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

fn numbers(word: u64, mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let at = u64::from(bits.trailing_zeros());
        bits &= bits - 1;
        Some(word * 64 + at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detection::Fixed;
    use crate::received_numbers::ReceivedNumbers;
    use crate::wire::{WORDS_MAX, Words};

    fn send(sent: &mut Sent, count: u64) {
        for _ in 0..count {
            let sent_at = sent.next_number();
            sent.note(Transmission { sent_at, wire: 10, ..Default::default() }, true);
        }
    }

    fn answer(sent: &mut Sent, came: &mut ReceivedNumbers, fates: &mut Fates) {
        let (recent, sweep) = came.spans(WORDS_MAX);
        let (mut recent_bytes, mut sweep_bytes) = (Vec::new(), Vec::new());
        came.copy(recent, &mut recent_bytes);
        came.copy(sweep, &mut sweep_bytes);
        let ack = Ack {
            largest: came.largest().expect("something came"),
            arrived: 0,
            delay_us: 0,
            upto: 0,
            window: 0,
            recent: Words { first: recent.first, bytes: &recent_bytes },
            sweep: Words { first: sweep.first, bytes: &sweep_bytes },
        };
        sent.acknowledge(&ack, fates);
        sent.detect(&Fixed::default(), Micros::MAX, fates);
        came.raise_floor(sent.floor());
    }

    #[test]
    fn with_rare_acknowledgements_every_fate_is_found_out_once() {
        let (mut sent, mut came, mut fates) = (Sent::default(), ReceivedNumbers::default(), Fates::default());
        let arrives = |number: u64| number % 7 != 2;
        for burst in 0..40 {
            let from = sent.next_number();
            send(&mut sent, 3_000);
            (from..from + 3_000).filter(|n| arrives(*n)).for_each(|n| {
                came.note(n);
            });
            // Most acknowledgements are lost.
            if burst % 13 == 0 {
                answer(&mut sent, &mut came, &mut fates);
            } else {
                came.spans(WORDS_MAX);
            }
        }
        for _ in 0..200 {
            answer(&mut sent, &mut came, &mut fates);
        }
        let numbers = |fates: &[Fate]| {
            let mut numbers: Vec<u64> = fates.iter().map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            numbers
        };
        let (acked, lost) = (numbers(&fates.acked), numbers(&fates.lost));
        assert!(acked.into_iter().eq((0..120_000).filter(|n| arrives(*n))));
        // The last three are too close to the newest to be declared lost.
        let expected: Vec<u64> = (0..119_997).filter(|n| !arrives(*n)).collect();
        let differs = lost.iter().zip(&expected).find(|(lost, expected)| lost != expected);
        assert_eq!((lost.len(), differs), (expected.len(), None));
        assert!(fates.late.is_empty());
        assert_eq!(sent.in_flight(), 10 * sent.open());
        assert!(sent.floor() > 119_990);
    }

    #[test]
    fn what_comes_late_is_known_as_such() {
        let (mut sent, mut came, mut fates) = (Sent::default(), ReceivedNumbers::default(), Fates::default());
        send(&mut sent, 100);
        (0..100).filter(|n| *n != 10).for_each(|n| {
            came.note(n);
        });
        answer(&mut sent, &mut came, &mut fates);
        assert_eq!(fates.lost.len(), 1);
        came.note(10);
        answer(&mut sent, &mut came, &mut fates);
        assert_eq!(fates.late.iter().map(|fate| sent.behind(fate)).collect::<Vec<_>>(), [(89, 89)]);
        assert_eq!(sent.open(), 0);
    }

    #[test]
    fn what_was_lost_is_remembered_while_the_ring_grows() {
        let (mut sent, mut came, mut fates) = (Sent::default(), ReceivedNumbers::default(), Fates::default());
        send(&mut sent, 100);
        (0..100).filter(|n| *n != 70 && *n != 80).for_each(|n| {
            came.note(n);
        });
        answer(&mut sent, &mut came, &mut fates);
        send(&mut sent, 1_000);
        came.note(70);
        came.note(110);
        answer(&mut sent, &mut came, &mut fates);
        assert_eq!(fates.late.iter().map(|(_, late)| late.wire).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn a_copy_under_way_is_known() {
        let (mut sent, mut came, mut fates) = (Sent::default(), ReceivedNumbers::default(), Fates::default());
        send(&mut sent, 100);
        sent.link_copy(10, 50);
        sent.link_copy(10, 98);
        (0..98).filter(|n| *n != 10 && *n != 50).for_each(|n| {
            came.note(n);
        });
        answer(&mut sent, &mut came, &mut fates);
        assert_eq!(fates.lost.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [10, 50]);
        assert!(fates.lost.iter().all(|fate| sent.copy_is_open(*fate)), "98 is under way");
        came.note(98);
        came.note(99);
        answer(&mut sent, &mut came, &mut fates);
        assert!(!sent.copy_is_open(fates.lost[0]));
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_is_ignored() {
        let (mut sent, mut came, mut fates) = (Sent::default(), ReceivedNumbers::default(), Fates::default());
        send(&mut sent, 10);
        came.note(11);
        answer(&mut sent, &mut came, &mut fates);
        assert!(fates.acked.is_empty() && fates.lost.is_empty());
    }
}
