//! TCP lanes: non-blocking sockets, vectored reads and writes, and the tuning of each connection.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use isthmus_path::losses::Trace;
use isthmus_path::pacing::{PaceVerdict, Pacing, quantum};
use isthmus_path::segments::Stuck;
use isthmus_path::sharing::PathLook;
use isthmus_path::thresholds::distance::REPAIR_US;
use isthmus_path::thresholds::sharing::LOOK_US;
use isthmus_path::{Congestion, Hosts, LaneSample, LossVerdict, Micros, TcpLook, Weakness};
use isthmus_units::PerHost;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::header_fields::HeaderFields;
use super::limit::Limit;
use super::path_sharing::PathSharing;
use super::{Settled, Silence, Transfer};
use crate::figures::LaneCounts;
use crate::log::{info_few, info_log};
use crate::settings::TcpCongestion;

/// Unsent data in the kernel from which on the lane is not writable. Bytes. Small, so that small messages do not wait
/// behind it.
const NOTSENT_LOWAT: u32 = 128 << 10;
/// Receive window on a long path from the beginning, as far as `net.ipv4.tcp_rmem` allows. Bytes. The kernel lets a
/// window grow only with data that arrives in order; on a lossy path that is too slow.
const LONG_WINDOW: i32 = 8 << 20;
/// The option of `tcp(7)` for the longest retransmission timeout (Linux 6.15).
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// The lowest value of that option. Milliseconds.
const MIN_RTO_MS: u64 = 1_000;
/// What the kernel adds to two round trips before a loss probe, as the other end may delay the acknowledgement of a
/// single packet (`TCP_RTO_MIN`). Microseconds.
const PROBE_SLACK_US: u64 = 200_000;
/// The option for the shortest retransmission timeout (Linux 6.15).
const TCP_RTO_MIN_US: libc::c_int = 45;
/// The option for the longest delay of an acknowledgement (Linux 6.15).
const TCP_DELACK_MAX_US: libc::c_int = 46;
/// Values for that option, tried in this order. Microseconds; the kernel takes no less than two of its ticks.
const ACK_SOON_US: [libc::c_int; 3] = [2_000, 8_000, 20_000];
/// A lane has idled if it had something to send for less than this many tenths of the time.
const BUSY_TENTHS: u128 = 8;
/// The kernel is told of a new pace only if it differs by at least this fraction (1/50).
const PACE_PART: u64 = 50;
/// Time between two looks at a lane.
const LOOK: Duration = Duration::from_micros(LOOK_US);
/// Time between two looks at a lane on a short path.
const GLANCE: Duration = Duration::from_millis(1);
/// Congestion control that uses what other traffic leaves: TCP-LP (Kuzmanovic and Knightly, 2006).
const BACKGROUND: &str = "lp";
/// An attempt to connect fails after this long without an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Silence before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Pause between keepalive probes.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(3);
/// Unanswered keepalive probes after which the connection ends. Count.
const KEEPALIVE_PROBES: u32 = 4;
/// A lane stands still after this many retransmissions in a row without an answer. Count; the first are not rare on a
/// lossy path.
pub(crate) const STUCK_RESENT: u8 = 3;
/// The same of a lane that the peer has left for another one ([`isthmus_proto::Engine::is_left_by_peer`]). Count.
pub(crate) const LEFT_RESENT: u8 = 2;
/// Most connections that may wait to be accepted. Count.
const BACKLOG: i32 = 4096;

/// A socket that accepts lanes at `at`; port 0 lets the system choose.
pub(crate) fn listen(at: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    if at.port() != 0 {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The knowledge about paths, and the settings for TCP lanes.
#[derive(Debug)]
pub(crate) struct Paths {
    congestion: PerHost<TcpCongestion>,
    /// What is known about the paths to all hosts.
    pub(super) hosts: Hosts,
    /// The start of that clock.
    epoch: Instant,
    sharing: PathSharing,
    limit: Limit,
    /// Silence after which a lane is given up.
    patience: Duration,
    /// Fields in the IP headers of packets.
    fields: HeaderFields,
}

impl Paths {
    /// `congestion` is the setting of that name, `fields` those of packets. Lanes are given up after `patience` of
    /// silence. `hosts` has times since `epoch`.
    pub(super) fn new(
        (hosts, epoch): (Hosts, Instant),
        congestion: PerHost<TcpCongestion>,
        sharing: PathSharing,
        limit: Limit,
        patience: Duration,
        fields: HeaderFields,
    ) -> Self {
        Self { congestion, hosts, epoch, sharing, limit, patience, fields }
    }

    /// The time on the clock of [`Paths::hosts`].
    pub(super) fn now(&self) -> Micros {
        self.epoch.elapsed().as_micros() as Micros
    }

    /// Fields in the IP headers of packets.
    pub(super) fn fields(&self) -> HeaderFields {
        self.fields
    }

    /// Changes the congestion control that is set.
    pub(super) fn set_congestion(&mut self, congestion: PerHost<TcpCongestion>) {
        self.congestion = congestion;
    }
}

/// It has been logged that TCP cannot go in the background.
static TOLD_EQUAL: Once = Once::new();

/// The kernel's name of a congestion control.
fn name_of(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::Cubic => "cubic",
        Congestion::Bbr => "bbr",
    }
}

fn tell_equal() {
    info_log!(
        "lanes by TCP share paths as equals, not in the background: the kernel does not offer {0} (modprobe tcp_{0}; \
         net.ipv4.tcp_allowed_congestion_control)",
        BACKGROUND
    );
}

/// A lane that is a TCP connection.
#[derive(Debug)]
pub(crate) struct TcpLane {
    socket: Socket,
    /// The limit that the kernel was told ([`kernel_patience`]).
    patience: Duration,
    /// The round trip that the engine was told. Microseconds; `None`: the kernel had none yet.
    told_rtt_us: Option<u64>,
    /// The last sample of it; `None` if measurements change nothing: the user chose the congestion control, or the peer
    /// is on this host.
    trace: Option<Trace>,
    /// It was asked to run BBR.
    asked: bool,
    /// It runs BBR.
    lossy: bool,
    /// When it was last looked at.
    looked: Option<Instant>,
    /// Bytes that had arrived then.
    acked: u64,
    /// Time for which it had had something to send until then. Microseconds.
    busy_us: u64,
    /// Rate limit because of its path. Bytes/s; `None`: no limit.
    held: Option<NonZeroU64>,
    /// Rate limit because of `rate_limit`. Bytes/s; `None`: no limit.
    limit: Option<NonZeroU64>,
    /// The pace that the kernel was told. Bytes/s; `None`: no limit.
    pace: Option<NonZeroU64>,
    /// Measurements on a short path.
    pacing: Pacing,
    glanced: Option<Instant>,
}

impl TcpLane {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            patience: CONNECT_TIMEOUT,
            told_rtt_us: None,
            trace: Some(Trace::default()),
            asked: false,
            lossy: false,
            looked: None,
            acked: 0,
            busy_us: 0,
            held: None,
            limit: None,
            pace: None,
            pacing: Pacing::default(),
            glanced: None,
        }
    }

    /// Starts to connect, from the address `from` and by the interface `by` if they are given. `packets` says how many
    /// bytes segments have at most, both ways, and their fields.
    pub(super) fn dial(
        to: SocketAddr,
        from: Option<IpAddr>,
        by: Option<&str>,
        packets: (Option<u32>, HeaderFields),
    ) -> io::Result<Self> {
        dial(to, from, by, packets).map(Self::new)
    }

    /// An incoming connection.
    pub(super) fn accept(socket: Socket, paths: &mut Paths) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let mut lane = Self::new(socket);
        lane.prepare(paths);
        Ok(lane)
    }

    /// Its part of `rate_limit`. Bytes/s; `None`: no limit.
    pub(super) fn limit(&self) -> Option<NonZeroU64> {
        self.limit
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether it is connected.
    ///
    /// # Errors
    /// The reason if connecting has failed.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        match self.socket.take_error()? {
            Some(error) => Err(error),
            None => Ok(self.socket.peer_addr().is_ok()),
        }
    }

    pub(super) fn settle(&mut self, paths: &mut Paths) -> io::Result<Settled> {
        if !self.is_connected()? {
            return Ok(Settled::Not { until_writable: true });
        }
        self.prepare(paths);
        Ok(Settled::Yes)
    }

    /// Has the kernel give the connection up after `patience` without an answer.
    fn tune(&mut self, patience: Duration) {
        let info = info(&self.socket);
        // The least round trip is the largest number before the first sample.
        let least_us = info.as_ref().map_or(0, |info| info.tcpi_min_rtt);
        let rtt = Duration::from_micros(if least_us == u32::MAX { 0 } else { least_us.into() });
        self.patience = kernel_patience(patience, info.as_ref().map_or(Duration::ZERO, uncounted), rtt);
        tune(&self.socket, self.patience);
    }

    /// Sets a new connection up.
    fn prepare(&mut self, paths: &mut Paths) {
        self.tune(paths.patience);
        paths.fields.apply(&self.socket);
        let (path, local) = (self.rtt_us(), is_local(&self.socket));
        self.told_rtt_us = path;
        match path {
            Some(rtt_us) if rtt_us >= REPAIR_US => {
                widen(&self.socket);
                keep_trying(&self.socket, rtt_us);
            }
            Some(_) if !local => repair_soon(&self.socket),
            _ => {}
        }
        if let Some(host) = peer_ip(&self.socket).filter(|_| !local) {
            self.keep_to_limit(paths.limit.first_part(Instant::now(), host, self.raw()));
            if let Some(limit) = self.limit {
                info_few!("a lane by TCP with {host} begins with {limit} B/s, its part: rate_limit");
            }
        }
        self.choose(paths, true);
    }

    /// Applies a changed setting ([`Paths::set_congestion`]). `former` is the one before.
    pub(super) fn follow(&mut self, paths: &Paths, former: &PerHost<TcpCongestion>) {
        let is_other = |host| former.of(host).0 != paths.congestion.of(host).0;
        if peer_ip(&self.socket).is_some_and(is_other) {
            self.choose(paths, false);
        }
    }

    /// Sets the congestion control for the peer's host. `fresh` says that the connection is new, so it runs the
    /// kernel's default already.
    fn choose(&mut self, paths: &Paths, fresh: bool) {
        let host = peer_ip(&self.socket).filter(|_| !is_local(&self.socket));
        let Some(host) = host else {
            // Between processes of one host, BBR's pacing only costs.
            set_congestion(&self.socket, name_of(Congestion::Cubic));
            self.trace = None;
            return;
        };
        let (wanted, why) = paths.congestion.of(host);
        (self.trace, self.asked, self.lossy, self.held) = (None, false, false, None);
        match wanted {
            TcpCongestion::Named(name) => {
                self.take(&name, why);
            }
            TcpCongestion::System if fresh => {}
            TcpCongestion::System => {
                self.take(&system_congestion(), why);
            }
            TcpCongestion::Auto => self.begin(paths, host),
            TcpCongestion::Background if set_congestion(&self.socket, BACKGROUND) => {
                info_few!("a lane by TCP with {host} takes {}: {why}", BACKGROUND);
            }
            TcpCongestion::Background => {
                TOLD_EQUAL.call_once(tell_equal);
                self.begin(paths, host);
            }
        }
        self.pace();
    }

    /// Takes the congestion control of the plan for its host.
    fn begin(&mut self, paths: &Paths, host: IpAddr) {
        self.trace = Some(Trace::default());
        set_congestion(&self.socket, name_of(Congestion::Cubic));
        let (congestion, why) = paths.hosts.plan(paths.now(), host).congestion(self.rtt_us());
        if congestion == Congestion::Bbr {
            self.go_lossy(why);
        }
    }

    /// Asks the kernel about the lane every [`LOOK_US`], and changes its congestion control if the path
    /// loses packets by itself.
    pub(super) fn look(&mut self, paths: &mut Paths) -> Option<Looked> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            let host = peer_ip(&self.socket);
            return self.glance().map(|weakness| Looked {
                weakness: Some(weakness),
                host,
                ..Looked::default()
            });
        }
        let now = Instant::now();
        let since = self.looked.replace(now).map(|at| now.saturating_duration_since(at));
        let look = look(&self.socket)?;
        let short = look.is_short();
        let TcpLook { mut lane, arrived, in_flight, least_rtt_us, .. } = look;
        let acked = arrived.saturating_sub(std::mem::replace(&mut self.acked, arrived));
        let busy = lane.busy_us.saturating_sub(std::mem::replace(&mut self.busy_us, lane.busy_us));
        let idled = since.is_some_and(|since| u128::from(busy) * 10 < since.as_micros() * BUSY_TENTHS);
        let host = peer_ip(&self.socket).filter(|_| !is_local(&self.socket));
        if let Some(host) = host {
            let seen = PathLook { rtt_us: lane.rtt_us, least_rtt_us, acked, in_flight };
            let at = paths.now();
            let part = paths.sharing.on_look(at, &mut paths.hosts, host, seen);
            lane.sharers = part.endpoints;
            // Only BBR overfills the queue.
            if !short {
                self.held = part.pace.filter(|_| self.lossy).and_then(NonZeroU64::new);
            }
            self.keep_to_limit(paths.limit.part(now, host, self.raw(), part.endpoints));
        }
        let weakness = if short { None } else { self.judge(lane, paths) };
        let nearer_us = self.take_nearer_us(least_rtt_us);
        Some(Looked { lane: Some(lane), weakness, host, arrived: acked, idled, nearer_us })
    }

    /// The round trip, if the one that the engine was told is no more true: the first packet of a connection may wait a
    /// second for ARP, or come only when it is sent again.
    fn take_nearer_us(&mut self, least_rtt_us: u64) -> Option<u64> {
        // The kernel's values before the first sample are 0 and the largest number.
        let is_nearer = (1..u64::from(u32::MAX)).contains(&least_rtt_us)
            && self.told_rtt_us.is_none_or(|told| told / 2 >= least_rtt_us);
        is_nearer.then(|| *self.told_rtt_us.insert(least_rtt_us))
    }

    /// Looks at a lane on a short path between those looks.
    fn glance(&mut self) -> Option<Weakness> {
        if self.trace.is_none() || self.glanced.is_some_and(|at| at.elapsed() < GLANCE) {
            return None;
        }
        self.glanced = Some(Instant::now());
        let look = look(&self.socket).filter(TcpLook::is_short)?;
        if let Some(held) = self.pacing.on_look(&look) {
            self.keep_pace(held);
        }
        let rate = self.pacing.is_outdone(&look)?;
        Some(Weakness::Overflows { rtt_us: look.least_rtt_us, rate })
    }

    /// Paces the lane to the rate of a short path.
    fn keep_pace(&mut self, held: PaceVerdict) {
        if let (None, Some(host)) = (self.held, peer_ip(&self.socket)) {
            info_few!("a lane by TCP with {host} is paced: its bursts overflow a short path's queue");
        }
        self.held = NonZeroU64::new(held.pace);
        self.pace();
        if held.lossy {
            self.go_lossy("packets are lost however slowly they are sent");
        }
    }

    /// Judges the losses of the path.
    fn judge(&mut self, sample: LaneSample, paths: &mut Paths) -> Option<Weakness> {
        let (trace, host) = (self.trace.as_mut()?, peer_ip(&self.socket)?);
        let now = paths.now();
        match paths.hosts.on_tcp_sample(now, host, trace, sample) {
            LossVerdict::Clean => None,
            LossVerdict::CleanAgain => {
                let clean = name_of(Congestion::Cubic);
                info_few!("lanes by TCP with {host} begin with {clean} again: nothing is lost");
                None
            }
            LossVerdict::Lossy { is_slow_to_repair } => {
                self.go_lossy("packets are lost without a queue");
                is_slow_to_repair.then_some(Weakness::Lossy)
            }
        }
    }

    /// Limits the lane to its part of `rate_limit`. Bytes/s.
    fn keep_to_limit(&mut self, part: Option<u64>) {
        let limit = part.and_then(NonZeroU64::new);
        if limit != std::mem::replace(&mut self.limit, limit) {
            let most = limit.map_or(u64::MAX, quantum).min(NOTSENT_LOWAT.into());
            let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(most as u32);
        }
        self.pace();
    }

    /// Tells the kernel how fast the lane may send, if that has changed enough.
    fn pace(&mut self) {
        let pace = [self.held, self.limit].into_iter().flatten().min();
        let same = match (pace, self.pace) {
            (Some(pace), Some(before)) => pace.get().abs_diff(before.get()) < before.get() / PACE_PART,
            (pace, before) => pace == before,
        };
        if !same {
            self.pace = pace;
            set_pace(&self.socket, pace.map_or(u64::MAX, NonZeroU64::get));
        }
    }

    /// Changes to BBR, if the kernel offers it.
    fn go_lossy(&mut self, why: &str) {
        if !std::mem::replace(&mut self.asked, true) {
            self.lossy = self.take(name_of(Congestion::Bbr), why);
        }
    }

    /// Sets a congestion control, and logs it. False if the kernel does not offer it.
    fn take(&self, wanted: &str, why: &str) -> bool {
        let taken = set_congestion(&self.socket, wanted);
        match peer_ip(&self.socket) {
            Some(host) if taken => info_few!("a lane by TCP with {host} takes {wanted}: {why}"),
            Some(host) => info_few!(
                "a lane by TCP with {host} cannot take {wanted}, which the kernel does not offer (modprobe \
                 tcp_{wanted}; net.ipv4.tcp_allowed_congestion_control): {why}"
            ),
            None => {}
        }
        taken
    }

    /// Reads into `pieces`.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(super) unsafe fn read(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        if let [piece] = pieces {
            // `recv` is cheaper than `readv`, and programs that wait call it all the time.
            // SAFETY: the caller vouches for the piece; the kernel writes only there.
            return self.transfer(unsafe {
                libc::recv(self.raw(), piece.iov_base, piece.iov_len, libc::MSG_DONTWAIT)
            });
        }
        // SAFETY: the caller vouches for the pieces; the kernel writes only there.
        self.transfer(unsafe { libc::readv(self.raw(), pieces.as_ptr(), pieces.len() as i32) })
    }

    /// Writes from `pieces`; a closed peer is an error, not a signal.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(super) unsafe fn write(&mut self, pieces: &mut [libc::iovec]) -> Transfer {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        if let [piece] = pieces {
            // SAFETY: the caller vouches for the piece.
            return self.transfer(unsafe { libc::send(self.raw(), piece.iov_base, piece.iov_len, flags) });
        }
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len();
        // SAFETY: the caller vouches for the pieces, and `message` outlives the call.
        self.transfer(unsafe { libc::sendmsg(self.raw(), &message, flags) })
    }

    /// The result of a system call.
    fn transfer(&self, result: isize) -> Transfer {
        if result >= 0 {
            return Transfer::Bytes(result as usize);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Transfer::Blocked,
            _ => Transfer::Failed(self.explain(error)),
        }
    }

    /// An error of the socket. If the kernel gave the connection up, it says how long nothing was acknowledged.
    fn explain(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::TimedOut {
            return error;
        }
        let uncounted = info(&self.socket).as_ref().map_or(Duration::ZERO, uncounted);
        io::Error::other(Silence(self.patience + uncounted))
    }

    /// Reads into one buffer; `None` if there is nothing now.
    pub(super) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let came = rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(n, _)| n);
        blocked(came).map_err(|error| self.explain(error))
    }

    /// The first byte that came, without taking it, or 0 if the connection has ended; `None` while nothing has come.
    pub(super) fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let peeked = rustix::net::recv(&self.socket, &mut first, RecvFlags::DONTWAIT | RecvFlags::PEEK);
        Ok(blocked(peeked)?.map(|_| first[0]))
    }

    /// Writes; a closed peer is an error, not a signal.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send_vectored_with_flags(slices, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    }

    /// The host at the other end.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        peer_ip(&self.socket)
    }

    /// Closes our side.
    pub(super) fn finish(&mut self) {
        // This fails if the peer has closed already.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Makes the kernel drop unsent data and reset the connection when the socket is closed.
    pub(super) fn discard(&self) {
        // A failure only wastes bandwidth: other lanes send the same data.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }

    /// Undoes [`TcpLane::discard`].
    pub(super) fn keep(&self) -> io::Result<()> {
        self.socket.set_linger(None)
    }

    /// The kernel's counts.
    pub(super) fn counts(&self) -> LaneCounts {
        let Some(info) = info(&self.socket).filter(|info| info.tcpi_rtt > 0) else {
            return LaneCounts::default();
        };
        LaneCounts {
            sent_bytes: Some(info.tcpi_bytes_acked),
            received_bytes: Some(info.tcpi_bytes_received),
            packets: Some(u64::from(info.tcpi_data_segs_out)),
            lost: Some(u64::from(info.tcpi_total_retrans)),
            rtt_us: Some(u64::from(info.tcpi_rtt)),
        }
    }

    /// The kernel's estimate of the round trip. Microseconds.
    pub(super) fn rtt_us(&self) -> Option<u64> {
        info(&self.socket).map(|info| u64::from(info.tcpi_rtt)).filter(|rtt_us| *rtt_us > 0)
    }

    /// The addresses of both ends; `None` if the other end is on this host.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let own = self.socket.local_addr().ok()?.as_socket()?;
        let peer = self.peer().filter(|_| !is_local(&self.socket))?;
        Some((own, peer))
    }

    /// The address of this end.
    pub(super) fn own_ip(&self) -> Option<IpAddr> {
        ip_of(self.socket.local_addr())
    }

    /// The address at the other end.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }

    /// What is known of the lane if it stands still: its oldest data was retransmitted at least `resent` times, and
    /// nothing came back.
    pub(super) fn stuck(&self, resent: u8) -> Option<Stuck> {
        let info = info(&self.socket).filter(|_| !is_local(&self.socket))?;
        if info.tcpi_unacked == 0 || info.tcpi_retransmits < resent {
            return None;
        }
        let first_sent = info.tcpi_data_segs_out.saturating_sub(info.tcpi_total_retrans);
        let acked = u64::from(first_sent.saturating_sub(info.tcpi_unacked));
        Some(Stuck {
            segment: info.tcpi_snd_mss,
            unacked: self.unacked().saturating_sub(u64::from(info.tcpi_notsent_bytes)),
            mean_acked: info.tcpi_bytes_acked.checked_div(acked).unwrap_or(0),
        })
    }

    /// Bytes that the kernel has taken and the peer has not acknowledged.
    fn unacked(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes one integer.
        let status = unsafe { libc::ioctl(self.raw(), libc::TIOCOUTQ, &raw mut bytes) };
        if status == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The result of a look at a lane.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// `None` if it is not due yet.
    pub(crate) lane: Option<LaneSample>,
    pub(super) weakness: Option<Weakness>,
    /// The peer's host, if it is not this one.
    pub(super) host: Option<IpAddr>,
    /// Bytes that have arrived since the last look.
    pub(super) arrived: u64,
    /// The lane did not always have something to send meanwhile.
    pub(super) idled: bool,
    /// A round trip much shorter than the one that is known. Microseconds.
    pub(super) nearer_us: Option<u64>,
}

/// Like [`TcpLane::dial`].
fn dial(
    to: SocketAddr,
    from: Option<IpAddr>,
    by: Option<&str>,
    (segment, fields): (Option<u32>, HeaderFields),
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    fields.apply(&socket);
    if let Some(ip) = from {
        // Choose the port at connect: then it need only be unused towards this address. At bind it must be unused on
        // the whole host, and the host runs out of ports sooner.
        set(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        socket.bind(&SocketAddr::new(ip, 0).into()).map_err(|error| match error.kind() {
            // Of a port, that would mean that all are taken. None is chosen yet.
            io::ErrorKind::AddrNotAvailable => io::Error::other(format!("this host no longer has {ip}")),
            _ => error,
        })?;
    }
    if let Some(interface) = by
        && let Err(error) = socket.bind_device(Some(interface.as_bytes()))
    {
        // Linux before 5.7 allows it to root only. Then the kernel's route is all that there is.
        info_few!("a lane by TCP to {to} takes the kernel's route, not {interface}: {error}");
    }
    socket.set_tcp_user_timeout(Some(CONNECT_TIMEOUT))?;
    if let Some(segment) = segment {
        limit_segments(&socket, segment);
    }
    match fields.connect(&socket, to) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// How long the kernel waits for the answer to a packet before it counts the silence (`TCP_USER_TIMEOUT`). It sends a
/// loss probe (RFC 8985), waits as long as for any packet, and counts from the retransmission after that. It is not
/// known from the timer itself, which has doubled while packets were lost.
fn uncounted(info: &libc::tcp_info) -> Duration {
    let rtt_us = u64::from(info.tcpi_rtt);
    let retransmits_us = rtt_us + 4 * u64::from(info.tcpi_rttvar);
    Duration::from_micros(retransmits_us + retransmits_us.min(2 * rtt_us + PROBE_SLACK_US))
}

/// What to tell the kernel so that it gives a connection up after `patience` without an answer. At least a quarter of
/// the patience, since the path may be shorter than it looks: the first packet of the connection may have come late.
/// The engine waits for the rest, and dials meanwhile. And no less than the answer to a packet that is sent again takes, as
/// the kernel sends no packet later than this limit; unless that seems to be half of the patience.
fn kernel_patience(patience: Duration, uncounted: Duration, rtt: Duration) -> Duration {
    let answer = 2 * rtt + Duration::from_micros(PROBE_SLACK_US);
    let answer = if answer <= patience / 2 { answer } else { Duration::ZERO };
    patience.saturating_sub(uncounted).max(patience / 4).max(answer)
}

/// Sets the options that every lane has. It ends after `patience` without an answer.
fn tune(socket: &Socket, patience: Duration) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_PAUSE)
        .with_retries(KEEPALIVE_PROBES);
    // Each option only makes a lane better, so no failure ends it.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(patience));
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(NOTSENT_LOWAT);
}

/// Sets the congestion control. False if the kernel does not offer it.
fn set_congestion(socket: &Socket, name: &str) -> bool {
    socket.set_tcp_congestion(name.as_bytes()).is_ok()
}

/// The congestion control of new sockets.
fn system_congestion() -> String {
    let new = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    let name = new.and_then(|socket| socket.tcp_congestion()).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}

/// Widens the receive window before any data has come. `SO_RCVLOWAT` makes the kernel reserve as much as a reader waits
/// for, and keeps its autotuning, which `SO_RCVBUF` would switch off.
fn widen(socket: &Socket) {
    for least in [LONG_WINDOW, 1] {
        set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, least);
    }
}

/// Limits the rate at which the kernel sends. Bytes/s.
fn set_pace(socket: &Socket, pace: u64) {
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, pace);
}

/// Limits the segments of a connection, or of those that a listener will accept, in both directions. Bytes. Only before
/// it is connected.
pub(crate) fn limit_segments(socket: &Socket, segment: u32) {
    set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, segment);
}

/// Makes the kernel retransmit at least every second, or every four round trips, instead of after growing pauses. A
/// path that was cut for a while is then used again soon. Linux before 6.15 has no such option, and doubles its pauses
/// up to two minutes.
fn keep_trying(socket: &Socket, rtt_us: u64) {
    let most_ms = (4 * rtt_us / 1_000).max(MIN_RTO_MS) as libc::c_int;
    set(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, most_ms);
}

/// Makes the kernel retransmit within milliseconds on a short path, and acknowledge sooner than that, since the other
/// end does the same. By default it waits 200 ms. Linux before 6.15 has no such options. A peer without them may get a
/// packet twice that it has not acknowledged yet.
fn repair_soon(socket: &Socket) {
    let took = |name, us| set(socket, libc::IPPROTO_TCP, name, us);
    if let Some(ack) = ACK_SOON_US.into_iter().find(|us| took(TCP_DELACK_MAX_US, *us)) {
        took(TCP_RTO_MIN_US, 2 * ack);
    }
}

/// Sets an integer option. True if the kernel took it.
fn set<T>(socket: &Socket, level: libc::c_int, name: libc::c_int, value: T) -> bool {
    // SAFETY: the value is an integer of the length that is passed along.
    let status = unsafe {
        let len = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    };
    status == 0
}

/// Turns "nothing now" into `None`.
fn blocked<T>(came: Result<T, Errno>) -> io::Result<Option<T>> {
    match came {
        Ok(came) => Ok(Some(came)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a socket's peer is on this host.
fn is_local(socket: &Socket) -> bool {
    let peer = peer_ip(socket);
    peer.is_some_and(|peer| peer.is_loopback()) || (peer.is_some() && peer == ip_of(socket.local_addr()))
}

/// The host that a socket is connected with.
fn peer_ip(socket: &Socket) -> Option<IpAddr> {
    ip_of(socket.peer_addr())
}

fn ip_of(address: io::Result<SockAddr>) -> Option<IpAddr> {
    address.ok()?.as_socket().map(|address| address.ip())
}

/// The kernel's counts for a connected socket; `None` before its first round trip.
fn look(socket: &Socket) -> Option<TcpLook> {
    let info = info(socket)?;
    let bytes = |segments: u32| u64::from(segments) * u64::from(info.tcpi_snd_mss);
    let (packets, resent) = (u64::from(info.tcpi_data_segs_out), u64::from(info.tcpi_total_retrans));
    (info.tcpi_rtt > 0).then(|| TcpLook {
        lane: LaneSample {
            acked: info.tcpi_bytes_acked,
            packets,
            resent,
            busy_us: info.tcpi_busy_time,
            crowded_us: info.tcpi_rwnd_limited + info.tcpi_sndbuf_limited,
            rtt_us: u64::from(info.tcpi_rtt),
            sharers: 1,
        },
        least_rtt_us: u64::from(info.tcpi_min_rtt),
        rate: info.tcpi_delivery_rate,
        arrived: info.tcpi_bytes_acked + bytes(info.tcpi_sacked),
        in_flight: bytes(info.tcpi_unacked.saturating_sub(info.tcpi_sacked)),
    })
}

/// The kernel's state of a socket (`TCP_INFO` of `tcp(7)`).
fn info(socket: &Socket) -> Option<libc::tcp_info> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the buffer has the length that is passed along.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    // SAFETY: zeroed, and all of its fields are integers.
    (status == 0).then(|| unsafe { info.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_the_kernel_takes_a_congestion_control_is_known() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        assert!(!set_congestion(&socket, "no-such-control"));
        let own = system_congestion();
        assert!(set_congestion(&socket, &own), "{own}");
    }

    #[test]
    fn the_kernel_gives_a_lane_up_sooner_if_it_begins_to_count_later() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        assert_eq!(kernel_patience(s(20), s(3), ms(24)), s(17));
        assert_eq!(kernel_patience(s(4), s(5), ms(24)), s(1), "no sooner than after a quarter of it");
        assert_eq!(kernel_patience(s(4), s(0), ms(24)), s(4));
        assert_eq!(kernel_patience(s(2), s(5), ms(300)), ms(800), "no sooner than an answer can come");
        assert_eq!(kernel_patience(s(4), s(5), s(1)), s(1), "the first packet may have come late");
    }

    #[test]
    fn a_round_trip_that_was_taken_for_longer_is_told_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let mut lane = TcpLane::new(std::net::TcpStream::connect(to).expect("connected").into());
        lane.told_rtt_us = Some(1_000_000);
        let told =
            [0, u64::from(u32::MAX), 900_000, 24_000, 23_000, 12_000].map(|us| lane.take_nearer_us(us));
        assert_eq!(told, [None, None, None, Some(24_000), None, Some(12_000)]);
        lane.told_rtt_us = None;
        assert_eq!(lane.take_nearer_us(50), Some(50));
    }

    #[test]
    fn a_lane_is_asked_to_change_once_and_counts_as_changed_if_it_did() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let mut lane = TcpLane::new(std::net::TcpStream::connect(to).expect("connected").into());
        lane.go_lossy("a test");
        let runs = lane.socket.tcp_congestion().expect("it runs one");
        assert_eq!(lane.lossy, runs.starts_with(name_of(Congestion::Bbr).as_bytes()));
        assert!(lane.asked);
    }
}
