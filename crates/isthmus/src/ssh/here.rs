//! The user's side of a copy by ssh: starts ssh, and decides between a direct connection and ssh's stream.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use isthmus_io::Settings;
use isthmus_io::log::no_thread;
use isthmus_mover::MoverError;
use isthmus_mover::channel::PROTOCOLS;
use isthmus_mover::names::shown;
use isthmus_trust::{Throwaway, Trust};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::probe::{Nonce, by_tcp};
use super::tunnel::Tunnel;
use super::{
    Answer, Ask, EXPORT, HAS_READ, HERE, MARK, READS, RELEASE, REQUEST, REQUEST_MAX, Ready, Request, THERE,
    VERSION, line, read_line, settings,
};

/// Most bytes that a login shell may print before the other side's first line.
const CHATTER_MAX: usize = 256 << 10;
/// How long the other side's shell may take to read the request. If a start file of the login has swallowed it, it is
/// sent again then.
const READING: Duration = Duration::from_secs(3);
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
    /// Where lanes go to.
    pub(crate) service: SocketAddr,
    pub(crate) trust: Trust,
    pub(crate) settings: Settings,
    pub(crate) export: String,
    /// Relative to that host's root.
    pub(crate) paths: Vec<Vec<u8>>,
    /// Nobody knows yet whether lanes get through to `service`.
    pub(crate) is_trial: bool,
    route: Route,
    by: By,
    /// The settings for other copies.
    wanted: Settings,
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
    /// It has the early request, or will read it as its next line.
    has_request: bool,
}

impl Other {
    /// Starts it by ssh. The line `request` goes with the login.
    pub(super) fn start(login: &str, words: &Words, request: Option<&str>) -> Result<Self, MoverError> {
        let mut child = spawn(login, words, request.is_some())?;
        let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(MoverError::Local("ssh has no standard input or output".to_owned()));
        };
        // If ssh has ended, its status tells more than errors of this.
        let mut send = || request.map(|request| to.write_all(request.as_bytes()));
        send();
        let mut from = BufReader::new(from);
        let mut start = Start::default();
        let ready = match start.ready(&mut from, || drop(send())) {
            Ok(ready) => ready,
            Err(error) => {
                drop(to);
                return Err(explained(login, child, &error, &start.chatter, words));
            }
        };
        if ready.version != VERSION {
            let text = format!(
                "{login} has isthmus {}, and this host {RELEASE}: install the same at both",
                ready.release
            );
            return Err(MoverError::Refused(text));
        }
        // Where the server's configuration forces the command, no shell has read the request.
        let has_request = request.is_some() && !start.shell_has_read;
        Ok(Self { child, to, from, ready, has_request })
    }

    /// Sends a request and returns the answer.
    pub(super) fn ask(&mut self, login: &str, request: &Request) -> Result<Answer, MoverError> {
        let line = line(request).map_err(local)?;
        self.to.write_all(line.as_bytes()).map_err(|error| lost(login, &error))?;
        self.answer(login)
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
    let own = Throwaway::make(HERE.0).map_err(local)?;
    let ask = Ask { authority: own.authority().to_vec(), direct: by != By::Ssh, paths, put };
    let early = line(&Request::Copy(ask.clone())).map_err(local)?;
    let early = Some(&*early).filter(|line| line.len() <= REQUEST_MAX);
    let mut other = Other::start(login, words, early)?;
    let (answer, route, is_trial) = match other.ready.answer.take() {
        Some(Answer::Failed(text)) => return Err(MoverError::Refused(format!("{login}: {text}"))),
        Some(answer) => (answer, Route::untried(other.ready.probe, by), true),
        None => {
            let route = Route::untried(other.ready.probe, by).verified(&other.ready.nonce);
            let direct = matches!(route, Route::Direct(_));
            let answer = if other.has_request {
                other.answer(login)?
            } else {
                other.ask(login, &Request::Copy(Ask { direct, ..ask }))?
            };
            (answer, route, false)
        }
    };
    let Answer::Serving { at, paths } = answer else {
        return Err(MoverError::Refused(format!("{login} does not answer what it was asked")));
    };
    let Other { child, to, from, ready, .. } = other;
    let trust = own
        .trust(THERE, &ready.authority, PROTOCOLS)
        .map_err(|error| MoverError::Refused(format!("{login}: its certificate: {error}")))?;
    let over = Arc::new(AtomicBool::new(false));
    let ssh = Ssh { child, login: login.to_owned(), over, tunnel: Tunnel::new(Box::new(to)) };
    ssh.watch(from).map_err(local)?;
    let (export, settings) = (EXPORT.to_owned(), wanted.clone());
    let mut session =
        Session { service: at, trust, settings, export, paths, is_trial, route, by, wanted, ssh };
    session.prepare()?;
    Ok(session)
}

fn spawn(login: &str, words: &Words, requests: bool) -> Result<Child, MoverError> {
    let mut ssh = words.ssh.split_whitespace();
    let program = ssh.next().ok_or_else(|| MoverError::Usage("--ssh names no program".to_owned()))?;
    let (host, port) = host_and_port(login);
    let mut command = Command::new(program);
    command.args(ssh).arg("-T");
    if let Some(port) = port {
        command.arg("-p").arg(port);
    }
    command.arg("--").arg(host).arg(remote_command(words.remote_isthmus.as_deref(), requests));
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
///
/// If a request comes first (`requests`), `sh` reads it into a variable, and says so. Release 0.2.0 ignores that
/// variable, and gets the request again after its first line.
fn remote_command(named: Option<&str>, requests: bool) -> String {
    let program = named.map_or_else(|| "isthmus".to_owned(), quoted);
    let read = format!("echo '{READS}'; IFS= read -r {REQUEST}; echo '{HAS_READ}'; export {REQUEST}; ");
    let read = if requests { &*read } else { "" };
    let script =
        format!("{read}PATH=\"$PATH:$HOME/.local/bin:$HOME/bin:/usr/local/bin\"; exec {program} ssh-serve");
    format!("exec sh -c {}", quoted(&script))
}

/// Quotes for POSIX shells and csh.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What came before the other side's first line.
#[derive(Default)]
struct Start {
    /// The last line that its login shell printed.
    chatter: String,
    /// The shell that [`remote_command`] starts has read the request.
    shell_has_read: bool,
}

impl Start {
    /// Reads the other side's first line, and skips what its login shell prints before. Calls `again` if the shell that
    /// reads the request gets none.
    fn ready(&mut self, from: &mut BufReader<ChildStdout>, again: impl FnOnce()) -> io::Result<Ready> {
        let (mut heard, mut again) = (0, Some(again));
        while heard < CHATTER_MAX {
            let mut bytes = Vec::new();
            heard += from.take(CHATTER_MAX as u64).read_until(b'\n', &mut bytes)?;
            let Some(last) = bytes.last() else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            // What the login shell printed may have no end of line.
            let mark = bytes.windows(MARK.len()).position(|text| text == MARK.as_bytes());
            if let Some(json) = mark.filter(|_| *last == b'\n').map(|at| &bytes[at + MARK.len()..]) {
                return Ok(serde_json::from_slice(json)?);
            }
            match shown(bytes.trim_ascii()) {
                line if line.ends_with(READS) => {
                    if !is_more_within(from, READING)? {
                        again.take().into_iter().for_each(|again| again());
                    }
                }
                line if line == HAS_READ => self.shell_has_read = true,
                line => self.chatter = line,
            }
        }
        Err(io::Error::other("it says something else"))
    }
}

/// Whether something comes within this time, if only the end.
fn is_more_within(from: &BufReader<ChildStdout>, limit: Duration) -> io::Result<bool> {
    if !from.buffer().is_empty() {
        return Ok(true);
    }
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(from.get_ref(), PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut polled, Some(&limit)))? > 0)
}

/// Explains in one line why no first line came, with a remedy.
fn explained(login: &str, mut child: Child, error: &io::Error, chatter: &str, words: &Words) -> MoverError {
    let ended = ended(&mut child);
    if let Some(signal) = ended.and_then(|status| status.signal()) {
        return MoverError::Lost(format!(
            "ssh to {login} was ended by signal {signal}; the same command continues"
        ));
    }
    let status = ended.and_then(|status| status.code());
    let program = words.remote_isthmus.as_deref().unwrap_or("isthmus");
    // An account without a shell says so.
    let heard =
        if chatter.is_empty() { String::new() } else { format!(", and \"{chatter}\" was printed there") };
    match status {
        Some(NOT_FOUND) => MoverError::Refused(format!(
            "{program} is not installed at {login}; there: pip install --user isthmus-{RELEASE}-*.whl; or name it \
             with --remote-isthmus PATH"
        )),
        Some(SSH_FAILED) => MoverError::Lost(format!("ssh does not get to {login}, see above")),
        Some(code) => MoverError::Refused(format!(
            "{program} at {login} ended with status {code} before it began{heard}; try: ssh {login} {program} --version"
        )),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            MoverError::Refused(format!(
                "{program} at {login} gives no answer that is understood: {error}{heard}"
            ))
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

/// Why another host cannot be reached directly. The other side's own error comes by ssh, beside this.
const NO_ADDRESS: &str = "cannot listen at the address by which it was reached, or does not know it";

/// How the data of a copy travels. Displayed to the user.
enum Route {
    Direct(SocketAddr),
    Chosen,
    /// Through ssh: the address that was tried, if any, with the reason.
    Instead(Option<(SocketAddr, String)>),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(at) => write!(f, "data goes directly to {at}"),
            Self::Chosen => write!(f, "data goes through ssh, as --via says"),
            Self::Instead(None) => {
                write!(f, "data goes through ssh, as fast as that is: the other host {NO_ADDRESS}")
            }
            Self::Instead(Some((at, why))) => write!(
                f,
                "data goes through ssh, as fast as that is: {at} cannot be reached directly ({why}); open TCP and \
                 UDP to there, of one port if that host has set it (port in isthmus.toml)"
            ),
        }
    }
}

impl Route {
    fn untried(at: Option<SocketAddr>, by: By) -> Self {
        match at {
            _ if by == By::Ssh => Self::Chosen,
            Some(at) => Self::Direct(at),
            None => Self::Instead(None),
        }
    }

    /// Probes the address of a release 0.2.0, which has this nonce.
    fn verified(self, nonce: &Nonce) -> Self {
        let Self::Direct(at) = self else { return self };
        match by_tcp(at, nonce) {
            Ok(_) => self,
            Err(error) => Self::Instead(Some((at, error.to_string()))),
        }
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
    /// Chooses the settings and the address for the route of the data.
    fn prepare(&mut self) -> Result<(), MoverError> {
        if let (By::Direct, Route::Instead(tried)) = (self.by, &self.route) {
            return Err(MoverError::Lost(match tried {
                None => format!("{}: that host {NO_ADDRESS}", self.ssh.login),
                Some((at, why)) => format!(
                    "{}: {at} cannot be reached directly ({why}); open it, or leave --via direct out",
                    self.ssh.login
                ),
            }));
        }
        let is_direct = matches!(self.route, Route::Direct(_));
        self.is_trial &= is_direct;
        self.settings = settings(self.wanted.clone(), is_direct);
        if !is_direct {
            self.service = door(&self.ssh.tunnel, self.service).map_err(local)?;
        } else if self.settings.interface.is_empty() {
            self.settings.interface = own_ip(self.service).map_err(local)?.to_string();
        }
        Ok(())
    }

    /// After a trial that failed for this reason: leads lanes through ssh.
    pub(crate) fn go_through_ssh(&mut self, why: &str) -> Result<(), MoverError> {
        self.route = Route::Instead(Some((self.service, why.to_owned())));
        self.prepare()
    }

    /// Says how the data goes.
    pub(crate) fn route(&self) -> String {
        format!("isthmus cp: {}: {}", self.ssh.login, self.route)
    }

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

    /// A login shell that starts the other side, if it is installed: whether it understands the command is seen from what
    /// the command says of a program that is missing.
    #[test]
    fn any_shell_starts_the_other_side() {
        let shells = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"];
        let mut tried = Vec::new();
        for shell in shells {
            for (named, requests) in [(None, false), (Some("/a folder/it's isthmus"), true)] {
                let command = remote_command(named, requests);
                let mut shell = Command::new(shell);
                shell
                    .arg("-c")
                    .arg(&command)
                    .env("PATH", "/usr/bin:/bin")
                    .env("HOME", "/")
                    .stdin(Stdio::null());
                let Ok(said) = shell.output() else { continue };
                assert_eq!(said.status.code(), Some(NOT_FOUND), "{shell:?}: {said:?}");
                let said = String::from_utf8_lossy(&said.stderr).into_owned();
                assert!(said.contains(named.unwrap_or("isthmus")), "{shell:?}: {said}");
                tried.push(shell.get_program().to_owned());
            }
        }
        assert!(tried.contains(&"sh".into()) && tried.contains(&"bash".into()), "{tried:?}");
    }
}
