#!/usr/bin/env python3
"""Measures ranks of one site that each send one message at the same moment across a lab's link.

The table shows medians of the steps, in milliseconds, and what the link allows: a round trip, and the bytes of all.

    tools/measure-steps.py                                    100 ms, 1 Gb/s, 4 + 4 ranks
    tools/measure-steps.py --rtt 24ms --ranks 16              another path, 8 + 8 ranks
    tools/measure-steps.py --set FI_ISTHMUS_LEDGER=off        flows of a host know nothing of each other
    tools/measure-steps.py --transport tcp                    the MPI's own way
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from harness import mpis, process  # noqa: E402

INSIDE = "ISTHMUS_TEST_IN_LAB"
SECONDS = 300


def quantity(text, units):
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]+)", text).groups()
    return float(number) * units[unit]


def measure(mpi, program, args):
    """Inside the lab: the table."""
    env = dict(setting.split("=", 1) for setting in args.set)
    words = [str(program), str(args.repeats), *map(str, args.size)]
    command, launch_env = mpi.command(args.ranks, words, args.transport, mpis.Place("sites", ("a", "b")), env)
    ended = process.run(command, launch_env, mpis.BUILD / "logs" / "measure-steps.log", SECONDS)
    if ended.status != 0:
        raise SystemExit(f"{'not ended' if ended.timed_out else f'exit {ended.status}'}: {ended.output[-600:]}")
    rtt_s = quantity(args.rtt, {"us": 1e-6, "ms": 1e-3, "s": 1.0})
    bytes_per_s = quantity(args.rate, {"Mbit": 1e6, "Gbit": 1e9}) / 8
    print(f"| {args.rtt}, {args.rate}, {args.ranks // 2} ranks a site | first, ms | later, ms | allowed, ms |", "|---|---|---|---|", sep="\n")
    for size in args.size:
        first, *later = [1e3 * float(took) for took in re.findall(rf"^steps {size} ([\d.]+)$", ended.output, re.M)]
        allowed = 1e3 * (rtt_s + size * 1024 * args.ranks / 2 / bytes_per_s)
        print(f"| {size} KiB | {first:.0f} | {statistics.median(later):.0f} | {allowed:.0f} |")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", default="100ms")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--loss", default="0")
    parser.add_argument("--ranks", type=int, default=8, help="of both sites together: an even number")
    parser.add_argument("--repeats", type=int, default=12, help="steps of each size, at least 2")
    parser.add_argument("--size", type=int, nargs="+", default=[64, 256, 512, 1024], metavar="KiB")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="in the environment of all ranks")
    parser.add_argument("--mpi", choices=list(mpis.MPIS), default="mpich")
    parser.add_argument("--transport", choices=mpis.TRANSPORTS, default="isthmus")
    return parser


def main():
    parser = options()
    args = parser.parse_args()
    mpi = mpis.MPIS[args.mpi]
    program = mpi.programs / "measure" / "steps"
    if INSIDE in os.environ:
        measure(mpi, program, args)
        return 0
    if args.ranks % 2 or args.repeats < 2:
        parser.error("--ranks must be even, and --repeats at least 2")
    if why := mpi.missing() or (None if mpis.PROVIDER.exists() else f"{mpis.PROVIDER} is missing: run make build"):
        parser.error(why)
    program.parent.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(mpi.compile_command(ROOT / "tools" / "measure" / "steps.c", program),
                           env={**os.environ, **mpi.compile_env()}, capture_output=True, text=True)
    if ended.returncode != 0:
        parser.error(ended.stderr)
    lab = [str(mpis.ISTHMUS), "lab", "run", "--quiet", "--mgmt", "--rate", args.rate, "--rtt", args.rtt, "--loss", args.loss]
    return subprocess.run([*lab, "--", sys.executable, __file__, *sys.argv[1:]], env={**os.environ, INSIDE: "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
