//! Detects that this host does not read packets from its socket as fast as they come.
//!
//! If the processor is too slow, packets wait in the socket nearly all the time. When it has no room left, the system
//! drops them there. Neither is due to the path, so the peers are told ([`Strain`]). They must not take such drops for
//! losses of the path, nor send faster than this host reads.

use crate::Micros;
use crate::wire::Strain;

/// A packet that waits longer was not read in time. Microseconds (1 ms).
const WAIT_US: Micros = 1_000;
/// Period over which waiting time is summed. Microseconds (200 ms).
const PERIOD_US: Micros = 200_000;
/// Share of a period in which packets waited that shows a processor too slow, and not only busy for a moment.
const SHARE: f64 = 0.5;
/// Peers are told for this long after the last sign of overload. Microseconds (300 ms).
const TELL_US: Micros = 300_000;

/// Detects overload; the module's text says how.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// When packets were last read.
    read_at: Micros,
    /// Some packet had waited since the last [`Intake::take_lag`].
    lagged: bool,
    /// When the present period began, and how long packets waited in it.
    since: Micros,
    waited_us: Micros,
    /// Peers are told until then.
    tell_until: Micros,
    strain: Strain,
}

impl Intake {
    /// Notes a packet that is read now and that the system received at `arrived`.
    pub(crate) fn note(&mut self, now: Micros, arrived: Micros) {
        // Only the first of several packets read at one moment counts: it waited longest.
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

    /// Whether a packet read since the last call had waited. Only then can the system have dropped some.
    pub(crate) fn take_lag(&mut self) -> bool {
        std::mem::take(&mut self.lagged)
    }

    /// The system has dropped this many more packets because the socket had no room.
    pub(crate) fn note_dropped(&mut self, now: Micros, packets: u64) {
        self.strain.dropped = self.strain.dropped.wrapping_add(packets as u32);
        self.tell_until = now + TELL_US;
    }

    /// The report to peers now; `None` for nothing.
    pub(crate) fn news(&self, now: Micros) -> Option<Strain> {
        (now < self.tell_until).then_some(self.strain)
    }

    /// The counters since the start.
    pub(crate) fn strain(&self) -> Strain {
        self.strain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a packet every `every_us` for a second; each has waited `waited_us`.
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
        // When the host keeps up again, the overload ends.
        let now = read(&mut intake, now, 500, 50);
        assert!(!intake.take_lag() && intake.news(now).is_none());
    }

    #[test]
    fn who_reads_late_now_and_then_keeps_up() {
        let mut intake = Intake::default();
        let mut now = 10_000_000;
        for _ in 0..50 {
            // For 40 of 100 ms the host does something else.
            intake.note(now + 40_000, now);
            now += 100_000;
            (now - 60_000 + 100..now).step_by(200).for_each(|now| intake.note(now, now - 100));
        }
        assert_eq!((intake.news(now), intake.strain()), (None, Strain::default()));
        // Drops are reported at once.
        intake.note_dropped(now, 7);
        assert_eq!(intake.news(now), Some(Strain { busy_us: 0, dropped: 7 }));
        assert_eq!(intake.news(now + TELL_US), None);
    }
}
