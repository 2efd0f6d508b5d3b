//! The frame decoder.

use isthmus_wire::Frame;
use isthmus_wire::frame::{HEADER_MAX, PAYLOAD_MAX, TABLE};

use crate::address;

/// A frame of every kind, with a sample address in each address field and small numbers elsewhere.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let blank = |row: &isthmus_wire::frame::Row| {
        let mut bytes = vec![row.tag];
        for (name, kind) in row.fields {
            match (*name, *kind) {
                ("magic", _) => bytes.extend_from_slice(b"ISTH"),
                ("version", _) => bytes.extend_from_slice(&[2, 0]),
                (_, "Address") => bytes.extend_from_slice(&address::sample().place_bytes()),
                (_, "u8") => bytes.push(1),
                (_, "u32") => bytes.extend_from_slice(&[2, 0, 0, 0]),
                (_, "u64") => bytes.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0]),
                _ => bytes.resize(row.header_len, 0),
            }
        }
        bytes
    };
    TABLE.iter().map(blank).collect()
}

/// A frame that decodes encodes to the same bytes. The decoder uses no byte beyond the header,
/// and waits for more if the header is incomplete.
pub(crate) fn property(bytes: &[u8]) {
    let answer = Frame::decode(bytes);
    if let Ok(Some(frame)) = answer {
        let (header, beyond) = bytes.split_at(frame.header_len());
        assert!(header.len() <= HEADER_MAX && frame.payload_len() <= PAYLOAD_MAX);
        let mut again = Vec::new();
        frame.encode(&mut again);
        assert_eq!(again, header, "{frame}");
        assert_eq!(Frame::decode(header), Ok(Some(frame)), "{} bytes behind it count", beyond.len());
        assert_eq!(Frame::decode(&header[..header.len() - 1]), Ok(None));
        // Logs show it to people.
        assert!(frame.to_string().is_ascii());
    }
    if answer == Ok(None) {
        let mut whole = bytes.to_vec();
        whole.resize(HEADER_MAX, 0);
        assert!(bytes.len() < HEADER_MAX && Frame::decode(&whole) != Ok(None), "waits in vain");
    }
}
