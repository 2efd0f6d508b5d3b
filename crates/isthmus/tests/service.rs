//! `isthmus serve` as an operator lives with it: ready, alive, reloaded, stopped, and what its log says.

#[path = "support/command.rs"]
mod command;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use command::isthmus;

const LIMIT: Duration = Duration::from_secs(60);

/// A service, its folder, and what it tells the service manager.
struct Service {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
    notices: UnixDatagram,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    fn start(words: &[&str]) -> Self {
        let service = Self::spawn(words, |_| {});
        service.await_notice("READY=1");
        service
    }

    /// `before` gets the folder before the service starts in it.
    fn spawn(words: &[&str], before: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port();
        for name in ["data", "more"] {
            fs::create_dir(folder.path().join(name)).expect("made");
            fs::write(folder.path().join(name).join("file"), name).expect("written");
        }
        let notices = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        notices.set_read_timeout(Some(LIMIT)).expect("a time-out");
        write_config(folder.path(), port, &["data"]);
        before(folder.path());
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let mut command = isthmus(folder.path());
        command.args(["serve", "--config", "serve.toml"]).args(words).stderr(log);
        command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "400000");
        let child = command.spawn().expect("it starts");
        Self { child, folder, port, notices }
    }

    fn await_notice(&self, wanted: &str) {
        let until = Instant::now() + LIMIT;
        let mut bytes = [0; 256];
        while Instant::now() < until {
            let len = self.notices.recv(&mut bytes).unwrap_or_else(|error| panic!("{wanted}: {error}"));
            if &bytes[..len] == wanted.as_bytes() {
                return;
            }
        }
        panic!("it does not say {wanted}");
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, signal).expect("ours");
    }

    fn get(&self, export: &str, words: &[&str]) -> Output {
        let mut command = isthmus(self.folder.path());
        let place = format!("127.0.0.1:{}:{export}/file", self.port);
        command.args(["cp", "--plain"]).args(words).args([&place, "copy"]);
        command.output().expect("it runs")
    }

    fn threads_named(&self, name: &str) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|comm| comm.trim_end() == name).count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("text")
    }
}

fn write_config(folder: &Path, port: u16, exports: &[&str]) {
    let mut text = format!("listen = \"127.0.0.1:{port}\"\nplain = true\n");
    for name in exports {
        text += &format!("[export.{name}]\npath = \"{name}\"\n");
    }
    fs::write(folder.join("serve.toml"), text).expect("written");
}

#[test]
fn a_service_tells_its_manager_that_it_is_ready_alive_and_ends() {
    let mut service = Service::start(&[]);
    service.await_notice("WATCHDOG=1");
    service.await_notice("WATCHDOG=1");
    service.signal(rustix::process::Signal::TERM);
    service.await_notice("STOPPING=1");
    assert_eq!(service.child.wait().expect("an end").code(), Some(0));
}

/// The system keeps no more messages for the manager, which reads them seconds later.
#[test]
fn a_manager_that_reads_late_still_hears_that_the_service_is_ready() {
    let fill = |folder: &Path| {
        let other = UnixDatagram::unbound().expect("a socket");
        other.set_nonblocking(true).expect("possible");
        let is_full = (0..100_000).any(|_| other.send_to(b"full", folder.join("notify")).is_err());
        assert!(is_full, "the queue has no end");
    };
    let mut service = Service::spawn(&[], fill);
    let until = Instant::now() + LIMIT;
    while !service.log().contains("the service manager does not read") {
        assert!(Instant::now() < until, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = service.get("data", &[]);
    assert!(done.status.success(), "it serves meanwhile: {}", String::from_utf8_lossy(&done.stderr));
    for _ in 0..3 {
        let reloads = || service.log().matches("configuration and certificates read again").count();
        let before = reloads();
        service.signal(rustix::process::Signal::HUP);
        while reloads() == before {
            assert!(Instant::now() < until, "{}", service.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(service.threads_named("manager"), 1);
    service.await_notice("READY=1");
    service.await_notice("STATUS=configuration read again");
    service.signal(rustix::process::Signal::TERM);
    service.await_notice("STOPPING=1");
    assert_eq!(service.child.wait().expect("an end").code(), Some(0));
}

#[test]
fn a_reload_changes_what_is_exported_and_a_faulty_file_nothing() {
    let service = Service::start(&[]);
    assert_eq!(service.get("data", &[]).status.code(), Some(0));
    assert_eq!(service.get("more", &[]).status.code(), Some(5));

    fs::write(service.folder.path().join("serve.toml"), "listen = 7\n").expect("written");
    service.signal(rustix::process::Signal::HUP);
    let until = Instant::now() + LIMIT;
    while !service.log().contains("reload refused") {
        assert!(Instant::now() < until, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(service.get("data", &["--all"]).status.code(), Some(0));

    // The file is well, and the folder that it exports is not there. The manager is told of neither.
    write_config(service.folder.path(), service.port, &["data", "missing"]);
    service.signal(rustix::process::Signal::HUP);
    while !service.log().contains("export missing") {
        assert!(Instant::now() < until, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    service.notices.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; 256];
    while let Ok(len) = service.notices.recv(&mut bytes) {
        assert!(!bytes[..len].starts_with(b"STATUS="), "{}", service.log());
    }
    service.notices.set_nonblocking(false).expect("a socket");

    write_config(service.folder.path(), service.port, &["data", "more"]);
    service.signal(rustix::process::Signal::HUP);
    while !service.log().contains("configuration and certificates read again") {
        assert!(Instant::now() < until, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    service.await_notice("STATUS=configuration read again");
    assert_eq!(service.get("more", &["--all"]).status.code(), Some(0));
    assert_eq!(fs::read(service.folder.path().join("copy")).expect("copied"), b"more");
}

#[test]
fn each_session_is_a_line_of_the_log_with_who_what_and_how_long() {
    let service = Service::start(&["--log-format", "json"]);
    assert_eq!(service.get("data", &["-n"]).status.code(), Some(0));
    assert_eq!(service.get("data", &[]).status.code(), Some(0));
    assert_eq!(service.get("none", &[]).status.code(), Some(5));
    let sessions = || -> Vec<serde_json::Value> {
        let log = service.log();
        let lines =
            log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")));
        lines.filter(|line: &serde_json::Value| line["seconds"].is_number()).collect()
    };
    let until = Instant::now() + LIMIT;
    while sessions().len() < 3 {
        assert!(Instant::now() < until, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let sessions = sessions();
    let text = |at: usize| sessions[at]["message"].as_str().expect("text").to_owned();
    assert!(text(0).contains("dry run, nothing is copied: get"), "{}", text(0));
    assert!(text(1).contains("get data/file: 1 files, 4 bytes"), "{}", text(1));
    let expected = serde_json::json!({
        "level": "INFO", "export": "data", "direction": "out", "paths": "data/file", "dry_run": false,
        "files": 1, "bytes": 4, "kept": 0, "failed": 0, "digests": 1,
    });
    for (field, value) in expected.as_object().expect("fields") {
        assert_eq!(&sessions[1][field], value, "{field}");
    }
    assert!(sessions[1]["timestamp"].is_string() && sessions[1]["from"].is_string(), "{}", sessions[1]);
    assert!(text(2).contains("there is no export \"none\""), "{}", text(2));
    assert_eq!(sessions[2]["level"], "WARN");
    assert_eq!((&sessions[2]["export"], &sessions[2]["direction"]), (&"none".into(), &"out".into()));
    assert!(
        sessions[2]["error"].as_str().is_some_and(|error| error.contains("no export")),
        "{}",
        sessions[2]
    );
}

/// Anybody may be a client of a plain service, and fail as often as it likes.
#[test]
fn sessions_that_fail_fill_no_log() {
    let service = Service::start(&[]);
    let fail = || {
        let done = service.get("none", &[]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(5), "{said} {}", service.log());
    };
    let lines = || {
        let log = service.log();
        log.lines().filter(|line| line.contains("there is no export")).map(str::to_owned).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while lines().is_empty() {
        assert!(start.elapsed() < LIMIT, "{}", service.log());
        fail();
    }
    // Ten lines in 10 s.
    let first = Instant::now();
    let mut failed = 0;
    while failed < 40 {
        fail();
        failed += 1;
    }
    let periods = 1 + start.elapsed().as_secs() as usize / 10;
    assert!(lines().len() <= 10 * periods, "{} lines: {}", lines().len(), service.log());
    // The next one says how many were left out.
    while !lines().iter().any(|line| line.contains("times more since it was last said")) {
        assert!(first.elapsed() < LIMIT, "{}", service.log());
        std::thread::sleep(Duration::from_millis(500));
        fail();
    }
    assert_eq!(service.get("data", &[]).status.code(), Some(0));
}

#[test]
fn a_session_that_breaks_off_is_a_line_with_what_it_did() {
    let service = Service::start(&["--log-format", "json"]);
    fs::write(service.folder.path().join("data/file"), vec![7; 32 << 20]).expect("written");
    let mut command = isthmus(service.folder.path());
    let place = format!("127.0.0.1:{}:data/file", service.port);
    command.args(["cp", "--plain", "--limit-rate", "4MB/s", &place, "copy"]).stderr(Stdio::null());
    let mut client = command.spawn().expect("it starts");
    let until = Instant::now() + LIMIT;
    let await_that = |what: &str, seen: &dyn Fn() -> bool| {
        while !seen() {
            assert!(Instant::now() < until, "{what}: {}", service.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    await_that("nothing comes", &|| {
        let names = fs::read_dir(service.folder.path()).expect("a folder").flatten();
        names.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".part"))
    });
    // The service notes its progress twice a second.
    std::thread::sleep(Duration::from_millis(2_500));
    client.kill().expect("it runs");
    client.wait().expect("an end");
    let ended = || -> Option<serde_json::Value> {
        let log = service.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.find(|line: &serde_json::Value| line["seconds"].is_number())
    };
    await_that("no line about the session", &|| ended().is_some());
    let line = ended().expect("a line");
    for (field, value) in
        [("level", "WARN"), ("export", "data"), ("direction", "out"), ("paths", "data/file")]
    {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(line["files"], 0, "{line}");
    assert!(line["bytes"].as_u64().is_some_and(|bytes| (1..32 << 20).contains(&bytes)), "{line}");
    assert!(line["error"].is_string(), "{line}");
}

/// Limits the length of files by the shell, and makes a service write a file that is longer.
#[test]
fn a_limit_on_the_length_of_files_fails_the_file_and_not_the_service() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("data")).expect("made");
    fs::create_dir(at("from")).expect("made");
    fs::write(at("from/long"), vec![7; 4 << 20]).expect("written");
    fs::write(at("from/short"), "short").expect("written");
    let text = format!(
        "listen = \"127.0.0.1:{port}\"\nplain = true\n[export.data]\npath = \"data\"\nwritable = true\n"
    );
    fs::write(at("serve.toml"), text).expect("written");
    let mut shell = Command::new("bash");
    shell.args([
        "-c",
        "ulimit -f 1024; exec \"$0\" serve --config serve.toml",
        env!("CARGO_BIN_EXE_isthmus"),
    ]);
    shell.current_dir(folder.path()).env("FI_ISTHMUS_INTERFACE", "127.0.0.1").stderr(Stdio::piped());
    let mut child = shell.spawn().expect("it starts");
    let until = Instant::now() + LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let place = format!("127.0.0.1:{port}:data/");
    let done = isthmus(folder.path()).args(["cp", "--plain", "-r", "from/", &place]).output();
    let done = done.expect("it runs");
    let ended = child.try_wait().expect("ours");
    let _ = child.kill();
    let _ = child.wait();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!((done.status.code(), ended), (Some(1), None), "{said}");
    assert!(said.contains("long") && said.contains("File too large"), "{said}");
    assert_eq!(fs::read(at("data/short")).expect("copied"), b"short");
}

#[test]
fn a_certificate_that_expires_soon_is_told_at_the_start_and_as_a_metric() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("data")).expect("made");
    let keygen = ["router", "keygen", "--as", "2", "--out", "keys", "--name", "mover", "--days", "9"];
    assert!(isthmus(folder.path()).args(keygen).output().expect("it runs").status.success());
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free");
    let (listen, status) = (free(), free());
    let text = format!(
        "listen = \"{listen}\"\nstatus = \"{status}\"\nadmits = [2]\n[export.data]\npath = \"data\"\n[tls]\n\
         certificate = \"keys/mover.pem\"\nkey = \"keys/mover.key\"\nauthorities = [\"keys/as2.pem\"]\n"
    );
    fs::write(folder.path().join("serve.toml"), text).expect("written");
    let log = fs::File::create(folder.path().join("log")).expect("a log");
    let mut serve = isthmus(folder.path());
    let child = serve.args(["serve", "--config", "serve.toml"]).stderr(log).spawn().expect("it starts");
    let _service = Ended(child);
    let until = Instant::now() + LIMIT;
    let log = || fs::read_to_string(folder.path().join("log")).expect("text");
    while !log().contains("serving at") {
        assert!(Instant::now() < until, "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(log().contains("mover.pem expires in 8 days, on "), "{}", log());
    let mut http = TcpStream::connect(status).expect("the status answers");
    http.set_read_timeout(Some(LIMIT)).expect("a time-out");
    write!(http, "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    http.read_to_string(&mut answer).expect("an answer");
    let name = "\nisthmus_serve_certificate_expiry_timestamp_seconds ";
    let (_, rest) = answer.split_once(name).unwrap_or_else(|| panic!("{answer}"));
    let at: f64 = rest.lines().next().and_then(|value| value.parse().ok()).expect("a number");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    assert!((8.9..=9.0).contains(&((at - now) / 86_400.0)), "{at}");
}
