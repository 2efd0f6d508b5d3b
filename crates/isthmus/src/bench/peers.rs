//! The same measurements by other programs, if installed: libfabric's `fi_pingpong`, over its tcp provider and over
//! Isthmus's, and `ucx_perftest`.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::Test;
use super::report::{Figure, Row};
use crate::install;

/// How long a server gets to start listening: it prints nothing when it does.
const SETTLE: Duration = Duration::from_millis(500);
/// Longest time of a client or server. Seconds.
const LIMIT: &str = "60";

pub(super) fn measure(test: Test, size: usize, count: u64, say: &impl Fn(Row)) {
    if test == Test::Pingpong {
        for provider in ["isthmus", "tcp"] {
            fi_pingpong(provider, size, count).into_iter().for_each(say);
        }
    }
    ucx_perftest(test, size, count).into_iter().for_each(say);
}

/// Starts a server, then a client with the host's address. Returns the client's output.
fn two_sides(with: impl Fn(&[&str]) -> Command) -> Option<String> {
    let quiet = |command: &mut Command| -> Option<Child> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    };
    let mut server = quiet(&mut with(&[]))?;
    thread::sleep(SETTLE);
    let said = with(&["127.0.0.1"]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let _ = server.kill();
    let _ = server.wait();
    String::from_utf8(said.ok()?.stdout).ok()
}

fn fi_pingpong(provider: &str, size: usize, count: u64) -> Option<Row> {
    let folder = install::provider_folder();
    if provider == "isthmus" && folder.is_none() {
        return None;
    }
    let with = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([LIMIT, "fi_pingpong", "-p", provider, "-e", "rdm"]);
        command.args(["-S", &size.to_string(), "-I", &count.to_string()]).args(words);
        if provider == "isthmus" {
            command.env("FI_PROVIDER_PATH", folder.clone().unwrap_or_default());
            command.env("FI_ISTHMUS_INTERFACE", "127.0.0.1");
            // The client knows only the server's host and port.
            command.env("FI_ISTHMUS_ADMISSION", "open");
        }
        command
    };
    // Columns: bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec. The time is for one direction.
    let said = two_sides(with)?;
    let one_way: f64 = said.lines().last()?.split_whitespace().nth(6)?.parse().ok()?;
    let what = format!("fi_pingpong {provider}");
    Some(Row { what, size, count, lost: 0, result: Figure::Mean(one_way * 2.0) })
}

fn ucx_perftest(test: Test, size: usize, count: u64) -> Option<Row> {
    let name = match test {
        Test::Pingpong => "tag_lat",
        Test::Stream => "tag_bw",
        Test::Rma => "ucp_put_bw",
    };
    let with = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([LIMIT, "ucx_perftest", "-v", "-f", "-t", name]);
        command.args(["-s", &size.to_string(), "-n", &count.to_string()]).args(words);
        command.env("UCX_TLS", "tcp,self");
        command
    };
    let result = ucx_figure(&two_sides(with)?, test, size, count)?;
    Some(Row { what: format!("ucx_perftest {name}, tcp"), size, count, lost: 0, result })
}

/// Parses the output of `-v`: iterations, latency (median, mean, overall; us, one direction), bandwidth (mean, overall;
/// MB/s), rate.
fn ucx_figure(said: &str, test: Test, size: usize, count: u64) -> Option<Figure> {
    let fields: Vec<f64> = said.lines().rev().find_map(|line| {
        let fields: Vec<f64> = line.split(',').map_while(|field| field.trim().parse().ok()).collect();
        (fields.len() >= 6).then_some(fields)
    })?;
    if test == Test::Pingpong {
        return Some(Figure::Mean(fields[2] * 2.0));
    }
    let bytes = size as u64 * count;
    // ucx_perftest counts 2^20 bytes as an MB.
    let seconds = bytes as f64 / (fields[5] * f64::from(1 << 20));
    Some(Figure::Goodput { bytes, seconds, each: None })
}
