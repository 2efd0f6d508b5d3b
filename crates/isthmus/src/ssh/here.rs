//! The side of the user: starts ssh, and finds out by which way the copy goes.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use isthmus_io::Settings;
use isthmus_mover::MoverError;
use isthmus_mover::channel::PROTOCOLS;
use isthmus_trust::{Throwaway, Trust};

use super::tunnel::Tunnel;
use super::{Answer, Ask, EXPORT, HERE, MARK, NONCE, Ready, THERE, VERSION, line, read_line, settings};

/// How long a probe may take: one lost packet at the beginning costs a second.
const PROBE: Duration = Duration::from_millis(1500);
/// Most that a shell may say before the other side begins. Bytes.
const CHATTER_MAX: usize = 256 << 10;
/// How long ssh may take to end after its output did.
const PARTING: Duration = Duration::from_secs(2);
/// The exit status of a shell that does not find a command, and of ssh that did not get through.
const NOT_FOUND: i32 = 127;
const SSH_FAILED: i32 = 255;

/// What copies by ssh go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Directly where a connection gets through, else through ssh
    #[default]
    Auto,
    /// Directly, or not at all
    Direct,
    /// Through ssh's own stream
    Ssh,
}

/// How ssh is called.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// ssh and its options.
    pub(crate) ssh: String,
    /// The isthmus of the other host.
    pub(crate) remote: Option<String>,
    pub(crate) by: By,
}

/// What a copy needs to know of the other side.
pub(crate) struct Session {
    pub(crate) service: SocketAddr,
    pub(crate) trust: Trust,
    pub(crate) settings: Settings,
    pub(crate) export: String,
    /// Below the root of that host.
    pub(crate) paths: Vec<Vec<u8>>,
    ssh: Ssh,
}

/// ssh, which ends with this.
struct Ssh {
    child: Child,
    login: String,
    /// The copy is over: ssh may end.
    over: Arc<AtomicBool>,
    /// What holds its input open.
    tunnel: Arc<Tunnel>,
}

/// Starts isthmus at `login`, for a copy of these paths there, which files come to (`put`) or from.
pub(crate) fn start(
    login: &str,
    paths: Vec<Vec<u8>>,
    put: bool,
    options: &Options,
    wanted: Settings,
) -> Result<Session, MoverError> {
    let local = |error: io::Error| MoverError::Local(error.to_string());
    let own = Throwaway::make(HERE.0).map_err(local)?;
    let mut child = spawn(login, options)?;
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(MoverError::Local("ssh has no standard input or output".to_owned()));
    };
    let mut from = BufReader::new(from);
    let ready = match ready(&mut from) {
        Ok(ready) => ready,
        Err(error) => return Err(explained(login, child, &error, options)),
    };
    if ready.version != VERSION {
        let text = format!("{login} has another isthmus release; install the same as here");
        return Err(MoverError::Refused(text));
    }
    let way = way(&ready, options.by).map_err(|why| MoverError::Lost(format!("{login}: {why}")))?;
    let direct = matches!(way, Way::Direct(_));
    let ask = Ask { authority: own.authority().to_vec(), direct, paths, put };
    let lost = |error: io::Error| MoverError::Lost(format!("{login}: ssh ended early: {error}"));
    to.write_all(line(&ask).map_err(local)?.as_bytes()).map_err(lost)?;
    let (at, paths) = match read_line(&mut from).map_err(lost)? {
        Answer::Serving { at, paths } => (at, paths),
        Answer::Failed(text) => return Err(MoverError::Refused(format!("{login}: {text}"))),
    };
    errln!("isthmus cp: {login}: {way}");
    let trust = own
        .trust(THERE, &ready.authority, PROTOCOLS)
        .map_err(|error| MoverError::Refused(format!("{login}: its certificate: {error}")))?;
    let mut settings = settings(wanted, direct);
    if direct && settings.interface.is_empty() {
        settings.interface = own_ip(at).map_err(local)?.to_string();
    }
    let tunnel = Tunnel::new(Box::new(to));
    let service = if direct { at } else { door(&tunnel, at).map_err(local)? };
    let over = Arc::new(AtomicBool::new(false));
    let ssh = Ssh { child, login: login.to_owned(), over, tunnel };
    ssh.watch(from).map_err(local)?;
    Ok(Session { service, trust, settings, export: EXPORT.to_owned(), paths, ssh })
}

fn spawn(login: &str, options: &Options) -> Result<Child, MoverError> {
    let mut words = options.ssh.split_whitespace();
    let program = words.next().ok_or_else(|| MoverError::Usage("--ssh names no program".to_owned()))?;
    let (host, port) = host_and_port(login);
    let mut command = Command::new(program);
    command.args(words).arg("-T");
    if let Some(port) = port {
        command.arg("-p").arg(port);
    }
    command.arg("--").arg(host).arg(remote_command(options.remote.as_deref()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
        .spawn()
        .map_err(|error| MoverError::Local(format!("cannot start {program}: {error}; install ssh")))
}

/// `user@host`, or `ssh://user@host:port`.
fn host_and_port(login: &str) -> (&str, Option<&str>) {
    let Some(rest) = login.strip_prefix("ssh://") else { return (login, None) };
    match rest.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, Some(port))
        }
        _ => (rest, None),
    }
}

/// What the user's shell there is given, whichever it is: a login by ssh that runs a command reads no profile, so the
/// folders where pip and cargo put programs are often not in its PATH.
fn remote_command(named: Option<&str>) -> String {
    let program = named.map_or_else(|| "isthmus".to_owned(), quoted);
    let script =
        format!("PATH=\"$PATH:$HOME/.local/bin:$HOME/bin:/usr/local/bin\"; exec {program} ssh-serve");
    format!("exec sh -c {}", quoted(&script))
}

/// For a POSIX shell, and for csh.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The first line of the other side, behind whatever its shell says.
fn ready(from: &mut BufReader<ChildStdout>) -> io::Result<Ready> {
    let mut heard = 0;
    while heard < CHATTER_MAX {
        let mut bytes = Vec::new();
        heard += from.take(CHATTER_MAX as u64).read_until(b'\n', &mut bytes)?;
        let Some(last) = bytes.last() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        if let Some(json) = bytes.strip_prefix(MARK.as_bytes()).filter(|_| *last == b'\n') {
            return Ok(serde_json::from_slice(json)?);
        }
    }
    Err(io::Error::other("it says something else"))
}

/// Why there was no first line, in one line, with the remedy.
fn explained(login: &str, mut child: Child, error: &io::Error, options: &Options) -> MoverError {
    drop(child.stdin.take());
    let status = ended(&mut child).and_then(|status| status.code());
    let program = options.remote.as_deref().unwrap_or("isthmus");
    match status {
        Some(NOT_FOUND) => MoverError::Refused(format!(
            "{program} is not installed at {login}; there: pip install --user isthmus; or name it with \
             --remote-isthmus PATH"
        )),
        Some(SSH_FAILED) => MoverError::Lost(format!("ssh does not get to {login}, see above")),
        Some(code) => MoverError::Refused(format!(
            "{program} at {login} ended with status {code} before it began; try: ssh {login} {program} --version"
        )),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            MoverError::Refused(format!("{program} at {login} gives no answer that is understood: {error}"))
        }
    }
}

fn ended(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + PARTING;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// How the copy goes; its text tells the user.
enum Way {
    Direct(SocketAddr),
    Chosen,
    /// Where it was tried, and what became of that.
    Instead(Option<(SocketAddr, io::Error)>),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(at) => write!(f, "data goes directly to {at}"),
            Self::Chosen => write!(f, "data goes through ssh, as --via says"),
            Self::Instead(None) => {
                write!(
                    f,
                    "data goes through ssh, as fast as that is: the other host does not know its address"
                )
            }
            Self::Instead(Some((at, error))) => write!(
                f,
                "data goes through ssh, as fast as that is: {at} cannot be reached directly ({error}); open TCP and \
                 UDP to there, of one port if that host has set it (port in isthmus.toml)"
            ),
        }
    }
}

fn way(ready: &Ready, by: By) -> Result<Way, String> {
    if by == By::Ssh {
        return Ok(Way::Chosen);
    }
    let Some(at) = ready.probe else {
        if by == By::Direct {
            return Err("that host does not know by which address it was reached".to_owned());
        }
        return Ok(Way::Instead(None));
    };
    match probe(at, &ready.nonce) {
        Ok(()) => Ok(Way::Direct(at)),
        Err(error) if by == By::Direct => {
            Err(format!("{at} cannot be reached directly ({error}); open it, or leave --via direct out"))
        }
        Err(error) => Ok(Way::Instead(Some((at, error)))),
    }
}

/// Whether a connection to `at` leads to the process at the other end of ssh: at another site a private address may be
/// somebody else's.
fn probe(at: SocketAddr, nonce: &[u8; NONCE]) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&at, PROBE)?;
    stream.set_read_timeout(Some(PROBE))?;
    let mut heard = [0; NONCE];
    stream.read_exact(&mut heard)?;
    if heard == *nonce { Ok(()) } else { Err(io::Error::other("another program answers there")) }
}

/// The address of this host from which `to` is reached. Nothing is sent.
fn own_ip(to: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// Where lanes enter ssh on this host: by the number of the port there, if it is free, so that one that has to be dialled
/// again finds the same.
fn door(tunnel: &Arc<Tunnel>, at: SocketAddr) -> io::Result<SocketAddr> {
    let local = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = local(at.port()).or_else(|_| local(0))?;
    let service = listener.local_addr()?;
    tunnel.listen(listener)?;
    Ok(service)
}

impl Ssh {
    /// Carries what comes by ssh. When that ends before the copy does, so does this process: there is nobody at the
    /// other end any more, and no use in waiting for it.
    fn watch(&self, mut from: BufReader<ChildStdout>) -> io::Result<()> {
        let (tunnel, over, login) = (self.tunnel.clone(), self.over.clone(), self.login.clone());
        std::thread::Builder::new().name("ssh".to_owned()).spawn(move || {
            let _ = tunnel.carry(&mut from, None);
            if !over.load(Ordering::Relaxed) {
                errln!("isthmus cp: ssh to {login} ended; the same command continues");
                std::process::exit(4);
            }
        })?;
        Ok(())
    }
}

impl Session {
    /// The copy has ended, well or not: what ssh says no longer matters.
    pub(crate) fn end(mut self) {
        self.ssh.over.store(true, Ordering::Relaxed);
        let _ = self.ssh.child.kill();
        let _ = self.ssh.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_written_as_ssh_has_them() {
        assert_eq!(host_and_port("me@b"), ("me@b", None));
        assert_eq!(host_and_port("ssh://me@b:2222"), ("me@b", Some("2222")));
        assert_eq!(host_and_port("ssh://b"), ("b", None));
        assert_eq!(host_and_port("ssh://me@[fd00::1]"), ("me@[fd00::1]", None));
    }

    #[test]
    fn any_shell_starts_the_other_side() {
        for named in [None, Some("/a folder/it's isthmus")] {
            let command = remote_command(named);
            let said = Command::new("sh").arg("-c").arg(&command).env("PATH", "/usr/bin:/bin").output();
            let said = said.expect("a shell");
            assert_eq!(said.status.code(), Some(NOT_FOUND), "{command:?}: {said:?}");
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains("isthmus"), "{said}");
        }
    }

    #[test]
    fn a_probe_knows_whom_it_reached() {
        let door = TcpListener::bind("127.0.0.1:0").expect("free");
        let at = door.local_addr().expect("known");
        std::thread::spawn(move || {
            for stream in door.incoming() {
                stream.and_then(|mut stream| stream.write_all(&[7; NONCE])).expect("written");
            }
        });
        assert!(probe(at, &[7; NONCE]).is_ok());
        let error = probe(at, &[8; NONCE]).expect_err("somebody else").to_string();
        assert!(error.contains("another program"), "{error}");
    }
}
