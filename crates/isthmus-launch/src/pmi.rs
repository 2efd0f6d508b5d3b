//! Parser and encoder of PMI-1 and PMI-2, by which an MPI library talks to its process manager. No I/O.
//!
//! Both are the "simple" wire protocols of MPICH and its derivatives. A PMI-1 command is one line of `key=value` words;
//! only `spawn` has several lines. A PMI-2 command is its length in six digits, then `key=value;` pairs. The first
//! command has the PMI-1 form, and tells which protocol the rank speaks.

use std::fmt::Write as _;

/// Longest command that is accepted. Bytes. A `spawn` has a few KiB; values have at most [`VALUE_MAX`].
pub const COMMAND_MAX: usize = 1 << 20;
/// Longest name of a key-value space, as told to ranks. Bytes.
pub const SPACE_MAX: usize = 256;
/// Longest key. Bytes. The limit of MPICH's own launcher.
pub const KEY_MAX: usize = 64;
/// Longest value. Bytes. The limit of MPICH's own launcher: older MPICHes read lines that are hardly longer.
pub const VALUE_MAX: usize = 1024;

/// Number of digits before a PMI-2 command.
const LENGTH: usize = 6;

/// A request of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first command: the protocol that the rank speaks.
    Init,
    /// PMI-2: the asking rank's number, the world's size and the program's index.
    FullInit,
    /// PMI-1: the longest names, keys and values.
    Maxes,
    /// How many ranks there may be in all.
    UniverseSize,
    /// The index of the rank's program (`MPI_APPNUM`).
    Appnum,
    /// The name of the job's key-value space.
    SpaceName,
    /// Store a value.
    Put {
        /// At most [`KEY_MAX`] bytes.
        key: String,
        /// At most [`VALUE_MAX`] bytes.
        value: String,
    },
    /// Get a value that some rank has put.
    Get {
        /// As it was put.
        key: String,
    },
    /// PMI-2: get an attribute of the job.
    GetJob {
        /// Such as `PMI_process_mapping`.
        key: String,
    },
    /// PMI-2: store a value for the ranks of this node.
    PutNode {
        /// As in [`Request::Put`].
        key: String,
        /// As in [`Request::Put`].
        value: String,
    },
    /// PMI-2: get a value that a rank of this node has put.
    GetNode {
        /// As it was put.
        key: String,
        /// Whether to delay the answer until the value exists.
        wait: bool,
    },
    /// Wait until all ranks have asked this. Afterwards every rank can get what the others have put.
    Fence,
    /// The rank needs the process manager no more.
    Finalize,
    /// End the job.
    Abort {
        /// The job's exit status.
        code: i32,
        /// The rank's message about it; may be empty.
        message: String,
    },
    /// Publish the port of a service.
    Publish {
        /// Name of the service.
        name: String,
        /// Its port.
        port: String,
    },
    /// Withdraw a published service.
    Unpublish {
        /// Name of the service.
        name: String,
    },
    /// Get the port of a service.
    LookUp {
        /// Name of the service.
        name: String,
    },
    /// Start more ranks.
    Spawn,
    /// An unknown command, by its name.
    Other(String),
}

/// A request, and the thread that asks. The answer names the thread too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// PMI-2: the thread's identifier, which the answer repeats.
    pub thread: Option<String>,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Request::Init`].
    Init,
    /// To [`Request::FullInit`].
    FullInit {
        /// Rank in the world of the asker.
        rank: u32,
        /// Size of the world.
        size: u32,
        /// Index of the asker's program.
        appnum: u32,
    },
    /// To [`Request::Maxes`].
    Maxes,
    /// To [`Request::UniverseSize`].
    UniverseSize(u32),
    /// To [`Request::Appnum`].
    Appnum(u32),
    /// To [`Request::SpaceName`].
    SpaceName(String),
    /// To [`Request::Put`]: whether the value was stored.
    Put(bool),
    /// To [`Request::Get`]: the value, if there is one.
    Get(Option<String>),
    /// To [`Request::GetJob`].
    GetJob(Option<String>),
    /// To [`Request::PutNode`].
    PutNode(bool),
    /// To [`Request::GetNode`].
    GetNode(Option<String>),
    /// To [`Request::Fence`].
    Fence,
    /// To [`Request::Finalize`].
    Finalize,
    /// To [`Request::Publish`]: whether the name is now published.
    Publish(bool),
    /// To [`Request::Unpublish`]: whether the name was published.
    Unpublish(bool),
    /// To [`Request::LookUp`].
    LookUp(Option<String>),
    /// To [`Request::Spawn`]: refused.
    NoSpawn,
    /// To [`Request::Other`].
    Unknown(String),
}

/// Why the bytes of a rank cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    /// More than [`COMMAND_MAX`] bytes.
    #[error("a command of more than {COMMAND_MAX} bytes")]
    TooLong,
    /// Not a command of PMI.
    #[error("{0:?} is no command of PMI-1 or PMI-2")]
    Command(String),
    /// A command without a required key.
    #[error("the command {command} lacks {key}")]
    Lacks {
        /// The command's name.
        command: String,
        /// The missing key.
        key: &'static str,
    },
    /// An unsupported version.
    #[error("PMI version {0}; this launcher speaks 1 and 2")]
    Version(String),
}

/// The PMI conversation with one rank: reassembles its commands, and encodes the answers.
#[derive(Debug, Default)]
pub struct Session {
    bytes: Vec<u8>,
    second: bool,
}

impl Session {
    /// Appends bytes that the rank wrote.
    ///
    /// # Errors
    /// [`Nonsense::TooLong`] if more than [`COMMAND_MAX`] bytes would be buffered.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Nonsense> {
        if self.bytes.len() + bytes.len() > COMMAND_MAX {
            return Err(Nonsense::TooLong);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next complete command.
    ///
    /// # Errors
    /// [`Nonsense`]; what follows cannot be parsed then.
    pub fn next_request(&mut self) -> Result<Option<Asked>, Nonsense> {
        let Some((head, len)) = self.command()? else { return Ok(None) };
        let bytes: Vec<u8> = self.bytes.drain(..head + len).skip(head).collect();
        let text = String::from_utf8(bytes)
            .map_err(|error| Nonsense::Command(excerpt(&String::from_utf8_lossy(error.as_bytes()))))?;
        if text.starts_with("mcmd=") {
            return Ok(Some(Asked { request: Request::Spawn, thread: None }));
        }
        let pairs = if head > 0 { Pairs::second(&text) } else { Pairs::first(&text) };
        self.understand(&pairs.ok_or_else(|| Nonsense::Command(excerpt(&text)))?).map(Some)
    }

    /// Position of the next complete command: bytes before it, and its length.
    fn command(&self) -> Result<Option<(usize, usize)>, Nonsense> {
        let bytes = &self.bytes;
        if bytes.len() <= LENGTH {
            return Ok(None);
        }
        if bytes.starts_with(b"cmd=") {
            return Ok(bytes.iter().position(|byte| *byte == b'\n').map(|at| (0, at + 1)));
        }
        if bytes.starts_with(b"mcmd=") {
            return Ok(end_of_spawn(bytes).map(|len| (0, len)));
        }
        let digits = std::str::from_utf8(&bytes[..LENGTH]).ok().map(str::trim);
        match digits.and_then(|digits| digits.parse::<usize>().ok()) {
            Some(len) if self.second && len > 0 => Ok((bytes.len() >= LENGTH + len).then_some((LENGTH, len))),
            _ => Err(Nonsense::Command(excerpt(&String::from_utf8_lossy(bytes)))),
        }
    }

    fn understand(&mut self, pairs: &Pairs<'_>) -> Result<Asked, Nonsense> {
        let need = |key: &'static str| {
            pairs
                .get(key)
                .map(str::to_owned)
                .ok_or_else(|| Nonsense::Lacks { command: excerpt(pairs.command), key })
        };
        let request = match pairs.command {
            "init" => {
                let version = need("pmi_version")?;
                self.second = match version.as_str() {
                    "1" => false,
                    "2" => true,
                    _ => return Err(Nonsense::Version(excerpt(&version))),
                };
                Request::Init
            }
            "fullinit" => Request::FullInit,
            "get_maxes" => Request::Maxes,
            "get_universe_size" => Request::UniverseSize,
            "get_appnum" => Request::Appnum,
            "get_my_kvsname" | "job-getid" => Request::SpaceName,
            "put" | "kvs-put" => {
                Request::Put { key: need("key")?, value: pairs.get("value").unwrap_or_default().to_owned() }
            }
            "get" | "kvs-get" => Request::Get { key: need("key")? },
            "info-getjobattr" => Request::GetJob { key: need("key")? },
            "info-putnodeattr" => Request::PutNode {
                key: need("key")?,
                value: pairs.get("value").unwrap_or_default().to_owned(),
            },
            "info-getnodeattr" => {
                Request::GetNode { key: need("key")?, wait: pairs.get("wait") == Some("TRUE") }
            }
            "barrier_in" | "kvs-fence" => Request::Fence,
            "finalize" => Request::Finalize,
            "abort" => {
                // PMI-2 of older MPICHes sends no code.
                let code = pairs.get("exitcode").and_then(|text| text.parse().ok()).unwrap_or(1);
                let message = pairs.get("message").or(pairs.get("error_msg")).unwrap_or_default();
                Request::Abort { code, message: excerpt(message) }
            }
            "publish_name" => Request::Publish { name: need("service")?, port: need("port")? },
            "name-publish" => Request::Publish { name: need("name")?, port: need("port")? },
            "unpublish_name" => Request::Unpublish { name: need("service")? },
            "name-unpublish" => Request::Unpublish { name: need("name")? },
            "lookup_name" => Request::LookUp { name: need("service")? },
            "name-lookup" => Request::LookUp { name: need("name")? },
            "spawn" => Request::Spawn,
            other => Request::Other(excerpt(other)),
        };
        Ok(Asked { request, thread: pairs.get("thrid").map(str::to_owned) })
    }

    /// Encodes an answer in the rank's protocol.
    pub fn encode(&self, reply: &Reply, thread: Option<&str>) -> Vec<u8> {
        if *reply == Reply::Init {
            // This answer has the form of PMI-1 in both protocols.
            let (version, subversion) = if self.second { (2, 0) } else { (1, 1) };
            return format!("cmd=response_to_init pmi_version={version} pmi_subversion={subversion} rc=0\n")
                .into_bytes();
        }
        if self.second { second(reply, thread) } else { first(reply) }
    }
}

/// The first 80 printable characters of a rank's text, for a message.
fn excerpt(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// The length of a PMI-1 `spawn`. It has as many `endcmd` lines as its first part says.
fn end_of_spawn(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut total, mut pieces) = (0, 1, 0);
    while let Some(len) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = &bytes[at..at + len];
        at += len + 1;
        if let Some(count) = line.strip_prefix(b"totspawns=") {
            total = std::str::from_utf8(count).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        } else if line == b"endcmd" {
            pieces += 1;
            if pieces >= total {
                return Some(at);
            }
        }
    }
    None
}

/// The `key=value` pairs of a command.
struct Pairs<'a> {
    command: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    /// Splits at spaces. A backslash escapes the next character, and stays in the value: the rank that gets the value
    /// removes it.
    fn first(line: &'a str) -> Option<Self> {
        let mut words = Vec::new();
        let (mut start, mut kept) = (0, false);
        let line = line.trim_end_matches(['\n', '\0']);
        for (at, byte) in line.bytes().enumerate() {
            match byte {
                _ if kept => kept = false,
                b'\\' => kept = true,
                b' ' => {
                    words.push(&line[start..at]);
                    start = at + 1;
                }
                _ => {}
            }
        }
        words.push(&line[start..]);
        Self::of(words.into_iter())
    }

    fn second(text: &'a str) -> Option<Self> {
        Self::of(text.trim_end_matches(['\n', '\0']).split(';'))
    }

    fn of(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut pairs =
            words.filter(|word| !word.is_empty()).map(|word| word.split_once('=').unwrap_or((word, "")));
        match pairs.next() {
            Some(("cmd", command)) => Some(Self { command, pairs: pairs.collect() }),
            _ => None,
        }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1)
    }
}

fn first(reply: &Reply) -> Vec<u8> {
    let failed = |command: &str, why: &str| format!("cmd={command} rc=-1 msg={why}");
    let kept = |command: &str, kept: bool, why: &str| match kept {
        true => format!("cmd={command} rc=0 info=ok msg=success"),
        false => format!("cmd={command} rc=-1 info={why} msg={why}"),
    };
    let text = match reply {
        Reply::Maxes => {
            format!("cmd=maxes kvsname_max={SPACE_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX} rc=0")
        }
        Reply::UniverseSize(size) => format!("cmd=universe_size size={size} rc=0"),
        Reply::Appnum(appnum) => format!("cmd=appnum appnum={appnum} rc=0"),
        Reply::SpaceName(name) => format!("cmd=my_kvsname kvsname={name} rc=0"),
        Reply::Put(true) => "cmd=put_result rc=0 msg=success".to_owned(),
        Reply::Put(false) => failed("put_result", "not_kept"),
        Reply::Get(Some(value)) | Reply::GetJob(Some(value)) | Reply::GetNode(Some(value)) => {
            format!("cmd=get_result rc=0 msg=success value={value}")
        }
        Reply::Get(None) | Reply::GetJob(None) | Reply::GetNode(None) => {
            failed("get_result", "key_not_found value=unknown")
        }
        Reply::Fence => "cmd=barrier_out rc=0".to_owned(),
        Reply::Finalize => "cmd=finalize_ack rc=0".to_owned(),
        Reply::Publish(done) => kept("publish_result", *done, "name_is_taken"),
        Reply::Unpublish(done) => kept("unpublish_result", *done, "not_published"),
        Reply::LookUp(Some(port)) => format!("cmd=lookup_result rc=0 info=ok msg=success port={port}"),
        Reply::LookUp(None) => kept("lookup_result", false, "not_published"),
        Reply::NoSpawn => "cmd=spawn_result rc=-1 status=no_spawn msg=no_spawn".to_owned(),
        // No PMI-1 request leads to these.
        Reply::Init | Reply::FullInit { .. } | Reply::PutNode(_) => failed("error", "unknown_command"),
        Reply::Unknown(command) => failed(&answer_to(command), "unknown_command"),
    };
    (text + "\n").into_bytes()
}

/// The name of the answer to an unknown command.
fn answer_to(command: &str) -> String {
    let name: String = command.chars().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect();
    format!("{name}_result")
}

fn second(reply: &Reply, thread: Option<&str>) -> Vec<u8> {
    let rc = |done: bool| if done { "rc=0;" } else { "rc=-1;errmsg=refused;" }.to_owned();
    let found = |value: &Option<String>| match value {
        Some(value) => format!("rc=0;found=TRUE;value={value};"),
        None => "rc=0;found=FALSE;value=unknown;".to_owned(),
    };
    let (name, rest) = match reply {
        Reply::FullInit { rank, size, appnum } => (
            "fullinit-response",
            format!(
                "pmi-version=2;pmi-subversion=0;rank={rank};size={size};appnum={appnum};debugged=FALSE;pmiverbose=FALSE;rc=0;"
            ),
        ),
        Reply::SpaceName(name) => ("job-getid-response", format!("jobid={name};rc=0;")),
        Reply::Put(done) => ("kvs-put-response", rc(*done)),
        Reply::Get(value) => ("kvs-get-response", found(value)),
        Reply::GetJob(value) => ("info-getjobattr-response", found(value)),
        Reply::PutNode(done) => ("info-putnodeattr-response", rc(*done)),
        Reply::GetNode(value) => ("info-getnodeattr-response", found(value)),
        Reply::Fence => ("kvs-fence-response", rc(true)),
        Reply::Finalize => ("finalize-response", rc(true)),
        Reply::Publish(done) => ("name-publish-response", rc(*done)),
        Reply::Unpublish(done) => ("name-unpublish-response", rc(*done)),
        Reply::LookUp(Some(port)) => ("name-lookup-response", format!("found=TRUE;port={port};rc=0;")),
        Reply::LookUp(None) => ("name-lookup-response", "found=FALSE;rc=-1;errmsg=not_published;".to_owned()),
        Reply::NoSpawn => ("spawn-response", "rc=-1;errmsg=no_spawn;".to_owned()),
        Reply::Unknown(command) => {
            return framed(
                &format!("{}-response", answer_to(command).trim_end_matches("_result")),
                "rc=-1;errmsg=unknown_command;",
                thread,
            );
        }
        // No PMI-2 request leads to these.
        Reply::Init | Reply::Maxes | Reply::UniverseSize(_) | Reply::Appnum(_) => {
            ("error-response", rc(false))
        }
    };
    framed(name, &rest, thread)
}

fn framed(name: &str, rest: &str, thread: Option<&str>) -> Vec<u8> {
    let mut text = format!("cmd={name};");
    if let Some(thread) = thread {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "thrid={thread};");
    }
    text.push_str(rest);
    format!("{:>LENGTH$}{text}", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(session: &mut Session, bytes: &[u8]) -> Request {
        session.feed(bytes).expect("short");
        session.next_request().expect("sense").expect("whole").request
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_rank_of_pmi_1_is_understood_and_answered() {
        let mut session = Session::default();
        assert_eq!(ask(&mut session, b"cmd=init pmi_version=1 pmi_subversion=1\n"), Request::Init);
        assert_eq!(
            text(session.encode(&Reply::Init, None)),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
        );
        assert_eq!(
            ask(&mut session, b"cmd=put kvsname=k key=-bcast-1-0 value=2f64\n"),
            Request::Put { key: "-bcast-1-0".to_owned(), value: "2f64".to_owned() }
        );
        assert_eq!(ask(&mut session, b"cmd=barrier_in\n"), Request::Fence);
        assert_eq!(
            ask(&mut session, b"cmd=abort exitcode=7 message=abort\n"),
            Request::Abort { code: 7, message: "abort".to_owned() }
        );
        assert_eq!(
            text(session.encode(&Reply::Get(Some("v".to_owned())), None)),
            "cmd=get_result rc=0 msg=success value=v\n"
        );
    }

    #[test]
    fn an_escaped_space_stays_within_its_value() {
        let mut session = Session::default();
        let asked = ask(&mut session, b"cmd=put key=a value=x\\ y\n");
        assert_eq!(asked, Request::Put { key: "a".to_owned(), value: "x\\ y".to_owned() });
    }

    #[test]
    fn a_rank_of_pmi_2_is_understood_and_answered() {
        let mut session = Session::default();
        assert_eq!(ask(&mut session, b"cmd=init pmi_version=2 pmi_subversion=0\n"), Request::Init);
        assert_eq!(ask(&mut session, b"    34cmd=fullinit;pmirank=0;thrid=0x1f;"), Request::FullInit);
        let reply = Reply::FullInit { rank: 0, size: 2, appnum: 0 };
        let reply = text(session.encode(&reply, Some("0x1f")));
        assert!(reply[6..].starts_with("cmd=fullinit-response;thrid=0x1f;"), "{reply}");
        assert_eq!(reply[..6].trim().parse::<usize>().expect("a length"), reply.len() - 6);
        assert_eq!(
            ask(&mut session, b"    45cmd=info-getnodeattr;key=shm;wait=TRUE;xx=yy;"),
            Request::GetNode { key: "shm".to_owned(), wait: true }
        );
    }

    #[test]
    fn commands_come_in_pieces_and_several_at_once() {
        let mut session = Session::default();
        session.feed(b"cmd=get_ma").expect("short");
        assert_eq!(session.next_request(), Ok(None));
        session.feed(b"xes\ncmd=get_appnum\n").expect("short");
        let both: Vec<_> = std::iter::from_fn(|| session.next_request().expect("sense")).collect();
        assert_eq!(
            both.iter().map(|asked| &asked.request).collect::<Vec<_>>(),
            [&Request::Maxes, &Request::Appnum]
        );
    }

    #[test]
    fn a_spawn_is_one_command_of_many_lines() {
        let mut session = Session::default();
        let spawn = b"mcmd=spawn\nnprocs=1\ntotspawns=2\nendcmd\nmcmd=spawn\nendcmd\n";
        session.feed(&spawn[..50]).expect("short");
        assert_eq!(session.next_request(), Ok(None));
        assert_eq!(ask(&mut session, &spawn[50..]), Request::Spawn);
        assert!(session.bytes.is_empty());
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"    10cmd=x;abcdef",
            b"cmd=put value=1\n",
            b"cmd=init pmi_version=9\n",
            b"cmd=\xff\xff\xff\n",
        ] {
            let mut session = Session::default();
            session.feed(bytes).expect("short");
            assert!(session.next_request().is_err(), "{bytes:?}");
        }
        assert_eq!(Session::default().feed(&vec![b'a'; COMMAND_MAX + 1]), Err(Nonsense::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_requests_or_an_error(
            pieces in proptest::collection::vec(prop_oneof![
                any::<Vec<u8>>(),
                "(cmd=|mcmd=| {0,3}[0-9]{1,6}cmd=)(init|put|get|spawn|fullinit|abort)[ ;=a-z0-9_\\\\\n-]{0,60}\n?".prop_map(String::into_bytes),
                Just(b"cmd=init pmi_version=2 pmi_subversion=0\n".to_vec()),
            ], 0..8)
        ) {
            let mut session = Session::default();
            'fed: for piece in pieces {
                if session.feed(&piece).is_err() {
                    break;
                }
                loop {
                    match session.next_request() {
                        Ok(Some(asked)) => {
                            let reply = session.encode(&Reply::Unknown(format!("{asked:?}")), asked.thread.as_deref());
                            prop_assert!(reply.len() < COMMAND_MAX * 2);
                        }
                        Ok(None) => break,
                        Err(_) => break 'fed,
                    }
                }
            }
        }
    }
}
