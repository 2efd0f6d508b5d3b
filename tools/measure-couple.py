#!/usr/bin/env python3
"""Measures a coupling of two jobs of unlike MPIs across a lab's link: an array from memory to memory, and a file
from file to file, as fractions of the link's limit.

Part 1 receives by MPICH, part 2 sends by Debian's Open MPI. Beside that the same file goes between two jobs of MPICH, which
couple by MPI calls. Runs in which the emulator was late are marked: the
machine was busy.

    tools/measure-couple.py                          1 GB, 1 Gb/s, 24 ms, ranks 2 and 3, three runs of each
    tools/measure-couple.py --rtt 100ms --ranks 4 4  another path, other jobs
    tools/measure-couple.py --folder /data           files on a disk; default: /dev/shm
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure.far import ROOT, RATES, UNITS, mpis, quantity

MTU = 9000
# Bytes of a packet that are no payload, and what a packet takes on the wire beside its own (isthmus-bench/src/link.rs).
HEADERS, FRAME = 52, 38


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--rtt", default="24ms")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs=2, default=(2, 3), metavar=("RECEIVE", "SEND"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm")
    return parser.parse_args()


def floor_s(args):
    goodput = quantity(args.rate, RATES) / 8 * (MTU - HEADERS) / (MTU + FRAME)
    return quantity(args.rtt, UNITS) + args.megabytes * 1e6 / goodput


def command(mpi, ranks, program, words):
    program, env = mpi.command(ranks, [str(mpi.programs / program), *map(str, words)], "isthmus")
    return shlex.join(["env", *(f"{key}={value}" for key, value in env.items()), *program])


def run(args, folder, what):
    """One transfer: its seconds by the sender, and whether the emulator was in time."""
    at = f"file:{folder}/at"
    mpich, other = mpis.MPIS["mpich"], mpis.MPIS["debian-openmpi"]
    if what == "by MPI":
        receive = command(mpich, args.ranks[0], "copy", ["receive", at, folder / "copy"])
        send = command(mpich, args.ranks[1], "copy", ["send", at, folder / "source"])
    else:
        receive = command(mpich, args.ranks[0], "array", [1, at, *([args.megabytes] if what == "array" else ["file", folder / "copy"])])
        send = command(other, args.ranks[1], "array", [2, at, *([args.megabytes] if what == "array" else ["file", folder / "source"])])
    lab = [str(mpis.ISTHMUS), "lab", "run", "--rate", args.rate, "--rtt", args.rtt, "--mtu", str(MTU), "--timeout", "300",
           "--in", "b", receive, "--in", "a", send]
    ended = subprocess.run(lab, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    found = [json.loads(line) for line in re.findall(r"^RESULT (.*)$", said, re.M)]
    if ended.returncode != 0 or not found:
        sys.exit(f"measure-couple: exit {ended.returncode}: {said[-1000:]}")
    return max(one["seconds"] for one in found), "SPOILED" not in said


def main():
    args = options_of()
    for name in ("mpich", "debian-openmpi"):
        mpi = mpis.MPIS[name]
        if words := mpi.missing() or mpis.compile_mover(mpi, mpis.BUILD / "logs" / f"{name}.mover.log"):
            sys.exit(f"measure-couple: {words}")
    floor = floor_s(args)
    print(f"{args.megabytes} MB, {args.rate}, {args.rtt}, ranks {args.ranks[1]} (Open MPI) to {args.ranks[0]} (MPICH); the link allows {floor:.2f} s")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        with open(folder / "source", "wb") as file:
            for _ in range(args.megabytes):
                file.write(os.urandom(1000000))
        samples = {"array": [], "file": [], "by MPI": []}
        for number in range(args.runs):
            for what, all_of in samples.items():
                seconds, in_time = run(args, folder, what)
                all_of.append(floor / seconds)
                load = os.getloadavg()[0]
                print(f"{what:6} {seconds:7.3f} s  {floor / seconds:.3f}  load {load:.1f}{'' if in_time else '  (the emulator was late)'}", flush=True)
        for what, all_of in samples.items():
            print(f"{what:6} median {statistics.median(all_of):.3f}, {min(all_of):.3f} to {max(all_of):.3f}")


if __name__ == "__main__":
    main()
