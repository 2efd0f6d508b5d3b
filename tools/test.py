#!/usr/bin/env python3
"""All tests: of the Rust crates, models of their threads, of the MPIs, of the packages, and a part of MPICH's own.

First it installs what they need and compiles: the release, and the tests of the crates beside it, since
optimising the release as a whole keeps one processor busy. Then each part runs even when one before it failed: one
run tells all. The simulations run beside the others in the time that these leave. What the parts print is passed on
as it comes; what failed, or passed at a second attempt only, is said again as the last lines.
Exit status 0 when nothing failed.

    tools/test.py [what pytest takes for the MPIs]
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "logs"
# What is done at once before the parts, by name.
PREPARATIONS = {
    "install": ["tools/bootstrap.sh"],
    "release": ["tools/build.sh"],
    "compile tests": ["cargo", "test", "--workspace", "--locked", "--no-run"],
}
# In virtual time, so that it does not matter when they get the processor.
BESIDE = ("simulations", ["tools/rust-tests.py", "simulations"])
PARTS = {
    "cargo test": ["tools/rust-tests.py", "others"],
    "models of sleep and wake": ["tools/models.sh"],
    "what has hung before": ["tools/soak-live.py", "--minutes", "1", "--busy", "2", "--only", "util_sync", "--lanes", "memory", "tcp", "udp"],
    "the MPIs": ["build/python/bin/pytest", "--junitxml=build/logs/mpi.xml", *sys.argv[1:]],
    "make build without root": ["tests/packaging/build_without_root.py"],
    "pip install": ["tests/packaging/wheel.py"],
    "apt install": ["tests/packaging/deb.py"],
    "of what others wrote": ["suites/run.py", "mpich", "--quick", "--lazy"],
}
# How the parts begin a line at their end that says what failed, and why. "error" is cargo's, of what does not compile.
TELLING = ("FAILED:", "FAILED twice:", "FAILED tests/", "ERROR tests/", "unsteady", "error:", "error[")
MOST = 12


def prepare():
    """Does all preparations at once. Whether they did; else it prints what the one that failed said."""
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    running = {}
    for name, command in PREPARATIONS.items():
        with open(LOGS / f"{name.replace(' ', '-')}.log", "w+") as log:
            running[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT), log.name
    failed = False
    for name, (process, log) in running.items():
        status = process.wait()
        print(f"test: {name}: {'FAILED' if status else 'done'} after {(time.monotonic() - began) / 60:.1f} min", flush=True)
        if status:
            failed = True
            print(Path(log).read_text(errors="replace"), flush=True)
    return not failed


def follow(lines):
    """Prints these lines as they come. Returns the telling ones."""
    telling = []
    for line in lines:
        print(line, end="", flush=True)
        if line.lstrip().startswith(TELLING):
            telling.append(line.strip())
    return telling


def run(command):
    """Runs one part. Returns its exit status and its telling lines."""
    part = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    telling = follow(part.stdout)
    return part.wait(), telling


def give_way():
    """This process and its children get what others leave of the processors (sched(7))."""
    os.setsid()
    os.nice(19)
    try:
        Path("/proc/self/autogroup").write_text("19")
    except OSError:  # no such groups in this kernel
        pass


class Beside:
    """A part that gives way to all others and whose output is kept until its end."""

    def __init__(self, name, command):
        self.began = time.time()
        self.log = LOGS / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, preexec_fn=give_way)

    def finish(self):
        """Waits for its end and prints what it said. Returns exit status, telling lines and seconds."""
        status = self.process.wait()
        # It ended with its last words, maybe long ago.
        seconds = self.log.stat().st_mtime - self.began
        with open(self.log, errors="replace") as log:
            return status, follow(log), seconds

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


def main():
    if not prepare():
        return 1
    outcomes = {}
    name, command = BESIDE
    beside = Beside(name, command)
    try:
        for part, command in PARTS.items():
            print(f"test: {part}", flush=True)
            began = time.monotonic()
            outcomes[part] = (*run(command), time.monotonic() - began)
        print(f"test: {name}", flush=True)
        outcomes[name] = beside.finish()
    finally:
        beside.stop()
    print()
    for name, (status, telling, seconds) in outcomes.items():
        print(f"{'FAILED' if status else 'passed'}: {name} ({seconds / 60:.1f} min)")
        for line in telling[-MOST:]:
            print(f"  {line}")
    return int(any(status for status, *_ in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
