//! Reports the end of deferred work: to the work's own counter, and to the endpoint's queue only if the work asks for
//! that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use isthmus_proto::Completion;
use parking_lot::Mutex;

use crate::counter::Counter;
use crate::error::Error;
use crate::live::Live;
use crate::log::{self, Level};

/// An endpoint's deferred work that has not ended.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    len: AtomicUsize,
    open: Mutex<HashMap<u64, Ticket>>,
    /// Counters that the endpoint feeds only because work ended there.
    fed: Mutex<Vec<Weak<Counter>>>,
}

#[derive(Debug)]
struct Ticket {
    counter: Option<Arc<Counter>>,
    /// The work's own context, if its end is reported to the endpoint's queue and counters, too.
    context: Option<u64>,
    /// Its address is the context that the engine gets. No other operation's context can be the same, as programs'
    /// contexts are addresses of their own memory.
    _place: Box<u64>,
}

impl Tickets {
    /// Makes a context for the engine, for work of this endpoint whose end the counter counts.
    pub(crate) fn issue(
        &self,
        live: &Arc<Live>,
        counter: Option<Arc<Counter>>,
        context: Option<u64>,
    ) -> Result<u64, Error> {
        if let Some(counter) = &counter {
            // A thread that waits for the counter has to drive the endpoint.
            counter.add_source(live)?;
            let mut fed = self.fed.lock();
            fed.retain(|known| known.strong_count() > 0);
            if !fed.iter().any(|known| known.as_ptr() == Arc::as_ptr(counter)) {
                fed.push(Arc::downgrade(counter));
            }
        }
        let place = Box::new(0);
        let id = std::ptr::from_ref(&*place).expose_provenance() as u64;
        let mut open = self.open.lock();
        open.insert(id, Ticket { counter, context, _place: place });
        self.len.store(open.len(), Ordering::SeqCst);
        Ok(id)
    }

    /// The endpoint ends.
    pub(crate) fn close(&self, live: &Arc<Live>) {
        for counter in self.fed.lock().drain(..).filter_map(|fed| fed.upgrade()) {
            counter.remove_source(live);
        }
    }

    pub(super) fn knows(&self, id: u64) -> bool {
        self.open.lock().contains_key(&id)
    }

    pub(crate) fn withdraw(&self, id: u64) -> bool {
        self.take(id).is_some()
    }

    fn take(&self, id: u64) -> Option<Ticket> {
        let mut open = self.open.lock();
        let ticket = open.remove(&id);
        self.len.store(open.len(), Ordering::SeqCst);
        ticket
    }

    pub(crate) fn are_open(&self) -> bool {
        self.len.load(Ordering::SeqCst) > 0
    }

    /// Counts the end of deferred work. False if nobody else is told.
    pub(crate) fn settle(&self, completion: &mut Completion) -> bool {
        let Some(ticket) = self.take(completion.context) else { return true };
        if let Some(error) = &completion.error {
            log::write(Level::Info, format_args!("deferred {:?} failed: {error}", completion.kind));
        }
        if let Some(counter) = ticket.counter {
            counter.count(completion.error.is_some(), completion.len);
        }
        let told = ticket.context.is_some();
        completion.context = ticket.context.unwrap_or(0);
        completion.notify = told;
        told
    }
}
