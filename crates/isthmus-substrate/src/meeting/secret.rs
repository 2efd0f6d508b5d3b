//! Parts of a job that share a secret find each other at HOST:PORT.
//!
//! An endpoint's address is a capability: a process that has it may connect. So a caller proves that it has the
//! secret, and gets the address encrypted. Both are one handshake, `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`
//! of the crate `snow`. A listener without the secret learns nothing, and a caller without it gets only [`DENIED`].
//! A replayed call is useless: its answer is encrypted for a key that only the first caller had.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use isthmus_io::log::{accepted, warn};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The first bytes of a call. They change when the protocol changes.
const MAGIC: &[u8; 16] = b"isthmus run at 1";
/// Longest message of the handshake. Bytes: an address of an endpoint on several devices, and 64 of its own.
const MESSAGE_MAX: usize = 2048;
/// Least length of a secret. Bytes: nobody guesses 16 random ones.
const SECRET_MIN: usize = 16;
/// Most of a secret's file that is read. Bytes.
const SECRET_MAX: u64 = 64 << 10;
/// Longest duration of a call. A round trip is below 1 s anywhere on Earth.
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls that are answered at once; more are closed. Each has a thread.
const CALLS_MAX: usize = 64;
/// A length that no message has: the caller does not have the secret.
const DENIED: [u8; 2] = [0, 0];

/// A key that all parts of a job have.
#[derive(Clone)]
pub(super) struct Secret {
    key: [u8; 32],
    prologue: Vec<u8>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

impl Secret {
    /// The secret of a job, from what its file holds.
    pub(super) fn new(content: &[u8], job: &str) -> Result<Self, String> {
        let content = content.trim_ascii();
        if content.len() < SECRET_MIN {
            return Err(format!(
                "holds {} bytes; make one of at least {SECRET_MIN}: openssl rand -hex 32 > FILE",
                content.len()
            ));
        }
        let key = blake3::derive_key("isthmus run 2026 secret of a job's parts", content);
        let prologue = [MAGIC, job.as_bytes()].concat();
        Ok(Self { key, prologue })
    }

    pub(super) fn read(path: &Path, job: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("the secret {}: {why}", path.display());
        let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mode = rustix::fs::fstat(&file).map_err(|error| wrong(error.to_string()))?.st_mode;
        if mode & 0o077 != 0 {
            return Err(wrong(format!("others on this host can read it; chmod 600 {}", path.display())));
        }
        let mut content = Vec::new();
        file.take(SECRET_MAX).read_to_end(&mut content).map_err(|error| wrong(error.to_string()))?;
        Self::new(&content, job).map_err(wrong)
    }

    fn handshake(&self, calls: bool) -> io::Result<snow::HandshakeState> {
        let wrong = |error: snow::Error| io::Error::other(error.to_string());
        let builder = snow::Builder::new(PATTERN.parse().map_err(wrong)?);
        let builder =
            builder.prologue(&self.prologue).and_then(|builder| builder.psk(0, &self.key)).map_err(wrong)?;
        if calls { builder.build_initiator() } else { builder.build_responder() }.map_err(wrong)
    }
}

/// Why a call gave no address.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Nobody listens yet, or the path is broken.
    Later(String),
    /// The listener has another secret or job.
    Denied,
}

/// The address that the listener at `at` gives to holders of the secret.
pub(super) fn call(at: &str, secret: &Secret) -> Result<String, Unanswered> {
    let later = |error: io::Error| Unanswered::Later(format!("{at}: {error}"));
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for address in at.to_socket_addrs().map_err(later)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                return ask(stream, secret).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => Unanswered::Denied,
                    _ => later(error),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(later(last))
}

fn ask(mut stream: TcpStream, secret: &Secret) -> io::Result<String> {
    limit(&stream)?;
    let mut noise = secret.handshake(true)?;
    let message = write_message(&mut noise, &[])?;
    stream.write_all(&[&MAGIC[..], &message].concat())?;
    let message = read_message(&mut stream)?.ok_or(io::ErrorKind::PermissionDenied)?;
    let mut uri = [0; MESSAGE_MAX];
    let len = noise.read_message(&message, &mut uri).map_err(|_| io::ErrorKind::PermissionDenied)?;
    String::from_utf8(uri[..len].to_vec()).map_err(io::Error::other)
}

/// Neither end waits longer than [`PATIENCE`] for the other.
fn limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// A message of the handshake behind its length.
fn write_message(noise: &mut snow::HandshakeState, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut buffer = [0; MESSAGE_MAX];
    let len =
        noise.write_message(payload, &mut buffer).map_err(|error| io::Error::other(error.to_string()))?;
    Ok([&(len as u16).to_be_bytes()[..], &buffer[..len]].concat())
}

/// None for [`DENIED`].
fn read_message(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    if len == DENIED {
        return Ok(None);
    }
    let len = usize::from(u16::from_be_bytes(len));
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no answer of isthmus run"));
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message)?;
    Ok(Some(message))
}

/// Answers calls until it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    ended: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Listener {
    /// Listens at `at`. If this host does not have that address, listens at its port on all addresses.
    pub(super) fn new(at: &str, secret: Secret, uri: String) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("cannot listen at {at}: {error}");
        let listener = match TcpListener::bind(at) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                let port = at.to_socket_addrs().map_err(wrong)?.next().map_or(0, |address| address.port());
                TcpListener::bind(("0.0.0.0", port))
            }
            other => other,
        };
        let listener = listener.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = ended.clone();
        let serve = move || {
            let calls = Arc::new(AtomicUsize::new(0));
            let (secret, uri) = (Arc::new(secret), Arc::new(uri));
            for stream in accepted(listener.incoming(), warn) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if calls.load(Ordering::Relaxed) >= CALLS_MAX {
                    continue;
                }
                calls.fetch_add(1, Ordering::Relaxed);
                let (secret, uri, under_way) = (secret.clone(), uri.clone(), calls.clone());
                let answered = thread::Builder::new().name("isthmus-at".to_owned()).spawn(move || {
                    // An error of one caller does not concern the others.
                    let _ = answer(stream, &secret, &uri);
                    under_way.fetch_sub(1, Ordering::Relaxed);
                });
                if answered.is_err() {
                    calls.fetch_sub(1, Ordering::Relaxed);
                }
            }
        };
        thread::Builder::new().name("isthmus-at".to_owned()).spawn(serve).map_err(wrong)?;
        Ok(Self { ended, address })
    }

    #[cfg(test)]
    fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        // Wakes the listening thread. If that fails, the thread ends with the process.
        let _ = TcpStream::connect_timeout(&address, Duration::from_millis(100));
    }
}

fn answer(mut stream: TcpStream, secret: &Secret, uri: &str) -> io::Result<()> {
    limit(&stream)?;
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let message = read_message(&mut stream)?.ok_or(io::ErrorKind::InvalidData)?;
    let mut noise = secret.handshake(false)?;
    let mut buffer = [0; MESSAGE_MAX];
    if noise.read_message(&message, &mut buffer).is_err() {
        return stream.write_all(&DENIED);
    }
    stream.write_all(&write_message(&mut noise, uri.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const URI: &str = "isthmus://0.0/10.0.0.1:4000#0badcafe.key";

    fn secret(text: &str, job: &str) -> Secret {
        Secret::new(text.as_bytes(), job).expect("long enough")
    }

    fn listener() -> (Listener, String) {
        let listener =
            Listener::new("127.0.0.1:0", secret("0123456789abcdef", "job"), URI.to_owned()).expect("free");
        let at = format!("127.0.0.1:{}", listener.port());
        (listener, at)
    }

    #[test]
    fn who_has_the_secret_gets_the_address() {
        let (_listener, at) = listener();
        assert_eq!(call(&at, &secret("0123456789abcdef\n", "job")).expect("answered"), URI);
    }

    #[test]
    fn another_secret_or_job_is_denied() {
        let (_listener, at) = listener();
        for other in [secret("0123456789abcdeX", "job"), secret("0123456789abcdef", "other")] {
            assert!(matches!(call(&at, &other), Err(Unanswered::Denied)));
        }
    }

    #[test]
    fn nobody_there_is_a_matter_of_time() {
        let (listener, at) = listener();
        drop(listener);
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while call(&at, &secret("0123456789abcdef", "job")).is_ok() {
            assert!(std::time::Instant::now() < until, "it still listens");
        }
    }

    #[test]
    fn strangers_get_nothing() {
        let (_listener, at) = listener();
        for words in [
            &b"GET / HTTP/1.1\r\n\r\n                "[..],
            &[&MAGIC[..], &[255, 255]].concat(),
            &[&MAGIC[..], &[0, 3, 1, 2, 3]].concat(),
        ] {
            let mut stream = TcpStream::connect(&at).expect("it listens");
            stream.write_all(words).expect("sent");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            assert!(said.is_empty() || said == DENIED, "{said:?}");
        }
    }

    #[test]
    fn short_secrets_are_refused() {
        assert!(Secret::new(b"password", "job").is_err());
    }
}
