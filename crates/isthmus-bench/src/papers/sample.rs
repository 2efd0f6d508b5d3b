//! One run: what came out, and under which circumstances.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::link::Link;

/// See the module. One line of `samples.jsonl`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// When it began. Seconds since 1970.
    pub(crate) at: i64,
    pub(crate) version: String,
    pub(crate) kernel: String,
    /// The processors, and how many tasks wanted one when it began (the load average of one minute).
    pub(crate) host: String,
    pub(crate) load: f64,
    /// How much of the processors' time was used meanwhile, by whomever: 1 is all.
    #[serde(default)]
    pub(crate) busy: f64,
    /// `short` or `full`.
    pub(crate) form: String,
    pub(crate) section: String,
    /// What was measured, by name and value.
    pub(crate) facts: BTreeMap<String, String>,
    pub(crate) contender: String,
    pub(crate) link: Option<Link>,
    /// The lab's configuration.
    pub(crate) lab: Option<String>,
    pub(crate) command: String,
    pub(crate) floor_s: f64,
    pub(crate) limit_s: f64,
    /// From the lab's start to its end. Seconds.
    pub(crate) took_s: f64,
    /// What the run printed after `RESULT`, one object a line.
    pub(crate) results: Vec<Map<String, Value>>,
    /// What it printed else.
    #[serde(default)]
    pub(crate) said: Vec<String>,
    /// What Isthmus said of its choices.
    #[serde(default)]
    pub(crate) choices: Vec<String>,
    /// It had not ended after so long. Seconds.
    pub(crate) not_ended_s: Option<f64>,
    /// It was not run, because this is not there.
    pub(crate) missing: Option<String>,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// The emulator's report on itself.
    pub(crate) emulator: Value,
}

impl Taken {
    /// Whether the emulator says that it was late itself.
    pub(crate) fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }

    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    /// Whether it has all of these.
    pub(crate) fn has(&self, facts: &[(&str, &str)]) -> bool {
        facts.iter().all(|(name, value)| self.fact(name) == *value)
    }

    /// A number of its first result.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.results.first().and_then(|result| result.get(name)).and_then(Value::as_f64)
    }

    /// Behind a figure: `*` where the emulator was late.
    pub(crate) fn mark(&self) -> &'static str {
        if self.spoiled() { "*" } else { "" }
    }

    /// What stands in a table where there is no figure.
    pub(crate) fn instead(&self) -> String {
        match (&self.missing, self.not_ended_s) {
            (Some(_), _) => "absent".to_owned(),
            (None, Some(limit)) => format!("not ended after {limit:.0} s"),
            (None, None) => "failed".to_owned(),
        }
    }

    pub(crate) fn title(&self) -> String {
        let facts: Vec<_> = self.facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let link = self.link.map_or(String::new(), |link| format!(", {} {}", link.rate, link.title()));
        format!("{}: {}{link}", self.contender, facts.join(", "))
    }
}
