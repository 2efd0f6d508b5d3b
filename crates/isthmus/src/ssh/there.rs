//! The side that ssh starts, with the user's rights: a service for one copy, or probes for `isthmus doctor`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use isthmus_io::Settings;
use isthmus_io::log::no_thread;
use isthmus_mover::channel::PROTOCOLS;
use isthmus_mover::config::Export;
use isthmus_mover::{Cache, Disk, Io, MoverError, ServeConfig, server};
use isthmus_trust::Throwaway;
use isthmus_units::Size;

use super::probe::Door;
use super::tunnel::Tunnel;
use super::{
    Answer, Ask, Back, EXPORT, HERE, MARK, RELEASE, Reach, Ready, Request, THERE, VERSION, line, paths,
    read_line, settings,
};

/// Serve `isthmus cp` or `isthmus doctor` on another host, which starts this by ssh; not for people
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
    let (us, them) = addresses().unzip();
    let mut door = us.and_then(|us| Door::open(us, &wanted).ok());
    let probe = door.as_ref().map(|door| door.at);
    let ready = Ready {
        version: VERSION,
        release: RELEASE.to_owned(),
        authority: own.authority().to_vec(),
        probe,
        nonce: door.as_ref().map(|door| door.nonce).unwrap_or_default(),
    };
    say(&format!("{MARK}{}", line(&ready)?))?;
    if let Some(door) = &mut door {
        door.answer_tcp()?;
    }
    let ask = match read_line(&mut input)? {
        Request::Copy(ask) => ask,
        Request::Check { check: back } => return check(&mut input, door, back, them),
    };
    // The service listens at the same port, for which a firewall may have been opened.
    if let Some(door) = door.take().filter(|_| ask.direct) {
        door.await_probe();
    }
    let listen = if ask.direct { probe } else { None };
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let paths = ask.paths.iter().map(|path| paths::below_root(path, &home, ask.put)).collect();
    let tunnelled = serve(wanted, listen, &own, &ask, paths)?;
    follow(&mut input, tunnelled)
}

/// This host's address by which ssh reached it, and the other host's address as seen from here.
fn addresses() -> Option<(IpAddr, IpAddr)> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    let words: Vec<&str> = connection.split_whitespace().collect();
    Some((words.get(2)?.parse().ok()?, words.first()?.parse().ok()?))
}

/// Answers a doctor's probes until ssh ends, and probes the doctor in return. It tries the address that the doctor
/// gives, then the address seen from here: NAT may lie between.
fn check(
    input: &mut impl Read,
    mut door: Option<Door>,
    back: Option<Back>,
    them: Option<IpAddr>,
) -> io::Result<()> {
    let udp = door.as_mut().map_or(Ok(()), Door::answer_udp).map_err(|error| error.to_string());
    say(&line(&Answer::Checking { udp })?)?;
    let mut reached: Vec<Reach> = Vec::new();
    if let Some(Back { at, nonce }) = back {
        for ip in [Some(at.ip()), them.filter(|them| *them != at.ip())].into_iter().flatten() {
            if !reached.iter().any(Reach::is_any) {
                reached.push(Reach::try_at(SocketAddr::new(ip, at.port()), &nonce));
            }
        }
    }
    say(&line(&Answer::Checked(reached))?)?;
    io::copy(input, &mut io::sink()).map(drop)
}

/// Starts the service, sends its address to the other side, and returns the address.
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
    let thread = std::thread::Builder::new().name("ssh-serve".to_owned()).spawn(move || {
        // It serves until the process ends.
        let never = AtomicBool::new(false);
        let to = told.clone();
        let ended = server::serve_with(config, Some(trust), &never, move |address| {
            let _ = to.send(Ok(address.locator));
        });
        if let Err(error) = ended {
            let _ = told.send(Err(error));
        }
    });
    thread.map_err(no_thread)?;
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

/// Carries lanes that come by ssh to the service, until ssh ends. Then this process ends at once, so that it holds no
/// file that the same command wants to continue. The journal has what was copied so far.
fn follow(input: &mut impl BufRead, service: SocketAddr) -> io::Result<()> {
    Tunnel::new(Box::new(io::stdout())).carry(input, Some(service))
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
