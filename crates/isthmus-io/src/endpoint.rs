//! An endpoint: the engine, its shell, and the threads that drive them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use isthmus_datagram::is_frames_only;
use isthmus_proto::{Config, Counters, Engine, PeerId, Secret};
use isthmus_udp::{Composition, Dropped};
use isthmus_wakeup::{Wakeup, WorkLock};
use isthmus_wire::{Address, AsId, Key, SubnetId};

use crate::burst::Burst;
use crate::carrier::{Carriers, Tls};
use crate::cpu_yield;
use crate::driver::Driver;
use crate::engine::Core;
use crate::error::{OpenError, PostError};
use crate::listen::{Listening, listen};
use crate::lock::{Mutex, MutexGuard};
use crate::log::warn_log;
use crate::memory::ProcessMemory;
use crate::poller::{Bell, Poller};
use crate::shell::Shell;
use crate::signals;
use crate::watch::Watch;
use crate::{
    Admission, Credit, Encrypt, LostPeer, Protocols, RegionTable, Settings, Summary, TlsMode, carrier,
};

pub(crate) mod asking;
pub(crate) mod diagnosis;
mod drive;
mod post;
mod sleep;

use sleep::wait_readable;

/// A packet train that measures the path has this fraction of the data to be sent (1/64).
const TRAIN_PART: u64 = 64;
/// Shortest packet train; for less data none is sent. Bytes.
const MIN_TRAIN: u64 = 128 << 10;
/// Longest packet train. Bytes.
const MAX_TRAIN: u64 = 1 << 20;

/// One endpoint. All calls may be made from any thread.
#[derive(Debug)]
pub struct Endpoint {
    address: Address,
    core: Mutex<Core>,
    /// One thread at a time drives it ([`Endpoint::with_shell`]).
    shell: WorkLock<Shell>,
    burst: Burst,
    /// The words that polls read first. They are updated with the engine locked, or by the thread that drives the
    /// shell.
    watch: Arc<Watch>,
    /// Tracks the sleepers on the bell, and whether the I/O thread or the program drives the endpoint.
    wakeup: Wakeup,
    closed: AtomicBool,
    bell: Bell,
    event_fd: Poller,
    driver: Arc<Driver>,
    _presence: cpu_yield::Presence,
    process: u32,
    linger: Duration,
    summary: Summary,
    stalls: diagnosis::Stalls,
    datagrams: OnceLock<diagnosis::TellDatagrams>,
}

/// Sleep of a closing endpoint between two passes over its lanes.
const CLOSE_STEP: Duration = Duration::from_micros(200);
/// [`Endpoint::close`] waits this long for peers to close their side of the lanes.
const PARTING: Duration = Duration::from_secs(2);
/// [`Endpoint::leave`] waits this long for lanes to take the Bye.
const LEAVING: Duration = Duration::from_millis(5);

impl Endpoint {
    /// Longest message that [`isthmus_proto::Options::inject`] accepts. Bytes.
    pub const INJECT_MAX: usize = 4096;
    /// Most pieces of one buffer. Count.
    pub const IOV_MAX: usize = 8;
    /// Longest operand of an atomic operation. Bytes.
    pub const ATOMIC_MAX: usize = 4096;

    /// Opens an endpoint that listens at `bind` (or as the settings say).
    ///
    /// # Errors
    /// [`OpenError`], whose text says what to do.
    pub fn open(
        settings: &Settings,
        bind: Option<SocketAddr>,
        regions: Arc<RegionTable>,
    ) -> Result<Arc<Self>, OpenError> {
        let tls = settings.trust(carrier::PROTOCOLS)?.map(Tls::new);
        let Listening { listeners, at, also, mut packets } = listen(settings, bind)?;
        let address = Address {
            as_id: AsId(settings.as_id),
            subnet: SubnetId(settings.subnet),
            locator: at,
            incarnation: random_incarnation()?,
            key: Key::NONE,
        };
        // With several rails, the kernel's route decides.
        let named = !settings.interface.is_empty() && also.is_empty();
        let from = named.then_some(at.ip()).filter(|ip| !is_frames_only(*ip));
        let config = Config {
            also,
            credit_grows: settings.credit == Credit::Auto,
            credit: match settings.credit {
                Credit::Auto => Config::CREDIT,
                Credit::Bytes(bytes) => bytes,
            },
            credit_total: settings.credit_total.0,
            buffered_max: settings.buffered_sends.0,
            streams: settings.streams.0,
            transfers: settings.all_protocols().transfers,
            peer_timeout_us: settings.peer_timeout.0 / 1_000,
            receives_wait: settings.lost_peer == LostPeer::Silent,
            proved_only: settings.tls == TlsMode::Required,
            sealed_only: settings.encrypt == Encrypt::Always && settings.admission == Admission::Closed,
            routers: settings.routers.0.clone(),
            seed: u64::from(address.incarnation),
            ..Config::new(address)
        };
        let config = match settings.admission {
            Admission::Closed => config.closed(random_secret()?),
            Admission::Open => config,
        };
        let address = config.address;
        if settings.admission == Admission::Closed {
            packets.iter_mut().for_each(|udp| udp.admit(&address.key));
        }
        let shell = Shell::new(Carriers::new(settings, at.ip(), from, packets, tls), listeners)?;
        let event_fd = Poller::new()?;
        event_fd.add(shell.poller(), 0, false)?;
        let endpoint = Arc::new(Self {
            address,
            core: Mutex::new(Core::new(Engine::new(config), ProcessMemory::new(regions))),
            shell: WorkLock::new(shell),
            burst: Burst::new(),
            watch: Arc::new(Watch::new()),
            wakeup: Wakeup::new(),
            closed: AtomicBool::new(false),
            bell: Bell::new()?,
            event_fd,
            driver: Driver::get()?,
            _presence: cpu_yield::Presence::new(),
            process: signals::process_number(),
            linger: settings.linger.to_duration(),
            summary: settings.summary.clone(),
            stalls: diagnosis::Stalls::new(settings.stall_warning.0 / 1_000),
            datagrams: OnceLock::new(),
        });
        endpoint.driver.adopt(&endpoint);
        cpu_yield::prepare();
        Ok(endpoint)
    }

    /// The address that peers need.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The engine's counts so far.
    pub fn counters(&self) -> Counters {
        self.core.lock().engine.counters()
    }

    /// One line for each peer to which there was a lane; the same lines that it logs when it closes.
    pub fn summary(&self) -> Vec<String> {
        self.with_shell(|shell| shell.summary(&self.core))
    }

    /// The carrier of each lane, for diagnosis: "TCP", or a provider of libfabric.
    pub fn carriers(&self) -> Vec<String> {
        self.with_shell(|shell| shell.carriers())
    }

    /// The compositions of UDP lanes and how many lanes had each, in the order in which each was first chosen.
    pub fn udp_protocols(&self) -> Vec<(Composition, u64)> {
        self.with_shell(|shell| shell.udp_protocols())
    }

    /// Why a local fabric that carried lanes has failed as a whole, if one has; other lanes carry its data. `None` also
    /// while another thread drives the endpoint; ask again.
    pub fn fabric_failure(&self) -> Option<String> {
        self.try_with_shell(|shell| shell.fabric_failure().map(str::to_owned))?
    }

    /// The protocols that messages and lanes are made of.
    pub fn protocols(&self) -> Protocols {
        self.with_shell(|shell| shell.protocols().clone())
    }

    /// Makes messages and lanes of these protocols instead: new ones, messages that wait, and lanes that carry data
    /// now. Nothing is lost or duplicated by that.
    pub fn set_protocols(&self, protocols: Protocols) {
        self.change_protocols(|all| *all = protocols);
    }

    /// Changes the protocols by `change`, while nobody else changes them.
    pub fn change_protocols<T>(&self, change: impl FnOnce(&mut Protocols) -> T) -> T {
        let changed = self.with_shell(|shell| {
            let mut protocols = shell.protocols().clone();
            let changed = change(&mut protocols);
            shell.set_protocols(&self.core, protocols);
            changed
        });
        // Operations that waited may go now. On a closed endpoint nothing goes.
        let _ = self.post(u64::MAX, |_| Ok(()));
        changed
    }

    /// Whether there may be lanes by UDP or Ethernet frames, by the setting `transport`.
    pub fn has_packets(&self) -> bool {
        self.with_shell(|shell| shell.carriers_mut().has_packets())
    }

    /// Follows the settings that name protocols in this configuration file. The endpoint checks the file for changes
    /// every second while it is active.
    pub fn follow(&self, path: &Path) {
        self.with_shell(|shell| shell.follow(path));
    }

    /// UDP packets that were dropped: garbled, from strangers, or altered on the way.
    pub fn dropped(&self) -> Dropped {
        self.with_shell(|shell| shell.dropped())
    }

    /// The index of a peer in this endpoint's table; makes no connection.
    ///
    /// # Errors
    /// [`PostError::Unreachable`] for an address that no route leads to.
    pub fn peer(&self, address: &Address) -> Result<PeerId, PostError> {
        if address.locator.port() == 0 {
            return Err(PostError::Unreachable(format!(
                "{address} has port 0, at which nothing listens: write the port at which the peer does"
            )));
        }
        Ok(self.core.lock().engine.peer(address)?)
    }

    /// The address of a peer.
    pub fn peer_address(&self, peer: PeerId) -> Address {
        self.core.lock().engine.peer_address(peer).unwrap_or_default()
    }

    /// Where a peer is reached. If the program never named the peer, this is on the host that it called from, whatever
    /// host it claims to listen on.
    pub fn peer_locator(&self, peer: PeerId) -> SocketAddr {
        let locator = self.core.lock().engine.peer_locator(peer);
        locator.unwrap_or_else(|| Address::default().locator)
    }

    /// The shortest round trip to a peer so far; `None` before the first measurement, and if only the round trip to a
    /// router is known.
    pub fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.core.lock().engine.round_trip_us(peer).map(Duration::from_micros)
    }

    /// Announces that this endpoint calls one peer, which answers before anybody else calls. The first data then does
    /// not wait a round trip for that answer, nor for the measurement of the path. If `bytes` are to go there by UDP, a
    /// packet train of 1/64 of that, at most 1 MiB and without data, measures the path meanwhile. Call this before the
    /// peer is named.
    pub fn call_one(&self, bytes: u64) {
        let train = (bytes / TRAIN_PART).min(MAX_TRAIN);
        let train = if train < MIN_TRAIN { 0 } else { train as u32 };
        self.with_shell(|shell| shell.carriers_mut().hurry(train));
        self.core.lock().engine.call_one();
    }

    /// Allows plain lanes without a warning: the program encrypts its data, or somebody wants plain lanes.
    pub fn allow_plain_lanes(&self) {
        self.with_shell(|shell| shell.carriers_mut().allow_plain());
    }

    /// From now on, incoming lanes count as those of strangers until the program vouches for their peer
    /// ([`Endpoint::vouch`]). For an open endpoint, where a greeting proves nothing.
    pub fn await_proof(&self) {
        self.with_shell(|shell| shell.await_proof(&self.core));
    }

    /// This peer has proved to the program who it is.
    pub fn vouch(&self, peer: PeerId) {
        self.with_shell(|shell| shell.vouch(peer, &self.core));
    }

    /// Locks the engine, for changes that may leave work for the next pass.
    fn work(&self) -> MutexGuard<'_, Core> {
        let guard = self.core.lock();
        self.watch.stir();
        guard
    }

    /// Ends the endpoint: sends what was accepted, tells the peers, closes the lanes. The setting `linger` bounds the
    /// first; copied messages get that long for each next one. Unfinished receives are dropped silently.
    pub fn close(&self) {
        if self.is_foreign() || self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.work().engine.begin_close();
        self.drain();
        self.part(PARTING, |shell| !shell.has_lanes());
    }

    /// Sends what was accepted, for `linger` at most. Messages that were reported as sent while only a copy existed get
    /// more time: as long as some are acknowledged within each `linger`.
    fn drain(&self) {
        let look = |endpoint: &Self| {
            let engine = &endpoint.core.lock().engine;
            (engine.is_drained(), engine.buffered_bytes())
        };
        let mut copies = look(self).1;
        loop {
            self.turn_until(self.linger, |endpoint, _| {
                let (drained, left) = look(endpoint);
                drained || left < copies
            });
            let (drained, left) = look(self);
            if drained {
                return;
            }
            if left == copies {
                break;
            }
            copies = left;
        }
        if copies > 0 {
            warn_log!(
                "{copies} bytes of sent messages are lost: no peer acknowledged any within `linger`, {:?}",
                self.linger
            );
        }
    }

    /// Ends the endpoint of a program that ends now. It tells each peer once, if that can be sent at once, and does not
    /// wait for acknowledgements: that would cost a round trip. Unacknowledged data may be lost, since the Bye may
    /// overtake it on another lane. A peer that does not get the Bye notices the end as if the process had been killed.
    pub fn leave(&self) {
        if self.is_foreign() || self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Send the last posts.
        self.turn_until(Duration::ZERO, |_, _| true);
        self.part(LEAVING, |shell| !shell.has_unsent());
    }

    /// Tells the peers that this endpoint ends, and drives it until it has ended or `limit` has passed.
    fn part(&self, limit: Duration, has_ended: fn(&mut Shell) -> bool) {
        self.summary.say(&self.summary());
        self.work().engine.say_bye();
        self.turn_until(limit, |_, shell| {
            shell.stop_listening();
            has_ended(shell)
        });
        // If the time is up, lanes still refer to the program's memory, which must be the program's own once this
        // returns. Besides, another thread may have checked `is_closed` before the endpoint was closed.
        self.with_shell(|shell| shell.end(&self.core));
    }

    fn turn_until(&self, limit: Duration, done: impl Fn(&Self, &mut Shell) -> bool) {
        let start = Instant::now();
        loop {
            let quiet = self.with_shell(|shell| {
                shell.run_pass(&self.core, true);
                let ends = done(self, shell) || start.elapsed() > limit;
                (!ends).then(|| shell.doze())
            });
            match quiet {
                None => return,
                Some(false) => continue,
                Some(true) => {}
            }
            wait_readable(self.event_fd.raw_fd(), CLOSE_STEP.as_millis().max(1) as i32);
        }
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.is_foreign()
    }

    /// Whether this process was forked from the one that opened the endpoint.
    fn is_foreign(&self) -> bool {
        self.process != signals::process_number()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn random_incarnation() -> io::Result<u32> {
    let random = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(random.max(1))
}

fn random_secret() -> io::Result<Secret> {
    let mut secret = Secret([0; 32]);
    getrandom::fill(&mut secret.0).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(secret)
}

#[inline]
pub(crate) fn total(iov: &[libc::iovec]) -> u64 {
    iov.iter().map(|piece| piece.iov_len as u64).sum()
}
