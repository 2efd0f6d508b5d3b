//! Tests of what UDP lanes find out about their paths.

use std::net::UdpSocket;

use super::*;

fn open() -> (Udp, SocketAddr) {
    open_by(Transport::Auto)
}

fn open_by(transport: Transport) -> (Udp, SocketAddr) {
    let settings = Settings { transport, ..Settings::default() };
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
    let mut until = |a: &mut Udp, hold, done: &dyn Fn(&Udp) -> bool| {
        let since = Instant::now();
        while !done(a) {
            a.run_pass(&mut ready);
            b.run_pass(&mut ready);
            relay.pass(hold);
            assert!(since.elapsed() < Duration::from_secs(30), "it takes too long");
        }
    };
    let mut lane = a.dial(to, &Key::NONE);
    let stream = lane.stream();
    lane.settle(0, &mut a).expect("it may carry at once");
    until(&mut a, Duration::ZERO, &|a| lane.measured_rtt_us(a).is_some());
    a.port.with(a.now(), stream, Stream::abort);
    a.leave(stream);
    until(&mut a, Duration::ZERO, &|a| a.port.learned(a.now(), to.ip()).is_some());
    // The path has become longer since.
    let mut lane = a.dial_provisionally(to, &Key::NONE, LONG, 0);
    assert!(lane.rtt_us(&a).is_some() && lane.measured_rtt_us(&a).is_none());
    lane.settle(1, &mut a).expect("it may carry at once");
    until(&mut a, 2 * LONG, &|a| a.known(to.ip()).is_some());
    assert_eq!(a.known(to.ip()), Some(Known::Udp));
}

/// Accounts for bulk data to `host` for 10 s from `from` on; `busy` is the processor's share of time.
fn account_for(udp: &mut Udp, from: Micros, host: IpAddr, busy: f64) {
    let work = Work {
        bytes: 400_000_000,
        packets: 50_000,
        lost: 0,
        busy_us: (busy * 250_000.0) as Micros,
        far_busy_us: 0,
        is_held: false,
    };
    for look in 1..=40 {
        udp.reconsider(host, |trial, _| trial.look(from + look * 250_000, 24_000, 8_972, work));
    }
}

#[test]
fn lanes_to_a_host_rest_where_the_processor_holds_them_up_unless_an_administrator_chose() {
    let host = IpAddr::from([127, 0, 0, 1]);
    for (transport, chooses) in [(Transport::Auto, true), (Transport::Udp, false)] {
        let ((mut a, _), (_b, at)) = (open_by(transport), open());
        let mut lane = a.dial(at, &Key::NONE);
        lane.settle(3, &mut a).expect("it may carry at once");
        a.learn(host, Known::Udp, format_args!("a test says so"));
        a.account(0);
        account_for(&mut a, 0, host, 0.5);
        assert!(lane.bulk(&a) == Bulk::All && a.take_changed_bulk().is_empty());
        account_for(&mut a, 10_000_000, host, 0.97);
        assert_eq!((lane.bulk(&a) == Bulk::None, a.known(host) == Some(Known::Tcp)), (chooses, chooses));
        assert_eq!(a.take_changed_bulk(), if chooses { vec![(3, Bulk::None)] } else { Vec::new() });
        // A race that ends now changes nothing.
        a.learn(host, Known::Udp, format_args!("the round trip is long"));
        assert_eq!(a.known(host) == Some(Known::Tcp), chooses);
        a.on_lossy_path(host);
        assert_eq!(a.take_changed_bulk(), if chooses { vec![(3, Bulk::All)] } else { Vec::new() });
        assert_eq!((lane.bulk(&a), a.known(host)), (Bulk::All, Some(Known::Udp)));
    }
}
