#!/usr/bin/env python3
"""Measures the start of a job of two parts of `isthmus run` at two sites of a lab: from the start of the commands until
every rank has left MPI_Init and a barrier of the world. No scheduler is part of it.

Beside it the same parts start within one site, so that the difference is what the path between the sites costs. The
processor is the bottleneck of the rest: each rank is a process that starts an MPI.

    tools/measure-run.py                         32 ranks at each site, 100 ms, three runs
    tools/measure-run.py --ranks 8 --rtt 24ms
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measure.far import missing, mpis

from harness import lab, run_cases
from harness.cases import Context

# Each rank ends its line with the time, which all sites of a lab share.
PROGRAM = "import time; from mpi4py import MPI; w = MPI.COMM_WORLD; w.barrier(); t = w.reduce(time.time(), MPI.MAX); w.rank or print('READY', t, flush=True)"


def options_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=32, help="of each part")
    parser.add_argument("--rtt", default="100ms")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


def start(args, folder, sites):
    """Seconds that one start takes."""
    c = Context(mpis.MPIS["mpich"], "isthmus", lab.place("sites"), Path(folder), f"start-{'-'.join(sites)}")
    at, words = run_cases.meeting(c), [c.mpi.python(), "-c", PROGRAM]
    began = time.time()
    parts = [run_cases.Part(c, site, f"{part}/2", words, "-n", args.ranks, at=at) for part, site in enumerate(sites, 1)]
    with run_cases.Job(parts) as job:
        said = job.succeed(300)
    return float(re.search(r"READY ([\d.]+)", said).group(1)) - began


def main():
    args = options_of()
    if words := missing(mpis.MPIS["mpich"]):
        sys.exit(words)
    print(f"2 x {args.ranks} ranks, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder, lab.running(["--mgmt", "--rate", args.rate, "--rtt", args.rtt], Path(folder) / "lab.log"):
        for title, sites in ((f"two sites, {args.rtt}", "ab"), ("one site", "aa")):
            runs = []
            for _ in range(args.runs):
                runs.append(start(args, folder, sites))
                print(f"{title:20} {runs[-1]:6.2f} s  load {os.getloadavg()[0]:.1f}", flush=True)
            print(f"{title:20} {statistics.median(runs):6.2f} s  median")


if __name__ == "__main__":
    main()
