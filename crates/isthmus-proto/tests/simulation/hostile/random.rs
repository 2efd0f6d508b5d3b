//! Random frames in random states, beside operations of the program's own.

use isthmus_proto::{
    Action, Channel, LaneId, LaneLoss, Options, PeerFault, PeerId, RecvRequest, RemoteRange, RmaRequest,
};
use isthmus_wire::frame::{self, ACK_WORDS, Frame, MAGIC, PROTOCOL_OLDEST, PROTOCOL_VERSION};

use super::{Victim, address, hello, send};
use crate::arena::KEY;
use crate::rng::Rng;

/// A number that is likely to break arithmetic.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => u64::MAX - rng.below(3),
        1 => 1 << rng.below(64),
        2 => rng.word(),
        _ => rng.below(40),
    }
}

fn any_frame(rng: &mut Rng, seq: u64, tokens: &[u64]) -> Frame {
    let seq = if rng.chance(850) { seq } else { number(rng) };
    let token = if tokens.is_empty() || rng.chance(300) { number(rng) } else { rng.pick(tokens) };
    let payload = if rng.chance(900) { rng.below(300) } else { rng.below(70_000) } as u32;
    let (connection, addr, offset) = (0, number(rng), number(rng));
    let key = if rng.chance(700) { KEY } else { number(rng) };
    let order = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
    let total = if rng.chance(600) { u64::from(payload) + rng.below(100) } else { number(rng) };
    let eager = if rng.chance(600) { total } else { number(rng) };
    let (tag, data, flags) = (rng.below(2), number(rng), rng.below(64) as u8);
    let status = rng.below(6) as u8;
    match rng.below(22) {
        17..=18 => {
            let message = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
            frame::Granted { connection, seq, message, offset, payload }.into()
        }
        19 => {
            let (number, room, ignore) = (rng.below(4) as u32, number(rng), rng.below(2));
            frame::Announce { flags, connection, seq, number, order, tag, ignore, room }.into()
        }
        20 => {
            let (message, from, wanted) = (number(rng), number(rng), number(rng));
            frame::Resume { connection, seq, message, from, wanted }.into()
        }
        21 => frame::Withdraw { connection, seq, number: rng.below(4) as u32 }.into(),
        0..=3 => frame::Message { flags, connection, seq, order, tag, data, total, eager, payload }.into(),
        4..=5 => {
            let message = if rng.chance(800) { rng.below(seq.saturating_add(1)) } else { number(rng) };
            frame::More { connection, seq, message, offset, payload }.into()
        }
        6 => frame::Accept { connection, seq, message: number(rng), wanted: number(rng) }.into(),
        7 => frame::Done { connection, seq, token, status }.into(),
        8 => frame::Write { flags, connection, seq, token, key, addr, data, total, offset, payload }.into(),
        9 => frame::Read { connection, seq, token, key, addr, len: total }.into(),
        10 => frame::Reply { connection, seq, token, offset, status, payload }.into(),
        11 => {
            let (kind, op, datatype) = (rng.below(4) as u8, rng.below(22) as u8, rng.below(15) as u8);
            let len = if rng.chance(500) { u64::from(payload) } else { total };
            frame::Atomic { connection, seq, order, token, key, addr, len, kind, op, datatype, payload }
                .into()
        }
        12 => frame::Ack { connection, upto: number(rng), credit: number(rng) }.into(),
        13 => {
            let map = [(); ACK_WORDS].map(|()| rng.word());
            frame::AckMap { connection, upto: rng.below(20), credit: number(rng), map }.into()
        }
        14 => frame::Ping { id: 1 }.into(),
        15 => frame::Pong { id: 1 }.into(),
        _ if rng.chance(50) => frame::Bye { connection }.into(),
        _ => frame::Ack { connection, upto: rng.below(10), credit: number(rng) }.into(),
    }
}

fn assault(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut victim = Victim::new();
    let peer = victim.engine.peer(&address(1)).unwrap();
    let mut tokens = Vec::new();
    let mut seq = 0;
    for _ in 0..rng.below(300) {
        victim.now += rng.below(2_000_000);
        if victim.lanes.len() < 3 && rng.chance(300) {
            greet(&mut victim, &mut rng);
        }
        if rng.chance(150) {
            post(&mut victim, &mut rng, peer);
        }
        if let Some(&lane) = victim.lanes.get(rng.below(4) as usize) {
            let frame = any_frame(&mut rng, seq, &tokens);
            seq += u64::from(rng.chance(950));
            if speak(&mut victim, &mut rng, lane, &frame).is_err() || rng.chance(20) {
                victim.lanes.retain(|other| *other != lane);
                victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
            }
        }
        if rng.chance(700) {
            for frame in victim.drain() {
                match frame {
                    Frame::Write(write) => tokens.push(write.token),
                    Frame::Read(read) => tokens.push(read.token),
                    Frame::Atomic(atomic) => tokens.push(atomic.token),
                    _ => {}
                }
            }
        }
        victim.engine.flush_acks();
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        while victim.engine.poll_completion().is_some() {}
        while let Some(action) = victim.engine.poll_action() {
            obey(&mut victim, &mut rng, action);
        }
        assert!(victim.engine.held().iter().all(|(held, granted)| held <= granted));
    }
}

fn greet(victim: &mut Victim, rng: &mut Rng) {
    let lane = victim.engine.lane_accepted();
    let hello = hello(number(rng));
    if victim.say(lane, hello, &[]).is_ok() {
        victim.lanes.push(lane);
    }
}

fn obey(victim: &mut Victim, rng: &mut Rng, action: Action) {
    match action {
        Action::Dial { lane, .. } if rng.chance(500) => {
            victim.engine.lane_connected(victim.now, lane);
            let welcome = frame::Welcome {
                magic: MAGIC,
                version: PROTOCOL_VERSION,
                source: if rng.chance(900) { address(1) } else { address(2) },
                credit: number(rng),
                payload: 0,
            };
            let refuse = frame::Refuse {
                magic: MAGIC,
                version: 9,
                reason: rng.below(6) as u8,
                oldest: PROTOCOL_OLDEST,
            };
            let first: Frame = if rng.chance(950) { welcome.into() } else { refuse.into() };
            match victim.say(lane, first, &[]) {
                Ok(()) => victim.lanes.push(lane),
                Err(_) => victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem),
            }
        }
        Action::Dial { lane, .. } => {
            let loss = if rng.chance(100) { LaneLoss::Refused } else { LaneLoss::Broken("no".into()) };
            victim.engine.lane_lost(victim.now, lane, &loss, &mut victim.mem);
        }
        Action::Recall { .. } => panic!("nothing was borrowed"),
        Action::Abandon { lane } | Action::Close { lane } => {
            if rng.chance(500) {
                victim.lanes.retain(|other| *other != lane);
                victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
            }
        }
    }
}

fn speak(victim: &mut Victim, rng: &mut Rng, lane: LaneId, frame: &Frame) -> Result<(), PeerFault> {
    if let Some(left) = victim.engine.streaming(lane) {
        if rng.chance(300) && victim.engine.sink(lane).is_some() {
            return victim.engine.filled(lane, rng.below(left + 1), &mut victim.mem);
        }
        let bytes = vec![9; rng.below(left + 1) as usize];
        return victim.engine.feed(lane, &bytes, &mut victim.mem).map(|_| ());
    }
    let payload = vec![7; frame.payload_len() as usize];
    if !payload.is_empty() && rng.chance(400) {
        return victim.engine.begin(victim.now, lane, frame, &mut victim.mem);
    }
    victim.engine.handle(victim.now, lane, frame, &payload, &mut victim.mem)
}

fn post(victim: &mut Victim, rng: &mut Rng, peer: PeerId) {
    let len = rng.below(200_000);
    match rng.below(4) {
        0 => send(victim, peer, len),
        1 => {
            let writes = rng.chance(500);
            let place = victim.mem.lend(vec![0; len as usize], !writes, false);
            let options = Options::default();
            let request =
                RmaRequest { peer, remote: RemoteRange { key: KEY, addr: 0, len }, data: None, options };
            let Victim { engine, mem, .. } = victim;
            if writes { engine.write(&request, place, mem) } else { engine.read(&request, place, mem) }
                .unwrap();
        }
        _ => {
            let place = victim.mem.lend(vec![0; len as usize], true, false);
            let channel = rng.pick(&[Channel::Tagged, Channel::Untagged]);
            let multi = (channel == Channel::Untagged && rng.chance(500)).then_some(100);
            let request = RecvRequest {
                source: rng.chance(500).then_some(peer),
                channel,
                tag: rng.below(2),
                ignore: 0,
                multi,
                options: Options::default(),
            };
            victim.engine.recv(&request, place, len, &mut victim.mem);
        }
    }
}

#[test]
fn any_frames_in_any_state_never_panic() {
    crate::storms::for_seeds("any_frames", 9_000_000, 3000, assault);
}
