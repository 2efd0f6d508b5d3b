//! A coupled pair: heat in a rod, one half computed by each of two programs that may be at
//! two sites. Each step they exchange the temperature at the seam. `coupled` is the left half,
//! `coupled URI` the right one, which also computes the whole rod, and compares.

mod common;

use common::{Outcome, SILENT, accept, connect, open, other_side, receive};
use isthmus_substrate::{Connection, Endpoint, Event, Level, SendOptions};

const CELLS: usize = 64;
const STEPS: u32 = 500;

fn main() -> Outcome {
    match other_side() {
        None => left_half(),
        Some(uri) => right_half(&uri),
    }
}

/// One step of all cells but the first and the last, which are their neighbours.
fn step(cells: &mut [f64]) {
    let mut left = cells[0];
    for i in 1..cells.len() - 1 {
        let here = cells[i];
        cells[i] = here + 0.25 * (left - 2.0 * here + cells[i + 1]);
        left = here;
    }
}

fn exchange(endpoint: &Endpoint, other: Connection, ours: f64) -> Outcome<f64> {
    endpoint.send(other, &ours.to_le_bytes(), &SILENT)?;
    Ok(f64::from_le_bytes(*receive(endpoint)?.first_chunk().ok_or("a short message")?))
}

fn bytes_of(cells: &[f64]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_le_bytes()).collect()
}

fn left_half() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    let right = accept(&endpoint)?;
    let mut cells = [0.0; CELLS + 2];
    cells[0] = 100.0; // the far end's temperature is kept
    for _ in 0..STEPS {
        cells[CELLS + 1] = exchange(&endpoint, right, cells[CELLS])?;
        step(&mut cells);
    }
    let blocking = SendOptions { blocking: true, ..SILENT };
    endpoint.send(right, &bytes_of(&cells[1..=CELLS]), &blocking)?;
    assert!(matches!(common::next(&endpoint)?, Event::Disconnected { .. }));
    Ok(())
}

fn right_half(uri: &str) -> Outcome {
    let endpoint = open()?;
    let left = connect(&endpoint, uri, Level::Ro)?;
    let mut cells = [0.0; CELLS + 2];
    let mut whole = [0.0; 2 * CELLS + 2];
    whole[0] = 100.0;
    for _ in 0..STEPS {
        cells[0] = exchange(&endpoint, left, cells[1])?;
        step(&mut cells);
        step(&mut whole);
    }
    let theirs = receive(&endpoint)?;
    assert_eq!(*theirs, bytes_of(&whole[1..=CELLS]));
    assert_eq!(cells[1..=CELLS], whole[CELLS + 1..=2 * CELLS]);
    println!("both halves are those of the whole, bit by bit; {:.4} degrees at the seam", cells[0]);
    Ok(endpoint.disconnect(left)?)
}
