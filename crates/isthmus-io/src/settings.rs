//! Settings. One table gives the keys of the file, the names in the environment, and the provider's parameters.

mod admission;
mod changes;
mod congestion;
mod encrypt;
pub(crate) mod file;
mod limits;
mod ports;
mod priority;
mod protocols;
mod scitag;
mod summary;
mod transfer;
mod trust;

use std::time::Duration;

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use isthmus_datagram::{EthernetError, Interface};
use isthmus_udp::Composition;
use isthmus_units::{HostPort, HostPortError, PerHost, ResolveError, Size, Span};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::interface::{self, Chosen, Family, InterfaceError};
pub use admission::Admission;
pub(crate) use changes::Changes;
pub use congestion::TcpCongestion;
pub use encrypt::Encrypt;
use file::{file_text, file_to_read, text_of};
pub use limits::RateLimits;
pub use ports::PortRange;
pub use priority::{Dscp, Priority};
pub use protocols::Protocols;
pub use scitag::{Firefly, Scitag};
pub(crate) use scitag::{FireflyTo, Tag};
pub use summary::Summary;
pub use transfer::MessageTransfer;
pub use trust::{KeyFiles, TlsMode};

/// The name of shared memory in the setting `fabric`, and in the offers of lanes.
pub(crate) const MEMORY: &str = "memory";

/// One setting, as shown to users.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name: the file's key; in the environment `FI_ISTHMUS_` and the name in capitals.
    pub name: &'static str,
    /// Meaning, in one sentence. docs/settings.md has the details.
    pub help: &'static str,
    /// What may be written: a range, a unit, or the choices.
    pub values: &'static str,
    /// Default, as the user would write it; empty if the setting is not set.
    pub default: &'static str,
}

impl Parameter {
    /// Meaning, values and default in one text.
    pub fn describe(&self) -> String {
        let default = if self.default.is_empty() { "not set" } else { self.default };
        format!("{} Values: {}. Default: {default}.", self.help, self.values)
    }
}

/// Why settings were refused; the message names the place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

macro_rules! settings {
    ($($name:ident: $kind:ty = $default:literal, $values:literal, $help:literal;)+) => {
        /// Settings of endpoints.
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $(#[doc = $help] pub $name: $kind,)+
        }

        /// All settings of an endpoint.
        pub const PARAMETERS: &[Parameter] =
            &[$(Parameter {
                name: stringify!($name),
                help: $help,
                values: $values,
                default: $default,
            },)+];

        impl Default for Settings {
            fn default() -> Self {
                // The table's own defaults parse: `the_defaults_parse` holds it to that.
                Self { $($name: <$kind as Value>::parse($default).unwrap_or_else(|_| <$kind as Value>::fallback()),)+ }
            }
        }

        impl Settings {
    /// Silence after which a lane is given up: [`Settings::peer_timeout`], within 1 s and 20 s.
    pub(crate) fn patience(&self) -> Duration {
        self.peer_timeout.to_duration().clamp(Duration::from_secs(1), Duration::from_secs(20))
    }

    /// Whether lanes on this host go by shared memory. With tls they do not: the other end would not have proved who it
    /// is.
    pub(crate) fn by_memory(&self) -> bool {
        self.tls == TlsMode::Off && self.fabric.split(',').any(|name| name.trim() == MEMORY)
    }

    /// The libfabric providers of local fabrics, separated by commas; "" for none.
    pub(crate) fn fabrics(&self) -> String {
        let names = self.fabric.split(',').map(str::trim);
        names.filter(|name| !matches!(*name, MEMORY | "off" | "")).collect::<Vec<_>>().join(",")
    }

            /// Takes over the settings for which `get` has a text, by name.
            fn override_from(&mut self, get: impl Fn(&str) -> Option<String>) -> Result<(), SettingsError> {
                $(if let Some(text) = get(stringify!($name)) {
                    self.$name = <$kind as Value>::parse(&text).map_err(|expected| {
                        SettingsError(format!("{} = {text:?}: {expected}", environment_name(stringify!($name))))
                    })?;
                })+
                Ok(())
            }
        }
    };
}

settings! {
    interface: String = "", "name or IP address", "Network interface to listen on and to connect from.";
    rails: String = "", "up to 3 names or IP addresses, separated by commas", "Further network interfaces that large transfers to far peers use as well.";
    port: u16 = "0", "0..=65535", "TCP port to listen on; with 0 the system chooses one.";
    port_range: PortRange = "", "such as \"5000-5100\"", "Range in which the ports of this host's endpoints lie, if `port` is 0.";
    as_id: u32 = "0", "0..=4294967295", "Id of the autonomous system of this host.";
    subnet: u32 = "0", "0..=4294967295", "Id of the subnet within the autonomous system.";
    routers: Routers = "", "HOST:PORT, several separated by commas", "Routers of this subnet, which lead to other subnets and autonomous systems.";
    streams: Streams = "32", "1..=64", "Most TCP streams to one peer that is 1 ms or more away.";
    transport: Transport = "auto", "\"auto\", \"tcp\", \"udp\", \"ethernet\"", "Carries lanes to other hosts if no router or fabric lies between.";
    udp_from: Span = "2ms", "time, such as \"50ms\"", "With transport \"auto\", lanes begin with UDP from this round trip on.";
    udp_protocols: PerHost<Composition> = "", "names joined by +, also for some hosts", "Protocols of UDP lanes: congestion control, loss detection, copies, packet sizes and checksum.";
    protocols: Protocols = "", "entries SUBJECT: NAMES, separated by commas", "Protocols of service levels, messages and lanes in one text.";
    rate_limit: RateLimits = "", "rate, such as \"2Gbit\", also for some hosts", "Most that lanes to other hosts send together.";
    traffic_priority: Priority = "normal", "\"normal\", \"background\"", "Whether lanes share a path as equals, or use only what other traffic leaves.";
    dscp: Dscp = "", "le, df, cs0 to cs7, af11 to af43, va, ef, 0..=63", "DSCP (RFC 2474) of TCP and UDP packets to other hosts.";
    ecn: bool = "false", "true, false", "Allows routers to mark UDP packets to other hosts instead of dropping them (RFC 3168).";
    scitag: Scitag = "", "EXPERIMENT.ACTIVITY, such as \"2.15\"", "Scientific network tag (scitags.org) of flows to other hosts.";
    firefly: Firefly = "off", "\"destination\", HOST:PORT, \"off\"", "Receiver of the UDP packets that announce flows with a `scitag`.";
    admission: Admission = "closed", "\"closed\", \"open\"", "Admits only peers that know the endpoint's whole address, or everybody who reaches the port.";
    encrypt: Encrypt = "far", "\"far\", \"always\", \"never\"", "Lanes that are encrypted from end to end, also through routers.";
    tls: TlsMode = "off", "\"off\", \"required\"", "Whether lanes between endpoints prove by certificate to which AS both hosts belong.";
    tls_certificate: KeyFiles = "", "absolute path", "With tls, the certificate of this host, as `isthmus router keygen` makes it.";
    tls_key: KeyFiles = "", "absolute path", "With tls, the private key of the certificate.";
    tls_authorities: KeyFiles = "", "absolute paths, separated by commas", "With tls, the authorities of the ASs whose endpoints are trusted, with the host's own.";
    fabric: String = "memory", "\"memory\", libfabric providers, \"off\"", "Carries lanes within the subnet instead of TCP, if both ends have it; best first.";
    credit: Credit = "auto", "bytes, such as \"8MiB\", or \"auto\"", "Most unexpected data that one peer may send ahead of its receives.";
    credit_total: Size = "1GiB", "bytes", "Most unexpected data of all peers of an endpoint together.";
    buffered_sends: Size = "1MiB", "bytes, 0 for none", "A message to a far peer up to this length counts as sent once it has been copied.";
    transfer: MessageTransfer = "adaptive", "\"eager\", \"rendezvous\", \"mixed\", \"adaptive\", also for some hosts", "Protocol of messages longer than 8 KiB.";
    peer_timeout: Span = "60s", "time, such as \"60s\"", "Time for which a peer may be out of reach before operations on it fail.";
    lost_peer: LostPeer = "error", "\"error\", \"truncate\", \"silent\"", "Fate of an operation whose peer is given up.";
    stall_warning: Span = "30s", "time, \"0s\" for none", "Time after which the log says what a pending operation with a reachable peer waits for.";
    linger: Span = "10s", "time", "Time that closing an endpoint may take to deliver what was sent.";
    congestion: TcpCongestion = "auto", "\"auto\", \"system\", a name such as \"bbr\"", "TCP congestion control on paths that leave the host, if the kernel offers it.";
    summary: Summary = "log", "\"log\", \"stderr\", absolute path", "Where an endpoint that closes writes a line about each peer.";
    ledger: Switch = "on", "\"on\", \"off\"", "Endpoints of one user and host share measurements of paths, and share the paths by them.";
}

/// Most interfaces that [`Settings::rails`] names. Count.
const RAILS_MAX: usize = 3;

impl Settings {
    /// Reads the configuration file, then the environment, which wins. The file is
    /// `ISTHMUS_CONFIG`, else the user's `isthmus/isthmus.toml` below `XDG_CONFIG_HOME`,
    /// else `/etc/isthmus/isthmus.toml`; only a file that was named must exist.
    pub fn load() -> Result<Self, SettingsError> {
        let mut settings = match file_text()? {
            Some((text, origin)) => Self::from_toml(&text, &origin)?,
            None => Self::default(),
        };
        settings.override_from_environment()?;
        Ok(settings)
    }

    /// The environment wins over the file.
    pub(crate) fn override_from_environment(&mut self) -> Result<(), SettingsError> {
        refuse_unknown(env::vars_os().filter_map(|(name, _)| name.into_string().ok()))?;
        self.override_from(|name| env::var(environment_name(name)).ok().filter(|text| !text.is_empty()))
    }

    /// The configuration file whose changes running endpoints may follow, see
    /// [`crate::Endpoint::follow`]; `None` where there is none.
    pub fn file_to_follow() -> Option<PathBuf> {
        file_to_read()
    }

    /// The address at which endpoints listen by default.
    ///
    /// # Errors
    /// [`InterfaceError`] if the host does not have the [`Settings::interface`].
    pub fn own_ip(&self) -> Result<IpAddr, InterfaceError> {
        match interface::choose(&self.interface) {
            // Frames need no IP.
            Err(error @ InterfaceError::Unknown { .. }) if self.transport == Transport::Ethernet => {
                match Interface::find(&self.interface) {
                    Ok(found) => Ok(found.link_local().into()),
                    Err(EthernetError::Unknown(_)) => Err(error),
                    Err(why) => Err(why.into()),
                }
            }
            chosen => chosen.map(|chosen| chosen.ip),
        }
    }

    /// The address of [`Settings::own_ip`], and why it was chosen.
    ///
    /// # Errors
    /// [`InterfaceError`] if the host does not have the [`Settings::interface`], with an IP address.
    pub fn own_choice(&self) -> Result<Chosen, InterfaceError> {
        interface::choose(&self.interface)
    }

    /// The address of this family that endpoints may listen at, where the host has one.
    pub fn own_ip_of(&self, family: Family) -> Option<IpAddr> {
        let own = self.own_ip().ok()?;
        if Family::of(own) == family {
            return Some(own);
        }
        // Frames go by one interface, and nobody else reaches a loopback.
        let reached =
            |ip: &IpAddr| self.transport != Transport::Ethernet && ip.is_loopback() == own.is_loopback();
        interface::choose_of(family, &self.interface).filter(reached)
    }

    /// The host's addresses on its further rails.
    ///
    /// # Errors
    /// See [`Settings::own_ip`].
    pub(crate) fn rail_ips(&self) -> Result<Vec<IpAddr>, InterfaceError> {
        let named = self.rails.split(',').map(str::trim).filter(|name| !name.is_empty());
        let rails: Vec<IpAddr> =
            named.map(|name| interface::choose(name).map(|chosen| chosen.ip)).collect::<Result<_, _>>()?;
        if rails.len() > RAILS_MAX || (!rails.is_empty() && self.transport == Transport::Ethernet) {
            return Err(InterfaceError::Rails);
        }
        Ok(rails)
    }

    /// Reads a configuration file: the keys of [`PARAMETERS`] in a `[device]` table.
    /// Tables below it are devices by name, which are not read here.
    pub fn from_file(path: &Path) -> Result<Self, SettingsError> {
        let (text, origin) = text_of(path)?;
        Self::from_toml(&text, &origin)
    }

    /// Like [`Settings::from_file`], but from text; `origin` names it in errors.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, SettingsError> {
        file::default_settings(text, origin)
    }
}

/// The prefix of a setting's name in the environment.
const PREFIX: &str = "FI_ISTHMUS_";

/// The name of a setting in the environment.
pub fn environment_name(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase())
}

/// Refuses unknown names: a mistyped setting would silently have no effect.
fn refuse_unknown(mut names: impl Iterator<Item = String>) -> Result<(), SettingsError> {
    let known: Vec<String> = PARAMETERS.iter().map(|p| environment_name(p.name)).collect();
    match names.find(|name| name.starts_with(PREFIX) && !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(SettingsError(format!(
            "{name}: there is no such setting; unset it, or correct it to one of {}",
            known.join(", ")
        ))),
    }
}

/// A value that the environment can give as text.
trait Value: Sized {
    /// The value, or what was expected instead.
    fn parse(text: &str) -> Result<Self, String>;
    fn fallback() -> Self;
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn fallback() -> Self {
        Self::new()
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "expected true or false".to_owned())
    }
    fn fallback() -> Self {
        false
    }
}

macro_rules! integer_value {
    ($($kind:ty),*) => {$(
        impl Value for $kind {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("expected a number from {} to {}", Self::MIN, Self::MAX))
            }
            fn fallback() -> Self {
                0
            }
        }
    )*};
}

integer_value!(u16, u32);

/// Whether something is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is on.
    #[default]
    On,
    /// It is off.
    Off,
}

impl FromStr for Switch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err("expected on or off".to_owned()),
        }
    }
}

/// How operations with a peer that is given up end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LostPeer {
    /// They fail.
    #[default]
    Error,
    /// Sends succeed, and receives are truncated.
    Truncate,
    /// They never end.
    Silent,
}

impl FromStr for LostPeer {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "truncate" => Ok(Self::Truncate),
            "silent" => Ok(Self::Silent),
            _ => Err("expected error, truncate or silent".to_owned()),
        }
    }
}

/// A number of TCP streams, 1..=64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams(pub u32);

impl FromStr for Streams {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count @ 1..=64) => Ok(Self(count)),
            _ => Err("expected a count from 1 to 64".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Streams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u32::deserialize(deserializer)?;
        count.to_string().parse().map_err(de::Error::custom)
    }
}

/// Bytes that a peer may send before receives are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Credit {
    /// Enough bytes to fill the path.
    #[default]
    Auto,
    /// A fixed number of bytes.
    Bytes(u64),
}

impl FromStr for Credit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(|Size(bytes)| Self::Bytes(bytes)).map_err(|error| format!("{error}, or \"auto\""))
    }
}

impl<'de> Deserialize<'de> for Credit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Number(u64),
            Text(String),
        }
        match Given::deserialize(deserializer)? {
            Given::Number(bytes) => Ok(Self::Bytes(bytes)),
            Given::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

/// The carriers of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP connections.
    Tcp,
    /// Streams by UDP, but TCP within a host.
    Udp,
    /// Streams by UDP where the round trip is long and UDP gets through, else TCP.
    #[default]
    Auto,
    /// Streams of Ethernet frames, but TCP within a host.
    Ethernet,
    /// Streams by UDP, within a host too: for tests.
    UdpEverywhere,
}

impl Transport {
    /// The setting's value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Auto => "auto",
            Self::Ethernet => "ethernet",
            Self::UdpEverywhere => "udp-everywhere",
        }
    }

    /// Whether lanes go as packets. `local` says that the peer is on the same host.
    pub(crate) fn is_udp(self, local: bool) -> bool {
        match self {
            Self::Tcp => false,
            Self::Udp | Self::Auto | Self::Ethernet => !local,
            Self::UdpEverywhere => true,
        }
    }
}

impl FromStr for Transport {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "auto" => Ok(Self::Auto),
            "ethernet" | "eth" => Ok(Self::Ethernet),
            "udp-everywhere" => Ok(Self::UdpEverywhere),
            _ => Err("expected tcp, udp, ethernet or auto".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Transport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The routers of a subnet: a list of `HOST:PORT`, as one text or as an array. Names are resolved when it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routers(pub Vec<SocketAddr>);

impl FromStr for Routers {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let mut routers = Vec::new();
        for entry in entries {
            let entry: HostPort = entry.parse().map_err(|error: HostPortError| error.to_string())?;
            if entry.port == 0 {
                return Err(ResolveError::NoPort(entry).to_string());
            }
            // A name may resolve to several addresses.
            routers.extend(entry.resolve().map_err(|error| error.to_string())?);
        }
        Ok(Self(routers))
    }
}

impl<'de> Deserialize<'de> for Routers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected HOST:PORT, or a list of them")]
        enum Form {
            Text(String),
            List(Vec<String>),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Text(text) => text,
            Form::List(entries) => entries.join(","),
        };
        text.parse().map_err(de::Error::custom)
    }
}

macro_rules! text_value {
    ($($kind:ty, $fallback:expr;)*) => {$(
        impl Value for $kind {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error: <$kind as FromStr>::Err| error.to_string())
            }
            fn fallback() -> Self {
                $fallback
            }
        }
    )*};
}

text_value! {
    Streams, Self(1);
    Switch, Self::On;
    Admission, Self::Closed;
    Encrypt, Self::Far;
    Credit, Self::Auto;
    Transport, Self::Tcp;
    Routers, Self::default();
    PortRange, Self::default();
    PerHost<Composition>, Self::default();
    Protocols, Self::default();
    TcpCongestion, Self::default();
    RateLimits, Self::default();
    Priority, Self::Normal;
    Dscp, Self::default();
    Scitag, Self::default();
    Firefly, Self::default();
    TlsMode, Self::default();
    MessageTransfer, Self::default();
    Summary, Self::default();
    LostPeer, Self::default();
    KeyFiles, Self::default();
    Size, Self(0);
    Span, Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_parse() {
        let mut settings = Settings { streams: Streams(9), linger: Span(0), ..Settings::default() };
        let default = |name: &str| PARAMETERS.iter().find(|p| p.name == name).map(|p| p.default.to_owned());
        assert_eq!(settings.override_from(default), Ok(()));
        assert_eq!(settings, Settings::default());
        assert_eq!((settings.credit, settings.streams), (Credit::Auto, Streams(32)));
        assert_eq!(settings.peer_timeout, Span::from_ms(60_000));
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let settings = Settings::from_toml("[device]\nas_id = 3\nstreams = 8\ncredit = \"64MiB\"\n", "x")
            .expect("valid");
        assert_eq!(
            (settings.as_id, settings.streams, settings.credit),
            (3, Streams(8), Credit::Bytes(64 << 20))
        );
        let number = Settings::from_toml("[device]\ncredit = 65536\n", "x").expect("a number is bytes");
        assert_eq!(number.credit, Credit::Bytes(65_536));
        assert_eq!(settings.linger, Settings::default().linger);
    }

    #[test]
    fn routers_are_a_text_or_a_list() {
        let two =
            Routers(vec!["10.1.0.1:4100".parse().expect("valid"), "[fd00::1]:4100".parse().expect("valid")]);
        let read = |text: &str| Settings::from_toml(text, "x").map(|settings| settings.routers);
        assert_eq!(read("[device]\nrouters = [\"10.1.0.1:4100\", \"[fd00::1]:4100\"]\n"), Ok(two.clone()));
        assert_eq!(read("[device]\nrouters = \"10.1.0.1:4100, [fd00::1]:4100\"\n"), Ok(two));
        let error = read("[device]\nrouters = \"router-1\"\n").expect_err("no address").0;
        assert!(error.starts_with("x:2:") && error.contains("HOST:PORT"), "{error}");
        let named = read("[device]\nrouters = \"localhost:4100\"\n").expect("every host knows it");
        assert!(named.0[0].ip().is_loopback() && named.0[0].port() == 4100, "{named:?}");
        let error = read("[device]\nrouters = \"nowhere.invalid:1\"\n").expect_err("no such name").0;
        assert!(error.contains("cannot be resolved"), "{error}");
    }

    #[test]
    fn errors_name_file_line_value_and_remedy() {
        let text = |toml: &str| Settings::from_toml(toml, "site.toml").expect_err("invalid").0;
        let rate = text("[device]\n\ncredit = \"64Mbit/s\"\n");
        assert!(rate.starts_with("site.toml:3: credit = \"64Mbit/s\""), "{rate}");
        assert!(rate.contains("is a rate") && rate.contains("64MiB"), "{rate}");
        let unknown = text("[device]\nwindow = 3\n");
        assert!(
            unknown.starts_with("site.toml:2:") && unknown.contains("unknown field `window`"),
            "{unknown}"
        );
        assert!(unknown.contains("interface"), "the known keys are listed: {unknown}");
        assert!(text("[device]\nstreams = 0\n").contains("count from 1 to 64"));
    }

    #[test]
    fn the_environment_wins_and_is_checked() {
        let mut settings = Settings::default();
        let set = |value: &'static str| move |name: &str| (name == "linger").then(|| value.to_owned());
        assert_eq!(settings.override_from(set("250ms")), Ok(()));
        assert_eq!(settings.linger, Span::from_ms(250));
        let error = settings.override_from(set("soon")).expect_err("invalid");
        assert!(error.0.starts_with("FI_ISTHMUS_LINGER = \"soon\":") && error.0.contains("24ms"), "{error}");
        let error = settings.override_from(|name| (name == "port").then(|| "x".to_owned()));
        let text = "FI_ISTHMUS_PORT = \"x\": expected a number from 0 to 65535";
        assert_eq!(error, Err(SettingsError(text.to_owned())));
    }

    #[test]
    fn an_unknown_name_in_the_environment_is_refused_with_the_known_ones() {
        let look = |names: &[&str]| refuse_unknown(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(look(&["HOME", "FI_PROVIDER", "FI_ISTHMUS_CREDIT", "FI_ISTHMUS_AS_ID"]), Ok(()));
        let text = look(&["FI_ISTHMUS_CREDIT", "FI_ISTHMUS_WINDOW"]).expect_err("unknown").0;
        assert!(text.starts_with("FI_ISTHMUS_WINDOW: there is no such setting;"), "{text}");
        assert!(text.contains("FI_ISTHMUS_CREDIT, FI_ISTHMUS_CREDIT_TOTAL"), "{text}");
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_that_says_who_named_it() {
        let text = Settings::from_file(Path::new("/no/such.toml")).expect_err("absent").0;
        assert!(text.starts_with("/no/such.toml: ") && text.contains("ISTHMUS_CONFIG"), "{text}");
    }
}
