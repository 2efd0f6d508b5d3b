#!/usr/bin/env python3
"""Runs all Rust tests, and those that failed once more by themselves.

Many of them have real sockets, processes and labs in them, on a machine that may do other work.
What passes at its second attempt is named at the end as unsteady: a fault of the test or of the
program, still to be found. More failures than a few are none of chance, and are not
tried again. The end names what failed, and what it said. Exit status 0 when none failed twice.

    tools/rust-tests.py                    the whole workspace
    tools/rust-tests.py -p isthmus-mover   what cargo test takes
"""

import re
import subprocess
import sys

MOST_AGAIN = 3
CARGO = ["cargo", "test", "--locked", "--no-fail-fast"]
# What cargo says after each target that failed, and what the test programs say of tests and of themselves.
TARGET = re.compile(r"error: .*test failed, to rerun pass `(.+)`")
TEST = re.compile(r"test (\S+)( - should panic)? \.\.\. FAILED")
PASSED = re.compile(r"test result: .* (\d+) passed;")
PANIC = re.compile(r"thread '(\S+)'.* panicked at (.*)")


class Run:
    """One cargo test, whose output is passed on as it comes."""

    def __init__(self, words):
        cargo = subprocess.Popen([*CARGO, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.passed = 0
        # [(target's options, names of the tests that failed in it)]
        self.failed = []
        # name of a thread, which is its test's -> where it panicked and the first line of why
        self.panics = {}
        names = []
        panicked = None
        for line in cargo.stdout:
            print(line, end="", flush=True)
            if panicked:
                self.panics[panicked] += " " + line.strip()
            panicked = None
            # Other output may stand before it on the line, since tests run at once.
            if found := PANIC.search(line):
                panicked = found[1]
                self.panics[panicked] = found[2]
            elif found := TEST.search(line):
                names.append(found[1])
            elif found := PASSED.search(line):
                self.passed += int(found[1])
            elif found := TARGET.search(line):
                self.failed.append((found[1].split(), names))
                names = []
        self.status = cargo.wait()

    def words(self, names):
        """What the tests of these names said when they failed, after a colon."""
        said = [self.panics[name] for name in names if name in self.panics]
        return f": {'; '.join(said)}" if said else ""


def passes(target, names):
    """Whether these tests pass by themselves; the whole target where it ended without naming any."""
    run = Run([*target, "--", "--exact", "--test-threads=1", *names] if names else target)
    return run.status == 0 and run.passed >= max(len(names), 1)


def main():
    first = Run(sys.argv[1:] or ["--workspace"])
    count = sum(max(len(names), 1) for _, names in first.failed)
    verdicts = ["FAILED"] * len(first.failed)
    if 0 < count <= MOST_AGAIN:
        print(f"\n{count} failed; once more, by themselves", flush=True)
        again = [passes(target, names) for target, names in first.failed]
        verdicts = ["unsteady, passed at the second attempt" if passed else "FAILED twice" for passed in again]
        if all(again):
            first.status = 0
    print()
    for verdict, (target, names) in zip(verdicts, first.failed):
        print(f"{verdict}: {' '.join([*target, *names])}{first.words(names)}", flush=True)
    return first.status


if __name__ == "__main__":
    sys.exit(main())
