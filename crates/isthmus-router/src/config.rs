//! The router's configuration, from TOML.
//!
//! ```toml
//! name = "r1"                        # which router of the map this is
//! map = "map.toml"                   # beside this file, or an absolute path
//! admits = [2]                       # AS's whose routers may link with this one
//! status = "127.0.0.1:9410"
//!
//! [subnet.campus]
//! plain = true
//! targets = ["10.1.0.0/16:5000-5100"]  # where its endpoints are; nothing else is connected to
//!
//! [tls]
//! certificate = "router.pem"
//! key = "router.key"
//! authorities = ["as2.pem"]
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use isthmus_metrics::check_address;
use isthmus_routes::Metric;
use isthmus_trust::{Files, TrustError};
use isthmus_units::{HostPort, Rate, Size};
use serde::{Deserialize, Deserializer, de};

use crate::targets::Targets;

/// What is wrong with a configuration, with the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not a valid configuration.
    #[error("{place}: {message}")]
    Text {
        /// File and line.
        place: String,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// The parts contradict each other.
    #[error("{place}: {message}")]
    Meaning {
        /// The file.
        place: String,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// The route map or the file of measurements has faults.
    #[error("{0}")]
    Map(String),
}

impl ConfigError {
    /// Whether the system refused to read a file, as it does without free descriptors. The configuration may be right.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Read { source, .. } if isthmus_trust::is_refused(source))
    }
}

impl From<TrustError> for ConfigError {
    fn from(TrustError { place, message, is_refused }: TrustError) -> Self {
        match is_refused {
            true => Self::Read { path: place.into(), source: std::io::Error::other(message) },
            false => Self::Meaning { place, message },
        }
    }
}

/// The configuration of one router. The module shows an example.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which router of the map this is.
    pub name: String,
    /// The route map of the AS.
    pub map: PathBuf,
    /// The metric by which routes are compared. Default "bandwidth".
    #[serde(default, deserialize_with = "metric")]
    pub metric: Metric,
    /// A file with measurements of the map's links. Default: none.
    pub measured: Option<PathBuf>,
    /// AS's whose routers may link with this one. Default: none.
    #[serde(default)]
    pub admits: Vec<u32>,
    /// For a neighbouring AS, the other AS's for which it may speak. Default: none.
    #[serde(default)]
    pub carries: BTreeMap<String, Vec<u32>>,
    /// Where the status is served by HTTP: HOST:PORT, a loopback address. Default: nowhere.
    #[serde(default, deserialize_with = "place")]
    pub status: Option<SocketAddr>,
    /// Whether `status` may be an address that others on the network reach. Default false.
    #[serde(default)]
    pub status_remote: bool,
    /// Settings of each subnet.
    #[serde(default, rename = "subnet")]
    pub subnets: BTreeMap<String, SubnetConfig>,
    /// This router's certificate, and the authorities that it trusts. Needed on WAN subnets.
    pub tls: Option<Files>,
    /// Limits on lanes, links and memory.
    #[serde(default)]
    pub limits: Limits,
}

/// The settings of one subnet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetConfig {
    /// Where lanes are accepted: HOST:PORT. Default: the router's endpoint in the map.
    #[serde(default, deserialize_with = "place")]
    pub listen: Option<SocketAddr>,
    /// Whether lanes without encryption are accepted and made. Never on WAN subnets. Default false.
    #[serde(default)]
    pub plain: bool,
    /// Local fabrics for lanes, if the other end has them too: libfabric providers, the best first, such as
    /// "shm,verbs". Default "": TCP.
    #[serde(default)]
    pub fabric: String,
    /// Transport of the links of a WAN subnet: "tcp", "udp" or "auto". With "auto" both are kept, and each lane takes
    /// the one that is better for the measured path. Default "auto".
    #[serde(default)]
    pub transport: Transports,
    /// Limit on the rate that this router's links of a WAN subnet send together. A change applies to links made after
    /// it. Default: no limit.
    pub rate_limit: Option<Rate>,
    /// The addresses of endpoints of this subnet, such as "10.1.0.0/16", or with ports "10.1.0.0/16:5000-5100". The
    /// router connects to nothing else there. Needed if `plain` is true.
    #[serde(default)]
    pub targets: Vec<Targets>,
}

/// The transports of links of a WAN subnet.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Transports {
    /// Both, see [`SubnetConfig::transport`].
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// UDP only.
    Udp,
}

/// Limits on a router's resources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Lanes at once. Default 4096.
    pub lanes: usize,
    /// Lanes that one host of this AS, or one neighbour AS, may have at once. Routers of this AS have no limit of their
    /// own. Default: three quarters of `lanes`.
    pub lanes_per_source: Option<usize>,
    /// Limit on the bytes that all links buffer for their lanes. Default 4 GiB; little of it is used unless
    /// receivers stall.
    pub memory: Size,
    /// Number of TCP links to each gateway of a neighbour, 1..=64. Default 4. There is always one UDP link.
    pub links: usize,
}

impl Limits {
    /// Lanes that one source may have.
    pub(crate) fn lanes_of_one(&self) -> usize {
        self.lanes_per_source.unwrap_or(self.lanes - self.lanes / 4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { lanes: 4096, lanes_per_source: None, memory: Size(4 << 30), links: 4 }
    }
}

/// Reads HOST:PORT. A host name is resolved when the file is read.
fn place<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    HostPort::deserialize(from)?.first().map(Some).map_err(de::Error::custom)
}

fn metric<'de, D: Deserializer<'de>>(from: D) -> Result<Metric, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

impl Config {
    /// Reads and checks the file at `path`. Relative paths in it start at its folder.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let mut config = Self::parse(&path.display().to_string(), &text)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.map = folder.join(&config.map);
        config.measured = config.measured.map(|file| folder.join(file));
        if let Some(tls) = &mut config.tls {
            tls.relative_to(folder);
        }
        Ok(config)
    }

    /// Parses and checks `text`; `name` stands for the file in error messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|e| text_error(name, text, &e))?;
        let fault = |message: String| Err(ConfigError::Meaning { place: name.to_owned(), message });
        if let Some(Err(message)) = config.status.map(|at| check_address(at, config.status_remote)) {
            return fault(message);
        }
        if config.limits.lanes == 0 || config.limits.lanes_per_source == Some(0) {
            return fault(
                "limits.lanes = 0, or lanes_per_source = 0, lets nothing through; expected 1 or more"
                    .to_owned(),
            );
        }
        if !(1..=64).contains(&config.limits.links) {
            return fault(format!(
                "limits.links = {} is out of range; expected 1 to 64",
                config.limits.links
            ));
        }
        if let Some(bad) = config.carries.keys().find(|key| key.parse::<u32>().is_err()) {
            return fault(format!("carries: {bad:?} is no AS id; write it as \"2\" = [5]"));
        }
        Ok(config)
    }

    /// Rules that can never apply, each as a line for the log. `links` says whether the router stands on a way out.
    pub(crate) fn idle_rules(&self, links: bool) -> Result<Vec<String>, ConfigError> {
        let mut lines = Vec::new();
        if !links && !self.admits.is_empty() {
            lines.push("admits has no effect: this router stands on no way out".to_owned());
        }
        for neighbour in self.carries.keys() {
            if !self.admits.iter().any(|id| id.to_string() == *neighbour) {
                lines.push(format!(
                    "carries has no effect for AS {neighbour}: admits does not name it, so that its routers get no link"
                ));
            }
        }
        let idle = self.subnets.iter().filter(|(_, subnet)| !subnet.plain && !subnet.targets.is_empty());
        lines.extend(
            idle.map(|(name, _)| format!("[subnet.{name}]: targets has no effect without plain = true")),
        );
        if let Some(tls) = self.tls.as_ref().filter(|_| links) {
            lines.extend(tls.idle_rules(&self.admits)?);
        }
        Ok(lines)
    }

    /// Whether a router of the AS `neighbour` may speak for the AS `other`.
    pub fn lets_speak(&self, neighbour: u32, other: u32) -> bool {
        let carried = || self.carries.get(&neighbour.to_string()).is_some_and(|list| list.contains(&other));
        self.admits.contains(&neighbour) && (neighbour == other || carried())
    }
}

/// The text of the file at `path`.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn text_error(name: &str, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message().trim().replace('\n', "; ");
    // The message quotes the text, which may contain terminal control characters.
    let message = message.replace(char::is_control, "\u{fffd}");
    let place = match error.span() {
        None => name.to_owned(),
        Some(span) => {
            let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
            format!("{name}:{line}")
        }
    };
    ConfigError::Text { place, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "name = \"r1\"\nmap = \"map.toml\"\n";

    fn said(extra: &str) -> String {
        Config::parse("router.toml", &format!("{MINIMAL}{extra}")).expect_err("refused").to_string()
    }

    #[test]
    fn two_keys_are_enough() {
        let config = Config::parse("router.toml", MINIMAL).expect("accepted");
        assert_eq!(config.metric, Metric::Bandwidth);
        assert_eq!((config.limits.lanes, config.limits.links), (4096, 4));
        assert!(!config.lets_speak(2, 2));
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        let unknown = said("admit = [2]\n");
        assert!(unknown.starts_with("router.toml:3: unknown field `admit`, expected"), "{unknown}");
        let metric = said("metric = \"speed\"\n");
        assert!(metric.starts_with("router.toml:3: there is no metric \"speed\"; use"), "{metric}");
        assert!(!said("\"a\\u001b[2Jb\" = 1").contains(char::is_control), "a key that clears the screen");
        let prefix = said("[subnet.a]\ntargets = [\"10.0.0.0/33\"]\n");
        assert!(prefix.starts_with("router.toml:4: \"10.0.0.0/33\" is no range"), "{prefix}");
        let rate = said("[subnet.a]\nrate_limit = \"2GiB\"\n");
        assert!(rate.starts_with("router.toml:4:") && rate.contains("1Gbit"), "{rate}");
        assert!(said("status = \"0.0.0.0:1\"").contains("use 127.0.0.1"));
        let remote = format!("{MINIMAL}status = \"0.0.0.0:1\"\nstatus_remote = true\n");
        assert!(Config::parse("router.toml", &remote).is_ok(), "it says so");
        let unknown = said("[subnet.a]\nlisten = \"nowhere.invalid:1\"\n");
        assert!(unknown.starts_with("router.toml:4:") && unknown.contains("cannot be resolved"), "{unknown}");
        assert!(said("[subnet.a]\nlisten = \"10.0.0.1\"\n").contains("has no port"));
        assert!(said("[limits]\nlinks = 65").contains("expected 1 to 64"));
        assert!(said("[carries]\nx = [1]").contains("no AS id"));
    }

    #[test]
    fn rules_that_never_apply_are_named() {
        let said = |extra: &str, links| {
            let config = Config::parse("router.toml", &format!("{MINIMAL}{extra}")).expect("accepted");
            config.idle_rules(links).expect("nothing to read").join("; ")
        };
        assert_eq!(said("admits = [2]\n[carries]\n2 = [5]\n", true), "");
        for (extra, links, part) in [
            ("admits = [2]\n[carries]\n4 = [5]\n", true, "carries has no effect for AS 4"),
            ("admits = [2]\n", false, "admits has no effect"),
            ("[subnet.a]\ntargets = [\"10.0.0.0/8\"]\n", true, "[subnet.a]: targets has no effect"),
        ] {
            let lines = said(extra, links);
            assert!(lines.contains(part) && !lines.contains("; "), "{extra}: {lines}");
        }
    }

    #[test]
    fn an_as_speaks_for_itself_and_for_those_it_carries() {
        let text = format!("{MINIMAL}admits = [2, 3]\n[carries]\n2 = [5]\n4 = [5]\n");
        let config = Config::parse("router.toml", &text).expect("accepted");
        assert!(config.lets_speak(2, 2) && config.lets_speak(2, 5));
        assert!(!config.lets_speak(3, 5) && !config.lets_speak(2, 3));
        assert!(!config.lets_speak(4, 4) && !config.lets_speak(4, 5), "4 is not admitted");
    }
}
