//! The isthmus command: one file per subcommand.

mod doctor;
mod env;
mod install;
mod lab;
mod routes;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Lab(lab::Args),
    Routes(routes::Args),
}

fn main() -> ExitCode {
    log_to_stderr();
    match Cli::parse().command {
        Command::Env(args) => env::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Lab(args) => lab::main(args),
        Command::Routes(args) => routes::main(args),
    }
}

/// `ISTHMUS_LOG` chooses what is logged. Default: warnings.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_env_var("ISTHMUS_LOG")
        .with_default_directive(tracing::level_filters::LevelFilter::WARN.into())
        .from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
}
