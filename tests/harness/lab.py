"""A lab of emulated sites (`isthmus lab`) for the commands of a test."""

import contextlib
import os
import subprocess
from unittest import mock

from .cases import Failure, last_words
from .mpis import ISTHMUS

# The lab runs this until its input ends, also because this process was killed.
HOLD = ["sh", "-c", 'echo "$ISTHMUS_LAB"; exec cat >/dev/null']


@contextlib.contextmanager
def running(options, log):
    """A lab for as long as this is entered. `isthmus lab exec` finds it through the environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        command = [str(ISTHMUS), "lab", "run", *options, "--", *HOLD]
        held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
    with held:
        number = held.stdout.readline().strip()
        if not number:
            raise Failure(f"no lab: {last_words(log.read_text())}")
        with mock.patch.dict(os.environ, ISTHMUS_LAB=number):
            yield
