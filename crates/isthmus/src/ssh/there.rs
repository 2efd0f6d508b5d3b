//! The side that ssh starts: a service for one copy, with the rights of the user.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use isthmus_io::Settings;
use isthmus_io::log::{accepted, warn};
use isthmus_mover::channel::PROTOCOLS;
use isthmus_mover::config::Export;
use isthmus_mover::{Cache, Disk, Io, MoverError, ServeConfig, server};
use isthmus_trust::Throwaway;
use isthmus_units::Size;

use super::tunnel::Tunnel;
use super::{
    Answer, Ask, EXPORT, HERE, MARK, NONCE, Ready, THERE, VERSION, line, paths, read_line, settings,
};

/// Serve one copy of `isthmus cp` on another host, which starts this by ssh; not for people
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_: &Args) -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("isthmus ssh-serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut input = io::stdin().lock();
    let own = Throwaway::make(THERE.0)?;
    let wanted = Settings::load().map_err(io::Error::other)?;
    let door = reached_at().and_then(|at| TcpListener::bind(SocketAddr::new(at, wanted.port)).ok());
    let probe = door.as_ref().and_then(|door| door.local_addr().ok());
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    say(&format!(
        "{MARK}{}",
        line(&Ready { version: VERSION, authority: own.authority().to_vec(), probe, nonce })?
    ))?;
    let knocks = door.map(|door| Knocks::answer(door, nonce)).transpose()?;
    let ask: Ask = read_line(&mut input)?;
    // The service listens at the same port, which a firewall may have been opened for.
    drop(knocks);
    let listen = if ask.direct { probe } else { None };
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let paths = ask.paths.iter().map(|path| paths::below_root(path, &home, ask.put)).collect();
    let tunnelled = serve(wanted, listen, &own, &ask, paths)?;
    follow(&mut input, tunnelled)
}

/// This host's address, by which the other one reached it.
fn reached_at() -> Option<IpAddr> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    connection.split_whitespace().nth(2)?.parse().ok()
}

/// Starts the service, says where it is, and returns that.
fn serve(
    wanted: Settings,
    listen: Option<SocketAddr>,
    own: &Throwaway,
    ask: &Ask,
    paths: Vec<Vec<u8>>,
) -> io::Result<SocketAddr> {
    let trust = own.trust(HERE, &ask.authority, PROTOCOLS).map_err(io::Error::other)?;
    let disk = Disk { io: Io::default(), cache: Cache::default() };
    let config = ServeConfig {
        listen: listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).into(),
        plain: false,
        admits: vec![HERE.0],
        tls: None,
        status: None,
        status_remote: false,
        exports: BTreeMap::from([(
            EXPORT.to_owned(),
            Export { path: Path::new("/").to_owned(), writable: true, allow: None, any_symlink: true },
        )]),
        sessions: 1,
        memory: Size(256 << 20),
        threads: 2,
        io: disk.io,
        cache: disk.cache,
        device: settings(wanted, listen.is_some()),
    };
    let (told, ready) = std::sync::mpsc::channel::<Result<SocketAddr, MoverError>>();
    std::thread::Builder::new().name("ssh-serve".to_owned()).spawn(move || {
        // It serves until the process ends.
        let never = AtomicBool::new(false);
        let to = told.clone();
        let ended = server::serve_with(config, Some(trust), &never, move |address| {
            let _ = to.send(Ok(address.locator));
        });
        if let Err(error) = ended {
            let _ = told.send(Err(error));
        }
    })?;
    let ended = || io::Error::other("the service ended before it began");
    match ready.recv().map_err(|_| ended())? {
        Ok(at) => {
            say(&line(&Answer::Serving { at, paths })?)?;
            Ok(at)
        }
        Err(error) => {
            say(&line(&Answer::Failed(error.to_string()))?)?;
            Err(io::Error::other(error))
        }
    }
}

/// Carries lanes that come by ssh to the service, until ssh ends. Then this process does, at once: what was copied so
/// far is in its journal, and nothing may hold a file that the same command wants to continue.
fn follow(input: &mut impl BufRead, service: SocketAddr) -> io::Result<()> {
    Tunnel::new(Box::new(io::stdout())).carry(input, Some(service))
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Tells everybody who connects to the door the nonce, until it is dropped.
struct Knocks {
    at: SocketAddr,
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Knocks {
    fn answer(door: TcpListener, nonce: [u8; NONCE]) -> io::Result<Self> {
        let (at, stop) = (door.local_addr()?, std::sync::Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().name("ssh-probe".to_owned()).spawn({
            let stop = stop.clone();
            move || {
                for mut stream in accepted(door.incoming(), warn) {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    // Who has gone again does not need it.
                    let _ = stream.write_all(&nonce);
                }
            }
        })?;
        Ok(Self { at, stop, thread: Some(thread) })
    }
}

impl Drop for Knocks {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        // It wakes by one more connection.
        if std::net::TcpStream::connect(self.at).is_ok() {
            let _ = self.thread.take().map(std::thread::JoinHandle::join);
        }
    }
}
