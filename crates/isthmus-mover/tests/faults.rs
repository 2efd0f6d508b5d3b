//! What goes wrong: sources that change, disks that are full, transfers that are cut off,
//! strangers, and names that lead elsewhere.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::time::Instant;

use isthmus_io::Transport;
use isthmus_mover::wire::Rules;
use isthmus_mover::{Direction, MoverError, Notice};
use support::*;

/// Length of the files of transfers that are cut off in the middle, 8 s long at their rate. Bytes.
const LONG: usize = 64 << 20;

/// Begins `transfer`, and panics in its thread when so many bytes are there.
fn cut_off(transfer: &isthmus_mover::Transfer, after: u64) {
    // So that there is something to cut, even where the other side says late what it has.
    let slow = isthmus_mover::Transfer { rate: 8 << 20, ..transfer.clone() };
    let done = slow.run(&mut |notice| {
        let Notice::Progress(progress) = notice else { return };
        assert!(progress.bytes < after, "cut off");
    });
    drop(done);
}

fn partials(folder: &std::path::Path) -> usize {
    let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".isthmus-")).count()
}

/// The client's thread dies in the middle, as if killed; the same transfer then goes on.
#[test]
fn a_transfer_that_is_cut_off_goes_on_where_it_was() {
    for upward in [true, false] {
        let place = Place::writable();
        let bytes = pattern(LONG, 9);
        let (transfer, folder, copy) = if upward {
            fs::write(place.here("file"), &bytes).expect("written");
            (place.put(&["file"], "copy"), place.export(""), place.export("copy"))
        } else {
            fs::write(place.export("file"), &bytes).expect("written");
            (place.get(&["file"], "copy"), place.here(""), place.here("copy"))
        };
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| cut_off(&transfer, 3 << 20));
            assert!(cut.join().is_err(), "it was not cut off");
        });
        assert!(!copy.exists(), "not under its name before it is whole");
        assert_eq!(partials(&folder), 2);
        let (summary, notices) = complete(&transfer);
        let have = notices.iter().find_map(|notice| match notice {
            Notice::Resumed { have, .. } => Some(*have),
            _ => None,
        });
        let have = have.expect("it goes on");
        assert!(have >= 2 << 20, "{have} bytes were there");
        // What was sent before it was known what is there is bounded.
        assert!(summary.sent <= bytes.len() as u64 - have + (8 << 20), "{} bytes were sent", summary.sent);
        assert!(fs::read(&copy).expect("whole") == bytes);
        assert_eq!(partials(&folder), 0);
    }
}

/// Where an answer costs nothing it is waited for. A busy machine may make a path seem long, but not each time.
#[test]
fn on_a_short_path_nothing_is_sent_that_is_there() {
    let place = Place::writable();
    let bytes = pattern(LONG, 9);
    fs::create_dir(place.here("t")).expect("made");
    for name in ["long", "short", "other"] {
        fs::write(place.here("t").join(name), if name == "long" { &bytes } else { &bytes[..100] })
            .expect("written");
    }
    complete(&place.put(&["t"], ""));
    let again = || complete(&place.put(&["t"], "")).0;
    assert!((0..20).any(|_| again().sent == 0), "all is there");
    // And where some of a long file is.
    let resumed = |_| {
        fs::remove_file(place.export("t/long")).expect("there");
        let transfer = place.put(&["t"], "");
        std::thread::scope(|scope| {
            assert!(scope.spawn(|| cut_off(&transfer, 3 << 20)).join().is_err(), "it was not cut off");
        });
        let (summary, notices) = complete(&transfer);
        let have = notices.iter().find_map(|notice| match notice {
            Notice::Resumed { have, .. } => Some(*have),
            _ => None,
        });
        assert!(fs::read(place.export("t/long")).expect("whole") == bytes);
        summary.sent + have.expect("it goes on") == bytes.len() as u64
    };
    assert!((0..20).any(resumed), "some of it is there");
}

#[test]
fn what_is_left_of_another_version_is_not_used() {
    let place = Place::writable();
    let old = pattern(LONG, 1);
    fs::write(place.here("file"), &old).expect("written");
    let transfer = place.put(&["file"], "copy");
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| cut_off(&transfer, 3 << 20)).join().is_err());
    });
    let new = pattern(LONG, 2);
    fs::write(place.here("file"), &new).expect("written");
    let (_, notices) = complete(&transfer);
    assert!(notices.iter().all(|notice| !matches!(notice, Notice::Resumed { .. })), "{notices:?}");
    assert!(fs::read(place.export("copy")).expect("whole") == new);
}

#[test]
fn a_source_that_changes_meanwhile_is_reported_and_not_published() {
    let place = Place::writable();
    fs::write(place.here("file"), pattern(8 << 20, 1)).expect("written");
    let mut transfer = place.put(&["file"], "copy");
    transfer.rate = 8 << 20;
    transfer.memory = 1 << 20;
    let mut changed = false;
    let mut failures = Vec::new();
    let done = transfer.run(&mut |notice| match notice {
        // Of the 128 blocks the sender reads one in 8 ms and 16 before it is heard of: now it has
        // looked how long the file is, and has not read it whole.
        Notice::Progress(progress) if progress.bytes_total.is_some() && !changed => {
            changed = true;
            let mut file = fs::OpenOptions::new().append(true).open(place.here("file")).expect("there");
            file.write_all(b"more").expect("written");
        }
        Notice::Failed { text, .. } => failures.push(text),
        _ => {}
    });
    assert!(changed);
    assert_eq!(done.expect("it ends").failed, 1);
    assert!(matches!(&failures[..], [text] if text.contains("changed while it was read")), "{failures:?}");
    assert!(!place.export("copy").exists());
    assert_eq!(partials(&place.export("")), 0, "blocks of two versions are worth nothing");
}

/// A link to it, another mode, and the like, while it is read or between two transfers; and content that somebody changes
/// who gives it back its time.
#[test]
fn a_source_of_which_only_attributes_change_is_copied_and_one_with_other_content_is_not() {
    type Change = fn(&std::path::Path);
    let changes: [(bool, Change); 3] = [
        (true, |path| fs::hard_link(path, path.with_extension("link")).expect("made")),
        (true, |path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("set")),
        (false, |path| {
            let modified = path.metadata().expect("there").modified().expect("known");
            let file = fs::File::options().write(true).open(path).expect("there");
            file.write_at(b"other", 70).expect("written");
            file.set_modified(modified).expect("set");
        }),
    ];
    for (is_same, change) in changes {
        for is_between in [false, true] {
            let place = Place::writable();
            let (file, copy) = (place.here("file"), place.export("copy"));
            fs::write(&file, pattern(if is_between { LONG } else { LONG / 2 }, 1)).expect("written");
            let transfer = place.put(&["file"], "copy");
            let mut slow = transfer.clone();
            (slow.rate, slow.memory) = (8 << 20, 1 << 20);
            let mut is_changed = false;
            let (mut resumed, mut failures) = (false, Vec::new());
            let done = if is_between {
                std::thread::scope(|scope| {
                    assert!(scope.spawn(|| cut_off(&transfer, 3 << 20)).join().is_err());
                });
                change(&file);
                let (done, notices) = run(&transfer);
                resumed = notices.iter().any(|notice| matches!(notice, Notice::Resumed { .. }));
                failures.extend(notices.into_iter().filter(|notice| matches!(notice, Notice::Failed { .. })));
                done
            } else {
                slow.run(&mut |notice| match notice {
                    // The first blocks have been read by now, and not all.
                    Notice::Progress(progress) if progress.bytes > 0 && !is_changed => {
                        is_changed = true;
                        change(&file);
                    }
                    Notice::Failed { .. } => failures.push(notice),
                    _ => {}
                })
            };
            assert_eq!((is_changed, resumed), (!is_between, is_between));
            assert_eq!(done.expect("it ends").failed, u64::from(!is_same), "{failures:?}");
            assert_eq!((copy.exists(), partials(&place.export(""))), (is_same, 0));
            if !is_same {
                assert!(
                    matches!(&failures[..], [Notice::Failed { text, .. }] if text.contains("changed while")),
                    "{failures:?}"
                );
                complete(&transfer);
            }
            assert!(fs::read(&copy).expect("whole") == fs::read(&file).expect("there"));
        }
    }
}

#[test]
fn strangers_and_the_wrong_way_are_refused_with_reasons() {
    let place = Place::new("");
    fs::write(place.here("file"), "f").expect("written");
    let refused = |transfer: &isthmus_mover::Transfer| match run(transfer).0 {
        Err(MoverError::Refused(text)) => text,
        other => panic!("{other:?}"),
    };
    let put = place.put(&["file"], "file");
    assert!(refused(&put).contains("read-only"));
    let mut transfer = put.clone();
    transfer.export = "other".to_owned();
    assert!(refused(&transfer).contains("there is no export \"other\" for AS 1; it may use: data"));
    transfer = put.clone();
    transfer.trust = None;
    assert!(refused(&transfer).contains("leave --plain out"));
    transfer = put.clone();
    transfer.trust = Some(place.trust(3));
    let start = Instant::now();
    let text = refused(&transfer);
    assert!(text.contains("cannot be trusted") && start.elapsed() < LIMIT, "{text}");
    transfer = place.get(&["../keys/host2.key"], "key");
    assert!(refused(&transfer).contains("leads out of the folder"));
    transfer = place.get(&["/etc/passwd"], "key");
    assert!(refused(&transfer).contains("leads out of the folder"));
    transfer = place.get(&["missing"], "x");
    assert!(refused(&transfer).contains("No such file"));
    assert!(!place.here("key").exists());
}

/// What is wrong at the service is said by it, at once, and not found by its silence.
#[test]
fn an_export_whose_folder_is_gone_is_told() {
    let place = Place::writable();
    fs::write(place.here("file"), "f").expect("written");
    fs::rename(place.export(""), place.folder.path().join("elsewhere")).expect("renamed");
    for transfer in [place.put(&["file"], "file"), place.get(&["file"], "copy")] {
        let error = run(&transfer).0.expect_err("there is no such folder");
        let text = error.to_string();
        assert!(matches!(error, MoverError::Refused(_)) && text.contains("cannot be opened"), "{text}");
    }
}

#[test]
fn an_export_may_be_for_some_only() {
    let place = Place::new("allow = [7]\n");
    let error = run(&place.get(&[""], "x")).0.expect_err("AS 1 is not among them").to_string();
    assert!(error.contains("for AS 1; it may use: none"), "{error}");
}

/// Which of them would stay would be chance.
#[test]
fn two_sources_of_one_name_are_refused_from_either_side() {
    let place = Place::writable();
    for folder in [place.here(""), place.export("")] {
        for name in ["one", "two"] {
            fs::create_dir(folder.join(name)).expect("made");
            fs::write(folder.join(name).join("file"), name).expect("written");
        }
    }
    let same = ["one/file", "two/file"];
    for transfer in [place.put(&same, "copy"), place.get(&same, "")] {
        let error = run(&transfer).0.expect_err("they have one name").to_string();
        assert!(error.contains("two sources are called \"file\""), "{error}");
    }
    assert!(!place.export("copy").exists() && !place.here("file").exists());
}

/// Symbolic links within an export that lead out of it are no way out, to read or to write.
#[test]
fn symbolic_links_are_no_way_out() {
    let place = Place::writable();
    let outside = place.folder.path().join("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("secret"), "s").expect("written");
    symlink(&outside, place.export("out")).expect("made");
    symlink(outside.join("secret"), place.export("file")).expect("made");
    fs::create_dir_all(place.here("t/out")).expect("made");
    fs::write(place.here("t/out/new"), "n").expect("written");
    fs::write(place.here("new"), "n").expect("written");
    for path in ["out/", "out/new"] {
        let done = run(&place.put(&["new"], path)).0.expect_err("it leads out").to_string();
        assert!(done.contains("leads out of the folder"), "{done}");
    }
    assert!(run(&place.get(&["out/secret"], "got")).0.is_err());
    // A tree that has a folder where the export has the link.
    let mut into = place.put(&["t/out"], "");
    into.rules = Rules { all: true, ..Rules::default() };
    let (done, notices) = run(&into);
    assert!(done.expect("it ends").failed > 0, "{notices:?}");
    // A file of the link's name takes the link's place.
    fs::write(place.here("file"), "mine").expect("written");
    complete(&place.put(&["file"], ""));
    assert!(!place.export("file").is_symlink());
    assert_eq!(fs::read_dir(&outside).expect("a folder").count(), 1);
    assert_eq!(fs::read(outside.join("secret")).expect("there"), b"s");
    // What is copied out of the export are the links, not what they lead to.
    symlink(outside.join("secret"), place.here("t/abs")).expect("made");
    let (done, notices) = run(&place.put(&["t/abs"], "link"));
    assert_eq!(done.expect("it ends").failed, 0, "a source that the user named stands for what it leads to");
    drop(notices);
}

#[test]
fn symbolic_links_that_lead_out_are_taken_only_where_they_may() {
    for (line, taken) in [("writable = true\n", false), ("writable = true\nany_symlink = true\n", true)] {
        let place = Place::new(line);
        fs::create_dir(place.here("t")).expect("made");
        symlink("/etc/passwd", place.here("t/link")).expect("made");
        let (done, notices) = run(&place.put(&["t"], ""));
        assert_eq!(done.expect("it ends").failed, u64::from(!taken), "{notices:?}");
        assert_eq!(place.export("t/link").is_symlink(), taken);
    }
}

/// Each is within by its text, and together they would lead out.
#[test]
fn symbolic_links_do_not_lead_out_by_way_of_others() {
    let place = Place::writable();
    fs::write(place.folder.path().join("secret"), "s").expect("written");
    fs::create_dir(place.here("t")).expect("made");
    symlink(".", place.here("t/x")).expect("made");
    symlink("x/x/x/../../../secret", place.here("t/y")).expect("made");
    let (done, notices) = run(&place.put(&["t"], ""));
    assert_eq!(done.expect("it ends").failed, 1, "{notices:?}");
    let [Notice::Folder { .. }, Notice::Symlink { .. }, Notice::Failed { text, .. }] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert!(text.contains("goes up"), "{text}");
    assert!(place.export("t/x").is_symlink() && !place.export("t/y").is_symlink());
}

#[test]
fn a_folder_in_the_way_is_named() {
    let place = Place::writable();
    fs::create_dir_all(place.export("d/file")).expect("made");
    fs::create_dir(place.here("d")).expect("made");
    fs::write(place.here("d/file"), "f").expect("written");
    let (done, notices) = run(&place.put(&["d"], ""));
    assert_eq!(done.expect("it ends").failed, 1);
    assert!(
        matches!(&notices[0], Notice::Failed { text, .. } if text.contains("there is a folder of this name"))
    );
    let error = run(&place.put(&["d"], "no/such/place")).0.expect_err("no folder").to_string();
    assert!(error.contains("there is no folder \"no/such\""), "{error}");
}

#[test]
fn what_a_file_must_not_replace_stays_and_a_file_in_a_folders_way_is_told_once() {
    let place = Place::writable();
    fs::write(place.here("file"), "f").expect("written");
    fs::create_dir_all(place.here("d/e")).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(place.export("socket")).expect("bound");
    let fault = |transfer| {
        let (done, notices) = run(&transfer);
        assert_eq!(done.expect("it ends").failed, 1, "{notices:?}");
        let texts = notices.into_iter().filter_map(|notice| match notice {
            Notice::Failed { text, .. } => Some(text),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    let told = fault(place.put(&["file"], "socket"));
    assert!(matches!(&told[..], [text] if text.contains("device or socket of this name")), "{told:?}");
    let stat = fs::symlink_metadata(place.export("socket")).expect("it stays");
    assert!(!stat.is_file());
    fs::write(place.export("e"), "a file").expect("written");
    fs::write(place.export("d"), "a file").expect("written");
    let told = fault(place.put(&["d/e"], ""));
    assert!(matches!(&told[..], [text] if text.contains("and no folder; remove it")), "{told:?}");
    // What would be in it fails too, each once.
    let (done, notices) = run(&place.put(&["d"], ""));
    assert_eq!(done.expect("it ends").failed, 2, "{notices:?}");
    // And of all that nothing is said, from neither side.
    for number in 0..20 {
        fs::write(place.here("d/e").join(number.to_string()), "f").expect("written");
    }
    symlink("0", place.here("d/e/link")).expect("made");
    let told = |transfer: isthmus_mover::Transfer| {
        let (done, notices) = run(&transfer);
        assert_eq!(done.expect("it ends").failed, 23, "the folders, the files and the link");
        assert!(
            matches!(&notices[..], [Notice::Failed { text, .. }] if text.ends_with("nothing in it is copied")),
            "{notices:?}"
        );
    };
    let mut dry = place.put(&["d"], "");
    dry.rules.dry_run = true;
    told(dry);
    told(place.put(&["d"], ""));
    fs::rename(place.here("d"), place.folder.path().join("d")).expect("renamed");
    fs::rename(place.export("d"), place.here("d")).expect("renamed");
    fs::rename(place.folder.path().join("d"), place.export("d")).expect("renamed");
    told(place.get(&["d"], ""));
}

/// Such as one that is longer than the file system at the other end takes: that is said, and costs no more.
#[test]
fn an_attribute_that_does_not_fit_costs_only_itself() {
    let place = Place::writable();
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return println!("there is no /dev/shm") };
    let here = |name: &str| shm.path().join(name);
    fs::create_dir(here("t")).expect("made");
    for (name, len) in [("t/long", 5 * BLOCK as usize), ("t/short", 4)] {
        fs::write(here(name), pattern(len, 3)).expect("written");
    }
    let value = vec![b'x'; 20_000];
    let give = |path: std::path::PathBuf| {
        let file = fs::File::open(path).expect("there");
        rustix::fs::fsetxattr(&file, "user.big", &value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    let names = ["t/long", "t/short", "t"];
    if !names.iter().all(|name| give(here(name))) || give(place.export("")) {
        return println!("no file system here takes long attributes beside one that does not");
    }
    let put = Direction::Put { sources: vec![here("t")], path: Vec::new(), folder: true };
    // At first, and where the content is there already.
    for _ in 0..2 {
        let (done, notices) = run(&place.transfer(put.clone()));
        assert_eq!(done.expect("it ends").failed, 3, "{notices:?}");
        for name in names {
            let tells = |text: &str| text.contains("it is there, but for its extended attribute user.big");
            let of = |notice: &&Notice| matches!(notice, Notice::Failed { text, .. } if text.starts_with(&format!("{name}: ")) && tells(text));
            assert_eq!(notices.iter().filter(of).count(), 1, "{notices:?}");
        }
        for name in &names[..2] {
            assert!(fs::read(place.export(name)).expect("there") == fs::read(here(name)).expect("there"));
            let modified =
                |path: std::path::PathBuf| path.metadata().expect("there").modified().expect("known");
            assert_eq!(modified(place.export(name)), modified(here(name)));
        }
        assert_eq!(partials(&place.export("t")), 0);
    }
}

#[test]
fn a_device_that_was_named_is_not_passed_over_in_silence() {
    let place = Place::writable();
    let _socket = std::os::unix::net::UnixListener::bind(place.here("socket")).expect("bound");
    let (done, notices) = run(&place.put(&["socket"], ""));
    assert_eq!(done.expect("it ends").failed, 1);
    assert!(
        matches!(&notices[..], [Notice::Failed { text, .. }] if text.contains("neither file")),
        "{notices:?}"
    );
}

#[test]
fn a_service_that_is_not_there_is_said_to_be_gone() {
    let mut place = Place::writable();
    fs::write(place.here("file"), "f").expect("written");
    place.service.locator.set_port(1);
    // By UDP the first words leave before that is known.
    for transport in [Transport::Auto, Transport::UdpEverywhere] {
        let mut transfer = place.put(&["file"], "file");
        transfer.settings.transport = transport;
        let error = run(&transfer).0.expect_err("nobody listens there");
        let text = error.to_string();
        assert!(
            matches!(error, MoverError::Lost(_)) && text.contains("the same command continues"),
            "{text}"
        );
        assert!(text.contains("nobody listens"), "{text}");
    }
}

/// Judged by where it leads: out of what is copied, but not out of the export.
#[test]
fn symbolic_links_that_stay_inside_the_export_are_taken() {
    let place = Place::writable();
    fs::create_dir_all(place.export("deep/into")).expect("made");
    fs::create_dir(place.export("other")).expect("made");
    fs::create_dir(place.here("t")).expect("made");
    let whole = fs::canonicalize(place.export("other")).expect("there").join("file");
    symlink("../../../other/file", place.here("t/relative")).expect("made");
    symlink(&whole, place.here("t/absolute")).expect("made");
    symlink("../../../../beside", place.here("t/out")).expect("made");
    let (done, notices) = run(&place.put(&["t"], "deep/into/"));
    assert_eq!(done.expect("it ends").failed, 1, "{notices:?}");
    for name in ["relative", "absolute"] {
        assert!(place.export("deep/into/t").join(name).is_symlink(), "{name}: {notices:?}");
    }
    assert!(!place.export("deep/into/t/out").is_symlink());
}

/// What the system makes up as it is read has a length that is not its content's.
#[test]
fn files_whose_length_is_not_that_of_their_content_are_not_reported_as_copied() {
    let place = Place::writable();
    let files = [
        "/proc/self/status",
        "/proc/version",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/class/net/lo/mtu",
    ];
    for file in files {
        if !std::path::Path::new(file).exists() {
            continue;
        }
        let (done, notices) = run(&place.put(&[file], "copy"));
        let text = format!("{done:?} {notices:?}");
        let failed = done.map_or(1, |summary| summary.failed);
        assert!(failed == 1 && text.contains("as files of /proc and /sys do"), "{file}: {text}");
        assert!(!place.export("copy").exists());
    }
    fs::write(place.here("empty"), "").expect("written");
    complete(&place.put(&["empty"], "copy"));
    assert!(place.export("copy").exists());
}

/// However long its path is, what failed is told with the reason.
#[test]
fn the_reason_stands_behind_the_longest_path() {
    let place = Place::writable();
    let deep = vec!["d".repeat(60); 8].join("/");
    fs::create_dir_all(place.here(&format!("t/{deep}"))).expect("made");
    std::os::unix::net::UnixListener::bind(place.here("t/socket")).expect("made");
    fs::write(place.here(&format!("t/{deep}/file")), "f").expect("written");
    fs::create_dir_all(place.export(&format!("t/{deep}/file"))).expect("in the way");
    let (done, notices) = run(&place.put(&["t"], ""));
    assert_eq!(done.expect("it ends").failed, 1, "{notices:?}");
    let is_whole = |notice: &Notice| {
        matches!(notice, Notice::Failed { text, .. }
            if text.len() > 300 && text.ends_with("there is a folder of this name; remove it, or copy elsewhere"))
    };
    assert!(notices.iter().any(is_whole), "{notices:?}");
}

#[test]
fn trees_that_are_too_deep_stop_with_a_reason() {
    let place = Place::writable();
    let mut folder = place.here("t");
    fs::create_dir(&folder).expect("made");
    for _ in 0..205 {
        folder.push("d");
        fs::create_dir(&folder).expect("made");
    }
    let (done, notices) = run(&place.put(&["t"], ""));
    assert_eq!(done.expect("it ends").failed, 1, "{notices:?}");
    let says_why = |notice: &Notice| matches!(notice, Notice::Failed { text, .. } if text.contains("200 folders deep; nothing below it is copied"));
    assert!(notices.iter().any(says_why), "{notices:?}");
}
