//! A hub's turns: it takes completions, decides which lanes to wake, and when to poll again.

use std::time::Duration;

use isthmus_wire::frame::{Doze, Frame, Packet, PacketKind, Ring};

use super::{Hub, News, PACKET_MAX, PAUSE, RECEIVES};
use crate::FabricError;
use crate::net::{BufferId, Done};
use crate::pipe::{Parcel, Pipe};

/// Most rounds of completions in one turn. Count.
const ROUNDS: usize = 4;
/// Longest pause between polls while packets are under way.
const PAUSE_MAX: Duration = Duration::from_millis(2);

impl Hub {
    /// Lets the provider progress, and adds the lanes that changed to `news`.
    pub(crate) fn poll(&mut self, news: &mut Vec<News>) {
        if self.pipes.is_empty() && self.senders.is_empty() || self.broken.is_some() {
            return;
        }
        for _ in 0..ROUNDS {
            let mut done = std::mem::take(&mut self.done);
            if let Err(error) = self.net.poll(&mut done) {
                self.give_up(&error);
            }
            let any = !done.is_empty();
            for (id, done) in done.drain(..) {
                self.on_done(id, done, news);
            }
            self.done = done;
            if !any {
                break;
            }
            self.pause = PAUSE;
        }
        if !self.todo.is_empty() {
            self.pay_all();
        }
        if !self.readers.is_empty() {
            self.wake_readers(news);
        }
        if !self.writers.is_empty() {
            self.wake_writers(news);
        }
        if self.posted < self.pipes.len() * RECEIVES {
            let _ = self.stock();
        }
        news.append(&mut self.late);
    }

    /// Marks the endpoint as failed, with all its lanes.
    pub(crate) fn give_up(&mut self, error: &FabricError) {
        let why = format!("{}: {error}", self.provider);
        for index in 0..self.pipes.capacity() {
            self.fail(index, why.clone());
        }
        self.broken = Some(why);
    }

    fn pay_all(&mut self) {
        let mut todo = std::mem::take(&mut self.todo);
        todo.sort_unstable();
        todo.dedup();
        todo.retain(|index| self.pay(*index));
        self.todo.append(&mut todo);
    }

    fn wake_readers(&mut self, news: &mut Vec<News>) {
        self.readers.sort_unstable();
        self.readers.dedup();
        self.readers.retain(|index| {
            let Some(pipe) = self.pipes.get(*index).filter(|pipe| !pipe.inbox.is_empty()) else {
                return false;
            };
            if pipe.bell.is_some() {
                news.push(News { key: pipe.key, readable: true, writable: false });
            }
            true
        });
    }

    fn wake_writers(&mut self, news: &mut Vec<News>) {
        let mut writers = std::mem::take(&mut self.writers);
        writers.retain(|index| {
            let Some(pipe) = self.pipes.get_mut(*index) else { return false };
            let ready = pipe.failed.is_some() || pipe.next < pipe.limit;
            if ready {
                pipe.wants_to_write = false;
                news.push(News { key: pipe.key, readable: false, writable: true });
            }
            !ready
        });
        self.writers.append(&mut writers);
    }

    fn on_done(&mut self, id: BufferId, done: Done, news: &mut Vec<News>) {
        if let Some(token) = self.senders.remove(&id) {
            self.free.push(id);
            if let Some(pipe) = self.pipe(token) {
                pipe.sending -= 1;
                if let Done::Failed(code) = done {
                    let why = format!("{}: error {code} of libfabric", self.provider);
                    self.fail(token as u32 as usize, why);
                }
            }
            return;
        }
        self.posted -= 1;
        if let Done::Received(len) = done
            && self.on_packet(id, len, news)
        {
            return;
        }
        self.give_back(id);
    }

    /// Handles a received packet. True if its buffer stays with the lane.
    fn on_packet(&mut self, id: BufferId, len: usize, news: &mut Vec<News>) -> bool {
        let bytes = &self.net.bytes(id)[..len.min(PACKET_MAX)];
        let Ok(Some(Frame::Packet(head))) = Frame::decode(bytes) else { return false };
        let payload = &bytes[Packet::LEN..];
        let (fits, name) = (payload.len() == head.payload as usize, payload.first_chunk().copied());
        let index = head.lane as u32 as usize;
        // Packets of lanes that have ended may still arrive.
        let Some(pipe) = self.pipes.get_mut(index).filter(|pipe| pipe.token == head.lane) else {
            return false;
        };
        pipe.received += 1;
        pipe.limit = pipe.limit.max(head.limit);
        let Some(kind) = PacketKind::from_code(head.kind).filter(|_| fits) else {
            self.fail(index, "a packet that makes no sense".to_owned());
            return false;
        };
        match kind {
            PacketKind::Data => {
                let parcel = Parcel { buffer: id, from: Packet::LEN, to: len };
                let fits = head.payload > 0 && pipe.put(head.seq, parcel);
                if fits && pipe.is_readable() {
                    self.readers.push(index);
                } else if !fits {
                    self.fail(index, "a packet out of turn".to_owned());
                }
                fits
            }
            PacketKind::End => {
                pipe.end = Some(head.seq);
                self.readers.push(index);
                false
            }
            PacketKind::Limit => false,
            PacketKind::Probe => {
                pipe.theirs = name.map_or(0, u64::from_le_bytes);
                if pipe.owed.is_empty() {
                    pipe.owed.push(PacketKind::Proof);
                    self.todo.push(index);
                }
                false
            }
            PacketKind::Proof => {
                pipe.proved = true;
                news.push(News { key: pipe.key, readable: true, writable: false });
                false
            }
        }
    }

    /// Tells the neighbours that a thread is about to sleep. They announce later packets on the lanes'
    /// connections.
    pub(crate) fn doze(&mut self) {
        for (_, pipe) in &mut self.pipes {
            if pipe.bell.is_some() && !pipe.dozing && !pipe.parted {
                pipe.dozing = pipe.say(Doze { received: pipe.received });
            }
        }
    }

    /// Longest time until the next [`Hub::poll`]. `None`: until a connection is
    /// readable.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        let busy = |pipe: &Pipe| {
            pipe.received < pipe.rung
                || pipe.sending > 0
                || pipe.wants_to_write && pipe.next < pipe.limit
                || pipe.bell.is_some() && !pipe.dozing && !pipe.parted
        };
        let restless = !self.late.is_empty()
            || !self.readers.is_empty()
            || !self.todo.is_empty()
            || self.pipes.iter().any(|(_, pipe)| busy(pipe) || pipe.bell.is_none());
        if !restless || self.broken.is_some() {
            return None;
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Some(pause)
    }

    /// Reads a lane's readable connection and handles its frames. False if nothing can
    /// arrive there any more.
    pub(crate) fn stir(&mut self, token: u64) -> bool {
        let index = token as u32 as usize;
        let Some(pipe) = self.pipe(token) else { return false };
        let told = pipe.listen();
        while let Ok(Some(frame)) = Frame::decode(&pipe.heard) {
            pipe.heard.drain(..frame.header_len());
            match frame {
                Frame::Doze(doze) if pipe.sent > doze.received => {
                    pipe.say(Ring { sent: pipe.sent });
                }
                Frame::Doze(_) => pipe.asleep = true,
                Frame::Ring(ring) => {
                    pipe.rung = ring.sent;
                    pipe.dozing = false;
                }
                _ => {
                    self.fail(index, "a frame out of place on a lane's connection".to_owned());
                    return false;
                }
            }
        }
        self.pause = PAUSE;
        if told.is_err() {
            self.part(index);
        }
        told.is_ok()
    }

    /// Handles the connection's end. Packets that came before are read first.
    fn part(&mut self, index: usize) {
        let mut news = Vec::new();
        self.poll(&mut news);
        self.late.append(&mut news);
        if let Some(pipe) = self.pipes.get_mut(index) {
            pipe.parted = true;
            self.late.push(News { key: pipe.key, readable: true, writable: false });
        }
    }
}
