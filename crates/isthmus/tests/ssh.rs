//! `isthmus cp` and `isthmus doctor` by ssh, with a real sshd: directly, where only ssh gets through, killed, and where
//! isthmus is missing.

#[path = "support/running.rs"]
mod running;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use running::Running;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A host that ssh reaches, with a home of its own; it is this one.
struct Host {
    folder: tempfile::TempDir,
    /// ssh and its options, as --ssh takes them.
    ssh: String,
    _sshd: Option<Running>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn good(command: &mut Command) -> String {
    let done = command.output().expect("it starts");
    assert!(done.status.success(), "{command:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

/// sshd; it wants to be called by its whole path.
fn sshd() -> Option<PathBuf> {
    let found =
        ["/usr/sbin/sshd", "/usr/bin/sshd"].map(PathBuf::from).into_iter().find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: sshd is missing; install openssh-server (tools/bootstrap.sh base)");
    }
    found
}

/// As bytes that differ everywhere.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len / 8).flat_map(|_| word().to_le_bytes()).collect()
}

impl Host {
    /// Keys and configurations for both ends. `network`: it can be reached by more than ssh's stream.
    fn new(network: bool) -> Option<Self> {
        let sshd = sshd()?;
        let root = rustix::process::geteuid().is_root();
        if !network && !root {
            eprintln!("skipped: a network of its own for sshd takes root");
            return None;
        }
        if root {
            // Where sshd as root keeps what speaks to strangers.
            fs::create_dir_all("/run/sshd").expect("root may");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(at("home")).expect("made");
        for key in ["host", "user"] {
            good(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
        }
        fs::copy(at("user.pub"), at("authorized")).expect("copied");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPermitRootLogin yes\nSetEnv HOME={} ISTHMUS_CONFIG={}\n",
            at("host"),
            at("authorized"),
            at("home"),
            at("isthmus.toml")
        );
        fs::write(at("sshd_config"), server).expect("written");
        fs::write(at("isthmus.toml"), "").expect("written");
        let way = if network { String::new() } else { format!("ProxyCommand {}\n", at("alone")) };
        let client = format!(
            "Port {port}\nIdentityFile {}\nIdentitiesOnly yes\nStrictHostKeyChecking no\n\
             UserKnownHostsFile /dev/null\nLogLevel ERROR\nBatchMode yes\n{way}",
            at("user")
        );
        fs::write(at("ssh_config"), client).expect("written");
        let ssh = format!("ssh -F {}", at("ssh_config"));
        let mut host = Self { folder, ssh, _sshd: None };
        if !network {
            let config = host.path("sshd_config");
            let serve = format!("ip link set lo up && exec {} -i -f {}", sshd.display(), config.display());
            host.script("alone", &format!("exec unshare -n sh -c '{serve}'"));
        } else {
            let mut command = Command::new(sshd);
            command.args(["-D", "-e", "-f"]).arg(host.path("sshd_config")).stderr(Stdio::null());
            host._sshd = Some(Running(command.spawn().expect("sshd starts")));
            host.await_true("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        }
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program that does these lines of a shell.
    fn script(&self, name: &str, lines: &str) -> String {
        fs::write(self.path(name), format!("#!/bin/sh\n{lines}\n")).expect("written");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("ours");
        self.path(name).display().to_string()
    }

    /// Has the server start what `options` force for the user's key.
    fn force(&self, options: &str) {
        let key = fs::read_to_string(self.path("user.pub")).expect("there");
        fs::write(self.path("authorized"), format!("{options} {key}")).expect("written");
    }

    /// Copies a file to the other host, which must end with this status. Returns what is said.
    fn put_x(&self, words: &[&str], status: i32) -> String {
        fs::write(self.path("x"), "x").expect("written");
        let done = self.cp(&[words, &["x", "there:x"]].concat()).output().expect("it starts");
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(status), "{said}");
        said
    }

    /// An isthmus that takes itself to have been reached at this port of 127.0.0.1, which is another host's here.
    fn elsewhere(&self, port: u16) -> String {
        let lines = "export SSH_CONNECTION='127.0.0.1 9 127.0.0.1 22'";
        let isthmus = env!("CARGO_BIN_EXE_isthmus");
        self.script("elsewhere", &format!("{lines} FI_ISTHMUS_PORT={port}\nexec {isthmus} \"$@\""))
    }

    fn login() -> String {
        let user = good(Command::new("id").arg("-un"));
        format!("{}@127.0.0.1", user.trim())
    }

    fn isthmus(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
        command.arg(name).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("ISTHMUS_SSH", &self.ssh).env("ISTHMUS_CONFIG", self.path("isthmus.toml"));
        for name in ["ISTHMUS_SITES", "ISTHMUS_LOG", "FI_ISTHMUS_INTERFACE"] {
            command.env_remove(name);
        }
        command
    }

    /// Of these words "there:" stands for the other host.
    fn cp(&self, words: &[&str]) -> Command {
        self.cp_by(env!("CARGO_BIN_EXE_isthmus"), words)
    }

    /// The same with another isthmus there.
    fn cp_by(&self, remote: &str, words: &[&str]) -> Command {
        let mut command = self.isthmus("cp");
        command.args(["--remote-isthmus", remote]);
        for word in words {
            command.arg(word.replace("there:", &format!("{}:", Self::login())));
        }
        command
    }

    /// Exit status of a doctor that visits the other host, and what it found of that: subject, verdict, text.
    fn doctor(&self, remote: &str) -> (Option<i32>, Vec<[String; 3]>) {
        let mut command = self.isthmus("doctor");
        // What it says of the provider is not of interest here.
        std::fs::write(self.path("libisthmus-fi.so"), "").expect("written");
        command.env("FI_PROVIDER_PATH", self.folder.path()).env_remove("FI_PROVIDER");
        command.env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
        command.args(["--json", "--peer", &Self::login(), "--remote-isthmus", remote]);
        let done = command.output().expect("it starts");
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one JSON object");
        let of = |finding: &serde_json::Value, name: &str| finding[name].as_str().expect("text").to_owned();
        let list = report["findings"].as_array().expect("a list");
        let found: Vec<_> =
            list.iter().map(|finding| ["subject", "verdict", "text"].map(|name| of(finding, name))).collect();
        let first = found.iter().position(|[subject, ..]| subject == "ssh").expect("it was there");
        (done.status.code(), found[first..].to_vec())
    }

    fn await_true(&self, what: &str, mut is_true: impl FnMut() -> bool) {
        let until = Instant::now() + LIMIT;
        while !is_true() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A process of this test, by its arguments (each ends in NUL) and its environment.
    fn process(is_it: impl Fn(&str, &str) -> bool) -> Option<i32> {
        fs::read_dir("/proc").expect("Linux").flatten().find_map(|entry| {
            let number: i32 = entry.file_name().to_str()?.parse().ok()?;
            let read = |file: &str| fs::read(entry.path().join(file)).ok().map(|bytes| text(&bytes));
            is_it(&read("cmdline")?, &read("environ")?).then_some(number)
        })
    }

    /// The isthmus that ssh has started for this test.
    fn other_side(&self) -> Option<i32> {
        let home = format!("HOME={}", self.path("home").display());
        let of_isthmus = |words: &str| words.starts_with(env!("CARGO_BIN_EXE_isthmus"));
        Self::process(|words, environ| {
            of_isthmus(words) && words.contains("ssh-serve") && environ.contains(&home)
        })
    }

    /// The ssh that the copy has started.
    fn own_ssh(&self) -> Option<i32> {
        let start = format!("{}\0", self.ssh.replace(' ', "\0"));
        Self::process(|words, _| words.starts_with(&start))
    }

    /// A copy there that takes seconds, once some of it has arrived.
    fn under_way(&self, bytes: &[u8]) -> Running {
        fs::write(self.path("big"), bytes).expect("written");
        let mut cp = self.cp(&["--limit-rate", "80Mbit", "big", "there:big"]);
        let running = Running(cp.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"));
        let home = self.path("home");
        self.await_true("a part is there", || {
            let parts = fs::read_dir(&home).expect("there").flatten();
            parts.filter_map(|part| part.metadata().ok()).map(|part| part.len()).sum::<u64>() > 4 << 20
        });
        // Blocks are in the journal by then, and most are still to come.
        std::thread::sleep(Duration::from_millis(700));
        running
    }

    fn ended(&self, running: &mut Running) -> i32 {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = running.0.try_wait().expect("a child") {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < until, "it never ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn there_and_back(host: &Host, remote: &str, way: &str) {
    let bytes = noise(3 * MIB);
    fs::write(host.path("one"), &bytes).expect("written");
    fs::create_dir_all(host.path("run/deep")).expect("made");
    fs::write(host.path("run/deep/two"), "two").expect("written");
    let said = |done: &Output| text(&done.stderr);

    let done = host.cp_by(remote, &["one", "there:"]).output().expect("it starts");
    assert!(done.status.success() && said(&done).contains(way), "{}", said(&done));
    assert!(fs::read(host.path("home/one")).expect("it is at home") == bytes);
    let done = host.cp_by(remote, &["-r", "run", "there:new/"]).output().expect("it starts");
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(fs::read(host.path("home/new/run/deep/two")).expect("there"), b"two");

    let whole = host.path("home/one").display().to_string();
    let done = host.cp_by(remote, &[&format!("there:{whole}"), "back"]).output().expect("it starts");
    assert!(done.status.success() && said(&done).contains(way), "{}", said(&done));
    assert!(fs::read(host.path("back")).expect("it is back") == bytes);
    let done = host.cp_by(remote, &["there:nothing", "back"]).output().expect("it starts");
    assert!(!done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("home/nothing"), "{}", said(&done));
    let lines = said(&done).lines().filter(|line| line.contains("home/nothing")).count();
    assert_eq!(lines, 1, "the other side's log does not say it again: {}", said(&done));
    host.await_true("the other side ends with the copy", || host.other_side().is_none());
}

#[test]
fn where_a_connection_gets_through_data_goes_directly() {
    let Some(host) = Host::new(true) else { return };
    there_and_back(&host, env!("CARGO_BIN_EXE_isthmus"), "data goes directly to 127.0.0.1:");
}

/// As long as each side says one line, and this side's comes before isthmus runs there, a copy spends no round trip on
/// ssh's stream beside the login.
#[test]
fn what_ssh_carries_of_a_direct_copy_goes_with_the_login() {
    let Some(host) = Host::new(true) else { return };
    let at = |name: &str| host.path(name).display().to_string();
    let lines = format!("tee {} | {} \"$@\" | tee {}", at("sent"), host.ssh, at("heard"));
    let recorder = host.script("recorder", &lines);
    fs::write(host.path("x"), "x").expect("written");
    let done = host.cp(&["--ssh", &recorder, "x", "there:x"]).output().expect("it starts");
    let said = text(&done.stderr);
    assert!(done.status.success() && said.contains("data goes directly"), "{said}");
    for name in ["sent", "heard"] {
        let carried = fs::read_to_string(host.path(name)).expect("there");
        // The shell's own lines wait for nothing.
        let lines = carried.lines().filter(|line| !line.starts_with("isthmus-shell ")).count();
        assert!(carried.ends_with('\n') && lines == 1, "{name}: {carried}");
    }
    host.await_true("the other side ends with the copy", || host.other_side().is_none());
}

/// Release 0.2.0 does not know the variable. A request that is too long for it goes the same way.
#[test]
fn a_request_is_also_made_after_the_first_line() {
    let Some(host) = Host::new(true) else { return };
    let isthmus = env!("CARGO_BIN_EXE_isthmus");
    let old = host.script("old", &format!("unset ISTHMUS_SSH_REQUEST\nexec {isthmus} \"$@\""));
    there_and_back(&host, &old, "data goes directly to 127.0.0.1:");

    let names: Vec<String> = (0..200).map(|number| format!("{}{number}", "n".repeat(200))).collect();
    for name in &names {
        fs::write(host.path("home").join(name), name).expect("written");
    }
    let sources: Vec<String> = names.iter().map(|name| format!("there:{name}")).collect();
    let words: Vec<&str> = sources.iter().map(String::as_str).chain(["."]).collect();
    let done = host.cp(&words).output().expect("it starts");
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(names.iter().all(|name| fs::read_to_string(host.path(name)).is_ok_and(|copy| copy == *name)));
}

/// Release 0.2.0 takes the early request for its own if the server's configuration forces the command. A start file of
/// the login may swallow the request.
#[test]
fn a_request_is_neither_made_twice_nor_lost() {
    let Some(host) = Host::new(true) else { return };
    let isthmus = env!("CARGO_BIN_EXE_isthmus");
    let old = host.script("old", &format!("unset SSH_ORIGINAL_COMMAND\nexec {isthmus} ssh-serve"));
    host.force(&format!("command=\"{old}\""));
    // Only release 0.2.0 itself waits for the probe.
    there_and_back(&host, "/of/no/meaning", "data goes ");

    let swallows = host.script("swallows", "read -r line\neval \"$SSH_ORIGINAL_COMMAND\"");
    host.force(&format!("command=\"{swallows}\""));
    there_and_back(&host, isthmus, "data goes directly to 127.0.0.1:");
}

#[test]
fn a_login_shell_may_print_what_it_likes() {
    let Some(host) = Host::new(true) else { return };
    let lines = "echo WELCOME; echo by order >&2; printf 'no end of line'\neval \"$SSH_ORIGINAL_COMMAND\"";
    let greets = host.script("greets", lines);
    host.force(&format!("command=\"{greets}\""));
    there_and_back(&host, env!("CARGO_BIN_EXE_isthmus"), "data goes directly to 127.0.0.1:");
    let (status, found) = host.doctor(env!("CARGO_BIN_EXE_isthmus"));
    assert_eq!(status, Some(0), "{found:?}");
}

#[test]
fn a_key_may_be_for_copies_only() {
    let Some(host) = Host::new(true) else { return };
    host.force(&format!("restrict,command=\"{} ssh-serve\"", env!("CARGO_BIN_EXE_isthmus")));
    there_and_back(&host, "/of/no/meaning", "data goes directly to 127.0.0.1:");
}

#[test]
fn where_nothing_but_ssh_gets_through_data_goes_by_ssh() {
    let Some(host) = Host::new(false) else { return };
    there_and_back(&host, env!("CARGO_BIN_EXE_isthmus"), "the other host cannot listen at the address");
    let elsewhere = host.elsewhere(0);
    there_and_back(&host, &elsewhere, "cannot be reached directly (Connection refused");
    fs::write(host.path("x"), "x").expect("written");
    for remote in [env!("CARGO_BIN_EXE_isthmus"), &elsewhere] {
        let done = host.cp_by(remote, &["--via", "direct", "x", "there:x"]).output().expect("it starts");
        assert_eq!(done.status.code(), Some(4), "{}", text(&done.stderr));
        assert!(!host.path("home/x").exists());
    }
}

#[test]
fn whichever_side_is_killed_the_same_command_continues() {
    for network in [true, false] {
        let Some(host) = Host::new(network) else { continue };
        let bytes = noise(24 * MIB);
        let mut running = host.under_way(&bytes);
        running.0.kill().expect("it runs");
        running.0.wait().expect("it ends");
        host.await_true("the other side ends as well", || host.other_side().is_none());

        for victim in [Host::other_side as fn(&Host) -> Option<i32>, Host::own_ssh] {
            // What is left of that would look as if the next had begun.
            fs::remove_dir_all(host.path("home"))
                .and_then(|()| fs::create_dir(host.path("home")))
                .expect("ours");
            let mut running = host.under_way(&bytes);
            let victim = rustix::process::Pid::from_raw(victim(&host).expect("it runs")).expect("a number");
            rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("ours");
            assert_eq!(host.ended(&mut running), 4, "it says that the other side is lost");
            let mut said = String::new();
            std::io::Read::read_to_string(&mut running.0.stderr.take().expect("a pipe"), &mut said)
                .expect("text");
            assert!(said.contains("the same command continues"), "{said}");
            host.await_true("the other side ends as well", || host.other_side().is_none());
        }

        let done = host.cp(&["big", "there:big"]).output().expect("it starts");
        let said = text(&done.stderr);
        assert!(done.status.success() && said.contains("going on from there"), "{said}");
        assert!(fs::read(host.path("home/big")).expect("there") == bytes);
    }
}

#[test]
fn where_isthmus_is_missing_one_line_says_what_to_do() {
    let Some(host) = Host::new(true) else { return };
    fs::write(host.path("x"), "x").expect("written");
    let missing = "/nowhere/isthmus";
    let mut cp = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    cp.args(["cp", "--remote-isthmus", missing]).arg(host.path("x")).arg(format!("{}:x", Host::login()));
    let done = cp.env("ISTHMUS_SSH", &host.ssh).output().expect("it starts");
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{said}");
    let remedy = said.lines().find(|line| line.contains("is not installed")).expect("it says so");
    let wheel = concat!("pip install --user isthmus-", env!("CARGO_PKG_VERSION"), "-*.whl");
    assert!(remedy.contains(wheel) && remedy.contains("--remote-isthmus"), "{remedy}");
}

#[test]
fn where_ssh_does_not_get_in_its_own_words_are_shown() {
    let Some(host) = Host::new(true) else { return };
    fs::write(host.path("authorized"), "").expect("written");
    let said = host.put_x(&[], 4);
    assert!(said.contains("Permission denied") && said.contains("ssh does not get to"), "{said}");
}

#[test]
fn an_ssh_that_is_killed_before_it_is_in_is_told_as_lost() {
    let Some(host) = Host::new(true) else { return };
    let killed = host.script("killed", "kill -9 $$");
    let said = host.put_x(&["--ssh", &killed], 4);
    assert!(said.contains("signal 9") && said.contains("the same command continues"), "{said}");
}

/// What nologin(8) prints goes to standard output.
#[test]
fn what_an_account_without_a_shell_says_is_shown() {
    let Some(host) = Host::new(true) else { return };
    host.force("command=\"echo This account is not available.; exit 1\"");
    let said = host.put_x(&[], 5);
    assert!(said.contains("status 1") && said.contains("This account is not available."), "{said}");
}

/// Verdicts of what was found, by subject.
fn verdicts(found: &[[String; 3]]) -> Vec<(&str, &str)> {
    found.iter().map(|[subject, verdict, _]| (&**subject, &**verdict)).collect()
}

#[test]
fn a_doctor_tells_what_passes_in_both_directions() {
    let Some(host) = Host::new(true) else { return };
    let (status, found) = host.doctor(env!("CARGO_BIN_EXE_isthmus"));
    let subjects = ["ssh", "tcp there", "udp there", "tcp back", "udp back", "isthmus cp", "MPI jobs"];
    assert_eq!(verdicts(&found), subjects.map(|subject| (subject, "good")), "{found:?}");
    assert_eq!(status, Some(0));
    assert!(found[0][2].contains(env!("CARGO_PKG_VERSION")), "{found:?}");
    assert!(found[2][2].contains("packets of 9000 bytes"), "{found:?}");
    assert!(found[5][2].contains("would go directly to 127.0.0.1:"), "{found:?}");
    host.await_true("the other side ends with the doctor", || host.other_side().is_none());
}

#[test]
fn where_nothing_but_ssh_gets_through_a_doctor_says_so() {
    let Some(host) = Host::new(false) else { return };
    let (status, found) = host.doctor(&host.elsewhere(4100));
    let [ssh, rest @ ..] = &verdicts(&found)[..] else { panic!("{found:?}") };
    assert_eq!(*ssh, ("ssh", "good"), "{found:?}");
    assert!(rest.len() == 6 && rest.iter().all(|(_, verdict)| *verdict == "advice"), "{found:?}");
    assert!(found[5][2].contains("through ssh") && found[6][2].contains("neither direction"), "{found:?}");
    assert_eq!(status, Some(0), "advice is no failure");
}

#[test]
fn a_doctor_says_where_isthmus_is_missing() {
    let Some(host) = Host::new(true) else { return };
    let (status, found) = host.doctor("/nowhere/isthmus");
    let [[_, verdict, text]] = &found[..] else { panic!("{found:?}") };
    assert_eq!((status, &**verdict), (Some(1), "bad"));
    assert!(text.contains("is not installed") && text.contains("pip install --user isthmus-"), "{text}");
}

#[test]
fn another_program_at_the_address_of_the_other_host_gets_no_data() {
    let Some(host) = Host::new(false) else { return };
    let stranger = TcpListener::bind("127.0.0.1:0").expect("free");
    let port = stranger.local_addr().expect("known").port();
    std::thread::spawn(move || {
        for stream in stranger.incoming() {
            let _ = stream.and_then(|mut stream| std::io::Write::write_all(&mut stream, &[0; 64]));
        }
    });
    fs::write(host.path("x"), "x").expect("written");
    let done = host.cp_by(&host.elsewhere(port), &["x", "there:x"]).output().expect("it starts");
    let said = text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("data goes through ssh") && said.contains("does not speak Isthmus"), "{said}");
    assert_eq!(fs::read(host.path("home/x")).expect("there"), b"x");
}
