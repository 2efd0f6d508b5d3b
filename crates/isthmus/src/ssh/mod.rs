//! Copies with nothing set up but ssh: `isthmus cp FILE user@host:PATH`.
//!
//! The user's own ssh starts `isthmus ssh-serve` on the other host ([`there`]), and both sides talk over its standard
//! input and output ([`here`]):
//!
//! 1. There: a line with its certificate, and where it can be probed.
//! 2. Here: it connects to that place, and says whether that went well; with its own certificate, and the paths.
//! 3. There: the address of a service for this one copy, and the paths as they are on that host.
//!
//! Then the copy is one like any other, between two ends that know each other's throw-away keys. Its lanes go
//! directly, or, where the probe did not get through, over ssh's own stream ([`tunnel`]). The service ends with ssh.

mod here;
mod paths;
mod there;
mod tunnel;

use std::io::{self, BufRead, Read};

use isthmus_io::{Routers, Settings, Streams, TlsMode, Transport};
use isthmus_wire::AsId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use here::{By, Options, Session, start};
pub(crate) use there::{Args, main};

/// What both sides' certificates are named after; they are for one copy, so nobody else's.
const HERE: AsId = AsId(1);
const THERE: AsId = AsId(2);
/// Version of what is said over ssh.
const VERSION: u32 = 1;
/// What the other side's first line begins with. A shell's greetings may come before it.
const MARK: &str = "isthmus-ssh ";
/// Longest line. Bytes.
const LINE_MAX: u64 = 1 << 20;
/// What proves that a probe has reached this very process. Bytes.
const NONCE: usize = 16;
/// The service's one export is the root, under this name, so that paths read as they are.
const EXPORT: &str = "";

/// The first line of the other side.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    version: u32,
    /// Its authority's certificate.
    authority: Vec<u8>,
    /// Where it can be probed; none where it does not know by which address it was reached.
    probe: Option<std::net::SocketAddr>,
    nonce: [u8; NONCE],
}

/// The answer of this side.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    authority: Vec<u8>,
    /// Lanes go directly, not through ssh.
    direct: bool,
    /// As the user wrote them.
    paths: Vec<Vec<u8>>,
    /// Files come from here.
    put: bool,
}

/// The last line of the other side.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The service's address, and the paths below the root.
    Serving { at: std::net::SocketAddr, paths: Vec<Vec<u8>> },
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
