//! `isthmus state`: shows what the endpoints of a running program wait for.

use std::process::ExitCode;

const NO: u8 = 1;

/// Show what a running program waits for: its endpoints, peers, lanes and pending operations
///
/// Asks the program's I/O thread over a Unix socket. The program must run on this host, in the same network
/// namespace, under the same user (or you are root). Exit status 1 when a process gives no answer.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show the processes with these ids, the program's ranks
    #[arg(required = true)]
    pids: Vec<u32>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for pid in &args.pids {
        match isthmus_io::state_of(*pid) {
            Ok(text) => out!("process {pid}\n{text}"),
            // Somebody else's socket in its name.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                errln!("isthmus state: process {pid}: its answer does not count: {error}");
                status = ExitCode::from(NO);
            }
            Err(error) => {
                errln!(
                    "isthmus state: process {pid} does not answer ({error}): has it an open Isthmus endpoint, is it \
                     yours, and is it in this network namespace?"
                );
                status = ExitCode::from(NO);
            }
        }
    }
    status
}
