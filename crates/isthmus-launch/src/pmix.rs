//! The PMIx server of this process's ranks, for programs of Open MPI 5: a process of its own, of the crate
//! `isthmus-pmix`, which describes the messages.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use isthmus_substrate::log::no_thread;
use tempfile::TempDir;

use crate::letter::Start;
use crate::reach;
use crate::run::Input;

/// How long the server may take to start.
const BEGIN: Duration = Duration::from_secs(20);
/// How long it may take to end, and to remove its files.
const END: Duration = Duration::from_millis(500);
/// How long it may leave a message unread before it counts as ended.
const UNREAD: Duration = Duration::from_secs(10);
/// Longest message. Bytes. What the ranks of a world give to a fence: some 200 bytes each.
const MESSAGE_MAX: u32 = 1 << 29;

/// The environment variable with the name of the world. Its random part is a secret: libpmix listens at loopback, and
/// believes which user and rank a process of this host claims to be. Other users cannot read the environment, but they
/// can read arguments.
pub const SPACE: &str = "ISTHMUS_PMIX_SPACE";

/// A message of the server.
#[derive(Debug)]
pub(crate) enum Message {
    /// All ranks wait in a fence, and gave these bytes.
    Fence(Vec<u8>),
    /// A rank of this process has connected.
    Connected(u32),
    /// A rank of this process needs the server no more.
    Finalized(u32),
    /// A rank of this process ends the job.
    Abort { rank: u32, code: i32, message: String },
    /// Why no more messages come.
    Ended(String),
}

/// The server's process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    channel: UnixStream,
    /// For the files of the server and of the ranks' MPI. Removed here too, in case the server was killed.
    folder: TempDir,
    /// Environment variables of each rank.
    pub(crate) variables: Vec<Vec<(String, String)>>,
}

impl Server {
    /// Starts the server of this many ranks. `starter` is its command line, without the world.
    pub(crate) fn start(
        starter: &[OsString],
        start: &Start,
        ranks: u32,
        inputs: &SyncSender<Input>,
    ) -> io::Result<Self> {
        let (channel, theirs) = UnixStream::pair()?;
        let folder = private_folder()?;
        let world = [start.size.to_string(), start.first.to_string(), ranks.to_string()];
        // Its own process group: a terminal's signals do not reach it. It ignores those of a scheduler.
        let child = Command::new(&starter[0])
            .args(&starter[1..])
            .args(world)
            .arg(folder.path())
            .env(SPACE, &start.space)
            .stdin(OwnedFd::from(theirs))
            .process_group(0)
            .spawn()?;
        let mut server = Self { child, channel, folder, variables: Vec::new() };
        server.channel.set_read_timeout(Some(BEGIN))?;
        for _ in 0..ranks {
            match read(&mut server.channel)? {
                (b'E', bytes) => server.variables.push(variables(&bytes)),
                (b'X', why) => return Err(io::Error::other(String::from_utf8_lossy(&why).into_owned())),
                _ => return Err(io::Error::other("the PMIx server does not speak as this release does")),
            }
        }
        server.channel.set_read_timeout(None)?;
        server.channel.set_write_timeout(Some(UNREAD))?;
        let (mut channel, inputs) = (server.channel.try_clone()?, inputs.clone());
        let relay = thread::Builder::new().name("isthmus-pmix".to_owned()).spawn(move || {
            loop {
                let message = read(&mut channel).and_then(|(letter, bytes)| {
                    parse(letter, bytes)
                        .ok_or_else(|| io::Error::other("it does not speak as this release does"))
                });
                let (message, last) = match message {
                    Ok(message) => (message, false),
                    Err(error) => (Message::Ended(error.to_string()), true),
                };
                if inputs.send(Input::Pmix(message)).is_err() || last {
                    return;
                }
            }
        });
        relay.map_err(no_thread)?;
        Ok(server)
    }

    /// Passes on what the provider in the ranks tells of endpoints ([`reach`]).
    pub(crate) fn listen(&mut self, inputs: &SyncSender<Input>) -> io::Result<()> {
        let path = self.folder.path().join("reach");
        reach::listen(&path, inputs)?;
        let path = path.to_string_lossy().into_owned();
        self.variables.iter_mut().for_each(|all| all.push((reach::VARIABLE.to_owned(), path.clone())));
        Ok(())
    }

    /// Ends a fence: what all ranks of the world gave.
    pub(crate) fn pass_fence(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(b'F', bytes)
    }

    /// Tells that ranks of the world are lost: the first and the last of each run.
    pub(crate) fn tell_lost(&mut self, ranks: &[(u32, u32)]) -> io::Result<()> {
        let runs: Vec<String> = ranks.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        self.write(b'L', runs.join(",").as_bytes())
    }

    fn write(&mut self, letter: u8, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.channel.write_all(&[&len.to_ne_bytes()[..], &[letter], bytes].concat())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends when the channel does. Errors: it has ended already.
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
        let until = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A folder that only this user may enter: names of files there contain the name of the world ([`SPACE`]).
fn private_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("isthmus-pmix-").permissions(Permissions::from_mode(0o700)).tempdir()
}

fn read(channel: &mut UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    channel.read_exact(&mut head).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("its process has ended"),
        _ => error,
    })?;
    let len = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
    if len > MESSAGE_MAX {
        return Err(io::Error::other("a message of the PMIx server is too long"));
    }
    let mut bytes = vec![0; len as usize];
    channel.read_exact(&mut bytes)?;
    Ok((head[4], bytes))
}

fn variables(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn parse(letter: u8, bytes: Vec<u8>) -> Option<Message> {
    match letter {
        b'F' => Some(Message::Fence(bytes)),
        b'C' | b'Z' => {
            let rank = String::from_utf8(bytes).ok()?.parse().ok()?;
            Some(if letter == b'C' { Message::Connected(rank) } else { Message::Finalized(rank) })
        }
        b'A' => {
            let text = String::from_utf8(bytes).ok()?;
            let mut words = text.splitn(3, ' ');
            Some(Message::Abort {
                rank: words.next()?.parse().ok()?,
                code: words.next()?.parse().ok()?,
                message: words.next()?.to_owned(),
            })
        }
        _ => None,
    }
}

/// Bytes as text, for the key-value space.
pub(crate) fn to_text(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of [`to_text`]; other text gives none.
pub(crate) fn from_text(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(byte).collect::<Option<Vec<u8>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_as_text() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_text(&to_text(&all)), all);
        assert_eq!(from_text("zz"), Vec::<u8>::new());
    }

    #[test]
    fn nobody_else_enters_the_folder() {
        let folder = private_folder().expect("made");
        let mode = std::fs::metadata(folder.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn messages_of_the_server_are_understood() {
        assert_eq!(
            variables(b"A=1\0B=x=y\0"),
            [("A", "1"), ("B", "x=y")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
        assert!(
            matches!(parse(b'A', b"1 7 no way".to_vec()), Some(Message::Abort { rank: 1, code: 7, message }) if message == "no way")
        );
        assert!(parse(b'A', b"x".to_vec()).is_none() && parse(b'?', Vec::new()).is_none());
    }
}
