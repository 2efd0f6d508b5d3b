//! Reads a map's text into a [`RouteMap`]: checks the schema, and that its parts fit together.
//!
//! Parts that are faulty by themselves stay in the draft, so that references to them do not
//! count as faults too.

use std::collections::HashMap;
use std::net::IpAddr;

use isthmus_units::{HostPort, Rate, Span};
use isthmus_wire::{AsId, Locator, SubnetId};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::Faults;
use crate::map::{Capabilities, Joint, Remote, Role, RouteMap, Router, SUBNETS_MAX, Subnet, WayOut};
use crate::text::{Placed, Section, Text, list_of, text_of};

const SECTIONS: &[&str] = &["as", "subnet", "wan", "router", "remote"];
const LOCATOR: &str = "\"10.1.0.1:4100\"";
const LATENCY_MAX: Span = Span(3_600_000_000_000);
const NO_WAN: &str = "name a [[wan]], which you add";
/// Most names that a remedy lists. Count.
const NAMES_LISTED: usize = 12;

pub(crate) fn map(source: &str, file_name: &str) -> Result<RouteMap, Faults> {
    let mut text = Text::new(file_name, source);
    let document = text.parse(source);
    text.check_known(&document, "a route map", SECTIONS);
    let mut draft = Draft::default();
    let own = draft.read_as(&mut text, &document);
    draft.read_subnets(&mut text, &document);
    draft.read_routers(&mut text, &document);
    draft.read_remotes(&mut text, &document, own.as_ref());
    draft.check_whole(&mut text);
    let map = own.map(|own| draft.into_map(own));
    text.finish(map)
}

/// The AS's own id and name.
struct Own {
    id: AsId,
    name: String,
}

/// The parts read so far, with their offsets, and the names, ids and endpoints that must be unique.
#[derive(Default)]
struct Draft {
    subnets: Vec<Placed<Subnet>>,
    routers: Vec<Placed<Router>>,
    remotes: Vec<Placed<Remote>>,
    /// Position of each subnet's name in `subnets`.
    by_name: HashMap<String, usize>,
    /// Names of subnets and remote AS's, names of routers, and ids, with their offsets.
    names: HashMap<String, usize>,
    router_names: HashMap<String, usize>,
    subnet_ids: HashMap<u32, usize>,
    remote_ids: HashMap<u32, usize>,
    /// Endpoints by subnet, with the name of the router or AS that has it, and its offset.
    locators: HashMap<(usize, Locator), (String, usize)>,
    /// For each subnet: the routers that join it, and the remote AS's that it leads to.
    routers_on: Vec<usize>,
    /// Whether a router names an unknown subnet, so that those counts may be too low.
    joins_unknown: bool,
    remotes_over: Vec<Vec<String>>,
}

impl Draft {
    fn read_as(&mut self, text: &mut Text<'_>, document: &DeTable<'_>) -> Option<Own> {
        if !document.contains_key("as") {
            text.fault(0, "there is no [as]", "add [as] with id = 1, or whichever id the AS has");
        }
        let section = text.section(document, "as", "[as]", &["id", "name"])?;
        let name = section.optional_text(text, "name", "\"a centre\"").map(|name| name.value);
        let id = section.id(text, "id")?.value;
        Some(Own { id: AsId(id), name: name.unwrap_or_else(|| format!("AS{id}")) })
    }

    fn read_subnets(&mut self, text: &mut Text<'_>, document: &DeTable<'_>) {
        let fields = ["id", "name", "rate", "latency", "capabilities", "transit"];
        let own = text.sections(document, "subnet", "[[subnet]]", &fields);
        for section in &own {
            let role = if section.flag(text, "transit").unwrap_or(true) { Role::Transit } else { Role::Edge };
            self.read_subnet(text, section, role);
        }
        if own.is_empty() {
            text.fault(
                0,
                "the AS has no subnet of its own",
                "add [[subnet]] with id, name, rate and latency",
            );
        }
        let fields = ["id", "name", "rate", "latency", "capabilities", "private"];
        for section in text.sections(document, "wan", "[[wan]]", &fields) {
            let private = section.flag(text, "private").unwrap_or(false);
            self.read_subnet(text, &section, if private { Role::Private } else { Role::Wan });
        }
        if let Some(first_beyond) = self.subnets.get(SUBNETS_MAX) {
            let what = format!("{} subnets are too many", self.subnets.len());
            text.fault(first_beyond.at, what, format!("keep to {SUBNETS_MAX}, or divide the AS"));
        }
    }

    fn read_subnet(&mut self, text: &mut Text<'_>, section: &Section<'_>, role: Role) {
        let id = section.id(text, "id");
        if let Some(id) = &id {
            unique(
                text,
                &mut self.subnet_ids,
                id,
                |id| format!("subnet id {id}"),
                "give each subnet its own id",
            );
        }
        let name = section.text(text, "name", "\"campus\"");
        if let Some(name) = &name {
            check_name(text, &mut self.names, name);
            self.by_name.entry(name.value.clone()).or_insert(self.subnets.len());
        }
        let subnet = Subnet {
            id: SubnetId(id.map_or(0, |id| id.value)),
            name: name.map_or_else(String::new, |name| name.value),
            rate: section.quantity(text, "rate", "\"10Gbit\"").map_or(Rate(1), |rate| rate.value),
            latency: latency(text, section),
            capabilities: capabilities(text, section),
            role,
        };
        self.subnets.push(Placed { value: subnet, at: section.at() });
        self.routers_on.push(0);
        self.remotes_over.push(Vec::new());
    }

    /// The subnet that `name` means.
    fn find(&self, text: &mut Text<'_>, name: &Placed<String>) -> Option<usize> {
        let found = self.by_name.get(&name.value).copied();
        if found.is_none() {
            text.fault(
                name.at,
                format!("there is no subnet {:?}", name.value),
                format!("add it, or {}", self.choices(|_| true, "remove the name")),
            );
        }
        found
    }

    /// Names of subnets that fit, for a remedy; `otherwise` where there is none.
    fn choices(&self, fits: impl Fn(&Subnet) -> bool, otherwise: &str) -> String {
        let fitting = self.subnets.iter().map(|s| &s.value).filter(|s| fits(s) && !s.name.is_empty());
        let names: Vec<_> = fitting.map(|subnet| subnet.name.as_str()).collect();
        let more = if names.len() > NAMES_LISTED { ", ..." } else { "" };
        let listed = names[..names.len().min(NAMES_LISTED)].join(", ");
        if names.is_empty() { otherwise.to_owned() } else { format!("use one of {listed}{more}") }
    }

    fn read_routers(&mut self, text: &mut Text<'_>, document: &DeTable<'_>) {
        let fields = ["name", "joins", "endpoints"];
        for section in text.sections(document, "router", "[[router]]", &fields) {
            let name = section.text(text, "name", "\"r1\"");
            if let Some(name) = &name {
                check_name(text, &mut self.router_names, name);
            }
            let name = name.map_or_else(|| "this router".to_owned(), |name| name.value);
            let joined = self.read_joins(text, &section, &name);
            let mut joins: Vec<_> =
                joined.iter().map(|i| Joint { subnet: self.id(*i), endpoint: None }).collect();
            for (subnet, value) in self.read_places(text, &section, "endpoints", "joins", &joined) {
                let written = text_of(text, "an endpoint", value, LOCATOR);
                let locator = written.and_then(|written| self.read_locator(text, subnet, &name, &written));
                let joint = joined.iter().position(|joined| *joined == subnet);
                if let Some(joint) = joint.and_then(|joint| joins.get_mut(joint)) {
                    joint.endpoint = locator;
                }
            }
            self.routers.push(Placed { value: Router { name, joins }, at: section.at() });
        }
    }

    fn id(&self, subnet: usize) -> SubnetId {
        self.subnets[subnet].value.id
    }

    /// The subnets that a router joins.
    fn read_joins(&mut self, text: &mut Text<'_>, section: &Section<'_>, router: &str) -> Vec<usize> {
        let written = section.list(text, "joins", "[\"campus\", \"esnet\"]");
        let joined = self.find_each(text, &written, "joins");
        for subnet in &joined {
            self.routers_on[*subnet] += 1;
        }
        // An unknown name stands for some subnet, so one fault is enough.
        let unknown = written.iter().any(|name| !self.by_name.contains_key(&name.value));
        self.joins_unknown |= unknown;
        let complaint = match joined[..] {
            _ if unknown => None,
            [] => Some(format!("{router} joins no subnet")),
            [only] => Some(format!("{router} joins only {}", self.subnets[only].value.name)),
            _ if joined.iter().all(|s| self.subnets[*s].value.role.leads_out()) => {
                let what = format!("{router} joins only ways out, between which nothing is forwarded");
                text.fault(
                    section.at(),
                    what,
                    "join one of the AS's own subnets as well, or remove the router",
                );
                None
            }
            _ => None,
        };
        if let Some(what) = complaint {
            text.fault(section.at(), what, "name at least two subnets in joins, or remove the router");
        }
        joined
    }

    /// The subnets named in a list, each once.
    fn find_each(&self, text: &mut Text<'_>, names: &[Placed<String>], key: &str) -> Vec<usize> {
        let mut found = Vec::new();
        for name in names {
            let Some(subnet) = self.find(text, name) else { continue };
            if found.contains(&subnet) {
                text.fault(name.at, format!("{key} names {:?} twice", name.value), "remove one");
            } else {
                found.push(subnet);
            }
        }
        found
    }

    /// A table by subnet name. The list `key_of_list` must have each of these names.
    fn read_places<'d>(
        &self,
        text: &mut Text<'_>,
        section: &Section<'d>,
        key: &str,
        key_of_list: &str,
        allowed: &[usize],
    ) -> Vec<(usize, &'d Spanned<DeValue<'d>>)> {
        let mut places = Vec::new();
        for (name, value) in section.entries(text, key, "{ campus = ... }") {
            let Some(subnet) = self.find(text, &name) else { continue };
            if allowed.contains(&subnet) {
                places.push((subnet, value));
            } else {
                let what = format!("{key} has {:?}, which {key_of_list} does not name", name.value);
                text.fault(
                    name.at,
                    what,
                    format!("add {:?} to {key_of_list}, or remove it here", name.value),
                );
            }
        }
        places
    }

    fn read_locator(
        &mut self,
        text: &mut Text<'_>,
        subnet: usize,
        owner: &str,
        written: &Placed<String>,
    ) -> Option<Locator> {
        let parsed = written.value.parse::<Locator>().ok();
        let Some(locator) = parsed.filter(|l| l.port() != 0 && !l.ip().is_unspecified()) else {
            let what = format!("{:?} is no endpoint that others can reach", written.value);
            let name = written.value.parse::<HostPort>().ok().filter(|at| at.host.parse::<IpAddr>().is_err());
            let remedy = match name {
                // Routers and endpoints compare endpoints of their maps, so all have to read the same.
                Some(HostPort { host, .. }) => format!(
                    "hosts may look a host name up with different answers, so write its IP address and port, such as \
                     {LOCATOR} (`getent ahosts {host}` prints the address)"
                ),
                None => format!("write its IP address and port, such as {LOCATOR}"),
            };
            text.fault(written.at, what, remedy);
            return None;
        };
        let entry = self.locators.insert((subnet, locator), (owner.to_owned(), written.at));
        if let Some((other, at)) = entry {
            let place = &self.subnets[subnet].value.name;
            let what = format!("{locator} on {place} is {other}'s already (line {})", text.line(at));
            text.fault(written.at, what, "give each endpoint its own IP address or port");
        }
        Some(locator)
    }

    fn read_remotes(&mut self, text: &mut Text<'_>, document: &DeTable<'_>, own: Option<&Own>) {
        let fields = ["id", "name", "via", "gateways"];
        for section in text.sections(document, "remote", "[[remote]]", &fields) {
            let id = section.id(text, "id");
            if let Some(id) = &id {
                unique(
                    text,
                    &mut self.remote_ids,
                    id,
                    |id| format!("AS {id}"),
                    "keep one, with all its ways out in via",
                );
                if own.is_some_and(|own| own.id.0 == id.value) {
                    text.fault(id.at, format!("AS {} is this map's own", id.value), "use the remote AS's id");
                }
            }
            let id = AsId(id.map_or(0, |id| id.value));
            let name = section.optional_text(text, "name", "\"other-centre\"");
            let default = || Placed { value: format!("AS{}", id.0), at: section.at() };
            let name = name.unwrap_or_else(default);
            check_name(text, &mut self.names, &name);
            let ways_out = self.read_ways_out(text, &section, &name.value);
            self.remotes.push(Placed { value: Remote { id, name: name.value, ways_out }, at: section.at() });
        }
    }

    fn read_ways_out(&mut self, text: &mut Text<'_>, section: &Section<'_>, remote: &str) -> Vec<WayOut> {
        let written = section.list(text, "via", "[\"esnet\"]");
        let found = self.find_each(text, &written, "via");
        if written.is_empty() {
            let what = format!("{remote} cannot be reached: via names no way out");
            text.fault(
                section.at(),
                what,
                format!("in via {}", self.choices(|s| s.role.leads_out(), NO_WAN)),
            );
        }
        for subnet in &found {
            let Subnet { name, role, .. } = &self.subnets[*subnet].value;
            if role.leads_out() {
                self.remotes_over[*subnet].push(remote.to_owned());
            } else {
                let what = format!("{remote} cannot be reached by {name}, a subnet of this AS");
                let remedy =
                    format!("make {name} a [[wan]], or {}", self.choices(|s| s.role.leads_out(), NO_WAN));
                text.fault(section.at(), what, remedy);
            }
        }
        let mut ways_out: Vec<_> =
            found.iter().map(|i| WayOut { subnet: self.id(*i), gateways: Vec::new() }).collect();
        for (subnet, value) in self.read_places(text, section, "gateways", "via", &found) {
            let written = list_of(text, "gateways", value, "{ esnet = [\"198.51.100.1:4100\"] }");
            let locators: Vec<_> =
                written.iter().filter_map(|w| self.read_locator(text, subnet, remote, w)).collect();
            if let Some(way) = found.iter().position(|found| *found == subnet) {
                ways_out[way].gateways = locators;
            }
        }
        ways_out
    }

    /// Checks that need all parts.
    fn check_whole(&self, text: &mut Text<'_>) {
        for (index, Placed { value: subnet, at }) in self.subnets.iter().enumerate() {
            self.check_private(text, index);
            if self.routers_on[index] == 0 && self.subnets.len() > 1 && !self.joins_unknown {
                let what = format!("no router joins {:?}: nothing reaches it", subnet.name);
                text.fault(*at, what, "name it in a router's joins, or remove it");
            }
        }
        for Placed { value: remote, at } in &self.remotes {
            let reached = |way: &WayOut| {
                self.subnets
                    .iter()
                    .zip(&self.routers_on)
                    .any(|(s, routers)| s.value.id == way.subnet && *routers > 0)
            };
            let unreached = !remote.ways_out.is_empty() && !remote.ways_out.iter().any(reached);
            if unreached && !self.joins_unknown {
                let what = format!("{} cannot be reached: no router joins any of its ways out", remote.name);
                text.fault(*at, what, "name one of them in a router's joins");
            }
        }
    }

    fn check_private(&self, text: &mut Text<'_>, index: usize) {
        let Placed { value: subnet, at } = &self.subnets[index];
        let remotes = &self.remotes_over[index];
        if subnet.role == Role::Private && remotes.len() != 1 {
            let serves = if remotes.is_empty() { "nobody".to_owned() } else { remotes.join(" and ") };
            let what = format!("the private link {:?} leads to {serves}", subnet.name);
            text.fault(*at, what, "name it in the via of one remote AS: it serves its two ends only");
        }
    }

    fn into_map(self, own: Own) -> RouteMap {
        let plain = |placed: Placed<Subnet>| placed.value;
        let mut subnets: Vec<_> = self.subnets.into_iter().map(plain).collect();
        subnets.sort_by_key(|subnet| subnet.id);
        let mut remotes: Vec<_> = self.remotes.into_iter().map(|placed| placed.value).collect();
        remotes.sort_by_key(|remote| remote.id);
        let routers = self.routers.into_iter().map(|placed| placed.value).collect();
        RouteMap { as_id: own.id, name: own.name, subnets, routers, remotes }
    }
}

fn latency(text: &mut Text<'_>, section: &Section<'_>) -> Span {
    let Some(latency) = section.quantity::<Span>(text, "latency", "\"20us\"") else { return Span(0) };
    if latency.value > LATENCY_MAX {
        text.fault(
            latency.at,
            format!("latency = {} is over an hour", latency.value),
            "write it one way, as \"20us\"",
        );
    }
    latency.value
}

fn capabilities(text: &mut Text<'_>, section: &Section<'_>) -> Capabilities {
    let mut capabilities = Capabilities::default();
    for name in section.list(text, "capabilities", "[\"zero-copy\", \"os-bypass\", \"rma\"]") {
        if !capabilities.set(&name.value) {
            let what = format!("there is no capability {:?}", name.value);
            text.fault(name.at, what, format!("use {}", Capabilities::NAMES.join(", ")));
        }
    }
    capabilities
}

/// Checks a name. Names may be used instead of ids, so a name must not look like an id.
fn check_name(text: &mut Text<'_>, taken: &mut HashMap<String, usize>, name: &Placed<String>) {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let starts = name.value.starts_with(|c: char| c.is_ascii_alphabetic());
    if !starts || name.value.len() > 64 || !name.value.chars().all(fine) {
        let what = format!("{:?} cannot be a name", name.value);
        text.fault(name.at, what, "start with a letter; go on with letters, digits, - and _, 64 in all");
    }
    unique(text, taken, name, |name| format!("the name {name:?}"), "rename one");
}

/// Reports a fault if `item` was there before.
fn unique<T: Clone + Eq + std::hash::Hash>(
    text: &mut Text<'_>,
    taken: &mut HashMap<T, usize>,
    item: &Placed<T>,
    describe: impl Fn(&T) -> String,
    remedy: &str,
) {
    match taken.get(&item.value) {
        Some(first) => {
            let what = format!("{} is taken already (line {})", describe(&item.value), text.line(*first));
            text.fault(item.at, what, remedy);
        }
        None => {
            taken.insert(item.value.clone(), item.at);
        }
    }
}
