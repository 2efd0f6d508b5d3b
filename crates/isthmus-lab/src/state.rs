//! State of a running lab: its namespaces and its holder. The holder writes it, other processes read it, and the
//! next lab cleans up if the holder was killed.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::site::{self, Namespaces};
use crate::sys;
use crate::{Doing, LabError};

/// Folder of named network namespaces, for all users.
pub(crate) const NETNS_DIRECTORY: &str = "/run/netns";

/// Environment variable with the id of the lab that a command runs in.
pub const LAB_VARIABLE: &str = "ISTHMUS_LAB";

/// A running lab's state, for other processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// Name of the lab on this machine: the holder's process id, with a count for further labs.
    pub id: String,
    /// Process id of the holder.
    pub pid: u32,
    /// Start time of the holder in clock ticks. It tells the holder from a later process with its id.
    pub start_time: u64,
    /// Path of the lab's user namespace, if it runs without root.
    pub user_namespace: Option<PathBuf>,
    /// The hub, then the sites in the configuration's order.
    pub sites: Vec<SiteState>,
}

/// One site of a running lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteState {
    /// Name and hostname.
    pub name: String,
    /// Path of the network namespace.
    pub net: PathBuf,
    /// Path of the hostname namespace.
    pub uts: PathBuf,
    /// Path of the mount namespace.
    pub mnt: PathBuf,
    /// Addresses on the wide-area links, in the links' order.
    pub addresses: Vec<Ipv4Addr>,
    /// Address on the `mgmt` link.
    pub mgmt: Option<Ipv4Addr>,
}

impl SiteState {
    /// Opens the site's namespaces.
    ///
    /// # Errors
    /// If the lab has ended.
    pub fn open(&self) -> io::Result<Namespaces> {
        Namespaces::open(&self.net, &self.uts, &self.mnt)
    }

    fn answers_to(&self, host: &str) -> bool {
        let address = |a: &Ipv4Addr| a.to_string() == host;
        self.name == host
            || host.strip_suffix("-mgmt") == Some(&self.name)
            || self.addresses.iter().chain(&self.mgmt).any(address)
    }
}

impl LabState {
    fn read(directory: &Path) -> Option<Self> {
        let text = fs::read_to_string(directory.join("lab.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether the process that holds the lab still runs.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// All running labs that this user can see.
    pub fn running() -> Vec<Self> {
        let bases = state_directories().into_iter().filter_map(|base| fs::read_dir(base).ok());
        let directories = bases.flat_map(|entries| entries.flatten().map(|e| e.path()));
        directories.filter_map(|d| Self::read(&d)).filter(Self::is_alive).collect()
    }

    /// The lab `id`. Without an id: the lab of the environment, or the only one that runs.
    ///
    /// # Errors
    /// If there is none, or several to choose from.
    pub fn find(id: Option<&str>) -> Result<Self, LabError> {
        let from_environment = std::env::var(LAB_VARIABLE).ok();
        let wanted = id.or(from_environment.as_deref());
        let mut running = Self::running();
        let ids: Vec<_> = running.iter().map(|lab| lab.id.clone()).collect();
        if let Some(wanted) = wanted {
            let found = running.into_iter().find(|lab| lab.id == wanted);
            let missing = || format!("lab {wanted} does not run; running labs: {}", list(&ids));
            return found.ok_or_else(|| LabError::Missing(missing()));
        }
        match running.len() {
            1 => Ok(running.remove(0)),
            0 => Err(LabError::Missing("no lab runs; start one with `isthmus lab run`".into())),
            _ => Err(LabError::Missing(format!("several labs run; choose one with --lab: {}", list(&ids)))),
        }
    }

    /// The site that `host` names: its name or one of its addresses.
    ///
    /// # Errors
    /// If there is no such site.
    pub fn site(&self, host: &str) -> Result<&SiteState, LabError> {
        let names: Vec<_> = self.sites.iter().map(|s| s.name.clone()).collect();
        let missing = || format!("lab {} has no site {host:?}; it has {}", self.id, list(&names));
        self.sites.iter().find(|site| site.answers_to(host)).ok_or_else(|| LabError::Missing(missing()))
    }

    /// Moves this process into the site. The process must have one thread.
    ///
    /// # Errors
    /// If entering is not permitted, or the lab has just ended.
    pub fn enter(&self, site: &SiteState) -> Result<(), LabError> {
        let enter = || {
            if let Some(user) = &self.user_namespace {
                enter_user_namespace(user)?;
            }
            site.open()?.enter()
        };
        enter().doing(|| format!("enter site {:?} of lab {}", site.name, self.id))
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn enter_user_namespace(path: &Path) -> io::Result<()> {
    let (theirs, ours) = (fs::File::open(path)?, fs::File::open("/proc/self/ns/user")?);
    if site::same_namespace(theirs.as_fd(), ours.as_fd())? { Ok(()) } else { sys::enter(theirs.as_fd()) }
}

/// Folders of labs' state: root's and the user's own. Others are not trusted, for a state
/// names programs to run.
pub(crate) fn state_directories() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("isthmus-lab"));
    let shared = std::env::temp_dir().join(format!("isthmus-lab-{}", original_uid()));
    let own = [user, Some(shared)].into_iter().flatten().filter(|d| is_own_or_absent(d));
    std::iter::once(PathBuf::from("/run/isthmus-lab")).chain(own).collect()
}

fn is_own_or_absent(directory: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    match fs::symlink_metadata(directory) {
        Ok(meta) => meta.is_dir() && meta.uid() == me && meta.mode() & 0o022 == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The user id outside the lab's user namespaces.
fn original_uid() -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<u32> = map.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let uid = rustix::process::getuid().as_raw();
    match fields[..] {
        [inside, outside, _] if uid >= inside => outside.saturating_add(uid - inside),
        _ => uid,
    }
}

pub(crate) fn make_state_directory(id: &str) -> Result<PathBuf, LabError> {
    let mut failure = None;
    for base in state_directories() {
        let directory = base.join(id);
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory);
        match made.and_then(|()| check_own(&base)) {
            Ok(()) => return Ok(directory),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::NotFound.into())).doing(|| {
        "make a directory for the lab's state under /run, XDG_RUNTIME_DIR or the temporary directory".into()
    })
}

/// Refuses a folder of another user, who may have made it just before us.
fn check_own(base: &Path) -> io::Result<()> {
    if is_own_or_absent(base) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// When process `pid` started, in clock ticks since boot.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Removes what is left of labs whose holder was killed.
pub fn clean_up_stale() {
    for base in state_directories() {
        let Ok(entries) = fs::read_dir(base) else { continue };
        for directory in entries.flatten().map(|e| e.path()) {
            match LabState::read(&directory) {
                Some(state) if !state.is_alive() => remove_stale(&directory, &state),
                None if !may_be_starting(&directory) => drop(fs::remove_dir_all(&directory)),
                _ => {}
            }
        }
    }
}

/// A folder without state belongs to a lab that is starting, if its process exists.
fn may_be_starting(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
    !directory.is_dir() || pid.is_none_or(|pid| start_time(pid).is_some())
}

fn remove_stale(directory: &Path, state: &LabState) {
    tracing::info!("taking away what the killed lab {} left", state.id);
    let names: Vec<_> =
        state.sites.iter().map(|s| &s.net).filter(|n| n.starts_with(NETNS_DIRECTORY)).collect();
    let inodes: Vec<_> = names.iter().filter_map(|n| fs::metadata(n).ok()).map(|m| m.ino()).collect();
    site::end_processes_in(&inodes, Duration::ZERO);
    names.into_iter().for_each(|name| site::unname_net(name));
    // Another lab may be cleaning at the same time.
    let _ = fs::remove_dir_all(directory);
}

/// Name of a process's next lab. Tests have several labs in one process.
pub(crate) fn next_id(pid: u32) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    match COUNT.fetch_add(1, Ordering::Relaxed) {
        0 => pid.to_string(),
        earlier => format!("{pid}-{}", earlier + 1),
    }
}

pub(crate) fn user_namespace() -> Option<PathBuf> {
    let first = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_initial = first.split_whitespace().eq(["0", "0", "4294967295"]);
    (!is_initial).then(|| PathBuf::from(format!("/proc/{}/ns/user", std::process::id())))
}

/// Variables that tell a command about its lab.
pub fn environment(state: &LabState, own_site: &str) -> Vec<(String, String)> {
    let sites = &state.sites[1..];
    let names: Vec<_> = sites.iter().map(|s| s.name.as_str()).collect();
    let mut variables = vec![
        (LAB_VARIABLE.to_owned(), state.id.clone()),
        ("ISTHMUS_LAB_SITE".to_owned(), own_site.to_owned()),
        ("ISTHMUS_LAB_SITES".to_owned(), names.join(",")),
    ];
    for site in sites {
        let prefix = format!("ISTHMUS_LAB_SITE_{}", site.name.to_uppercase().replace('-', "_"));
        let addresses: Vec<_> = site.addresses.iter().map(Ipv4Addr::to_string).collect();
        variables.push((format!("{prefix}_NAME"), site.name.clone()));
        variables.push((format!("{prefix}_NETNS"), site.net.display().to_string()));
        variables.push((format!("{prefix}_ADDRESS"), addresses.first().cloned().unwrap_or_default()));
        variables.push((format!("{prefix}_ADDRESSES"), addresses.join(",")));
        variables.push((format!("{prefix}_MGMT"), site.mgmt.map_or(String::new(), |m| m.to_string())));
    }
    variables
}

/// The hosts file of the site (or hub) `own`. Names are resolved over a wide-area link if it has
/// one, over `mgmt` from the hub. `NAME-mgmt` is always over `mgmt`.
pub(crate) fn hosts_file(sites: &[SiteState], own: usize) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n".to_owned();
    for (i, site) in sites.iter().enumerate() {
        let wan = site.addresses.first().copied().filter(|_| own != 0);
        let own_name = (i == own).then_some(Ipv4Addr::new(127, 0, 1, 1));
        if let Some(address) = wan.or(site.mgmt).or(own_name) {
            text.push_str(&format!("{address} {}\n", site.name));
        }
        if let Some(mgmt) = site.mgmt {
            text.push_str(&format!("{mgmt} {}-mgmt\n", site.name));
        }
    }
    text
}
