#!/usr/bin/env python3
"""Measures MPI over Isthmus beside the same MPI over libfabric's shm and tcp;ofi_rxm, on this host.

Two ranks, whose messages all go through the provider: latency, message rate, bandwidth, processor time
for each byte, unexpected messages; one-sided communication; and one endpoint with 64 others of one process,
without MPI.
Each round measures every provider in turn; the table shows medians, and the medians of
the ratios of each round. Where more processes run than processors, figures mean little.

    tools/measure-provider.py                          all of it, 5 rounds
    tools/measure-provider.py --rounds 9 latency rate  figures whose names begin so
    tools/measure-provider.py --mpi openmpi --json samples.json
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from harness import mpis, process  # noqa: E402

SOURCES = ROOT / "tools" / "measure"
OTHERS = ("shm", "rxm")
SECONDS = 120
# Name, unit, by what to divide, whether more is better.
UNITS = {
    "latency": ("us", 1, False),
    "rate": ("M/s", 1e6, True),
    "bandwidth": ("GB/s", 1e9, True),
    "cpu": ("ns/B", 1, False),
    "unexpected": ("us", 1, False),
    "put": ("us", 1, False),
    "get": ("us", 1, False),
    "accumulate": ("us", 1, False),
    "fetch": ("us", 1, False),
    "putrate": ("M/s", 1e6, True),
    "putting": ("GB/s", 1e9, True),
    "getting": ("GB/s", 1e9, True),
    "peers": ("us", 1, False),
}
# The MPI programs, by the kinds of figures that each finds.
PROGRAMS = {
    "messages": ("latency", "rate", "bandwidth", "unexpected"),
    "onesided": ("put", "get", "accumulate", "fetch", "putrate", "putting", "getting"),
}


def kind(name):
    return name.split("-")[0]


def order(name):
    return list(UNITS).index(kind(name)), int(name.split("-")[1])


def programs(mpi):
    """Where they are compiled: not among the tests' programs, of which one has the same name."""
    return mpi.programs / "measure"


def run(mpi, transport, figures, logs):
    """One round of one provider: figures by name. What fails is said, and counts as missing."""
    jobs = []
    for program, kinds in PROGRAMS.items():
        wanted = [name for name in figures if kind(name) in kinds]
        if wanted or not figures:
            jobs.append(mpi.command(2, [str(programs(mpi) / program), *wanted], transport))
    if not figures or any(kind(name) == "peers" for name in figures):
        name = mpis.LIBFABRIC_NAME[transport]
        env = {**os.environ, "FI_PROVIDER_PATH": str(mpis.PROVIDER.parent), "FI_PROVIDER": name}
        jobs.append(([str(mpi.programs.parent / "peers"), name], env))
    found = {}
    for command, env in jobs:
        ended = process.run(command, env, logs / f"{transport}.log", SECONDS)
        if ended.status != 0:
            print(f"{transport}: {'not ended' if ended.timed_out else f'exit {ended.status}'}: {ended.output[-400:]}")
        found |= {name: float(value) for name, value in re.findall(r"^(\w+-\d+) (\S+)$", ended.output, re.M)}
    return found


def compiled(mpi):
    """Compiles the programs. Returns the compiler's words on failure."""
    programs(mpi).mkdir(parents=True, exist_ok=True)
    peers = ["cc", *mpis.C_FLAGS, "-o", str(mpi.programs.parent / "peers"), str(SOURCES / "peers.c"), "-lfabric"]
    mpis_own = [mpi.compile_command(SOURCES / f"{name}.c", programs(mpi) / name) for name in PROGRAMS]
    for command in (*mpis_own, peers):
        ended = subprocess.run(command, env={**os.environ, **mpi.compile_env()}, capture_output=True, text=True)
        if ended.returncode != 0:
            return ended.stderr
    return None


def table(samples, providers):
    """Lines of a table in Markdown. `samples[provider][round][figure]`."""
    names = sorted({name for rounds in samples.values() for found in rounds for name in found}, key=order)
    titles = [mpis.LIBFABRIC_NAME[provider] for provider in providers]
    lines = ["| figure | unit | " + " | ".join(titles + [f"ratio to {title}" for title in titles[1:]]) + " |"]
    lines.append("|---" * (2 + 2 * len(providers) - 1) + "|")
    for name in names:
        unit, divisor, more = UNITS[kind(name)]
        cells = []
        for provider in providers:
            values = [found[name] / divisor for found in samples[provider] if name in found]
            cells.append(f"{statistics.median(values):.3g}" if values else "-")
        for other in providers[1:]:
            pairs = zip(samples["isthmus"], samples[other])
            ratios = [ours[name] / theirs[name] for ours, theirs in pairs if ours.get(name) and theirs.get(name)]
            better = "more" if more else "less"
            cells.append(f"{statistics.median(ratios):.2f} ({better} is better)" if ratios else "-")
        lines.append(f"| {name} | {unit} | " + " | ".join(cells) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(UNITS)}, or one such as latency-8; all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpi", choices=list(mpis.MPIS), default="mpich")
    parser.add_argument("--without", action="append", choices=OTHERS, default=[], help="one of the others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the samples to FILE")
    args = parser.parse_args()
    # The processor time belongs to the bandwidth of the same size.
    figures = [name.replace("cpu", "bandwidth") for name in args.figures]
    if unknown := [name for name in args.figures if kind(name) not in UNITS]:
        parser.error(f"no such figure: {', '.join(unknown)}")
    mpi = mpis.MPIS[args.mpi]
    if why := mpi.missing() or (None if mpis.PROVIDER.exists() else f"{mpis.PROVIDER} is missing: run make build"):
        parser.error(why)
    if words := compiled(mpi):
        parser.error(words)
    logs = ROOT / "build" / "logs" / "measure-provider"
    logs.mkdir(parents=True, exist_ok=True)
    providers = ["isthmus", *(other for other in OTHERS if other not in args.without)]
    samples = {provider: [] for provider in providers}
    for number in range(args.rounds):
        for provider in providers:
            print(f"round {number + 1} of {args.rounds}: {mpis.LIBFABRIC_NAME[provider]}", file=sys.stderr, flush=True)
            samples[provider].append(run(mpi, provider, figures, logs))
    print("\n".join(table(samples, providers)))
    if args.json:
        about = {"mpi": mpi.title, "kernel": os.uname().release, "load": os.getloadavg(), "command": sys.argv}
        args.json.write_text(json.dumps({"about": about, "samples": samples}, indent=1))
    return 0 if all(all(rounds) for rounds in samples.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
