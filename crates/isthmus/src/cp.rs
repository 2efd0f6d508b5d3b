//! `isthmus cp`: copies files to and from other sites.

mod location;
mod report;
mod share;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use isthmus_io::log::{DESCRIPTORS_MIN, probe_descriptors};
use isthmus_io::{Settings, Streams};
use isthmus_mover::config::for_copies;
use isthmus_mover::wire::{BLOCK_SIZES, Choice, Rules, Share};
use isthmus_mover::{
    Cache, Direction, Disk, Io, MoverError, Notice, SitesConfig, Summary, Transfer, block_for, names,
};
use isthmus_trust::Trust;
use isthmus_units::{Rate, Size};
use isthmus_wire::Address;

use crate::ssh::{self, By, Session};

use location::{Location, Remote};
use report::Report;

/// Copy files to another site, or from there
///
/// One side is on this host. The other side is one of these:
///
/// USER@HOST:PATH or ssh://[USER@]HOST[:PORT]/PATH: ssh starts isthmus there, and nothing else has to be set up. Data
/// goes directly between the hosts if a connection gets through, else through ssh. A line says which.
///
/// SITE:EXPORT/PATH or HOST:PORT:EXPORT/PATH: a service (isthmus serve). SITE is a name in the file with the sites.
///
/// A file is copied into the destination if that is a folder or ends in "/". Otherwise the destination is the file's
/// new name. A folder is always copied into the destination, which is created if it is missing: run42 to b:data/new
/// becomes new/run42. If the source is written as run42/ or run42/., its contents are copied, to new itself. In paths
/// of remote sources "*" and "?" match names.
///
/// Every block is verified where it arrives. A file appears under its name when it is complete. If a command ends
/// early, the same command continues: it does not send again what has arrived. If a file has the same length and time
/// at both sides, only its permissions and extended attributes are updated.
///
/// Exit status: 0 everything is there; 1 some files were not copied, and are named; 2 the command or the configuration
/// is wrong; 3 this host refuses something, or events or digests could not be written; 4 the other side cannot be
/// reached, was lost, is being stopped, or has no session free: the same command continues; 5 the other side refuses,
/// or cannot be trusted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Copy these sources to the last path, the destination
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    places: Vec<OsString>,
    /// Copy folders too, with their contents
    #[arg(short, long)]
    recursive: bool,
    /// Print what would be copied, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Skip files that are newer at the destination
    #[arg(short, long)]
    update: bool,
    /// Also copy files that have the same length and time at the destination
    #[arg(long, conflicts_with = "update")]
    all: bool,
    /// Skip names that match this pattern. With a "/" in it, it has to match the end of the path; if it begins with
    /// "/", the path from the source on. If it ends in "/", it matches only folders. May be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Copy names that match this pattern, even if --exclude matches them: --exclude '*' --include '*/' --include
    /// '*.h5' copies only *.h5
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Highest rate, such as 200Mbit or 25MB/s. Processes that share the work share it
    #[arg(long, value_name = "RATE", value_parser = limit)]
    limit_rate: Option<Rate>,
    /// Count a file as copied only when it is on the destination's disk
    #[arg(long)]
    sync: bool,
    /// Print events to standard output, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Name every file that is copied, with its BLAKE3 digest
    #[arg(short, long)]
    verbose: bool,
    /// Length of a block: a power of two from 64KiB to 16MiB. Default: 1MiB, or up to 4MiB if the file system stores
    /// the files that are named here, or their folder, in longer stripes
    #[arg(long, value_name = "SIZE")]
    block: Option<Size>,
    /// Use at most this many TCP streams [default: the setting streams]
    #[arg(long, value_name = "N")]
    streams: Option<Streams>,
    /// Use at most this much memory for blocks
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: Size,
    /// Read or write with this many threads, and with one for each storage target if these are more (up to 16)
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// How these threads read and write: threads (by system calls), or uring (each by an io_uring, several pieces of a
    /// block at once, if the kernel has it)
    #[arg(long, value_name = "HOW", default_value = "threads")]
    io: Io,
    /// Whether blocks of files that are longer than one block go through the page cache: measured (whichever is found
    /// to be better), always or never
    #[arg(long, value_name = "HOW", default_value = "measured")]
    cache: Cache,
    /// File with the sites and this host's certificates. Default: isthmus/sites.toml in $XDG_CONFIG_HOME or
    /// ~/.config, else in /etc
    #[arg(long, value_name = "FILE", env = "ISTHMUS_SITES")]
    sites: Option<PathBuf>,
    /// Neither encrypt nor authenticate. For trusted networks; the service has to allow it
    #[arg(long)]
    plain: bool,
    /// By ssh: what carries the data
    #[arg(long, value_name = "WAY", default_value = "auto")]
    via: By,
    #[command(flatten)]
    words: ssh::Words,
    /// Copy only this process's share of the files: it is process R of N. isthmus-cp takes both from mpiexec or srun
    #[arg(long, value_name = "R/N", value_parser = share::parse)]
    share: Option<Share>,
}

/// Parses a rate. If the text is a size, the error shows how to write it as a rate.
fn limit(text: &str) -> Result<Rate, String> {
    text.parse::<Rate>().map_err(|error| match text.parse::<Size>() {
        Ok(_) if text.ends_with(['b', 'B']) => format!("{error}; of bytes a second \"{text}/s\""),
        _ => error.to_string(),
    })
}

/// `isthmus-cp`: the same command for launchers, whose processes share the work.
pub(crate) fn main_shared(mut args: Args) -> ExitCode {
    if args.share.is_none() {
        args.share = match share::of_launcher(|name| std::env::var(name).ok()) {
            Ok(share) => share,
            Err(text) => {
                errln!("isthmus cp: {text}");
                return ExitCode::from(2);
            }
        };
    }
    main(args)
}

pub(crate) fn main(args: Args) -> ExitCode {
    let start = Instant::now();
    let mut report = Report::new(args.json, args.verbose, args.dry_run, args.share.unwrap_or_default());
    let done = transfer(&args).and_then(|(mut transfer, tried, mut session)| {
        let mut done = run(&transfer, session.as_ref(), &mut report);
        if let (Err(MoverError::Unreached(why)), Some(session)) = (&done, &mut session) {
            session.go_through_ssh(why)?;
            transfer.service.locator = session.service;
            transfer.settings = for_copies(session.settings.clone());
            transfer.is_trial = session.is_trial;
            done = run(&transfer, Some(session), &mut report);
        }
        if let Some(session) = session {
            session.end();
        }
        done.map_err(|error| match error {
            lost @ MoverError::Lost(_) => lost.within("", &tried),
            error => error,
        })
    });
    report.end(&done, start.elapsed());
    ExitCode::from(match done {
        Ok(Summary { failed: 0, .. }) => 0,
        Ok(_) => 1,
        Err(MoverError::Usage(_)) => 2,
        Err(MoverError::Local(_)) => 3,
        Err(MoverError::Lost(_) | MoverError::Unreached(_)) => 4,
        Err(MoverError::Refused(_)) => 5,
    })
}

/// Copies. If the other side is reached by ssh, says how the data goes: in a trial once it is connected. What fails on
/// this side earlier in a trial is told then, because a second run would tell it again.
fn run(transfer: &Transfer, session: Option<&Session>, report: &mut Report) -> Result<Summary, MoverError> {
    let mut untold = session;
    if !transfer.is_trial
        && let Some(session) = untold.take()
    {
        report.err(&session.route());
    }
    report.calls(transfer.service.locator.to_string());
    let mut held = Vec::new();
    let done = transfer.run(&mut |notice| {
        let is_known = matches!(&notice, Notice::Progress(progress) if progress.connected);
        if is_known && let Some(session) = untold.take() {
            report.err(&session.route());
            held.drain(..).for_each(|notice| report.note(notice));
        }
        if untold.is_some() && matches!(&notice, Notice::Failed { .. } | Notice::Warning { .. }) {
            held.push(notice);
        } else {
            report.note(notice);
        }
    });
    if !matches!(done, Err(MoverError::Unreached(_))) {
        held.into_iter().for_each(|notice| report.note(notice));
    }
    done
}

/// Prepares the transfer, and the ssh session if the other side is reached by ssh. The text is what errors say of the
/// service's other addresses.
fn transfer(args: &Args) -> Result<(Transfer, String, Option<Session>), MoverError> {
    // With fewer it would connect and copy nothing.
    probe_descriptors(DESCRIPTORS_MIN)?;
    let usage = |text: String| MoverError::Usage(text);
    if let Some(block) = args.block
        && !(block.0.is_power_of_two() && BLOCK_SIZES.contains(&block.0))
    {
        return Err(usage(format!("--block {block}: expected a power of two from 64KiB to 16MiB")));
    }
    if args.exclude.is_empty() && !args.include.is_empty() {
        let text = "--include takes what --exclude leaves out, and nothing is left out; for these files alone add \
                    --exclude '*' --include '*/'";
        return Err(usage(text.to_owned()));
    }
    let (remote, direction) = direction(&args.places)?;
    let share = args.share.unwrap_or_default();
    if share.ranks > 1 && !args.places.last().is_some_and(|place| place.as_bytes().ends_with(b"/")) {
        let text =
            "several processes copy into a folder, which one of them makes: end the destination in \"/\"";
        return Err(usage(text.to_owned()));
    }
    let mut settings = Settings::load().map_err(|error| usage(error.to_string()))?;
    if let Some(streams) = args.streams {
        settings.streams = streams;
    }
    let end = if remote.is_by_ssh() {
        by_ssh(args, &remote, direction, settings)?
    } else {
        by_service(args, remote, direction, settings)?
    };
    let (exclude, include) = (args.exclude.clone(), args.include.clone());
    let choice = Choice { recursive: args.recursive, exclude, include, share };
    let rules = Rules { update: args.update, all: args.all, sync: args.sync, dry_run: args.dry_run };
    let block = args.block.map_or_else(|| usual_block(&end.direction), |block| block.0);
    let transfer = Transfer {
        service: end.service,
        trust: end.trust,
        settings: for_copies(end.settings),
        export: end.export,
        direction: end.direction,
        choice,
        rules,
        block,
        rate: args.limit_rate.map_or(0, |rate| (rate.0 / 8 / u64::from(share.ranks)).max(1)),
        memory: args.memory.0,
        threads: usize::from(args.threads),
        disk: Disk { io: args.io, cache: args.cache },
        is_trial: end.session.as_ref().is_some_and(|session| session.is_trial),
    };
    Ok((transfer, end.tried, end.session))
}

/// The other side of the copy.
struct End {
    service: Address,
    /// What errors say of the other addresses of its host.
    tried: String,
    trust: Option<Trust>,
    settings: Settings,
    export: String,
    direction: Direction,
    session: Option<Session>,
}

/// The other side is a service that runs already.
fn by_service(
    args: &Args,
    remote: Remote,
    direction: Direction,
    mut settings: Settings,
) -> Result<End, MoverError> {
    let sites = sites(args.sites.as_ref())?;
    let location::Located { service, plain, routers, tried } = location::locate(&remote, &sites, &settings)?;
    if !routers.0.is_empty() {
        settings.routers = routers;
    }
    let trust = if args.plain || plain { None } else { Some(sites.trust(service.as_id.0)?) };
    Ok(End { service, tried, trust, settings, export: remote.export, direction, session: None })
}

/// The other side is a service that ssh starts.
fn by_ssh(
    args: &Args,
    remote: &Remote,
    mut direction: Direction,
    settings: Settings,
) -> Result<End, MoverError> {
    if args.plain {
        let text = "--plain is for services that have no certificates; by ssh both sides make their own";
        return Err(MoverError::Usage(text.to_owned()));
    }
    let paths = match &direction {
        Direction::Put { .. } => vec![remote.path.clone()],
        Direction::Get { paths, .. } => paths.clone(),
    };
    let put = matches!(direction, Direction::Put { .. });
    let mut session = ssh::start(&remote.site, paths, put, &args.words, args.via, settings)?;
    let mut there = std::mem::take(&mut session.paths);
    match &mut direction {
        Direction::Put { path, .. } => {
            *path = there.pop().map(|path| names::unslashed(&path).to_vec()).unwrap_or_default();
        }
        Direction::Get { paths, .. } => *paths = there,
    }
    Ok(End {
        service: Address { incarnation: 0, ..Address::from(session.service) },
        tried: String::new(),
        trust: Some(session.trust.clone()),
        settings: session.settings.clone(),
        export: session.export.clone(),
        direction,
        session: Some(session),
    })
}

/// The block length that suits this host's storage.
fn usual_block(direction: &Direction) -> u64 {
    match direction {
        Direction::Put { sources, .. } => block_for(sources.iter().map(PathBuf::as_path)),
        Direction::Get { destination, .. } if destination.is_dir() => block_for([destination.as_path()]),
        // The file does not exist yet, so ask its folder.
        Direction::Get { destination, .. } => {
            let above = destination.parent().filter(|above| !above.as_os_str().is_empty());
            block_for([above.unwrap_or(Path::new("."))])
        }
    }
}

/// Finds out which side is on this host, and so the direction of the copy.
fn direction(places: &[OsString]) -> Result<(Remote, Direction), MoverError> {
    let usage = |text: &str| Err(MoverError::Usage(text.to_owned()));
    let Some((destination, sources)) = places.split_last() else { return usage("there is no destination") };
    if places.iter().any(|place| place.is_empty()) {
        return usage("a source or the destination is \"\", which names nothing; write . for this folder");
    }
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    for source in sources {
        match location::parse(source) {
            Location::Local(path) => local.push(path),
            Location::Remote(place) => remote.push((place, source)),
        }
    }
    match location::parse(destination) {
        Location::Remote(place) => {
            if let Some((_, source)) = remote.first() {
                return usage(&format!(
                    "both sides are remote; run the command on a host of one of them, or write a file of this host \
                     whose name has a colon as ./{}",
                    source.display()
                ));
            }
            let path = names::unslashed(&place.path).to_vec();
            let folder = path.is_empty() || path.len() < place.path.len();
            Ok((place, Direction::Put { sources: local, path, folder }))
        }
        Location::Local(destination) => {
            if !local.is_empty() {
                return usage("neither side is remote; write it as SITE:EXPORT/PATH, or use cp");
            }
            let Some((first, _)) = remote.first().cloned() else { return usage("there is no source") };
            if remote.iter().any(|(other, _)| (&other.site, &other.export) != (&first.site, &first.export)) {
                return usage("the sources are of several exports; copy from one after the other");
            }
            let paths = remote.into_iter().map(|(place, written)| match &place.path[..] {
                // The content of the export, without a folder of the export's name.
                b"" if written.as_bytes().ends_with(b"/") => b"./".to_vec(),
                _ => place.path,
            });
            Ok((first, Direction::Get { paths: paths.collect(), destination }))
        }
    }
}

fn sites(named: Option<&PathBuf>) -> Result<SitesConfig, MoverError> {
    if let Some(named) = named {
        return SitesConfig::read(named);
    }
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let found = home
        .into_iter()
        .chain([PathBuf::from("/etc")])
        .map(|folder| folder.join("isthmus/sites.toml"))
        .find(|path| path.is_file());
    found.map_or_else(|| Ok(SitesConfig::default()), |path| SitesConfig::read(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn read(words: &[&str]) -> Result<Transfer, String> {
        let place = ["cp", "--plain", "file", "127.0.0.1:1:data/"];
        let command = <Command as clap::Parser>::try_parse_from([&place[..], words].concat());
        let read = transfer(&command.map_err(|error| error.to_string())?.args);
        read.map(|(transfer, ..)| transfer).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_that_of_all_processes_and_bytes_are_no_bits() {
        let rate = |words: &[&str]| read(words).map(|transfer| transfer.rate);
        assert_eq!(rate(&["--limit-rate", "80MB/s"]), Ok(80_000_000));
        assert_eq!(rate(&["--limit-rate", "80Mbit"]), Ok(10_000_000));
        assert_eq!(rate(&["--limit-rate", "80Mbit", "--share", "1/4"]), Ok(2_500_000));
        assert_eq!(rate(&[]), Ok(0));
        let error = rate(&["--limit-rate", "10MB"]).expect_err("no rate");
        assert!(error.contains("of bytes a second \"10MB/s\""), "{error}");
    }

    #[test]
    fn what_is_included_of_nothing_left_out_is_a_mistake() {
        let error = read(&["--include", "*.h5"]).map(drop).expect_err("nothing is left out");
        assert!(error.contains("--exclude '*' --include '*/'"), "{error}");
        assert!(read(&["--include", "*.h5", "--exclude", "*"]).is_ok());
    }

    #[test]
    fn what_is_in_an_export_is_not_the_export() {
        let get = |place: &str| {
            let places = [place, "."].map(OsString::from);
            direction(&places).map(|(_, direction)| match direction {
                Direction::Get { paths, .. } => paths,
                Direction::Put { .. } => Vec::new(),
            })
        };
        assert_eq!(get("b:data").expect("a place"), [b"".to_vec()]);
        assert_eq!(get("b:data/").expect("a place"), [b"./".to_vec()]);
        assert_eq!(get("b:data/run/").expect("a place"), [b"run/".to_vec()]);
    }
}
