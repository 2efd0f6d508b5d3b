//! Closing while a peer does not read: what was lent is the program's again once `close` returns, also by time-out.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_io::{Endpoint, Settings, Transport};
use support::*;

const LEN: usize = 64 << 20;
/// Names the transport to the process that is the peer.
const PEER: &str = "ISTHMUS_TEST_CLOSING_PEER";

fn endpoint(transport: &str) -> Arc<Endpoint> {
    let (transport, fabric) = match transport {
        "tcp" => (Transport::Tcp, "off"),
        "udp" => (Transport::UdpEverywhere, "off"),
        _ => (Transport::Auto, "memory"),
    };
    let linger = isthmus_units::Span::from_ms(100);
    let settings = Settings { transport, fabric: fabric.to_owned(), linger, ..settings() };
    Endpoint::open(&settings, None, Arc::default()).expect("loopback is always there")
}

/// The other process: it receives one long message, and says at the end how many bytes of it are none of the sender's.
#[test]
fn is_the_peer_if_asked() {
    let Ok(transport) = std::env::var(PEER) else { return };
    let own = endpoint(&transport);
    let (mut first, mut long) = ([0; 8], vec![0; LEN]);
    recv(&own, None, 1, &mut first);
    recv(&own, None, 2, &mut long);
    println!("\n{}", own.address().uri());
    complete(&[&own], 1);
    println!("\nstarted");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("the test says when");
    let sent = pattern(LEN, 7);
    let is_wrong = |(got, sent): &(&u8, &u8)| **got != 0 && got != sent;
    println!("\nwrong {}", long.iter().zip(&sent).filter(is_wrong).count());
}

/// Lines of the peer that begin so.
fn said(from: &mut impl BufRead, start: &str) -> String {
    let mut line = String::new();
    while from.read_line(&mut line).expect("a line") > 0 {
        if line.starts_with(start) {
            return line.trim().to_owned();
        }
        line.clear();
    }
    panic!("the peer has not said {start}");
}

fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: kill(2) of our own child.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Memory that can be taken away: whoever touches it then ends this process, or has an error of the system.
fn mapped() -> &'static mut [u8] {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, kind, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: so much was mapped, and stays for as long as this process lives, or until the test takes it away.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), LEN) }
}

fn what_was_lent_is_untouched_after_close(transport: &str) {
    let words = ["--exact", "is_the_peer_if_asked", "--nocapture"];
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(words)
        .env(PEER, transport)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program again");
    let mut heard = BufReader::new(child.stdout.take().expect("piped"));
    let address = said(&mut heard, "isthmus://").parse().expect("an address");
    let own = endpoint(transport);
    let peer = own.peer(&address).expect("near");
    let mut first = [7; 8];
    send(&own, peer, 1, &mut first);
    complete(&[&own], 1);
    said(&mut heard, "started");
    signal(&child, libc::SIGSTOP);

    let lent = mapped();
    lent.copy_from_slice(&pattern(LEN, 7));
    send(&own, peer, 2, lent);
    let (start, mut done) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(300) {
        own.poll(&mut done);
    }
    assert!(done.is_empty(), "{done:?}: it was to be under way");
    own.close();
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
    // The program's again: other data is there, and then nothing. The endpoint itself is still referred to.
    lent.fill(0xEE);
    if transport != "memory" {
        // SAFETY: nobody uses it.
        assert_eq!(unsafe { libc::munmap(lent.as_mut_ptr().cast(), LEN) }, 0);
    }
    signal(&child, libc::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    child.stdin.take().expect("piped").write_all(b"now\n").expect("it lives");
    assert_eq!(said(&mut heard, "wrong"), "wrong 0");
    let _ = heard.read_to_end(&mut Vec::new());
    assert!(child.wait().expect("it ends").success());
    drop(own);
}

#[test]
fn what_was_lent_is_untouched_after_close_by_tcp() {
    what_was_lent_is_untouched_after_close("tcp");
}

#[test]
fn what_was_lent_is_untouched_after_close_by_udp() {
    what_was_lent_is_untouched_after_close("udp");
}

#[test]
fn what_was_lent_is_untouched_after_close_by_memory() {
    what_was_lent_is_untouched_after_close("memory");
}
