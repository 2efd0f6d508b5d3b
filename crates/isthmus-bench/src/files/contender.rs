//! The contenders of a file transfer.

use std::fmt;
use std::path::{Path, PathBuf};

use isthmus_units::Size;

use super::run::FilePaths;

/// Interface by which an MPI program reads and writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Positional reads and writes.
    Posix,
    /// MPI's own files.
    MpiIo,
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Posix => "posix",
            Self::MpiIo => "mpiio",
        })
    }
}

/// A program that moves files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContender {
    /// Two MPI programs with the mover's library.
    Coupled {
        /// Over libfabric's tcp instead of Isthmus.
        stock: bool,
        /// Length of a block.
        block: Size,
        /// How the file is read and written.
        io: Io,
        /// Reads, sends and writes overlap; otherwise one follows the other.
        overlap: bool,
    },
    /// `isthmus cp` to a service (`isthmus serve`), encrypted.
    Cp,
    /// `isthmus cp` with nothing set up but OpenSSH.
    CpSsh,
    /// OpenSSH's `scp`.
    Scp,
    /// `rsync` over OpenSSH.
    Rsync,
    /// `rclone` to its own WebDAV service, its fastest protocol, not encrypted.
    Rclone,
    /// `rclone` over SFTP.
    RcloneSftp,
    /// `cat` over OpenSSH: shows the cost of a login and of its stream.
    Ssh,
    /// `globus-url-copy` with 8 streams, not encrypted.
    GridFtp,
}

impl FileContender {
    /// All commands, ours first.
    pub const COMMANDS: [Self; 8] = [
        Self::Cp,
        Self::CpSsh,
        Self::Scp,
        Self::Rsync,
        Self::RcloneSftp,
        Self::Ssh,
        Self::Rclone,
        Self::GridFtp,
    ];

    /// Whether it logs in over ssh.
    pub(crate) fn is_by_ssh(self) -> bool {
        matches!(self, Self::CpSsh | Self::Scp | Self::Rsync | Self::RcloneSftp | Self::Ssh)
    }

    /// Whether it can copy a folder.
    pub fn takes_folders(self) -> bool {
        !matches!(self, Self::Coupled { .. } | Self::Ssh)
    }

    /// Name by which contenders are chosen. Transfers between MPI programs have two names.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Coupled { stock: false, .. } => "mpi",
            Self::Coupled { stock: true, .. } => "stock",
            Self::Cp => "cp",
            Self::CpSsh => "cp-ssh",
            Self::Ssh => "ssh",
            Self::Scp => "scp",
            Self::Rsync => "rsync",
            Self::Rclone => "rclone",
            Self::RcloneSftp => "rclone-sftp",
            Self::GridFtp => "gridftp",
        }
    }

    /// What it needs and this machine does not have, with the remedy.
    pub(crate) fn missing(self, paths: &FilePaths) -> Option<String> {
        let absent = |path: PathBuf| (!path.is_file()).then(|| format!("no {}", path.display()));
        let tools = |names: &[&str], packages: &str| {
            let missing: Vec<_> = names.iter().copied().filter(|name| find(name).is_none()).collect();
            (!missing.is_empty()).then(|| format!("no {}: apt-get install {packages}", missing.join(", ")))
        };
        let ssh = "openssh-client openssh-server";
        match self {
            Self::Coupled { .. } => ["mpiexec", "mpicc"]
                .into_iter()
                .find_map(|tool| absent(paths.mpi.join("bin").join(tool)))
                .map(|text| format!("{text}: name an MPICH with --mpi DIR"))
                .or_else(|| {
                    let text = absent(paths.mover.join("libisthmus-mpi.so"))?;
                    let mpi = paths.mpi.display();
                    Some(format!(
                        "{text}: make mpi NAME=mpich MPICC={mpi}/bin/mpicc, or name it with --mover"
                    ))
                }),
            Self::Cp => absent(paths.isthmus.clone()),
            Self::CpSsh => {
                absent(paths.isthmus.clone()).or_else(|| tools(&["ssh", "sshd", "ssh-keygen"], ssh))
            }
            Self::Ssh => tools(&["ssh", "sshd", "ssh-keygen"], ssh),
            Self::Scp => tools(&["scp", "sshd", "ssh-keygen"], ssh),
            Self::Rsync => tools(&["rsync", "sshd", "ssh-keygen"], &format!("rsync {ssh}")),
            Self::Rclone => tools(&["rclone"], "rclone"),
            Self::RcloneSftp => tools(&["rclone", "sshd", "ssh-keygen"], &format!("rclone {ssh}")),
            Self::GridFtp => tools(
                &["globus-url-copy", "globus-gridftp-server"],
                "globus-gass-copy-progs globus-gridftp-server-progs",
            ),
        }
    }
}

impl fmt::Display for FileContender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coupled { block, io, overlap, .. } => {
                let overlap = if *overlap { "overlapped" } else { "in-turn" };
                write!(f, "{}-{block}-{io}-{overlap}", self.kind())
            }
            _ => f.write_str(self.kind()),
        }
    }
}

/// Path of a program in PATH or in the folders of system services.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let services = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(services).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_done_how() {
        let coupled = |stock, io, overlap| {
            FileContender::Coupled { stock, block: Size(1 << 20), io, overlap }.to_string()
        };
        assert_eq!(coupled(false, Io::Posix, true), "mpi-1MiB-posix-overlapped");
        assert_eq!(coupled(true, Io::MpiIo, false), "stock-1MiB-mpiio-in-turn");
        assert_eq!(FileContender::GridFtp.to_string(), "gridftp");
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let nowhere = PathBuf::from("/nonesuch");
        let paths = FilePaths {
            isthmus: nowhere.clone(),
            provider: nowhere.clone(),
            mpi: nowhere.clone(),
            mover: nowhere.clone(),
            out: nowhere.clone(),
            folder: nowhere,
        };
        let coupled = FileContender::Coupled { stock: false, block: Size(1), io: Io::Posix, overlap: true };
        assert!(coupled.missing(&paths).is_some_and(|text| text.contains("--mpi DIR")));
        assert_eq!(FileContender::Cp.missing(&paths).as_deref(), Some("no /nonesuch"));
        assert!(find("sh").is_some() && find("isthmus-nonesuch").is_none());
    }
}
