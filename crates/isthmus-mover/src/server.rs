//! The service: it offers folders to the clients that it admits.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isthmus_io::log::{Sparing, no_thread};
use isthmus_io::{InterfaceError, OpenError};
use isthmus_proto::PeerId;
use isthmus_trust::{Shown, Trust};
use isthmus_wire::{Address, Versions};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat};

use crate::MoverError;
use crate::admission::{Admission, DENIED};
use crate::channel::Channel;
use crate::config::{Export, ServeConfig};
use crate::descriptors::wait_for;
use crate::expand::{MATCHES_MAX, expand};
use crate::landing::Landing;
use crate::port::Port;
use crate::receiver::{Receiving, ReceivingSide};
use crate::sender::{Sending, SendingSide};
use crate::session::{Event, NO_SESSION, STOPPING, TAG_OPEN, Wire, refuse};
use crate::sessions::{Flow, Sessions};
use crate::succession::Succession;
use crate::sweep::Sweep;
use crate::walk::{Filter, Root, Roots, is_contents};
use crate::watch::{Notice, Progress, Summary};
use crate::wire::{BLOCK_SIZES, Control, Open, SENDER_LIMIT_SINCE, TransferRequest, Trouble, VERSIONS};
use crate::{confine, names, sweep};

const MAGIC: &[u8; 8] = b"ISTHMOVE";
/// Length of the head of a first message: magic, version, session, whether it is unencrypted. Bytes.
const LEAD: usize = 8 + 2 + 8 + 1;
/// Longest first message. Bytes; it contains the TLS client hello.
const OPENING_MAX: usize = 16 << 10;
/// Posted receives for first messages. Count.
const OPENINGS: usize = 16;
/// Longest time that a client may take to authenticate and to send its request.
const GREETING: Duration = Duration::from_secs(30);
/// Longest wait for sessions to end when the service ends.
const ENDING: Duration = Duration::from_secs(30);
/// Limit on failed files that the log names for a session. The session's last line has their number.
const FAILURES_TOLD: usize = 100;
/// Limit on lines in 10 s about failed sessions of clients without a certificate: anybody may be one. Count.
const FAILED_SESSIONS_TOLD: u32 = 10;
/// The same of clients with a certificate, if nothing was copied. Count; a client that tries again and again needs less.
const KNOWN_FAILED_SESSIONS_TOLD: u32 = 100;
/// Limit on lines in 10 s about failed files of all sessions. Count; one session may have all of them.
const FAILED_FILES_TOLD: u32 = FAILURES_TOLD as u32;
/// Limit on paths of a request that the log names. Count.
const PATHS_TOLD: usize = 5;
const LOOK: Duration = Duration::from_millis(100);

/// A client's first message.
pub(crate) fn opening(session: u64, plain: bool, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(LEAD + bytes.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSIONS.oldest.to_le_bytes());
    out.extend_from_slice(&session.to_le_bytes());
    out.push(u8::from(plain));
    out.extend_from_slice(bytes);
    out
}

/// A decoded first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// The oldest version of the protocol that the client speaks.
    pub version: u16,
    /// The number that the client gave the session.
    pub session: u64,
    /// It wants neither encryption nor authentication.
    pub plain: bool,
    /// The first bytes of its channel.
    pub bytes: &'a [u8],
}

impl<'a> Opening<'a> {
    /// Decodes a first message. None if these bytes are something else.
    pub fn decode(message: &'a [u8]) -> Option<Self> {
        let (magic, rest) = message.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<2>()?;
        let (session, rest) = rest.split_first_chunk::<8>()?;
        let (plain, bytes) = rest.split_first()?;
        let known = magic == MAGIC && *plain <= 1;
        let (version, session) = (u16::from_le_bytes(*version), u64::from_le_bytes(*session));
        known.then_some(Self { version, session, plain: *plain == 1, bytes })
    }
}

/// The settings of the service until the next reload. Sessions keep the settings that they began with.
struct Current {
    config: ServeConfig,
    trust: Option<Trust>,
}

impl Current {
    /// Reads the files that the configuration names.
    fn load(config: ServeConfig) -> Result<Self, MoverError> {
        let trust = config.trust()?;
        for line in config.idle_rules()? {
            tracing::warn!("{line}");
        }
        if let (Some(files), Some(trust)) = (&config.tls, &trust) {
            for line in trust.expiring(&files.certificate) {
                tracing::warn!("{line}");
            }
        }
        Self::with(config, trust)
    }

    fn with(config: ServeConfig, trust: Option<Trust>) -> Result<Self, MoverError> {
        for (name, export) in &config.exports {
            let place =
                |error| MoverError::Usage(format!("export {name}: {}: {error}", export.path.display()));
            confine::folder(&export.path).map_err(place)?;
        }
        Ok(Self { config, trust })
    }

    /// Whether a session whose client showed these certificates may go on.
    fn believes(&self, shown: &Shown) -> bool {
        self.trust.as_ref().is_none_or(|trust| trust.believes(shown))
    }
}

/// Logs faults of unknown clients: one line in ten seconds, with the number of lines left out.
fn complain(from: impl std::fmt::Display, error: impl std::fmt::Display) {
    static SPARING: Sparing = Sparing::new();
    if let Some(left_out) = SPARING.due(Instant::now()) {
        tracing::warn!(%from, %error, "{from}: {error}{left_out}");
    }
}

/// Logs that a file was not copied, with a limit for all sessions together.
fn tell_failed(from: SocketAddr, as_id: u32, text: &str) {
    static SPARING: Sparing = Sparing::letting(FAILED_FILES_TOLD);
    if let Some(left_out) = SPARING.due(Instant::now()) {
        tracing::warn!(%from, as_id, "{from}: not copied: {text}{left_out}");
    }
}

/// What to append to the line about a session that failed; `None` if the line is left out. The audit trail has all that
/// clients with a certificate have copied.
fn failure_due(has_certificate: bool, has_copied: bool) -> Option<String> {
    static OF_ALL: Sparing = Sparing::letting(FAILED_SESSIONS_TOLD);
    static OF_KNOWN: Sparing = Sparing::letting(KNOWN_FAILED_SESSIONS_TOLD);
    let due = if has_certificate { &OF_KNOWN } else { &OF_ALL }.due(Instant::now());
    let told = due.map(|left_out| left_out.to_string());
    told.or_else(|| (has_certificate && has_copied).then(String::new))
}

/// What the audit trail tells of a session, however that ends.
#[derive(Default)]
struct Audit {
    /// What the client asked for. `None` if it did not say.
    request: Option<Request>,
    /// It may have that.
    is_granted: bool,
    /// Its files and bytes so far.
    summary: Summary,
    /// Files whose digests both sides have compared. Count.
    digests: u64,
}

/// What a client may have.
struct Granted<'a> {
    config: &'a ServeConfig,
    /// The client's AS.
    as_id: u32,
    export: &'a Export,
    /// The exported folder.
    root: Arc<OwnedFd>,
}

/// What a client asks for, in words for the log.
struct Request {
    export: String,
    direction: Flow,
    /// The first paths below the export.
    paths: String,
    dry_run: bool,
}

impl Request {
    fn new(open: &Open) -> Self {
        let (direction, paths) = match &open.way {
            TransferRequest::Put { path, .. } => (Flow::In, std::slice::from_ref(path)),
            TransferRequest::Get { paths, .. } => (Flow::Out, &paths[..]),
        };
        let export = names::shown(open.export.as_bytes());
        let told = paths.iter().take(PATHS_TOLD).map(|path| format!("{export}/{}", names::shown(path)));
        let mut told = told.collect::<Vec<_>>().join(", ");
        if paths.len() > PATHS_TOLD {
            told = format!("{told} and {} more", paths.len() - PATHS_TOLD);
        }
        Self { export, direction, paths: told, dry_run: open.rules.dry_run }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dry = if self.dry_run { "dry run, nothing is copied: " } else { "" };
        let verb = match self.direction {
            Flow::In => "put",
            Flow::Out => "get",
        };
        write!(f, "{dry}{verb} {}", self.paths)
    }
}

impl Audit {
    /// Counts what a session reports. Only a session that breaks off needs these counts: others have a summary.
    fn note(&mut self, notice: &Notice) {
        match notice {
            Notice::File { bytes, .. } => {
                self.summary.files += 1;
                self.summary.bytes += bytes;
                self.digests += 1;
            }
            Notice::Kept { .. } => self.summary.kept += 1,
            Notice::Failed { .. } => self.summary.failed += 1,
            _ => {}
        }
    }

    /// Takes the summary of a session that ended well.
    fn end(&mut self, summary: Summary) {
        self.summary = summary;
        // A dry run compares none.
        self.digests =
            if self.request.as_ref().is_some_and(|request| request.dry_run) { 0 } else { summary.files };
    }
}

struct Service {
    port: Arc<Port>,
    current: Mutex<Arc<Current>>,
    admission: Mutex<Admission>,
    succession: Succession,
    /// Number of clients so far.
    came: AtomicU64,
    sweep: Mutex<Sweep>,
    sessions: Arc<Sessions>,
}

/// Serves until `stop` is set. Calls `ready` with its address.
///
/// # Errors
/// The configuration is wrong, or the system refuses an address.
pub fn serve(config: ServeConfig, stop: &AtomicBool, ready: impl FnOnce(Address)) -> Result<(), MoverError> {
    serve_tended(config, stop, ready, &mut || None, &Arc::default())
}

/// A configuration that a running service is to take.
pub struct Reload {
    /// The configuration.
    pub config: ServeConfig,
    /// Called when the configuration is in force.
    pub done: fn(),
}

/// Like [`serve`]. It calls `tend` several times a second while the service is alive. If `tend` returns a
/// configuration, that replaces the present one for new sessions, and ends those whose certificates it does not
/// believe. A faulty configuration is logged and ignored. What the service does can be read from `sessions`.
///
/// # Errors
/// As for [`serve`].
pub fn serve_tended(
    config: ServeConfig,
    stop: &AtomicBool,
    ready: impl FnOnce(Address),
    tend: &mut dyn FnMut() -> Option<Reload>,
    sessions: &Arc<Sessions>,
) -> Result<(), MoverError> {
    run(Current::load(config)?, stop, ready, tend, sessions.clone())
}

/// Like [`serve`], with certificates that are in no file. None: neither encrypted nor authenticated.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(
    config: ServeConfig,
    trust: Option<Trust>,
    stop: &AtomicBool,
    ready: impl FnOnce(Address),
) -> Result<(), MoverError> {
    run(Current::with(config, trust)?, stop, ready, &mut || None, Arc::default())
}

fn run(
    current: Current,
    stop: &AtomicBool,
    ready: impl FnOnce(Address),
    tend: &mut dyn FnMut() -> Option<Reload>,
    sessions: Arc<Sessions>,
) -> Result<(), MoverError> {
    let settings = current.config.settings();
    let settings = settings.map_err(|error| MoverError::Usage(format!("listen: {error}")))?;
    let port = Port::open(&settings).map_err(|error| match error {
        // The user wrote `listen`, and no `interface`.
        OpenError::Interface(InterfaceError::Unknown { wanted, present }) => MoverError::Local(format!(
            "listen = \"{}\": this host has no address {wanted}; it has {present}",
            current.config.listen
        )),
        error => MoverError::Local(error.to_string()),
    })?;
    port.await_proof();
    let (to, inbox) = crossbeam_channel::unbounded();
    let port = Arc::new(port);
    let listen = |buffer| port.recv(None, TAG_OPEN, buffer, 0, to.clone());
    for _ in 0..OPENINGS {
        listen(vec![0; OPENING_MAX].into())?;
    }
    ready(port.address());
    let (succession, came) = Default::default();
    sessions.trust(current.trust.as_ref());
    let admission = Mutex::new(Admission::new(current.config.sessions));
    let (current, sweep) = (Mutex::new(Arc::new(current)), Mutex::new(Sweep::new()));
    let service =
        Arc::new(Service { port: port.clone(), current, admission, succession, came, sweep, sessions });
    while !stop.load(Ordering::Relaxed) {
        if let Some(reload) = tend() {
            service.follow(reload);
        }
        service.sweep.lock().look(&port, &to);
        let Ok(Event::Net(news)) = inbox.recv_timeout(LOOK) else { continue };
        if news.key == sweep::KEY {
            service.sweep.lock().found(&port, &to, &news);
            continue;
        }
        if let (Some(peer), None) = (news.peer, &news.error) {
            let message = news.buffer[..news.len.min(news.buffer.len())].to_vec();
            service.admit(peer, message);
        }
        listen(news.buffer)?;
    }
    service.end();
    Ok(())
}

impl Service {
    /// Uses another configuration for new sessions. Sessions end whose certificates it does not believe.
    fn follow(&self, Reload { config, done }: Reload) {
        let before = self.current.lock().clone();
        let fixed = |config: &ServeConfig| (config.listen.clone(), config.status.clone());
        if fixed(&config) != fixed(&before.config) || config.device != before.config.device {
            tracing::warn!("listen, status and [device] change only with a restart");
        }
        match Current::load(config) {
            Ok(current) => {
                self.admission.lock().bound(current.config.sessions);
                self.sessions.trust(current.trust.as_ref());
                let current = Arc::new(current);
                *self.current.lock() = current.clone();
                self.admission.lock().deny_unless(|shown| current.believes(shown));
                tracing::info!("configuration and certificates read again");
                done();
            }
            Err(error) => tracing::error!("reload refused, going on as before: {error}"),
        }
    }

    fn admit(self: &Arc<Self>, peer: PeerId, message: Vec<u8>) {
        let current = self.current.lock().clone();
        let Some(Opening { version, session, plain, .. }) = Opening::decode(&message) else {
            let from = self.port.peer_locator(peer);
            return complain(from, "it sent something that is no transfer's beginning");
        };
        let why = if !is_spoken(version, plain) {
            let Versions { oldest, newest } = VERSIONS;
            format!(
                "it speaks versions {oldest} to {newest} of the protocol, not {version}; use the same isthmus release"
            )
        } else if plain && current.trust.is_some() {
            "it takes no sessions without certificates; leave --plain out".to_owned()
        } else if !plain && current.trust.is_none() {
            "it has no certificates; use --plain if you trust the network".to_owned()
        } else {
            match self.begin(current, peer, session, message) {
                Ok(()) => return,
                Err(error) => format!("{NO_SESSION}{error}"),
            }
        };
        let from = self.port.peer_locator(peer);
        complain(from, format_args!("gets no session: {why}"));
        self.sessions.refuse();
        refuse(&self.port, peer, session, &why);
    }

    /// Starts the thread that authenticates a client and reads its request.
    fn begin(
        self: &Arc<Self>,
        current: Arc<Current>,
        peer: PeerId,
        session: u64,
        message: Vec<u8>,
    ) -> Result<(), MoverError> {
        let channel = match &current.trust {
            Some(trust) => Channel::server(trust)?,
            None => Channel::plain(),
        };
        let wire = Wire::new(self.port.clone(), peer, Some(peer), session, channel)?;
        let order = self.came.fetch_add(1, Ordering::Relaxed);
        self.admission.lock().arrive(order, self.port.peer_locator(peer).ip(), wire.sender());
        let service = self.clone();
        let thread = std::thread::Builder::new().name("mover-session".to_owned());
        if let Err(error) = thread.spawn(move || service.hold(&current, peer, session, wire, &message, order))
        {
            self.admission.lock().leave(order);
            return Err(no_thread(error).into());
        }
        Ok(())
    }

    /// Runs one session from its first message to its end.
    fn hold(
        &self,
        current: &Current,
        peer: PeerId,
        session: u64,
        mut wire: Wire,
        message: &[u8],
        order: u64,
    ) {
        let begun = Instant::now();
        let from = self.port.peer_locator(peer);
        let mut audit = Audit::default();
        let done = self.converse(current, peer, &mut wire, message, order, &mut audit);
        if let Err(error) = &done {
            wire.end(error);
        }
        let as_id = wire.channel.peer_as().map(|id| id.0);
        let certificate = wire.channel.peer_fingerprint().map(|shown| shown.to_string());
        drop(wire);
        self.admission.lock().leave(order);
        self.succession.end(order);
        self.sweep.lock().add(peer, session);
        // The audit trail: one line for each session, with the identity that the client proved.
        let seconds = begun.elapsed().as_secs_f64();
        let Audit { request, is_granted, summary: Summary { files, bytes, kept, failed, sent }, digests } =
            audit;
        if done.is_err() && !is_granted {
            self.sessions.refuse();
        }
        let direction = request.as_ref().map(|request| request.direction.name());
        let dry_run = request.as_ref().is_some_and(|request| request.dry_run);
        let export = request.as_ref().map(|request| &request.export[..]);
        let paths = request.as_ref().map(|request| &request.paths[..]);
        let counts = format!("{files} files, {bytes} bytes, {kept} kept, {failed} failed");
        match (done, &request) {
            // Anybody can connect and be refused, so these lines are limited.
            (Err(error), _) if as_id.is_none() && current.trust.is_some() => complain(from, error),
            (Err(error), asked) => {
                let Some(left_out) = failure_due(as_id.is_some(), files > 0 || bytes > 0) else { return };
                let text = match asked {
                    None => format!("{error}{left_out}"),
                    Some(asked) => format!("{asked}: {error}; before that {counts}{left_out}"),
                };
                tracing::warn!(
                    %from, as_id, certificate, export, direction, paths, dry_run, files, bytes, kept, failed, digests,
                    seconds, %error, "{from}: {text}"
                );
            }
            (Ok(()), asked) => tracing::info!(
                %from, as_id, certificate, export, direction, paths, dry_run, files, bytes, kept, failed, sent, digests,
                seconds, "{from}: {}: {counts}", asked.as_ref().map(Request::to_string).unwrap_or_default()
            ),
        }
    }

    fn converse(
        &self,
        current: &Current,
        peer: PeerId,
        wire: &mut Wire,
        message: &[u8],
        order: u64,
        audit: &mut Audit,
    ) -> Result<(), MoverError> {
        let heard = wire.channel.receive(Opening::decode(message).map_or(&[], |opening| opening.bytes));
        wire.flush()?;
        heard?;
        let (open, rest) = greet(wire)?;
        self.port.vouch(peer);
        audit.request = Some(Request::new(&open));
        let shown = wire.channel.shown();
        self.admission.lock().prove(order, shown.clone());
        // A reload during the handshake has not seen these certificates.
        if shown.is_some_and(|shown| !self.current.lock().believes(&shown)) {
            return Err(MoverError::Refused(DENIED.to_owned()));
        }
        let granted = self.grant(current, peer, wire, order, &open)?;
        audit.is_granted = true;
        let mut moved = Progress::default();
        let summary = self.serve(granted, peer, wire, (open, rest), &mut |notice| {
            audit.note(notice);
            if let Notice::Progress(progress) = notice {
                moved = *progress;
            }
        });
        match summary {
            Ok(summary) => audit.end(summary),
            // Whole files, and blocks of others.
            Err(_) => audit.summary.bytes = audit.summary.bytes.max(moved.bytes),
        }
        summary.map(drop)
    }

    /// Decides whether a client may have what it asks for.
    fn grant<'a>(
        &self,
        current: &'a Current,
        peer: PeerId,
        wire: &Wire,
        order: u64,
        open: &Open,
    ) -> Result<Granted<'a>, MoverError> {
        // Without certificates the client states its AS itself.
        let claimed = self.port.peer_address(peer).as_id.0;
        let as_id = wire.channel.peer_as().map_or(claimed, |proven| proven.0);
        let config = &current.config;
        let export = export(config, open, as_id).map_err(MoverError::Usage)?;
        let transfer = (as_id, open.transfer);
        self.admission.lock().admit(order, self.succession.has(&transfer))?;
        self.succession.succeed(transfer, order, &wire.sender())?;
        let root = Arc::new(wait_for(|| confine::folder(&export.path)).map_err(|error| {
            let text = "its folder cannot be opened where it is served";
            MoverError::Local(format!("export {:?}: {text}: {error}; tell who runs the service", open.export))
        })?);
        Ok(Granted { config, as_id, export, root })
    }

    /// Copies what was granted.
    fn serve(
        &self,
        Granted { config, as_id, export, root }: Granted<'_>,
        peer: PeerId,
        wire: &mut Wire,
        (open, rest): (Open, Vec<Control>),
        audit: &mut dyn FnMut(&Notice),
    ) -> Result<Summary, MoverError> {
        let (block, memory) = (open.block, config.memory.0);
        let (threads, disk) = (config.threads, config.disk());
        let of = |path: &[u8], error: &dyn std::fmt::Display| {
            format!("{}/{}: {error}", open.export, names::shown(path))
        };
        let usage = |path: &[u8], error: &dyn std::fmt::Display| MoverError::Usage(of(path, error));
        let from = self.port.peer_locator(peer);
        let flow = match &open.way {
            TransferRequest::Put { .. } => Flow::In,
            TransferRequest::Get { .. } => Flow::Out,
        };
        let entry = self.sessions.begin((as_id, from.ip()), &open.export, flow);
        let mut failures = 0;
        let mut quiet = |notice: Notice| {
            audit(&notice);
            match notice {
                Notice::Progress(progress) => entry.note(progress, self.port.round_trip(peer)),
                Notice::Failed { text, .. } if failures < FAILURES_TOLD => {
                    failures += 1;
                    tell_failed(from, as_id, &text);
                }
                notice => tracing::debug!("{notice:?}"),
            }
        };
        let summary = match &open.way {
            TransferRequest::Put { path, folder } => {
                let path = names::tidy(path).map_err(|error| usage(path, &error))?;
                let landing = Landing::new(root, &path, *folder, open.rules, block, export.any_symlink)
                    .map_err(|error| usage(&path, &error))?;
                wire.say(&Control::Opened { name: landing.name().map(<[u8]>::to_vec) })?;
                let receiving = Receiving { block, memory, threads, disk, rate: open.rate };
                let side = ReceivingSide::start(receiving, landing, wire, &mut quiet);
                side.map_err(for_now)?.run(rest)?
            }
            TransferRequest::Get { paths, choice } => {
                let filter = Filter::new(choice, block).map_err(MoverError::Usage)?;
                let missing = |path: &[u8], error| Trouble { path: path.to_vec(), text: of(path, &error) };
                let mut room = MATCHES_MAX;
                let roots = paths.iter().flat_map(|path| match expand(&root, path, &mut room) {
                    Ok(paths) => paths
                        .iter()
                        .map(|path| below(&root, &open.export, path).map_err(|error| missing(path, error)))
                        .collect(),
                    Err(error) => vec![Err(missing(path, error))],
                });
                let roots = Roots::new(roots).map_err(MoverError::Usage)?;
                wire.say(&Control::Opened { name: None })?;
                let rate_limit = self.port.rate_limit(&config.device.rate_limit, from.ip());
                if rate_limit > 0 && wire.channel.version() >= SENDER_LIMIT_SINCE {
                    wire.say(&Control::SenderLimit(rate_limit))?;
                }
                let (rate, rules) = (open.rate, open.rules);
                let sending = Sending { block, memory, threads, disk, rate, rate_limit, rules };
                let side = SendingSide::start(sending, roots, filter, wire, &mut quiet);
                side.map_err(for_now)?.run()?
            }
        };
        entry.end(summary);
        Ok(summary)
    }

    /// Ends all sessions, and waits for them at most [`ENDING`].
    fn end(&self) {
        self.admission.lock().stop(STOPPING);
        let until = Instant::now() + ENDING;
        while !self.admission.lock().is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// The error of a session for which this host lacks something, such as threads. The client may come again.
fn for_now(error: MoverError) -> MoverError {
    match error {
        MoverError::Local(text) => MoverError::Lost(text),
        error => error,
    }
}

/// Whether a client whose oldest version is `version` can have a session. With certificates TLS chooses the newest
/// common version. Without certificates `version` itself is spoken.
fn is_spoken(version: u16, plain: bool) -> bool {
    version <= VERSIONS.newest && (!plain || version >= VERSIONS.oldest)
}

/// The export that a client asks for, if it may use it so.
fn export<'a>(config: &'a ServeConfig, open: &Open, as_id: u32) -> Result<&'a Export, String> {
    if !BLOCK_SIZES.contains(&open.block) || !open.block.is_power_of_two() {
        let (least, most) = (BLOCK_SIZES.start(), BLOCK_SIZES.end());
        return Err(format!(
            "a block of {} bytes; powers of two from {least} to {most} are taken",
            open.block
        ));
    }
    // A client must not learn whether an export is missing or closed to its AS.
    let is_allowed = |export: &Export| export.allow.as_ref().is_none_or(|allow| allow.contains(&as_id));
    let Some(export) = config.exports.get(&open.export).filter(|export| is_allowed(export)) else {
        let allowed = config.exports.iter().filter(|(_, export)| is_allowed(export));
        let names: Vec<_> = allowed.map(|(name, _)| name.as_str()).collect();
        return Err(format!(
            "there is no export {:?} for AS {as_id}; it may use: {}",
            names::shown(open.export.as_bytes()),
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        ));
    };
    if matches!(open.way, TransferRequest::Put { .. }) && !export.writable {
        return Err(format!("export {:?} is read-only", open.export));
    }
    Ok(export)
}

/// Waits until the client is authenticated and has sent its request.
fn greet(wire: &mut Wire) -> Result<(Open, Vec<Control>), MoverError> {
    let until = Instant::now() + GREETING;
    let mut heard = Vec::new();
    loop {
        let inbox = wire.inbox.clone();
        match inbox.recv_deadline(until) {
            Err(_) => return Err(MoverError::Lost("the client did not say what it wants".to_owned())),
            Ok(Event::End(text)) => return Err(MoverError::Lost(text)),
            Ok(Event::Stop(text)) => {
                if !wire.channel.is_ready() {
                    wire.refuse(&text);
                }
                return Err(MoverError::Refused(text));
            }
            Ok(Event::Net(news)) => drop(wire.take(news, &mut heard)?),
            Ok(Event::Disk(_) | Event::Unreached(_)) => {}
        }
        while let Some(control) = wire.channel.hear()? {
            heard.push(control);
        }
        if wire.channel.is_ready() && !heard.is_empty() {
            let rest = heard.split_off(1);
            return match heard.pop() {
                Some(Control::Open(open)) => Ok((open, rest)),
                _ => Err(MoverError::Refused("the client did not begin with what it wants".to_owned())),
            };
        }
    }
}

/// The root of a walk of `path` below an export. A symbolic link that is named is followed, as on the client's side.
fn below(root: &Arc<OwnedFd>, export: &str, path: &[u8]) -> std::io::Result<Root> {
    let tidy = names::tidy(path).map_err(std::io::Error::other)?;
    let named = |name: &[u8]| (!is_contents(path)).then(|| name.to_vec());
    if tidy.is_empty() {
        return Ok(Root { dir: root.clone(), at: b".".to_vec(), name: named(export.as_bytes()) });
    }
    let name = named(names::split(&tidy).1);
    // If the path has no link, no folder need be kept open. There may be many such paths.
    match wait_for(|| confine::open(root, &tidy, OFlags::PATH, Mode::empty())) {
        Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Symlink => {
            Ok(Root { dir: root.clone(), at: tidy, name })
        }
        _ => {
            let (dir, at) = wait_for(|| confine::follow(root, &tidy))?;
            Ok(Root { dir: Arc::new(dir), at, name })
        }
    }
}

#[cfg(test)]
mod tests {
    use isthmus_io::Settings;

    use super::*;
    use crate::wire::{Choice, Rules};
    use crate::{Direction, Disk, Transfer};

    /// The first message of a client of release 0.2.0 (`tools/release.env`), and the answer.
    #[test]
    fn what_a_known_client_has_copied_is_told_however_often_it_fails() {
        let many = KNOWN_FAILED_SESSIONS_TOLD + 10;
        let told = (0..many).filter(|_| failure_due(true, false).is_some()).count() as u32;
        assert!((1..=2 * KNOWN_FAILED_SESSIONS_TOLD).contains(&told), "{told}");
        assert!((0..many).all(|_| failure_due(true, true).is_some()));
        assert!((0..many).any(|_| failure_due(false, true).is_none()));
    }

    #[test]
    fn a_client_of_the_release_is_understood() {
        let recorded = b"ISTHMOVE\x06\0\x08\x07\x06\x05\x04\x03\x02\x01\x01";
        let first = Opening { version: 6, session: 0x0102_0304_0506_0708, plain: true, bytes: b"" };
        assert_eq!(Opening::decode(recorded), Some(first));
        assert!(is_spoken(first.version, true));
        assert_eq!(opening(first.session, true, b""), recorded);
        let put = Open {
            version: 6,
            export: "data".to_owned(),
            way: TransferRequest::Put { path: b"file".to_vec(), folder: false },
            rules: Rules::default(),
            block: 1 << 20,
            rate: 0,
            transfer: [7; 16],
        };
        let recorded = [&b"\0\x06\x04data\0\x04file\0\0\0\0\0\x80\x80\x40\0"[..], &[7; 16]].concat();
        assert_eq!(Control::Open(put.clone()).encode().expect("short"), recorded);
        assert_eq!(Control::decode(&recorded), Ok(Control::Open(put)));
        let opened = Control::Opened { name: Some(b"file".to_vec()) };
        assert_eq!(Control::decode(b"\x01\x01\x04file"), Ok(opened));
    }

    #[test]
    fn what_is_no_first_message_is_not_taken_for_one() {
        let good = opening(7, true, b"rest");
        assert!(Opening::decode(&good).is_some());
        (0..LEAD).for_each(|len| assert_eq!(Opening::decode(&good[..len]), None));
        for place in (0..MAGIC.len()).chain([LEAD - 1]) {
            let mut bad = good.clone();
            bad[place] ^= 0x42;
            assert_eq!(Opening::decode(&bad), None, "{place}");
        }
    }

    /// Digests of a file are those of its blocks, which are subtrees of BLAKE3's tree.
    #[test]
    fn only_blocks_of_known_lengths_are_taken() {
        let text = "listen = \"127.0.0.1:0\"\nplain = true\n[export.data]\npath = \"/data\"\n";
        let config = ServeConfig::parse("serve.toml", text).expect("accepted");
        let is_taken = |block| {
            let way = TransferRequest::Get { paths: Vec::new(), choice: Choice::default() };
            let (rules, transfer) = (Rules::default(), [7; 16]);
            let open = Open { version: 6, export: "data".to_owned(), way, rules, block, rate: 0, transfer };
            export(&config, &open, 1).is_ok()
        };
        assert!([1 << 16, 1 << 20, 1 << 24].into_iter().all(is_taken));
        assert!(![0, 1, 1 << 15, 3 << 16, 1 << 25, u64::MAX].into_iter().any(is_taken));
    }

    /// Without certificates only the first message tells the version.
    #[test]
    fn what_a_client_speaks_at_least_is_spoken_or_left_to_tls() {
        let Versions { oldest, newest } = VERSIONS;
        for (version, plain, spoken) in [
            (oldest, true, true),
            (newest, false, true),
            (oldest - 1, true, false),
            (oldest - 1, false, true),
            (newest + 1, true, false),
            (newest + 1, false, false),
        ] {
            assert_eq!(is_spoken(version, plain), spoken, "{version} {plain}");
        }
    }

    /// Serves a folder without certificates until the value is set. Returns the address too.
    fn started(
        export: &std::path::Path,
    ) -> (Address, Arc<AtomicBool>, std::thread::JoinHandle<Result<(), MoverError>>) {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nplain = true\nsessions = 1\n[export.data]\nwritable = true\npath = {export:?}\n"
        );
        let config = ServeConfig::parse("serve.toml", &text).expect("accepted");
        let (stop, (told, ready)) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
        let serving = std::thread::spawn({
            let stop = stop.clone();
            move || serve(config, &stop, |address| told.send(address).expect("awaited"))
        });
        (Address { incarnation: 0, ..ready.recv().expect("it serves") }, stop, serving)
    }

    /// Somebody else who knows a session's number does not speak in it.
    #[test]
    fn nobody_else_speaks_in_a_session() {
        let place = tempfile::tempdir().expect("a folder");
        let (service, stop, serving) = started(place.path());
        let settings = Settings { interface: "127.0.0.1".to_owned(), ..Settings::default() };
        let [client, other] = [(); 2].map(|()| Arc::new(Port::open(&settings).expect("opened")));
        let (inbox, news) = crossbeam_channel::unbounded::<Event>();
        let limit = Duration::from_secs(20);
        let deliver = |from: &Port, tag, message| {
            let peer = from.peer(&service).expect("an address");
            from.deliver(peer, tag, message, 0, inbox.clone()).expect("posted");
            let Ok(Event::Net(news)) = news.recv_timeout(limit) else { panic!("no news") };
            assert_eq!(news.error, None);
        };
        deliver(&client, TAG_OPEN, opening(1, true, b""));
        // Bytes of a channel: a control message that is longer than any.
        let forged = [&[0][..], &0_u64.to_le_bytes(), &[0xff; 8]].concat();
        deliver(&other, crate::session::tag(1, false), forged);
        let peer = client.peer(&service).expect("an address");
        let mut wire = Wire::new(client, peer, None, 1, Channel::plain()).expect("made");
        let way = TransferRequest::Put { path: b"file".to_vec(), folder: false };
        let (export, rules, transfer) = ("data".to_owned(), Rules::default(), [7; 16]);
        let open = Open { version: 6, export, way, rules, block: 1 << 20, rate: 0, transfer };
        wire.say(&Control::Open(open)).expect("short");
        wire.flush().expect("sent");
        let mut heard = Vec::new();
        while heard.is_empty() {
            if let Event::Net(news) = wire.inbox.recv_timeout(limit).expect("an answer") {
                wire.take(news, &mut heard).expect("the session goes on");
            }
        }
        assert_eq!(heard[0], Control::Opened { name: Some(b"file".to_vec()) });
        stop.store(true, Ordering::Relaxed);
        serving.join().expect("it ends").expect("well");
    }

    /// Otherwise such clients would keep all others out for [`GREETING`].
    #[test]
    fn who_never_says_what_it_wants_keeps_nobody_out() {
        let place = tempfile::tempdir().expect("a folder");
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("export")).expect("made");
        std::fs::write(at("file"), "f").expect("written");
        let (service, stop, serving) = started(&at("export"));
        let settings = Settings { interface: "127.0.0.1".to_owned(), ..Settings::default() };
        let port = Port::open(&settings).expect("opened");
        let peer = port.peer(&service).expect("an address");
        let (inbox, news) = crossbeam_channel::unbounded::<Event>();
        for session in 0..40 {
            port.deliver(peer, TAG_OPEN, opening(session, true, b""), session, inbox.clone())
                .expect("posted");
        }
        for _ in 0..40 {
            let Ok(Event::Net(news)) = news.recv() else { panic!("no news") };
            assert_eq!(news.error, None);
        }
        let transfer = Transfer {
            service,
            trust: None,
            settings,
            export: "data".to_owned(),
            direction: Direction::Put { sources: vec![at("file")], path: b"file".to_vec(), folder: false },
            choice: Choice::default(),
            rules: Rules::default(),
            block: 1 << 20,
            rate: 0,
            memory: 64 << 20,
            threads: 1,
            disk: Disk::default(),
            is_trial: false,
        };
        let copied = transfer.run(&mut |_| ()).expect("it is let in");
        assert_eq!((copied.files, std::fs::read(at("export/file")).expect("there")), (1, b"f".to_vec()));
        stop.store(true, Ordering::Relaxed);
        serving.join().expect("it ends").expect("well");
    }
}
