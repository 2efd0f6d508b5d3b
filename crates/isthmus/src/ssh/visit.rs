//! `isthmus doctor --peer user@host`: tests what passes directly between this host and one that ssh reaches.

use std::time::{Duration, Instant};

use isthmus_io::Settings;
use isthmus_mover::MoverError;

use super::here::{Other, Words, own_ip};
use super::probe::{Door, Reach};
use super::{Answer, Back, Request};

/// The results.
pub(crate) struct Visit {
    /// Release of the other host's isthmus.
    pub(crate) release: String,
    /// Time from the start of ssh to the other side's first line.
    pub(crate) login: Duration,
    /// Round-trip time over ssh.
    pub(crate) ssh_rtt: Duration,
    /// From here to there. `None` if the other host does not know the address by which it was reached.
    pub(crate) to_there: Option<Reach>,
    /// From there to here, one entry for each address tried. The error says why this host cannot be probed.
    pub(crate) from_there: Result<Vec<Reach>, String>,
}

/// Starts isthmus at `login` by ssh, and lets both sides probe each other.
pub(crate) fn visit(login: &str, words: &Words, settings: &Settings) -> Result<Visit, MoverError> {
    let start = Instant::now();
    let mut other = Other::start(login, words, None)?;
    let took = start.elapsed();
    if other.ready.is_of_0_2_0() {
        let text = format!(
            "{login} has an older isthmus, which answers copies only: install the release of this host there"
        );
        return Err(MoverError::Refused(text));
    }
    let found = probes(login, &mut other, settings);
    let _ = other.child.kill();
    let _ = other.child.wait();
    let (ssh_rtt, to_there, from_there) = found?;
    Ok(Visit { release: other.ready.release, login: took, ssh_rtt, to_there, from_there })
}

type Found = (Duration, Option<Reach>, Result<Vec<Reach>, String>);

fn probes(login: &str, other: &mut Other, settings: &Settings) -> Result<Found, MoverError> {
    let door = match other.ready.probe {
        None => Err("that host does not know by which address it was reached".to_owned()),
        Some(there) => own_ip(there)
            .and_then(|ip| {
                let mut door = Door::open(ip, settings)?;
                door.answer_tcp()?;
                door.answer_udp()?;
                Ok(door)
            })
            .map_err(|error| error.to_string()),
    };
    let back = door.as_ref().ok().map(|door| Back { at: door.at, nonce: door.nonce });
    let unfit = || MoverError::Refused(format!("{login} does not answer what it was asked"));
    let asked = Instant::now();
    let Answer::Checking { udp } = other.ask(login, &Request::Check { check: back })? else {
        return Err(unfit());
    };
    let ssh_rtt = asked.elapsed();
    let to_there = other.ready.probe.map(|at| {
        let reach = Reach::try_at(at, &other.ready.nonce);
        match udp {
            Ok(()) => reach,
            Err(error) => Reach { udp: Err(format!("its port is taken there: {error}")), ..reach },
        }
    });
    let Answer::Checked(reached) = other.answer(login)? else { return Err(unfit()) };
    Ok((ssh_rtt, to_there, door.map(|_| reached)))
}
