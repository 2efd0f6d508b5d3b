//! Bytes for one end of a link.

use isthmus_mux::{Expect, Fault, HEADER, Mux};

/// Bytes that come, the last frame perhaps cut off.
pub(crate) fn take_in(mux: &mut Mux, mut bytes: &[u8]) -> Result<(), Fault> {
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
        bytes = rest;
        let mut expect = mux.on_header(header)?;
        while let Expect::Payload(left) = expect {
            let part = left.min(bytes.len());
            let mut piece = mux.take_piece();
            piece.room(part).copy_from_slice(&bytes[..part]);
            piece.fill(part);
            bytes = &bytes[part..];
            expect = mux.on_payload(piece)?;
            if part == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}
