//! Strangers at a running `isthmus serve`, which a client uses meanwhile: crowds of connections, floods of packets, and
//! no descriptors left. Everybody is served who has a certificate, memory is bounded, and the log is short.

#[path = "support/command.rs"]
mod command;
#[path = "support/running.rs"]
mod running;
#[path = "support/strangers.rs"]
mod strangers;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use command::isthmus;
use isthmus_wire::frame::{Hello, MAGIC};
use isthmus_wire::{Address, PROTOCOL_OLDEST, PROTOCOL_VERSION};
use running::Running;
use strangers::{connect_from, many_files};

const LIMIT: Duration = Duration::from_secs(60);
/// Length of the file that the client copies. Bytes.
const LENGTH: usize = 1 << 20;
/// Connections of a crowd. Count.
const CROWD: usize = 2_000;

/// A service with certificates, and a client that it knows.
struct Service {
    folder: tempfile::TempDir,
    at: SocketAddr,
    process: Running,
    started: Instant,
}

impl Service {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with further arguments.
    fn start_with(words: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
        for (as_id, name) in [("1", "client"), ("2", "server"), ("3", "other")] {
            let words = ["router", "keygen", "--as", as_id, "--out", "keys", "--name", name];
            assert!(isthmus(folder.path()).args(words).output().expect("it runs").status.success());
        }
        fs::create_dir(folder.path().join("export")).expect("made");
        write("export/file", &random(1, LENGTH));
        let tls = |name: &str, other: u32| {
            format!(
                "[tls]\ncertificate = \"keys/{name}.pem\"\nkey = \"keys/{name}.key\"\n\
                 authorities = [\"keys/as{other}.pem\"]\n"
            )
        };
        let serve = format!(
            "listen = \"{at}\"\nadmits = [1]\n{}[export.data]\npath = \"export\"\n",
            tls("server", 1)
        );
        write("serve.toml", serve.as_bytes());
        for name in ["client", "other"] {
            let known = format!("{}[site.b]\naddress = \"{at}\"\n", tls(name, 2));
            write(&format!("{name}.toml"), known.as_bytes());
        }
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let child =
            isthmus(folder.path()).args(["serve", "--config", "serve.toml"]).args(words).stderr(log).spawn();
        let service =
            Self { folder, at, process: Running(child.expect("it starts")), started: Instant::now() };
        let until = Instant::now() + LIMIT;
        while !service.log().contains("serving at") {
            assert!(Instant::now() < until, "{}", service.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        service.serves();
        service
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("text")
    }

    /// Copies the file as the client whose sites are in this file.
    fn copy(&self, sites: &str) -> Output {
        let _ = fs::remove_file(self.folder.path().join("copy"));
        let words = ["cp", "--sites", sites, "--all", "b:data/file", "copy"];
        isthmus(self.folder.path()).args(words).output().expect("it runs")
    }

    /// A client that the service knows is served, and soon.
    fn serves(&self) {
        let begun = Instant::now();
        let Output { status, stderr, .. } = self.copy("client.toml");
        let took = begun.elapsed();
        assert!(status.success(), "{}\n{}", String::from_utf8_lossy(&stderr), self.log());
        assert!(fs::read(self.folder.path().join("copy")).expect("copied") == random(1, LENGTH));
        assert!(took < Duration::from_secs(30), "{took:?}");
    }

    /// Most memory that the service ever had. Bytes.
    fn most_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.process.0.id());
        let status = fs::read_to_string(status).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
        line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// The log has few warnings, and few lines about lanes and peers however many came. Limits are for each 10 s.
    fn log_is_short(&self) {
        let log = self.log();
        let warnings: Vec<_> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
        let times = 1 + self.started.elapsed().as_secs() as usize / 10;
        assert!(warnings.len() < 10 * times, "{} warnings: {warnings:#?}", warnings.len());
        assert!(log.lines().count() < 250 * times, "{} lines: {log}", log.lines().count());
    }

    /// The fingerprint of the client's certificate, as the audit trail has it.
    fn certificate(&self) -> String {
        let served = self.line(|line| line["certificate"].is_string());
        served["certificate"].as_str().expect("text").to_owned()
    }

    /// The sessions under way: each has a thread of this name.
    fn open_sessions(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.0.id())).expect("it runs");
        let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "mover-session").count()
    }

    /// Waits until something is so.
    fn comes(&self, is_so: impl Fn() -> bool) {
        let until = Instant::now() + LIMIT;
        while !is_so() {
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has the service read its configuration again, with a deny list of these lines.
    fn reload_with_denied(&self, denied: &str) {
        let at = |name: &str| self.folder.path().join(name);
        fs::write(at("denied.txt"), denied).expect("written");
        let before = self.log().matches("certificates read again").count();
        let config = fs::read_to_string(at("serve.toml")).expect("text");
        let config = config.replace("denied = \"denied.txt\"\n", "");
        fs::write(at("serve.toml"), config.replace("[tls]\n", "[tls]\ndenied = \"denied.txt\"\n"))
            .expect("written");
        let pid = rustix::process::Pid::from_child(&self.process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("ours");
        self.comes(|| self.log().matches("certificates read again").count() > before);
    }

    /// A crowd of connections from many addresses, each of which says something. Some may be closed by then.
    fn crowd(&self, count: usize, words: impl Fn(usize) -> Vec<u8>) -> Vec<TcpStream> {
        let one = |number: usize| {
            let mut lane = connect_from([127, 9, (number / 250) as u8, 1 + (number % 250) as u8], self.at);
            let _ = lane.write_all(&words(number));
            lane
        };
        (0..count).map(one).collect()
    }

    /// A greeting as of an endpoint of this host.
    fn hello(&self, number: usize) -> Vec<u8> {
        let source =
            Address { incarnation: 1 + number as u32, ..SocketAddr::from(([127, 0, 0, 1], 9)).into() };
        let (version, oldest, target) = (PROTOCOL_VERSION, PROTOCOL_OLDEST, self.at.into());
        let hello = Hello { magic: MAGIC, version, source, target, credit: 0, hops: 0, oldest, payload: 0 };
        hello.to_bytes().to_vec()
    }
}

/// Bytes that differ between seeds.
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn crowds_of_all_kinds_keep_nobody_out() {
    many_files();
    let service = Service::start();
    let before = service.most_memory();
    let handshake = [&[22, 3, 1, 2, 0, 1, 0, 1, 252][..], &[0; 40]].concat();
    let crowds: [&dyn Fn(usize) -> Vec<u8>; 4] =
        [&|_| Vec::new(), &|_| handshake.clone(), &|number| random(number as u64, 4_000), &|number| {
            service.hello(number)
        }];
    for words in crowds {
        let crowd = service.crowd(CROWD, words);
        service.serves();
        drop(crowd);
    }
    // A byte a second, more or less, while the client is served twice.
    let mut slow = service.crowd(CROWD, |_| Vec::new());
    for _ in 0..2 {
        for (number, lane) in slow.iter_mut().enumerate() {
            let _ = lane.write_all(&random(number as u64, 1));
        }
        service.serves();
    }
    // They leave at once, and others come.
    for number in 0..5_000 {
        let host = [127, 9, 100, 1 + (number % 250) as u8];
        let _ = connect_from(host, service.at).write_all(&service.hello(number));
    }
    drop(slow);
    service.serves();
    let grown = service.most_memory() - before;
    assert!(grown < 64 << 20, "{grown} bytes more");
    service.log_is_short();
}

/// The first packet of a stream, with this token (isthmus-udp/src/wire.rs).
fn opening(source: u64, token: &[u8]) -> Vec<u8> {
    let window = &(1_u64 << 20).to_le_bytes()[..6];
    [&[0x91][..], &source.to_le_bytes(), token, window, &[0; 6], &[5]].concat()
}

/// Opens streams until it is told to stop, from an address that answers, so that the service believes it.
fn open_streams(at: SocketAddr, stop: &AtomicBool) {
    let socket = UdpSocket::bind("127.9.0.1:0").expect("a port");
    socket.connect(at).expect("loopback");
    socket.set_nonblocking(true).expect("a socket");
    let (mut token, mut heard, begun) = (vec![0; 24], [0; 2_048], Instant::now());
    for source in 1.. {
        if stop.load(Ordering::Relaxed) || begun.elapsed() > LIMIT {
            return;
        }
        // Where the socket's buffer is full it is dropped, as on any network.
        let _ = socket.send(&opening(source, &token));
        while let Ok(len) = socket.recv(&mut heard) {
            if len == 33 && heard[0] & 15 == 4 {
                token.copy_from_slice(&heard[9..33]); // a Challenge
            }
        }
    }
}

/// Sends packets until it is told to stop: random ones, and the first packets of streams from many addresses that do not
/// answer.
fn flood(at: SocketAddr, stop: &AtomicBool) {
    let bind = |host| UdpSocket::bind(SocketAddr::from(([127, 9, 1, host], 0))).expect("a port");
    let (sockets, begun) = ((1..=100).map(bind).collect::<Vec<_>>(), Instant::now());
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) || begun.elapsed() > LIMIT {
            return;
        }
        let bytes = if number % 2 == 0 { random(number, 200) } else { opening(number, &[0; 24]) };
        let _ = sockets[(number / 2) as usize % sockets.len()].send_to(&bytes, at);
    }
}

#[test]
fn floods_of_packets_keep_nobody_out() {
    let service = Service::start();
    let before = service.most_memory();
    // Each of the streams that wait takes about 40 KiB, and 2,048 may.
    for attack in [flood, open_streams] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| attack(service.at, &stop));
            std::thread::sleep(Duration::from_secs(3));
            service.serves();
            stop.store(true, Ordering::Relaxed);
        });
        service.serves();
    }
    let grown = service.most_memory() - before;
    assert!(grown < 128 << 20, "{grown} bytes more");
    service.log_is_short();
}

#[test]
fn a_service_without_descriptors_serves_whom_it_knows() {
    let service = Service::start();
    let limit = ["--pid", &service.process.0.id().to_string(), "--nofile=64:64"].map(str::to_owned);
    assert!(Command::new("prlimit").args(limit).status().expect("util-linux").success());
    let silent = service.crowd(300, |_| Vec::new());
    service.serves();
    let greeted = service.crowd(300, |number| service.hello(number));
    service.serves();
    drop((silent, greeted));
    service.log_is_short();
}

/// Each client of an AS that is not admitted gets a reason, and the log a line now and then.
#[test]
fn clients_that_are_not_admitted_fill_no_log() {
    let service = Service::start();
    for _ in 0..30 {
        let refused = service.copy("other.toml");
        assert!(!refused.status.success() && !refused.stderr.is_empty());
    }
    service.serves();
    service.log_is_short();
}

/// Lines of a log in JSON. The last one may not be whole yet.
fn lines(log: &str) -> Vec<serde_json::Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Service {
    /// The first line of the log, in JSON, for which `is_it` holds.
    fn line(&self, is_it: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(line) = lines(&self.log()).into_iter().find(&is_it) {
                return line;
            }
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// An operator's programs read who was refused, and why, from fields.
#[test]
fn a_client_that_is_refused_is_a_line_of_fields() {
    let service = Service::start_with(&["--log-format", "json"]);
    let has = |line: &serde_json::Value, field: &str, words: &str| {
        line[field].as_str().is_some_and(|value| value.contains(words))
    };
    // Its AS is not admitted: nothing that it says of itself is proved.
    assert!(!service.copy("other.toml").status.success());
    let line = service.line(|line| line["level"] == "WARN");
    assert!(has(&line, "from", "127.0.0.1:") && has(&line, "error", "authorities"), "{line}");
    assert!(line["timestamp"].is_string() && line["certificate"].is_null(), "{line}");
    // It is admitted, and asks for what is not there.
    let words = ["cp", "--sites", "client.toml", "b:none/file", "copy"];
    let refused = isthmus(service.folder.path()).args(words).output().expect("it runs");
    assert!(!refused.status.success());
    let line = service.line(|line| line["level"] == "WARN" && line["as_id"] == 1);
    assert!(has(&line, "from", "127.0.0.1:") && has(&line, "error", "no export"), "{line}");
    assert!(
        has(&line, "export", "none") && has(&line, "direction", "out") && has(&line, "paths", "none/file")
    );
    assert!(line["certificate"].is_string() && line["seconds"].is_number(), "{line}");
}

/// The certificate that the log names is refused after a reload with a deny list, and others are not.
#[test]
fn a_reload_takes_a_deny_list() {
    let service = Service::start_with(&["--log-format", "json"]);
    let certificate = service.certificate();
    service.reload_with_denied(&format!("{certificate}\n"));
    let Output { status, stderr, .. } = service.copy("client.toml");
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains("deny list"), "{said}");
    service.reload_with_denied("");
    service.serves();
}

/// The copy would take a quarter of an hour, so it is under way whenever the reload comes.
#[test]
fn a_certificate_that_is_denied_from_now_on_loses_its_sessions() {
    let service = Service::start_with(&["--log-format", "json"]);
    let certificate = service.certificate();
    let slow = |to: &str| {
        let rate = ["--limit-rate", "8kbit", "--block", "64KiB"];
        let words = [&["cp", "--sites", "client.toml"][..], &rate, &["--all", "b:data/file", to]].concat();
        let mut command = isthmus(service.folder.path());
        Running(command.args(words).stderr(std::process::Stdio::piped()).spawn().expect("it runs"))
    };
    // The service has served once already: that session may be ending yet.
    service.comes(|| service.open_sessions() == 0);
    let mut copy = slow("first");
    service.comes(|| service.open_sessions() == 1);
    service.reload_with_denied("");
    assert_eq!(service.open_sessions(), 1, "a reload as such ends nobody");
    service.reload_with_denied(&format!("{certificate}\n"));
    service.comes(|| service.open_sessions() == 0);
    let status = copy.0.wait().expect("a child");
    let mut said = String::new();
    copy.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(!status.success() && said.contains("deny list"), "{status}: {said}");
    service.reload_with_denied("");
    service.serves();
}
