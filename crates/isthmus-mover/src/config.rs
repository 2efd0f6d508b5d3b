//! Configuration from TOML: of the service, and of the sites that a client knows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use isthmus_io::{Credit, Routers, Settings};
use isthmus_trust::{Files, Role, Trust};
use isthmus_units::{Choice, HostPort, ResolveError, Size};
use isthmus_wire::{Address, AsId, SubnetId};
use serde::Deserialize;

use crate::MoverError;
use crate::cache::Cache;
use crate::channel::PROTOCOLS;
use crate::disk::{Disk, Io};

/// Longest configuration file. Bytes.
const FILE_MAX: u64 = 1 << 20;
/// Default credit of one peer. Bytes. It is four times the product of 1 Gb/s and 366 ms, because a lost packet there
/// delays what follows for one or two round trips.
const CREDIT: u64 = 192 << 20;

/// A folder that a service offers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The folder.
    pub path: PathBuf,
    /// Whether clients may write there. Default false.
    #[serde(default)]
    pub writable: bool,
    /// The AS's that may use it. Default: all that are admitted.
    pub allow: Option<Vec<u32>>,
    /// Whether symbolic links that lead out of a transfer's folder are taken. Default false.
    #[serde(default)]
    pub any_symlink: bool,
}

/// A service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeConfig {
    /// Where it listens: HOST:PORT.
    pub listen: HostPort,
    /// Neither encrypted nor authenticated: for networks where everybody may use it. Default false.
    #[serde(default)]
    pub plain: bool,
    /// AS's whose clients are admitted.
    #[serde(default)]
    pub admits: Vec<u32>,
    /// Certificates; needed unless `plain`.
    pub tls: Option<Files>,
    /// Where the status is served by HTTP: HOST:PORT, a loopback address. Default: nowhere.
    pub status: Option<HostPort>,
    /// Whether `status` may be an address that others on the network reach. Default false.
    #[serde(default)]
    pub status_remote: bool,
    /// Folders, by name.
    #[serde(default, rename = "export")]
    pub exports: BTreeMap<String, Export>,
    /// Most sessions at once. Default 16.
    #[serde(default = "sessions")]
    pub sessions: usize,
    /// Most bytes of buffers of a session. Default 256 MiB.
    #[serde(default = "memory")]
    pub memory: Size,
    /// Disk threads of a session. Default 2.
    #[serde(default = "threads")]
    pub threads: usize,
    /// By what these read and write: "threads" or "uring". Default threads.
    #[serde(default)]
    pub io: Io,
    /// Whether blocks of long files go through the page cache: "measured", "always" or "never". Default measured.
    #[serde(default)]
    pub cache: Cache,
    /// The endpoint's own settings, as elsewhere.
    #[serde(default)]
    pub device: Settings,
}

fn sessions() -> usize {
    16
}

fn memory() -> Size {
    Size(256 << 20)
}

fn threads() -> usize {
    2
}

/// A site that a client knows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Where its service listens: HOST:PORT.
    pub address: HostPort,
    /// Id of its AS, which its certificate has to name. Default 0: any AS whose authority is
    /// known, and no router between.
    #[serde(default, rename = "as")]
    pub as_id: u32,
    /// Id of its subnet. Default 0.
    #[serde(default)]
    pub subnet: u32,
    /// Routers of this host's subnet, through which it is reached. Default: those of the
    /// endpoint's settings.
    #[serde(default)]
    pub routers: Names,
    /// Neither encrypted nor authenticated, as its service has it. Default false.
    #[serde(default)]
    pub plain: bool,
}

impl Site {
    /// The address of its endpoint, and what errors say of its host's other addresses. The name is looked up now. If
    /// it stands for several addresses, the first that answers is taken; through routers, the first of all.
    ///
    /// # Errors
    /// That name cannot be resolved.
    pub fn endpoint(&self) -> Result<(Address, String), ResolveError> {
        let (as_id, subnet) = (AsId(self.as_id), SubnetId(self.subnet));
        let choice = if matches!(self.routers, Names::None) {
            self.address.choose()?
        } else {
            Choice { address: self.address.first()?, silent: Vec::new() }
        };
        Ok((Address { as_id, subnet, incarnation: 0, ..Address::from(choice.address) }, choice.tried()))
    }

    /// The routers; their names are looked up now.
    ///
    /// # Errors
    /// What is no router's place, or cannot be resolved.
    pub fn routers(&self) -> Result<Routers, String> {
        match &self.routers {
            Names::None => Ok(Routers::default()),
            Names::One(text) => text.parse(),
            Names::List(texts) => texts.join(",").parse(),
        }
    }
}

/// Host names, which are resolved when they are needed. So a file with many sites still works if one name cannot be
/// resolved.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged, expecting = "expected HOST:PORT, or a list of them")]
pub enum Names {
    /// None at all.
    #[default]
    #[serde(skip)]
    None,
    /// One, or several separated by commas.
    One(String),
    /// Several.
    List(Vec<String>),
}

/// The client's configuration: the sites that it knows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SitesConfig {
    /// The client's certificates; needed for sites that are not `plain`.
    pub tls: Option<Files>,
    /// Sites, by name.
    #[serde(default, rename = "site")]
    pub sites: BTreeMap<String, Site>,
}

fn text(path: &Path) -> Result<String, MoverError> {
    let fault = |error: std::io::Error| {
        let text = format!("cannot read {}: {error}", path.display());
        if isthmus_trust::is_refused(&error) { MoverError::Local(text) } else { MoverError::Usage(text) }
    };
    if std::fs::metadata(path).map_err(fault)?.len() > FILE_MAX {
        return Err(MoverError::Usage(format!("{} is too long for a configuration", path.display())));
    }
    std::fs::read_to_string(path).map_err(fault)
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, MoverError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let message = error.message().replace(char::is_control, "\u{fffd}");
        MoverError::Usage(match line {
            Some(line) => format!("{name}:{line}: {message}"),
            None => format!("{name}: {message}"),
        })
    })
}

impl ServeConfig {
    /// How disk threads read and write.
    pub fn disk(&self) -> Disk {
        Disk { io: self.io, cache: self.cache }
    }

    /// Reads and checks the file at `path`. Paths in it are taken from its folder.
    pub fn read(path: &Path) -> Result<Self, MoverError> {
        let mut config = Self::parse(&path.display().to_string(), &text(path)?)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for export in config.exports.values_mut() {
            export.path = folder.join(&export.path);
        }
        if let Some(tls) = &mut config.tls {
            tls.relative_to(folder);
        }
        Ok(config)
    }

    /// Parses and checks `text`; `name` stands for the file in error messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, MoverError> {
        let config: Self = parse(name, text)?;
        let fault = |message: String| Err(MoverError::Usage(format!("{name}: {message}")));
        if config.exports.is_empty() {
            return fault("nothing is exported; add [export.NAME] with path = \"/FOLDER\"".to_owned());
        }
        if let Some(bad) = config.exports.keys().find(|key| key.is_empty() || key.contains('/')) {
            return fault(format!("{bad:?} is no name of an export; it is written before the first \"/\""));
        }
        if let Some((name, _)) = config.exports.iter().find(|(_, export)| export.path.as_os_str().is_empty())
        {
            return fault(format!(
                "[export.{name}]: path = \"\" names no folder; write which one, or \".\" for the one of this file"
            ));
        }
        if config.plain == config.tls.is_some() {
            return fault(
                "either plain = true, where everybody on the network may use it, or [tls] with certificates \
                 of `isthmus router keygen`"
                    .to_owned(),
            );
        }
        if config.sessions == 0 || !(1..=64).contains(&config.threads) || config.memory.0 < 64 << 20 {
            return fault(
                "expected sessions = 1 or more, threads = 1 to 64, memory = \"64MiB\" or more".to_owned(),
            );
        }
        if config.listen.host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
            return fault(format!(
                "listen = \"{}\" is no address that clients can name; use that of an interface",
                config.listen
            ));
        }
        Ok(config)
    }

    /// The endpoint's settings; the name in [`ServeConfig::listen`] is looked up now.
    ///
    /// # Errors
    /// That name cannot be resolved.
    pub fn settings(&self) -> Result<Settings, ResolveError> {
        let mut settings = self.device.clone();
        let listen = self.listen.first()?;
        settings.interface = listen.ip().to_string();
        settings.port = listen.port();
        Ok(for_copies(settings))
    }

    /// Rules about AS's that can never apply, or do not do what they seem to, each as a line for the log.
    ///
    /// # Errors
    /// A file with certificates cannot be read.
    pub fn idle_rules(&self) -> Result<Vec<String>, MoverError> {
        let mut lines = Vec::new();
        let admits_some = !self.admits.is_empty();
        if self.plain && admits_some {
            lines.push("admits has no effect: with plain = true, every client is admitted".to_owned());
        } else if !self.plain && !admits_some {
            lines.push("admits names no AS, so that no client is admitted".to_owned());
        }
        for (name, export) in &self.exports {
            let Some(allow) = &export.allow else { continue };
            if allow.is_empty() {
                lines.push(format!("[export.{name}]: allow names no AS, so that nobody may use it"));
            } else if self.plain {
                lines.push(format!(
                    "[export.{name}]: allow protects nothing: with plain = true, clients say without proof which AS \
                     they belong to"
                ));
            } else if admits_some {
                for other in allow.iter().filter(|other| !self.admits.contains(other)) {
                    lines.push(format!(
                        "[export.{name}]: allow names AS {other}, but admits does not, so that its clients are refused"
                    ));
                }
            }
        }
        if let Some(files) = &self.tls {
            lines.extend(files.idle_rules(&self.admits)?);
        }
        Ok(lines)
    }

    /// The certificates; none where it is plain.
    pub fn trust(&self) -> Result<Option<Trust>, MoverError> {
        let Some(files) = &self.tls else { return Ok(None) };
        Ok(Some(Trust::load_as(Role::Mover, files, files.as_id()?, &self.admits, PROTOCOLS)?))
    }
}

/// Adapts settings to copies: they need more credit than messages of programs.
pub fn for_copies(mut settings: Settings) -> Settings {
    if settings.credit == Settings::default().credit {
        settings.credit = Credit::Bytes(CREDIT);
    }
    settings
}

impl SitesConfig {
    /// Reads the file at `path`. Paths in it are taken from its folder.
    pub fn read(path: &Path) -> Result<Self, MoverError> {
        let mut config = Self::parse(&path.display().to_string(), &text(path)?)?;
        if let Some(tls) = &mut config.tls {
            tls.relative_to(path.parent().unwrap_or(Path::new("")));
        }
        Ok(config)
    }

    /// Parses `text`; `name` stands for the file in error messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, MoverError> {
        parse(name, text)
    }

    /// The certificates for a session with the AS `other`; 0: with any whose authority is known.
    pub fn trust(&self, other: u32) -> Result<Trust, MoverError> {
        let Some(files) = &self.tls else {
            return Err(MoverError::Usage(
                "there are no certificates; add [tls] to the file with the sites, or use --plain where the \
                 service has plain = true"
                    .to_owned(),
            ));
        };
        let admits = if other == 0 { files.known()? } else { vec![other] };
        Ok(Trust::load_as(Role::Mover, files, files.as_id()?, &admits, PROTOCOLS)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "listen = \"127.0.0.1:0\"\nplain = true\n[export.data]\npath = \"/data\"\n";

    #[test]
    fn a_few_lines_are_enough() {
        let config = ServeConfig::parse("serve.toml", MINIMAL).expect("accepted");
        assert_eq!((config.sessions, config.threads, config.memory), (16, 2, Size(256 << 20)));
        assert!(!config.exports["data"].writable);
    }

    #[test]
    fn faults_name_the_remedy() {
        let said = |text: &str| ServeConfig::parse("serve.toml", text).expect_err("refused").to_string();
        assert!(said("listen = \"127.0.0.1:0\"\nplain = true\n").contains("[export.NAME]"));
        assert!(said(&MINIMAL.replace("plain = true", "plain = false")).contains("isthmus router keygen"));
        assert!(said(&MINIMAL.replace("127.0.0.1", "0.0.0.0")).contains("use that of an interface"));
        assert!(said(&MINIMAL.replace("/data", "")).contains("[export.data]: path = \"\" names no folder"));
        let unknown = said(&MINIMAL.replace("plain", "plane"));
        assert!(unknown.starts_with("serve.toml:2: unknown field `plane`"), "{unknown}");
        let sites = SitesConfig::parse("sites.toml", "[site.b]\naddress = \"nowhere\"\n");
        let error = sites.expect_err("refused").to_string();
        assert!(error.starts_with("sites.toml:2:") && error.contains("HOST:PORT"), "{error}");
    }

    /// Certificates name a role. One of another role neither offers files nor asks for them.
    #[test]
    fn only_a_movers_certificate_moves_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |as_id, name: &str, role| {
            let about = isthmus_trust::Keygen { as_id, folder: folder.path(), name, days: 1 };
            about.make_as(Some(role)).expect("made")
        };
        make(2, "other", Role::Mover);
        for role in [Role::Mover, Role::Router, Role::Host] {
            make(1, &role.to_string(), role);
            let tls = format!(
                "[tls]\ncertificate = {0:?}\nkey = {1:?}\nauthorities = [{2:?}]\n",
                folder.path().join(format!("{role}.pem")),
                folder.path().join(format!("{role}.key")),
                folder.path().join("as2.pem")
            );
            let serve = MINIMAL.replace("plain = true", "admits = [2]") + &tls;
            let serve = ServeConfig::parse("serve.toml", &serve).expect("accepted");
            let sites = SitesConfig::parse("sites.toml", &tls).expect("accepted");
            for answer in [serve.trust().map(drop), sites.trust(2).map(drop)] {
                let said = answer.err().map_or_else(String::new, |error| error.to_string());
                assert_eq!(said.contains("that of no mover"), role != Role::Mover, "{role}: {said}");
            }
        }
    }

    #[test]
    fn rules_that_never_apply_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        for (as_id, name) in [(1, "router"), (2, "other"), (3, "third")] {
            let about = isthmus_trust::Keygen { as_id, folder: folder.path(), name, days: 1 };
            about.make_as(None).expect("made");
        }
        let said = |head: &str, allow: &str, authorities: &str| {
            let folder = folder.path().display();
            let tls = format!(
                "[tls]\ncertificate = \"{folder}/router.pem\"\nkey = \"{folder}/router.key\"\n\
                 authorities = [{authorities}]\n"
            );
            let tls = if head.contains("plain") {
                String::new()
            } else {
                tls.replace("= [\"", &format!("= [\"{folder}/"))
            };
            let tls = tls.replace(", \"", &format!(", \"{folder}/"));
            let text =
                format!("listen = \"127.0.0.1:0\"\n{head}\n[export.data]\npath = \"/data\"\n{allow}\n{tls}");
            ServeConfig::parse("serve.toml", &text).expect("accepted").idle_rules().expect("read").join("; ")
        };
        assert_eq!(said("admits = [2]", "allow = [2]", "\"as2.pem\""), "");
        assert_eq!(said("plain = true", "", ""), "");
        for (head, allow, authorities, part) in [
            (
                "admits = [2]",
                "allow = [2, 7]",
                "\"as2.pem\"",
                "[export.data]: allow names AS 7, but admits does not",
            ),
            ("admits = [2]", "allow = []", "\"as2.pem\"", "[export.data]: allow names no AS"),
            ("admits = []", "", "", "admits names no AS"),
            (
                "admits = [2, 1]",
                "",
                "\"as2.pem\"",
                "admits names AS 1, but none of the authorities is that AS's",
            ),
            (
                "admits = [2]",
                "",
                "\"as2.pem\", \"as3.pem\"",
                "the authority of AS 3, but admits does not name it",
            ),
            ("plain = true\nadmits = [2]", "", "", "admits has no effect"),
            ("plain = true", "allow = [2]", "", "[export.data]: allow protects nothing"),
        ] {
            let lines = said(head, allow, authorities);
            assert!(lines.contains(part) && !lines.contains("; "), "{head} {allow} {authorities}: {lines}");
        }
    }

    #[test]
    fn the_guides_configurations_are_accepted() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mover.md");
        let guide = std::fs::read_to_string(guide).expect("the guide is there");
        let texts: Vec<_> =
            guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(texts.len() >= 3, "{texts:?}");
        for text in texts {
            let read = if text.starts_with("listen") {
                ServeConfig::parse("docs/mover.md", text).map(drop)
            } else {
                SitesConfig::parse("docs/mover.md", text).map(drop)
            };
            assert!(read.is_ok(), "{read:?} of\n{text}");
        }
    }

    #[test]
    fn a_site_is_an_endpoint() {
        let text = "[site.b]\naddress = \"10.2.0.5:4200\"\nas = 2\nsubnet = 1\n";
        let sites = SitesConfig::parse("sites.toml", text).expect("accepted");
        let (there, _) = sites.sites["b"].endpoint().expect("an address");
        assert_eq!(there.to_string(), "isthmus://2.1/10.2.0.5:4200");
    }

    #[test]
    fn hosts_may_be_named_and_one_that_is_unknown_harms_no_other_site() {
        let text = "[site.b]\naddress = \"localhost:4200\"\nrouters = [\"localhost:1\"]\n\
                    [site.c]\naddress = \"nowhere.invalid:1\"\nrouters = \"nowhere.invalid:1\"\n";
        let sites = SitesConfig::parse("sites.toml", text).expect("accepted");
        let here = &sites.sites["b"];
        assert!(here.endpoint().expect("known").0.locator.ip().is_loopback());
        assert_eq!(here.routers().expect("known").0[0].port(), 1);
        let there = &sites.sites["c"];
        let errors =
            [there.endpoint().expect_err("unknown").to_string(), there.routers().expect_err("unknown")];
        assert!(errors.iter().all(|error| error.contains("cannot be resolved")), "{errors:?}");
        let serve = ServeConfig::parse("serve.toml", &MINIMAL.replace("127.0.0.1:0", "localhost:0"));
        assert!(serve.expect("accepted").settings().expect("known").interface.parse::<IpAddr>().is_ok());
    }
}
