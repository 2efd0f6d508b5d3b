//! The I/O thread: one per process, asleep while the program polls by itself.
//!
//! The thread leaves an endpoint alone if its program has polled within the last tick (1 to 4 ms). If nobody has polled
//! for a tick, or a thread sleeps on the endpoint's descriptor, the I/O thread waits for the endpoint's events and
//! drives it. So acknowledgements, credit and large transfers go on while the program computes.
//!
//! While a program polls its only endpoint without a pause, the polls postpone the thread's alarm. A thread that wakes
//! up while all processors are busy makes the scheduler move programs from one to another.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::endpoint::Endpoint;
use crate::endpoint::diagnosis::{Asked, StateDoor};
use crate::figures;
use crate::log::{warn_refused, warn_sparingly};
use crate::own_addresses::{self, AGAIN_AFTER};
use crate::poller::{Alarm, Bell, Events, Poller};
use crate::signals;
use crate::watch::POLLS_A_LOOK;

/// The thread takes over after this time without a poll. It doubles while the program polls.
const TICK: Duration = Duration::from_millis(1);
/// The same after the program has polled for a while.
const TICK_MAX: Duration = Duration::from_millis(4);
/// Longest sleep while endpoints exist.
const REST: Duration = Duration::from_secs(1);

/// Shortest time between two postponements of the alarm; each is a system call.
const PUT_OFF_EVERY: Duration = Duration::from_millis(1);
/// Time between two searches for stalled operations. The alarm is not postponed beyond that.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Key of the bell in the poller.
const BELL: u64 = u64::MAX;
/// Key of the alarm in the poller.
const ALARM: u64 = u64::MAX - 1;
/// Key of the state socket in the poller.
const STATE: u64 = u64::MAX - 2;
/// Key of the changes of addresses in the poller.
const ADDRESSES: u64 = u64::MAX - 3;

/// The process's I/O thread.
#[derive(Debug)]
pub(crate) struct Driver {
    poller: Poller,
    bell: Bell,
    alarm: Alarm,
    /// The thread waits for its alarm only, which polls of the only endpoint may postpone.
    patient: AtomicBool,
    /// When the alarm was last postponed. Microseconds since `epoch`.
    put_off_us: AtomicU64,
    /// When the thread last looked for stalled operations. Microseconds since `epoch`.
    looked_us: AtomicU64,
    /// The socket on which the state of the endpoints is asked for; `None` if the system refused it.
    state: Option<StateDoor>,
    /// The state socket is not watched until the next look: the process had no descriptor for the asker.
    state_rests: AtomicBool,
    /// `None` if the system does not tell of them. Then only the look once a second finds them.
    addresses: Option<own_addresses::Changes>,
    epoch: Instant,
    newcomers: Mutex<Vec<Weak<Endpoint>>>,
}

/// An endpoint that the thread looks after.
struct Charge {
    endpoint: Weak<Endpoint>,
    polls: u64,
    /// The program polls by itself; the endpoint's events do not wake the thread.
    standby: bool,
    /// Everything that comes wakes the thread ([`Endpoint::doze`]).
    dozes: bool,
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
        let driver = Arc::new(Self {
            poller: Poller::new()?,
            bell: Bell::new()?,
            alarm: Alarm::new()?,
            patient: AtomicBool::new(false),
            put_off_us: AtomicU64::new(0),
            looked_us: AtomicU64::new(0),
            state: StateDoor::open(std::process::id()).ok(),
            state_rests: AtomicBool::new(false),
            addresses: own_addresses::Changes::open().ok(),
            epoch: Instant::now(),
            newcomers: Mutex::default(),
        });
        driver.poller.add(&driver.bell, BELL, false)?;
        driver.poller.add(&driver.alarm, ALARM, false)?;
        if let Some(state) = &driver.state {
            driver.poller.add(state, STATE, false)?;
        }
        if let Some(addresses) = &driver.addresses {
            driver.poller.add(addresses, ADDRESSES, false)?;
        }
        start(driver.clone())?;
        *slot = Some((process, driver.clone()));
        Ok(driver)
    }

    /// Looks after an endpoint until it is dropped.
    pub(crate) fn adopt(&self, endpoint: &Arc<Endpoint>) {
        self.newcomers.lock().push(Arc::downgrade(endpoint));
        self.bell.ring();
    }

    /// Wakes the thread, since something has changed.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    /// Postpones the thread's alarm if that is allowed and due. An endpoint calls this every few polls of its program.
    pub(crate) fn put_off(&self) {
        if !self.patient.load(Ordering::Relaxed) {
            return;
        }
        let now_us = self.epoch.elapsed().as_micros() as u64;
        let last_us = self.put_off_us.load(Ordering::Relaxed);
        let looked_us = self.looked_us.load(Ordering::Relaxed);
        if now_us.saturating_sub(last_us) >= PUT_OFF_EVERY.as_micros() as u64
            && now_us.saturating_sub(looked_us) < LOOK_EVERY.as_micros() as u64
        {
            self.put_off_us.store(now_us, Ordering::Relaxed);
            // If it fails, the thread wakes as planned.
            let _ = self.alarm.set(TICK_MAX);
        }
    }

    /// Time that the thread may sleep; `None`: until the alarm, since a program polls the only endpoint.
    fn plan(&self, charges: &[Charge]) -> Option<Duration> {
        let patient = matches!(charges, [only] if only.standby && only.tick == TICK_MAX);
        let patient = patient && self.alarm.set(TICK_MAX).is_ok();
        self.patient.store(patient, Ordering::Relaxed);
        if patient { None } else { charges.iter().map(rest).min() }
    }

    fn run(&self) {
        let mut charges: Vec<Charge> = Vec::new();
        let mut events = Events::with_capacity(16);
        let mut next_key = 0;
        let mut timeout = None;
        // When addresses are compared once more.
        let mut compare_at: Option<Instant> = None;
        loop {
            if let Err(error) = self.poller.wait(&mut events, timeout) {
                warn_sparingly!("the I/O thread cannot wait for events: {error}");
                thread::sleep(TICK);
            }
            let mut changed = compare_at.take_if(|at| *at <= Instant::now()).is_some();
            for ready in (0..).map_while(|i| events.get(i)) {
                match ready.key {
                    BELL => self.bell.clear(),
                    ALARM => self.alarm.clear(),
                    STATE => self.tell_state(&charges),
                    ADDRESSES => {
                        self.addresses.iter().for_each(own_addresses::Changes::clear);
                        (changed, compare_at) = (true, Some(Instant::now() + AGAIN_AFTER));
                    }
                    _ => {}
                }
            }
            for endpoint in self.newcomers.lock().drain(..) {
                charges.push(Charge {
                    endpoint,
                    polls: u64::MAX,
                    standby: true,
                    dozes: false,
                    tick: TICK,
                    key: next_key,
                });
                next_key += 1;
            }
            if changed {
                let endpoints = charges.iter().filter_map(|charge| charge.endpoint.upgrade());
                endpoints.for_each(|endpoint| endpoint.leave_lost_addresses());
            }
            charges.retain_mut(|charge| self.look_after(charge));
            self.look_for_stalls(&charges);
            let compare_in = compare_at.map(|at| at.saturating_duration_since(Instant::now()));
            timeout = self.plan(&charges).into_iter().chain(compare_in).min();
        }
    }

    fn look_for_stalls(&self, charges: &[Charge]) {
        let now_us = self.epoch.elapsed().as_micros() as u64;
        let looked_us = self.looked_us.load(Ordering::Relaxed);
        if now_us.saturating_sub(looked_us) < LOOK_EVERY.as_micros() as u64 {
            return;
        }
        self.looked_us.store(now_us, Ordering::Relaxed);
        if let Some(state) = self.state.as_ref().filter(|_| self.state_rests.load(Ordering::Relaxed)) {
            self.state_rests.store(self.poller.add(state, STATE, false).is_err(), Ordering::Relaxed);
        }
        charges.iter().filter_map(|charge| charge.endpoint.upgrade()).for_each(|endpoint| {
            endpoint.warn_of_stalls();
            endpoint.warn_of_drops();
            endpoint.look_at_lanes();
        });
    }

    fn tell_state(&self, charges: &[Charge]) {
        let endpoints = charges.iter().filter_map(|charge| charge.endpoint.upgrade());
        if let Some(state) = &self.state {
            let answered = state.answer(|asked| match asked {
                Asked::State => endpoints.map(|endpoint| endpoint.state()).collect(),
                Asked::Figures => {
                    let mut text = format!("{}\n", figures::HEAD);
                    endpoints.for_each(|endpoint| endpoint.tell_figures(&mut text));
                    text
                }
            });
            if let Err(error) = answered {
                warn_refused!(
                    &error,
                    "this process cannot tell its state to who asks (isthmus top, isthmus state)"
                );
                // The asker still waits, so the socket would wake this thread at once again.
                self.state_rests.store(self.poller.remove(state).is_ok(), Ordering::Relaxed);
            }
        }
    }

    /// Looks after an endpoint. False if it is gone.
    fn look_after(&self, charge: &mut Charge) -> bool {
        let Some(endpoint) = charge.endpoint.upgrade() else { return false };
        let polls = endpoint.polls();
        let made = polls.wrapping_sub(std::mem::replace(&mut charge.polls, polls));
        let active = endpoint.look(made > 0);
        if active != charge.standby {
            charge.standby = active;
            let changed = if active {
                self.poller.remove(endpoint.event_fd())
            } else {
                self.poller.add(endpoint.event_fd(), charge.key, false)
            };
            if let Err(error) = changed {
                warn_sparingly!("the I/O thread cannot watch an endpoint: {error}");
            }
        }
        endpoint.attend(active);
        charge.tick = if active { TICK_MAX.min(charge.tick * 2) } else { TICK };
        if !active {
            endpoint.drive();
            charge.dozes = endpoint.doze();
        } else if made < POLLS_A_LOOK {
            // Most polls look at shared memory only, and so few polls have done no more than that.
            endpoint.drive();
        }
        true
    }
}

/// Time that the thread may sleep as far as this endpoint is concerned.
fn rest(charge: &Charge) -> Duration {
    if charge.standby || !charge.dozes {
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
    spawned.map(|_| ()).map_err(crate::log::no_thread)
}
