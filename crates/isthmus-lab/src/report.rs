//! Report of an emulated link: what it did, and how truthful it was.

use std::fmt;

use serde::Serialize;

use crate::config::LinkSpec;
use crate::model::{DirectionSpec, Jitter};
use isthmus_units::{Percent, Rate, Size, Span};

/// Deliveries later than this count as late. Nanoseconds (1 ms).
pub const LATE_NS: u64 = 1_000_000;

/// Length of a slot of [`DirectionReport::delivered_by_slot`]. Nanoseconds (100 ms).
pub const SLOT_NS: u64 = 100_000_000;

/// Most slots, so that a lab that runs for days does not collect them without end. Count (ten minutes).
const SLOTS_MAX: usize = 6_000;

/// A run with a larger share of late deliveries is spoiled.
pub const SPOILED_SHARE: f64 = 0.01;

const SUB_BITS: u32 = 4;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

/// Histogram; each bucket is within 1/16 of its values.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    late: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, late: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one value. Nanoseconds.
    pub fn add(&mut self, value_ns: u64) {
        self.counts[bucket(value_ns)] += 1;
        self.total += 1;
        self.late += u64::from(value_ns > LATE_NS);
        self.max = self.max.max(value_ns);
    }

    /// The quantile at `share` (0.0..=1.0) of all values. Nanoseconds.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank.max(1) {
                return upper_bound(i).min(self.max);
            }
        }
        self.max
    }

    /// Median, 99th percentile, maximum, and share above 1 ms.
    pub fn summary(&self) -> Lateness {
        let us = |ns: u64| ns as f64 / 1e3;
        let late_share = if self.total == 0 { 0.0 } else { self.late as f64 / self.total as f64 };
        Lateness {
            p50_us: us(self.quantile(0.5)),
            p99_us: us(self.quantile(0.99)),
            max_us: us(self.max),
            late_share,
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let exponent = value.ilog2() - SUB_BITS;
    ((exponent as usize) << SUB_BITS) + (value >> exponent) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let exponent = (bucket >> SUB_BITS).saturating_sub(1) as u32;
    let mantissa = (bucket - ((exponent as usize) << SUB_BITS)) as u128;
    u64::try_from(((mantissa + 1) << exponent) - 1).unwrap_or(u64::MAX)
}

/// Summary of how late events were.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    /// Median. Microseconds.
    pub p50_us: f64,
    /// 99th percentile. Microseconds.
    pub p99_us: f64,
    /// Maximum. Microseconds.
    pub max_us: f64,
    /// Share above 1 ms. 0.0..=1.0.
    pub late_share: f64,
}

/// Dropped packets by cause. Wire packets, except where noted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Drops {
    /// Lost on the wire, as configured.
    pub loss: u64,
    /// The queue was full, or the policer dropped them.
    pub queue: u64,
    /// The link was down.
    pub down: u64,
    /// They were larger than what passes (`path_mtu`).
    pub size: u64,
    /// The emulator had no room, or the receiving device refused: not the link's doing.
    pub emulator: u64,
    /// Super-packets that the device dropped before the emulator saw them.
    pub unseen: u64,
}

/// Report of one direction of a link, over a whole run. Bytes are wire cost.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DirectionReport {
    /// Sending site.
    pub from: String,
    /// Receiving site.
    pub to: String,
    /// Wire packets that the sender offered.
    pub offered_packets: u64,
    /// Their wire cost. Bytes.
    pub offered_bytes: u64,
    /// Wire packets delivered, copies included.
    pub delivered_packets: u64,
    /// Wire cost of the delivered packets. Bytes.
    pub delivered_bytes: u64,
    /// Second copies among them.
    pub duplicated_packets: u64,
    /// Packets marked, as they met a long queue (ECN).
    #[serde(default)]
    pub marked_packets: u64,
    /// Writes to the receiving device: super-packets or single packets.
    pub deliveries: u64,
    /// Wire cost of the packets that were delivered in each 100 ms of the first ten minutes, from the link's opening
    /// on. Bytes.
    pub delivered_by_slot: Vec<u64>,
    /// Dropped packets.
    pub drops: Drops,
    /// Lateness of deliveries against the model.
    pub lateness: Lateness,
    /// Lateness of the emulator's wake-ups, beyond its own period.
    pub wake_lateness: Lateness,
    /// The emulator's processor time. Seconds.
    pub cpu_s: f64,
    /// Seed of this direction's random decisions.
    pub seed: u64,
    /// Whether the thread ran under real-time scheduling.
    pub realtime: bool,
    /// Whether the emulator spoiled the run: more than 1 % of deliveries over 1 ms late, or drops
    /// that were not the link's doing.
    pub spoiled: bool,
}

impl DirectionReport {
    /// Counts the delivery of `bytes` at `now_ns`, counted from the link's opening.
    pub(crate) fn deliver(&mut self, now_ns: u64, bytes: u64) {
        self.delivered_bytes += bytes;
        let slot = (now_ns / SLOT_NS) as usize;
        if slot < SLOTS_MAX {
            if self.delivered_by_slot.len() <= slot {
                self.delivered_by_slot.resize(slot + 1, 0);
            }
            self.delivered_by_slot[slot] += bytes;
        }
    }

    /// Sets [`DirectionReport::spoiled`] from the other fields.
    pub fn judge(&mut self) {
        let own_drops = self.drops.emulator + self.drops.unseen;
        self.spoiled = self.lateness.late_share > SPOILED_SHARE
            || self.wake_lateness.late_share > SPOILED_SHARE
            || own_drops as f64 > 1e-4 * self.offered_packets as f64;
    }
}

/// Report of one link, over a whole run.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// The link's parameters, as one line.
    pub link: String,
    /// From the first site to the second, and back.
    pub directions: [DirectionReport; 2],
}

/// Report of a lab's whole run. Version 1 of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct LabReport {
    /// Format of this object: 1.
    pub version: u32,
    /// Time at which the links opened. Their outages count from it. Seconds since 1970.
    pub opened_s: f64,
    /// Time from the links' start to their end. Seconds.
    pub seconds: f64,
    /// Every link.
    pub links: Vec<LinkReport>,
    /// Whether the emulator spoiled any direction.
    pub spoiled: bool,
}

impl fmt::Display for DirectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = &self.lateness;
        write!(
            f,
            "{} -> {}: {} packets, {:.1} MB; dropped {} loss, {} queue, {} down{}",
            self.from,
            self.to,
            self.delivered_packets,
            self.delivered_bytes as f64 / 1e6,
            self.drops.loss,
            self.drops.queue,
            self.drops.down,
            if self.drops.size > 0 { format!(", {} too large", self.drops.size) } else { String::new() }
        )?;
        if self.drops.emulator + self.drops.unseen > 0 {
            write!(f, ", {} emulator, {} unseen", self.drops.emulator, self.drops.unseen)?;
        }
        write!(f, "; late p50 {:.0} us, p99 {:.0} us, max {:.0} us", l.p50_us, l.p99_us, l.max_us)?;
        write!(f, "; cpu {:.2} s", self.cpu_s)?;
        if self.spoiled { write!(f, "; SPOILED") } else { Ok(()) }
    }
}

impl fmt::Display for LabReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "lab: {:.1} s", self.seconds)?;
        for link in &self.links {
            writeln!(f, "  {}", link.link)?;
            for direction in &link.directions {
                writeln!(f, "    {direction}")?;
            }
        }
        if self.spoiled {
            writeln!(
                f,
                "  this run says nothing: the emulator was late or dropped packets itself; \
                 use a lower rate, fewer processes or a quieter machine"
            )?;
        }
        Ok(())
    }
}

pub(crate) fn describe(link: &LinkSpec, names: &[String]) -> String {
    let [there, back] = &link.directions;
    let same = DirectionSpec { seed: there.seed, ..back.clone() } == *there;
    let head = format!("{} - {}: mtu {}", names[link.ends[0]], names[link.ends[1]], link.mtu);
    match same {
        true => format!("{head}, {}", describe_direction(there)),
        false => format!("{head}, there {}; back {}", describe_direction(there), describe_direction(back)),
    }
}

fn describe_direction(d: &DirectionSpec) -> String {
    let mut text = format!(
        "{}, {} one way, queue {}, loss {}",
        Rate(d.rate_bps),
        Span(d.delay_ns),
        Size(d.queue_bytes),
        Percent(d.loss.mean())
    );
    let mut note = |is_there: bool, words: String| {
        if is_there {
            text.push_str(&words);
        }
    };
    let shape = match d.jitter {
        Jitter::Uniform => String::new(),
        Jitter::HeavyTailed { .. } => ", heavy-tailed".to_owned(),
        Jitter::Spikes { every_ns } => format!(" once per {}", Span(every_ns)),
    };
    note(d.jitter_ns > 0, format!(", jitter {}{shape}", Span(d.jitter_ns)));
    if let Some(policer) = d.policer {
        let of = if policer.only_udp { " of UDP" } else { "" };
        note(true, format!(", policer{of} {} with {}", Rate(policer.rate_bps), Size(policer.burst_bytes)));
    }
    for change in &d.changes {
        let (at, rate, delay) = (Span(change.at_ns), Rate(change.rate_bps), Span(change.delay_ns));
        note(true, format!(", from {at} on {rate}, {delay} one way"));
    }
    note(d.gather_ns > 0, format!(", gathered for {}", Span(d.gather_ns)));
    note(d.frame_bytes_max != u32::MAX, format!(", nothing over {}", Size(d.frame_bytes_max.into())));
    note(d.reorder > 0.0, format!(", reorder {} by {}", Percent(d.reorder), Span(d.reorder_by_ns)));
    note(d.duplicate > 0.0, format!(", duplicate {}", Percent(d.duplicate)));
    note(!d.down.is_empty(), format!(", {} cuts", d.down.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut histogram = Histogram::default();
        (1..=100_000_u64).for_each(|v| histogram.add(v * 37));
        for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let exact = share * 3_700_000.0;
            let got = histogram.quantile(share) as f64;
            assert!((got / exact - 1.0).abs() < 1.0 / 16.0, "{share}: {got} against {exact}");
        }
        assert!((histogram.summary().late_share - 0.73).abs() < 0.01);
    }

    #[test]
    fn every_value_has_a_bucket() {
        for value in [0, 1, 15, 16, 17, 31, 32, u64::MAX / 2, u64::MAX] {
            let b = bucket(value);
            assert!(b < BUCKETS && upper_bound(b) >= value, "{value}");
            assert!(b == 0 || upper_bound(b - 1) < value, "{value}");
        }
    }

    #[test]
    fn deliveries_are_counted_by_slot_for_ten_minutes() {
        let mut report = DirectionReport::default();
        for (at, bytes) in [(0, 1), (SLOT_NS - 1, 2), (2 * SLOT_NS, 4), (SLOTS_MAX as u64 * SLOT_NS, 8)] {
            report.deliver(at, bytes);
        }
        assert_eq!((report.delivered_by_slot.as_slice(), report.delivered_bytes), ([3, 0, 4].as_slice(), 15));
    }

    #[test]
    fn a_run_is_spoiled_by_lateness_or_by_drops_of_the_emulators_own() {
        let judged = |late_share, emulator| {
            let mut report = DirectionReport { offered_packets: 1000, ..Default::default() };
            report.lateness.late_share = late_share;
            report.drops.emulator = emulator;
            report.judge();
            report.spoiled
        };
        assert!(!judged(0.0099, 0));
        assert!(judged(0.0101, 0));
        assert!(judged(0.0, 1));
    }
}
