//! Endpoints of one host that access each other's registered memory by themselves.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use isthmus_io::{Access, Endpoint, RegionTable, Settings};
use isthmus_proto::{
    AtomicKind, AtomicOp, AtomicRequest, AtomicType, Completion, CompletionKind, Fence, OpError, Options,
    PeerId, RemoteRange, RmaRequest,
};
use support::*;

const LEN: usize = 1 << 20;
/// Long enough to be worth it.
const PIECE: usize = 64 << 10;
const KEY: u64 = 7;
const ALL: Access = Access { remote_read: true, remote_write: true };

/// An endpoint, and another whose memory it accesses.
struct Pair {
    a: Arc<Endpoint>,
    b: Arc<Endpoint>,
    to_b: PeerId,
    regions: Arc<RegionTable>,
}

impl Pair {
    /// `None` where the system does not permit it.
    fn open() -> Option<Self> {
        if !matches!(isthmus_io::try_shared_memory(), Ok(true)) {
            eprintln!("skipped: the system does not permit to access processes' memory");
            return None;
        }
        let settings = Settings { fabric: "memory".to_owned(), ..settings() };
        let regions = Arc::new(RegionTable::within_reach());
        let a = over("memory");
        let b = Endpoint::open(&settings, None, regions.clone()).expect("open");
        let to_b = a.peer(&b.address()).expect("same subnet");
        exchange(&a, &b);
        Some(Self { a, b, to_b, regions })
    }

    fn request(&self, key: u64, addr: usize, len: usize, options: Options) -> RmaRequest {
        let remote = RemoteRange { key, addr: addr as u64, len: len as u64 };
        RmaRequest { peer: self.to_b, remote, data: None, options }
    }

    fn register(&self, window: &mut [u8]) {
        // SAFETY: the tests keep it until it is taken back, or the endpoints are closed.
        unsafe { self.regions.register(&[iovec(window)], Some(KEY), ALL, false) }.expect("a free key");
    }

    fn write(&self, key: u64, addr: usize, bytes: &mut [u8]) -> Completion {
        let request = self.request(key, addr, bytes.len(), options(1));
        // SAFETY: it is complete below.
        unsafe { self.a.write(&request, &[iovec(bytes)]) }.expect("posted");
        self.end()
    }

    fn read(&self, key: u64, addr: usize, bytes: &mut [u8]) -> Completion {
        let request = self.request(key, addr, bytes.len(), options(1));
        // SAFETY: it is complete below.
        unsafe { self.a.read(&request, &[iovec(bytes)]) }.expect("posted");
        self.end()
    }

    /// How an access ends. What its target sees of it is left out.
    fn end(&self) -> Completion {
        let start = Instant::now();
        loop {
            let (mut done, mut seen) = (Vec::new(), Vec::new());
            self.a.poll(&mut done);
            self.b.poll(&mut seen);
            if let Some(done) = done.pop() {
                return done;
            }
            in_time(start.elapsed() < LIMIT, || "the access does not end");
        }
    }

    fn reached(&self) -> u64 {
        self.a.counters().accesses_reached
    }

    /// Makes an access until it is made without the other process: while the I/O thread is at work, or something is still
    /// to be acknowledged, it goes by messages. What the last one returned.
    fn reaching<T>(&self, mut access: impl FnMut() -> T) -> T {
        let (before, start) = (self.reached(), Instant::now());
        loop {
            let made = access();
            if self.reached() > before {
                return made;
            }
            in_time(start.elapsed() < LIMIT, || "it is not accessed");
            self.a.poll(&mut Vec::new());
            self.b.poll(&mut Vec::new());
        }
    }

    fn close(self) {
        self.a.close();
        self.b.close();
    }
}

#[test]
fn memory_is_accessed_without_its_process_once_that_has_shown_it() {
    let Some(pair) = Pair::open() else { return };
    let mut window = vec![0; LEN];
    pair.register(&mut window);
    let (mut sent, mut back) = (pattern(PIECE, 1), vec![0; PIECE]);
    assert_eq!(pair.write(KEY, 0, &mut sent).error, None);
    assert_eq!(pair.reached(), 0, "nothing was shown yet");
    for (turn, len) in [PIECE, 3 * PIECE, LEN].into_iter().enumerate() {
        let mut sent = pattern(len, turn as u8);
        let done = pair.reaching(|| pair.write(KEY, LEN - len, &mut sent));
        assert_eq!((done.kind, done.len, done.error), (CompletionKind::Write, len as u64, None));
        assert!(window[LEN - len..] == sent);
        back.resize(len, 0);
        let done = pair.reaching(|| pair.read(KEY, LEN - len, &mut back));
        assert_eq!((done.kind, done.context, done.error), (CompletionKind::Read, 1, None));
        assert!(back == sent);
    }
    let reached = pair.reached();
    // Beyond its end, and by a key that is none, it is refused as by any other way.
    for (key, addr) in [(KEY, LEN - PIECE + 1), (KEY + 1, 0)] {
        let done = pair.read(key, addr, &mut back[..PIECE]);
        assert!(matches!(done.error, Some(OpError::RemoteAccess(_))), "{done:?}");
    }
    // What is short goes by messages, and so does what has data for the target.
    assert_eq!(pair.write(KEY, 0, &mut [7; 8]).error, None);
    let request = RmaRequest { data: Some(3), ..pair.request(KEY, 0, PIECE, options(1)) };
    // SAFETY: it is complete below.
    unsafe { pair.a.write(&request, &[iovec(&mut sent)]) }.expect("posted");
    let done = complete(&[&pair.a, &pair.b], 2);
    assert!(done.iter().any(|done| done.kind == CompletionKind::RemoteWrite && done.data == Some(3)));
    assert_eq!(pair.reached(), reached);
    pair.close();
}

#[test]
fn what_a_process_itself_names_is_shown_to_nobody() {
    let Some(pair) = Pair::open() else { return };
    let mut window = vec![0; LEN];
    pair.register(&mut window);
    let to_itself = pair.b.peer(&pair.b.address()).expect("same subnet");
    let request = AtomicRequest {
        peer: to_itself,
        remote: RemoteRange { key: KEY, addr: 0, len: 8 },
        kind: AtomicKind::Update,
        op: AtomicOp::Sum,
        datatype: AtomicType::Uint64,
        options: options(1),
    };
    // SAFETY: it is complete below.
    unsafe { pair.b.atomic(&request, &[iovec(&mut [5; 8])], &[], &[]) }.expect("posted");
    assert_eq!(complete(&[&pair.b], 1)[0].error, None);
    exchange(&pair.a, &pair.b);
    pair.write(KEY, 0, &mut pattern(PIECE, 1));
    assert_eq!(pair.reached(), 0, "the first access has to name it");
    pair.reaching(|| pair.write(KEY, 0, &mut pattern(PIECE, 2)));
    pair.close();
}

#[test]
fn pieces_of_a_buffer_and_operations_that_tell_nobody() {
    let Some(pair) = Pair::open() else { return };
    let mut window = vec![0; LEN];
    pair.register(&mut window);
    let mut sent = pattern(PIECE, 1);
    pair.write(KEY, 0, &mut sent);
    let (one, other) = sent.split_at_mut(5_000);
    let silent = Options { silent: true, fence: Fence::All, ..options(9) };
    let request = pair.request(KEY, 77, PIECE, silent);
    // SAFETY: its memory is there until the endpoints are closed.
    pair.reaching(|| unsafe { pair.a.write(&request, &[iovec(one), iovec(other)]) }.expect("posted"));
    assert!(window[77..][..PIECE] == sent);
    let mut back = vec![0; PIECE];
    assert_eq!(pair.read(KEY, 77, &mut back).context, 1);
    assert!(back == sent);
    pair.close();
}

#[test]
fn an_access_waits_for_what_was_posted_before_it() {
    let Some(pair) = Pair::open() else { return };
    let mut window = vec![0; LEN];
    pair.register(&mut window);
    let (mut first, mut second) = (pattern(PIECE, 1), pattern(PIECE, 2));
    pair.write(KEY, 0, &mut first);
    let with_data = RmaRequest { data: Some(1), ..pair.request(KEY, 0, PIECE, options(1)) };
    // SAFETY: both are complete below.
    unsafe { pair.a.write(&with_data, &[iovec(&mut first)]) }.expect("posted");
    let request = pair.request(KEY, 0, PIECE, options(2));
    // SAFETY: as above.
    unsafe { pair.a.write(&request, &[iovec(&mut second)]) }.expect("posted");
    assert_eq!(pair.reached(), 0, "the other one is under way");
    complete(&[&pair.a, &pair.b], 4);
    assert!(window[..PIECE] == second);
    // A fence is for messages too, which are over for who sent them before they have come.
    let mut message = [5; 8];
    let mut got = [0; 8];
    send(&pair.a, pair.to_b, 4, &mut message);
    let fenced = pair.request(KEY, 0, PIECE, Options { fence: Fence::All, ..options(3) });
    // SAFETY: as above.
    unsafe { pair.a.write(&fenced, &[iovec(&mut first)]) }.expect("posted");
    assert_eq!(pair.reached(), 0, "the message has not come");
    recv(&pair.b, None, 4, &mut got);
    complete(&[&pair.a, &pair.b], 4);
    assert!(window[..PIECE] == first && got == message);
    pair.close();
}

#[test]
fn whoever_wants_to_know_of_accesses_is_told_of_each_from_then_on() {
    let Some(pair) = Pair::open() else { return };
    let mut window = vec![0; LEN];
    pair.register(&mut window);
    let mut sent = pattern(PIECE, 1);
    pair.write(KEY, 0, &mut sent);
    pair.reaching(|| pair.write(KEY, 0, &mut sent));
    let reached = pair.reached();
    pair.b.watch_accesses();
    for _ in 0..3 {
        let request = pair.request(KEY, 0, PIECE, options(1));
        // SAFETY: it is complete below.
        unsafe { pair.a.write(&request, &[iovec(&mut sent)]) }.expect("posted");
        let done = complete(&[&pair.a, &pair.b], 2);
        assert!(done.iter().any(|done| matches!(done.kind, CompletionKind::RemoteAccess { .. })), "{done:?}");
    }
    assert_eq!(pair.reached(), reached);
    pair.close();
}

#[test]
fn nothing_is_written_to_a_region_that_was_taken_back() {
    let Some(pair) = Pair::open() else { return };
    let over = AtomicBool::new(false);
    let mut window = vec![0u8; LEN];
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut sent = pattern(LEN, 1);
            let mut refused = 0u64;
            while !over.load(Ordering::Relaxed) {
                refused += u64::from(pair.write(KEY, 0, &mut sent).error.is_some());
            }
            refused
        });
        for _ in 0..200 {
            let (before, start) = (pair.reached(), Instant::now());
            pair.register(&mut window);
            while pair.reached() == before {
                in_time(start.elapsed() < LIMIT, || "the region is not accessed");
                thread::yield_now();
            }
            // Mostly in the middle of an access.
            pair.regions.deregister(KEY);
            window.fill(0xee);
            thread::yield_now();
            assert!(window.iter().all(|byte| *byte == 0xee), "it was written after it was taken back");
        }
        over.store(true, Ordering::Relaxed);
        assert!(writer.join().expect("it ends") > 0);
    });
    pair.close();
}
