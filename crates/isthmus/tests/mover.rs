//! `isthmus cp` and `isthmus serve` as users run them; killed, restarted, and out of room.

#[path = "support/command.rs"]
mod command;
#[path = "support/running.rs"]
mod running;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use command::isthmus;
use running::Running;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A folder with the certificates and files of the two sites.
struct Sites {
    folder: tempfile::TempDir,
}

impl Running {
    /// As `kill -9`.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Sites {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port();
        let sites = Self { folder };
        for (as_id, name) in [("1", "laptop"), ("2", "server")] {
            let words = ["router", "keygen", "--as", as_id, "--out", "keys", "--name", name];
            let made = isthmus(sites.folder.path()).args(words).output().expect("run");
            assert!(made.status.success(), "{}", text(&made.stderr));
        }
        fs::create_dir(sites.path("export")).expect("made");
        let tls = |name: &str, other: u32| {
            format!(
                "[tls]\ncertificate = \"keys/{name}.pem\"\nkey = \"keys/{name}.key\"\n\
                 authorities = [\"keys/as{other}.pem\"]\n"
            )
        };
        let serve = format!(
            "listen = \"127.0.0.1:{port}\"\nadmits = [1]\n{}[export.data]\npath = \"export\"\nwritable = true\n",
            tls("server", 1)
        );
        let known = format!("{}[site.b]\naddress = \"127.0.0.1:{port}\"\n", tls("laptop", 2));
        fs::write(sites.path("serve.toml"), serve).expect("written");
        fs::write(sites.path("sites.toml"), known).expect("written");
        sites
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Running {
        let mut command = isthmus(self.folder.path());
        self.served(command.args(["serve", "--config", "serve.toml"]))
    }

    /// Waits until the service says that it serves.
    fn served(&self, command: &mut Command) -> Running {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("serving at") {
            assert!(lines.read_line(&mut said).expect("readable") > 0, "it does not serve: {said}");
        }
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Running(child)
    }

    fn cp(&self, words: &[&str]) -> Command {
        let mut command = isthmus(self.folder.path());
        command.args(["cp", "--sites", "sites.toml"]).args(words);
        command
    }

    fn copy(&self, words: &[&str]) -> Output {
        self.cp(words).output().expect("it runs")
    }

    /// Starts a slow copy, and returns when so much of it is there.
    fn begin(&self, words: &[&str], bytes: u64) -> (Running, BufReader<ChildStdout>) {
        let mut command = self.cp(&["--json", "--limit-rate", "64Mbit"]);
        let mut child = Running(command.args(words).stdout(Stdio::piped()).spawn().expect("it starts"));
        let mut events = BufReader::new(child.0.stdout.take().expect("piped"));
        let start = Instant::now();
        loop {
            let event = event(&mut events).expect("it goes on");
            if event["event"] == "progress" && event["bytes"].as_u64() >= Some(bytes) {
                return (child, events);
            }
            assert!(start.elapsed() < LIMIT, "no progress");
        }
    }
}

fn event(events: &mut BufReader<ChildStdout>) -> Option<serde_json::Value> {
    let mut line = String::new();
    (events.read_line(&mut line).expect("readable") > 0)
        .then(|| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}")))
}

/// The events of one kind of a finished copy.
fn events(output: &Output, kind: &str) -> Vec<serde_json::Value> {
    let lines = text(&output.stdout);
    let events = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    events.filter(|event| event["event"] == kind).collect()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ ((i >> 8) as u8) ^ ((i >> 16) as u8)).collect()
}

#[test]
fn a_file_and_a_tree_are_copied_there_and_back() {
    let sites = Sites::new();
    let _service = sites.serve();
    fs::create_dir(sites.path("run")).expect("made");
    fs::write(sites.path("run/a"), pattern(3 * MIB)).expect("written");
    fs::write(sites.path("run/b"), "small").expect("written");
    let done = sites.copy(&["-r", "run", "b:data/"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stdout).starts_with("2 files, 3.00 MiB in "), "{}", text(&done.stdout));
    assert!(fs::read(sites.path("export/run/a")).expect("there") == pattern(3 * MIB));
    let done = sites.copy(&["-v", "b:data/run/b", "back"]);
    let digest = blake3::hash(b"small").to_hex();
    assert!(text(&done.stdout).starts_with(&format!("{digest}  ")), "{}", text(&done.stdout));
    assert_eq!(fs::read(sites.path("back")).expect("back"), b"small");
    let done = sites.copy(&["--json", "-r", "-n", "--all", "run", "b:data/"]);
    assert_eq!(events(&done, "would").len(), 2);
    assert_eq!(events(&done, "end")[0]["files"], 2);
}

#[test]
fn exit_statuses_tell_who_must_act() {
    let sites = Sites::new();
    fs::write(sites.path("file"), "f").expect("written");
    let status = |words: &[&str], expected: i32, says: &str| {
        let done = sites.copy(words);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(expected), "{words:?}: {said}");
        assert!(said.contains(says), "{words:?}: {said}");
    };
    status(&["file", "b:data/"], 4, "the same command continues");
    let _service = sites.serve();
    status(&["file", "elsewhere"], 2, "neither side is remote");
    status(&["", "b:data/"], 2, "names nothing");
    status(&["b:data/file", ""], 2, "names nothing");
    status(&["file", "c:data/"], 2, "there is no site \"c\"; known are b");
    status(&["missing", "b:data/"], 2, "missing");
    status(&["file", "127.0.0.1:0:data/"], 2, "127.0.0.1:0 has port 0, at which nothing listens");
    status(&["--block", "3000", "file", "b:data/"], 2, "power of two");
    status(&["file", "b:other/"], 5, "there is no export \"other\"");
    status(&["--plain", "file", "b:data/"], 5, "leave --plain out");
    fs::create_dir_all(sites.path("folder")).expect("made");
    status(&["folder", "b:data/"], 1, "add -r");
    status(&["file", "b:data/"], 0, "");
}

fn goes_on(upward: bool, whose: &str) {
    let sites = Sites::new();
    let service = sites.serve();
    let bytes = pattern(40 * MIB);
    let (from, to, words) = if upward {
        ("file", "export/copy", ["file", "b:data/copy"])
    } else {
        ("export/file", "copy", ["b:data/file", "copy"])
    };
    fs::write(sites.path(from), &bytes).expect("written");
    let (client, mut left) = sites.begin(&words, 8 * MIB as u64);
    let _service = if whose == "client" {
        client.kill();
        service
    } else {
        service.kill();
        let last = std::iter::from_fn(|| event(&mut left)).last().expect("it says why it ends");
        assert!(last["text"].as_str().is_some_and(|text| text.contains("continues")), "{last}");
        drop(client);
        sites.serve()
    };
    assert!(!sites.path(to).exists(), "not under its name before it is whole");
    let done = sites.copy(&[&["--json"], &words[..]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
    let have = events(&done, "resumed")[0]["have"].as_u64().expect("a number");
    let sent = events(&done, "end")[0]["sent"].as_u64().expect("a number");
    assert!(have >= 6 * MIB as u64, "{have} bytes were there");
    assert!(sent <= (48 * MIB) as u64 - have, "{have} bytes were there, and {sent} were sent");
    assert!(fs::read(sites.path(to)).expect("whole") == bytes);
}

#[test]
fn a_killed_client_goes_on_upward() {
    goes_on(true, "client");
}

#[test]
fn a_killed_client_goes_on_downward() {
    goes_on(false, "client");
}

#[test]
fn a_killed_service_goes_on_upward() {
    goes_on(true, "service");
}

#[test]
fn a_killed_service_goes_on_downward() {
    goes_on(false, "service");
}

/// A killed copy of a folder to a name that was not there, and the same again and again.
fn a_tree_goes_on(words: [&str; 3], from: &str, to: &str) {
    let sites = Sites::new();
    let _service = sites.serve();
    fs::create_dir_all(sites.path(from).join("sub")).expect("made");
    fs::write(sites.path(from).join("sub/small"), "small").expect("written");
    fs::write(sites.path(from).join("large"), pattern(40 * MIB)).expect("written");
    let (client, _left) = sites.begin(&words, 8 * MIB as u64);
    client.kill();
    for again in [false, true] {
        let done = sites.copy(&[&["--json"], &words[..]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
        let end = &events(&done, "end")[0];
        if again {
            assert_eq!((&end["files"], &end["kept"]), (&0.into(), &2.into()), "{end}");
        } else {
            let have = events(&done, "resumed")[0]["have"].as_u64().expect("a number");
            assert!(have >= 6 * MIB as u64, "{have} bytes were there");
        }
        let mut found = Vec::new();
        let mut folders = vec![sites.path(to)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("there") {
                let path = entry.expect("an entry").path();
                found.push(path.strip_prefix(sites.path(to)).expect("below").display().to_string());
                folders.extend(path.is_dir().then_some(path));
            }
        }
        found.sort();
        let top = if words[1].ends_with('/') { "" } else { "src/" };
        let mut all = vec![format!("{top}large"), format!("{top}sub"), format!("{top}sub/small")];
        all.extend((!top.is_empty()).then(|| "src".to_owned()));
        all.sort();
        assert_eq!(found, all);
        assert!(fs::read(sites.path(to).join(top).join("large")).expect("whole") == pattern(40 * MIB));
    }
}

#[test]
fn a_killed_copy_of_a_folder_goes_on_upward() {
    a_tree_goes_on(["-r", "src", "b:data/new"], "src", "export/new");
}

#[test]
fn a_killed_copy_of_a_folder_goes_on_downward() {
    a_tree_goes_on(["-r", "b:data/src", "new"], "export/src", "new");
}

#[test]
fn a_killed_copy_of_what_is_in_a_folder_goes_on_upward() {
    a_tree_goes_on(["-r", "src/", "b:data/new"], "src", "export/new");
}

#[test]
fn a_killed_copy_of_what_is_in_a_folder_goes_on_downward() {
    a_tree_goes_on(["-r", "b:data/src/", "new"], "export/src", "new");
}

#[test]
fn names_that_are_no_text_or_look_like_a_site_are_copied_and_told() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let sites = Sites::new();
    let _service = sites.serve();
    let copy = |words: &[&[u8]]| {
        let mut command = sites.cp(&[]);
        command.args(words.iter().map(|word| OsStr::from_bytes(word))).output().expect("it runs")
    };
    fs::write(sites.path("").join(OsStr::from_bytes(b"f\xff")), "f").expect("written");
    let done = copy(&[b"--json", b"f\xff", b"b:data/g\xff\n"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let told = &events(&done, "file")[0];
    assert_eq!((&told["path"], &told["path_bytes"]), (&"g\u{fffd}\n".into(), &"g%FF%0A".into()));
    let done = copy(&[b"b:data/g\xff\n", b"back\xff"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(fs::read(sites.path("").join(OsStr::from_bytes(b"back\xff"))).expect("back"), b"f");
    fs::write(sites.path("run:1"), "r").expect("written");
    for words in [[&b"run:1"[..], b"b:data/"], [b"run:1", b"elsewhere"]] {
        let done = copy(&words);
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains("./run:"), "{}", text(&done.stderr));
    }
    assert_eq!(copy(&[b"./run:1", b"b:data/"]).status.code(), Some(0));
    assert_eq!(fs::read(sites.path("export/run:1")).expect("there"), b"r");
}

/// Nothing but lines that `b3sum --check` reads is among them, run in the folder that was copied to.
#[test]
fn digests_are_told_for_a_program() {
    let sites = Sites::new();
    let _service = sites.serve();
    fs::create_dir(sites.path("run")).expect("made");
    let long = "n".repeat(250);
    for name in ["plain", "back\\slash", "new\nline", &long] {
        fs::write(sites.path("run").join(name), name).expect("written");
    }
    let digest = |name: &str| blake3::hash(name.as_bytes()).to_hex();
    for words in [["-v", "-r", "run", "b:data/"], ["-v", "-r", "b:data/run", "new"]] {
        let done = sites.copy(&words);
        assert!(text(&done.stderr).contains("4 files, "), "{}", text(&done.stderr));
        let said = text(&done.stdout);
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort();
        let mut expected = vec![
            format!("{}  run/plain", digest("plain")),
            format!("\\{}  run/back\\\\slash", digest("back\\slash")),
            format!("\\{}  run/new\\nline", digest("new\nline")),
            format!("{}  run/{long}", digest(&long)),
        ];
        expected.sort();
        assert_eq!(lines, expected);
        let again = sites.copy(&words);
        assert_eq!(text(&again.stdout), "", "what is left alone is no digest");
        assert!(text(&again.stderr).contains("left alone (same)"), "{}", text(&again.stderr));
    }
}

/// A command in a mount namespace of its own, in which the script has mounted what it wants; `$1` is the program.
fn in_a_namespace(sites: &Sites, script: &str) -> Command {
    let mut command = isthmus(sites.folder.path());
    let program = command.get_program().to_owned();
    command = Command::new("unshare");
    command.current_dir(sites.folder.path()).stdin(Stdio::null()).env_remove("ISTHMUS_LOG");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(program);
    command
}

#[test]
fn a_dry_run_says_what_could_not_be_written() {
    let sites = Sites::new();
    fs::create_dir_all(sites.path("export/there")).expect("made");
    let mounted = "mount --bind export export && mount -o remount,bind,ro export";
    if !in_a_namespace(&sites, mounted).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: this machine lets nobody mount a folder of their own");
        return;
    }
    let script = format!("{mounted} && exec \"$1\" serve --config serve.toml");
    let _service = sites.served(&mut in_a_namespace(&sites, &script));
    fs::create_dir_all(sites.path("t/sub")).expect("made");
    fs::write(sites.path("t/sub/f"), "f").expect("written");
    std::os::unix::fs::symlink("sub", sites.path("t/link")).expect("made");
    // Of what is in a folder that could not be made it is told with that.
    for (words, failed, told) in [
        (["t/sub/f", "b:data/new"], 1, 1),
        (["t/sub/f", "b:data/there/"], 1, 1),
        (["t", "b:data/"], 4, 1),
        (["t/", "b:data/new"], 3, 2),
    ] {
        let done = sites.copy(&[&["-r", "-n", "--json"], &words[..]].concat());
        assert_eq!(done.status.code(), Some(1), "{words:?}: {}", text(&done.stdout));
        let failures = events(&done, "failed");
        assert_eq!(failures.len(), told, "{words:?}: {failures:?}");
        assert!(failures.iter().all(|event| event["text"].as_str().is_some_and(|t| t.contains("Read-only"))));
        assert_eq!(events(&done, "end")[0]["failed"], failed, "{words:?}");
        assert!(events(&done, "would").is_empty(), "{}", text(&done.stdout));
    }
}

#[test]
fn a_full_disk_is_said_and_room_made_lets_the_same_command_go_on() {
    let sites = Sites::new();
    // In a namespace, so that its small disk goes away with it.
    let namespace = |script: &str| in_a_namespace(&sites, script);
    let disk = "mount -t tmpfs -o size=24m none export";
    if !namespace(disk).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: this machine lets nobody mount a disk of their own");
        return;
    }
    let script =
        format!("{disk} && head -c 12M /dev/zero > export/ballast && exec \"$1\" serve --config serve.toml");
    let service = sites.served(&mut namespace(&script));
    let inside = PathBuf::from(format!("/proc/{}/root", service.0.id()))
        .join(sites.path("export").strip_prefix("/").expect("absolute"));
    fs::create_dir(sites.path("t")).expect("made");
    fs::write(sites.path("t/first"), pattern(8 * MIB)).expect("written");
    fs::write(sites.path("t/second"), pattern(9 * MIB)).expect("written");
    let done = sites.copy(&["-r", "t", "b:data/"]);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left") && said.contains("make room"), "{said}");
    fs::remove_file(inside.join("ballast")).expect("removed");
    let done = sites.copy(&["-r", "t", "b:data/"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    for (name, len) in [("first", 8), ("second", 9)] {
        assert!(fs::read(inside.join("t").join(name)).expect("whole") == pattern(len * MIB), "{name}");
    }
}

/// Runs its arguments where three file systems are mounted, from which it may read 10, 10 and 20 MB/s.
const SLOW_VOLUMES: &str = r#"
set -e
group=/sys/fs/cgroup/blkio/isthmus-test-$$
mkdir $group
trap 'rmdir $group' EXIT
for one in 1:10 2:10 3:20; do
    name=volume${one%:*}
    mkfs.ext4 -q -d $name-files $name-image 64M
    mount -o loop,ro $name-image $name
    echo "$(mountpoint -d $name) ${one#*:}000000" > $group/blkio.throttle.read_bps_device
done
sh -c 'echo $$ > '$group/cgroup.procs' && exec "$@"' sh "$@"
"#;

/// Y. Kim and others: LADS: Optimizing Data Transfers Using Layout-Aware Data Scheduling. FAST '15.
#[test]
fn files_of_several_devices_are_read_side_by_side() {
    let sites = Sites::new();
    let _service = sites.serve();
    for (volume, mib) in [(1, 10), (2, 10), (3, 20)] {
        let of = |what: &str| sites.path(&format!("volume{volume}{what}"));
        fs::create_dir(of("")).expect("made");
        fs::create_dir(of("-files")).expect("made");
        for half in ["a", "b"] {
            fs::write(of("-files").join(format!("{volume}{half}")), pattern(mib * MIB / 2)).expect("written");
        }
    }
    let in_volumes = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.current_dir(sites.folder.path()).stdin(Stdio::null()).env_remove("ISTHMUS_LOG");
        command.env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
        command.args(["--mount", "sh", "-c", SLOW_VOLUMES, "sh"]).args(words).output().expect("it runs")
    };
    let can = in_volumes(&["true"]);
    if !can.status.success() {
        let said = text(&can.stderr);
        return eprintln!("skipped: it takes root, mkfs.ext4, loop devices and the cgroup blkio: {said}");
    }
    let program = isthmus(sites.folder.path()).get_program().to_owned();
    let words =
        ["cp", "--sites", "sites.toml", "--json", "volume1/1a", "volume1/1b", "volume2/2a", "volume2/2b"];
    let rest = ["volume3/3a", "volume3/3b", "b:data/"];
    let done = in_volumes(&[&[program.to_str().expect("a path")], &words[..], &rest].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    // Each device takes a second at least, so one after the other takes three.
    let seconds = events(&done, "end")[0]["seconds"].as_f64().expect("a number");
    assert!(seconds < 2.0, "{seconds} s: they were read one after the other");
    for (volume, mib) in [(1, 10), (2, 10), (3, 20)] {
        for half in ["a", "b"] {
            let name = format!("export/{volume}{half}");
            assert!(fs::read(sites.path(&name)).expect("whole") == pattern(mib * MIB / 2), "{name}");
        }
    }
}

/// Copies a file between two hosts of a lab, whose links these are; `None` where there can be no
/// lab. The lab's report is there afterwards as report.json. The script at-b.sh, if there is one, is run at b
/// before.
fn copied_in_a_lab(sites: &Sites, links: &str, mib: usize, env: &[(&str, &str)]) -> Option<Output> {
    fs::write(sites.path("file"), pattern(mib * MIB)).expect("written");
    let done = run_in_a_lab(sites, links, "\"$PWD/file\" b:data/copy", env)?;
    assert!(fs::read(sites.path("export/copy")).expect("whole") == pattern(mib * MIB));
    Some(done)
}

/// Runs `isthmus cp` with these words at host a of a lab, beside a service at b. It must copy one file.
fn run_in_a_lab(sites: &Sites, links: &str, words: &str, env: &[(&str, &str)]) -> Option<Output> {
    let lab = |words: &[&str]| isthmus(sites.folder.path()).arg("lab").args(words).output().expect("it runs");
    let check = lab(&["check"]);
    if !check.status.success() {
        eprintln!("skipped: {}", text(&check.stdout));
        return None;
    }
    let config = format!("mgmt = true\n[[site]]\nname = \"a\"\n[[site]]\nname = \"b\"\n{links}");
    fs::write(sites.path("lab.toml"), config).expect("written");
    // Both sides are told the other's address in the lab.
    let script = r#"
        at=$ISTHMUS_LAB_SITE_B_ADDRESS:4200
        for file in serve.toml sites.toml; do sed -i "s/127.0.0.1:[0-9]*/$at/" $file; done
        if [ -f at-b.sh ]; then lab-rsh b sh "$PWD/at-b.sh" || exit; fi
        lab-rsh b "$PROGRAM" serve --config "$PWD/serve.toml" 2>serve.log & service=$!
        for _ in $(seq 100); do grep -q 'serving at' serve.log && break; sleep 0.1; done
        lab-rsh a "$PROGRAM" cp --json --sites "$PWD/sites.toml" WORDS
        status=$?
        kill $service
        exit $status"#;
    let script = script.replace("WORDS", words);
    let mut command = isthmus(sites.folder.path());
    command.env("PROGRAM", env!("CARGO_BIN_EXE_isthmus")).env_remove("FI_ISTHMUS_INTERFACE");
    command.envs(env.iter().copied());
    command.args(["lab", "run", "--config", "lab.toml", "--report", "report.json", "--timeout", "120"]);
    let done = command.args(["--", "sh", "-c", &script]).output().expect("it runs");
    assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
    let end = &events(&done, "end")[0];
    assert_eq!((end["files"].as_u64(), end["failed"].as_u64()), (Some(1), Some(0)));
    Some(done)
}

/// The service's administrator limits what it sends. A client that receives names that limit, and not the network.
#[test]
fn a_limit_of_the_service_is_told_as_the_limit() {
    let sites = Sites::new();
    let serve = fs::read_to_string(sites.path("serve.toml")).expect("written before");
    // The kernel keeps the rate of one TCP lane exactly, however busy this machine is. With several lanes, fragments that
    // a limit delays are sent again by other lanes. What the file sets holds for the service, whatever its environment.
    let device = "[device]\nrate_limit = \"8Mbit\"\ntransport = \"tcp\"\nstreams = 1\n";
    fs::write(sites.path("serve.toml"), serve + device).expect("written");
    fs::write(sites.path("export/file"), pattern(8 * MIB)).expect("written");
    let env = [("FI_ISTHMUS_TRANSPORT", "tcp")];
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"1Gbit\"\nrtt = \"4ms\"\n";
    let words = "--block 256KiB b:data/file \"$PWD/back\"";
    let Some(done) = run_in_a_lab(&sites, link, words, &env) else { return };
    assert!(fs::read(sites.path("back")).expect("whole") == pattern(8 * MIB));
    let events = events(&done, "progress");
    let named = |what: &str| events.iter().filter(|event| event["bottleneck"] == what).count();
    assert!(named("limit") > 2 && named("limit") > named("network"), "{events:#?}");
}

#[test]
fn a_cut_link_delays_a_copy_and_does_not_end_it() {
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"200Mbit\"\nrtt = \"10ms\"\n\
                down = [{ at = \"3s\", for = \"3s\" }]\n";
    if let Some(done) = copied_in_a_lab(&Sites::new(), link, 150, &[]) {
        let said = text(&done.stderr);
        assert!(said.contains(" down"), "the lab tells what it dropped: {said}");
    }
}

/// As a firewall does it: what comes by UDP finds no way to anybody there.
const DROP_UDP: &str =
    "ip rule add pref 10 lookup local && ip rule del pref 0 && ip rule add pref 5 ipproto udp blackhole";

/// The same once there is something of the copy.
#[test]
fn a_copy_goes_on_by_tcp_where_udp_is_dropped_in_its_midst() {
    let sites = Sites::new();
    let there = sites.path("export");
    let script = format!(
        "(until [ \"$(du -sk {} | cut -f1)\" -gt 2000 ]; do sleep 0.05; done; {DROP_UDP}) >/dev/null 2>&1 &",
        there.display()
    );
    fs::write(sites.path("at-b.sh"), script).expect("written");
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"200Mbit\"\nrtt = \"20ms\"\n";
    if let Some(done) = copied_in_a_lab(&sites, link, 100, &[("ISTHMUS_LOG", "info")]) {
        let said = text(&done.stderr);
        assert!(said.contains("go by TCP: no answer came for"), "{said}");
    }
}

/// Packets of the interface's own size, on a link that carries no jumbo frames.
#[test]
fn a_copy_in_packets_of_a_given_size_gets_through_whatever_the_interface_carries() {
    let sites = Sites::new();
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"200Mbit\"\nrtt = \"20ms\"\nmtu = 1500\n";
    let env =
        [("FI_ISTHMUS_TRANSPORT", "udp"), ("FI_ISTHMUS_UDP_PROTOCOLS", "given"), ("ISTHMUS_LOG", "info")];
    if let Some(done) = copied_in_a_lab(&sites, link, 5, &env) {
        let said = text(&done.stderr);
        assert!(said.contains("+given") && !said.contains("go by TCP"), "{said}");
    }
}

/// The copy's first words go by UDP: where that is dropped without a word, all goes by TCP.
#[test]
fn a_copy_goes_by_tcp_where_udp_is_dropped() {
    let sites = Sites::new();
    fs::write(sites.path("at-b.sh"), DROP_UDP).expect("written");
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"200Mbit\"\nrtt = \"20ms\"\n";
    if let Some(done) = copied_in_a_lab(&sites, link, 5, &[("ISTHMUS_LOG", "info")]) {
        let said = text(&done.stderr);
        assert!(said.contains("go by TCP: no answer by UDP"), "{said}");
    }
}

fn two_links_carry_a_copy_together(transport: &str) {
    let sites = Sites::new();
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"100Mbit\"\nrtt = ";
    let settings = [("interface", "wan0"), ("rails", "wan1"), ("transport", transport)];
    // The client is told by its environment, the service by its configuration.
    let names = settings.map(|(key, _)| format!("FI_ISTHMUS_{}", key.to_uppercase()));
    let env: Vec<_> = names.iter().map(String::as_str).zip(settings.map(|(_, value)| value)).collect();
    let mut serve = fs::read_to_string(sites.path("serve.toml")).expect("written before");
    serve += "[device]\n";
    settings[1..].iter().for_each(|(key, value)| serve += &format!("{key} = \"{value}\"\n"));
    fs::write(sites.path("serve.toml"), serve).expect("written");
    if copied_in_a_lab(&sites, &format!("{link}\"10ms\"\n{link}\"30ms\"\n"), 60, &env).is_none() {
        return;
    }
    let report = fs::read(sites.path("report.json")).expect("the lab's report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    for link in 0..2 {
        let there = &report["links"][link]["directions"];
        let bytes =
            there.as_array().expect("two").iter().filter_map(|way| way["delivered_bytes"].as_u64()).max();
        assert!(bytes >= Some(10 * MIB as u64), "link {link}: {there}");
    }
}

#[test]
fn two_links_carry_a_copy_together_by_tcp() {
    two_links_carry_a_copy_together("tcp");
}

#[test]
fn two_links_carry_a_copy_together_by_udp() {
    two_links_carry_a_copy_together("udp");
}

fn a_copy_keeps_to_the_rate_that_its_lanes_may_send_at(transport: &str) {
    const MEBIBYTES: usize = 24;
    let sites = Sites::new();
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"1Gbit\"\nrtt = \"10ms\"\n";
    let env = [("FI_ISTHMUS_TRANSPORT", transport), ("FI_ISTHMUS_RATE_LIMIT", "0.0.0.0/0=80Mbit")];
    let start = Instant::now();
    if copied_in_a_lab(&sites, link, MEBIBYTES, &env).is_none() {
        return;
    }
    // Of the first tenths of a second lanes do not know yet how many they are.
    let least = Duration::from_secs_f64((MEBIBYTES * MIB) as f64 / 10e6 * 0.9);
    assert!(start.elapsed() >= least, "{:?} for what takes {least:?} and more", start.elapsed());
}

#[test]
fn a_copy_by_tcp_keeps_to_the_rate_that_its_lanes_may_send_at() {
    a_copy_keeps_to_the_rate_that_its_lanes_may_send_at("tcp");
}

#[test]
fn a_copy_by_udp_keeps_to_the_rate_that_its_lanes_may_send_at() {
    a_copy_keeps_to_the_rate_that_its_lanes_may_send_at("udp");
}

#[test]
fn what_a_launcher_starts_shares_a_copy() {
    let sites = Sites::new();
    let _service = sites.serve();
    fs::create_dir(sites.path("run")).expect("made");
    for number in 0..40 {
        fs::write(sites.path(&format!("run/{number}")), pattern(1000 * number)).expect("written");
    }
    let program = sites.path("isthmus-cp");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_isthmus"), &program).expect("made");
    let shared = |words: &[&str], rank: usize, ranks: usize| {
        let mut command = Command::new(&program);
        command
            .current_dir(sites.folder.path())
            .env("FI_ISTHMUS_INTERFACE", "127.0.0.1")
            .stdin(Stdio::null());
        command.args(["--sites", "sites.toml", "--json"]).args(words);
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", ranks.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    for (words, there) in
        [(["-r", "run", "b:data/"], "export/run"), (["-r", "b:data/run", "back/"], "back/run")]
    {
        fs::create_dir_all(sites.path("back")).expect("made");
        let started: Vec<Child> = (0..3).map(|rank| shared(&words, rank, 3)).collect();
        let mut copied = 0;
        for (rank, child) in started.into_iter().enumerate() {
            let done = child.wait_with_output().expect("it ends");
            assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
            let end = &events(&done, "end")[0];
            assert_eq!((&end["process"], &end["processes"]), (&rank.into(), &3.into()), "{end}");
            copied += end["files"].as_u64().expect("a number");
        }
        assert_eq!(copied, 40);
        for number in 0..40 {
            let bytes = fs::read(sites.path(there).join(number.to_string())).expect("there");
            assert!(bytes == pattern(1000 * number), "{there}/{number} differs");
        }
    }
    // Whether the destination is a folder must not depend on who is first.
    let refused = shared(&["-r", "run", "b:data/new"], 0, 3).wait_with_output().expect("it ends");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stdout).contains("end the destination in"), "{}", text(&refused.stdout));
}

/// A read of this file fails with EIO, as that of a file on a failing disk.
#[test]
fn a_certificate_that_the_system_does_not_read_is_no_fault_of_the_configuration() {
    let sites = Sites::new();
    for (name, command) in [("serve.toml", "serve"), ("sites.toml", "cp")] {
        let config = fs::read_to_string(sites.path(name)).expect("text");
        for (kind, place) in [("certificate", ".pem"), ("key", ".key")] {
            let line = config.lines().find(|line| line.starts_with(kind)).expect("it is set");
            assert!(line.contains(place), "{line}");
            let broken = config.replace(line, &format!("{kind} = \"/proc/self/mem\""));
            fs::write(sites.path(name), broken).expect("written");
            let done = match command {
                "cp" => sites.copy(&["keys/as1.pem", "b:data/"]),
                _ => {
                    isthmus(sites.folder.path()).args(["serve", "--config", name]).output().expect("it runs")
                }
            };
            let said = text(&done.stderr);
            assert_eq!(done.status.code(), Some(3), "{said}");
            assert!(said.contains("/proc/self/mem: Input/output error"), "{said}");
        }
        fs::write(sites.path(name), config).expect("written");
    }
}
