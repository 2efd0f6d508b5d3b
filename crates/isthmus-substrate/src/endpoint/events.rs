//! Taking events, and sleeping until there is one.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::{Endpoint, SPIN};
use crate::Error;
use crate::datagrams::Datagrams;
use crate::event::Event;
use crate::inner::LOOK;
use crate::ports::PortState;

impl Endpoint {
    /// The next event, if there is one; never sleeps.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn get_event(&self) -> Result<Option<Event>, Error> {
        let mut state = self.inner.open_state()?;
        if !state.talk.has_news() {
            self.inner.progress(&mut state);
        }
        Ok(self.inner.next_event(&mut state))
    }

    /// Waits for the next event, for at most `limit` (`None`: no limit).
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn next_event(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.get_event()? {
                return Ok(Some(event));
            }
            let waited = start.elapsed();
            let left = limit.map(|limit| limit.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if waited > SPIN && self.arm()? {
                self.inner.bell.sleep(left);
            }
        }
    }

    /// A descriptor that becomes readable when [`Endpoint::get_event`] may have something, provided that
    /// [`Endpoint::arm`] returned true since. It belongs to the endpoint: do not close it.
    pub fn os_handle(&self) -> RawFd {
        self.inner.bell.raw_fd()
    }

    /// Prepares to sleep on [`Endpoint::os_handle`]. False if events are waiting: take them first. After it was
    /// readable, take events until there are none, and arm again.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn arm(&self) -> Result<bool, Error> {
        let inner = &self.inner;
        let mut state = inner.open_state()?;
        inner.bell.clear();
        if !inner.arm_engines() {
            inner.progress(&mut state);
        }
        state.armed = true;
        let fresh = |port: &PortState| port.datagrams.as_ref().is_some_and(Datagrams::has_fresh);
        if state.talk.has_news() || state.ports.iter().any(fresh) {
            return Ok(false);
        }
        let now = inner.now();
        let due = state.talk.poll_timeout().map(|at| Duration::from_micros(at.saturating_sub(now)));
        inner.bell.set_timer(Some(due.unwrap_or(LOOK).min(LOOK)));
        // `progress` may have disarmed the engine, or brought completions.
        Ok(inner.arm_engines())
    }
}
