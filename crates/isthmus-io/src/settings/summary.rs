//! The setting `summary`: where an endpoint reports what it did.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use crate::log::{info_log, warn_log};

/// The place where a closing endpoint reports its work for each peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Summary {
    /// In the log.
    #[default]
    Log,
    /// To the standard error too.
    Stderr,
    /// At the end of a file too.
    File(PathBuf),
}

impl Summary {
    pub(crate) fn say(&self, lines: &[String]) {
        lines.iter().for_each(|line| info_log!("{line}"));
        let text = lines.iter().map(|line| format!("isthmus: {line}\n")).collect::<String>();
        let written = match self {
            _ if text.is_empty() => Ok(()),
            Self::Log => Ok(()),
            Self::Stderr => crate::log::print(&text),
            Self::File(path) => OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        if let Err(error) = written {
            warn_log!("the summary cannot be written: {error}; correct the setting summary");
        }
    }
}

impl FromStr for Summary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "log" => Ok(Self::Log),
            "stderr" => Ok(Self::Stderr),
            path if path.starts_with('/') => Ok(Self::File(path.into())),
            _ => Err("expected log, stderr or an absolute path".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Summary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_goes_to_the_end_of_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("summary");
        let summary: Summary = path.to_str().expect("a text").parse().expect("absolute");
        summary.say(&["a".to_owned(), "b".to_owned()]);
        summary.say(&[]);
        summary.say(&["c".to_owned()]);
        let text = std::fs::read_to_string(path).expect("it was written");
        assert_eq!(text, "isthmus: a\nisthmus: b\nisthmus: c\n");
        assert_eq!(("log".parse(), "stderr".parse()), (Ok(Summary::Log), Ok(Summary::Stderr)));
        assert!("summary.txt".parse::<Summary>().expect_err("relative").contains("absolute path"));
    }
}
