//! Devices by name: `[device.NAME]` tables of the configuration file.
//!
//! The keys of `[device]` itself apply to all of them. Programs that know only one device, such as MPIs, get the
//! settings of `[device]`.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Settings;
use crate::settings::file::{common_table, file_text, locate_error, read, without_named};
use crate::settings::{MEMORY, SettingsError};

/// Settings of a `[device.NAME]` table besides the [`crate::PARAMETERS`]: name and meaning.
pub const DEVICE_PARAMETERS: &[(&str, &str)] = &[
    (
        "transport",
        "What carries messages: \"tcp\", \"udp\", \"ethernet\" or \"auto\", as the setting of this name says; or \"shm\" and other libfabric providers for where both ends have them. Default \"tcp\".",
    ),
    ("priority", "Devices with more are chosen first. 0..=100. Default 50."),
];

/// One device, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Its name; `default` for that of a file without named ones.
    pub name: String,
    /// The carrier of its messages.
    pub transport: String,
    /// Devices with more are chosen first. 0..=100.
    pub priority: u32,
    /// Settings of its endpoints.
    pub settings: Settings,
}

/// Default priority.
const PRIORITY: u32 = 50;
/// Highest priority.
const PRIORITY_MAX: u32 = 100;

/// The devices of the configuration file that [`Settings::load`] reads; the environment
/// wins over it as there.
///
/// # Errors
/// [`SettingsError`], with file, line and remedy.
pub fn devices_from_file() -> Result<Vec<DeviceSettings>, SettingsError> {
    let (text, origin) = file_text()?.unwrap_or_default();
    let mut devices = devices_from_toml(&text, &origin)?;
    for device in &mut devices {
        device.settings.override_from_environment()?;
    }
    Ok(devices)
}

/// Like [`devices_from_file`], but from text; `origin` names it in errors.
///
/// # Errors
/// [`SettingsError`].
pub fn devices_from_toml(text: &str, origin: &str) -> Result<Vec<DeviceSettings>, SettingsError> {
    let wrong = |error: &toml::de::Error| locate_error(text, origin, error);
    let mut common = common_table(text, origin)?;
    let named: Vec<_> = named_tables(&mut common.get_mut().clone());
    let own = |table: &Spanned<DeTable<'_>>| read::<Settings>(table.clone()).map_err(|e| wrong(&e));
    let common = without_named(common);
    if named.is_empty() {
        let settings = own(&common)?;
        return Ok(vec![device("default", &settings.fabrics(), PRIORITY, settings)]);
    }
    own(&common)?; // Report errors in `[device]` at their own line.
    let mut devices = Vec::new();
    for (name, table) in named {
        let transport = taken(&table, "transport", String::new(), origin, text)?;
        let priority = taken(&table, "priority", PRIORITY, origin, text)?;
        if priority > PRIORITY_MAX {
            return Err(SettingsError(format!(
                "{origin}: [device.{name}]: priority = {priority} is out of its range, 0 to {PRIORITY_MAX}"
            )));
        }
        let mut merged = common.clone();
        let span = table.span();
        for (key, value) in table.into_inner() {
            if !matches!(key.get_ref().as_ref(), "transport" | "priority") {
                merged.get_mut().insert(key, value);
            }
        }
        let merged = Spanned::new(span, merged.into_inner());
        let mut settings = own(&merged)?;
        let transport = if transport.is_empty() { settings.fabrics() } else { transport };
        match (transport.as_str(), transport.parse()) {
            ("", _) => {}
            (_, Ok(by)) => settings.transport = by,
            (_, Err(_)) if transport == settings.fabrics() => {}
            (_, Err(_)) => settings.fabric.clone_from(&transport),
        }
        devices.push(device(&name, &transport, priority, settings));
    }
    Ok(devices)
}

fn device(name: &str, transport: &str, priority: u32, settings: Settings) -> DeviceSettings {
    let transport = match transport {
        "" | "off" | MEMORY => "tcp",
        named => named,
    };
    DeviceSettings { name: name.to_owned(), transport: transport.to_owned(), priority, settings }
}

fn named_tables<'a>(common: &mut DeTable<'a>) -> Vec<(String, Spanned<DeTable<'a>>)> {
    let mut named: Vec<_> = common
        .iter()
        .filter_map(|(key, value)| match value.get_ref() {
            DeValue::Table(table) => {
                Some((key.get_ref().to_string(), Spanned::new(value.span(), table.clone())))
            }
            _ => None,
        })
        .collect();
    named.sort_by_key(|(_, table)| table.span().start);
    named
}

/// The value of a key that only named devices have, or `default`.
fn taken<'a, T: Deserialize<'a>>(
    table: &Spanned<DeTable<'a>>,
    key: &str,
    default: T,
    origin: &str,
    text: &str,
) -> Result<T, SettingsError> {
    let Some(value) = table.get_ref().get(key) else { return Ok(default) };
    let value = toml::de::ValueDeserializer::from(value.clone());
    T::deserialize(value).map_err(|error| locate_error(text, origin, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Transport;

    #[test]
    fn a_file_without_named_devices_has_one() {
        let devices = devices_from_toml("[device]\nas_id = 3\n", "x").expect("valid");
        assert_eq!(devices.len(), 1);
        assert_eq!((devices[0].name.as_str(), devices[0].transport.as_str()), ("default", "tcp"));
        assert_eq!((devices[0].settings.as_id, devices[0].priority), (3, 50));
        assert_eq!(devices_from_toml("", "x").expect("valid").len(), 1);
    }

    #[test]
    fn named_devices_take_over_what_holds_for_all() {
        let text = "[device]\nas_id = 3\nlinger = \"1s\"\n\n[device.wan]\nsubnet = 9\npriority = 10\n\n\
                    [device.fast]\ntransport = \"shm\"\nas_id = 4\n";
        let devices = devices_from_toml(text, "x").expect("valid");
        let found: Vec<_> = devices
            .iter()
            .map(|d| (d.name.as_str(), d.transport.as_str(), d.priority, d.settings.as_id, d.settings.subnet))
            .collect();
        assert_eq!(found, [("wan", "tcp", 10, 3, 9), ("fast", "shm", 50, 4, 0)]);
        assert_eq!(devices[1].settings.fabric, "shm");
        let far = devices_from_toml("[device.far]\ntransport = \"udp\"\n", "x").expect("valid");
        assert_eq!((far[0].transport.as_str(), far[0].settings.transport), ("udp", Transport::Udp));
        assert_eq!(far[0].settings.fabrics(), "");
        let near = devices_from_toml("[device.near]\ntransport = \"ethernet\"\n", "x").expect("valid");
        assert_eq!(
            (near[0].transport.as_str(), near[0].settings.transport),
            ("ethernet", Transport::Ethernet)
        );
        assert_eq!(devices[0].settings.linger, devices[1].settings.linger);
        // A caller that knows one device only gets the settings for all.
        assert_eq!(Settings::from_toml(text, "x").expect("valid").as_id, 3);
    }

    #[test]
    fn errors_name_file_line_and_remedy() {
        let error = |text: &str| devices_from_toml(text, "site.toml").expect_err("invalid").0;
        let unknown = error("[device.wan]\nsubnet = 9\nwindow = 3\n");
        assert!(unknown.starts_with("site.toml:3: window = 3: unknown field `window`"), "{unknown}");
        assert!(unknown.contains("`subnet`"), "the known keys are listed: {unknown}");
        let rate = error("[device]\nas_id = 1\n[device.wan]\ncredit = \"64Mbit/s\"\n");
        assert!(rate.starts_with("site.toml:4: credit") && rate.contains("is a rate"), "{rate}");
        let priority = error("[device.wan]\npriority = \"high\"\n");
        assert!(priority.starts_with("site.toml:2: priority"), "{priority}");
        assert!(error("[device.wan]\npriority = 101\n").contains("0 to 100"));
        assert!(error("[gadget]\n").contains("expected `device`"));
    }
}
