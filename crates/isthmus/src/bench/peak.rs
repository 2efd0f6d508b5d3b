//! `isthmus bench peak`: runs a command, and notes the peak memory of any of its processes.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::{Pid, Signal, kill_process_group};

/// How often it checks whether to end the command.
const LOOK: Duration = Duration::from_millis(10);

/// Run a command, and write the peak memory of its largest process to a file
#[derive(clap::Args)]
pub(super) struct Args {
    /// Write the bytes to this file. A file FILE.stop ends the command
    file: PathBuf,
    /// Run this command with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

pub(super) fn main(args: &Args) -> ExitCode {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).process_group(0);
    let ended = command.spawn().and_then(|child| wait(child, args));
    let status = match ended {
        Ok(status) => status,
        Err(error) => {
            errln!("isthmus bench: {}: {error}", args.command[0]);
            return ExitCode::from(super::FAILED);
        }
    };
    // The largest process among all descendants that have been waited for.
    let kib = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
    if let Err(error) = std::fs::write(&args.file, (kib * 1024).to_string()) {
        errln!("isthmus bench: {}: {error}", args.file.display());
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

fn wait(mut child: Child, args: &Args) -> std::io::Result<ExitStatus> {
    let mut stop = args.file.clone().into_os_string();
    stop.push(".stop");
    let stop = PathBuf::from(stop);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.exists() {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                let _ = kill_process_group(group, Signal::TERM);
            }
            return child.wait();
        }
        std::thread::sleep(LOOK);
    }
}
