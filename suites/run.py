#!/usr/bin/env python3
"""Tests that others wrote, over Isthmus and over libfabric's stock tcp provider: one table.

    suites/run.py                    all of them
    suites/run.py mpich --only rma/  some tests of one suite
    suites/run.py mpich --quick      what make test runs of it
    suites/run.py mpich --only coll/ --sites '0-1;2-63'
                                     with the collectives library (docs/collectives.md), ranks at these sites
    suites/run.py mpich --only rma/ --parts
                                     over Isthmus in two parts of `isthmus run`, at two sites of a lab (docs/run.md)

The suites are fetched from Debian's archive and PyPI. SUITE.txt says what of one is not
run, and why. What differs is run once more over both; the second run counts. A test that fails first and passes then is
unsteady, as in `make test`. A test that does not end in its time over Isthmus has failed, and does not run again. The exit
status is 1 if anything failed, or is better over the stock provider; the last lines name it. Logs: build/logs/suites/SUITE/
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from others import fabtests, imb, mpi4py, mpich, osu, programs, scalapack, table  # noqa: E402

from harness import lab  # noqa: E402  isort: skip

# The lab of --parts: some tests take a hundred thousand round trips.
PARTS = ["--mgmt", "--rate", "1Gbit", "--rtt", "200us"]
SUITES = {
    "fabtests": lambda options: fabtests.prepare(options, fabtests.FIRST),
    "fabtests-2": lambda options: fabtests.prepare(options, fabtests.SECOND),
    "mpich": mpich.prepare,
    "mpi4py": mpi4py.prepare,
    "programs": programs.prepare,
    "imb": imb.prepare,
    "osu": osu.prepare,
    "scalapack": scalapack.prepare,
}


def main():
    options = arguments()
    with lab.running(PARTS, options.all_logs / "lab.log") if options.parts else contextlib.nullcontext():
        return run(options)


def run(options):
    tables, missing = {}, []
    for name in options.suite or SUITES:
        options.logs = options.all_logs / name
        options.logs.mkdir(parents=True, exist_ok=True)
        try:
            tables[name] = table.judged(SUITES[name](options), options)
        except table.Unavailable as why:
            print(f"{name}: not run: {why}")
            missing.append(name)
    table.summary(tables)
    if options.json:
        rows = {name: {case: {p: vars(o) | {"failed": sorted(o.failed)} for p, o in row.items()}
                       for case, row in results.items()} for name, results in tables.items()}
        options.json.write_text(json.dumps(rows, indent=1))
    # Those who only test want no failure because an archive is out of reach.
    return table.status(tables) or int(bool(missing) and not options.quick)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only tests that contain this")
    parser.add_argument("--quick", action="store_true", help="only what SUITE.txt calls quick")
    parser.add_argument("--provider", action="append", choices=list(table.COLUMN), help="instead of both")
    parser.add_argument("--lazy", action="store_true", help="ask the stock provider only where Isthmus fails")
    parser.add_argument("--all-logs", type=Path, default=table.ROOT / "build" / "logs" / "suites", metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=180, help="what a test may take that says nothing itself")
    parser.add_argument("--sites", metavar="SITES", help="over Isthmus load the collectives library, with ISTHMUS_COLLECTIVES_SITES=SITES (mpich only)")
    parser.add_argument("--pin", metavar="PINS", help="with --sites: ISTHMUS_COLLECTIVES_PIN")
    parser.add_argument("--parts", action="store_true", help="over Isthmus start two parts at two sites (mpich and mpi4py on MPICH only)")
    parser.add_argument("--at-once", type=int, default=2, help="how many tests run at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args()
    for name in options.suite:
        if name not in SUITES:
            parser.error(f'no suite "{name}"; there are: {", ".join(SUITES)}')
    if options.sites and options.suite != ["mpich"]:
        parser.error("--sites is for the suite mpich")
    if options.parts and (not options.suite or set(options.suite) - {"mpich", "mpi4py"} or options.sites):
        parser.error("--parts is for the suites mpich and mpi4py, without --sites")
    return options


if __name__ == "__main__":
    sys.exit(main())
