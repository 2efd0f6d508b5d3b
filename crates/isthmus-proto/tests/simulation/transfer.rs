//! Message transfer: the experiment of the protocols for MPI that a transport can be configured for.
//! A share of receives is posted ahead of their messages, the others one after the other, each
//! when the one before is done; how fast is each protocol, and is the choice made by measurement as
//! fast as the best of them?
//!
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-proto --test simulation transfer` writes the table anew.

use std::fmt::Write;
use std::path::Path;

use isthmus_proto::{Channel, Config, Transfer};

use crate::program::{How, Program};
use crate::rng::Rng;
use crate::world::{Net, World};

const TABLE: &str = "tests/simulation/transfer.txt";
/// 100 Mb/s over 24 ms: 300 kB under way fill the path.
const RATE: u64 = 12_500_000;
const DELAY_US: u64 = 12_000;
const BYTES: u64 = 32 << 10;
const MESSAGES: usize = 480;
/// The first of them, by which the peer becomes known: their time does not count.
const FIRST: usize = 80;
/// Sends, and receives posted ahead, that a program has under way.
const AHEAD: usize = 32;
/// Shares of receives that are posted ahead, of a hundred.
const SHARES: [u64; 7] = [0, 25, 50, 75, 90, 98, 100];

/// Bytes/s that arrive.
fn throughput(transfer: Transfer, credit: u64, share: u64) -> f64 {
    let net = Net {
        delay: (DELAY_US, DELAY_US),
        chunk_max: 16 << 10,
        buffer: 600_000,
        fill: 0,
        rate: RATE,
        ..Net::calm()
    };
    let config = |config| Config { transfer, credit, streams: 1, ..config };
    let mut program = Program::new(World::new(7, 2, net, config));
    // The lane is up before time counts.
    program.recv(1, Some(0), Channel::Tagged, Some(0), 64);
    program.send(0, 1, Channel::Tagged, 0, 64, How::default());
    program.settle();
    let mut rng = Rng::new(share);
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
            program.send(0, 1, Channel::Tagged, class, BYTES, How::default());
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
                receives[next] = Some(program.recv(1, Some(0), Channel::Tagged, class, BYTES));
            }
        }
        if received < MESSAGES {
            assert!(program.world.step(), "{transfer}: {received} messages, and nothing happens");
            program.check();
        }
    }
    let took = program.world.now - began;
    program.finish();
    ((MESSAGES - FIRST) as u64 * BYTES) as f64 * 1e6 / took as f64
}

#[test]
fn another_way_is_taken_to_one_host_while_messages_wait_for_credit() {
    let net = Net { delay: (DELAY_US, DELAY_US), ..Net::calm() };
    let config = |config| Config { transfer: Transfer::Eager, credit: 64 << 10, ..config };
    let mut program = Program::new(World::new(7, 3, net, config));
    // The round trip is known before it counts.
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
    // Two to each have gone, by all the credit that there is; two wait.
    program.run_until(program.world.now + 3 * DELAY_US);
    assert_eq!(counted(&program), (4, 0));
    let host = crate::world::locator(1, 0).ip();
    program.world.nodes[0].engine.set_transfer(Transfer::Eager, vec![(host, Transfer::Rendezvous)]);
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
        "Share of the link that messages of {} KiB fill, by the share of receives that are posted ahead;\n\
         24 ms, 100 Mb/s, {AHEAD} under way, behind the first {FIRST}.\n",
        BYTES >> 10
    );
    let mut short = Vec::new();
    for credit in [1 << 20, 128 << 10] {
        let _ = write!(text, "\ncredit {:>4} KiB {:>10}", credit >> 10, "");
        SHARES.iter().for_each(|share| text += &format!("{:>7}", format!("{share}%")));
        text.push('\n');
        let rows = Transfer::ALL.map(|(transfer, name)| {
            let row = SHARES.map(|share| throughput(transfer, credit, share) / RATE as f64);
            let _ = write!(text, "{name:>26}");
            row.iter().for_each(|value| text += &format!("{value:>7.3}"));
            text.push('\n');
            row
        });
        for (at, share) in SHARES.iter().enumerate() {
            let best = rows[1..].iter().map(|row| row[at]).fold(0.0, f64::max);
            if rows[0][at] < 0.97 * best {
                short.push(format!("{share} %, credit {credit}: {:.3} of {best:.3}", rows[0][at]));
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TABLE);
    if std::env::var_os("ISTHMUS_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, &text).expect("the table can be written");
    }
    let old = std::fs::read_to_string(&path).expect("the table can be read");
    assert!(old == text, "behaviour has changed; if it is meant, write the table anew:\n{text}");
    assert!(short.is_empty(), "slower than a protocol that was chosen beforehand: {short:?}");
}
