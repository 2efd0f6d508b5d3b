//! A running lab: its sites and the links between them. It leaves nothing behind.
//!
//! The main command runs in the *hub*, a namespace of the lab's own. With `mgmt` the hub has
//! a link to every site, like a login node. The lab never touches the host's own network.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config::{LabConfig, LanSpec, LinkSpec, MGMT_NETWORK};
use crate::emulator::{LinkEmulator, monotonic_ns};
use crate::netlink;
use crate::report::{LabReport, LinkReport, describe};
use crate::site::{self, Namespaces};
use crate::state::{
    LAB_VARIABLE, LabState, NETNS_DIRECTORY, SiteState, clean_up_stale, environment, hosts_file,
    make_state_directory, next_id, start_time, user_namespace,
};
use crate::sys;
use crate::tuning::{check_memory, no_ipv6, set_congestion_control, sysctl, transmit_drops, tune_site};
use crate::{Doing, LabError};

/// The hub's name among the sites.
pub const HUB: &str = "hub";

const MGMT_INTERFACE: &str = "mgmt0";
/// Most super-packets between the kernel and the emulator's next read. Count.
const TAP_QUEUE_PACKETS: u32 = 8192;

struct Place {
    name: String,
    namespaces: Namespaces,
}

/// A running lab. Dropping it ends its processes and removes everything.
pub struct Lab {
    directory: PathBuf,
    state: LabState,
    /// The hub, then the sites.
    places: Vec<Place>,
    /// Namespace with the far ends of veth pairs, invisible to the sites.
    wire: Namespaces,
    links: Vec<LinkSpec>,
    lans: Vec<LanSpec>,
    site_names: Vec<String>,
    emulators: Vec<LinkEmulator>,
    epoch_ns: u64,
    /// The same time by the wall clock. Seconds since 1970.
    opened_s: f64,
}

impl Lab {
    /// Makes the sites, connects them, and opens the links.
    ///
    /// # Errors
    /// If the configuration is inconsistent, the system refuses something, or memory is too small
    /// for what the links hold in flight.
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
            opened_s: 0.0,
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
        lab.opened_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        lab.emulators.iter().for_each(|e| e.open(lab.epoch_ns));
        Ok(lab)
    }

    /// The state that other processes read.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// A command to run in the site (or the hub) `name`, with the lab's variables. It is killed at
    /// the latest when the thread that spawns it ends.
    ///
    /// # Errors
    /// If there is no such site, or no descriptors are left.
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

    /// Runs `work` on a thread in the network of the site (or the hub) `name`. Sockets that it
    /// makes stay in that network wherever they are used later.
    ///
    /// # Errors
    /// Those of `work`, and if there is no such site.
    pub fn inside<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, LabError> {
        let place = self.places.iter().find(|p| p.name == name);
        let place = place.ok_or_else(|| LabError::Missing(format!("there is no site {name:?}")))?;
        place.namespaces.inside(work).doing(|| format!("work in site {name:?}"))
    }

    /// Ends every process in the lab, closes the links, and reports what they did.
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
        LabReport { version: 1, opened_s: self.opened_s, seconds, links, spoiled }
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

    /// Names a namespace in the common folder. Only root does: a user namespace cannot mount for others.
    fn name_net(&self, index: usize) -> Result<(), LabError> {
        if self.state.user_namespace.is_some() {
            return Ok(());
        }
        let path = &self.state.sites[index].net;
        site::unname_net(path); // left by a killed process with the same id
        self.places[index]
            .namespaces
            .name_net(path)
            .doing(|| format!("keep a network namespace at {}", path.display()))
    }

    /// Makes a bridge in the hub with one port per site: no emulation, no loss.
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

    /// Makes a veth pair between two sites. It is not emulated and leads nowhere else.
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

    /// Makes one end of a link: the site's interface, and the emulator's descriptor for it.
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
            // No router would answer, and the questions would cross the link.
            let _ = sysctl(&format!("ipv6/conf/{name}/router_solicitations"), "0");
            netlink::bring_up(&name, Some(mac(index, end)), link.mtu, TAP_QUEUE_PACKETS)?;
            netlink::wait_until_running(&name)?;
            netlink::add_address(&name, address, 24)?;
            netlink::add_neighbour(&name, peer, mac(index, 1 - end))?;
            if is_first { netlink::add_default_route(peer) } else { Ok(()) }
        })?;
        Ok(device)
    }

    /// Replaces TAP if /dev/net/tun is out of reach: a veth pair from the site to the wire
    /// namespace, and a packet socket there.
    fn make_veth_end(&self, index: usize, end: usize, name: &str) -> io::Result<OwnedFd> {
        let far_name = format!("link{index}end{end}");
        let site = &self.places[self.links[index].ends[end] + 1].namespaces;
        site.inside(|| netlink::add_veth(name, &far_name, self.wire.net.as_fd()))?;
        self.wire.inside(|| {
            // Only the emulator may send here, not the kernel.
            sysctl(&format!("ipv6/conf/{far_name}/disable_ipv6"), "1").or_else(no_ipv6)?;
            netlink::bring_up(&far_name, None, self.links[index].mtu, TAP_QUEUE_PACKETS)?;
            sys::open_packet_socket(&far_name)
        })
    }

    /// Name of the interface at one end (`wan0` and on), and whether it is the site's first.
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

    /// Writes the lab's state for other processes, atomically.
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

    /// Super-packets that each end's device dropped because the emulator did not read them in time.
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
        // The next lab finds and removes what is left.
        let _ = fs::remove_dir_all(&self.directory);
    }
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

/// A locally administered address, the same in every lab.
fn mac(link: usize, end: usize) -> netlink::Mac {
    [0x02, 0x15, 0x74, 0x00, link as u8, end as u8 + 1]
}
