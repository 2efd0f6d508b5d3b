//! The result of a run, from its output.

use std::process::ExitStatus;

use isthmus_lab::catalogue::NamedLink;
use isthmus_lab::report::SLOT_NS;
use serde_json::Value;

use crate::contender::Contender;
use crate::matrix::{OUTAGE_S, Step, Work};
use crate::sample::Shares;
use crate::{beside, lab, link};

/// Exit code of `timeout` when the time is up.
const TIME_IS_UP: i32 = 124;

/// A run that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) said: &'a str,
    /// Its standard error without the log of choices.
    pub(crate) complained: &'a str,
    /// Time that it had, from its `BEGAN` line on. Seconds.
    pub(crate) limit_s: f64,
    /// The emulator's report on itself.
    pub(crate) emulator: &'a Value,
    /// What its link does, if it is of a catalogue.
    pub(crate) entry: Option<&'a NamedLink>,
}

/// Result of a run. The fields are those of [`crate::Sample`].
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) seconds: Option<f64>,
    pub(crate) not_ended_s: Option<f64>,
    pub(crate) round_trips_us: Vec<f64>,
    pub(crate) shares: Option<Shares>,
    pub(crate) congestion: Option<String>,
    pub(crate) resumed_s: Option<f64>,
    /// Set if the floor depends on what happened.
    pub(crate) floor_s: Option<f64>,
}

/// The result of a run, or why there is none.
pub(crate) fn outcome(step: &Step, ended: &Ended<'_>) -> Result<Outcome, String> {
    let said = ended.said;
    let none = || format!("no result: {}", lab::last_line(said));
    // The launcher's exit code after a program gave up says nothing.
    let is_time_up = said.lines().any(|line| line == "NOT ENDED")
        || ended.status.code() == Some(TIME_IS_UP) && step.contender.is_iperf();
    if is_time_up {
        return Ok(Outcome { not_ended_s: Some(ended.limit_s), ..Outcome::default() });
    }
    if !ended.status.success() {
        return Err(lab::why(ended.status, said, ended.complained, ended.limit_s));
    }
    match step.contender {
        Contender::Beside(_) => {
            let (seconds, shares) = beside::shares(said, &step.link, step.work.amount())?;
            Ok(Outcome { seconds: Some(seconds), shares: Some(shares), ..Outcome::default() })
        }
        Contender::Iperf(..) => {
            let outcome = iperf(step.work, &serde_json::from_str(said).map_err(|_| none())?)?;
            Ok(Outcome { floor_s: changed_floor_s(step, ended), ..outcome })
        }
        _ => {
            let line = said.lines().find_map(|line| line.strip_prefix("RESULT ")).ok_or_else(none)?;
            let result: Value = serde_json::from_str(line).map_err(|_| none())?;
            let trips = result["round_trips_us"].as_array().map(Vec::as_slice).unwrap_or_default();
            let seconds = Some(result["seconds"].as_f64().ok_or_else(none)?);
            let round_trips_us = trips.iter().filter_map(Value::as_f64).collect();
            let outcome = Outcome { seconds, round_trips_us, ..Outcome::default() };
            with_what_was_down(step, ended, outcome)
        }
    }
}

fn iperf(work: Work, result: &Value) -> Result<Outcome, String> {
    let received = &result["end"]["sum_received"];
    let [took, came] = ["seconds", "bytes"].map(|key| received[key].as_f64().filter(|value| *value > 0.0));
    let (Some(took), Some(came)) = (took, came) else { return Err(result["error"].to_string()) };
    // iperf3 ends when all is sent, before all has arrived. Its rate until then gives the time for all.
    let seconds = Some(took * work.bytes() as f64 / came);
    let congestion = result["end"]["sender_tcp_congestion"].as_str().map(str::to_owned);
    Ok(Outcome { seconds, congestion, ..Outcome::default() })
}

/// Adds the results about an outage or a cut.
fn with_what_was_down(step: &Step, ended: &Ended<'_>, outcome: Outcome) -> Result<Outcome, String> {
    let times = || {
        let down = ended.emulator["opened_s"].as_f64()? + step.work.down_at_s(&step.link)?;
        Some((down, began(ended.said)?))
    };
    let unknown = || "when the link was down is not known: the lab has left no report".to_owned();
    match step.work {
        Work::Outage(_) => {
            let (down, began) = times().ok_or_else(unknown)?;
            if began > down {
                return Err("data began to flow only when the link was down; use a quieter machine".into());
            }
            let back = down + OUTAGE_S;
            let first = arrivals(ended.said).into_iter().map(|(at, _)| at).find(|at| *at >= back);
            let first = first.ok_or("all had come before the link was back")?;
            Ok(Outcome { resumed_s: Some(first - back), ..outcome })
        }
        Work::Paths { bytes, second, is_cut: true } => {
            let (down, began) = times().ok_or_else(unknown)?;
            let cut_s = Some((down - began).max(0.0));
            if outcome.seconds < cut_s {
                return Err("all had come before the link was cut; send more (--size)".into());
            }
            Ok(Outcome { floor_s: Some(link::floor_of_both_s(bytes, &step.link, &second, cut_s)), ..outcome })
        }
        _ => Ok(Outcome { floor_s: changed_floor_s(step, ended), ..outcome }),
    }
}

/// A slot of the emulator's report with at least this much data belongs to the transfer. Bytes; connections that come up
/// send less.
const FLOWS: u64 = 100_000;

/// Wire bytes that arrived at site b in each slot of [`SLOT_NS`].
pub(crate) fn by_slot(emulator: &Value) -> Vec<u64> {
    let slots = emulator["links"][0]["directions"][0]["delivered_by_slot"].as_array();
    slots.into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// When data began to flow: the beginning of its first slot. Seconds from the lab's start.
pub(crate) fn flowed_from_s(slots: &[u64]) -> Option<f64> {
    let first = slots.iter().position(|bytes| *bytes >= FLOWS)?;
    Some(first as f64 * SLOT_NS as f64 / 1e9)
}

/// The floor on a link that changes, by when data began to flow.
fn changed_floor_s(step: &Step, ended: &Ended<'_>) -> Option<f64> {
    let entry = ended.entry.filter(|entry| !entry.spec.directions[0].changes.is_empty())?;
    let began_s = flowed_from_s(&by_slot(ended.emulator))? - step.link.rtt_s() / 2.0;
    Some(step.link.floor_from_s(entry, step.work.bytes(), began_s))
}

/// Start of the time, from `BEGAN TIME 0`. Seconds since 1970.
fn began(said: &str) -> Option<f64> {
    points(said, "BEGAN ").next().map(|(at, _)| at)
}

/// Times and bytes received by then, from `ARRIVED TIME BYTES`. Seconds since 1970.
pub(crate) fn arrivals(said: &str) -> Vec<(f64, f64)> {
    points(said, "ARRIVED ").collect()
}

fn points<'a>(said: &'a str, what: &'a str) -> impl Iterator<Item = (f64, f64)> + 'a {
    said.lines().filter_map(move |line| {
        let (at, bytes) = line.strip_prefix(what)?.split_once(' ')?;
        Some((at.parse().ok()?, bytes.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use isthmus_units::{Percent, Rate, Span};
    use serde_json::json;

    use super::*;
    use crate::EmulatedLink;

    const LINK: EmulatedLink = EmulatedLink {
        rate: Rate(1_000_000_000),
        rtt: Span(24_000_000),
        loss: Percent(0.0),
        mtu: 9_000,
        name: None,
    };

    fn of(
        work: Work,
        contender: Contender,
        status: i32,
        said: &str,
        complained: &str,
    ) -> Result<Outcome, String> {
        let step = Step { run: 1, seed: 1, link: LINK, work, contender };
        let status = ExitStatus::from_raw(status << 8);
        let emulator = &json!({ "opened_s": 100.0 });
        outcome(&step, &Ended { status, said, complained, limit_s: 30.0, emulator, entry: None })
    }

    #[test]
    fn results_are_found_and_failures_say_why() {
        let work = Work::Stream(8);
        let took = |seconds, trips: &[f64]| Outcome {
            seconds: Some(seconds),
            round_trips_us: trips.to_vec(),
            ..Outcome::default()
        };
        let good = "warning\nRESULT {\"seconds\": 4.5, \"round_trips_us\": [1.0, 2.5]}\n";
        assert_eq!(of(work, Contender::Isthmus, 0, good, ""), Ok(took(4.5, &[1.0, 2.5])));
        let late = of(work, Contender::Isthmus, 3, "", "isthmus lab: time is up\n");
        assert!(late.expect_err("failed").contains("within 30 s: isthmus lab: time is up"));
        assert!(of(work, Contender::Isthmus, 0, "nothing\n", "").is_err());
        let json = "{\"end\": {\"sum_received\": {\"seconds\": 2.25, \"bytes\": 4}, \"sender_tcp_congestion\": \"bbr\"}}";
        let iperf = Outcome { congestion: Some("bbr".into()), ..took(4.5, &[]) };
        assert_eq!(of(work, Contender::Iperf("bbr", 1), 0, json, ""), Ok(iperf));
        let refused = of(work, Contender::Iperf("bbr", 1), 0, "{\"error\": \"refused\"}", "");
        assert_eq!(refused, Err("\"refused\"".to_owned()));
    }

    #[test]
    fn one_that_did_not_end_in_time_is_a_result_and_no_failure() {
        let late = Outcome { not_ended_s: Some(30.0), ..Outcome::default() };
        let said = "BEGAN 101.5 0\nNOT ENDED\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n";
        assert_eq!(of(Work::Stream(8), Contender::Stock("cubic"), 3, said, "killed\n").as_ref(), Ok(&late));
        assert_eq!(of(Work::Stream(8), Contender::Iperf("cubic", 8), TIME_IS_UP, "", "").as_ref(), Ok(&late));
    }

    #[test]
    fn of_an_outage_it_is_told_when_data_flows_again() {
        let result = "RESULT {\"seconds\": 9.0, \"round_trips_us\": []}\n";
        let said = |began: f64, arrived: f64| {
            format!("BEGAN {began} 0\nARRIVED 103.9 1\nARRIVED {arrived} 2\nARRIVED 107.5 3\n{result}")
        };
        let outage = |said: &str| of(Work::Outage(8), Contender::Isthmus, 0, said, "");
        let resumed = outage(&said(101.0, 106.25)).expect("a result").resumed_s.expect("it came again");
        assert!((resumed - 0.25).abs() < 1e-6, "{resumed}");
        assert!(outage(&said(105.0, 106.25)).expect_err("too late").contains("when the link was down"));
        let over = format!("BEGAN 101.0 0\nARRIVED 103.9 1\n{result}");
        assert!(outage(&over).expect_err("too early").contains("before the link was back"));
    }

    #[test]
    fn the_floor_of_two_links_follows_from_when_one_was_cut() {
        let work = Work::Paths { bytes: 500_000_000, second: LINK, is_cut: true };
        let said = "BEGAN 101.0 0\nRESULT {\"seconds\": 9.0, \"round_trips_us\": []}\n";
        let floor_s = of(work, Contender::Isthmus, 0, said, "").expect("a result").floor_s.expect("known");
        let cut_s = 100.0 + work.down_at_s(&LINK).expect("it is cut") - 101.0;
        assert!(cut_s > 0.5 && cut_s < floor_s, "in the midst: {cut_s}");
        assert!((floor_s - link::floor_of_both_s(500_000_000, &LINK, &LINK, Some(cut_s))).abs() < 1e-9);
        let said = said.replace("9.0", "0.1");
        assert!(of(work, Contender::Isthmus, 0, &said, "").expect_err("too early").contains("was cut"));
    }
}
