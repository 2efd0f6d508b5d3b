//! Which fireflies are due. No I/O and no clock.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use super::firefly::{Firefly, Flow, State};
use crate::figures::LaneCounts;
use crate::settings::Tag;

/// Time between two fireflies of a flow that goes on.
const ONGOING_EVERY: Duration = Duration::from_secs(60);
/// Most fireflies that wait to be sent. Count; further ones are dropped.
const WAITING_MAX: usize = 4_096;

/// A firefly's flow and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The other end of the flow.
    pub(crate) destination: std::net::SocketAddr,
    pub(crate) payload: String,
}

#[derive(Debug)]
struct Record {
    flow: Flow,
    started: SystemTime,
    /// When it was last announced; `None`: not yet.
    told: Option<SystemTime>,
}

/// The flows of an endpoint, by the index of their lane.
#[derive(Debug)]
pub(crate) struct Flows {
    host: String,
    tag: Tag,
    records: HashMap<usize, Record>,
    waiting: VecDeque<Packet>,
    dropped: u64,
}

impl Flows {
    /// `host` is this host's name.
    pub(crate) fn new(host: String, tag: Tag) -> Self {
        Self { host, tag, records: HashMap::new(), waiting: VecDeque::new(), dropped: 0 }
    }

    /// A lane has come up.
    pub(crate) fn begin(&mut self, index: usize, flow: Flow, now: SystemTime) {
        self.records.insert(index, Record { flow, started: now, told: None });
    }

    /// The flows of which something is due to be told.
    pub(crate) fn due(&self, now: SystemTime) -> Vec<usize> {
        let is_due = |record: &Record| match record.told {
            None => true,
            // A clock that was set back must not silence flows.
            Some(told) => now.duration_since(told).map_or(true, |since| since >= ONGOING_EVERY),
        };
        self.records.iter().filter(|(_, record)| is_due(record)).map(|(index, _)| *index).collect()
    }

    /// Announces a flow: its beginning, or that it goes on.
    pub(crate) fn tell(&mut self, index: usize, counts: LaneCounts, now: SystemTime) {
        if let Some(record) = self.records.get_mut(&index) {
            let state = if record.told.is_none() { State::Start } else { State::Ongoing };
            record.told = Some(now);
            let (flow, started) = (record.flow, record.started);
            self.add(Firefly { host: "", tag: self.tag, flow, state, started, now, counts });
        }
    }

    /// A lane has ended. If its beginning was not announced, that comes first. A lane that was never `answered` had no
    /// flow.
    pub(crate) fn end(&mut self, index: usize, answered: bool, counts: LaneCounts, now: SystemTime) {
        if self.records.get(&index).is_some_and(|record| record.told.is_none()) && answered {
            self.tell(index, counts, now);
        }
        if let Some(Record { flow, started, told: Some(_) }) = self.records.remove(&index) {
            self.add(Firefly { host: "", tag: self.tag, flow, state: State::End, started, now, counts });
        }
    }

    fn add(&mut self, firefly: Firefly<'_>) {
        if self.waiting.len() >= WAITING_MAX {
            self.dropped += 1;
            return;
        }
        let payload = Firefly { host: &self.host, ..firefly }.packet();
        self.waiting.push_back(Packet { destination: firefly.flow.destination, payload });
    }

    /// The next firefly to send.
    pub(crate) fn next(&mut self) -> Option<Packet> {
        self.waiting.pop_front()
    }

    /// Number of fireflies dropped since the last call because too many waited.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::firefly::FlowProtocol;
    use super::*;

    fn flows() -> Flows {
        Flows::new("host".to_owned(), Tag { experiment: 2, activity: 1 })
    }

    fn flow(port: u16) -> Flow {
        let destination = std::net::SocketAddr::new([10, 0, 0, 2].into(), port);
        Flow { protocol: FlowProtocol::Tcp, source: "10.0.0.1:7".parse().expect("valid"), destination }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The states and ports of the fireflies that wait.
    fn told(flows: &mut Flows) -> Vec<String> {
        let packets = std::iter::from_fn(|| flows.next());
        let state = |packet: &Packet| {
            let json = &packet.payload[packet.payload.find('{').expect("an object")..];
            let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
            let state = json["flow-lifecycle"]["state"].as_str().expect("a text").to_owned();
            format!("{state} {} {}", packet.destination.port(), json["flow-lifecycle"]["start-time"])
        };
        packets.map(|packet| state(&packet)).collect()
    }

    fn look(flows: &mut Flows, seconds: u64) -> Vec<String> {
        for index in flows.due(at(seconds)) {
            flows.tell(index, LaneCounts::default(), at(seconds));
        }
        told(flows)
    }

    #[test]
    fn a_flow_is_announced_at_its_start_each_minute_and_at_its_end() {
        let mut flows = flows();
        flows.begin(3, flow(8), at(100));
        let said = |state: &str| vec![format!("{state} 8 \"1970-01-01T00:01:40.000000+00:00\"")];
        assert_eq!(look(&mut flows, 101), said("start"));
        assert_eq!(look(&mut flows, 102), Vec::<String>::new());
        assert_eq!(look(&mut flows, 160), Vec::<String>::new());
        assert_eq!(look(&mut flows, 161), said("ongoing"));
        assert_eq!(look(&mut flows, 200), Vec::<String>::new());
        flows.end(3, true, LaneCounts::default(), at(201));
        assert_eq!(told(&mut flows), said("end"));
        flows.end(3, true, LaneCounts::default(), at(202));
        assert_eq!(look(&mut flows, 300), Vec::<String>::new(), "it is forgotten");
    }

    #[test]
    fn a_flow_that_ends_before_it_was_announced_has_both_and_one_without_an_answer_none() {
        let mut flows = flows();
        flows.begin(1, flow(8), at(1));
        flows.end(1, true, LaneCounts::default(), at(1));
        let states: Vec<_> = told(&mut flows).iter().map(|said| said[..5].trim().to_owned()).collect();
        assert_eq!(states, ["start", "end 8"]);
        flows.begin(1, flow(8), at(2));
        flows.end(1, false, LaneCounts::default(), at(2));
        assert_eq!(told(&mut flows), Vec::<String>::new());
    }

    #[test]
    fn a_clock_that_was_set_back_silences_no_flow() {
        let mut flows = flows();
        flows.begin(1, flow(8), at(1_000));
        look(&mut flows, 1_000);
        assert_eq!(look(&mut flows, 10).len(), 1);
        assert_eq!(look(&mut flows, 11).len(), 0);
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_dropped_is_counted() {
        let mut flows = flows();
        for index in 0..WAITING_MAX + 3 {
            flows.begin(index, flow(8), at(1));
            flows.tell(index, LaneCounts::default(), at(1));
        }
        assert_eq!((flows.take_dropped(), flows.take_dropped()), (3, 0));
        assert_eq!(told(&mut flows).len(), WAITING_MAX);
    }
}
