//! System calls that need `unsafe`. No other file of this crate does.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const MADV_HUGEPAGE: libc::c_int = 14;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the TAP device `name` in the calling thread's network namespace, with vnet headers
/// and segmentation offloads. It vanishes when its descriptor is closed.
///
/// # Errors
/// The system's: `ENOENT` without /dev/net/tun, `EPERM` without CAP_NET_ADMIN.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
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
    // Before Linux 6.2, UDP super-packets are cut before they reach the emulator.
    set_offload(fd.as_fd(), tcp | TUN_F_USO).or_else(|_| set_offload(fd.as_fd(), tcp))?;
    Ok(fd)
}

fn set_offload(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: the descriptor is open; this request takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
}

/// Opens a socket that takes over interface `name` of the calling thread's network namespace. It
/// reads and writes frames with vnet headers, as a TAP device does. Non-blocking.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW, `ENODEV` without the interface.
pub(crate) fn open_packet_socket(name: &str) -> io::Result<OwnedFd> {
    const BUFFER_BYTES: libc::c_int = 64 << 20;
    let index = interface_index(name)? as libc::c_int;
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes three integers. Protocol 0: nothing is received before it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    check(fd)?;
    // SAFETY: the descriptor was just made and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    for (force, usual) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        set_option(&fd, libc::SOL_SOCKET, force, BUFFER_BYTES)
            .or_else(|_| set_option(&fd, libc::SOL_SOCKET, usual, BUFFER_BYTES))?;
    }
    bind_to_interface(&fd, index)?;
    Ok(fd)
}

fn bind_to_interface(fd: &OwnedFd, index: libc::c_int) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address outlives the call and `len` is its size.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

fn set_option(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value outlives the call and `len` is its size.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })
}

/// Packets that a packet socket dropped because it was full; 0 for other descriptors.
pub(crate) fn socket_drops(fd: BorrowedFd<'_>) -> u64 {
    let mut counts = [0_u32; 2]; // struct tpacket_stats: packets, drops
    let mut len = size_of_val(&counts) as libc::socklen_t;
    let at = counts.as_mut_ptr().cast();
    // SAFETY: `counts` outlives the call and `len` is its size.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, PACKET_STATISTICS, at, &raw mut len) };
    if result == 0 { u64::from(counts[1]) } else { 0 }
}

/// Moves the calling thread into the namespace behind `fd`, of any kind.
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
/// `EPERM` if not permitted; `EINVAL` for `CLONE_NEWUSER` with several threads.
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

/// Requests short time slices. Under EEVDF (Linux 6.12) the calling thread then runs sooner
/// after it wakes. Needs no privilege. No effect on older kernels.
pub(crate) fn prefer_short_slices() {
    const SLICE_NS: u64 = 100_000;
    let attributes =
        SchedAttr { size: size_of::<SchedAttr>() as u32, runtime: SLICE_NS, ..SchedAttr::default() };
    // SAFETY: the attributes outlive the call and carry their size; 0 names the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// `struct sched_attr` of sched_setattr(2), first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Requests huge pages for `memory`, which makes first touch and later use cheaper. No effect
/// if the system has none.
pub(crate) fn prefer_huge_pages(memory: &mut [u8]) {
    const PAGE: usize = 4096;
    let start = memory.as_mut_ptr().align_offset(PAGE).min(memory.len());
    let inner = &mut memory[start..];
    let len = inner.len() / PAGE * PAGE;
    // SAFETY: the range is page-aligned and inside memory that the caller owns; the advice
    // does not change contents.
    unsafe { libc::madvise(inner.as_mut_ptr().cast(), len, MADV_HUGEPAGE) };
}

/// Prepares `command` to start in `namespaces`, entered in that order, with `directory` as
/// working directory: a new mount namespace would start at its root. The command is killed
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
