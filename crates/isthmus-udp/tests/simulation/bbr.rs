//! BBR version 1 as a neighbour, as in Linux (`tcp_bbr.c`; Cardwell et al., "BBR", 2016;
//! draft-cardwell-iccrg-bbr-congestion-control-00).
//!
//! It has Startup, Drain, ProbeBW's gain cycle, ProbeRTT, and the cap of two bandwidth-delay products. It leaves out
//! Linux's additions for token-bucket policers, aggregated acknowledgements and the first round of a recovery.

use std::collections::VecDeque;

use isthmus_udp::Micros;
use isthmus_udp::congestion::{AckSample, CongestionControl};

/// Gain of Startup: 2 / ln 2 doubles the delivery rate in each round.
const HIGH_GAIN: f64 = 2.885;
/// Pacing gains of ProbeBW's cycle; each lasts one round trip.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Gain of the congestion window, in bandwidth-delay products.
const WINDOW_GAIN: f64 = 2.0;
/// Length of the bandwidth's max filter. Round trips.
const BANDWIDTH_ROUNDS: u64 = 10;
/// The pipe is full after `FULL_ROUNDS` rounds in which the bandwidth grew by less than the factor `FULL_GROWTH`.
const FULL_ROUNDS: u32 = 3;
const FULL_GROWTH: f64 = 1.25;
/// How long the minimum RTT is valid, how long ProbeRTT lasts, and its congestion window (packets).
const RTT_LASTS_US: Micros = 10_000_000;
const PROBE_RTT_US: Micros = 200_000;
const PACKETS_MIN: u64 = 4;
/// Linux paces 1 % below the bandwidth.
const PACING_MARGIN: f64 = 0.99;
/// Initial window (RFC 6928). Packets.
const PACKETS_FIRST: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt { until: Micros },
}

/// An acknowledgement: its arrival, the departure of the newest packet it covers, and the bytes delivered by then.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Micros,
    sent_at: Micros,
    delivered: u64,
}

/// The state of BBR.
#[derive(Debug)]
pub(crate) struct Bbr {
    state: State,
    /// Recent acknowledgements, the newest last. Covers a little more than a round trip.
    told: VecDeque<Told>,
    delivered: u64,
    round: u64,
    /// The largest delivery rate of each of the last rounds, with the round's number. Bytes/s.
    rates: VecDeque<(u64, f64)>,
    rtt_us: Micros,
    rtt_at: Micros,
    full_rate: f64,
    full_rounds: u32,
    is_full: bool,
    /// Phase of the gain cycle, and its start.
    phase: usize,
    phase_since: Micros,
    in_flight: u64,
    packet_bytes: u64,
}

impl Bbr {
    /// Starts in Startup.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Startup,
            told: VecDeque::new(),
            delivered: 0,
            round: 0,
            rates: VecDeque::new(),
            rtt_us: 0,
            rtt_at: 0,
            full_rate: 0.0,
            full_rounds: 0,
            is_full: false,
            phase: 2,
            phase_since: 0,
            in_flight: 0,
            packet_bytes: 1_500,
        }
    }

    fn bandwidth(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    fn product(&self, gain: f64) -> u64 {
        (gain * self.bandwidth() * self.rtt_us as f64 / 1e6) as u64
    }

    fn gain(&self) -> f64 {
        match self.state {
            State::Startup => HIGH_GAIN,
            State::Drain => 1.0 / HIGH_GAIN,
            State::ProbeBandwidth => CYCLE[self.phase],
            State::ProbeRtt { .. } => 1.0,
        }
    }

    /// Takes a delivery-rate sample (draft-cheng-iccrg-delivery-rate-estimation): bytes delivered since the newest
    /// packet left, divided by the longer of the send and the acknowledgement interval.
    fn note_rate(&mut self, sample: &AckSample, rtt_us: Micros) {
        self.delivered += sample.acked_bytes;
        let sent_at = sample.now - rtt_us;
        let before = self.told.iter().rposition(|told| told.at <= sent_at);
        if let Some(before) = before {
            self.told.drain(..before);
            let first = self.told[0];
            let took_us = (sample.now - first.at).max(sent_at.saturating_sub(first.sent_at));
            let rate = (self.delivered - first.delivered) as f64 * 1e6 / took_us.max(1) as f64;
            match self.rates.back_mut() {
                Some((round, best)) if *round == self.round => *best = best.max(rate),
                _ => self.rates.push_back((self.round, rate)),
            }
        }
        self.told.push_back(Told { at: sample.now, sent_at, delivered: self.delivered });
        let from = self.round.saturating_sub(BANDWIDTH_ROUNDS - 1);
        self.rates.retain(|(round, _)| *round >= from);
    }

    fn end_round(&mut self) {
        self.round += 1;
        if self.is_full {
            return;
        }
        let rate = self.bandwidth();
        if rate >= FULL_GROWTH * self.full_rate {
            (self.full_rate, self.full_rounds) = (rate, 0);
        } else {
            self.full_rounds += 1;
            self.is_full = self.full_rounds >= FULL_ROUNDS;
        }
    }

    /// Enters ProbeBW at any phase except 0.75. BBR chooses at random; here the clock decides.
    fn begin_cycle(&mut self, now: Micros) {
        self.state = State::ProbeBandwidth;
        let at = (now / 1_000 % 7) as usize;
        (self.phase, self.phase_since) = (if at == 0 { 0 } else { at + 1 }, now);
    }

    fn go_on_in_cycle(&mut self, sample: &AckSample) {
        let passed = sample.now - self.phase_since > self.rtt_us;
        let gain = self.gain();
        let ends = if gain > 1.0 {
            passed && (sample.lost_packets > 0 || self.in_flight >= self.product(gain))
        } else if gain < 1.0 {
            passed || self.in_flight <= self.product(1.0)
        } else {
            passed
        };
        if ends {
            (self.phase, self.phase_since) = ((self.phase + 1) % CYCLE.len(), sample.now);
        }
    }

    fn note_rtt(&mut self, now: Micros, rtt_us: Micros) {
        let expired = self.rtt_at > 0 && now - self.rtt_at > RTT_LASTS_US;
        if self.rtt_us == 0 || rtt_us <= self.rtt_us || expired {
            (self.rtt_us, self.rtt_at) = (rtt_us, now);
        }
        if expired && !matches!(self.state, State::ProbeRtt { .. }) {
            self.state = State::ProbeRtt { until: Micros::MAX };
        }
    }

    fn probe_rtt(&mut self, now: Micros, until: Micros) {
        if until == Micros::MAX && self.in_flight <= PACKETS_MIN * self.packet_bytes {
            self.state = State::ProbeRtt { until: now + PROBE_RTT_US.max(self.rtt_us) };
        } else if now >= until {
            self.rtt_at = now;
            if self.is_full {
                self.begin_cycle(now);
            } else {
                self.state = State::Startup;
            }
        }
    }
}

impl CongestionControl for Bbr {
    fn on_ack(&mut self, sample: &AckSample) {
        (self.in_flight, self.packet_bytes) = (sample.in_flight, sample.packet_bytes);
        if let (Some(there), Some(back)) = (sample.queue_us, sample.back_us) {
            let rtt_us = sample.rtt_least_us + there + back;
            self.note_rate(sample, rtt_us);
            self.note_rtt(sample.now, rtt_us);
        } else {
            self.delivered += sample.acked_bytes;
        }
        if sample.round_ended {
            self.end_round();
        }
        match self.state {
            State::Startup if self.is_full => self.state = State::Drain,
            State::Drain if self.in_flight <= self.product(1.0) => self.begin_cycle(sample.now),
            State::ProbeBandwidth => self.go_on_in_cycle(sample),
            State::ProbeRtt { until } => self.probe_rtt(sample.now, until),
            State::Startup | State::Drain => {}
        }
    }

    fn on_silence_ended(&mut self) {}

    fn window_bytes(&self) -> u64 {
        let first = PACKETS_FIRST * self.packet_bytes;
        match self.state {
            State::ProbeRtt { .. } => PACKETS_MIN * self.packet_bytes,
            // Until the pipe is full, the window grows by the bytes delivered.
            _ if !self.is_full => (first + self.delivered).min(self.product(HIGH_GAIN).max(first)),
            State::Drain => self.product(HIGH_GAIN),
            _ => self.product(WINDOW_GAIN).max(PACKETS_MIN * self.packet_bytes),
        }
    }

    fn pace(&self) -> u64 {
        let rate = self.bandwidth();
        if rate == 0.0 {
            let rtt_us = if self.rtt_us == 0 { 1_000 } else { self.rtt_us };
            return (HIGH_GAIN * (PACKETS_FIRST * self.packet_bytes) as f64 * 1e6 / rtt_us as f64) as u64;
        }
        ((PACING_MARGIN * self.gain() * rate) as u64).max(1)
    }

    fn capacity(&self) -> Option<u64> {
        None
    }

    fn hold(&mut self, _cap: u64) {}

    fn recall(&mut self, _capacity: u64, _rtt_us: Micros) {}

    fn name(&self) -> &'static str {
        "bbr"
    }
}
