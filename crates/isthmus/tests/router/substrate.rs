//! The substrate between two sites that only routers join.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use isthmus_substrate::{
    Access, Connection, Endpoint, EndpointOptions, Event, Level, RemoteOptions, SendOptions, Substrate,
};

use crate::harness::HANG;
use crate::site::Sites;

fn open(as_id: u32, router: SocketAddr) -> Endpoint {
    open_with(as_id, router, "")
}

/// An endpoint with further settings.
fn open_with(as_id: u32, router: SocketAddr, more: &str) -> Endpoint {
    let text = format!(
        "[device.site]\ninterface = \"127.0.0.1\"\nas_id = {as_id}\nsubnet = 1\nrouters = [\"{router}\"]\nlinger = \"2s\"\n{more}"
    );
    let substrate = Substrate::from_toml(&text, "test").expect("valid");
    Endpoint::create(substrate.default_device().expect("up"), &EndpointOptions::default()).expect("loopback")
}

/// The next event of either that `each` takes.
fn events(a: &Endpoint, b: &Endpoint, mut each: impl FnMut(Event) -> bool) {
    let start = Instant::now();
    loop {
        for endpoint in [a, b] {
            while let Some(event) = endpoint.get_event().expect("open") {
                if each(event) {
                    return;
                }
            }
        }
        assert!(start.elapsed() < HANG, "what is waited for does not come");
    }
}

fn connect(a: &Endpoint, b: &Endpoint, level: Level) -> Connection {
    a.connect(&b.uri(), b"from afar", level, 1, &Default::default()).expect("a route");
    let (mut connected, mut accepted) = (None, false);
    events(a, b, |event| {
        match event {
            Event::Requested(request) => {
                assert_eq!(request.payload(), b"from afar");
                b.accept(request, 2).expect("granted");
            }
            Event::Connected { connection, .. } => connected = Some(connection),
            Event::Accepted { .. } => accepted = true,
            other => panic!("{other:?}"),
        }
        connected.is_some() && accepted
    });
    connected.expect("established")
}

#[test]
fn every_level_and_remote_memory_cross_two_sites() {
    let sites = Sites::new();
    let _routers = sites.joined();
    let (a, b) = (open(1, sites.r2[0]), open(2, sites.s1[0]));
    for level in [Level::Uu, Level::Ru, Level::Ro] {
        let to_b = connect(&a, &b, level);
        a.send(to_b, &[7; 20_000], &SendOptions::default()).expect("sent");
        let (mut came, mut told) = (false, false);
        events(&a, &b, |event| {
            match event {
                Event::Received(message) => came = *message == [7; 20_000],
                Event::Sent { end, .. } => told = end.is_ok(),
                other => panic!("{other:?}"),
            }
            came && told
        });
    }
    // A program of another site may be turned down too.
    a.connect(&b.uri(), b"", Level::Ro, 9, &Default::default()).expect("a route");
    events(&a, &b, |event| match event {
        Event::Requested(request) => {
            b.reject(request, 5, b"closed").expect("told");
            false
        }
        Event::ConnectFailed { payload, .. } => payload == b"closed",
        other => panic!("{other:?}"),
    });
}

/// Passes connections on to `to`, and keeps every byte of them.
fn tapped(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at, heard) = (listener.local_addr().expect("bound"), Arc::default());
    let kept: Arc<Mutex<Vec<u8>>> = Arc::clone(&heard);
    let pass = move |mut from: TcpStream, mut to: TcpStream, heard: Arc<Mutex<Vec<u8>>>| {
        let mut bytes = [0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            heard.lock().expect("nobody panics with it").extend_from_slice(&bytes[..len]);
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    // Its threads end with the connections, and the listener with the tests.
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(to).expect("the router listens");
            let back = (far.try_clone().expect("a socket"), near.try_clone().expect("a socket"));
            let (there, here) = (kept.clone(), kept.clone());
            std::thread::spawn(move || pass(near, far, there));
            std::thread::spawn(move || pass(back.0, back.1, here));
        }
    });
    (at, heard)
}

/// With nothing set up, neither the router nor anybody who listens within the site reads a message to another site.
#[test]
fn a_lane_that_leaves_the_subnet_is_encrypted_from_end_to_end() {
    const SECRET: &[u8] = b"Nobody but the two ends is to read this.";
    for (more, is_read) in [("", false), ("encrypt = \"never\"\n", true)] {
        let sites = Sites::new();
        let _routers = sites.joined();
        let (tap, heard) = tapped(sites.r2[0]);
        let (a, b) = (open_with(1, tap, more), open_with(2, sites.s1[0], more));
        let to_b = connect(&a, &b, Level::Ro);
        let message = SECRET.repeat(500);
        a.send(to_b, &message, &SendOptions::default()).expect("sent");
        events(&a, &b, |event| matches!(event, Event::Received(came) if *came == message[..]));
        let heard = heard.lock().expect("nobody panics with it");
        assert!(heard.len() > message.len(), "the lane did not go there");
        assert_eq!(heard.windows(SECRET.len()).any(|part| part == SECRET), is_read, "{more}");
    }
}

#[test]
fn a_router_that_dies_under_writes_only_delays_them() {
    let sites = Sites::new();
    let (r2, s1) = sites.joined();
    let (a, b) = (open(1, sites.r2[0]), open(2, sites.s1[0]));
    let to_b = connect(&a, &b, Level::Ro);
    let theirs = b.register(32 << 20, Access { remote_read: true, remote_write: true }).expect("memory");
    let ours = a.register(32 << 20, Access::default()).expect("memory");
    let data: Vec<u8> = (0..32usize << 20).map(|i| (i * 31 + (i >> 12)) as u8).collect();
    ours.write_at(0, &data).expect("unused");
    let mut r2 = Some(r2);
    for step in 0..32u64 {
        let note = step.to_le_bytes();
        let how = RemoteOptions { silent: true, message: Some(&note), ..Default::default() };
        a.write(to_b, &ours, step << 20, &theirs.handle(), step << 20, 1 << 20, &how).expect("posted");
        if step == 16 {
            drop(r2.take());
            r2 = Some(sites.world.start(&sites.r2("one", "")));
        }
    }
    let mut notes = Vec::new();
    events(&a, &b, |event| {
        let Event::Received(note) = event else { panic!("{event:?}") };
        let step = u64::from_le_bytes(*note.first_chunk().expect("a note")) as usize;
        let mut there = vec![0; 1 << 20];
        theirs.read_at(step << 20, &mut there).expect("inside");
        assert!(there == data[step << 20..(step + 1) << 20], "block {step} differs");
        assert!(!notes.contains(&step), "a note came twice");
        notes.push(step);
        notes.len() == 32
    });
    drop((r2, s1));
}
