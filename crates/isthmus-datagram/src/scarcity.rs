//! Errors that this host itself causes: their remedies, and how often to log them.
//!
//! A host without descriptors, ports or memory refuses the next attempt as fast as the last one. So the caller pauses
//! before it tries again, and logs one line per [`LINE_PAUSE`] with a count ([`Sparing`]) and a remedy ([`remedy`]).

use std::fmt::{self, Arguments};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Shortest time between two lines about the same recurring error.
pub const LINE_PAUSE: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted. Such a listener stays readable, so without a pause it would be
/// asked again at once.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Remedy of an error that this host causes by its limits or rules. `None` for other errors, such as those of the
/// network or the peer.
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EMFILE => {
            "this process has as many files and sockets open as it may: raise its limit (ulimit -n, LimitNOFILE= of systemd)"
        }
        libc::ENFILE => "this host has as many open files as it may: raise fs.file-max (sysctl)",
        libc::ENOBUFS | libc::ENOMEM => {
            "the system has no memory for it: free memory, or raise the limit of the container, the service or net.ipv4.tcp_mem"
        }
        libc::EADDRNOTAVAIL => {
            "all local ports are in use (a connection that has ended keeps its port for 60 s), or this host has lost the \
             address: widen net.ipv4.ip_local_port_range (sysctl), or give the address back"
        }
        libc::EADDRINUSE => {
            "the port is taken, or all local ports are: choose another, or widen net.ipv4.ip_local_port_range (sysctl)"
        }
        libc::EPERM => {
            "a firewall or a security policy of this host forbids it: let it through (nft list ruleset, iptables -L OUTPUT)"
        }
        libc::EACCES => {
            "a route or a security policy of this host forbids it: change the route (ip route get, `prohibit`), or the \
             policy, such as SELinux's"
        }
        libc::EMSGSIZE => {
            "the MTU of the interface is below the 1280 bytes that UDP needs here: raise it, or set transport = \"tcp\""
        }
        libc::ENOSPC => "the system watches no more descriptors: raise fs.epoll.max_user_watches (sysctl)",
        _ => return None,
    })
}

/// The error of a packet that is longer than the interface carries, although it is as short as packets get.
pub fn too_long() -> io::Error {
    io::Error::from_raw_os_error(libc::EMSGSIZE)
}

/// Starts `count` threads at once, and ends them. For callers whose libraries panic if they can start no thread.
///
/// # Errors
/// They cannot be started.
pub fn probe_threads(count: usize) -> io::Result<()> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Arc::new(Mutex::new(held));
    let mut threads = Vec::new();
    let mut probed = Ok(());
    for _ in 0..count {
        let held = held.clone();
        let wait = move || drop(held.lock().map(|held| held.recv()));
        match thread::Builder::new().name("probe".to_owned()).spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                probed = Err(no_thread(error));
                break;
            }
        }
    }
    drop(hold);
    for thread in threads {
        let _ = thread.join();
    }
    probed
}

/// Adds the remedy to the error of a thread that could not be started. That error is the same as of a socket without
/// data (EAGAIN), so only the caller knows what it means.
pub fn no_thread(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => io::Error::other(format!(
            "no thread can be started: {error}; raise ulimit -u, TasksMax= of systemd, or the container's limit on processes"
        )),
        _ => error,
    }
}

/// Descriptors that a daemon or a copy needs free to start: for its listeners, its threads' wake-ups, certificates, and a few
/// connections. With fewer it would start and serve nobody. Count; a router with two subnets and a status uses 16, and a
/// copy of many files 19.
pub const DESCRIPTORS_MIN: usize = 32;

/// Opens `count` descriptors at once, and closes them. For daemons: without descriptors they would start and serve
/// nobody, and libraries would panic.
///
/// # Errors
/// This process may not have so many open. The error names the limit.
pub fn probe_descriptors(count: usize) -> io::Result<()> {
    let mut held = Vec::with_capacity(count);
    while held.len() < count {
        match UnixDatagram::unbound() {
            Ok(socket) => held.push(socket),
            Err(error) => {
                let Some(remedy) = remedy(&error) else { return Err(error) };
                return Err(io::Error::other(format!(
                    "it can open only {} files and sockets, and needs at least {count} to start: {error}; {remedy}",
                    held.len()
                )));
            }
        }
    }
    Ok(())
}

/// A bound of `most` that leaves descriptors for other things: at most one in `part` of the files that the process may
/// open (`files`; `None` if there is no limit), and at least 1.
pub fn share_of_files(files: Option<u64>, part: u64, most: usize) -> usize {
    files.map_or(most, |files| most.min((files / part) as usize)).max(1)
}

/// Limits lines about the same error to one, or a few, per [`LINE_PAUSE`], and counts those that it leaves out.
#[derive(Debug)]
pub struct Sparing(Mutex<Told>);

#[derive(Debug)]
struct Told {
    /// Start of the current [`LINE_PAUSE`]: its first line.
    last: Option<Instant>,
    /// Lines allowed per [`LINE_PAUSE`], and how many of them are left.
    most: u32,
    more: u32,
    /// Lines, or things, that no line has told.
    left_out: u64,
}

impl Told {
    /// Takes one of the lines that are allowed now. False if none is left.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.last.is_none_or(|last| now.saturating_duration_since(last) >= LINE_PAUSE) {
            (self.last, self.more) = (Some(now), self.most);
        }
        let is_due = self.more > 0;
        self.more -= u32::from(is_due);
        is_due
    }
}

impl Default for Sparing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sparing {
    /// A limiter of one line per [`LINE_PAUSE`].
    pub const fn new() -> Self {
        Self::letting(1)
    }

    /// A limiter of `most` lines per [`LINE_PAUSE`].
    pub const fn letting(most: u32) -> Self {
        Self(Mutex::new(Told { last: None, most, more: 0, left_out: 0 }))
    }

    /// Returns text to append if a line is due.
    pub fn due(&self, now: Instant) -> Option<LeftOut> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_due(now) {
            return Some(LeftOut(std::mem::take(&mut told.left_out)));
        }
        told.left_out += 1;
        None
    }

    /// Adds `count` things to those that no line has told. Returns their sum if a line is due.
    ///
    /// A limiter counts either things or lines ([`Sparing::due`]), never both.
    pub fn due_for(&self, now: Instant, count: u64) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.left_out += count;
        told.is_due(now).then(|| std::mem::take(&mut told.left_out))
    }

    /// Calls `say` with `what`, the error and its [`remedy`], if it has one and a line is due.
    pub fn tell(&self, what: Arguments<'_>, error: &io::Error, say: impl FnOnce(Arguments<'_>)) {
        if let Some(remedy) = remedy(error)
            && let Some(left_out) = self.due(Instant::now())
        {
            say(format_args!("{what}: {error}; {remedy}{left_out}"));
        }
    }

    /// The same about packets to `to` that did not leave this host.
    pub fn tell_of_packets(&self, to: SocketAddr, error: Option<io::Error>, say: impl FnOnce(Arguments<'_>)) {
        if let Some(error) = error {
            self.tell(format_args!("packets to {to} do not leave this host"), &error, say);
        }
    }
}

/// Number of lines left out about the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, " ({} times more since it was last said)", self.0) } else { Ok(()) }
    }
}

/// The connections of a listener. Pauses for [`ACCEPT_PAUSE`] after each error, and tells `say` of errors that have a
/// [`remedy`].
pub fn accepted<T>(
    incoming: impl Iterator<Item = io::Result<T>>,
    mut say: impl FnMut(Arguments<'_>),
) -> impl Iterator<Item = T> {
    let sparing = Sparing::new();
    incoming.filter_map(move |came| match came {
        Ok(came) => Some(came),
        Err(error) => {
            sparing.tell(format_args!("cannot accept a connection"), &error, &mut say);
            thread::sleep(ACCEPT_PAUSE);
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_that_comes_again_and_again_is_a_line_now_and_then_with_a_count() {
        let sparing = Sparing::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let said: Vec<_> = (0..30_000).step_by(10).filter_map(|ms| sparing.due(at(ms))).collect();
        assert_eq!(said, [LeftOut(0), LeftOut(999), LeftOut(999)]);
        assert!(said[1].to_string().contains("999 times more"));
        let few = Sparing::letting(3);
        let said: Vec<_> = (0..20_000).step_by(1000).filter_map(|ms| few.due(at(ms))).collect();
        assert_eq!(said, [0, 0, 0, 7, 0, 0].map(LeftOut));
    }

    #[test]
    fn things_that_no_line_has_told_are_in_the_sum_of_the_next_one() {
        let (sparing, start) = (Sparing::new(), Instant::now());
        let said: Vec<_> =
            (0..25).filter_map(|s| sparing.due_for(start + Duration::from_secs(s), s + 1)).collect();
        assert_eq!(said, [1, (2..=11).sum(), (12..=21).sum()]);
    }

    #[test]
    fn only_errors_that_this_host_causes_have_a_remedy() {
        let of = |errno| remedy(&io::Error::from_raw_os_error(errno));
        let said = |errno, word: &str| of(errno).is_some_and(|text| text.contains(word));
        assert!(said(libc::EMFILE, "ulimit -n") && said(libc::EADDRNOTAVAIL, "ip_local_port_range"));
        assert!(said(libc::EPERM, "firewall") && said(libc::EACCES, "route") && said(libc::ENOMEM, "memory"));
        assert!(remedy(&too_long()).is_some_and(|text| text.contains("MTU")));
        for errno in [libc::ECONNREFUSED, libc::ETIMEDOUT, libc::ECONNRESET, libc::EHOSTUNREACH] {
            assert_eq!(of(errno), None);
        }
        assert_eq!(remedy(&io::Error::other("something else")), None);
    }

    #[test]
    fn a_listener_without_descriptors_pauses_and_says_so_once() {
        const FAILURES: usize = 3;
        let failures = std::iter::repeat_with(|| Err(io::Error::from_raw_os_error(libc::EMFILE)));
        let incoming = failures.take(FAILURES).chain([Ok(7)]);
        let (mut lines, start) = (Vec::new(), Instant::now());
        let came: Vec<u8> = accepted(incoming, |line| lines.push(line.to_string())).collect();
        assert_eq!(came, [7]);
        assert!(start.elapsed() >= ACCEPT_PAUSE * FAILURES as u32, "{:?}", start.elapsed());
        assert!(lines.len() == 1 && lines[0].contains("ulimit -n"), "{lines:?}");
    }
}
