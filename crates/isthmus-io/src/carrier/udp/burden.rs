//! Whether bulk to a host that goes by UDP had better go by TCP, because the processor, and not the path, holds it up.
//!
//! Packets of our own cost more of the processor than the kernel's. Where whoever turns the lanes is busy with them
//! nearly all the time, or packets wait most of the time until the peer reads them, as it tells, and so little is lost
//! on the path that TCP would do, TCP is tried. Whether it does is measured: if less arrives than did by UDP, or packets
//! are lost without a queue, UDP carries again, and TCP is not tried again for long. Nothing of this happens in the first
//! seconds of a transfer. While the system has others run, packets wait as well: that counts for busy, as it is too
//! little processor all the same.

use std::fmt;

use isthmus_udp::Micros;

/// What lanes do is judged over so many round trips, and so long at least; it counts when it was so in so many such
/// periods in a row. Microseconds.
const PERIOD_RTTS: Micros = 20;
const PERIOD_LEAST_US: Micros = 2_000_000;
const PERIODS: u32 = 2;
/// Share of the time that the processor is busy with packets, from which on it is what holds them up: what is left
/// goes to the messages in them.
const BUSY: f64 = 0.85;
/// The same of the time in which packets wait for the peer: they do not always, where its system has others run or they
/// are paced at what it reads.
const FAR_BUSY: f64 = 0.7;
/// Who carries less than this has other troubles. Bytes/s.
const RATE_LEAST: f64 = 10e6;
/// TCP does where so many streams of its older kinds, which take losses for a full queue, would carry so many times
/// what UDP did.
const STREAMS: f64 = 8.0;
const AMPLE: f64 = 2.0;
/// The packets that such a stream has under way, times the root of the share that is lost (Mathis, 1997).
const PACKETS: f64 = 1.22;
/// So many round trips, and so long at least, lanes by TCP take to get up to speed. Microseconds.
const START_RTTS: Micros = 30;
const START_LEAST_US: Micros = 3_000_000;
/// How long lanes by TCP may take to come up at all. Microseconds.
const UP_US: Micros = 10_000_000;
/// How long TCP is not tried again where it did not do. Microseconds.
const REST_US: Micros = 1_800_000_000;

/// What lanes by UDP have done since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Bytes sent for the first time.
    pub(super) bytes: u64,
    pub(super) packets: u64,
    /// Packets that were lost.
    pub(super) lost: u64,
    /// Time spent with the packets of these lanes, and of all others of the endpoint. Microseconds.
    pub(super) busy_us: Micros,
    /// Time in which packets waited for the peer to read them, as it does not keep up. Microseconds.
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

/// What bulk goes by from now on, and why, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// By TCP, for this host's processor, or, if so, the peer's: shares of the time, and of packets.
    Tcp { busy: f64, lost: f64, far: bool },
    /// By UDP again: what arrived by TCP, and by UDP before. Bytes/s.
    Slower { tcp: f64, udp: f64 },
    /// The same, as no lane by TCP has come up.
    NoTcp,
    /// The same.
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

/// What is known of the lanes to one host. See the module; times are those of its clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Burden {
    by_tcp: bool,
    rtt_us: Micros,
    /// Not before this is anything judged.
    from: Micros,
    /// When the present period began, and what was done in it.
    since: Option<Micros>,
    work: Work,
    /// Periods in a row that speak for a change.
    periods: u32,
    /// The most that arrived by UDP in those before TCP was tried. Bytes/s.
    rate: f64,
    /// Something has arrived by TCP.
    heard: bool,
}

impl Burden {
    pub(super) fn is_by_tcp(&self) -> bool {
        self.by_tcp
    }

    /// A look at the lanes by UDP, of that round trip and that size of packets. Bytes.
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
        if busy < least || rate < RATE_LEAST || rate * AMPLE > tcp_rate(rtt_us, packet, lost) {
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

    /// So many bytes have arrived by a lane by TCP since the last look at it; `idled`: meanwhile there was not always
    /// something to send.
    pub(super) fn hear_tcp(&mut self, now: Micros, arrived: u64, idled: bool) -> Option<Change> {
        if !self.by_tcp {
            return None;
        }
        self.heard = true;
        if idled {
            // What the program does not send tells nothing.
            (self.since, self.work) = (None, Work::default());
            return None;
        }
        let (done, took) = self.period(now, Work { bytes: arrived, ..Work::default() })?;
        let tcp = done.bytes as f64 * 1e6 / took as f64;
        self.periods = if tcp < self.rate { self.periods + 1 } else { 0 };
        (self.periods >= PERIODS).then(|| self.go_back(now, Change::Slower { tcp, udp: self.rate }))
    }

    /// The path loses packets by itself.
    pub(super) fn hear_lossy(&mut self, now: Micros) -> Option<Change> {
        self.by_tcp.then(|| self.go_back(now, Change::Lossy))
    }

    fn start_us(&self) -> Micros {
        START_LEAST_US.max(START_RTTS * self.rtt_us)
    }

    fn go_back(&mut self, now: Micros, why: Change) -> Change {
        *self = Self { from: now + REST_US, ..Self::default() };
        why
    }

    /// Adds to the present period; at its end, what was done in it, and how long it took.
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
        if took < PERIOD_LEAST_US.max(PERIOD_RTTS * self.rtt_us) {
            return None;
        }
        self.since = Some(now);
        Some((std::mem::take(&mut self.work), took))
    }
}

/// What TCP would carry at least. Bytes/s.
fn tcp_rate(rtt_us: Micros, packet: u32, lost: f64) -> f64 {
    STREAMS * PACKETS * f64::from(packet) * 1e6 / rtt_us.max(1) as f64 / lost.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_US: Micros = 24_000;
    const LOOK_US: Micros = 250_000;
    const GBIT: f64 = 1e9 / 8.0;

    /// Looks at lanes by UDP for so long, at so many bytes/s, and so busy; of a million packets so many are lost.
    fn udp(
        burden: &mut Burden,
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
            burden.look(
                *now,
                RTT_US,
                8_972,
                Work { bytes, packets, lost: packets * lost / 1_000_000, busy_us, far_busy_us: 0 },
            )
        })
    }

    /// Looks at four lanes by TCP, which are kept busy, and carry so much together.
    fn tcp(burden: &mut Burden, now: &mut Micros, us: Micros, rate: f64) -> Option<Change> {
        const EVERY_US: Micros = 100_000;
        (0..us / EVERY_US).find_map(|_| {
            *now += EVERY_US;
            let each = (rate / 4.0 * EVERY_US as f64 / 1e6) as u64;
            (0..4).find_map(|_| burden.hear_tcp(*now, each, false))
        })
    }

    /// One that has gone over to TCP, where UDP carried 16 Gb/s.
    fn gone_over() -> (Burden, Micros) {
        let (mut burden, mut now) = (Burden::default(), 1_000);
        let change = udp(&mut burden, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0);
        assert_eq!(change, Some(Change::Tcp { busy: 0.97, lost: 0.0, far: false }));
        (burden, now)
    }

    #[test]
    fn tcp_is_tried_where_the_processor_is_busy_for_seconds_and_nothing_is_lost() {
        let (burden, now) = gone_over();
        assert!(burden.is_by_tcp());
        assert!((4_000_000..5_000_000).contains(&now), "in the first seconds nothing changes: {now}");
        let line = Change::Tcp { busy: 0.97, lost: 0.0, far: false }.to_string();
        assert_eq!(line, "the processor is busy with UDP for 97 % of the time, 0.00 % lost");
    }

    #[test]
    fn the_receivers_processor_counts_as_much_as_ones_own() {
        let (mut burden, mut now) = (Burden::default(), 0);
        let work = |far_busy_us| Work { bytes: 50_000_000, packets: 6_000, far_busy_us, ..Work::default() };
        let mut look = |far_us, count| {
            (0..count).find_map(|_| {
                now += LOOK_US;
                burden.look(now, RTT_US, 8_972, work(far_us))
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
            let (mut burden, mut now) = (Burden::default(), 0);
            let change = udp(&mut burden, &mut now, 60_000_000, rate * GBIT, busy, lost);
            assert_eq!(change, None, "{rate} Gb/s, busy {busy}, {lost} of a million lost");
        }
        // The less there is to carry, the more may be lost.
        let (mut burden, mut now) = (Burden::default(), 0);
        assert!(udp(&mut burden, &mut now, 60_000_000, 1.0 * GBIT, 0.99, 10).is_some());
        assert!(tcp_rate(RTT_US, 8_972, 1e-5) > 2.0 * GBIT && tcp_rate(RTT_US, 8_972, 1e-3) < 2.0 * GBIT);
    }

    #[test]
    fn moments_in_which_the_processor_is_busy_are_no_reason() {
        let (mut burden, mut now) = (Burden::default(), 0);
        for _ in 0..20 {
            assert_eq!(udp(&mut burden, &mut now, 1_500_000, 16.0 * GBIT, 1.0, 0), None);
            assert_eq!(udp(&mut burden, &mut now, 1_000_000, 4.0 * GBIT, 0.2, 0), None);
        }
    }

    #[test]
    fn tcp_stays_where_as_much_arrives_by_it() {
        let (mut burden, mut now) = gone_over();
        assert_eq!(tcp(&mut burden, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(burden.is_by_tcp());
        // A program that sends little for a while is no sign that TCP is slow.
        for _ in 0..100 {
            now += 1_000_000;
            assert_eq!(burden.hear_tcp(now, 1 << 20, true), None);
        }
        assert_eq!(udp(&mut burden, &mut now, 60_000_000, 0.01 * GBIT, 0.01, 0), None);
    }

    #[test]
    fn where_tcp_is_slower_udp_carries_again_and_tcp_is_not_tried_again_for_long() {
        let (mut burden, mut now) = gone_over();
        let before = now;
        // While lanes get up to speed, little arrives.
        assert_eq!(tcp(&mut burden, &mut now, 2_900_000, 1.0 * GBIT), None);
        let Some(Change::Slower { tcp, udp: before_udp }) =
            tcp(&mut burden, &mut now, 10_000_000, 9.0 * GBIT)
        else {
            panic!("it is slower");
        };
        assert!(now - before < 9_000_000 && !burden.is_by_tcp(), "{}", now - before);
        assert!((tcp / GBIT - 9.0).abs() < 0.5 && (before_udp / GBIT - 16.0).abs() < 0.1);
        assert_eq!(udp(&mut burden, &mut now, REST_US - LOOK_US, 16.0 * GBIT, 0.97, 0), None);
        assert!(udp(&mut burden, &mut now, 10_000_000, 16.0 * GBIT, 0.97, 0).is_some());
    }

    #[test]
    fn what_was_quicker_for_long_is_left_when_the_path_has_changed() {
        let (mut burden, mut now) = gone_over();
        assert_eq!(tcp(&mut burden, &mut now, 60_000_000, 17.0 * GBIT), None);
        assert!(matches!(tcp(&mut burden, &mut now, 5_000_000, 9.0 * GBIT), Some(Change::Slower { .. })));
        let (mut burden, now) = gone_over();
        assert_eq!(burden.hear_lossy(now), Some(Change::Lossy));
        assert!(!burden.is_by_tcp() && burden.hear_lossy(now).is_none());
    }

    #[test]
    fn udp_carries_again_where_no_lane_by_tcp_comes_up() {
        let (mut burden, mut now) = gone_over();
        assert_eq!(udp(&mut burden, &mut now, 9_750_000, 16.0 * GBIT, 0.97, 0), None);
        assert_eq!(udp(&mut burden, &mut now, LOOK_US, 16.0 * GBIT, 0.97, 0), Some(Change::NoTcp));
    }
}
