//! Path MTU: the largest packet that the path carries, found by probing (DPLPMTUD, RFC 8899). It neither needs nor
//! believes messages from routers.

use crate::Micros;

/// UDP payload that every path is assumed to carry (RFC 8899, 5.1.2: BASE_PLPMTU). Bytes.
pub const PAYLOAD_BASE: u32 = 1_200;
/// Length of IPv6 and UDP headers. Bytes.
pub const IP_UDP_BYTES: u32 = 48;
/// Common sizes of IP packets. Bytes.
const STEPS: [u32; 9] = [1_280, 1_400, 1_420, 1_492, 1_500, 2_048, 4_096, 8_192, 9_000];
/// Index of the most common size, which is tried first.
const COMMON: usize = 4;
/// Lost probes of one size before it counts as too large (RFC 8899, 5.1.2: MAX_PROBES). Count.
const TRIES: u8 = 3;
/// Time until failed sizes are tried again (RFC 8899, 5.1.1: PMTU_RAISE_TIMER). Microseconds (10 min).
const RAISE_US: Micros = 600_000_000;
/// Large packets lost in a row that indicate a black hole, once a small packet gets through. Count.
const HOLE: u32 = 8;

/// A rule for packet sizes. Sizes are UDP payloads in bytes.
pub trait PathMtu: Send + std::fmt::Debug {
    /// The size in use.
    fn payload(&self) -> u32;
    /// The size of a probe to send now, if any.
    fn poll_probe(&mut self, now: Micros) -> Option<u32>;
    /// When the next probe may be sent; `None` if that depends on probes in flight.
    fn poll_timeout(&self) -> Option<Micros>;
    /// A probe arrived, or was lost.
    fn on_probe(&mut self, size: u32, arrived: bool);
    /// A packet that is no probe, with this number, arrived or was lost.
    fn on_packet(&mut self, number: u64, size: u32, arrived: bool);
    /// The own interface does not carry packets of this size.
    fn on_too_long(&mut self, size: u32);
    /// Takes over a size that an earlier stream found.
    fn recall(&mut self, size: u32);
    /// Its name in compositions.
    fn name(&self) -> &'static str;
}

/// Notices that large packets no longer get through.
#[derive(Clone, Copy, Debug, Default)]
struct Hole {
    /// Large packets lost behind the newest one that arrived, and that one's number.
    lost: u32,
    newest: u64,
}

impl Hole {
    /// Takes in a packet's fate. True if small packets get through and large ones no longer do.
    fn note(&mut self, number: u64, size: u32, arrived: bool) -> bool {
        if size > PAYLOAD_BASE && arrived {
            self.lost = 0;
            self.newest = self.newest.max(number);
        } else if size > PAYLOAD_BASE {
            self.lost += u32::from(number > self.newest);
        }
        let shows = size <= PAYLOAD_BASE && arrived && self.lost >= HOLE;
        if shows {
            self.lost = 0;
        }
        shows
    }
}

/// One fixed size, for known paths. If it does not get through, 1,500 bytes (IP) are used, and then what every path
/// carries.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    payload: u32,
    hole: Hole,
}

impl Given {
    /// # Panics
    /// If `payload` is below [`PAYLOAD_BASE`].
    pub fn new(payload: u32) -> Self {
        assert!(payload >= PAYLOAD_BASE, "a path MTU below what every path carries");
        Self { payload, hole: Hole::default() }
    }

    fn shorten(&mut self) {
        let common = STEPS[COMMON] - IP_UDP_BYTES;
        self.payload = if self.payload > common { common } else { PAYLOAD_BASE };
    }
}

impl PathMtu for Given {
    fn payload(&self) -> u32 {
        self.payload
    }
    fn poll_probe(&mut self, _: Micros) -> Option<u32> {
        None
    }
    fn poll_timeout(&self) -> Option<Micros> {
        None
    }
    fn on_probe(&mut self, _: u32, _: bool) {}
    fn on_packet(&mut self, number: u64, size: u32, arrived: bool) {
        if self.hole.note(number, size, arrived) {
            self.shorten();
        }
    }
    fn on_too_long(&mut self, size: u32) {
        // Packets that left before are longer than the new payload: they shorten it once.
        if (PAYLOAD_BASE + 1..=self.payload).contains(&size) {
            self.shorten();
        }
    }
    fn recall(&mut self, _: u32) {}
    fn name(&self) -> &'static str {
        "given"
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    size: u32,
    failed: u8,
    under_way: bool,
}

/// Begins with the base. Probes for 1,500 bytes (IP) and the largest size at once, then for smaller ones.
#[derive(Clone, Debug)]
pub struct Search {
    payload: u32,
    candidates: Vec<Candidate>,
    hole: Hole,
    raise_at: Option<Micros>,
}

impl Search {
    /// Makes a search for an interface that carries UDP payloads up to `most`, behind `overhead` bytes of IP and UDP
    /// headers.
    pub fn new(most: u32, overhead: u32) -> Self {
        let mut sizes: Vec<u32> =
            STEPS.iter().map(|step| step - overhead).filter(|size| *size < most).collect();
        sizes.push(most);
        sizes.reverse();
        if let Some(at) = sizes.iter().position(|size| *size == STEPS[COMMON] - overhead) {
            let common = sizes.remove(at);
            sizes.insert(0, common);
        }
        let candidate = |size| Candidate { size, ..Default::default() };
        Self {
            payload: PAYLOAD_BASE,
            candidates: sizes.into_iter().map(candidate).collect(),
            hole: Hole::default(),
            raise_at: None,
        }
    }

    fn candidate(&mut self, size: u32) -> Option<&mut Candidate> {
        self.candidates.iter_mut().find(|candidate| candidate.size == size)
    }
}

impl PathMtu for Search {
    fn payload(&self) -> u32 {
        self.payload
    }

    fn poll_probe(&mut self, now: Micros) -> Option<u32> {
        if self.raise_at.is_some_and(|at| now >= at) {
            self.raise_at = None;
            self.candidates.iter_mut().for_each(|candidate| candidate.failed = 0);
        }
        let payload = self.payload;
        let too_large =
            self.candidates.iter().filter(|c| c.failed >= TRIES).map(|c| c.size).min().unwrap_or(u32::MAX);
        let sensible = |size: u32| size > payload && size < too_large;
        if self.candidates.iter().filter(|c| c.under_way && sensible(c.size)).count() >= 2 {
            return None;
        }
        let next = self.candidates.iter_mut().find(|c| !c.under_way && sensible(c.size));
        let Some(next) = next else {
            let idle = self.candidates.iter().all(|c| !c.under_way);
            if idle && too_large < u32::MAX && self.raise_at.is_none() {
                self.raise_at = Some(now + RAISE_US);
            }
            return None;
        };
        next.under_way = true;
        Some(next.size)
    }

    fn poll_timeout(&self) -> Option<Micros> {
        self.raise_at
    }

    fn on_probe(&mut self, size: u32, arrived: bool) {
        if let Some(candidate) = self.candidate(size) {
            candidate.under_way = false;
            candidate.failed = if arrived { 0 } else { candidate.failed + 1 };
        }
        if arrived {
            self.payload = self.payload.max(size);
            self.hole.lost = 0;
        }
    }

    fn on_packet(&mut self, number: u64, size: u32, arrived: bool) {
        if self.hole.note(number, size, arrived) {
            self.payload = PAYLOAD_BASE;
        }
    }

    fn on_too_long(&mut self, size: u32) {
        if size <= PAYLOAD_BASE {
            return;
        }
        for candidate in self.candidates.iter_mut().filter(|candidate| candidate.size >= size) {
            candidate.failed = TRIES;
        }
        if self.payload >= size {
            self.payload = PAYLOAD_BASE;
        }
    }

    fn recall(&mut self, size: u32) {
        if self.candidate(size).is_some() {
            self.payload = self.payload.max(size);
        }
    }

    fn name(&self) -> &'static str {
        "search"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes until nothing is left to probe, on a path that carries `carries`.
    fn settle(search: &mut Search, carries: u32) -> u32 {
        let mut probes = 0;
        while let Some(size) = search.poll_probe(0) {
            search.on_probe(size, size <= carries);
            probes += 1;
        }
        probes
    }

    #[test]
    fn the_usual_sizes_are_found_at_once() {
        for (carries, most) in [(8_972, 8_972), (1_472, 1_472)] {
            let mut search = Search::new(most, 28);
            assert!(settle(&mut search, carries) <= 2);
            assert_eq!(search.payload(), carries);
        }
    }

    #[test]
    fn any_other_size_is_approached_from_above_and_tried_again_later() {
        let mut search = Search::new(8_972, 28);
        assert!(settle(&mut search, 4_100) <= 8);
        assert_eq!(search.payload(), 4_096 - 28);
        let later = search.poll_timeout().expect("sizes failed");
        assert_eq!(search.poll_probe(later), Some(8_972));
        search.on_probe(8_972, true);
        assert_eq!(search.payload(), 8_972);
        let mut narrow = Search::new(8_972, 28);
        settle(&mut narrow, 1_210);
        assert_eq!(narrow.payload(), PAYLOAD_BASE);
    }

    #[test]
    fn an_interface_whose_mtu_shrinks_has_smaller_packets_at_once() {
        let mut search = Search::new(1_472, 28);
        settle(&mut search, 1_472);
        search.on_too_long(1_472);
        assert_eq!(search.payload(), PAYLOAD_BASE);
        settle(&mut search, 1_380);
        assert_eq!(search.payload(), 1_400 - 28, "what fits is found");
        search.on_too_long(PAYLOAD_BASE);
        assert_eq!(search.payload(), 1_400 - 28, "packets are never shorter than every path carries");
        let later = search.poll_timeout().expect("a size failed");
        assert_eq!(search.poll_probe(later), Some(1_472), "the MTU may grow again");
        let mut given = Given::new(8_000);
        given.on_too_long(9_000);
        assert_eq!(given.payload(), 8_000);
        given.on_too_long(8_000);
        assert_eq!(given.payload(), 1_452);
    }

    #[test]
    fn two_probes_are_under_way_at_most() {
        let mut search = Search::new(8_972, 28);
        assert_eq!((search.poll_probe(0), search.poll_probe(0)), (Some(1_472), Some(8_972)));
        assert_eq!(search.poll_probe(0), None);
    }

    #[test]
    fn a_black_hole_is_told_from_an_outage() {
        let mut search = Search::new(8_972, 28);
        settle(&mut search, 8_972);
        (0..100).for_each(|number| search.on_packet(number, 8_972, false));
        search.on_packet(100, 8_972, true);
        search.on_packet(101, 1_200, true);
        assert_eq!(search.payload(), 8_972, "nothing came for a while, then everything");
        (0..100).for_each(|number| search.on_packet(number, 8_972, false));
        search.on_packet(102, 1_200, true);
        assert_eq!(search.payload(), 8_972, "a later one has come");
        (103..103 + u64::from(HOLE)).for_each(|number| search.on_packet(number, 8_972, false));
        search.on_packet(200, 1_200, true);
        assert_eq!(search.payload(), PAYLOAD_BASE);
        assert_eq!(search.poll_probe(0), Some(1_472), "and the search begins again");
    }

    #[test]
    fn a_given_size_that_does_not_get_through_gives_way_to_smaller_ones() {
        let mut given = Given::new(8_972);
        let mut lose = |numbers: std::ops::Range<u64>| {
            numbers.clone().for_each(|number| given.on_packet(number, given.payload(), false));
            given.on_packet(numbers.end, 1_200, true);
            given.payload()
        };
        assert_eq!(lose(1..5), 8_972, "four are chance");
        assert_eq!(lose(5..10), 1_452);
        assert_eq!(lose(10..20), PAYLOAD_BASE);
        assert_eq!(lose(20..40), PAYLOAD_BASE);
    }
}
