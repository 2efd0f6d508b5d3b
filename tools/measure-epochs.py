#!/usr/bin/env python3
"""Measures epochs of one-sided communication between the ranks of two sites of a lab.

Each rank accesses all ranks of the other site, both ways at once. The table shows medians of the epochs in round trips,
and beside them the same data in one message to each target, which is the least that aggregation could take. *Allowed* is
half a round trip (with an answer, as a flush needs it: a whole one) and the bytes.

    tools/measure-epochs.py                      24 ms, 1 Gb/s, 4 + 4 ranks
    tools/measure-epochs.py --rtt 100ms          another path
    tools/measure-epochs.py --sync fence lock    some synchronisations only
    tools/measure-epochs.py --transport tcp      libfabric's own provider
    tools/measure-epochs.py --library            a second job with the collectives library (make collectives NAME=mpich)
"""

import argparse
import os
import re
import statistics
import sys

from measure import far
from measure.far import mpis, process

SECONDS = 1800
# Of the program; each with the one of its two last that aggregation would be.
SYNCS = {"fence": "message", "pscw": "message", "flush": "answered", "lock": "answered"}
# Round trips that an answer needs, and a message.
TRIPS = {"message": 0.5, "answered": 1.0}
# Place and header of each operation in an aggregated message. Bytes.
PLACE = 8


def take(mpi, args, env):
    """Round trips of each epoch by load and synchronisation, in a job whose ranks have this environment."""
    rtt_s = far.quantity(args.rtt, far.UNITS)
    words = [str(far.program_of(mpi, "epochs")), str(args.repeats), str(2 * rtt_s + 0.05), *args.sync, *{SYNCS[sync] for sync in args.sync}]
    command, launch_env = mpi.command(args.ranks, words, args.transport, mpis.Place("sites", ("a", "b")), env)
    ended = process.run(command, launch_env, mpis.BUILD / "logs" / "measure-epochs.log", SECONDS)
    if ended.status != 0:
        raise SystemExit(f"{'not ended' if ended.timed_out else f'exit {ended.status}'}: {ended.output[-600:]}")
    took = {}
    for sync, operation, size, count, seconds in re.findall(r"^epoch (\w+) (\w+) (\d+) (\d+) ([\d.]+)$", ended.output, re.M):
        took.setdefault((operation, int(size), int(count)), {}).setdefault(sync, []).append(float(seconds) / rtt_s)
    return took


def measure(mpi, args):
    """Inside the lab: the table."""
    rtt_s, bytes_per_s = far.quantity(args.rtt, far.UNITS), far.quantity(args.rate, far.RATES) / 8
    env = far.settings(args)
    jobs = {"": take(mpi, args, env)}
    if args.library:
        library = {"LD_PRELOAD": str(mpis.collectives_library(mpi)), "ISTHMUS_COLLECTIVES_WINDOWS": "1"}
        jobs[" with the library"] = take(mpi, args, {**env, **library})
    by_hand = sorted({SYNCS[sync] for sync in args.sync}, key=TRIPS.get)
    columns = [*(sync + job for sync in args.sync for job in jobs), *(f"{name}, allowed" for name in by_hand)]
    print(f"| {args.rtt}, {args.rate}, {args.ranks // 2} ranks a site | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|", sep="\n")
    for load, trips in jobs[""].items():
        operation, size, count = load
        across_s = (args.ranks // 2) ** 2 * count * (size + PLACE) / bytes_per_s
        cells = [f"{statistics.median(took[load][sync]):.2f}" for sync in args.sync for took in jobs.values()]
        cells += [f"{statistics.median(trips[name]):.2f}, {TRIPS[name] + across_s / rtt_s:.2f}" for name in by_hand]
        print(f"| {count} x {operation} of {size} B | {' | '.join(cells)} |")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", default="24ms")
    far.add_options(parser)
    parser.add_argument("--repeats", type=int, default=5, help="epochs of each kind")
    parser.add_argument("--sync", nargs="+", choices=list(SYNCS), default=list(SYNCS), help="default: all")
    parser.add_argument("--library", action="store_true", help="also with the collectives library")
    return parser


def main():
    parser = options()
    args = parser.parse_args()
    mpi = mpis.MPIS[args.mpi]
    if far.INSIDE in os.environ:
        measure(mpi, args)
        return 0
    if args.ranks % 2:
        parser.error("--ranks must be even")
    if why := far.missing(mpi) or far.compile_program(mpi, "epochs") or (args.library and mpis.compile_collectives(mpi, mpis.BUILD / "logs" / "library.log")):
        parser.error(why)
    return far.in_lab(args, args.rtt).returncode


if __name__ == "__main__":
    sys.exit(main())
