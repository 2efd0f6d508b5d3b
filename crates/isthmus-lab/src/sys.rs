//! The system calls that need `unsafe`. Nothing else in this crate does.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) use libc::{CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWUTS};

const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_TSO_ECN: u32 = 0x08;
/// Since Linux 6.2; not yet in every libc.
const TUN_F_USO: u32 = 0x20 | 0x40;
const TUNSETIFF: libc::c_ulong = 0x4004_54CA;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54D0;
const MADV_HUGEPAGE: libc::c_int = 14;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A TAP device and what its kernel side may hand over whole.
#[derive(Debug)]
pub(crate) struct Tap {
    /// Reads and writes one frame at a time, vnet header first; non-blocking.
    pub(crate) fd: OwnedFd,
    /// Whether UDP super-packets pass whole (Linux 6.2 and later).
    pub(crate) udp_gso: bool,
}

/// Makes the TAP device `name` in the calling thread's network namespace, with vnet headers
/// and segmentation offloads. It goes away when its descriptor is closed.
///
/// # Errors
/// What the system says: `ENOENT` without /dev/net/tun, `EPERM` without CAP_NET_ADMIN.
pub(crate) fn open_tap(name: &str) -> io::Result<Tap> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let fd = OwnedFd::from(file);
    let mut request = [0_u8; 40]; // struct ifreq
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the descriptor is open and `request` is as large as struct ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) })?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let udp_gso = set_offload(fd.as_fd(), tcp | TUN_F_USO).is_ok();
    if !udp_gso {
        set_offload(fd.as_fd(), tcp)?;
    }
    Ok(Tap { fd, udp_gso })
}

fn set_offload(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open; this request takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
}

/// Moves the calling thread into the namespace behind `fd`, whatever its kind.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN there; `EINVAL` for a mount or user namespace from a
/// process with several threads (mount: unless the thread has its own `CLONE_FS`).
pub(crate) fn enter(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes two integers and changes only the calling thread's namespaces.
    check(unsafe { libc::setns(fd.as_raw_fd(), 0) })
}

/// Gives the calling thread namespaces of its own: `CLONE_NEW*` and `CLONE_FS` flags.
///
/// # Errors
/// `EPERM` where not allowed; `EINVAL` for `CLONE_NEWUSER` with several threads.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes an integer; none of the flags used here unshares memory or descriptors.
    check(unsafe { libc::unshare(flags) })
}

/// Makes the calling thread real-time (SCHED_FIFO, lowest priority).
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE or an RLIMIT_RTPRIO.
pub(crate) fn become_realtime() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameter block outlives the call; 0 names the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) })
}

/// Asks for huge pages under `memory`, which makes its first touch and later use cheaper.
/// Without effect where the system has none.
pub(crate) fn prefer_huge_pages(memory: &mut [u8]) {
    const PAGE: usize = 4096;
    let start = memory.as_mut_ptr().align_offset(PAGE).min(memory.len());
    let inner = &mut memory[start..];
    let len = inner.len() / PAGE * PAGE;
    // SAFETY: the range is page-aligned and inside memory that the caller owns; the advice
    // does not change contents.
    unsafe { libc::madvise(inner.as_mut_ptr().cast(), len, MADV_HUGEPAGE) };
}

/// Prepares `command` to start inside `namespaces`, entered in that order, with `directory`
/// as working directory (a new mount namespace would start at its root), and to be killed
/// when the spawning thread ends.
pub(crate) fn start_inside(command: &mut Command, namespaces: Vec<OwnedFd>, directory: Option<CString>) {
    let parent = rustix::process::getpid();
    let hook = move || {
        for namespace in &namespaces {
            enter(namespace.as_fd())?;
        }
        if let Some(directory) = &directory {
            rustix::process::chdir(directory.as_c_str())?;
        }
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let orphaned = rustix::process::getppid() != Some(parent);
        if orphaned { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the hook makes plain system calls and does not allocate.
    unsafe { command.pre_exec(hook) };
}

/// The index of interface `name` in the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` if there is none.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}
