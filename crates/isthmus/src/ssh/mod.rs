//! Work at another host with nothing set up but ssh: `isthmus cp FILE user@host:PATH`, and
//! `isthmus doctor --peer user@host`.
//!
//! The user's own ssh starts `isthmus ssh-serve` on the other host ([`there`]), and both sides talk over its standard
//! input and output ([`here`]), in lines of JSON. For a copy:
//!
//! 1. There: its certificate, and where it can be probed ([`probe`]).
//! 2. Here: its own certificate, the paths, and whether a connection to that place was made.
//! 3. There: the address of a service for this one copy, and the paths as they are on that host.
//!
//! Then the copy is one like any other, between two ends that know each other's throw-away keys. Its lanes go
//! directly, or, where the probe did not get through, over ssh's own stream ([`tunnel`]). The service ends with ssh.
//!
//! For the doctor, both sides probe each other instead ([`visit`]).

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

/// What both sides' certificates are named after; they are for one copy, so nobody else's.
const HERE: AsId = AsId(1);
const THERE: AsId = AsId(2);
/// Version of what is said over ssh. Release 0.2.0 has it too.
const VERSION: u32 = 1;
/// This release, which the other side tells where it has another.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// What the other side's first line begins with. A shell's greetings may come before it.
const MARK: &str = "isthmus-ssh ";
/// Longest line. Bytes.
const LINE_MAX: u64 = 1 << 20;
/// The service's one export is the root, under this name, so that paths read as they are.
const EXPORT: &str = "";

/// The first line of the other side.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    version: u32,
    /// Empty: 0.2.0, which does not answer [`Request::Check`], and takes [`Ask`] only after it was probed.
    #[serde(default)]
    release: String,
    /// Its authority's certificate.
    authority: Vec<u8>,
    /// Where it can be probed; none where it does not know by which address it was reached.
    probe: Option<SocketAddr>,
    nonce: Nonce,
}

impl Ready {
    fn is_of_0_2_0(&self) -> bool {
        self.release.is_empty()
    }
}

/// The answer of this side.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Request {
    Copy(Ask),
    /// Where this side can be probed; none where it has no address that leads to the other.
    Check {
        check: Option<Back>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    authority: Vec<u8>,
    /// A connection was made to where the other side can be probed, so lanes go directly if its nonce fits; otherwise
    /// they go through ssh.
    direct: bool,
    /// As the user wrote them.
    paths: Vec<Vec<u8>>,
    /// Files come from here.
    put: bool,
}

/// Where this side can be probed.
#[derive(Debug, Serialize, Deserialize)]
struct Back {
    at: SocketAddr,
    nonce: Nonce,
}

/// The next line of the other side.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The service's address, and the paths below the root.
    Serving { at: SocketAddr, paths: Vec<Vec<u8>> },
    /// It answers probes by UDP too, or cannot, and begins its own.
    Checking { udp: Result<(), String> },
    /// What reached this side.
    Checked(Vec<Reach>),
    /// It cannot.
    Failed(String),
}

/// A line of JSON.
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

/// The settings of an endpoint that talks to one other, over no router: what a site has set up for other copies does
/// not fit this one.
fn settings(mut settings: Settings, direct: bool) -> Settings {
    (settings.as_id, settings.subnet) = (0, 0);
    settings.routers = Routers::default();
    settings.rails = String::new();
    settings.tls = TlsMode::Off;
    if !direct {
        // A second stream would go over the same connection of ssh.
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

    /// Lines that release 0.2.0 and this one say to each other.
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
