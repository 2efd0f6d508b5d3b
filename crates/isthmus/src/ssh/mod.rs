//! Work at another host with nothing set up but ssh: `isthmus cp FILE user@host:PATH`, and
//! `isthmus doctor --peer user@host`.
//!
//! The user's own ssh starts `isthmus ssh-serve` on the other host ([`there`]). Both sides exchange lines of JSON over
//! its standard input and output ([`here`]). For a copy:
//!
//! 1. This side sends its certificate and the paths while ssh logs in, so that no round trip is spent on them.
//! 2. The other side starts a service for this one copy. Its first line has its certificate, the service's address, and
//!    the resolved paths.
//!
//! From then on the copy is an ordinary one, between two ends that know each other's throw-away keys. Its lanes go
//! directly. If the service does not answer at its address, the copy starts again, and its lanes go over ssh's own
//! stream ([`tunnel`]). The service ends with ssh.
//!
//! Release 0.2.0 takes a request only after its first line, and only after a probe of its address ([`probe`]). For the
//! doctor, both sides probe each other instead of copying ([`visit()`]).

mod here;
mod paths;
mod probe;
mod there;
mod tunnel;
mod visit;

use std::io::{self, BufRead, Read};
use std::net::SocketAddr;

use isthmus_io::{Routers, Settings, Streams, TlsMode, Transport};
use isthmus_wire::AsId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use here::{By, Session, Words, start};
pub(crate) use probe::{ByUdp, Reach};
pub(crate) use there::{Args, main};
pub(crate) use visit::{Visit, visit};

use probe::Nonce;

/// The AS ids in the two sides' certificates. The certificates serve one copy, so the ids need not be unique.
const HERE: AsId = AsId(1);
const THERE: AsId = AsId(2);
/// Version of the lines exchanged over ssh. Release 0.2.0 has the same.
const VERSION: u32 = 1;
/// This release. The error about different releases names it.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Start of the other side's first line. Output of the login shell may precede that line.
const MARK: &str = "isthmus-ssh ";
/// Longest line. Bytes.
const LINE_MAX: u64 = 1 << 20;
/// What the shell on the other side says before and after it reads the request.
const READS: &str = "isthmus-shell reads";
const HAS_READ: &str = "isthmus-shell has read";
/// Environment variable in which that shell passes on the request.
const REQUEST: &str = "ISTHMUS_SSH_REQUEST";
/// Longest request that goes in it. Bytes; Linux allows 128 KiB.
const REQUEST_MAX: usize = 96 << 10;
/// Name of the service's only export, the root. It is empty so that paths read as they are.
const EXPORT: &str = "";

/// The first line of the other side.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    version: u32,
    /// Empty for release 0.2.0. That release does not answer [`Request::Check`], and reads no request before this line.
    #[serde(default)]
    release: String,
    /// Certificate of its authority.
    authority: Vec<u8>,
    /// Its probe address. `None` if it does not know the address by which it was reached.
    probe: Option<SocketAddr>,
    nonce: Nonce,
    /// The answer to a request that came before this line.
    #[serde(default)]
    answer: Option<Answer>,
}

impl Ready {
    fn is_of_0_2_0(&self) -> bool {
        self.release.is_empty()
    }
}

/// The answer to the first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Request {
    Copy(Ask),
    /// This side's probe address. `None` if it has no address that leads to the other side.
    Check {
        check: Option<Back>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ask {
    authority: Vec<u8>,
    /// Whether the service has to listen at an address that this side may reach directly. If not, lanes go through ssh.
    direct: bool,
    /// As the user wrote them.
    paths: Vec<Vec<u8>>,
    /// Whether files are copied to the other side.
    put: bool,
}

/// Where the other side can probe this one.
#[derive(Debug, Serialize, Deserialize)]
struct Back {
    at: SocketAddr,
    nonce: Nonce,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The service's address, and the paths relative to the root.
    Serving { at: SocketAddr, paths: Vec<Vec<u8>> },
    /// The other side begins its own probes. `udp`: whether it also answers UDP probes.
    Checking { udp: Result<(), String> },
    /// The results of the other side's probes.
    Checked(Vec<Reach>),
    /// The request failed.
    Failed(String),
}

/// Encodes a line of JSON.
fn line(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Reads a line of JSON.
fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    let mut text = String::new();
    from.take(LINE_MAX).read_line(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&text)?)
}

/// The settings of an endpoint that talks to one other, without routers. The site's settings for other copies do not
/// fit this one.
fn settings(mut settings: Settings, direct: bool) -> Settings {
    (settings.as_id, settings.subnet) = (0, 0);
    settings.routers = Routers::default();
    settings.rails = String::new();
    settings.tls = TlsMode::Off;
    if !direct {
        // A second lane would share ssh's one connection, and gain nothing.
        settings.streams = Streams(1);
        settings.transport = Transport::Tcp;
        settings.fabric = "off".to_owned();
        settings.interface = "127.0.0.1".to_owned();
        settings.port = 0;
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that release 0.2.0 and this one exchange.
    #[test]
    fn release_0_2_0_is_understood_and_understands() {
        let nonce = "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]";
        let said = format!(r#"{{"version":1,"authority":[48],"probe":"10.0.0.1:4200","nonce":{nonce}}}"#);
        let ready: Ready = read_line(&mut said.as_bytes()).expect("the first line of 0.2.0");
        assert!(ready.version == VERSION && ready.is_of_0_2_0());
        let ask = Ask { authority: vec![48], direct: true, paths: vec![b"x".to_vec()], put: false };
        let said = line(&Request::Copy(ask)).expect("text");
        assert_eq!(said, "{\"authority\":[48],\"direct\":true,\"paths\":[[120]],\"put\":false}\n");
        assert!(matches!(read_line(&mut said.as_bytes()), Ok(Request::Copy(Ask { direct: true, .. }))));
        let serving = Answer::Serving { at: "10.0.0.1:4200".parse().expect("an address"), paths: vec![] };
        assert_eq!(line(&serving).expect("text"), "{\"Serving\":{\"at\":\"10.0.0.1:4200\",\"paths\":[]}}\n");
        for check in ["{\"check\":null}", "{\"check\":{\"at\":\"10.0.0.1:4200\",\"nonce\":NONCE}}"] {
            let said = check.replace("NONCE", nonce);
            assert!(matches!(read_line(&mut said.as_bytes()), Ok(Request::Check { .. })), "{said}");
        }
    }
}
