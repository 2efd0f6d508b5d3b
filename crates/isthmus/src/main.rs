//! The `isthmus` command, with one file per subcommand.

// Help texts have what may be left out in brackets.
#![allow(rustdoc::broken_intra_doc_links)]
// The print macros panic if they cannot write; use those of `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod bench;
mod completions;
mod cp;
mod devices;
mod doctor;
mod env;
mod install;
mod lab;
mod man;
mod router;
mod routes;
mod run;
mod serve;
mod ssh;
mod state;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use isthmus_io::log::Severity;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// MPI across far-apart sites
///
/// Exit status of every command: 3 when its results cannot be written to standard output, as on a
/// full disk. A reader that has gone away, as `head` does, is no failure. What cannot be written to
/// standard error is dropped.
#[derive(Parser)]
#[command(name = "isthmus", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Env(env::Args),
    Doctor(doctor::Args),
    Devices(devices::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Router(router::Args),
    Routes(routes::Args),
    Run(run::Args),
    Cp(cp::Args),
    Serve(serve::Args),
    State(state::Args),
    Top(top::Args),
    Man(man::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    SshServe(ssh::Args),
    #[command(hide = true)]
    RunRank(run::RankArgs),
    #[command(hide = true)]
    RunPmix(run::PmixArgs),
}

/// How a daemon's log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people, without the time, which the journal adds
    Text,
    /// An object a line, with the time
    Json,
}

/// The name under which this program does `isthmus cp` for launchers.
const SHARED_CP: &str = "isthmus-cp";

/// Copy files with several processes: mpiexec -n 4 isthmus-cp ...
#[derive(Parser)]
#[command(name = SHARED_CP, version)]
struct SharedCp {
    #[command(flatten)]
    args: cp::Args,
}

/// Allows this process as many descriptors as it may allow itself. The usual limit, 1,024, is that of programs that
/// call `select(2)`.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, what lacks descriptors later says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Lets a write beyond the limit on the length of files (ulimit -f) fail with EFBIG. By default SIGXFSZ ends the
/// process, and so all copies of a service.
fn survive_long_files() {
    // If this fails, the process ends as by default.
    let _ = signal_hook::flag::register(Signal::XFSZ.as_raw(), std::sync::Arc::default());
}

fn main() -> ExitCode {
    output::end(run())
}

fn run() -> ExitCode {
    let shares =
        std::env::args_os().next().is_some_and(|name| std::path::Path::new(&name).ends_with(SHARED_CP));
    let parsed = match shares {
        true => SharedCp::try_parse().map(|shared| Command::Cp(shared.args)),
        false => Cli::try_parse().map(|cli| cli.command),
    };
    let command = match parsed {
        Ok(command) => command,
        Err(words) => return explain(&words),
    };
    // Daemons log at info level by default: the journal should have their starts and reloads.
    let daemon = matches!(command, Command::Router(_) | Command::Serve(_));
    let format = match &command {
        Command::Router(args) => args.log_format(),
        Command::Serve(args) => args.log_format,
        _ => LogFormat::Text,
    };
    output::set_log_format(format);
    // The user hears from `isthmus cp` how the copy ended. The service's lines would come by ssh, and say it again.
    let usual = if matches!(command, Command::SshServe(_)) { "isthmus_mover::server=error" } else { "" };
    let chosen = std::env::var("ISTHMUS_LOG").unwrap_or_else(|_| usual.to_owned());
    let level = if daemon { LevelFilter::INFO } else { LevelFilter::WARN };
    // If no thread can be started, a daemon writes its log itself, and soon says why it ends.
    let _written = match daemon.then(output::patient_log).flatten() {
        Some((writer, guard)) => {
            log_to(writer, &chosen, level, format);
            Some(guard)
        }
        None => {
            log_to(|| output::LogWriter, &chosen, level, format);
            None
        }
    };
    if daemon || matches!(command, Command::Cp(_) | Command::SshServe(_)) {
        raise_descriptors();
        survive_long_files();
    }
    match command {
        Command::Env(args) => env::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Devices(args) => devices::main(&args),
        Command::Bench(args) => bench::main(args),
        Command::Lab(args) => lab::main(args),
        Command::Router(args) => router::main(args),
        Command::Routes(args) => routes::main(args),
        Command::Run(args) => run::main(args),
        Command::Cp(args) if shares => cp::main_shared(args),
        Command::Cp(args) => cp::main(args),
        Command::Serve(args) => serve::main(args),
        Command::State(args) => state::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Man(args) => man::main::<Cli>(&args),
        Command::Completions(args) => completions::main::<Cli>(&args),
        Command::SshServe(args) => ssh::main(&args),
        Command::RunRank(args) => run::main_of_rank(&args),
        Command::RunPmix(args) => run::main_of_pmix(args),
    }
}

/// Prints clap's error, or the help that the arguments ask for.
fn explain(words: &clap::Error) -> ExitCode {
    let text = words.render();
    if words.use_stderr() {
        // As clap itself would print it.
        match output::colours(&std::io::stderr()) {
            true => err!("{}", text.ansi()),
            false => err!("{text}"),
        }
    } else {
        match output::colours(&std::io::stdout()) {
            true => out!("{}", text.ansi()),
            false => out!("{text}"),
        }
    }
    ExitCode::from(u8::try_from(words.exit_code()).unwrap_or(2))
}

/// The parts of this program that log.
const LOGGING: [&str; 5] = ["isthmus", "isthmus_io", "isthmus_metrics", "isthmus_mover", "isthmus_router"];

/// Whether a part of `ISTHMUS_LOG` can choose any line. `EnvFilter` takes each word that is no level for the name of a
/// part of the program.
fn is_known(part: &str) -> bool {
    let target = part.split(['=', '[']).next().unwrap_or_default();
    let is_level = !part.contains(['=', '[']) && part.parse::<LevelFilter>().is_ok();
    // A name chooses all parts that begin with it, as "isthmus" does. A module's name follows that of its part.
    let is_within = |name: &&str| target.strip_prefix(*name).is_some_and(|rest| rest.starts_with("::"));
    is_level || LOGGING.iter().any(|name| name.starts_with(target) || is_within(name))
}

/// The filter of the log: `default`, as far as `value` says nothing else. Also returns the parts of `value` that choose
/// nothing. `EnvFilter` alone would print some of those, and end the process if it cannot, and would forget the default
/// as soon as `value` names any part of the program.
fn filter(value: &str, default: LevelFilter) -> (EnvFilter, Vec<&str>) {
    let mut filter = EnvFilter::default().add_directive(default.into());
    let mut faulty = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(directive) if is_known(part) => filter = filter.add_directive(directive),
            _ => faulty.push(part),
        }
    }
    (filter, faulty)
}

/// Starts the log. `chosen` is the filter, as in `ISTHMUS_LOG`; as far as it says nothing else, `default` and above is
/// logged.
fn log_to<W>(writer: W, chosen: &str, default: LevelFilter, format: LogFormat)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, faulty) = filter(chosen, default);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => {
            log.with_ansi(output::colours(&std::io::stderr())).without_time().init();
        }
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    for part in faulty {
        let text = format!(
            "ISTHMUS_LOG: {part:?} is ignored: it is neither a level (off, error, warn, info, debug, trace) nor \
             PART=LEVEL with a PART of {}",
            LOGGING.join(", ")
        );
        match format {
            LogFormat::Text => errln!("isthmus: {text}"),
            LogFormat::Json => tracing::warn!("{text}"),
        }
    }
    // The engine's log: what it decides, and why (docs/decisions.md).
    isthmus_io::log::set_hook(|severity, text| match severity {
        Severity::Warn => tracing::warn!(target: "isthmus_io", "{text}"),
        Severity::Info => tracing::info!(target: "isthmus_io", "{text}"),
        Severity::Debug => tracing::debug!(target: "isthmus_io", "{text}"),
    });
}

#[cfg(test)]
mod tests {
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The level of lines of the library, by the file that the test of `isthmus-c/src/log.rs` reads too.
    #[test]
    fn the_log_is_filtered_as_the_library_filters_its_own() {
        let cases = include_str!("../../isthmus-c/tests/log_levels.txt");
        for line in cases.lines().filter(|line| !line.starts_with('#')) {
            let (value, expected) = line.rsplit_once(": ").expect("a value and a level");
            let subscriber = tracing_subscriber::registry().with(filter(value, LevelFilter::WARN).0);
            let shown = tracing::subscriber::with_default(subscriber, || {
                if tracing::enabled!(target: "isthmus_io", Level::DEBUG) {
                    "debug"
                } else if tracing::enabled!(target: "isthmus_io", Level::INFO) {
                    "info"
                } else if tracing::enabled!(target: "isthmus_io", Level::WARN) {
                    "warn"
                } else {
                    "off"
                }
            });
            assert_eq!(shown, expected, "{value:?}");
        }
        let said = |value| filter(value, LevelFilter::WARN).1;
        assert_eq!(said("info,a=b=c,*,isthmus_io=loud"), ["a=b=c", "*", "isthmus_io=loud"]);
        assert_eq!(said("wran"), ["wran"]);
        assert_eq!(said("isthmus_mvoer=debug,info,6"), ["isthmus_mvoer=debug", "6"]);
        assert!(
            said("Info,isthmus=debug,isthmus_io,isthmus_mover::server=trace,5,isthmus_io=,off").is_empty()
        );
    }

    #[test]
    fn the_parts_that_log_are_known() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in std::fs::read_dir(crates).expect("the crates") {
            let path = entry.expect("a crate").path();
            let manifest = std::fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
            let name = path.file_name().expect("a name").to_string_lossy().replace('-', "_");
            // The lab has a command of its own.
            if manifest.contains("\ntracing.workspace") && name != "isthmus_lab" {
                assert!(LOGGING.contains(&&*name), "{name}");
            }
        }
    }
}
