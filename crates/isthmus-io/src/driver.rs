//! The I/O thread: one per process, asleep while programs poll by themselves.
//!
//! An endpoint whose program has polled within the last tick is left alone. When nobody
//! has polled for a tick, or somebody sleeps on the endpoint's descriptor, the thread
//! waits for the endpoint's events and turns it, so that acknowledgements, credits and
//! large transfers go on while the program computes.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::endpoint::Endpoint;
use crate::log::warn_log;
use crate::poller::{Bell, Events, Poller};
use crate::signals;

/// How long a program may go without polling before the thread takes over: at first, and
/// after it has polled without a break for a while.
const TICK: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(4);
/// Longest sleep while endpoints exist.
const REST: Duration = Duration::from_secs(1);

const BELL: u64 = u64::MAX;

/// The process's I/O thread.
#[derive(Debug)]
pub(crate) struct Driver {
    poller: Poller,
    bell: Bell,
    newcomers: Mutex<Vec<Weak<Endpoint>>>,
}

struct Charge {
    endpoint: Weak<Endpoint>,
    polls: u64,
    /// The program polls by itself; its events do not wake the thread.
    standby: bool,
    tick: Duration,
    key: u64,
}

/// The driver, and the process that started its thread.
static DRIVER: Mutex<Option<(u32, Arc<Driver>)>> = Mutex::new(None);

impl Driver {
    /// The process's driver; its thread starts with the first endpoint.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        let process = signals::process_number();
        let mut slot = DRIVER.lock();
        if let Some((owner, driver)) = &*slot
            && *owner == process
        {
            return Ok(driver.clone());
        }
        let driver =
            Arc::new(Self { poller: Poller::new()?, bell: Bell::new()?, newcomers: Mutex::default() });
        driver.poller.add(&driver.bell, BELL, false)?;
        start(driver.clone())?;
        *slot = Some((process, driver.clone()));
        Ok(driver)
    }

    /// Looks after an endpoint until it is dropped.
    pub(crate) fn adopt(&self, endpoint: &Arc<Endpoint>) {
        self.newcomers.lock().push(Arc::downgrade(endpoint));
        self.bell.ring();
    }

    /// Something changed that a sleeping thread should look at.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    fn run(&self) {
        let mut charges: Vec<Charge> = Vec::new();
        let mut events = Events::with_capacity(16);
        let mut next_key = 0;
        let mut timeout = None;
        loop {
            if let Err(error) = self.poller.wait(&mut events, timeout) {
                warn_log!("the I/O thread cannot wait for events: {error}");
                thread::sleep(TICK);
            }
            if (0..).map_while(|i| events.get(i)).any(|ready| ready.key == BELL) {
                self.bell.silence();
            }
            for endpoint in self.newcomers.lock().drain(..) {
                charges.push(Charge { endpoint, polls: u64::MAX, standby: true, tick: TICK, key: next_key });
                next_key += 1;
            }
            charges.retain_mut(|charge| self.look_after(charge));
            timeout = charges.iter().map(rest).min();
        }
    }

    /// False when the endpoint is gone.
    fn look_after(&self, charge: &mut Charge) -> bool {
        let Some(endpoint) = charge.endpoint.upgrade() else { return false };
        let polls = endpoint.polls();
        let active = polls != std::mem::replace(&mut charge.polls, polls) && !endpoint.is_armed();
        if active != charge.standby {
            charge.standby = active;
            endpoint.set_standby(active);
            let changed = if active {
                self.poller.remove(endpoint.event_fd())
            } else {
                self.poller.add(endpoint.event_fd(), charge.key, false)
            };
            if let Err(error) = changed {
                warn_log!("the I/O thread cannot watch an endpoint: {error}");
            }
        }
        endpoint.attend(active);
        charge.tick = if active { TICK_MAX.min(charge.tick * 2) } else { TICK };
        if !active {
            endpoint.drive();
            endpoint.doze();
        }
        true
    }
}

/// How long the thread may sleep for this endpoint's sake.
fn rest(charge: &Charge) -> Duration {
    if charge.standby {
        return charge.tick;
    }
    charge
        .endpoint
        .upgrade()
        .map_or(REST, |endpoint| endpoint.next_deadline().map_or(REST, |at| at.min(REST)))
}

/// Starts the thread with all signals blocked: they are the program's.
fn start(driver: Arc<Driver>) -> io::Result<()> {
    let restore = signals::block_all();
    let spawned = thread::Builder::new().name("isthmus-io".to_owned()).spawn(move || driver.run());
    drop(restore);
    spawned.map(|_| ())
}
