//! Peers that come, leave or break off: what the engine keeps of them is bounded, and whom it calls back.

use isthmus_proto::{Action, Channel, Config, LaneLoss, Options, RecvRequest};
use isthmus_wire::frame::{self, Frame};
use isthmus_wire::{Address, SubnetId};

use super::{Victim, address, hello, message, send};
use crate::arena::KEY;

/// A peer comes, sends a message that no receive takes, leaves, and comes again under another address, 2000 times.
#[test]
fn what_peers_leave_behind_is_bounded() {
    let total: u64 = 4 << 20;
    let mut victim = Victim::with(Config { credit_total: total, ..Config::new(address(0)) });
    let mut held = Vec::new();
    for round in 0..2000 {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation: 1000 + round, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let bytes = if round % 2 == 0 { 60_000 } else { 0 };
        victim.say(lane, message(1, 0, bytes.into(), bytes), &vec![round as u8; bytes as usize]).unwrap();
        victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        victim.drain();
        held.push(victim.engine.gone_hold());
    }
    assert!(held.iter().all(|held| *held <= total / 4), "{:?}", held.iter().max());
    assert!(held[1999] > total / 8, "what there is room for stays");
    let dropped = victim.engine.take_gone_dropped();
    assert!((1950..2000).contains(&dropped), "{dropped}");
    // The messages of the last peers can still be received.
    let (channel, options) = (Channel::Tagged, Options::default());
    let request = RecvRequest { source: None, channel, tag: 1, ignore: 0, multi: None, options };
    for _ in dropped..2000 {
        let place = victim.mem.lend(vec![0; 60_000], true, false);
        victim.engine.recv(&request, place, 60_000, &mut victim.mem);
        assert_eq!(victim.engine.poll_completion().expect("received").error, None);
    }
    assert_eq!(victim.engine.gone_hold(), 0);
}

/// Peers come and leave again and again. The engine keeps nothing of those that the program never named, and refuses
/// one that comes back under the same address.
#[test]
fn peers_that_nobody_named_are_forgotten_when_they_have_left() {
    let mut victim = Victim::new();
    victim.engine.watch_peers();
    let come = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        (lane, victim.drain())
    };
    let leave = |victim: &mut Victim, lane, bye: bool| {
        if bye {
            victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        while victim.engine.poll_completion().is_some() {}
        while victim.engine.poll_lost().is_some() {}
    };
    let named = Address { incarnation: 999, ..address(1) };
    victim.engine.peer(&named).unwrap();
    let (lane, _) = come(&mut victim, named.incarnation);
    leave(&mut victim, lane, true);
    let most = (0..1000).map(|round| {
        let (lane, _) = come(&mut victim, 1000 + round);
        victim.say(lane, message(1, 0, 8, 8), &[7; 8]).unwrap();
        let request = RecvRequest {
            source: None,
            channel: Channel::Tagged,
            tag: 1,
            ignore: 0,
            multi: None,
            options: Options::default(),
        };
        let place = victim.mem.lend(vec![0; 8], true, false);
        victim.engine.recv(&request, place, 8, &mut victim.mem);
        leave(&mut victim, lane, true);
        victim.now += 1_000;
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        victim.engine.peers_kept()
    });
    let most = most.max().unwrap();
    assert!(most <= 8, "{most} are kept");
    assert!(
        victim.engine.peer_counters().count() > 1000,
        "the program is told at the end what was exchanged with them"
    );
    // The peer has said Bye. A caller under the same address is refused, and the engine keeps nothing of it.
    for incarnation in [1000, 1500] {
        let (lane, said) = come(&mut victim, incarnation);
        assert!(matches!(said[..], [Frame::Refuse(_)]), "{said:?}");
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
    }
    assert!(victim.engine.peers_kept() <= 8);
    // A program that names the peer now gets the error that it has left.
    let late = victim.engine.peer(&Address { incarnation: 1000, ..address(1) }).unwrap();
    send(&mut victim, late, 8);
    let error = victim.engine.poll_completion().and_then(|done| done.error).map(|error| error.to_string());
    assert!(error.is_some_and(|text| text.contains("has left")), "it is told");
}

/// Everybody can come to an open endpoint under ever new addresses. If its program keeps no numbers of lost peers, the
/// table of peers stays small, and those that the program has vouched for or named keep their numbers.
#[test]
fn the_table_of_an_open_endpoint_does_not_grow_with_those_who_have_left() {
    let named = Address { incarnation: 1, ..address(1) };
    let come_and_leave = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let peer = victim.engine.lane_peer(lane);
        if peer.is_some() {
            victim.say(lane, frame::Bye { connection: 0 }, &[]).unwrap();
        }
        if let Some(peer) = peer.filter(|_| incarnation == 2) {
            victim.engine.vouch_for(peer);
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        while victim.engine.poll_lost().is_some() {}
        peer
    };
    let kept = |reuses: bool| {
        let mut victim = Victim::new();
        victim.engine.watch_peers();
        if reuses {
            victim.engine.reuse_entries();
        }
        let first = victim.engine.peer(&named).unwrap();
        let second = come_and_leave(&mut victim, 2).expect("it has greeted");
        let mut most = 0;
        for incarnation in 3..20_003 {
            let peer = come_and_leave(&mut victim, incarnation).expect("it has greeted");
            assert!(peer != first && peer != second, "{incarnation}");
            assert_eq!(victim.engine.peer_address(peer).map(|at| at.incarnation), Some(incarnation));
            most = most.max(peer.0);
        }
        assert_eq!(victim.engine.peer(&named), Ok(first));
        assert_eq!(victim.engine.peer_address(second).map(|at| at.incarnation), Some(2));
        // Somebody of whom nothing is left may come again, as somebody new.
        assert_eq!(come_and_leave(&mut victim, 3).is_some(), reuses);
        most
    };
    assert!(kept(false) > 20_000, "the test would show nothing");
    assert!(kept(true) < 4_200, "entries are not used again");
}

/// Guests that break off without a farewell are waited for. At an open endpoint only the last of them are, however many
/// come, and those that the program has vouched for.
#[test]
fn guests_that_break_off_are_bounded_and_make_room_for_each_other_only() {
    let mut victim = Victim::new();
    victim.engine.watch_peers();
    victim.engine.reuse_entries();
    let come_and_break = |victim: &mut Victim, incarnation| {
        let lane = victim.engine.lane_accepted();
        let source = Address { incarnation, ..address(1) };
        victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]).unwrap();
        let peer = victim.engine.lane_peer(lane).expect("it has greeted");
        if incarnation == 2 {
            victim.engine.vouch_for(peer);
        }
        victim.drain();
        victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
        peer
    };
    let known = come_and_break(&mut victim, 2);
    let (mut most, mut lost) = (0, Vec::new());
    for incarnation in 3..20_003 {
        most = most.max(come_and_break(&mut victim, incarnation).0);
        lost.extend(std::iter::from_fn(|| victim.engine.poll_lost()).map(|(peer, _)| peer));
    }
    assert!(most < 5_400, "{most} entries");
    assert!(lost.len() > 18_000 && !lost.contains(&known), "{}: the program is told", lost.len());
    // A guest that the engine waits for comes back under its old entry.
    assert_eq!(come_and_break(&mut victim, 2), known);
    let last = come_and_break(&mut victim, 20_003);
    assert_eq!(come_and_break(&mut victim, 20_003), last);
    // A guest that was given up has departed, and its Hello is refused.
    let lane = victim.engine.lane_accepted();
    let source = Address { incarnation: 18_000, ..address(1) };
    let _ = victim.say(lane, frame::Hello { source, ..hello(1 << 20) }, &[]);
    assert_eq!(victim.engine.lane_peer(lane), None);
}

/// A guest claims to listen at a third host, asks for an answer, and breaks its lane. The engine dials the third host
/// only if the program itself has named the guest.
#[test]
fn nobody_has_an_endpoint_connect_to_a_third_host() {
    let claimed = Address { incarnation: 99, ..address(5) };
    let called = |named: bool| {
        let mut victim = Victim::new();
        let lane = victim.engine.lane_accepted();
        let seen: std::net::IpAddr = [10, 7, 7, 7].into();
        victim.engine.set_lane_origin(lane, seen);
        victim.say(lane, frame::Hello { source: claimed, ..hello(1 << 20) }, &[]).unwrap();
        let read = frame::Read { connection: 0, seq: 1, key: KEY, addr: 0, len: 1000, token: 5 };
        victim.say(lane, read, &[]).unwrap();
        if named {
            victim.engine.peer(&claimed).unwrap();
        }
        // Logs and budgets are about the host that it called from, too.
        let peer = victim.engine.lane_peer(lane).unwrap();
        let at = victim.engine.peer_locator(peer).unwrap().ip();
        assert_eq!(at, if named { claimed.locator.ip() } else { seen });
        victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
        for _ in 0..20 {
            victim.drain();
            while let Some(action) = victim.engine.poll_action() {
                if let Action::Dial { locator, .. } = action {
                    return (locator.ip() == seen, locator == claimed.locator);
                }
            }
            victim.now += 1_000_000;
            victim.engine.handle_timeout(victim.now, &mut victim.mem);
        }
        panic!("nobody is called")
    };
    assert_eq!((called(false), called(true)), ((true, false), (false, true)));
}

/// A guest of this subnet says that routers passed its Hello on. No router does so within a subnet.
#[test]
fn nobody_passes_for_a_router_to_have_an_endpoint_connect_to_a_third_host() {
    let claimed = Address { incarnation: 99, ..address(5) };
    let mut victim = Victim::new();
    let lane = victim.engine.lane_accepted();
    let seen: std::net::IpAddr = [10, 7, 7, 7].into();
    victim.engine.set_lane_origin(lane, seen);
    victim.say(lane, frame::Hello { source: claimed, hops: 1, ..hello(1 << 20) }, &[]).unwrap();
    let peer = victim.engine.lane_peer(lane).unwrap();
    assert_eq!(victim.engine.peer_locator(peer).unwrap().ip(), seen);
    assert_eq!(victim.engine.lane_locator(lane).unwrap(), claimed.locator, "what it claims is still known");
    let read = frame::Read { connection: 0, seq: 1, key: KEY, addr: 0, len: 1000, token: 5 };
    victim.say(lane, read, &[]).unwrap();
    victim.engine.lane_lost(0, lane, &LaneLoss::Closed, &mut victim.mem);
    for _ in 0..20 {
        victim.drain();
        while let Some(action) = victim.engine.poll_action() {
            if let Action::Dial { locator, .. } = action {
                assert_eq!(locator.ip(), seen);
                return;
            }
        }
        victim.now += 1_000_000;
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
    }
    panic!("nobody is called")
}

/// Budgets and logs of callers from other subnets are about the host of the router, since they can claim any address.
#[test]
fn a_caller_behind_routers_counts_as_one_of_the_last_router_s_host() {
    let router: std::net::IpAddr = [10, 7, 7, 7].into();
    let routers = vec![std::net::SocketAddr::new(router, 4000)];
    let mut victim = Victim::with(Config { routers, ..Config::new(address(0)) });
    let claimed = Address { subnet: SubnetId(9), incarnation: 99, ..address(5) };
    let lane = victim.engine.lane_accepted();
    victim.engine.set_lane_origin(lane, router);
    victim.say(lane, frame::Hello { source: claimed, hops: 2, ..hello(1 << 20) }, &[]).unwrap();
    let peer = victim.engine.lane_peer(lane).unwrap();
    assert_eq!(victim.engine.peer_locator(peer).unwrap().ip(), router);
    assert_eq!(victim.engine.peer_address(peer).unwrap().locator, claimed.locator);
    victim.engine.peer(&claimed).unwrap();
    assert_eq!(victim.engine.peer_locator(peer).unwrap(), claimed.locator, "the program has named it");
}

/// An open endpoint, of which everybody can be a guest, does not call a guest back to which it owes nothing.
#[test]
fn guests_that_are_owed_nothing_are_not_called_back() {
    let mut victim = Victim::new();
    let lane = victim.open();
    victim.say(lane, message(1, 0, 8, 8), &[7; 8]).unwrap();
    victim.drain();
    victim.engine.lane_lost(victim.now, lane, &LaneLoss::Closed, &mut victim.mem);
    for _ in 0..100 {
        victim.now += 1_000_000;
        victim.engine.handle_timeout(victim.now, &mut victim.mem);
        assert!(victim.engine.poll_action().is_none(), "after {} us", victim.now);
    }
}
