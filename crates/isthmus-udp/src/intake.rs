//! Whether this host takes packets from its socket as fast as they come.
//!
//! A processor that is too slow for what comes shows by that packets wait in the socket before they are read, nearly all
//! the time, and when there is no room left, are dropped there. Neither is the path's doing, so the peers are told
//! ([`Strain`]): they are not to take such drops for losses of the path, nor to send faster than is read.

use crate::Micros;
use crate::wire::Strain;

/// Packets that wait for longer are not read as fast as they come, or not at that moment. Microseconds.
const WAIT_US: Micros = 1_000;
/// Over such a time it is judged how long they did. Microseconds.
const PERIOD_US: Micros = 200_000;
/// The share of it that tells of a processor that is too slow, and not of a moment.
const SHARE: f64 = 0.5;
/// For so long after the last sign of it peers are told. Microseconds.
const TELL_US: Micros = 300_000;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// When packets were last read.
    read_at: Micros,
    /// Some had waited since that was last asked.
    lagged: bool,
    /// When the present period began, and for how long packets waited in it.
    since: Micros,
    waited_us: Micros,
    /// Until when peers are told.
    tell_until: Micros,
    strain: Strain,
}

impl Intake {
    /// A packet was read that the system had got at `arrived`.
    pub(crate) fn note(&mut self, now: Micros, arrived: Micros) {
        // Of those that are read at one moment the first has waited longest.
        if now <= self.read_at {
            return;
        }
        if now >= self.since + PERIOD_US {
            self.judge(now);
        }
        if now.saturating_sub(arrived) >= WAIT_US {
            self.lagged = true;
            self.waited_us += now - arrived.max(self.read_at);
        }
        self.read_at = now;
    }

    fn judge(&mut self, now: Micros) {
        let waited_us = std::mem::take(&mut self.waited_us);
        let since = std::mem::replace(&mut self.since, now);
        if waited_us as f64 >= SHARE * (now - since) as f64 {
            self.strain.busy_us = self.strain.busy_us.wrapping_add(waited_us as u32);
            self.tell_until = now + TELL_US;
        }
    }

    /// Whether something that was read since the last call had waited: if packets were dropped, it was then.
    pub(crate) fn take_lag(&mut self) -> bool {
        std::mem::take(&mut self.lagged)
    }

    /// The system has dropped so many packets more for want of room in the socket.
    pub(crate) fn note_dropped(&mut self, now: Micros, packets: u64) {
        self.strain.dropped = self.strain.dropped.wrapping_add(packets as u32);
        self.tell_until = now + TELL_US;
    }

    /// What peers are to be told now.
    pub(crate) fn news(&self, now: Micros) -> Option<Strain> {
        (now < self.tell_until).then_some(self.strain)
    }

    /// What was ever seen.
    pub(crate) fn strain(&self) -> Strain {
        self.strain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads for a second, every `every_us`, what has waited so long.
    fn read(intake: &mut Intake, from: Micros, every_us: Micros, waited_us: Micros) -> Micros {
        (from..from + 1_000_000).step_by(every_us as usize).for_each(|now| intake.note(now, now - waited_us));
        from + 1_000_000
    }

    #[test]
    fn packets_that_wait_all_the_time_show_a_processor_that_is_too_slow() {
        let mut intake = Intake::default();
        let now = read(&mut intake, 10_000_000, 500, 5_000);
        assert!((750_000..=1_000_000).contains(&intake.strain().busy_us), "{:?}", intake.strain());
        assert!(intake.take_lag() && intake.news(now) == Some(intake.strain()));
        // When it keeps up again, that is the end of it.
        let now = read(&mut intake, now, 500, 50);
        assert!(!intake.take_lag() && intake.news(now).is_none());
    }

    #[test]
    fn who_reads_late_now_and_then_keeps_up() {
        let mut intake = Intake::default();
        let mut now = 10_000_000;
        for _ in 0..50 {
            // 40 of 100 ms it does something else.
            intake.note(now + 40_000, now);
            now += 100_000;
            (now - 60_000 + 100..now).step_by(200).for_each(|now| intake.note(now, now - 100));
        }
        assert_eq!((intake.news(now), intake.strain()), (None, Strain::default()));
        // Drops are told at once.
        intake.note_dropped(now, 7);
        assert_eq!(intake.news(now), Some(Strain { busy_us: 0, dropped: 7 }));
        assert_eq!(intake.news(now + TELL_US), None);
    }
}
