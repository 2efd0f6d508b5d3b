//! Parses the arguments of `isthmus cp`: a path, SITE:EXPORT/PATH, HOST:PORT:EXPORT/PATH, or for ssh USER@HOST:PATH or
//! ssh://[USER@]HOST[:PORT]/PATH.

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use isthmus_io::{Routers, Settings};
use isthmus_mover::{MoverError, SitesConfig};
use isthmus_units::HostPort;
use isthmus_wire::{Address, AsId, SubnetId};

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
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
pub(crate) fn parse(text: &OsStr) -> Location {
    let bytes = text.as_bytes();
    if let Some(rest) = bytes.strip_prefix(SSH.as_bytes()) {
        // As with scp and curl, the path begins behind the slash: relative to home, or with a second slash absolute.
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let path = rest.get(end + 1..).unwrap_or_default().to_vec();
        let site = format!("{SSH}{}", String::from_utf8_lossy(&rest[..end]));
        return Location::Remote(Remote { site, export: String::new(), path });
    }
    let site = |at: usize| std::str::from_utf8(&bytes[..at]).ok();
    let colons = (0..bytes.len()).filter(|at| bytes[*at] == b':');
    let direct = colons.clone().find(|at| site(*at).is_some_and(|site| site.parse::<HostPort>().is_ok()));
    let first = colons.clone().next().filter(|at| !bytes[..*at].contains(&b'/'));
    // A name of a file may begin with a colon, but one such as ::1:4290:data is meant as an address.
    let first = first.filter(|at| *at > 0 || is_bare_ipv6(bytes));
    // Names of sites are UTF-8.
    let named = direct.or(first).and_then(|at| Some((site(at)?, &bytes[at + 1..])));
    let Some((site, rest)) = named else { return Location::Local(text.into()) };
    if site.contains('@') {
        return Location::Remote(Remote {
            site: site.to_owned(),
            export: String::new(),
            path: rest.to_vec(),
        });
    }
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let export = String::from_utf8_lossy(&rest[..end]).into_owned();
    let path = rest.get(end + 1..).unwrap_or_default().to_vec();
    Location::Remote(Remote { site: site.to_owned(), export, path })
}

/// Whether a text begins with an IPv6 address without brackets, a port and a colon.
fn is_bare_ipv6(text: &[u8]) -> bool {
    let head = text.split(|byte| *byte == b'/').next().and_then(|head| std::str::from_utf8(head).ok());
    let at = head.and_then(|head| head.rsplit_once(':')?.0.rsplit_once(':'));
    at.is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok())
}

/// A service, as [`locate`] finds it.
pub(crate) struct Located {
    pub(crate) service: Address,
    /// Neither encrypted nor authenticated.
    pub(crate) plain: bool,
    /// The routers that lead to it.
    pub(crate) routers: Routers,
    /// What errors say of the host's other addresses.
    pub(crate) tried: String,
}

/// Finds a service. A name with several addresses stands for the first that answers.
pub(crate) fn locate(
    Remote { site, export, .. }: &Remote,
    sites: &SitesConfig,
    settings: &Settings,
) -> Result<Located, MoverError> {
    if let Some(known) = sites.sites.get(&site[..]) {
        let place = format!("[site.{site}]: ");
        let (service, tried) =
            known.endpoint().map_err(|error| MoverError::from(error).within(&place, ""))?;
        let routers = known.routers().map_err(|error| MoverError::Usage(format!("{place}{error}")))?;
        return Ok(Located { service, plain: known.plain, routers, tried });
    }
    if let Ok(at) = site.parse::<HostPort>() {
        let at = at.choose()?;
        let (as_id, subnet) = (AsId(settings.as_id), SubnetId(settings.subnet));
        let service = Address { as_id, subnet, incarnation: 0, ..Address::from(at.address) };
        return Ok(Located { service, plain: false, routers: Routers::default(), tried: at.tried() });
    }
    // HOST:PORT:EXPORT whose port is none: the first colon ended the site.
    if let Some((port, _)) = export.split_once(':')
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && let Err(error) = format!("{site}:{port}").parse::<HostPort>()
    {
        return Err(MoverError::Usage(error.to_string()));
    }
    // An IPv6 address without brackets, or one with a zone: its first colon ended the site.
    if (site.starts_with('[') || export.starts_with(':'))
        && let whole = format!("{site}:{export}")
        && let Some((at, _)) = whole.rsplit_once(':')
        && let Err(error) = at.parse::<HostPort>()
    {
        return Err(MoverError::Usage(error.to_string()));
    }
    let names: Vec<&str> = sites.sites.keys().map(String::as_str).collect();
    Err(MoverError::Usage(if names.is_empty() {
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
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(place: &Remote) -> String {
        match locate(place, &SitesConfig::default(), &Settings::default()) {
            Err(MoverError::Usage(text)) => text,
            Err(error) => panic!("{place:?}: {error:?}"),
            Ok(_) => panic!("{place:?} was found"),
        }
    }

    #[test]
    fn an_ipv6_address_in_another_form_is_named() {
        for (text, part) in [
            ("[fe80::1%lo]:4290:data/", "\"[fe80::1%lo]:4290\" has an IPv6 address with a zone"),
            ("::1:4290:data/", "\"::1:4290\" has an IPv6 address without brackets"),
            ("fd00::1:4290:data/x", "\"fd00::1:4290\" has an IPv6 address without brackets"),
        ] {
            let Location::Remote(place) = parse(OsStr::new(text)) else { panic!("{text}: remote") };
            let error = fault(&place);
            assert!(error.contains(part) && error.contains("HOST:PORT"), "{text}: {error}");
        }
        assert_eq!(parse(OsStr::new("::x")), Location::Local("::x".into()));
    }

    #[test]
    fn a_port_that_is_none_is_said_to_be_none() {
        let Location::Remote(place) = parse(OsStr::new("host:99999:data/")) else { panic!("remote") };
        let error = fault(&place);
        assert!(error.contains("\"host:99999\" has no port from 0 to 65535"), "{error}");
        let Location::Remote(place) = parse(OsStr::new("host:9:data/")) else { panic!("remote") };
        assert_eq!(place.site, "host:9");
    }

    #[test]
    fn places_read_as_people_write_them() {
        let remote = |site: &str, export: &str, path: &str| {
            Location::Remote(Remote { site: site.to_owned(), export: export.to_owned(), path: path.into() })
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
            let Location::Remote(place) = parse(text) else { panic!("{text}") };
            assert!(place.is_by_ssh(), "{text}");
        }
        for local in ["x", "/x:y", "./b:data", "a/b:c", ":x", "./me@b:x"] {
            assert_eq!(parse(local), Location::Local(local.into()), "{local}");
        }
        let odd = OsStr::from_bytes(b"b:data/\xff");
        let path = b"\xff".to_vec();
        let there = Remote { site: "b".to_owned(), export: "data".to_owned(), path };
        assert_eq!(super::parse(odd), Location::Remote(there));
        let odd = OsStr::from_bytes(b"\xff:x");
        assert_eq!(super::parse(odd), Location::Local(odd.into()));
    }
}
