#!/usr/bin/env python3
"""Runs all Rust tests, and those that failed once more by themselves.

Many of them have real sockets, processes and labs in them, on a machine that may do other work.
What passes at its second attempt is named at the end as unsteady: a fault of the test or of the
program, still to be found. More failures than a few are none of chance, and are not
tried again. Exit status 0 when none failed twice.

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


class Run:
    """One cargo test, whose output is passed on as it comes."""

    def __init__(self, words):
        cargo = subprocess.Popen([*CARGO, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.passed = 0
        # [(target's options, names of the tests that failed in it)]
        self.failed = []
        names = []
        for line in cargo.stdout:
            print(line, end="", flush=True)
            # Other output may stand before it on the line, since tests run at once.
            if found := TEST.search(line):
                names.append(found[1])
            elif found := PASSED.search(line):
                self.passed += int(found[1])
            elif found := TARGET.search(line):
                self.failed.append((found[1].split(), names))
                names = []
        self.status = cargo.wait()


def passes(target, names):
    """Whether these tests pass by themselves; the whole target where it ended without naming any."""
    run = Run([*target, "--", "--exact", "--test-threads=1", *names] if names else target)
    return run.status == 0 and run.passed >= max(len(names), 1)


def main():
    first = Run(sys.argv[1:] or ["--workspace"])
    count = sum(max(len(names), 1) for _, names in first.failed)
    if first.status == 0 or not 0 < count <= MOST_AGAIN:
        return first.status
    print(f"\n{count} failed; once more, by themselves", flush=True)
    verdicts = [(passes(target, names), target, names) for target, names in first.failed]
    print()
    for passed, target, names in verdicts:
        what = "unsteady, passed at the second attempt" if passed else "FAILED twice"
        print(f"{what}: {' '.join([*target, *names])}", flush=True)
    return 0 if all(passed for passed, _, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
