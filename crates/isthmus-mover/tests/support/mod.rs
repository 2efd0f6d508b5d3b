//! What the mover's tests share: a service in this process, and clients.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]

#[path = "../../../isthmus-io/tests/support/waits.rs"]
mod waits;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use isthmus_io::Settings;
use isthmus_mover::channel::PROTOCOLS;
use isthmus_mover::wire::{Choice, Rules};
use isthmus_mover::{Direction, MoverError, Notice, ServeConfig, Summary, Transfer, server};
use isthmus_trust::{Files, Keygen, Trust};
use isthmus_wire::{Address, AsId};
use waits::give_up;

pub const LIMIT: Duration = Duration::from_secs(60);
pub const BLOCK: u64 = 64 << 10;

/// A folder with an export, a service for it, and certificates of both sides.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub service: Address,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), MoverError>>>,
}

pub fn keys(folder: &Path, own: u32, other: u32) -> Files {
    for as_id in [own, other] {
        let name = format!("host{as_id}");
        if !folder.join(format!("{name}.pem")).exists() {
            Keygen { as_id, folder, name: &name, days: 1 }.make().expect("made");
        }
    }
    Files {
        certificate: folder.join(format!("host{own}.pem")),
        key: folder.join(format!("host{own}.key")),
        authorities: vec![folder.join(format!("as{other}.pem"))],
        denied: None,
    }
}

impl Place {
    /// With more lines for the export.
    pub fn new(export: &str) -> Self {
        Self::speaking(PROTOCOLS, export)
    }

    /// The same of a service that speaks these versions.
    pub fn speaking(protocols: &[&[u8]], export: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for name in ["export", "here", "keys"] {
            fs::create_dir(root.join(name)).expect("made");
        }
        let files = keys(&root.join("keys"), 2, 1);
        let trust = Trust::load(&files, AsId(2), &[1], protocols).expect("good files");
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmits = [1]\n[tls]\ncertificate = \"keys/host2.pem\"\n\
             key = \"keys/host2.key\"\nauthorities = [\"keys/as1.pem\"]\n\
             [export.data]\npath = \"export\"\n{export}"
        );
        fs::write(root.join("serve.toml"), text).expect("written");
        let config = ServeConfig::read(&root.join("serve.toml")).expect("a configuration");
        let (stop, (told, ready)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                server::serve_with(config, Some(trust), &stop, |address| told.send(address).expect("awaited"))
            }
        });
        let bound = ready.recv_timeout(LIMIT).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => give_up("the service does not say where it listens"),
            RecvTimeoutError::Disconnected => panic!("the service has ended"),
        });
        // As a user writes it.
        let service = Address { incarnation: 0, ..bound };
        Self { folder, service, stop, thread: Some(thread) }
    }

    pub fn writable() -> Self {
        Self::new("writable = true\n")
    }

    pub fn export(&self, path: &str) -> PathBuf {
        self.folder.path().join("export").join(path)
    }

    pub fn here(&self, path: &str) -> PathBuf {
        self.folder.path().join("here").join(path)
    }

    pub fn trust(&self, own: u32) -> Trust {
        self.trust_speaking(PROTOCOLS, own)
    }

    pub fn trust_speaking(&self, protocols: &[&[u8]], own: u32) -> Trust {
        let files = keys(&self.folder.path().join("keys"), own, 2);
        Trust::load(&files, AsId(own), &[2], protocols).expect("good files")
    }

    pub fn transfer(&self, direction: Direction) -> Transfer {
        Transfer {
            service: self.service,
            trust: Some(self.trust(1)),
            settings: Settings { interface: "127.0.0.1".to_owned(), ..Settings::default() },
            export: "data".to_owned(),
            direction,
            choice: Choice { recursive: true, ..Choice::default() },
            rules: Rules::default(),
            block: BLOCK,
            rate: 0,
            memory: 64 << 20,
            threads: 2,
            disk: isthmus_mover::Disk::default(),
            is_trial: false,
        }
    }

    pub fn put(&self, sources: &[&str], path: &str) -> Transfer {
        let sources = sources.iter().map(|source| self.here(source)).collect();
        let path = path.as_bytes().to_vec();
        self.transfer(Direction::Put { sources, folder: path.is_empty(), path })
    }

    pub fn get(&self, paths: &[&str], destination: &str) -> Transfer {
        let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let destination = self.here(destination);
        self.transfer(Direction::Get { paths, destination })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let served = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(served, Some(Ok(Ok(())))), "{served:?}");
        }
    }
}

/// The transfer's result, and what it told.
pub fn run(transfer: &Transfer) -> (Result<Summary, MoverError>, Vec<Notice>) {
    let mut notices = Vec::new();
    let done = transfer.run(&mut |notice| {
        if !matches!(notice, Notice::Progress(_)) {
            notices.push(notice);
        }
    });
    (done, notices)
}

/// As [`run`], of a transfer that ends well.
pub fn complete(transfer: &Transfer) -> (Summary, Vec<Notice>) {
    let (done, notices) = run(transfer);
    let summary = done.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(summary.failed, 0, "{notices:?}");
    (summary, notices)
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ ((i >> 8) as u8) ^ ((i >> 16) as u8) ^ seed).collect()
}

/// What there is below a folder: kind, mode, time, content, extended attributes.
pub fn tree(folder: &Path) -> BTreeMap<String, String> {
    fn visit(root: &Path, folder: &Path, out: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let stat = path.symlink_metadata().expect("there");
            let content = if stat.is_symlink() {
                format!("-> {:?}", fs::read_link(&path).expect("a link"))
            } else if stat.is_dir() {
                visit(root, &path, out);
                "folder".to_owned()
            } else {
                blake3::hash(&fs::read(&path).expect("a file")).to_hex().to_string()
            };
            let mode = if stat.is_symlink() { 0 } else { stat.mode() & 0o7777 };
            let own = if stat.is_symlink() { BTreeMap::new() } else { attributes(&path) };
            let name = path.strip_prefix(root).expect("below").display().to_string();
            out.insert(name, format!("{mode:o} {}.{:09} {content} {own:?}", stat.mtime(), stat.mtime_nsec()));
        }
    }
    let mut out = BTreeMap::new();
    visit(folder, folder, &mut out);
    out
}

/// The extended attributes of users that a file or folder has; none where the file system has none.
pub fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = File::open(path).expect("there");
    let mut names = [0u8; 512];
    let len = rustix::fs::flistxattr(&file, &mut names[..]).unwrap_or(0);
    let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = [0u8; 512];
        let len = rustix::fs::fgetxattr(&file, name, &mut value[..]).expect("read");
        (String::from_utf8_lossy(name).into_owned(), value[..len].to_vec())
    };
    names.map(value).collect()
}
