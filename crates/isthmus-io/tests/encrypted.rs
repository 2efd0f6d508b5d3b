//! Encrypted lanes over real sockets, by each transport: who is trusted, and who is refused
//! with a text that says what to do.

mod support;

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, KeyFiles, OpenError, Settings, TlsMode, Transport};
use isthmus_trust::Keygen;
use support::*;

by_each_transport! {
    messages_of_many_sizes_arrive_whole,
    both_directions_carry_at_once,
    transfers_go_on_while_nobody_polls,
    who_is_not_trusted_is_refused_with_the_setting_that_helps,
    who_does_not_trust_the_peer_is_told_what_to_add,
    plain_and_encrypted_endpoints_tell_each_other_what_is_missing,
    a_peer_that_is_not_there_is_an_error_that_names_it,
    what_strangers_send_changes_nothing_and_is_counted,
}

/// Keys of hosts of some AS's.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> KeyFiles {
        KeyFiles(vec![self.path().join(name)])
    }

    /// An endpoint of AS `own` that believes the authorities in `known`, files of this folder.
    fn settings(&self, by: Transport, own: u32, known: &[&str]) -> Settings {
        let name = format!("host{own}");
        if !self.path().join(format!("{name}.pem")).exists() {
            Keygen { as_id: own, folder: self.path(), name: &name, days: 1 }.make().expect("made");
        }
        Settings {
            transport: by,
            as_id: own,
            tls: TlsMode::Required,
            tls_certificate: self.file(&format!("{name}.pem")),
            tls_key: self.file(&format!("{name}.key")),
            tls_authorities: KeyFiles(known.iter().map(|name| self.path().join(name)).collect()),
            ..settings()
        }
    }

    fn pair(&self, by: Transport) -> (Arc<Endpoint>, Arc<Endpoint>) {
        let settings = self.settings(by, 7, &["as7.pem"]);
        (open_with(&settings), open_with(&settings))
    }
}

fn open_with(settings: &Settings) -> Arc<Endpoint> {
    Endpoint::open(settings, None, Arc::default()).expect("loopback is always there")
}

/// What a message to this endpoint fails with.
fn failure(a: &Endpoint, b: &Endpoint) -> String {
    let to = a.peer(&b.address()).expect("same subnet");
    let mut bytes = vec![1; 1 << 20];
    send(a, to, 1, &mut bytes);
    let start = Instant::now();
    let mut done = Vec::new();
    while done.is_empty() {
        a.poll(&mut done);
        b.poll(&mut Vec::new());
        in_time(start.elapsed() < 2 * LIMIT, || "nothing becomes of the message");
    }
    done[0].error.clone().expect("it is refused").to_string()
}

fn messages_of_many_sizes_arrive_whole(by: Transport) {
    let keys = Keys::new();
    let (a, b) = keys.pair(by);
    let to_b = a.peer(&b.address()).expect("same subnet");
    for (tag, len) in [0, 1, 8, 4096, 8193, 100_000, 1 << 20, 20 << 20].into_iter().enumerate() {
        let mut sent = pattern(len, tag as u8);
        let mut got = vec![0; len];
        recv(&b, None, tag as u64, &mut got);
        send(&a, to_b, tag as u64, &mut sent);
        let done = complete(&[&a, &b], 2);
        assert!(done.iter().all(|c| c.error.is_none() && c.len == len as u64), "{done:?}");
        assert!(sent == got, "{len} bytes differ");
    }
    let names = [a.carriers(), b.carriers()].concat();
    let way = if by == Transport::Tcp { "TCP" } else { "UDP" };
    assert!(!names.is_empty() && names.iter().all(|name| *name == format!("{way}, encrypted")), "{names:?}");
    a.close();
    b.close();
}

fn both_directions_carry_at_once(by: Transport) {
    let keys = Keys::new();
    let (a, b) = keys.pair(by);
    let (to_b, to_a) = (a.peer(&b.address()).expect("known"), b.peer(&a.address()).expect("known"));
    let (mut there, mut back) = (pattern(24 << 20, 1), pattern(24 << 20, 2));
    let (mut got_there, mut got_back) = (vec![0; 24 << 20], vec![0; 24 << 20]);
    recv(&a, None, 2, &mut got_back);
    send(&a, to_b, 1, &mut there);
    send(&b, to_a, 2, &mut back);
    recv(&b, None, 1, &mut got_there);
    complete(&[&a, &b], 4);
    assert!(there == got_there && back == got_back);
    a.close();
    b.close();
}

fn transfers_go_on_while_nobody_polls(by: Transport) {
    let keys = Keys::new();
    let (a, b) = keys.pair(by);
    carries_on_unpolled(&a, &b);
    a.close();
    b.close();
}

fn who_is_not_trusted_is_refused_with_the_setting_that_helps(by: Transport) {
    let keys = Keys::new();
    let elsewhere = Keys::new();
    // Of the same AS by its own word, but signed by another authority.
    let mut stranger = elsewhere.settings(by, 7, &[]);
    let settings = keys.settings(by, 7, &["as7.pem"]);
    stranger.tls_authorities = settings.tls_authorities.clone();
    let (a, b) = (open_with(&stranger), open_with(&settings));
    let text = failure(&a, &b);
    assert!(
        text.contains("does not trust our certificate") && text.contains("tls_authorities there"),
        "{text}"
    );
    assert!(b.carriers().is_empty());
    a.close();
    b.close();
}

fn who_does_not_trust_the_peer_is_told_what_to_add(by: Transport) {
    let keys = Keys::new();
    let elsewhere = Keys::new();
    let settings = keys.settings(by, 7, &["as7.pem"]);
    let other = elsewhere.settings(by, 7, &["as7.pem"]);
    let (a, b) = (open_with(&settings), open_with(&other));
    let text = failure(&a, &b);
    assert!(text.contains("none of the authorities in tls_authorities"), "{text}");
    a.close();
    b.close();
}

fn plain_and_encrypted_endpoints_tell_each_other_what_is_missing(by: Transport) {
    let keys = Keys::new();
    let required = keys.settings(by, 7, &["as7.pem"]);
    let plain = Settings { as_id: 7, transport: by, ..settings() };
    let (a, b) = (open_with(&plain), open_with(&required));
    let text = failure(&a, &b);
    assert!(
        text.contains("takes encrypted lanes only") && text.contains("set tls to required here too"),
        "{text}"
    );
    let text = failure(&b, &a);
    assert!(text.contains("set tls to required there too"), "{text}");
    a.close();
    b.close();
}

fn a_peer_that_is_not_there_is_an_error_that_names_it(by: Transport) {
    let keys = Keys::new();
    let a = open_with(&keys.settings(by, 7, &["as7.pem"]));
    let peer = a.peer(&with_a_key("isthmus://7.0/127.0.0.1:1#00000001")).expect("same subnet");
    send(&a, peer, 1, &mut [1; 8]);
    let text = complete(&[&a], 1)[0].error.clone().expect("nobody listens there").to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("process has ended"), "{text}");
    a.close();
}

fn what_strangers_send_changes_nothing_and_is_counted(by: Transport) {
    let keys = Keys::new();
    let (a, b) = keys.pair(by);
    let to_b = a.peer(&b.address()).expect("same subnet");
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
    stranger.set_read_timeout(Some(Duration::from_millis(1))).expect("possible");
    let mut opening = vec![0x11; 1_200];
    opening[1..40].fill(7);
    for round in 0..10 {
        for junk in [&[0x13; 3][..], &[0x93; 100], &opening] {
            stranger.send_to(junk, b.address().locator).expect("sent");
        }
        let mut sent = pattern(100_000, round);
        let mut got = vec![0; 100_000];
        recv(&b, None, 1, &mut got);
        send(&a, to_b, 1, &mut sent);
        complete(&[&a, &b], 2);
        assert!(sent == got);
    }
    assert!(stranger.recv(&mut [0; 100]).is_err(), "a stranger was answered");
    if by != Transport::Tcp {
        let start = Instant::now();
        while b.dropped().garbled < 10 || b.dropped().strange < 20 {
            b.poll(&mut Vec::new());
            in_time(start.elapsed() < LIMIT, || {
                format!("packets of strangers are not counted: {:?}", b.dropped())
            });
        }
    }
    a.close();
    b.close();
}

#[test]
fn settings_that_cannot_work_are_refused_when_the_endpoint_opens() {
    let keys = Keys::new();
    let good = keys.settings(Transport::Tcp, 7, &["as7.pem"]);
    let text = |settings: Settings| match Endpoint::open(&settings, None, Arc::default()) {
        Err(error @ OpenError::Trust(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let other_as = text(Settings { as_id: 8, ..good.clone() });
    assert!(other_as.contains("names AS 7, but this is AS 8"), "{other_as}");
    let no_file = PathBuf::from("/no/such.key");
    let absent = text(Settings { tls_key: KeyFiles(vec![no_file]), ..good });
    assert!(absent.contains("/no/such.key"), "{absent}");
}
