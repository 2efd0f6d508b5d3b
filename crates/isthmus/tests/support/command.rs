//! The command under test, without what the user has configured.

use std::path::Path;
use std::process::{Command, Stdio};

/// `isthmus` in this folder, on loopback.
pub(crate) fn isthmus(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.current_dir(folder).env("FI_ISTHMUS_INTERFACE", "127.0.0.1").stdin(Stdio::null());
    for name in ["ISTHMUS_CONFIG", "ISTHMUS_SITES", "ISTHMUS_LOG"] {
        command.env_remove(name);
    }
    command
}
