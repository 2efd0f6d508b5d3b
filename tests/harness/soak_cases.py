"""Faults under load, one after the other: two coupled jobs move gigabytes and exchange small
messages at the same time, while routers are killed and stopped and the WAN is cut.

What was moved decides when a fault comes, not a clock; so a slow machine meets the same
faults at the same places. Each must be overcome before the next one: both the transfer and
the exchange must have gone on. How long each paused is told.
"""

import re
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Callable

from .cases import Failure, must_pass
from .mpis import ISTHMUS
from .process import await_until
from .routed_cases import Case

# How much of both must have gone on after a fault before it counts as overcome.
BYTES_ON, ROUNDS_ON = 8 << 20, 20
# Seconds that a pause may last, beyond the fault's own length; a broken one lasts for ever.
PAUSE_MAX = 40
# Seconds between the looks at what was moved.
LOOK = 0.02


@dataclass
class Fault:
    """Comes once so much of the transfer has arrived."""

    name: str
    at: float  # share of the transfer
    strike: Callable
    length: float = 0  # seconds that it takes by itself
    heal: Callable = lambda net: None  # once it is overcome


def cut(seconds):
    """Takes the carrier off both ends of the WAN: no packet passes, and no host hears why."""

    def set_carrier(state):
        for gate in ("gate-a", "gate-b"):
            command = [str(ISTHMUS), "lab", "exec", gate, "--", "ip", "link", "set", "wan0", "carrier", state]
            subprocess.run(command, check=True, capture_output=True, text=True)

    def strike(_):
        set_carrier("off")
        time.sleep(seconds)
        set_carrier("on")

    return strike


def killed(net):
    net.routers["a"][0].send(signal.SIGKILL)


def started_again(net):
    router = net.routers["a"][0]
    router.job.end()
    router.start()


def stopped(net):
    net.routers["b"][1].send(signal.SIGSTOP)


def continued(net):
    net.routers["b"][1].send(signal.SIGCONT)


KILL = Fault("router of a killed", 0.1, killed, heal=started_again)
STOP = Fault("router of b stopped", 0.3, stopped, heal=continued)
SHORT_CUT = Fault("WAN cut for 2 s", 0.5, cut(2), 2)
LONG_CUT = Fault("WAN cut for 20 s", 0.7, cut(20), 20)


class Load:
    """The two jobs and what they have done."""

    def __init__(self, c, bytes_):
        self.bytes_, self.net = bytes_, c.net
        self.port, self.progress = c.scratch("port"), c.scratch("progress")
        for what in ("bytes", "rounds", "enough"):
            c.scratch(f"progress.{what}")
        start = lambda role, site: c.start(2, "soak", role, self.port, bytes_, self.progress, suffix=f".{role}",
                                           place=c.net.place(site))
        self.jobs = [start("accept", "a"), start("connect", "b")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.end()

    def moved(self, what):
        """Bytes that have arrived, or rounds that were made."""
        try:
            return int(self.progress.with_name(f"{self.progress.name}.{what}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def await_moved(self, bytes_, rounds, seconds, when):
        def seen():
            return self.moved("bytes") >= bytes_ and self.moved("rounds") >= rounds

        def what():
            return f"progress, {when}: {self.moved('bytes')} of {bytes_} bytes and {self.moved('rounds')} of {rounds} rounds"

        await_until(self.jobs, seen, seconds, what, also=[router.job for router in self.net.all_routers()], look=LOOK)

    def enough(self):
        """All faults were met: the transfer may end once it has moved what it was asked to."""
        self.progress.with_name(f"{self.progress.name}.enough").touch()

    def pauses(self, what):
        """When the transfer or the exchange paused: from, to."""
        found = (re.findall(rf"^PAUSE {what} ([\d.]+) ([\d.]+)$", job.output(), re.M) for job in self.jobs)
        return [(float(since), float(to)) for some in found for since, to in some]


def lost(load, what, since, to):
    """Seconds for which it paused between two times."""
    return sum(max(0.0, min(end, to) - max(begin, since)) for begin, end in load.pauses(what))


def soak(c, bytes_, faults):
    with Load(c, bytes_) as load:
        load.await_moved(1, 1, 60, "start")
        times = []
        for fault in faults:
            load.await_moved(int(bytes_ * fault.at), 0, 240, f"before {fault.name}")
            times.append(time.monotonic())
            before = load.moved("bytes"), load.moved("rounds")
            fault.strike(c.net)
            load.await_moved(before[0] + BYTES_ON, before[1] + ROUNDS_ON, fault.length + PAUSE_MAX, fault.name)
            fault.heal(c.net)
        load.enough()
        words = [must_pass(job.wait(time.monotonic() - job.began + 240)) for job in load.jobs]
        told = []
        for fault, since, to in zip(faults, times, times[1:] + [time.monotonic()]):
            transfer, exchange = lost(load, "bytes", since, to), lost(load, "rounds", since, to)
            if max(transfer, exchange) < fault.length / 2:
                raise Failure(f"{fault.name}: was not felt: {transfer:.1f} s and {exchange:.1f} s lost")
            told.append(f"{fault.name}: transfer {transfer:.1f} s, exchange {exchange:.1f} s lost")
    return "; ".join([words[0], *told])


CASES = {
    case.name: case
    for case in (
        Case("soak-short", lambda c: soak(c, 500_000_000, (KILL, STOP, SHORT_CUT)), places=("soak",)),
        Case("soak", lambda c: soak(c, 2_000_000_000, (KILL, STOP, SHORT_CUT, LONG_CUT)), places=("soak",), long=True),
    )
}
