//! A link: two ends, the bytes between them, and programs that write and read lanes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::LazyLock;

use isthmus_mux::{Event, Expect, HEADER, LaneId, Limits, Mux, Read, Written};

use isthmus_lab::rng::SplitMix64;

/// What the carrier takes before it says that it is full. Bytes.
pub(crate) const CARRIER: usize = 64 << 10;
/// A turn of the programs. Microseconds.
const TURN: u64 = 50;

/// How a program reads a lane.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    /// At most so much at once, and then not for so long. Microseconds.
    size: usize,
    pause: u64,
    /// It gives the lane up once it has read so much.
    until: Option<u64>,
}

impl Reader {
    pub(crate) fn eager() -> Self {
        Self::paced(1 << 20, 0)
    }

    pub(crate) fn paced(size: usize, pause: u64) -> Self {
        Self { size, pause, until: None }
    }

    /// Until all others have come to their end.
    pub(crate) fn never() -> Self {
        Self { size: 0, pause: 0, until: None }
    }

    pub(crate) fn until(bytes: u64) -> Self {
        Self { until: Some(bytes), ..Self::paced(10_000, 100) }
    }
}

/// A program's side of a lane.
struct Side {
    reader: Reader,
    reads_at: u64,
    /// As events told, until the opposite was found.
    readable: bool,
    writable: bool,
    got: u64,
    got_end: Option<u64>,
    /// What is to be written, and was; then the lane is finished, or abandoned.
    len: Option<u64>,
    wrote: u64,
    abandons: bool,
    over: bool,
}

/// One direction of the carrier.
#[derive(Default)]
struct Wire {
    /// What is being written, as far as the carrier has not taken it, and arrivals by time.
    taken_at: u64,
    arrivals: BTreeMap<(u64, u64), Vec<u8>>,
    number: u64,
}

/// Two ends that share a carrier.
pub(crate) struct MuxPair {
    ends: [Mux; 2],
    limits: [Limits; 2],
    wires: [Wire; 2],
    /// What was read of a header, and what is expected.
    headers: [Vec<u8>; 2],
    expects: [Expect; 2],
    sides: [HashMap<LaneId, Side>; 2],
    readers: HashMap<LaneId, Reader>,
    /// What was written to lanes before the end that accepts them knew of them.
    later: [VecDeque<(LaneId, u64, bool)>; 2],
    now: u64,
    delay: u64,
    rate: f64,
    rng: SplitMix64,
    buffer: Vec<u8>,
    finishing: bool,
}

/// Bytes of which every lane has its own part, over and over.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = SplitMix64::new(99);
    let once: Vec<u8> = (0..PERIOD).map(|_| rng.word() as u8).collect();
    once.iter().cycle().take(PERIOD + BUFFER).copied().collect()
});
const PERIOD: usize = 65_521;
const BUFFER: usize = 1 << 20;

/// What goes on a lane from one end at a place. `len` of at most [`BUFFER`] bytes.
fn pattern(lane: LaneId, from: usize, at: u64, len: usize) -> &'static [u8] {
    let start = (at as usize + lane.0 as usize * 1009 + from * 7919) % PERIOD;
    &PATTERN[start..start + len]
}

impl MuxPair {
    pub(crate) fn new(seed: u64, limits: [Limits; 2], delay: u64, rate: f64) -> Self {
        Self {
            ends: [Mux::new(true, limits[0]), Mux::new(false, limits[1])],
            limits,
            wires: Default::default(),
            headers: Default::default(),
            expects: [Expect::Header; 2],
            sides: Default::default(),
            readers: HashMap::new(),
            later: Default::default(),
            now: 0,
            delay,
            rate,
            rng: SplitMix64::new(seed ^ 0xabcd),
            buffer: vec![0; BUFFER],
            finishing: false,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn mux(&mut self, end: usize) -> &mut Mux {
        &mut self.ends[end]
    }

    /// Opens a lane whose two readers are as `reader` says.
    pub(crate) fn open_with(
        &mut self,
        end: usize,
        mut reader: impl FnMut(&mut SplitMix64) -> Reader,
    ) -> Option<LaneId> {
        let lane = self.ends[end].open()?;
        let (own, other) = (reader(&mut self.rng), reader(&mut self.rng));
        self.sides[end].insert(lane, Side::new(own));
        self.readers.insert(lane, other);
        Some(lane)
    }

    /// Writes so much, and then the end.
    pub(crate) fn send(&mut self, end: usize, lane: LaneId, len: u64) {
        self.plan(end, lane, len, false);
    }

    /// Writes so much, and then gives the lane up.
    pub(crate) fn abandon(&mut self, end: usize, lane: LaneId, len: u64) {
        self.plan(end, lane, len, true);
    }

    fn plan(&mut self, end: usize, lane: LaneId, len: u64, abandons: bool) {
        match self.sides[end].get_mut(&lane) {
            Some(side) => (side.len, side.abandons) = (Some(len), abandons),
            None => self.later[end].push_back((lane, len, abandons)),
        }
    }

    pub(crate) fn received(&self, end: usize, lane: LaneId) -> u64 {
        self.sides[end].get(&lane).map_or(0, |side| side.got)
    }

    pub(crate) fn has_finished(&self, end: usize, lane: LaneId) -> bool {
        self.sides[end].get(&lane).is_some_and(|side| side.got_end.is_some())
    }

    pub(crate) fn finished_at(&self, end: usize, lane: LaneId) -> u64 {
        self.sides[end][&lane].got_end.expect("finished")
    }

    /// What an end holds of what came. Bytes; counted by what the other end has in use.
    pub(crate) fn held(&mut self, end: usize) -> u64 {
        let other = 1 - end;
        let pool = self.limits[end].pool - self.ends[other].counters().credit;
        pool + if pool > 0 { u64::from(self.limits[end].base) * self.ends[end].lanes() as u64 } else { 0 }
    }

    pub(crate) fn run_for(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }

    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let limit = self.now + 600_000_000;
        while !done(self) {
            self.step();
            assert!(self.now < limit, "it does not come to an end");
        }
    }

    /// Until all lanes have come to their end; those who stand still read, too.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
        self.run_until(|link| {
            link.wires.iter().all(|wire| wire.arrivals.is_empty())
                && link.sides.iter().flat_map(HashMap::values).all(|side| side.over)
                && link.ends.iter().all(Mux::is_quiet)
        });
    }

    /// Nothing is left of any lane.
    pub(crate) fn expect_rest(&mut self) {
        for end in 0..2 {
            assert_eq!(self.ends[end].lanes(), 0);
            let counters = self.ends[end].counters();
            assert_eq!((counters.credit, counters.queued), (self.limits[1 - end].pool, 0));
        }
    }

    fn step(&mut self) {
        for end in 0..2 {
            self.arrive(end);
            self.events(end);
            self.programs(end);
            self.depart(end);
        }
        let soon = self.now + TURN;
        let idle = !self.sides.iter().flat_map(HashMap::values).any(|side| !side.over);
        let next = self.wires.iter().filter_map(|wire| wire.arrivals.keys().next()).map(|key| key.0).min();
        self.now = if idle { next.unwrap_or(soon).max(soon) } else { soon };
    }

    fn depart(&mut self, end: usize) {
        let wire = &mut self.wires[end];
        let ahead = (CARRIER as f64 / self.rate) as u64;
        while wire.taken_at <= self.now + ahead
            && let Some(piece) = self.ends[end].poll_output()
        {
            wire.taken_at = wire.taken_at.max(self.now);
            // The carrier cuts where it likes.
            let mut bytes = piece.filled();
            while !bytes.is_empty() {
                let part = bytes.len().min(1 + self.rng.below(40_000) as usize);
                wire.taken_at += (part as f64 / self.rate).ceil() as u64;
                wire.number += 1;
                wire.arrivals.insert((wire.taken_at + self.delay, wire.number), bytes[..part].to_vec());
                bytes = &bytes[part..];
            }
            self.ends[end].give_piece(piece);
        }
    }

    fn arrive(&mut self, end: usize) {
        let now = self.now;
        while let Some(entry) =
            self.wires[1 - end].arrivals.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let bytes = entry.remove();
            self.take_in(end, &bytes);
        }
    }

    fn take_in(&mut self, end: usize, mut bytes: &[u8]) {
        let mux = &mut self.ends[end];
        while !bytes.is_empty() {
            let taken = match self.expects[end] {
                Expect::Header => {
                    let header = &mut self.headers[end];
                    let part = bytes.len().min(HEADER - header.len());
                    header.extend_from_slice(&bytes[..part]);
                    if let Ok(whole) = header[..].try_into() {
                        self.expects[end] = mux.on_header(whole).expect("no fault");
                        header.clear();
                    }
                    part
                }
                Expect::Payload(left) => {
                    let mut piece = mux.take_piece();
                    let room = piece.room(left);
                    let part = room.len().min(bytes.len());
                    room[..part].copy_from_slice(&bytes[..part]);
                    piece.fill(part);
                    self.expects[end] = mux.on_payload(piece).expect("no fault");
                    part
                }
            };
            bytes = &bytes[taken..];
        }
    }

    fn events(&mut self, end: usize) {
        while let Some(event) = self.ends[end].poll_event() {
            let (Event::Accepted(lane) | Event::Readable(lane) | Event::Writable(lane)) = event else {
                continue;
            };
            if let Event::Accepted(lane) = event {
                self.sides[end].insert(lane, Side::new(self.readers[&lane]));
            }
            let Some(side) = self.sides[end].get_mut(&lane) else { continue };
            match event {
                Event::Readable(_) => side.readable = true,
                _ => side.writable = true,
            }
        }
        for (lane, len, abandons) in std::mem::take(&mut self.later[end]) {
            self.plan(end, lane, len, abandons);
        }
    }

    fn programs(&mut self, end: usize) {
        let (mux, now) = (&mut self.ends[end], self.now);
        let buffer = &mut self.buffer;
        for (lane, side) in self.sides[end].iter_mut().filter(|(_, side)| !side.over) {
            if self.finishing {
                side.reader = Reader::eager();
                side.len.get_or_insert(0);
            }
            side.write(mux, *lane, end);
            side.read(mux, *lane, 1 - end, now, buffer);
            side.close(mux, *lane);
        }
    }
}

impl Side {
    fn new(reader: Reader) -> Self {
        Self {
            reader,
            reads_at: 0,
            readable: false,
            writable: true,
            got: 0,
            got_end: None,
            len: None,
            wrote: 0,
            abandons: false,
            over: false,
        }
    }

    fn write(&mut self, mux: &mut Mux, lane: LaneId, end: usize) {
        let Some(len) = self.len else { return };
        while self.wrote < len && self.writable {
            let part = (len - self.wrote).min(50_000);
            match mux.write(lane, pattern(lane, end, self.wrote, part as usize)) {
                Written::Bytes(n) => self.wrote += n as u64,
                Written::Blocked => self.writable = false,
                Written::Closed => {
                    self.over = true;
                    return mux.release(lane);
                }
            }
        }
        match (self.wrote == len, self.abandons) {
            (true, true) => {
                self.over = true;
                mux.release(lane);
            }
            (true, false) => mux.finish(lane),
            (false, _) => {}
        }
    }

    fn read(&mut self, mux: &mut Mux, lane: LaneId, from: usize, now: u64, buffer: &mut [u8]) {
        while self.readable && !self.over && self.reader.size > 0 && now >= self.reads_at {
            let size = self.reader.size.min(buffer.len());
            match mux.read(lane, &mut buffer[..size]) {
                Read::Bytes(n) => {
                    assert!(
                        buffer[..n] == *pattern(lane, from, self.got, n),
                        "from byte {} of {lane:?}",
                        self.got
                    );
                    self.got += n as u64;
                    self.reads_at = now + self.reader.pause;
                    if self.reader.until.is_some_and(|until| self.got >= until) {
                        self.over = true;
                        mux.release(lane);
                    }
                }
                Read::End => (self.got_end, self.readable) = (Some(now), false),
                Read::Blocked => self.readable = false,
                Read::Reset => {
                    self.over = true;
                    mux.release(lane);
                }
            }
        }
    }

    /// Lets go of a lane on which both ends have said all.
    fn close(&mut self, mux: &mut Mux, lane: LaneId) {
        if !self.over && self.got_end.is_some() && self.len.is_some_and(|len| self.wrote == len) {
            self.over = true;
            mux.release(lane);
        }
    }
}
