//! Files and trees, there and back, over real sockets.

mod support;

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use isthmus_mover::channel::PROTOCOLS;
use isthmus_mover::names::shown;
use isthmus_mover::wire::{Choice, Rules, Share};
use isthmus_mover::{Direction, MoverError, Notice, Transfer};
use support::*;

#[test]
fn files_of_many_lengths_go_there_and_back_with_their_digests() {
    let place = Place::writable();
    let block = BLOCK as usize;
    for (seed, len) in
        [0, 1, 4096, block - 1, block, block + 1, 5 * block, 40 * block + 7].into_iter().enumerate()
    {
        let bytes = pattern(len, seed as u8);
        fs::write(place.here("file"), &bytes).expect("written");
        let (summary, notices) = complete(&place.put(&["file"], "there"));
        assert_eq!((summary.files, summary.bytes), (1, len as u64));
        let digest = blake3::hash(&bytes).to_hex().to_string();
        assert!(
            notices.iter().any(|notice| matches!(notice, Notice::File { blake3, .. } if *blake3 == digest))
        );
        assert!(fs::read(place.export("there")).expect("it is there") == bytes, "{len} bytes differ");
        let (_, notices) = complete(&place.get(&["there"], "back"));
        assert!(
            notices.iter().any(|notice| matches!(notice, Notice::File { blake3, .. } if *blake3 == digest))
        );
        assert!(fs::read(place.here("back")).expect("it came back") == bytes, "{len} bytes differ");
        for path in [place.export("there"), place.here("back"), place.here("file")] {
            fs::remove_file(path).expect("removed");
        }
    }
    assert_eq!(fs::read_dir(place.export("")).expect("a folder").count(), 0, "nothing is left over");
}

fn age(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000 + seconds, 123_456_789);
    let file = File::open(path).expect("there");
    file.set_times(FileTimes::new().set_modified(time).set_accessed(time)).expect("set");
}

fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/empty")).expect("made");
    for i in 0..300 {
        fs::write(root.join(format!("a/small-{i}")), pattern(i * 17 % 5000, i as u8)).expect("written");
    }
    fs::write(root.join("a/b/large"), pattern(3_000_000, 1)).expect("written");
    fs::write(root.join("nothing"), "").expect("written");
    let name = "n".repeat(255);
    fs::write(root.join(&name), "long").expect("written");
    symlink("../nothing", root.join("a/link")).expect("made");
    fs::set_permissions(root.join("a/small-3"), fs::Permissions::from_mode(0o640)).expect("set");
    age(&root.join("a/small-3"), 3);
    age(&root.join("a/b/large"), 4);
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o555)).expect("set");
    for (folder, seconds) in [("a/b/empty", 5), ("a/b", 6), ("a", 7)] {
        age(&root.join(folder), seconds);
    }
}

#[test]
fn a_tree_is_the_same_there_and_back_and_is_not_sent_twice() {
    let place = Place::writable();
    let source = place.here("tree");
    fs::create_dir(&source).expect("made");
    make_tree(&source);
    let there = tree(&source);
    let (summary, _) = complete(&place.put(&["tree"], ""));
    assert_eq!(summary.files, 303);
    assert_eq!(tree(&place.export("tree")), there);
    let (summary, notices) = complete(&place.put(&["tree"], ""));
    assert_eq!((summary.files, summary.kept), (0, 303));
    assert!(notices.iter().all(|notice| matches!(notice, Notice::Kept { why: "same", .. })), "{notices:?}");
    // As another name, which is not there yet.
    let (summary, _) = complete(&place.get(&["tree/a/"], "renamed"));
    assert_eq!(summary.files, 301);
    assert_eq!(tree(&place.here("renamed")), tree(&source.join("a")));
    // The export itself.
    fs::create_dir(place.here("all")).expect("made");
    complete(&place.get(&[""], "all"));
    assert_eq!(tree(&place.here("all/data/tree")), there);
}

#[test]
fn choices_and_rules_hold() {
    let place = Place::writable();
    for name in ["x.tmp", "keep.tmp", "run/a.dat", "run/b.tmp", "cache/big"] {
        let path = place.here("t").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, name).expect("written");
    }
    let choice = Choice {
        recursive: true,
        exclude: vec!["*.tmp".to_owned(), "/cache".to_owned()],
        include: vec!["keep*".to_owned()],
        ..Choice::default()
    };
    let mut transfer = place.put(&["t"], "");
    transfer.choice = choice.clone();
    transfer.rules.dry_run = true;
    let (summary, notices) = complete(&transfer);
    assert_eq!(summary.files, 2);
    assert!(notices.iter().all(|notice| matches!(notice, Notice::Would { .. })), "{notices:?}");
    assert!(!place.export("t").exists(), "a dry run changes nothing");
    transfer.rules.dry_run = false;
    complete(&transfer);
    let names: Vec<_> = tree(&place.export("t")).into_keys().collect();
    assert_eq!(names, ["keep.tmp", "run", "run/a.dat"]);
    // The other way round the patterns are the service's to obey.
    let mut back = place.get(&["t/"], "back");
    back.choice = Choice { exclude: vec!["run/*".to_owned()], ..choice };
    complete(&back);
    assert_eq!(tree(&place.here("back")).into_keys().collect::<Vec<_>>(), ["keep.tmp", "run"]);

    fs::write(place.export("t/keep.tmp"), "newer there").expect("written");
    let mut update = place.put(&["t"], "");
    update.rules = Rules { update: true, ..Rules::default() };
    let (_, notices) = complete(&update);
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Kept { why: "newer", .. })), "{notices:?}");
    assert_eq!(fs::read(place.export("t/keep.tmp")).expect("there"), b"newer there");
    complete(&place.put(&["t"], ""));
    assert_eq!(fs::read(place.export("t/keep.tmp")).expect("there"), b"keep.tmp");
}

/// And a dry run says of them what the copy itself does.
#[test]
fn folders_and_links_obey_the_rules_as_files_do() {
    for is_put in [true, false] {
        obey_the_rules(is_put);
    }
}

fn obey_the_rules(is_put: bool) {
    let place = Place::writable();
    let mut roots = [place.here(""), place.export("")];
    if !is_put {
        roots.reverse();
    }
    let [from, to] = roots;
    for root in [&from, &to] {
        fs::create_dir_all(root.join("t/both")).expect("made");
    }
    fs::create_dir(from.join("t/new")).expect("made");
    // Before that of the source, or it might be newer.
    symlink("x", to.join("t/same")).expect("made");
    for (name, there) in [("newer", Some("n")), ("same", None), ("missing", None), ("pipe", None)] {
        symlink("x", from.join("t").join(name)).expect("made");
        if let Some(content) = there {
            fs::write(to.join("t").join(name), content).expect("written");
        }
    }
    age(&to.join("t/newer"), 1 << 30);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, to.join("t/pipe"), fifo, 0o600.into(), 0).expect("made");
    let mut transfer = if is_put { place.put(&["t"], "") } else { place.get(&["t"], ".") };
    transfer.rules = Rules { update: true, dry_run: true, sync: true, ..Rules::default() };
    let texts = |notices: &[Notice], failed: &mut u64| {
        let text = |notice: &Notice| match notice {
            Notice::Would { path, bytes, kind } => format!("would {} {bytes} {kind:?}", shown(&path.0)),
            Notice::Kept { path, why, .. } => format!("{why} {}", shown(&path.0)),
            Notice::Failed { text, .. } => {
                *failed += 1;
                text.clone()
            }
            Notice::Folder { path } | Notice::Symlink { path } => format!("made {}", shown(&path.0)),
            other => panic!("{other:?}"),
        };
        let mut texts: Vec<_> = notices.iter().map(text).collect();
        texts.sort();
        texts
    };
    for dry_run in [true, false] {
        transfer.rules.dry_run = dry_run;
        let (done, notices) = run(&transfer);
        let (mut failed, done) = (0, done.expect("it ends"));
        let told = texts(&notices, &mut failed);
        assert_eq!((done.files, done.kept, done.failed, failed), (0, 0, 1, 1), "{told:?}");
        let mut expected =
            vec!["newer t/newer", "t/pipe: there is a pipe of this name; remove it, or copy elsewhere"];
        expected.extend(match dry_run {
            true => ["would t/missing 0 Symlink", "would t/new 0 Folder"],
            false => ["made t/missing", "made t/new"],
        });
        expected.sort_unstable();
        assert_eq!(told, expected);
        let made = [to.join("t/new").is_dir(), to.join("t/missing").is_symlink()];
        assert_eq!(made, [!dry_run; 2]);
    }
    assert_eq!(fs::read(to.join("t/newer")).expect("it stays"), b"n");
    // Without the rule it is replaced, and what is no file is not.
    transfer.rules = Rules::default();
    assert_eq!(run(&transfer).0.expect("it ends").failed, 1);
    assert!(to.join("t/newer").is_symlink() && !to.join("t/pipe").is_symlink());
}

/// A copy of these to there.
type Copying<'a> = Box<dyn Fn(&[&str], &str) -> Transfer + 'a>;

/// Both ways of it, and the folder that it goes to.
fn both_ways(place: &Place) -> [(&'static str, Copying<'_>, std::path::PathBuf); 2] {
    [
        ("put", Box::new(|paths, to| place.put(paths, to)), place.export("")),
        ("get", Box::new(|paths, to| place.get(paths, to)), place.here("")),
    ]
}

fn names(folder: &Path) -> Vec<String> {
    tree(folder).into_keys().collect()
}

/// Whether the destination was there or not: what is there after the first copy is no reason to copy elsewhere.
#[test]
fn a_folder_that_is_copied_again_goes_where_it_went() {
    let place = Place::writable();
    for root in [place.here("run"), place.export("run")] {
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(root.join("sub/f"), "f").expect("written");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).expect("set");
        age(&root, 9);
    }
    for (way, copy, there) in both_ways(&place) {
        for (source, inside) in [("run", vec!["run", "run/sub", "run/sub/f"]), ("run/", vec!["sub", "sub/f"])]
        {
            for again in [false, true] {
                let (summary, _) = complete(&copy(&[source], "new"));
                assert_eq!(
                    (summary.files, summary.kept),
                    (u64::from(!again), u64::from(again)),
                    "{way} {source}"
                );
                assert_eq!(names(&there.join("new")), inside, "{way} {source}");
            }
            fs::remove_dir_all(there.join("new")).expect("removed");
        }
        // Nobody is let into a folder who was not let into its source; one that was there keeps what it has.
        complete(&copy(&["run/."], "new/"));
        let stat = there.join("new").metadata().expect("made");
        assert_eq!((stat.mode() & 0o7777, stat.mtime()), (0o700, 1_500_000_009), "{way}");
        fs::set_permissions(there.join("new"), fs::Permissions::from_mode(0o755)).expect("set");
        complete(&copy(&["run/."], "new"));
        assert_eq!(there.join("new").metadata().expect("there").mode() & 0o7777, 0o755, "{way}");
        // Into what is there already, the export or this folder.
        let to = if way == "get" { "." } else { "" };
        complete(&copy(&["run/"], to));
        assert!(there.join("sub/f").exists(), "{way}");
        fs::write(there.join("file"), "in the way").expect("written");
        let refused = run(&copy(&["run"], "file"));
        assert!(refused.0.map_or(true, |summary| summary.failed > 0), "{way}");
        assert_eq!(fs::read(there.join("file")).expect("there"), b"in the way");
        let error = run(&copy(&["run/", "run"], "new")).0.expect_err("no place of their own").to_string();
        assert!(error.contains("name no other source"), "{error}");
    }
    // All that is exported, with and without the export's own name.
    complete(&place.get(&["./"], "flat"));
    assert_eq!(names(&place.here("flat")), names(&place.export("")));
}

#[test]
fn patterns_mean_what_they_mean_to_rsync() {
    let place = Place::writable();
    for name in
        ["x.h5", "x.log", "cache/c", "a/cache/c", "a/cache.h5", "sub/y.h5", "sub/deep/z.h5", "sub/deep/z.log"]
    {
        let path = place.here("t").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, name).expect("written");
    }
    fs::write(place.here("t/a/deep"), "a file").expect("written");
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let copied = |exclude: &[&str], include: &[&str]| {
        let mut transfer = place.put(&["t"], "");
        (transfer.choice.exclude, transfer.choice.include) = (owned(exclude), owned(include));
        complete(&transfer);
        let names = names(&place.export("t"));
        fs::remove_dir_all(place.export("t")).expect("removed");
        names
    };
    let all = copied(&[], &[]);
    let without = |gone: &[&str]| {
        let is_gone =
            |name: &String| gone.iter().any(|gone| name == gone || name.starts_with(&format!("{gone}/")));
        all.iter().filter(|name| !is_gone(name)).cloned().collect::<Vec<_>>()
    };
    assert_eq!(copied(&["/cache"], &[]), without(&["cache"]), "the source's own");
    assert_eq!(copied(&["cache/"], &[]), without(&["cache", "a/cache"]), "wherever");
    assert_eq!(copied(&["deep/"], &[]), without(&["sub/deep"]), "folders only");
    assert_eq!(copied(&["deep/z.log"], &[]), without(&["sub/deep/z.log"]), "the end of a path");
    assert_eq!(copied(&["/deep/z.log", "/z.log"], &[]), all, "nothing is called so");
    assert_eq!(copied(&["/sub/**/z.*"], &[]), without(&["sub/deep/z.h5", "sub/deep/z.log"]));
    assert_eq!(copied(&["/sub/*"], &[]), without(&["sub/deep", "sub/y.h5"]));
    let only =
        ["a", "a/cache", "a/cache.h5", "cache", "sub", "sub/deep", "sub/deep/z.h5", "sub/y.h5", "x.h5"];
    assert_eq!(copied(&["*"], &["*.h5", "*/"]), only, "folders are looked into");
    assert_eq!(copied(&["*"], &["*.h5"]), ["x.h5"], "and are not");
    let mut named = place.put(&["t/x.log"], "");
    named.choice.exclude = owned(&["*.log"]);
    complete(&named);
    assert!(place.export("x.log").exists(), "what is named is copied");
}

#[test]
fn names_at_the_service_are_found_by_patterns() {
    let place = Place::writable();
    for name in ["run1/x.h5", "run2/x.h5", "run2/y.h5", "a.h5", "b.h5", "b[1].h5"] {
        let path = place.export(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, name).expect("written");
    }
    complete(&place.get(&["*.h5", "run2/?.h5"], "new"));
    assert_eq!(names(&place.here("new")), ["a.h5", "b.h5", "b[1].h5", "x.h5", "y.h5"]);
    complete(&place.get(&["run*"], "new"));
    assert!(place.here("new/run1/x.h5").exists() && place.here("new/run2/y.h5").exists());
    let error = run(&place.get(&["run?/"], "one")).0.expect_err("of several folders").to_string();
    assert!(error.contains("name no other source"), "{error}");
    complete(&place.get(&["b[1].h5"], "c.h5"));
    assert_eq!(fs::read(place.here("c.h5")).expect("its new name"), b"b[1].h5");
    let (done, notices) = run(&place.get(&["*.nc", "a.h5"], "two"));
    assert_eq!(done.expect("the other is copied").failed, 1, "{notices:?}");
    assert!(
        notices
            .iter()
            .any(|notice| matches!(notice, Notice::Failed { text, .. } if text.contains("name fits")))
    );
}

/// A hole costs nothing of what the user allows.
#[test]
fn a_limit_is_about_what_is_sent() {
    let place = Place::writable();
    File::create(place.here("hole")).expect("made").set_len(1 << 30).expect("set");
    for mut transfer in [place.put(&["hole"], "there"), place.get(&["there"], "back")] {
        // As data it would take more than four hours.
        transfer.rate = 64 << 10;
        transfer.block = 1 << 20;
        complete(&transfer);
    }
    assert_eq!(place.here("back").metadata().expect("there").len(), 1 << 30);
}

#[test]
fn a_source_that_is_missing_does_not_hold_up_the_others() {
    let place = Place::writable();
    for root in [place.here(""), place.export("")] {
        fs::write(root.join("f1"), "1").expect("written");
        fs::write(root.join("f2"), "2").expect("written");
        symlink("nowhere", root.join("dangling")).expect("made");
    }
    for (way, copy, there) in both_ways(&place) {
        let (done, notices) = run(&copy(&["f1", "nosuch", "dangling", "f2"], "new/"));
        let summary = done.unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!((summary.files, summary.failed), (2, 2), "{way}: {notices:?}");
        for missing in ["nosuch", "dangling"] {
            let is_named = |notice: &Notice| match notice {
                Notice::Failed { path, text } => {
                    path.0.ends_with(missing.as_bytes()) && text.contains("No such file")
                }
                _ => false,
            };
            assert!(notices.iter().any(is_named), "{way}: {notices:?}");
        }
        assert_eq!(names(&there.join("new")), ["f1", "f2"], "{way}");
    }
}

#[test]
fn a_symbolic_link_that_is_named_stands_for_what_it_leads_to_from_either_side() {
    let place = Place::writable();
    for root in [place.here(""), place.export("")] {
        fs::create_dir_all(root.join("runs/42")).expect("made");
        fs::write(root.join("runs/42/f"), "f").expect("written");
        symlink("42", root.join("runs/latest")).expect("made");
        symlink("runs/latest/f", root.join("file")).expect("made");
        symlink("f", root.join("runs/42/inner")).expect("made");
    }
    for (way, copy, there) in both_ways(&place) {
        complete(&copy(&["file", "runs/latest"], "new/"));
        let there = there.join("new");
        assert_eq!(names(&there), ["file", "latest", "latest/f", "latest/inner"], "{way}");
        assert!(!there.join("file").is_symlink() && !there.join("latest").is_symlink(), "{way}");
        assert!(there.join("latest/inner").is_symlink(), "{way}: those that are found stay links");
    }
}

/// Of all that is made or left out, whatever it is called.
#[test]
fn both_sides_name_a_copy_s_paths_alike() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::writable();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\n");
    let long = ["n".repeat(200), "m".repeat(200)].join("/");
    for root in [place.here("t"), place.export("t")] {
        fs::create_dir_all(root.join(&long)).expect("made");
        fs::write(root.join(odd), "o").expect("written");
        symlink("t", root.join("link")).expect("made");
    }
    let socket = std::os::unix::net::UnixListener::bind(place.here("t/socket"));
    let _sockets = [socket, std::os::unix::net::UnixListener::bind(place.export("t/socket"))];
    let told = |transfer: &Transfer| {
        let (_, notices) = complete(transfer);
        let mut told: Vec<(String, Vec<u8>)> = notices
            .into_iter()
            .map(|notice| match notice {
                Notice::File { path, .. } => ("file".to_owned(), path.0),
                Notice::Folder { path } => ("folder".to_owned(), path.0),
                Notice::Symlink { path } => ("symlink".to_owned(), path.0),
                Notice::Warning { path, .. } => ("warning".to_owned(), path.0),
                Notice::Kept { path, .. } => ("kept".to_owned(), path.0),
                Notice::Would { path, kind, .. } => (format!("would {kind:?}"), path.0),
                other => panic!("{other:?}"),
            })
            .collect();
        told.sort();
        told
    };
    let dry = |mut transfer: Transfer| {
        transfer.rules.dry_run = true;
        transfer
    };
    let [one, two] = [format!("t/{}", "n".repeat(200)), format!("t/{long}")].map(String::into_bytes);
    for (way, copy, there) in both_ways(&place) {
        let all = |file: &str, folder: &str, symlink: &str| {
            let of = |kind: &str, path: &[u8]| (kind.to_owned(), path.to_vec());
            let mut all = vec![of(file, b"t/odd\xff\n"), of("warning", b"t/socket"), of(symlink, b"t/link")];
            all.extend([&b"t"[..], &one, &two].map(|path| of(folder, path)));
            all.sort();
            all
        };
        let would = told(&dry(copy(&["t"], "new")));
        assert_eq!(would, all("would File", "would Folder", "would Symlink"), "{way}");
        assert!(!there.join("new").exists(), "{way}");
        assert_eq!(told(&copy(&["t"], "new")), all("file", "folder", "symlink"), "{way}");
        // What is there already is not told again but for files, of which it is said that they are left alone.
        let mut left =
            vec![("kept".to_owned(), b"t/odd\xff\n".to_vec()), ("warning".to_owned(), b"t/socket".to_vec())];
        assert_eq!(told(&copy(&["t"], "new")), left, "{way}");
        assert_eq!(told(&dry(copy(&["t"], "new"))), left, "{way}");
        // A single file's new name is that at the destination, whichever side tells of it.
        fs::write(place.here("f1"), way).expect("written");
        fs::write(place.export("f1"), way).expect("written");
        assert_eq!(told(&dry(copy(&["f1"], "f2"))), [("would File".to_owned(), b"f2".to_vec())], "{way}");
        assert_eq!(told(&copy(&["f1"], "f2")), [("file".to_owned(), b"f2".to_vec())], "{way}");
        left = told(&copy(&["f1"], "f2"));
        assert_eq!(left, [("kept".to_owned(), b"f2".to_vec())], "{way}");
    }
}

#[test]
fn holes_stay_holes() {
    let place = Place::writable();
    for (name, len, at) in [("large", 64 << 20, 33 << 20), ("small", 60_000, 40_000)] {
        let file = File::create(place.here(name)).expect("made");
        file.set_len(len).expect("set");
        file.write_all_at(&pattern(9000, 5), at).expect("written");
        drop(file);
        complete(&place.put(&[name], ""));
        let (here, there) = (place.here(name), place.export(name));
        assert!(fs::read(&here).expect("here") == fs::read(&there).expect("there"));
        let (here, there) = (here.metadata().expect("here"), there.metadata().expect("there"));
        assert!(there.blocks() <= here.blocks() + 64, "{} blocks of {}", there.blocks(), here.blocks());
    }
}

/// Space that `fallocate` has reserved and nobody has written has blocks on the disk, but nothing of it crosses the
/// network.
#[test]
fn reserved_space_is_not_sent() {
    let place = Place::writable();
    let file = File::create(place.here("reserved")).expect("made");
    let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 256 << 20);
    if reserved.is_err() || file.metadata().expect("ours").len() == 0 {
        println!("this file system reserves no space");
        return;
    }
    file.write_all_at(&pattern(3 << 20, 7), 100 << 20).expect("written");
    drop(file);
    let has_holes = {
        let file = File::open(place.here("reserved")).expect("there");
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).expect("a position") == 0
    };
    if !has_holes {
        println!("this file system does not tell what nobody has written");
        return;
    }
    let (summary, _) = complete(&place.put(&["reserved"], ""));
    assert!(summary.sent <= 8 << 20, "{} bytes were sent", summary.sent);
    // The receiver counts the same.
    let (summary, _) = complete(&place.get(&["reserved"], "back"));
    assert!(summary.sent <= 8 << 20, "{} bytes came", summary.sent);
    let (here, there) = (place.here("reserved"), place.export("reserved"));
    assert!(fs::read(here).expect("here") == fs::read(there).expect("there"));
}

#[test]
fn extended_attributes_are_kept_where_the_file_systems_have_them() {
    let place = Place::writable();
    fs::write(place.here("x"), "x").expect("written");
    let file = File::open(place.here("x")).expect("there");
    let value = b"1.5 mm\0binary";
    if rustix::fs::fsetxattr(&file, "user.detector", value, rustix::fs::XattrFlags::empty()).is_err() {
        println!("this file system has no extended attributes");
        return;
    }
    complete(&place.put(&["x"], ""));
    let there = attributes(&place.export("x"));
    assert_eq!(there.get("user.detector").expect("it is kept"), value);
}

/// A second copy sends no content again; what was changed beside it arrives all the same, and what was taken away goes.
#[test]
fn what_changed_beside_the_content_is_brought_up_to_date() {
    let place = Place::writable();
    fs::create_dir(place.here("t")).expect("made");
    for (name, len) in [("small", 10), ("large", 5 * BLOCK as usize)] {
        fs::write(place.here("t").join(name), pattern(len, 1)).expect("written");
    }
    let set = |name: &str, key: &str, value: &str| {
        let file = File::open(place.here(name)).expect("there");
        rustix::fs::fsetxattr(&file, key, value.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    let has_attributes = set("t/small", "user.gone", "1").is_ok();
    if !has_attributes {
        println!("this file system has no extended attributes");
    }
    let names = ["t", "t/small", "t/large"];
    for name in names.into_iter().filter(|_| has_attributes) {
        for (key, value) in [("user.gone", "1"), ("user.same", "2"), ("user.other", "3")] {
            set(name, key, value).expect("set");
        }
    }
    complete(&place.put(&["t"], ""));
    for name in names {
        if has_attributes {
            let file = File::open(place.here(name)).expect("there");
            rustix::fs::fremovexattr(&file, "user.gone").expect("removed");
            if name == "t" {
                for key in ["user.same", "user.other"] {
                    rustix::fs::fremovexattr(&file, key).expect("removed");
                }
            } else {
                set(name, "user.other", "4").expect("set");
                set(name, "user.new", "5").expect("set");
            }
        }
        fs::set_permissions(place.here(name), fs::Permissions::from_mode(0o500)).expect("set");
    }
    let (before, there) = (tree(&place.here("t")), |name: &str| place.export(name));
    // What is made in it is its group's, as is the way in folders of a project.
    fs::set_permissions(there("t"), fs::Permissions::from_mode(0o2755)).expect("set");
    let mut transfer = place.put(&["t"], "");
    transfer.rules.dry_run = true;
    complete(&transfer);
    assert_ne!(tree(&there("t")), before, "a dry run changes nothing");
    let (summary, _) = complete(&place.put(&["t"], ""));
    assert_eq!((summary.files, summary.kept), (0, 2));
    assert_eq!(tree(&there("t")), before);
    assert_eq!(attributes(&there("t")), attributes(&place.here("t")));
    assert_eq!(there("t").metadata().expect("there").mode() & 0o7777, 0o2500);
    // New files go into a folder that its owner may not write to, and it is so again afterwards.
    for (mode, name) in [(0o700, Some("t/more")), (0o500, None)] {
        fs::set_permissions(place.here("t"), fs::Permissions::from_mode(mode)).expect("set");
        name.into_iter().for_each(|name| fs::write(place.here(name), name).expect("written"));
    }
    complete(&place.put(&["t"], ""));
    assert_eq!(tree(&there("t")), tree(&place.here("t")));
    assert_eq!(there("t").metadata().expect("there").mode() & 0o7777, 0o2500);
}

/// Only the very names of partial files are left out.
#[test]
fn a_user_s_file_may_be_named_much_like_a_partial_one() {
    let place = Place::writable();
    fs::create_dir(place.here("t")).expect("made");
    for name in [".isthmus-notes.part", ".isthmus-run.journal"] {
        fs::write(place.here("t").join(name), name).expect("written");
    }
    fs::write(place.here("t/.isthmus-0123456789abcdef.part"), "half").expect("written");
    let (_, notices) = complete(&place.put(&["t"], ""));
    let warned =
        |notice: &Notice| matches!(notice, Notice::Warning { text, .. } if text.contains("abcdef.part"));
    assert!(notices.iter().any(warned), "not without a word: {notices:?}");
    let names: Vec<_> = tree(&place.export("t")).into_keys().collect();
    assert_eq!(names, [".isthmus-notes.part", ".isthmus-run.journal"]);
}

#[test]
fn what_is_no_file_is_named_and_the_rest_is_copied() {
    let place = Place::writable();
    fs::create_dir(place.here("t")).expect("made");
    fs::write(place.here("t/file"), "f").expect("written");
    let _socket = std::os::unix::net::UnixListener::bind(place.here("t/socket")).expect("bound");
    let (summary, notices) = complete(&place.put(&["t"], ""));
    assert_eq!(summary.files, 1);
    assert!(matches!(&notices[..], [.., Notice::File { .. }] | [Notice::File { .. }, ..]), "{notices:?}");
    assert!(
        notices
            .iter()
            .any(|notice| matches!(notice, Notice::Warning { text, .. } if text.contains("socket")))
    );
}

#[test]
fn a_folder_without_r_is_no_source() {
    let place = Place::writable();
    fs::create_dir(place.here("t")).expect("made");
    let mut transfer = place.put(&["t"], "");
    transfer.choice.recursive = false;
    let (done, notices) = run(&transfer);
    assert_eq!(done.expect("it ends").failed, 1);
    assert!(matches!(&notices[..], [Notice::Failed { text, .. }] if text.contains("add -r")), "{notices:?}");
}

#[test]
fn several_processes_share_a_tree() {
    let place = Place::writable();
    for number in 0..60 {
        let path = place.here("tree").join(format!("{}/{number}", number % 3));
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, pattern(1000 * number, number as u8)).expect("written");
    }
    symlink("0/3", place.here("tree/link")).expect("made");
    let ranks = 4;
    let share = |mut transfer: Transfer, rank| {
        transfer.choice.share = Share { rank, ranks };
        transfer
    };
    // At once, as a launcher starts them: each makes the folders, and takes its own files.
    let all = |of: &(dyn Fn() -> Transfer + Sync)| {
        std::thread::scope(|scope| {
            let runs: Vec<_> =
                (0..ranks).map(|rank| scope.spawn(move || complete(&share(of(), rank)).0.files)).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect::<Vec<_>>()
        })
    };
    let into_new = || {
        let (sources, path) = (vec![place.here("tree")], b"new".to_vec());
        place.transfer(Direction::Put { sources, path, folder: true })
    };
    let sent = all(&into_new);
    assert_eq!(sent.iter().sum::<u64>(), 60, "{sent:?}");
    assert!(sent.iter().all(|files| *files > 0), "{sent:?}");
    assert_eq!(tree(&place.export("new/tree")), tree(&place.here("tree")));
    fs::create_dir(place.here("back")).expect("made");
    let fetched = all(&|| place.get(&["new/tree"], "back/"));
    assert_eq!(fetched.iter().sum::<u64>(), 60, "{fetched:?}");
    assert_eq!(tree(&place.here("back/tree")), tree(&place.here("tree")));
    let (none, _) = run(&share(place.put(&["tree"], ""), ranks));
    assert!(matches!(none, Err(MoverError::Usage(_))), "{none:?}");
}

#[test]
fn several_processes_share_a_long_file() {
    let place = Place::writable();
    let (ranks, len) = (3, 60 * BLOCK as usize + 5);
    let bytes = pattern(len, 3);
    fs::create_dir(place.here("tree")).expect("made");
    fs::write(place.here("tree/long"), &bytes).expect("written");
    let share = |mut transfer: Transfer, rank| {
        transfer.choice.share = Share { rank, ranks };
        transfer
    };
    let digest = blake3::hash(&bytes).to_hex().to_string();
    let told = |notices: &[Notice]| {
        let ours = |notice: &&Notice| matches!(notice, Notice::File { blake3, .. } if *blake3 == digest);
        notices.iter().filter(ours).count()
    };
    // One after the other: the last gives the file its name. Of the first two nothing is seen yet.
    let put = |rank| share(place.put(&["tree"], ""), rank);
    for (rank, files) in [(2, 0), (0, 0), (1, 1)] {
        let (summary, notices) = complete(&put(rank));
        assert_eq!((summary.files, summary.bytes), (files, 20 * BLOCK + if rank == 2 { 5 } else { 0 }));
        assert_eq!((told(&notices), place.export("tree/long").exists()), (files as usize, files == 1));
    }
    assert!(fs::read(place.export("tree/long")).expect("there") == bytes);
    assert_eq!(fs::read_dir(place.export("tree")).expect("a folder").count(), 1, "nothing is left over");
    let (again, _) = complete(&put(1));
    assert_eq!((again.files, again.kept), (0, 1));
    // At once, and back.
    fs::create_dir(place.here("back")).expect("made");
    let files: u64 = std::thread::scope(|scope| {
        let get = |rank| share(place.get(&["tree"], "back/"), rank);
        let runs: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || complete(&get(rank)).0.files)).collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).sum()
    });
    assert_eq!(files, 1, "one of them gave it its name");
    assert_eq!(tree(&place.here("back/tree")), tree(&place.here("tree")));
}

#[test]
fn several_processes_share_a_long_file_with_holes_and_keep_them() {
    let place = Place::writable();
    let (ranks, len) = (3, 300 * BLOCK);
    fs::create_dir(place.here("tree")).expect("made");
    let file = File::create(place.here("tree/long")).expect("made");
    file.set_len(len).expect("set");
    // In the first share and the last, and across a block's end; of the second there is nothing.
    for at in [5, 17 * BLOCK - 4000, 299 * BLOCK] {
        file.write_all_at(&pattern(9000, 5), at).expect("written");
    }
    drop(file);
    let share = |mut transfer: Transfer, rank| {
        transfer.choice.share = Share { rank, ranks };
        transfer
    };
    let same = |one: &Path, other: &Path| {
        assert!(fs::read(one).expect("one") == fs::read(other).expect("the other"));
        let blocks = [one, other].map(|path| path.metadata().expect("there").blocks());
        assert!(blocks[1] <= blocks[0] + 64, "{blocks:?}");
    };
    // One after the other, so each brings its own share, whether it has data or none.
    for (rank, files) in [(1, 0), (2, 0), (0, 1)] {
        let (summary, _) = complete(&share(place.put(&["tree"], ""), rank));
        assert_eq!((summary.files, summary.bytes), (files, 100 * BLOCK));
    }
    same(&place.here("tree/long"), &place.export("tree/long"));
    fs::create_dir(place.here("back")).expect("made");
    let files: u64 = std::thread::scope(|scope| {
        let get = |rank| share(place.get(&["tree"], "back/"), rank);
        let runs: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || complete(&get(rank)).0.files)).collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).sum()
    });
    assert_eq!(files, 1, "one of them gave it its name");
    same(&place.export("tree/long"), &place.here("back/tree/long"));
}

/// A build that speaks one version more copies to and from this one.
#[test]
fn builds_whose_versions_overlap_copy() {
    let later: &[&[u8]] = &[&[&b"isthmus-mover/7"[..]], PROTOCOLS].concat();
    for [service, client] in [[later, PROTOCOLS], [PROTOCOLS, later]] {
        let place = Place::speaking(service, "writable = true\n");
        fs::write(place.here("file"), "across versions").expect("written");
        let trust = Some(place.trust_speaking(client, 1));
        let copies = [place.put(&["file"], "there"), place.get(&["there"], "back")];
        for copy in copies {
            let done = Transfer { trust: trust.clone(), ..copy }.run(&mut |_| ()).expect("copied");
            assert_eq!((done.files, done.failed), (1, 0));
        }
        assert_eq!(fs::read(place.here("back")).expect("there"), b"across versions");
    }
    // Where there is no common one, the reason is said.
    let place = Place::speaking(&[b"isthmus-mover/7"], "writable = true\n");
    fs::write(place.here("file"), "").expect("written");
    let refused = place.put(&["file"], "there").run(&mut |_| ()).expect_err("no common version").to_string();
    assert!(refused.contains("another release"), "{refused}");
}
