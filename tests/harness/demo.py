"""The demo as its users run it: it copies, and it fails in bounded time with a
text that says what and what to do."""

import os
import re
import signal
import subprocess
import sys
import time

from . import process
from .cases import Case, Failure, Skip, last_words, ranks_of
from .mpis import ROOT


def start(c, *words, suffix=""):
    command = [sys.executable, str(ROOT / "demo" / "run.py"), "--mpi", c.mpi.name, *words]
    return process.Running(command, {}, c.log(suffix))


def expect(ended, status, words):
    """The status, and a text that matches; never a hang."""
    if ended.timed_out:
        raise Failure(f"no end after {ended.seconds:.0f} s; {last_words(ended.output)}")
    told = re.search(words, ended.output)
    if ended.status != status or not told:
        raise Failure(f"exit {ended.status} (expected {status}), text {'as' if told else 'not as'} expected: {last_words(ended.output)}")
    return told.group(0)


def copies(c):
    """A small file, no multiple of anything; both digests agree."""
    ended = start(c, "--size", "20000001", "--block", "100000", "--rtt", "10ms").wait(120)
    expect(ended, 0, r"at B, stock tcp .* equal")
    # A bar for each ends what it prints.
    expect(ended, 0, r"\n  the link +█+.? [\d.]+ MB/s\n  Isthmus +█+.? [\d.]+ MB/s\n  stock tcp +█*.? [\d.]+ MB/s\s*$")
    return re.sub(r" +", " ", expect(ended, 0, r"Isthmus +[\d.]+ MB/s.*"))


def small_window(c):
    """A part larger than the memory for it: buffers are used again."""
    ended = start(c, "--size", "20M", "--block", "64Ki", "--window", "512Ki", "--ranks", "3", "--rtt", "10ms", "--no-stock").wait(120)
    return expect(ended, 0, r"at B, Isthmus .* equal")


def across_five(c):
    """Across five networks, with two of site a's routers killed on the way."""
    ended = start(c, "--routed", "five", "--size", "60M", "--rtt", "10ms", "--loss", "0%").wait(120)
    expect(ended, 0, r"at B, Isthmus .* equal")
    return expect(ended, 0, r"router i1 of site a and router r1 of site a killed after \d+ MB")


def empty_file(c):
    empty = c.scratch("empty")
    empty.touch()
    ended = start(c, "--file", str(empty), "--rtt", "10ms", "--no-stock").wait(60)
    return expect(ended, 0, r"at B, Isthmus .* equal")


def no_file(c):
    return expect(start(c, "--file", "/no/such/file").wait(30), 2, r"no such file: /no/such/file")


def full_disk(c):
    """B's disk is a memory file system of 8 MB."""
    small = c.logs / "small-disk"
    small.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], capture_output=True).returncode != 0:
        raise Skip("making a small file system needs the right to mount")
    try:
        ended = start(c, "--size", "40M", "--rtt", "10ms", "--no-stock", "--out", str(small)).wait(120)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    return expect(ended, 3, r"rank \d+ of the receiver: cannot write .*; free some space.*")


def killed_rank(c, site):
    """A rank is killed in the middle of the transfer: both applications end."""
    job = start(c, "--size", "400M", "--rate", "200Mbit", "--rtt", "10ms", "--no-stock")
    try:
        program = "copy"
        ranks_of(job, 8, program, 60)
        time.sleep(4)
        role = {"a": b"send", "b": b"receive"}[site]
        victims = [pid for pid in job.pids(program) if role in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")]
        if not victims:
            raise Failure(f"nothing to kill: {last_words(job.output())}")
        os.kill(max(victims), signal.SIGKILL)
        killed = time.monotonic()
        ended = job.wait(killed - job.began + 60)
    finally:
        job.end()
    if left := process.marked(job.mark):
        raise Failure(f"processes were left: {left}")
    return f"after {time.monotonic() - killed:.1f} s: " + expect(ended, 3, r"error: the (sender|receiver) ended with status.*")[:100]


CASES = {
    f"demo-{name}": Case(f"demo-{name}", body, places=("demo",), mpis=("mpich",))
    for name, body in (
        ("copies", copies),
        ("small-window", small_window),
        ("across-five", across_five),
        ("empty-file", empty_file),
        ("no-file", no_file),
        ("full-disk", full_disk),
        ("killed-at-a", lambda c: killed_rank(c, "a")),
        ("killed-at-b", lambda c: killed_rank(c, "b")),
    )
}
