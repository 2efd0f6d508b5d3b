//! Drives an endpoint: takes in what has come on all ports, and does what is due.

use std::time::Instant;

use isthmus_proto::Micros;

use crate::datagrams::Datagrams;
use crate::inner::{Inner, LOOK, State};
use crate::ports::{Slot, peer_at, port_of, within};
use crate::talk::Parcel;

/// For this many polls after a datagram, only every eighth drives the engine. Count.
const DATAGRAM_POLLS: u32 = 255;
const DATAGRAM_PASSES: u32 = 8;

impl Inner {
    /// Takes in what has come, and does what is due.
    pub(crate) fn progress(&self, state: &mut State) {
        if state.armed {
            // The engine no longer rings, so a sleeping thread must look and arm again.
            state.armed = false;
            self.bell.ring();
            state.datagrams_first = 0;
        }
        let now = self.now();
        self.take_datagrams(state, now);
        state.datagrams_first = state.datagrams_first.saturating_sub(1);
        if state.datagrams_first.is_multiple_of(DATAGRAM_PASSES) {
            self.poll_engines(state, now);
            self.look_around(state);
        }
        if state.talk.poll_timeout().is_some_and(|at| at <= now) {
            state.talk.handle_timeout(now);
        }
        self.flush(state);
    }

    fn poll_engines(&self, state: &mut State, now: Micros) {
        let mut done = std::mem::take(&mut state.done);
        let mut found = None;
        for (at, port) in self.ports.iter().enumerate() {
            let beside = match self.ports.len() {
                1 => state.ports[at].datagrams.as_ref().map(Datagrams::as_fd),
                _ => Some(self.bell.beside()),
            };
            if port.engine.poll_beside(&mut done, beside) > 0 {
                found = Some(at);
                for completion in done.drain(..) {
                    self.take_completion(state, now, at, &completion);
                }
            }
            while let Some((peer, error)) = port.engine.poll_lost() {
                if let Ok(peer) = peer_at(at, peer) {
                    state.talk.on_lost(peer, &error);
                }
            }
        }
        state.done = done;
        if let Some(found) = found {
            self.note_found(Some(found));
        }
    }

    /// Prepares to sleep on the bell. False if an engine has completions.
    pub(crate) fn arm_engines(&self) -> bool {
        self.ports.iter().all(|port| port.engine.arm())
    }

    /// Tells the other ports' engines that the program found something, so that their polls do not sleep.
    fn note_found(&self, by: Option<usize>) {
        for (at, port) in self.ports.iter().enumerate() {
            if by != Some(at) {
                port.engine.note_found();
            }
        }
    }

    fn take_datagrams(&self, state: &mut State, now: Micros) {
        for port in 0..self.ports.len() {
            let State { ports, talk, .. } = state;
            let Some(datagrams) = &mut ports[port].datagrams else { continue };
            // Take as many as may wait; the kernel keeps or drops the others.
            while let Some((header, slot, len)) = datagrams.receive() {
                let parcel = Parcel { slot: Slot::Datagram { port, slot }.to_bits(), len };
                match talk.on_datagram(now, header, parcel) {
                    Some(peer) => datagrams.count_received(within(peer), len),
                    None => {
                        let bytes = datagrams.take(slot);
                        datagrams.give_back(bytes);
                    }
                }
                if talk.has_news() {
                    state.datagrams_first = DATAGRAM_POLLS;
                    return self.note_found(None);
                }
            }
        }
    }

    /// Every [`LOOK`], checks the devices, and gaps in the order of messages. The conversation must have everything
    /// that has come.
    fn look_around(&self, state: &mut State) {
        if state.looked_at.elapsed() < LOOK {
            return;
        }
        state.looked_at = Instant::now();
        for (at, port) in self.ports.iter().enumerate() {
            let State { talk, ports, .. } = state;
            let (device, known) = (&port.device, &mut ports[at]);
            let trouble = device.trouble(port.address.locator.ip());
            if trouble != known.trouble {
                known.trouble = trouble;
                let told = known.trouble.iter().map(|why| format!("device {}: {why}", device.name()));
                told.for_each(|why| talk.device_failed(why));
            }
            if !known.fabric_failed
                && let Some(why) = port.engine.fabric_failure()
            {
                known.fabric_failed = true;
                let instead = "new connections to peers go by TCP; mend the fabric, and open a new endpoint";
                talk.device_failed(format!(
                    "device {}: its fabric has failed: {why}; {instead}",
                    device.name()
                ));
            }
        }
        // Messages are matched in the order of sending. So if no message of the peer is under way, one that is missing
        // before a message that is here will never come. But it may have come since this pass began, so the gap must
        // still be there at the next look.
        for (link, place) in std::mem::take(&mut state.gaps) {
            state.talk.cut_gap(link, place);
        }
        let receiving = |peer| self.ports[port_of(peer)].engine.is_receiving(within(peer));
        state.gaps = state.talk.gaps(|peer| !receiving(peer));
    }
}
