//! The settings `tls` and `tls_*`: whether lanes use mutual TLS, and with which certificates.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use isthmus_trust::{Files, Role, Trust, TrustError};
use isthmus_wire::AsId;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::Settings;

/// Whether direct lanes use mutual TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// They do not.
    #[default]
    Off,
    /// All do; plain ones are refused.
    Required,
}

impl FromStr for TlsMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "required" => Ok(Self::Required),
            _ => Err("expected off or required".to_owned()),
        }
    }
}

/// Absolute paths of files. Relative ones would depend on the program's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFiles(pub Vec<PathBuf>);

impl KeyFiles {
    fn from_paths(paths: Vec<PathBuf>) -> Result<Self, String> {
        match paths.iter().find(|path| !path.is_absolute()) {
            Some(path) => Err(format!("expected an absolute path, not `{}`", path.display())),
            None => Ok(Self(paths)),
        }
    }
}

impl FromStr for KeyFiles {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_paths(
            text.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
        )
    }
}

impl<'de> Deserialize<'de> for TlsMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for KeyFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a path, or a list of them")]
        enum Form {
            Text(String),
            List(Vec<PathBuf>),
        }
        let files = match Form::deserialize(deserializer)? {
            Form::Text(text) => text.parse(),
            Form::List(paths) => Self::from_paths(paths),
        };
        files.map_err(de::Error::custom)
    }
}

impl fmt::Display for KeyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|path| path.display().to_string()).collect();
        f.write_str(&names.join(","))
    }
}

impl Settings {
    /// The TLS configuration for both roles, with these ALPN protocols; `None` if lanes are plain.
    ///
    /// # Errors
    /// [`TrustError`], which names the setting or the file.
    pub(crate) fn trust(&self, protocols: &[&[u8]]) -> Result<Option<Trust>, TrustError> {
        if self.tls == TlsMode::Off {
            return Ok(None);
        }
        let wrong = |place: &str, message: &str| TrustError {
            place: place.to_owned(),
            message: message.to_owned(),
            is_refused: false,
        };
        if !self.fabrics().is_empty() {
            return Err(wrong(
                "fabric",
                "lanes over a fabric are not encrypted; set it to off, or tls to off",
            ));
        }
        let one = |name: &str, files: &KeyFiles| match &files.0[..] {
            [file] => Ok(file.clone()),
            [] => Err(wrong(name, "tls = required needs this file; `isthmus router keygen` makes it")),
            _ => Err(wrong(name, "expected one file")),
        };
        if self.tls_authorities.0.is_empty() {
            let message = "tls = required needs the authorities of the AS's to be trusted, one's own among them \
                           (the asN.pem of `isthmus router keygen`)";
            return Err(wrong("tls_authorities", message));
        }
        let files = Files {
            certificate: one("tls_certificate", &self.tls_certificate)?,
            key: one("tls_key", &self.tls_key)?,
            authorities: self.tls_authorities.0.clone(),
            denied: None,
        };
        Trust::load_as(Role::Host, &files, AsId(self.as_id), &files.known()?, protocols).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_encrypted_lanes_is_named() {
        let with = |change: &dyn Fn(&mut Settings)| {
            let mut settings = Settings { tls: TlsMode::Required, ..Settings::default() };
            change(&mut settings);
            settings.trust(&[b"x"]).err().map_or_else(String::new, |error| error.to_string())
        };
        let file = |name: &str| name.parse::<KeyFiles>().expect("absolute");
        assert!(with(&|_| {}).starts_with("tls_authorities: tls = required needs"));
        let no_key = with(&|settings| {
            settings.tls_authorities = file("/a");
            settings.tls_certificate = file("/c");
        });
        assert!(no_key.starts_with("tls_key: "), "{no_key}");
        let absent = with(&|settings| {
            settings.tls_authorities = file("/no/such.pem");
            (settings.tls_certificate, settings.tls_key) = (file("/c"), file("/k"));
        });
        assert!(absent.starts_with("/no/such.pem: "), "{absent}");
        assert!(with(&|settings| settings.fabric = "shm".to_owned()).starts_with("fabric: "));
        assert!(with(&|settings| settings.tls = TlsMode::Off).is_empty());
    }

    #[test]
    fn key_files_are_absolute_paths() {
        let read = |text: &str| Settings::from_toml(text, "x").map(|settings| settings.tls_authorities);
        let two = KeyFiles(vec!["/a.pem".into(), "/b.pem".into()]);
        assert_eq!(read("[device]\ntls_authorities = [\"/a.pem\", \"/b.pem\"]\n"), Ok(two.clone()));
        assert_eq!(read("[device]\ntls_authorities = \"/a.pem, /b.pem\"\n"), Ok(two.clone()));
        assert_eq!(two.to_string(), "/a.pem,/b.pem");
        let error = read("[device]\ntls_authorities = \"keys/a.pem\"\n").expect_err("relative").0;
        assert!(error.contains("absolute path") && error.contains("keys/a.pem"), "{error}");
    }
}
