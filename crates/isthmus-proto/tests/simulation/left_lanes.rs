//! Lanes that the peer has lost, which this end does not know yet.

use isthmus_proto::LaneId;
use isthmus_wire::frame::Frame;

use crate::hostile::{Victim, message};

/// The lanes by which acknowledgements go once the peer's short message number `seq` has come by `lane`.
fn acknowledged_by(end: &mut Victim, lane: LaneId, seq: u64) -> Vec<LaneId> {
    end.say(lane, message(seq, seq, 8, 8), &[0; 8]).expect("a message");
    end.engine.flush_acks();
    let acks = |(lane, frame)| matches!(frame, Frame::Ack(ack) if ack.upto == seq + 1).then_some(lane);
    end.drain_lanes().into_iter().filter_map(acks).collect()
}

#[test]
fn acknowledgements_go_by_the_lane_that_the_peer_uses() {
    let mut end = Victim::new();
    let lanes = [end.open(), end.open()];
    end.drain_lanes();
    let left = |end: &Victim| lanes.map(|lane| end.engine.is_left_by_peer(lane));
    for (seq, used) in [0, 1, 1, 0].into_iter().enumerate() {
        assert_eq!(acknowledged_by(&mut end, lanes[used], seq as u64), [lanes[used]], "message {seq}");
        assert_eq!(left(&end), [used != 0, used != 1], "message {seq}");
    }
}
