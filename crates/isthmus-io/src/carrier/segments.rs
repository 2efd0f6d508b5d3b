//! Finds paths that drop large packets silently: a host with jumbo frames is behind a switch without, or a firewall
//! drops a router's ICMP messages (RFC 2923, 2.1). TCP connects, for its first packets are small. Then it retransmits
//! its first large one without end. Linux can search for a smaller size (RFC 4821, `net.ipv4.tcp_mtu_probing`), but by
//! default it does not, and only root can change that.
//!
//! A lane that stands still while its peer's host answers new connections may have met such a path. It is given up, and
//! lanes with that host have smaller segments from then on. UDP lanes search for their packet size themselves
//! (`isthmus_udp::mtu`).
//!
//! A lane also stands still if something on the path has ended its connection and told only the other end, or nobody: a
//! firewall that resets or forgets connections, a NAT that drops its mapping. Such a lane is given up too. Its packets
//! show that their size is not the reason: large ones got through before, or none is large.

use std::collections::HashMap;
use std::net::SocketAddr;

use isthmus_path::segments::{Cause, Stuck};
use isthmus_path::{Hosts, Micros};

use super::tcp_probe::TcpProbes;

/// Asks the hosts of lanes that stand still whether they answer new connections.
#[derive(Debug, Default)]
pub(super) struct Segments {
    probes: TcpProbes,
    /// Addresses of lanes that stand still, and the number of new connections that each has answered since.
    answers: HashMap<SocketAddr, u32>,
    /// Those of them that were named since the last look.
    named: Vec<SocketAddr>,
}

impl Segments {
    /// Begins a look at all lanes: takes in what probes have found since the last one.
    pub(super) fn begin_look(&mut self) {
        let named = std::mem::take(&mut self.named);
        self.answers.retain(|at, _| named.contains(at));
        let answers = &mut self.answers;
        self.probes.look(|at, listens| {
            if let (Some(count), true) = (answers.get_mut(&at), listens) {
                *count += 1;
            }
        });
    }

    /// A lane to the process that listens at `at` stands still. The number of new connections that it has answered
    /// meanwhile; if `hosts` cannot tell the cause by that yet, another one is tried.
    pub(super) fn judge(
        &mut self,
        now: Micros,
        hosts: &mut Hosts,
        at: SocketAddr,
        stuck: Stuck,
    ) -> Option<Cause> {
        if !self.named.contains(&at) {
            self.named.push(at);
        }
        let answers = *self.answers.entry(at).or_default();
        let cause = hosts.on_stuck(now, at.ip(), answers, stuck);
        if cause.is_none() {
            self.probes.ask(at);
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isthmus_path::Policy;

    use super::*;

    /// A lane with jumbo frames whose first large packets are not acknowledged.
    const STUCK: Stuck = Stuck { segment: 8_948, unacked: 64_000, mean_acked: 300 };

    fn hosts() -> Hosts {
        Hosts::new(Policy { may_choose: true })
    }

    #[test]
    fn a_lane_is_judged_by_what_new_connections_find() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let (mut segments, mut hosts) = (Segments::default(), hosts());
        let mut looks = 0;
        let found = loop {
            segments.begin_look();
            if let Some(found) = segments.judge(7, &mut hosts, at, STUCK) {
                break found;
            }
            looks += 1;
            std::thread::sleep(Duration::from_millis(20));
            assert!(looks < 100, "the listener answers");
        };
        assert!(found == Cause::Size(1_440) && looks >= 2, "two answers, one after the other");
        assert_eq!(hosts.plan(7, at.ip()).segment, Some(1_440));
        assert_eq!(hosts.plan(7, "192.0.2.1".parse().expect("valid")).segment, None);
    }

    #[test]
    fn who_does_not_answer_is_not_judged() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = closed.local_addr().expect("bound");
        drop(closed);
        let (mut segments, mut hosts) = (Segments::default(), hosts());
        for _ in 0..20 {
            segments.begin_look();
            assert_eq!(segments.judge(7, &mut hosts, at, STUCK), None);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn answers_of_a_lane_that_moves_again_are_forgotten() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let (mut segments, mut hosts) = (Segments::default(), hosts());
        for _ in 0..20 {
            segments.begin_look();
            assert_eq!(
                segments.judge(7, &mut hosts, at, STUCK),
                None,
                "it moves between any two looks at which it stands still"
            );
            std::thread::sleep(Duration::from_millis(5));
            segments.begin_look();
            segments.begin_look();
        }
    }
}
