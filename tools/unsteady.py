"""Remembers which tests passed at their second attempt only, over the last runs of each test in this folder.

One such run may be chance. From the second on it is a fault, and the run that sees it fails.

The file has, for each kind of tests, the last outcomes of each test that was unsteady in one of them: `u` for
unsteady, `.` for any other. A test that does not run gets no outcome, so a run of a few tests makes no other test's
outcomes old.
"""

import fcntl
import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "build" / "unsteady.json"
# Outcomes of a test that count. About a day's work.
RUNS = 20
# How often a test may be unsteady in that many runs before the run fails.
TOLERATED = 1
UNSTEADY, OTHER = "u", "."


def note(kind, outcomes, file=FILE):
    """Adds the outcomes of the tests that ran: name -> whether it was unsteady.

    Returns, for each that was unsteady, in how many of its last runs it was."""
    file.parent.mkdir(exist_ok=True)
    with open(file, "a+") as held:
        # Parts of a run may end at the same time.
        fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        kept = read(held.read())
        tests = kept.setdefault(kind, {})
        for name, unsteady in outcomes.items():
            tests[name] = (tests.get(name, "") + (UNSTEADY if unsteady else OTHER))[-RUNS:]
        kept[kind] = {name: past for name, past in sorted(tests.items()) if UNSTEADY in past}
        held.truncate(0)
        held.write(json.dumps(kept, indent=1))
    return {name: kept[kind][name].count(UNSTEADY) for name, unsteady in outcomes.items() if unsteady}


def read(text):
    """What the file says: kind -> name -> outcomes. Earlier versions listed the unsteady tests of each run."""
    try:
        kept = json.loads(text)
        return {kind: tests if isinstance(tests, dict) else from_runs(tests) for kind, tests in kept.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def from_runs(runs):
    """The outcomes of each test that is in one of these runs' lists. A run that does not list it counts as its run."""
    names = {name for run in runs for name in run}
    return {name: "".join(UNSTEADY if name in run else OTHER for run in runs)[-RUNS:] for name in names}


def words(count):
    """What is said of a test that was unsteady so often."""
    often = f"unsteady in {count} of its last {RUNS} runs here"
    return often if count <= TOLERATED else f"{often}: this run fails; find the cause"
