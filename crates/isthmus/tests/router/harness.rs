//! Routers as processes, endpoints as sockets, on addresses of this host's loopback.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use isthmus_wire::frame::{Frame, Hello, MAGIC, Refuse, RefuseReason};
use isthmus_wire::{Address, AsId, Key, PROTOCOL_OLDEST, PROTOCOL_VERSION, SubnetId};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tempfile::TempDir;

use crate::strangers::connect_from;
use crate::support::give_up;

/// A locator at which no test listens.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);
/// What takes longer hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Files and addresses of one test.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    net: [u8; 2],
}

impl World {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        // Tests that run at the same time, also of other builds, share no address.
        let process = (std::process::id() % 250) as u8 + 2;
        let net = [process, NEXT.fetch_add(1, Ordering::Relaxed)];
        Self { folder: TempDir::new().expect("a folder"), net }
    }

    /// An address on which nobody listens, on the host with this number.
    pub(crate) fn address(&self, host: u8) -> SocketAddr {
        let ip = Ipv4Addr::new(127, self.net[0], self.net[1], host);
        let listener = TcpListener::bind((ip, 0)).expect("a port");
        listener.local_addr().expect("an address")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// Makes the certificates of an AS, in a folder of its own.
    pub(crate) fn keygen(&self, as_id: u32, folder: &str) -> PathBuf {
        let out = self.folder.path().join(folder);
        let made =
            isthmus().args(["router", "keygen", "--as", &as_id.to_string(), "--out"]).arg(&out).output();
        let made = made.expect("isthmus starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        out
    }

    pub(crate) fn start(&self, config: &Path) -> Running {
        Running::start(self, config, &[])
    }
}

pub(crate) fn isthmus() -> Command {
    Command::new(env!("CARGO_BIN_EXE_isthmus"))
}

/// A router's process; killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    notices: UnixDatagram,
}

impl Running {
    pub(crate) fn start(world: &World, config: &Path, more: &[&str]) -> Self {
        Self::start_with(world, config, more, &[])
    }

    /// As [`Running::start`], with these environment variables too.
    pub(crate) fn start_with(world: &World, config: &Path, more: &[&str], with: &[(&str, &str)]) -> Self {
        let socket = config.with_extension("notify");
        let _ = fs::remove_file(&socket);
        let notices = UnixDatagram::bind(&socket).expect("a socket");
        notices.set_read_timeout(Some(HANG)).expect("a time-out");
        let log = fs::File::options().create(true).append(true).open(world.folder.path().join("log"));
        let child = isthmus()
            .args(["router", "run", "--config"])
            .arg(config)
            .args(more)
            .env("NOTIFY_SOCKET", &socket)
            .env("ISTHMUS_LOG", "isthmus_router=debug")
            .envs(with.iter().copied())
            .stdin(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("isthmus starts");
        let running = Self { child, notices };
        assert_eq!(running.notice(), "READY=1", "{}", world.log());
        running
    }

    /// What the router tells the service manager next.
    pub(crate) fn notice(&self) -> String {
        let mut text = [0; 256];
        let mut received = self.notices.recv(&mut text);
        while received.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {
            received = self.notices.recv(&mut text);
        }
        let len = received.expect("a notice of the router");
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl World {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

pub(crate) fn address(as_id: u32, subnet: u32, locator: SocketAddr) -> Address {
    Address { as_id: AsId(as_id), subnet: SubnetId(subnet), locator, incarnation: 7, key: Key::NONE }
}

pub(crate) fn hello(source: Address, target: Address) -> Hello {
    let (version, oldest) = (PROTOCOL_VERSION, PROTOCOL_OLDEST);
    Hello { magic: MAGIC, version, source, target, credit: 1 << 20, hops: 0, oldest, payload: 0 }
}

pub(crate) fn bytes_of(hello: Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame::from(hello).encode(&mut bytes);
    bytes
}

/// An endpoint that waits for lanes.
pub(crate) struct Endpoint(pub(crate) TcpListener);

impl Endpoint {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).expect("a port");
        // The limit of accept().
        set_socket_timeout(&listener, Timeout::Recv, Some(HANG)).expect("a time-out");
        Self(listener)
    }

    pub(crate) fn address(&self, as_id: u32, subnet: u32) -> Address {
        address(as_id, subnet, self.0.local_addr().expect("an address"))
    }

    /// The next lane, and its Hello.
    pub(crate) fn accept(&self) -> (TcpStream, Hello) {
        let (mut lane, _) = match self.0.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                give_up(format_args!("no lane has come in {HANG:?}"))
            }
            came => came.expect("a lane"),
        };
        lane.set_read_timeout(Some(HANG)).expect("a time-out");
        let mut bytes = [0; Hello::LEN];
        lane.read_exact(&mut bytes).expect("a Hello");
        match Frame::decode(&bytes) {
            Ok(Some(Frame::Hello(hello))) => (lane, hello),
            other => panic!("no Hello but {other:?}"),
        }
    }
}

/// Opens a lane by the router at `router`.
pub(crate) fn dial(router: SocketAddr, hello: Hello) -> TcpStream {
    let mut lane = TcpStream::connect(router).expect("the router answers");
    lane.set_read_timeout(Some(HANG)).expect("a time-out");
    lane.write_all(&bytes_of(hello)).expect("Hello is taken");
    lane
}

/// A connection whose address is that of `from`.
pub(crate) fn socket_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let stream = connect_from(from.ip(), to);
    stream.set_read_timeout(Some(HANG)).expect("a time-out");
    stream
}

/// The reason with which the router refuses, and that it closes then.
pub(crate) fn refusal(mut lane: TcpStream) -> RefuseReason {
    let mut bytes = Vec::new();
    lane.read_to_end(&mut bytes).expect("an answer and the end");
    match Frame::decode(&bytes) {
        Ok(Some(Frame::Refuse(Refuse { magic: MAGIC, version: PROTOCOL_VERSION, reason, .. }))) => {
            assert_eq!(bytes.len(), Refuse::LEN, "nothing follows");
            RefuseReason::from_code(reason).expect("a known reason")
        }
        other => panic!("no Refuse but {other:?} of {} bytes", bytes.len()),
    }
}

/// Waits until a lane is cut on which nothing came.
pub(crate) fn is_cut(mut lane: TcpStream) {
    let mut waste = Vec::new();
    let ended = lane.read_to_end(&mut waste);
    // A time-out would mean that it stands.
    let is_over = ended.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
    assert!(is_over && waste.is_empty(), "{ended:?}, {} bytes", waste.len());
}

/// Opens a lane from `dialler` to `target`; both ends, after the Hello.
pub(crate) fn through(
    router: SocketAddr,
    from: Address,
    target: &Endpoint,
    to: Address,
) -> (TcpStream, TcpStream) {
    let near = dial(router, hello(from, to));
    let (far, said) = target.accept();
    assert_eq!((said.source, said.target), (from, to));
    (near, far)
}

/// Bytes that differ at every place and between seeds.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 11).to_le_bytes()[..6]);
    }
    bytes.truncate(len);
    bytes
}

/// Sends `len` bytes each way at once, each side closing its half after the last; all must
/// arrive as they were.
pub(crate) fn exchange(near: TcpStream, far: TcpStream, len: usize) {
    let side = |mut lane: TcpStream, own: u64, other: u64| {
        let mut reader = lane.try_clone().expect("a second handle");
        let reading = std::thread::spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).expect("bytes until the end");
            assert!(got == pattern(other, len), "{} of {len} bytes, or others", got.len());
        });
        std::thread::spawn(move || {
            lane.write_all(&pattern(own, len)).expect("bytes are taken");
            lane.shutdown(std::net::Shutdown::Write).expect("half is closed");
            reading.join().expect("reading");
        })
    };
    let (near, far) = (side(near, 1, 2), side(far, 2, 1));
    near.join().expect("the near side");
    far.join().expect("the far side");
}
