//! Trees of any shape, changed between copies in any way: what arrives is what is there.

mod support;

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::*;

/// Something that a user does to a path: three letters, a folder each but for the last.
#[derive(Clone, Debug)]
enum Step {
    Write { at: [u8; 3], len: usize, seed: u8 },
    Hole { at: [u8; 3], len: u64 },
    Link { at: [u8; 3], to: u8 },
    Mode { at: [u8; 3], depth: usize, mode: u32 },
    Time { at: [u8; 3], depth: usize, seconds: u32 },
    Attribute { at: [u8; 3], depth: usize, key: u8, value: Option<u8> },
    Remove { at: [u8; 3], depth: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = BLOCK as usize;
    let at = || [0..3u8, 0..3u8, 0..4u8];
    let len = prop_oneof![Just(0), 1..9000usize, Just(block), Just(block + 1), 1..6 * block];
    let mode = prop_oneof![Just(0o755), Just(0o500), Just(0o640), Just(0o1777)];
    let step = prop_oneof![
        6 => (at(), len, any::<u8>()).prop_map(|(at, len, seed)| Step::Write { at, len, seed }),
        1 => (at(), 1..20 * BLOCK).prop_map(|(at, len)| Step::Hole { at, len }),
        1 => (at(), 0..2u8).prop_map(|(at, to)| Step::Link { at, to }),
        2 => (at(), 1..4usize, mode).prop_map(|(at, depth, mode)| Step::Mode { at, depth, mode }),
        2 => (at(), 1..4usize, any::<u32>()).prop_map(|(at, depth, seconds)| Step::Time { at, depth, seconds }),
        3 => (at(), 1..4usize, 0..3u8, any::<Option<u8>>())
            .prop_map(|(at, depth, key, value)| Step::Attribute { at, depth, key, value }),
        1 => (at(), 1..4usize).prop_map(|(at, depth)| Step::Remove { at, depth }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Names that a shell, a terminal or our own partial files make difficult; K is for the kind.
const NAMES: [&str; 4] = ["a K", "*K\n", ".isthmus-K.part", "-Kü"];

/// The folder, or with `depth` 3 the file or link, at a path: kinds have names of their own, since no copy makes a
/// file of a folder.
fn path(root: &Path, at: [u8; 3], depth: usize) -> PathBuf {
    let kinds = ["folder", "folder", "file"];
    let names = at.iter().zip(kinds).take(depth).map(|(name, kind)| NAMES[*name as usize].replace('K', kind));
    names.fold(root.to_owned(), |path, name| path.join(name))
}

/// Does a step where it can be done.
fn take(root: &Path, step: &Step) -> std::io::Result<()> {
    let ready = |at| {
        let path = path(root, at, 3);
        fs::create_dir_all(path.parent().expect("below the root")).map(|()| path)
    };
    match *step {
        Step::Write { at, len, seed } => fs::write(ready(at)?, pattern(len, seed)),
        Step::Hole { at, len } => File::options().create(true).append(true).open(ready(at)?)?.set_len(len),
        Step::Link { at, to } => {
            let link = ready(at)?.with_extension("link");
            let _ = fs::remove_file(&link);
            symlink(NAMES[to as usize].replace('K', "file"), link)
        }
        Step::Mode { at, depth, mode } => {
            // Who may not look into a folder cannot copy it either.
            let mode = if depth < 3 { mode | 0o500 } else { mode };
            fs::set_permissions(path(root, at, depth), fs::Permissions::from_mode(mode))
        }
        Step::Time { at, depth, seconds } => {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds.into(), 5);
            File::open(path(root, at, depth))?.set_times(FileTimes::new().set_modified(time))
        }
        Step::Attribute { at, depth, key, value } => {
            let (file, key) = (File::open(path(root, at, depth))?, format!("user.{key}"));
            Ok(match value {
                Some(value) => rustix::fs::fsetxattr(&file, key, &[value], rustix::fs::XattrFlags::empty()),
                None => rustix::fs::fremovexattr(&file, key),
            }?)
        }
        Step::Remove { at, depth: 3 } => fs::remove_file(path(root, at, 3)),
        Step::Remove { at, depth } => fs::remove_dir_all(path(root, at, depth)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
    #[test]
    fn what_arrives_is_what_is_there_however_it_changed(rounds in prop::collection::vec(steps(), 1..4)) {
        let place = Place::writable();
        let (here, there) = (place.here("t"), place.export("t"));
        fs::create_dir(&here).expect("made");
        for steps in rounds {
            // What cannot be done, as to a path that is not there, is left out.
            steps.iter().for_each(|step| drop(take(&here, step)));
            // What is no longer here stays there.
            let mut kept = tree(&here);
            complete(&place.put(&["t"], ""));
            let mut arrived = tree(&there);
            arrived.retain(|name, _| kept.contains_key(name));
            prop_assert_eq!(&arrived, &kept);
            let back = tempfile::tempdir_in(place.folder.path().join("here")).expect("a folder");
            let to = format!("{}/", back.path().file_name().expect("a name").to_string_lossy());
            complete(&place.get(&["t"], &to));
            kept = tree(&there);
            prop_assert_eq!(tree(&back.path().join("t")), kept);
        }
    }
}
