//! Sequences of calls of the substrate, over real sockets: each byte is a choice.

use crate::player::{Choices, Player};

/// Calls of one input. Count; the rest of the input is ignored.
const CALLS_MAX: usize = 300;

/// Choices that connect, accept, send, write and leave.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let count = |from: u8, step: u8| (0..200).map(|i: u8| from.wrapping_add(i.wrapping_mul(step))).collect();
    vec![count(0, 1), count(3, 7), count(11, 13), vec![0; 100], [0, 10, 11, 12, 13, 2, 6, 1].repeat(30)]
}

/// No sequence of calls, with any handles, does worse than return errors, and the endpoints
/// still work afterwards.
pub(crate) fn property(input: &[u8]) {
    let mut bytes = input.iter().copied();
    let mut player = Player::new();
    for _ in 0..CALLS_MAX {
        if bytes.len() == 0 {
            break;
        }
        player.call(&mut Choices(&mut |limit| choose(&mut bytes, limit)));
    }
    player.still_works();
}

/// The next byte of the input as a choice, scaled to `limit`; 0 after the input's end.
fn choose(bytes: &mut impl Iterator<Item = u8>, limit: usize) -> usize {
    let wide = limit > 256;
    let low = usize::from(bytes.next().unwrap_or(0));
    // One byte is enough for long lengths: the factor spreads it over the whole range.
    if wide { low * limit.div_ceil(256) } else { low }
}
