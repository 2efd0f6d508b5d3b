//! The settings of a router until the next reload: configuration, map and certificates.

use std::net::SocketAddr;
use std::path::Path;

use isthmus_routes::{Measured, RouteMap, Router as MapRouter, Table};
use isthmus_units::Rate;
use isthmus_wire::{AsId, SubnetId};

use crate::config::{self, Config, ConfigError, Transports};
use crate::targets::Targets;
use crate::tls::Tls;
use crate::wire::Transport;

/// The carrier of lanes on a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Carrier {
    /// One TCP connection per lane.
    Plain,
    /// Links: a few TLS connections that many lanes share.
    Links,
    /// No lanes: the configuration does not allow plain lanes there.
    Closed,
}

/// The router's interface on a subnet.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) subnet: SubnetId,
    pub(crate) name: String,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) carrier: Carrier,
    /// The transports of its links.
    pub(crate) transports: &'static [Transport],
    /// Limit on the rate of all its links together.
    pub(crate) rate_limit: Option<Rate>,
    /// The local fabrics of plain lanes.
    pub(crate) fabric: String,
    targets: Vec<Targets>,
}

impl Interface {
    /// Whether an endpoint of this subnet can be at `locator`. The address comes from the far end of a lane, which must
    /// not reach this host's own services.
    pub(crate) fn may_hold(&self, locator: SocketAddr) -> bool {
        let ip = locator.ip();
        let on_loopback = self.listen.is_some_and(|listen| listen.ip().is_loopback());
        let sane = !ip.is_unspecified() && !ip.is_multicast() && (on_loopback || !ip.is_loopback());
        sane && self.targets.iter().any(|target| target.contains(locator))
    }
}

/// All settings; see the module.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) table: Table,
    /// This router's entry in the map.
    pub(crate) router: MapRouter,
    pub(crate) places: Vec<Interface>,
    pub(crate) tls: Option<Tls>,
    /// The measurements of others, and all measurements that the table was computed from.
    pub(crate) known: Measured,
    pub(crate) measured: Measured,
}

impl Settings {
    /// Reads the configuration at `path` and all files that it names, and checks them together.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Config::read(path)?;
        let fault = |message: String| ConfigError::Meaning { place: path.display().to_string(), message };
        let text = config::read(&config.map)?;
        let map = RouteMap::parse(&text, &config.map.display().to_string())
            .map_err(|faults| ConfigError::Map(faults.to_string()))?;
        let named = map.routers().iter().find(|router| router.name == config.name);
        let router = named.cloned().ok_or_else(|| {
            let names: Vec<_> = map.routers().iter().map(|router| router.name.as_str()).collect();
            let (name, map) = (&config.name, config.map.display());
            fault(format!("name = {name:?} is no router of {map}; use {}", names.join(", ")))
        })?;
        let places = places(&config, &map, &router).map_err(fault)?;
        let links = places.iter().any(|place| place.carrier == Carrier::Links);
        let tls = match &config.tls {
            Some(tls) => Some(Tls::load(tls, map.as_id(), &config.admits)?),
            None if links => {
                let message = "the router stands on a way out, but there is no [tls]; \
                               make certificates with `isthmus router keygen`";
                return Err(fault(message.to_owned()));
            }
            None => None,
        };
        for line in config.idle_rules(links)? {
            tracing::warn!("{}: {line}", path.display());
        }
        if let (Some(files), Some(tls)) = (&config.tls, &tls) {
            for line in tls.trust.expiring(&files.certificate) {
                tracing::warn!("{line}");
            }
        }
        let known = match &config.measured {
            Some(path) => Measured::parse(&config::read(path)?, &path.display().to_string(), &map)
                .map_err(|faults| ConfigError::Map(faults.to_string()))?,
            None => Measured::default(),
        };
        let table = Table::compute(&map, config.metric, Some(&known));
        Ok(Self { config, table, router, places, tls, measured: known.clone(), known })
    }

    pub(crate) fn as_id(&self) -> AsId {
        self.table.map().as_id()
    }

    pub(crate) fn place(&self, subnet: SubnetId) -> Option<&Interface> {
        self.places.iter().find(|place| place.subnet == subnet)
    }
}

fn places(config: &Config, map: &RouteMap, router: &MapRouter) -> Result<Vec<Interface>, String> {
    let joined: Vec<_> = router.joins.iter().filter_map(|joint| map.subnet(joint.subnet)).collect();
    let unknown = |name: &&String| !joined.iter().any(|subnet| subnet.name == **name);
    if let Some(name) = config.subnets.keys().find(unknown) {
        let names: Vec<_> = joined.iter().map(|subnet| subnet.name.as_str()).collect();
        return Err(format!(
            "[subnet.{name}]: {} does not join it; it joins {}",
            router.name,
            names.join(", ")
        ));
    }
    let mut places = Vec::new();
    for subnet in joined {
        let own = config.subnets.get(&subnet.name).cloned().unwrap_or_default();
        let name = subnet.name.clone();
        let carrier = match (subnet.role.leads_out(), own.plain) {
            (true, true) => {
                return Err(format!(
                    "[subnet.{name}]: plain = true on a way out; remove it, links are encrypted"
                ));
            }
            (true, false) => Carrier::Links,
            (false, true) => Carrier::Plain,
            (false, false) => Carrier::Closed,
        };
        if carrier != Carrier::Plain && !own.fabric.is_empty() {
            return Err(format!(
                "[subnet.{name}]: fabric is for plain lanes; add plain = true, or remove it"
            ));
        }
        if carrier != Carrier::Links && own.transport != Transports::default() {
            return Err(format!("[subnet.{name}]: transport is for links on ways out; remove it"));
        }
        if carrier != Carrier::Links && own.rate_limit.is_some() {
            return Err(format!("[subnet.{name}]: rate_limit is for links on ways out; remove it"));
        }
        if carrier == Carrier::Plain && own.targets.is_empty() {
            return Err(format!(
                "[subnet.{name}]: targets is missing, so that anybody could reach any host and port through this \
                 router; name the ranges where endpoints of {name} are, such as targets = [\"10.1.0.0/16\"], or \
                 with ports [\"10.1.0.0/16:5000-5100\"]"
            ));
        }
        let listen = own.listen.or(router.endpoint(subnet.id));
        if carrier == Carrier::Plain && listen.is_none() {
            return Err(format!(
                "[subnet.{name}]: listen is missing, and the map tells no endpoint; add one"
            ));
        }
        places.push(Interface {
            subnet: subnet.id,
            name,
            listen,
            carrier,
            transports: match own.transport {
                Transports::Auto => &[Transport::Tcp, Transport::Udp],
                Transports::Tcp => &[Transport::Tcp],
                Transports::Udp => &[Transport::Udp],
            },
            rate_limit: own.rate_limit,
            fabric: own.fabric,
            targets: own.targets,
        });
    }
    if places.iter().all(|place| place.carrier == Carrier::Closed) {
        return Err("no subnet has lanes; add [subnet.NAME] with plain = true".to_owned());
    }
    Ok(places)
}
