//! Formats the report as tables.

use std::fmt::Write;

use serde_json::Value;

use super::gather::{Peer, Process, Report};

/// A table. Columns whose names start with `#` hold numbers and are aligned right.
struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(columns: &'static [&'static str]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    fn row(&mut self, cells: Vec<String>) {
        // Other programs choose these texts, so remove control characters before they reach the terminal.
        self.rows.push(cells.into_iter().map(|cell| cell.replace(char::is_control, " ")).collect());
    }

    fn text(&self) -> String {
        let names: Vec<String> =
            self.columns.iter().map(|name| name.trim_start_matches('#').to_owned()).collect();
        let all = || std::iter::once(&names).chain(&self.rows);
        let widths: Vec<usize> = (0..names.len())
            .map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default())
            .collect();
        let mut out = String::new();
        for row in all() {
            let mut line = String::new();
            for ((cell, width), name) in row.iter().zip(&widths).zip(self.columns) {
                let _ = match name.starts_with('#') {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

/// Formats the whole report.
pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    if !report.processes.is_empty() {
        out += &processes(&report.processes);
        out.push('\n');
    }
    for daemon in &report.daemons {
        out += &match daemon["kind"].as_str() {
            Some("router") => router(daemon),
            _ => service(daemon),
        };
        out.push('\n');
    }
    if report.is_empty() {
        out += "no process of yours has an Isthmus endpoint, and no router or service here has a status\n";
    }
    for silent in &report.silent {
        let _ = writeln!(out, "{}", silent.replace(char::is_control, " "));
    }
    out
}

fn processes(processes: &[Process]) -> String {
    let mut table =
        Table::new(&["#PID", "PROGRAM", "PEER", "TRANSPORT", "#OUT", "#IN", "#LOSS", "#ROUND TRIP", "WHY"]);
    for process in processes {
        let named = [process.pid.to_string(), process.program.clone()];
        for endpoint in &process.endpoints {
            for peer in &endpoint.peers {
                table.row([&named[..], &of_peer(peer)[..]].concat());
            }
            if endpoint.peers.is_empty() {
                let alone = format!("none yet of {}", endpoint.address);
                table.row([&named[..], &[alone][..], &[const { String::new() }; 6][..]].concat());
            }
        }
    }
    table.text()
}

fn of_peer(peer: &Peer) -> [String; 7] {
    [
        peer.address.trim_start_matches("isthmus://").to_owned(),
        peer.transport.clone(),
        rate(peer.sent_bits_per_s),
        rate(peer.received_bits_per_s),
        loss(peer.loss),
        round_trip(peer.rtt_s),
        peer.why.join("; "),
    ]
}

fn router(state: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut table = Table::new(&[
        "NEIGHBOUR",
        "SUBNET",
        "OTHER END",
        "TRANSPORT",
        "#AGE",
        "#LANES",
        "#OUT",
        "#IN",
        "#LOSS",
        "#ROUND TRIP",
        "WHY",
    ]);
    for link in state["links"].as_array().into_iter().flatten() {
        let alive = link["alive"].as_bool().unwrap_or_default();
        table.row(vec![
            format!("AS {}", link["as"]),
            text(&link["subnet"]),
            text(&link["peer"]),
            text(&link["transport"]).to_uppercase() + if alive { "" } else { ", silent" },
            age(link["age_s"].as_f64()),
            link["lanes"].to_string(),
            rate(link["sent_bits_per_s"].as_f64().unwrap_or_default()),
            rate(link["received_bits_per_s"].as_f64().unwrap_or_default()),
            loss(link["loss"].as_f64()),
            round_trip(link["rtt_s"].as_f64()),
            text(&link["why"]),
        ]);
    }
    let draining = if state["draining"].as_bool() == Some(true) { ", draining" } else { "" };
    let title = format!(
        "router {} of AS {}, status {}, {} lanes{draining}",
        text(&state["name"]),
        state["as"],
        text(&state["status"]),
        state["lanes"]
    );
    titled(&title, &table)
}

fn service(state: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut table = Table::new(&[
        "SESSION",
        "AS",
        "CLIENT",
        "EXPORT",
        "DIRECTION",
        "#AGE",
        "#FILES",
        "#BYTES",
        "#RATE",
        "#ROUND TRIP",
        "WHY",
    ]);
    for session in state["sessions"].as_array().into_iter().flatten() {
        table.row(vec![
            session["number"].to_string(),
            session["as"].to_string(),
            text(&session["client"]),
            text(&session["export"]),
            text(&session["direction"]),
            age(session["age_s"].as_f64()),
            session["files"].to_string(),
            amount(session["bytes"].as_f64().unwrap_or_default()),
            rate(session["bits_per_s"].as_f64().unwrap_or_default()),
            round_trip(session["rtt_s"].as_f64()),
            text(&session["why"]),
        ]);
    }
    titled(&format!("service {}, status {}", text(&state["name"]), text(&state["status"])), &table)
}

fn titled(title: &str, table: &Table) -> String {
    let rows = if table.rows.is_empty() { String::new() } else { table.text() };
    format!("{}\n{rows}", title.replace(char::is_control, " "))
}

fn scaled(value: f64, units: [&str; 4]) -> String {
    let steps = [1e9, 1e6, 1e3];
    match steps.iter().zip(units).find(|(step, _)| value >= **step) {
        Some((step, unit)) => format!("{:.1} {unit}", value / step),
        None => format!("{value:.0} {}", units[3]),
    }
}

fn rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, ["Gb/s", "Mb/s", "kb/s", "b/s"])
}

fn amount(bytes: f64) -> String {
    scaled(bytes, ["GB", "MB", "kB", "B"])
}

fn loss(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

fn round_trip(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) => format!("{:.1} ms", seconds * 1e3),
    }
}

fn age(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds.map(|seconds| seconds as u64) else { return "-".to_owned() };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_stand_at_the_right() {
        let mut table = Table::new(&["A", "#N", "B"]);
        table.row(vec!["long\u{1b}[2J".to_owned(), "7".to_owned(), "x".to_owned()]);
        table.row(vec!["b".to_owned(), "1234".to_owned(), String::new()]);
        assert_eq!(table.text(), "A            N  B\nlong [2J     7  x\nb         1234\n");
    }

    #[test]
    fn a_router_and_a_service_are_shown_with_their_links_and_sessions() {
        let link = json!({
            "as": 2, "subnet": "wan", "peer": "192.0.2.2:4100", "transport": "udp", "alive": false,
            "age_s": 61.5, "lanes": 3, "sent_bits_per_s": 9.41e9, "received_bits_per_s": 10.0,
            "loss": 0.0123, "rtt_s": 0.0241, "why": "UDP: the round trip is 150 ms or more",
        });
        let state = json!({
            "kind": "router", "name": "r1", "as": 1, "status": "127.0.0.1:9410", "lanes": 3,
            "draining": true, "links": [link],
        });
        let text = router(&state);
        assert!(text.starts_with("router r1 of AS 1, status 127.0.0.1:9410, 3 lanes, draining\n"), "{text}");
        for expected in ["AS 2", "UDP, silent", "1 min", "9.4 Gb/s", "10 b/s", "1.23 %", "24.1 ms"] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let state =
            json!({ "kind": "serve", "name": "10.0.0.1:4200", "status": "127.0.0.1:9411", "sessions": [] });
        assert_eq!(service(&state), "service 10.0.0.1:4200, status 127.0.0.1:9411\n");
    }

    #[test]
    fn an_empty_report_says_so() {
        assert!(text(&Report::default()).starts_with("no process of yours"));
    }
}
