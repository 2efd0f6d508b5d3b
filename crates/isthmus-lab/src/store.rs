//! Store for packets that wait until they are due: one ring of bytes, allocated and touched beforehand.
//!
//! A frame is read straight into the ring. Lost wire packets are squeezed out, so the ring
//! never holds more than what the link has in flight. Runs of packets are released in any
//! order. A frame's bytes become free after those of all older frames.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::model::{DirectionSpec, Fate};
use crate::packet::{FRAME_BYTES_MAX, Frame};
use crate::sys;

/// Most packets per second that the store is made for: more than a TAP device can deliver.
const PACKETS_PER_S_MAX: u64 = 2_000_000;
/// Most bytes that one read can return.
const ROOM_BYTES: usize = FRAME_BYTES_MAX;
const WIRE_BYTES_MIN: u64 = 84;

/// Consecutive wire packets of one frame that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// When the last packet is due. Nanoseconds.
    pub(crate) at_ns: u64,
    /// Order of arrival; runs due at the same time leave in it.
    order: u64,
    record: u64,
    /// Offset of the payload in the ring.
    payload: u32,
    payload_bytes: u32,
    /// First wire packet, and one beyond the last.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// Its packets are marked if they may be.
    pub(crate) marked: bool,
}

/// A frame with runs to be sent.
#[derive(Clone, Copy, Debug)]
struct Record {
    frame: Frame,
    header: usize,
    /// End of its bytes, counted over the ring's whole life.
    end: u64,
    runs_left: u32,
}

/// The store had no room for this many packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) packets: u64,
}

#[derive(Debug)]
pub(crate) struct Store {
    ring: Vec<u8>,
    /// Oldest byte in use, and one beyond the newest, counted over the ring's whole life.
    head: u64,
    tail: u64,
    records: VecDeque<Record>,
    records_gone: u64,
    in_order: VecDeque<Run>,
    out_of_order: BinaryHeap<Reverse<Run>>,
    runs_max: usize,
    order: u64,
    /// Buffer for reads while the ring is full; these packets are dropped.
    spare: Vec<u8>,
}

fn ring_bytes(spec: &DirectionSpec) -> u64 {
    let slack = 16 * ROOM_BYTES as u64 + spec.rate_bps / 8 / 50; // for an emulator that is 20 ms late
    (spec.in_flight_bytes_max() + slack).next_multiple_of(4096)
}

fn runs_max(spec: &DirectionSpec) -> u64 {
    let by_bytes = spec.in_flight_bytes_max() / WIRE_BYTES_MIN;
    let by_packets =
        (u128::from(spec.sojourn_ns_max()) * u128::from(PACKETS_PER_S_MAX) / 1_000_000_000) as u64;
    by_bytes.min(by_packets) + 4096
}

fn touched<T: Clone>(count: usize, value: T) -> VecDeque<T> {
    let mut queue = VecDeque::from(vec![value; count]);
    queue.clear();
    queue
}

impl Store {
    /// Memory that [`Store::new`] allocates. Bytes.
    pub(crate) fn memory_bytes(spec: &DirectionSpec) -> u64 {
        let per_run = size_of::<Run>() + size_of::<Record>();
        ring_bytes(spec) + runs_max(spec) * per_run as u64
    }

    /// Allocates and touches all memory that `spec` can need.
    pub(crate) fn new(spec: &DirectionSpec) -> Self {
        let mut ring = vec![0_u8; ring_bytes(spec) as usize];
        sys::prefer_huge_pages(&mut ring);
        ring.iter_mut().step_by(4096).for_each(|byte| *std::hint::black_box(byte) = 1);
        let runs_max = runs_max(spec) as usize;
        let run = Run {
            at_ns: 1,
            order: 1,
            record: 1,
            payload: 1,
            payload_bytes: 1,
            first: 1,
            end: 1,
            marked: true,
        };
        let record = Record { frame: Frame::default(), header: 1, end: 1, runs_left: 1 };
        Self {
            ring,
            head: 0,
            tail: 0,
            records: touched(runs_max, record),
            records_gone: 0,
            in_order: touched(runs_max, run),
            out_of_order: BinaryHeap::with_capacity(4096),
            runs_max,
            order: 0,
            spare: vec![0; ROOM_BYTES],
        }
    }

    /// Buffer for the next frame: in the ring, or beside it if the ring is full.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        match self.place() {
            Some((_, offset)) => &mut self.ring[offset..offset + ROOM_BYTES],
            None => &mut self.spare,
        }
    }

    /// Contiguous room for the largest frame: its position over the ring's life, and its offset.
    fn place(&self) -> Option<(u64, usize)> {
        let capacity = self.ring.len() as u64;
        let mut position = self.tail;
        if capacity - position % capacity < ROOM_BYTES as u64 {
            position = position.next_multiple_of(capacity);
        }
        let fits = position + ROOM_BYTES as u64 - self.head <= capacity;
        fits.then_some((position, (position % capacity) as usize))
    }

    /// Keeps the surviving packets of the frame that was read into [`Store::room`]. Consecutive
    /// survivors form a run while it spans at most `run_ns_max`.
    pub(crate) fn keep(&mut self, frame: &Frame, fates: &[Fate], run_ns_max: u64) -> Result<(), Full> {
        let survivors = fates.iter().filter(|f| matches!(f, Fate::Deliver { .. })).count();
        let runs_free = self.runs_max.saturating_sub(self.in_order.len() + self.out_of_order.len());
        let place = self.place().filter(|_| 2 * survivors <= runs_free);
        let Some((position, offset)) = place else {
            return Err(Full { packets: survivors as u64 });
        };
        let record = self.records_gone + self.records.len() as u64;
        let mut packing =
            Packing { store: self, frame, offset, end: offset + frame.header_len(), record, runs: 0 };
        packing.pack(fates, run_ns_max);
        let (end, runs_left) = (packing.end, packing.runs);
        let end = position + (end - offset) as u64;
        self.records.push_back(Record { frame: *frame, header: offset, end, runs_left });
        self.tail = end;
        Ok(())
    }

    /// When the next run is due. Nanoseconds.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let (a, b) = (self.in_order.front(), self.out_of_order.peek().map(|r| &r.0));
        [a, b].into_iter().flatten().min().map(|run| run.at_ns)
    }

    /// Takes the first run that is due at `now_ns`.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<Run> {
        let late = self.out_of_order.peek().map(|r| r.0);
        let next = self.in_order.front().copied();
        let is_late_first = late.is_some_and(|l| next.is_none_or(|n| l < n));
        let run = if is_late_first { late } else { next };
        let run = run.filter(|run| run.at_ns <= now_ns)?;
        if is_late_first {
            self.out_of_order.pop().map(|r| r.0)
        } else {
            self.in_order.pop_front()
        };
        Some(run)
    }

    /// The run's frame, the frame's original header, and the run's payload.
    pub(crate) fn parts(&self, run: &Run) -> (&Frame, &[u8], &[u8]) {
        let record = &self.records[(run.record - self.records_gone) as usize];
        let header = &self.ring[record.header..record.header + record.frame.header_len()];
        let payload = run.payload as usize;
        (&record.frame, header, &self.ring[payload..payload + run.payload_bytes as usize])
    }

    /// Frees the run's bytes.
    pub(crate) fn release(&mut self, run: &Run) {
        let index = (run.record - self.records_gone) as usize;
        self.records[index].runs_left -= 1;
        while let Some(record) = self.records.front().filter(|r| r.runs_left == 0) {
            self.head = record.end;
            self.records.pop_front();
            self.records_gone += 1;
        }
    }

    fn schedule(&mut self, mut run: Run) {
        run.order = self.order;
        self.order += 1;
        if self.in_order.back().is_none_or(|last| last.at_ns <= run.at_ns) {
            self.in_order.push_back(run);
        } else {
            self.out_of_order.push(Reverse(run));
        }
    }
}

/// A frame that is being packed into the ring.
struct Packing<'a> {
    store: &'a mut Store,
    frame: &'a Frame,
    offset: usize,
    end: usize,
    record: u64,
    runs: u32,
}

impl Packing<'_> {
    fn pack(&mut self, fates: &[Fate], run_ns_max: u64) {
        let mut i = 0;
        while i < fates.len() {
            let Fate::Deliver { at_ns: start, marked: mark, .. } = fates[i] else {
                i += 1;
                continue;
            };
            let goes_on = |f: &Fate| matches!(f, Fate::Deliver { at_ns, marked, .. } if *marked == mark && *at_ns >= start && at_ns - start <= run_ns_max);
            let len = fates[i..].iter().take_while(|f| goes_on(f)).count();
            self.run(fates, i, i + len, mark);
            i += len;
        }
    }

    /// Moves the run's payload down to the end of the last one. Schedules the run, and copies of
    /// the packets that arrive twice.
    fn run(&mut self, fates: &[Fate], first: usize, end: usize, marked: bool) {
        let base = self.offset;
        let start = base + self.frame.payload_range(first).0;
        let payload = self.end;
        if start != payload {
            let stop = base + self.frame.payload_range(end - 1).1;
            self.store.ring.copy_within(start..stop, payload);
        }
        let shift = start - payload;
        self.end = base + self.frame.payload_range(end - 1).1 - shift;
        let latest = |(i, fate): (usize, &Fate)| {
            if let Fate::Deliver { at_ns, twice, .. } = fate { (i, *at_ns, *twice) } else { (i, 0, false) }
        };
        let packets = fates.iter().enumerate().take(end).skip(first).map(latest);
        let at_ns = packets.clone().map(|p| p.1).max().unwrap_or(0);
        self.push(at_ns, first..end, shift, marked);
        for (i, ..) in packets.filter(|p| p.2) {
            self.push(at_ns, i..i + 1, shift, marked);
        }
    }

    fn push(&mut self, at_ns: u64, Range { start: first, end }: Range<usize>, shift: usize, marked: bool) {
        let range = (self.frame.payload_range(first).0, self.frame.payload_range(end - 1).1);
        self.runs += 1;
        self.store.schedule(Run {
            at_ns,
            order: 0,
            record: self.record,
            payload: (self.offset + range.0 - shift) as u32,
            payload_bytes: (range.1 - range.0) as u32,
            first: first as u32,
            end: end as u32,
            marked,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Drop;
    use crate::packet::tests::{Craft, TCP};
    use proptest::prelude::*;

    const LOST: Fate = Fate::Dropped(Drop::Loss);

    fn at(at_ns: u64) -> Fate {
        Fate::Deliver { at_ns, twice: false, marked: false }
    }

    fn put(store: &mut Store, bytes: &[u8], fates: &[Fate]) -> Result<(), Full> {
        store.room()[..bytes.len()].copy_from_slice(bytes);
        let frame = Frame::parse(bytes).expect("well formed");
        store.keep(&frame, fates, 100_000)
    }

    /// All runs that are due, with their payload.
    fn drain(store: &mut Store, now_ns: u64) -> Vec<(Run, Vec<u8>)> {
        let mut out = Vec::new();
        while let Some(run) = store.pop_due(now_ns) {
            out.push((run, store.parts(&run).2.to_vec()));
            store.release(&run);
        }
        out
    }

    #[test]
    fn lost_packets_are_squeezed_out_and_the_rest_keeps_its_bytes() {
        let mut store = Store::new(&DirectionSpec::default());
        let bytes = TCP.build();
        let mut fates: Vec<_> = (0..10).map(|i| at(1000 + i)).collect();
        (fates[0], fates[4], fates[5]) = (LOST, LOST, LOST);
        put(&mut store, &bytes, &fates).expect("room");
        assert!(store.tail < bytes.len() as u64 - 3 * 1448 + 1);
        let runs = drain(&mut store, 2000);
        let ranges: Vec<_> = runs.iter().map(|(run, _)| (run.first, run.end, run.at_ns)).collect();
        assert_eq!(ranges, [(1, 4, 1003), (6, 10, 1009)]);
        let header = bytes.len() - 14_000;
        assert_eq!(runs[0].1, bytes[header + 1448..header + 4 * 1448]);
        assert_eq!(runs[1].1, bytes[header + 6 * 1448..]);
    }

    #[test]
    fn a_run_spans_no_more_than_it_may() {
        let mut store = Store::new(&DirectionSpec::default());
        let fates: Vec<_> = (0..10).map(|i| at(i * 40_000)).collect();
        put(&mut store, &TCP.build(), &fates).expect("room");
        let ends: Vec<_> = drain(&mut store, u64::MAX).iter().map(|(run, _)| run.end).collect();
        assert_eq!(ends, [3, 6, 9, 10]);
    }

    #[test]
    fn a_packet_held_back_leaves_after_those_that_overtook_it() {
        let mut store = Store::new(&DirectionSpec::default());
        let fates: Vec<_> = (0..10).map(|i| at(if i == 3 { 1_000_000 } else { 100 + i })).collect();
        put(&mut store, &TCP.build(), &fates).expect("room");
        put(&mut store, &TCP.build(), &(0..10).map(|i| at(200 + i)).collect::<Vec<_>>()).expect("room");
        let firsts: Vec<_> =
            drain(&mut store, u64::MAX).iter().map(|(run, _)| (run.first, run.end)).collect();
        assert_eq!(firsts, [(0, 3), (4, 10), (0, 10), (3, 4)]);
        assert!(store.records.is_empty() && store.head == store.tail);
    }

    #[test]
    fn a_copy_is_the_same_packet_again() {
        let mut store = Store::new(&DirectionSpec::default());
        let twice = |i| Fate::Deliver { at_ns: 5, twice: i == 2, marked: false };
        put(&mut store, &TCP.build(), &(0..10).map(twice).collect::<Vec<_>>()).expect("room");
        let runs = drain(&mut store, 5);
        assert_eq!((runs.len(), runs[1].0.first, runs[1].0.end), (2, 2, 3));
        assert_eq!(runs[1].1, runs[0].1[2 * 1448..3 * 1448]);
    }

    #[test]
    fn a_full_store_says_how_many_packets_it_refused() {
        let mut store = Store::new(&DirectionSpec::default());
        let (bytes, fates) = (Craft { payload: 60_000, segment: 6000, ..TCP }.build(), vec![at(9); 10]);
        let refusal = (0..10_000).find_map(|_| put(&mut store, &bytes, &fates).err());
        assert_eq!(refusal, Some(Full { packets: 10 }));
        assert!(!drain(&mut store, 9).is_empty());
        assert_eq!(put(&mut store, &bytes, &fates), Ok(()), "there is room again");
    }

    proptest! {
        #[test]
        fn whatever_is_kept_comes_out_whole_and_in_time(
            frames in proptest::collection::vec((1..60_000_usize, any::<u64>(), 0..3_u64), 1..400),
        ) {
            let mut store = Store::new(&DirectionSpec { delay_ns: 1_000_000, ..DirectionSpec::default() });
            let (mut now, mut expected, mut got) = (0_u64, 0, 0);
            for (payload, lost, held) in frames {
                let bytes = Craft { payload, ..TCP }.build();
                let frame = Frame::parse(&bytes).expect("well formed");
                now += 700_000;
                let fate = |i: usize| match lost >> (i % 64) & 1 {
                    0 => at(now + 1_000_000 + if i as u64 % 7 == held { 500_000 } else { i as u64 }),
                    _ => LOST,
                };
                let fates: Vec<_> = (0..frame.segments()).map(fate).collect();
                let bytes_of = |i: usize| frame.payload_range(i).1 - frame.payload_range(i).0;
                if fates.iter().any(|f| *f != LOST) {
                    prop_assert_eq!(put(&mut store, &bytes, &fates), Ok(()));
                    expected += (0..fates.len()).filter(|i| fates[*i] != LOST).map(bytes_of).sum::<usize>();
                }
                let due = drain(&mut store, now);
                prop_assert!(due.iter().all(|(run, _)| run.at_ns <= now));
                prop_assert!(due.is_sorted_by_key(|(run, _)| run.at_ns));
                got += due.iter().map(|(_, payload)| payload.len()).sum::<usize>();
            }
            got += drain(&mut store, u64::MAX).iter().map(|(_, payload)| payload.len()).sum::<usize>();
            prop_assert_eq!(got, expected);
        }
    }
}
