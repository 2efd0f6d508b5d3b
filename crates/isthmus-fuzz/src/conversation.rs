//! The substrate's control messages, headers of datagrams and messages, memory handles, and requests to routers
//! that keep names.

use isthmus_wire::MessageHeader;
use isthmus_wire::conversation::{
    ConnectionId, DatagramHeader, End, LETTER_MAX, Letter, MemoryHandle, Objection, PAYLOAD_MAX, Subject,
};
use isthmus_wire::rendezvous::{Answer, NAME_MAX, Request, TEXT_MAX};

/// A control message and a request of every kind, a datagram's header, a memory handle.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let to = ConnectionId::new(1, 2);
    let from = End { id: ConnectionId::new(3, 4), token: 5, udp_port: 6, message_max: 7 };
    let letters = [
        Letter::Connect { version: 1, level: 2, from, payload: b"hello".to_vec() },
        Letter::Accept { to, token: 8, from },
        Letter::Reject { to, token: 8, objection: Objection::Program, reason: 9, payload: b"no".to_vec() },
        Letter::Disconnect { to, sent: 10 },
        Letter::Void { to, ticket: 11 },
    ];
    let mut seeds: Vec<Vec<u8>> = letters.iter().map(encoded).collect();
    for request in [
        Request::Publish { name: "run".to_owned(), text: "a port".to_owned() },
        Request::LookUp { name: "run".to_owned(), wait_s: 18 },
    ] {
        seeds.extend(request.encode());
    }
    seeds.push(Answer::Found.encode("a port"));
    seeds.push(DatagramHeader { to, token: 12 }.to_bytes().to_vec());
    seeds.push(MessageHeader { to: 15, from: 16, data: Some(17) }.to_bytes().to_vec());
    seeds.push(MemoryHandle { key: 13, len: 14, read: true, write: false }.to_bytes().to_vec());
    seeds
}

fn encoded(letter: &Letter) -> Vec<u8> {
    let mut out = Vec::new();
    letter.encode(&mut out);
    out
}

/// Everything that decodes encodes to the same bytes, and stays within its length limits.
pub(crate) fn property(bytes: &[u8]) {
    if let Some(letter) = Letter::decode(bytes) {
        assert_eq!(encoded(&letter), bytes, "{letter:?}");
        assert!(bytes.len() <= LETTER_MAX);
        if let Letter::Connect { payload, .. } | Letter::Reject { payload, .. } = &letter {
            assert!(payload.len() <= PAYLOAD_MAX);
        }
    }
    if let Some((head, rest)) = bytes.split_first_chunk() {
        if let Some(request) = Request::decode(*head, rest) {
            assert_eq!(request.encode().as_deref(), Some(bytes), "{request:?}");
        }
        assert!(Request::rest(*head).is_none_or(|rest| rest <= NAME_MAX + TEXT_MAX));
    }
    if let Some((answer, len)) = bytes.first_chunk().copied().and_then(Answer::decode) {
        assert!(len <= TEXT_MAX && answer as u8 > 63);
    }
    if let Some(header) = DatagramHeader::from_bytes(bytes) {
        assert_eq!(header.to_bytes(), bytes[..DatagramHeader::LEN]);
    }
    if let Some(header) = MessageHeader::from_bytes(bytes) {
        assert_eq!(header.to_bytes(), bytes[..MessageHeader::LEN]);
    }
    if let Some(handle) = bytes.first_chunk().and_then(MemoryHandle::from_bytes) {
        assert_eq!(handle.to_bytes(), bytes[..MemoryHandle::LEN]);
    }
    if let Some(tag) = bytes.first_chunk().copied().map(u64::from_le_bytes)
        && let Some(subject) = Subject::from_tag(tag)
    {
        assert_eq!(Subject::from_tag(subject.to_tag()), Some(subject));
    }
}
