//! Hosts of a test's own: network namespaces that a veth pair joins, and this program in them.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use isthmus_substrate::{Endpoint, EndpointOptions, Event, Substrate};

use super::{LIMIT, give_up, in_time};

/// Says which part this program plays, and how.
pub const ROLE: &str = "ISTHMUS_TEST_ROLE";
/// The transport of the lanes, if the test has chosen one.
const TRANSPORT: &str = "ISTHMUS_TEST_TRANSPORT";

/// What namespaces are made with here, if at all.
pub fn unshare() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--user", "--map-root-user", "--net"], &["--net"]];
    let works = |way: &&&[&str]| {
        let tried = Command::new("unshare").args(**way).args(["ip", "link"]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    let found = ways.iter().find(works).copied();
    if found.is_none() {
        eprintln!("skipped: no network namespaces, or no ip(8), for this user");
    }
    found
}

/// This program in another part: the test of that name.
pub fn play(unshare: &[&str], role: &str, part: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut command = match unshare {
        [] => Command::new(this),
        more => {
            let mut command = Command::new("unshare");
            command.args(more).arg(this);
            command
        }
    };
    command.args([part, "--exact", "--nocapture"]).env(ROLE, role).env_remove("ISTHMUS_CONFIG");
    command
}

/// The same with lanes by this transport.
pub fn play_by(unshare: &[&str], role: &str, part: &str, transport: &str) -> Command {
    let mut command = play(unshare, role, part);
    command.env(TRANSPORT, transport);
    command
}

/// Runs the test `near` on a host of its own; what it says at its end is `seen inside`.
pub fn run_near(role: &str, more: impl FnOnce(&mut Command)) {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let Some(way) = unshare() else { return };
    let mut command = play(way, role, "near");
    more(&mut command);
    let output = command.output().expect("it starts");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("seen inside"), "{said}{complained}");
}

/// The same with lanes by this transport.
pub fn run_near_by(role: &str, transport: &str) {
    run_near(role, |command| {
        command.env(TRANSPORT, transport);
    });
}

/// The transport that [`play_by`] or [`run_near_by`] has given.
pub fn transport() -> String {
    std::env::var(TRANSPORT).expect("set with the role")
}

/// Opens an endpoint once this host has an address of 10.99.9.0/24. Without `interface` the kernel's routes decide.
pub fn open(interface: &str) -> Endpoint {
    let text = format!("[device.any]\ntransport = \"{}\"\ninterface = \"{interface}\"\n", transport());
    let start = Instant::now();
    loop {
        let substrate = Substrate::from_toml(&text, "test").expect("valid");
        let device = substrate.default_device().expect("up");
        // The kernel notices a cable a moment after it is there.
        if device.address().is_ok_and(|ip| ip.to_string().starts_with("10.99.9.")) {
            return Endpoint::create(device, &EndpointOptions::default()).expect("opened");
        }
        in_time(start.elapsed() < LIMIT, || format!("the interface has no address: {:?}", device.address()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether this program plays the far host. If so, its interface is there by now.
pub fn plays_far() -> bool {
    if std::env::var(ROLE).is_err() {
        return false;
    }
    println!("far is here");
    std::io::stdin().read_line(&mut String::new()).expect("the near part lives");
    ip("link set lo up");
    true
}

/// The far host: tells the addresses of its endpoints, and accepts who comes.
pub fn accept_all(endpoints: &[Endpoint]) {
    endpoints.iter().for_each(|endpoint| println!("uri {}", endpoint.uri()));
    let start = Instant::now();
    while start.elapsed() < 2 * LIMIT {
        for endpoint in endpoints {
            let event = endpoint.next_event(Some(Duration::from_millis(100))).expect("open");
            if let Some(Event::Requested(request)) = event {
                endpoint.accept(request, 0).expect("asked for");
            }
        }
    }
}

pub fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip(8) is there");
    assert!(done.success(), "ip {words}");
}

/// The other host, or another process of this one: its words, and a way to tell it some.
pub struct Far {
    pub child: Child,
    said: mpsc::Receiver<String>,
    tell: ChildStdin,
}

impl Far {
    /// Plays the test `far`; on a host of its own where it is `apart`.
    pub fn start(role: &str, apart: bool) -> Self {
        // In a namespace of a user's own, so is the next one.
        let mut child = play(if apart { &["--net"] } else { &[] }, role, "far")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (lines, said) = mpsc::channel();
        let from = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            from.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)));
        });
        let tell = child.stdin.take().expect("piped");
        let far = Self { child, said, tell };
        far.hear("far is here");
        far
    }

    /// What follows a word in the next line that has it.
    pub fn hear(&self, word: &str) -> String {
        loop {
            let line = self.said.recv_timeout(LIMIT).unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => give_up(format_args!("the far part does not say {word:?}")),
                RecvTimeoutError::Disconnected => panic!("the far part has ended"),
            });
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.tell, "{line}").expect("it lives");
    }

    /// Its host's network, which is there while this is, whatever becomes of the process.
    pub fn network(&self) -> std::fs::File {
        std::fs::File::open(format!("/proc/{}/ns/net", self.child.id())).expect("it lives")
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Stops it, and returns when all its threads stand still.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        super::until_stopped(self.child.id());
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
