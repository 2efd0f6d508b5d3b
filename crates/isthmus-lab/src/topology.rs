//! A whole lab: its sites, the links between them, and what it leaves behind: nothing.
//!
//! Besides the sites there is the *hub*, a namespace of the lab's own in which the main
//! command runs; with `mgmt` it is joined to every site, as a login node would be. The
//! host's own network is never touched.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{LabConfig, LanSpec, LinkSpec, SiteConfig};
use crate::emulator::{self, LinkEmulator, monotonic_ns};
use crate::model::DirectionSpec;
use crate::netlink;
use crate::report::{LabReport, LinkReport};
use crate::site::{self, Namespaces};
use crate::sys;
use crate::{Doing, LabError};
use isthmus_units::{Percent, Rate, Size, Span};

/// The network of the `mgmt` link, a /24: sites count from .1, the hub is .254.
pub const MGMT_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 0);

/// Environment variable with the id of the lab that a command runs in.
pub const LAB_VARIABLE: &str = "ISTHMUS_LAB";

/// Name of the hub among the sites.
pub const HUB: &str = "hub";

const MGMT_INTERFACE: &str = "mgmt0";
const NETNS_DIRECTORY: &str = "/run/netns";
/// Super-packets that wait between the kernel and the emulator's next turn.
const TAP_QUEUE_PACKETS: u32 = 8192;

/// Where a lab is and how to get into its sites: what other processes read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// Names the lab on this machine: its holder's process id, and a count after its first.
    pub id: String,
    /// Process id of the holder.
    pub pid: u32,
    /// Start time of the holder, which tells it from a later process of the same id.
    pub start_time: u64,
    /// User namespace of the lab where it runs without root.
    pub user_namespace: Option<PathBuf>,
    /// The hub, then the sites in the order of the configuration.
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
    /// Addresses on the wide-area links, in the order of the links.
    pub addresses: Vec<Ipv4Addr>,
    /// Address on the `mgmt` link.
    pub mgmt: Option<Ipv4Addr>,
}

impl SiteState {
    /// Opens the site's namespaces.
    ///
    /// # Errors
    /// When the lab has ended.
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

/// Whether this process may make namespaces as it is; otherwise it needs a user namespace.
pub fn is_privileged() -> bool {
    const NEEDED: u64 = 1 << 12 | 1 << 21; // CAP_NET_ADMIN, CAP_SYS_ADMIN
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = field.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    capabilities.is_some_and(|have| have & NEEDED == NEEDED)
}

/// Moves this process, which must have one thread, into a user namespace of its own where
/// it needs one to make a lab. Call it first in `main`.
///
/// # Errors
/// Where the system does not allow unprivileged user namespaces.
pub fn become_able() -> Result<(), LabError> {
    if is_privileged() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let enter = || -> io::Result<()> {
        sys::unshare(sys::CLONE_NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
    };
    enter().doing(|| "make a user namespace, which a lab without root needs".to_owned())
}

/// Where labs leave their state: root's, and each user's own. Others' are not trusted: what
/// is there names programs that get run.
fn state_directories() -> Vec<PathBuf> {
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

/// The user outside any user namespace of ours.
fn original_uid() -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<u32> = map.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let uid = rustix::process::getuid().as_raw();
    match fields[..] {
        [inside, outside, _] if uid >= inside => outside.saturating_add(uid - inside),
        _ => uid,
    }
}

fn make_state_directory(id: &str) -> Result<PathBuf, LabError> {
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

/// Somebody else may have made it between our looking and our making.
fn check_own(base: &Path) -> io::Result<()> {
    if is_own_or_absent(base) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// When process `pid` started, in clock ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
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

    /// Every lab that runs on this machine and that this user can see.
    pub fn running() -> Vec<Self> {
        let bases = state_directories().into_iter().filter_map(|base| fs::read_dir(base).ok());
        let directories = bases.flat_map(|entries| entries.flatten().map(|e| e.path()));
        directories.filter_map(|d| Self::read(&d)).filter(Self::is_alive).collect()
    }

    /// The lab `id`; without one, that of the environment, or the only one that runs.
    ///
    /// # Errors
    /// When there is none, or several and no choice.
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
    /// When there is no such site.
    pub fn site(&self, host: &str) -> Result<&SiteState, LabError> {
        let names: Vec<_> = self.sites.iter().map(|s| s.name.clone()).collect();
        let missing = || format!("lab {} has no site {host:?}; it has {}", self.id, list(&names));
        self.sites.iter().find(|site| site.answers_to(host)).ok_or_else(|| LabError::Missing(missing()))
    }

    /// Moves this process, which must have one thread, into the site.
    ///
    /// # Errors
    /// Without the right to enter, or when the lab has just ended.
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

/// Takes away what labs left whose holder was killed.
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

/// A directory without state is a lab on its way, as long as its process exists.
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
    // A second lab may be cleaning at the same time.
    let _ = fs::remove_dir_all(directory);
}

struct Place {
    name: String,
    namespaces: Namespaces,
}

/// A running lab. Dropping it ends its processes and takes everything away.
pub struct Lab {
    directory: PathBuf,
    state: LabState,
    /// The hub, then the sites.
    places: Vec<Place>,
    /// Where the far ends of veth pairs are, out of every site's sight.
    wire: Namespaces,
    links: Vec<LinkSpec>,
    lans: Vec<LanSpec>,
    site_names: Vec<String>,
    emulators: Vec<LinkEmulator>,
    epoch_ns: u64,
}

impl Lab {
    /// Makes the sites, joins them, and opens the links.
    ///
    /// # Errors
    /// When the configuration does not hold together, the system refuses something, or
    /// there is not the memory for what the links hold in flight.
    pub fn start(config: &LabConfig) -> Result<Self, LabError> {
        let links = config.specs()?;
        let lans = config.lan_specs(&links)?;
        check_memory(&links)?;
        clean_up_stale();
        let pid = std::process::id();
        let start_time = start_time(pid).unwrap_or(0);
        let state = LabState {
            id: next_id(pid),
            pid,
            start_time,
            user_namespace: user_namespace(),
            sites: Vec::new(),
        };
        let wire = Namespaces::create("wire", Path::new("/etc/hosts"))?;
        let mut lab = Self {
            directory: make_state_directory(&state.id)?,
            state,
            places: Vec::new(),
            wire,
            links,
            lans,
            site_names: config.sites.iter().map(|s| s.name.clone()).collect(),
            emulators: Vec::new(),
            epoch_ns: 0,
        };
        lab.make_places(config)?;
        if config.mgmt {
            lab.join_mgmt().doing(|| "make the mgmt network".to_owned())?;
        }
        for index in 0..lab.links.len() {
            lab.make_link(index)?;
        }
        for index in 0..lab.lans.len() {
            lab.lay_cable(index).doing(|| format!("lay cable {}", index + 1))?;
        }
        lab.tune(config)?;
        lab.publish()?;
        lab.epoch_ns = monotonic_ns();
        lab.emulators.iter().for_each(|e| e.open(lab.epoch_ns));
        Ok(lab)
    }

    /// What other processes need to know.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// A command that will run in the site (or the hub) `name`, with the lab's variables.
    /// It is killed at the latest when the thread that spawns it ends.
    ///
    /// # Errors
    /// When there is no such site or descriptors run out.
    pub fn command(&self, name: &str, program: impl AsRef<std::ffi::OsStr>) -> Result<Command, LabError> {
        let site = self.state.site(name)?;
        let mut command = Command::new(program);
        command.envs(environment(&self.state, &site.name));
        command.env("ISTHMUS_LAB_RSH", self.directory.join("bin/lab-rsh"));
        command.env("PATH", self.path_variable());
        let place = self.places.iter().find(|p| p.name == site.name);
        let place = place.ok_or_else(|| LabError::Missing(format!("site {name:?} is gone")))?;
        place.namespaces.place(&mut command).doing(|| format!("prepare a command in site {name:?}"))?;
        Ok(command)
    }

    /// Runs `work` on a thread inside the network of the site (or the hub) `name`. Sockets
    /// that it makes stay in that network wherever they are used afterwards.
    ///
    /// # Errors
    /// Those of `work`, and when there is no such site.
    pub fn inside<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, LabError> {
        let place = self.places.iter().find(|p| p.name == name);
        let place = place.ok_or_else(|| LabError::Missing(format!("there is no site {name:?}")))?;
        place.namespaces.inside(work).doing(|| format!("work in site {name:?}"))
    }

    /// Ends every process in the lab, closes the links, and says what they did.
    pub fn stop(mut self) -> LabReport {
        self.end_processes();
        let seconds = monotonic_ns().saturating_sub(self.epoch_ns) as f64 / 1e9;
        let unseen: Vec<_> = (0..self.links.len()).map(|i| self.unseen_drops(i)).collect();
        let links: Vec<_> = std::mem::take(&mut self.emulators)
            .into_iter()
            .enumerate()
            .map(|(i, emulator)| self.link_report(i, emulator, unseen[i]))
            .collect();
        let spoiled = links.iter().flat_map(|l| &l.directions).any(|d| d.spoiled);
        LabReport { version: 1, seconds, links, spoiled }
    }

    /// Ends every process in the lab.
    pub fn end_processes(&self) {
        let inodes: Vec<_> = self.places.iter().filter_map(|p| p.namespaces.net_inode().ok()).collect();
        site::end_processes_in(&inodes, Duration::from_millis(500));
    }

    fn make_places(&mut self, config: &LabConfig) -> Result<(), LabError> {
        let names = std::iter::once(HUB.to_owned()).chain(config.sites.iter().map(|s| s.name.clone()));
        for (index, name) in names.enumerate() {
            self.state.sites.push(self.site_state(index, &name, config.mgmt));
        }
        if self.state.user_namespace.is_none() {
            let share = site::share_names(Path::new(NETNS_DIRECTORY));
            share.doing(|| format!("keep network namespaces in {NETNS_DIRECTORY}"))?;
        }
        for index in 0..self.state.sites.len() {
            let name = self.state.sites[index].name.clone();
            let hosts = self.directory.join(format!("hosts-{name}"));
            fs::write(&hosts, hosts_file(&self.state.sites, index))
                .doing(|| format!("write {}", hosts.display()))?;
            let namespaces = Namespaces::create(&name, &hosts)?;
            self.locate(index, &namespaces);
            self.places.push(Place { name, namespaces });
            self.publish()?;
            self.name_net(index)?;
        }
        Ok(())
    }

    fn site_state(&self, index: usize, name: &str, mgmt: bool) -> SiteState {
        let of_links = self.links.iter().map(|link| (link.ends, link.addresses));
        let of_lans = self.lans.iter().map(|lan| (lan.ends, lan.addresses));
        let ends = of_links.chain(of_lans).flat_map(|(ends, addresses)| ends.into_iter().zip(addresses));
        let addresses = ends.filter(|(site, _)| *site + 1 == index).map(|(_, a)| a).collect();
        let [a, b, c, _] = MGMT_NETWORK.octets();
        let host = if index == 0 { 254 } else { index as u8 };
        let mgmt = mgmt.then_some(Ipv4Addr::new(a, b, c, host));
        let nowhere = PathBuf::new();
        SiteState {
            name: name.to_owned(),
            net: nowhere.clone(),
            uts: nowhere.clone(),
            mnt: nowhere,
            addresses,
            mgmt,
        }
    }

    fn locate(&mut self, index: usize, namespaces: &Namespaces) {
        let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/{}/fd/{}", self.state.pid, fd.as_raw_fd()));
        let (net, uts, mnt) = (path(&namespaces.net), path(&namespaces.uts), path(&namespaces.mnt));
        let named = Path::new(NETNS_DIRECTORY)
            .join(format!("isthmus-{}-{}", self.state.id, self.state.sites[index].name));
        let can_be_named = self.state.user_namespace.is_none();
        let site = &mut self.state.sites[index];
        (site.net, site.uts, site.mnt) = (if can_be_named { named } else { net }, uts, mnt);
    }

    /// Only where everyone sees it: a user namespace cannot mount for others.
    fn name_net(&self, index: usize) -> Result<(), LabError> {
        if self.state.user_namespace.is_some() {
            return Ok(());
        }
        let path = &self.state.sites[index].net;
        site::unname_net(path); // from an earlier process of the same id, killed before it wrote its state
        self.places[index]
            .namespaces
            .name_net(path)
            .doing(|| format!("keep a network namespace at {}", path.display()))
    }

    /// A bridge in the hub with one port per site: no emulation, no loss.
    fn join_mgmt(&self) -> io::Result<()> {
        let address = |index: usize| self.state.sites[index].mgmt.unwrap_or(MGMT_NETWORK);
        self.places[0].namespaces.inside(|| {
            netlink::add_bridge(MGMT_INTERFACE)?;
            netlink::bring_up(MGMT_INTERFACE, None, 9000, 1000)?;
            netlink::add_address(MGMT_INTERFACE, address(0), 24)?;
            for (i, place) in self.places.iter().enumerate().skip(1) {
                let port = format!("site{i}");
                netlink::add_veth(&port, MGMT_INTERFACE, place.namespaces.net.as_fd())?;
                netlink::bring_up(&port, None, 9000, 1000)?;
                netlink::set_bridge(&port, MGMT_INTERFACE)?;
            }
            Ok(())
        })?;
        for (i, place) in self.places.iter().enumerate().skip(1) {
            place.namespaces.inside(|| {
                netlink::bring_up(MGMT_INTERFACE, None, 9000, 1000)?;
                netlink::add_address(MGMT_INTERFACE, address(i), 24)
            })?;
        }
        Ok(())
    }

    /// A veth pair between two sites: no emulation, and no way beyond them.
    fn lay_cable(&self, index: usize) -> io::Result<()> {
        let lan = &self.lans[index];
        let [first, second] = lan.ends.map(|site| &self.places[site + 1].namespaces);
        let name = |end: usize| {
            let earlier =
                self.lans[..index].iter().filter(|other| other.ends.contains(&lan.ends[end])).count();
            format!("lan{earlier}")
        };
        first.inside(|| netlink::add_veth(&name(0), &name(1), second.net.as_fd()))?;
        for (end, site) in [first, second].into_iter().enumerate() {
            site.inside(|| {
                netlink::bring_up(&name(end), None, lan.mtu, TAP_QUEUE_PACKETS)?;
                netlink::add_address(&name(end), lan.addresses[end], 24)
            })?;
        }
        Ok(())
    }

    fn make_link(&mut self, index: usize) -> Result<(), LabError> {
        let link = &self.links[index];
        let what = || format!("make link {} between {}", index + 1, self.link_name(index));
        let [first, second] = [self.make_end(index, 0), self.make_end(index, 1)];
        let taps = [first.doing(what)?, second.doing(what)?];
        let emulator = LinkEmulator::prepare(taps, link.directions.clone()).doing(what)?;
        self.emulators.push(emulator);
        Ok(())
    }

    /// One site's interface of a link, and the descriptor by which the emulator serves it.
    fn make_end(&self, index: usize, end: usize) -> io::Result<OwnedFd> {
        let link = &self.links[index];
        let (name, is_first) = self.interface(index, end);
        let (address, peer) = (link.addresses[end], link.addresses[1 - end]);
        let site = &self.places[link.ends[end] + 1].namespaces;
        let device = match site.inside(|| sys::open_tap(&name)) {
            Ok(tap) => tap,
            Err(error) => self.make_veth_end(index, end, &name).map_err(|e| both(&error, &e))?,
        };
        site.inside(|| {
            // No router will answer; asking would cross the link.
            let _ = sysctl(&format!("ipv6/conf/{name}/router_solicitations"), "0");
            netlink::bring_up(&name, Some(mac(index, end)), link.mtu, TAP_QUEUE_PACKETS)?;
            netlink::add_address(&name, address, 24)?;
            netlink::add_neighbour(&name, peer, mac(index, 1 - end))?;
            if is_first { netlink::add_default_route(peer) } else { Ok(()) }
        })?;
        Ok(device)
    }

    /// Where /dev/net/tun is out of reach: a veth pair from the site to the wire namespace,
    /// and a packet socket there.
    fn make_veth_end(&self, index: usize, end: usize, name: &str) -> io::Result<OwnedFd> {
        let far_name = format!("link{index}end{end}");
        let site = &self.places[self.links[index].ends[end] + 1].namespaces;
        site.inside(|| netlink::add_veth(name, &far_name, self.wire.net.as_fd()))?;
        self.wire.inside(|| {
            // The emulator speaks here, the kernel must not.
            sysctl(&format!("ipv6/conf/{far_name}/disable_ipv6"), "1").or_else(no_ipv6)?;
            netlink::bring_up(&far_name, None, self.links[index].mtu, TAP_QUEUE_PACKETS)?;
            sys::open_packet_socket(&far_name)
        })
    }

    /// The interface's name at one end (`wan0` and on), and whether it is the site's first.
    fn interface(&self, index: usize, end: usize) -> (String, bool) {
        let site = self.links[index].ends[end];
        let earlier = self.links[..index].iter().filter(|l| l.ends.contains(&site)).count();
        (format!("wan{earlier}"), earlier == 0)
    }

    fn tune(&self, config: &LabConfig) -> Result<(), LabError> {
        for (i, site) in config.sites.iter().enumerate() {
            let window = self.links.iter().filter(|l| l.ends.contains(&i)).map(LinkSpec::window_bytes).max();
            let tune = || tune_site(site, window.unwrap_or(0));
            let namespaces = &self.places[i + 1].namespaces;
            namespaces.inside(tune).doing(|| format!("tune site {:?}", site.name))?;
            if let Some(cc) = &site.cc {
                set_congestion_control(namespaces, cc).doing(|| format!("tune site {:?}", site.name))?;
            }
        }
        Ok(())
    }

    /// Writes what other processes read, whole or not at all.
    fn publish(&self) -> Result<(), LabError> {
        let write = || -> io::Result<()> {
            let bin = self.directory.join("bin");
            fs::create_dir_all(&bin)?;
            write_script(&bin.join("lab-rsh"), &self.state.id)?;
            let text = serde_json::to_vec_pretty(&self.state)?;
            fs::write(self.directory.join("lab.json.new"), text)?;
            fs::rename(self.directory.join("lab.json.new"), self.directory.join("lab.json"))
        };
        write().doing(|| format!("write the lab's state to {}", self.directory.display()))
    }

    fn path_variable(&self) -> std::ffi::OsString {
        let mut path = self.directory.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
        path
    }

    fn link_name(&self, index: usize) -> String {
        let [a, b] = self.links[index].ends;
        format!("{} and {}", self.site_names[a], self.site_names[b])
    }

    fn link_report(&self, index: usize, emulator: LinkEmulator, unseen: [u64; 2]) -> LinkReport {
        let link = &self.links[index];
        let mut directions = emulator.stop();
        for (i, direction) in directions.iter_mut().enumerate() {
            direction.from = self.site_names[link.ends[i]].clone();
            direction.to = self.site_names[link.ends[1 - i]].clone();
            direction.drops.unseen += unseen[i];
            direction.judge();
        }
        LinkReport { link: describe(link, &self.site_names), directions }
    }

    /// Super-packets that each end's device dropped because the emulator did not come.
    fn unseen_drops(&self, index: usize) -> [u64; 2] {
        [0, 1].map(|end| {
            let place = &self.places[self.links[index].ends[end] + 1];
            let name = self.interface(index, end).0;
            place.namespaces.inside(|| transmit_drops(&name)).unwrap_or(0)
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.end_processes();
        for emulator in self.emulators.drain(..) {
            emulator.stop();
        }
        for site in &self.state.sites {
            if site.net.starts_with(NETNS_DIRECTORY) {
                site::unname_net(&site.net);
            }
        }
        // What is left is found and removed by the next lab.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A process may hold several labs, as tests do.
fn next_id(pid: u32) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    match COUNT.fetch_add(1, Ordering::Relaxed) {
        0 => pid.to_string(),
        earlier => format!("{pid}-{}", earlier + 1),
    }
}

fn user_namespace() -> Option<PathBuf> {
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

/// How the site (or hub) `own` resolves the others: over the wide area where it has a link,
/// over `mgmt` from the hub; `NAME-mgmt` is always the latter.
fn hosts_file(sites: &[SiteState], own: usize) -> String {
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

fn write_script(path: &Path, id: &str) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let script = format!(
        "#!/bin/sh\n# Remote shell into a site of this lab: lab-rsh SITE COMMAND...\n\
         {LAB_VARIABLE}={id} exec '{}' lab rsh \"$@\"\n",
        program.display().to_string().replace('\'', "'\\''")
    );
    fs::write(path, script)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn both(tap: &io::Error, veth: &io::Error) -> io::Error {
    let message =
        format!("neither a TAP device ({tap}) nor a veth pair with a packet socket ({veth}) can be made");
    io::Error::new(veth.kind(), message)
}

/// A kernel without IPv6 has no such setting.
fn no_ipv6(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Locally administered and the same in every lab.
fn mac(link: usize, end: usize) -> netlink::Mac {
    [0x02, 0x15, 0x74, 0x00, link as u8, end as u8 + 1]
}

fn sysctl(key: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/{key}"), value)
}

fn tune_site(site: &SiteConfig, window_bytes: u64) -> io::Result<()> {
    // Twice for the kernel's own accounting of a window, and never under the usual default.
    let most = (window_bytes * 2).clamp(6 << 20, i32::MAX as u64 - (1 << 20));
    let settings = [
        ("ipv4/tcp_rmem", format!("4096 131072 {most}")),
        ("ipv4/tcp_wmem", format!("4096 16384 {most}")),
        // One run must not inherit what an earlier connection learnt.
        ("ipv4/tcp_no_metrics_save", "1".to_owned()),
        ("ipv4/ip_forward", u8::from(site.forward).to_string()),
    ];
    for (key, value) in settings {
        if let Err(error) = sysctl(key, &value) {
            tracing::warn!("site {}: cannot set {key} = {value}: {error}; TCP may be slower", site.name);
        }
    }
    Ok(())
}

/// Sets the congestion control of a site. A namespace may only choose what the host allows
/// its users; root widens that for the moment of choosing.
fn set_congestion_control(site: &Namespaces, cc: &str) -> io::Result<()> {
    let set = || site.inside(|| sysctl("ipv4/tcp_congestion_control", cc));
    let chosen = set().or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => while_allowed(cc, set),
        _ => Err(error),
    });
    chosen.map_err(|e| unknown_cc(cc, &e))
}

fn while_allowed(cc: &str, set: impl Fn() -> io::Result<()>) -> io::Result<()> {
    const ALLOWED: &str = "ipv4/tcp_allowed_congestion_control";
    let _turn = one_at_a_time()?;
    let before = fs::read_to_string(format!("/proc/sys/net/{ALLOWED}"))?;
    sysctl(ALLOWED, &format!("{} {cc}", before.trim()))?;
    let chosen = set();
    sysctl(ALLOWED, before.trim())?;
    chosen
}

/// Keeps labs that start together from restoring each other's values.
fn one_at_a_time() -> io::Result<fs::File> {
    let directories = state_directories();
    let lock = directories.iter().find_map(|d| fs::File::create(d.join("lock")).ok());
    let lock = lock.ok_or(io::ErrorKind::NotFound)?;
    lock.lock()?;
    Ok(lock)
}

fn unknown_cc(cc: &str, error: &io::Error) -> io::Error {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "ask root to add it to net.ipv4.tcp_allowed_congestion_control of the host".to_owned()
        }
        _ => format!("this kernel offers {}", known.trim()),
    };
    io::Error::other(format!("cc = {cc:?}: {error}; {remedy}"))
}

/// The `drop` column of the sending half of /proc/net/dev.
fn transmit_drops(interface: &str) -> io::Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|l| l.trim().strip_prefix(interface)?.strip_prefix(':'));
    let dropped = line.and_then(|l| l.split_whitespace().nth(11)?.parse().ok());
    dropped.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What the system says it can still give. Bytes.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn check_memory(links: &[LinkSpec]) -> Result<(), LabError> {
    let each = || links.iter().flat_map(|l| &l.directions).map(emulator::memory_bytes);
    let (needed, largest) = (each().sum::<u64>(), each().max().unwrap_or(0));
    let available = available_memory_bytes().unwrap_or(u64::MAX);
    if needed > available / 10 * 8 || largest > u64::from(u32::MAX) {
        return Err(LabError::Missing(format!(
            "the links hold up to {} in flight and in queues, {} of memory are free; \
             use a lower rate, delay or queue",
            Size(needed),
            Size(available)
        )));
    }
    Ok(())
}

fn describe(link: &LinkSpec, names: &[String]) -> String {
    let [there, back] = &link.directions;
    let same = DirectionSpec { seed: there.seed, ..back.clone() } == *there;
    let head = format!("{} - {}: mtu {}", names[link.ends[0]], names[link.ends[1]], link.mtu);
    match same {
        true => format!("{head}, {}", describe_direction(there)),
        false => format!("{head}, there {}; back {}", describe_direction(there), describe_direction(back)),
    }
}

fn describe_direction(d: &DirectionSpec) -> String {
    let mut text = format!(
        "{}, {} one way, queue {}, loss {}",
        Rate(d.rate_bps),
        Span(d.delay_ns),
        Size(d.queue_bytes),
        Percent(d.loss.mean())
    );
    let mut note = |is_there: bool, words: String| {
        if is_there {
            text.push_str(&words);
        }
    };
    note(d.jitter_ns > 0, format!(", jitter {}", Span(d.jitter_ns)));
    note(d.reorder > 0.0, format!(", reorder {} by {}", Percent(d.reorder), Span(d.reorder_by_ns)));
    note(d.duplicate > 0.0, format!(", duplicate {}", Percent(d.duplicate)));
    note(!d.down.is_empty(), format!(", {} cuts", d.down.len()));
    text
}
