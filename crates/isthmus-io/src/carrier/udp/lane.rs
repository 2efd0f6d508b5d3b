//! Lanes that are streams of a [`Udp`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use isthmus_seal::Secret;
use isthmus_udp::{Failure, Micros, Stream, StreamId};
use isthmus_wire::AsId;

use super::super::{Settled, Silence, Transfer};
use super::Udp;
use super::loans::Loans;
use crate::figures::LaneCounts;

/// Pieces from this length on are lent; shorter ones are copied, which is cheaper. Bytes.
const LEND_MIN: usize = 4 << 10;

/// A lane that is a stream of the endpoint's UDP socket.
#[derive(Debug)]
pub(crate) struct UdpLane {
    stream: StreamId,
    peer: SocketAddr,
    dialled: bool,
    /// If set, the lane ends if the round trip turns out shorter than this.
    provisional: Option<Duration>,
    loans: Loans,
    /// Its packets are sealed with keys of both ends.
    keyed: bool,
    /// The shortest round trip that was reported. Microseconds.
    told_rtt_us: u64,
}

impl UdpLane {
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(in super::super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(in super::super) fn peer_ip(&self) -> IpAddr {
        self.peer.ip()
    }

    pub(super) fn new(stream: StreamId, peer: SocketAddr, dialled: bool) -> Self {
        Self {
            stream,
            peer,
            dialled,
            provisional: None,
            loans: Loans::default(),
            keyed: false,
            told_rtt_us: u64::MAX,
        }
    }

    pub(super) fn provisionally(self, long: Duration) -> Self {
        Self { provisional: Some(long), ..self }
    }

    /// Makes the stream a lane. It carries data at once: the first bytes go with the packet that opens the stream.
    pub(in super::super) fn settle(&mut self, index: usize, udp: &mut Udp) -> io::Result<Settled> {
        udp.attach_lane(self.stream, self.peer, self.dialled, self.provisional, index);
        Ok(Settled::Yes)
    }

    /// Whether the peer has answered.
    pub(in super::super) fn is_answered(&self, udp: &Udp) -> bool {
        udp.port.stream(self.stream).is_some_and(Stream::is_open)
    }

    /// Like [`super::super::TcpLane::read`].
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(in super::super) unsafe fn read(&mut self, pieces: &mut [libc::iovec], udp: &mut Udp) -> Transfer {
        let now = udp.now();
        let patience = udp.patience;
        let came = udp.port.with(now, self.stream, |stream| {
            let mut total = 0;
            for piece in pieces {
                // SAFETY: the caller's promise.
                let room = unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) };
                let taken = take(stream, now, room);
                total += taken;
                if taken < room.len() {
                    break;
                }
            }
            match total {
                0 if stream.is_finished() => Transfer::Bytes(0),
                0 => stream
                    .failure()
                    .map_or(Transfer::Blocked, |why| Transfer::Failed(error_of(why, patience))),
                _ => Transfer::Bytes(total),
            }
        });
        if matches!(came, Some(Transfer::Bytes(1..))) {
            udp.note_busy(now);
        }
        self.or_gone(came, udp)
    }

    /// Like [`super::super::TcpLane::write`], for pieces of which some are `lent`.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call. Lent ones stay so as [`super::super::Carrier::write`] says.
    pub(in super::super) unsafe fn write(
        &mut self,
        pieces: &[libc::iovec],
        lent: &[bool],
        udp: &mut Udp,
    ) -> Transfer {
        let (now, loans, patience) = (udp.now(), &mut self.loans, udp.patience);
        let went = udp.port.with(now, self.stream, |stream| {
            if let Some(why) = stream.failure() {
                return Transfer::Failed(error_of(why, patience));
            }
            let mut total = 0;
            for (piece, lent) in pieces.iter().zip(lent) {
                let bytes =
                    std::ptr::slice_from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), piece.iov_len);
                let taken = if *lent && piece.iov_len >= LEND_MIN {
                    // SAFETY: the caller's promise, that of `Loans::lend` for what is lent.
                    stream.lend(unsafe { loans.lend(bytes) })
                } else {
                    // SAFETY: the caller's promise.
                    stream.write(unsafe { &*bytes })
                };
                total += taken;
                if taken < piece.iov_len {
                    break;
                }
            }
            if total == 0 { Transfer::Blocked } else { Transfer::Bytes(total) }
        });
        if matches!(went, Some(Transfer::Bytes(_))) {
            udp.note_busy(now);
        }
        self.or_gone(went, udp)
    }

    /// Closes a batch that was written whole. True if its stream still uses lent memory of it.
    pub(in super::super) fn close_batch(&mut self, udp: &Udp) -> bool {
        let upto = udp.port.stream(self.stream).map_or(0, Stream::written);
        self.loans.close(upto)
    }

    /// Number of borrowed batches that went out of use since the last call, and whether others are in use.
    pub(in super::super) fn take_returned(&mut self) -> (usize, bool) {
        (self.loans.take_returned(), self.loans.any())
    }

    /// Copies the undelivered parts of the first `batches` batches that it ever borrowed, and returns these.
    pub(in super::super) fn recall(&mut self, batches: u64, udp: &mut Udp) {
        if let Some(upto) = self.loans.end_of(batches) {
            let now = udp.now();
            udp.port.with(now, self.stream, |stream| stream.own(upto));
        }
    }

    pub(in super::super) fn finish(&mut self, udp: &mut Udp) {
        let now = udp.now();
        udp.port.with(now, self.stream, Stream::finish);
    }

    pub(in super::super) fn release(&mut self, udp: &mut Udp) {
        udp.leave(self.stream);
    }

    /// Seals its packets with keys from a secret that both ends have, or will have once our next bytes have arrived.
    pub(in super::super) fn rekey(&mut self, secret: &Secret, udp: &mut Udp) {
        if !std::mem::replace(&mut self.keyed, true) {
            udp.port
                .with(udp.epoch.elapsed().as_micros() as Micros, self.stream, |stream| stream.rekey(secret));
        }
    }

    /// Whether its packets are sealed.
    pub(in super::super) fn is_sealed(&self, udp: &Udp) -> bool {
        udp.port.stream(self.stream).is_some_and(Stream::is_sealed)
    }

    /// The AS at the other end, if it has shown its certificate.
    pub(in super::super) fn peer_as(&self, udp: &Udp) -> Option<AsId> {
        udp.peer_as(self.stream)
    }

    /// The stream's counts. A packet that was only late does not count as lost.
    pub(in super::super) fn counts(&self, udp: &Udp) -> LaneCounts {
        let Some(stream) = udp.port.stream(self.stream) else { return LaneCounts::default() };
        let status = stream.status();
        let counters = status.counters;
        LaneCounts {
            sent_bytes: Some(counters.bytes_fresh.saturating_sub(status.held.saturating_sub(status.unsent))),
            packets: Some(counters.packets_sent),
            lost: Some(counters.packets_lost.saturating_sub(counters.packets_late)),
            rtt_us: status.rtt_us,
            ..LaneCounts::default()
        }
    }

    /// The round trip; before the first answer, that of an earlier lane. Microseconds.
    pub(in super::super) fn rtt_us(&self, udp: &Udp) -> Option<u64> {
        udp.port.stream(self.stream).and_then(|stream| stream.status().rtt_us)
    }

    /// The shortest round trip that was measured on this lane itself. Microseconds.
    pub(in super::super) fn measured_rtt_us(&self, udp: &Udp) -> Option<u64> {
        udp.port.stream(self.stream).and_then(Stream::rtt_least_us)
    }

    /// The same, if it is shorter than at the last call that returned one.
    pub(in super::super) fn take_nearer_us(&mut self, udp: &Udp) -> Option<u64> {
        let rtt_us = self.measured_rtt_us(udp).filter(|rtt| *rtt < self.told_rtt_us)?;
        self.told_rtt_us = rtt_us;
        Some(rtt_us)
    }

    fn or_gone(&self, transfer: Option<Transfer>, udp: &Udp) -> Transfer {
        // The verdict is clearer than the stream's own error.
        match (udp.verdict(self.stream), transfer) {
            (Some(error), Some(Transfer::Blocked | Transfer::Failed(_)) | None) => Transfer::Failed(error),
            (None, None) => Transfer::Failed(error_of(Failure::Silent, udp.patience)),
            (_, Some(transfer)) => transfer,
        }
    }
}

/// Reads into `room`, as much as is there.
fn take(stream: &mut Stream, now: isthmus_udp::Micros, room: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < room.len() {
        let bytes = stream.peek(room.len() - filled);
        let len = bytes.len();
        if len == 0 {
            break;
        }
        room[filled..filled + len].copy_from_slice(bytes);
        stream.consume(now, len as u64);
        filled += len;
    }
    filled
}

/// The error of a stream that has failed, which is given up after `patience` of silence.
fn error_of(why: Failure, patience: Duration) -> io::Error {
    match why {
        Failure::Silent => io::Error::other(Silence(patience)),
        _ => io::Error::other(format!("of packets: {why}")),
    }
}
