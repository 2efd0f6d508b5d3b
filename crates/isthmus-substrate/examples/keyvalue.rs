//! Key-value store: `keyvalue` keeps a table, into which puts come as messages; `keyvalue
//! URI` puts, and gets by reading the table's memory: the server's program has no part in it.

mod common;

use common::{Outcome, SILENT, accept, connect, open, other_side, receive};
use isthmus_substrate::{
    Access, Connection, Endpoint, Error, Event, Failure, Level, MemoryHandle, Region, RemoteOptions,
};

const SLOTS: u64 = 1024;
/// A key of 24 bytes, a value of 96, and a sum over both.
const ENTRY: usize = 128;
const BLOCKING: RemoteOptions<'_> =
    RemoteOptions { context: 0, silent: false, blocking: true, fence: false, message: None };

fn main() -> Outcome {
    match other_side() {
        None => serve(),
        Some(uri) => use_it(&uri),
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn entry(key: &str, value: &str) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..key.len()].copy_from_slice(key.as_bytes());
    out[24..24 + value.len()].copy_from_slice(value.as_bytes());
    let sum = hash(&out[..120]);
    out[120..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn key_of(entry: &[u8]) -> &[u8] {
    entry[..24].split(|byte| *byte == 0).next().unwrap_or_default()
}

fn serve() -> Outcome {
    let endpoint = open()?;
    println!("{}", endpoint.uri());
    let access = Access { remote_read: true, remote_write: false };
    let table = endpoint.register(SLOTS as usize * ENTRY, access)?;
    let client = accept(&endpoint)?;
    endpoint.send(client, &table.handle().to_bytes(), &SILENT)?;
    loop {
        match common::next(&endpoint)? {
            Event::Received(new) if new.len() == ENTRY => {
                let mut old = [0; ENTRY];
                let first = hash(key_of(&new)) % SLOTS;
                for at in (0..SLOTS).map(|i| ((first + i) % SLOTS) as usize * ENTRY) {
                    table.read_at(at, &mut old)?;
                    if old[0] == 0 || key_of(&old) == key_of(&new) {
                        table.write_at(at, &new)?;
                        break;
                    }
                }
                endpoint.send(client, b"ok", &SILENT)?;
            }
            Event::Disconnected { .. } => return Ok(()),
            other => return Err(format!("{other:?}").into()),
        }
    }
}

struct Store {
    endpoint: Endpoint,
    server: Connection,
    table: MemoryHandle,
    read: Region,
}

impl Store {
    fn put(&self, key: &str, value: &str) -> Outcome {
        self.endpoint.send(self.server, &entry(key, value), &SILENT)?;
        assert_eq!(&*receive(&self.endpoint)?, b"ok");
        Ok(())
    }

    fn get(&self, key: &str) -> Outcome<Option<String>> {
        let first = hash(key.as_bytes()) % SLOTS;
        let mut found = [0; ENTRY];
        for slot in (0..SLOTS).map(|i| (first + i) % SLOTS) {
            let at = slot * ENTRY as u64;
            self.endpoint.read(self.server, &self.read, 0, &self.table, at, ENTRY as u64, &BLOCKING)?;
            self.read.read_at(0, &mut found)?;
            if found[0] == 0 {
                return Ok(None);
            }
            assert_eq!(hash(&found[..120]).to_le_bytes(), found[120..], "one endpoint writes whole entries");
            if key_of(&found) == key.as_bytes() {
                let value = found[24..120].split(|byte| *byte == 0).next().unwrap_or_default();
                return Ok(Some(String::from_utf8(value.to_vec())?));
            }
        }
        Ok(None)
    }
}

fn use_it(uri: &str) -> Outcome {
    let endpoint = open()?;
    let server = connect(&endpoint, uri, Level::Ro)?;
    let handle = receive(&endpoint)?;
    let table = handle.first_chunk().and_then(MemoryHandle::from_bytes).ok_or("no handle")?;
    let read = endpoint.register(ENTRY, Access::default())?;
    let store = Store { endpoint, server, table, read };
    for i in 0..300 {
        store.put(&format!("key {i}"), &format!("value {}", i * i))?;
    }
    for i in 0..300 {
        assert_eq!(store.get(&format!("key {i}"))?, Some(format!("value {}", i * i)));
    }
    assert_eq!(store.get("no such key")?, None);
    let write = store.endpoint.write(server, &store.read, 0, &store.table, 0, 1, &BLOCKING);
    assert!(matches!(write, Err(Error::Failed(Failure::RemoteAccess(_)))), "the table is for reading");
    println!("300 values found");
    store.endpoint.disconnect(server)?;
    Ok(())
}
