//! Golden vectors, written by hand and never regenerated, and the codec's two properties.

use proptest::prelude::*;

use super::*;

fn bytes_of(frame: impl Into<Frame>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.into().encode(&mut out);
    out
}

fn golden(frame: impl Into<Frame>, expected: &[u8]) {
    let frame = frame.into();
    assert_eq!(bytes_of(frame), expected, "{frame}");
    assert_eq!(Frame::decode(expected), Ok(Some(frame)));
    assert_eq!(Frame::decode(&expected[..expected.len() - 1]), Ok(None), "a short header waits for more");
}

const ADDRESS: [u8; 32] = [
    0xA5, 1, 0x11, 0xD7, 0, 0, 0, 3, 0, 0, 0, 7, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff,
    0xff, 10, 1, 2, 3,
];

fn address() -> Address {
    "isthmus://3.7/10.1.2.3:4567#deadbeef".parse().expect("an address")
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn golden_vectors_of_the_handshake() {
    golden(
        Hello {
            magic: MAGIC,
            version: 3,
            source: address(),
            target: address(),
            credit: 0x1234,
            hops: 3,
            oldest: 0x0201,
            payload: 104,
        },
        &joined(&[
            &[1],
            b"ISTH",
            &[3, 0],
            &ADDRESS,
            &ADDRESS,
            &[0x34, 0x12, 0, 0, 0, 0, 0, 0, 3, 1, 2, 104, 0, 0, 0],
        ]),
    );
    golden(
        Welcome { magic: MAGIC, version: 3, source: address(), credit: 1, payload: 99 },
        &joined(&[&[2], b"ISTH", &[3, 0], &ADDRESS, &[1, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0]]),
    );
    golden(
        Refuse { magic: MAGIC, version: 4, reason: 1, oldest: 3 },
        &joined(&[&[3], b"ISTH", &[4, 0, 1, 3, 0]]),
    );
    golden(Ping { id: 9 }, &[34, 9, 0, 0, 0, 0, 0, 0, 0]);
    golden(Pong { id: 9 }, &[35, 9, 0, 0, 0, 0, 0, 0, 0]);
    golden(Bye { connection: 5 }, &[36, 5, 0, 0, 0]);
    golden(Also { address: address() }, &joined(&[&[37], &ADDRESS]));
}

#[test]
fn a_hello_of_an_older_version_is_known_by_its_start() {
    let start = joined(&[&[1], b"ISTH", &[1, 0]]);
    assert_eq!(Frame::decode(&start), Err(FrameError::Version(1)));
    assert_eq!(Frame::decode(&start[..6]), Ok(None));
    assert_eq!(Frame::decode(&joined(&[&[1], b"ISTH", &[2, 0]])), Err(FrameError::Version(2)));
    assert_eq!(Frame::decode(&joined(&[&[1], b"ISTH", &[3, 0]])), Ok(None));
}

#[test]
fn a_frame_carries_an_address_without_its_key() {
    let key = crate::Key([7; 32]);
    let also = Also { address: Address { key, ..address() } };
    assert_eq!(bytes_of(also), bytes_of(Also { address: address() }));
}

#[test]
fn golden_vectors_of_the_handover_to_a_fabric() {
    golden(
        Offer { magic: MAGIC, version: 1, host: 2, payload: 4 },
        &joined(&[&[4], b"ISTH", &[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]]),
    );
    golden(
        Answer { magic: MAGIC, choice: 255, lane: 3, payload: 4 },
        &joined(&[&[5], b"ISTH", &[255, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]]),
    );
    golden(Settle { moved: 1 }, &[6, 1]);
    golden(Doze { received: 0x0102 }, &[7, 2, 1, 0, 0, 0, 0, 0, 0]);
    golden(Ring { sent: 0x0102 }, &[8, 2, 1, 0, 0, 0, 0, 0, 0]);
    golden(
        Packet { kind: 1, lane: 2, seq: 3, limit: 4, payload: 5 },
        &[9, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0],
    );
}

#[test]
fn golden_vectors_of_messages() {
    golden(
        Message {
            flags: 3,
            connection: 4,
            seq: 5,
            order: 6,
            tag: 7,
            data: 8,
            total: 9,
            eager: 10,
            payload: 11,
        },
        &[
            16, 3, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0,
            0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0,
        ],
    );
    // A message of a group: tagged, in a channel of its own.
    golden(
        Message {
            flags: flags::TAGGED | flags::GROUP,
            connection: 4,
            seq: 5,
            order: 6,
            tag: 7,
            data: 0,
            total: 0,
            eager: 0,
            payload: 0,
        },
        &[
            16, 17, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    );
    golden(
        More { connection: 1, seq: 2, message: 3, offset: 4, payload: 5 },
        &[17, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0],
    );
    golden(
        Accept { connection: 1, seq: 2, message: 3, wanted: 4 },
        &[18, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
    );
    golden(
        Done { connection: 1, seq: 2, token: 3, status: 4 },
        &[19, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4],
    );
}

#[test]
fn golden_vectors_of_remote_memory() {
    golden(
        Write {
            flags: 1,
            connection: 2,
            seq: 3,
            token: 4,
            key: 5,
            addr: 6,
            data: 7,
            total: 8,
            offset: 9,
            payload: 10,
        },
        &[
            20, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0,
            0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 10, 0,
            0, 0,
        ],
    );
    golden(
        Read { connection: 1, seq: 2, token: 3, key: 4, addr: 5, len: 6 },
        &[
            21, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0,
            0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
        ],
    );
    golden(
        Reply { connection: 1, seq: 2, token: 3, offset: 4, status: 5, payload: 6 },
        &[
            22, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 6, 0,
            0, 0,
        ],
    );
    golden(
        Atomic {
            connection: 1,
            seq: 2,
            order: 3,
            token: 4,
            key: 5,
            addr: 6,
            len: 7,
            kind: 8,
            op: 9,
            datatype: 10,
            payload: 11,
        },
        &[
            23, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0,
            0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 9, 10, 11, 0, 0, 0,
        ],
    );
}

#[test]
fn golden_vectors_of_receives_that_are_announced() {
    golden(
        Announce {
            flags: flags::TAGGED,
            connection: 2,
            seq: 3,
            number: 4,
            order: 5,
            tag: 6,
            ignore: 7,
            room: 0x0102,
        },
        &[
            24, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0,
            0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0,
        ],
    );
    golden(
        Granted { connection: 1, seq: 2, message: 3, offset: 4, payload: 5 },
        &[25, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0],
    );
    golden(
        Resume { connection: 1, seq: 2, message: 3, from: 4, wanted: 5 },
        &[
            26, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0,
            0, 0, 0, 0, 0,
        ],
    );
    golden(
        Withdraw { connection: 1, seq: 2, number: 3 },
        &[27, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
    );
    // The flag of a message whose sender asks for announcements.
    assert_eq!(flags::ANNOUNCE, 32);
}

#[test]
fn golden_vectors_of_acknowledgements() {
    golden(
        Ack { connection: 1, upto: 2, credit: 3 },
        &[32, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
    );
    let mut map = [0; ACK_WORDS];
    map[0] = 5;
    map[7] = 1 << 63;
    golden(
        AckMap { connection: 1, upto: 2, credit: 3, map },
        &joined(&[&[33, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5], &[0; 62], &[0x80]]),
    );
}

#[test]
fn tags_are_unique_and_the_table_is_whole() {
    let mut tags: Vec<_> = TABLE.iter().map(|row| row.tag).collect();
    tags.dedup();
    assert_eq!(tags.len(), TABLE.len());
    assert_eq!(table_markdown().lines().count(), TABLE.len() + 2);
}

#[test]
fn faults_of_a_peer_are_named() {
    assert_eq!(Frame::decode(&[0]), Err(FrameError::Tag(0)));
    assert_eq!(Frame::decode(b"GET / HTTP/1.1"), Err(FrameError::Tag(b'G')));
    let huge = bytes_of(More { connection: 0, seq: 0, message: 0, offset: 0, payload: PAYLOAD_MAX + 1 });
    assert_eq!(Frame::decode(&huge), Err(FrameError::Payload(PAYLOAD_MAX + 1)));
    assert_eq!(Frame::decode(&[1; 100]), Err(FrameError::Address));
}

proptest! {
    #[test]
    fn any_bytes_decode_without_panic_and_again_to_the_same(tag in 0u8..40, mut bytes: Vec<u8>) {
        bytes.insert(0, tag);
        bytes.resize(bytes.len() + HEADER_MAX, 0);
        if let Ok(Some(frame)) = Frame::decode(&bytes) {
            let encoded = bytes_of(frame);
            prop_assert_eq!(encoded.len(), frame.header_len());
            prop_assert_eq!(Frame::decode(&encoded), Ok(Some(frame)));
        }
    }
}
