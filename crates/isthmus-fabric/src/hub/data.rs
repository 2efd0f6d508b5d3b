//! Converts a lane's bytes to packets and back, as far as there is credit.

use isthmus_wire::frame::{Frame, Packet, PacketKind, Ring};

use super::{Hub, News, PACKET_MAX, PAYLOAD_MAX, Piped, SENDS};
use crate::net::{BufferId, Posted};
use crate::pipe::{CREDITS, Pipe};

impl Hub {
    /// Copies received bytes to `pieces`.
    ///
    /// # Safety
    /// Every piece is valid for writing and nobody else touches it during the call.
    pub(crate) unsafe fn read(&mut self, token: u64, pieces: &[libc::iovec]) -> Piped {
        let mut total = 0;
        for piece in pieces {
            let mut filled = 0;
            while filled < piece.iov_len {
                let Some(parcel) = self.pipe(token).and_then(Pipe::front) else {
                    return self.end_of_read(token, total);
                };
                let n = (parcel.to - parcel.from).min(piece.iov_len - filled);
                let (buffer, from) = (parcel.buffer, parcel.from);
                parcel.from += n;
                let over = parcel.from == parcel.to;
                let bytes = &self.net.bytes(buffer)[from..from + n];
                let to = piece.iov_base.cast::<u8>().wrapping_add(filled);
                // SAFETY: the caller vouches for the piece, of which `filled + n` bytes exist.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
                filled += n;
                total += n;
                if over {
                    self.parcel_is_read(token, buffer);
                }
            }
        }
        Piped::Bytes(total)
    }

    fn end_of_read(&mut self, token: u64, total: usize) -> Piped {
        let Some(pipe) = self.pipe(token) else { return Piped::Failed("the lane is gone".to_owned()) };
        if total > 0 {
            return Piped::Bytes(total);
        }
        match &pipe.failed {
            Some(why) => Piped::Failed(why.clone()),
            None if pipe.end == Some(pipe.read) || pipe.parted && pipe.finished => Piped::Bytes(0),
            None if pipe.parted => Piped::Failed("the neighbour is gone".to_owned()),
            None => Piped::Blocked,
        }
    }

    fn parcel_is_read(&mut self, token: u64, buffer: BufferId) {
        let Some(pipe) = self.pipe(token) else { return };
        pipe.inbox.pop_front();
        pipe.read += 1;
        self.give_back(buffer);
        let Some(pipe) = self.pipe(token) else { return };
        if pipe.limit_to_tell() - pipe.told >= CREDITS / 2 && !pipe.owed.contains(&PacketKind::Limit) {
            pipe.owed.push(PacketKind::Limit);
            self.todo.push(token as u32 as usize);
        }
    }

    /// Takes back a receive buffer whose packet was read.
    pub(super) fn give_back(&mut self, id: BufferId) {
        self.spare.push(id);
        // If the provider has no room now, the next turn tries again.
        let _ = self.stock();
    }

    /// Sends the bytes of `pieces` as packets, as far as there is credit.
    ///
    /// # Safety
    /// Every piece is valid for reading during the call.
    pub(crate) unsafe fn write(&mut self, token: u64, pieces: &[libc::iovec]) -> Piped {
        let mut left: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let (mut total, mut at, mut offset) = (0, 0, 0);
        while left > 0 {
            let len = left.min(PAYLOAD_MAX);
            let Some(pipe) = self.pipe(token) else { return Piped::Failed("the lane is gone".to_owned()) };
            if let Some(why) = &pipe.failed {
                return Piped::Failed(why.clone());
            }
            if pipe.next >= pipe.limit {
                break;
            }
            let head = Packet {
                kind: PacketKind::Data as u8,
                lane: pipe.theirs,
                seq: pipe.next,
                limit: pipe.limit_to_tell(),
                payload: len as u32,
            };
            let posted = self.send_packet(token, head, |mut to| {
                while !to.is_empty() {
                    let piece = &pieces[at];
                    let n = to.len().min(piece.iov_len - offset);
                    let from = piece.iov_base.cast::<u8>().cast_const().wrapping_add(offset);
                    // SAFETY: the caller vouches for the piece, of which `offset + n` bytes
                    // exist; `to` has room for `n`.
                    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
                    to = &mut to[n..];
                    offset += n;
                    if offset == piece.iov_len {
                        (at, offset) = (at + 1, 0);
                    }
                }
            });
            if !posted {
                break;
            }
            total += len;
            left -= len;
        }
        if left > 0 {
            self.await_room(token);
        }
        match self.pipe(token).and_then(|pipe| pipe.failed.clone()) {
            Some(why) => Piped::Failed(why),
            None if total == 0 && left > 0 => Piped::Blocked,
            None => Piped::Bytes(total),
        }
    }

    fn await_room(&mut self, token: u64) {
        let Some(pipe) = self.pipe(token) else { return };
        if !std::mem::replace(&mut pipe.wants_to_write, true) {
            self.writers.push(token as u32 as usize);
        }
    }

    /// Ends our bytes on a lane, after those that were written.
    pub(crate) fn finish(&mut self, token: u64) {
        let Some(pipe) = self.pipe(token) else { return };
        if !std::mem::replace(&mut pipe.finished, true) {
            pipe.owed.push(PacketKind::End);
            self.todo.push(token as u32 as usize);
            self.pay(token as u32 as usize);
        }
    }

    /// Sends one packet, whose payload `fill` writes. False if that has to wait or failed.
    fn send_packet(&mut self, token: u64, head: Packet, fill: impl FnOnce(&mut [u8])) -> bool {
        let index = token as u32 as usize;
        let Some(Pipe { to: Some(to), sending, .. }) = self.pipes.get(index) else { return false };
        let (to, len) = (*to, Packet::LEN + head.payload as usize);
        self.scratch.clear();
        Frame::from(head).encode(&mut self.scratch);
        let posted = if len <= self.net.inject_max() {
            self.scratch.resize(len, 0);
            fill(&mut self.scratch[Packet::LEN..]);
            self.net.inject(&self.scratch, to)
        } else {
            if *sending >= SENDS {
                return false;
            }
            let Some(id) = self.send_buffer() else { return false };
            let bytes = self.net.bytes_mut(id);
            bytes[..Packet::LEN].copy_from_slice(&self.scratch);
            fill(&mut bytes[Packet::LEN..len]);
            let posted = self.net.send(id, len, to);
            if posted == Posted::Yes {
                self.senders.insert(id, token);
                self.pipes[index].sending += 1;
            } else {
                self.free.push(id);
            }
            posted
        };
        match posted {
            Posted::Yes => self.note_sent(index, &head),
            Posted::Again => {}
            Posted::Failed(code) => self.fail(index, format!("{}: error {code} of libfabric", self.provider)),
        }
        posted == Posted::Yes
    }

    fn send_buffer(&mut self) -> Option<BufferId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        // The provider may never return buffers of dead neighbours.
        if self.sends >= self.lanes_max() * SENDS {
            return None;
        }
        let id = self.net.add_buffer(PACKET_MAX, true).ok()?;
        self.sends += 1;
        Some(id)
    }

    fn note_sent(&mut self, index: usize, head: &Packet) {
        let pipe = &mut self.pipes[index];
        pipe.sent += 1;
        pipe.told = pipe.told.max(head.limit);
        if head.kind == PacketKind::Data as u8 || head.kind == PacketKind::End as u8 {
            pipe.next += 1;
        }
        if std::mem::take(&mut pipe.asleep) {
            pipe.say(Ring { sent: pipe.sent });
        }
    }

    pub(super) fn fail(&mut self, index: usize, why: String) {
        let Some(pipe) = self.pipes.get_mut(index) else { return };
        pipe.failed.get_or_insert(why);
        self.late.push(News { key: pipe.key, readable: true, writable: false });
    }

    /// Sends a lane's control packets. True if some are left.
    pub(super) fn pay(&mut self, index: usize) -> bool {
        while let Some(pipe) = self.pipes.get(index) {
            let Some(&kind) = pipe.owed.first() else { return false };
            let numbered = kind == PacketKind::End;
            if pipe.failed.is_some() || numbered && pipe.next >= pipe.limit {
                return pipe.failed.is_none();
            }
            // A probe is as long as the longest packet, to test that too.
            let payload = if matches!(kind, PacketKind::Probe | PacketKind::Proof) { PAYLOAD_MAX } else { 0 };
            let (token, theirs) = (pipe.token, pipe.theirs);
            let head = Packet {
                kind: kind as u8,
                lane: theirs,
                seq: pipe.next,
                limit: pipe.limit_to_tell(),
                payload: payload as u32,
            };
            let told = kind == PacketKind::Limit && pipe.told >= head.limit;
            let name_lane = |to: &mut [u8]| {
                if let Some(to) = to.first_chunk_mut() {
                    *to = token.to_le_bytes();
                }
            };
            if !told && !self.send_packet(token, head, name_lane) {
                return true;
            }
            if let Some(pipe) = self.pipes.get_mut(index) {
                pipe.owed.remove(0);
            }
        }
        false
    }
}
