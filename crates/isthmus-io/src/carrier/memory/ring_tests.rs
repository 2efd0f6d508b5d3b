use std::sync::Arc;

use super::*;

/// Memory for a ring, and the reader's position.
struct Area {
    words: Vec<AtomicU64>,
}

impl Area {
    fn new(capacity: u64) -> Arc<Self> {
        let words = (0..capacity / 8 + 1).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { words })
    }

    fn ends(&self) -> (Writer, Reader) {
        let capacity = (self.words.len() as u64 - 1) * 8;
        let data = NonNull::from(&self.words[1..]).cast();
        let place = RingMemory { data, capacity, head: NonNull::from(&self.words[0]) };
        // SAFETY: every test keeps the area while it has the ends, and takes them once.
        unsafe { (Writer::new(place), Reader::new(place)) }
    }
}

/// A number of rounds: Miri is slower by a factor of thousands.
fn few(natively: u64, by_miri: u64) -> u64 {
    if cfg!(miri) { by_miri } else { natively }
}

/// Numbers that look random, the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The byte at this position of the stream that all tests send.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn push(writer: &mut Writer, from: u64, len: usize, cut: usize) {
    let bytes: Vec<u8> = (from..from + len as u64).map(byte_at).collect();
    let (a, b) = bytes.split_at(cut.min(len));
    // SAFETY: both are parts of `bytes`.
    unsafe { writer.push_bytes(&[(a.as_ptr(), a.len()), (b.as_ptr(), b.len())], cut.is_multiple_of(2)) };
}

/// The contents of a short record of this length at this position.
fn words_at(from: u64, len: usize) -> (u8, [u64; WORDS]) {
    (byte_at(from), [from, len as u64, 0, u64::MAX - from])
}

fn push_short(writer: &mut Writer, from: u64, len: usize) {
    let bytes: Vec<u8> = (from..from + len as u64).map(byte_at).collect();
    let (bits, words) = words_at(from, len);
    writer.push_short(bits, words, &bytes);
}

/// Reads up to `most` bytes of the present record and compares them; returns how many.
fn pull(reader: &mut Reader, from: u64, most: u64) -> u64 {
    match reader.record().expect("sound") {
        None => 0,
        Some(Record::Bytes(left)) => {
            let n = left.min(most) as usize;
            let mut bytes = vec![0; n];
            // SAFETY: room for `n` bytes, and the record has as many.
            unsafe { reader.copy(bytes.as_mut_ptr(), n) };
            for (position, byte) in (from..).zip(&bytes) {
                assert_eq!(*byte, byte_at(position), "at {position}");
            }
            n as u64
        }
        Some(Record::Short(len)) => {
            assert_eq!(reader.words(), words_at(from, len as usize));
            let mut bytes = vec![0; len as usize];
            // SAFETY: room for as many as the record has.
            unsafe { reader.copy(bytes.as_mut_ptr(), bytes.len()) };
            assert!((from..).zip(&bytes).all(|(position, byte)| *byte == byte_at(position)), "at {from}");
            len
        }
        Some(Record::Offered { for_good }) => match reader.take_lent(for_good).expect("sound") {
            true => pull(reader, from, most),
            // The writer was first.
            false => 0,
        },
        Some(Record::Lent { address, len }) => {
            assert_eq!(address, from, "what was lent at this point of the stream");
            let n = len.min(most);
            if !reader.is_in_place().expect("lent") {
                return 0;
            }
            reader.took(n);
            n
        }
        Some(Record::End) => panic!("no end was written"),
    }
}

#[test]
fn whatever_the_steps_the_stream_is_the_same() {
    for seed in 0..few(300, 2) {
        let mut dice = Dice(seed);
        let capacity = 256 << dice.below(5);
        let area = Area::new(capacity);
        let (mut writer, mut reader) = area.ends();
        let (mut sent, mut got) = (0, 0);
        let (mut lent, mut given) = (None, Vec::new());
        for _ in 0..few(2000, 300) {
            let tail = writer.tail();
            match dice.below(7) {
                6 => {
                    let read = writer.read_to().expect("sound");
                    given.retain(|(_, _, behind)| *behind > read);
                    if let Some(&(at, from, _)) = given.get(dice.below(4) as usize) {
                        // Elsewhere, as far as the reader knows.
                        writer.move_lent(at, from);
                    }
                }
                5 => {
                    if let Some((at, from, behind)) = lent.take()
                        && behind == tail
                    {
                        let back = writer.take_back(at);
                        assert_eq!(back, got < from || got == from && !reader.is_within());
                        sent = if back { from } else { sent };
                    }
                }
                4 => {
                    let len = dice.below(100);
                    if writer.room(len + WORDS_LEN).expect("sound") >= len + WORDS_LEN {
                        push_short(&mut writer, sent, len as usize);
                        sent += len;
                    }
                }
                0 => {
                    let wanted = 1 + dice.below(capacity);
                    let room = writer.room(wanted).expect("sound");
                    let len = wanted.min(room);
                    if len > 0 {
                        push(&mut writer, sent, len as usize, dice.below(len + 1) as usize);
                        sent += len;
                    }
                }
                1 => {
                    let len = 1 + dice.below(100_000);
                    let for_good = dice.below(2) == 0;
                    if writer.push_lent(sent, len, for_good).expect("sound") {
                        let place = (tail, sent, writer.tail());
                        if for_good {
                            given.push(place);
                        } else {
                            lent = Some(place);
                        }
                        sent += len;
                    }
                }
                2 => got += pull(&mut reader, got, 1 + dice.below(capacity)),
                _ => {
                    reader.tell();
                }
            }
            assert!(writer.tail() - writer.read_to().expect("sound") <= capacity - LAST);
        }
        writer.push_end();
        let mut steps = 0;
        while got < sent || matches!(reader.record(), Ok(Some(Record::Short(0)))) {
            let n = pull(&mut reader, got, u64::MAX);
            got += n;
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: {got} of {sent} bytes");
        }
        assert_eq!(reader.record(), Ok(Some(Record::End)));
        reader.took(0);
        assert_eq!(reader.record(), Ok(None));
        assert!(reader.tell());
        assert_eq!(writer.is_empty(), Ok(true));
    }
}

#[test]
fn a_message_of_few_bytes_is_one_line() {
    let area = Area::new(4096);
    let (mut writer, mut reader) = area.ends();
    for (len, lines) in [(0, 1), (24, 1), (25, 2)] {
        let before = writer.tail();
        push_short(&mut writer, before, len);
        assert_eq!(writer.tail() - before, lines * LINE);
        let mut bytes = [0; 32];
        assert_eq!(reader.take_short(&mut bytes), Some((words_at(before, len), len as u64)));
        assert!((before..).zip(&bytes[..len]).all(|(position, byte)| *byte == byte_at(position)));
    }
    assert_eq!(reader.take_short(&mut [0; 32]), None);
}

#[test]
fn two_threads_agree_on_every_byte() {
    let total = few(4 << 20, 24 << 10);
    let area = Area::new(4096);
    let (mut writer, mut reader) = area.ends();
    let keep = area.clone();
    let sender = std::thread::spawn(move || {
        let (mut dice, mut sent) = (Dice(7), 0);
        while sent < total {
            let wanted = (1 + dice.below(700)).min(total - sent);
            let needed = wanted + WORDS_LEN;
            if writer.room(needed).expect("sound") < needed {
                std::thread::yield_now();
                continue;
            }
            match dice.below(3) {
                0 => push(&mut writer, sent, wanted as usize, 3),
                1 => {
                    let (at, for_good) = (writer.tail(), dice.below(2) == 0);
                    assert!(writer.push_lent(sent, wanted, for_good).expect("sound"));
                    std::hint::spin_loop();
                    if for_good {
                        writer.move_lent(at, sent);
                    } else if writer.take_back(at) {
                        continue;
                    }
                }
                _ => push_short(&mut writer, sent, wanted as usize),
            }
            sent += wanted;
        }
        drop(keep);
    });
    let mut got = 0;
    while got < total {
        let mut bytes = [0; 701];
        let n = match reader.take_short(&mut bytes) {
            Some((said, len)) => {
                assert_eq!(said, words_at(got, len as usize));
                let bytes = &bytes[..len as usize];
                assert!((got..).zip(bytes).all(|(position, byte)| *byte == byte_at(position)), "at {got}");
                len
            }
            None => pull(&mut reader, got, 513),
        };
        if n == 0 {
            std::thread::yield_now();
        }
        got += n;
        reader.tell();
    }
    sender.join().expect("a writer");
    drop(area);
}

#[test]
fn nonsense_is_noticed_and_read_within_the_ring() {
    for seed in 0..few(2000, 20) {
        let mut dice = Dice(seed);
        let area = Area::new(256);
        for word in &area.words {
            let (bits, kind, len) = (dice.below(2), dice.below(9), dice.below(400));
            word.store(
                if dice.below(8) == 0 { dice.below(u64::MAX) } else { bits << 40 | kind << 32 | len },
                Ordering::Relaxed,
            );
        }
        let (mut writer, mut reader) = area.ends();
        for _ in 0..50 {
            let Ok(Some(record)) = reader.record() else { break };
            if let Record::Offered { for_good } = record {
                // A loan may be nonsense too; taking it finds that out.
                if reader.take_lent(for_good).is_err() {
                    break;
                }
            } else if let Record::Bytes(len) | Record::Short(len) = record {
                // A ring may be shorter than a record claims to be.
                let n = len.min(256) as usize;
                let mut bytes = vec![0; n];
                // SAFETY: room for `n` bytes.
                unsafe { reader.copy(bytes.as_mut_ptr(), n) };
            } else {
                reader.took(u64::MAX);
            }
        }
        let head = area.words[0].load(Ordering::Relaxed);
        assert_eq!(writer.read_to(), if head == 0 { Ok(0) } else { Err(Broken) });
    }
}

#[test]
fn a_reader_that_goes_back_or_ahead_is_noticed() {
    let area = Area::new(1024);
    let (mut writer, _) = area.ends();
    push(&mut writer, 0, 100, 50);
    area.words[0].store(64, Ordering::Relaxed);
    assert_eq!(writer.read_to(), Ok(64));
    area.words[0].store(56, Ordering::Relaxed);
    assert_eq!(writer.read_to(), Err(Broken));
    area.words[0].store(writer.tail() + 8, Ordering::Relaxed);
    assert_eq!(writer.room(u64::MAX), Err(Broken));
}
