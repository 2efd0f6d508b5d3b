//! `Rate`, the default congestion control: it models the path, and does not take loss for congestion.
//!
//! A standing queue at the bottleneck shows the path's capacity: packets then arrive, by the receiver's clock, at the
//! bottleneck's rate less random losses. So this control keeps a small queue of 1 to 4 ms, which it sees by the one-way
//! delay. Once in a round trip it sets the capacity to *delivery rate / (1 - loss)*. Without a queue it sends a little
//! faster, and faster still each time that makes none. The window, capacity times round trip and queue, bounds what a
//! wrong guess can do.
//!
//! Loss counts as random if it comes without a queue, and does not go when less is sent: a trial of some round trips.
//! If a long queue stands that is not its own, others who fill queues share the path. This control then follows CUBIC
//! until the queue has gone, but ignores losses up to the known random loss, and has at most half of what is in flight
//! (`shared.rs`). If it starves beside them, because they do not give way to losses, it holds half (`compete.rs`).
//!
//! Flows of one host on one path share a plan (RFC 3124). One of them leads: it judges by what all deliver, and sets
//! the rate and window of all. Each flow has its share of the rate. Of the window it has what the others leave, but at
//! least its share of what flows without more to send do not have in flight. So a new flow starts from the plan, a flow
//! that ends leaves its part to the others at once, and only one tries for more.
//!
//! If the receiver's processor does not keep up, it is the bottleneck, and its socket the queue (`reader.rs`).
//!
//! Times are those of the pacer's quanta, which are shorter on a short path (`pacer.rs`): its queue holds little more
//! than its bursts. The first flight there is what such a queue holds. The window makes up for acknowledgements that
//! wait behind the other end's data.
//!
//! If delay does not answer to sending less (`probe.rs`), or losses show a policer, the path is not steady. BBR's model
//! decides from then on (`model.rs`). docs/rate-control.md describes both.
//!
//! The dispersion of the first flight measures a new path: a queue that grows while it passes tells the bottleneck's
//! rate within one round trip. On a path too fast for that, each flight leaves at the rate at which the last ones
//! arrived, and is several times as long (`burst.rs`). Model-based controls are in Cardwell et al., "BBR" (2016); small
//! standing queues in Wei et al., "FAST TCP" (2006).

mod aggregation;
mod background;
mod burst;
mod compete;
mod cruise;
mod floor;
mod group;
mod marks;
mod model;
mod probe;
mod reader;
mod round;
mod shared;
mod start;
mod verify;

use isthmus_ledger::{Group, Plan};

use super::classic::PACING;
use super::{AckSample, CongestionControl, Cubic, Limits, Silence, per_second};
use crate::Micros;
use crate::pacer::{QUANTUM_US, is_short, quantum_us};
use aggregation::Aggregation;
use background::Background;
use burst::{Arrival, Bursts};
use compete::{Compete, Share};
use floor::Floor;
use group::Role;
use model::Model;
use probe::Probe;
use reader::Reader;
use round::{Losses, Round};

/// Least time over which a round is judged. Microseconds.
const ROUND_US: Micros = 4_000;
/// The same on a short path, in quanta and in round trips. The longer counts, up to `ROUND_US`.
const ROUND_QUANTA: Micros = 4;
const ROUND_RTTS: Micros = 2;
/// Least dispersion of a flight that tells a rate. Microseconds.
const TRAIN_US: Micros = 1_000;
/// Least packets of such a flight.
const TRAIN_PACKETS: u64 = 8;
/// Half quanta that the window needs for late acknowledgements and sending in quanta.
const SLACK_HALVES: Micros = 5;
/// Part of a short round trip that the standing queue is.
const QUEUE_PART: Micros = 4;
/// Smallest initial window, on a path known only to be short. Bytes (wire).
const FIRST_MIN: u64 = 96 << 10;
/// Interval between drains, which show the path without our own queue. Microseconds.
const DRAIN_EVERY_US: Micros = 4_000_000;
/// Random loss up to which delay is tested. The model tests random loss by sending less, which costs more than jitter
/// does if much is lost (`overload` at 10 %).
const CHANCE_TESTED: f64 = 0.02;
/// Round trips before the first drain, and least before the second. `DRAIN_EVERY_US` counts if it is shorter.
const DRAIN_FIRST_ROUNDS: Micros = 2;
const DRAIN_ROUNDS: Micros = 12;
/// Acknowledgements may be overdue for this part of a round trip before the window stops the flow. The socket of a
/// receiver that stands still has to hold what leaves meanwhile.
const SILENCE_PART: Micros = 2;
/// A path that carries less than this share of what it carried in a burst may police the flow.
const HELD: f64 = 0.5;
/// Packets added to the window, so that the smallest flow can grow.
const PACKETS_MORE: u64 = 2;
/// Largest guess of the capacity as a multiple of the delivery rate, which is what was guessed a round trip before.
const RAISE_MAX: f64 = 4.5;
/// Raises are small up to this multiple of the capacity at which a queue last stood.
const NEAR: f64 = 1.1;
/// Largest small raise, as a share.
const STEP_NEAR: f64 = 0.05;
/// Queue that a small raise may make in a round trip. Microseconds.
const STEP_QUEUE_US: f64 = 8_000.0;
/// Share of the capacity that must be in use before it is raised on a long path.
const USED: f64 = 0.7;
/// Rounds without a raise after one that cost packets.
const HOLD_ROUNDS: u32 = 4;
/// Least share by which a trial sends less, to see whether losses go.
const LESS_MIN: f64 = 0.1;
/// Share of loss beyond the random one that still passes for noise.
const EXCESS_MIN: f64 = 0.005;
/// Packets lost beyond that which still tell nothing. Each is a large share of a small flow's round, and the flow would
/// never learn its random loss.
const EXCESS_PACKETS: f64 = 2.0;
/// Each flow's part of a queue if several share a path. Microseconds.
const SHARE_US: f64 = 1_500.0;
/// Time in which the highest rate seen (`line`) decays if less arrives. Microseconds.
const LINE_LASTS_US: f64 = 30e6;
/// Most flows that the path is assumed to have room for.
const ROOM_MAX: f64 = 64.0;
/// Packets in flight at which the standing queue has its nominal length.
const EVEN_PACKETS: f64 = 100.0;
/// Largest factor by which the standing queue is longer, if the path is not short.
const EVEN_MAX: f64 = 3.0;
/// Packets in flight of a flow that waits while another one measures the path.
const PACKETS_WAITING: u64 = 4;
/// Part of a start-up window that the rate seen must fill in a round trip. Below it slow start has grown the window
/// beyond that rate, and slow start's pace counts.
const HINT_FILLS: f64 = 0.9;
/// Packets that a plan's random loss counts for when it is adopted.
const ADOPTED_PACKETS: f64 = 2_000.0;
/// Limit of what all flows of a host can deliver, as a multiple of their capacity and of a train's rate.
const ALL_MAX: f64 = 2.0;
const HINT_MAX: f64 = 1.25;
/// Packets that the ratio of random losses remembers.
const MEMORY_PACKETS: f64 = 20_000.0;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing is known but a lower bound of the capacity.
    Start,
    Cruise,
    /// Less is sent for a round, to drain our own queue.
    Drain,
    /// Others fill the path.
    Shared(Cubic),
    /// Others fill the path and do not give way to losses.
    Compete(Compete),
    /// Less is sent than arrived (bytes/s, wire), because the share `loss` was lost.
    Verify {
        pace: f64,
        arrived: f64,
        loss: f64,
    },
    /// Half is sent, to see whether a delay is a queue, and whose.
    Probe(Probe),
}

/// A trial: less is sent for a while, to see whether losses go.
#[derive(Clone, Copy, Debug)]
struct LossTrial {
    /// Loss beyond the random one when it began, and what counted as random.
    excess: f64,
    chance: f64,
    /// Capacity assumed before. Bytes/s (wire).
    capacity: f64,
    /// Packets and losses since then, and in how many rounds.
    seen: Losses,
    rounds: u32,
}

impl LossTrial {
    fn new(excess: f64, chance: f64, capacity: f64) -> Self {
        Self { excess, chance, capacity, seen: Losses::default(), rounds: 0 }
    }

    fn note(&mut self, losses: Losses) {
        self.seen.add(losses);
        self.rounds += 1;
    }

    /// Whether its rounds together lost about as much as before, even if no single one tells.
    fn was_in_vain(&self) -> bool {
        self.rounds >= HOLD_ROUNDS && self.seen.ratio() - self.chance >= 0.5 * self.excess
    }
}

/// The rate control; see the module's text.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    limits: Limits,
    phase: Phase,
    /// Capacity. Bytes/s (wire); 0 while unknown.
    capacity: f64,
    /// Rate that start-up has shown by packet trains, a short queue, or all flows of the host together. Bytes/s (wire);
    /// 0 if none.
    hint: f64,
    /// What bursts in start-up have shown that made no queue.
    bursts: Bursts,
    /// Window in start-up that all flows of the host have shown to be safe. Bytes (wire).
    proven: f64,
    /// Smoothed round trip, and its least.
    rtt_us: Micros,
    rtt_least_us: Micros,
    packet_bytes: u64,
    /// Smoothed queueing delay of acknowledgements on a short path: behind the other end's data they come late and
    /// bunched.
    back_us: Micros,
    aggregation: Aggregation,
    round: Round,
    /// Random losses: packets lost, and all packets.
    chance: (f64, f64),
    trial: Option<LossTrial>,
    /// Random loss that was verified by sending less than arrived.
    verified: f64,
    /// Rounds left without a raise, after congestion losses.
    quiet: u32,
    /// Share of a flight or round that a short queue dropped; 0 if none did.
    overflow: f64,
    /// When one last did so in start-up, and how fast packets have arrived since.
    overflowed_at: Micros,
    arrival: Arrival,
    /// Longest queue seen. Microseconds.
    queue_most_us: Micros,
    /// Capacity when a queue last stood. Bytes/s (wire).
    known: f64,
    /// Delivery rates of the last rounds with a queue, newest first. Bytes/s (wire); 0 if unknown.
    rates: [f64; 3],
    /// Highest rate that the path was seen to carry for us, in a burst. Beside others' flows it exceeds the capacity.
    /// Bytes/s (wire).
    line: f64,
    /// Start-up may have seen only a part of the path's rate: others started meanwhile.
    unsure: bool,
    /// Share by which the next round without a queue raises the rate.
    step: f64,
    hold: u32,
    shared_rounds: u32,
    /// Rounds with more delay than our own window makes.
    delayed_rounds: u32,
    /// What it knows about its share of the path.
    share: Share,
    /// Most bytes in flight in the rounds in which the path may already have been shared.
    window_before: u64,
    phase_since: Micros,
    /// When `Drain` last began, and the time until the next. Microseconds.
    drained_at: Micros,
    drain_after_us: Micros,
    /// Packets that left during `Drain` are not acknowledged yet.
    check_drain: bool,
    /// How long `Shared` lasts before a probe tests it. Microseconds.
    alone_after_us: Micros,
    floor: Floor,
    /// Set for a background flow.
    background: Option<Background>,
    model: Model,
    /// Rounds of start-up in which the delivery rate did not grow, and the highest so far. Bytes/s (wire).
    full_rounds: u32,
    full_rate: f64,
    /// A flight of start-up arrived unevenly.
    is_uneven: bool,
    /// The path's delay or loss is not steady: the model decides.
    is_modelled: bool,
    /// Successive acknowledgements in start-up that showed a queue.
    queued: u32,
    /// Arrivals in start-up since a queue stands, and losses before it.
    train: Round,
    beginning: Losses,
    /// Flights that start-up has doubted.
    doubts: u32,
    /// When a round last ended.
    round_at: Micros,
    /// Rounds left to ignore: their packets left under other conditions.
    skip: u32,
    /// State of a receiver that reads too slowly.
    reader: Reader,
    /// Set while routers mark packets.
    marked: Option<Cubic>,
    /// A plan was adopted, and no round has been judged since.
    adopted: bool,
    role: Role,
    /// The host's flows on this path; `None` if this one controls its rate alone.
    group: Option<Group>,
}

impl Rate {
    /// A control that knows nothing of its path.
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
            aggregation: Aggregation::default(),
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
            delayed_rounds: 0,
            share: Share::default(),
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
            is_uneven: false,
            is_modelled: false,
            queued: 0,
            train: Round::default(),
            beginning: Losses::default(),
            doubts: 0,
            round_at: 0,
            skip: 0,
            reader: Reader::default(),
            marked: None,
            adopted: false,
            role: Role::Alone,
            group: None,
        }
    }

    /// Window of all flows together. Bytes (wire).
    fn window_of_all(&self) -> f64 {
        let round_us = self.rtt_least_us
            + self.slack_us().max(self.aggregation.us(self.capacity))
            + self.back_us
            + self.reader.queue_us();
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
            Phase::Compete(state) => state.window,
            Phase::Probe(probe) => probe.window,
        }
    }

    /// Send rate of all flows together. Bytes/s (wire).
    fn pace_of_all(&self) -> f64 {
        let pace = match self.phase {
            Phase::Start if self.has_short_queue() && self.hint > 0.0 => self.hint,
            Phase::Start if let Some(rate) = self.bursts.rate(&self.limits) => rate,
            Phase::Start if self.capacity == 0.0 => self.limits.first_pace as f64,
            Phase::Start => 2.0 * self.capacity,
            Phase::Cruise if self.is_modelled => self.model.gain(self.chance()) * self.capacity,
            // Lowers the rate, so that the pacer does not catch up when the window opens again.
            Phase::Drain if let Some(background) = self.background => {
                let part = background.queue_us as f64 / self.rtt_least_us.max(1) as f64;
                (1.0 - part.min(0.5)) * self.capacity
            }
            Phase::Cruise if self.quiet > 0 || self.background.is_some() => self.capacity,
            Phase::Cruise | Phase::Drain => 1.02 * self.capacity,
            Phase::Shared(cubic) => cubic.pace() as f64,
            Phase::Compete(state) => PACING * state.window * 1e6 / self.rtt_us.max(1) as f64,
            Phase::Probe(Probe { cubic: Some(cubic), .. }) => cubic.pace() as f64,
            Phase::Probe(_) => self.capacity,
            Phase::Verify { pace, .. } => pace,
        };
        pace.min(self.limits.cap as f64)
    }

    /// Initial window of a path known only by its round trip. A link of a tenth of the first pace, whose queue holds a
    /// round trip, does not drop it. Bytes (wire).
    fn first_window(&self) -> u64 {
        let queue = per_second(self.limits.first_pace, 10_000_000) * self.rtt_least_us as f64 / 1e6;
        let most = self.limits.first_window;
        if self.rtt_least_us == 0 { most } else { (queue as u64).clamp(FIRST_MIN.min(most), most) }
    }

    /// Window needed for late acknowledgements and sending in quanta. Microseconds.
    fn slack_us(&self) -> Micros {
        quantum_us(self.rtt_least_us) * SLACK_HALVES / 2
    }

    /// How many flows like this one the path has room for, as far as is known.
    fn room_for(&self) -> f64 {
        (self.line / self.capacity.max(1.0)).clamp(1.0, ROOM_MAX)
    }

    /// Length of the standing queue. Microseconds. A flow with little in flight keeps a longer queue than one with
    /// much, so that flows that share a path become equal (Kumar et al., "Swift", 2020).
    fn queue_us(&self) -> Micros {
        let packets = self.path_bytes(self.rtt_least_us + self.slack_us()) / self.packet_bytes as f64;
        let most = EVEN_MAX * quantum_us(self.rtt_least_us) as f64 / QUANTUM_US as f64;
        let scale = (EVEN_PACKETS / packets.max(1.0)).sqrt().clamp(0.5, most.max(1.0));
        let even = self.burst_us().unwrap_or((self.rtt_least_us / 32).clamp(1_000, 4_000));
        if self.background.is_some() { self.target_us() } else { (even as f64 * scale) as Micros }
    }

    /// On a short path, how long the last packet of a burst waits behind the others. The standing queue has to be as
    /// long to keep the path busy meanwhile. Microseconds; `None` on other paths.
    fn burst_us(&self) -> Option<Micros> {
        let rtt_us = Some(self.rtt_least_us).filter(|rtt| is_short(*rtt))?;
        Some((rtt_us / QUEUE_PART).clamp(quantum_us(rtt_us), QUANTUM_US))
    }

    /// Shortest queue that shows a full path. Microseconds. If quanta of several flows coincide, each waits behind the
    /// others', however much room there is between them.
    fn queue_least_us(&self) -> Micros {
        let others = (quantum_us(self.rtt_least_us) as f64 * (1.0 - self.own_share())) as Micros;
        (self.queue_us() / 2).max(others).max(self.burst_us().unwrap_or(0))
    }

    /// Random loss, as far as it is made up for. Beside a flow that overflows the queue all the time, losses do not go
    /// when less is sent. Without this bound the rate would rise without end.
    fn chance(&self) -> f64 {
        if self.chance.1 > 0.0 { (self.chance.0 / self.chance.1).min(start::CHANCE_MAX) } else { 0.0 }
    }

    /// Share of loss above which a round of `packets` lost more than at random; losses come in runs of `run`. However long
    /// these are, at most [`start::CHANCE_MAX`] is added to the random loss.
    fn excess_above(&self, packets: u64, run: f64) -> f64 {
        let p = self.chance();
        let packets = packets.max(1) as f64;
        let deviation = (p.max(0.001) * (1.0 - p) / packets * runs(run)).sqrt();
        let noise = EXCESS_MIN.max(4.0 * deviation) + EXCESS_PACKETS * run.max(1.0) / packets;
        p + noise.min(start::CHANCE_MAX)
    }

    fn learn_chance(&mut self, losses: Losses) {
        let packets = losses.all as f64;
        let keep = (1.0 - packets / MEMORY_PACKETS).max(0.0);
        self.chance = (self.chance.0 * keep + losses.lost as f64, self.chance.1 * keep + packets);
    }

    /// Takes this round's losses for random, whatever was known before.
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

    /// Queue that this control alone does not make. Microseconds.
    fn long_queue_us(&self) -> Micros {
        3 * self.queue_us() + self.slack_us()
    }

    /// Whether it is time to drain our own queue, to see the path without it. If so, the time until the next doubles,
    /// up to [`DRAIN_EVERY_US`].
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

    /// A step that makes a queue of at most [`STEP_QUEUE_US`] in a round trip.
    fn step_near(&self) -> f64 {
        // After an overflow, a step may fill half of the longest queue seen.
        let room_us = if self.has_short_queue() { self.queue_most_us as f64 / 2.0 } else { f64::MAX };
        let room_us =
            if self.background.is_some() { self.queue_us() as f64 * background::STEP } else { room_us };
        let alone = (STEP_QUEUE_US.min(room_us) / self.rtt_least_us.max(1) as f64).min(STEP_NEAR);
        alone.max(self.step_among())
    }

    /// A step that makes a queue of [`SHARE_US`] on a path that others use too, whoever takes it: so flows become
    /// equal.
    fn step_among(&self) -> f64 {
        if self.background.is_some() {
            return 0.0;
        }
        (SHARE_US / self.rtt_least_us.max(ROUND_US) as f64 * (self.room_for() - 1.0)).min(1.0)
    }

    /// Rate at which a flow has its part of a queue of this length. Bytes/s (wire).
    fn fair(&self, queue: Micros) -> f64 {
        self.line * (SHARE_US / queue.max(1) as f64).min(1.0)
    }

    /// Rounds to wait after a raise. It shows a round trip after the next, and on a long path another raise before then
    /// would overflow the queue.
    fn patience(&self) -> u32 {
        u32::from(STEP_QUEUE_US < STEP_NEAR * self.rtt_least_us as f64)
    }

    /// Processes an acknowledgement if this flow's own plan counts.
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

    /// Judges the round that has ended.
    fn judge(&mut self, sample: &AckSample) {
        let round = self.round;
        if self.gives_way(sample, &round) {
            self.round = Round::after(sample.now, self.delivered());
            return;
        }
        let jumped = round.since.is_some_and(|since| self.floor.may_have_jumped_by(since));
        if jumped || self.skip == 0 && !round.tells_rate() {
            return; // the round goes on for another round trip
        }
        self.round = Round::after(sample.now, self.delivered());
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
            // A queue that was long all the time shows that no more than this gets through, however it left.
            let all_the_time = round.gap_us < sample.rtt_us / 4;
            let tells = all_the_time && self.is_long(sample.now, &round);
            if matches!(self.phase, Phase::Cruise) && queue >= 3 * self.queue_us() && tells {
                self.capacity = self.capacity.min(rate / (1.0 - self.chance()));
                self.note_known();
            }
            return;
        }
        // A flow that waited for another's plan sent next to nothing: that pause says nothing of the path.
        if std::mem::take(&mut self.adopted) && 2 * round.led_by_us.max(round.gap_us) > sample.rtt_us {
            return;
        }
        if self.begins_to_compete(sample, &round, rate) {
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
            Phase::Compete(state) => self.compete(sample, &round, rate, state),
            Phase::Verify { arrived, loss, .. } => self.end_verify(sample, &round, rate, (arrived, loss)),
            Phase::Probe(probe) => self.end_probe(sample, &round, queue, rate, probe),
        }
    }

    /// Rate that all flows delivered in a round. Bytes/s (wire).
    fn rate_of(&self, now: Micros, round: &Round) -> f64 {
        // Packets that arrive faster than they left have waited together. A flow may have sent at the rate of all.
        let most = 2.0 * self.pace_of_all();
        let span_us = if self.is_modelled { round.span_us.max(round.sent_span_us) } else { round.span_us };
        self.of_all(now, round, per_second(round.bytes, span_us).min(most))
    }

    /// Window of this flow, if no router marks packets. Bytes (wire).
    fn window_unmarked(&self) -> u64 {
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

    /// Send rate of this flow, if no router marks packets. Bytes/s (wire).
    fn pace_unmarked(&self) -> u64 {
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

    fn path_bytes(&self, us: Micros) -> f64 {
        self.capacity * us as f64 / 1e6
    }
}

/// Factor by which the number of losses varies more if they come in runs of geometric length (Gilbert's model).
fn runs(run: f64) -> f64 {
    (2.0 * run - 1.0).max(1.0)
}

impl CongestionControl for Rate {
    fn on_ack(&mut self, sample: &AckSample) {
        let before_us = self.floor.rtt_us;
        let mut sample = self.floor.note(sample);
        if self.floor.rtt_us > before_us {
            // The route is longer: what left before tells nothing of it.
            self.round = Round::default();
            self.skip = 1;
        }
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
        if is_short(sample.rtt_least_us) && self.capacity > 0.0 && !self.reader.is_strained() {
            self.aggregation.note(sample, self.capacity);
        }
        if self.role != Role::Follows {
            self.on_sample(sample);
        } else if self.begins_among().is_some() {
            self.on_start_of_all(sample);
        }
        self.on_marks(sample);
    }

    fn on_silence_ended(&mut self) {
        self.round = Round::default();
        self.skip = 1;
    }

    fn window_bytes(&self) -> u64 {
        let bound = self.bound_by_marks().map_or(u64::MAX, |(window, _)| window);
        self.window_unmarked().min(bound)
    }

    fn pace(&self) -> u64 {
        let bound = self.bound_by_marks().map_or(u64::MAX, |(_, pace)| pace);
        self.pace_unmarked().min(bound)
    }

    fn pace_after(&self, in_flight: u64) -> u64 {
        // The burst that measures the rate goes first. What follows must not overflow a queue.
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
        // The others must know of a burst before it leaves.
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
        self.has_short_queue() || self.background.is_some() || self.marked.is_some()
    }

    fn in_silence(&self) -> Option<Silence> {
        // If others' packets fill the queue, acknowledgements wait for those.
        let alone = self.may_doubt() && self.shared_rounds == 0;
        (alone && matches!(self.phase, Phase::Cruise)).then(|| Silence {
            rate: self.pace(),
            from_us: self.slack_us(),
            most_us: self.rtt_least_us / SILENCE_PART,
        })
    }

    fn is_policed(&self) -> bool {
        let alone = self.group.is_none_or(|group| group.count == 1);
        let shares = matches!(self.phase, Phase::Shared(_) | Phase::Compete(_));
        let loses = self.is_modelled || self.has_short_queue();
        let is_held = self.capacity < HELD * self.line.max(self.hint) || self.queue_most_us < QUANTUM_US;
        alone && !shares && loses && is_held
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
            Phase::Compete(_) => "compete",
            Phase::Probe(_) => "probe",
            Phase::Verify { .. } => "verify",
        }
    }
}

#[cfg(test)]
mod tests;
