//! One lane as the shell holds it: its carrier, the batch that is being written, and the bytes that were read and not
//! decoded yet.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use isthmus_proto::{Batch, Engine, LaneId, LaneLoss, Micros, PeerFault, Secret};
use isthmus_wire::frame::Message;
use isthmus_wire::{Frame, FrameError};
use socket2::SockRef;

use crate::carrier::{Carrier, Carriers, Outdone, RECORD_MAX, Silence, Transfer, Untrusted};
use crate::engine::Core;
use crate::lock::{Mutex, MutexGuard};
use crate::log::{info_sparingly, warn_refused, warn_sparingly};
use crate::memory::ProcessMemory;

pub(crate) mod table;

/// Staging buffer of a lane, for bytes that were read and not decoded yet. Bytes.
const STAGING: usize = 64 << 10;
/// Staging buffer of an incoming lane before authentication. Bytes; it bounds the memory that strangers hold.
const UNPROVED_STAGING: usize = 4 << 10;
/// Part of the staging buffer that a read offers behind payload that goes straight to its target. Bytes; data that
/// lands there has to be copied.
const STAGING_BEHIND_PAYLOAD: usize = 4 << 10;
/// Payloads up to this length are collected in the staging buffer. Bytes.
const WHOLE_MAX: usize = 16 << 10;
/// After this many direct reads in vain, a lane counts as idle. Count.
pub(crate) const IDLE_READS: u32 = 256;

/// The life of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its carrier is being set up.
    Settling,
    /// Accepted, and its carrier is ready; the first frame is to come.
    Ungreeted,
    Open,
    /// To be closed when all is written.
    Flushing,
    /// We have closed our side; the peer is to close its own.
    HalfClosed,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) carrier: Carrier,
    /// We dialled it.
    pub(crate) dialled: bool,
    /// We dialled it, or its peer has proved who it is.
    pub(crate) vouched: bool,
    /// Its destination and the number of the attempt ([`Carriers::attempt`]), from dialling until it comes up. Boxed, since
    /// most lanes have come up, and silent ones must cost little (`tests/scale.rs`).
    pub(crate) target: Option<Box<(SocketAddr, u32)>>,
    phase: Phase,
    /// When it began to come up, or to go down.
    pub(crate) since: Instant,
    /// Empty while nothing is read.
    pub(crate) staging: Vec<u8>,
    /// Bytes of `staging` that are decoded.
    pub(crate) read_from: usize,
    /// Bytes of `staging` that are filled.
    pub(crate) read_to: usize,
    /// Set only while something is written.
    pub(crate) outgoing: Option<Box<Outgoing>>,
    pub(crate) waits_to_write: bool,
    pub(crate) streaming: bool,
    /// Direct reads in vain since something came.
    pub(crate) vain_reads: u32,
    /// Number of the shell's pass in which something last came by shared memory.
    pub(crate) heard_in: u32,
    /// The value of `heard_in` when the shell last looked for idle lanes.
    pub(crate) rested_in: u32,
    /// It goes by shared memory, and waits to be woken.
    pub(crate) asleep: bool,
    /// The peer has greeted; everything behind its greeting is sealed with keys from this.
    secret: Option<Box<Secret>>,
}

impl Lane {
    pub(crate) fn new(carrier: Carrier, dialled: bool) -> Self {
        Self {
            carrier,
            dialled,
            vouched: dialled,
            target: None,
            phase: Phase::Settling,
            since: Instant::now(),
            staging: Vec::new(),
            read_from: 0,
            read_to: 0,
            outgoing: None,
            waits_to_write: dialled,
            streaming: false,
            vain_reads: IDLE_READS,
            heard_in: 0,
            rested_in: 0,
            asleep: false,
            secret: None,
        }
    }

    /// Whether it was accepted and is not authenticated yet.
    pub(crate) fn is_ungreeted(&self) -> bool {
        self.phase == Phase::Ungreeted || self.phase == Phase::Settling && !self.dialled
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Changes its phase. Only [`LaneTable`] does this, since it counts the lanes in each phase.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        if matches!(phase, Phase::Flushing | Phase::HalfClosed) {
            self.since = Instant::now();
        }
    }

    pub(crate) fn has_unwritten(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_unwritten())
    }

    /// Makes room at the end of the staging buffer.
    fn compact(&mut self) {
        if self.read_from == self.read_to {
            (self.read_from, self.read_to) = (0, 0);
        } else if self.read_from > 0 {
            self.staging.copy_within(self.read_from..self.read_to, 0);
            self.read_to -= self.read_from;
            self.read_from = 0;
        }
    }
}

/// A batch that is being written.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    batch: Batch,
    pieces: Vec<libc::iovec>,
    /// For each of them, whether it is the program's memory.
    lent: Vec<bool>,
    /// Pieces written whole.
    written: usize,
}

// SAFETY: `pieces` point into `batch` and into memory lent for any thread to use.
unsafe impl Send for Outgoing {}

impl Outgoing {
    pub(crate) fn is_unwritten(&self) -> bool {
        self.written < self.pieces.len()
    }

    /// If set, everything after this batch is sealed with keys from it.
    pub(crate) fn secret(&self) -> Option<Secret> {
        self.batch.secret
    }

    /// The pieces that are still to be written, and which of them are the program's memory.
    pub(crate) fn rest(&mut self) -> (&mut [libc::iovec], &[bool]) {
        (&mut self.pieces[self.written..], &self.lent[self.written..])
    }

    /// Counts `n` more bytes as written.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while let Some(piece) = self.pieces.get_mut(self.written) {
            if n < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(n);
                piece.iov_len -= n;
                return;
            }
            n -= piece.iov_len;
            self.written += 1;
        }
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.pieces.clear();
        self.lent.clear();
        self.written = 0;
    }
}

/// Spare buffers. A lane has buffers only while it reads or writes; a silent one holds none.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    staging: Vec<Vec<u8>>,
    #[allow(clippy::vec_box, reason = "they go to lanes and come back as they are")]
    outgoing: Vec<Box<Outgoing>>,
    /// The targets of a read; empty between reads.
    pieces: Vec<libc::iovec>,
    /// Room for a short message by shared memory; empty before the first.
    short: Box<[u8]>,
}

impl Spares {
    /// Most spare buffers of each kind. Count; lanes that wait in mid-message hold their own.
    const MAX: usize = 4;

    /// Gives the lane a staging buffer if it has none: of [`UNPROVED_STAGING`] before authentication, else of
    /// [`STAGING`].
    pub(crate) fn lend_staging(&mut self, lane: &mut Lane) {
        if lane.is_ungreeted() {
            if lane.staging.is_empty() {
                lane.staging = vec![0; UNPROVED_STAGING];
            }
        } else if lane.staging.len() < STAGING {
            let mut staging = self.staging.pop().unwrap_or_else(|| vec![0; STAGING]);
            staging[..lane.read_to].copy_from_slice(&lane.staging[..lane.read_to]);
            lane.staging = staging;
        }
    }

    /// Room for any short message by shared memory.
    pub(crate) fn short(&mut self) -> &mut [u8] {
        if self.short.is_empty() {
            self.short = vec![0; RECORD_MAX].into_boxed_slice();
        }
        &mut self.short
    }

    /// Takes the staging buffer back if everything in it is decoded.
    pub(crate) fn take_staging(&mut self, lane: &mut Lane) {
        if lane.read_from == lane.read_to {
            (lane.read_from, lane.read_to) = (0, 0);
            let staging = std::mem::take(&mut lane.staging);
            if staging.len() == STAGING && self.staging.len() < Self::MAX {
                self.staging.push(staging);
            }
        }
    }

    /// Gives the lane a spare record for a batch, if it has none.
    pub(crate) fn lend_outgoing(&mut self, lane: &mut Lane) {
        if lane.outgoing.is_none() {
            lane.outgoing = self.outgoing.pop();
        }
    }

    /// Takes the record back once the batch is written.
    pub(crate) fn take_outgoing(&mut self, lane: &mut Lane) {
        if let Some(mut outgoing) = lane.outgoing.take()
            && self.outgoing.len() < Self::MAX
        {
            outgoing.clear();
            self.outgoing.push(outgoing);
        }
    }
}

/// Takes the lane's next batch from the engine.
pub(crate) fn fill(lane: &mut Lane, id: LaneId, core: &mut MutexGuard<'_, Core>) {
    let Core { engine, memory, .. } = &mut **core;
    let Outgoing { batch, pieces, lent, .. } = &mut **lane.outgoing.get_or_insert_default();
    if !engine.transmit(id, batch, memory) {
        return;
    }
    for segment in &batch.segments {
        match *segment {
            isthmus_proto::Segment::Bytes { start, end } => {
                let bytes = &batch.bytes[start..end];
                pieces.push(libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() });
            }
            isthmus_proto::Segment::Lent { place, offset, len } => memory.iovecs(place, offset, len, pieces),
        }
        lent.resize(pieces.len(), matches!(segment, isthmus_proto::Segment::Lent { .. }));
    }
}

/// Makes one read on a lane that has a staging buffer. Payload goes straight to its target if the engine says so; the
/// rest goes to the staging buffer, which is then decoded as far as possible. Returns how many bytes came and how many
/// there was room for.
pub(crate) fn read_some(
    lane: &mut Lane,
    index: usize,
    spares: &mut Spares,
    carriers: &mut Carriers,
    core: &Mutex<Core>,
) -> Result<Option<(usize, usize)>, LaneLoss> {
    let (id, pieces) = (LaneId(index as u32), &mut spares.pieces);
    lane.compact();
    // A panic after the engine lent a target may have left some.
    pieces.clear();
    // Checked before the engine lends a target: whoever asks for one owes it `filled`.
    let room = lane.staging.len() - lane.read_to;
    if room == 0 {
        return Err(fault(lane, PeerFault::Frame("more than is ever sent before a lane's greeting")));
    }
    let mut direct = 0;
    let mut handed_out = false;
    if lane.streaming {
        let mut guard = core.lock();
        if let Some(sink) = guard.engine.sink(id) {
            guard.memory.iovecs(sink.place, sink.offset, sink.len, pieces);
            direct = sink.len as usize;
            handed_out = true;
        }
    }
    let room = if direct > 0 { room.min(STAGING_BEHIND_PAYLOAD) } else { room };
    let tail = lane.staging[lane.read_to..].as_mut_ptr();
    pieces.push(libc::iovec { iov_base: tail.cast(), iov_len: room });
    // SAFETY: the pieces are memory lent for this payload, which the engine counts as
    // busy until `filled`, and the lane's own staging buffer.
    let came = unsafe { lane.carrier.read(pieces, carriers) };
    pieces.clear();
    if matches!(came, Transfer::Blocked) && !handed_out {
        return Ok(None);
    }
    let n = match &came {
        Transfer::Bytes(n) => *n,
        _ => 0,
    };
    let mut guard = core.lock();
    let now = guard.now();
    let Core { engine, memory, .. } = &mut *guard;
    if handed_out {
        engine.filled(id, n.min(direct) as u64, memory).map_err(|error| fault(lane, error))?;
    }
    lane.read_to += n.saturating_sub(direct);
    match came {
        Transfer::Bytes(0) => Err(LaneLoss::Closed),
        Transfer::Bytes(n) => {
            understand(lane, id, now, engine, memory).map_err(|error| fault(lane, error))?;
            while let Some(secret) = lane.secret.take() {
                if !lane.carrier.share(&secret, lane.dialled, index, carriers) {
                    let what = "it would seal what nobody else can read";
                    return Err(fault(lane, PeerFault::Frame(what)));
                }
                let rest = lane.read_from..lane.read_to;
                if lane.carrier.open_inward(&lane.staging[rest], carriers) {
                    lane.read_from = lane.read_to;
                } else {
                    understand(lane, id, now, engine, memory).map_err(|error| fault(lane, error))?;
                }
            }
            Ok(Some((n, direct + room)))
        }
        Transfer::Blocked => Ok(None),
        Transfer::Failed(error) => Err(loss_of(&error)),
    }
}

/// Reads what has come by shared memory, except long payload, and passes it to the engine. At most `most` short
/// messages are read. False if something is left for [`read_some`].
pub(crate) fn read_short(
    lane: &mut Lane,
    id: LaneId,
    core: &mut MutexGuard<'_, Core>,
    most: usize,
    spares: &mut Spares,
) -> Result<bool, LaneLoss> {
    if lane.phase != Phase::Open || lane.streaming || lane.read_from != lane.read_to {
        return Ok(false);
    }
    let Core { engine, memory: program, .. } = &mut **core;
    let now = engine.clock();
    let Some(memory) = lane.carrier.memory() else { return Ok(false) };
    let mut left = most;
    let next = |room: &mut [u8]| {
        left = left.checked_sub(1)?;
        memory.take_short(room)
    };
    match engine.handle_messages(now, id, spares.short(), next, program) {
        Ok(true) => {
            memory.tell();
            return Ok(true);
        }
        Ok(false) => {}
        Err(error) => return Err(fault(lane, error)),
    }
    spares.lend_staging(lane);
    let understood = read_bytes(lane, id, now, engine, program);
    spares.take_staging(lane);
    understood
}

/// The part of [`read_short`] for anything but short messages: reads into the lane's staging buffer.
fn read_bytes(
    lane: &mut Lane,
    id: LaneId,
    now: Micros,
    engine: &mut Engine,
    program: &mut ProcessMemory,
) -> Result<bool, LaneLoss> {
    let Some(memory) = lane.carrier.memory() else { return Ok(false) };
    let n = memory.read_short(&mut lane.staging).map_err(|error| loss_of(&error))?;
    memory.tell();
    if n == 0 {
        return Ok(false);
    }
    (lane.read_from, lane.read_to) = (0, n);
    understand(lane, id, now, engine, program).map_err(|error| fault(lane, error))?;
    Ok(lane.read_from == lane.read_to && !lane.streaming)
}

/// Why a lane ended or could not be made. Warns if this host is the cause.
pub(crate) fn loss_of(error: &io::Error) -> LaneLoss {
    warn_refused!(error, "a lane cannot be made or used, and is tried again with pauses");
    kind_of_loss(error)
}

/// Like [`loss_of`], without a warning.
pub(crate) fn kind_of_loss(error: &io::Error) -> LaneLoss {
    if let Some(Silence(silence)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return LaneLoss::Silent { text: error.to_string(), us: silence.as_micros() as u64 };
    }
    match error.kind() {
        _ if error.get_ref().is_some_and(|inner| inner.is::<Untrusted>()) => {
            LaneLoss::Untrusted(error.to_string())
        }
        _ if error.get_ref().is_some_and(|inner| inner.is::<isthmus_fabric::Foreign>()) => LaneLoss::Foreign,
        _ if error.get_ref().is_some_and(|inner| inner.is::<Outdone>()) => LaneLoss::Left(error.to_string()),
        io::ErrorKind::ConnectionRefused => LaneLoss::Refused,
        _ => LaneLoss::Broken(error.to_string()),
    }
}

fn fault(lane: &Lane, fault: PeerFault) -> LaneLoss {
    let from = lane.carrier.fd().and_then(|fd| SockRef::from(&fd).peer_addr().ok()?.as_socket());
    let from = from.map_or_else(String::new, |from| format!(" (of {from})"));
    if matches!(fault, PeerFault::Unproved(_)) {
        warn_sparingly!("a lane is closed{from}: {fault}");
    } else {
        info_sparingly!("a lane is closed{from}: {fault}");
    }
    match fault {
        PeerFault::Bytes(FrameError::Tag(_)) => LaneLoss::Foreign,
        fault => LaneLoss::Broken(fault.to_string()),
    }
}

/// Passes the complete frames in the staging buffer to the engine. Shows the peer a region that they name, so that it
/// can access the region directly from then on.
fn understand(
    lane: &mut Lane,
    id: LaneId,
    now: Micros,
    engine: &mut Engine,
    memory: &mut ProcessMemory,
) -> Result<(), PeerFault> {
    // Forget a region that this endpoint named itself.
    memory.take_named();
    let understood = understand_frames(lane, id, now, engine, memory);
    if let (Some(key), Some(link)) = (memory.take_named(), lane.carrier.memory())
        && link.can_show_region(key)
    {
        memory.regions().show(key, |region| link.show_region(key, region));
    }
    understood
}

fn understand_frames(
    lane: &mut Lane,
    id: LaneId,
    now: Micros,
    engine: &mut Engine,
    memory: &mut ProcessMemory,
) -> Result<(), PeerFault> {
    loop {
        if lane.streaming {
            lane.read_from += engine.feed(id, &lane.staging[lane.read_from..lane.read_to], memory)?;
            lane.streaming = engine.streaming(id).is_some();
            if lane.streaming {
                return Ok(());
            }
        }
        let bytes = &lane.staging[lane.read_from..lane.read_to];
        if let Some(message) = Message::decode(bytes)?
            && let Some(payload) = bytes[Message::LEN..].get(..message.payload as usize)
        {
            engine.handle_message(now, id, &message, payload, memory)?;
            lane.read_from += Message::LEN + payload.len();
            continue;
        }
        let frame = match Frame::decode(bytes) {
            Err(FrameError::Version(_)) => {
                engine.refuse_version(id);
                return Ok(());
            }
            decoded => decoded?,
        };
        let Some(frame) = frame else { return Ok(()) };
        let (header, payload) = (frame.header_len(), frame.payload_len() as usize);
        if let Some(payload) = bytes.get(header..header + payload) {
            let greets = matches!(frame, Frame::Hello(_) | Frame::Welcome(_));
            // If we dialled the lane, the engine forgets the secret when it handles the answer.
            let secret = if greets { engine.lane_secret(id) } else { None };
            engine.handle(now, id, &frame, payload, memory)?;
            lane.read_from += header + payload.len();
            if let (true, Some(secret)) = (greets, secret.or_else(|| engine.lane_secret(id))) {
                lane.secret = Some(Box::new(secret));
                return Ok(());
            }
        } else if payload > WHOLE_MAX {
            engine.begin(now, id, &frame, memory)?;
            lane.read_from += header;
            lane.streaming = engine.streaming(id).is_some();
            if !lane.streaming {
                return Ok(()); // The engine has closed this lane.
            }
        } else {
            return Ok(());
        }
    }
}
