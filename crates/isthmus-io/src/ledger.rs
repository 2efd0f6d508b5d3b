//! The file of the ledger ([`isthmus_ledger`]) of this user's endpoints on this host. All of them map it. It is
//! `/dev/shm/isthmus-UID/ledger-VERSION-...`, or below `XDG_RUNTIME_DIR` if there is no `/dev/shm`.
//!
//! There is one ledger for each combination of network and PID namespace, so that its users have paths and process
//! numbers in common. Only the user can access the folder. A process that has the file open holds a shared lock on it.
//! A file without a lock is removed if it is empty, or if there are [`KEPT`] newer ones.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use isthmus_ledger::{Ledger, Micros, Owner, WORDS, Words};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use socket2::{Domain, Socket, Type};

use crate::log::info_log;
use crate::{Settings, Switch};

/// Length of the file. Bytes.
const LEN: usize = WORDS * 8;
/// Unused ledgers that are kept. Count; their knowledge of paths helps the next program.
const KEPT: usize = 8;
/// Beginning of the file's name, with the version of its layout.
const PREFIX: &str = "ledger-1-";
/// Attempts to open a file that others may be removing. Count.
const ATTEMPTS: usize = 4;

/// Opens the ledger for a new endpoint. `None` if that fails, which is logged; flows then know nothing of each other.
/// Times are those of [`now`].
pub(crate) fn open(settings: &Settings) -> Option<Ledger> {
    if settings.ledger == Switch::Off {
        return None;
    }
    match open_below(&place()) {
        Ok(ledger) => Some(ledger),
        Err((path, error)) => {
            info_log!(
                "no ledger of the flows on this host: {}: {error}; each finds its way by itself",
                path.display()
            );
            None
        }
    }
}

/// The ledger's time. Microseconds.
pub(crate) fn now() -> Micros {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is written by the call, which cannot fail for this clock. We use the C library's call, since rustix
    // reads the kernel's vDSO page itself, which valgrind does not provide.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

/// The folder of the ledgers. `/dev/shm` comes first: processes of one job need not be of one login session.
fn place() -> PathBuf {
    let shared = Path::new("/dev/shm");
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match session.filter(|_| !shared.is_dir()) {
        Some(session) => session.join("isthmus"),
        None => shared.join(format!("isthmus-{}", rustix::process::geteuid().as_raw())),
    }
}

fn open_below(place: &Path) -> Result<Ledger, (PathBuf, io::Error)> {
    let fail = |error: io::Error| (place.to_owned(), error);
    let folder = folder(place).map_err(fail)?;
    let name = name().map_err(fail)?;
    let mapping = Mapping::open(folder, &name).map_err(|error| (place.join(&name), error))?;
    let other = |error: String| (place.join(&name), io::Error::other(error));
    let endpoint = getrandom::u64().map_err(|error| other(error.to_string()))?;
    let owner = Owner { pid: std::process::id(), started: started(std::process::id()).unwrap_or(0) };
    Ledger::new(mapping, owner, endpoint, lives).map_err(|unfit| other(format!("{unfit}; remove it")))
}

/// Opens the folder, to which nobody else may have access.
fn folder(place: &Path) -> io::Result<OwnedFd> {
    match rustix::fs::mkdir(place, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(place, flags, Mode::empty())?;
    let known = File::from(folder.try_clone()?).metadata()?;
    if known.uid() != rustix::process::geteuid().as_raw() || known.mode() & 0o077 != 0 {
        return Err(io::Error::other("others than this user have access to it; remove it"));
    }
    Ok(folder)
}

/// The file's name, from this network and PID namespace.
fn name() -> io::Result<String> {
    let space = |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).map(|space| space.ino());
    let network = network_cookie().map_or_else(|| space("net"), Ok)?;
    Ok(format!("{PREFIX}{network}-{}", space("pid")?))
}

/// The cookie of this network namespace, which no later one gets again; `None` before Linux 5.14.
fn network_cookie() -> Option<u64> {
    // It is not bound: all ports may be taken.
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).ok()?;
    let (mut cookie, mut len) = (0_u64, 8 as libc::socklen_t);
    // SAFETY: it writes at most `len` bytes.
    let told = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    (told == 0 && len == 8).then_some(cookie)
}

/// When a process started, in the system's ticks; `None` if there is no such process.
fn started(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain anything, so look behind its last parenthesis (proc(5)).
    let rest = text.rsplit_once(')')?.1;
    rest.split_whitespace().nth(19)?.parse::<u64>().ok().map(|ticks| ticks as u32)
}

fn lives(owner: Owner) -> bool {
    started(owner.pid) == Some(owner.started)
}

/// The file, mapped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    file: OwnedFd,
    folder: OwnedFd,
    name: String,
}

// SAFETY: atomic words, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn open(folder: OwnedFd, name: &str) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let Some(file) = take(folder.as_fd(), name)? else { continue };
            let size = rustix::fs::fstat(&file)?.st_size;
            if size == 0 {
                remove_others(folder.as_fd());
                // Allocate all pages now: a page fault that finds no memory later would kill the process.
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN as u64)?;
            } else if size != LEN as i64 {
                return Err(io::Error::other("it is no ledger; remove it"));
            }
            let base = map(file.as_fd())?;
            return Ok(Self { base, file, folder, name: name.to_owned() });
        }
        Err(io::Error::other("it is being removed"))
    }

    /// Whether it holds nothing.
    fn is_blank(&self) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.words().iter().skip(1).all(|word| word.load(Relaxed) == 0)
    }
}

/// Opens the file, or makes it; `None` if it was removed meanwhile.
fn take(folder: impl AsFd, name: &str) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
    let known = File::from(file.try_clone()?).metadata()?;
    if !known.is_file() || known.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not this user's; remove it"));
    }
    Ok((held && known.nlink() > 0).then_some(file))
}

/// Removes unused ledgers beyond the [`KEPT`] newest.
fn remove_others(folder: impl AsFd) {
    let Ok(entries) = rustix::fs::Dir::read_from(&folder) else { return };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| name.to_bytes().starts_with(b"ledger-"));
    let mut dated: Vec<_> = names
        .filter_map(|name| {
            let known = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((known.st_mtime, name))
        })
        .collect();
    dated.sort();
    let surplus = dated.len().saturating_sub(KEPT);
    for (_, name) in dated.iter().take(surplus) {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(&folder, name, flags, Mode::empty()) else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        }
    }
}

fn map(file: impl AsFd) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: a new mapping, wherever there is room.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_fd().as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

impl Words for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is so long, page-aligned, and lives as long as this; the file, which the user alone
        // can reach, has all of its pages, and nobody shortens it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), WORDS) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_blank() && rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
        // SAFETY: our own mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::os::unix::fs::PermissionsExt;

    use isthmus_ledger::{Kind, PathKey, Report};

    use super::*;

    fn report() -> Report {
        Report { rate: 5, in_flight: 6, flows: 7, sends_little: false }
    }

    #[test]
    fn endpoints_see_each_other_and_a_ledger_that_tells_nothing_is_removed() {
        let room = tempfile::tempdir().expect("a folder");
        let place = room.path().join("isthmus");
        let (one, two) = (open_below(&place).expect("a ledger"), open_below(&place).expect("the same"));
        assert_eq!(place.metadata().expect("there").mode() & 0o777, 0o700);
        drop(one);
        drop(two);
        assert_eq!(std::fs::read_dir(&place).expect("a folder").count(), 0);

        let (one, two) = (open_below(&place).expect("a ledger"), open_below(&place).expect("the same"));
        let key = PathKey::new(None, IpAddr::from([10, 0, 0, 1]));
        let mut flow = one.flow(key, Kind::Paced);
        assert!(flow.tell(now(), report()));
        let seen = two.path_use(now(), key);
        assert_eq!((seen.endpoints, seen.flows, seen.rate), (1, 7, 5));
        drop((flow, one, two));
        assert_eq!(std::fs::read_dir(&place).expect("a folder").count(), 1, "what is known is kept");
    }

    #[test]
    fn what_is_not_the_users_alone_or_no_ledger_is_refused_with_the_remedy() {
        let room = tempfile::tempdir().expect("a folder");
        let place = room.path().join("isthmus");
        std::fs::create_dir(&place).expect("a folder");
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).expect("its own");
        let refused = || open_below(&place).expect_err("refused").1.to_string();
        assert!(refused().contains("others than this user"), "{}", refused());
        std::fs::set_permissions(&place, PermissionsExt::from_mode(0o700)).expect("its own");
        std::fs::write(place.join(name().expect("a name")), "short").expect("written");
        assert!(refused().contains("no ledger; remove it"), "{}", refused());
        std::fs::write(place.join(name().expect("a name")), [1; LEN]).expect("written");
        assert!(refused().contains("another version; remove it"), "{}", refused());
        std::fs::remove_dir_all(&place).expect("removed");
        std::fs::write(&place, "").expect("written");
        refused();
    }

    #[test]
    fn of_ledgers_that_nobody_holds_some_are_kept() {
        let room = tempfile::tempdir().expect("a folder");
        let place = room.path().join("isthmus");
        let folder = folder(&place).expect("a folder");
        let held = take(folder.as_fd(), "ledger-1-0-0").expect("a file").expect("held");
        for i in 1..30 {
            take(folder.as_fd(), &format!("ledger-1-{i}-0")).expect("a file");
        }
        remove_others(folder.as_fd());
        let left = std::fs::read_dir(&place).expect("a folder").count();
        assert!((KEPT..=KEPT + 1).contains(&left), "{left}");
        assert!(place.join("ledger-1-0-0").exists(), "this one is held");
        drop(held);
    }

    #[test]
    fn a_process_that_is_over_is_known_by_when_it_started() {
        let own = std::process::id();
        let owner = Owner { pid: own, started: started(own).expect("it runs") };
        assert!(lives(owner));
        assert!(!lives(Owner { started: owner.started.wrapping_add(1), ..owner }));
        assert!(!lives(Owner { pid: u32::MAX, ..owner }));
    }
}
