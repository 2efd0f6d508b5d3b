//! `isthmus top`: shows what the endpoints, routers and services of this host do now.

mod gather;
mod http;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use isthmus_units::{HostPort, Span};

use gather::Gatherer;

const NO: u8 = 1;
/// Shortest time between two queries. Rates over less time are mostly noise.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Moves the cursor to the top left corner.
const HOME: &str = "\x1b[H";
/// `CLEAR_LINE` clears the rest of the line, `CLEAR_REST` the rest of the screen.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Show the peers, rates, losses and round trips of the programs, routers and services on this host
///
/// Asks your own processes that have an Isthmus endpoint, in this network namespace, and every router and service whose
/// configuration has a status on this host. Ctrl-C ends it. Exit status 1 with --once when nothing was found. See
/// docs/top.md.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the counters twice, print one table, and exit
    #[arg(long)]
    once: bool,
    /// Print JSON (with --once)
    #[arg(long, requires = "once")]
    json: bool,
    /// Read the counters at this interval
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Also show the router or service with this status address
    #[arg(long, value_name = "HOST:PORT")]
    status: Vec<HostPort>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let interval = Duration::from_nanos(args.interval.0).max(INTERVAL_MIN);
    let mut gatherer = Gatherer::new(args.status.clone());
    // The first query is the base of the first rates.
    gatherer.look();
    if args.once {
        std::thread::sleep(interval);
        let report = gatherer.look();
        if args.json {
            match serde_json::to_string_pretty(&report) {
                Ok(text) => outln!("{text}"),
                Err(error) => errln!("isthmus top: {error}"),
            }
        } else {
            out!("{}", table::text(&report));
        }
        return if report.is_empty() { ExitCode::from(NO) } else { ExitCode::SUCCESS };
    }
    let terminal = crate::output::takes_escapes(&std::io::stdout());
    if terminal {
        out!("{HOME}{CLEAR_REST}");
    }
    loop {
        std::thread::sleep(interval);
        let text = table::text(&gatherer.look());
        if terminal {
            out!("{HOME}{}{CLEAR_REST}", fitted(&text, size()));
        } else {
            outln!("{text}");
        }
        if crate::output::has_failed() {
            return ExitCode::SUCCESS;
        }
    }
}

/// Rows and columns of the terminal.
fn size() -> (u16, u16) {
    let told = rustix::termios::tcgetwinsize(std::io::stdout());
    usable(told.map_or((0, 0), |size| (size.ws_row, size.ws_col)))
}

/// A size of which something can be shown. Serial lines and terminals of containers do not know theirs, and say 0.
fn usable((rows, columns): (u16, u16)) -> (u16, u16) {
    let or = |told: u16, usual| if told == 0 { usual } else { told };
    (or(rows, 24).max(2), or(columns, 80).max(20))
}

/// The lines of `text` that fit on a terminal of this size. Each one also clears the rest of its line.
fn fitted(text: &str, (rows, columns): (u16, u16)) -> String {
    let lines: Vec<String> = text
        .lines()
        .take(usize::from(rows) - 1)
        .map(|line| line.chars().take(usize::from(columns)).collect::<String>() + CLEAR_LINE + "\r\n")
        .collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_terminal_that_does_not_know_its_size_has_the_usual_one() {
        assert_eq!([usable((0, 0)), usable((50, 132)), usable((1, 3))], [(24, 80), (50, 132), (2, 20)]);
        let line = "x".repeat(100);
        assert_eq!(fitted(&line, (24, 80)), format!("{}{CLEAR_LINE}\r\n", "x".repeat(80)));
    }

    #[test]
    fn a_status_is_named_by_host_or_address() {
        let read = |status| Line::try_parse_from(["top", "--status", status]).map(|line| line.args.status);
        for good in ["router.site.org:9410", "10.1.0.1:9410", "[fd00::1]:9410"] {
            assert_eq!(read(good).expect("an address").len(), 1);
        }
        assert!(read("9410").is_err());
    }
}
