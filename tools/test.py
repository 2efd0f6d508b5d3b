#!/usr/bin/env python3
"""All tests: of the Rust crates, models of their threads, of the MPIs, of the packages, and a part of MPICH's own.

Each part runs even when one before it failed: one run tells all. What they print is passed on
as it comes; what failed, or passed at a second attempt only, is said again as the last lines.
Exit status 0 when nothing failed.

    tools/test.py [what tests/run.py takes]
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "cargo test": ["tools/rust-tests.py"],
    "models of sleep and wake": ["tools/models.sh"],
    "what has hung before": ["tools/soak-live.py", "--minutes", "2", "--busy", "2", "--only", "util_sync", "--lanes", "memory", "tcp", "udp"],
    "the MPIs": ["tests/run.py", "--suite", *sys.argv[1:]],
    "make build without root": ["tests/packaging/build_without_root.py"],
    "pip install": ["tests/packaging/wheel.py"],
    "apt install": ["tests/packaging/deb.py"],
    "of what others wrote": ["suites/run.py", "mpich", "--quick", "--lazy"],
}
# How the parts begin a line at their end that says what failed, and why. "error" is cargo's, of what does not compile.
TELLING = ("FAILED:", "FAILED twice:", "unsteady", "hung:", "error:", "error[", "stock better:")
MOST = 12


def run(command):
    """Runs one part. Returns its exit status and its telling lines."""
    part = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    telling = []
    for line in part.stdout:
        print(line, end="", flush=True)
        if line.lstrip().startswith(TELLING):
            telling.append(line.strip())
    return part.wait(), telling


def main():
    outcomes = {}
    for name, command in PARTS.items():
        print(f"test: {name}", flush=True)
        began = time.monotonic()
        outcomes[name] = (*run(command), time.monotonic() - began)
    print()
    for name, (status, telling, seconds) in outcomes.items():
        print(f"{'FAILED' if status else 'passed'}: {name} ({seconds / 60:.1f} min)")
        for line in telling[-MOST:]:
            print(f"  {line}")
    return int(any(status for status, *_ in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
