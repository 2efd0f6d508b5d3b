//! The examples: each as two processes, which check each other.

#[path = "../../isthmus-io/tests/support/hung.rs"]
mod hung;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A bound for a program that hangs; on a machine of its own each takes seconds. Seconds.
const LONG_ENOUGH: &str = "120";

fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("cargo's folders").join("examples");
    let program = folder.join(name);
    // Cargo builds them for `cargo test`, but not where single tests are named.
    assert!(program.exists(), "{name} is not built: run `cargo build --examples` before");
    program
}

fn run(name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("isthmus.toml");
    std::fs::write(&config, "[device]\ninterface = \"127.0.0.1\"\n").expect("written");
    let command = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", LONG_ENOUGH]).arg(program(name)).args(words);
        command.env("ISTHMUS_CONFIG", &config);
        command
    };
    let mut server = command(&[]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let uri = lines.next().expect("an address").expect("text");
    let client = hung::output(&mut command(&[&uri]));
    let (said, complained) =
        (String::from_utf8_lossy(&client.stdout), String::from_utf8_lossy(&client.stderr));
    assert!(client.status.success(), "{name}: {said}{complained}");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let waiting = hung::wait(&mut server, format_args!("{name}: the waiting side"));
    assert!(waiting.success(), "{name}: the waiting side: {rest:?}");
}

macro_rules! examples {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name));
        }
    )*};
}

examples! { pingpong stream rma_pipeline rpc keyvalue accept_reject beacon coupled }
