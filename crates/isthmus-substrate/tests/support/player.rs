//! A program that makes calls in any order, with names that are right, stale, foreign or
//! invented. What it does is chosen from outside: by seeds, or by the bytes of a fuzzer.

use std::time::{Duration, Instant};

use isthmus_substrate::{
    Access, ConnectOptions, Connection, Endpoint, EndpointOptions, Event, Level, MemoryHandle, Region,
    RemoteOptions, SendOptions, Substrate,
};

/// A bound for what hangs; on a machine of its own all takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Chooses a number below a limit.
pub struct Choices<'a>(pub &'a mut dyn FnMut(usize) -> usize);

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        (self.0)(limit.max(1)) % limit.max(1)
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }
}

/// Everything that the calls may name.
pub struct Player {
    endpoints: Vec<Endpoint>,
    connections: Vec<Connection>,
    regions: Vec<Region>,
    handles: Vec<MemoryHandle>,
    held: Vec<Event>,
}

const LEVELS: [Level; 3] = [Level::Uu, Level::Ru, Level::Ro];

impl Player {
    pub fn new() -> Self {
        let options =
            EndpointOptions { recv_buffers: 8, send_buffers: 16, message_max: 5_000, ..Default::default() };
        let text =
            "[device]\ninterface = \"127.0.0.1\"\n[device.one]\nsubnet = 1\n[device.two]\nsubnet = 2\n";
        let substrate = Substrate::from_toml(text, "test").expect("valid");
        let open = |names: &str| {
            let devices = substrate.devices_named(names).expect("configured");
            Endpoint::create_on(&devices, &options).expect("loopback is always there")
        };
        // The first is on both devices, and so reaches the others, which do not reach each other.
        let endpoints = ["*", "one", "two"].map(open).into();
        Self {
            endpoints,
            connections: vec![Connection::from_bits(0), Connection::from_bits(u64::MAX)],
            regions: Vec::new(),
            handles: vec![MemoryHandle { key: 0, len: 1 << 40, read: true, write: true }],
            held: Vec::new(),
        }
    }

    /// Makes one call; what it returns is no matter, but that it returns is.
    pub fn call(&mut self, rng: &mut Choices<'_>) {
        let at = rng.below(self.endpoints.len());
        let connection = *rng.pick(&self.connections).expect("some are invented");
        let options =
            SendOptions { context: rng.below(9) as u64, silent: rng.below(2) == 0, ..SendOptions::DEFAULT };
        match rng.below(14) {
            0 => self.connect(at, rng),
            1 => drop(self.endpoints[at].disconnect(connection)),
            2 => drop(self.endpoints[at].send(connection, &vec![1; rng.below(6_000)], &options)),
            3 => {
                let pieces = vec![bytes::Bytes::from(vec![2; rng.below(600)]); rng.below(12)];
                drop(self.endpoints[at].send_bytes(connection, &pieces, &options));
            }
            4 => {
                let access = Access { remote_read: rng.below(2) == 0, remote_write: rng.below(2) == 0 };
                let region = self.endpoints[at].register(rng.below(100_000), access).expect("memory");
                self.handles.push(region.handle());
                self.regions.push(region);
            }
            5 if !self.regions.is_empty() => drop(self.regions.swap_remove(rng.below(self.regions.len()))),
            6 | 7 => self.remote(at, connection, rng),
            8 => drop(
                self.endpoints[at].set_keepalive(connection, Duration::from_millis(rng.below(50) as u64)),
            ),
            9 => {
                drop(
                    self.endpoints[at]
                        .set_send_timeout(connection, Duration::from_millis(rng.below(50) as u64)),
                );
            }
            10 if !self.held.is_empty() => drop(self.held.swap_remove(rng.below(self.held.len()))),
            _ => self.listen(at, rng),
        }
    }

    fn connect(&mut self, at: usize, rng: &mut Choices<'_>) {
        let uri = self.endpoints[rng.below(self.endpoints.len())].uri();
        let options = ConnectOptions {
            timeout: (rng.below(3) == 0).then(|| Duration::from_millis(rng.below(20) as u64)),
        };
        let payload = vec![3; rng.below(1_100)];
        let level = *rng.pick(&LEVELS).expect("three");
        self.connections.extend(self.endpoints[at].connect(&uri, &payload, level, 7, &options));
    }

    fn remote(&mut self, at: usize, connection: Connection, rng: &mut Choices<'_>) {
        let note = vec![4; rng.below(300)];
        let options = RemoteOptions {
            silent: rng.below(2) == 0,
            fence: rng.below(4) == 0,
            message: (rng.below(2) == 0).then_some(&note[..]),
            ..Default::default()
        };
        let (Some(local), Some(handle)) = (rng.pick(&self.regions), rng.pick(&self.handles)) else { return };
        let mut number = |most: usize| if rng.below(9) == 0 { u64::MAX - 3 } else { rng.below(most) as u64 };
        let (offset, there, len) = (number(100), number(100), number(120_000));
        let endpoint = &self.endpoints[at];
        let write = rng.below(2) == 0;
        drop(match write {
            true => endpoint.write(connection, local, offset, handle, there, len, &options),
            false => endpoint.read(connection, local, offset, handle, there, len, &options),
        });
        let mut some = vec![0; rng.below(1000)];
        drop(local.read_at(rng.below(1000), &mut some));
        drop(local.write_at(rng.below(1000), &some));
    }

    fn listen(&mut self, at: usize, rng: &mut Choices<'_>) {
        let Some(event) = self.endpoints[at].get_event().expect("open") else { return };
        match event {
            Event::Requested(request) => match rng.below(5) {
                0 => drop(self.endpoints[at].reject(request, 1, b"no")),
                // Perhaps the wrong endpoint.
                1 => drop(self.endpoints[rng.below(3)].accept(request, 1)),
                2 => self.held.push(Event::Requested(request)),
                _ => self.connections.extend(self.endpoints[at].accept(request, 1)),
            },
            // Held ones keep their buffers; a few at a time, or nobody would receive.
            event if self.held.len() < 4 => self.held.push(event),
            event => drop(event),
        }
    }

    /// After all that they still do what endpoints do.
    pub fn still_works(mut self) {
        self.held.clear();
        let [a, b, _] = &self.endpoints[..] else { return };
        a.connect(&b.uri(), b"last", Level::Ro, 99, &ConnectOptions::default()).expect("asked");
        let start = Instant::now();
        loop {
            if start.elapsed() >= LIMIT {
                // The mark of a hang, as in the tests of isthmus-io (support/hung.rs).
                eprintln!("\nHUNG: after all calls, two endpoints do not exchange a message");
                panic!("two endpoints do not exchange a message");
            }
            while let Some(event) = a.get_event().expect("open") {
                if let Event::Connected { connection, context: 99 } = event {
                    a.send(connection, b"well", &SendOptions::default()).expect("sent");
                }
            }
            while let Some(event) = b.get_event().expect("open") {
                match event {
                    Event::Requested(request) if request.payload() == b"last" => {
                        b.accept(request, 98).expect("granted");
                    }
                    Event::Received(message) if message.context() == 98 => {
                        assert_eq!(&*message, b"well");
                        return;
                    }
                    _ => {}
                }
            }
        }
    }
}
