//! The protocol by which programs publish and look up names at a router. A client sends a [`crate::frame::Hello`] to
//! the router itself, and then one request. The router sends one answer, or a router on the way sends a
//! [`crate::frame::Refuse`]. A publisher keeps its lane open, and sends a byte now and then to show that it is alive.
//!
//! ```text
//! request   kind u8, length of the name u8, number u16: length of the text, or seconds; name; text
//! answer    code u8 (above 63: no tag of a frame), length of the text u16; text
//! ```

/// Longest name. Bytes.
pub const NAME_MAX: usize = 128;
/// Longest text. Bytes.
pub const TEXT_MAX: usize = 1024;
/// Bytes of a request before the name.
pub const REQUEST_HEAD: usize = 4;
/// Bytes of an answer before the text.
pub const ANSWER_HEAD: usize = 3;

const PUBLISH: u8 = 1;
const LOOK_UP: u8 = 2;

/// A request to a router about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Keep this text under the name as long as the lane lasts.
    Publish {
        /// 1 to [`NAME_MAX`] letters, digits and `-_.:`.
        name: String,
        /// At most [`TEXT_MAX`] bytes.
        text: String,
    },
    /// Asks for the text of a name, and waits for it up to `wait_s` seconds.
    LookUp {
        /// A name as in `Publish`.
        name: String,
        /// Longest wait. Seconds.
        wait_s: u16,
    },
}

/// Whether `name` is allowed as a name.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

impl Request {
    /// The request's bytes. None if the name or the text is too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let (kind, name, number, text) = match self {
            Self::Publish { name, text } => (PUBLISH, name, text.len(), text.as_str()),
            Self::LookUp { name, wait_s } => (LOOK_UP, name, usize::from(*wait_s), ""),
        };
        if !is_name(name) || text.len() > TEXT_MAX {
            return None;
        }
        let mut out = vec![kind, name.len() as u8];
        out.extend_from_slice(&(number as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(text.as_bytes());
        Some(out)
    }

    /// Number of bytes that follow this head. None if it is no head of a request.
    pub fn rest(head: [u8; REQUEST_HEAD]) -> Option<usize> {
        let [kind, name, low, high] = head;
        let number = usize::from(u16::from_le_bytes([low, high]));
        let name = usize::from(name);
        match kind {
            PUBLISH if name <= NAME_MAX && number <= TEXT_MAX => Some(name + number),
            LOOK_UP if name <= NAME_MAX => Some(name),
            _ => None,
        }
    }

    /// Decodes a request from its head and the bytes after it.
    pub fn decode(head: [u8; REQUEST_HEAD], rest: &[u8]) -> Option<Self> {
        if Self::rest(head)? != rest.len() {
            return None;
        }
        let [kind, name, low, high] = head;
        let (name, text) = rest.split_at_checked(usize::from(name))?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name))?.to_owned();
        Some(if kind == PUBLISH {
            let text = std::str::from_utf8(text).ok().filter(|text| !text.contains('\0'))?;
            Self::Publish { name, text: text.to_owned() }
        } else {
            Self::LookUp { name, wait_s: u16::from_le_bytes([low, high]) }
        })
    }
}

/// The answers of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// The name is published.
    Published = 64,
    /// The text of the name follows.
    Found = 65,
    /// Nobody published the name in time.
    Absent = 66,
    /// Somebody else has published it.
    Taken = 67,
    /// The router keeps as many names as it may.
    Full = 68,
    /// Only processes of the router's own AS may publish names.
    Denied = 69,
    /// The router does not understand the request.
    Malformed = 70,
}

impl Answer {
    const ALL: [Self; 7] =
        [Self::Published, Self::Found, Self::Absent, Self::Taken, Self::Full, Self::Denied, Self::Malformed];

    /// The answer's bytes.
    pub fn encode(self, text: &str) -> Vec<u8> {
        let text = text.as_bytes().get(..TEXT_MAX).unwrap_or(text.as_bytes());
        let mut out = vec![self as u8];
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        out.extend_from_slice(text);
        out
    }

    /// Decodes the head of an answer: the answer, and the number of bytes of its text. None if it is no answer.
    pub fn decode(head: [u8; ANSWER_HEAD]) -> Option<(Self, usize)> {
        let answer = Self::ALL.into_iter().find(|answer| *answer as u8 == head[0])?;
        let len = usize::from(u16::from_le_bytes([head[1], head[2]]));
        (len <= TEXT_MAX).then_some((answer, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_have_these_bytes() {
        let publish = Request::Publish { name: "run".to_owned(), text: "ab".to_owned() };
        let look_up = Request::LookUp { name: "run".to_owned(), wait_s: 258 };
        assert_eq!(publish.encode().as_deref(), Some(&b"\x01\x03\x02\x00runab"[..]));
        assert_eq!(look_up.encode().as_deref(), Some(&b"\x02\x03\x02\x01run"[..]));
        for request in [publish, look_up] {
            let bytes = request.encode().expect("short");
            let (head, rest) = bytes.split_first_chunk().expect("a head");
            assert_eq!(Request::rest(*head), Some(rest.len()));
            assert_eq!(Request::decode(*head, rest), Some(request));
        }
        assert_eq!(Answer::Found.encode("x"), b"\x41\x01\x00x");
        assert_eq!(Answer::decode(*b"\x41\x01\x00"), Some((Answer::Found, 1)));
        assert_eq!(Answer::decode(*b"\x03\x01\x00"), None);
        assert_eq!(Answer::decode(*b"\x41\x01\x04"), None, "too long");
    }

    #[test]
    fn names_and_texts_that_are_too_long_are_none() {
        let publish = |name: &str, len| Request::Publish { name: name.to_owned(), text: "t".repeat(len) };
        assert!(publish("a-b_c.d:9", TEXT_MAX).encode().is_some());
        assert!(publish("a", TEXT_MAX + 1).encode().is_none());
        for name in ["", "a/b", "a b", "\u{e4}", &"n".repeat(NAME_MAX + 1)] {
            assert!(publish(name, 1).encode().is_none(), "{name:?}");
        }
        assert_eq!(Request::rest([PUBLISH, 1, 1, 4]), None, "1025 bytes");
        assert_eq!(Request::rest([3, 1, 1, 0]), None, "no such kind");
        assert_eq!(Request::decode([LOOK_UP, 1, 0, 0], b"/"), None);
        assert_eq!(Request::decode([PUBLISH, 1, 1, 0], b"a\0"), None);
    }
}
