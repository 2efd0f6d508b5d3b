//! A firefly: a UDP packet that announces a flow, with a syslog header (RFC 5424) before a JSON object of the schema
//! `firefly.schema.json`, version 1.0.0, of scitags.org. No I/O.

use std::net::SocketAddr;
use std::time::SystemTime;

use time::OffsetDateTime;

use crate::figures::LaneCounts;
use crate::settings::Tag;

/// Facility local0 and severity informational (RFC 5424, 6.2.1).
const PRIORITY: u32 = 16 << 3 | 6;
/// Longest host name of a syslog header (RFC 5424, 6). Bytes.
const HOST_MAX: usize = 255;
/// The application that fireflies name.
const APPLICATION: &str = concat!("isthmus ", env!("CARGO_PKG_VERSION"));

/// The transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowProtocol {
    Tcp,
    Udp,
}

/// A flow as packets show it. Its source is this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) protocol: FlowProtocol,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// What a firefly says of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Start,
    Ongoing,
    End,
}

/// What a firefly is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Firefly<'a> {
    /// This host's name.
    pub(crate) host: &'a str,
    pub(crate) tag: Tag,
    pub(crate) flow: Flow,
    pub(crate) state: State,
    pub(crate) started: SystemTime,
    /// Now; for [`State::End`] also when the flow ended.
    pub(crate) now: SystemTime,
    pub(crate) counts: LaneCounts,
}

impl Firefly<'_> {
    /// The payload of the packet.
    pub(crate) fn packet(&self) -> String {
        let now = date_time(self.now);
        let header = format!("<{PRIORITY}>1 {now} {} isthmus - firefly-json - ", host_name(self.host));
        // No text in the object needs escapes, so no crate for JSON has to be loaded into programs.
        let Tag { experiment, activity } = self.tag;
        format!(
            r#"{header}{{"version":1,"flow-lifecycle":{},"flow-id":{},"context":{{"experiment-id":{experiment},"activity-id":{activity},"application":"{APPLICATION}"}}{}}}"#,
            self.lifecycle(&now),
            self.id(),
            self.measured(),
        )
    }

    fn lifecycle(&self, now: &str) -> String {
        let (state, end) = match self.state {
            State::Start => ("start", String::new()),
            State::Ongoing => ("ongoing", String::new()),
            State::End => ("end", format!(r#","end-time":"{now}""#)),
        };
        let started = date_time(self.started);
        format!(r#"{{"state":"{state}","current-time":"{now}","start-time":"{started}"{end}}}"#)
    }

    fn id(&self) -> String {
        let Flow { protocol, source, destination } = self.flow;
        let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
        let (afi, protocol) = (
            if to.is_ipv4() { "ipv4" } else { "ipv6" },
            match protocol {
                FlowProtocol::Tcp => "tcp",
                FlowProtocol::Udp => "udp",
            },
        );
        let (from_port, to_port) = (source.port(), destination.port());
        format!(
            r#"{{"afi":"{afi}","src-ip":"{from}","dst-ip":"{to}","protocol":"{protocol}","src-port":{from_port},"dst-port":{to_port}}}"#
        )
    }

    /// What is known of the flow: bytes, and the round trip in milliseconds, as XRootD tells it.
    fn measured(&self) -> String {
        let LaneCounts { sent_bytes, received_bytes, rtt_us, .. } = self.counts;
        let counted = [("received", received_bytes), ("sent", sent_bytes)];
        let known = counted.iter().filter_map(|(name, bytes)| Some(format!(r#""{name}":{}"#, (*bytes)?)));
        let known = known.collect::<Vec<_>>().join(",");
        let usage = if known.is_empty() { known } else { format!(r#","usage":{{{known}}}"#) };
        let netlink = rtt_us.map(|us| format!(r#","netlink":{{"rtt":{}.{:03}}}"#, us / 1_000, us % 1_000));
        usage + &netlink.unwrap_or_default()
    }
}

/// The name in a syslog header, where "-" is an unknown one: printable ASCII without spaces.
fn host_name(name: &str) -> String {
    let printable: String = name.chars().filter(char::is_ascii_graphic).take(HOST_MAX).collect();
    if printable.is_empty() { "-".to_owned() } else { printable }
}

/// A time in UTC, as RFC 3339 writes it.
fn date_time(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, micro) = at.to_hms_micro();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micro:06}+00:00")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    /// 2024-03-28T08:58:44.899660Z.
    const STARTED: Duration = Duration::from_micros(1_711_616_324_899_660);

    fn firefly(state: State, flow: Flow) -> Firefly<'static> {
        Firefly {
            host: "etf-cs9.cern.ch",
            tag: Tag { experiment: 1, activity: 2 },
            flow,
            state,
            started: SystemTime::UNIX_EPOCH + STARTED,
            now: SystemTime::UNIX_EPOCH + STARTED + Duration::from_millis(4_000),
            counts: LaneCounts::default(),
        }
    }

    fn ipv6() -> Flow {
        Flow {
            protocol: FlowProtocol::Tcp,
            source: "[2600:900:6:1101:a288:c2ff:fed2:34de]:1234".parse().expect("valid"),
            destination: "[2620:6a:0:8421:f0:0:189:154]:5678".parse().expect("valid"),
        }
    }

    fn parts(packet: &str) -> (String, Value) {
        let at = packet.find('{').expect("an object");
        (packet[..at].to_owned(), serde_json::from_str(&packet[at..]).expect("JSON"))
    }

    /// The example that flowd's own tests use, but for the application and the end of a flow that has just started.
    #[test]
    fn a_start_is_as_in_the_example() {
        let (header, message) = parts(&firefly(State::Start, ipv6()).packet());
        assert_eq!(
            header,
            "<134>1 2024-03-28T08:58:48.899660+00:00 etf-cs9.cern.ch isthmus - firefly-json - "
        );
        let example = json!({
            "version": 1,
            "flow-lifecycle": {
                "state": "start",
                "current-time": "2024-03-28T08:58:48.899660+00:00",
                "start-time": "2024-03-28T08:58:44.899660+00:00",
            },
            "flow-id": {
                "afi": "ipv6",
                "src-ip": "2600:900:6:1101:a288:c2ff:fed2:34de",
                "dst-ip": "2620:6a:0:8421:f0:0:189:154",
                "protocol": "tcp",
                "src-port": 1234,
                "dst-port": 5678,
            },
            "context": {
                "experiment-id": 1,
                "activity-id": 2,
                "application": concat!("isthmus ", env!("CARGO_PKG_VERSION")),
            },
        });
        assert_eq!(message, example);
    }

    #[test]
    fn an_end_has_its_time_and_what_is_known_of_the_flow() {
        let flow = Flow {
            protocol: FlowProtocol::Udp,
            source: "[::ffff:10.0.0.1]:7".parse().expect("valid"),
            destination: "10.0.0.2:8".parse().expect("valid"),
        };
        let counts = LaneCounts { sent_bytes: Some(70), rtt_us: Some(24_500), ..LaneCounts::default() };
        let (_, message) = parts(&Firefly { counts, ..firefly(State::End, flow) }.packet());
        assert_eq!(message["flow-lifecycle"]["end-time"], "2024-03-28T08:58:48.899660+00:00");
        assert_eq!(message["flow-lifecycle"]["state"], "end");
        assert_eq!(message["flow-id"]["afi"], "ipv4");
        assert_eq!(message["flow-id"]["src-ip"], "10.0.0.1");
        assert_eq!(message["flow-id"]["protocol"], "udp");
        assert_eq!(message["usage"], json!({ "sent": 70 }));
        assert_eq!(message["netlink"], json!({ "rtt": 24.5 }));
    }

    #[test]
    fn a_packet_fits_an_ethernet_frame_and_its_header_has_seven_words() {
        let counts =
            LaneCounts { sent_bytes: Some(u64::MAX), received_bytes: Some(u64::MAX), ..Default::default() };
        let host = "host name\u{e9}".repeat(100);
        let packet = Firefly { counts, host: &host, ..firefly(State::Ongoing, ipv6()) }.packet();
        assert!(packet.len() <= 1_232, "{} bytes", packet.len());
        assert_eq!(parts(&packet).0.split_ascii_whitespace().count(), 7);
        assert_eq!(host_name(" "), "-");
    }
}
