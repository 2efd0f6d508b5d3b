//! The configuration file: where it is, and its `[device]` table.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Settings, SettingsError};

/// Largest configuration file that is read. Bytes.
const FILE_MAX: u64 = 1 << 20;

/// The configuration file's text and name, if there is one.
pub(crate) fn file_text() -> Result<Option<(String, String)>, SettingsError> {
    file_to_read().map(|path| text_of(&path)).transpose()
}

pub(super) fn text_of(path: &Path) -> Result<(String, String), SettingsError> {
    let fail = |cause: &dyn fmt::Display| SettingsError(format!("{}: {cause}", path.display()));
    let absent = |e| fail(&format_args!("{e}; correct ISTHMUS_CONFIG, or unset it"));
    let len = std::fs::metadata(path).map_err(absent)?.len();
    if len > FILE_MAX {
        return Err(fail(&format_args!("{len} bytes is too long for a configuration")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
    Ok((text, path.display().to_string()))
}

/// An error with the line of the file that causes it.
pub(crate) fn locate_error(text: &str, origin: &str, error: &toml::de::Error) -> SettingsError {
    let start = error.span().map_or(0, |span| span.start).min(text.len());
    let line = text[..start].matches('\n').count() + 1;
    let source = text.lines().nth(line - 1).unwrap_or_default().trim();
    SettingsError(format!("{origin}:{line}: {source}: {}", error.message()))
}

/// The file that `ISTHMUS_CONFIG` names, else the first that there is of the user's and the system's.
pub(super) fn file_to_read() -> Option<PathBuf> {
    if let Some(named) = env::var_os("ISTHMUS_CONFIG").filter(|path| !path.is_empty()) {
        return Some(named.into());
    }
    let home = env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".config")));
    home.into_iter()
        .chain([PathBuf::from("/etc")])
        .map(|dir| dir.join("isthmus/isthmus.toml"))
        .find(|path| path.is_file())
}

/// The settings of `[device]` itself, for programs that know only one device.
pub(super) fn default_settings(text: &str, origin: &str) -> Result<Settings, SettingsError> {
    let common = without_named(common_table(text, origin)?);
    read(common).map_err(|error| locate_error(text, origin, &error))
}

/// The `[device]` table, including named devices; an empty one if the file has none.
pub(crate) fn common_table<'a>(text: &'a str, origin: &str) -> Result<Spanned<DeTable<'a>>, SettingsError> {
    let wrong = |error: &toml::de::Error| locate_error(text, origin, error);
    let mut file = DeTable::parse(text).map_err(|e| wrong(&e))?;
    let found = file.get_mut().remove("device");
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rest {}
    read::<Rest>(file).map_err(|e| {
        let SettingsError(text) = wrong(&e);
        SettingsError(text.replace("there are no fields", "expected `device`"))
    })?;
    match found {
        None => Ok(Spanned::new(0..0, DeTable::new())),
        Some(value) => {
            let span = value.span();
            match value.into_inner() {
                DeValue::Table(table) => Ok(Spanned::new(span, table)),
                _ => Err(SettingsError(format!("{origin}: `device` is not a table; write [device]"))),
            }
        }
    }
}

/// The `[device]` table without named devices.
pub(crate) fn without_named(common: Spanned<DeTable<'_>>) -> Spanned<DeTable<'_>> {
    let span = common.span();
    let plain = common.into_inner().into_iter().filter(|(_, value)| !value.get_ref().is_table());
    Spanned::new(span, plain.collect())
}

/// The values of a table.
pub(crate) fn read<'a, T: Deserialize<'a>>(table: Spanned<DeTable<'a>>) -> Result<T, toml::de::Error> {
    T::deserialize(toml::de::Deserializer::from(table))
}
