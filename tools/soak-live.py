#!/usr/bin/env python3
"""Runs what has hung before in loops beside load, over Isthmus and libfabric's own tcp in turn.

    tools/soak-live.py [--minutes 30] [--busy 2] [--ranks 2 4] [--only util_sync]

Jobs: mpi4py's test_util_sync, tests/mpi/litmus.c, and the folders `rma` and `threads` of MPICH's test suite, of which
each round runs the next test. Lanes: shared memory, TCP and UDP on this host, `lossy` for UDP between two sites of a
lab that loses 1 % (litmus only; the others take minutes there), and `stock` for libfabric's `tcp;ofi_rxm`.

A job that does not end in its time has hung: the stacks of its threads and the state of its endpoints are kept in
build/logs/soak-live. A test of MPICH's that fails runs over stock at once, and has not failed if it fails there too.
Prints a row per job and kind of lane: runs, hung, failed, median seconds. Exit status 0 when nothing hung or failed
over Isthmus; else lines that begin with `FAILED:` say what did.
"""

import argparse
import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "suites")]
from harness import lab as labs  # noqa: E402
from harness import mpis, process  # noqa: E402
from others import mpich  # noqa: E402
from others.table import FAIL, OURS, PASS, THEIRS, TIMEOUT, Outcome, Unavailable  # noqa: E402

# What ranks need to go by this kind of lane.
STOCK, LOSSY = "stock", "lossy"
LANES = {
    "memory": (OURS, {}),
    "tcp": (OURS, {"FI_ISTHMUS_FABRIC": "off"}),
    "udp": (OURS, {"FI_ISTHMUS_FABRIC": "off", "FI_ISTHMUS_TRANSPORT": "udp-everywhere"}),
    LOSSY: (OURS, {}),
    STOCK: (THEIRS, {}),
}
# What a run may take. It takes 3 s on a quiet machine with two processors, and was seen to take 100 s on a busy one.
SECONDS = 300
# MPICH's tests that may take longer by their list are left out: a round is to end.
MPICH_SECONDS = 180
FOLDERS = ("rma", "threads")
JOBS = ("util_sync", "litmus", *FOLDERS)
LOOP = "while True: pass"


@dataclass
class Run:
    """What a job runs in one round: `perform(lane, log) -> Outcome`."""

    name: str
    perform: Callable
    # A failure counts only if stock passes.
    beside_stock: bool = False


def program(mpi, name, ranks, words):
    """A program that must end with status 0."""

    def perform(lane, log):
        provider, env = LANES[lane]
        place = labs.place(LOSSY) if lane == LOSSY else mpis.HOST
        command, launch_env = mpi.command(ranks, words, mpich.TRANSPORT[provider], place, env)
        ended = process.run(command, launch_env, log, SECONDS)
        if ended.timed_out:
            return Outcome(TIMEOUT, f"{SECONDS} s")
        return Outcome(FAIL, f"status {ended.status}: {process.last_words(ended.output)}") if ended.status else Outcome(PASS)

    return Run(name, perform)


def test_of_mpich(mpi, test):
    def perform(lane, log):
        provider, env = LANES[lane]
        return mpich.run(test, provider, mpi, log, env, SECONDS)

    return Run(test.name, perform, beside_stock=True)


def jobs(mpi, options):
    """Name -> what its rounds run, in turn."""
    main = mpis.BUILD / "mpi4py" / "test" / "main.py"
    words = {
        "util_sync": [mpi.python(), str(main), "--no-builddir", "-i", "util_sync"],
        "litmus": [str(mpi.programs / "litmus"), "20"],
    }
    found = {f"{name} {ranks}": [program(mpi, name, ranks, words[name])] for name in words if name in options.only for ranks in options.ranks}
    folders = [folder for folder in FOLDERS if folder in options.only]
    tests = tests_of_mpich(folders, options) if folders else []
    for folder in folders:
        found[folder] = [test_of_mpich(mpi, test) for test in tests if test.folder.split("/")[0] == folder
                         and not test.alone and test.seconds <= MPICH_SECONDS]  # fmt: skip
    return {name: runs for name, runs in found.items() if runs}


def tests_of_mpich(folders, options):
    try:
        suite = mpich.prepare(argparse.Namespace(only=[f"{folder}/" for folder in folders], quick=options.quick))
    except Unavailable as why:
        # Those who only test want no failure because an archive is out of reach.
        if not options.quick:
            sys.exit(f"FAILED: MPICH's tests: {why}")
        print(f"MPICH's tests: not run: {why}", flush=True)
        return []
    return [case.body for case in suite.cases]


class Row:
    def __init__(self):
        self.seconds, self.hung, self.failed = [], 0, 0

    def words(self):
        median = statistics.median(self.seconds) if self.seconds else float("nan")
        runs = len(self.seconds) + self.hung + self.failed
        return f"{runs:6} {self.hung:6} {self.failed:7} {median:9.2f}"


def once(job, run, lane, row, logs):
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{job}.{lane}" if run.name in job else f"{run.name}.{lane}")
    log = logs / f"{label[:200]}.log"
    began = time.monotonic()
    outcome = run.perform(lane, log)
    verdict = "FAILED" if lane != STOCK else STOCK
    if outcome.verdict == TIMEOUT:
        row.hung += 1
        kept = log.with_suffix(f".hung-{row.hung}.stacks")
        log.with_suffix(".stacks").rename(kept)
        print(f"{verdict}: {label} hung: no end after {outcome.detail.partition(';')[0]}; stacks: {kept}", flush=True)
    elif outcome.verdict != PASS:
        if lane != STOCK and run.beside_stock and run.perform(STOCK, log.with_suffix(".stock.log")).verdict != PASS:
            print(f"{label} fails over stock too: {outcome.detail}", flush=True)
            return
        row.failed += 1
        kept = log.with_suffix(f".failed-{row.failed}.log")
        log.rename(kept)
        print(f"{verdict}: {label}: {outcome.detail}; log: {kept}", flush=True)
    else:
        row.seconds.append(time.monotonic() - began)


def soak(chosen, lanes, minutes, logs):
    """Runs all jobs by these lanes in turn, each at least once. Returns the rows."""
    rows = {(name, lane): Row() for name in chosen for lane in lanes if lane != LOSSY or name.startswith("litmus")}
    until = time.monotonic() + 60 * minutes
    for number in itertools.count():
        if number and time.monotonic() > until:
            return rows
        for name, lane in rows:
            if not number or time.monotonic() < until:
                once(name, chosen[name][number % len(chosen[name])], lane, rows[name, lane], logs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--busy", type=int, default=0, help="endless loops beside the jobs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="of util_sync and litmus; MPICH's tests have their own")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--quick", action="store_true", help="of MPICH's tests only those that make test runs")
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    options = parser.parse_args()
    mpi = mpis.MPIS["mpich"]
    logs = mpis.BUILD / "logs" / "soak-live"
    logs.mkdir(parents=True, exist_ok=True)
    words = mpis.compile_programs(mpi, [mpis.ROOT / "tests" / "mpi" / "litmus.c"], logs / "compile.log")
    if words:
        sys.exit(f"FAILED: litmus.c does not compile: {words}")
    chosen = jobs(mpi, options)
    busy = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(options.busy)]
    lab = labs.running(labs.SHARED[LOSSY], logs / "lab.log") if LOSSY in options.lanes else contextlib.nullcontext()
    try:
        with lab:
            rows = soak(chosen, options.lanes, options.minutes, logs)
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    print(f"{'job':12} {'lane':8} {'runs':>6} {'hung':>6} {'failed':>7} {'median s':>9}")
    for (name, lane), row in rows.items():
        print(f"{name:12} {lane:8} {row.words()}")
    return status(rows)


def status(rows):
    return int(any(row.hung or row.failed for (_, lane), row in rows.items() if lane != STOCK))


if __name__ == "__main__":
    sys.exit(main())
