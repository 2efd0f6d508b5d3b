//! A control that does not take loss for congestion: it models the path.
//!
//! What a path is capable of shows when a queue stands at its bottleneck: then what arrives,
//! by the receiver's clock, arrives at the bottleneck's rate less what is lost by chance. So
//! this control keeps a small queue standing, of 1 to 4 ms, sees it by the one-way delay,
//! and once in a round trip sets the capacity to *delivery rate / (1 - loss)*. Where no
//! queue stands it sends a little faster, and faster still each time that makes none; the
//! window of capacity times round trip and queue bounds what a wrong guess can do.
//!
//! Loss is held to be chance if it does not come with a queue, and does not go when less is
//! sent: a trial of some round trips. Where a long queue stands that is not its own doing, the
//! path is shared with somebody who fills queues; then it does as CUBIC does, except that it
//! passes over losses up to what is known to be chance, and has no more than half of what is under way,
//! until the queue has gone (`shared.rs`).
//!
//! Flows of one host that use one path are planned for together (RFC 3124): one of them leads, judges
//! by what all deliver, and says how fast all send and how much is under way; each has its share of
//! the pace, and of the window what the others leave, but at least its share. So who begins starts from that,
//! who ends leaves it to the others at once, and one alone tries for more.
//!
//! Where the receiver's processor does not keep up, that is the bottleneck, and its socket the queue (`reader.rs`).
//!
//! Times are those of the pacer's quanta, which are shorter on a short path (`pacer.rs`): its queue holds little more
//! than its bursts, and more than what goes ahead of them shows nothing. What is sent there first is what such
//! a queue holds, and the window makes up for acknowledgements that wait behind what the other end sends.
//!
//! Where delay does not answer to sending less (`probe.rs`), or losses show a policer, the path is not steady: BBR's
//! model decides from then on (`model.rs`). docs/rate-control.md describes both.
//!
//! A new path is measured by the dispersion of the first flight: a queue that grows while it
//! passes tells the bottleneck's rate within one round trip. On a path that is too fast for that, flights
//! go at the rate at which those before have arrived, and become several times as long (`burst.rs`).
//! Model-based controls are in
//! Cardwell et al., "BBR" (2016); small standing queues in Wei et al., "FAST TCP" (2006).

mod background;
mod burst;
mod group;
mod model;
mod probe;
mod reader;
mod round;
mod shared;
mod start;
mod verify;

use isthmus_ledger::{Group, Plan};

use super::{AckSample, CongestionControl, Cubic, Limits, per_second};
use crate::Micros;
use crate::pacer::{QUANTUM_US, is_short, quantum_us};
use background::Background;
use burst::{Arrival, Bursts};
use group::Role;
use model::Model;
use probe::{Floor, Probe};
use reader::Reader;
use round::{Losses, Round};

/// Least time over which a round is judged; on a short path so many quanta, and round trips. Microseconds.
const ROUND_US: Micros = 4_000;
const ROUND_QUANTA: Micros = 4;
const ROUND_RTTS: Micros = 2;
/// Least dispersion of a flight that tells a rate. Microseconds.
const TRAIN_US: Micros = 1_000;
/// Packets of the same.
const TRAIN_PACKETS: u64 = 8;
/// Half the quanta that acknowledgements which come late and sending in quanta need of the window.
const SLACK_HALVES: Micros = 5;
/// The part of a short round trip that the queue is which is kept standing.
const QUEUE_PART: Micros = 4;
/// Least that may go before anything is known of a path but that it is short. Bytes (wire).
const FIRST_LEAST: u64 = 96 << 10;
/// Between attempts to see the path without the queue of our own. Microseconds.
const DRAIN_EVERY_US: Micros = 4_000_000;
/// Chance losses up to which delay is put to the proof: the model tests chance by sending less, which costs more
/// than jitter does where much is lost (`overload` at 10 %).
const CHANCE_TESTED: f64 = 0.02;
/// Round trips before the first of them, and least before the second; where these take longer than that, as above.
const DRAIN_FIRST_ROUNDS: Micros = 2;
const DRAIN_ROUNDS: Micros = 12;
/// Packets that the window has beyond its length in time, so that the least flow grows.
const PACKETS_MORE: u64 = 2;
/// Most by which the capacity is guessed beyond what was seen to arrive, which is what was
/// guessed a round trip before.
const RAISE_MOST: f64 = 4.5;
/// Up to so many times the capacity at which a queue last stood it is raised in small steps.
const NEAR: f64 = 1.1;
/// Most that such a step adds.
const STEP_NEAR: f64 = 0.05;
/// Queue that such a step may make in a round trip. Microseconds.
const STEP_QUEUE_US: f64 = 8_000.0;
/// Share of the capacity that has to have been used where it is to be raised on a long path.
const USED: f64 = 0.7;
/// Rounds without growth after one that cost packets.
const HOLD_ROUNDS: u32 = 4;
/// By how much less is sent at least to see whether losses go.
const LESS_LEAST: f64 = 0.1;
/// Loss beyond the known that is not taken for noise.
const EXCESS_LEAST: f64 = 0.005;
/// Packets that may be lost beyond that without telling anything: in a small flow's round each
/// is a large share, and it would never learn what is lost by chance.
const EXCESS_PACKETS: f64 = 2.0;
/// What each flow's part of a queue is, where several share a path. Microseconds.
const SHARE_US: f64 = 1_500.0;
/// In what time it is forgotten where less arrives. Microseconds.
const LINE_LASTS_US: f64 = 30e6;
/// Most flows that it is reckoned to have room for.
const ROOM_MOST: f64 = 64.0;
/// Packets under way at which the queue has its nominal length.
const EVEN_PACKETS: f64 = 100.0;
/// By how many times it is longer at most, where the path is not short.
const EVEN_MOST: f64 = 3.0;
/// Packets under way of a flow for whose path another one is finding out what it carries.
const PACKETS_WAITING: u64 = 4;
/// Part of a start-up window that the rate which was seen has to fill in a round trip. Below it the window has grown by
/// slow start beyond what that rate explains, and slow start's pace counts.
const HINT_FILLS: f64 = 0.9;
/// Packets that what was told of chance losses counts for.
const ADOPTED_PACKETS: f64 = 2_000.0;
/// Most that all flows of a host are held to deliver, of the capacity that they go by, and of what a train has shown.
const ALL_MOST: f64 = 2.0;
const HINT_MOST: f64 = 1.25;
/// Packets that the ratio of chance losses remembers.
const MEMORY_PACKETS: f64 = 20_000.0;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing is known but that the capacity is at least so much.
    Start,
    Cruise,
    /// Less is sent for a round, so that our own queue drains.
    Drain,
    Shared(Cubic),
    /// Less is sent, as what arrived (bytes/s, wire) is not all that was sent: this share was lost.
    Verify {
        pace: f64,
        arrived: f64,
        loss: f64,
    },
    /// Half is sent, to see whether a queue is one, and whose.
    Probe(Probe),
}

/// Less is sent for a while, to see whether losses go.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Loss in excess of chance at which it began, and what was taken for chance.
    excess: f64,
    chance: f64,
    /// The capacity that was held for true before.
    capacity: f64,
    /// What became of what was sent since, and in how many rounds.
    seen: Losses,
    rounds: u32,
}

impl Trial {
    fn new(excess: f64, chance: f64, capacity: f64) -> Self {
        Self { excess, chance, capacity, seen: Losses::default(), rounds: 0 }
    }

    fn note(&mut self, losses: Losses) {
        self.seen.add(losses);
        self.rounds += 1;
    }

    /// Whether its rounds together lost about as much as before, though no one of them tells.
    fn was_in_vain(&self) -> bool {
        self.rounds >= HOLD_ROUNDS && self.seen.ratio() - self.chance >= 0.5 * self.excess
    }
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    limits: Limits,
    phase: Phase,
    /// Bytes/s (wire); 0 while unknown.
    capacity: f64,
    /// What a train of packets without data has shown of it, perhaps beside others' trains. Bytes/s
    /// (wire); 0 if there was none.
    hint: f64,
    /// What bursts in start-up have shown that made no queue.
    bursts: Bursts,
    /// What may be under way in start-up, as far as all flows of the host have shown it. Bytes (wire).
    proven: f64,
    /// The round trip, smoothed, and its least.
    rtt_us: Micros,
    rtt_least_us: Micros,
    packet_bytes: u64,
    /// What answers waited in queues on their way, smoothed, on a short path: behind what the other end sends they come
    /// late, and in heaps.
    back_us: Micros,
    round: Round,
    /// Losses by chance: lost and all packets.
    chance: (f64, f64),
    trial: Option<Trial>,
    /// The part of them that was verified: less was sent than arrived, and so much was lost.
    verified: f64,
    /// Rounds without more than what arrived, after losses that were congestion.
    quiet: u32,
    /// Share of a flight, or of a round, that a short queue dropped; 0: none did.
    overflow: f64,
    /// When one last did so in start-up, and how fast packets have arrived since.
    overflowed_at: Micros,
    arrival: Arrival,
    /// The longest queue that was seen. Microseconds.
    queue_most_us: Micros,
    /// The capacity when a queue last stood. Bytes/s (wire).
    known: f64,
    /// What arrived in the last rounds in which one stood, the newest first. Bytes/s (wire); 0:
    /// nothing is known.
    rates: [f64; 3],
    /// What the path was ever seen to carry of ours, in a burst: beside others' flows more than the
    /// capacity. Bytes/s (wire).
    line: f64,
    /// What start-up has shown of it may be a part only: others started meanwhile.
    unsure: bool,
    /// By how much the next round without a queue raises the rate.
    step: f64,
    hold: u32,
    shared_rounds: u32,
    /// Largest window of the rounds in which the path may already have been shared.
    window_before: u64,
    phase_since: Micros,
    /// When `Drain` last began, and how long to wait for the next. Microseconds.
    drained_at: Micros,
    drain_after_us: Micros,
    /// What left during `Drain` has not been heard of yet.
    check_drain: bool,
    /// How long `Shared` lasts before it is put to the proof. Microseconds.
    alone_after_us: Micros,
    floor: Floor,
    /// Where it is to use only what others leave.
    background: Option<Background>,
    model: Model,
    /// Rounds of start-up in which no more arrived than before, and the most that did. Bytes/s (wire).
    full_rounds: u32,
    full_rate: f64,
    /// Delay or loss has shown not to be a steady path's: the model decides.
    is_modelled: bool,
    /// Successive acknowledgements in start-up that told of a queue.
    queued: u32,
    /// What arrived in start-up since a queue stands, and what became of what went before.
    train: Round,
    beginning: Losses,
    /// Flights that were doubted.
    doubts: u32,
    /// When a round last ended.
    round_at: Micros,
    /// Rounds that say nothing: what they bring left under other circumstances.
    skip: u32,
    /// The receiver, while it does not read packets as fast as they come.
    reader: Reader,
    /// A plan was taken over, and no round has been judged since.
    adopted: bool,
    role: Role,
    /// The flows of this host that use the path, where it is not alone.
    group: Option<Group>,
}

impl Rate {
    /// Knows nothing of its path.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Start,
            capacity: 0.0,
            hint: 0.0,
            bursts: Bursts::default(),
            proven: 0.0,
            rtt_us: 0,
            rtt_least_us: 0,
            packet_bytes: 1_500,
            back_us: 0,
            round: Round::default(),
            chance: (0.0, 0.0),
            trial: None,
            verified: 0.0,
            quiet: 0,
            overflow: 0.0,
            overflowed_at: 0,
            arrival: Arrival::default(),
            queue_most_us: 0,
            known: 0.0,
            rates: [0.0; 3],
            line: 0.0,
            unsure: false,
            step: 0.0,
            hold: 0,
            shared_rounds: 0,
            window_before: 0,
            phase_since: 0,
            drained_at: 0,
            drain_after_us: 0,
            check_drain: false,
            alone_after_us: 0,
            floor: Floor::default(),
            background: None,
            model: Model::default(),
            full_rounds: 0,
            full_rate: 0.0,
            is_modelled: false,
            queued: 0,
            train: Round::default(),
            beginning: Losses::default(),
            doubts: 0,
            round_at: 0,
            skip: 0,
            reader: Reader::default(),
            adopted: false,
            role: Role::Alone,
            group: None,
        }
    }

    /// What all together may have under way. Bytes (wire).
    fn window_of_all(&self) -> f64 {
        let round_us = self.rtt_least_us + self.slack_us() + self.back_us + self.reader.queue_us();
        match self.phase {
            Phase::Start => {
                let hinted = self.hint * round_us as f64 / 1e6;
                let shown = self.bursts.window(&self.limits, round_us);
                let known = self.path_bytes(2 * round_us).max(hinted).max(shown).max(self.proven);
                known.max(self.first_window() as f64)
            }
            Phase::Cruise if self.is_modelled => {
                self.path_bytes(self.model.window_us(round_us + self.queue_us(), self.rtt_least_us))
            }
            Phase::Cruise | Phase::Verify { .. } => self.path_bytes(round_us + self.queue_us()),
            Phase::Drain if self.background.is_some() => self.path_bytes(round_us + self.queue_us()),
            Phase::Drain => {
                let least_us = if self.may_doubt() { 2 * QUANTUM_US } else { 0 };
                let less_us = (2 * self.queue_us()).max(least_us);
                self.path_bytes(round_us.saturating_sub(less_us).max(round_us / 2))
            }
            Phase::Shared(cubic) => self.beside_others(&cubic),
            Phase::Probe(probe) => probe.window,
        }
    }

    /// How fast all together send. Bytes/s (wire).
    fn pace_of_all(&self) -> f64 {
        let pace = match self.phase {
            Phase::Start if self.has_short_queue() && self.hint > 0.0 => self.hint,
            Phase::Start if let Some(rate) = self.bursts.rate(&self.limits) => rate,
            Phase::Start if self.capacity == 0.0 => self.limits.first_pace as f64,
            Phase::Start => 2.0 * self.capacity,
            Phase::Cruise if self.is_modelled => self.model.gain(self.chance()) * self.capacity,
            // By pace, so that the pacer does not make good for it when the window opens again.
            Phase::Drain if let Some(background) = self.background => {
                let part = background.queue_us as f64 / self.rtt_least_us.max(1) as f64;
                (1.0 - part.min(0.5)) * self.capacity
            }
            Phase::Cruise if self.quiet > 0 || self.background.is_some() => self.capacity,
            Phase::Cruise | Phase::Drain => 1.02 * self.capacity,
            Phase::Shared(cubic) => cubic.pace() as f64,
            Phase::Probe(Probe { cubic: Some(cubic), .. }) => cubic.pace() as f64,
            Phase::Probe(_) => self.capacity,
            Phase::Verify { pace, .. } => pace,
        };
        pace.min(self.limits.cap as f64)
    }

    /// What may go before anything is known of the path but its round trip: what a link of a tenth of the first pace,
    /// whose queue holds a round trip, does not lose. Bytes (wire).
    fn first_window(&self) -> u64 {
        let queue = per_second(self.limits.first_pace, 10_000_000) * self.rtt_least_us as f64 / 1e6;
        let most = self.limits.first_window;
        if self.rtt_least_us == 0 { most } else { (queue as u64).clamp(FIRST_LEAST.min(most), most) }
    }

    /// What acknowledgements come late and sending in quanta needs of the window. Microseconds.
    fn slack_us(&self) -> Micros {
        quantum_us(self.rtt_least_us) * SLACK_HALVES / 2
    }

    /// How many flows such as this one the path has room for, as far as is known.
    fn room_for(&self) -> f64 {
        (self.line / self.capacity.max(1.0)).clamp(1.0, ROOM_MOST)
    }

    /// The queue that is kept standing. Microseconds. A flow that has little under way keeps
    /// a longer one than a flow that has much, so that flows which share a path become equal
    /// (Kumar et al., "Swift", 2020).
    fn queue_us(&self) -> Micros {
        let packets = self.path_bytes(self.rtt_least_us + self.slack_us()) / self.packet_bytes as f64;
        let most = EVEN_MOST * quantum_us(self.rtt_least_us) as f64 / QUANTUM_US as f64;
        let scale = (EVEN_PACKETS / packets.max(1.0)).sqrt().clamp(0.5, most.max(1.0));
        let even = self.burst_us().unwrap_or((self.rtt_least_us / 32).clamp(1_000, 4_000));
        if self.background.is_some() { self.target_us() } else { (even as f64 * scale) as Micros }
    }

    /// On a short path, what the last of the packets that went together waits behind the others, and what a queue
    /// that is kept standing there has to be for the path to be busy meanwhile. Microseconds.
    fn burst_us(&self) -> Option<Micros> {
        let rtt_us = Some(self.rtt_least_us).filter(|rtt| is_short(*rtt))?;
        Some((rtt_us / QUEUE_PART).clamp(quantum_us(rtt_us), QUANTUM_US))
    }

    /// The queue that shows that the path is full. Microseconds. Where several send in quanta that come together,
    /// each waits behind the others' however much room there is between them.
    fn queue_least_us(&self) -> Micros {
        let others = (quantum_us(self.rtt_least_us) as f64 * (1.0 - self.own_share())) as Micros;
        (self.queue_us() / 2).max(others).max(self.burst_us().unwrap_or(0))
    }

    fn chance(&self) -> f64 {
        if self.chance.1 > 0.0 { (self.chance.0 / self.chance.1).min(0.9) } else { 0.0 }
    }

    /// Loss beyond which a round of `packets` had more than chance, whose losses come in runs.
    fn excess_above(&self, packets: u64, run: f64) -> f64 {
        let p = self.chance();
        let packets = packets.max(1) as f64;
        let deviation = (p.max(0.001) * (1.0 - p) / packets * runs(run)).sqrt();
        p + EXCESS_LEAST.max(4.0 * deviation)
            + EXCESS_PACKETS * if self.is_modelled { run.clamp(1.0, 10.0) } else { run.max(1.0) } / packets
    }

    fn learn_chance(&mut self, losses: Losses) {
        let packets = losses.all as f64;
        let keep = (1.0 - packets / MEMORY_PACKETS).max(0.0);
        self.chance = (self.chance.0 * keep + losses.lost as f64, self.chance.1 * keep + packets);
    }

    /// Takes this round's losses for chance, whatever was known before.
    fn accept_chance(&mut self, losses: Losses) {
        self.chance = (losses.lost as f64, losses.all as f64);
        self.verified = losses.ratio();
        self.trial = None;
    }

    fn enter(&mut self, now: Micros, phase: Phase) {
        if matches!(phase, Phase::Shared(_)) {
            self.rates = [0.0; 3];
        }
        if matches!(phase, Phase::Cruise) && self.is_modelled {
            self.begin_model();
        }
        self.phase = phase;
        self.phase_since = now;
        self.shared_rounds = 0;
    }

    /// The path is not steady: the model decides from now on.
    fn model_path(&mut self, now: Micros) {
        self.is_modelled = true;
        self.skip = 1;
        self.enter(now, Phase::Cruise);
    }

    /// A queue that this control alone does not make. Microseconds.
    fn long_queue_us(&self) -> Micros {
        3 * self.queue_us() + self.slack_us()
    }

    /// Whether it is time to look at the path without our own queue. If so, the next time is twice as far, up to
    /// [`DRAIN_EVERY_US`].
    fn is_drain_due(&mut self, sample: &AckSample) -> bool {
        let soon_us = DRAIN_ROUNDS * sample.rtt_us;
        let is_soon = self.may_doubt() && self.chance() < CHANCE_TESTED && soon_us <= DRAIN_EVERY_US;
        if self.drain_after_us == 0 {
            let first_us = if is_soon { DRAIN_FIRST_ROUNDS * sample.rtt_us } else { DRAIN_EVERY_US };
            (self.drained_at, self.drain_after_us) = (sample.now, first_us);
        }
        let is_due = sample.now - self.drained_at >= self.drain_after_us;
        if is_due {
            let least_us = if is_soon { soon_us } else { DRAIN_EVERY_US };
            self.drained_at = sample.now;
            self.drain_after_us = (2 * self.drain_after_us).clamp(least_us, DRAIN_EVERY_US);
        }
        is_due
    }

    /// Whether the bottleneck's queue has overflowed before it showed.
    fn has_short_queue(&self) -> bool {
        self.overflow > 0.0
    }

    fn reset_step(&mut self) {
        self.step = self.step_near();
    }

    /// A step that makes a queue of at most 8 ms in a round trip.
    fn step_near(&self) -> f64 {
        // A queue that overflowed has room for half of itself.
        let room_us = if self.has_short_queue() { self.queue_most_us as f64 / 2.0 } else { f64::MAX };
        let room_us =
            if self.background.is_some() { self.queue_us() as f64 * background::STEP } else { room_us };
        let alone = (STEP_QUEUE_US.min(room_us) / self.rtt_least_us.max(1) as f64).min(STEP_NEAR);
        alone.max(self.step_among())
    }

    /// A step that makes a queue of [`SHARE_US`] of a path that others use too, whoever takes it: so
    /// flows become equal.
    fn step_among(&self) -> f64 {
        if self.background.is_some() {
            return 0.0;
        }
        (SHARE_US / self.rtt_least_us.max(ROUND_US) as f64 * (self.room_for() - 1.0)).min(1.0)
    }

    /// The rate at which a flow has its part of a queue of this length. Bytes/s (wire).
    fn fair(&self, queue: Micros) -> f64 {
        self.line * (SHARE_US / queue.max(1) as f64).min(1.0)
    }

    /// Rounds to wait for what a raise does: it shows a round trip after the next, and on a long
    /// path another one before then would make the queue overflow.
    fn patience(&self) -> u32 {
        u32::from(STEP_QUEUE_US < STEP_NEAR * self.rtt_least_us as f64)
    }

    /// Takes in an acknowledgement where this flow's plan counts.
    fn on_sample(&mut self, sample: &AckSample) {
        self.hear_reader(sample);
        let sample = &AckSample { in_flight: sample.in_flight + self.others_in_flight(), ..*sample };
        self.round.note(sample, 3 * self.queue_us(), self.delivered());
        if sample.round_ended {
            self.round_at = sample.now;
        }
        if matches!(self.phase, Phase::Start) {
            return self.on_start(sample);
        }
        let rtt_us = sample.rtt_least_us;
        let least_us = (ROUND_QUANTA * quantum_us(rtt_us)).max(ROUND_RTTS * rtt_us).min(ROUND_US);
        let old_enough = self.round.since.is_some_and(|since| sample.now - since >= least_us);
        if sample.round_ended && (old_enough || sample.rtt_us >= least_us) {
            self.judge(sample);
        } else {
            self.feed(sample, false);
        }
    }

    /// A round trip has passed.
    fn judge(&mut self, sample: &AckSample) {
        let round = self.round;
        if self.gives_way(sample, &round) {
            self.round = Round::default();
            return;
        }
        if self.skip == 0 && !round.tells_rate() {
            return; // it goes on for another round trip
        }
        self.round = Round::default();
        let Some(queue) = round.queue_least_us.filter(|_| round.tells_rate()) else {
            self.skip = self.skip.saturating_sub(1);
            return;
        };
        let rate = self.rate_of(sample.now, &round);
        if std::mem::take(&mut self.check_drain)
            && matches!(self.phase, Phase::Cruise)
            && self.may_doubt()
            && self.chance() < CHANCE_TESTED
            && self.is_in_doubt(sample, queue)
            && !round.app_limited
            && queue < self.long_queue_us()
        {
            return self.begin_probe(sample, queue, None);
        }
        if self.skip > 0 {
            self.skip -= 1;
            // However it left: where a long queue stands all the time, no more than arrives gets through.
            let all_the_time = round.gap_us < sample.rtt_us / 4;
            let tells = all_the_time && self.is_long(sample.now, &round);
            if matches!(self.phase, Phase::Cruise) && queue >= 3 * self.queue_us() && tells {
                self.capacity = self.capacity.min(rate / (1.0 - self.chance()));
                self.note_known();
            }
            return;
        }
        // Who waited for another's plan sent next to nothing meanwhile: that pause says nothing of the path.
        if std::mem::take(&mut self.adopted) && 2 * round.led_by_us.max(round.gap_us) > sample.rtt_us {
            return;
        }
        match self.phase {
            Phase::Start => {}
            Phase::Cruise if self.is_modelled => self.cruise_by_model(sample, &round, queue, rate),
            Phase::Cruise => self.cruise(sample, &round, queue, rate),
            Phase::Drain => {
                self.enter(sample.now, Phase::Cruise);
                self.skip = if self.background.is_some() { background::DRAINED_ROUNDS } else { 1 };
                self.check_drain = true;
            }
            Phase::Shared(cubic) => self.share(sample, &round, queue, rate, cubic),
            Phase::Verify { arrived, loss, .. } => self.end_verify(sample, &round, rate, (arrived, loss)),
            Phase::Probe(probe) => self.end_probe(sample, &round, queue, rate, probe),
        }
    }

    /// At what rate all flows delivered in a round. Bytes/s (wire).
    fn rate_of(&self, now: Micros, round: &Round) -> f64 {
        // What arrives faster than it left has waited together; by itself it may have left as fast as all may.
        let most = 2.0 * self.pace_of_all();
        let span_us = if self.is_modelled { round.span_us.max(round.sent_span_us) } else { round.span_us };
        self.of_all(now, round, per_second(round.bytes, span_us).min(most))
    }

    fn cruise(&mut self, sample: &AckSample, round: &Round, queue: Micros, rate: f64) {
        if self.cruise_by_reader(round) {
            return;
        }
        let loses_much = round.loss() > start::CHANCE_MOST && queue < self.queue_us();
        if loses_much && !round.app_limited && self.may_doubt() {
            // A policer, or a queue that holds next to nothing.
            self.trial = Some(Trial::new(round.loss(), 0.0, 0.0));
            self.chance = (0.0, 0.0);
            self.capacity = rate;
            return self.model_path(sample.now);
        }
        let calm = round.calm();
        let above = |losses: Losses| self.excess_above(losses.all, sample.loss_run);
        let excess = calm.filter(|calm| calm.ratio() > above(*calm));
        let overflow = calm.is_none() && round.loss() > above(round.losses());
        let stands = queue >= self.queue_least_us();
        match calm {
            // Far fewer than are known.
            Some(calm) if calm.ratio() < 2.0 * self.chance() - above(calm) => self.accept_chance(calm),
            Some(calm) if excess.is_none() => self.learn_chance(calm),
            _ => {}
        }
        self.quiet = self.quiet.saturating_sub(1);
        if self.has_short_queue() && !round.app_limited && self.begins_verify(sample, rate, excess) {
            return;
        }
        let excess = excess.filter(|_| !self.has_short_queue());
        if let (Some(calm), Some(trial)) = (calm, &mut self.trial) {
            trial.note(calm);
        }
        if round.app_limited {
            self.capacity = self.capacity.max(rate / (1.0 - self.chance()));
        } else if let Some(losses) = excess {
            self.try_less(losses, rate);
        } else if stands {
            let usual = self.usual(rate);
            // Where the queue is long others send too: then what arrives now counts.
            let seen = if queue < 3 * self.queue_us() { usual } else { rate } / (1.0 - self.chance());
            self.line = seen.max(self.line * (-(sample.rtt_us as f64) / LINE_LASTS_US).exp());
            let more = (seen * (1.0 + self.step_among())).min(self.fair(queue));
            self.capacity = match self.background {
                Some(_) => seen.min(self.capacity),
                None if overflow => seen,
                None => seen.max(more),
            };
            self.note_known();
        } else if round.late_least_us.is_some_and(|late| late >= self.queue_us()) {
            // What was added lately shows: more of it would be too much.
            self.reset_step();
        } else if !overflow {
            self.raise(rate);
        }
        self.look_for_others(sample, round, queue);
    }

    /// A queue stood at this capacity: it is not more, whatever it was held for before.
    fn note_known(&mut self) {
        self.unsure = false;
        self.known = self.capacity;
        self.trial = self.trial.map(|trial| Trial { capacity: trial.capacity.min(self.capacity), ..trial });
        self.reset_step();
    }

    /// The rate of the last rounds in which a queue stood, this among them. What one alone had
    /// more or less than others came of somebody's processor being busy elsewhere.
    fn usual(&mut self, rate: f64) -> f64 {
        self.rates = [rate, self.rates[0], self.rates[1]];
        let [a, b, c] = self.rates;
        // Of two the larger; 0 stands for none.
        if c > 0.0 { a.max(b).min(a.max(c)).min(b.max(c)) } else { a.max(b) }
    }

    /// More is lost than by chance, and no long queue stands.
    fn try_less(&mut self, losses: Losses, rate: f64) {
        let more = losses.ratio() - self.chance();
        match self.trial {
            // It was for nothing that less was sent.
            Some(trial) if more >= 0.7 * trial.excess => {
                self.accept_chance(losses);
                self.capacity = trial.capacity.max(rate / (1.0 - self.chance()));
                self.hold = self.patience();
            }
            _ => {
                let (chance, capacity) = (self.chance(), self.capacity);
                self.trial = Some(Trial::new(more, chance, capacity));
                // What was sent at the capacity and is not lost, a path that is too slow for it carries. Less may
                // have arrived because less was sent.
                let carried = capacity * (1.0 - LESS_LEAST.max(2.0 * more));
                self.capacity = carried.max(rate / (1.0 - chance));
                self.hold = HOLD_ROUNDS;
            }
        }
        self.reset_step();
    }

    fn raise(&mut self, rate: f64) {
        if self.quiet > 0 || self.background.is_some_and(|background| background.watch > 0) {
            return;
        }
        if self.hold > 0 {
            self.hold -= 1;
            return;
        }
        if let Some(trial) = self.trial.take().filter(Trial::was_in_vain) {
            self.capacity = self.capacity.max(trial.capacity);
            self.hold = self.patience();
            return;
        }
        let seen = rate / (1.0 - self.chance());
        // On a long path it is known what the last raise brought.
        if self.patience() > 0 && seen < USED * self.capacity {
            return;
        }
        // Where no queue comes of it because the sender's own processor is the bottleneck, the
        // guess must not run away: what it then sends in a moment of leisure would be lost.
        let most = self.capacity.max(RAISE_MOST * seen);
        let grown = match self.background {
            Some(_) => self.capacity.max(seen) + self.step_near() * self.line,
            None => self.capacity.max(seen) * (1.0 + self.step),
        };
        // Beyond what the path was ever seen to carry there is most likely nothing.
        let line = if self.capacity < self.line { self.line } else { f64::MAX };
        self.capacity = grown.min(most).min(line).min(self.limits.cap as f64);
        let near_line = self.capacity < NEAR * self.line && self.capacity > self.line / NEAR;
        let near = !self.unsure && (near_line || self.capacity < NEAR * self.known);
        self.hold = self.patience();
        self.step = (self.step * 2.0).min(if near { self.step_near() } else { 1.0 });
        if let Some(patience) = self.reader.patience(self.rtt_least_us) {
            self.hold = self.hold.max(patience);
            self.reset_step();
        }
    }

    fn path_bytes(&self, us: Micros) -> f64 {
        self.capacity * us as f64 / 1e6
    }
}

/// By how much more the number of losses varies if they come in runs of geometric length, as of
/// the model of Gilbert.
fn runs(run: f64) -> f64 {
    (2.0 * run - 1.0).max(1.0)
}

impl CongestionControl for Rate {
    fn on_ack(&mut self, sample: &AckSample) {
        let mut sample = self.floor.note(sample);
        if let Some(background) = &mut self.background {
            sample = background.note(&sample);
        }
        let sample = &sample;
        (self.rtt_us, self.rtt_least_us) = (sample.rtt_us, sample.rtt_least_us);
        self.packet_bytes = sample.packet_bytes;
        self.queue_most_us = self.queue_most_us.max(sample.queue_us.unwrap_or(0));
        if let Some(back) = sample.back_us {
            let most = if is_short(sample.rtt_least_us) { self.slack_us() } else { 0 };
            self.back_us = ((7 * self.back_us + back) / 8).min(most);
        }
        if self.role != Role::Follows {
            self.on_sample(sample);
        } else if self.begins_among().is_some() {
            self.on_start_of_all(sample);
        }
    }

    fn on_silence_ended(&mut self) {
        self.round = Round::default();
        self.skip = 1;
    }

    fn window_bytes(&self) -> u64 {
        if let Some(group) = self.begins_among() {
            // The leader measures the path, and goes first.
            let left = group.plan.window.saturating_sub(group.others_in_flight);
            return left.max(PACKETS_WAITING * self.packet_bytes);
        }
        match (self.role, &self.group) {
            (Role::Follows, Some(group)) => self.part_of_window(group.plan.window as f64),
            _ if matches!(self.phase, Phase::Start) => self.window_of_all() as u64,
            _ => self.part_of_window(self.window_of_all()),
        }
    }

    fn pace(&self) -> u64 {
        let all = match (self.role, &self.group) {
            (Role::Follows, Some(group)) if group.plan.capacity > 0 => {
                group.plan.pace.min(self.limits.cap) as f64
            }
            (Role::Follows, Some(_)) => self.limits.first_pace as f64,
            _ => self.pace_of_all(),
        };
        let own = if matches!(self.phase, Phase::Start) && self.role != Role::Follows {
            all
        } else {
            all * self.own_share()
        };
        (own as u64).max(self.packet_bytes * 10).min(self.limits.cap).max(1)
    }

    fn pace_after(&self, in_flight: u64) -> u64 {
        // The burst that tells the rate goes first; what follows is not to overflow a queue.
        let all = if let Some(group) = self.begins_among() {
            let is_past = self.has_short_queue() || in_flight + group.others_in_flight > self.first_window();
            let grown = per_second(group.plan.window, self.rtt_least_us);
            let own = if self.has_short_queue() { self.hint } else { 0.0 };
            let hint = own.max(group.plan.pace as f64);
            // Slow start paces at twice the window in a round trip.
            let all = if own == 0.0 && hint < HINT_FILLS * grown { 2.0 * grown } else { hint };
            Some(all).filter(|all| is_past && *all > 0.0)
        } else {
            Some(self.hint).filter(|_| self.role != Role::Follows && self.is_past_burst(in_flight))
        };
        all.map_or(self.pace(), |all| ((all * self.own_share()) as u64).min(self.pace()).max(1))
    }

    fn on_group(&mut self, now: Micros, group: Option<&Group>) {
        self.join(now, group);
    }

    fn plan(&self) -> Option<Plan> {
        self.plan_for_all()
    }

    fn claim(&self, in_flight: u64, waiting: u64) -> u64 {
        let measures = self.role != Role::Follows && matches!(self.phase, Phase::Start);
        let begins = self.begins_among().is_some() || measures && !self.is_past_burst(in_flight);
        // The others must know of a flight before it leaves at once.
        if begins { (in_flight + waiting).min(self.window_bytes()).max(in_flight) } else { in_flight }
    }

    fn hold(&mut self, cap: u64) {
        self.limits.cap = cap;
    }

    fn capacity(&self) -> Option<u64> {
        (self.capacity > 0.0 && !matches!(self.phase, Phase::Start)).then_some(self.capacity as u64)
    }

    fn recall(&mut self, capacity: u64, rtt_us: Micros) {
        (self.capacity, self.known, self.line) = (capacity as f64, capacity as f64, capacity as f64);
        self.rtt_least_us = rtt_us;
        self.unsure = false;
        self.reset_step();
        self.enter(0, Phase::Cruise);
    }

    fn wants_train(&self) -> bool {
        let unknown = matches!(self.phase, Phase::Start)
            && self.capacity == 0.0
            && self.hint == 0.0
            && self.bursts.rate(&self.limits).is_none();
        unknown && self.role != Role::Follows
    }

    fn is_shallow(&self) -> bool {
        self.has_short_queue() || self.background.is_some()
    }

    fn name(&self) -> &'static str {
        if self.background.is_some() { "background" } else { "rate" }
    }

    fn phase(&self) -> &'static str {
        match self.phase {
            _ if self.role == Role::Follows => "follows",
            Phase::Start => "start",
            Phase::Cruise if self.background.is_some_and(|background| background.watch > 0) => "gives way",
            Phase::Cruise => "cruise",
            Phase::Drain => "drain",
            Phase::Shared(_) => "shared",
            Phase::Probe(_) => "probe",
            Phase::Verify { .. } => "verify",
        }
    }
}

#[cfg(test)]
mod tests;
