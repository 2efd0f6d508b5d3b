#!/usr/bin/env python3
"""Measures ranks of one site that each send one message at the same moment across a lab's link.

The table shows medians of the steps, in milliseconds, and what the link allows: a round trip, and the bytes of all.

    tools/measure-steps.py                                    100 ms, 1 Gb/s, 4 + 4 ranks
    tools/measure-steps.py --rtt 24ms --ranks 16              another path, 8 + 8 ranks
    tools/measure-steps.py --rtt 24ms --queue 312500B         a queue of 2.5 ms
    tools/measure-steps.py --set FI_ISTHMUS_LEDGER=off        flows of a host know nothing of each other
    tools/measure-steps.py --transport tcp                    the MPI's own way
"""

import argparse
import os
import re
import statistics
import sys

from measure import far
from measure.far import mpis, process

SECONDS = 300


def measure(mpi, args):
    """Inside the lab: the table."""
    words = [str(far.program_of(mpi, "steps")), str(args.repeats), *map(str, args.size)]
    place = mpis.Place("sites", ("a", "b"))
    command, launch_env = mpi.command(args.ranks, words, args.transport, place, far.settings(args))
    ended = process.run(command, launch_env, mpis.BUILD / "logs" / "measure-steps.log", SECONDS)
    if ended.status != 0:
        raise SystemExit(f"{'not ended' if ended.timed_out else f'exit {ended.status}'}: {ended.output[-600:]}")
    rtt_s, bytes_per_s = far.quantity(args.rtt, far.UNITS), far.quantity(args.rate, far.RATES) / 8
    print(f"| {args.rtt}, {args.rate}, {args.ranks // 2} ranks a site | first, ms | later, ms | allowed, ms |", "|---|---|---|---|", sep="\n")
    for size in args.size:
        first, *later = [1e3 * float(took) for took in re.findall(rf"^steps {size} ([\d.]+)$", ended.output, re.M)]
        allowed = 1e3 * (rtt_s + size * 1024 * args.ranks / 2 / bytes_per_s)
        print(f"| {size} KiB | {first:.0f} | {statistics.median(later):.0f} | {allowed:.0f} |")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", default="100ms")
    far.add_options(parser)
    parser.add_argument("--repeats", type=int, default=12, help="steps of each size, at least 2")
    parser.add_argument("--size", type=int, nargs="+", default=[64, 256, 512, 1024], metavar="KiB")
    return parser


def main():
    parser = options()
    args = parser.parse_args()
    mpi = mpis.MPIS[args.mpi]
    if far.INSIDE in os.environ:
        measure(mpi, args)
        return 0
    if args.ranks % 2 or args.repeats < 2:
        parser.error("--ranks must be even, and --repeats at least 2")
    if why := far.missing(mpi) or far.compile_program(mpi, "steps"):
        parser.error(why)
    return far.in_lab(args, args.rtt).returncode


if __name__ == "__main__":
    sys.exit(main())
