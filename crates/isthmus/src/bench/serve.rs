//! `isthmus bench serve`: the other side of a measurement.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread;

use isthmus_io::log::no_thread;
use isthmus_substrate::{
    Access, Connection, Endpoint, EndpointOptions, Event, Region, SendOptions, Substrate,
};

use super::{At, Fault, ServeArgs, request};

/// Payloads of a connection request, which tell the substrate's server what to do.
pub(super) const ECHO: &[u8] = b"echo";
pub(super) const SINK: &[u8] = b"sink";
/// Asks how many messages the sink has received. The answer is in a rejection.
pub(super) const SUNK: &[u8] = b"sunk";
/// Asks for memory. The length follows as text.
pub(super) const MEMORY: &[u8] = b"memory ";
/// Name of the UDP transport that is also used within a host.
pub(super) const UDP_WITHIN_HOST: &str = "udp-everywhere";
/// Most memory that is lent for one request. Bytes.
const MEMORY_MAX: usize = 1 << 30;

/// Orders to the plain servers: the first byte of a connection or of each datagram. An echo sleeps or polls until more
/// comes.
pub(super) const ECHO_SLEEPING: u8 = b'e';
pub(super) const ECHO_POLLING: u8 = b'p';
pub(super) const TCP_SINK: u8 = b's';
/// The lengths of a request and of its answer follow.
pub(super) const REQUESTS: u8 = b'r';
/// Fruitless polls before a server sleeps. Count.
const POLLS: u32 = 20_000;

/// Longest message of a measurement. Bytes.
pub(super) const MESSAGE_MAX: u32 = 1 << 20;

/// The addresses of a server.
#[derive(Clone)]
pub(super) struct ServerAddresses {
    pub(super) uri: String,
    pub(super) tcp: SocketAddr,
    pub(super) udp: SocketAddr,
}

impl FromStr for ServerAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An address of several devices contains commas itself.
        let fields: Vec<&str> = text.rsplitn(3, ',').collect();
        let parsed = match fields[..] {
            [udp, tcp, uri] => {
                tcp.parse().ok().zip(udp.parse().ok()).map(|(tcp, udp)| (uri.to_owned(), tcp, udp))
            }
            _ => None,
        };
        let (uri, tcp, udp) =
            parsed.ok_or_else(|| format!("`{text}` is not what `isthmus bench serve` prints"))?;
        Ok(Self { uri, tcp, udp })
    }
}

/// The other side: a process that we started, or one that the user named.
pub(super) struct Others {
    pub(super) server: ServerAddresses,
    child: Option<Child>,
}

impl Others {
    pub(super) fn find(to: Option<&ServerAddresses>, at: &At) -> Result<Self, Fault> {
        if let Some(server) = to {
            return Ok(Self { server: server.clone(), child: None });
        }
        if at.transport == ["ethernet"] {
            return Err("frames go between hosts, not within one: run `isthmus bench serve --transport \
                        ethernet` on another one, and give what it prints to --to"
                .into());
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "serve", "--until-eof"]);
        for (option, value) in at
            .device
            .iter()
            .map(|name| ("--device", name))
            .chain(at.transport.iter().map(|name| ("--transport", name)))
        {
            // Within a host, UDP is used only on explicit request.
            let value = if value == "udp" { UDP_WITHIN_HOST } else { value };
            command.args([option, value]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.is_empty() {
            // It has said why.
            return Err(format!("the other side ended with {}", child.wait()?).into());
        }
        Ok(Self { server: line.trim().parse()?, child: Some(child) })
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

pub(super) fn endpoint(at: &At) -> Result<Endpoint, Fault> {
    let substrate = Substrate::init()?;
    let options = EndpointOptions { message_max: MESSAGE_MAX, ..Default::default() };
    let device = match &at.device {
        Some(name) => substrate.device(name)?,
        None => substrate.default_device()?,
    };
    match &at.transport[..] {
        [] => Ok(Endpoint::create(device, &options)?),
        [named] => Ok(Endpoint::create(&device.carried_by(named), &options)?),
        _ => Err("one side has one --transport".into()),
    }
}

pub(super) fn run(args: &ServeArgs) -> Result<(), Fault> {
    let endpoint = endpoint(&args.at)?;
    let ip = endpoint.device().address().map_err(str::to_owned)?;
    let (tcp, udp) = plain(ip)?;
    outln!("{},{tcp},{udp}", endpoint.uri());
    // Nobody would know where to measure.
    if crate::output::has_failed() {
        return Ok(());
    }
    if args.until_eof {
        spawn(|| {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            std::process::exit(0);
        })?;
    }
    let mut guests = Guests::default();
    loop {
        if let Some(event) = next(&endpoint)? {
            serve(&endpoint, event, &mut guests)?;
        }
    }
}

/// Polls before it sleeps, as a program that wants low latency does.
fn next(endpoint: &Endpoint) -> Result<Option<Event>, Fault> {
    for _ in 0..POLLS {
        if let Some(event) = endpoint.get_event()? {
            return Ok(Some(event));
        }
    }
    Ok(endpoint.next_event(None)?)
}

/// Purposes of connections, used as their contexts.
const ECHOES: u64 = 1;
const SINKS: u64 = 2;
const LENDS: u64 = 3;

#[derive(Default)]
struct Guests {
    /// Memory lent to connections.
    lent: Vec<(Connection, Region)>,
    /// Messages that the sink has received.
    sunk: u64,
}

fn serve(endpoint: &Endpoint, event: Event, guests: &mut Guests) -> Result<(), Fault> {
    let silent = SendOptions { silent: true, ..SendOptions::default() };
    match event {
        Event::Received(message) if message.context() == ECHOES => {
            // Ignore errors: the guest may have left.
            let _ = endpoint.send(message.connection(), &message, &silent);
        }
        Event::Received(message) if message.context() == SINKS => guests.sunk += 1,
        Event::Requested(request) => {
            let words = request.payload();
            let lent = words.strip_prefix(MEMORY).and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
            let (context, region) = match (words, lent) {
                (ECHO, _) => (ECHOES, None),
                (SINK, _) => (SINKS, None),
                (SUNK, _) => {
                    let sunk = guests.sunk.to_le_bytes();
                    return Ok(endpoint.reject(request, 0, &sunk)?);
                }
                (_, Some(len)) if len <= MEMORY_MAX => {
                    let access = Access { remote_read: true, remote_write: true };
                    let region = endpoint.register(len, access)?;
                    // Touch all pages before anybody measures.
                    region.write_at(0, &vec![1; len])?;
                    (LENDS, Some(region))
                }
                _ => return Ok(endpoint.reject(request, 1, b"echo, sink, sunk or memory LENGTH")?),
            };
            if let (Ok(connection), Some(region)) = (endpoint.accept(request, context), region) {
                guests.lent.push((connection, region));
            }
        }
        Event::Accepted { connection, context: LENDS } => {
            if let Some((_, region)) = guests.lent.iter().find(|(of, _)| *of == connection) {
                let _ = endpoint.send(connection, &region.handle().to_bytes(), &silent);
            }
        }
        Event::Disconnected { connection, .. } => {
            guests.lent.retain(|(of, _)| *of != connection);
            endpoint.disconnect(connection)?;
        }
        _ => {}
    }
    Ok(())
}

/// Starts the plain servers. Returns their addresses, TCP and UDP.
fn plain(ip: IpAddr) -> Result<(SocketAddr, SocketAddr), Fault> {
    let listener = TcpListener::bind((ip, 0))?;
    let udp = UdpSocket::bind((ip, 0))?;
    let places = (listener.local_addr()?, udp.local_addr()?);
    spawn(move || {
        for stream in isthmus_io::log::accepted(listener.incoming(), isthmus_io::log::warn) {
            if let Err(error) = spawn(move || tcp(stream)) {
                isthmus_io::log::warn(format_args!("a connection is closed: {error}"));
            }
        }
    })?;
    spawn(move || {
        let mut bytes = vec![0; 65_536];
        // Fruitless polls left before it sleeps. At 0 it sleeps.
        let mut polls = 0;
        loop {
            let polled = polls > 0;
            match udp.recv_from(&mut bytes) {
                Ok((len, from)) => {
                    let _ = udp.send_to(&bytes[..len], from);
                    polls = if bytes[0] == ECHO_POLLING { POLLS } else { 0 };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => polls -= u32::from(polled),
                Err(_) => polls = 0,
            }
            if polled != (polls > 0) && udp.set_nonblocking(polls > 0).is_err() {
                return;
            }
        }
    })?;
    Ok(places)
}

fn spawn(body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name("bench".to_owned()).spawn(body).map(drop).map_err(no_thread)
}

fn tcp(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut bytes = vec![0; 1 << 20];
    let mut what = [0];
    if stream.read_exact(&mut what).is_err() || stream.set_nonblocking(what[0] == ECHO_POLLING).is_err() {
        return;
    }
    if what[0] == REQUESTS {
        // Ignore errors: the connection ends in any case.
        let _ = request::answer(stream);
        return;
    }
    while let Ok(len @ 1..) = polled(|| stream.read(&mut bytes)) {
        let mut left = if what[0] == TCP_SINK { &[] } else { &bytes[..len] };
        while !left.is_empty() {
            let Ok(sent) = polled(|| stream.write(left)) else { return };
            left = &left[sent..];
        }
    }
    // The sink acknowledges the end of the data.
    if what[0] == TCP_SINK {
        let _ = stream.write_all(&[1]);
    }
}

/// Repeats a non-blocking call until it has a result. A blocking call is made once.
fn polled(mut call: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}
