use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::super::segment::RING;
use super::*;

fn pair(reach: bool) -> (MemoryLink, MemoryLink) {
    let (own, _file, name) = Segment::create().expect("memory");
    let other = Segment::open(name).expect("found");
    assert!(own.is_taken());
    let of = |segment: Segment| {
        let neighbour = segment.neighbour();
        let reaches = reach && neighbour.is_accessible();
        MemoryLink::new(segment, neighbour, reaches)
    };
    (of(own), of(other))
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Reads into two pieces; returns what came.
fn read(link: &mut MemoryLink, to: &mut [u8], cut: usize) -> Transfer {
    let (a, b) = to.split_at_mut(cut);
    // SAFETY: the pieces are parts of `to`.
    unsafe { link.read(&mut [iovec(a), iovec(b)]) }
}

/// Sends pieces and reads them at the other end, in one thread; the writer comes only every `seldom` reads.
fn cross(reach: bool, lens: &[usize], seldom: usize, alone: bool) {
    let (mut a, mut b) = pair(reach);
    b.patience = Duration::ZERO;
    b.segment.ask_to_copy_alone(alone);
    let lent = vec![true; lens.len()];
    let bytes: Vec<Vec<u8>> = lens.iter().map(|len| pattern(*len)).collect();
    let mut pieces: Vec<libc::iovec> = bytes.iter().map(|bytes| iovec(bytes)).collect();
    let wanted = bytes.concat();
    let mut got = vec![0; wanted.len() + 1];
    let (mut done, mut first) = (0, 0);
    for round in 0..100_000 {
        if round % seldom > 0 {
        } else if first < pieces.len() {
            // SAFETY: `bytes` lasts.
            match unsafe { a.write(&pieces[first..], &lent[first..]) } {
                Transfer::Bytes(mut n) => {
                    while n > 0 {
                        let piece = &mut pieces[first];
                        let part = n.min(piece.iov_len);
                        piece.iov_base = piece.iov_base.wrapping_byte_add(part);
                        (piece.iov_len, n) = (piece.iov_len - part, n - part);
                        first += usize::from(piece.iov_len == 0);
                    }
                }
                Transfer::Blocked => {}
                Transfer::Failed(error) => panic!("{error}"),
            }
        } else {
            a.finish();
        }
        let cut = (got.len() - done) / 2;
        match read(&mut b, &mut got[done..], cut) {
            Transfer::Bytes(0) => break,
            Transfer::Bytes(n) => done += n,
            Transfer::Blocked => {}
            Transfer::Failed(error) => panic!("{error}"),
        }
    }
    assert_eq!((done, first), (wanted.len(), pieces.len()));
    assert!(got[..done] == wanted[..], "bytes differ");
}

#[test]
fn what_is_written_is_read_whether_its_writer_is_there_or_not() {
    for (reach, seldom) in [(true, 1), (true, 9), (true, 100), (false, 1), (false, 100)] {
        for alone in [false, true] {
            cross(reach, &[60, 8, 100_000, 40, LEND_MIN, LEND_MIN - 1, 200_000, 20_000, 7], seldom, alone);
            cross(reach, &[3 << 20, 2 << 20, 1], seldom, alone);
            cross(reach, &[20; 40], seldom, alone);
            cross(reach, &[LONG_MIN; 3_000], seldom, alone);
            cross(reach, &[], seldom, alone);
        }
    }
}

/// Writes more than the ring has room for; returns how much went there.
fn fill(link: &mut MemoryLink, bytes: &[u8]) -> usize {
    // SAFETY: the caller keeps the bytes.
    let Transfer::Bytes(in_ring) = (unsafe { link.write(&[iovec(bytes)], &[]) }) else { panic!("no room") };
    assert!(in_ring < bytes.len() - LEND_MIN);
    in_ring
}

#[test]
fn what_is_lent_counts_as_written_only_when_it_was_read() {
    let (mut a, mut b) = pair(true);
    b.patience = Duration::ZERO;
    let bytes = pattern(400_000);
    let mut got = vec![0; 400_001];
    let in_ring = fill(&mut a, &bytes);
    if !a.segment.is_reached() {
        eprintln!("skipped: the system does not permit to read processes' memory");
        return;
    }
    assert!(!a.is_writable());
    assert!(matches!(read(&mut b, &mut got, 10), Transfer::Bytes(n) if n == in_ring));
    assert!(
        matches!(read(&mut b, &mut got[in_ring..], 10), Transfer::Bytes(n) if n == bytes.len() - in_ring)
    );
    assert!(got[..bytes.len()] == bytes && a.is_writable());
    // SAFETY: `bytes` is kept.
    let done = unsafe { a.write(&[iovec(&bytes[in_ring..])], &[]) };
    assert!(matches!(done, Transfer::Bytes(n) if n == bytes.len() - in_ring), "{done:?}");
    assert!(matches!(read(&mut b, &mut got, 10), Transfer::Blocked));
}

#[test]
fn what_is_lent_is_its_writers_for_a_while() {
    let (mut a, mut b) = pair(true);
    b.patience = Duration::MAX;
    let bytes = pattern(400_000);
    let mut got = vec![0; 400_001];
    let mut done = fill(&mut a, &bytes);
    let Transfer::Bytes(mut came) = read(&mut b, &mut got, 10) else { panic!("nothing came") };
    while done < bytes.len() {
        assert!(matches!(read(&mut b, &mut got[came..], 10), Transfer::Blocked));
        assert!(a.is_writable(), "there is room again");
        // SAFETY: `bytes` is kept.
        let Transfer::Bytes(n) = (unsafe { a.write(&[iovec(&bytes[done..])], &[]) }) else {
            panic!("no room")
        };
        done += n;
        let Transfer::Bytes(n) = read(&mut b, &mut got[came..], 10) else { panic!("nothing came") };
        came += n;
    }
    assert_eq!(came, done);
    assert!(got[..done] == bytes);
}

/// Both ends sleep whenever they may; each is woken in time.
#[test]
fn who_sleeps_is_woken() {
    const ROUNDS: usize = 3000;
    let (a, b) = pair(false);
    let (wake_a, a_wakes) = mpsc::channel();
    let (wake_b, b_wakes) = mpsc::channel();
    let wait = |link: &mut MemoryLink, bell: &mpsc::Receiver<()>| {
        if link.doze() {
            bell.recv_timeout(Duration::from_secs(60)).expect("woken");
        }
        link.rouse();
    };
    let bytes = Arc::new(pattern(90_000));
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || {
        let mut a = a;
        for round in 0..ROUNDS {
            let len = 1 + round * 29 % sent.len();
            let mut done = 0;
            while done < len {
                // SAFETY: `sent` lasts.
                match unsafe { a.write(&[iovec(&sent[done..len])], &[]) } {
                    Transfer::Bytes(n) => done += n,
                    Transfer::Blocked => wait(&mut a, &a_wakes),
                    Transfer::Failed(error) => panic!("{error}"),
                }
                if a.take_ring() {
                    let _ = wake_b.send(());
                }
            }
        }
        a
    });
    let mut b = b;
    let mut got = vec![0; bytes.len()];
    for round in 0..ROUNDS {
        let len = 1 + round * 29 % bytes.len();
        let mut done = 0;
        while done < len {
            match read(&mut b, &mut got[done..len], 0) {
                Transfer::Bytes(n) => done += n,
                Transfer::Blocked => wait(&mut b, &b_wakes),
                Transfer::Failed(error) => panic!("{error}"),
            }
            if b.take_ring() {
                let _ = wake_a.send(());
            }
        }
        assert!(got[..len] == bytes[..len], "round {round}");
    }
    drop(writer.join().expect("a writer"));
}

#[test]
fn memory_that_was_given_back_is_used_again() {
    let (mut a, mut b) = pair(false);
    let bytes = pattern(10_000);
    let mut got = vec![0; 10_000];
    for _ in 0..30 {
        // SAFETY: `bytes` lasts.
        assert!(matches!(unsafe { a.write(&[iovec(&bytes)], &[]) }, Transfer::Bytes(10_000)));
        a.rest(); // nothing was read yet: nothing happens
        assert!(matches!(read(&mut b, &mut got, 1), Transfer::Bytes(10_000)));
        assert!(got == bytes);
        a.rest();
        assert!(matches!(read(&mut b, &mut got, 1), Transfer::Blocked));
    }
}

#[test]
fn a_neighbour_that_is_gone_is_an_error_after_what_it_wrote() {
    let (mut a, mut b) = pair(false);
    let mut got = [0; 100];
    // SAFETY: a constant.
    assert!(matches!(unsafe { a.write(&[iovec(b"last words")], &[]) }, Transfer::Bytes(10)));
    b.part();
    assert!(b.is_readable());
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(10)));
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Failed(_)));
}

#[test]
fn what_is_lent_by_somebody_out_of_reach_breaks_the_lane() {
    let (mut a, mut b) = pair(false);
    b.patience = Duration::ZERO;
    a.writer.push_lent(4096, 100_000, false).expect("room");
    assert!(matches!(read(&mut b, &mut [0; 100], 0), Transfer::Failed(_)));
    let (mut a, mut b) = pair(true);
    b.patience = Duration::ZERO;
    a.writer.push_lent(8, 100_000, false).expect("room");
    assert!(matches!(read(&mut b, &mut [0; 100], 0), Transfer::Failed(_)), "nothing is at that address");
}

/// Two ends: one lends pieces for good, since the other wants to copy them alone. `None` where the system forbids it.
fn lending() -> Option<(MemoryLink, MemoryLink)> {
    let (a, b) = pair(true);
    b.segment.ask_to_copy_alone(true);
    if a.segment.is_reached() {
        return Some((a, b));
    }
    eprintln!("skipped: the system does not permit to read processes' memory");
    None
}

/// Writes a whole batch of lent memory; returns whether it is in use.
fn lend(link: &mut MemoryLink, bytes: &[u8]) -> bool {
    // SAFETY: the tests keep the bytes until they are returned.
    let written = unsafe { link.write(&[iovec(bytes)], &[true]) };
    assert!(matches!(written, Transfer::Bytes(n) if n == bytes.len()), "{written:?}");
    link.close_batch()
}

#[test]
fn what_is_lent_for_good_is_written_at_once_and_returned_in_order_once_it_was_read() {
    let Some((mut a, mut b)) = lending() else { return };
    let (long, little) = (pattern(LONG_MIN), pattern(100));
    let mut got = vec![0; LONG_MIN + 1];
    assert!(!lend(&mut a, &little), "it is in the ring");
    assert!(lend(&mut a, &long) && lend(&mut a, &long) && !lend(&mut a, &little));
    assert_eq!((a.take_returned(), a.doze()), ((0, true), true));
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(100)));
    assert!(b.take_ring() && a.doze(), "whoever waits looks whether it was what it waits for");
    for left in [true, false] {
        assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(LONG_MIN)));
        assert!(got[..LONG_MIN] == long);
        assert!(b.take_ring() && !a.doze(), "who lends and sleeps is woken");
        assert_eq!(a.take_returned(), (1, left));
        assert!(a.doze());
    }
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(100)));
}

#[test]
fn what_is_wanted_back_is_read_as_it_was_lent() {
    let Some((mut a, mut b)) = lending() else { return };
    let mut sent: Vec<Vec<u8>> = (1..5).map(|times| pattern(times * LONG_MIN)).collect();
    let wanted = sent.concat();
    assert!(sent.iter().all(|bytes| lend(&mut a, bytes)));
    let mut got = vec![0; wanted.len() + 1];
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(LONG_MIN)));
    assert_eq!(a.take_returned(), (1, true));
    // The neighbour is in the middle of one.
    assert!(matches!(read(&mut b, &mut got[LONG_MIN..][..100], 0), Transfer::Bytes(100)));
    a.recall(3);
    assert_eq!(a.take_returned(), (2, true), "the program has them back");
    sent[1..3].iter_mut().for_each(|bytes| bytes.fill(0));
    let mut came = LONG_MIN + 100;
    while let Transfer::Bytes(n) = read(&mut b, &mut got[came..], 0) {
        came += n;
    }
    assert!(came == wanted.len() && got[..came] == wanted);
    assert_eq!(a.take_returned(), (1, false));
    a.recall(4);
}

#[test]
fn what_was_read_is_not_taken_for_what_lies_in_its_place_by_now() {
    let Some((mut a, mut b)) = lending() else { return };
    let (long, last, mut got) = (pattern(LONG_MIN), vec![5; LONG_MIN], vec![0; LONG_MIN]);
    let mut count = 0;
    while count == 0 || !a.writer.tail().is_multiple_of(RING as u64) {
        assert!(lend(&mut a, &long));
        assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(LONG_MIN)));
        count += 1;
    }
    assert!(lend(&mut a, &last));
    a.recall(count);
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Bytes(LONG_MIN)));
    assert!(got.iter().all(|byte| *byte == 5));
    assert_eq!(a.take_returned(), (count as usize + 1, false));
}

#[test]
fn of_a_lane_that_ends_nothing_is_read_that_was_lent() {
    let Some((mut a, mut b)) = lending() else { return };
    let (long, mut got) = (pattern(LONG_MIN), vec![0; LONG_MIN]);
    assert!(lend(&mut a, &long));
    drop(a);
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Blocked));
    let Some((mut a, mut b)) = lending() else { return };
    assert!(lend(&mut a, &long));
    assert!(matches!(read(&mut b, &mut got[..100], 0), Transfer::Bytes(100)));
    drop(a);
    assert!(matches!(read(&mut b, &mut got, 0), Transfer::Failed(_)));
}

#[test]
fn both_ways_are_tried_on_what_comes() {
    let (mut a, mut b) = pair(true);
    if !a.segment.is_reached() {
        eprintln!("skipped: the system does not permit to read processes' memory");
        return;
    }
    let (long, mut got) = (pattern(LONG_MIN), vec![0; LONG_MIN]);
    // Pauses do not count, however busy the host is.
    for way in [false, true] {
        let mut pieces = 0;
        while a.segment.other_copies_alone() == way {
            assert_eq!(lend(&mut a, &long), way);
            while !matches!(read(&mut b, &mut got, 0), Transfer::Blocked) {}
            a.take_returned();
            pieces += 1;
            if way && pieces == 1_000 {
                return; // it is the quicker one here
            }
            assert!(pieces < 100_000);
        }
    }
}

#[test]
fn only_what_was_made_for_it_is_taken() {
    use super::super::segment::Name;
    let (own, file, name) = Segment::create().expect("memory");
    assert!(Segment::open(Name { nonce: name.nonce ^ 1, ..name }).is_err());
    assert!(!own.is_taken());
    assert!(Segment::open(Name { fd: 0, ..name }).is_err());
    assert!(Segment::open(Name { pid: u32::MAX, ..name }).is_err());
    assert!(Segment::open(name).is_ok() && own.is_taken());
    drop(file);
    assert!(Segment::open(name).is_err());
    assert_eq!(Name::from_bytes(&name.to_bytes()), Some(name));
    assert_eq!(Name::from_bytes(&[0; 15]), None);
}

fn short(seq: u64, payload: &[u8]) -> Message {
    let len = payload.len() as u64;
    message_of((3, [seq, seq * 5, !seq, seq << 60]), len)
}

/// Writes a short message, and appends its bytes as a frame to `out`.
fn write_short(link: &mut MemoryLink, seq: u64, payload: &[u8], out: &mut Vec<u8>) {
    let message = short(seq, payload);
    link.write_short(&message, payload);
    link.ring_if_asleep();
    out.extend_from_slice(&message.to_bytes());
    out.extend_from_slice(payload);
}

#[test]
fn short_messages_are_read_in_order_with_the_rest_one_way_or_the_other() {
    let bytes = pattern(3 * FAIR);
    for plainly in [false, true] {
        let (mut a, mut b) = pair(false);
        let mut to = vec![0; 2 * FAIR];
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let mut take = |b: &mut MemoryLink, got: &mut Vec<u8>| {
            if let Some(message) = (!plainly).then(|| b.take_short(&mut to)).flatten() {
                got.extend_from_slice(&message.to_bytes());
                got.extend_from_slice(&to[..message.payload as usize]);
            } else if plainly {
                let Transfer::Bytes(n) = read(b, &mut to, 0) else { return false };
                got.extend_from_slice(&to[..n]);
            } else {
                let n = b.read_short(&mut to).expect("sound");
                got.extend_from_slice(&to[..n]);
                b.tell();
                return n > 0;
            }
            b.tell();
            true
        };
        for (i, part) in bytes.chunks(100).enumerate() {
            if i % 3 == 0 {
                sent.extend_from_slice(part);
                // SAFETY: `bytes` lasts.
                let written = unsafe { a.write(&[iovec(part)], &[]) };
                assert!(matches!(written, Transfer::Bytes(n) if n == part.len()));
            } else {
                write_short(&mut a, i as u64, part, &mut sent);
            }
            if i % 7 == 0 {
                take(&mut b, &mut got);
            }
        }
        write_short(&mut a, 1, b"", &mut sent);
        while take(&mut b, &mut got) {}
        assert!(got == sent, "plainly: {plainly}");
    }
}

#[test]
fn there_is_room_for_a_short_message_once_the_reader_has_told() {
    let (mut a, mut b) = pair(false);
    let bytes = pattern(FAIR);
    let mut to = vec![0; 2 * FAIR];
    while a.has_room(FAIR + Message::LEN) {
        write_short(&mut a, 1, &bytes, &mut Vec::new());
    }
    while b.take_short(&mut to).is_some() {}
    assert!(!a.has_room(FAIR + Message::LEN));
    b.tell();
    assert!(a.has_room(FAIR + Message::LEN));
    a.finish();
    assert!(!a.has_room(1), "nothing is written after the end");
}

#[test]
fn a_short_message_where_there_is_no_room_for_one_breaks_the_lane() {
    let (mut a, mut b) = pair(false);
    write_short(&mut a, 1, b"eight by", &mut Vec::new());
    assert!(matches!(read(&mut b, &mut [0; 20], 0), Transfer::Failed(_)));
}

#[test]
fn a_spot_shows_what_comes() {
    let (mut a, mut b) = pair(false);
    let (spot, mut to) = (Spot::default(), [0; 100]);
    assert!(!spot.has_news());
    for seq in 0..3 {
        assert!(b.show(&spot) && !spot.has_news());
        write_short(&mut a, seq, b"word", &mut Vec::new());
        assert!(spot.has_news());
        assert!(b.take_short(&mut to).is_some());
    }
    // SAFETY: a constant.
    unsafe { a.write(&[iovec(b"a part")], &[]) };
    assert_eq!(b.read_short(&mut to[..2]).expect("sound"), 2);
    assert!(!b.show(&spot), "the rest of it does not show");
}
