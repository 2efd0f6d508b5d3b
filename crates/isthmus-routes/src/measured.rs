//! Measurements of an AS's links, as routers or others deliver them:
//!
//! ```toml
//! down = ["r3"]                    # routers that do not answer
//!
//! [[link]]
//! subnet = "esnet"
//! rate = "7.5Gbit"
//! rtt = "24ms"
//! loss = "0.1%"
//! ```

use std::collections::{BTreeMap, BTreeSet};

use isthmus_units::{Percent, Rate, Span};
use isthmus_wire::SubnetId;

use crate::fault::Faults;
use crate::map::{RouteMap, Subnet};
use crate::text::{Section, Text, list_of};

/// The measured state of an AS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The links measured, by the subnet that they cross; counts under
    /// [`Metric::Measured`](crate::Metric::Measured).
    pub links: BTreeMap<SubnetId, LinkState>,
    /// Names of routers that do not answer. They carry nothing under any metric.
    pub down: BTreeSet<String>,
}

/// The measured state of the link across a subnet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkState {
    /// Rate at which data arrived. Bits per second.
    pub rate: Rate,
    /// Round-trip time. Nanoseconds.
    pub rtt: Span,
    /// Share of data lost. A link that loses all of it carries no route.
    pub loss: Percent,
}

impl LinkState {
    /// The map's figures of a subnet, as if they had been measured.
    pub fn expected(subnet: &Subnet) -> Self {
        let rtt = Span(subnet.latency.0.saturating_mul(2));
        Self { rate: subnet.rate, rtt, loss: Percent(0.0) }
    }
}

impl Measured {
    /// A text from which [`parse`](Self::parse) reads the same measurements, rounded to thousandths.
    /// It leaves out subnets and routers that are not in `map`.
    pub fn to_text(&self, map: &RouteMap) -> String {
        let mut text = String::new();
        if !self.down.is_empty() {
            let names: Vec<_> = self.down.iter().map(|name| format!("\"{name}\"")).collect();
            text = format!("down = [{}]\n", names.join(", "));
        }
        for (id, LinkState { rate, rtt, loss }) in &self.links {
            let Some(subnet) = map.subnet(*id) else { continue };
            text += &format!(
                "\n[[link]]\nsubnet = \"{}\"\nrate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\"\n",
                subnet.name
            );
        }
        text
    }

    /// Reads a text whose names are those of `map`; `file_name` stands for it in faults.
    /// A figure that a link's entry leaves out is the map's.
    ///
    /// Fails with every fault of the text, not only the first.
    pub fn parse(source: &str, file_name: &str, map: &RouteMap) -> Result<Self, Faults> {
        let mut text = Text::new(file_name, source);
        let document = text.parse(source);
        text.check_known(&document, "a file of measurements", &["down", "link"]);
        let mut measured = Self::default();
        if let Some(down) = document.get("down") {
            for router in list_of(&mut text, "down", down, "[\"r1\"]") {
                if !map.routers().iter().any(|known| known.name == router.value) {
                    let what = format!("the map has no router {:?}", router.value);
                    text.fault(router.at, what, "use a router's name, as in the map");
                }
                measured.down.insert(router.value);
            }
        }
        for section in text.sections(&document, "link", "[[link]]", &["subnet", "rate", "rtt", "loss"]) {
            if let Some((subnet, state)) = link(&mut text, &section, map)
                && measured.links.insert(subnet, state).is_some()
            {
                text.fault(section.at(), "this subnet was measured above already", "keep one");
            }
        }
        text.finish(Some(measured))
    }
}

fn link(text: &mut Text<'_>, section: &Section<'_>, map: &RouteMap) -> Option<(SubnetId, LinkState)> {
    let rate = section.optional_quantity(text, "rate", "\"7.5Gbit\"");
    let rtt = section.optional_quantity(text, "rtt", "\"24ms\"");
    let loss = section.optional_quantity(text, "loss", "\"0.1%\"");
    let name = section.text(text, "subnet", "\"esnet\"")?;
    let Some(subnet) = map.subnet_named(&name.value) else {
        text.fault(name.at, format!("the map has no subnet {:?}", name.value), "use a name as in the map");
        return None;
    };
    let mut state = LinkState::expected(subnet);
    state.rate = rate.map_or(state.rate, |rate| rate.value);
    state.rtt = rtt.map_or(state.rtt, |rtt| rtt.value);
    state.loss = loss.map_or(state.loss, |loss| loss.value);
    Some((subnet.id, state))
}
