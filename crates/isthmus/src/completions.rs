//! `isthmus completions`: prints the completion script of a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print the completions of a shell
///
/// "make install" and the packages put them where bash, zsh and fish look. To try them in bash:
/// eval "$(isthmus completions bash)"
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print completions for this shell
    shell: Shell,
}

pub(crate) fn main<Cli: CommandFactory>(args: &Args) -> ExitCode {
    // `generate` panics if it cannot write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "isthmus", &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
