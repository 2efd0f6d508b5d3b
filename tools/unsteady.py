"""Remembers the tests that passed at their second attempt only, over the last runs in this folder.

One such run may be chance. From the second on it is a fault, and the run that sees it fails.
"""

import fcntl
import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "build" / "unsteady.json"
# Runs that count. About a day's work.
RUNS = 20
# How often a test may be unsteady in that many runs before the run fails.
TOLERATED = 1


def note(kind, names, file=FILE):
    """Adds this run's unsteady tests of one kind. Returns name -> in how many of the last runs it was unsteady."""
    file.parent.mkdir(exist_ok=True)
    with open(file, "a+") as held:
        # Parts of a run may end at the same time.
        fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        try:
            kept = json.load(held)
        except ValueError:
            kept = {}
        runs = [*kept.get(kind, []), sorted(set(names))][-RUNS:]
        kept[kind] = runs
        held.truncate(0)
        held.write(json.dumps(kept, indent=1))
    return {name: sum(name in run for run in runs) for name in names}


def words(count):
    """What is said of a test that was unsteady so often."""
    often = f"unsteady in {count} of the last {RUNS} runs here"
    return often if count <= TOLERATED else f"{often}: this run fails; find the cause"
