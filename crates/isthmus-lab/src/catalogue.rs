//! Catalogues: lists of links by name, for simulations and for measurements in labs.
//!
//! A catalogue is a TOML file with `[[link]]`s as in a [lab's configuration](crate::config), each with a `name`. Times in
//! it count from the lab's start. [`Catalogue::wild`] is the built-in one.

use std::path::Path;

use serde::Deserialize;

use crate::config::{ConfigError, LabConfig, LinkConfig, LinkSpec, SiteConfig, text_error, text_of};

/// The built-in catalogue, as text.
pub const WILD: &str = include_str!("../links/wild.toml");
/// Longest name. Bytes.
pub const NAME_MAX: usize = 48;

/// A catalogue's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "link")]
    links: Vec<LinkConfig>,
}

/// Links, in the order of their file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// The links.
    pub links: Vec<NamedLink>,
}

/// A link of a catalogue, between the sites "a" and "b".
#[derive(Clone, Debug, PartialEq)]
pub struct NamedLink {
    /// The name. No other link of its catalogue with the same MTU and round trip has it.
    pub name: String,
    /// The link, with every default filled in.
    pub spec: LinkSpec,
    /// Its keys and values.
    table: toml::Table,
}

impl NamedLink {
    /// The link as a `[[link]]` of a lab's configuration, with this seed.
    pub fn text(&self, seed: u64) -> String {
        let mut link = self.table.clone();
        link.insert("seed".to_owned(), toml::Value::Integer(seed.min(i64::MAX as u64) as i64));
        let links = toml::Value::Array(vec![toml::Value::Table(link)]);
        toml::Table::from_iter([("link".to_owned(), links)]).to_string()
    }
}

impl Catalogue {
    /// The built-in catalogue: links as they occur outside of laboratories.
    pub fn wild() -> Self {
        Self::parse("wild.toml", WILD).expect("a test reads it")
    }

    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or as [`Catalogue::parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&path.display().to_string(), &text_of(path)?)
    }

    /// Parses and checks `text`. Error messages call it `place`.
    ///
    /// # Errors
    /// If the text is no list of links, or a link has no name, or the name of another one.
    pub fn parse(place: &str, text: &str) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| text_error(place, text, &error))?;
        let fault = |message: String| ConfigError::Meaning(format!("{place}: {message}"));
        if file.links.is_empty() {
            return Err(fault(
                "there is no link; add [[link]] with name = \"one\" and rtt = \"24ms\"".into(),
            ));
        }
        let table: toml::Table = toml::from_str(text).map_err(|error| text_error(place, text, &error))?;
        let tables = table.get("link").and_then(toml::Value::as_array).into_iter().flatten();
        let mut links: Vec<NamedLink> = Vec::new();
        for (number, (link, own)) in (1..).zip(file.links.iter().zip(tables)) {
            let spec = spec(link).map_err(|error| fault(format!("link {number}: {error}")))?;
            let name = link.name.clone().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| fault(format!("link {number} has no name; add name = \"...\"")))?;
            if name.len() > NAME_MAX {
                return Err(fault(format!("the name {name:?} is too long; the most is {NAME_MAX} bytes")));
            }
            let same = |other: &NamedLink| {
                (&other.name, other.spec.mtu, other.spec.rtt_ns()) == (&name, spec.mtu, spec.rtt_ns())
            };
            if links.iter().any(same) {
                return Err(fault(format!(
                    "the name {name:?} is there twice, with the same mtu and round trip; rename one"
                )));
            }
            links.push(NamedLink { name, spec, table: own.as_table().cloned().unwrap_or_default() });
        }
        Ok(Self { links })
    }
}

/// The link alone, in a lab with two sites.
fn spec(link: &LinkConfig) -> Result<LinkSpec, ConfigError> {
    let site = |name: &str| SiteConfig { name: name.to_owned(), ..SiteConfig::default() };
    let lab =
        LabConfig { sites: vec![site("a"), site("b")], links: vec![link.clone()], ..LabConfig::default() };
    let missing = || ConfigError::Meaning("there is no link".to_owned());
    lab.specs()?.pop().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_catalogue_is_read_and_its_links_make_labs() {
        for link in Catalogue::wild().links {
            let lab = format!("[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n{}", link.text(1));
            let specs = LabConfig::parse("lab.toml", &lab).and_then(|config| config.specs()).expect("valid");
            assert_eq!(specs, [link.spec], "{}", link.name);
        }
    }

    #[test]
    fn faults_are_named_with_their_remedies() {
        let said = |text: &str| Catalogue::parse("my.toml", text).expect_err("refused").to_string();
        assert!(said("").contains("add [[link]]"));
        assert!(said("[[link]]\nrtt = \"1ms\"\n").contains("link 1 has no name"));
        let one = "[[link]]\nname = \"one\"\nrtt = \"1ms\"\n";
        assert!(said(&[one, one].concat()).contains("rename one"));
        assert!(said("[[link]]\nname = \"one\"\nrtt = 1\n").starts_with("my.toml:3: rtt"));
        assert!(said(&format!("{one}between = [\"a\", \"c\"]\n")).contains("there is no site \"c\""));
        assert!(said(&format!("{one}[[site]]\nname = \"c\"\n")).contains("unknown field `site`"));
    }
}
