//! Whoever does not run for a moment: hosts and emulators on busy machines.

use isthmus_lab::rng::Rng;
use isthmus_udp::Micros;

/// Moments in which something stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StallSpec {
    /// From one to the next, on average. Microseconds; 0: never.
    pub(crate) every_us: Micros,
    /// How long one lasts: uniformly between these. Microseconds.
    pub(crate) least_us: Micros,
    pub(crate) most_us: Micros,
}

/// The same as they happen.
#[derive(Debug)]
pub(crate) struct Stalls {
    spec: StallSpec,
    rng: Rng,
    from: Micros,
    until: Micros,
}

impl Stalls {
    pub(crate) fn new(spec: StallSpec, seed: u64, stream: u64) -> Self {
        Self { spec, rng: Rng::new(seed, 1_000 + stream), from: 0, until: 0 }
    }

    /// Until when it stands still, if it does.
    pub(crate) fn until(&mut self, now: Micros) -> Option<Micros> {
        if self.spec.every_us == 0 {
            return None;
        }
        while self.until <= now {
            if self.until == 0 {
                self.until = now;
            }
            let lasts = self.spec.least_us + self.rng.up_to(self.spec.most_us - self.spec.least_us);
            self.from = self.until + self.rng.up_to(2 * self.spec.every_us);
            self.until = self.from + lasts.max(1);
        }
        (self.from <= now).then_some(self.until)
    }
}
