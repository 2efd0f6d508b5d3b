//! What connections promise, by every transport that this host has, at every service level.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use isthmus_substrate::{
    Access, Connection, Endpoint, EndpointOptions, Error, Event, Failure, Level, MemoryHandle, RemoteOptions,
    SendOptions, Substrate, Transfer,
};
use support::*;

const LEVELS: [Level; 3] = [Level::Uu, Level::Ru, Level::Ro];
/// Messages of 60 kB, more than the credit for what nobody receives.
const COUNT: u64 = 300;

#[test]
fn messages_of_every_length_arrive() {
    for transport in transports() {
        let (a, b) = (open_by(transport, &Default::default()), open_by(transport, &Default::default()));
        for level in LEVELS {
            let (to_b, to_a) = connect(&a, &b, level);
            check_carrier(&a, transport);
            for (number, len) in [0, 8, 4096, 65_000].into_iter().enumerate() {
                let message = pattern(len, number as u8);
                a.send(to_b, &message, &SendOptions { silent: true, ..Default::default() }).expect("sent");
                assert!(*receive(&b, &a) == *message, "{len} bytes at {level} by {transport}");
                b.send(to_a, &message, &SendOptions { silent: true, ..Default::default() }).expect("sent");
                assert!(*receive(&a, &b) == *message, "{len} bytes back at {level} by {transport}");
            }
        }
    }
}

#[test]
fn memory_is_reached_by_the_right_key_only() {
    for transport in transports() {
        let (a, b) = (open_by(transport, &Default::default()), open_by(transport, &Default::default()));
        for level in [Level::Ru, Level::Ro] {
            let (to_b, _) = connect(&a, &b, level);
            let theirs =
                b.register(3 << 20, Access { remote_read: true, remote_write: true }).expect("memory");
            let ours = a.register(3 << 20, Access::default()).expect("memory");
            ours.write_at(0, &pattern(3 << 20, 4)).expect("inside");
            let how = RemoteOptions { blocking: true, ..Default::default() };
            let wrong = MemoryHandle { key: theirs.handle().key ^ 1, ..theirs.handle() };
            let refused = a.write(to_b, &ours, 0, &wrong, 0, 3 << 20, &how);
            assert!(matches!(refused, Err(Error::Failed(Failure::RemoteAccess(_)))), "{refused:?}");
            let mut found = vec![1; 3 << 20];
            theirs.read_at(0, &mut found).expect("inside");
            assert!(found.iter().all(|byte| *byte == 0), "touched by {transport}");
            let how = RemoteOptions { message: Some(b"it is there"), ..Default::default() };
            a.write(to_b, &ours, 0, &theirs.handle(), 0, 3 << 20, &how).expect("posted");
            assert_eq!(&*receive(&b, &a), b"it is there");
            theirs.read_at(0, &mut found).expect("inside");
            assert!(found == pattern(3 << 20, 4), "the message came before the data by {transport}");
            assert!(matches!(next(&a, &b), Event::Sent { end: Ok(()), .. }));
            let refused = a.write(connect(&a, &b, Level::Uu).0, &ours, 0, &theirs.handle(), 0, 1, &how);
            assert_eq!(refused, Err(Error::Level));
        }
    }
}

#[test]
fn protocols_of_lanes_by_udp_are_read_and_changed_under_a_connection() {
    let [a, b] = [(); 2].map(|()| open_by("udp-everywhere", &Default::default()));
    let (to_b, _) = connect(&a, &b, Level::Ro);
    assert_eq!(a.udp_protocols().as_deref(), Ok("rate+adaptive+measured+search"));
    a.set_udp_protocols("cubic, 10.9.9.9=once").expect("known names");
    assert_eq!(a.udp_protocols_of(to_b).as_deref(), Ok("cubic+adaptive+measured+search"));
    a.set_udp_protocols_of(to_b, "reno+once").expect("known names");
    assert_eq!(a.udp_protocols_of(to_b).as_deref(), Ok("reno+adaptive+once+search"));
    let all = "10.9.9.9=rate+adaptive+once+search, 127.0.0.1=reno+adaptive+once+search, \
               cubic+adaptive+measured+search";
    assert_eq!(a.udp_protocols().as_deref(), Ok(all));
    let wrong = a.set_udp_protocols_of(to_b, "vegas");
    assert!(matches!(&wrong, Err(Error::Value(text)) if text.contains("vegas")), "{wrong:?}");
    // Where no lane goes by packets there is nothing to choose.
    let none = open_by("tcp", &Default::default()).set_udp_protocols("cubic");
    assert!(matches!(&none, Err(Error::Value(text)) if text.contains("transport")), "{none:?}");
}

#[test]
fn how_messages_go_is_read_and_changed_by_host_and_service_level() {
    let [a, b] = [(); 2].map(|()| open_by("tcp", &Default::default()));
    let [(by_ru, _), (by_ro, _)] = [Level::Ru, Level::Ro].map(|level| connect(&a, &b, level));
    let asked = |by: Connection, transfer: Transfer| {
        let before = a.counters().messages_asked;
        let how = SendOptions { silent: true, transfer, ..Default::default() };
        a.send(by, &pattern(60_000, 1), &how).expect("sent");
        assert!(*receive(&b, &a) == *pattern(60_000, 1));
        a.counters().messages_asked > before
    };
    assert!(!asked(by_ru, Transfer::Adaptive) && asked(by_ru, Transfer::Mixed), "as the message asks");
    a.set_transfer("RU=rendezvous, 127.0.0.1=eager, mixed").expect("known names");
    assert!(asked(by_ru, Transfer::Adaptive) && !asked(by_ro, Transfer::Adaptive));
    assert!(!asked(by_ru, Transfer::Eager), "the message goes before its connection");
    a.set_transfer_of(by_ro, "mixed").expect("a known name");
    assert!(asked(by_ro, Transfer::Adaptive));
    assert_eq!(a.transfer_of(by_ru).as_deref(), Ok("mixed"), "they share the host");
    assert_eq!(a.transfer(), "RU=rendezvous, 127.0.0.1=mixed, mixed");
    let wrong = a.set_transfer("UU=eager");
    assert!(matches!(&wrong, Err(Error::Value(text)) if text.contains("datagrams")), "{wrong:?}");
}

#[test]
fn what_all_is_made_of_is_one_text_for_an_endpoint_and_for_each_connection() {
    let [a, b] = [(); 2].map(|()| open_by("udp-everywhere", &Default::default()));
    let (to_b, _) = connect(&a, &b, Level::Ro);
    let levels = "UU: datagrams+unordered, RU: acknowledged+unordered";
    let lanes = "udp: rate+adaptive+measured+search, tcp: auto";
    assert_eq!(a.protocols(), format!("{levels}, RO: acknowledged+ordered, messages: adaptive, {lanes}"));
    assert_eq!(a.set_protocols(&a.protocols()), Ok(()));
    a.set_protocols("RO: mixed, udp@127.0.0.0/8: cubic, tcp: bbr").expect("known names");
    a.set_protocols_of(to_b, "tcp: reno, udp: reno+once").expect("known names");
    let of_b = format!(
        "{levels}, RO: acknowledged+ordered+mixed, messages: adaptive, udp: reno+adaptive+once+search, tcp: reno"
    );
    assert_eq!(a.protocols_of(to_b), Ok(of_b));
    // What says a part of it says that part.
    assert_eq!(a.transfer(), "RO=mixed, adaptive");
    assert_eq!(a.udp_protocols_of(to_b).as_deref(), Ok("reno+adaptive+once+search"));
    a.set_transfer("RO=eager").expect("known names");
    a.set_udp_protocols_of(to_b, "once").expect("known names");
    let all = a.protocols();
    for part in
        ["RO: acknowledged+ordered+eager", "udp@127.0.0.1: rate+adaptive+once+search", "tcp@127.0.0.1: reno"]
    {
        assert!(all.contains(part), "{part}: {all}");
    }
    let refused = |text: &str, part: &str| {
        let wrong = a.set_protocols_of(to_b, text);
        assert!(matches!(&wrong, Err(Error::Value(text)) if text.contains(part)), "{wrong:?}");
    };
    refused("udp@10.0.0.0/8: cubic", "leave this out");
    refused("RO: unordered", "connect by RU");
    assert_eq!(a.protocols(), all, "what is refused changes nothing");
}

/// What messages of a level promise holds whatever is exchanged meanwhile, at moments and in ways that a
/// generator chooses: protocols of lanes, transfer of messages, what single messages ask.
#[test]
fn nothing_is_lost_or_reordered_whatever_protocols_are_exchanged_at_any_moment() {
    const PROTOCOLS: [&str; 6] = [
        "messages: eager",
        "RU: rendezvous, RO@127.0.0.0/8: mixed, udp: reno+fixed",
        "messages@127.0.0.1: mixed, udp@127.0.0.1: cubic+once+crc32c, tcp: reno",
        "RO: adaptive, RU: eager, messages: rendezvous",
        "udp: given+crc32c, tcp@127.0.0.0/8: cubic",
        "",
    ];
    const OF_ONE: [&str; 4] =
        ["RO: rendezvous, udp: once+fixed", "messages: mixed, RU: mixed", "udp: rate", "tcp: auto"];
    for transport in transports() {
        for level in [Level::Ru, Level::Ro] {
            let (a, b) = (open_by(transport, &Default::default()), open_by(transport, &Default::default()));
            let (to_b, _) = connect(&a, &b, level);
            let mut state = 7_u64;
            let mut below = |limit: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % limit
            };
            let mut sent: Vec<(bool, Vec<u8>)> = Vec::new();
            let (mut came, mut last, mut arrived) = (vec![false; COUNT as usize], None, 0);
            let mut take = |event: Event, sent: &[(bool, Vec<u8>)]| {
                let Event::Received(message) = event else {
                    assert!(matches!(event, Event::Sent { end: Ok(()), .. }), "{event:?}");
                    return arrived == COUNT;
                };
                let number = u32::from_le_bytes(message[..4].try_into().expect("a number")) as usize;
                let (ordered, bytes) = &sent[number];
                assert!(*message == **bytes, "message {number} at {level} by {transport}");
                assert!(!std::mem::replace(&mut came[number], true), "message {number} came twice");
                if level == Level::Ro && *ordered {
                    assert!(last.is_none_or(|last| last < number), "{number} came after {last:?}");
                    last = Some(number);
                }
                arrived += 1;
                arrived == COUNT
            };
            for number in 0..COUNT {
                let len = [4, 3_000, 9_000, 60_000][below(4)];
                let mut bytes = pattern(len, number as u8);
                bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
                let kinds = [Transfer::Adaptive, Transfer::Eager, Transfer::Rendezvous, Transfer::Mixed];
                let (transfer, unordered) = (kinds[below(4)], below(5) == 0);
                let how = SendOptions { silent: below(3) == 0, transfer, unordered, ..Default::default() };
                sent.push((!unordered, bytes));
                a.send(to_b, &sent[number as usize].1, &how).expect("sent");
                if below(4) == 0 {
                    [&a, &b][below(2)].set_protocols(PROTOCOLS[below(PROTOCOLS.len())]).expect("known names");
                }
                if below(6) == 0 {
                    a.set_protocols_of(to_b, OF_ONE[below(OF_ONE.len())]).expect("known names");
                }
                // The last comes below.
                while number + 1 < COUNT
                    && let Some(event) = b.get_event().expect("open")
                {
                    take(event, &sent);
                }
            }
            events(&[&a, &b], |_, event| take(event, &sent));
        }
    }
}

#[test]
fn a_full_receiver_is_told_of_in_time_and_gets_everything_later() {
    let few = EndpointOptions { recv_buffers: 2, ..Default::default() };
    for transport in transports() {
        for level in [Level::Ru, Level::Ro] {
            let (a, b) = (open_by(transport, &Default::default()), open_by(transport, &few));
            let (to_b, _) = connect(&a, &b, level);
            a.set_send_timeout(to_b, Duration::from_millis(100)).expect("open");
            let message = Bytes::from(pattern(60_000, 1));
            for context in 0..COUNT {
                let how = SendOptions { context, ..Default::default() };
                a.send_bytes(to_b, std::slice::from_ref(&message), &how).expect("sent");
            }
            // Nobody takes b's messages, and all of them fit nowhere.
            let (mut told, mut late) = (0, 0_u32);
            events(&[&a], |_, event| {
                let Event::Sent { end, .. } = event else { panic!("{event:?}") };
                told += 1;
                late += u32::from(end == Err(Failure::TimedOut));
                told == COUNT
            });
            assert!(late > 0, "all of it fits at {level} by {transport}");
            let mut arrived = 0;
            events(&[&a, &b], |_, event| {
                let Event::Received(came) = event else { panic!("{event:?}") };
                assert!(*came == *message);
                arrived += 1;
                arrived == COUNT
            });
        }
    }
}

#[test]
fn a_full_receiver_of_unreliable_messages_drops_them_and_goes_on() {
    let few = EndpointOptions { recv_buffers: 2, ..Default::default() };
    for transport in transports() {
        let (a, b) = (open_by(transport, &Default::default()), open_by(transport, &few));
        let (to_b, _) = connect(&a, &b, Level::Uu);
        let how = SendOptions { silent: true, ..Default::default() };
        for _ in 0..400 {
            a.send(to_b, &pattern(1_000, 1), &how).expect("UU takes everything");
        }
        // What comes after that is another message.
        let last = pattern(999, 2);
        let mut tries = 0;
        events(&[&a, &b], |_, event| {
            let Event::Received(came) = event else { panic!("{event:?}") };
            tries += 1;
            if *came != *last {
                a.send(to_b, &last, &how).expect("sent");
            }
            *came == *last
        });
        assert!(tries <= 401, "{tries} came of 400");
    }
}

/// Passes UDP packets on to `target` and back, each of them `delay` later. Returns where it listens.
fn delayed(target: SocketAddr, delay: Duration) -> SocketAddr {
    let [near, far] = [(); 2].map(|()| Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a port")));
    far.connect(target).expect("loopback");
    let at = near.local_addr().expect("bound");
    let client: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
    for (from, to, is_outward) in [(near.clone(), far.clone(), true), (far, near, false)] {
        let (later, due) = mpsc::channel::<(Instant, Vec<u8>)>();
        let caller = client.clone();
        std::thread::spawn(move || {
            let mut room = vec![0; 1 << 16];
            // An ICMP error of an earlier packet is no end.
            while let Ok((len, who)) = from.recv_from(&mut room).or_else(|_| from.recv_from(&mut room)) {
                if is_outward {
                    *caller.lock().expect("no panic") = Some(who);
                }
                if later.send((Instant::now() + delay, room[..len].to_vec())).is_err() {
                    return;
                }
            }
        });
        let client = client.clone();
        std::thread::spawn(move || {
            for (at, packet) in due {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                let client = *client.lock().expect("no panic");
                let _ = match client.filter(|_| !is_outward) {
                    Some(client) => to.send_to(&packet, client),
                    None => to.send(&packet),
                };
            }
        });
    }
    at
}

/// Datagrams are not encrypted. So a peer whose lanes are encrypted because its round trip is 1 ms or more gets none,
/// and sends none.
#[test]
fn unreliable_messages_to_a_far_peer_go_by_its_encrypted_lanes() {
    for (encrypt, datagrams) in [("far", 0), ("never", 4)] {
        let open = || {
            let text = format!(
                "[device]\ninterface = \"127.0.0.1\"\nfabric = \"off\"\nencrypt = \"{encrypt}\"\n\
                 transport = \"udp-everywhere\"\nadmission = \"open\"\n"
            );
            let substrate = Substrate::from_toml(&text, "test").expect("valid");
            Endpoint::create(substrate.default_device().expect("up"), &Default::default()).expect("loopback")
        };
        let (a, b) = (open(), open());
        let uri = b.uri();
        // An address with a key admits only where it was made.
        let (place, _) = uri.split_once('#').expect("with a key");
        let (subnet, at) = place.rsplit_once('/').expect("with a locator");
        let far = delayed(at.parse().expect("an address"), Duration::from_millis(4));
        let (to_b, to_a) = connect_at(&a, &b, &format!("{subnet}/{far}"), Level::Uu);
        for (from, to, by) in [(&a, &b, to_b), (&b, &a, to_a)] {
            for number in 0..4 {
                let message = pattern(100, number);
                from.send(by, &message, &SendOptions { silent: true, ..Default::default() }).expect("sent");
                assert!(*receive(to, from) == *message);
            }
            let traffic = from.traffic_with(by).expect("connected");
            assert_eq!(traffic.datagrams_sent, datagrams, "encrypt = {encrypt}, {traffic:?}");
        }
    }
}
