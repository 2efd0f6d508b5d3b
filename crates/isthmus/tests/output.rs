//! Where output goes nowhere: full disks, pipes whose reader has gone, pipes that nobody reads.
//! Daemons go on; commands end with the status that their help states.

#[path = "support/running.rs"]
mod running;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use running::Running;

const LIMIT: Duration = Duration::from_secs(60);

fn isthmus(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.current_dir(folder).env("FI_ISTHMUS_INTERFACE", "127.0.0.1").stdin(Stdio::null());
    for name in ["ISTHMUS_CONFIG", "ISTHMUS_SITES", "ISTHMUS_LOG", "FI_PROVIDER"] {
        command.env_remove(name);
    }
    command
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A service without certificates, which exports a folder with one file.
fn service(folder: &Path) -> u16 {
    let port = free_port();
    fs::create_dir(folder.join("export")).expect("made");
    fs::write(folder.join("export/a"), "content").expect("written");
    let config = format!(
        "listen = \"127.0.0.1:{port}\"\nplain = true\n[export.data]\npath = \"export\"\nwritable = true\n"
    );
    fs::write(folder.join("serve.toml"), config).expect("written");
    port
}

fn get(folder: &Path, port: u16) -> Command {
    let mut command = isthmus(folder);
    command.args(["cp", "--plain", &format!("127.0.0.1:{port}:data/a"), "copy"]);
    command
}

/// The same, and the process that serves it.
fn served(folder: &Path) -> (u16, Running) {
    let port = service(folder);
    let serve = isthmus(folder).args(["serve", "--config", "serve.toml"]).stderr(Stdio::null()).spawn();
    let mut serve = Running(serve.expect("it starts"));
    await_listener(port, &mut serve.0);
    (port, serve)
}

fn await_listener(port: u16, daemon: &mut Child) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = daemon.try_wait().expect("ours") {
            panic!("it ended with {status}");
        }
        assert!(start.elapsed() < LIMIT, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Copies from a service whose log goes to `log`, and stops it.
fn serves_with(log: Stdio, out: Stdio) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = service(folder.path());
    let mut serve = isthmus(folder.path());
    // All that is logged, so that there is much of it.
    serve.args(["serve", "--config", "serve.toml"]).env("ISTHMUS_LOG", "trace").stdout(out).stderr(log);
    let mut serve = Running(serve.spawn().expect("it starts"));
    await_listener(port, &mut serve.0);
    for _ in 0..3 {
        let _ = fs::remove_file(folder.path().join("copy"));
        let done = get(folder.path(), port).output().expect("it runs");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        assert_eq!(fs::read(folder.path().join("copy")).expect("there"), b"content");
    }
    terminate(&mut serve.0);
    assert_eq!(serve.0.wait().expect("an end").code(), Some(0));
}

fn terminate(daemon: &mut Child) {
    let pid = i32::try_from(daemon.id()).expect("a process");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("ours");
}

#[test]
fn a_service_whose_log_is_on_a_full_disk_serves() {
    serves_with(full().into(), full().into());
}

/// What is wrong with the filter of the log cannot be said either.
#[test]
fn a_faulty_filter_of_the_log_ends_no_command() {
    let folder = tempfile::tempdir().expect("a folder");
    for log in [full().into(), closed(), Stdio::piped()] {
        let mut command = isthmus(folder.path());
        command.arg("devices").env("ISTHMUS_LOG", "info,a=b=c").stdout(Stdio::null()).stderr(log);
        let done = command.spawn().and_then(Child::wait_with_output).expect("it runs");
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    }
}

#[test]
fn a_service_whose_log_nobody_takes_any_more_serves() {
    serves_with(closed(), closed());
}

#[test]
fn a_service_whose_log_is_a_pipe_that_nobody_reads_serves() {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small one");
    // There is no room in it from the start.
    writer.write_all(&[b'x'; 4096]).expect("room");
    serves_with(writer.into(), Stdio::null());
    drop(reader);
}

/// The configuration of a router between two subnets, and the ports of one of them and of its status.
fn router_config(folder: &Path) -> (u16, u16) {
    let (port, status) = (free_port(), free_port());
    let (left, right) = (format!("127.0.0.1:{port}"), format!("127.0.0.2:{}", free_port()));
    let subnet = |id: u32, name: &str| {
        format!("[[subnet]]\nid = {id}\nname = \"{name}\"\nrate = \"10Gbit\"\nlatency = \"10us\"\n")
    };
    let map = format!(
        "[as]\nid = 1\n{}{}[[router]]\nname = \"r1\"\njoins = [\"left\", \"right\"]\n\
         endpoints = {{ left = \"{left}\", right = \"{right}\" }}\n",
        subnet(1, "left"),
        subnet(2, "right")
    );
    fs::write(folder.join("map.toml"), map).expect("written");
    let config = format!(
        "name = \"r1\"\nmap = \"map.toml\"\nstatus = \"127.0.0.1:{status}\"\n\
         [subnet.left]\nplain = true\ntargets = [\"127.0.0.1/32\"]\n\
         [subnet.right]\nplain = true\ntargets = [\"127.0.0.1/32\"]\n"
    );
    fs::write(folder.join("router.toml"), config).expect("written");
    (port, status)
}

/// A router on one subnet that says it is well.
fn routes_with(log: Stdio, out: Stdio) {
    let folder = tempfile::tempdir().expect("a folder");
    let (port, status) = router_config(folder.path());
    let mut router = isthmus(folder.path());
    router.args(["router", "run", "--config", "router.toml"]).env("ISTHMUS_LOG", "trace");
    let mut router = Running(router.stdout(out).stderr(log).spawn().expect("it starts"));
    await_listener(status, &mut router.0);
    for _ in 0..50 {
        let mut http = TcpStream::connect(("127.0.0.1", status)).expect("it listens");
        http.write_all(b"GET /health HTTP/1.0\r\n\r\n").expect("taken");
        let mut answer = String::new();
        http.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("ok\n"), "{answer}");
        // What a stranger says is logged.
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let _ = stranger.write_all(b"GET / HTTP/1.0\r\n\r\n");
    }
    terminate(&mut router.0);
    assert_eq!(router.0.wait().expect("an end").code(), Some(0));
}

#[test]
fn a_router_whose_log_is_on_a_full_disk_routes() {
    routes_with(full().into(), full().into());
}

#[test]
fn a_router_whose_log_nobody_takes_any_more_routes() {
    routes_with(closed(), closed());
}

/// What a command says when its output goes to `out` and its remarks to `log`.
fn ran(command: &mut Command, out: Stdio, log: Stdio) -> (Option<i32>, Output) {
    let done = command.stdout(out).stderr(log).spawn().and_then(Child::wait_with_output).expect("it runs");
    (done.status.code(), done)
}

#[test]
fn commands_whose_results_are_lost_say_so_by_their_status() {
    let folder = tempfile::tempdir().expect("a folder");
    router_config(folder.path());
    let ranks = ["run", "--job", "j", "--part", "1/1", "--provider-path", "/lib"];
    let [labelled, gathered] =
        ["--label", "--gather"].map(|how| [&ranks[..], &[how, "--", "echo", "result"]].concat());
    let commands: [&[&str]; 14] = [
        &labelled,
        &gathered,
        &["routes", "show", "map.toml"],
        &["routes", "draw", "map.toml"],
        &["lab", "links"],
        &["--help"],
        &["--version"],
        &["env", "--mpi", "mpich", "--provider-path", "/lib"],
        &["env", "--mpi", "mpich", "--provider-path", "/lib", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["devices"],
        &["router", "keygen", "--as", "1", "--out", "keys"],
        &["completions", "bash"],
    ];
    for words in commands {
        let (status, done) = ran(isthmus(folder.path()).args(words), full().into(), Stdio::piped());
        let said = text(&done.stderr);
        assert_eq!(status, Some(3), "{words:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space left"), "{words:?}: {said}");
        // A reader that has seen enough is no failure: the status is that of the work.
        let (usual, _) = ran(isthmus(folder.path()).args(words), Stdio::null(), Stdio::null());
        // Keys that are there already are not made again.
        assert!(usual <= Some(1) || words.contains(&"keygen"), "{words:?}: {usual:?}");
        for log in [Stdio::null(), closed(), full().into()] {
            let (status, done) = ran(isthmus(folder.path()).args(words), closed(), log);
            assert_eq!(status, usual, "{words:?}: {}", text(&done.stderr));
        }
    }
    // Its usual status depends on what else runs on this host.
    let (status, _) = ran(isthmus(folder.path()).args(["top", "--once"]), full().into(), Stdio::null());
    assert_eq!(status, Some(3));
}

/// They would go on for minutes, or for ever, and nobody would know their address.
#[test]
fn commands_that_go_on_end_when_their_first_result_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let commands: [&[&str]; 5] = [
        &["bench", "serve"],
        &["bench", "pingpong", "--rounds", "1000"],
        &["bench", "stream", "--rounds", "1000", "--json"],
        &["doctor", "--listen", "--timeout", "1000s"],
        &["top", "--interval", "50ms"],
    ];
    for words in commands {
        for (out, expected) in [(full().into(), 3), (closed(), 0)] {
            let mut command = Command::new("timeout");
            command.args(["60", env!("CARGO_BIN_EXE_isthmus")]).args(words).current_dir(folder.path());
            command.env("FI_ISTHMUS_INTERFACE", "127.0.0.1").env_remove("ISTHMUS_CONFIG");
            let (status, done) = ran(command.stdin(Stdio::null()), out, Stdio::piped());
            // What the doctor found of this host is its status, unless it is lost.
            let usual = words[0] == "doctor" && expected == 0 && status == Some(1);
            assert!(status == Some(expected) || usual, "{words:?}: {status:?} {}", text(&done.stderr));
        }
    }
}

#[test]
fn errors_that_cannot_be_written_leave_the_status_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let commands: [(&[&str], i32); 6] = [
        (&["bogus"], 2),
        (&["cp", "a", "b"], 2),
        (&["serve", "--config", "missing.toml"], 2),
        (&["router", "check", "--config", "missing.toml"], 2),
        (&["routes", "check", "missing.toml"], 2),
        (&["devices", "--config", "missing.toml"], 2),
    ];
    for (words, expected) in commands {
        for log in [full().into(), closed(), Stdio::null()] {
            let (status, _) = ran(isthmus(folder.path()).args(words), Stdio::null(), log);
            assert_eq!(status, Some(expected), "{words:?}");
        }
    }
}

#[test]
fn a_copy_whose_output_is_lost_is_whole_and_says_that_output_was_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (port, _serve) = served(folder.path());
    let copy = |words: &[&str], out: Stdio, log: Stdio| {
        let _ = fs::remove_file(folder.path().join("copy"));
        let (status, _) = ran(get(folder.path(), port).args(words), out, log);
        assert_eq!(fs::read(folder.path().join("copy")).expect("copied"), b"content", "{words:?}");
        status
    };
    // Remarks are dropped; digests and events are results.
    assert_eq!(copy(&["-v"], Stdio::null(), full().into()), Some(0));
    assert_eq!(copy(&["-v"], Stdio::null(), closed()), Some(0));
    assert_eq!(copy(&["-v"], full().into(), Stdio::null()), Some(3));
    assert_eq!(copy(&["--json"], full().into(), Stdio::null()), Some(3));
    assert_eq!(copy(&["--json"], full().into(), full().into()), Some(3));
    assert_eq!(copy(&["--json"], closed(), closed()), Some(0));
    assert_eq!(copy(&[], full().into(), Stdio::null()), Some(3));
}

#[test]
fn output_to_a_pipe_that_another_program_made_non_blocking_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = isthmus(folder.path()).args(["cp", "--help"]).output().expect("it runs").stdout;
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small one");
    // There is no room for all of it.
    let before = [b'x'; 4096 - 100];
    writer.write_all(&before).expect("room");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    let mut command = isthmus(folder.path());
    let mut child = command.args(["cp", "--help"]).stdout(writer).spawn().expect("it starts");
    // This process's end of the pipe goes with it.
    drop(command);
    std::thread::sleep(Duration::from_millis(300));
    let mut said = Vec::new();
    reader.read_to_end(&mut said).expect("bytes");
    assert_eq!(child.wait().expect("an end").code(), Some(0));
    assert_eq!(text(&said[before.len()..]), text(&whole));
}

#[test]
fn errors_of_ranks_to_a_pipe_that_another_program_made_non_blocking_are_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small one");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    let mut command = isthmus(folder.path());
    command.args([
        "run",
        "--job",
        "j",
        "--part",
        "1/1",
        "--gather",
        "--provider-path",
        "/",
        "--rank",
        "0",
        "--size",
        "1",
    ]);
    command.args(["sh", "-c", "seq 5000 >&2"]);
    let mut child = command.stderr(writer).spawn().expect("it starts");
    // This process's end of the pipe goes with it.
    drop(command);
    std::thread::sleep(Duration::from_millis(300));
    let mut said = Vec::new();
    reader.read_to_end(&mut said).expect("bytes");
    assert_eq!(child.wait().expect("an end").code(), Some(0));
    let whole: String = (1..=5000).map(|line| format!("{line}\n")).collect();
    assert_eq!(text(&said), whole);
}

/// Descriptors that are open only for reading take nothing. Rust's own `Stdout` would say that they did.
#[test]
fn results_for_a_descriptor_that_is_only_read_are_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let read_only = || File::open("/dev/null").expect("Linux has it").into();
    let (status, done) = ran(isthmus(folder.path()).arg("--version"), read_only(), Stdio::piped());
    assert_eq!(status, Some(3), "{}", text(&done.stderr));
    let (port, _serve) = served(folder.path());
    let (status, done) = ran(get(folder.path(), port).arg("--json"), read_only(), Stdio::piped());
    assert_eq!(status, Some(3), "{}", text(&done.stderr));
}

/// <https://no-color.org>, and terminals that print escape sequences instead of obeying them.
#[test]
fn only_terminals_that_take_escapes_get_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (port, _serve) = served(folder.path());
    let at_terminal = |words: &str, term: &str, no_color: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{} {words}", env!("CARGO_BIN_EXE_isthmus")), "/dev/null"]);
        script.current_dir(folder.path()).env("TERM", term).env("NO_COLOR", no_color);
        script
            .env("FI_ISTHMUS_INTERFACE", "127.0.0.1")
            .env("ISTHMUS_LOG", "info")
            .env_remove("ISTHMUS_CONFIG");
        let done = script.stdin(Stdio::null()).output().expect("script(1) is there");
        assert!(!done.stdout.is_empty(), "{words}");
        text(&done.stdout)
    };
    let copy = format!("cp --plain 127.0.0.1:{port}:data/a copy");
    for words in ["--help", "bogus", &copy, "top --once"] {
        assert!(!at_terminal(words, "dumb", "").contains('\x1b'), "{words}");
        // Moves of the cursor are no colours.
        assert!(!at_terminal(words, "xterm", "1").contains("\x1b[3"), "{words}");
    }
    assert!(at_terminal("--help", "xterm", "").contains('\x1b'));
    assert!(at_terminal(&copy, "xterm", "").contains('\x1b'));
}

/// Before `main`, Rust's runtime puts `/dev/null` in the place of descriptors that are closed.
#[test]
fn results_for_a_closed_descriptor_are_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        shell.current_dir(folder.path()).args(["-c", line, "sh", env!("CARGO_BIN_EXE_isthmus")]);
        ran(&mut shell, Stdio::piped(), Stdio::piped())
    };
    for line in ["\"$1\" --version >&-", "\"$1\" devices >&- <&-", "\"$1\" completions bash >&- <&- 2>&-"] {
        assert_eq!(shell(line).0, Some(3), "{line}");
    }
    // What reads and writes /dev/null, as services of systemd get, is no closed one.
    for line in ["\"$1\" --version 1<>/dev/null", "\"$1\" --version >/dev/null", "\"$1\" --version <&- 2>&-"]
    {
        assert_eq!(shell(line).0, Some(0), "{line}");
    }
}

/// No memory for a thread's stack is an error of the same kind as too many threads.
#[test]
fn daemons_that_can_start_no_thread_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    service(folder.path());
    for format in ["text", "json"] {
        let mut command = isthmus(folder.path());
        command.args(["serve", "--config", "serve.toml", "--log-format", format]);
        command.env("RUST_MIN_STACK", (1u64 << 50).to_string());
        let (status, done) = ran(&mut command, Stdio::null(), Stdio::piped());
        let said = text(&done.stderr);
        assert_eq!(status, Some(3), "{said}");
        assert!(!said.contains("panicked") && said.contains("no thread can be started"), "{said}");
    }
}

/// A daemon that could open nothing for anybody does not start. Libraries would panic, or it would serve nobody.
#[test]
fn daemons_that_can_open_too_few_files_name_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    service(folder.path());
    router_config(folder.path());
    let daemons: [&[&str]; 2] =
        [&["serve", "--config", "serve.toml"], &["router", "run", "--config", "router.toml"]];
    for words in daemons {
        for files in [4, 6, 8, 10, 12, 16, 24, 32] {
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--nofile={files}")).args(["timeout", "20", env!("CARGO_BIN_EXE_isthmus")]);
            limited.args(words).env_remove("ISTHMUS_CONFIG").env_remove("ISTHMUS_LOG");
            limited.current_dir(folder.path()).env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
            let (status, done) = ran(&mut limited, Stdio::null(), Stdio::piped());
            let said = text(&done.stderr);
            assert_eq!(status, Some(3), "{words:?} {files}: {said}");
            assert!(!said.contains("panicked") && said.contains("ulimit -n"), "{words:?} {files}: {said}");
            assert_eq!(said.lines().count(), 1, "{words:?} {files}: {said}");
        }
    }
}

/// With so few, a copy would connect, copy nothing, and say so only after a while.
#[test]
fn a_copy_that_can_open_too_few_files_names_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (port, _service) = served(folder.path());
    let copy = |files: u32| {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nofile={files}")).args(["timeout", "20", env!("CARGO_BIN_EXE_isthmus"), "cp"]);
        limited.args(["--plain", &format!("127.0.0.1:{port}:data/a"), &format!("copy{files}")]);
        limited.env_remove("ISTHMUS_CONFIG").env_remove("ISTHMUS_LOG").current_dir(folder.path());
        ran(limited.env("FI_ISTHMUS_INTERFACE", "127.0.0.1"), Stdio::null(), Stdio::piped())
    };
    for files in [6, 10, 16, 20, 32] {
        let (status, done) = copy(files);
        let said = text(&done.stderr);
        assert!(status == Some(3) && said.contains("ulimit -n"), "{files}: {status:?} {said}");
        assert_eq!(said.lines().count(), 1, "{files}: {said}");
    }
    let (status, done) = copy(40);
    assert_eq!(status, Some(0), "{}", text(&done.stderr));
}

#[test]
fn what_keeps_a_daemon_from_starting_is_an_object_if_its_log_is_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemons = [&["serve"][..], &["router", "run"]];
    // A filter that lets no line through does not hide why the program ends.
    for (words, log) in daemons.iter().flat_map(|words| [(words, "a=b=c"), (words, "off")]) {
        let mut command = isthmus(folder.path());
        command.args(*words).args(["--config", "missing.toml", "--log-format", "json"]);
        let (status, done) = ran(command.env("ISTHMUS_LOG", log), Stdio::null(), Stdio::piped());
        let said = text(&done.stderr);
        assert_eq!(status, Some(2), "{said}");
        let lines: Vec<serde_json::Value> =
            said.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        let error = lines.last().expect("a line");
        assert_eq!(error["level"], "ERROR", "{said}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("missing.toml")), "{said}");
    }
}
