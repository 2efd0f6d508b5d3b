//! The endpoints that feed a queue or a counter. A read drives them, and a thread sleeps until they have something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use isthmus_io::Watch;
use parking_lot::RwLock;

use crate::error::Error;
use crate::live::Live;
use crate::queue::Reading;
use crate::wait::Waiter;

/// The endpoints that feed a queue or counter, and the descriptor to sleep on until they do.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    all: RwLock<Vec<Arc<Live>>>,
    /// Watches all of them, once it was needed.
    waiter: OnceLock<Waiter>,
    /// Tells without a lock whether polling the first endpoint is in vain.
    watch: OnceLock<Arc<Watch>>,
    /// The first endpoint is the only one.
    watched: AtomicBool,
}

impl Sources {
    /// Adds an endpoint, once.
    pub(crate) fn add(&self, live: &Arc<Live>) -> Result<(), Error> {
        let mut all = self.all.write();
        if all.iter().any(|known| Arc::ptr_eq(known, live)) {
            return Ok(());
        }
        if let Some(waiter) = self.made_waiter() {
            waiter.watch(live.engine().wait_fd())?;
        }
        all.push(live.clone());
        self.note(&all);
        Ok(())
    }

    /// Removes an endpoint.
    pub(crate) fn remove(&self, live: &Arc<Live>) {
        let mut all = self.all.write();
        let before = all.len();
        all.retain(|known| !Arc::ptr_eq(known, live));
        self.note(&all);
        if let (true, Some(waiter)) = (all.len() < before, self.made_waiter()) {
            waiter.forget(live.engine().wait_fd());
        }
    }

    /// Notes the present endpoints, for checks without a lock.
    fn note(&self, all: &[Arc<Live>]) {
        let only = match all {
            [only] => only.engine().watch(),
            _ => None,
        };
        let watched = only.is_some_and(|only| Arc::ptr_eq(self.watch.get_or_init(|| only.clone()), &only));
        self.watched.store(watched, Ordering::Release);
    }

    /// The waiter, made when first needed.
    pub(crate) fn waiter(&self) -> Result<&Waiter, Error> {
        if let Some(waiter) = self.made_waiter() {
            return Ok(waiter);
        }
        // With this lock, no endpoint is added meanwhile that the waiter would not watch.
        let all = self.all.read();
        let waiter = Waiter::new()?;
        for live in all.iter() {
            waiter.watch(live.engine().wait_fd())?;
        }
        Ok(self.waiter.get_or_init(|| waiter))
    }

    /// The waiter, if anybody needed it yet.
    pub(crate) fn made_waiter(&self) -> Option<&Waiter> {
        self.waiter.get()
    }

    /// The first endpoint's watch, if that endpoint is the only one.
    #[inline]
    fn only_watch(&self) -> Option<&Arc<Watch>> {
        if self.watched.load(Ordering::Acquire) { self.watch.get() } else { None }
    }

    /// Whether driving the endpoints would plainly find nothing.
    #[inline]
    pub(crate) fn is_poll_vain(&self) -> bool {
        self.only_watch().is_some_and(|watch| watch.is_poll_vain())
    }

    /// The program has what it waited for, though not by its completion queue: the next polls need not spin.
    pub(crate) fn note_answered(&self) {
        if let Some(watch) = self.watch.get() {
            watch.note_answered();
        }
    }

    /// Whether something has plainly come that driving the endpoints would deliver.
    pub(crate) fn has_come(&self) -> bool {
        self.only_watch().is_some_and(|watch| watch.has_news())
    }

    /// Drives the endpoints, unless that is plainly in vain, and delivers what they finished.
    pub(crate) fn progress(&self) {
        if !self.only_watch().is_some_and(|watch| watch.is_glance_vain()) {
            self.turn(None);
        }
    }

    /// Drives the endpoints, and delivers what they finished: to `reading` at once if it reads that queue.
    pub(crate) fn turn(&self, mut reading: Option<&mut Reading<'_>>) {
        for live in self.all.read().iter() {
            live.progress(reading.as_deref_mut());
        }
    }

    /// Prepares all endpoints for a sleep. False if one has completions.
    pub(crate) fn arm(&self) -> bool {
        self.all.read().iter().all(|live| live.engine().arm())
    }

    /// As [`Sources::arm`], for a thread that sleeps while others may poll, until the guard is dropped. `None` if one
    /// has completions.
    pub(crate) fn fall_asleep(&self) -> Option<Asleep> {
        let mut asleep = Asleep(Vec::new());
        for live in self.all.read().iter() {
            asleep.0.push(Arc::downgrade(live));
            if !live.engine().fall_asleep() {
                return None;
            }
        }
        Some(asleep)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.read().is_empty()
    }
}

/// Endpoints that wake a sleeping thread, unless they end meanwhile.
pub(crate) struct Asleep(Vec<Weak<Live>>);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|live| live.engine().wake_up());
    }
}
