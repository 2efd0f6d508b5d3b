//! Tests over the loopback interface, which carries frames too. They need CAP_NET_RAW.

use std::time::Duration;

use super::*;

/// `None` if this process lacks the capability.
fn pair() -> Option<(EthernetSocket, EthernetSocket)> {
    let lo = Interface::find("lo").expect("every host has one");
    let open = |at: &str| EthernetSocket::open(&lo, at.parse().expect("valid"), |_| {});
    match (open("127.0.0.1:4101"), open("[fe80::7]:4102")) {
        (Ok(a), Ok(b)) => Some((a, b)),
        (Err(EthernetError::Forbidden), _) => {
            eprintln!("skipped: no CAP_NET_RAW");
            None
        }
        (a, b) => panic!("{a:?} {b:?}"),
    }
}

fn wait(socket: &EthernetSocket) {
    let mut entry = [rustix::event::PollFd::new(&socket.socket, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
    assert!(rustix::event::poll(&mut entry, Some(&limit)).expect("polled") > 0, "nothing came");
}

#[test]
fn packets_of_a_message_arrive_and_tell_where_their_sender_is() {
    let Some((mut a, mut b)) = pair() else { return };
    let bytes: Vec<u8> = (0..40_500_u32).map(|i| (i % 251) as u8).collect();
    let began = Instant::now() - Duration::from_millis(1);
    assert_eq!(a.send(b.own, 1_000, &bytes), Sent::Yes, "by broadcast");
    let (mut got, mut sizes) = (Vec::new(), Vec::new());
    while got.len() < bytes.len() {
        wait(&b);
        b.receive(|Received { from, arrived, .. }, packet| {
            assert_eq!(from, "127.0.0.1:4101".parse().expect("valid"));
            assert!(arrived >= began && arrived <= Instant::now());
            sizes.push(packet.len());
            got.extend_from_slice(packet);
        })
        .expect("no error");
    }
    assert!(got == bytes);
    assert!(sizes[..40].iter().all(|size| *size == 1_000) && sizes[40] == 500, "{sizes:?}");
    // The broadcast was answered by an empty frame.
    wait(&a);
    assert!(a.receive(|_, _| panic!("an answer is no packet")).expect("no error"));
    assert!(matches!(a.neighbours.resolve(Instant::now(), b.own.ip(), 1), Resolved::To(..)));
    assert_eq!(b.send(a.own, 10, b"back"), Sent::Yes);
    let mut back = Vec::new();
    while back.is_empty() {
        wait(&a);
        a.receive(|_, packet| back.extend_from_slice(packet)).expect("no error");
    }
    assert_eq!(back, b"back");
}

#[test]
fn an_interface_that_is_of_no_use_says_why() {
    let text = Interface::find("nonesuch0").expect_err("unknown").to_string();
    assert!(text.contains("`nonesuch0`") && text.contains("`interface`"), "{text}");
    assert!(Interface::find("").is_err() && Interface::find("a-name-longer-than-any").is_err());
    let text = EthernetError::Forbidden.to_string();
    assert!(text.contains("CAP_NET_RAW") && text.contains("setcap"), "{text}");
}

#[test]
fn an_interface_without_ip_has_an_address_made_of_its_own() {
    let ip = link_local_of([0x02, 0x00, 0x5e, 0x10, 0x00, 0x07]);
    assert_eq!(ip, "fe80::5eff:fe10:7".parse::<Ipv6Addr>().expect("valid"));
    assert!(is_frames_only(ip.into()) && !is_frames_only([10, 0, 0, 1].into()));
}
