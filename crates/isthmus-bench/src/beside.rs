//! Two flows that share a link: MPI over Isthmus, and one iperf3 stream. The receivers measure both shares, by
//! the same clock, while both send.

use crate::lab::{IPERF_PORT, last_line, quoted, until_listens};
use crate::link::EmulatedLink;
use crate::outcome::arrivals;
use crate::sample::Shares;

/// Goal: the fraction of the link that iperf3 keeps if the queue holds one round trip.
pub(crate) const GOAL: f64 = 0.4;
/// Time left out after the later start and before the earlier end. Seconds.
const ENDS_S: f64 = 1.0;
/// Smallest fraction of the requested time that counts as a measurement.
const LEAST: f64 = 0.5;

/// Bytes for our side to send: more than the link carries meanwhile, so that it still sends when iperf3 ends.
pub(crate) fn bytes(link: &EmulatedLink, seconds: u64) -> u64 {
    (link.goodput() * 2.0 * seconds as f64) as u64
}

/// Script for the lab's login node: runs the command `mpi` beside an iperf3 stream of `seconds`.
pub(crate) fn script(control: &str, seconds: u64, mpi: &str) -> String {
    let listens = quoted(&until_listens(IPERF_PORT));
    let server = "iperf3 -s -1 -i 0.25 -f k --forceflush";
    format!(
        "lab-rsh b {server} | while read -r line; do echo \"IPERF3 $(date +%s.%N) $line\"; done & \
         lab-rsh b {listens} || exit 3; {mpi} & mpi=$!; lab-rsh a iperf3 -c b -t {seconds} -C {control} > /dev/null; \
         code=$?; kill $mpi; wait; exit $code"
    )
}

/// The seconds in which both sent, and their shares of the link, from the script's output.
pub(crate) fn shares(said: &str, link: &EmulatedLink, seconds: u64) -> Result<(f64, Shares), String> {
    let (ours, theirs) = (arrivals(said), theirs(said));
    let ([(from, _), .., (to, _)], [(since, _), .., (until, _)]) = (&ours[..], &theirs[..]) else {
        return Err(format!("no result: {}", last_line(said)));
    };
    let (from, to) = (from.max(*since) + ENDS_S, to.min(*until) - ENDS_S);
    if to - from < LEAST * seconds as f64 {
        return Err(format!("both were sending for {:.1} s only", (to - from).max(0.0)));
    }
    let share = |points| (come(points, to) - come(points, from)) / (to - from) / link.goodput();
    Ok((to - from, Shares { ours: share(&ours), theirs: share(&theirs) }))
}

/// Arrivals of iperf3, from lines `IPERF3 TIME [  5] 0.25-0.50 sec 14.1 MBytes 473456 Kbits/sec`. Its summary line
/// ends with `receiver` and is skipped.
fn theirs(said: &str) -> Vec<(f64, f64)> {
    let mut sum = 0.0;
    let span = |line: &str| -> Option<(f64, f64)> {
        let (at, line) = line.strip_prefix("IPERF3 ")?.split_once(' ')?;
        let words: Vec<_> = line.split_once(']')?.1.split_whitespace().collect();
        let [span, "sec", _, _, rate, "Kbits/sec"] = words[..] else { return None };
        let (from, to) = span.split_once('-')?;
        let took = to.parse::<f64>().ok()? - from.parse::<f64>().ok()?;
        Some((at.parse().ok()?, rate.parse::<f64>().ok()? * 1e3 / 8.0 * took))
    };
    let add = |(at, bytes)| {
        sum += bytes;
        (at, sum)
    };
    said.lines().filter_map(span).map(add).collect()
}

/// Bytes that had arrived at a time between the first and the last point, interpolated.
fn come(points: &[(f64, f64)], at: f64) -> f64 {
    let after = points.partition_point(|(time, _)| *time <= at).clamp(1, points.len() - 1);
    let ((t0, b0), (t1, b1)) = (points[after - 1], points[after]);
    b0 + (b1 - b0) * (at - t0) / (t1 - t0).max(f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use isthmus_units::{Percent, Rate, Span};

    use super::*;

    const LINK: EmulatedLink = EmulatedLink {
        rate: Rate(1_000_000_000),
        rtt: Span(24_000_000),
        loss: Percent(0.0),
        mtu: 9_000,
        name: None,
    };

    /// Output of a run. iperf3 sends from second 0 to 10: at 990 Mb/s for 2 s, then at 400 Mb/s. Ours sends at
    /// 500 Mb/s from second 2 to `to`.
    fn said(to: u32) -> String {
        let mut said = "warning: ARRIVED\n".to_owned();
        for quarter in 0..40 {
            let (from, to) = (f64::from(quarter) / 4.0, f64::from(quarter + 1) / 4.0);
            let rate = if quarter < 8 { 990_000 } else { 400_000 };
            let _ = writeln!(
                said,
                "IPERF3 {:.9} [  5] {from:.2}-{to:.2} sec 9 MBytes {rate} Kbits/sec",
                1.7e9 + to
            );
        }
        said += "IPERF3 1700000010.1 [  5] 0.00-10.00 sec 9 MBytes 9 Kbits/sec receiver\n";
        for second in 2..=to {
            let bytes = u64::from(second - 1) * 62_500_000;
            let _ = writeln!(said, "ARRIVED {}.000000000 {bytes}", 1_700_000_000 + second);
        }
        said
    }

    #[test]
    fn only_the_time_in_which_both_send_counts() {
        let (seconds, shares) = shares(&said(12), &LINK, 10).expect("both sent");
        assert!((seconds - 6.0).abs() < 1e-3, "from second 3 to 9: {seconds}");
        let rate = LINK.goodput() * 8.0 / 1e6;
        assert!((shares.theirs * rate - 400.0).abs() < 0.1, "{shares:?}");
        assert!((shares.ours * rate - 500.0).abs() < 0.1, "{shares:?}");
    }

    #[test]
    fn one_that_ended_early_or_never_began_is_no_measurement() {
        assert!(shares(&said(7), &LINK, 10).expect_err("too short").contains("3.0 s only"));
        assert!(shares(&said(1), &LINK, 10).expect_err("without ours").contains("no result: IPERF3"));
        assert!(shares("iperf3: error\n", &LINK, 10).expect_err("neither").contains("iperf3: error"));
    }

    #[test]
    fn ours_has_more_to_send_than_the_link_carries_meanwhile() {
        assert!(LINK.floor_s(bytes(&LINK, 10)) > 15.0);
    }
}
