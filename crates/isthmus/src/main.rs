//! The isthmus command: one file per subcommand.

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
mod serve;
mod ssh;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use isthmus_io::log::Severity;
use tracing::level_filters::LevelFilter;

/// MPI across far-apart sites.
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
    Cp(cp::Args),
    Serve(serve::Args),
    Man(man::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    SshServe(ssh::Args),
}

/// The name under which this program is `isthmus cp` for launchers.
const SHARED_CP: &str = "isthmus-cp";

/// Copy files with several processes: mpiexec -n 4 isthmus-cp ...
#[derive(Parser)]
#[command(name = SHARED_CP, version)]
struct SharedCp {
    #[command(flatten)]
    args: cp::Args,
}

fn main() -> ExitCode {
    let shares =
        std::env::args_os().next().is_some_and(|name| std::path::Path::new(&name).ends_with(SHARED_CP));
    let command = if shares { Command::Cp(SharedCp::parse().args) } else { Cli::parse().command };
    // A daemon's starts and reloads belong in the journal.
    let daemon = matches!(command, Command::Router(_) | Command::Serve(_));
    log_to_stderr(if daemon { LevelFilter::INFO } else { LevelFilter::WARN });
    match command {
        Command::Env(args) => env::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Devices(args) => devices::main(&args),
        Command::Bench(args) => bench::main(args),
        Command::Lab(args) => lab::main(args),
        Command::Router(args) => router::main(args),
        Command::Routes(args) => routes::main(args),
        Command::Cp(args) if shares => cp::main_shared(args),
        Command::Cp(args) => cp::main(args),
        Command::Serve(args) => serve::main(args),
        Command::Man(args) => man::main::<Cli>(&args),
        Command::Completions(args) => completions::main::<Cli>(&args),
        Command::SshServe(args) => ssh::main(&args),
    }
}

/// `ISTHMUS_LOG` chooses what is logged. Default: warnings, and what a daemon does.
fn log_to_stderr(default: LevelFilter) {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_env_var("ISTHMUS_LOG")
        .with_default_directive(default.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
    // What the engine decides, and why (docs/decisions.md).
    isthmus_io::log::set_hook(|severity, text| match severity {
        Severity::Warn => tracing::warn!(target: "isthmus_io", "{text}"),
        Severity::Info => tracing::info!(target: "isthmus_io", "{text}"),
        Severity::Debug => tracing::debug!(target: "isthmus_io", "{text}"),
    });
}
