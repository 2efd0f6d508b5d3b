//! Settings: one table, from which the file's keys, the environment's names and the
//! provider's declared parameters come.

/// One setting, as shown to users.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name; in the environment `FI_ISTHMUS_` and the name in capitals.
    pub name: &'static str,
    /// Meaning, unit, range and default.
    pub help: &'static str,
    /// Default, as the user would write it.
    pub default: &'static str,
}

/// All settings of an endpoint.
pub const PARAMETERS: &[Parameter] = &[];

/// Why settings were refused; the message names the place and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Settings of endpoints.
#[derive(Clone, Debug, Default)]
pub struct Settings {}

impl Settings {
    /// Reads the configuration file (`ISTHMUS_CONFIG`), then the environment.
    pub fn load() -> Result<Self, SettingsError> {
        Ok(Self::default())
    }
}
