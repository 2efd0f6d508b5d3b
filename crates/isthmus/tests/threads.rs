//! A host that starts no more threads: RLIMIT_NPROC (`ulimit -u`), and likewise a container's limit on processes.
//!
//! The limit does not hold for root, so the commands run as a user whom nobody else is. Only root can do that.

#[path = "support/running.rs"]
mod running;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use running::Running;

/// Users of one test each: the limit counts all threads of a user.
const USERS: [&str; 2] = ["61713", "61714"];
/// Most threads that a command gets. Count. With so many each of them does its work.
const MOST: u32 = 7;

/// `isthmus` as this user, with at most so many threads. It is ended after so many seconds; 0: never.
fn limited(user: &str, folder: &Path, threads: u32, seconds: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "prlimit"]);
    // timeout(1) is a process too.
    command.arg(format!("--nproc={}", threads + u32::from(seconds > 0)));
    if seconds > 0 {
        command.args(["timeout", &seconds.to_string()]);
    }
    command.arg("./isthmus").current_dir(folder).stdin(Stdio::null()).env("HOME", folder);
    command.env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
    for name in ["ISTHMUS_CONFIG", "ISTHMUS_SITES", "ISTHMUS_LOG"] {
        command.env_remove(name);
    }
    command
}

fn text(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// A folder of this user with the command, its configurations, and a file in the export. `None` if this is not root.
fn place(user: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_isthmus"), at("isthmus")).expect("copied");
    fs::create_dir(at("export")).expect("made");
    fs::write(at("export/file"), "content").expect("written");
    let ports = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("free"));
    let [service, campus, wan] = ports.map(|port| port.local_addr().expect("bound").port());
    fs::write(at("port"), service.to_string()).expect("written");
    let serve = format!("listen = \"127.0.0.1:{service}\"\nplain = true\n[export.data]\npath = \"export\"\n");
    fs::write(at("serve.toml"), serve).expect("written");
    let subnet = |id: u32, name: &str| {
        format!("[[subnet]]\nid = {id}\nname = \"{name}\"\nrate = \"1Gbit\"\nlatency = \"10us\"\n")
    };
    let map = format!(
        "[as]\nid = 1\n{}{}[[router]]\nname = \"r\"\njoins = [\"one\", \"two\"]\n\
         endpoints = {{ one = \"127.0.0.1:{campus}\", two = \"127.0.0.1:{wan}\" }}\n",
        subnet(1, "one"),
        subnet(2, "two")
    );
    fs::write(at("map.toml"), map).expect("written");
    let plain = |name: &str| format!("[subnet.{name}]\nplain = true\ntargets = [\"127.0.0.0/8\"]\n");
    let router = format!("name = \"r\"\nmap = \"map.toml\"\n{}{}", plain("one"), plain("two"));
    fs::write(at("router.toml"), router).expect("written");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let owner = Command::new("chown").args(["-R", user]).arg(folder.path()).output().expect("chown(1)");
    if !owner.status.success() {
        eprintln!("skipped: only root can run commands as another user");
        return None;
    }
    Some(folder)
}

/// Every command that needs more threads than there are says so, with the limit to raise, and ends with a status.
#[test]
fn commands_without_threads_name_the_limit() {
    let Some(folder) = place(USERS[0]) else { return };
    let service = fs::read_to_string(folder.path().join("port")).expect("written");
    let source = format!("127.0.0.1:{service}:data/file");
    let commands: [&[&str]; 4] = [
        &["serve", "--config", "serve.toml"],
        &["router", "run", "--config", "router.toml"],
        &["cp", "--plain", &source, "here"],
        &["bench", "serve"],
    ];
    for words in commands {
        let mut refused = 0;
        for threads in 1..=MOST {
            // Those that have what they need serve until their time is over, or find that nobody does.
            let seconds = if words[0] == "cp" { 20 } else { 1 };
            let done =
                limited(USERS[0], folder.path(), threads, seconds).args(words).output().expect("util-linux");
            let said = text(&done);
            assert!(!said.contains("panicked") && !said.contains("fork system call"), "{threads}: {said}");
            if said.contains("no thread") {
                refused += 1;
                assert!(said.contains("ulimit -u"), "{threads}: {said}");
                assert_eq!(done.status.code(), Some(3), "{words:?} {threads}: {said}");
            } else if done.status.code() == Some(4) || words[0] != "cp" {
                // It has all its threads.
                break;
            }
        }
        // A router has one thread, and so needs none.
        assert!(refused > 0 || words[0] == "router", "{words:?}");
    }
}

/// A service that can start no thread for a session refuses it for now, and goes on. The client says whose limit it is.
#[test]
fn a_service_without_threads_refuses_sessions_for_now() {
    let Some(folder) = place(USERS[1]) else { return };
    let port = fs::read_to_string(folder.path().join("port")).expect("written");
    let (mut refused, mut copied) = (0, false);
    for threads in 1..=2 * MOST {
        let mut serve = limited(USERS[1], folder.path(), threads, 0);
        serve.args(["serve", "--config", "serve.toml"]).stderr(Stdio::piped());
        let mut child = Running(serve.spawn().expect("util-linux"));
        let (mut lines, mut said) = (BufReader::new(child.0.stderr.take().expect("piped")), String::new());
        while !said.contains("serving at") && lines.read_line(&mut said).expect("readable") > 0 {}
        if !said.contains("serving at") {
            continue;
        }
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let mut copy = Command::new(env!("CARGO_BIN_EXE_isthmus"));
        copy.args(["cp", "--plain", &format!("127.0.0.1:{port}:data/file"), "here"])
            .current_dir(folder.path());
        copy.env("FI_ISTHMUS_INTERFACE", "127.0.0.1")
            .env_remove("ISTHMUS_CONFIG")
            .env_remove("ISTHMUS_SITES");
        let done = copy.stdin(Stdio::null()).output().expect("it runs");
        assert!(child.0.try_wait().expect("ours").is_none(), "the service goes on: {}", text(&done));
        if done.status.success() {
            copied = true;
            break;
        }
        refused += 1;
        let told = text(&done);
        assert_eq!(done.status.code(), Some(4), "{threads}: {told}");
        assert!(told.contains("ulimit -u"), "{threads}: {told}");
        assert!(
            told.contains("the service refuses") || told.contains("on the other side"),
            "{threads}: {told}"
        );
    }
    assert!(refused > 0 && copied, "{refused} {copied}");
}
