use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn ledger(heap: &Arc<Heap>, process: u32) -> Ledger {
    let owner = Owner { pid: process, started: 7 };
    Ledger::new(heap.clone(), owner, u64::from(process), |_| true).expect("a new one")
}

fn key() -> PathKey {
    PathKey::new(None, IpAddr::from([10, 2, 0, 1]))
}

const MANY: Report = Report { rate: 100, in_flight: 1_000, flows: 1, sends_little: false };

#[test]
fn a_path_leads_to_a_network_or_to_a_host_of_ones_own() {
    let key = |from: [u8; 4], to: [u8; 4]| PathKey::new(Some(from.into()), to.into());
    assert_eq!(key([10, 1, 0, 1], [10, 2, 0, 1]), key([10, 1, 0, 1], [10, 2, 0, 9]));
    assert_ne!(key([10, 1, 0, 1], [10, 2, 0, 1]), key([10, 1, 0, 2], [10, 2, 0, 1]));
    assert_ne!(key([10, 2, 0, 7], [10, 2, 0, 1]), key([10, 2, 0, 7], [10, 2, 0, 9]));
}

#[test]
fn who_sends_is_seen_by_all_until_it_rests_or_falls_silent() {
    let heap = Arc::new(Heap::default());
    let (a, b) = (ledger(&heap, 1), ledger(&heap, 2));
    let mut flows = [a.flow(key(), Kind::Paced), a.flow(key(), Kind::System), b.flow(key(), Kind::Paced)];
    assert_eq!(b.path_use(0, key()), PathUse::default());
    assert!(flows.iter_mut().all(|flow| flow.tell(10, MANY)));
    let seen = b.path_use(10, key());
    assert_eq!((seen.endpoints, seen.flows, seen.rate, seen.in_flight), (2, 3, 300, 3_000));
    flows[1].rest();
    assert_eq!(b.path_use(10, key()).flows, 2);
    flows[0].tell(10 + SILENT_US, MANY);
    assert_eq!(b.path_use(10 + SILENT_US, key()).endpoints, 1);
    drop(flows);
    assert_eq!(b.path_use(10, key()).flows, 0);
}

#[test]
fn one_leads_and_another_when_it_rests_or_sends_little() {
    let heap = Arc::new(Heap::default());
    let (a, b) = (ledger(&heap, 1), ledger(&heap, 2));
    let (mut one, mut two) = (a.flow(key(), Kind::Paced), b.flow(key(), Kind::Paced));
    assert!(one.tell(0, MANY) && two.tell(0, MANY));
    let leads = |flow: &mut Flow, now| flow.group(now).is_some_and(|group| group.leads);
    assert!(leads(&mut one, 1) && !leads(&mut two, 1));
    one.teach(1, &Plan { capacity: 800, pace: 1_000, window: 5, loss: 0.1, rtt_us: 9 });
    let group = two.group(2).expect("a place");
    assert_eq!((group.share, group.others_in_flight, group.delivered), (0.5, 1_000, 0));
    assert_eq!((group.plan.pace, group.plan.capacity, group.plan.loss), (1_000, 800, 0.1));
    one.tell(3, Report { sends_little: true, ..MANY });
    assert!(leads(&mut two, 3) && !leads(&mut one, 3));
    assert_eq!(two.group(3).map(|group| group.share), Some(0.875));
    one.tell(4, MANY);
    assert!(!leads(&mut one, 4));
    two.rest();
    assert!(leads(&mut one, 5));
    // A silent flow loses the lead to the next flow that asks.
    assert!(two.tell(5 + SILENT_US, MANY));
    assert!(leads(&mut two, 5 + SILENT_US));
}

/// What flows without more to send have in flight is counted for itself: the others share the rest of the window.
#[test]
fn a_flow_that_pauses_still_fills_a_part_of_the_window() {
    let heap = Arc::new(Heap::default());
    let (a, b) = (ledger(&heap, 1), ledger(&heap, 2));
    let mut flows = [&a, &a, &b].map(|ledger| ledger.flow(key(), Kind::Paced));
    assert!(flows.iter_mut().all(|flow| flow.tell(0, MANY)));
    let mut in_flight = |pauses: Option<usize>| {
        pauses.iter().for_each(|index| flows[*index].pause(false));
        flows[2].group(1).map(|group| (group.count, group.others_in_flight, group.paused_in_flight))
    };
    assert_eq!(in_flight(None), Some((3, 2_000, 0)));
    assert_eq!(in_flight(Some(0)), Some((2, 2_000, 1_000)));
    assert_eq!(in_flight(Some(1)), Some((1, 2_000, 2_000)));
}

#[test]
fn an_old_plan_is_a_hint_and_a_very_old_one_nothing() {
    let ledger = ledger(&Arc::new(Heap::default()), 1);
    let mut flow = ledger.flow(key(), Kind::Paced);
    let mut plan_at = |now, teach: bool| {
        assert!(flow.tell(now, MANY));
        if teach {
            flow.teach(now, &Plan { capacity: 800, pace: 1_000, window: 5, loss: 0.1, rtt_us: 9 });
        }
        flow.group(now).expect("a place").plan
    };
    assert_eq!(plan_at(1, true).capacity, 800);
    assert_eq!(plan_at(9_000_000, false).window, 5);
    let old = plan_at(11_000_000, false);
    assert_eq!((old.capacity, old.window, old.pace, old.loss), (0, 0, 1_000, 0.1));
    assert_eq!(ledger.path_use(11_000_000, key()).capacity, 800);
    assert_eq!(plan_at(LEARNED_LIFE_US + 2, false), Plan::default());
    assert_eq!(ledger.path_use(LEARNED_LIFE_US + 2, key()).capacity, 0);
}

#[test]
fn slots_of_processes_that_have_ended_are_taken_when_there_are_no_others() {
    let heap = Arc::new(Heap::default());
    let dead = Arc::new(AtomicBool::new(false));
    let one = ledger(&heap, 1);
    let lives = dead.clone();
    let owner = Owner { pid: 2, started: 7 };
    let two = Ledger::new(heap, owner, 2, move |of| of.pid != 1 || !lives.load(Ordering::Relaxed));
    let two = two.expect("a ledger");
    let mut flows: Vec<Flow> = Vec::new();
    loop {
        let mut flow = one.flow(key(), Kind::Paced);
        if !flow.tell(0, MANY) {
            break;
        }
        flows.push(flow);
    }
    assert_eq!(flows.len(), 128, "it is bounded");
    let mut late = two.flow(key(), Kind::Paced);
    assert!(!late.tell(10, MANY) && late.group(10).is_none());
    assert!(!late.tell(20 + SILENT_US, MANY), "silent, but it lives");
    dead.store(true, Ordering::Relaxed);
    assert!(late.tell(30 + 2 * SILENT_US, MANY));
    assert_eq!(two.path_use(30 + 2 * SILENT_US, key()).flows, 1);
    // If the old owner comes back, it does not take the slot away.
    drop(flows);
    assert!(late.tell(40 + 2 * SILENT_US, MANY) && late.group(40 + 2 * SILENT_US).is_some());
    assert_eq!(two.path_use(40 + 2 * SILENT_US, key()).flows, 1);
}

#[test]
fn paths_of_which_nothing_is_heard_give_way() {
    let heap = Arc::new(Heap::default());
    let ledger = ledger(&heap, 1);
    let path = |i: u8| PathKey::new(None, IpAddr::from([10, 3, 0, i]));
    let mut flows: Vec<Flow> = (0..40).map(|i| ledger.flow(path(i), Kind::Paced)).collect();
    let placed = |flows: &mut [Flow], now| {
        flows.iter_mut().filter_map(|flow| flow.tell(now, MANY).then_some(())).count()
    };
    assert_eq!(placed(&mut flows, 0), 32);
    assert_eq!(placed(&mut flows[32..], PATH_LIFE_US), 8);
    // The flows whose paths lost their records notice it.
    assert_eq!(placed(&mut flows[..32], PATH_LIFE_US + 1), 24);
}

/// Tries a new table, and one full of paths that are no longer used.
#[test]
fn who_begins_at_the_same_time_as_others_is_one_of_them() {
    for round in 0..600 {
        let heap = Arc::new(Heap::default());
        let start = if round % 2 == 0 { 0 } else { 2 * PATH_LIFE_US };
        if start > 0 {
            let before = ledger(&heap, 9);
            for i in 0..40 {
                before
                    .flow(PathKey::new(None, IpAddr::from([10, 3, 0, i])), Kind::Paced)
                    .tell(u64::from(i), MANY);
            }
        }
        let ready = std::sync::Barrier::new(3);
        let count = &|process| {
            let mut flow = ledger(&heap, process).flow(key(), Kind::Paced);
            for now in [start, start + 1] {
                ready.wait();
                flow.tell(now, MANY);
            }
            ready.wait();
            let count = flow.group(start + 1).map_or(0, |group| group.count);
            ready.wait();
            count
        };
        let counts = std::thread::scope(|scope| {
            let flows = [1, 2, 3].map(|process| scope.spawn(move || count(process)));
            flows.map(|flow| flow.join().expect("it counts"))
        });
        assert_eq!(counts, [3; 3], "round {round}");
    }
}

#[test]
fn what_is_no_ledger_is_refused() {
    let heap = Arc::new(Heap::default());
    heap.words()[0].store(1, Ordering::Relaxed);
    let owner = Owner { pid: 1, started: 1 };
    assert_eq!(Ledger::new(heap, owner, 1, |_| true).err(), Some(Unfit::Version));
    #[derive(Debug)]
    struct Short([std::sync::atomic::AtomicU64; 3]);
    impl Words for Short {
        fn words(&self) -> &[std::sync::atomic::AtomicU64] {
            &self.0
        }
    }
    assert_eq!(Ledger::new(Short(Default::default()), owner, 1, |_| true).err(), Some(Unfit::Length));
}

#[test]
fn whatever_stands_there_harms_nobody() {
    for seed in 1..200_u64 {
        let heap = Arc::new(Heap::default());
        let ledger = ledger(&heap, 1);
        let mut state = seed;
        for word in &heap.words()[1..] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.store(if state >> 62 == 0 { state } else { state >> 40 }, Ordering::Relaxed);
        }
        // The first record belongs to the path, as if other processes used it.
        heap.words()[16].store(key().0, Ordering::Relaxed);
        let mut flow = ledger.flow(key(), Kind::Paced);
        for now in [0, 1, u64::MAX / 4] {
            flow.tell(now, MANY);
            flow.group(now);
            flow.teach(now, &Plan::default());
            ledger.path_use(now, key());
            assert!(ledger.known_loss(now, key()).is_none_or(|loss| (0.0..=1.0).contains(&loss)));
        }
    }
}

#[test]
fn what_was_found_out_of_a_path_is_known_to_who_comes_later_for_some_minutes() {
    let heap = Arc::new(Heap::default());
    let (a, b) = (ledger(&heap, 1), ledger(&heap, 2));
    let mut flow = a.flow(key(), Kind::Paced);
    assert!(flow.tell(0, MANY));
    assert_eq!(b.known(1, key()), None);
    let plan = Plan { capacity: 800, pace: 1_000, window: 5, loss: 0.1, rtt_us: 9 };
    let taught = |now, plan: &Plan| {
        flow.teach(now, plan);
        b.known(now + 1, key())
    };
    assert_eq!(taught(1, &Plan { capacity: 0, ..plan }), None, "it is still finding out");
    assert_eq!(taught(2, &Plan { rtt_us: u64::MAX, ..plan }), None, "that is no path");
    assert_eq!(taught(3, &plan), Some(plan));
    assert_eq!(b.known_loss(4, key()), None);
    for loss in [0.0, 0.05] {
        flow.teach_loss(loss);
        assert_eq!(b.known_loss(4, key()), Some(loss));
    }
    drop(flow);
    assert_eq!(b.known_loss(LEARNED_LIFE_US, key()), Some(0.05));
    assert_eq!(b.known_loss(3 + LEARNED_LIFE_US, key()), None);
    assert_eq!(b.known(LEARNED_LIFE_US, key()), Some(plan));
    assert_eq!(b.known(3 + LEARNED_LIFE_US, key()), None);
    assert_eq!(b.ahead_by(LEARNED_LIFE_US).known(3, key()), None, "by the ledger's time");
}
