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
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::tcp_probe::TcpProbes;

/// Segment sizes that are tried in turn, for paths of 1500 bytes, of usual tunnels, and of the least that IPv6 allows
/// (1280 bytes). Bytes, less 60 for the headers of IPv6 and TCP.
const SIZES: [u32; 3] = [1_440, 1_340, 1_220];
/// The next size is smaller than the lane's by at least this. Bytes; TCP's options are not in the lane's.
const STEP: u32 = 60;
/// New connections that must succeed while a lane stands still. Count; with one, a path may just have come back.
const ANSWERS: u32 = 2;
/// Segments stay small for this long (RFC 8899, 5.1.1: PMTU_RAISE_TIMER).
const VALID: Duration = Duration::from_secs(600);
/// Most hosts that are remembered. Count.
const HOSTS_MAX: usize = 1_024;

/// What is known of a lane that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    /// Largest segment. Bytes.
    pub(crate) segment: u32,
    /// Sent and not acknowledged. Bytes.
    pub(crate) unacked: u64,
    /// Mean length of the segments that the peer has acknowledged. Bytes; 0 if it has acknowledged none.
    pub(crate) mean_acked: u64,
}

/// Why a lane stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Large packets do not get through. Further lanes have segments of at most this size. Bytes.
    Size(u32),
    /// Something on the path has ended the connection.
    Ended,
}

/// Hosts that large packets do not reach, and the search for them.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The largest segment for a host, and since when.
    limits: HashMap<IpAddr, (u32, Instant)>,
    probes: TcpProbes,
    /// Addresses of lanes that stand still, and the number of new connections that each has answered since.
    answers: HashMap<SocketAddr, u32>,
    /// Those of them that were named since the last look.
    named: Vec<SocketAddr>,
}

impl Segments {
    /// The largest segment for lanes to this host; `None` if the interface decides.
    pub(super) fn limit(&self, host: IpAddr) -> Option<u32> {
        let (limit, since) = self.limits.get(&host)?;
        (since.elapsed() < VALID).then_some(*limit)
    }

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

    /// A lane to the process that listens at `at` stands still. `Some` if that process answers new connections.
    pub(super) fn judge(&mut self, at: SocketAddr, stuck: Stuck) -> Option<Cause> {
        if !self.named.contains(&at) {
            self.named.push(at);
        }
        if *self.answers.entry(at).or_default() < ANSWERS {
            self.probes.ask(at);
            return None;
        }
        let Some(next) = stuck.next_size() else { return Some(Cause::Ended) };
        if self.limits.len() >= HOSTS_MAX {
            self.limits.retain(|_, (_, since)| since.elapsed() < VALID);
        }
        if self.limits.len() < HOSTS_MAX {
            self.limits.insert(at.ip(), (next, Instant::now()));
        }
        Some(Cause::Size(next))
    }
}

impl Stuck {
    /// The segment size with which to try again. `None` if the size is not the reason.
    fn next_size(&self) -> Option<u32> {
        let next = next_size(self.segment)?;
        let may_be_the_reason = self.unacked > u64::from(next) && self.mean_acked <= u64::from(next);
        may_be_the_reason.then_some(next)
    }
}

fn next_size(segment: u32) -> Option<u32> {
    SIZES.into_iter().find(|size| size + STEP <= segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane with jumbo frames whose first large packets are not acknowledged.
    const STUCK: Stuck = Stuck { segment: 8_948, unacked: 64_000, mean_acked: 300 };

    #[test]
    fn sizes_go_down_step_by_step() {
        // The size that the kernel reports is less by 12 bytes of options.
        assert_eq!(next_size(8_948), Some(1_440));
        assert_eq!(next_size(1_448), Some(1_340));
        assert_eq!(next_size(1_440 - 12), Some(1_340));
        assert_eq!(next_size(1_340 - 12), Some(1_220));
        assert_eq!(next_size(1_220 - 12), None);
    }

    #[test]
    fn size_is_no_reason_if_large_packets_got_through_or_none_is_large() {
        assert_eq!(STUCK.next_size(), Some(1_440));
        assert_eq!(Stuck { mean_acked: 0, ..STUCK }.next_size(), Some(1_440));
        assert_eq!(Stuck { mean_acked: 5_000, ..STUCK }.next_size(), None);
        assert_eq!(Stuck { unacked: 900, ..STUCK }.next_size(), None);
        assert_eq!(Stuck { segment: 1_208, ..STUCK }.next_size(), None, "there is no smaller one");
    }

    #[test]
    fn a_lane_is_judged_by_what_new_connections_find() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let mut segments = Segments::default();
        let mut looks = 0;
        let found = loop {
            segments.begin_look();
            if let Some(found) = segments.judge(at, STUCK) {
                break found;
            }
            looks += 1;
            std::thread::sleep(Duration::from_millis(20));
            assert!(looks < 100, "the listener answers");
        };
        assert!(found == Cause::Size(1_440) && looks >= 2, "two answers, one after the other");
        assert_eq!(segments.limit(at.ip()), Some(1_440));
        assert_eq!(segments.limit("192.0.2.1".parse().expect("valid")), None);
    }

    #[test]
    fn who_does_not_answer_is_not_judged() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = closed.local_addr().expect("bound");
        drop(closed);
        let mut segments = Segments::default();
        for _ in 0..20 {
            segments.begin_look();
            assert_eq!(segments.judge(at, STUCK), None);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn answers_of_a_lane_that_moves_again_are_forgotten() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let mut segments = Segments::default();
        for _ in 0..20 {
            segments.begin_look();
            assert_eq!(
                segments.judge(at, STUCK),
                None,
                "it moves between any two looks at which it stands still"
            );
            std::thread::sleep(Duration::from_millis(5));
            segments.begin_look();
            segments.begin_look();
        }
    }
}
