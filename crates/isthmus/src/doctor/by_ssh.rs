//! Tests a peer that ssh reaches: what passes directly between the hosts, and what copies and jobs would use.

use std::time::Duration;

use isthmus_io::Settings;
use isthmus_mover::MoverError;

use super::{Finding, Verdict, finding, good};
use crate::ssh::{ByUdp, Reach, Visit, Words, visit};

/// The login in a peer of the form `USER@HOST` or `ssh://[USER@]HOST[:PORT]`. A path after it, as in the arguments of
/// `isthmus cp`, is left out.
pub(super) fn login(peer: &str) -> Option<&str> {
    if let Some(rest) = peer.strip_prefix("ssh://") {
        let end = rest.find('/').map_or(peer.len(), |slash| peer.len() - rest.len() + slash);
        return Some(&peer[..end]);
    }
    let is_login = peer.contains('@') && !peer.contains("://");
    is_login.then(|| peer.strip_suffix(':').unwrap_or(peer))
}

pub(super) fn peer(login: &str, words: &Words, settings: &Settings) -> Vec<Finding> {
    let visit = match visit(login, words, settings) {
        Ok(visit) => visit,
        Err(error) => {
            // The other errors contain their own remedy.
            let remedy = match error {
                MoverError::Lost(_) => format!("does \"ssh {login} true\" work?"),
                _ => String::new(),
            };
            return vec![finding(Verdict::Bad, "ssh", error.to_string(), remedy)];
        }
    };
    let Visit { release, login: took, ssh_rtt, to_there, from_there } = &visit;
    let text = format!(
        "{login} has isthmus {release}; ssh took {:.2} s to start it, and a round trip through ssh takes {}",
        took.as_secs_f64(),
        milliseconds(*ssh_rtt)
    );
    let mut findings = vec![good("ssh", text)];
    match to_there {
        Some(reach) => findings.extend(passes(&["tcp there", "udp there"], "from here to", reach)),
        None => {
            let text = format!("{login} does not know by which address ssh reached it");
            findings.push(finding(Verdict::Advice, "tcp there", text, "connections to there were not tried"));
        }
    }
    match from_there {
        // Addresses are tried until one passes, so the last entry is the one that passed, if any.
        Ok(reached) => {
            let passed = reached
                .last()
                .into_iter()
                .flat_map(|reach| passes(&["tcp back", "udp back"], "from there to", reach));
            findings.extend(passed);
        }
        Err(error) => {
            let text = format!("connections from there to here were not tried: {error}");
            findings.push(finding(Verdict::Advice, "tcp back", text, ""));
        }
    }
    findings.extend(uses(&visit));
    findings
}

fn milliseconds(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1e3)
}

/// Findings about TCP and UDP in one direction.
fn passes(subjects: &[&'static str; 2], direction: &str, reach: &Reach) -> [Finding; 2] {
    const OPEN: &str = "open TCP and UDP to there, at the ports of port_range or port of isthmus.toml";
    let at = reach.at;
    let tcp = match &reach.tcp {
        Ok(rtt) => {
            good(subjects[0], format!("TCP passes {direction} {at}; round trip {}", milliseconds(*rtt)))
        }
        Err(error) => finding(
            Verdict::Advice,
            subjects[0],
            format!("TCP does not pass {direction} {at}: {error}"),
            OPEN,
        ),
    };
    let udp = match &reach.udp {
        Ok(ByUdp { rtt, packet }) => {
            let packet = match packet {
                Some(bytes) => format!("packets of {bytes} bytes arrive whole"),
                None => "packets of 1280 bytes do not arrive".to_owned(),
            };
            let rtt = milliseconds(*rtt);
            good(subjects[1], format!("UDP passes {direction} {at}; round trip {rtt}; {packet}"))
        }
        Err(error) => finding(
            Verdict::Advice,
            subjects[1],
            format!("UDP does not pass {direction} {at}: {error}"),
            OPEN,
        ),
    };
    [tcp, udp]
}

/// Findings about what copies and jobs between the two hosts would use.
fn uses(visit: &Visit) -> [Finding; 2] {
    /// The note if UDP does not pass.
    const LOSS: &str = "by TCP alone, which is slower where packets are lost";
    const BOTH: &str = "open TCP and UDP in both directions, or join the sites by routers (docs/router.md)";
    let there = visit.to_there.as_ref().filter(|reach| reach.tcp.is_ok());
    let back = visit.from_there.as_ref().ok().and_then(|reached| reached.last());
    let back = back.filter(|reach| reach.tcp.is_ok());
    let carriers =
        |reach: &Reach| if reach.udp.is_ok() { "by TCP or UDP, whichever is faster" } else { LOSS };
    let cp = match there {
        Some(reach) => good("isthmus cp", format!("would go directly to {}, {}", reach.at, carriers(reach))),
        None => finding(
            Verdict::Advice,
            "isthmus cp",
            "would go through ssh's own connection, no faster than that is",
            "open TCP from here to there, for the speed of the network",
        ),
    };
    let only = |way: &str| {
        format!("would wait in vain: TCP passes from {way} only, and ranks of both hosts connect")
    };
    let jobs = match (there, back) {
        (Some(there), Some(back)) => {
            let worse = if there.udp.is_ok() { back } else { there };
            good("MPI jobs", format!("would connect directly, {}", carriers(worse)))
        }
        (Some(_), None) => finding(Verdict::Advice, "MPI jobs", only("here to there"), BOTH),
        (None, Some(_)) => finding(Verdict::Advice, "MPI jobs", only("there to here"), BOTH),
        (None, None) => {
            let text = "would not connect: TCP passes in neither direction between these two hosts";
            finding(Verdict::Advice, "MPI jobs", text, BOTH)
        }
    };
    [cp, jobs]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_ssh_are_written_as_for_copies() {
        assert_eq!(login("me@b"), Some("me@b"));
        assert_eq!(login("me@b:"), Some("me@b"));
        assert_eq!(login("ssh://b"), Some("ssh://b"));
        assert_eq!(login("ssh://me@b:2222/data"), Some("ssh://me@b:2222"));
        for other in ["b:4100", "isthmus://1.2/10.0.0.1:4100#k@y", "10.0.0.1:4100"] {
            assert_eq!(login(other), None, "{other}");
        }
    }

    #[test]
    fn what_copies_and_jobs_use_follows_from_what_passes() {
        let at = "10.0.0.1:4100".parse().expect("an address");
        let reach = |tcp: bool, udp: bool| {
            let rtt = Duration::from_millis(1);
            let blocked = || "timed out".to_owned();
            let udp = udp.then_some(ByUdp { rtt, packet: Some(1500) }).ok_or_else(blocked);
            Reach { at, tcp: tcp.then_some(rtt).ok_or_else(blocked), udp }
        };
        let uses = |there: Reach, back: Reach| {
            let visit = Visit {
                release: String::new(),
                login: Duration::ZERO,
                ssh_rtt: Duration::ZERO,
                to_there: Some(there),
                from_there: Ok(vec![back]),
            };
            uses(&visit).map(|finding| (finding.verdict, finding.text))
        };
        let [(cp, by), (jobs, text)] = uses(reach(true, true), reach(false, false));
        assert_eq!((cp, jobs), (Verdict::Good, Verdict::Advice));
        assert!(by.contains("directly to 10.0.0.1:4100") && by.contains("TCP or UDP"), "{by}");
        assert!(text.contains("from here to there only"), "{text}");
        for (there, back) in
            [(reach(true, false), reach(true, true)), (reach(true, true), reach(true, false))]
        {
            let by_udp = there.udp.is_ok();
            let [(cp, by), (jobs, text)] = uses(there, back);
            assert_eq!((cp, jobs), (Verdict::Good, Verdict::Good));
            assert_eq!(by.contains("TCP alone"), !by_udp, "{by}");
            assert!(text.contains("TCP alone"), "{text}");
        }
        let [_, (_, text)] = uses(reach(true, true), reach(true, true));
        assert!(text.contains("TCP or UDP"), "{text}");
        let [(cp, by), (jobs, text)] = uses(reach(false, true), reach(true, false));
        assert_eq!((cp, jobs), (Verdict::Advice, Verdict::Advice), "{by}");
        assert!(text.contains("from there to here only"), "{text}");
        let [_, (jobs, text)] = uses(reach(false, true), reach(false, false));
        assert!(jobs == Verdict::Advice && text.contains("neither direction"), "{text}");
    }
}
