//! Operations that wait for a counter (`fi_trigger(3)`): those with the flag `FI_TRIGGER`, and the deferred work of a
//! domain (`deferred.rs`).

mod attendant;
mod ticket;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use isthmus_proto::{Completion, CompletionKind, OpError};
use isthmus_wakeup::WorkLock;
use parking_lot::Mutex;

use crate::counter::Counter;
use crate::error::Error;
use crate::live::Live;

use attendant::Attendant;
pub(crate) use ticket::Tickets;

/// The trigger of an operation: the sum of a counter's successes and errors reaches the threshold.
#[derive(Debug)]
pub(crate) struct When {
    counter: Arc<Counter>,
    threshold: u64,
    /// Address of the program's structure, by which it can cancel the operation.
    name: usize,
}

impl When {
    /// `name` is the address of the program's structure.
    pub(crate) fn new(counter: Arc<Counter>, threshold: u64, name: usize) -> Self {
        Self { counter, threshold, name }
    }
}

type Start = Box<dyn Fn(&Live) -> Result<(), Error> + Send>;

/// An action that starts once a counter has reached its threshold.
pub(crate) enum Job {
    Operation { live: Arc<Live>, context: u64, kind: CompletionKind, start: Start },
    Set { counter: Arc<Counter>, value: u64 },
    Add { counter: Arc<Counter>, value: u64 },
}

impl Job {
    /// An operation that `start` posts. Its end is reported under `context`.
    pub(crate) fn operation(live: Arc<Live>, context: u64, kind: CompletionKind, start: Start) -> Self {
        Self::Operation { live, context, kind, start }
    }

    /// Starts it. False if there is no room for it now.
    fn start(&self) -> bool {
        match self {
            Self::Operation { live, start, .. } => match start(live) {
                Ok(()) => {}
                Err(Error::Again) => return false,
                Err(Error::Unreachable(text)) => self.end(OpError::Unreachable(text)),
                Err(error) => self.end(OpError::Protocol(error.to_string())),
            },
            Self::Set { counter, value } => counter.set(*value),
            Self::Add { counter, value } => counter.add(*value),
        }
        true
    }

    /// Reports that it will not be done.
    fn end(&self, error: OpError) {
        let Self::Operation { live, context, kind, .. } = self else { return };
        live.deliver(Completion { error: Some(error), ..Completion::of(*kind, *context, true) });
    }

    /// Whether it is a domain's deferred work, not an operation with `FI_TRIGGER`.
    fn is_work(&self) -> bool {
        match self {
            Self::Operation { live, context, .. } => live.tickets().knows(*context),
            Self::Set { .. } | Self::Add { .. } => true,
        }
    }

    /// Drops it without reporting its end.
    fn abandon(&self) {
        if let Self::Operation { live, context, .. } = self {
            live.tickets().withdraw(*context);
        }
    }

    fn is_of(&self, endpoint: &Live) -> bool {
        matches!(self, Self::Operation { live, .. } if std::ptr::eq(&raw const **live, endpoint))
    }
}

/// A queued job, with what keeps its counter open.
struct Waiting {
    job: Job,
    name: usize,
    counter: Arc<Counter>,
}

/// The key of a queued job: counter, threshold, and order of posting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    counter: usize,
    threshold: u64,
    order: u64,
}

/// A domain's operations that wait for counters.
#[derive(Default)]
pub(crate) struct Board {
    waiting: Mutex<BTreeMap<QueueKey, Waiting>>,
    /// Jobs whose counters have reached their thresholds, in order.
    ready: Mutex<VecDeque<Job>>,
    ready_len: AtomicUsize,
    /// Held by the one thread that starts jobs, so that they start in order.
    starting: WorkLock<()>,
    posted: AtomicU64,
    /// Collective operations under way, whose rounds need the thread. Count.
    attended: AtomicUsize,
    attendant: Attendant,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Board({} waiting)", self.waiting.lock().len())
    }
}

impl Board {
    /// Queues a job; it may start at once.
    pub(crate) fn defer(self: &Arc<Self>, when: When, job: Job) {
        let When { counter, threshold, name } = when;
        let order = self.posted.fetch_add(1, Ordering::Relaxed);
        let key = QueueKey { counter: Arc::as_ptr(&counter).addr(), threshold, order };
        counter.await_more(1);
        self.waiting.lock().insert(key, Waiting { job, name, counter: counter.clone() });
        self.release(&counter);
        if !self.is_empty() {
            self.attendant.begin(self);
        }
    }

    /// Starts the jobs that a changed counter releases, in the order of their thresholds.
    pub(crate) fn release(&self, counter: &Counter) {
        let (id, reached) = (std::ptr::from_ref(counter).addr(), counter.reached());
        let first = QueueKey { counter: id, threshold: 0, order: 0 };
        let last = QueueKey { counter: id, threshold: reached, order: u64::MAX };
        {
            let mut waiting = self.waiting.lock();
            let mut ready = self.ready.lock();
            while let Some(key) = waiting.range(first..=last).next().map(|(&key, _)| key) {
                let Some(due) = waiting.remove(&key) else { break };
                due.counter.await_fewer(1);
                ready.push_back(due.job);
            }
            self.ready_len.store(ready.len(), Ordering::SeqCst);
        }
        self.start();
    }

    /// Starts the ready jobs, as far as there is room.
    pub(crate) fn start(&self) {
        if self.has_ready() {
            self.starting.post(|()| self.start_in_order());
        }
    }

    fn start_in_order(&self) {
        while let Some(job) = self.next() {
            if !job.start() {
                return self.put_back(job);
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut ready = self.ready.lock();
        let job = ready.pop_front();
        self.ready_len.store(ready.len(), Ordering::SeqCst);
        job
    }

    fn put_back(&self, job: Job) {
        let mut ready = self.ready.lock();
        ready.push_front(job);
        self.ready_len.store(ready.len(), Ordering::SeqCst);
    }

    /// Cancels a queued operation of an endpoint. False if there is none of this name.
    pub(crate) fn cancel(&self, endpoint: &Live, name: usize) -> bool {
        let gone = self.remove(|entry| entry.name == name && entry.job.is_of(endpoint), 1);
        gone.iter().for_each(|job| job.end(OpError::Cancelled));
        !gone.is_empty()
    }

    /// Adds an endpoint whose completions may trigger operations.
    pub(crate) fn add_endpoint(&self, live: &Arc<Live>) -> Result<(), Error> {
        self.attendant.watch(live)
    }

    /// Drops the queued operations of an endpoint that ends.
    pub(crate) fn forget_endpoint(&self, live: &Arc<Live>) {
        self.attendant.forget(live);
        self.remove(|entry| entry.job.is_of(live), usize::MAX);
        let mut ready = self.ready.lock();
        ready.retain(|job| !job.is_of(live));
        self.ready_len.store(ready.len(), Ordering::SeqCst);
    }

    /// Drops deferred work, of this name or all, without a report of its end. False if there was none. Operations with
    /// `FI_TRIGGER` stay: they belong to an endpoint.
    pub(crate) fn drop_work(&self, name: Option<usize>) -> bool {
        let is_meant = |entry: &Waiting| name.is_none_or(|name| entry.name == name) && entry.job.is_work();
        let gone = self.remove(is_meant, usize::MAX);
        gone.iter().for_each(Job::abandon);
        !gone.is_empty()
    }

    /// Removes jobs from the queue.
    fn remove(&self, wanted: impl Fn(&Waiting) -> bool, most: usize) -> Vec<Job> {
        let mut waiting = self.waiting.lock();
        let keys: Vec<QueueKey> =
            waiting.iter().filter(|(_, entry)| wanted(entry)).map(|(&key, _)| key).take(most).collect();
        let entries = keys.iter().filter_map(|key| waiting.remove(key));
        entries.inspect(|entry| entry.counter.await_fewer(1)).map(|entry| entry.job).collect()
    }

    /// Makes the thread drive the endpoints while the program computes, until `turn_from`.
    pub(crate) fn attend_to(self: &Arc<Self>) {
        self.attended.fetch_add(1, Ordering::SeqCst);
        self.attendant.begin(self);
    }

    pub(crate) fn turn_from(&self) {
        self.attended.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether jobs wait for room.
    fn has_ready(&self) -> bool {
        self.ready_len.load(Ordering::SeqCst) > 0
    }

    /// Whether nothing waits.
    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && !self.has_ready() && self.attended.load(Ordering::SeqCst) == 0
    }

    /// Ends the thread, and drops the queued jobs.
    pub(crate) fn close(&self) {
        self.remove(|_| true, usize::MAX);
        self.ready.lock().clear();
        self.ready_len.store(0, Ordering::SeqCst);
        self.attendant.end();
    }
}
