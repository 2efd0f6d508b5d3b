//! Partial files and their journals, across crashes.

use std::fs;
use std::path::Path;

use super::*;

const BLOCK: u64 = 4096;
const SIZE: u64 = 2 * BLOCK + 100;

fn wanted(folder: &Path, boot: u8) -> Wanted {
    Wanted {
        path: b"file".to_vec(),
        parent: Arc::new(crate::confine::folder(folder).expect("a folder")),
        name: b"file".to_vec(),
        meta: Meta { mode: 0o644, ..Meta::default() },
        head: Head { block: BLOCK, size: SIZE, mtime: (1, 2), ctime: (3, 4), boot: [boot; 16] },
        sparse: false,
        share: Share::default(),
        sync: true,
    }
}

fn bytes() -> Vec<u8> {
    (0..SIZE).map(|i| (i % 251) as u8).collect()
}

fn piece(index: u64) -> (Piece, Vec<u8>) {
    let offset = index * BLOCK;
    let own = bytes()[offset as usize..(offset + BLOCK).min(SIZE) as usize].to_vec();
    let digest = digest::piece(&own, offset, SIZE, BLOCK);
    (Piece { id: 0, offset, len: own.len() as u32, hole: false, digest }, own)
}

fn write(target: &Target, index: u64) -> Option<Outcome> {
    let (piece, own) = piece(index);
    assert_eq!(target.check(&piece, &own), Ok(()));
    target.write(&piece, &own)
}

fn begin(folder: &Path, boot: u8) -> Begun {
    Target::begin(wanted(folder, boot), &mut || ()).expect("there is room")
}

#[test]
fn a_file_is_there_when_its_blocks_are_and_its_source_stayed_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = begin(folder.path(), 1).target;
    for index in [2, 0, 0, 1] {
        assert_eq!(write(&target, index), None);
    }
    assert!(!folder.path().join("file").exists());
    let digest = *blake3::hash(&bytes()).as_bytes();
    assert_eq!(target.close(&Verdict::Unchanged), Some(Outcome::Done(Some(digest))));
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

/// After a crash of the process, all blocks in the journal count. After a crash of the system, only
/// those count that can be read and have their digest.
#[test]
fn what_a_journal_says_is_believed_after_a_crash_and_checked_after_a_reboot() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = begin(folder.path(), 1).target;
    write(&target, 0);
    write(&target, 2);
    drop(target);
    assert_eq!(begin(folder.path(), 1).have, [(0, 1), (2, 1)]);
    let (part, journal) = names::partial(b"file");
    let mut left = fs::read(folder.path().join(&part)).expect("there");
    left[10] ^= 1;
    fs::write(folder.path().join(&part), left).expect("written");
    assert_eq!(begin(folder.path(), 2).have, [(2, 1)], "the block that the disk lost");
    assert_eq!(begin(folder.path(), 2).have, [(2, 1)], "the journal was written anew");
    // A record that was torn by the crash.
    let mut torn = fs::read(folder.path().join(&journal)).expect("there");
    torn.truncate(torn.len() - 1);
    fs::write(folder.path().join(&journal), torn).expect("written");
    let begun = begin(folder.path(), 2);
    assert_eq!(begun.have, []);
    for index in 0..3 {
        write(&begun.target, index);
    }
    assert!(matches!(begun.target.close(&Verdict::Unchanged), Some(Outcome::Done(Some(_)))));
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
}

/// If another process writes to the partial file, the file's time is later than the last record's.
#[test]
fn a_file_that_was_changed_after_its_journals_last_record_is_read_again() {
    for (changed, have) in [(true, vec![(2, 1)]), (false, vec![(0, 1), (2, 1)])] {
        let folder = tempfile::tempdir().expect("a folder");
        let target = begin(folder.path(), 1).target;
        write(&target, 0);
        write(&target, 2);
        drop(target);
        let (part, journal) = names::partial(b"file");
        let mut left = fs::read(folder.path().join(&part)).expect("there");
        left[10] ^= 1;
        fs::write(folder.path().join(&part), left).expect("written");
        // Clocks of file systems are coarse.
        let hour = std::time::Duration::from_secs(3600);
        let now = std::time::SystemTime::now();
        let journal = fs::File::options().write(true).open(folder.path().join(&journal)).expect("there");
        journal.set_modified(if changed { now - hour } else { now + hour }).expect("set");
        assert_eq!(begin(folder.path(), 1).have, have);
    }
}

/// If the attributes of a source have changed, its content may have too. So its sender gives the digest of all blocks.
#[test]
fn blocks_of_a_source_whose_attributes_changed_count_if_it_has_their_digest() {
    for is_changed in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let target = begin(folder.path(), 1).target;
        write(&target, 0);
        drop(target);
        let anew = || {
            let mut wanted = wanted(folder.path(), 1);
            wanted.head.ctime = (5, 6);
            Target::begin(wanted, &mut || ()).expect("there is room")
        };
        // The journal keeps the version that it began with, however often the transfer continues.
        let mut begun = anew();
        assert_eq!(begun.answer(), Answer::Perhaps(vec![(0, 1)]));
        write(&begun.target, 1);
        drop(begun);
        let mut begun = anew();
        assert_eq!(begun.answer(), Answer::Perhaps(vec![(0, 2)]));
        assert_eq!(write(&begun.target, 2), None);
        let unchanged = begun.target.close(&Verdict::Unchanged);
        assert_eq!(unchanged, None, "who said so did not know of the blocks that are there");
        let mut blocks: Vec<Digest> = (0..3).map(|index| piece(index).0.digest).collect();
        if is_changed {
            blocks[0] = [7; 32];
        }
        let done = begun.target.close(&Verdict::Digest(digest::of(blocks.as_flattened())));
        if is_changed {
            assert!(matches!(&done, Some(Outcome::Failed(text)) if text.contains("changed")), "{done:?}");
            assert_eq!(count(folder.path()), 0);
        } else {
            assert_eq!(done, Some(Outcome::Done(Some(*blake3::hash(&bytes()).as_bytes()))));
            assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
        }
    }
}

/// If the source has a hole where an earlier transfer left data, the data are removed.
#[test]
fn holes_are_made_where_the_disk_has_something_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let sparse = || Wanted { sparse: true, ..wanted(folder.path(), 1) };
    let begin = || Target::begin(sparse(), &mut || ()).expect("there is room").target;
    drop(begin());
    fs::write(folder.path().join(names::partial(b"file").0), vec![7; SIZE as usize]).expect("written");
    let target = begin();
    // A hole, zeros among data, and data.
    let digest = digest::hole(BLOCK, 0, SIZE, BLOCK);
    let hole = Piece { id: 0, offset: 0, len: BLOCK as u32, hole: true, digest };
    let mut all = bytes();
    all[..2 * BLOCK as usize].fill(0);
    assert_eq!(target.write(&hole, &[]), None);
    let zeros = all[BLOCK as usize..2 * BLOCK as usize].to_vec();
    let digest = digest::piece(&zeros, BLOCK, SIZE, BLOCK);
    assert_eq!(target.write(&Piece { offset: BLOCK, hole: false, digest, ..hole }, &zeros), None);
    assert_eq!(write(&target, 2), None);
    let done = target.close(&Verdict::Unchanged);
    assert_eq!(done, Some(Outcome::Done(Some(*blake3::hash(&all).as_bytes()))));
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), all);
}

/// A sender may find a hole in a file that it did not announce as one with holes.
#[test]
fn a_hole_in_a_file_without_holes_is_zeros_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let begin = || Target::begin(wanted(folder.path(), 1), &mut || ()).expect("there is room").target;
    drop(begin());
    fs::write(folder.path().join(names::partial(b"file").0), vec![7; SIZE as usize]).expect("written");
    let target = begin();
    let digest = digest::hole(BLOCK, 0, SIZE, BLOCK);
    let hole = Piece { id: 0, offset: 0, len: BLOCK as u32, hole: true, digest };
    assert_eq!(target.write(&hole, &[]), None);
    let part = fs::read(folder.path().join(names::partial(b"file").0)).expect("there");
    assert!(part[..BLOCK as usize].iter().all(|byte| *byte == 0));
    assert_eq!(part[BLOCK as usize], 7);
}

/// A disk without free inodes has room for bytes, and says the same as a full one.
#[test]
fn a_full_disk_names_bytes_and_inodes() {
    let text = room(Errno::NOSPC.into(), 5).to_string();
    assert!(text.contains("5 bytes") && text.contains("df -i"), "{text}");
}

/// The same error as of a folder that was removed: below /proc the kernel makes all files.
#[test]
fn a_folder_that_takes_no_new_files_is_named_as_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = wanted(folder.path(), 1);
    folder.close().expect("removed");
    let text = Target::begin(wanted, &mut || ()).expect_err("no file can be made").to_string();
    assert!(text.contains("takes no new files, as below /proc"), "{text}");
    assert!(room(Errno::NOENT.into(), 5).to_string().contains("takes no new files"));
}

/// Anybody can compute the names, and make files in some folders.
#[test]
fn files_that_others_left_under_our_names_are_not_written_to() {
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    let planted: [fn(&Path, &Path); 4] = [
        |other, name| fs::hard_link(other, name).expect("linked"),
        |other, name| symlink(other, name).expect("linked"),
        |_, name| {
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(CWD, name, rustix::fs::FileType::Fifo, mode, 0).expect("made");
        },
        |_, name| {
            fs::write(name, "theirs").expect("written");
            // Only root can make a file of another user.
            let _ = chown(name, Some(65_534), None);
        },
    ];
    for plant in planted {
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("other");
        fs::write(&other, "other").expect("written");
        let (part, journal) = names::partial(b"file");
        let names = [part, journal].map(|name| folder.path().join(name));
        names.iter().for_each(|name| plant(&other, name));
        let begun = begin(folder.path(), 1);
        for name in &names {
            let stat = fs::symlink_metadata(name).expect("made");
            let is_ours = stat.uid() == rustix::process::geteuid().as_raw();
            assert!(stat.is_file() && stat.nlink() == 1 && is_ours, "{stat:?}");
        }
        assert!(begun.have.is_empty());
        (0..3).for_each(|index| assert_eq!(write(&begun.target, index), None));
        assert!(matches!(begun.target.close(&Verdict::Unchanged), Some(Outcome::Done(_))));
        assert_eq!(fs::read_to_string(&other).expect("there"), "other");
    }
}

#[test]
fn two_transfers_do_not_write_one_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = begin(folder.path(), 1);
    let second = Target::begin(wanted(folder.path(), 1), &mut || ());
    let text = second.expect_err("it is being written").to_string();
    assert!(text.contains("another transfer is writing it"), "{text}");
    drop(first);
    begin(folder.path(), 1);
}

/// A snapshot of the folder by hard links gives the partial file a second name. Root would see a file of another user.
#[test]
fn a_file_that_a_transfer_writes_is_not_removed_though_it_looks_planted() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = begin(folder.path(), 1).target;
    let part = folder.path().join(names::partial(b"file").0);
    fs::hard_link(&part, folder.path().join("snapshot")).expect("linked");
    let error = Target::begin(wanted(folder.path(), 1), &mut || ()).expect_err("it is being written");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    (0..3).for_each(|index| assert_eq!(write(&first, index), None));
    assert!(matches!(first.close(&Verdict::Unchanged), Some(Outcome::Done(_))));
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
}

#[test]
fn a_transfer_whose_partial_file_was_replaced_does_not_give_the_other_one_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = begin(folder.path(), 1).target;
    (0..3).for_each(|index| assert_eq!(write(&target, index), None));
    let names = <[String; 2]>::from(names::partial(b"file")).map(|name| folder.path().join(name));
    for name in &names {
        fs::remove_file(name).expect("removed");
        fs::write(name, "of another process").expect("written");
    }
    let told = target.close(&Verdict::Unchanged);
    assert!(matches!(&told, Some(Outcome::Failed(text)) if text.contains("gave it up")), "{told:?}");
    assert!(!folder.path().join("file").exists());
    for name in &names {
        assert_eq!(fs::read_to_string(name).expect("there"), "of another process");
    }
}

/// The first transfer renames the file after the second has opened it and before the second locks it.
#[test]
fn a_file_that_just_got_its_name_is_not_taken_for_one_that_is_not_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (part, _) = names::partial(b"file");
    let parent = crate::confine::folder(folder.path()).expect("a folder");
    let mut first = Some(begin(folder.path(), 1).target);
    let open = || openat(&parent, &part, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o600));
    let how = FlockOperation::NonBlockingLockExclusive;
    let file = lock_named(&parent, &part, how, || {
        let opened = open();
        if let Some(first) = first.take() {
            for index in 0..3 {
                assert_eq!(write(&first, index), None);
            }
            assert!(matches!(first.close(&Verdict::Unchanged), Some(Outcome::Done(Some(_)))));
        }
        opened
    });
    ftruncate(file.expect("a new one"), 0).expect("truncated");
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
    // If the locked file never has the name, it gives up.
    let never = lock_named(&parent, "other", how, open).expect_err("it never has that name");
    assert!(never.to_string().contains("another transfer"), "{never}");
}

#[test]
fn what_is_no_block_of_the_file_is_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = begin(folder.path(), 1).target;
    let (good, own) = piece(1);
    let odd = |piece: Piece, own: &[u8]| target.check(&piece, own).expect_err("damage");
    assert!(matches!(odd(Piece { digest: [0; 32], ..good.clone() }, &own), Damage::Digest(_)));
    assert!(matches!(odd(Piece { offset: 0, ..good.clone() }, &own), Damage::Digest(_)));
    for (offset, len) in
        [(1, 4096), (BLOCK, 4095), (3 * BLOCK, 4096), (2 * BLOCK, 4096), (u64::MAX - 4095, 0)]
    {
        let piece = Piece { offset, len, ..good.clone() };
        assert!(matches!(odd(piece, &own), Damage::Place(_)), "{offset} {len}");
    }
}

/// Begins the share of process `rank` of `ranks`.
fn begin_share(folder: &Path, boot: u8, rank: u32, ranks: u32) -> Begun {
    let share = Share { rank, ranks };
    let wanted = Wanted { share, sync: false, ..wanted(folder, boot) };
    Target::begin(wanted, &mut || ()).expect("there is room")
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).expect("a folder").count()
}

#[test]
fn a_shared_file_is_there_when_all_shares_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let shares: Vec<_> = (0..3).map(|rank| begin_share(folder.path(), 1, rank, 3).target).collect();
    let (foreign, own) = piece(0);
    assert!(shares[1].check(&foreign, &own).is_err(), "a block of another's share");
    let busy = Wanted { share: Share { rank: 1, ranks: 3 }, ..wanted(folder.path(), 1) };
    let busy = Target::begin(busy, &mut || ()).expect_err("it is being written").to_string();
    assert!(busy.contains("another transfer"), "{busy}");
    for (index, target) in [(2, &shares[2]), (0, &shares[0])] {
        assert_eq!(write(target, index), None);
        assert_eq!(target.close(&Verdict::Unchanged), Some(Outcome::Done(None)), "others are missing");
        assert!(!folder.path().join("file").exists());
    }
    assert_eq!(write(&shares[1], 1), None);
    let digest = *blake3::hash(&bytes()).as_bytes();
    assert_eq!(shares[1].close(&Verdict::Unchanged), Some(Outcome::Done(Some(digest))));
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
    assert_eq!(count(folder.path()), 1, "nothing is left over");
}

#[test]
fn a_share_that_was_killed_goes_on_and_the_others_keep_theirs() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = begin_share(folder.path(), 1, 0, 2).target;
    assert_eq!(write(&first, 0), None);
    assert_eq!(first.close(&Verdict::Unchanged), Some(Outcome::Done(None)));
    let second = begin_share(folder.path(), 1, 1, 2).target;
    assert_eq!(write(&second, 2), None);
    drop((first, second));
    let (first, second) = (begin_share(folder.path(), 1, 0, 2), begin_share(folder.path(), 1, 1, 2));
    assert_eq!((&first.have[..], &second.have[..]), (&[(0, 1)][..], &[(2, 1)][..]));
    assert_eq!(write(&second.target, 1), None);
    // The first has compared its blocks again, but has not recorded yet that its share is complete.
    assert_eq!(second.target.close(&Verdict::Unchanged), Some(Outcome::Done(None)));
    let done = first.target.close(&Verdict::Unchanged);
    assert!(matches!(done, Some(Outcome::Done(Some(_)))), "{done:?}");
    assert_eq!(fs::read(folder.path().join("file")).expect("there"), bytes());
    assert_eq!(count(folder.path()), 1);
}

/// Several processes write to a shared file, so its times do not show a foreign write.
#[test]
fn what_is_there_of_a_shared_file_is_read_before_it_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = begin_share(folder.path(), 1, 0, 2).target;
    let second = begin_share(folder.path(), 1, 1, 2).target;
    assert_eq!((write(&first, 0), write(&second, 1), write(&second, 2)), (None, None, None));
    let partial = second.partial.as_ref().expect("of many blocks");
    assert_eq!(rustix::io::pwrite(&partial.file, b"x", BLOCK + 7), Ok(1));
    drop((first, second));
    assert_eq!(begin_share(folder.path(), 1, 0, 2).have, [(0, 1)]);
    assert_eq!(begin_share(folder.path(), 1, 1, 2).have, [(2, 1)]);
}

/// If a journal is of another boot or host, its blocks count once they were read and compared.
#[test]
fn a_share_of_another_boot_is_read_before_the_file_gets_its_name() {
    for damaged in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let first = begin_share(folder.path(), 1, 0, 2).target;
        assert_eq!(write(&first, 0), None);
        assert_eq!(first.close(&Verdict::Unchanged), Some(Outcome::Done(None)));
        if damaged {
            let part = names::partial_shared(b"file", &[], 0).0;
            let start = part.split('-').take(2).collect::<Vec<_>>().join("-");
            let entries = fs::read_dir(folder.path()).expect("a folder").flatten();
            let part = entries.map(|entry| entry.path()).find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                name.starts_with(&start) && name.ends_with(".part")
            });
            let file = fs::File::options().write(true).open(part.expect("there")).expect("opened");
            std::os::unix::fs::FileExt::write_at(&file, b"x", 7).expect("written");
        }
        let second = begin_share(folder.path(), 2, 1, 2).target;
        assert_eq!((write(&second, 1), write(&second, 2)), (None, None));
        let done = second.close(&Verdict::Unchanged);
        assert_eq!(matches!(done, Some(Outcome::Done(Some(_)))), !damaged, "{done:?}");
        assert_eq!(folder.path().join("file").exists(), !damaged);
    }
}

#[test]
fn shares_of_another_version_are_swept_away_and_a_file_that_was_given_up_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = begin_share(folder.path(), 1, 1, 3).target;
    assert_eq!(write(&old, 1), None);
    assert_eq!(count(folder.path()), 2);
    drop(begin_share(folder.path(), 1, 0, 2));
    assert_eq!(count(folder.path()), 4, "somebody writes it");
    drop(old);
    let first = begin_share(folder.path(), 1, 0, 2).target;
    assert_eq!(count(folder.path()), 2);
    let second = begin_share(folder.path(), 1, 1, 2).target;
    let changed = second.close(&Verdict::Changed("it changed".to_owned()));
    assert_eq!(changed, Some(Outcome::Failed("it changed".to_owned())));
    assert_eq!(write(&first, 0), None);
    let told = first.close(&Verdict::Unchanged);
    assert!(matches!(&told, Some(Outcome::Failed(text)) if text.contains("gave it up")), "{told:?}");
    assert_eq!(count(folder.path()), 0);
}

/// Anybody can make a pipe under the name of a partial file of another version.
#[test]
fn a_pipe_among_the_shares_of_another_version_holds_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (part, _) = names::partial_shared(b"file", b"another version", 0);
    let pipe = folder.path().join(part);
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    let (said, heard) = std::sync::mpsc::channel();
    let path = folder.path().to_owned();
    std::thread::spawn(move || said.send(begin_share(&path, 1, 0, 2).have));
    let have = heard.recv_timeout(std::time::Duration::from_secs(30)).expect("the pipe holds it up");
    assert!(have.is_empty() && !pipe.exists());
}

/// Space is reserved while blocks come. To reserve it after the last block would change the file's times.
#[test]
fn space_is_taken_in_steps_beside_the_blocks_and_the_file_has_its_source_s_times() {
    const BLOCK: u64 = 4 << 20;
    let size = 2 * RESERVE_STEP + 100;
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = wanted(folder.path(), 1);
    wanted.head = Head { block: BLOCK, size, ..wanted.head };
    wanted.meta.mtime = (1_000_000_000, 5);
    let target = Target::begin(wanted, &mut || ()).expect("there is room").target;
    assert!(matches!(target.reserve(0), Reserved::Until(RESERVE_STEP)));
    let taken =
        fstat(&target.partial.as_ref().expect("of many blocks").file).expect("there").st_blocks as u64;
    assert!((RESERVE_STEP..size).contains(&(taken * 512)), "{taken}");
    let mut outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        // Repeats it, to coincide with the last block.
        let reserving = scope.spawn(|| {
            let mut at = 0;
            loop {
                match target.reserve(at) {
                    Reserved::Until(until) => at = until % (2 * RESERVE_STEP),
                    Reserved::Over(outcome) => break outcome,
                }
            }
        });
        let close = target.close(&Verdict::Unchanged);
        let writes = (0..size.div_ceil(BLOCK)).map(|index| {
            let offset = index * BLOCK;
            let own = vec![index as u8; (size - offset).min(BLOCK) as usize];
            let digest = digest::piece(&own, offset, size, BLOCK);
            target.write(&Piece { id: 0, offset, len: own.len() as u32, hole: false, digest }, &own)
        });
        let own: Vec<_> = writes.collect();
        own.into_iter().chain([close, reserving.join().expect("it ends")]).flatten().collect()
    });
    assert!(matches!(outcomes.pop(), Some(Outcome::Done(Some(_)))));
    assert_eq!(outcomes, []);
    assert!(matches!(target.reserve(0), Reserved::Over(None)));
    let file = fs::metadata(folder.path().join("file")).expect("there");
    assert_eq!(std::os::unix::fs::MetadataExt::mtime(&file), 1_000_000_000);
}
