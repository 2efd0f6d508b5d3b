#!/usr/bin/env python3
"""Runs the MPI-level tests: every MPI, over Isthmus or libfabric's own tcp, on
one host (shared memory off), with the ranks spread over two sites of a lab, by UDP
where that lab loses packets, or as two jobs at sites that only routers join, across
three networks or five.

    tests/run.py                                  the set of `make test`
    tests/run.py --mpi mpich --only storm         one test
    tests/run.py --transport tcp --placement host the control
    tests/run.py --list                           all of them, nothing run

A test in which a command did not end in its time has failed: stacks of all its threads and the state
of its endpoints are kept in build/logs/*.stacks. Of the other failures a few are run once more. What
passes then is named at the end as unsteady, with its count over the last runs; from the second time on
the run fails. Exit status 0 when nothing failed. Logs: build/logs/MPI.TRANSPORT.PLACE.TEST.log, of a
first attempt that failed in build/logs/first.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import unsteady  # noqa: E402
from harness import cases, couple_cases, demo, far_cases, five_cases, guide, mover_cases, mpis, process, routed, routed_cases, run_cases, soak_cases, suite  # noqa: E402
from harness.cases import FAILED, PASSED, SKIPPED, Outcome  # noqa: E402

PLACEMENTS = ("host", "sites", "lossy", "routed", "five", "soak", "demo")
# Cases of one job or two.
JOBS = {**cases.CASES, **mover_cases.CASES, **couple_cases.CASES, **guide.CASES, **far_cases.CASES, **run_cases.CASES}
# Cases with a lab and routers of their own, by placement.
ROUTED = {"routed": routed_cases.CASES, "five": five_cases.CASES, "soak": soak_cases.CASES}
LAB = ["--mgmt", "--rate", "1Gbit", "--rtt", "10ms"]
# Two sites between which packets are lost, and the labs of both kinds.
LOSSY = ["--mgmt", "--rate", "1Gbit", "--rtt", "20ms", "--loss", "1%"]
LABS = {"sites": LAB, "lossy": LOSSY}
# What Isthmus is told where the ranks are.
SETTINGS = {"lossy": {"FI_ISTHMUS_TRANSPORT": "udp"}}
IN_LAB = (*LABS, *ROUTED)
INSIDE = "ISTHMUS_TESTS_IN_LAB"
# How many failures get a second attempt: more are none of chance.
MOST_AGAIN = 3
UNSTEADY = "passed at the second attempt; at the first: "


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the tests and stop")
    parser.add_argument("--only", action="append", metavar="TEST", help="only this test (again for more)")
    parser.add_argument("--mpi", action="append", choices=list(mpis.MPIS), help="only this MPI")
    parser.add_argument("--transport", action="append", choices=mpis.TRANSPORTS, help="default: isthmus")
    parser.add_argument("--placement", action="append", choices=PLACEMENTS, help="default: all; demo makes labs of its own")
    parser.add_argument("--suite", action="store_true", help="also mpi4py's own tests, on MPICH with 2 and 4 ranks")
    parser.add_argument("--logs", type=Path, default=mpis.BUILD / "logs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args(words)
    routed_names = [name for some in ROUTED.values() for name in some]
    known = [*JOBS, *routed_names, *demo.NAMES, *suite.NAMES, *suite.FULL]
    for name in options.only or []:
        if name not in known:
            parser.error(f'no test "{name}"; there are: {", ".join(known)}')
    return options


def plan(options):
    """(mpi, transport, placement, test), in the order of running."""
    rows = []
    for placement in options.placement or PLACEMENTS:
        for transport in options.transport or ["isthmus"]:
            for mpi in options.mpi or mpis.MPIS:
                for name in JOBS:
                    suits = placement in JOBS[name].places and mpi in JOBS[name].mpis
                    if suits and (not options.only or name in options.only):
                        rows.append((mpi, transport, placement, name))
                for name, case in ROUTED.get(placement, {}).items():
                    wanted = name in options.only if options.only else not case.long
                    if wanted and mpi in case.mpis and transport == "isthmus":
                        rows.append((mpi, transport, placement, name))
                for name in demo.NAMES:
                    wanted = not options.only or name in options.only
                    if wanted and placement == "demo" and mpi in demo.MPIS and transport == "isthmus":
                        rows.append((mpi, transport, placement, name))
                for name in (*suite.NAMES, *suite.FULL):
                    wanted = name in options.only if options.only else options.suite and name in suite.NAMES
                    if wanted and placement == "host" and mpi in suite.MPIS:
                        rows.append((mpi, transport, placement, name))
    return rows


class Table:
    """Prints a row per test as it ends, and keeps them all."""

    def __init__(self):
        self.rows = []
        self.again = MOST_AGAIN

    def may_try_again(self, outcome):
        if outcome.verdict != FAILED or outcome.hung:
            return False
        self.again -= 1
        return self.again >= 0

    def add(self, row, outcome, seconds):
        mpi, transport, placement, name = row
        self.rows.append({"mpi": mpi, "transport": transport, "placement": placement, "test": name,
                          "verdict": outcome.verdict, "seconds": round(seconds, 2), "detail": outcome.detail,
                          "hung": outcome.hung})
        print(f"{outcome.verdict:8}{seconds:7.1f} s  {mpi:15}{transport:8}{placement:7}{name:19}{outcome.detail}", flush=True)

    def count(self, verdict):
        return sum(row["verdict"] == verdict for row in self.rows)

    def close(self):
        """Says what failed and what was unsteady; whether the run has failed."""
        shaky = {f"{row['mpi']} {row['transport']} {row['placement']} {row['test']}" for row in self.rows
                 if row["detail"].startswith(UNSTEADY)}
        counts = unsteady.note("MPI tests", shaky)
        for verdict in (FAILED, SKIPPED, "unsteady"):
            reasons = {}
            for row in self.rows:
                if ("unsteady" if row["detail"].startswith(UNSTEADY) else row["verdict"]) == verdict:
                    where = f"{row['mpi']} {row['transport']} {row['placement']} {row['test']}"
                    reasons.setdefault(row["detail"], []).append(where)
            for reason, where in reasons.items():
                print(f"{verdict}: {where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}: {reason}")
        for name, count in counts.items():
            print(f"{'FAILED' if count > unsteady.TOLERATED else 'unsteady'}: {name}: {unsteady.words(count)}")
        print(f"{self.count(PASSED)} passed, {self.count(FAILED)} failed, {self.count(SKIPPED)} skipped", flush=True)
        return self.count(FAILED) > 0 or any(count > unsteady.TOLERATED for count in counts.values())


def used_by(rows):
    """The MPIs of these tests; a coupling's other side has one of its own."""
    partners = [couple_cases.PARTNERS[row[0]] for row in rows if row[3].startswith("couple-")]
    return dict.fromkeys([row[0] for row in rows] + partners)


def prepare(names, logs):
    """Compiles the programs. Returns MPI -> why it cannot run, for those that cannot."""
    sources = sorted((mpis.ROOT / "tests" / "mpi").glob("*.c"))
    unusable = {}
    for name in names:
        mpi = mpis.MPIS[name]
        missing = mpi.missing()
        if missing:
            unusable[name] = Outcome(SKIPPED, missing)
            continue
        words = mpis.compile_programs(mpi, sources, logs / f"{name}.compile.log") or mpis.compile_mover(mpi, logs / f"{name}.mover.log")
        if words:
            unusable[name] = Outcome(FAILED, f"does not compile: {cases.last_words(words)}")
    return unusable


def perform(row, logs):
    mpi, transport, placement, name = row
    if transport == "isthmus" and not mpis.PROVIDER.exists():
        return Outcome(FAILED, "no build/lib/libisthmus-fi.so: make build")
    place = mpis.Place(placement, ("a", "b") if placement in IN_LAB else (), SETTINGS.get(placement, {}))
    context = cases.Context(mpis.MPIS[mpi], transport, place, logs, name)
    if placement in ROUTED:
        return routed_cases.perform(context, ROUTED[placement][name])
    if name in demo.NAMES:
        return demo.perform(context)
    if name in suite.NAMES + suite.FULL:
        return suite.perform(context)
    return cases.perform(context, JOBS[name])


def attempt(row, logs):
    hangs = process.hangs
    try:
        outcome = perform(row, logs)
    except KeyboardInterrupt:
        raise
    except Exception as error:  # a fault of this driver must not hide the other tests
        outcome = Outcome(FAILED, f"the driver failed: {type(error).__name__}: {error}")
    if outcome.verdict == FAILED and process.hangs > hangs:
        where = ", ".join(str(path) for path in sorted(logs.glob(f"{'.'.join(row)}*.stacks")))
        outcome = Outcome(FAILED, f"{outcome.detail}; stacks: {where}", hung=True)
    return outcome


def keep_first(row, logs):
    """Puts the logs of a failed attempt where the next one does not overwrite them."""
    (logs / "first").mkdir(exist_ok=True)
    for log in logs.glob(f"{'.'.join(row)}.*"):
        if log.is_file():
            shutil.copy(log, logs / "first")


def run_rows(rows, table, logs):
    unusable = prepare(used_by(rows), logs)
    for row in rows:
        began = time.monotonic()
        outcome = unusable.get(row[0]) or attempt(row, logs)
        # Routed ones need their lab anew (main), and what does not compile does not compile.
        if row[2] not in ROUTED and row[0] not in unusable and table.may_try_again(outcome):
            keep_first(row, logs)
            outcome = second(outcome, attempt(row, logs))
        table.add(row, outcome, time.monotonic() - began)


def second(first, outcome):
    """What a test's two attempts say together."""
    return Outcome(PASSED, UNSTEADY + first.detail) if outcome.verdict == PASSED else outcome


def outcome_of(kept):
    return Outcome(kept["verdict"], kept["detail"], kept["hung"])


def run_in_lab(rows, lab, table, options):
    """Runs this script again inside a lab, for these rows of one placement."""
    placement = rows[0][2]
    results = options.logs / f"{placement}.json"
    results.unlink(missing_ok=True)
    reason = None
    if not mpis.ISTHMUS.exists():
        reason = Outcome(FAILED, f"no {mpis.ISTHMUS.name} executable for the lab: make build")
    else:
        command = [str(mpis.ISTHMUS), "lab", "run", *lab, "--", sys.executable, __file__, "--placement", placement,
                   "--logs", str(options.logs), "--json", str(results)]
        for index, flag in enumerate(("--mpi", "--transport")):
            for value in dict.fromkeys(row[index] for row in rows):
                command += [flag, value]
        for name in dict.fromkeys(row[3] for row in rows):
            command += ["--only", name]
        status = subprocess.run(command, env={**os.environ, INSIDE: "1"}).returncode
        if not results.exists():
            reason = Outcome(FAILED, f"the lab ended with status {status}; see what it says above")
    if reason:
        for row in rows:
            table.add(row, reason, 0)
    else:
        table.rows += json.loads(results.read_text())


def main():
    options = options_of(sys.argv[1:])
    rows = plan(options)
    if options.list:
        for row in rows:
            print("{:15} {:8} {:7} {}".format(*row))
        return 0
    options.logs.mkdir(parents=True, exist_ok=True)
    inside = INSIDE in os.environ
    table = Table()
    began = time.monotonic()
    try:
        here = [row for row in rows if inside or row[2] not in IN_LAB]
        run_rows(here, table, options.logs)
        for placement, lab in LABS.items():
            in_lab = [row for row in rows if row not in here and row[2] == placement]
            if in_lab:
                run_in_lab(in_lab, lab, table, options)
        in_routed = [row for row in rows if row not in here and row[2] in ROUTED]
        # Compiled beforehand: the labs' cuts are timed from their start.
        prepare(used_by(in_routed), options.logs)
        for row in in_routed:
            case = ROUTED[row[2]][row[3]]
            lab = routed.write_lab(options.logs / "routed", routed.SHAPES[case.shape], case.link)
            lab = ["--quiet", "--config", str(lab)]
            run_in_lab([row], lab, table, options)
            if table.may_try_again(outcome_of(table.rows[-1])):
                keep_first(row, options.logs)
                first = outcome_of(table.rows.pop())
                run_in_lab([row], lab, table, options)
                table.rows[-1] |= vars(second(first, outcome_of(table.rows[-1])))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 3
    if options.json:
        options.json.write_text(json.dumps(table.rows, indent=1))
    if inside:
        return int(table.count(FAILED) > 0)
    print(f"MPI tests: {time.monotonic() - began:.0f} s")
    return int(table.close())


if __name__ == "__main__":
    sys.exit(main())
