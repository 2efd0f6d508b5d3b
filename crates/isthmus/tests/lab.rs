//! The command as users and MPI launchers run it. Skips, saying so, where this machine
//! allows no lab.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

/// A copy of the command that any user may run; its folder goes away with it.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("permissions");
        // By another process: a child that another test's thread forks meanwhile would hold
        // our descriptor open for writing, and the copy could not be run (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_isthmus")).arg(directory.path()).status();
        assert!(copied.expect("cp").success());
        Self(directory)
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("isthmus")
    }

    fn command(&self, user: Option<u32>, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(words).current_dir("/").stdin(Stdio::null()).env_remove("ISTHMUS_LAB");
        if let Some(user) = user {
            command.uid(user).gid(user).env("HOME", "/").env_remove("XDG_RUNTIME_DIR");
        }
        command
    }

    fn lab(&self, user: Option<u32>, words: &[&str]) -> Output {
        self.command(user, &[&["lab"], words].concat()).output().expect("the command runs")
    }

    fn can(&self, user: Option<u32>) -> bool {
        let check = self.lab(user, &["check"]);
        if !check.status.success() {
            eprintln!("skipped: {}", String::from_utf8_lossy(&check.stdout));
        }
        check.status.success()
    }
}

/// As ourselves, and where we are root also as somebody without any rights.
fn users() -> Vec<Option<u32>> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if is_root { vec![None, Some(NOBODY)] } else { vec![None] }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[test]
fn a_remote_shell_reaches_each_site_with_and_without_root() {
    let installed = Installed::new();
    for user in users().into_iter().filter(|user| installed.can(*user)) {
        let script = "lab-rsh -x -n -l someone a 'hostname; echo $ISTHMUS_LAB_SITE' $HOME && lab-rsh b hostname && hostname";
        let output = installed.lab(user, &["run", "--mgmt", "--timeout", "60", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{user:?}: {}", err(&output));
        let text = out(&output);
        let lines: Vec<_> = text.lines().map(|l| l.split(' ').next().unwrap_or("")).collect();
        assert_eq!(lines, ["a", "a", "b", "hub"], "{user:?}");
        assert!(err(&output).contains("a -> b"), "the report: {}", err(&output));
    }
}

/// Where mounts are private a site's name would show in the lab's own mount namespace only.
#[test]
fn sites_are_reached_where_mounts_are_private() {
    let installed = Installed::new();
    if users().len() == 1 || !installed.can(None) {
        return eprintln!("skipped: not root, or no lab");
    }
    let script = "mount --make-rprivate / && { umount -l /run/netns 2>/dev/null; exec \"$@\"; }";
    let program = installed.program();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&program).args(["lab", "run", "--"]);
    let ran = command.arg(&program).args(["lab", "exec", "b", "--", "hostname"]).output().expect("it runs");
    assert_eq!(out(&ran), "b", "{}", err(&ran));
}

#[test]
fn sites_hear_each_other_with_and_without_root() {
    let installed = Installed::new();
    for user in users().into_iter().filter(|user| installed.can(*user)) {
        let report = installed.0.path().join(format!("report-{}", user.unwrap_or(0)));
        std::fs::write(&report, "").expect("a file");
        std::os::unix::fs::chown(&report, user, user).expect("ownership");
        // The shell's own /dev/tcp needs bash, which every Debian has.
        let listen = "exec 3<>/dev/tcp/10.200.0.2/9 || exit 5";
        let knock = format!("bash -c '{listen}' 2>/dev/null; test $? = 1 -o $? = 5");
        let path = report.display().to_string();
        let words = ["run", "--rtt", "2ms", "--timeout", "60", "--report", &path, "--in", "a", &knock];
        let output = installed.lab(user, &words);
        assert_eq!(output.status.code(), Some(0), "{user:?}: {}", err(&output));
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
        assert!(report["opened_s"].as_f64() > Some(1.7e9), "{user:?}: {report}");
        // The knock is refused: a packet there and its refusal back.
        for direction in [0, 1] {
            let packets = &report["links"][0]["directions"][direction]["delivered_packets"];
            assert!(packets.as_u64() > Some(0), "{user:?}: {report}");
        }
    }
}

/// Programs overlook an interface that is up and not running, such as those that use libfabric's `tcp`. The kernel gives
/// it its IPv6 address when it runs.
#[test]
fn interfaces_are_running_when_a_command_starts() {
    if !Path::new("/proc/net/if_inet6").exists() {
        return eprintln!("skipped: a kernel without IPv6");
    }
    let installed = Installed::new();
    for user in users().into_iter().filter(|user| installed.can(*user)) {
        // The kernel looks once a second: a single lab may be lucky.
        for _ in 0..4 {
            let words = ["run", "-q", "--timeout", "60", "--in", "a", "cat /proc/net/if_inet6"];
            let output = installed.lab(user, &words);
            assert!(out(&output).contains("wan0"), "{user:?}: {} {}", out(&output), err(&output));
        }
    }
}

#[test]
fn the_exit_status_is_the_commands() {
    let installed = Installed::new();
    if !installed.can(None) {
        return;
    }
    let code = |words: &[&str]| installed.lab(None, words).status.code();
    assert_eq!(code(&["run", "-q", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["run", "-q", "--", "sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(code(&["run", "-q", "--in", "a", "true", "--in", "b", "exit 4"]), Some(4));
    assert_eq!(code(&["run", "-q", "--timeout", "0.3", "--in", "a", "sleep 100"]), Some(3));
    assert_eq!(
        code(&["run", "-q", "--in", "a", "sleep 100", "--", "true"]),
        Some(0),
        "the lab ends with CMD"
    );
}

#[test]
fn bad_usage_is_told_before_anything_is_made() {
    let installed = Installed::new();
    let refused = |words: &[&str]| {
        let output = installed.lab(None, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", err(&output));
        err(&output)
    };
    assert!(refused(&["run", "--rate", "24ms", "--", "true"]).contains("expected a rate, such as \"1Gbit\""));
    assert!(refused(&["run", "--in", "c", "true"]).contains("the sites are a, b"));
    assert!(refused(&["run", "--rtt", "9s", "--", "true"]).contains("the most is 250ms"));
    assert!(refused(&["run"]).contains("required"));
    assert!(refused(&["rsh", "a"]).contains("expected a site and a command"));
    let file = installed.0.path().join("lab.toml");
    std::fs::write(&file, "[[site]]\nname = \"a\"\ncolour = \"red\"\n").expect("a file");
    let said = refused(&["run", "--config", &file.display().to_string(), "--", "true"]);
    assert!(said.contains("lab.toml:3: unknown field `colour`"), "{said}");
}

#[test]
fn a_lab_that_is_told_to_end_or_killed_leaves_nothing() {
    let installed = Installed::new();
    if !installed.can(None) {
        return;
    }
    for signal in ["TERM", "INT", "KILL"] {
        let mut lab = installed.command(None, &["lab", "run", "-q", "--in", "a", "sleep 1000"]);
        let mut lab = lab.spawn().expect("a lab");
        let id = lab.id().to_string();
        let state = Path::new("/run/isthmus-lab").join(&id);
        wait_until("the lab has started", || is_in_use(&id));
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {id}")]).status();
        assert!(sent.expect("a shell").success());
        lab.wait().expect("ended");
        // A killed one is cleaned up by the next.
        assert!(installed.lab(None, &["run", "-q", "--", "true"]).status.success());
        wait_until("nothing is left", || !state.exists() && !names_left(&id) && !is_in_use(&id));
    }
}

/// Whether a process lives in site a of lab `id`.
fn is_in_use(id: &str) -> bool {
    let inode = |path: String| std::fs::metadata(path).ok().map(|m| std::os::unix::fs::MetadataExt::ino(&m));
    let Some(site) = inode(format!("/run/netns/isthmus-{id}-a")) else { return false };
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.map(|p| format!("{}/ns/net", p.path().display())).any(|path| inode(path) == Some(site))
}

fn names_left(id: &str) -> bool {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).any(|n| n.starts_with(&format!("isthmus-{id}-")))
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}
