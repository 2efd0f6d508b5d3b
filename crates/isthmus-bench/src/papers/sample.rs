//! One run: its result and its circumstances.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::link::EmulatedLink;

/// One run; one line of `samples.jsonl`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Start of the run. Seconds since 1970.
    pub(crate) at: i64,
    pub(crate) version: String,
    pub(crate) kernel: String,
    /// The processors; then the load average of one minute when the run began.
    pub(crate) host: String,
    pub(crate) load: f64,
    /// Share of all processors' time used during the run, by any process: 0 to 1.
    #[serde(default)]
    pub(crate) busy: f64,
    /// `short` or `full`.
    pub(crate) form: String,
    pub(crate) section: String,
    /// Names and values that tell the measurement.
    pub(crate) facts: BTreeMap<String, String>,
    pub(crate) contender: String,
    pub(crate) link: Option<EmulatedLink>,
    /// The lab's configuration.
    pub(crate) lab: Option<String>,
    pub(crate) command: String,
    pub(crate) floor_s: f64,
    pub(crate) limit_s: f64,
    /// Time from the lab's start to its end. Seconds.
    pub(crate) took_s: f64,
    /// The run's `RESULT` lines, one object each.
    pub(crate) results: Vec<Map<String, Value>>,
    /// Its other output, shortened.
    #[serde(default)]
    pub(crate) said: Vec<String>,
    /// Isthmus' log lines about its choices.
    #[serde(default)]
    pub(crate) choices: Vec<String>,
    /// Time limit that passed before the run ended. Seconds.
    pub(crate) not_ended_s: Option<f64>,
    /// Why it was not run: what is missing.
    pub(crate) missing: Option<String>,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// The emulator's report on itself.
    pub(crate) emulator: Value,
}

impl Taken {
    /// Whether the emulator reports that it was late itself.
    pub(crate) fn spoiled(&self) -> bool {
        self.emulator["spoiled"].as_bool().unwrap_or(false)
    }

    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    /// Whether it has all these facts.
    pub(crate) fn has(&self, facts: &[(&str, &str)]) -> bool {
        facts.iter().all(|(name, value)| self.fact(name) == *value)
    }

    /// A number from its first result.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.results.first().and_then(|result| result.get(name)).and_then(Value::as_f64)
    }

    /// Suffix of a figure: `*` if the emulator was late.
    pub(crate) fn mark(&self) -> &'static str {
        if self.spoiled() { "*" } else { "" }
    }

    /// A table's entry if there is no figure.
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
