#!/usr/bin/env python3
"""Measures collectives across two sites of a lab: with the collectives library, and without it.

Both are called in turn by one job (MPI_ and PMPI_ functions) with half of its ranks at each site, once with the
ranks in blocks (0-3 at one site) and once alternating. The table shows medians in round trips, and what the
link allows: half a round trip, and the time that the bytes of one site take across.

    tools/measure-collectives.py                              100 ms and 24 ms, 1 Gb/s, 4 + 4 ranks
    tools/measure-collectives.py --rtt 24ms --size 1 64       another path, vectors of 1 and 64 MiB
    tools/measure-collectives.py --loss 1% --json samples.json
    tools/measure-collectives.py --set FI_ISTHMUS_LEDGER=off  without the ledger of paths
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from measure import far
from measure.far import RATES, ROOT, UNITS, mpis, process, quantity

SECONDS = 900
MIB = 1 << 20
# Per collective: how many bytes must cross the link one way, by the bytes of the call and the ranks of a site.
ACROSS = {
    "barrier": lambda size, half: 0,
    "bcast": lambda size, half: size,
    "reduce": lambda size, half: size,
    "allreduce": lambda size, half: size,
    "allgather": lambda size, half: size * half,
    "alltoall": lambda size, half: size * half * half,
    "gather": lambda size, half: size * half,
    "scatter": lambda size, half: size * half,
}


def library(mpi):
    return mpis.BUILD / "lib" / "collectives" / mpi.name / "libisthmus-collectives.so"


def compile_all(mpi):
    """The library and the program. The compiler's words on failure."""
    build = [str(ROOT / "tools" / "build-collectives.sh"), mpi.name, *mpi.mpicc()]
    return far.run_compiler(mpi, build) or far.compile_program(mpi, "collectives")


def measure(mpi, args, rtt):
    """Inside the lab: the samples, by (order, collective, bytes, who)."""
    place = mpis.Place("sites", ("a", "b"))
    program = [str(far.program_of(mpi, "collectives")), str(args.repeats), str(2e3 * quantity(rtt, UNITS) + 50), *map(str, args.size)]
    env = {"LD_PRELOAD": str(library(mpi)), "ISTHMUS_COLLECTIVES_RATE": args.rate,
           **{name: value for name, value in os.environ.items() if name.startswith("ISTHMUS_COLLECTIVES_")},
           **far.settings(args)}
    command, launch_env = mpi.command(args.ranks, program, args.transport, place, env)
    ended = process.run(command, launch_env, mpis.BUILD / "logs" / "measure-collectives" / f"{rtt}.log", SECONDS)
    samples = {}
    for order, name, size, who, seconds in re.findall(r"^(\w+) (\w+) (\d+) (library|stock) ([\d.]+)$", ended.output, re.M):
        samples.setdefault(f"{order} {name} {size} {who}", []).append(float(seconds))
    if ended.status != 0:
        raise SystemExit(f"{rtt}: {'not ended' if ended.timed_out else f'exit {ended.status}'}: {ended.output[-600:]}")
    return samples


def title(name, size):
    if size == 0:
        return f"{name.capitalize()}, in a row"
    if size < MIB:
        return f"{name.capitalize()} {size} B, in a row"
    return f"{name.capitalize()} {size // MIB} MiB{' each' if name in ('allgather', 'alltoall', 'gather', 'scatter') else ''}"


def table(samples, args, rtt):
    rtt_s, rate = quantity(rtt, UNITS), quantity(args.rate, RATES) / 8
    lines = [f"| {rtt} | blocks: library | stock | alternating: library | stock | allowed |", "|---|---|---|---|---|---|"]
    seen = dict.fromkeys(tuple(key.split()[1:3]) for key in samples)
    for name, size in seen:
        cells = []
        for order in ("blocks", "alternating"):
            for who in ("library", "stock"):
                values = samples.get(f"{order} {name} {size} {who}")
                cells.append(f"{statistics.median(values) / rtt_s:.2f}" if values else "-")
        allowed = 0.5 + ACROSS[name](int(size), args.ranks // 2) / rate / rtt_s
        lines.append(f"| {title(name, int(size))} | {' | '.join(cells)} | {allowed:.2f} |")
    return lines


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", nargs="+", default=["100ms", "24ms"])
    far.add_options(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, nargs="+", default=[1], metavar="MiB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the samples to FILE")
    return parser


def main():
    parser = options()
    args = parser.parse_args()
    mpi = mpis.MPIS[args.mpi]
    if far.INSIDE in os.environ:
        rtt = os.environ[far.INSIDE]
        print(json.dumps(measure(mpi, args, rtt)))
        return 0
    if args.ranks % 2 or args.ranks < 4:
        parser.error("--ranks must be even, and at least 4")
    if why := far.missing(mpi) or compile_all(mpi):
        parser.error(why)
    found = {}
    for rtt in args.rtt:
        ended = far.in_lab(args, rtt, stdout=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            return ended.returncode
        found[rtt] = json.loads(ended.stdout)
        print("\n".join(table(found[rtt], args, rtt)), end="\n\n", flush=True)
    if args.json:
        about = {"mpi": mpi.title, "kernel": os.uname().release, "load": os.getloadavg(), "command": sys.argv}
        args.json.write_text(json.dumps({"about": about, "samples": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
