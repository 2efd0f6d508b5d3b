//! Moves bulk data from UDP to TCP if TCP carries more.
//!
//! UDP is the choice for long paths. Two things can make it the wrong one:
//!
//! - *Processor*: our own packets cost more processor time than the kernel's. The driving thread is busy with packets
//!   nearly all the time, or, as the peer reports, packets wait most of the time until the peer reads them. So little is
//!   lost that TCP would do. TCP lanes then take all bulk data.
//! - *Path*: it seems to police the flow (`is_policed` of isthmus-udp's congestion controls). Some networks police UDP alone. Nothing tells
//!   that but a trial, which costs next to nothing if it fails: TCP lanes carry *beside* UDP. They take all bulk data if
//!   both together carry [`WORTH`] times what UDP carried.
//!
//! TCP lanes are then measured. If less arrives than by UDP, or packets are lost without a queue, UDP carries again, and
//! TCP is not tried again for half an hour. After a trial beside UDP that failed, the next one waits 30 s, then twice as
//! long, up to half an hour. Nothing changes in the first seconds of a transfer. Packets also wait while the system runs
//! other programs. That counts as busy, too: it is a lack of processor time all the same.

use std::fmt;

use crate::evidence::UdpWork;
use crate::thresholds::distance::REPAIR_US;
use crate::thresholds::trial::{
    AMPLE, BUSY, FAR_BUSY, MATHIS, MIN_PERIOD_US, MIN_RATE, MIN_START_US, PERIOD_RTTS, PERIODS,
    REST_FIRST_US, REST_US, START_RTTS, STREAMS, UP_US, WORTH,
};
use crate::{Bulk, Micros};

/// What carries bulk data from now on, and the reason. Rates in bytes/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// TCP, since this host's processor is busy with packets, or the peer's.
    Busy {
        /// Share of time.
        busy: f64,
        /// Share of packets.
        lost: f64,
        /// It is the peer's.
        far: bool,
    },
    /// TCP beside UDP, since the path may police UDP.
    Beside {
        /// Bytes/s.
        udp: f64,
    },
    /// TCP, since both together carry more than UDP alone did.
    Faster {
        /// Bytes/s.
        both: f64,
        /// Bytes/s.
        udp: f64,
    },
    /// UDP alone again, since both together carry no more.
    NoFaster {
        /// Bytes/s.
        both: f64,
        /// Bytes/s.
        udp: f64,
    },
    /// UDP again, since TCP is slower: the rates of both.
    Slower {
        /// Bytes/s.
        tcp: f64,
        /// Bytes/s.
        udp: f64,
    },
    /// UDP again, since no TCP lane has come up, or none was needed.
    NoTcp,
    /// UDP again, since the path loses packets.
    Lossy,
}

impl Change {
    /// How much of the bulk data is for UDP lanes from now on.
    pub fn bulk(&self) -> Bulk {
        match self {
            Self::Busy { .. } | Self::Faster { .. } => Bulk::None,
            Self::Beside { .. } => Bulk::Part,
            Self::NoFaster { .. } | Self::Slower { .. } | Self::NoTcp | Self::Lossy => Bulk::All,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gbit = |bytes: &f64| bytes * 8.0 / 1e9;
        match self {
            Self::Busy { busy, lost, far } => {
                let whose = if *far { "receiver's processor" } else { "processor" };
                let (busy, lost) = (100.0 * busy, 100.0 * lost);
                write!(f, "the {whose} is busy with UDP for {busy:.0} % of the time, {lost:.2} % lost")
            }
            Self::Beside { udp } => {
                let udp = gbit(udp);
                write!(f, "for a trial beside UDP, which carries {udp:.2} Gb/s on a path that may police it")
            }
            Self::Faster { both, udp } => {
                let (both, udp) = (gbit(both), gbit(udp));
                write!(f, "{both:.2} Gb/s with TCP, where UDP alone carried {udp:.2}")
            }
            Self::NoFaster { both, udp } => {
                let (both, udp) = (gbit(both), gbit(udp));
                write!(f, "TCP beside it brought no more, {both:.2} Gb/s where UDP alone carried {udp:.2}")
            }
            Self::Slower { tcp, udp } => {
                write!(f, "TCP is slower, {:.2} Gb/s where UDP carried {:.2}", gbit(tcp), gbit(udp))
            }
            Self::NoTcp => f.write_str("TCP was tried, and carried nothing"),
            Self::Lossy => f.write_str("packets are lost without a queue"),
        }
    }
}

/// The measurements for one host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpTrial {
    /// How much of the bulk data is for UDP lanes.
    bulk: Bulk,
    rtt_us: Micros,
    /// Nothing is measured before this time.
    from: Micros,
    /// No TCP lanes beside UDP before this time, and the pause after the last such trial that failed.
    beside_from: Micros,
    rest_us: Micros,
    /// When the present period began.
    since: Option<Micros>,
    /// The work in it.
    work: UdpWork,
    /// Periods in a row that suggest a change.
    periods: u32,
    /// The highest rate of UDP in those periods, or that before a trial beside it. Bytes/s.
    rate: f64,
    /// Something has arrived by TCP.
    heard: bool,
}

impl TcpTrial {
    /// How much of the bulk data is for UDP lanes.
    pub(crate) fn bulk(&self) -> Bulk {
        self.bulk
    }

    /// Takes in a look at the UDP lanes. `packet` is the size of their packets. Bytes.
    pub(crate) fn look(&mut self, now: Micros, rtt_us: Micros, packet: u32, work: UdpWork) -> Option<Change> {
        let since = self.from.saturating_sub(self.start_us());
        let is_gone = !self.heard && now >= since + UP_US.max(self.start_us());
        match self.bulk {
            Bulk::None | Bulk::Part if is_gone => Some(self.go_back(now, Change::NoTcp)),
            Bulk::None => None,
            Bulk::Part => {
                let (done, took) = self.period(now, work)?;
                self.judge_both(now, done.bytes as f64 * 1e6 / took as f64)
            }
            Bulk::All => {
                self.rtt_us = rtt_us;
                let (done, took) = self.period(now, work)?;
                self.judge_udp(now, packet, done, took)
            }
        }
    }

    /// Judges a period in which UDP carried alone.
    fn judge_udp(&mut self, now: Micros, packet: u32, done: UdpWork, took: Micros) -> Option<Change> {
        let rate = done.bytes as f64 * 1e6 / took as f64;
        let share = |us: Micros| us as f64 / took as f64;
        let far = share(done.busy_us) < BUSY;
        let (busy, least) =
            if far { (share(done.far_busy_us), FAR_BUSY) } else { (share(done.busy_us), BUSY) };
        let lost = done.lost as f64 / done.packets.max(1) as f64;
        let would_do = rate * AMPLE <= tcp_rate(self.rtt_us, packet, lost);
        let is_busy = busy >= least && rate >= MIN_RATE && would_do;
        let is_held = done.is_held && self.rtt_us >= REPAIR_US && now >= self.beside_from;
        self.periods = if is_busy { self.periods + 1 } else { 0 };
        self.rate = if self.periods <= 1 { rate } else { self.rate.max(rate) };
        let (bulk, change) = if self.periods >= PERIODS {
            (Bulk::None, Change::Busy { busy: busy.min(1.0), lost, far })
        } else if is_held {
            (Bulk::Part, Change::Beside { udp: self.rate })
        } else {
            return None;
        };
        self.begin(now, bulk);
        Some(change)
    }

    /// Judges a period in which TCP lanes carried beside UDP. Bytes/s.
    fn judge_both(&mut self, now: Micros, both: f64) -> Option<Change> {
        let udp = self.rate;
        if both < WORTH * udp {
            return Some(self.go_back(now, Change::NoFaster { both, udp }));
        }
        self.periods += 1;
        if self.periods < PERIODS {
            return None;
        }
        self.begin(now, Bulk::None);
        self.heard = true;
        Some(Change::Faster { both, udp })
    }

    /// TCP lanes carry from now on, alone or beside UDP.
    fn begin(&mut self, now: Micros, bulk: Bulk) {
        let Self { rtt_us, rate, rest_us, .. } = *self;
        *self = Self { bulk, rtt_us, rate, rest_us, ..Self::default() };
        self.from = now + self.start_us();
    }

    /// Takes in a look at a TCP lane: the bytes that have arrived since the last one. `idled` says that the lane did
    /// not always have something to send.
    pub(crate) fn on_tcp(&mut self, now: Micros, arrived: u64, idled: bool) -> Option<Change> {
        match self.bulk {
            Bulk::All => return None,
            Bulk::Part => {
                self.heard = true;
                if self.since.is_some() {
                    self.work.bytes += arrived;
                }
                return None;
            }
            Bulk::None => self.heard = true,
        }
        if idled {
            // If the program sends too little, the rate tells nothing.
            (self.since, self.work) = (None, UdpWork::default());
            return None;
        }
        let (done, took) = self.period(now, UdpWork { bytes: arrived, ..UdpWork::default() })?;
        let tcp = done.bytes as f64 * 1e6 / took as f64;
        self.periods = if tcp < self.rate { self.periods + 1 } else { 0 };
        (self.periods >= PERIODS).then(|| self.go_back(now, Change::Slower { tcp, udp: self.rate }))
    }

    /// Notes that the path loses packets by itself.
    pub(crate) fn on_lossy_path(&mut self, now: Micros) -> Option<Change> {
        (self.bulk != Bulk::All).then(|| self.go_back(now, Change::Lossy))
    }

    fn start_us(&self) -> Micros {
        MIN_START_US.max(START_RTTS * self.rtt_us)
    }

    /// UDP carries alone again.
    fn go_back(&mut self, now: Micros, why: Change) -> Change {
        let rest_us = (2 * self.rest_us).clamp(REST_FIRST_US, REST_US);
        *self = match self.bulk {
            Bulk::Part => Self { beside_from: now + rest_us, rest_us, from: now, ..Self::default() },
            Bulk::All | Bulk::None => Self { from: now + REST_US, rest_us: self.rest_us, ..Self::default() },
        };
        why
    }

    /// Adds to the present period. At its end, returns its work and its length.
    fn period(&mut self, now: Micros, work: UdpWork) -> Option<(UdpWork, Micros)> {
        if now < self.from {
            return None;
        }
        let fresh = UdpWork { is_held: true, ..UdpWork::default() };
        let Some(since) = self.since else {
            (self.since, self.work) = (Some(now), fresh);
            return None;
        };
        self.work.add(work);
        let took = now.saturating_sub(since);
        if took < MIN_PERIOD_US.max(PERIOD_RTTS * self.rtt_us) {
            return None;
        }
        self.since = Some(now);
        Some((std::mem::replace(&mut self.work, fresh), took))
    }
}

/// The least that TCP would carry. Bytes/s.
fn tcp_rate(rtt_us: Micros, packet: u32, lost: f64) -> f64 {
    STREAMS * MATHIS * f64::from(packet) * 1e6 / rtt_us.max(1) as f64 / lost.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 24_000;
    const LOOK_US: Micros = 250_000;
    const GBIT: f64 = 1e9 / 8.0;

    /// Looks at UDP lanes for `us` microseconds, at `rate` bytes/s and a share `busy` of time; `lost` packets of a
    /// million are lost.
    fn udp(
        trial: &mut TcpTrial,
        now: &mut Micros,
        us: Micros,
        rate: f64,
        busy: f64,
        lost: u64,
    ) -> Option<Change> {
        (0..us / LOOK_US).find_map(|_| {
            *now += LOOK_US;
            let bytes = (rate * LOOK_US as f64 / 1e6) as u64;
            let packets = bytes / 8_000;
            let busy_us = (busy * LOOK_US as f64) as Micros;
            trial.look(
                *now,
                RTT_US,
                8_972,
                UdpWork {
                    bytes,
                    packets,
                    lost: packets * lost / 1_000_000,
                    busy_us,
                    far_busy_us: 0,
                    is_held: false,
                },
            )
        })
    }

    /// Looks at four busy TCP lanes that carry `rate` bytes/s together.
    fn tcp(trial: &mut TcpTrial, now: &mut Micros, us: Micros, rate: f64) -> Option<Change> {
        const EVERY_US: Micros = 100_000;
        (0..us / EVERY_US).find_map(|_| {
            *now += EVERY_US;
            let each = (rate / 4.0 * EVERY_US as f64 / 1e6) as u64;
            (0..4).find_map(|_| trial.on_tcp(*now, each, false))
        })
    }

    /// One that has gone over to TCP, where UDP carried 16 Gb/s.
    fn gone_over() -> (TcpTrial, Micros) {
        let (mut trial, mut now) = (TcpTrial::default(), 1_000);
        let change = udp(&mut trial, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0);
        assert_eq!(change, Some(Change::Busy { busy: 0.97, lost: 0.0, far: false }));
        (trial, now)
    }

    #[test]
    fn tcp_is_tried_where_the_processor_is_busy_for_seconds_and_nothing_is_lost() {
        let (trial, now) = gone_over();
        assert!(trial.bulk() == Bulk::None);
        assert!((4_000_000..5_000_000).contains(&now), "in the first seconds nothing changes: {now}");
        let line = Change::Busy { busy: 0.97, lost: 0.0, far: false }.to_string();
        assert_eq!(line, "the processor is busy with UDP for 97 % of the time, 0.00 % lost");
    }

    #[test]
    fn the_receivers_processor_counts_as_much_as_ones_own() {
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        let work =
            |far_busy_us| UdpWork { bytes: 50_000_000, packets: 6_000, far_busy_us, ..UdpWork::default() };
        let mut look = |far_us, count| {
            (0..count).find_map(|_| {
                now += LOOK_US;
                trial.look(now, RTT_US, 8_972, work(far_us))
            })
        };
        assert_eq!(look(LOOK_US / 2, 100), None);
        let change = look(LOOK_US, 40).expect("it holds UDP up");
        assert_eq!(change, Change::Busy { busy: 1.0, lost: 0.0, far: true });
        let line = "the receiver's processor is busy with UDP for 100 % of the time, 0.00 % lost";
        assert_eq!(change.to_string(), line);
    }

    #[test]
    fn udp_stays_where_the_path_holds_it_up_or_loses_packets_or_the_program_sends_little() {
        for (rate, busy, lost) in [(16.0, 0.7, 0), (16.0, 0.99, 300), (0.05, 0.99, 0)] {
            let (mut trial, mut now) = (TcpTrial::default(), 0);
            let change = udp(&mut trial, &mut now, 60_000_000, rate * GBIT, busy, lost);
            assert_eq!(change, None, "{rate} Gb/s, busy {busy}, {lost} of a million lost");
        }
        // The less there is to carry, the more may be lost.
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        assert!(udp(&mut trial, &mut now, 60_000_000, 1.0 * GBIT, 0.99, 10).is_some());
        assert!(tcp_rate(RTT_US, 8_972, 1e-5) > 2.0 * GBIT && tcp_rate(RTT_US, 8_972, 1e-3) < 2.0 * GBIT);
    }

    #[test]
    fn moments_in_which_the_processor_is_busy_are_no_reason() {
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        for _ in 0..20 {
            assert_eq!(udp(&mut trial, &mut now, 1_500_000, 16.0 * GBIT, 1.0, 0), None);
            assert_eq!(udp(&mut trial, &mut now, 1_000_000, 4.0 * GBIT, 0.2, 0), None);
        }
    }

    #[test]
    fn tcp_stays_where_as_much_arrives_by_it() {
        let (mut trial, mut now) = gone_over();
        assert_eq!(tcp(&mut trial, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(trial.bulk() == Bulk::None);
        // A program that sends little for a while is no sign that TCP is slow.
        for _ in 0..100 {
            now += 1_000_000;
            assert_eq!(trial.on_tcp(now, 1 << 20, true), None);
        }
        assert_eq!(udp(&mut trial, &mut now, 60_000_000, 0.01 * GBIT, 0.01, 0), None);
    }

    #[test]
    fn where_tcp_is_slower_udp_carries_again_and_tcp_is_not_tried_again_for_long() {
        let (mut trial, mut now) = gone_over();
        let before = now;
        // While lanes get up to speed, little arrives.
        assert_eq!(tcp(&mut trial, &mut now, 2_900_000, 1.0 * GBIT), None);
        let Some(Change::Slower { tcp, udp: before_udp }) = tcp(&mut trial, &mut now, 10_000_000, 9.0 * GBIT)
        else {
            panic!("it is slower");
        };
        assert!(now - before < 9_000_000 && trial.bulk() == Bulk::All, "{}", now - before);
        assert!((tcp / GBIT - 9.0).abs() < 0.5 && (before_udp / GBIT - 16.0).abs() < 0.1);
        assert_eq!(udp(&mut trial, &mut now, REST_US - LOOK_US, 16.0 * GBIT, 0.97, 0), None);
        assert!(udp(&mut trial, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0).is_some());
    }

    #[test]
    fn what_was_quicker_for_long_is_left_when_the_path_has_changed() {
        let (mut trial, mut now) = gone_over();
        assert_eq!(tcp(&mut trial, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(matches!(tcp(&mut trial, &mut now, 5_000_000, 9.0 * GBIT), Some(Change::Slower { .. })));
        let (mut trial, now) = gone_over();
        assert_eq!(trial.on_lossy_path(now), Some(Change::Lossy));
        assert!(trial.bulk() == Bulk::All && trial.on_lossy_path(now).is_none());
    }

    /// Looks for `us` microseconds at UDP lanes that carry `udp` bytes/s and seem policed, and at TCP lanes with
    /// `tcp` bytes/s, if they carry.
    fn policed(trial: &mut TcpTrial, now: &mut Micros, us: Micros, udp: f64, tcp: f64) -> Option<Change> {
        (0..us / LOOK_US).find_map(|_| {
            *now += LOOK_US;
            let part = |rate: f64| (rate * LOOK_US as f64 / 1e6) as u64;
            if trial.bulk() != Bulk::All
                && let Some(change) = trial.on_tcp(*now, part(tcp), false)
            {
                return Some(change);
            }
            let bytes = if trial.bulk() == Bulk::None { 0 } else { part(udp) };
            let work = UdpWork { bytes, packets: bytes / 1_400 + 1, is_held: true, ..UdpWork::default() };
            trial.look(*now, RTT_US, 1_472, work)
        })
    }

    #[test]
    fn tcp_is_tried_beside_udp_that_seems_policed_and_takes_all_if_both_carry_more() {
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        let change = policed(&mut trial, &mut now, 60_000_000, 0.1 * GBIT, 0.8 * GBIT);
        assert!(matches!(change, Some(Change::Beside { .. })) && now < 3_000_000, "{now}: {change:?}");
        assert_eq!(trial.bulk(), Bulk::Part);
        let change = policed(&mut trial, &mut now, 60_000_000, 0.1 * GBIT, 0.8 * GBIT);
        assert!(now < 11_000_000 && trial.bulk() == Bulk::None, "{now}");
        let text = change.expect("it is faster").to_string();
        assert_eq!(text, "0.90 Gb/s with TCP, where UDP alone carried 0.10");
        assert_eq!(policed(&mut trial, &mut now, 60_000_000, 0.0, 0.8 * GBIT), None);
        // The path changes: TCP alone carries less than UDP did.
        let change = policed(&mut trial, &mut now, 60_000_000, 0.0, 0.05 * GBIT);
        assert!(matches!(change, Some(Change::Slower { .. })) && trial.bulk() == Bulk::All, "{change:?}");
    }

    #[test]
    fn where_tcp_beside_udp_brings_no_more_the_next_trial_comes_later_each_time() {
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        let mut begun = Vec::new();
        while begun.len() < 9 {
            let change = policed(&mut trial, &mut now, 4_000_000_000, 0.3 * GBIT, 0.0);
            assert!(matches!(change, Some(Change::Beside { .. })), "{change:?}");
            begun.push(now);
            // TCP takes from UDP what it carries, and a little more.
            let change = policed(&mut trial, &mut now, 60_000_000, 0.15 * GBIT, 0.2 * GBIT);
            assert!(matches!(change, Some(Change::NoFaster { .. })), "{change:?}");
            assert!(now - begun[begun.len() - 1] < 8_000_000 && trial.bulk() == Bulk::All);
        }
        let pauses: Vec<_> = begun.windows(2).map(|pair| (pair[1] - pair[0]) / 30_000_000).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn tcp_is_not_tried_beside_udp_on_other_or_short_paths_or_while_the_program_sends_little() {
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        assert_eq!(udp(&mut trial, &mut now, 60_000_000, 0.1 * GBIT, 0.1, 1_000), None);
        // The program lets UDP run dry at every seventh look.
        for (rtt_us, dry_every) in [(REPAIR_US - 1, 1_000), (RTT_US, 7)] {
            let (mut trial, mut now) = (TcpTrial::default(), 0);
            for look in 1..400 {
                now += LOOK_US;
                let is_held = look % dry_every > 0;
                let work = UdpWork { bytes: 1 << 20, packets: 700, is_held, ..UdpWork::default() };
                assert_eq!(trial.look(now, rtt_us, 1_472, work), None, "{rtt_us} us, look {look}");
            }
        }
    }

    #[test]
    fn udp_carries_again_where_no_lane_by_tcp_comes_up() {
        let (mut trial, mut now) = gone_over();
        assert_eq!(udp(&mut trial, &mut now, 9_750_000, 16.0 * GBIT, 0.97, 0), None);
        assert_eq!(udp(&mut trial, &mut now, LOOK_US, 16.0 * GBIT, 0.97, 0), Some(Change::NoTcp));
        let (mut trial, mut now) = (TcpTrial::default(), 0);
        let mut held = |trial: &mut TcpTrial, count| {
            (0..count).find_map(|_| {
                now += LOOK_US;
                let work = UdpWork { bytes: 1 << 20, packets: 700, is_held: true, ..UdpWork::default() };
                trial.look(now, 500_000, 1_472, work)
            })
        };
        assert!(matches!(held(&mut trial, 1_000), Some(Change::Beside { .. })));
        assert_eq!((held(&mut trial, 1_000), trial.bulk()), (Some(Change::NoTcp), Bulk::All));
    }
}
