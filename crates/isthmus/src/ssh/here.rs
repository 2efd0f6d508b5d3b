//! The user's side of a copy by ssh: starts ssh, and decides between a direct connection and ssh's stream.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use isthmus_io::Settings;
use isthmus_io::log::no_thread;
use isthmus_mover::MoverError;
use isthmus_mover::channel::PROTOCOLS;
use isthmus_trust::{Throwaway, Trust};

use super::probe::{Knock, Nonce};
use super::tunnel::Tunnel;
use super::{
    Answer, Ask, EXPORT, HERE, MARK, RELEASE, Ready, Request, THERE, VERSION, line, read_line, settings,
};

/// Most bytes that a login shell may print before the other side's first line.
const CHATTER_MAX: usize = 256 << 10;
/// How long ssh may take to end after its output has ended.
const PARTING: Duration = Duration::from_secs(2);
/// Exit statuses: of a shell that does not find the command, and of an ssh that could not connect.
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

// Options for calling ssh. No doc comment: it would become that of the commands that flatten these options.
#[derive(clap::Args)]
pub(crate) struct Words {
    /// By ssh: the command, with its options
    #[arg(long, value_name = "COMMAND", env = "ISTHMUS_SSH", default_value = "ssh")]
    ssh: String,
    /// By ssh: the isthmus of the other host; default: that of its PATH, ~/.local/bin, ~/bin or /usr/local/bin
    #[arg(long, value_name = "PATH")]
    remote_isthmus: Option<String>,
}

/// What a copy needs to know about the other side.
pub(crate) struct Session {
    pub(crate) service: SocketAddr,
    pub(crate) trust: Trust,
    pub(crate) settings: Settings,
    pub(crate) export: String,
    /// Relative to that host's root.
    pub(crate) paths: Vec<Vec<u8>>,
    ssh: Ssh,
}

/// The running ssh. It ends when this is dropped.
struct Ssh {
    child: Child,
    login: String,
    /// The copy has ended, so ssh may end without an error.
    over: Arc<AtomicBool>,
    /// Holds ssh's input open.
    tunnel: Arc<Tunnel>,
}

/// An isthmus on another host that has sent its first line.
pub(super) struct Other {
    pub(super) child: Child,
    pub(super) to: ChildStdin,
    pub(super) from: BufReader<ChildStdout>,
    pub(super) ready: Ready,
}

impl Other {
    /// Starts it by ssh. `meanwhile` runs while ssh logs in.
    pub(super) fn start<T>(
        login: &str,
        words: &Words,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<(Self, T), MoverError> {
        let mut child = spawn(login, words)?;
        let done = meanwhile();
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(MoverError::Local("ssh has no standard input or output".to_owned()));
        };
        let mut from = BufReader::new(from);
        let ready = match ready(&mut from) {
            Ok(ready) => ready,
            Err(error) => {
                drop(to);
                return Err(explained(login, child, &error, words));
            }
        };
        if ready.version != VERSION {
            let text = format!(
                "{login} has isthmus {}, and this host {RELEASE}: install the same at both",
                ready.release
            );
            return Err(MoverError::Refused(text));
        }
        Ok((Self { child, to, from, ready }, done))
    }

    /// Sends a request and returns the answer.
    pub(super) fn ask(&mut self, login: &str, request: &Request) -> Result<Answer, MoverError> {
        self.say(login, request)?;
        self.answer(login)
    }

    fn say(&mut self, login: &str, request: &Request) -> Result<(), MoverError> {
        let line = line(request).map_err(local)?;
        self.to.write_all(line.as_bytes()).map_err(|error| lost(login, &error))
    }

    pub(super) fn answer(&mut self, login: &str) -> Result<Answer, MoverError> {
        match read_line(&mut self.from).map_err(|error| lost(login, &error))? {
            Answer::Failed(text) => Err(MoverError::Refused(format!("{login}: {text}"))),
            other => Ok(other),
        }
    }
}

fn lost(login: &str, error: &io::Error) -> MoverError {
    MoverError::Lost(format!("{login}: ssh ended early: {error}"))
}

fn local(error: io::Error) -> MoverError {
    MoverError::Local(error.to_string())
}

/// Starts isthmus at `login` for a copy to (`put`) or from these paths on that host.
pub(crate) fn start(
    login: &str,
    paths: Vec<Vec<u8>>,
    put: bool,
    words: &Words,
    by: By,
    wanted: Settings,
) -> Result<Session, MoverError> {
    let (mut other, own) = Other::start(login, words, || Throwaway::make(HERE.0))?;
    let own = own.map_err(local)?;
    let failed = |why| MoverError::Lost(format!("{login}: {why}"));
    let mut attempt = knock(other.ready.probe, by).map_err(failed)?;
    if other.ready.is_of_0_2_0() {
        attempt = attempt.verify(&other.ready.nonce, by).map_err(failed)?;
    }
    let ask = Ask { authority: own.authority().to_vec(), direct: attempt.is_made(), paths, put };
    // Send the request before the nonce has arrived: this saves a round trip.
    other.say(login, &Request::Copy(ask))?;
    let way = attempt.way(&other.ready.nonce, by).map_err(failed)?;
    let Answer::Serving { at, paths } = other.answer(login)? else {
        return Err(MoverError::Refused(format!("{login} does not answer what it was asked")));
    };
    let Other { child, to, from, ready } = other;
    errln!("isthmus cp: {login}: {way}");
    let trust = own
        .trust(THERE, &ready.authority, PROTOCOLS)
        .map_err(|error| MoverError::Refused(format!("{login}: its certificate: {error}")))?;
    let direct = matches!(way, Way::Direct(_));
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

fn spawn(login: &str, words: &Words) -> Result<Child, MoverError> {
    let mut ssh = words.ssh.split_whitespace();
    let program = ssh.next().ok_or_else(|| MoverError::Usage("--ssh names no program".to_owned()))?;
    let (host, port) = host_and_port(login);
    let mut command = Command::new(program);
    command.args(ssh).arg("-T");
    if let Some(port) = port {
        command.arg("-p").arg(port);
    }
    command.arg("--").arg(host).arg(remote_command(words.remote_isthmus.as_deref()));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
        .spawn()
        .map_err(|error| MoverError::Local(format!("cannot start {program}: {error}; install ssh")))
}

/// Splits `user@host`, or `ssh://user@host:port`.
fn host_and_port(login: &str) -> (&str, Option<&str>) {
    let Some(rest) = login.strip_prefix("ssh://") else { return (login, None) };
    match rest.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, Some(port))
        }
        _ => (rest, None),
    }
}

/// The command for the user's remote shell. A command run by ssh reads no profile, so PATH often lacks the folders
/// where pip and cargo install programs. The command adds them.
fn remote_command(named: Option<&str>) -> String {
    let program = named.map_or_else(|| "isthmus".to_owned(), quoted);
    let script =
        format!("PATH=\"$PATH:$HOME/.local/bin:$HOME/bin:/usr/local/bin\"; exec {program} ssh-serve");
    format!("exec sh -c {}", quoted(&script))
}

/// Quotes for POSIX shells and csh.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Reads the other side's first line, and skips what its login shell prints before.
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

/// Explains in one line why no first line came, with a remedy.
fn explained(login: &str, mut child: Child, error: &io::Error, words: &Words) -> MoverError {
    let status = ended(&mut child).and_then(|status| status.code());
    let program = words.remote_isthmus.as_deref().unwrap_or("isthmus");
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

/// How the data of a copy travels. Displayed to the user.
enum Way {
    Direct(SocketAddr),
    Chosen,
    /// Through ssh: the address that was tried, if any, with its error.
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

/// The state of the attempt to connect to the other side's probe address.
enum Attempt {
    Made(SocketAddr, Knock),
    Verified(SocketAddr),
    NotMade(Way),
}

fn knock(probe: Option<SocketAddr>, by: By) -> Result<Attempt, String> {
    if by == By::Ssh {
        return Ok(Attempt::NotMade(Way::Chosen));
    }
    let Some(at) = probe else {
        if by == By::Direct {
            return Err("that host does not know by which address it was reached".to_owned());
        }
        return Ok(Attempt::NotMade(Way::Instead(None)));
    };
    match Knock::at(at) {
        Ok(knock) => Ok(Attempt::Made(at, knock)),
        Err(error) => Attempt::failed(at, error, by),
    }
}

impl Attempt {
    fn failed(at: SocketAddr, error: io::Error, by: By) -> Result<Self, String> {
        if by == By::Direct {
            return Err(format!(
                "{at} cannot be reached directly ({error}); open it, or leave --via direct out"
            ));
        }
        Ok(Self::NotMade(Way::Instead(Some((at, error)))))
    }

    fn is_made(&self) -> bool {
        !matches!(self, Self::NotMade(_))
    }

    /// Checks that the connection leads to the other side, which has this nonce.
    fn verify(self, nonce: &Nonce, by: By) -> Result<Self, String> {
        let Self::Made(at, knock) = self else { return Ok(self) };
        match knock.verify(nonce) {
            Ok(_) => Ok(Self::Verified(at)),
            Err(error) => Self::failed(at, error, by),
        }
    }

    /// How the data of the copy travels.
    fn way(self, nonce: &Nonce, by: By) -> Result<Way, String> {
        Ok(match self.verify(nonce, by)? {
            Self::Made(at, _) | Self::Verified(at) => Way::Direct(at),
            Self::NotMade(way) => way,
        })
    }
}

/// The local address from which `to` is reached. Sends nothing.
pub(super) fn own_ip(to: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// Opens the local port where lanes enter ssh. It has the number of the remote port if that is free, so that a later
/// dial finds it again.
fn door(tunnel: &Arc<Tunnel>, at: SocketAddr) -> io::Result<SocketAddr> {
    let local = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = local(at.port()).or_else(|_| local(0))?;
    let service = listener.local_addr()?;
    tunnel.listen(listener)?;
    Ok(service)
}

impl Ssh {
    /// Carries the data that ssh delivers. If ssh ends before the copy does, the process exits: nobody is at the other
    /// end any more.
    fn watch(&self, mut from: BufReader<ChildStdout>) -> io::Result<()> {
        let (tunnel, over, login) = (self.tunnel.clone(), self.over.clone(), self.login.clone());
        let thread = std::thread::Builder::new().name("ssh".to_owned()).spawn(move || {
            let _ = tunnel.carry(&mut from, None);
            if !over.load(Ordering::Relaxed) {
                errln!("isthmus cp: ssh to {login} ended; the same command continues");
                std::process::exit(4);
            }
        });
        thread.map_err(no_thread)?;
        Ok(())
    }
}

impl Session {
    /// Ends ssh after the copy; errors of ssh no longer matter.
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
}
