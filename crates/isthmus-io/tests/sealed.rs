//! Lanes that are sealed with nothing set up, over real sockets.

mod support;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use isthmus_io::{Encrypt, Endpoint, Settings, Transport};
use support::*;

fn open_with(encrypt: Encrypt, transport: Transport) -> Arc<Endpoint> {
    let settings = Settings { encrypt, transport, fabric: "off".to_owned(), ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// Messages of many sizes, both ways at once.
fn talk(a: &Endpoint, b: &Endpoint) {
    let (to_b, to_a) = (a.peer(&b.address()).expect("known"), b.peer(&a.address()).expect("known"));
    for (tag, len) in [0, 1, 8_192, 16_384, 16_385, 100_000, 9 << 20].into_iter().enumerate() {
        let tag = tag as u64;
        let (mut there, mut back) = (pattern(len, 1), pattern(len, 2));
        let (mut got_there, mut got_back) = (vec![0; len], vec![0; len]);
        recv(b, None, tag, &mut got_there);
        send(b, to_a, tag, &mut back);
        send(a, to_b, tag, &mut there);
        recv(a, None, tag, &mut got_back);
        let done = complete(&[a, b], 4);
        assert!(done.iter().all(|c| c.error.is_none() && c.len == len as u64), "{done:?}");
        assert!(there == got_there && back == got_back, "{len} bytes differ");
    }
}

#[test]
fn messages_of_many_sizes_arrive_whole_and_lanes_say_what_they_are() {
    for (transport, encrypt, name) in [
        (Transport::Tcp, Encrypt::Never, "TCP"),
        (Transport::Tcp, Encrypt::Always, "TCP, encrypted"),
        // Within a host it is near.
        (Transport::Tcp, Encrypt::Far, "TCP"),
        (Transport::UdpEverywhere, Encrypt::Always, "UDP, encrypted"),
        (Transport::UdpEverywhere, Encrypt::Never, "UDP, encrypted"),
        (Transport::UdpEverywhere, Encrypt::Far, "UDP, encrypted"),
    ] {
        let (a, b) = (open_with(encrypt, transport), open_with(encrypt, transport));
        talk(&a, &b);
        let names = [a.carriers(), b.carriers()].concat();
        assert!(!names.is_empty() && names.iter().all(|carrier| carrier == name), "{encrypt:?}: {names:?}");
        let lost = a.counters().lanes_lost + b.counters().lanes_lost;
        assert_eq!(lost, 0, "{encrypt:?} by {name}: {:?}", [a.counters(), b.counters()]);
        a.close();
        b.close();
    }
}

#[test]
fn who_wants_all_lanes_sealed_refuses_a_plain_one_and_says_so() {
    let (plain, strict) =
        (open_with(Encrypt::Never, Transport::Tcp), open_with(Encrypt::Always, Transport::Tcp));
    let to = plain.peer(&strict.address()).expect("known");
    let mut bytes = vec![1; 1 << 20];
    send(&plain, to, 1, &mut bytes);
    let done = complete(&[&plain, &strict], 1);
    let text = done[0].error.as_ref().expect("it is refused").to_string();
    assert!(text.contains("FI_ISTHMUS_ENCRYPT=always"), "{text}");
    // Who connects decides, where the other end takes plain ones too.
    let (plain, strict) =
        (open_with(Encrypt::Never, Transport::Tcp), open_with(Encrypt::Always, Transport::Tcp));
    let to = strict.peer(&plain.address()).expect("known");
    let (mut sent, mut got) = (pattern(1 << 20, 3), vec![0; 1 << 20]);
    recv(&plain, None, 1, &mut got);
    send(&strict, to, 1, &mut sent);
    complete(&[&plain, &strict], 2);
    assert!(sent == got && strict.carriers() == ["TCP, encrypted"], "{:?}", strict.carriers());
}

#[test]
fn shared_memory_needs_no_sealing() {
    let settings = Settings { encrypt: Encrypt::Always, ..Settings::default() };
    let open = || Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there");
    let (a, b) = (open(), open());
    exchange(&a, &b);
    assert!(a.carriers().contains(&"memory".to_owned()), "{:?}", a.carriers());
}

#[test]
fn who_does_not_know_the_address_gets_no_answer_by_udp() {
    let (a, b) = (
        open_with(Encrypt::Far, Transport::UdpEverywhere),
        open_with(Encrypt::Far, Transport::UdpEverywhere),
    );
    exchange(&a, &b);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
    stranger.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    let before = a.dropped();
    for first in 0..=u8::MAX {
        // Every kind of packet, of every version.
        let mut packet = vec![first];
        packet.extend_from_slice(&[0x5a; 1_199]);
        stranger.send_to(&packet, a.address().locator).expect("loopback");
    }
    assert!(stranger.recv(&mut [0; 2_000]).is_err());
    let after = a.dropped();
    let passed_over = |d: isthmus_io::Dropped| d.garbled + d.strange + d.forged + d.damaged;
    assert!(passed_over(after) > passed_over(before), "{after:?}");
    exchange(&a, &b);
    a.close();
    b.close();
}
