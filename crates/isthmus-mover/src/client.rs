//! The client: the transfer of one command.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_io::Settings;
use isthmus_trust::Trust;
use isthmus_wire::Address;

use crate::MoverError;
use crate::channel::Channel;
use crate::descriptors::wait_for;
use crate::disk::Disk;
use crate::expand::is_pattern;
use crate::landing::Landing;
use crate::port::Port;
use crate::reachability::ReachabilityCheck;
use crate::receiver::{Receiving, ReceivingSide};
use crate::sender::{Sending, SendingSide};
use crate::session::{GIVEN_UP, TAG_OPEN, Wire, key};
use crate::walk::{Filter, Root, Roots, is_contents};
use crate::watch::{Summary, Watch};
use crate::wire::{Choice, Control, Open, Rules, TransferRequest, Trouble, VERSIONS};
use crate::{confine, names, server};

/// The sources and the destination of a transfer.
#[derive(Clone, Debug)]
pub enum Direction {
    /// Local files to a path below the export. A source that ends in "/" or "/." stands for what is in the folder.
    Put {
        /// Files and folders of this host.
        sources: Vec<PathBuf>,
        /// Below the export.
        path: Vec<u8>,
        /// The path ended in a slash.
        folder: bool,
    },
    /// Files below the export to a local path.
    Get {
        /// Below the export; a trailing "/" or "/." means the same here.
        paths: Vec<Vec<u8>>,
        /// The path on this host.
        destination: PathBuf,
    },
}

/// One transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Address of the service.
    pub service: Address,
    /// Certificates; none: neither encrypted nor authenticated.
    pub trust: Option<Trust>,
    /// The endpoint's settings.
    pub settings: Settings,
    /// Name of the export.
    pub export: String,
    /// The sources and the destination.
    pub direction: Direction,
    /// The choice of files.
    pub choice: Choice,
    /// The treatment of existing files.
    pub rules: Rules,
    /// Bytes of a block, one of [`crate::wire::BLOCK_SIZES`].
    pub block: u64,
    /// Most bytes a second; 0: no limit.
    pub rate: u64,
    /// Most bytes of buffers.
    pub memory: u64,
    /// Disk threads.
    pub threads: usize,
    /// The interface and the cache that they use.
    pub disk: Disk,
    /// Whether to end with [`MoverError::Unreached`] soon if the service does not answer: the caller knows another way.
    pub is_trial: bool,
}

impl Transfer {
    /// Copies the files. `watch` gets the progress.
    ///
    /// # Errors
    /// [`MoverError`] if the transfer ended early. Failures of single files are in the summary.
    pub fn run(&self, watch: &mut Watch<'_>) -> Result<Summary, MoverError> {
        let filter = Filter::new(&self.choice, self.block).map_err(MoverError::Usage)?;
        let local = self.local()?;
        let port = Port::open(&self.settings).map_err(|error| MoverError::Local(error.to_string()))?;
        let port = Arc::new(port);
        port.call_one(self.expected(&local));
        let peer = port.peer(&self.service)?;
        let session = getrandom::u64().map_err(|error| MoverError::Local(error.to_string()))?;
        let mut channel = match &self.trust {
            Some(trust) => Channel::client(trust)?,
            None => Channel::plain(),
        };
        let first = server::opening(session, self.trust.is_none(), &channel.output());
        let mut wire = Wire::new(port.clone(), peer, None, session, channel)?;
        let at = self.service.locator;
        let _check = if self.is_trial { Some(ReachabilityCheck::start(at, wire.sender())?) } else { None };
        // Only this message shows whether the service is still there.
        port.deliver(peer, TAG_OPEN, first, key::CONTROL_OUT, wire.sender())?;
        wire.say(&Control::Open(self.open()))?;
        let (block, memory, threads, disk) = (self.block, self.memory, self.threads, self.disk);
        let mut tell = |notice| watch(notice);
        let rate_limit = port.rate_limit(&self.settings.rate_limit, at.ip());
        let done = match local {
            Local::Sources(roots) => {
                let sending =
                    Sending { block, memory, threads, disk, rate: self.rate, rate_limit, rules: self.rules };
                SendingSide::start(sending, roots, filter, &mut wire, &mut tell)?.run()
            }
            Local::Landing(landing) => {
                let receiving = Receiving { block, memory, threads, disk, rate: self.rate };
                ReceivingSide::start(receiving, landing, &mut wire, &mut tell)?.run(Vec::new())
            }
        };
        if let Err(error) = &done {
            wire.shutdown(error);
        }
        let (was_heard, is_connected) = (wire.was_heard(), wire.is_connected());
        drop(wire);
        port.leave();
        done.map_err(|error| match error {
            MoverError::Lost(text) | MoverError::Refused(text) if self.is_trial && !is_connected => {
                MoverError::Unreached(text)
            }
            error => self.explained(error, was_heard),
        })
    }

    /// A quick estimate of the bytes to send: the lengths of the single files named. Bytes.
    fn expected(&self, local: &Local) -> u64 {
        let all_go = self.rate == 0 && !self.rules.dry_run && !self.rules.update;
        match local {
            Local::Sources(roots) if all_go => {
                let bytes: u64 = roots.found.iter().filter_map(Root::file_len).sum();
                bytes / u64::from(self.choice.share.ranks)
            }
            _ => 0,
        }
    }

    fn explained(&self, error: MoverError, was_heard: bool) -> MoverError {
        let at = self.service.locator;
        match error {
            MoverError::Lost(text) if text.starts_with(GIVEN_UP) => MoverError::Lost(format!(
                "the service at {at} gave this session up: {}; later the same command continues",
                &text[GIVEN_UP.len()..]
            )),
            MoverError::Lost(text) if was_heard => MoverError::Lost(format!(
                "the service at {at} is lost: {text}; when it is there again, the same command continues"
            )),
            MoverError::Lost(text) => {
                let then = "once it does, the same command continues";
                MoverError::Lost(format!("the service at {at} does not answer: {text}; {then}"))
            }
            error => error,
        }
    }

    fn open(&self) -> Open {
        let way = match &self.direction {
            Direction::Put { path, folder, sources } => {
                let into = is_into(sources.iter().map(|source| source.as_os_str().as_bytes()));
                TransferRequest::Put { path: path.clone(), folder: *folder || into }
            }
            Direction::Get { paths, .. } => {
                TransferRequest::Get { paths: paths.clone(), choice: self.choice.clone() }
            }
        };
        let host = rustix::system::uname();
        let (share, paths) = (self.choice.share, self.local_paths());
        // Processes that share a copy are separate transfers, and may run on other hosts next time.
        let host = if share.ranks > 1 { None } else { Some(host.nodename()) };
        let what = format!("{host:?} {share:?} {:?} {paths:?} {way:?}", self.export);
        let mut transfer = [0; 16];
        transfer.copy_from_slice(&blake3::hash(what.as_bytes()).as_bytes()[..16]);
        let (export, rules, block, rate) = (self.export.clone(), self.rules, self.block, self.rate);
        Open { version: VERSIONS.oldest, export, way, rules, block, rate, transfer }
    }

    fn local_paths(&self) -> Vec<PathBuf> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        match &self.direction {
            Direction::Put { sources, .. } => sources.iter().map(absolute).collect(),
            Direction::Get { destination, .. } => vec![absolute(destination)],
        }
    }

    fn local(&self) -> Result<Local, MoverError> {
        match &self.direction {
            Direction::Put { sources, .. } => {
                let roots = sources.iter().map(|source| root(source));
                Roots::new(roots).map(Local::Sources).map_err(MoverError::Usage)
            }
            Direction::Get { destination, paths } => {
                let into = is_into(paths.iter().map(|path| &path[..]))
                    || paths.iter().any(|path| is_pattern(path))
                    || destination.as_os_str().as_bytes().ends_with(b"/");
                landing(destination, into, self.rules, self.block).map(Local::Landing)
            }
        }
    }
}

enum Local {
    Sources(Roots),
    Landing(Landing),
}

/// Whether these sources need a folder to go into.
fn is_into<'a>(mut sources: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    sources.len() > 1 || sources.any(is_contents)
}

/// A source that the user named. A symbolic link is followed.
fn root(source: &Path) -> Result<Root, Trouble> {
    let written = source.as_os_str().as_bytes();
    let fault = |error: &dyn std::fmt::Display| Trouble {
        path: written.to_vec(),
        text: format!("{}: {error}", source.display()),
    };
    let real = source.canonicalize().map_err(|error| fault(&error))?;
    let (Some(above), Some(own)) = (real.parent(), real.file_name()) else {
        return Err(fault(&"the root of the file system cannot be copied as a whole; name its folders"));
    };
    let dir = Arc::new(wait_for(|| confine::folder(above)).map_err(|error| fault(&error))?);
    let name = source.file_name().unwrap_or(own).as_bytes().to_vec();
    Ok(Root { dir, at: own.as_bytes().to_vec(), name: (!is_contents(written)).then_some(name) })
}

/// The landing on this host. The user may name any folder.
fn landing(destination: &Path, into: bool, rules: Rules, block: u64) -> Result<Landing, MoverError> {
    let fault =
        |error: &dyn std::fmt::Display| MoverError::Usage(format!("{}: {error}", destination.display()));
    let (folder, name) = if destination.is_dir() {
        (destination.to_owned(), Vec::new())
    } else {
        let name = destination.file_name().ok_or_else(|| fault(&"there is no such folder"))?;
        let above = destination.parent().filter(|above| !above.as_os_str().is_empty());
        (above.unwrap_or(Path::new(".")).to_owned(), name.as_bytes().to_vec())
    };
    let root = wait_for(|| confine::folder(&folder)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            fault(&format_args!("there is no folder {}; make it first", folder.display()))
        }
        _ => fault(&error),
    })?;
    names::tidy(&name).map_err(|error| fault(&error))?;
    Landing::new(Arc::new(root), &name, into, rules, block, true).map_err(|error| fault(&error))
}
