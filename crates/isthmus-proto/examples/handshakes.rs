//! How many lanes an endpoint admits in a second on one processor: callers with keys of their own greet one listener,
//! and all run in one thread. Prints the time that the listener and a caller take for each handshake, the best of five
//! rounds.
//!
//! `cargo run --release -p isthmus-proto --example handshakes`

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isthmus_proto::{
    Access, Action, Batch, BufferRef, Channel, Config, Engine, LaneId, Memory, Options, RemoteRange, Secret,
    SendRequest, public_key,
};
use isthmus_wire::frame::{Frame, Status};
use isthmus_wire::{Address, AsId, SubnetId};

/// Handshakes of a round. Count.
const CALLERS: u32 = 2_000;
const ROUNDS: usize = 5;

/// No message has any bytes.
struct Nothing;

impl Memory for Nothing {
    fn store(&mut self, _: BufferRef, _: u64, _: &[u8]) {}
    fn load(&self, _: BufferRef, _: u64, _: usize, _: &mut Vec<u8>) {}
    fn locate(&self, _: RemoteRange, _: Access) -> Result<BufferRef, Status> {
        Err(Status::Key)
    }
    fn keep(&mut self, at: BufferRef, _: u64) -> BufferRef {
        at
    }
    fn release(&mut self, _: BufferRef) {}
}

fn secret(number: u32) -> Secret {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    Secret(bytes)
}

fn address(number: u32) -> Address {
    let locator = SocketAddr::from(((0x0a00_0000 + number).to_be_bytes(), 4_000));
    let (as_id, subnet, key) = (AsId(1), SubnetId(1), public_key(&secret(number)));
    Address { as_id, subnet, locator, incarnation: number + 1, key }
}

fn endpoint(number: u32) -> Engine {
    Engine::new(Config::new(address(number)).closed(secret(number)))
}

/// All that the engine writes, on any lane.
fn written(engine: &mut Engine) -> Vec<u8> {
    let (mut all, mut batch) = (Vec::new(), Batch::default());
    while let Some(lane) = engine.next_ready() {
        batch.clear();
        if engine.transmit(lane, &mut batch, &mut Nothing) {
            all.extend_from_slice(&batch.bytes);
            engine.written(lane, &mut Nothing);
        }
    }
    all
}

fn hear(engine: &mut Engine, lane: LaneId, mut bytes: &[u8]) {
    while let Some(frame) = Frame::decode(bytes).expect("a frame") {
        let whole = frame.header_len() + frame.payload_len() as usize;
        engine.handle(0, lane, &frame, &bytes[frame.header_len()..whole], &mut Nothing).expect("admitted");
        bytes = &bytes[whole..];
    }
}

/// Greets the listener with an empty message. `seals`: the lane is to be encrypted, which the shell does.
fn call(caller: &mut Engine, listener: &Address, seals: bool) -> (LaneId, Vec<u8>) {
    let peer = caller.peer(listener).expect("within reach");
    let (channel, options) = (Channel::Tagged, Options::default());
    let request = SendRequest { peer, channel, tag: 1, data: None, options };
    caller.send(&request, BufferRef { token: 0, list: 0 }, 0, &mut Nothing).expect("posted");
    let Some(Action::Dial { lane, .. }) = caller.poll_action() else { panic!("no lane is wanted") };
    if seals {
        caller.seal_lane(lane);
    }
    caller.lane_connected(0, lane);
    (lane, written(caller))
}

/// The time of the listener and that of the callers.
fn round(seals: bool) -> [Duration; 2] {
    let mut listener = endpoint(0);
    let mut callers: Vec<_> = (1..=CALLERS).map(endpoint).collect();
    let to = address(0);
    let [mut listening, mut calling] = [Duration::ZERO; 2];
    for caller in &mut callers {
        let begun = Instant::now();
        let (lane, hello) = call(caller, &to, seals);
        let called = Instant::now();
        let ours = listener.lane_accepted();
        hear(&mut listener, ours, &hello);
        let welcome = written(&mut listener);
        let answered = Instant::now();
        hear(caller, lane, &welcome);
        listening += answered - called;
        calling += called - begun + answered.elapsed();
    }
    [listening, calling]
}

fn main() {
    for (name, seals) in [("plain lanes", false), ("encrypted lanes", true)] {
        let rounds: Vec<_> = (0..ROUNDS).map(|_| round(seals)).collect();
        let best = |side: usize| rounds.iter().map(|round| round[side]).min().unwrap_or_default() / CALLERS;
        let (listener, caller) = (best(0), best(1));
        println!(
            "{name}: listener {:.0} us a handshake, {:.0} a second; caller {:.0} us",
            listener.as_secs_f64() * 1e6,
            1.0 / listener.as_secs_f64(),
            caller.as_secs_f64() * 1e6
        );
    }
}
