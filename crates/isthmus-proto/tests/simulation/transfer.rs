//! Message transfer: measures how fast each protocol is. A share of the receives is posted ahead of their messages, the
//! others one after the other, each when the one before is done. The adaptive protocol must be about as fast as the
//! best of the others.
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-proto --test simulation transfer` writes the table anew.

use std::fmt::Write;

use isthmus_proto::{Channel, Config, Transfer, Transfers};

use crate::floors::{self, Better};
use crate::program::{How, Program};
use crate::rng::Rng;
use crate::world::{Net, World};

const TABLE: &str = "tests/simulation/transfer.txt";
/// Rate and one-way delay of the path: 300 kB under way fill it. Bytes/s (100 Mb/s) and microseconds.
const RATE: u64 = 12_500_000;
const DELAY_US: u64 = 12_000;
const BYTES: u64 = 32 << 10;
const MESSAGES: usize = 480;
/// The first messages, by which the sender learns about the peer. Count; their time is not measured.
const FIRST: usize = 80;
/// Sends, and receives posted ahead, that a program has under way.
const AHEAD: usize = 32;
/// Shares of receives that are posted ahead. Percent.
const SHARES: [u64; 7] = [0, 25, 50, 75, 90, 98, 100];
/// The same shares if packets are lost.
const SHARES_LOSSY: [u64; 4] = [0, 50, 90, 100];

/// The conditions of a measurement.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// Length of messages. Bytes.
    bytes: u64,
    credit: u64,
    /// Writes of at most 16 KiB that are lost, of a thousand.
    lost: u64,
    seeds: u64,
}

/// Share of the link that messages fill, on average over the seeds.
fn share_of_link(transfer: Transfer, setting: Setting, share: u64) -> f64 {
    let rates = (7..7 + setting.seeds).map(|seed| throughput(transfer, setting, share, seed));
    rates.sum::<f64>() / setting.seeds as f64 / RATE as f64
}

/// Rate at which messages arrive. Bytes/s.
fn throughput(transfer: Transfer, setting: Setting, share: u64, seed: u64) -> f64 {
    let Setting { bytes, credit, lost, .. } = setting;
    let net = Net {
        delay: (DELAY_US, DELAY_US),
        chunk_max: 16 << 10,
        buffer: 600_000,
        fill: 0,
        lost,
        rate: RATE,
        ..Net::calm()
    };
    let config = |config| Config { transfers: transfer.into(), credit, streams: 1, ..config };
    let mut program = Program::new(World::new(seed, 2, net, config));
    // The lane comes up before the measurement.
    program.recv(1, Some(0), Channel::Tagged, Some(0), 64);
    program.send(0, 1, Channel::Tagged, 0, 64, How::default());
    program.settle();
    let mut rng = Rng::new(share + 1_000 * (seed - 7));
    let ahead: Vec<bool> = (0..MESSAGES).map(|_| rng.chance(10 * share)).collect();
    let mut began = 0;
    let (mut sends, mut receives) = (Vec::new(), vec![None; MESSAGES]);
    let (mut sent, mut received) = (0, 0);
    while received < MESSAGES {
        while sent < sends.len() && program.is_over(sends[sent]) {
            sent += 1;
        }
        while sends.len() < (sent + AHEAD).min(MESSAGES) {
            let class = (sends.len() % 200) as u64;
            program.send(0, 1, Channel::Tagged, class, bytes, How::default());
            sends.push(program.newest());
        }
        while received < MESSAGES && receives[received].is_some_and(|context| program.is_over(context)) {
            received += 1;
            if received == FIRST {
                began = program.world.now;
            }
        }
        for next in received..(received + AHEAD).min(MESSAGES) {
            if receives[next].is_none() && (ahead[next] || next == received) {
                let class = Some((next % 200) as u64);
                receives[next] = Some(program.recv(1, Some(0), Channel::Tagged, class, bytes));
            }
        }
        // A receive whose message has come is over at once. Then nothing may be under way.
        if received < MESSAGES && !receives[received].is_some_and(|context| program.is_over(context)) {
            assert!(program.world.step(), "{transfer}: {received} messages, and nothing happens");
            program.check();
        }
    }
    let took = program.world.now - began;
    program.finish();
    ((MESSAGES - FIRST) as u64 * bytes) as f64 * 1e6 / took as f64
}

#[test]
fn another_way_is_taken_to_one_host_while_messages_wait_for_credit() {
    let net = Net { delay: (DELAY_US, DELAY_US), ..Net::calm() };
    let config = |config| Config { transfers: Transfer::Eager.into(), credit: 64 << 10, ..config };
    let mut program = Program::new(World::new(7, 3, net, config));
    // The engine learns the round trips first.
    for to in [1, 2] {
        program.recv(to, Some(0), Channel::Tagged, Some(0), 64);
        program.send(0, to, Channel::Tagged, 0, 64, How::default());
    }
    program.settle();
    let counted = |program: &Program| {
        let counters = program.world.nodes[0].engine.counters();
        (counters.messages_eager - 2, counters.messages_asked)
    };
    for _ in 0..4 {
        for to in [1, 2] {
            program.send(0, to, Channel::Tagged, 0, BYTES, How::default());
        }
    }
    // Two messages to each peer have gone and used all of the credit; two wait.
    program.run_until(program.world.now + 3 * DELAY_US);
    assert_eq!(counted(&program), (4, 0));
    let host = crate::world::locator(1, 0).ip();
    let mut transfers = Transfers::from(Transfer::Eager);
    transfers.all.set(Some(host.into()), Transfer::Rendezvous);
    program.world.nodes[0].engine.set_transfers(transfers);
    program.world.pump(0);
    assert_eq!(counted(&program), (4, 2), "those to the one host ask at once, the others still wait");
    for to in [1, 2] {
        for _ in 0..4 {
            program.recv(to, Some(0), Channel::Tagged, Some(0), BYTES);
        }
    }
    program.finish();
}

#[test]
fn the_choice_by_measurement_is_as_fast_as_the_best_of_those_it_is_between() {
    let mut text = format!(
        "Share of the link that messages fill, by the share of receives that are posted ahead; 24 ms, 100 Mb/s,\n\
         {AHEAD} under way, behind the first {FIRST}; where packets are lost, of several seeds on average.\n"
    );
    let mut short = Vec::new();
    for lost in [0, 3] {
        for bytes in [12 << 10, BYTES, 96 << 10] {
            for credit in [1 << 20, 128 << 10] {
                // Each length gets about as many losses, and enough that their positions do not matter.
                let seeds = if lost == 0 { 1 } else { (288 << 10) / bytes };
                compare(Setting { bytes, credit, lost, seeds }, &mut text, &mut short);
            }
        }
    }
    floors::compare(env!("CARGO_MANIFEST_DIR"), TABLE, &text, &[Better::More(0.02)]);
    assert!(short.is_empty(), "slower than a protocol that was chosen beforehand: {short:?}");
}

/// Adds the result of each protocol to the table, and the cases in which the adaptive one falls short to the list.
fn compare(setting: Setting, text: &mut String, short: &mut Vec<String>) {
    let head = format!("{} KiB, credit {} KiB", setting.bytes >> 10, setting.credit >> 10);
    let lossy = if setting.lost > 0 { format!(", {} of 1000 lost", setting.lost) } else { String::new() };
    let _ = write!(text, "\n{:<38}", head + &lossy);
    let shares: &[u64] = if setting.lost > 0 { &SHARES_LOSSY } else { &SHARES };
    shares.iter().for_each(|share| *text += &format!("{:>7}", format!("{share}%")));
    text.push('\n');
    let rows = Transfer::ALL.map(|(transfer, name)| {
        let row: Vec<_> = shares.iter().map(|share| share_of_link(transfer, setting, *share)).collect();
        let _ = write!(text, "{name:>38}");
        row.iter().for_each(|value| *text += &format!("{value:>7.3}"));
        text.push('\n');
        row
    });
    for (at, share) in shares.iter().enumerate() {
        // A value may exceed 1: parts of incomplete messages came before the measurement.
        let best = rows[1..].iter().map(|row| row[at]).fold(0.0, f64::max).min(1.0);
        if rows[0][at] < 0.97 * best {
            short.push(format!("{share} %, {setting:?}: {:.3} of {best:.3}", rows[0][at]));
        }
    }
}
