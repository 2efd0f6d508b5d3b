//! Messages by datagrams, between endpoints of this process.

#[path = "support/waits.rs"]
mod waits;

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use isthmus_io::{Datagrams, PostError, Settings};
use isthmus_proto::{Channel, Completion, CompletionKind, OpError, Options, RecvRequest, SendRequest};
use isthmus_wire::{Address, SubnetId};

fn open() -> Datagrams {
    let settings = Settings { interface: "127.0.0.1".into(), ..Settings::default() };
    Datagrams::open(&settings, None).expect("loopback")
}

fn iov(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn options(context: u64) -> Options {
    Options { context, notify: true, ..Options::default() }
}

fn send(from: &Datagrams, to: &Address, bytes: &mut [u8], data: Option<u64>) -> Result<(), PostError> {
    let peer = from.peer(to)?;
    let request = SendRequest { peer, channel: Channel::Untagged, tag: 0, data, options: options(1) };
    // SAFETY: the buffer lives during the call.
    unsafe { from.send(&request, &[iov(bytes)]) }
}

fn recv(at: &Datagrams, context: u64, bytes: &mut [u8]) {
    let channel = Channel::Untagged;
    let request =
        RecvRequest { source: None, channel, tag: 0, ignore: 0, multi: None, options: options(context) };
    // SAFETY: the tests keep the buffers until they have seen the completions.
    unsafe { at.recv(&request, &[iov(bytes)]) }.expect("posted");
}

/// The next completion; on loopback nothing is lost that there is room for.
fn next(at: &Datagrams) -> Completion {
    let mut out = Vec::new();
    let start = Instant::now();
    while at.poll(&mut out) == 0 {
        waits::in_time(start.elapsed() < Duration::from_secs(60), || "nothing came");
        if at.arm() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(out.len(), 1);
    out.remove(0)
}

#[test]
fn a_message_comes_with_its_data_and_its_sender() {
    let (a, b) = (open(), open());
    let mut room = [0; 16];
    recv(&b, 7, &mut room);
    send(&a, &b.address(), &mut *b"hello".to_owned().as_mut_slice(), Some(9)).expect("sent");
    assert_eq!(next(&a).kind, CompletionKind::Send(Channel::Untagged));
    let got = next(&b);
    assert_eq!((got.context, got.len, got.data, got.error), (7, 5, Some(9), None));
    assert_eq!(b.source(got.peer.expect("a sender")), Some(a.address()));
    assert_eq!(&room[..6], b"hello\0");
}

#[test]
fn what_does_not_fit_is_cut_and_told() {
    let (a, b) = (open(), open());
    let mut room = [0; 3];
    recv(&b, 7, &mut room);
    send(&a, &b.address(), &mut [5; 10], None).expect("sent");
    let got = next(&b);
    assert_eq!((got.len, got.error), (3, Some(OpError::Truncated { sent: 10, room: 3 })));
}

#[test]
fn who_was_there_before_gets_nothing_meant_for_another() {
    let (a, b) = (open(), open());
    let former = Address { incarnation: b.address().incarnation ^ 1, ..b.address() };
    let whoever = Address::from(b.address().locator);
    let mut room = [0; 16];
    recv(&b, 7, &mut room);
    send(&a, &former, &mut [1], None).expect("sent");
    send(&a, &whoever, &mut [2], None).expect("sent");
    assert_eq!((next(&b).len, room[0]), (1, 2));
}

#[test]
fn strangers_and_long_messages_are_refused() {
    let (a, b) = (open(), open());
    let far = Address { subnet: SubnetId(9), ..b.address() };
    assert!(matches!(send(&a, &far, &mut [1], None), Err(PostError::Unreachable(_))));
    let max = Datagrams::message_max_at(Ipv4Addr::LOCALHOST.into());
    let mut room = vec![0; max];
    recv(&b, 7, &mut room);
    assert!(matches!(send(&a, &b.address(), &mut vec![0; max + 1], None), Err(PostError::Invalid(_))));
    UdpSocket::bind("127.0.0.1:0").and_then(|s| s.send_to(&[0; 40], b.address().locator)).expect("noise");
    send(&a, &b.address(), &mut vec![3; max], None).expect("the longest");
    assert_eq!((next(&b).len, room[max - 1]), (max as u64, 3));
}

#[test]
fn a_cancelled_receive_says_so_and_its_buffer_is_free() {
    let (a, b) = (open(), open());
    let (mut first, mut second) = ([0; 4], [0; 4]);
    recv(&b, 1, &mut first);
    recv(&b, 2, &mut second);
    assert!(b.cancel(1) && !b.cancel(1));
    assert_eq!((next(&b).context, b.cancel(9)), (1, false));
    send(&a, &b.address(), &mut [8], None).expect("sent");
    assert_eq!((next(&b).context, first[0], second[0]), (2, 0, 8));
}

#[test]
fn a_peer_that_is_gone_is_a_loss_and_no_error() {
    let a = open();
    let gone = open().address();
    for _ in 0..5 {
        send(&a, &gone, &mut [1], None).expect("nobody promises more");
        assert_eq!(next(&a).error, None);
    }
}
