//! RMA pipeline: `rma_pipeline` lends memory and checks what comes; `rma_pipeline URI` writes
//! block after block, each with a message that follows it, and reads one back.

mod common;

use common::{Outcome, SILENT, accept, connect, open, other_side, pattern, receive};
use isthmus_substrate::{Access, Error, Event, Failure, Level, MemoryHandle, RemoteOptions};

const BLOCK: usize = 1 << 20;
const DEPTH: u64 = 4;
const BLOCKS: u64 = 32;

fn main() -> Outcome {
    match other_side() {
        None => lend(),
        Some(uri) => write(&uri),
    }
}

fn lend() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    let access = Access { remote_read: true, remote_write: true };
    let memory = endpoint.register(BLOCK * DEPTH as usize, access)?;
    let partner = accept(&endpoint)?;
    endpoint.send(partner, &memory.handle().to_bytes(), &SILENT)?;
    let mut block = vec![0; BLOCK];
    for _ in 0..BLOCKS {
        let note = receive(&endpoint)?;
        let number = u64::from_le_bytes(*note.first_chunk().ok_or("a short note")?);
        memory.read_at((number % DEPTH) as usize * BLOCK, &mut block)?;
        assert_eq!(block, pattern(BLOCK, number), "block {number}");
        // Its place may be written again.
        endpoint.send(partner, &note, &SILENT)?;
    }
    assert!(matches!(common::next(&endpoint)?, Event::Disconnected { .. }));
    Ok(())
}

fn write(uri: &str) -> Outcome {
    let endpoint = open()?;
    let partner = connect(&endpoint, uri, Level::Ro)?;
    let handle = receive(&endpoint)?;
    let remote = handle.first_chunk().and_then(MemoryHandle::from_bytes).ok_or("no handle")?;
    let ours = endpoint.register(BLOCK * DEPTH as usize, Access::default())?;
    let (mut posted, mut confirmed) = (0u64, 0u64);
    while confirmed < BLOCKS {
        if posted < BLOCKS && posted - confirmed < DEPTH {
            let at = posted % DEPTH * BLOCK as u64;
            // The write before from there may have no end yet, though its message has come.
            match ours.write_at(at as usize, &pattern(BLOCK, posted)) {
                Ok(()) => {}
                Err(Error::Memory(_)) => {
                    match endpoint.next_event(Some(std::time::Duration::from_millis(1)))? {
                        Some(Event::Received(_)) => confirmed += 1,
                        Some(Event::Sent { end, .. }) => end?,
                        _ => {}
                    }
                    continue;
                }
                Err(other) => return Err(other.into()),
            }
            let note = posted.to_le_bytes();
            let how = RemoteOptions { silent: true, message: Some(&note), ..Default::default() };
            endpoint.write(partner, &ours, at, &remote, at, BLOCK as u64, &how)?;
            posted += 1;
        } else {
            receive(&endpoint)?;
            confirmed += 1;
        }
    }
    let how = RemoteOptions { blocking: true, fence: true, ..Default::default() };
    endpoint.read(partner, &ours, 0, &remote, 0, BLOCK as u64, &how)?;
    let mut back = vec![0; BLOCK];
    ours.read_at(0, &mut back)?;
    assert_eq!(back, pattern(BLOCK, BLOCKS - DEPTH));
    let beyond = endpoint.write(partner, &ours, 0, &remote, BLOCK as u64 * DEPTH - 1, 2, &how);
    assert!(matches!(beyond, Err(Error::Failed(Failure::RemoteAccess(_)))), "{beyond:?}");
    println!("{BLOCKS} blocks written, one read back");
    endpoint.disconnect(partner)?;
    Ok(())
}
