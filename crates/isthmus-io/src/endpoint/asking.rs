//! Asks another process of this host for the state or the figures of its endpoints.
//!
//! Any process can take a name in the abstract namespace of Unix sockets, also the one where another process would be
//! asked. So an answer counts only if the kernel says that the socket belongs to this user or to root (`SO_PEERCRED` of
//! unix(7)). Root asks the processes of all users. It believes another user's socket only if that belongs to the very
//! process that its name says.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::figures::{EndpointFigures, decode};

/// The question for figures. Without a question the answer is the state.
pub(super) const FIGURES: &[u8] = b"figures\n";
/// Most I/O threads of one process: the provider's, that of `libisthmus.so`, and two more. Count.
pub(super) const DOORS: u32 = 4;
/// User id of root.
pub(super) const ROOT: libc::uid_t = 0;
/// Beginning of the sockets' names.
const DOOR: &str = "isthmus-state-";
/// The kernel's list of Unix sockets of this network namespace. The names of the abstract namespace begin with "@".
const SOCKETS: &str = "/proc/net/unix";
/// Wait for a socket to take a connection. Its thread may be busy with an earlier asker.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// Wait for a whole answer. A process with ten endpoints that all hang answers in less.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// Longest answer. 1,000 peers of an endpoint take less than 1 MiB. Bytes (64 MiB).
const ANSWER_MAX: usize = 64 << 20;

/// Name of the socket on which a process is asked.
pub(super) fn door(process: u32, index: u32) -> String {
    format!("{DOOR}{process}-{index}")
}

/// The process and user at the other end of a Unix socket. The process is 0 if this one cannot see it, since it is in
/// another PID namespace.
pub(super) fn user_at(socket: &UnixStream) -> io::Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // `rustix` has this call, but cannot express a process of 0.
    // SAFETY: both pointers are valid for the call, and `len` is the length of what `who` points to.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    if done == 0 { Ok(who) } else { Err(io::Error::last_os_error()) }
}

/// The state of the endpoints of another process on this host, in this network namespace.
///
/// # Errors
/// The error of connecting, if the process has no endpoint. [`io::ErrorKind::PermissionDenied`] if its socket belongs to
/// another user.
pub fn state_of(process: u32) -> io::Result<String> {
    // Root reads what other users' programs wrote, so nothing reaches the terminal but text.
    Ok(ask(process, b"")?.concat().replace(|c: char| c != '\n' && c.is_control(), " "))
}

/// The figures of the endpoints of another process on this host, in this network namespace.
///
/// # Errors
/// The error of connecting, if the process has no endpoint. [`io::ErrorKind::PermissionDenied`] if its socket belongs to
/// another user. An error too if the process is of a release that tells no figures.
pub fn figures_of(process: u32) -> io::Result<Vec<EndpointFigures>> {
    let texts = ask(process, FIGURES)?;
    let read: Vec<_> = texts.iter().map(|text| decode(text)).collect::<io::Result<_>>()?;
    Ok(read.into_iter().flatten().collect())
}

/// The processes of this network namespace that can be asked, in order; those of other users among them.
///
/// # Errors
/// The kernel's list of sockets cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let list = std::fs::read_to_string(SOCKETS)?;
    let process = |line: &str| {
        let name = line.split_whitespace().last()?.strip_prefix('@')?.strip_prefix(DOOR)?;
        name.split_once('-')?.0.parse().ok()
    };
    let mut found: Vec<u32> = list.lines().filter_map(process).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Asks all I/O threads of a process. Their answers are not empty.
fn ask(process: u32, question: &[u8]) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    let mut failure: Option<io::Error> = None;
    for index in 0..DOORS {
        match ask_one(process, index, question) {
            Ok(text) => texts.push(text),
            // The system calls a wait that has ended "Resource temporarily unavailable".
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                failure = failure.or(Some(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")));
            }
            // A socket that was refused explains more than one that is not there.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = Some(error),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    texts.retain(|text| !text.is_empty());
    match failure {
        Some(error) if texts.is_empty() => Err(error),
        _ => Ok(texts),
    }
}

fn ask_one(process: u32, index: u32, question: &[u8]) -> io::Result<String> {
    let mut stream = connect(&door(process, index))?;
    let who = user_at(&stream)?;
    if !is_believed(who, process) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal(who, process)));
    }
    stream.write_all(question)?;
    stream.shutdown(Shutdown::Write)?;
    read_answer(&stream, Instant::now() + ANSWER_TIME)
}

/// Connects within [`CONNECT_TIME`], also if the socket's owner takes no connections.
fn connect(name: &str) -> io::Result<UnixStream> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_TIME))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket.into())
}

/// Whether an answer of a socket's owner counts as that of `process`.
fn is_believed(who: libc::ucred, process: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    who.uid == own || who.uid == ROOT || own == ROOT && is_called(who.pid, process)
}

/// Whether a process has this number here or in its own PID namespace, by which it names its socket.
fn is_called(pid: libc::pid_t, process: u32) -> bool {
    let inside = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // The numbers of the process, the one in its own namespace last (proc_pid_status(5)).
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        numbers.split_whitespace().last()?.parse().ok()
    };
    pid > 0 && (pid as u32 == process || inside() == Some(process))
}

fn refusal(who: libc::ucred, process: u32) -> String {
    let libc::ucred { pid, uid, .. } = who;
    match rustix::process::geteuid().as_raw() {
        ROOT => format!("its state socket belongs to process {pid} of user {uid}, not to process {process}"),
        own => format!("its state socket belongs to user {uid}, neither to root nor to you (user {own})"),
    }
}

fn read_answer(mut stream: &UnixStream, until: Instant) -> io::Result<String> {
    let (mut answer, mut piece) = (Vec::new(), [0; 8 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
        }
    }
    String::from_utf8(answer).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its answer is no text"))
}
