//! An emulated link, and the shortest time in which it can carry a given amount of data.

use arrayvec::ArrayString;
use isthmus_lab::catalogue::{NAME_MAX, NamedLink};
use isthmus_units::{Percent, Rate, Span};
use serde::{Deserialize, Serialize};

/// Ethernet's header; then its preamble, checksum and interframe gap. Bytes.
const FRAME: f64 = 14.0;
const GAP: f64 = 24.0;
/// Headers of IPv4 and TCP, and TCP's timestamp option. Bytes.
const HEADERS: f64 = 20.0 + 20.0 + 12.0;

/// A link between the two sites, the same in both directions unless it is of a catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmulatedLink {
    /// Line rate, in bits per second.
    #[serde(serialize_with = "as_text")]
    pub rate: Rate,
    /// Round-trip time.
    #[serde(serialize_with = "as_text")]
    pub rtt: Span,
    /// Share of packets lost in each direction.
    #[serde(serialize_with = "as_text")]
    pub loss: Percent,
    /// Maximum transmission unit. Bytes.
    pub mtu: u32,
    /// Its name in a catalogue, which says what else it does. The other fields are then of the way from a to b, before
    /// any change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ArrayString<NAME_MAX>>,
}

fn as_text<T: std::fmt::Display, S: serde::Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

impl EmulatedLink {
    /// Both sides are on this host, and nothing is emulated.
    pub const LOOPBACK: Self =
        Self { rate: Rate(0), rtt: Span(0), loss: Percent(0.0), mtu: 65_536, name: None };

    /// A link of a catalogue. A policer's rate counts as the link's.
    pub fn named(link: &NamedLink) -> Self {
        let there = &link.spec.directions[0];
        Self {
            rate: Rate(there.passing_bps(there.rate_bps, false)),
            rtt: Span(link.spec.rtt_ns()),
            loss: Percent(there.loss.mean()),
            mtu: link.spec.mtu,
            name: ArrayString::from(&link.name).ok(),
        }
    }

    /// Shortest time until this many bytes have arrived and are acknowledged, if they begin to flow at `began_s` and the
    /// link changes meanwhile as its catalogue says. Seconds; `began_s` counts from the lab's start.
    pub(crate) fn floor_from_s(&self, of: &NamedLink, bytes: u64, began_s: f64) -> f64 {
        let there = &of.spec.directions[0];
        let (mut link, mut at_s, mut left) = (*self, began_s, bytes as f64);
        for change in &there.changes {
            let next_s = change.at_ns as f64 / 1e9;
            let carries = link.goodput() * (next_s - at_s).max(0.0);
            if carries >= left {
                break;
            }
            (left, at_s) = (left - carries, at_s.max(next_s));
            link = Self {
                rate: Rate(there.passing_bps(change.rate_bps, false)),
                rtt: Span(2 * change.delay_ns),
                ..link
            };
        }
        at_s - began_s + link.rtt_s() + left / link.goodput()
    }

    /// Least that must be sent so that this many bytes arrive, with full packets, and losses sent again. Bytes on the
    /// wire.
    pub(crate) fn wire_bytes(&self, bytes: f64) -> f64 {
        bytes / self.goodput() * self.rate.0 as f64 / 8.0
    }

    /// Whether both sides are on this host.
    pub fn is_loopback(&self) -> bool {
        self.rate.0 == 0
    }

    /// Round trip in seconds.
    pub fn rtt_s(&self) -> f64 {
        self.rtt.0 as f64 / 1e9
    }

    /// Most payload that the link delivers, with full packets and after losses. Bytes per second.
    pub fn goodput(&self) -> f64 {
        let mtu = f64::from(self.mtu);
        self.rate.0 as f64 / 8.0 * (mtu - HEADERS) / (mtu + FRAME + GAP) * (1.0 - self.loss.0)
    }

    /// Shortest time until this many bytes have arrived and are acknowledged; 0 on loopback. Seconds.
    pub fn floor_s(&self, bytes: u64) -> f64 {
        if self.is_loopback() {
            return 0.0;
        }
        self.rtt_s() + bytes as f64 / self.goodput()
    }

    /// Shortest time until this many bytes have arrived; 0 on loopback. Seconds.
    pub(crate) fn arrival_floor_s(&self, bytes: u64) -> f64 {
        (self.floor_s(bytes) - self.rtt_s() / 2.0).max(0.0)
    }

    /// Text for people, such as "24ms, 0.1%".
    pub fn title(&self) -> String {
        if self.is_loopback() {
            return "loopback".to_owned();
        }
        if let Some(name) = self.name {
            return format!("{name}; {}, MTU {}", self.rtt, self.mtu);
        }
        format!("{}, {}", self.rtt, self.loss)
    }
}

/// Shortest time in which two links together carry this many bytes. The second link is cut `cut_s` after the
/// data began to flow. Seconds.
pub(crate) fn floor_of_both_s(
    bytes: u64,
    first: &EmulatedLink,
    second: &EmulatedLink,
    cut_s: Option<f64>,
) -> f64 {
    let by_one = first.floor_s(bytes).min(second.floor_s(bytes));
    // Each link's floor includes its own round trip.
    let owed = |link: &EmulatedLink| link.goodput() * link.rtt_s();
    let sum = first.goodput() + second.goodput();
    let by_both = ((bytes as f64 + owed(first) + owed(second)) / sum).min(by_one);
    match cut_s {
        Some(cut) if cut < by_both => {
            let came = second.goodput() * (cut - second.rtt_s() / 2.0).max(0.0);
            first.rtt_s() + (bytes as f64 - came) / first.goodput()
        }
        _ => by_both,
    }
}

#[cfg(test)]
mod tests {
    use isthmus_lab::catalogue::Catalogue;

    use super::*;

    #[test]
    fn the_floor_is_a_round_trip_and_what_full_packets_take() {
        let link = EmulatedLink {
            rate: Rate(1_000_000_000),
            rtt: Span(24_000_000),
            loss: Percent(0.0),
            mtu: 9_000,
            name: None,
        };
        assert!((link.goodput() / 123.75e6 - 1.0).abs() < 0.001, "{}", link.goodput());
        assert!((link.floor_s(500_000_000) - 4.064).abs() < 0.01, "{}", link.floor_s(500_000_000));
        let lossy = EmulatedLink { loss: Percent(0.1), ..link };
        assert!((lossy.goodput() / link.goodput() - 0.9).abs() < 1e-9);
    }

    #[test]
    fn a_change_while_data_flows_moves_the_floor() {
        let text =
            "[[link]]\nname = \"a fifth\"\nrtt = \"24ms\"\nchange = [{ at = \"3s\", rate = \"200Mbit\" }]\n";
        let of = Catalogue::parse("test", text).expect("valid").links.remove(0);
        let link = EmulatedLink::named(&of);
        let second = link.goodput() as u64;
        let floor = |bytes, began_s| link.floor_from_s(&of, bytes, began_s);
        assert!((floor(second, 1.0) - 1.024).abs() < 1e-6, "before the change");
        assert!((floor(3 * second, 1.0) - (2.0 + 5.0 + 0.024)).abs() < 1e-6, "{}", floor(3 * second, 1.0));
        assert!((floor(second, 4.0) - 5.024).abs() < 1e-6, "after it");
        assert_eq!(link.title(), "a fifth; 24ms, MTU 9000");
        assert!((link.wire_bytes(8_948.0) - 9_038.0).abs() < 1e-6);
    }

    #[test]
    fn two_links_carry_their_sum_until_one_is_cut() {
        let of = |ms: u64| EmulatedLink {
            rate: Rate(500_000_000),
            rtt: Span(ms * 1_000_000),
            loss: Percent(0.0),
            mtu: 9_000,
            name: None,
        };
        let (first, second) = (of(24), of(60));
        let both = |cut_s| floor_of_both_s(500_000_000, &first, &second, cut_s);
        assert!((both(None) - 4.08).abs() < 0.01, "{}", both(None));
        assert!((both(Some(5.0)) - both(None)).abs() < 1e-9, "after the end");
        // The first link need not carry what the second delivered: 1.97 s at 61.9 MB/s.
        assert!((both(Some(2.0)) - (0.024 + 8.081 - 1.97)).abs() < 0.01, "{}", both(Some(2.0)));
        assert!((both(Some(0.0)) - first.floor_s(500_000_000)).abs() < 1e-9, "from the beginning");
        assert!((floor_of_both_s(1, &first, &second, None) - 0.024).abs() < 1e-6, "by the shorter alone");
    }
}
