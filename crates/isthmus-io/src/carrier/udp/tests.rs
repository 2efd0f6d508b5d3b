//! Tests of what UDP lanes find out about their paths.

use std::net::UdpSocket;

use isthmus_path::{Carrier, Policy};

use super::*;

fn open() -> (Udp, SocketAddr) {
    let settings = Settings::default();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket = isthmus_datagram::UdpSocket::bind(any, |_| {}).expect("loopback");
    let udp = Udp::open(PacketSocket::Udp(socket), PortConfig::default(), &settings);
    let udp = udp.expect("it opens");
    let at = rustix::net::getsockname(udp.fd()).expect("bound").try_into().expect("an address");
    (udp, at)
}

/// Delays packets to the target, and passes the answers on at once.
struct Relay {
    near: UdpSocket,
    far: UdpSocket,
    held: VecDeque<(Instant, Vec<u8>)>,
    client: Option<SocketAddr>,
}

impl Relay {
    fn new(target: SocketAddr) -> Self {
        let [near, far] = [(); 2].map(|()| {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            socket.set_nonblocking(true).expect("possible");
            socket
        });
        far.connect(target).expect("loopback");
        Self { near, far, held: VecDeque::new(), client: None }
    }

    fn at(&self) -> SocketAddr {
        self.near.local_addr().expect("bound")
    }

    fn pass(&mut self, hold: Duration) {
        let mut room = [0; 1 << 16];
        while let Ok((len, from)) = self.near.recv_from(&mut room) {
            self.client = Some(from);
            self.held.push_back((Instant::now() + hold, room[..len].to_vec()));
        }
        while self.held.front().is_some_and(|(at, _)| *at <= Instant::now()) {
            let _ = self.held.pop_front().map(|(_, packet)| self.far.send(&packet));
        }
        while let (Ok(len), Some(client)) = (self.far.recv(&mut room), self.client) {
            let _ = self.near.send_to(&room[..len], client);
        }
    }
}

#[test]
fn a_path_is_judged_by_the_round_trip_of_now_and_not_by_what_is_remembered() {
    const LONG: Duration = Duration::from_millis(40);
    let ((mut a, _), (mut b, at)) = (open(), open());
    let mut relay = Relay::new(at);
    let (to, mut ready) = (relay.at(), Vec::new());
    let hosts = || Hosts::new(Policy { may_choose: true });
    let (mut known, mut others) = (hosts(), hosts());
    let mut until = |a: &mut Udp, known: &mut Hosts, hold, done: &dyn Fn(&Udp, &Hosts) -> bool| {
        let since = Instant::now();
        while !done(a, known) {
            a.run_pass(&mut ready, known);
            b.run_pass(&mut ready, &mut others);
            relay.pass(hold);
            assert!(since.elapsed() < Duration::from_secs(30), "it takes too long");
        }
    };
    let mut lane = a.dial(to, &Key::NONE);
    let stream = lane.stream();
    lane.settle(0, &mut a).expect("it may carry at once");
    until(&mut a, &mut known, Duration::ZERO, &|a, _| lane.measured_rtt_us(a).is_some());
    a.port.with(a.now(), stream, Stream::abort);
    a.leave(stream);
    until(&mut a, &mut known, Duration::ZERO, &|a, _| a.port.learned(a.now(), to.ip()).is_some());
    // The path has become longer since.
    let mut lane = a.dial_provisionally(to, &Key::NONE, LONG, 0);
    assert!(lane.rtt_us(&a).is_some() && lane.measured_rtt_us(&a).is_none());
    lane.settle(1, &mut a).expect("it may carry at once");
    let carrier = |a: &Udp, hosts: &Hosts| hosts.plan(a.now(), to.ip()).carrier;
    until(&mut a, &mut known, 2 * LONG, &|a, hosts| carrier(a, hosts).is_some());
    assert_eq!(carrier(&a, &known), Some(Carrier::Udp));
}
