use isthmus_proto::{Channel, Completion, CompletionKind, OpError};

use super::*;
use crate::abi::{
    FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED, fi_cq_tagged_entry,
};
use crate::flags::*;

fn received(context: u64) -> Completion {
    let kind = CompletionKind::Recv(Channel::Tagged);
    Completion { len: 40, data: Some(5), tag: 77, ..Completion::of(kind, context, true) }
}

fn queue(format: fi_cq_format) -> Queue {
    Queue::new(format, 8, false).expect("a queue")
}

/// Reads with room to spare, and gives the words that were written.
fn read(queue: &Queue, count: usize) -> (Result<isize, Error>, Vec<u64>) {
    let mut out = vec![u64::MAX; 64];
    // SAFETY: room for ten entries of the longest format.
    let result = unsafe { queue.read(out.as_mut_ptr().cast(), count.min(10), std::ptr::null_mut()) };
    out.truncate(out.iter().rposition(|&word| word != u64::MAX).map_or(0, |last| last + 1));
    (result, out)
}

#[test]
fn every_format_is_a_beginning_of_the_longest() {
    let flags = FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA;
    let words = [9, flags, 40, 0, 5, 77];
    let lengths =
        [(FI_CQ_FORMAT_CONTEXT, 1), (FI_CQ_FORMAT_MSG, 3), (FI_CQ_FORMAT_DATA, 5), (FI_CQ_FORMAT_TAGGED, 6)];
    for (format, length) in lengths {
        let queue = queue(format);
        queue.filling().push(Entry::new(&mut received(9), FI_ADDR_NOTAVAIL), None);
        let (result, out) = read(&queue, 1);
        assert_eq!((result.expect("an entry"), out.as_slice()), (1, &words[..length]));
    }
}

#[test]
fn reading_stops_before_an_error_and_then_asks_to_read_that() {
    let queue = queue(FI_CQ_FORMAT_CONTEXT);
    queue.filling().push(Entry::new(&mut received(1), 0), None);
    queue
        .filling()
        .push(Entry::new(&mut Completion { error: Some(OpError::Cancelled), ..received(2) }, 0), None);
    queue.filling().push(Entry::new(&mut received(3), 0), None);
    assert_eq!(read(&queue, 10).1, [1]);
    assert!(matches!(read(&queue, 10).0, Err(Error::EntryFailed)));
    let failed = queue.take_error().expect("an error");
    assert_eq!(failed.tagged.op_context as u64, 2);
    assert!(queue.take_error().is_none());
    assert_eq!(read(&queue, 10).1, [3]);
    assert!(matches!(read(&queue, 10).0, Err(Error::Again)));
}

#[test]
fn what_comes_after_a_post_is_told_by_the_second_read_after_it() {
    let queue = queue(FI_CQ_FORMAT_CONTEXT);
    queue.filling().push(Entry::new(&mut received(1), 0), None);
    queue.note_post();
    queue.filling().push(Entry::new(&mut received(2), 0), None);
    queue.fill([Entry::new(&mut received(3), 0)].into_iter());
    assert_eq!(read(&queue, 10).1, [1]);
    assert_eq!(read(&queue, 10).1, [2, 3]);
    queue.note_post();
    queue.filling().push(Entry::new(&mut received(4), 0), None);
    assert!(matches!(read(&queue, 10).0, Err(Error::Again)));
    assert_eq!(read(&queue, 10).1, [4]);
    queue.filling().push(Entry::new(&mut received(5), 0), None);
    queue.note_post();
    assert_eq!(read(&queue, 10).1, [5]);
}

#[test]
fn sources_are_told_beside_the_entries() {
    let queue = queue(FI_CQ_FORMAT_CONTEXT);
    queue.filling().push(Entry::new(&mut received(1), 4), None);
    let (mut out, mut source) = (0u64, 0);
    // SAFETY: room for one entry and one number.
    let result = unsafe { queue.read((&raw mut out).cast(), 1, &raw mut source) };
    assert_eq!((result.expect("an entry"), out, source), (1, 1, 4));
}

#[test]
fn the_end_of_a_shared_buffer_carries_no_message() {
    let queue = queue(FI_CQ_FORMAT_MSG);
    queue.filling().push(Entry::released(6), None);
    assert_eq!(read(&queue, 1).1, [6, FI_MULTI_RECV, 0]);
}

#[test]
fn a_sleeper_is_woken_by_news_by_a_signal_and_by_time() {
    let queue = Arc::new(Queue::new(FI_CQ_FORMAT_TAGGED, 8, true).expect("a queue"));
    let sleep = |queue: &Queue, timeout| {
        let mut out = std::mem::MaybeUninit::<fi_cq_tagged_entry>::uninit();
        let deadline = Deadline::after(timeout);
        // SAFETY: room for one entry.
        unsafe { queue.read_waiting(out.as_mut_ptr().cast(), 1, std::ptr::null_mut(), deadline) }
    };
    assert!(matches!(sleep(&queue, 5), Err(Error::Again)));
    let other = queue.clone();
    let sleeper = std::thread::spawn(move || sleep(&other, -1));
    queue.filling().push(Entry::new(&mut received(1), 0), None);
    assert_eq!(sleeper.join().expect("no panic").expect("an entry"), 1);
    let other = queue.clone();
    let sleeper = std::thread::spawn(move || sleep(&other, -1));
    queue.signal();
    assert!(matches!(sleeper.join().expect("no panic"), Err(Error::Again)));
}

#[test]
fn a_signal_keeps_who_waits_by_the_descriptor_awake_once() {
    let queue = Queue::new(FI_CQ_FORMAT_TAGGED, 8, true).expect("a queue");
    assert!(queue.try_wait().is_ok());
    queue.signal();
    assert!(matches!(queue.try_wait(), Err(Error::Again)));
    assert!(queue.try_wait().is_ok());
}

#[test]
fn texts_of_errors_are_found_by_their_number() {
    let queue = queue(FI_CQ_FORMAT_CONTEXT);
    let first = queue.keep_text("first".into());
    let text = |number| {
        // SAFETY: a terminated text that the queue keeps.
        unsafe { std::ffi::CStr::from_ptr(queue.text(number)) }.to_owned()
    };
    assert_eq!(text(first).as_c_str(), c"first");
    for _ in 0..TEXTS_KEPT {
        queue.keep_text("more".into());
    }
    assert_eq!(text(first).as_c_str(), c"unknown error");
}

#[test]
fn who_reads_gets_what_is_finished_in_its_turn_at_once_behind_nothing_else() {
    let (queue, other) = (queue(FI_CQ_FORMAT_CONTEXT), queue(FI_CQ_FORMAT_CONTEXT));
    let (mut out, mut sources) = ([0u64; 2], [0; 2]);
    let mut reading = Reading {
        queue: &queue,
        out: out.as_mut_ptr().cast(),
        room: 2,
        sources: sources.as_mut_ptr(),
        moved: 0,
    };
    other.filling().push(Entry::new(&mut received(9), 0), Some(&mut reading));
    queue.filling().push(Entry::new(&mut received(1), 5), Some(&mut reading));
    queue.filling().push(Entry::new(&mut received(2), 6), None);
    queue.filling().push(Entry::new(&mut received(3), 7), Some(&mut reading));
    assert_eq!(reading.moved, 1, "the third waits behind the second, the first is another's");
    assert_eq!((out, sources), ([1, 0], [5, 0]));
    assert_eq!((read(&queue, 10).1, read(&other, 10).1), (vec![2, 3], vec![9]));
}
