//! Names at a router: one program publishes a text under a name, others look it up, also from other sites.
//!
//! The router's address is `isthmus://AS.SUBNET/IP:PORT`, on the subnet of the publishing process. If that is not this
//! process's subnet, the lane goes by this subnet's routers.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_io::Settings;
use isthmus_io::log::{Sparing, no_thread, warn};
use isthmus_wire::frame::{Frame, Hello, MAGIC, Refuse, RefuseReason};
use isthmus_wire::rendezvous::{ANSWER_HEAD, Answer, NAME_MAX, Request, TEXT_MAX};
use isthmus_wire::{Address, AsId, PROTOCOL_OLDEST, PROTOCOL_VERSION, SubnetId};
use parking_lot::{Condvar, Mutex};

use crate::Error;

/// Longest time to reach a router, and for its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two heartbeats of a publisher.
const BEAT: Duration = Duration::from_secs(10);
/// Pause before a publisher publishes again after its lane broke, and between two look-ups of a name.
const AGAIN: Duration = Duration::from_millis(500);

/// A published name; it is withdrawn when this is dropped, or this process ends.
#[derive(Debug)]
pub struct Published {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    lane: Mutex<Option<TcpStream>>,
    wake: Condvar,
}

/// Publishes `text` under `name` at the router `place`, until the returned value is dropped. If the router or the path
/// to it fails later, the name is published again when they are back.
///
/// # Errors
/// [`Error::Uri`]; [`Error::Value`] for a wrong place, name or text, or one that the router refuses;
/// [`Error::Unreachable`] if the router cannot be reached.
pub fn publish(place: &str, name: &str, text: &str) -> Result<Published, Error> {
    let way = RouterPath::new(place)?;
    let request = encode(&Request::Publish { name: name.to_owned(), text: text.to_owned() })?;
    let lane = way.ask_to_publish(&request)?;
    let shared = Arc::new(Shared { lane: Mutex::new(Some(clone(&lane)?)), ..Shared::default() });
    let published = Published { shared: shared.clone() };
    // The program's signals are for its own threads.
    let _blocked = isthmus_io::block_signals();
    let started = thread::Builder::new().name("isthmus-name".to_owned()).spawn({
        let name = name.to_owned();
        move || keep(&way, (&name, &request), lane, &shared)
    });
    started.map_err(|error| Error::System(format!("cannot keep a name: {}", no_thread(error))))?;
    Ok(published)
}

/// The text that somebody publishes under `name` at the router `place`, now or within `patience`.
///
/// # Errors
/// As for [`publish`]; [`Error::Failed`] with [`crate::Failure::TimedOut`] if nobody does.
pub fn look_up(place: &str, name: &str, patience: Duration) -> Result<String, Error> {
    let way = RouterPath::new(place)?;
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait_s = left.as_secs().min(u64::from(u16::MAX)) as u16;
        let request = encode(&Request::LookUp { name: name.to_owned(), wait_s })?;
        let asked = way.ask(&request, PATIENCE + Duration::from_secs(wait_s.into()));
        match asked {
            Ok((_, Answer::Found, text)) => return Ok(text),
            Ok((_, Answer::Absent, _)) | Err(Error::Unreachable(_)) if Instant::now() + AGAIN < until => {
                thread::sleep(AGAIN);
            }
            Ok((_, Answer::Absent, _)) => return Err(Error::Failed(crate::Failure::TimedOut)),
            Ok((_, answer, _)) => return Err(refused(answer)),
            Err(error) => return Err(error),
        }
    }
}

fn encode(request: &Request) -> Result<Vec<u8>, Error> {
    request.encode().ok_or_else(|| {
        Error::Value(format!(
            "a name at a router has 1 to {NAME_MAX} letters, digits, \"-\", \"_\", \".\" and \":\", and its text at most {TEXT_MAX} bytes"
        ))
    })
}

fn refused(answer: Answer) -> Error {
    let text = match answer {
        Answer::Taken => "another process has published this name; choose another, or end that process",
        Answer::Full => "the router keeps as many names as it may; try another router",
        Answer::Denied => {
            "a router takes names of processes of its own AS only; publish at one of this site's routers"
        }
        _ => "the router does not understand; install the same release everywhere",
    };
    Error::Value(text.to_owned())
}

impl Published {
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let lane = self.shared.lane.lock();
        if let Some(lane) = &*lane {
            // It may be gone already.
            let _ = lane.shutdown(Shutdown::Both);
        }
        self.shared.wake.notify_all();
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.end();
    }
}

/// Keeps a name published: sends heartbeats, and publishes again when the lane broke. A router that was started again
/// knows no names, so another process may have published this one meanwhile.
fn keep(way: &RouterPath, (name, request): (&str, &[u8]), mut lane: TcpStream, shared: &Shared) {
    static REFUSED: Sparing = Sparing::new();
    let is_over = || shared.ended.load(Ordering::Relaxed);
    loop {
        let _ = lane.set_read_timeout(Some(BEAT));
        loop {
            let heard = lane.read(&mut [0; 16]);
            let silent =
                heard.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
            if is_over() {
                return;
            }
            if !silent || lane.write_all(&[0]).is_err() {
                break;
            }
        }
        loop {
            let mut place = shared.lane.lock();
            if !is_over() {
                shared.wake.wait_for(&mut place, AGAIN);
            }
            drop(place);
            if is_over() {
                return;
            }
            let next = match way.ask_to_publish(request) {
                Ok(next) => next,
                Err(error) => {
                    if let Some(left_out) = REFUSED.due(Instant::now()) {
                        warn(format_args!("the name {name:?} is not published now: {error}{left_out}"));
                    }
                    continue;
                }
            };
            let mut place = shared.lane.lock();
            *place = next.try_clone().ok();
            lane = next;
            break;
        }
        // It may have ended between the two checks.
        if is_over() {
            return;
        }
    }
}

fn clone(lane: &TcpStream) -> Result<TcpStream, Error> {
    lane.try_clone().map_err(|error| Error::System(error.to_string()))
}

/// The path from here to a router.
struct RouterPath {
    target: Address,
    as_id: AsId,
    subnet: SubnetId,
    /// Drawn at random and told only to the router, which knows by it whose a name is.
    incarnation: u32,
    secret: u64,
    /// The addresses to dial: the router itself, or the routers of this subnet.
    hops: Vec<SocketAddr>,
}

impl RouterPath {
    fn new(place: &str) -> Result<Self, Error> {
        let target: Address = place.parse().map_err(|_| {
            Error::Uri(format!("{place:?} is no router's address; expected isthmus://AS.SUBNET/IP:PORT"))
        })?;
        let settings = Settings::load().map_err(|error| Error::Configuration(error.to_string()))?;
        let (as_id, subnet) = (AsId(settings.as_id), SubnetId(settings.subnet));
        let near = (as_id, subnet) == (target.as_id, target.subnet);
        let hops = if near { vec![target.locator] } else { settings.routers.0 };
        if hops.is_empty() {
            let text = format!(
                "{target} is on another subnet than this process ({}.{}), and no routers are set: FI_ISTHMUS_ROUTERS, \
                 FI_ISTHMUS_AS_ID, FI_ISTHMUS_SUBNET",
                as_id.0, subnet.0
            );
            return Err(Error::Unreachable(text));
        }
        let no_numbers = |error: getrandom::Error| Error::System(error.to_string());
        let incarnation = getrandom::u32().map_err(no_numbers)?;
        let secret = getrandom::u64().map_err(no_numbers)?;
        Ok(Self { target, as_id, subnet, incarnation, secret, hops })
    }

    fn ask_to_publish(&self, request: &[u8]) -> Result<TcpStream, Error> {
        match self.ask(request, PATIENCE)? {
            (lane, Answer::Published, _) => Ok(lane),
            (_, answer, _) => Err(refused(answer)),
        }
    }

    /// The answer by the first hop that leads there.
    fn ask(&self, request: &[u8], patience: Duration) -> Result<(TcpStream, Answer, String), Error> {
        let mut last = String::new();
        for hop in &self.hops {
            match self.ask_by(*hop, request, patience) {
                Ok(answered) => return Ok(answered),
                Err(text) => last = format!("{hop}: {text}"),
            }
        }
        Err(Error::Unreachable(format!("the router {} cannot be asked for a name: {last}", self.target)))
    }

    fn ask_by(
        &self,
        hop: SocketAddr,
        request: &[u8],
        patience: Duration,
    ) -> Result<(TcpStream, Answer, String), String> {
        let text = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
            ErrorKind::UnexpectedEof => {
                "it closed the connection; is it a router of this release?".to_owned()
            }
            _ => error.to_string(),
        };
        let mut lane = TcpStream::connect_timeout(&hop, PATIENCE).map_err(text)?;
        lane.set_nodelay(true).map_err(text)?;
        lane.set_read_timeout(Some(patience)).map_err(text)?;
        let own: IpAddr = lane.local_addr().map_err(text)?.ip();
        let source = Address {
            as_id: self.as_id,
            subnet: self.subnet,
            incarnation: self.incarnation,
            ..Address::from(SocketAddr::new(own, 0))
        };
        let hello = Hello {
            magic: MAGIC,
            version: PROTOCOL_VERSION,
            source,
            target: self.target,
            credit: self.secret,
            hops: 0,
            oldest: PROTOCOL_OLDEST,
            payload: 0,
        };
        let mut words = Vec::new();
        Frame::from(hello).encode(&mut words);
        words.extend_from_slice(request);
        lane.write_all(&words).map_err(text)?;
        let mut head = [0; ANSWER_HEAD];
        lane.read_exact(&mut head).map_err(text)?;
        let Some((answer, len)) = Answer::decode(head) else { return Err(refusal(&head, &mut lane)) };
        let mut rest = vec![0; len];
        lane.read_exact(&mut rest).map_err(text)?;
        Ok((lane, answer, String::from_utf8_lossy(&rest).into_owned()))
    }
}

/// Why a router on the path refuses the lane.
fn refusal(head: &[u8], lane: &mut TcpStream) -> String {
    let mut bytes = head.to_vec();
    bytes.resize(Refuse::LEN, 0);
    let reason = match lane.read_exact(&mut bytes[ANSWER_HEAD..]).map(|()| Frame::decode(&bytes)) {
        Ok(Ok(Some(Frame::Refuse(refuse)))) => RefuseReason::from_code(refuse.reason),
        _ => None,
    };
    match reason {
        Some(reason) => format!("refused: {reason:?} (docs/router.md)"),
        None => "it is no router of this release".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Arguments;
    use std::net::TcpListener;
    use std::sync::mpsc;

    use isthmus_io::log::{Severity, set_hook};

    use super::*;

    static LINES: std::sync::Mutex<Option<mpsc::Sender<String>>> = std::sync::Mutex::new(None);

    fn keep_line(_: Severity, line: Arguments<'_>) {
        if let Some(lines) = &*LINES.lock().expect("nobody panics with it") {
            let _ = lines.send(line.to_string());
        }
    }

    /// A router that is started again, where somebody else takes the name first.
    #[test]
    fn a_name_that_was_lost_to_another_process_is_told() {
        let (lines, told) = mpsc::channel();
        *LINES.lock().expect("nobody panics with it") = Some(lines);
        set_hook(keep_line);
        let router = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = format!("isthmus://0.0/{}", router.local_addr().expect("bound"));
        let serve = thread::spawn(move || {
            [Answer::Published, Answer::Taken].map(|answer| {
                let (mut lane, _) = router.accept().expect("a publisher");
                let _ = lane.read(&mut [0; 512]).expect("its words");
                lane.write_all(&answer.encode("")).expect("it listens");
                lane.shutdown(Shutdown::Write).expect("connected");
                lane
            })
        });
        let published = publish(&place, "ocean", "where").expect("published");
        let line = loop {
            let line = told.recv_timeout(Duration::from_secs(60)).expect("a line");
            if line.contains("ocean") {
                break line;
            }
        };
        assert!(line.contains("another process has published this name"), "{line}");
        drop(published);
        drop(serve.join().expect("no panic"));
    }
}
