//! `isthmus man`: writes the manual pages of the commands and of the C library's calls.

mod calls;
mod header;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;

use header::Header;

/// The header that C programs include. The pages of section 3 are made from its comments.
const HEADER: &str = include_str!("../../../../include/isthmus.h");

/// Write the manual pages to a folder: man1 for the commands, man3 for the C library
///
/// "make install" does so. To read one: man --local-file DIR/man3/isthmus_send.3
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the pages to this folder, and create it if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn main<Cli: CommandFactory>(args: &Args) -> ExitCode {
    match write::<Cli>(&args.out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("isthmus man: {}: {error}", args.out.display());
            ExitCode::FAILURE
        }
    }
}

fn write<Cli: CommandFactory>(out: &Path) -> io::Result<()> {
    let (commands, calls) = (out.join("man1"), out.join("man3"));
    std::fs::create_dir_all(&commands)?;
    std::fs::create_dir_all(&calls)?;
    clap_mangen::generate_to(Cli::command(), &commands)?;
    let header = Header::read(HEADER).map_err(io::Error::other)?;
    std::fs::write(calls.join("isthmus.3"), calls::overview(&header))?;
    for call in &header.calls {
        std::fs::write(calls.join(format!("{}.3", call.name)), calls::page(&header, call))?;
    }
    Ok(())
}
