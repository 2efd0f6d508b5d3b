//! Every number that decides about a path, with its unit and reason. docs/decisions.md shows this table, and a test
//! keeps the two equal.

use crate::Micros;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    /// The decision that it belongs to: the name of a module here.
    pub decision: &'static str,
    /// The name of the constant.
    pub name: &'static str,
    /// The value, as the source code gives it.
    pub value: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// What it means, and the reason for its value.
    pub meaning: &'static str,
}

macro_rules! thresholds {
    ($(
        $(#[doc = $about:literal])+
        $decision:ident {
            $(
                $(#[doc = $meaning:literal])+
                $name:ident: $type:ty = $value:expr, $unit:literal;
            )+
        }
    )+) => {
        $(
            $(#[doc = $about])+
            pub mod $decision {
                #[allow(unused_imports, reason = "not every decision has a time")]
                use super::Micros;
                $(
                    $(#[doc = $meaning])+
                    #[doc = concat!(" Unit: ", $unit, ".")]
                    pub const $name: $type = $value;
                )+
            }
        )+

        /// All of them.
        pub const TABLE: &[Threshold] = &[$($(
            Threshold {
                decision: stringify!($decision),
                name: stringify!($name),
                value: stringify!($value),
                unit: $unit,
                meaning: concat!($($meaning),+),
            },
        )+)+];
    };
}

thresholds! {
    /// How far a host is, by its round trip.
    distance {
        /// Hosts of one site are nearer. Beyond, lanes are encrypted by default, and endpoints of a host share the path.
        /// Below, a round trip does not show a queue, and TCP is paced instead.
        FAR_US: Micros = 1_000, "µs";
        /// From here on a loss costs TCP more than UDP costs the processor. On shorter paths UDP carries only where TCP
        /// has failed.
        REPAIR_US: Micros = 5_000, "µs";
        /// From here on TCP begins with BBR, which is up to speed in half the time, and endpoints of a host divide their
        /// TCP lanes: with fewer lanes, a cold start takes longer on shorter paths.
        LONG_US: Micros = 50_000, "µs";
        /// From here on TCP begins with many lanes, encrypted lanes go by UDP, which comes up a round trip later, and so
        /// do the links of routers.
        VERY_LONG_US: Micros = 150_000, "µs";
    }

    /// Whether a round trip shows a queue.
    queue {
        /// It exceeds the shortest one by this fraction of it: a queue of a fourth of the bandwidth-delay product.
        PART: Micros = 4, "1/n";
        /// It also exceeds it by this: less is the noise of hosts.
        MIN_US: Micros = 1_000, "µs";
        /// The finer test of losses: an eighth. A loss is charged to the path only if there was hardly any queue.
        LOSS_PART: Micros = 8, "1/n";
        /// The least excess for that test.
        LOSS_MIN_US: Micros = 500, "µs";
        /// The least excess on a path of a site: the queue of a switch at 1 Gb/s holds about as much.
        SITE_US: Micros = 400, "µs";
    }

    /// Which protocol carries lanes to a host.
    transport {
        /// What was found about a host stays valid for this long: a minute, as firewalls and routes change.
        VALID_US: Micros = 60_000_000, "µs";
        /// UDP may take this many times longer than TCP to answer: either may have lost its first packet.
        GRACE_TIMES: Micros = 2, "times";
        /// It may always take this much longer than TCP: a retransmission on a long path.
        MIN_GRACE_US: Micros = 500_000, "µs";
        /// A lane that carries data by UDP without an answer asks by TCP after this time.
        DOUBT_US: Micros = 200_000, "µs";
        /// On a short path, TCP is taken for blocked if it has not connected after this time. The kernel repeats an
        /// attempt after 1 s.
        NO_TCP_US: Micros = 3_000_000, "µs";
        /// Most hosts that are remembered; the one that was used longest ago goes first.
        HOSTS_MAX: usize = 1_024, "count";
    }

    /// Whether UDP no longer gets through while TCP does.
    blackhole {
        /// Most time that one look counts for: a process that was stopped could not hear anything.
        MAX_LOOK_US: Micros = 250_000, "µs";
        /// Shortest silence before a TCP probe, and between two probes.
        ASK_US: Micros = 1_000_000, "µs";
        /// The same limit in round trips; the longer one counts.
        ASK_TIMES: Micros = 8, "round trips";
        /// Shortest silence after which the lane is given up if TCP probes are answered: a path that was cut for two
        /// seconds is still used again.
        BLOCKED_US: Micros = 3_000_000, "µs";
        /// The same limit in round trips; the longer one counts.
        BLOCKED_TIMES: Micros = 10, "round trips";
        /// The end that was dialled waits this much longer, and at least `ASK_US`: a new lane needs them. A lane that its
        /// peer has left is given up after this time, and at least `LEFT_US`.
        LATER_TIMES: Micros = 4, "round trips";
        /// Silence after which the end that was dialled gives up a lane on which nothing was ever acknowledged, if the
        /// peer has made a lane by TCP since. On paths of up to a second there would have been an acknowledgement.
        UNHEARD_US: Micros = 2_000_000, "µs";
        /// Shortest silence after which a lane is given up if its peer has made one from another address since: several
        /// packets sent again on a path of up to 100 ms.
        LEFT_US: Micros = 500_000, "µs";
        /// Shortest silence after which a lane is given up if packets were reported as refused and TCP probes are
        /// answered: several packets sent again on a path of up to 100 ms. `LATER_TIMES` round trips if that is longer.
        /// The end that was dialled waits twice as long.
        REFUSED_US: Micros = 500_000, "µs";
        /// Shortest silence before a TCP probe then, and between two probes; a round trip if that is longer.
        REFUSED_ASK_US: Micros = 100_000, "µs";
        /// Longest time from such a report to the beginning of the silence: acknowledgements of earlier packets still
        /// come.
        REFUSED_BEFORE_US: Micros = 1_000_000, "µs";
        /// TCP probes that must be answered: after one, the path may just have come back.
        ANSWERS: u32 = 2, "count";
    }

    /// Whether TCP would carry more than UDP.
    trial {
        /// Length of a period of measurement.
        PERIOD_RTTS: Micros = 20, "round trips";
        /// Shortest period of measurement.
        MIN_PERIOD_US: Micros = 2_000_000, "µs";
        /// Periods in a row that must show the same before bulk data moves.
        PERIODS: u32 = 2, "count";
        /// Our processor is the bottleneck if it is busy with packets for this share of time. The rest goes to messages.
        BUSY: f64 = 0.85, "share of time";
        /// The peer's processor is, if packets wait for it for this share. It is lower, since packets do not wait while
        /// other programs run there or while we pace to its reading rate.
        FAR_BUSY: f64 = 0.7, "share of time";
        /// Below this rate the processor is not the bottleneck.
        MIN_RATE: f64 = 10e6, "bytes/s";
        /// TCP would do if this many streams of loss-based TCP carried `AMPLE` times the rate of UDP.
        STREAMS: f64 = 8.0, "count";
        /// See `STREAMS`.
        AMPLE: f64 = 2.0, "times";
        /// Packets in flight of such a stream, times the square root of the loss rate (Mathis et al., 1997).
        MATHIS: f64 = 1.22, "packets";
        /// TCP lanes beside UDP are worth it from this multiple of UDP's rate on: less may come from others' share of
        /// the path.
        WORTH: f64 = 1.25, "times";
        /// Time until the next trial beside UDP after the first that failed; it doubles up to `REST_US`.
        REST_FIRST_US: Micros = 30_000_000, "µs";
        /// Time that TCP lanes need to get up to speed.
        START_RTTS: Micros = 30, "round trips";
        /// The least such time.
        MIN_START_US: Micros = 3_000_000, "µs";
        /// Longest time for TCP lanes to come up.
        UP_US: Micros = 10_000_000, "µs";
        /// TCP is not tried again for this long after it failed: half an hour.
        REST_US: Micros = 1_800_000_000, "µs";
    }

    /// Whether a path loses packets by itself, which decides TCP's congestion control.
    losses {
        /// A path is lossy after this many more losses without a queue than with one.
        EVIDENCE: i32 = 3, "count";
        /// If more than one in this many packets is retransmitted, a burst is being repaired, which is our own doing.
        BURST: u64 = 4, "packets";
        /// A lossy path counts as clean again after this many packets without a loss that had no queue. A lower loss
        /// rate costs CUBIC little.
        CLEAN_PACKETS: u64 = 1_000_000, "packets";
    }

    /// How fast a TCP lane may send on a path within a site that loses packets.
    pacing {
        /// Bursts do not fit if at least this many packets were retransmitted.
        LOST: u64 = 3, "packets";
        /// One in this many packets must have been retransmitted, too.
        LOST_PART: u64 = 1_000, "1/n";
        /// Losses are by chance if at least one in this many paced packets was retransmitted. BBR does not mind those.
        CHANCE_PART: u64 = 300, "1/n";
        /// A path is slow if it has delivered less than this (2 Gb/s): UDP costs little processor time there.
        SLOW: u64 = 250_000_000, "bytes/s";
        /// A lane may send this fraction faster than was delivered, so that a higher rate can show.
        MORE_PART: u64 = 20, "1/n";
        /// From look to look, the best delivery rate fades by this fraction.
        FADES_PART: u64 = 10_000, "1/n";
        /// A lane with a rate limit is given as much at once as it sends in this time. Otherwise a small message would
        /// wait behind seconds of data.
        QUANTUM_US: Micros = 20_000, "µs";
        /// But at least this much.
        MIN_QUANTUM: u64 = 16_384, "bytes";
        /// So many of those may lie between the program and the wire: one that the kernel has, one that the lane
        /// writes, the last fragment of that, and the one that is being sent.
        QUANTA: u64 = 4, "count";
    }

    /// The part of a path that one of several endpoints of a host takes by TCP.
    sharing {
        /// Time between two looks at a lane.
        LOOK_US: Micros = 100_000, "µs";
        /// The best rate counts for this long.
        BEST_US: Micros = 5_000_000, "µs";
        /// While there is a queue, all lanes together may send at this multiple of their delivery rate.
        HELD: f64 = 1.0, "times";
        /// Without a queue, that factor grows by this from look to look.
        LOOSER: f64 = 1.02, "times";
        /// From this factor on, lanes are no longer paced.
        FREE: f64 = 1.3, "times";
    }

    /// Whether a path drops large packets silently (RFC 2923, 2.1).
    segments {
        /// Segment sizes that are tried in turn: for paths of 1500 bytes, of usual tunnels, and of the least that IPv6
        /// allows (1280 bytes), less 60 for the headers of IPv6 and TCP.
        SIZES: [u32; 3] = [1_440, 1_340, 1_220], "bytes";
        /// The next size is smaller than the lane's by at least this: TCP's options are not in the lane's.
        STEP: u32 = 60, "bytes";
        /// New connections that must succeed while a lane stands still: after one, a path may just have come back.
        ANSWERS: u32 = 2, "count";
        /// Segments stay small for this long (RFC 8899, 5.1.1: PMTU_RAISE_TIMER).
        VALID_US: Micros = 600_000_000, "µs";
    }

    /// How many TCP lanes carry data to a peer.
    streams {
        /// Lanes where their number is not measured: through routers, and over several rails.
        SEVERAL: u32 = 4, "count";
        /// Lanes at first on very long paths. On shorter ones so many would overfill the queue.
        MANY: u32 = 32, "count";
        /// Fewest lanes with bulk data; one of them is kept free for small messages.
        MIN_LANES: u32 = 3, "count";
        /// Waiting data that justifies one more lane at first.
        WORTH: u64 = 256 << 10, "bytes";
        /// A period of measurement.
        PERIOD_RTTS: Micros = 4, "round trips";
        /// Shortest period of measurement; shorter ones are too noisy.
        MIN_PERIOD_US: Micros = 400_000, "µs";
        /// After a change that failed, the next one waits this many periods, then twice as many, and so on.
        HOLD: u32 = 4, "periods";
        /// Longest such wait.
        MAX_HOLD: u32 = 64, "periods";
        /// In the first periods, fewer lanes are not tried.
        INITIAL_HOLD: u32 = 12, "periods";
        /// Time that lanes need to get up to speed after the path was cut.
        RECOVERY_RTTS: Micros = 10, "round trips";
        /// Shortest time that lanes get for that.
        MIN_RECOVERY_US: Micros = 1_000_000, "µs";
        /// More lanes are kept if the rate is at least this many times the one before.
        MORE_RATIO: f64 = 1.05, "times";
        /// Fewer lanes are kept if the rate is at least this many times the one before.
        NO_LESS_RATIO: f64 = 0.97, "times";
        /// Below this many times the rate before, the path counts as another one.
        OTHER_PATH_RATIO: f64 = 0.6, "times";
        /// Lanes must have something to send for this share of time; else the program limits the rate.
        BUSY_SHARE: f64 = 0.5, "share of time";
        /// Share of busy time held up by windows or buffers from which more lanes are tried.
        LIMITED_SHARE: f64 = 0.2, "share of time";
        /// Share of lost packets from which more lanes are tried. Below it, the kernel's congestion control copes.
        LOSSY_SHARE: f64 = 0.04, "share of packets";
        /// Share of packets that met a queue from which the queue counts as full.
        FULL_SHARE: f64 = 0.5, "share of packets";
    }

    /// Which links of a router carry new lanes.
    links {
        /// UDP carries if more than this share of packets is sent again: it was measured faster there, with lanes of
        /// several ranks.
        LOSSY: f64 = 0.02, "share of packets";
        /// The share counts once so many packets were sent.
        MIN_SENT: f64 = 10_000.0, "packets";
    }
}
