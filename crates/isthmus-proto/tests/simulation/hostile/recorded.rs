//! Recorded bytes of release 0.2.0 (`tools/release.env`), answered by this build. `make versions` runs the release
//! itself.

use data_encoding::HEXLOWER;
use isthmus_proto::{Config, Engine};
use isthmus_wire::frame::Frame;

use super::admission::End;
use crate::arena::Arena;
use crate::world::address;

/// Hello of process 1 to process 0, the proof that it knows its address, and a message.
const CLOSED: &str = "01495354480300a50103e900000001000000010000000200000000000000000000ffff7f000002a50103e80000000100\
    0000010000000100000000000000000000ffff7f000001000080000000000000030068000000dffc185ac620a49208058c6caba3dfe397c0cf27\
    69dc111f66517d14eaf61946bb1df85eb208d19bc484bbb8824789fe5413f25bce36c0e9267e68386f6b196fb0178595cbeb885fae541b01cca6\
    0d2d11a0860a581ae58636489196fd2759cefe58f2dcdcaa1bdb1009000000000000000000000000000000000000000001000000000000000000\
    00000000000005000000000000000500000000000000050000006669727374";
/// The same bytes of an endpoint that admits everybody.
const OPEN: &str = "01495354480300a50103e900000001000000010000000200000000000000000000ffff7f000002a50103e8000000010000\
    00010000000100000000000000000000ffff7f000001000080000000000000030000000000100900000000000000000000000000000000000000\
    000100000000000000000000000000000005000000000000000500000000000000050000006669727374";
/// The answer of process 0 to [`OPEN`]: Welcome and Ping.
const OPEN_ANSWER: &str = "02495354480300a50103e800000001000000010000000100000000000000000000ffff7f000001000080000000000\
    000000000220000000000000000";

fn bytes(recorded: &str) -> Vec<u8> {
    HEXLOWER.decode(recorded.as_bytes()).expect("hexadecimal")
}

fn open(node: usize) -> End {
    End { engine: Engine::new(Config::new(address(node).place())), mem: Arena::default() }
}

#[test]
fn a_call_of_the_release_is_answered() {
    for (mut own, said) in [(End::new(0, 0), CLOSED), (open(0), OPEN)] {
        let lane = own.accept();
        own.receive(None);
        own.hear(lane, &bytes(said)).expect("the release's Hello");
        assert_eq!(own.received(), 1);
        let Ok(Some(Frame::Welcome(welcome))) = Frame::decode(&own.written(lane)) else {
            panic!("no Welcome")
        };
        assert_eq!(welcome.version, 3);
    }
}

#[test]
fn an_answer_of_the_release_is_taken() {
    let mut own = open(1);
    let (lane, said) = own.call(address(0).place(), b"first");
    // An older build accepts only bytes like its own, so this build must call exactly as the release did.
    assert_eq!(said, bytes(OPEN));
    own.hear(lane, &bytes(OPEN_ANSWER)).expect("the release's Welcome");
    assert!(own.engine.poll_lost().is_none());
}
