//! Parses the arguments of `isthmus cp`: a path, SITE:EXPORT/PATH, HOST:PORT:EXPORT/PATH, or for ssh USER@HOST:PATH or
//! ssh://[USER@]HOST[:PORT]/PATH.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use isthmus_io::{Routers, Settings};
use isthmus_mover::SitesConfig;
use isthmus_units::HostPort;
use isthmus_wire::{Address, AsId, SubnetId};

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path on this host.
    Local(PathBuf),
    /// A path at a service.
    Remote(Remote),
}

/// A path below an export of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Name of a site, HOST:PORT, or the login of ssh.
    pub(crate) site: String,
    pub(crate) export: String,
    /// The path below the export, as written.
    pub(crate) path: Vec<u8>,
}

impl Remote {
    /// Whether ssh leads there. No site's name contains an "@".
    pub(crate) fn is_by_ssh(&self) -> bool {
        self.site.contains('@') || self.site.starts_with(SSH)
    }
}

const SSH: &str = "ssh://";

/// Parses a place. As with scp, a colon before the first slash makes it remote.
pub(crate) fn parse(text: &OsStr) -> Place {
    let bytes = text.as_bytes();
    if let Some(rest) = bytes.strip_prefix(SSH.as_bytes()) {
        // As with scp and curl, the path begins behind the slash: relative to home, or with a second slash absolute.
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let path = rest.get(end + 1..).unwrap_or_default().to_vec();
        let site = format!("{SSH}{}", String::from_utf8_lossy(&rest[..end]));
        return Place::Remote(Remote { site, export: String::new(), path });
    }
    let site = |at: usize| std::str::from_utf8(&bytes[..at]).ok();
    let colons = (0..bytes.len()).filter(|at| bytes[*at] == b':');
    let direct = colons.clone().find(|at| site(*at).is_some_and(|site| site.parse::<HostPort>().is_ok()));
    let first = colons.clone().next().filter(|at| !bytes[..*at].contains(&b'/') && *at > 0);
    // Names of sites are UTF-8.
    let named = direct.or(first).and_then(|at| Some((site(at)?, &bytes[at + 1..])));
    let Some((site, rest)) = named else { return Place::Local(text.into()) };
    if site.contains('@') {
        return Place::Remote(Remote { site: site.to_owned(), export: String::new(), path: rest.to_vec() });
    }
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let export = String::from_utf8_lossy(&rest[..end]).into_owned();
    let path = rest.get(end + 1..).unwrap_or_default().to_vec();
    Place::Remote(Remote { site: site.to_owned(), export, path })
}

/// Address of a service, whether it is plain, and the routers that lead to it.
pub(crate) fn locate(
    Remote { site, export, .. }: &Remote,
    sites: &SitesConfig,
    settings: &Settings,
) -> Result<(Address, bool, Routers), String> {
    if let Some(known) = sites.sites.get(&site[..]) {
        let fault = |error: &dyn std::fmt::Display| format!("[site.{site}]: {error}");
        let address = known.endpoint().map_err(|error| fault(&error))?;
        let routers = known.routers().map_err(|error| fault(&error))?;
        return Ok((address, known.plain, routers));
    }
    if let Ok(at) = site.parse::<HostPort>() {
        let at = at.first().map_err(|error| error.to_string())?;
        let (as_id, subnet) = (AsId(settings.as_id), SubnetId(settings.subnet));
        let address = Address { as_id, subnet, incarnation: 0, ..Address::from(at) };
        return Ok((address, false, Routers::default()));
    }
    // HOST:PORT:EXPORT whose port is none: the first colon ended the site.
    if let Some((port, _)) = export.split_once(':')
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && let Err(error) = format!("{site}:{port}").parse::<HostPort>()
    {
        return Err(error.to_string());
    }
    let names: Vec<&str> = sites.sites.keys().map(String::as_str).collect();
    Err(if names.is_empty() {
        format!(
            "no site is known, so not {site:?}; write USER@{site}:PATH to copy by ssh, HOST:PORT:EXPORT/PATH, or a \
             file with [site.{site}] (--sites)"
        )
    } else {
        format!(
            "there is no site {site:?}; known are {}; or write USER@{site}:PATH to copy by ssh, HOST:PORT:EXPORT/PATH, and a file of this host whose \
             name has a colon as ./{site}:...",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_none_is_said_to_be_none() {
        let Place::Remote(place) = parse(OsStr::new("host:99999:data/")) else { panic!("remote") };
        let error = locate(&place, &SitesConfig::default(), &Settings::default()).expect_err("no port");
        assert!(error.contains("\"host:99999\" has no port from 0 to 65535"), "{error}");
        let Place::Remote(place) = parse(OsStr::new("host:9:data/")) else { panic!("remote") };
        assert_eq!(place.site, "host:9");
    }

    #[test]
    fn places_read_as_people_write_them() {
        let remote = |site: &str, export: &str, path: &str| {
            Place::Remote(Remote { site: site.to_owned(), export: export.to_owned(), path: path.into() })
        };
        let parse = |text: &str| parse(OsStr::new(text));
        assert_eq!(parse("b:data/run/x"), remote("b", "data", "run/x"));
        assert_eq!(parse("b:data"), remote("b", "data", ""));
        assert_eq!(parse("10.0.0.1:4200:data/x:y"), remote("10.0.0.1:4200", "data", "x:y"));
        assert_eq!(parse("[fd00::1]:4200:data/"), remote("[fd00::1]:4200", "data", ""));
        assert_eq!(parse("host.site.org:4200:data/x"), remote("host.site.org:4200", "data", "x"));
        assert_eq!(parse("b:4200"), remote("b", "4200", ""), "an export of that name");
        for (text, site, path) in [
            ("me@b:data/x", "me@b", "data/x"),
            ("me@b:/data/x:y", "me@b", "/data/x:y"),
            ("me@b:", "me@b", ""),
            ("ssh://me@b:2222/data/x", "ssh://me@b:2222", "data/x"),
            ("ssh://b//data/", "ssh://b", "/data/"),
        ] {
            assert_eq!(parse(text), remote(site, "", path), "{text}");
            let Place::Remote(place) = parse(text) else { panic!("{text}") };
            assert!(place.is_by_ssh(), "{text}");
        }
        for local in ["x", "/x:y", "./b:data", "a/b:c", ":x", "./me@b:x"] {
            assert_eq!(parse(local), Place::Local(local.into()), "{local}");
        }
        let odd = OsStr::from_bytes(b"b:data/\xff");
        let path = b"\xff".to_vec();
        let there = Remote { site: "b".to_owned(), export: "data".to_owned(), path };
        assert_eq!(super::parse(odd), Place::Remote(there));
        let odd = OsStr::from_bytes(b"\xff:x");
        assert_eq!(super::parse(odd), Place::Local(odd.into()));
    }
}
