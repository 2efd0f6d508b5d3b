//! The figures of an endpoint that `isthmus top` shows, and their form on the state socket.
//!
//! The form is text: a line for each endpoint, peer, reason and lane, with tabs between its fields. A field that is not
//! known is "-". A process and the command that asks it may be of different releases, so the first line has a version,
//! and a reader passes over lines and fields that it does not know.

use std::fmt::{self, Write};
use std::io;

/// The first line; it ends with the version of the form.
pub(crate) const HEAD: &str = "isthmus-figures 1";
/// Most peers of an endpoint in the figures. Count.
pub(crate) const PEERS_MAX: usize = 1000;

/// Name of the datagrams' carrier, for people.
const DATAGRAMS: &str = "UDP datagrams";

/// Counts of the datagrams between an endpoint and one peer, which go beside lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of messages in them.
    pub sent_bytes: u64,
    /// Datagrams received.
    pub received: u64,
    /// Bytes of messages in them.
    pub received_bytes: u64,
}

impl DatagramCounts {
    /// Adds the counts of another index of the same peer.
    pub(crate) fn add(&mut self, more: Self) {
        self.sent += more.sent;
        self.sent_bytes += more.sent_bytes;
        self.received += more.received;
        self.received_bytes += more.received_bytes;
    }

    /// Adds their line, as that of a lane. The sender of datagrams does not learn how many arrive.
    pub(crate) fn tell(self, out: &mut String) {
        if self != Self::default() {
            let counts = LaneCounts {
                sent_bytes: Some(self.sent_bytes),
                received_bytes: Some(self.received_bytes),
                packets: Some(self.sent),
                ..LaneCounts::default()
            };
            counts.tell(DATAGRAMS, out);
        }
    }
}

/// The counts of a lane; `None` for those that its carrier does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneCounts {
    /// Bytes that the other end has acknowledged.
    pub(crate) sent_bytes: Option<u64>,
    /// Bytes received.
    pub(crate) received_bytes: Option<u64>,
    /// Packets with data that were sent.
    pub(crate) packets: Option<u64>,
    /// Packets that were lost.
    pub(crate) lost: Option<u64>,
    /// Round trip, smoothed. Microseconds.
    pub(crate) rtt_us: Option<u64>,
}

impl LaneCounts {
    /// Adds the line of a lane by this carrier.
    pub(crate) fn tell(self, carrier: &str, out: &mut String) {
        let _ = write!(out, "lane\t{carrier}");
        for value in [self.sent_bytes, self.received_bytes, self.packets, self.lost, self.rtt_us] {
            let _ = write!(out, "\t{}", Known(value));
        }
        out.push('\n');
    }
}

/// A number that may not be known.
pub(crate) struct Known(pub(crate) Option<u64>);

/// The figures of one lane. Unknown ones are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneFigures {
    /// Its carrier: "TCP", "UDP", "shared memory" and so on.
    pub carrier: String,
    /// Bytes that the other end has acknowledged.
    pub sent_bytes: Option<u64>,
    /// Bytes received.
    pub received_bytes: Option<u64>,
    /// Packets with data that were sent.
    pub packets: Option<u64>,
    /// Packets that were lost.
    pub lost: Option<u64>,
    /// Round trip, smoothed. Microseconds.
    pub rtt_us: Option<u64>,
}

/// The figures of one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerFigures {
    /// Its address.
    pub address: String,
    /// Bytes of messages, writes and answers that were sent.
    pub sent_bytes: u64,
    /// The same, received.
    pub received_bytes: u64,
    /// Messages sent.
    pub messages: u64,
    /// Fragments sent again.
    pub fragments_resent: u64,
    /// The shortest round trip. Microseconds.
    pub rtt_us: Option<u64>,
    /// The reasons for its carriers and transfers.
    pub why: Vec<String>,
    /// Its lanes.
    pub lanes: Vec<LaneFigures>,
}

/// The figures of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointFigures {
    /// Its address.
    pub address: String,
    /// The peers to which there was a lane, at most 1,000.
    pub peers: Vec<PeerFigures>,
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// Reads such a text. Control characters become spaces: the text goes to a terminal.
///
/// # Errors
/// The text has another form.
pub(crate) fn decode(text: &str) -> io::Result<Vec<EndpointFigures>> {
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        let other = "it speaks another version; use the same isthmus release";
        return Err(io::Error::new(io::ErrorKind::InvalidData, other));
    }
    let mut endpoints: Vec<EndpointFigures> = Vec::new();
    for line in lines {
        let mut fields = line.split('\t');
        let kind = fields.next().unwrap_or_default();
        let name = fields.next().unwrap_or_default().replace(char::is_control, " ");
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
        match (kind, endpoints.last_mut()) {
            ("endpoint", _) => endpoints.push(EndpointFigures { address: name, peers: Vec::new() }),
            ("peer", Some(endpoint)) => endpoint.peers.push(PeerFigures {
                address: name,
                sent_bytes: number().unwrap_or_default(),
                received_bytes: number().unwrap_or_default(),
                messages: number().unwrap_or_default(),
                fragments_resent: number().unwrap_or_default(),
                rtt_us: number(),
                why: Vec::new(),
                lanes: Vec::new(),
            }),
            (_, Some(EndpointFigures { peers, .. })) => {
                let Some(peer) = peers.last_mut() else { continue };
                match kind {
                    // Each lane has a reason, and most have the same.
                    "why" if !peer.why.contains(&name) => peer.why.push(name),
                    "lane" => peer.lanes.push(LaneFigures {
                        carrier: name,
                        sent_bytes: number(),
                        received_bytes: number(),
                        packets: number(),
                        lost: number(),
                        rtt_us: number(),
                    }),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_they_are_written() {
        let mut text = format!("{HEAD}\nendpoint\tisthmus://1.1/10.0.0.1:4100\npeer\tp\t7\t8\t9\t10\t11\n");
        LaneCounts { lost: Some(3), rtt_us: Some(4), ..Default::default() }.tell("TCP, encrypted", &mut text);
        text += "why\tUDP: far\nlane\tUDP\t1\t-\t-\t-\t-\nwhy\tUDP: far\nwhy\tstreams: 2\nendpoint\talone\n";
        let lane = LaneFigures {
            carrier: "TCP, encrypted".to_owned(),
            lost: Some(3),
            rtt_us: Some(4),
            ..Default::default()
        };
        let other = LaneFigures { carrier: "UDP".to_owned(), sent_bytes: Some(1), ..Default::default() };
        let peer = PeerFigures {
            address: "p".to_owned(),
            sent_bytes: 7,
            received_bytes: 8,
            messages: 9,
            fragments_resent: 10,
            rtt_us: Some(11),
            why: vec!["UDP: far".to_owned(), "streams: 2".to_owned()],
            lanes: vec![lane, other],
        };
        let endpoint =
            EndpointFigures { address: "isthmus://1.1/10.0.0.1:4100".to_owned(), peers: vec![peer] };
        let alone = EndpointFigures { address: "alone".to_owned(), peers: Vec::new() };
        assert_eq!(decode(&text).expect("ours"), [endpoint, alone]);
        assert!(decode("endpoint isthmus://1.1/10.0.0.1:4100\n").is_err(), "the state for people");
    }

    #[test]
    fn unknown_lines_are_passed_over_and_nothing_reaches_the_terminal() {
        let text = format!("{HEAD}\nlane\tTCP\t1\nwhat\t2\nendpoint\ta\u{1b}[2J\tmore\npeer\tp\nnew\t1\n");
        let read = decode(&text).expect("ours");
        assert_eq!((read.len(), read[0].address.as_str()), (1, "a [2J"));
        assert_eq!(read[0].peers[0], PeerFigures { address: "p".to_owned(), ..Default::default() });
    }
}
