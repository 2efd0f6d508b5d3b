//! Reads metrics as strictly as the OpenMetrics format is written.

use std::collections::BTreeMap;

/// The samples of a text in the OpenMetrics format, by name and labels. Panics at the first line that breaks the format.
pub(crate) fn parse(text: &str) -> BTreeMap<String, f64> {
    let body = text.strip_suffix("# EOF\n").expect("it ends with its mark");
    let mut samples = BTreeMap::new();
    let (mut family, mut kind, mut seen) = (String::new(), String::new(), Vec::new());
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, said) = help.split_once(' ').expect("a name and a help");
            assert!(!said.is_empty() && !seen.iter().any(|other| other == name), "{line}");
            family = name.to_owned();
            seen.push(family.clone());
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            kind = of.strip_prefix(&format!("{family} ")).expect("the type of this family").to_owned();
            assert!(["counter", "gauge"].contains(&&*kind), "{line}");
        } else if let Some(of) = line.strip_prefix("# UNIT ") {
            let unit = of.strip_prefix(&format!("{family} ")).expect("the unit of this family");
            assert!(family.ends_with(&format!("_{unit}")), "{line}");
        } else {
            let (key, value) = line.rsplit_once(' ').expect("a sample");
            let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
            let expected = if kind == "counter" { format!("{family}_total") } else { family.clone() };
            assert_eq!(name, expected, "{line}");
            assert!(labels.ends_with('}'), "{line}");
            let value: f64 = value.parse().expect("a number");
            assert!(samples.insert(key.to_owned(), value).is_none(), "{key} is there twice");
        }
    }
    samples
}

/// The sum of all samples with this name whose labels contain `label`.
pub(crate) fn sum(samples: &BTreeMap<String, f64>, name: &str, label: &str) -> f64 {
    let is_of = |key: &str| key.split('{').next() == Some(name) && key.contains(label);
    samples.iter().filter(|(key, _)| is_of(key)).map(|(_, value)| value).sum()
}
