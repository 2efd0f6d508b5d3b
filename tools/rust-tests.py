#!/usr/bin/env python3
"""Runs all Rust tests, and those that failed once more by themselves.

Many of them have real sockets, processes and labs in them, on a machine that may do other work.
What passes at its second attempt is named at the end as unsteady, with its count over the last runs: a
fault of the test or of the program, still to be found. From the second time on the run fails.
More failures than a few are none of chance, and are not tried again. Nor is what hangs: where nothing
is heard for SILENCE seconds, the stacks of all threads are printed, and the run has failed. A failed test
that reached a limit of its own has a line in its output that begins with "HUNG: ", and has hung as well.
The end names what failed, what it said, and which targets took longest. Exit status 0 when nothing failed.

    tools/rust-tests.py                    the whole workspace
    tools/rust-tests.py -p isthmus-mover   what cargo test takes
    tools/rust-tests.py simulations        the simulations of all crates: virtual time, so load does them no harm
    tools/rust-tests.py others             the workspace without these
"""

import functools
import json
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import unsteady

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from harness import stacks  # noqa: E402

AGAIN_MAX = 3
SIMULATION = "simulation"
# How many of the targets that took longest are named.
NAMED_MAX = 8
# Longest time without a line of output, in which cargo compiles one crate or one test runs. Seconds. Simulations
# may have to wait for the processor, and cannot hang for any other reason than an endless loop.
SILENCE = 3600 if sys.argv[1:] == ["simulations"] else 900
CARGO = ["cargo", "test", "--locked", "--no-fail-fast"]
# What cargo says after each target that failed, and what the test programs say of tests and of themselves.
TARGET = re.compile(r"error: .*test failed, to rerun pass `(.+)`")
TEST = re.compile(r"test (\S+)( - should panic)? \.\.\. (ok|FAILED)")
PASSED = re.compile(r"test result: .* (\d+) passed;")
RUNNING = re.compile(r" +(?:Running|Doc-tests) (.+)")
PROGRAM = re.compile(r"\((?:.*/)?(\S+)\)$")
# What a test says of itself that waited in vain until a limit of its own.
HUNG = re.compile(r"\s*HUNG: (.*)")
PANIC = re.compile(r"thread '(\S+)'.* panicked at (.*)")


class Run:
    """One cargo test, whose output is passed on as it comes."""

    def __init__(self, words):
        targets = targets_of(words)
        cargo = subprocess.Popen([*CARGO, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.hung = False
        # What tests that waited in vain said of it.
        self.waited = []
        self.passed = 0
        # [(target's options, names of the tests that failed in it)]
        self.failed = []
        # What ran, as it is called where unsteady tests are remembered.
        self.ran = set()
        # name of a thread, which is its test's -> where it panicked and the first line of why
        self.panics = {}
        # [(seconds, target)]
        self.took = []
        names = []
        target = panicked = None
        for line in self.lines(cargo):
            print(line, end="", flush=True)
            if panicked:
                self.panics[panicked] += " " + line.strip()
            panicked = None
            if found := HUNG.match(line):
                self.waited.append(found[1])
            # Other output may stand before it on the line, since tests run at once.
            if found := RUNNING.match(line):
                self.ended()
                self.running = found[1], time.monotonic()
                program = PROGRAM.search(found[1])
                target = targets.get(program[1]) if program else ["-p", found[1].replace("_", "-"), "--doc"]
            elif found := PANIC.search(line):
                panicked = found[1]
                self.panics[panicked] = found[2]
            elif found := TEST.search(line):
                if found[3] == "FAILED":
                    names.append(found[1])
                if target:
                    self.ran.add(" ".join([*target, found[1]]))
            elif found := PASSED.search(line):
                self.passed += int(found[1])
                if target:
                    self.ran.add(" ".join(target))
            elif found := TARGET.search(line):
                self.failed.append((found[1].split(), names))
                names = []
        self.ended()
        self.status = cargo.wait()
        # Only of a failed test is the output shown; a child of one that passes may print by itself.
        self.hung = self.hung or bool(self.status and self.waited)

    # The target that runs and when it began.
    running = None

    def ended(self):
        """Notes how long the target took that ran until now."""
        if self.running:
            target, began = self.running
            self.took.append((time.monotonic() - began, target))
        self.running = None

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
        family = stacks.descendants(cargo.pid)
        stacks.keep(family, file)
        print(file.read_text(), flush=True)
        print(f"FAILED: no word for {SILENCE} s; stacks: {file}", flush=True)
        for pid in reversed([cargo.pid, *family]):
            stacks.end(pid)

    def words(self, names):
        """What the tests of these names said when they failed, after a colon."""
        said = [self.panics[name] for name in names if name in self.panics]
        return f": {'; '.join(said)}" if said else ""


def targets_of(words):
    """The name of each test program that these words of cargo's make -> the words for its target alone."""
    words = words[: words.index("--")] if "--" in words else words
    # The tests of documents have no program, and cargo refuses --no-run for them.
    if "--doc" in words:
        return {}
    built = subprocess.run([*CARGO, "--no-run", "--message-format=json-render-diagnostics", *words], stdout=subprocess.PIPE, text=True)
    names = {package["id"]: package["name"] for package in metadata()["packages"]}
    found = {}
    for message in map(json.loads, built.stdout.splitlines()):
        if message["reason"] == "compiler-artifact" and message["executable"]:
            kind, name = message["target"]["kind"][0], message["target"]["name"]
            target = [f"--{kind}", name] if kind in ("test", "bin", "example", "bench") else ["--lib"]
            found[Path(message["executable"]).name] = ["-p", names[message["package_id"]], *target]
    return found


@functools.cache
def metadata():
    """What cargo knows of the workspace."""
    said = subprocess.run(["cargo", "metadata", "--no-deps", "--locked", "--format-version=1"], stdout=subprocess.PIPE, check=True)
    return json.loads(said.stdout)


def passes(target, names):
    """Whether these tests pass by themselves; the whole target where it ended without naming any."""
    run = Run([*target, "--", "--exact", "--test-threads=1", *names] if names else target)
    return run.status == 0 and run.passed >= max(len(names), 1)


def others():
    """What cargo test takes for the workspace without its simulations. It wants the tests of documents apart."""
    targets = [target for package in metadata()["packages"] for target in package["targets"]]
    tests = sorted({target["name"] for target in targets if "test" in target["kind"]} - {SIMULATION})
    return [["--workspace", "--lib", "--bins", *(word for name in tests for word in ("--test", name))], ["--workspace", "--doc"]]


def wanted(words):
    """The calls of cargo test for these words."""
    if words == ["simulations"]:
        return [["--workspace", "--test", SIMULATION]]
    return others() if words == ["others"] else [words or ["--workspace"]]


def main():
    runs = [Run(words) for words in wanted(sys.argv[1:])]
    failed = [each for run in runs for each in run.failed]
    ended_well = not any(run.status for run in runs)
    hung = any(run.hung for run in runs)
    count = sum(max(len(names), 1) for _, names in failed)
    verdicts = ["FAILED"] * len(failed)
    if 0 < count <= AGAIN_MAX and not hung:
        print(f"\n{count} failed; once more, by themselves", flush=True)
        again = [passes(target, names) for target, names in failed]
        verdicts = ["unsteady, passed at the second attempt" if passed else "FAILED twice" for passed in again]
        ended_well = all(again)
    shaky = {" ".join([*target, *name]) for verdict, (target, names) in zip(verdicts, failed) if verdict.startswith("unsteady")
             for name in ([[name] for name in names] or [[]])}  # fmt: skip
    ran = set().union(*(run.ran for run in runs))
    counts = unsteady.note("Rust tests", {name: name in shaky for name in ran | shaky})
    print()
    for seconds, target in sorted((each for run in runs for each in run.took), reverse=True)[:NAMED_MAX]:
        print(f"{seconds:7.1f} s  {target}")
    for name, times in counts.items():
        print(f"{'FAILED' if times > unsteady.TOLERATED else 'unsteady'}: {name}: {unsteady.words(times)}", flush=True)
    for text in (text for run in runs if run.hung for text in run.waited):
        print(f"FAILED: a test has hung, and gets no second attempt: {text}", flush=True)
    for verdict, (target, names) in zip(verdicts, failed):
        said = next(filter(None, (run.words(names) for run in runs)), "")
        print(f"{verdict}: {' '.join([*target, *names])}{said}", flush=True)
    return int(not ended_well or hung or any(times > unsteady.TOLERATED for times in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
