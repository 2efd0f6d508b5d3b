//! Links between routers: frames of a hostile neighbour.

use isthmus_mux::{Event, LaneId, Limits, Mux};

use crate::bytes::take_in;

const LIMITS: Limits = Limits { lanes: 4, base: 70_000, pool: 100_000 };

/// The first bytes of the other end.
fn greeting() -> Vec<u8> {
    let mut other = Mux::new(true, LIMITS);
    other.poll_output().map(|piece| piece.filled().to_vec()).unwrap_or_default()
}

/// The bytes of an end that opens two lanes, writes to both, finishes one and abandons the other.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (mut here, mut there) = (Mux::new(true, LIMITS), Mux::new(false, LIMITS));
    if let Some(piece) = there.poll_output() {
        let _ = take_in(&mut here, piece.filled());
    }
    for (content, finishes) in [(&b"a lane"[..], true), (b"another", false)] {
        let Some(lane) = here.open() else { continue };
        here.write(lane, content);
        if finishes { here.finish(lane) } else { here.release(lane) }
    }
    here.beat();
    let mut said = vec![0];
    while let Some(piece) = here.poll_output() {
        said.extend_from_slice(piece.filled());
    }
    // `property` sends the greeting itself.
    said.drain(1..=greeting().len());
    vec![said]
}

/// For any bytes of the neighbour, nothing panics and no end exceeds its limit of lanes. The first
/// byte says how the bytes are split, and what the lanes do meanwhile.
pub(crate) fn property(input: &[u8]) {
    let Some((&how, bytes)) = input.split_first() else { return };
    let mut mux = Mux::new(false, LIMITS);
    let greeted = take_in(&mut mux, &greeting());
    assert_eq!(greeted, Ok(()));
    mux.open();
    for (step, frames) in bytes.chunks(usize::from(how >> 4) * 50 + 12).enumerate() {
        if take_in(&mut mux, frames).is_err() {
            return;
        }
        while let Some(event) = mux.poll_event() {
            let (Event::Accepted(lane) | Event::Readable(lane) | Event::Writable(lane)) = event else {
                continue;
            };
            use_lane(&mut mux, lane, usize::from(how) + step);
        }
        assert!(mux.lanes() <= 1 + LIMITS.lanes as usize);
    }
}

fn use_lane(mux: &mut Mux, lane: LaneId, how: usize) {
    match how % 6 {
        0 => drop(mux.read(lane, &mut [0; 100])),
        1 => drop(mux.write(lane, &[1; 1000])),
        2 => mux.finish(lane),
        3 => mux.release(lane),
        4 => {
            while let Some(piece) = mux.poll_output() {
                mux.give_piece(piece);
            }
        }
        _ => {}
    }
}
