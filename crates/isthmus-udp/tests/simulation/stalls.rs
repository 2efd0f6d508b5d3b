//! Stalls of hosts and of emulated links on busy machines.

use isthmus_lab::rng::Rng;
use isthmus_udp::Micros;

/// How often something stalls, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StallSpec {
    /// Mean time from one stall to the next. Microseconds; 0: never.
    pub(crate) every_us: Micros,
    /// The length of a stall is uniform between these. Microseconds.
    pub(crate) least_us: Micros,
    pub(crate) most_us: Micros,
}

/// The sequence of stalls.
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

    /// The end of the present stall. `None` outside of stalls.
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
