//! `isthmus bench`: measurements, beside peers on the same link in the same run.

mod wan;

use std::process::ExitCode;

use clap::Subcommand;

/// Measure, beside peers on the same link in the same run
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Wan(wan::Args),
}

pub(crate) fn main(args: Args) -> ExitCode {
    match args.what {
        What::Wan(args) => wan::main(&args),
    }
}
