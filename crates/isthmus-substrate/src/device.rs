//! Devices: the interfaces of this host, as configured.

use std::net::IpAddr;

use isthmus_datagram::{Interface, is_frames_only, may_open};
use isthmus_io::{
    Admission, DeviceSettings, Encrypt, Settings, Streams, TlsMode, Transport, devices_from_file,
};

use crate::Error;
use crate::route::{addresses, reach, routes};

/// The transport whose packets are Ethernet frames.
const ETHERNET: &str = "ethernet";

/// The capabilities of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Messages go from the program's memory to the wire without a copy.
    pub zero_copy: bool,
    /// Messages need no system call each.
    pub os_bypass: bool,
}

/// An interface of this host, as the configuration describes it.
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
    transport: String,
    priority: u32,
    settings: Settings,
    interface: String,
    address: Result<IpAddr, String>,
    rate_bps: Option<u64>,
    network_bits: Option<u8>,
}

impl Device {
    fn from_settings(configured: DeviceSettings) -> Self {
        let DeviceSettings { name, transport, priority, settings } = configured;
        let by_frames = settings.transport == Transport::Ethernet;
        let transport = if by_frames { ETHERNET.to_owned() } else { transport };
        let mut address = settings.own_ip().map_err(|error| error.to_string());
        let found = address.as_ref().ok().and_then(|ip| isthmus_io::interface_of(*ip));
        let interface = match &address {
            Ok(ip) if is_frames_only(*ip) => settings.interface.clone(),
            _ => found.unwrap_or_default(),
        };
        if by_frames && address.is_ok() {
            let usable = may_open().and_then(|()| Interface::find(&interface));
            address = usable.map_err(|error| error.to_string()).and(address);
            if address.as_ref().is_ok_and(|ip| is_frames_only(*ip)) && settings.tls == TlsMode::Required {
                address = Err(format!(
                    "tls is required, whose handshake takes TCP, and {interface} has no IP address: give it \
                     one, or set tls to off"
                ));
            }
        }
        let network_bits = address.as_ref().ok().and_then(|ip| isthmus_io::network_bits_of(*ip));
        let rate_bps = rate_of(&interface);
        Self { name, transport, priority, settings, rate_bps, network_bits, interface, address }
    }

    /// The same device with another transport: tcp, udp, ethernet, shm, or a provider of
    /// libfabric.
    #[must_use]
    pub fn carried_by(&self, transport: &str) -> Self {
        let mut settings = self.settings.clone();
        match transport.parse() {
            Ok(by) => (settings.transport, settings.fabric) = (by, "off".to_owned()),
            Err(_) => (settings.transport, settings.fabric) = (Transport::Tcp, transport.to_owned()),
        }
        let (name, transport) = (self.name.clone(), transport.to_owned());
        Self::from_settings(DeviceSettings { name, transport, priority: self.priority, settings })
    }

    /// The same device for short messages that nobody else may read. Whatever the settings say, all lanes are encrypted
    /// TCP streams, at a port that the system chooses, and only for peers that have the endpoint's address. Closing
    /// takes at most 2 s, even if a peer is out of reach.
    #[must_use]
    pub fn confidential(&self) -> Self {
        let mut device = self.carried_by("off");
        let settings = &mut device.settings;
        (settings.encrypt, settings.admission) = (Encrypt::Always, Admission::Closed);
        (settings.streams, settings.port) = (Streams(1), 0);
        settings.linger = settings.linger.min("2s".parse().unwrap_or_default());
        device
    }

    /// The interface for frames, if that is the transport.
    pub(crate) fn frames(&self) -> Option<Interface> {
        (self.transport == ETHERNET).then(|| Interface::find(&self.interface).ok())?
    }

    pub(crate) fn carries_frames(&self) -> bool {
        self.transport == ETHERNET
    }

    /// The prefix length of its IP network. Bits.
    pub(crate) fn network_bits(&self) -> Option<u8> {
        self.network_bits
    }

    /// Its name in the configuration; `default` if it has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The transport of its messages: tcp, udp, ethernet, shm, or a provider of libfabric.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Devices with a higher priority are chosen first. 0..=100.
    pub fn priority(&self) -> u32 {
        self.priority
    }

    /// The network interface; empty while the device is down.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Its address, or why it is down.
    pub fn address(&self) -> Result<IpAddr, &str> {
        self.address.as_ref().copied().map_err(String::as_str)
    }

    /// Whether endpoints can be created on it.
    pub fn is_up(&self) -> bool {
        self.address.is_ok()
    }

    /// Its rate as the system knows it. Bits per second.
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// Its capabilities. Devices of sockets have none.
    pub fn capabilities(&self) -> Capabilities {
        let bypass = !matches!(self.transport.as_str(), "tcp" | "udp" | "auto" | ETHERNET);
        Capabilities { zero_copy: false, os_bypass: bypass }
    }

    /// Id of its autonomous system.
    pub fn as_id(&self) -> u32 {
        self.settings.as_id
    }

    /// Id of its subnet within the autonomous system.
    pub fn subnet(&self) -> u32 {
        self.settings.subnet
    }

    /// Routers of its subnet.
    pub fn routers(&self) -> &[std::net::SocketAddr] {
        &self.settings.routers.0
    }

    /// All its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the endpoint at `uri` can be reached from it: in its subnet, or by a router. This does not check whether
    /// anybody listens there.
    ///
    /// # Errors
    /// [`Error::Uri`].
    pub fn reaches(&self, uri: &str) -> Result<bool, Error> {
        Ok(addresses(uri)?.iter().any(|to| reach(self, to).is_some()))
    }

    pub(crate) fn check_up(&self) -> Result<(), Error> {
        match &self.address {
            Ok(_) => Ok(()),
            Err(why) => Err(Error::Device(format!("device {} is down: {why}", self.name))),
        }
    }

    /// Why it carries nothing now, and what to do; `None` if the system knows of no trouble.
    pub(crate) fn trouble(&self, ip: IpAddr) -> Option<String> {
        isthmus_io::interface_trouble(&self.interface, ip).or_else(|| {
            // An address that is derived from the Ethernet address changes with it.
            let is_other = |found: Interface| found.link_local() != ip;
            (is_frames_only(ip) && Interface::find(&self.interface).is_ok_and(is_other))
                .then(|| format!("the interface {} has another Ethernet address than before", self.interface))
        })
    }
}

/// The rate of an interface, if the system tells one. Bits per second.
fn rate_of(interface: &str) -> Option<u64> {
    // Virtual interfaces have no rate, or -1.
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    let mbit: u64 = text.trim().parse().ok()?;
    Some(mbit * 1_000_000)
}

/// The devices of this process.
#[derive(Clone, Debug)]
pub struct Substrate {
    devices: Vec<Device>,
}

impl Substrate {
    /// Reads the configuration: the file that `ISTHMUS_CONFIG` names, else the user's, else the system's. Without any
    /// file there is one device, `default`.
    ///
    /// # Errors
    /// [`Error::Configuration`], with file, line and remedy.
    pub fn init() -> Result<Self, Error> {
        let configured = devices_from_file().map_err(|error| Error::Configuration(error.to_string()))?;
        Ok(Self::from_configured(configured))
    }

    /// As [`Substrate::init`], from a text; `origin` names it in errors.
    ///
    /// # Errors
    /// [`Error::Configuration`].
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, Error> {
        let configured = isthmus_io::devices_from_toml(text, origin)
            .map_err(|error| Error::Configuration(error.to_string()))?;
        Ok(Self::from_configured(configured))
    }

    fn from_configured(configured: Vec<DeviceSettings>) -> Self {
        let mut devices: Vec<_> = configured.into_iter().map(Device::from_settings).collect();
        // Devices that are up come first, then those of higher priority, then in the order of the file.
        devices.sort_by_key(|device| (!device.is_up(), std::cmp::Reverse(device.priority)));
        Self { devices }
    }

    /// All devices, in the order in which they are chosen.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device of this name.
    ///
    /// # Errors
    /// [`Error::Device`], with the names of all devices.
    pub fn device(&self, name: &str) -> Result<&Device, Error> {
        self.devices.iter().find(|device| device.name == name).ok_or_else(|| {
            let names: Vec<_> = self.devices.iter().map(Device::name).collect();
            Error::Device(format!("no device is called `{name}`; there are {}", names.join(", ")))
        })
    }

    /// The device of the highest priority that is up.
    ///
    /// # Errors
    /// [`Error::Device`] if none is up.
    pub fn default_device(&self) -> Result<&Device, Error> {
        let first = self.devices.first().ok_or_else(|| Error::Device("there is no device".to_owned()))?;
        first.check_up()?;
        Ok(first)
    }

    /// The device of the highest priority from which the endpoint at `uri` can be reached.
    ///
    /// # Errors
    /// [`Error::Uri`]; [`Error::Unreachable`] if there is none, with the reason for each device.
    pub fn device_for(&self, uri: &str) -> Result<&Device, Error> {
        let devices: Vec<&Device> = self.devices.iter().collect();
        let (index, _) = routes(&devices, &addresses(uri)?)?[0];
        Ok(devices[index])
    }

    /// The devices that a text names: one name, several joined by commas, or `*` for all that are up. Those of higher
    /// priority come first.
    ///
    /// # Errors
    /// [`Error::Device`], as for [`Substrate::device`], and if `*` finds none.
    pub fn devices_named(&self, names: &str) -> Result<Vec<&Device>, Error> {
        if names == "*" {
            self.default_device()?;
            return Ok(self.devices.iter().filter(|device| device.is_up()).collect());
        }
        names.split(',').map(|name| self.device(name.trim())).collect()
    }
}
