//! Transfers of a process that has few descriptors. The limit is that of the process, so this is its only test.

mod support;

use std::fs::{self, File};
use std::time::Duration;

use isthmus_mover::Notice;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::*;

/// Files of several blocks; each costs the receiver two descriptors.
const LONG: usize = 50;
/// Descriptors that may be opened beside those of a service and a client.
const FREE: u64 = 30;
/// How long none is free, in the second transfer.
const NONE: Duration = Duration::from_millis(700);

fn open_now() -> u64 {
    fs::read_dir("/proc/self/fd").expect("proc").count() as u64
}

#[test]
fn files_wait_for_descriptors() {
    let place = Place::writable();
    fs::create_dir(place.here("t")).expect("made");
    for at in 0..LONG {
        let bytes = pattern(3 * BLOCK as usize + at, at as u8);
        fs::write(place.here("t").join(format!("long{at}")), bytes).expect("written");
        fs::write(place.here("t").join(format!("short{at}")), format!("{at}")).expect("written");
    }
    complete(&place.put(&["t"], "before/"));
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: Some(open_now() + FREE), ..before };
    setrlimit(Resource::Nofile, limit).expect("less is always allowed");
    // All go, although not all can be open at once.
    let (summary, _) = complete(&place.put(&["t"], "few/"));
    assert_eq!(summary.files, 2 * LONG as u64);
    // Somebody takes all that are left, and gives them back after a while.
    let mut slow = place.put(&["t"], "none/");
    slow.rate = 16 << 20;
    let mut holder = None;
    let mut failed = Vec::new();
    let done = slow.run(&mut |notice| match notice {
        Notice::File { .. } if holder.is_none() => {
            let held: Vec<File> = std::iter::from_fn(|| File::open("/").ok()).collect();
            assert!(!held.is_empty());
            holder = Some(std::thread::spawn(move || {
                std::thread::sleep(NONE);
                drop(held);
            }));
        }
        Notice::Failed { text, .. } => failed.push(text),
        _ => {}
    });
    holder.expect("files came").join().expect("well");
    setrlimit(Resource::Nofile, before).expect("as it was");
    assert_eq!((done.expect("it ends").files, failed), (2 * LONG as u64, Vec::new()));
    for folder in ["few", "none"] {
        for at in 0..LONG {
            for name in [format!("t/long{at}"), format!("t/short{at}")] {
                let copy = fs::read(place.export(folder).join(&name)).expect("there");
                assert!(copy == fs::read(place.here(&name)).expect("there"), "{folder}/{name}");
            }
        }
    }
}
