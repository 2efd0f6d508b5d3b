#!/usr/bin/env python3
"""Runs what has hung before in loops beside load, over Isthmus and libfabric's own tcp in turn.

    tools/soak-live.py [--minutes 30] [--busy 2] [--ranks 2 4] [--only util_sync]

Jobs: mpi4py's test_util_sync and tests/mpi/litmus.c, over shared memory, TCP and UDP and over `tcp;ofi_rxm`. A job
that does not end in its time has hung: the stacks of its threads and the state of its endpoints are kept in
build/logs/soak-live. Prints a row per job and kind of lane: runs, hung, failed, median seconds. Exit status 0
when nothing hung or failed over Isthmus.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness import mpis, process  # noqa: E402

# What ranks need to go by this kind of lane.
LANES = {
    "memory": ("isthmus", {}),
    "tcp": ("isthmus", {"FI_ISTHMUS_FABRIC": "off"}),
    "udp": ("isthmus", {"FI_ISTHMUS_FABRIC": "off", "FI_ISTHMUS_TRANSPORT": "udp-everywhere"}),
    "stock": ("rxm", {}),
}
# A run takes 3 s on a quiet machine with two processors.
SECONDS = 120
LOOP = "while True: pass"


def jobs(mpi):
    main = mpis.BUILD / "mpi4py" / "test" / "main.py"
    return {
        "util_sync": [mpi.python(), str(main), "--no-builddir", "-i", "util_sync"],
        "litmus": [str(mpi.programs / "litmus"), "20"],
    }


class Row:
    def __init__(self):
        self.seconds, self.hung, self.failed = [], 0, 0

    def words(self):
        median = statistics.median(self.seconds) if self.seconds else float("nan")
        runs = len(self.seconds) + self.hung + self.failed
        return f"{runs:6} {self.hung:6} {self.failed:7} {median:9.2f}"


def once(mpi, ranks, program, lane, row, log):
    transport, env = LANES[lane]
    command, launch_env = mpi.command(ranks, program, transport, mpis.HOST, env)
    ended = process.run(command, launch_env, log, SECONDS)
    if ended.timed_out:
        row.hung += 1
        kept = log.with_suffix(f".hung-{row.hung}.stacks")
        log.with_suffix(".stacks").rename(kept)
        print(f"hung: {log.stem}: {kept}", flush=True)
    elif ended.status:
        row.failed += 1
        print(f"failed: {log.stem}: {ended.output.strip().splitlines()[-1:]}", flush=True)
    else:
        row.seconds.append(ended.seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--busy", type=int, default=0, help="endless loops beside the jobs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", action="append", help="util_sync or litmus")
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    options = parser.parse_args()
    mpi = mpis.MPIS["mpich"]
    logs = mpis.BUILD / "logs" / "soak-live"
    logs.mkdir(parents=True, exist_ok=True)
    words = mpis.compile_programs(mpi, [mpis.ROOT / "tests" / "mpi" / "litmus.c"], logs / "compile.log")
    if words:
        sys.exit(f"litmus.c does not compile: {words}")
    chosen = {name: program for name, program in jobs(mpi).items() if not options.only or name in options.only}
    rows = {(name, ranks, lane): Row() for name in chosen for ranks in options.ranks for lane in options.lanes}
    until = time.monotonic() + 60 * options.minutes
    busy = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(options.busy)]
    try:
        first = True
        while first or time.monotonic() < until:
            for (name, ranks, lane), row in rows.items():
                # Each at least once.
                if first or time.monotonic() < until:
                    once(mpi, ranks, chosen[name], lane, row, logs / f"{name}.{ranks}.{lane}.log")
            first = False
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    print(f"{'job':12} {'ranks':5} {'lane':8} {'runs':>6} {'hung':>6} {'failed':>7} {'median s':>9}")
    for (name, ranks, lane), row in rows.items():
        print(f"{name:12} {ranks:5} {lane:8} {row.words()}")
    ours = [row for (_, _, lane), row in rows.items() if lane != "stock"]
    return int(any(row.hung or row.failed for row in ours))


if __name__ == "__main__":
    sys.exit(main())
