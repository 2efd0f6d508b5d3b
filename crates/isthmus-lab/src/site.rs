//! A site: namespaces for network, hostname and mounts. They live as long as their descriptors.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    unmount,
};

use crate::sys;
use crate::{Doing, LabError};

/// Namespaces of a site, or of the lab's hub.
#[derive(Debug)]
pub struct Namespaces {
    /// Network namespace.
    pub net: OwnedFd,
    /// Hostname namespace.
    pub uts: OwnedFd,
    /// Mount namespace, with its own /etc/hosts and a /sys that shows its own interfaces.
    pub mnt: OwnedFd,
}

impl Namespaces {
    /// Makes the namespaces, with this hostname, `hosts` as /etc/hosts, and `lo` up.
    ///
    /// # Errors
    /// If the system does not allow namespaces.
    pub fn create(hostname: &str, hosts: &Path) -> Result<Self, LabError> {
        on_own_thread(|| {
            sys::unshare(sys::CLONE_NEWNET | sys::CLONE_NEWUTS | sys::CLONE_NEWNS)?;
            rustix::system::sethostname(hostname.as_bytes())?;
            private_mounts(hosts)?;
            crate::netlink::bring_up("lo", None, 65536, 1000)?;
            Ok(Self { net: own("net")?, uts: own("uts")?, mnt: own("mnt")? })
        })
        .doing(|| format!("make the namespaces of site {hostname:?}"))
    }

    /// Opens the namespaces of another process by their paths.
    ///
    /// # Errors
    /// If that process is gone or belongs to another user.
    pub fn open(net: &Path, uts: &Path, mnt: &Path) -> io::Result<Self> {
        let open = |path: &Path| fs::File::open(path).map(OwnedFd::from);
        Ok(Self { net: open(net)?, uts: open(uts)?, mnt: open(mnt)? })
    }

    /// Runs `work` on a thread in the network namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_own_thread(|| {
            sys::enter(self.net.as_fd())?;
            work()
        })
    }

    /// Makes `command` start in these namespaces. It is killed when the thread that spawns it
    /// ends, so that thread must outlive it.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn place(&self, command: &mut Command) -> io::Result<()> {
        // The mount namespace last: the others are open descriptors and need no path.
        let fds = [&self.net, &self.uts, &self.mnt].map(|fd| fd.try_clone());
        let fds = fds.into_iter().collect::<io::Result<Vec<_>>>()?;
        let here = std::env::current_dir().ok();
        let here = here.and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
        sys::start_inside(command, fds, here);
        Ok(())
    }

    /// Moves the calling thread into all of them, and so a process with one thread.
    ///
    /// # Errors
    /// If entering is not permitted.
    pub fn enter(&self) -> io::Result<()> {
        let here = std::env::current_dir();
        for fd in [&self.net, &self.uts, &self.mnt] {
            sys::enter(fd.as_fd())?;
        }
        here.and_then(std::env::set_current_dir).or_else(|_| std::env::set_current_dir("/"))
    }

    /// Inode of the network namespace, unique on this machine.
    ///
    /// # Errors
    /// None in practice: the descriptor is open.
    pub fn net_inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.net)?.st_ino)
    }

    /// Mounts the network namespace at `path`, as `ip netns` does, which keeps it until unmounted.
    pub(crate) fn name_net(&self, path: &Path) -> io::Result<()> {
        fs::File::create_new(path)?;
        let source = format!("/proc/self/fd/{}", self.net.as_raw_fd());
        Ok(mount_bind(&source, path)?)
    }
}

/// Makes the mounts in `directory` visible in all mount namespaces made later, as `ip netns`
/// does. Otherwise, if the system's root is private, they would be visible here only.
pub(crate) fn share_names(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let share = || mount_change(directory, MountPropagationFlags::SHARED);
    if share().is_err() {
        // It is not a mount point yet.
        mount_bind_recursive(directory, directory)?;
        share()?;
    }
    Ok(())
}

/// Removes a name that [`Namespaces::name_net`] made.
pub(crate) fn unname_net(path: &Path) {
    // Either fails only if another process already did it.
    let _ = unmount(path, UnmountFlags::DETACH);
    let _ = fs::remove_file(path);
}

/// Runs `work` on its own thread, because namespaces belong to threads here.
fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a namespace thread panicked")))
    })
}

fn own(kind: &str) -> io::Result<OwnedFd> {
    fs::File::open(format!("/proc/thread-self/ns/{kind}")).map(OwnedFd::from)
}

/// Detaches the mounts from the rest of the system, and mounts what differs in a site.
fn private_mounts(hosts: &Path) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    if let Err(error) = mount_bind_recursive(hosts, "/etc/hosts") {
        tracing::warn!("site names do not resolve: cannot replace /etc/hosts: {error}");
    }
    if let Err(error) = own_sysfs() {
        // This happens in containers. Only /sys/class/net differs.
        tracing::debug!("/sys keeps showing the host's interfaces: {error}");
    }
    Ok(())
}

/// Mounts a /sys with this network namespace's interfaces. Cgroups stay visible.
fn own_sysfs() -> io::Result<()> {
    let cgroups = fs::File::open("/sys/fs/cgroup");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None)?;
    if let Ok(cgroups) = cgroups {
        let source = format!("/proc/thread-self/fd/{}", cgroups.as_raw_fd());
        // Without it, a site's processes see no cgroup limits.
        let _ = mount_bind_recursive(source, "/sys/fs/cgroup");
    }
    Ok(())
}

/// Other processes whose network namespace is one of `inodes`.
pub(crate) fn processes_in(inodes: &[u64]) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let lives_there = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|meta| inodes.contains(&meta.ino()))
    };
    pids.filter(|pid| *pid != own).filter(lives_there).collect()
}

/// Ends every process in `inodes`: by SIGTERM, and after `grace` by force.
pub(crate) fn end_processes_in(inodes: &[u64], grace: std::time::Duration) {
    use rustix::process::{Pid, Signal, kill_process};
    let send = |signal| {
        let found = processes_in(inodes);
        for pid in found.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
        found.is_empty()
    };
    let begun = std::time::Instant::now();
    let mut gone = send(Signal::TERM);
    while !gone && begun.elapsed() < grace + std::time::Duration::from_secs(2) {
        std::thread::sleep(std::time::Duration::from_millis(5));
        gone = if begun.elapsed() < grace { processes_in(inodes).is_empty() } else { send(Signal::KILL) };
    }
}

/// Whether both descriptors are the same namespace.
pub(crate) fn same_namespace(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}
