//! Handshake by which two neighbours move a lane to a fabric, before the lane's first byte.
//!
//! The side that connected sends Offer. The other side chooses an endpoint, or none, and sends
//! Answer. Then the first side sends a probe over the fabric, which the other answers there. The
//! first side now knows that both directions work, and sends Settle. If a lane's first frame is
//! not Offer, it stays as it is.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use isthmus_wire::frame::{Answer, Frame, MAGIC, Offer, Settle};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::fabrics::{Fabrics, Taken};
use crate::offer::{self, LIST_MAX, OfferedEndpoint};

/// Version of Offer's list. It changes with the list only: lanes agree on their version later, by Hello.
const OFFER_VERSION: u16 = 3;
/// Time that a probe may take.
const TRIAL: Duration = Duration::from_secs(2);
/// Answer's choice if no endpoint is chosen.
const NONE: u8 = u8::MAX;
/// First byte of Offer.
const OFFER_TAG: u8 = 4;

/// Result of a meeting so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met<P> {
    /// Undecided. Ask again when the connection is readable, when the lane has news, and from
    /// time to time.
    NotYet,
    /// The lane stays on TCP.
    Stays,
    /// The lane's bytes go over the fabric from now on.
    Moves(P),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Our side connected. It sends Offer, awaits Answer, then the probe's answer.
    Offering,
    Offered,
    Trying {
        until: Instant,
    },
    /// The other side connected. We await its first frame, then its Settle.
    Waiting,
    Answered,
    Over,
}

/// The handshake of one lane.
#[derive(Debug)]
pub struct Meeting<P> {
    stage: Stage,
    /// The neighbour has an address of this host.
    near: bool,
    key: u64,
    heard: Vec<u8>,
    offered: Vec<OfferedEndpoint>,
    pipe: Option<P>,
}

impl<P: Copy + std::fmt::Debug + PartialEq> Meeting<P> {
    /// For a lane that we dialled. `near`: to an address of this host.
    pub fn of_dialled(near: bool) -> Self {
        let (heard, offered) = (Vec::new(), Vec::new());
        Self { stage: Stage::Offering, near, key: u64::MAX, heard, offered, pipe: None }
    }

    /// For a lane that we accepted.
    pub fn of_accepted() -> Self {
        Self { stage: Stage::Waiting, ..Self::of_dialled(false) }
    }

    /// Continues as far as possible without waiting. The lane's news will carry `key`.
    ///
    /// # Errors
    /// The connection's error, or the neighbour broke the protocol. Then the lane is over.
    pub fn go_on(
        &mut self,
        on: BorrowedFd<'_>,
        key: u64,
        fabrics: &mut impl Fabrics<Pipe = P>,
    ) -> io::Result<Met<P>> {
        self.key = key;
        loop {
            let before = self.stage;
            let met = match self.stage {
                Stage::Offering => self.offer(on, fabrics)?,
                Stage::Offered => self.receive_answer(on, fabrics)?,
                Stage::Trying { until } => self.try_endpoint(on, until, fabrics)?,
                Stage::Waiting => self.receive_offer(on, fabrics)?,
                Stage::Answered => self.receive_end(on, fabrics)?,
                Stage::Over => Met::Stays,
            };
            if met != Met::NotYet {
                self.stage = Stage::Over;
                fabrics.withdraw(&std::mem::take(&mut self.offered));
                return Ok(met);
            }
            if self.stage == before {
                return Ok(Met::NotYet);
            }
        }
    }

    /// Removes what was prepared, because the lane ended before it was settled.
    pub fn call_off(&mut self, fabrics: &mut impl Fabrics<Pipe = P>) {
        if let Some(pipe) = self.pipe.take() {
            fabrics.remove(pipe);
        }
        fabrics.withdraw(&std::mem::take(&mut self.offered));
    }

    fn offer(&mut self, on: BorrowedFd<'_>, fabrics: &mut impl Fabrics<Pipe = P>) -> io::Result<Met<P>> {
        let endpoints = fabrics.endpoints(self.near);
        if endpoints.is_empty() {
            return Ok(Met::Stays);
        }
        let list = offer::encode(&endpoints);
        let payload = list.len() as u32;
        let offer = Offer { magic: MAGIC, version: OFFER_VERSION, host: fabrics.host(), payload };
        self.offered = endpoints;
        say(on, offer, &list)?;
        self.stage = Stage::Offered;
        Ok(Met::NotYet)
    }

    fn receive_answer(
        &mut self,
        on: BorrowedFd<'_>,
        fabrics: &mut impl Fabrics<Pipe = P>,
    ) -> io::Result<Met<P>> {
        let Some(frame) = self.receive(on, Answer::LEN)? else { return Ok(Met::NotYet) };
        let Frame::Answer(answer) = frame else { return Err(out_of_place()) };
        if answer.magic != MAGIC {
            return Err(io::Error::other(Foreign));
        }
        if answer.choice == NONE {
            fabrics.remark(format_args!("a lane stays TCP: the neighbour takes none of the fabrics offered"));
            return Ok(Met::Stays);
        }
        let name = self.heard.split_off(frame.header_len());
        let endpoint = self.offered.get(usize::from(answer.choice)).ok_or_else(out_of_place)?;
        match fabrics.join(endpoint, &name) {
            Ok(pipe) => {
                self.pipe = Some(pipe);
                fabrics.set_key(pipe, self.key);
                fabrics.probe(pipe, answer.lane);
                self.stage = Stage::Trying { until: Instant::now() + TRIAL };
                Ok(Met::NotYet)
            }
            Err(error) => {
                fabrics.remark(format_args!("a lane stays TCP: {error}"));
                self.end(on, false)
            }
        }
    }

    fn try_endpoint(
        &mut self,
        on: BorrowedFd<'_>,
        until: Instant,
        fabrics: &mut impl Fabrics<Pipe = P>,
    ) -> io::Result<Met<P>> {
        let Some(pipe) = self.pipe else { return Ok(Met::Stays) };
        if fabrics.is_proved(pipe) {
            fabrics.begin(pipe, on.try_clone_to_owned()?);
            let provider = fabrics.provider(pipe).to_owned();
            fabrics.remark(format_args!("lanes go over {provider}"));
            return self.end(on, true);
        }
        if Instant::now() < until {
            return Ok(Met::NotYet);
        }
        let provider = fabrics.provider(pipe).to_owned();
        fabrics
            .remark(format_args!("a lane stays TCP: nothing comes back from the neighbour over {provider}"));
        self.call_off(fabrics);
        self.end(on, false)
    }

    /// Sends Settle with the outcome.
    fn end(&mut self, on: BorrowedFd<'_>, moved: bool) -> io::Result<Met<P>> {
        say(on, Settle { moved: u8::from(moved) }, &[])?;
        Ok(self.pipe.take().map_or(Met::Stays, Met::Moves))
    }

    fn receive_offer(
        &mut self,
        on: BorrowedFd<'_>,
        fabrics: &mut impl Fabrics<Pipe = P>,
    ) -> io::Result<Met<P>> {
        if self.heard.is_empty() {
            match peek(on)? {
                None => return Ok(Met::NotYet),
                Some(OFFER_TAG) => {}
                // The lane starts without Offer, or has ended: its reader will find out.
                Some(_) => return Ok(Met::Stays),
            }
        }
        let Some(frame) = self.receive(on, Offer::LEN)? else { return Ok(Met::NotYet) };
        let Frame::Offer(offer) = frame else { return Err(out_of_place()) };
        let endpoints = offer::decode(&self.heard.split_off(frame.header_len()));
        let endpoints = endpoints.filter(|_| offer.magic == MAGIC).ok_or_else(out_of_place)?;
        // This build cannot read other versions of the list. The lane stays TCP, and Hello agrees on a version.
        let endpoints = if offer.version == OFFER_VERSION { endpoints } else { Vec::new() };
        let near = offer.host == fabrics.host();
        let answer = |choice, lane, payload| Answer { magic: MAGIC, choice, lane, payload };
        match fabrics.take(&endpoints, near) {
            Some(Taken { choice, pipe, lane, name }) => {
                self.pipe = Some(pipe);
                fabrics.set_key(pipe, self.key);
                say(on, answer(choice as u8, lane, name.len() as u32), &name)?;
                self.heard.clear();
                self.stage = Stage::Answered;
                Ok(Met::NotYet)
            }
            None => {
                say(on, answer(NONE, 0, 0), &[])?;
                Ok(Met::Stays)
            }
        }
    }

    fn receive_end(
        &mut self,
        on: BorrowedFd<'_>,
        fabrics: &mut impl Fabrics<Pipe = P>,
    ) -> io::Result<Met<P>> {
        let Some(frame) = self.receive(on, Settle::LEN)? else { return Ok(Met::NotYet) };
        let Frame::Settle(Settle { moved }) = frame else { return Err(out_of_place()) };
        match self.pipe.take() {
            Some(pipe) if moved == 1 => {
                let connection: OwnedFd = on.try_clone_to_owned()?;
                fabrics.begin(pipe, connection);
                Ok(Met::Moves(pipe))
            }
            Some(pipe) => {
                fabrics.remove(pipe);
                Ok(Met::Stays)
            }
            None => Ok(Met::Stays),
        }
    }

    /// Reads exactly one frame with its payload. The frame has `header` bytes. `None` if it is
    /// incomplete so far.
    fn receive(&mut self, on: BorrowedFd<'_>, header: usize) -> io::Result<Option<Frame>> {
        loop {
            let frame = Frame::decode(&self.heard).map_err(|_| match self.stage {
                // Its first bytes.
                Stage::Offered => io::Error::other(Foreign),
                _ => out_of_place(),
            })?;
            let whole = match &frame {
                None => header,
                Some(frame) if frame.payload_len() as usize > LIST_MAX => return Err(out_of_place()),
                Some(frame) => frame.header_len() + frame.payload_len() as usize,
            };
            if self.heard.len() >= whole {
                return match frame {
                    Some(frame) => Ok(Some(frame)),
                    None => Err(out_of_place()), // another kind of frame
                };
            }
            let have = self.heard.len();
            self.heard.resize(whole, 0);
            let came = rustix::net::recv(on, &mut self.heard[have..], RecvFlags::DONTWAIT);
            let n = came.as_ref().map_or(0, |(n, _)| *n);
            self.heard.truncate(have + n);
            match came {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The first received byte, without consuming it; 0 if the connection has ended.
fn peek(on: BorrowedFd<'_>) -> io::Result<Option<u8>> {
    let mut first = [0];
    match rustix::net::recv(on, &mut first[..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok((0, _)) => Ok(Some(0)),
        Ok(_) => Ok(Some(first[0])),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends a frame and its payload. The connection is new, so its buffer has room.
fn say(on: BorrowedFd<'_>, frame: impl Into<Frame>, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.into().encode(&mut bytes);
    bytes.extend_from_slice(payload);
    let sent = rustix::net::send(on, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// What answered a dialled lane is not Isthmus, such as a server of HTTP or SSH.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("what answers there does not speak Isthmus")]
pub struct Foreign;

fn out_of_place() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame out of place before the lane's first")
}
