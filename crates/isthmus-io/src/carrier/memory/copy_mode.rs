//! Chooses who copies long pieces: both ends, through the ring, or the reader alone, from the writer's memory.
//!
//! The quicker mode depends on the host and on where the two processes run. On some hosts the system call takes long
//! for each page of another process; on others a cache line that one processor has written gets to the other slowly. So
//! the reader tries both modes on arriving pieces and keeps the quicker one. It tries the other again now and then,
//! less and less often. If both are about as quick, it copies alone, so that the writer's processor is free.

use std::time::{Duration, Instant};

/// A pause longer than this plus [`PAUSE_A_BYTE`] per byte is not due to the copying, and is not measured.
const PAUSE: Duration = Duration::from_micros(50);
/// See [`PAUSE`].
const PAUSE_A_BYTE: Duration = Duration::from_nanos(4);
/// Bytes before a new mode is measured: until then, pieces lie in the caches as the other mode left them.
const SETTLED: u64 = 32 << 20;
/// Bytes of one measurement.
const TRIAL: u64 = 4 << 20;
/// Measurements of a mode. Count; the best counts, since other programs may run during one.
const TRIALS: u32 = 2;
/// Copying at both ends is worth the writer's time if it is this many times quicker.
const WORTH: f64 = 1.15;
/// Bytes before the other mode is tried again; doubled each time.
const STAY: u64 = 1 << 30;
/// Most bytes before the other mode is tried again.
const MAX_STAY: u64 = 16 * STAY;

/// The end or ends that copy long pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMode {
    /// Both ends copy, at the same time.
    Both,
    /// The reader copies alone.
    Reader,
}

impl CopyMode {
    fn other(self) -> Self {
        match self {
            Self::Both => Self::Reader,
            Self::Reader => Self::Both,
        }
    }

    /// This mode must be this many times quicker than one that costs the writer nothing.
    fn costs(self) -> f64 {
        match self {
            Self::Both => WORTH,
            Self::Reader => 1.0,
        }
    }
}

/// The reader's measurements.
#[derive(Debug)]
pub(super) struct CopyTrial {
    mode: CopyMode,
    /// The mode was chosen, and is not only being tried.
    chosen: bool,
    /// Bytes in this mode so far.
    spent: u64,
    /// Bytes before the other mode is tried.
    stay: u64,
    /// Bytes that were measured.
    bytes: u64,
    /// Time that they took.
    busy: Duration,
    /// Measurements of the mode. Count.
    trials: u32,
    /// The best result. Bytes/s divided by [`CopyMode::costs`].
    best: f64,
    /// The last result of the other mode.
    other: Option<f64>,
    /// Time of the last arrival, while times are measured.
    noted: Option<Instant>,
}

impl Default for CopyTrial {
    /// Both copy at first.
    fn default() -> Self {
        Self {
            mode: CopyMode::Both,
            chosen: false,
            spent: 0,
            stay: STAY,
            bytes: 0,
            busy: Duration::ZERO,
            trials: 0,
            best: 0.0,
            other: None,
            noted: None,
        }
    }
}

impl CopyTrial {
    pub(super) fn mode(&self) -> CopyMode {
        self.mode
    }

    /// Notes that `bytes` of a long piece have just come in this mode. True if the mode changes.
    pub(super) fn note(&mut self, mode: CopyMode, bytes: usize) -> bool {
        let now = self.is_measuring().then(Instant::now);
        let before = std::mem::replace(&mut self.noted, now);
        let busy = now.zip(before).map(|(now, before)| now - before);
        self.judge(mode, bytes as u64, busy.filter(|busy| *busy < PAUSE + PAUSE_A_BYTE * bytes as u32))
    }

    /// Whether times are being measured.
    fn is_measuring(&self) -> bool {
        self.spent >= if self.chosen { self.stay } else { SETTLED }
    }

    /// Like [`CopyTrial::note`], with the time that the bytes took, if known.
    fn judge(&mut self, mode: CopyMode, bytes: u64, busy: Option<Duration>) -> bool {
        // Pieces that were under way when the mode changed say nothing.
        if mode != self.mode {
            return false;
        }
        let measured = busy.filter(|_| self.is_measuring());
        self.spent += bytes;
        if let Some(busy) = measured {
            self.bytes += bytes;
            self.busy += busy;
        }
        if self.bytes < TRIAL {
            return false;
        }
        let rate = self.bytes as f64 / self.busy.as_secs_f64().max(1e-9) / self.mode.costs();
        (self.bytes, self.busy) = (0, Duration::ZERO);
        (self.trials, self.best) = (self.trials + 1, self.best.max(rate));
        if self.trials < TRIALS {
            return false;
        }
        let best = std::mem::take(&mut self.best);
        (self.spent, self.trials) = (0, 0);
        let tried = !self.chosen;
        match self.other.filter(|_| tried) {
            Some(other) if other <= best => {
                // The mode under trial is the quicker one: keep it.
                (self.chosen, self.stay) = (true, STAY);
                return false;
            }
            Some(_) => self.stay = (2 * self.stay).min(MAX_STAY),
            None => {}
        }
        (self.mode, self.chosen, self.other) = (self.mode.other(), tried && self.other.is_some(), Some(best));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes until a mode's speed is known.
    const KNOWN: u64 = SETTLED + TRIALS as u64 * TRIAL;

    /// Sends `total` bytes, in each mode at its own speed (bytes/s); returns how much went in each.
    fn send(trial: &mut CopyTrial, total: u64, both: f64, reader: f64) -> (u64, u64) {
        const PIECE: u64 = 64 << 10;
        let (mut by_both, mut by_reader) = (0, 0);
        for _ in 0..total / PIECE {
            let mode = trial.mode();
            let (speed, by) = match mode {
                CopyMode::Both => (both, &mut by_both),
                CopyMode::Reader => (reader, &mut by_reader),
            };
            *by += PIECE;
            let busy = trial.is_measuring().then(|| Duration::from_secs_f64(PIECE as f64 / speed));
            let before = trial.mode();
            assert_eq!(trial.judge(mode, PIECE, busy), trial.mode() != before);
        }
        (by_both, by_reader)
    }

    #[test]
    fn the_quicker_way_is_kept_to_and_the_other_one_tried_less_and_less_often() {
        for (both, reader) in [(7e9, 9e9), (9e9, 7e9), (3e9, 12e9), (7.5e9, 7e9)] {
            let mut trial = CopyTrial::default();
            let of = |(by_both, by_reader)| {
                if WORTH * reader > both { (by_reader, by_both) } else { (by_both, by_reader) }
            };
            let (well, badly) = of(send(&mut trial, 4 << 30, both, reader));
            assert!(badly <= 3 * KNOWN && badly < well / 20, "{both} {reader}: {well} {badly}");
            let (well, badly) = of(send(&mut trial, 64 << 30, both, reader));
            assert!(badly <= 5 * KNOWN && badly < well / 300, "{both} {reader}: {well} {badly}");
        }
    }

    #[test]
    fn a_host_that_changes_is_followed() {
        let mut trial = CopyTrial::default();
        send(&mut trial, 40 << 30, 7e9, 2e9);
        let (by_both, by_reader) = send(&mut trial, 40 << 30, 2e9, 7e9);
        assert!(by_both <= MAX_STAY + 2 * KNOWN && by_reader > by_both, "{by_both} {by_reader}");
        let (by_both, by_reader) = send(&mut trial, 40 << 30, 9e9, 5e9);
        assert!(by_reader <= MAX_STAY + 2 * KNOWN && by_both > by_reader, "{by_both} {by_reader}");
    }

    #[test]
    fn what_comes_by_the_other_way_is_not_counted() {
        let mut trial = CopyTrial::default();
        for _ in 0..1000 {
            assert!(!trial.judge(CopyMode::Reader, TRIAL, Some(Duration::from_secs(1))));
        }
        assert_eq!((trial.spent, trial.mode()), (0, CopyMode::Both));
    }
}
