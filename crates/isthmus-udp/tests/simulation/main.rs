//! Simulations of streams over the lab's link model, in virtual time, with many seeds.
//!
//! `ISTHMUS_SEED=N` replays one seed of the tests that run many.

mod bbr;
mod both_ways;
mod caps;
mod choice;
mod crowd;
mod delivery;
mod disorder;
mod drawn;
mod exchanges;
mod fairness;
mod floors;
mod golden;
mod handshake;
mod hostile;
mod known;
mod latency;
mod marks;
mod messages;
mod neighbours;
mod net;
mod overload;
mod pieces;
mod ramp;
mod sealed;
mod seeds;
mod slow_back;
mod stalls;
mod steps;
mod tails;
mod together;
mod trickle;
mod wild;
