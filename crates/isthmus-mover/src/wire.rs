//! The messages of the two sides: control messages, and the headers of blocks.
//!
//! Both are encoded by `postcard` and have a maximum length. A version never changes a variant's position or fields.
//!
//! The client's first message has the oldest version that it speaks, because older services refuse versions that they
//! do not know. With certificates both ends then speak the newest common version, which TLS finds
//! ([`PROTOCOLS`](crate::channel::PROTOCOLS)). Without certificates they speak the version of the first message.

use isthmus_wire::Versions;
use serde::{Deserialize, Serialize};

/// The versions of this protocol.
pub const VERSIONS: Versions = Versions { oldest: 6, newest: 7 };
/// The first version that has [`Control::SenderLimit`].
pub const SENDER_LIMIT_SINCE: u16 = 7;
/// Longest control message. Bytes.
pub const CONTROL_MAX: usize = 256 << 10;
/// Longest header of a block. Bytes.
pub const HEADER_MAX: usize = 32 << 10;
/// Limit on the files with pieces in one block, so that a header fits.
pub const PIECES_MAX: usize = 500;
/// Entries of one message are kept below this. Bytes.
pub const BATCH_MAX: usize = 48 << 10;
/// Limit on the extended attributes of one entry. Bytes.
pub const XATTRS_MAX: usize = 64 << 10;
/// Limit on entries that are announced and not settled; it bounds the receiver's memory.
pub const ENTRIES_OPEN: usize = 16 << 10;
/// Limit on the paths, attributes and verdicts of all these entries at a receiver. Bytes. A sender stops at half of it.
pub const ENTRIES_BYTES: usize = 64 << 20;
/// Smallest number of blocks of each process that shares a file; shorter files are not split.
const SPLIT_BLOCKS: u64 = 16;
/// Limit on processes that share a file.
pub const RANKS_MAX: u32 = 4096;
/// The path of the top folder, if the contents of a folder are copied and not the folder itself.
pub const ITSELF: &[u8] = b".";
/// Sizes that a block may have: powers of two, so that it is a subtree of BLAKE3's tree. Bytes.
pub const BLOCK_SIZES: std::ops::RangeInclusive<u64> = (64 << 10)..=(16 << 20);

/// Why bytes are no valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Longer than allowed.
    #[error("a message of {0} bytes is longer than this protocol allows")]
    TooLong(usize),
    /// Not decodable.
    #[error("a message that cannot be read; use the same isthmus release on both sides")]
    Garbled,
    /// Decodable, but the values are invalid.
    #[error("a message that makes no sense: {0}")]
    Nonsense(&'static str),
}

/// A time of a file: seconds since 1970, nanoseconds.
pub type Time = (i64, u32);

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// From the client: its request.
    Open(Open),
    /// From the server: it grants the request.
    Opened {
        /// Name of a single file at the destination, if it differs.
        name: Option<Vec<u8>>,
    },
    /// From the sender: entries to copy.
    Entries(Vec<Entry>),
    /// From the sender: the tree has been walked. These are the totals.
    Walked {
        /// Files.
        files: u64,
        /// Their lengths. Bytes.
        bytes: u64,
    },
    /// From the receiver: the parts of the files that it wants.
    Answers(Vec<(u64, Answer)>),
    /// From the sender: the result of reading files, for files of several blocks and for failed ones.
    Closes(Vec<(u64, Verdict)>),
    /// From the receiver: the outcomes of entries.
    Outcomes(Vec<(u64, Outcome)>),
    /// From both, about twice a second: the progress.
    Status(Status),
    /// From the sender: something that is not copied, for the user.
    Warning(Trouble),
    /// From the sender: all is settled.
    Finished,
    /// The session ends for this reason.
    Fault(String),
    /// From the sender: something that should have been copied and could not, for the user.
    Trouble(Trouble),
    /// The session ends for this reason, which is no refusal. The same command can continue it.
    GivenUp(String),
    /// From the sender: the most bytes a second that its administrator lets it send (`rate_limit`). Only from version
    /// [`SENDER_LIMIT_SINCE`] on.
    SenderLimit(u64),
}

/// Something that is not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Path at the destination, or as the user wrote it if there is none.
    pub path: Vec<u8>,
    /// Why; it begins with the path at the source.
    pub text: String,
}

/// The direction of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferRequest {
    /// From the client to the server's export, under this path.
    Put {
        /// Below the export.
        path: Vec<u8>,
        /// The path names a folder to copy into: it ended in a slash, or there are several sources.
        folder: bool,
    },
    /// From the server's export to the client.
    Get {
        /// Below the export, as the user wrote them.
        paths: Vec<Vec<u8>>,
        /// The choice of files.
        choice: Choice,
    },
}

/// The choice of files of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Folders with what is in them.
    pub recursive: bool,
    /// Patterns of what is left out.
    pub exclude: Vec<String>,
    /// Patterns of what is taken all the same.
    pub include: Vec<String>,
    /// This process's share of the files, if several processes copy one tree.
    pub share: Share,
}

/// One process's share of a tree that several copy. Every process copies all folders. The path of a file decides which
/// process copies it. Each process copies a range of blocks of a long file. So the processes need not talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The number of this process, from 0 on.
    pub rank: u32,
    /// The number of processes.
    pub ranks: u32,
}

impl Default for Share {
    /// All files.
    fn default() -> Self {
        Self { rank: 0, ranks: 1 }
    }
}

impl Share {
    /// Whether a file is so long that each process takes some of it.
    pub fn splits(self, size: u64, block: u64) -> bool {
        self.ranks > 1 && size.div_ceil(block) / u64::from(self.ranks) >= SPLIT_BLOCKS
    }

    /// Whether a file of this many blocks can have this share.
    pub fn is_sound(self, blocks: u64) -> bool {
        self == Self::default()
            || self.rank < self.ranks && self.ranks <= RANKS_MAX && u64::from(self.ranks) <= blocks
    }

    /// Its range of a file's blocks.
    pub fn blocks(self, blocks: u64) -> std::ops::Range<u64> {
        let at = |rank: u64| {
            let at = u128::from(blocks) * u128::from(rank) / u128::from(self.ranks.max(1));
            u64::try_from(at).unwrap_or(u64::MAX).min(blocks)
        };
        at(u64::from(self.rank))..at(u64::from(self.rank) + 1)
    }

    /// Bytes of the file that belong to it.
    pub fn bytes(self, size: u64, block: u64) -> u64 {
        let range = self.blocks(size.div_ceil(block));
        range.end.saturating_mul(block).min(size) - range.start.saturating_mul(block).min(size)
    }

    /// Whether something at this path of the destination belongs to it.
    pub fn takes(self, path: &[u8]) -> bool {
        if self.ranks <= 1 {
            return true;
        }
        let hash = isthmus_digest::of(path);
        let number = hash.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        number % u64::from(self.ranks) == u64::from(self.rank)
    }
}

/// Rules for existing files, and for when a file counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Leave files alone that are newer at the destination.
    pub update: bool,
    /// Send even files of equal length and time.
    pub all: bool,
    /// A file is on the disk before it is reported.
    pub sync: bool,
    /// Change nothing, only say what would be done.
    pub dry_run: bool,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The oldest of the client's [`VERSIONS`].
    pub version: u16,
    /// Name of the export.
    pub export: String,
    /// The direction.
    pub way: TransferRequest,
    /// How.
    pub rules: Rules,
    /// Bytes of a block, one of [`BLOCK_SIZES`].
    pub block: u64,
    /// Most bytes a second that the sender sends; 0: as many as there is room for.
    pub rate: u64,
    /// Identifies the transfer. Repeated runs of one command have the same value, and a new run replaces an older one.
    pub transfer: [u8; 16],
}

/// Something to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number, rising from 0 without a gap.
    pub id: u64,
    /// Path below the destination; for a folder perhaps [`ITSELF`].
    pub path: Vec<u8>,
    /// Its kind.
    pub kind: Kind,
    /// Its attributes.
    pub meta: Meta,
}

impl Entry {
    /// Memory that it takes until it is settled, beyond the fixed part of every entry. Bytes.
    pub fn weight(&self) -> usize {
        let text = if let Kind::Symlink(text) = &self.kind { text.len() } else { 0 };
        // An attribute without name and value takes memory too.
        let xattrs = self.meta.xattrs.iter().map(|pair| size_of_val(pair) + pair.0.len() + pair.1.len());
        self.path.len() + text + xattrs.sum::<usize>()
    }
}

/// Kinds of entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A file.
    File {
        /// Length. Bytes.
        size: u64,
        /// Last change of content or attributes. If only this time differs, the blocks are compared.
        ctime: Time,
        /// It has holes.
        sparse: bool,
        /// The share of its blocks that comes.
        share: Share,
    },
    /// A folder, before what is in it.
    Folder,
    /// The same folder, after everything in it is done, so that its times stay as they are set now.
    FolderEnd,
    /// A symbolic link with its text.
    Symlink(Vec<u8>),
}

/// The attributes of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    /// Last change of content.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Extended attributes of users: names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A receiver's answer about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// All of it.
    Send,
    /// Nothing: it is there already. Final.
    Same,
    /// Nothing: what is there is newer. Final.
    Newer,
    /// All but these blocks, which an earlier transfer brought: ranges of first and count.
    Have(Vec<(u64, u64)>),
    /// In a dry run: the file would be sent, and the destination already has this many of its bytes. Final.
    Would(u64),
    /// It cannot be taken, and why. The text is empty if a folder above it was refused. Final.
    Refused(String),
    /// As [`Answer::Have`], but attributes of the source have changed since. Its verdict must be [`Verdict::Digest`].
    Perhaps(Vec<(u64, u64)>),
}

/// The result of a sender's reading of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was the same before and after.
    Unchanged,
    /// It changed meanwhile. The blocks sent are worthless.
    Changed(String),
    /// It could not be read. The blocks sent are good.
    Unreadable(String),
    /// Its attributes changed, and perhaps its content. This is the digest of the digests of all blocks of the share,
    /// also of those that an earlier transfer sent.
    Digest([u8; 32]),
}

impl Verdict {
    /// Memory that it takes, beyond the fixed part of every verdict. Bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Changed(text) | Self::Unreadable(text) => text.len(),
            Self::Unchanged | Self::Digest(_) => 0,
        }
    }
}

/// The outcome of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is there under its name, or would be without the dry run. A file has the BLAKE3 digest of all its bytes.
    Done(Option<[u8; 32]>),
    /// It is not there, and why. The text is empty if a folder above it was refused.
    Failed(String),
    /// A folder or symbolic link that was there already.
    Kept,
    /// A symbolic link that is not made, because the existing entry is newer.
    Newer,
}

/// The work of one side since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Bytes of files that were read, or written.
    pub bytes: u64,
    /// Time that threads spent in reading or writing. Nanoseconds.
    pub disk_ns: u64,
    /// Time that threads spent with digests and cipher. Nanoseconds.
    pub cpu_ns: u64,
    /// Time during which blocks waited for a free thread. Nanoseconds.
    pub busy_ns: u64,
    /// A sender's window. Bytes.
    pub window: u64,
}

/// A piece of a file within a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The entry's number.
    pub id: u64,
    /// Its offset in the file. Bytes.
    pub offset: u64,
    /// Its length. Bytes.
    pub len: u32,
    /// A hole: its bytes are zero and not sent.
    pub hole: bool,
    /// Its digest: see `digest`.
    pub digest: [u8; 32],
}

/// The header before the bytes of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Number of the block among those of its sender in this session; its nonce.
    pub number: u64,
    /// Its pieces, in order.
    pub pieces: Vec<Piece>,
}

impl Control {
    /// The bytes of this message.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let bytes = postcard::to_stdvec(self).map_err(|_| WireError::Garbled)?;
        if bytes.len() > CONTROL_MAX { Err(WireError::TooLong(bytes.len())) } else { Ok(bytes) }
    }

    /// The message in `bytes`, all of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > CONTROL_MAX {
            return Err(WireError::TooLong(bytes.len()));
        }
        match postcard::take_from_bytes(bytes) {
            Ok((control, [])) => Ok(control),
            _ => Err(WireError::Garbled),
        }
    }
}

impl Header {
    /// Appends the header, preceded by its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let bytes = postcard::to_stdvec(self).map_err(|_| WireError::Garbled)?;
        if bytes.len() > HEADER_MAX {
            return Err(WireError::TooLong(bytes.len()));
        }
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&bytes);
        Ok(())
    }

    /// Decodes the header of a block. Also returns the header's length, with its length field. The
    /// pieces of a valid header, without holes, have at most `room` bytes.
    pub fn decode(block: &[u8], room: u64) -> Result<(Self, usize), WireError> {
        let (len, rest) = block.split_first_chunk::<4>().ok_or(WireError::Garbled)?;
        let len = u32::from_le_bytes(*len) as usize;
        if len > HEADER_MAX {
            return Err(WireError::TooLong(len));
        }
        let bytes = rest.get(..len).ok_or(WireError::Garbled)?;
        let header = match postcard::take_from_bytes::<Self>(bytes) {
            Ok((header, [])) => header,
            _ => return Err(WireError::Garbled),
        };
        if header.pieces.is_empty() || header.pieces.len() > PIECES_MAX {
            return Err(WireError::Nonsense("a block without pieces, or with too many"));
        }
        if header.pieces.iter().any(|piece| piece.offset.checked_add(u64::from(piece.len)).is_none()) {
            return Err(WireError::Nonsense("a piece beyond the end of any file"));
        }
        if header.body() > room {
            return Err(WireError::Nonsense("pieces longer than the block"));
        }
        Ok((header, 4 + len))
    }

    /// Bytes that follow the header.
    pub fn body(&self) -> u64 {
        self.pieces.iter().filter(|piece| !piece.hole).map(|piece| u64::from(piece.len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_header_fits() {
        let piece =
            Piece { id: u64::MAX, offset: u64::MAX >> 1, len: u32::MAX, hole: true, digest: [0xff; 32] };
        let header = Header { number: u64::MAX, pieces: vec![piece; PIECES_MAX] };
        let mut bytes = Vec::new();
        assert_eq!(header.encode(&mut bytes), Ok(()));
        assert_eq!(Header::decode(&bytes, 0), Ok((header, bytes.len())));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let piece = |len, offset| Piece { id: 0, offset, len, hole: false, digest: [0; 32] };
        let refused = |pieces| {
            let mut bytes = Vec::new();
            Header { number: 0, pieces }.encode(&mut bytes).expect("short");
            Header::decode(&bytes, 100).expect_err("refused")
        };
        assert!(matches!(refused(vec![]), WireError::Nonsense(_)));
        assert!(matches!(refused(vec![piece(60, 0), piece(41, 0)]), WireError::Nonsense(_)));
        assert!(matches!(refused(vec![piece(1, u64::MAX)]), WireError::Nonsense(_)));
        assert!(matches!(refused(vec![piece(0, 0); PIECES_MAX + 1]), WireError::Nonsense(_)));
        let long = [&(HEADER_MAX as u32 + 1).to_le_bytes()[..], &[0; HEADER_MAX + 1]].concat();
        assert_eq!(Header::decode(&long, 100), Err(WireError::TooLong(HEADER_MAX + 1)));
        assert_eq!(Control::decode(&[0xff; 40]), Err(WireError::Garbled));
        assert_eq!(Control::decode(&vec![0; CONTROL_MAX + 1]), Err(WireError::TooLong(CONTROL_MAX + 1)));
    }

    #[test]
    fn shares_of_a_file_are_all_of_it() {
        let (size, block) = (1000 * 64 + 7, 64);
        for ranks in [1, 2, 3, 7, 64] {
            let shares: Vec<_> = (0..ranks).map(|rank| Share { rank, ranks }).collect();
            let ranges: Vec<_> = shares.iter().map(|share| share.blocks(1001)).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
            assert_eq!((ranges[0].start, ranges[ranks as usize - 1].end), (0, 1001));
            assert_eq!(shares.iter().map(|share| share.bytes(size, block)).sum::<u64>(), size);
            assert_eq!(shares[0].splits(size, block), (2..=62).contains(&ranks));
        }
        assert!(Share::default().is_sound(0) && Share { rank: 1, ranks: 2 }.is_sound(2));
        for bad in [Share { rank: 2, ranks: 2 }, Share { rank: 0, ranks: 0 }, Share { rank: 0, ranks: 3 }] {
            assert!(!bad.is_sound(2), "{bad:?}");
        }
    }

    #[test]
    fn a_message_followed_by_more_is_none() {
        let mut bytes = Control::Finished.encode().expect("short");
        assert_eq!(Control::decode(&bytes), Ok(Control::Finished));
        bytes.push(0);
        assert_eq!(Control::decode(&bytes), Err(WireError::Garbled));
    }
}
