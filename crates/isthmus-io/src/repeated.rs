//! Messages that a stranger, or a lasting shortage, can cause again and again: each is said now and then, with how
//! often it would have been.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Least time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// One kind of message of this process.
#[derive(Debug)]
pub(crate) struct Repeated(Mutex<State>);

#[derive(Debug)]
struct State {
    said: Option<Instant>,
    unsaid: u64,
}

impl Repeated {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State { said: None, unsaid: 0 }))
    }

    /// It has happened once more. Calls `say` with how often it did since that was last called, this time included,
    /// unless that was less than [`PAUSE`] ago.
    pub(crate) fn happened(&self, say: impl FnOnce(u64)) {
        self.happened_at(Instant::now(), say);
    }

    fn happened_at(&self, now: Instant, say: impl FnOnce(u64)) {
        let mut state = self.0.lock();
        state.unsaid += 1;
        if state.said.is_some_and(|said| now < said + PAUSE) {
            return;
        }
        state.said = Some(now);
        let count = std::mem::take(&mut state.unsaid);
        drop(state);
        say(count);
    }
}

/// The end of a line that is said now and then: nothing for the first time.
pub(crate) fn times(count: u64) -> String {
    if count > 1 { format!(" ({count} times since this was last said)") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_said_now_and_then_with_its_count() {
        let (repeated, start) = (Repeated::new(), Instant::now());
        let mut said = Vec::new();
        for ms in 0..25_000 {
            repeated.happened_at(start + Duration::from_millis(ms), |count| said.push(count));
        }
        assert_eq!(said, [1, 10_000, 10_000]);
        assert_eq!((times(1), times(7)), (String::new(), " (7 times since this was last said)".to_owned()));
    }
}
