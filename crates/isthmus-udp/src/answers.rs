//! Delayed acknowledgements: if our program usually answers soon, the acknowledgement waits and leaves with the answer.

use crate::Micros;

/// Longest delay of an acknowledgement, unless the peer asks for more (`spacing.rs`). Microseconds (1 ms).
pub(crate) const ACK_DELAY_US: Micros = 1_000;
/// Part of the round trip that an acknowledgement waits at most. It never waits longer than `ACK_DELAY_US`: the sender
/// relies on that.
const WAIT_PART: Micros = 32;
/// Answers in time, in a row, after which acknowledgements wait.
const HABIT: u8 = 2;

/// Predicts whether our program answers soon.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// When a packet came that wants an acknowledgement at once, if it is not answered yet.
    asked_at: Option<Micros>,
    /// Answers in time, in a row; at most `HABIT`.
    habit: u8,
}

impl Answers {
    /// Notes a packet that wants an acknowledgement at once. Returns how long that may wait. Microseconds.
    pub(crate) fn ask(&mut self, now: Micros, rtt_us: Micros) -> Micros {
        let wait = longest(rtt_us);
        match self.asked_at {
            Some(at) if now.saturating_sub(at) <= wait => {}
            Some(_) => (self.habit, self.asked_at) = (0, Some(now)),
            None => self.asked_at = Some(now),
        }
        if self.habit == HABIT { wait } else { 0 }
    }

    /// Notes that new data leaves.
    pub(crate) fn answer(&mut self, now: Micros, rtt_us: Micros) {
        let Some(at) = self.asked_at.take() else { return };
        let in_time = now.saturating_sub(at) <= longest(rtt_us);
        self.habit = if in_time { (self.habit + 1).min(HABIT) } else { 0 };
    }
}

fn longest(rtt_us: Micros) -> Micros {
    (rtt_us / WAIT_PART).min(ACK_DELAY_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answered_twice_in_time_is_waited_for_until_it_does_not() {
        let mut answers = Answers::default();
        let mut turn = |at: Micros, after: Micros| {
            let wait = answers.ask(at, 19_200);
            answers.answer(at + after, 19_200);
            wait
        };
        assert_eq!([turn(0, 500), turn(10_000, 600), turn(20_000, 700)], [0, 0, 600]);
        assert_eq!([turn(30_000, 1), turn(40_000, 1), turn(50_000, 1)], [0, 0, 600]);
        assert_eq!(answers.ask(60_000, 19_200), 600);
        assert_eq!(answers.ask(70_000, 19_200), 0, "it was not answered");
        assert_eq!(Answers::default().ask(0, 0), 0);
    }
}
