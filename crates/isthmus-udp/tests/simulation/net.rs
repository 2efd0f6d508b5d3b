//! A network in virtual time: ports joined by links of the lab's model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use isthmus_lab::model::{Direction, DirectionSpec, Fate, Loss, wire_bytes};
use isthmus_seal::Secret;
use isthmus_udp::{Event, Initial, Micros, Port, PortConfig, Session, StreamId};

use crate::stalls::{StallSpec, Stalls};

/// Headers before a UDP payload: Ethernet, IPv4 and UDP. Bytes.
const FRAME_BYTES: u32 = 14 + 20 + 8;

/// Properties of a path, the same in both directions.
#[derive(Clone, Debug)]
pub(crate) struct PathSpec {
    pub(crate) rate_bps: u64,
    pub(crate) rtt_us: u64,
    /// Length of the bottleneck's queue. Microseconds at the path's rate.
    pub(crate) queue_us: u64,
    pub(crate) loss: Loss,
    pub(crate) reorder: f64,
    pub(crate) duplicate: f64,
    pub(crate) jitter_us: u64,
    /// Longest IP packet. Bytes.
    pub(crate) mtu: u32,
    pub(crate) down: Vec<(u64, u64)>,
    /// Stalls of each host, and of each direction of the link, independent of each other.
    pub(crate) host_stalls: StallSpec,
    pub(crate) link_stalls: StallSpec,
    pub(crate) seed: u64,
    /// The two directions in detail. They replace all properties of the link except seed and MTU.
    pub(crate) directions: Option<Box<[DirectionSpec; 2]>>,
}

impl Default for PathSpec {
    fn default() -> Self {
        Self {
            rate_bps: 1_000_000_000,
            rtt_us: 24_000,
            queue_us: 20_000,
            loss: Loss::Independent(0.0),
            reorder: 0.0,
            duplicate: 0.0,
            jitter_us: 0,
            mtu: 9_000,
            down: Vec::new(),
            host_stalls: StallSpec::default(),
            link_stalls: StallSpec::default(),
            seed: 1,
            directions: None,
        }
    }
}

impl PathSpec {
    fn direction(&self, index: u64) -> Direction {
        if let Some(directions) = &self.directions {
            let seed = self.seed * 2 + index;
            return Direction::new(DirectionSpec { seed, ..directions[index as usize].clone() });
        }
        Direction::new(DirectionSpec {
            rate_bps: self.rate_bps,
            delay_ns: self.rtt_us * 500,
            queue_bytes: (self.rate_bps / 8 * self.queue_us / 1_000_000).max(20_000),
            loss: self.loss,
            jitter_ns: self.jitter_us * 1_000,
            reorder: self.reorder,
            duplicate: self.duplicate,
            down: self.down.iter().map(|(from, to)| (from * 1_000, to * 1_000)).collect(),
            seed: self.seed * 2 + index,
            ..Default::default()
        })
    }

    /// Bytes of stream per second that the path can carry: full packets, less losses.
    pub(crate) fn goodput(&self) -> f64 {
        let ip = f64::from(self.mtu);
        self.rate_bps as f64 / 8.0 * (ip - 28.0) / (ip + 14.0 + 24.0) * (1.0 - self.loss.mean())
    }

    /// The least time in which a stream can deliver `bytes` and learn of it. Seconds.
    pub(crate) fn floor_s(&self, bytes: u64) -> f64 {
        self.rtt_us as f64 / 1e6 + bytes as f64 / self.goodput()
    }
}

/// The keys with which packets are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A session for each stream.
    Session,
    /// First what the opener knows about the acceptor, then a secret that both share.
    Address,
}

/// The secret that openers know about every port here.
pub(crate) fn initial() -> Initial {
    Initial::new(b"an address")
}

#[derive(Debug)]
struct Delivery {
    to: usize,
    from: SocketAddr,
    arrived: Micros,
    marked: bool,
    bytes: Vec<u8>,
}

/// A packet that waits for a stalled link: its sender's port, its destination, its bytes.
type Waiting = (usize, SocketAddr, Vec<u8>);

/// A host whose processor needs time for each packet, and whose socket has a limited buffer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Bytes/s (UDP payload) that it reads; 0: no limit.
    pub(crate) rate: u64,
    pub(crate) socket_bytes: usize,
    /// (time, period): it runs for this time of each period. A period of 0: always. Microseconds.
    pub(crate) slot_us: (Micros, Micros),
    socket: VecDeque<Delivery>,
    held_bytes: usize,
    /// When the previous packet is done.
    free_at: Micros,
    /// Remainder of the division of work by the rate, carried to the next packet.
    rest: u64,
    /// Packets that found no room, and those of them that the port has not heard of. Count.
    pub(crate) dropped: u64,
    untold: u64,
}

impl Reader {
    /// When the packet at the head has been read.
    fn due(&self) -> Option<Micros> {
        self.socket.front().map(|_| self.free_at)
    }

    /// The time at which `work_us` of work that begins at `now` is done.
    fn after(&self, mut now: Micros, mut work_us: Micros) -> Micros {
        let (slot, every) = self.slot_us;
        while let Some(into) = now.checked_rem(every).filter(|_| work_us > 0) {
            let step = work_us.min(slot.saturating_sub(into));
            (now, work_us) =
                if step == 0 { (now + every - into, work_us) } else { (now + step, work_us - step) };
        }
        now + work_us
    }

    /// Finishes the packet at the head at once.
    pub(crate) fn go_on(&mut self) {
        self.free_at = 0;
    }

    /// Starts to work on the packet at the head.
    fn begin(&mut self, from: Micros) {
        if let Some(next) = self.socket.front() {
            let work = next.bytes.len() as u64 * 1_000_000 + self.rest;
            self.free_at = self.after(from, work.checked_div(self.rate).unwrap_or(0));
            self.rest = work.checked_rem(self.rate).unwrap_or(0);
        }
    }
}

/// Ports and the two directions of a link. All ports with even index send in one direction, those with odd index in the
/// other.
pub(crate) struct Net {
    pub(crate) now: Micros,
    pub(crate) ports: Vec<Port>,
    links: [Direction; 2],
    link_stalls: [Stalls; 2],
    waiting: [Vec<Waiting>; 2],
    /// Packets that have crossed a link which is stalled.
    late: [Vec<Delivery>; 2],
    host_stalls: Vec<Stalls>,
    pub(crate) readers: Vec<Reader>,
    /// Packets that have arrived at stalled hosts.
    inbox: Vec<Vec<Delivery>>,
    mtu: u32,
    flying: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Delivery>>,
    free: Vec<usize>,
    age: u64,
    buffers: Vec<Vec<u8>>,
    /// Packets and bytes (UDP payload) sent, by port.
    pub(crate) sent: Vec<u64>,
    pub(crate) sent_bytes: Vec<u64>,
    /// If set: one packet in 20 is sent a second time later, perhaps damaged.
    pub(crate) mischief: Option<isthmus_lab::rng::Rng>,
    /// If set: one packet in a hundred arrives with some bits flipped.
    pub(crate) noise: Option<isthmus_lab::rng::Rng>,
    /// If set: streams are opened with these keys, and all packets of `mischief` have the address of the genuine
    /// sender.
    pub(crate) sealed: Option<By>,
    /// If set: a NAT before this port forgets it at this time, and its packets come from another port from then on. For
    /// [`RESTART_US`] before, the NAT passes nothing on.
    pub(crate) forgets: Option<(usize, Micros)>,
    /// Ports are woken at whole multiples of this after they have slept, as by timers of a coarse clock. Microseconds.
    pub(crate) tick_us: Micros,
    /// If set: what ports from this number on send counts as TCP to policers of UDP.
    pub(crate) tcp_from: Option<usize>,
    /// Whether applications admit every stream that is opened.
    pub(crate) admits: bool,
    sessions: u64,
    /// Streams opened or accepted, by port.
    pub(crate) opened: Vec<(usize, StreamId)>,
}

/// How long a NAT takes to start again. Microseconds.
pub(crate) const RESTART_US: Micros = 150_000;
/// Added to the number of a port for another one of the same host.
pub(crate) const OTHER: usize = 100;

pub(crate) fn address(port: usize) -> SocketAddr {
    let host = if port.is_multiple_of(2) { 1 } else { 2 };
    SocketAddr::from(([10, 0, 0, host], 4_000 + port as u16))
}

/// Settings of a port on this path.
pub(crate) fn config(path: &PathSpec) -> PortConfig {
    let mut config = PortConfig::default();
    config.stream.payload_max = 8_972.min(path.mtu.max(1_500) - 28);
    config
}

impl Net {
    pub(crate) fn new(path: &PathSpec, configs: Vec<PortConfig>) -> Self {
        let port = |(i, config)| Port::new(config, [(i as u8).wrapping_add(path.seed as u8); 16]);
        let count = configs.len();
        Self {
            now: 1_000_000,
            ports: configs.into_iter().enumerate().map(port).collect(),
            links: [path.direction(0), path.direction(1)],
            link_stalls: [0, 1].map(|i| Stalls::new(path.link_stalls, path.seed, i)),
            waiting: Default::default(),
            late: Default::default(),
            host_stalls: (0..count).map(|i| Stalls::new(path.host_stalls, path.seed, 2 + i as u64)).collect(),
            readers: (0..count).map(|_| Reader::default()).collect(),
            inbox: (0..count).map(|_| Vec::new()).collect(),
            mtu: path.mtu,
            flying: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            age: 0,
            buffers: Vec::new(),
            sent: vec![0; count],
            sent_bytes: vec![0; count],
            mischief: None,
            noise: None,
            sealed: None,
            forgets: None,
            tick_us: 1,
            tcp_from: None,
            admits: false,
            sessions: 0,
            opened: Vec::new(),
        }
    }

    pub(crate) fn pair(path: &PathSpec) -> Self {
        Self::new(path, vec![config(path), config(path)])
    }

    /// A new session, known to both ends.
    pub(crate) fn session(&mut self) -> Session {
        self.sessions += 1;
        let mut rng = isthmus_lab::rng::Rng::new(self.sessions, 99);
        Session::new(&std::array::from_fn(|_| rng.next_u64() as u8), self.sessions)
    }

    pub(crate) fn open(&mut self, from: usize, to: usize) -> StreamId {
        let id = match self.sealed {
            None => self.ports[from].open(self.now, address(to)),
            Some(By::Session) => {
                let session = self.session();
                self.ports[to].expect(self.now, address(from).ip(), session.clone());
                self.ports[from].open_within(self.now, address(to), &session)
            }
            Some(By::Address) => self.ports[from].open_known(self.now, address(to), &initial()),
        };
        self.rekey(from, id);
        self.opened.push((from, id));
        id
    }

    /// If streams are sealed by address, gives this end the secret that both ends share.
    fn rekey(&mut self, port: usize, id: StreamId) {
        if self.sealed == Some(By::Address) {
            self.ports[port].with(self.now, id, |stream| stream.rekey(&Secret([9; Secret::LEN])));
        }
    }

    pub(crate) fn event(&mut self, port: usize) -> Option<Event> {
        let event = self.ports[port].poll_event()?;
        if let Event::Accepted(id, _) = event {
            self.rekey(port, id);
            if self.admits {
                self.ports[port].admit_stream(id);
            }
            self.opened.push((port, id));
        }
        Some(event)
    }

    /// Sends everything that is due.
    pub(crate) fn flush(&mut self) {
        for port in 0..self.ports.len() {
            if self.stands_still(port) {
                continue;
            }
            // A port that sends without end at one moment would hang here.
            for round in 0.. {
                assert!(round < 100_000, "port {port} sends without end");
                let mut out = self.buffers.pop().unwrap_or_default();
                out.clear();
                let Some(transmit) = self.ports[port].poll_transmit(self.now, 64, 65_000, &mut out) else {
                    self.buffers.push(out);
                    break;
                };
                assert_eq!(transmit.len, out.len());
                for packet in out.chunks(transmit.segment) {
                    self.put(port, transmit.to, packet);
                }
                self.buffers.push(out);
            }
        }
    }

    /// Whether a port's host is stalled now.
    pub(crate) fn stands_still(&mut self, port: usize) -> bool {
        self.host_stalls[port].until(self.now).is_some()
    }

    /// Puts a packet on the wire.
    pub(crate) fn put(&mut self, port: usize, to: SocketAddr, packet: &[u8]) {
        self.sent[port] += 1;
        self.sent_bytes[port] += packet.len() as u64;
        if self.link_stalls[port % 2].until(self.now).is_some() {
            self.waiting[port % 2].push((port, to, packet.to_vec()));
        } else {
            self.offer(port, to, packet);
        }
    }

    /// The address at which others see a port now.
    pub(crate) fn seen_at(&self, port: usize) -> SocketAddr {
        let is_other = self.forgets.is_some_and(|(of, at)| of == port && self.now >= at);
        address(if is_other { port + OTHER } else { port })
    }

    fn offer(&mut self, port: usize, to: SocketAddr, packet: &[u8]) {
        if self.forgets.is_some_and(|(_, at)| self.now < at && self.now + RESTART_US >= at) {
            return;
        }
        let Some(target) = (0..self.ports.len()).find(|port| self.seen_at(*port) == to) else { return };
        if packet.len() as u32 + 28 > self.mtu {
            return;
        }
        let is_tcp = self.tcp_from.is_some_and(|from| port >= from);
        let (link, now_ns) = (&mut self.links[port % 2], self.now * 1_000);
        let wire = wire_bytes(packet.len() as u32 + FRAME_BYTES);
        let fate = if is_tcp { link.offer_tcp(now_ns, wire) } else { link.offer_one(now_ns, wire) };
        let Fate::Deliver { at_ns, twice, marked } = fate else { return };
        let mut noisy = None;
        if let Some(noise) = &mut self.noise
            && noise.chance(0.01)
        {
            let noisy = noisy.insert(packet.to_vec());
            for _ in 0..=noise.up_to(7) {
                let bit = noise.up_to(8 * packet.len() as u64 - 1) as usize;
                noisy[bit / 8] ^= 1 << (bit % 8);
            }
        }
        for _ in 0..=usize::from(twice) {
            self.fly(at_ns, target, self.seen_at(port), marked, noisy.as_deref().unwrap_or(packet));
        }
        if let Some(mischief) = &mut self.mischief
            && mischief.chance(0.05)
        {
            let mut damaged = packet.to_vec();
            let at = mischief.up_to(damaged.len() as u64 - 1) as usize;
            match mischief.up_to(2) {
                0 => damaged[at] ^= 1 << mischief.up_to(7),
                1 => damaged.truncate(at),
                _ => {}
            }
            let later = at_ns + mischief.up_to(100_000_000);
            // Without authenticated content: from a wrong address, unless the packet is an exact repetition.
            let genuine = self.sealed.is_some() || damaged == packet;
            let from = if genuine { self.seen_at(port) } else { address(port + OTHER) };
            self.fly(later, target, from, marked, &damaged);
        }
    }

    fn fly(&mut self, at_ns: u64, to: usize, from: SocketAddr, marked: bool, packet: &[u8]) {
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Delivery { to, from, arrived: 0, marked, bytes });
        self.age += 1;
        self.flying.push(Reverse((at_ns, self.age, slot)));
    }

    /// Time of the next event, if there is one.
    fn next_event(&mut self) -> Option<Micros> {
        let (now, tick_us) = (self.now, self.tick_us);
        let arrival = self.flying.peek().map(|Reverse((at, ..))| at.div_ceil(1_000));
        let link = |link: usize| {
            let holds = !(self.waiting[link].is_empty() && self.late[link].is_empty());
            holds.then(|| self.link_stalls[link].until(now).unwrap_or(now))
        };
        let links = [0, 1].map(link).into_iter().flatten().min();
        let stalls = self.host_stalls.iter_mut().map(|stalls| stalls.until(now));
        let ports = self
            .ports
            .iter()
            .zip(stalls)
            .filter_map(|(port, stall)| {
                let timer = || port.poll_timeout().map(|at| at.next_multiple_of(tick_us));
                stall.or_else(timer)
            })
            .min();
        let reads = self.readers.iter().filter_map(Reader::due).min();
        [arrival, links, ports, reads].into_iter().flatten().min()
    }

    /// Releases packets whose link or host is no longer stalled.
    fn release(&mut self) {
        for link in 0..2 {
            if self.link_stalls[link].until(self.now).is_none() {
                for (port, to, packet) in std::mem::take(&mut self.waiting[link]) {
                    self.offer(port, to, &packet);
                }
                std::mem::take(&mut self.late[link]).into_iter().for_each(|late| self.arrive(late));
            }
        }
        for port in 0..self.ports.len() {
            if !self.inbox[port].is_empty() && !self.stands_still(port) {
                std::mem::take(&mut self.inbox[port]).into_iter().for_each(|came| self.deliver(came));
            }
        }
    }

    fn arrive(&mut self, mut delivery: Delivery) {
        delivery.arrived = self.now;
        let reader = &mut self.readers[delivery.to];
        if reader.rate > 0 || !reader.socket.is_empty() {
            if reader.held_bytes + delivery.bytes.len() > reader.socket_bytes {
                (reader.dropped, reader.untold) = (reader.dropped + 1, reader.untold + 1);
                self.buffers.push(delivery.bytes);
                return;
            }
            reader.held_bytes += delivery.bytes.len();
            reader.socket.push_back(delivery);
            if reader.socket.len() == 1 {
                reader.begin(self.now);
            }
            return;
        }
        match self.stands_still(delivery.to) {
            true => self.inbox[delivery.to].push(delivery),
            false => self.deliver(delivery),
        }
    }

    /// Delivers packets that hosts have finished reading.
    fn read(&mut self) {
        for at in 0..self.readers.len() {
            while self.readers[at].due().is_some_and(|due| due <= self.now) {
                let reader = &mut self.readers[at];
                let Some(delivery) = reader.socket.pop_front() else { break };
                reader.held_bytes -= delivery.bytes.len();
                reader.begin(reader.free_at);
                self.deliver(delivery);
                let (port, reader) = (&mut self.ports[at], &mut self.readers[at]);
                port.note_drops(self.now, || std::mem::take(&mut reader.untold));
            }
        }
    }

    fn deliver(&mut self, mut delivery: Delivery) {
        let port = &mut self.ports[delivery.to];
        let Delivery { arrived, from, marked, bytes, .. } = &mut delivery;
        port.on_datagram(self.now, *arrived, *from, *marked, bytes);
        self.buffers.push(delivery.bytes);
    }

    /// Advances to the next event, at most to `until`. Returns false if there is no event before then.
    pub(crate) fn step(&mut self, until: Micros) -> bool {
        self.flush();
        self.now = self.next_event().unwrap_or(until).max(self.now).min(until);
        self.release();
        self.read();
        while let Some(Reverse((at, _, slot))) = self.flying.peek().copied() {
            if at.div_ceil(1_000) > self.now {
                break;
            }
            self.flying.pop();
            self.free.push(slot);
            if let Some(delivery) = self.slots[slot].take() {
                let link = (delivery.to + 1) % 2;
                match self.link_stalls[link].until(self.now) {
                    Some(_) => self.late[link].push(delivery),
                    None => self.arrive(delivery),
                }
            }
        }
        self.now < until
    }
}

/// A transfer in one direction. It writes known bytes as there is room, and checks the bytes that arrive.
pub(crate) struct Flow {
    from: usize,
    to: usize,
    stream: StreamId,
    /// The stream's other end, once it is accepted.
    pub(crate) accepted: Option<StreamId>,
    bytes: u64,
    /// Bytes that the program has given it so far.
    pub(crate) given: u64,
    written: u64,
    pub(crate) read: u64,
    pub(crate) finished: bool,
    /// Whether content is checked, which costs time.
    checked: bool,
    scratch: Vec<u8>,
}

/// The expected byte at position `at` of a stream.
fn pattern(at: u64) -> u8 {
    ((at * 167) ^ (at >> 8) ^ (at >> 17)) as u8
}

impl Flow {
    pub(crate) fn new(net: &mut Net, from: usize, to: usize, bytes: u64, checked: bool) -> Self {
        let stream = net.open(from, to);
        let scratch = vec![0; 64 << 10];
        Self {
            from,
            to,
            stream,
            accepted: None,
            bytes,
            given: bytes,
            written: 0,
            read: 0,
            finished: false,
            checked,
            scratch,
        }
    }

    /// The sender's end of the stream.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Writes a little, like a program that has just connected.
    pub(crate) fn greet(&mut self, net: &mut Net) {
        let (now, id) = (net.now, self.stream);
        self.written +=
            net.ports[self.from].with(now, id, |stream| stream.write(&[0; 20])).expect("it lives") as u64;
    }

    /// Writes and sends as long as there is room. Ends the stream after the last byte.
    pub(crate) fn feed(&mut self, net: &mut Net) {
        let mut before = u64::MAX;
        if net.stands_still(self.from) {
            return;
        }
        while self.written < self.given && self.written != before {
            before = self.written;
            self.write(net);
            net.flush();
        }
    }

    fn write(&mut self, net: &mut Net) {
        let room = net.ports[self.from].stream(self.stream).map_or(0, |stream| stream.room());
        if self.written == self.given || room < (16 << 10).min(self.given - self.written) {
            return;
        }
        let now = net.now;
        while self.written < self.given {
            let len = (self.scratch.len() as u64).min(self.given - self.written) as usize;
            if self.checked {
                let at = self.written;
                self.scratch[..len].iter_mut().zip(at..).for_each(|(byte, at)| *byte = pattern(at));
            }
            let (scratch, checked) = (&self.scratch[..len], self.checked);
            let took = net.ports[self.from].with(now, self.stream, |stream| match stream.written() % 5 {
                // Use all ways to write in turn: the receiver cannot tell them apart.
                1 | 2 if checked => stream.lend(Bytes::copy_from_slice(scratch)),
                3 if checked => {
                    stream.own(stream.written() / 4 * 3);
                    stream.write(scratch)
                }
                _ => stream.write(scratch),
            });
            let took = took.expect("the stream lives") as u64;
            self.written += took;
            if took == 0 {
                break;
            }
        }
        if self.written == self.bytes {
            net.ports[self.from].with(now, self.stream, |stream| stream.finish());
        }
    }

    /// Reads and checks the bytes that have arrived.
    pub(crate) fn drain(&mut self, net: &mut Net) {
        let Some(id) = self.accepted.filter(|_| !net.stands_still(self.to)) else { return };
        let Some(stream) = net.ports[self.to].stream(id) else { return };
        if stream.readable() == 0 && !stream.is_finished() {
            return;
        }
        let now = net.now;
        let (checked, mut at) = (self.checked, self.read);
        let finished = net.ports[self.to].with(now, id, |stream| {
            while stream.readable() > 0 {
                let piece = stream.peek(usize::MAX);
                if checked {
                    let wrong = piece.iter().zip(at..).find(|(byte, at)| **byte != pattern(*at));
                    assert_eq!(wrong.map(|(_, at)| at), None, "a wrong byte");
                }
                let len = piece.len() as u64;
                at += len;
                stream.consume(now, len);
            }
            stream.is_finished()
        });
        self.read = at;
        if finished == Some(true) && !self.finished {
            self.finished = true;
            assert_eq!(self.read, self.bytes, "the end came too early");
            net.ports[self.to].with(now, id, |stream| stream.finish());
        }
    }

    /// Takes note of the accepted stream.
    pub(crate) fn on_event(&mut self, net: &mut Net) {
        while let Some(event) = net.event(self.to) {
            match event {
                Event::Accepted(id, _) if self.accepted.is_none() => self.accepted = Some(id),
                Event::Failed(_, failure) => panic!("the receiving side failed: {failure}"),
                _ => {}
            }
        }
        while let Some(event) = net.event(self.from) {
            if let Event::Failed(_, failure) = event {
                panic!("the sending side failed: {failure}");
            }
        }
    }

    /// Whether the sender knows that everything has arrived.
    pub(crate) fn is_settled(&self, net: &Net) -> bool {
        self.written == self.bytes && net.ports[self.from].stream(self.stream).is_some_and(|s| s.is_settled())
    }
}

/// Runs one transfer until the sender knows that everything has arrived. Returns the time since opening, in seconds; or
/// after `limit_s` the bytes read.
pub(crate) fn transfer(net: &mut Net, bytes: u64, checked: bool, limit_s: f64) -> Result<f64, u64> {
    let flow = Flow::new(net, 0, 1, bytes, checked);
    run(net, flow, limit_s)
}

/// The same for a stream that was opened, with a little data, `pause_us` before the time counts.
pub(crate) fn transfer_after(net: &mut Net, pause_us: Micros, bytes: u64, limit_s: f64) -> Result<f64, u64> {
    transfer_measured(net, 0, pause_us, bytes, limit_s)
}

/// The same, and the path is measured with `train` bytes while the stream opens.
pub(crate) fn transfer_measured(
    net: &mut Net,
    train: u32,
    pause_us: Micros,
    bytes: u64,
    limit_s: f64,
) -> Result<f64, u64> {
    let mut flow = Flow::new(net, 0, 1, bytes, false);
    let (now, id) = (net.now, flow.stream());
    if train > 0 {
        net.ports[0].with(now, id, |stream| stream.measure(train));
    }
    flow.greet(net);
    while net.step(now + pause_us) {
        flow.on_event(net);
        flow.drain(net);
    }
    run(net, flow, limit_s)
}

fn run(net: &mut Net, mut flow: Flow, limit_s: f64) -> Result<f64, u64> {
    let start = net.now;
    let limit = start + (limit_s * 1e6) as Micros;
    loop {
        flow.feed(net);
        let on = net.step(limit);
        flow.on_event(net);
        flow.drain(net);
        if flow.is_settled(net) {
            assert!(flow.finished, "settled before all was read");
            return Ok((net.now - start) as f64 / 1e6);
        }
        if !on {
            return Err(flow.read);
        }
    }
}

/// The median; of an even number of runs the upper one.
pub(crate) fn median(runs: impl IntoIterator<Item = f64>) -> f64 {
    let mut runs: Vec<f64> = runs.into_iter().collect();
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

/// Seeds for a test with many runs: `count` of them, or the one in `ISTHMUS_SEED`.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("ISTHMUS_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}
