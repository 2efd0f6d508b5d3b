//! Meeting places, where programs find each other: a file, a name at a router, or a port and a secret.
//!
//! One program announces the address of its endpoint there, and the others find it. `isthmus run` joins the
//! parts of a job this way, and `isthmus_couple` joins two jobs.

mod secret;

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use isthmus_wire::Address;
use rustix::fs::{Mode, OFlags};

use crate::route::addresses;
use crate::{Error, Failure, rendezvous};
use secret::{Listener, Secret, Unanswered, call};

/// Longest wait for a name in one look at a router.
const LOOK: Duration = Duration::from_secs(5);
/// Most of a file that is read: an address of an endpoint on several devices. Bytes.
const FILE_MAX: u64 = 4096;

/// A meeting place, as people write it: what `--at` of `isthmus run` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// A file that all see.
    File(PathBuf),
    /// A name at a router; `None`: one derived from the job's name.
    Router {
        /// The router's address.
        place: String,
        /// The name there.
        name: Option<String>,
    },
    /// The address that the announcing program printed.
    Uri(String),
    /// HOST:PORT at which the announcing program listens for holders of a secret.
    Host(String),
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                "" => Err("file: needs a path".to_owned()),
                path => Ok(Self::File(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("router:") {
            // AS.SUBNET / IP:PORT / NAME
            let (place, name) = match rest.splitn(5, '/').collect::<Vec<_>>()[..] {
                ["isthmus:", "", site, router, name] if !name.is_empty() => {
                    (format!("isthmus://{site}/{router}"), Some(name.to_owned()))
                }
                _ => (rest.trim_end_matches('/').to_owned(), None),
            };
            return match place.parse::<Address>() {
                Ok(_) => Ok(Self::Router { place, name }),
                Err(_) => Err(format!(
                    "{rest:?} is no router's address; expected router:isthmus://AS.SUBNET/IP:PORT[/NAME]"
                )),
            };
        }
        if text.starts_with("isthmus://") {
            // What follows `#` has a secret key.
            let shown = text.split('#').next().unwrap_or_default();
            return addresses(text).map(|_| Self::Uri(text.to_owned())).map_err(|_| {
                format!("{shown:?} is not a whole address of isthmus; copy all of what the other side says")
            });
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok(Self::Host(text.to_owned()))
            }
            _ => Err(format!(
                "{text:?}: expected file:PATH, router:isthmus://AS.SUBNET/IP:PORT[/NAME], HOST:PORT, or the isthmus:// \
                 address that the other side says"
            )),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(out, "file:{}", path.display()),
            Self::Router { place, name: Some(name) } => write!(out, "router:{place}/{name}"),
            Self::Router { place, name: None } => write!(out, "router:{place}"),
            // Its key is a secret.
            Self::Uri(uri) => out.write_str(uri.split('#').next().unwrap_or_default()),
            Self::Host(at) => out.write_str(at),
        }
    }
}

/// The meeting place of a job.
#[derive(Clone, Debug)]
pub struct Meeting {
    at: At,
    default_name: String,
    secret: Option<Secret>,
}

/// Why nobody is found.
#[derive(Debug)]
pub enum NotFound {
    /// It may be there later.
    Later(String),
    /// It will not.
    Never(String),
}

/// An announcement. Others find it until this is dropped.
#[derive(Debug, Default)]
pub struct Announced(#[allow(dead_code, reason = "kept for its end")] Kept);

#[derive(Debug, Default)]
enum Kept {
    File(PathBuf),
    #[allow(dead_code, reason = "kept for its end")]
    Name(rendezvous::Published),
    #[allow(dead_code, reason = "kept for its end")]
    Listener(Listener),
    #[default]
    Nothing,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Self::File(path) = self {
            // It may have been taken away already.
            let _ = fs::remove_file(path);
        }
    }
}

impl Meeting {
    /// The meeting place `at` of the job of this name. `default_name` is published at a router where `at` has no
    /// name. `secret` is a file, for HOST:PORT.
    ///
    /// # Errors
    /// The fault of the secret, in words.
    pub fn new(at: At, job: &str, default_name: String, secret: Option<&Path>) -> Result<Self, String> {
        let secret = secret.map(|path| Secret::read(path, job)).transpose()?;
        match (&at, &secret) {
            (At::Host(at), None) => Err(format!(
                "{at} needs a secret, the same at all parts: openssl rand -hex 32 > FILE; chmod 600 FILE"
            )),
            (At::Host(_), Some(_)) | (_, None) => Ok(Self { at, default_name, secret }),
            (_, Some(_)) => Err("a secret is for HOST:PORT only".to_owned()),
        }
    }

    /// The place itself.
    pub fn at(&self) -> &At {
        &self.at
    }

    fn name(&self, name: Option<&String>) -> String {
        name.unwrap_or(&self.default_name).clone()
    }

    /// Lets others find the endpoint at `uri`, until the returned value is dropped.
    ///
    /// # Errors
    /// Why that is not possible, in words.
    pub fn announce(&self, uri: &str) -> Result<Announced, String> {
        match (&self.at, &self.secret) {
            (At::File(path), _) => {
                write_whole(path, uri)
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
                Ok(Announced(Kept::File(path.clone())))
            }
            (At::Router { place, name }, _) => {
                let name = self.name(name.as_ref());
                rendezvous::publish(place, &name, uri)
                    .map(|name| Announced(Kept::Name(name)))
                    .map_err(|error| format!("cannot publish the name {name} at {place}: {error}"))
            }
            (At::Host(at), Some(secret)) => Listener::new(at, secret.clone(), uri.to_owned())
                .map(|listener| Announced(Kept::Listener(listener))),
            (At::Host(_) | At::Uri(_), _) => Ok(Announced::default()),
        }
    }

    /// The address that somebody announces there now.
    ///
    /// # Errors
    /// [`NotFound`].
    pub fn find(&self) -> Result<String, NotFound> {
        match (&self.at, &self.secret) {
            (At::Uri(uri), _) => Ok(uri.clone()),
            (At::File(path), _) => read_address(path),
            (At::Router { place, name }, _) => {
                let name = self.name(name.as_ref());
                rendezvous::look_up(place, &name, LOOK).map_err(|error| match error {
                    Error::Failed(Failure::TimedOut) => NotFound::Later(format!("nobody has published {name} at {place}")),
                    Error::Uri(text) | Error::Value(text) | Error::Configuration(text) => NotFound::Never(text),
                    other => NotFound::Later(other.to_string()),
                })
            }
            (At::Host(at), Some(secret)) => call(at, secret).map_err(|error| match error {
                Unanswered::Later(why) => NotFound::Later(why),
                Unanswered::Denied => NotFound::Never(format!(
                    "who listens at {at} has another secret or another job; give all parts the same secret and job"
                )),
            }),
            (At::Host(at), None) => Err(NotFound::Never(format!("{at} needs a secret"))),
        }
    }
}

/// The address in a file. The file must be this user's or root's, and nobody else may write to it: whoever writes it
/// chooses the endpoint that this program talks to. Some file systems give all files of a user to another one, such as
/// an NFS server those of root.
fn read_address(path: &Path) -> Result<String, NotFound> {
    let shown = path.display();
    let later = |error: std::io::Error| NotFound::Later(format!("{shown}: {error}"));
    // Opening a pipe to which nobody writes would wait.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| later(e.into()))?);
    let there = file.metadata().map_err(later)?;
    if !there.is_file() {
        return Err(NotFound::Never(format!("{shown} is not a regular file; choose another file")));
    }
    let user = rustix::process::geteuid().as_raw();
    let is_own = there.uid() == user || there.uid() == 0 || owner_of_new(path) == Some(there.uid());
    if let Some(fault) = fault_of_writers((!is_own).then_some((there.uid(), user)), there.mode()) {
        return Err(NotFound::Never(format!("{shown} {fault}")));
    }
    let mut content = Vec::new();
    // One byte more than the limit shows that it is too long.
    file.take(FILE_MAX + 1).read_to_end(&mut content).map_err(later)?;
    if content.len() as u64 > FILE_MAX {
        return Err(NotFound::Never(format!("{shown} holds no address; choose another file")));
    }
    match String::from_utf8(content) {
        Ok(text) if text.starts_with("isthmus://") => Ok(text.trim().to_owned()),
        _ => Err(NotFound::Later(format!("{shown} holds no address"))),
    }
}

/// The owner of files that this process makes beside this one. None if it cannot make any.
fn owner_of_new(path: &Path) -> Option<u32> {
    let probe = beside(path, ".owner");
    let _ = fs::remove_file(&probe);
    let owner = create(&probe).and_then(|file| file.metadata()).map(|there| there.uid());
    let _ = fs::remove_file(&probe);
    owner.ok()
}

/// Why a user may not trust a file of this mode. `strange`: its owner and the user, if it is not the user's own.
fn fault_of_writers(strange: Option<(u32, u32)>, mode: u32) -> Option<String> {
    if let Some((owner, user)) = strange {
        return Some(format!(
            "belongs to user {owner}, and you are user {user}: whoever wrote it could lead this job to another program; \
             use a file in a folder that only you can write to, or meet at a router (router:...) or at HOST:PORT"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!(
            "can be written by other users (mode {:04o}); make it anew, and chmod 600; if the file system gives this \
             mode to all files, meet at a router (router:...) or at HOST:PORT",
            mode & 0o7777
        )
    })
}

/// A name for a file of this process beside this one.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}{suffix}", std::process::id()));
    name.into()
}

/// Makes a file that only its owner can read.
fn create(path: &Path) -> std::io::Result<fs::File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Writes a file that only its owner can read, and that nobody sees half of.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let new = beside(path, "");
    let _ = fs::remove_file(&new);
    let mut file = create(&new)?;
    let written = writeln!(file, "{text}").and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use isthmus_wire::Key;

    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!("file:/shared/run".parse(), Ok(At::File("/shared/run".into())));
        assert_eq!("b.site:4300".parse(), Ok(At::Host("b.site:4300".to_owned())));
        assert_eq!("[fd00::1]:4300".parse(), Ok(At::Host("[fd00::1]:4300".to_owned())));
        let place = "isthmus://1.10/10.1.0.1:4100".to_owned();
        assert_eq!(
            "router:isthmus://1.10/10.1.0.1:4100/run42".parse(),
            Ok(At::Router { place: place.clone(), name: Some("run42".to_owned()) })
        );
        assert_eq!("router:isthmus://1.10/10.1.0.1:4100".parse(), Ok(At::Router { place, name: None }));
        for wrong in [
            "file:",
            "somewhere",
            "host:port",
            "host:0",
            ":4300",
            "router:10.1.0.1:4100",
            "router:isthmus://nix",
            "router:isthmus://1.10/10.1.0.1",
            "isthmus://nix",
            "isthmus://0.0/10.1.2.3:4100,nix",
        ] {
            assert!(wrong.parse::<At>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_key() {
        let text = format!("isthmus://0.0/10.1.2.3:4100#0badcafe.{}", "ab".repeat(Key::LEN));
        let at: At = text.parse().expect("an address");
        assert_eq!(at.to_string(), "isthmus://0.0/10.1.2.3:4100");
    }

    fn meeting(at: At, secret: Option<&Path>) -> Result<Meeting, String> {
        Meeting::new(at, "job", "a-name".to_owned(), secret)
    }

    #[test]
    fn a_file_is_there_while_it_is_announced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let place = meeting(At::File(path.clone()), None).expect("right");
        assert!(matches!(place.find(), Err(NotFound::Later(_))));
        let announced = place.announce("isthmus://0.0/10.1.2.3:4100#0badcafe.abcdef").expect("written");
        assert_eq!(place.find().expect("found"), "isthmus://0.0/10.1.2.3:4100#0badcafe.abcdef");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        drop(announced);
        assert!(!path.exists());
    }

    /// In a folder where everybody may make files, somebody else may be faster.
    #[test]
    fn a_file_that_others_can_write_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let place = meeting(At::File(path.clone()), None).expect("right");
        fs::write(&path, "isthmus://0.0/10.1.2.3:4100#0badcafe.abcdef\n").expect("written");
        for (mode, is_believed) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
            match place.find() {
                Ok(_) => assert!(is_believed, "{mode:o}"),
                Err(NotFound::Never(why)) => assert!(!is_believed && why.contains("chmod 600"), "{why}"),
                Err(NotFound::Later(why)) => panic!("{why}"),
            }
        }
        assert_eq!(fault_of_writers(None, 0o600), None);
        let fault = fault_of_writers(Some((1001, 1000)), 0o600).expect("another user's");
        assert!(fault.contains("belongs to user 1001") && fault.contains("router:"), "{fault}");
        assert_eq!(owner_of_new(&path), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no file is left behind");
    }

    /// Nobody is kept waiting by it.
    #[test]
    fn a_pipe_is_no_meeting_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("made");
        let place = meeting(At::File(path), None).expect("right");
        assert!(matches!(place.find(), Err(NotFound::Never(why)) if why.contains("not a regular file")));
    }

    #[test]
    fn a_host_needs_a_secret_and_nothing_else_takes_one() {
        let at = || At::Host("localhost:4300".to_owned());
        assert!(meeting(at(), None).is_err());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        fs::write(&path, "0123456789abcdef").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(meeting(at(), Some(&path)).expect_err("readable by others").contains("chmod"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
        assert!(meeting(at(), Some(&path)).is_ok());
        assert!(meeting(At::File("/x".into()), Some(&path)).is_err());
    }
}
