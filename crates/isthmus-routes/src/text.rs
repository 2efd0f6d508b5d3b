//! Reads TOML so that one pass finds every fault, each with its line.
//!
//! Derived deserialising stops at the first fault. People write maps by hand, and want the
//! whole list.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Fault, Faults};

/// A text under inspection, with the faults found so far.
pub(crate) struct Text<'a> {
    file: &'a str,
    /// Offset of each line's first byte.
    line_starts: Vec<usize>,
    faults: Vec<Fault>,
}

/// A value with the offset where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

type Entries<'d> = BTreeMap<&'d str, &'d Spanned<DeValue<'d>>>;

/// One table of the text, whose fields are taken one by one.
pub(crate) struct Section<'d> {
    kind: &'static str,
    at: usize,
    fields: Entries<'d>,
}

impl<'a> Text<'a> {
    pub(crate) fn new(file: &'a str, text: &str) -> Self {
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { file, line_starts: std::iter::once(0).chain(after_newline).collect(), faults: Vec::new() }
    }

    /// The document's table. If its syntax is wrong, the table has the parts that could be read.
    pub(crate) fn parse<'d>(&mut self, text: &'d str) -> DeTable<'d> {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            let what = format!("this is not TOML: {}", error.message().trim().replace('\n', ", "));
            self.fault(at, what, "correct the syntax (https://toml.io)");
        }
        table.into_inner()
    }

    pub(crate) fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at)
    }

    pub(crate) fn fault(&mut self, at: usize, what: impl Into<String>, remedy: impl Into<String>) {
        let (what, remedy) = (printable(what.into()), printable(remedy.into()));
        self.faults.push(Fault { file: self.file.to_owned(), line: self.line(at), what, remedy });
    }

    /// Returns `value` if there is no fault, or else the faults.
    pub(crate) fn finish<T>(mut self, value: Option<T>) -> Result<T, Faults> {
        self.faults.sort_by_key(|fault| fault.line);
        match value {
            Some(value) if self.faults.is_empty() => Ok(value),
            _ => Err(Faults(self.faults)),
        }
    }

    /// The table under `key`, such as `[as]`.
    pub(crate) fn section<'d>(
        &mut self,
        document: &'d DeTable<'d>,
        key: &str,
        kind: &'static str,
        known: &[&str],
    ) -> Option<Section<'d>> {
        let value = document.get(key)?;
        self.open(value, kind, known)
    }

    /// The tables under `key`, such as `[[subnet]]`.
    pub(crate) fn sections<'d>(
        &mut self,
        document: &'d DeTable<'d>,
        key: &str,
        kind: &'static str,
        known: &[&str],
    ) -> Vec<Section<'d>> {
        let Some(value) = document.get(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            let what = format!("{key} is {}", type_of(value.get_ref()));
            self.fault(value.span().start, what, format!("write {kind} above each, with double brackets"));
            return Vec::new();
        };
        array.iter().filter_map(|item| self.open(item, kind, known)).collect()
    }

    fn open<'d>(
        &mut self,
        value: &'d Spanned<DeValue<'d>>,
        kind: &'static str,
        known: &[&str],
    ) -> Option<Section<'d>> {
        let at = value.span().start;
        let Some(table) = value.get_ref().as_table() else {
            self.fault(
                at,
                format!("{kind} is {}", type_of(value.get_ref())),
                format!("make it a table, {kind}"),
            );
            return None;
        };
        self.check_known(table, kind, known);
        let fields = table.iter().map(|(key, value)| (key.get_ref().as_ref(), value)).collect();
        Some(Section { kind, at, fields })
    }

    /// Every key of `table` must be one of `known`.
    pub(crate) fn check_known(&mut self, table: &DeTable<'_>, place: &str, known: &[&str]) {
        for key in table.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let what = format!("{place} has no field {:?}", key.get_ref());
            self.fault(key.span().start, what, format!("use one of {}", known.join(", ")));
        }
    }
}

impl<'d> Section<'d> {
    /// Offset of the section's first byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn missing(&self, text: &mut Text<'_>, key: &str, example: &str) {
        text.fault(self.at, format!("{} has no {key}", self.kind), format!("add {key} = {example}"));
    }

    /// A text that must be there.
    pub(crate) fn text(&self, text: &mut Text<'_>, key: &str, example: &str) -> Option<Placed<String>> {
        match self.fields.get(key) {
            Some(value) => text_of(text, key, value, example),
            None => {
                self.missing(text, key, example);
                None
            }
        }
    }

    /// A text, if there is one.
    pub(crate) fn optional_text(
        &self,
        text: &mut Text<'_>,
        key: &str,
        example: &str,
    ) -> Option<Placed<String>> {
        self.fields.get(key).and_then(|value| text_of(text, key, value, example))
    }

    /// A quantity such as `"10Gbit"` that must be there.
    pub(crate) fn quantity<T>(&self, text: &mut Text<'_>, key: &str, example: &str) -> Option<Placed<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        if !self.fields.contains_key(key) {
            self.missing(text, key, example);
        }
        self.optional_quantity(text, key, example)
    }

    /// A quantity, if there is one.
    pub(crate) fn optional_quantity<T>(
        &self,
        text: &mut Text<'_>,
        key: &str,
        example: &str,
    ) -> Option<Placed<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = self.fields.get(key)?;
        let at = value.span().start;
        let written = match value.get_ref() {
            DeValue::String(written) => written.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            other => {
                text.fault(at, format!("{key} is {}", type_of(other)), format!("write {key} = {example}"));
                return None;
            }
        };
        match written.parse() {
            Ok(value) => Some(Placed { value, at }),
            Err(error) => {
                text.fault(at, format!("{key} = {error}"), format!("write {key} = {example}"));
                None
            }
        }
    }

    /// An id, 1..=4294967295, that must be there.
    pub(crate) fn id(&self, text: &mut Text<'_>, key: &str) -> Option<Placed<u32>> {
        let Some(value) = self.fields.get(key) else {
            self.missing(text, key, "1, or another whole number up to 4294967295");
            return None;
        };
        let at = value.span().start;
        let number = value.get_ref().as_integer();
        let parsed =
            number.and_then(|n| u32::from_str_radix(n.as_str(), n.radix()).ok()).filter(|id| *id > 0);
        if parsed.is_none() {
            let written = number.map_or_else(|| type_of(value.get_ref()).to_owned(), ToString::to_string);
            let what = format!("{key} = {written} is no id");
            text.fault(at, what, "use a whole number, 1 to 4294967295 (0 stands for \"not configured\")");
        }
        parsed.map(|value| Placed { value, at })
    }

    /// A boolean, if there is one.
    pub(crate) fn flag(&self, text: &mut Text<'_>, key: &str) -> Option<bool> {
        let value = self.fields.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            let what = format!("{key} is {}", type_of(value.get_ref()));
            text.fault(value.span().start, what, format!("write {key} = true or {key} = false"));
        }
        flag
    }

    /// A list of texts; empty if there is none.
    pub(crate) fn list(&self, text: &mut Text<'_>, key: &str, example: &str) -> Vec<Placed<String>> {
        self.fields.get(key).map_or_else(Vec::new, |value| list_of(text, key, value, example))
    }

    /// The entries of a table from names to values; empty if there is none.
    pub(crate) fn entries(
        &self,
        text: &mut Text<'_>,
        key: &str,
        example: &str,
    ) -> Vec<(Placed<String>, &'d Spanned<DeValue<'d>>)> {
        let Some(value) = self.fields.get(key) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            let what = format!("{key} is {}", type_of(value.get_ref()));
            text.fault(value.span().start, what, format!("write {key} = {example}"));
            return Vec::new();
        };
        let place =
            |key: &Spanned<_>| Placed { value: ToString::to_string(key.get_ref()), at: key.span().start };
        table.iter().map(|(key, value)| (place(key), value)).collect()
    }
}

/// A value that must be a text.
pub(crate) fn text_of(
    text: &mut Text<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    example: &str,
) -> Option<Placed<String>> {
    let at = value.span().start;
    let found = value.get_ref().as_str();
    if found.is_none() {
        let what = format!("{key} is {}", type_of(value.get_ref()));
        text.fault(at, what, format!("write {key} = {example}"));
    }
    found.map(|value| Placed { value: value.to_owned(), at })
}

/// A value that must be a list of texts.
pub(crate) fn list_of(
    text: &mut Text<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    example: &str,
) -> Vec<Placed<String>> {
    let Some(array) = value.get_ref().as_array() else {
        let what = format!("{key} is {}", type_of(value.get_ref()));
        text.fault(value.span().start, what, format!("write {key} = {example}"));
        return Vec::new();
    };
    array.iter().filter_map(|item| text_of(text, key, item, example)).collect()
}

/// One line without control characters: it may quote a stranger's text, which a terminal must not obey.
fn printable(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    text.chars().fold(String::new(), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
