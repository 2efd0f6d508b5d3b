//! One session of two sides over a port: control messages in order, and blocks.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use isthmus_proto::PeerId;

use crate::MoverError;
use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::gauge::is_near;
use crate::pool::Done;
use crate::port::{News, Port};
use crate::wire::{Control, Status};
use crate::{descriptors, names};

/// The tag of a client's first message.
pub(crate) const TAG_OPEN: u64 = 1 << 63;
/// A side that is silent for this time counts as lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A client waits this much longer for a service's first answer. Before that the endpoint itself gives the service up,
/// and knows why.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Interval at which a side sends its status.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// Longest wait for the delivery of the last messages.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// What a side that ended a session says of itself, before the reason.
pub(crate) const GIVEN_UP: &str = "it gave this session up: ";

/// Why a service ends its sessions. A client that hears it as a refusal may come again too.
pub(crate) const STOPPING: &str = "the service is being stopped";

/// Longest part of the channel's bytes in one message. Bytes.
const CARRIED: usize = 64 << 10;
/// Limit on undelivered control messages. Bytes. Beyond it the other side does not read, and the session ends.
const UNSENT_MAX: usize = 32 << 20;
/// Posted receives for control messages. Count.
const RECEIVES: usize = 16;
/// What a service without memory or threads for a session says before the reason. The same command may succeed later.
pub(crate) const NO_SESSION: &str = "it cannot start a session: ";
/// Length of the head of a message: kind and number. Bytes.
const LEAD: usize = 1 + 8;
/// Kinds of messages: bytes of the channel, or the reason why there is no channel.
const BYTES: u8 = 0;
const REFUSAL: u8 = 1;

/// Keys that tell what an operation was for.
pub(crate) mod key {
    pub(crate) const CONTROL_IN: u64 = 0;
    pub(crate) const CONTROL_OUT: u64 = 1;
    pub(crate) const BLOCK_IN: u64 = 2;
    pub(crate) const BLOCK_OUT: u64 = 3;
}

/// An event for a session's thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// An operation of the port has ended.
    Net(News),
    /// A disk thread has done a job.
    Disk(Done),
    /// The session must end for this reason. The same command would be refused too.
    Stop(String),
    /// The session must end for this reason. The same command continues it later.
    End(String),
    /// The service cannot be reached at its address, unless it has answered in the meantime.
    Unreached(String),
}

impl From<News> for Event {
    fn from(news: News) -> Self {
        Self::Net(news)
    }
}

/// The tag of a session's messages of this kind.
pub(crate) fn tag(session: u64, blocks: bool) -> u64 {
    session << 1 & !TAG_OPEN | u64::from(blocks)
}

/// Tells a client that there is no session for it.
pub(crate) fn refuse(port: &Port, peer: PeerId, session: u64, why: &str) {
    let mut bytes = vec![REFUSAL; 1];
    bytes.extend_from_slice(&0u64.to_le_bytes());
    bytes.extend_from_slice(why.as_bytes());
    let len = bytes.len();
    let (nobody, _) = crossbeam_channel::unbounded::<Event>();
    let _ = port.send(peer, tag(session, false), bytes, 0..len, 0, nobody);
}

/// One side of a session.
pub(crate) struct Wire {
    port: Arc<Port>,
    peer: PeerId,
    /// The peer whose messages are accepted. None at a client that knows its peer only by address: it accepts all.
    source: Option<PeerId>,
    session: u64,
    pub(crate) channel: Channel,
    to: Sender<Event>,
    pub(crate) inbox: Receiver<Event>,
    sent: u64,
    taken: u64,
    early: BTreeMap<u64, Vec<u8>>,
    /// Buffers for further receives.
    idle: Vec<Buffer>,
    /// Receives that are posted.
    receives: HashSet<u64>,
    /// Control messages that are not delivered yet.
    unsent: usize,
    unsent_bytes: usize,
    heard: Instant,
    /// The other side has sent anything.
    was_heard: bool,
    beat: Instant,
    /// The other side was told why the session ends.
    has_ended: bool,
}

impl Wire {
    pub(crate) fn new(
        port: Arc<Port>,
        peer: PeerId,
        source: Option<PeerId>,
        session: u64,
        channel: Channel,
    ) -> Result<Self, MoverError> {
        let (to, inbox) = crossbeam_channel::unbounded();
        let now = Instant::now();
        let mut wire = Self {
            port,
            peer,
            source,
            session,
            channel,
            to,
            inbox,
            sent: 0,
            taken: 0,
            early: BTreeMap::new(),
            idle: Vec::new(),
            receives: HashSet::new(),
            unsent: 0,
            unsent_bytes: 0,
            heard: now,
            was_heard: false,
            beat: now,
            has_ended: false,
        };
        for _ in 0..RECEIVES {
            wire.listen(vec![0; LEAD + CARRIED].into())?;
        }
        Ok(wire)
    }

    /// The round trip to the other side, if known.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.port.round_trip(self.peer)
    }

    /// Whether the other side has sent anything.
    pub(crate) fn was_heard(&self) -> bool {
        self.was_heard
    }

    /// Whether the other side has answered and, if it has to, proved who it is.
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.is_ready() && self.was_heard
    }

    /// Ends a session whose trial found this, unless it is connected.
    pub(crate) fn take_unreached(&self, why: String) -> Result<(), MoverError> {
        if self.is_connected() { Ok(()) } else { Err(MoverError::Unreached(why)) }
    }

    /// A sender for events of this session, for disk threads and others.
    pub(crate) fn sender(&self) -> Sender<Event> {
        self.to.clone()
    }

    fn listen(&mut self, buffer: Buffer) -> Result<(), MoverError> {
        let tag = tag(self.session, false);
        let receive = self.port.recv(self.source, tag, buffer, key::CONTROL_IN, self.to.clone())?;
        self.receives.insert(receive);
        Ok(())
    }

    /// Posts a buffer for a block.
    pub(crate) fn expect_block(&mut self, buffer: Buffer) -> Result<(), MoverError> {
        let tag = tag(self.session, true);
        let receive = self.port.recv(self.source, tag, buffer, key::BLOCK_IN, self.to.clone())?;
        self.receives.insert(receive);
        Ok(())
    }

    /// Sends a block. If the other side is near, it waits until that has a buffer for it.
    pub(crate) fn send_block(&self, buffer: Buffer, range: std::ops::Range<usize>) -> Result<(), MoverError> {
        let (port, tag, to) = (&self.port, tag(self.session, true), self.to.clone());
        let sent = if is_near(self.round_trip()) {
            port.send_when_wanted(self.peer, tag, buffer, range, key::BLOCK_OUT, to)
        } else {
            port.send(self.peer, tag, buffer, range, key::BLOCK_OUT, to)
        };
        Ok(sent?)
    }

    /// Queues a control message for the next [`Wire::flush`].
    pub(crate) fn say(&mut self, control: &Control) -> Result<(), MoverError> {
        Ok(self.channel.say(control)?)
    }

    /// Sends the queued messages.
    pub(crate) fn flush(&mut self) -> Result<(), MoverError> {
        let output = self.channel.output();
        for piece in output.chunks(CARRIED) {
            let mut bytes = Vec::with_capacity(LEAD + piece.len());
            bytes.push(BYTES);
            bytes.extend_from_slice(&self.sent.to_le_bytes());
            bytes.extend_from_slice(piece);
            let len = bytes.len();
            let tag = tag(self.session, false);
            self.port.send(self.peer, tag, bytes, 0..len, key::CONTROL_OUT, self.to.clone())?;
            self.sent += 1;
            self.unsent += 1;
            self.unsent_bytes += len;
        }
        if self.unsent_bytes > UNSENT_MAX {
            let text =
                format!("the other side does not take what it is told: {} bytes wait", self.unsent_bytes);
            return Err(MoverError::Lost(text));
        }
        Ok(())
    }

    /// Takes the result of an operation. It processes those of control messages, and returns those of blocks.
    pub(crate) fn take(&mut self, news: News, heard: &mut Vec<Control>) -> Result<Option<News>, MoverError> {
        let received = self.receives.remove(&news.operation);
        if let Some(error) = news.error {
            return Err(MoverError::Lost(error));
        }
        if received {
            self.was_heard = true;
            self.heard = Instant::now();
        }
        match news.key {
            key::CONTROL_OUT => {
                self.unsent = self.unsent.saturating_sub(1);
                self.unsent_bytes = self.unsent_bytes.saturating_sub(news.len);
                Ok(None)
            }
            key::CONTROL_IN => {
                let before = self.taken;
                self.take_control(&news.buffer[..news.len])?;
                self.idle.push(news.buffer);
                // A message that waits for an earlier one keeps its receive, so that no more can overtake it.
                for _ in before..self.taken {
                    let buffer = self.idle.pop().unwrap_or_else(|| vec![0; LEAD + CARRIED].into());
                    self.listen(buffer)?;
                }
                while let Some(control) = self.channel.hear()? {
                    match control {
                        Control::Fault(text) => {
                            return Err(MoverError::Refused(descriptors::of_side(
                                names::said(&text),
                                "other",
                            )));
                        }
                        Control::GivenUp(text) => {
                            return Err(MoverError::Lost(descriptors::of_side(names::said(&text), "other")));
                        }
                        control => heard.push(control),
                    }
                }
                Ok(None)
            }
            _ => Ok(Some(news)),
        }
    }

    fn take_control(&mut self, message: &[u8]) -> Result<(), MoverError> {
        let odd = || MoverError::Refused("the other side sent a message of no session".to_owned());
        let (kind, rest) = message.split_first().ok_or_else(odd)?;
        let (number, bytes) = rest.split_first_chunk::<8>().ok_or_else(odd)?;
        if *kind == REFUSAL {
            let why: String = String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect();
            return Err(match &why[..] {
                STOPPING => MoverError::Lost(format!("{GIVEN_UP}{why}")),
                _ if why.starts_with(NO_SESSION) => MoverError::Lost(format!("the service refuses: {why}")),
                _ => MoverError::Refused(format!("the service refuses: {why}")),
            });
        }
        let number = u64::from_le_bytes(*number);
        if number < self.taken || number >= self.taken + RECEIVES as u64 {
            return Err(odd());
        }
        self.early.insert(number, bytes.to_vec());
        while let Some(bytes) = self.early.remove(&self.taken) {
            self.taken += 1;
            if let Err(error) = self.channel.receive(&bytes) {
                // TLS may have an alert that tells the other side why.
                let _ = self.flush();
                return Err(error.into());
            }
        }
        // The handshake may have produced an answer.
        self.flush()
    }

    /// Sends the status if the interval has passed, or `at_once`. Also checks that the other side still sends its own.
    /// Returns whether the status was sent.
    pub(crate) fn beat(
        &mut self,
        at_once: bool,
        status: impl FnOnce() -> Status,
    ) -> Result<bool, MoverError> {
        let now = Instant::now();
        if now - self.heard > if self.was_heard { PATIENCE } else { PATIENCE + FIRST_ANSWER } {
            let text = format!("the other side has been silent for {} s", PATIENCE.as_secs());
            return Err(MoverError::Lost(text));
        }
        if now - self.beat < BEAT && !at_once || !self.channel.is_ready() {
            return Ok(false);
        }
        self.beat = now;
        self.say(&Control::Status(status()))?;
        self.flush()?;
        Ok(true)
    }

    /// Waits a while until the other side has got the message of [`Wire::end`]. Only a client needs this. A service's
    /// port stays open and delivers the message later; it waits for no client, which may be dead.
    pub(crate) fn shutdown(&mut self, error: &MoverError) {
        if !self.waits_for_delivery(error) {
            return;
        }
        let until = Instant::now() + SHUTDOWN_TIME;
        while self.unsent > 0 {
            match self.inbox.recv_deadline(until) {
                Ok(Event::Net(news)) if news.key == key::CONTROL_OUT => self.unsent -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Tells an unauthenticated client that it gets no session.
    pub(crate) fn refuse(&self, why: &str) {
        refuse(&self.port, self.peer, self.session, why);
    }

    /// Ends the session, and tells the other side the reason once. A side that was silent for too long is told too:
    /// it may be back, and would otherwise wait as long itself.
    pub(crate) fn end(&mut self, error: &MoverError) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let text = error.to_string();
        match error {
            MoverError::Lost(_) if self.channel.is_ready() => {
                let _ = self.say(&Control::GivenUp(format!("{GIVEN_UP}{text}")));
            }
            MoverError::Lost(_) => return self.refuse(&text),
            _ if self.waits_for_delivery(error) => {
                let _ = self.say(&Control::Fault(text));
            }
            _ => return,
        }
        let _ = self.flush();
    }

    /// Whether to wait until the other side knows about this end. A lost side may never know.
    fn waits_for_delivery(&self, error: &MoverError) -> bool {
        !matches!(error, MoverError::Lost(_) | MoverError::Unreached(_)) && self.channel.is_ready()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for receive in &self.receives {
            self.port.cancel(*receive);
        }
    }
}

#[cfg(test)]
mod tests {
    use isthmus_io::Settings;

    use super::*;

    /// The message of this number, as it comes in one of the receives.
    fn take(wire: &mut Wire, number: u64, heard: &mut Vec<Control>) -> Result<(), MoverError> {
        let mut channel = Channel::plain();
        channel.say(&Control::Walked { files: number, bytes: 0 })?;
        let buffer = [&[BYTES][..], &number.to_le_bytes(), &channel.output()].concat();
        let operation = *wire.receives.iter().next().expect("a receive is posted");
        let (len, key) = (buffer.len(), key::CONTROL_IN);
        wire.take(News { operation, key, buffer: buffer.into(), len, tag: 0, peer: None, error: None }, heard)
            .map(drop)
    }

    /// Messages that wait for a lost earlier one keep their receives. Otherwise more would overtake it
    /// than a session accepts.
    #[test]
    fn control_messages_that_overtake_one_keep_their_receives() {
        let settings = Settings { interface: "lo".to_owned(), ..Settings::default() };
        let port = Arc::new(Port::open(&settings).expect("opened"));
        let peer = port.peer(&port.address()).expect("itself");
        let mut wire = Wire::new(port, peer, None, 1, Channel::plain()).expect("made");
        for round in 0..3 {
            let (first, mut heard) = (round * RECEIVES as u64, Vec::new());
            for ahead in 1..RECEIVES {
                take(&mut wire, first + ahead as u64, &mut heard).expect("it waits");
                assert_eq!((heard.len(), wire.receives.len()), (0, RECEIVES - ahead));
            }
            take(&mut wire, first, &mut heard).expect("taken");
            let all = first..first + RECEIVES as u64;
            assert_eq!(heard, all.map(|files| Control::Walked { files, bytes: 0 }).collect::<Vec<_>>());
            assert_eq!(wire.receives.len(), RECEIVES);
        }
        // No honest side is so far ahead.
        assert!(take(&mut wire, 4 * RECEIVES as u64, &mut Vec::new()).is_err());
    }

    /// Two ends of a session between two ports of this process, without certificates.
    fn pair() -> (Wire, Wire) {
        let settings = Settings { interface: "lo".to_owned(), ..Settings::default() };
        let ports = [(); 2].map(|()| Arc::new(Port::open(&settings).expect("opened")));
        let end = |own: usize, other: usize| {
            let peer = ports[own].peer(&ports[other].address()).expect("named");
            Wire::new(ports[own].clone(), peer, None, 1, Channel::plain()).expect("made")
        };
        (end(0, 1), end(1, 0))
    }

    /// The error with which a session ends that receives nothing else.
    fn ended(wire: &mut Wire) -> MoverError {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let event = wire.inbox.recv_deadline(until).expect("it is told in time");
            let Event::Net(news) = event else { continue };
            if let Err(error) = wire.take(news, &mut Vec::new()) {
                return error;
            }
        }
    }

    #[test]
    fn a_session_that_is_given_up_for_silence_is_told_so_at_once() {
        let (mut service, mut client) = pair();
        service.heard = Instant::now().checked_sub(2 * PATIENCE).expect("the host is up for longer");
        let silent = service.beat(false, Status::default).expect_err("it was silent for too long");
        service.end(&silent);
        let error = ended(&mut client);
        let is_lost = matches!(&error, MoverError::Lost(text) if text.contains("gave this session up: the other side has been silent"));
        assert!(is_lost, "{error:?}");
    }

    /// A terminal obeys control characters in what the other side says.
    #[test]
    fn reasons_of_the_other_side_come_without_control_characters() {
        let (mut service, mut client) = pair();
        service.refuse("no \u{1b}[2Jroom");
        let refused = ended(&mut client).to_string();
        service.end(&MoverError::Local("no \u{1b}[2Jroom".to_owned()));
        let failed = ended(&mut client).to_string();
        for text in [refused, failed] {
            assert!(text.contains("[2Jroom") && !text.contains(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn a_session_that_is_refused_is_told_why_and_once() {
        let (mut service, mut client) = pair();
        service.end(&MoverError::Local("no room".to_owned()));
        service.end(&MoverError::Local("twice".to_owned()));
        let error = ended(&mut client);
        assert!(matches!(&error, MoverError::Refused(text) if text == "no room"), "{error:?}");
    }

    /// This side goes on sending although the other does not read.
    #[test]
    fn what_is_said_to_who_does_not_listen_is_bounded() {
        let (mut service, _client) = pair();
        let mut said = 0;
        let error = loop {
            said += CARRIED;
            service.say(&Control::Fault("a".repeat(CARRIED))).expect("short");
            if let Err(error) = service.flush() {
                break error;
            }
            assert!(said < 4 * UNSENT_MAX, "{said} bytes wait");
        };
        assert!(matches!(&error, MoverError::Lost(text) if text.contains("does not take")), "{error:?}");
    }
}
