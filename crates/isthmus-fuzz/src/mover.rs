//! Messages of the other side of a file transfer, names of files, and the journal as a crash leaves it.

use isthmus_mover::journal::{self, HEAD_LEN, Head, RECORD_LEN};
use isthmus_mover::names;
use isthmus_mover::server::Opening;
use isthmus_mover::wire::{
    Answer, Choice, Control, Entry, Header, Kind, Meta, Open, Outcome, PIECES_MAX, Piece, Rules, Share,
    Status, TransferRequest, Trouble, VERSIONS, Verdict,
};

/// Longest block that the target accepts. Bytes.
const ROOM: u64 = 1 << 20;

/// The first byte chooses the parser.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = controls().iter().map(|control| with(0, &encoded(control))).collect();
    let piece = |id, hole| Piece { id, offset: id << 20, len: 4096, hole, digest: [id as u8; 32] };
    let mut block = Vec::new();
    let header = Header { number: 7, pieces: vec![piece(1, false), piece(2, true)] };
    header.encode(&mut block).expect("short");
    seeds.push(with(1, &block));
    let head = Head { block: 1 << 20, size: 3 << 20, mtime: (1, 2), ctime: (3, 4), boot: [5; 16] };
    let records = [head.record(0, &[1; 32]), head.record(2, &[2; 32])].concat();
    seeds.push(with(2, &[&head.encode()[..], &records].concat()));
    seeds.push(with(3, b"ISTHMOVE\x01\0\x01\x02\x03\x04\x05\x06\x07\x08\0hello"));
    seeds.push(with(4, b"a/../b//c"));
    seeds
}

fn with(reader: u8, bytes: &[u8]) -> Vec<u8> {
    [&[reader], bytes].concat()
}

fn encoded(control: &Control) -> Vec<u8> {
    control.encode().expect("short")
}

fn controls() -> Vec<Control> {
    let meta =
        Meta { mode: 0o644, mtime: (1, 2), atime: (3, 4), xattrs: vec![(b"user.a".to_vec(), vec![0])] };
    let entry = |id, path: &[u8], kind| Entry { id, path: path.to_vec(), kind, meta: meta.clone() };
    let choice = Choice {
        recursive: true,
        exclude: vec!["*.tmp".to_owned()],
        include: Vec::new(),
        share: Share { rank: 1, ranks: 4 },
    };
    let open = |way| Open {
        version: VERSIONS.oldest,
        export: "data".to_owned(),
        way,
        rules: Rules { sync: true, ..Rules::default() },
        block: 1 << 20,
        rate: 0,
        transfer: [9; 16],
    };
    vec![
        Control::Open(open(TransferRequest::Put { path: b"run".to_vec(), folder: true })),
        Control::Open(open(TransferRequest::Get { paths: vec![b"run".to_vec()], choice })),
        Control::Entries(vec![
            entry(0, b"a", Kind::Folder),
            entry(
                1,
                b"a/b",
                Kind::File { size: 1 << 40, ctime: (5, 6), sparse: true, share: Share::default() },
            ),
            entry(2, b"a/c", Kind::Symlink(b"b".to_vec())),
            entry(3, b"a", Kind::FolderEnd),
        ]),
        Control::Answers(vec![
            (1, Answer::Have(vec![(0, 5), (7, 1)])),
            (2, Answer::Refused("no".to_owned())),
            (3, Answer::Perhaps(vec![(1, 2)])),
        ]),
        Control::Closes(vec![(1, Verdict::Changed("b".to_owned())), (3, Verdict::Digest([4; 32]))]),
        Control::Outcomes(vec![
            (1, Outcome::Done(Some([3; 32]))),
            (0, Outcome::Failed("b".to_owned())),
            (2, Outcome::Kept),
            (4, Outcome::Newer),
        ]),
        Control::Status(Status { bytes: 1 << 30, ..Status::default() }),
        Control::Opened { name: Some(b"new".to_vec()) },
        Control::Walked { files: 3, bytes: 1 << 41 },
        Control::Warning(Trouble { path: b"a".to_vec(), text: "left out".to_owned() }),
        Control::Trouble(Trouble { path: b"a".to_vec(), text: "may not be read".to_owned() }),
        Control::Fault("no".to_owned()),
        Control::Finished,
    ]
}

/// Everything that decodes is the same when encoded and decoded again, and within the bounds that its users rely on.
pub(crate) fn property(input: &[u8]) {
    let Some((&reader, bytes)) = input.split_first() else { return };
    match reader % 5 {
        0 => {
            if let Ok(control) = Control::decode(bytes) {
                assert_eq!(Control::decode(&encoded(&control)), Ok(control));
            }
        }
        1 => {
            if let Ok((header, lead)) = Header::decode(bytes, ROOM) {
                assert!(lead <= bytes.len() && header.body() <= ROOM);
                assert!((1..=PIECES_MAX).contains(&header.pieces.len()));
                let mut again = Vec::new();
                header.encode(&mut again).expect("it was short enough");
                assert_eq!(Header::decode(&again, ROOM).map(|(header, _)| header), Ok(header));
            }
        }
        2 => {
            let Some(head) = Head::decode(bytes) else { return };
            let (blocks, good) = journal::read(&head, bytes);
            assert!(good as usize <= bytes.len());
            assert_eq!(good as usize, HEAD_LEN + blocks.len() * RECORD_LEN);
            // `index == blocks()` is the mark after the last block.
            assert!(blocks.iter().all(|(index, _)| *index <= head.blocks()));
        }
        3 => {
            let opening = Opening::decode(bytes);
            assert!(opening.is_none_or(|opening| opening.bytes.len() + 19 == bytes.len()));
        }
        _ => {
            if let Ok(tidy) = names::tidy(bytes) {
                assert_eq!(names::tidy(&tidy).as_ref(), Ok(&tidy));
                assert!(tidy.is_empty() || names::check(&tidy) == Ok(()));
            }
            assert!(names::check(bytes).is_err() || names::tidy(bytes) == Ok(bytes.to_vec()));
        }
    }
}
