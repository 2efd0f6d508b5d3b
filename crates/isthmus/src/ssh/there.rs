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

use super::probe::{Door, Nonce};
use super::tunnel::Tunnel;
use super::{
    Answer, Ask, Back, EXPORT, HERE, MARK, RELEASE, REQUEST, Reach, Ready, Request, THERE, VERSION, line,
    paths, read_line, settings,
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
    if let Some(ask) = early_request(&mut input)? {
        return copy(&mut input, &wanted, us, &own, &ask);
    }
    let mut door = us.and_then(|us| Door::open(us, &wanted).ok());
    let probe = door.as_ref().map(|door| door.at);
    let nonce = door.as_ref().map(|door| door.nonce).unwrap_or_default();
    begin(&own, probe, nonce, None)?;
    if let Some(door) = &mut door {
        door.answer_tcp()?;
    }
    let ask = match read_line(&mut input)? {
        Request::Copy(ask) => ask,
        Request::Check { check: back } => return check(&mut input, door, back, them),
    };
    // The service listens at the port that was probed.
    drop(door);
    let served = serve(&wanted, probe.filter(|_| ask.direct), &own, &ask);
    say(&line(&answer(&served, &ask))?)?;
    served.map_or(Ok(()), |at| follow(&mut input, at))
}

/// The request that this side's shell has read before it started this process. If the server's configuration forces the
/// command, no such shell has run, and the request is the first line of the input.
fn early_request(input: &mut impl BufRead) -> io::Result<Option<Ask>> {
    let has_sent = || std::env::var("SSH_ORIGINAL_COMMAND").is_ok_and(|command| command.contains(REQUEST));
    let request = match std::env::var(REQUEST) {
        Ok(text) => read_line(&mut text.as_bytes())?,
        Err(_) if has_sent() => read_line(input)?,
        Err(_) => return Ok(None),
    };
    match request {
        Request::Copy(ask) => Ok(Some(ask)),
        Request::Check { .. } => Err(io::Error::other("only requests for copies come first")),
    }
}

/// Serves a copy. The first line has the answer to its request already.
fn copy(
    input: &mut impl BufRead,
    wanted: &Settings,
    us: Option<IpAddr>,
    own: &Throwaway,
    ask: &Ask,
) -> io::Result<()> {
    let direct = us.filter(|_| ask.direct).and_then(|ip| {
        let served = serve(wanted, Some(SocketAddr::new(ip, wanted.port)), own, ask);
        served.inspect_err(|error| errln!("isthmus ssh-serve: cannot listen at {ip}: {error}")).ok()
    });
    let served = direct.map_or_else(|| serve(wanted, None, own, ask), Ok);
    begin(own, direct, Nonce::default(), Some(answer(&served, ask)))?;
    served.map_or(Ok(()), |at| follow(input, at))
}

/// What the other side is told of its service. The paths of its request are below the root.
fn answer(served: &Result<SocketAddr, MoverError>, ask: &Ask) -> Answer {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let paths = || ask.paths.iter().map(|path| paths::below_root(path, &home, ask.put)).collect();
    match served {
        Ok(at) => Answer::Serving { at: *at, paths: paths() },
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Sends the first line.
fn begin(own: &Throwaway, probe: Option<SocketAddr>, nonce: Nonce, answer: Option<Answer>) -> io::Result<()> {
    let (release, authority) = (RELEASE.to_owned(), own.authority().to_vec());
    say(&format!("{MARK}{}", line(&Ready { version: VERSION, release, authority, probe, nonce, answer })?))
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

/// Starts the service, and returns its address. Without `listen` only this host reaches it.
fn serve(
    wanted: &Settings,
    listen: Option<SocketAddr>,
    own: &Throwaway,
    ask: &Ask,
) -> Result<SocketAddr, MoverError> {
    let untrusted = |error| MoverError::Refused(format!("the certificate that came: {error}"));
    let trust = own.trust(HERE, &ask.authority, PROTOCOLS).map_err(untrusted)?;
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
        device: settings(wanted.clone(), listen.is_some()),
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
    ready.recv().map_err(|_| MoverError::Local("the service ended before it began".to_owned()))?
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
