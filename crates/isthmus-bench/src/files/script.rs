//! Shell scripts that copy a file in a lab: they start the service at site b and the copy at site a.
//!
//! A script prints `RESULT {"seconds": ...}`, then `SYNC` with the seconds of an fsync of the copy. `PEAK here`
//! and `PEAK there` have the most memory of a process on each side in bytes, as measured by `isthmus bench peak`.
//! On loopback both sides are this host.

use std::net::TcpListener;
use std::path::Path;

use super::contender::{FileContender, find};
use super::run::{FilePaths, FileRun};
use crate::BenchError;
use crate::lab::{quoted, until_listens};

/// Most memory for a rank's blocks. Bytes.
const MEMORY: u64 = 256 << 20;
/// From this many ranks on, each has `FEW_STREAMS` streams: together they are enough. Counts.
const MANY_RANKS: u32 = 4;
const FEW_STREAMS: u32 = 2;
/// The level at which `isthmus cp` logs its choices.
const LOGGED: &str = "export ISTHMUS_LOG=warn,isthmus_io=info";

/// Paths for a run's scripts.
pub(crate) struct RunPaths<'a> {
    pub(crate) paths: &'a FilePaths,
    /// The folder of keys, configurations and programs, made once.
    pub(crate) work: &'a Path,
    pub(crate) source: &'a Path,
    pub(crate) copy: &'a Path,
}

/// A service, and the command that copies. They contain `@HOST@`, `@WHERE@` and `@PORT@` for the service's host,
/// address and port.
struct Peer {
    service: String,
    /// The service's port in a lab, where it is always free.
    port: u16,
    /// Prepares the command; its time does not count.
    prepare: String,
    command: String,
    /// Whether both look up names of addresses. A lab has no name service, so they get `names.conf`.
    asks_for_names: bool,
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn program(name: &str) -> String {
    find(name).map_or_else(|| name.to_owned(), |found| path(&found))
}

/// Script for the lab's hub.
///
/// # Errors
/// If there is no free port.
pub(crate) fn hub(place: &RunPaths<'_>, run: &FileRun) -> Result<String, BenchError> {
    let copy = path(place.copy);
    let copying = match run.contender {
        FileContender::Coupled { .. } => coupled(place, run),
        _ => peer(place, run, &commands(place, run))?,
    };
    // A folder needs its whole file system synced.
    let sync = if run.files > 1 { "sync -f" } else { "sync" };
    Ok(format!(
        "cd {} || exit 3\n\
         rm -f here.peak there.peak there.peak.stop port; trap 'touch there.peak.stop' EXIT\n\
         {copying}\
         begin=$(date +%s%N); {sync} {copy} || exit 3\n\
         echo \"SYNC $(($(date +%s%N) - begin))e-9\"\n\
         touch there.peak.stop; n=0\n\
         until [ -s there.peak ] || [ $n -ge 50 ]; do n=$((n + 1)); sleep 0.1; done\n\
         for side in here there; do [ ! -s $side.peak ] || echo \"PEAK $side $(cat $side.peak)\"; done\n",
        path(place.work)
    ))
}

/// Runs a line in a site; on loopback both sites are this host.
fn at(run: &FileRun, site: &str, line: &str) -> String {
    let shell = if run.link.is_loopback() { "sh -c".to_owned() } else { format!("lab-rsh {site}") };
    format!("{shell} {}", quoted(line))
}

/// The same under `isthmus bench peak`, which stops it when the file `SIDE.peak.stop` exists.
fn watched(place: &RunPaths<'_>, run: &FileRun, site: &str, side: &str, line: &str) -> String {
    let (isthmus, work) = (path(&place.paths.isthmus), path(place.work));
    at(run, site, &format!("exec {isthmus} bench peak {work}/{side}.peak sh -c {}", quoted(line)))
}

fn peer(place: &RunPaths<'_>, run: &FileRun, peer: &Peer) -> Result<String, BenchError> {
    let (host, address, port) = if run.link.is_loopback() {
        ("127.0.0.1", "127.0.0.1", free_port()?)
    } else {
        ("b", "$ISTHMUS_LAB_SITE_B_ADDRESS", peer.port)
    };
    let named = |line: &str| {
        let line =
            line.replace("@HOST@", host).replace("@WHERE@", address).replace("@PORT@", &port.to_string());
        if peer.asks_for_names { no_names(&path(place.work), &line) } else { line }
    };
    let Peer { service, prepare, command, .. } = peer;
    // The clock starts in here: starting what watches it takes a few milliseconds.
    let timed = format!(
        "{prepare} || exit 3; begin=$(date +%s%N); {command} > /dev/null || exit 3; \
         echo \"RESULT {{\\\"seconds\\\": $(($(date +%s%N) - begin))e-9}}\""
    );
    Ok(format!(
        "{} > service.log 2>&1 &\n\
         {} || {{ tail -n 1 service.log >&2; exit 3; }}\n\
         {} || exit 3\n",
        watched(place, run, "b", "there", &named(service)),
        at(run, "b", &until_listens(port)),
        watched(place, run, "a", "here", &named(&timed))
    ))
}

/// A port of this host that is free now.
fn free_port() -> Result<u16, BenchError> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(BenchError::file("a free port of 127.0.0.1"))
}

/// The service and the command of one contender.
fn commands(place: &RunPaths<'_>, run: &FileRun) -> Peer {
    match run.contender {
        FileContender::CpSsh
        | FileContender::Ssh
        | FileContender::RcloneSftp
        | FileContender::Scp
        | FileContender::Rsync => over_ssh(place, run),
        FileContender::Rclone => rclone_webdav(place, run),
        FileContender::GridFtp => gridftp(place, run),
        FileContender::Cp | FileContender::Coupled { .. } => isthmus_cp(place, run),
    }
}

/// `text` if the run copies a folder.
fn if_folder(run: &FileRun, text: &'static str) -> &'static str {
    if run.files > 1 { text } else { "" }
}

/// rclone's name for a copy of a folder or of a file.
fn rclone_verb(run: &FileRun) -> &'static str {
    if run.files > 1 { "copy" } else { "copyto" }
}

/// Changes to the folder in which a command runs.
fn enter(place: &RunPaths<'_>) -> String {
    format!("cd {}", path(place.work))
}

/// ssh's options; scp names the one for the port in its own way.
fn ssh_options(port_option: &str) -> String {
    format!(
        "{port_option} @PORT@ -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o LogLevel=ERROR"
    )
}

fn over_ssh(place: &RunPaths<'_>, run: &FileRun) -> Peer {
    let (source, copy, work) = (path(place.source), path(place.copy), path(place.work));
    let ssh = quoted(&format!("ssh {}", ssh_options("-p")));
    let (recursive, slash) = (if_folder(run, "-r"), if_folder(run, "/"));
    let command = match run.contender {
        FileContender::Ssh => {
            let write = quoted(&format!("cat > {copy}"));
            format!("ssh {} @HOST@ {write} < {source}", ssh_options("-p"))
        }
        FileContender::RcloneSftp => format!(
            "rclone --config /dev/null --sftp-host @HOST@ --sftp-port @PORT@ --sftp-user \"$(id -un)\" \
             --sftp-key-file key {} {source} {}",
            rclone_verb(run),
            quoted(&format!(":sftp:{}", place.copy.display()))
        ),
        FileContender::Scp => format!("scp {recursive} {} {source} @HOST@:{copy}", ssh_options("-P")),
        FileContender::Rsync => format!("rsync {recursive} -e {ssh} {source}{slash} @HOST@:{copy}"),
        _ => {
            let isthmus = path(&place.paths.isthmus);
            format!(
                "{isthmus} cp {recursive} --ssh {ssh} --remote-isthmus {isthmus} {source}{slash} \
                 \"$(id -un)\"@@HOST@:{copy}"
            )
        }
    };
    let is_logged = matches!(run.contender, FileContender::CpSsh);
    let prepare = enter(place);
    Peer {
        // sshd needs this folder for its privilege separation, and does not make it.
        service: format!("mkdir -p /run/sshd; exec {} -D -e -p @PORT@ -f {work}/sshd.conf", program("sshd")),
        port: 2022,
        prepare: if is_logged { format!("{prepare} && {LOGGED}") } else { prepare },
        command,
        asks_for_names: false,
    }
}

fn rclone_webdav(place: &RunPaths<'_>, run: &FileRun) -> Peer {
    let folder = place.copy.parent().unwrap_or(Path::new("/"));
    Peer {
        service: format!("exec rclone --config /dev/null serve webdav --addr :@PORT@ {}", path(folder)),
        port: 2023,
        prepare: enter(place),
        command: format!(
            "rclone --config /dev/null --webdav-vendor other --webdav-url http://@HOST@:@PORT@ {} {} {}",
            rclone_verb(run),
            path(place.source),
            quoted(&format!(":webdav:{}", copy_name(place)))
        ),
        asks_for_names: false,
    }
}

fn gridftp(place: &RunPaths<'_>, run: &FileRun) -> Peer {
    let slash = if_folder(run, "/");
    Peer {
        service: format!(
            "exec {} -aa -anonymous-user \"$(id -un)\" -allow-root -p @PORT@",
            program("globus-gridftp-server")
        ),
        port: 2811,
        prepare: enter(place),
        command: format!(
            "globus-url-copy -p 8 {} {}{slash} {}{slash}",
            if_folder(run, "-r -cd -pp"),
            url("", place.source),
            url("ftp://@HOST@:@PORT@", place.copy)
        ),
        asks_for_names: true,
    }
}

fn isthmus_cp(place: &RunPaths<'_>, run: &FileRun) -> Peer {
    let (isthmus, enter) = (path(&place.paths.isthmus), enter(place));
    Peer {
        service: format!(
            "{enter}; sed \"s/ADDRESS/@WHERE@:@PORT@/\" serve.toml > service.toml; \
             exec {isthmus} serve --config service.toml"
        ),
        port: 4200,
        prepare: format!("{enter} && sed \"s/ADDRESS/@WHERE@:@PORT@/\" sites.toml > known.toml && {LOGGED}"),
        command: format!(
            "{isthmus} cp {} --sites known.toml {}{} {}",
            if_folder(run, "-r"),
            path(place.source),
            if_folder(run, "/"),
            quoted(&format!("b:data/{}", copy_name(place)))
        ),
        asks_for_names: false,
    }
}

/// The last part of the copy's path.
fn copy_name<'a>(place: &RunPaths<'a>) -> std::borrow::Cow<'a, str> {
    place.copy.file_name().unwrap_or_default().to_string_lossy()
}

fn no_names(work: &str, command: &str) -> String {
    let line = format!("mount --bind {work}/names.conf /etc/nsswitch.conf; {command}");
    format!("unshare -m sh -c {}", quoted(&line))
}

fn url(host: &str, file: &Path) -> String {
    let host = if host.is_empty() { "file://" } else { host };
    quoted(&format!("{host}{}", file.display()))
}

/// Two MPI jobs, each started at its own site.
fn coupled(place: &RunPaths<'_>, run: &FileRun) -> String {
    let FileContender::Coupled { stock, block, io, overlap } = run.contender else { return String::new() };
    let interface = if run.link.is_loopback() { "lo" } else { "wan0" };
    let mut job = format!("exec {} -n {}", path(&place.paths.mpi.join("bin/mpiexec")), run.ranks);
    let mut set = |name: &str, value: &str| job += &format!(" -genv {name} {value}");
    set("MPIR_CVAR_CH4_NETMOD", "ofi");
    set("MPIR_CVAR_NOLOCAL", "1");
    if stock {
        set("FI_PROVIDER", "'tcp;ofi_rxm'");
        set("FI_TCP_IFACE", interface);
    } else {
        set("FI_PROVIDER", "isthmus");
        set("FI_PROVIDER_PATH", &path(&place.paths.provider));
        set("FI_ISTHMUS_INTERFACE", interface);
        if run.ranks >= MANY_RANKS {
            set("FI_ISTHMUS_STREAMS", &FEW_STREAMS.to_string());
        }
    }
    let program = path(&place.work.join("copy"));
    let how = format!("block={} memory={MEMORY} io={io} in_turn={}", block.0, u8::from(!overlap));
    let receiver = format!("{job} {program} receive file:port {} {how}", path(place.copy));
    // At this level the provider logs its choices. Senders log those of lanes.
    let log = if stock { "" } else { " -genv FI_LOG_LEVEL info -genv FI_LOG_PROV isthmus" };
    let sender = format!("{job}{log} {program} send file:port {} {how}", path(place.source));
    let work = path(place.work);
    format!(
        "{} > receiver.log 2>&1 &\nreceiver=$!\n\
         {} || {{ tail -n 3 receiver.log >&2; exit 3; }}\n\
         wait $receiver || {{ tail -n 3 receiver.log >&2; exit 3; }}\n",
        watched(place, run, "b", "there", &format!("cd {work}; {receiver}")),
        watched(place, run, "a", "here", &format!("cd {work}; {sender}"))
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use isthmus_units::{Percent, Rate, Size, Span};

    use super::*;
    use crate::EmulatedLink;
    use crate::files::Io;

    /// The shell accepts every script, whatever the folders are called.
    #[test]
    fn scripts_are_good_shell() {
        let odd = Path::new("/tmp/it's \"odd\" $HOME, EXPORT");
        let paths = FilePaths {
            isthmus: odd.join("isthmus"),
            provider: odd.into(),
            mpi: odd.into(),
            mover: odd.into(),
            out: odd.into(),
            folder: odd.into(),
        };
        let (source, copy) = (odd.join("source"), odd.join("copy"));
        let place = RunPaths { paths: &paths, work: odd, source: &source, copy: &copy };
        let link = EmulatedLink { rate: Rate(1), rtt: Span(1), loss: Percent(0.0), mtu: 1500, name: None };
        let coupled = FileContender::Coupled { stock: true, block: Size(1), io: Io::MpiIo, overlap: true };
        for contender in FileContender::COMMANDS.into_iter().chain([coupled]) {
            for (link, files) in [(link, 1), (link, 10), (EmulatedLink::LOOPBACK, 1)] {
                let script = hub(&place, &FileRun { run: 1, link, bytes: 1, files, contender, ranks: 4 });
                let script = script.expect("a script");
                let read = Command::new("sh").args(["-n", "-c", &script]).output().expect("a shell");
                assert!(read.status.success(), "{contender}: {}", String::from_utf8_lossy(&read.stderr));
                assert!(script.contains("SYNC") && script.contains("copy"), "{script}");
                for name in ["@WHERE@", "@HOST@", "@PORT@"] {
                    assert!(!script.contains(name), "{script}");
                }
                // Only the copy is timed.
                if let Some((_, timed)) = script.split_once("begin=$(date").filter(|_| contender != coupled) {
                    let timed = timed.split_once("RESULT").expect("an end").0;
                    assert!(!timed.contains("sed ") && !timed.contains("unshare"), "{timed}");
                }
                assert_eq!(script.contains("lab-rsh"), !link.is_loopback());
            }
        }
    }
}
