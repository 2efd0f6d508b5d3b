//! Evidence: what carriers measure of a path. Counts grow from the beginning of a lane, as the kernel counts them.

use crate::Micros;

/// The kernel's counts for a TCP lane since it came up (`tcpi_bytes_acked`, `tcpi_data_segs_out`,
/// `tcpi_total_retrans`, `tcpi_busy_time`, `tcpi_rwnd_limited` and `tcpi_sndbuf_limited` of `tcp(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Bytes that have arrived.
    pub acked: u64,
    /// Packets with data, including those sent again.
    pub packets: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Time with something to send. Microseconds.
    pub busy_us: u64,
    /// Part of `busy_us` in which the receiver's window or the send buffer held the lane up. Microseconds.
    pub crowded_us: u64,
    /// The round trip now (`tcpi_rtt`). Microseconds; 0 if it is not known.
    pub rtt_us: u64,
    /// Endpoints of this host, including this one, that send bulk data on the same path, as far as known. Count.
    pub sharers: u32,
}

impl LaneSample {
    /// The counts since an earlier sample.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            acked: self.acked.saturating_sub(before.acked),
            packets: self.packets.saturating_sub(before.packets),
            resent: self.resent.saturating_sub(before.resent),
            busy_us: self.busy_us.saturating_sub(before.busy_us),
            crowded_us: self.crowded_us.saturating_sub(before.crowded_us),
            ..self
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.acked += more.acked;
        self.packets += more.packets;
        self.resent += more.resent;
        self.busy_us += more.busy_us;
        self.crowded_us += more.crowded_us;
    }
}

/// All that the kernel says of a TCP lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpLook {
    /// Its counts.
    pub lane: LaneSample,
    /// Bytes that have arrived, in order or not.
    pub arrived: u64,
    /// Sent and unacknowledged. Bytes.
    pub in_flight: u64,
    /// The shortest round trip. Microseconds.
    pub least_rtt_us: Micros,
    /// The recent delivery rate. Bytes/s.
    pub rate: u64,
}

impl TcpLook {
    /// Whether the path is one within a site.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.least_rtt_us < crate::thresholds::distance::FAR_US
    }
}

/// The work of UDP lanes to a host since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UdpWork {
    /// Bytes sent for the first time.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets that were lost on the path.
    pub lost: u64,
    /// Time spent with the packets of these lanes, and of all others of the endpoint. Microseconds.
    pub busy_us: Micros,
    /// Time in which packets waited for the peer to read them. Microseconds.
    pub far_busy_us: Micros,
    /// At each look, the program had more to send on a path that seems to police UDP.
    pub is_held: bool,
}

impl UdpWork {
    pub(crate) fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.packets += more.packets;
        self.lost += more.lost;
        self.busy_us += more.busy_us;
        self.far_busy_us += more.far_busy_us;
        self.is_held &= more.is_held;
    }
}

/// A look at the UDP lanes to a host.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpLook {
    /// The shortest round trip. Microseconds.
    pub rtt_us: Micros,
    /// Size of their packets. Bytes.
    pub packet: u32,
    /// Their work since the last look.
    pub work: UdpWork,
}
