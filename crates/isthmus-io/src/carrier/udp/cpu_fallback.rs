//! Moves bulk data from UDP to TCP if the processor, and not the path, limits it.
//!
//! Our own packets cost more processor time than the kernel's. TCP is tried if all of this holds for two periods:
//!
//! - The driving thread is busy with packets nearly all the time, or, as the peer reports, packets wait most of the
//!   time until the peer reads them.
//! - So little is lost on the path that TCP would do.
//!
//! TCP lanes are then measured. If less arrives than by UDP, or packets are lost without a queue, UDP carries again,
//! and TCP is not tried again for half an hour. Nothing changes in the first seconds of a transfer. Packets also wait
//! while the system runs other programs. That counts as busy, too: it is a lack of processor time all the same.

use std::fmt;

use isthmus_udp::Micros;

/// Length of a period of measurement. Round trips.
const PERIOD_RTTS: Micros = 20;
/// Shortest period of measurement. Microseconds.
const MIN_PERIOD_US: Micros = 2_000_000;
/// Periods in a row that must show the same before something changes. Count.
const PERIODS: u32 = 2;
/// Our processor is the bottleneck if it is busy with packets for this share of time. The rest of it goes to messages.
const BUSY: f64 = 0.85;
/// The peer's processor is the bottleneck if packets wait for it for this share of time. It is lower, since packets do
/// not wait while other programs run there or while we pace to its reading rate.
const FAR_BUSY: f64 = 0.7;
/// Below this rate the processor is not the bottleneck. Bytes/s.
const MIN_RATE: f64 = 10e6;
/// TCP would do if this many streams of loss-based TCP carried [`AMPLE`] times the rate of UDP. Count.
const STREAMS: f64 = 8.0;
/// See [`STREAMS`].
const AMPLE: f64 = 2.0;
/// Packets in flight of such a stream, times the square root of the loss rate (Mathis, 1997).
const PACKETS: f64 = 1.22;
/// Time that TCP lanes need to get up to speed. Round trips.
const START_RTTS: Micros = 30;
/// The least such time. Microseconds.
const MIN_START_US: Micros = 3_000_000;
/// Longest time for TCP lanes to come up. Microseconds.
const UP_US: Micros = 10_000_000;
/// TCP is not tried again for this long after it failed. Microseconds; half an hour.
const REST_US: Micros = 1_800_000_000;

/// The work of UDP lanes to a host since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Bytes sent for the first time.
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Packets that were lost.
    pub(super) lost: u64,
    /// Time spent with the packets of these lanes, and of all others of the endpoint. Microseconds.
    pub(super) busy_us: Micros,
    /// Time in which packets waited for the peer to read them. Microseconds.
    pub(super) far_busy_us: Micros,
}

impl Work {
    fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.packets += more.packets;
        self.lost += more.lost;
        self.busy_us += more.busy_us;
        self.far_busy_us += more.far_busy_us;
    }
}

/// The protocol that carries bulk data from now on, and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// TCP, since this host's processor is busy, or with `far` the peer's. `busy` is a share of time, `lost` of
    /// packets.
    Tcp { busy: f64, lost: f64, far: bool },
    /// UDP again, since TCP is slower: the rates of both. Bytes/s.
    Slower { tcp: f64, udp: f64 },
    /// UDP again, since no TCP lane has come up.
    NoTcp,
    /// UDP again, since the path loses packets.
    Lossy,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gbit = |bytes: &f64| bytes * 8.0 / 1e9;
        match self {
            Self::Tcp { busy, lost, far } => {
                let whose = if *far { "receiver's processor" } else { "processor" };
                let (busy, lost) = (100.0 * busy, 100.0 * lost);
                write!(f, "the {whose} is busy with UDP for {busy:.0} % of the time, {lost:.2} % lost")
            }
            Self::Slower { tcp, udp } => {
                write!(f, "TCP is slower, {:.2} Gb/s where UDP carried {:.2}", gbit(tcp), gbit(udp))
            }
            Self::NoTcp => f.write_str("it costs much of the processor, but TCP does not get through"),
            Self::Lossy => f.write_str("packets are lost without a queue"),
        }
    }
}

/// The measurements for one host. Times are those of the [`Udp`](super::Udp)'s clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuFallback {
    by_tcp: bool,
    rtt_us: Micros,
    /// Nothing is measured before this time.
    from: Micros,
    /// When the present period began.
    since: Option<Micros>,
    /// The work in it.
    work: Work,
    /// Periods in a row that suggest a change.
    periods: u32,
    /// The highest rate of UDP in those periods. Bytes/s.
    rate: f64,
    /// Something has arrived by TCP.
    heard: bool,
}

impl CpuFallback {
    pub(super) fn is_by_tcp(&self) -> bool {
        self.by_tcp
    }

    /// Takes in a look at the UDP lanes. `packet` is the size of their packets. Bytes.
    pub(super) fn look(&mut self, now: Micros, rtt_us: Micros, packet: u32, work: Work) -> Option<Change> {
        if self.by_tcp {
            let since = self.from.saturating_sub(self.start_us());
            let gone = !self.heard && now >= since + UP_US.max(self.start_us());
            return gone.then(|| self.go_back(now, Change::NoTcp));
        }
        self.rtt_us = rtt_us;
        let (done, took) = self.period(now, work)?;
        let rate = done.bytes as f64 * 1e6 / took as f64;
        let share = |us: Micros| us as f64 / took as f64;
        let far = share(done.busy_us) < BUSY;
        let (busy, least) =
            if far { (share(done.far_busy_us), FAR_BUSY) } else { (share(done.busy_us), BUSY) };
        let lost = done.lost as f64 / done.packets.max(1) as f64;
        if busy < least || rate < MIN_RATE || rate * AMPLE > tcp_rate(rtt_us, packet, lost) {
            (self.periods, self.rate) = (0, 0.0);
            return None;
        }
        self.rate = self.rate.max(rate);
        self.periods += 1;
        if self.periods < PERIODS {
            return None;
        }
        *self = Self { by_tcp: true, rtt_us, rate: self.rate, ..Self::default() };
        self.from = now + self.start_us();
        Some(Change::Tcp { busy: busy.min(1.0), lost, far })
    }

    /// Takes in a look at a TCP lane: the bytes that have arrived since the last one. `idled` says that the lane did
    /// not always have something to send.
    pub(super) fn on_tcp(&mut self, now: Micros, arrived: u64, idled: bool) -> Option<Change> {
        if !self.by_tcp {
            return None;
        }
        self.heard = true;
        if idled {
            // If the program sends too little, the rate tells nothing.
            (self.since, self.work) = (None, Work::default());
            return None;
        }
        let (done, took) = self.period(now, Work { bytes: arrived, ..Work::default() })?;
        let tcp = done.bytes as f64 * 1e6 / took as f64;
        self.periods = if tcp < self.rate { self.periods + 1 } else { 0 };
        (self.periods >= PERIODS).then(|| self.go_back(now, Change::Slower { tcp, udp: self.rate }))
    }

    /// Notes that the path loses packets by itself.
    pub(super) fn on_lossy_path(&mut self, now: Micros) -> Option<Change> {
        self.by_tcp.then(|| self.go_back(now, Change::Lossy))
    }

    fn start_us(&self) -> Micros {
        MIN_START_US.max(START_RTTS * self.rtt_us)
    }

    fn go_back(&mut self, now: Micros, why: Change) -> Change {
        *self = Self { from: now + REST_US, ..Self::default() };
        why
    }

    /// Adds to the present period. At its end, returns its work and its length.
    fn period(&mut self, now: Micros, work: Work) -> Option<(Work, Micros)> {
        if now < self.from {
            return None;
        }
        let Some(since) = self.since else {
            self.since = Some(now);
            return None;
        };
        self.work.add(work);
        let took = now.saturating_sub(since);
        if took < MIN_PERIOD_US.max(PERIOD_RTTS * self.rtt_us) {
            return None;
        }
        self.since = Some(now);
        Some((std::mem::take(&mut self.work), took))
    }
}

/// The least that TCP would carry. Bytes/s.
fn tcp_rate(rtt_us: Micros, packet: u32, lost: f64) -> f64 {
    STREAMS * PACKETS * f64::from(packet) * 1e6 / rtt_us.max(1) as f64 / lost.sqrt()
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
        fallback: &mut CpuFallback,
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
            fallback.look(
                *now,
                RTT_US,
                8_972,
                Work { bytes, packets, lost: packets * lost / 1_000_000, busy_us, far_busy_us: 0 },
            )
        })
    }

    /// Looks at four busy TCP lanes that carry `rate` bytes/s together.
    fn tcp(fallback: &mut CpuFallback, now: &mut Micros, us: Micros, rate: f64) -> Option<Change> {
        const EVERY_US: Micros = 100_000;
        (0..us / EVERY_US).find_map(|_| {
            *now += EVERY_US;
            let each = (rate / 4.0 * EVERY_US as f64 / 1e6) as u64;
            (0..4).find_map(|_| fallback.on_tcp(*now, each, false))
        })
    }

    /// One that has gone over to TCP, where UDP carried 16 Gb/s.
    fn gone_over() -> (CpuFallback, Micros) {
        let (mut fallback, mut now) = (CpuFallback::default(), 1_000);
        let change = udp(&mut fallback, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0);
        assert_eq!(change, Some(Change::Tcp { busy: 0.97, lost: 0.0, far: false }));
        (fallback, now)
    }

    #[test]
    fn tcp_is_tried_where_the_processor_is_busy_for_seconds_and_nothing_is_lost() {
        let (fallback, now) = gone_over();
        assert!(fallback.is_by_tcp());
        assert!((4_000_000..5_000_000).contains(&now), "in the first seconds nothing changes: {now}");
        let line = Change::Tcp { busy: 0.97, lost: 0.0, far: false }.to_string();
        assert_eq!(line, "the processor is busy with UDP for 97 % of the time, 0.00 % lost");
    }

    #[test]
    fn the_receivers_processor_counts_as_much_as_ones_own() {
        let (mut fallback, mut now) = (CpuFallback::default(), 0);
        let work = |far_busy_us| Work { bytes: 50_000_000, packets: 6_000, far_busy_us, ..Work::default() };
        let mut look = |far_us, count| {
            (0..count).find_map(|_| {
                now += LOOK_US;
                fallback.look(now, RTT_US, 8_972, work(far_us))
            })
        };
        assert_eq!(look(LOOK_US / 2, 100), None);
        let change = look(LOOK_US, 40).expect("it holds UDP up");
        assert_eq!(change, Change::Tcp { busy: 1.0, lost: 0.0, far: true });
        let line = "the receiver's processor is busy with UDP for 100 % of the time, 0.00 % lost";
        assert_eq!(change.to_string(), line);
    }

    #[test]
    fn udp_stays_where_the_path_holds_it_up_or_loses_packets_or_the_program_sends_little() {
        for (rate, busy, lost) in [(16.0, 0.7, 0), (16.0, 0.99, 300), (0.05, 0.99, 0)] {
            let (mut fallback, mut now) = (CpuFallback::default(), 0);
            let change = udp(&mut fallback, &mut now, 60_000_000, rate * GBIT, busy, lost);
            assert_eq!(change, None, "{rate} Gb/s, busy {busy}, {lost} of a million lost");
        }
        // The less there is to carry, the more may be lost.
        let (mut fallback, mut now) = (CpuFallback::default(), 0);
        assert!(udp(&mut fallback, &mut now, 60_000_000, 1.0 * GBIT, 0.99, 10).is_some());
        assert!(tcp_rate(RTT_US, 8_972, 1e-5) > 2.0 * GBIT && tcp_rate(RTT_US, 8_972, 1e-3) < 2.0 * GBIT);
    }

    #[test]
    fn moments_in_which_the_processor_is_busy_are_no_reason() {
        let (mut fallback, mut now) = (CpuFallback::default(), 0);
        for _ in 0..20 {
            assert_eq!(udp(&mut fallback, &mut now, 1_500_000, 16.0 * GBIT, 1.0, 0), None);
            assert_eq!(udp(&mut fallback, &mut now, 1_000_000, 4.0 * GBIT, 0.2, 0), None);
        }
    }

    #[test]
    fn tcp_stays_where_as_much_arrives_by_it() {
        let (mut fallback, mut now) = gone_over();
        assert_eq!(tcp(&mut fallback, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(fallback.is_by_tcp());
        // A program that sends little for a while is no sign that TCP is slow.
        for _ in 0..100 {
            now += 1_000_000;
            assert_eq!(fallback.on_tcp(now, 1 << 20, true), None);
        }
        assert_eq!(udp(&mut fallback, &mut now, 60_000_000, 0.01 * GBIT, 0.01, 0), None);
    }

    #[test]
    fn where_tcp_is_slower_udp_carries_again_and_tcp_is_not_tried_again_for_long() {
        let (mut fallback, mut now) = gone_over();
        let before = now;
        // While lanes get up to speed, little arrives.
        assert_eq!(tcp(&mut fallback, &mut now, 2_900_000, 1.0 * GBIT), None);
        let Some(Change::Slower { tcp, udp: before_udp }) =
            tcp(&mut fallback, &mut now, 10_000_000, 9.0 * GBIT)
        else {
            panic!("it is slower");
        };
        assert!(now - before < 9_000_000 && !fallback.is_by_tcp(), "{}", now - before);
        assert!((tcp / GBIT - 9.0).abs() < 0.5 && (before_udp / GBIT - 16.0).abs() < 0.1);
        assert_eq!(udp(&mut fallback, &mut now, REST_US - LOOK_US, 16.0 * GBIT, 0.97, 0), None);
        assert!(udp(&mut fallback, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0).is_some());
    }

    #[test]
    fn what_was_quicker_for_long_is_left_when_the_path_has_changed() {
        let (mut fallback, mut now) = gone_over();
        assert_eq!(tcp(&mut fallback, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(matches!(tcp(&mut fallback, &mut now, 5_000_000, 9.0 * GBIT), Some(Change::Slower { .. })));
        let (mut fallback, now) = gone_over();
        assert_eq!(fallback.on_lossy_path(now), Some(Change::Lossy));
        assert!(!fallback.is_by_tcp() && fallback.on_lossy_path(now).is_none());
    }

    #[test]
    fn udp_carries_again_where_no_lane_by_tcp_comes_up() {
        let (mut fallback, mut now) = gone_over();
        assert_eq!(udp(&mut fallback, &mut now, 9_750_000, 16.0 * GBIT, 0.97, 0), None);
        assert_eq!(udp(&mut fallback, &mut now, LOOK_US, 16.0 * GBIT, 0.97, 0), Some(Change::NoTcp));
    }
}
