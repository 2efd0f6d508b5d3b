#!/usr/bin/env python3
"""Runs all Rust tests, and those that failed once more by themselves.

Many of them have real sockets, processes and labs in them, on a machine that may do other work.
What passes at its second attempt is named at the end as unsteady, with its count over the last runs: a
fault of the test or of the program, still to be found. From the second time on the run fails.
More failures than a few are none of chance, and are not tried again. Nor is what hangs: where nothing
is heard for SILENCE seconds, the stacks of all threads are printed, and the run has failed.
The end names what failed, and what it said. Exit status 0 when nothing failed.

    tools/rust-tests.py                    the whole workspace
    tools/rust-tests.py -p isthmus-mover   what cargo test takes
"""

import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

import unsteady

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness import stacks  # noqa: E402

MOST_AGAIN = 3
# Longest time without a line of output, in which cargo compiles one crate or one test runs. Seconds.
SILENCE = 900
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
        self.hung = False
        self.passed = 0
        # [(target's options, names of the tests that failed in it)]
        self.failed = []
        # name of a thread, which is its test's -> where it panicked and the first line of why
        self.panics = {}
        names = []
        panicked = None
        for line in self.lines(cargo):
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

    def lines(self, cargo):
        """What cargo says, until its end or a silence."""
        said = queue.Queue()

        def listen():
            for line in cargo.stdout:
                said.put(line)
            said.put(None)

        threading.Thread(target=listen, daemon=True).start()
        while True:
            try:
                line = said.get(timeout=SILENCE)
            except queue.Empty:
                return self.stop(cargo)
            if line is None:
                return
            yield line

    def stop(self, cargo):
        """Nothing was heard for too long: says where all threads stand, and ends the run."""
        self.hung = True
        file = stacks.ROOT / "build" / "logs" / "rust-tests.stacks"
        file.parent.mkdir(parents=True, exist_ok=True)
        family = descendants(cargo.pid)
        stacks.keep(family, file)
        print(file.read_text(), flush=True)
        print(f"FAILED: no word for {SILENCE} s; stacks: {file}", flush=True)
        for pid in reversed([cargo.pid, *family]):
            stacks.end(pid)

    def words(self, names):
        """What the tests of these names said when they failed, after a colon."""
        said = [self.panics[name] for name in names if name in self.panics]
        return f": {'; '.join(said)}" if said else ""


def descendants(pid):
    """The processes that this one started, and those that they did."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, task.read_text().split())
        except OSError:
            pass
    return [one for child in children for one in (child, *descendants(child))]


def passes(target, names):
    """Whether these tests pass by themselves; the whole target where it ended without naming any."""
    run = Run([*target, "--", "--exact", "--test-threads=1", *names] if names else target)
    return run.status == 0 and run.passed >= max(len(names), 1)


def main():
    first = Run(sys.argv[1:] or ["--workspace"])
    count = sum(max(len(names), 1) for _, names in first.failed)
    verdicts = ["FAILED"] * len(first.failed)
    if 0 < count <= MOST_AGAIN and not first.hung:
        print(f"\n{count} failed; once more, by themselves", flush=True)
        again = [passes(target, names) for target, names in first.failed]
        verdicts = ["unsteady, passed at the second attempt" if passed else "FAILED twice" for passed in again]
        if all(again):
            first.status = 0
    names = {" ".join([*target, *names]) for verdict, (target, names) in zip(verdicts, first.failed) if verdict.startswith("unsteady")}
    counts = unsteady.note("Rust tests", names)
    print()
    for name, times in counts.items():
        print(f"{'FAILED' if times > unsteady.TOLERATED else 'unsteady'}: {name}: {unsteady.words(times)}", flush=True)
    for verdict, (target, names) in zip(verdicts, first.failed):
        print(f"{verdict}: {' '.join([*target, *names])}{first.words(names)}", flush=True)
    return int(first.status != 0 or first.hung or any(times > unsteady.TOLERATED for times in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
