//! The server: what libpmix calls goes to `isthmus run`, and its answers to libpmix.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::{
    FenceDone, Info, Infos, Module, NOT_SUPPORTED, NOTHING, Proc, RANGE_LOCAL, Release, SUCCEEDED, SUCCESS,
    TERMINATED, WAITS, WILDCARD,
};
use crate::library::Library;
use crate::{Error, World};

/// Longest message of a rank that aborts. Bytes.
const MESSAGE_MAX: usize = 200;
/// How long libpmix may take to remove files at the end. Seconds.
const END_S: u32 = 5;
/// Most ranks in one event of a loss. More are told in several events. Count: libpmix takes 552 bytes for each, twice.
const EVENT_RANKS_MAX: usize = 4096;

static MODULE: Module = Module::new(is_finalized, aborts, fence, control, is_connected);
static SHARED: OnceLock<Shared> = OnceLock::new();

/// What threads of libpmix use.
struct Shared {
    channel: Mutex<UnixStream>,
    first: u32,
    waiting: Mutex<Option<Waiting>>,
}

/// The fence in which all ranks here wait.
struct Waiting {
    call: FenceDone,
    data: *mut c_void,
}

// SAFETY: libpmix takes its data back from any thread.
unsafe impl Send for Waiting {}

impl Shared {
    /// Sends a message. If `isthmus run` has ended, the main thread notices.
    fn tell(&self, letter: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let message = [&length.to_ne_bytes()[..], &[letter], bytes].concat();
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = channel.write_all(&message);
    }

    fn take_waiting(&self) -> Option<Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Serves the ranks over the socket that is the standard input of this process, and ends the process with the socket.
pub fn serve(world: &World) -> ! {
    ignore_signals();
    let status = match run(world) {
        Ok(()) => 0,
        Err(error) => {
            match SHARED.get() {
                Some(shared) => shared.tell(b'X', error.to_string().as_bytes()),
                None => eprintln!("isthmus run: no PMIx server: {error}"),
            }
            1
        }
    };
    // Ignore errors: libpmix or `isthmus run` may have removed it.
    let _ = fs::remove_dir_all(&world.folder);
    // SAFETY: no preconditions. It runs no destructors, since threads of libpmix still use its memory.
    unsafe { libc::_exit(status) }
}

/// Ignores the signals by which a scheduler or a terminal ends a job. A scheduler sends them to all processes of the
/// job at once, in every process group. `isthmus run` then ends the ranks and says why, and this process ends after
/// them. If it ended first, its end would look like a fault, with an exit status of its own.
fn ignore_signals() {
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: no handler is installed, and no other thread runs yet.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

fn run(world: &World) -> Result<(), Error> {
    let mut channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let own = Mutex::new(channel.try_clone()?);
    let shared =
        SHARED.get_or_init(|| Shared { channel: own, first: world.first, waiting: Mutex::new(None) });
    let library = Library::load()?;
    let space = CString::new(world.space.as_str()).map_err(|_| Error::Name)?;
    init(&library, world, &space)?;
    for rank in world.first..world.first + world.count {
        shared.tell(b'E', &variables(&library, &space, rank)?);
    }
    while let Some((letter, bytes)) = read(&mut channel) {
        match letter {
            b'F' => end_fence(shared, bytes),
            b'L' => {
                for some in ranks(&bytes).unwrap_or_default().chunks(EVENT_RANKS_MAX) {
                    if let Err(error) = tell_lost(&library, &space, some) {
                        eprintln!(
                            "isthmus run: the ranks here are not told that {} ranks are lost: {error}",
                            some.len()
                        );
                    }
                }
            }
            _ => break,
        }
    }
    // The end of this process, should the next call not return.
    // SAFETY: no preconditions.
    unsafe { libc::alarm(END_S) };
    // libpmix removes what the ranks asked it to remove after them.
    // SAFETY: a terminated name; the call waits until it is done.
    unsafe { (library.deregister_space)(space.as_ptr(), WAITS, NOTHING) };
    Ok(())
}

/// The next message, or `None` when the socket is closed.
fn read(channel: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    channel.read_exact(&mut head).ok()?;
    let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    let mut bytes = vec![0; length as usize];
    channel.read_exact(&mut bytes).ok()?;
    Some((head[4], bytes))
}

/// The ranks of runs such as `2-4,7-7`.
fn ranks(bytes: &[u8]) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    for run in std::str::from_utf8(bytes).ok()?.split(',') {
        let (first, last) = run.split_once('-')?;
        ranks.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(ranks)
}

/// Starts libpmix, and describes the world to it.
fn init(library: &Library, world: &World, space: &CStr) -> Result<(), Error> {
    let text = |text: String| CString::new(text).map_err(|_| Error::Name);
    let folder = CString::new(world.folder.as_os_str().as_bytes()).map_err(|_| Error::Name)?;
    let mut own = Infos::default();
    own.text(c"pmix.hname", text(node(world.first))?);
    own.text(c"pmix.srvr.tmpdir", folder.clone());
    let (infos, count) = own.as_c();
    // SAFETY: the module stays for good, and libpmix copies the values.
    let status = unsafe { (library.init)(MODULE.as_c(), infos, count) };
    library.check(status, "PMIx_server_init")?;

    let (nodes, ranks, peers) = map(world);
    let mut job = Infos::default();
    for (key, number) in [
        (c"pmix.univ.size", world.size),
        (c"pmix.job.size", world.size),
        (c"pmix.max.size", world.size),
        (c"pmix.num.nodes", world.size - world.count + 1),
        (c"pmix.local.size", world.count),
    ] {
        job.number(key, number);
    }
    job.text(c"pmix.nmap", text(nodes)?);
    job.text(c"pmix.pmap", text(ranks)?);
    job.text(c"pmix.lpeers", text(peers)?);
    job.text(c"pmix.jobid", space.to_owned());
    // Else libpmix and the ranks' MPI make their files beside the folder, and nobody removes them.
    for key in [c"pmix.tmpdir", c"pmix.nsdir"] {
        job.text(key, folder.clone());
    }
    let (infos, count) = job.as_c();
    let here = c_int::try_from(world.count).unwrap_or(c_int::MAX);
    // SAFETY: a terminated name, and values that outlive the call.
    let status = unsafe { (library.register_space)(space.as_ptr(), here, infos, count, WAITS, NOTHING) };
    library.check(status, "PMIx_server_register_nspace")
}

fn node(rank: u32) -> String {
    format!("n{rank}")
}

/// The nodes, the ranks of each, and the ranks here, in the formats of PMIx. The ranks here share a node. Each other rank
/// is told to have a node of its own, because ranks of other processes are never reached by shared memory.
fn map(world: &World) -> (String, String, String) {
    let (mut nodes, mut ranks) = ("raw:".to_owned(), "raw:".to_owned());
    for rank in 0..world.size {
        let follows = rank > world.first && rank < world.first + world.count;
        if !follows {
            nodes += &format!("{}{}", if rank > 0 { "," } else { "" }, node(rank));
        }
        let between = match rank {
            0 => "",
            _ if follows => ",",
            _ => ";",
        };
        ranks += &format!("{between}{rank}");
    }
    let here: Vec<String> = (world.first..world.first + world.count).map(|rank| rank.to_string()).collect();
    (nodes, ranks, here.join(","))
}

/// Lets a rank connect. The environment variables that it needs, each with a NUL.
fn variables(library: &Library, space: &CStr, rank: u32) -> Result<Vec<u8>, Error> {
    let proc = Proc::new(space, rank).ok_or(Error::Name)?;
    // SAFETY: no preconditions.
    let user = unsafe { libc::getuid() };
    // SAFETY: no preconditions.
    let group = unsafe { libc::getgid() };
    // SAFETY: a rank that outlives the call, without further data.
    let status = unsafe { (library.register_client)(&raw const proc, user, group, NOTHING, WAITS, NOTHING) };
    library.check(status, "PMIx_server_register_client")?;
    let mut variables: *mut *mut c_char = null_mut();
    // SAFETY: a rank, and room for a pointer.
    let status = unsafe { (library.setup_fork)(&raw const proc, &raw mut variables) };
    library.check(status, "PMIx_server_setup_fork")?;
    let mut bytes = Vec::new();
    while !variables.is_null() {
        // SAFETY: an array of pointers whose last is null.
        let one = unsafe { *variables };
        if one.is_null() {
            break;
        }
        // SAFETY: not null, and terminated.
        bytes.extend_from_slice(unsafe { CStr::from_ptr(one) }.to_bytes_with_nul());
        // SAFETY: this was not the last pointer.
        variables = unsafe { variables.add(1) };
    }
    Ok(bytes)
}

/// Tells the ranks here that these ranks of the world are lost, in one event: Open MPI must not shrink its world after
/// the first of them. It then lets its operations with them fail.
fn tell_lost(library: &Library, space: &CStr, ranks: &[u32]) -> Result<(), Error> {
    let procs: Vec<Proc> = ranks.iter().filter_map(|rank| Proc::new(space, *rank)).collect();
    let source = procs.first().ok_or(Error::Name)?;
    let mut infos = loss(&procs);
    let (infos, count) = infos.as_c();
    // SAFETY: values that outlive the call. Ranks that register for events later get this one then.
    let status = unsafe { (library.notify)(TERMINATED, source, RANGE_LOCAL, infos, count, WAITS, NOTHING) };
    library.check(status, "PMIx_Notify_event")
}

/// What the event of a loss says. The standard's key for several processes is `PMIX_EVENT_AFFECTED_PROCS`
/// (`pmix.evaffected`). Open MPI skips it: release 5.0 takes every value of the type `PMIX_PROC`, its main branch of August
/// 2026 every `PMIX_EVENT_AFFECTED_PROC` (`pmix.evproc`). So the event has both. libpmix passes all of it on, and filters
/// by the key that comes last.
fn loss(procs: &[Proc]) -> Infos<'_> {
    let mut infos = Infos::default();
    for proc in procs {
        infos.proc(c"pmix.evproc", proc);
    }
    infos.procs(c"pmix.evaffected", procs);
    infos
}

/// The fence in which all ranks here wait is over.
fn end_fence(shared: &Shared, bytes: Vec<u8>) {
    let Some(waiting) = shared.take_waiting() else { return };
    let bytes = Box::new(bytes);
    let (data, length) = (bytes.as_ptr().cast(), bytes.len());
    let owner: *mut Vec<u8> = Box::into_raw(bytes);
    // SAFETY: libpmix's function and data; the bytes stay until libpmix calls `release`.
    unsafe { (waiting.call)(SUCCESS, data, length, waiting.data, Some(release), owner.cast()) }
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: from `end_fence`; libpmix calls this once.
    drop(unsafe { Box::from_raw(owner.cast::<Vec<u8>>()) });
}

/// The number of a rank here, from 0.
///
/// # Safety
/// `proc` is a rank.
unsafe fn number(shared: &Shared, proc: *const Proc) -> u32 {
    // SAFETY: by the contract above.
    unsafe { (*proc).rank }.wrapping_sub(shared.first)
}

/// Ranks ask for files to be removed after them, as Open MPI does for its shared memory. libpmix does this itself, but
/// only for a server that has this function, which gets all other requests.
unsafe extern "C" fn control(
    _proc: *const Proc,
    _targets: *const Proc,
    _target_count: usize,
    _directives: *const Info,
    _count: usize,
    _call: Option<Release>,
    _data: *mut c_void,
) -> c_int {
    NOT_SUPPORTED
}

unsafe extern "C" fn is_finalized(
    proc: *const Proc,
    _object: *mut c_void,
    _call: Option<unsafe extern "C" fn(c_int, *mut c_void)>,
    _data: *mut c_void,
) -> c_int {
    if let Some(shared) = SHARED.get() {
        // SAFETY: libpmix gives a rank.
        let rank = unsafe { number(shared, proc) };
        shared.tell(b'Z', rank.to_string().as_bytes());
    }
    SUCCEEDED
}

unsafe extern "C" fn is_connected(
    proc: *const Proc,
    _object: *mut c_void,
    _infos: *mut Info,
    _count: usize,
    _call: Option<unsafe extern "C" fn(c_int, *mut c_void)>,
    _data: *mut c_void,
) -> c_int {
    if let Some(shared) = SHARED.get() {
        // SAFETY: libpmix gives a rank.
        let rank = unsafe { number(shared, proc) };
        shared.tell(b'C', rank.to_string().as_bytes());
    }
    SUCCEEDED
}

unsafe extern "C" fn aborts(
    proc: *const Proc,
    _object: *mut c_void,
    status: c_int,
    message: *const c_char,
    _procs: *mut Proc,
    _count: usize,
    _call: Option<unsafe extern "C" fn(c_int, *mut c_void)>,
    _data: *mut c_void,
) -> c_int {
    let Some(shared) = SHARED.get() else { return SUCCEEDED };
    // SAFETY: libpmix gives a rank.
    let rank = unsafe { number(shared, proc) };
    let said = if message.is_null() {
        String::new()
    } else {
        // SAFETY: not null, and terminated.
        unsafe { CStr::from_ptr(message) }.to_string_lossy().chars().take(MESSAGE_MAX).collect()
    };
    shared.tell(b'A', format!("{rank} {status} {said}").as_bytes());
    SUCCEEDED
}

unsafe extern "C" fn fence(
    procs: *const Proc,
    count: usize,
    _infos: *const Info,
    _info_count: usize,
    data: *mut c_char,
    length: usize,
    call: Option<FenceDone>,
    call_data: *mut c_void,
) -> c_int {
    let (Some(shared), Some(call)) = (SHARED.get(), call) else { return NOT_SUPPORTED };
    let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    // Fences of the whole world only: others may be under way at the same time elsewhere.
    // SAFETY: libpmix gives `count` ranks.
    if count != 1 || unsafe { (*procs).rank } != WILDCARD || waiting.is_some() {
        return NOT_SUPPORTED;
    }
    *waiting = Some(Waiting { call, data: call_data });
    drop(waiting);
    let given = if data.is_null() || length == 0 {
        &[]
    } else {
        // SAFETY: libpmix gives `length` bytes.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }
    };
    shared.tell(b'F', given);
    SUCCESS
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_ranks_of_one_process_share_a_node() {
        let world = World { space: "w".to_owned(), size: 5, first: 1, count: 3, folder: PathBuf::new() };
        assert_eq!(map(&world), ("raw:n0,n1,n4".into(), "raw:0;1,2,3;4".into(), "1,2,3".into()));
    }

    #[test]
    fn lost_ranks_are_runs() {
        assert_eq!(ranks(b"2-4,7-7"), Some(vec![2, 3, 4, 7]));
        assert_eq!(ranks(b"2"), None);
    }

    #[test]
    fn one_event_names_all_ranks_that_are_lost_at_once() {
        let procs: Vec<Proc> = (2..4).filter_map(|rank| Proc::new(c"w", rank)).collect();
        assert_eq!(loss(&procs).keys(), ["pmix.evproc", "pmix.evproc", "pmix.evaffected"]);
    }
}
