"""A lab of emulated sites (`isthmus lab`) for the commands of a test."""

import contextlib
import os
import select
import subprocess
from unittest import mock

from . import process, stacks
from .mpis import ISTHMUS, Place
from .process import Failure, last_words

# The labs whose tests share one.
SHARED = {
    "sites": ["--mgmt", "--rate", "1Gbit", "--rtt", "10ms"],
    "lossy": ["--mgmt", "--rate", "1Gbit", "--rtt", "20ms", "--loss", "1%"],
}
# What Isthmus is told where the ranks are.
SETTINGS = {"lossy": {"FI_ISTHMUS_TRANSPORT": "udp"}}
# The lab runs this until its input ends, also because this process was killed.
HOLD = ["sh", "-c", 'echo "$ISTHMUS_LAB"; exec cat >/dev/null']
# What the kernel may take on a busy machine to make a lab or to remove it. Seconds.
PATIENCE = 60


def place(name):
    """The two sites of a lab, for the ranks of a test."""
    return Place(name, ("a", "b"), SETTINGS.get(name, {}))


@contextlib.contextmanager
def running(options, log):
    """A lab for as long as this is entered. `isthmus lab exec` finds it through the environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        command = [str(ISTHMUS), "lab", "run", *options, "--", *HOLD]
        held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
    with held:
        if not select.select([held.stdout], [], [], PATIENCE)[0]:
            raise hung(held, log, "does not begin")
        number = held.stdout.readline().strip()
        if not number:
            raise Failure(f"no lab: {last_words(log.read_text())}")
        with mock.patch.dict(os.environ, ISTHMUS_LAB=number):
            yield
        held.stdin.close()
        try:
            held.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise hung(held, log, "does not end") from None


def hung(held, log, what):
    """The failure of a lab that does not begin or end. Keeps the stacks of its processes, and ends them."""
    family = [held.pid, *stacks.descendants(held.pid)]
    process.keep_stacks(family, log)
    for pid in family:
        stacks.end(pid)
    return Failure(f"the lab {what} within {PATIENCE} s: {last_words(log.read_text())}")
