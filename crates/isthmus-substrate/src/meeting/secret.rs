//! Parts of a job that share a secret find each other at HOST:PORT.
//!
//! An endpoint's address is a capability: a process that has it may connect. So a caller proves that it has the
//! secret, and gets the address encrypted. Both are one handshake, `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`
//! of the crate `snow`. A listener without the secret learns nothing, and a caller without it gets only [`DENIED`].
//! A replayed call is useless: its answer is encrypted for a key that only the first caller had.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_datagram::crowd::displaced;
use isthmus_io::log::{accepted, no_thread, warn};
use parking_lot::Mutex;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The first bytes of a call. They change when the protocol changes.
const MAGIC: &[u8; 16] = b"isthmus run at 1";
/// Longest message of the handshake. Bytes: an address of an endpoint on several devices, and 64 of its own.
const MESSAGE_MAX: usize = 2048;
/// Least length of a secret. Bytes: nobody guesses 16 random ones.
const SECRET_MIN: usize = 16;
/// Most of a secret's file that is read. Bytes.
const SECRET_MAX: u64 = 64 << 10;
/// Longest duration of a call, however slowly its bytes come. A round trip is below 1 s anywhere on Earth.
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls that are answered at once. Each has a thread. One more closes the oldest of the host that has the most
/// ([`displaced`]), so that neither silent nor frequent callers keep others out.
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
                return ask(&stream, secret).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => Unanswered::Denied,
                    _ => later(error),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(later(last))
}

fn ask(mut stream: &TcpStream, secret: &Secret) -> io::Result<String> {
    let mut words = Words::new(stream, PATIENCE)?;
    let mut noise = secret.handshake(true)?;
    let message = write_message(&mut noise, &[])?;
    stream.write_all(&[&MAGIC[..], &message].concat())?;
    let message = read_message(&mut words)?.ok_or(io::ErrorKind::PermissionDenied)?;
    let mut uri = [0; MESSAGE_MAX];
    let len = noise.read_message(&message, &mut uri).map_err(|_| io::ErrorKind::PermissionDenied)?;
    String::from_utf8(uri[..len].to_vec()).map_err(io::Error::other)
}

/// What the other end of a call says, until the call has lasted too long. A time limit of single reads would let
/// somebody who says a byte now and then hold a call for hours.
struct Words<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Words<'a> {
    fn new(stream: &'a TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, until: Instant::now() + patience })
    }
}

impl Read for Words<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// A message of the handshake behind its length.
fn write_message(noise: &mut snow::HandshakeState, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut buffer = [0; MESSAGE_MAX];
    let len =
        noise.write_message(payload, &mut buffer).map_err(|error| io::Error::other(error.to_string()))?;
    Ok([&(len as u16).to_be_bytes()[..], &buffer[..len]].concat())
}

/// None for [`DENIED`].
fn read_message(words: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 2];
    words.read_exact(&mut len)?;
    if len == DENIED {
        return Ok(None);
    }
    let len = usize::from(u16::from_be_bytes(len));
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no answer of isthmus run"));
    }
    let mut message = vec![0; len];
    words.read_exact(&mut message)?;
    Ok(Some(message))
}

/// The calls that are being answered and their hosts, by the order in which they came.
#[derive(Default)]
struct Calls(Mutex<BTreeMap<u64, (TcpStream, Option<IpAddr>)>>);

impl Calls {
    /// Adds a call from `host`. If there are too many, another one is closed.
    fn begin(&self, number: u64, stream: &TcpStream, host: Option<IpAddr>) -> io::Result<()> {
        let stream = stream.try_clone()?;
        let mut calls = self.0.lock();
        if calls.len() >= CALLS_MAX {
            let number = displaced(calls.iter().map(|(number, (_, host))| (*number, *host)));
            if let Some((displaced, _)) = number.and_then(|number| calls.remove(&number)) {
                // Its thread, which reads, ends by this.
                let _ = displaced.shutdown(Shutdown::Both);
            }
        }
        calls.insert(number, (stream, host));
        Ok(())
    }

    fn end(&self, number: u64) {
        self.0.lock().remove(&number);
    }
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
            let calls = Arc::new(Calls::default());
            let (secret, uri) = (Arc::new(secret), Arc::new(uri));
            for (number, stream) in (0..).zip(accepted(listener.incoming(), warn)) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let host = stream.peer_addr().ok().map(|from| from.ip());
                if calls.begin(number, &stream, host).is_err() {
                    continue;
                }
                let (secret, uri, under_way) = (secret.clone(), uri.clone(), calls.clone());
                let answered = thread::Builder::new().name("isthmus-at".to_owned()).spawn(move || {
                    // An error of one caller does not concern the others.
                    let _ = answer(&stream, &secret, &uri, PATIENCE);
                    under_way.end(number);
                });
                if answered.is_err() {
                    calls.end(number);
                }
            }
        };
        let thread = thread::Builder::new().name("isthmus-at".to_owned()).spawn(serve);
        thread.map_err(|error| wrong(no_thread(error)))?;
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

fn answer(mut stream: &TcpStream, secret: &Secret, uri: &str, patience: Duration) -> io::Result<()> {
    let mut words = Words::new(stream, patience)?;
    let mut magic = [0; MAGIC.len()];
    words.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let message = read_message(&mut words)?.ok_or(io::ErrorKind::InvalidData)?;
    let mut noise = secret.handshake(false)?;
    let mut buffer = [0; MESSAGE_MAX];
    if noise.read_message(&message, &mut buffer).is_err() {
        return stream.write_all(&DENIED);
    }
    stream.write_all(&write_message(&mut noise, uri.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, Socket, Type};

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

    /// Each byte comes in time, but the whole call does not.
    #[test]
    fn who_says_little_does_not_hold_a_call() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("free");
        let mut caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (stream, _) = listener.accept().expect("a call");
        // The start of a call with a message of the greatest length.
        let words = [&MAGIC[..], &(MESSAGE_MAX as u16).to_be_bytes(), &[0; MESSAGE_MAX]].concat();
        let says = thread::spawn(move || {
            for byte in words {
                if caller.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let start = Instant::now();
        let answered = answer(&stream, &secret("0123456789abcdef", "job"), URI, Duration::from_millis(300));
        assert!(answered.is_err() && start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        stream.shutdown(Shutdown::Both).expect("closed");
        drop(stream);
        says.join().expect("the caller ends");
    }

    /// As many silent callers as there may be, and more.
    #[test]
    fn silent_callers_keep_nobody_out() {
        let (_listener, at) = listener();
        let _silent: Vec<_> =
            (0..CALLS_MAX + 9).map(|_| TcpStream::connect(&at).expect("it listens")).collect();
        assert_eq!(call(&at, &secret("0123456789abcdef", "job")).expect("answered"), URI);
    }

    /// Callers from one host, who call faster than an honest one answers.
    #[test]
    fn frequent_callers_of_one_host_keep_nobody_out() {
        let (_listener, at) = listener();
        let at: SocketAddr = at.parse().expect("an address");
        let honest = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        honest.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("loopback");
        honest.connect(&at.into()).expect("it listens");
        let frequent: Vec<_> =
            (0..2 * CALLS_MAX).map(|_| TcpStream::connect(at).expect("it listens")).collect();
        // If the oldest call went first, the honest one would be closed before this one.
        assert_eq!((&frequent[0]).read(&mut [0]).expect("closed"), 0);
        assert_eq!(ask(&honest.into(), &secret("0123456789abcdef", "job")).expect("answered"), URI);
    }

    #[test]
    fn short_secrets_are_refused() {
        assert!(Secret::new(b"password", "job").is_err());
    }
}
